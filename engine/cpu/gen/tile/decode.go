package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

// decoder makes float32 of the weights of one column.
type decoder interface {
	one(i int, m Mem, dst reg.VecVirtual) // of one input of a pair
	both(m Mem, dst [2]reg.VecVirtual)    // of both, loaded once
}

// plain weights are float32, the second input's behind all of the first.
type plain struct{}

func (plain) one(i int, m Mem, dst reg.VecVirtual) {
	m.Disp += i * 4 * panel
	VMOVUPS(m, dst)
}

func (p plain) both(m Mem, dst [2]reg.VecVirtual) {
	for i, v := range dst {
		p.one(i, m, v)
	}
}

func bf16(isa simd.ISA, rows, columns int) decoder {
	if isa.Wide() {
		return newMasked(isa)
	}
	return newShuffled(rows, columns)
}

// masked shifts the first input's weights up, and clears what lies below the second's.
// Operands come straight from the cache where they can.
type masked struct{ high reg.VecVirtual }

func newMasked(isa simd.ISA) masked {
	high, mask := isa.Vec(), GP32()
	MOVL(U32(0xffff0000), mask)
	VPBROADCASTD(mask, high)
	return masked{high}
}

func (d masked) one(i int, m Mem, dst reg.VecVirtual) {
	if i == 0 {
		VPSLLD(Imm(16), m, dst)
	} else {
		VPANDD(m, d.high, dst)
	}
}

func (d masked) both(m Mem, dst [2]reg.VecVirtual) {
	VMOVUPS(m, dst[1])
	VPSLLD(Imm(16), dst[1], dst[0])
	VPANDD(dst[1], d.high, dst[1])
}

// shuffled takes bytes where they belong. Of a shift or a mask of 256 bits, an Intel core
// does half or more where it multiplies; a shuffle has a port that does not multiply.
type shuffled struct{ control [2]Op }

// newShuffled keeps those controls in registers that find room beside accumulators, the
// weights of a column, and inputs.
func newShuffled(rows, columns int) shuffled {
	free := 16 - rows*columns - 1 - min(rows, columns)
	if rows <= 2 {
		free = 16 - rows*columns - 2 - 2*rows
	}
	d := shuffled{[2]Op{control(0), control(1)}}
	for i := range min(free, 2) {
		v := YMM()
		VMOVDQU(d.control[i], v)
		d.control[i] = v
	}
	return d
}

func (d shuffled) one(i int, m Mem, dst reg.VecVirtual) {
	VMOVDQU(m, dst)
	VPSHUFB(d.control[i], dst, dst)
}

func (d shuffled) both(m Mem, dst [2]reg.VecVirtual) {
	VMOVDQU(m, dst[1])
	VPSHUFB(d.control[0], dst[1], dst[0])
	VPSHUFB(d.control[1], dst[1], dst[1])
}

var controls [2]*Mem

// control is what brings the low or the high half of each lane up, over zeros.
func control(half int) Mem {
	if controls[half] == nil {
		m := GLOBL(fmt.Sprintf("half%d", half), RODATA|NOPTR)
		const none = 0x8080
		for lane := range 8 {
			low := 4*(lane%4) + 2*half
			DATA(4*lane, U32(uint32((low+1)<<8|low)<<16|none))
		}
		controls[half] = &m
	}
	return *controls[half]
}
