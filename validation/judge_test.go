package validation

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAsManyBlocksAsItTakes: without a fixed number, blocks end at the first
// look that decides; a ratio at the target uses them up.
func TestAsManyBlocksAsItTakes(t *testing.T) {
	for _, c := range []struct {
		name      string
		criterion Criterion
		step      func(block int) time.Duration // of the batch arm
		blocks    int
		verdict   Verdict
	}{
		{"clear pass", ThroughputCriterion(4), func(int) time.Duration { return 10 * ms }, 6, Pass},
		{"clear fail", ThroughputCriterion(4), func(int) time.Duration { return 30 * ms }, 6, Fail},
		{"latency", LatencyCriterion(), func(int) time.Duration { return 10 * ms }, 10, Pass},
		{"latency, slowed by 10 %", LatencyCriterion(), func(int) time.Duration { return 11 * ms }, 10, Fail},
		// 10.33 ms would be a ratio of exactly 3.
		{"on the fence", ThroughputCriterion(4), func(b int) time.Duration { return 10*ms + time.Duration(b%2)*ms }, 24, Inconclusive},
		{"no rule", ThroughputCriterion(3), func(int) time.Duration { return 10 * ms }, 6, Measured},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newFakeExperiment(t, c.criterion, 0)
			x.batch.prefill = constant(70 * ms)
			if c.criterion.Lower() {
				x.batch.prefill = x.serial.prefill
				control := *x.serial
				control.name = ArmControl
				x.Arms = append(x.Arms, control.arm())
			}
			x.batch.decode = func(int) time.Duration { return c.step(x.batch.runs) }
			rec, err := x.Run(t.Context())
			require.NoError(t, err)
			j := Judge(rec)
			require.Equal(t, c.verdict, j.Verdict, j.Reason)
			require.Equal(t, c.blocks, len(rec.Blocks))
			if c.criterion.Lower() {
				require.Equal(t, Pass, j.ControlCheck.Verdict, j.ControlCheck.Reason)
			}
		})
	}
}

// TestThreeBlocksDecideNothing: the interval is said to be missing.
func TestThreeBlocksDecideNothing(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 3)
	x.batch.prefill, x.batch.decode = constant(30*ms), constant(10*ms)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	require.Equal(t, Inconclusive, j.Verdict)
	require.Equal(t, "3 blocks are too few for a 95 % bound: 5 are needed, see -test-runs", j.Reason)
	require.Contains(t, text(j), "no 95 % bound from 3 blocks")

	x = newFakeExperiment(t, ThroughputCriterion(4), 5)
	x.batch.prefill, x.batch.decode = constant(30*ms), constant(10*ms)
	rec, err = x.Run(t.Context())
	require.NoError(t, err)
	require.Equal(t, Pass, Judge(rec).Verdict, "five are enough")
}

// TestControlThatDiffers: an arm that differs from itself makes the evidence unusable.
func TestControlThatDiffers(t *testing.T) {
	x := newFakeExperiment(t, LatencyCriterion(), 0)
	x.batch.decode = x.serial.decode
	control := *x.serial
	control.name, control.decode = ArmControl, constant(12*ms)
	x.Arms = append(x.Arms, control.arm())
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "identical arms differ")
}

// TestTrend: a batch arm that slows down block by block has no one ratio.
func TestTrend(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 10)
	x.batch.decode = func(int) time.Duration { return 12*ms + time.Duration(x.batch.runs)*ms/10 }
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "falling over 10 blocks")
}

// TestCauses: what spoils a ratio is what the hint names.
func TestCauses(t *testing.T) {
	for _, c := range []struct {
		name      string
		criterion Criterion
		spoil     func(x *fakeExperiment)
		want      string
	}{
		{"prefill", ThroughputCriterion(8), func(x *fakeExperiment) {
			x.serial.prefill, x.batch.prefill = constant(60*ms), func(rows int) time.Duration { return time.Duration(rows) * 60 * ms }
			x.batch.decode = constant(10 * ms)
		}, "prefill is the bottleneck: 83 % of the batch arm"},
		{"narrow batch", ThroughputCriterion(8), func(x *fakeExperiment) {
			x.serial.prefill, x.batch.prefill = constant(ms), constant(ms)
			x.batch.width, x.MaxBatchSize, x.batch.decode = 2, 2, constant(10*ms)
		}, "max batch size too small: 8 requests, -max-batch-size 2"},
		{"late rows", ThroughputCriterion(8), func(x *fakeExperiment) {
			x.serial.prefill, x.batch.prefill = constant(ms), constant(ms)
			x.batch.width, x.batch.decode = 2, constant(10*ms)
		}, "slot allocation blocks"},
		{"heavy step", ThroughputCriterion(8), func(x *fakeExperiment) {
			x.serial.prefill, x.batch.prefill = constant(ms), constant(ms)
			x.batch.decode = func(rows int) time.Duration { return time.Duration(rows) * 9 * ms }
		}, "a decode step of 8.0 rows takes 7.20 times a step of one row"},
		{"sleeping scheduler", ThroughputCriterion(2), func(x *fakeExperiment) {
			x.serial.prefill, x.batch.prefill = constant(ms), constant(ms)
			x.serial.decode, x.batch.decode, x.batch.between = constant(2*ms), constant(2*ms), ms
		}, "the scheduler: 1 ms between two steps of 2 ms; a loop that sleeps"},
		{"wide lone step", LatencyCriterion(), func(x *fakeExperiment) { x.batch.decode = constant(12 * ms) },
			"a decode step of one row takes 1.20 times as long in batch mode"},
		{"slow lone prefill", LatencyCriterion(), func(x *fakeExperiment) {
			x.batch.decode, x.batch.prefill = x.serial.decode, constant(60*ms)
		}, "prefill takes 2.00 times as long in batch mode"},
		{"lone request waits", LatencyCriterion(), func(x *fakeExperiment) {
			x.batch.decode, x.batch.between = x.serial.decode, 2*ms
		}, "the scheduler: 2 ms between two steps of 10 ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newFakeExperiment(t, c.criterion, 6)
			c.spoil(x)
			rec, err := x.Run(t.Context())
			require.NoError(t, err)
			j := Judge(rec)
			require.Equal(t, Fail, j.Verdict, j.Reason)
			require.Contains(t, j.Hint, c.want)
			require.Contains(t, text(j), "cause")
		})
	}
}

