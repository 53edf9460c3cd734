//go:build unix

package validation

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// suite runs this test binary anew with flags of its own, sends it a signal at
// the first line that contains a text (never for ""), and returns all that it
// printed and its exit code.
func suite(t *testing.T, signalAt string, args ...string) (string, int) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe, append([]string{"-test.v", "-test.run=^TestSingleRequestLatency$"}, args...)...)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = cmd.Stdout
	require.NoError(t, cmd.Start())
	var text strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		if signalAt != "" && strings.Contains(lines.Text(), signalAt) {
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			signalAt = ""
		}
	}
	_ = cmd.Wait()
	return text.String(), cmd.ProcessState.ExitCode()
}

// TestExitCodes: 0 when nothing failed, 1 when a criterion was not passed, 2
// when the flags make no sense.
func TestExitCodes(t *testing.T) {
	if builtFor == "" {
		text, code := suite(t, "")
		require.Equal(t, 0, code, text)
		require.Contains(t, text, "NOT MEASURED: no backend was asked for. Run `make validate`")
	}

	text, code := suite(t, "", "-backend", "cpu", "-max-batch-size", "1")
	require.Equal(t, 2, code, text)
	require.Contains(t, text, "a batch arm of one row is the serial arm")

	results := t.TempDir()
	text, code = suite(t, "", "-backend", "cpu", "-checkpoint", "does/not/exist", "-results", results)
	require.Equal(t, 1, code, text)
	require.Contains(t, text, "does/not/exist")
	left, err := os.ReadDir(results)
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestInterruptedProcess: at a signal the suite ends with what it has, fails,
// prints the table and leaves the files.
func TestInterruptedProcess(t *testing.T) {
	results := t.TempDir()
	text, code := suite(t, "latency: warm-up 2 of", "-backend", "cpu", "-checkpoint", "random:qwen3.5-tiny", "-max-tokens", "64", "-results", results)
	require.Equal(t, 1, code, text)
	require.Contains(t, text, "what was measured is kept")
	require.Contains(t, text, "throughput, 8 concurrent  –")
	require.Contains(t, text, "not as specified: 64 tokens a request instead of 128")
	found, err := filepath.Glob(filepath.Join(results, "*", "results.json"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	r, err := Load(found[0])
	require.NoError(t, err)
	require.True(t, r.Interrupted)
	require.NotEmpty(t, r.Criteria[0].WarmupBlocks)
	require.Contains(t, read(t, filepath.Dir(found[0]), "single_latency.txt"), "warm-up 2 of 3")
}
