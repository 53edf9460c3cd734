package sweep

import (
	"context"
	"time"
)

// Batch is a fixed set of rows that step together. The first Step is the prefill.
type Batch interface {
	Step(ctx context.Context) error
	Close()
}

// Bench is what the measurements need.
type Bench struct {
	Open func(size int) (Batch, error) // a fresh batch
	Now  func() time.Time
	Log  func(format string, args ...any) // progress; nil for none
}

// run is the times of one batch: its prefill, then each decode step.
type run struct {
	prefill time.Duration
	decode  []time.Duration
}

// time runs a batch of a size for a number of decode steps, or until enough says so.
func (b *Bench) time(ctx context.Context, size, steps int, enough func([]time.Duration) bool) (run, error) {
	batch, err := b.Open(size)
	if err != nil {
		return run{}, err
	}
	defer batch.Close()
	r := run{decode: make([]time.Duration, 0, steps)}
	step := func() (time.Duration, error) {
		begin := b.Now()
		err := batch.Step(ctx)
		return b.Now().Sub(begin), err
	}
	if r.prefill, err = step(); err != nil {
		return r, err
	}
	for range steps {
		d, err := step()
		if err != nil {
			return r, err
		}
		r.decode = append(r.decode, d)
		if enough != nil && enough(r.decode) {
			break
		}
	}
	return r, nil
}

func (b *Bench) log(format string, args ...any) {
	if b.Log != nil {
		b.Log(format, args...)
	}
}

// MaxWarmSteps bounds the decode steps of a warm-up.
const MaxWarmSteps = 30

// A shape is warm when the medians of three windows in a row agree.
const (
	warmWindow    = 3
	warmTolerance = 0.05
)
