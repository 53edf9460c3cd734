package cuda

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/sim"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/backend/backendtest"
)

// openSim is the backend on the simulator, or a skip that says how to have it.
func openSim(t testing.TB, opt sim.Options) *Backend {
	t.Helper()
	if !sim.Available {
		t.Skip("the kernels run on the simulator only: go test -tags cudasim ./cuda (needs cgo and g++)")
	}
	dev, err := sim.Open(opt)
	require.NoError(t, err)
	b, err := New(dev)
	require.NoError(t, err)
	return b
}

// TestConformance holds the kernels, on the simulator, to the contract. It takes
// every twelfth case; BATCHPROOF_SIM_STRIDE=1 takes them all (some minutes).
func TestConformance(t *testing.T) {
	stride := 12
	if s := os.Getenv("BATCHPROOF_SIM_STRIDE"); s != "" {
		var err error
		stride, err = strconv.Atoi(s)
		require.NoError(t, err, "BATCHPROOF_SIM_STRIDE")
	}
	backendtest.RunWith(t, func(t testing.TB) backend.Backend { return openSim(t, sim.Options{}) },
		backendtest.Options{Stride: stride})
}
