package engine_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/kv"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
)

var tinyNames = []string{"random:llama-tiny", "random:qwen3.5-tiny"}

// openTiny makes an engine of a tiny random model.
func openTiny(t *testing.T, name string, b backend.Backend, opt engine.Options) *engine.Engine {
	ck, err := model.Open(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ck.Close()) })
	e, err := engine.New(ck, b, opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// eachTiny runs f for both architectures, on the oracle and on the fast backend.
func eachTiny(t *testing.T, opt engine.Options, f func(t *testing.T, e *engine.Engine)) {
	for _, name := range tinyNames {
		t.Run(name, func(t *testing.T) {
			onRef(t, func(t *testing.T, b backend.Backend) { f(t, openTiny(t, name, b, opt)) })
			onCPU(t, cpu.Options{}, func(t *testing.T, b backend.Backend) { f(t, openTiny(t, name, b, opt)) })
		})
	}
}

func newSequence(t *testing.T, e *engine.Engine) *engine.Sequence {
	t.Helper()
	seq, err := e.NewSequence()
	require.NoError(t, err)
	return seq
}

func step(t *testing.T, e *engine.Engine, rows ...engine.Row) []engine.Row {
	t.Helper()
	require.NoError(t, e.Step(context.Background(), &engine.Batch{Rows: rows}))
	require.NoError(t, e.Check())
	return rows
}

// TestStepErrors proves that each malformed or impossible batch has its
// error, and leaves everything as it was: the sequence then goes on to draw
// what it draws undisturbed.
func TestStepErrors(t *testing.T) {
	opt := engine.Options{MaxSequences: 3, MaxContext: 24, MaxStepTokens: 12, KVBlockSize: 4, KVBlocks: 8}
	eachTiny(t, opt, func(t *testing.T, e *engine.Engine) {
		prompt := []int32{3, 1, 4, 1, 5}
		quiet := newSequence(t, e)
		first := step(t, e, engine.Row{Seq: quiet, Tokens: prompt, Prompt: true, Sample: true})[0].Next
		second := step(t, e, engine.Row{Seq: quiet, Tokens: []int32{first}, Sample: true})[0].Next
		quiet.Close()

		seq, other := newSequence(t, e), newSequence(t, e)
		require.Equal(t, first, step(t, e, engine.Row{Seq: seq, Tokens: prompt, Prompt: true, Sample: true})[0].Next)
		closed := newSequence(t, e)
		closed.Close()
		closed.Close()
		foreign := newSequence(t, openTiny(t, "random:llama-tiny", ref.New(), opt))
		row := func(s *engine.Sequence, tokens ...int32) engine.Row { return engine.Row{Seq: s, Tokens: tokens} }
		many := func(n int) []int32 { return make([]int32, n) }
		vocab := int32(e.Limits().Vocab)
		for _, c := range []struct {
			name string
			rows []engine.Row
			want error
			says string
		}{
			{"no rows", nil, engine.ErrBatch, "no rows"},
			{"no sequence", []engine.Row{row(seq, 1), {Tokens: many(1)}}, engine.ErrBatch, "row 1"},
			{"closed", []engine.Row{row(seq, 1), row(closed, 1)}, engine.ErrBatch, "row 1"},
			{"foreign", []engine.Row{row(foreign, 1)}, engine.ErrBatch, "row 0"},
			{"twice", []engine.Row{row(other, 1), row(seq, 1), row(seq, 2)}, engine.ErrBatch, "row 2"},
			{"no tokens", []engine.Row{row(other, 1), row(seq)}, engine.ErrBatch, "row 1"},
			{"negative token", []engine.Row{row(other, 1), row(seq, 2, -1)}, engine.ErrToken, "-1 in row 1"},
			{"token too large", []engine.Row{row(seq, vocab)}, engine.ErrToken, "512 in row 0"},
			{"context", []engine.Row{row(other, 1), row(seq, many(20)...)}, engine.ErrContextFull, "row 1 holds 5 positions and adds 20"},
			{"step", []engine.Row{row(seq, many(6)...), row(other, many(7)...)}, engine.ErrStepTooLarge, "13 tokens, at most 12"},
		} {
			free, length, blocks := e.FreeBlocks(), seq.Len(), seq.Blocks()
			err := e.Step(context.Background(), &engine.Batch{Rows: c.rows})
			require.ErrorIs(t, err, c.want, c.name)
			require.ErrorContains(t, err, c.says, c.name)
			require.NoError(t, e.Check(), c.name)
			require.Equal(t, []int{free, length, blocks, 0}, []int{e.FreeBlocks(), seq.Len(), seq.Blocks(), other.Len()}, c.name)
		}
		done, cancel := context.WithCancel(context.Background())
		cancel()
		require.ErrorIs(t, e.Step(done, &engine.Batch{Rows: []engine.Row{row(seq, 1)}}), context.Canceled)

		require.Equal(t, second, step(t, e, engine.Row{Seq: seq, Tokens: []int32{first}, Sample: true})[0].Next)
	})
}

// TestSequencesRunOut: slots and KV blocks are limits with an error, are given
// to all rows of a step or to none, and come back.
func TestSequencesRunOut(t *testing.T) {
	opt := engine.Options{MaxSequences: 2, MaxContext: 16, MaxStepTokens: 32, KVBlockSize: 4, KVBlocks: 5}
	eachTiny(t, opt, func(t *testing.T, e *engine.Engine) {
		a, b := newSequence(t, e), newSequence(t, e)
		_, err := e.NewSequence()
		require.ErrorIs(t, err, engine.ErrTooManySequences)
		require.Zero(t, e.FreeSequences())

		fill := func(s *engine.Sequence, n int) engine.Row {
			return engine.Row{Seq: s, Tokens: make([]int32, n), Prompt: true}
		}
		both := &engine.Batch{Rows: []engine.Row{fill(a, 12), fill(b, 9)}} // 3 KV blocks each
		err = e.Step(context.Background(), both)
		require.ErrorIs(t, err, engine.ErrExhausted)
		require.ErrorIs(t, err, kv.ErrExhausted)
		require.ErrorContains(t, err, "needs 6 more, 5 of 5 are free")
		require.NoError(t, e.Check())
		require.Equal(t, []int{5, 0, 0}, []int{e.FreeBlocks(), a.Blocks(), b.Blocks()})

		step(t, e, fill(a, 12), fill(b, 8))
		require.Equal(t, []int{0, 3, 2}, []int{e.FreeBlocks(), a.Blocks(), b.Blocks()})
		require.ErrorIs(t, e.Step(context.Background(), &engine.Batch{Rows: []engine.Row{fill(b, 1)}}), engine.ErrExhausted)
		a.Close()
		require.NoError(t, e.Check())
		step(t, e, fill(b, 1))
		b.Close()
		require.Equal(t, []int{5, 2}, []int{e.FreeBlocks(), e.FreeSequences()})
		require.NoError(t, e.Check())
	})
}

// TestFailedStep: what a runner says is wrapped, and the sequences of the
// batch can be closed without a loss.
func TestFailedStep(t *testing.T) {
	broken := errors.New("device on fire")
	e := engine.NewWith(failing{broken}, engine.Limits{
		MaxSequences: 2, MaxContext: 8, MaxStepTokens: 8, Vocab: 10, KVBlockSize: 4, KVBlocks: 4,
	})
	a, b := newSequence(t, e), newSequence(t, e)
	err := e.Step(context.Background(), &engine.Batch{Rows: []engine.Row{{Seq: a, Tokens: []int32{1, 2}}, {Seq: b, Tokens: []int32{3}}}})
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "2 rows, 3 tokens")
	require.NoError(t, e.Check())
	a.Close()
	b.Close()
	require.NoError(t, e.Check())
	require.Equal(t, 4, e.FreeBlocks())
	require.NoError(t, e.Close())
}

