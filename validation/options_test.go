package validation

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/cpu"
)

func parse(t *testing.T, args ...string) (Options, error) {
	t.Helper()
	var o Options
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	o.Register(fs)
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.Given(fs)
	return o, o.Validate()
}

// TestDefaultBackend: who builds for a GPU asks for it, unless the flags say otherwise.
func TestDefaultBackend(t *testing.T) {
	for _, c := range []struct{ args, backend, checkpoint string }{
		{"", builtFor, map[string]string{"": DefaultCheckpoint, "cuda": DefaultCUDACheckpoint}[builtFor]},
		{"-backend cpu", "cpu", DefaultCheckpoint},
		{"-backend cuda", "cuda", DefaultCUDACheckpoint},
		{"-replay results.json", "", DefaultCheckpoint},
	} {
		o, err := parse(t, strings.Fields(c.args)...)
		require.NoError(t, err)
		o.useDefaultBackend()
		require.Equal(t, []string{c.backend, c.checkpoint}, []string{o.Backend, o.defaultCheckpoint()}, c.args)
	}
}

// TestSpecifiedDefaults holds the flags to the specification.
func TestSpecifiedDefaults(t *testing.T) {
	o, err := parse(t, "-backend", "cpu")
	require.NoError(t, err)
	require.Equal(t, 128, o.MaxTokens)
	require.Equal(t, 32, o.PromptLength)
	require.Equal(t, []int{2, 4, 8}, o.NumConcurrent)
	require.Equal(t, 8, o.MaxBatchSize)
	require.Equal(t, 3, o.Warmups(FamilyLatency))
	require.Equal(t, 1, o.Warmups(FamilyThroughput))
	require.Equal(t, 10, specifiedRuns(FamilyLatency))
	require.Equal(t, 3, specifiedRuns(FamilyThroughput))
	require.Equal(t, []int{1, 2, 4, 8}, o.Sizes)
	require.Equal(t, 8, o.NewTokens)
	require.Equal(t, 16, o.BlockSize)
	require.Equal(t, 32, o.LongTokens)
	require.Equal(t, 4, o.ShortTokens)
	require.Equal(t, AgainstTarget, o.Against)
	require.Equal(t, 0.85, o.Share)

	var rules []string
	for _, c := range Criteria() {
		rules = append(rules, c.String()+" "+c.Rule())
	}
	require.Equal(t, []string{
		"single-request latency ≤ 1.05",
		"throughput, 2 concurrent ≥ 1.70", "throughput, 4 concurrent ≥ 3.00", "throughput, 8 concurrent ≥ 4.50",
	}, rules)
	require.Equal(t, "none", ThroughputCriterion(16).Rule())
}

func TestGoodFlags(t *testing.T) {
	for _, args := range []string{
		"",
		"-seed 7",
		"-replay results/x/results.json -allow-inconclusive",
		"-replay results/x/results.json -against ceiling -share 0.9",
		"-backend cpu -against ceiling",
		"-backend cpu -num-concurrent 2,4,8,16 -max-batch-size 8",
		"-backend cuda -checkpoint random:qwen3.5-27b",
		"-backend cpu -warmup-runs 2 -test-runs 5 -threads 2 -precision f32 -token-budget 71 -allow-inconclusive",
	} {
		_, err := parse(t, strings.Fields(args)...)
		require.NoError(t, err, args)
	}
}