// TestPassHasNoCause keeps the hint where it belongs.
func TestPassHasNoCause(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(2), 6)
	x.batch.prefill, x.batch.decode = constant(30*ms), constant(10*ms)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	j := Judge(rec)
	require.Equal(t, Pass, j.Verdict)
	require.Empty(t, j.Hint)
	require.Contains(t, text(j), "≥ 1.70, met by 0.300")
}

func TestTable(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 6)
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) { return 60e6, 0 }), 4, 4, 11, 8, 1e12)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	other := newFakeExperiment(t, ThroughputCriterion(3), 6)
	plain, err := other.Run(t.Context())
	require.NoError(t, err)
	var out bytes.Buffer
	PrintTable(&out, []*Judgement{Judge(rec), Judge(plain)})
	require.Equal(t, strings.TrimLeft(`
criterion                 serial      batch       ratio  target  ceiling  serial roofline  verdict
single-request latency    –           –           –      ≤ 1.05  –        –                not measured
throughput, 2 concurrent  –           –           –      ≥ 1.70  –        –                not measured
throughput, 4 concurrent  7.69 req/s  15.4 req/s  2.000  ≥ 3.00  4.00     60 %             FAIL
throughput, 8 concurrent  –           –           –      ≥ 4.50  –        –                not measured
throughput, 3 concurrent  7.69 req/s  13.6 req/s  1.773  none    –        –                MEASURED
`, "\n"), out.String())
}

func text(j *Judgement) string {
	var out strings.Builder
	j.Print(&out)
	return out.String()
}

// TestTimeIsUp: an undecided criterion gives up at a look, never before the
// first, and what it says is INCONCLUSIVE.
func TestTimeIsUp(t *testing.T) {
	for budget, blocks := range map[time.Duration]int{1: 6, 7 * time.Second: 8, 8 * time.Second: 10, 0: 24} {
		x := newFakeExperiment(t, ThroughputCriterion(4), 0)
		x.Budget = budget
		x.batch.prefill = constant(70 * ms)
		x.batch.decode = func(int) time.Duration { return 10*ms + time.Duration(x.batch.runs%2)*ms } // some 0.7 s a block
		rec, err := x.Run(t.Context())
		require.NoError(t, err)
		require.Equal(t, blocks, len(rec.Blocks), "in %v", budget)
		require.Equal(t, Inconclusive, Judge(rec).Verdict)
		if budget > 0 {
			require.Contains(t, x.log[len(x.log)-1], "the time is up")
		}
	}
}

// TestBudgetShares: what is left of the time is shared by the work to come.
func TestBudgetShares(t *testing.T) {
	s := NewSession(t.Context(), Options{TimeLimit: 230 * time.Second, NumConcurrent: []int{2, 4, 8}}, nil)
	s.results.Started = time.Now().Add(time.Hour) // the clock of the limit has not begun
	left := s.Options.TimeLimit - time.Since(s.results.Started)
	share := s.budget(ThroughputCriterion(8)).Seconds() / left.Seconds()
	require.InDelta(t, 70.0/179, share, 1e-6) // 7 blocks of 10 runs, of 13 of 3, 7 of 4, 7 of 6 and these
	s.judgements = []*Judgement{{Record: &Record{Criterion: LatencyCriterion()}}, {Record: &Record{Criterion: ThroughputCriterion(2)}}}
	share = s.budget(ThroughputCriterion(4)).Seconds() / left.Seconds()
	require.InDelta(t, 42.0/112, share, 1e-6)
	s.results.Started = time.Now().Add(-time.Hour)
	require.LessOrEqual(t, s.budget(ThroughputCriterion(8)), time.Duration(1), "late, and still a limit")
	s.Options.TimeLimit = 0
	require.Zero(t, s.budget(ThroughputCriterion(8)))
}
