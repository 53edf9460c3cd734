package serving

import (
	"context"
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/testutil"
)

var simulated = flag.Int("simulate", 2_000, "requests of the simulation; try 1000000")

func TestMain(m *testing.M) {
	flag.Set("rapid.nofailfile", "true") // the seed it prints says it all
	goleak.VerifyTestMain(m)
}

var load = Load{Requests: 200, Rate: 10, Prompt: Range{8, 100}, Tokens: Range{1, 60}, Vocab: 1000, Seed: 7}

var cost = testutil.Cost{Step: 10 * time.Millisecond, Row: 200 * time.Microsecond, Context: 1 * time.Microsecond}

func arrivals(t testing.TB, l Load) []scheduler.Arrival {
	t.Helper()
	seq, err := l.Arrivals()
	require.NoError(t, err)
	return slices.Collect(seq)
}

// A load is a pure function of its seed; its rate changes only the times.
func TestArrivals(t *testing.T) {
	as := arrivals(t, load)
	require.Len(t, as, load.Requests)
	assert.Equal(t, as, arrivals(t, load), "the same again")

	other := load
	other.Seed++
	assert.NotEqual(t, as, arrivals(t, other))

	slow := load
	slow.Rate, slow.Constant = 4, true
	for i, a := range arrivals(t, slow) {
		assert.Equal(t, as[i].Request, a.Request)
		assert.Equal(t, time.Duration(i)*250*time.Millisecond, a.At)
	}

	seen := map[int]bool{}
	for i, a := range as {
		assert.True(t, i == 0 && a.At == 0 || a.At > as[i-1].At)
		n := len(a.Request.Prompt)
		assert.True(t, n >= 8 && n <= 100 && a.Request.MaxTokens >= 1 && a.Request.MaxTokens <= 60)
		seen[n] = true
	}
	assert.Greater(t, len(seen), 40, "lengths are mixed")

	// Exponential gaps: mean and deviation are both 1/rate.
	many := load
	many.Requests, many.Prompt = 20_000, Range{1, 1}
	as = arrivals(t, many)
	long := 0
	for i := 1; i < len(as); i++ {
		if as[i].At-as[i-1].At > 100*time.Millisecond {
			long++
		}
	}
	assert.InDelta(t, 2000, as[len(as)-1].At.Seconds(), 50, "20,000 at 10/s")
	assert.InDelta(t, 0.3679, float64(long)/20_000, 0.015, "the share of gaps longer than the mean is 1/e")
}

// A load that cannot be is refused, with the numbers.
func TestBadLoad(t *testing.T) {
	for want, spoil := range map[string]func(*Load){
		"serving: 0 requests, want at least 1":                                     func(l *Load) { l.Requests = 0 },
		"serving: a rate of 0 requests/s, want more than 0":                        func(l *Load) { l.Rate = 0 },
		"serving: prompts of 0 to 5 tokens, want at least 1, and no less at most":  func(l *Load) { l.Prompt = Range{0, 5} },
		"serving: 9 to 5 tokens to generate, want at least 1, and no less at most": func(l *Load) { l.Tokens = Range{9, 5} },
		"serving: a vocabulary of 0":                                               func(l *Load) { l.Vocab = 0 },
	} {
		l := load
		spoil(&l)
		_, err := l.Arrivals()
		assert.EqualError(t, err, want)
	}
}

// outcome is what a served load came to, in a line for each request.
func outcome(n int, begun time.Time, r *scheduler.Result, err error) string {
	tm := &r.Timings
	return fmt.Sprint(n, r.Tokens, r.Reason, err, r.Preemptions, tm.Submitted.Sub(begun),
		tm.Started.Sub(begun), tm.FirstToken.Sub(begun), tm.Finished.Sub(begun), tm.Returned.Sub(begun))
}

func simulate(t testing.TB, l Load, cfg scheduler.Config, lim engine.Limits, each func(int, *scheduler.Result, error)) scheduler.Metrics {
	t.Helper()
	seq, err := l.Arrivals()
	require.NoError(t, err)
	v, eng := testutil.NewVirtual(cost, lim)
	clock := testutil.NewClock()
	v.Sleep = clock.Sleep
	m, err := scheduler.Simulate(eng, cfg, clock, seq, each)
	require.NoError(t, err)
	require.NoError(t, eng.Check())
	assert.Equal(t, eng.Limits().KVBlocks, eng.FreeBlocks())
	return m
}

