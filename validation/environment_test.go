package validation

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPackedCommit: outside of a repository, such as in a bundle, the commit is
// what was packed beside the binaries.
func TestPackedCommit(t *testing.T) {
	root := t.TempDir()
	writeFile(t, "0123abc+changes\n", root, "COMMIT")
	require.Equal(t, "0123abc+changes", commit(root))
}
