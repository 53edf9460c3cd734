package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

const blockSize = 16 // positions in a KV block

// workload is one kind of step to measure.
type workload struct {
	rows    int
	tokens  int // of each row: 1 decodes, more is a prompt
	context int // positions before the first measured step; decode only
}

func (w workload) String() string {
	if w.tokens > 1 {
		return fmt.Sprintf("prefill of %d tokens", w.tokens)
	}
	return fmt.Sprintf("decode, %d × 1 token from context %d", w.rows, w.context)
}

// keys identify the workload in benchmark names.
func (w workload) keys() string {
	return fmt.Sprintf("rows=%d/tokens=%d/context=%d", w.rows, w.tokens, w.context)
}

// round is what a workload did in one round: medians over its steps.
type round struct {
	machine machine
	context int     // positions after a step
	seconds float64 // of a step
	ops     []opRound
	pauses  float64 // per step
	mallocs float64 // per step
}

// floor is the least time of a step: its ops run one after another.
func (r *round) floor() (seconds float64) {
	for _, o := range r.ops {
		seconds += o.work.floor(r.machine)
	}
	return seconds
}

// least is the work of a step.
func (r *round) least() (w work) {
	for _, o := range r.ops {
		w.add(o.work)
	}
	return w
}

// opRound is one op's share of a step: all its calls.
type opRound struct {
	calls   int
	work    work
	seconds float64
}

// stand is a model on the CPU backend, metered.
type stand struct {
	ck       *model.Checkpoint
	cpu      *cpu.Backend
	meter    *meter
	engine   *engine.Engine
	load     time.Duration
	threads  int
	resident float64 // growth of the process while loading
	rng      *rand.Rand
	groups   map[workload]*group
}

// options are the command line's.
type options struct {
	checkpoint string
	threads    int
	isa        cpu.ISA
	precision  cpu.Precision
	rounds     int
	steps      int // of each decode workload in a round
	probe      func(*cpu.Backend) (machine, error)
}

