package model

import (
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/weights"
)

// Checkpoint is a configuration with the weights that fit it.
type Checkpoint struct {
	Name    string // the directory's base name, or "random:NAME"
	Config  *Config
	Weights weights.Set
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
