package cuda

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
)

// comeAndGo takes four sequences through steps in which they join and leave, in
// slots that others have used, greedy and drawn.
func comeAndGo(b backend.Backend, ck *model.Checkpoint, meanwhile func(), after func(err error)) (out [4][]int32, err error) {
	e, err := engine.New(ck, b, engine.Options{MaxSequences: 3, MaxContext: 64, MaxStepTokens: 32, KVBlockSize: 8})
	if err != nil {
		return out, err
	}
	defer e.Close()
	lives := [len(out)]struct{ from, tokens int }{{0, 14}, {0, 5}, {3, 9}, {6, 8}}
	batch := &engine.Batch{Meanwhile: meanwhile}
	var of []int // the sequence of each row
	for step := range 14 {
		for i, l := range lives {
			if l.from != step {
				continue
			}
			seq, err := e.NewSequence()
			if err != nil {
				return out, err
			}
			row := engine.Row{Seq: seq, Tokens: []int32{5, 3, 9, 1, 7, 2, 8, 6, 4, 11}[:7+i], Prompt: true, Sample: true}
			if i%2 == 1 {
				row.Sampling = engine.Sampling{Temperature: 0.9, TopK: 60, TopP: 0.95, Seed: 7}
			}
			batch.Rows, of = append(batch.Rows, row), append(of, i)
		}
		err := e.Step(context.Background(), batch)
		if after != nil {
			after(err)
		}
		if err != nil {
			return out, err
		}
		for r := len(of) - 1; r >= 0; r-- {
			row, i := &batch.Rows[r], of[r]
			out[i] = append(out[i], row.Next)
			row.Tokens, row.Prompt = []int32{row.Next}, false
			if len(out[i]) == lives[i].tokens {
				row.Seq.Close()
				batch.Rows, of = slices.Delete(batch.Rows, r, r+1), slices.Delete(of, r, r+1)
			}
		}
	}
	return out, nil
}

// TestMeanwhile: what the host has to do is done once in every step, whether it
// runs as a graph or not, while the device is busy.
func TestMeanwhile(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	steps, calls := 0, 0
	_, err = comeAndGo(b, checkpoint(t, "qwen3.5-tiny"), func() {
		calls++
		require.True(t, dev.Busy)
	}, func(error) {
		steps++
		require.Equal(t, steps, calls)
		require.False(t, dev.Busy)
	})
	require.NoError(t, err)
	require.Equal(t, 14, steps)
	require.NotZero(t, dev.Graphs)
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
	require.Empty(t, dev.Misuses)
}

// TestEveryFailureMeanwhile makes each call to the device, and each command that it
// works off while the host is busy, fail in turn: the step that it belongs to
// returns it, and everything is freed.
func TestEveryFailureMeanwhile(t *testing.T) {
	ck := checkpoint(t, "qwen3.5-tiny")
	var first, last, total int
	var ends []int // of each step in the undisturbed run, as the device counts
	kinds := map[string]int{}
	for at := 0; at <= total; at++ {
		dev := fake.New()
		dev.FailAt = at
		steps, calls := 0, 0
		var failed []error
		b, err := New(dev)
		if err == nil {
			_, err = comeAndGo(b, ck, func() {
				if calls++; at == 0 && calls == 1 {
					first = dev.Count()
				}
			}, func(err error) {
				steps++
				ends = append(ends[:steps-1], dev.Count())
				if err != nil {
					failed = append(failed, err)
				}
			})
			err = errors.Join(err, b.Close())
		}
		require.Empty(t, dev.Leaks(), "after call %d failed", at)
		require.Empty(t, dev.Misuses, "after call %d failed", at)
		if at == 0 {
			require.NoError(t, err)
			last, total = ends[steps-1], dev.Count()
			require.Greater(t, total-first, 500, "the run is too short to mean anything")
			continue
		}
		require.ErrorIs(t, err, fake.ErrInjected, "call %d of %d failed", at, total)
		if at < first || at > last {
			continue
		}
		require.Len(t, failed, 1, "call %d of %d failed", at, total)
		require.True(t, ends[steps-1] >= at && (steps == 1 || ends[steps-2] < at), "call %d failed, and step %d has the blame", at, steps)
		switch text := failed[0].Error(); {
		case strings.Contains(text, ": start"):
			kinds["start"]++
			require.Equal(t, steps-1, calls, "nothing is under way")
		case strings.Contains(text, "command"):
			kinds["wait"]++
			require.ErrorIs(t, err, driver.ErrKernel)
			require.Equal(t, steps, calls)
		default: // a capture, memory to draw with
			kinds["before"]++
			require.Equal(t, steps-1, calls)
		}
	}
	require.Len(t, kinds, 3, "%v", kinds)
}

// TestFailedStepIsSticky: after a step that could not be captured, started or waited
// for nothing is asked of the device, and every further step returns the failure.
func TestFailedStepIsSticky(t *testing.T) {
	for _, c := range []struct {
		name  string
		well  int // steps before
		again bool
		at    int // call of the step
		calls int // of what is done meanwhile
	}{
		{"start of a list", 0, false, 1, 0},
		{"wait for a list", 0, false, 2, 1},
		{"capture", 1, false, 1, 1}, // noted
		{"start of a graph", 1, false, 2, 1},
		{"start again", 2, true, 1, 2}, // noted, captured
		{"wait again", 2, true, 2, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := fake.New()
			b, err := New(dev)
			require.NoError(t, err)
			buf, err := b.NewBuffer(1, 4)
			require.NoError(t, err)
			calls, params := 0, make([]backend.Sampling, 1)
			step := &backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}, Meanwhile: func() { calls++ }}
			sample := func(again bool) error {
				require.Equal(t, again, b.Repeat(t, step, []int32{0}, params))
				return b.Sample(make([]int32, 1), buf, params)
			}
			for range c.well {
				require.NoError(t, sample(false))
			}
			dev.FailAt = dev.Count() + c.at
			err = sample(c.again)
			require.ErrorIs(t, err, fake.ErrInjected)
			require.ErrorContains(t, err, "cuda: ")
			runs := dev.Runs + dev.Graphs
			require.Equal(t, err, sample(false))
			require.Equal(t, []int{runs, c.calls}, []int{dev.Runs + dev.Graphs, calls})
			require.NoError(t, b.Close())
			require.Empty(t, dev.Leaks())
			require.Empty(t, dev.Misuses)
		})
	}
}

