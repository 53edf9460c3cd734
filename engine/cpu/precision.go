package cpu

import "fmt"

// Precision is what Linear multiplies in where the weights are bf16, and Attention
// where the KV cache is. Sums are float32 always.
type Precision uint8

const (
	// AutoPrecision is BF16 where the CPU is faster at it, else F32.
	AutoPrecision Precision = iota
	// F32 widens weights, keys and values, and multiplies them by float32.
	F32
	// BF16 rounds inputs to bf16, after their norm, and adds exact products, as
	// PyTorch and llama.cpp do with bf16 weights; so it does with queries and with
	// the softmax's weights, as PyTorch does. It needs no widening, and does twice the
	// arithmetic of F32 in the same time on Zen 4, in AMX sixteen times. Subnormal
	// numbers are zero. AMX adds the products in another order than AVX512_BF16.
	BF16
)

func (p Precision) String() string {
	switch p {
	case AutoPrecision:
		return "auto"
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	}
	return "invalid"
}

// ParsePrecision reads what String writes.
func ParsePrecision(s string) (Precision, error) {
	for p := AutoPrecision; p <= BF16; p++ {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("precision %q: want auto, f32 or bf16", s)
}

// resolve answers for one instruction set. Generic code can do all, for tests,
// and bf16 only when asked.
func (p Precision) resolve(isa ISA) (Precision, error) {
	dots := kernelsFor(isa).dots != nil
	switch {
	case p > BF16:
		return 0, fmt.Errorf("cpu: precision %d does not exist", p)
	case p == AutoPrecision && dots && !kernelsFor(isa).slowDots:
		return BF16, nil
	case p == AutoPrecision:
		return F32, nil
	case p == F32 && isa == AMX:
		return 0, fmt.Errorf("cpu: f32 products with amx asked for, which multiplies bf16 only; avx512 does them")
	case p == BF16 && !dots:
		return 0, fmt.Errorf("cpu: bf16 products with %v need a CPU with AVX512_BF16 and a build with assembly; f32 works everywhere", isa)
	}
	return p, nil
}
