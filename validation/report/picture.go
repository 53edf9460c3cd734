package report

import "bytes"

// Picture is the figure of the ratios as a file of its own, to be shown where a
// page cannot be: in a README, or a chat. It has its own ground and follows the
// reader's theme. Nil, if there is none to show.
func Picture(v *View) ([]byte, error) {
	f := ratios(v)
	if f == nil {
		return nil, nil
	}
	const edge, top, legend = 24, 76, 24
	head := &drawing{}
	head.text("s title", 0, 16, "Does batching pay? "+v.headline().Text)
	head.text("s soft", 0, 38, v.Model)
	head.text("s soft", 0, 56, v.Machine)
	parts := []part{{edge, edge, head}, {edge, edge + top + legend, f.Wide}}
	x := 0.0
	for _, k := range f.Legend {
		parts = append(parts, part{edge + num(x), edge + top - 6, k.Mark})
		head.text("s tick", x+k.Mark.W+6, top+5, k.Text)
		x += k.Mark.W + 24 + textWidth(k.Text)
	}
	var out bytes.Buffer
	err := page.ExecuteTemplate(&out, "picture", struct {
		W, H  num
		Label string
		Parts []part
	}{wideWidth + 2*edge, num(f.Wide.H) + top + legend + 2*edge - 10, f.Label, parts})
	return out.Bytes(), err
}

// part is a drawing at its place.
type part struct {
	X, Y num
	*drawing
}
