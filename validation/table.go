package validation

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// PrintTable writes the final table: the four criteria, and every other level
// that was measured. What was not measured says so.
func PrintTable(w io.Writer, judgements []*Judgement) {
	find := func(c Criterion) *Judgement {
		for _, j := range judgements {
			if j.Record.Criterion == c {
				return j
			}
		}
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "criterion\tserial\tbatch\tratio\ttarget\tceiling\tserial roofline\tverdict")
	line := func(c Criterion, j *Judgement) {
		if j == nil || !known(j.Ratio.Median) {
			verdict := "not measured"
			if j != nil {
				verdict = string(j.Verdict)
			}
			fmt.Fprintf(t, "%s\t–\t–\t–\t%s\t–\t–\t%s\n", c, c.Rule(), verdict)
			return
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%.3f\t%s\t%s\t%s\t%s\n", c, j.rate(&j.Serial), j.rate(&j.Batch),
			j.Ratio.Median, j.Rule(), number2(j.Ceiling), percent(j.SerialShare), j.Verdict)
	}
	rules := Criteria()
	for _, c := range rules {
		line(c, find(c))
	}
	for _, j := range judgements {
		if j.Record.Criterion.Target == 0 {
			line(j.Record.Criterion, j)
		}
	}
	t.Flush()
}

// rate is what the criterion compares, for one arm.
func (j *Judgement) rate(s *ArmSummary) string {
	if j.Record.Criterion.Lower() {
		return humanS(s.Latency.Avg)
	}
	return fmt.Sprintf("%.3g req/s", s.RequestsPerS)
}

func number2(x float64) string {
	if !known(x) {
		return "–"
	}
	return fmt.Sprintf("%.2f", x)
}

func percent(x float64) string {
	if !known(x) {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}
