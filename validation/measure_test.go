package validation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRatioToTheDecimal: with known step times the ratio, the arms' figures and
// the shares of time come out as computed by hand.
func TestRatioToTheDecimal(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 6)
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	// A serial step moves 60 MB: 6 ms at 10 GB/s. With 4 rows 80 MB: 8 ms.
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) {
		if tokens > 1 {
			return 0, float64(rows) * 20e9 // 20 ms a row at 1 TFLOP/s
		}
		return 60e6 + float64(rows-1)*20e6/3, 1
	}), 4, 4, 11, 8, 1e12)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)

	// Serial: 4 × (30 + 10×10) = 520 ms. Batch: 120 + 10×14 = 260 ms.
	for _, r := range rec.Ratios(ArmBatch) {
		require.InDelta(t, 2.0, r, 1e-12)
	}
	require.Equal(t, Fail, j.Verdict)
	require.InDelta(t, -1.0, j.Gap(), 1e-12)
	require.InDelta(t, 4/0.520, j.Serial.RequestsPerS, 1e-9)
	require.InDelta(t, 4/0.260, j.Batch.RequestsPerS, 1e-9)
	require.InDelta(t, 44/0.260, j.Batch.TokensPerS, 1e-9)
	require.InDelta(t, 0.010, j.Serial.DecodeStep, 1e-12)
	require.InDelta(t, 0.014, j.Batch.DecodeStep, 1e-12)
	require.InDelta(t, 0.120, j.Batch.TTFT.Avg, 1e-9)
	// Waiting counts: the four first tokens come after 30, 160, 290 and 420 ms.
	require.InDelta(t, 0.225, j.Serial.TTFT.Avg, 1e-9)
	require.InDelta(t, 0.130, j.Serial.Latency.Min, 1e-9)
	require.InDelta(t, 0.520, j.Serial.Latency.Max, 1e-9)
	require.Equal(t, map[int]int{4: 6 * 11}, j.Batch.Histogram)
	require.Equal(t, map[int]int{1: 6 * 44}, j.Serial.Histogram)
	require.InDelta(t, 4, j.Batch.MeanRows, 1e-12)
	require.InDelta(t, 6*0.120, j.Batch.PrefillElapsed, 1e-9)
	require.InDelta(t, 0, j.Batch.Overhead(), 1e-9)

	// 60 MB in 10 ms is 6 GB/s of 10.
	require.InDelta(t, 0.6, j.SerialShare, 1e-9)
	// Floors: serial 4 × (20 + 10×6) = 320 ms, batch 80 + 10×8 = 160 ms; decode 240 to 80.
	require.InDelta(t, 2.0, j.Ceiling, 1e-9)
	require.InDelta(t, 3.0, j.CeilingDecode, 1e-9)
	require.InDelta(t, 1.0, j.Reached(), 1e-9)
	require.Contains(t, j.Hint, "unreachable on this machine")
}

// TestLatencyRatio: the latency criterion compares the time of the request.
func TestLatencyRatio(t *testing.T) {
	x := newFakeExperiment(t, LatencyCriterion(), 6)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	// (30 + 10×11) ÷ (30 + 10×10)
	require.InDelta(t, 140.0/130, j.Ratio.Median, 1e-12)
	require.Equal(t, Fail, j.Verdict, "1.077 is above 1.05")
	require.Contains(t, j.Hint, "1.10 times")

	x = newFakeExperiment(t, LatencyCriterion(), 6)
	x.batch.decode = x.serial.decode
	rec, err = x.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, Pass, Judge(rec).Verdict)
}

// TestBlocksAreInterleaved: each block runs every arm once, both orders come
// equally often, and the order depends on the seed alone.
func TestBlocksAreInterleaved(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 10)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, 10, len(rec.Blocks))
	serialFirst := 0
	for i, b := range rec.Blocks {
		require.Equal(t, i, b.Index)
		require.Len(t, b.Arms, 2)
		if b.Arms[0].Arm == ArmSerial {
			serialFirst++
		}
		for k := range b.Arms[0].Requests {
			require.Equal(t, b.Arms[0].Requests[k].Prompt, b.Arms[1].Requests[k].Prompt, "both arms serve the same prompts")
			require.Equal(t, b.Arms[0].Requests[k].Tokens, b.Arms[1].Requests[k].Tokens)
		}
	}
	require.Equal(t, 5, serialFirst)

	again, err := newFakeExperiment(t, ThroughputCriterion(2), 10).Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, rec, again, "same seed, same session")
}

