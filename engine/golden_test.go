package engine_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
	"github.com/batchproof/batchproof/engine/weights"
)

// goldenDir holds tiny checkpoints and what transformers computes from them;
// its README says how they were made.
const goldenDir = "../benchdata/goldens"

// goldenNames are all there are, so that a lost one is noticed.
var goldenNames = []string{"llama-tied", "llama-untied", "qwen35-bf16", "qwen35-flat", "qwen35-nested"}

const (
	goldenPrompt = 40
	goldenGreedy = 64

	// chunkTolerance is for one backend against itself, the prompt cut differently.
	chunkTolerance = 1e-4
)

// golden is a checkpoint with its expected values.
type golden struct {
	ck      *model.Checkpoint
	prompt  []int32
	greedy  []int32
	margins []float32
	tensors weights.Set
}

func openGolden(t *testing.T, name string) *golden {
	dir := filepath.Join(goldenDir, name)
	ck, err := model.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ck.Close()) })

	raw, err := os.ReadFile(filepath.Join(dir, "expected", "tokens.json"))
	require.NoError(t, err)
	var tokens struct {
		Prompt, Greedy []int32
		Margins        []float32
	}
	require.NoError(t, json.Unmarshal(raw, &tokens))
	require.Len(t, tokens.Prompt, goldenPrompt)
	require.Len(t, tokens.Greedy, goldenGreedy)
	require.Len(t, tokens.Margins, goldenGreedy)

	set, err := weights.OpenFile(filepath.Join(dir, "expected", "tensors.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, set.Close()) })
	return &golden{ck: ck, prompt: tokens.Prompt, greedy: tokens.Greedy, margins: tokens.Margins, tensors: set}
}

// tensor reads an expected matrix of one row for each token.
func (g *golden) tensor(t *testing.T, name string) [][]float32 {
	src, ok := g.tensors.Lookup(name)
	require.True(t, ok, "no golden values of %q", name)
	shape := src.Shape()
	require.Len(t, shape, 2, name)
	flat := make([]float32, shape[0]*shape[1])
	require.NoError(t, src.ReadF32(flat, 0), name)
	return slices.Collect(slices.Chunk(flat, shape[1]))
}

// load puts the model onto a backend, with room for one sequence and for the
// logits of a whole prompt.
func (g *golden) load(t *testing.T, b backend.Backend) (*model.Network, model.Size) {
	const blockSize = 16
	context := goldenPrompt + goldenGreedy
	size := model.Size{
		Sequences: goldenPrompt, Context: context, StepTokens: goldenPrompt,
		KVBlocks: (context + blockSize - 1) / blockSize, KVBlockSize: blockSize,
	}
	net, err := model.Load(g.ck, b, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, net.Close()) })
	return net, size
}

// tolerance is for a logit, or an intermediate value, of the whole model. In
// float32 another order of additions moves them by up to 2e-4, which is also
// how far the reference is from itself, fed token by token or at once. A bf16
// cache amplifies that: a key or value next to a rounding boundary falls to the
// other side, 2⁻⁸ of itself away. With bf16 products every input of a linear is
// rounded so.
func (g *golden) tolerance(b backend.Backend) float64 {
	switch {
	case g.ck.DType() == backend.BF16 && rounds(b):
		return 0.5
	case g.ck.DType() == backend.BF16:
		return 1e-2
	}
	return 5e-4
}

// rounds says that a backend rounds what it multiplies bf16 weights with.
func rounds(b backend.Backend) bool { return strings.Contains(b.Describe(), "bf16 products") }

// eachGolden runs f for every golden on every backend.
func eachGolden(t *testing.T, f func(t *testing.T, g *golden, b backend.Backend)) {
	for _, name := range goldenNames {
		t.Run(name, func(t *testing.T) {
			eachBackend(t, func(t *testing.T, b backend.Backend) { f(t, openGolden(t, name), b) })
		})
	}
}

