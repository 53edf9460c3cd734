package stats

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The one-sided bounds of the package documentation, to the digit.
func TestRank(t *testing.T) {
	for _, c := range []struct {
		n          int
		confidence float64
		rank       int
		coverage   float64
	}{
		{4, 0.95, 0, 1},
		{5, 0.95, 1, 1 - 1./32},
		{6, 0.95, 1, 1 - 1./64},
		{7, 0.95, 1, 1 - 1./128},
		{8, 0.95, 2, 1 - 9./256},
		{9, 0.95, 2, 1 - 10./512},
		{10, 0.95, 2, 1 - 11./1024},
		{11, 0.95, 3, 1 - 67./2048},
		{12, 0.95, 3, 1 - 79./4096},
		{13, 0.95, 4, 1 - 378./8192},
		{30, 0.95, 11, 0.9506314266473055},
		{5, 1 - 1./32, 1, 1 - 1./32}, // exactly at the level
		{5, 0.97, 0, 1},
		{8, 0.99, 1, 1 - 1./256},
		{100, 0.95, 42, 0.9556869599429636},
		{10000, 0.95, 4918, 0.9505},
	} {
		t.Run(fmt.Sprintf("n=%d/confidence=%.4g", c.n, c.confidence), func(t *testing.T) {
			k := Rank(c.n, c.confidence)
			require.Equal(t, c.rank, k)
			tolerance := 1e-13
			if c.n > 1000 {
				tolerance = 1e-4
			}
			assert.InDelta(t, c.coverage, Coverage(c.n, k), tolerance)
			assert.GreaterOrEqual(t, Coverage(c.n, k), c.confidence-1e-9)
			if k > 0 {
				assert.Less(t, Coverage(c.n, k+1), c.confidence, "the next rank must be too near to the middle")
			}
		})
	}
}

func TestMinSamples(t *testing.T) {
	assert.Equal(t, 5, MinSamples(0.95))   // one-sided 95 %
	assert.Equal(t, 6, MinSamples(0.975))  // two-sided 95 %, as benchstat
	assert.Equal(t, 7, MinSamples(0.99))   // LoadGen's p50 at t = 0
	assert.Equal(t, 5, MinSamples(31./32)) // equality is enough
	assert.Panics(t, func() { MinSamples(1) })
}

// Every rank for small n against enumeration of all 2^n sign patterns.
func TestRankAgainstEnumeration(t *testing.T) {
	for n := 1; n <= 16; n++ {
		counts := make([]int, n+1) // patterns with exactly h heads
		for pattern := range 1 << n {
			heads := 0
			for b := pattern; b > 0; b &= b - 1 {
				heads++
			}
			counts[heads]++
		}
		cumulative := 0
		for k := 0; k <= n; k++ {
			cumulative += counts[k]
			assert.InDelta(t, float64(cumulative)/float64(int(1)<<n), tail(n, k), 1e-15, "n=%d k=%d", n, k)
		}
	}
}

// The log-gamma form takes over above 60: both must agree there.
func TestPmfForms(t *testing.T) {
	for n := 1; n <= 300; n++ {
		sum := 0.0
		for k := 0; k <= n; k++ {
			sum += pmf(n, k)
		}
		require.InDelta(t, 1, sum, 1e-11, "n=%d", n)
	}
	// Pascal's rule across the change of form.
	for k := 1; k <= 60; k++ {
		assert.InEpsilon(t, (pmf(60, k-1)+pmf(60, k))/2, pmf(61, k), 1e-11, "k=%d", k)
	}
}

func TestMedianInterval(t *testing.T) {
	samples := []float64{9, 1, 8, 2, 7, 3, 6, 4, 5}
	i := MedianInterval(samples, 0.95)
	assert.Equal(t, Interval{5, 2, 8, 1 - 20./512, 9}, i)
	assert.Equal(t, []float64{9, 1, 8, 2, 7, 3, 6, 4, 5}, samples, "samples must not be sorted in place")

	i = MedianInterval([]float64{1, 2, 3, 4, 5}, 0.95)
	assert.True(t, math.IsInf(i.Lower, -1) && math.IsInf(i.Upper, 1))
	assert.Equal(t, 1.0, i.Coverage)
	assert.True(t, math.IsNaN(Median(nil)))
	assert.Equal(t, 2.5, Median([]float64{4, 1, 3, 2}))
	assert.Equal(t, math.MaxFloat64, Median([]float64{math.MaxFloat64, math.MaxFloat64}), "no overflow")
}
