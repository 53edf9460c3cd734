package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

// The kernels of a block of tokens under the gated delta rule; package cpu
// says what they compute, see mixerKernels.

const (
	block = 16        // tokens, see deltablock.go
	both  = 2 * block // rows: keys, then queries
	// Each kernel of a state works on so many of its key dims at a time.
	dimsAtOnce = 8
)

// scaled adds the number at m times w to sum, for several w; sign −1 subtracts.
func scaled(isa simd.ISA, sign int, m Mem, w, sum []reg.VecVirtual) {
	narrow, wide := VFMADD231PS, VFMADD231PS_BCST
	if sign < 0 {
		narrow, wide = VFNMADD231PS, VFNMADD231PS_BCST
	}
	if isa.Wide() {
		for i := range w {
			wide(m, w[i], sum[i])
		}
		return
	}
	v := isa.Vec()
	VBROADCASTSS(m, v)
	for i := range w {
		narrow(v, w[i], sum[i])
	}
}

// times multiplies vectors by the number at m.
func times(isa simd.ISA, m Mem, v []reg.VecVirtual) {
	if isa.Wide() {
		for i := range v {
			VMULPS_BCST(m, v[i], v[i])
		}
		return
	}
	w := isa.Vec()
	VBROADCASTSS(m, w)
	for i := range v {
		VMULPS(w, v[i], v[i])
	}
}

func vectors(isa simd.ISA, n int) (v []reg.VecVirtual) {
	for range n {
		v = append(v, isa.Vec())
	}
	return v
}

func load(isa simd.ISA, at Mem, v []reg.VecVirtual) {
	for i := range v {
		VMOVUPS(at.Offset(4*i*isa.Lanes), v[i])
	}
}

func store(isa simd.ISA, v []reg.VecVirtual, at Mem) {
	for i := range v {
		VMOVUPS(v[i], at.Offset(4*i*isa.Lanes))
	}
}

// product is x[r][c] = Σ kq[i][r]·w[i][c]. Sixteen sums, or eight narrow ones, are
// in registers at a time.
func product(isa simd.ISA) {
	text("product"+isa.Name, "func(x, kq, w *float32, dims int)")
	x, kq := Load(Param("x"), GP64()), Load(Param("kq"), GP64())
	rows, width := 8, tile
	if !isa.Wide() {
		rows, width = 4, tile/2
	}
	blocks := GP64()
	MOVQ(U32(uint32(both/rows)), blocks)
	Label("rows")
	for column := 0; column < tile; column += width {
		w, dims := Load(Param("w"), GP64()), Load(Param("dims"), GP64())
		q := GP64()
		MOVQ(kq, q)
		sums := make([][]reg.VecVirtual, rows)
		for r := range sums {
			for range width / isa.Lanes {
				sums[r] = append(sums[r], isa.Zero())
			}
		}
		loop := "dims" + string(rune('a'+column/width))
		Label(loop)
		v := vectors(isa, width/isa.Lanes)
		load(isa, Mem{Base: w, Disp: 4 * column}, v)
		for r := range sums {
			scaled(isa, 1, Mem{Base: q, Disp: 4 * r}, v, sums[r])
		}
		ADDQ(U32(4*tile), w)
		ADDQ(U32(4*both), q)
		DECQ(dims)
		JNZ(LabelRef(loop))
		for r := range sums {
			store(isa, sums[r], Mem{Base: x, Disp: 4 * (r*tile + column)})
		}
	}
	ADDQ(U32(uint32(4*rows*tile)), x)
	ADDQ(U32(uint32(4*rows)), kq)
	DECQ(blocks)
	JNZ(LabelRef("rows"))
	VZEROUPPER()
	RET()
}

