package validation

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/ref"
)

// TestPackedCommit: outside of a repository, such as in a bundle, the commit is
// what was packed beside the binaries.
func TestPackedCommit(t *testing.T) {
	root := t.TempDir()
	writeFile(t, "0123abc+changes\n", root, "COMMIT")
	require.Equal(t, "0123abc+changes", commit(root))
}

type deviceBackend struct{ backend.Backend }

func (deviceBackend) DeviceFacts() map[string]string { return map[string]string{"clock": "345 MHz"} }

// TestDeviceFacts: what a backend tells of its device goes into the environment.
func TestDeviceFacts(t *testing.T) {
	var e Environment
	e.ReadDevice(deviceBackend{ref.New()})
	require.Equal(t, map[string]string{"clock": "345 MHz"}, e.Device)
	require.Equal(t, ref.New().Describe(), e.Backend)
	e.ReadDevice(ref.New())
	require.Empty(t, e.Device)
}
