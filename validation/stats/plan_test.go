package stats

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func mustPlan(t testing.TB, p Plan, err error) Plan {
	t.Helper()
	require.NoError(t, err)
	return p
}

func criterionPlan(t testing.TB) Plan {
	p, err := Sequential(0.95, DefaultBlocks)
	return mustPlan(t, p, err)
}

func controlPlan(t testing.TB) Plan {
	p, err := Sequential(0.975, DefaultBlocks)
	return mustPlan(t, p, err)
}

// The default plans, to the digit: a change of either must be seen.
func TestDefaultPlans(t *testing.T) {
	p := criterionPlan(t)
	assert.Equal(t, []int{6, 8, 10, 12, 14, 16, 18, 20, 22, 24}, p.Looks)
	assert.Equal(t, []int{1, 1, 2, 2, 3, 4, 5, 5, 6, 7}, p.Ranks)
	assert.InDelta(t, 1./64, p.Nominal, 1e-15)
	assert.InDelta(t, 0.03788, p.Error, 5e-6)

	c := controlPlan(t)
	assert.Equal(t, []int{0, 1, 1, 2, 3, 4, 4, 5, 6, 6}, c.Ranks)
	assert.InDelta(t, 0.01884, c.Error, 5e-6)
}

// One look is the plain bound: ranks 1, 2 and 3 at 5, 8 and 11 blocks.
func TestFixedPlanIsThePlainBound(t *testing.T) {
	for n, rank := range map[int]int{5: 1, 8: 2, 11: 3} {
		p, err := Fixed(0.95, n)
		p = mustPlan(t, p, err)
		assert.Equal(t, []int{rank}, p.Ranks)
		assert.InDelta(t, 1-Coverage(n, rank), p.Error, 1e-15)
	}
}

// The exact recursion against enumeration of all sign sequences.
func TestCrossingAgainstEnumeration(t *testing.T) {
	looks, ranks := []int{5, 6, 9, 12, 16}, []int{1, 0, 2, 3, 5}
	const n = 16
	crossed := make([]int, len(looks))
	for pattern := range 1 << n {
		heads, look := 0, 0
	tosses:
		for i := range n {
			heads += pattern >> i & 1
			if i+1 == looks[look] {
				if ranks[look] > 0 && heads >= looks[look]-ranks[look]+1 {
					crossed[look]++
					break tosses
				}
				look++
			}
		}
	}
	hit := walk(0, 0, 0.5, looks, ranks)
	for i := range looks {
		assert.InDelta(t, float64(crossed[i])/(1<<n), hit[i], 1e-15, "look %d", looks[i])
	}
	assert.Positive(t, hit[0])
	assert.Zero(t, hit[1])
}

// Every plan claims no more than it has, and could not be one level looser.
func TestPlanIsTheLoosestWithinDesign(t *testing.T) {
	for _, confidence := range []float64{0.9, 0.95, 0.975, 0.99} {
		for most := 8; most <= 40; most += 2 {
			p, err := Sequential(confidence, most)
			if most < MinSamples(1-reserve*(1-confidence)) {
				require.ErrorContains(t, err, "too few")
				continue
			}
			p = mustPlan(t, p, err)
			assert.LessOrEqual(t, p.Error, reserve*(1-confidence)+1e-9)
			assert.NoError(t, p.Check())
			// The next candidate level.
			next := math.Inf(1)
			for _, n := range p.Looks {
				for k := range n / 2 {
					if level := tail(n, k); level > p.Nominal*(1+1e-9) {
						next = min(next, level)
					}
				}
			}
			assert.Greater(t, crossing(p.Looks, ranksAt(p.Looks, next)), reserve*(1-confidence), "confidence %v, most %d", confidence, most)
		}
	}
}

func TestPlanErrors(t *testing.T) {
	for _, c := range []struct {
		confidence float64
		looks      []int
		want       string
	}{
		{1, []int{8}, "between 0.5 and 1"},
		{0.3, []int{8}, "between 0.5 and 1"},
		{math.NaN(), []int{8}, "between 0.5 and 1"},
		{0.95, nil, "at least one look"},
		{0.95, []int{8, 8}, "must increase"},
		{0.95, []int{0, 8}, "must increase"},
		{0.95, []int{8, 2000}, "at most 1000"},
		{0.95, []int{2, 4}, "at least 5"},
	} {
		_, err := NewPlan(c.confidence, c.looks...)
		assert.ErrorContains(t, err, c.want, "%v %v", c.confidence, c.looks)
	}
	_, err := Sequential(0.95, 4)
	assert.ErrorContains(t, err, "at least 6 blocks")
}

