package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/batchproof/batchproof/engine/cpu"
)

// targetWorkloads are what the targets are about.
func targetWorkloads(context, prefill, long int) []workload {
	return []workload{
		{rows: 1, tokens: 1, context: context}, {rows: 2, tokens: 1, context: context},
		{rows: 4, tokens: 1, context: context}, {rows: 8, tokens: 1, context: context},
		{rows: 1, tokens: prefill}, {rows: 1, tokens: 1, context: long},
	}
}

// target is one line: what is wanted of a figure, at least or at most.
type target struct {
	what   string
	value  float64
	unit   string
	want   float64 // NaN: nothing, the figure stands for itself
	atMost bool
	note   string
}

func (t *target) met() bool {
	if t.atMost {
		return t.value <= t.want
	}
	return t.value >= t.want
}

// targets are the engine's, from one interleaved run over targetWorkloads. Shares
// and ratios are medians over the rounds, each of figures of one round.
func (s *stand) targets(workloads []workload, results [][]round) []target {
	serial, prefill, long := results[0], results[4], results[5]
	share := func(r *round) float64 { return r.floor() / r.seconds }
	list := []target{{what: "serial decode, of the floor", value: over(serial, share), want: 0.90}}
	for k, n := range []int{2, 4, 8} {
		// These speed-ups are wanted of AVX2 alone; the share of the ceiling, of all.
		rounds, speedup, condition := results[k+1], math.NaN(), ""
		if s.cpu.ISA() == cpu.AVX2 {
			speedup, condition = []float64{1.9, 3.5, 4.6}[k], "on two free cores"
		}
		ratio := make([]float64, len(rounds))
		ofCeiling := make([]float64, len(rounds))
		ceiling := make([]float64, len(rounds))
		for i := range rounds {
			one, all := &serial[i], &rounds[i]
			ratio[i] = float64(n) * one.seconds / all.seconds
			ceiling[i] = float64(n) * one.floor() / all.floor()
			ofCeiling[i] = ratio[i] / ceiling[i]
		}
		note := fmt.Sprintf("%.2f× of a ceiling of %.2f×", median(ratio), median(ceiling))
		list = append(list,
			target{what: fmt.Sprintf("decode of %d rows, of the ceiling", n), value: median(ofCeiling), want: 0.90, note: note},
			target{what: fmt.Sprintf("decode of %d rows, speed-up", n), value: median(ratio), unit: "×", want: speedup, note: condition})
	}
	list = append(list, s.prefillTargets(workloads[4].tokens, prefill)...)
	ofBandwidth := func(rounds []round, op int) float64 {
		return over(rounds, func(r *round) float64 { o := r.opAt(op); return o.work.bytes / r.machine.bandwidth / o.seconds })
	}
	if long[0].opAt(s.meter.attend).calls > 0 {
		list = append(list, target{what: fmt.Sprintf("attention at context %d, of bandwidth", workloads[5].context), want: 0.80,
			value: ofBandwidth(long, s.meter.attend)})
	}
	if eight := results[3]; eight[0].opAt(s.meter.delta).calls > 0 {
		list = append(list, target{what: "recurrent state update of 1 row, of bandwidth", want: 0.80, value: ofBandwidth(serial, s.meter.delta)},
			target{what: "recurrent state update of 8 rows, of bandwidth", want: 0.80, value: ofBandwidth(eight, s.meter.delta)})
	}
	mallocs, paused := 0.0, 0.0
	for _, rounds := range results[:4] {
		mallocs = max(mallocs, over(rounds, func(r *round) float64 { return r.mallocs }))
		paused = max(paused, over(rounds, func(r *round) float64 { return r.pauses }))
	}
	list = append(list,
		target{what: "allocations per decode step", value: mallocs, want: 0, atMost: true},
		target{what: "voluntary context switches per decode step", value: paused, want: math.NaN(), note: "the runtime's and, on a busy machine, others' doing included"})
	if strings.HasPrefix(s.ck.Name, "random:") {
		params := float64(s.ck.Config.Params())
		list = append(list, target{what: "random weights, for 10⁹ parameters", value: s.load.Seconds() / params * 1e9, unit: " s", want: 5, atMost: true,
			note: fmt.Sprintf("%.2f s for %.0f million", s.load.Seconds(), params/1e6)})
	}
	if s.resident > 0 {
		list = append(list, target{what: "resident after loading, over weights, state and buffers", value: s.resident / float64(s.meter.memory), unit: "×", want: 1.05, atMost: true,
			note: fmt.Sprintf("%.0f of %.0f MB, of which %.0f MB are weights", s.resident/1e6, float64(s.meter.memory)/1e6, float64(s.meter.weights)/1e6)})
	}
	return list
}

// prefillTargets hold the arithmetic of a prompt against the peak of its products. With
// AMX what is wanted is meant of the vectors, which do all but the products; its own
// peak, which is far above theirs, stands beside it.
func (s *stand) prefillTargets(tokens int, rounds []round) []target {
	share := func(peak func(m machine) machine) float64 {
		return over(rounds, func(r *round) float64 { return r.least().arithmetic(peak(r.machine)) / r.seconds })
	}
	what := fmt.Sprintf("prefill of %d tokens, of peak", tokens)
	own := target{what: what, value: share(func(m machine) machine { return m }), want: 0.75}
	if s.cpu.ISA() != cpu.AMX {
		return []target{own}
	}
	own.what, own.want = what+", of AMX", math.NaN()
	vectors := share(func(m machine) machine { return machine{m.bandwidth, m.peak, m.peak} })
	return []target{{what: what + ", of vectors", value: vectors, want: 0.75}, own}
}

func (s *stand) writeTargets(out io.Writer, workloads []workload, results [][]round) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\ntarget\tmeasured\twanted\t\t")
	for _, g := range s.targets(workloads, results) {
		relation, verdict := "≥", "missed"
		if g.atMost {
			relation = "≤"
		}
		if g.met() {
			verdict = "met"
		}
		if math.IsNaN(g.want) {
			fmt.Fprintf(t, "%s\t%.3g%s\t–\t\t%s\n", g.what, g.value, g.unit, g.note)
			continue
		}
		fmt.Fprintf(t, "%s\t%.3g%s\t%s %.3g%s\t%s\t%s\n", g.what, g.value, g.unit, relation, g.want, g.unit, verdict, g.note)
	}
	t.Flush()
}
