// Package engine runs a language model over ragged batches of sequences.
//
// An [Engine] owns the weights (on a backend that the caller hands in), the
// KV blocks and the recurrent state. [Engine.Step] takes any mix of prompt
// chunks and decode rows and runs the model once over all of them; there is
// no padding. What a row computes does not depend on the other rows, bit for
// bit. A step on a device leaves the host free: [Batch.Meanwhile] is called then.
//
// The engine does not queue, choose or wait: that is the scheduler's. It does
// not turn text into tokens.
package engine

import (
	"context"
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/kv"
	"github.com/batchproof/batchproof/engine/model"
)

// Options size an engine. Zero values take the default.
type Options struct {
	MaxSequences  int // sequences alive at a time; default 8
	MaxContext    int // positions of one sequence; default the smaller of 4096 and the model's
	MaxStepTokens int // tokens of one step, at least MaxSequences; default 256
	KVBlockSize   int // positions in a KV block; default 16
	KVBlocks      int // default: enough for MaxSequences full contexts
}

// Limits are the bounds an engine was made with.
type Limits struct {
	MaxSequences  int
	MaxContext    int
	MaxStepTokens int
	Vocab         int
	KVBlockSize   int
	KVBlocks      int
}

// Runner runs the model over one step. The engine has checked the step. The
// real one is made by [New]; tests have one with virtual costs.
type Runner interface {
	// Run computes the step, and for each token index want[i] draws out[i] with params[i].
	Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error
	// ResetSlot clears the state slot for a new sequence.
	ResetSlot(slot int)
	Close() error
}

// Engine is a model ready to run. It is not safe for concurrent use.
type Engine struct {
	runner Runner
	limits Limits
	pool   *kv.Pool
	first  int         // slot of the runner
	slots  []*Sequence // from the first on; nil is free

	// Scratch of one step, allocated once.
	step   backend.Step
	want   []int32
	out    []int32
	params []backend.Sampling
	asked  []int // batch row of each wanted token
	busy   bool  // a step is under way
}

// Sequence is the state of one sequence in an engine.
type Sequence struct {
	engine *Engine
	slot   int
	table  kv.Table
	inStep bool // in the batch being checked
}

// Sampling says how a sequence's tokens are drawn. The zero value is greedy.
// A drawn token depends on the logits, these numbers and its position alone.
type Sampling struct {
	Temperature float32 // 0: greedy
	TopK        int     // 0: all
	TopP        float32 // 0 or 1: all
	Seed        uint64
}

// Row is one sequence's share of a step.
type Row struct {
	Seq      *Sequence
	Tokens   []int32 // one or more, following what the sequence holds
	Prompt   bool    // a prompt chunk rather than the token drawn last
	Sample   bool    // draw the token that follows
	Sampling Sampling

	Next int32 // result: the token drawn, if Sample
}

// Batch is the rows of one step.
type Batch struct {
	Rows []Row

	// Meanwhile is called by Step, once, while a device computes and the host would
	// only wait; nil for nothing to do. It is not called if the host itself computes,
	// or if the step fails before it is under way. It must leave the engine alone:
	// a step, a new sequence and Close are refused with ErrBusy, and to close a
	// sequence panics.
	//
	// Note: a step in two halves, Start and Finish, was rejected: whatever stands
	// between caller and device, meters, turns of arms, shutdown, would have to know
	// of a step that outlives its call.
	Meanwhile func()
}

// New loads a checkpoint onto a backend. The engine owns neither: close the
// engine first, then the backend, then the checkpoint.
func New(ck *model.Checkpoint, b backend.Backend, opt Options) (*Engine, error) {
	lim, err := opt.limits(ck.Config)
	if err != nil {
		return nil, err
	}
	net, err := model.Load(ck, b, model.Size{
		Sequences: lim.MaxSequences, Context: lim.MaxContext, StepTokens: lim.MaxStepTokens,
		KVBlocks: lim.KVBlocks, KVBlockSize: lim.KVBlockSize,
	})
	if err != nil {
		return nil, err
	}
	return NewWith(net, lim), nil
}

// NewWith makes an engine over a given runner: the sequences and KV blocks
// are accounted for as ever, only the arithmetic is the runner's.
func NewWith(r Runner, lim Limits) *Engine { return NewPart(r, lim, 0, 0) }

