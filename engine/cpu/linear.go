package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

const (
	ownRowFloats = 64 << 10 // up to so many inputs each worker packs for itself
	awayRows     = 4        // from so many rows on, results go past the caches
)

// linearTask is one product with its norm and epilogue.
//
// The rows are cut into groups of at most as many as a kernel takes at once,
// and each group is packed [inputs][rows], or with bf16 products each row as
// pairs of bf16. A single group makes one pass over each panel. Several take turns on a
// block of a panel that is in cache, and their accumulators go to memory between the
// blocks, which changes no bit.
type linearTask struct {
	b      *Backend
	dst    *buffer
	src    *buffer
	n      int
	m      *matrix
	epi    backend.Epilogue
	ends   *epilogues
	round  func(dst, x *float32, n int)
	normed bool
	weight []float32
	offset float32
	eps    float32
	cut    blocking
	groups int
	padded int // inputs, rounded up to a pair
	dots   bool
	words  int    // from one row of rounded inputs to the next
	shares shares // of the panels
}

// Linear multiplies; see linearTask.
func (b *Backend) Linear(dst, src backend.Buffer, n int, w backend.Matrix, opt backend.LinearOptions) {
	t := &b.linear
	t.dst, t.src, t.n, t.m, t.epi = dst.(*buffer), src.(*buffer), n, w.(*matrix), opt.Epilogue
	m := t.m
	if t.dst == t.src || n < 0 || n > t.src.tokens || n > t.dst.tokens || t.src.width < m.inputs || t.dst.width < m.outputs {
		panic(fmt.Sprintf("cpu: linear %d → %d over %d tokens from %d × %d into %d × %d",
			m.inputs, m.outputs, n, t.src.tokens, t.src.width, t.dst.tokens, t.dst.width))
	}
	if (t.epi == backend.SwiGLU) != (m.form == backend.GateUp) {
		panic("cpu: SwiGLU and GateUp go together")
	}
	if t.normed = opt.Norm != nil; t.normed {
		t.weight, t.offset, t.eps = opt.Norm.Weight.(vector), opt.Norm.Offset, opt.Norm.Eps
		if len(t.weight) != m.inputs {
			panic(fmt.Sprintf("cpu: a norm of %d before %d inputs", len(t.weight), m.inputs))
		}
	}
	if n == 0 {
		return
	}
	t.padded = 2 * m.pairs
	t.shares.dealAll(m.panels)
	t.cut = b.kernels.blocking
	if t.dots, t.words = b.dots(m), dotWords(m.inputs); t.dots {
		t.cut = b.kernels.dotBlocking
	}
	t.groups = (n + t.cut.rows - 1) / t.cut.rows
	if inputs := t.src.inputs; inputs > 0 && (inputs != m.inputs || !t.dots || t.normed) {
		panic(fmt.Sprintf("cpu: linear %d → %d of what was rounded for another", m.inputs, m.outputs))
	}
	if t.epi == backend.Add {
		t.dst.mustBeFloat()
	} else {
		b.begin(t.dst, m.outputs, m.width(), opt.Next)
	}
	t.ends, t.round = &b.kernels.near, b.kernels.round
	// The lines of dst are in other cores' caches, which read them last. To take each
	// from there takes longer than to write it to memory, past all caches; one core
	// alone, or few lines, are sooner written where they are. The barrier at the end
	// of the task, as a locked instruction, waits for such writes.
	if n >= awayRows && b.pool.workers > 1 {
		if t.dst.inputs > 0 {
			t.round = b.kernels.roundAway
		} else if t.dst.width%(lineBytes/4) == 0 {
			t.ends = &b.kernels.away
		}
	}
	b.pool.run(t)
}

// group is the rows [lo, hi) of a group.
func (t *linearTask) group(g int) (lo, hi int) {
	return g * t.n / t.groups, (g + 1) * t.n / t.groups
}

