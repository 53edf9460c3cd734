package validation

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchproc"

	"github.com/batchproof/batchproof/engine/backend"
)

// tinyOptions measure a tiny model in a moment. The verdicts mean nothing.
func tinyOptions(t *testing.T) Options {
	return Options{
		Backend: "cpu", Checkpoint: "random:qwen3.5-tiny", Seed: 7, Results: t.TempDir(),
		MaxTokens: 4, PromptLength: 5, NumConcurrent: []int{2, 3}, WarmupRuns: 1, TestRuns: 2,
		MaxBatchSize: 2, BlockSize: 4,
	}
}

// tinySession measures with them. The machine's rates are made up: measuring
// them takes longer than all else.
func tinySession(ctx context.Context, opt Options, out io.Writer) *Session {
	s := NewSession(ctx, opt, out)
	s.probesOf = func(backend.Backend) Probes {
		bandwidth := func() (float64, error) { return 10e9, nil }
		return Probes{
			ReadBandwidth: bandwidth, SampleBandwidth: bandwidth,
			PeakFLOPs: func() (float64, error) { return 100e9, nil },
		}
	}
	// Steps of microseconds on a machine that also runs other tests.
	s.tune = func(r *Rules) { r.SerialFloor, r.WarmTolerance, r.SerialMargin, r.RepeatFactor = 0, 1e6, 1e6, 1e6 }
	return s
}

// TestSession runs the way of the criteria from the flags to the files, on a
// real engine. Three requests on two rows also show that what does not fit
// waits, and is still right.
func TestSession(t *testing.T) {
	opt := tinyOptions(t)
	var table, log bytes.Buffer
	s := tinySession(t.Context(), opt, &table)
	for _, c := range []Criterion{LatencyCriterion(), ThroughputCriterion(2), ThroughputCriterion(3)} {
		j, err := s.Measure(c, &log)
		require.NoError(t, err)
		require.Empty(t, j.Problems)
		require.NotEqual(t, Invalid, j.Verdict, j.Reason)
		require.Equal(t, 2, len(j.Record.Blocks))
	}
	require.NoError(t, s.Close())
	require.Contains(t, log.String(), "throughput, 2 concurrent: block 2 of 2, ratio ")
	require.Contains(t, log.String(), "no 95 % bound from 2 blocks")
	require.Contains(t, log.String(), "against 10.0 GB/s of streaming reads")
	require.Equal(t, 1, strings.Count(log.String(), "results: "+s.store.Dir))
	require.Regexp(t, `ceiling    \d\.\d\d on this machine`, log.String())
	require.Contains(t, table.String(), "not as specified: 4 tokens a request instead of 128, prompts of 5 tokens instead of 32, concurrency levels 2,3 instead of 2,4,8")
	for _, row := range []string{"single-request latency", "throughput, 2 concurrent", "throughput, 8 concurrent", "not measured", "throughput, 3 concurrent", "MEASURED"} {
		require.Contains(t, table.String(), row)
	}

	dir := s.store.Dir
	for _, name := range []string{"environment.json", "single_latency.txt", "concurrent_throughput.txt", "results.json", "bench.txt"} {
		require.FileExists(t, filepath.Join(dir, name))
	}
	require.Contains(t, read(t, dir, "single_latency.txt"), "control")
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left, "no temporary files stay behind")

	_, err = NewSession(t.Context(), Options{}, new(bytes.Buffer)).Replay(filepath.Join(dir, "environment.json"), new(bytes.Buffer))
	require.ErrorContains(t, err, "has schema 0")

	// What is on disk judges the same.
	r, err := Load(filepath.Join(dir, "results.json"))
	require.NoError(t, err)
	require.NotNil(t, r.Finished)
	require.Len(t, r.Criteria, 3)
	for i, rec := range r.Criteria {
		var a, b strings.Builder
		Judge(rec).Print(&a)
		s.judgements[i].Print(&b)
		require.Equal(t, b.String(), a.String())
	}
	var again, replayed bytes.Buffer
	r2 := NewSession(t.Context(), Options{}, &again)
	_, err = r2.Replay(filepath.Join(dir, "results.json"), &replayed)
	require.NoError(t, err)
	require.NoError(t, r2.Close())
	require.Contains(t, table.String(), again.String(), "the same table")
	require.Contains(t, replayed.String(), "single-request latency: INCONCLUSIVE")
	checkBench(t, read(t, dir, "bench.txt"))
}

