package cuda

import (
	"errors"
	command "flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/kernels"
	"github.com/batchproof/batchproof/cuda/sim"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/ref"
	"github.com/batchproof/batchproof/engine/weights"
)

// A probe takes one group of kernels through the shapes at which they can go
// wrong, on a backend and on the oracle alike. It is small, because it runs
// once for each seeded bug; the conformance suite is the thorough test.
type probe struct {
	b   backend.Backend
	out [][]float32
	set weights.Set
	n   int
}

const probeSeed = 11

// values are drawn by a counter, so that two probes have the same.
func (p *probe) values(n int) []float32 {
	p.n++
	rng := rand.New(rand.NewPCG(probeSeed, uint64(p.n)))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

// source is a tensor in memory; uniform ones come from package weights.
type source struct {
	shape []int
	dtype backend.DType
	x     []float32
}

func (s *source) Name() string         { return "probe" }
func (s *source) Shape() []int         { return s.shape }
func (s *source) DType() backend.DType { return s.dtype }
func (s *source) ReadF32(dst []float32, offset int) error {
	copy(dst, s.x[offset:])
	return nil
}
func (s *source) ReadBF16(dst []uint16, offset int) error {
	backend.RoundBF16(dst, s.x[offset:offset+len(dst)])
	return nil
}

func (p *probe) source(dtype backend.DType, shape ...int) backend.Source {
	n := 1
	for _, d := range shape {
		n *= d
	}
	s := &source{shape: shape, dtype: dtype, x: p.values(n)}
	if dtype == backend.BF16 {
		for i, v := range s.x {
			s.x[i] = backend.DecodeBF16(backend.EncodeBF16(v))
		}
	}
	return s
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err) // probes recover
	}
	return v
}

func (p *probe) vector(n int) backend.Vector { return must(p.b.NewVector(p.source(backend.F32, n))) }

// buffer holds random rows, put there by Embed.
func (p *probe) buffer(tokens, width int) backend.Buffer {
	table := must(p.b.NewMatrix(backend.Stacked, p.source(backend.F32, tokens, width)))
	b := must(p.b.NewBuffer(tokens, width))
	p.begin(tokens)
	p.b.Embed(b, table)
	return b
}

// begin starts a step of rows of one token; token i is number i.
func (p *probe) begin(n int) {
	step := &backend.Step{}
	for i := range n {
		step.Tokens = append(step.Tokens, int32(i))
		step.Rows = append(step.Rows, backend.Row{First: i, Count: 1, Blocks: []int32{int32(i)}})
	}
	p.b.Begin(step)
}

func (p *probe) read(b backend.Buffer, tokens int) {
	for i := range tokens {
		row := make([]float32, b.Width())
		if err := p.b.Read(row, b, i); err != nil {
			panic(err)
		}
		p.out = append(p.out, row)
	}
}

// same reads whether the first rows of a linear are the same alone, bit for bit.
func (p *probe) same(dst, src backend.Buffer, n int, w backend.Matrix, opt backend.LinearOptions) {
	alone := must(p.b.NewBuffer(n, dst.Width()))
	p.b.Linear(alone, src, n, w, opt)
	a, b := make([]float32, dst.Width()), make([]float32, dst.Width())
	differ := float32(0)
	for i := range n {
		if err := errors.Join(p.b.Read(a, dst, i), p.b.Read(b, alone, i)); err != nil {
			panic(err)
		}
		for j := range a {
			if a[j] != b[j] {
				differ++
			}
		}
	}
	p.out = append(p.out, []float32{differ})
}

