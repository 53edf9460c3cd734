// Command vector generates the kernels over plain vectors of any length, and
// those that measure the machine.
package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

func main() {
	ConstraintExpr("!noasm")
	pause()
	fetchLines()
	pack4("pack4", false)
	pack4("packNorm4", true)
	for _, isa := range []simd.ISA{simd.AVX2, simd.AVX512} {
		dot(isa)
		axpy(isa)
		each(isa, "add", "func(dst, x *float32, n int)", []string{"dst", "x"}, func() func(v []reg.VecVirtual) {
			return func(v []reg.VecVirtual) { VADDPS(v[1], v[0], v[0]) }
		})
		scale(isa)
		each(isa, "exp", "func(dst, x *float32, n int)", []string{"x"}, func() func(v []reg.VecVirtual) {
			e := isa.Exp()
			return func(v []reg.VecVirtual) { e.Of(v[0]) }
		})
		each(isa, "silu", "func(dst, x *float32, n int)", []string{"x"}, func() func(v []reg.VecVirtual) {
			e := isa.Exp()
			return func(v []reg.VecVirtual) { e.Silu(v[0]) }
		})
		each(isa, "swiglu", "func(dst, gate, up *float32, n int)", []string{"gate", "up"}, func() func(v []reg.VecVirtual) {
			e := isa.Exp()
			return func(v []reg.VecVirtual) {
				e.Silu(v[0])
				VMULPS(v[1], v[0], v[0])
			}
		})
		panels(isa, false)
		panels(isa, true)
		scan(isa)
		index(isa)
		stream(isa)
		multiply(isa)
	}
	Generate()
}

func text(isa simd.ISA, name, signature string) {
	TEXT(name+isa.Name, NOSPLIT, signature)
	Pragma("noescape")
}

// blocks runs whole for every full block of lanes, while the pointers advance,
// and rest for the remaining lanes, if any, with their number in a register.
func blocks(lanes int, n reg.Register, pointers []reg.Register, whole func(), rest func(left reg.Register)) {
	SUBQ(U32(uint32(lanes)), n)
	JLT(LabelRef("rest"))
	Label("whole")
	whole()
	for _, p := range pointers {
		ADDQ(U32(uint32(4*lanes)), p)
	}
	SUBQ(U32(uint32(lanes)), n)
	JGE(LabelRef("whole"))
	Label("rest")
	ADDQ(U32(uint32(lanes)), n)
	JZ(LabelRef("done"))
	rest(n)
	Label("done")
}

// each computes dst from the vectors in from, lane by lane; prepare loads what
// all blocks share, and yields the function that leaves its result in v[0].
func each(isa simd.ISA, name, signature string, from []string, prepare func() func(v []reg.VecVirtual)) {
	text(isa, name, signature)
	dst := Load(Param("dst"), GP64())
	pointers := []reg.Register{dst}
	var sources []reg.Register
	for _, f := range from {
		p := reg.Register(dst)
		if f != "dst" {
			p = Load(Param(f), GP64())
			pointers = append(pointers, p)
		}
		sources = append(sources, p)
	}
	n := Load(Param("n"), GP64())
	op := prepare()
	body := func(load func(Mem, reg.VecVirtual), store func(reg.VecVirtual, Mem)) {
		var v []reg.VecVirtual
		for _, p := range sources {
			r := isa.Vec()
			load(Mem{Base: p}, r)
			v = append(v, r)
		}
		op(v)
		store(v[0], Mem{Base: dst})
	}
	blocks(isa.Lanes, n, pointers, func() {
		body(func(m Mem, r reg.VecVirtual) { VMOVUPS(m, r) }, func(r reg.VecVirtual, m Mem) { VMOVUPS(r, m) })
	}, func(left reg.Register) {
		mask := isa.Mask(left, 0)
		body(mask.Load, mask.Store)
	})
	VZEROUPPER()
	RET()
}

func broadcast(isa simd.ISA, param string) reg.VecVirtual {
	v := isa.Vec()
	m, err := Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(m.Addr, v)
	return v
}

func axpy(isa simd.ISA) {
	each(isa, "axpy", "func(dst *float32, a float32, x *float32, n int)", []string{"dst", "x"}, func() func(v []reg.VecVirtual) {
		a := broadcast(isa, "a")
		return func(v []reg.VecVirtual) { VFMADD231PS(v[1], a, v[0]) }
	})
}

