package validation

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/scheduler/serving"
	"github.com/batchproof/batchproof/testutil"
	"github.com/batchproof/batchproof/validation/report"
)

// TestReport: a run leaves a page and a summary, and what it recorded makes the
// same ones again, byte for byte.
func TestReport(t *testing.T) {
	opt := tinyOptions(t)
	opt.Sizes, opt.NewTokens, opt.LongTokens, opt.ShortTokens = []int{1, 2}, 3, 6, 2
	s := tinySession(t.Context(), opt, new(bytes.Buffer))
	for _, c := range []Criterion{LatencyCriterion(), ThroughputCriterion(2), ThroughputCriterion(3)} {
		_, err := s.Measure(c, new(bytes.Buffer))
		require.NoError(t, err)
	}
	_, err := s.Sweep(new(bytes.Buffer))
	require.NoError(t, err)
	_, _, err = s.Blocking(new(bytes.Buffer))
	require.NoError(t, err)
	scenario, _, _ := virtualScenario(t)
	s.results.Serving, err = scenario.Run(t.Context())
	require.NoError(t, err)
	s.results.Serving.Model = *s.results.Model
	plan := &virtualPlan{cost: testutil.Cost{Step: 10 * ms, Row: ms}, load: scenario.Load, requests: 20, seed: 1}
	s.results.Plan, err = plan.run([]int{2, 4}, serving.SLO{TTFT: time.Second}, 2, io.Discard)
	require.NoError(t, err)
	s.results.Plan.Model = *s.results.Model
	require.NoError(t, s.Close())

	page, summary := read(t, s.store.Dir, "report.html"), read(t, s.store.Dir, "summary.md")
	for _, id := range []string{"ratios", "blocks", "missing", "step-times", "batch-sizes", "sweep", "blocking", "continuous", "serving", "plan", "ttft", "itl"} {
		require.Contains(t, page, `<figure id="`+id+`">`)
	}
	for _, want := range []string{"single-request latency", "throughput, 8 concurrent", "not measured", "random:qwen3.5-tiny", "4 tokens a request instead of 128"} {
		require.Contains(t, page, want)
		require.Contains(t, strings.ReplaceAll(summary, `\`, ""), want)
	}
	require.Contains(t, page, "layers of", "the shape is read from the record")

	r, err := Load(filepath.Join(s.store.Dir, "results.json"))
	require.NoError(t, err)
	again, err := report.HTML(View(r))
	require.NoError(t, err)
	require.Equal(t, page, string(again))
	require.Equal(t, summary, string(report.Markdown(View(r))))

	// A replay makes the same report, in a place of its own that it names.
	before := read(t, s.store.Dir, "results.json")
	var out bytes.Buffer
	replay := NewSession(t.Context(), Options{Results: t.TempDir()}, &out)
	_, err = replay.Replay(filepath.Join(s.store.Dir, "results.json"), new(bytes.Buffer))
	require.NoError(t, err)
	require.NoError(t, replay.KeepReplay())
	file := strings.TrimSpace(strings.TrimPrefix(out.String(), "report: "))
	require.Equal(t, "report.html", filepath.Base(file))
	dir := filepath.Dir(file)
	require.NotEqual(t, s.store.Dir, dir)
	require.Equal(t, page, read(t, dir, "report.html"))
	require.Equal(t, summary, read(t, dir, "summary.md"))
	require.Equal(t, read(t, s.store.Dir, "ratios.svg"), read(t, dir, "ratios.svg"))
	require.True(t, before == read(t, s.store.Dir, "results.json"), "what was recorded is left as it is")
	r, err = Load(dir) // a folder will do
	require.NoError(t, err)
	again, err = report.HTML(View(r))
	require.NoError(t, err)
	require.Equal(t, page, string(again), "its samples lie beside it")
}

// TestViewNumbers: the numbers of the view are those of the judgements.
func TestViewNumbers(t *testing.T) {
	x := newFakeExperiment(t, ThroughputCriterion(4), 6)
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) { return 60e6, 0 }), 4, 4, 11, 8, 1e12)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	v := View(&Results{Criteria: []*Record{rec}, Options: Options{MaxTokens: 128, PromptLength: 32, NumConcurrent: []int{2, 4, 8, 16}, Against: AgainstCeiling, Share: 0.85}})
	require.Equal(t, []string{"throughput is held against 85 % of the ceiling instead of the specified ratios"}, v.Deviations)
	require.Len(t, v.Criteria, 4, "what was not measured is shown to be missing")
	require.Empty(t, v.Criteria[0].Verdict)
	c, j := &v.Criteria[2], Judge(rec)
	require.Equal(t, []float64{j.Ratio.Median, j.Decision.Lower, j.Decision.Upper, 3, j.Ceiling, j.SerialShare},
		[]float64{c.Ratio, c.Lower, c.Upper, c.Target, c.Ceiling, c.SerialShare})
	require.Len(t, c.Blocks, 6)
	require.True(t, math.IsNaN(c.Blocks[0].Control))
	require.InDelta(t, c.Missing.Measured, c.Ratio, 1e-9)
	require.Equal(t, len(j.Account.Parts), len(c.Missing.Parts))

	// Serial: 4 requests, each 30 ms of prefill and 10 steps of 10 ms; batch: 120 ms,
	// and 10 steps of 14 ms.
	serial, batch := &c.Arms[0], &c.Arms[1]
	require.Len(t, serial.TTFT, 24)
	require.InDeltaSlice(t, []float64{0.03, 0.16, 0.29, 0.42}, serial.TTFT[:4], 1e-9)
	require.InDelta(t, 0.12, batch.TTFT[0], 1e-9)
	require.InDelta(t, 0.014, batch.ITL[0], 1e-9)
	require.Len(t, batch.Steps, 66)
	require.Len(t, v.StepTimes, 2)
	require.Equal(t, []int{1, 4}, []int{v.StepTimes[0].Rows, v.StepTimes[1].Rows})
	require.InDelta(t, 0.014, v.StepTimes[1].Seconds[0], 1e-9)
	require.Len(t, v.Floors, 2)
	require.InDelta(t, 0.006, v.Floors[0].Seconds, 1e-9, "60 MB at 10 GB/s")
}

// TestGoTest: a report shows the command that people give.
func TestGoTest(t *testing.T) {
	args := []string{"/tmp/go-build1/b001/validation.test", "-test.paniconexit0", "-test.timeout=10m0s", "-test.v=true", "-test.count=1",
		"-test.run=^(TestA|TestB)$", "-backend", "cpu", "-checkpoint", "dir/my model", "-num-concurrent=2,4"}
	require.Equal(t, "go test ./validation -v -count=1 '-run=^(TestA|TestB)$' -backend cpu -checkpoint 'dir/my model' -num-concurrent=2,4", goTest(args, "cpu"))
	require.Equal(t, "go test -tags cuda ./validation -timeout=1h0m0s", goTest([]string{"x", "-test.timeout=1h0m0s"}, "cuda"))
	require.Empty(t, goTest(nil, ""))
}

// TestSweepCeiling: eight rows cost the reads of one until arithmetic takes longer.
func TestSweepCeiling(t *testing.T) {
	l := &SweepLimits{ReadBandwidth: 10e9, PeakFLOPs: 100e9, Steps: []Work{
		{Steps: 1, Rows: 1, Bytes: 100e6, FLOPs: 200e6}, {Steps: 1, Rows: 4, Bytes: 100e6, FLOPs: 800e6}, {Steps: 1, Rows: 8, Bytes: 100e6, FLOPs: 1600e6},
	}}
	require.InDelta(t, 4, l.Ceiling(4), 1e-9)
	require.InDelta(t, 5, l.Ceiling(8), 1e-9)
	require.True(t, math.IsNaN(l.Ceiling(2)))
	require.True(t, math.IsNaN((*SweepLimits)(nil).Ceiling(1)))
}

// TestReportOfAlmostNothing: a run that ended early still has a report.
func TestReportOfAlmostNothing(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, r := range []*Results{
		{Started: at},
		{Started: at, Interrupted: true, Criteria: []*Record{{Criterion: ThroughputCriterion(2)}}},
		{Started: at, Sweep: &SweepRecord{}},
		{Started: at, Serving: &ServingRecord{}},
	} {
		data, err := json.Marshal(r)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, r))
		page, err := report.HTML(View(r))
		require.NoError(t, err)
		require.NotContains(t, string(page), "<figure")
		require.NotEmpty(t, report.Markdown(View(r)))
	}
}
