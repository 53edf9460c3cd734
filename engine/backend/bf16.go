package backend

import "math"

// EncodeBF16 rounds to the nearest bfloat16, ties to even. A NaN stays a NaN,
// and values beyond the largest bfloat16 become infinite.
func EncodeBF16(f float32) uint16 {
	b := math.Float32bits(f)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40 // quiet, so that the fraction is not lost with its low bits
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// DecodeBF16 widens a bfloat16, exactly.
func DecodeBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// RoundBF16 encodes src into dst, which is at least as long.
func RoundBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, f := range src {
		dst[i] = EncodeBF16(f)
	}
}

// WidenBF16 decodes src into dst, which is at least as long.
func WidenBF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = DecodeBF16(h)
	}
}
