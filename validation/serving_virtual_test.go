package validation

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/scheduler/serving"
	"github.com/batchproof/batchproof/testutil"
)

var planPolicies = []scheduler.Policy{scheduler.Serial, scheduler.Static, scheduler.Continuous}

// virtualPlan simulates traffic on an engine whose steps cost what a real one's
// were seen to cost.
type virtualPlan struct {
	cost     testutil.Cost
	load     serving.Load // without Requests and Rate
	requests int
	seed     uint64
}

// serve simulates one policy at one size. Of the requests only histograms are
// kept, so that their number has no bound.
func (p *virtualPlan) serve(policy scheduler.Policy, rows, requests int, rate float64, slo serving.SLO) (*serving.Latencies, error) {
	load := p.load
	load.Requests, load.Rate, load.Seed = requests, rate, p.seed
	seq, err := load.Arrivals()
	if err != nil {
		return nil, err
	}
	clock := testutil.NewClock()
	v, eng := testutil.NewVirtual(p.cost, engine.Limits{
		MaxSequences: rows, MaxContext: load.Prompt.Max + load.Tokens.Max, MaxStepTokens: rows - 1 + chunkSize, Vocab: load.Vocab,
	})
	v.Sleep = clock.Sleep
	l := &serving.Latencies{SLO: slo}
	failed := error(nil)
	_, err = scheduler.Simulate(eng, scheduler.Config{Policy: policy, WatermarkBlocks: -1, QueueCapacity: requests}, clock, seq,
		func(_ int, r *scheduler.Result, err error) {
			l.Add(r, err)
			if err != nil {
				failed = err
			}
		})
	if err == nil {
		err = failed
	}
	return l, err
}

// run plans sizes: at each, all policies at the same rate, a share of what
// continuous batching can serve at that size.
func (p *virtualPlan) run(sizes []int, slo serving.SLO, fitted int, w io.Writer) (*ServingPlan, error) {
	plan := &ServingPlan{StepNS: int64(p.cost.Step), RowNS: int64(p.cost.Row), ContextNS: int64(p.cost.Context), Requests: p.requests}
	if slo == (serving.SLO{}) {
		lone, err := p.serve(scheduler.Serial, 1, min(p.requests, 100), 1e-6, slo) // so seldom that none waits
		if err != nil {
			return nil, err
		}
		slo = serving.SLO{TTFT: sloFactor * lone.TTFT.Mean(), TPOT: sloFactor * lone.TPOT.Mean()}
	}
	plan.SLO = slo
	for _, rows := range sizes {
		capacity := make(map[scheduler.Policy]float64)
		for _, policy := range planPolicies {
			l, err := p.serve(policy, rows, min(p.requests, 20*rows), 1e9, slo) // at once
			if err != nil {
				return nil, err
			}
			capacity[policy] = l.Throughput()
		}
		rate := rateShare * capacity[scheduler.Continuous]
		var columns []ServingColumn
		for _, policy := range planPolicies {
			l, err := p.serve(policy, rows, p.requests, rate, slo)
			if err != nil {
				return nil, err
			}
			name := string(policy)
			if rate > capacity[policy] {
				name += " (falls behind)"
			}
			c := ServingColumn{name, rate, l}
			columns = append(columns, c)
			size := PlannedSize{MaxBatchSize: rows, Policy: policy, Figures: make(map[string]float64)}
			for _, f := range servingFigures {
				size.Figures[f.column] = f.value(&c)
			}
			plan.Sizes = append(plan.Sizes, size)
		}
		note := ""
		if fitted > 0 && rows > fitted {
			note = fmt.Sprintf(", extrapolated: the costs were seen up to %d rows", fitted)
		}
		fmt.Fprintf(w, "\nplan for %d rows: %d requests simulated for each policy, at %.3g requests/s, %.0f %% of the capacity of continuous batching%s\n",
			rows, p.requests, rate, 100*rateShare, note)
		fmt.Fprintf(w, "capacity, requests/s: serial %.3g, static %.3g, continuous %.3g\n",
			capacity[scheduler.Serial], capacity[scheduler.Static], capacity[scheduler.Continuous])
		PrintServing(w, columns)
	}
	fmt.Fprintf(w, "limits %s; %s. What falls behind waits the longer, the longer the load lasts.\n", sloText(slo), servingPercentile)
	return plan, nil
}

