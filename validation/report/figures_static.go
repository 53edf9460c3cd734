package report

import (
	"fmt"
	"slices"
)

// sweepFigure is the speed-up by batch size, between what is ideal and what is possible.
func sweepFigure(v *View) *figure {
	s := v.Sweep
	if s == nil || len(s.Points) == 0 {
		return nil
	}
	f := figure{
		ID: "sweep", Title: "The sweep: what one more row buys",
		Reading: fmt.Sprintf("Tokens a second of a static batch against those of one row, on %s. Up to the knee, every row is worth at least %.0f %% of the first.", s.Model, 100*s.KneeEfficiency),
		Label:   "Speed-up of a static batch by its size, with the ideal line, the ceiling and the knee",
		Legend:  []key{keyOf("measured", func(d *drawing) { d.line("curve a-batch", 1, 7, 25, 7); d.dot("batch fill", 13, 7, 4, "") }), lineKey("ideal", "ideal: every row as good as the first")},
		Tables:  []table{{Head: []string{"rows", "step, median", "min", "p95", "tok/s", "speed-up", "ceiling", "efficiency"}}},
	}
	most, high := 1, 1.0
	best := s.Points[0]
	ceilings := false
	for _, p := range s.Points {
		f.Tables[0].Rows = append(f.Tables[0].Rows, []string{fmt.Sprint(p.Rows), fixed(p.StepMS, 2) + " ms", fixed(p.MinMS, 2) + " ms", fixed(p.P95MS, 2) + " ms",
			fixed(p.Goodput, 2), fixed(p.Speedup, 2) + " ×", fixed(p.Ceiling, 2), fixed(p.Efficiency, 2)})
		most, high = max(most, p.Rows), max(high, p.Speedup)
		if known(p.Ceiling) {
			ceilings, high = true, max(high, p.Ceiling)
		}
		if p.Goodput > best.Goodput {
			best = p
		}
	}
	f.Tables[0].Caption = fmt.Sprintf("Best: %.2f × at %d rows. No knee: no size has an efficiency of at least %.1f.", best.Speedup, best.Rows, s.KneeEfficiency)
	if s.Knee > 0 {
		f.Tables[0].Caption = fmt.Sprintf("Best: %.2f × at %d rows. Knee: %d rows, the most with an efficiency of at least %.1f.", best.Speedup, best.Rows, s.Knee, s.KneeEfficiency)
		f.Legend = append(f.Legend, lineKey("target", "knee"))
	}
	if ceilings {
		f.Legend = append(f.Legend, keyOf(ceilingKey.Text, func(d *drawing) { d.line("ceiling", 1, 7, 25, 7); d.diamond(13, 7, "") }))
	}
	return f.draw(func(d *drawing) {
		p := d.panels([]string{""}, 260)[0]
		// The ideal line is cut where it would press everything else flat.
		p.X.Lo, p.X.Hi, p.Y.Hi = 0.5, float64(most)+0.5, min(float64(most)+0.3, 1.35*high+0.3)
		p.grid(sizeTicks(s.Points), integer, p.Y.ticks(6), tick, "rows in the batch")
		d.text("s tick soft", p.X.A, p.Y.B-8, "speed-up")
		end := min(float64(most)+0.3, p.Y.Hi)
		d.line("ideal", p.X.at(1), p.Y.at(1), p.X.at(end), p.Y.at(end))
		if s.Knee > 0 {
			x := p.X.at(float64(s.Knee))
			d.line("target", x, p.Y.A, x, p.Y.B)
			anchor, dx := "s", 6.0
			if x > (p.X.A+p.X.B)/2 {
				anchor, dx = "e", -6
			}
			d.text(anchor+" tick halo", x+dx, p.Y.A-10, fmt.Sprintf("knee: %d rows", s.Knee))
		}
		var xs, ys, cx, cy []float64
		for _, pt := range s.Points {
			x := p.X.at(float64(pt.Rows))
			xs, ys = append(xs, x), append(ys, p.Y.at(pt.Speedup))
			if known(pt.Ceiling) {
				cx, cy = append(cx, x), append(cy, p.Y.clamp(pt.Ceiling))
			}
		}
		if len(cx) > 0 {
			d.polyline("ceiling", cx, cy, false)
			for i := range cx {
				d.diamond(cx[i], cy[i], "ceiling")
			}
		}
		d.polyline("curve a-batch", xs, ys, false)
		for i, pt := range s.Points {
			d.dot("batch fill", xs[i], ys[i], 5, fmt.Sprintf("%d rows: %.2f ×, efficiency %.2f", pt.Rows, pt.Speedup, pt.Efficiency))
			d.text("m num halo", xs[i], ys[i]+20, fixed(pt.Speedup, 2))
		}
	})
}

// sizeTicks are the sizes that were measured.
func sizeTicks(points []SweepPoint) []float64 {
	var out []float64
	for _, p := range points {
		out = append(out, float64(p.Rows))
	}
	return out
}

