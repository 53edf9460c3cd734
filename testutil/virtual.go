package testutil

import (
	"context"
	"fmt"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
)

// Cost is the price of a virtual step: Step + Row·tokens + Context·positions.
// A token of a prompt chunk counts as a row; positions are those that the rows
// hold after the step.
type Cost struct {
	Step    time.Duration
	Row     time.Duration
	Context time.Duration
}

// Of is the price of one step.
func (c Cost) Of(step *backend.Step) time.Duration {
	positions := 0
	for i := range step.Rows {
		positions += step.Rows[i].Start + step.Rows[i].Count
	}
	return c.Step + time.Duration(len(step.Tokens))*c.Row + time.Duration(positions)*c.Context
}

// Fault is something that goes wrong in one step.
type Fault struct {
	Err   error         // the step fails with it
	Panic any           // the step panics with it
	Slow  time.Duration // the step takes so much longer
	Token bool          // the first token drawn is another one than it should be
}

// Clock is a clock that moves only when told to. Not safe for concurrent use.
type Clock struct{ now time.Time }

// NewClock starts at a fixed instant, so that runs are alike.
func NewClock() *Clock { return &Clock{time.Unix(0, 0).UTC()} }

// Now is the present instant.
func (c *Clock) Now() time.Time { return c.now }

// Sleep moves the clock on.
func (c *Clock) Sleep(d time.Duration) { c.now = c.now.Add(d) }

// Virtual is an [engine.Runner] that computes no model. A step takes its
// [Cost], and a token is a hash of all that a real backend's result may depend
// on: the tokens of the sequence so far, in which rows they came (prompt chunk
// or decode row, and where it ended), what the KV blocks and the slot hold, and
// the sampling. So a scheduler that mixes up sequences, reuses state, or
// lets the load move the bounds of prompt chunks draws other tokens.
type Virtual struct {
	Cost   Cost
	Sleep  func(time.Duration) // how time passes; default time.Sleep, for testing/synctest
	Faults map[int]Fault       // by step, counted from 1
	Before func(*backend.Step) // called at the start of each step
	Device bool                // it is one: while it computes, the host does what it has to do meanwhile

	Steps  int // steps begun
	Closed int // calls of Close

	limits engine.Limits
	kv     []uint64 // by position in a KV block: the hash up to there
	slots  []uint64 // the recurrent state: the hash of the whole sequence
}

// NewVirtual makes a virtual runner, and an engine over it. Zero limits take
// those of a small engine.
func NewVirtual(cost Cost, lim engine.Limits) (*Virtual, *engine.Engine) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&lim.MaxSequences, 8)
	def(&lim.MaxContext, 1024)
	def(&lim.MaxStepTokens, 256)
	def(&lim.Vocab, 1000)
	def(&lim.KVBlockSize, 16)
	def(&lim.KVBlocks, lim.MaxSequences*((lim.MaxContext+lim.KVBlockSize-1)/lim.KVBlockSize))
	v := &Virtual{
		Cost: cost, Sleep: time.Sleep, limits: lim,
		kv:    make([]uint64, lim.KVBlocks*lim.KVBlockSize),
		slots: make([]uint64, lim.MaxSequences),
	}
	return v, engine.NewWith(v, lim)
}

// Run implements [engine.Runner].
func (v *Virtual) Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	v.Steps++
	if v.Before != nil {
		v.Before(step)
	}
	if v.Device && step.Meanwhile != nil {
		step.Meanwhile()
	}
	fault := v.Faults[v.Steps]
	if d := v.Cost.Of(step) + fault.Slow; d > 0 {
		v.Sleep(d)
	}
	if fault.Panic != nil {
		panic(fault.Panic)
	}
	if fault.Err != nil {
		return fault.Err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	drawn := 0
	for i := range step.Rows {
		h := v.row(step, &step.Rows[i])
		last := int32(step.Rows[i].First + step.Rows[i].Count - 1)
		if drawn < len(want) && want[drawn] == last {
			if p := params[drawn]; p.Temperature > 0 {
				h = mix(h ^ uint64(p.Uniform*(1<<53)))
			}
			out[drawn] = int32(h % uint64(v.limits.Vocab))
			drawn++
		}
	}
	if drawn != len(want) {
		return fmt.Errorf("virtual engine: %d of %d wanted tokens do not end a row", len(want)-drawn, len(want))
	}
	if fault.Token && len(out) > 0 {
		out[0] = (out[0] + 1) % int32(v.limits.Vocab)
	}
	return nil
}

// row feeds one row's tokens and returns the hash after the last.
func (v *Virtual) row(step *backend.Step, r *backend.Row) uint64 {
	size := v.limits.KVBlockSize
	at := func(position int) *uint64 {
		return &v.kv[int(r.Blocks[position/size])*size+position%size]
	}
	var past uint64
	if r.Start > 0 {
		past = *at(r.Start - 1)
	}
	kind := uint64(1)
	if r.Prompt {
		kind = 2 + uint64(r.Start+r.Count)
	}
	state := v.slots[r.Slot]
	for i := range r.Count {
		token := uint64(step.Tokens[r.First+i])
		past = mix(past ^ token<<20 ^ kind)
		state = mix(state + past)
		*at(r.Start + i) = past
	}
	v.slots[r.Slot] = state
	return mix(past ^ state)
}

// ResetSlot implements [engine.Runner].
func (v *Virtual) ResetSlot(slot int) { v.slots[slot] = 0 }

// Close implements [engine.Runner].
func (v *Virtual) Close() error {
	v.Closed++
	return nil
}

// mix is one round of splitmix64.
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
