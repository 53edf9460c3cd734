package cpu

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// task is work that every worker does its part of. Tasks are pointers to
// structs that live as long as the backend, so that dispatching allocates nothing.
type task interface {
	// work does the part of one worker, see pool.part.
	work(worker int)
}

const (
	// spinPauses is how often a waiting worker looks before it lets others run.
	spinPauses = 256
	// spinTime is how long a waiting worker looks before it parks. It covers
	// what a caller does between two ops and between two steps, so that nobody
	// parks in the middle of a step.
	spinTime = time.Millisecond
)

// pool runs tasks on a fixed number of workers; worker 0 is the caller.
//
// Workers wait by spinning on an atomic word, then by yielding to other
// goroutines, and at last by parking on a channel. Whoever changes a word
// wakes those who parked.
//
// Note: a channel or a WaitGroup for each dispatch was rejected. Waking a
// goroutine takes 5 µs and more, and a step has hundreds of dispatches.
type pool struct {
	workers int
	spin    time.Duration // spinTime, or none in tests
	task    task
	closed  bool
	done    sync.WaitGroup
	parkers []parker

	_        [64]byte
	epoch    atomic.Uint32 // dispatches so far
	_        [60]byte
	arrived  atomic.Uint32 // workers at the barrier
	_        [60]byte
	phase    atomic.Uint32 // barriers passed
	_        [60]byte
	sleepers atomic.Int32 // workers parked or about to park
	_        [60]byte
}

// parker lets one worker sleep.
type parker struct {
	parked atomic.Bool
	wake   chan struct{}
	_      [48]byte
}

func newPool(workers int) *pool {
	return startPool(workers, spinTime)
}

func startPool(workers int, spin time.Duration) *pool {
	p := &pool{workers: workers, spin: spin, parkers: make([]parker, workers)}
	for w := range p.parkers {
		p.parkers[w].wake = make(chan struct{}, 1)
	}
	p.done.Add(workers - 1)
	for w := 1; w < workers; w++ {
		go p.serve(w)
	}
	return p
}

// run does a task on all workers, and returns when all are done.
func (p *pool) run(t task) {
	if p.workers == 1 {
		t.work(0)
		return
	}
	p.task = t
	p.epoch.Add(1)
	p.wake()
	t.work(0)
	p.barrier(0)
}

// barrier is called by all workers of a task; it returns when all have called it.
func (p *pool) barrier(worker int) {
	if p.workers > 1 {
		p.wait(worker, &p.phase, p.arrive())
	}
}

// part is the share [lo, hi) of a worker in a number of items.
func (p *pool) part(worker, items int) (lo, hi int) {
	return worker * items / p.workers, (worker + 1) * items / p.workers
}

// close ends the workers and waits for them.
func (p *pool) close() {
	if p.closed {
		return
	}
	p.closed = true
	p.epoch.Add(1)
	p.wake()
	p.done.Wait()
}

func (p *pool) serve(worker int) {
	defer p.done.Done()
	for epoch := uint32(0); ; epoch++ {
		p.wait(worker, &p.epoch, epoch)
		if p.closed {
			return
		}
		p.task.work(worker)
		p.arrive()
	}
}

// arrive counts a worker in, and returns the phase that ends when all are in.
func (p *pool) arrive() (phase uint32) {
	phase = p.phase.Load() // cannot end before this worker arrived
	if p.arrived.Add(1) == uint32(p.workers) {
		p.arrived.Store(0)
		p.phase.Store(phase + 1)
		p.wake()
	}
	return phase
}

// wait returns when the word differs from old.
func (p *pool) wait(worker int, word *atomic.Uint32, old uint32) {
	for range min(spinPauses, int(p.spin)) { // none if it is to park at once
		if word.Load() != old {
			return
		}
		pause()
	}
	for start := time.Now(); time.Since(start) < p.spin; {
		for range 16 {
			if word.Load() != old {
				return
			}
			pause()
		}
		runtime.Gosched() // another worker may need this thread
	}
	// Announce first, look again, then sleep: whoever changes the word looks at
	// sleepers afterwards, so one of the two sees the other. Counted before it can be
	// woken, else a waker of another word might count it out first, and hide a sleeper.
	k := &p.parkers[worker]
	for word.Load() == old {
		p.sleepers.Add(1)
		k.parked.Store(true)
		if word.Load() != old && k.parked.CompareAndSwap(true, false) {
			p.sleepers.Add(-1)
			return
		}
		<-k.wake
	}
}

func (p *pool) wake() {
	if p.sleepers.Load() == 0 {
		return
	}
	for w := range p.parkers {
		if k := &p.parkers[w]; k.parked.CompareAndSwap(true, false) {
			p.sleepers.Add(-1)
			k.wake <- struct{}{}
		}
	}
}