// blocking is the batch that waits for its longest row, as it went.
func blocking(v *View) *figure {
	b := v.Blocking
	if b == nil || len(b.Steps) == 0 || len(b.Tokens) == 0 {
		return nil
	}
	finish := make([]float64, len(b.Steps)+1)
	finish[0] = b.Prefill
	for i, s := range b.Steps {
		finish[i+1] = finish[i] + s
	}
	total := finish[len(b.Steps)]
	f := figure{
		ID: "blocking", Title: "The blocking run: rows that wait for the longest",
		Reading: fmt.Sprintf("A static batch of %d rows on %s. A row that has its tokens keeps its place, and is computed on, until the longest is done: of %d decode tokens computed, %d were asked for.", len(b.Tokens), b.Model, b.Issued, b.Useful),
		Label:   fmt.Sprintf("Timeline of %d rows of a static batch: %s of the decode work is wasted", len(b.Tokens), percent(b.Waste, 1)),
		Legend:  []key{boxKey("prefill", "prefill"), boxKey("batch fill", "useful"), boxKey("waste", "wasted")},
		Tables: []table{
			{Head: []string{"issued", "useful", "waste", "goodput", "total"}, Rows: [][]string{{fmt.Sprint(b.Issued), fmt.Sprint(b.Useful), fixed(b.Waste, 4), fixed(b.Goodput, 2) + " tok/s", duration(total)}}},
			{Head: []string{"row", "tokens", "has its last after", "waits", "inflation"}},
		},
	}
	for i, tokens := range b.Tokens {
		done := finish[min(max(tokens-1, 0), len(b.Steps))]
		f.Tables[1].Rows = append(f.Tables[1].Rows, []string{fmt.Sprint(i + 1), fmt.Sprint(tokens), duration(done), duration(total - done), fixed(total/done, 2) + " ×"})
	}
	return f.draw(func(d *drawing) {
		const lane, bar = 22, 15
		height := float64(lane * len(b.Tokens))
		p := d.panels([]string{""}, height)[0]
		p.X.Hi, p.Y.Lo, p.Y.Hi = total, float64(len(b.Tokens))+0.5, 0.5
		for i, tokens := range b.Tokens {
			done := finish[min(max(tokens-1, 0), len(b.Steps))]
			y := p.Y.at(float64(i+1)) - bar/2
			x0, x1, x2 := p.X.at(b.Prefill), p.X.at(done), p.X.at(total)
			d.rect("prefill", p.X.A, y, x0-p.X.A, bar, "prefill: "+duration(b.Prefill))
			if x1 > x0 {
				d.rect("batch fill", x0, y, x1-x0, bar, fmt.Sprintf("row %d: %d tokens, done after %s", i+1, tokens, duration(done)))
			}
			if x2 > x1 {
				d.rect("waste", x1, y, x2-x1, bar, fmt.Sprintf("row %d: waits %s", i+1, duration(total-done)))
			}
		}
		for _, at := range finish[:len(finish)-1] {
			d.line("cut", p.X.at(at), p.Y.B, p.X.at(at), p.Y.A)
		}
		rows := make([]int, len(b.Tokens))
		for i := range rows {
			rows[i] = i + 1
		}
		p.lanes(rows)
		p.grid(p.X.ticks(6), tickDuration, nil, nil, "time since the batch began; thin cuts are steps")
	})
}

// lanes labels rows from the top.
func (p *panel) lanes(rows []int) {
	for _, r := range rows {
		p.d.text("e tick", p.X.A-6, p.Y.at(float64(r))+4, fmt.Sprintf("row %d", r))
	}
}

