package cpu

import (
	"math"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

// mixerKernels are the inner loops of attention and of the gated delta rule
// in one instruction set. All sets compute the same bits.
type mixerKernels struct {
	// By the number of rows, less one. k and v list where some groups are.
	//
	// scores multiplies queries q [dims][rows] by the keys of each group, into
	// s [rows][splitPositions], where the groups follow each other; even and odd
	// dims are summed apart, in order.
	// mix adds the values of the groups, weighted by p [rows][splitPositions] in
	// order of position, to acc [chunks][rows][16].
	// Both fetch as many bytes as they read: into L1 what is near bytes after it, and into
	// L2 what is far bytes after what is later in the list by ahead.
	scoresBF16, scoresF32 [unitRows]func(s *float32, k **byte, groups int, q *float32, pairs, ahead, near, far int)
	mixBF16, mixF32       [unitRows]func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, near, far int)
	// The same of a bf16 cache with queries and weights rounded to bf16, two products
	// an instruction; nil where there are none. Rows of q and p are pairs, dotRowWords
	// apart, and even and odd pairs of dims are summed apart. They fetch into L2 what is
	// later in the list by ahead.
	scoresDots [unitRows]func(s *float32, k **byte, groups int, q *float32, pairs, ahead int)
	// mixDots does several splits: acc of each is stride bytes after that of the one
	// before, and begins with zeros; p is as of weightsDots.
	mixDots [unitRows]func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, stride int)
	// weightsDots makes of some splits, of 16 groups each, the rounded weights w
	// [splits][8][dotRowWords], the largest score of each row and its sum of weights
	// [splits][8]: scoresDots, softmax and rounding in one. work is weightsWork numbers.
	weightsDots [unitRows]func(w, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32)
	// passDots, where it is not nil, takes the place of the other three, and does splits
	// one after the other: from the keys of some groups it makes scores; and of the split
	// before, from its scores and so many groups of values, the weights p, the sum of
	// them for each row, and acc. Either number may be 0. Scores are passWork numbers:
	// [8][splitPositions], the largest of each row, and the same made finite.
	// Where ahead is 0, groups follow one another in memory. One more is listed at least:
	// that, or else what is read next.
	passDots [unitRows]func(acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32)
	// softmax replaces n scores, a multiple of 16, by their exponentials relative
	// to the largest; those of −Inf are zero. It returns their sum.
	softmax func(p *float32, n int, max *float32) float32
	// softmaxDots does so as exactly as weights need that are rounded to bf16.
	softmaxDots func(p *float32, n int, max *float32) float32
	// merge is acc = acc·a + part·b for each row, over [chunks][rows][16].
	merge func(acc, part, a, b *float32, rows, chunks int)

	// Of a block of 16 tokens under the gated delta rule, in the terms of
	// deltaBlock. There kq is [dims][32], and a tile s of the state [dims][32];
	// dims is a multiple of 16.
	//
	// product multiplies w [dims][32] by all rows of kq, into [32][32].
	// match makes a row of the pairs k·k or q·k, of x with n keys [n][dims]; n is rounded
	// up to a multiple of 4, and the rest of the row is zero.
	// weigh makes rows of A and P from the pairs, and moves a row of D on by
	// as many tokens, the first of which is given.
	// solve finds d [16][32] of a tile from x = kqᵀS, and turns the values v into
	// the outputs; stride lies between those of two tokens. It leaves d times tail.
	// token does so for one token, with so many earlier ones in the block, and n value
	// heads, each a tokenHead, of tiles that follow one another; it fetches what is near
	// bytes ahead in s.
	// update is s = s·decay + k⊗d.
	product func(x, kq, w *float32, dims int)
	match   func(pairs, keys, x *float32, dims, n int)
	weigh   func(a, p, ratio, pairs, decay, beta *float32, first, tokens int)
	solve   func(v *float32, stride int, d, x, a, p, rise, beta, tail *float32)
	token   func(heads *byte, n, dims, tiles, earlier, near int)
	update  func(s, kq, d *float32, dims int, decay float32)

	// convolve is silu(Σ x·w) over taps, of n channels: x is in the tap's row, and w is
	// [taps][stride]. It fetches what lies ahead of the last row.
	convolve func(dst *float32, rows **float32, w *float32, n, taps, stride, ahead int)
	gate     func(dst, g *float32, n int) // dst = dst/(1+e⁻ᵍ)
	// rotate turns n pairs of numbers.
	rotate func(low, high, cos, sin *float32, n int)
	// collect is dst = acc·by + 0, where each 16 of n are stride apart in acc.
	collect func(dst, acc *float32, stride, n int, by float32)
	// zip stores n pairs of x and y as bf16, each 16 pairs in a chunk of values.
	zip func(dst *byte, x, y *float32, n int)
	// zipSecond stores the second of such pairs, and keeps the first.
	zipSecond func(dst *byte, y *float32, n int)
	// storeKey stores n values, a multiple of 8, as pairs of bf16, a line after each other.
	storeKey func(dst *byte, x *float32, n int)
}

