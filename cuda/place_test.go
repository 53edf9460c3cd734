package cuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/sim"
	"github.com/batchproof/batchproof/testutil"
)

// place is what the kernels run on in a test.
type place struct {
	gpu  bool
	open func(t testing.TB) *Backend // or a skip that says how to have it
}

// onEach runs f on the simulator and on the GPU, as subtests.
func onEach(t *testing.T, f func(t *testing.T, p place)) {
	t.Run("sim", func(t *testing.T) {
		f(t, place{open: func(t testing.TB) *Backend { return openSim(t, sim.Options{}) }})
	})
	t.Run("gpu", func(t *testing.T) { f(t, place{gpu: true, open: openGPU}) })
}

// openSim is the backend on the simulator, or a skip that says how to have it.
func openSim(t testing.TB, opt sim.Options) *Backend {
	t.Helper()
	if !sim.Available {
		testutil.Missing(t, "cudasim", "the kernels run on the simulator only: go test -tags cudasim ./cuda (needs cgo and g++)")
	}
	dev, err := sim.Open(opt)
	require.NoError(t, err)
	b, err := New(dev)
	require.NoError(t, err)
	return b
}

// openGPU is the backend on the first GPU, or a skip that says what is missing;
// with BATCHPROOF_REQUIRE=gpu a failure.
func openGPU(t testing.TB) *Backend {
	t.Helper()
	dev, err := driver.Open(0)
	if errors.Is(err, driver.ErrNotBuilt) || errors.Is(err, driver.ErrNoDriver) || errors.Is(err, driver.ErrNoDevice) {
		testutil.Missing(t, "gpu", err.Error())
	}
	require.NoError(t, err)
	b, err := New(dev)
	require.NoError(t, err)
	return b
}

// TestDevice says what the tests of a GPU run on.
func TestDevice(t *testing.T) {
	b := openGPU(t)
	free, total, err := b.dev.Memory()
	require.NoError(t, err)
	t.Logf("%s; %s of %s are free", b.Describe(), size(free), size(total))
	require.NoError(t, b.Close())
}
