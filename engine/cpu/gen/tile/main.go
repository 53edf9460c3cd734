// Command tile generates the kernels that multiply packed weights.
//
// A kernel holds all accumulators of its rows and of one panel, or of half a
// panel, in registers. Each accumulator takes its products in order of the
// input index.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

const (
	panel = 32 // outputs
	// near is how far in front weights are fetched from L2 into L1, in bytes.
	// The caller chooses what is fetched from memory into L2 meanwhile.
	near = 2048
)

func main() {
	ConstraintExpr("!noasm")
	for _, f32 := range []bool{false, true} {
		for rows := 1; rows <= 6; rows++ {
			// Up to two rows, 16 registers hold a whole panel's accumulators.
			width := panel
			if rows > 2 {
				width = panel / 2
			}
			tile(simd.AVX2, rows, width, f32)
		}
		for rows := 1; rows <= 12; rows++ {
			tile(simd.AVX512, rows, panel, f32)
		}
	}
	Generate()
}

func tile(isa simd.ISA, rows, width int, f32 bool) {
	dtype, pairBytes := "BF16", panel*2*2
	if f32 {
		dtype, pairBytes = "F32", panel*2*4
	}
	TEXT(fmt.Sprintf("tile%s%sRows%d", dtype, isa.Name, rows), NOSPLIT,
		"func(acc *float32, w *byte, x *float32, pairs int, next uintptr, step int)")
	Pragma("noescape")
	acc, w, x := Load(Param("acc"), GP64()), Load(Param("w"), GP64()), Load(Param("x"), GP64())
	pairs := Load(Param("pairs"), GP64())
	next, step := Load(Param("next"), GP64()), Load(Param("step"), GP64())
	columns := width / isa.Lanes
	place := func(r, c int) Mem { return Mem{Base: acc, Disp: 4 * (r*panel + c*isa.Lanes)} }
	sums := make([][]reg.VecVirtual, rows)
	for r := range sums {
		for c := range columns {
			v := isa.Vec()
			VMOVUPS(place(r, c), v)
			sums[r] = append(sums[r], v)
		}
	}
	var odd reg.VecVirtual
	if !f32 {
		odd = isa.Vec()
		mask := GP32()
		MOVL(U32(0xffff0000), mask)
		if isa.Wide() {
			VPBROADCASTD(mask, odd)
		} else {
			VMOVD(mask, odd.AsX())
			VPBROADCASTD(odd.AsX(), odd)
		}
	}
	lineGap := 64 * panel / width // the other half of a panel lies between
	Label("pair")
	for line := 0; line < pairBytes; line += lineGap {
		PREFETCHT0(Mem{Base: w, Disp: near + line})
		PREFETCHT1(Mem{Base: next, Disp: line * width / panel})
	}
	for k := range 2 {
		weights := make([]reg.VecVirtual, columns)
		for c := range weights {
			weights[c] = isa.Vec()
			m := Mem{Base: w, Disp: 4 * c * isa.Lanes}
			switch {
			case f32:
				m.Disp += k * 4 * panel
				VMOVUPS(m, weights[c])
			case k == 1:
				isa.And(m, odd, weights[c])
			case isa.Wide():
				VPSLLD(Imm(16), m, weights[c])
			default:
				VMOVDQU(m, weights[c])
				VPSLLD(Imm(16), weights[c], weights[c])
			}
		}
		for r := range rows {
			input := isa.Vec()
			VBROADCASTSS(Mem{Base: x, Disp: 4 * (k*rows + r)}, input)
			for c := range weights {
				VFMADD231PS(weights[c], input, sums[r][c])
			}
		}
	}
	ADDQ(U32(uint32(pairBytes)), w)
	ADDQ(U32(uint32(8*rows)), x)
	ADDQ(step, next)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	for r := range sums {
		for c, v := range sums[r] {
			VMOVUPS(v, place(r, c))
		}
	}
	VZEROUPPER()
	RET()
}