// TestMeanwhileOnce: not when something is read within the step, and not when more is
// drawn after it.
func TestMeanwhileOnce(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	buf, err := b.NewBuffer(1, 4)
	require.NoError(t, err)
	calls := 0
	b.Begin(&backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}, Meanwhile: func() { calls++ }})
	require.NoError(t, b.Read(make([]float32, 4), buf, 0))
	require.Equal(t, 0, calls)
	for range 2 {
		require.NoError(t, b.Sample(make([]int32, 1), buf, make([]backend.Sampling, 1)))
		require.Equal(t, 1, calls)
	}
	require.NoError(t, b.Close())
	require.Empty(t, dev.Misuses)
}

// TestUseMeanwhile: to use the backend while the device computes a step is a defect
// of the caller; the device has come to rest when the panic arrives.
func TestUseMeanwhile(t *testing.T) {
	for _, c := range []struct {
		name string
		use  func(b *Backend, buf backend.Buffer, state backend.DeltaState)
	}{
		{"begin", func(b *Backend, _ backend.Buffer, _ backend.DeltaState) {
			b.Begin(&backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}})
		}},
		{"launch", func(b *Backend, buf backend.Buffer, _ backend.DeltaState) {
			b.Embed(buf, &matrix{dtype: backend.F32, outputs: 1, inputs: 4})
		}},
		{"gather", func(b *Backend, buf backend.Buffer, _ backend.DeltaState) {
			b.Gather(&buffer{tokens: 1, width: 4}, buf, []int32{1})
		}},
		{"sample", func(b *Backend, buf backend.Buffer, _ backend.DeltaState) {
			_ = b.Sample(make([]int32, 1), buf, []backend.Sampling{{Temperature: 1, Uniform: 0.5}})
		}},
		{"read", func(b *Backend, buf backend.Buffer, _ backend.DeltaState) { _ = b.Read(make([]float32, 4), buf, 0) }},
		{"allocate", func(b *Backend, _ backend.Buffer, _ backend.DeltaState) { _, _ = b.NewBuffer(1, 4) }},
		{"reset", func(b *Backend, _ backend.Buffer, state backend.DeltaState) { b.ResetSlot(state, 0) }},
		{"close", func(b *Backend, _ backend.Buffer, _ backend.DeltaState) { _ = b.Close() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := fake.New()
			b, err := New(dev)
			require.NoError(t, err)
			buf, err := b.NewBuffer(1, 4)
			require.NoError(t, err)
			state, err := b.NewDeltaState(backend.DeltaSpec{Layers: 1, Slots: 1, KeyHeads: 1, ValueHeads: 1, KeyDim: 4, ValueDim: 4, ConvWidth: 2})
			require.NoError(t, err)
			step := &backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}, Meanwhile: func() { c.use(b, buf, state) }}
			b.Begin(step)
			require.PanicsWithValue(t, "cuda: used while the device computes a step", func() {
				_ = b.Sample(make([]int32, 1), buf, []backend.Sampling{{Temperature: 1}})
			})
			require.False(t, dev.Busy)
			step.Meanwhile = nil
			b.Begin(step)
			require.NoError(t, b.Sample(make([]int32, 1), buf, make([]backend.Sampling, 1)))
			require.NoError(t, b.Close())
			require.Empty(t, dev.Leaks())
			require.Empty(t, dev.Misuses)
		})
	}
}

// TestMeanwhileTokens: steps during which the host does something else draw the
// tokens of steps that it waits for, and of the oracle.
func TestMeanwhileTokens(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		for _, preset := range tinyModels {
			t.Run(preset, func(t *testing.T) {
				ck := checkpoint(t, preset)
				b := p.open(t)
				waited, err := comeAndGo(b, ck, nil, nil)
				require.NoError(t, err)
				require.NoError(t, b.Close())
				b = p.open(t)
				calls := 0
				got, err := comeAndGo(b, ck, func() { calls++ }, nil)
				require.NoError(t, err)
				require.NoError(t, b.Close())
				require.Equal(t, waited, got)
				require.Equal(t, 14, calls)
				want, err := comeAndGo(ref.New(), ck, func() { t.Error("the oracle has no device") }, nil)
				require.NoError(t, err)
				require.Equal(t, want, got)
			})
		}
	})
}

// TestMeanwhileAllocatesNothing covers a decode step as a graph.
func TestMeanwhileAllocatesNothing(t *testing.T) {
	b, err := New(fake.New())
	require.NoError(t, err)
	e, err := engine.New(checkpoint(t, "qwen3.5-tiny"), b, engine.Options{MaxSequences: 1, MaxContext: 64})
	require.NoError(t, err)
	seq, err := e.NewSequence()
	require.NoError(t, err)
	calls := 0
	batch := &engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: []int32{1}, Sample: true}}, Meanwhile: func() { calls++ }}
	step := func() {
		if err := e.Step(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		step() // with the reset of its slot, noted, captured
	}
	require.Zero(t, testing.AllocsPerRun(40, step))
	require.Equal(t, 3+41, calls)
	require.NoError(t, e.Close())
	require.NoError(t, b.Close())
}