// A simulation takes the decisions of the real scheduler: on the same arrivals,
// each request has the same tokens at the same times, under every policy and
// with preemptions.
func TestSimulationEqualsScheduler(t *testing.T) {
	lim := engine.Limits{KVBlocks: 30, MaxContext: 200}
	for _, policy := range []scheduler.Policy{scheduler.Serial, scheduler.Static, scheduler.Continuous} {
		t.Run(string(policy), func(t *testing.T) {
			cfg := scheduler.Config{Policy: policy, WatermarkBlocks: -1}
			want := make([]string, load.Requests)
			m := simulate(t, load, cfg, lim, func(n int, r *scheduler.Result, err error) {
				want[n] = outcome(n, time.Unix(0, 0), r, err)
			})
			assert.EqualValues(t, load.Requests, m.Finished)
			if policy == scheduler.Continuous {
				assert.NotZero(t, m.Preemptions)
			}
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				_, eng := testutil.NewVirtual(cost, lim)
				s, err := scheduler.New(eng, cfg)
				require.NoError(t, err)
				seq, err := load.Arrivals()
				require.NoError(t, err)
				require.NoError(t, Drive(t.Context(), s, seq, func(n int, r *scheduler.Result, err error) {
					assert.Equal(t, want[n], outcome(n, begun, r, err))
				}))
				require.NoError(t, s.Close(t.Context()))
			})
		})
	}
}

// At the same arrivals, waiting shrinks from serial to static to continuous; and the
// whole is the same from run to run.
func TestSimulation(t *testing.T) {
	l := load
	l.Requests, l.Rate = *simulated, 8
	lim := engine.Limits{MaxSequences: 64, MaxContext: 256}
	var waits []time.Duration
	for _, policy := range []scheduler.Policy{scheduler.Serial, scheduler.Static, scheduler.Continuous} {
		var sums []uint64
		var lat *Latencies
		for range 2 {
			lat = &Latencies{SLO: SLO{TTFT: 500 * time.Millisecond, TPOT: 50 * time.Millisecond}}
			sum := fnv.New64a()
			simulate(t, l, scheduler.Config{Policy: policy, MaxBatchSize: 32, QueueCapacity: 1 << 30}, lim, func(n int, r *scheduler.Result, err error) {
				lat.Add(r, err)
				fmt.Fprint(sum, n, len(r.Tokens), r.Tokens[0], r.Timings.Returned.UnixNano())
			})
			sums = append(sums, sum.Sum64())
		}
		t.Logf("%s\n%v", policy, lat)
		assert.Equal(t, sums[0], sums[1], "deterministic")
		assert.Zero(t, lat.Failed)
		assert.Equal(t, l.Requests, lat.TTFT.Count())
		assert.Equal(t, lat.Tokens-l.Requests, lat.ITL.Count())
		waits = append(waits, lat.TTFT.Mean())
	}
	assert.Greater(t, waits[0], 2*waits[1])
	assert.Greater(t, waits[1], 2*waits[2])
}

// Chunked prefill bounds the gap between two tokens by one mixed step; with whole
// prompts the gaps are as long as the prompts that come in between.
func TestChunksBoundITL(t *testing.T) {
	l := load
	l.Requests, l.Rate, l.Prompt = 500, 5, Range{8, 900}
	lim := engine.Limits{MaxSequences: 16, MaxContext: 1024, MaxStepTokens: 2048}
	itl := func(chunk, budget int) *Histogram {
		lat := &Latencies{}
		simulate(t, l, scheduler.Config{ChunkSize: chunk, TokenBudget: budget}, lim, func(n int, r *scheduler.Result, err error) { lat.Add(r, err) })
		t.Logf("chunks of %d, budget %d: ITL %v", chunk, budget, &lat.ITL)
		return &lat.ITL
	}
	chunked, whole := itl(64, 128), itl(1024, 2048)
	mixed := cost.Step + 128*cost.Row + 16*1024*cost.Context
	assert.Less(t, chunked.Max(), mixed)
	assert.Greater(t, whole.Percentile(0.99), 2*chunked.Percentile(0.99))
	assert.Greater(t, whole.Max(), 3*mixed)
}

// A full queue refuses, in a simulation too, and refusals are counted as failures.
func TestSimulationRefuses(t *testing.T) {
	l := load
	l.Rate = 1000
	lat := &Latencies{}
	m := simulate(t, l, scheduler.Config{QueueCapacity: 10}, engine.Limits{}, func(n int, r *scheduler.Result, err error) {
		if err != nil {
			assert.ErrorIs(t, err, scheduler.ErrQueueFull)
		}
		lat.Add(r, err)
	})
	assert.Equal(t, l.Requests, lat.Requests)
	assert.EqualValues(t, m.Rejected, lat.Failed)
	assert.Positive(t, lat.Failed)
	assert.Less(t, lat.Failed, l.Requests)
}