var probes = map[string]func(p *probe){
	"weights": func(p *probe) {
		for _, name := range []string{"a", "b"} {
			src, _ := p.set.Lookup(name)
			table := must(p.b.NewMatrix(backend.Stacked, src, p.source(src.DType(), 3, src.Shape()[1])))
			b := must(p.b.NewBuffer(table.Outputs(), table.Inputs()))
			p.begin(table.Outputs())
			p.b.Embed(b, table)
			p.read(b, table.Outputs())
		}
		// More rows than one launch makes.
		for _, name := range []string{"c", "d"} {
			src, _ := p.set.Lookup(name)
			table, b := must(p.b.NewMatrix(backend.Stacked, src)), must(p.b.NewBuffer(3, 2))
			step := &backend.Step{Tokens: []int32{1, 32767, 32769}}
			for i := range step.Tokens {
				step.Rows = append(step.Rows, backend.Row{First: i, Count: 1})
			}
			p.b.Begin(step)
			p.b.Embed(b, table)
			p.read(b, len(step.Tokens))
		}
		// An f32 matrix with a part in bf16.
		a, _ := p.set.Lookup("a")
		mixed := must(p.b.NewMatrix(backend.Stacked, a, p.source(backend.F32, 2, 21)))
		b := must(p.b.NewBuffer(mixed.Outputs(), 21))
		p.begin(mixed.Outputs())
		p.b.Embed(b, mixed)
		p.read(b, mixed.Outputs())
	},
	"rows": func(p *probe) {
		for _, dtype := range []backend.DType{backend.BF16, backend.F32} {
			table := must(p.b.NewMatrix(backend.Stacked, p.source(dtype, 20, 333)))
			b := must(p.b.NewBuffer(20, 333))
			few, others := must(p.b.NewBuffer(3, 333)), must(p.b.NewBuffer(2, 333))
			p.begin(20)
			p.b.Embed(b, table)
			p.b.Gather(few, b, []int32{19, 0, 7})
			p.b.Gather(others, b, []int32{3, 18})
			p.read(b, 20)
			p.read(few, 3)
			p.read(others, 2)
		}
		// The norm before an f32 linear.
		src, dst := p.buffer(5, 41), must(p.b.NewBuffer(5, 3))
		w := must(p.b.NewMatrix(backend.Stacked, p.source(backend.F32, 3, 41)))
		p.b.Linear(dst, src, 5, w, backend.LinearOptions{Norm: &backend.Norm{Weight: p.vector(41), Eps: 1e-6, Offset: 1}})
		p.read(dst, 5)
	},
	"linear": func(p *probe) {
		for _, dtype := range []backend.DType{backend.BF16, backend.F32} {
			for _, c := range []struct{ tokens, outputs, inputs int }{
				{1, 21, 40}, {5, 70, 300}, {8, 150, 40}, {11, 30, 150}, {16, 90, 40}, {70, 150, 333}, {17, 20, 40},
			} {
				norm := &backend.Norm{Weight: p.vector(c.inputs), Eps: 1e-6, Offset: 1}
				src, dst := p.buffer(c.tokens, c.inputs), p.buffer(c.tokens, c.outputs)
				w := must(p.b.NewMatrix(backend.Stacked, p.source(dtype, c.outputs, c.inputs)))
				p.b.Linear(dst, src, c.tokens, w, backend.LinearOptions{Norm: norm})
				p.same(dst, src, min(8, c.tokens), w, backend.LinearOptions{Norm: norm})
				p.b.Linear(dst, src, c.tokens, w, backend.LinearOptions{Epilogue: backend.Add})
				p.read(dst, c.tokens)
				half := p.buffer(c.tokens, c.outputs/2)
				w = must(p.b.NewMatrix(backend.GateUp, p.source(dtype, c.outputs/2, c.inputs), p.source(dtype, c.outputs/2, c.inputs)))
				p.b.Linear(half, src, c.tokens, w, backend.LinearOptions{Norm: norm, Epilogue: backend.SwiGLU})
				p.read(half, c.tokens)
			}
		}
	},
	"attention": func(p *probe) {
		for i, dtype := range []backend.DType{backend.BF16, backend.F32} {
			nq, nkv, dim := 4, 2, 20+2*i
			cache := must(p.b.NewKVCache(backend.KVSpec{Layers: 2, Blocks: 40, BlockSize: 7, KVHeads: nkv, HeadDim: dim, DType: dtype}))
			a := &backend.Attention{
				Layer: 1, Heads: nq, KVHeads: nkv, HeadDim: dim, Scale: 0.2, Gated: i == 0,
				Rope:  must(p.b.NewRope([]float32{1, 0.1, 0.01}, 2300)),
				QNorm: &backend.Norm{Weight: p.vector(dim), Eps: 1e-6, Offset: 1},
				KNorm: &backend.Norm{Weight: p.vector(dim), Eps: 1e-5, Offset: 1},
			}
			width := (nq + 2*nkv) * dim
			if a.Gated {
				width += nq * dim
			}
			var blocks []int32
			for j := range 40 {
				blocks = append(blocks, int32((j*7+3)%40))
			}
			// A prompt beyond a split, then a decode step beside a young sequence.
			src, dst := p.buffer(140, width), must(p.b.NewBuffer(140, nq*dim))
			p.b.Begin(&backend.Step{Tokens: make([]int32, 140), Rows: []backend.Row{{Count: 140, Blocks: blocks[:20], Prompt: true}}})
			p.b.Attention(dst, src, a, cache)
			p.read(dst, 140)
			p.b.Begin(&backend.Step{Tokens: make([]int32, 5), Rows: []backend.Row{
				{Count: 4, Blocks: blocks[21:22], Prompt: true}, {First: 4, Count: 1, Start: 140, Blocks: blocks[:21]}}})
			p.b.Attention(dst, src, a, cache)
			p.read(dst, 5)
			// More splits than blocks share: the KV blocks come again and again.
			p.b.Begin(&backend.Step{Tokens: make([]int32, 1), Rows: []backend.Row{{Count: 1, Start: 2200, Blocks: slices.Repeat(blocks[:20], 16)}}})
			p.b.Attention(dst, src, a, cache)
			p.read(dst, 1)
			// More decode rows than share their contexts.
			many := &backend.Step{Tokens: make([]int32, 18)}
			for j := range many.Tokens {
				many.Rows = append(many.Rows, backend.Row{First: j, Count: 1, Blocks: blocks[22+j:][:1]})
			}
			p.b.Begin(many)
			p.b.Attention(dst, src, a, cache)
			p.read(dst, 18)
		}
	},
	"attention_tiles": func(p *probe) { // tails of dims, queries and keys; prompts beside a decode row
		nq, nkv, dim := 6, 2, 48
		cache := must(p.b.NewKVCache(backend.KVSpec{Layers: 2, Blocks: 40, BlockSize: 7, KVHeads: nkv, HeadDim: dim, DType: backend.BF16}))
		a := &backend.Attention{
			Layer: 1, Heads: nq, KVHeads: nkv, HeadDim: dim, Scale: 0.2, Gated: true,
			Rope: must(p.b.NewRope([]float32{1, 0.1, 0.01}, 200)),
		}
		var blocks []int32
		for j := range 40 {
			blocks = append(blocks, int32((j*7+3)%40))
		}
		src, dst := p.buffer(75, 3*nq*dim), must(p.b.NewBuffer(75, nq*dim))
		for _, rows := range [][]backend.Row{
			{{Count: 75, Blocks: blocks[:11], Prompt: true}},
			{{Count: 20, Blocks: blocks[15:18], Prompt: true}, {First: 20, Count: 1, Start: 75, Blocks: blocks[:11]},
				{First: 21, Count: 4, Blocks: blocks[20:21], Prompt: true}},
			{{Count: 5, Start: 20, Blocks: blocks[15:19], Prompt: true}},
		} {
			last := rows[len(rows)-1]
			n := last.First + last.Count
			p.b.Begin(&backend.Step{Tokens: make([]int32, n), Rows: rows})
			p.b.Attention(dst, src, a, cache)
			p.read(dst, n)
		}
	},
	"delta": func(p *probe) {
		p.delta(backend.DeltaSpec{Layers: 2, Slots: 3, KeyHeads: 2, ValueHeads: 4, KeyDim: 18, ValueDim: 40, ConvWidth: 4}, 2, []backend.Row{
			{Count: 1, Slot: 2}, {First: 1, Count: 11, Slot: 0, Prompt: true}, {First: 12, Count: 35, Slot: 1, Prompt: true}})
		// Without a chunk: fewer tokens than taps, and more.
		p.delta(backend.DeltaSpec{Layers: 2, Slots: 3, KeyHeads: 1, ValueHeads: 2, KeyDim: 18, ValueDim: 40, ConvWidth: 4}, 3, []backend.Row{
			{Count: 1, Slot: 2}, {First: 1, Count: 2, Slot: 0}, {First: 3, Count: 5, Slot: 1, Prompt: true}})
	},
	"delta_chunks": func(p *probe) { // two chunks and a tail, beside a decode row and another prompt
		p.delta(backend.DeltaSpec{Layers: 2, Slots: 3, KeyHeads: 1, ValueHeads: 2, KeyDim: 70, ValueDim: 72, ConvWidth: 4}, 1, []backend.Row{
			{Count: 1, Slot: 2}, {First: 1, Count: 69, Slot: 0, Prompt: true}, {First: 70, Count: 33, Slot: 1, Prompt: true}})
		// More value heads of a key head than warps.
		p.delta(backend.DeltaSpec{Layers: 2, Slots: 1, KeyHeads: 1, ValueHeads: 5, KeyDim: 18, ValueDim: 8, ConvWidth: 4}, 1, []backend.Row{
			{Count: 33, Prompt: true}})
	},
	"sample": func(p *probe) {
		const rows, vocab = 9, 5001
		logits := p.buffer(rows, vocab)
		out := make([]int32, rows)
		if err := p.b.Sample(out, logits, make([]backend.Sampling, rows)); err != nil {
			panic(err)
		}
		for _, t := range out {
			p.out = append(p.out, []float32{float32(t)})
		}
		// The largest logit twice: the first of them wins.
		x := make([]float32, vocab)
		x[2900], x[4100], x[300] = 5, 5, 4
		table := must(p.b.NewMatrix(backend.Stacked, &source{shape: []int{1, vocab}, x: x}))
		p.begin(1)
		p.b.Embed(logits, table)
		if err := p.b.Sample(out[:1], logits, make([]backend.Sampling, 1)); err != nil {
			panic(err)
		}
		p.out = append(p.out, []float32{float32(out[0])})
		// A logit that is no number is told by its place.
		x[2500] = float32(math.NaN())
		table = must(p.b.NewMatrix(backend.Stacked, &source{shape: []int{1, vocab}, x: x}))
		p.begin(1)
		p.b.Embed(logits, table)
		err := p.b.Sample(out[:1], logits, make([]backend.Sampling, 1))
		told := err != nil && strings.HasPrefix(err.Error(), "logit 2500 of row 0 is NaN")
		p.out = append(p.out, []float32{map[bool]float32{true: 1}[told]})
	},
	"draw": func(p *probe) {
		// Many logits are equal, across all shares and both zeros.
		const vocab = 2300
		params := []backend.Sampling{
			{Temperature: 1}, {Temperature: 0.8, TopK: 40}, {Temperature: 1.2, TopP: 0.9}, {Temperature: 2, TopK: 300, TopP: 0.6},
			{}, {Temperature: 0.5, TopK: vocab}, {Temperature: 3, TopP: 0.999}, {Temperature: 0.3, TopK: 2},
		}
		x := p.values(len(params) * vocab)
		for i := range x {
			x[i] = float32(math.Round(3*float64(x[i])) / 3)
		}
		x[5] = float32(math.Inf(-1))
		table := must(p.b.NewMatrix(backend.Stacked, &source{shape: []int{len(params), vocab}, x: x}))
		logits := must(p.b.NewBuffer(len(params), vocab))
		draw := func(first, n int) []int32 {
			step := &backend.Step{}
			for i := range n {
				step.Tokens = append(step.Tokens, int32(first+i))
				step.Rows = append(step.Rows, backend.Row{First: i, Count: 1})
			}
			p.b.Begin(step)
			p.b.Embed(logits, table)
			out := make([]int32, n)
			if err := p.b.Sample(out, logits, params[first:first+n]); err != nil {
				panic(err)
			}
			return out
		}
		rng := rand.New(rand.NewPCG(probeSeed, 1))
		for round := range 4 {
			for i := range params {
				params[i].Uniform = rng.Float64()
			}
			together := draw(0, len(params))
			for _, t := range together {
				p.out = append(p.out, []float32{float32(t)})
			}
			alone := draw(2*round, 1)[0]
			p.out = append(p.out, []float32{float32(alone - together[2*round])})
		}
	},
	"peak": func(p *probe) { // what is wrong; on the oracle, nothing
		b, ok := p.b.(*Backend)
		for _, n := range readLengths {
			wrong := 0
			if ok {
				wrong = must(wrongReads(b, n))
			}
			p.out = append(p.out, []float32{float32(wrong)})
		}
		wrong := 0
		if ok {
			wrong = must(wrongProducts(b, 3))
		}
		p.out = append(p.out, []float32{float32(wrong)})
	},
}

