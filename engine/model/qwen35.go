package model

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// qwen35 loads the decoder layers of Qwen3.5: three gated delta layers to one
// gated attention layer (transformers, modeling_qwen3_5.py).
func (l *loader) qwen35(size Size) []layer {
	c := l.ck.Config
	var rope backend.Rope
	if c.Count(FullAttention) > 0 {
		rope = l.rope(size)
	}
	layers := make([]layer, len(c.Layers))
	var attentions, deltas int
	for i, kind := range c.Layers {
		if kind == FullAttention {
			layers[i] = l.layer(i, l.gatedAttention(i, attentions, rope))
			attentions++
		} else {
			layers[i] = l.layer(i, l.gatedDelta(i, deltas))
			deltas++
		}
	}
	return layers
}

// gatedAttention is Llama's attention with normed queries and keys and with an
// output gate, which q_proj yields beside the queries, head by head.
func (l *loader) gatedAttention(i, index int, rope backend.Rope) *attention {
	p := fmt.Sprintf("%slayers.%d.self_attn.", l.ck.Config.Prefix, i)
	a := l.attention(i, index, rope)
	qNorm, kNorm := l.norm(p+"q_norm.weight"), l.norm(p+"k_norm.weight")
	a.spec.QNorm, a.spec.KNorm, a.spec.Gated = &qNorm, &kNorm, true
	return a
}

// gatedDelta is x += W_out · delta(W_in · norm(x)).
type gatedDelta struct {
	norm   backend.Norm
	in     backend.Matrix
	spec   backend.GatedDelta
	out    backend.Matrix
	stages mixerStages
}

// gatedDelta loads layer i, which is the index-th gated delta layer.
func (l *loader) gatedDelta(i, index int) *gatedDelta {
	p := fmt.Sprintf("%slayers.%d.", l.ck.Config.Prefix, i)
	d := p + "linear_attn."
	out := l.matrix(backend.Stacked, d+"out_proj.weight")
	return &gatedDelta{
		norm: l.norm(p + "input_layernorm.weight"),
		in: l.matrix(backend.Stacked,
			d+"in_proj_qkv.weight", d+"in_proj_z.weight", d+"in_proj_b.weight", d+"in_proj_a.weight"),
		spec: backend.GatedDelta{
			Layer: index,
			Conv:  l.vector(d + "conv1d.weight"), ALog: l.vector(d + "A_log"), DTBias: l.vector(d + "dt_bias"),
			// This norm alone is not zero-centred.
			Norm: backend.Norm{Weight: l.vector(d + "norm.weight"), Eps: l.ck.Config.NormEps},
			Next: out,
		},
		out:    out,
		stages: newMixerStages(i),
	}
}

func (d *gatedDelta) forward(net *Network, n int) {
	net.b.Linear(net.proj, net.x, n, d.in, backend.LinearOptions{Norm: &d.norm})
	net.stage(d.stages.proj, net.proj, n)
	net.b.GatedDelta(net.mixed, net.proj, &d.spec, net.state)
	net.stage(d.stages.mixed, net.mixed, n)
	net.b.Linear(net.x, net.mixed, n, d.out, backend.LinearOptions{Epilogue: backend.Add})
}
