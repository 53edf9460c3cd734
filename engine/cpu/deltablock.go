package cpu

import "unsafe"

// deltaBlock is the number of tokens between two updates of the state. The
// tokens of a block are those from a multiple of it on, counted from the
// sequence's begin.
//
// With d_t = β_t·(v_t − g_t·kᵀ_t·S_{t−1}), the rule is S_t = g_t·S_{t−1} + k_t⊗d_t
// and o_t = qᵀ_t·S_t. Unrolled from the state S before the block, with the
// decay D_tj = g_{j+1}·…·g_t between two tokens and r_t = g_1·…·g_t since the
// beginning,
//
//	S_t = r_t·S + Σ_{j≤t} D_tj·k_j⊗d_j
//
// and so, since g_t·D_{t−1,j} = D_tj,
//
//	d_t = β_t·(v_t − r_t·kᵀ_t·S) − Σ_{j<t} A_tj·d_j   A_tj = β_t·D_tj·k_t·k_j
//	o_t = r_t·qᵀ_t·S + Σ_{j≤t} P_tj·d_j               P_tj = D_tj·q_t·k_j
//	S'  = r_16·S + Σ_j k_j⊗(D_16,j·d_j)
//
// (Yang, Kautz, Hatamizadeh: Gated Delta Networks, arXiv:2412.06464, section
// 3.3; here the triangular system is solved for the values themselves, once
// kᵀS is known, so that no inverse is formed.)
//
// Of a whole block in one row, all but A and P are products with the state,
// which is read and written once. Otherwise tokens go one by one: they read the
// state, and leave k, d and D to those that follow them in the block; the last
// one updates it. Every sum is taken in the same order both ways, so any chunks
// of a prompt, and decoding, yield the same bits. Columns of the state do not
// mix: a tile goes through it all while it is in L1.
//
// D is a product of decays, as the rule itself multiplies them: nothing is
// divided and no logarithm is taken, so nothing overflows, however strong the
// decay.
const deltaBlock = 16

// blockRows are those of a block's keys and queries together.
const blockRows = 2 * deltaBlock

// blockScratch is what a worker needs for one block.
type blockScratch struct {
	kq    []float32 // keys and queries of a key head [dims][32]
	pairs []float32 // k·k, then q·k [32][16]
	a, p  []float32 // [16][16]
	x     []float32 // kᵀS, then qᵀS, of a tile [32][32]
	d     []float32 // D_16,j·d_j of a tile [16][32]
	rise  lanes16   // r
	ratio lanes16   // the last row of D
}

func (b *blockScratch) init(dims int, floats func(n int) []float32) {
	b.kq, b.pairs = floats(dims*blockRows), floats(blockRows*deltaBlock)
	b.a, b.p = floats(deltaBlock*deltaBlock), floats(deltaBlock*deltaBlock)
	b.x, b.d = floats(blockRows*deltaTile), floats(deltaBlock*deltaTile)
}

// packBlock lays out the keys and queries of a whole block, and multiplies them with
// each other.
func (t *deltaTask) packBlock(w *deltaWorker) {
	dims, b := t.s.dims, &w.block
	for i := 0; i < deltaBlock; i += 4 {
		t.b.kernels.pack4(&b.kq[i], blockRows, &w.k[i*dims], dims, dims)
		t.b.kernels.pack4(&b.kq[deltaBlock+i], blockRows, &w.q[i*dims], dims, dims)
	}
	for i := range deltaBlock {
		t.matchToken(w, i, i, w.k, i+1)
	}
}

// matchToken multiplies the key and the query at a place of the scratch with the first n
// keys, into a row of the pairs.
func (t *deltaTask) matchToken(w *deltaWorker, i, row int, keys []float32, n int) {
	dims, pairs := t.s.dims, w.block.pairs[row*deltaBlock:]
	t.k.match(&pairs[0], &keys[0], &w.k[i*dims], dims, n)
	t.k.match(&pairs[deltaBlock*deltaBlock], &keys[0], &w.q[i*dims], dims, n)
}

