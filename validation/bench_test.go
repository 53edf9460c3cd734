package validation

import (
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"

	"github.com/batchproof/batchproof/scheduler"
)

// benchmark is what the benchmarks run on. TestMain opens it before the first,
// since configuration lines must come before the results.
var benchmark *benchStand

// benchStand is a model to run benchmarks on.
type benchStand struct {
	*Stand
	opt  Options
	turn *Turn // of this process, if it alternates with another
}

// benchmarksRun says whether -bench was given.
func benchmarksRun() bool { return flag.Lookup("test.bench").Value.String() != "" }

// openBench loads the model that the flags name; without a backend a tiny one
// on the CPU, so that every machine can run the benchmarks in a moment. The
// model is part of every benchmark's name: the two cannot be mixed up.
func openBench(opt Options) (*benchStand, error) {
	if opt.Backend == "" {
		opt.Backend, opt.Checkpoint = "cpu", "random:qwen3.5-tiny"
	}
	if opt.Checkpoint == "" {
		opt.Checkpoint = opt.defaultCheckpoint()
	}
	rows := max(opt.MaxBatchSize, slices.Max(opt.Sizes))
	stand, err := Open(&opt, opt.Checkpoint, Shape{
		Rows: rows, Context: max(opt.PromptLength+max(opt.MaxTokens, opt.LongTokens), slices.Max(prefillTokens), opt.servingShape().Context),
		StepTokens: max(opt.Budget(), rows*opt.PromptLength, rows-1+chunkSize), BlockSize: opt.BlockSize,
	})
	if err != nil {
		return nil, err
	}
	return &benchStand{Stand: stand, opt: opt}, nil
}

// printConfig writes the lines that tell benchstat what was measured.
func (s *benchStand) printConfig(w io.Writer) {
	env := ReadEnvironment(ModuleRoot())
	env.Backend = s.Backend.Describe()
	WriteUnits(w)
	WriteConfig(w, &env, s.Checkpoint.Name)
}

// name is the sub-benchmark's.
func (s *benchStand) name(rest ...string) string {
	return BenchName(s.Checkpoint.Name, s.opt.Backend, rest...)
}

// BenchmarkGenerate serves concurrent requests in both modes, as the criteria
// do. Compare with: benchstat -col /mode.
func BenchmarkGenerate(b *testing.B) {
	for _, mode := range []string{ArmSerial, ArmBatch} {
		for _, n := range append([]int{1}, benchmark.opt.NumConcurrent...) {
			b.Run(benchmark.name("mode="+mode, fmt.Sprintf("concurrent=%d", n)), func(b *testing.B) { benchmark.generate(b, mode, n) })
		}
	}
}

func (s *benchStand) generate(b *testing.B, mode string, n int) {
	c := ThroughputCriterion(n)
	arms := Arms(c, &s.opt, s.Arm)
	arm := arms[slices.IndexFunc(arms, func(a Arm) bool { return a.Name == mode })]
	x := &Experiment{Criterion: c, MaxTokens: s.opt.MaxTokens, Prompts: s.prompts(s.opt.PromptLength)}
	rec := &Record{Criterion: c}
	for b.Loop() {
		requests := x.requests()
		runtime.GC() // outside of the arm's own time
		o, err := arm.Run(b.Context(), requests, s.turn)
		if err != nil {
			b.Fatal(err)
		}
		if p := checkBlock("benchmark", requests, []Arm{arm}, []*ArmOutcome{&o}); len(p) > 0 {
			b.Fatal(p[0])
		}
		rec.Blocks = append(rec.Blocks, Block{Arms: []ArmRun{o.record(mode, requests)}})
	}
	sum := Summarise(rec, mode)
	b.ReportMetric(1e9*sum.Elapsed/float64(b.N), "ns/op") // without making the scheduler and the prompts
	b.ReportMetric(sum.TokensPerS, "tok/s")
	b.ReportMetric(sum.RequestsPerS, "req/s")
	b.ReportMetric(1e3*sum.TTFT.Avg, "TTFT-ms")
	b.ReportMetric(1e3*sum.DecodeStep, "step-ms")
}

