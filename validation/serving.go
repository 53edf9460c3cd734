package validation

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/scheduler/serving"
)

// Scenario serves the same open-loop arrivals in several ways, one after
// another on one engine, and writes down what each caller got.
//
// A run is one set of arrivals, with prompts of its own, served by every arm.
// The arms of a run take turns in an order drawn from the seed, so that a drift
// of the machine meets them alike.
type Scenario struct {
	Load serving.Load // Rate and Requests may be 0, to be chosen by the calibration; the seeds of the runs come from Seed
	SLO  serving.SLO  // all zero: chosen by the calibration
	Rows int          // of a step, at most
	Arms []ServingArm // the first is the reference
	Runs int
	Seed uint64

	Serve ServeFunc
	Log   func(string, ...any)
	Keep  func(*ServingRecord) // called whenever the record has grown; nil for none
}

// ServingArm is one way to serve.
type ServingArm struct {
	Name         string           `json:"name"`
	Policy       scheduler.Policy `json:"policy"`
	MaxBatchSize int              `json:"max_batch_size"`
	TokenBudget  int              `json:"token_budget"`
	ChunkSize    int              `json:"chunk_size"`
}

// Config is the scheduler's for so many requests: the load is open, so none is
// turned away.
func (a *ServingArm) Config(requests int) scheduler.Config {
	return scheduler.Config{Policy: a.Policy, MaxBatchSize: a.MaxBatchSize, TokenBudget: a.TokenBudget, ChunkSize: a.ChunkSize, QueueCapacity: requests}
}

// ServeFunc serves arrivals in open loop, and returns when the last has ended. An
// error means that they could not be served at all; what befell a request is in
// its outcome.
type ServeFunc func(ctx context.Context, cfg scheduler.Config, arrivals []scheduler.Arrival) (ArmOutcome, error)

const (
	armWhole = "whole prompts"

	rateShare   = 0.7 // of the capacity of continuous batching, unless a rate is given
	sloFactor   = 5   // times what a lone request takes, unless SLOs are given
	servingTime = 90 * time.Second
	minRequests = 8   // of a run
	maxRequests = 200 // of a run, unless more are asked for
)

// ServingArms are the policies, all with the same rows, budget and prompt
// chunks, and continuous batching once more with prompts that are not cut.
// The budget holds one chunk beside the decode rows, unless another is given.
func ServingArms(rows, budget, longest int) []ServingArm {
	if budget == 0 {
		budget = rows - 1 + chunkSize
	}
	arms := make([]ServingArm, 0, 4)
	for _, p := range []scheduler.Policy{scheduler.Serial, scheduler.Static, scheduler.Continuous} {
		width := rows
		if p == scheduler.Serial {
			width = 1
		}
		arms = append(arms, ServingArm{string(p), p, width, budget, chunkSize})
	}
	if longest > chunkSize {
		arms = append(arms, ServingArm{armWhole, scheduler.Continuous, rows, max(budget, rows-1+longest), longest})
	}
	return arms
}

// SchedulerServe serves in real time, by a scheduler of its own for each run.
func SchedulerServe(eng *engine.Engine, meter *Meter) ServeFunc {
	return func(ctx context.Context, cfg scheduler.Config, arrivals []scheduler.Arrival) (o ArmOutcome, err error) {
		sched, err := scheduler.New(eng, cfg)
		if err != nil {
			return o, err
		}
		meter.Take()
		runtime.GC() // no arm pays for the other's garbage
		o.Requests = make([]RequestOutcome, len(arrivals))
		o.Begin = time.Now()
		err = serving.Drive(ctx, sched, slices.Values(arrivals), func(n int, r *scheduler.Result, err error) {
			o.Requests[n] = RequestOutcome{*r, err}
		})
		o.End = time.Now()
		if err != nil {
			sched.Abort()
			return o, err
		}
		err = sched.Close(context.WithoutCancel(ctx))
		o.PlanTime, o.Steps = sched.Metrics().PlanTime, meter.Take()
		return o, err
	}
}

