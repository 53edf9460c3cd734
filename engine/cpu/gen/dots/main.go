// Command dots generates the kernels that multiply in bf16: two products at a time, for
// CPUs with AVX512_BF16, and in tiles, for those with AMX.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

const (
	panel   = 32 // outputs
	columns = panel / lanes
	lanes   = 16
	maxRows = 12
	line    = 64
)

// general and vector are the registers by number.
var (
	general = []reg.GPPhysical{
		rax: reg.RAX, rcx: reg.RCX, rdx: reg.RDX, rbx: reg.RBX,
		rsi: reg.RSI, rdi: reg.RDI, r8: reg.R8, r9: reg.R9, r10: reg.R10, r11: reg.R11, r12: reg.R12, r13: reg.R13,
	}
	vector = []reg.VecPhysical{
		reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7,
		reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
		reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23,
		reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
	}
)

func main() {
	ConstraintExpr("!noasm")
	for rows := 1; rows <= maxRows; rows++ {
		tile(rows)
	}
	for rows := 1; rows <= mostRows; rows++ {
		scores(rows)
		weights(rows)
		mix(rows)
		pass(rows)
	}
	softmax()
	round("roundDots", false, false)
	round("roundDotsAway", false, true)
	round("scaleRoundDots", true, false)
	multiply()
	products(1)
	products(2)
	multiplyTiles()
	Generate()
}

func text(name, signature string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
}

// inRow is the pair at disp bytes in a row, in all lanes. Rows are stride apart, and
// each base points to four of them.
func inRow(bases []gp, stride, stride3 gp, r, disp int) rm {
	m := rm{memory: true, base: bases[r/4], index: stride, disp: disp, broadcast: true}
	switch r % 4 {
	case 1:
		m.scale = 1
	case 2:
		m.scale = 2
	case 3:
		m.index, m.scale = stride3, 1
	}
	return m
}

// tile multiplies panels that follow one another, in one go: between calls no
// weights would be on their way. An accumulator takes a pair of products with
// each instruction. The inputs of a row lie together, so four rows share a pointer.
func tile(rows int) {
	text(fmt.Sprintf("tileDotsRows%d", rows),
		"func(acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, near int, next uintptr, step int)")
	const acc, w, pairs, panels, near, next, step, stride, stride3 = rax, rcx, rbx, r12, rsi, rdi, r8, r9, r10
	inputs := []gp{rdx, r11, r13}
	for _, p := range []struct {
		name string
		to   gp
	}{{"acc", acc}, {"w", w}, {"stride", stride}, {"panels", panels}, {"near", near}, {"next", next}, {"step", step}} {
		Load(Param(p.name), general[p.to])
	}
	const weights = maxRows * columns // registers after the sums
	sum := func(r, c int) int { return r*columns + c }
	place := func(r, c int) Mem { return Mem{Base: general[acc], Disp: 4 * (r*panel + c*lanes)} }
	if rows > 3 {
		LEAQ(Mem{Base: general[stride], Index: general[stride], Scale: 2}, general[stride3])
	}

	Label("panel")
	for i := range rows * columns {
		VPXORD(vector[i], vector[i], vector[i])
	}
	Load(Param("begun"), reg.BL)
	TESTB(reg.BL, reg.BL)
	JZ(LabelRef("begin"))
	for r := range rows {
		for c := range columns {
			VMOVUPS(place(r, c), vector[sum(r, c)])
		}
	}
	Label("begin")
	Load(Param("pairs"), general[pairs])
	Load(Param("x"), general[inputs[0]])
	for i := 1; 4*i < rows; i++ {
		LEAQ(Mem{Base: general[inputs[i-1]], Index: general[stride], Scale: 4}, general[inputs[i]])
	}
	Label("pair")
	for c := range columns {
		PREFETCHT0(Mem{Base: general[w], Index: general[near], Scale: 1, Disp: c * line})
		PREFETCHT1(Mem{Base: general[next], Disp: c * line})
	}
	if rows == 1 {
		VPBROADCASTD(Mem{Base: general[inputs[0]]}, vector[weights])
		for c := range columns {
			vdpbf16ps(rm{memory: true, base: w, disp: c * line}, weights, sum(0, c))
		}
	} else {
		for c := range columns {
			VMOVUPS(Mem{Base: general[w], Disp: c * line}, vector[weights+c])
		}
		for r := range rows {
			for c := range columns {
				vdpbf16ps(inRow(inputs, stride, stride3, r, 0), weights+c, sum(r, c))
			}
		}
	}
	ADDQ(U32(columns*line), general[w])
	for i := 0; 4*i < rows; i++ {
		ADDQ(U32(4), general[inputs[i]])
	}
	ADDQ(general[step], general[next])
	DECQ(general[pairs])
	JNZ(LabelRef("pair"))

	for r := range rows {
		for c := range columns {
			VMOVUPS(vector[sum(r, c)], place(r, c))
		}
	}
	ADDQ(U32(uint32(4*rows*panel)), general[acc])
	DECQ(general[panels])
	JNZ(LabelRef("panel"))
	VZEROUPPER()
	RET()
}

