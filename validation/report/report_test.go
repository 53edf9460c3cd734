package report

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the reports in testdata with what the code makes now")

// TestGolden: the same view, the same bytes.
func TestGolden(t *testing.T) {
	for name, data := range map[string][]byte{
		"report.html": html(t, sample()), "summary.md": Markdown(sample()), "ratios.svg": picture(t, sample()),
		"empty.html": html(t, &View{}), "empty.md": Markdown(&View{}),
	} {
		file := filepath.Join("testdata", name)
		if *rewrite {
			require.NoError(t, os.WriteFile(file, data, 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(data), "%s differs; if the page is right now: go test ./validation/report -run Golden -rewrite", file)
	}
}

func html(t *testing.T, v *View) []byte {
	t.Helper()
	data, err := HTML(v)
	require.NoError(t, err)
	return data
}

func picture(t *testing.T, v *View) []byte {
	t.Helper()
	data, err := Picture(v)
	require.NoError(t, err)
	return data
}

// TestPicture: a file of its own is XML to the letter, fetches nothing and takes
// hostile names for text. Without ratios there is none.
func TestPicture(t *testing.T) {
	require.Nil(t, picture(t, &View{}))
	v := sample()
	v.Model, v.Machine, v.Criteria[0].Name = "]]></style><script>", `"&<b>`, "</svg><script/>"
	data := picture(t, v)
	require.NoError(t, xml.Unmarshal(data, new(struct{})))
	require.NotContains(t, string(data), "<script")
	require.NotRegexp(t, `(?i)(href|src|url)[=(]|@import`, strings.ReplaceAll(string(data), "url(#waste)", ""))
	require.NotContains(t, string(data), "NaN")
}

// allFigures in the order of the page.
var allFigures = []string{"ratios", "blocks", "missing", "step-times", "batch-sizes", "sweep", "blocking", "continuous", "serving", "plan", "ttft", "itl"}

// TestFigures: with data each has shapes within its frame and numbers beneath.
func TestFigures(t *testing.T) {
	var ids []string
	for _, f := range figures(sample()) {
		ids = append(ids, f.ID)
		require.NotEmpty(t, f.Reading, f.ID)
		require.NotEmpty(t, f.Label, f.ID)
		require.NotEmpty(t, f.Legend, f.ID)
		for _, d := range []*drawing{f.Wide, f.Narrow} {
			marks := 0
			for _, s := range d.Shapes {
				for _, v := range []num{s.X, s.Y, s.X2, s.Y2, s.R} {
					require.True(t, known(float64(v)), "%s, %d wide: %+v", f.ID, int(d.W), s)
				}
				require.NotContains(t, s.Path, "NaN", f.ID)
				require.NotContains(t, s.Path, "Inf", f.ID)
				if s.Kind == "rect" {
					require.True(t, s.X2 >= 0 && s.Y2 >= 0, "%s: %+v", f.ID, s)
				}
				if s.Kind != "text" && s.Kind != "path" {
					require.True(t, s.X >= -1 && float64(s.X) <= d.W+1 && s.Y >= -1 && float64(s.Y) <= d.H+1, "%s, %d wide: %+v is outside", f.ID, int(d.W), s)
				}
				if !strings.Contains(" grid axis text ", " "+s.Class+" ") && s.Kind != "text" {
					marks++
				}
			}
			require.Greater(t, marks, 3, "%s, %d wide", f.ID, int(d.W))
		}
		require.NotEmpty(t, f.Tables, f.ID)
		for _, table := range f.Tables {
			require.NotEmpty(t, table.Rows, f.ID)
			for _, row := range table.Rows {
				require.Len(t, row, len(table.Head), f.ID)
			}
		}
	}
	require.Equal(t, allFigures, ids)
}

// TestNoEmptyFigures: each part of a view brings its own figures, and nothing
// brings an empty one.
func TestNoEmptyFigures(t *testing.T) {
	require.Empty(t, figures(&View{}))
	nan := math.NaN()
	require.Empty(t, figures(&View{
		Criteria: []Criterion{{Name: "x", Target: 2, Ratio: nan, Lower: nan, Upper: nan, Ceiling: nan}, {Name: "y", Verdict: invalid, Target: 2, Ratio: nan, Arms: []Arm{{Name: "serial"}}}},
		Sweep:    &Sweep{}, Blocking: &Blocking{}, Comparison: &Comparison{}, Serving: &Serving{}, Plan: &Plan{},
	}))
	for _, c := range []struct {
		keep func(v, all *View)
		want string
	}{
		{func(v, all *View) { v.StepTimes = all.StepTimes }, "step-times"},
		{func(v, all *View) { v.Sweep = all.Sweep }, "sweep"},
		{func(v, all *View) { v.Blocking = all.Blocking }, "blocking"},
		{func(v, all *View) { v.Comparison = all.Comparison }, "continuous"},
		{func(v, all *View) { v.Serving = all.Serving }, "batch-sizes serving ttft itl"},
		{func(v, all *View) { v.Plan = all.Plan }, "plan"},
		{func(v, all *View) { v.Criteria = all.Criteria[:1] }, "ratios blocks ttft itl"},
		{func(v, all *View) { v.Criteria = all.Criteria[2:3] }, "ratios blocks missing batch-sizes ttft itl"},
		{func(v, all *View) { v.Criteria = all.Criteria[4:] }, "blocks batch-sizes ttft itl"}, // no rule, nothing to stand against
	} {
		v := new(View)
		c.keep(v, sample())
		var ids []string
		for _, f := range figures(v) {
			ids = append(ids, f.ID)
		}
		require.Equal(t, c.want, strings.Join(ids, " "))
	}
}

// TestExtremes: odd numbers give a page, and no coordinate that is no number.
func TestExtremes(t *testing.T) {
	v := sample()
	c := &v.Criteria[1]
	c.Ratio, c.Lower, c.Upper, c.Ceiling = 1e-6, math.NaN(), math.NaN(), math.NaN()
	c.Blocks = c.Blocks[:1]
	c.Arms[0].TTFT, c.Arms[0].ITL = []float64{0}, []float64{0, 0}
	v.Criteria[2].Missing.Parts[0].Excess = -7 // beyond the ideal
	v.Criteria[3].Ratio = math.NaN()           // all blocks disturbed
	v.StepTimes = []StepTime{{"serial arm", 256, []float64{1}}}
	v.Sweep.Points, v.Sweep.Knee = []SweepPoint{{Rows: 1, StepMS: 1, MinMS: 1, P95MS: 1, Goodput: 1, Speedup: 1, Efficiency: 1, Ceiling: math.NaN()}}, 0
	v.Blocking.Tokens = []int{1, 1}
	v.Serving.Arms[0].Goodput, v.Serving.TTFT = math.NaN(), 0
	v.Plan.Sizes[0].Goodput, v.Plan.Sizes[1].Throughput, v.Plan.Sizes[2].Offered, v.Plan.Sizes[3].TTFT95 = math.NaN(), math.NaN(), math.NaN(), math.Inf(1)
	for _, f := range figures(v) {
		for _, d := range []*drawing{f.Wide, f.Narrow} {
			require.Less(t, len(d.Shapes), 2000, f.ID)
			for _, s := range d.Shapes {
				for _, x := range []num{s.X, s.Y, s.X2, s.Y2} {
					require.True(t, known(float64(x)), "%s: %+v", f.ID, s)
				}
				require.NotRegexp(t, "NaN|Inf", s.Path, f.ID)
			}
		}
	}
	html(t, v)
}

// TestHostileText: names come from outside, and stay text.
func TestHostileText(t *testing.T) {
	const evil = `</title></style><script>alert(1)</script>"><img src=x onerror=alert(2)>|` + "`x`\n# [a](http://b) *c* @someone {{.}}"
	v := sample()
	v.Model, v.Machine, v.Deviations, v.Facts = evil, evil, []string{evil}, []Fact{{evil, evil}}
	for i := range v.Criteria {
		c := &v.Criteria[i]
		c.Name, c.Reason, c.Cause, c.Notes = evil, evil, evil, []string{evil}
		c.Blocks[0].First, c.Arms[0].Name = evil, evil
	}
	v.Criteria[2].Missing.Parts[0].Name, v.Criteria[2].Missing.Parts[0].Words = evil, evil
	v.StepTimes[0].Source, v.Sweep.Model, v.Blocking.Model = evil, evil, evil
	v.Comparison.Metrics[0].Name = evil
	v.Serving.Load, v.Serving.Limits, v.Serving.Model, v.Serving.Arms[0].Name = evil, evil, evil, evil
	v.Plan.Model, v.Plan.Cost, v.Plan.Load, v.Plan.Limits, v.Plan.Sizes[0].Name = evil, evil, evil, evil, evil
	page := string(html(t, v))
	require.NotContains(t, page, "<script")
	require.NotContains(t, page, "<img")
	require.Equal(t, 1, strings.Count(page, "</title></head>")+strings.Count(page, "</style>"), "nothing closes the style sheet early")
	require.Contains(t, page, "&lt;script&gt;")
	wellFormed(t, page)

	text := string(Markdown(v))
	require.NotRegexp(t, `(^|[^\\])<`, text)
	require.NotContains(t, text, "@someone")
	require.NotRegexp(t, `[^\\]\[a`, text)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "|") {
			require.Len(t, regexp.MustCompile(`(^|[^\\])\|`).FindAllString(line, -1), 10, "a table keeps its columns: %s", line)
		}
	}
}

