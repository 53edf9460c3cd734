package validation

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/testutil"
	"github.com/batchproof/batchproof/validation/stats"
)

// A gate is a session of the latency criterion and of four concurrent requests,
// on the real scheduler and meter, over a virtual engine in virtual time. Its
// honest engine has a latency ratio of 1 and meets the throughput target with 4.5 %
// to spare, so that 3 % more still pass and 6 % fail; its serial arm is at 75 %
// of the roofline. The fields spoil it.
type gate struct {
	slow    func(g *gate, rows int) float64                                       // factor on a step
	row     float64                                                               // batch step of n rows costs n times a step of one, times this; 0: honest
	cached  bool                                                                  // the runner answers prompts that it has seen in no time
	wrap    func(g *gate, arm Arm, serial func(string, scheduler.Config) Arm) Arm // around each arm
	bursts  float64                                                               // bursts in a second, each of 0.1 to 0.3 s, in which steps take three times as long
	watched bool                                                                  // the machine's readings show them
	speed   func(g *gate) float64                                                 // of the memory: a decode step takes as long, unless its arithmetic takes longer
	lone    bool                                                                  // no latency criterion: the throughput criterion has the session's control only

	rng     *rand.Rand
	virtual *testutil.Virtual
	arm     string
	request int                // concurrent, of the criterion
	noise   map[string]float64 // by arm, in this block
	begin   time.Time
	seen    map[int32]bool // first tokens of prompts
	burst   struct {
		until, next time.Time
		spent       time.Duration
	}
	mark struct { // the watcher's
		at    time.Time
		spent time.Duration
	}
}

const (
	gateTokens = 16
	gatePrompt = 8
	gateRows   = 4
	gateStep   = 10 * time.Millisecond
	gateFirst  = 12 * time.Millisecond // prefill of one row
	gateMore   = 6 * time.Millisecond  // of each further row
)

// gateWide is the honest step of four rows: what meets the target with 4.5 % to spare.
func gateWide() time.Duration {
	serial := gateRows * (gateFirst + (gateTokens-1)*gateStep)
	batch := time.Duration(float64(serial) / (1.045 * ThroughputCriterion(gateRows).Target))
	return (batch - gateFirst - (gateRows-1)*gateMore) / (gateTokens - 1)
}

// gateRunner takes the gate's time for each step of an arm.
type gateRunner struct {
	*testutil.Virtual
	g   *gate
	arm string
}

func (r gateRunner) Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	g, n := r.g, len(step.Rows)
	g.arm = r.arm
	cost := gateStep
	switch {
	case step.Rows[0].Prompt:
		cost = gateFirst + time.Duration(n-1)*gateMore
		first := step.Tokens[0]
		if g.cached && g.seen[first] {
			cost /= 20
		}
		g.seen[first] = true
	case g.speed != nil:
		cost = max(time.Duration(float64(gateStep)/g.speed(g)), time.Duration(n)*gateStep*9/40)
	case g.row > 0:
		cost = time.Duration(g.row * float64(n) * float64(gateStep))
	case n > 1:
		cost += time.Duration(n-1) * (gateWide() - gateStep) / (gateRows - 1)
	}
	factor := g.noise[r.arm] * math.Exp(0.01*g.rng.NormFloat64())
	if g.slow != nil {
		factor *= g.slow(g, n)
	}
	cost = time.Duration(float64(cost) * factor)
	if g.bursts > 0 {
		now := time.Now()
		for !g.burst.next.After(now) {
			g.burst.until = g.burst.next.Add(time.Duration((0.1 + 0.2*g.rng.Float64()) * float64(time.Second)))
			g.burst.next = g.burst.until.Add(time.Duration(g.rng.ExpFloat64() / g.bursts * float64(time.Second)))
		}
		if now.Before(g.burst.until) {
			g.burst.spent += 3 * cost
			cost *= 3
		}
	}
	time.Sleep(cost)
	return r.Virtual.Run(ctx, step, want, out, params)
}

