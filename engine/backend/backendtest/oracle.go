package backendtest

import "math"

// ideal is a result in float64, with the size of the terms that each value is
// made of. Rounding errors are in proportion to the terms, not to what is left
// of them when they cancel.
type ideal struct{ y, size []float64 }

func newIdeal(n int) ideal { return ideal{make([]float64, n), make([]float64, n)} }

// roundBF16 rounds to nearest, ties to even, by looking at both neighbours.
func roundBF16(f float32) float32 {
	bits := math.Float32bits(f)
	below := math.Float32frombits(bits &^ 0xffff)
	above := math.Float32frombits(bits&^0xffff + 0x10000)
	lo, hi := math.Abs(float64(f)-float64(below)), math.Abs(float64(above)-float64(f))
	if lo < hi || lo == hi && bits&0x10000 == 0 || f != f {
		return below
	}
	return above
}

func widen(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// normParams is a norm in plain numbers.
type normParams struct {
	w           []float32
	eps, offset float32
}

func (n *normParams) apply(x []float64) []float64 {
	if n == nil {
		return x
	}
	squares := 0.0
	for _, v := range x {
		squares += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(squares/float64(len(x))+float64(n.eps)) * (float64(n.w[i]) + float64(n.offset))
	}
	return y
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// product is w·x, and the root of the sum of squared terms.
func product(w []float32, x []float64) (sum, size float64) {
	for i := range w {
		term := float64(w[i]) * x[i]
		sum += term
		size += term * term
	}
	return sum, math.Sqrt(size)
}

// idealLinear is W·norm(x) for weights [outputs][inputs].
func idealLinear(w [][]float32, x []float32, norm *normParams) ideal {
	out, in := newIdeal(len(w)), norm.apply(widen(x))
	for o := range w {
		out.y[o], out.size[o] = product(w[o], in)
	}
	return out
}

// idealSwiGLU is silu(gate·x) ⊙ (up·x).
func idealSwiGLU(gate, up ideal) ideal {
	out := newIdeal(len(gate.y))
	for i, g := range gate.y {
		silu := g * sigmoid(g)
		out.y[i] = silu * up.y[i]
		out.size[i] = 1.1*gate.size[i]*math.Abs(up.y[i]) + math.Abs(silu)*up.size[i]
	}
	return out
}

// attentionParams is an attention layer in plain numbers.
type attentionParams struct {
	heads, kvHeads, dim int
	scale               float32
	invFreq             []float32
	qNorm, kNorm        *normParams
	gated               bool
	bf16                bool // the KV cache rounds
}

func (p *attentionParams) queryWidth() int {
	if p.gated {
		return 2 * p.heads * p.dim
	}
	return p.heads * p.dim
}

func (p *attentionParams) width() int { return p.queryWidth() + 2*p.kvHeads*p.dim }

// rotated is norm, then rotation (x_d, x_{d+n}) → (x_d·cos − x_{d+n}·sin, x_{d+n}·cos + x_d·sin).
func (p *attentionParams) rotated(x []float32, norm *normParams, position int) []float64 {
	in := norm.apply(widen(x))
	out := append([]float64(nil), in...)
	n := len(p.invFreq)
	for d := range n {
		angle := float64(float32(position) * p.invFreq[d])
		out[d] = in[d]*math.Cos(angle) - in[d+n]*math.Sin(angle)
		out[d+n] = in[d+n]*math.Cos(angle) + in[d]*math.Sin(angle)
	}
	return out
}

// key is the key of one position and head as projected.
func (p *attentionParams) key(x []float32, head int) []float32 {
	return x[p.queryWidth()+head*p.dim:][:p.dim]
}

func (p *attentionParams) value(x []float32, head int) []float32 {
	return x[p.queryWidth()+(p.kvHeads+head)*p.dim:][:p.dim]
}

func (p *attentionParams) cached(x float64) float64 {
	if p.bf16 {
		return float64(roundBF16(float32(x)))
	}
	return float64(float32(x))
}

// idealAttention attends over one whole sequence, x being its projections.
func idealAttention(p *attentionParams, x [][]float32) []ideal {
	out := make([]ideal, len(x))
	for t := range x {
		out[t] = newIdeal(p.heads * p.dim)
	}
	for kv := range p.kvHeads {
		keys, values := make([][]float64, len(x)), make([][]float64, len(x))
		for t := range x {
			keys[t], values[t] = p.rotated(p.key(x[t], kv), p.kNorm, t), widen(p.value(x[t], kv))
			for i := range p.dim {
				keys[t][i], values[t][i] = p.cached(keys[t][i]), p.cached(values[t][i])
			}
		}
		group := p.heads / p.kvHeads
		for h := kv * group; h < (kv+1)*group; h++ {
			for t := range x {
				at := h * p.dim
				if p.gated {
					at *= 2
				}
				q := p.rotated(x[t][at:][:p.dim], p.qNorm, t)
				scores, sizes, largest := make([]float64, t+1), make([]float64, t+1), math.Inf(-1)
				for j := range scores {
					dot, squares := 0.0, 0.0
					for i := range q {
						dot += q[i] * keys[j][i]
						squares += q[i] * q[i] * keys[j][i] * keys[j][i]
					}
					scores[j] = dot * float64(p.scale)
					sizes[j] = math.Abs(scores[j]) + math.Sqrt(squares)*float64(p.scale)
					largest = max(largest, scores[j])
				}
				sum := 0.0
				for j := range scores {
					scores[j] = math.Exp(scores[j] - largest)
					sum += scores[j]
				}
				for i := range p.dim {
					var y, size float64
					for j := range scores {
						y += scores[j] / sum * values[j][i]
						// An error of a score is a relative error of its weight.
						size += scores[j] / sum * math.Abs(values[j][i]) * (1 + sizes[j]/10)
					}
					if p.gated {
						gate := sigmoid(float64(x[t][at+p.dim+i]))
						y, size = y*gate, size*gate
					}
					out[t].y[h*p.dim+i], out[t].size[h*p.dim+i] = y, size
				}
			}
		}
	}
	return out
}

// deltaParams is a gated delta layer in plain numbers.
type deltaParams struct {
	keyHeads, valueHeads, keyDim, valueDim, taps int

	conv         []float32 // [channel][taps]
	aLog, dtBias []float32
	norm         normParams
}

func (p *deltaParams) channels() int {
	return 2*p.keyHeads*p.keyDim + p.valueHeads*p.valueDim
}

// convolved is silu of the causal convolution of channel c at position t.
func (p *deltaParams) convolved(x [][]float32, t, c int) float64 {
	sum := 0.0
	for tap := range p.taps {
		if s := t - (p.taps - 1) + tap; s >= 0 {
			sum += float64(p.conv[c*p.taps+tap]) * float64(x[s][c])
		}
	}
	return sum * sigmoid(sum)
}

// idealDelta runs one whole sequence, x being its projections q | k | v | z | b | a.
func idealDelta(p *deltaParams, x [][]float32) []ideal {
	out := make([]ideal, len(x))
	for t := range out {
		out[t] = newIdeal(p.valueHeads * p.valueDim)
	}
	for j := range p.valueHeads {
		kh := j * p.keyHeads / p.valueHeads
		state := make([][]float64, p.valueDim) // Sᵀ: [value dim][key dim]
		for i := range state {
			state[i] = make([]float64, p.keyDim)
		}
		for t := range x {
			q, k := make([]float64, p.keyDim), make([]float64, p.keyDim)
			var qq, kk float64
			for i := range q {
				q[i] = p.convolved(x, t, kh*p.keyDim+i)
				k[i] = p.convolved(x, t, (p.keyHeads+kh)*p.keyDim+i)
				qq, kk = qq+q[i]*q[i], kk+k[i]*k[i]
			}
			for i := range q {
				q[i] /= math.Sqrt(qq+1e-6) * math.Sqrt(float64(p.keyDim))
				k[i] /= math.Sqrt(kk + 1e-6)
			}
			values := p.valueHeads * p.valueDim
			z, b, a := x[t][p.channels():], x[t][p.channels()+values:], x[t][p.channels()+values+p.valueHeads:]
			step := math.Log1p(math.Exp(float64(a[j]) + float64(p.dtBias[j])))
			decay := math.Exp(-math.Exp(float64(p.aLog[j])) * step)
			beta := sigmoid(float64(b[j]))

			o, terms := make([]float64, p.valueDim), make([]float64, p.valueDim)
			squares := 0.0
			for c, col := range state {
				predicted := 0.0
				for i := range col {
					col[i] *= decay
					predicted += col[i] * k[i]
				}
				d := beta * (p.convolved(x, t, 2*p.keyHeads*p.keyDim+j*p.valueDim+c) - predicted)
				for i := range col {
					col[i] += k[i] * d
					o[c] += q[i] * col[i]
					terms[c] += math.Abs(q[i]) * (math.Abs(col[i]) + math.Abs(k[i]*d))
				}
				squares += o[c] * o[c]
			}
			scale := 1 / math.Sqrt(squares/float64(p.valueDim)+float64(p.norm.eps))
			loss := 0.0 // what the norm makes of all errors
			for c := range terms {
				loss = max(loss, terms[c]*scale)
			}
			for c := range o {
				at := j*p.valueDim + c
				gate := float64(z[at]) * sigmoid(float64(z[at]))
				w := float64(p.norm.w[c]) + float64(p.norm.offset)
				out[t].y[at] = o[c] * scale * w * gate
				out[t].size[at] = math.Abs(w*gate) * (terms[c] + math.Abs(o[c])*loss) * scale
			}
		}
	}
	return out
}
