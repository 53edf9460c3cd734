package backendtest

import (
	"fmt"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// attentionCase is an attention layer with its cache and some sequences.
type attentionCase struct {
	attentionParams
	blockSize int
	lengths   []int
	size      float64 // of queries and keys; large ones make the softmax sharp
}

func (c *attentionCase) String() string {
	return fmt.Sprintf("%d/%d heads of %d dims, %d rotated, norms %v, gate %v, bf16 cache %v, KV blocks of %d, lengths %v, inputs %g",
		c.heads, c.kvHeads, c.dim, 2*len(c.invFreq), c.qNorm != nil, c.gated, c.bf16, c.blockSize, c.lengths, c.size)
}

// frequencies makes the rotation of the leading dims.
func frequencies(dims int) []float32 {
	f := make([]float32, dims/2)
	for i := range f {
		f[i] = float32(math.Pow(10000, -2*float64(i)/float64(dims)))
	}
	return f
}

func (h *harness) attentionCase(heads, kvHeads, dim int) *attentionCase {
	c := &attentionCase{blockSize: pick(h, 1, 3, 8, 16), size: 1}
	c.heads, c.kvHeads, c.dim = heads, kvHeads, dim
	c.scale = float32(1 / math.Sqrt(float64(dim)))
	c.invFreq = frequencies(pick(h, dim, dim/2, dim/4))
	c.bf16 = h.rng.IntN(2) == 0
	c.gated = h.rng.IntN(2) == 0
	if h.rng.IntN(2) == 0 {
		offset := pick[float32](h, 0, 1)
		c.qNorm, c.kNorm = h.norm(dim, offset), h.norm(dim, offset)
	}
	return c
}

// inputs draws the projections of one sequence. A rounding cache makes a key
// depend on the last bit of its computation where it lies halfway between two
// bf16 numbers: such keys are drawn again, so that the tolerance can stay tight.
func (h *harness) inputs(c *attentionCase, n int) [][]float32 {
	x := h.matrixOf(n, c.width(), 1)
	for t := range x {
		for i := range c.queryWidth() {
			if !c.gated || i/c.dim%2 == 0 {
				x[t][i] *= float32(c.size)
			}
		}
		for kv := range c.kvHeads {
			key := c.key(x[t], kv)
			for {
				for i, v := range h.normal(c.dim, c.size) {
					key[i] = v
				}
				if !c.bf16 || c.roundsClearly(key, t) {
					break
				}
			}
			// Values are cached as they are: also the halfway cases must be right.
			value := c.value(x[t], kv)
			value[h.rng.IntN(c.dim)] = pick[float32](h, 1+1./256, 1+3./256, -1-1./256, 1+1./256+1./(1<<20))
		}
	}
	return x
}

func (c *attentionCase) roundsClearly(key []float32, position int) bool {
	const margin = 1e-6 // several float32 roundings
	k := c.rotated(key, c.kNorm, position)
	in := c.kNorm.apply(widen(key))
	for d, v := range k {
		reach := math.Abs(v)
		if n := len(c.invFreq); d < 2*n {
			reach = math.Abs(in[d%n]) + math.Abs(in[d%n+n])
		}
		if roundBF16(float32(v-margin*reach)) != roundBF16(float32(v+margin*reach)) {
			return false
		}
	}
	return true
}

// attentionRun is a case on the backend.
type attentionRun struct {
	*attentionCase
	spec  backend.Attention
	cache backend.KVCache
	seqs  []*sequence
	want  [][]ideal
}

const attentionLayers = 2

// open makes the cache, with room for copies of each sequence, and poisons all of it.
func (h *harness) openAttention(c *attentionCase, copies int) *attentionRun {
	h.Helper()
	r := &attentionRun{attentionCase: c}
	blocks, positions := 2, 1
	for _, n := range c.lengths {
		blocks += copies * ((n + c.blockSize - 1) / c.blockSize)
		positions = max(positions, n)
	}
	positions = max(positions, c.blockSize)
	dtype := backend.F32
	if c.bf16 {
		dtype = backend.BF16
	}
	kv := backend.KVSpec{
		Layers: attentionLayers, Blocks: blocks, BlockSize: c.blockSize,
		KVHeads: c.kvHeads, HeadDim: c.dim, DType: dtype,
	}
	var err error
	r.cache, err = h.b.NewKVCache(kv)
	require.NoError(h, err)
	require.Equal(h, kv, r.cache.Spec())
	rope, err := h.b.NewRope(c.invFreq, positions)
	require.NoError(h, err)
	require.Equal(h, 2*len(c.invFreq), rope.Dims())
	r.spec = backend.Attention{
		Layer: h.rng.IntN(attentionLayers), Heads: c.heads, KVHeads: c.kvHeads, HeadDim: c.dim,
		Scale: c.scale, Rope: rope, QNorm: h.normOf(c.qNorm), KNorm: h.normOf(c.kNorm), Gated: c.gated,
	}

	// Sequences of NaN, one in each KV block, poison them all.
	spec := r.spec
	for spec.Layer = range attentionLayers {
		for first := 0; first < blocks; first += 16 {
			var poison []*sequence
			for i := first; i < min(first+16, blocks); i++ {
				s := &sequence{blocks: []int32{int32(i)}, slot: i - first}
				for range c.blockSize {
					s.x = append(s.x, filled(c.width(), nan))
				}
				poison = append(poison, s)
			}
			h.replay(poison, chunked(poison, c.blockSize), c.heads*c.dim, func(dst, src backend.Buffer) {
				h.b.Attention(dst, src, &spec, r.cache)
			})
		}
	}

	free := h.rng.Perm(blocks)
	for range copies {
		for i, n := range c.lengths {
			s := &sequence{}
			if len(r.seqs) >= len(c.lengths) {
				s.x = r.seqs[i].x
			} else {
				s.x = h.inputs(c, n)
				r.want = append(r.want, idealAttention(&c.attentionParams, s.x))
			}
			for range (n + c.blockSize - 1) / c.blockSize {
				s.blocks = append(s.blocks, int32(free[0]))
				free = free[1:]
			}
			r.seqs = append(r.seqs, s)
		}
	}
	return r
}

// attend replays a copy of the sequences. Each step runs the other layer too,
// with NaN, which must not be seen.
func (h *harness) attend(r *attentionRun, copy int, p plan) []output {
	h.Helper()
	n := len(r.lengths)
	other := r.spec
	other.Layer = 1 - r.spec.Layer
	poison, ignored := h.poison(p.widest(), r.width()), h.buffer(p.widest(), r.heads*r.dim)
	return h.replay(r.seqs[copy*n:][:n], p, r.heads*r.dim, func(dst, src backend.Buffer) {
		h.b.Attention(dst, src, &r.spec, r.cache)
		h.b.Attention(ignored, poison, &other, r.cache)
	})
}

func (h *harness) attentionTolerance(c *attentionCase) func(prompt bool) float64 {
	if !c.bf16 {
		return h.tolerance(0)
	}
	return h.tolerance(h.opt.AttentionTolerance * c.size) // rounded, large queries move scores by more
}

func (h *harness) attention(c *attentionCase) {
	h.Helper()
	r := h.openAttention(c, 1)
	h.nearAll(c.String(), h.attend(r, 0, h.randomPlan(r.seqs)), r.want, h.attentionTolerance(c))
}

// testAttention: head dims, groups of queries, block sizes, contexts of every
// length, both caches, with and without norms and gates.
func testAttention(h *harness) {
	dims := []int{16, 32, 64, 128, 256}
	heads := [][2]int{{1, 1}, {2, 2}, {2, 1}, {3, 1}, {6, 2}, {8, 2}, {9, 3}, {8, 1}, {5, 5}}
	h.sweep(0, len(dims)*len(heads)-1, func(i int) {
		c := h.attentionCase(heads[i%len(heads)][0], heads[i%len(heads)][1], dims[i/len(heads)])
		c.lengths = []int{1 + h.rng.IntN(24), 1 + h.rng.IntN(40), 1 + h.rng.IntN(5)}
		h.attention(c)
	})
	h.sweep(0, 15, func(i int) { // every mix of features
		c := h.attentionCase(4, 2, 32)
		c.gated, c.bf16, c.qNorm, c.kNorm = i&1 != 0, i&2 != 0, nil, nil
		if i&4 != 0 {
			c.qNorm, c.kNorm = h.norm(c.dim, float32(i>>3)), h.norm(c.dim, float32(i>>3))
		}
		c.lengths = []int{19, 3, 33}
		h.attention(c)
	})
	h.sweep(1, 70, func(n int) {
		c := h.attentionCase(4, 2, 16)
		c.blockSize = 1 + n%17
		c.lengths = []int{n}
		h.attention(c)
	})
	// Scores that differ by hundreds: all weight on a few positions.
	h.sweep(0, 3, func(int) {
		c := h.attentionCase(2, 1, 32)
		c.qNorm, c.kNorm, c.size, c.lengths = nil, nil, 8, []int{50, 23}
		h.attention(c)
	})
	h.sweep(0, 1, func(i int) { // beyond any split of the context
		c := h.attentionCase(2, 1, []int{64, 16}[i])
		c.blockSize, c.lengths = 16, []int{[]int{300, 1100}[i]}
		r := h.openAttention(c, 1)
		h.nearAll(c.String(), h.attend(r, 0, chunked(r.seqs, 128)), r.want, h.attentionTolerance(c))
	})
}

// testAttentionInvariance: bit-identical alone, in any batch, in other KV
// blocks, and for any chunks of a prompt.
func testAttentionInvariance(h *harness) {
	h.sweep(0, 11, func(i int) {
		c := h.attentionCase(pick(h, 2, 4, 8), pick(h, 1, 2), pick(h, 16, 64, 256))
		for range 2 + i + i/5 {
			c.lengths = append(c.lengths, 1+h.rng.IntN(max(8, 30-3*i)))
		}
		r := h.openAttention(c, 4)
		p := h.randomPlan(r.seqs[:len(c.lengths)])
		batch := h.attend(r, 0, p)
		other := h.attend(r, 1, p.merged())
		for s := range c.lengths {
			h.sameAll(fmt.Sprintf("%v: sequence %d in another batch, order and place", c, s), other[s], batch[s])
			alone := h.attend(r, 2, p.only(s))
			h.sameAll(fmt.Sprintf("%v: sequence %d alone", c, s), alone[s], batch[s])
		}
		seqs := r.seqs[:len(c.lengths)]
		whole := h.attend(r, 3, chunked(seqs, 1000))
		h.nearAll(c.String(), whole, r.want, h.attentionTolerance(c))
		for _, size := range []int{1, 7, 16} {
			parts := h.attend(r, 3, chunked(seqs, size))
			for s := range parts {
				h.sameAll(fmt.Sprintf("%v: sequence %d in chunks of %d", c, s, size), parts[s], whole[s])
			}
		}
	})
}
