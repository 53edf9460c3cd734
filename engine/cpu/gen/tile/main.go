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
	// ahead is how far in front the weights are fetched, in bytes. The
	// hardware's own prefetching stops at page ends and lags behind.
	ahead = 2048
)

func main() {
	ConstraintExpr("!noasm")
	for _, f32 := range []bool{false, true} {
		for rows := 1; rows <= 6; rows++ {
			// Up to two rows, 16 registers hold a whole panel's accumulators.
			halves := 1
			if rows > 2 {
				halves = 2
			}
			tile(simd.AVX2, rows, halves, f32)
		}
		for rows := 1; rows <= 12; rows++ {
			tile(simd.AVX512, rows, 1, f32)
		}
	}
	Generate()
}

func tile(isa simd.ISA, rows, halves int, f32 bool) {
	dtype, pairBytes := "BF16", panel*2*2
	if f32 {
		dtype, pairBytes = "F32", panel*2*4
	}
	TEXT(fmt.Sprintf("tile%s%sRows%d", dtype, isa.Name, rows), NOSPLIT, "func(acc *float32, w *byte, x *float32, pairs int)")
	Pragma("noescape")
	acc, w := Load(Param("acc"), GP64()), Load(Param("w"), GP64())
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
	for half := range halves {
		x, pairs := Load(Param("x"), GP64()), Load(Param("pairs"), GP64())
		at := GP64()
		width := panel / halves
		start := half * 64
		LEAQ(Mem{Base: w, Disp: start}, at)
		sums := make([][]reg.VecVirtual, rows)
		for r := range sums {
			for c := range width / isa.Lanes {
				v := isa.Vec()
				VMOVUPS(Mem{Base: acc, Disp: 4 * (r*panel + half*width + c*isa.Lanes)}, v)
				sums[r] = append(sums[r], v)
			}
		}
		loop := fmt.Sprintf("pair%d", half)
		Label(loop)
		for line := 0; line < pairBytes/halves; line += 64 {
			PREFETCHT0(Mem{Base: at, Disp: ahead + line*halves})
		}
		for k := range 2 {
			weights := make([]reg.VecVirtual, width/isa.Lanes)
			for c := range weights {
				weights[c] = isa.Vec()
				m := Mem{Base: at, Disp: 4 * c * isa.Lanes}
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
		ADDQ(U32(pairBytes), at)
		ADDQ(U32(8*rows), x)
		DECQ(pairs)
		JNZ(LabelRef(loop))
		for r := range sums {
			for c, v := range sums[r] {
				VMOVUPS(v, Mem{Base: acc, Disp: 4 * (r*panel + half*width + c*isa.Lanes)})
			}
		}
	}
	VZEROUPPER()
	RET()
}
