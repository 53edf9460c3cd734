package validation

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"

	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/validation/stats"
	"github.com/batchproof/batchproof/validation/sweep"
)

// Comparison sets continuous batching against static batching on the same
// requests: what is won when rows that have finished leave.
type Comparison struct {
	Requests int       `json:"requests"`
	Blocks   int       `json:"blocks"`
	Metrics  []*Metric `json:"metrics"`
}

// Metric is one figure of both sides, by block.
type Metric struct {
	Name       string    `json:"name"`
	Static     []float64 `json:"static"`
	Continuous []float64 `json:"continuous"`
}

const makespan = "makespan s"

// last is the ratio of the last block.
func (m *Metric) last() float64 {
	i := len(m.Static) - 1
	return m.Continuous[i] / m.Static[i]
}

// side is one arm's figures, in the order in which they are shown.
func side(o *ArmOutcome) []struct {
	name  string
	value float64
} {
	var latency []float64
	tokens := 0
	for i := range o.Requests {
		r := &o.Requests[i]
		tokens += len(r.Tokens)
		latency = append(latency, r.Timings.Returned.Sub(r.Timings.Submitted).Seconds())
	}
	slices.Sort(latency)
	// A slot is a row in a decode step, or the first token that a prompt draws.
	slots := len(o.Requests)
	for _, s := range o.Steps {
		slots += s.Rows - s.PromptRows
	}
	elapsed := o.End.Sub(o.Begin).Seconds()
	return []struct {
		name  string
		value float64
	}{
		{"token-slots computed", float64(slots)},
		{"token-slots wasted", float64(slots - tokens)},
		{makespan, elapsed},
		{"first answer s", latency[0]},
		{"mean latency s", spread(latency).Avg},
		{"p95 latency s", sweep.Percentile(latency, 0.95)},
		{"goodput tok/s", float64(tokens) / elapsed},
	}
}

// Add takes a block in. It refuses arms that did not do the same work.
func (c *Comparison) Add(where string, requests []scheduler.Request, static, continuous *ArmOutcome) error {
	for _, arm := range []struct {
		name string
		o    *ArmOutcome
	}{{"static", static}, {"continuous", continuous}} {
		for i := range requests {
			if i >= len(arm.o.Requests) {
				return fmt.Errorf("%s: no comparison: %d requests went into the %s arm, %d came out", where, len(requests), arm.name, len(arm.o.Requests))
			}
			r := &arm.o.Requests[i]
			if r.Err != nil {
				return fmt.Errorf("%s: no comparison: request %d of the %s arm: %w", where, i, arm.name, r.Err)
			}
			if len(r.Tokens) != requests[i].MaxTokens {
				return fmt.Errorf("%s: no comparison: request %d of the %s arm has %d tokens, %d were asked for", where, i, arm.name, len(r.Tokens), requests[i].MaxTokens)
			}
		}
	}
	for i := range requests {
		a, b := static.Requests[i].Tokens, continuous.Requests[i].Tokens
		if at := firstDifference(a, b); at >= 0 {
			return fmt.Errorf("%s: no comparison: request %d, token %d: static drew %d, continuous %d", where, i, at, a[at], b[at])
		}
	}
	s, k := side(static), side(continuous)
	for i := range s {
		m := c.Metric(s[i].name)
		if m == nil {
			m = &Metric{Name: s[i].name}
			c.Metrics = append(c.Metrics, m)
		}
		m.Static, m.Continuous = append(m.Static, s[i].value), append(m.Continuous, k[i].value)
	}
	c.Requests = len(requests)
	c.Blocks++
	return nil
}

// Metric finds a figure by name, or nil.
func (c *Comparison) Metric(name string) *Metric {
	for _, m := range c.Metrics {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// Ratio is the median over the blocks of continuous ÷ static.
func (m *Metric) Ratio() float64 {
	ratios := make([]float64, len(m.Static))
	for i := range ratios {
		ratios[i] = m.Continuous[i] / m.Static[i]
	}
	return stats.Median(ratios)
}

// Print writes the table: static, continuous, ratio.
func (c *Comparison) Print(w io.Writer) {
	fmt.Fprintf(w, "continuous against static batching, the same %d requests and tokens, medians of %d blocks\n", c.Requests, c.Blocks)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tstatic\tcontinuous\tratio\t")
	for _, m := range c.Metrics {
		fmt.Fprintf(t, "%s\t%.5g\t%.5g\t%s\t\n", m.Name, stats.Median(m.Static), stats.Median(m.Continuous), number2(m.Ratio()))
	}
	t.Flush()
}

// CompareArms measures both arms in interleaved blocks, each block with
// requests of its own.
func CompareArms(ctx context.Context, static, continuous Arm, blocks int, seed uint64,
	requests func() []scheduler.Request, log func(string, ...any)) (*Comparison, error) {
	c := new(Comparison)
	arms := []Arm{static, continuous}
	for b, order := range orders(seed, 2, blocks) {
		reqs := requests()
		var outcomes [2]ArmOutcome
		for _, a := range order {
			runtime.GC() // neither arm pays for what was before
			o, err := arms[a].Run(ctx, reqs, nil)
			if err == nil {
				err = context.Cause(ctx)
			}
			if err != nil {
				return c, fmt.Errorf("%s, %s arm: %w", blockName(b), arms[a].Name, err)
			}
			outcomes[a] = o
		}
		if err := c.Add(blockName(b), reqs, &outcomes[0], &outcomes[1]); err != nil {
			return c, err
		}
		log("continuous against static: block %d of %d, makespan ratio %.3f", b+1, blocks, c.Metric(makespan).last())
	}
	return c, nil
}
