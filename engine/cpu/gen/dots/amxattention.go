package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

// Keys and values of a run, where each group follows the one before in memory, are
// fetched so many bytes ahead into L1 and into L2, within a page; see xeonFetch. There
// the list of groups is not read: its lines would come from L2, and wait behind the
// fetches, at the cost of a seventh of the bandwidth (measured on a Granite Rapids).
const runNear, runFar = 1024, 3584

// Tiles of attention: of scores and queries, or sums of values, two chunks at a time;
// keys; the pairs of both that are left after whole tiles; weights; and values.
const (
	tileScores tmm = iota
	tileQueries
	tileKeys
	tileLastQueries
	tileLastKeys
	tileSoftmax
	tileValues
)

// Registers of these kernels: how far ahead of its use is fetched into L1 (nothing in a
// list), the strides of tiles, where queries and sums of values are, and pairs of dims
// that are left.
const (
	nearBytes, rowsApart, linesApart = r8, r9, r10
	queriesAt, sumsAt                = rdx, r13
	dimPairs, spare                  = r12, r11
)

// reader finds the groups of a list, or of a run, one after the other.
type reader struct {
	at, ahead      gp  // of what is read, and of what is fetched into L2
	list           Mem // moved on
	place          Mem // in a run: of the next group,
	end, following Mem // where the run ends, and what is read after it
}

// newReader reads as many groups as a parameter says, if any, each of so many units of
// 1<<shift bytes.
func newReader(at, ahead gp, list, units string, shift int, groups string) reader {
	p, err := Param(list).Resolve()
	if err != nil {
		panic(err)
	}
	r := reader{at: at, ahead: ahead, list: p.Addr, place: AllocLocal(8), end: AllocLocal(8), following: AllocLocal(8)}
	Load(Param(groups), general[dimPairs])
	TESTQ(general[dimPairs], general[dimPairs])
	JZ(LabelRef(groups + "Absent"))
	Load(Param(units), general[ahead])
	SHLQ(U8(shift), general[ahead])
	IMULQ(general[dimPairs], general[ahead])
	MOVQ(r.list, general[at])
	MOVQ(Mem{Base: general[at], Index: general[dimPairs], Scale: 8}, general[dimPairs])
	MOVQ(general[dimPairs], r.following)
	MOVQ(Mem{Base: general[at]}, general[at])
	MOVQ(general[at], r.place)
	ADDQ(general[at], general[ahead])
	MOVQ(general[ahead], r.end)
	Label(groups + "Absent")
	return r
}

// beginTiles configures the tiles, and loads the registers that stay.
func beginTiles() {
	Load(Param("config"), general[spare])
	tileConfigure(spare)
	MOVQ(U32(rowBytes), general[rowsApart])
	MOVQ(U32(line), general[linesApart])
	XORQ(general[nearBytes], general[nearBytes])
	MOVQ(U32(runNear), general[spare])
	Load(Param("ahead"), general[dimPairs])
	TESTQ(general[dimPairs], general[dimPairs])
	CMOVQEQ(general[spare], general[nearBytes])
}

// next finds a group, and what lies ahead of it. It is of a run if nothing is to be
// fetched ahead in the list.
func (r *reader) next(name string) {
	Load(Param("ahead"), general[r.ahead])
	TESTQ(general[r.ahead], general[r.ahead])
	JZ(LabelRef(name + "Run"))
	MOVQ(r.list, general[r.at])
	MOVQ(Mem{Base: general[r.at], Index: general[r.ahead], Scale: 8}, general[r.ahead])
	MOVQ(Mem{Base: general[r.at]}, general[r.at])
	ADDQ(Imm(8), r.list)
	JMP(LabelRef(name + "Found"))
	Label(name + "Run")
	MOVQ(r.place, general[r.at])
	LEAQ(Mem{Base: general[r.at], Disp: runFar}, general[r.ahead])
	CMPQ(general[r.ahead], r.end)
	JLT(LabelRef(name + "Found"))
	SUBQ(r.end, general[r.ahead])
	ADDQ(r.following, general[r.ahead])
	Label(name + "Found")
}

// fetch fetches n lines.
func (r *reader) fetch(disp, n int) {
	for i := range n {
		PREFETCHT1(Mem{Base: general[r.ahead], Disp: disp + i*line})
		PREFETCHT0(Mem{Base: general[r.at], Index: general[nearBytes], Scale: 1, Disp: disp + i*line})
	}
}