// NewPart makes an engine that uses a part of a runner's room: its sequences
// from slot firstSlot and its KV blocks from block firstBlock on. Engines with
// parts that do not overlap can share a runner, if they step by turns.
func NewPart(r Runner, lim Limits, firstSlot, firstBlock int) *Engine {
	return &Engine{
		runner: r, limits: lim, first: firstSlot,
		pool:  kv.NewPool(firstBlock, lim.KVBlocks, lim.KVBlockSize),
		slots: make([]*Sequence, lim.MaxSequences),
		step: backend.Step{
			Tokens: make([]int32, 0, lim.MaxStepTokens),
			Rows:   make([]backend.Row, 0, lim.MaxSequences),
		},
		want:   make([]int32, 0, lim.MaxSequences),
		out:    make([]int32, 0, lim.MaxSequences),
		params: make([]backend.Sampling, 0, lim.MaxSequences),
		asked:  make([]int, 0, lim.MaxSequences),
	}
}

func (o Options) limits(c *model.Config) (Limits, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&o.MaxSequences, 8)
	def(&o.MaxContext, min(4096, c.MaxPositions))
	def(&o.MaxStepTokens, max(256, o.MaxSequences))
	def(&o.KVBlockSize, 16)
	if o.MaxSequences < 1 || o.MaxContext < 1 || o.KVBlockSize < 1 || o.KVBlocks < 0 {
		return Limits{}, fmt.Errorf("engine: options must be positive: %+v", o)
	}
	if o.MaxContext > c.MaxPositions {
		return Limits{}, fmt.Errorf("engine: context of %d positions asked for, but the model was made for %d", o.MaxContext, c.MaxPositions)
	}
	if o.MaxStepTokens < o.MaxSequences {
		return Limits{}, fmt.Errorf("engine: %d tokens a step cannot hold %d sequences", o.MaxStepTokens, o.MaxSequences)
	}
	def(&o.KVBlocks, o.MaxSequences*((o.MaxContext+o.KVBlockSize-1)/o.KVBlockSize))
	return Limits{
		MaxSequences: o.MaxSequences, MaxContext: o.MaxContext, MaxStepTokens: o.MaxStepTokens,
		Vocab: c.Vocab, KVBlockSize: o.KVBlockSize, KVBlocks: o.KVBlocks,
	}, nil
}

// Limits returns the bounds the engine was made with.
func (e *Engine) Limits() Limits { return e.limits }

// FreeBlocks is the number of KV blocks that no sequence owns.
func (e *Engine) FreeBlocks() int { return e.pool.Free() }

// FreeSequences is the number of sequences that can still be made.
func (e *Engine) FreeSequences() int {
	n := 0
	for _, s := range e.slots {
		if s == nil {
			n++
		}
	}
	return n
}

// NewSequence makes an empty sequence, or fails with ErrTooManySequences.
func (e *Engine) NewSequence() (*Sequence, error) {
	if e.busy {
		return nil, fmt.Errorf("new sequence: %w", ErrBusy)
	}
	for slot, s := range e.slots {
		if s == nil {
			e.runner.ResetSlot(e.first + slot)
			seq := &Sequence{engine: e, slot: slot}
			// Room for the whole context, so that no step allocates.
			seq.table.Blocks = make([]int32, 0, e.pool.BlocksFor(e.limits.MaxContext))
			e.slots[slot] = seq
			return seq, nil
		}
	}
	return nil, fmt.Errorf("%w: all %d are in use", ErrTooManySequences, len(e.slots))
}

// Len is the number of positions that the sequence holds.
func (s *Sequence) Len() int { return s.table.Len }

// Blocks is the number of KV blocks that the sequence owns.
func (s *Sequence) Blocks() int { return len(s.table.Blocks) }

// Close frees the slot and the KV blocks. Closing twice is harmless.
func (s *Sequence) Close() {
	if s.engine == nil {
		return
	}
	if s.engine.busy {
		panic("engine: a sequence closed while a step is under way")
	}
	s.engine.pool.Release(&s.table)
	s.engine.slots[s.slot] = nil
	s.engine = nil
}

