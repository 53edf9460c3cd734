package report

import (
	"fmt"
	"math"
	"slices"
)

// stepTimes shows what a row costs: the whole case for batching is that this
// line rises slowly.
func stepTimes(v *View) *figure {
	if len(v.StepTimes) == 0 {
		return nil
	}
	f := figure{
		ID: "step-times", Title: "Step time against rows",
		Reading: "Decode steps only: the median, with a line from the shortest step to the 95th percentile. Batching is free as long as the marks stay level; along the dotted line it gains nothing.",
		Label:   "Time of a decode step by its number of rows",
		Tables:  []table{{Head: []string{"steps of", "rows", "steps", "median", "min", "p95", "a row", "of one row", "floor"}}},
	}
	floors := make(map[int]float64)
	for _, fl := range v.Floors {
		floors[fl.Rows] = fl.Seconds
	}
	rows := make([]distribution, len(v.StepTimes))
	sources := []string{}
	most, one, high := 1, nan, 0.0
	for i, s := range v.StepTimes {
		rows[i] = distribute(s.Seconds)
		if !slices.Contains(sources, s.Source) {
			sources = append(sources, s.Source)
		}
		most, high = max(most, s.Rows), max(high, rows[i].P95)
		if s.Rows == 1 && !known(one) {
			one = rows[i].P50
		}
	}
	for i, s := range v.StepTimes {
		floor, ok := floors[s.Rows]
		if !ok {
			floor = nan
		}
		r := &rows[i]
		f.Tables[0].Rows = append(f.Tables[0].Rows, []string{s.Source, fmt.Sprint(s.Rows), fmt.Sprint(r.N), duration(r.P50), duration(r.Min),
			duration(r.P95), duration(r.P50 / float64(s.Rows)), digits(r.P50/one, 3) + " ×", duration(floor)})
	}
	class := func(source string) string {
		return []string{"batch hollow", "batch fill"}[min(max(slices.Index(sources, source)-len(sources)+2, 0), 1)]
	}
	for _, s := range sources {
		f.Legend = append(f.Legend, dotKey(class(s), s))
	}
	if known(one) {
		f.Legend = append(f.Legend, lineKey("ideal", "as many rows for the time of one"), lineKey("dotted", "no gain: a row more costs a step more"))
	}
	if len(v.Floors) > 0 {
		f.Legend = append(f.Legend, lineKey("ceiling", "floor: bytes and arithmetic at this machine's rates"))
	}
	return f.draw(func(d *drawing) {
		p := d.panels([]string{""}, 240)[0]
		p.X.Lo, p.X.Hi = 0.5, float64(most)+0.5
		p.Y.Hi = 1.1 * high
		p.grid(floats(intTicks(most, 16)), integer, p.Y.ticks(5), tickDuration, "rows in the step")
		if known(one) {
			d.line("ideal", p.X.at(1), p.Y.at(one), p.X.B, p.Y.at(one))
			end := min(float64(most)+0.5, p.Y.Hi/one)
			if end > 1 {
				d.line("dotted", p.X.at(1), p.Y.at(one), p.X.at(end), p.Y.at(one*end))
			}
		}
		if len(v.Floors) > 0 {
			var xs, ys []float64
			for _, fl := range v.Floors {
				if fl.Seconds <= p.Y.Hi && fl.Rows <= most {
					xs, ys = append(xs, p.X.at(float64(fl.Rows))), append(ys, p.Y.at(fl.Seconds))
					d.diamond(xs[len(xs)-1], ys[len(ys)-1], "floor of "+fmt.Sprint(fl.Rows)+" rows: "+duration(fl.Seconds))
				}
			}
			if len(xs) > 1 {
				d.polyline("ceiling", xs, ys, false)
			}
		}
		for i, s := range v.StepTimes {
			x := p.X.at(float64(s.Rows))
			if len(sources) > 1 {
				x += 4 * (2*float64(slices.Index(sources, s.Source))/float64(len(sources)-1) - 1)
			}
			d.line("batch", x, p.Y.at(rows[i].Min), x, p.Y.at(rows[i].P95))
			d.dot(class(s.Source), x, p.Y.at(rows[i].P50), 4.5, fmt.Sprintf("%d rows, %s: median %s of %d steps", s.Rows, s.Source, duration(rows[i].P50), rows[i].N))
		}
	})
}

