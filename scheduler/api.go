// Package scheduler decides which rows an engine computes in each step.
//
// A policy is a pure function of queue and rows: no clock, no goroutine, no
// channel. A thin loop around it owns the engine, wakes when there is work,
// and never sleeps or polls. The package does not measure; it hands out the
// times at which things happened.
package scheduler

import (
	"time"

	"github.com/batchproof/batchproof/engine"
)

// Policy says how requests share the engine.
type Policy string

const (
	// Serial runs one request at a time, at width 1.
	Serial Policy = "serial"
	// Continuous fills up to MaxBatchSize rows; finished rows leave and waiting
	// requests join at any step.
	Continuous Policy = "continuous"
)

// Request is one generation.
type Request struct {
	Prompt    []int32
	MaxTokens int // at least 1
	Sampling  engine.Sampling
	EOS       []int32 // token ids that end the generation
	IgnoreEOS bool    // run to MaxTokens whatever is drawn
}

// FinishReason says why a request ended.
type FinishReason string

const (
	FinishLength    FinishReason = "length"    // MaxTokens reached
	FinishEOS       FinishReason = "eos"       // an EOS token was drawn; it is the last of Tokens
	FinishCancelled FinishReason = "cancelled" // its context ended, or the scheduler was aborted
	FinishError     FinishReason = "error"     // the engine failed
)

// Result is what a request came to. Tokens holds what was generated even if
// the request failed.
type Result struct {
	Tokens  []int32
	Reason  FinishReason
	Timings Timings
}

// Timings are the instants of one request.
type Timings struct {
	Submitted  time.Time
	Started    time.Time   // the step that took its first tokens began
	FirstToken time.Time   // the first token was drawn
	Finished   time.Time   // the last token was drawn
	Tokens     []time.Time // of each token; Tokens[0] == FirstToken
}
