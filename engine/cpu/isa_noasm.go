//go:build noasm || !amd64

package cpu

func detectISA() ISA { return Generic }

func kernelsFor(ISA) *kernels { return generic }

// pause gives a sibling hardware thread the core for some cycles, where the
// instruction is at hand.
func pause() {}

// fetchLines fetches lines into L2, where the instruction is at hand.
func fetchLines(*float32, int) {}
