package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func repeat(v float64, n int) []float64 { return slices.Repeat([]float64{v}, n) }

func TestDecide(t *testing.T) {
	latency, throughput := Target{1.05, AtMost}, Target{3.0, AtLeast}
	mixed := func(low, high float64, lows, highs int) []float64 {
		return append(repeat(low, lows), repeat(high, highs)...)
	}
	for _, c := range []struct {
		name   string
		ratios []float64
		target Target
		want   Decision
	}{
		{"six below pass at most", repeat(1.01, 6), latency,
			Decision{Pass, "median ratio 1.01 after 6 blocks; its 95 % upper bound 1.01 is below 1.05", 1.01, 1.01, 1.01, 6, 0}},
		{"six above fail at most", repeat(1.06, 6), latency,
			Decision{Fail, "median ratio 1.06 after 6 blocks; its 95 % lower bound 1.06 is above 1.05", 1.06, 1.06, 1.06, 6, 0}},
		{"six above pass at least", repeat(3.2, 6), throughput,
			Decision{Pass, "median ratio 3.2 after 6 blocks; its 95 % lower bound 3.2 is above 3", 3.2, 3.2, 3.2, 6, 0}},
		{"six below fail at least", repeat(2.9, 6), throughput,
			Decision{Fail, "median ratio 2.9 after 6 blocks; its 95 % upper bound 2.9 is below 3", 2.9, 2.9, 2.9, 6, 0}},
		{"on the target passes at most", repeat(1.05, 6), latency,
			Decision{Pass, "median ratio 1.05 after 6 blocks; its 95 % upper bound 1.05 is at 1.05", 1.05, 1.05, 1.05, 6, 0}},
		{"on the target passes at least", repeat(3, 6), throughput,
			Decision{Pass, "median ratio 3 after 6 blocks; its 95 % lower bound 3 is at 3", 3, 3, 3, 6, 0}},
		{"five are too few", repeat(1.01, 5), latency,
			Decision{Inconclusive, "5 blocks are too few for a 95 % bound: 6 are needed", 1.01, 0, math.Inf(1), 5, 1}},
		{"none are too few", nil, latency,
			Decision{Inconclusive, "0 blocks are too few for a 95 % bound: 6 are needed", math.NaN(), 0, math.Inf(1), 0, 6}},
		{"the seventh waits for the eighth", append(repeat(1.01, 6), 2), latency,
			Decision{Pass, "median ratio 1.01 after 6 blocks; its 95 % upper bound 1.01 is below 1.05", 1.01, 1.01, 1.01, 6, 0}},
		{"one of six on the other side", mixed(1.01, 1.08, 5, 1), latency,
			Decision{Inconclusive, "median ratio 1.01 after 6 blocks; its interval [1.01, 1.08] holds the target 1.05; about 16 more blocks would probably decide", 1.01, 1.01, 1.08, 6, 16}},
		{"two of ten on the other side still decide not", mixed(1.01, 1.08, 8, 2), latency,
			Decision{Inconclusive, "median ratio 1.01 after 10 blocks; its interval [1.01, 1.08] holds the target 1.05; about 12 more blocks would probably decide", 1.01, 1.01, 1.08, 10, 12}},
		{"one of ten on the other side", mixed(1.01, 1.08, 9, 1), latency,
			Decision{Pass, "median ratio 1.01 after 10 blocks; its 95 % upper bound 1.01 is below 1.05", 1.01, 1.01, 1.01, 10, 0}},
		{"half and half at the end", mixed(1.04, 1.06, 12, 12), latency,
			Decision{Inconclusive, "median ratio 1.05 after 24 blocks; its interval [1.04, 1.06] holds the target 1.05; more than 1000 blocks would be needed: the ratio is too near", 1.05, 1.04, 1.06, 24, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Decide(c.ratios, c.target, criterionPlan(t))
			if d := cmp.Diff(c.want, got, cmpopts.EquateApprox(1e-12, 0), cmpopts.EquateNaNs()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestDecideInvalid(t *testing.T) {
	plan := criterionPlan(t)
	good := Target{1.05, AtMost}
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1} {
		for at := range 7 { // also beyond the last look, and before the first
			ratios := repeat(1, 7)
			ratios[at] = bad
			d := Decide(ratios, good, plan)
			assert.Equal(t, Invalid, d.Verdict)
			assert.Contains(t, d.Reason, fmt.Sprintf("ratio %d of 7 is %v", at+1, bad))
			assert.True(t, math.IsNaN(d.Median) && math.IsNaN(d.Lower) && math.IsNaN(d.Upper))
			assert.Equal(t, Invalid, DecideControl(ratios, 0.05, plan).Verdict)
		}
	}
	for _, c := range []struct {
		d    Decision
		want string
	}{
		{Decide(repeat(1, 25), good, plan), "25 blocks were measured where the plan allows 24"},
		{Decide(repeat(1, 8), good, Plan{}), "make it with NewPlan"},
		{Decide(repeat(1, 8), Target{0, AtMost}, plan), "target"},
		{Decide(repeat(1, 8), Target{math.NaN(), AtMost}, plan), "target"},
		{Decide(repeat(1, 8), Target{1, "near"}, plan), `"near"`},
		{DecideControl(repeat(1, 8), math.NaN(), plan), "margin"},
		{DecideControl(repeat(1, 8), 0, plan), "margin"},
	} {
		assert.Equal(t, Invalid, c.d.Verdict, c.d.Reason)
		assert.Contains(t, c.d.Reason, c.want)
	}
}

// The verdict uses order only to cut at the last look, only ranks of values, and
// mirrors exactly: 1/ratio against 1/target turns at most into at least.
func TestDecideSymmetries(t *testing.T) {
	plan := criterionPlan(t)
	r := testRand(t, 7)
	seen := map[Verdict]int{}
	for range 3000 {
		n := 1 + r.IntN(24)
		ratios, inverse := make([]float64, n), make([]float64, n)
		shift := 0.06 * (r.Float64() - 0.5)
		for i := range ratios {
			ratios[i] = math.Exp(shift + 0.03*r.NormFloat64())
			inverse[i] = 1 / ratios[i]
		}
		before := slices.Clone(ratios)
		d := Decide(ratios, Target{1, AtMost}, plan)
		require.Equal(t, before, ratios, "arguments must not change")
		seen[d.Verdict]++
		m := Decide(inverse, Target{1, AtLeast}, plan)
		require.Equal(t, d.Verdict, m.Verdict)
		require.Equal(t, d.MoreBlocks, m.MoreBlocks)
		if i := plan.look(n); i >= 0 {
			used := plan.Looks[i]
			r.Shuffle(used, func(i, j int) { ratios[i], ratios[j] = ratios[j], ratios[i] })
			require.Equal(t, d, Decide(ratios, Target{1, AtMost}, plan))
			require.InDelta(t, 1/d.Lower, m.Upper, 1e-12)
		}
		if d.Verdict == Inconclusive && n >= 6 && d.MoreBlocks > 0 {
			require.Zero(t, (n+d.MoreBlocks)%2, "an estimate ends on an even number of blocks")
		}
	}
	for _, v := range []Verdict{Pass, Fail, Inconclusive} {
		assert.Greater(t, seen[v], 100, "the test must see %s", v)
	}
}

// The estimate means what it says: of sessions that were told "about m more", far
// more than half have decided after m more. It is a forecast of a random thing
// from a small sample, so the promise tested is "probably", not the exact 80 %.
func TestMoreBlocksIsProbablyEnough(t *testing.T) {
	plan := criterionPlan(t)
	r := testRand(t, 11)
	told, held := 0, 0
	for told < 2000 {
		ratios := make([]float64, 24)
		shift := []float64{0.97, 0.98, 1.02, 1.03}[r.IntN(4)]
		for i := range ratios {
			ratios[i] = shift * math.Exp(0.03*r.NormFloat64())
		}
		d := Decide(ratios[:8], Target{1, AtMost}, plan)
		if d.Verdict != Inconclusive || d.MoreBlocks == 0 || d.MoreBlocks > 16 {
			continue
		}
		told++
		for n := 10; n <= 8+d.MoreBlocks; n += 2 {
			if Decide(ratios[:n], Target{1, AtMost}, plan).Verdict != Inconclusive {
				held++
				break
			}
		}
	}
	share := float64(held) / float64(told)
	t.Logf("decided within the estimate: %.3f of %d", share, told)
	assert.Greater(t, share, 0.6)
}

func TestDecideControl(t *testing.T) {
	plan := controlPlan(t)
	spread := func(center, half float64, n int) []float64 { // evenly over center ± half
		s := make([]float64, n)
		for i := range s {
			s[i] = center + half*(2*float64(i)/float64(n-1)-1)
		}
		return s
	}
	for _, c := range []struct {
		name   string
		ratios []float64
		want   Verdict
		reason string
	}{
		{"narrow around 1", spread(1, 0.02, 8), Pass, "contains 1 and is within the margin"},
		{"too few", spread(1, 0.02, 7), Inconclusive, "too few for a 97.5 % bound: 8 are needed"},
		{"identical arms differ", spread(1.02, 0.01, 8), Invalid, "identical arms differ"},
		{"identical arms differ downwards", spread(0.98, 0.01, 8), Invalid, "identical arms differ"},
		{"wide, blocks left", spread(1, 0.2, 8), Inconclusive, "not yet within"},
		{"wide at the end", spread(1, 0.2, 24), Invalid, "too noisy"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := DecideControl(c.ratios, 0.05, plan)
			assert.Equal(t, c.want, d.Verdict, d.Reason)
			assert.Contains(t, d.Reason, c.reason)
		})
	}
}

func TestDecisionJSON(t *testing.T) {
	plan := criterionPlan(t)
	text, err := json.Marshal(Decide(repeat(1.01, 5), Target{1.05, AtMost}, plan))
	require.NoError(t, err)
	assert.JSONEq(t, `{"verdict":"INCONCLUSIVE","reason":"5 blocks are too few for a 95 % bound: 6 are needed",
		"median":1.01,"lower":0,"upper":null,"blocks":5,"more_blocks":1}`, string(text))
	text, err = json.Marshal(Decide([]float64{math.NaN()}, Target{1.05, AtMost}, plan))
	require.NoError(t, err)
	assert.Contains(t, string(text), `"median":null`)
}
