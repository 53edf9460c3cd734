package validation

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/scheduler/serving"
	"github.com/batchproof/batchproof/testutil"
)

// TestServing measures the same open-loop arrivals under each policy; there is no
// rule to pass but that all requests succeed, with the same tokens.
func TestServing(t *testing.T) {
	needBackend(t)
	if _, err := session.Serving(t.Output()); err != nil {
		t.Fatal(err)
	}
}

// virtualServe serves on a virtual clock.
func virtualServe(eng *engine.Engine, meter *Meter, clock *testutil.Clock) ServeFunc {
	return func(_ context.Context, cfg scheduler.Config, arrivals []scheduler.Arrival) (ArmOutcome, error) {
		meter.Take()
		o := ArmOutcome{Begin: clock.Now(), Requests: make([]RequestOutcome, len(arrivals))}
		m, err := scheduler.Simulate(eng, cfg, clock, slices.Values(arrivals), func(n int, r *scheduler.Result, err error) {
			kept := *r // valid until this returns
			kept.Tokens, kept.Timings.Tokens = slices.Clone(r.Tokens), slices.Clone(r.Timings.Tokens)
			o.Requests[n] = RequestOutcome{kept, err}
		})
		o.End, o.Steps, o.PlanTime = clock.Now(), meter.Take(), m.PlanTime
		return o, err
	}
}

// virtualScenario has three rows; a step takes 10 ms and 1 ms for each token, so
// that a lone request of 4 + 3 tokens takes 14 + 11 + 11 ms.
func virtualScenario(t *testing.T) (*Scenario, *testutil.Virtual, *[]string) {
	clock := testutil.NewClock()
	v, eng := testutil.NewVirtual(testutil.Cost{Step: 10 * ms, Row: ms}, engine.Limits{MaxSequences: 3})
	v.Sleep = clock.Sleep
	meter := NewMeter(v, clock.Now)
	eng = engine.NewWith(meter, eng.Limits())
	log := new([]string)
	return &Scenario{
		Load: serving.Load{Requests: 3, Rate: 100, Constant: true, Prompt: serving.Range{Min: 4, Max: 4}, Tokens: serving.Range{Min: 3, Max: 3}, Vocab: 1000},
		SLO:  serving.SLO{TTFT: 25 * ms, TPOT: 15 * ms},
		Rows: 3, Arms: ServingArms(3, 0, 4), Runs: 2, Seed: 1,
		Serve: virtualServe(eng, meter, clock),
		Log: func(format string, args ...any) {
			*log = append(*log, fmt.Sprintf(format, args...))
		},
	}, v, log
}

// TestServingToTheDecimal: requests come at 0, 10 and 20 ms. By hand, first
// tokens and ends are at
//
//	serial      14 36 | 50 72 | 86 108
//	static      14 36 | 54 78 | 54 78    (the second batch: 18 + 12 + 12 ms)
//	continuous  14 45 | 29 57 | 45 68    (steps of 14, 15, 16, 12, 11 ms)
func TestServingToTheDecimal(t *testing.T) {
	x, _, _ := virtualScenario(t)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	want := map[string][]float64{
		// offered, throughput, goodput, share, tok/s; means of TTFT, TPOT, ITL, E2EL
		"serial":     {100, 3 / .108, 1 / .108, 1. / 3, 9 / .108, (14 + 40 + 66) / 3., 11, 11, (36 + 62 + 88) / 3.},
		"static":     {100, 3 / .078, 1 / .078, 1. / 3, 9 / .078, (14 + 44 + 34) / 3., 35 / 3., 35 / 3., (36 + 68 + 58) / 3.},
		"continuous": {100, 3 / .068, 2 / .068, 2. / 3, 9 / .068, (14 + 19 + 25) / 3., (15.5 + 14 + 11.5) / 3, 82 / 6., (45 + 47 + 48) / 3.},
	}
	columns := rec.Columns()
	require.Len(t, columns, 3)
	for i := range columns {
		c := &columns[i]
		var got []float64
		for _, f := range servingFigures {
			if !strings.Contains(f.column, "_p5") && !strings.Contains(f.column, "_p9") {
				got = append(got, f.value(c))
			}
		}
		require.InDeltaSlice(t, want[c.Name], got, 1e-6, c.Name)
		require.Equal(t, 6, c.Latencies.Requests, "both runs")
	}
	percentile := func(column string, arm int) float64 {
		i := slices.IndexFunc(servingFigures, func(f servingFigure) bool { return f.column == column })
		require.GreaterOrEqual(t, i, 0, column)
		return servingFigures[i].value(&columns[arm])
	}
	require.InEpsilon(t, 40, percentile("ttft_p50_ms", 0), 1./128, "the 3rd of 14 14 40 40 66 66")
	require.InEpsilon(t, 66, percentile("ttft_p95_ms", 0), 1./128)
	require.InEpsilon(t, 16, percentile("itl_p99_ms", 2), 1./128)
	require.InEpsilon(t, 47, percentile("e2el_p50_ms", 2), 1./128)

	// Each run has prompts of its own, and every arm has the same.
	seen := make(map[string]bool)
	for r := range rec.Runs {
		for i, q := range rec.Runs[r].Arms[0].Requests {
			require.False(t, seen[q.Prompt])
			seen[q.Prompt] = true
			for _, arm := range rec.Runs[r].Arms {
				require.Equal(t, q.Prompt, arm.Requests[i].Prompt)
				require.Equal(t, q.Tokens, arm.Requests[i].Tokens)
			}
		}
	}
	require.NotEqual(t, rec.Runs[0].Order, rec.Runs[1].Order, "the arms take turns")

	var out strings.Builder
	rec.Print(&out)
	require.Contains(t, out.String(), "2 runs of 3 requests, arrivals at equal gaps at 100 requests/s, prompts of 4 and outputs of 3 tokens")
	require.Contains(t, out.String(), "limits TTFT ≤ 25 ms, TPOT ≤ 15 ms; nearest-rank percentiles")
	require.Regexp(t, `goodput requests/s +9\.259 +12\.82 +29\.41`, out.String())
	require.Contains(t, out.String(), "p99 of TTFT, TPOT and E2EL is the longest of 6")
}

