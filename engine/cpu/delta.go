package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTask is one gated delta layer over a step. A unit of work is a row and
// a key head with its value heads: nothing is shared between units, and each
// goes through its tokens in order, block by block, see deltaBlock. In decoding several
// units of a row are done together.
type deltaTask struct {
	b       *Backend
	k       *mixerKernels
	s       *deltaState
	workers []deltaWorker
	taps    []taps // of each layer
	shares  shares // of the units, while all rows decode

	// Of the layer and step.
	dst, in *buffer
	d       *backend.GatedDelta
}

// deltaWorker is the scratch of one worker, for the tokens of a block or, while
// decoding, for one token of all key heads.
type deltaWorker struct {
	rows   []*float32          // inputs of the convolution, past ones first
	q, k   []float32           // [tokens or key heads][key dims]
	v      []float32           // [tokens or key heads][value heads of a key head][tiles][32], then the output
	decay  [deltaBlock]float32 // of one value head
	beta   [deltaBlock]float32 // of one value head
	a, p   []float32           // [value heads][16]
	heads  []tokenHead         // [value heads]
	ahead  fetchList
	zeros  []float32 // [key dims], or of a tile
	normed []float32 // [value dim]
	block  blockScratch
}

// tokenHead is what the token kernel takes of one value head.
type tokenHead struct {
	v, s, d, k, q, a, p *float32 // d is what earlier tokens of the block added
	rise, beta          float32
}

// taps is a convolution's weight [channels][taps], laid out as the past is: for each
// key head [taps][its channels].
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
	t.workers, t.shares = make([]deltaWorker, b.pool.workers), make(shares, b.pool.workers)
	most := max(deltaBlock, s.spec.KeyHeads)
	for i := range t.workers {
		t.workers[i] = deltaWorker{
			rows: apart[*float32](s.spec.ConvWidth - 1 + deltaBlock),
			q:    floats(most * s.dims), k: floats(most * s.dims), v: floats(most * t.valueStride()),
			a: floats(s.spec.ValueHeads * deltaBlock), p: floats(s.spec.ValueHeads * deltaBlock), heads: apart[tokenHead](s.spec.ValueHeads),
			ahead: apart[[]float32](2 + s.spec.ValueHeads/s.spec.KeyHeads*s.tiles)[:0],
			zeros: floats(max(s.dims, deltaTile)), normed: floats(s.spec.ValueDim),
		}
		t.workers[i].block.init(s.dims, floats)
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
		for head := range sp.KeyHeads {
			w := t.tapsOf(d.Layer, head)
			for _, part := range t.channels(head) {
				for i := range part.n * sp.ConvWidth {
					w[i%sp.ConvWidth*s.channels+part.past+i/sp.ConvWidth] = conv[part.first*sp.ConvWidth+i]
				}
			}
		}
	}
	t.in.mustBeFloat()
	b.begin(t.dst, sp.ValueHeads*sp.ValueDim, sp.ValueDim, d.Next)
	t.shares.dealAll(len(b.step.Rows) * sp.KeyHeads)
	b.pool.run(t)
	for i := range b.step.Rows {
		row := &b.step.Rows[i]
		slot := s.slot(d.Layer, row.Slot)
		*slot.seen += row.Count
	}
}

func (t *deltaTask) work(worker int) {
	heads := t.s.spec.KeyHeads
	if len(t.b.step.Tokens) == len(t.b.step.Rows) { // units are alike
		for lo, hi := t.shares.take(worker, heads); lo < hi; lo, hi = t.shares.take(worker, heads) {
			for lo < hi {
				n := min(hi-lo, heads-lo%heads)
				t.decode(&t.workers[worker], &t.b.step.Rows[lo/heads], lo%heads, n)
				lo += n
			}
		}
		return
	}
	lo, hi := t.b.pool.part(worker, len(t.b.step.Tokens)*heads)
	at := 0
	for i := range t.b.step.Rows {
		row := &t.b.step.Rows[i]
		for head := range heads {
			if lo <= at && at < hi {
				t.unit(&t.workers[worker], row, head)
			}
			at += row.Count
		}
	}
}

// someLines are fetched at a time. While a core computes, memory would stand still; more
// at once would hold up what comes next, and fewer would not bring all that a head needs
// while the one before it is computed.
const someLines = 56

// fetchList is what will be needed soon.
type fetchList [][]float32

// some fetches the next lines.
func (f *fetchList) some() {
	const line = lineBytes / 4
	for left := someLines; left > 0 && len(*f) > 0; {
		x := &(*f)[0]
		n := min(len(*x)/line, left)
		if n > 0 {
			fetchLines(&(*x)[0], n)
		}
		if *x = (*x)[n*line:]; len(*x) < line {
			*f = (*f)[1:]
		}
		left -= n
	}
}

