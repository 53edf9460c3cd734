package validation

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/scheduler"
)

// fakeClock only moves when something takes time.
type fakeClock struct{ t time.Time }

func newFakeClock() *fakeClock {
	return &fakeClock{t: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}
func (c *fakeClock) now() time.Time       { return c.t }
func (c *fakeClock) pass(d time.Duration) { c.t = c.t.Add(d) }

// fakeArm serves requests in waves of width rows with the given costs. Its
// tokens depend on prompt and position alone, so that all fake arms agree.
type fakeArm struct {
	clock   *fakeClock
	name    string
	width   int
	prefill func(rows int) time.Duration
	decode  func(rows int) time.Duration
	between time.Duration                // after each step
	tamper  func(run int, o *ArmOutcome) // spoils the outcome of the run-th call
	runs    int
}

func (f *fakeArm) arm() Arm { return Arm{Name: f.name, Run: f.run} }

// run takes its turn from its first request to its last.
func (f *fakeArm) run(ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
	turn.Begin(0)
	if err := ctx.Err(); err != nil {
		return ArmOutcome{}, err
	}
	o := ArmOutcome{Begin: f.clock.now(), Requests: make([]RequestOutcome, len(requests))}
	for first := 0; first < len(requests); first += f.width {
		last := min(first+f.width, len(requests))
		for step := range requests[first].MaxTokens {
			begin := f.clock.now()
			cost, prompts, tokens := f.decode, 0, last-first
			if step == 0 {
				cost, prompts, tokens = f.prefill, last-first, (last-first)*len(requests[first].Prompt)
			}
			f.clock.pass(cost(last - first))
			o.Steps = append(o.Steps, Step{Begin: begin, Duration: f.clock.now().Sub(begin),
				Rows: last - first, PromptRows: prompts, Tokens: tokens, Drawn: last - first})
			for i := first; i < last; i++ {
				r := &o.Requests[i]
				if step == 0 {
					r.Timings.Submitted, r.Timings.Started, r.Timings.FirstToken = o.Begin, begin, f.clock.now()
				}
				r.Tokens = append(r.Tokens, fakeToken(requests[i].Prompt, step))
				r.Timings.Tokens = append(r.Timings.Tokens, f.clock.now())
				r.Timings.Finished, r.Reason = f.clock.now(), scheduler.FinishLength
			}
			f.clock.pass(f.between)
		}
	}
	o.End = f.clock.now()
	if f.tamper != nil {
		f.tamper(f.runs, &o)
	}
	f.runs++
	return o, nil
}

func fakeToken(prompt []int32, position int) int32 {
	h := uint32(2166136261)
	for _, t := range prompt {
		h = (h ^ uint32(t)) * 16777619
	}
	return int32((h ^ uint32(position)*0x9e3779b9) >> 1)
}

type runFunc = func(context.Context, []scheduler.Request, *Turn) (ArmOutcome, error)

func constant(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }

const ms = time.Millisecond

// fakeExperiment has a serial arm of 10 ms a step, and a batch arm whose step
// of n rows takes 10 + n ms; prefill takes 30 ms a row in both.
type fakeExperiment struct {
	Experiment
	clock         *fakeClock
	serial, batch *fakeArm
	log           []string
	kept          int
}

func newFakeExperiment(t *testing.T, c Criterion, blocks int) *fakeExperiment {
	t.Helper()
	clock := newFakeClock()
	f := &fakeExperiment{clock: clock}
	prefill := func(rows int) time.Duration { return time.Duration(rows) * 30 * ms }
	f.serial = &fakeArm{clock: clock, name: ArmSerial, width: 1, prefill: prefill, decode: constant(10 * ms)}
	f.batch = &fakeArm{clock: clock, name: ArmBatch, width: 8, prefill: prefill,
		decode: func(rows int) time.Duration { return 10*ms + time.Duration(rows)*ms }}
	f.Experiment = Experiment{
		Criterion: c, Arms: []Arm{f.serial.arm(), f.batch.arm()},
		Prompts: NewPrompts(1, c.String(), 4, 1000, nil), PromptLength: 4, MaxTokens: 11, MaxBatchSize: 8,
		Warmups: 1, Runs: blocks, Seed: 1, Rules: DefaultRules(c), Control: quietControl(), Now: clock.now,
		Log:  func(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) },
		Keep: func(*Record) { f.kept++ },
	}
	return f
}

// quietControl is that of a session in which nothing was wrong.
func quietControl() *Control {
	plan, control, _, err := planFor(Criterion{Family: FamilyControl, Concurrent: 1}, nil, 0)
	if err != nil {
		panic(err)
	}
	ones := slices.Repeat([]float64{1}, 8)
	return &Control{Serial: ones, Batch: ones, Plan: plan, ControlPlan: control}
}

func failingArm(err error) runFunc {
	return func(context.Context, []scheduler.Request, *Turn) (ArmOutcome, error) { return ArmOutcome{}, err }
}

// costOf makes the cost of a step from bytes, all of them weights, and operations.
func costOf(f func(rows, tokens, context int) (bytes, flops float64)) StepCost {
	return func(rows, tokens, context int) model.Cost {
		bytes, flops := f(rows, tokens, context)
		return model.Cost{WeightBytes: int64(bytes), FLOPs: int64(flops)}
	}
}

// trip sends a record through JSON.
func trip(t *testing.T, r *Record) *Record {
	t.Helper()
	data, err := json.Marshal(r)
	require.NoError(t, err)
	back := new(Record)
	require.NoError(t, json.Unmarshal(data, back))
	require.NoError(t, back.check())
	return back
}
