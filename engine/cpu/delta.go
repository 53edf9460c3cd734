package cpu

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTokens is the number of tokens whose queries, keys and values are
// prepared before the state is taken up: of a prompt, so many tokens advance
// a tile of the state while it is in L1.
const deltaTokens = 8

// deltaTask is one gated delta layer over a step. A unit of work is a row and
// a key head with its value heads: nothing is shared between units, and each
// goes through its tokens in order. So any chunks of a prompt yield the same bits.
type deltaTask struct {
	b       *Backend
	k       *mixerKernels
	s       *deltaState
	workers []deltaWorker
	taps    []taps // of each layer

	// Of the layer and step.
	dst, in *buffer
	d       *backend.GatedDelta
}

// deltaWorker is the scratch of one worker, for deltaTokens tokens.
type deltaWorker struct {
	q, k   []float32 // [tokens][key dim]
	v      []float32 // [tokens][value heads of a key head][tiles][32], then the output
	qk     [deltaTokens]float32
	normed []float32 // [value dim]
}

// taps is a convolution's weight [channels][taps], transposed to [taps][channels].
type taps struct {
	of vector
	w  []float32
}

func (t *deltaTask) init(b *Backend, s *deltaState) (err error) {
	t.b, t.k, t.s = b, mixersFor(b.isa), s
	floats := func(n int) []float32 {
		var x []float32
		if err == nil {
			x, err = b.mem.floats(n)
		}
		return x
	}
	t.workers = make([]deltaWorker, b.pool.workers)
	for i := range t.workers {
		t.workers[i] = deltaWorker{
			q: floats(deltaTokens * s.spec.KeyDim), k: floats(deltaTokens * s.spec.KeyDim),
			v:      floats(deltaTokens * s.spec.ValueHeads / s.spec.KeyHeads * s.tiles * deltaTile),
			normed: floats(s.spec.ValueDim),
		}
	}
	t.taps = make([]taps, s.spec.Layers)
	for i := range t.taps {
		t.taps[i].w = floats(s.spec.ConvWidth * s.spec.ConvDim())
	}
	return err
}

// GatedDelta advances the state; see deltaTask.
func (b *Backend) GatedDelta(dst, proj backend.Buffer, d *backend.GatedDelta, state backend.DeltaState) {
	s := state.(*deltaState)
	t, sp := &s.task, s.spec
	t.dst, t.in, t.d = dst.(*buffer), proj.(*buffer), d
	if d.Layer < 0 || d.Layer >= sp.Layers || d.Conv.Len() != sp.ConvDim()*sp.ConvWidth ||
		d.ALog.Len() != sp.ValueHeads || d.DTBias.Len() != sp.ValueHeads || d.Norm.Weight.Len() != sp.ValueDim {
		panic(fmt.Sprintf("cpu: gated delta layer %d with parameters of %d, %d, %d and %d values over %+v",
			d.Layer, d.Conv.Len(), d.ALog.Len(), d.DTBias.Len(), d.Norm.Weight.Len(), sp))
	}
	if t.dst == t.in || t.in.width < sp.ProjDim() || t.dst.width < sp.ValueHeads*sp.ValueDim {
		panic(fmt.Sprintf("cpu: gated delta from width %d into %d, want %d and %d",
			t.in.width, t.dst.width, sp.ProjDim(), sp.ValueHeads*sp.ValueDim))
	}
	for i := range b.step.Rows {
		if slot := b.step.Rows[i].Slot; slot < 0 || slot >= sp.Slots {
			panic(fmt.Sprintf("cpu: row %d has slot %d of %d", i, slot, sp.Slots))
		}
	}
	if tp, conv := &t.taps[d.Layer], d.Conv.(vector); len(tp.of) == 0 || &tp.of[0] != &conv[0] {
		tp.of = conv
		for i, v := range conv {
			tp.w[i%sp.ConvWidth*sp.ConvDim()+i/sp.ConvWidth] = v
		}
	}
	b.pool.run(t)
}

func (t *deltaTask) work(worker int) {
	lo, hi := t.b.pool.part(worker, len(t.b.step.Tokens)*t.s.spec.KeyHeads)
	at := 0
	for i := range t.b.step.Rows {
		row := &t.b.step.Rows[i]
		for head := range t.s.spec.KeyHeads {
			if lo <= at && at < hi {
				t.unit(&t.workers[worker], row, head)
			}
			at += row.Count
		}
	}
}

