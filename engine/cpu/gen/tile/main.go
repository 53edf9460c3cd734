// Command tile generates the kernels that multiply packed weights.
//
// A kernel multiplies all rows and outputs of panels that follow one another: between
// calls no weights would be on their way. Each accumulator takes its products in order
// of the input index, and is in a register meanwhile. Where they are too many for the
// registers, parts of them take turns on a few pairs of inputs, so that weights still
// come from memory in order.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

const (
	panel   = 32 // outputs
	line    = 64
	maxRows = 12
	turn    = 16 // pairs; of 8 to 96 the fastest on a Golden Cove
)

func main() {
	ConstraintExpr("!noasm")
	for _, f32 := range []bool{false, true} {
		for _, isa := range []simd.ISA{simd.AVX2, simd.AVX512} {
			for rows := 1; rows <= maxRows; rows++ {
				newKernel(isa, rows, f32).generate()
			}
		}
	}
	Generate()
}

// part is the accumulators of some rows and columns of a panel.
type part struct{ row, rows, column, columns int }

// parts fit into the registers, with operands. With AVX2, ten to twelve chains of
// additions keep the multipliers busy, eight do not.
func parts(isa simd.ISA, rows int) []part {
	columns := panel / isa.Lanes
	if isa.Wide() || rows <= 3 {
		return []part{{0, rows, 0, columns}}
	}
	last := 0
	if rows > 9 {
		last = rows / 2
	} else if rows > 6 {
		last = 3
	}
	var all []part
	for _, p := range []part{{rows: rows - last}, {row: rows - last, rows: last}} {
		if p.columns = columns; p.rows > 3 {
			p.columns /= 2
		}
		for ; p.rows > 0 && p.column < columns; p.column += p.columns {
			all = append(all, p)
		}
	}
	return all
}

// kernel is one of so many rows.
type kernel struct {
	isa                                        simd.ISA
	rows                                       int
	f32                                        bool
	pairBytes                                  int
	acc, w, x, pairs, panels, near, next, step reg.Register
}

func newKernel(isa simd.ISA, rows int, f32 bool) *kernel {
	k := &kernel{isa: isa, rows: rows, f32: f32, pairBytes: panel * 2 * 2}
	if f32 {
		k.pairBytes *= 2
	}
	return k
}

func (k *kernel) generate() {
	dtype := "BF16"
	if k.f32 {
		dtype = "F32"
	}
	TEXT(fmt.Sprintf("tile%s%sRows%d", dtype, k.isa.Name, k.rows), NOSPLIT,
		"func(acc *float32, begun bool, w *byte, x *float32, pairs, panels, near int, next uintptr, step int)")
	Pragma("noescape")
	k.acc, k.w, k.panels = Load(Param("acc"), GP64()), Load(Param("w"), GP64()), Load(Param("panels"), GP64())
	k.near, k.next, k.step = Load(Param("near"), GP64()), Load(Param("next"), GP64()), Load(Param("step"), GP64())
	if parts := parts(k.isa, k.rows); len(parts) == 1 {
		k.atOnce(parts[0])
	} else {
		k.inTurns(parts)
	}
	VZEROUPPER()
	RET()
}

// eachPanel goes through them.
func (k *kernel) eachPanel(body func()) {
	Label("panel")
	k.x, k.pairs = Load(Param("x"), GP64()), Load(Param("pairs"), GP64())
	body()
	ADDQ(U32(uint32(4*k.rows*panel)), k.acc)
	DECQ(k.panels)
	JNZ(LabelRef("panel"))
}

func (k *kernel) testBegun() {
	begun := Load(Param("begun"), GP8())
	TESTB(begun, begun)
}

// atOnce keeps all accumulators of a panel in registers.
func (k *kernel) atOnce(p part) {
	weights := k.decoder(p)
	k.eachPanel(func() {
		sums := k.sums(p)
		for r := range sums {
			for _, v := range sums[r] {
				k.isa.Xor(v, v, v)
			}
		}
		k.testBegun()
		JZ(LabelRef("pair"))
		k.each(sums, p, func(v reg.VecVirtual, m Mem) { VMOVUPS(m, v) })
		Label("pair")
		for at := 0; at < k.pairBytes; at += line {
			PREFETCHT0(Mem{Base: k.w, Index: k.near, Scale: 1, Disp: at})
			PREFETCHT1(Mem{Base: k.next, Disp: at})
		}
		k.multiply(p, k.w, k.x, sums, weights)
		ADDQ(U32(uint32(k.pairBytes)), k.w)
		ADDQ(U32(uint32(8*k.rows)), k.x)
		ADDQ(k.step, k.next)
		DECQ(k.pairs)
		JNZ(LabelRef("pair"))
		k.each(sums, p, func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) })
	})
}

