package stats

import (
	"fmt"
	"math"
	"slices"
)

// slack absorbs the rounding of 1-0.95 and of the log-gamma sums, so that a
// tail of exactly 1/32 is accepted at confidence 1-1/32.
const slack = 1e-9

// tail is P(Bin(n, 1/2) ≤ k).
func tail(n, k int) float64 {
	sum := 0.0
	for i := min(k, n); i >= 0; i-- {
		term := pmf(n, i)
		sum += term
		if term < sum*1e-17 { // below the middle the terms only get smaller
			break
		}
	}
	return min(sum, 1)
}

// pmf is P(Bin(n, 1/2) = k).
func pmf(n, k int) float64 {
	if n <= 60 { // exact in a float64: the binomial coefficient is below 2^57
		c := 1.0
		for i := range min(k, n-k) {
			c = c * float64(n-i) / float64(i+1)
		}
		return math.Ldexp(c, -n)
	}
	lg := func(x int) float64 { v, _ := math.Lgamma(float64(x + 1)); return v }
	return math.Exp(lg(n) - lg(k) - lg(n-k) - float64(n)*math.Ln2)
}

// Rank is the k for which the k-th smallest (largest) of n samples is a
// distribution-free lower (upper) bound of the median at the given one-sided
// confidence, as near to the middle as that confidence allows. It is 0 when n
// is too small for any bound.
func Rank(n int, confidence float64) int {
	return rank(n, 1-confidence)
}

func rank(n int, alpha float64) int {
	k, sum := 0, 0.0
	for k < (n+1)/2 {
		sum += pmf(n, k)
		if !(sum <= alpha*(1+slack)) {
			break
		}
		k++
	}
	return k
}

// Coverage is the one-sided confidence that the bound of rank k really has.
func Coverage(n, k int) float64 { return 1 - tail(n, k-1) }

// MinSamples is the smallest n with a finite bound at the one-sided confidence.
func MinSamples(confidence float64) int {
	if !(confidence < 1) {
		panic(fmt.Sprintf("stats: confidence %v is not below 1", confidence))
	}
	n := 1
	for Rank(n, confidence) == 0 {
		n++
	}
	return n
}

// Median is the middle sample, or the mean of the middle two. It is NaN for no
// samples. Samples may be in any order and are not changed.
func Median(samples []float64) float64 {
	return median(sorted(samples))
}

func sorted(samples []float64) []float64 {
	s := slices.Clone(samples)
	slices.Sort(s)
	return s
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	if n%2 == 1 {
		return sorted[n/2]
	}
	return sorted[n/2-1] + (sorted[n/2]-sorted[n/2-1])/2
}

// An Interval is a two-sided distribution-free interval of the median. Coverage
// is the confidence it really has: at least the one asked for, or 1 with
// infinite ends when there are too few samples.
type Interval struct {
	Median, Lower, Upper float64
	Coverage             float64
	N                    int
}

// MedianInterval gives each side half of the error. It is for a number of
// samples that was fixed beforehand; a sequence of looks needs a [Plan].
func MedianInterval(samples []float64, confidence float64) Interval {
	s := sorted(samples)
	n := len(s)
	k := Rank(n, (1+confidence)/2)
	lower, upper := bounds(s, k)
	return Interval{median(s), lower, upper, 1 - 2*tail(n, k-1), n}
}

// bounds are the k-th smallest and the k-th largest, infinite for k = 0.
func bounds(sorted []float64, k int) (lower, upper float64) {
	if k == 0 {
		return math.Inf(-1), math.Inf(1)
	}
	return sorted[k-1], sorted[len(sorted)-k]
}

// checkSamples names the first sample that cannot be a ratio or a time.
func checkSamples(what string, samples []float64) error {
	for i, v := range samples {
		if math.IsNaN(v) || math.IsInf(v, 0) || v <= 0 {
			return fmt.Errorf("%s %d of %d is %v, not a finite positive number", what, i+1, len(samples), v)
		}
	}
	return nil
}
