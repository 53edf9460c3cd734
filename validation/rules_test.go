package validation

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/validation/report"
	"github.com/batchproof/batchproof/validation/stats"
)

func judged(t *testing.T, x *fakeExperiment) *Judgement {
	t.Helper()
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	replay(t, j)
	return j
}

// passing is an experiment that passes: a ratio of 4 for four requests.
func passing(t *testing.T) *fakeExperiment {
	x := newFakeExperiment(t, ThroughputCriterion(4), 0)
	x.batch.prefill, x.batch.decode = constant(30*ms), constant(10*ms)
	return x
}

// script is a Watcher that shows the readings it is told, one a block.
type script struct {
	steal []float64
	at    int
}

func (s *script) Limits() stats.Limits { return stats.Limits{ReadingSteal: 0.03} }
func (s *script) Begin()               {}
func (s *script) End() []stats.Reading {
	s.at++
	return []stats.Reading{{Name: ReadingSteal, Value: s.steal[(s.at-1)%len(s.steal)]}}
}

func watchedBy(x *fakeExperiment, steal ...float64) *fakeExperiment {
	x.Watchers = []Watcher{&script{steal: steal}}
	x.Rules.QuietLimits = limits(x.Watchers)
	return x
}

// TestDisturbedBlocks: a disturbed block is kept, counted and not judged, and
// measured again with other prompts in the same order of arms.
func TestDisturbedBlocks(t *testing.T) {
	x := watchedBy(passing(t), 0, 0, 0.2, 0, 0, 0, 0)
	j := judged(t, x)
	require.Equal(t, Pass, j.Verdict, j.Reason)
	blocks := j.Record.Blocks
	require.Len(t, blocks, 7)
	require.Len(t, j.Record.Kept(), 6)
	require.Equal(t, []int{0, 1, 2, 2, 3, 4, 5}, []int{blocks[0].Index, blocks[1].Index, blocks[2].Index, blocks[3].Index, blocks[4].Index, blocks[5].Index, blocks[6].Index})
	require.Equal(t, blocks[2].Arms[0].Arm, blocks[3].Arms[0].Arm)
	require.NotEqual(t, blocks[2].Arms[0].Requests[0].Prompt, blocks[3].Arms[0].Requests[0].Prompt)
	require.Contains(t, text(j), "1 of 7 blocks were disturbed (limit 25 %); first: block 3, steal 20 % (limit 3 %): the hypervisor gave the cores to others")
	require.Contains(t, strings.Join(x.log, "\n"), "block 3 of at most 24, disturbed (steal 20 % (limit 3 %): the hypervisor gave the cores to others): measured again")
	require.Contains(t, strings.Join(x.log, "\n"), "block 3 of at most 24, attempt 2, ratio 4.000")

	// The ratio plays no part: a disturbed block goes whatever it shows.
	x = watchedBy(passing(t), 0, 0, 0.2, 0, 0, 0, 0)
	honest := x.batch.decode
	x.batch.decode = func(rows int) time.Duration {
		if x.batch.runs == 3 { // after one warm-up
			return 90 * ms
		}
		return honest(rows)
	}
	j = judged(t, x)
	require.Equal(t, Pass, j.Verdict)
	require.InDelta(t, 4, j.Ratio.Min, 1e-9)
}

