//go:build linux

package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestBundleRun takes the script of the bundle through its parts, with stubs in
// place of the test binaries: what fails does not keep the rest from running, and
// is told at the end.
func TestBundleRun(t *testing.T) {
	for _, program := range []string{"bash", "timeout", "env", "tee", "realpath"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("the bundle's script needs %s, which this machine lacks", program)
		}
	}
	parts := []string{"device", "goldens", "models", "conformance", "validate", "decode", "kernels", "sweep"}
	for _, c := range []struct {
		name   string
		fails  string // a test whose stub fails
		limit  string
		ok     []string
		others map[string]string // part → start of its line
		says   string
	}{
		{name: "all is well", ok: parts},
		{name: "no device", fails: "TestDevice", others: map[string]string{"device": "FAILED"}, says: "no usable GPU"},
		{name: "a part fails", fails: "TestGoldens", ok: []string{"device", "models", "conformance", "validate", "decode", "kernels", "sweep"},
			others: map[string]string{"goldens": "FAILED"}, says: "exit status 3"},
		{name: "no time", limit: "3", others: map[string]string{"device": "NOT_RUN"}, says: "the 3 s are used up"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
			script, err := os.ReadFile("bundle/run.sh")
			require.NoError(t, err)
			// The stub prints its arguments, fails where it shall, and leaves results
			// in a folder of their own, as the suite does.
			stub := `#!/usr/bin/env bash
echo "$PWD $*"
[ "$BATCHPROOF_REQUIRE" = gpu ] || exit 4
[ -z "` + c.fails + `" ] || [[ $* != *` + c.fails + `* ]] || exit 3
while (($#)); do
	[ "$1" != -results ] || { mkdir -p "$2/2000-01-01T00-00-00Z" && echo {} >"$2/2000-01-01T00-00-00Z/results.json"; }
	shift
done
`
			for name, text := range map[string]string{
				"run.sh": string(script), "COMMIT": "abc\n", "GLIBC": "2.34\n", "cuda/cuda.test": stub, "validation/validation.test": stub,
			} {
				require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(root, name), []byte(text), 0o700))
			}
			cmd := exec.Command("bash", filepath.Join(root, "run.sh"), out)
			cmd.Env = append(os.Environ(), "LIMIT="+c.limit, "PATH="+os.Getenv("PATH"))
			text, err := cmd.CombinedOutput()
			if len(c.others) == 0 {
				require.NoError(t, err, "%s", text)
			} else {
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit, "%s", text)
				require.Equal(t, 1, exit.ExitCode())
			}
			assert.Contains(t, string(text), c.says)
			summary, err := os.ReadFile(filepath.Join(out, "summary.txt"))
			require.NoError(t, err)
			lines := make(map[string]string)
			for line := range strings.Lines(string(summary)) {
				if f := strings.Fields(line); len(f) > 1 {
					lines[f[1]] = f[0]
				}
			}
			for _, part := range c.ok {
				assert.Equal(t, "ok", lines[part], "%s\n%s", part, text)
			}
			for part, want := range c.others {
				assert.Equal(t, want, lines[part], "%s\n%s", part, text)
			}
			for _, part := range parts {
				if lines[part] == "" {
					require.NoFileExists(t, filepath.Join(out, part+".txt"))
				}
			}
			if len(c.ok) > 0 {
				require.FileExists(t, filepath.Join(out, "validate", "results.json"), "laid out flat")
				require.FileExists(t, filepath.Join(out, "machine.txt"))
				require.NoDirExists(t, filepath.Join(out, "jit"))
			}
		})
	}
}
