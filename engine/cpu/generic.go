package cpu

import (
	"math"
	"unsafe"
)

// fma is a·b+c in float32, rounded once, as the instruction rounds. The
// product is exact in float64 and the sum is then rounded twice, which differs
// only if the first rounding ends exactly between two float32 (or if the result
// is subnormal); then it is redone, rounding to odd.
func fma(a, b, c float32) float32 {
	p, z := float64(a)*float64(b), float64(c)
	s := p + z
	if math.Float64bits(s)&0x1fffffff == 0x10000000 || math.Abs(s) < 0x1p-126 {
		return fmaOdd(p, z, s)
	}
	return float32(s)
}

func fmaOdd(p, z, s float64) float32 {
	// The rounding error of the sum, exactly (Knuth). NaN and infinity have none.
	v := s - p
	e := (p - (s - v)) + (z - v)
	if bits := math.Float64bits(s); e > 0 || e < 0 {
		if bits&1 == 0 {
			if (e > 0) == (s > 0) {
				bits++
			} else {
				bits--
			}
		}
		s = math.Float64frombits(bits)
	}
	return float32(s)
}

// tilesGeneric makes a kernel for each number of rows; a pair of weights has some bytes.
func tilesGeneric(bytes int, tile func(rows int, acc *float32, w *byte, x *float32, pairs int)) (t [maxTileRows]tileKernel) {
	for i := range t {
		rows := i + 1
		t[i] = func(acc *float32, begun bool, w *byte, x *float32, pairs, panels, _ int, _ uintptr, _ int) {
			if !begun {
				clear(unsafe.Slice(acc, panels*rows*panelOutputs))
			}
			for p := range panels {
				tile(rows, (*float32)(unsafe.Add(unsafe.Pointer(acc), 4*p*rows*panelOutputs)), (*byte)(unsafe.Add(unsafe.Pointer(w), p*pairs*bytes)), x, pairs)
			}
		}
	}
	return t
}

func tileBF16Generic(rows int, acc *float32, w *byte, x *float32, pairs int) {
	ws := unsafe.Slice((*[panelOutputs]uint32)(unsafe.Pointer(w)), pairs)
	xs := unsafe.Slice(x, pairs*2*rows)
	for r := range rows {
		a := (*[panelOutputs]float32)(unsafe.Add(unsafe.Pointer(acc), r*panelOutputs*4))
		for i := range ws {
			x0, x1 := xs[2*i*rows+r], xs[(2*i+1)*rows+r]
			for o, pair := range &ws[i] {
				v := fma(x0, math.Float32frombits(pair<<16), a[o])
				a[o] = fma(x1, math.Float32frombits(pair&0xffff0000), v)
			}
		}
	}
}

func tileF32Generic(rows int, acc *float32, w *byte, x *float32, pairs int) {
	ws := unsafe.Slice((*[panelOutputs]float32)(unsafe.Pointer(w)), 2*pairs)
	xs := unsafe.Slice(x, pairs*2*rows)
	for r := range rows {
		a := (*[panelOutputs]float32)(unsafe.Add(unsafe.Pointer(acc), r*panelOutputs*4))
		for i := range ws {
			xv := xs[i*rows+r]
			for o, v := range &ws[i] {
				a[o] = fma(xv, v, a[o])
			}
		}
	}
}

func pack4Generic(dst *float32, rows int, x *float32, width, n int) {
	d, s := unsafe.Slice(dst, (n-1)*rows+4), unsafe.Slice(x, 3*width+n)
	for r := range 4 {
		for i, v := range s[r*width:][:n] {
			d[i*rows+r] = v
		}
	}
}

func packNorm4Generic(dst *float32, rows int, x *float32, width, n int, w *float32, offset, inv0, inv1, inv2, inv3 float32) {
	d, s, ws := unsafe.Slice(dst, (n-1)*rows+4), unsafe.Slice(x, 3*width+n), unsafe.Slice(w, n)
	for r, inv := range [4]float32{inv0, inv1, inv2, inv3} {
		for i, v := range s[r*width:][:n] {
			d[i*rows+r] = float32(v*inv) * float32(ws[i]+offset)
		}
	}
}

