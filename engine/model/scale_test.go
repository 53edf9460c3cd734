package model_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
	"github.com/batchproof/batchproof/engine/weights"
)

// Random weights carry a signal through 64 layers: the residual stream neither
// explodes nor dies, logits are spread, and what is drawn depends on what was read.
func TestRandomScale(t *testing.T) {
	for _, preset := range []string{"qwen3.5-tiny", "llama-tiny"} {
		t.Run(preset, func(t *testing.T) {
			c, err := model.Preset(preset)
			require.NoError(t, err)
			for len(c.Layers) < 64 {
				c.Layers = append(c.Layers, c.Layers...)
			}
			set, err := weights.Random(model.DefaultSeed, c.Tensors())
			require.NoError(t, err)
			b := ref.New()
			defer b.Close()
			const tokens = 24
			net, err := model.Load(&model.Checkpoint{Name: preset, Config: c, Weights: set}, b, model.Size{
				Sequences: tokens, Context: tokens, StepTokens: tokens, KVBlocks: 2, KVBlockSize: 16,
			})
			require.NoError(t, err)

			last := 0.0
			net.Trace(func(stage string, x backend.Buffer, n int) {
				row, sum := make([]float32, x.Width()), 0.0
				for i := range n {
					require.NoError(t, b.Read(row, x, i))
					for _, v := range row {
						sum += float64(v) * float64(v)
					}
				}
				last = math.Sqrt(sum / float64(n*x.Width()))
				require.True(t, last > 0.01 && last < 30, "%s: rms %g", stage, last)
			})

			step := &backend.Step{Rows: []backend.Row{{Count: tokens, Blocks: []int32{0, 1}, Prompt: true}}}
			rng := rand.New(rand.NewPCG(5, 6))
			var want []int32
			for i := range tokens {
				step.Tokens = append(step.Tokens, int32(rng.IntN(c.Vocab)))
				want = append(want, int32(i))
			}
			out := make([]int32, tokens)
			net.ResetSlot(0)
			require.NoError(t, net.Run(t.Context(), step, want, out, make([]backend.Sampling, tokens)))

			logits, distinct := make([]float32, c.Vocab), map[int32]bool{}
			spread := 0.0
			for i := range tokens {
				require.NoError(t, net.Logits(logits, i))
				mean, square := 0.0, 0.0
				for _, v := range logits {
					mean += float64(v) / float64(len(logits))
					square += float64(v) * float64(v) / float64(len(logits))
				}
				spread += math.Sqrt(square-mean*mean) / tokens
				distinct[out[i]] = true
			}
			assert.InDelta(t, 1, spread, 0.3, "standard deviation of the logits")
			assert.Greater(t, len(distinct), tokens/2, "tokens drawn: %v", out)
			t.Logf("residual rms %.2f, logits ±%.2f, %d distinct of %d", last, spread, len(distinct), tokens)
		})
	}
}
