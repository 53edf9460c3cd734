package sweep

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// CSV is the sweep in the specified columns.
func (s *Sweep) CSV() []byte {
	var out strings.Builder
	out.WriteString("batch_size,step_ms,goodput_tps,speedup,efficiency\n")
	for _, r := range s.Results() {
		row(&out, r.BatchSize, r.StepMS, r.Goodput, r.Speedup, r.Efficiency)
	}
	return []byte(out.String())
}

// CSV is the blocking run in the specified columns.
func (b *Blocking) CSV() []byte {
	var out strings.Builder
	out.WriteString("batch_size,long_tokens,short_tokens,issued_tokens,useful_tokens,waste_fraction,goodput_tps,issued_tps,max_hol_delay_s,max_hol_inflation\n")
	c := b.Cost()
	row(&out, b.BatchSize, b.LongTokens, b.ShortTokens, c.Issued, c.Useful, c.Waste, c.Goodput, c.IssuedRate, c.MaxDelay.Seconds(), c.MaxInflation)
	return []byte(out.String())
}

func row(out *strings.Builder, values ...any) {
	for i, v := range values {
		if i > 0 {
			out.WriteByte(',')
		}
		switch v := v.(type) {
		case float64:
			out.WriteString(strconv.FormatFloat(v, 'f', 4, 64))
		default:
			fmt.Fprint(out, v)
		}
	}
	out.WriteByte('\n')
}

// Print writes the table, the best size and the knee.
func (s *Sweep) Print(w io.Writer) {
	results := s.Results()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "rows\tstep ms\tmin\tp95\ttok/s\tspeed-up\tefficiency\t95 % interval\t")
	for _, r := range results {
		fmt.Fprintf(t, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%s\t\n", r.BatchSize, r.StepMS, r.MinMS, r.P95MS, r.Goodput, r.Speedup, r.Efficiency, r.interval())
	}
	t.Flush()
	best := Best(results)
	fmt.Fprintf(w, "best: %.2f × at %d rows; ", best.Speedup, best.BatchSize)
	if knee := Knee(results, KneeEfficiency); knee > 0 {
		fmt.Fprintf(w, "knee: %d rows, the most with an efficiency of at least %.1f", knee, KneeEfficiency)
	} else {
		fmt.Fprintf(w, "no knee: no size has an efficiency of at least %.1f", KneeEfficiency)
	}
	switch sure, possible := KneeInterval(results, KneeEfficiency); {
	case slices.ContainsFunc(results, func(r Result) bool { return math.IsInf(r.EfficiencyUpper, 1) }):
		fmt.Fprintf(w, "; too few rounds for an interval\n")
	case sure == possible:
		fmt.Fprintf(w, "; the intervals agree\n")
	default:
		fmt.Fprintf(w, "; by the intervals from %d to %d\n", sure, possible)
	}
}

func (r *Result) interval() string {
	if math.IsInf(r.EfficiencyUpper, 1) {
		return "–"
	}
	return fmt.Sprintf("%.3f to %.3f", r.EfficiencyLower, r.EfficiencyUpper)
}

// Print writes what the fixed batch cost.
func (b *Blocking) Print(w io.Writer) {
	c := b.Cost()
	fmt.Fprintf(w, "static batch of %d rows, 1 × %d and %d × %d tokens: %d decode tokens issued, %d useful, waste %.4f\n",
		b.BatchSize, b.LongTokens, b.BatchSize-1, b.ShortTokens, c.Issued, c.Useful, c.Waste)
	fmt.Fprintf(w, "goodput %.2f tok/s of %.2f issued; end to end %.2f tok/s in %.3f s\n", c.Goodput, c.IssuedRate, c.EndToEnd, c.Total.Seconds())
	fmt.Fprintf(w, "a short row waits up to %.3f s for the long one: %.2f times its own time\n", c.MaxDelay.Seconds(), c.MaxInflation)
}