func (r *reader) moveOn(bytes int) {
	ADDQ(U32(uint32(bytes)), general[r.at])
	ADDQ(U32(uint32(bytes)), general[r.ahead])
}

// groupInTiles multiplies queries by the keys of a group, and weights by the values of
// another; either may be nil. Sums of values come from memory, since those of all chunks
// have no place in tiles, and groups are read in order. nextSum moves on to those of the
// next chunk.
func groupInTiles(keys, values *reader, nextSum func()) {
	name := "values"
	if values == nil {
		name = "keys"
	} else if keys != nil {
		name = "both"
	}
	if keys != nil {
		keys.next(name + "K")
		Load(Param("q"), general[queriesAt])
		tileZero(tileScores)
	}
	if values != nil {
		values.next(name + "V")
	}
	chunk := func(c int) {
		const sum = tileQueries // between two uses
		v := tileValues + tmm(c)
		tileLoad(sum, sumsAt, linesApart, 0)
		tileLoad(v, values.at, linesApart, c*chunkBytes)
		tileMultiply(sum, tileSoftmax, v)
		values.fetch(c*chunkBytes, chunkBytes/line)
		tileStore(sum, sumsAt, linesApart, 0)
		nextSum()
	}
	Load(Param("pairs"), general[dimPairs])
	SUBQ(Imm(tilePairs), general[dimPairs])
	JLT(LabelRef(name + "Rest"))
	Label(name)
	if keys != nil {
		tileLoad(tileQueries, queriesAt, rowsApart, 0)
		tileLoad(tileKeys, keys.at, linesApart, 0)
		tileMultiply(tileScores, tileQueries, tileKeys)
		keys.fetch(0, tilePairs)
		keys.moveOn(tilePairs * line)
		ADDQ(Imm(4*tilePairs), general[queriesAt])
	}
	if values != nil {
		chunk(0)
		chunk(1)
		values.moveOn(2 * chunkBytes)
	}
	SUBQ(Imm(tilePairs), general[dimPairs])
	JGE(LabelRef(name))
	Label(name + "Rest")
	ADDQ(Imm(tilePairs), general[dimPairs])
	JZ(LabelRef(name + "Done"))
	if keys != nil {
		tileLoad(tileLastQueries, queriesAt, rowsApart, 0)
		tileLoad(tileLastKeys, keys.at, linesApart, 0)
		tileMultiply(tileScores, tileLastQueries, tileLastKeys)
		MOVQ(general[dimPairs], general[spare])
		SHLQ(Imm(6), general[spare])
		ADDQ(general[spare], general[keys.at])
	}
	if values != nil {
		Label(name + "Chunk") // of 8 pairs of dims, or less
		chunk(0)
		values.moveOn(chunkBytes)
		SUBQ(Imm(lanes/2), general[dimPairs])
		JG(LabelRef(name + "Chunk"))
	}
	Label(name + "Done")
	if keys != nil {
		MOVQ(general[keys.at], keys.place)
	}
	if values != nil {
		MOVQ(general[values.at], values.place)
	}
}

// groupWeights is the size of a row's weights of a group, in bytes.
const groupWeights = 2 * group

