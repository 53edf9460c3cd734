package ref

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaState holds, for each layer and slot, S as [value head][key dim][value
// dim] and the last ConvWidth−1 inputs of the convolution, oldest first.
type deltaState struct {
	spec backend.DeltaSpec
	s    [][]float32
	conv [][]float32 // [channel][ConvWidth−1]
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes a state full of NaN: a slot must be reset before its use.
func (b *Backend) NewDeltaState(s backend.DeltaSpec) (backend.DeltaState, error) {
	if s.Layers < 1 || s.Slots < 1 || s.KeyHeads < 1 || s.ValueHeads < 1 || s.ValueHeads%s.KeyHeads != 0 ||
		s.KeyDim < 1 || s.ValueDim < 1 || s.ConvWidth < 1 {
		return nil, fmt.Errorf("ref: delta state of %+v", s)
	}
	st := &deltaState{spec: s}
	for range s.Layers * s.Slots {
		st.s = append(st.s, nans(s.ValueHeads*s.KeyDim*s.ValueDim))
		st.conv = append(st.conv, nans(s.ConvDim()*(s.ConvWidth-1)))
	}
	return st, nil
}

// ResetSlot zeroes one slot in all layers.
func (b *Backend) ResetSlot(state backend.DeltaState, slot int) {
	st := state.(*deltaState)
	for layer := range st.spec.Layers {
		clear(st.s[layer*st.spec.Slots+slot])
		clear(st.conv[layer*st.spec.Slots+slot])
	}
}

// GatedDelta is the recurrent gated delta rule of transformers'
// modeling_qwen3_5.py, token by token.
func (b *Backend) GatedDelta(dst, proj backend.Buffer, g *backend.GatedDelta, state backend.DeltaState) {
	d, in, st := dst.(*buffer), proj.(*buffer), state.(*deltaState)
	sp := st.spec
	check(d != in && in.width >= sp.ProjDim() && d.width >= sp.ValueHeads*sp.ValueDim, "gated delta from width %d into %d", in.width, d.width)
	check(g.Layer < sp.Layers && g.Conv.Len() == sp.ConvDim()*sp.ConvWidth && g.ALog.Len() == sp.ValueHeads &&
		g.DTBias.Len() == sp.ValueHeads, "gated delta layer %d over %+v", g.Layer, sp)
	for _, row := range b.step.Rows {
		check(row.Slot >= 0 && row.Slot < sp.Slots, "slot %d of %d", row.Slot, sp.Slots)
		i := g.Layer*sp.Slots + row.Slot
		for t := row.First; t < row.First+row.Count; t++ {
			deltaToken(d.row(t), in.row(t), g, sp, st.s[i], st.conv[i])
		}
	}
}

// deltaToken advances the state of one sequence by one token.
// x is q | k | v | z | b | a, heads in order within each (1.6.1).
func deltaToken(out, x []float32, g *backend.GatedDelta, sp backend.DeltaSpec, s, conv []float32) {
	dk, dv := sp.KeyDim, sp.ValueDim
	channels := sp.ConvDim()
	qkv := causalConv(x[:channels], g.Conv.(vector), conv, sp.ConvWidth)
	z := x[channels:]
	beta := z[sp.ValueHeads*dv:]
	decay := beta[sp.ValueHeads:]
	aLog, dtBias := g.ALog.(vector), g.DTBias.(vector)

	parallel(sp.ValueHeads, func(j int) {
		h := j / (sp.ValueHeads / sp.KeyHeads) // (5)
		q := l2norm(qkv[h*dk:][:dk])           // (4)
		k := l2norm(qkv[(sp.KeyHeads+h)*dk:][:dk])
		for i := range q {
			q[i] /= math.Sqrt(float64(dk))
		}
		v := qkv[2*sp.KeyHeads*dk+j*dv:][:dv]
		beta := sigmoid(float64(beta[j])) // (3)
		eg := math.Exp(-math.Exp(float64(aLog[j])) * softplus(float64(decay[j])+float64(dtBias[j])))

		// (6): S ← e^g·S; δ = β·(v − kᵀS); S ← S + k⊗δ; o = qᵀS, column by column.
		S := s[j*dk*dv:][:dk*dv]
		o := make([]float32, dv)
		for c := range dv {
			var kS float64
			for r := range dk {
				kS += k[r] * eg * float64(S[r*dv+c])
			}
			delta := beta * (v[c] - kS)
			var qS float64
			for r := range dk {
				updated := eg*float64(S[r*dv+c]) + k[r]*delta
				qS += q[r] * updated
				S[r*dv+c] = float32(updated)
			}
			o[c] = float32(qS)
		}

		// (7): norm first, then the gate.
		for c, y := range norm(o, &g.Norm) {
			out[j*dv+c] = float32(y * silu(float64(z[j*dv+c])))
		}
	})
}

// causalConv is silu(Σ_j w[c,j]·x_{t−taps+1+j}[c]) for each channel c (1.6.2),
// and moves x into the history.
func causalConv(x []float32, w vector, history []float32, taps int) []float64 {
	y := make([]float64, len(x))
	for c := range x {
		past := history[c*(taps-1):][:taps-1]
		sum := float64(w[c*taps+taps-1]) * float64(x[c])
		for j, v := range past {
			sum += float64(w[c*taps+j]) * float64(v)
		}
		y[c] = silu(sum)
		if taps > 1 {
			copy(past, past[1:])
			past[taps-2] = x[c]
		}
	}
	return y
}

// l2norm is x·rsqrt(Σx²+1e-6): the sum, not the mean (1.6.4).
func l2norm(x []float64) []float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v / math.Sqrt(sum+1e-6)
	}
	return y
}
