package cuda

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/weights"
)

// TestGoldens holds whole models to what transformers computes (benchdata/goldens):
// logits along the prompt, then the greedy tokens and the logits that they were
// drawn from. A GPU takes all of it, the simulator one model of each kind and
// storage type, and the first tokens.
func TestGoldens(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		names, greedy := []string{"llama-tied", "llama-untied", "qwen35-bf16", "qwen35-flat", "qwen35-nested"}, 64
		if !p.gpu {
			names, greedy = []string{"llama-tied", "qwen35-bf16", "qwen35-flat"}, 5
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) { testGolden(t, p.open(t), name, greedy) })
		}
	})
}

func testGolden(t *testing.T, b *Backend, name string, greedy int) {
	defer func() { require.NoError(t, b.Close()) }()
	dir := filepath.Join("..", "benchdata", "goldens", name)
	ck, err := model.Open(dir)
	require.NoError(t, err)
	defer ck.Close()
	raw, err := os.ReadFile(filepath.Join(dir, "expected", "tokens.json"))
	require.NoError(t, err)
	var tokens struct{ Prompt, Greedy []int32 }
	require.NoError(t, json.Unmarshal(raw, &tokens))
	require.GreaterOrEqual(t, len(tokens.Greedy), greedy)
	set, err := weights.OpenFile(filepath.Join(dir, "expected", "tensors.safetensors"))
	require.NoError(t, err)
	defer set.Close()

	const blockSize = 16
	context := len(tokens.Prompt) + greedy
	net, err := model.Load(ck, b, model.Size{
		Sequences: 1, Context: context, StepTokens: len(tokens.Prompt), KVBlocks: (context + blockSize - 1) / blockSize, KVBlockSize: blockSize,
	})
	require.NoError(t, err)
	blocks := make([]int32, (context+blockSize-1)/blockSize)
	for i := range blocks {
		blocks[i] = int32(len(blocks) - 1 - i) // in no order that could hide a wrong table
	}
	// As in the tests of the engine: another order of additions, and with a bf16
	// cache a key or value that is rounded to the other side.
	tolerance, worst := 5e-4, 0.0
	if ck.DType() == backend.BF16 {
		tolerance = 1e-2
	}
	start := 0
	step := func(what string, tokens []int32, prompt bool, logits string, row int) int32 {
		s := &backend.Step{Tokens: tokens, Rows: []backend.Row{{Count: len(tokens), Start: start, Blocks: blocks, Prompt: prompt}}}
		start += len(tokens)
		out, got, want := make([]int32, 1), make([]float32, ck.Config.Vocab), make([]float32, ck.Config.Vocab)
		require.NoError(t, net.Run(t.Context(), s, []int32{int32(len(tokens) - 1)}, out, make([]backend.Sampling, 1)))
		require.NoError(t, net.Logits(got, 0))
		src, ok := set.Lookup(logits)
		require.True(t, ok, logits)
		require.NoError(t, src.ReadF32(want, row*len(want)))
		for i := range want {
			d := math.Abs(float64(got[i]) - float64(want[i]))
			require.True(t, d <= tolerance, "%s, logit %d: %g, want %g ± %g", what, i, got[i], want[i], tolerance)
			worst = max(worst, d)
		}
		return out[0]
	}
	// A prompt in two chunks; whole is the same, bit for bit.
	net.ResetSlot(0)
	first := 23
	step("first chunk of the prompt", tokens.Prompt[:first], true, "prompt_logits", first-1)
	next := step("rest of the prompt", tokens.Prompt[first:], true, "prompt_logits", len(tokens.Prompt)-1)
	for i, want := range tokens.Greedy[:greedy] {
		require.Equal(t, want, next, "token %d", i)
		if i+1 < greedy {
			next = step("a greedy token", []int32{next}, false, "greedy_logits", i+1)
		}
	}
	t.Logf("largest difference of a logit: %.1e", worst)
}
