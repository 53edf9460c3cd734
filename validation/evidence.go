package validation

import (
	"fmt"

	"github.com/batchproof/batchproof/scheduler"
)

// The rules that evidence must keep. One breach and the verdict is INVALID.
const (
	RuleRequestFailed    = "request failed"
	RuleTokenCount       = "wrong number of tokens"
	RuleTokensDiffer     = "tokens differ between the arms"
	RulePromptTwice      = "prompt seen twice"
	RuleSerialBatched    = "the serial arm batched"
	RuleNothingBatched   = "the batch arm never batched"
	RuleWorkNotAccounted = "tokens drawn by the engine do not add up"
	RulePromptSkipped    = "tokens fed to the engine are too few"
)

// checkBlock holds one block's outcomes against the rules. The first arm given
// is the reference whose tokens the others must repeat.
func checkBlock(where string, requests []scheduler.Request, arms []Arm, outcomes []*ArmOutcome) []Problem {
	var problems []Problem
	add := func(rule, arm string, detail string, args ...any) {
		problems = append(problems, Problem{Rule: rule, Where: where + ", " + arm + " arm", Detail: fmt.Sprintf(detail, args...)})
	}
	for a, o := range outcomes {
		arm := arms[a].Name
		if len(o.Requests) != len(requests) {
			add(RuleRequestFailed, arm, "%d requests went in, %d came out", len(requests), len(o.Requests))
			continue
		}
		want, feed := 0, 0
		for i := range o.Requests {
			r := &o.Requests[i]
			asked := requests[i].MaxTokens
			want += asked
			feed += len(requests[i].Prompt) + asked - 1 // the last token is not fed
			switch {
			case r.Err != nil:
				add(RuleRequestFailed, arm, "request %d: %v", i, r.Err)
			case len(r.Tokens) != asked || len(r.Timings.Tokens) != asked:
				add(RuleTokenCount, arm, "request %d: %d tokens asked for, %d generated, %d timed (%s)",
					i, asked, len(r.Tokens), len(r.Timings.Tokens), r.Reason)
			case r.Reason != scheduler.FinishLength:
				add(RuleRequestFailed, arm, "request %d ended with reason %q, want %q", i, r.Reason, scheduler.FinishLength)
			}
		}
		checkSteps(arm, o, len(requests), want, feed, add)
	}
	for a := 1; a < len(outcomes); a++ {
		for i := range min(len(outcomes[0].Requests), len(outcomes[a].Requests)) {
			want, got := outcomes[0].Requests[i].Tokens, outcomes[a].Requests[i].Tokens
			if at := firstDifference(want, got); at >= 0 {
				add(RuleTokensDiffer, arms[a].Name, "request %d, token %d: %s arm drew %d, %s arm %d",
					i, at, arms[0].Name, want[at], arms[a].Name, got[at])
			}
		}
	}
	return problems
}

// checkSteps lets the meter's log testify: prompts were computed, tokens were
// drawn, and rows shared steps where they should have and nowhere else.
func checkSteps(arm string, o *ArmOutcome, requests, want, feed int, add func(rule, arm, detail string, args ...any)) {
	drawn, fed, rows := 0, 0, 0
	for _, s := range o.Steps {
		drawn += s.Drawn
		fed += s.Tokens
		rows = max(rows, s.Rows)
	}
	if drawn != want {
		add(RuleWorkNotAccounted, arm, "%d asked for, %d drawn", want, drawn)
	}
	if fed < feed { // more after a preemption
		add(RulePromptSkipped, arm, "%d in prompts and answers, %d fed: something answers prompts from memory", feed, fed)
	}
	switch {
	case arm != ArmBatch && rows > 1:
		add(RuleSerialBatched, arm, "a step had %d rows", rows)
	case arm == ArmBatch && requests > 1 && rows == 1:
		add(RuleNothingBatched, arm, "%d requests, but no step had more than one row", requests)
	}
}

