package validation

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Print writes a judgement for people: what came out, then what it rests on.
func (j *Judgement) Print(w io.Writer) {
	c := j.Record.Criterion
	p := func(label, format string, args ...any) { printLine(w, label, fmt.Sprintf(format, args...)) }
	fmt.Fprintf(w, "%s: %s (%s)\n", c, j.Verdict, j.Reason)
	if known(j.Ratio.Median) {
		p("ratio", "%.3f, median of %d blocks (min %.3f, max %.3f); %s", j.Ratio.Median, len(j.Record.Ratios(ArmBatch)), j.Ratio.Min, j.Ratio.Max, j.boundText())
		p("target", "%s", j.targetText())
		p("ceiling", "%s", j.ceilingText())
		if j.Account != nil {
			p("account", "%s", j.Account.text())
		}
		j.Serial.print(p)
		j.Batch.print(p)
		p("roofline", "%s", j.rooflineText())
		p("scheduler", "%s between two steps, %.2f %% of a step (serial arm %s); mean %s by its own account",
			humanS(j.Batch.SchedulerCost), 100*j.Batch.SchedulerShare(), humanS(j.Serial.SchedulerCost), humanS(j.Batch.PlanPerStep))
		p("time", "%s", j.timeText())
	}
	if known(j.Control.Median) {
		p("control", "serial against serial%s: %.3f (min %.3f, max %.3f): %s", j.controlFrom(), j.Control.Median, j.Control.Min, j.Control.Max, j.controlText())
	}
	for _, c := range j.Checks {
		switch {
		case c.Reason == j.Reason || c.Name == checkWarm && len(j.Record.WarmupBlocks) == 0: // said, or follows from what was
		case !c.OK:
			p("broken", "%s: %s", c.Name, c.Reason)
		case c.Name == checkQuiet && len(j.Record.Blocks) > 0:
			p("quiet", "%s", c.Reason)
		}
	}
	if text := j.addedText(); text != "" {
		p("added", "%s", text)
	}
	for _, problem := range j.Problems {
		if problem.String() != j.Reason {
			p("problem", "%s", problem)
		}
	}
	if j.Hint != "" {
		p("cause", "%s", j.Hint)
	}
}

func printLine(w io.Writer, label, text string) { fmt.Fprintf(w, "  %-10s %s\n", label, text) }

func (j *Judgement) boundText() string {
	d := &j.Decision
	if d.Lower == 0 && !known(d.Upper) || d.Verdict == Measured {
		return fmt.Sprintf("no %.0f %% bound from %d blocks", 100*confidence, d.N)
	}
	return fmt.Sprintf("%.0f %% bounds %.3f and %.3f after %d", 100*confidence, d.Lower, d.Upper, d.N)
}

func (j *Judgement) controlText() string {
	switch j.ControlCheck.Verdict {
	case Measured:
		return "too few blocks to judge it"
	case Pass:
		return "identical arms agree"
	}
	if j.ControlCheck.Reason == j.Reason {
		return "see above"
	}
	return j.ControlCheck.Reason
}

func (j *Judgement) controlFrom() string {
	if j.Record.Control != nil {
		return ", lone requests of this session"
	}
	return ""
}

func (j *Judgement) targetText() string {
	c := j.Record.Criterion
	if _, ok := j.Record.goal(); !ok {
		if c.Family == FamilyControl {
			return "none: it controls the session"
		}
		return "none at this level"
	}
	if gap := j.Gap(); gap >= 0 {
		return fmt.Sprintf("%s, met by %.3f", j.Rule(), gap)
	}
	return fmt.Sprintf("%s, missed by %.3f", j.Rule(), -j.Gap())
}

func (j *Judgement) ceilingText() string {
	switch {
	case j.Record.Criterion.Lower():
		return "1.00: a lone request gains nothing from batching"
	case !known(j.Ceiling):
		return "unknown: bandwidth or model cost not measured"
	}
	text := fmt.Sprintf("%.2f on this machine (decode alone %.2f); %.0f %% of it reached", j.Ceiling, j.CeilingDecode, 100*j.Reached())
	if j.Record.Roofline.PeakFLOPs == 0 {
		text += "; arithmetic taken to be free, its peak is unknown"
	}
	if goal, _ := j.Record.goal(); goal.Value > j.Ceiling {
		text += "; the target is unreachable on this machine"
	}
	return text
}

// Rule is what the ratio is held against, such as "≥ 1.70".
func (j *Judgement) Rule() string {
	r := &j.Record.Rules
	if r.Against != AgainstCeiling || j.Record.Criterion.Lower() {
		return j.Record.Criterion.Rule()
	}
	goal, _ := j.Record.goal()
	return fmt.Sprintf("≥ %s (%.0f %% of the ceiling)", number2(goal.Value), 100*r.Share)
}

func (j *Judgement) rooflineText() string {
	if !known(j.SerialShare) {
		return "share of the serial arm unknown: bandwidth or model cost not measured"
	}
	return fmt.Sprintf("the serial arm reaches %.0f %%: %.0f MB a step in %s, against %.1f GB/s of streaming reads",
		100*j.SerialShare, j.Record.Roofline.DecodeBytes/1e6, humanS(j.Serial.Gap), j.Bandwidth/1e9)
}

// timeText says where the batch arm's time went.
func (j *Judgement) timeText() string {
	b := &j.Batch
	return fmt.Sprintf("batch arm: decode %.0f %%, steps with prompt chunks %.0f %%, between steps %.1f %%; steps by rows %s",
		100*b.DecodeElapsed/b.Elapsed, 100*b.PrefillElapsed/b.Elapsed, 100*b.Overhead()/b.Elapsed, b.histogramText())
}

func (s *ArmSummary) histogramText() string {
	rows := make([]int, 0, len(s.Histogram))
	for r := range s.Histogram {
		rows = append(rows, r)
	}
	slices.Sort(rows)
	parts := make([]string, len(rows))
	for i, r := range rows {
		parts[i] = fmt.Sprintf("%d:%d", r, s.Histogram[r])
	}
	return strings.Join(parts, " ")
}

func (s *ArmSummary) print(p func(label, format string, args ...any)) {
	p(s.Arm, "%.3g req/s, %.4g tok/s; latency %s; first token %s; decode step %s",
		s.RequestsPerS, s.TokensPerS, s.Latency.text(), s.TTFT.text(), humanS(s.DecodeStep))
}

func (s Spread) text() string {
	return fmt.Sprintf("%s (min %s, max %s)", humanS(s.Avg), humanS(s.Min), humanS(s.Max))
}
