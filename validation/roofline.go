package validation

import (
	"math"

	"github.com/batchproof/batchproof/engine/model"
)

// Roofline is what a criterion's work must cost at least, whatever the code:
// bytes to read and write, and arithmetic. With the machine's measured rates it
// yields the floor of a step's time, and from two floors the ceiling of a ratio.
type Roofline struct {
	DecodeBytes float64 `json:"decode_bytes"` // of one serial decode step, at the mean context
	Serial      []Work  `json:"serial"`
	Batch       []Work  `json:"batch"`
	PeakFLOPs   float64 `json:"peak_flops_per_s"` // measured; 0: unknown, then arithmetic is taken to be free
}

// Work is a number of like steps.
type Work struct {
	Kind    string  `json:"kind"` // "prefill" or "decode"
	Steps   int     `json:"steps"`
	Rows    int     `json:"rows"`
	Bytes   float64 `json:"bytes"` // of one step; the next three are its parts
	Weights float64 `json:"weight_bytes"`
	KV      float64 `json:"kv_bytes"`
	State   float64 `json:"state_bytes"` // recurrent and convolution state
	FLOPs   float64 `json:"flops"`       // of one step
}

func work(kind string, steps, rows int, c model.Cost) Work {
	return Work{
		Kind: kind, Steps: steps, Rows: rows, Bytes: float64(c.Bytes()), FLOPs: float64(c.FLOPs),
		Weights: float64(c.WeightBytes), KV: float64(c.KVReadBytes + c.KVWriteBytes), State: float64(c.RecurrentBytes + c.ConvBytes),
	}
}

// StepCost is the least work of a step of rows that each add tokens to a
// context, drawing one token a row.
type StepCost func(rows, tokens, context int) model.Cost

// NewRoofline lays out the least work of both arms: the serial arm takes the
// requests one by one, the batch arm in waves as wide as it may be, each with
// all its prompts in one step.
func NewRoofline(cost StepCost, requests, promptLength, maxTokens, width int, peakFLOPs float64) *Roofline {
	wave := func(rows int) []Work {
		return []Work{
			work("prefill", 1, rows, cost(rows, promptLength, promptLength)),
			// A decode step at the mean context stands for all of them: cost is linear in it.
			work("decode", maxTokens-1, rows, cost(rows, 1, promptLength+maxTokens/2)),
		}
	}
	r := &Roofline{PeakFLOPs: peakFLOPs}
	r.Serial = wave(1)
	r.DecodeBytes = r.Serial[1].Bytes
	for i := range r.Serial {
		r.Serial[i].Steps *= requests
	}
	for left := requests; left > 0; left -= width {
		r.Batch = append(r.Batch, wave(min(left, width))...)
	}
	return r
}

// floor is the least time of some work in seconds; kind "" is all of it.
func (r *Roofline) floor(work []Work, kind string, bandwidth float64) float64 {
	total := 0.0
	for _, w := range work {
		if kind != "" && w.Kind != kind {
			continue
		}
		t := w.Bytes / bandwidth
		if r.PeakFLOPs > 0 {
			t = max(t, w.FLOPs/r.PeakFLOPs)
		}
		total += float64(w.Steps) * t
	}
	return total
}

// moved is the least and the most time, in seconds, that work may take at another
// bandwidth than that at which it took some seconds. With R = bytes ÷ the slower
// bandwidth and A = operations ÷ peak, a step changes at least by
//
//	max(0, R − A) · (1 − slower ÷ faster)
//
// which is when only those reads change beside which no arithmetic runs, and at most as
// its floor, max(R, A), does. Either can be: a core that reads at its own limit does
// not make up for the time in which it computes; where the memory is the limit, reads
// catch up. What else the work took does not change; a time below the floor, as with
// weights in caches, changes by so much less as it is below. Without a peak, arithmetic
// may run beside all reads of a step of several rows.
//
// On two EPYC cores, whose reads went at 33 and 56 GB/s (benchdata/runs), the arms
// changed by 0.97 to 1.14 times the least, which is 0.63 to 0.95 times the most.
func (r *Roofline) moved(work []Work, seconds, from, to float64) (least, most float64) {
	slow, fast := min(from, to), max(from, to)
	alone := 0.0 // reads without arithmetic beside them
	for _, w := range work {
		reads := w.Bytes / slow
		switch {
		case r.PeakFLOPs > 0:
			reads = max(0, reads-w.FLOPs/r.PeakFLOPs)
		case w.Rows > 1:
			reads = 0
		}
		alone += float64(w.Steps) * reads
	}
	part := min(1, seconds/r.floor(work, "", from))
	little := part * alone * (1 - slow/fast)
	much := part * (r.floor(work, "", slow) - r.floor(work, "", fast))
	if to > from {
		return seconds - much, seconds - little
	}
	return seconds + little, seconds + much
}

// Ceiling is the best throughput ratio that the roofline allows, with prefill
// and, beside it, of decode alone. NaN without a bandwidth.
func (r *Roofline) Ceiling(bandwidth float64) (all, decode float64) {
	if r == nil || !(bandwidth > 0) {
		return math.NaN(), math.NaN()
	}
	all = r.floor(r.Serial, "", bandwidth) / r.floor(r.Batch, "", bandwidth)
	decode = r.floor(r.Serial, "decode", bandwidth) / r.floor(r.Batch, "decode", bandwidth)
	return all, decode
}

// Share is the part of the memory roofline that decode steps of the given time
// reach: the bytes that must move, over the time, over the streaming bandwidth.
func (r *Roofline) Share(step, bandwidth float64) float64 {
	if r == nil || !(bandwidth > 0) {
		return math.NaN()
	}
	return r.DecodeBytes / step / bandwidth
}