// TestServingCalibration: what was not given is chosen by what the machine was
// seen to do. Saturated, three requests take 22 + 13 + 13 ms in a batch.
func TestServingCalibration(t *testing.T) {
	for _, c := range []struct {
		slower   time.Duration
		requests int
		log      string
	}{
		{1, 200, ""},
		// Calibration takes 4.08 s; a request of all arms 0.36 + 2/4.375 s.
		{10, 52, "serving: SHORTENED to 52 requests a run, to end within some 1m30s (-requests for more: tails need many)"},
		// It takes 40.8 s, a request 8.17 s.
		{100, 8, "serving: 8 requests a run, the least: all ends after some 2m52s"},
	} {
		x, v, log := virtualScenario(t)
		v.Cost.Step, v.Cost.Row = c.slower*10*ms, c.slower*ms
		x.Load.Rate, x.Load.Requests, x.SLO = 0, 0, serving.SLO{}
		rec := new(ServingRecord)
		require.NoError(t, x.calibrate(t.Context(), rec))
		require.Equal(t, c.requests, rec.Requests)
		if c.log != "" {
			require.Equal(t, c.log, (*log)[len(*log)-1])
		}
		slower := float64(c.slower)
		require.InDelta(t, 1/.036/slower, rec.Calibration.Capacity["serial"], 1e-9)
		require.InDelta(t, 3/.048/slower, rec.Calibration.Capacity["static"], 1e-9)
		require.InDelta(t, 6/.096/slower, rec.Calibration.Capacity["continuous"], 1e-9)
		require.InDelta(t, 43.75/slower, rec.Rate, 1e-9)
		require.InDelta(t, 5*14*ms*c.slower, rec.SLO.TTFT, 20)
		require.InDelta(t, 5*11*ms*c.slower, rec.SLO.TPOT, 20)
		require.Zero(t, rec.SLO.E2EL)
	}
}

// TestServingInRealTime: the scheduler in real time, under a synthetic clock, gives
// the record that the simulation gives.
func TestServingInRealTime(t *testing.T) {
	x, _, _ := virtualScenario(t)
	x.Load.Constant, x.Load.Requests = false, 40
	x.Load.Prompt.Max, x.Load.Tokens.Max = 150, 20
	x.Arms = ServingArms(3, 0, 150)
	want, err := x.Run(t.Context())
	require.NoError(t, err)
	require.Len(t, want.Arms, 4)
	require.Equal(t, 40, want.Runs[0].OtherTokens[armWhole]+want.Runs[0].sameTokens(), "cut otherwise, a virtual prompt gives other tokens")
	require.NotZero(t, want.Runs[0].OtherTokens[armWhole])

	synctest.Test(t, func(t *testing.T) {
		v, eng := testutil.NewVirtual(testutil.Cost{Step: 10 * ms, Row: ms}, engine.Limits{MaxSequences: 3})
		meter := NewMeter(v, time.Now)
		eng = engine.NewWith(meter, eng.Limits())
		x.Serve = SchedulerServe(eng, meter)
		got, err := x.Run(t.Context())
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got))
	})

	// A mixed step holds a chunk of 64 or a prompt of 150: that is the longest gap.
	columns := want.Columns()
	itl := func(arm int) time.Duration { return columns[arm].Latencies.ITL.Max() }
	require.LessOrEqual(t, itl(2), 10*ms+66*ms)
	require.Greater(t, itl(3), 2*itl(2))
	var out strings.Builder
	want.Print(&out)
	require.Regexp(t, `prompt chunks of 64: ITL p99 \d+(\.\d)? ms; whole prompts: \d+(\.\d)? ms \(in which \d+ of 80 requests drew other tokens`, out.String())
}

