package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/sim"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
)

// logitsOf runs one sequence in the given chunks and returns the logits of the
// last token of each chunk.
func logitsOf(t *testing.T, b backend.Backend, ck *model.Checkpoint, tokens []int32, chunks []int) (all [][]float32) {
	net, err := model.Load(ck, b, model.Size{Sequences: 1, Context: 64, StepTokens: 40, KVBlocks: 8, KVBlockSize: 8})
	require.NoError(t, err)
	net.ResetSlot(0)
	start, out := 0, make([]int32, 1)
	for _, n := range chunks {
		step := &backend.Step{Tokens: tokens[start : start+n], Rows: []backend.Row{
			{Count: n, Start: start, Blocks: []int32{3, 1, 4, 0, 5, 2, 6, 7}[:(start+n+7)/8], Prompt: n > 1},
		}}
		require.NoError(t, net.Run(t.Context(), step, []int32{int32(n - 1)}, out, make([]backend.Sampling, 1)))
		row := make([]float32, ck.Config.Vocab)
		require.NoError(t, net.Logits(row, 0))
		all = append(all, row)
		start += n
	}
	return all
}

// TestModelsAgainstOracle: whole models, prompts and decode steps, within half
// of what f32 implementations may differ by, since weights and KV are stored alike.
func TestModelsAgainstOracle(t *testing.T) {
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, preset := range []string{"llama-tiny", "qwen3.5-tiny"} {
		t.Run(preset, func(t *testing.T) {
			b := openSim(t, sim.Options{})
			ck := checkpoint(t, preset)
			tokens := make([]int32, 48)
			for i := range tokens {
				tokens[i] = int32(rng.IntN(ck.Config.Vocab))
			}
			chunks := []int{33, 1, 7, 1, 1}
			want := logitsOf(t, ref.New(), ck, tokens, chunks)
			got := logitsOf(t, b, ck, tokens, chunks)
			worst := 0.0
			for i := range want {
				for j := range want[i] {
					d := math.Abs(float64(got[i][j]) - float64(want[i][j]))
					require.True(t, d <= 1e-2, "seed %d, chunk %d, logit %d: %g, want %g", seed, i, j, got[i][j], want[i][j])
					worst = max(worst, d)
				}
			}
			t.Logf("largest difference of a logit: %.2g", worst)
			require.NoError(t, b.Close())
		})
	}
}

// TestModelTokens: sequences side by side, as graphs or not, draw the tokens
// that the oracle draws.
func TestModelTokens(t *testing.T) {
	for _, preset := range []string{"llama-tiny", "qwen3.5-tiny"} {
		t.Run(preset, func(t *testing.T) {
			b := openSim(t, sim.Options{})
			ck := checkpoint(t, preset)
			got, err := serve(b, ck, nil)
			require.NoError(t, err)
			require.NoError(t, b.Close())
			want, err := serve(ref.New(), ck, nil)
			require.NoError(t, err)
			require.Equal(t, want, got, fmt.Sprintf("tokens of %s", preset))
			require.Equal(t, got[:2], got[2:], "the second round begins from clean slots")
		})
	}
}
