package validation

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/batchproof/batchproof/scheduler/serving"
)

// ServingColumn is one way to serve, in tables.
type ServingColumn struct {
	Name      string
	Offered   float64 // requests/s
	Latencies *serving.Latencies
}

// Columns are the arms' figures.
func (r *ServingRecord) Columns() []ServingColumn {
	columns := make([]ServingColumn, len(r.Arms))
	for a := range r.Arms {
		rate, _ := r.Offered(a)
		columns[a] = ServingColumn{r.Arms[a].Name, rate, r.Latencies(a)}
	}
	return columns
}

// servingPercentile says how percentiles are taken, see [serving.Histogram].
const servingPercentile = "nearest-rank percentiles, rounded up by less than 1/128"

// servingFigures are the lines of the table and the columns of the CSV.
var servingFigures = func() []servingFigure {
	figures := []servingFigure{
		{"offered requests/s", "offered_rps", func(c *ServingColumn) float64 { return c.Offered }},
		{"requests/s", "throughput_rps", func(c *ServingColumn) float64 { return c.Latencies.Throughput() }},
		{"goodput requests/s", "goodput_rps", func(c *ServingColumn) float64 { return c.Latencies.Goodput() }},
		{"share within the SLOs", "slo_share", func(c *ServingColumn) float64 {
			return float64(c.Latencies.Met) / float64(c.Latencies.Requests)
		}},
		{"tok/s", "tokens_per_s", func(c *ServingColumn) float64 { return c.Latencies.TokensPerSecond() }},
	}
	for _, h := range []struct {
		name string
		of   func(*serving.Latencies) *serving.Histogram
	}{
		{"TTFT", func(l *serving.Latencies) *serving.Histogram { return &l.TTFT }},
		{"TPOT", func(l *serving.Latencies) *serving.Histogram { return &l.TPOT }},
		{"ITL", func(l *serving.Latencies) *serving.Histogram { return &l.ITL }},
		{"E2EL", func(l *serving.Latencies) *serving.Histogram { return &l.E2EL }},
	} {
		figure := func(what string, value func(*serving.Histogram) time.Duration) {
			figures = append(figures, servingFigure{
				h.name + " " + what + " ms", strings.ToLower(h.name) + "_" + what + "_ms",
				func(c *ServingColumn) float64 { return value(h.of(c.Latencies)).Seconds() * 1e3 },
			})
		}
		figure("mean", (*serving.Histogram).Mean)
		for _, p := range []float64{0.5, 0.95, 0.99} {
			figure(fmt.Sprintf("p%.0f", 100*p), func(h *serving.Histogram) time.Duration { return h.Percentile(p) })
		}
	}
	return figures
}()

type servingFigure struct {
	name, column string
	value        func(*ServingColumn) float64
}

// PrintServing writes a table of figures by columns.
func PrintServing(w io.Writer, columns []ServingColumn) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i := range columns {
		fmt.Fprintf(t, "\t%s", columns[i].Name)
	}
	fmt.Fprintln(t, "\t")
	for _, f := range servingFigures {
		fmt.Fprint(t, f.name)
		for i := range columns {
			fmt.Fprintf(t, "\t%s", digits4(f.value(&columns[i])))
		}
		fmt.Fprintln(t, "\t")
	}
	t.Flush()
}

// digits4 prints four digits, and never an exponent.
func digits4(x float64) string {
	decimals := 3
	if a := math.Abs(x); a >= 1 {
		decimals = max(0, 3-int(math.Log10(a)))
	}
	return strconv.FormatFloat(x, 'f', decimals, 64)
}

// Print writes what the scenario came to.
func (r *ServingRecord) Print(w io.Writer) {
	kind := "Poisson arrivals"
	if r.Constant {
		kind = "arrivals at equal gaps"
	}
	fmt.Fprintf(w, "serving, open loop: %d runs of %d requests, %s at %.3g requests/s, prompts of %v and outputs of %v tokens, the same for all\n",
		len(r.Runs), r.Requests, kind, r.Rate, &r.Prompts, &r.Tokens)
	fmt.Fprintf(w, "limits %s; %s\n", sloText(r.SLO), servingPercentile)
	columns := r.Columns()
	PrintServing(w, columns)
	late := time.Duration(0)
	for a := range r.Arms {
		_, l := r.Offered(a)
		late = max(late, l)
	}
	fmt.Fprintf(w, "no request was submitted more than %s late\n", human(late))
	if n := len(r.Runs) * r.Requests; n < 100 {
		fmt.Fprintf(w, "p99 of TTFT, TPOT and E2EL is the longest of %d: take more -requests to see the tail\n", n)
	}
	r.printChunking(w, columns)
}

// printChunking sets continuous batching with whole prompts beside that with chunks.
func (r *ServingRecord) printChunking(w io.Writer, columns []ServingColumn) {
	find := func(name string) int {
		return slices.IndexFunc(r.Arms, func(a ServingArm) bool { return a.Name == name })
	}
	chunked, whole := find("continuous"), find(armWhole)
	if chunked < 0 || whole < 0 {
		return
	}
	other := 0
	for i := range r.Runs {
		other += r.Runs[i].OtherTokens[armWhole]
	}
	p99 := func(a int) string { return human(columns[a].Latencies.ITL.Percentile(0.99)) }
	fmt.Fprintf(w, "prompt chunks of %d: ITL p99 %s; whole prompts: %s (in which %d of %d requests drew other tokens: rows of other lengths round differently)\n",
		r.Arms[chunked].ChunkSize, p99(chunked), p99(whole), other, len(r.Runs)*r.Requests)
}

// CSV has a line for each arm, over all its runs.
func (r *ServingRecord) CSV() []byte {
	var out strings.Builder
	out.WriteString("arm,policy,max_batch_size,chunk_size,arrivals,rate_rps,runs,requests,tokens,slo_ttft_ms,slo_tpot_ms,slo_e2el_ms")
	for _, f := range servingFigures {
		out.WriteString("," + f.column)
	}
	out.WriteByte('\n')
	kind := "poisson"
	if r.Constant {
		kind = "constant"
	}
	for a, c := range r.Columns() {
		arm := &r.Arms[a]
		fmt.Fprintf(&out, "%s,%s,%d,%d,%s,%.4f,%d,%d,%d", strings.ReplaceAll(c.Name, " ", "_"), arm.Policy, arm.MaxBatchSize, arm.ChunkSize,
			kind, r.Rate, len(r.Runs), c.Latencies.Requests, c.Latencies.Tokens)
		for _, slo := range []time.Duration{r.SLO.TTFT, r.SLO.TPOT, r.SLO.E2EL} {
			fmt.Fprintf(&out, ",%.4f", slo.Seconds()*1e3)
		}
		for _, f := range servingFigures {
			fmt.Fprintf(&out, ",%.4f", f.value(&c))
		}
		out.WriteByte('\n')
	}
	return []byte(out.String())
}

func sloText(s serving.SLO) string {
	var parts []string
	for _, limit := range []struct {
		name  string
		value time.Duration
	}{{"TTFT", s.TTFT}, {"TPOT", s.TPOT}, {"E2EL", s.E2EL}} {
		if limit.value > 0 {
			parts = append(parts, fmt.Sprintf("%s ≤ %s", limit.name, human(limit.value)))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}
