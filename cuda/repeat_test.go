package cuda

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
)

// tape is a fake device that keeps what it runs: the commands, with the host's memory
// numbered, and what they copy from there.
type tape struct {
	*fake.Device
	hosts  [][]byte // in the order of allocation
	graphs map[driver.Graph]*driver.List
	ran    []entry
}

type entry struct {
	list     *driver.List
	uploaded []byte
}

func newTape() *tape {
	dev := fake.New()
	dev.Bytes = 1 << 40
	return &tape{Device: dev, graphs: make(map[driver.Graph]*driver.List)}
}

func (d *tape) AllocHost(bytes int) ([]byte, error) {
	h, err := d.Device.AllocHost(bytes)
	d.hosts = append(d.hosts, h)
	return h, err
}

func (d *tape) FreeHost(h []byte) error {
	for i, o := range d.hosts {
		if unsafe.SliceData(o) == unsafe.SliceData(h) {
			d.hosts[i] = nil
		}
	}
	return d.Device.FreeHost(h)
}

func (d *tape) Capture(l *driver.List) (driver.Graph, error) {
	g, err := d.Device.Capture(l)
	d.graphs[g] = l.Clone()
	return g, err
}

func (d *tape) Run(l *driver.List, seconds *float64) error {
	d.note(l)
	return d.Device.Run(l, seconds)
}

func (d *tape) Launch(g driver.Graph, seconds *float64) error {
	d.note(d.graphs[g])
	return d.Device.Launch(g, seconds)
}

func (d *tape) Start(l *driver.List, g driver.Graph) error {
	if g != 0 {
		d.note(d.graphs[g])
	} else {
		d.note(l)
	}
	return d.Device.Start(l, g)
}

func (d *tape) note(l *driver.List) {
	e := entry{list: l.Clone()}
	for i := range e.list.Commands {
		switch c := &e.list.Commands[i]; c.Op {
		case driver.OpUpload:
			var from []byte
			c.Src, from = d.number(c.Src)
			e.uploaded = append(e.uploaded, from[:c.Bytes]...)
		case driver.OpDownload:
			c.Dst, _ = d.number(c.Dst)
		}
	}
	d.ran = append(d.ran, e)
}

// number is an address of the host's memory as the number of the allocation and the
// place in it, and what lies there.
func (d *tape) number(address uint64) (number uint64, from []byte) {
	for i, h := range d.hosts {
		base := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(h))))
		if at := address - base; address >= base && at < uint64(len(h)) {
			return uint64(i)<<32 | at, h[at:]
		}
	}
	panic("host memory that is not the device's")
}

// server is two models on one backend, each with its sequences.
type server struct {
	dev     *tape
	b       backend.Backend
	engines []*engine.Engine
	batches []*engine.Batch // of the sequences that live
}

const (
	serverSequences = 9
	serverContext   = 64
)

func newServer(t require.TestingT, cks []*model.Checkpoint, wrap func(*Backend) backend.Backend) *server {
	s := &server{dev: newTape()}
	b, err := New(s.dev)
	require.NoError(t, err)
	s.b = wrap(b)
	for _, ck := range cks {
		e, err := engine.New(ck, s.b, engine.Options{
			MaxSequences: serverSequences, MaxContext: serverContext, MaxStepTokens: serverSequences * serverContext, KVBlockSize: 1,
		})
		require.NoError(t, err)
		s.engines = append(s.engines, e)
		s.batches = append(s.batches, &engine.Batch{})
	}
	return s
}

// move is something that servers are asked to do, in the order of the fields.
type move struct {
	model         int
	join          int // tokens of the prompt of a new sequence
	sampling      engine.Sampling
	leave         int // the sequence that ends, counted from 1
	tokens, width int // of a new buffer
	steps         int
	several       int // tokens that all rows decode in the first step
	silent        int // the row that draws no token, counted from 1
	meanwhile     bool
}

func (s *server) do(t require.TestingT, m move) {
	e, batch := s.engines[m.model], s.batches[m.model]
	if m.join > 0 && len(batch.Rows) < serverSequences {
		seq, err := e.NewSequence()
		require.NoError(t, err)
		batch.Rows = append(batch.Rows, engine.Row{Seq: seq, Tokens: make([]int32, m.join), Prompt: true, Sampling: m.sampling})
	}
	if m.leave > 0 && m.leave <= len(batch.Rows) {
		batch.Rows[m.leave-1].Seq.Close()
		batch.Rows = slices.Delete(batch.Rows, m.leave-1, m.leave)
	}
	if m.tokens > 0 {
		_, err := s.b.NewBuffer(m.tokens, m.width)
		require.NoError(t, err)
	}
	batch.Meanwhile = nil
	if m.meanwhile {
		batch.Meanwhile = func() {}
	}
	if m.several > 0 {
		for i := range batch.Rows {
			batch.Rows[i].Tokens = make([]int32, m.several)
		}
	}
	for step := 0; step < m.steps && len(batch.Rows) > 0; step++ {
		for i := range batch.Rows {
			batch.Rows[i].Sample = i+1 != m.silent
		}
		require.NoError(t, e.Step(context.Background(), batch))
		batch.Rows = slices.DeleteFunc(batch.Rows, func(r engine.Row) bool {
			full := r.Seq.Len() == serverContext
			if full {
				r.Seq.Close()
			}
			return full
		})
		for i := range batch.Rows {
			r := &batch.Rows[i]
			r.Tokens, r.Prompt = []int32{int32(r.Seq.Len()*serverSequences+i) % int32(e.Limits().Vocab)}, false
		}
	}
}

