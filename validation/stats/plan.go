package stats

import (
	"errors"
	"fmt"
	"slices"
	"sort"
)

// reserve is the part of the claimed error that a plan may spend on independent
// signs. The rest covers the dependence that balanced pairs leave; see the
// package documentation.
const reserve = 0.8

// A Plan says after how many blocks a verdict may be read, and which ordered
// ratio is the bound at each such look. It is made before the first block.
// It is plain data, so that a recorded session shows the ranks it was judged by.
type Plan struct {
	Confidence float64 `json:"confidence"` // one-sided, at all looks together
	Looks      []int   `json:"looks"`      // numbers of blocks, increasing
	Ranks      []int   `json:"ranks"`      // rank of the bound at each look; 0: no bound yet
	Nominal    float64 `json:"nominal"`    // one-sided error of each look by itself
	Error      float64 `json:"error"`      // exact error over all looks, independent signs
}

// NewPlan chooses the largest nominal level whose error over all looks is within
// the design error. One look gives the fixed-n test.
func NewPlan(confidence float64, looks ...int) (Plan, error) {
	if !(confidence > 0.5 && confidence < 1) {
		return Plan{}, fmt.Errorf("stats: confidence %v of a plan must lie between 0.5 and 1; 0.95 is usual", confidence)
	}
	if len(looks) == 0 {
		return Plan{}, errors.New("stats: a plan needs at least one look")
	}
	last := 0
	for _, n := range looks {
		if n <= last || n > maxBlocks {
			return Plan{}, fmt.Errorf("stats: looks %v of a plan must increase, from 1 to at most %d", looks, maxBlocks)
		}
		last = n
	}
	design := reserve * (1 - confidence)

	// Only the tails of the looks themselves change a rank: they are the
	// candidates. The error grows with the nominal level, so bisect.
	var levels []float64
	for _, n := range looks {
		for k := 0; k < (n+1)/2; k++ {
			if t := tail(n, k); t <= design*(1+slack) {
				levels = append(levels, t)
			}
		}
	}
	slices.Sort(levels)
	i := sort.Search(len(levels), func(i int) bool {
		return !(crossing(looks, ranksAt(looks, levels[i])) <= design*(1+slack))
	})
	if i == 0 {
		return Plan{}, fmt.Errorf("stats: looks %v are too few for a bound at confidence %v: the last must be at least %d",
			looks, confidence, MinSamples(1-design))
	}
	ranks := ranksAt(looks, levels[i-1])
	return Plan{confidence, slices.Clone(looks), ranks, levels[i-1], crossing(looks, ranks)}, nil
}

// maxBlocks bounds the recursion, far beyond any session's length.
const maxBlocks = 1000

func ranksAt(looks []int, level float64) []int {
	ranks := make([]int, len(looks))
	for i, n := range looks {
		ranks[i] = rank(n, level)
	}
	return ranks
}

// crossing is the probability that fair tosses show, at some look, so many heads
// that the bound lies beyond the median: exactly what must not exceed the error.
func crossing(looks, ranks []int) float64 {
	hit := walk(0, 0, 0.5, looks, ranks)
	sum := 0.0
	for _, p := range hit {
		sum += p
	}
	return sum
}

// walk follows tosses with P(head) = p from (n, heads) on, and returns for each
// look the probability that the first crossing happens there. A look crosses
// when at least look-rank+1 heads have been seen.
func walk(n, heads int, p float64, looks, ranks []int) []float64 {
	last := looks[len(looks)-1]
	at := make([]float64, last+2) // at[h]: probability of h heads, not crossed yet
	at[heads] = 1
	hit := make([]float64, len(looks))
	look, _ := slices.BinarySearch(looks, n+1)
	for n++; n <= last; n++ {
		for h := n; h > 0; h-- {
			at[h] = at[h]*(1-p) + at[h-1]*p
		}
		at[0] *= 1 - p
		if n != looks[look] {
			continue
		}
		if k := ranks[look]; k > 0 {
			for h := n - k + 1; h <= n; h++ {
				hit[look] += at[h]
				at[h] = 0
			}
		}
		look++
	}
	return hit
}

// DefaultBlocks is the most blocks that a criterion is given by default.
const DefaultBlocks = 24

// Sequential looks after 6, 8, … up to most blocks: even numbers, so that every
// look sees balanced pairs of arm orders.
func Sequential(confidence float64, most int) (Plan, error) {
	var looks []int
	for n := 6; n <= most; n += 2 {
		looks = append(looks, n)
	}
	if len(looks) == 0 {
		return Plan{}, fmt.Errorf("stats: a sequential plan needs at least 6 blocks, not %d", most)
	}
	return NewPlan(confidence, looks...)
}

// Fixed looks once, after n blocks.
func Fixed(confidence float64, n int) (Plan, error) { return NewPlan(confidence, n) }

// Max is the most blocks the plan allows.
func (p Plan) Max() int {
	if len(p.Looks) == 0 {
		return 0
	}
	return p.Looks[len(p.Looks)-1]
}

// Next is the number of blocks at the first useful look after n blocks; ok is
// false when there is none.
func (p Plan) Next(n int) (blocks int, ok bool) {
	for i, look := range p.Looks {
		if look > n && p.Ranks[i] > 0 {
			return look, true
		}
	}
	return 0, false
}

// Check recomputes the plan: a recorded plan whose ranks were not made by
// [NewPlan] is refused.
func (p Plan) Check() error {
	want, err := NewPlan(p.Confidence, p.Looks...)
	if err != nil {
		return err
	}
	if !slices.Equal(p.Ranks, want.Ranks) {
		return fmt.Errorf("stats: the plan's ranks %v are not those of its looks %v at confidence %v: %v",
			p.Ranks, p.Looks, p.Confidence, want.Ranks)
	}
	return nil
}

// look is the index of the last look at or before n blocks, or -1.
func (p Plan) look(n int) int {
	i, found := slices.BinarySearch(p.Looks, n)
	if found {
		return i
	}
	return i - 1
}
