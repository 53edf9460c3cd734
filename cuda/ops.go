package cuda

import (
	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

// Embed looks the tokens of the step up.
func (b *Backend) Embed(dst backend.Buffer, table backend.Matrix) {
	d, m := dst.(*buffer), table.(*matrix)
	n := b.step.tokens
	if !(d.tokens >= n && d.width >= m.inputs) {
		broken("embed %d tokens of %d into %d × %d", n, m.inputs, d.tokens, d.width)
	}
	k := kEmbedF32
	if m.dtype == backend.BF16 {
		k = kEmbedBF16
	}
	b.launch(k, dim(n, 1, 1), 256, 0, ptr(d.ptr), i32(d.width), ptr(m.ptr), i32(m.inputs), ptr(b.step.array(aToken)))
}

// Gather copies tokens.
func (b *Backend) Gather(dst, src backend.Buffer, tokens []int32) {
	d, s := dst.(*buffer), src.(*buffer)
	if !(d != s && d.width == s.width && d.tokens >= len(tokens)) {
		broken("gather %d tokens of width %d into %d × %d", len(tokens), s.width, d.tokens, d.width)
	}
	if len(tokens) == 0 || b.err != nil {
		return
	}
	host := b.step.on(aGather)
	if !(len(tokens) <= len(host)) {
		broken("gather %d tokens, steps have %d", len(tokens), len(host))
	}
	b.atRest()
	if b.gathered {
		b.flush(false) // the host's indices are still to be read
	}
	b.gathered = true
	copy(host, tokens)
	at := aGather * b.step.maxTokens * 4
	b.list.Upload(b.step.array(aGather), b.step.host[at:][:len(tokens)*4])
	b.launch(kGather, dim(len(tokens), 1, 1), 256, 0, ptr(d.ptr), ptr(s.ptr), i32(s.width), ptr(b.step.array(aGather)))
}

// Linear multiplies: up to 16 tokens in one launch, more after a launch that
// prepares them. Which kernel does it changes no bit.
func (b *Backend) Linear(dst, src backend.Buffer, n int, w backend.Matrix, opt backend.LinearOptions) {
	d, s, m := dst.(*buffer), src.(*buffer), w.(*matrix)
	if d == s {
		broken("linear in place")
	}
	if !(n <= s.tokens && n <= d.tokens) {
		broken("linear over %d tokens, from %d into %d", n, s.tokens, d.tokens)
	}
	if !(s.width >= m.inputs && d.width >= m.outputs) {
		broken("linear %d → %d from width %d into %d", m.inputs, m.outputs, s.width, d.width)
	}
	if !((opt.Epilogue == backend.SwiGLU) == (m.form == backend.GateUp)) {
		broken("SwiGLU and GateUp go together")
	}
	if n == 0 {
		return
	}
	weight, eps, offset := b.norm(opt.Norm, m.inputs)
	x := b.memory.workspace
	epilogue := uint64(opt.Epilogue)
	if m.dtype == backend.F32 {
		b.launch(kNormRows, dim(n, 1, 1), 256, 0, ptr(x), ptr(s.ptr), i32(s.width), i32(m.inputs), ptr(weight), f32(eps), f32(offset))
		b.launch(kLinearF32, dim(ceil(m.outputs, 8), ceil(n, 8), 1), 256, 0,
			ptr(d.ptr), i32(d.width), ptr(m.ptr), ptr(x), i32(m.outputs), i32(m.inputs), i32(n), epilogue)
		return
	}
	k, grid, shared := b.linearKernel(m.tiles(), n)
	if k != kPrefill {
		b.launch(k, grid, 256, shared, ptr(d.ptr), i32(d.width), ptr(m.ptr), ptr(s.ptr), i32(s.width),
			ptr(weight), f32(eps), f32(offset), i32(m.outputs), i32(m.inputs), i32(n), epilogue)
		return
	}
	tiled := ceil(n, 8) * 8
	scales := x.At(int64(tiled) * int64(ceil(m.inputs, 16)*16) * 4)
	b.launch(kSplitRows, dim(tiled, 1, 1), 256, 0, ptr(x), ptr(scales), ptr(s.ptr), i32(s.width),
		ptr(weight), f32(eps), f32(offset), i32(m.inputs), i32(n))
	if weight == 0 {
		scales = 0
	}
	b.launch(k, grid, 256, shared, ptr(d.ptr), i32(d.width), ptr(m.ptr), ptr(x), ptr(scales), i32(m.outputs), i32(m.inputs), i32(n), epilogue)
}

// linearKernel chooses by the number of tokens, and for decode so that a block
// uses its activations for many outputs, if that leaves two blocks a processor.
func (b *Backend) linearKernel(tiles, n int) (kernel int, grid driver.Dim, shared int) {
	enough := 2 * b.info.Processors
	switch {
	case n > 16:
		const stages, tilesAStage = 3, 2 * (8 + 8)
		return kPrefill, dim(ceil(tiles, 8), ceil(n, 64), 1), stages * tilesAStage * 512
	case n > 8 && tiles >= 2*enough:
		return kDecode22, dim(ceil(tiles, 2), 1, 1), 0
	case n > 8:
		return kDecode12, dim(tiles, 1, 1), 0
	case tiles >= 4*enough:
		return kDecode41, dim(ceil(tiles, 4), 1, 1), 0
	case tiles >= 2*enough:
		return kDecode21, dim(ceil(tiles, 2), 1, 1), 0
	}
	return kDecode11, dim(tiles, 1, 1), 0
}

// norm is the parameters of a norm, or of none.
func (b *Backend) norm(n *backend.Norm, width int) (weight driver.Ptr, eps, offset float32) {
	if n == nil {
		return 0, 0, 0
	}
	w := n.Weight.(*vector)
	if !(w.n == width) {
		broken("a norm of %d over %d values", w.n, width)
	}
	return w.ptr, n.Eps, n.Offset
}

// splitLen is the number of positions in a split of the context, as in kernels/attention.cu.
const splitLen = 128

// Attention prepares and caches the step's keys, and attends: prompt rows by
// tiles of queries. Of other tokens, up to 16 share their contexts among many
// blocks; more tokens are enough blocks.
func (b *Backend) Attention(dst, qkv backend.Buffer, a *backend.Attention, cache backend.KVCache) {
	d, in, c, r := dst.(*buffer), qkv.(*buffer), cache.(*kvCache), a.Rope.(*rope)
	hd, n, l := a.HeadDim, b.step.tokens, &b.step
	stride := hd
	if a.Gated {
		stride = 2 * hd
	}
	if !(a.Heads%a.KVHeads == 0 && r.dims <= hd) {
		broken("attention of %+v", a)
	}
	if !(a.KVHeads == c.spec.KVHeads && hd == c.spec.HeadDim && a.Layer < c.spec.Layers) {
		broken("attention of %+v over a cache of %+v", a, c.spec)
	}
	if !(d != in && in.width >= a.Heads*stride+2*a.KVHeads*hd && d.width >= a.Heads*hd) {
		broken("attention from width %d into %d", in.width, d.width)
	}
	if !(l.longest <= r.positions) {
		broken("position %d, the rope has %d", l.longest-1, r.positions)
	}
	l.reach = min(l.reach, r.positions)

	qNorm, qEps, qOffset := b.norm(a.QNorm, hd)
	kNorm, kEps, kOffset := b.norm(a.KNorm, hd)
	at := int64(a.Layer) * c.layer
	keys, values := ptr(c.keys.At(at)), ptr(c.values.At(at))
	q := b.memory.workspace
	prepare, walk, splits := kPrepareF32, kWalkF32, kSplitsF32
	if c.spec.DType == backend.BF16 {
		prepare, walk, splits = kPrepareBF16, kWalkBF16, kSplitsBF16
	}
	positions, tokenRows, rowBlocks, blocks := ptr(l.array(aPosition)), ptr(l.array(aTokenRow)), ptr(l.array(aRowBlocks)), ptr(l.blocks())
	b.launch(prepare, dim(n, ceil(a.Heads+2*a.KVHeads, 4), 1), 128, 0,
		ptr(q), keys, values, ptr(in.ptr), i32(in.width), i32(a.Heads), i32(a.KVHeads), i32(hd), flag(a.Gated),
		f32(a.Scale), ptr(qNorm), f32(qEps), f32(qOffset), ptr(kNorm), f32(kEps), f32(kOffset), ptr(r.ptr), i32(r.dims),
		positions, tokenRows, rowBlocks, blocks, i32(c.spec.BlockSize))

	// Prompts go by tiles, where their kernels can; tokens are then the others.
	tokens, list := n, uint64(0)
	if c.spec.DType == backend.BF16 && hd%16 == 0 && l.prompts > 0 {
		k, shared := tileKernel(hd)
		b.launch(k, dim(ceil(l.widest*(a.Heads/a.KVHeads), tileQueries), a.KVHeads, l.prompts), 128, shared,
			ptr(d.ptr), i32(d.width), ptr(in.ptr), i32(in.width), ptr(q), keys, values, i32(a.Heads), i32(a.KVHeads), i32(hd), flag(a.Gated),
			ptr(l.promptRows()), ptr(l.array(aRowFirst)), ptr(l.array(aRowCount)), positions, rowBlocks, blocks, i32(c.spec.BlockSize))
		tokens, list = l.decode, ptr(l.array(aKinds))
	}
	if tokens == 0 {
		return
	}

	maxSplits := ceil(r.positions, splitLen)
	queries := (int64(n)*int64(a.Heads)*int64(hd)*4 + 15) / 16 * 16
	perToken := int64(a.Heads) * int64(maxSplits) * int64(hd*4+8)
	if tokens > 16 || perToken*int64(tokens) > b.memory.workBytes-queries {
		b.launch(walk, dim(a.Heads, tokens, 1), 128, 0,
			ptr(d.ptr), i32(d.width), ptr(in.ptr), i32(in.width), ptr(q), keys, values, i32(a.Heads), i32(a.KVHeads), i32(hd), flag(a.Gated),
			positions, tokenRows, rowBlocks, blocks, i32(c.spec.BlockSize), list)
		return
	}
	sums := q.At(queries)
	partial := sums.At(int64(tokens) * int64(a.Heads) * int64(maxSplits) * 8)
	b.launch(splits, dim(a.Heads, tokens, min(maxSplits, 16)), 128, 0,
		ptr(partial), ptr(sums), ptr(q), keys, values, i32(a.Heads), i32(a.KVHeads), i32(hd), i32(maxSplits),
		positions, tokenRows, rowBlocks, blocks, i32(c.spec.BlockSize), list)
	b.launch(kMerge, dim(a.Heads, tokens, 1), 128, 0,
		ptr(d.ptr), i32(d.width), ptr(in.ptr), i32(in.width), ptr(partial), ptr(sums), i32(a.Heads), i32(hd), flag(a.Gated), i32(maxSplits), positions, list)
}

// tileQueries is the number of queries of a block of kernels/attention_tiles.cu.
const tileQueries = 64

// tileKernel is the kernel for heads of so many dims, and its shared memory:
// queries in two parts, a tile of keys and one of values in padded rows.
func tileKernel(headDim int) (kernel, shared int) {
	kernel, dims, keys := kTiles64, 64, 64
	switch {
	case headDim > 128:
		kernel, dims, keys = kTiles256, 256, 32
	case headDim > 64:
		kernel, dims = kTiles128, 128
	}
	return kernel, tileQueries*dims*4 + 2*keys*(dims+8)*2
}

// deltaChunk is the number of tokens that the gated delta rule takes at once,
// as in kernels/delta_chunks.cu.
const deltaChunk = 32

// deltaSpace is what GatedDelta needs of the workspace for each token, in
// floats: the convolution, and what kernels/delta_chunks.cu prepares.
type deltaSpace struct{ conv, keys, solved, decays int }

func deltaSpaceOf(s backend.DeltaSpec) deltaSpace {
	return deltaSpace{
		conv:   ceil(s.ConvDim(), 4) * 4,
		keys:   3 * s.KeyHeads * ceil(s.KeyDim, 64) * 64,
		solved: 2 * s.ValueHeads * deltaChunk,
		decays: 2 * s.ValueHeads,
	}
}

func (d deltaSpace) floats() int { return d.conv + d.keys + d.solved + d.decays }

// GatedDelta is convolution, rule and norm; the rule takes the tokens of prompt
// rows by chunks, as far as whole ones reach, and others one by one. In a step
// without chunks the rule convolves, and the norm's launch moves the
// convolution's state on.
func (b *Backend) GatedDelta(dst, proj backend.Buffer, g *backend.GatedDelta, state backend.DeltaState) {
	d, in, st := dst.(*buffer), proj.(*buffer), state.(*deltaState)
	sp, l := st.spec, &b.step
	channels := sp.ConvDim()
	if !(d != in && in.width >= sp.ProjDim() && d.width >= sp.ValueHeads*sp.ValueDim) {
		broken("gated delta from width %d into %d", in.width, d.width)
	}
	if !(g.Layer < sp.Layers && g.Conv.Len() == channels*sp.ConvWidth && g.ALog.Len() == sp.ValueHeads && g.DTBias.Len() == sp.ValueHeads) {
		broken("gated delta layer %d over %+v", g.Layer, sp)
	}
	weight, eps, offset := b.norm(&g.Norm, sp.ValueDim)
	first, count, chunked, slot := ptr(l.array(aRowFirst)), ptr(l.array(aRowCount)), ptr(l.array(aRowChunked)), ptr(l.array(aRowSlot))
	space, at := deltaSpaceOf(sp), func(p driver.Ptr, floats int) driver.Ptr { return p.At(int64(l.tokens) * int64(floats) * 4) }
	conv := b.memory.workspace
	keys := at(conv, space.conv)
	solved := at(keys, space.keys)
	decays := at(solved, space.solved)
	convState := st.conv.At(int64(g.Layer) * int64(channels*(sp.ConvWidth-1)) * 4)
	s := st.s.At(int64(g.Layer) * int64(sp.ValueHeads*sp.KeyDim*sp.ValueDim) * 4)

	aLog, bias := ptr(g.ALog.(*vector).ptr), ptr(g.DTBias.(*vector).ptr)
	convWeight, norms, moves := ptr(g.Conv.(*vector).ptr), ceil(sp.ValueHeads, 8), 0
	if l.chunked > 0 {
		b.launch(kDeltaConv, dim(ceil(channels, 256), l.rows, 1), 256, 0,
			ptr(conv), ptr(in.ptr), i32(in.width), convWeight, ptr(convState), i64(st.convLen), i32(channels), i32(sp.ConvWidth),
			first, count, slot)
		rows := ptr(l.promptRows())
		b.launch(kDeltaPrepare, dim(l.widest/deltaChunk, sp.KeyHeads, l.prompts), 128, 0,
			ptr(keys), ptr(solved), ptr(decays), ptr(conv), ptr(in.ptr), i32(in.width), aLog, bias,
			i32(sp.KeyHeads), i32(sp.ValueHeads), i32(sp.KeyDim), i32(sp.ValueDim), rows, first, chunked)
		b.launch(kDeltaChunks, dim(ceil(sp.ValueDim, 64), sp.ValueHeads, l.prompts), 128, 0,
			ptr(d.ptr), i32(d.width), ptr(conv), ptr(keys), ptr(solved), ptr(decays), ptr(s), i64(st.sSlot),
			i32(sp.KeyHeads), i32(sp.ValueHeads), i32(sp.KeyDim), i32(sp.ValueDim), rows, first, chunked, slot)
	}
	walk := dim(ceil(sp.ValueDim, 32), sp.ValueHeads, l.rows)
	switch {
	case l.chunked == 0:
		moves = ceil(channels, 256)
		b.launch(kDeltaConvRule, walk, 128, 0,
			ptr(d.ptr), i32(d.width), convWeight, ptr(convState), i64(st.convLen), i32(sp.ConvWidth), ptr(in.ptr), i32(in.width), aLog, bias,
			ptr(s), i64(st.sSlot), i32(sp.KeyHeads), i32(sp.ValueHeads), i32(sp.KeyDim), i32(sp.ValueDim), first, count, chunked, slot)
	case l.chunked < l.tokens:
		b.launch(kDeltaRule, walk, 128, 0,
			ptr(d.ptr), i32(d.width), ptr(conv), ptr(in.ptr), i32(in.width), aLog, bias,
			ptr(s), i64(st.sSlot), i32(sp.KeyHeads), i32(sp.ValueHeads), i32(sp.KeyDim), i32(sp.ValueDim), first, count, chunked, slot)
	}
	b.launch(kDeltaNorm, dim(l.tokens, norms+moves, 1), 256, 0,
		ptr(d.ptr), i32(d.width), ptr(in.ptr), i32(in.width), ptr(weight), f32(eps), f32(offset), i32(sp.ValueHeads), i32(sp.ValueDim),
		ptr(convState), i64(st.convLen), i32(channels), i32(sp.ConvWidth), ptr(l.array(aTokenRow)), first, count, slot)
}
