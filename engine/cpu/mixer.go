package cpu

import (
	"math"
	"unsafe"
)

// mixerKernels are the inner loops of attention and of the gated delta rule
// in one instruction set. All sets compute the same bits.
type mixerKernels struct {
	// By the binary logarithm of the number of rows, which is at most unitRows.
	//
	// scores multiplies queries q [dims][rows] by the keys k of a group, into
	// s [rows][splitPositions]; even and odd dims are summed apart, in order.
	// mix adds the values v of a group, weighted by p [rows][splitPositions] in
	// order of position, to acc [chunks][rows][16].
	// Both fetch from next as many bytes as they read.
	scoresBF16, scoresF32 [unitRowsLog2 + 1]func(s *float32, k *byte, q *float32, pairs int, next *byte)
	mixBF16, mixF32       [unitRowsLog2 + 1]func(acc *float32, v *byte, p *float32, chunks int, next *byte)
	// softmax replaces n scores, a multiple of 16, by their exponentials relative
	// to the largest; those of −Inf are zero. It returns their sum.
	softmax func(p *float32, n int, max *float32) float32
	// merge is acc = acc·a + part·b for each row, over [chunks][rows][16].
	merge func(acc, part, a, b *float32, rows, chunks int)
	// delta advances a tile s [dims][32] of the state by one token, and turns its
	// values v into the output. It fetches another tile from next.
	delta func(s, k, q *float32, dims int, v *float32, decay, beta, qk float32, next *float32)

	mulAdd func(dst, x, w *float32, n int) // dst += x·w
	gate   func(dst, g *float32, n int)    // dst = dst/(1+e⁻ᵍ)
}

var mixersGeneric = &mixerKernels{
	scoresBF16: [...]func(*float32, *byte, *float32, int, *byte){
		scoresGeneric(1, loadBF16), scoresGeneric(2, loadBF16), scoresGeneric(4, loadBF16), scoresGeneric(8, loadBF16),
	},
	scoresF32: [...]func(*float32, *byte, *float32, int, *byte){
		scoresGeneric(1, loadF32), scoresGeneric(2, loadF32), scoresGeneric(4, loadF32), scoresGeneric(8, loadF32),
	},
	mixBF16: [...]func(*float32, *byte, *float32, int, *byte){
		mixGeneric(1, loadBF16), mixGeneric(2, loadBF16), mixGeneric(4, loadBF16), mixGeneric(8, loadBF16),
	},
	mixF32: [...]func(*float32, *byte, *float32, int, *byte){
		mixGeneric(1, loadF32), mixGeneric(2, loadF32), mixGeneric(4, loadF32), mixGeneric(8, loadF32),
	},
	softmax: softmaxGeneric,
	merge:   mergeGeneric,
	delta:   deltaGeneric,
	mulAdd:  mulAddGeneric,
	gate:    gateGeneric,
}

// lanes16 are 16 numbers side by side.
type lanes16 = [groupPositions]float32

// loadBF16 yields the i-th pair of 16 lanes, [16][2] bf16 in memory.
func loadBF16(p *byte, i int, even, odd *lanes16) {
	for lane, w := range unsafe.Slice((*[groupPositions]uint32)(unsafe.Pointer(p)), i+1)[i] {
		even[lane], odd[lane] = math.Float32frombits(w<<16), math.Float32frombits(w&0xffff0000)
	}
}

// loadF32 does the same for [2][16] float32.
func loadF32(p *byte, i int, even, odd *lanes16) {
	w := unsafe.Slice((*lanes16)(unsafe.Pointer(p)), 2*i+2)
	*even, *odd = w[2*i], w[2*i+1]
}

func scoresGeneric(rows int, load func(p *byte, i int, even, odd *lanes16)) func(s *float32, k *byte, q *float32, pairs int, next *byte) {
	return func(s *float32, k *byte, q *float32, pairs int, _ *byte) {
		var even, odd [unitRows]lanes16
		qs := unsafe.Slice(q, 2*pairs*rows)
		for i := range pairs {
			var w0, w1 lanes16
			load(k, i, &w0, &w1)
			for r := range rows {
				for lane := range w0 {
					even[r][lane] = fma(w0[lane], qs[2*i*rows+r], even[r][lane])
					odd[r][lane] = fma(w1[lane], qs[(2*i+1)*rows+r], odd[r][lane])
				}
			}
		}
		out := unsafe.Slice(s, (rows-1)*splitPositions+groupPositions)
		for r := range rows {
			for lane := range even[r] {
				out[r*splitPositions+lane] = even[r][lane] + odd[r][lane]
			}
		}
	}
}

