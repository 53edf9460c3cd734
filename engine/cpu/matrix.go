package cpu

import (
	"fmt"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

const (
	panelOutputs = 32
	pairBytes    = panelOutputs * 2 * 2 // of bf16 weights; f32 take twice that
	packPairs    = 64                   // packed of one row after another, while their part of the panel is in L1
)

// matrix is a linear weight in panels of 32 outputs. A panel holds pair after
// pair of inputs; a pair of bf16 weights is [32 outputs][2 inputs], so that a
// shift yields the even weights of 16 outputs in float32, and a mask the odd
// ones; a pair of f32 weights is [2 inputs][32 outputs]. Outputs that are
// missing in the last panel, and the second half of the last pair, are zero.
//
// In the form GateUp, panel p holds outputs 16p to 16p+15 of the gate, and
// then the same of up, so that one worker has both at hand.
//
// Note: panels of 16 outputs would spread over many workers more evenly, but
// they make the kernel that reads two panels walk two streams.
type matrix struct {
	form    backend.Form
	dtype   backend.DType
	outputs int
	inputs  int
	pairs   int
	panels  int
	stride  int // bytes of a panel
	data    unsafe.Pointer
}

func (m *matrix) Outputs() int { return m.outputs }
func (m *matrix) Inputs() int  { return m.inputs }

func (m *matrix) Bytes() int {
	rows := m.outputs
	if m.form == backend.GateUp {
		rows *= 2
	}
	return rows * m.inputs * m.dtype.Size()
}

// panel is where a panel begins, from a pair on.
func (m *matrix) panel(p, pair int) unsafe.Pointer {
	return unsafe.Add(m.data, p*m.stride+pair*(m.stride/m.pairs))
}

// width is the number of outputs that a panel yields.
func (m *matrix) width() int {
	if m.form == backend.GateUp {
		return panelOutputs / 2
	}
	return panelOutputs
}

// NewMatrix packs the parts straight into their place.
func (b *Backend) NewMatrix(form backend.Form, parts ...backend.Source) (backend.Matrix, error) {
	s, err := backend.ShapeOf(form, parts)
	if err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	m := &matrix{form: form, dtype: s.DType, outputs: s.Outputs, inputs: s.Inputs}
	m.pairs = (m.inputs + 1) / 2
	m.panels = (m.outputs + m.width() - 1) / m.width()
	m.stride = m.pairs * pairBytes * m.dtype.Size() / 2
	if m.data, err = b.mem.alloc(m.panels * m.stride); err != nil {
		return nil, err
	}
	t := &packTask{pool: b.pool, m: m, parts: parts, errs: make([]error, b.pool.workers)}
	b.pool.run(t)
	for _, err := range t.errs {
		if err != nil {
			return nil, err
		}
	}
	return m, nil
}

// packTask packs a matrix. Each worker packs the panels that it will read, so
// that it is the first to touch their pages.
type packTask struct {
	pool  *pool
	m     *matrix
	parts []backend.Source
	errs  []error
}

func (t *packTask) work(worker int) {
	lo, hi := t.pool.part(worker, t.m.panels)
	p := packer{m: t.m, parts: t.parts}
	for panel := lo; panel < hi; panel++ {
		if t.errs[worker] = p.pack(panel); t.errs[worker] != nil {
			return
		}
	}
}

// packer packs panels, one at a time.
type packer struct {
	m     *matrix
	parts []backend.Source
	bf16  []uint16 // rows as they are in the checkpoint
	f32   []float32
}

func (p *packer) pack(panel int) error {
	m := p.m
	if m.form == backend.GateUp {
		first := panel * panelOutputs / 2
		n := min(panelOutputs/2, m.outputs-first)
		for half, part := range p.parts {
			if err := p.rows(panel, half*panelOutputs/2, part, first, n); err != nil {
				return err
			}
		}
		return nil
	}
	first, last := panel*panelOutputs, min((panel+1)*panelOutputs, m.outputs)
	begin := 0 // of the part
	for _, part := range p.parts {
		end := begin + part.Shape()[0]
		if lo, hi := max(first, begin), min(last, end); lo < hi {
			if err := p.rows(panel, lo-first, part, lo-begin, hi-lo); err != nil {
				return err
			}
		}
		begin = end
	}
	return nil
}

// rows puts n rows of a part, from row first on, into the lanes of a panel.
func (p *packer) rows(panel, lane int, part backend.Source, first, n int) error {
	m := p.m
	k := m.inputs
	if m.dtype == backend.F32 {
		if p.f32 == nil {
			p.f32 = make([]float32, panelOutputs*k)
		}
		if err := part.ReadF32(p.f32[:n*k], first*k); err != nil {
			return err
		}
		dst := unsafe.Slice((*float32)(m.panel(panel, 0)), m.pairs*2*panelOutputs)
		for begin := 0; begin < k; begin += 2 * packPairs {
			end := min(begin+2*packPairs, k)
			for r := range n {
				for i, v := range p.f32[r*k:][begin:end] {
					dst[(begin+i)*panelOutputs+lane+r] = v
				}
			}
		}
		return nil
	}
	if p.bf16 == nil {
		p.bf16 = make([]uint16, panelOutputs*k)
	}
	if err := part.ReadBF16(p.bf16[:n*k], first*k); err != nil {
		return err
	}
	dst := unsafe.Slice((*uint32)(m.panel(panel, 0)), m.pairs*panelOutputs)
	for begin := 0; begin < k; begin += 2 * packPairs {
		end := min(begin+2*packPairs, k)
		for r := range n {
			row, o := p.bf16[r*k:][begin:end], begin/2*panelOutputs+lane+r
			for len(row) >= 2 {
				dst[o] = uint32(row[0]) | uint32(row[1])<<16
				row, o = row[2:], o+panelOutputs
			}
			if len(row) == 1 {
				dst[o] = uint32(row[0])
			}
		}
	}
	return nil
}

// embedTask reads rows out of the panels of a table.
type embedTask struct {
	b   *Backend
	dst *buffer
	m   *matrix
}

// Embed looks rows up.
func (b *Backend) Embed(dst backend.Buffer, table backend.Matrix) {
	t := &b.embed
	t.dst, t.m = dst.(*buffer), table.(*matrix)
	if t.m.form != backend.Stacked || t.dst.tokens < len(b.step.Tokens) || t.dst.width < t.m.inputs {
		panic(fmt.Sprintf("cpu: embed %d tokens of %d values into %d × %d", len(b.step.Tokens), t.m.inputs, t.dst.tokens, t.dst.width))
	}
	t.dst.inputs = 0
	b.pool.run(t)
}

func (t *embedTask) work(worker int) {
	tokens := t.b.step.Tokens
	lo, hi := t.b.pool.part(worker, len(tokens))
	for i := lo; i < hi; i++ {
		t.m.row(t.dst.row(i)[:t.m.inputs], int(tokens[i]))
	}
}

// row reads the weights of one output.
func (m *matrix) row(dst []float32, output int) {
	if output < 0 || output >= m.outputs {
		panic(fmt.Sprintf("cpu: row %d of a table of %d", output, m.outputs))
	}
	lane := output % panelOutputs
	p := m.panel(output/panelOutputs, 0)
	if m.dtype == backend.F32 {
		w := unsafe.Slice((*float32)(p), m.pairs*2*panelOutputs)
		for i := range dst {
			dst[i] = w[i*panelOutputs+lane]
		}
		return
	}
	w := unsafe.Slice((*uint32)(p), m.pairs*panelOutputs)
	for i := range dst {
		pair := w[i/2*panelOutputs+lane]
		if i%2 == 0 {
			dst[i] = backend.DecodeBF16(uint16(pair))
		} else {
			dst[i] = backend.DecodeBF16(uint16(pair >> 16))
		}
	}
}
