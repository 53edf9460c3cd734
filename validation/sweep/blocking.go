package sweep

import (
	"context"
	"fmt"
	"time"
)

// Blocking is the times of one static batch whose first row is long and whose
// other rows are short.
type Blocking struct {
	BatchSize   int     `json:"batch_size"`
	LongTokens  int     `json:"long_tokens"`
	ShortTokens int     `json:"short_tokens"`
	Warm        string  `json:"warm"`
	PrefillNS   int64   `json:"prefill_ns"`
	StepNS      []int64 `json:"step_ns"` // of decode steps
}

// RunBlocking measures one batch. Every row is computed in every step until the
// long one is done: a finished row keeps its place, and every forward is real.
func RunBlocking(ctx context.Context, b *Bench, size, long, short int) (*Blocking, error) {
	warm, err := b.warm(ctx, size)
	if err != nil {
		return nil, fmt.Errorf("batch size %d, warm-up: %w", size, err)
	}
	b.log("blocking: batch size %d: %s", size, warm)
	r, err := b.time(ctx, size, long-1, nil)
	if err != nil {
		return nil, fmt.Errorf("batch size %d: %w", size, err)
	}
	out := &Blocking{BatchSize: size, LongTokens: long, ShortTokens: short, Warm: warm, PrefillNS: int64(r.prefill)}
	for _, d := range r.decode {
		out.StepNS = append(out.StepNS, int64(d))
	}
	return out, nil
}

// Cost is what the blocking run comes to.
type Cost struct {
	Issued, Useful int
	Waste          float64
	Goodput        float64 // tokens/s of decode
	IssuedRate     float64 // "
	EndToEnd       float64 // tokens/s, prefill and first tokens included
	Total          time.Duration
	MaxDelay       time.Duration
	MaxInflation   float64
}

// Cost sums the samples up.
func (b *Blocking) Cost() Cost {
	rows := b.tokens()
	prefill := time.Duration(b.PrefillNS)
	finish := make([]time.Duration, len(b.StepNS)+1) // after so many decode steps
	finish[0] = prefill
	for i, ns := range b.StepNS {
		finish[i+1] = finish[i] + time.Duration(ns)
	}
	c := Cost{Issued: b.BatchSize * len(b.StepNS), Total: finish[len(b.StepNS)]}
	for _, tokens := range rows {
		c.Useful += tokens - 1
		done := finish[tokens-1]
		c.MaxDelay = max(c.MaxDelay, c.Total-done)
		c.MaxInflation = max(c.MaxInflation, c.Total.Seconds()/done.Seconds())
	}
	decode := (c.Total - prefill).Seconds()
	c.Waste = float64(c.Issued-c.Useful) / float64(c.Issued)
	c.Goodput, c.IssuedRate = float64(c.Useful)/decode, float64(c.Issued)/decode
	c.EndToEnd = float64(c.Useful+b.BatchSize) / c.Total.Seconds()
	return c
}

// tokens is how many each row generates.
func (b *Blocking) tokens() []int {
	rows := make([]int, b.BatchSize)
	for i := range rows {
		rows[i] = b.ShortTokens
	}
	rows[0] = b.LongTokens
	return rows
}
