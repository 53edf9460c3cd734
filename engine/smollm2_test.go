package engine_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/testutil"
)

const (
	smollm2Dir      = "../checkpoints/smollm2"
	smollm2Expected = "../benchdata/smollm2/expected.json"

	// coinFlip is the margin below which another order of additions may draw another token.
	coinFlip = 1e-3
)

// TestSmolLM2 generates from a published model, and compares with what
// transformers generates in float32 from the same weights.
func TestSmolLM2(t *testing.T) {
	raw, err := os.ReadFile(smollm2Expected)
	require.NoError(t, err)
	var want struct {
		Weights string `json:"weights_sha256"`
		Prompt  []int32
		Greedy  []int32
		Margins []float64
	}
	require.NoError(t, json.Unmarshal(raw, &want))
	require.Len(t, want.Greedy, 64)
	require.Len(t, want.Margins, len(want.Greedy))

	if _, err := os.Stat(filepath.Join(smollm2Dir, "config.json")); err != nil {
		testutil.Missing(t, "smollm2", "run make smollm2")
	}
	require.Equal(t, want.Weights, fileSHA256(t, filepath.Join(smollm2Dir, "model.safetensors")),
		"%s is not the checkpoint that %s was recorded from: remove it and run make smollm2", smollm2Dir, smollm2Expected)

	generate := func(t *testing.T, b backend.Backend) {
		ck, err := model.Open(smollm2Dir)
		require.NoError(t, err)
		defer ck.Close()
		require.Equal(t, backend.BF16, ck.DType())
		e, err := engine.New(ck, b, engine.Options{MaxSequences: 1, MaxContext: len(want.Prompt) + len(want.Greedy)})
		require.NoError(t, err)
		defer e.Close()
		seq, err := e.NewSequence()
		require.NoError(t, err)

		row := engine.Row{Seq: seq, Tokens: want.Prompt, Prompt: true, Sample: true}
		for i, token := range want.Greedy {
			batch := engine.Batch{Rows: []engine.Row{row}}
			require.NoError(t, e.Step(context.Background(), &batch))
			next := batch.Rows[0].Next
			if next != token && want.Margins[i] < coinFlip {
				t.Logf("token %d is %d, not %d, drawn by a margin of %v: a coin flip; the %d before it are the same",
					i, next, token, want.Margins[i], i)
				return
			}
			require.Equal(t, token, next, "token %d, drawn by a margin of %v", i, want.Margins[i])
			row = engine.Row{Seq: seq, Tokens: []int32{next}, Sample: true}
		}
	}
	onRef(t, generate)
	// The goldens hold every instruction set to account; here the best one is enough.
	onCPU(t, cpu.Options{Precision: cpu.F32}, generate)
}
