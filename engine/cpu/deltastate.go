package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTile is the number of value dims whose state is advanced together: with
// 128 key dims, 16 KB that stay in L1 between the two passes.
const deltaTile = 32

// deltaState holds for each layer, slot and key head what a token needs there, in
// the order in which it is needed, so that a step reads a run of memory: the past
// inputs of the convolution; the keys of the block of tokens under way, [dims][16];
// and for each value head its decays, what the tokens of the block have added so far,
// [tiles][16][32], and the state before the block, [tiles][dims][32].
type deltaState struct {
	spec     backend.DeltaSpec
	tiles    int // of one value head
	dims     int // key dims, rounded up; the rest is zero
	channels int // of a key head: its q and k, and v of its value heads
	// Floats of the parts.
	pastSize, keysSize, dSize, tileSize, headSize, unitSize int

	units []float32
	begun []int // tokens of the block under way, by layer and slot
	task  deltaTask
	reset resetTask
}

// deltaUnit is the state of one key head.
type deltaUnit struct {
	past  []float32 // [taps−1][channels], oldest first
	keys  []float32 // [dims][16]
	heads []float32
}

// deltaHead is that of one value head.
type deltaHead struct {
	ratio *lanes16 // of the last token's decay to that of each
	rise  *float32 // decay of the state before the block
	d     []float32
	state []float32
}

// decaySize is the floats of a value head's decays, in whole lines.
const decaySize = 2 * deltaBlock

// measure sizes the parts, each in whole lines.
func (s *deltaState) measure(sp backend.DeltaSpec) {
	const line = lineBytes / 4
	perHead := sp.ValueHeads / sp.KeyHeads
	s.spec = sp
	s.tiles, s.dims = (sp.ValueDim+deltaTile-1)/deltaTile, roundUp(sp.KeyDim, 8)
	s.channels = 2*sp.KeyDim + perHead*sp.ValueDim
	s.pastSize = roundUp((sp.ConvWidth-1)*s.channels, line)
	s.keysSize = s.dims * deltaBlock
	s.dSize, s.tileSize = s.tiles*deltaBlock*deltaTile, s.dims*deltaTile
	s.headSize = decaySize + s.dSize + s.tiles*s.tileSize
	s.unitSize = s.pastSize + s.keysSize + perHead*s.headSize
}

// DeltaBytes is what [Backend.NewDeltaState] keeps of one sequence over all layers:
// its state, and the block of tokens under way.
func DeltaBytes(sp backend.DeltaSpec) int {
	if sp.Layers == 0 {
		return 0
	}
	var s deltaState
	s.measure(sp)
	return 4 * sp.Layers * sp.KeyHeads * s.unitSize
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes state of zeros, with what the gated delta rule needs to
// work on it.
func (b *Backend) NewDeltaState(sp backend.DeltaSpec) (backend.DeltaState, error) {
	if sp.Layers < 1 || sp.Slots < 1 || sp.KeyHeads < 1 || sp.ValueHeads < 1 || sp.ValueHeads%sp.KeyHeads != 0 ||
		sp.KeyDim < 1 || sp.ValueDim < 1 || sp.ConvWidth < 1 {
		return nil, fmt.Errorf("cpu: a delta state of %+v", sp)
	}
	s := &deltaState{begun: make([]int, sp.Layers*sp.Slots)}
	s.measure(sp)
	var err error
	if s.units, err = b.mem.floats(sp.Layers * sp.Slots * sp.KeyHeads * s.unitSize); err != nil {
		return nil, err
	}
	s.reset = resetTask{pool: b.pool, s: s}
	return s, s.task.init(b, s)
}

// slot is the units of one layer and slot, and how far their block is.
func (s *deltaState) slot(layer, slot int) (units []float32, begun *int) {
	i, size := layer*s.spec.Slots+slot, s.spec.KeyHeads*s.unitSize
	return s.units[i*size:][:size], &s.begun[i]
}

// unit is that of a key head.
func (s *deltaState) unit(units []float32, head int) deltaUnit {
	u := units[head*s.unitSize:][:s.unitSize]
	return deltaUnit{past: u[:s.pastSize], keys: u[s.pastSize:][:s.keysSize], heads: u[s.pastSize+s.keysSize:]}
}

// head is a value head of a unit.
func (s *deltaState) head(u *deltaUnit, head int) deltaHead {
	h := u.heads[head*s.headSize:][:s.headSize]
	return deltaHead{ratio: (*lanes16)(h), rise: &h[deltaBlock], d: h[decaySize:][:s.dSize], state: h[decaySize+s.dSize:]}
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
		units, begun := t.s.slot(layer, t.slot)
		clear(units)
		*begun = 0
	}
}