// Limits, Begin and End make the gate a Watcher of its own bursts.
func (g *gate) Limits() stats.Limits { return stats.Limits{ReadingSteal: 0.03} }
func (g *gate) Begin()               { g.mark.at, g.mark.spent = time.Now(), g.burst.spent }
func (g *gate) End() []stats.Reading {
	share := (g.burst.spent - g.mark.spent).Seconds() / time.Since(g.mark.at).Seconds()
	return []stats.Reading{{Name: ReadingSteal, Value: share}}
}

// run measures a session and judges it: latency (nil with lone) and throughput.
func (g *gate) run(t *testing.T, seed uint64) (latency, throughput *Judgement) {
	t.Helper()
	g.rng, g.seen, g.begin = rand.New(rand.NewPCG(seed, 0x67617465)), make(map[int32]bool), time.Now()
	g.burst.next = g.begin.Add(time.Duration(g.rng.ExpFloat64() / max(g.bursts, 1e-9) * float64(time.Second)))
	lim := engine.Limits{MaxSequences: gateRows, MaxContext: 64, MaxStepTokens: 256, Vocab: 1 << 20, KVBlockSize: 8, KVBlocks: 64}
	all := lim
	all.MaxSequences, all.KVBlocks = 3*lim.MaxSequences, 3*lim.KVBlocks
	g.virtual, _ = testutil.NewVirtual(testutil.Cost{}, all)
	g.noise = make(map[string]float64)

	opt := &Options{MaxBatchSize: gateRows}
	experiment := func(c Criterion, control *Control) *Experiment {
		arm := func(name string, cfg scheduler.Config) Arm {
			bare := func(name string, cfg scheduler.Config) Arm {
				at := slices.Index([]string{ArmSerial, ArmBatch, ArmControl}, name)
				meter := NewMeter(gateRunner{g.virtual, g, name}, time.Now)
				return SchedulerArm(name, engine.NewPart(meter, lim, at*lim.MaxSequences, at*lim.KVBlocks), meter, cfg)
			}
			a := bare(name, cfg)
			if g.wrap != nil {
				a = g.wrap(g, a, bare)
			}
			inner := a.Run
			a.Run = func(ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
				turn.Begin(0) // in the order of the block, and once more within
				g.request, g.noise[name] = c.Concurrent, math.Exp(0.005*g.rng.NormFloat64())
				return inner(ctx, requests, turn)
			}
			return a
		}
		x := &Experiment{
			Criterion: c, Arms: Arms(c, opt, arm), Control: control,
			Prompts:      NewPrompts(seed, c.String(), gatePrompt, lim.Vocab, nil),
			PromptLength: gatePrompt, MaxTokens: gateTokens, MaxBatchSize: gateRows,
			Warmups: 1, Seed: seed, Rules: DefaultRules(c), Now: time.Now,
			Bandwidth: func() (float64, error) {
				speed := 10e9 * math.Exp(-0.05*g.rng.ExpFloat64())
				if g.speed != nil {
					speed *= g.speed(g)
				}
				return speed, nil
			},
			Roofline: NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) {
				return 75e6, float64(rows*tokens) * 1e6 // 7.5 ms at 10 GB/s
			}), c.Concurrent, gatePrompt, gateTokens, gateRows, 1e9),
		}
		if g.watched {
			x.Watchers = []Watcher{g}
		}
		x.Rules.QuietLimits = limits(x.Watchers)
		return x
	}
	c := LatencyCriterion()
	if g.lone {
		c = Criterion{Family: FamilyControl, Concurrent: 1}
	}
	first, err := experiment(c, nil).Run(t.Context())
	require.NoError(t, err)
	if !g.lone {
		latency = Judge(first)
	}
	x := experiment(ThroughputCriterion(gateRows), first.control())
	second, err := x.Run(t.Context())
	require.NoError(t, err)
	session := &Results{Criteria: []*Record{first, second}}
	session.shareSpeeds()
	if e := (&extension{x: x, rec: second, speeds: Judge(second).unmeasured()}); len(e.speeds) > 0 {
		extend(t.Context(), []*extension{e}, noLimit)
		require.NoError(t, e.err)
	}
	return latency, Judge(second)
}

