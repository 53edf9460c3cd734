package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTile is the number of value dims whose state is advanced together: with
// 128 key dims, 16 KB that stay in L1 between the two passes.
const deltaTile = 32

// deltaState holds for each layer and slot the recurrent state before the
// current block of tokens, [value heads][tiles][key dims][32]; what the tokens of
// the block have added so far; and the convolution's past inputs,
// [taps−1][channels], oldest first.
type deltaState struct {
	spec      backend.DeltaSpec
	tiles     int // of one head
	dims      int // key dims, rounded up; the rest is zero
	tileSize  int // floats
	headSize  int // floats
	stateSize int // of one slot and layer
	convSize  int
	state     []float32
	conv      []float32
	open      []openBlock
	task      deltaTask
	reset     resetTask
}

// openBlock is a block of which some tokens are still to come.
type openBlock struct {
	tokens int
	keys   []float32 // [key heads][key dims][16]
	heads  []openHead
}

// openHead is a value head's part of it.
type openHead struct {
	d     []float32 // [tiles][16][32]
	ratio lanes16   // of the last token's decay to that of each
	rise  float32   // decay of the state before the block
}

// openFloats sizes a block under way of one layer: its keys, and a value head's part.
func openFloats(sp backend.DeltaSpec) (keys, head int) {
	return sp.KeyHeads * roundUp(sp.KeyDim, 8) * deltaBlock, roundUp(sp.ValueDim, deltaTile) * deltaBlock
}

// DeltaBytes is what [Backend.NewDeltaState] keeps of one sequence over all layers:
// its state, and the block of tokens under way.
func DeltaBytes(sp backend.DeltaSpec) int {
	keys, head := openFloats(sp)
	return sp.BytesPerSequence() + sp.Layers*4*(keys+sp.ValueHeads*head)
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes state of zeros, with what the gated delta rule needs to
// work on it.
func (b *Backend) NewDeltaState(sp backend.DeltaSpec) (backend.DeltaState, error) {
	if sp.Layers < 1 || sp.Slots < 1 || sp.KeyHeads < 1 || sp.ValueHeads < 1 || sp.ValueHeads%sp.KeyHeads != 0 ||
		sp.KeyDim < 1 || sp.ValueDim < 1 || sp.ConvWidth < 1 {
		return nil, fmt.Errorf("cpu: a delta state of %+v", sp)
	}
	s := &deltaState{spec: sp, tiles: (sp.ValueDim + deltaTile - 1) / deltaTile, dims: roundUp(sp.KeyDim, 8)}
	s.tileSize = s.dims * deltaTile
	s.headSize = s.tiles * s.tileSize
	s.stateSize = sp.ValueHeads * s.headSize
	s.convSize = (sp.ConvWidth - 1) * sp.ConvDim()
	var err error
	if s.state, err = b.mem.floats(sp.Layers * sp.Slots * s.stateSize); err != nil {
		return nil, err
	}
	if s.conv, err = b.mem.floats(sp.Layers * sp.Slots * s.convSize); err != nil {
		return nil, err
	}
	keys, d := openFloats(sp)
	s.open = make([]openBlock, sp.Layers*sp.Slots)
	for i := range s.open {
		o := &s.open[i]
		all, err := b.mem.floats(keys + sp.ValueHeads*d)
		if err != nil {
			return nil, err
		}
		o.keys, all = all[:keys], all[keys:]
		o.heads = make([]openHead, sp.ValueHeads)
		for j := range o.heads {
			o.heads[j].d = all[j*d:][:d]
		}
	}
	s.reset = resetTask{pool: b.pool, s: s}
	return s, s.task.init(b, s)
}

// slot is the state of one layer and slot.
func (s *deltaState) slot(layer, slot int) (state, conv []float32, open *openBlock) {
	i := layer*s.spec.Slots + slot
	return s.state[i*s.stateSize:][:s.stateSize], s.conv[i*s.convSize:][:s.convSize], &s.open[i]
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
		state, conv, open := t.s.slot(layer, t.slot)
		clear(state)
		clear(conv)
		open.tokens = 0
	}
}
