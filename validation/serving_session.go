package validation

import (
	"fmt"
	"io"

	"github.com/batchproof/batchproof/scheduler/serving"
)

const (
	servingLog  = "serving.txt"
	servingRuns = 2 // unless -test-runs says otherwise
)

// Serving measures the serving scenario: the same open-loop arrivals of mixed
// lengths under each policy.
func (s *Session) Serving(out io.Writer) (*ServingRecord, error) {
	if err := s.loadServing(out); err != nil {
		return nil, err
	}
	o := &s.Options
	log := io.MultiWriter(out, s.store.Log(servingLog))
	x := &Scenario{
		Load: o.load(s.stand.Checkpoint.Config.Vocab), SLO: o.SLO, Rows: o.MaxBatchSize,
		Arms: ServingArms(o.MaxBatchSize, o.TokenBudget, o.ServePrompts.Max),
		Runs: servingRuns, Seed: o.Seed,
		Serve: SchedulerServe(s.stand.Engine, s.stand.Meter),
		Log:   func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) },
		Keep: func(r *ServingRecord) {
			r.Model = s.stand.Info()
			s.results.Serving = r
			s.announce(log)
			s.keep()
		},
	}
	if o.TestRuns > 0 {
		x.Runs = o.TestRuns
	}
	rec, err := x.Run(s.ctx)
	s.results.Interrupted = s.ctx.Err() != nil
	s.keep()
	if len(rec.Runs) > 0 { // also of a run that was cut short
		s.store.WriteFile("serving.csv", rec.CSV())
		rec.Print(log)
	}
	return rec, err
}

// loadServing loads the model with room for the scenario's longest requests,
// prompts in one piece.
func (s *Session) loadServing(out io.Writer) error {
	return s.load(s.Options.defaultCheckpoint(), s.Options.servingShape(), out)
}

func (o *Options) servingShape() Shape {
	return Shape{
		Rows: o.MaxBatchSize, Context: o.ServePrompts.Max + o.ServeTokens.Max,
		StepTokens: max(o.Budget(), o.MaxBatchSize-1+o.ServePrompts.Max), BlockSize: o.BlockSize,
	}
}

// load is the traffic that the flags ask for.
func (o *ServingOptions) load(vocab int) serving.Load {
	return serving.Load{
		Requests: o.Requests, Rate: o.Rate, Constant: o.ConstantRate,
		Prompt: o.ServePrompts.serving(), Tokens: o.ServeTokens.serving(), Vocab: vocab,
	}
}