// eachBackend runs f on every backend that works anywhere: the oracle, and the
// fast one with each instruction set of this CPU and in each precision.
func eachBackend(t *testing.T, f func(t *testing.T, b backend.Backend)) {
	onRef(t, f)
	for _, p := range []cpu.Precision{cpu.F32, cpu.BF16} {
		all := slices.DeleteFunc(cpu.Supported(), func(isa cpu.ISA) bool {
			b, err := cpu.New(cpu.Options{ISA: isa, Precision: p})
			if err != nil { // the CPU has no such products
				return true
			}
			require.NoError(t, b.Close())
			return false
		})
		for _, isa := range all {
			if isa == cpu.Generic && len(all) > 1 && (raceDetector || p == cpu.BF16) { // slow
				continue
			}
			onCPU(t, cpu.Options{ISA: isa, Precision: p}, f)
		}
	}
}

func onRef(t *testing.T, f func(t *testing.T, b backend.Backend)) {
	t.Run("ref", func(t *testing.T) { f(t, ref.New()) })
}

func onCPU(t *testing.T, opt cpu.Options, f func(t *testing.T, b backend.Backend)) {
	t.Run(fmt.Sprintf("cpu-%v-%v", opt.ISA, opt.Precision), func(t *testing.T) {
		b, err := cpu.New(opt)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		f(t, b)
	})
}

// TestGoldenStages follows the prompt through the layers, so that the first
// stage that leaves the reference is named.
func TestGoldenStages(t *testing.T) {
	eachGolden(t, func(t *testing.T, g *golden, b backend.Backend) {
		net, size := g.load(t, b)
		worst, worstStage, stages := 0.0, "", 0
		net.Trace(func(stage string, x backend.Buffer, tokens int) {
			stages++
			want := g.tensor(t, stage)
			limit := g.tolerance(b)
			if rounds(b) {
				limit *= 2 // some of these values are larger than logits
			}
			row := make([]float32, x.Width())
			for token := range want {
				require.NoError(t, b.Read(row, x, token))
				diff, at := maxDiff(row[:len(want[token])], want[token])
				if !(diff <= limit) {
					t.Fatalf("stage %s is the first to leave the reference: token %d, column %d is %v, want %v",
						stage, token, at, row[at], want[token][at])
				}
				if diff > worst {
					worst, worstStage = diff, stage
				}
			}
		})
		g.feed(t, net, size, goldenPrompt)
		// Everything recorded was compared: all but the two tensors of logits.
		require.Equal(t, len(g.tensors.Names())-2, stages)
		require.Equal(t, 1+4*len(g.ck.Config.Layers), stages)
		t.Logf("max |Δ| %.1e, in %s", worst, worstStage)
	})
}

// TestGoldenLogits compares the logits of every position of the prompt, fed
// whole, in chunks, and token by token.
func TestGoldenLogits(t *testing.T) {
	eachGolden(t, func(t *testing.T, g *golden, b backend.Backend) {
		net, size := g.load(t, b)
		want := g.tensor(t, "prompt_logits")
		require.Len(t, want, goldenPrompt)
		whole := g.feed(t, net, size, goldenPrompt)
		compareLogits(t, "whole prompt against the reference", whole, want, g.tolerance(b))
		for _, chunk := range []int{16, 7, 1} {
			logits := g.feed(t, net, size, chunk)
			compareLogits(t, fmt.Sprintf("chunks of %d against the reference", chunk), logits, want, g.tolerance(b))
			compareLogits(t, fmt.Sprintf("chunks of %d against the whole prompt", chunk), logits, whole, chunkTolerance)
		}
	})
}

// TestGoldenGreedy generates from the prompt through the engine: the tokens
// are the reference's, and so are the logits they were drawn from.
func TestGoldenGreedy(t *testing.T) {
	eachGolden(t, func(t *testing.T, g *golden, b backend.Backend) {
		net, size := g.load(t, b)
		e := engine.NewWith(net, engine.Limits{
			MaxSequences: size.Sequences, MaxContext: size.Context, MaxStepTokens: size.StepTokens,
			Vocab: g.ck.Config.Vocab, KVBlockSize: size.KVBlockSize, KVBlocks: size.KVBlocks,
		})
		seq, err := e.NewSequence()
		require.NoError(t, err)
		defer seq.Close()
		want := g.tensor(t, "greedy_logits")
		require.Len(t, want, goldenGreedy)
		got := make([][]float32, goldenGreedy)
		row := engine.Row{Seq: seq, Tokens: g.prompt, Prompt: true, Sample: true}
		for i := range got {
			batch := engine.Batch{Rows: []engine.Row{row}}
			require.NoError(t, e.Step(context.Background(), &batch))
			next := batch.Rows[0].Next
			require.Equal(t, g.greedy[i], next, "token %d, drawn by a margin of %v", i, g.margins[i])
			got[i] = make([]float32, g.ck.Config.Vocab)
			require.NoError(t, net.Logits(got[i], 0))
			row = engine.Row{Seq: seq, Tokens: []int32{next}, Sample: true}
		}
		compareLogits(t, "generation against the reference", got, want, g.tolerance(b))
	})
}

