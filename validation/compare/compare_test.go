package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/validation"
)

// cli runs the command line.
func cli(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = newCommand(&out, &err).run(t.Context(), args)
	return code, out.String(), err.String()
}

const header = "Unit tok/s better=higher\nmodel: random:m\nengine: cpu: avx512, 2 threads\ncommit: %s\ncores: 2\nmemory: 24 GiB\ngoos: linux\ngoarch: amd64\ncpu: Test CPU\n"

// benchFile writes samples of two benchmarks around the given rates; batch÷serial
// is batch/serial whatever the machine.
func benchFile(t *testing.T, dir, name, head string, serial, batch float64, n int) string {
	t.Helper()
	out := head
	for i := range n {
		wobble := 1 + 0.004*math.Sin(float64(3*i+1))
		for mode, rate := range map[string]float64{"serial": serial, "batch": batch} {
			out += fmt.Sprintf("BenchmarkGenerate/model=m/mode=%s/concurrent=4-2 1 %.9g ns/op %.9g tok/s\n", mode, 1e9/(rate*wobble), rate*wobble)
		}
	}
	path := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
	require.NoError(t, os.WriteFile(path, []byte(out), 0o644))
	return path
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	h := fmt.Sprintf(header, strings.Repeat("a", 40))
	base := benchFile(t, dir, "base.txt", h, 100, 300, 10)
	file := func(name, head string, serial, batch float64, n int) string {
		return benchFile(t, dir, name, head, serial, batch, n)
	}
	one := file("one.txt", h+"BenchmarkGenerate/model=m/mode=serial/concurrent=4-2 1 1 TTFT-ms\n", 100, 300, 10)
	two := file("two.txt", "BenchmarkX 1 1 frobs\n", 1, 1, 0)
	otherCommit := fmt.Sprintf(header, strings.Repeat("b", 40))
	otherMachine := strings.Replace(h, "Test CPU", "Other CPU", 1)
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string // in what is printed
	}{
		{"same", []string{base, file("same.txt", otherCommit, 100, 300, 10)}, 0, []string{"no change", "vs base", "one after the other"}},
		{"slower", []string{base, file("slow.txt", otherCommit, 95, 300, 10)}, 1, []string{"regression (margin 3 %)", "mode=serial", "-5.0 %"}},
		{"slower, within a wider margin", []string{"-margin", "0.1", base, filepath.Join(dir, "slow.txt")}, 0, []string{"no change"}},
		{"faster", []string{base, file("fast.txt", h, 100, 330, 10)}, 0, []string{"no regression", "1 of 2 rows improved"}},
		{"too few", []string{base, file("few.txt", h, 100, 300, 3)}, 2, []string{"cannot decide", "record more samples"}},
		{"by time", []string{"-units", "ns/op", base, filepath.Join(dir, "slow.txt")}, 1, []string{"sec/op +5.3 %"}},
		{"filtered", []string{"-filter", "/mode:batch", base, filepath.Join(dir, "slow.txt")}, 0, []string{"all 1 rows"}},
		{"another machine", []string{base, file("other.txt", otherMachine, 50, 150, 10)}, 3, []string{`cpu "Test CPU" against "Other CPU"`, "-relative"}},
		{"another machine, relative", []string{"-relative", base, filepath.Join(dir, "other.txt")}, 0, []string{"mode=batch÷serial", "no change"}},
		{"another machine, relative and worse", []string{"-relative", base, file("worse.txt", otherMachine, 50, 130, 10)}, 1, []string{"regression"}},
		{"another model, relative", []string{"-relative", base, file("model.txt", strings.Replace(h, "random:m", "random:n", 1), 50, 150, 10)}, 3, []string{"not even ratios"}},
		{"nothing in it", []string{base, file("empty.txt", "hello\n", 0, 0, 0)}, 3, []string{"holds no benchmark results", "make bench"}},
		{"filter lets nothing through", []string{"-filter", "/mode:none", base, base}, 3, []string{"-filter"}},
		{"broken filter", []string{"-filter", "((", base, base}, 3, []string{"-filter"}},
		{"broken line", []string{base, file("broken.txt", "BenchmarkX one\n", 1, 1, 1)}, 3, []string{"broken.txt:1", "record the file again"}},
		{"mixed machines", []string{base, file("mixed.txt", h+"BenchmarkX 1 1 tok/s\n"+otherMachine, 1, 1, 1)}, 3, []string{"mixes results of cpu"}},
		{"unit on one side", []string{"-units", "tok/s,TTFT-ms", one, base}, 3, []string{"TTFT-ms on one side only"}},
		{"neither unit", []string{two, two}, 3, []string{"neither tok/s nor sec/op on both sides"}},
		{"which way", []string{"-units", "frobs", two, two}, 3, []string{"more or less frobs is better", "Unit frobs better=higher"}},
		{"no such unit", []string{"-units", "frobs", base, base}, 3, []string{"no benchmark has the unit frobs"}},
		{"flags of refs", []string{"-count", "9", base, base}, 3, []string{"-count: has no effect on recorded files"}},
		{"file and ref", []string{base, "HEAD"}, 3, []string{"one is a file and the other is not"}},
		{"one argument", []string{base}, 3, []string{"want BASE and HEAD, not 1 arguments"}},
		{"no such flag", []string{"-nonsense"}, 3, []string{"nonsense"}},
		{"margin", []string{"-margin", "3", base, base}, 3, []string{"-margin 3"}},
		{"missing file", []string{base, filepath.Join(dir, "lost.txt")}, 3, []string{"lost.txt"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := cli(t, c.args...)
			assert.Equal(t, c.code, code, "%s\n%s", out, errs)
			for _, w := range c.want {
				assert.Contains(t, out+errs, w)
			}
			if code == 3 {
				assert.Empty(t, out)
			} else {
				assert.Empty(t, errs)
			}
		})
	}
}

