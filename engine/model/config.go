// Package model reads a model's configuration and defines the supported
// architectures over the backend ops, one architecture in one file.
//
// It supports Llama (3.x, SmolLM2) and the dense Qwen3.5 text model. It does
// not guess: an architecture, an activation, a rope type or a quantisation
// that it does not know is refused by name.
package model

import "github.com/batchproof/batchproof/engine/backend"

// Arch is a supported architecture.
type Arch string

const (
	Llama  Arch = "llama"
	Qwen35 Arch = "qwen3_5"
)

// LayerKind is the token mixer of one layer.
type LayerKind uint8

const (
	FullAttention LayerKind = iota
	LinearAttention
)

// Config is a decoder's shape, normalised over the published layouts.
type Config struct {
	Arch         Arch
	Prefix       string // of tensor names: "model." or "model.language_model."
	Hidden       int
	Intermediate int
	Vocab        int
	Layers       []LayerKind
	Heads        int
	KVHeads      int
	HeadDim      int
	RotaryDim    int // leading dims of a head that are rotated
	RopeTheta    float64
	RopeScaling  *Llama3Scaling // nil for none
	NormEps      float32
	Tied         bool // the LM head is the embedding table
	MaxPositions int
	EOS          []int32

	// The gated delta layers of Qwen3.5.
	DeltaKeyHeads   int
	DeltaValueHeads int
	DeltaKeyDim     int
	DeltaValueDim   int
	ConvWidth       int
}

// Llama3Scaling is the "llama3" rope scaling.
type Llama3Scaling struct {
	Factor           float64
	LowFreqFactor    float64
	HighFreqFactor   float64
	OriginalPosition int
}

// Count is the number of layers of a kind.
func (c *Config) Count(kind LayerKind) int {
	n := 0
	for _, k := range c.Layers {
		if k == kind {
			n++
		}
	}
	return n
}

// Delta is the shape of the recurrent state for a number of sequences.
func (c *Config) Delta(slots int) backend.DeltaSpec {
	return backend.DeltaSpec{
		Layers: c.Count(LinearAttention), Slots: slots,
		KeyHeads: c.DeltaKeyHeads, ValueHeads: c.DeltaValueHeads,
		KeyDim: c.DeltaKeyDim, ValueDim: c.DeltaValueDim, ConvWidth: c.ConvWidth,
	}
}
