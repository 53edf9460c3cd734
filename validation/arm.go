package validation

import (
	"context"
	"time"

	"github.com/batchproof/batchproof/scheduler"
)

// Arm is one way to serve a set of requests. What is behind Run is opaque to
// the measurement, so that the measurement can be tested without a model.
type Arm struct {
	Name string
	// Run serves all requests, submitted at once, and returns when the last has
	// ended. It computes nothing before its turn begins, and the times of its
	// outcome are those of the turn's clock. An error means that the arm itself
	// could not run; what befell a request is in its outcome.
	Run func(ctx context.Context, requests []scheduler.Request, turn *Turn) (ArmOutcome, error)
}

// ArmOutcome is what an arm made of its requests, in their order.
type ArmOutcome struct {
	Begin, End time.Time
	Requests   []RequestOutcome
	Steps      []Step        // what the meter saw
	PlanTime   time.Duration // what the scheduler says that it took between steps
}

// RequestOutcome is what one request came to.
type RequestOutcome struct {
	scheduler.Result
	Err error
}

// record turns an outcome into what is kept of it.
func (o *ArmOutcome) record(arm string, requests []scheduler.Request) ArmRun {
	since := func(t time.Time) int64 {
		if t.IsZero() {
			return -1 // it never happened
		}
		return int64(t.Sub(o.Begin))
	}
	run := ArmRun{Arm: arm, ElapsedNS: since(o.End), Requests: make([]RequestRun, len(o.Requests)), PlanNS: int64(o.PlanTime)}
	for i := range o.Requests {
		r := &o.Requests[i]
		kept := RequestRun{
			Prompt: digest(requests[i].Prompt), Tokens: digest(r.Tokens), Count: len(r.Tokens),
			Reason:      string(r.Reason),
			SubmittedNS: since(r.Timings.Submitted), StartedNS: since(r.Timings.Started), FinishedNS: since(r.Timings.Finished),
			TokenNS: make([]int64, len(r.Timings.Tokens)),
		}
		for j, t := range r.Timings.Tokens {
			kept.TokenNS[j] = since(t)
		}
		if r.Err != nil {
			kept.Error = r.Err.Error()
		}
		run.Requests[i] = kept
	}
	log := &run.Steps
	for _, s := range o.Steps {
		log.BeginNS = append(log.BeginNS, since(s.Begin))
		log.DurationNS = append(log.DurationNS, int64(s.Duration))
		log.Rows = append(log.Rows, s.Rows)
		log.PromptRows = append(log.PromptRows, s.PromptRows)
		log.Tokens = append(log.Tokens, s.Tokens)
		log.Drawn = append(log.Drawn, s.Drawn)
	}
	return run
}
