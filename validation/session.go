package validation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/batchproof/batchproof/engine/backend"
)

// Session is one run of the suite: the flags, the loaded model, the results
// directory and the judgements so far. It opens what it needs when the first
// test asks for it. Not safe for concurrent use.
type Session struct {
	Options Options
	Out     io.Writer // the final table

	ctx        context.Context
	results    Results
	store      *Store // nil until the session has begun
	judgements []*Judgement
	failed     bool // the store or a model could not be opened
	announced  bool // the results directory
	looked     bool // at what else the machine does

	finals     sync.Mutex
	extensions []*extension // of the criteria measured, on the model that is loaded; see Final

	probesOf func(backend.Backend) Probes
	tune     func(*Rules) // by tests

	stand  *Stand // what is loaded now
	name   string // and what was asked for
	shape  Shape
	probes Probes
	peak   float64  // FLOP/s, the best measured
	lone   *Control // of this session, where no latency criterion has one

	replayed *Results // instead of measuring
}

// NewSession makes a session whose measurements end when ctx does.
func NewSession(ctx context.Context, opt Options, out io.Writer) *Session {
	return &Session{Options: opt, Out: out, ctx: ctx, probesOf: ProbesOf}
}

// begin proves that results can be kept, before anything is loaded or measured.
func (s *Session) begin() (err error) {
	if err := context.Cause(s.ctx); err != nil {
		return fmt.Errorf("not measured: %w", err)
	}
	if s.failed {
		return errors.New("not measured: the session could not begin, see the first failure")
	}
	if s.store != nil {
		return nil
	}
	now := time.Now()
	if s.store, err = NewStore(FromRoot(s.Options.Results), now); err != nil {
		s.failed = true
		return err
	}
	s.results = Results{Schema: SchemaVersion, Started: now, Options: s.Options,
		Environment: ReadEnvironment(ModuleRoot()), Criteria: []*Record{}}
	return nil
}

// announce says once where the results are, when there are some to keep.
func (s *Session) announce(out io.Writer) {
	if !s.announced {
		fmt.Fprintf(out, "results: %s\n", s.store.Dir)
		s.announced = true
	}
}

// load makes a model ready, keeping the one that is there if it is the same.
func (s *Session) load(name string, shape Shape, out io.Writer) (err error) {
	if err := s.begin(); err != nil {
		return err
	}
	if s.Options.Checkpoint != "" {
		name = s.Options.Checkpoint
	}
	if s.stand != nil && s.name == name && s.shape == shape {
		return nil
	}
	if err := s.unload(); err != nil {
		return err
	}
	begin := time.Now()
	fmt.Fprintf(out, "loading %s onto %s\n", name, s.Options.Backend)
	stand, err := Open(&s.Options, name, shape)
	if err != nil {
		s.failed = true
		return err
	}
	s.stand, s.name, s.shape, s.probes = stand, name, shape, s.probesOf(stand.Backend)
	s.peak, s.lone = 0, nil
	s.results.Environment.ReadDevice(stand.Backend)
	s.store.WriteJSON("environment.json", &s.results.Environment, true)
	s.keep()
	defer s.look(out)
	fmt.Fprintf(out, "loaded in %s: %s; seed %d\n", human(time.Since(begin)), s.results.Environment.Backend, s.Options.Seed)
	return nil
}

// look warns once of a machine that others use, before time is spent on it.
func (s *Session) look(out io.Writer) {
	if s.looked || s.probes.Busy == nil {
		return
	}
	s.looked = true
	warning := s.probes.Busy(func() {
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
		}
	})
	if warning != "" {
		fmt.Fprintln(out, warning)
	}
}

func (s *Session) unload() error {
	if s.stand == nil {
		return nil
	}
	stand := s.stand
	s.stand = nil
	s.extensions = nil // their arms end with it
	return stand.Close()
}

// Measure runs one criterion, prints what it came to, and keeps everything.
// Beside an error of the run, the judgement tells what there was until then.
func (s *Session) Measure(c Criterion, out io.Writer) (*Judgement, error) {
	o := &s.Options
	err := s.load(s.Options.defaultCheckpoint(), Shape{
		Rows: o.MaxBatchSize, Lone: loneArms, Context: o.PromptLength + o.MaxTokens, StepTokens: o.Budget(), BlockSize: o.BlockSize,
	}, out)
	if err != nil {
		return nil, err
	}
	model := s.stand.Info()
	s.results.Model = &model
	if s.Options.Against == AgainstCeiling && (s.probes.PeakFLOPs == nil || s.probes.ReadBandwidth == nil) {
		return nil, fmt.Errorf("-against ceiling: backend %s measures no bandwidth or no arithmetic peak, so there is no ceiling", o.Backend)
	}
	var control *Control
	if c.Family == FamilyThroughput {
		if control, err = s.control(out); err != nil {
			return nil, err
		}
	}
	log := io.MultiWriter(out, s.store.Log(logName(c)))
	index := len(s.results.Criteria)
	x, err := s.experiment(c, o.MaxTokens, log)
	if err != nil {
		return nil, err
	}
	s.announce(out)
	x.Control = control
	x.Warmups, x.Runs, x.Budget, x.Limit = o.Warmups(c.Family), o.TestRuns, s.budget(c), s.left()
	x.Keep = func(r *Record) {
		s.results.Criteria = append(s.results.Criteria[:index], r)
		s.keep()
	}
	rec, err := x.Run(s.ctx)
	s.results.Interrupted = s.ctx.Err() != nil
	s.keep()
	s.store.WriteFile("bench.txt", BenchLines(&s.results))
	s.results.shareSpeeds()
	j := Judge(rec)
	s.judgements = append(s.judgements, j)
	j.Print(log)
	if err == nil && o.TestRuns == 0 { // else: exactly so many blocks
		x.Keep = func(*Record) { s.keep() }
		s.extensions = append(s.extensions, &extension{x: x, rec: rec})
	}
	return j, err
}

