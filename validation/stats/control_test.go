package stats

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The exact distribution of S against all orders of up to 7 values.
func TestTrendAgainstEnumeration(t *testing.T) {
	for n := 2; n <= 7; n++ {
		var all [][]float64
		var permute func(rest, head []float64)
		permute = func(rest, head []float64) {
			if len(rest) == 0 {
				all = append(all, slices.Clone(head))
				return
			}
			for i := range rest {
				permute(slices.Concat(rest[:i], rest[i+1:]), append(head, rest[i]))
			}
		}
		values := make([]float64, n)
		for i := range values {
			values[i] = float64(i + 1)
		}
		permute(values, nil)
		score := func(o []float64) (s int) {
			for i := range o {
				for j := range i {
					if o[i] > o[j] {
						s++
					} else {
						s--
					}
				}
			}
			return max(s, -s)
		}
		for _, o := range all {
			extreme := 0
			for _, other := range all {
				if score(other) >= score(o) {
					extreme++
				}
			}
			require.InDelta(t, float64(extreme)/float64(len(all)), Trend(o, 0.01).Value, 1e-12, "%v", o)
			if n > 5 {
				break // one order of the larger n is enough besides the sum below
			}
		}
	}
}

func TestTrend(t *testing.T) {
	rising := []float64{1, 1.01, 1.02, 1.03, 1.04, 1.05}
	c := Trend(rising, TrendAlpha)
	assert.False(t, c.OK)
	assert.InDelta(t, 2./720, c.Value, 1e-15)
	assert.Contains(t, c.Reason, "rising")
	falling := slices.Clone(rising)
	slices.Reverse(falling)
	assert.Contains(t, Trend(falling, TrendAlpha).Reason, "falling")
	assert.False(t, Trend(falling, TrendAlpha).OK)

	assert.True(t, Trend([]float64{1, 1.03, 1.01, 1.04, 1.02, 1}, TrendAlpha).OK)
	assert.True(t, Trend(rising[:4], TrendAlpha).OK, "4 blocks can show nothing at 1 %")
	assert.True(t, Trend(repeat(1, 24), TrendAlpha).OK, "ties are no trend")
	assert.Equal(t, 1.0, Trend(nil, TrendAlpha).Value)
	bad := Trend([]float64{1, math.NaN()}, TrendAlpha)
	assert.False(t, bad.OK)
	assert.Contains(t, bad.Reason, "ratio 2 of 2")
	// A known value: n = 10, S = 21 has the one-sided tail 0.036 of Kendall's table.
	assert.InDelta(t, 2*0.0363, kendallP(10, 21), 5e-4)
	// The distribution stays one at the longest sessions.
	assert.Equal(t, 1.0, kendallP(200, 0))
	assert.InDelta(t, 1, kendallP(200, 2), 0.01)
}

func TestWarm(t *testing.T) {
	decay := make([]float64, 60) // 1 + e^(-i/6): half as slow again at first
	for i := range decay {
		decay[i] = 1 + math.Exp(-float64(i)/6)
	}
	steps, c := Warm(decay, 5, 0.05)
	assert.True(t, c.OK, c.Reason)
	assert.Equal(t, 30, steps, "windows of 5 centred on steps 17, 22 and 27: 1.059, 1.026, 1.011")
	assert.InDelta(t, (1+math.Exp(-17./6))/(1+math.Exp(-27./6)), c.Value, 1e-12)

	late := slices.Clone(repeat(1, 15))
	late[2], late[7] = 50, 50 // a page fault a window does not count
	steps, c = Warm(late, 5, 0.02)
	assert.True(t, c.OK)
	assert.Equal(t, 15, steps)

	slow := make([]float64, 40) // 2 % slower each window, for ever
	for i := range slow {
		slow[i] = math.Pow(1.02, float64(i/5))
	}
	steps, c = Warm(slow, 5, 0.03)
	assert.False(t, c.OK, "two windows agree within 3 %, three do not")
	assert.Zero(t, steps)
	assert.Contains(t, c.Reason, "not stable after 40 steps")

	for want, args := range map[string][]float64{
		"too few to judge": repeat(1, 14),
		"step time 3 of 4": {1, 1, 0, 1},
	} {
		steps, c = Warm(args, 5, 0.05)
		assert.False(t, c.OK)
		assert.Zero(t, steps)
		assert.Contains(t, c.Reason, want)
	}
	_, c = Warm(repeat(1, 20), 0, 0.05)
	assert.Contains(t, c.Reason, "window of at least 1")
	_, c = Warm(repeat(1, 20), 5, math.NaN())
	assert.False(t, c.OK)
}

func TestQuiet(t *testing.T) {
	limits := Limits{"steal share": 0.01, "waiting tasks": 0.5, "throttled": 0}
	quiet := []Reading{{"steal share", 0.01}, {"waiting tasks", 0}, {"other", 1e9}}
	stolen := []Reading{{"steal share", 0.2}, {"waiting tasks", 3}, {"other", 1}}
	lost := []Reading{{"steal share", math.NaN()}}

	assert.Empty(t, limits.Disturbing(quiet), "at the limit is quiet; a reading without a limit is only recorded")
	assert.Equal(t, stolen[:2], limits.Disturbing(stolen))
	assert.NotEmpty(t, limits.Disturbing(lost), "a reading that is not a number disturbs")

	words := func(r []Reading) string { return fmt.Sprintf("%s of %g", r[0].Name, r[0].Value) }
	keep, c := limits.Quiet([][]Reading{quiet, stolen, quiet, quiet}, MaxDisturbedShare, words)
	assert.Equal(t, []bool{true, false, true, true}, keep)
	assert.True(t, c.OK, "a quarter is allowed")
	assert.Equal(t, "1 of 4 blocks were disturbed (limit 25 %); first: block 2, steal share of 0.2; not readable here: throttled", c.Reason)

	_, c = limits.Quiet([][]Reading{quiet, stolen, lost}, MaxDisturbedShare, words)
	assert.False(t, c.OK)
	assert.Contains(t, c.Reason, "2 of 3")
	assert.Contains(t, c.Reason, "limit 25 %")

	keep, c = limits.Quiet(nil, MaxDisturbedShare, words)
	assert.Empty(t, keep)
	assert.True(t, c.OK)
	assert.Len(t, limits, 3, "limits must not change")
}
