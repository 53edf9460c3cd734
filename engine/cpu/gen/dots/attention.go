package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

const (
	mostRows   = 8        // of attention at once, see attention.go
	group      = 16       // positions, see kvcache.go
	split      = 256      // positions, see attention.go: the stride of rows of scores
	rowBytes   = 4 * 128  // of queries and weights in pairs, see attention.go
	chunkBytes = 8 * line // of the values of a group: 16 dims
)

// weightPoly is 2^f for f from 0 to 1, the highest power first; see weightGeneric.
var weightPoly = [...]float32{0.0135557456, 0.0520323664, 0.241379768, 0.693032146, 1}

// Rows of queries or weights lie rowBytes apart, so four of them share a pointer.
const (
	rowsLow, rowsHigh = rdx, r11
	rowStride         = r9
	rowStride3        = r10
)

// rowStrides loads what row addresses with.
func rowStrides() {
	MOVQ(U32(rowBytes), general[rowStride])
	MOVQ(U32(3*rowBytes), general[rowStride3])
}

// row is the pair at disp bytes in a row, in all lanes.
func row(r, disp int) rm { return inRow([]gp{rowsLow, rowsHigh}, rowStride, rowStride3, r, disp) }

// Registers of the kernels that multiply queries by keys.
const (
	scoresTo, keysList, groupsLeft, keysAt, keysNext, pairsLeft, keysAhead = rax, rcx, rbx, rsi, rdi, r12, r8

	keys = 2 * mostRows // vectors after the sums
)

// scoreSum is a sum of a row over even or odd pairs.
func scoreSum(r, odd int) int { return odd*mostRows + r }

// groupInVectors has two sums of each row, of even and odd pairs, to hide the latency.
func groupInVectors(rows int, each func(r int, scores Op)) {
	sum := scoreSum
	const at, next, left = keysAt, keysNext, pairsLeft
	MOVQ(Mem{Base: general[keysList]}, general[at])
	MOVQ(Mem{Base: general[keysList], Index: general[keysAhead], Scale: 8}, general[next])
	Load(Param("q"), general[rowsLow])
	if rows > 4 {
		LEAQ(Mem{Base: general[rowsLow], Index: general[rowStride], Scale: 4}, general[rowsHigh])
	}
	for r := range rows {
		for odd := range 2 {
			z := vector[sum(r, odd)]
			VPXORD(z, z, z)
		}
	}
	// pairs multiplies one or two of them.
	pairs := func(n int) {
		for i := range n {
			PREFETCHT1(Mem{Base: general[next], Disp: i * line})
			VMOVUPS(Mem{Base: general[at], Disp: i * line}, vector[keys+i])
		}
		for i := range n {
			for r := range rows {
				vdpbf16ps(row(r, 4*i), keys+i, sum(r, i))
			}
		}
	}
	Load(Param("pairs"), general[left])
	SUBQ(Imm(2), general[left])
	JLT(LabelRef("last"))
	Label("pairs")
	pairs(2)
	ADDQ(Imm(2*line), general[at])
	ADDQ(Imm(2*line), general[next])
	ADDQ(Imm(8), general[rowsLow])
	if rows > 4 {
		ADDQ(Imm(8), general[rowsHigh])
	}
	SUBQ(Imm(2), general[left])
	JGE(LabelRef("pairs"))
	Label("last")
	INCQ(general[left])
	JNZ(LabelRef("store"))
	pairs(1)
	Label("store")
	for r := range rows {
		VADDPS(vector[sum(r, 1)], vector[sum(r, 0)], vector[sum(r, 0)])
		VMOVUPS(vector[sum(r, 0)], Mem{Base: general[scoresTo], Disp: 4 * r * split})
		each(r, vector[sum(r, 0)])
	}
	ADDQ(Imm(4*group), general[scoresTo])
	ADDQ(Imm(8), general[keysList])
}

// The weight of a score x beside the largest, m, is 2 to the power of y = (x−m)·log₂e,
// as exact as its rounding to bf16 needs: 2^⌊y⌋ times a polynomial in what is left of y.

