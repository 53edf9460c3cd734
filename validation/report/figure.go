package report

import (
	"math"
	"strconv"
)

// figure is a picture with its numbers. It is drawn twice, for a page and for a
// phone: text keeps its size, and the style sheet shows the one that fits.
type figure struct {
	ID, Title    string
	Reading      string // how to read it
	Label        string // what it shows, for those who cannot see it
	Legend       []key
	Wide, Narrow *drawing
	Tables       []table
}

type table struct {
	Caption string
	Text    int  // so many columns are words, beside the first
	Prose   bool // the last column is a sentence
	Head    []string
	Rows    [][]string
}

// Class says what a column holds, if not numbers.
func (t table) Class(column int) string {
	switch {
	case t.Prose && column == len(t.Head)-1:
		return "w prose"
	case column <= t.Text:
		return "w"
	}
	return ""
}

// longTable is where a table is folded, so that the page stays readable.
const longTable = 12

// Long says that the table is to be folded.
func (t table) Long() bool { return len(t.Rows) > longTable }

type key struct {
	Mark *drawing
	Text string
}

const (
	wideWidth   = 900
	narrowWidth = 350
)

// draw draws both sizes. Nil, the figure that is left out, if there is nothing to draw.
func (f figure) draw(on func(d *drawing)) *figure {
	f.Wide, f.Narrow = &drawing{W: wideWidth}, &drawing{W: narrowWidth}
	on(f.Wide)
	on(f.Narrow)
	return &f
}

func (d *drawing) narrow() bool { return d.W < wideWidth }

func keyOf(text string, mark func(d *drawing)) key {
	d := &drawing{W: 26, H: 14}
	mark(d)
	return key{d, text}
}

func lineKey(class, text string) key {
	return keyOf(text, func(d *drawing) { d.line(class, 1, 7, 25, 7) })
}

func dotKey(class, text string) key {
	return keyOf(text, func(d *drawing) { d.dot(class, 13, 7, 4.5, "") })
}

func boxKey(class, text string) key {
	return keyOf(text, func(d *drawing) { d.rect(class, 3, 2, 20, 10, "") })
}

var ceilingKey = keyOf("ceiling: the best that this machine allows", func(d *drawing) { d.diamond(13, 7, "") })

// panel is the inside of one of several plots.
type panel struct {
	d    *drawing
	X, Y scale
}

// panels divides a drawing into plots of a height, side by side on a page,
// and sets the drawing's height.
func (d *drawing) panels(titles []string, height float64) []panel {
	columns := 2
	if d.narrow() || len(titles) == 1 {
		columns = 1
	}
	const top, left, right, bottom, gap = 24, 52, 12, 40, 20
	width := (d.W - gap*float64(columns-1)) / float64(columns)
	out := make([]panel, len(titles))
	for i, title := range titles {
		x, y := float64(i%columns)*(width+gap), float64(i/columns)*(top+height+bottom)
		out[i] = panel{d: d, X: scale{A: x + left, B: x + width - right}, Y: scale{A: y + top + height, B: y + top}}
		if title != "" {
			d.text("s strong", x+left, y+14, title)
		}
	}
	rows := (len(titles) + columns - 1) / columns
	d.H = float64(rows) * (top + height + bottom)
	return out
}

// grid draws the lines and labels of both axes, and what they mean.
func (p *panel) grid(xs []float64, x func(float64) string, ys []float64, y func(float64) string, xTitle string) {
	for _, v := range ys {
		at := p.Y.at(v)
		p.d.line("grid", p.X.A, at, p.X.B, at)
		p.d.text("e tick", p.X.A-6, at+4, y(v))
	}
	p.d.line("axis", p.X.A, p.Y.A, p.X.B, p.Y.A)
	end := math.Inf(-1)
	for _, v := range xs {
		at, label := p.X.at(v), x(v)
		p.d.line("axis", at, p.Y.A, at, p.Y.A+4)
		if half := textWidth(label) / 2; at-half > end+4 {
			p.d.text("m tick", at, p.Y.A+17, label)
			end = at + half
		}
	}
	p.d.text("m tick soft", (p.X.A+p.X.B)/2, p.Y.A+33, xTitle)
}

// textWidth is an estimate of a tick label's pixels.
func textWidth(s string) float64 { return 6.8 * float64(len([]rune(s))) }

func floats(ints []int) []float64 {
	out := make([]float64, len(ints))
	for i, n := range ints {
		out[i] = float64(n)
	}
	return out
}

func integer(v float64) string { return strconv.Itoa(int(v)) }

// lane is one row of a horizontal picture: a name and a value above, the mark below.
const laneHeight = 46

func (d *drawing) lane(i int, name, value string) (y float64) {
	top := float64(i * laneHeight)
	d.text("s", 0, top+14, name)
	d.text("e num", d.W, top+14, value)
	return top + 31
}

// laneAxis closes a picture of n lanes with its axis.
func (d *drawing) laneAxis(n int, x *scale, format func(float64) string, title string) {
	y := float64(n*laneHeight) + 6
	count := 9
	if d.narrow() {
		count = 4
	}
	d.line("axis", x.A, y, x.B, y)
	end := math.Inf(-1)
	for _, v := range x.ticks(count) {
		at, label := x.at(v), format(v)
		half := textWidth(label) / 2
		d.line("axis", at, y, at, y+4)
		if at = min(max(at, half), d.W-half); at-half > end+4 {
			d.text("m tick", at, y+17, label)
			end = at + half
		}
	}
	d.text("m tick soft", d.W/2, y+33, title)
	d.H = y + 40
}
