package backend

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every bfloat16 survives the way through float32 and back.
func TestBF16RoundTrip(t *testing.T) {
	for h := range 1 << 16 {
		f := DecodeBF16(uint16(h))
		if f != f {
			g := DecodeBF16(EncodeBF16(f))
			require.True(t, g != g, "%#x is a NaN, and became %g", h, g)
			continue
		}
		require.Equal(t, uint16(h), EncodeBF16(f), "%#x", h)
	}
}

// Encoding takes the nearer neighbour, and of two equally near ones the even.
func TestBF16RoundsToNearestEven(t *testing.T) {
	for h := range 0x7f7f { // positive and finite, and so is the next
		below, above := DecodeBF16(uint16(h)), DecodeBF16(uint16(h+1))
		base := math.Float32bits(below)
		even := uint16(h + h&1)
		for _, c := range []struct {
			low  uint32
			want uint16
		}{{1, uint16(h)}, {0x7fff, uint16(h)}, {0x8000, even}, {0x8001, uint16(h + 1)}, {0xffff, uint16(h + 1)}} {
			f := math.Float32frombits(base | c.low)
			require.Equal(t, c.want, EncodeBF16(f), "%g between %g and %g", f, below, above)
			require.Equal(t, c.want|0x8000, EncodeBF16(-f), "%g", -f)
		}
	}
}

func TestBF16Special(t *testing.T) {
	inf := float32(math.Inf(1))
	assert.Equal(t, uint16(0x7f80), EncodeBF16(inf))
	assert.Equal(t, uint16(0xff80), EncodeBF16(-inf))
	assert.Equal(t, uint16(0x7f80), EncodeBF16(math.MaxFloat32), "rounds up, out of range")
	for _, b := range []uint32{0x7f800001, 0xff800001, 0x7fffffff, 0x7fc00000} {
		f := DecodeBF16(EncodeBF16(math.Float32frombits(b)))
		assert.True(t, f != f, "%#x is a NaN, and became %g", b, f)
	}
}

func TestBF16Slices(t *testing.T) {
	src := []float32{0, 1, -2.5, 3.1415927, 1e-40}
	enc, dec := make([]uint16, len(src)), make([]float32, len(src))
	RoundBF16(enc, src)
	WidenBF16(dec, enc)
	for i, f := range src {
		assert.Equal(t, EncodeBF16(f), enc[i])
		assert.Equal(t, DecodeBF16(enc[i]), dec[i])
	}
}
