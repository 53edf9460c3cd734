package engine

import (
	"errors"

	"github.com/batchproof/batchproof/engine/kv"
)

// Sentinel errors; what is returned wraps one of these with the numbers.
var (
	// ErrTooManySequences says that every sequence slot is taken.
	ErrTooManySequences = errors.New("too many sequences")
	// ErrContextFull says that a sequence would grow past the context.
	ErrContextFull = errors.New("context full")
	// ErrStepTooLarge says that a step has more tokens or rows than the engine was made for.
	ErrStepTooLarge = errors.New("step too large")
	// ErrToken says that a token id is outside the vocabulary.
	ErrToken = errors.New("token id out of range")
	// ErrBatch says that a batch is malformed: empty, or a sequence twice, foreign or closed.
	ErrBatch = errors.New("malformed batch")
	// ErrBusy says that a step is under way.
	ErrBusy = errors.New("a step is under way")
	// ErrExhausted says that there are too few free KV blocks for a step.
	ErrExhausted = kv.ErrExhausted
)
