package testutil

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/batchproof/batchproof"

// allowed lists, for each package with rules, the project's packages that its
// code (tests aside) may import. A package missing here may import anything
// but what the general rules forbid.
var allowed = map[string][]string{
	"engine/backend":             {},
	"engine/backend/backendtest": {"engine/backend", "engine/ref"},
	"engine/kv":                  {},
	"engine/weights":             {"engine/backend"},
	"engine/model":               {"engine/backend", "engine/weights"},
	"engine/ref":                 {"engine/backend"},
	"engine/cpu":                 {"engine/backend"},
	"engine":                     {"engine/backend", "engine/kv", "engine/model", "engine/weights"},
	"cuda":                       {"engine/backend", "cuda/driver", "cuda/kernels", "cuda/monitor"},
	"cuda/driver":                {},
	"cuda/kernels":               {},
	"cuda/monitor":               {},
	"cuda/sim":                   {"cuda/driver", "cuda/kernels"},
	"scheduler":                  {"engine", "engine/backend"},
	"validation/stats":           {},
	"benchdata":                  {},
}

// standardOnly lists packages that import nothing but the standard library.
var standardOnly = []string{"cuda/driver", "cuda/kernels"}

// cgo lists the packages that may use it.
var cgo = []string{"cuda/driver", "cuda/sim"}

// TestImportRules proves the arrows of the design: who may import whom, that
// cgo stays in its leaves, that nothing imports the validation suite, and that
// only tests import testutil.
func TestImportRules(t *testing.T) {
	files := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != ".." && ignoredDir(path, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		rel, err := filepath.Rel("..", path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if broken := checkImport(filepath.ToSlash(rel), imported); broken != "" {
				t.Errorf("%s imports %q: %s", rel, imported, broken)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, files, 20, "the walk found too few files to mean anything")
}

// ignoredDir is a folder outside the module: hidden, data, or a nested module.
func ignoredDir(path, name string) bool {
	if strings.HasPrefix(name, ".") || name == "testdata" {
		return true
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	return err == nil
}

func checkImport(file, imported string) string {
	pkg := filepath.ToSlash(filepath.Dir(file))
	test := strings.HasSuffix(file, "_test.go")
	if imported == "C" {
		if !slices.Contains(cgo, pkg) {
			return "cgo lives in " + strings.Join(cgo, " and ") + " alone"
		}
		return ""
	}
	target, ours := strings.CutPrefix(imported, module+"/")
	if !ours {
		if !test && slices.Contains(standardOnly, pkg) && strings.Contains(strings.Split(imported, "/")[0], ".") {
			return pkg + " imports the standard library only"
		}
		return ""
	}
	inside := func(pkg, room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") }
	if inside(target, "validation") && !inside(pkg, "validation") {
		return "nothing imports the validation suite"
	}
	if test {
		return ""
	}
	if inside(target, "testutil") && !inside(pkg, "testutil") {
		return "only tests import testutil"
	}
	if list, ok := allowed[pkg]; ok && !slices.Contains(list, target) {
		return pkg + " may import only " + strings.Join(append(list, "(nothing else of this module)"), ", ")
	}
	return ""
}

// TestImportRulesCatch proves that the rules say no.
func TestImportRulesCatch(t *testing.T) {
	for _, c := range []struct {
		file, imported string
		refused        bool
	}{
		{"engine/engine.go", module + "/engine/kv", false},
		{"engine/engine.go", module + "/engine/cpu", true},
		{"engine/engine_test.go", module + "/engine/cpu", false},
		{"engine/cpu/linear.go", module + "/engine/model", true},
		{"engine/cpu/linear.go", "C", true},
		{"cuda/driver/driver_cuda.go", "C", false},
		{"cuda/driver/driver_cuda.go", "golang.org/x/sys/unix", true},
		{"cuda/kernels/kernels.go", "embed", false},
		{"scheduler/loop.go", module + "/validation", true},
		{"scheduler/loop_test.go", module + "/validation", true},
		{"scheduler/loop.go", module + "/testutil", true},
		{"scheduler/loop_test.go", module + "/testutil", false},
		{"validation/arms.go", module + "/scheduler", false},
		{"validation/arms.go", module + "/validation/stats", false},
	} {
		require.Equal(t, c.refused, checkImport(c.file, c.imported) != "", "%s imports %s", c.file, c.imported)
	}
}
