package simd

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// BF16 makes float32 of pairs of bf16, one in each lane.
//
// With 512 bits a shift brings the first of a pair up, and a mask clears what lies below the
// second. With 256, bytes are shuffled where they belong: of a shift or a mask, an Intel
// core does half or more where it multiplies, and a shuffle has a port that does not.
type BF16 struct {
	isa  ISA
	mask reg.VecVirtual // with 512 bits
	take [2]Op          // with 256: bytes of the first and of the second
}

// BF16 keeps what it needs in as many registers as are free; with 512 bits, in one.
func (isa ISA) BF16(free int) BF16 {
	d := BF16{isa: isa}
	if isa.Wide() {
		d.mask = isa.Vec()
		high := GP32()
		MOVL(U32(0xffff0000), high)
		VPBROADCASTD(high, d.mask)
		return d
	}
	for i := range d.take {
		d.take[i] = takeHalf(i)
		if i < free {
			v := YMM()
			VMOVDQU(d.take[i], v)
			d.take[i] = v
		}
	}
	return d
}

// One loads the first or the second of each pair at m.
func (d BF16) One(i int, m Mem, dst reg.VecVirtual) {
	switch {
	case !d.isa.Wide():
		VMOVDQU(m, dst)
		VPSHUFB(d.take[i], dst, dst)
	case i == 0:
		VPSLLD(Imm(16), m, dst)
	default:
		VPANDD(m, d.mask, dst)
	}
}

// Both loads the first and the second, and reads a line once: a second load of a line that
// is on its way takes the place of a load of another.
func (d BF16) Both(m Mem, dst [2]reg.VecVirtual) {
	VMOVUPS(m, dst[1])
	if d.isa.Wide() {
		VPSLLD(Imm(16), dst[1], dst[0])
		VPANDD(dst[1], d.mask, dst[1])
		return
	}
	VPSHUFB(d.take[0], dst[1], dst[0])
	VPSHUFB(d.take[1], dst[1], dst[1])
}

// takeHalf is what brings the low or the high half of each lane up, over zeros.
func takeHalf(half int) Mem {
	name := fmt.Sprintf("half%d", half)
	m, ok := constants[name]
	if !ok {
		m = GLOBL(name, RODATA|NOPTR)
		const zeros = 0x8080
		for lane := range 8 {
			low := 4*(lane%4) + 2*half
			DATA(4*lane, U32(uint32((low+1)<<8|low)<<16|zeros))
		}
		constants[name] = m
	}
	return m
}