// group is the arms that are shown in one panel.
type group struct {
	Name  string
	Arms  []*Arm
	Limit float64 // on TTFT
}

func groups(v *View) []group {
	var out []group
	for i := range v.Criteria {
		if c := &v.Criteria[i]; len(c.Arms) > 0 {
			g := group{Name: c.Name, Limit: nan}
			for k := range c.Arms {
				g.Arms = append(g.Arms, &c.Arms[k])
			}
			out = append(out, g)
		}
	}
	if s := v.Serving; s != nil && len(s.Arms) > 0 {
		g := group{Name: "serving", Limit: s.TTFT}
		for k := range s.Arms {
			g.Arms = append(g.Arms, &s.Arms[k].Arm)
		}
		out = append(out, g)
	}
	return out
}

// sizes is how many rows the steps had, over the time of the runs.
func sizes(v *View) *figure {
	type strip struct {
		name  string
		count map[int]int     // steps by rows
		time  map[int]float64 // seconds by rows; 0: no step
		cells [][]float64     // [rows][bin] share of the bin's time
		end   float64
		most  int
	}
	const bins = 60
	var strips []*strip
	all := []int{}
	for _, g := range groups(v) {
		for _, a := range g.Arms {
			s := &strip{name: g.Name + ", " + a.Name, count: map[int]int{}, time: map[int]float64{}}
			for _, st := range a.Steps {
				s.end, s.most = max(s.end, st.At+st.Seconds), max(s.most, st.Rows)
			}
			if s.most < 2 || s.end <= 0 { // no step was shared
				continue
			}
			s.cells = make([][]float64, s.most+1)
			for r := range s.cells {
				s.cells[r] = make([]float64, bins)
			}
			width := s.end / bins
			for _, st := range a.Steps {
				s.count[st.Rows]++
				s.time[st.Rows] += st.Seconds
				for b := int(st.At / width); b < bins && float64(b)*width < st.At+st.Seconds; b++ {
					s.cells[st.Rows][b] += min(st.At+st.Seconds, float64(b+1)*width) - max(st.At, float64(b)*width)
				}
				if !slices.Contains(all, st.Rows) {
					all = append(all, st.Rows)
				}
			}
			strips = append(strips, s)
		}
	}
	if len(strips) == 0 {
		return nil
	}
	slices.Sort(all)
	f := figure{
		ID: "batch-sizes", Title: "Rows of the steps, over time",
		Reading: "How the time of a run was spent: the stronger the colour of a cell, the more of that moment went into steps of so many rows. All runs of an arm lie over one another. Arms that never shared a step are left out.",
		Label:   "Histogram of the rows of steps over the time of the runs",
		Legend:  []key{boxKey("heat h3", "some"), boxKey("heat h9", "all of the steps' time")},
		Tables:  []table{{Head: []string{"steps of", "rows", "steps", "share of steps", "share of their time"}}},
	}
	var titles []string
	for _, s := range strips {
		titles = append(titles, s.name)
		total, steps := 0.0, 0
		for _, r := range all { // in order: a sum of floats depends on it
			total, steps = total+s.time[r], steps+s.count[r]
		}
		for _, r := range all {
			if n := s.count[r]; n > 0 {
				f.Tables[0].Rows = append(f.Tables[0].Rows, []string{s.name, fmt.Sprint(r), fmt.Sprint(n),
					percent(float64(n)/float64(steps), 1), percent(s.time[r]/total, 1)})
			}
		}
	}
	return f.draw(func(d *drawing) {
		for i, p := range d.panels(titles, 120) {
			s := strips[i]
			p.X.Hi, p.Y.Lo, p.Y.Hi = s.end, 0.5, float64(s.most)+0.5
			p.grid(p.X.ticks(5), tickDuration, floats(intTicks(s.most, 8)), integer, "time since the run began")
			totals := make([]float64, bins)
			for b := range bins {
				for r := range s.cells {
					totals[b] += s.cells[r][b]
				}
			}
			shade := func(r, b int) int { // 0: nothing to see
				share := s.cells[r][b] / totals[b]
				if !(share >= 0.005) {
					return 0
				}
				return max(1, int(math.Round(9*share)))
			}
			for r := 1; r <= s.most; r++ {
				y := p.Y.at(float64(r) + 0.5)
				for b := 0; b < bins; {
					first, h := b, shade(r, b)
					for b < bins && shade(r, b) == h {
						b++
					}
					if h > 0 {
						x := p.X.at(s.end / bins * float64(first))
						d.rect(fmt.Sprintf("heat h%d", h), x, y+0.5, p.X.at(s.end/bins*float64(b))-x, p.Y.at(float64(r)-0.5)-y-1, "")
					}
				}
			}
		}
	})
}