type failing struct{ err error }

func (f failing) Run(context.Context, *backend.Step, []int32, []int32, []backend.Sampling) error {
	return f.err
}
func (failing) ResetSlot(int) {}
func (failing) Close() error  { return nil }

// calling is a runner with a device: while it computes, the host does what it has to do.
type calling struct{ failing }

func (c calling) Run(_ context.Context, step *backend.Step, _ []int32, out []int32, _ []backend.Sampling) error {
	clear(out)
	step.Meanwhile()
	return c.err
}

// TestMeanwhile: while a step is under way the engine takes no part in anything
// else, and says so; the step does not suffer.
func TestMeanwhile(t *testing.T) {
	e := engine.NewWith(calling{}, engine.Limits{
		MaxSequences: 2, MaxContext: 8, MaxStepTokens: 8, Vocab: 10, KVBlockSize: 4, KVBlocks: 4,
	})
	a, other := newSequence(t, e), newSequence(t, e)
	other.Close()
	calls := 0
	batch := &engine.Batch{Rows: []engine.Row{{Seq: a, Tokens: []int32{1}, Sample: true}}}
	batch.Meanwhile = func() {
		calls++
		require.ErrorIs(t, e.Step(context.Background(), batch), engine.ErrBusy)
		_, err := e.NewSequence()
		require.ErrorIs(t, err, engine.ErrBusy)
		require.ErrorIs(t, e.Close(), engine.ErrBusy)
		require.PanicsWithValue(t, "engine: a sequence closed while a step is under way", a.Close)
	}
	require.NoError(t, e.Step(context.Background(), batch))
	require.Equal(t, []int{1, 1}, []int{calls, a.Len()})

	// What fails before leaves the host's work undone; a panic in it ends the step.
	batch.Rows[0].Tokens = []int32{11}
	require.ErrorIs(t, e.Step(context.Background(), batch), engine.ErrToken)
	require.Equal(t, 1, calls)
	batch.Rows[0].Tokens = []int32{1}
	batch.Meanwhile = func() { panic("the host") }
	require.PanicsWithValue(t, "the host", func() { _ = e.Step(context.Background(), batch) })
	a.Close()
	require.NoError(t, e.Check())
	require.Equal(t, 4, e.FreeBlocks())
	require.NoError(t, e.Close())
}

