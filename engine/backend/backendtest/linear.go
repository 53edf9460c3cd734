package backendtest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// linearCase is one projection over random rows.
type linearCase struct {
	inputs   int
	outputs  []int // of each part
	dtypes   []backend.DType
	epilogue backend.Epilogue
	norm     *normParams
	tokens   int
	size     float64 // of the inputs
}

func (c linearCase) String() string {
	norm := "no norm"
	if c.norm != nil {
		norm = fmt.Sprintf("norm with offset %v", c.norm.offset)
	}
	return fmt.Sprintf("%d tokens, %d → %d %v, epilogue %d, %s", c.tokens, c.inputs, c.outputs, c.dtypes, c.epilogue, norm)
}

// linearWeight is a matrix on the backend, and in plain numbers.
type linearWeight struct {
	matrix  backend.Matrix
	rows    [][]float32
	outputs int
	opt     backend.LinearOptions
}

func (h *harness) norm(n int, offset float32) *normParams {
	p := &normParams{w: h.normal(n, 0.3), eps: pick[float32](h, 1e-6, 1e-5), offset: offset}
	if offset == 0 {
		for i := range p.w {
			p.w[i]++
		}
	}
	return p
}

func (h *harness) normOf(p *normParams) *backend.Norm {
	if p == nil {
		return nil
	}
	return &backend.Norm{Weight: h.vector(p.w), Eps: p.eps, Offset: p.offset}
}

func (h *harness) linearWeight(c linearCase) linearWeight {
	h.Helper()
	w := linearWeight{opt: backend.LinearOptions{Norm: h.normOf(c.norm), Epilogue: c.epilogue}}
	var parts []backend.Source
	for i, n := range c.outputs {
		part := h.weight(c.dtypes[i%len(c.dtypes)], 1, n, c.inputs)
		parts = append(parts, part)
		for o := range n {
			w.rows = append(w.rows, part.x[o*c.inputs:][:c.inputs])
		}
	}
	form := backend.Stacked
	w.outputs = len(w.rows)
	if c.epilogue == backend.SwiGLU {
		form = backend.GateUp
		w.outputs /= 2
	}
	w.matrix = h.matrix(form, parts...)
	size := backend.BF16.Size()
	for _, p := range parts {
		size = max(size, p.DType().Size())
	}
	require.Equal(h, []int{w.outputs, c.inputs}, []int{w.matrix.Outputs(), w.matrix.Inputs()}, c)
	require.GreaterOrEqual(h, w.matrix.Bytes(), len(w.rows)*c.inputs*size, "%v: bytes of one pass", c)
	return w
}

// ideal is the result for one token that held before.
func (w *linearWeight) ideal(c linearCase, x, before []float32) ideal {
	y := idealLinear(w.rows, x, c.norm)
	switch c.epilogue {
	case backend.Add:
		for i, v := range before {
			y.y[i] += float64(v)
			y.size[i] += max(float64(v), -float64(v))
		}
	case backend.SwiGLU:
		n := w.outputs
		y = idealSwiGLU(ideal{y.y[:n], y.size[:n]}, ideal{y.y[n:], y.size[n:]})
	}
	return y
}

// apply runs the projection over x under the given layout, with frames around
// both buffers: NaN around the input, guards around the output.
func (h *harness) apply(c linearCase, w *linearWeight, x, before [][]float32, step *backend.Step) [][]float32 {
	h.Helper()
	src, dst := h.put(framed(x, nan)), h.put(framed(before, guard))
	h.b.Begin(step)
	h.b.Linear(dst, src, len(x), w.matrix, w.opt)
	return h.unframed(dst, len(x), w.outputs)
}

// before is what the output holds at first: a residual, or else poison.
func (h *harness) before(c linearCase, outputs int) [][]float32 {
	rows := make([][]float32, c.tokens)
	for i := range rows {
		if rows[i] = filled(outputs, nan); c.epilogue == backend.Add {
			rows[i] = h.normal(outputs, 1)
		}
	}
	return rows
}

func (h *harness) linear(c linearCase) {
	h.Helper()
	w := h.linearWeight(c)
	x, before := h.matrixOf(c.tokens, c.inputs, c.size), h.before(c, w.outputs)
	step := h.begin(c.tokens)
	got := h.apply(c, &w, x, before, step)
	for _, r := range step.Rows {
		for t := r.First; t < r.First+r.Count; t++ {
			h.near(fmt.Sprintf("%v, token %d", c, t), got[t], w.ideal(c, x[t], before[t]), h.linearTolerance(r.Prompt))
		}
	}
}

// each calls f with every combination of storage type, epilogue and norm.
func (h *harness) each(inputs int, f func(c linearCase)) {
	for _, dtypes := range [][]backend.DType{{backend.BF16}, {backend.F32}, {backend.BF16, backend.F32}} {
		for _, e := range []backend.Epilogue{backend.Store, backend.Add, backend.SwiGLU} {
			for _, norm := range []*normParams{nil, h.norm(inputs, 0), h.norm(inputs, 1)} {
				f(linearCase{inputs: inputs, dtypes: dtypes, epilogue: e, norm: norm, size: 1})
			}
		}
	}
}

