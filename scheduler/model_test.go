package scheduler

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

// With real models, recurrent state included, every policy gives a request the
// tokens it has alone, to the last: in mixed steps, held in a static batch, and
// after it has lost its KV blocks and was computed anew.
func TestModelsDoNotSeeTheScheduler(t *testing.T) {
	for _, preset := range []string{"llama-tiny", "qwen3.5-tiny"} {
		t.Run(preset, func(t *testing.T) {
			ck, err := model.Open("random:" + preset)
			require.NoError(t, err)
			defer ck.Close()
			b, err := cpu.New(cpu.Options{Threads: 1})
			require.NoError(t, err)
			defer b.Close()
			eng, err := engine.New(ck, b, engine.Options{MaxSequences: 4, MaxContext: 128, MaxStepTokens: 64, KVBlocks: 12, KVBlockSize: 8})
			require.NoError(t, err)
			defer eng.Close()

			var rs []Request
			for i := range 8 {
				r := Request{Prompt: prompt(i, 5+7*i), MaxTokens: 24, IgnoreEOS: true}
				for k := range r.Prompt {
					r.Prompt[k] %= int32(ck.Config.Vocab)
				}
				if i%2 == 1 {
					r.Sampling = engine.Sampling{Temperature: 0.8, TopK: 50, TopP: 0.95, Seed: uint64(i)}
				}
				rs = append(rs, r)
			}
			served := map[Policy][]Result{}
			for _, policy := range policies {
				s := checked(t, eng, Config{Policy: policy, ChunkSize: 16, WatermarkBlocks: -1})
				tickets, err := s.SubmitAll(t.Context(), rs)
				require.NoError(t, err)
				require.NoError(t, s.Close(t.Context()))
				for _, ticket := range tickets {
					res, err := ticket.Wait()
					require.NoError(t, err)
					served[policy] = append(served[policy], res)
				}
				if policy == Continuous {
					assert.Greater(t, s.Metrics().Preemptions, uint64(3), "the pool is too large to prove anything")
				}
			}
			different := map[int32]bool{}
			for i := range rs {
				want := served[Serial][i].Tokens
				require.Len(t, want, 24)
				for _, policy := range policies {
					assert.Equal(t, want, served[policy][i].Tokens, "%s, request %d, preempted %d times", policy, i, served[policy][i].Preemptions)
				}
				for _, token := range want {
					different[token] = true
				}
			}
			assert.Greater(t, len(different), 20, "the model says too little to tell")
		})
	}
}