func TestOrders(t *testing.T) {
	for arms := 1; arms <= 4; arms++ {
		differ := false
		for seed := range uint64(20) {
			got := orders(seed, arms, 3*arms)
			for place := range arms {
				counts := make([]int, arms)
				for g := 0; g < len(got); g += arms {
					for _, o := range got[g : g+arms] {
						counts[o[place]]++
					}
					for a, n := range counts {
						require.Equal(t, g/arms+1, n, "arm %d in place %d after %d blocks", a, place, g+arms)
					}
				}
			}
			differ = differ || !slices.Equal(got[0], orders(seed+1, arms, 1)[0])
		}
		require.Equal(t, arms > 1, differ, "the seed matters")
	}
	require.Len(t, orders(1, 2, 3), 3, "a number of blocks that is no multiple of the arms")
}

// TestEvidenceRules breaks each rule in one run, and demands that the verdict
// is INVALID, that the place is named, and that the measurement ends there.
func TestEvidenceRules(t *testing.T) {
	inRun := func(n int, spoil func(*ArmOutcome)) func(int, *ArmOutcome) {
		return func(run int, o *ArmOutcome) {
			if run == n {
				spoil(o)
			}
		}
	}
	for _, c := range []struct {
		name   string
		serial func(*ArmOutcome)
		batch  func(*ArmOutcome)
		want   []string
	}{
		{"one wrong token", nil, func(o *ArmOutcome) { o.Requests[3].Tokens[7]++ },
			[]string{RuleTokensDiffer, "block 2", "request 3, token 7", "serial arm drew"}},
		{"a token too few", nil, func(o *ArmOutcome) {
			r := &o.Requests[2]
			r.Tokens, r.Timings.Tokens = r.Tokens[:10], r.Timings.Tokens[:10]
		}, []string{RuleTokenCount, "block 2", "request 2: 11 tokens asked for, 10 generated, 10 timed"}},
		{"an early end", nil, func(o *ArmOutcome) { o.Requests[1].Reason = "eos" },
			[]string{RuleRequestFailed, "request 1", `"eos"`}},
		{"a failed request", nil, func(o *ArmOutcome) { o.Requests[0].Err = errors.New("device lost") },
			[]string{RuleRequestFailed, "batch arm", "request 0: device lost"}},
		{"a failed request in the serial arm", func(o *ArmOutcome) { o.Requests[0].Err = errors.New("device lost") }, nil,
			[]string{RuleRequestFailed, "serial arm", "request 0: device lost"}},
		{"a dropped request", nil, func(o *ArmOutcome) { o.Requests = o.Requests[:3] },
			[]string{RuleRequestFailed, "4 requests went in, 3 came out"}},
		{"all requests dropped", nil, func(o *ArmOutcome) { o.Requests = nil },
			[]string{RuleRequestFailed, "4 requests went in, 0 came out"}},
		{"tokens from elsewhere", nil, func(o *ArmOutcome) { o.Steps = o.Steps[:5] },
			[]string{RuleWorkNotAccounted, "44 asked for, 20 drawn"}},
		{"a serial arm that batches", func(o *ArmOutcome) { o.Steps[9].Rows = 2 }, nil,
			[]string{RuleSerialBatched, "2 rows"}},
		{"rows run one by one", nil, func(o *ArmOutcome) {
			var steps []Step
			for _, s := range o.Steps {
				for range s.Rows {
					one := s
					one.Rows, one.Drawn = 1, 1
					steps = append(steps, one)
				}
			}
			o.Steps = steps
		}, []string{RuleNothingBatched, "4 requests"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newFakeExperiment(t, ThroughputCriterion(4), 6)
			// Run 0 is the warm-up, so run 2 is block 2.
			if c.serial != nil {
				x.serial.tamper = inRun(2, c.serial)
			}
			if c.batch != nil {
				x.batch.tamper = inRun(2, c.batch)
			}
			rec, err := x.Run(t.Context())
			require.NoError(t, err, "unusable evidence is a verdict, no error")
			require.Equal(t, 2, len(rec.Blocks), "it ends at the spoilt block")
			j := Judge(rec)
			require.Equal(t, Invalid, j.Verdict)
			for _, want := range c.want {
				require.Contains(t, j.Reason, want)
			}
			require.NotPanics(t, func() { j.Print(new(strings.Builder)) })

			x = newFakeExperiment(t, ThroughputCriterion(4), 6)
			if c.batch != nil {
				x.batch.tamper = inRun(0, c.batch)
				rec, err = x.Run(t.Context())
				require.NoError(t, err)
				require.Empty(t, rec.Blocks)
				require.Contains(t, Judge(rec).Reason, "warm-up 1", "a fault in a warm-up is a fault")
			}
		})
	}
}

