package cuda

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
)

// serve loads a tiny model and takes it through prompts, decode steps and a
// reset slot: every kind of call to a device.
func serve(b backend.Backend, ck *model.Checkpoint, after func(step int)) ([][]int32, error) {
	e, err := engine.New(ck, b, engine.Options{MaxSequences: 2, MaxContext: 64, MaxStepTokens: 24})
	if err != nil {
		return nil, err
	}
	defer e.Close()
	var out [][]int32
	for range 2 {
		batch := &engine.Batch{}
		for i := range 2 {
			seq, err := e.NewSequence()
			if err != nil {
				return nil, err
			}
			defer seq.Close()
			prompt := []int32{5, 3, 9, 1, 7, 2, 8, 6, 4, 11, 10, 12}[:10+2*i]
			row := engine.Row{Seq: seq, Tokens: prompt, Prompt: true, Sample: true}
			if i == 1 {
				row.Sampling = engine.Sampling{Temperature: 0.9, TopK: 60, TopP: 0.95, Seed: 7}
			}
			batch.Rows = append(batch.Rows, row)
			out = append(out, nil)
		}
		for step := range 6 {
			if err := e.Step(context.Background(), batch); err != nil {
				return nil, err
			}
			for i := range batch.Rows {
				r := &batch.Rows[i]
				out[len(out)-2+i] = append(out[len(out)-2+i], r.Next)
				r.Tokens, r.Prompt = []int32{r.Next}, false
			}
			if after != nil {
				after(step)
			}
		}
		for i := range batch.Rows {
			batch.Rows[i].Seq.Close()
		}
	}
	return out, nil
}

func checkpoint(t *testing.T, preset string) *model.Checkpoint {
	ck, err := model.Open("random:" + preset)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ck.Close()) })
	return ck
}

// TestEveryFailure makes each call to the device fail in turn: the failure
// comes back as one error, and all memory, graphs and the device are freed.
func TestEveryFailure(t *testing.T) {
	for _, preset := range []string{"llama-tiny", "qwen3.5-tiny"} {
		ck, total := checkpoint(t, preset), 0
		for at := 0; at <= total; at++ {
			dev := fake.New()
			dev.FailAt = at
			b, err := New(dev)
			if err == nil {
				_, err = serve(b, ck, nil)
				err = errors.Join(err, b.Close())
			}
			if at == 0 {
				require.NoError(t, err)
				total = dev.Count()
				require.Greater(t, total, 300, "the run is too short to mean anything")
			} else {
				require.ErrorIs(t, err, fake.ErrInjected, "%s: call %d of %d failed", preset, at, total)
			}
			require.Empty(t, dev.Leaks(), "%s: after call %d failed", preset, at)
			require.Empty(t, dev.Misuses, "%s: after call %d failed", preset, at)
		}
	}
}

// TestFaultIsSticky: after a device fault every further step returns it.
func TestFaultIsSticky(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	buf, err := b.NewBuffer(1, 4)
	require.NoError(t, err)
	row := make([]float32, 4)
	require.NoError(t, b.Read(row, buf, 0))
	dev.FailAt = dev.Count() + 1
	require.ErrorIs(t, b.Read(row, buf, 0), driver.ErrKernel)
	require.ErrorIs(t, b.Sample(make([]int32, 1), buf, make([]backend.Sampling, 1)), driver.ErrKernel)
	_, err = b.NewBuffer(1, 4)
	require.ErrorIs(t, err, driver.ErrKernel)
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
}

// TestRefusals: a device that cannot serve is refused with the numbers and the way on.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		break_ func(d *fake.Device)
		want   []string
	}{
		{"old driver", func(d *fake.Device) { d.Information.Driver = 11040 }, []string{"CUDA 11.4", "R525"}},
		{"old device", func(d *fake.Device) { d.Information.Major, d.Information.Minor = 7, 5 }, []string{"7.5", "8.0"}},
		{"missing kernel", func(d *fake.Device) { d.Refuse = "linear_prefill" }, []string{"linear_prefill"}},
		{"no memory", func(d *fake.Device) { d.Bytes = 1 << 20 }, []string{"out of device memory", "staging needs 1.0 MiB", "1.0 MiB", "smaller"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dev := fake.New()
			c.break_(dev)
			_, err := New(dev)
			require.Error(t, err)
			for _, want := range c.want {
				assert.ErrorContains(t, err, want)
			}
			require.Empty(t, dev.Leaks())
			require.Empty(t, dev.Misuses)
		})
	}
}

// TestMargin: the backend leaves 2 % of the memory alone, and says so.
func TestMargin(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	_, err = b.NewBuffer(1, int(dev.Bytes/4*97/100))
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	assert.ErrorContains(t, err, "20.5 MiB stay free as a margin")
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
}

// TestNoRoomToWorkIn: a model that does not fit beside another ends both, if what
// steps work with had to grow and cannot: the failure is sticky, and names it.
func TestNoRoomToWorkIn(t *testing.T) {
	for _, c := range []struct {
		what    string
		room    int64 // beside what is used
		request func(b *Backend) error
	}{
		{"the workspace", 64 << 20, func(b *Backend) error {
			_, err := b.NewBuffer(8, 2<<20-1000)
			return err
		}},
		{"the layout of a step", 64 << 20, func(b *Backend) error {
			_, err := b.NewBuffer(1<<21, 4)
			return err
		}},
		{"sampling", 0, func(b *Backend) error { return b.growSample(1<<21, 4) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			dev := fake.New()
			b, err := New(dev)
			require.NoError(t, err)
			buf, err := b.NewBuffer(1, 4)
			require.NoError(t, err)
			b.memory.free = b.memory.used + b.memory.margin + c.room
			require.ErrorIs(t, c.request(b), driver.ErrOutOfMemory)
			b.Begin(&backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}})
			err = b.Sample(make([]int32, 1), buf, make([]backend.Sampling, 1))
			require.ErrorIs(t, err, driver.ErrOutOfMemory)
			require.ErrorContains(t, err, "cuda: out of device memory: "+c.what+" needs")
			require.NoError(t, b.Close())
			require.Empty(t, dev.Leaks())
			require.Empty(t, dev.Misuses)
		})
	}
}

// TestGraphs: a decode step becomes a graph when it comes the second time, and
// is launched as one from then on; nothing else is.
func TestGraphs(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	var runs, graphs []int
	_, err = serve(b, checkpoint(t, "qwen3.5-tiny"), func(int) { runs, graphs = append(runs, dev.Runs), append(graphs, dev.Graphs) })
	require.NoError(t, err)
	// Of the first six steps: the prompt, a decode step that is noted, then graphs.
	assert.Equal(t, []int{0, 0, 1, 2, 3, 4}, graphs[:6])
	assert.Equal(t, runs[1], runs[5], "a step that is a graph runs nothing else")
	// The second round decodes with graphs at once.
	assert.Equal(t, []int{4, 5, 6, 7, 8, 9}, graphs[6:])
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
}

// TestStubSaysHow: without the tag, asking for a GPU is one clear error.
func TestStubSaysHow(t *testing.T) {
	b, err := Open(Options{})
	require.Error(t, err)
	require.Nil(t, b)
	if errors.Is(err, driver.ErrNotBuilt) {
		assert.ErrorContains(t, err, "-tags cuda")
	} else {
		assert.True(t, errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.ErrNoDevice), fmt.Sprint(err))
	}
}