func drawMove(t *rapid.T) (m move) {
	m.model = rapid.IntRange(0, 1).Draw(t, "model")
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0, 1:
		m.join = rapid.IntRange(1, 24).Draw(t, "prompt")
		m.sampling = rapid.SampledFrom([]engine.Sampling{
			{}, {Temperature: 1, TopK: 1}, {Temperature: 1, Seed: 3}, {Temperature: 1, TopK: 5},
			{Temperature: 1, TopP: 0.5}, {Temperature: 1, TopK: 1 << 20}, {Temperature: 0.5, TopK: 7, TopP: 0.9},
		}).Draw(t, "sampling")
	case 2:
		m.leave = rapid.IntRange(1, serverSequences).Draw(t, "leave")
	case 3:
		m.tokens, m.width = rapid.SampledFrom([]int{1, 300, 400, 500}).Draw(t, "tokens"), 1<<rapid.IntRange(0, 16).Draw(t, "width")
	default:
		m.steps = rapid.IntRange(1, 8).Draw(t, "steps")
		m.meanwhile = rapid.Bool().Draw(t, "meanwhile")
		m.silent = rapid.IntRange(0, 2*serverSequences).Draw(t, "silent")
	}
	return m
}

// compare takes two backends through a history, one of which is never asked to repeat a
// step. What their devices are given must be the same. It returns the number of graphs.
func compare(t require.TestingT, cks []*model.Checkpoint, history []move) (graphs int) {
	again := newServer(t, cks, func(b *Backend) backend.Backend { return b })
	anew := newServer(t, cks, func(b *Backend) backend.Backend { return struct{ backend.Backend }{b} })
	for _, m := range history {
		again.do(t, m)
		anew.do(t, m)
		if !slices.EqualFunc(again.dev.ran, anew.dev.ran, func(a, b entry) bool {
			return slices.Equal(a.list.Commands, b.list.Commands) && slices.Equal(a.list.Args, b.list.Args) && bytes.Equal(a.uploaded, b.uploaded)
		}) {
			require.Equal(t, anew.dev.ran, again.dev.ran)
		}
		again.dev.ran, anew.dev.ran = again.dev.ran[:0], anew.dev.ran[:0]
	}
	require.Zero(t, anew.dev.Graphs)
	for _, s := range []*server{again, anew} {
		require.NoError(t, s.b.Close())
		require.Empty(t, s.dev.Leaks())
		require.Empty(t, s.dev.Misuses)
	}
	return again.dev.Graphs
}

// TestRepeatIsRecording: over any history, of two models by turns, what the device
// is given is what it is given by a backend that records every step.
func TestRepeatIsRecording(t *testing.T) {
	cks := []*model.Checkpoint{checkpoint(t, "llama-tiny"), checkpoint(t, "qwen3.5-tiny")}
	graphs := 0
	rapid.Check(t, func(t *rapid.T) {
		graphs += compare(t, cks, rapid.SliceOfN(rapid.Custom(drawMove), 10, 100).Draw(t, "history"))
	})
	require.NotZero(t, graphs)
}

// TestGraphsOutdated is TestRepeatIsRecording for what chance seldom brings: graphs that
// are ready when something else than the step changes.
func TestGraphsOutdated(t *testing.T) {
	cks := []*model.Checkpoint{checkpoint(t, "llama-tiny"), checkpoint(t, "qwen3.5-tiny")}
	drawn := engine.Sampling{Temperature: 1}
	before := []move{{join: 2, sampling: drawn}, {join: 3}, {steps: 5}}
	for _, c := range []struct {
		name   string
		moves  []move
		graphs int // of the steps after
	}{
		{"nothing", nil, 3},
		{"a slot is reset", []move{{model: 1, join: 2}}, 2},
		{"a prompt of one token", []move{{leave: 2}, {join: 1}}, 2},
		{"several tokens of a row", []move{{steps: 1, several: 2}}, 3},
		{"another model's steps", []move{{model: 1, join: 2, sampling: drawn}, {model: 1, join: 3}, {model: 1, steps: 3}}, 1 + 2},
		{"a row that draws nothing", []move{{steps: 2, silent: 2}}, 1 + 2},
		{"another way to draw", []move{{leave: 1}, {join: 3, sampling: engine.Sampling{Temperature: 1, TopK: 5}}}, 1},
		{"more KV blocks", []move{{leave: 2}, {join: 48}, {steps: 4}}, 3 + 2},
		{"a larger layout", []move{{tokens: 600, width: 1}}, 2},
		{"more to work with", []move{{tokens: serverSequences * serverContext, width: 512}}, 2},
		{"more to read", []move{{tokens: 1, width: 1 << 23}}, 2},
		{"more rows to draw for", append(slices.Repeat([]move{{model: 1, join: 1, sampling: drawn}}, 9), move{model: 1, steps: 1}), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			history := slices.Concat(before, c.moves, []move{{steps: 3}})
			require.Equal(t, 3+c.graphs, compare(t, cks, history))
		})
	}
}

