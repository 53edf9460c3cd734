package main

import (
	"strings"
	"time"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
)

// work is what an op has to do at least: bytes that move between memory and
// the cores, arithmetic in float32, and products of linears and attention, which may
// be in another precision; a multiply-add is two.
type work struct{ bytes, flops, products float64 }

func (w *work) add(v work) {
	w.bytes, w.flops, w.products = w.bytes+v.bytes, w.flops+v.flops, w.products+v.products
}

func (w work) over(n float64) work { return work{w.bytes / n, w.flops / n, w.products / n} }

// arithmetic is the least time of the arithmetic, in seconds.
func (w work) arithmetic(m machine) float64 { return w.flops/m.peak + w.products/m.products }

// floor is the least time of some work, in seconds.
func (w work) floor(m machine) float64 { return max(w.bytes/m.bandwidth, w.arithmetic(m)) }

// machine is what was measured of it: bytes/s, and operations/s of float32 and
// of products.
type machine struct{ bandwidth, peak, products float64 }

// op is one kind of op of a model: the layers share it.
type op struct {
	name string
	tally
}

// tally is what an op did during some steps.
type tally struct {
	calls   int
	work    work
	elapsed time.Duration
}

// meter is a backend that times each op of another, which must compute while
// it is called: the model runs as ever, with its own weights and in its own
// order, so that an op finds the caches as the step leaves them.
//
// Least work is counted as in model.Config.StepCost: a matrix and a state once a call,
// keys and values of the whole context, no activations. Embed and Sample, which that
// leaves out, count the rows that they read.
//
// Note: timing each op alone, over and over, was rejected: its weights would
// then come from a cache that the step does not leave them in.
type meter struct {
	backend.Backend
	element int // bytes of a weight
	memory  int // bytes of all that was made but the KV cache, which is not there until it is filled
	weights int // bytes of the matrices

	step    *backend.Step
	labels  map[backend.Matrix]string
	linears map[linearKind]int
	ops     []op
	embed   int
	attend  int
	delta   int
	gather  int
	sample  int
}

// linearKind tells projections apart: matrices of all layers with one label
// have one shape.
type linearKind struct {
	label    string
	norm     bool
	epilogue backend.Epilogue
}

// newMeter wraps a backend, on which then a model of the weight type is loaded.
func newMeter(b backend.Backend, weight backend.DType) *meter {
	m := &meter{
		Backend: b, element: weight.Size(),
		labels: make(map[backend.Matrix]string), linears: make(map[linearKind]int),
	}
	m.embed, m.attend, m.delta = m.newOp("embed"), m.newOp("attention"), m.newOp("gated_delta")
	m.gather, m.sample = m.newOp("gather"), m.newOp("sample")
	return m
}

func (m *meter) newOp(name string) int {
	m.ops = append(m.ops, op{name: name})
	return len(m.ops) - 1
}

// take returns what the ops did since the last time, in the order of ops.
func (m *meter) take(dst []tally) []tally {
	dst = dst[:0]
	for i := range m.ops {
		dst = append(dst, m.ops[i].tally)
		m.ops[i].tally = tally{}
	}
	return dst
}

// count books one call of an op that began at start.
func (m *meter) count(i int, w work, start time.Time) {
	t := &m.ops[i].tally
	t.elapsed += time.Since(start)
	t.calls++
	t.work.add(w)
}

func (m *meter) NewMatrix(form backend.Form, parts ...backend.Source) (backend.Matrix, error) {
	w, err := m.Backend.NewMatrix(form, parts...)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(parts))
	for i, p := range parts {
		path := strings.Split(strings.TrimSuffix(p.Name(), ".weight"), ".")
		names[i] = path[len(path)-1]
	}
	m.labels[w] = strings.Join(names, "+")
	m.weights += w.Bytes()
	m.memory += w.Bytes()
	return w, nil
}

func (m *meter) NewBuffer(tokens, width int) (backend.Buffer, error) {
	m.memory += 4 * tokens * width
	return m.Backend.NewBuffer(tokens, width)
}

func (m *meter) NewRope(invFreq []float32, positions int) (backend.Rope, error) {
	m.memory += 2 * 4 * len(invFreq) * positions
	return m.Backend.NewRope(invFreq, positions)
}

