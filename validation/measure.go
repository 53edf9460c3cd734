package validation

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/validation/stats"
)

// Experiment measures one criterion in interleaved blocks.
type Experiment struct {
	Criterion    Criterion
	Arms         []Arm // the first is the reference
	Prompts      *Prompts
	PromptLength int
	MaxTokens    int
	MaxBatchSize int
	Warmups      int
	Runs         int // blocks; 0: as many as the verdict takes
	Seed         uint64
	Budget       time.Duration           // with Runs 0: no look is begun that would end later; 0: none
	Roofline     *Roofline               // nil: unknown
	Bandwidth    func() (float64, error) // probed between blocks; nil: not measured
	Now          func() time.Time        // the clock of progress lines
	Log          func(string, ...any)    // progress; nil for none
	Keep         func(*Record)           // called whenever the record has grown; nil for none

	probing time.Duration // spent on probes
}

// ErrInterrupted ends a measurement whose context ended; what it measured is kept.
type ErrInterrupted struct {
	Done, Planned int
	Cause         error
}

func (e *ErrInterrupted) Error() string {
	return fmt.Sprintf("interrupted after %d of %d blocks (%v); what was measured is kept", e.Done, e.Planned, e.Cause)
}

func (e *ErrInterrupted) Unwrap() error { return e.Cause }

// Run measures. It returns the record also beside an error, holding the blocks
// that were complete by then. It stops at the first block whose evidence may
// not be used: no further block can mend that.
func (x *Experiment) Run(ctx context.Context) (*Record, error) {
	rec := &Record{
		Criterion: x.Criterion, PromptLength: x.PromptLength, MaxTokens: x.MaxTokens, MaxBatchSize: x.MaxBatchSize,
		Seed: x.Seed, Warmups: x.Warmups, Roofline: x.Roofline, Blocks: []Block{},
	}
	var err error
	if rec.Plan, rec.ControlPlan, rec.Planned, err = planFor(x.Criterion, x.Runs); err != nil {
		return rec, err
	}
	if err := x.Prompts.Enough((x.Warmups + rec.Planned) * x.Criterion.Concurrent); err != nil {
		return rec, err
	}
	x.keep(rec)
	forward := make([]int, len(x.Arms))
	for i := range forward {
		forward[i] = i
	}
	for w := range x.Warmups {
		begin := x.Now()
		where := fmt.Sprintf("warm-up %d", w+1)
		_, problems, err := x.block(ctx, where, x.requests(), forward)
		if done, err := x.stop(ctx, rec, problems, err); done {
			return rec, err
		}
		x.log("%s: warm-up %d of %d, %s", x.Criterion, w+1, x.Warmups, human(x.Now().Sub(begin)))
	}
	begin := x.Now()
	for b, order := range orders(x.Seed, len(x.Arms), rec.Planned) {
		started := x.Now()
		bandwidth, err := x.probe(x.Now().Sub(begin))
		if err != nil {
			return rec, fmt.Errorf("read bandwidth before %s: %w", blockName(b), err)
		}
		runs, problems, err := x.block(ctx, blockName(b), x.requests(), order)
		if err == nil {
			rec.Blocks = append(rec.Blocks, Block{Index: b, Started: started, ReadBandwidth: bandwidth, Arms: runs})
			problems = append(problems, checkPrompts(rec)...)
		}
		if done, err := x.stop(ctx, rec, problems, err); done {
			return rec, err
		}
		x.keep(rec)
		over := rec.decided()
		x.progress(rec, over, x.Now().Sub(begin))
		if x.Runs == 0 && (over || x.late(rec, x.Now().Sub(begin))) {
			break
		}
	}
	return rec, nil
}