// TestTooNoisy: a machine that is disturbed too often is said to be, with numbers,
// and the session does not go on for ever.
func TestTooNoisy(t *testing.T) {
	j := judged(t, watchedBy(passing(t), 0.2))
	require.Equal(t, Invalid, j.Verdict)
	require.Len(t, j.Record.Blocks, 4)
	require.Equal(t, "the machine is too noisy: 4 of 4 blocks were disturbed (limit 25 %); first: block 1, steal 20 % (limit 3 %): the hypervisor gave the cores to others; close other programs and measure again", j.Reason)

	require.Equal(t, 1, strings.Count(text(j), "too noisy"), text(j))

	// Nothing of it reads as evidence.
	x := roofed(watchedBy(passing(t), 0.2), 80e6)
	j = judged(t, x)
	var table bytes.Buffer
	PrintTable(&table, []*Judgement{j})
	require.Regexp(t, `throughput, 4 concurrent +– +– +– +≥ 3.00 +– +– +INVALID`, table.String())
	r := &Results{Model: new(ModelInfo), Criteria: []*Record{j.Record}}
	require.Contains(t, string(report.Markdown(View(r))), "INVALID | – | none | ≥ 3.00 | – | – | – | – |")
	require.NotContains(t, string(BenchLines(r)), "BenchmarkGenerate")
	require.NotContains(t, fmt.Sprint(View(r).Facts), "GB/s")
	j = judged(t, watchedBy(passing(t), 0, 0, 0.2, 0, 0, 0, 0))
	r.Criteria = []*Record{j.Record}
	require.Equal(t, 2*6, strings.Count(string(BenchLines(r)), "BenchmarkGenerate"), "the disturbed block is left out")

	// Every third block: decided after six that stand, and still not quiet
	// enough, however many more there are.
	j = judged(t, watchedBy(passing(t), 0, 0.2, 0))
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "too noisy: 9 of ")
	// Every fourth is just allowed.
	j = judged(t, watchedBy(passing(t), 0, 0, 0, 0.2))
	require.Equal(t, Pass, j.Verdict, j.Reason)
}

// TestNotWarm: a shape that is not stable gets more warm-ups, and no verdict if
// that does not help.
func TestNotWarm(t *testing.T) {
	x := passing(t)
	step := 0
	x.batch.decode = func(int) time.Duration {
		step++
		return 10 * ms * time.Duration(1<<max(0, 24-step)) // ever faster, until the third warm-up
	}
	j := judged(t, x)
	require.Equal(t, Pass, j.Verdict, j.Reason)
	require.Len(t, j.Record.WarmupBlocks, 3)

	x = passing(t)
	x.batch.decode = func(int) time.Duration { step++; return time.Duration(10+5*(step%3)) * ms }
	j = judged(t, x)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "batch arm: not stable after 30 steps")
	require.Empty(t, j.Record.Blocks)
}

func roofed(x *fakeExperiment, bytes float64) *fakeExperiment {
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) { return bytes, 1 }), 4, 4, 11, 8, 1e12)
	return x
}

// TestSerialFloor: a serial arm far below the roofline is no opponent, and a
// memory that others slow down does not make it so.
func TestSerialFloor(t *testing.T) {
	j := judged(t, roofed(passing(t), 61e6)) // 6.1 ms of 10
	require.Equal(t, Pass, j.Verdict, j.Reason)
	j = judged(t, roofed(passing(t), 59e6))
	require.Equal(t, Invalid, j.Verdict)
	require.Equal(t, "the serial arm reaches 59 % of the memory roofline, at least 60 % are asked for: against so slow an arm any ratio is easy", j.Reason)

	// For half of the time the memory is half as fast, for arms and probes alike.
	x := roofed(passing(t), 80e6)
	slow := func() bool { return x.clock.now().UnixMilli()/300%2 == 0 }
	x.Bandwidth = func() (float64, error) {
		if slow() {
			return 5e9, nil
		}
		return 10e9, nil
	}
	noisy := func(int) time.Duration {
		if slow() {
			return 20 * ms
		}
		return 10 * ms
	}
	x.serial.decode, x.batch.decode = noisy, noisy
	x.Rules.WarmTolerance = 2
	j = judged(t, x)
	require.InDelta(t, 0.8, j.SerialShare, 0.1)
	require.Less(t, j.Bandwidth, 9e9)
}

