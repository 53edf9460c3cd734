package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/testutil"
)

// busy is a machine with so many rows that decode and so many requests waiting.
func busy(tb testing.TB, policy Policy, rows, waiting int) *machine {
	_, eng := testutil.NewVirtual(testutil.Cost{}, engine.Limits{
		MaxSequences: rows, MaxContext: 1 << 16, MaxStepTokens: rows + 512, KVBlocks: rows << 12,
	})
	cfg := Config{Policy: policy}
	require.NoError(tb, cfg.validate(eng.Limits()))
	m := newMachine(eng, cfg, time.Now)
	for i := range rows + waiting {
		r := Request{Prompt: prompt(i, 32), MaxTokens: 8, IgnoreEOS: true}
		if i < rows {
			r.MaxTokens = 4000 + 17*i
		}
		j := newJob(r)
		j.id = int64(i)
		m.submit(j)
	}
	for len(m.running) < rows || !m.running[rows-1].decoding() {
		require.True(tb, m.step(tb.Context()))
	}
	return m
}

// BenchmarkPlan is the cost of choosing the rows of a step and of taking in
// their tokens: it grows with the rows, not with the queue.
func BenchmarkPlan(b *testing.B) {
	for _, rows := range []int{1, 8, 64, 256} {
		for _, waiting := range []int{0, 10_000, 100_000} {
			b.Run(fmt.Sprintf("rows=%d/waiting=%d", rows, waiting), func(b *testing.B) {
				m := busy(b, Continuous, rows, waiting)
				b.ReportAllocs()
				for b.Loop() {
					m.plan()
					for i := range m.rows {
						r := &m.rows[i]
						m.take(r, 1)
						if j := r.job; len(j.out) == cap(j.out)-1 {
							b.StopTimer()
							j.out, j.pos = j.out[:1], len(j.req.Prompt)
							b.StartTimer()
						}
					}
				}
			})
		}
	}
}

// BenchmarkStep is what a step costs beside the model: the plan, the engine's
// checks and accounts, the virtual draw, the metrics and the times.
func BenchmarkStep(b *testing.B) {
	for _, rows := range []int{1, 8, 256} {
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			m := busy(b, Continuous, rows, 0)
			b.ReportAllocs()
			for b.Loop() {
				if len(m.running[0].out) >= 3900 {
					b.StopTimer()
					m = busy(b, Continuous, rows, 0)
					b.StartTimer()
				}
				m.step(b.Context())
			}
		})
	}
}

// A step of decode rows allocates nothing, whoever waits.
func TestStepsDoNotAllocate(t *testing.T) {
	for _, policy := range []Policy{Continuous, Static} {
		m := busy(t, policy, 16, 100)
		ctx := t.Context()
		assert.Zero(t, testing.AllocsPerRun(500, func() { m.step(ctx) }), policy)
		assert.Len(t, m.rows, 16)
		require.NoError(t, m.check())
	}
}
