package sweep

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// fake has a clock that only its steps move.
type fake struct {
	at     time.Time
	cost   func(size, step int) time.Duration // step 0 is the prefill
	opened []int
	open   int
	steps  int
	fail   int // the step that fails, counted over all
}

func (f *fake) bench() *Bench {
	return &Bench{Now: func() time.Time { return f.at }, Open: func(size int) (Batch, error) {
		f.opened = append(f.opened, size)
		f.open++
		return &fakeBatch{f: f, size: size}, nil
	}}
}

type fakeBatch struct {
	f          *fake
	size, step int
}

var errStep = errors.New("device lost")

func (b *fakeBatch) Step(context.Context) error {
	b.f.steps++
	if b.f.steps == b.f.fail {
		return errStep
	}
	b.f.at = b.f.at.Add(b.f.cost(b.size, b.step))
	b.step++
	return nil
}

func (b *fakeBatch) Close() { b.f.open-- }

// published is the step time of the published CPU run, in milliseconds.
var published = map[int]time.Duration{1: 279 * ms, 2: 474 * ms, 4: 940 * ms, 8: 2092 * ms}

// TestSweepToTheDecimal: the published step times give the published table.
func TestSweepToTheDecimal(t *testing.T) {
	f := &fake{cost: func(size, step int) time.Duration {
		if step == 0 {
			return 10 * time.Second // prefill must not count
		}
		return published[size]
	}}
	s, err := Run(t.Context(), f.bench(), []int{1, 2, 4, 8}, 8, 3, 1)
	require.NoError(t, err)
	require.Zero(t, f.open, "every batch was closed")
	for _, p := range s.Points {
		require.Len(t, p.StepNS, 3*7)
		require.Len(t, p.PrefillNS, 3)
		require.Contains(t, p.Warm, "stable after 9 steps")
	}
	require.Equal(t, strings.TrimLeft(`
batch_size,step_ms,goodput_tps,speedup,efficiency
1,279.0000,3.5842,1.0000,1.0000
2,474.0000,4.2194,1.1772,0.5886
4,940.0000,4.2553,1.1872,0.2968
8,2092.0000,3.8241,1.0669,0.1334
`, "\n"), string(s.CSV()))
	results := s.Results()
	require.Equal(t, 4, Best(results).BatchSize)
	require.Equal(t, 1, Knee(results, KneeEfficiency))
	var out strings.Builder
	s.Print(&out)
	require.Contains(t, out.String(), "too few rounds for an interval")
	require.Contains(t, out.String(), "best: 1.19 × at 4 rows; knee: 1 rows")
}

// TestSweepInterleaves: sizes take turns within each round, in an order that
// depends on the seed and changes from round to round.
func TestSweepInterleaves(t *testing.T) {
	f := &fake{cost: func(int, int) time.Duration { return ms }}
	_, err := Run(t.Context(), f.bench(), []int{1, 2, 4}, 2, 20, 1)
	require.NoError(t, err)
	orders := make(map[[3]int]bool)
	for i := 3; i < len(f.opened); i += 3 { // the first three are the warm-up
		round := [3]int(f.opened[i : i+3])
		require.ElementsMatch(t, []int{1, 2, 4}, round[:])
		orders[round] = true
	}
	require.Greater(t, len(orders), 3)
}

// TestIntervals: six rounds whose efficiencies are known have their extremes for an
// interval, and the knee one from its ends.
func TestIntervals(t *testing.T) {
	round := 0
	f := &fake{}
	f.cost = func(size, step int) time.Duration {
		if step == 0 {
			round = (len(f.opened)-1)/2 - 1 // two of warm-up, then two a round
			return ms
		}
		if size == 1 {
			return 100 * ms
		}
		return time.Duration(100+10*round) * ms // 1 ÷ (1.0 … 1.5) from round 0 on
	}
	run := func(rounds int) *Sweep {
		f.opened, round = nil, 0
		s, err := Run(t.Context(), f.bench(), []int{1, 2}, 3, rounds, 1)
		require.NoError(t, err)
		return s
	}
	r := run(6).Results()
	require.Len(t, r, 2)
	require.Equal(t, [2]float64{1, 1}, [2]float64{r[0].EfficiencyLower, r[0].EfficiencyUpper})
	require.InDelta(t, 100.0/150, r[1].EfficiencyLower, 1e-9)
	require.InDelta(t, 1, r[1].EfficiencyUpper, 1e-9)
	require.Less(t, r[1].EfficiencyLower, r[1].Efficiency)
	require.Less(t, r[1].Efficiency, r[1].EfficiencyUpper)
	sure, possible := KneeInterval(r, 0.8)
	require.Equal(t, [2]int{1, 2}, [2]int{sure, possible})
	var out strings.Builder
	run(6).Print(&out)
	require.Contains(t, out.String(), "; by the intervals from 1 to 2")
	out.Reset()
	run(5).Print(&out)
	require.Contains(t, out.String(), "; too few rounds for an interval")
}