// TestBandwidthIsOfTheBlocks: all probes of the blocks that stand count, by the
// time that they took, and no others.
func TestBandwidthIsOfTheBlocks(t *testing.T) {
	r := &Record{
		Rules:        Rules{QuietLimits: stats.Limits{ReadingSteal: 0.03}},
		WarmupBlocks: []Block{{Probes: []float64{1e9}}},
		Blocks: []Block{
			{Probes: []float64{30e9, 60e9}},
			{Probes: []float64{1e9}, Readings: []stats.Reading{{Name: ReadingSteal, Value: 0.5}}},
			{Probes: []float64{30e9}},
			{},
		},
	}
	require.InDelta(t, 36e9, r.bandwidth(), 1) // three probes of a byte: 1/30 + 1/60 + 1/30
	require.InDeltaSlice(t, []float64{40e9, 30e9}, r.bandwidths(), 1)
	require.Zero(t, new(Record).bandwidth())
	require.InDelta(t, 2, quietMean([]float64{1, 3, 2, 2, 1, 3, 2, 2, 2, 100}), 1e-12)
}

// TestOtherSpeed: a verdict that would turn at a speed of the memory which the
// session met, at more than one of its blocks, is none.
func TestOtherSpeed(t *testing.T) {
	bound := func(earlier ...float64) *Judgement { // at 10 GB/s a step of 4 rows is bound by reads just so
		x := passing(t)
		x.Bandwidth = func() (float64, error) { return 10e9, nil }
		x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) {
			return 80e6, float64(rows) * 2e6
		}), 4, 4, 11, 8, 1e9)
		rec, err := x.Run(t.Context())
		require.NoError(t, err)
		rec.speeds = append(rec.bandwidths(), earlier...)
		return Judge(rec)
	}
	for _, c := range []struct {
		earlier []float64
		verdict Verdict
	}{
		{nil, Pass},
		{[]float64{10e9, 11e9, 9e9}, Pass},
		{[]float64{20e9, 10e9, 10e9}, Pass}, // a single block
		{[]float64{20e9, 20e9, 10e9}, Inconclusive},
		{[]float64{5e9, 5e9, 10e9}, Pass}, // slower reads make batching pay more
	} {
		j := bound(c.earlier...)
		require.Equal(t, c.verdict, j.Verdict, "%v: %s", c.earlier, j.Reason)
		if c.verdict == Inconclusive {
			require.Regexp(t, `^PASS at 10.0 GB/s of reads .*, but the machine also ran at 20.0 GB/s in this session, where the ratio is estimated at \d\.\d\d: it has no one speed to judge at$`, j.Reason)
		}
		replay(t, j)
	}
}

// TestBoundAtOtherSpeed: where blocks enough ran at the other speed, their own bound
// counts, not what might be; it withholds a verdict that rests on the mixture.
func TestBoundAtOtherSpeed(t *testing.T) {
	for _, c := range []struct {
		others  int // blocks at the other speed, of 12
		speed   float64
		step    time.Duration // of the batch arm, in the other blocks
		ratio   float64       // ÷ target, at the other speed
		worst   float64       // of one of them
		verdict Verdict
		reason  string
	}{
		{4, 18e9, 10 * ms, 1.01, 1.01, Inconclusive, "where the ratio is estimated at"}, // too few to tell
		{5, 18e9, 10 * ms, 1.01, 1.01, Pass, ""},
		{5, 18e9, 10 * ms, 1.01, 0.99, Inconclusive, "where the ratio has its bound at 2.97"},
		{4, 6e9, 15 * ms, 0.99, 0.99, Inconclusive, "where the ratio is estimated at"},
		{5, 6e9, 15 * ms, 0.99, 0.99, Fail, ""},
		{5, 6e9, 15 * ms, 0.99, 1.01, Inconclusive, "where the ratio has its bound at 3.03"},
	} {
		x := passing(t)
		x.Runs = 12
		x.batch.decode = constant(c.step)
		x.Bandwidth = func() (float64, error) { return 10e9, nil }
		x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) {
			return 80e6, float64(rows) * 2e6
		}), 4, 4, 11, 8, 1e9)
		rec, err := x.Run(t.Context())
		require.NoError(t, err)
		rec.speeds = append(rec.bandwidths(), c.speed, c.speed)
		goal, _ := rec.goal()
		kept := rec.Kept()
		for i, b := range kept[len(kept)-c.others:] {
			for i := range b.Probes {
				b.Probes[i] = c.speed
			}
			ratio := c.ratio
			if i == 0 {
				ratio = c.worst
			}
			b.Run(ArmBatch).ElapsedNS = int64(float64(b.Run(ArmSerial).ElapsedNS) / goal.Value / ratio)
		}
		j := Judge(rec)
		require.Equal(t, c.verdict, j.Verdict, "%+v: %s", c, j.Reason)
		require.Contains(t, j.Reason, cmp.Or(c.reason, j.Decision.Reason))
		require.Equal(t, c.reason == "", j.Reason == j.Decision.Reason)
	}
}

