package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/model"
)

// BenchmarkHostStep times what the host does for a decode step: on a device that
// computes nothing, all of it.
func BenchmarkHostStep(b *testing.B) {
	for _, width := range []int{1, 8} {
		b.Run(fmt.Sprintf("model=qwen3.5-2b/batch=%d", width), func(b *testing.B) {
			ck, err := model.Open("random:qwen3.5-2b")
			require.NoError(b, err)
			defer ck.Close()
			dev := fake.New()
			dev.Bytes = 80 << 30
			back, err := New(dev)
			require.NoError(b, err)
			defer back.Close()
			const positions = 1024
			eng, err := engine.New(ck, back, engine.Options{MaxSequences: width, MaxContext: 2 * positions, MaxStepTokens: 256})
			require.NoError(b, err)
			defer eng.Close()
			batch := &engine.Batch{}
			next := make([][1]int32, width)
			begin := func() {
				for i := range batch.Rows {
					batch.Rows[i].Seq.Close()
				}
				batch.Rows = batch.Rows[:0]
				for range width {
					seq, err := eng.NewSequence()
					require.NoError(b, err)
					one := &engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: make([]int32, 256), Prompt: true}}}
					for range positions / 256 {
						require.NoError(b, eng.Step(b.Context(), one))
					}
					batch.Rows = append(batch.Rows, engine.Row{Seq: seq, Sample: true})
				}
			}
			begin()
			for b.Loop() {
				if batch.Rows[0].Seq.Len() == 2*positions {
					b.StopTimer()
					begin()
					b.StartTimer()
				}
				for i := range batch.Rows {
					batch.Rows[i].Tokens = next[i][:]
				}
				if err := eng.Step(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
