package ref

import (
	"testing"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/backend/backendtest"
)

// TestConformance holds the oracle to the suite's own formulas.
func TestConformance(t *testing.T) {
	open := func(testing.TB) backend.Backend { return New() }
	backendtest.RunWith(t, open, backendtest.Options{Allocates: true, Stride: 2})
}