// TestSerialSteps: a step of one row that takes longer than one of four is slow
// on purpose.
func TestSerialSteps(t *testing.T) {
	x := passing(t)
	x.batch.decode = constant(9 * ms)
	j := judged(t, x)
	require.Equal(t, Invalid, j.Verdict)
	require.Equal(t, "the serial arm is handicapped: a step of one row takes 10 ms, of 4.0 rows 9 ms", j.Reason)
}

// TestSerialAlone: where batch mode serves a lone request faster, the serial arm
// has a handicap; in the latency criterion and in every criterion of its session.
func TestSerialAlone(t *testing.T) {
	x := newFakeExperiment(t, LatencyCriterion(), 10)
	x.batch.decode = constant(8 * ms)
	control := *x.serial
	control.name = ArmControl
	x.Arms = append(x.Arms, control.arm())
	j := judged(t, x)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "the serial arm is handicapped: batch mode serves a lone request in 0.846 of its time")

	y := passing(t)
	y.Control = j.Record.control()
	require.Equal(t, Invalid, judged(t, y).Verdict)
}

// TestControlOfTheSession: a throughput criterion rests on lone requests of its
// session, and without any there is no verdict.
func TestControlOfTheSession(t *testing.T) {
	for _, c := range []struct {
		name    string
		control func(*Control)
		verdict Verdict
		reason  string
	}{
		{"agrees", func(*Control) {}, Pass, ""},
		{"differs", func(c *Control) { c.Serial = slices.Repeat([]float64{1.02}, 8) }, Invalid, "identical arms differ"},
		{"too few", func(c *Control) { c.Serial = c.Serial[:4] }, Inconclusive, "4 blocks are too few"},
		{"too wide", func(c *Control) { c.Serial = slices.Repeat([]float64{0.8, 1.2}, 12) }, Invalid, "too noisy to tell a difference of 10 %"},
		{"unusable", func(c *Control) { c.Invalid = "it rained" }, Invalid, "control of the session: it rained"},
	} {
		x := passing(t)
		c.control(x.Control)
		j := judged(t, x)
		require.Equal(t, c.verdict, j.Verdict, c.name)
		require.Contains(t, j.Reason, c.reason)
		if c.verdict == Invalid {
			require.Equal(t, 1, strings.Count(text(j), c.reason), "said once:\n%s", text(j))
			require.NotContains(t, text(j), "broken", "what follows from it is no further problem")
		}
		require.Equal(t, c.verdict == Invalid, len(j.Record.Blocks) == 0, "no block can mend a broken control")
	}
	x := passing(t)
	x.Control = nil
	j := judged(t, x)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "no A/A control in this session")
}

// TestPromptRepeat: who sees a prompt first pays more for it, so something
// remembers it.
func TestPromptRepeat(t *testing.T) {
	x := passing(t)
	seen := make(map[int]bool)
	prefill := func(a *fakeArm) func(int) time.Duration {
		return func(rows int) time.Duration {
			request := x.serial.runs
			if a == x.batch {
				request = x.batch.runs
			}
			first := !seen[request]
			seen[request] = true
			if first || a == x.serial && x.batch.runs == x.serial.runs {
				return 40 * ms
			}
			return 20 * ms
		}
	}
	x.serial.prefill, x.batch.prefill = prefill(x.serial), prefill(x.batch)
	j := judged(t, x)
	require.Equal(t, Invalid, j.Verdict, text(j))
	require.Contains(t, j.Reason, "prompts are remembered from arm to arm: the arm that sees prompts first takes 2.00 times as long")
}

