package scheduler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/testutil"
)

// A request that lost its KV blocks, several times, has the tokens of an
// undisturbed run, sampled ones included; and the oldest is never disturbed.
func TestPreemptionKeepsTokens(t *testing.T) {
	lim := engine.Limits{MaxSequences: 4, MaxContext: 128, MaxStepTokens: 64, KVBlockSize: 4, KVBlocks: 40}
	cfg := Config{ChunkSize: 8, WatermarkBlocks: -1}
	var rs []Request
	for i := range 8 {
		rs = append(rs, Request{Prompt: prompt(i, 10+i), MaxTokens: 80, IgnoreEOS: true})
		if i%2 == 1 {
			rs[i].Sampling = engine.Sampling{Temperature: 1, Seed: uint64(i)}
		}
	}
	want := aloneAll(t, cfg, lim, rs)
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, lim)
		s := checked(t, eng, cfg)
		tickets, err := s.SubmitAll(t.Context(), rs)
		require.NoError(t, err)
		require.NoError(t, s.Close(t.Context()))
		total := 0
		for i, ticket := range tickets {
			res, err := ticket.Wait()
			require.NoError(t, err)
			assert.Equal(t, want[i], res.Tokens, "request %d", i)
			total += res.Preemptions
			if i == 0 {
				assert.Zero(t, res.Preemptions, "the oldest")
			}
		}
		m := s.Metrics()
		assert.EqualValues(t, total, m.Preemptions)
		assert.Greater(t, total, 8, "the pool is too large to prove anything")
		assert.Positive(t, m.RecomputedTokens)
		computed := m.PromptTokens + m.DecodeRows
		useful := uint64(0)
		for i := range rs {
			useful += uint64(len(rs[i].Prompt) + rs[i].MaxTokens - 1)
		}
		assert.Equal(t, useful, computed-m.RecomputedTokens, "every position is computed once, or is counted as recomputed")
		free(t, eng)
	})
}

// While long prompts are computed, a decoding row waits for no more than one mixed
// step between two tokens; without chunks it waits for a whole prompt.
func TestChunksBoundTheGapBetweenTokens(t *testing.T) {
	for _, c := range []struct {
		chunk int
		gap   time.Duration
	}{
		{64, 10*time.Millisecond + 65*time.Millisecond},
		{512, 10*time.Millisecond + 513*time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			_, eng := testutil.NewVirtual(cost, engine.Limits{MaxContext: 1024, MaxStepTokens: 1024})
			s := checked(t, eng, Config{ChunkSize: c.chunk, TokenBudget: c.chunk + 7})
			row, err := s.Submit(t.Context(), Request{Prompt: prompt(1, 4), MaxTokens: 100, IgnoreEOS: true})
			require.NoError(t, err)
			time.Sleep(100 * time.Millisecond)
			for i := range 3 {
				_, err := s.Submit(t.Context(), Request{Prompt: prompt(2+i, 512), MaxTokens: 1, IgnoreEOS: true})
				require.NoError(t, err)
			}
			res, err := row.Wait()
			require.NoError(t, err)
			longest := time.Duration(0)
			for i, at := range res.Timings.Tokens[1:] {
				longest = max(longest, at.Sub(res.Timings.Tokens[i]))
			}
			assert.Equal(t, c.gap, longest, "chunks of %d", c.chunk)
			require.NoError(t, s.Close(t.Context()))
		})
	}
}

// Tokens are streamed as they are drawn, and a reader that is slow or gone holds
// up neither its own request nor another.
func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{})
		s := checked(t, eng, Config{})
		r := Request{Prompt: prompt(1, 5), MaxTokens: 50, IgnoreEOS: true, Stream: true}
		begun := time.Now()
		quick, err := s.Submit(t.Context(), r)
		require.NoError(t, err)
		slow, err := s.Submit(t.Context(), r)
		require.NoError(t, err)
		_, err = s.Submit(t.Context(), r) // nobody reads
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		gone, err := s.Submit(ctx, r)
		require.NoError(t, err)

		var tokens []int32
		for token := range quick.Tokens() {
			tokens = append(tokens, token)
			if len(tokens) == 1 {
				assert.Less(t, time.Since(begun), 60*time.Millisecond, "the first token does not wait for the last")
			}
			if len(tokens) == 10 {
				cancel()
			}
		}
		res, err := quick.Wait()
		require.NoError(t, err)
		assert.Equal(t, res.Tokens, tokens)
		_, err = gone.Wait()
		require.ErrorIs(t, err, context.Canceled)
		n := 0
		for range gone.Tokens() { // closed although the request was cancelled
			n++
		}
		assert.InDelta(t, 10, n, 2)

		require.NoError(t, s.Close(t.Context()))
		assert.LessOrEqual(t, s.Metrics().Steps, uint64(51), "side by side, but for the first step")
		tokens = tokens[:0]
		for token := range slow.Tokens() {
			time.Sleep(time.Second)
			tokens = append(tokens, token)
		}
		assert.Equal(t, res.Tokens, tokens)
		plain, err := New(eng, Config{})
		require.NoError(t, err)
		defer plain.Abort()
		r.Stream = false
		ticket, err := plain.Submit(t.Context(), r)
		require.NoError(t, err)
		assert.Nil(t, ticket.Tokens())
	})
}