// weigh makes the weights of some tokens of a block out of their products and decays.
func weigh(isa simd.ISA) {
	text("weigh"+isa.Name, "func(a, p, ratio, pairs, decay, beta *float32, first, tokens int)")
	a, p, pairs := Load(Param("a"), GP64()), Load(Param("p"), GP64()), Load(Param("pairs"), GP64())
	decay, beta := Load(Param("decay"), GP64()), Load(Param("beta"), GP64())
	first, tokens := Load(Param("first"), GP64()), Load(Param("tokens"), GP64())
	last, unit := Load(Param("ratio"), GP64()), GP64()
	ratio := vectors(isa, block/isa.Lanes)
	load(isa, Mem{Base: last}, ratio)
	LEAQ(unitTable().Offset(4*(block-1)), unit)
	SHLQ(Imm(2), first)
	SUBQ(first, unit)
	Label("token")
	g, b := isa.Vec(), isa.Vec()
	VBROADCASTSS(Mem{Base: decay}, g)
	VBROADCASTSS(Mem{Base: beta}, b)
	for k, v := range ratio {
		at := 4 * k * isa.Lanes
		VFMADD213PS(Mem{Base: unit, Disp: at}, g, v)
		w := isa.Vec()
		VMULPS(Mem{Base: pairs, Disp: 4*block*block + at}, v, w)
		VMOVUPS(w, Mem{Base: p, Disp: at})
		VMULPS(v, b, w)
		VMULPS(Mem{Base: pairs, Disp: at}, w, w)
		VMOVUPS(w, Mem{Base: a, Disp: at})
	}
	for _, r := range []reg.Register{a, p, pairs} {
		ADDQ(Imm(4*block), r)
	}
	ADDQ(Imm(4), decay)
	ADDQ(Imm(4), beta)
	SUBQ(Imm(4), unit)
	DECQ(tokens)
	JNZ(LabelRef("token"))
	store(isa, ratio, Mem{Base: last})
	VZEROUPPER()
	RET()
}

var units *Mem

// unitTable is a one between zeros, 15 on each side.
func unitTable() Mem {
	if units == nil {
		m := GLOBL("units", RODATA|NOPTR)
		for i := range 2*block - 1 {
			v := float32(0)
			if i == block-1 {
				v = 1
			}
			DATA(4*i, U32(math.Float32bits(v)))
		}
		units = &m
	}
	return *units
}

// solve finds what a block adds to a tile of the state, and its outputs.
func solve(isa simd.ISA) {
	text("solve"+isa.Name, "func(v *float32, stride int, d, x, a, p, rise, beta, tail *float32)")
	if isa.Wide() {
		solveWide(isa)
	} else {
		solveNarrow(isa)
	}
	VZEROUPPER()
	RET()
}

// solveWide has all tokens of 16 columns in registers.
func solveWide(isa simd.ISA) {
	v, stride := Load(Param("v"), GP64()), Load(Param("stride"), GP64())
	SHLQ(Imm(2), stride)
	d, x, a, p := Load(Param("d"), GP64()), Load(Param("x"), GP64()), Load(Param("a"), GP64()), Load(Param("p"), GP64())
	rise, beta, tail := Load(Param("rise"), GP64()), Load(Param("beta"), GP64()), Load(Param("tail"), GP64())
	halves := GP64()
	MOVQ(U32(tile/16), halves)
	Label("half")
	at := GP64()
	MOVQ(v, at)
	values := vectors(isa, block)
	for i := range values {
		VMOVUPS(Mem{Base: at}, values[i])
		ADDQ(stride, at)
		kS := isa.Vec()
		VMOVUPS(Mem{Base: x, Disp: 4 * i * tile}, kS)
		scaled(isa, -1, Mem{Base: rise, Disp: 4 * i}, []reg.VecVirtual{kS}, values[i:i+1])
		times(isa, Mem{Base: beta, Disp: 4 * i}, values[i:i+1])
	}
	for j := range block {
		for i := j + 1; i < block; i++ {
			scaled(isa, -1, Mem{Base: a, Disp: 4 * (i*block + j)}, values[j:j+1], values[i:i+1])
		}
	}
	MOVQ(v, at)
	for first := 0; first < block; first += 8 {
		out := vectors(isa, 8)
		for k := range out {
			VMOVUPS(Mem{Base: x, Disp: 4 * (block + first + k) * tile}, out[k])
			times(isa, Mem{Base: rise, Disp: 4 * (first + k)}, out[k:k+1])
		}
		for j := range block {
			for k := range out {
				if i := first + k; j <= i {
					scaled(isa, 1, Mem{Base: p, Disp: 4 * (i*block + j)}, values[j:j+1], out[k:k+1])
				}
			}
		}
		for _, o := range out {
			VMOVUPS(o, Mem{Base: at})
			ADDQ(stride, at)
		}
	}
	for i := range values {
		times(isa, Mem{Base: tail, Disp: 4 * i}, values[i:i+1])
		VMOVUPS(values[i], Mem{Base: d, Disp: 4 * i * tile})
	}
	for _, r := range []reg.Register{v, x, d} {
		ADDQ(Imm(4*16), r)
	}
	DECQ(halves)
	JNZ(LabelRef("half"))
}

