package scheduler

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/batchproof/batchproof/engine"
)

// Arrival is a request and when it comes, counted from the start.
type Arrival struct {
	At      time.Duration
	Request Request
}

// Clock is a time that moves only when somebody sleeps.
type Clock interface {
	Now() time.Time
	Sleep(time.Duration)
}

// Simulate serves arrivals, which are in order of time, on a virtual clock: the
// engine's runner moves the clock on by what its steps cost, and Simulate by the
// time in which there is nothing to do. It decides as a Scheduler does, with the
// same code, but on the caller's goroutine, so that the same input gives the
// same output, and a day passes in seconds.
//
// Each is called once for each arrival, by its number, when it has ended; the
// result is valid until each returns. The metrics are of the whole.
func Simulate(eng *engine.Engine, cfg Config, clock Clock, arrivals iter.Seq[Arrival], each func(n int, r *Result, err error)) (Metrics, error) {
	lim := eng.Limits()
	if err := cfg.validate(lim); err != nil {
		return Metrics{}, err
	}
	next, stop := iter.Pull(arrivals)
	defer stop()
	var (
		m     = newMachine(eng, cfg, clock.Now)
		ctx   = context.Background()
		begun = clock.Now()
		n     = 0
		spare []*job // ended, to be used again
		last  time.Duration
	)
	a, more := next()
	for {
		for more && a.At <= clock.Now().Sub(begun) {
			if a.At < last {
				return m.m, fmt.Errorf("scheduler: arrival %d comes at %v, after one at %v", n, a.At, last)
			}
			last = a.At
			switch err := a.Request.validate(lim); {
			case err != nil:
				each(n, &Result{}, fmt.Errorf("scheduler: %w", err))
			case len(m.running)+m.waiting.len() >= cfg.MaxBatchSize+cfg.QueueCapacity:
				m.m.Rejected++
				each(n, &Result{}, ErrQueueFull)
			default:
				var j *job
				if k := len(spare); k > 0 {
					j, spare = spare[k-1], spare[:k-1]
				} else {
					j = new(job)
				}
				*j = job{
					req: a.Request, id: int64(n), index: -1, out: j.out[:0],
					times: Timings{Submitted: begun.Add(a.At), Tokens: j.times.Tokens[:0]},
				}
				m.submit(j)
			}
			n++
			a, more = next()
		}
		if !m.step(ctx) {
			if !more {
				m.gauge()
				return m.m, nil
			}
			clock.Sleep(a.At - clock.Now().Sub(begun))
		}
		for _, j := range m.over {
			r := Result{Tokens: j.out, Reason: j.reason, Preemptions: j.preemptions, Timings: j.times}
			each(int(j.id), &r, j.err)
			spare = append(spare, j)
		}
		m.over = m.over[:0]
	}
}