// finite makes −Inf, as the largest score where none counts, a number.
func finite(i, free int) {
	x, low := vector[i].AsX(), vector[free].AsX()
	VMOVSS(simd.Float("lowest", -math.MaxFloat32), low)
	VMAXSS(x, low, x) // with x as the second source a NaN comes through
}

// weight replaces scores by their weights; m is the largest, and finite.
func weight(x, rest, p int, m Mem) {
	VSUBPS_BCST(m, vector[x], vector[x])
	VMULPS(simd.Float("log2e", 1.44269504088896341), vector[x], vector[x])
	VRNDSCALEPS(Imm(0b1001), vector[x], vector[rest]) // the floor
	VSUBPS(vector[rest], vector[x], vector[rest])
	VMOVUPS(simd.Float("weight4", weightPoly[0]), vector[p])
	for i, c := range weightPoly[1:] {
		VFMADD213PS(simd.Float(fmt.Sprintf("weight%d", 3-i), c), vector[rest], vector[p])
	}
	VSCALEFPS(vector[x], vector[p], vector[x])
}

// softmax replaces scores by their weights, see mixerKernels.
func softmax() {
	const p, n, first, left, to = rdi, rcx, rsi, rbx, rax
	const x, rest, poly, sum, best = 0, 1, 2, 3, 4
	text("softmaxDots", "func(p *float32, n int, max *float32) float32")
	most := AllocLocal(8)
	Load(Param("p"), general[p])
	Load(Param("n"), general[n])
	Load(Param("max"), general[to])
	MOVQ(general[p], general[first])
	MOVQ(general[n], general[left])
	VMOVUPS(simd.Const("minusInf", 0xff800000), vector[best])
	Label("largest")
	VMOVUPS(Mem{Base: general[p]}, vector[x])
	VMAXPS(vector[x], vector[best], vector[best])
	ADDQ(Imm(4*lanes), general[p])
	SUBQ(Imm(lanes), general[left])
	JG(LabelRef("largest"))
	fold(VMAXPS, best, x)
	VMOVSS(vector[best].AsX(), Mem{Base: general[to]})
	finite(best, x)
	VMOVSS(vector[best].AsX(), most)
	VPXORD(vector[sum], vector[sum], vector[sum])
	Label("weight")
	VMOVUPS(Mem{Base: general[first]}, vector[x])
	weight(x, rest, poly, most)
	VMOVUPS(vector[x], Mem{Base: general[first]})
	VADDPS(vector[x], vector[sum], vector[sum])
	ADDQ(Imm(4*lanes), general[first])
	SUBQ(Imm(lanes), general[n])
	JG(LabelRef("weight"))
	fold(VADDPS, sum, x)
	Store(vector[sum].AsX(), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// scores multiplies queries by the keys of groups.
func scores(rows int) {
	text(fmt.Sprintf("scoresDotsRows%d", rows), "func(s *float32, k **byte, groups int, q *float32, pairs, ahead int)")
	Load(Param("s"), general[scoresTo])
	Load(Param("k"), general[keysList])
	Load(Param("groups"), general[groupsLeft])
	Load(Param("ahead"), general[keysAhead])
	rowStrides()

	Label("group")
	groupInVectors(rows, func(int, Op) {})
	DECQ(general[groupsLeft])
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// weights makes the weights of whole splits, in one go: between calls no keys would be
// on their way. The exponentials of a split are taken while the keys of the next one
// come from memory; so work holds the scores of two splits, and after them for each row
// a sum of weights, in 16 lanes, and the largest score.
func weights(rows int) {
	text(fmt.Sprintf("weightsDotsRows%d", rows), "func(w *float32, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32)")
	const (
		before = r13      // scores of the split before
		x      = keys + 2 // vectors of the exponentials: x, what is left of it, p
		best   = x + 3    // of each row
		half   = mostRows * split * 4
	)
	splits, to := AllocLocal(8), AllocLocal(8) // left; weights of the split before
	max, sum := AllocLocal(8), AllocLocal(8)   // of that split
	load := func(name string, local Mem) {
		Load(Param(name), general[keysAt])
		MOVQ(general[keysAt], local)
	}
	load("splits", splits)
	load("w", to)
	load("max", max)
	load("sum", sum)
	Load(Param("k"), general[keysList])
	Load(Param("work"), general[scoresTo])
	XORQ(general[before], general[before])
	Load(Param("ahead"), general[keysAhead])
	rowStrides()
	minusInf := simd.Const("minusInf", 0xff800000)
	total := func(r int) Mem { return Mem{Base: general[pairsLeft], Disp: 2*half + r*line} }
	finiteMax := func(work gp, r int) Mem { return Mem{Base: general[work], Disp: 2*half + mostRows*line + 4*r} }
	Load(Param("work"), general[pairsLeft])
	VPXORD(vector[x], vector[x], vector[x])
	for r := range rows {
		VMOVUPS(vector[x], total(r))
		VMOVUPS(minusInf, vector[best+r])
	}

	Label("split")
	MOVQ(U32(split/group), general[groupsLeft])
	Label("group")
	CMPQ(splits, Imm(0))
	JE(LabelRef("fetch"))
	groupInVectors(rows, func(r int, scores Op) { VMAXPS(scores, vector[best+r], vector[best+r]) })
	JMP(LabelRef("exponentials"))
	Label("fetch") // the beginning of what comes after the last keys
	MOVQ(U32(split/group), general[keysAt])
	SUBQ(general[groupsLeft], general[keysAt])
	SHLQ(Imm(9), general[keysAt])
	ADDQ(Mem{Base: general[keysList]}, general[keysAt])
	for i := range 1 << 9 / line {
		PREFETCHT1(Mem{Base: general[keysAt], Disp: i * line})
	}
	Label("exponentials")
	TESTQ(general[before], general[before])
	JZ(LabelRef("next"))
	Load(Param("work"), general[pairsLeft])
	MOVQ(to, general[keysNext])
	for r := range rows {
		VMOVUPS(Mem{Base: general[before], Disp: 4 * r * split}, vector[x])
		weight(x, x+1, x+2, finiteMax(pairsLeft, r))
		VADDPS(total(r), vector[x], vector[x+1])
		VMOVUPS(vector[x+1], total(r))
		vcvtneps2bf16(x, x+2)
		VMOVUPS(vector[x+2].AsY(), Mem{Base: general[keysNext], Disp: r * rowBytes})
	}
	ADDQ(Imm(4*group), general[before])
	ADDQ(Imm(2*group), to)
	Label("next")
	DECQ(general[groupsLeft])
	JNZ(LabelRef("group"))

	TESTQ(general[before], general[before])
	JZ(LabelRef("largest"))
	Load(Param("work"), general[pairsLeft])
	MOVQ(sum, general[keysAt])
	for r := range rows {
		VMOVUPS(total(r), vector[x])
		fold(VADDPS, x, x+1)
		VMOVSS(vector[x].AsX(), Mem{Base: general[keysAt], Disp: 4 * r})
		VPXORD(vector[x], vector[x], vector[x])
		VMOVUPS(vector[x], total(r))
	}
	ADDQ(Imm(4*mostRows), max)
	ADDQ(Imm(4*mostRows), sum)
	ADDQ(U32(mostRows*rowBytes-2*split), to)
	Label("largest")
	CMPQ(splits, Imm(0))
	JE(LabelRef("end"))
	DECQ(splits)
	MOVQ(max, general[keysAt])
	Load(Param("work"), general[keysNext])
	for r := range rows {
		VMOVAPS(vector[best+r], vector[x])
		fold(VMAXPS, x, x+1)
		VMOVSS(vector[x].AsX(), Mem{Base: general[keysAt], Disp: 4 * r})
		finite(x, x+1)
		VMOVSS(vector[x].AsX(), finiteMax(keysNext, r))
		VMOVUPS(minusInf, vector[best+r])
	}
	// The halves of work change places.
	LEAQ(Mem{Base: general[scoresTo], Disp: -4 * split}, general[before])
	Load(Param("work"), general[scoresTo])
	LEAQ(Mem{Base: general[scoresTo], Index: general[scoresTo], Scale: 1, Disp: half}, general[scoresTo])
	SUBQ(general[before], general[scoresTo])
	JMP(LabelRef("split"))
	Label("end")
	VZEROUPPER()
	RET()
}

// fold combines 16 lanes of a vector into the lowest as simd.SumLanes does.
func fold(op func(ops ...Op), i, free int) {
	x, high := vector[i], vector[free]
	VEXTRACTF64X4(Imm(1), x, high.AsY())
	op(high.AsY(), x.AsY(), x.AsY())
	VEXTRACTF32X4(Imm(1), x.AsY(), high.AsX())
	op(high.AsX(), x.AsX(), x.AsX())
	VPERMILPS(Imm(0b1110), x.AsX(), high.AsX()) // lanes 2, 3
	op(high.AsX(), x.AsX(), x.AsX())
	VPERMILPS(Imm(1), x.AsX(), high.AsX())
	op(high.AsX(), x.AsX(), x.AsX())
}

// mix adds up the values of groups, weighted: those of each split in acc
// [chunks][rows][16] of its own, in one go.
func mix(rows int) {
	text(fmt.Sprintf("mixDotsRows%d", rows), "func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, stride int)")
	const acc, list, groups, at, next, left, ahead, inSplit = rax, rcx, rbx, rsi, rdi, r12, r8, r13
	const values = mostRows // register after the sums
	Load(Param("v"), general[list])
	Load(Param("groups"), general[groups])
	Load(Param("ahead"), general[ahead])
	Load(Param("p"), general[rowsLow])
	weights, sums := AllocLocal(8), AllocLocal(8) // of the split
	MOVQ(general[rowsLow], weights)
	Load(Param("acc"), general[acc])
	MOVQ(general[acc], sums)
	rowStrides()

	Label("split")
	MOVQ(weights, general[rowsLow])
	if rows > 4 {
		LEAQ(Mem{Base: general[rowsLow], Index: general[rowStride], Scale: 4}, general[rowsHigh])
	}
	XORQ(general[inSplit], general[inSplit])
	Label("group")
	MOVQ(Mem{Base: general[list]}, general[at])
	MOVQ(Mem{Base: general[list], Index: general[ahead], Scale: 8}, general[next])
	MOVQ(sums, general[acc])
	Load(Param("chunks"), general[left])
	Label("chunk")
	place := func(r int) Mem { return Mem{Base: general[acc], Disp: line * r} }
	TESTQ(general[inSplit], general[inSplit])
	JZ(LabelRef("zeros"))
	for r := range rows {
		VMOVUPS(place(r), vector[r])
	}
	JMP(LabelRef("pairs"))
	Label("zeros")
	for r := range rows {
		VPXORD(vector[r], vector[r], vector[r])
	}
	Label("pairs")
	for pair := range group / 2 {
		PREFETCHT1(Mem{Base: general[next], Disp: pair * line})
		VMOVUPS(Mem{Base: general[at], Disp: pair * line}, vector[values+pair%2])
		for r := range rows {
			vdpbf16ps(row(r, 4*pair), values+pair%2, r)
		}
	}
	for r := range rows {
		VMOVUPS(vector[r], place(r))
	}
	ADDQ(U32(chunkBytes), general[at])
	ADDQ(U32(chunkBytes), general[next])
	ADDQ(U32(uint32(rows*line)), general[acc])
	DECQ(general[left])
	JNZ(LabelRef("chunk"))
	ADDQ(Imm(4*group/2), general[rowsLow])
	if rows > 4 {
		ADDQ(Imm(4*group/2), general[rowsHigh])
	}
	ADDQ(Imm(8), general[list])
	INCQ(general[inSplit])
	DECQ(general[groups])
	JZ(LabelRef("end"))
	CMPQ(general[inSplit], Imm(split/group))
	JNE(LabelRef("group"))
	ADDQ(U32(mostRows*rowBytes), weights)
	Load(Param("stride"), general[acc])
	ADDQ(general[acc], sums)
	JMP(LabelRef("split"))
	Label("end")
	VZEROUPPER()
	RET()
}
