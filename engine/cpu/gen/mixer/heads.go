package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

// vectorLoop runs body over n lanes in whole vectors, then once over the rest;
// next moves its pointers on by a vector.
func vectorLoop(isa simd.ISA, n reg.GPVirtual, body func(load, store func(reg.VecVirtual, Mem)), next func()) {
	SUBQ(U32(uint32(isa.Lanes)), n)
	JLT(LabelRef("rest"))
	Label("whole")
	body(func(v reg.VecVirtual, m Mem) { VMOVUPS(m, v) }, func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) })
	next()
	SUBQ(U32(uint32(isa.Lanes)), n)
	JGE(LabelRef("whole"))
	Label("rest")
	ADDQ(U32(uint32(isa.Lanes)), n)
	JZ(LabelRef("done"))
	mask := isa.Mask(n, 0)
	body(func(v reg.VecVirtual, m Mem) { mask.Load(m, v) }, mask.Store)
	Label("done")
	VZEROUPPER()
	RET()
}

// rotate turns pairs of vectors, see rotateGeneric.
func rotate(isa simd.ISA) {
	text("rotate"+isa.Name, "func(low, high, cos, sin *float32, n int)")
	var at [4]reg.GPVirtual
	for i, name := range []string{"low", "high", "cos", "sin"} {
		at[i] = GP64()
		Load(Param(name), at[i])
	}
	n := GP64()
	Load(Param("n"), n)
	vectorLoop(isa, n, func(load, store func(reg.VecVirtual, Mem)) {
		v := vectors(isa, 4) // low, high, cos, sin
		for i := range v {
			load(v[i], Mem{Base: at[i]})
		}
		a, b := isa.Vec(), isa.Vec()
		VMULPS(v[2], v[0], a)
		VMULPS(v[3], v[1], b)
		VSUBPS(b, a, a)
		store(a, Mem{Base: at[0]})
		VMULPS(v[2], v[1], v[1])
		VMULPS(v[3], v[0], v[0])
		VADDPS(v[0], v[1], v[1])
		store(v[1], Mem{Base: at[1]})
	}, func() {
		for _, p := range at {
			ADDQ(U32(uint32(4*isa.Lanes)), p)
		}
	})
}

// collect scales chunks of 16 that are some way apart, see collectGeneric.
func collect(isa simd.ISA) {
	text("collect"+isa.Name, "func(dst, acc *float32, stride, n int, by float32)")
	dst, acc, stride, n := GP64(), GP64(), GP64(), GP64()
	Load(Param("dst"), dst)
	Load(Param("acc"), acc)
	Load(Param("stride"), stride)
	Load(Param("n"), n)
	SHLQ(Imm(2), stride)
	by, zero := isa.Vec(), isa.Zero()
	broadcast("by", by)
	half := GP64()
	XORQ(half, half)
	vectorLoop(isa, n, func(load, store func(reg.VecVirtual, Mem)) {
		v := isa.Vec()
		load(v, Mem{Base: acc})
		VMULPS(by, v, v)
		VADDPS(zero, v, v)
		store(v, Mem{Base: dst})
	}, func() {
		ADDQ(U32(uint32(4*isa.Lanes)), dst)
		if isa.Wide() {
			ADDQ(stride, acc)
			return
		}
		// The other half of the chunk, or the next chunk.
		ADDQ(Imm(32), acc)
		XORQ(Imm(1), half)
		TESTQ(half, half)
		JNZ(LabelRef("same"))
		LEAQ(Mem{Base: acc, Index: stride, Scale: 1, Disp: -64}, acc)
		Label("same")
	})
}

// zip rounds two vectors to bf16 and puts them side by side, or the second beside what
// is there, see zipGeneric and zipSecondGeneric.
func zip(isa simd.ISA, second bool) {
	name, signature := "zip", "func(dst *byte, x, y *float32, n int)"
	if second {
		name, signature = "zipSecond", "func(dst *byte, y *float32, n int)"
	}
	text(name+isa.Name, signature)
	dst, x, y, n := GP64(), GP64(), GP64(), GP64()
	Load(Param("dst"), dst)
	if !second {
		Load(Param("x"), x)
	}
	Load(Param("y"), y)
	Load(Param("n"), n)
	half := GP64()
	XORQ(half, half)
	vectorLoop(isa, n, func(load, store func(reg.VecVirtual, Mem)) {
		v := vectors(isa, 2)
		if second {
			load(v[0], Mem{Base: dst})
			isa.And(simd.Const("low", 0xffff), v[0], v[0])
		} else {
			load(v[0], Mem{Base: x})
			roundBF16(isa, v[0])
		}
		load(v[1], Mem{Base: y})
		roundBF16(isa, v[1])
		VPSLLD(Imm(16), v[1], v[1])
		isa.Or(v[1], v[0], v[0])
		store(v[0], Mem{Base: dst})
	}, func() {
		if !second {
			ADDQ(U32(uint32(4*isa.Lanes)), x)
		}
		ADDQ(U32(uint32(4*isa.Lanes)), y)
		chunk := 4 * group * group / 2 // bytes from chunk to chunk
		if isa.Wide() {
			ADDQ(U32(uint32(chunk)), dst)
			return
		}
		ADDQ(Imm(32), dst)
		XORQ(Imm(1), half)
		TESTQ(half, half)
		JNZ(LabelRef("same"))
		ADDQ(U32(uint32(chunk-64)), dst)
		Label("same")
	})
}

// roundBF16 leaves bf16 in the low half of each lane, see backend.EncodeBF16.
func roundBF16(isa simd.ISA, v reg.VecVirtual) {
	high, bit := isa.Vec(), isa.Vec()
	VPSRLD(Imm(16), v, high)
	isa.And(simd.Const("lowest", 1), high, bit)
	VPADDD(simd.Const("belowHalf", 0x7fff), bit, bit)
	VPADDD(v, bit, bit)
	VPSRLD(Imm(16), bit, bit)
	isa.Or(simd.Const("quiet", 0x40), high, high)
	if isa.Wide() {
		isNaN := K()
		VCMPPS(Imm(3), v, v, isNaN)
		VPBLENDMD(high, bit, isNaN, v)
		return
	}
	VCMPPS(Imm(3), v, v, v)
	VBLENDVPS(v, high, bit, v)
}

// storeKey stores pairs of bf16 a line after each other; wider vectors would not help,
// since each pair is stored by itself.
func storeKey() {
	const lanes, line = 8, 64
	text("storeKeyAVX2", "func(dst *byte, x *float32, n int)")
	dst, x, n := GP64(), GP64(), GP64()
	Load(Param("dst"), dst)
	Load(Param("x"), x)
	Load(Param("n"), n)
	Label("pairs")
	v, second, rest := YMM(), YMM(), XMM()
	VMOVUPS(Mem{Base: x}, v)
	roundBF16(simd.AVX2, v)
	VPSRLQ(Imm(16), v, second)
	VPOR(second, v, v) // a pair in the low half of each quarter
	VEXTRACTI128(Imm(1), v, rest)
	VMOVD(v.AsX(), Mem{Base: dst})
	VPEXTRD(Imm(2), v.AsX(), Mem{Base: dst, Disp: line})
	VMOVD(rest, Mem{Base: dst, Disp: 2 * line})
	VPEXTRD(Imm(2), rest, Mem{Base: dst, Disp: 3 * line})
	ADDQ(U32(4*lanes), x)
	ADDQ(U32(lanes/2*line), dst)
	SUBQ(Imm(lanes), n)
	JG(LabelRef("pairs"))
	VZEROUPPER()
	RET()
}