// sameTokens counts the requests that drew the same with whole prompts.
func (r *ServingRun) sameTokens() int {
	n := 0
	for i, q := range r.Arms[0].Requests {
		if q.Tokens == r.Arms[3].Requests[i].Tokens {
			n++
		}
	}
	return n
}

// TestServingRefuses: nothing is compared unless every request of every arm
// succeeded, with the same tokens.
func TestServingRefuses(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		spoil func(*ArmOutcome)
		want  string
	}{
		"other token":    {func(o *ArmOutcome) { o.Requests[1].Tokens[2]++ }, "serving: run 1: no comparison: request 1, token 2: serial drew "},
		"missing token":  {func(o *ArmOutcome) { o.Requests[0].Tokens = o.Requests[0].Tokens[:2] }, "run 1, continuous: request 0: 3 tokens asked for, 2 generated, 3 timed"},
		"failed request": {func(o *ArmOutcome) { o.Requests[2].Err = broken }, "run 1, continuous: request 2: broken"},
		"ended early":    {func(o *ArmOutcome) { o.Requests[2].Reason = scheduler.FinishEOS }, `ended by "eos"`},
	} {
		t.Run(name, func(t *testing.T) {
			x, _, _ := virtualScenario(t)
			serve, calls := x.Serve, 0
			x.Serve = func(ctx context.Context, cfg scheduler.Config, arrivals []scheduler.Arrival) (ArmOutcome, error) {
				o, err := serve(ctx, cfg, arrivals)
				if calls++; calls > 2*len(x.Arms) && cfg.Policy == scheduler.Continuous { // after the calibration
					c.spoil(&o)
				}
				return o, err
			}
			rec, err := x.Run(t.Context())
			require.ErrorContains(t, err, c.want)
			require.Empty(t, rec.Runs)
		})
	}
	t.Run("failed step", func(t *testing.T) {
		x, v, _ := virtualScenario(t)
		v.Faults = map[int]testutil.Fault{1: {Err: broken}}
		_, err := x.Run(t.Context())
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, "serving: calibration: serving: saturated, serial: request 0")
	})
	t.Run("serial with more rows", func(t *testing.T) {
		x, _, _ := virtualScenario(t)
		serve := x.Serve
		x.Serve = func(ctx context.Context, cfg scheduler.Config, arrivals []scheduler.Arrival) (ArmOutcome, error) {
			cfg.Policy = scheduler.Continuous
			cfg.MaxBatchSize = 3
			return serve(ctx, cfg, arrivals)
		}
		_, err := x.Run(t.Context())
		require.ErrorContains(t, err, "serial: a step had 2 rows")
	})
}

// TestServingInterrupted: the runs that were complete stay.
func TestServingInterrupted(t *testing.T) {
	x, _, _ := virtualScenario(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	x.Keep = func(r *ServingRecord) {
		if len(r.Runs) == 1 {
			cancel(stop)
		}
	}
	rec, err := x.Run(ctx)
	require.ErrorIs(t, err, stop)
	require.Len(t, rec.Runs, 1)
}

// TestServingSession goes the whole way on a real engine, from flags to files.
func TestServingSession(t *testing.T) {
	opt := tinyOptions(t)
	opt.ServingOptions = ServingOptions{Requests: 3, ServePrompts: Lengths{3, 70}, ServeTokens: Lengths{2, 5}}
	s := tinySession(t.Context(), opt, new(bytes.Buffer))
	var log bytes.Buffer
	rec, err := s.Serving(&log)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Len(t, rec.Runs, 2)
	require.Contains(t, log.String(), "70 % of what continuous batching served")
	require.Contains(t, log.String(), "5 times what a lone request takes")
	for _, f := range servingFigures {
		require.Contains(t, log.String(), f.name)
	}
	require.Regexp(t, `prompt chunks of 64: ITL p99 .*; whole prompts: `, log.String())
	require.Contains(t, log.String(), read(t, s.store.Dir, servingLog))

	rows, err := csv.NewReader(strings.NewReader(read(t, s.store.Dir, "serving.csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 5)
	for i, arm := range []string{"serial", "static", "continuous", "whole_prompts"} {
		require.Equal(t, arm, rows[i+1][0])
		require.Equal(t, []string{"2", "6"}, rows[i+1][6:8], "runs, requests")
	}
	r, err := Load(filepath.Join(s.store.Dir, "results.json"))
	require.NoError(t, err)
	require.Equal(t, string(rec.CSV()), string(r.Serving.CSV()), "the figures follow from the record alone")
	require.NotZero(t, r.Serving.Runs[1].Arms[3].Steps.Len())
	require.NotEmpty(t, r.Serving.Model.Name)
}
