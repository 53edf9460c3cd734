package scheduler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/testutil"
)

func TestMain(m *testing.M) {
	flag.Set("rapid.nofailfile", "true") // the seed it prints says it all
	flag.Set("rapid.checks", "25")
	flag.Set("rapid.shrinktime", "3s")
	goleak.VerifyTestMain(m)
}

// policies are all that there are; what must hold for one must hold for each.
var policies = []Policy{Serial, Static, Continuous}

// cost makes a step of one row take 10 ms + 1 ms.
var cost = testutil.Cost{Step: 10 * time.Millisecond, Row: time.Millisecond}

// onEach runs f, on a virtual clock, for each policy on an engine whose host
// computes, and on one whose host is free while a device does.
func onEach(t *testing.T, f func(t *testing.T, policy Policy, device bool)) {
	for _, policy := range policies {
		for _, device := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/device=%t", policy, device), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { f(t, policy, device) })
			})
		}
	}
}

// prompt is n tokens that differ by seed.
func prompt(seed, n int) []int32 {
	p := make([]int32, n)
	for i := range p {
		p[i] = int32((seed*7919 + i*104729 + i*i) % 1000)
	}
	return p
}

// checked starts a scheduler that verifies the accounting after every step.
func checked(t testing.TB, eng *engine.Engine, cfg Config) *Scheduler {
	t.Helper()
	s, err := start(eng, cfg, func(s *Scheduler) {
		if err := s.m.check(); err != nil {
			panic(err) // the loop's goroutine: FailNow is not allowed here
		}
	})
	require.NoError(t, err)
	return s
}

// check verifies what must hold between steps.
func (m *machine) check() error {
	if err := m.eng.Check(); err != nil {
		return err
	}
	claimed, blocks := 0, 0
	for i, j := range m.running {
		switch {
		case j.phase != inBatch || j.seq == nil:
			return fmt.Errorf("row %d has no sequence", i)
		case j.seq.Len() != j.pos:
			return fmt.Errorf("row %d: the sequence holds %d positions, want %d", i, j.seq.Len(), j.pos)
		case j.seq.Blocks() > j.claim:
			return fmt.Errorf("row %d holds %d KV blocks and claims %d", i, j.seq.Blocks(), j.claim)
		case j.seq.Blocks() != blocksFor(j.pos, m.blockSize):
			return fmt.Errorf("row %d holds %d KV blocks for %d positions", i, j.seq.Blocks(), j.pos)
		}
		claimed += j.claim
		blocks += j.seq.Blocks()
	}
	preempted := 0
	for i, j := range m.waiting.jobs {
		switch {
		case j.phase != inLine || j.index != i || j.seq != nil:
			return fmt.Errorf("request %d in line holds a sequence or is misplaced", j.id)
		case i > 0 && j.before(m.waiting.jobs[(i-1)/2]):
			return fmt.Errorf("request %d is behind a later one", j.id)
		case j.preemptions > 0:
			preempted++
		}
	}
	lim := m.eng.Limits()
	switch {
	case claimed != m.claimed:
		return fmt.Errorf("%d KV blocks claimed, counted %d", claimed, m.claimed)
	case blocks != lim.KVBlocks-m.eng.FreeBlocks():
		return fmt.Errorf("the rows hold %d KV blocks, the engine gave out %d", blocks, lim.KVBlocks-m.eng.FreeBlocks())
	case preempted != m.preempted:
		return fmt.Errorf("%d preempted requests wait, counted %d", preempted, m.preempted)
	case len(m.running) > m.maxRows || len(m.running) != lim.MaxSequences-m.eng.FreeSequences():
		return fmt.Errorf("%d rows of at most %d, %d sequences", len(m.running), m.maxRows, lim.MaxSequences-m.eng.FreeSequences())
	}
	return nil
}

// alone gives the tokens of each request when it has an engine to itself.
func alone(t testing.TB, lim engine.Limits, rs ...Request) [][]int32 {
	return aloneAll(t, Config{}, lim, rs)
}

