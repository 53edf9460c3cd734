package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// Tiles of the kernels that multiply queries by keys: of whole blocks of pairs, and of
// the pairs that are left.
const (
	tileScores tmm = iota
	tileQueries
	tileKeys
	tileLastQueries
	tileLastKeys
)

// Registers of these kernels: between rows of scores, and of keys.
const scoreStride, keyStride = r11, r10

func tileStrides() {
	Load(Param("config"), general[keyStride])
	tileConfigure(keyStride)
	MOVQ(U32(rowBytes), general[rowStride])
	MOVQ(U32(line), general[keyStride])
	MOVQ(U32(4*split), general[scoreStride])
}

// keysNear is how far ahead keys are fetched into L1, in bytes.
const keysNear = 1024

// groupInTiles multiplies 16 pairs at a time. What it fetches into L2 is far bytes after
// the keys that lie ahead in the list.
func groupInTiles(rows int, each func(r int, scores Op)) {
	const at, next, left = keysAt, keysNext, pairsLeft
	MOVQ(Mem{Base: general[keysList]}, general[at])
	MOVQ(Mem{Base: general[keysList], Index: general[keysAhead], Scale: 8}, general[next])
	Load(Param("far"), general[left])
	ADDQ(general[left], general[next])
	Load(Param("q"), general[rowsLow])
	Load(Param("pairs"), general[left])
	tileZero(tileScores)
	SUBQ(Imm(tilePairs), general[left])
	JLT(LabelRef("last"))
	Label("pairs")
	tileLoad(tileQueries, rowsLow, rowStride, 0)
	tileLoad(tileKeys, at, keyStride, 0)
	tileMultiply(tileScores, tileQueries, tileKeys)
	for i := range tilePairs {
		PREFETCHT1(Mem{Base: general[next], Disp: i * line})
		PREFETCHT0(Mem{Base: general[at], Disp: keysNear + i*line})
	}
	ADDQ(U32(tilePairs*line), general[at])
	ADDQ(U32(tilePairs*line), general[next])
	ADDQ(Imm(4*tilePairs), general[rowsLow])
	SUBQ(Imm(tilePairs), general[left])
	JGE(LabelRef("pairs"))
	Label("last")
	ADDQ(Imm(tilePairs), general[left])
	JZ(LabelRef("store"))
	tileLoad(tileLastQueries, rowsLow, rowStride, 0)
	tileLoad(tileLastKeys, at, keyStride, 0)
	tileMultiply(tileScores, tileLastQueries, tileLastKeys)
	Label("store")
	tileStore(tileScores, scoresTo, scoreStride, 0)
	for r := range rows {
		each(r, Mem{Base: general[scoresTo], Disp: 4 * r * split})
	}
	ADDQ(Imm(4*group), general[scoresTo])
	ADDQ(Imm(8), general[keysList])
}

// mixTiles is mix in tiles, for any number of rows: up to mixChunks chunks of a split's
// values at a time, whose sums stay in tiles, then the next ones. What follows in the
// list is fetched into L1, what lies ahead into L2.
func mixTiles() {
	text("mixAMX", "func(config *byte, acc *float32, v **byte, groups int, p *float32, rows, chunks, ahead, stride int)")
	const mixChunks = 4
	const acc, list, groups, at, next, near, ahead, weights, width, valueStride = rax, rcx, rbx, rsi, rdi, r12, r8, rdx, r9, r10
	const offset, chunkSize = r11, r13
	const values, inputs tmm = 6, 4
	chunks := AllocLocal(8)
	Load(Param("config"), general[rax])
	tileConfigure(rax)
	Load(Param("ahead"), general[ahead])
	Load(Param("acc"), general[acc])
	MOVQ(U32(rowBytes), general[width])
	MOVQ(U32(line), general[valueStride])
	Load(Param("rows"), general[chunkSize])
	SHLQ(Imm(6), general[chunkSize])

	Label("split")
	Load(Param("chunks"), general[near])
	MOVQ(general[near], chunks)
	XORQ(general[offset], general[offset])
	// some multiplies n chunks.
	some := func(name string, n int) {
		Label(name)
		for c := range n {
			tileZero(tmm(c))
		}
		Load(Param("v"), general[list])
		Load(Param("p"), general[weights])
		Load(Param("groups"), general[groups])
		MOVQ(U32(split/group), general[near])
		CMPQ(general[groups], general[near])
		CMOVQGT(general[near], general[groups])
		Label(name + "group")
		MOVQ(Mem{Base: general[list]}, general[at])
		MOVQ(Mem{Base: general[list], Index: general[ahead], Scale: 8}, general[next])
		ADDQ(general[offset], general[at])
		ADDQ(general[offset], general[next])
		MOVQ(Mem{Base: general[list], Disp: 8}, general[near])
		ADDQ(general[offset], general[near])
		tileLoad(inputs, weights, width, 0)
		for c := range n {
			v := values + tmm(c%2)
			tileLoad(v, at, valueStride, c*chunkBytes)
			tileMultiply(tmm(c), inputs, v)
			for i := range chunkBytes / line {
				PREFETCHT1(Mem{Base: general[next], Disp: c*chunkBytes + i*line})
				PREFETCHT0(Mem{Base: general[near], Disp: c*chunkBytes + i*line})
			}
		}
		ADDQ(Imm(4*group/2), general[weights])
		ADDQ(Imm(8), general[list])
		DECQ(general[groups])
		JNZ(LabelRef(name + "group"))
		for c := range n {
			tileStore(tmm(c), acc, valueStride, 0)
			ADDQ(general[chunkSize], general[acc])
		}
		ADDQ(U32(uint32(n*chunkBytes)), general[offset])
	}
	SUBQ(Imm(mixChunks), chunks)
	JLT(LabelRef("rest"))
	some("four", mixChunks)
	SUBQ(Imm(mixChunks), chunks)
	JGE(LabelRef("four"))
	Label("rest")
	ADDQ(Imm(mixChunks), chunks)
	JZ(LabelRef("next"))
	some("one", 1)
	DECQ(chunks)
	JNZ(LabelRef("one"))

	Label("next")
	// What the split has used is behind.
	Load(Param("groups"), general[groups])
	SUBQ(Imm(split/group), general[groups])
	JLE(LabelRef("end"))
	store(groups, "groups")
	Load(Param("v"), general[list])
	ADDQ(U32(8*split/group), general[list])
	store(list, "v")
	Load(Param("p"), general[weights])
	ADDQ(U32(mostRows*rowBytes), general[weights])
	store(weights, "p")
	Load(Param("acc"), general[acc])
	Load(Param("stride"), general[near])
	ADDQ(general[near], general[acc])
	store(acc, "acc")
	JMP(LabelRef("split"))
	Label("end")
	tileRelease()
	RET()
}