// Final judges a criterion again when others have been measured after it, whose
// blocks may have met the machine at another speed, and says what has changed. The
// first call also goes on with all that an estimate alone withholds. Safe for
// concurrent use, once everything has been measured.
func (s *Session) Final(first *Judgement, out io.Writer) (*Judgement, error) {
	s.finals.Lock()
	defer s.finals.Unlock()
	s.results.shareSpeeds()
	s.extend()
	j := Judge(first.Record)
	if j.Verdict != first.Verdict || j.Reason != first.Reason {
		log := io.MultiWriter(out, s.store.Log(logName(j.Record.Criterion)))
		fmt.Fprintf(log, "%s: now %s (%s)\n", j.Record.Criterion, j.Verdict, j.Reason)
		if j.Hint != "" && first.Hint == "" {
			printLine(log, "cause", j.Hint)
		}
	}
	for i := range s.judgements {
		if s.judgements[i].Record == j.Record {
			s.judgements[i] = j
		}
	}
	for _, e := range s.extensions {
		if e.rec == j.Record {
			return j, e.err
		}
	}
	return j, nil
}

// extend adds the blocks that verdicts lack at other speeds, once for each.
func (s *Session) extend() {
	var all []*extension
	for _, e := range s.extensions {
		if e.begun {
			continue
		}
		e.begun = true
		if e.speeds = Judge(e.rec).unmeasured(); len(e.speeds) > 0 {
			all = append(all, e)
		}
	}
	if len(all) > 0 {
		extend(s.ctx, all, s.left)
		s.results.Interrupted = s.ctx.Err() != nil
		s.keep()
	}
}

// experiment is what all criteria have in common.
func (s *Session) experiment(c Criterion, maxTokens int, log io.Writer) (*Experiment, error) {
	o := &s.Options
	roofline, err := s.roofline(c, maxTokens)
	if err != nil {
		return nil, err
	}
	config := s.stand.Checkpoint.Config
	rules := o.Rules(c)
	rules.QuietLimits = limits(s.probes.Watchers)
	if s.tune != nil {
		s.tune(&rules)
	}
	return &Experiment{
		Criterion:    c,
		Arms:         Arms(c, o, s.stand.Arm),
		Prompts:      NewPrompts(o.Seed, c.String(), o.PromptLength, config.Vocab, config.EOS),
		PromptLength: o.PromptLength, MaxTokens: maxTokens, MaxBatchSize: o.MaxBatchSize,
		Seed: o.Seed, Rules: rules, Watchers: s.probes.Watchers,
		Turns: o.Turns, Roofline: roofline, Bandwidth: s.probes.SampleBandwidth, Now: time.Now,
		Log: func(format string, args ...any) { fmt.Fprintf(log, format+"\n", args...) },
	}, nil
}

// controlTokens is the length of the control's lone requests: steps enough to
// judge a ratio, in a fraction of a criterion's time.
const controlTokens = 32

// controlShare of the time that is left is the most that the control goes on for
// after its first look: a quarter.
const controlShare = 4

// control is the A/A control of the session, and the proof that the serial arm
// is not handicapped. The latency criterion has both; where it was not measured
// or not decided, lone requests are measured once for all throughput criteria.
func (s *Session) control(out io.Writer) (*Control, error) {
	for _, j := range s.judgements {
		if j.Record.Criterion.Family == FamilyLatency && (j.ControlCheck.Verdict != Inconclusive || s.Options.TestRuns > 0) && len(j.Record.Kept()) > 0 {
			return j.Record.control(), nil
		}
	}
	if s.lone != nil {
		return s.lone, nil
	}
	log := io.MultiWriter(out, s.store.Log(logName(ThroughputCriterion(0))))
	x, err := s.experiment(Criterion{Family: FamilyControl, Concurrent: 1}, min(controlTokens, s.Options.MaxTokens), log)
	if err != nil {
		return nil, err
	}
	s.announce(out)
	x.log("%s: lone requests, serial against serial; identical arms must agree before throughput is judged", x.Criterion)
	x.Warmups, x.Runs, x.Limit = s.Options.Warmups(FamilyControl), s.Options.TestRuns, s.left()
	x.Budget = max(s.left()/controlShare, 0)
	x.Keep = func(r *Record) {
		s.results.Control = r
		s.keep()
	}
	rec, err := x.Run(s.ctx)
	s.results.Control = rec
	s.results.Interrupted = s.ctx.Err() != nil
	s.keep()
	if err != nil {
		return nil, fmt.Errorf("control of the session: %w", err)
	}
	j := Judge(rec)
	j.Print(log)
	if s.lone = rec.control(); s.lone == nil {
		s.lone = &Control{Plan: rec.Plan, ControlPlan: rec.ControlPlan} // undecided
	}
	if j.Verdict == Invalid {
		s.lone.Invalid = j.Reason
	}
	return s.lone, nil
}

