package sweep

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
)

// Sweep is the samples of all sizes.
type Sweep struct {
	NewTokens int     `json:"new_tokens"`
	Points    []Point `json:"points"` // by rising size
}

// Point is the samples of one size.
type Point struct {
	BatchSize int     `json:"batch_size"`
	Warm      string  `json:"warm"` // how the warm-up ended
	PrefillNS []int64 `json:"prefill_ns"`
	StepNS    []int64 `json:"step_ns"` // of decode steps, all rounds
}

// Result is what a size comes to.
type Result struct {
	BatchSize    int
	StepMS       float64 // median
	MinMS, P95MS float64
	Goodput      float64 // tokens/s
	Speedup      float64
	Efficiency   float64
	// EfficiencyLower and EfficiencyUpper hold the median efficiency of a round,
	// see Results; 0 and +Inf if there are too few rounds.
	EfficiencyLower, EfficiencyUpper float64
}

// Confidence of the interval of an efficiency, both sides together.
const Confidence = 0.95

// Run measures each size in every round, the sizes of a round in random order.
// Size 1 must be among them.
func Run(ctx context.Context, b *Bench, sizes []int, newTokens, rounds int, seed uint64) (*Sweep, error) {
	s := &Sweep{NewTokens: newTokens}
	for _, size := range sizes {
		warm, err := b.warm(ctx, size)
		if err != nil {
			return nil, fmt.Errorf("batch size %d, warm-up: %w", size, err)
		}
		b.log("sweep: batch size %d: %s", size, warm)
		s.Points = append(s.Points, Point{BatchSize: size, Warm: warm})
	}
	rng := rand.New(rand.NewPCG(seed, 0x7377656570))
	begin := b.Now()
	for round := range rounds {
		for _, i := range rng.Perm(len(sizes)) {
			r, err := b.time(ctx, sizes[i], newTokens-1, nil)
			if err != nil {
				return nil, fmt.Errorf("batch size %d, round %d: %w", sizes[i], round+1, err)
			}
			p := &s.Points[i]
			p.PrefillNS = append(p.PrefillNS, int64(r.prefill))
			for _, d := range r.decode {
				p.StepNS = append(p.StepNS, int64(d))
			}
		}
		line := fmt.Sprintf("sweep: round %d of %d", round+1, rounds)
		if left := b.Now().Sub(begin) / time.Duration(round+1) * time.Duration(rounds-round-1); left > 0 {
			line += fmt.Sprintf(", about %s left", left.Round(time.Second))
		}
		b.log("%s", line)
	}
	return s, nil
}

// warm steps a size until its step time is stable, and says how that went.
func (b *Bench) warm(ctx context.Context, size int) (string, error) {
	var check stats.Check
	_, err := b.time(ctx, size, MaxWarmSteps, func(times []time.Duration) bool {
		s := make([]float64, len(times))
		for i, d := range times {
			s[i] = d.Seconds()
		}
		_, check = stats.Warm(s, warmWindow, warmTolerance)
		return check.OK
	})
	return check.Reason, err
}

// Results sums the samples up. Efficiency is of all rounds together, as
// specified. Its interval is that of the median over the rounds: a round holds
// every size, interleaved, so that each yields one efficiency, as a block yields
// one ratio. The number of rounds is fixed beforehand; it takes 6 for an interval.
func (s *Sweep) Results() []Result {
	out := make([]Result, len(s.Points))
	for i := range s.Points {
		p := &s.Points[i]
		ms := make([]float64, len(p.StepNS))
		total := 0.0
		for k, ns := range p.StepNS {
			ms[k] = float64(ns) / 1e6
			total += ms[k] / 1e3
		}
		slices.Sort(ms)
		out[i] = Result{BatchSize: p.BatchSize, StepMS: stats.Median(ms), MinMS: ms[0], P95MS: Percentile(ms, 0.95),
			Goodput: float64(p.BatchSize*len(ms)) / total}
	}
	one := slices.IndexFunc(out, func(r Result) bool { return r.BatchSize == 1 })
	for i := range out {
		out[i].Speedup = out[i].Goodput / out[one].Goodput
		out[i].Efficiency = out[i].Speedup / float64(out[i].BatchSize)
		out[i].EfficiencyLower, out[i].EfficiencyUpper = 0, math.Inf(1)
		if i == one {
			out[i].EfficiencyLower, out[i].EfficiencyUpper = 1, 1
			continue
		}
		if rounds := s.efficiencies(&s.Points[one], &s.Points[i]); len(rounds) >= stats.MinSamples((1+Confidence)/2) {
			iv := stats.MedianInterval(rounds, Confidence)
			out[i].EfficiencyLower, out[i].EfficiencyUpper = iv.Lower, iv.Upper
		}
	}
	return out
}

// efficiencies are those of each round: of equally many steps, one row's time
// over that of all.
func (s *Sweep) efficiencies(one, p *Point) []float64 {
	steps := s.NewTokens - 1
	var out []float64
	for at := 0; steps > 0 && at+steps <= min(len(one.StepNS), len(p.StepNS)); at += steps {
		var serial, batch int64
		for k := at; k < at+steps; k++ {
			serial, batch = serial+one.StepNS[k], batch+p.StepNS[k]
		}
		out = append(out, float64(serial)/float64(batch))
	}
	return out
}

// Percentile is the nearest-rank one: the smallest sample that at least the
// share p of all samples does not exceed.
func Percentile(sorted []float64, p float64) float64 {
	n := len(sorted)
	for i := range n {
		if float64(i+1) >= p*float64(n)-1e-9 {
			return sorted[i]
		}
	}
	return sorted[n-1]
}

// KneeEfficiency is the efficiency below which further rows are called dear.
const KneeEfficiency = 0.8

// Knee is the largest size whose efficiency is at least x; 0 if there is none.
func Knee(results []Result, x float64) int {
	knee := 0
	for _, r := range results {
		if r.Efficiency >= x {
			knee = max(knee, r.BatchSize)
		}
	}
	return knee
}

// KneeInterval is between which sizes the knee lies: that of the lower ends of
// the efficiencies' intervals, and that of their upper ends. Each size's interval
// stands alone: the confidence is that of one size, not of all together.
func KneeInterval(results []Result, x float64) (sure, possible int) {
	ends := func(end func(*Result) float64) int {
		at := slices.Clone(results)
		for i := range at {
			at[i].Efficiency = end(&at[i])
		}
		return Knee(at, x)
	}
	return ends(func(r *Result) float64 { return r.EfficiencyLower }), ends(func(r *Result) float64 { return r.EfficiencyUpper })
}

// Best is the result of the highest goodput.
func Best(results []Result) Result {
	return slices.MaxFunc(results, func(a, b Result) int {
		switch {
		case a.Goodput < b.Goodput:
			return -1
		case a.Goodput > b.Goodput:
			return 1
		}
		return 0
	})
}