// inTurns keeps those of one part in registers. Two parts, as far from one another as can
// be, fetch half of the lines each, in order.
func (k *kernel) inTurns(parts []part) {
	ADDQ(k.w, k.near) // points to what is next to be fetched
	SHRQ(Imm(1), k.step)
	count, left, w, x := GP64(), GP64(), GP64(), GP64()
	k.eachPanel(func() {
		k.testBegun()
		JNZ(LabelRef("turn"))
		zero := k.isa.Zero()
		for at := 0; at < 4*k.rows*panel; at += 4 * k.isa.Lanes {
			VMOVUPS(zero, Mem{Base: k.acc, Disp: at})
		}
		Label("turn")
		MOVQ(U32(turn), count)
		CMPQ(k.pairs, count)
		CMOVQLT(k.pairs, count)
		for i, p := range parts {
			pair := fmt.Sprintf("pair%d", i)
			weights, sums := k.decoder(p), k.sums(p)
			k.each(sums, p, func(v reg.VecVirtual, m Mem) { VMOVUPS(m, v) })
			MOVQ(count, left)
			MOVQ(k.w, w)
			MOVQ(k.x, x)
			Label(pair)
			if i == 0 || i == (len(parts)+1)/2 {
				for at := 0; at < k.pairBytes/2; at += line {
					PREFETCHT0(Mem{Base: k.near, Disp: at})
					PREFETCHT1(Mem{Base: k.next, Disp: at})
				}
				ADDQ(U32(uint32(k.pairBytes/2)), k.near)
				ADDQ(k.step, k.next)
			}
			k.multiply(p, w, x, sums, weights)
			ADDQ(U32(uint32(k.pairBytes)), w)
			ADDQ(U32(uint32(8*k.rows)), x)
			DECQ(left)
			JNZ(LabelRef(pair))
			k.each(sums, p, func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) })
		}
		MOVQ(w, k.w)
		MOVQ(x, k.x)
		SUBQ(count, k.pairs)
		JNZ(LabelRef("turn"))
	})
}

// sums are registers for the accumulators of a part, [rows][columns].
func (k *kernel) sums(p part) [][]reg.VecVirtual {
	sums := make([][]reg.VecVirtual, p.rows)
	for r := range sums {
		for range p.columns {
			sums[r] = append(sums[r], k.isa.Vec())
		}
	}
	return sums
}

// each goes through them and their places in memory.
func (k *kernel) each(sums [][]reg.VecVirtual, p part, f func(v reg.VecVirtual, m Mem)) {
	for r := range sums {
		for c, v := range sums[r] {
			f(v, Mem{Base: k.acc, Disp: 4 * ((p.row+r)*panel + (p.column+c)*k.isa.Lanes)})
		}
	}
}

// decoder leaves registers for the sums of a part, the weights of a column, and inputs.
func (k *kernel) decoder(p part) decoder {
	if k.f32 {
		return f32{}
	}
	free := 16 - p.rows*p.columns - 1 - min(p.rows, p.columns)
	if k.rows <= 2 { // see memoryBound
		free = 16 - p.rows*p.columns - 2 - 2*p.rows
	}
	return k.isa.BF16(free)
}

// decoder loads the weights of one column.
type decoder interface {
	One(i int, m Mem, dst reg.VecVirtual) // of one input of a pair
	Both(m Mem, dst [2]reg.VecVirtual)
}

// f32 weights of the second input lie behind all of the first.
type f32 struct{}

func (f32) One(i int, m Mem, dst reg.VecVirtual) {
	m.Disp += i * 4 * panel
	VMOVUPS(m, dst)
}

func (d f32) Both(m Mem, dst [2]reg.VecVirtual) {
	for i, v := range dst {
		d.One(i, m, v)
	}
}

// multiply adds the products of a pair at w and x.
func (k *kernel) multiply(p part, w, x reg.Register, sums [][]reg.VecVirtual, weights decoder) {
	weight := func(c int) Mem { return Mem{Base: w, Disp: 4 * (p.column + c) * k.isa.Lanes} }
	input := func(i, r int) Mem { return Mem{Base: x, Disp: 4 * (i*k.rows + p.row + r)} }
	if k.rows <= 2 {
		memoryBound(k.isa, weight, input, sums, weights)
	} else {
		computeBound(k.isa, weight, input, sums, weights)
	}
}

// memoryBound multiplies a pair with every line loaded once: a second load of
// a line that is on its way takes the place of a load of another.
func memoryBound(isa simd.ISA, weight func(c int) Mem, input func(i, r int) Mem, sums [][]reg.VecVirtual, weights decoder) {
	var inputs [2][]reg.VecVirtual
	for i := range inputs {
		for r := range sums {
			inputs[i] = append(inputs[i], isa.Vec())
			VBROADCASTSS(input(i, r), inputs[i][r])
		}
	}
	for c := range sums[0] {
		pair := [2]reg.VecVirtual{isa.Vec(), isa.Vec()}
		weights.Both(weight(c), pair)
		for i := range inputs {
			for r, in := range inputs[i] {
				VFMADD231PS(pair[i], in, sums[r][c])
			}
		}
	}
}

// computeBound multiplies a pair with as little else as can be. For each input of the
// pair, the weights of all columns stay in registers, or the inputs of all rows, whichever
// are fewer.
//
// With 512 bits every second input is an operand in memory. On Zen 4 a
// broadcast into a register takes a turn of the multipliers; an operand is loaded
// for each of the two columns, for which a Xeon, with twice the multipliers,
// would run out of load ports if all inputs were such.
func computeBound(isa simd.ISA, weight func(c int) Mem, input func(i, r int) Mem, sums [][]reg.VecVirtual, weights decoder) {
	for i := range 2 {
		decode := func(c int) reg.VecVirtual {
			v := isa.Vec()
			weights.One(i, weight(c), v)
			return v
		}
		if len(sums) < len(sums[0]) {
			var inputs []reg.VecVirtual
			for r := range sums {
				inputs = append(inputs, isa.Vec())
				VBROADCASTSS(input(i, r), inputs[r])
			}
			for c := range sums[0] {
				v := decode(c)
				for r, in := range inputs {
					VFMADD231PS(v, in, sums[r][c])
				}
			}
			continue
		}
		var held []reg.VecVirtual
		for c := range sums[0] {
			held = append(held, decode(c))
		}
		for r := range sums {
			if isa.Wide() && r%2 == 1 {
				for c, v := range held {
					VFMADD231PS_BCST(input(i, r), v, sums[r][c])
				}
				continue
			}
			in := isa.Vec()
			VBROADCASTSS(input(i, r), in)
			for c, v := range held {
				VFMADD231PS(v, in, sums[r][c])
			}
		}
	}
}