// Drive gives up when its context ends.
func TestDriveCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{})
		s, err := scheduler.New(eng, scheduler.Config{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		seq, err := load.Arrivals()
		require.NoError(t, err)
		require.ErrorIs(t, Drive(ctx, s, seq, func(int, *scheduler.Result, error) {}), context.DeadlineExceeded)
		require.NoError(t, s.Close(t.Context()))
		assert.Less(t, s.Metrics().Submitted, uint64(50))
	})
}

// The percentiles of a histogram are those of the sorted samples, at most 1/128 higher.
func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ds := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Uint64().Draw(t, "ns") >> rapid.IntRange(1, 63).Draw(t, "shift"))
		}), 1, 50).Draw(t, "durations")
		var h Histogram
		for _, d := range ds {
			h.Add(d)
		}
		slices.Sort(ds)
		for _, p := range []float64{0, 0.25, 0.5, 0.9, 0.99, 1} {
			rank := 1 // the first of which p·n are no later
			for float64(rank) < p*float64(len(ds))-1e-9 {
				rank++
			}
			exact, got := ds[rank-1], h.Percentile(p)
			if got < exact || got-exact > exact/128 {
				t.Fatalf("p%v of %v: got %d, want %d", p*100, ds, got, exact)
			}
		}
		if h.Min() != ds[0] || h.Max() != ds[len(ds)-1] || h.Count() != len(ds) {
			t.Fatalf("%d from %v to %v: %v", h.Count(), h.Min(), h.Max(), ds)
		}
	})
	var empty Histogram
	assert.Zero(t, empty.Percentile(0.5))
	assert.Zero(t, empty.Mean())
}

// The definitions, on a case by hand.
func TestLatencies(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }
	result := func(submitted int, tokens ...int) *scheduler.Result {
		r := &scheduler.Result{Timings: scheduler.Timings{Submitted: at(submitted)}}
		for _, ms := range tokens {
			r.Tokens = append(r.Tokens, 1)
			r.Timings.Tokens = append(r.Timings.Tokens, at(ms))
		}
		r.Timings.FirstToken = r.Timings.Tokens[0]
		r.Timings.Finished = r.Timings.Tokens[len(tokens)-1]
		r.Timings.Returned = r.Timings.Finished
		return r
	}
	ms := func(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
	l := Latencies{SLO: SLO{TTFT: ms(100), TPOT: ms(20)}}
	l.Add(result(1000, 1100, 1110, 1140), nil) // TTFT 100, TPOT 20: both just kept
	l.Add(result(1500, 1601), nil)             // TTFT 101; a single token has no TPOT
	l.Add(result(2000, 2010, 2031), nil)       // TPOT 21
	held := result(2500, 2510, 2520)           // a row that its batch held for 30 ms
	held.Timings.Returned = at(3000)
	l.Add(held, nil)
	l.Add(result(0, 1), context.Canceled)
	l.Add(&scheduler.Result{}, scheduler.ErrQueueFull)

	assert.Equal(t, 6, l.Requests)
	assert.Equal(t, 2, l.Failed)
	assert.Equal(t, 1, l.Met)
	assert.Equal(t, 8, l.Tokens)
	assert.Equal(t, 2*time.Second, l.Span(), "of those that ended well")
	assert.Equal(t, 0.5, l.Goodput())
	assert.Equal(t, 2.0, l.Throughput())
	assert.Equal(t, 4.0, l.TokensPerSecond())
	assert.Equal(t, []int{4, 3, 4, 4}, []int{l.TTFT.Count(), l.TPOT.Count(), l.ITL.Count(), l.E2EL.Count()})
	assert.Equal(t, ms((100.+101+10+10)/4), l.TTFT.Mean())
	assert.Equal(t, ms((20.+21+490)/3), l.TPOT.Mean())
	assert.Equal(t, ms((10.+30+21+10)/4), l.ITL.Mean())
	assert.Equal(t, ms((140.+101+31+500)/4), l.E2EL.Mean())
}

// BenchmarkSimulate is how fast a day passes.
func BenchmarkSimulate(b *testing.B) {
	l := load
	l.Requests = 10_000
	for b.Loop() {
		simulate(b, l, scheduler.Config{MaxBatchSize: 32, QueueCapacity: 1 << 30}, engine.Limits{MaxSequences: 32, MaxContext: 256}, func(int, *scheduler.Result, error) {})
	}
	b.ReportMetric(float64(l.Requests*b.N)/b.Elapsed().Seconds(), "requests/s")
}
