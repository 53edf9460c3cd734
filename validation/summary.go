package validation

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
)

// Spread sums up samples.
type Spread struct{ Avg, Median, Min, Max float64 }

func spread(xs []float64) Spread {
	if len(xs) == 0 {
		nan := math.NaN()
		return Spread{nan, nan, nan, nan}
	}
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return Spread{Avg: sum / float64(len(xs)), Median: stats.Median(xs), Min: slices.Min(xs), Max: slices.Max(xs)}
}

// ArmSummary sums up one arm over all blocks of a record.
type ArmSummary struct {
	Arm            string
	Latency, TTFT  Spread // of a request, seconds, waiting included
	RequestsPerS   float64
	TokensPerS     float64
	Gap            float64 // mean time between two tokens of a request, without the slowest tenth, seconds
	Steps          int
	Histogram      map[int]int // steps by number of rows
	MeanRows       float64     // of the steps without prompt chunks
	DecodeStep     float64     // median step without prompt chunks, seconds
	Elapsed        float64     // all seconds of the arm
	PrefillElapsed float64     // steps with prompt chunks
	DecodeElapsed  float64     // the other steps
	DecodeSteps    int
	Between        float64 // all seconds between two steps
	SchedulerCost  float64 // median time between two steps, seconds
	PlanPerStep    float64 // the same by the scheduler's own account, mean, seconds
}

// Overhead is the time that no step accounts for.
func (s *ArmSummary) Overhead() float64 { return s.Elapsed - s.PrefillElapsed - s.DecodeElapsed }

// SchedulerShare is the median time between two steps over the median step.
func (s *ArmSummary) SchedulerShare() float64 { return s.SchedulerCost / s.DecodeStep }

// Summarise sums up an arm over the blocks of a record that stand.
func Summarise(rec *Record, arm string) ArmSummary {
	s := ArmSummary{Arm: arm, Histogram: make(map[int]int)}
	var latency, ttft, gaps, decode, between []float64
	requests, tokens, decodeRows, plan := 0, 0, 0, 0.0
	for _, b := range rec.Kept() {
		run := b.Run(arm)
		if run == nil {
			continue
		}
		s.Elapsed += seconds(run.ElapsedNS)
		for j := range run.Requests {
			r := &run.Requests[j]
			requests++
			tokens += r.Count
			latency = append(latency, seconds(r.FinishedNS-r.SubmittedNS))
			for k, at := range r.TokenNS {
				if k == 0 {
					ttft = append(ttft, seconds(at-r.SubmittedNS))
				} else {
					gaps = append(gaps, seconds(at-r.TokenNS[k-1]))
				}
			}
		}
		plan += seconds(run.PlanNS)
		log := &run.Steps
		for k := range log.Len() {
			s.Steps++
			s.Histogram[log.Rows[k]]++
			d := seconds(log.DurationNS[k])
			if log.PromptRows[k] > 0 {
				s.PrefillElapsed += d
			} else {
				s.DecodeElapsed += d
				s.DecodeSteps++
				decodeRows += log.Rows[k]
				decode = append(decode, d)
			}
			if k > 0 {
				pause := seconds(log.BeginNS[k] - log.BeginNS[k-1] - log.DurationNS[k-1])
				s.Between += pause
				between = append(between, pause)
			}
		}
	}
	s.Latency, s.TTFT = spread(latency), spread(ttft)
	s.RequestsPerS, s.TokensPerS = float64(requests)/s.Elapsed, float64(tokens)/s.Elapsed
	s.Gap, s.DecodeStep, s.SchedulerCost = quietMean(gaps), stats.Median(decode), stats.Median(between)
	s.PlanPerStep = plan / float64(s.Steps)
	s.MeanRows = float64(decodeRows) / float64(s.DecodeSteps)
	return s
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

// human prints a duration with three digits, which is all that a measurement holds.
func human(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return fmt.Sprintf("%.3g s", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d)/1e6)
	default:
		return fmt.Sprintf("%.3g µs", float64(d)/1e3)
	}
}

// humanS is human for seconds, and says so when there are none.
func humanS(s float64) string {
	if math.IsNaN(s) || math.IsInf(s, 0) {
		return "unknown"
	}
	return human(time.Duration(s * 1e9))
}
