package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// tmm is one of the eight registers of AMX: at most 16 rows of 64 bytes.
type tmm byte

// The tiles of a kernel: sums[r][c] of 16 rows and 16 outputs, inputs[r] of 16 rows and
// 16 pairs, and weights[c] of 16 pairs and 16 outputs.
var (
	tileSums    = [2][columns]tmm{{0, 1}, {2, 3}}
	tileInputs  = [2]tmm{4, 5}
	tileWeights = [columns]tmm{6, 7}
)

const (
	tileRows  = 16
	tilePairs = 16
)

// amx emits an instruction VEX.128.0F38.W0 (Intel's manual, volume 2, 2.3.5).
func amx(prefix, opcode byte, m []byte, reg, v byte, base, index gp) {
	not := func(x byte) byte { return ^x >> 3 & 1 }
	emit("AMX_BF16", append([]byte{0xc4, not(reg)<<7 | not(byte(index))<<6 | not(byte(base))<<5 | 0b00010, ^v&15<<3 | prefix, opcode}, m...))
}

const (
	plain = 0b00
	p66   = 0b01
	pF3   = 0b10
	pF2   = 0b11
)

// rowsAt addresses rows that lie stride apart.
func rowsAt(t tmm, base, stride gp, disp int) []byte {
	m := []byte{byte(t)<<3 | 0b100, byte(stride)&7<<3 | byte(base)&7}
	if disp < 128 {
		m[0] |= 0b01 << 6
		return append(m, byte(disp))
	}
	m[0] |= 0b10 << 6
	return binary.LittleEndian.AppendUint32(m, uint32(disp))
}

func tileLoad(t tmm, base, stride gp, disp int) {
	amx(pF2, 0x4b, rowsAt(t, base, stride, disp), byte(t), 0, base, stride)
}

// tileLoadOnce loads what is not worth a place in L1.
func tileLoadOnce(t tmm, base, stride gp, disp int) {
	amx(p66, 0x4b, rowsAt(t, base, stride, disp), byte(t), 0, base, stride)
}

func tileStore(t tmm, base, stride gp, disp int) {
	amx(pF3, 0x4b, rowsAt(t, base, stride, disp), byte(t), 0, base, stride)
}

func tileZero(t tmm) { amx(pF2, 0x49, []byte{0b11<<6 | byte(t)<<3}, byte(t), 0, 0, 0) }

// tileMultiply adds to dst[m][n] what pairs of a[m][k] and b[k][n] yield.
func tileMultiply(dst, a, b tmm) {
	amx(pF3, 0x5c, []byte{0b11<<6 | byte(dst)<<3 | byte(a)}, byte(dst), byte(b), 0, 0)
}

func tileConfigure(base gp) { amx(plain, 0x49, []byte{byte(base) & 7}, 0, 0, base, 0) }

func tileRelease() { amx(plain, 0x49, []byte{0b11 << 6}, 0, 0, 0, 0) }