// TestOptions: sizes that cannot be are refused with the numbers.
func TestOptions(t *testing.T) {
	ck, err := model.Open("random:llama-tiny")
	require.NoError(t, err)
	defer ck.Close()
	for _, c := range []struct {
		opt  engine.Options
		says string
	}{
		{engine.Options{MaxSequences: -1}, "must be positive"},
		{engine.Options{KVBlocks: -1}, "must be positive"},
		{engine.Options{KVBlockSize: -4}, "must be positive"},
		{engine.Options{MaxContext: 5000}, "5000 positions asked for, but the model was made for 4096"},
		{engine.Options{MaxSequences: 9, MaxStepTokens: 8}, "8 tokens a step cannot hold 9 sequences"},
	} {
		_, err := engine.New(ck, ref.New(), c.opt)
		require.ErrorContains(t, err, c.says, "%+v", c.opt)
	}
	e, err := engine.New(ck, ref.New(), engine.Options{})
	require.NoError(t, err)
	require.Equal(t, engine.Limits{
		MaxSequences: 8, MaxContext: 4096, MaxStepTokens: 256, Vocab: 512, KVBlockSize: 16, KVBlocks: 8 * 256,
	}, e.Limits())
	require.NoError(t, e.Close())
}

// TestSlotsAreClean: a sequence in a used slot and used KV blocks draws what
// the first one drew.
func TestSlotsAreClean(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	opt := engine.Options{MaxSequences: 2, MaxContext: 32, MaxStepTokens: 64, KVBlockSize: 4}
	eachTiny(t, opt, func(t *testing.T, e *engine.Engine) {
		rng := rand.New(rand.NewPCG(seed, 0))
		generate := func(prompt []int32, n int) (drawn []int32) {
			seq := newSequence(t, e)
			defer seq.Close()
			row := engine.Row{Seq: seq, Tokens: prompt, Prompt: true, Sample: true}
			for range n {
				row = step(t, e, row)[0]
				drawn = append(drawn, row.Next)
				row.Tokens, row.Prompt = []int32{row.Next}, false
			}
			return drawn
		}
		want := generate([]int32{7, 8, 9}, 12)
		for range 4 {
			prompt := make([]int32, 1+rng.IntN(20))
			for i := range prompt {
				prompt[i] = rng.Int32N(512)
			}
			generate(prompt, 1+rng.IntN(8))
			require.Equal(t, want, generate([]int32{7, 8, 9}, 12))
		}
	})
}

