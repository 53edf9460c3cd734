package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/batchproof/batchproof/validation/report"
)

// markdown is the result as a section of a CI job's summary: the answer, the
// gate's rows, and benchstat's table folded beneath.
func (r *result) markdown(margin float64) string {
	var out strings.Builder
	out.WriteString(markdownAnswer(verdict(r.rows), r.answer(margin), r.sides.base.label, r.sides.head.label))
	out.WriteString("\n| row | head against base | interval | outcome |\n|---|--:|--:|---|\n")
	short := shorten(r.sides.rows)
	for i := range r.rows {
		c := &r.rows[i]
		fmt.Fprintf(&out, "| %s | %s | %s … %s | %s |\n", report.Escape(short[i]), change(c.Ratio), change(c.Lower), change(c.Upper), c.Outcome)
	}
	fmt.Fprintf(&out, "\n%s\n", r.kind())
	if r.table != "" {
		fmt.Fprintf(&out, "\n<details><summary>benchstat</summary>\n\n%s\n</details>\n\n", fenced(r.table))
	}
	return out.String()
}

// markdownAnswer is the head of the section.
func markdownAnswer(g gate, answer, base, head string) string {
	sign := map[gate]string{gatePass: "✓", gateImproved: "✓", gateFail: "✗", gateUndecided: "?"}[g]
	return fmt.Sprintf("### Is head slower than base? %s %s\n\n- %s\n- %s\n", sign, report.Escape(answer), report.Escape(base), report.Escape(head))
}

// markdownError is the section where there is no result.
func markdownError(err error) string {
	return fmt.Sprintf("### Is head slower than base? ! not compared\n\n%s\n", fenced(err.Error()))
}

// fenced is a block of code that nothing in the text can end.
func fenced(text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + "\n" + strings.TrimRight(text, "\n") + "\n" + fence
}

// appendFile adds to a file.
func appendFile(file, text string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("the result cannot be kept: %w", err)
	}
	return nil
}