// advanceBlock runs a whole block through one value head, tile by tile. The
// values begin at v and become the outputs; stride lies between tokens.
func (t *deltaTask) advanceBlock(w *deltaWorker, h *deltaHead, v []float32, stride int) {
	dims, b := t.s.dims, &w.block
	since := float32(1)
	for i, g := range &w.decay {
		since *= g
		b.rise[i] = since
	}
	b.ratio = lanes16{}
	t.k.weigh(&b.a[0], &b.p[0], &b.ratio[0], &b.pairs[0], &w.decay[0], &w.beta[0], 0, deltaBlock)
	for tile := range t.s.tiles {
		s := &h.state[tile*t.s.tileSize]
		t.k.product(&b.x[0], &b.kq[0], s, dims)
		t.k.solve(&v[tile*deltaTile], stride, &b.d[0], &b.x[0], &b.a[0], &b.p[0], &b.rise[0], &w.beta[0], &b.ratio[0])
		t.k.update(s, &b.kq[0], &b.d[0], dims, since)
	}
}

// weigh makes the rows of A and P of tokens after the first ones of a block, and what
// the state before it has decayed to by each.
func (t *deltaTask) weigh(w *deltaWorker, h *deltaHead, a, p *float32, first, tokens int) (rise [deltaBlock]float32) {
	if first == 0 {
		*h.ratio, *h.rise = lanes16{}, 1
	}
	for i := range tokens {
		*h.rise *= w.decay[i]
		rise[i] = *h.rise
	}
	t.k.weigh(a, p, &h.ratio[0], &w.block.pairs[0], &w.decay[0], &w.beta[0], first, tokens)
	return rise
}

// advanceTokens runs tokens of a block, after the first ones, through one value
// head: tile by tile, and token by token in each.
func (t *deltaTask) advanceTokens(w *deltaWorker, keys []float32, h *deltaHead, first, tokens int, v []float32, stride int) {
	dims, b := t.s.dims, &w.block
	rise := t.weigh(w, h, &b.a[0], &b.p[0], first, tokens)
	isLast := first+tokens == deltaBlock
	if isLast {
		for i := 0; i < deltaBlock; i += 4 {
			t.b.kernels.pack4(&b.kq[i], blockRows, &keys[i*dims], dims, dims)
		}
	}
	for tile := range t.s.tiles {
		s := &h.state[tile*t.s.tileSize]
		d := h.added[tile*deltaBlock*deltaTile:][:deltaBlock*deltaTile]
		for i := range tokens {
			w.heads[0] = tokenHead{
				v: &v[i*stride+tile*deltaTile], s: s, d: &d[0], k: &w.k[i*dims], q: &w.q[i*dims],
				a: &b.a[i*deltaBlock], p: &b.p[i*deltaBlock], rise: rise[i], beta: w.beta[i],
			}
			t.k.token((*byte)(unsafe.Pointer(&w.heads[0])), 1, dims, 1, first+i, t.b.kernels.few.state)
		}
		if isLast {
			for i := range deltaBlock {
				t.b.kernels.scale(&b.d[i*deltaTile], &d[i*deltaTile], &w.zeros[0], deltaTile, h.ratio[i], 1)
			}
			t.k.update(s, &b.kq[0], &b.d[0], dims, *h.rise)
		}
	}
}

func productGeneric(x, kq, w *float32, dims int) {
	xs := unsafe.Slice((*[deltaTile]float32)(unsafe.Pointer(x)), blockRows)
	rows := unsafe.Slice((*[blockRows]float32)(unsafe.Pointer(kq)), dims)
	ws := unsafe.Slice((*[deltaTile]float32)(unsafe.Pointer(w)), dims)
	clear(xs)
	for i := range rows {
		for r, v := range &rows[i] {
			for c := range &xs[r] {
				xs[r][c] = fma(v, ws[i][c], xs[r][c])
			}
		}
	}
}

func weighGeneric(a, p, ratio, pairs, decay, beta *float32, first, tokens int) {
	type rows = []lanes16
	lanes := func(x *float32, n int) rows { return unsafe.Slice((*lanes16)(unsafe.Pointer(x)), n) }
	as, ps, both := lanes(a, tokens), lanes(p, tokens), lanes(pairs, deltaBlock+tokens)
	last := (*lanes16)(unsafe.Pointer(ratio))
	for i := range as {
		g, b := unsafe.Slice(decay, tokens)[i], unsafe.Slice(beta, tokens)[i]
		for j := range last {
			unit := float32(0)
			if first+i == j {
				unit = 1
			}
			last[j] = fma(last[j], g, unit)
			as[i][j] = float32(last[j]*b) * both[i][j]
			ps[i][j] = last[j] * both[deltaBlock+i][j]
		}
	}
}