// TestRecheck: recorded samples are held against the rules of evidence again, so
// that a record cannot be talked into a verdict.
func TestRecheck(t *testing.T) {
	rec, err := passing(t).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, Pass, Judge(rec).Verdict)
	for name, c := range map[string]struct {
		spoil func(serial, batch *ArmRun)
		want  string
	}{
		"other tokens":     {func(_, b *ArmRun) { b.Requests[1].Tokens = "00" }, "tokens differ between the arms: block 3, batch arm: request 1"},
		"other prompt":     {func(_, b *ArmRun) { b.Requests[1].Prompt = "00" }, "request 1 had another prompt"},
		"error":            {func(s, _ *ArmRun) { s.Requests[0].Error = "gone" }, "request failed: block 3, serial arm: request 0: gone"},
		"count":            {func(_, b *ArmRun) { b.Requests[2].Count-- }, "11 tokens asked for, 10 generated, 11 timed"},
		"reason":           {func(_, b *ArmRun) { b.Requests[2].Reason = "eos" }, `ended with reason "eos"`},
		"dropped":          {func(_, b *ArmRun) { b.Requests = b.Requests[:3] }, "4 requests went in, 3 came out"},
		"drawn":            {func(_, b *ArmRun) { b.Steps.Drawn[4]-- }, RuleWorkNotAccounted},
		"prompt skipped":   {func(_, b *ArmRun) { b.Steps.Tokens[0] -= 3 }, "tokens fed to the engine are too few: block 3, batch arm: 56 in prompts and answers, 53 fed"},
		"serial in pairs":  {func(s, _ *ArmRun) { s.Steps.Rows[4] = 2 }, RuleSerialBatched},
		"batch one by one": {func(_, b *ArmRun) { clear(b.Steps.Rows); b.Steps.Rows[0] = 1 }, RuleNothingBatched},
	} {
		back := trip(t, rec)
		c.spoil(back.Blocks[2].Run(ArmSerial), back.Blocks[2].Run(ArmBatch))
		j := Judge(back)
		require.Equal(t, Invalid, j.Verdict, name)
		require.Contains(t, j.Reason, c.want, name)
	}
}

// TestAgainstCeiling: the gate can be a share of what this machine allows, also
// at levels without a specified ratio; a lone request keeps its target.
func TestAgainstCeiling(t *testing.T) {
	for share, want := range map[float64]Verdict{0.85: Pass, 0.99: Pass, 1: Pass} {
		x := roofed(passing(t), 80e6) // ceiling 4, ratio 4
		x.Rules.Against, x.Rules.Share = AgainstCeiling, share
		j := judged(t, x)
		require.Equal(t, want, j.Verdict, j.Reason)
	}
	x := roofed(newFakeExperiment(t, ThroughputCriterion(3), 0), 80e6)
	x.Rules.Against, x.Rules.Share = AgainstCeiling, 0.85
	j := judged(t, x) // 390 ÷ 220 = 1.77 of 3
	require.Equal(t, Fail, j.Verdict, j.Reason)
	require.Contains(t, text(j), "≥ 3.40 (85 % of the ceiling), missed by 1.6")
	require.Equal(t, 6, len(j.Record.Blocks))

	x = passing(t)
	x.Rules.Against, x.Rules.Share = AgainstCeiling, 0.85
	j = judged(t, x)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "there is no ceiling to hold the ratio against")
	require.Equal(t, AgainstTarget, (&Options{Against: AgainstCeiling, Share: 0.85}).Rules(LatencyCriterion()).Against)
}

