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
		want := 0
		for i := range o.Requests {
			r := &o.Requests[i]
			asked := requests[i].MaxTokens
			want += asked
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
		checkSteps(arm, o, len(requests), want, add)
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

// checkSteps lets the meter's log testify: the tokens were drawn, and rows
// shared steps where they should have and nowhere else.
func checkSteps(arm string, o *ArmOutcome, requests, want int, add func(rule, arm, detail string, args ...any)) {
	drawn, rows := 0, 0
	for _, s := range o.Steps {
		drawn += s.Drawn
		rows = max(rows, s.Rows)
	}
	if drawn != want {
		add(RuleWorkNotAccounted, arm, "%d asked for, %d drawn", want, drawn)
	}
	switch {
	case arm != ArmBatch && rows > 1:
		add(RuleSerialBatched, arm, "a step had %d rows", rows)
	case arm == ArmBatch && requests > 1 && rows == 1:
		add(RuleNothingBatched, arm, "%d requests, but no step had more than one row", requests)
	}
}

// checkPrompts looks for a prompt that stands in a record twice.
func checkPrompts(r *Record) []Problem {
	type place struct{ block, request int }
	seen := make(map[string]place)
	var problems []Problem
	for b := range r.Blocks {
		run := r.Blocks[b].Run(ArmSerial)
		if run == nil {
			continue
		}
		for i := range run.Requests {
			p := run.Requests[i].Prompt
			if first, ok := seen[p]; ok {
				problems = append(problems, Problem{Rule: RulePromptTwice, Where: blockName(b),
					Detail: fmt.Sprintf("request %d repeats request %d of %s", i, first.request, blockName(first.block))})
				continue
			}
			seen[p] = place{b, i}
		}
	}
	return problems
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