// solveNarrow goes from token to token, over all columns of the tile.
func solveNarrow(isa simd.ISA) {
	v, stride := Load(Param("v"), GP64()), Load(Param("stride"), GP64())
	SHLQ(Imm(2), stride)
	d, x, a, p := Load(Param("d"), GP64()), Load(Param("x"), GP64()), Load(Param("a"), GP64()), Load(Param("p"), GP64())
	rise, beta := Load(Param("rise"), GP64()), Load(Param("beta"), GP64())
	i, j, dj := GP64(), GP64(), GP64()
	XORQ(i, i)
	Label("token")
	value, out := vectors(isa, tile/isa.Lanes), vectors(isa, tile/isa.Lanes)
	load(isa, Mem{Base: v}, value)
	g := isa.Vec()
	VBROADCASTSS(Mem{Base: rise, Index: i, Scale: 4}, g)
	for c := range value {
		VFNMADD231PS(Mem{Base: x, Disp: 4 * c * isa.Lanes}, g, value[c])
		VMULPS(Mem{Base: x, Disp: 4 * (block*tile + c*isa.Lanes)}, g, out[c])
	}
	times(isa, Mem{Base: beta, Index: i, Scale: 4}, value)
	MOVQ(d, dj)
	XORQ(j, j)
	JMP(LabelRef("test"))
	Label("earlier")
	w := vectors(isa, tile/isa.Lanes)
	load(isa, Mem{Base: dj}, w)
	scaled(isa, -1, Mem{Base: a, Index: j, Scale: 4}, w, value)
	scaled(isa, 1, Mem{Base: p, Index: j, Scale: 4}, w, out)
	ADDQ(U32(4*tile), dj)
	INCQ(j)
	Label("test")
	CMPQ(j, i)
	JNE(LabelRef("earlier"))
	store(isa, value, Mem{Base: dj})
	scaled(isa, 1, Mem{Base: p, Index: j, Scale: 4}, value, out)
	store(isa, out, Mem{Base: v})
	ADDQ(stride, v)
	ADDQ(U32(4*tile), x)
	ADDQ(U32(4*block), a)
	ADDQ(U32(4*block), p)
	INCQ(i)
	CMPQ(i, Imm(block))
	JNE(LabelRef("token"))

	tail := Load(Param("tail"), GP64())
	Label("tail")
	load(isa, Mem{Base: d}, value)
	times(isa, Mem{Base: tail}, value)
	store(isa, value, Mem{Base: d})
	ADDQ(Imm(4), tail)
	ADDQ(U32(4*tile), d)
	DECQ(i)
	JNZ(LabelRef("tail"))
}

// match multiplies x by n keys, four at a time, [keys][dims]. Sums are in the order of
// the dot kernel: 16 lanes, then lane j and j+8, j+4, j+2, j+1.
func match(isa simd.ISA) {
	const at, lanes = 4, 16
	text("match"+isa.Name, "func(pairs, keys, x *float32, dims, n int)")
	pairs, n, stride := Load(Param("pairs"), GP64()), Load(Param("n"), GP64()), Load(Param("dims"), GP64())
	SHLQ(Imm(2), stride)
	zero := isa.Zero()
	for i := 0; i < block; i += isa.Lanes {
		VMOVUPS(zero, Mem{Base: pairs, Disp: 4 * i})
	}
	key := Load(Param("keys"), GP64())
	Label("keys")
	var keys [at]reg.GPVirtual
	var sums [at][]reg.VecVirtual
	for i := range keys {
		keys[i] = GP64()
		if i == 0 {
			MOVQ(key, keys[0])
		} else {
			LEAQ(Mem{Base: keys[i-1], Index: stride, Scale: 1}, keys[i])
		}
		for range lanes / isa.Lanes {
			sums[i] = append(sums[i], isa.Zero())
		}
	}
	x, dims := Load(Param("x"), GP64()), Load(Param("dims"), GP64())
	Label("dims")
	v := vectors(isa, lanes/isa.Lanes)
	load(isa, Mem{Base: x}, v)
	for i, k := range keys {
		for c := range v {
			VFMADD231PS(Mem{Base: k, Disp: 4 * c * isa.Lanes}, v[c], sums[i][c])
		}
		ADDQ(Imm(4*lanes), k)
	}
	ADDQ(Imm(4*lanes), x)
	SUBQ(Imm(lanes), dims)
	JNZ(LabelRef("dims"))

	var four [at]reg.Register // lane j, j+8 and j+4 added
	for i, s := range sums {
		y := s[0].AsY()
		if isa.Wide() {
			high := YMM()
			VEXTRACTF64X4(Imm(1), s[0], high)
			VADDPS(high, y, y)
		} else {
			VADDPS(s[1], y, y)
		}
		high := XMM()
		VEXTRACTF128(Imm(1), y, high)
		four[i] = s[0].AsX()
		VADDPS(high, four[i], four[i])
	}
	var two [at / 2]reg.VecVirtual // j+2: of two sums lanes 0, then lanes 1
	for i := range two {
		high := XMM()
		two[i] = XMM()
		VUNPCKLPS(four[2*i+1], four[2*i], two[i])
		VUNPCKHPS(four[2*i+1], four[2*i], high)
		VADDPS(high, two[i], two[i])
	}
	one, high := XMM(), XMM()
	VUNPCKLPD(two[1], two[0], one)
	VUNPCKHPD(two[1], two[0], high)
	VADDPS(high, one, one)
	VMOVUPS(one, Mem{Base: pairs})
	ADDQ(Imm(4*at), pairs)
	LEAQ(Mem{Base: key, Index: stride, Scale: at}, key)
	SUBQ(Imm(at), n)
	JG(LabelRef("keys"))
	VZEROUPPER()
	RET()
}

