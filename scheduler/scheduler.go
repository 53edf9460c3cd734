package scheduler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/batchproof/batchproof/engine"
)

// Scheduler serves requests on one engine. It is safe for concurrent use.
type Scheduler struct {
	config Config
	limits engine.Limits
	now    func() time.Time
	m      *machine        // the loop's
	ctx    context.Context // of the engine's steps; done when aborted
	abort  context.CancelCauseFunc
	wake   chan struct{} // holds one call to look again
	done   chan struct{} // closed when the loop has ended
	after  func()        // called by the loop after every step; for tests
	told   bool          // callers were told while the last step was under way

	mu       sync.Mutex
	inbox    []*job
	cancels  []cancellation
	inFlight int // requests submitted and not ended
	nextID   int64
	rejected uint64
	closed   bool
	metrics  Metrics // as of the last step
}

type cancellation struct {
	job   *job
	cause error
}

// New starts a scheduler. Its goroutine owns the engine until Close or Abort
// has returned; then another scheduler may have the engine. The engine must
// be empty.
func New(eng *engine.Engine, cfg Config) (*Scheduler, error) { return start(eng, cfg, nil) }

func start(eng *engine.Engine, cfg Config, after func(*Scheduler)) (*Scheduler, error) {
	lim := eng.Limits()
	if err := cfg.validate(lim); err != nil {
		return nil, err
	}
	if n, b := lim.MaxSequences-eng.FreeSequences(), lim.KVBlocks-eng.FreeBlocks(); n > 0 || b > 0 {
		return nil, fmt.Errorf("scheduler: the engine is in use: %d sequences hold %d KV blocks; close them, or the scheduler that has them", n, b)
	}
	s := &Scheduler{
		config: cfg, limits: lim,
		now:  cfg.Now,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.m = newMachine(eng, cfg, s.now)
	s.m.batch.Meanwhile = func() {
		s.told = true
		s.tell()
	}
	s.ctx, s.abort = context.WithCancelCause(context.Background())
	if after != nil {
		s.after = func() { after(s) }
	}
	s.publish()
	go s.loop()
	return s, nil
}

// Config returns the configuration with its defaults filled in.
func (s *Scheduler) Config() Config { return s.config }

// Submit queues a request. It fails at once if the request can never run, the
// queue is full, the scheduler is closed, or ctx is done. Ending ctx later
// cancels the request: at the next step its row, slot and KV blocks are free.
func (s *Scheduler) Submit(ctx context.Context, r Request) (*Ticket, error) {
	tickets, err := s.SubmitAll(ctx, []Request{r})
	if err != nil {
		return nil, err
	}
	return tickets[0], nil
}

// SubmitAll queues several requests as one, or none: no step sees only some of
// them in line. So a static batch of them is complete.
func (s *Scheduler) SubmitAll(ctx context.Context, rs []Request) ([]*Ticket, error) {
	jobs := make([]*job, len(rs))
	tickets := make([]*Ticket, len(rs))
	for i := range rs {
		if err := rs[i].validate(s.limits); err != nil {
			return nil, fmt.Errorf("scheduler: %w", err)
		}
		jobs[i] = newJob(rs[i])
		tickets[i] = jobs[i].ticket
	}
	if err := context.Cause(ctx); err != nil {
		return nil, ended(FinishCancelled, err)
	}
	submitted := s.now()

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("%w: it takes no more requests", ErrClosed)
	}
	if s.inFlight+len(jobs) > s.config.MaxBatchSize+s.config.QueueCapacity {
		s.rejected += uint64(len(jobs))
		return nil, fmt.Errorf("scheduler: %w: %d requests are in flight and %d came, there are %d rows and a queue of %d",
			ErrQueueFull, s.inFlight, len(jobs), s.config.MaxBatchSize, s.config.QueueCapacity)
	}
	for _, j := range jobs {
		j.id = s.nextID
		s.nextID++
		j.times.Submitted = submitted
		if ctx.Done() != nil {
			j.ticket.stop = context.AfterFunc(ctx, func() { s.cancel(j, context.Cause(ctx)) })
		}
	}
	s.inFlight += len(jobs)
	s.inbox = append(s.inbox, jobs...)
	s.nudge()
	return tickets, nil
}

