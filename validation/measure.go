package validation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/validation/stats"
)

// Experiment measures one criterion in blocks whose arms take turns.
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
	Rules        Rules
	Control      *Control                // what controls a criterion without a control arm; nil: none
	Budget       time.Duration           // with Runs 0: after the first look, no look is begun that would end later; 0: none
	Limit        time.Duration           // with Runs 0: no block is begun that would end later; 0: none, negative: the time is up
	Turns        string                  // how the arms of a block share the machine; "" is TurnsStep
	Roofline     *Roofline               // nil: unknown
	Bandwidth    func() (float64, error) // probed between turns; nil: not measured
	Watchers     []Watcher               // of the machine's quiet, during each block
	Now          func() time.Time        // the clock of progress lines
	Log          func(string, ...any)    // progress; nil for none
	Keep         func(*Record)           // called whenever the record has grown; nil for none

	begun   time.Time
	probing time.Duration // spent on probes
	lasted  time.Duration // the last block did
}

// ErrInterrupted ends a measurement whose context ended; what it measured is kept.
type ErrInterrupted struct {
	Done  string // such as "3 of 6 blocks"
	Cause error
}

func (e *ErrInterrupted) Error() string {
	return fmt.Sprintf("interrupted after %s (%v); what was measured is kept", e.Done, e.Cause)
}

func (e *ErrInterrupted) Unwrap() error { return e.Cause }

// extraWarmups is how many warm-ups may follow those asked for until every shape
// is stable.
const extraWarmups = 2

// Run measures. It returns the record also beside an error, holding the blocks
// that were complete by then. It stops at the first block whose evidence may
// not be used: no further block can mend that. A disturbed block is measured
// again at once, with other prompts and the same order of arms, so that the
// orders stay balanced among the blocks that stand.
func (x *Experiment) Run(ctx context.Context) (*Record, error) {
	rec := &Record{
		Criterion: x.Criterion, PromptLength: x.PromptLength, MaxTokens: x.MaxTokens, MaxBatchSize: x.MaxBatchSize,
		Seed: x.Seed, Rules: x.Rules, Turns: cmp.Or(x.Turns, TurnsStep), Warmups: x.Warmups, Roofline: x.Roofline, Control: x.Control,
		WarmupBlocks: []Block{}, Blocks: []Block{},
	}
	var err error
	if rec.Plan, rec.ControlPlan, rec.Planned, err = planFor(x.Criterion, &x.Rules, x.Runs); err != nil {
		return rec, err
	}
	if err := x.Prompts.Enough((x.Warmups + extraWarmups + rec.Planned + rec.allowance() + 1 + x.mayAdd()) * x.Criterion.Concurrent); err != nil {
		return rec, err
	}
	x.keep(rec)
	if c := rec.Control; c != nil && (c.Invalid != "" || decideControl(rec).Verdict == Invalid) {
		x.log("%s: not measured, the control of the session is broken", x.Criterion)
		return rec, nil
	}
	x.begun = x.Now()
	if done, err := x.warmUp(ctx, rec); done {
		return rec, err
	}
	begin := x.Now()
	order := orders(x.Seed, len(x.Arms), rec.Planned)
	for slot := 0; slot < rec.Planned; {
		if x.timeUp(rec, x.Now().Sub(x.begun)) {
			break
		}
		if done, err := x.measure(ctx, rec, &rec.Blocks, blockName(len(rec.Blocks)), slot, order[slot]); done {
			return rec, err
		}
		if why := x.Rules.disturbed(rec.Blocks[len(rec.Blocks)-1].Readings); why != "" {
			next := "measured again"
			if rec.hopeless() {
				next = "too many are, given up"
			}
			x.log("%s: %s, disturbed (%s): %s", x.Criterion, x.place(rec), why, next)
			if rec.hopeless() {
				break
			}
			continue
		}
		slot++
		over := rec.decided()
		x.progress(rec, over, x.Now().Sub(begin))
		if x.Runs == 0 && (over || x.late(rec, begin.Sub(x.begun), x.Now().Sub(begin))) {
			break
		}
	}
	x.keep(rec)
	return rec, nil
}