// parts draws how many outputs the parts have, some total altogether.
func (h *harness) parts(e backend.Epilogue, total int) []int {
	if e == backend.SwiGLU {
		return []int{total, total}
	}
	if total < 3 || h.rng.IntN(3) == 0 {
		return []int{total}
	}
	a := 1 + h.rng.IntN(total-2)
	b := 1 + h.rng.IntN(total-a-1)
	return []int{a, b, total - a - b}
}

// testLinear: every number of inputs, outputs and tokens, and so every tail,
// under every combination of types, epilogues and norms.
func testLinear(h *harness) {
	h.sweep(1, 70, func(i int) {
		h.each(i, func(c linearCase) {
			c.tokens, c.outputs = 1+h.rng.IntN(9), h.parts(c.epilogue, 1+h.rng.IntN(40))
			h.linear(c)
		})
	})
	h.sweep(1, 70, func(o int) {
		h.each(1+h.rng.IntN(40), func(c linearCase) {
			c.tokens, c.outputs = 1+h.rng.IntN(9), h.parts(c.epilogue, o)
			h.linear(c)
		})
	})
	h.sweep(1, 70, func(n int) {
		h.each(1+h.rng.IntN(80), func(c linearCase) {
			c.tokens, c.outputs = n, h.parts(c.epilogue, 1+h.rng.IntN(40))
			h.linear(c)
		})
	})
	long := []int{128, 255, 576, 1024, 3001}
	h.sweep(0, len(long)-1, func(i int) {
		h.each(long[i], func(c linearCase) {
			c.tokens, c.outputs = 1+h.rng.IntN(5), h.parts(c.epilogue, pick(h, 96, 129))
			h.linear(c)
		})
	})
}

// testLinearEdges: activations that overflow a careless exponential, the norm
// of nothing, and a NaN that stays in its token.
func testLinearEdges(h *harness) {
	for _, size := range []float64{1e-8, 1e-3, 30, 1000} {
		h.each(33, func(c linearCase) {
			c.tokens, c.outputs, c.size = 6, h.parts(c.epilogue, 19), size
			h.linear(c)
		})
	}
	h.each(20, func(c linearCase) {
		c.tokens, c.outputs = 7, h.parts(c.epilogue, 18)
		w := h.linearWeight(c)
		x, before := h.matrixOf(c.tokens, c.inputs, 1), h.before(c, w.outputs)
		x[2], x[4][11] = filled(c.inputs, 0), nan
		step := h.begin(c.tokens)
		got := h.apply(c, &w, x, before, step)
		for _, r := range step.Rows {
			for t := r.First; t < r.First+r.Count; t++ {
				if t == 4 {
					require.True(h, got[t][0] != got[t][0], "%v: a NaN in the input is hidden", c)
					continue
				}
				h.near(fmt.Sprintf("%v, token %d beside a NaN", c, t), got[t], w.ideal(c, x[t], before[t]), h.linearTolerance(r.Prompt))
			}
		}
	})
}

// testLinearInvariance: a token's result is the same alone, in any batch, and
// in any order.
func testLinearInvariance(h *harness) {
	tokens := []int{2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64}
	h.sweep(0, len(tokens)-1, func(i int) {
		h.each(pick(h, 48, 64, 100, 256, 577), func(c linearCase) {
			c.tokens, c.outputs = tokens[i], h.parts(c.epilogue, pick(h, 16, 33, 80, 100))
			w := h.linearWeight(c)
			x, before := h.matrixOf(c.tokens, c.inputs, 1), h.before(c, w.outputs)
			step := h.begin(c.tokens)
			got := h.apply(c, &w, x, before, step)
			alone, beforeAlone := h.put(framed(x[:1], nan)), h.put(framed(before[:1], guard))
			for _, r := range step.Rows {
				// A few of the tokens: the first and the last of each row.
				for _, at := range []int{0, r.Count - 1} {
					t := r.First + at
					h.fill(alone, framed(x[t:t+1], nan))
					h.fill(beforeAlone, framed(before[t:t+1], guard))
					h.b.Begin(&backend.Step{Tokens: step.Tokens[t : t+1], Rows: []backend.Row{{
						Count: 1, Start: at, Blocks: r.Blocks[:at+1], Prompt: r.Prompt,
					}}})
					h.b.Linear(beforeAlone, alone, 1, w.matrix, w.opt)
					h.same(fmt.Sprintf("%v: token %d, alone and in the batch", c, t), h.unframed(beforeAlone, 1, w.outputs)[0], got[t])
				}
			}
			// The rows in another order, their tokens with them.
			other := &backend.Step{Tokens: step.Tokens}
			var px, pb, want [][]float32
			for _, i := range h.rng.Perm(len(step.Rows)) {
				r := step.Rows[i]
				px, pb = append(px, x[r.First:][:r.Count]...), append(pb, before[r.First:][:r.Count]...)
				want = append(want, got[r.First:][:r.Count]...)
				r.First = len(px) - r.Count
				other.Rows = append(other.Rows, r)
			}
			for i, row := range h.apply(c, &w, px, pb, other) {
				h.same(fmt.Sprintf("%v: token %d in another order", c, i), row, want[i])
			}
		})
	})
}