// lone is a model for one sequence of 16 positions, on a fake device.
func lone(t *testing.T) (*fake.Device, *Backend, *model.Network) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	net, err := model.Load(checkpoint(t, "llama-tiny"), b, model.Size{Sequences: 1, Context: 16, StepTokens: 16, KVBlocks: 2, KVBlockSize: 16})
	require.NoError(t, err)
	return dev, b, net
}

// TestRepeatKeepsChecks: a position beyond the rope is a defect of the caller, whether
// the step's ops are called or not.
func TestRepeatKeepsChecks(t *testing.T) {
	dev, b, net := lone(t)
	run := func(start int) error {
		step := &backend.Step{Tokens: []int32{1}, Rows: []backend.Row{{Count: 1, Start: start, Blocks: []int32{0, 1}[:1+start/16]}}}
		return net.Run(t.Context(), step, []int32{0}, make([]int32, 1), make([]backend.Sampling, 1))
	}
	for start := range 16 {
		require.NoError(t, run(start))
	}
	require.Equal(t, 15, dev.Graphs)
	require.PanicsWithValue(t, "cuda: position 16, the rope has 16", func() { _ = run(16) })
	require.NoError(t, run(15))
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
	require.Empty(t, dev.Misuses)
}

// TestTracedStepsAreNotRepeated: what is traced is done op by op.
func TestTracedStepsAreNotRepeated(t *testing.T) {
	dev, b, net := lone(t)
	stages := 0
	for start := range 6 {
		if start == 4 {
			net.Trace(func(string, backend.Buffer, int) { stages++ })
		}
		step := &backend.Step{Tokens: []int32{1}, Rows: []backend.Row{{Count: 1, Start: start, Blocks: []int32{0}}}}
		require.NoError(t, net.Run(t.Context(), step, []int32{0}, make([]int32, 1), make([]backend.Sampling, 1)))
	}
	require.Equal(t, 3, dev.Graphs, "of the first four")
	require.Equal(t, 2*(1+4*4), stages)
	require.NoError(t, b.Close())
}

// TestWidestGraph: steps of more rows than graphs are kept for run as lists.
func TestWidestGraph(t *testing.T) {
	dev := fake.New()
	b, err := New(dev)
	require.NoError(t, err)
	buf, err := b.NewBuffer(maxGraphWidth+1, 4)
	require.NoError(t, err)
	step := &backend.Step{}
	for i := range maxGraphWidth + 1 {
		step.Tokens = append(step.Tokens, 0)
		step.Rows = append(step.Rows, backend.Row{First: i, Count: 1})
	}
	for i := range 4 {
		require.False(t, b.Repeat(t, step, nil, nil))
		require.NoError(t, b.Sample(nil, buf, nil))
		widest := &backend.Step{Tokens: step.Tokens[1:], Rows: step.Rows[:maxGraphWidth]}
		require.Equal(t, i > 1, b.Repeat(t, widest, nil, nil))
		require.NoError(t, b.Sample(nil, buf, nil))
	}
	require.Equal(t, 3, dev.Graphs)
	require.NoError(t, b.Close())
	require.Empty(t, dev.Leaks())
	require.Empty(t, dev.Misuses)
}

// TestOpsOfAStepThatRepeats: further ops would get lost, so they are a defect of the caller.
func TestOpsOfAStepThatRepeats(t *testing.T) {
	b, err := New(fake.New())
	require.NoError(t, err)
	buf, err := b.NewBuffer(1, 4)
	require.NoError(t, err)
	step := &backend.Step{Tokens: []int32{0}, Rows: []backend.Row{{Count: 1}}}
	begin := func() bool { return b.Repeat(t, step, nil, nil) }
	for i := range 3 { // noted, captured, ready
		require.Equal(t, i == 2, begin())
		require.NoError(t, b.Sample(nil, buf, nil))
	}
	for _, use := range []func(){
		func() { b.Begin(step) },
		func() { _ = b.Read(make([]float32, 4), buf, 0) },
		func() {
			b.Gather(&buffer{tokens: 1, width: 4}, buf, []int32{0})
			_ = b.Sample(nil, buf, nil)
		},
	} {
		require.True(t, begin())
		require.PanicsWithValue(t, "cuda: called before Sample in a step that is repeated", use)
	}
	require.NoError(t, b.Close())
}
