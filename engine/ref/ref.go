// Package ref is the oracle: a backend that is slow and obvious.
//
// Every op is its formula, written out over plain [outputs][inputs] weights
// and computed in float64; what is stored (activations, keys and values,
// recurrent state) is rounded once, to its storage type. Sums run in the order
// of their index, so that a result never depends on the batch or on the
// number of processors.
//
// Memory that nothing has written reads as NaN, so that a model which uses it
// cannot go unnoticed. Unlike the other backends, this one allocates as it
// runs. It is not meant to be measured.
package ref

import (
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/batchproof/batchproof/engine/backend"
)

// Backend computes in float64. The zero value is not ready, use [New].
type Backend struct {
	step    *backend.Step
	places  []place // of each token of the step
	sampler backend.Sampler
}

// place says where a token stands.
type place struct {
	row      *backend.Row
	position int
}

var _ backend.Backend = (*Backend)(nil)

// New returns the oracle.
func New() *Backend { return &Backend{} }

// Name is "ref".
func (b *Backend) Name() string { return "ref" }

// Describe says how the backend computes.
func (b *Backend) Describe() string { return "ref: float64 oracle" }

// Close has nothing to free.
func (b *Backend) Close() error { return nil }

// matrix is a linear weight; the rows of the parts stand one after another.
type matrix struct {
	form   backend.Form
	dtype  backend.DType
	rows   int // of all parts
	inputs int
	w      []float32 // [rows][inputs]
}

func (m *matrix) Inputs() int         { return m.inputs }
func (m *matrix) Bytes() int          { return len(m.w) * m.dtype.Size() }
func (m *matrix) row(i int) []float32 { return m.w[i*m.inputs:][:m.inputs] }

func (m *matrix) Outputs() int {
	if m.form == backend.GateUp {
		return m.rows / 2
	}
	return m.rows
}

// NewMatrix copies the parts into one float32 matrix.
func (b *Backend) NewMatrix(form backend.Form, parts ...backend.Source) (backend.Matrix, error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("ref: a matrix of no parts")
	}
	m := &matrix{form: form, dtype: backend.BF16}
	for _, p := range parts {
		shape := p.Shape()
		if len(shape) != 2 || shape[0] < 1 || shape[1] < 1 {
			return nil, fmt.Errorf("ref: %s: shape %v, want [outputs, inputs]", p.Name(), shape)
		}
		if m.inputs != 0 && shape[1] != m.inputs {
			return nil, fmt.Errorf("ref: %s: %d inputs, but %s has %d", p.Name(), shape[1], parts[0].Name(), m.inputs)
		}
		m.inputs = shape[1]
		m.rows += shape[0]
		if p.DType() != backend.BF16 {
			m.dtype = backend.F32
		}
	}
	if form == backend.GateUp && (len(parts) != 2 || parts[0].Shape()[0] != parts[1].Shape()[0]) {
		return nil, fmt.Errorf("ref: %s: gate and up are not two parts of one shape", parts[0].Name())
	}
	m.w = make([]float32, m.rows*m.inputs)
	rest := m.w
	for _, p := range parts {
		n := p.Shape()[0] * m.inputs
		if err := p.ReadF32(rest[:n], 0); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	return m, nil
}

type vector []float32

func (v vector) Len() int { return len(v) }

// NewVector copies a parameter, whatever its shape.
func (b *Backend) NewVector(src backend.Source) (backend.Vector, error) {
	n := 1
	for _, d := range src.Shape() {
		n *= d
	}
	v := make(vector, n)
	return v, src.ReadF32(v, 0)
}

type buffer struct {
	tokens, width int
	x             []float32
}

func (b *buffer) Tokens() int         { return b.tokens }
func (b *buffer) Width() int          { return b.width }
func (b *buffer) row(t int) []float32 { return b.x[t*b.width:][:b.width] }

// NewBuffer makes a buffer full of NaN.
func (b *Backend) NewBuffer(tokens, width int) (backend.Buffer, error) {
	if tokens < 1 || width < 1 {
		return nil, fmt.Errorf("ref: a buffer of %d × %d", tokens, width)
	}
	return &buffer{tokens: tokens, width: width, x: nans(tokens * width)}, nil
}

func nans(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// Begin keeps the layout for the ops that follow.
func (b *Backend) Begin(step *backend.Step) {
	b.step, b.places = step, b.places[:0]
	for i := range step.Rows {
		r := &step.Rows[i]
		check(r.First == len(b.places) && r.Count > 0 && r.Start >= 0, "row %d of %d tokens begins at token %d, want %d", i, r.Count, r.First, len(b.places))
		for j := range r.Count {
			b.places = append(b.places, place{r, r.Start + j})
		}
	}
	check(len(b.places) == len(step.Tokens), "rows cover %d of %d tokens", len(b.places), len(step.Tokens))
}

// Embed looks rows up.
func (b *Backend) Embed(dst backend.Buffer, table backend.Matrix) {
	d, m := dst.(*buffer), table.(*matrix)
	check(d.tokens >= len(b.step.Tokens) && d.width >= m.inputs, "embed into %d × %d", d.tokens, d.width)
	for t, id := range b.step.Tokens {
		copy(d.row(t), m.row(int(id)))
	}
}

// Gather copies tokens.
func (b *Backend) Gather(dst, src backend.Buffer, tokens []int32) {
	d, s := dst.(*buffer), src.(*buffer)
	check(d != s && d.width == s.width && d.tokens >= len(tokens), "gather %d tokens of width %d into %d × %d", len(tokens), s.width, d.tokens, d.width)
	for i, t := range tokens {
		copy(d.row(i), s.row(int(t)))
	}
}

// Sample draws tokens with the sampler that all backends share.
func (b *Backend) Sample(out []int32, logits backend.Buffer, params []backend.Sampling) error {
	check(len(out) == len(params), "%d tokens to sample, %d parameters", len(out), len(params))
	for i := range out {
		token, err := b.sampler.Sample(i, logits.(*buffer).row(i), params[i])
		if err != nil {
			return err
		}
		out[i] = token
	}
	return nil
}

// Read copies the first len(dst) values of a token.
func (b *Backend) Read(dst []float32, src backend.Buffer, token int) error {
	check(len(dst) <= src.Width(), "read %d of %d columns", len(dst), src.Width())
	copy(dst, src.(*buffer).row(token))
	return nil
}

// norm is x · rsqrt(mean(x²)+eps) · (offset+w). A nil norm
// widens to float64 only.
func norm(x []float32, n *backend.Norm) []float64 {
	y := make([]float64, len(x))
	if n == nil {
		for i, v := range x {
			y[i] = float64(v)
		}
		return y
	}
	w := n.Weight.(vector)
	check(len(w) == len(x), "a norm of %d over %d values", len(w), len(x))
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	scale := 1 / math.Sqrt(sum/float64(len(x))+float64(n.Eps))
	for i, v := range x {
		y[i] = float64(v) * scale * (float64(n.Offset) + float64(w[i]))
	}
	return y
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func silu(x float64) float64    { return x * sigmoid(x) }

// softplus is log(1+eˣ), without overflow.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

// parallel calls f(0) … f(n−1) on all processors. The calls must be
// independent of one another.
func parallel(n int, f func(i int)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() {
			for i := w; i < n; i += workers {
				f(i)
			}
		})
	}
	for i := 0; i < n; i += max(1, workers) {
		f(i)
	}
	wg.Wait()
}

// check panics on an argument that only a defect of the caller can produce.
func check(ok bool, format string, args ...any) {
	if !ok {
		panic("ref: " + fmt.Sprintf(format, args...))
	}
}