// checkPrompts looks for a prompt that stands in a record twice, warm-up included.
func checkPrompts(r *Record) []Problem {
	type place struct {
		block   string
		request int
	}
	seen := make(map[string]place)
	var problems []Problem
	look := func(where string, b *Block) {
		run := b.Run(ArmSerial)
		if run == nil {
			return
		}
		for i := range run.Requests {
			p := run.Requests[i].Prompt
			if first, ok := seen[p]; ok {
				problems = append(problems, Problem{Rule: RulePromptTwice, Where: where,
					Detail: fmt.Sprintf("request %d repeats request %d of %s", i, first.request, first.block)})
				continue
			}
			seen[p] = place{where, i}
		}
	}
	r.each(look)
	return problems
}

// each visits warm-up, measured and added blocks in run order.
func (r *Record) each(visit func(where string, b *Block)) {
	for i := range r.WarmupBlocks {
		visit(fmt.Sprintf("warm-up %d", i+1), &r.WarmupBlocks[i])
	}
	for i := range r.Blocks {
		visit(blockName(i), &r.Blocks[i])
	}
	for i := range r.OtherSpeed {
		visit("added "+blockName(i), &r.OtherSpeed[i])
	}
}

// recheck holds recorded samples against the rules again. A record keeps
// digests, so it can say that tokens differ and not which.
func recheck(r *Record) []Problem {
	problems := checkPrompts(r)
	r.each(func(where string, b *Block) {
		reference := b.Run(ArmSerial)
		for a := range b.Arms {
			run := &b.Arms[a]
			add := func(rule, arm, detail string, args ...any) {
				problems = append(problems, Problem{Rule: rule, Where: where + ", " + arm + " arm", Detail: fmt.Sprintf(detail, args...)})
			}
			if len(run.Requests) != r.Criterion.Concurrent {
				add(RuleRequestFailed, run.Arm, "%d requests went in, %d came out", r.Criterion.Concurrent, len(run.Requests))
				continue
			}
			for i := range run.Requests {
				q := &run.Requests[i]
				switch {
				case q.Error != "":
					add(RuleRequestFailed, run.Arm, "request %d: %s", i, q.Error)
				case q.Count != r.MaxTokens || len(q.TokenNS) != r.MaxTokens:
					add(RuleTokenCount, run.Arm, "request %d: %d tokens asked for, %d generated, %d timed (%s)", i, r.MaxTokens, q.Count, len(q.TokenNS), q.Reason)
				case q.Reason != string(scheduler.FinishLength):
					add(RuleRequestFailed, run.Arm, "request %d ended with reason %q, want %q", i, q.Reason, scheduler.FinishLength)
				case reference != nil && i < len(reference.Requests) && q.Prompt != reference.Requests[i].Prompt:
					add(RuleTokensDiffer, run.Arm, "request %d had another prompt", i)
				case reference != nil && i < len(reference.Requests) && q.Tokens != reference.Requests[i].Tokens:
					add(RuleTokensDiffer, run.Arm, "request %d", i)
				}
			}
			n := len(run.Requests)
			checkSteps(run.Arm, &ArmOutcome{Steps: run.Steps.steps()}, n, n*r.MaxTokens, n*(r.PromptLength+r.MaxTokens-1), add)
		}
	})
	return problems
}

// steps are the recorded steps, as far as the rules look at them.
func (l *StepLog) steps() []Step {
	steps := make([]Step, l.Len())
	for i := range steps {
		steps[i] = Step{Rows: l.Rows[i], PromptRows: l.PromptRows[i], Tokens: l.Tokens[i], Drawn: l.Drawn[i]}
	}
	return steps
}

// firstDifference is the first index at which two lists differ within their
// common length, or −1: a missing token is another rule's.
func firstDifference(a, b []int32) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

func blockName(index int) string { return fmt.Sprintf("block %d", index+1) }