// comparison is what continuous batching makes of the same requests.
func comparison(v *View) *figure {
	c := v.Comparison
	if c == nil {
		return nil
	}
	var rows []Metric
	values := []float64{0, 1}
	f := figure{
		ID: "continuous", Title: "Continuous against static batching",
		Reading: fmt.Sprintf("The same %d requests and tokens, one long and the others short; medians of %d blocks. A bar begins at 1, where both are equal: slots, times and waste are better to the left, goodput to the right.", c.Requests, c.Blocks),
		Label:   "Ratio of continuous to static batching for each figure",
		Legend:  []key{boxKey("batch fill", "continuous ÷ static")},
		Tables:  []table{{Head: []string{"", "static", "continuous", "ratio"}}},
	}
	for _, m := range c.Metrics {
		f.Tables[0].Rows = append(f.Tables[0].Rows, []string{m.Name, short(m.Static), short(m.Continuous), fixed(m.Ratio, 2)})
		if known(m.Ratio) {
			rows, values = append(rows, m), append(values, m.Ratio)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return f.draw(func(d *drawing) {
		x := scale{Hi: slices.Max(values) * 1.05, A: 2, B: d.W - 2}
		for i, m := range rows {
			y := d.lane(i, m.Name, fixed(m.Ratio, 2)+" ×")
			d.line("grid", x.A, y, x.B, y)
			a, b := x.at(min(m.Ratio, 1)), x.at(max(m.Ratio, 1))
			d.rect("batch fill", a, y-6, max(b-a, 1), 12, m.Name+": "+short(m.Static)+" static, "+short(m.Continuous)+" continuous")
			d.line("target", x.at(1), y-10, x.at(1), y+10)
		}
		d.laneAxis(len(rows), &x, tick, "continuous ÷ static")
	})
}

// serving is what each way to serve made of the same arrivals.
func serving(v *View) *figure {
	s := v.Serving
	if s == nil || len(s.Arms) == 0 {
		return nil
	}
	f := figure{
		ID: "serving", Title: "Serving: throughput and goodput",
		Reading: "Open loop on " + s.Model + ": " + s.Load + ". The frame is the requests served in a second, the filled part those that met every limit (" + s.Limits + ").",
		Label:   "Throughput and goodput of each way to serve the same arrivals",
		Legend:  ratesLegend(),
		Tables:  []table{{Head: []string{"arm", "offered", "served", "goodput", "within the limits", "tok/s"}}},
	}
	lanes := make([]rateLane, len(s.Arms))
	for i := range s.Arms {
		a := &s.Arms[i]
		f.Tables[0].Rows = append(f.Tables[0].Rows, []string{a.Name, digits(a.Offered, 3) + " req/s", digits(a.Throughput, 3) + " req/s",
			digits(a.Goodput, 3) + " req/s", percent(a.Share, 1), digits(a.TokensPerS, 3)})
		lanes[i] = rateLane{a.Name, a.Rates}
	}
	return f.drawRates(lanes)
}

// plan is what a simulation says of sizes, beside those that were run.
func plan(v *View) *figure {
	p := v.Plan
	if p == nil || len(p.Sizes) == 0 {
		return nil
	}
	f := figure{
		ID: "plan", Title: "The plan: larger sizes, simulated",
		Reading: fmt.Sprintf("Not measured: the real scheduler over steps that cost what those of %s do (%s), %s. At each size every policy meets the same arrivals; limits %s.", p.Model, p.Cost, p.Load, p.Limits),
		Label:   "Simulated throughput and goodput of each policy at each batch size",
		Legend:  ratesLegend(),
		Tables: []table{{Text: 1, Caption: "Percentiles are nearest-rank. What falls behind its arrivals waits the longer, the longer they last.",
			Head: []string{"rows", "policy", "offered", "served", "goodput", "within the limits", "TTFT p50", "TTFT p95", "TPOT p95", "tok/s"}}},
	}
	var lanes []rateLane
	for i := range p.Sizes {
		s := &p.Sizes[i]
		f.Tables[0].Rows = append(f.Tables[0].Rows, []string{fmt.Sprint(s.Rows), s.Name, digits(s.Offered, 3) + " req/s", digits(s.Throughput, 3) + " req/s",
			digits(s.Goodput, 3) + " req/s", percent(s.Share, 1), duration(s.TTFT50), duration(s.TTFT95), duration(s.TPOT95), digits(s.TokensPerS, 3)})
		name := fmt.Sprintf("%d rows, %s", s.Rows, s.Name)
		if p.Fitted > 0 && s.Rows > p.Fitted {
			name += ", extrapolated"
		}
		lanes = append(lanes, rateLane{name, s.Rates})
	}
	return f.drawRates(lanes)
}

// rateLane is one row of a picture of goodput within throughput.
type rateLane struct {
	name string
	Rates
}

func ratesLegend() []key {
	return []key{boxKey("frame", "throughput"), boxKey("batch fill", "goodput"),
		keyOf("offered", func(d *drawing) { d.line("target", 13, 0, 13, 14) })}
}

// drawRates draws a lane for each. Nil if nothing is known.
func (f figure) drawRates(lanes []rateLane) *figure {
	high := 0.0
	for _, r := range lanes {
		for _, x := range []float64{r.Offered, r.Throughput} {
			if known(x) {
				high = max(high, x)
			}
		}
	}
	if high == 0 {
		return nil
	}
	return f.draw(func(d *drawing) {
		x := scale{Hi: 1.05 * high, A: 2, B: d.W - 2}
		for i, r := range lanes {
			y := d.lane(i, r.name, digits(r.Goodput, 3)+" of "+digits(r.Throughput, 3)+" req/s")
			if known(r.Goodput) {
				d.rect("batch fill", x.A, y-8, x.at(r.Goodput)-x.A, 16, "goodput "+digits(r.Goodput, 3))
			}
			if known(r.Throughput) {
				d.rect("frame", x.A, y-8, x.at(r.Throughput)-x.A, 16, "throughput "+digits(r.Throughput, 3))
			}
			if known(r.Offered) {
				d.line("target", x.at(r.Offered), y-9, x.at(r.Offered), y+11)
			}
		}
		d.laneAxis(len(lanes), &x, tick, "requests a second")
	})
}