func (t *linearTask) work(worker int) {
	var x []float32
	if t.dots {
		x = t.packDots(worker)
	} else {
		x = t.pack(worker)
	}
	kernels := &t.b.kernels.tileF32
	if t.m.dtype == backend.BF16 {
		kernels = &t.b.kernels.tileBF16
	}
	few := fewRows
	if t.dots {
		few = fewDotRows
	}
	perChunk := t.cut.chunk / t.cut.rows
	for g0 := 0; g0 < t.groups; g0 += perChunk {
		if g0 > 0 {
			t.b.pool.barrier(worker)
			t.shares.deal(worker, t.m.panels)
			t.b.pool.barrier(worker)
		}
		g1 := min(g0+perChunk, t.groups)
		first, _ := t.group(g0)
		_, last := t.group(g1 - 1)
		rows := last - first
		passes := g1 - g0
		block, panels, together := t.cut.pairs, t.cut.panels, 1 // panels of one call
		switch {
		case passes == 1:
			together = min(callPanels, len(t.b.tiles[worker])/(rows*panelOutputs))
			block, panels = t.m.pairs, together
		case rows*t.padded*4 <= t.cut.shared:
			panels = 1 // all inputs stay in L2
		}
		for p0, p1 := t.shares.take(worker, panels); p0 < p1; p0, p1 = t.shares.take(worker, panels) {
			tiles := t.b.tiles[worker][:(p1-p0)*rows*panelOutputs]
			for pair := 0; pair < t.m.pairs; pair += block {
				pairs := min(block, t.m.pairs-pair)
				bytes := pairs * (t.m.stride / t.m.pairs)
				// One pass fetches what it will soon need itself; several fetch
				// the next blocks between them.
				ahead, step := t.b.kernels.many, bytes/pairs
				if passes > 1 {
					ahead.far, step = max(ahead.far, bytes), roundUp((bytes/pairs+passes-1)/passes, 2) // no line left out
				} else if rows <= few {
					ahead = t.b.kernels.few
				}
				for p := p0; p < p1; p += together {
					w := t.m.panel(p, pair)
					next := uintptr(w) + uintptr(ahead.far) // may lie past the end: never read
					for g := g0; g < g1; g++ {
						r0, r1 := t.group(g)
						acc := unsafe.Pointer(&tiles[((p-p0)*rows+r0-first)*panelOutputs])
						if t.dots {
							t.b.kernels.dots(r1-r0, (*float32)(acc), pair > 0, (*byte)(w), &x[r0*t.words+pair], 4*t.words, pairs, min(together, p1-p), ahead.near, next, step)
							next += uintptr(step * pairs)
							continue
						}
						kernels[r1-r0-1]((*float32)(acc), pair > 0, (*byte)(w), &x[r0*t.padded+2*pair*(r1-r0)], pairs, min(together, p1-p), ahead.near, next, step)
						next += uintptr(step * pairs)
					}
				}
			}
			// All that a token gets, before the next token.
			for r := range rows {
				t.finish(worker, p0, p1, first+r, tiles[r*panelOutputs:], rows*panelOutputs)
			}
		}
	}
}

// finish stores what some panels yielded for a token; stride lies between their tiles.
func (t *linearTask) finish(worker, lo, hi, token int, tiles []float32, stride int) {
	first, last := lo*t.m.width(), min(hi*t.m.width(), t.m.outputs)
	if t.dst.inputs == 0 {
		t.epilogue(t.dst.row(token)[first:last], tiles, stride)
		return
	}
	x := t.b.results[worker][:last-first]
	t.epilogue(x, tiles, stride)
	t.round(&t.dst.x[token*t.dst.words+first/2], &x[0], len(x))
}