// distributions are the cumulative distributions of a latency, by arm.
func distributions(v *View, id, title, reading string, of func(*Arm) []float64, limit func(*group) float64) *figure {
	f := figure{
		ID: id, Title: title,
		Reading: reading + " A line shows which share of the samples took no longer than the time below it: further left is faster, steeper is steadier.",
		Label:   title + ", cumulative",
		Tables:  []table{{Text: 1, Caption: "Percentiles are nearest-rank.", Head: []string{"", "arm", "samples", "min", "p50", "p95", "p99", "max", "mean"}}},
	}
	type curve struct {
		arm string
		distribution
	}
	var titles []string
	var curves [][]curve
	var limits []float64
	named := map[string]bool{}
	for _, g := range groups(v) {
		var list []curve
		for _, a := range g.Arms {
			s := distribute(of(a))
			if s.N == 0 {
				continue
			}
			list = append(list, curve{a.Name, s})
			f.Tables[0].Rows = append(f.Tables[0].Rows, []string{g.Name, a.Name, fmt.Sprint(s.N), duration(s.Min), duration(s.P50), duration(s.P95),
				duration(s.P99), duration(s.Max), duration(s.Mean)})
			if !named[a.Name] {
				named[a.Name] = true
				f.Legend = append(f.Legend, lineKey("curve "+armClass(a.Name), a.Name))
			}
		}
		if len(list) > 0 {
			titles, curves, limits = append(titles, g.Name), append(curves, list), append(limits, limit(&g))
		}
	}
	if len(curves) == 0 {
		return nil
	}
	if slices.ContainsFunc(limits, known) {
		f.Legend = append(f.Legend, lineKey("target", "limit"))
	}
	return f.draw(func(d *drawing) {
		for i, p := range d.panels(titles, 140) {
			p.X.Log = true
			p.X.Lo, p.X.Hi = math.Inf(1), 0
			for _, c := range curves[i] {
				p.X.Lo, p.X.Hi = min(p.X.Lo, max(c.Min, 1e-7)), max(p.X.Hi, c.Max)
			}
			if known(limits[i]) && limits[i] > 0 {
				p.X.Lo, p.X.Hi = min(p.X.Lo, limits[i]), max(p.X.Hi, limits[i])
			}
			p.X.Lo, p.X.Hi = p.X.Lo/1.15, p.X.Hi*1.15
			p.Y.Hi = 1
			count := 7
			if d.narrow() {
				count = 6
			}
			p.grid(p.X.ticks(count), tickDuration, []float64{0, 0.25, 0.5, 0.75, 1}, func(v float64) string { return fixed(100*v, 0) + " %" }, "time, on a logarithmic axis")
			if known(limits[i]) && limits[i] > 0 {
				d.line("target", p.X.at(limits[i]), p.Y.A, p.X.at(limits[i]), p.Y.B)
			}
			for _, c := range curves[i] {
				xs, ys := []float64{p.X.clamp(c.Min)}, []float64{p.Y.A}
				points := min(c.N, 150) // more cannot be seen
				for k := 1; k <= points; k++ {
					share := float64(k) / float64(points)
					xs, ys = append(xs, p.X.clamp(c.at(share))), append(ys, p.Y.at(share))
				}
				xs, ys = append(xs, p.X.B), append(ys, p.Y.B)
				d.polyline("curve "+armClass(c.arm), xs, ys, true)
			}
		}
	})
}

// armClass gives every arm one colour and one dash, the same in all pictures.
func armClass(name string) string {
	switch name {
	case "serial":
		return "a-serial"
	case "batch", "continuous":
		return "a-batch"
	case "static":
		return "a-static"
	}
	return "a-other"
}