// Run measures. It returns the record also beside an error, holding the runs that
// were complete by then.
func (x *Scenario) Run(ctx context.Context) (*ServingRecord, error) {
	rec := &ServingRecord{
		Constant: x.Load.Constant, Prompts: Lengths(x.Load.Prompt), Tokens: Lengths(x.Load.Tokens),
		Arms: x.Arms, Runs: []ServingRun{},
	}
	if err := x.calibrate(ctx, rec); err != nil {
		return rec, fmt.Errorf("serving: calibration: %w", err)
	}
	x.keep(rec)
	for r, order := range orders(x.Seed, len(x.Arms), x.Runs) {
		where := fmt.Sprintf("run %d", r+1)
		load := x.Load
		load.Rate, load.Requests = rec.Rate, rec.Requests
		arrivals, err := x.arrivals(load, r)
		if err != nil {
			return rec, err
		}
		requests := make([]scheduler.Request, len(arrivals))
		for i := range arrivals {
			requests[i] = arrivals[i].Request
		}
		outcomes := make([]*ArmOutcome, len(x.Arms))
		run := ServingRun{Seed: x.seed(r), Arms: make([]ServingArmRun, len(x.Arms))}
		for _, a := range order {
			o, err := x.serve(ctx, where, x.Arms[a], arrivals)
			if err != nil {
				return rec, err
			}
			outcomes[a] = &o
			run.Arms[a] = o.served(x.Arms[a].Name, arrivals, requests)
			x.log("serving: %s of %d, %s: %d requests in %s", where, x.Runs, x.Arms[a].Name, len(arrivals), human(o.End.Sub(o.Begin)))
		}
		if run.OtherTokens, err = x.compare(where, requests, outcomes); err != nil {
			return rec, err
		}
		run.Order = order
		rec.Runs = append(rec.Runs, run)
		x.keep(rec)
	}
	return rec, nil
}

// serve runs one arm, and insists that every request got what it asked for.
func (x *Scenario) serve(ctx context.Context, where string, arm ServingArm, arrivals []scheduler.Arrival) (ArmOutcome, error) {
	o, err := x.Serve(ctx, arm.Config(len(arrivals)), arrivals)
	if err == nil {
		err = context.Cause(ctx) // its requests were cancelled
	}
	if err != nil {
		return o, fmt.Errorf("serving: %s, %s: %w", where, arm.Name, err)
	}
	for i := range arrivals {
		r, asked := &o.Requests[i], arrivals[i].Request.MaxTokens
		switch {
		case r.Err != nil:
			return o, fmt.Errorf("serving: %s, %s: request %d: %w", where, arm.Name, i, r.Err)
		case len(r.Tokens) != asked || len(r.Timings.Tokens) != asked || r.Reason != scheduler.FinishLength:
			return o, fmt.Errorf("serving: %s, %s: request %d: %d tokens asked for, %d generated, %d timed, ended by %q",
				where, arm.Name, i, asked, len(r.Tokens), len(r.Timings.Tokens), r.Reason)
		}
	}
	if arm.Policy == scheduler.Serial {
		for _, s := range o.Steps {
			if s.Rows > 1 {
				return o, fmt.Errorf("serving: %s, %s: a step had %d rows", where, arm.Name, s.Rows)
			}
		}
	}
	return o, nil
}

// compare refuses arms that did other work than the reference: with the same
// prompt chunks, the tokens are the same. Other chunks may round differently;
// for those arms it counts the requests with other tokens.
func (x *Scenario) compare(where string, requests []scheduler.Request, outcomes []*ArmOutcome) (map[string]int, error) {
	other := make(map[string]int)
	for a := 1; a < len(outcomes); a++ {
		for i := range requests {
			want, got := outcomes[0].Requests[i].Tokens, outcomes[a].Requests[i].Tokens
			at := firstDifference(want, got)
			if at < 0 {
				continue
			}
			if x.Arms[a].ChunkSize == x.Arms[0].ChunkSize {
				return nil, fmt.Errorf("serving: %s: no comparison: request %d, token %d: %s drew %d, %s %d",
					where, i, at, x.Arms[0].Name, want[at], x.Arms[a].Name, got[at])
			}
			other[x.Arms[a].Name]++
		}
	}
	return other, nil
}

// Calibration is what the machine was seen to do before the runs, to choose the
// rate, the limits and the number of requests by.
type Calibration struct {
	Capacity map[string]float64 `json:"capacity_rps"` // by arm: requests ÷ makespan of requests submitted at once
	LoneTTFT time.Duration      `json:"lone_ttft_ns"` // mean of the serial arm, without waiting
	LoneTPOT time.Duration      `json:"lone_tpot_ns"` // "
}

