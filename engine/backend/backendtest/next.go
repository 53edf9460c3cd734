package backendtest

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// testNext: what a product yields of another op's results has the same bits whether
// or not they were written for it alone. A buffer holds both kinds by turns.
func testNext(h *harness) {
	product := func(inputs int) linearWeight {
		c := linearCase{inputs: inputs, dtypes: []backend.DType{pick(h, backend.BF16, backend.BF16, backend.F32)}}
		c.epilogue = pick(h, backend.Store, backend.SwiGLU)
		c.outputs = h.parts(c.epilogue, 1+h.rng.IntN(80))
		return h.linearWeight(c)
	}
	h.sweep(1, 70, func(i int) {
		h.each(1+h.rng.IntN(80), func(c linearCase) {
			if c.epilogue == backend.Add {
				return
			}
			c.tokens, c.outputs = pick(h, 1, 3, 4, 9, i), h.parts(c.epilogue, pick(h, i, 64, 96, 300))
			first := h.linearWeight(c)
			w := product(first.outputs)
			h.begin(c.tokens)
			src, mid := h.put(h.matrixOf(c.tokens, c.inputs, 1)), h.poison(c.tokens, first.outputs+h.rng.IntN(20))
			run := func(next backend.Matrix) [][]float32 {
				dst := h.poison(c.tokens, w.outputs)
				opt := first.opt
				opt.Next = next
				h.b.Linear(mid, src, c.tokens, first.matrix, opt)
				h.b.Linear(dst, mid, c.tokens, w.matrix, w.opt)
				return h.read(dst, c.tokens)
			}
			want := run(nil)
			between := h.read(mid, c.tokens)
			other := h.matrixOf(c.tokens, mid.Width(), 1)
			tokens := make([]int32, c.tokens)
			for i := range tokens {
				tokens[i] = int32(i)
			}
			for _, write := range []func() [][]float32{ // what the buffer holds afterwards
				func() [][]float32 { run(nil); return between },
				func() [][]float32 { h.fill(mid, other); return other },
				func() [][]float32 { h.b.Gather(mid, h.put(other), tokens); return other },
			} {
				for t, got := range run(w.matrix) {
					h.same(fmt.Sprintf("%v, then → %d: token %d", c, w.outputs, t), got, want[t])
				}
				want, got := write(), h.read(mid, c.tokens)
				for t := range want {
					h.same(fmt.Sprintf("%v: token %d, written after a rounded one", c, t), got[t][:first.outputs], want[t][:first.outputs])
				}
			}
		})
	})

	// mixed replays sequences through a mixer and a product.
	mixed := func(seqs []*sequence, p plan, w *linearWeight, inputs int, mix func(dst, src backend.Buffer)) []output {
		mid := h.poison(p.widest(), inputs)
		return h.replay(seqs, p, w.outputs, func(dst, src backend.Buffer) {
			n := 0
			for _, s := range p[0] {
				n += s.count
			}
			p = p[1:]
			mix(mid, src)
			h.b.Linear(dst, mid, n, w.matrix, w.opt)
		})
	}
	// next is a product half of the time.
	next := func(w *linearWeight) backend.Matrix {
		if h.rng.IntN(2) == 0 {
			return nil
		}
		return w.matrix
	}
	h.sweep(0, 15, func(i int) {
		c := h.attentionCase(pick(h, 2, 4, 8), pick(h, 1, 2), pick(h, 8, 16, 33, 64))
		for range 1 + i%5 {
			c.lengths = append(c.lengths, 1+h.rng.IntN(20))
		}
		n, inputs, r := len(c.lengths), c.heads*c.dim, h.openAttention(c, 2)
		w, p := product(inputs), h.randomPlan(r.seqs[:len(c.lengths)])
		spec := r.spec
		want := mixed(r.seqs[:n], p, &w, inputs, func(dst, src backend.Buffer) { h.b.Attention(dst, src, &r.spec, r.cache) })
		got := mixed(r.seqs[n:], p, &w, inputs, func(dst, src backend.Buffer) {
			spec.Next = next(&w)
			h.b.Attention(dst, src, &spec, r.cache)
		})
		for s := range want {
			h.sameAll(fmt.Sprintf("%v, then → %d: sequence %d", c, w.outputs, s), got[s], want[s])
		}
	})
	h.sweep(0, 15, func(i int) {
		heads := pick(h, 1, 2, 3)
		c := h.deltaCase(heads, heads*pick(h, 1, 2), pick(h, 8, 16, 33), pick(h, 8, 16, 33, 65), 4)
		for range 1 + i%5 {
			c.lengths = append(c.lengths, 1+h.rng.IntN(20))
		}
		n, inputs, r := len(c.lengths), c.valueHeads*c.valueDim, h.openDelta(c, 2)
		w, p := product(inputs), h.randomPlan(r.seqs[:len(c.lengths)])
		spec := r.spec
		want := mixed(r.seqs[:n], p, &w, inputs, func(dst, src backend.Buffer) { h.b.GatedDelta(dst, src, &r.spec, r.state) })
		got := mixed(r.seqs[n:], p, &w, inputs, func(dst, src backend.Buffer) {
			spec.Next = next(&w)
			h.b.GatedDelta(dst, src, &spec, r.state)
		})
		for s := range want {
			h.sameAll(fmt.Sprintf("%v, then → %d: sequence %d", c, w.outputs, s), got[s], want[s])
		}
	})
}