// A plan survives JSON, and a recorded plan with better ranks is refused.
func TestPlanRoundTripAndTampering(t *testing.T) {
	p := criterionPlan(t)
	text, err := json.Marshal(p)
	require.NoError(t, err)
	var back Plan
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, p, back)
	require.NoError(t, back.Check())
	back.Ranks[0]++
	assert.ErrorContains(t, back.Check(), "not those of its looks")
}

func TestPlanNext(t *testing.T) {
	p := controlPlan(t)
	n, ok := p.Next(0)
	assert.True(t, ok)
	assert.Equal(t, 8, n, "the look after 6 has no bound and is skipped")
	n, ok = p.Next(9)
	assert.True(t, ok)
	assert.Equal(t, 10, n)
	_, ok = p.Next(24)
	assert.False(t, ok)
}

// decides is the exact chance of a right and a wrong verdict and the mean number
// of blocks when a block lies on the right side with probability p; need is the
// number of signs that decide at each look.
func decides(p float64, looks, need []int) (right, wrong, blocks float64) {
	last := looks[len(looks)-1]
	at := map[int]float64{0: 1}
	look := 0
	for n := 1; n <= last; n++ {
		next := map[int]float64{}
		for h := range n {
			next[h] += at[h] * (1 - p)
			next[h+1] += at[h] * p
		}
		at = next
		if n != looks[look] {
			continue
		}
		for h := 0; h <= n; h++ {
			switch {
			case h >= need[look]:
				right += at[h]
			case n-h >= need[look]:
				wrong += at[h]
			default:
				continue
			}
			blocks += at[h] * float64(n)
			at[h] = 0
		}
		look++
	}
	for _, q := range at {
		blocks += q * float64(last)
	}
	return right, wrong, blocks
}

func (p Plan) need() []int {
	need := make([]int, len(p.Looks))
	for i, n := range p.Looks {
		need[i] = n - p.Ranks[i] + 1
	}
	return need
}

// mixture is the number of signs at which a one-sided Beta-binomial e-process
// (uniform over p in (1/2, 1)) reaches 20; Ville's inequality makes 1/20 its
// error over an endless session.
func mixture(looks []int) []int {
	need := make([]int, len(looks))
	for i, n := range looks {
		for s := 0; s <= n+1; s++ {
			need[i] = s
			// 2 · 2^n ∫ p^s (1-p)^(n-s) over (1/2, 1) = 2 P(Bin(n+1) ≤ s) / ((n+1) pmf(n, s))
			if s <= n && 2*tail(n+1, s)/(float64(n+1)*pmf(n, s)) >= 20 {
				break
			}
		}
	}
	return need
}

// The table of the package documentation, exactly, by which the default was chosen.
func TestPlanAgainstAlternatives(t *testing.T) {
	sequential := criterionPlan(t)
	fixed := func(n int) Plan { p, err := Fixed(0.95, n); return mustPlan(t, p, err) }
	var looks30 []int
	for n := 6; n <= 30; n += 2 {
		looks30 = append(looks30, n)
	}
	want := map[int]string{
		1: " 6.0 1.00   8.0 1.00  24.0 1.00   8.0 1.00",
		2: " 6.2 1.00   8.0 1.00  24.0 1.00   8.2 1.00",
		3: " 7.5 1.00   8.0 0.94  24.0 1.00   9.8 1.00",
		4: " 9.8 0.99   8.0 0.78  24.0 1.00  12.5 0.99",
		5: "12.4 0.94   8.0 0.61  24.0 0.97  15.8 0.93",
	}
	for spread := 1; spread <= 5; spread++ {
		p := 0.5 * math.Erfc(-math.Log(1.05)/(float64(spread)/100)/math.Sqrt2)
		got := ""
		for i, rule := range []struct{ looks, need []int }{
			{sequential.Looks, sequential.need()},
			{fixed(8).Looks, fixed(8).need()},
			{fixed(24).Looks, fixed(24).need()},
			{looks30, mixture(looks30)},
		} {
			right, wrong, blocks := decides(p, rule.looks, rule.need)
			assert.Less(t, wrong, 0.001)
			if i > 0 {
				got += "  "
			}
			got += fmt.Sprintf("%4.1f %.2f", blocks, right)
		}
		assert.Equal(t, want[spread], got, "spread %d %%", spread)
	}
}

// Reading the plain bound at every look: the mistake that a plan prevents, and
// the figure of the package documentation.
func TestPeekingIsWrong(t *testing.T) {
	p := criterionPlan(t)
	error95 := crossing(p.Looks, ranksAt(p.Looks, 0.05))
	t.Logf("plain 95 %% bound at looks %v: error %.4f", p.Looks, error95)
	assert.InDelta(t, 0.0893, error95, 0.0005)
}
