package testutil

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
)

// feed runs a sequence in rows as given, and returns the token drawn last.
func feed(t *testing.T, eng *engine.Engine, seq *engine.Sequence, rows ...engine.Row) int32 {
	t.Helper()
	var b engine.Batch
	for _, r := range rows {
		r.Seq, r.Sample = seq, true
		b.Rows = []engine.Row{r}
		require.NoError(t, eng.Step(t.Context(), &b))
	}
	return b.Rows[0].Next
}

// A token depends on all that a real backend's result may depend on, and on
// nothing else.
func TestVirtualTokens(t *testing.T) {
	_, eng := NewVirtual(Cost{}, engine.Limits{Vocab: 1 << 30, KVBlockSize: 2})
	alone := func(rows ...engine.Row) int32 {
		seq, err := eng.NewSequence()
		require.NoError(t, err)
		defer seq.Close()
		return feed(t, eng, seq, rows...)
	}
	chunk := func(tokens ...int32) engine.Row { return engine.Row{Tokens: tokens, Prompt: true} }
	decode := func(token int32) engine.Row { return engine.Row{Tokens: []int32{token}} }
	want := alone(chunk(1, 2, 3), decode(4))
	assert.Equal(t, want, alone(chunk(1, 2, 3), decode(4)), "again, in a slot and KV blocks that were used")
	for name, other := range map[string]int32{
		"another token":              alone(chunk(1, 2, 9), decode(4)),
		"another order":              alone(chunk(2, 1, 3), decode(4)),
		"another chunk":              alone(chunk(1, 2), chunk(3), decode(4)),
		"a chunk for a decode row":   alone(chunk(1, 2, 3), chunk(4)),
		"a prompt in one chunk more": alone(chunk(1, 2, 3, 4)),
	} {
		assert.NotEqual(t, want, other, name)
	}

	hot := chunk(1, 2, 3)
	hot.Sampling = engine.Sampling{Temperature: 1, Seed: 1}
	again := hot
	again.Sampling.Seed = 2
	assert.NotEqual(t, alone(hot), alone(again))
	assert.Equal(t, alone(hot), alone(hot))

	// Beside another row it is the same.
	a, err := eng.NewSequence()
	require.NoError(t, err)
	b, err := eng.NewSequence()
	require.NoError(t, err)
	batch := engine.Batch{Rows: []engine.Row{{Seq: b, Tokens: []int32{7, 7}, Prompt: true}, {Seq: a, Tokens: []int32{1, 2, 3}, Prompt: true}}}
	require.NoError(t, eng.Step(t.Context(), &batch))
	assert.Equal(t, want, feed(t, eng, a, decode(4)))
}

// A step costs what its rows and positions cost; faults come at their steps.
func TestVirtualCostAndFaults(t *testing.T) {
	v, eng := NewVirtual(Cost{Step: 1000, Row: 100, Context: 1}, engine.Limits{})
	clock := NewClock()
	v.Sleep = clock.Sleep
	begun := clock.Now()
	broken := errors.New("broken")
	v.Faults = map[int]Fault{2: {Slow: time.Second}, 3: {Err: broken}, 4: {Panic: broken}}
	seq, err := eng.NewSequence()
	require.NoError(t, err)
	batch := engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: []int32{1, 2, 3, 4, 5}, Prompt: true, Sample: true}}}
	require.NoError(t, eng.Step(t.Context(), &batch))
	assert.Equal(t, time.Duration(1000+500+5), clock.Now().Sub(begun))
	batch.Rows[0].Tokens = []int32{6}
	begun = clock.Now()
	require.NoError(t, eng.Step(t.Context(), &batch))
	assert.Equal(t, time.Second+1000+100+6, clock.Now().Sub(begun))
	require.ErrorIs(t, eng.Step(t.Context(), &batch), broken)
	require.PanicsWithValue(t, broken, func() { eng.Step(t.Context(), &batch) })
	ctx, cancel := context.WithCancel(t.Context())
	v.Sleep = func(time.Duration) { cancel() }
	require.ErrorIs(t, eng.Step(ctx, &batch), context.Canceled)
	assert.Equal(t, 5, v.Steps)
	require.NoError(t, eng.Close())
	assert.Equal(t, 1, v.Closed)
}

// A cost is found again from the steps it priced; too few say so; and no part
// of it is negative, whatever the noise.
func TestFitCost(t *testing.T) {
	want := Cost{Step: 40 * time.Millisecond, Row: 3 * time.Millisecond, Context: 2 * time.Microsecond}
	v, eng := NewVirtual(want, engine.Limits{})
	clock := NewClock()
	v.Sleep = clock.Sleep
	var steps []StepCost
	for rows := 1; rows <= 8; rows++ {
		for positions := rows; positions < 3000; positions += 500 {
			took := want.Step + time.Duration(rows)*want.Row + time.Duration(positions)*want.Context
			steps = append(steps, StepCost{rows, positions, took})
		}
	}
	got, err := FitCost(steps)
	require.NoError(t, err)
	assert.InDelta(t, want.Step, got.Step, 1000)
	assert.InDelta(t, want.Row, got.Row, 100)
	assert.InDelta(t, want.Context, got.Context, 1)

	for i := range steps { // the longer the context, the quicker: that is noise
		steps[i].Took -= time.Duration(steps[i].Positions) * 4 * time.Microsecond
	}
	got, err = FitCost(steps)
	require.NoError(t, err)
	assert.Zero(t, got.Context)
	assert.Positive(t, got.Row)

	// One term of two that always go together has it all.
	got, err = FitCost([]StepCost{{2, 2, 10 * time.Millisecond}, {4, 4, 20 * time.Millisecond}, {6, 6, 30 * time.Millisecond}})
	require.NoError(t, err)
	assert.InDelta(t, 5*time.Millisecond, got.Row+got.Context, 1000)

	_, err = FitCost(nil)
	require.EqualError(t, err, "fit a cost: no steps; want some of several numbers of rows and lengths of context")

	// The recorder counts as the cost does.
	eng.Close()
	rec := &Recorder{Runner: v}
	eng = engine.NewWith(rec, eng.Limits())
	seq, err := eng.NewSequence()
	require.NoError(t, err)
	feed(t, eng, seq, engine.Row{Tokens: []int32{1, 2, 3}, Prompt: true}, engine.Row{Tokens: []int32{4}})
	require.Len(t, rec.Steps, 2)
	assert.Equal(t, []int{3, 3, 1, 4}, []int{rec.Steps[0].Tokens, rec.Steps[0].Positions, rec.Steps[1].Tokens, rec.Steps[1].Positions})
}
