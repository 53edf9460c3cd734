package report

import (
	"bytes"
	"fmt"
	"strings"
)

// The verdicts, by their names.
const (
	pass         = "PASS"
	fail         = "FAIL"
	inconclusive = "INCONCLUSIVE"
	invalid      = "INVALID"
)

// sign stands beside a verdict's name, so that no colour is needed.
func sign(verdict string) string {
	switch verdict {
	case pass:
		return "✓"
	case fail:
		return "✗"
	case inconclusive:
		return "?"
	case invalid:
		return "!"
	}
	return "·"
}

func verdictClass(verdict string) string {
	switch verdict {
	case pass, fail, inconclusive, invalid:
		return strings.ToLower(verdict)
	}
	return "none"
}

// headline is the answer of the whole run.
type headline struct{ Verdict, Text string }

// headline is the worst verdict, and how many criteria have which.
func (v *View) headline() headline {
	count := make(map[string]int)
	ruled := 0
	for i := range v.Criteria {
		if c := &v.Criteria[i]; c.Ruled() {
			ruled++
			count[c.Verdict]++
		}
	}
	if ruled == count[""] {
		return headline{"", "no criterion was measured"}
	}
	var parts []string
	worst := ""
	for _, name := range []string{invalid, fail, inconclusive, "", pass} {
		if count[name] == 0 {
			continue
		}
		if worst == "" {
			worst = name
		}
		if name == "" {
			parts = append(parts, fmt.Sprintf("%d not measured", count[name]))
		} else {
			parts = append(parts, fmt.Sprintf("%d %s", count[name], name))
		}
	}
	if worst == pass && count[""] > 0 {
		worst = ""
	}
	if count[pass] == ruled {
		return headline{pass, fmt.Sprintf("PASS: all %d criteria", ruled)}
	}
	return headline{worst, fmt.Sprintf("%s, of %d criteria", strings.Join(parts, ", "), ruled)}
}

// Open are the criteria that a reader must be told more about. Those in a row
// that say the same are one, with all their names.
func (v *View) Open() []*Criterion {
	var out []*Criterion
	for i := range v.Criteria {
		c := v.Criteria[i]
		if c.Verdict != fail && c.Verdict != inconclusive && c.Verdict != invalid {
			continue
		}
		if n := len(out); n > 0 && len(c.Notes) == 0 && len(out[n-1].Notes) == 0 &&
			out[n-1].Verdict == c.Verdict && out[n-1].Reason == c.Reason && out[n-1].Cause == c.Cause {
			out[n-1].Name += "; " + c.Name
			continue
		}
		out = append(out, &c)
	}
	return out
}

// Markdown is the summary: the verdicts, on what, and why not.
func Markdown(v *View) []byte {
	var out bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&out, format, args...) }
	head := v.headline()
	p("### Does batching pay? %s %s\n\n", sign(head.Verdict), Escape(head.Text))
	if len(v.Criteria) > 0 {
		p("| criterion | verdict | ratio | interval | target | ceiling | serial | batch | serial roofline |\n")
		p("|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	}
	for i := range v.Criteria {
		c := &v.Criteria[i]
		verdict := sign(c.Verdict) + " " + Escape(c.Verdict)
		if c.Verdict == "" {
			verdict = "not measured"
		}
		p("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", Escape(c.Name), verdict, ratio(c.Ratio), c.Interval(), c.Rule(),
			fixed(c.Ceiling, 2), Escape(rate(c.Serial, c.Unit)), Escape(rate(c.Batch, c.Unit)), percent(c.SerialShare, 0))
	}
	if s := v.Sweep; s != nil && len(s.Points) > 0 {
		last := s.Points[len(s.Points)-1]
		p("\nSweep: %.2f × at %d rows, knee at %d rows.", last.Speedup, last.Rows, s.Knee)
	}
	if b := v.Blocking; b != nil {
		p("\nBlocking run: %d decode tokens issued, %d useful, waste %.4f.", b.Issued, b.Useful, b.Waste)
	}
	p("\n\n- model: %s\n- machine: %s\n- run: %s\n", Escape(v.Model), Escape(v.Machine), Escape(v.when()))
	for i := range v.Criteria {
		if c := &v.Criteria[i]; c.Added != "" {
			p("- %s: %s\n", Escape(c.Name), Escape(c.Added))
		}
	}
	for _, d := range v.Deviations {
		p("- not as specified: %s\n", Escape(d))
	}
	if open := v.Open(); len(open) > 0 {
		p("\n")
		for _, c := range open {
			p("- **%s: %s**: %s\n", Escape(c.Name), c.Verdict, Escape(c.Reason))
			if c.Cause != "" {
				p("  - likely cause: %s\n", Escape(c.Cause))
			}
			for _, n := range c.Notes {
				p("  - %s\n", Escape(n))
			}
		}
	}
	return out.Bytes()
}

// Escape keeps a text from being more than text in Markdown: names of
// checkpoints and errors come from outside.
func Escape(s string) string {
	var out strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			r = ' '
		case strings.ContainsRune("\\`*_[]<>|~&#!", r):
			out.WriteByte('\\')
		case r < ' ' || r == 0x7f:
			r = '\ufffd'
		}
		out.WriteRune(r)
		if r == '@' {
			out.WriteRune('\u2060') // no account is called upon
		}
	}
	return out.String()
}