// delta runs steps of the same rows, each from the state of the one before.
func (p *probe) delta(spec backend.DeltaSpec, steps int, rows []backend.Row) {
	state := must(p.b.NewDeltaState(spec))
	aLog := p.values(spec.ValueHeads)
	for i := range aLog {
		aLog[i] -= 3 // so that the state remembers a chunk
	}
	g := &backend.GatedDelta{
		Layer: 1, Conv: p.vector(spec.ConvDim() * 4), DTBias: p.vector(spec.ValueHeads),
		ALog: must(p.b.NewVector(&source{shape: []int{len(aLog)}, x: aLog})),
		Norm: backend.Norm{Weight: p.vector(spec.ValueDim), Eps: 1e-6},
	}
	last := rows[len(rows)-1]
	n := last.First + last.Count
	src, dst := p.buffer(n, spec.ProjDim()), must(p.b.NewBuffer(n, spec.ValueHeads*spec.ValueDim))
	for slot := range spec.Slots {
		p.b.ResetSlot(state, slot)
	}
	for range steps {
		p.b.Begin(&backend.Step{Tokens: make([]int32, n), Rows: rows})
		p.b.GatedDelta(dst, src, g, state)
		p.read(dst, n)
	}
}

// run is what a probe reads, or the fault that ended it.
func runProbe(name string, b backend.Backend) (out [][]float32, err error) {
	set, err := weights.Random(5, []weights.Spec{
		{Name: "a", Shape: []int{17, 21}, DType: backend.BF16, Low: -1, High: 1},
		{Name: "b", Shape: []int{18, 22}, DType: backend.F32, Low: -1, High: 1},
		{Name: "c", Shape: []int{32770, 2}, DType: backend.BF16, Low: -1, High: 1},
		{Name: "d", Shape: []int{32770, 2}, DType: backend.F32, Low: -1, High: 1},
	})
	if err != nil {
		return nil, err
	}
	p := &probe{b: b, set: set}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(error)
			if !ok {
				panic(r)
			}
			out, err = nil, e
		}
	}()
	probes[name](p)
	return p.out, nil
}

