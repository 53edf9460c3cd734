package cpu

import "github.com/batchproof/batchproof/engine/backend"

// GatedDelta is not there yet.
func (b *Backend) GatedDelta(dst, proj backend.Buffer, d *backend.GatedDelta, state backend.DeltaState) {
	panic("cpu: no gated delta rule yet")
}
