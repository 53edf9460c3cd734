package report

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

const unknown = "–"

// digits prints n significant digits, without an exponent.
func digits(x float64, n int) string {
	if !known(x) {
		return unknown
	}
	_, exponent, _ := strings.Cut(strconv.FormatFloat(x, 'e', n-1, 64), "e") // after rounding
	e, _ := strconv.Atoi(exponent)
	return strconv.FormatFloat(x, 'f', min(max(n-1-e, 0), 9), 64)
}

// fixed prints so many decimals.
func fixed(x float64, decimals int) string {
	if !known(x) {
		return unknown
	}
	s := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Trim(s, "-0.") == "" {
		return strings.TrimPrefix(s, "-")
	}
	return s
}

// short prints four digits and no zeros behind them.
func short(x float64) string {
	if !known(x) {
		return unknown
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}

func ratio(x float64) string { return fixed(x, 3) }

func percent(x float64, decimals int) string {
	if !known(x) {
		return unknown
	}
	return fixed(100*x, decimals) + " %"
}

// duration prints seconds with three digits and a unit.
func duration(s float64) string {
	switch a := math.Abs(s); {
	case !known(s):
		return unknown
	case a == 0:
		return "0"
	case a >= 0.9995:
		return digits(s, 3) + " s"
	case a >= 0.9995e-3:
		return digits(1e3*s, 3) + " ms"
	default:
		return digits(1e6*s, 3) + " µs"
	}
}

// tick prints an axis value without trailing zeros.
func tick(v float64) string {
	if v == 0 { // of either sign
		return "0"
	}
	return strconv.FormatFloat(math.Round(v*1e9)/1e9, 'g', 6, 64)
}

// tickDuration prints an axis value in seconds.
func tickDuration(s float64) string {
	switch {
	case s == 0:
		return "0"
	case s >= 0.9995:
		return tick(s) + " s"
	case s >= 0.9995e-3:
		return tick(1e3*s) + " ms"
	}
	return tick(1e6*s) + " µs"
}

// distribution is what tables say of samples. Percentiles are nearest-rank.
type distribution struct {
	N                             int
	Min, P50, P95, P99, Max, Mean float64
	sorted                        []float64
}

func distribute(samples []float64) distribution {
	s := slices.Sorted(slices.Values(samples))
	d := distribution{N: len(s), sorted: s}
	if d.N == 0 {
		nan := math.NaN()
		d.Min, d.P50, d.P95, d.P99, d.Max, d.Mean = nan, nan, nan, nan, nan, nan
		return d
	}
	sum := 0.0
	for _, x := range s {
		sum += x
	}
	d.Min, d.Max, d.Mean = s[0], s[d.N-1], sum/float64(d.N)
	d.P50, d.P95, d.P99 = d.at(0.5), d.at(0.95), d.at(0.99)
	return d
}

// at is the smallest sample that at least the share p does not exceed.
func (d *distribution) at(p float64) float64 {
	i := int(math.Ceil(p*float64(d.N)-1e-9)) - 1
	return d.sorted[min(max(i, 0), d.N-1)]
}
