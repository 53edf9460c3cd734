package validation

import (
	"fmt"
	"math"
)

// cause names the likely reason of a miss. With a ceiling it is the largest part
// of the account; without one, each candidate is charged with the seconds that
// it cost the batch arm beyond what would have met the target, and the dearest
// is named.
func cause(j *Judgement) string {
	rec, c := j.Record, j.Record.Criterion
	if c.Lower() {
		return latencyCause(j)
	}
	words := j.words()
	goal, _ := rec.goal()
	if known(j.Ceiling) && j.Ceiling < goal.Value {
		if rec.MaxBatchSize < c.Concurrent {
			return words[partWaiting] + fmt.Sprintf(": so few rows allow at most %.2f here", j.Ceiling)
		}
		return fmt.Sprintf("unreachable on this machine: bytes and arithmetic alone allow at most %.2f here, and %s takes most", j.Ceiling, j.Account.largestFloor())
	}
	if j.Account != nil {
		if p := j.Account.Largest(); p != nil {
			return p.Words
		}
	}
	s, b := &j.Serial, &j.Batch
	best, hint := math.Inf(-1), ""
	charge := func(seconds float64, part string) {
		if seconds > best {
			best, hint = seconds, words[part]
		}
	}
	charge(b.PrefillElapsed-s.PrefillElapsed/goal.Value, partPrefill)
	// Decode steps beyond those of a full batch are charged to the width, the
	// rest of the excess to the steps themselves.
	full := float64(len(rec.Kept()) * (rec.MaxTokens - 1))
	narrow := max(0, float64(b.DecodeSteps)-full) * b.DecodeStep
	charge(narrow, partWaiting)
	charge(b.DecodeElapsed-narrow-s.DecodeElapsed/goal.Value, partWeights)
	charge(b.Overhead()-s.Overhead()/goal.Value, partScheduler)
	return hint
}

// words say for each part what a user can do about it.
func (j *Judgement) words() map[string]string {
	c, s, b := j.Record.Criterion, &j.Serial, &j.Batch
	width := min(c.Concurrent, j.Record.MaxBatchSize)
	step := fmt.Sprintf("the accelerator is underused: a decode step of %.1f rows takes %.2f times a step of one row", b.MeanRows, b.DecodeStep/s.DecodeStep)
	waiting := fmt.Sprintf("rows joined late or left early: %.1f rows a step on average, %d asked for; slot allocation blocks, or prompts wait for their turn", b.MeanRows, width)
	if width < c.Concurrent {
		waiting = fmt.Sprintf("max batch size too small: %d requests, -max-batch-size %d; raise it", c.Concurrent, j.Record.MaxBatchSize)
	}
	return map[string]string{
		partWeights:    step + "; weights are read again, or arithmetic limits the step (more cores or threads help)",
		partArithmetic: step + "; arithmetic limits it (more cores, wider vectors, or a smaller model help)",
		partPrefill: fmt.Sprintf(
			"prefill is the bottleneck: %.0f %% of the batch arm went into steps with prompt chunks (serial arm %.0f %%); prompts gain little from batching, so fewer or cheaper prompt tokens, or more generated ones, raise the ratio",
			100*b.PrefillElapsed/b.Elapsed, 100*s.PrefillElapsed/s.Elapsed),
		partWaiting:   waiting,
		partScheduler: schedulerText(b),
		partRest:      "what nothing else accounts for: time outside of the steps, and blocks of different speeds, whose median ratio differs from the ratio of all blocks together",
	}
}

// latencyCause explains what batch mode costs a lone request: the largest increase.
func latencyCause(j *Judgement) string {
	s, b := &j.Serial, &j.Batch
	best, hint := math.Inf(-1), ""
	charge := func(seconds float64, text string) {
		if seconds > best {
			best, hint = seconds, text
		}
	}
	charge(b.DecodeElapsed-s.DecodeElapsed, fmt.Sprintf(
		"a decode step of one row takes %.2f times as long in batch mode: is the full width computed whether or not the rows are there?", b.DecodeStep/s.DecodeStep))
	charge(b.PrefillElapsed-s.PrefillElapsed, fmt.Sprintf(
		"prefill takes %.2f times as long in batch mode: a smaller chunk of the prompt in each step?", b.PrefillElapsed/s.PrefillElapsed))
	charge(b.Overhead()-s.Overhead(), schedulerText(b))
	return hint
}

func schedulerText(b *ArmSummary) string {
	text := fmt.Sprintf("the scheduler: %s between two steps of %s", humanS(b.SchedulerCost), humanS(b.DecodeStep))
	if b.SchedulerCost >= 1e-3 {
		text += "; a loop that sleeps between steps costs 1 ms each"
	}
	return text
}
