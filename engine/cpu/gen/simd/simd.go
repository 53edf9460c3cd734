// Package simd has what the generators of assembly share: one way to write a
// loop for AVX2 and AVX-512, and the exponential.
package simd

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// ISA is an instruction set with its vector width.
type ISA struct {
	Name  string // suffix of function names
	Lanes int    // float32 in a vector
}

var (
	AVX2   = ISA{"AVX2", 8}
	AVX512 = ISA{"AVX512", 16}
)

// Wide says whether vectors have 512 bits.
func (isa ISA) Wide() bool { return isa.Lanes == 16 }

// Vec is a fresh vector register.
func (isa ISA) Vec() reg.VecVirtual {
	if isa.Wide() {
		return ZMM()
	}
	return YMM()
}

// Zero is a vector register of zeros.
func (isa ISA) Zero() reg.VecVirtual {
	v := isa.Vec()
	isa.Xor(v, v, v)
	return v
}

// And, Or and Xor work on bits.
func (isa ISA) And(a, b, dst Op) { isa.pick(VPAND, VPANDD)(a, b, dst) }
func (isa ISA) Or(a, b, dst Op)  { isa.pick(VPOR, VPORD)(a, b, dst) }
func (isa ISA) Xor(a, b, dst Op) { isa.pick(VPXOR, VPXORD)(a, b, dst) }

func (isa ISA) pick(narrow func(a, b, c Op), wide func(ops ...Op)) func(a, b, c Op) {
	if isa.Wide() {
		return func(a, b, c Op) { wide(a, b, c) }
	}
	return narrow
}

// Mask selects the first lanes of a vector.
type Mask struct {
	isa ISA
	reg reg.Register
}

// Mask selects the first n lanes, from lane `from` on, for 0 ≤ n ≤ 15 in a
// register, which is kept. A wide vector has its 16 lanes from 0 on, a narrow
// one 8 lanes from 0 or 8 on.
func (isa ISA) Mask(n reg.Register, from int) Mask {
	if isa.Wide() {
		one := GP64()
		MOVQ(U32(1), one)
		count := reg.RCX
		MOVQ(n, count)
		SHLQ(reg.CL, one)
		DECQ(one)
		k := K()
		KMOVW(one.As32(), k)
		return Mask{isa, k}
	}
	table := GP64()
	LEAQ(laneTable(), table)
	at := GP64()
	MOVQ(n, at)
	NEGQ(at)
	v := YMM()
	VMOVDQU(Mem{Base: table, Index: at, Scale: 4, Disp: 4 * (16 + from)}, v)
	return Mask{isa, v}
}

// Load reads the selected lanes; the others are zero.
func (m Mask) Load(src Mem, dst reg.VecVirtual) {
	if m.isa.Wide() {
		VMOVUPS_Z(src, m.reg, dst)
		return
	}
	VMASKMOVPS(src, m.reg, dst)
}

// Store writes the selected lanes.
func (m Mask) Store(src reg.VecVirtual, dst Mem) {
	if m.isa.Wide() {
		VMOVUPS(src, m.reg, dst)
		return
	}
	VMASKMOVPS(src, m.reg, dst)
}

// Fill sets the lanes that are not selected to those of other.
func (m Mask) Fill(v, other reg.VecVirtual) {
	if m.isa.Wide() {
		VBLENDMPS(v, other, m.reg, v)
		return
	}
	VBLENDVPS(m.reg, v, other, v)
}

var lanes *Mem

// laneTable is 16 times all ones, then 16 zeros.
func laneTable() Mem {
	if lanes == nil {
		m := GLOBL("lanes", RODATA|NOPTR)
		for i := range 32 {
			bits := uint32(math.MaxUint32)
			if i >= 16 {
				bits = 0
			}
			DATA(4*i, U32(bits))
		}
		lanes = &m
	}
	return *lanes
}

var constants = map[string]Mem{}