func free(t testing.TB, eng *engine.Engine) {
	t.Helper()
	require.NoError(t, eng.Check())
	assert.Equal(t, eng.Limits().KVBlocks, eng.FreeBlocks(), "free KV blocks")
	assert.Equal(t, eng.Limits().MaxSequences, eng.FreeSequences(), "free sequences")
}

// Every policy gives every request the tokens it gets alone, however prompts
// and lengths are mixed.
func TestTokensDoNotDependOnPolicy(t *testing.T) {
	var rs []Request
	for i := range 20 {
		rs = append(rs, Request{Prompt: prompt(i, 1+i*17%200), MaxTokens: 1 + i*5%23, IgnoreEOS: true})
		if i%3 == 0 {
			rs[i].Sampling = engine.Sampling{Temperature: 0.7, Seed: uint64(i)}
		}
	}
	want := alone(t, engine.Limits{}, rs...)
	for _, policy := range policies {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, eng := testutil.NewVirtual(cost, engine.Limits{})
				most := 0
				v.Before = func(step *backend.Step) { most = max(most, len(step.Rows)) }
				s := checked(t, eng, Config{Policy: policy})
				tickets, err := s.SubmitAll(t.Context(), rs)
				require.NoError(t, err)
				for i, ticket := range tickets {
					res, err := ticket.Wait()
					require.NoError(t, err)
					assert.Equal(t, want[i], res.Tokens, "request %d", i)
					assert.Equal(t, FinishLength, res.Reason)
					assert.Len(t, res.Timings.Tokens, len(res.Tokens))
				}
				require.NoError(t, s.Close(t.Context()))
				free(t, eng)
				if policy == Serial {
					assert.Equal(t, 1, most, "rows of a serial step")
				} else {
					assert.Equal(t, 8, most, "rows of the fullest step")
				}
			})
		})
	}
}

// An EOS token ends a request and is its last token; with IgnoreEOS it does not.
func TestEOS(t *testing.T) {
	r := Request{Prompt: prompt(1, 10), MaxTokens: 12}
	tokens := alone(t, engine.Limits{}, r)[0]
	require.Len(t, tokens, 12)
	r.EOS = []int32{1001, tokens[4]}
	assert.Equal(t, tokens[:5], alone(t, engine.Limits{}, r)[0])
	r.IgnoreEOS = true
	assert.Equal(t, tokens, alone(t, engine.Limits{}, r)[0])
}

// A request that can never run is refused at once, with the numbers.
func TestBadRequests(t *testing.T) {
	_, eng := testutil.NewVirtual(testutil.Cost{}, engine.Limits{MaxContext: 64, KVBlocks: 3, Vocab: 50})
	s, err := New(eng, Config{})
	require.NoError(t, err)
	defer s.Abort()
	for _, c := range []struct {
		r    Request
		is   error
		want string
	}{
		{Request{MaxTokens: 1}, ErrRequest, "scheduler: bad request: the prompt is empty"},
		{Request{Prompt: []int32{1}}, ErrRequest, "scheduler: bad request: max tokens is 0, want at least 1"},
		{Request{Prompt: []int32{1, 50}, MaxTokens: 1}, engine.ErrToken, "scheduler: bad request: token id out of range: 50 at position 1 of the prompt, the vocabulary has 50"},
		{Request{Prompt: []int32{-1}, MaxTokens: 1}, engine.ErrToken, "scheduler: bad request: token id out of range: -1 at position 0 of the prompt, the vocabulary has 50"},
		{Request{Prompt: make([]int32, 60), MaxTokens: 5}, engine.ErrContextFull, "scheduler: bad request: context full: a prompt of 60 and 5 further tokens, the context is 64"},
		{Request{Prompt: make([]int32, 1), MaxTokens: 1 << 62}, engine.ErrContextFull, "scheduler: bad request: context full: a prompt of 1 and 4611686018427387904 further tokens, the context is 64"},
		{Request{Prompt: make([]int32, 40), MaxTokens: 10}, engine.ErrExhausted, "scheduler: bad request: out of KV blocks: a prompt of 40 and 10 further tokens take 4 KV blocks of 16, there are 3"},
		{Request{Prompt: []int32{1}, MaxTokens: 1, Priority: math.MinInt64}, ErrRequest, "scheduler: bad request: a priority of -9223372036854775808 places, want at most 2147483647 either way"},
	} {
		_, err := s.Submit(t.Context(), c.r)
		assert.EqualError(t, err, c.want)
		assert.ErrorIs(t, err, c.is)
		assert.ErrorIs(t, err, ErrRequest)
	}
	// The largest that fits runs.
	ticket, err := s.Submit(t.Context(), Request{Prompt: make([]int32, 40), MaxTokens: 9, IgnoreEOS: true})
	require.NoError(t, err)
	res, err := ticket.Wait()
	require.NoError(t, err)
	assert.Len(t, res.Tokens, 9)
}