// round makes pairs of bf16 of n values; scaled, of (x·a)·(w+b). What goes away goes
// past the caches.
func round(name string, scaled, away bool) {
	signature := "func(dst, x *float32, n int)"
	if scaled {
		signature = "func(dst, x, w *float32, n int, a, b float32)"
	}
	text(name, signature)
	dst, x, w, n := general[rdi], general[rsi], general[rdx], general[rbx]
	Load(Param("dst"), dst)
	Load(Param("x"), x)
	Load(Param("n"), n)
	if scaled {
		Load(Param("w"), w)
		for i, name := range []string{"a", "b"} {
			m, err := Param(name).Resolve()
			if err != nil {
				panic(err)
			}
			VBROADCASTSS(m.Addr, vector[2+i])
		}
	}
	const value, weight = 0, 1
	convert := func() {
		if scaled {
			VMULPS(vector[2], vector[value], vector[value])
			VADDPS(vector[3], vector[weight], vector[weight])
			VMULPS(vector[weight], vector[value], vector[value])
		}
		vcvtneps2bf16(value, value)
	}
	SUBQ(U32(lanes), n)
	JLT(LabelRef("rest"))
	Label("whole")
	VMOVUPS(Mem{Base: x}, vector[value])
	if scaled {
		VMOVUPS(Mem{Base: w}, vector[weight])
		ADDQ(U32(4*lanes), w)
	}
	convert()
	if away {
		VMOVNTPS(reg.Y0, Mem{Base: dst})
	} else {
		VMOVUPS(reg.Y0, Mem{Base: dst})
	}
	ADDQ(U32(4*lanes), x)
	ADDQ(U32(2*lanes), dst)
	SUBQ(U32(lanes), n)
	JGE(LabelRef("whole"))
	Label("rest")
	ADDQ(U32(lanes), n)
	JZ(LabelRef("done"))
	mask := func(count reg.GPPhysical, k reg.Register) { // of the first lanes
		MOVQ(count, reg.RCX)
		MOVQ(U32(1), reg.RAX)
		SHLQ(reg.CL, reg.RAX)
		DECQ(reg.RAX)
		KMOVW(reg.EAX, k)
	}
	mask(n, reg.K1)
	VMOVUPS_Z(Mem{Base: x}, reg.K1, vector[value])
	if scaled {
		VMOVUPS_Z(Mem{Base: w}, reg.K1, vector[weight])
	}
	convert()
	INCQ(n)
	SHRQ(U8(1), n)
	mask(n, reg.K2)
	VMOVUPS(reg.Y0, reg.K2, Mem{Base: dst})
	Label("done")
	VZEROUPPER()
	RET()
}

// multiply keeps as many chains of products going as the probe of plain
// multiply-adds does.
func multiply() {
	const chains, one = 12, 12
	text("multiplyDots", "func(rounds int) float32")
	Load(Param("rounds"), reg.RBX)
	for i := range chains + 1 {
		VPXORD(vector[i], vector[i], vector[i])
	}
	Label("round")
	for i := range chains {
		vdpbf16ps(zmm(one), one, i)
	}
	DECQ(reg.RBX)
	JNZ(LabelRef("round"))
	for i := 1; i < chains; i++ {
		VADDPS(vector[i], vector[0], vector[0])
	}
	Store(reg.X0, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
