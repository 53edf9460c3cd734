package weights

// ParseHeader reads a header for the fuzzer: names in the order of the data.
func ParseHeader(header []byte, dataBytes int) (names []string, err error) {
	entries, err := parseHeader(header, dataBytes)
	for _, e := range entries {
		names = append(names, e.name)
	}
	return names, err
}

var ParseIndex = parseIndex

var DecodeF16 = decodeF16

const MaxTensors = maxTensors
