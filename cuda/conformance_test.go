package cuda

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/backend/backendtest"
)

// chunkTolerance is what the chunked delta rule may differ from the recurrence
// by: its factors have 16 bits of their fraction, and parts of their products
// may cancel.
const chunkTolerance = 1e-4

// TestConformance holds the kernels to the contract. On the simulator it takes
// every twelfth case, on a GPU all; BATCHPROOF_STRIDE=n takes every n-th (on the
// simulator, 1 takes some minutes).
func TestConformance(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		stride := 12
		if p.gpu {
			p.open(t).Close() // or skip
			stride = 1
		}
		if s := os.Getenv("BATCHPROOF_STRIDE"); s != "" {
			var err error
			stride, err = strconv.Atoi(s)
			require.NoError(t, err, "BATCHPROOF_STRIDE")
		}
		backendtest.RunWith(t, func(t testing.TB) backend.Backend { return p.open(t) },
			backendtest.Options{Stride: stride, DeltaBlock: deltaChunk, DeltaTolerance: chunkTolerance})
	})
}
