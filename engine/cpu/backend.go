package cpu

import (
	"fmt"
	"math"
	"runtime"

	"github.com/batchproof/batchproof/engine/backend"
)

// Options configure a backend. Zero values take the default.
type Options struct {
	Threads   int       // workers; default GOMAXPROCS
	ISA       ISA       // default the best of this CPU
	Precision Precision // of products; default the fastest of this CPU
}

// Backend runs the ops on a pool of workers.
type Backend struct {
	isa       ISA
	precision Precision
	kernels   *kernels
	pool      *pool
	mem       arena
	step      *backend.Step
	closed    bool

	// Tasks and scratch, allocated once.
	linear     linearTask
	embed      embedTask
	sample     sampleTask
	memory     *probeTask  // nil until its bandwidth was measured
	packed     []float32   // the input of Linear, packed for the kernels
	packedRows [][]float32 // the same for one worker, when that is cheaper than to share
	tiles      [][]float32 // accumulators of each worker
	results    [][]float32 // of some panels and one token, before they are rounded
}

var _ backend.Backend = (*Backend)(nil)

// MaxThreads is the most workers worth asking for. Any sharing of a core makes steps
// wait, and hundreds wait for minutes.
func MaxThreads() int { return 4 * runtime.NumCPU() }

// New starts a backend with its workers. Close ends them.
func New(opt Options) (*Backend, error) {
	if opt.Threads < 0 {
		return nil, fmt.Errorf("cpu: %d threads asked for", opt.Threads)
	}
	if opt.Threads == 0 {
		opt.Threads = runtime.GOMAXPROCS(0)
	}
	isa, err := opt.ISA.resolve(opt.Precision)
	if err != nil {
		return nil, err
	}
	precision, err := opt.Precision.resolve(isa)
	if err != nil {
		return nil, err
	}
	b := &Backend{isa: isa, precision: precision, kernels: kernelsFor(isa), pool: newPool(opt.Threads)}
	b.linear.b, b.embed.b, b.sample.b = b, b, b
	b.linear.shares = make(shares, opt.Threads)
	b.sample.drawers = make([]drawer, opt.Threads)
	for range opt.Threads {
		row, err := b.mem.floats(ownRowFloats)
		if err != nil {
			return nil, b.fail(err)
		}
		tiles, err := b.mem.floats(b.kernels.tileFloats())
		if err != nil {
			return nil, b.fail(err)
		}
		results, err := b.mem.floats(callPanels * panelOutputs)
		if err != nil {
			return nil, b.fail(err)
		}
		b.packedRows = append(b.packedRows, row)
		b.tiles = append(b.tiles, tiles)
		b.results = append(b.results, results)
	}
	return b, nil
}

// fail closes a backend that could not be made.
func (b *Backend) fail(err error) error {
	_ = b.Close()
	return err
}

// Name is "cpu".
func (b *Backend) Name() string { return "cpu" }

// ISA is the instruction set of the kernels.
func (b *Backend) ISA() ISA { return b.isa }

// Describe gives the instruction set, the precision of products and the number of workers.
func (b *Backend) Describe() string {
	if b.precision == BF16 {
		return fmt.Sprintf("cpu: %v with bf16 products, %d threads", b.isa, b.pool.workers)
	}
	return fmt.Sprintf("cpu: %v, %d threads", b.isa, b.pool.workers)
}

// Close ends the workers and frees all memory. Closing twice is harmless.
func (b *Backend) Close() error {
	if b.closed {
		return nil
	}
	b.closed = true
	b.pool.close()
	return b.mem.close()
}

// vector is a small parameter.
type vector []float32

func (v vector) Len() int { return len(v) }

// NewVector copies a parameter, whatever its shape.
func (b *Backend) NewVector(src backend.Source) (backend.Vector, error) {
	n := 1
	for _, d := range src.Shape() {
		n *= d
	}
	v, err := b.mem.floats(n)
	if err != nil {
		return nil, err
	}
	return vector(v), src.ReadF32(v, 0)
}

// buffer is an activation matrix; rows follow one another without padding. Or it
// holds inputs of products with bf16 weights, rounded and in pairs, see packDots.
type buffer struct {
	tokens, width int
	x             []float32
	inputs        int // rounded values of a token; 0 for float32
	words         int // from one such row to the next
}

