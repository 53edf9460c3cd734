package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

// TestBatchInvariance proves that the logits of a row are the same bits alone
// and in a batch of 2 … 16 rows, prompt chunks and decode rows mixed.
func TestBatchInvariance(t *testing.T) {
	const (
		most     = 16
		maxChunk = 16
		decoded  = 5
	)
	eachGolden(t, func(t *testing.T, g *golden, b backend.Backend) {
		vocab := g.ck.Config.Vocab
		limits := engine.Limits{
			MaxSequences: most, MaxContext: 64, MaxStepTokens: most * maxChunk,
			Vocab: vocab, KVBlockSize: 16, KVBlocks: most * 4,
		}
		net, err := model.Load(g.ck, b, model.Size{
			Sequences: limits.MaxSequences, Context: limits.MaxContext, StepTokens: limits.MaxStepTokens,
			KVBlocks: limits.KVBlocks, KVBlockSize: limits.KVBlockSize,
		})
		require.NoError(t, err)
		e := engine.NewWith(net, limits)
		defer func() { require.NoError(t, e.Close()) }()

		// run feeds the prompt and decodes, in the company of others, and returns
		// the logits of the golden row after every step.
		run := func(rows int) (logits [][]float32) {
			rng := rand.New(rand.NewPCG(uint64(rows), 7))
			newRow := func() engine.Row {
				seq, err := e.NewSequence()
				require.NoError(t, err)
				return engine.Row{Seq: seq, Sample: true}
			}
			// The golden row's slot and KV blocks are others in every run.
			batch := engine.Batch{Rows: make([]engine.Row, rows)}
			for i := range batch.Rows {
				batch.Rows[i] = newRow()
			}
			at := rng.IntN(rows)
			mine := batch.Rows[at].Seq
			rest := g.prompt
			for len(logits) < decoded+(goldenPrompt+maxChunk-1)/maxChunk {
				for i := range batch.Rows {
					r := &batch.Rows[i]
					switch {
					case r.Seq == mine && len(rest) > 0:
						n := min(maxChunk, len(rest))
						r.Tokens, r.Prompt, rest = rest[:n], true, rest[n:]
					case r.Seq == mine || r.Seq.Len() > 0 && rng.IntN(3) > 0 && r.Seq.Len() < limits.MaxContext:
						r.Tokens, r.Prompt = []int32{r.Next}, false
					default:
						if r.Seq.Len()+maxChunk > limits.MaxContext {
							r.Seq.Close()
							*r = newRow()
						}
						r.Tokens, r.Prompt = make([]int32, 1+rng.IntN(maxChunk)), true
						for j := range r.Tokens {
							r.Tokens[j] = rng.Int32N(int32(vocab))
						}
					}
				}
				require.NoError(t, e.Step(context.Background(), &batch))
				row := make([]float32, vocab)
				require.NoError(t, net.Logits(row, at))
				logits = append(logits, row)
				to := rng.IntN(rows)
				batch.Rows[at], batch.Rows[to] = batch.Rows[to], batch.Rows[at]
				at = to
			}
			for _, r := range batch.Rows {
				r.Seq.Close()
			}
			require.NoError(t, e.Check())
			return logits
		}

		alone := run(1)
		for rows := 2; rows <= most; rows++ {
			// Plain Go is slow; what differs by width is in the assembly.
			if plainGo(b) && rows != 2 && (rows != 9 || raceDetector) {
				continue
			}
			// NaN would equal nothing, not even itself.
			require.Equal(t, alone, run(rows), fmt.Sprintf("%d rows (the seed is their number)", rows))
		}
	})
}

// plainGo says that a backend has no assembly.
func plainGo(b backend.Backend) bool {
	return b.Name() == "ref" || strings.Contains(b.Describe(), cpu.Generic.String())
}