// epilogue runs it over what panels yielded.
func (t *linearTask) epilogue(dst, tiles []float32, stride int) {
	k, width := t.b.kernels, t.m.width()
	if n := len(dst) / width; n > 0 {
		switch t.epi {
		case backend.Store:
			t.ends.store(&dst[0], &tiles[0], stride, n)
		case backend.Add:
			t.ends.add(&dst[0], &tiles[0], stride, n)
		case backend.SwiGLU:
			t.ends.swiglu(&dst[0], &tiles[0], stride, n)
		}
		if n*width == len(dst) {
			return
		}
		dst, tiles = dst[n*width:], tiles[n*stride:]
	}
	switch t.epi { // the last panel lacks outputs
	case backend.Store:
		copy(dst, tiles)
	case backend.Add:
		k.add(&dst[0], &tiles[0], len(dst))
	case backend.SwiGLU:
		k.swiglu(&dst[0], &tiles[0], &tiles[panelOutputs/2], len(dst))
	}
}

// pack normalises the inputs and lays them out for the kernels: group after
// group, each [inputs][rows].
func (t *linearTask) pack(worker int) []float32 {
	if t.n == 1 && !t.normed && t.padded == t.m.inputs {
		return t.src.x
	}
	if t.n*t.padded <= ownRowFloats { // sooner done than lines are fetched from another core
		x := t.b.packedRows[worker]
		for g := range t.groups {
			t.packGroup(x, g, 0, t.padded)
		}
		return x
	}
	x := t.b.packed
	if t.groups >= t.b.pool.workers {
		lo, hi := t.b.pool.part(worker, t.groups)
		for g := lo; g < hi; g++ {
			t.packGroup(x, g, 0, t.padded)
		}
	} else { // all workers share each group; every one sums the squares for itself
		const line = 16
		lo, hi := t.b.pool.part(worker, (t.padded+line-1)/line)
		for g := range t.groups {
			t.packGroup(x, g, lo*line, min(hi*line, t.padded))
		}
	}
	t.b.pool.barrier(worker)
	return x
}

// packGroup packs the inputs [lo, hi) of a group; lo is a multiple of 4.
func (t *linearTask) packGroup(x []float32, g, lo, hi int) {
	r0, r1 := t.group(g)
	rows := r1 - r0
	dst := x[r0*t.padded:][:rows*t.padded]
	src := t.src.x[r0*t.src.width:]
	if hi > t.m.inputs {
		hi = t.m.inputs
		clear(dst[hi*rows:])
	}
	if lo >= hi {
		return
	}
	var inv [maxTileRows]float32
	for r := range rows {
		if t.normed {
			inv[r] = t.inverse(src[r*t.src.width:][:t.m.inputs])
		}
	}
	k := t.b.kernels
	if rows == 1 {
		if t.normed {
			k.scale(&dst[lo], &src[lo], &t.weight[lo], hi-lo, inv[0], t.offset)
		} else {
			copy(dst[lo:hi], src[lo:hi])
		}
		return
	}
	one := lo // from here on, and below four rows, one value at a time
	if rows >= 4 && hi-lo >= 4 {
		one = hi &^ 3
		for r := 0; r < rows; r += 4 {
			r := min(r, rows-4) // some rows twice, rather than one by one
			d, s := &dst[lo*rows+r], &src[r*t.src.width+lo]
			if t.normed {
				k.packNorm4(d, rows, s, t.src.width, one-lo, &t.weight[lo], t.offset, inv[r], inv[r+1], inv[r+2], inv[r+3])
			} else {
				k.pack4(d, rows, s, t.src.width, one-lo)
			}
		}
	}
	for r := range rows {
		row := src[r*t.src.width:][:hi]
		for i := one; i < hi; i++ {
			if t.normed {
				dst[i*rows+r] = float32(row[i]*inv[r]) * float32(t.weight[i]+t.offset)
			} else {
				dst[i*rows+r] = row[i]
			}
		}
	}
}

// inverse is 1/√(mean(x²)+eps).
func (t *linearTask) inverse(x []float32) float32 {
	sum := t.b.kernels.dot(&x[0], &x[0], len(x))
	return float32(1 / math.Sqrt(float64(sum)/float64(len(x))+float64(t.eps)))
}
