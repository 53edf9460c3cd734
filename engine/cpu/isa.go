package cpu

import (
	"fmt"
	"sync/atomic"
)

// ISA is an instruction set that the kernels are written for.
type ISA uint8

const (
	// Auto is the best instruction set of this CPU.
	Auto ISA = iota
	Generic
	AVX2   // with FMA
	AVX512 // F, BW, DQ, VL
	AMX    // bf16 products in tiles, all else as AVX512
)

func (i ISA) String() string {
	switch i {
	case Auto:
		return "auto"
	case Generic:
		return "generic"
	case AVX2:
		return "avx2"
	case AVX512:
		return "avx512"
	case AMX:
		return "amx"
	}
	return "invalid"
}

// ParseISA reads what String writes.
func ParseISA(s string) (ISA, error) {
	for i := Auto; i <= AMX; i++ {
		if s == i.String() {
			return i, nil
		}
	}
	return 0, fmt.Errorf("instruction set %q: want auto, generic, avx2, avx512 or amx", s)
}

// limit caps what detection may answer; zero is no cap.
var limit atomic.Uint32

// limitISA makes Auto mean at most isa, until undo is called. For tests.
func limitISA(isa ISA) (undo func()) {
	old := limit.Swap(uint32(isa))
	return func() { limit.Store(old) }
}

// detect is the best instruction set of this CPU and this build.
func detect() ISA {
	isa := detectISA()
	if l := ISA(limit.Load()); l != Auto && l < isa {
		isa = l
	}
	return isa
}

// Supported lists the instruction sets that this CPU and this build have, the
// generic one first.
func Supported() []ISA {
	list := []ISA{Generic}
	for isa := AVX2; isa <= detect(); isa++ {
		list = append(list, isa)
	}
	return list
}

// resolve chooses for products of a precision.
func (i ISA) resolve(p Precision) (ISA, error) {
	best := detect()
	switch {
	case i == Auto && p == F32:
		return min(best, AVX512), nil
	case i == Auto:
		return best, nil
	case i > AMX:
		return 0, fmt.Errorf("cpu: instruction set %d does not exist", i)
	case i > best:
		return 0, fmt.Errorf("cpu: instruction set %v asked for, but this CPU, system and build have at most %v", i, best)
	}
	return i, nil
}
