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

// planFor fixes beforehand after how many blocks a verdict may be read. Runs 0
// leaves the number to the evidence: no fewer than the specified ones, then
// every second block until the bound clears the target or the blocks are used up.
// A level without a rule has nothing to wait for.
func planFor(c Criterion, rules *Rules, runs int) (plan, control stats.Plan, blocks int, err error) {
	looks := []int{runs}
	if runs == 0 {
		looks = looks[:0]
		for n := leastBlocks(c.Family); n <= stats.DefaultBlocks; n += 2 {
			looks = append(looks, n)
		}
		if c.Family == FamilyThroughput && c.Target == 0 && rules.Against == AgainstTarget {
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

// leastBlocks is the first look: what was specified, and enough for a bound.
func leastBlocks(family string) int {
	switch family {
	case FamilyLatency:
		return specifiedRuns(family)
	case FamilyControl:
		return 8 // the least for 97.5 % on each side
	}
	return max(6, specifiedRuns(family))
}

// goal is what the median ratio is held against. Ok is false where there is no
// rule; NaN says that there is one, and that it cannot be computed.
func (r *Record) goal() (t stats.Target, ok bool) {
	switch c := r.Criterion; {
	case c.Lower(): // the ceiling of a lone request is 1 on any machine, so the target stands
		return stats.Target{Value: c.Target, Direction: stats.AtMost}, c.Target != 0
	case r.Rules.Against == AgainstCeiling:
		ceiling, _ := r.Roofline.Ceiling(r.bandwidth())
		return stats.Target{Value: r.Rules.Share * ceiling, Direction: stats.AtLeast}, true
	default:
		return stats.Target{Value: c.Target, Direction: stats.AtLeast}, c.Target != 0
	}
}

// decide is the one place where ratios become a verdict.
func decide(rec *Record, ratios []float64) stats.Decision {
	goal, ok := rec.goal()
	none := stats.Decision{Verdict: Measured, Median: stats.Median(ratios), N: len(ratios), Upper: math.Inf(1)}
	switch {
	case !ok:
		none.Reason = "there is no rule at this level"
		return none
	case !known(goal.Value):
		none.Verdict, none.Reason = Invalid, "there is no ceiling to hold the ratio against: bandwidth or model cost not measured"
		return none
	case rec.Plan.Max() == 0:
		none.Verdict = Inconclusive
		none.Reason = fmt.Sprintf("%d blocks are too few for a %.0f %% bound: %d are needed, see -test-runs", len(ratios), 100*confidence, stats.MinSamples(confidence))
		return none
	}
	return stats.Decide(ratios, goal, rec.Plan)
}

// decideControl judges the control; Measured if there is none, or too little of
// it by the user's own choice.
func decideControl(rec *Record) stats.Decision {
	c := rec.control()
	if c == nil || c.ControlPlan.Max() == 0 {
		return stats.Decision{Verdict: Measured}
	}
	return stats.DecideControl(c.Serial, rec.Rules.ControlMargin, c.ControlPlan)
}

// decided says whether more blocks are of no use.
func (r *Record) decided() bool {
	if !r.quiet().OK {
		return false
	}
	if r.Criterion.Family == FamilyControl {
		return decideControl(r).Verdict != Inconclusive
	}
	if _, ok := r.goal(); !ok {
		return len(r.Kept()) >= r.Planned
	}
	own := len(r.Ratios(ArmControl)) > 0
	return decide(r, r.Ratios(ArmBatch)).Verdict != Inconclusive && !(own && decideControl(r).Verdict == Inconclusive)
}