func scale(isa simd.ISA) {
	each(isa, "scale", "func(dst, x, w *float32, n int, a, b float32)", []string{"x", "w"}, func() func(v []reg.VecVirtual) {
		a, b := broadcast(isa, "a"), broadcast(isa, "b")
		return func(v []reg.VecVirtual) {
			VMULPS(a, v[0], v[0])
			VADDPS(b, v[1], v[1])
			VMULPS(v[1], v[0], v[0])
		}
	})
}

// dot has 16 lanes in every instruction set, see dotGeneric.
func dot(isa simd.ISA) {
	const lanes = 16
	text(isa, "dot", "func(x, y *float32, n int) float32")
	x, y := Load(Param("x"), GP64()), Load(Param("y"), GP64())
	n := Load(Param("n"), GP64())
	var sums []reg.VecVirtual
	for range lanes / isa.Lanes {
		sums = append(sums, isa.Zero())
	}
	blocks(lanes, n, []reg.Register{x, y}, func() {
		for i, s := range sums {
			v := isa.Vec()
			VMOVUPS(Mem{Base: x, Disp: 4 * i * isa.Lanes}, v)
			VFMADD231PS(Mem{Base: y, Disp: 4 * i * isa.Lanes}, v, s)
		}
	}, func(left reg.Register) {
		for i, s := range sums {
			mask := isa.Mask(left, i*isa.Lanes)
			v, w := isa.Vec(), isa.Vec()
			mask.Load(Mem{Base: x, Disp: 4 * i * isa.Lanes}, v)
			mask.Load(Mem{Base: y, Disp: 4 * i * isa.Lanes}, w)
			VFMADD231PS(w, v, s)
		}
	})
	Store(isa.SumLanes(sums...), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func scan(isa simd.ISA) {
	text(isa, "scan", "func(x *float32, n int) float32")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	best, low := isa.Vec(), isa.Vec()
	VMOVUPS(simd.Float("lowest", float32(math.Inf(-1))), low)
	VMOVUPS(low, best)
	bad := isa.Zero() // all ones in a lane that met a NaN
	step := func(v reg.VecVirtual) {
		VMAXPS(v, best, best)
		u := isa.Vec()
		if isa.Wide() {
			k := K()
			VCMPPS(Imm(3), v, v, k)
			VPMOVM2D(k, u)
		} else {
			VCMPPS(Imm(3), v, v, u)
		}
		isa.Or(u, bad, bad)
	}
	blocks(isa.Lanes, n, []reg.Register{x}, func() {
		v := isa.Vec()
		VMOVUPS(Mem{Base: x}, v)
		step(v)
	}, func(left reg.Register) {
		v := isa.Vec()
		mask := isa.Mask(left, 0)
		mask.Load(Mem{Base: x}, v)
		mask.Fill(v, low)
		step(v)
	})
	flags := GP32()
	if isa.Wide() {
		k := K()
		VPMOVD2M(bad, k)
		KMOVW(k, flags)
	} else {
		VMOVMSKPS(bad, flags)
	}
	result := isa.MaxLanes(best)
	TESTL(flags, flags)
	JZ(LabelRef("clean"))
	VMOVSS(simd.Const("nan", 0x7fc00000), result)
	Label("clean")
	Store(result, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func index(isa simd.ISA) {
	text(isa, "index", "func(x *float32, n int, v float32) int")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	first := GP64()
	MOVQ(x, first)
	v := broadcast(isa, "v")
	hits := GP32()
	compare := func(w reg.VecVirtual) {
		if isa.Wide() {
			k := K()
			VCMPPS(Imm(0), w, v, k)
			KMOVW(k, hits)
			return
		}
		u := isa.Vec()
		VCMPPS(Imm(0), w, v, u)
		VMOVMSKPS(u, hits)
	}
	blocks(isa.Lanes, n, []reg.Register{x}, func() {
		w := isa.Vec()
		VMOVUPS(Mem{Base: x}, w)
		compare(w)
		TESTL(hits, hits)
		JNZ(LabelRef("hit"))
	}, func(left reg.Register) {
		w := isa.Vec()
		isa.Mask(left, 0).Load(Mem{Base: x}, w)
		compare(w)
		// Lanes past the end are zero; forget them.
		some := GP32()
		MOVL(U32(1), some)
		MOVQ(left, reg.RCX)
		SHLL(reg.CL, some)
		DECL(some)
		ANDL(some, hits)
		JNZ(LabelRef("hit"))
	})
	result := GP64()
	MOVQ(I32(-1), result)
	Store(result, ReturnIndex(0))
	VZEROUPPER()
	RET()
	Label("hit")
	place := GP64()
	BSFL(hits, place.As32())
	SUBQ(first, x)
	SHRQ(Imm(2), x)
	ADDQ(x, place)
	Store(place, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// stream reads memory and does next to nothing with it.
func stream(isa simd.ISA) {
	const bytes = 256
	text(isa, "stream", "func(p *byte, bytes, near, far int) uint32")
	Doc(fmt.Sprintf("stream%s reads memory, in blocks of %d bytes.", isa.Name, bytes))
	near, far := Load(Param("near"), GP64()), Load(Param("far"), GP64())
	p, n := Load(Param("p"), GP64()), Load(Param("bytes"), GP64())
	var sums []reg.VecVirtual
	for range 4 {
		sums = append(sums, isa.Zero())
	}
	Label("loop")
	for line := 0; line < bytes; line += 64 {
		PREFETCHT0(Mem{Base: p, Index: near, Scale: 1, Disp: line})
		PREFETCHT1(Mem{Base: p, Index: far, Scale: 1, Disp: line})
	}
	for i := 0; i < bytes; i += 4 * isa.Lanes {
		s := sums[i/(4*isa.Lanes)%len(sums)]
		isa.Or(Mem{Base: p, Disp: i}, s, s)
	}
	ADDQ(U32(bytes), p)
	SUBQ(U32(bytes), n)
	JG(LabelRef("loop"))
	for _, s := range sums[1:] {
		isa.Or(s, sums[0], sums[0])
	}
	out := GP32()
	VMOVD(sums[0].AsX(), out)
	Store(out, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// multiply does fused multiply-adds on registers.
func multiply(isa simd.ISA) {
	const chains = 12
	text(isa, "multiply", "func(rounds int) float32")
	Doc(fmt.Sprintf("multiply%s does %d fused multiply-adds of %d lanes in each round.", isa.Name, chains, isa.Lanes))
	n := Load(Param("rounds"), GP64())
	a := isa.Zero()
	var sums []reg.VecVirtual
	for range chains {
		sums = append(sums, isa.Zero())
	}
	Label("loop")
	for _, s := range sums {
		VFMADD231PS(a, a, s)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	for _, s := range sums[1:] {
		VADDPS(s, sums[0], sums[0])
	}
	Store(sums[0].AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func pause() {
	TEXT("pause", NOSPLIT, "func()")
	PAUSE()
	RET()
}

// fetchLines fetches lines into L2.
func fetchLines() {
	TEXT("fetchLines", NOSPLIT, "func(p *float32, lines int)")
	Pragma("noescape")
	p, lines := Load(Param("p"), GP64()), Load(Param("lines"), GP64())
	Label("line")
	PREFETCHT1(Mem{Base: p})
	ADDQ(Imm(64), p)
	DECQ(lines)
	JNZ(LabelRef("line"))
	RET()
}

// panels generates what becomes of n panels' sums for one token: they lie
// stride apart, and their results follow one another. If they go away, it is past the
// caches, and dst begins a line.
func panels(isa simd.ISA, away bool) {
	const outputs = 32
	suffix, store := "", func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) }
	if away {
		suffix, store = "Away", func(v reg.VecVirtual, m Mem) { VMOVNTPS(v, m) }
	}
	for _, op := range []struct {
		name    string
		results int // of a panel
		prepare func() func(v reg.VecVirtual, dst, tile func(at int) Mem, at int)
	}{
		{"store", outputs, func() func(v reg.VecVirtual, dst, tile func(at int) Mem, at int) {
			return func(v reg.VecVirtual, _, tile func(at int) Mem, at int) { VMOVUPS(tile(at), v) }
		}},
		{"add", outputs, func() func(v reg.VecVirtual, dst, tile func(at int) Mem, at int) {
			return func(v reg.VecVirtual, dst, tile func(at int) Mem, at int) {
				VMOVUPS(dst(at), v)
				VADDPS(tile(at), v, v)
			}
		}},
		{"swiglu", outputs / 2, func() func(v reg.VecVirtual, dst, tile func(at int) Mem, at int) {
			e := isa.Exp()
			return func(v reg.VecVirtual, _, tile func(at int) Mem, at int) {
				VMOVUPS(tile(at), v)
				e.Silu(v)
				VMULPS(tile(outputs/2+at), v, v)
			}
		}},
	} {
		text(isa, op.name+"Panels"+suffix, "func(dst, tile *float32, stride, n int)")
		to, from := Load(Param("dst"), GP64()), Load(Param("tile"), GP64())
		stride, n := Load(Param("stride"), GP64()), Load(Param("n"), GP64())
		SHLQ(Imm(2), stride)
		dst := func(at int) Mem { return Mem{Base: to, Disp: 4 * at} }
		tile := func(at int) Mem { return Mem{Base: from, Disp: 4 * at} }
		compute := op.prepare()
		Label("panel")
		for at := 0; at < op.results; at += isa.Lanes {
			v := isa.Vec()
			compute(v, dst, tile, at)
			store(v, dst(at))
		}
		ADDQ(U32(uint32(4*op.results)), to)
		ADDQ(stride, from)
		DECQ(n)
		JNZ(LabelRef("panel"))
		VZEROUPPER()
		RET()
	}
}

// pack4 lays four rows of inputs side by side, four inputs at a time.
func pack4(name string, norm bool) {
	signature := "func(dst *float32, rows int, x *float32, width, n int)"
	if norm {
		signature = "func(dst *float32, rows int, x *float32, width, n int, w *float32, offset, inv0, inv1, inv2, inv3 float32)"
	}
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
	dst, rows := Load(Param("dst"), GP64()), Load(Param("rows"), GP64())
	x, width, n := Load(Param("x"), GP64()), Load(Param("width"), GP64()), Load(Param("n"), GP64())
	SHLQ(Imm(2), rows)
	SHLQ(Imm(2), width)
	var sources [4]reg.GPVirtual
	for i := range sources {
		sources[i] = GP64()
		if i == 0 {
			MOVQ(x, sources[0])
		} else {
			LEAQ(Mem{Base: sources[i-1], Index: width, Scale: 1}, sources[i])
		}
	}
	var w reg.Register
	var offset reg.VecVirtual
	var inv [4]reg.VecVirtual
	if norm {
		w = Load(Param("w"), GP64())
		scalar := func(param string) reg.VecVirtual {
			v := XMM()
			m, err := Param(param).Resolve()
			if err != nil {
				panic(err)
			}
			VBROADCASTSS(m.Addr, v)
			return v
		}
		offset = scalar("offset")
		for i := range inv {
			inv[i] = scalar(fmt.Sprintf("inv%d", i))
		}
	}
	Label("four")
	var v, t, out [4]reg.VecVirtual
	weight := XMM()
	if norm {
		VADDPS(Mem{Base: w}, offset, weight)
		ADDQ(Imm(16), w)
	}
	for i := range v {
		v[i], t[i], out[i] = XMM(), XMM(), XMM()
		if norm {
			VMULPS(Mem{Base: sources[i]}, inv[i], v[i])
			VMULPS(weight, v[i], v[i])
		} else {
			VMOVUPS(Mem{Base: sources[i]}, v[i])
		}
		ADDQ(Imm(16), sources[i])
	}
	VUNPCKLPS(v[1], v[0], t[0])
	VUNPCKHPS(v[1], v[0], t[1])
	VUNPCKLPS(v[3], v[2], t[2])
	VUNPCKHPS(v[3], v[2], t[3])
	VUNPCKLPD(t[2], t[0], out[0])
	VUNPCKHPD(t[2], t[0], out[1])
	VUNPCKLPD(t[3], t[1], out[2])
	VUNPCKHPD(t[3], t[1], out[3])
	for _, o := range out {
		VMOVUPS(o, Mem{Base: dst})
		ADDQ(rows, dst)
	}
	SUBQ(Imm(4), n)
	JG(LabelRef("four"))
	RET()
}