// token is solve for one token, with its products with the tiles of some heads, see
// tokenHead in package cpu.
func token(isa simd.ISA) {
	const atV, atS, atD, atK, atQ, atA, atP, atRise, atBeta, size = 0, 8, 16, 24, 32, 40, 48, 56, 60, 64
	text("token"+isa.Name, "func(heads *byte, n, dims, tiles, earlier, near int)")
	heads, n, near := Load(Param("heads"), GP64()), Load(Param("n"), GP64()), Load(Param("near"), GP64())
	Label("head")
	tiles, v, s, d := Load(Param("tiles"), GP64()), GP64(), GP64(), GP64()
	MOVQ(Mem{Base: heads, Disp: atV}, v)
	MOVQ(Mem{Base: heads, Disp: atS}, s)
	MOVQ(Mem{Base: heads, Disp: atD}, d)
	Label("tile")
	// What earlier tokens added lies elsewhere: it is fetched while the state is read.
	early, left := GP64(), Load(Param("earlier"), GP64())
	MOVQ(d, early)
	TESTQ(left, left)
	JZ(LabelRef("fetched"))
	Label("fetch")
	for line := 0; line < 4*tile; line += 64 {
		PREFETCHT0(Mem{Base: early, Disp: line})
	}
	ADDQ(U32(4*tile), early)
	DECQ(left)
	JNZ(LabelRef("fetch"))
	Label("fetched")
	k, q, dims := GP64(), GP64(), Load(Param("dims"), GP64())
	MOVQ(Mem{Base: heads, Disp: atK}, k)
	MOVQ(Mem{Base: heads, Disp: atQ}, q)
	var kS, out []reg.VecVirtual
	for range tile / isa.Lanes {
		kS, out = append(kS, isa.Zero()), append(out, isa.Zero())
	}
	Label("dim")
	for line := 0; line < 4*tile; line += 64 {
		PREFETCHT0(Mem{Base: s, Index: near, Scale: 1, Disp: line})
	}
	kr, qr := isa.Vec(), isa.Vec()
	VBROADCASTSS(Mem{Base: k}, kr)
	VBROADCASTSS(Mem{Base: q}, qr)
	for c := range kS {
		w := isa.Vec()
		VMOVUPS(Mem{Base: s, Disp: 4 * c * isa.Lanes}, w)
		VFMADD231PS(kr, w, kS[c])
		VFMADD231PS(qr, w, out[c])
	}
	ADDQ(U32(4*tile), s)
	ADDQ(Imm(4), k)
	ADDQ(Imm(4), q)
	DECQ(dims)
	JNZ(LabelRef("dim"))

	rise, beta := isa.Vec(), isa.Vec()
	VBROADCASTSS(Mem{Base: heads, Disp: atRise}, rise)
	VBROADCASTSS(Mem{Base: heads, Disp: atBeta}, beta)
	value := vectors(isa, tile/isa.Lanes)
	load(isa, Mem{Base: v}, value)
	for c := range value {
		VFNMADD231PS(kS[c], rise, value[c])
		VMULPS(beta, value[c], value[c])
		VMULPS(rise, out[c], out[c])
	}
	added, a, p := GP64(), GP64(), GP64() // by earlier tokens
	MOVQ(d, added)
	MOVQ(Mem{Base: heads, Disp: atA}, a)
	MOVQ(Mem{Base: heads, Disp: atP}, p)
	earlier := Load(Param("earlier"), GP64())
	TESTQ(earlier, earlier)
	JZ(LabelRef("last"))
	Label("earlier")
	w := vectors(isa, tile/isa.Lanes)
	load(isa, Mem{Base: added}, w)
	scaled(isa, -1, Mem{Base: a}, w, value)
	scaled(isa, 1, Mem{Base: p}, w, out)
	ADDQ(U32(4*tile), added)
	ADDQ(Imm(4), a)
	ADDQ(Imm(4), p)
	DECQ(earlier)
	JNZ(LabelRef("earlier"))
	Label("last")
	store(isa, value, Mem{Base: added})
	scaled(isa, 1, Mem{Base: p}, value, out)
	store(isa, out, Mem{Base: v})
	ADDQ(U32(4*tile), v)
	ADDQ(U32(4*tile*block), d)
	DECQ(tiles)
	JNZ(LabelRef("tile"))
	ADDQ(Imm(size), heads)
	DECQ(n)
	JNZ(LabelRef("head"))
	VZEROUPPER()
	RET()
}

