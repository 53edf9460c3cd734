package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLlama3Scaling checks the rotary frequencies of Llama-3.2-1B against
// values computed from the reference: the first 15 are kept, three are
// blended, the rest are divided by the factor.
func TestLlama3Scaling(t *testing.T) {
	c := &Config{RotaryDim: 64, RopeTheta: 5e5}
	plain := c.invFreq()
	c.RopeScaling = &Llama3Scaling{Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPosition: 8192}
	scaled := c.invFreq()
	require.Len(t, scaled, 32)
	require.Equal(t, plain[:15], scaled[:15])
	for i, want := range map[int]float64{
		15: 1.29054793e-3, 16: 4.29556797e-4, 17: 9.7082878e-5, 18: 1.94616382e-5, 31: 9.41830673e-8,
	} {
		require.InEpsilon(t, want, scaled[i], 1e-6, "pair %d", i)
	}
	for i := 18; i < 32; i++ {
		require.InEpsilon(t, plain[i]/32, scaled[i], 1e-6, "pair %d", i)
	}
}

// TestPartialRotary checks that only the rotated dims get a frequency, spaced
// over the rotated dims rather than over the head.
func TestPartialRotary(t *testing.T) {
	f := (&Config{HeadDim: 256, RotaryDim: 64, RopeTheta: 1e7}).invFreq()
	require.Len(t, f, 32)
	require.EqualValues(t, 1, f[0])
	require.InEpsilon(t, 1e-7*1.6548170, f[31], 1e-5) // 1e7^(-62/64)
}