func matchGeneric(pairs, keys, x *float32, dims, n int) {
	n = roundUp(n, 4)
	row := (*lanes16)(unsafe.Pointer(pairs))
	*row = lanes16{}
	for j := range n {
		row[j] = dotGeneric(x, &unsafe.Slice(keys, n*dims)[j*dims], dims)
	}
}

func tokenGeneric(heads *byte, n, dims, tiles, earlier, _ int) {
	for _, h := range unsafe.Slice((*tokenHead)(unsafe.Pointer(heads)), n) {
		for i := range tiles {
			at := func(x *float32, floats int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(x), 4*floats)) }
			tokenGenericTile(at(h.v, i*deltaTile), at(h.s, i*dims*deltaTile), unsafe.Slice(h.k, dims), unsafe.Slice(h.q, dims),
				at(h.d, i*deltaBlock*deltaTile), unsafe.Slice(h.a, earlier), unsafe.Slice(h.p, earlier+1), h.rise, h.beta)
		}
	}
}

func tokenGenericTile(v, s *float32, ks, qs []float32, d *float32, as, ps []float32, rise, beta float32) {
	type row = [deltaTile]float32
	var kS, qS row
	for r, w := range unsafe.Slice((*row)(unsafe.Pointer(s)), len(ks)) {
		for c := range w {
			kS[c] = fma(ks[r], w[c], kS[c])
			qS[c] = fma(qs[r], w[c], qS[c])
		}
	}
	earlier := len(as)
	ds := unsafe.Slice((*row)(unsafe.Pointer(d)), earlier+1)
	out := (*row)(unsafe.Pointer(v))
	for c := range out {
		y, o := float32(fma(-kS[c], rise, out[c])*beta), float32(qS[c]*rise)
		for j := range as {
			y, o = fma(-as[j], ds[j][c], y), fma(ps[j], ds[j][c], o)
		}
		ds[earlier][c] = y
		out[c] = fma(ps[earlier], y, o)
	}
}

func solveGeneric(v *float32, stride int, d, x, a, p, rise, beta, tail *float32) {
	type row = [deltaTile]float32
	ds, xs := unsafe.Slice((*row)(unsafe.Pointer(d)), deltaBlock), unsafe.Slice((*row)(unsafe.Pointer(x)), blockRows)
	as, ps := unsafe.Slice(a, deltaBlock*deltaBlock), unsafe.Slice(p, deltaBlock*deltaBlock)
	rises, betas, tails := unsafe.Slice(rise, deltaBlock), unsafe.Slice(beta, deltaBlock), unsafe.Slice(tail, deltaBlock)
	vs := unsafe.Slice(v, (deltaBlock-1)*stride+deltaTile)
	for i := range ds {
		out := vs[i*stride:][:deltaTile]
		for c := range out {
			y := float32(fma(-xs[i][c], rises[i], out[c]) * betas[i])
			o := float32(xs[deltaBlock+i][c] * rises[i])
			for j := range i {
				y = fma(-as[i*deltaBlock+j], ds[j][c], y)
				o = fma(ps[i*deltaBlock+j], ds[j][c], o)
			}
			ds[i][c] = y
			out[c] = fma(ps[i*deltaBlock+i], y, o)
		}
	}
	for i := range ds {
		for c := range &ds[i] {
			ds[i][c] *= tails[i]
		}
	}
}

func updateGeneric(s, kq, d *float32, dims int, decay float32) {
	S := unsafe.Slice((*[deltaTile]float32)(unsafe.Pointer(s)), dims)
	ks := unsafe.Slice((*[blockRows]float32)(unsafe.Pointer(kq)), dims)
	ds := unsafe.Slice((*[deltaTile]float32)(unsafe.Pointer(d)), deltaBlock)
	for r := range S {
		for c, v := range &S[r] {
			v = float32(v * decay)
			for i := range ds {
				v = fma(ks[r][i], ds[i][c], v)
			}
			S[r][c] = v
		}
	}
}

func convolveGeneric(dst *float32, rows **float32, w *float32, n, taps, stride, _ int) {
	d := unsafe.Slice(dst, n)
	for c := range d {
		sum := float32(0)
		for tap, row := range unsafe.Slice(rows, taps) {
			sum = fma(unsafe.Slice(row, n)[c], unsafe.Slice(w, tap*stride+n)[tap*stride+c], sum)
		}
		d[c] = silu(sum)
	}
}