// Step runs the model once over all rows and stores the drawn tokens in
// their Next. KV blocks are reserved for all rows or for none.
//
// An error before the model ran (a malformed batch, ErrExhausted, a done ctx)
// leaves every sequence as it was. After any other error the sequences of the
// batch are undefined and must be closed.
func (e *Engine) Step(ctx context.Context, batch *Batch) error {
	if e.busy {
		return ErrBusy
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := e.check(batch); err != nil {
		return err
	}
	if err := e.reserve(batch); err != nil {
		return err
	}
	e.layout(batch)
	if err := e.run(ctx); err != nil {
		return fmt.Errorf("step of %d rows, %d tokens: %w", len(batch.Rows), len(e.step.Tokens), err)
	}
	for i := range batch.Rows {
		e.pool.Advance(&batch.Rows[i].Seq.table, len(batch.Rows[i].Tokens))
	}
	for i, r := range e.asked {
		batch.Rows[r].Next = e.out[i]
	}
	return nil
}

func (e *Engine) run(ctx context.Context) error {
	e.busy = true
	defer func() { e.busy = false }()
	return e.runner.Run(ctx, &e.step, e.want, e.out, e.params)
}

func (e *Engine) check(batch *Batch) (err error) {
	rows := batch.Rows
	if len(rows) == 0 {
		return fmt.Errorf("%w: no rows", ErrBatch)
	}
	marked := 0
	defer func() {
		for i := range marked {
			rows[i].Seq.inStep = false
		}
	}()
	tokens := 0
	for i := range rows {
		r := &rows[i]
		switch {
		case r.Seq == nil || r.Seq.engine != e:
			return fmt.Errorf("%w: the sequence of row %d is closed or of another engine", ErrBatch, i)
		case r.Seq.inStep:
			return fmt.Errorf("%w: the sequence of row %d stands in it twice", ErrBatch, i)
		case len(r.Tokens) == 0:
			return fmt.Errorf("%w: row %d has no tokens", ErrBatch, i)
		case r.Seq.Len()+len(r.Tokens) > e.limits.MaxContext:
			return fmt.Errorf("%w: row %d holds %d positions and adds %d, the context is %d",
				ErrContextFull, i, r.Seq.Len(), len(r.Tokens), e.limits.MaxContext)
		}
		for _, t := range r.Tokens {
			if t < 0 || int(t) >= e.limits.Vocab {
				return fmt.Errorf("%w: %d in row %d, the vocabulary has %d", ErrToken, t, i, e.limits.Vocab)
			}
		}
		r.Seq.inStep = true
		marked = i + 1
		tokens += len(r.Tokens)
	}
	if tokens > e.limits.MaxStepTokens {
		return fmt.Errorf("%w: %d tokens, at most %d", ErrStepTooLarge, tokens, e.limits.MaxStepTokens)
	}
	return nil
}

func (e *Engine) reserve(batch *Batch) error {
	need := 0
	for i := range batch.Rows {
		need += e.pool.Need(&batch.Rows[i].Seq.table, len(batch.Rows[i].Tokens))
	}
	if need > e.pool.Free() {
		return fmt.Errorf("%w: the step needs %d more, %d of %d are free", ErrExhausted, need, e.pool.Free(), e.pool.Total())
	}
	for i := range batch.Rows {
		if err := e.pool.Reserve(&batch.Rows[i].Seq.table, len(batch.Rows[i].Tokens)); err != nil {
			panic("engine: KV blocks vanished between the check and the reservation: " + err.Error())
		}
	}
	return nil
}

func (e *Engine) layout(batch *Batch) {
	e.step.Tokens, e.step.Rows, e.step.Meanwhile = e.step.Tokens[:0], e.step.Rows[:0], batch.Meanwhile
	e.want, e.out, e.params, e.asked = e.want[:0], e.out[:0], e.params[:0], e.asked[:0]
	for i := range batch.Rows {
		r := &batch.Rows[i]
		first := len(e.step.Tokens)
		e.step.Tokens = append(e.step.Tokens, r.Tokens...)
		e.step.Rows = append(e.step.Rows, backend.Row{
			First: first, Count: len(r.Tokens), Start: r.Seq.Len(),
			Slot: e.first + r.Seq.slot, Blocks: r.Seq.table.Blocks, Prompt: r.Prompt,
		})
		if r.Sample {
			last := len(e.step.Tokens) - 1
			e.want = append(e.want, int32(last))
			e.out = append(e.out, -1)
			e.params = append(e.params, r.Sampling.at(r.Seq.Len()+len(r.Tokens)))
			e.asked = append(e.asked, i)
		}
	}
}

// at resolves the sampling of the token at a position.
func (s Sampling) at(position int) backend.Sampling {
	p := backend.Sampling{Temperature: s.Temperature, TopK: s.TopK, TopP: s.TopP}
	if s.Temperature > 0 {
		p.Uniform = uniform(s.Seed, uint64(position))
	}
	return p
}

// uniform is a counter-based random number in [0,1): two rounds of splitmix64.
func uniform(seed, counter uint64) float64 {
	return float64(mix(mix(seed)^counter)>>11) / (1 << 53)
}

func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Check verifies the accounting of sequences and KV blocks; for tests.
func (e *Engine) Check() error {
	var tables []*kv.Table
	for _, s := range e.slots {
		if s != nil {
			tables = append(tables, &s.table)
		}
	}
	return e.pool.Check(tables...)
}

// Close frees the model's memory on the backend that is not the backend's own.
// Sequences become invalid.
func (e *Engine) Close() error {
	if e.busy {
		return fmt.Errorf("close: %w", ErrBusy)
	}
	for _, s := range e.slots {
		if s != nil {
			s.Close()
		}
	}
	return e.runner.Close()
}
