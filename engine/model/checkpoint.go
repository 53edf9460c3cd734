package model

import (
	"fmt"
	"strings"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/weights"
)

// Checkpoint is a configuration with the weights that fit it.
type Checkpoint struct {
	Name    string // the directory's base name, or "random:NAME"
	Config  *Config
	Weights weights.Set
}

// Option changes how a checkpoint is opened.
type Option func(*options)

type options struct{ seed uint64 }

// DefaultSeed is the seed of random weights where none is given.
const DefaultSeed = 1

// WithSeed sets the seed of random weights.
func WithSeed(seed uint64) Option { return func(o *options) { o.seed = seed } }

// Open opens the checkpoint that ref names: a directory with config.json and
// safetensors files, or "random:NAME" for random weights in the shape of a
// preset, see [Presets]. What it returns is complete: every tensor that the
// model reads is there, with the right shape.
func Open(ref string, opts ...Option) (*Checkpoint, error) {
	o := options{seed: DefaultSeed}
	for _, f := range opts {
		f(&o)
	}
	if name, ok := strings.CutPrefix(ref, "random:"); ok {
		return openRandom(ref, name, o.seed)
	}
	return nil, fmt.Errorf("open checkpoint %s: not yet", ref)
}

func openRandom(ref, name string, seed uint64) (*Checkpoint, error) {
	c, err := Preset(name)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", ref, err)
	}
	set, err := weights.Random(seed, c.Tensors())
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", ref, err)
	}
	return &Checkpoint{Name: ref, Config: c, Weights: set}, nil
}

// DType is the storage type of the model's matrices, and of its KV cache.
func (ck *Checkpoint) DType() backend.DType {
	if src, ok := ck.Weights.Lookup(ck.Config.Prefix + "embed_tokens.weight"); ok {
		return src.DType()
	}
	return backend.F32
}

// Close unmaps the weights.
func (ck *Checkpoint) Close() error { return ck.Weights.Close() }