// left is the time until the limit: 0 if there is none, negative if it is up.
func (s *Session) left() time.Duration {
	if s.Options.TimeLimit == 0 {
		return 0
	}
	left := s.Options.TimeLimit - time.Since(s.results.Started)
	if left == 0 {
		return -1
	}
	return left
}

// budget is a criterion's share of the time that is left, by the least work that
// each of those to come must do.
func (s *Session) budget(c Criterion) time.Duration {
	o := &s.Options
	if o.TimeLimit == 0 {
		return 0
	}
	measured := func(c Criterion) bool {
		return slices.ContainsFunc(s.judgements, func(j *Judgement) bool { return j.Record.Criterion == c })
	}
	// In runs of a lone request; a batch takes about as long as two of them.
	weight := func(c Criterion) int {
		block := c.Concurrent + 2
		return (o.Warmups(c.Family) + leastBlocks(c.Family)) * block
	}
	rest := 0
	all := []Criterion{LatencyCriterion()}
	for _, n := range o.NumConcurrent {
		all = append(all, ThroughputCriterion(n))
	}
	for _, other := range all {
		if !measured(other) {
			rest += weight(other)
		}
	}
	return max(s.left()*time.Duration(weight(c))/time.Duration(max(rest, weight(c))), 1)
}

// Replay judges recorded samples again: the same samples, the same verdicts.
// KeepReplay then makes their report anew.
func (s *Session) Replay(path string, out io.Writer) ([]*Judgement, error) {
	r, err := Load(FromRoot(path))
	if err != nil {
		return nil, err
	}
	if len(r.Criteria) == 0 && r.Sweep == nil && r.Serving == nil && r.Plan == nil {
		return nil, fmt.Errorf("%s holds no measurement", path)
	}
	if r.Model != nil {
		fmt.Fprintf(out, "%s on %s, %s\n", r.Model.Name, r.Environment.CPU, r.Environment.Backend)
	}
	if o := &s.Options; slices.Contains(o.given, "against") {
		r.Options.Against, r.Options.Share = o.Against, o.Share
		for _, rec := range r.Criteria {
			rules := o.Rules(rec.Criterion)
			rec.Rules.Against, rec.Rules.Share = rules.Against, rules.Share
		}
	}
	for _, rec := range r.Criteria {
		j := Judge(rec)
		j.Print(out)
		s.judgements = append(s.judgements, j)
	}
	s.replayed = r
	return s.judgements, nil
}

// roofline is the least work of a criterion; nil if the backend cannot tell its
// peak. The peak is measured anew each time and the best is kept: noise only
// lowers it.
func (s *Session) roofline(c Criterion, maxTokens int) (*Roofline, error) {
	if s.probes.PeakFLOPs == nil {
		return nil, nil
	}
	peak, err := s.probes.PeakFLOPs()
	if err != nil {
		return nil, fmt.Errorf("arithmetic peak: %w", err)
	}
	s.peak = max(s.peak, peak)
	o := &s.Options
	return NewRoofline(ModelCost(s.stand.Checkpoint), c.Concurrent, o.PromptLength, maxTokens, o.MaxBatchSize, s.peak), nil
}

// keep writes results.json anew.
func (s *Session) keep() { s.store.WriteJSON("results.json", &s.results, false) }

// Close frees the model, finishes the files and prints the final table. It
// returns what was lost on the way.
func (s *Session) Close() error {
	if s.store == nil {
		if len(s.judgements) > 0 { // replayed
			PrintTable(s.Out, s.judgements)
		}
		return nil
	}
	err := s.unload()
	if len(s.results.Criteria) == 0 && s.results.Control == nil && s.results.Sweep == nil && s.results.Serving == nil && s.results.Plan == nil {
		return errors.Join(err, s.store.Discard())
	}
	now := time.Now()
	s.results.Finished = &now
	s.keep()
	s.store.writeReport(&s.results)
	if len(s.judgements) > 0 {
		fmt.Fprintln(s.Out)
		PrintTable(s.Out, s.judgements)
		if d := s.Options.deviations(); d != "" {
			fmt.Fprintf(s.Out, "not as specified: %s\n", d)
		}
	}
	fmt.Fprintf(s.Out, "\nresults: %s\n", s.store.Dir)
	if lost := s.store.Err(); lost != nil {
		err = errors.Join(err, fmt.Errorf("the results are incomplete: %w", lost))
	}
	return err
}

// logName is the text log of a family of criteria.
func logName(c Criterion) string {
	if c.Lower() {
		return "single_latency.txt"
	}
	return "concurrent_throughput.txt"
}