// batchBy slows the batch arm, serialBy both serial arms.
func batchBy(factor float64) func(*gate, int) float64 {
	return func(g *gate, _ int) float64 {
		if g.arm == ArmBatch {
			return factor
		}
		return 1
	}
}

func serialBy(factor float64, least int) func(*gate, int) float64 {
	return func(g *gate, _ int) float64 {
		if g.arm != ArmBatch && g.request >= least {
			return factor
		}
		return 1
	}
}

// drifting makes everything slower by a fifth over the session.
func drifting(also func(*gate, int) float64) func(*gate, int) float64 {
	return func(g *gate, rows int) float64 {
		return also(g, rows) * (1 + 0.2*min(1, time.Since(g.begin).Seconds()/15))
	}
}

// onBatch spoils what the batch arm makes of more than one request.
func onBatch(spoil func(g *gate, run runFunc, ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error)) func(*gate, Arm, func(string, scheduler.Config) Arm) Arm {
	return func(g *gate, arm Arm, _ func(string, scheduler.Config) Arm) Arm {
		run := arm.Run
		if arm.Name == ArmBatch {
			arm.Run = func(ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
				if g.request == 1 {
					return run(ctx, requests, turn)
				}
				return spoil(g, run, ctx, requests, turn)
			}
		}
		return arm
	}
}

