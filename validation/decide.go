package validation

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/validation/stats"
)

// Verdict is the answer to a criterion.
type Verdict = stats.Verdict

const (
	Pass         = stats.Pass
	Fail         = stats.Fail
	Inconclusive = stats.Inconclusive
	Invalid      = stats.Invalid
	Measured     = Verdict("MEASURED") // sound, and there is no rule
)

// confidence of every bound, one-sided.
const confidence = 0.95

// controlMargin is how far from 1 an arm may seem to be from itself: no further
// than the narrowest criterion can tell.
const controlMargin = 0.05

// planFor fixes beforehand after how many blocks a verdict may be read. Runs 0
// leaves the number to the evidence: no fewer than the specified ones, then
// every second block until the bound clears the target or the blocks are used up.
// A level without a rule has nothing to wait for.
func planFor(c Criterion, runs int) (plan, control stats.Plan, blocks int, err error) {
	looks := []int{runs}
	if runs == 0 {
		looks = looks[:0]
		for n := max(6, specifiedRuns(c.Family)); n <= stats.DefaultBlocks; n += 2 {
			looks = append(looks, n)
		}
		if c.Target == 0 {
			looks = looks[:1]
		}
	}
	blocks = looks[len(looks)-1]
	if blocks < stats.MinSamples(confidence) {
		return plan, control, blocks, nil // no bound is possible: an empty plan, see decide
	}
	if plan, err = stats.NewPlan(confidence, looks...); err != nil {
		return plan, control, blocks, err
	}
	// Both sides of the control's interval share its error.
	if half := 1 - (1-confidence)/2; blocks >= stats.MinSamples(half)+1 {
		control, err = stats.NewPlan(half, looks...)
	}
	return plan, control, blocks, err
}

// decide is the one place where ratios become a verdict.
func decide(rec *Record, ratios []float64) stats.Decision {
	if rec.Criterion.Target == 0 {
		return stats.Decision{Verdict: Measured, Reason: "there is no rule at this level", Median: stats.Median(ratios), N: len(ratios), Upper: math.Inf(1)}
	}
	if rec.Plan.Max() == 0 {
		return stats.Decision{
			Verdict: Inconclusive, Median: stats.Median(ratios), Upper: math.Inf(1), N: len(ratios),
			Reason: fmt.Sprintf("%d blocks are too few for a %.0f %% bound: %d are needed, see -test-runs", len(ratios), 100*confidence, stats.MinSamples(confidence)),
		}
	}
	return stats.Decide(ratios, rec.Criterion.target(), rec.Plan)
}

// decideControl judges the control arm; Measured if there is none.
func decideControl(rec *Record) stats.Decision {
	ratios := rec.Ratios(ArmControl)
	if len(ratios) == 0 || rec.ControlPlan.Max() == 0 {
		return stats.Decision{Verdict: Measured}
	}
	return stats.DecideControl(ratios, controlMargin, rec.ControlPlan)
}

// decided says whether more blocks are of no use.
func (r *Record) decided() bool {
	if r.Criterion.Target == 0 {
		return len(r.Blocks) >= r.Planned
	}
	return decide(r, r.Ratios(ArmBatch)).Verdict != Inconclusive && decideControl(r).Verdict != Inconclusive
}

func (c Criterion) target() stats.Target {
	if c.Lower() {
		return stats.Target{Value: c.Target, Direction: stats.AtMost}
	}
	return stats.Target{Value: c.Target, Direction: stats.AtLeast}
}
