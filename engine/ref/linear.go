package ref

import "github.com/batchproof/batchproof/engine/backend"

// Linear is y = W · norm(x), then the epilogue.
func (b *Backend) Linear(dst, src backend.Buffer, n int, w backend.Matrix, opt backend.LinearOptions) {
	d, s, m := dst.(*buffer), src.(*buffer), w.(*matrix)
	check(d != s, "linear in place")
	check(n <= s.tokens && n <= d.tokens, "linear over %d tokens, from %d into %d", n, s.tokens, d.tokens)
	check(s.width >= m.inputs && d.width >= m.Outputs(), "linear %d → %d from width %d into %d", m.inputs, m.Outputs(), s.width, d.width)
	check((opt.Epilogue == backend.SwiGLU) == (m.form == backend.GateUp), "SwiGLU and GateUp go together")

	x := make([][]float64, n)
	for t := range x {
		x[t] = norm(s.row(t)[:m.inputs], opt.Norm)
	}
	parallel(m.Outputs(), func(o int) {
		for t := range x {
			y := &d.row(t)[o]
			switch opt.Epilogue {
			case backend.Store:
				*y = float32(dot(m.row(o), x[t]))
			case backend.Add:
				*y = float32(float64(*y) + dot(m.row(o), x[t]))
			case backend.SwiGLU: // silu(gate·x) ⊙ (up·x)
				gate, up := m.row(o), m.row(m.Outputs()+o)
				*y = float32(silu(dot(gate, x[t])) * dot(up, x[t]))
			}
		}
	})
}

func dot(w []float32, x []float64) (sum float64) {
	for i, v := range w {
		sum += float64(v) * x[i]
	}
	return sum
}
