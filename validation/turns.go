package validation

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How the arms of a block share the machine.
const (
	TurnsStep = "step" // they alternate from step to step
	TurnsRun  = "run"  // one after another, each from its first request to its last
)

// turns lets the arms of a block share one machine: one of them runs at a time,
// and the clocks of the others stand still. The arm that is behind, by the share
// of its tokens drawn, has the next turn, so whatever the machine does for longer
// than some steps meets every arm alike. The turns depend on the tokens alone,
// never on a time.
type turns struct {
	whole bool             // an arm keeps its turn until it has ended
	now   func() time.Time // the clock of the machine
	idle  func()           // called when the turn changes, while no arm runs; nil for nothing

	mu     sync.Mutex
	live   []*Turn // that have not ended, in the order of the block
	holder *Turn   // who runs; nil while the turn changes
}

// Turn is an arm's claim to the machine, and its clock. A nil Turn is the claim of
// an arm that has the machine to itself.
type Turn struct {
	turns       *turns
	peer        *peer         // another process to alternate with, instead of other arms
	granted     chan struct{} // holds one
	begun       bool
	drawn, want int          // tokens
	waited      atomic.Int64 // nanoseconds that the clock has stood still
}

// takeTurns makes the claims of n arms; the first has the first turn. Nobody runs
// before start.
func takeTurns(n int, whole bool, now func() time.Time, idle func()) (*turns, []*Turn) {
	s := &turns{whole: whole, now: now, idle: idle}
	for range n {
		s.live = append(s.live, &Turn{turns: s, granted: make(chan struct{}, 1)})
	}
	return s, slices.Clone(s.live)
}

// start gives out the first turn.
func (s *turns) start() { s.change() }

// change gives the turn to whom it is due. The caller has just given it up.
func (s *turns) change() {
	if s.idle != nil {
		s.idle()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder = s.due(); s.holder != nil {
		s.holder.granted <- struct{}{}
	}
}

// due is the arm that is furthest behind, of equals the first of the block.
func (s *turns) due() *Turn {
	if s.whole && s.holder != nil {
		return s.holder
	}
	var due *Turn
	for _, t := range s.live {
		// Shares compared by products; who has not begun has drawn nothing of something.
		if due == nil || !s.whole && t.drawn*max(due.want, 1) < due.drawn*max(t.want, 1) {
			due = t
		}
	}
	return due
}

// Begin waits for the arm's first turn; it will draw that many tokens. Within a
// turn it only says how many.
func (t *Turn) Begin(want int) {
	if t == nil || t.peer != nil {
		return
	}
	s := t.turns
	s.mu.Lock()
	t.want = want
	begun := t.begun
	t.begun = true
	s.mu.Unlock()
	if !begun {
		<-t.granted
	}
}

// Step is called before each step, with the tokens drawn so far. It returns when
// the arm may go on, with an error if it never will.
func (t *Turn) Step(drawn int) error {
	if t == nil {
		return nil
	}
	if t.peer != nil {
		begin := time.Now()
		err := t.peer.alternate()
		t.waited.Add(int64(time.Since(begin)))
		return err
	}
	s := t.turns
	s.mu.Lock()
	t.drawn = drawn
	if s.due() == t {
		s.mu.Unlock()
		return nil
	}
	s.holder = nil
	s.mu.Unlock()
	begin := s.now()
	s.change()
	<-t.granted
	t.waited.Add(int64(s.now().Sub(begin)))
	return nil
}

// End gives the turn up for good. Ending twice is harmless.
func (t *Turn) End() {
	if t == nil || t.peer != nil {
		return
	}
	s := t.turns
	s.mu.Lock()
	s.live = slices.DeleteFunc(s.live, func(other *Turn) bool { return other == t })
	held := s.holder == t
	if held {
		s.holder = nil
	}
	s.mu.Unlock()
	if held {
		s.change()
	}
}

// Now is the time on the arm's own clock, which stands still while others run.
func (t *Turn) Now() time.Time {
	if t == nil {
		return time.Now()
	}
	if t.peer != nil {
		return time.Now().Add(-time.Duration(t.waited.Load()))
	}
	return t.turns.now().Add(-time.Duration(t.waited.Load()))
}
