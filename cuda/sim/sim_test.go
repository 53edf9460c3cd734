package sim

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKernelsCompile(t *testing.T) {
	if !Available {
		t.Skip("built without the simulator: use -tags cudasim")
	}
	d, err := Open(Options{})
	require.NoError(t, err)
	require.NoError(t, d.Close())
}
