//go:build !cuda

package validation

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
)

// TestCUDANotBuilt: asked for a GPU, a build without one says how to get it,
// and falls back to nothing.
func TestCUDANotBuilt(t *testing.T) {
	_, err := openBackend(&Options{Backend: "cuda"})
	require.ErrorIs(t, err, driver.ErrNotBuilt)
	require.ErrorContains(t, err, "-tags cuda")
}