// A configuration that cannot work is refused, with the numbers and the way out.
func TestBadConfig(t *testing.T) {
	_, eng := testutil.NewVirtual(testutil.Cost{}, engine.Limits{MaxSequences: 4, MaxStepTokens: 70})
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Policy: "eager"}, `unknown policy "eager": want "serial", "static" or "continuous"`},
		{Config{MaxBatchSize: 5}, "max batch size 5, but the engine holds 4 sequences"},
		{Config{MaxBatchSize: -1}, "sizes must be positive"},
		{Config{TokenBudget: 71}, "token budget 71, but an engine step holds 70 tokens"},
		{Config{TokenBudget: 66}, "a token budget of 66 cannot hold a prompt chunk of 64 beside 3 decode rows: raise it to 67"},
	} {
		_, err := New(eng, c.cfg)
		require.ErrorContains(t, err, c.want)
	}
	seq, err := eng.NewSequence()
	require.NoError(t, err)
	_, err = New(eng, Config{})
	require.ErrorContains(t, err, "the engine is in use: 1 sequences hold 0 KV blocks")
	seq.Close()
	s, err := New(eng, Config{})
	require.NoError(t, err)
	assert.Equal(t, Config{Policy: Continuous, MaxBatchSize: 4, TokenBudget: 70, ChunkSize: 64, QueueCapacity: 1024, WatermarkBlocks: 1}, s.Config())
	s.Abort()
}

// The queue is bounded: what does not fit is refused, what fits is served.
func TestQueueFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{})
		s := checked(t, eng, Config{MaxBatchSize: 2, QueueCapacity: 3})
		r := Request{Prompt: prompt(1, 5), MaxTokens: 4, IgnoreEOS: true}
		var tickets []*Ticket
		for range 5 {
			ticket, err := s.Submit(t.Context(), r)
			require.NoError(t, err)
			tickets = append(tickets, ticket)
		}
		_, err := s.Submit(t.Context(), r)
		require.ErrorIs(t, err, ErrQueueFull)
		require.EqualError(t, err, "scheduler: queue full: 5 requests are in flight and 1 came, there are 2 rows and a queue of 3")
		_, err = tickets[0].Wait()
		require.NoError(t, err)
		_, err = s.Submit(t.Context(), r) // a place is free as soon as Wait returns
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		m := s.Metrics()
		assert.EqualValues(t, 1, m.Rejected)
		assert.EqualValues(t, 6, m.Submitted)
		assert.EqualValues(t, 6, m.Finished)
		_, err = s.Submit(t.Context(), r)
		require.ErrorIs(t, err, ErrClosed)
		free(t, eng)
	})
}