// checkBench proves that bench.txt is benchmark format in which the modes can
// be compared: benchstat -col /mode finds both in every row.
func checkBench(t *testing.T, text string) {
	t.Helper()
	var parser benchproc.ProjectionParser
	col, err := parser.Parse("/mode", nil)
	require.NoError(t, err)
	row, err := parser.Parse("/model,/backend,/concurrent", nil)
	require.NoError(t, err)
	reader := benchfmt.NewReader(strings.NewReader(text), "bench.txt")
	modes := make(map[string]map[string]int)
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			require.Fail(t, "syntax error", rec.Error())
		case *benchfmt.Result:
			key := row.Project(rec).String()
			if modes[key] == nil {
				modes[key] = make(map[string]int)
			}
			modes[key][col.Project(rec).String()]++
			for _, unit := range []string{"sec/op", "tok/s", "req/s", "TTFT-ms", "step-ms"} {
				v, ok := rec.Value(unit)
				require.True(t, ok && v > 0, "%s of %s", unit, rec.Name)
			}
			require.NotEmpty(t, rec.GetConfig("model"))
		}
	}
	require.NoError(t, reader.Err())
	require.Equal(t, "higher", better(reader, "tok/s"))
	require.Equal(t, "lower", better(reader, "TTFT-ms"))
	require.NotEmpty(t, modes)
	for row, m := range modes {
		require.Equal(t, map[string]int{"/mode:serial": 2, "/mode:batch": 2}, m, row)
	}
}

func better(r *benchfmt.Reader, unit string) string {
	if m := r.Units().Get(unit, "better"); m != nil {
		return m.Value
	}
	return ""
}

// TestSessionInterrupted: the blocks measured before the signal are on disk.
func TestSessionInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := tinySession(ctx, tinyOptions(t), new(bytes.Buffer))
	_, err := s.Measure(LatencyCriterion(), new(bytes.Buffer))
	require.NoError(t, err)
	j, err := s.Measure(ThroughputCriterion(2), writerFunc(func(p []byte) {
		if bytes.Contains(p, []byte("block 1 of 2")) {
			cancel(errors.New("interrupt"))
		}
	}))
	require.EqualError(t, err, "interrupted after 1 of 2 blocks (interrupt); what was measured is kept")
	require.Equal(t, Inconclusive, j.Verdict)
	_, err = s.Measure(ThroughputCriterion(4), new(bytes.Buffer))
	require.EqualError(t, err, "not measured: interrupt")
	require.NoError(t, s.Close())

	r, err := Load(filepath.Join(s.store.Dir, "results.json"))
	require.NoError(t, err)
	require.True(t, r.Interrupted)
	require.Len(t, r.Criteria, 2)
	require.Equal(t, 2, len(r.Criteria[0].Blocks))
	require.Equal(t, 1, len(r.Criteria[1].Blocks))
}

// TestSessionInterruptedInControl: where only the control was measured, it is
// kept, and what is kept can be read and drawn.
func TestSessionInterruptedInControl(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s := tinySession(ctx, tinyOptions(t), new(bytes.Buffer))
	_, err := s.Measure(ThroughputCriterion(2), writerFunc(func(p []byte) {
		if bytes.Contains(p, []byte("control of the session: block 1 of 2")) {
			r, err := Load(filepath.Join(s.store.Dir, "results.json"))
			require.NoError(t, err)
			require.NotNil(t, r.Control, "written as it goes")
			cancel(errors.New("interrupt"))
		}
	}))
	require.ErrorContains(t, err, "interrupted after 1 of 2 blocks (interrupt); what was measured is kept")
	require.NoError(t, s.Close())

	r, err := Load(filepath.Join(s.store.Dir, "results.json"))
	require.NoError(t, err)
	require.True(t, r.Interrupted)
	require.Len(t, r.Control.Blocks, 1)
	require.FileExists(t, filepath.Join(s.store.Dir, "report.html"))
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestSessionRefuses: what cannot work is found before anything is measured,
// and said once.
func TestSessionRefuses(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, o *Options)
		want  string
	}{
		{"results is a file", func(t *testing.T, o *Options) {
			o.Results = filepath.Join(o.Results, "file")
			require.NoError(t, os.WriteFile(o.Results, nil, 0o600))
		}, "results directory cannot be written"},
		{"results below a file", func(t *testing.T, o *Options) {
			file := filepath.Join(o.Results, "file")
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			o.Results = filepath.Join(file, "results")
		}, "choose another with -results"},
		{"no such preset", func(t *testing.T, o *Options) { o.Checkpoint = "random:gpt" }, `unknown preset "gpt"`},
		{"no such checkpoint", func(t *testing.T, o *Options) { o.Checkpoint = "does/not/exist" }, "no such file or directory"},
		{"context too short", func(t *testing.T, o *Options) { o.MaxTokens = 4095 }, "take 4100 positions, the model was made for 4096"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opt := tinyOptions(t)
			c.spoil(t, &opt)
			var log bytes.Buffer
			s := tinySession(t.Context(), opt, &log)
			_, err := s.Measure(LatencyCriterion(), &log)
			require.ErrorContains(t, err, c.want)
			_, err = s.Measure(ThroughputCriterion(2), &log)
			require.EqualError(t, err, "not measured: the session could not begin, see the first failure")
			require.NoError(t, s.Close())
			require.NotContains(t, log.String(), "results: ", "no directory is named that is not there")
			if s.store != nil {
				require.NoDirExists(t, s.store.Dir, "nothing was measured, nothing is left")
			}
		})
	}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	return string(data)
}