var mixersGeneric = &mixerKernels{
	scoresBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresGeneric(1, loadBF16), scoresGeneric(2, loadBF16), scoresGeneric(3, loadBF16), scoresGeneric(4, loadBF16),
		scoresGeneric(5, loadBF16), scoresGeneric(6, loadBF16), scoresGeneric(7, loadBF16), scoresGeneric(8, loadBF16),
	},
	scoresF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresGeneric(1, loadF32), scoresGeneric(2, loadF32), scoresGeneric(3, loadF32), scoresGeneric(4, loadF32),
		scoresGeneric(5, loadF32), scoresGeneric(6, loadF32), scoresGeneric(7, loadF32), scoresGeneric(8, loadF32),
	},
	mixBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixGeneric(1, loadBF16), mixGeneric(2, loadBF16), mixGeneric(3, loadBF16), mixGeneric(4, loadBF16),
		mixGeneric(5, loadBF16), mixGeneric(6, loadBF16), mixGeneric(7, loadBF16), mixGeneric(8, loadBF16),
	},
	mixF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixGeneric(1, loadF32), mixGeneric(2, loadF32), mixGeneric(3, loadF32), mixGeneric(4, loadF32),
		mixGeneric(5, loadF32), mixGeneric(6, loadF32), mixGeneric(7, loadF32), mixGeneric(8, loadF32),
	},
	scoresDots: [...]func(*float32, **byte, int, *float32, int, int){
		scoresDotsGeneric(1), scoresDotsGeneric(2), scoresDotsGeneric(3), scoresDotsGeneric(4),
		scoresDotsGeneric(5), scoresDotsGeneric(6), scoresDotsGeneric(7), scoresDotsGeneric(8),
	},
	mixDots: [...]func(*float32, **byte, int, *float32, int, int, int){
		mixDotsGeneric(1), mixDotsGeneric(2), mixDotsGeneric(3), mixDotsGeneric(4),
		mixDotsGeneric(5), mixDotsGeneric(6), mixDotsGeneric(7), mixDotsGeneric(8),
	},
	weightsDots: [...]func(w, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32){
		weightsDotsGeneric(1, scoresDotsGeneric(1)), weightsDotsGeneric(2, scoresDotsGeneric(2)), weightsDotsGeneric(3, scoresDotsGeneric(3)), weightsDotsGeneric(4, scoresDotsGeneric(4)),
		weightsDotsGeneric(5, scoresDotsGeneric(5)), weightsDotsGeneric(6, scoresDotsGeneric(6)), weightsDotsGeneric(7, scoresDotsGeneric(7)), weightsDotsGeneric(8, scoresDotsGeneric(8)),
	},
	softmax:     softmaxGeneric,
	softmaxDots: softmaxDotsGeneric,
	merge:       mergeGeneric,
	product:     productGeneric,
	match:       matchGeneric,
	weigh:       weighGeneric,
	solve:       solveGeneric,
	token:       tokenGeneric,
	update:      updateGeneric,
	convolve:    convolveGeneric,
	gate:        gateGeneric,
	rotate:      rotateGeneric,
	collect:     collectGeneric,
	zip:         zipGeneric,
	zipSecond:   zipSecondGeneric,
	storeKey:    storeKeyGeneric,
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