func (b *buffer) Tokens() int { return b.tokens }
func (b *buffer) Width() int  { return b.width }

// row is a token in float32.
func (b *buffer) row(t int) []float32 {
	b.mustBeFloat()
	return b.x[t*b.width:][:b.width]
}

func (b *buffer) mustBeFloat() {
	if b.inputs > 0 {
		panic("cpu: an op that cannot reads what was rounded for Linear")
	}
}

// begin prepares for an op that writes so many values of each token, a piece at a time.
// What only a product with next will read is rounded for it, if it has room in a row.
func (b *Backend) begin(dst *buffer, values, piece int, next backend.Matrix) {
	dst.inputs = 0
	m, _ := next.(*matrix)
	if m == nil {
		return
	}
	if m.inputs != values {
		panic(fmt.Sprintf("cpu: %d values before a product that takes %d", values, m.inputs))
	}
	if words := dotWords(values); b.dots(m) && piece%2 == 0 && words <= dst.width {
		dst.inputs, dst.words = values, words
	}
}

// store puts some values of a token, which begin with an even one.
func (b *Backend) store(dst *buffer, token, first int, x []float32) {
	if dst.inputs > 0 {
		b.kernels.round(&dst.x[token*dst.words+first/2], &x[0], len(x))
		return
	}
	copy(dst.row(token)[first:], x)
}

// NewBuffer makes a buffer of zeros.
func (b *Backend) NewBuffer(tokens, width int) (backend.Buffer, error) {
	if tokens < 1 || width < 1 {
		return nil, fmt.Errorf("cpu: a buffer of %d × %d", tokens, width)
	}
	x, err := b.mem.floats(tokens * width)
	if err != nil {
		return nil, err
	}
	// Any buffer may be the input of Linear.
	if need := tokens * max(roundUp(width, 2), dotWords(width)); need > len(b.packed) {
		if b.packed, err = b.mem.floats(need); err != nil {
			return nil, err
		}
	}
	b.sample.reserve(tokens)
	return &buffer{tokens: tokens, width: width, x: x}, nil
}

// rope is a table of cosines and sines, [positions][pairs] each.
type rope struct {
	pairs     int
	positions int
	cos, sin  []float32
}

func (r *rope) Dims() int { return 2 * r.pairs }

// NewRope tabulates the angles, multiplied in float32 as the reference does.
func (b *Backend) NewRope(invFreq []float32, positions int) (backend.Rope, error) {
	if len(invFreq) < 1 || positions < 1 {
		return nil, fmt.Errorf("cpu: a rope of %d pairs and %d positions", len(invFreq), positions)
	}
	r := &rope{pairs: len(invFreq), positions: positions}
	var err error
	if r.cos, err = b.mem.floats(positions * r.pairs); err != nil {
		return nil, err
	}
	if r.sin, err = b.mem.floats(positions * r.pairs); err != nil {
		return nil, err
	}
	b.pool.run(&ropeTask{pool: b.pool, r: r, invFreq: invFreq})
	return r, nil
}

// Begin keeps the layout for the ops that follow.
func (b *Backend) Begin(step *backend.Step) {
	b.step = step
	b.pool.wake()
}

// Gather copies whole tokens.
func (b *Backend) Gather(dst, src backend.Buffer, tokens []int32) {
	d, s := dst.(*buffer), src.(*buffer)
	if d == s || d.width != s.width || d.tokens < len(tokens) {
		panic(fmt.Sprintf("cpu: gather %d tokens of width %d into %d × %d", len(tokens), s.width, d.tokens, d.width))
	}
	d.inputs = 0
	for i, t := range tokens {
		copy(d.row(i), s.row(int(t)))
	}
}

// Read copies the first len(dst) values of a token.
func (b *Backend) Read(dst []float32, src backend.Buffer, token int) error {
	s := src.(*buffer)
	if len(dst) > s.width || token < 0 || token >= s.tokens {
		panic(fmt.Sprintf("cpu: read %d values of token %d from %d × %d", len(dst), token, s.tokens, s.width))
	}
	if s.inputs == 0 {
		copy(dst, s.row(token))
		return nil
	}
	for i := range dst {
		bits := math.Float32bits(s.x[token*s.words+i/2])
		if i%2 == 0 {
			bits <<= 16
		}
		dst[i] = math.Float32frombits(bits & 0xffff0000)
	}
	return nil
}
