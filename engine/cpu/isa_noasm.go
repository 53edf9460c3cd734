//go:build noasm || !amd64

package cpu

func detectISA() ISA { return Generic }

func kernelsFor(ISA) *kernels { return generic }

// pause gives a sibling hardware thread the core for some cycles, where the
// instruction is at hand.
func pause() {}
