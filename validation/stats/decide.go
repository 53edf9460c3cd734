package stats

import (
	"encoding/json"
	"fmt"
	"math"
)

// A Verdict is what the evidence allows to be said.
type Verdict string

const (
	Pass         Verdict = "PASS"         // the bound clears the target
	Fail         Verdict = "FAIL"         // the bound lies on the other side
	Inconclusive Verdict = "INCONCLUSIVE" // neither, yet
	Invalid      Verdict = "INVALID"      // the evidence may not be used
)

// A Direction says on which side of its value a target is met.
type Direction string

const (
	AtMost  Direction = "at most"
	AtLeast Direction = "at least"
)

// A Target is met by a median ratio on the right side of Value, or equal to it.
type Target struct {
	Value     float64   `json:"value"`
	Direction Direction `json:"direction"`
}

func (t Target) String() string {
	if t.Direction == AtMost {
		return fmt.Sprintf("≤ %.4g", t.Value)
	}
	return fmt.Sprintf("≥ %.4g", t.Value)
}

// A Decision is a verdict with its evidence. Lower and Upper are one-sided
// bounds, each at the plan's confidence: together they are an interval with
// twice the error. They are 0 and +Inf before the first look. Median, Lower and
// Upper are NaN when the samples cannot be used.
//
// In JSON a number that is not finite is null. A decision is never read back:
// it is recomputed from the ratios.
type Decision struct {
	Verdict    Verdict
	Reason     string
	Median     float64
	Lower      float64
	Upper      float64
	N          int // blocks that the numbers above rest on
	MoreBlocks int // Inconclusive: blocks that would probably decide; 0: no useful number
}

// MarshalJSON writes null for a bound that is not finite.
func (d Decision) MarshalJSON() ([]byte, error) {
	finite := func(v float64) *float64 {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
		return &v
	}
	return json.Marshal(struct {
		Verdict    Verdict  `json:"verdict"`
		Reason     string   `json:"reason"`
		Median     *float64 `json:"median"`
		Lower      *float64 `json:"lower"`
		Upper      *float64 `json:"upper"`
		N          int      `json:"blocks"`
		MoreBlocks int      `json:"more_blocks"`
	}{d.Verdict, d.Reason, finite(d.Median), finite(d.Lower), finite(d.Upper), d.N, d.MoreBlocks})
}

func invalid(format string, args ...any) Decision {
	nan := math.NaN()
	return Decision{Verdict: Invalid, Reason: fmt.Sprintf(format, args...), Median: nan, Lower: nan, Upper: nan}
}

// Decide judges whether the median of the block ratios meets the target. Ratios
// are in run order, disturbed blocks left out. Blocks after the last look that
// has been reached are not used, so that the plan's error holds; the verdict
// depends on nothing but the arguments.
func Decide(ratios []float64, target Target, plan Plan) Decision {
	if !(target.Value > 0) || math.IsInf(target.Value, 0) || target.Direction != AtMost && target.Direction != AtLeast {
		return invalid("the target %q %v is not a finite positive number to be at most or at least", target.Direction, target.Value)
	}
	d, rest, ok := look(ratios, plan)
	if !ok {
		return d
	}
	below, above := Pass, Fail // the verdict when the median is below or above
	if target.Direction == AtLeast {
		below, above = Fail, Pass
	}
	// A median equal to the target meets it.
	belowTarget := d.Upper < target.Value || d.Upper == target.Value && below == Pass
	aboveTarget := d.Lower > target.Value || d.Lower == target.Value && above == Pass
	side := func(bound string, value float64, sign string) string {
		return fmt.Sprintf("median ratio %.4g after %d blocks; its %.4g %% %s bound %.4g is %s %.4g",
			d.Median, d.N, plan.Confidence*100, bound, value, sign, target.Value)
	}
	switch {
	case belowTarget:
		d.Verdict, d.Reason = below, side("upper", d.Upper, compare(d.Upper, target.Value))
	case aboveTarget:
		d.Verdict, d.Reason = above, side("lower", d.Lower, compare(d.Lower, target.Value))
	default:
		leading := 0
		for _, r := range ratios[:d.N] {
			if r < target.Value {
				leading++
			}
		}
		leading = max(leading, d.N-leading)
		d.MoreBlocks = moreBlocks(leading, d.N, len(ratios), plan)
		d.Reason = fmt.Sprintf("median ratio %.4g after %d blocks; its interval [%.4g, %.4g] holds the target %.4g; %s",
			d.Median, d.N, d.Lower, d.Upper, target.Value, advice(d.MoreBlocks, rest))
	}
	return d
}

func compare(bound, target float64) string {
	switch {
	case bound < target:
		return "below"
	case bound > target:
		return "above"
	}
	return "at"
}

