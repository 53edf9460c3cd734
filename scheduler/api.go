// Package scheduler decides which rows an engine computes in each step.
//
// A policy is a pure function of queue and rows: no clock, no goroutine, no
// channel. A thin loop around it owns the engine, wakes when there is work,
// and never sleeps or polls. The package does not measure; it hands out the
// times at which things happened.
//
// The parts, from the inside out: queue.go holds who waits, plan.go chooses
// the rows of a step, machine.go runs them on an engine and takes the tokens
// in, scheduler.go is the loop and what callers see of it.
//
// Where a device computes, what a step has brought is told to its callers while
// the next step runs: between two steps stands only what the next one needs.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/batchproof/batchproof/engine"
)

// Policy says how requests share the engine.
type Policy string

const (
	// Serial runs one request at a time, at width 1.
	Serial Policy = "serial"
	// Static runs a batch that is fixed at its start. A row that finishes keeps
	// its query, slot and KV blocks and is computed until the slowest row is
	// done; then all rows return together.
	Static Policy = "static"
	// Continuous fills up to MaxBatchSize rows; finished rows leave and waiting
	// requests join at any step.
	Continuous Policy = "continuous"
)

// Sentinel errors; what is returned wraps one of these with the numbers.
var (
	// ErrQueueFull says that as many requests wait as the queue holds.
	ErrQueueFull = errors.New("queue full")
	// ErrClosed says that the scheduler takes no more requests.
	ErrClosed = errors.New("scheduler closed")
	// ErrAborted says that the scheduler was aborted before the request ended.
	ErrAborted = errors.New("scheduler aborted")
	// ErrRequest says that a request can never run: it is malformed or too large.
	ErrRequest = errors.New("bad request")
)

// PanicError is a panic in an engine step, as the error of its requests.
type PanicError struct {
	Value any
	Stack []byte // of the panicking goroutine
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap gives the error that the step panicked with, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Config sizes a scheduler. Zero values take the default.
type Config struct {
	Policy          Policy // default Continuous
	MaxBatchSize    int    // rows of a step; default the engine's MaxSequences; Serial has 1 whatever it says
	TokenBudget     int    // tokens of a step, decode rows included; default the engine's MaxStepTokens
	ChunkSize       int    // prompt chunks end at multiples of this position, whatever the load; default 64
	QueueCapacity   int    // requests that may wait beyond MaxBatchSize in flight; default 1024
	WatermarkBlocks int    // KV blocks left free at admission for each row, to grow into; default 1, negative for none

	Now func() time.Time // the clock of all timings; default time.Now
}

// validate fills in the defaults and checks the rest against the engine.
func (c *Config) validate(lim engine.Limits) error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	if c.Policy == "" {
		c.Policy = Continuous
	}
	def(&c.MaxBatchSize, lim.MaxSequences)
	def(&c.TokenBudget, lim.MaxStepTokens)
	def(&c.ChunkSize, 64)
	def(&c.QueueCapacity, 1024)
	def(&c.WatermarkBlocks, 1)
	switch c.Policy {
	case Serial:
		c.MaxBatchSize = 1
	case Static, Continuous:
	default:
		return fmt.Errorf("scheduler: unknown policy %q: want %q, %q or %q", c.Policy, Serial, Static, Continuous)
	}
	switch {
	case c.MaxBatchSize < 1 || c.TokenBudget < 1 || c.ChunkSize < 1 || c.QueueCapacity < 1:
		return fmt.Errorf("scheduler: sizes must be positive: max batch size %d, token budget %d, chunk size %d, queue capacity %d", c.MaxBatchSize, c.TokenBudget, c.ChunkSize, c.QueueCapacity)
	case c.MaxBatchSize > lim.MaxSequences:
		return fmt.Errorf("scheduler: max batch size %d, but the engine holds %d sequences: make it with a larger MaxSequences",
			c.MaxBatchSize, lim.MaxSequences)
	case c.TokenBudget > lim.MaxStepTokens:
		return fmt.Errorf("scheduler: token budget %d, but an engine step holds %d tokens: make it with a larger MaxStepTokens",
			c.TokenBudget, lim.MaxStepTokens)
	case c.TokenBudget < c.MaxBatchSize-1+c.ChunkSize:
		// Else a prompt could starve behind rows that decode.
		return fmt.Errorf("scheduler: a token budget of %d cannot hold a prompt chunk of %d beside %d decode rows: raise it to %d, or lower the chunk size",
			c.TokenBudget, c.ChunkSize, c.MaxBatchSize-1, c.MaxBatchSize-1+c.ChunkSize)
	}
	c.WatermarkBlocks = max(c.WatermarkBlocks, 0)
	return nil
}

// Request is one generation.
type Request struct {
	Prompt    []int32
	MaxTokens int // at least 1
	Sampling  engine.Sampling
	EOS       []int32 // token ids that end the generation
	IgnoreEOS bool    // run to MaxTokens whatever is drawn
	Stream    bool    // offer the tokens as they are drawn, see Ticket.Tokens
	// Priority is how many later places in line the request is moved up: it is
	// served as if it had been submitted so many requests earlier. So it is
	// overtaken by a bounded number of others, and nothing starves.
	Priority int
}