func TestJSON(t *testing.T) {
	dir := t.TempDir()
	h := fmt.Sprintf(header, "c")
	file := filepath.Join(dir, "out.json")
	code, _, errs := cli(t, "-json", file, benchFile(t, dir, "a.txt", h, 100, 300, 3), benchFile(t, dir, "b.txt", h, 100, 300, 3))
	require.Equal(t, 2, code, errs)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var s summary
	require.NoError(t, json.Unmarshal(data, &s))
	require.Equal(t, "cannot decide", s.Gate)
	require.Equal(t, 2, s.Exit)
	require.Equal(t, "Test CPU", s.Machine["cpu"])
	require.Len(t, s.Rows, 2)
	require.Nil(t, s.Rows[0].Upper, "an infinite bound is null")
	require.Equal(t, "higher", s.Rows[0].Better)
	require.InDelta(t, 1, *s.Rows[0].Ratio, 0.01)
	require.NotNil(t, s.Rows[0].Holm)
}

// The key of a machine, from configuration lines.
func TestMachineKey(t *testing.T) {
	for _, c := range []struct {
		config map[string]string
		want   string
	}{
		{map[string]string{"cpu": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "cores": "8", "memory": "32 GiB", "model": "random:qwen3.5-mini", "engine": "cpu: avx512, 8 threads"},
			"intel-xeon-platinum-8481c-cpu-2.70ghz_8-cores_32-gib/qwen3.5-mini"},
		{map[string]string{"cpu": "AMD EPYC", "cores": "16", "memory": "128 GiB", "model": "/models/Llama-3.2-1B", "engine": "cuda: NVIDIA H200, compute capability 9.0, 132 SMs, driver for CUDA 12.8"},
			"nvidia-h200_16-cores_128-gib_cuda-12.8/llama-3.2-1b"},
	} {
		got, err := baselineDir(c.config)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := baselineDir(map[string]string{"cpu": "x", "model": "m"})
	require.ErrorContains(t, err, `"cores, memory:"`)
	_, err = baselineDir(map[string]string{"cpu": "x", "cores": "1", "memory": "1 GiB"})
	require.ErrorContains(t, err, `no line "model:"`)
}

func TestBaseline(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "baselines")
	h := fmt.Sprintf(header, strings.Repeat("a", 40))
	// A results directory, whose environment.json says what bench.txt does not.
	results := filepath.Join(dir, "results", "run")
	benchFile(t, results, "bench.txt", strings.Replace(h, "memory: 24 GiB\n", "", 1), 100, 300, 10)
	require.NoError(t, os.WriteFile(filepath.Join(results, "environment.json"), []byte(`{"memory_bytes": 25000000000}`), 0o644))
	slow := benchFile(t, dir, "slow.txt", h, 90, 300, 10)

	head, err := readFile("head", slow, "")
	require.NoError(t, err)
	_, err = findBaseline(root, head)
	require.ErrorIs(t, err, errNoBaseline)
	require.ErrorContains(t, err, "there are none yet")

	s, err := readFile("record", results, "")
	require.NoError(t, err)
	info, err := os.Stat(results)
	require.NoError(t, err)
	to, err := record(root, s, info.ModTime())
	require.NoError(t, err)
	require.Equal(t, "test-cpu_2-cores_24-gib/m", filepath.ToSlash(filepath.Dir(strings.TrimPrefix(to, root+string(filepath.Separator)))))
	require.True(t, strings.HasSuffix(to, "-aaaaaaaaaaaa.txt"))
	_, err = record(root, s, info.ModTime())
	require.ErrorContains(t, err, "is recorded already")

	found, err := findBaseline(root, head)
	require.NoError(t, err)
	require.Equal(t, to, found)
	again, err := readFile("base", found, "")
	require.NoError(t, err)
	require.Equal(t, "24 GiB", again.config["memory"], "what environment.json said is kept")
	r, err := compareFiles(again, head, "auto", 0.03, 0.05)
	require.NoError(t, err)
	require.Equal(t, gateFail, verdict(r.rows))

	other, err := readFile("head", benchFile(t, dir, "other.txt", strings.Replace(h, "cores: 2", "cores: 4", 1), 1, 1, 1), "")
	require.NoError(t, err)
	_, err = findBaseline(root, other)
	require.ErrorIs(t, err, errNoBaseline)
	require.ErrorContains(t, err, "test-cpu_4-cores_24-gib")
	require.ErrorContains(t, err, "test-cpu_2-cores_24-gib", "what there is is named")

	for commit, want := range map[string]string{"abc+changes": "no commit holds", "": "which commit"} {
		s, err := readFile("record", benchFile(t, dir, "x.txt", fmt.Sprintf(header, commit), 1, 1, 1), "")
		require.NoError(t, err)
		_, err = record(root, s, info.ModTime())
		require.ErrorContains(t, err, want)
	}
}

