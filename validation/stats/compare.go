package stats

import (
	"fmt"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// A Row is one quantity in two recorded runs.
type Row struct {
	Name           string
	Base, Head     []float64
	HigherIsBetter bool
}

// An Outcome says what two runs show of one row.
type Outcome string

const (
	Regression   Outcome = "regression"    // worse, and by more than the margin
	Improvement  Outcome = "improvement"   // better, and by more than the margin
	NoChange     Outcome = "no change"     // shown to be within the margin
	CannotDecide Outcome = "cannot decide" // none of these is shown
)

// A Comparison is an outcome with its evidence. Ratio is the median of Head over
// the median of Base, Lower and Upper its interval; P is the two-sided
// Mann–Whitney value, Holm the one corrected for the number of rows.
type Comparison struct {
	Name         string
	Outcome      Outcome
	Reason       string
	Ratio        float64
	Lower, Upper float64
	P, Holm      float64
	Warnings     []string
}

// Compare judges each row of two recorded runs against a margin, the smallest
// relative change worth an alarm (0.03 is 3 %).
//
// A row is a regression (an improvement) when the change is real and large: the
// Holm-corrected Mann–Whitney value is at most alpha, and the ratio of medians
// is worse (better) than the margin. It is unchanged when the whole interval
// of the ratio is within the margin. "Not significant" is not "no change", so
// all else cannot be decided. Holm (S. Holm, "A simple sequentially rejective
// multiple test procedure", Scand. J. Statist. 6 (1979) 65–70) keeps the chance
// of any false alarm over all rows at alpha.
//
// The interval divides the order-statistic intervals of the two medians, each at
// confidence √(1-alpha), which by independence hold together at 1-alpha; it is
// distribution-free and a little wide, and needs 7 samples of each run at 0.05.
//
// Note: two runs recorded one after the other differ by the state of the machine
// too, and no test can see which. Compare what is already relative (block
// ratios), or interleave the runs.
func Compare(rows []Row, margin, alpha float64) ([]Comparison, error) {
	if !(margin > 0 && margin < 1) || !(alpha > 0 && alpha < 0.5) {
		return nil, fmt.Errorf("stats: compare needs a margin between 0 and 1 and an alpha between 0 and 0.5, not %v and %v", margin, alpha)
	}
	out := make([]Comparison, len(rows))
	ps := make([]float64, len(rows))
	for i, row := range rows {
		for _, side := range []struct {
			name    string
			samples []float64
		}{{"base", row.Base}, {"head", row.Head}} {
			if len(side.samples) == 0 {
				return nil, fmt.Errorf("stats: row %q has no %s samples: record the run again, or leave the row out", row.Name, side.name)
			}
			if err := checkSamples(side.name+" sample", side.samples); err != nil {
				return nil, fmt.Errorf("stats: row %q: %w", row.Name, err)
			}
		}
		each := math.Sqrt(1 - alpha)
		base, head := MedianInterval(row.Base, each), MedianInterval(row.Head, each)
		c := benchmath.AssumeNothing.Compare(
			benchmath.NewSample(slices.Clone(row.Base), &benchmath.DefaultThresholds),
			benchmath.NewSample(slices.Clone(row.Head), &benchmath.DefaultThresholds))
		out[i] = Comparison{
			Name:  row.Name,
			Ratio: head.Median / base.Median,
			Lower: max(0, head.Lower) / base.Upper,
			Upper: head.Upper / max(0, base.Lower),
			P:     c.P,
		}
		for _, w := range c.Warnings {
			out[i].Warnings = append(out[i].Warnings, w.Error())
		}
		ps[i] = c.P
	}
	for i, p := range holm(ps) {
		c := &out[i]
		c.Holm = p
		low, high := 1/(1+margin), 1+margin
		evidence := fmt.Sprintf("ratio of medians %.4g, interval [%.4g, %.4g], p = %.3g (Holm %.3g), margin %.3g %%",
			c.Ratio, c.Lower, c.Upper, c.P, c.Holm, margin*100)
		moved := c.Ratio > high || c.Ratio < low
		switch {
		case moved && c.Holm <= alpha:
			c.Outcome = Regression
			if (c.Ratio > 1) == rows[i].HigherIsBetter {
				c.Outcome = Improvement
			}
		case c.Lower >= low && c.Upper <= high:
			c.Outcome = NoChange
		default:
			c.Outcome = CannotDecide
			if need := MinSamples((1 + math.Sqrt(1-alpha)) / 2); min(len(rows[i].Base), len(rows[i].Head)) < need {
				evidence += fmt.Sprintf("; an interval needs %d samples of each run", need)
			}
		}
		c.Reason = evidence
	}
	return out, nil
}

// holm returns the step-down adjusted values: reject where one is at most alpha.
func holm(ps []float64) []float64 {
	order := make([]int, len(ps))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case ps[a] < ps[b]:
			return -1
		case ps[a] > ps[b]:
			return 1
		}
		return 0
	})
	out := make([]float64, len(ps))
	worst := 0.0
	for i, row := range order {
		worst = max(worst, min(1, float64(len(ps)-i)*ps[row]))
		out[row] = worst
	}
	return out
}
