package validation

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/scheduler"
)

// benchRequests are served in one operation, unless -requests says otherwise.
const benchRequests = 16

// BenchmarkServing serves open-loop arrivals under each policy. Compare with:
// benchstat -col /mode. Without -rate the rate is a share of what continuous
// batching is seen to serve first, so that it differs between machines and
// commits; give a rate to compare those.
func BenchmarkServing(b *testing.B) {
	x, rec, err := benchmark.serving(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, arm := range x.Arms {
		b.Run(benchmark.servingName(arm), func(b *testing.B) { benchmark.serve(b, x, rec, arm) })
	}
}

func (s *benchStand) servingName(arm ServingArm) string {
	rate := fmt.Sprintf("%g", s.opt.Rate)
	if s.opt.Rate == 0 {
		rate = fmt.Sprintf("%.0f%%", 100*rateShare)
	}
	return s.name("mode="+arm.Name, "rate="+rate)
}

// serving is the scenario of the benchmarks, with rate and limits chosen.
func (s *benchStand) serving(ctx context.Context) (*Scenario, *ServingRecord, error) {
	o := &s.opt
	s.Meter.begin(nil) // requests arrive by the clock of the machine: no turns within
	x := &Scenario{
		Load: o.load(s.Checkpoint.Config.Vocab), SLO: o.SLO, Rows: o.MaxBatchSize,
		Arms: ServingArms(o.MaxBatchSize, o.TokenBudget, 0), Runs: 1, Seed: o.Seed,
		Serve: SchedulerServe(s.Engine, s.Meter),
	}
	if x.Load.Requests == 0 {
		x.Load.Requests = benchRequests
	}
	rec := new(ServingRecord)
	return x, rec, x.calibrate(ctx, rec)
}

func (s *benchStand) serve(b *testing.B, x *Scenario, chosen *ServingRecord, arm ServingArm) {
	rec := &ServingRecord{SLO: chosen.SLO, Arms: []ServingArm{arm}}
	elapsed := int64(0)
	prompts := rand.New(rand.NewPCG(s.opt.Seed, 0x7365727665))
	for b.Loop() {
		load := x.Load
		load.Rate = chosen.Rate
		// The same instants and lengths in each operation, however many a mode
		// needs; but no prompt that was seen before.
		arrivals, err := x.arrivals(load, 0)
		if err != nil {
			b.Fatal(err)
		}
		for i := range arrivals {
			for k := range arrivals[i].Request.Prompt {
				arrivals[i].Request.Prompt[k] = prompts.Int32N(int32(load.Vocab))
			}
		}
		o, err := x.serve(b.Context(), "benchmark", arm, arrivals)
		if err != nil {
			b.Fatal(err)
		}
		requests := make([]scheduler.Request, len(arrivals))
		for i := range arrivals {
			requests[i] = arrivals[i].Request
		}
		run := o.served(arm.Name, arrivals, requests)
		elapsed += run.ElapsedNS
		rec.Runs = append(rec.Runs, ServingRun{Arms: []ServingArmRun{run}})
	}
	l := rec.Latencies(0)
	offered, _ := rec.Offered(0)
	b.ReportMetric(float64(elapsed)/float64(b.N), "ns/op")
	b.ReportMetric(offered, "offered-req/s")
	b.ReportMetric(l.Throughput(), "req/s")
	b.ReportMetric(l.Goodput(), "goodput-req/s")
	b.ReportMetric(l.TokensPerSecond(), "tok/s")
	b.ReportMetric(l.TTFT.Mean().Seconds()*1e3, "TTFT-ms")
	b.ReportMetric(l.TPOT.Mean().Seconds()*1e3, "TPOT-ms")
	b.ReportMetric(l.ITL.Percentile(0.99).Seconds()*1e3, "ITL-p99-ms")
	b.ReportMetric(l.E2EL.Mean().Seconds()*1e3, "E2EL-ms")
}

// TestServingBenchmark runs the benchmark on a tiny model, so that it cannot rot.
func TestServingBenchmark(t *testing.T) {
	if benchmarksRun() {
		t.Skip("it is about to run in earnest")
	}
	before := flag.Lookup("test.benchtime").Value.String()
	require.NoError(t, flag.Set("test.benchtime", "2x"))
	defer func() { require.NoError(t, flag.Set("test.benchtime", before)) }()
	opt := tinyOptions(t)
	opt.Sizes = []int{1, 2}
	opt.ServingOptions = ServingOptions{Requests: 4, ServePrompts: Lengths{3, 70}, ServeTokens: Lengths{2, 5}}
	s, err := openBench(opt)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	x, rec, err := s.serving(t.Context())
	require.NoError(t, err)
	require.Len(t, x.Arms, 3)
	for _, arm := range x.Arms {
		r := testing.Benchmark(func(b *testing.B) { s.serve(b, x, rec, arm) })
		require.Equal(t, 2, r.N, "it failed")
		for _, m := range []string{"offered-req/s", "req/s", "tok/s", "TTFT-ms", "TPOT-ms", "ITL-p99-ms", "E2EL-ms"} {
			require.Positive(t, r.Extra[m], m)
		}
	}
	require.Equal(t, "model=random:qwen3.5-tiny/backend=cpu/mode=static/rate=70%", s.servingName(x.Arms[1]))
	s.opt.Rate = 2.5
	require.Equal(t, "model=random:qwen3.5-tiny/backend=cpu/mode=static/rate=2.5", s.servingName(x.Arms[1]))
}
