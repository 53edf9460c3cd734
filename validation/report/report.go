// Package report shows a run to people: one self-contained page with a picture
// behind every number, and a summary for the log of a CI job.
//
// Both are a function of a [View] alone, byte for byte: no clock, no map order,
// no machine. So the report of recorded samples can be made again, and compared.
//
// The page fetches nothing and runs nothing: a content security policy in it
// says so to the browser too. It follows the reader's light or dark theme, fits a
// phone, and prints with its folded tables open. Every picture has its numbers
// beneath, and one that would be empty is left out.
//
// Colours are those of Okabe and Ito, which stay apart for colour-blind readers;
// none carries a meaning alone: verdicts have a word and a sign, arms a dash,
// orders a filled or a hollow mark.
//
// Note: pictures are lists of SVG shapes, written by html/template, and not made
// by a plotting library. Such a library writes colours and fonts into the file,
// so that a picture cannot follow the theme, scales its text down with itself
// on a phone, and is opaque to assistive technology and to search. The shapes
// here are styled by the page's style sheet, drawn once for each of two widths,
// and escaped by the same template that escapes everything else.
//
// # What this package does not do
//
// It does not judge, measure or read files, and does not know package
// validation, which fills the view.
package report

import (
	"bytes"
	_ "embed"
	"html/template"
	"time"
)

//go:embed report.tmpl
var source string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"ratio": ratio, "fixed": fixed, "percent": percent, "rate": rate, "sign": sign, "lower": verdictClass,
}).Parse(source))

// HTML is the page.
func HTML(v *View) ([]byte, error) {
	var out bytes.Buffer
	err := page.Execute(&out, struct {
		*View
		Head    headline
		When    string
		Figures []*figure
	}{v, v.headline(), v.when(), figures(v)})
	return out.Bytes(), err
}

// figures are those that have something to show, in the order of a reader's
// questions: how sure, why not more, what a row costs, what callers felt.
func figures(v *View) []*figure {
	ttft := func(g *group) float64 { return g.Limit }
	none := func(*group) float64 { return nan }
	all := []*figure{
		ratios(v), blocks(v), missing(v), stepTimes(v), sizes(v),
		sweepFigure(v), blocking(v), comparison(v), serving(v), plan(v),
		distributions(v, "ttft", "Time to first token, of each request", "From submission, waiting included.",
			func(a *Arm) []float64 { return a.TTFT }, ttft),
		distributions(v, "itl", "Time between tokens", "Every gap between two tokens of a request.",
			func(a *Arm) []float64 { return a.ITL }, none),
	}
	shown := all[:0]
	for _, f := range all {
		if f != nil {
			shown = append(shown, f)
		}
	}
	return shown
}

// when says when the run was, and for how long.
func (v *View) when() string {
	const layout = "2006-01-02 15:04 UTC"
	s := v.Started.UTC().Format(layout)
	switch {
	case v.Interrupted:
		return s + ", interrupted: it holds what was measured until then"
	case v.Finished.IsZero():
		return s + ", not finished"
	}
	return s + ", took " + v.Finished.Sub(v.Started).Round(time.Second).String()
}
