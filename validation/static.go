package validation

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/validation/sweep"
)

// sweepRounds is how often each size is measured unless -test-runs says otherwise:
// the least for an interval.
const sweepRounds = 6

// sweepLog is the text log of static batching.
const sweepLog = "batch_sweep.txt"

// Sweep measures what one more row buys: one prompt, replicated to each batch
// size, every row to the cap.
func (s *Session) Sweep(out io.Writer) (*sweep.Sweep, error) {
	rec, log, err := s.loadStatic(out)
	if err != nil {
		return nil, err
	}
	prompt := s.staticPrompts("sweep").Next()
	sw, err := sweep.Run(s.ctx, s.staticBench(prompt, log), s.Options.Sizes, s.Options.NewTokens, s.rounds(), s.Options.Seed)
	if err != nil {
		return nil, err
	}
	rec.Sweep = sw
	s.keep()
	if rec.Limits, err = s.sweepLimits(); err != nil {
		return nil, err
	}
	s.keep()
	s.store.WriteFile("batch_sweep.csv", sw.CSV())
	sw.Print(log)
	return sw, nil
}

// Blocking measures what a fixed batch costs whose rows wait for one long row,
// and what continuous batching wins back on the same requests.
func (s *Session) Blocking(out io.Writer) (*sweep.Blocking, *Comparison, error) {
	rec, log, err := s.loadStatic(out)
	if err != nil {
		return nil, nil, err
	}
	o := &s.Options
	size := slices.Max(o.Sizes)
	prompts := s.staticPrompts("blocking")
	bench := s.staticBench(prompts.Next(), log)
	b, err := sweep.RunBlocking(s.ctx, bench, size, o.LongTokens, o.ShortTokens)
	if err != nil {
		return nil, nil, err
	}
	rec.Blocking = b
	s.keep()
	s.store.WriteFile("batch_sweep-hol.csv", b.CSV())
	b.Print(log)

	arm := func(p scheduler.Policy) Arm {
		return s.stand.Arm(string(p), scheduler.Config{Policy: p, MaxBatchSize: size, TokenBudget: s.shape.StepTokens})
	}
	c, err := CompareArms(s.ctx, arm(scheduler.Static), arm(scheduler.Continuous), s.rounds(), o.Seed, func() []scheduler.Request {
		return blockingRequests(prompts, size, o.LongTokens, o.ShortTokens)
	}, bench.Log)
	if err != nil {
		return b, nil, err
	}
	rec.Comparison = c
	s.keep()
	c.Print(log)
	return b, c, nil
}

// blockingRequests are one long request and short ones, each with its own prompt.
func blockingRequests(prompts *Prompts, size, long, short int) []scheduler.Request {
	reqs := make([]scheduler.Request, size)
	for i := range reqs {
		reqs[i] = scheduler.Request{Prompt: prompts.Next(), MaxTokens: short, IgnoreEOS: true}
	}
	reqs[0].MaxTokens = long
	return reqs
}

// loadStatic loads the model of the sweep, with room for its largest batch.
func (s *Session) loadStatic(out io.Writer) (*SweepRecord, io.Writer, error) {
	o := &s.Options
	rows := slices.Max(o.Sizes)
	err := s.load(DefaultSweepCheckpoint, Shape{
		Rows: rows, Context: o.PromptLength + max(o.NewTokens, o.LongTokens, sweep.MaxWarmSteps+1),
		StepTokens: max(rows*o.PromptLength, rows-1+chunkSize), BlockSize: o.BlockSize,
	}, out)
	if err != nil {
		return nil, nil, err
	}
	s.announce(out)
	if s.results.Sweep == nil {
		s.results.Sweep = &SweepRecord{Model: s.stand.Info()}
	}
	return s.results.Sweep, io.MultiWriter(out, s.store.Log(sweepLog)), nil
}

func (s *Session) rounds() int {
	if s.Options.TestRuns > 0 {
		return s.Options.TestRuns
	}
	return sweepRounds
}

func (s *Session) staticPrompts(label string) *Prompts {
	c := s.stand.Checkpoint.Config
	return NewPrompts(s.Options.Seed, label, s.Options.PromptLength, c.Vocab, c.EOS)
}

// staticBench steps batches straight on the engine, all rows with one prompt.
func (s *Session) staticBench(prompt []int32, log io.Writer) *sweep.Bench {
	return &sweep.Bench{
		Open: func(size int) (sweep.Batch, error) {
			rows := make([][]int32, size)
			for i := range rows {
				rows[i] = prompt
			}
			return NewRows(s.stand.Engine, rows)
		},
		Now: time.Now,
		Log: func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) },
	}
}
