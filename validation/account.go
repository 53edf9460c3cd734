package validation

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Account says where the ratio went: from the ideal (as many as there are
// concurrent requests) down to the ceiling, and from the ceiling to what was
// measured.
//
// The first way is arithmetic. With the floors of both arms' work, S₀ and B₀
// seconds, the ceiling is S₀/B₀, and the batch arm would reach the ideal n in
// S₀/n. Each kind of work k costs it b(k) − s(k)/n more; these sum to B₀ − S₀/n,
// and in proportion to n − S₀/B₀. What every row brings of its own (keys and
// values, recurrent state, arithmetic that outlasts the reads) is paid here.
//
// The second way is measured. Were the batch arm as near to its floor as the
// serial arm is to its own, it would take B₀·S/S₀ and reach the ceiling. Beyond
// that, the meter's times are charged: decode steps, prefill, the time between
// steps, steps that a fuller batch would not have needed. The decode steps'
// excess is charged to arithmetic as far as arithmetic could explain it if it
// did not hide behind the reads at all, and to the weights, read again or read
// slowly at this width, beyond. The rest is lead-in, tail, and what separates
// the median of the blocks from their sum; it makes the parts sum exactly.
//
// A part can be negative: then the batch arm does better there than the serial
// arm, measured by their floors.
type Account struct {
	Ideal    float64 `json:"ideal"`
	Ceiling  float64 `json:"ceiling"`
	Measured float64 `json:"measured"`
	Parts    []Part  `json:"parts"`
}

// Part is the ratio that one cause takes.
type Part struct {
	Name   string  `json:"name"`
	Floor  float64 `json:"floor"`  // between ideal and ceiling: lost on this machine, whatever the code
	Excess float64 `json:"excess"` // between ceiling and measured
	Words  string  `json:"words"`  // what to do about the excess
}

// The parts of an account.
const (
	partWeights    = "weights"
	partKV         = "KV"
	partState      = "recurrent state"
	partArithmetic = "arithmetic"
	partPrefill    = "prefill"
	partScheduler  = "scheduler"
	partWaiting    = "waiting"
	partRest       = "the rest"
)

// account is nil where there is no ceiling, or nothing was measured.
func account(j *Judgement) *Account {
	rec, r := j.Record, j.Record.Roofline
	if rec.Criterion.Lower() || !known(j.Ceiling) || !known(j.Ratio.Median) {
		return nil
	}
	a := &Account{Ideal: float64(rec.Criterion.Concurrent), Ceiling: j.Ceiling, Measured: j.Ratio.Median}
	for _, name := range []string{partWeights, partKV, partState, partArithmetic, partPrefill, partScheduler, partWaiting, partRest} {
		a.Parts = append(a.Parts, Part{Name: name})
	}
	s, b := r.parts(r.Serial, j.Bandwidth), r.parts(r.Batch, j.Bandwidth)
	floorS, floorB := sum(s), sum(b)
	for i := range a.Parts {
		p := &a.Parts[i]
		p.Floor = a.Ideal * (b[p.Name] - s[p.Name]/a.Ideal) / floorB
	}

	serial, batch := &j.Serial, &j.Batch
	blocks := float64(len(rec.Kept()))
	allow := serial.Elapsed / floorS // seconds of the batch arm for a second of its floor, all blocks
	waves := 0
	for _, w := range r.Batch {
		if w.Kind == "decode" {
			waves++
		}
	}
	full := blocks * float64(waves*(rec.MaxTokens-1))
	waiting := max(0, float64(batch.DecodeSteps)-full) * batch.DecodeStep
	steps := batch.DecodeElapsed - waiting - (floorB-b[partPrefill])*allow
	hidden := 0.0 // arithmetic that the floor takes to happen behind the reads
	for _, w := range r.Batch {
		if w.Kind == "decode" && r.PeakFLOPs > 0 {
			hidden += float64(w.Steps) * min(w.FLOPs/r.PeakFLOPs, w.Bytes/j.Bandwidth) * blocks
		}
	}
	arithmetic := min(max(steps, 0), hidden)
	excess := map[string]float64{
		partWeights: steps - arithmetic, partArithmetic: arithmetic, partWaiting: waiting,
		partPrefill: batch.PrefillElapsed - b[partPrefill]*allow, partScheduler: batch.Between,
	}
	words := j.words()
	left := a.Ceiling - a.Measured
	for i := range a.Parts {
		p := &a.Parts[i]
		p.Excess, p.Words = a.Ceiling*excess[p.Name]/batch.Elapsed, words[p.Name]
		left -= p.Excess
	}
	a.Parts[len(a.Parts)-1].Excess = left // seconds outside of steps, and median against mean
	return a
}

// parts are the seconds of the floor of some work, by kind. Memory and
// arithmetic overlap, so arithmetic is only what it takes beyond memory.
func (r *Roofline) parts(work []Work, bandwidth float64) map[string]float64 {
	sums := make(map[string]float64)
	for _, w := range work {
		n := float64(w.Steps)
		memory := w.Bytes / bandwidth
		beyond := 0.0
		if r.PeakFLOPs > 0 {
			beyond = max(0, w.FLOPs/r.PeakFLOPs-memory)
		}
		if w.Kind == "prefill" {
			sums[partPrefill] += n * (memory + beyond)
			continue
		}
		sums[partArithmetic] += n * beyond
		sums[partWeights] += n * w.Weights / bandwidth
		sums[partKV] += n * w.KV / bandwidth
		sums[partState] += n * w.State / bandwidth
	}
	return sums
}

// sum adds in a fixed order, so that a judgement is the same bit for bit.
func sum(parts map[string]float64) float64 {
	total := 0.0
	for _, name := range []string{partWeights, partKV, partState, partArithmetic, partPrefill} {
		total += parts[name]
	}
	return total
}

// Largest is the part with the largest excess, or nil if none is positive.
func (a *Account) Largest() *Part {
	p := slices.MaxFunc(a.Parts, func(x, y Part) int {
		switch {
		case x.Excess < y.Excess:
			return -1
		case x.Excess > y.Excess:
			return 1
		}
		return 0
	})
	if !(p.Excess > 0) {
		return nil
	}
	return &p
}

// largestFloor is the part that takes most from the ideal.
func (a *Account) largestFloor() string {
	best := 0
	for i := range a.Parts {
		if a.Parts[i].Floor > a.Parts[best].Floor {
			best = i
		}
	}
	return a.Parts[best].Name
}

func (a *Account) text() string {
	way := func(part func(*Part) float64) string {
		var parts []string
		for i := range a.Parts {
			if v := part(&a.Parts[i]); math.Abs(v) >= 0.005 {
				parts = append(parts, fmt.Sprintf("%s %+.2f", a.Parts[i].Name, -v))
			}
		}
		if len(parts) == 0 {
			return "nothing"
		}
		return strings.Join(parts, ", ")
	}
	text := fmt.Sprintf("%.0f ideal; %s; ceiling %.2f; %s; measured %.2f", a.Ideal,
		way(func(p *Part) float64 { return p.Floor }), a.Ceiling, way(func(p *Part) float64 { return p.Excess }), a.Measured)
	if p := a.Largest(); p != nil && p.Words != "" && p.Excess >= 0.005 {
		text += "; most by " + p.Name + ": " + p.Words
	}
	return text
}