// TestGate proves that the gate says no. Engines cheat, or suffer; each must get
// the right verdict, whatever the seed. A list of verdicts means that any of them
// is right: what may never happen is the one that is missing.
func TestGate(t *testing.T) {
	type verdicts = []Verdict
	pass, fail, invalid := verdicts{Pass}, verdicts{Fail}, verdicts{Invalid}
	for _, c := range []struct {
		name       string
		gate       gate
		latency    verdicts // nil: not asked
		throughput verdicts
		says       string // of the throughput criterion's reason and cause
	}{
		{"honest", gate{}, pass, pass, ""},
		{"honest, throughput alone", gate{lone: true}, nil, pass, ""},
		{"batch arm slowed by 3 %", gate{slow: batchBy(1.03)}, pass, pass, ""},
		{"batch arm slowed by 6 %", gate{slow: batchBy(1.06)}, fail, fail, ""},
		{"batch arm slowed by 10 %", gate{slow: batchBy(1.10)}, fail, fail, ""},
		{"fake batching inside the step", gate{row: 1}, pass, fail, "the accelerator is underused: a decode step of 4.0 rows takes"},
		{"fake batching, rows one by one", gate{wrap: func(g *gate, arm Arm, bare func(string, scheduler.Config) Arm) Arm {
			if arm.Name == ArmBatch {
				return bare(ArmBatch, scheduler.Config{Policy: scheduler.Serial})
			}
			return arm
		}}, pass, invalid, RuleNothingBatched},
		{"a dropped request", gate{wrap: onBatch(func(g *gate, run runFunc, ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
			return run(ctx, requests[1:], turn)
		})}, pass, invalid, "4 requests went in, 3 came out"},
		{"one wrong token", gate{wrap: onBatch(func(g *gate, run runFunc, ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
			if g.virtual.Faults == nil {
				g.virtual.Faults = map[int]testutil.Fault{g.virtual.Steps + 5: {Token: true}}
			}
			return run(ctx, requests, turn)
		})}, pass, invalid, RuleTokensDiffer},
		{"early stop", gate{wrap: onBatch(func(g *gate, run runFunc, ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error) {
			requests[2].MaxTokens--
			return run(ctx, requests, turn)
		})}, pass, invalid, RuleTokenCount},
		{"a cached prompt", gate{cached: true}, invalid, invalid, "prompts are remembered"},
		{"a serial arm slowed by 30 %", gate{slow: serialBy(1.3, 1)}, invalid, invalid, "the serial arm is handicapped"},
		{"the same, throughput alone", gate{slow: serialBy(1.3, 1), lone: true}, nil, invalid, "the serial arm is handicapped"},
		{"a serial arm slowed by 30 % where no lone request shows it", gate{slow: serialBy(1.3, 2)}, pass, invalid, "the serial arm is handicapped"},
		{"drift of 20 %", gate{slow: drifting(batchBy(1))}, pass, pass, ""},
		{"drift of 20 %, batch arm slowed by 10 %", gate{slow: drifting(batchBy(1.1))}, fail, fail, ""},
		{"drift of the batch arm alone", gate{slow: func(g *gate, rows int) float64 {
			if g.arm != ArmBatch || g.request == 1 {
				return 1
			}
			return 0.8 + 0.04*time.Since(g.begin).Seconds()
		}}, pass, verdicts{Invalid, Fail}, ""},
		// At either speed alone the session would be sure, of the opposite.
		{"a slow memory", gate{speed: func(*gate) float64 { return 1 }}, pass, pass, ""},
		{"a fast memory", gate{speed: func(*gate) float64 { return 1.6 }}, pass, fail, "arithmetic"},
		{"a memory that becomes fast", gate{speed: func(g *gate) float64 {
			if time.Since(g.begin) < 5*time.Second {
				return 1
			}
			return 1.6
		}}, verdicts{Pass, Invalid}, verdicts{Inconclusive}, "it has no one speed to judge at"},
		{"bursts that readings show", gate{bursts: 0.05, watched: true}, pass, pass, ""},
		{"bursts that readings show, batch arm slowed by 10 %", gate{bursts: 0.05, watched: true, slow: batchBy(1.1)}, fail, fail, ""},
		{"bursts all the time", gate{bursts: 5, watched: true}, invalid, invalid, "close other programs"},
		{"bursts that nothing shows", gate{bursts: 0.1}, verdicts{Pass, Inconclusive, Invalid}, verdicts{Pass, Inconclusive, Invalid}, ""},
		{"bursts that nothing shows, batch arm slowed by 10 %", gate{bursts: 0.1, slow: batchBy(1.1)}, verdicts{Fail, Inconclusive, Invalid}, verdicts{Fail, Inconclusive, Invalid}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(gateSeeds) {
				synctest.Test(t, func(t *testing.T) {
					g := c.gate
					latency, throughput := g.run(t, seed)
					if c.latency != nil {
						require.Contains(t, c.latency, latency.Verdict, "seed %d, latency %.3f: %s\n%s", seed, latency.Ratio.Median, latency.Reason, text(latency))
					}
					require.Contains(t, c.throughput, throughput.Verdict, "seed %d, ratio %.3f: %s\n%s", seed, throughput.Ratio.Median, throughput.Reason, text(throughput))
					require.Contains(t, strings.Join([]string{throughput.Reason, throughput.Hint}, "; "), c.says, "seed %d", seed)
					replay(t, throughput)
				})
			}
		})
	}
}

// gateSeeds is the number of sessions of each case.
const gateSeeds = 3

// replay judges a record again after a trip through JSON, and demands the same
// verdict to the last bit, under both rules.
func replay(t *testing.T, j *Judgement) {
	t.Helper()
	back := trip(t, j.Record)
	back.speeds = j.Record.speeds
	requireSame(t, j, Judge(back))
	for _, share := range []float64{0.5, 0.99} {
		a, b := *j.Record, *back
		for _, r := range []*Record{&a, &b} {
			r.Rules.Against, r.Rules.Share = AgainstCeiling, share
		}
		requireSame(t, Judge(&a), Judge(&b))
	}
}

func requireSame(t *testing.T, want, got *Judgement) {
	t.Helper()
	require.Equal(t, text(want), text(got))
	bits := func(j *Judgement) string {
		return fmt.Sprintf("%x", []float64{j.Ratio.Median, j.Decision.Lower, j.Decision.Upper, j.Ceiling, j.SerialShare, j.ControlCheck.Lower, j.ControlCheck.Upper})
	}
	require.Equal(t, bits(want), bits(got))
	require.Equal(t, want.Checks, got.Checks)
	require.Equal(t, want.Account, got.Account)
}