func panelsGeneric(results int, f func(dst, tile []float32)) func(dst, tile *float32, stride, n int) {
	return func(dst, tile *float32, stride, n int) {
		d, s := unsafe.Slice(dst, n*results), unsafe.Slice(tile, (n-1)*stride+panelOutputs)
		for i := range n {
			f(d[i*results:][:results], s[i*stride:][:panelOutputs])
		}
	}
}

const dotLanes = 16

// dotGeneric accumulates in 16 lanes, lane j taking every 16th product, and
// adds the lanes pairwise: j and j+8, then j and j+4, j+2, j+1.
func dotGeneric(x, y *float32, n int) float32 {
	xs, ys := unsafe.Slice(x, n), unsafe.Slice(y, n)
	var lanes [dotLanes]float32
	for i, v := range xs {
		lanes[i%dotLanes] = fma(v, ys[i], lanes[i%dotLanes])
	}
	for half := dotLanes / 2; half > 0; half /= 2 {
		for j := range half {
			lanes[j] += lanes[j+half]
		}
	}
	return lanes[0]
}

func axpyGeneric(dst *float32, a float32, x *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] = fma(a, v, d[i])
	}
}

func addGeneric(dst, x *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] += v
	}
}

func scaleGeneric(dst, x, w *float32, n int, a, b float32) {
	d, ws := unsafe.Slice(dst, n), unsafe.Slice(w, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] = float32(v*a) * float32(ws[i]+b) // no fused rounding
	}
}

// The exponential: x = n·ln2 + r with |r| ≤ ln2/2, and a polynomial for eʳ.
const (
	expLow  = -87.33654 // above the logarithm of the smallest normal number
	expHigh = 88.37626  // n stays below 128
	log2e   = 1.44269504088896341
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
)

// expPoly is (eʳ−1−r)/r², the highest power first.
var expPoly = [...]float32{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1}

// exp saturates below −87.3 and above 88.3, and keeps NaN.
func exp(x float32) float32 {
	if x < expLow {
		x = expLow
	}
	if x > expHigh {
		x = expHigh
	}
	if x != x {
		return x
	}
	n := float32(math.RoundToEven(float64(float32(x * log2e))))
	r := fma(n, -ln2High, x)
	r = fma(n, -ln2Low, r)
	p := expPoly[0]
	for _, c := range expPoly[1:] {
		p = fma(p, r, c)
	}
	p = fma(float32(p*r), r, r) // p·r²+r
	p += 1
	return float32(p * math.Float32frombits(uint32(int32(n)+127)<<23)) // never fused with what follows
}

func silu(x float32) float32 { return x / (1 + exp(-x)) }

func expGeneric(dst, x *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] = exp(v)
	}
}

func siluGeneric(dst, x *float32, n int) {
	d := unsafe.Slice(dst, n)
	for i, v := range unsafe.Slice(x, n) {
		d[i] = silu(v)
	}
}

func swigluGeneric(dst, gate, up *float32, n int) {
	d, u := unsafe.Slice(dst, n), unsafe.Slice(up, n)
	for i, v := range unsafe.Slice(gate, n) {
		d[i] = silu(v) * u[i]
	}
}

func scanGeneric(x *float32, n int) float32 {
	best := float32(math.Inf(-1))
	for _, v := range unsafe.Slice(x, n) {
		if v != v {
			return v
		}
		best = max(best, v)
	}
	return best
}

func indexGeneric(x *float32, n int, v float32) int {
	for i, w := range unsafe.Slice(x, n) {
		if w == v {
			return i
		}
	}
	return -1
}

func streamGeneric(p *byte, bytes, _, _ int) (sum uint32) {
	for _, v := range unsafe.Slice((*[8]uint64)(unsafe.Pointer(p)), bytes/64) {
		sum |= uint32(v[0] | v[1] | v[2] | v[3] | v[4] | v[5] | v[6] | v[7])
	}
	return sum
}

// multiplyGeneric has one lane: what the generic kernels can reach.
func multiplyGeneric(rounds int) (sum float32) {
	var s [multiplyChains]float32
	for range rounds {
		for i := range s {
			s[i] = fma(s[i], 0.5, 1)
		}
	}
	for _, v := range s {
		sum += v
	}
	return sum
}
