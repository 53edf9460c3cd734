package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/batchproof/batchproof/validation/stats"
)

// rules judge the block ratios of several rows together, at looks that were
// fixed before the first block.
//
// Each row has, for every m from 1 to the number of rows, a plan at confidence
// 1-alpha/m: Holm's levels (S. Holm, Scand. J. Statist. 6 (1979) 65–70), each
// holding at all looks at once, so that a session may end at any of them. The
// bounds are distribution-free; see package stats.
//
// A row is a regression when the change is real and large. It is shown early,
// when its bound at Holm's level lies beyond the margin. At the end of a session
// it is also shown when that bound lies beyond 1 and the median beyond the
// margin: the same rule as for recorded files. So the chance of any regression
// among unchanged rows is at most alpha, whenever the session ends. Improvements
// are the same, mirrored. A row is unchanged when its whole interval, both
// bounds at 95 %, lies within the margin; all rows must show that, so no
// correction is due.
//
// Note: alpha is small, since a gate is asked with every commit, and one false
// alarm in twenty on a machine that is never quiet would soon be ignored.
type rules struct {
	margin, alpha float64
	blocks        int
	plans         []stats.Plan // plans[m-1] is at 1-alpha/m
	within        stats.Plan   // at 95 %
}

// confidence is of the bounds that are shown, and that must lie within the margin.
const confidence = 0.95

func newRules(rows, blocks int, margin, alpha float64) (*rules, error) {
	if !(margin > 0 && margin < 1) {
		return nil, fmt.Errorf("-margin %v: want a share between 0 and 1, such as 0.03 for 3 %%", margin)
	}
	if !(alpha > 0 && alpha < 0.5) {
		return nil, fmt.Errorf("-alpha %v: want a probability between 0 and 0.5, such as 0.01", alpha)
	}
	r := &rules{margin: margin, alpha: alpha, blocks: blocks}
	var err error
	if r.within, err = stats.Sequential(confidence, blocks); err != nil {
		return nil, fmt.Errorf("-count %d: %w", blocks, err)
	}
	for m := 1; m <= rows; m++ {
		plan, err := stats.Sequential(1-alpha/float64(m), blocks)
		if err != nil {
			return nil, fmt.Errorf("-count %d is too few blocks to show anything of %d rows at %.3g %%: raise it, or judge fewer rows with -bench or -units (%w)", blocks, rows, 100*(1-alpha), err)
		}
		r.plans = append(r.plans, plan)
	}
	return r, nil
}

// judge says what the block ratios show of each row: ratios[i] are those of row
// i, head ÷ base, and higher[i] says whether more is better. Final says that
// there will be no more blocks.
func (r *rules) judge(ratios [][]float64, higher []bool, final bool) []stats.Comparison {
	out := make([]stats.Comparison, len(ratios))
	costs := make([]costs, len(ratios))
	for i := range ratios {
		costs[i] = r.costs(ratios[i], higher[i])
	}
	limit := 1 + r.margin
	shown := func(sign float64, beyond float64) []bool { return r.holm(costs, sign, beyond) }
	worse, better := shown(1, limit), shown(-1, limit)
	realWorse, realBetter := shown(1, 1), shown(-1, 1)
	for i := range costs {
		c := &costs[i]
		lower, upper := c.bounds(r.within)
		o := stats.Comparison{Ratio: c.median, Lower: lower, Upper: upper}
		switch {
		case worse[i]:
			o.Outcome = stats.Regression
		case better[i]:
			o.Outcome = stats.Improvement
		case lower >= 1/limit && upper <= limit:
			o.Outcome = stats.NoChange
		case final && realWorse[i] && c.median > limit:
			o.Outcome = stats.Regression
		case final && realBetter[i] && c.median < 1/limit:
			o.Outcome = stats.Improvement
		default:
			o.Outcome = stats.CannotDecide
		}
		if higher[i] {
			o.Ratio, o.Lower, o.Upper = 1/o.Ratio, 1/o.Upper, 1/o.Lower
		}
		o.Reason = fmt.Sprintf("median of %d block ratios %.4g, %.4g %% bounds [%.4g, %.4g], margin %.3g %%",
			len(c.sorted), o.Ratio, 100*confidence, o.Lower, o.Upper, 100*r.margin)
		if o.Outcome == stats.CannotDecide && math.IsInf(upper, 1) {
			next, _ := r.within.Next(len(ratios[i]))
			o.Reason += fmt.Sprintf("; bounds need %d blocks", next)
		}
		out[i] = o
	}
	return out
}

// costs is one row, turned so that more is worse, at the last look reached.
type costs struct {
	sorted []float64
	median float64
	look   int
}

func (r *rules) costs(ratios []float64, higher bool) costs {
	c := costs{look: -1}
	values := slices.Clone(ratios)
	if higher {
		for i := range values {
			values[i] = 1 / values[i]
		}
	}
	for i, n := range r.within.Looks { // all plans have the same
		if n <= len(values) {
			c.look = i
		}
	}
	if c.look >= 0 {
		values = values[:r.within.Looks[c.look]]
	}
	slices.Sort(values)
	c.sorted, c.median = values, stats.Median(values)
	return c
}

// bounds are those of a plan at this look.
func (c *costs) bounds(plan stats.Plan) (lower, upper float64) {
	if c.look < 0 || plan.Ranks[c.look] == 0 {
		return 0, math.Inf(1)
	}
	k := plan.Ranks[c.look]
	return c.sorted[k-1], c.sorted[len(c.sorted)-k]
}

// holm steps down over the rows: those whose bound on the side of sign lies
// beyond the limit, at the level that their place in the order demands.
func (r *rules) holm(rows []costs, sign, limit float64) []bool {
	strictest := make([]int, len(rows)) // largest m whose bound is beyond
	for i := range rows {
		for j, plan := range r.plans {
			lower, upper := rows[i].bounds(plan)
			if sign > 0 && lower > limit || sign < 0 && upper < 1/limit {
				strictest[i] = j + 1
			}
		}
	}
	order := make([]int, len(rows))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strictest[b] - strictest[a] })
	shown := make([]bool, len(rows))
	for i, row := range order {
		if strictest[row] < len(rows)-i {
			break
		}
		shown[row] = true
	}
	return shown
}

// A gate is the answer for all rows.
type gate string

const (
	gatePass      gate = "no change"
	gateImproved  gate = "improvement"
	gateFail      gate = "regression"
	gateUndecided gate = "cannot decide"
)

// verdict sums the rows up: one regression fails the gate, and one undecided
// row leaves it undecided.
func verdict(rows []stats.Comparison) gate {
	g := gatePass
	for _, r := range rows {
		switch r.Outcome {
		case stats.Regression:
			return gateFail
		case stats.CannotDecide:
			g = gateUndecided
		case stats.Improvement:
			if g == gatePass {
				g = gateImproved
			}
		}
	}
	return g
}

// Exit codes. A failure to compare is none of the first three.
const (
	exitOK         = 0
	exitRegression = 1
	exitUndecided  = 2
	exitError      = 3
)

func (g gate) exit() int {
	switch g {
	case gateFail:
		return exitRegression
	case gateUndecided:
		return exitUndecided
	}
	return exitOK
}