// A context that ends frees the row at the next step, wherever the request is.
func TestCancel(t *testing.T) {
	onEach(t, func(t *testing.T, policy Policy, device bool) {
		v, eng := testutil.NewVirtual(cost, engine.Limits{MaxSequences: 2})
		v.Device = device
		s := checked(t, eng, Config{Policy: policy})
		r := Request{Prompt: prompt(1, 5), MaxTokens: 100, IgnoreEOS: true}
		// While the gate's step runs, the others gather: they start together.
		gate := r
		gate.MaxTokens = 1
		_, err := s.Submit(t.Context(), gate)
		require.NoError(t, err)
		synctest.Wait()
		cause := errors.New("the caller left")
		ctx, cancel := context.WithCancelCause(t.Context())
		running, err := s.Submit(ctx, r)
		require.NoError(t, err)
		other, err := s.Submit(t.Context(), r)
		require.NoError(t, err)
		deadline, stop := context.WithTimeout(t.Context(), 95*time.Millisecond)
		defer stop()
		inLine, err := s.Submit(deadline, r)
		require.NoError(t, err)

		begun := time.Now()
		time.Sleep(50 * time.Millisecond)
		cancel(cause)
		res, err := running.Wait()
		require.ErrorIs(t, err, cause)
		require.ErrorContains(t, err, "scheduler: request cancelled: the caller left")
		assert.Equal(t, FinishCancelled, res.Reason)
		assert.NotEmpty(t, res.Tokens)
		assert.Less(t, time.Since(begun), 75*time.Millisecond, "no later than the end of the step in progress")

		res, err = inLine.Wait()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "out of time")
		assert.Less(t, time.Since(begun), 120*time.Millisecond)
		if policy != Continuous {
			assert.Empty(t, res.Tokens, "it never ran")
		}

		res, err = other.Wait()
		require.NoError(t, err)
		assert.Len(t, res.Tokens, 100)
		_, err = s.Submit(deadline, r)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, s.Close(t.Context()))
		free(t, eng)
		assert.EqualValues(t, 2, s.Metrics().Cancelled)
	})
}

// A request that has ended leaves nothing on its context, which may live long.
func TestEndedRequestLeavesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{})
		s := checked(t, eng, Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ticket, err := s.Submit(ctx, Request{Prompt: prompt(1, 5), MaxTokens: 2, IgnoreEOS: true})
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		cancel()
		synctest.Wait()
		assert.Empty(t, s.cancels)
		_, err = ticket.Wait()
		require.NoError(t, err)
	})
}

// Close drains; when its context ends first, the rest is aborted.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{})
		s := checked(t, eng, Config{Policy: Serial})
		short := Request{Prompt: prompt(1, 5), MaxTokens: 3, IgnoreEOS: true}
		long := Request{Prompt: prompt(2, 5), MaxTokens: 500, IgnoreEOS: true}
		tickets, err := s.SubmitAll(t.Context(), []Request{short, long, long})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = s.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.EqualError(t, err, "scheduler: 2 requests aborted while closing: context deadline exceeded")
		free(t, eng)
		_, err = tickets[0].Wait()
		require.NoError(t, err)
		for _, ticket := range tickets[1:] {
			_, err = ticket.Wait()
			require.ErrorIs(t, err, ErrAborted)
		}
		s.Abort() // again is harmless

		// The engine is free for the next.
		s = checked(t, eng, Config{})
		ticket, err := s.Submit(t.Context(), short)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		res, err := ticket.Wait()
		require.NoError(t, err)
		assert.Len(t, res.Tokens, 3)
	})
}

