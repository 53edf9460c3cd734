package model

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// llama loads the decoder layers of Llama 3.x and its like: rotary attention
// with grouped queries (transformers, modeling_llama.py).
func (l *loader) llama(size Size) []layer {
	rope := l.rope(size)
	layers := make([]layer, len(l.ck.Config.Layers))
	for i := range layers {
		layers[i] = l.layer(i, l.attention(i, i, rope))
	}
	return layers
}

// attention is x += W_o · attend(W_qkv · norm(x)).
type attention struct {
	norm   backend.Norm
	qkv    backend.Matrix
	spec   backend.Attention
	out    backend.Matrix
	stages mixerStages
}

// attention loads layer i, which is the index-th attention layer.
func (l *loader) attention(i, index int, rope backend.Rope) *attention {
	c := l.ck.Config
	p := fmt.Sprintf("%slayers.%d.", c.Prefix, i)
	out := l.matrix(backend.Stacked, p+"self_attn.o_proj.weight")
	return &attention{
		norm: l.norm(p + "input_layernorm.weight"),
		qkv: l.matrix(backend.Stacked,
			p+"self_attn.q_proj.weight", p+"self_attn.k_proj.weight", p+"self_attn.v_proj.weight"),
		spec: backend.Attention{
			Layer: index, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
			Scale: float32(1 / math.Sqrt(float64(c.HeadDim))), Rope: rope, Next: out,
		},
		out:    out,
		stages: newMixerStages(i),
	}
}

func (a *attention) forward(net *Network, n int) {
	net.b.Linear(net.proj, net.x, n, a.qkv, backend.LinearOptions{Norm: &a.norm})
	net.stage(a.stages.proj, net.proj, n)
	net.b.Attention(net.mixed, net.proj, &a.spec, net.cache)
	net.stage(a.stages.mixed, net.mixed, n)
	net.b.Linear(net.x, net.mixed, n, a.out, backend.LinearOptions{Epilogue: backend.Add})
}