func open(opt options, workloads []workload) (_ *stand, err error) {
	if opt.threads == 0 {
		opt.threads = runtime.GOMAXPROCS(0)
	}
	s := &stand{threads: opt.threads, rng: rand.New(rand.NewPCG(1, 2)), groups: make(map[workload]*group)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	before, start := residentBytes(), time.Now()
	if s.ck, err = model.Open(opt.checkpoint); err != nil {
		return s, err
	}
	if s.cpu, err = cpu.New(cpu.Options{Threads: opt.threads, ISA: opt.isa, Precision: opt.precision}); err != nil {
		return s, err
	}
	s.meter = newMeter(s.cpu, s.ck.DType())
	size := engine.Options{KVBlockSize: blockSize, MaxStepTokens: 256}
	for _, w := range workloads {
		reach := w.tokens
		if w.tokens == 1 {
			reach = w.context + opt.rounds*(opt.steps+1)
		}
		size.MaxSequences += w.rows
		size.MaxContext = max(size.MaxContext, reach)
		size.MaxStepTokens = max(size.MaxStepTokens, w.rows*w.tokens)
		size.KVBlocks += w.rows * (reach/blockSize + 1)
	}
	size.MaxStepTokens = max(size.MaxStepTokens, size.MaxSequences)
	if s.engine, err = engine.New(s.ck, s.meter, size); err != nil {
		return s, err
	}
	s.load = time.Since(start)
	runtime.GC()
	s.resident = residentBytes() - before
	return s, nil
}

func (s *stand) close() error {
	var errs []error
	if s.engine != nil {
		errs = append(errs, s.engine.Close())
	}
	if s.cpu != nil {
		errs = append(errs, s.cpu.Close())
	}
	if s.ck != nil {
		errs = append(errs, s.ck.Close())
	}
	return errors.Join(errs...)
}

// group is the sequences of a decode workload, which live through all rounds.
type group struct {
	batch engine.Batch
	next  [][1]int32
}

func (s *stand) newGroup(rows int) (*group, error) {
	g := &group{batch: engine.Batch{Rows: make([]engine.Row, rows)}, next: make([][1]int32, rows)}
	for i := range g.batch.Rows {
		seq, err := s.engine.NewSequence()
		if err != nil {
			g.close()
			return nil, err
		}
		g.batch.Rows[i].Seq = seq
	}
	return g, nil
}

func (g *group) close() {
	for i := range g.batch.Rows {
		if seq := g.batch.Rows[i].Seq; seq != nil {
			seq.Close()
		}
	}
}

// prompt fills every row with random tokens.
func (s *stand) prompt(g *group, tokens int) {
	for i := range g.batch.Rows {
		r := &g.batch.Rows[i]
		r.Tokens, r.Prompt, r.Sample = make([]int32, tokens), true, true
		for t := range r.Tokens {
			r.Tokens[t] = s.rng.Int32N(int32(s.ck.Config.Vocab))
		}
	}
}

// step runs the model, and lets every row feed the token that it drew.
func (s *stand) step(ctx context.Context, g *group) error {
	if err := s.engine.Step(ctx, &g.batch); err != nil {
		return err
	}
	for i := range g.batch.Rows {
		r := &g.batch.Rows[i]
		g.next[i][0] = r.Next
		r.Tokens, r.Prompt, r.Sample = g.next[i][:], false, true
	}
	return nil
}

// decoding makes the sequences of a decode workload, and fills their context.
func (s *stand) decoding(ctx context.Context, w workload) (*group, error) {
	g, err := s.newGroup(w.rows)
	if err != nil {
		return nil, err
	}
	s.groups[w] = g
	chunk := max(1, s.engine.Limits().MaxStepTokens/w.rows)
	for left := w.context; left > 0; left -= chunk {
		s.prompt(g, min(left, chunk))
		if err := s.step(ctx, g); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// measure takes turns between the workloads, round by round, with the machine's
// limits measured in every round.
func (s *stand) measure(ctx context.Context, opt options, workloads []workload, progress func(string)) ([][]round, error) {
	results := make([][]round, len(workloads))
	// Long contexts first, while their KV blocks can still be neighbours: with an
	// engine's own default there is room for that.
	longest := slices.SortedStableFunc(slices.Values(workloads), func(a, b workload) int { return b.context - a.context })
	for _, w := range longest {
		if w.tokens == 1 {
			progress(fmt.Sprintf("filling the context: %v", w))
			if _, err := s.decoding(ctx, w); err != nil {
				return nil, err
			}
		}
	}
	for i := range opt.rounds {
		progress(fmt.Sprintf("round %d of %d", i+1, opt.rounds))
		m, err := opt.probe(s.cpu)
		if err != nil {
			return nil, err
		}
		for k, w := range workloads {
			r, err := s.round(ctx, w, opt.steps)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", w, err)
			}
			r.machine = m
			results[k] = append(results[k], r)
		}
	}
	return results, nil
}

// round measures one workload once.
func (s *stand) round(ctx context.Context, w workload, steps int) (r round, err error) {
	if w.tokens > 1 {
		steps = 1
	}
	// All room is made before: what allocates then is the step.
	total, ops := make([]float64, steps), make([][]tally, steps)
	for i := range ops {
		ops[i] = make([]tally, 0, 64)
	}
	g, context := s.groups[w], 0
	if w.tokens > 1 {
		if g, err = s.newGroup(w.rows); err != nil {
			return r, err
		}
		defer g.close()
		s.prompt(g, w.tokens)
	} else if err = s.step(ctx, g); err != nil { // the first step after a change of workload does not count
		return r, err
	}
	s.meter.take(ops[0])
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	paused := pauses()
	for i := range steps {
		start := time.Now()
		if err = s.step(ctx, g); err != nil {
			return r, err
		}
		total[i] = time.Since(start).Seconds()
		ops[i] = s.meter.take(ops[i])
		context += g.batch.Rows[0].Seq.Len()
	}
	r.pauses = (pauses() - paused) / float64(steps)
	runtime.ReadMemStats(&after)
	r.mallocs = float64(after.Mallocs-before.Mallocs) / float64(steps)

	r.seconds = median(total)
	r.context = context / steps
	for i := range ops[0] {
		each := make([]float64, steps)
		o := opRound{calls: ops[0][i].calls}
		for k := range ops {
			each[k] = ops[k][i].elapsed.Seconds()
			o.work.add(ops[k][i].work.over(float64(steps)))
		}
		o.seconds = median(each)
		r.ops = append(r.ops, o)
	}
	return r, nil
}

// probeMachine measures bandwidth and peak with the backend's own workers.
func probeMachine(b *cpu.Backend) (m machine, err error) {
	if m.bandwidth, err = b.MeasureReadBandwidth(); err != nil {
		return m, err
	}
	if m.products, err = b.MeasurePeakFLOPs(); err != nil {
		return m, err
	}
	m.peak, err = b.MeasureF32PeakFLOPs()
	return m, err
}

// median of a copy; of an even number the mean of the middle two.
func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	n := len(x)
	return (x[(n-1)/2] + x[n/2]) / 2
}

// over is the median of a value over the rounds.
func over(rounds []round, f func(r *round) float64) float64 {
	x := make([]float64, len(rounds))
	for i := range rounds {
		x[i] = f(&rounds[i])
	}
	return median(x)
}

var _ backend.Backend = (*meter)(nil)
