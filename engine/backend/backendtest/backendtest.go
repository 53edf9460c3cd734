// Package backendtest is the conformance suite of all backends.
//
// [Run] holds every op to formulas of its own, written over whole sequences
// in float64 without steps, KV blocks or slots, and then to the contract of
// package backend: bit-identical rows in any batch, untouched memory beside
// what an op writes, state that belongs to one sequence. Outputs, unused KV
// blocks and unused slots are poisoned first.
//
// It knows no backend but the one it is given, and times nothing.
//
// Inputs are random, from a fixed seed; BATCHPROOF_SEED=n draws others.
package backendtest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// Options say what a backend promises less than the contract's best. The zero
// value is the strictest.
type Options struct {
	Tolerance          float64 // relative to the size of the terms of a result; default 1e-5
	LinearTolerance    float64 // of Linear; default Tolerance, or PromptTolerance
	AttentionTolerance float64 // of Attention over a bf16 cache; default Tolerance, or PromptTolerance
	PromptTolerance    float64 // of rows that are part of a prompt; default Tolerance
	DeltaTolerance     float64 // of prompt rows in the gated delta rule; default PromptTolerance
	DeltaBlock         int     // prompt chunks of its multiples yield the same bits of the gated delta rule, others are within the tolerance; default 1
	Taps               int     // of the longest convolution before the gated delta rule; default 8
	Allocates          bool    // ops allocate on the Go heap
	Stride             int     // take every n-th case of each sweep, for slow backends; default 1
}

// Run tests that the backend keeps the contract. Each test opens a backend of
// its own and closes it.
func Run(t *testing.T, open func(t testing.TB) backend.Backend) {
	RunWith(t, open, Options{})
}

// RunWith is Run for a backend that promises less.
func RunWith(t *testing.T, open func(t testing.TB) backend.Backend, opt Options) {
	if opt.Tolerance == 0 {
		opt.Tolerance = 1e-5
	}
	if opt.PromptTolerance == 0 {
		opt.PromptTolerance = opt.Tolerance
	}
	if opt.DeltaTolerance == 0 {
		opt.DeltaTolerance = opt.PromptTolerance
	}
	opt.DeltaBlock = max(opt.DeltaBlock, 1)
	if opt.Taps == 0 {
		opt.Taps = 8
	}
	if opt.Stride == 0 {
		opt.Stride = 1
	}
	opt.Stride *= slowdown
	seed := uint64(1)
	if s := os.Getenv("BATCHPROOF_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err, "BATCHPROOF_SEED")
	}
	t.Logf("inputs drawn with BATCHPROOF_SEED=%d", seed)
	for _, test := range []struct {
		name string
		run  func(h *harness)
	}{
		{"Describe", testDescribe},
		{"Load", testLoad},
		{"Embed", testEmbed},
		{"Gather", testGather},
		{"Read", testRead},
		{"Linear", testLinear},
		{"LinearEdges", testLinearEdges},
		{"LinearInvariance", testLinearInvariance},
		{"Next", testNext},
		{"Attention", testAttention},
		{"AttentionInvariance", testAttentionInvariance},
		{"GatedDelta", testGatedDelta},
		{"GatedDeltaInvariance", testGatedDeltaInvariance},
		{"GatedDeltaReset", testGatedDeltaReset},
		{"SampleGreedy", testSampleGreedy},
		{"SampleDistribution", testSampleDistribution},
		{"SampleNaN", testSampleNaN},
		{"Allocations", testAllocations},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := fnv.New64()
			name.Write([]byte(test.name))
			h := &harness{T: t, b: open(t), rng: rand.New(rand.NewPCG(seed, name.Sum64())), opt: opt}
			t.Cleanup(func() { require.NoError(t, h.b.Close(), "close") })
			test.run(h)
		})
	}
}

// harness is one test with its backend.
type harness struct {
	*testing.T
	b   backend.Backend
	rng *rand.Rand
	opt Options
}

// sweep calls f with the numbers from first to last, or a share of them, but
// at least one.
func (h *harness) sweep(first, last int, f func(i int)) {
	for i := first + h.rng.IntN(min(h.opt.Stride, last-first+1)); i <= last; i += h.opt.Stride {
		f(i)
	}
}

// tolerance is what an op promises for rows of prompts and for others, given what
// it promises for all of them, if anything.
func (h *harness) tolerance(all float64) func(prompt bool) float64 {
	return func(prompt bool) float64 {
		switch {
		case all > 0:
			return all
		case prompt:
			return h.opt.PromptTolerance
		}
		return h.opt.Tolerance
	}
}

func (h *harness) linearTolerance(prompt bool) float64 {
	return h.tolerance(h.opt.LinearTolerance)(prompt)
}

// normal draws n numbers of the given size.
func (h *harness) normal(n int, size float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(h.rng.NormFloat64() * size)
	}
	return x
}

func (h *harness) matrixOf(rows, width int, size float64) [][]float32 {
	x := make([][]float32, rows)
	for i := range x {
		x[i] = h.normal(width, size)
	}
	return x
}

// pick draws one of its arguments.
func pick[T any](h *harness, of ...T) T { return of[h.rng.IntN(len(of))] }

// guard is what stands in memory that an op must not write.
const guard = 12345.5

func filled(n int, v float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = v
	}
	return x
}

var nan = float32(math.NaN())

// tensor is a weight in memory.
type tensor struct {
	name  string
	shape []int
	dtype backend.DType
	x     []float32
	err   error // of reading
}

func (s *tensor) Name() string         { return s.name }
func (s *tensor) Shape() []int         { return s.shape }
func (s *tensor) DType() backend.DType { return s.dtype }