// late says whether the next look lies beyond the budget. Before the first look
// nothing does: a verdict needs its least blocks. To give up for lack of time,
// whatever the ratios are, keeps the error of the bounds.
func (x *Experiment) late(rec *Record, elapsed time.Duration) bool {
	done := len(rec.Blocks)
	if x.Budget == 0 || !slices.Contains(rec.Plan.Looks, done) || done == rec.Planned {
		return false
	}
	next, ok := rec.Plan.Next(done)
	late := ok && time.Duration(float64(elapsed)/float64(done)*float64(next)) > x.Budget
	if late {
		x.log("%s: not decided after %d blocks, and the time is up (-time-limit)", x.Criterion, done)
	}
	return late
}

// block runs every arm once over the same requests, in the given order.
func (x *Experiment) block(ctx context.Context, where string, requests []scheduler.Request, order []int) ([]ArmRun, []Problem, error) {
	outcomes := make([]*ArmOutcome, len(x.Arms))
	runs := make([]ArmRun, 0, len(order))
	for _, a := range order {
		o, err := x.Arms[a].Run(ctx, slices.Clone(requests))
		if err == nil {
			err = ctx.Err() // its requests were cancelled: no sample
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s, %s arm: %w", where, x.Arms[a].Name, err)
		}
		outcomes[a] = &o
		runs = append(runs, o.record(x.Arms[a].Name, requests))
	}
	return runs, checkBlock(where, requests, x.Arms, outcomes), nil
}

// stop decides whether the measurement ends here, and with which error.
func (x *Experiment) stop(ctx context.Context, rec *Record, problems []Problem, err error) (bool, error) {
	switch {
	case ctx.Err() != nil:
		err = &ErrInterrupted{Done: len(rec.Blocks), Planned: rec.Planned, Cause: context.Cause(ctx)}
	case err == nil && len(problems) == 0:
		return false, nil
	}
	rec.Problems = append(rec.Problems, problems...)
	x.keep(rec)
	return true, err
}

func (x *Experiment) requests() []scheduler.Request {
	reqs := make([]scheduler.Request, x.Criterion.Concurrent)
	for i := range reqs {
		reqs[i] = scheduler.Request{Prompt: x.Prompts.Next(), MaxTokens: x.MaxTokens, IgnoreEOS: true}
	}
	return reqs
}

// probeShare is the part of a measurement's time that the probes may take.
const probeShare = 0.1

// probe measures the bandwidth before the first block, and before as many others
// as can be afforded; 0 if it did not.
func (x *Experiment) probe(elapsed time.Duration) (float64, error) {
	if x.Bandwidth == nil || float64(x.probing) > probeShare*float64(elapsed) {
		return 0, nil
	}
	begin := x.Now()
	bandwidth, err := x.Bandwidth()
	x.probing += x.Now().Sub(begin)
	return bandwidth, err
}

func (x *Experiment) keep(rec *Record) {
	if x.Keep != nil {
		x.Keep(rec)
	}
}

func (x *Experiment) log(format string, args ...any) {
	if x.Log != nil {
		x.Log(format, args...)
	}
}

// progress says what the last block gave and how long the rest will take.
func (x *Experiment) progress(rec *Record, over bool, elapsed time.Duration) {
	ratios := rec.Ratios(x.Arms[1].Name)
	done, planned, of := len(rec.Blocks), rec.Planned, fmt.Sprintf("of %d", rec.Planned)
	if x.Runs == 0 && rec.Criterion.Target != 0 {
		// The next look may be the last.
		of = fmt.Sprintf("of at most %d", rec.Planned)
		if next, ok := rec.Plan.Next(done); ok {
			planned = next
		}
	}
	line := fmt.Sprintf("%s: block %d %s, ratio %.3f, median so far %.3f", x.Criterion, done, of, ratios[done-1], stats.Median(ratios))
	left := human(time.Duration(float64(elapsed) / float64(done) * float64(planned-done)))
	switch {
	case over && x.Runs == 0 || done == rec.Planned:
	case planned < rec.Planned:
		line += fmt.Sprintf(", at least %s left", left)
	default:
		line += fmt.Sprintf(", about %s left", left)
	}
	x.log("%s", line)
}