// TestAccount: the parts of the missing ratio add up, and each cause is charged
// what it costs.
func TestAccount(t *testing.T) {
	sums := func(j *Judgement) (floor, excess float64) {
		for _, p := range j.Account.Parts {
			floor, excess = floor+p.Floor, excess+p.Excess
		}
		return floor, excess
	}
	part := func(j *Judgement, name string) Part {
		i := slices.IndexFunc(j.Account.Parts, func(p Part) bool { return p.Name == name })
		return j.Account.Parts[i]
	}
	for _, c := range []struct {
		spoil func(x *fakeExperiment)
		want  string
		words string
	}{
		{func(x *fakeExperiment) { x.batch.prefill = constant(200 * ms) }, partPrefill, "prefill is the bottleneck"},
		{func(x *fakeExperiment) { x.batch.decode = constant(30 * ms) }, partWeights, "a decode step of 4.0 rows takes 3.00 times a step of one row; weights are read again"},
		{func(x *fakeExperiment) { x.batch.between = 20 * ms }, partScheduler, "a loop that sleeps between steps costs 1 ms each"},
		{func(x *fakeExperiment) { x.batch.width = 2 }, partWaiting, "rows joined late or left early"},
	} {
		x := roofed(passing(t), 80e6)
		c.spoil(x)
		j := judged(t, x)
		floor, excess := sums(j)
		require.InDelta(t, 4-j.Ceiling, floor, 1e-9)
		require.InDelta(t, j.Ceiling-j.Ratio.Median, excess, 1e-9)
		require.Equal(t, c.want, j.Account.Largest().Name, j.Account.text())
		require.Contains(t, j.Hint, c.words)
		require.Contains(t, text(j), "most by "+c.want)
	}

	// By hand: at the floor of both arms, only the prompts and the keys and values
	// that each row brings keep the ratio from 4.
	x := roofed(passing(t), 80e6)
	x.Roofline.Serial[1].KV, x.Roofline.Batch[1].KV = 10e6, 40e6
	x.Roofline.Serial[1].Weights, x.Roofline.Batch[1].Weights = 70e6, 70e6
	x.Roofline.Batch[1].Bytes = 110e6
	j := judged(t, x)
	floorB := 0.008 + 10*0.011
	require.InDelta(t, 4*(10*0.004-10*0.004/4)/floorB, part(j, partKV).Floor, 1e-9)
	require.InDelta(t, 0, part(j, partWeights).Floor, 1e-9)
	require.InDelta(t, 0, part(j, partPrefill).Floor, 1e-9, "one step for all prompts costs what one prompt does here")
	require.Nil(t, (&Account{Parts: []Part{{Excess: -1}}}).Largest())

	// Arithmetic that could hide behind the reads and does not.
	x = roofed(passing(t), 80e6)
	x.Roofline.Batch[1].FLOPs = 6e9 // 6 ms at the peak
	x.batch.decode = constant(15 * ms)
	j = judged(t, x)
	allowed := 10 * 0.008 * 0.520 / 0.352 // of decode, were it as near to its floor as the serial arm
	require.InDelta(t, j.Ceiling*(0.150-allowed)/0.180, part(j, partArithmetic).Excess, 1e-9)
	require.InDelta(t, 0, part(j, partWeights).Excess, 1e-9)

	j = judged(t, newFakeExperiment(t, LatencyCriterion(), 10))
	require.Nil(t, j.Account, "a lone request misses nothing")
}

// TestUnreachable names what takes the ratio, and does not blame the machine for
// a batch that is too narrow.
func TestUnreachable(t *testing.T) {
	x := roofed(passing(t), 80e6)
	x.Roofline.Batch[1].FLOPs = 20e9 // 20 ms at the peak
	x.batch.decode = constant(25 * ms)
	j := judged(t, x)
	require.Equal(t, Fail, j.Verdict)
	require.Contains(t, j.Hint, "unreachable on this machine: bytes and arithmetic alone allow at most 1.69 here, and arithmetic takes most")
	require.Contains(t, text(j), "the target is unreachable on this machine")

	x = newFakeExperiment(t, ThroughputCriterion(4), 0)
	x.MaxBatchSize, x.batch.width = 2, 2
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) { return 80e6, 1 }), 4, 4, 11, 2, 1e12)
	j = judged(t, x)
	require.Equal(t, Fail, j.Verdict)
	require.Contains(t, j.Hint, "max batch size too small: 4 requests, -max-batch-size 2; raise it: so few rows allow at most 2.00 here")
}