// update decays a tile of the state and adds what a block found.
func update(isa simd.ISA) {
	text("update"+isa.Name, "func(s, kq, d *float32, dims int, decay float32)")
	s, kq, dims := Load(Param("s"), GP64()), Load(Param("kq"), GP64()), Load(Param("dims"), GP64())
	decay := isa.Vec()
	broadcast("decay", decay)
	rows, width := dimsAtOnce, tile
	if !isa.Wide() {
		rows, width = dimsAtOnce/2, tile/2
	}
	Label("dims")
	for column := 0; column < tile; column += width {
		d, k, left := Load(Param("d"), GP64()), GP64(), GP64()
		MOVQ(kq, k)
		MOVQ(U32(block), left)
		sums := make([][]reg.VecVirtual, rows)
		place := func(r int) Mem { return Mem{Base: s, Disp: 4 * (r*tile + column)} }
		for r := range sums {
			sums[r] = vectors(isa, width/isa.Lanes)
			for c, v := range sums[r] {
				VMULPS(place(r).Offset(4*c*isa.Lanes), decay, v)
			}
		}
		loop := "token" + string(rune('a'+column/width))
		Label(loop)
		w := vectors(isa, width/isa.Lanes)
		load(isa, Mem{Base: d, Disp: 4 * column}, w)
		for r := range sums {
			scaled(isa, 1, Mem{Base: k, Disp: 4 * r * both}, w, sums[r])
		}
		ADDQ(U32(4*tile), d)
		ADDQ(Imm(4), k)
		DECQ(left)
		JNZ(LabelRef(loop))
		for r := range sums {
			store(isa, sums[r], place(r))
		}
	}
	ADDQ(U32(uint32(4*rows*tile)), s)
	ADDQ(U32(uint32(4*rows*both)), kq)
	SUBQ(U32(uint32(rows)), dims)
	JNE(LabelRef("dims"))
	VZEROUPPER()
	RET()
}

// convolve is silu of a causal convolution.
func convolve(isa simd.ISA) {
	text("convolve"+isa.Name, "func(dst *float32, rows **float32, w *float32, n, taps, stride, ahead int)")
	dst, rows, w := Load(Param("dst"), GP64()), Load(Param("rows"), GP64()), Load(Param("w"), GP64())
	at, taps, stride := GP64(), Load(Param("taps"), GP64()), Load(Param("stride"), GP64())
	XORQ(at, at)
	n, ahead := GP64(), Load(Param("ahead"), GP64())
	Load(Param("n"), n)
	SHLQ(Imm(2), stride)
	SHLQ(Imm(2), ahead)
	e := isa.Exp()
	loop := "tap"
	vectorLoop(isa, n, func(load, store func(reg.VecVirtual, Mem)) {
		sum, tap, weight, row := isa.Zero(), GP64(), GP64(), GP64()
		XORQ(tap, tap)
		MOVQ(w, weight)
		Label(loop)
		MOVQ(Mem{Base: rows, Index: tap, Scale: 8}, row)
		x, y := isa.Vec(), isa.Vec()
		load(x, Mem{Base: row, Index: at, Scale: 4})
		load(y, Mem{Base: weight, Index: at, Scale: 4})
		VFMADD231PS(x, y, sum)
		ADDQ(stride, weight)
		INCQ(tap)
		CMPQ(tap, taps)
		JNE(LabelRef(loop))
		loop = "restTap"
		LEAQ(Mem{Base: row, Index: at, Scale: 4}, row)
		PREFETCHT0(Mem{Base: row, Index: ahead, Scale: 1})
		e.Silu(sum)
		store(sum, Mem{Base: dst})
	}, func() {
		ADDQ(U32(uint32(4*isa.Lanes)), dst)
		ADDQ(U32(uint32(isa.Lanes)), at)
	})
}