// measure adds a block to a list of the record, with what the watchers read. Done
// says that the measurement ends here.
func (x *Experiment) measure(ctx context.Context, rec *Record, blocks *[]Block, where string, slot int, order []int) (done bool, err error) {
	b := Block{Index: slot, Started: x.Now()}
	for _, w := range x.Watchers {
		w.Begin()
	}
	var problems []Problem
	b.Arms, b.Probes, problems, err = x.block(ctx, where, x.requests(), order)
	for _, w := range x.Watchers {
		b.Readings = append(b.Readings, w.End()...)
	}
	x.lasted = x.Now().Sub(b.Started)
	if err == nil {
		*blocks = append(*blocks, b)
		problems = append(problems, checkPrompts(rec)...)
	}
	if done, err := x.stop(ctx, rec, problems, err); done {
		return true, err
	}
	x.keep(rec)
	return false, nil
}

// warmUp runs the blocks before the measured ones: as many as were asked for,
// and some more if a shape is not stable by then. What is not stable in the end
// is for the judgement to find.
func (x *Experiment) warmUp(ctx context.Context, rec *Record) (bool, error) {
	forward := make([]int, len(x.Arms))
	for i := range forward {
		forward[i] = i
	}
	for w := 0; w < x.Warmups || w < x.Warmups+extraWarmups && !rec.warm().OK; w++ {
		if x.timeUp(rec, x.Now().Sub(x.begun)) {
			return true, nil
		}
		begin := x.Now()
		runs, probes, problems, err := x.block(ctx, fmt.Sprintf("warm-up %d", w+1), x.requests(), forward)
		if err == nil {
			rec.WarmupBlocks = append(rec.WarmupBlocks, Block{Index: w, Started: begin, Probes: probes, Arms: runs})
		}
		if done, err := x.stop(ctx, rec, problems, err); done {
			return true, err
		}
		line := fmt.Sprintf("%s: warm-up %d of %d, %s", x.Criterion, w+1, max(x.Warmups, w+1), human(x.Now().Sub(begin)))
		if c := rec.warm(); w+1 >= x.Warmups && !c.OK {
			line += ": " + c.Reason
		}
		x.log("%s", line)
	}
	if !rec.warm().OK {
		x.keep(rec)
		return true, nil
	}
	return false, nil
}

// timeUp says that the next block would end after the limit, by the pace so far.
// To stop for lack of time is a rule that sees no ratio.
func (x *Experiment) timeUp(rec *Record, elapsed time.Duration) bool {
	done := len(rec.WarmupBlocks) + len(rec.Blocks)
	if x.Runs != 0 || x.Limit == 0 || x.Limit > 0 && elapsed+elapsed/time.Duration(max(done, 1)) <= x.Limit {
		return false
	}
	rec.TimeUp = true
	x.log("%s: the time is up after %d blocks (-time-limit)", x.Criterion, len(rec.Kept()))
	x.keep(rec)
	return true
}

// late says whether the next look lies beyond the budget. Before the first look
// nothing does: a verdict needs its least blocks. To give up for lack of time,
// whatever the ratios are, keeps the error of the bounds.
func (x *Experiment) late(rec *Record, warmUp, elapsed time.Duration) bool {
	done := len(rec.Kept())
	if x.Budget == 0 || !slices.Contains(rec.Plan.Looks, done) || done == rec.Planned {
		return false
	}
	next, ok := rec.Plan.Next(done)
	late := ok && warmUp+time.Duration(float64(elapsed)/float64(done)*float64(next)) > x.Budget
	if late {
		rec.TimeUp = true
		x.log("%s: not decided after %d blocks, and the time is up (-time-limit)", x.Criterion, done)
	}
	return late
}