// Callers are told what a step has brought before the next one begins, or, where a
// device computes, as soon as that is under way. No time that they are told differs.
func TestWhenCallersAreTold(t *testing.T) {
	var results [2]Result
	for i, want := range [2][]string{
		{"0 tokens", "1 tokens", "2 tokens", "3 tokens, ended", "3 tokens, ended"},
		{"0 tokens", "0 tokens", "1 tokens", "2 tokens", "3 tokens, ended"},
	} {
		synctest.Test(t, func(t *testing.T) {
			v, eng := testutil.NewVirtual(cost, engine.Limits{})
			v.Device = i == 1
			var short atomic.Pointer[Ticket]
			var told []string // at the start of each step
			v.Before = func(*backend.Step) {
				ticket := short.Load()
				if ticket == nil {
					return
				}
				line := fmt.Sprintf("%d tokens", len(ticket.Tokens()))
				select {
				case <-ticket.Done():
					line += ", ended"
				default:
				}
				told = append(told, line)
			}
			s := checked(t, eng, Config{})
			_, err := s.Submit(t.Context(), Request{Prompt: prompt(1, 5), MaxTokens: 6, IgnoreEOS: true})
			require.NoError(t, err)
			synctest.Wait()
			ticket, err := s.Submit(t.Context(), Request{Prompt: prompt(2, 5), MaxTokens: 3, IgnoreEOS: true, Stream: true})
			require.NoError(t, err)
			short.Store(ticket)
			results[i], err = ticket.Wait()
			require.NoError(t, err)
			assert.Equal(t, results[i].Timings.Returned, time.Now())
			require.NoError(t, s.Close(t.Context()))
			assert.Equal(t, want, told)
		})
	}
	assert.Equal(t, results[0], results[1])
}

// The snapshot shows what runs and waits at the moment, and in sum.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, eng := testutil.NewVirtual(cost, engine.Limits{MaxSequences: 2, KVBlocks: 100, MaxContext: 128})
		s := checked(t, eng, Config{})
		var rs []Request
		for i := range 5 {
			rs = append(rs, Request{Prompt: prompt(i, 20), MaxTokens: 10, IgnoreEOS: true})
		}
		_, err := s.SubmitAll(t.Context(), rs)
		require.NoError(t, err)
		time.Sleep(55 * time.Millisecond) // in the second step
		m := s.Metrics()
		assert.Equal(t, Metrics{
			Running: 2, Waiting: 3, KVBlocksUsed: 4, KVBlocksTotal: 100, Submitted: 5,
			Steps: 1, StepsByRows: []uint64{0, 0, 1}, Tokens: 2, PromptRows: 2, PromptTokens: 40,
			EngineTime: 50 * time.Millisecond,
		}, m)
		require.NoError(t, s.Close(t.Context()))
		m = s.Metrics()
		// Three times 20 tokens of prompt for each row, and 9 decode rows each; the last is alone.
		run := 50*time.Millisecond + 9*12*time.Millisecond
		last := 30*time.Millisecond + 9*11*time.Millisecond
		assert.Equal(t, Metrics{
			KVBlocksTotal: 100, Submitted: 5, Finished: 5,
			Steps: 30, StepsByRows: []uint64{0, 10, 20}, Tokens: 50, PromptRows: 5, PromptTokens: 100,
			DecodeRows: 45, UsefulDecodeRows: 45,
			EngineTime:  2*run + last,
			QueueTime:   2*run + 2*run,
			PrefillTime: 4*50*time.Millisecond + 30*time.Millisecond,
			DecodeTime:  4*9*12*time.Millisecond + 9*11*time.Millisecond,
		}, m)
	})
}
