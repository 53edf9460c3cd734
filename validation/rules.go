package validation

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/batchproof/batchproof/validation/stats"
)

// What a throughput criterion is held against.
const (
	AgainstTarget  = "target"  // the specified ratio
	AgainstCeiling = "ceiling" // a share of the best that this machine allows
)

// Rules are the thresholds of a verdict. They are fixed before the first block
// and kept in the record, so that recorded samples meet the same rules again.
type Rules struct {
	Against       string       `json:"against"`
	Share         float64      `json:"share,omitempty"` // of the ceiling
	ControlMargin float64      `json:"control_margin"`  // by which an arm may seem to differ from itself
	SerialFloor   float64      `json:"serial_floor"`    // least share of the memory roofline for the serial arm
	SerialMargin  float64      `json:"serial_margin"`   // by which the serial arm may be slower than equal or more work in the batch arm
	WarmTolerance float64      `json:"warm_tolerance"`  // between windows of steps
	RepeatFactor  float64      `json:"repeat_factor"`   // by which a prompt may seem dearer when seen first
	TrendAlpha    float64      `json:"trend_alpha"`     // two-sided level
	QuietLimits   stats.Limits `json:"quiet_limits"`    // of a block's readings
	MaxDisturbed  float64      `json:"max_disturbed"`   // share of the blocks
}

// DefaultRules are the rules of a criterion. Why so large:
//
//   - The control of the latency criterion must tell 5 %, as its target does; for
//     throughput, whose targets are 70 % and more from 1, a tenth is enough.
//   - A serial arm below 60 % of streaming reads is no fair opponent: plain
//     packed weights reach more on any machine that was looked at.
//   - 5 % between the arms where they do equal work is what the latency
//     criterion itself calls equal.
//   - Windows of steps agree within 10 %, or the shape is not warm: what warm-up
//     takes away (page faults, compilation) is larger, and what is smaller and
//     goes on is for the trend to find.
//   - A prompt that costs half as much again when seen first was remembered by
//     something.
func DefaultRules(c Criterion) Rules {
	r := Rules{
		Against: AgainstTarget, ControlMargin: 0.10, SerialFloor: 0.6, SerialMargin: 0.05, WarmTolerance: 0.10,
		RepeatFactor: 1.5, TrendAlpha: stats.TrendAlpha, QuietLimits: stats.Limits{}, MaxDisturbed: stats.MaxDisturbedShare,
	}
	if c.Family == FamilyLatency {
		r.ControlMargin = 0.05
	}
	return r
}

// The names of the checks of stats.Limits.Quiet and stats.Warm.
const (
	checkQuiet = "quiet"
	checkWarm  = "warm"
)

// checks holds a record against every rule that is not about single requests;
// see evidence.go for those. Each is decided by the record alone.
func checks(r *Record, j *Judgement) []stats.Check {
	all := []stats.Check{r.warm(), r.quiet()}
	if c := r.control(); c != nil {
		all = append(all, serialAlone(r, c))
	}
	return append(all, serialSteps(r, j), serialFloor(r, j), promptRepeat(r), stats.Trend(r.Ratios(ArmBatch), r.Rules.TrendAlpha))
}

// warmWindow is how many steps a window has: 16, or a sixth of a warm-up's.
func warmWindow(steps int) int { return min(16, max(1, steps/6)) }

// warm says whether every arm's decode steps were stable before the first block.
// The first arm that was not is named.
func (r *Record) warm() stats.Check {
	worst := stats.Check{Name: checkWarm, OK: true, Limit: 1 + r.Rules.WarmTolerance, Reason: "every arm stable before the first block"}
	if len(r.WarmupBlocks) == 0 {
		return stats.Check{Name: checkWarm, Reason: "no warm-up was measured"}
	}
	for i := range r.WarmupBlocks[0].Arms {
		arm := r.WarmupBlocks[0].Arms[i].Arm
		var times []float64
		for b := range r.WarmupBlocks {
			times = append(times, r.WarmupBlocks[b].Run(arm).Steps.decode()...)
		}
		window := warmWindow(len(r.WarmupBlocks[0].Run(arm).Steps.decode()))
		_, c := stats.Warm(times, window, r.Rules.WarmTolerance)
		if !c.OK {
			c.Reason = arm + " arm: " + c.Reason
			return c
		}
		worst.Value = max(worst.Value, c.Value)
	}
	return worst
}

// decode are the times of the steps without prompt chunks, in seconds.
func (l *StepLog) decode() []float64 {
	var times []float64
	for i, ns := range l.DurationNS {
		if l.PromptRows[i] == 0 {
			times = append(times, seconds(ns))
		}
	}
	return times
}

// quiet applies the limits of disturbance to all blocks measured.
func (r *Record) quiet() stats.Check {
	readings := make([][]stats.Reading, len(r.Blocks))
	for i := range r.Blocks {
		readings[i] = r.Blocks[i].Readings
	}
	_, c := r.Rules.QuietLimits.Quiet(readings, r.Rules.MaxDisturbed, r.Rules.disturbed) // named checkQuiet
	if !c.OK {
		c.Reason = "the machine is too noisy: " + c.Reason + "; close other programs and measure again"
	}
	return c
}

// disturbed says in words why a block does not count; "" if it does.
func (r *Rules) disturbed(readings []stats.Reading) string {
	var why []string
	for _, d := range r.QuietLimits.Disturbing(readings) {
		why = append(why, disturbance(d, r.QuietLimits[d.Name]))
	}
	if i := slices.IndexFunc(readings, func(r stats.Reading) bool { return r.Name == ReadingLoad }); i >= 0 && len(why) > 0 {
		why = append(why, fmt.Sprintf("load average %.1f", readings[i].Value))
	}
	return strings.Join(why, ", ")
}