// pass does the keys of some groups, of a split, and side by side with them the
// exponentials and values of the split before; either may have no groups. So keys and
// values are read without a pause, and what is between them stays in L1. Scores are
// [8][split]; after them lie the largest of each row, and the same made finite.
func pass(rows int) {
	text(fmt.Sprintf("passAMXRows%d", rows), "func(config *byte, acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32)")
	const (
		done, to       = rbx, queriesAt // done: bytes of a row's weights
		total, best, x = 0, mostRows, 2 * mostRows
		size           = 4 * mostRows * split
	)
	largest := func(work gp, r, finite int) Mem {
		return Mem{Base: general[work], Disp: size + 4*(finite*mostRows+r)}
	}
	// newEnd is what done is after so many groups.
	newEnd := func(groups string) Mem {
		end := AllocLocal(8)
		Load(Param(groups), general[dimPairs])
		IMUL3Q(U8(groupWeights), general[dimPairs], general[dimPairs])
		MOVQ(general[dimPairs], end)
		return end
	}
	keysEnd, valuesEnd := newEnd("keys"), newEnd("values")
	keys := newReader(rax, rcx, "k", "pairs", 6, "keys")
	values := newReader(rsi, rdi, "v", "chunks", 9, "values")
	beginTiles()
	for r := range rows {
		VPXORD(vector[total+r], vector[total+r], vector[total+r])
		VMOVUPS(simd.Const("minusInf", 0xff800000), vector[best+r])
	}
	XORQ(general[done], general[done])
	beginValues := func() { // of the group before
		Load(Param("p"), general[spare])
		ADDQ(general[done], general[spare])
		SUBQ(Imm(groupWeights), general[spare])
		tileLoad(tileSoftmax, spare, rowsApart, 0)
		Load(Param("acc"), general[sumsAt])
	}
	endKeys := func() {
		Load(Param("scores"), general[spare])
		LEAQ(Mem{Base: general[spare], Index: general[done], Scale: 2}, general[spare])
		MOVQ(U32(4*split), general[dimPairs])
		tileStore(tileScores, spare, dimPairs, 0)
		JMP(LabelRef("weights"))
	}
	nextSum := func() { ADDQ(U32(uint32(rows*line)), general[sumsAt]) }

	Label("group")
	TESTQ(general[done], general[done])
	JZ(LabelRef("keysAlone"))
	CMPQ(general[done], keysEnd)
	JGT(LabelRef("valuesAlone"))
	Load(Param("scores"), general[spare])
	for r := range rows { // of the group before, which have left the store buffers
		VMAXPS(Mem{Base: general[spare], Index: general[done], Scale: 2, Disp: 4*r*split - 4*group}, vector[best+r], vector[best+r])
	}
	CMPQ(general[done], keysEnd)
	JEQ(LabelRef("valuesAlone"))
	CMPQ(general[done], valuesEnd)
	JGT(LabelRef("keysAlone"))
	beginValues()
	groupInTiles(&keys, &values, nextSum)
	endKeys()
	Label("keysAlone")
	CMPQ(general[done], keysEnd)
	JGE(LabelRef("weights"))
	groupInTiles(&keys, nil, nil)
	endKeys()
	Label("valuesAlone")
	CMPQ(general[done], valuesEnd)
	JGT(LabelRef("weights"))
	beginValues()
	groupInTiles(nil, &values, nextSum)

	Label("weights")
	CMPQ(general[done], valuesEnd)
	JGE(LabelRef("next"))
	Load(Param("before"), general[spare])
	Load(Param("p"), general[to])
	for r := range rows {
		VMOVUPS(Mem{Base: general[spare], Index: general[done], Scale: 2, Disp: 4 * r * split}, vector[x])
		weight(x, x+1, x+2, largest(spare, r, 1))
		VADDPS(vector[x], vector[total+r], vector[total+r])
		vcvtneps2bf16(x, x+2)
		VMOVUPS(vector[x+2].AsY(), Mem{Base: general[to], Index: general[done], Scale: 1, Disp: r * rowBytes})
	}
	Label("next")
	MOVQ(general[done], general[spare])
	ADDQ(Imm(groupWeights), general[done])
	CMPQ(general[spare], keysEnd)
	JLT(LabelRef("group"))
	CMPQ(general[spare], valuesEnd)
	JLT(LabelRef("group"))

	tileRelease()
	Load(Param("keys"), general[dimPairs])
	TESTQ(general[dimPairs], general[dimPairs])
	JZ(LabelRef("sums"))
	Load(Param("scores"), general[spare])
	for r := range rows {
		fold(VMAXPS, best+r, x)
		VMOVSS(vector[best+r].AsX(), largest(spare, r, 0))
		finite(best+r, x)
		VMOVSS(vector[best+r].AsX(), largest(spare, r, 1))
	}
	Label("sums")
	Load(Param("values"), general[dimPairs])
	TESTQ(general[dimPairs], general[dimPairs])
	JZ(LabelRef("return"))
	Load(Param("sum"), general[to])
	for r := range rows {
		fold(VADDPS, total+r, x)
		VMOVSS(vector[total+r].AsX(), Mem{Base: general[to], Disp: 4 * r})
	}
	Label("return")
	VZEROUPPER()
	RET()
}