// DecideControl judges an A/A control: ratios of an arm against itself. Pass
// means that the interval contains 1 and lies within [1/(1+margin), 1+margin].
// Invalid means that identical arms differ, or that the blocks of the plan are
// used up and the interval is still wider than the margin. Otherwise it is
// Inconclusive, and more blocks are due. With a plan at 97.5 % each side, the
// false alarm is at most 5 %.
func DecideControl(ratios []float64, margin float64, plan Plan) Decision {
	if !(margin > 0) || math.IsInf(margin, 0) {
		return invalid("the margin %v of the A/A control is not a finite positive number", margin)
	}
	d, rest, ok := look(ratios, plan)
	if !ok {
		return d
	}
	low, high := 1/(1+margin), 1+margin
	interval := fmt.Sprintf("A/A median ratio %.4g after %d blocks, interval [%.4g, %.4g]", d.Median, d.N, d.Lower, d.Upper)
	switch {
	case d.Lower > 1 || d.Upper < 1:
		d.Verdict = Invalid
		d.Reason = interval + ": identical arms differ, so the order or the state of the machine decides; find the cause before measuring again"
	case d.Lower >= low && d.Upper <= high:
		d.Verdict = Pass
		d.Reason = fmt.Sprintf("%s: contains 1 and is within the margin %.3g", interval, margin)
	case rest == 0:
		d.Verdict = Invalid
		d.Reason = fmt.Sprintf("%s is not within [%.4g, %.4g]: too noisy to tell a difference of %.3g %%; quiet the machine or use more blocks",
			interval, low, high, margin*100)
	default:
		inside := [2]int{}
		for _, r := range ratios[:d.N] {
			if r >= low {
				inside[0]++
			}
			if r <= high {
				inside[1]++
			}
		}
		d.MoreBlocks = moreBlocks(min(inside[0], inside[1]), d.N, len(ratios), plan)
		d.Reason = fmt.Sprintf("%s is not yet within [%.4g, %.4g]; %s", interval, low, high, advice(d.MoreBlocks, rest))
	}
	return d
}

// look computes median and bounds at the last look reached; rest is the number
// of blocks the plan still allows. It is not ok when d is already the decision.
func look(ratios []float64, plan Plan) (d Decision, rest int, ok bool) {
	if len(plan.Looks) == 0 || len(plan.Ranks) != len(plan.Looks) {
		return invalid("the plan has %d looks and %d ranks; make it with NewPlan", len(plan.Looks), len(plan.Ranks)), 0, false
	}
	if err := checkSamples("ratio", ratios); err != nil {
		return invalid("%v", err), 0, false
	}
	rest = plan.Max() - len(ratios)
	if rest < 0 {
		return invalid("%d blocks were measured where the plan allows %d: the end was not the plan's", len(ratios), plan.Max()), 0, false
	}
	i := plan.look(len(ratios))
	if i < 0 || plan.Ranks[i] == 0 {
		d = Decision{Verdict: Inconclusive, Median: Median(ratios), Upper: math.Inf(1), N: len(ratios)}
		if next, more := plan.Next(len(ratios)); more {
			d.MoreBlocks = next - len(ratios)
			d.Reason = fmt.Sprintf("%d blocks are too few for a %.4g %% bound: %d are needed", len(ratios), plan.Confidence*100, next)
		} else { // unreachable for a plan made by NewPlan
			d.Reason = fmt.Sprintf("%d blocks are too few for a bound, and the plan ends", len(ratios))
		}
		return d, rest, false
	}
	n := plan.Looks[i]
	s := sorted(ratios[:n])
	lower, upper := bounds(s, plan.Ranks[i])
	return Decision{Verdict: Inconclusive, Median: median(s), Lower: lower, Upper: upper, N: n}, rest, true
}

// likely is the probability meant by "would probably decide".
const likely = 0.8

// maxMore is where an estimate stops being of use.
const maxMore = 1000

// moreBlocks estimates how many blocks beyond measured would decide, with
// probability likely, if the leading side kept its share. heads of the n blocks
// at the last look lie on that side; the share is shrunk towards one half, as
// (heads+½)/(n+1), so that a lucky start does not promise too much. When the
// plan ends before, it is the length of a fresh session, less what was measured.
func moreBlocks(heads, n, measured int, plan Plan) int {
	p := (float64(heads) + 0.5) / float64(n+1)
	sum := 0.0
	for i, hit := range walk(n, heads, p, plan.Looks, plan.Ranks) {
		if sum += hit; sum >= likely {
			return plan.Looks[i] - measured
		}
	}
	// A sign test of size alpha and power likely; see any text on sample size.
	const zLikely = 0.8416212335729143 // P(Z ≤ z) = 0.8
	z := math.Sqrt2 * math.Erfinv(1-2*plan.Nominal)
	gap := p - 0.5
	total := math.Pow((z/2+zLikely*math.Sqrt(p*(1-p)))/gap, 2)
	if !(total < maxMore) {
		return 0
	}
	more := max(int(math.Ceil(total)), plan.Max()+2) - measured
	return more + (more+measured)%2
}

func advice(more, rest int) string {
	switch {
	case more == 0:
		return fmt.Sprintf("more than %d blocks would be needed: the ratio is too near", maxMore)
	case more <= rest:
		return fmt.Sprintf("about %d more blocks would probably decide", more)
	}
	return fmt.Sprintf("about %d more blocks would probably decide, but the plan allows %d: plan a fresh session with more", more, rest)
}
