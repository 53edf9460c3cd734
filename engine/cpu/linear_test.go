package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// tensor is a weight in memory.
type tensor struct {
	name  string
	shape []int
	dtype backend.DType
	x     []float32
}

func (t *tensor) Name() string         { return t.name }
func (t *tensor) Shape() []int         { return t.shape }
func (t *tensor) DType() backend.DType { return t.dtype }

func (t *tensor) ReadF32(dst []float32, offset int) error {
	if len(dst) != copy(dst, t.x[offset:]) {
		return fmt.Errorf("%s: read past the end", t.name)
	}
	return nil
}

func (t *tensor) ReadBF16(dst []uint16, offset int) error {
	if t.dtype != backend.BF16 {
		return fmt.Errorf("%s: not bf16", t.name)
	}
	backend.RoundBF16(dst, t.x[offset:][:len(dst)])
	return nil
}

func randomTensor(rng *rand.Rand, dtype backend.DType, shape ...int) *tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	t := &tensor{name: fmt.Sprint("w", shape), shape: shape, dtype: dtype, x: randomFloats(rng, n)}
	if dtype == backend.BF16 {
		for i, v := range t.x {
			t.x[i] = backend.DecodeBF16(backend.EncodeBF16(v))
		}
	}
	return t
}

func randomFloats(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 2*rng.Float32() - 1
	}
	return x
}