var errDiffers = errors.New("differs from the oracle")

// holds compares a probe on the simulator, with the given sources, to the oracle.
func holds(t *testing.T, name string, want [][]float32, sources map[string]string) error {
	b := openSim(t, sim.Options{Sources: sources})
	defer b.Close()
	got, err := runProbe(name, b)
	if err != nil {
		return err
	}
	for i := range want {
		size := 0.0
		for _, v := range want[i] {
			size = max(size, math.Abs(float64(v)))
		}
		for j := range want[i] {
			if d := math.Abs(float64(got[i][j]) - float64(want[i][j])); !(d <= 1e-4*(1+size)) {
				return fmt.Errorf("%w: row %d, column %d: %g, want %g", errDiffers, i, j, got[i][j], want[i][j])
			}
		}
	}
	return nil
}

// seeded are bugs, each a change of one line of a kernel, and what finds them.
var seeded = []struct {
	file, bug, old, new string
	found               string // part of the error
}{
	{"weights", "wrong index: rows of a part begin at 0", "first + row, form), k, (inputs + 15) / 16)] = pair;\n}\n\nKERNEL(256, random_bf16", "row, form), k, (inputs + 15) / 16)] = pair;\n}\n\nKERNEL(256, random_bf16", "differs"},
	{"weights", "unmasked tail of the inputs", "k + 1 < inputs ? (uint32_t)p[1] << 16 : 0", "(uint32_t)p[1] << 16", ""},
	{"weights", "random bits of the wrong element", "(16 * (i % 4))", "(16 * (i % 2))", "differs"},
	{"weights", "rounding left out", "round ? widen(narrow(v)) : v", "v", "differs"},
	{"weights", "f32: parts over one another", "f32_index(first + row, k, inputs, form)] = src", "f32_index(row, k, inputs, form)] = src", "differs"},
	{"weights", "rows of a further launch are the first's again", "int64_t i = (int64_t)row * inputs + k;", "int64_t i = (int64_t)blockIdx.y * inputs + k;", "differs"},
	{"weights", "f32: rows of a further launch are the first's again", "uniform(key, (int64_t)row * inputs + k", "uniform(key, (int64_t)blockIdx.y * inputs + k", "differs"},

	{"rows", "wrong index: neighbouring inputs swapped", "out[k] = widen((uint16_t)pair);", "out[k] = widen((uint16_t)(pair >> 16));", "differs"},
	{"rows", "unmasked tail of a row", "if (k + 1 < inputs) out[k + 1]", "out[k + 1]", ""},
	{"rows", "gather of the wrong row", "src + (int64_t)tokens[blockIdx.x] * width", "src + (int64_t)blockIdx.x * width", "differs"},
	{"rows", "norm of every row by the first one's scale", "norm_scale(x, inputs", "norm_scale(src, inputs", "differs"},
	{"rows", "unmasked tail of a normed row", "v = k < inputs ? x[k] : 0.0f", "v = x[k]", ""},
	{"rows", "f32: rows without their padding", "((inputs + 3) / 4 * 4);\n	for (int k = threadIdx.x; k < inputs; k += 256) dst", "inputs;\n	for (int k = threadIdx.x; k < inputs; k += 256) dst", ""},

	{"linear", "missing barrier before the slices are added", "	__syncthreads();\n\n	// Accumulator r", "\n	// Accumulator r", "shared memory"},
	{"linear", "race: two slices in one place", "partial[((warp * MT + m) * NT + t) * 128", "partial[((warp / 2 * MT + m) * NT + t) * 128", "race on shared memory"},
	{"linear", "unmasked tail of the outputs", "if (token >= n || out >= outputs || (epilogue == 2 && r >= 2)) continue;\n		float", "if (token >= n || (epilogue == 2 && r >= 2)) continue;\n		float", ""},
	{"linear", "unmasked tail of the tokens", "if (token >= n || out >= outputs || (epilogue == 2 && r >= 2)) continue;\n		float", "if (out >= outputs || (epilogue == 2 && r >= 2)) continue;\n		float", ""},
	{"linear", "norm of a token by its neighbour's scale", "scale_of(squares + token,", "scale_of(squares + token / 2 * 2,", "differs"},
	{"linear", "prefill: squares added in another order", "scale_of(squares, 1, inputs, eps);", "scale_of(squares + slices - 1, -1, inputs, eps);", "differs"},
	{"linear", "prefill: slices at other places", "boundary = slice_begin(slice + 1, ktiles);", "boundary = slice_begin(slice + 1, ktiles) + 1;", "differs"},
	{"linear", "low parts forgotten", "	mma_bf16(d, a, low);\n", "", "differs"},
	{"linear", "up read from gate", "up = partial[i + 64];", "up = partial[i];", "differs"},
	{"linear", "prefill: copies not waited for", "cp_async_wait<stages - 2>();", "cp_async_wait<stages - 1>();", "nothing has written"},
	{"linear", "prefill: missing barrier between stages", "		__syncthreads();  // stage", "		// stage", "shared memory"},
	{"linear", "prefill: a stage too few in the ring", "(step + stages - 1) % stages", "(step + stages - 1) % (stages - 1)", ""},
	{"linear", "prefill: wrong tile of tokens", "int token = (n0 + wn + t) * 8", "int token = (n0 + wn + t / 2 * 2) * 8", ""},
	{"linear", "f32: unmasked tail of the tokens", "if (lane == t && t < count)", "if (lane == t)", ""},
	{"linear", "f32: a lane too far", "for (int k = lane; k < quads; k += 32) {", "for (int k = lane; k <= quads; k += 32) {", ""},
	{"linear", "prefill: slices are never empty", "while (kt == boundary)", "if (kt == boundary)", "differs"},

	{"attention", "wrong index: rotation by the next pair", "angles[2 * (d % half)], s = angles[2 * (d % half) + 1]", "angles[2 * (d % half)], s = angles[2 * (d % half)]", "differs"},
	{"attention", "missing warp barrier before the rotation", "	__syncwarp();\n	int turning", "	int turning", ""},
	{"attention", "wrong KV head", "nkv, h / (nq / nkv), dim,\n		                             block_size", "nkv, h % nkv, dim,\n		                             block_size", "differs"},
	{"attention", "not causal: the next position is seen", "int context = positions[t] + 1;\n	softmax s", "int context = positions[t] + 2;\n	softmax s", ""},
	{"attention", "race: two positions in one place", "shop.rows[thread] = row;", "shop.rows[thread / 2] = row;", "race on shared memory"},
	{"attention", "unmasked tail of the dims", "for (; d + 4 <= dim; d += 4) {", "for (; d < dim; d += 4) {", ""},
	{"attention", "missing barrier between splits", "		__syncthreads();\n		softmax part", "		softmax part", "shared memory"},
	{"attention", "unmasked tail of a split", "float e = thread < count ? expf(score - s.largest) : 0.0f;", "float e = thread <= count ? expf(min(score, 0.0f) - s.largest + 1) : 0.0f;", "differs"},
	{"attention", "merge without rescaling", "s.sum = fmaf(next.sum, b, s.sum * a);", "s.sum = fmaf(next.sum, b, s.sum);", "differs"},
	{"attention", "many tokens: KV blocks of the first row", "const int32_t *own = blocks + row_blocks[token_rows[t]];\n	int context", "const int32_t *own = blocks + row_blocks[0];\n	int context", ""},
	{"attention", "splits: wrong KV head", "nkv, h / (nq / nkv), dim,\n		                          block_size", "nkv, h % nkv, dim,\n		                          block_size", "differs"},
	{"attention", "splits: a block takes one only", "i += gridDim.z", "i += max_splits", ""},
	{"attention", "splits: missing barrier before the next", "		__syncthreads();\n		int first", "		int first", "shared memory"},
	{"attention", "merge: the last split left out where it begins", "i * split <= positions[t]", "i * split < positions[t]", "differs"},

	{"attention_tiles", "not causal: the next position is seen", "r % 2 > position[i])", "r % 2 > position[i] + 1)", "differs"},
	{"attention_tiles", "wrong KV head", "own[p / block_size] * nkv + kv)", "own[p / block_size] * nkv)", "differs"},
	{"attention_tiles", "missing barrier before the keys", "		__syncthreads();  // the keys", "		// the keys", "shared memory"},
	{"attention_tiles", "missing barrier before the values", "		__syncthreads();  // the values", "		// the values", "shared memory"},
	{"attention_tiles", "copies not waited for", "		cp_async_wait<0>();\n		__syncthreads();  // the values", "		__syncthreads();  // the values", "nothing has written"},
	{"attention_tiles", "unmasked tail of the context", "bool wanted = p < context && d < dim;", "bool wanted = d < dim;", ""},
	{"attention_tiles", "race: unmasked tail of the queries", "group + i * 8 >= count) continue;", "group + i * 8 >= count + 8) continue;", "race on device memory"},
	{"attention_tiles", "sum without rescaling", "fmaf(sum[i], scale[i], part)", "sum[i] + part", "differs"},
	{"attention_tiles", "KV blocks of the first row", "row_blocks[row]", "row_blocks[0]", "differs"},
	{"attention_tiles", "low parts of the queries forgotten", "					mma_bf16(S[n], rest, pair);\n", "", "differs"},

	{"delta", "convolution with the taps reversed", "tap >= 0 ? weight[c * taps + tap]", "tap >= 0 ? weight[c * taps + taps - 1 - tap]", "differs"},
	{"delta", "in the rule, convolution with the taps reversed", "fmaf(weight[c * taps + tap]", "fmaf(weight[c * taps + taps - 1 - tap]", "differs"},
	{"delta", "in the rule, an input of the row taken from the state", "float x = at >= first ?", "float x = at > first ?", ""},
	{"delta", "convolution state not moved on", "past[tap * channels] = x[j];", "past[tap * channels] = x[max_taps - 2];", "differs"},
	{"delta", "race: the rule moves the convolution on", "		float beta = sigmoid", "		if (Convolves && thread < dk) const_cast<float *>(past)[row_slot[row] * past_stride + h * dk + thread] = 0;\n		float beta = sigmoid", "race on device memory"},
	{"delta", "the state's own inputs forgotten", "int from = tap + count;", "int from = tap + max(count, taps - 1);", ""},
	{"delta", "moved on by every token", "if (c < channels && t == first + count - 1)", "if (c < channels)", "race on device memory"},
	{"delta", "unmasked tail of the channels moved on", "if (c < channels && t == first + count - 1)", "if (t == first + count - 1)", ""},
	{"delta", "unmasked tail of the channels", "	if (c >= channels) return;\n	float *past", "	float *past", ""},
	{"delta", "missing barrier after the norms", "		__syncthreads();\n		float beta", "		float beta", "shared memory"},
	{"delta", "missing barrier before the sum", "		__syncthreads();\n		kS = partial", "		kS = partial", "shared memory"},
	{"delta", "tokens of chunks taken again", "t = row_first[row] + row_chunked[row]; t < end", "t = row_first[row]; t < end", "differs"},
	{"delta", "wrong key head", "int h = j / (value_heads / key_heads);", "int h = j % key_heads;", "differs"},
	{"delta", "unmasked tail of the value dims", "if (r < dk && column < dv) own[r * dv] = S[i];", "if (r < dk) own[r * dv] = S[i];", ""},
	{"delta", "decay after the update", "kS = fmaf(k[r], S[i], kS);", "kS = fmaf(k[r], S[i] / decay, kS);", "differs"},

	{"delta_chunks", "wrong index: Kᵀ of one token twice", "(uint32_t)halves[at + 4 * 8] << 16", "(uint32_t)halves[at] << 16", "differs"},
	{"delta_chunks", "missing barrier before Kᵀ", "	__syncthreads();\n\n	// Kᵀ", "\n	// Kᵀ", "shared memory"},
	{"delta_chunks", "missing barrier before the system", "	__syncthreads();\n\n	// A warp has a value head", "\n	// A warp has a value head", "shared memory"},
	{"delta_chunks", "race: the inverse over the system that others read", "		__syncwarp();\n#pragma unroll\n		for (int i = 0; i < chunk; i++) m[", "#pragma unroll\n		for (int i = 0; i < chunk; i++) m[", "race on shared memory"},
	{"delta_chunks", "a token does not see itself", "p[i * chunk + lane] = i >= lane", "p[i * chunk + lane] = i > lane", "differs"},
	{"delta_chunks", "missing barrier between pieces", "		__syncthreads();  // piece", "		// piece", "shared memory"},
	{"delta_chunks", "copies not waited for", "cp_async_wait<ring - 2>();", "cp_async_wait<ring - 1>();", "nothing has written"},
	{"delta_chunks", "unmasked tail of the value dims", "if (d < dk && column + c < dv) own[d * dv + c] = S", "if (d < dk) own[d * dv + c] = S", ""},
	{"delta_chunks", "low parts forgotten", "		mma_bf16(d[n], a.low, high);\n", "", "differs"},
	{"delta_chunks", "missing barrier between value heads", "split_tile(from[0], from[1], from[8], from[9]);\n		}\n		__syncwarp();", "split_tile(from[0], from[1], from[8], from[9]);\n		}", "race on shared memory"},
	{"delta_chunks", "state of the first row", "state + row_slot[row]", "state + row_slot[0]", "race on device memory"},
	{"delta_chunks", "the state decays by a token too few", "of_token(before, chunk - 1)", "of_token(before, chunk - 2)", "differs"},

	{"sample", "last of the largest", "(a == b && i < j)", "(a == b && i > j)", "differs"},
	{"sample", "missing barrier between warps", "	__syncthreads();\n	for (int w", "	for (int w", ""},
	{"sample", "a share left out", "i += gridDim.x * 256)", "i += gridDim.x * 512)", "differs"},
	{"sample", "merge: shares of the first row", "values[blockIdx.x * shares + i]", "values[i]", "differs"},
	{"sample", "NaN not told", "v != v ? -1 - best : best", "best", "differs"},

	{"draw", "missing barrier before the bins are filled", "	__syncthreads();\n	int shift", "	int shift", "shared memory"},
	{"draw", "race: a bin without an atomic", "atomicAdd(&count[key >> shift & 255], 1u);", "count[key >> shift & 255] += 1u;", "shared memory"},
	{"draw", "race: blocks without an atomic", "atomicAdd(&h.count[d], count[d]);", "h.count[d] += count[d];", "race"},
	{"draw", "a share left out", "i += gridDim.x * blockDim.x)", "i += 2 * gridDim.x * blockDim.x)", "differs"},
	{"draw", "temperature forgotten", " / (double)p.temperature);", ");", "differs"},
	{"draw", "the last of equals", "return 0xffffffu - i;", "return i;", "differs"},
	{"draw", "two zeros", "__float_as_uint(x + 0.0f)", "__float_as_uint(x)", "differs"},
	{"draw", "top-k keeps all equals", "(s.target - s.count) * one", "e.in_mass", "differs"},
	{"draw", "top-p keeps all equals", "(s.target - s.mass + one - 1) / one * one", "e.in_mass", "differs"},
	{"draw", "the index begins anew", "if (s.phase != by_logit) {", "if (true) {", ""},
	{"draw", "bits that are known not looked at", "if (level > 0 && key >> (shift + 8) != s.prefix) continue;", "", ""},
	{"draw", "of the drawn logit not only its tokens", "if (some && key != s.key) continue;", "", "differs"},
	{"draw", "the index's key taken for the index", "(int32_t)index_key(s.prefix)", "(int32_t)(s.prefix)", "differs"},
	{"draw", "told before it is known", "	__syncthreads();\n	place p = *told;", "	place p = *told;", ""},

	{"peak", "a load left out", "for (int j = 0; j < read_depth; j++) sum +=", "for (int j = 1; j < read_depth; j++) sum +=", "differs"},
	{"peak", "the tail of the loads left out", "for (; i < vectors; i += stride)", "for (; i + stride < vectors; i += stride)", "differs"},
	{"peak", "unmasked tail of the memory", "for (; i < vectors; i += stride)", "for (; i <= vectors; i += stride)", ""},
	{"peak", "half a warp added", "for (int m = 16; m > 0; m >>= 1) sum", "for (int m = 8; m > 0; m >>= 1) sum", "differs"},
	{"peak", "a chain left out", "c < mma_chains; c++) mma_bf16", "c < mma_chains - 1; c++) mma_bf16", "differs"},
	{"peak", "race: blocks in one place", "sums[blockIdx.x * 256 + threadIdx.x]", "sums[threadIdx.x]", "race"},
}

