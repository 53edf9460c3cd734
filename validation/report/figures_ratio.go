package report

import (
	"fmt"
	"math"
)

// ratios are the medians with their bounds, each against its own target, so that
// all questions share one axis and better is always to the right.
func ratios(v *View) *figure {
	var rows []*Criterion
	for i := range v.Criteria {
		if c := &v.Criteria[i]; c.Ruled() && c.Measured() {
			rows = append(rows, c)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	relative := func(c *Criterion, r float64) float64 {
		if c.AtMost {
			return c.Target / r
		}
		return r / c.Target
	}
	values := []float64{1}
	for _, c := range rows {
		for _, r := range []float64{c.Ratio, c.Lower, c.Upper, c.Ceiling} {
			if r != 0 {
				values = append(values, relative(c, r))
			}
		}
	}
	f := figure{
		ID: "ratios", Title: "Ratios against their targets",
		Reading: "Each ratio as a share of its own target, turned so that better is to the right: a verdict is PASS when the whole interval is right of the line, FAIL when it is left of it. For the latency criterion, where lower is better, target ÷ ratio is shown.",
		Label:   "Median ratio of each criterion with its interval, its target and its ceiling",
		Legend: []key{
			keyOf("median and interval", func(d *drawing) { d.line("interval batch", 1, 7, 25, 7); d.dot("batch fill", 13, 7, 4.5, "") }),
			keyOf("target", func(d *drawing) { d.line("target", 13, 0, 13, 14) }), ceilingKey,
		},
		Tables: []table{{Text: 1, Head: []string{"criterion", "verdict", "ratio", "interval", "target", "ceiling", "of that", "serial", "batch", "roofline"}}},
	}
	for i := range v.Criteria {
		if c := &v.Criteria[i]; c.Verdict != "" {
			f.Tables[0].Rows = append(f.Tables[0].Rows, []string{c.Name, c.Verdict, ratio(c.Ratio), c.Interval(), c.Rule(), fixed(c.Ceiling, 2),
				percent(c.Ratio/c.Ceiling, 0), rate(c.Serial, c.Unit), rate(c.Batch, c.Unit), percent(c.SerialShare, 0)})
		}
	}
	return f.draw(func(d *drawing) {
		x := scale{A: 8, B: d.W - 8}
		x.Lo, x.Hi = span(values, 0.08)
		d.rect("met", x.at(1), 0, x.B-x.at(1), float64(len(rows)*laneHeight)+6, "")
		for i, c := range rows {
			value := ratio(c.Ratio) + ", target " + c.Rule()
			y := d.lane(i, c.Name, value)
			d.line("grid", x.A, y, x.B, y)
			d.line("target", x.at(1), y-9, x.at(1), y+9)
			lo, hi := relative(c, c.Lower), relative(c, c.Upper)
			if lo > hi {
				lo, hi = hi, lo
			}
			if known(lo) && known(hi) && lo > 0 {
				d.line("interval batch", x.at(lo), y, x.at(hi), y)
				d.line("batch", x.at(lo), y-5, x.at(lo), y+5)
				d.line("batch", x.at(hi), y-5, x.at(hi), y+5)
			}
			if known(c.Ceiling) {
				d.diamond(x.at(relative(c, c.Ceiling)), y, "ceiling "+fixed(c.Ceiling, 2))
			}
			d.dot("batch fill", x.at(relative(c, c.Ratio)), y, 5, c.Name+": "+value+", interval "+c.Interval())
		}
		d.laneAxis(len(rows), &x, func(v float64) string { return fixed(100*v, 0) + " %" }, "share of the target; better →")
	})
}

// Interval is both bounds.
func (c *Criterion) Interval() string {
	if !known(c.Lower) || !known(c.Upper) {
		return "none"
	}
	return ratio(c.Lower) + " … " + ratio(c.Upper)
}

// Rule is the target, such as "≥ 1.70".
func (c *Criterion) Rule() string {
	switch {
	case !c.Ruled():
		return "none"
	case c.AtMost:
		return "≤ " + fixed(c.Target, 2)
	}
	return "≥ " + fixed(c.Target, 2)
}

func rate(x float64, unit string) string {
	switch {
	case !known(x):
		return unknown
	case unit == "s":
		return duration(x)
	}
	return digits(x, 3) + " " + unit
}

// blocks are the ratios in run order: a drift, an outlier or a dependence on
// the order of the arms shows here.
func blocks(v *View) *figure {
	var rows []*Criterion
	var titles []string
	for i := range v.Criteria {
		if c := &v.Criteria[i]; len(c.Blocks) > 0 {
			rows, titles = append(rows, c), append(titles, c.Name)
		}
	}
	if len(rows) == 0 {
		return nil
	}
	f := figure{
		ID: "blocks", Title: "Ratio of each block, in run order",
		Reading: "One mark is one interleaved measurement of both arms. A slope is drift; filled and hollow marks that part show that the order of the arms matters; crosses are the serial arm against itself, which should lie at 1.",
		Label:   "Ratio of each block in run order, for each criterion",
		Legend: []key{dotKey("batch hollow", "serial arm first"), dotKey("batch fill", "batch or control arm first"),
			lineKey("target", "target"), lineKey("batch", "median")},
	}
	long := table{Text: 1, Prose: true, Head: []string{"criterion", "ran first", "block", "ratio", "control", "left out"}}
	controls, leftOut := false, false
	for _, c := range rows {
		for _, b := range c.Blocks {
			long.Rows = append(long.Rows, []string{c.Name, b.First, fmt.Sprint(b.Number), ratio(b.Ratio), ratio(b.Control), b.LeftOut})
			controls = controls || known(b.Control)
			leftOut = leftOut || b.LeftOut != ""
		}
	}
	if controls {
		f.Legend = append(f.Legend, keyOf("control", func(d *drawing) { d.cross("control", 13, 7, "") }))
	}
	if leftOut {
		f.Legend = append(f.Legend, dotKey("lost", "left out of the ratio"))
	}
	f.Tables = []table{long}
	return f.draw(func(d *drawing) {
		for i, p := range d.panels(titles, 130) {
			c := rows[i]
			values := []float64{c.Target, c.Ratio}
			for _, b := range c.Blocks {
				values = append(values, b.Ratio, b.Control)
			}
			p.Y.Lo, p.Y.Hi = span(values, 0.1)
			p.X.Lo, p.X.Hi = 0.5, float64(c.Blocks[len(c.Blocks)-1].Number)+0.5
			n := c.Blocks[len(c.Blocks)-1].Number
			p.grid(floats(intTicks(n, 12)), integer, p.Y.ticks(4), tick, "block")
			if c.Ruled() {
				d.line("target", p.X.A, p.Y.at(c.Target), p.X.B, p.Y.at(c.Target))
			}
			if c.Measured() {
				d.line("batch thin", p.X.A, p.Y.at(c.Ratio), p.X.B, p.Y.at(c.Ratio))
			}
			for _, b := range c.Blocks {
				x := p.X.at(float64(b.Number))
				if known(b.Control) {
					d.cross("control", x, p.Y.at(b.Control), fmt.Sprintf("block %d, control: %s", b.Number, ratio(b.Control)))
				}
				class := "batch fill"
				if b.First == "serial" {
					class = "batch hollow"
				}
				if b.LeftOut != "" {
					class = "lost"
				}
				d.dot(class, x, p.Y.at(b.Ratio), 4, fmt.Sprintf("block %d, %s arm first: %s", b.Number, b.First, ratio(b.Ratio)))
			}
		}
	})
}

// missing is the way from the ideal ratio down to the measured one.
func missing(v *View) *figure {
	var rows []*Criterion
	var titles []string
	lanes := 0
	for i := range v.Criteria {
		if c := &v.Criteria[i]; c.Missing != nil && len(c.Missing.Parts) > 0 {
			rows, titles = append(rows, c), append(titles, c.Name)
			lanes = max(lanes, len(c.Missing.steps()))
		}
	}
	if len(rows) == 0 {
		return nil
	}
	f := figure{
		ID: "missing", Title: "Where the missing ratio went",
		Reading: "From the ideal, one for each request, what this machine's bytes and arithmetic take leads to the ceiling; from there, what was lost beyond leads to the measured ratio. A gain means that the batch arm is nearer to its floor there than the serial arm is to its own.",
		Label:   "What takes the ratio from the ideal to the ceiling and on to the measured one, for each criterion",
		Legend:  []key{boxKey("batch fill", "ratio"), boxKey("floor", "lost to the machine"), boxKey("excess", "lost beyond that"), boxKey("gain", "gained")},
		Tables:  []table{{Text: 1, Prose: true, Head: []string{"criterion", "cause", "lost to the machine", "lost beyond", "what to do about the latter"}}},
	}
	for _, c := range rows {
		add := func(cells ...string) { f.Tables[0].Rows = append(f.Tables[0].Rows, append([]string{c.Name}, cells...)) }
		add("ideal "+fixed(c.Missing.Ideal, 2)+", ceiling "+fixed(c.Missing.Ceiling, 2)+", measured "+ratio(c.Missing.Measured), "", "", "")
		for _, p := range c.Missing.Parts {
			if p.Floor != 0 || p.Excess != 0 {
				add(p.Name, fixed(p.Floor, 3), fixed(p.Excess, 3), p.Words)
			}
		}
	}
	return f.draw(func(d *drawing) {
		const lane, bar, label = 20, 13, 72
		for i, p := range d.panels(titles, float64(lane*lanes)) {
			m := rows[i].Missing
			p.X.A += label - 30
			p.X.B -= 30
			for _, s := range m.steps() { // a gain may lead beyond the ideal
				p.X.Lo, p.X.Hi = min(p.X.Lo, s.from, s.to), max(p.X.Hi, s.from, s.to)
			}
			for k, s := range m.steps() {
				y := p.Y.B + lane*(float64(k)+0.5)
				d.text("e tick", p.X.A-6, y+4, s.name)
				from, to := p.X.at(min(s.from, s.to)), p.X.at(max(s.from, s.to))
				d.rect(s.class, from, y-bar/2, max(to-from, 1), bar, s.name+": "+fixed(s.to-s.from, 3))
				text := fixed(s.to-s.from, 2)
				if s.class != "batch fill" && s.to > s.from {
					text = "+" + text
				}
				d.text("s tick halo", to+4, y+4, text)
			}
			p.grid(p.X.ticks(6), tick, nil, nil, "ratio")
		}
	})
}

// fall is one bar on the way down.
type fall struct {
	name, class string
	from, to    float64
}

// steps leaves out what cannot be seen.
func (m *Missing) steps() []fall {
	out := []fall{{"ideal", "batch fill", 0, m.Ideal}}
	at := m.Ideal
	way := func(class string, part func(*Part) float64) {
		for i := range m.Parts {
			loss := part(&m.Parts[i])
			if math.Abs(loss) < 0.005 {
				continue
			}
			f := fall{m.Parts[i].Name, class, at, at - loss}
			if loss < 0 {
				f.class = "gain"
			}
			out = append(out, f)
			at -= loss
		}
	}
	way("floor", func(p *Part) float64 { return p.Floor })
	at = m.Ceiling // also if the parts above round otherwise
	out = append(out, fall{"ceiling", "batch fill", 0, m.Ceiling})
	way("excess", func(p *Part) float64 { return p.Excess })
	return append(out, fall{"measured", "batch fill", 0, m.Measured})
}

var nan = math.NaN()
