package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
)

// tinyModels are one of each family, small enough for the simulator.
var tinyModels = []string{"llama-tiny", "qwen3.5-tiny"}

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

// compareModels runs prompts and decode steps of a model on two backends, and
// holds the logits to a largest and a mean difference.
func compareModels(t *testing.T, want, got backend.Backend, preset string, largest, mean float64) {
	const seed = 3
	rng := rand.New(rand.NewPCG(seed, 0))
	ck := checkpoint(t, preset)
	tokens := make([]int32, 48)
	for i := range tokens {
		tokens[i] = int32(rng.IntN(ck.Config.Vocab))
	}
	chunks := []int{33, 1, 7, 1, 1}
	wanted, gotten := logitsOf(t, want, ck, tokens, chunks), logitsOf(t, got, ck, tokens, chunks)
	worst, sum, n := 0.0, 0.0, 0
	for i := range wanted {
		for j := range wanted[i] {
			d := math.Abs(float64(gotten[i][j]) - float64(wanted[i][j]))
			require.True(t, d <= largest, "seed %d, chunk %d, logit %d: %g, want %g", seed, i, j, gotten[i][j], wanted[i][j])
			worst, sum, n = max(worst, d), sum+d, n+1
		}
	}
	require.LessOrEqual(t, sum/float64(n), mean, "mean difference of a logit")
	t.Logf("%s: difference of a logit at most %.2g, %.2g on average", preset, worst, sum/float64(n))
}

// TestModelsAgainstOracle: whole models, prompts and decode steps, within half
// of what f32 implementations may differ by, since weights and KV are stored alike.
func TestModelsAgainstOracle(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		for _, preset := range tinyModels {
			t.Run(preset, func(t *testing.T) {
				b := p.open(t)
				compareModels(t, ref.New(), b, preset, 1e-2, 1e-2)
				require.NoError(t, b.Close())
			})
		}
	})
}

// TestModelsAgainstCPU: the fast backends agree at full size too, within half of
// what bf16 may cost: keys and values are rounded, and a sum near a boundary
// falls to either side.
func TestModelsAgainstCPU(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		models := tinyModels
		if p.gpu {
			models = []string{"qwen3.5-mini", "qwen3.5-0.8b", "llama-3.2-1b"}
		}
		for _, preset := range models {
			t.Run(preset, func(t *testing.T) {
				b := p.open(t)
				want, err := cpu.New(cpu.Options{Precision: cpu.F32})
				require.NoError(t, err)
				compareModels(t, want, b, preset, 0.25, 0.025)
				require.NoError(t, want.Close())
				require.NoError(t, b.Close())
			})
		}
	})
}

// TestModelTokens: sequences side by side, as graphs or not, draw the tokens
// that the oracle draws.
func TestModelTokens(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		for _, preset := range tinyModels {
			t.Run(preset, func(t *testing.T) {
				b := p.open(t)
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
	})
}

// TestGrowWithinAStep: buffers and caches may be made while a step is being recorded,
// also such that what it works with moves.
func TestGrowWithinAStep(t *testing.T) {
	run := func(b backend.Backend) [][]float32 {
		const dim = 16
		p := &probe{b: b}
		cacheOf := func(blocks int) backend.KVCache {
			return must(b.NewKVCache(backend.KVSpec{Layers: 1, Blocks: blocks, BlockSize: 4, KVHeads: 1, HeadDim: dim, DType: backend.F32}))
		}
		cache := cacheOf(8)
		a := &backend.Attention{Heads: 1, KVHeads: 1, HeadDim: dim, Scale: 0.25, Rope: must(b.NewRope([]float32{1}, 64))}
		src, first, second := p.buffer(6, 3*dim), must(b.NewBuffer(6, dim)), must(b.NewBuffer(6, dim))
		for _, grow := range []func(n int){
			func(n int) { must(b.NewBuffer(500+100*n, 1)) }, // the layout
			func(n int) { cacheOf(1000 + 1000*n) },          // its KV blocks
			func(n int) { must(b.NewBuffer(8, n<<18)) },     // the workspace
		} {
			step := func(tokens int) {
				b.Begin(&backend.Step{Tokens: make([]int32, 6), Rows: []backend.Row{
					{Count: tokens, Blocks: []int32{3, 1}, Prompt: true}, {First: tokens, Count: 6 - tokens, Blocks: []int32{6, 2}, Prompt: true},
				}})
			}
			step(5)
			grow(1)
			b.Attention(first, src, a, cache)
			step(2)
			b.Attention(second, src, a, cache)
			grow(2)
			p.read(first, 6)
			p.read(second, 6)
		}
		return p.out
	}
	want := run(ref.New())
	onEach(t, func(t *testing.T, p place) {
		b := p.open(t)
		got := run(b)
		for i := range want {
			require.InDeltaSlice(t, want[i], got[i], 1e-5, "row %d", i)
		}
		require.NoError(t, b.Close())
	})
}

// TestTilesFit: the shared memory that prompts ask for is there on every device
// that the kernels are made for; 8.6 and 8.9 have least.
func TestTilesFit(t *testing.T) {
	for dim := 16; dim <= maxHeadDim; dim += 16 {
		k, shared := tileKernel(dim)
		require.LessOrEqual(t, shared, 99<<10, kernelNames[k])
	}
}