func scoresGeneric(rows int, load func(p *byte, i int, even, odd *lanes16)) func(s *float32, k **byte, groups int, q *float32, pairs, ahead, near, far int) {
	return func(s *float32, k **byte, groups int, q *float32, pairs, _, _, _ int) {
		qs := unsafe.Slice(q, 2*pairs*rows)
		out := unsafe.Slice(s, (rows-1)*splitPositions+groups*groupPositions)
		for g, keys := range unsafe.Slice(k, groups) {
			var even, odd [unitRows]lanes16
			for i := range pairs {
				var w0, w1 lanes16
				load(keys, i, &w0, &w1)
				for r := range rows {
					for lane := range w0 {
						even[r][lane] = fma(w0[lane], qs[2*i*rows+r], even[r][lane])
						odd[r][lane] = fma(w1[lane], qs[(2*i+1)*rows+r], odd[r][lane])
					}
				}
			}
			for r := range rows {
				for lane := range even[r] {
					out[r*splitPositions+g*groupPositions+lane] = even[r][lane] + odd[r][lane]
				}
			}
		}
	}
}

func mixGeneric(rows int, load func(p *byte, i int, even, odd *lanes16)) func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, near, far int) {
	return func(acc *float32, v **byte, groups int, p *float32, chunks, _, _, _ int) {
		a := unsafe.Slice((*lanes16)(unsafe.Pointer(acc)), chunks*rows)
		ps := unsafe.Slice(p, (rows-1)*splitPositions+groups*groupPositions)
		for g, values := range unsafe.Slice(v, groups) {
			for i := range chunks * groupPositions / 2 {
				c, position := i/(groupPositions/2), g*groupPositions+i%(groupPositions/2)*2
				var w0, w1 lanes16
				load(values, i, &w0, &w1)
				for r := range rows {
					sum, weights := &a[c*rows+r], ps[r*splitPositions+position:]
					for lane := range sum {
						x := fma(w0[lane], weights[0], sum[lane])
						sum[lane] = fma(w1[lane], weights[1], x)
					}
				}
			}
		}
	}
}

func scoresDotsGeneric(rows int) func(s *float32, k **byte, groups int, q *float32, pairs, ahead int) {
	return func(s *float32, k **byte, groups int, q *float32, pairs, _ int) {
		qs := unsafe.Slice((*uint32)(unsafe.Pointer(q)), (rows-1)*dotRowWords+pairs)
		out := unsafe.Slice(s, (rows-1)*splitPositions+groups*groupPositions)
		for g, keys := range unsafe.Slice(k, groups) {
			ks := unsafe.Slice((*[groupPositions]uint32)(unsafe.Pointer(keys)), pairs)
			for r := range rows {
				var sums [2]lanes16 // of even and odd pairs
				for i := range ks {
					for lane := range sums[i%2] {
						addDot(&sums[i%2][lane], ks[i][lane], qs[r*dotRowWords+i])
					}
				}
				for lane, even := range sums[0] {
					out[r*splitPositions+g*groupPositions+lane] = even + sums[1][lane]
				}
			}
		}
	}
}

func weightsDotsGeneric(rows int, scores func(s *float32, k **byte, groups int, q *float32, pairs, ahead int)) func(w, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32) {
	return func(w, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32) {
		for s := range splits {
			scores(work, &unsafe.Slice(k, splits*splitGroups)[s*splitGroups], splitGroups, q, pairs, ahead)
			for r := range rows {
				p := unsafe.Slice(work, rows*splitPositions)[r*splitPositions:][:splitPositions]
				at := s*unitRows + r
				unsafe.Slice(sum, at+1)[at] = softmaxDotsGeneric(&p[0], len(p), &unsafe.Slice(max, at+1)[at])
				roundGeneric(&unsafe.Slice(w, (at+1)*dotRowWords)[at*dotRowWords], &p[0], len(p))
			}
		}
	}
}

