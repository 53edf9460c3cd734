package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/backend/backendtest"
)

// TestConformance runs the suite in every instruction set, and with several
// workers, who share units of work in other ways.
func TestConformance(t *testing.T) {
	run := func(isa ISA, threads, stride int) {
		t.Run(fmt.Sprintf("%v/threads=%d", isa, threads), func(t *testing.T) {
			backendtest.RunWith(t, func(t testing.TB) backend.Backend {
				b, err := New(Options{ISA: isa, Threads: threads})
				require.NoError(t, err)
				return b
			}, backendtest.Options{Stride: stride})
		})
	}
	for _, isa := range Supported() {
		stride := 3
		if isa == Generic {
			stride = 12
		}
		run(isa, 1, stride)
	}
	run(Auto, 2, 6)
	run(Auto, 5, 30)
}
