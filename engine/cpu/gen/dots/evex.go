package main

import (
	"encoding/binary"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
)

// Neither Go's assembler nor avo knows AVX512_BF16, so its instructions are
// emitted as bytes. avo does not see their registers: functions that use them
// name all their registers themselves.

// gp numbers the general registers that such an instruction may address with.
type gp byte

const (
	rax gp = iota
	rcx
	rdx
	rbx
	_
	_
	rsi
	rdi
	r8
	r9
	r10
	r11
	r12
	r13
)

// rm is the last operand: a register, or memory.
type rm struct {
	reg       byte // of a vector
	memory    bool
	base      gp
	index     gp
	scale     byte // 0: no index
	disp      int  // a multiple of what is read
	broadcast bool // 32 bits into all lanes; otherwise 64 bytes are read
}

func zmm(i int) rm { return rm{reg: byte(i)} }

// vdpbf16ps adds to dst, in each of its 16 lanes, the products of two pairs of bf16.
func vdpbf16ps(src rm, factor, dst int) { evex(0x52, src, byte(factor), byte(dst)) }

// vcvtneps2bf16 rounds 16 values of src into the low half of dst.
func vcvtneps2bf16(src, dst int) { evex(0x72, zmm(src), 0, byte(dst)) }

// evex emits an instruction EVEX.512.F3.0F38.W0 (Intel's manual, volume 2, 2.7).
func evex(opcode byte, m rm, v, reg byte) {
	not := func(x, bit byte) byte { return ^x >> bit & 1 }
	x, b := not(m.reg, 4), not(m.reg, 3)
	if m.memory {
		b, x = not(byte(m.base), 3), 1
		if m.scale > 0 {
			x = not(byte(m.index), 3)
		}
	}
	p2 := byte(0b10<<5) | not(v, 4)<<3
	if m.broadcast {
		p2 |= 1 << 4
	}
	code := []byte{0x62,
		not(reg, 3)<<7 | x<<6 | b<<5 | not(reg, 4)<<4 | 0b010,
		^v&15<<3 | 1<<2 | 0b10,
		p2, opcode}
	code = append(code, m.modrm(reg)...)
	emit("AVX512_BF16", code)
}

// emit writes an instruction as bytes, of which Go's assembler takes at most eight at a time.
func emit(isa string, code []byte) {
	for len(code) > 0 {
		n, name, value := 1, "BYTE", uint64(code[0])
		switch {
		case len(code) >= 8:
			n, name, value = 8, "QUAD", binary.LittleEndian.Uint64(code)
		case len(code) >= 4:
			n, name, value = 4, "LONG", uint64(binary.LittleEndian.Uint32(code))
		case len(code) >= 2:
			n, name, value = 2, "WORD", uint64(binary.LittleEndian.Uint16(code))
		}
		Instruction(&ir.Instruction{Opcode: name, Operands: []Op{U64(value)}, ISA: []string{isa}})
		code = code[n:]
	}
}

// modrm is the operand's bytes, with a displacement of eight bits, which counts what is read.
func (m rm) modrm(reg byte) []byte {
	if !m.memory {
		return []byte{0b11<<6 | reg&7<<3 | m.reg&7}
	}
	unit := 64
	if m.broadcast {
		unit = 4
	}
	if m.disp%unit != 0 || m.disp/unit > 127 || m.base&7 == 4 {
		panic("operand cannot be encoded")
	}
	disp := byte(m.disp / unit)
	if m.scale == 0 {
		return []byte{0b01<<6 | reg&7<<3 | byte(m.base)&7, disp}
	}
	log := map[byte]byte{1: 0, 2: 1, 4: 2, 8: 3}[m.scale]
	return []byte{0b01<<6 | reg&7<<3 | 0b100, log<<6 | byte(m.index)&7<<3 | byte(m.base)&7, disp}
}