// hopeless says that too many blocks are disturbed to go on: more than even a
// whole plan could outweigh, or more than three and more than stand.
func (r *Record) hopeless() bool {
	kept := len(r.Kept())
	disturbed := len(r.Blocks) - kept
	return disturbed > r.allowance() || disturbed > 3 && disturbed > kept
}

// allowance is the number of blocks that may be disturbed beside a whole plan.
func (r *Record) allowance() int {
	return int(r.Rules.MaxDisturbed / (1 - r.Rules.MaxDisturbed) * float64(r.Planned))
}

// serialAlone: a lone request runs at width 1 in both modes. A serial arm that is
// slower there than the batch arm is handicapped, and would make any ratio easy.
func serialAlone(r *Record, c *Control) stats.Check {
	limit := 1 / (1 + r.Rules.SerialMargin)
	check := stats.Check{Name: "serial arm alone", OK: true, Value: stats.Median(c.Batch), Limit: limit}
	if c.Plan.Max() == 0 || len(c.Batch) == 0 {
		check.Value, check.Reason = 1, "too few blocks to judge it"
		return check
	}
	d := stats.Decide(c.Batch, stats.Target{Value: limit, Direction: stats.AtLeast}, c.Plan)
	check.OK = d.Verdict != stats.Fail && d.Verdict != stats.Invalid
	check.Reason = fmt.Sprintf("a lone request takes %.3f times as long in batch mode", check.Value)
	if !check.OK {
		check.Reason = fmt.Sprintf("the serial arm is handicapped: batch mode serves a lone request in %.3f of its time (bound %.3f, at least %.3f expected)", check.Value, d.Upper, limit)
	}
	return check
}

// serialSteps: a step of more rows does more work than a step of one.
func serialSteps(r *Record, j *Judgement) stats.Check {
	c := stats.Check{Name: "serial arm's steps", OK: true, Value: j.Serial.DecodeStep / j.Batch.DecodeStep, Limit: 1 + r.Rules.SerialMargin}
	if r.Criterion.Lower() || !known(c.Value) {
		c.Value, c.Reason = 1, "no wider steps to compare with"
		return c
	}
	c.Reason = fmt.Sprintf("a step of one row takes %s, of %.1f rows %s", humanS(j.Serial.DecodeStep), j.Batch.MeanRows, humanS(j.Batch.DecodeStep))
	if c.OK = c.Value <= c.Limit; !c.OK {
		c.Reason = "the serial arm is handicapped: " + c.Reason
	}
	return c
}

// serialFloor: the serial arm must be near what the memory allows. Both sides
// are means over the same time, of the gaps between tokens and of the probes
// between turns, so that a memory which others slow down slows both.
func serialFloor(r *Record, j *Judgement) stats.Check {
	c := stats.Check{Name: "serial arm's roofline", OK: true, Value: j.SerialShare, Limit: r.Rules.SerialFloor}
	if !known(c.Value) {
		c.Value = 0
		c.Reason = "not judged: bandwidth or model cost not measured"
		return c
	}
	c.Reason = fmt.Sprintf("the serial arm reaches %.0f %% of the memory roofline, at least %.0f %% are asked for", 100*c.Value, 100*c.Limit)
	if c.OK = c.Value >= c.Limit; !c.OK {
		c.Reason += ": against so slow an arm any ratio is easy"
	}
	return c
}

// promptRepeat compares what a block's first prompt cost an arm that saw it first
// with what it cost when another arm had seen it. An engine that keeps prompts,
// in whatever layer, makes the first dearer. Only that prompt is surely computed
// by all arms in the order of the block, and only an arm of one row shows its
// time by itself.
func promptRepeat(r *Record) stats.Check {
	c := stats.Check{Name: "prompts forgotten", OK: true, Value: 1, Limit: r.Rules.RepeatFactor, Reason: "too few blocks to judge it"}
	product, arms := 1.0, 0
	for _, arm := range r.arms() {
		if arm == ArmBatch && r.Criterion.Concurrent > 1 {
			continue
		}
		var first, later []float64
		for _, b := range r.Kept() {
			cost := b.Run(arm).Steps.firstPrompt()
			if b.Arms[0].Arm == arm {
				first = append(first, cost)
			} else {
				later = append(later, cost)
			}
		}
		if len(first) >= 3 && len(later) >= 3 {
			product *= stats.Median(first) / stats.Median(later)
			arms++
		}
	}
	if arms == 0 {
		return c
	}
	c.Value = math.Pow(product, 1/float64(arms))
	c.Reason = fmt.Sprintf("the arm that sees prompts first takes %.2f times as long for them", c.Value)
	if c.OK = c.Value <= c.Limit; !c.OK {
		c.Reason = "prompts are remembered from arm to arm: " + c.Reason
	}
	return c
}

// firstPrompt is the time of the steps before the first token was drawn, and of
// the one that drew it, in seconds.
func (l *StepLog) firstPrompt() float64 {
	sum := int64(0)
	for i, ns := range l.DurationNS {
		if sum += ns; l.Drawn[i] > 0 {
			break
		}
	}
	return seconds(sum)
}

// arms are the names of the arms, sorted.
func (r *Record) arms() []string {
	if len(r.Blocks) == 0 {
		return nil
	}
	var names []string
	for i := range r.Blocks[0].Arms {
		names = append(names, r.Blocks[0].Arms[i].Arm)
	}
	slices.Sort(names)
	return names
}