func mixGeneric(rows int, load func(p *byte, i int, even, odd *lanes16)) func(acc *float32, v *byte, p *float32, chunks int, next *byte) {
	return func(acc *float32, v *byte, p *float32, chunks int, _ *byte) {
		a := unsafe.Slice((*lanes16)(unsafe.Pointer(acc)), chunks*rows)
		ps := unsafe.Slice(p, (rows-1)*splitPositions+groupPositions)
		for c := range chunks {
			for i := range groupPositions / 2 {
				var w0, w1 lanes16
				load(v, c*groupPositions/2+i, &w0, &w1)
				for r := range rows {
					sum := &a[c*rows+r]
					for lane := range sum {
						x := fma(w0[lane], ps[r*splitPositions+2*i], sum[lane])
						sum[lane] = fma(w1[lane], ps[r*splitPositions+2*i+1], x)
					}
				}
			}
		}
	}
}

// softmaxGeneric adds in 16 lanes, and these pairwise, as dotGeneric does.
func softmaxGeneric(p *float32, n int, max *float32) float32 {
	x := unsafe.Slice((*lanes16)(unsafe.Pointer(p)), n/groupPositions)
	inf := float32(math.Inf(-1))
	*max = inf
	for i := range x {
		for _, v := range &x[i] {
			if v > *max {
				*max = v
			}
		}
	}
	var sum lanes16
	for i := range x {
		for lane, v := range &x[i] {
			if w := exp(v - *max); v == inf {
				x[i][lane] = 0
			} else {
				x[i][lane] = w
				sum[lane] += w
			}
		}
	}
	for half := groupPositions / 2; half > 0; half /= 2 {
		for lane := range half {
			sum[lane] += sum[lane+half]
		}
	}
	return sum[0]
}

func mergeGeneric(acc, part, a, b *float32, rows, chunks int) {
	sums := unsafe.Slice((*lanes16)(unsafe.Pointer(acc)), chunks*rows)
	parts := unsafe.Slice((*lanes16)(unsafe.Pointer(part)), chunks*rows)
	as, bs := unsafe.Slice(a, rows), unsafe.Slice(b, rows)
	for i := range sums {
		for lane, v := range &parts[i] {
			sums[i][lane] = fma(v, bs[i%rows], float32(sums[i][lane]*as[i%rows]))
		}
	}
}

// deltaGeneric is, for each of 32 columns of S:
// d = β·(v − g·kᵀS); o = g·qᵀS + (q·k)·d; S = g·S + k·d.
func deltaGeneric(s, k, q *float32, dims int, v *float32, decay, beta, qk float32, _ *float32) {
	S := unsafe.Slice((*[deltaTile]float32)(unsafe.Pointer(s)), dims)
	ks, qs := unsafe.Slice(k, dims), unsafe.Slice(q, dims)
	vs := (*[deltaTile]float32)(unsafe.Pointer(v))
	var kS, qS [deltaTile]float32
	for r := range S {
		for c, w := range &S[r] {
			kS[c] = fma(ks[r], w, kS[c])
			qS[c] = fma(qs[r], w, qS[c])
		}
	}
	for c := range vs {
		d := float32(fma(-kS[c], decay, vs[c]) * beta)
		vs[c] = fma(d, qk, float32(qS[c]*decay))
		kS[c] = d
	}
	for r := range S {
		for c := range &S[r] {
			S[r][c] = fma(ks[r], kS[c], float32(S[r][c]*decay))
		}
	}
}

func mulAddGeneric(dst, x, w *float32, n int) {
	d, ws := unsafe.Slice(dst, n), unsafe.Slice(w, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] = fma(v, ws[i], d[i])
	}
}

func gateGeneric(dst, g *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(g, n) {
		d[i] /= 1 + exp(-v)
	}
}
