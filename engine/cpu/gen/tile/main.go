// Command tile generates the kernels that multiply packed weights.
//
// A kernel holds all accumulators of its rows and of one panel, or of half a
// panel, in registers. Each accumulator takes its products in order of the
// input index. Of whole panels it takes several that follow one another: between
// calls no weights would be on their way.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

const panel = 32 // outputs

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
		"func(acc *float32, begun bool, w *byte, x *float32, pairs, panels, near int, next uintptr, step int)")
	Pragma("noescape")
	acc, w := Load(Param("acc"), GP64()), Load(Param("w"), GP64())
	near, next, step := Load(Param("near"), GP64()), Load(Param("next"), GP64()), Load(Param("step"), GP64())
	columns := width / isa.Lanes
	place := func(r, c int) Mem { return Mem{Base: acc, Disp: 4 * (r*panel + c*isa.Lanes)} }
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
	panels := reg.Register(nil)
	if width == panel {
		panels = Load(Param("panels"), GP64())
		Label("panel")
	}
	x, pairs := Load(Param("x"), GP64()), Load(Param("pairs"), GP64())
	begun := Load(Param("begun"), GP8())
	sums := make([][]reg.VecVirtual, rows)
	each := func(f func(v reg.VecVirtual, m Mem)) {
		for r := range sums {
			for c, v := range sums[r] {
				f(v, place(r, c))
			}
		}
	}
	for r := range sums {
		for range columns {
			sums[r] = append(sums[r], isa.Zero())
		}
	}
	TESTB(begun, begun)
	JZ(LabelRef("pair"))
	each(func(v reg.VecVirtual, m Mem) { VMOVUPS(m, v) })
	lineGap := 64 * panel / width // the other half of a panel lies between
	Label("pair")
	for line := 0; line < pairBytes; line += lineGap {
		PREFETCHT0(Mem{Base: w, Index: near, Scale: 1, Disp: line})
		PREFETCHT1(Mem{Base: next, Disp: line * width / panel})
	}
	if rows <= 2 {
		memoryBound(isa, w, x, sums, odd)
	} else {
		computeBound(isa, w, x, sums, odd)
	}
	ADDQ(U32(uint32(pairBytes)), w)
	ADDQ(U32(uint32(8*rows)), x)
	ADDQ(step, next)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	each(func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) })
	if panels != nil {
		ADDQ(U32(uint32(4*rows*panel)), acc)
		DECQ(panels)
		JNZ(LabelRef("panel"))
	}
	VZEROUPPER()
	RET()
}

// memoryBound multiplies a pair with every line loaded once: a second load of
// a line that is on its way takes the place of a load of another.
func memoryBound(isa simd.ISA, w, x reg.Register, sums [][]reg.VecVirtual, odd reg.VecVirtual) {
	rows := len(sums)
	var inputs [2][]reg.VecVirtual
	for k := range inputs {
		for r := range rows {
			inputs[k] = append(inputs[k], isa.Vec())
			VBROADCASTSS(Mem{Base: x, Disp: 4 * (k*rows + r)}, inputs[k][r])
		}
	}
	for c := range sums[0] {
		weights := [2]reg.VecVirtual{isa.Vec(), isa.Vec()}
		m := Mem{Base: w, Disp: 4 * c * isa.Lanes}
		if odd == nil {
			VMOVUPS(m, weights[0])
			m.Disp += 4 * panel
			VMOVUPS(m, weights[1])
		} else {
			VMOVUPS(m, weights[1])
			VPSLLD(Imm(16), weights[1], weights[0])
			isa.And(weights[1], odd, weights[1])
		}
		for k := range inputs {
			for r, input := range inputs[k] {
				VFMADD231PS(weights[k], input, sums[r][c])
			}
		}
	}
}

// computeBound multiplies a pair with as little else as can be: operands that
// are shifted or masked come straight from the cache.
//
// With 512 bits every second input is an operand in memory, too. On Zen 4 a
// broadcast into a register takes a turn of the multipliers; an operand is loaded
// for each of the two columns, for which a Xeon, with twice the multipliers,
// would run out of load ports if all inputs were such.
func computeBound(isa simd.ISA, w, x reg.Register, sums [][]reg.VecVirtual, odd reg.VecVirtual) {
	for k := range 2 {
		weights := make([]reg.VecVirtual, len(sums[0]))
		for c := range weights {
			weights[c] = isa.Vec()
			m := Mem{Base: w, Disp: 4 * c * isa.Lanes}
			switch {
			case odd == nil:
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
		for r := range sums {
			at := Mem{Base: x, Disp: 4 * (k*len(sums) + r)}
			if isa.Wide() && r%2 == 1 {
				for c := range weights {
					VFMADD231PS_BCST(at, weights[c], sums[r][c])
				}
				continue
			}
			input := isa.Vec()
			VBROADCASTSS(at, input)
			for c := range weights {
				VFMADD231PS(weights[c], input, sums[r][c])
			}
		}
	}
}
