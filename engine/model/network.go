package model

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// Size is the memory that a network is made with.
type Size struct {
	Sequences   int // state slots, and rows of logits
	Context     int // positions of one sequence
	StepTokens  int
	KVBlocks    int
	KVBlockSize int
}

// Network is a model on a backend: weights, state and activations.
type Network struct {
	b        backend.Backend
	repeater backend.Repeater // b, if it is one
	cfg      *Config
	embed    backend.Matrix
	layers   []layer
	norm     backend.Norm
	head     backend.Matrix
	cache    backend.KVCache    // nil without attention layers
	state    backend.DeltaState // nil without gated delta layers
	x        backend.Buffer     // the residual stream [tokens, hidden]
	proj     backend.Buffer     // input projection of a mixer
	mixed    backend.Buffer     // output of a mixer
	mlp      backend.Buffer     // [tokens, intermediate]
	sampled  backend.Buffer     // the residual stream of the tokens to sample after
	logits   backend.Buffer     // [sequences, vocab]
	trace    func(stage string, x backend.Buffer, tokens int)
	lastWant int
}

// layer is one decoder layer: x += mixer(x), then x += mlp(x).
type layer struct {
	mixer    mixer
	mlpNorm  backend.Norm
	gateUp   backend.Matrix
	down     backend.Matrix
	mixStage string // names for tracing
	mlpStage string
}

// mixer is a token mixer with its own norm and residual.
type mixer interface {
	forward(net *Network, tokens int)
}

// Load packs a checkpoint's weights onto a backend and allocates all memory.
func Load(ck *Checkpoint, b backend.Backend, size Size) (*Network, error) {
	c := ck.Config
	l := &loader{ck: ck, b: b}
	net := &Network{b: b, cfg: c}
	net.embed = l.matrix(backend.Stacked, c.Prefix+"embed_tokens.weight")
	net.head = net.embed
	if !c.Tied {
		net.head = l.matrix(backend.Stacked, headName)
	}
	net.norm = l.norm(c.Prefix + "norm.weight")
	switch c.Arch {
	case Llama:
		net.layers = l.llama(size)
	case Qwen35:
		net.layers = l.qwen35(size)
	default:
		return nil, fmt.Errorf("model: no definition of architecture %q", c.Arch)
	}
	projWidth, mixWidth := 0, 0
	if n := c.Count(FullAttention); n > 0 {
		net.cache = keep(l, func() (backend.KVCache, error) {
			return b.NewKVCache(backend.KVSpec{
				Layers: n, Blocks: size.KVBlocks, BlockSize: size.KVBlockSize,
				KVHeads: c.KVHeads, HeadDim: c.HeadDim, DType: ck.DType(),
			})
		})
		projWidth, mixWidth = c.qkvWidth(), c.Heads*c.HeadDim
	}
	if c.Count(LinearAttention) > 0 {
		spec := c.Delta(size.Sequences)
		net.state = keep(l, func() (backend.DeltaState, error) { return b.NewDeltaState(spec) })
		projWidth, mixWidth = max(projWidth, spec.ProjDim()), max(mixWidth, spec.ValueHeads*spec.ValueDim)
	}
	net.x = l.buffer(size.StepTokens, c.Hidden)
	net.proj = l.buffer(size.StepTokens, projWidth)
	net.mixed = l.buffer(size.StepTokens, mixWidth)
	net.mlp = l.buffer(size.StepTokens, c.Intermediate)
	net.sampled = l.buffer(size.Sequences, c.Hidden)
	net.logits = l.buffer(size.Sequences, c.Vocab)
	if l.err != nil {
		return nil, fmt.Errorf("load %s: %w", ck.Name, l.err)
	}
	net.repeater, _ = b.(backend.Repeater)
	return net, nil
}

// Run computes one step; see the engine's Runner.
func (net *Network) Run(_ context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	net.lastWant = len(want)
	if !net.begin(step, want, params) {
		net.forward(len(step.Tokens), want)
	}
	// Without a token to draw it only waits, so that a failure belongs to this step.
	return net.b.Sample(out, net.logits, params)
}

// begin says whether the backend knows what forward does for such a step. What is
// traced is done.
func (net *Network) begin(step *backend.Step, want []int32, params []backend.Sampling) bool {
	if net.repeater == nil || net.trace != nil {
		net.b.Begin(step)
		return false
	}
	return net.repeater.Repeat(net, step, want, params)
}

// forward is the model, up to the logits. It must follow from its arguments alone,
// see [backend.Repeater].
func (net *Network) forward(n int, want []int32) {
	b := net.b
	b.Embed(net.x, net.embed)
	net.stage("embed", net.x, n)
	for i := range net.layers {
		l := &net.layers[i]
		l.mixer.forward(net, n)
		net.stage(l.mixStage, net.x, n)
		b.Linear(net.mlp, net.x, n, l.gateUp, backend.LinearOptions{Norm: &l.mlpNorm, Epilogue: backend.SwiGLU, Next: l.down})
		b.Linear(net.x, net.mlp, n, l.down, backend.LinearOptions{Epilogue: backend.Add})
		net.stage(l.mlpStage, net.x, n)
	}
	if len(want) > 0 {
		b.Gather(net.sampled, net.x, want)
		b.Linear(net.logits, net.sampled, len(want), net.head, backend.LinearOptions{Norm: &net.norm})
	}
}

