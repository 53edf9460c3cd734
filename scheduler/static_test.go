package scheduler

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/testutil"
)

// blocking is one row of 32 tokens and seven of 4, the workload that shows what
// a fixed batch costs.
func blocking() []Request {
	rs := make([]Request, 8)
	for i := range rs {
		rs[i] = Request{Prompt: prompt(i, 32), MaxTokens: 4, IgnoreEOS: true}
	}
	rs[0].MaxTokens = 32
	return rs
}

// serve runs requests submitted together, and gives their results.
func serve(t *testing.T, policy Policy, rs []Request) ([]Result, Metrics) {
	_, eng := testutil.NewVirtual(cost, engine.Limits{})
	s := checked(t, eng, Config{Policy: policy})
	tickets, err := s.SubmitAll(t.Context(), rs)
	require.NoError(t, err)
	require.NoError(t, s.Close(t.Context()))
	results := make([]Result, len(rs))
	for i, ticket := range tickets {
		results[i], err = ticket.Wait()
		require.NoError(t, err)
	}
	free(t, eng)
	return results, s.Metrics()
}

// The blocking workload issues 248 decode rows of which 52 are useful, and returns
// all rows at once; continuous batching computes 60 token-slots instead of 256, and
// the same tokens.
func TestBlockingWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		static, m := serve(t, Static, blocking())
		assert.EqualValues(t, 248, m.DecodeRows, "issued")
		assert.EqualValues(t, 52, m.UsefulDecodeRows, "useful")
		assert.EqualValues(t, 196, m.HeldDecodeRows)
		assert.InDelta(t, 0.7903, float64(m.DecodeRows-m.UsefulDecodeRows)/float64(m.DecodeRows), 5e-5)
		assert.EqualValues(t, 32, m.Steps, "one prefill, 31 decode")
		assert.EqualValues(t, 32, m.StepsByRows[8])
		assert.EqualValues(t, 256, m.DecodeRows+8, "token-slots")

		prefill, decode := 266*time.Millisecond, 18*time.Millisecond // of 8 × 32 tokens; of 8 rows
		for i, r := range static {
			tm := r.Timings
			assert.Equal(t, prefill, tm.FirstToken.Sub(tm.Submitted))
			assert.Equal(t, time.Duration(len(r.Tokens)-1)*decode, tm.Decode(), "row %d", i)
			assert.Equal(t, prefill+31*decode, tm.Returned.Sub(tm.Submitted), "row %d returns with the slowest", i)
		}

		continuous, m := serve(t, Continuous, blocking())
		assert.EqualValues(t, 52, m.DecodeRows)
		assert.EqualValues(t, 52, m.UsefulDecodeRows)
		assert.EqualValues(t, 60, m.DecodeRows+8, "token-slots")
		for i := range static {
			assert.Equal(t, static[i].Tokens, continuous[i].Tokens, "row %d", i)
			assert.Equal(t, continuous[i].Timings.Finished, continuous[i].Timings.Returned)
		}
	})
}

// With equal lengths a fixed batch wastes nothing and holds nobody.
func TestStaticWithEqualLengthsWastesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rs := blocking()
		for i := range rs {
			rs[i].MaxTokens = 8
		}
		results, m := serve(t, Static, rs)
		assert.EqualValues(t, 56, m.DecodeRows)
		assert.Equal(t, m.DecodeRows, m.UsefulDecodeRows)
		assert.Zero(t, m.HeldDecodeRows)
		for _, r := range results {
			assert.Equal(t, r.Timings.Finished, r.Timings.Returned)
		}
	})
}

// A request that comes while a static batch runs waits until all of it is done;
// under the continuous policy it joins at the next step.
func TestLateComer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			policy Policy
			queue  time.Duration
		}{
			// The batch takes 15 + 19·11 ms; the late request comes at 20 ms,
			// in the step that ends at 26 ms.
			{Static, (15 + 19*11 - 20) * time.Millisecond},
			{Continuous, 6 * time.Millisecond},
		} {
			_, eng := testutil.NewVirtual(cost, engine.Limits{})
			s := checked(t, eng, Config{Policy: c.policy})
			_, err := s.Submit(t.Context(), Request{Prompt: prompt(1, 5), MaxTokens: 20, IgnoreEOS: true})
			require.NoError(t, err)
			time.Sleep(20 * time.Millisecond)
			late, err := s.Submit(t.Context(), Request{Prompt: prompt(2, 5), MaxTokens: 2, IgnoreEOS: true})
			require.NoError(t, err)
			res, err := late.Wait()
			require.NoError(t, err)
			assert.Equal(t, c.queue, res.Timings.Queue(), c.policy)
			require.NoError(t, s.Close(t.Context()))
		}
	})
}
