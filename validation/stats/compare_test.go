package stats

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func around(center float64, n int) []float64 {
	s := make([]float64, n)
	for i := range s { // ±0.5 %, in mixed order
		s[i] = center * (1 + 0.005*math.Sin(float64(3*i+1)))
	}
	return s
}

func TestCompare(t *testing.T) {
	out, err := Compare([]Row{
		{"same", around(100, 12), around(100, 12), false},
		{"slower step", around(100, 12), around(110, 12), false},
		{"faster step", around(100, 12), around(90, 12), false},
		{"less throughput", around(100, 12), around(90, 12), true},
		{"more throughput", around(100, 12), around(110, 12), true},
		{"real but within the margin", around(100, 12), around(101.5, 12), false},
		{"too few samples", around(100, 4), around(100, 4), false},
		{"too noisy", []float64{80, 90, 100, 110, 120, 95, 105}, []float64{82, 95, 101, 118, 120, 99, 109}, false},
	}, 0.03, 0.05)
	require.NoError(t, err)
	want := []Outcome{NoChange, Regression, Improvement, Regression, Improvement, NoChange, CannotDecide, CannotDecide}
	for i, c := range out {
		assert.Equal(t, want[i], c.Outcome, "%s: %s", c.Name, c.Reason)
		assert.GreaterOrEqual(t, c.Holm, c.P)
	}
	assert.InDelta(t, 1.1, out[1].Ratio, 1e-12)
	assert.Contains(t, out[6].Reason, "needs 7 samples of each run")
	assert.True(t, math.IsInf(out[6].Upper, 1))
	assert.Zero(t, out[6].Lower)
}

// Many rows of the same code: an uncorrected test would cry wolf.
func TestCompareHolmProtectsManyRows(t *testing.T) {
	r := testRand(t, 3)
	const runs, rows = 300, 20
	alarms, uncorrected := 0, 0
	for range runs {
		table := make([]Row, rows)
		for i := range table {
			table[i].Name = "row"
			for range 10 {
				table[i].Base = append(table[i].Base, math.Exp(0.2*r.NormFloat64()))
				table[i].Head = append(table[i].Head, math.Exp(0.2*r.NormFloat64()))
			}
		}
		out, err := Compare(table, 0.001, 0.05)
		require.NoError(t, err)
		alarm, plain := false, false
		for _, c := range out {
			alarm = alarm || c.Outcome == Regression || c.Outcome == Improvement
			plain = plain || c.P <= 0.05
		}
		if alarm {
			alarms++
		}
		if plain {
			uncorrected++
		}
	}
	t.Logf("tables with an alarm: %d of %d; without Holm %d", alarms, runs, uncorrected)
	assert.LessOrEqual(t, alarms, 27) // 15 expected at most, 3 standard errors
	assert.Greater(t, uncorrected, 120)
}

// Two runs of one distribution: the interval holds 1 as often as it says.
func TestCompareIntervalCoverage(t *testing.T) {
	r := testRand(t, 5)
	missed := 0
	const runs = 2000
	for range runs {
		row := Row{Name: "row"}
		for range 9 {
			row.Base = append(row.Base, r.ExpFloat64())
			row.Head = append(row.Head, r.ExpFloat64())
		}
		out, err := Compare([]Row{row}, 0.03, 0.05)
		require.NoError(t, err)
		if out[0].Lower > 1 || out[0].Upper < 1 {
			missed++
		}
	}
	assert.LessOrEqual(t, missed, 130) // 100 expected at most, 3 standard errors
}

func TestHolm(t *testing.T) {
	assert.InDeltaSlice(t, []float64{0.03, 0.06, 0.06, 0.02}, holm([]float64{0.01, 0.04, 0.03, 0.005}), 1e-15)
	assert.Equal(t, []float64{1, 1}, holm([]float64{0.9, 0.8}))
	assert.Empty(t, holm(nil))
}

func TestCompareErrors(t *testing.T) {
	good := []float64{1, 2}
	for want, row := range map[string]Row{
		`row "x" has no base samples`:        {"x", nil, good, false},
		`row "x" has no head samples`:        {"x", good, nil, false},
		`row "x": head sample 2 of 2 is NaN`: {"x", good, []float64{1, math.NaN()}, false},
		`row "x": base sample 1 of 1 is 0`:   {"x", []float64{0}, good, false},
	} {
		_, err := Compare([]Row{row}, 0.03, 0.05)
		assert.ErrorContains(t, err, want)
	}
	_, err := Compare(nil, 0, 0.05)
	assert.ErrorContains(t, err, "margin")
	_, err = Compare(nil, 0.03, math.NaN())
	assert.ErrorContains(t, err, "alpha")
}
