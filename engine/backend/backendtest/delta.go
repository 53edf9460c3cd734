package backendtest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// deltaCase is a gated delta layer with some sequences.
type deltaCase struct {
	deltaParams
	lengths []int
}

func (c *deltaCase) String() string {
	return fmt.Sprintf("%d/%d heads, key dim %d, value dim %d, %d taps, lengths %v",
		c.keyHeads, c.valueHeads, c.keyDim, c.valueDim, c.taps, c.lengths)
}

func (h *harness) deltaCase(keyHeads, valueHeads, keyDim, valueDim, taps int) *deltaCase {
	c := &deltaCase{}
	c.keyHeads, c.valueHeads, c.keyDim, c.valueDim, c.taps = keyHeads, valueHeads, keyDim, valueDim, taps
	c.conv = h.normal(c.channels()*taps, 0.7)
	c.aLog, c.dtBias = h.normal(valueHeads, 1), h.normal(valueHeads, 1)
	for i := range c.aLog {
		c.aLog[i] -= 1.5 // so that most states remember some tokens
	}
	c.norm = *h.norm(valueDim, 0)
	return c
}

// deltaInputs draws projections; some gates are far out, where a careless
// exponential overflows.
func (h *harness) deltaInputs(c *deltaCase, n int) [][]float32 {
	values := c.valueHeads * c.valueDim
	x := h.matrixOf(n, c.channels()+values+2*c.valueHeads, 1)
	for t := range x {
		gates := x[t][c.channels()+values:]
		if h.rng.IntN(4) == 0 {
			gates[h.rng.IntN(len(gates))] = pick[float32](h, -100, -30, 19.9, 20.1, 30, 100)
		}
		if h.rng.IntN(8) == 0 {
			x[t][h.rng.IntN(c.channels()+values)] = pick[float32](h, -100, 100)
		}
	}
	return x
}

// deltaRun is a case on the backend.
type deltaRun struct {
	*deltaCase
	spec  backend.GatedDelta
	state backend.DeltaState
	seqs  []*sequence
	want  [][]ideal
}

const deltaLayers = 2

// openDelta makes a state with room for copies of each sequence, poisons all
// of it, and resets the slots in use.
func (h *harness) openDelta(c *deltaCase, copies int) *deltaRun {
	h.Helper()
	r := &deltaRun{deltaCase: c}
	slots := copies*len(c.lengths) + 1
	spec := backend.DeltaSpec{
		Layers: deltaLayers, Slots: slots, KeyHeads: c.keyHeads, ValueHeads: c.valueHeads,
		KeyDim: c.keyDim, ValueDim: c.valueDim, ConvWidth: c.taps,
	}
	var err error
	r.state, err = h.b.NewDeltaState(spec)
	require.NoError(h, err)
	require.Equal(h, spec, r.state.Spec())
	r.spec = backend.GatedDelta{
		Layer: h.rng.IntN(deltaLayers), Conv: h.vector(c.conv), ALog: h.vector(c.aLog), DTBias: h.vector(c.dtBias),
		Norm: *h.normOf(&c.norm),
	}
	for slot := range slots {
		h.poisonSlot(r, slot)
	}
	free := h.rng.Perm(slots)
	for range copies {
		for i, n := range c.lengths {
			s := &sequence{slot: free[0]}
			free = free[1:]
			if len(r.seqs) >= len(c.lengths) {
				s.x = r.seqs[i].x
			} else {
				s.x = h.deltaInputs(c, n)
				r.want = append(r.want, idealDelta(&c.deltaParams, s.x))
			}
			h.b.ResetSlot(r.state, s.slot)
			r.seqs = append(r.seqs, s)
		}
	}
	return r
}

// poisonSlot runs a sequence of NaN through all layers of a slot.
func (h *harness) poisonSlot(r *deltaRun, slot int) {
	h.Helper()
	s := &sequence{slot: slot}
	for range r.taps + 1 {
		s.x = append(s.x, filled(r.channels()+r.valueHeads*r.valueDim+2*r.valueHeads, nan))
	}
	spec := r.spec
	for spec.Layer = range deltaLayers {
		h.replay([]*sequence{s}, chunked([]*sequence{s}, 64), r.valueHeads*r.valueDim, func(dst, src backend.Buffer) {
			h.b.GatedDelta(dst, src, &spec, r.state)
		})
	}
}

// advance replays a copy of the sequences. Each step runs the other layer too,
// with inputs and a convolution of NaN, which must not be seen.
func (h *harness) advance(r *deltaRun, copy int, p plan) []output {
	h.Helper()
	n := len(r.lengths)
	other := r.spec
	other.Layer, other.Conv = 1-r.spec.Layer, h.vector(filled(len(r.conv), nan))
	poison, ignored := h.poison(p.widest(), len(r.seqs[0].x[0])), h.buffer(p.widest(), r.valueHeads*r.valueDim)
	return h.replay(r.seqs[copy*n:][:n], p, r.valueHeads*r.valueDim, func(dst, src backend.Buffer) {
		h.b.GatedDelta(dst, src, &r.spec, r.state)
		h.b.GatedDelta(ignored, poison, &other, r.state)
	})
}

// deltaTolerance is for what GatedDelta yields.
func (h *harness) deltaTolerance(prompt bool) float64 {
	if prompt {
		return h.opt.DeltaTolerance
	}
	return h.opt.Tolerance
}