// Const is a constant in all lanes, in memory.
func Const(name string, bits uint32) Mem {
	m, ok := constants[name]
	if !ok {
		m = GLOBL(name, RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(bits))
		}
		constants[name] = m
	}
	return m
}

// Float is Const for a number.
func Float(name string, v float32) Mem { return Const(name, math.Float32bits(v)) }

// Exp computes eˣ as function exp in generic.go does, bit for bit.
type Exp struct {
	isa       ISA
	low, high reg.VecVirtual
}

// Exp loads what all exponentials of a function share.
func (isa ISA) Exp() Exp {
	e := Exp{isa, isa.Vec(), isa.Vec()}
	VMOVUPS(Float("expLow", -87.33654), e.low)
	VMOVUPS(Float("expHigh", 88.37626), e.high)
	return e
}

// Of replaces x by its exponential.
func (e Exp) Of(x reg.VecVirtual) {
	isa := e.isa
	n, p := isa.Vec(), isa.Vec()
	// With x as the second source a NaN comes through.
	VMAXPS(x, e.low, x)
	VMINPS(x, e.high, x)
	VMULPS(Float("expLog2e", 1.44269504088896341), x, n)
	if isa.Wide() {
		VRNDSCALEPS(Imm(8), n, n)
	} else {
		VROUNDPS(Imm(8), n, n)
	}
	VFMADD231PS(Float("expLn2High", -0.693359375), n, x)
	VFMADD231PS(Float("expLn2Low", 2.12194440e-4), n, x)
	VMOVUPS(Float("expP0", 1.9875691500e-4), p)
	VFMADD213PS(Float("expP1", 1.3981999507e-3), x, p)
	VFMADD213PS(Float("expP2", 8.3334519073e-3), x, p)
	VFMADD213PS(Float("expP3", 4.1665795894e-2), x, p)
	VFMADD213PS(Float("expP4", 1.6666665459e-1), x, p)
	VFMADD213PS(Float("expP5", 5.0000001201e-1), x, p)
	VMULPS(x, p, p)
	VFMADD213PS(x, x, p)
	VADDPS(Float("one", 1), p, p)
	if isa.Wide() {
		VSCALEFPS(n, p, x)
		return
	}
	VCVTPS2DQ(n, n)
	VPADDD(Const("expBias", 127), n, n)
	VPSLLD(Imm(23), n, n)
	VMULPS(n, p, x)
}

// Silu replaces x by x/(1+e⁻ˣ).
func (e Exp) Silu(x reg.VecVirtual) {
	d := e.isa.Vec()
	e.isa.Xor(Const("signs", 1<<31), x, d)
	e.Of(d)
	VADDPS(Float("one", 1), d, d)
	VDIVPS(d, x, x)
}

// SumLanes adds 16 lanes, in one vector or in two, into the lowest: j and
// j+8, then j and j+4, j+2, j+1.
func (isa ISA) SumLanes(v ...reg.VecVirtual) reg.Register {
	return isa.fold(VADDPS, v)
}

// MaxLanes is SumLanes for the maximum.
func (isa ISA) MaxLanes(v ...reg.VecVirtual) reg.Register { return isa.fold(VMAXPS, v) }

func (isa ISA) fold(op func(ops ...Op), v []reg.VecVirtual) reg.Register {
	y := v[0].AsY()
	if isa.Wide() {
		high := YMM()
		VEXTRACTF64X4(Imm(1), v[0], high)
		op(high, y, y)
	} else if len(v) == 2 {
		op(v[1], y, y)
	}
	high := XMM()
	x := y.(reg.Vec).AsX()
	VEXTRACTF128(Imm(1), y, high)
	op(high, x, x)
	VPERMILPS(Imm(0b1110), x, high) // lanes 2, 3
	op(high, x, x)
	VPERMILPS(Imm(1), x, high)
	op(high, x, x)
	return x
}
