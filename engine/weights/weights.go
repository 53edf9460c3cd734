// Package weights yields the tensors of a model: from safetensors files,
// which it maps into memory and trusts in nothing, or made up from a seed.
//
// It knows names, shapes and bytes. What the tensors mean is the model's.
package weights

import (
	"fmt"
	"math/bits"

	"github.com/batchproof/batchproof/engine/backend"
)

// Set is a collection of named tensors. Sources from it are valid until Close.
type Set interface {
	Names() []string // sorted; not to be changed
	Lookup(name string) (backend.Source, bool)
	Close() error
}

// Spec is one tensor that a model expects.
type Spec struct {
	Name  string
	Shape []int
	DType backend.DType // of random values; a checkpoint may hold another
	Low   float32       // random values are uniform in [Low, High], rounded to DType
	High  float32
}

// maxElements bounds a tensor, so that no product of sizes overflows.
const maxElements = 1 << 48

// elements is the number of elements of a shape: one without dims.
func elements(shape []int) (int, error) {
	n, zero := uint64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dim", shape)
		}
		if d == 0 {
			zero = true // but the other dims are checked all the same
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > maxElements {
			return 0, fmt.Errorf("shape %v has more than 2^48 elements", shape)
		}
		n = lo
	}
	if zero {
		return 0, nil
	}
	return int(n), nil
}

// checkRange verifies that a read stays inside its tensor of n elements.
func checkRange(name string, n, length, offset int) error {
	if offset < 0 || offset > n || length > n-offset {
		return fmt.Errorf("tensor %q: elements [%d, %d) asked for, it has %d", name, offset, offset+length, n)
	}
	return nil
}

// checkBF16 verifies that a tensor can be read without loss as BF16.
func checkBF16(src backend.Source) error {
	if src.DType() != backend.BF16 {
		return fmt.Errorf("tensor %q: asked for as bf16, it is %v", src.Name(), src.DType())
	}
	return nil
}