// testGatedDelta: heads, dims and taps, with ragged steps that leave out some
// sequences, whose state must wait for them.
func testGatedDelta(h *harness) {
	shapes := [][4]int{ // key heads, value heads, key dim, value dim
		{1, 1, 16, 16}, {2, 2, 16, 16}, {2, 4, 16, 16}, {3, 9, 16, 16}, {1, 3, 32, 32}, {2, 4, 32, 64},
		{2, 2, 64, 32}, {4, 8, 64, 64}, {2, 2, 128, 128}, {2, 6, 128, 128}, {1, 2, 128, 64},
	}
	h.sweep(0, 4*len(shapes)-1, func(i int) {
		s := shapes[i%len(shapes)]
		c := h.deltaCase(s[0], s[1], s[2], s[3], 2+i/len(shapes))
		c.lengths = []int{1 + h.rng.IntN(30), 1 + h.rng.IntN(12), 1 + h.rng.IntN(4)}
		r := h.openDelta(c, 1)
		h.nearAll(c.String(), h.advance(r, 0, h.randomPlan(r.seqs)), r.want, h.deltaTolerance)
	})
	h.sweep(1, 70, func(n int) {
		c := h.deltaCase(2, 4, 36, 40, 4)
		c.lengths = []int{n}
		r := h.openDelta(c, 1)
		h.nearAll(c.String(), h.advance(r, 0, h.randomPlan(r.seqs)), r.want, h.deltaTolerance)
	})
	// Many key heads; short and long convolutions. Outputs where all but a little cancels
	// are among them, and a misplaced input would be off by all of their size.
	for _, s := range [][4]int{{18, 18, 16, 4}, {1, 1, 8, 1}, {2, 2, 16, 9}, {1, 2, 16, 40}} {
		if s[3] > h.opt.Taps {
			continue
		}
		c := h.deltaCase(s[0], s[1], s[2], s[2], s[3])
		c.lengths = []int{50, 1 + h.rng.IntN(20)}
		r := h.openDelta(c, 1)
		h.nearAll(c.String(), h.advance(r, 0, h.randomPlan(r.seqs)), r.want, func(bool) float64 { return 1e-3 })
	}
	h.sweep(0, 0, func(int) { // a prompt of several chunks of any kernel
		c := h.deltaCase(1, 2, 64, 64, 4)
		c.lengths = []int{200}
		r := h.openDelta(c, 1)
		h.nearAll(c.String(), h.advance(r, 0, chunked(r.seqs, 1000)), r.want, h.deltaTolerance)
	})
}

// testGatedDeltaInvariance: bit-identical alone, in any batch, in another
// slot, and for those chunks of a prompt that the backend promises.
func testGatedDeltaInvariance(h *harness) {
	h.sweep(0, 11, func(i int) {
		c := h.deltaCase(2, pick(h, 2, 4, 6), pick(h, 16, 32, 64), pick(h, 16, 32, 64), 4)
		for range 2 + i + i/5 {
			c.lengths = append(c.lengths, 1+h.rng.IntN(max(8, 24-2*i)+h.opt.DeltaBlock-1))
		}
		sizes := []int{1, 7, 16, h.opt.DeltaBlock}
		r := h.openDelta(c, 4+len(sizes))
		seqs := r.seqs[:len(c.lengths)]
		p := h.randomPlan(seqs)
		batch := h.advance(r, 0, p)
		other := h.advance(r, 1, p.merged())
		for s := range c.lengths {
			h.sameAll(fmt.Sprintf("%v: sequence %d in another batch, order and slot", c, s), other[s], batch[s])
			alone := h.advance(r, 2, p.only(s))
			h.sameAll(fmt.Sprintf("%v: sequence %d alone", c, s), alone[s], batch[s])
		}
		whole := h.advance(r, 3, chunked(seqs, 1000))
		h.nearAll(c.String(), whole, r.want, h.deltaTolerance)
		for k, size := range sizes {
			parts := h.advance(r, 4+k, chunked(seqs, size))
			if size%h.opt.DeltaBlock != 0 {
				h.nearAll(fmt.Sprintf("%v: in chunks of %d", c, size), parts, r.want, h.deltaTolerance)
				continue
			}
			for s := range parts {
				h.sameAll(fmt.Sprintf("%v: sequence %d in chunks of %d", c, s, size), parts[s], whole[s])
			}
		}
	})
}

// testGatedDeltaReset: a slot that was reset is as good as new, and the reset
// touches no other.
func testGatedDeltaReset(h *harness) {
	c := h.deltaCase(2, 4, 32, 16, 4)
	c.lengths = []int{20, 20, 20}
	r := h.openDelta(c, 1)
	all := chunked(r.seqs, 10)
	fresh := h.advance(r, 0, all)
	for _, s := range r.seqs {
		h.b.ResetSlot(r.state, s.slot)
	}
	// The first halves; then sequence 1 begins anew between the others' halves.
	h.advance(r, 0, all[:1])
	h.poisonSlot(r, r.seqs[1].slot)
	h.b.ResetSlot(r.state, r.seqs[1].slot)
	again := h.advance(r, 0, all.only(1)[:1])
	for t := range again[1].y {
		h.same(fmt.Sprintf("position %d after a reset", t), again[1].y[t], fresh[1].y[t])
	}
	// advance starts sequences at their first input: hand over the second half.
	for _, s := range r.seqs {
		s.x = s.x[10:]
	}
	rest := h.advance(r, 0, all[:1])
	for s := range rest {
		for t := range rest[s].y {
			h.same(fmt.Sprintf("sequence %d, position %d, after a reset of another", s, 10+t), rest[s].y[t], fresh[s].y[10+t])
		}
	}
}
