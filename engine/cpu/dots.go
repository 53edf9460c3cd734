package cpu

import (
	"math"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

// dotWords is how far apart rows of inputs in pairs of bf16 lie, in words: an
// odd number of cache lines, so that the rows do not share a set of the cache.
func dotWords(inputs int) int {
	const line = lineBytes / 4
	words := roundUp((inputs+1)/2, line)
	if words/line%2 == 0 {
		words += line
	}
	return words
}

// dots says whether inputs of a matrix are rounded to bf16.
func (b *Backend) dots(m *matrix) bool { return b.precision == BF16 && m.dtype == backend.BF16 }

// packDots normalises and rounds the inputs, in rows of dotWords, unless they are so.
func (t *linearTask) packDots(worker int) []float32 {
	if t.src.inputs > 0 {
		return t.src.x
	}
	if t.n*t.words <= ownRowFloats { // sooner done than lines are fetched from another core
		x := t.b.packedRows[worker]
		t.roundRows(x, 0, t.n)
		return x
	}
	lo, hi := t.b.pool.part(worker, t.n)
	t.roundRows(t.b.packed, lo, hi)
	t.b.pool.barrier(worker)
	return t.b.packed
}

func (t *linearTask) roundRows(x []float32, lo, hi int) {
	k := t.b.kernels
	for r := lo; r < hi; r++ {
		row := t.src.row(r)[:t.m.inputs]
		if t.normed {
			k.scaleRound(&x[r*t.words], &row[0], &t.weight[0], len(row), t.inverse(row), t.offset)
		} else {
			k.round(&x[r*t.words], &row[0], len(row))
		}
	}
}

// dotsGeneric computes with addDot.
func dotsGeneric(rows int, acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, _ int, _ uintptr, _ int) {
	if !begun {
		clear(unsafe.Slice(acc, panels*rows*panelOutputs))
	}
	for p := range panels {
		ws := unsafe.Slice((*[panelOutputs]uint32)(unsafe.Add(unsafe.Pointer(w), p*pairs*pairBytes)), pairs)
		for r := range rows {
			a := (*[panelOutputs]float32)(unsafe.Add(unsafe.Pointer(acc), (p*rows+r)*panelOutputs*4))
			dotGenericRow(a, ws, unsafe.Slice((*uint32)(unsafe.Add(unsafe.Pointer(x), r*stride)), pairs))
		}
	}
}

func dotGenericRow(acc *[panelOutputs]float32, w [][panelOutputs]uint32, x []uint32) {
	for i := range w {
		for o, pair := range &w[i] {
			addDot(&acc[o], pair, x[i])
		}
	}
}

// addDot adds the products of two pairs of bf16 as VDPBF16PS does: that of the
// second of each first, each sum is rounded, and what is subnormal is zero.
func addDot(sum *float32, x, y uint32) {
	x0, x1 := flush(math.Float32frombits(x<<16)), flush(math.Float32frombits(x&0xffff0000))
	y0, y1 := flush(math.Float32frombits(y<<16)), flush(math.Float32frombits(y&0xffff0000))
	*sum = flush(fma(x0, y0, flush(fma(x1, y1, flush(*sum)))))
}

// flush makes subnormal numbers zero.
func flush(x float32) float32 {
	if math.Float32bits(x)&0x7f800000 == 0 {
		return math.Float32frombits(math.Float32bits(x) & 0x80000000)
	}
	return x
}

func roundGeneric(dst, x *float32, n int) {
	pairBF16(dst, unsafe.Slice(x, n), func(_ int, v float32) float32 { return v })
}

func scaleRoundGeneric(dst, x, w *float32, n int, a, b float32) {
	ws := unsafe.Slice(w, n)
	pairBF16(dst, unsafe.Slice(x, n), func(i int, v float32) float32 { return float32(v*a) * float32(ws[i]+b) })
}

// pairBF16 rounds f of each value; the last pair may lack its second.
func pairBF16(dst *float32, x []float32, f func(i int, v float32) float32) {
	d := unsafe.Slice((*uint32)(unsafe.Pointer(dst)), (len(x)+1)/2)
	for i, v := range x {
		h := uint32(backend.EncodeBF16(flush(f(i, v))))
		if i%2 == 0 {
			d[i/2] = h
		} else {
			d[i/2] |= h << 16
		}
	}
}

// multiplyDotsGeneric does two products where an instruction does.
func multiplyDotsGeneric(rounds int) float32 { return multiplyGeneric(2 * rounds) }
