package report

import (
	"math"
	"strconv"
)

// drawing is a picture as a list of shapes. The template writes them, so that
// all escaping is the template's; colours are the style sheet's.
type drawing struct {
	W, H   float64
	Shapes []shape
}

// shape is one SVG element; Kind says which fields count.
type shape struct {
	Kind, Class  string
	X, Y, X2, Y2 num // of a rect, the second pair is its size
	R            num
	Path         string
	Text, Hint   string // Hint is shown on hover
}

// num prints with the one decimal that a pixel is worth.
type num float64

func (n num) String() string {
	s := strconv.FormatFloat(float64(n), 'f', 1, 64)
	if s[len(s)-2:] == ".0" {
		s = s[:len(s)-2]
	}
	if s == "-0" {
		return "0"
	}
	return s
}

func (d *drawing) add(s shape) { d.Shapes = append(d.Shapes, s) }

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.add(shape{Kind: "line", Class: class, X: num(x1), Y: num(y1), X2: num(x2), Y2: num(y2)})
}

func (d *drawing) rect(class string, x, y, w, h float64, hint string) {
	d.add(shape{Kind: "rect", Class: class, X: num(x), Y: num(y), X2: num(w), Y2: num(h), Hint: hint})
}

func (d *drawing) dot(class string, x, y, r float64, hint string) {
	d.add(shape{Kind: "circle", Class: class, X: num(x), Y: num(y), R: num(r), Hint: hint})
}

// text is anchored by class: "s", "m" or "e".
func (d *drawing) text(class string, x, y float64, s string) {
	d.add(shape{Kind: "text", Class: class, X: num(x), Y: num(y), Text: s})
}

func (d *drawing) path(class, path, hint string) {
	d.add(shape{Kind: "path", Class: class, Path: path, Hint: hint})
}

// diamond marks a ceiling.
func (d *drawing) diamond(x, y float64, hint string) {
	p := func(dx, dy float64) string { return num(x+dx).String() + " " + num(y+dy).String() }
	d.path("ceiling", "M"+p(0, -6)+"L"+p(5, 0)+"L"+p(0, 6)+"L"+p(-5, 0)+"Z", hint)
}

// cross marks a control.
func (d *drawing) cross(class string, x, y float64, hint string) {
	p := func(dx, dy float64) string { return num(x+dx).String() + " " + num(y+dy).String() }
	d.path(class, "M"+p(-3.5, -3.5)+"L"+p(3.5, 3.5)+"M"+p(-3.5, 3.5)+"L"+p(3.5, -3.5), hint)
}

// polyline joins points; level first moves along x, as a distribution does.
func (d *drawing) polyline(class string, xs, ys []float64, level bool) {
	path := make([]byte, 0, 12*len(xs))
	for i := range xs {
		switch {
		case i == 0:
			path = append(path, 'M')
		case level:
			path = append(append(append(path, 'H'), num(xs[i]).String()...), 'V')
			path = append(path, num(ys[i]).String()...)
			continue
		default:
			path = append(path, 'L')
		}
		path = append(append(append(path, num(xs[i]).String()...), ' '), num(ys[i]).String()...)
	}
	d.path(class, string(path), "")
}

// scale maps values to pixels.
type scale struct {
	Lo, Hi float64 // values
	A, B   float64 // pixels
	Log    bool
}

func (s *scale) at(v float64) float64 {
	lo, hi := s.Lo, s.Hi
	if s.Log {
		lo, hi, v = math.Log(lo), math.Log(hi), math.Log(v)
	}
	return s.A + (v-lo)/(hi-lo)*(s.B-s.A)
}

// clamp is at, kept inside.
func (s *scale) clamp(v float64) float64 { return s.at(min(max(v, s.Lo), s.Hi)) }

// span covers values with some air, in steps that read well.
func span(values []float64, air float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if known(v) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	if lo > hi {
		return 0, 1
	}
	room := air * (hi - lo)
	if hi-lo < 1e-3*math.Abs(hi) || hi == lo {
		room = max(0.01*math.Abs(hi), 1e-9)
	}
	return lo - room, hi + room
}

// leastTicks is the fewest labels by which an axis can be read.
const leastTicks = 3

// ticks are round values inside the scale, about n of them, and no fewer than
// leastTicks where the scale is linear.
func (s *scale) ticks(n int) []float64 {
	if s.Log {
		return s.logTicks(n)
	}
	raw := (s.Hi - s.Lo) / float64(max(n, 1))
	unit := math.Pow(10, math.Floor(math.Log10(raw)))
	steps := []float64{0.5, 1, 2, 5, 10}
	i := 1
	for i < len(steps)-1 && steps[i]*unit < raw {
		i++
	}
	ticks := s.multiples(steps[i] * unit)
	if len(ticks) < leastTicks { // the next finer step is below raw, so it has enough
		ticks = s.multiples(steps[i-1] * unit)
	}
	return ticks
}

// multiples of a step inside the scale.
func (s *scale) multiples(step float64) []float64 {
	var ticks []float64
	for k := math.Ceil(s.Lo/step - 1e-9); k*step <= s.Hi+1e-9*step; k++ {
		ticks = append(ticks, k*step)
	}
	return ticks
}

func (s *scale) logTicks(n int) []float64 {
	for _, ms := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		var ticks []float64
		for e := math.Floor(math.Log10(s.Lo)); e <= math.Ceil(math.Log10(s.Hi)); e++ {
			for _, m := range ms {
				if v := m * math.Pow(10, e); v >= s.Lo*(1-1e-9) && v <= s.Hi*(1+1e-9) {
					ticks = append(ticks, v)
				}
			}
		}
		if len(ticks) <= n || len(ms) == 1 {
			return ticks
		}
	}
	return nil
}

// intTicks are some of 1…n, the last among them.
func intTicks(n, most int) []int {
	step := 1
	for n/step > most {
		step *= 2
	}
	var ticks []int
	for v := n; v >= 1; v -= step {
		ticks = append([]int{v}, ticks...)
	}
	return ticks
}
