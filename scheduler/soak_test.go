package scheduler

import (
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/testutil"
)

var (
	soak     = flag.Duration("soak", 300*time.Millisecond, "how long the soak runs; try 10m")
	soakSeed = flag.Uint64("soak-seed", 1, "seed of the soak")
)

// A scheduler under random load, with cancellations, preemptions and failing
// steps, for as long as -soak says: every request ends once with the tokens it
// has alone or the beginning of them, the accounts are right after every step,
// nothing leaks and memory stays flat.
func TestSoak(t *testing.T) {
	t.Run("host", func(t *testing.T) { testSoak(t, false) })
	t.Run("device", func(t *testing.T) { testSoak(t, true) })
}

func testSoak(t *testing.T, device bool) {
	lim := engine.Limits{MaxSequences: 16, MaxContext: 256, MaxStepTokens: 128, KVBlockSize: 8, KVBlocks: 80, Vocab: 40}
	cfg := Config{ChunkSize: 16, WatermarkBlocks: -1, QueueCapacity: 24}
	t.Logf("-soak %v -soak-seed %d", *soak, *soakSeed)

	// The requests come from a stock whose tokens are known.
	r := rand.New(rand.NewPCG(*soakSeed, 0))
	stock := make([]Request, 200)
	for i := range stock {
		stock[i] = Request{
			Prompt: make([]int32, 1+r.IntN(100)), MaxTokens: 1 + r.IntN(100),
			EOS: []int32{7}, IgnoreEOS: r.IntN(2) == 0, Stream: r.IntN(4) == 0,
		}
		for k := range stock[i].Prompt {
			stock[i].Prompt[k] = r.Int32N(40)
		}
		if r.IntN(3) == 0 {
			stock[i].Sampling = engine.Sampling{Temperature: 1, Seed: r.Uint64()}
		}
	}
	want := aloneAll(t, cfg, lim, stock)

	v, eng := testutil.NewVirtual(testutil.Cost{}, lim)
	v.Device = device
	injected := errors.New("injected")
	faults := rand.New(rand.NewPCG(*soakSeed, 1))
	v.Faults = map[int]testutil.Fault{}
	v.Before = func(*backend.Step) {
		delete(v.Faults, v.Steps-1)
		switch faults.IntN(400) {
		case 0:
			v.Faults[v.Steps] = testutil.Fault{Err: injected}
		case 1:
			v.Faults[v.Steps] = testutil.Fault{Panic: injected}
		}
	}
	violations := 0
	s, err := start(eng, cfg, func(s *Scheduler) {
		if err := s.m.check(); err != nil && violations < 10 {
			violations++
			t.Error(err)
		}
	})
	require.NoError(t, err)

	var wrong, submitted, full atomic.Int64
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	deadline := time.Now().Add(*soak)
	var wg sync.WaitGroup
	for c := range 42 { // a few more than rows and queue hold
		wg.Go(func() {
			r := rand.New(rand.NewPCG(*soakSeed, uint64(2+c)))
			for time.Now().Before(deadline) {
				i := r.IntN(len(stock))
				ctx, cancel := context.WithCancel(context.Background())
				switch r.IntN(4) {
				case 0:
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.IntN(int(5*time.Millisecond))))
				case 1:
					time.AfterFunc(time.Duration(r.IntN(int(time.Millisecond))), cancel)
				}
				ticket, err := s.Submit(ctx, stock[i])
				switch {
				case errors.Is(err, ErrQueueFull):
					full.Add(1)
					runtime.Gosched()
				case err == nil:
					submitted.Add(1)
					res, err := ticket.Wait()
					n := len(res.Tokens)
					ok := n <= len(want[i]) && slices.Equal(res.Tokens, want[i][:n])
					switch res.Reason {
					case FinishLength, FinishEOS:
						ok = ok && err == nil && n == len(want[i])
					case FinishError:
						ok = ok && errors.Is(err, injected)
					case FinishCancelled:
						ok = ok && ctx.Err() != nil && errors.Is(err, ctx.Err())
					}
					if !ok && wrong.Add(1) < 10 {
						t.Errorf("request of stock %d ended by %q (%v) with %v, alone it has %v", i, res.Reason, err, res.Tokens, want[i])
					}
				case ctx.Err() == nil:
					t.Error(err)
				}
				cancel()
			}
		})
	}
	// Memory is read by the side of the load; a leak shows as growth.
	var early uint64
	if *soak >= time.Minute {
		time.Sleep(*soak / 10)
		early = heap()
	}
	wg.Wait()
	require.NoError(t, s.Close(t.Context()))
	free(t, eng)
	m := s.Metrics()
	assert.EqualValues(t, submitted.Load(), m.Submitted)
	assert.Equal(t, m.Submitted, m.Finished+m.Cancelled+m.Failed)
	late := heap()
	if early > 0 {
		assert.Less(t, late, early+(4<<20), "bytes of heap, from a tenth of the time to the end")
	}
	t.Logf("%d requests: %d finished, %d cancelled, %d failed, %d refused; %d steps, %d failed; %d preemptions, %d tokens; heap %d → %d KiB",
		m.Submitted, m.Finished, m.Cancelled, m.Failed, full.Load(), m.Steps, m.FailedSteps, m.Preemptions, m.Tokens, early>>10, late>>10)
	for name, n := range map[string]uint64{"finished": m.Finished, "cancelled": m.Cancelled, "steps": m.Steps} {
		assert.NotZero(t, n, name)
	}
}