// TestHardLimit: when the session's time is up there are no further blocks, and
// what was not decided is not guessed.
func TestHardLimit(t *testing.T) {
	x := passing(t)
	x.Limit = 3 * time.Second // 0.65 s a block, one warm-up
	j := judged(t, x)
	require.Equal(t, Inconclusive, j.Verdict)
	require.Len(t, j.Record.Blocks, 3)
	require.True(t, j.Record.TimeUp)
	require.Contains(t, j.Reason, "3 blocks are too few for a 95 % bound: 6 are needed; the time was up (-time-limit)")

	for _, limit := range []time.Duration{-1, time.Second} { // at once, and after a warm-up
		x = passing(t)
		x.Limit = limit
		j = judged(t, x)
		require.Equal(t, Inconclusive, j.Verdict)
		require.Contains(t, j.Reason, "before a block was completed")
		require.Len(t, j.Record.WarmupBlocks, map[bool]int{true: 0, false: 1}[limit < 0])
	}

	x = passing(t)
	x.Limit = time.Minute
	require.Equal(t, Pass, judged(t, x).Verdict)
}

// TestThroughputAlone: without the latency criterion the session is controlled
// by lone requests, once for all levels.
func TestThroughputAlone(t *testing.T) {
	opt := tinyOptions(t)
	opt.Against, opt.Share = AgainstCeiling, 0.5
	var log bytes.Buffer
	s := tinySession(t.Context(), opt, new(bytes.Buffer))
	for _, n := range []int{2, 3} {
		j, err := s.Measure(ThroughputCriterion(n), &log)
		require.NoError(t, err)
		require.NotNil(t, j.Record.Control)
		require.Len(t, j.Record.Control.Serial, 2)
		require.Equal(t, AgainstCeiling, j.Record.Rules.Against)
	}
	require.NoError(t, s.Close())
	require.Equal(t, 1, strings.Count(log.String(), "control of the session: block 2 of 2"))
	require.NotNil(t, s.results.Control)
	require.Len(t, s.results.Criteria, 2)

	// Replayed as recorded, and by the other rule.
	path := s.store.Dir + "/results.json"
	for _, given := range []string{"", "against"} {
		again := NewSession(t.Context(), Options{Against: AgainstTarget, given: []string{given}}, new(bytes.Buffer))
		judgements, err := again.Replay(path, new(bytes.Buffer))
		require.NoError(t, err)
		want := map[string]string{"": AgainstCeiling, "against": AgainstTarget}[given]
		require.Equal(t, want, judgements[0].Record.Rules.Against)
	}
}

// TestLoadRefusesRecords: a record that no session writes is refused, not judged.
func TestLoadRefusesRecords(t *testing.T) {
	rec, err := passing(t).Run(t.Context())
	require.NoError(t, err)
	for want, spoil := range map[string]func(*Record){
		"the plan's ranks": func(r *Record) { r.Plan.Ranks[0]++ },
		"are no criterion": func(r *Record) { r.Criterion.Concurrent = 0 },
		"lacks the control arm": func(r *Record) {
			warm := &r.WarmupBlocks[0]
			extra := warm.Arms[0]
			extra.Arm = ArmControl
			warm.Arms = append(warm.Arms, extra)
		},
		"block 2 lacks the batch arm":    func(r *Record) { r.Blocks[1].Arms = r.Blocks[1].Arms[:1] },
		"columns of its steps":           func(r *Record) { r.Blocks[1].Arms[0].Steps.Rows = nil },
		"stats: the plan's ranks [1 1 1": func(r *Record) { r.Control.Plan.Ranks[1] = 1; r.Control.Plan.Ranks[2] = 1 },
	} {
		back := trip(t, rec)
		spoil(back)
		require.ErrorContains(t, back.check(), want)
	}
	var none *Record
	require.ErrorContains(t, none.check(), "empty")
	require.True(t, math.IsNaN(ThroughputCriterion(2).Ratio(new(ArmRun), new(ArmRun))))
}
