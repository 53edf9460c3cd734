package validation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/batchproof/batchproof/scheduler"
)

// Session is one run of the suite: the flags, the loaded model, the results
// directory and the judgements so far. It opens what it needs when the first
// criterion asks for it. Not safe for concurrent use.
type Session struct {
	Options Options
	Out     io.Writer // the final table

	ctx        context.Context
	results    Results
	store      *Store
	stand      *Stand
	probes     Probes
	judgements []*Judgement
	once       sync.Once
	err        error
}

// NewSession makes a session whose measurements end when ctx does.
func NewSession(ctx context.Context, opt Options, out io.Writer) *Session {
	return &Session{Options: opt, Out: out, ctx: ctx}
}

// Open proves that results can be kept, then loads the model, once.
func (s *Session) Open(out io.Writer) error {
	if s.err != nil {
		return errors.New("not measured: the session could not begin, see the first failure")
	}
	s.once.Do(func() { s.err = s.open(out) })
	return s.err
}

func (s *Session) open(out io.Writer) (err error) {
	o := &s.Options
	now := time.Now()
	if s.store, err = NewStore(FromRoot(o.Results), now); err != nil {
		return err
	}
	fmt.Fprintf(out, "results: %s\n", s.store.Dir)
	name := o.Checkpoint
	if name == "" {
		name = DefaultCheckpoint
	}
	fmt.Fprintf(out, "loading %s onto %s\n", name, o.Backend)
	s.stand, err = Open(o, name, Shape{
		Rows: o.MaxBatchSize, Context: o.PromptLength + o.MaxTokens, StepTokens: o.Budget(), BlockSize: o.BlockSize,
	})
	if err != nil {
		return err
	}
	env := ReadEnvironment(ModuleRoot())
	ck := s.stand.Checkpoint
	env.Backend = s.stand.Backend.Describe()
	env.Model = ModelInfo{Name: ck.Name, DType: ck.DType().String(), Config: ck.Config}
	s.results = Results{Schema: SchemaVersion, Started: now, Environment: env, Options: *o, Criteria: []*Record{}}
	s.probes = ProbesOf(s.stand.Backend)
	s.store.WriteJSON("environment.json", env, true)
	s.keep()
	fmt.Fprintf(out, "loaded in %s: %s\n", human(time.Since(now)), env.Backend)
	return nil
}

// Measure runs one criterion, prints what it came to, and keeps everything.
func (s *Session) Measure(c Criterion, out io.Writer) (*Judgement, error) {
	if err := context.Cause(s.ctx); err != nil {
		return nil, fmt.Errorf("not measured: %w", err)
	}
	o := &s.Options
	log := io.MultiWriter(out, s.store.Log(logName(c)))
	roofline, err := s.roofline(c)
	if err != nil {
		return nil, err
	}
	index := len(s.results.Criteria)
	s.results.Criteria = append(s.results.Criteria, nil)
	x := &Experiment{
		Criterion:    c,
		Arms:         Arms(c, o, func(name string, cfg scheduler.Config) Arm { return s.stand.Arm(name, cfg) }),
		Prompts:      NewPrompts(o.Seed, c.String(), o.PromptLength, s.stand.Checkpoint.Config.Vocab, s.stand.Checkpoint.Config.EOS),
		PromptLength: o.PromptLength, MaxTokens: o.MaxTokens, MaxBatchSize: o.MaxBatchSize,
		Warmups: o.Warmups(c.Family), Runs: o.TestRuns, Seed: o.Seed,
		Roofline: roofline, Bandwidth: s.probes.ReadBandwidth, Now: time.Now,
		Log: func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) },
		Keep: func(r *Record) {
			s.results.Criteria[index] = r
			s.keep()
		},
	}
	rec, err := x.Run(s.ctx)
	s.results.Criteria[index] = rec
	s.results.Interrupted = s.ctx.Err() != nil
	s.keep()
	s.store.WriteFile("bench.txt", BenchLines(&s.results))
	j := Judge(rec)
	s.judgements = append(s.judgements, j)
	j.Print(log)
	return j, err
}

func (s *Session) roofline(c Criterion) (*Roofline, error) {
	if s.probes.PeakFLOPs == nil {
		return nil, nil
	}
	peak, err := s.probes.PeakFLOPs()
	if err != nil {
		return nil, fmt.Errorf("arithmetic peak: %w", err)
	}
	o := &s.Options
	return NewRoofline(ModelCost(s.stand.Checkpoint), c.Concurrent, o.PromptLength, o.MaxTokens, o.MaxBatchSize, peak), nil
}

// keep writes results.json anew.
func (s *Session) keep() {
	r := s.results
	r.Criteria = r.Criteria[:0:0]
	for _, rec := range s.results.Criteria {
		if rec != nil {
			r.Criteria = append(r.Criteria, rec)
		}
	}
	s.store.WriteJSON("results.json", &r, false)
}

// Close frees the model, finishes the files and prints the final table. It
// returns what was lost on the way.
func (s *Session) Close() error {
	if s.store == nil {
		return nil
	}
	if s.stand != nil {
		if err := s.stand.Close(); err != nil {
			fmt.Fprintf(s.Out, "closing the engine: %v\n", err)
		}
	}
	if len(s.results.Criteria) > 0 {
		now := time.Now()
		s.results.Finished = &now
		s.keep()
	}
	if len(s.judgements) > 0 {
		fmt.Fprintln(s.Out)
		PrintTable(s.Out, s.judgements)
	}
	fmt.Fprintf(s.Out, "\nresults: %s\n", s.store.Dir)
	if err := s.store.Err(); err != nil {
		return fmt.Errorf("the results are incomplete: %w", err)
	}
	return nil
}

// logName is the text log of a family of criteria.
func logName(c Criterion) string {
	if c.Lower() {
		return "single_latency.txt"
	}
	return "concurrent_throughput.txt"
}
