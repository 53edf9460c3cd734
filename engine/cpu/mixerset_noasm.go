//go:build noasm || !amd64

package cpu

func mixersFor(ISA) *mixerKernels { return mixersGeneric }