// residual is the root mean square of what a cost leaves unexplained, as a
// share of the mean step.
func residual(cost testutil.Cost, steps []testutil.StepCost) float64 {
	squares, total := 0.0, 0.0
	for _, s := range steps {
		d := s.Took - cost.Step - time.Duration(s.Tokens)*cost.Row - time.Duration(s.Positions)*cost.Context
		squares += d.Seconds() * d.Seconds()
		total += s.Took.Seconds()
	}
	n := float64(len(steps))
	return math.Sqrt(squares/n) / (total / n)
}

// TestPlanByVirtualClock fits the cost of a step to recorded steps of the real
// engine, shows how well the fit foretells other runs, and plans sizes that this
// machine cannot run. Without a backend it plans over made-up costs.
func TestPlanByVirtualClock(t *testing.T) {
	opt := &session.Options
	p := &virtualPlan{
		cost: testutil.Cost{Step: 10 * ms, Row: 200 * time.Microsecond, Context: 100 * time.Nanosecond},
		load: opt.load(1000), requests: opt.PlanRequests, seed: opt.Seed,
	}
	if opt.Backend == "" {
		t.Logf("made-up costs %+v, seed %d; with -backend cpu|cuda they are fitted to the real engine", p.cost, p.seed)
		plan, err := p.run([]int{8, 64}, opt.SLO, 0, t.Output())
		require.NoError(t, err)
		checkPlan(t, plan)
		return
	}
	require.NoError(t, session.loadServing(t.Output()))
	log := io.MultiWriter(t.Output(), session.store.Log("serving_plan.txt"))
	plan, err := planFromEngine(session.ctx, session.stand, p, opt, log)
	if err != nil {
		t.Fatal(err)
	}
	plan.Model = session.stand.Info()
	session.results.Plan = plan
	session.keep()
}

// planFromEngine fits, checks the fit, and plans.
func planFromEngine(ctx context.Context, stand *Stand, p *virtualPlan, opt *Options, log io.Writer) (*ServingPlan, error) {
	rec := &testutil.Recorder{Runner: stand.Meter}
	eng := engine.NewWith(rec, stand.Engine.Limits())
	serve := SchedulerServe(eng, stand.Meter)
	x := &Scenario{Seed: opt.Seed + 1<<32, Serve: serve} // prompts of its own
	p.load = opt.load(eng.Limits().Vocab)
	rows := opt.MaxBatchSize
	run := func(set int, arm ServingArm, requests int) (ArmOutcome, []scheduler.Arrival, error) {
		load := p.load
		load.Requests, load.Rate = requests, 1e9
		arrivals, err := x.arrivals(load, set)
		if err != nil {
			return ArmOutcome{}, nil, err
		}
		o, err := x.serve(ctx, fmt.Sprintf("recording %d", set), arm, arrivals)
		return o, arrivals, err
	}
	arms := ServingArms(rows, 0, 0)
	for _, arm := range arms { // warm-up
		if _, _, err := run(0, arm, 2); err != nil {
			return nil, err
		}
	}
	rec.Steps = rec.Steps[:0]
	for i, arm := range arms {
		if _, _, err := run(1+i, arm, map[scheduler.Policy]int{scheduler.Serial: 2}[arm.Policy]+rows*i); err != nil {
			return nil, err
		}
	}
	steps := slices.Clone(rec.Steps)
	var err error
	if p.cost, err = testutil.FitCost(steps); err != nil {
		return nil, err
	}
	left := residual(p.cost, steps)
	fmt.Fprintf(log, "step = %s + %s × tokens + %s × positions, fitted to %d steps of up to %d rows; residual %.1f %% of the mean step (root mean square)\n",
		human(p.cost.Step), human(p.cost.Row), human(p.cost.Context), len(steps), rows, 100*left)

	// What a fit is worth shows on runs that it has not seen.
	for i, arm := range arms {
		n := rows
		if arm.Policy == scheduler.Serial {
			n = 2
		}
		o, arrivals, err := run(10+i, arm, n)
		if err != nil {
			return nil, err
		}
		clock := testutil.NewClock()
		v, virtual := testutil.NewVirtual(p.cost, eng.Limits())
		v.Sleep = clock.Sleep
		meter := NewMeter(v, clock.Now)
		foretold, err := virtualServe(engine.NewWith(meter, virtual.Limits()), meter, clock)(ctx, arm.Config(n), arrivals)
		if err != nil {
			return nil, err
		}
		took, said := o.End.Sub(o.Begin), foretold.End.Sub(foretold.Begin)
		fmt.Fprintf(log, "check, %s: %d new requests took %s, the fit says %s (%+.1f %%)\n",
			arm.Name, n, human(took), human(said), 100*(said.Seconds()/took.Seconds()-1))
	}
	plan, err := p.run([]int{rows, 8 * rows, 32 * rows}, opt.SLO, rows, log)
	if err == nil {
		plan.Steps, plan.Residual = len(steps), left
	}
	return plan, err
}