func mixDotsGeneric(rows int) func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, stride int) {
	const positions = groupPositions / 2 // pairs
	return func(acc *float32, v **byte, groups int, p *float32, chunks, _, stride int) {
		for g, values := range unsafe.Slice(v, groups) {
			split, in := g/splitGroups, g%splitGroups
			sums := unsafe.Slice((*lanes16)(unsafe.Add(unsafe.Pointer(acc), split*stride)), chunks*rows)
			if in == 0 {
				clear(sums)
			}
			ps := unsafe.Slice((*uint32)(unsafe.Pointer(p)), split*unitRows*dotRowWords+(rows-1)*dotRowWords+(in+1)*positions)
			ps = ps[split*unitRows*dotRowWords:]
			vs := unsafe.Slice((*[chunkDims]uint32)(unsafe.Pointer(values)), chunks*positions)
			for i := range vs {
				for r := range rows {
					for lane := range vs[i] {
						addDot(&sums[i/positions*rows+r][lane], vs[i][lane], ps[r*dotRowWords+in*positions+i%positions])
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
	*max = largestLane(x)
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
	return sumLanes(&sum)
}

// weightPoly is 2^f for f from 0 to 1, within 4·10⁻⁶ of it, and 1 and 2 at the ends; the
// highest power first.
var weightPoly = [...]float32{0.0135557456, 0.0520323664, 0.241379768, 0.693032146, 1}

// weightGeneric is e^(x−largest), as exact as its rounding to bf16 needs.
func weightGeneric(x, largest float32) float32 {
	y := float32(x-largest) * log2e
	if y != y || y < -200 {
		return max(y, 0)
	}
	floor := math.Floor(float64(y))
	rest := float32(float64(y) - floor)
	p := weightPoly[0]
	for _, c := range weightPoly[1:] {
		p = fma(p, rest, c)
	}
	return float32(math.Ldexp(float64(p), int(floor)))
}

// softmaxDotsGeneric adds as softmaxGeneric does.
func softmaxDotsGeneric(p *float32, n int, largest *float32) float32 {
	x := unsafe.Slice((*lanes16)(unsafe.Pointer(p)), n/groupPositions)
	*largest = largestLane(x)
	finite := max(*largest, -math.MaxFloat32)
	var sum lanes16
	for i := range x {
		for lane, v := range &x[i] {
			x[i][lane] = weightGeneric(v, finite)
			sum[lane] += x[i][lane]
		}
	}
	return sumLanes(&sum)
}

// largestLane is the largest of all numbers; NaN does not count.
func largestLane(x []lanes16) float32 {
	largest := float32(math.Inf(-1))
	for i := range x {
		for _, v := range &x[i] {
			if v > largest {
				largest = v
			}
		}
	}
	return largest
}

// sumLanes adds pairwise, as dotGeneric does.
func sumLanes(sum *lanes16) float32 {
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

func gateGeneric(dst, g *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(g, n) {
		d[i] /= 1 + exp(-v)
	}
}

func rotateGeneric(low, high, cos, sin *float32, n int) {
	l, h := unsafe.Slice(low, n), unsafe.Slice(high, n)
	cs, ss := unsafe.Slice(cos, n), unsafe.Slice(sin, n)
	for i, x := range l {
		y := h[i]
		l[i] = float32(x*cs[i]) - float32(y*ss[i])
		h[i] = float32(y*cs[i]) + float32(x*ss[i])
	}
}

func collectGeneric(dst, acc *float32, stride, n int, by float32) {
	d := unsafe.Slice(dst, n)
	a := unsafe.Slice(acc, (n-1)/chunkDims*stride+(n-1)%chunkDims+1)
	for i := range d {
		// Plus zero: whether a zero is negative may depend on masked positions.
		d[i] = float32(a[i/chunkDims*stride+i%chunkDims]*by) + 0
	}
}

func zipSecondGeneric(dst *byte, y *float32, n int) {
	const stride = groupPositions / 2 * chunkDims
	d := unsafe.Slice((*uint32)(unsafe.Pointer(dst)), (n-1)/chunkDims*stride+(n-1)%chunkDims+1)
	for i, v := range unsafe.Slice(y, n) {
		first := &d[i/chunkDims*stride+i%chunkDims]
		*first = *first&0xffff | uint32(backend.EncodeBF16(v))<<16
	}
}

func storeKeyGeneric(dst *byte, x *float32, n int) {
	d, xs := unsafe.Slice((*uint32)(unsafe.Pointer(dst)), (n/2-1)*groupPositions+1), unsafe.Slice(x, n)
	for i := range n / 2 {
		d[i*groupPositions] = uint32(backend.EncodeBF16(xs[2*i])) | uint32(backend.EncodeBF16(xs[2*i+1]))<<16
	}
}

func zipGeneric(dst *byte, x, y *float32, n int) {
	const stride = groupPositions / 2 * chunkDims // pairs from chunk to chunk
	d := unsafe.Slice((*uint32)(unsafe.Pointer(dst)), (n-1)/chunkDims*stride+(n-1)%chunkDims+1)
	ys := unsafe.Slice(y, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i/chunkDims*stride+i%chunkDims] = uint32(backend.EncodeBF16(v)) | uint32(backend.EncodeBF16(ys[i]))<<16
	}
}
