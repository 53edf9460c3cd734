package validation

import (
	"bytes"
	"encoding/csv"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/scheduler"
)

// TestBatchSweep measures what one more row buys; there is no rule to pass.
func TestBatchSweep(t *testing.T) {
	needBackend(t)
	if _, err := session.Sweep(t.Output()); err != nil {
		t.Fatal(err)
	}
}

// TestHeadOfLineBlocking measures what waiting for a long row costs a static
// batch, and holds what does not depend on the machine to its exact values.
func TestHeadOfLineBlocking(t *testing.T) {
	needBackend(t)
	b, c, err := session.Blocking(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	rows, long, short := b.BatchSize, b.LongTokens, b.ShortTokens
	cost := b.Cost()
	require.Equal(t, rows*(long-1), cost.Issued)
	require.Equal(t, long-1+(rows-1)*(short-1), cost.Useful)
	checkSlots(t, c, rows, long, short)
}

// checkSlots: a static batch computes every row to the end, a continuous one
// only what is asked for, in every block.
func checkSlots(t *testing.T, c *Comparison, rows, long, short int) {
	t.Helper()
	m := c.Metric("token-slots computed")
	for i := range m.Static {
		require.Equal(t, float64(rows*long), m.Static[i])
		require.Equal(t, float64(long+(rows-1)*short), m.Continuous[i])
	}
}

// TestStaticSession runs sweep and blocking run on a real engine: with the
// specified lengths, 248 tokens issued, 52 useful, and 256 against 60 slots.
func TestStaticSession(t *testing.T) {
	opt := tinyOptions(t)
	opt.Checkpoint = "random:llama-tiny"
	opt.Sizes, opt.NewTokens, opt.LongTokens, opt.ShortTokens = []int{1, 2, 8}, 3, 32, 4
	s := tinySession(t.Context(), opt, new(bytes.Buffer))
	var log bytes.Buffer
	sw, err := s.Sweep(&log)
	require.NoError(t, err)
	require.Len(t, sw.Points, 3)
	b, c, err := s.Blocking(&log)
	require.NoError(t, err)
	checkSlots(t, c, 8, 32, 4)
	require.InDelta(t, 0.7903, b.Cost().Waste, 5e-5)
	require.Contains(t, log.String(), "248 decode tokens issued, 52 useful, waste 0.7903")
	require.Contains(t, log.String(), "sweep: round 2 of 2")
	require.NoError(t, s.Close())

	for name, columns := range map[string]string{
		"batch_sweep.csv":     "batch_size,step_ms,goodput_tps,speedup,efficiency",
		"batch_sweep-hol.csv": "batch_size,long_tokens,short_tokens,issued_tokens,useful_tokens,waste_fraction,goodput_tps,issued_tps,max_hol_delay_s,max_hol_inflation",
	} {
		rows, err := csv.NewReader(strings.NewReader(read(t, s.store.Dir, name))).ReadAll()
		require.NoError(t, err)
		require.Equal(t, columns, strings.Join(rows[0], ","))
		require.Equal(t, map[string]int{"batch_sweep.csv": 4, "batch_sweep-hol.csv": 2}[name], len(rows))
	}
	r, err := Load(filepath.Join(s.store.Dir, "results.json"))
	require.NoError(t, err)
	require.Equal(t, sw, r.Sweep.Sweep)
	require.Equal(t, b, r.Sweep.Blocking)
	require.Equal(t, c.Metrics, r.Sweep.Comparison.Metrics)
}

// TestEqualLengthsOnEngine is the control on a real engine: nothing is wasted,
// and continuous batching has nothing to win back.
func TestEqualLengthsOnEngine(t *testing.T) {
	opt := tinyOptions(t)
	opt.Sizes, opt.LongTokens, opt.ShortTokens = []int{1, 4}, 5, 5
	s := tinySession(t.Context(), opt, new(bytes.Buffer))
	b, c, err := s.Blocking(new(bytes.Buffer))
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Zero(t, b.Cost().Waste)
	require.Equal(t, 1.0, b.Cost().MaxInflation)
	checkSlots(t, c, 4, 5, 5)
	for _, side := range [][]float64{c.Metric("token-slots wasted").Static, c.Metric("token-slots wasted").Continuous} {
		require.Equal(t, []float64{0, 0}, side)
	}
}

// TestComparisonRefuses: arms that did not do the same work are not compared.
func TestComparisonRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*ArmOutcome)
		want  string
	}{
		"other token":     {func(o *ArmOutcome) { o.Requests[1].Tokens[2]++ }, "block 1: no comparison: request 1, token 2: static drew "},
		"missing token":   {func(o *ArmOutcome) { o.Requests[0].Tokens = o.Requests[0].Tokens[:2] }, "request 0 of the continuous arm has 2 tokens, 4 were asked for"},
		"failed request":  {func(o *ArmOutcome) { o.Requests[1].Err = errors.New("gone") }, "request 1 of the continuous arm: gone"},
		"dropped request": {func(o *ArmOutcome) { o.Requests = o.Requests[:1] }, "2 requests went into the continuous arm, 1 came out"},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newFakeClock()
			static := &fakeArm{clock: clock, name: "static", width: 2, prefill: constant(ms), decode: constant(ms)}
			continuous := *static
			continuous.name = "continuous"
			continuous.tamper = func(_ int, o *ArmOutcome) { c.spoil(o) }
			prompts := NewPrompts(1, "", 8, 100, nil)
			_, err := CompareArms(t.Context(), static.arm(), continuous.arm(), 2, 1, func() []scheduler.Request {
				return blockingRequests(prompts, 2, 4, 4)
			}, t.Logf)
			require.ErrorContains(t, err, c.want)
		})
	}
}