func newBackend(t testing.TB, opt Options) *Backend {
	b, err := New(opt)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func newBuffer(t testing.TB, b *Backend, tokens, width int) *buffer {
	buf, err := b.NewBuffer(tokens, width)
	require.NoError(t, err)
	return buf.(*buffer)
}

func newMatrix(t testing.TB, b *Backend, form backend.Form, parts ...backend.Source) *matrix {
	m, err := b.NewMatrix(form, parts...)
	require.NoError(t, err)
	return m.(*matrix)
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

var nan = float32(math.NaN())

// settings are every instruction set in every precision that this machine has,
// plain Go first.
func settings() (list []Options) {
	for p := F32; p <= BF16; p++ {
		for _, isa := range Supported() {
			if _, err := p.resolve(isa); err == nil {
				list = append(list, Options{ISA: isa, Precision: p})
			}
		}
	}
	return list
}

// products are what the results of a backend depend on: in bf16, AMX sums them in an
// order of its own.
type products struct {
	precision Precision
	tiled     bool
}

func (b *Backend) products() products { return products{b.precision, b.isa == AMX} }

func forEachSetting(t *testing.T, f func(t *testing.T, opt Options)) {
	for _, opt := range settings() {
		t.Run(fmt.Sprintf("%v-%v", opt.ISA, opt.Precision), func(t *testing.T) { f(t, opt) })
	}
}

// linearCase is a product and its oracle.
type linearCase struct {
	dtype   backend.DType
	form    backend.Form
	epi     backend.Epilogue
	norm    bool
	outputs int
	inputs  int
	tokens  int
}

func (c linearCase) String() string {
	return fmt.Sprintf("%v form=%d epilogue=%d norm=%v %d→%d tokens=%d", c.dtype, c.form, c.epi, c.norm, c.inputs, c.outputs, c.tokens)
}

// check computes c on b, in buffers that are wider than needed and poisoned.
func (c linearCase) check(t testing.TB, b *Backend, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	parts := []*tensor{randomTensor(rng, c.dtype, c.outputs, c.inputs)}
	if c.form == backend.GateUp {
		parts = append(parts, randomTensor(rng, c.dtype, c.outputs, c.inputs))
	} else if c.outputs > 1 { // in two parts that meet inside a panel
		cut := 1 + rng.IntN(c.outputs-1)
		whole := parts[0]
		parts = []*tensor{
			{name: "a", shape: []int{cut, c.inputs}, dtype: c.dtype, x: whole.x[:cut*c.inputs]},
			{name: "b", shape: []int{c.outputs - cut, c.inputs}, dtype: c.dtype, x: whole.x[cut*c.inputs:]},
		}
	}
	var sources []backend.Source
	var rows [][]float32
	for _, p := range parts {
		sources = append(sources, p)
		for o := range p.shape[0] {
			rows = append(rows, p.x[o*c.inputs:][:c.inputs])
		}
	}
	m := newMatrix(t, b, c.form, sources...)
	require.Equal(t, c.outputs, m.Outputs())
	require.Equal(t, c.inputs, m.Inputs())

	src, dst := newBuffer(t, b, c.tokens+1, c.inputs+3), newBuffer(t, b, c.tokens+1, c.outputs+5)
	fill(src.x, nan)
	fill(dst.x, nan)
	fill(b.packed, nan)
	for w := range b.tiles {
		fill(b.packedRows[w][:min(len(b.packedRows[w]), 2*c.tokens*(c.inputs+1))], nan)
		fill(b.tiles[w][:min(len(b.tiles[w]), (m.panels*c.tokens+1)*panelOutputs)], nan)
	}
	opt := backend.LinearOptions{Epilogue: c.epi}
	want := make([][]float64, c.tokens)
	rounded, largest := b.precision == BF16 && c.dtype == backend.BF16, 0.0
	var weight []float32
	if c.norm {
		w := randomTensor(rng, backend.F32, c.inputs)
		v, err := b.NewVector(w)
		require.NoError(t, err)
		opt.Norm = &backend.Norm{Weight: v, Eps: 1e-5, Offset: float32(rng.IntN(2))}
		weight = w.x
	}
	for tok := range c.tokens {
		x := randomFloats(rng, c.inputs)
		copy(src.row(tok), x)
		residual := randomFloats(rng, c.outputs)
		copy(dst.row(tok), residual)
		y := make([]float64, c.inputs)
		var sum float64
		for i, v := range x {
			y[i] = float64(v)
			sum += y[i] * y[i]
		}
		if c.norm {
			inv := 1 / math.Sqrt(sum/float64(c.inputs)+float64(opt.Norm.Eps))
			for i := range y {
				y[i] *= inv * (float64(weight[i]) + float64(opt.Norm.Offset))
			}
		}
		if rounded {
			for i, v := range y {
				y[i] = float64(backend.DecodeBF16(backend.EncodeBF16(float32(v))))
				largest = max(largest, math.Abs(y[i]))
			}
		}
		product := func(o int) (s float64) {
			for i, v := range rows[o] {
				s += float64(v) * y[i]
			}
			return s
		}
		want[tok] = make([]float64, c.outputs)
		for o := range want[tok] {
			switch c.epi {
			case backend.Store:
				want[tok][o] = product(o)
			case backend.Add:
				want[tok][o] = float64(residual[o]) + product(o)
			case backend.SwiGLU:
				g := product(o)
				want[tok][o] = g / (1 + math.Exp(-g)) * product(c.outputs+o)
			}
		}
	}
	b.Linear(dst, src, c.tokens, m, opt)
	tolerance := 1e-5 * math.Sqrt(float64(c.inputs))
	if c.norm {
		tolerance *= 3
		if rounded { // a few of the inputs next to a rounding boundary fall to the other side
			tolerance += 4 * largest * 0x1p-8
		}
	}
	for tok := range c.tokens {
		for o, w := range want[tok] {
			if got := float64(dst.row(tok)[o]); !(math.Abs(got-w) <= tolerance*(1+math.Abs(w))) {
				t.Fatalf("%v seed %d: token %d output %d is %v, want %v", c, seed, tok, o, got, w)
			}
		}
	}
	for i, v := range dst.x {
		if i/dst.width < c.tokens && i%dst.width < c.outputs {
			continue
		}
		if v == v {
			t.Fatalf("%v seed %d: wrote past the result, at token %d column %d", c, seed, i/dst.width, i%dst.width)
		}
	}
	for w := range b.tiles {
		if past := m.panels * c.tokens * panelOutputs; past < len(b.tiles[w]) && b.tiles[w][past] == b.tiles[w][past] {
			t.Fatalf("%v seed %d: worker %d had sums of more panels than there are", c, seed, w)
		}
	}
}

var allEpilogues = []struct {
	form backend.Form
	epi  backend.Epilogue
}{{backend.Stacked, backend.Store}, {backend.Stacked, backend.Add}, {backend.GateUp, backend.SwiGLU}}

// TestLinearTails meets every tail of outputs, inputs and tokens, with
// every type, form, epilogue and norm, against float64.
func TestLinearTails(t *testing.T) {
	forEachSetting(t, func(t *testing.T, opt Options) {
		isa := opt.ISA
		opt.Threads = 3
		b := newBackend(t, opt)
		block := b.kernels.blocking
		seed := uint64(0)
		run := func(outputs, inputs, tokens int) {
			seed++
			e := allEpilogues[seed%3]
			linearCase{
				dtype: backend.DType(seed / 3 % 2), form: e.form, epi: e.epi, norm: seed/6%2 == 0,
				outputs: outputs, inputs: inputs, tokens: tokens,
			}.check(t, b, seed)
		}
		for outputs := 1; outputs <= 40; outputs++ {
			stride := 1 + outputs%3
			if isa == Generic {
				stride *= 4 // it has no tails
			}
			for inputs := 1; inputs <= 70; inputs += stride {
				run(outputs, inputs, 1+(outputs+inputs)%20)
			}
		}
		for tokens := 1; tokens <= 30; tokens++ {
			for range 6 {
				run(33+tokens%7, 70, tokens)
			}
		}
		// Several blocks of inputs, several groups, the barrier, and two chunks of rows.
		for range 12 {
			run(70, 2*2*block.pairs+3, 29)
		}
		for range 6 { // inputs that the workers share
			run(33, 2*ownRowFloats/11+5, 12)
		}
		if isa == Generic { // what follows differs in the kernels alone
			return
		}
		for range 6 {
			run(40, 2*block.pairs+1, 100)
		}
		chunk := max(block.chunk, b.kernels.dotBlocking.chunk)
		for range 6 { // a whole chunk, and more panels for each worker than one call sums
			run(3*(callPanels+1)*panelOutputs, 6, chunk)
		}
		for range 3 { // every worker has several panels
			require.Greater(t, 4*(2*block.pairs+6)*block.chunk, block.shared)
			run(7*panelOutputs-20, 2*block.pairs+6, chunk+40)
		}
	})
}

// TestChunksAreWholeGroups: else a step of as many tokens as a chunk reads all weights twice.
func TestChunksAreWholeGroups(t *testing.T) {
	for _, isa := range Supported() {
		k := kernelsFor(isa)
		for _, cut := range []blocking{k.blocking, k.dotBlocking} {
			if cut.rows > 0 { // 0 where there are no dot kernels
				require.Zero(t, cut.chunk%cut.rows, "%v: groups of %d rows in a chunk of %d", isa, cut.rows, cut.chunk)
				require.GreaterOrEqual(t, cut.chunk, 256, "%v", isa)
			}
		}
	}
}

// TestLinearBatchInvariance proves that a token's result is the same bits
// alone and among others, with any number of workers, and in any instruction set.
func TestLinearBatchInvariance(t *testing.T) {
	const inputs, outputs, most = 2*512 + 6, 75, 40
	type key struct {
		dtype backend.DType
		products
		epi backend.Epilogue
	}
	alone := map[key][][]uint32{} // by token, from the first backend
	rng := rand.New(rand.NewPCG(7, 7))
	xs, residuals := randomFloats(rng, most*inputs), randomFloats(rng, most*outputs)
	weight := randomTensor(rng, backend.F32, inputs)
	weights := map[backend.DType][2]*tensor{}
	for _, d := range []backend.DType{backend.F32, backend.BF16} {
		weights[d] = [2]*tensor{randomTensor(rng, d, outputs, inputs), randomTensor(rng, d, outputs, inputs)}
	}
	for _, setting := range settings() {
		isa := setting.ISA
		for _, threads := range []int{1, 2, 5} {
			setting.Threads = threads
			b := newBackend(t, setting)
			v, err := b.NewVector(weight)
			require.NoError(t, err)
			src, dst := newBuffer(t, b, most, inputs), newBuffer(t, b, most, outputs)
			for d, w := range weights {
				for _, e := range allEpilogues {
					var m *matrix
					if e.form == backend.GateUp {
						m = newMatrix(t, b, e.form, w[0], w[1])
					} else {
						m = newMatrix(t, b, e.form, w[0])
					}
					opt := backend.LinearOptions{Epilogue: e.epi, Norm: &backend.Norm{Weight: v, Eps: 1e-6, Offset: 1}}
					k := key{d, b.products(), e.epi}
					if alone[k] == nil {
						for tok := range most {
							copy(src.x, xs[tok*inputs:][:inputs])
							copy(dst.x, residuals[tok*outputs:][:outputs])
							b.Linear(dst, src, 1, m, opt)
							alone[k] = append(alone[k], bits(dst.row(0)))
						}
					}
					for n := 1; n <= most; n++ {
						if isa == Generic && n%7 != 3 {
							continue // its kernel knows no number of rows
						}
						copy(src.x, xs)
						copy(dst.x, residuals)
						b.Linear(dst, src, n, m, opt)
						for tok := range n {
							require.Equal(t, alone[k][tok], bits(dst.row(tok)), "%+v %v epilogue=%d: token %d of %d", setting, d, e.epi, tok, n)
						}
					}
				}
			}
		}
	}
}

func bits(x []float32) []uint32 {
	u := make([]uint32, len(x))
	for i, v := range x {
		u[i] = math.Float32bits(v)
	}
	return u
}

// TestLinearAllocatesNothing covers both ways of packing.
func TestLinearAllocatesNothing(t *testing.T) {
	forEachSetting(t, func(t *testing.T, opt Options) {
		opt.Threads = 2
		b := newBackend(t, opt)
		rng := rand.New(rand.NewPCG(1, 1))
		w := randomTensor(rng, backend.BF16, 64, 1024)
		m, g := newMatrix(t, b, backend.Stacked, w), newMatrix(t, b, backend.GateUp, w, w)
		v, err := b.NewVector(randomTensor(rng, backend.F32, 1024))
		require.NoError(t, err)
		src, dst := newBuffer(t, b, 20, 1024), newBuffer(t, b, 20, 64)
		copy(src.x, randomFloats(rng, len(src.x)))
		norm := &backend.Norm{Weight: v, Eps: 1e-6}
		step := &backend.Step{Tokens: make([]int32, 20)}
		out, params := make([]int32, 20), make([]backend.Sampling, 20)
		for _, n := range []int{1, 8, 20} {
			require.Zero(t, testing.AllocsPerRun(3, func() {
				b.Begin(step)
				b.Linear(dst, src, n, m, backend.LinearOptions{Norm: norm})
				b.Linear(dst, src, n, m, backend.LinearOptions{Epilogue: backend.Add})
				b.Linear(dst, src, n, g, backend.LinearOptions{Norm: norm, Epilogue: backend.SwiGLU})
				if err := b.Sample(out[:n], dst, params[:n]); err != nil {
					panic(err)
				}
			}))
		}
	})
}

// TestMatrixRefusesBadShapes names the tensor.
func TestMatrixRefusesBadShapes(t *testing.T) {
	b := newBackend(t, Options{Threads: 1})
	a := &tensor{name: "a.weight", shape: []int{2, 4}, x: make([]float32, 8)}
	for _, c := range []struct {
		form  backend.Form
		parts []backend.Source
		want  string
	}{
		{backend.Stacked, nil, "no parts"},
		{backend.Stacked, []backend.Source{&tensor{name: "b.weight", shape: []int{8}}}, `b.weight: shape [8]`},
		{backend.Stacked, []backend.Source{a, &tensor{name: "b.weight", shape: []int{2, 3}}}, "b.weight: 3 inputs, but a.weight has 4"},
		{backend.GateUp, []backend.Source{a}, "gate and up"},
		{backend.GateUp, []backend.Source{a, &tensor{name: "b.weight", shape: []int{3, 4}}}, "gate and up"},
		{backend.Stacked, []backend.Source{&tensor{name: "short.weight", shape: []int{9, 9}}}, "short.weight: read past"},
	} {
		_, err := b.NewMatrix(c.form, c.parts...)
		require.ErrorContains(t, err, c.want)
	}
}

// TestMatrixBytes counts the weights, not the padding.
func TestMatrixBytes(t *testing.T) {
	b := newBackend(t, Options{Threads: 1})
	rng := rand.New(rand.NewPCG(1, 1))
	require.Equal(t, 3*5*2, newMatrix(t, b, backend.Stacked, randomTensor(rng, backend.BF16, 3, 5)).Bytes())
	f := randomTensor(rng, backend.F32, 3, 5)
	require.Equal(t, 2*3*5*4, newMatrix(t, b, backend.GateUp, f, f).Bytes())
}

// TestEmbedReadsPanels finds every row of a table in its panel.
func TestEmbedReadsPanels(t *testing.T) {
	b := newBackend(t, Options{Threads: runtime.GOMAXPROCS(0) + 1})
	rng := rand.New(rand.NewPCG(3, 3))
	for _, d := range []backend.DType{backend.F32, backend.BF16} {
		for _, inputs := range []int{1, 2, 7, 64} {
			w := randomTensor(rng, d, 70, inputs)
			m := newMatrix(t, b, backend.Stacked, w)
			dst := newBuffer(t, b, 71, inputs+1)
			step := &backend.Step{}
			for i := range 70 {
				step.Tokens = append(step.Tokens, int32((i*37)%70))
			}
			fill(dst.x, nan)
			b.Begin(step)
			b.Embed(dst, m)
			for i, tok := range step.Tokens {
				require.Equal(t, w.x[int(tok)*inputs:][:inputs], dst.row(i)[:inputs])
				require.True(t, dst.row(i)[inputs] != dst.row(i)[inputs])
			}
		}
	}
}