// calibrate also warms all arms.
func (x *Scenario) calibrate(ctx context.Context, rec *ServingRecord) error {
	spent := time.Duration(0)
	c := Calibration{Capacity: make(map[string]float64)}
	for a, arm := range x.Arms {
		load := x.Load
		load.Rate, load.Requests = 1, x.Rows
		switch arm.Policy {
		case scheduler.Serial:
			load.Requests = min(4, x.Rows)
		case scheduler.Continuous: // rows join: its capacity shows over more than one batch
			load.Requests = 2 * x.Rows
		}
		arrivals, err := x.arrivals(load, -1-2*a)
		if err != nil {
			return err
		}
		warm, err := x.arrivals(load, -2-2*a)
		if err != nil {
			return err
		}
		warm = warm[:min(2, len(warm))]
		for _, set := range [][]scheduler.Arrival{warm, arrivals} {
			for i := range set {
				set[i].At = 0
			}
			o, err := x.serve(ctx, "saturated", arm, set)
			if err != nil {
				return err
			}
			elapsed := o.End.Sub(o.Begin)
			spent += elapsed
			c.Capacity[arm.Name] = float64(len(set)) / elapsed.Seconds()
			if arm.Policy == scheduler.Serial {
				c.LoneTTFT, c.LoneTPOT = lone(&o)
			}
		}
		x.log("serving: %s serves %d requests, submitted at once, at %.3g requests/s", arm.Name, len(arrivals), c.Capacity[arm.Name])
	}
	rec.Calibration = c
	rec.Rate, rec.SLO, rec.Requests = x.Load.Rate, x.SLO, x.Load.Requests
	if rec.Rate == 0 {
		rec.Rate = rateShare * c.Capacity[string(scheduler.Continuous)]
		x.log("serving: rate %.3g requests/s, %.0f %% of what continuous batching served (-rate for another)", rec.Rate, 100*rateShare)
	}
	if rec.SLO == (serving.SLO{}) {
		rec.SLO = serving.SLO{TTFT: sloFactor * c.LoneTTFT, TPOT: sloFactor * c.LoneTPOT}
		x.log("serving: limits %s, %d times what a lone request takes (-slo-ttft, -slo-tpot, -slo-e2el for others)", sloText(rec.SLO), sloFactor)
	}
	if rec.Requests == 0 {
		each := 0.0 // seconds that a request adds to a run of all arms
		for _, arm := range x.Arms {
			each += 1 / min(rec.Rate, c.Capacity[arm.Name])
		}
		fit := math.Floor(max(0, (servingTime-spent).Seconds()) / (each * float64(x.Runs)))
		rec.Requests = int(min(max(fit, minRequests), maxRequests))
		switch {
		case fit < minRequests:
			x.log("serving: %d requests a run, the least: all ends after some %s", rec.Requests,
				human(spent+time.Duration(each*float64(rec.Requests*x.Runs)*1e9)))
		case fit < maxRequests:
			x.log("serving: SHORTENED to %d requests a run, to end within some %s (-requests for more: tails need many)", rec.Requests, servingTime)
		}
	}
	return nil
}

// lone is what the requests of a serial run took, waiting aside.
func lone(o *ArmOutcome) (ttft, tpot time.Duration) {
	n := time.Duration(len(o.Requests))
	for i := range o.Requests {
		t := &o.Requests[i].Timings
		ttft += t.Prefill() / n
		if steps := len(t.Tokens) - 1; steps > 0 {
			tpot += t.Decode() / time.Duration(steps) / n
		}
	}
	return ttft, tpot
}

func (x *Scenario) arrivals(load serving.Load, run int) ([]scheduler.Arrival, error) {
	load.Seed = x.seed(run)
	seq, err := load.Arrivals()
	if err != nil {
		return nil, err
	}
	return slices.Collect(seq), nil
}

// seed gives every run prompts of its own.
func (x *Scenario) seed(run int) uint64 { return x.Seed + uint64(run)*0x9e3779b97f4a7c15 }

func (x *Scenario) keep(rec *ServingRecord) {
	if x.Keep != nil {
		x.Keep(rec)
	}
}

func (x *Scenario) log(format string, args ...any) {
	if x.Log != nil {
		x.Log(format, args...)
	}
}