// feed runs the prompt in chunks through an empty sequence, and returns the
// logits of every position.
func (g *golden) feed(t *testing.T, net *model.Network, size model.Size, chunk int) [][]float32 {
	blocks := make([]int32, size.KVBlocks)
	for i := range blocks {
		blocks[i] = int32(len(blocks) - 1 - i) // in no order that could hide a wrong table
	}
	net.ResetSlot(0)
	var logits [][]float32
	for start := 0; start < len(g.prompt); start += chunk {
		tokens := g.prompt[start:min(start+chunk, len(g.prompt))]
		step := backend.Step{
			Tokens: tokens,
			Rows:   []backend.Row{{Count: len(tokens), Start: start, Blocks: blocks, Prompt: true}},
		}
		want := make([]int32, len(tokens))
		for i := range want {
			want[i] = int32(i)
		}
		out := make([]int32, len(tokens))
		require.NoError(t, net.Run(context.Background(), &step, want, out, make([]backend.Sampling, len(tokens))))
		for i := range tokens {
			row := make([]float32, g.ck.Config.Vocab)
			require.NoError(t, net.Logits(row, i))
			logits = append(logits, row)
		}
	}
	return logits
}

func compareLogits(t *testing.T, what string, got, want [][]float32, tolerance float64) {
	t.Helper()
	require.Len(t, got, len(want), what)
	worst, sum, n := 0.0, 0.0, 0
	for i := range want {
		require.Len(t, got[i], len(want[i]), what)
		for k, v := range want[i] {
			sum += math.Abs(float64(got[i][k]) - float64(v))
			n++
		}
		diff, at := maxDiff(got[i], want[i])
		if !(diff <= tolerance) {
			t.Fatalf("%s: row %d, token %d has the logit %v, want %v ± %v", what, i, at, got[i][at], want[i][at], tolerance)
		}
		worst = max(worst, diff)
	}
	mean := sum / float64(n)
	require.LessOrEqual(t, mean, tolerance/10, "%s: the logits differ by so much on average", what)
	t.Logf("%s: |Δlogit| at most %.1e, on average %.1e", what, worst, mean)
}

// maxDiff is the largest difference and where it is; NaN is larger than any.
func maxDiff(got, want []float32) (diff float64, at int) {
	for i := range want {
		d := math.Abs(float64(got[i]) - float64(want[i]))
		if math.IsNaN(d) {
			return d, i
		}
		if d > diff {
			diff, at = d, i
		}
	}
	return diff, at
}

// TestGoldenFiles proves that the goldens are those that were generated.
func TestGoldenFiles(t *testing.T) {
	list, err := os.Open(filepath.Join(goldenDir, "SHA256SUMS"))
	require.NoError(t, err)
	defer list.Close()
	sums := map[string]string{}
	for lines := bufio.NewScanner(list); lines.Scan(); {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		require.True(t, ok, "line %q", lines.Text())
		sums[name] = sum
	}
	var names []string
	require.NoError(t, filepath.WalkDir(goldenDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !slices.Contains([]string{".json", ".safetensors"}, filepath.Ext(path)) {
			return err
		}
		rel, err := filepath.Rel(goldenDir, path)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		require.Equal(t, sums[name], fileSHA256(t, path), "%s is not what generate.py wrote", name)
		if dir, ok := strings.CutSuffix(name, "/config.json"); ok {
			names = append(names, dir)
		}
		delete(sums, name)
		return nil
	}))
	require.Empty(t, sums, "files are missing")
	require.Equal(t, goldenNames, names)
}

func fileSHA256(t *testing.T, path string) string {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	require.NoError(t, err)
	return hex.EncodeToString(h.Sum(nil))
}