func TestBaselineFlag(t *testing.T) {
	dir := t.TempDir()
	h := fmt.Sprintf(header, "c")
	head := benchFile(t, dir, "head.txt", h, 100, 300, 10)
	code, _, errs := cli(t, "-baseline", "auto", head)
	require.Equal(t, 2, code, "no baseline is no evidence")
	require.Contains(t, errs, "no baseline of this machine and model (test-cpu_2-cores_24-gib/m)")
	code, out, _ := cli(t, "-baseline", head, head)
	require.Equal(t, 0, code)
	require.Contains(t, out, "no change")
	code, _, errs = cli(t, "-baseline", benchFile(t, dir, "other.txt", strings.Replace(h, "avx512", "avx2", 1), 100, 300, 10), head)
	require.Equal(t, 3, code)
	require.Contains(t, errs, "absolute times cannot be compared")
	code, _, errs = cli(t, "-baseline", "auto", "HEAD")
	require.Equal(t, 3, code)
	require.Contains(t, errs, "a baseline is compared with a recorded file")
}

// Runs of two machines are two panels: nothing joins them.
func TestTrend(t *testing.T) {
	dir := t.TempDir()
	h := fmt.Sprintf(header, "c0ffee0000")
	for i, rate := range []float64{100, 104, 99} {
		benchFile(t, dir, fmt.Sprintf("m/2026-01-0%d.txt", i+1), h, rate, 3*rate, 8)
	}
	benchFile(t, dir, "m/2026-01-04.txt", strings.Replace(h, "Test CPU", "A <& CPU", 1), 50, 150, 8)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "m", "notes.txt"), []byte("no results\n"), 0o644))
	svg := filepath.Join(dir, "trend.svg")
	code, out, errs := cli(t, "-trend", svg, filepath.Join(dir, "m"))
	require.Equal(t, 0, code, errs)
	require.Contains(t, out, "4 runs, 4 rows")
	data, err := os.ReadFile(svg)
	require.NoError(t, err)
	counts := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := tok.(xml.StartElement); ok {
			counts[e.Name.Local]++
		}
	}
	require.Equal(t, 4, counts["polyline"])
	require.Equal(t, 2*3+2, counts["circle"])
	require.NotContains(t, string(data), "NaN")
	require.Contains(t, string(data), "2026-01-01")

	code, _, errs = cli(t, "-trend", svg, t.TempDir())
	require.Equal(t, 3, code)
	require.Contains(t, errs, "no benchmark results")
}