// A failing step, by error or by panic, ends the requests that were in it,
// with its cause, and no others.
func TestStepFails(t *testing.T) {
	broken := errors.New("the device is gone")
	for name, fault := range map[string]testutil.Fault{
		"error":       {Err: broken},
		"panic":       {Panic: broken},
		"panic-value": {Panic: "index out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, policy Policy, device bool) {
				v, eng := testutil.NewVirtual(cost, engine.Limits{MaxSequences: 2})
				v.Device = device
				v.Faults = map[int]testutil.Fault{4: fault}
				s := checked(t, eng, Config{Policy: policy})
				r := Request{Prompt: prompt(1, 5), MaxTokens: 10, IgnoreEOS: true}
				want := alone(t, engine.Limits{}, r)[0]
				tickets, err := s.SubmitAll(t.Context(), []Request{r, r, r})
				require.NoError(t, err)
				failed := 2
				if policy == Serial {
					failed = 1
				}
				for i, ticket := range tickets {
					res, err := ticket.Wait()
					if i >= failed {
						require.NoError(t, err)
						assert.Equal(t, want, res.Tokens)
						continue
					}
					assert.Equal(t, FinishError, res.Reason)
					assert.Equal(t, want[:3], res.Tokens, "what it had before")
					require.ErrorContains(t, err, "scheduler: request failed: step 4: ")
					if fault.Panic != nil {
						var p *PanicError
						require.ErrorAs(t, err, &p)
						assert.Contains(t, string(p.Stack), "(*Virtual).Run")
					}
					if name != "panic-value" {
						require.ErrorIs(t, err, broken)
					}
				}
				require.NoError(t, s.Close(t.Context()))
				free(t, eng)
				m := s.Metrics()
				assert.EqualValues(t, failed, m.Failed)
				assert.EqualValues(t, 1, m.FailedSteps)
			})
		})
	}
}

// Whoever takes a sequence behind the scheduler's back fails requests, with the
// cause, and does not bring the process down.
func TestEngineSharedByMistake(t *testing.T) {
	_, eng := testutil.NewVirtual(testutil.Cost{}, engine.Limits{MaxSequences: 2})
	s, err := New(eng, Config{})
	require.NoError(t, err)
	seq, err := eng.NewSequence()
	require.NoError(t, err)
	r := Request{Prompt: prompt(1, 5), MaxTokens: 2, IgnoreEOS: true}
	tickets, err := s.SubmitAll(t.Context(), []Request{r, r})
	require.NoError(t, err)
	for _, ticket := range tickets {
		_, err := ticket.Wait()
		require.ErrorIs(t, err, engine.ErrTooManySequences)
	}
	s.Abort()
	seq.Close()
	free(t, eng)
}

// The comparison of tokens can fail: a wrong token is seen.
func TestWrongTokenIsSeen(t *testing.T) {
	v, eng := testutil.NewVirtual(testutil.Cost{}, engine.Limits{})
	v.Faults = map[int]testutil.Fault{3: {Token: true}}
	s := checked(t, eng, Config{})
	r := Request{Prompt: prompt(1, 5), MaxTokens: 6, IgnoreEOS: true}
	ticket, err := s.Submit(t.Context(), r)
	require.NoError(t, err)
	res, err := ticket.Wait()
	require.NoError(t, err)
	want := alone(t, engine.Limits{}, r)[0]
	assert.Equal(t, want[:2], res.Tokens[:2])
	assert.NotEqual(t, want[2:], res.Tokens[2:])
	s.Abort()
}

// An idle scheduler takes no time: a lone request costs its steps and nothing
// else, whenever it comes.
func TestLoneRequestCostsItsSteps(t *testing.T) {
	for _, policy := range policies {
		synctest.Test(t, func(t *testing.T) {
			_, eng := testutil.NewVirtual(cost, engine.Limits{})
			s := checked(t, eng, Config{Policy: policy})
			for range 3 {
				time.Sleep(time.Hour)
				begun := time.Now()
				ticket, err := s.Submit(t.Context(), Request{Prompt: prompt(1, 5), MaxTokens: 4, IgnoreEOS: true})
				require.NoError(t, err)
				res, err := ticket.Wait()
				require.NoError(t, err)
				tm := res.Timings
				assert.Equal(t, 15*time.Millisecond, tm.Prefill())
				assert.Equal(t, 33*time.Millisecond, tm.Decode())
				assert.Zero(t, tm.Queue())
				assert.Equal(t, begun, tm.Submitted)
				assert.Equal(t, tm.Finished, tm.Returned)
				assert.Equal(t, 48*time.Millisecond, time.Since(begun))
			}
			m := s.Metrics()
			assert.EqualValues(t, 12, m.Steps)
			assert.Equal(t, 144*time.Millisecond, m.EngineTime)
			assert.Zero(t, m.PlanTime, "on a clock that only steps move")
			s.Abort()
		})
	}
}