// checkPlan holds a plan to what any must show.
func checkPlan(t *testing.T, plan *ServingPlan) {
	t.Helper()
	require.NotEmpty(t, plan.Sizes)
	for i := 0; i < len(plan.Sizes); i += len(planPolicies) {
		serial, static, continuous := plan.Sizes[i].Figures, plan.Sizes[i+1].Figures, plan.Sizes[i+2].Figures
		require.Greater(t, serial["ttft_mean_ms"], static["ttft_mean_ms"])
		require.Greater(t, static["ttft_mean_ms"], continuous["ttft_mean_ms"])
		require.Greater(t, static["e2el_mean_ms"], continuous["e2el_mean_ms"])
		require.GreaterOrEqual(t, continuous["goodput_rps"], static["goodput_rps"])
	}
}

// TestVirtualPlan: the same seed gives the same plan to the last digit, another
// one another; and a lone request costs what the steps cost.
func TestVirtualPlan(t *testing.T) {
	p := &virtualPlan{
		cost:     testutil.Cost{Step: 10 * ms, Row: ms, Context: 10 * time.Microsecond},
		load:     serving.Load{Prompt: serving.Range{Min: 4, Max: 100}, Tokens: serving.Range{Min: 2, Max: 30}, Vocab: 1000},
		requests: 300, seed: 1,
	}
	a, err := p.run([]int{2, 8, 32}, serving.SLO{}, 8, t.Output())
	require.NoError(t, err)
	require.Len(t, a.Sizes, 9)
	checkPlan(t, a)
	again, err := p.run([]int{2, 8, 32}, serving.SLO{}, 8, io.Discard)
	require.NoError(t, err)
	require.Equal(t, a, again)
	p.seed++
	other, err := p.run([]int{2, 8, 32}, serving.SLO{}, 8, io.Discard)
	require.NoError(t, err)
	require.NotEqual(t, a, other)

	// Steps of 4 prompt tokens, then of one at positions 5 and 6.
	p.load.Prompt, p.load.Tokens = serving.Range{Min: 4, Max: 4}, serving.Range{Min: 3, Max: 3}
	l, err := p.serve(scheduler.Continuous, 8, 5, 1, serving.SLO{})
	require.NoError(t, err)
	require.Equal(t, 14*ms+40*time.Microsecond, l.TTFT.Mean())
	require.Equal(t, 36*ms+150*time.Microsecond, l.E2EL.Mean())
	require.Equal(t, 11*ms+55*time.Microsecond, l.TPOT.Mean())
}

// TestResidual on a case by hand: errors of 1, −1 and 0 ms at steps of 10 ms on average.
func TestResidual(t *testing.T) {
	cost := testutil.Cost{Step: 4 * ms, Row: ms, Context: ms}
	steps := []testutil.StepCost{{Tokens: 1, Positions: 2, Took: 8 * ms}, {Tokens: 2, Positions: 4, Took: 9 * ms}, {Tokens: 3, Positions: 6, Took: 13 * ms}}
	require.InDelta(t, math.Sqrt(2./3)/10, residual(cost, steps), 1e-12)
}

// TestPlanFromEngine goes the way from a real engine's steps to a plan.
func TestPlanFromEngine(t *testing.T) {
	opt := tinyOptions(t)
	opt.ServingOptions = ServingOptions{ServePrompts: Lengths{3, 70}, ServeTokens: Lengths{2, 5}, PlanRequests: 50}
	stand, err := Open(&opt, opt.Checkpoint, opt.servingShape())
	require.NoError(t, err)
	defer func() { require.NoError(t, stand.Close()) }()
	p := &virtualPlan{requests: opt.PlanRequests, seed: opt.Seed}
	plan, err := planFromEngine(t.Context(), stand, p, &opt, t.Output())
	require.NoError(t, err)
	require.Positive(t, plan.StepNS+plan.RowNS+plan.ContextNS)
	require.Greater(t, plan.Steps, 10)
	require.Positive(t, plan.Residual)
	require.Len(t, plan.Sizes, 9)
}
