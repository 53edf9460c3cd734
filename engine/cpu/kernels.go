package cpu

// kernels are the inner loops in one instruction set. All sets compute the
// same bits.
type kernels struct {
	blocking blocking // of the tile kernels
	lanes    int      // float32 in a vector

	// A tile kernel accumulates acc[r][o] += Σ x[i][r]·w[i][o] over pairs of
	// inputs, from zero if it is not begun, for as many rows as its index plus one, and
	// for all 32 outputs of panels that follow one another. acc is [panels][rows][32], x is
	// [inputs][rows], w points into a panel, whose pairs must be all of it if more
	// follow. Meanwhile it fetches what is near bytes after w into L1, and what is at
	// next into L2, moving on by step bytes, an even number, with each pair.
	tileBF16, tileF32 [maxTileRows]tileKernel
	few, many         fetch // of kernels for up to fewRows or fewDotRows rows, and for more
	runs              fetch // of keys and values in runs, by kernels of float32 products
	probe             fetch // of stream

	// A dot kernel does the same with inputs rounded to bf16, in pairs, two
	// products an instruction; nil where there is none. x is [rows][pairs], rows
	// stride bytes apart. round lays out n inputs so, in ⌈n/2⌉ words, and
	// scaleRound rounds (x·a)·(w+b). roundAway writes past the caches, to where half a
	// line begins.
	dots        dotKernel
	slowDots    bool // slower than float32: not taken unless asked for
	dotBlocking blocking
	round       func(dst, x *float32, n int)
	roundAway   func(dst, x *float32, n int)
	scaleRound  func(dst, x, w *float32, n int, a, b float32)

	// The packers lay four rows side by side: dst[i][0…3] of [n][rows], from
	// x[0…3][i], which are width apart; n is a multiple of 4. packNorm4 multiplies
	// by inv, and then by w+offset.
	pack4     func(dst *float32, rows int, x *float32, width, n int)
	packNorm4 func(dst *float32, rows int, x *float32, width, n int, w *float32, offset, inv0, inv1, inv2, inv3 float32)

	// near keeps results in the caches; away writes them past the caches, to where a
	// line begins.
	near, away epilogues

	// Vectors of any length n.
	dot    func(x, y *float32, n int) float32               // see dotGeneric for its order
	axpy   func(dst *float32, a float32, x *float32, n int) // dst += a·x
	add    func(dst, x *float32, n int)                     // dst += x
	scale  func(dst, x, w *float32, n int, a, b float32)    // dst = (x·a)·(w+b)
	exp    func(dst, x *float32, n int)                     // within 2 ulp
	silu   func(dst, x *float32, n int)                     // dst = x/(1+e⁻ˣ)
	swiglu func(dst, gate, up *float32, n int)              // dst = silu(gate)·up
	// scan finds the largest value; it is NaN if any value is NaN.
	scan func(x *float32, n int) float32
	// index is the first place of a value, or −1.
	index func(x *float32, n int, v float32) int

	// To measure the machine: stream reads memory in blocks of streamBytes and fetches
	// what is near bytes ahead into L1, and what is far bytes ahead into L2; multiply
	// does multiplyChains fused multiply-adds of all lanes in each round, and
	// multiplyDots dotFLOPs operations in bf16.
	stream       func(p *byte, bytes, near, far int) uint32
	multiply     func(rounds int) float32
	multiplyDots func(rounds int) float32
	dotFLOPs     int
}

// blocking is how a product of many rows is cut, so that what is used again stays in a
// cache.
type blocking struct {
	rows   int // of a group, which shares a kernel call, at most
	chunk  int // rows that one pass over the weights serves, whole groups
	pairs  int // of inputs in a block of a panel, which all rows of a chunk use in turn
	panels int // that share the inputs of a block
	shared int // bytes of a chunk's inputs up to which panels need not share them
}

// vectorBlocking suits kernels of vectors: a chunk holds the 256 tokens of a step, a block is 64 KB of bf16 weights, which stay in
// L2, as do its inputs, 512 KB rounded to bf16.
func vectorBlocking(rows int) blocking {
	return blocking{rows: rows, chunk: 264, pairs: 512, panels: 4, shared: 512 << 10}
}

// tileFloats is what the sums of some panels and a chunk need.
func (k *kernels) tileFloats() int {
	return max(k.blocking.panels*k.blocking.chunk, k.dotBlocking.panels*k.dotBlocking.chunk) * panelOutputs
}

// epilogues are what becomes of the sums of n panels for one token, n at least 1: tiles
// lie stride floats apart, and their results follow one another in dst.
type epilogues struct {
	store, add, swiglu func(dst, tile *float32, stride, n int)
}

type (
	tileKernel func(acc *float32, begun bool, w *byte, x *float32, pairs, panels, near int, next uintptr, step int)
	dotKernel  func(rows int, acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, near int, next uintptr, step int)
)

// fetch is how far ahead of their use weights are fetched by instruction, in
// bytes, into L1 and into L2; and keys and values into L2, the recurrent state into L1.
type fetch struct{ near, far, keys, state int }

const (
	maxTileRows    = 12
	fewRows        = 3  // whose kernels wait for memory, not for the multipliers
	fewDotRows     = 6  // the same of dot kernels
	callPanels     = 16 // of a kernel call, if they fit
	streamBytes    = 256
	multiplyChains = 12
)

var epiloguesGeneric = epilogues{
	store:  panelsGeneric(panelOutputs, func(dst, tile []float32) { copy(dst, tile) }),
	add:    panelsGeneric(panelOutputs, func(dst, tile []float32) { addGeneric(&dst[0], &tile[0], len(dst)) }),
	swiglu: panelsGeneric(panelOutputs/2, func(dst, tile []float32) { swigluGeneric(&dst[0], &tile[0], &tile[panelOutputs/2], len(dst)) }),
}

var generic = &kernels{
	blocking:     vectorBlocking(4),
	lanes:        1,
	tileBF16:     tilesGeneric(pairBytes, tileBF16Generic),
	tileF32:      tilesGeneric(2*pairBytes, tileF32Generic),
	dots:         dotsGeneric,
	slowDots:     true,
	dotBlocking:  vectorBlocking(maxTileRows),
	round:        roundGeneric,
	roundAway:    roundGeneric,
	scaleRound:   scaleRoundGeneric,
	pack4:        pack4Generic,
	packNorm4:    packNorm4Generic,
	dot:          dotGeneric,
	axpy:         axpyGeneric,
	near:         epiloguesGeneric,
	away:         epiloguesGeneric,
	add:          addGeneric,
	scale:        scaleGeneric,
	exp:          expGeneric,
	silu:         siluGeneric,
	swiglu:       swigluGeneric,
	scan:         scanGeneric,
	index:        indexGeneric,
	stream:       streamGeneric,
	multiply:     multiplyGeneric,
	multiplyDots: multiplyDotsGeneric,
	dotFLOPs:     2 * 2 * multiplyChains,
}
