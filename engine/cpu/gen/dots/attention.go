package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

const (
	mostRows   = 8        // of attention at once, see attention.go
	group      = 16       // positions, see kvcache.go
	split      = 256      // positions, see attention.go: the stride of rows of scores
	rowBytes   = 4 * 128  // of queries and weights in pairs, see attention.go
	chunkBytes = 8 * line // of the values of a group: 16 dims
)

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
func row(r, disp int) rm {
	m := rm{memory: true, base: rowsLow, index: rowStride, disp: disp, broadcast: true}
	if r >= 4 {
		m.base = rowsHigh
	}
	switch r % 4 {
	case 1:
		m.scale = 1
	case 2:
		m.scale = 2
	case 3:
		m.index, m.scale = rowStride3, 1
	}
	return m
}

// scores multiplies queries by the keys of groups. Two sums of each row, of even
// and odd pairs, hide the latency.
func scores(rows int) {
	text(fmt.Sprintf("scoresDotsRows%d", rows), "func(s *float32, k **byte, groups int, q *float32, pairs, ahead int)")
	const s, list, groups, at, next, left, ahead = rax, rcx, rbx, rsi, rdi, r12, r8
	const keys = 2 * mostRows // registers after the sums
	sum := func(r, odd int) int { return odd*mostRows + r }
	Load(Param("s"), general[s])
	Load(Param("k"), general[list])
	Load(Param("groups"), general[groups])
	Load(Param("ahead"), general[ahead])
	rowStrides()

	Label("group")
	MOVQ(Mem{Base: general[list]}, general[at])
	MOVQ(Mem{Base: general[list], Index: general[ahead], Scale: 8}, general[next])
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
			PREFETCHT0(Mem{Base: general[next], Disp: i * line})
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
		VMOVUPS(vector[sum(r, 0)], Mem{Base: general[s], Disp: 4 * r * split})
	}
	ADDQ(Imm(4*group), general[s])
	ADDQ(Imm(8), general[list])
	DECQ(general[groups])
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// mix adds the values of groups, weighted, to acc [chunks][rows][16].
func mix(rows int) {
	text(fmt.Sprintf("mixDotsRows%d", rows), "func(acc *float32, v **byte, groups int, p *float32, chunks, ahead int)")
	const acc, list, groups, at, next, left, ahead = rax, rcx, rbx, rsi, rdi, r12, r8
	const values = mostRows // register after the sums
	Load(Param("v"), general[list])
	Load(Param("groups"), general[groups])
	Load(Param("ahead"), general[ahead])
	Load(Param("p"), general[rowsLow])
	rowStrides()
	if rows > 4 {
		LEAQ(Mem{Base: general[rowsLow], Index: general[rowStride], Scale: 4}, general[rowsHigh])
	}

	Label("group")
	MOVQ(Mem{Base: general[list]}, general[at])
	MOVQ(Mem{Base: general[list], Index: general[ahead], Scale: 8}, general[next])
	Load(Param("acc"), general[acc])
	Load(Param("chunks"), general[left])
	Label("chunk")
	place := func(r int) Mem { return Mem{Base: general[acc], Disp: line * r} }
	for r := range rows {
		VMOVUPS(place(r), vector[r])
	}
	for pair := range group / 2 {
		PREFETCHT0(Mem{Base: general[next], Disp: pair * line})
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
	DECQ(general[groups])
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}
