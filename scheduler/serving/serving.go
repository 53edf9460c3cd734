// Package serving describes open-loop load and what it feels like to callers.
//
// Open loop means that requests come when they come, however slow the answers
// are: a system that falls behind is seen to fall behind. The arrivals are a
// pure function of a [Load] and its seed. They are served on a virtual clock by
// [scheduler.Simulate], or in real time by [Drive]; [Latencies] takes the
// results of either.
//
// The package does not judge: that is the validation suite's.
package serving

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/batchproof/batchproof/scheduler"
)

// Range is a uniform distribution over the whole numbers from Min to Max.
type Range struct{ Min, Max int }

func (r Range) draw(rnd *rand.Rand) int { return r.Min + rnd.IntN(r.Max-r.Min+1) }

// Load is open-loop traffic.
type Load struct {
	Requests int
	Rate     float64 // requests per second, on average
	Constant bool    // equal gaps; else exponential ones, as of independent callers (Poisson)
	Prompt   Range   // tokens
	Tokens   Range   // tokens to generate, whatever is drawn
	Vocab    int     // prompts are random tokens of it, each its own
	Seed     uint64
}

func (l *Load) validate() error {
	switch {
	case l.Requests < 1:
		return fmt.Errorf("serving: %d requests, want at least 1", l.Requests)
	case !(l.Rate > 0):
		return fmt.Errorf("serving: a rate of %v requests/s, want more than 0", l.Rate)
	case l.Prompt.Min < 1 || l.Prompt.Max < l.Prompt.Min:
		return fmt.Errorf("serving: prompts of %d to %d tokens, want at least 1, and no less at most", l.Prompt.Min, l.Prompt.Max)
	case l.Tokens.Min < 1 || l.Tokens.Max < l.Tokens.Min:
		return fmt.Errorf("serving: %d to %d tokens to generate, want at least 1, and no less at most", l.Tokens.Min, l.Tokens.Max)
	case l.Vocab < 1:
		return fmt.Errorf("serving: a vocabulary of %d", l.Vocab)
	}
	return nil
}

// Arrivals are the requests of a load in order of time, the first at 0. A
// prompt shares no tokens with another's memory.
//
// Gaps, lengths and prompts come from streams of their own, so that two loads
// that differ in rate have the same requests.
func (l Load) Arrivals() (iter.Seq[scheduler.Arrival], error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	return func(yield func(scheduler.Arrival) bool) {
		gaps := rand.New(rand.NewPCG(l.Seed, 1))
		lengths := rand.New(rand.NewPCG(l.Seed, 2))
		tokens := rand.New(rand.NewPCG(l.Seed, 3))
		at := 0.0 // seconds
		for n := range l.Requests {
			a := scheduler.Arrival{
				At: time.Duration(at * float64(time.Second)),
				Request: scheduler.Request{
					Prompt: make([]int32, l.Prompt.draw(lengths)), MaxTokens: l.Tokens.draw(lengths), IgnoreEOS: true,
				},
			}
			for i := range a.Request.Prompt {
				a.Request.Prompt[i] = tokens.Int32N(int32(l.Vocab))
			}
			if !yield(a) {
				return
			}
			if l.Constant {
				at = float64(n+1) / l.Rate
			} else {
				at += gaps.ExpFloat64() / l.Rate
			}
		}
	}, nil
}

// Drive submits arrivals in real time, and calls each for every one, in their
// order, when all have been submitted. A request that is refused counts as one
// that failed. If ctx ends, the rest is neither submitted nor waited for.
func Drive(ctx context.Context, s *scheduler.Scheduler, arrivals iter.Seq[scheduler.Arrival], each func(n int, r *scheduler.Result, err error)) error {
	type entry struct {
		ticket *scheduler.Ticket
		err    error
	}
	var entries []entry
	begun := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for a := range arrivals {
		timer.Reset(a.At - time.Since(begun))
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		ticket, err := s.Submit(ctx, a.Request)
		entries = append(entries, entry{ticket, err})
	}
	for n, e := range entries {
		var r scheduler.Result
		if e.err == nil {
			r, e.err = e.ticket.Wait()
		}
		each(n, &r, e.err)
	}
	return context.Cause(ctx)
}
