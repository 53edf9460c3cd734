package model

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/weights"
)

// headName is the LM head, outside the decoder's prefix.
const headName = "lm_head.weight"

// Tensors lists the tensors that the model reads, in the order of its layers.
//
// The ranges for random values keep the variance of what flows through: a
// linear weight is uniform in ±√(3/inputs), so that inputs of unit variance
// give outputs of unit variance, and no residual, logit or state explodes or
// dies in 64 layers. Decays are spread as in a trained model.
func (c *Config) Tensors() []weights.Spec {
	var specs []weights.Spec
	add := func(name string, dtype backend.DType, low, high float32, shape ...int) {
		specs = append(specs, weights.Spec{Name: name, Shape: shape, DType: dtype, Low: low, High: high})
	}
	scaled := func(name string, out, in int, gain float64) {
		r := float32(gain * math.Sqrt(3/float64(in)))
		add(name, backend.BF16, -r, r, out, in)
	}
	linear := func(name string, out, in int) { scaled(name, out, in, 1) }
	norm := func(name string, n int) {
		if c.Arch == Qwen35 { // zero-centred
			add(name, backend.BF16, -0.1, 0.1, n)
		} else {
			add(name, backend.BF16, 0.9, 1.1, n)
		}
	}

	linear(c.Prefix+"embed_tokens.weight", c.Vocab, c.Hidden)
	for i, kind := range c.Layers {
		p := fmt.Sprintf("%slayers.%d.", c.Prefix, i)
		norm(p+"input_layernorm.weight", c.Hidden)
		if kind == FullAttention {
			a := p + "self_attn."
			q := c.Heads * c.HeadDim
			linear(a+"q_proj.weight", c.qkvWidth()-2*c.KVHeads*c.HeadDim, c.Hidden) // with the gate, if any
			linear(a+"k_proj.weight", c.KVHeads*c.HeadDim, c.Hidden)
			linear(a+"v_proj.weight", c.KVHeads*c.HeadDim, c.Hidden)
			// Half the gain: what random attention adds is much the same for all
			// tokens, and must not drown what is their own.
			scaled(a+"o_proj.weight", c.Hidden, q, 0.5)
			if c.Arch == Qwen35 {
				norm(a+"q_norm.weight", c.HeadDim)
				norm(a+"k_norm.weight", c.HeadDim)
			}
		} else {
			d, s := p+"linear_attn.", c.Delta(1)
			v := s.ValueHeads * s.ValueDim
			linear(d+"in_proj_qkv.weight", s.ConvDim(), c.Hidden)
			linear(d+"in_proj_z.weight", v, c.Hidden)
			linear(d+"in_proj_b.weight", s.ValueHeads, c.Hidden)
			linear(d+"in_proj_a.weight", s.ValueHeads, c.Hidden)
			add(d+"conv1d.weight", backend.BF16, -0.5, 0.5, s.ConvDim(), 1, s.ConvWidth)
			add(d+"dt_bias", backend.BF16, -4, -1, s.ValueHeads)
			add(d+"A_log", backend.F32, 0, 2.77, s.ValueHeads) // decay rates of 1 to 16
			add(d+"norm.weight", backend.F32, 0.9, 1.1, s.ValueDim)
			linear(d+"out_proj.weight", c.Hidden, v)
		}
		norm(p+"post_attention_layernorm.weight", c.Hidden)
		linear(p+"mlp.gate_proj.weight", c.Intermediate, c.Hidden)
		linear(p+"mlp.up_proj.weight", c.Intermediate, c.Hidden)
		linear(p+"mlp.down_proj.weight", c.Hidden, c.Intermediate)
	}
	norm(c.Prefix+"norm.weight", c.Hidden)
	if !c.Tied {
		linear(headName, c.Vocab, c.Hidden)
	}
	return specs
}