// validate checks a request against the engine and the KV pool.
func (r *Request) validate(lim engine.Limits) error {
	total := len(r.Prompt) + r.MaxTokens
	switch {
	case len(r.Prompt) == 0:
		return fmt.Errorf("%w: the prompt is empty", ErrRequest)
	case r.MaxTokens < 1:
		return fmt.Errorf("%w: max tokens is %d, want at least 1", ErrRequest, r.MaxTokens)
	case r.MaxTokens > lim.MaxContext || total > lim.MaxContext:
		return fmt.Errorf("%w: %w: a prompt of %d and %d further tokens, the context is %d",
			ErrRequest, engine.ErrContextFull, len(r.Prompt), r.MaxTokens, lim.MaxContext)
	}
	if int(int32(r.Priority)) != r.Priority {
		return fmt.Errorf("%w: a priority of %d places, want at most %d either way", ErrRequest, r.Priority, math.MaxInt32)
	}
	// The last token is drawn but never fed, so it takes no position.
	if need := blocksFor(total-1, lim.KVBlockSize); need > lim.KVBlocks {
		return fmt.Errorf("%w: %w: a prompt of %d and %d further tokens take %d KV blocks of %d, there are %d",
			ErrRequest, engine.ErrExhausted, len(r.Prompt), r.MaxTokens, need, lim.KVBlockSize, lim.KVBlocks)
	}
	for i, t := range r.Prompt {
		if t < 0 || int(t) >= lim.Vocab {
			return fmt.Errorf("%w: %w: %d at position %d of the prompt, the vocabulary has %d", ErrRequest, engine.ErrToken, t, i, lim.Vocab)
		}
	}
	return nil
}

func blocksFor(positions, blockSize int) int { return (positions + blockSize - 1) / blockSize }

// FinishReason says why a request ended.
type FinishReason string

const (
	FinishLength    FinishReason = "length"    // MaxTokens reached
	FinishEOS       FinishReason = "eos"       // an EOS token was drawn; it is the last of Tokens
	FinishCancelled FinishReason = "cancelled" // its context ended, or the scheduler was aborted
	FinishError     FinishReason = "error"     // the engine failed
)

// Result is what a request came to. Tokens holds what was generated even if
// the request failed.
type Result struct {
	Tokens      []int32
	Reason      FinishReason
	Preemptions int // times that the request lost its KV blocks and was computed anew
	Timings     Timings
}

// Timings are the instants of one request; those that it never reached are zero.
type Timings struct {
	Submitted  time.Time
	Started    time.Time   // the step that took its first tokens began
	FirstToken time.Time   // the first token was drawn
	Finished   time.Time   // the last token was drawn
	Returned   time.Time   // the request ended; later than Finished if it was held by a static batch
	Tokens     []time.Time // of each token; Tokens[0] == FirstToken
}

// Queue is the time spent waiting before the first step; 0 if it never came.
func (t *Timings) Queue() time.Duration { return between(t.Submitted, t.Started) }

// Prefill is the time from the first step to the first token; 0 if it never came.
func (t *Timings) Prefill() time.Duration { return between(t.Started, t.FirstToken) }

// Decode is the time from the first token to the last.
func (t *Timings) Decode() time.Duration { return between(t.FirstToken, t.Finished) }

func between(from, to time.Time) time.Duration {
	if from.IsZero() || to.IsZero() {
		return 0
	}
	return to.Sub(from)
}

// Ticket is a submitted request. It is safe for concurrent use.
type Ticket struct {
	done   chan struct{}
	stream chan int32 // nil unless asked for; holds MaxTokens, so that a send never blocks
	sent   int        // tokens streamed; the loop's
	stop   func() bool
	result Result
	err    error
}

// Done is closed when the request has ended.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Wait waits for the request's end. The error says why it was cancelled or
// failed, and wraps the cause.
func (t *Ticket) Wait() (Result, error) {
	<-t.done
	return t.result, t.err
}

// Tokens yields each token as it is drawn, and is closed when the request has
// ended. It is nil unless the request asked for Stream. It holds all tokens
// of the request: a reader that is slow, or gone, holds up nobody.
func (t *Ticket) Tokens() <-chan int32 { return t.stream }

// Metrics is a snapshot of a scheduler. Sums count from its start.
type Metrics struct {
	Running       int // requests with a row
	Waiting       int // requests without one
	Preempted     int // those of Waiting that lost their row
	KVBlocksUsed  int
	KVBlocksTotal int

	Submitted uint64 // requests taken in
	Rejected  uint64 // requests refused because the queue was full
	Finished  uint64 // requests that ended by length or EOS
	Cancelled uint64
	Aborted   uint64 // those of Cancelled that the scheduler's end cut short
	Failed    uint64

	Steps       uint64
	FailedSteps uint64
	StepsByRows []uint64 // [n] is the number of steps of n rows
	Tokens      uint64   // drawn and kept

	PromptRows       uint64 // prompt chunks computed
	PromptTokens     uint64 // tokens in them
	DecodeRows       uint64 // decode rows computed: what was issued
	UsefulDecodeRows uint64 // those that gave a request its next token
	HeldDecodeRows   uint64 // those of requests that had finished, in a static batch
	Preemptions      uint64
	RecomputedTokens uint64 // computed again after a preemption, in rows of either kind

	EngineTime time.Duration // inside engine steps
	PlanTime   time.Duration // between engine steps while there was work

	QueueTime   time.Duration // summed over the finished requests
	PrefillTime time.Duration // "
	DecodeTime  time.Duration // "
}

// ended explains to a caller how a request ended, for Ticket.Wait.
func ended(reason FinishReason, cause error) error {
	switch reason {
	case FinishCancelled:
		if errors.Is(cause, context.DeadlineExceeded) {
			return fmt.Errorf("scheduler: request out of time: %w", cause)
		}
		return fmt.Errorf("scheduler: request cancelled: %w", cause)
	case FinishError:
		return fmt.Errorf("scheduler: request failed: %w", cause)
	}
	return nil
}