// BenchmarkDecodeStep times steps of one token a row.
func BenchmarkDecodeStep(b *testing.B) {
	for _, n := range benchmark.opt.Sizes {
		b.Run(benchmark.name(fmt.Sprintf("batch=%d", n)), func(b *testing.B) { benchmark.decodeStep(b, n) })
	}
}

func (s *benchStand) decodeStep(b *testing.B, rows int) {
	// Contexts are those of the criteria: when the rows are full, they begin anew.
	s.meet(b)
	var batch *Rows
	begin := func() {
		if batch != nil {
			batch.Close()
		}
		batch = s.rows(b, rows, s.opt.PromptLength)
		for range 2 { // prefill, and one decode step to warm the shape
			if err := batch.Step(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	}
	begin()
	var steps []float64
	for b.Loop() {
		if len(batch.Drawn[0]) == s.opt.MaxTokens {
			b.StopTimer()
			begin()
			b.StartTimer()
		}
		start := s.turn.Now()
		if err := batch.Step(b.Context()); err != nil {
			b.Fatal(err)
		}
		steps = append(steps, s.timed(b, start))
	}
	batch.Close()
	s.reportSteps(b, steps, rows)
	b.ReportMetric(1e3*quietMean(steps), "step-ms")
}

// meet begins a benchmark together with the other process, if there is one.
func (s *benchStand) meet(b *testing.B) {
	s.Meter.begin(s.turn)
	if s.turn != nil {
		if err := s.turn.peer.meet(b.Name()); err != nil {
			b.Fatal(err)
		}
	}
}

// timed is what the step took that has begun then, in seconds.
func (s *benchStand) timed(b *testing.B, start time.Time) float64 {
	seconds := s.turn.Now().Sub(start).Seconds()
	if s.turn != nil {
		s.turn.peer.time(b.Name(), seconds)
	}
	return seconds
}

// reportSteps gives the mean over all steps, without the turns of others, the
// rate without the slowest tenth, see quietMean, and with a peer the time relative
// to its steps.
func (s *benchStand) reportSteps(b *testing.B, steps []float64, tokens int) {
	b.ReportMetric(1e9*spread(steps).Avg, "ns/op")
	b.ReportMetric(float64(tokens)/quietMean(steps), "tok/s")
	if s.turn != nil {
		if relative := s.turn.peer.relative(); known(relative) {
			b.ReportMetric(relative, "rel-time")
		}
	}
}

// BenchmarkHeadOfLineBlocking serves one long request and short ones, in a static
// and in a continuous batch.
func BenchmarkHeadOfLineBlocking(b *testing.B) {
	for _, p := range []scheduler.Policy{scheduler.Static, scheduler.Continuous} {
		b.Run(benchmark.name("mode="+string(p), fmt.Sprintf("batch=%d", slices.Max(benchmark.opt.Sizes))), func(b *testing.B) { benchmark.blocking(b, p) })
	}
}

func (s *benchStand) blocking(b *testing.B, p scheduler.Policy) {
	rows := slices.Max(s.opt.Sizes)
	arm := s.Arm(string(p), scheduler.Config{Policy: p, MaxBatchSize: rows})
	prompts := s.prompts(s.opt.PromptLength)
	sums := make(map[string]float64)
	for b.Loop() {
		requests := blockingRequests(prompts, rows, s.opt.LongTokens, s.opt.ShortTokens)
		runtime.GC() // outside of the arm's own time
		o, err := arm.Run(b.Context(), requests, s.turn)
		if err != nil {
			b.Fatal(err)
		}
		// Nothing to compare with here: an arm against itself checks that all ended well.
		if err := new(Comparison).Add("benchmark", requests, &o, &o); err != nil {
			b.Fatal(err)
		}
		for _, f := range side(&o) {
			sums[f.name] += f.value
		}
	}
	n := float64(b.N)
	b.ReportMetric(1e9*sums[makespan]/n, "ns/op")
	b.ReportMetric(sums["goodput tok/s"]/n, "tok/s")
	b.ReportMetric(sums["token-slots computed"]/n, "slots")
}

// prefillTokens are the lengths of the prompts of BenchmarkPrefill.
var prefillTokens = []int{16, 64, 256}

// BenchmarkPrefill times one prompt in one step.
func BenchmarkPrefill(b *testing.B) {
	for _, n := range prefillTokens {
		if n <= benchmark.opt.Budget() {
			b.Run(benchmark.name(fmt.Sprintf("tokens=%d", n)), func(b *testing.B) { benchmark.prefill(b, n) })
		}
	}
}

func (s *benchStand) prefill(b *testing.B, tokens int) {
	s.meet(b)
	var steps []float64
	step := func() {
		batch := s.rows(b, 1, tokens)
		defer batch.Close()
		start := s.turn.Now()
		if err := batch.Step(b.Context()); err != nil {
			b.Fatal(err)
		}
		steps = append(steps, s.timed(b, start))
	}
	step() // warms the shape
	steps = steps[:0]
	for b.Loop() {
		step()
	}
	s.reportSteps(b, steps, tokens)
	b.ReportMetric(1e3*quietMean(steps), "TTFT-ms")
}

func (s *benchStand) prompts(length int) *Prompts {
	return NewPrompts(s.opt.Seed, "benchmark", length, s.Checkpoint.Config.Vocab, s.Checkpoint.Config.EOS)
}

func (s *benchStand) rows(b *testing.B, rows, promptLength int) *Rows {
	prompts := s.prompts(promptLength)
	list := make([][]int32, rows)
	for i := range list {
		list[i] = prompts.Next()
	}
	batch, err := NewRows(s.Engine, list)
	if err != nil {
		b.Fatal(err)
	}
	return batch
}

// TestBenchmarks runs each benchmark once on a tiny model, so that none rots,
// and holds names and metrics to what benchstat reads.
func TestBenchmarks(t *testing.T) {
	if benchmarksRun() {
		t.Skip("they are about to run in earnest")
	}
	before := flag.Lookup("test.benchtime").Value.String()
	require.NoError(t, flag.Set("test.benchtime", "2x"))
	defer func() { require.NoError(t, flag.Set("test.benchtime", before)) }()
	opt := tinyOptions(t)
	opt.Sizes, opt.LongTokens, opt.ShortTokens = []int{1, 2}, 4, 2
	opt.TokenBudget = 256
	s, err := openBench(opt)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()

	var out strings.Builder
	s.printConfig(&out)
	run := func(name string, f func(b *testing.B), metrics ...string) {
		r := testing.Benchmark(f)
		require.Positive(t, r.N, "%s failed", name)
		for _, m := range metrics {
			require.Positive(t, r.Extra[m], "%s of %s", m, name)
		}
		fmt.Fprintf(&out, "Benchmark%s-2 %s\n", name, r)
	}
	for _, mode := range []string{ArmSerial, ArmBatch} {
		run("Generate/"+s.name("mode="+mode, "concurrent=2"), func(b *testing.B) { s.generate(b, mode, 2) }, "tok/s", "req/s", "TTFT-ms", "step-ms")
	}
	run("DecodeStep/"+s.name("batch=2"), func(b *testing.B) { s.decodeStep(b, 2) }, "tok/s", "step-ms")
	for _, p := range []scheduler.Policy{scheduler.Static, scheduler.Continuous} {
		run("HeadOfLineBlocking/"+s.name("mode="+string(p), "batch=2"), func(b *testing.B) { s.blocking(b, p) }, "tok/s", "slots")
	}
	run("Prefill/"+s.name("tokens=16"), func(b *testing.B) { s.prefill(b, 16) }, "tok/s", "TTFT-ms")
	require.Equal(t, opt.MaxBatchSize, s.Engine.FreeSequences(), "nothing is left behind")

	reader := benchfmt.NewReader(strings.NewReader(out.String()), "bench.txt")
	results := 0
	for reader.Scan() {
		if err, ok := reader.Result().(*benchfmt.SyntaxError); ok {
			require.Fail(t, err.Error(), out.String())
		}
		if _, ok := reader.Result().(*benchfmt.Result); ok {
			results++
		}
	}
	require.Equal(t, 6, results)
	require.Equal(t, "higher", better(reader, "tok/s"))
}