// TestPromptTwice: a prompt that comes back, even blocks later, is found.
func TestPromptTwice(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 4)
	x.batch.tamper = func(int, *ArmOutcome) { clear(x.Prompts.seen) } // forget what was drawn …
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	require.Empty(t, checkPrompts(rec))
	rec.Blocks[3].Run(ArmSerial).Requests[1].Prompt = rec.Blocks[1].Run(ArmSerial).Requests[0].Prompt
	problems := checkPrompts(rec)
	require.Len(t, problems, 1)
	require.Equal(t, "prompt seen twice: block 4: request 1 repeats request 0 of block 2", problems[0].String())
}

// TestInterrupted: what was measured stays, and cannot pass for a whole session.
func TestInterrupted(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 6)
	ctx, cancel := context.WithCancelCause(t.Context())
	x.serial.tamper = func(run int, _ *ArmOutcome) {
		if run == 4 { // in block 4
			cancel(errors.New("signal"))
		}
	}
	rec, err := x.Run(ctx)
	var interrupted *ErrInterrupted
	require.ErrorAs(t, err, &interrupted)
	require.EqualError(t, err, "interrupted after 3 of 6 blocks (signal); what was measured is kept")
	require.Equal(t, 3, len(rec.Blocks))
	require.Positive(t, x.kept)
	j := Judge(rec)
	require.Equal(t, Inconclusive, j.Verdict)
	require.Contains(t, j.Reason, "3 blocks are too few")
}

func TestArmFails(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 6)
	x.Arms[1].Run = nil
	x.Arms[1].Run = failingArm(errors.New("no queue"))
	_, err := x.Run(t.Context())
	require.EqualError(t, err, "warm-up 1, batch arm: no queue")
}

func TestTooFewPrompts(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 6)
	x.Prompts = NewPrompts(1, "", 1, 10, nil)
	_, err := x.Run(t.Context())
	require.EqualError(t, err, "24 prompts of 1 tokens, none twice, cannot be drawn from a vocabulary of 10; take a larger -prompt-length")
}

func TestPrompts(t *testing.T) {
	p := NewPrompts(1, "a", 2, 8, []int32{0, 5})
	require.NoError(t, p.Enough(9))
	require.Error(t, p.Enough(10))
	seen := make(map[string]bool)
	for range 36 { // every prompt that there is
		prompt := p.Next()
		require.Len(t, prompt, 2)
		for _, id := range prompt {
			require.True(t, id >= 0 && id < 8 && id != 0 && id != 5, "token %d", id)
		}
		require.False(t, seen[digest(prompt)])
		seen[digest(prompt)] = true
	}
	long := func(seed uint64, label string) []int32 { return NewPrompts(seed, label, 32, 30000, nil).Next() }
	require.Equal(t, long(1, "a"), long(1, "a"))
	require.NotEqual(t, long(1, "a"), long(1, "b"))
	require.NotEqual(t, long(1, "a"), long(2, "a"))
}

// TestProgress: the lines say where it is, how it goes and how long it takes.
func TestProgress(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 2)
	_, err := x.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{
		"throughput, 4 concurrent: warm-up 1 of 1, 780 ms",
		"throughput, 4 concurrent: block 1 of 2, ratio 2.000, median so far 2.000, about 780 ms left",
		"throughput, 4 concurrent: block 2 of 2, ratio 2.000, median so far 2.000",
	}, x.log)
}

// TestRecordRoundTrip: a record judged after a trip through JSON gives the same
// judgement.
func TestRecordRoundTrip(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 5)
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) { return 80e6, float64(rows * tokens) }), 4, 4, 11, 8, 1e9)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	data, err := json.Marshal(rec)
	require.NoError(t, err)
	back := new(Record)
	require.NoError(t, json.Unmarshal(data, back))
	require.Equal(t, rec, back)
	var a, b strings.Builder
	Judge(rec).Print(&a)
	Judge(back).Print(&b)
	require.Equal(t, a.String(), b.String())
	assert.Contains(t, a.String(), "FAIL")
}

// TestProbesAreRationed: a dear probe comes at the beginning, and again only when
// the blocks have earned it.
func TestProbesAreRationed(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 6) // 780 ms a block
	x.Bandwidth = func() (float64, error) {
		x.clock.pass(200 * ms)
		return 10e9, nil
	}
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	var probed []int
	for i, b := range rec.Blocks {
		for range b.Probes {
			probed = append(probed, i)
		}
	}
	// The first 200 ms came before the warm-up; 4 s must have passed before more.
	require.Len(t, rec.WarmupBlocks[0].Probes, 1)
	require.Equal(t, []int{3}, probed)
	require.Equal(t, 10e9, Judge(rec).Bandwidth)

	x = newFakeExperiment(t, ThroughputCriterion(4), 6)
	x.Bandwidth = func() (float64, error) { return 0, errors.New("no memory") }
	_, err = x.Run(t.Context())
	require.EqualError(t, err, "read bandwidth in warm-up 1: no memory")
}