// A repository with a suite that is a shell script: worktrees, runs, and that
// nothing is left. The build copies the script, since a real one takes seconds.
func TestRefs(t *testing.T) {
	for _, tool := range []string{"git", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("NOT TESTED: worktrees and runs need git and sh; install them")
		}
	}
	repo := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"}, args...)...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	write := func(name, text string) {
		t.Helper()
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(repo, name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(repo, name), []byte(text), 0o644))
	}
	suite := func(rate float64, name string) string {
		return fmt.Sprintf(`#!/bin/sh
case "$*" in
*-new-flag*) echo "flag provided but not defined: -new-flag" >&2; exit 2 ;;
*Nothing*) ;;
*) echo "Unit tok/s better=higher"; echo "Benchmark%s 1 %g tok/s" ;;
esac
`, name, rate)
	}
	copied := func(string) buildFunc {
		return func(ctx context.Context, dir, program string) ([]byte, error) {
			text, err := os.ReadFile(filepath.Join(dir, "validation", "suite"))
			if err != nil || bytes.Contains(text, []byte("broken")) {
				return goBuild("")(ctx, dir, program)
			}
			return nil, os.WriteFile(program, text, 0o755)
		}
	}
	git("init", "-q", "-b", "main")
	write("go.mod", "module example.com/m\n\ngo 1.26\n")
	write("validation/suite", suite(100, "DecodeStep"))
	git("add", ".")
	git("commit", "-q", "-m", "one")
	git("tag", "one")
	write("README", "words\n")
	git("add", ".")
	git("commit", "-q", "-m", "words")
	git("tag", "words")
	write("validation/suite", suite(95, "DecodeStep"))
	git("commit", "-q", "-am", "slower")
	git("tag", "slow")
	write("validation/suite", suite(95, "Other"))
	git("commit", "-q", "-am", "renamed")
	git("tag", "renamed")
	write("validation/suite", "broken\n")
	write("validation/a_test.go", "package validation\n\nfunc broken( {\n")
	git("add", ".")
	git("commit", "-q", "-am", "broken")
	git("tag", "broken")
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)

	results := t.TempDir()
	summary := filepath.Join(t.TempDir(), "summary.md")
	common := []string{"-flags", "", "-benchtime", "1x", "-results", results, "-markdown", summary}
	clean := func(t *testing.T) {
		t.Helper()
		left, err := os.ReadDir(tmp)
		require.NoError(t, err)
		assert.Empty(t, left)
		assert.Equal(t, 1, strings.Count(git("worktree", "list", "--porcelain"), "worktree "), "no worktree is left")
	}
	for _, c := range []struct {
		name string
		args []string
		code int
		want []string
	}{
		{"same program", []string{"one", "words"}, 0, []string{"bit for bit"}},
		{"slower", []string{"one", "slow"}, 1, []string{"regression (margin 3 %): DecodeStep tok/s -5.0 %", "interleaved blocks"}},
		{"faster", []string{"slow", "one"}, 0, []string{"1 of 1 rows improved"}},
		{"measured nevertheless", []string{"-aa", "one", "words"}, 0, []string{"no change (margin 3 %)"}},
		{"no such ref", []string{"one", "nowhere"}, 3, []string{`"nowhere" is neither a file nor a ref`}},
		{"does not build", []string{"one", "broken"}, 3, []string{"head (broken,", "does not build", "a_test.go:3"}},
		{"missing benchmark", []string{"-bench", ".", "one", "renamed"}, 3, []string{"DecodeStep", "is in base", "and not in head"}},
		{"selects nothing", []string{"-bench", "Nothing", "one", "slow"}, 3, []string{"no benchmark that -bench selects"}},
		{"unknown flag of the suite", []string{"-flags", "-new-flag 3", "one", "slow"}, 3, []string{"older than that flag"}},
		{"flags of files", []string{"-relative", "one", "slow"}, 3, []string{"-relative: is for recorded files"}},
		{"backend", []string{"-backend", "tpu", "one", "slow"}, 3, []string{`-backend "tpu"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := newCommand(&stdout, &stderr)
			cmd.root, cmd.build = repo, copied // benchstat stays this module's
			code := cmd.run(t.Context(), append(append([]string{}, common...), c.args...))
			out, errs := stdout.String(), stderr.String()
			assert.Equal(t, c.code, code, "%s\n%s", out, errs)
			for _, w := range c.want {
				assert.Contains(t, out+errs, w)
			}
			md, err := os.ReadFile(summary)
			require.NoError(t, err)
			require.NoError(t, os.Remove(summary))
			assert.Contains(t, string(md), "### Is head slower than base? "+map[int]string{0: "✓", 1: "✗", 3: "!"}[c.code])
			if c.code == 1 {
				assert.Contains(t, string(md), "| DecodeStep tok/s | -5.0 % |")
				assert.Contains(t, string(md), "<summary>benchstat</summary>")
			}
			if c.code != 3 && c.name != "same program" {
				kept, err := filepath.Glob(filepath.Join(results, "*", "compare.json"))
				require.NoError(t, err)
				assert.NotEmpty(t, kept)
			}
			clean(t)
		})
	}

	t.Run("interrupt", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stdout, stderr bytes.Buffer
		cmd := newCommand(&stdout, &stderr)
		cmd.root, cmd.build = repo, copied
		cmd.progress = func(format string, args ...any) {
			if strings.HasPrefix(format, "block") {
				cancel()
			}
		}
		require.Equal(t, exitUndecided, cmd.run(ctx, append(append([]string{}, common...), "one", "slow")), stderr.String())
		require.Contains(t, stdout.String(), "interrupted during block 2 of 32")
		require.Contains(t, stdout.String(), "vs base", "what was measured is shown")
		clean(t)
	})
}

// Another engine's files, as docs/gating.md has them written, in a directory
// where no benchstat is.
func TestFilesOfAnotherEngine(t *testing.T) {
	dir := t.TempDir()
	for i, name := range sideNames {
		out := ""
		for block := range 12 {
			for range 2 {
				out += fmt.Sprintf("block: %d\nmodel: m\ncpu: c\ncores: 8\nUnit tok/s better=higher\nBenchmarkX 1 %d tok/s\n", block+1, 300+block%5-20*i)
			}
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".txt"), []byte(out), 0o644))
	}
	var stdout, stderr bytes.Buffer
	cmd := newCommand(&stdout, &stderr)
	cmd.tools = dir
	require.Equal(t, exitRegression, cmd.run(t.Context(), []string{filepath.Join(dir, "base.txt"), filepath.Join(dir, "head.txt")}), stderr.String())
	require.Contains(t, stdout.String(), "12 interleaved blocks")
	require.Contains(t, stderr.String(), "benchstat's own table is left out")
}

// TestDefaultBench: the suite has what is measured by default.
func TestDefaultBench(t *testing.T) {
	args := append([]string{"test", "./validation", "-run", "^$", "-bench", defaultBench, "-benchtime", "1x",
		"-backend", "cpu", "-checkpoint", "random:qwen3.5-tiny"}, strings.Fields(defaultSuite)...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = validation.ModuleRoot()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^Benchmark(\w+)/.*/(\w+=\d+)(-\d+)? `).FindAllStringSubmatch(string(out), -1) {
		names = append(names, m[1]+" "+m[2])
	}
	require.Equal(t, []string{"DecodeStep batch=1", "DecodeStep batch=8", "Prefill tokens=64"}, names, string(out))
}

func TestShorten(t *testing.T) {
	require.Equal(t, []string{"Generate/mode=serial tok/s", "Generate/mode=batch tok/s", "DecodeStep/batch=8 tok/s"}, shorten([]rowKey{
		{"Generate/model=m/backend=cpu/mode=serial-2", "tok/s"}, {"Generate/model=m/backend=cpu/mode=batch-2", "tok/s"}, {"DecodeStep/model=m/backend=cpu/batch=8-2", "tok/s"},
	}))
	require.Equal(t, []string{"Encode/json sec/op"}, shorten([]rowKey{{"Encode/json-8", "sec/op"}}))
}
