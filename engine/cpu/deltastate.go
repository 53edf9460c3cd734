package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaTile is the number of value dims whose state is advanced together: with
// 128 key dims, 16 KB that stay in L1 between the two passes.
const deltaTile = 32

// deltaState holds for each layer and slot what a token needs there, in the order in
// which it is needed, as two runs of memory. One has for each key head the past inputs of
// the convolution, the keys of the block of tokens under way and, for each value head,
// its decays and what the tokens of the block have added so far. The other has the
// states before the block.
type deltaState struct {
	spec     backend.DeltaSpec
	tiles    int // of one value head
	dims     int // key dims, rounded up; the rest is zero
	channels int // of a key head: its q and k, and v of its value heads
	ring     int // a power of two: the place of a past input is its position modulo ring
	// Floats of the parts.
	pastSize, keysSize, addedSize, unitSize, tileSize, headSize int

	units []float32 // [layers][slots][key heads]
	heads []float32 // [layers][slots][value heads]
	seen  []int     // tokens, by layer and slot
	task  deltaTask
	reset resetTask
}

// deltaSlot is the state of one layer and slot.
type deltaSlot struct {
	units, heads []float32
	seen         *int
}

// deltaUnit is that of one key head.
type deltaUnit struct {
	past  []float32 // [ring][channels]
	keys  []float32 // [16][dims]
	heads []float32 // of each value head all but the state
}

// deltaHead is that of one value head.
type deltaHead struct {
	ratio *lanes16  // of the last token's decay to that of each
	rise  *float32  // decay of the state before the block
	added []float32 // [tiles][16][32]
	state []float32 // [tiles][dims][32]
}

// decaySize is the floats of a value head's decays, in whole lines.
const decaySize = 2 * deltaBlock

// measure sizes the parts, each in whole lines.
func (s *deltaState) measure(sp backend.DeltaSpec) {
	const line = lineBytes / 4
	perHead := sp.ValueHeads / sp.KeyHeads
	s.spec = sp
	s.tiles, s.dims = (sp.ValueDim+deltaTile-1)/deltaTile, roundUp(sp.KeyDim, 16)
	s.channels = 2*sp.KeyDim + perHead*sp.ValueDim
	for s.ring = 1; s.ring < sp.ConvWidth-1; s.ring *= 2 {
	}
	s.pastSize = roundUp(s.ring*s.channels, line)
	s.keysSize = s.dims * deltaBlock
	s.addedSize = s.tiles * deltaBlock * deltaTile
	s.unitSize = s.pastSize + s.keysSize + perHead*(decaySize+s.addedSize)
	s.tileSize = s.dims * deltaTile
	s.headSize = s.tiles * s.tileSize
}

// DeltaBytes is what [Backend.NewDeltaState] keeps of one sequence over all layers:
// its state, and the block of tokens under way.
func DeltaBytes(sp backend.DeltaSpec) int {
	if sp.Layers == 0 {
		return 0
	}
	var s deltaState
	s.measure(sp)
	return 4 * sp.Layers * (sp.KeyHeads*s.unitSize + sp.ValueHeads*s.headSize)
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes state of zeros, with what the gated delta rule needs to
// work on it.
func (b *Backend) NewDeltaState(sp backend.DeltaSpec) (backend.DeltaState, error) {
	if sp.Layers < 1 || sp.Slots < 1 || sp.KeyHeads < 1 || sp.ValueHeads < 1 || sp.ValueHeads%sp.KeyHeads != 0 ||
		sp.KeyDim < 1 || sp.ValueDim < 1 || sp.ConvWidth < 1 {
		return nil, fmt.Errorf("cpu: a delta state of %+v", sp)
	}
	s := &deltaState{seen: make([]int, sp.Layers*sp.Slots)}
	s.measure(sp)
	var err error
	if s.units, err = b.mem.floats(sp.Layers * sp.Slots * sp.KeyHeads * s.unitSize); err != nil {
		return nil, err
	}
	if s.heads, err = b.mem.floats(sp.Layers * sp.Slots * sp.ValueHeads * s.headSize); err != nil {
		return nil, err
	}
	s.reset = resetTask{pool: b.pool, s: s}
	return s, s.task.init(b, s)
}

func (s *deltaState) slot(layer, slot int) deltaSlot {
	i := layer*s.spec.Slots + slot
	units, heads := s.spec.KeyHeads*s.unitSize, s.spec.ValueHeads*s.headSize
	return deltaSlot{s.units[i*units:][:units], s.heads[i*heads:][:heads], &s.seen[i]}
}

// begun is the number of tokens of the block under way.
func (s *deltaSlot) begun() int { return *s.seen % deltaBlock }

// unit is that of a key head.
func (s *deltaState) unit(slot *deltaSlot, head int) deltaUnit {
	u := slot.units[head*s.unitSize:][:s.unitSize]
	return deltaUnit{past: u[:s.pastSize], keys: u[s.pastSize:][:s.keysSize], heads: u[s.pastSize+s.keysSize:]}
}

// pastInputs are those of the channels of a key head, at a position.
func (s *deltaState) pastInputs(u *deltaUnit, position int) []float32 {
	return u.past[position&(s.ring-1)*s.channels:][:s.channels]
}

// head is a value head of a key head.
func (s *deltaState) head(slot *deltaSlot, u *deltaUnit, keyHead, i int) deltaHead {
	size, at := decaySize+s.addedSize, keyHead*(s.spec.ValueHeads/s.spec.KeyHeads)+i
	h := u.heads[i*size:][:size]
	return deltaHead{ratio: (*lanes16)(h), rise: &h[deltaBlock], added: h[decaySize:], state: slot.heads[at*s.headSize:][:s.headSize]}
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
		slot := t.s.slot(layer, t.slot)
		clear(slot.units)
		clear(slot.heads)
		*slot.seen = 0
	}
}
