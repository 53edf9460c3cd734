package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

type deltaState struct{ spec backend.DeltaSpec }

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState is not there yet.
func (b *Backend) NewDeltaState(spec backend.DeltaSpec) (backend.DeltaState, error) {
	return nil, fmt.Errorf("cpu: no memory layout for %+v yet", spec)
}

// ResetSlot is not there yet.
func (b *Backend) ResetSlot(backend.DeltaState, int) { panic("cpu: no gated delta layers yet") }
