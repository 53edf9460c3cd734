package validation

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMoved: reads take 10 s at one bandwidth and 5 s at the other; of a step's
// change, arithmetic beside them can take a part.
func TestMoved(t *testing.T) {
	const slow, fast = 10, 20
	step := func(flops float64, rows int) []Work {
		return []Work{{Kind: "decode", Steps: 1, Rows: rows, Bytes: 100, FLOPs: flops}}
	}
	for _, c := range []struct {
		name        string
		peak        float64
		work        []Work
		seconds     float64
		from, to    float64
		least, most float64
	}{
		{"to the same", 1, step(4, 2), 10, slow, slow, 10, 10},
		{"no arithmetic", 1, step(0, 2), 10, slow, fast, 5, 5},
		{"to faster", 1, step(4, 2), 10, slow, fast, 5, 7},
		{"to slower", 1, step(4, 2), 7, fast, slow, 10, 12},
		{"the rest stays", 1, step(4, 2), 12, slow, fast, 7, 9},
		{"arithmetic outlasts fast reads", 1, step(8, 2), 10, slow, fast, 8, 9},
		{"arithmetic outlasts all reads", 1, step(12, 2), 12, slow, fast, 12, 12},
		{"the same, to slower", 1, step(12, 2), 12, fast, slow, 12, 12},
		{"half from caches", 1, step(4, 2), 5, slow, fast, 2.5, 3.5},
		{"half from caches, to slower", 1, step(4, 2), 2.5, fast, slow, 4, 5},
		{"no peak, one row", 0, step(4, 1), 10, slow, fast, 5, 5},
		{"no peak, two rows", 0, step(4, 2), 10, slow, fast, 5, 10},
		{"no peak, two rows, to slower", 0, step(4, 2), 5, fast, slow, 5, 10},
		{"prefill stays, steps move", 1, []Work{
			{Kind: "prefill", Steps: 1, Rows: 2, Bytes: 100, FLOPs: 50}, {Kind: "decode", Steps: 3, Rows: 2, Bytes: 100, FLOPs: 4},
		}, 80, slow, fast, 65, 71},
	} {
		least, most := (&Roofline{PeakFLOPs: c.peak}).moved(c.work, c.seconds, c.from, c.to)
		require.InDelta(t, c.least, least, 1e-9, c.name)
		require.InDelta(t, c.most, most, 1e-9, c.name)
	}
}

// TestMovedAsMeasured: from the median times at either speed of a recorded machine's
// memory (benchdata/runs, ten sessions), the ratio at the other is estimated beyond
// what it was there, by 10 % at most.
func TestMovedAsMeasured(t *testing.T) {
	const slow, fast = 33.1e9, 55.7e9
	for _, c := range []struct {
		n                 int
		serial, batch     float64 // seconds at the slow speed
		serialAt, batchAt float64 // and at the fast one
	}{
		{2, 2.439, 1.280, 1.528, 0.834},
		{4, 4.824, 1.413, 3.062, 1.013},
		{8, 9.716, 1.743, 6.247, 1.374},
	} {
		r := NewRoofline(costOf(func(rows, tokens, _ int) (float64, float64) {
			flops := 306e6
			if tokens > 1 {
				flops = 8190e6
			}
			return 296.2e6 + float64(rows)*10.7e6, float64(rows) * flops
		}), c.n, 32, 128, 8, 472e9)
		before, after := c.serial/c.batch, c.serialAt/c.batchAt

		least, _ := r.moved(r.Serial, c.serial, slow, fast)
		_, most := r.moved(r.Batch, c.batch, slow, fast)
		require.Less(t, least/most, after, "n = %d", c.n)
		require.Greater(t, least/most, after*0.9, "n = %d", c.n)

		_, most = r.moved(r.Serial, c.serialAt, fast, slow)
		least, _ = r.moved(r.Batch, c.batchAt, fast, slow)
		require.Greater(t, most/least, before, "n = %d", c.n)
		require.Less(t, most/least, before*1.1, "n = %d", c.n)
	}
}