// TestSelfContained: nothing is fetched, nothing runs.
func TestSelfContained(t *testing.T) {
	page := string(html(t, sample()))
	require.NotRegexp(t, `(?i)https?:|<script|<iframe|@import|@font-face|javascript:| on[a-z]+=`, page)
	for _, url := range regexp.MustCompile(`url\(([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		require.Equal(t, "#waste", url[1])
	}
	for _, link := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		require.Equal(t, "data:,", link[1])
	}
	require.Contains(t, page, "default-src 'none'")
	require.Less(t, len(page), 1<<20, "small enough to mail")
	require.Equal(t, 2*len(allFigures), strings.Count(page, `role="img" aria-label="`), "every picture says what it shows")
	wellFormed(t, page)
}

// wellFormed checks that elements close.
func wellFormed(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

// TestHeadline: the worst verdict is the answer.
func TestHeadline(t *testing.T) {
	for _, c := range []struct {
		verdicts []string
		want     headline
	}{
		{nil, headline{"", "no criterion was measured"}},
		{[]string{"", ""}, headline{"", "no criterion was measured"}},
		{[]string{pass, pass}, headline{pass, "PASS: all 2 criteria"}},
		{[]string{pass, ""}, headline{"", "1 not measured, 1 PASS, of 2 criteria"}},
		{[]string{pass, fail, inconclusive, invalid, ""}, headline{invalid, "1 INVALID, 1 FAIL, 1 INCONCLUSIVE, 1 not measured, 1 PASS, of 5 criteria"}},
		{[]string{inconclusive, fail}, headline{fail, "1 FAIL, 1 INCONCLUSIVE, of 2 criteria"}},
	} {
		v := new(View)
		for _, verdict := range c.verdicts {
			v.Criteria = append(v.Criteria, Criterion{Verdict: verdict, Target: 1})
		}
		v.Criteria = append(v.Criteria, Criterion{Verdict: "MEASURED", Target: math.NaN()})
		require.Equal(t, c.want, v.headline())
	}
}

// TestOpen: what several criteria say alike is said once.
func TestOpen(t *testing.T) {
	v := &View{Criteria: []Criterion{
		{Name: "a", Verdict: invalid, Reason: "noise"}, {Name: "b", Verdict: pass}, {Name: "c", Verdict: invalid, Reason: "noise"},
		{Name: "d", Verdict: fail, Reason: "noise"}, {Name: "e", Verdict: fail, Reason: "noise", Notes: []string{"more"}},
	}}
	var names []string
	for _, c := range v.Open() {
		names = append(names, c.Name)
	}
	require.Equal(t, []string{"a; c", "d", "e"}, names)
	require.Equal(t, "a", v.Criteria[0].Name, "the view is left as it is")
}

func TestNumbers(t *testing.T) {
	require.Equal(t, []string{"0", "1.23 µs", "45.6 ms", "1.00 s", "123 s", unknown},
		[]string{duration(0), duration(1.234e-6), duration(0.0456), duration(0.9999), duration(123.4), duration(math.NaN())})
	require.Equal(t, []string{"0.00", "-0.01", "123.46"}, []string{fixed(-0.001, 2), fixed(-0.011, 2), fixed(123.456, 2)})
	require.Equal(t, []string{"0.00123", "12.3", "1234"}, []string{digits(0.001234, 3), digits(12.34, 3), digits(1234.4, 3)})
	s := scale{Lo: 0.9, Hi: 31, Log: true}
	require.Equal(t, []float64{1, 2, 5, 10, 20}, s.ticks(6))
	s = scale{Lo: 0.03, Hi: 1}
	require.InDeltaSlice(t, []float64{0.2, 0.4, 0.6, 0.8, 1}, s.ticks(5), 1e-9)
	for lo := 0.0; lo < 2; lo += 0.037 {
		for width := 0.01; width < 100; width *= 1.07 {
			s := scale{Lo: lo, Hi: lo + width}
			require.GreaterOrEqual(t, len(s.ticks(4)), leastTicks, "%v: an axis that can be read", s)
		}
	}
	require.Equal(t, []int{1, 2, 3}, intTicks(3, 8))
	require.Equal(t, []int{4, 8, 12, 16, 20, 24}, intTicks(24, 8))
	d := distribute([]float64{4, 1, 3, 2})
	require.Equal(t, []float64{1, 2, 4, 4, 4, 2.5}, []float64{d.Min, d.P50, d.P95, d.P99, d.Max, d.Mean})
}