// unit runs all tokens of a row through one key head.
func (t *deltaTask) unit(w *deltaWorker, row *backend.Row, head int) {
	sp := t.s.spec
	perHead := sp.ValueHeads / sp.KeyHeads
	padded := t.s.tiles * deltaTile
	state, past := t.s.slot(t.d.Layer, row.Slot)
	for first := 0; first < row.Count; first += deltaTokens {
		tokens := min(deltaTokens, row.Count-first)
		for i := range tokens {
			q, k := w.q[i*sp.KeyDim:][:sp.KeyDim], w.k[i*sp.KeyDim:][:sp.KeyDim]
			t.convolve(q, past, row, first+i, head*sp.KeyDim)
			t.convolve(k, past, row, first+i, (sp.KeyHeads+head)*sp.KeyDim)
			t.normalise(q, 1/math.Sqrt(float64(sp.KeyDim)))
			t.normalise(k, 1)
			w.qk[i] = t.b.kernels.dot(&q[0], &k[0], sp.KeyDim)
			for j := range perHead {
				v := w.v[(i*perHead+j)*padded:][:sp.ValueDim]
				t.convolve(v, past, row, first+i, 2*sp.KeyHeads*sp.KeyDim+(head*perHead+j)*sp.ValueDim)
			}
		}
		for j := range perHead {
			t.advance(w, row, first, tokens, state, head*perHead+j, j)
		}
	}
	t.remember(past, row, head*sp.KeyDim, sp.KeyDim)
	t.remember(past, row, (sp.KeyHeads+head)*sp.KeyDim, sp.KeyDim)
	t.remember(past, row, 2*sp.KeyHeads*sp.KeyDim+head*perHead*sp.ValueDim, perHead*sp.ValueDim)
}

// convolve is silu of the causal convolution of some channels, from one on,
// for the i-th token of a row.
func (t *deltaTask) convolve(dst, past []float32, row *backend.Row, i, channel int) {
	sp := t.s.spec
	w := t.taps[t.d.Layer].w
	clear(dst)
	for tap := range sp.ConvWidth {
		var x []float32
		if at := i - (sp.ConvWidth - 1) + tap; at >= 0 {
			x = t.in.row(row.First + at)
		} else {
			x = past[(sp.ConvWidth-1+at)*sp.ConvDim():]
		}
		t.k.mulAdd(&dst[0], &x[channel], &w[tap*sp.ConvDim()+channel], len(dst))
	}
	t.b.kernels.silu(&dst[0], &dst[0], len(dst))
}

// remember moves the last inputs of some channels into the past.
func (t *deltaTask) remember(past []float32, row *backend.Row, channel, n int) {
	sp := t.s.spec
	for m := range sp.ConvWidth - 1 {
		var x []float32
		if at := row.Count - (sp.ConvWidth - 1) + m; at >= 0 {
			x = t.in.row(row.First + at)
		} else {
			x = past[(m+row.Count)*sp.ConvDim():]
		}
		copy(past[m*sp.ConvDim()+channel:][:n], x[channel:])
	}
}

// normalise is x·scale/√(Σx²+1e-6).
func (t *deltaTask) normalise(x []float32, scale float64) {
	sum := t.b.kernels.dot(&x[0], &x[0], len(x))
	inv := float32(scale / math.Sqrt(float64(sum)+1e-6))
	for i := range x {
		x[i] *= inv
	}
}

// advance runs tokens through one value head, the j-th of its key head: tile
// by tile of the state, and token by token in each.
func (t *deltaTask) advance(w *deltaWorker, row *backend.Row, first, tokens int, state []float32, head, j int) {
	sp := t.s.spec
	perHead, padded := sp.ValueHeads/sp.KeyHeads, t.s.tiles*deltaTile
	values := sp.ValueHeads * sp.ValueDim
	var decay, beta [deltaTokens]float32
	for i := range tokens {
		gates := t.in.row(row.First + first + i)[sp.ConvDim()+values:]
		beta[i] = float32(1 / (1 + math.Exp(-float64(gates[head]))))
		x := float64(gates[sp.ValueHeads+head]) + float64(t.d.DTBias.(vector)[head])
		decay[i] = float32(math.Exp(-math.Exp(float64(t.d.ALog.(vector)[head])) * softplus(x)))
	}
	size := sp.KeyDim * deltaTile
	for tile := range t.s.tiles {
		at := head*t.s.headSize + tile*size
		s, next := &state[at], &state[at]
		if at+size < len(state) {
			next = &state[at+size]
		}
		for i := range tokens {
			fetch := s
			if i == tokens-1 {
				fetch = next
			}
			v := &w.v[(i*perHead+j)*padded+tile*deltaTile]
			t.k.delta(s, &w.k[i*sp.KeyDim], &w.q[i*sp.KeyDim], sp.KeyDim, v, decay[i], beta[i], w.qk[i], fetch)
		}
	}
	k, n := t.b.kernels, t.d.Norm
	for i := range tokens {
		token := row.First + first + i
		o := w.v[(i*perHead+j)*padded:][:sp.ValueDim]
		sum := k.dot(&o[0], &o[0], sp.ValueDim)
		inv := float32(1 / math.Sqrt(float64(sum)/float64(sp.ValueDim)+float64(n.Eps)))
		k.scale(&w.normed[0], &o[0], &n.Weight.(vector)[0], sp.ValueDim, inv, n.Offset)
		z := t.in.row(token)[sp.ConvDim()+head*sp.ValueDim:]
		k.swiglu(&t.dst.row(token)[head*sp.ValueDim], &z[0], &w.normed[0], sp.ValueDim)
	}
}

// softplus is log(1+eˣ), without overflow.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
