package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTile is the number of value dims whose state is advanced together: with
// 128 key dims, 16 KB that stay in L1 between the two passes.
const deltaTile = 32

// deltaState holds for each layer and slot the recurrent state, [value
// heads][tiles][key dims][32], and the convolution's past inputs,
// [taps−1][channels], oldest first.
type deltaState struct {
	spec      backend.DeltaSpec
	tiles     int // of one head
	headSize  int // floats
	stateSize int // of one slot and layer
	convSize  int
	state     []float32
	conv      []float32
	task      deltaTask
	reset     resetTask
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes state of zeros, with what the gated delta rule needs to
// work on it.
func (b *Backend) NewDeltaState(sp backend.DeltaSpec) (backend.DeltaState, error) {
	if sp.Layers < 1 || sp.Slots < 1 || sp.KeyHeads < 1 || sp.ValueHeads < 1 || sp.ValueHeads%sp.KeyHeads != 0 ||
		sp.KeyDim < 1 || sp.ValueDim < 1 || sp.ConvWidth < 1 {
		return nil, fmt.Errorf("cpu: a delta state of %+v", sp)
	}
	s := &deltaState{spec: sp, tiles: (sp.ValueDim + deltaTile - 1) / deltaTile}
	s.headSize = s.tiles * sp.KeyDim * deltaTile
	s.stateSize = sp.ValueHeads * s.headSize
	s.convSize = (sp.ConvWidth - 1) * sp.ConvDim()
	var err error
	if s.state, err = b.mem.floats(sp.Layers * sp.Slots * s.stateSize); err != nil {
		return nil, err
	}
	if s.conv, err = b.mem.floats(sp.Layers * sp.Slots * s.convSize); err != nil {
		return nil, err
	}
	s.reset = resetTask{pool: b.pool, s: s}
	return s, s.task.init(b, s)
}

// slot is the state of one layer and slot.
func (s *deltaState) slot(layer, slot int) (state, conv []float32) {
	i := layer*s.spec.Slots + slot
	return s.state[i*s.stateSize:][:s.stateSize], s.conv[i*s.convSize:][:s.convSize]
}

// resetTask zeroes a slot; the workers share its layers.
type resetTask struct {
	pool *pool
	s    *deltaState
	slot int
}

// ResetSlot zeroes a slot in all layers.
func (b *Backend) ResetSlot(state backend.DeltaState, slot int) {
	s := state.(*deltaState)
	if slot < 0 || slot >= s.spec.Slots {
		panic(fmt.Sprintf("cpu: reset of slot %d of %d", slot, s.spec.Slots))
	}
	s.reset.slot = slot
	b.pool.run(&s.reset)
}

func (t *resetTask) work(worker int) {
	lo, hi := t.pool.part(worker, t.s.spec.Layers)
	for layer := lo; layer < hi; layer++ {
		state, conv := t.s.slot(layer, t.slot)
		clear(state)
		clear(conv)
	}
}
