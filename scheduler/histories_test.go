package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/testutil"
)

// history is the life of one caller.
type history struct {
	Request     Request
	SubmitAfter time.Duration
	CancelAfter time.Duration // 0: never
}

func drawConfig(t *rapid.T) (Config, engine.Limits) {
	lim := engine.Limits{
		MaxSequences:  rapid.IntRange(1, 12).Draw(t, "sequences"),
		MaxContext:    96,
		MaxStepTokens: 128,
		KVBlockSize:   rapid.SampledFrom([]int{1, 4, 16}).Draw(t, "KV block size"),
		Vocab:         40, // so that EOS comes up
	}
	// From a pool that holds one full context to one that holds four.
	lim.KVBlocks = rapid.IntRange(96/lim.KVBlockSize, 4*96/lim.KVBlockSize).Draw(t, "KV blocks")
	return Config{
		Policy:          rapid.SampledFrom([]Policy{Serial, Static, Continuous, Continuous}).Draw(t, "policy"),
		TokenBudget:     rapid.IntRange(32, 128).Draw(t, "token budget"),
		ChunkSize:       rapid.SampledFrom([]int{1, 8, 16}).Draw(t, "chunk size"),
		WatermarkBlocks: rapid.IntRange(-1, 3).Draw(t, "watermark"),
	}, lim
}

// randomHistory is made from a seed, not drawn, so that a failure prints in a line.
func randomHistory(r *rand.Rand) history {
	h := history{
		Request: Request{
			Prompt:    make([]int32, 1+r.IntN(48)),
			MaxTokens: 1 + r.IntN(48),
			EOS:       []int32{7},
			IgnoreEOS: r.IntN(2) == 0,
			Stream:    r.IntN(2) == 0,
		},
		SubmitAfter: time.Duration(r.IntN(2000)) * time.Millisecond,
	}
	for i := range h.Request.Prompt {
		h.Request.Prompt[i] = r.Int32N(40)
	}
	if r.IntN(3) == 0 {
		h.CancelAfter = time.Duration(1 + r.IntN(int(time.Second)))
	}
	return h
}

// run serves the histories on a virtual clock, each caller on its own
// goroutine, and returns what went wrong.
func run(t *testing.T, cfg Config, lim engine.Limits, device bool, hs []history, want [][]int32, faults map[int]testutil.Fault) (m Metrics, problems []error) {
	synctest.Test(t, func(t *testing.T) {
		v, eng := testutil.NewVirtual(testutil.Cost{Step: time.Millisecond, Row: 100 * time.Microsecond, Context: time.Microsecond}, lim)
		v.Faults, v.Device = faults, device
		var mu sync.Mutex
		problem := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			problems = append(problems, fmt.Errorf(format, args...))
		}
		v.Before = func(step *backend.Step) {
			if cfg.Policy == Serial && len(step.Rows) != 1 {
				problem("a serial step of %d rows", len(step.Rows))
			}
		}
		s, err := start(eng, cfg, func(s *Scheduler) {
			if err := s.m.check(); err != nil {
				problem("after step %d: %w", s.m.m.Steps, err)
			}
		})
		require.NoError(t, err)
		results := make([]Result, len(hs))
		var wg sync.WaitGroup
		for i, h := range hs {
			wg.Go(func() {
				time.Sleep(h.SubmitAfter)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if h.CancelAfter > 0 {
					stop := time.AfterFunc(h.CancelAfter, cancel)
					defer stop.Stop()
				}
				ticket, err := s.Submit(ctx, h.Request)
				if err != nil {
					problem("request %d: %w", i, err)
					return
				}
				res, err := ticket.Wait()
				results[i] = res
				var streamed []int32
				if h.Request.Stream {
					for token := range ticket.Tokens() {
						streamed = append(streamed, token)
					}
				}
				switch {
				case res.Reason == FinishLength || res.Reason == FinishEOS:
					if err != nil || !slices.Equal(res.Tokens, want[i]) {
						problem("request %d: tokens %v, alone it has %v (%v)", i, res.Tokens, want[i], err)
					}
				case res.Reason == FinishCancelled && errors.Is(err, context.Canceled) && h.CancelAfter > 0,
					res.Reason == FinishError && err != nil && len(faults) > 0:
					if n := len(res.Tokens); n > len(want[i]) || !slices.Equal(res.Tokens, want[i][:n]) {
						problem("request %d: tokens %v do not begin those it has alone, %v", i, res.Tokens, want[i])
					}
				default:
					problem("request %d ended by %q with %v", i, res.Reason, err)
				}
				if h.Request.Stream && !slices.Equal(streamed, res.Tokens) {
					problem("request %d streamed %v, returned %v", i, streamed, res.Tokens)
				}
			})
		}
		wg.Wait()
		if err := s.Close(context.Background()); err != nil {
			problem("close: %w", err)
		}
		if err := eng.Check(); err != nil || eng.FreeBlocks() != lim.KVBlocks || eng.FreeSequences() != lim.MaxSequences {
			problem("at the end %d of %d KV blocks and %d of %d sequences are free (%v)", eng.FreeBlocks(), lim.KVBlocks, eng.FreeSequences(), lim.MaxSequences, err)
		}
		m = s.Metrics()
		if m.Finished+m.Cancelled+m.Failed != uint64(len(hs)) || m.Submitted != uint64(len(hs)) || m.Running+m.Waiting+m.Preempted != 0 {
			problem("%d requests, but %+v", len(hs), m)
		}
		// First come, first served: nobody starts before one that came earlier.
		order := make([]int, 0, len(hs))
		for i := range results {
			if !results[i].Timings.Started.IsZero() {
				order = append(order, i)
			}
		}
		slices.SortFunc(order, func(a, b int) int {
			return results[a].Timings.Submitted.Compare(results[b].Timings.Submitted)
		})
		for k := 1; k < len(order); k++ {
			a, b := &results[order[k-1]].Timings, &results[order[k]].Timings
			if a.Submitted.Before(b.Submitted) && b.Started.Before(a.Started) {
				problem("request %d overtook request %d", order[k], order[k-1])
			}
		}
	})
	return m, problems
}