// TestEstimateAtOtherSpeed: a PASS stands if the lowest estimate at the other speed
// reaches the target, a FAIL if the highest does not. A serial step takes 10 ms, as
// long as its reads at 10 GB/s, arithmetic 1 ms a row. At 12.5 GB/s, the serial arm
// saves 1.8 to 2 ms a step, a batch step of n rows (10 − n)/5 to 2 ms; at 8 GB/s they
// lose 2.3 to 2.5 ms, and (12.5 − n)/5 to 2.5 ms.
func TestEstimateAtOtherSpeed(t *testing.T) {
	for _, c := range []struct {
		n       int
		prefill time.Duration // a row, all of it arithmetic
		peak    float64
		speed   float64 // the other, GB/s
		gain    float64 // ratio ÷ target
		verdict Verdict
	}{
		{2, 2 * ms, 1e9, 12.5, 1.075, Pass},
		{2, 2 * ms, 1e9, 12.5, 1.065, Inconclusive},
		{4, 2 * ms, 1e9, 12.5, 1.13, Pass},
		{4, 2 * ms, 1e9, 12.5, 1.115, Inconclusive},
		{8, 2 * ms, 1e9, 12.5, 1.22, Pass},
		{8, 2 * ms, 1e9, 12.5, 1.205, Inconclusive},
		{2, 15 * ms, 1e9, 12.5, 1.065, Pass}, // prefill gains nothing in either arm
		{2, 15 * ms, 1e9, 12.5, 1.05, Inconclusive},
		{4, 2 * ms, 0, 12.5, 1.25, Pass}, // the batch arm may gain nothing
		{4, 2 * ms, 0, 12.5, 1.235, Inconclusive},

		{2, 2 * ms, 1e9, 8, 0.925, Fail},
		{2, 2 * ms, 1e9, 8, 0.94, Inconclusive},
		{4, 2 * ms, 1e9, 8, 0.885, Fail},
		{4, 2 * ms, 1e9, 8, 0.90, Inconclusive},
		{8, 2 * ms, 1e9, 8, 0.83, Fail},
		{8, 2 * ms, 1e9, 8, 0.845, Inconclusive},
		{2, 2 * ms, 0, 8, 0.795, Fail}, // nor lose
		{2, 2 * ms, 0, 8, 0.81, Inconclusive},

		{2, 2 * ms, 1e9, 8, 1.01, Pass}, // the ratio can but move away from the target
		{8, 2 * ms, 1e9, 12.5, 0.99, Fail},
	} {
		name := fmt.Sprintf("%+v", c)
		x := newFakeExperiment(t, ThroughputCriterion(c.n), 0)
		x.serial.prefill = constant(c.prefill)
		x.batch.prefill = constant(time.Duration(c.n) * c.prefill)
		took := float64(time.Duration(c.n)*(c.prefill+100*ms)) / (x.Criterion.Target * c.gain)
		x.batch.decode = constant((time.Duration(took) - x.batch.prefill(c.n)) / 10)
		x.Bandwidth = func() (float64, error) { return 10e9, nil }
		x.Roofline = NewRoofline(costOf(func(rows, tokens, _ int) (float64, float64) {
			if tokens > 1 {
				return 0, float64(rows) * c.prefill.Seconds() * 1e9
			}
			return 100e6, float64(rows) * 1e6
		}), c.n, 4, 11, 8, c.peak)
		rec, err := x.Run(t.Context())
		require.NoError(t, err)
		rec.speeds = append(rec.bandwidths(), c.speed*1e9, c.speed*1e9)
		j := Judge(rec)
		require.Equal(t, c.verdict, j.Verdict, "%s: %s", name, j.Reason)
		if c.verdict == Inconclusive {
			require.Contains(t, j.Reason, "where the ratio is estimated at", name)
		}
	}
}

// TestEstimateOfBlocks: each block is moved from the speed that it ran at, and one
// that was not probed from that of all.
func TestEstimateOfBlocks(t *testing.T) {
	x := passing(t)
	x.Runs = 7
	x.Bandwidth = func() (float64, error) { return 10e9, nil }
	x.Roofline = NewRoofline(costOf(func(rows, tokens, _ int) (float64, float64) { return 80e6, float64(rows) * 2e6 }), 4, 4, 11, 8, 1e9)
	rec, err := x.Run(t.Context())
	require.NoError(t, err)
	for i, rate := range []float64{10e9, 10e9, 10e9, 20e9, 20e9, 20e9, 0} {
		b := &rec.Blocks[i]
		if b.Probes = nil; rate > 0 {
			b.Probes = []float64{rate}
		}
	}
	j := Judge(rec)
	require.Equal(t, Pass, j.Decision.Verdict)
	moved := func(from float64) float64 {
		run := func(arm string) float64 { return float64(rec.Blocks[0].Run(arm).ElapsedNS) / 1e9 }
		serial, _ := rec.Roofline.moved(rec.Roofline.Serial, run(ArmSerial), from, 40e9)
		_, batch := rec.Roofline.moved(rec.Roofline.Batch, run(ArmBatch), from, 40e9)
		return serial / batch
	}
	e := j.at(40e9)
	require.False(t, e.Measured)
	require.InDelta(t, moved(j.Bandwidth), e.Ratio, 1e-9, "the middle one of seven")
	require.NotEqual(t, moved(10e9), moved(20e9))
}