// newJob allocates all that a request needs on its way.
func newJob(r Request) *job {
	r.Prompt, r.EOS = slices.Clone(r.Prompt), slices.Clone(r.EOS)
	t := &Ticket{done: make(chan struct{})}
	if r.Stream {
		t.stream = make(chan int32, r.MaxTokens)
	}
	return &job{
		req: r, ticket: t, index: -1,
		out:   make([]int32, 0, r.MaxTokens),
		times: Timings{Tokens: make([]time.Time, 0, r.MaxTokens)},
	}
}

func (s *Scheduler) cancel(j *job, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels = append(s.cancels, cancellation{j, cause})
	s.nudge()
}

// nudge makes an idle loop look again.
func (s *Scheduler) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close takes no more requests and waits for those submitted. If ctx ends
// first, the rest is aborted, and Close returns why. In any case the engine
// is free when Close returns.
func (s *Scheduler) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.nudge()
	s.mu.Unlock()
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
	}
	s.Abort()
	if n := s.Metrics().Aborted; n > 0 {
		return fmt.Errorf("scheduler: %d requests aborted while closing: %w", n, context.Cause(ctx))
	}
	return nil
}

// Abort takes no more requests, cancels all that are left with [ErrAborted], and
// waits for the step in progress.
func (s *Scheduler) Abort() {
	s.mu.Lock()
	s.closed = true
	s.abort(ErrAborted)
	s.nudge()
	s.mu.Unlock()
	<-s.done
}

// Metrics returns a snapshot, at most one step old.
func (s *Scheduler) Metrics() Metrics {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.metrics
	m.StepsByRows = slices.Clone(m.StepsByRows)
	m.Rejected = s.rejected
	m.Waiting += len(s.inbox)
	m.Submitted += uint64(len(s.inbox))
	return m
}

// loop runs steps while there is work, and blocks on wake when there is none.
//
// Callers are told what a step has brought while the next one is under way, if the
// engine leaves the host free then, and else before it begins.
func (s *Scheduler) loop() {
	defer close(s.done)
	var inbox []*job
	var cancels []cancellation
	for {
		s.mu.Lock()
		inbox, s.inbox = s.inbox, inbox[:0]
		cancels, s.cancels = s.cancels, cancels[:0]
		closed := s.closed
		s.mu.Unlock()

		for _, j := range inbox {
			s.m.submit(j)
		}
		for _, c := range cancels {
			s.m.cancel(c.job, c.cause)
		}
		clear(inbox)
		clear(cancels)
		aborted := s.ctx.Err() != nil
		if aborted {
			s.m.cancelAll(context.Cause(s.ctx))
		}
		if len(s.m.over) > 0 && !s.told { // a cancelled request does not wait for the others' step
			s.tell()
		}
		s.told = false
		ran := s.m.step(s.ctx)
		if s.after != nil {
			s.after()
		}
		if !s.told {
			s.tell()
		}
		switch {
		case ran:
		case closed:
			s.abort(ErrClosed) // releases the context
			return
		default:
			<-s.wake
		}
	}
}

// tell lets callers know what has happened since the last time.
func (s *Scheduler) tell() {
	s.publish()
	s.deliver()
}

// publish makes the state after a step visible to Metrics and Submit.
func (s *Scheduler) publish() {
	s.m.gauge()
	s.mu.Lock()
	defer s.mu.Unlock()
	hist := append(s.metrics.StepsByRows[:0], s.m.m.StepsByRows...)
	s.metrics = s.m.m
	s.metrics.StepsByRows = hist
	s.inFlight -= len(s.m.over)
}

// deliver hands the tokens drawn and the ended requests to their callers.
func (s *Scheduler) deliver() {
	for i, j := range s.m.drawn {
		for t := j.ticket; t.sent < len(j.out); t.sent++ {
			t.stream <- j.out[t.sent] // never blocks: it holds MaxTokens
		}
		s.m.drawn[i] = nil
	}
	s.m.drawn = s.m.drawn[:0]
	for i, j := range s.m.over {
		t := j.ticket
		if t.stop != nil {
			t.stop()
		}
		t.result = Result{Tokens: j.out, Reason: j.reason, Preemptions: j.preemptions, Timings: j.times}
		t.err = j.err
		if t.stream != nil {
			close(t.stream)
		}
		close(t.done)
		s.m.over[i] = nil
	}
	s.m.over = s.m.over[:0]
}