func (m *meter) NewDeltaState(s backend.DeltaSpec) (backend.DeltaState, error) {
	m.memory += cpu.DeltaBytes(s) * s.Slots
	return m.Backend.NewDeltaState(s)
}

func (m *meter) Begin(step *backend.Step) {
	m.step = step
	m.Backend.Begin(step)
}

func (m *meter) Embed(dst backend.Buffer, table backend.Matrix) {
	start := time.Now()
	m.Backend.Embed(dst, table)
	m.count(m.embed, work{bytes: float64(len(m.step.Tokens) * table.Inputs() * m.element)}, start)
}

func (m *meter) Linear(dst, src backend.Buffer, n int, w backend.Matrix, opt backend.LinearOptions) {
	kind := linearKind{m.labels[w], opt.Norm != nil, opt.Epilogue}
	i, ok := m.linears[kind]
	if !ok { // in the first step
		i = m.newOp(kind.name())
		m.linears[kind] = i
	}
	rows := w.Outputs()
	if opt.Epilogue == backend.SwiGLU {
		rows *= 2
	}
	least := work{bytes: float64(w.Bytes()), products: 2 * float64(rows) * float64(w.Inputs()) * float64(n)}
	if opt.Norm != nil {
		least.bytes += m.vector(opt.Norm.Weight)
	}
	start := time.Now()
	m.Backend.Linear(dst, src, n, w, opt)
	m.count(i, least, start)
}

// name says what is fused into one op, in its order.
func (k linearKind) name() string {
	name := k.label
	if name == "embed_tokens" {
		name = "lm_head" // tied
	}
	if k.norm {
		name = "norm+" + name
	}
	switch k.epilogue {
	case backend.Add:
		name += "+residual"
	case backend.SwiGLU:
		name += "+swiglu"
	}
	return name
}

func (m *meter) Attention(dst, qkv backend.Buffer, a *backend.Attention, cache backend.KVCache) {
	var least work
	position := float64(2 * a.KVHeads * a.HeadDim * cache.Spec().DType.Size())
	for i := range m.step.Rows {
		r := &m.step.Rows[i]
		before, tokens := float64(r.Start), float64(r.Count)
		least.bytes += (before + tokens + tokens) * position // read the context, write what is new
		least.products += 4 * float64(a.Heads*a.HeadDim) * (tokens*before + tokens*(tokens+1)/2)
	}
	for _, n := range []*backend.Norm{a.QNorm, a.KNorm} {
		if n != nil {
			least.bytes += m.vector(n.Weight)
		}
	}
	start := time.Now()
	m.Backend.Attention(dst, qkv, a, cache)
	m.count(m.attend, least, start)
}

func (m *meter) GatedDelta(dst, proj backend.Buffer, d *backend.GatedDelta, state backend.DeltaState) {
	s := state.Spec()
	rows, tokens := float64(len(m.step.Rows)), float64(len(m.step.Tokens))
	recurrent, conv := float64(s.ValueHeads*s.KeyDim*s.ValueDim), float64(s.ConvDim())
	least := work{
		bytes: rows*2*4*(recurrent+conv*float64(s.ConvWidth-1)) +
			m.vector(d.Conv) + m.vector(d.ALog) + m.vector(d.DTBias) + m.vector(d.Norm.Weight),
		flops: tokens * (7*recurrent + 2*conv*float64(s.ConvWidth)),
	}
	start := time.Now()
	m.Backend.GatedDelta(dst, proj, d, state)
	m.count(m.delta, least, start)
}

// vector is a small parameter's size in the checkpoint.
func (m *meter) vector(v backend.Vector) float64 { return float64(v.Len() * m.element) }

func (m *meter) Gather(dst, src backend.Buffer, tokens []int32) {
	start := time.Now()
	m.Backend.Gather(dst, src, tokens)
	m.count(m.gather, work{}, start)
}

func (m *meter) Sample(out []int32, logits backend.Buffer, params []backend.Sampling) error {
	start := time.Now()
	err := m.Backend.Sample(out, logits, params)
	m.count(m.sample, work{bytes: float64(4 * len(out) * logits.Width())}, start)
	return err
}