// needs lists what a token reads of a key head but the states.
func (t *deltaTask) needs(list fetchList, slot *deltaSlot, head int) fetchList {
	begun, u := slot.begun(), t.s.unit(slot, head)
	list = append(list, u.past, u.keys[:(begun+1)*t.s.dims])
	for j := range t.s.spec.ValueHeads / t.s.spec.KeyHeads {
		h := t.s.head(slot, &u, head, j)
		for tile := range t.s.tiles {
			list = append(list, h.added[tile*deltaBlock*deltaTile:][:begun*deltaTile])
		}
	}
	return list
}

// unit runs all tokens of a row through one key head.
func (t *deltaTask) unit(w *deltaWorker, row *backend.Row, head int) {
	sp, stride := t.s.spec, t.valueStride()
	perHead := sp.ValueHeads / sp.KeyHeads
	slot := t.s.slot(t.d.Layer, row.Slot)
	u, begun := t.s.unit(&slot, head), slot.begun()
	for first := 0; first < row.Count; begun = 0 {
		tokens := min(deltaBlock-begun, row.Count-first)
		t.project(w, &slot, &u, row, head, first, tokens, 0, &fetchList{})
		if tokens == deltaBlock {
			t.packBlock(w)
		} else {
			for i := range tokens {
				copy(u.keys[(begun+i)*t.s.dims:], w.k[i*t.s.dims:][:t.s.dims])
				t.matchToken(w, i, i, u.keys, begun+i+1)
			}
		}
		for j := range perHead {
			t.gates(w, row.First+first, tokens, head*perHead+j)
			h, v := t.s.head(&slot, &u, head, j), w.v[j*t.s.tiles*deltaTile:]
			if tokens == deltaBlock {
				t.advanceBlock(w, &h, v, stride)
			} else {
				t.advanceTokens(w, u.keys, &h, begun, tokens, v, stride)
			}
			for i := range tokens {
				t.finish(w, row.First+first+i, head*perHead+j, v[i*stride:][:sp.ValueDim])
			}
		}
		first += tokens
	}
	t.remember(&slot, &u, row, head)
}

// decode runs the one token of a row through some key heads: first all but the
// state, then the states of all, which are a run of memory, without a pause.
func (t *deltaTask) decode(w *deltaWorker, row *backend.Row, head, n int) {
	sp, dims, stride := t.s.spec, t.s.dims, t.valueStride()
	perHead := sp.ValueHeads / sp.KeyHeads
	slot := t.s.slot(t.d.Layer, row.Slot)
	begun := slot.begun()
	if begun == deltaBlock-1 { // which advances the state
		for i := range n {
			t.unit(w, row, head+i)
		}
		return
	}
	heads := w.heads[:0]
	for i := range n {
		u := t.s.unit(&slot, head+i)
		q, k, v := w.q[i*dims:], w.k[i*dims:][:dims], w.v[i*stride:]
		ahead := w.ahead[:0]
		if i+1 < n {
			ahead = t.needs(ahead, &slot, head+i+1)
		}
		t.project(w, &slot, &u, row, head+i, 0, 1, i, &ahead)
		copy(u.keys[begun*dims:], k)
		t.matchToken(w, i, 0, u.keys, begun+1)
		for j := range perHead {
			ahead.some()
			t.gates(w, row.First, 1, (head+i)*perHead+j)
			h := t.s.head(&slot, &u, head+i, j)
			a, p := &w.a[len(heads)*deltaBlock], &w.p[len(heads)*deltaBlock]
			rise := t.weigh(w, &h, a, p, begun, 1)
			heads = append(heads, tokenHead{
				v: &v[j*t.s.tiles*deltaTile], s: &h.state[0], d: &h.added[0], k: &k[0], q: &q[0], a: a, p: p, rise: rise[0], beta: w.beta[0],
			})
		}
		t.remember(&slot, &u, row, head+i)
	}
	t.k.token((*byte)(unsafe.Pointer(&heads[0])), len(heads), dims, t.s.tiles, begun, t.b.kernels.few.state)
	for i := range heads {
		t.finish(w, row.First, head*perHead+i, w.v[i*t.s.tiles*deltaTile:][:sp.ValueDim])
	}
}

// valueStride is the floats of a token's values of a key head, in tiles.
func (t *deltaTask) valueStride() int {
	return t.s.spec.ValueHeads / t.s.spec.KeyHeads * t.s.tiles * deltaTile
}

// project is the convolutions of some tokens: q and k, normalised, [tokens][dims], and v
// [tokens][value heads][tiles][32], from a place in the scratch on. Meanwhile it fetches
// ahead.
func (t *deltaTask) project(w *deltaWorker, slot *deltaSlot, u *deltaUnit, row *backend.Row, head, first, tokens, place int, ahead *fetchList) {
	sp, dims, scale := t.s.spec, t.s.dims, t.b.kernels.scale
	parts, taps := t.channels(head), t.tapsOf(t.d.Layer, head)
	q, k, v := w.q[place*dims:], w.k[place*dims:], w.v[place*t.valueStride():]
	for part, to := range [...]struct {
		x    []float32
		size float64
	}{{q, 1 / math.Sqrt(float64(sp.KeyDim))}, {k, 1}} {
		t.inputs(w, slot, u, row, first, tokens, parts[part])
		for i := range tokens {
			ahead.some()
			x := to.x[i*dims:][:sp.KeyDim] // zero from there on, even if a row is NaN
			t.convolve(x, w.rows[i:], taps, parts[part])
			ahead.some()
			scale(&x[0], &x[0], &w.zeros[0], len(x), t.norm(x, to.size), 1)
		}
	}
	for j := range sp.ValueHeads / sp.KeyHeads {
		part := parts[2]
		part.first, part.past = part.first+j*sp.ValueDim, part.past+j*sp.ValueDim
		t.inputs(w, slot, u, row, first, tokens, part)
		ahead.some()
		for i := range tokens {
			t.convolve(v[i*t.valueStride()+j*t.s.tiles*deltaTile:][:sp.ValueDim], w.rows[i:], taps, part)
		}
	}
}

