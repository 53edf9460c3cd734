package validation

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/model"
)

// TestMemoryIsChecked refuses a model that cannot fit, with the numbers, and
// lets pass what fits or where nothing is known.
func TestMemoryIsChecked(t *testing.T) {
	ck, err := model.Open("random:qwen3.5-27b")
	require.NoError(t, err)
	defer func() { require.NoError(t, ck.Close()) }()
	// 26,895,998,464 parameters of 2 bytes; 8 sequences of 48 layers of state and open blocks;
	// 64 KV blocks of 16 positions at 65,536 bytes.
	err = checkMemory(ck, 8, 64, 16, 24e9)
	require.ErrorContains(t, err, "random:qwen3.5-27b needs 55.3 GB (weights 53.8, KV cache and state 1.5), but only 24.0 GB of memory are available")
	require.NoError(t, checkMemory(ck, 8, 64, 16, 56e9))
	require.NoError(t, checkMemory(ck, 8, 64, 16, 0), "unknown")
}