// 200 callers at once submit, cancel and finish at random: every request ends
// exactly once, with the tokens it has alone; every step leaves the accounts
// right, and in the end all is free.
func TestRandomHistories(t *testing.T) {
	var total Metrics
	rapid.Check(t, func(rt *rapid.T) {
		cfg, lim := drawConfig(rt)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		hs := make([]history, 200)
		for i := range hs {
			hs[i] = randomHistory(r)
		}
		var faults map[int]testutil.Fault
		if rapid.Bool().Draw(rt, "faults") {
			faults = map[int]testutil.Fault{}
			for range 5 {
				n := 1 + r.IntN(400)
				faults[n] = testutil.Fault{Err: errors.New("injected"), Slow: time.Duration(n) * time.Millisecond}
				if n%2 == 0 {
					faults[n] = testutil.Fault{Panic: "injected"}
				}
			}
		}
		rs := make([]Request, len(hs))
		for i := range hs {
			rs[i] = hs[i].Request
		}
		want := aloneAll(t, cfg, lim, rs)
		m, problems := run(t, cfg, lim, rapid.Bool().Draw(rt, "device"), hs, want, faults)
		for _, p := range problems {
			rt.Error(p)
		}
		total.Preemptions += m.Preemptions
		total.Finished += m.Finished
		total.Cancelled += m.Cancelled
		total.Failed += m.Failed
		total.HeldDecodeRows += m.HeldDecodeRows
	})
	t.Logf("%+v", total)
	for name, n := range map[string]uint64{
		"preemptions": total.Preemptions, "finished": total.Finished, "cancelled": total.Cancelled,
		"failed": total.Failed, "held rows": total.HeldDecodeRows,
	} {
		assert.NotZero(t, n, "%s: the histories do not reach it", name)
	}
}

// aloneAll gives the tokens of each request served alone with the same chunks.
func aloneAll(t testing.TB, cfg Config, lim engine.Limits, rs []Request) [][]int32 {
	_, eng := testutil.NewVirtual(testutil.Cost{}, lim)
	cfg.Policy = Serial
	require.NoError(t, cfg.validate(eng.Limits()))
	m := newMachine(eng, cfg, time.Now)
	all := make([][]int32, len(rs))
	for i, r := range rs {
		r.Stream = false
		j := newJob(r)
		m.submit(j)
		for m.step(t.Context()) {
		}
		require.NoError(t, j.err)
		all[i] = j.out
		m.over = m.over[:0]
	}
	return all
}