// channels are some neighbouring channels of the convolution.
type channels struct {
	first int // in the projection
	past  int // in a unit's past, and in its taps
	n     int
	ahead int // floats after an input, where to fetch
}

// channels of q, k and v of a key head. What their convolutions fetch lies too far
// apart for the processor to foresee: the inputs of a later token, and of values their z.
func (t *deltaTask) channels(head int) [3]channels {
	sp, perHead, later := t.s.spec, t.s.spec.ValueHeads/t.s.spec.KeyHeads, 2*t.in.width
	return [...]channels{
		{head * sp.KeyDim, 0, sp.KeyDim, later},
		{(sp.KeyHeads + head) * sp.KeyDim, sp.KeyDim, sp.KeyDim, later},
		{2*sp.KeyHeads*sp.KeyDim + head*perHead*sp.ValueDim, 2 * sp.KeyDim, perHead * sp.ValueDim, sp.ValueHeads * sp.ValueDim},
	}
}

// tapsOf are those of a layer and key head.
func (t *deltaTask) tapsOf(layer, head int) []float32 {
	n := t.s.spec.ConvWidth * t.s.channels
	return t.taps[layer].w[head*n:][:n]
}

// inputs finds what the convolutions of some tokens read.
func (t *deltaTask) inputs(w *deltaWorker, slot *deltaSlot, u *deltaUnit, row *backend.Row, first, tokens int, part channels) {
	before := t.s.spec.ConvWidth - 1
	for i := range before + tokens {
		if at := first - before + i; at >= 0 {
			w.rows[i] = &t.in.row(row.First + at)[part.first]
		} else {
			w.rows[i] = &t.s.pastInputs(u, *slot.seen+at)[part.past]
		}
	}
}

// convolve is silu of the causal convolution of the first channels of a part, for
// the token whose oldest input comes first.
func (t *deltaTask) convolve(dst []float32, rows []*float32, taps []float32, part channels) {
	t.k.convolve(&dst[0], &rows[0], &taps[part.past], len(dst), t.s.spec.ConvWidth, t.s.channels, part.ahead)
}

// remember keeps the last inputs of a key head.
func (t *deltaTask) remember(slot *deltaSlot, u *deltaUnit, row *backend.Row, head int) {
	for at := max(0, row.Count-(t.s.spec.ConvWidth-1)); at < row.Count; at++ {
		past, x := t.s.pastInputs(u, *slot.seen+at), t.in.row(row.First+at)
		for _, part := range t.channels(head) {
			copy(past[part.past:][:part.n], x[part.first:])
		}
	}
}

// norm is scale/√(Σx²+1e-6).
func (t *deltaTask) norm(x []float32, scale float64) float32 {
	sum := t.b.kernels.dot(&x[0], &x[0], len(x))
	return float32(scale / math.Sqrt(float64(sum)+1e-6))
}

// gates are the decay and β of some tokens and one value head.
func (t *deltaTask) gates(w *deltaWorker, first, tokens, head int) {
	sp := t.s.spec
	rate := -math.Exp(float64(t.d.ALog.(vector)[head]))
	bias := float64(t.d.DTBias.(vector)[head])
	for i := range tokens {
		gates := t.in.row(first + i)[sp.ConvDim()+sp.ValueHeads*sp.ValueDim:]
		w.beta[i] = float32(1 / (1 + math.Exp(-float64(gates[head]))))
		w.decay[i] = float32(math.Exp(rate * softplus(float64(gates[sp.ValueHeads+head])+bias)))
	}
}

// finish norms and gates the output of a token and value head.
func (t *deltaTask) finish(w *deltaWorker, token, head int, o []float32) {
	sp, k, n := t.s.spec, t.b.kernels, &t.d.Norm
	sum := k.dot(&o[0], &o[0], len(o))
	inv := float32(1 / math.Sqrt(float64(sum)/float64(len(o))+float64(n.Eps)))
	k.scale(&w.normed[0], &o[0], &n.Weight.(vector)[0], len(o), inv, n.Offset)
	z := t.in.row(token)[sp.ConvDim()+head*sp.ValueDim:]
	k.swiglu(&w.normed[0], &z[0], &w.normed[0], len(o))
	t.b.store(t.dst, token, head*sp.ValueDim, w.normed[:len(o)])
}

// softplus is log(1+eˣ), without overflow.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