// TestBadFlags: each mistake has one error that says what and why.
func TestBadFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-backend gpu":                                 `-backend "gpu": want cpu or cuda`,
		"-max-tokens 32":                               "-max-tokens has no effect without -backend cpu|cuda",
		"-backend cpu -max-tokens 0":                   "-max-tokens 0: want at least 2: the first token comes from the prompt, so that a request of one token has no decode step",
		"-backend cpu -prompt-length 0":                "-prompt-length 0: want at least 1",
		"-backend cpu -max-batch-size 1":               "-max-batch-size 1: want at least 2: a batch arm of one row is the serial arm",
		"-backend cpu -num-concurrent 1,2":             "-num-concurrent 1: a lone request is measured by TestSingleRequestLatency",
		"-backend cpu -num-concurrent 0":               "-num-concurrent 0: want at least 2",
		"-backend cpu -num-concurrent 2,4,2":           "-num-concurrent: 2 stands in it twice",
		"-backend cpu -threads -1":                     "-threads -1: want at least 0",
		"-backend cpu extra -max-tokens 0":             `unexpected argument "extra": flags after it would not be read`,
		"-backend cpu -max-tokens 9223372036854775807": "-max-tokens 9223372036854775807: want at most 16777216, more than any model's context",
		"-backend cpu -prompt-length 16777217":         "-prompt-length 16777217: want at most 16777216, more than any model's context",
		"-backend cuda -threads 2":                     "-threads 2: the cuda backend has no threads to set",
		"-backend cpu -precision int8":                 `-precision "int8": want auto, f32 or bf16`,
		"-backend cuda -precision f32":                 "-precision f32: the cuda backend multiplies both halves of each input in bf16, and has no other way",
		"-backend cpu -token-budget 70":                "-token-budget 70: want at least 71, a prompt chunk of 64 beside 7 decode rows",
		"-backend cpu -checkpoint random:":             "-checkpoint random: lacks a name, such as random:qwen3.5-mini",
		"-backend cpu -time-limit 5m -test-runs 6":     "-time-limit 5m0s, -test-runs 6: the number of blocks is either fixed or left to the verdict and the time",
		"-backend cpu -replay results.json":            "-replay results.json, -backend cpu: either judge recorded samples or measure new ones",
		"-allow-inconclusive":                          "-allow-inconclusive has no effect without -backend cpu|cuda",
		"-backend cpu -time-limit -5m":                 "-time-limit -5m0s: want a positive time, or 0 for none",
		"-backend cpu -against 4":                      `-against "4": want target or ceiling`,
		"-backend cpu -share 0.9":                      "-share 0.9 is a share of the ceiling: it needs -against ceiling",
		"-backend cpu -against ceiling -share 1.1":     "-share 1.1: want more than 0 and at most 1",
		"-against ceiling":                             "-against has no effect without -backend cpu|cuda",
		"-backend cpu -results=":                       "-results: want a directory",
		"-backend cpu -sizes 2,4":                      "-sizes 2,4: size 1 is missing, to which all others are compared",
		"-backend cpu -sizes 1,4,2":                    "-sizes 1,4,2: want rising sizes",
		"-backend cpu -sizes 0,1":                      "-sizes 0: want at least 1",
		"-backend cpu -sizes 1,100000000":              "-sizes 100000000: want at most 16384",
		"-backend cpu -num-concurrent 100000000":       "-num-concurrent 100000000: want at most 16384",
		"-backend cpu -sizes 1,1":                      "-sizes: 1 stands in it twice",
		"-backend cpu -new-tokens 1":                   "-new-tokens 1: want at least 2: the first token comes from the prompt, so that one token has no decode step",
		"-backend cpu -block-size 0":                   "-block-size 0: want at least 1",
		"-backend cpu -short-tokens 0":                 "-short-tokens 0: want at least 1",
		"-backend cpu -short-tokens 4 -long-tokens 4":  "-long-tokens 4, -short-tokens 4: nothing blocks unless the long row is longer",
		"-backend cpu -prompt-length 0 -block-size 0":  "-prompt-length 0: want at least 1\n-block-size 0: want at least 1",
		"-backend cpu -num-concurrent two":             `invalid value "two" for flag -num-concurrent: "two" is no integer; want a list such as 2,4,8`,
		"-backend cpu -warmup-runs 0":                  `invalid value "0" for flag -warmup-runs: want at least 1: without warm-up the first block is charged page faults and allocation, and without blocks there is no evidence`,
		"-backend cpu -test-runs many":                 `invalid value "many" for flag -test-runs: "many" is no integer`,
	} {
		_, err := parse(t, strings.Fields(args)...)
		require.EqualError(t, err, want, args)
	}
}

// TestTooManyThreads: hundreds of workers on a core would not end in hours.
func TestTooManyThreads(t *testing.T) {
	most := cpu.MaxThreads()
	_, err := parse(t, "-backend", "cpu", "-threads", strconv.Itoa(most))
	require.NoError(t, err)
	_, err = parse(t, "-backend", "cpu", "-threads", strconv.Itoa(most+1))
	require.ErrorContains(t, err, fmt.Sprintf("-threads %d: this machine has %d cores", most+1, runtime.NumCPU()))
}

// TestUsage: the help names the tests that there are, and the suite's flags alone.
func TestUsage(t *testing.T) {
	var out strings.Builder
	Usage(&out)
	require.Contains(t, out.String(), "-num-concurrent list")
	require.NotContains(t, out.String(), "-test.")
	source, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var code strings.Builder
	for _, file := range source {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		code.Write(data)
	}
	for _, name := range regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(out.String(), -1) {
		require.Contains(t, code.String(), "func "+name+"(t *testing.T)")
	}
}
