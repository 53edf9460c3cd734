// Package weights yields the tensors of a model: from safetensors files,
// which it maps into memory and trusts in nothing, or made up from a seed.
//
// It knows names, shapes and bytes. What the tensors mean is the model's.
package weights

import "github.com/batchproof/batchproof/engine/backend"

// Set is a collection of named tensors. Sources from it are valid until Close.
type Set interface {
	Names() []string // sorted
	Lookup(name string) (backend.Source, bool)
	Close() error
}

// Spec is one tensor that a model expects.
type Spec struct {
	Name  string
	Shape []int
	DType backend.DType // of random values; a checkpoint may hold another
	Low   float32       // random values are uniform in [Low, High)
	High  float32
}
