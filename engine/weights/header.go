package weights

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Limits of a safetensors header. The first is the format's, the others keep
// a hostile file from costing more than it is worth.
const (
	maxHeaderBytes = 100_000_000
	maxTensors     = 1 << 16
	maxNameBytes   = 1024
	maxRank        = 8
)

// entry is one tensor of a safetensors header.
type entry struct {
	name       string
	dtype      string
	shape      []int
	elements   int
	begin, end int // in the data that follows the header
}

// dtypeBytes has the dtypes of the format and the size of an element of each.
// Types of less than a byte exist, and are refused.
var dtypeBytes = map[string]int{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1,
	"I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4,
	"I64": 8, "U64": 8, "F64": 8,
}

// parseHeader reads the header of a safetensors file (without the length in
// front) that is followed by dataBytes bytes of data. The entries come back in
// the order of the data, and cover it without overlap, hole or rest.
//
// It is stricter than the format in this: a tensor has no other fields than
// dtype, shape and data_offsets, sizes are plain non-negative integers, and
// names, ranks and the number of tensors are bounded.
func parseHeader(header []byte, dataBytes int) ([]entry, error) {
	if !utf8.Valid(header) {
		return nil, errors.New("header is not valid UTF-8")
	}
	if len(header) == 0 || header[0] != '{' {
		return nil, fmt.Errorf("header begins with %.16q, want '{'", header)
	}
	w := newWalker(header)
	var entries []entry
	err := w.object("header", func(name string) error {
		if name == "__metadata__" {
			return w.object("__metadata__", func(key string) error {
				_, err := w.string(fmt.Sprintf("__metadata__ %.64q", key))
				return err
			})
		}
		if len(entries) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		if len(name) > maxNameBytes {
			return fmt.Errorf("tensor name of %d bytes, at most %d are allowed: %.64q…", len(name), maxNameBytes, name)
		}
		e, err := w.entry(name)
		entries = append(entries, e)
		return err
	})
	if err != nil {
		return nil, err
	}
	if rest := header[w.dec.InputOffset():]; len(bytes.TrimLeft(rest, " ")) > 0 {
		return nil, fmt.Errorf("header is followed by %.16q, only spaces are allowed", bytes.TrimLeft(rest, " "))
	}

	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.name, b.name))
	})
	at, before := 0, "the data begins"
	for _, e := range entries {
		switch {
		case e.begin > at:
			return nil, fmt.Errorf("tensor %q: data_offsets [%d, %d] leave a hole: %s at %d", e.name, e.begin, e.end, before, at)
		case e.begin < at:
			return nil, fmt.Errorf("tensor %q: data_offsets [%d, %d] overlap: %s at %d", e.name, e.begin, e.end, before, at)
		case e.end > dataBytes:
			return nil, fmt.Errorf("tensor %q: data_offsets [%d, %d] reach beyond the %d bytes of data: the file is truncated", e.name, e.begin, e.end, dataBytes)
		}
		at, before = e.end, fmt.Sprintf("tensor %q ends", e.name)
	}
	if at != dataBytes {
		return nil, fmt.Errorf("%d bytes of data, the tensors take %d", dataBytes, at)
	}
	return entries, nil
}

// walker reads JSON token by token: encoding/json alone would let a second
// key of one name silently win.
type walker struct{ dec *json.Decoder }

func newWalker(data []byte) walker {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return walker{dec}
}

func (w walker) token(what string) (json.Token, error) {
	t, err := w.dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("%s: not valid JSON at byte %d: %w", what, w.dec.InputOffset(), err)
	}
	return t, nil
}

func (w walker) delim(what string, want json.Delim) error {
	t, err := w.token(what)
	if err == nil && t != want {
		err = fmt.Errorf("%s: got %s, want '%v'", what, show(t), want)
	}
	return err
}

// object calls member for each key, which reads the value.
func (w walker) object(what string, member func(key string) error) error {
	if err := w.delim(what, '{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for w.dec.More() {
		key, err := w.string(what + ": key")
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%s: duplicate key %.64q", what, key)
		}
		seen[key] = true
		if err := member(key); err != nil {
			return err
		}
	}
	return w.delim(what, '}')
}

func (w walker) string(what string) (string, error) {
	t, err := w.token(what)
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("%s: got %s, want a string", what, show(t))
	}
	return s, nil
}

// ints reads an array of at most limit plain non-negative integers.
func (w walker) ints(what string, limit int) ([]int, error) {
	if err := w.delim(what, '['); err != nil {
		return nil, err
	}
	list := []int{}
	for w.dec.More() {
		t, err := w.token(what)
		if err != nil {
			return nil, err
		}
		number, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%s: got %s, want an integer", what, show(t))
		}
		// ParseUint takes neither sign nor fraction nor exponent.
		n, err := strconv.ParseUint(number.String(), 10, strconv.IntSize-1)
		if err != nil {
			return nil, fmt.Errorf("%s: %.32s is not an integer in [0, 2^%d)", what, number, strconv.IntSize-1)
		}
		if len(list) == limit {
			return nil, fmt.Errorf("%s: more than %d numbers", what, limit)
		}
		list = append(list, int(n))
	}
	return list, w.delim(what, ']')
}

// skip reads a value of any kind.
func (w walker) skip(what string) error {
	var v json.RawMessage
	if err := w.dec.Decode(&v); err != nil {
		return fmt.Errorf("%s: not valid JSON: %w", what, err)
	}
	return nil
}

// entry reads the description of one tensor.
func (w walker) entry(name string) (entry, error) {
	e := entry{name: name}
	what := fmt.Sprintf("tensor %q", name)
	var offsets []int
	err := w.object(what, func(key string) (err error) {
		switch key {
		case "dtype":
			e.dtype, err = w.string(what + ": dtype")
		case "shape":
			e.shape, err = w.ints(what+": shape", maxRank)
		case "data_offsets":
			offsets, err = w.ints(what+": data_offsets", 2)
		default:
			err = fmt.Errorf("%s: unknown field %.64q", what, key)
		}
		return err
	})
	if err != nil {
		return e, err
	}
	size, known := dtypeBytes[e.dtype]
	switch {
	case e.dtype == "":
		return e, fmt.Errorf("%s: dtype is missing", what)
	case !known:
		return e, fmt.Errorf("%s: unknown dtype %.32q", what, e.dtype)
	case e.shape == nil:
		return e, fmt.Errorf("%s: shape is missing", what)
	case len(offsets) != 2:
		return e, fmt.Errorf("%s: data_offsets has %d numbers, want 2", what, len(offsets))
	case offsets[1] < offsets[0]:
		return e, fmt.Errorf("%s: data_offsets [%d, %d] end before they begin", what, offsets[0], offsets[1])
	}
	if e.elements, err = elements(e.shape); err != nil {
		return e, fmt.Errorf("%s: %w", what, err)
	}
	e.begin, e.end = offsets[0], offsets[1]
	if hi, want := bits.Mul64(uint64(e.elements), uint64(size)); hi != 0 || want != uint64(e.end-e.begin) {
		return e, fmt.Errorf("%s: data_offsets [%d, %d] span %d bytes, shape %v of %s takes %d",
			what, e.begin, e.end, e.end-e.begin, e.shape, e.dtype, want)
	}
	return e, nil
}

// show names a token in an error.
func show(t json.Token) string {
	switch t := t.(type) {
	case json.Delim:
		return fmt.Sprintf("'%v'", t)
	case string:
		return fmt.Sprintf("%.32q", t)
	case nil:
		return "null"
	}
	return fmt.Sprintf("%.32v", t)
}