// block runs every arm once over the same requests; in the given order they take
// their first turns. Between turns the machine is probed.
func (x *Experiment) block(ctx context.Context, where string, requests []scheduler.Request, order []int) ([]ArmRun, []float64, []Problem, error) {
	runtime.GC() // no arm pays for what was before
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var probes []float64
	var probeErr error
	turns, claims := takeTurns(len(order), x.Turns == TurnsRun, x.Now, func() {
		if p, err := x.probe(); err != nil {
			probeErr = cmp.Or(probeErr, err)
		} else if p > 0 {
			probes = append(probes, p)
		}
	})
	outcomes, errs := make([]*ArmOutcome, len(x.Arms)), make([]error, len(order))
	var wg sync.WaitGroup
	for place, a := range order {
		wg.Go(func() {
			turn := claims[place]
			defer turn.End()
			o, err := x.Arms[a].Run(ctx, slices.Clone(requests), turn)
			if err == nil {
				err = ctx.Err() // its requests were cancelled: no sample
			}
			if outcomes[a] = &o; err != nil {
				errs[place] = fmt.Errorf("%s, %s arm: %w", where, x.Arms[a].Name, err)
				cancel() // the block is lost
			}
		})
	}
	turns.start()
	wg.Wait()
	// The first to fail has cancelled the others.
	slices.SortStableFunc(errs, func(a, b error) int { return cmp.Compare(severity(a), severity(b)) })
	if err := errs[0]; err != nil {
		return nil, nil, nil, err
	}
	if probeErr != nil {
		return nil, nil, nil, fmt.Errorf("read bandwidth in %s: %w", where, probeErr)
	}
	runs := make([]ArmRun, 0, len(order))
	for _, a := range order {
		runs = append(runs, outcomes[a].record(x.Arms[a].Name, requests))
	}
	return runs, probes, checkBlock(where, requests, x.Arms, outcomes), nil
}

// severity puts errors before their consequences, and these before none.
func severity(err error) int {
	switch {
	case err == nil:
		return 2
	case errors.Is(err, context.Canceled):
		return 1
	}
	return 0
}

// stop decides whether the measurement ends here, and with which error.
func (x *Experiment) stop(ctx context.Context, rec *Record, problems []Problem, err error) (bool, error) {
	switch {
	case ctx.Err() != nil:
		err = &ErrInterrupted{Done: fmt.Sprintf("%d of %d blocks", len(rec.Kept()), rec.Planned), Cause: context.Cause(ctx)}
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
const probeShare = 0.05

// probe measures the bandwidth at the beginning, and then as often as can be
// afforded; 0 if it did not.
func (x *Experiment) probe() (float64, error) {
	begin := x.Now()
	if x.Bandwidth == nil || float64(x.probing) > probeShare*float64(begin.Sub(x.begun)) {
		return 0, nil
	}
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
	done, planned := len(ratios), rec.Planned
	if x.open(rec) {
		// The next look may be the last.
		if next, ok := rec.Plan.Next(done); ok {
			planned = next
		}
	}
	line := fmt.Sprintf("%s: %s, ratio %.3f, median so far %.3f", x.Criterion, x.place(rec), ratios[done-1], stats.Median(ratios))
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

// open says that the number of blocks is left to the evidence.
func (x *Experiment) open(rec *Record) bool { return x.Runs == 0 && len(rec.Plan.Looks) > 1 }

// place names the last block by its place in the plan, and the attempt if it is
// not the first.
func (x *Experiment) place(rec *Record) string {
	slot, attempts := rec.Blocks[len(rec.Blocks)-1].Index, 0
	for i := range rec.Blocks {
		if rec.Blocks[i].Index == slot {
			attempts++
		}
	}
	most := ""
	if x.open(rec) {
		most = "at most "
	}
	text := fmt.Sprintf("block %d of %s%d", slot+1, most, rec.Planned)
	if attempts > 1 {
		text += fmt.Sprintf(", attempt %d", attempts)
	}
	return text
}