// ResetSlot clears a state slot for a new sequence.
func (net *Network) ResetSlot(slot int) {
	if net.state != nil {
		net.b.ResetSlot(net.state, slot)
	}
}

// Close drops the network; its memory is the backend's, and goes with it.
func (net *Network) Close() error { return nil }

// Logits copies the logits of the i-th token that the last step sampled.
func (net *Network) Logits(dst []float32, i int) error {
	if i >= net.lastWant {
		return fmt.Errorf("model: logits %d of %d asked for", i, net.lastWant)
	}
	return net.b.Read(dst, net.logits, i)
}

// Trace calls f after each stage of every step: "embed", then for each layer
// "layers.0.proj" and "layers.0.mixed" (input projection and output of the
// mixer, which may fill only the first columns of x), "layers.0.mixer" and
// "layers.0.mlp" (the residual stream after each half). For tests.
func (net *Network) Trace(f func(stage string, x backend.Buffer, tokens int)) { net.trace = f }

// mixerStages are the names of a mixer's inner stages, made once.
type mixerStages struct{ proj, mixed string }

func newMixerStages(layer int) mixerStages {
	return mixerStages{fmt.Sprintf("layers.%d.proj", layer), fmt.Sprintf("layers.%d.mixed", layer)}
}

func (net *Network) stage(name string, x backend.Buffer, tokens int) {
	if net.trace != nil {
		net.trace(name, x, tokens)
	}
}

// qkvWidth is the width of the fused attention projection.
func (c *Config) qkvWidth() int {
	q := c.Heads * c.HeadDim
	if c.Arch == Qwen35 {
		q *= 2 // the output gate
	}
	return q + 2*c.KVHeads*c.HeadDim
}

// invFreq is the rotary frequency of each pair of dims, in float32 as the
// reference keeps it. The llama3 scaling divides low frequencies by a factor,
// keeps high ones, and blends between (transformers, modeling_rope_utils.py).
func (c *Config) invFreq() []float32 {
	freqs := make([]float32, c.RotaryDim/2)
	for d := range freqs {
		f := 1 / math.Pow(c.RopeTheta, float64(2*d)/float64(c.RotaryDim))
		if s := c.RopeScaling; s != nil {
			wavelength := 2 * math.Pi / f
			original := float64(s.OriginalPosition)
			switch {
			case wavelength < original/s.HighFreqFactor:
			case wavelength > original/s.LowFreqFactor:
				f /= s.Factor
			default:
				smooth := (original/wavelength - s.LowFreqFactor) / (s.HighFreqFactor - s.LowFreqFactor)
				f = (1-smooth)*f/s.Factor + smooth*f
			}
		}
		freqs[d] = float32(f)
	}
	return freqs
}

// loader collects weights, and keeps the first error.
type loader struct {
	ck  *Checkpoint
	b   backend.Backend
	err error
}

func keep[T any](l *loader, make func() (T, error)) (v T) {
	if l.err == nil {
		v, l.err = make()
	}
	return v
}

func (l *loader) source(name string) (backend.Source, error) {
	src, ok := l.ck.Weights.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing", name)
	}
	return src, nil
}

func (l *loader) matrix(form backend.Form, names ...string) backend.Matrix {
	return keep(l, func() (backend.Matrix, error) {
		parts := make([]backend.Source, len(names))
		var errs error
		for i, name := range names {
			var err error
			parts[i], err = l.source(name)
			errs = errors.Join(errs, err)
		}
		if errs != nil {
			return nil, errs
		}
		return l.b.NewMatrix(form, parts...)
	})
}

func (l *loader) vector(name string) backend.Vector {
	return keep(l, func() (backend.Vector, error) {
		src, err := l.source(name)
		if err != nil {
			return nil, err
		}
		return l.b.NewVector(src)
	})
}

// norm is a norm of the residual stream or of a head: zero-centred in Qwen3.5.
func (l *loader) norm(name string) backend.Norm {
	n := backend.Norm{Weight: l.vector(name), Eps: l.ck.Config.NormEps}
	if l.ck.Config.Arch == Qwen35 {
		n.Offset = 1
	}
	return n
}

func (l *loader) rope(size Size) backend.Rope {
	return keep(l, func() (backend.Rope, error) { return l.b.NewRope(l.ck.Config.invFreq(), size.Context) })
}

func (l *loader) buffer(tokens, width int) backend.Buffer {
	return keep(l, func() (backend.Buffer, error) { return l.b.NewBuffer(tokens, width) })
}

// layer loads what every decoder layer has: the MLP and its norm.
func (l *loader) layer(i int, m mixer) layer {
	p := fmt.Sprintf("%slayers.%d.", l.ck.Config.Prefix, i)
	return layer{
		mixer:    m,
		mlpNorm:  l.norm(p + "post_attention_layernorm.weight"),
		gateUp:   l.matrix(backend.GateUp, p+"mlp.gate_proj.weight", p+"mlp.up_proj.weight"),
		down:     l.matrix(backend.Stacked, p+"mlp.down_proj.weight"),
		mixStage: fmt.Sprintf("layers.%d.mixer", i),
		mlpStage: fmt.Sprintf("layers.%d.mlp", i),
	}
}