// products multiplies panels, stride bytes apart, by groups of up to 16 or 32 rows each,
// as their configuration says, 16 pairs of inputs at a time. Sums lie as in the other
// kernels, those of the next panel size bytes on. A panel's part stays in L1 for all
// groups. With each block of it, so many lines are fetched into L2, from far bytes after
// that part on; or, for a single group, as much as a block has, and into L1 from near
// bytes on, which otherwise is 0.
func products(tiles int) {
	text(fmt.Sprintf("products%dAMX", tiles*tileRows),
		"func(config *byte, acc *float32, size int, begun bool, w *byte, stride int, x *float32, width, blocks, panels, groups, near, far, lines int)")
	const acc, w, x, width, blocks, groups, next, near, count, apart = rax, rcx, rdx, r9, rbx, r8, rdi, r12, rsi, r10
	inputs, second := [2]gp{x, r11}, r13
	Load(Param("config"), general[rax])
	tileConfigure(rax)
	for _, p := range []struct {
		name string
		to   gp
	}{{"acc", acc}, {"width", width}} {
		Load(Param(p.name), general[p.to])
	}
	MOVQ(U32(panel*4), general[apart])
	Load(Param("near"), general[near])
	TESTQ(general[near], general[near])
	JZ(LabelRef("panel"))
	Load(Param("far"), general[next])
	SUBQ(general[next], general[near]) // from where lines are fetched into L2
	eachSum := func(do func(t tmm, base gp, disp int)) {
		if tiles > 1 {
			LEAQ(Mem{Base: general[acc], Disp: tileRows * panel * 4}, general[second])
		}
		for r := range tiles {
			for c := range columns {
				do(tileSums[r][c], [2]gp{acc, second}[r], c*line)
			}
		}
	}

	Label("panel")
	Load(Param("w"), general[w])
	Load(Param("far"), general[next])
	ADDQ(general[w], general[next])
	Load(Param("x"), general[x])
	Load(Param("groups"), general[groups])
	Label("group")
	Load(Param("w"), general[w])
	Load(Param("begun"), reg.BL)
	TESTB(reg.BL, reg.BL)
	JNZ(LabelRef("begun"))
	eachSum(func(t tmm, _ gp, _ int) { tileZero(t) })
	JMP(LabelRef("begin"))
	Label("begun")
	eachSum(func(t tmm, base gp, disp int) { tileLoad(t, base, apart, disp) })
	Label("begin")
	Load(Param("blocks"), general[blocks])
	if tiles > 1 {
		MOVQ(general[width], general[inputs[1]])
		SHLQ(U8(4), general[inputs[1]]) // 16 rows
		ADDQ(general[x], general[inputs[1]])
	}

	Label("block")
	for r := range tiles {
		tileLoadOnce(tileInputs[r], inputs[r], width, 0)
		for c := range columns {
			if r == 0 {
				tileLoad(tileWeights[c], w, apart, c*line)
			}
			tileMultiply(tileSums[r][c], tileInputs[r], tileWeights[c])
		}
	}
	Load(Param("lines"), general[count])
	TESTQ(general[near], general[near])
	JZ(LabelRef("some"))
	for i := 0; i < tilePairs*panel*4; i += line {
		PREFETCHT1(Mem{Base: general[next], Disp: i})
		PREFETCHT0(Mem{Base: general[next], Index: general[near], Scale: 1, Disp: i})
	}
	ADDQ(U32(tilePairs*panel*4), general[next])
	JMP(LabelRef("fetched"))
	Label("some")
	for i := range 2 {
		PREFETCHT1(Mem{Base: general[next], Disp: i * line})
	}
	ADDQ(U32(2*line), general[next])
	SUBQ(U8(2), general[count])
	JG(LabelRef("some"))
	Label("fetched")
	ADDQ(U32(tilePairs*panel*4), general[w])
	for r := range tiles {
		ADDQ(U32(line), general[inputs[r]])
	}
	DECQ(general[blocks])
	JNZ(LabelRef("block"))

	eachSum(func(t tmm, base gp, disp int) { tileStore(t, base, apart, disp) })
	ADDQ(U32(uint32(tiles*tileRows*panel*4)), general[acc])
	if tiles > 1 { // where the second rows' inputs end, less what they advanced, are the next group's
		Load(Param("blocks"), general[count])
		SHLQ(U8(6), general[count])
		MOVQ(general[inputs[1]], general[x])
		SUBQ(general[count], general[x])
		MOVQ(general[width], general[count])
		SHLQ(U8(4), general[count])
		ADDQ(general[count], general[x])
	}
	DECQ(general[groups])
	JNZ(LabelRef("group"))

	Load(Param("acc"), general[acc])
	Load(Param("size"), general[count])
	ADDQ(general[count], general[acc])
	store(acc, "acc")
	Load(Param("stride"), general[count])
	Load(Param("w"), general[w])
	ADDQ(general[count], general[w])
	store(w, "w")
	Load(Param("panels"), general[count])
	DECQ(general[count])
	store(count, "panels")
	JNZ(LabelRef("panel"))
	tileRelease()
	RET()
}

// store keeps a register where a parameter was.
func store(r gp, name string) {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	MOVQ(general[r], p.Addr)
}

// multiplyTiles keeps as many chains of products going as there are sums in a kernel.
func multiplyTiles() {
	text("multiplyAMX", "func(config *byte, rounds int) float32")
	Load(Param("config"), general[rax])
	tileConfigure(rax)
	Load(Param("rounds"), reg.RBX)
	for t := range tmm(8) {
		tileZero(t)
	}
	Label("round")
	for g := range 2 {
		for c := range columns {
			tileMultiply(tileSums[g][c], tileInputs[g], tileWeights[c])
		}
	}
	DECQ(reg.RBX)
	JNZ(LabelRef("round"))
	tileRelease()
	VPXORD(vector[0], vector[0], vector[0])
	Store(reg.X0, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
