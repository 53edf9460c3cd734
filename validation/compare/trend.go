package main

import (
	"fmt"
	"html"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/batchproof/batchproof/validation/stats"
)

// benchFiles lists the benchmark files among the arguments: files as they are,
// directories with all that lies in them, in order of their names, which begin
// with the time.
func benchFiles(args []string) ([]string, error) {
	var files []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, err
		}
		if !info.IsDir() {
			files = append(files, arg)
			continue
		}
		err = filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && filepath.Ext(path) == ".txt" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// A series is one row of one machine over recorded runs.
type series struct {
	title, unit string
	higher      bool
	points      []point
}

type point struct {
	label                string
	median, lower, upper float64
}

// trends sorts recorded runs into series. Runs of two machines, or of two
// models, are never in one.
func trends(sets []*set) []*series {
	var list []*series
	index := make(map[string]*series)
	for _, s := range sets {
		where := "unknown machine"
		if m, err := machineOf(s.config); err == nil {
			where = m.key()
		}
		if e := s.config["engine"]; e != "" {
			where += ", " + e
		}
		own, err := pair(s, s, "auto")
		if err != nil {
			continue // nothing with a direction in it
		}
		for _, k := range own.rows {
			id := where + "\x00" + s.config["model"] + "\x00" + k.String()
			t := index[id]
			if t == nil {
				t = &series{title: k.name + "\n" + where, unit: k.unit, higher: own.higher(k)}
				index[id] = t
				list = append(list, t)
			}
			i := stats.MedianInterval(s.values(k), 0.95)
			t.points = append(t.points, point{runLabel(s), i.Median, i.Lower, i.Upper})
		}
	}
	return list
}

// runLabel names a run by its file, or by its directory where all files of runs
// have one name.
func runLabel(s *set) string {
	name := strings.TrimSuffix(filepath.Base(s.path), ".txt")
	if name == "bench" {
		name = filepath.Base(filepath.Dir(s.path))
	}
	if c := s.config["commit"]; c != "" && !strings.Contains(name, c[:min(7, len(c))]) {
		name += " " + c[:min(7, len(c))]
	}
	return name
}

// trendSVG draws one panel a series: medians, joined, with their 95 % intervals.
// Axes do not begin at zero: a trend of a few percent is what is looked for, and
// both ends are written down.
func trendSVG(list []*series) []byte {
	const width, height, left, right, top, bottom = 720, 190, 86, 24, 44, 34
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" role="img">
<title>Recorded runs, oldest first</title>
<style>
svg { background: #fff; color: #1a1a1a } .grid { stroke: #bbb; stroke-width: .5 } .line { stroke: #0072b2; fill: none; stroke-width: 1.5 }
.dot { fill: #0072b2 } .bar { stroke: #0072b2; stroke-width: 1.5; opacity: .5 } text { fill: currentColor } .small { font-size: 10.5px; opacity: .75 }
@media (prefers-color-scheme: dark) { svg { background: #16181c; color: #e4e4e4 } .grid { stroke: #555 } .line, .bar { stroke: #56b4e9 } .dot { fill: #56b4e9 } }
</style>
`, width, max(1, len(list))*height)
	for i, s := range list {
		y0 := i * height
		low, high := math.Inf(1), math.Inf(-1)
		for _, p := range s.points {
			low, high = min(low, p.median), max(high, p.median)
			if !math.IsInf(p.lower, 0) && !math.IsInf(p.upper, 0) {
				low, high = min(low, p.lower), max(high, p.upper)
			}
		}
		pad := max(0.02*high, 0.1*(high-low))
		low, high = max(0, low-pad), high+pad
		x := func(j int) float64 {
			return left + (float64(j)+0.5)*float64(width-left-right)/float64(len(s.points))
		}
		y := func(v float64) float64 {
			return float64(y0+height-bottom) - (v-low)/(high-low)*float64(height-top-bottom)
		}
		better := "less is better"
		if s.higher {
			better = "more is better"
		}
		name, where, _ := strings.Cut(s.title, "\n")
		fmt.Fprintf(&b, `<text x="12" y="%d">%s, %s (%s)</text><text x="12" y="%d" class="small">%s</text>`+"\n",
			y0+18, html.EscapeString(name), html.EscapeString(s.unit), better, y0+33, html.EscapeString(where))
		for _, v := range []float64{low, (low + high) / 2, high} {
			fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end" class="small">%.4g</text>`+"\n", left, y(v), width-right, left-6, y(v)+4, v)
		}
		var path []string
		for j, p := range s.points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", x(j), y(p.median)))
		}
		fmt.Fprintf(&b, `<polyline class="line" points="%s"/>`+"\n", strings.Join(path, " "))
		for j, p := range s.points {
			tip := fmt.Sprintf("%s: %.5g %s", p.label, p.median, s.unit)
			if !math.IsInf(p.lower, 0) && !math.IsInf(p.upper, 0) {
				tip += fmt.Sprintf(" [%.5g, %.5g]", p.lower, p.upper)
				fmt.Fprintf(&b, `<path class="bar" d="M%.1f %.1fV%.1f"/>`, x(j), y(p.lower), y(p.upper))
			}
			fmt.Fprintf(&b, `<circle class="dot" cx="%.1f" cy="%.1f" r="3.5"><title>%s</title></circle>`+"\n", x(j), y(p.median), html.EscapeString(tip))
		}
		ends := []int{0}
		if len(s.points) > 1 {
			ends = append(ends, len(s.points)-1)
		}
		for j, at := range ends {
			anchor, px := "start", left
			if j == 1 {
				anchor, px = "end", width-right
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="%s" class="small">%s</text>`+"\n", px, y0+height-bottom+18, anchor, html.EscapeString(s.points[at].label))
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// writeTrend draws the runs in files.
func writeTrend(out string, args []string) (string, error) {
	files, err := benchFiles(args)
	if err != nil {
		return "", fmt.Errorf("-trend: %w", err)
	}
	var sets []*set
	for _, file := range files {
		s, err := readFile(filepath.Base(file), file, "")
		if err != nil {
			if info, statErr := os.Stat(file); statErr == nil && !info.IsDir() && !slices.Contains(args, file) {
				continue // in a directory there may be other text
			}
			return "", fmt.Errorf("-trend: %w", err)
		}
		sets = append(sets, s)
	}
	list := trends(sets)
	if len(list) == 0 {
		return "", fmt.Errorf("-trend: no benchmark results in %s; record some with make bench and make baseline", strings.Join(args, ", "))
	}
	if err := os.WriteFile(out, trendSVG(list), 0o644); err != nil {
		return "", fmt.Errorf("-trend: %w", err)
	}
	return fmt.Sprintf("%s: %d runs, %d rows", out, len(sets), len(list)), nil
}
