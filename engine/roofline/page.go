package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/klauspost/cpuid/v2"
)

// writePage prints one table for each workload: its ops in the order of their
// weight, their sum, and the whole step.
func (s *stand) writePage(out io.Writer, workloads []workload, results [][]round) {
	s.writeHead(out, results)
	for i, w := range workloads {
		s.writeTable(out, w, results[i])
	}
}

func (s *stand) writeHead(out io.Writer, results [][]round) {
	var all []round
	for _, r := range results {
		all = append(all, r...)
	}
	bandwidth := func(r *round) float64 { return r.machine.bandwidth / 1e9 }
	peak := func(r *round) float64 { return r.machine.peak / 1e9 }
	products := func(r *round) float64 { return r.machine.products / 1e9 }
	fmt.Fprintf(out, "%s in %v on %s (%s)\n", s.ck.Name, s.ck.DType(), s.cpu.Describe(), cpuid.CPU.BrandName)
	fmt.Fprintf(out, "streaming read %s GB/s, multiply-add peak %s GFLOP/s, of linears and attention %s, measured in every round\n",
		spread(all, bandwidth), spread(all, peak), spread(all, products))
	fmt.Fprintln(out, "floor of an op: its bytes at that bandwidth or its arithmetic at that peak, whichever takes longer; of a step: the sum over its ops, which run one after another")
	fmt.Fprintln(out, "MB, MFLOP: the least to move and to compute; a multiply-add is two")
	fmt.Fprintln(out, "share: floor ÷ measured, above 100 % where memory was faster than when it was probed; each figure is a median over the rounds, so they need not add up")
	if l3 := cpuid.CPU.Cache.L3; l3 > 0 && s.meter.weights < 4*l3 {
		fmt.Fprintf(out, "note: %.0f MB of weights and a last-level cache of %.0f MB: part of them may come from the cache, and shares exceed 100 %%\n",
			float64(s.meter.weights)/1e6, float64(l3)/1e6)
	}
}

// spread is a median with its range.
func spread(rounds []round, f func(*round) float64) string {
	low, high := math.Inf(1), math.Inf(-1)
	for i := range rounds {
		low, high = min(low, f(&rounds[i])), max(high, f(&rounds[i]))
	}
	return fmt.Sprintf("%.1f [%.1f, %.1f]", over(rounds, f), low, high)
}

func (s *stand) writeTable(out io.Writer, w workload, rounds []round) {
	order, width := s.ranking(rounds)
	fmt.Fprintf(out, "\n%v\n", w)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	pad := func(name string) string { return fmt.Sprintf("%-*s", width, name) } // names alone are aligned left
	fmt.Fprintln(t, pad("op")+"\tcalls\tMB\tMFLOP\tbound\tfloor ms\tmeasured ms\tof step\tshare\t")
	step := over(rounds, func(r *round) float64 { return r.seconds })
	line := func(name string, calls int, f func(r *round) (least work, floor, seconds float64)) {
		least, _, _ := f(&rounds[0])
		floor := over(rounds, func(r *round) float64 { _, floor, _ := f(r); return floor })
		seconds := over(rounds, func(r *round) float64 { _, _, s := f(r); return s })
		share := over(rounds, func(r *round) float64 { _, floor, s := f(r); return floor / s })
		number, bound, part := "", "memory", "–"
		if calls > 0 {
			number = fmt.Sprint(calls)
		}
		if m := rounds[0].machine; calls == 0 {
			bound = "each op"
		} else if least.arithmetic(m) > least.bytes/m.bandwidth {
			bound = "arithmetic"
		}
		if part = fmt.Sprintf("%.1f %%", 100*share); least == (work{}) {
			part, bound = "–", "–"
		}
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%.1f\t%s\t%.3f\t%.3f\t%.1f %%\t%s\t\n",
			pad(name), number, least.bytes/1e6, (least.flops+least.products)/1e6, bound, 1e3*floor, 1e3*seconds, 100*seconds/step, part)
	}
	for _, i := range order {
		line(s.meter.ops[i].name, rounds[0].opAt(i).calls, func(r *round) (work, float64, float64) {
			o := r.opAt(i)
			return o.work, o.work.floor(r.machine), o.seconds
		})
	}
	line("all ops", 0, func(r *round) (w work, floor, seconds float64) {
		for _, o := range r.ops {
			w.add(o.work)
			seconds += o.seconds
		}
		return w, r.floor(), seconds
	})
	line("between ops", 0, func(r *round) (work, float64, float64) {
		seconds := r.seconds
		for _, o := range r.ops {
			seconds -= o.seconds
		}
		return work{}, 0, seconds
	})
	line("step", 0, func(r *round) (work, float64, float64) { return r.least(), r.floor(), r.seconds })
	t.Flush()
	tokens := float64(w.rows * w.tokens)
	fmt.Fprintf(out, "%.1f tok/s; per step %.2f allocations, %.1f voluntary context switches\n",
		tokens/step, over(rounds, func(r *round) float64 { return r.mallocs }), over(rounds, func(r *round) float64 { return r.pauses }))
}

// ranking is the ops that were called, the longest first, and the width of their names.
func (s *stand) ranking(rounds []round) (order []int, width int) {
	seconds := make([]float64, len(s.meter.ops))
	width = len("between ops")
	for i := range s.meter.ops {
		if rounds[0].opAt(i).calls > 0 {
			order = append(order, i)
			seconds[i] = over(rounds, func(r *round) float64 { return r.opAt(i).seconds })
			width = max(width, len(s.meter.ops[i].name))
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(seconds[b], seconds[a]) })
	return order, width
}

// opAt is an op's share: ops that came up later than the round have none.
func (r *round) opAt(i int) opRound {
	if i < len(r.ops) {
		return r.ops[i]
	}
	return opRound{}
}

// writeBench writes a line for each op and step of each round in Go benchmark
// format, so that benchstat compares machines and commits.
func (s *stand) writeBench(out io.Writer, workloads []workload, results [][]round) {
	fmt.Fprintf(out, "Unit GB/s better=higher\nUnit GFLOP/s better=higher\nUnit of-floor better=higher\n")
	fmt.Fprintf(out, "goos: %s\ngoarch: %s\ncpu: %s\nmodel: %s\nengine: %s\n",
		runtime.GOOS, runtime.GOARCH, cpuid.CPU.BrandName, s.ck.Name, s.cpu.Describe())
	name := strings.NewReplacer("/", "_", "=", "_", " ", "_").Replace(s.ck.Name)
	line := func(kind, keys string, w work, floor, seconds float64) {
		fmt.Fprintf(out, "Benchmark%s/model=%s/%s-%d 1 %.0f ns/op %.6g GB/s %.6g GFLOP/s", kind, name, keys, runtime.GOMAXPROCS(0),
			1e9*seconds, w.bytes/seconds/1e9, (w.flops+w.products)/seconds/1e9)
		if w != (work{}) {
			fmt.Fprintf(out, " %.6g of-floor", floor/seconds)
		}
		fmt.Fprintln(out)
	}
	for i, w := range workloads {
		for _, r := range results[i] {
			for k, o := range r.ops {
				if o.calls > 0 {
					line("Op", "op="+s.meter.ops[k].name+"/"+w.keys(), o.work, o.work.floor(r.machine), o.seconds)
				}
			}
			line("Step", w.keys(), r.least(), r.floor(), r.seconds)
		}
	}
}