func (s *tensor) ReadF32(dst []float32, offset int) error {
	if s.err != nil {
		return s.err
	}
	copy(dst, s.x[offset:offset+len(dst)])
	return nil
}

func (s *tensor) ReadBF16(dst []uint16, offset int) error {
	if s.err != nil {
		return s.err
	}
	for i := range dst {
		dst[i] = uint16(math.Float32bits(s.x[offset+i]) >> 16)
	}
	return nil
}

// weight draws a tensor whose values its type holds exactly.
func (h *harness) weight(dtype backend.DType, size float64, shape ...int) *tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	s := &tensor{name: "weight", shape: shape, dtype: dtype, x: h.normal(n, size)}
	if dtype == backend.BF16 {
		for i, v := range s.x {
			s.x[i] = roundBF16(v)
		}
	}
	return s
}

func (h *harness) matrix(form backend.Form, parts ...backend.Source) backend.Matrix {
	h.Helper()
	m, err := h.b.NewMatrix(form, parts...)
	require.NoError(h, err)
	return m
}

func (h *harness) vector(x []float32) backend.Vector {
	h.Helper()
	v, err := h.b.NewVector(&tensor{name: "vector", shape: []int{len(x)}, x: x})
	require.NoError(h, err)
	require.Equal(h, len(x), v.Len())
	return v
}

func (h *harness) buffer(tokens, width int) backend.Buffer {
	h.Helper()
	b, err := h.b.NewBuffer(tokens, width)
	require.NoError(h, err)
	require.Equal(h, []int{tokens, width}, []int{b.Tokens(), b.Width()})
	return b
}

// table is a matrix of the given rows. Embed is the one way to bring values
// into a buffer, so tests write through it.
func (h *harness) table(rows [][]float32) backend.Matrix {
	h.Helper()
	s := &tensor{name: "table", shape: []int{len(rows), len(rows[0])}}
	for _, r := range rows {
		s.x = append(s.x, r...)
	}
	return h.matrix(backend.Stacked, s)
}

// begin lays out n tokens in rows of both kinds, for ops that look at no state.
// The tokens are 0 … n−1.
func (h *harness) begin(n int) *backend.Step {
	step := &backend.Step{}
	for len(step.Tokens) < n {
		r := backend.Row{First: len(step.Tokens), Count: 1, Slot: len(step.Rows)}
		if r.Prompt = h.rng.IntN(2) == 0; r.Prompt {
			r.Count += h.rng.IntN(n - r.First)
		}
		for i := range r.Count {
			step.Tokens = append(step.Tokens, int32(r.First+i))
			r.Blocks = append(r.Blocks, int32(i))
		}
		step.Rows = append(step.Rows, r)
	}
	h.b.Begin(step)
	return step
}

// fill writes rows into the head of a buffer as wide as they are.
func (h *harness) fill(dst backend.Buffer, rows [][]float32) {
	h.Helper()
	h.begin(len(rows))
	h.b.Embed(dst, h.table(rows))
}

// put makes a buffer that holds rows.
func (h *harness) put(rows [][]float32) backend.Buffer {
	h.Helper()
	b := h.buffer(len(rows), len(rows[0]))
	h.fill(b, rows)
	return b
}

// framed surrounds rows with guard columns and two guard rows.
func framed(rows [][]float32, guard float32) [][]float32 {
	const columns, below = 3, 2
	out := make([][]float32, 0, len(rows)+below)
	for _, r := range rows {
		out = append(out, append(append([]float32(nil), r...), filled(columns, guard)...))
	}
	for range below {
		out = append(out, filled(len(rows[0])+columns, guard))
	}
	return out
}

// unframed reads what framed surrounded, and checks that the frame is intact.
func (h *harness) unframed(b backend.Buffer, tokens, width int) [][]float32 {
	h.Helper()
	out := make([][]float32, tokens)
	for i, row := range h.read(b, b.Tokens()) {
		inside := 0
		if i < tokens {
			out[i], inside = row[:width], width
		}
		for j, v := range row[inside:] {
			if v != guard {
				h.Fatalf("token %d, column %d lies outside of the result, but was written: %v", i, inside+j, v)
			}
		}
	}
	return out
}

func (h *harness) read(b backend.Buffer, tokens int) [][]float32 {
	h.Helper()
	out := make([][]float32, tokens)
	for i := range out {
		out[i] = make([]float32, b.Width())
		require.NoError(h, h.b.Read(out[i], b, i))
	}
	return out
}

// near demands |got−want| ≤ tol·(|want|+size) for each value, NaN never
// passing. What is as good as zero may come out as another such number: an
// exponential may saturate near the end of float32's range.
func (h *harness) near(what string, got []float32, want ideal, tol float64) {
	h.Helper()
	const nothing = 1e-30
	for i, w := range want.y {
		if d := math.Abs(float64(got[i]) - w); !(d <= tol*(math.Abs(w)+want.size[i])+nothing) {
			h.Fatalf("%s: value %d of %d is %v, want %v: off by %.2g of the size of its terms, %.2g is allowed",
				what, i, len(want.y), got[i], w, d/(math.Abs(w)+want.size[i]), tol)
		}
	}
}

// same demands equal bits.
func (h *harness) same(what string, got, want []float32) {
	h.Helper()
	require.Equal(h, len(want), len(got))
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			h.Fatalf("%s: value %d is %v (%08x), want the bits of %v (%08x)", what, i,
				got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func testDescribe(h *harness) {
	require.Contains(h, []string{"ref", "cpu", "cuda"}, h.b.Name())
	require.NotEmpty(h, h.b.Describe())
}