// TestKnee: efficiency that dips and recovers counts by the largest size.
func TestKnee(t *testing.T) {
	r := []Result{{BatchSize: 1, Efficiency: 1}, {BatchSize: 2, Efficiency: 0.7}, {BatchSize: 4, Efficiency: 0.8}, {BatchSize: 8, Efficiency: math.Nextafter(0.8, 0)}}
	require.Equal(t, 4, Knee(r, 0.8))
	require.Equal(t, 0, Knee(r[1:2], 0.8))
}

func TestStepStatistics(t *testing.T) {
	s := &Sweep{Points: []Point{{BatchSize: 1}}}
	for i := range 20 {
		s.Points[0].StepNS = append(s.Points[0].StepNS, int64(20-i)*int64(ms))
	}
	r := s.Results()[0]
	require.Equal(t, 10.5, r.StepMS)
	require.Equal(t, 1.0, r.MinMS)
	require.Equal(t, 19.0, r.P95MS, "nearest rank: 19 of 20")
	require.InDelta(t, 20/0.210, r.Goodput, 1e-9)
}

// TestBlockingToTheDecimal: 1 × 32 and 7 × 4 tokens give 248, 52 and 0.7903 on
// any machine, and with known step times all else follows.
func TestBlockingToTheDecimal(t *testing.T) {
	f := &fake{cost: func(size, step int) time.Duration {
		if step == 0 {
			return 100 * ms
		}
		return 10 * ms
	}}
	b, err := RunBlocking(t.Context(), f.bench(), 8, 32, 4)
	require.NoError(t, err)
	require.Zero(t, f.open)
	c := b.Cost()
	require.Equal(t, 248, c.Issued)
	require.Equal(t, 52, c.Useful)
	require.InDelta(t, 0.7903, c.Waste, 5e-5)
	require.Equal(t, 410*ms, c.Total)
	require.Equal(t, 280*ms, c.MaxDelay, "410 − (100 + 3 × 10)")
	require.InDelta(t, 410.0/130, c.MaxInflation, 1e-12)
	require.InDelta(t, 52/0.310, c.Goodput, 1e-9)
	require.InDelta(t, 248/0.310, c.IssuedRate, 1e-9)
	require.InDelta(t, 60/0.410, c.EndToEnd, 1e-9)
	require.Equal(t, strings.TrimLeft(`
batch_size,long_tokens,short_tokens,issued_tokens,useful_tokens,waste_fraction,goodput_tps,issued_tps,max_hol_delay_s,max_hol_inflation
8,32,4,248,52,0.7903,167.7419,800.0000,0.2800,3.1538
`, "\n"), string(b.CSV()))
}

// TestEqualLengthsWasteNothing is the control: without a long row there is
// neither waste nor waiting.
func TestEqualLengthsWasteNothing(t *testing.T) {
	f := &fake{cost: func(size, step int) time.Duration { return time.Duration(1+step%3) * ms }}
	b, err := RunBlocking(t.Context(), f.bench(), 8, 16, 16)
	require.NoError(t, err)
	c := b.Cost()
	require.Equal(t, c.Issued, c.Useful)
	require.Zero(t, c.Waste)
	require.Zero(t, c.MaxDelay)
	require.Equal(t, 1.0, c.MaxInflation)
}

// TestStepFails: the error says at which size, and no batch stays open.
func TestStepFails(t *testing.T) {
	for fail, want := range map[int]string{
		1:  "batch size 1, warm-up: device lost",
		11: "batch size 2, warm-up: device lost",
		22: "round 1: device lost",
	} {
		f := &fake{cost: func(int, int) time.Duration { return ms }, fail: fail}
		_, err := Run(t.Context(), f.bench(), []int{1, 2}, 4, 1, 1)
		require.ErrorIs(t, err, errStep)
		require.ErrorContains(t, err, want)
		require.Zero(t, f.open)
	}
}

// TestNeverWarm: a size whose steps never settle is measured, and said so.
func TestNeverWarm(t *testing.T) {
	f := &fake{cost: func(size, step int) time.Duration { return time.Duration(math.Pow(1.3, float64(step)) * 1e6) }}
	s, err := Run(t.Context(), f.bench(), []int{1}, 3, 1, 1)
	require.NoError(t, err)
	require.Contains(t, s.Points[0].Warm, "not stable after 30 steps")
}