// TestSampledTokens depend on seed and position alone: the same in any batch
// and slot, others with another seed.
func TestSampledTokens(t *testing.T) {
	opt := engine.Options{MaxSequences: 6, MaxContext: 32, MaxStepTokens: 64, KVBlockSize: 4}
	eachTiny(t, opt, func(t *testing.T, e *engine.Engine) {
		generate := func(seeds ...uint64) [][]int32 {
			drawn := make([][]int32, len(seeds))
			rows := make([]engine.Row, len(seeds))
			for i, seed := range seeds {
				rows[i] = engine.Row{
					Seq: newSequence(t, e), Tokens: []int32{5, 6, 7}, Prompt: true, Sample: true,
					Sampling: engine.Sampling{Temperature: 1.5, TopK: 200, TopP: 0.95, Seed: seed},
				}
			}
			for range 10 {
				step(t, e, rows...)
				for i := range rows {
					drawn[i] = append(drawn[i], rows[i].Next)
					rows[i].Tokens, rows[i].Prompt = []int32{rows[i].Next}, false
				}
			}
			for _, r := range rows {
				r.Seq.Close()
			}
			return drawn
		}
		batch := generate(1, 2, 3, 1, 2)
		require.Equal(t, batch[0], batch[3])
		require.Equal(t, batch[1], batch[4])
		require.NotEqual(t, batch[0], batch[1])
		require.NotEqual(t, batch[1], batch[2])
		require.Equal(t, batch[2], generate(3)[0], "alone")
	})
}

// TestStepAllocatesNothing covers a decode step and a mixed one on the fast
// backend, greedy and drawn.
func TestStepAllocatesNothing(t *testing.T) {
	for _, name := range tinyNames {
		t.Run(name, func(t *testing.T) {
			// The runtime may allocate too: while it collects garbage or runs finalizers, and to
			// park and wake workers. So one of three tries must be free of it.
			gc := debug.SetGCPercent(-1)
			runtime.GC() // ends one that is under way
			t.Cleanup(func() { debug.SetGCPercent(gc) })
			b, err := cpu.New(cpu.Options{Threads: 1})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			e := openTiny(t, name, b, engine.Options{MaxSequences: 4, MaxContext: 4096})
			rows := make([]engine.Row, 4)
			for i := range rows {
				rows[i] = engine.Row{Seq: newSequence(t, e), Tokens: []int32{int32(i)}, Sample: true}
			}
			rows[1].Sampling = engine.Sampling{Temperature: 1, TopK: 20, TopP: 0.9, Seed: 5}
			rows[3].Tokens, rows[3].Prompt = make([]int32, 9), true
			batch := &engine.Batch{Rows: rows}
			ctx := context.Background()
			const steps = 70 // over several KV blocks; in one run, since the average rounds down
			allocations := math.Inf(1)
			for try := 0; try < 3 && allocations > 0; try++ {
				allocations = min(allocations, testing.AllocsPerRun(1, func() {
					for range steps {
						if err := e.Step(ctx, batch); err != nil {
							t.Fatal(err)
						}
					}
				}))
			}
			require.Zero(t, allocations)
		})
	}
}