var rewrite = command.Bool("rewrite", false, "rewrite kernels/SEEDED.md")

// TestSeededList: kernels/SEEDED.md lists the bugs.
func TestSeededList(t *testing.T) {
	var list strings.Builder
	list.WriteString("# Seeded bugs\n\n" +
		"Each of these changes of a line is made to the kernels in turn, and must be found on the simulator: by a result that differs\n" +
		"from the oracle, or by a fault that names the line (`TestSeededBugs` in ../seeded_test.go, which this list is made from).\n")
	file := ""
	for _, s := range seeded {
		if s.file != file {
			file = s.file
			fmt.Fprintf(&list, "\n## %s.cu\n\n", file)
		}
		by := map[string]string{"": "a result or a fault", "differs": "a result"}[s.found]
		if by == "" {
			by = "a fault: " + s.found
		}
		fmt.Fprintf(&list, "- %s (%s)\n", s.bug, by)
	}
	const name = "kernels/SEEDED.md"
	if *rewrite {
		require.NoError(t, os.WriteFile(name, []byte(list.String()), 0o644))
	}
	data, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, list.String(), string(data), "go test ./cuda -run SeededList -rewrite")
}

// TestSeededBugs: each bug is found, so that a test which passes means something.
func TestSeededBugs(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles a library for each bug: run without -short")
	}
	want := make(map[string][][]float32)
	for name := range probes {
		out, err := runProbe(name, ref.New())
		require.NoError(t, err)
		want[name] = out
		require.NoError(t, holds(t, name, out, nil), "%s, without a bug", name)
	}
	for _, s := range seeded {
		t.Run(s.file+"/"+s.bug, func(t *testing.T) {
			t.Parallel()
			sources := kernels.Sources()
			file := s.file + ".cu"
			require.Equal(t, 1, strings.Count(sources[file], s.old), "the line to change in %s: %q", file, s.old)
			sources[file] = strings.Replace(sources[file], s.old, s.new, 1)
			err := holds(t, s.file, want[s.file], sources)
			require.Error(t, err, "the bug is not found")
			require.ErrorContains(t, err, s.found)
			t.Log(err)
		})
	}
}
