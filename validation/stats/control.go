package stats

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Check is the outcome of one validity rule. Value is what was measured and
// Limit what it was held against; Reason says it in words, passed or not.
type Check struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Value  float64 `json:"value"`
	Limit  float64 `json:"limit"`
	Reason string  `json:"reason"`
}

// TrendAlpha is the two-sided level of [Trend]: a session without a trend is
// called invalid once in a hundred. It is stricter than 5 % because a session
// tests one trend for each criterion.
const TrendAlpha = 0.01

// Trend tests that the ratios do not rise or fall over the run order, by the
// exact Mann–Kendall test (H. B. Mann, "Nonparametric tests against trend",
// Econometrica 13 (1945) 245–259): S is the number of pairs in rising order less
// those in falling order, and its distribution over all n! orders is counted,
// not approximated. A tie counts as neither; with ties the level is only
// smaller. Below 5 ratios the test can say nothing and passes.
//
// A session that stops early has looked at its ratios first, so the exact level
// holds only for a fixed number of blocks; by simulation it stays below 1.4 %.
func Trend(ratios []float64, alpha float64) Check {
	c := Check{Name: "trend", OK: true, Value: 1, Limit: alpha}
	if err := checkSamples("ratio", ratios); err != nil {
		return Check{Name: "trend", Value: 0, Limit: alpha, Reason: err.Error()}
	}
	n, s := len(ratios), 0
	for i := range n {
		for j := i + 1; j < n; j++ {
			switch {
			case ratios[j] > ratios[i]:
				s++
			case ratios[j] < ratios[i]:
				s--
			}
		}
	}
	c.Value = kendallP(n, s)
	c.OK = c.Value > alpha
	way := "rising"
	if s < 0 {
		way = "falling"
	}
	if c.OK {
		c.Reason = fmt.Sprintf("no trend over %d blocks (Mann–Kendall S = %d, p = %.3g, α = %.3g)", n, s, c.Value, alpha)
	} else {
		c.Reason = fmt.Sprintf("the ratio is %s over %d blocks (Mann–Kendall S = %d, p = %.3g, α = %.3g): one arm changes alone; warm up longer or find what heats or fills up",
			way, n, s, c.Value, alpha)
	}
	return c
}

// kendallP is the exact P(|S| ≥ |s|) over random orders of n distinct values.
func kendallP(n, s int) float64 {
	pairs := n * (n - 1) / 2
	// inversions[d]: probability that a random order has d falling pairs. Adding
	// the i-th value adds 0…i-1 of them, each with probability 1/i.
	inversions := make([]float64, pairs+1)
	inversions[0] = 1
	for i := 2; i <= n; i++ {
		top := i * (i - 1) / 2
		prefix := make([]float64, top+2)
		for d := range top + 1 {
			prefix[d+1] = prefix[d] + inversions[d]
		}
		for d := range top + 1 {
			inversions[d] = (prefix[d+1] - prefix[max(0, d-i+1)]) / float64(i)
		}
	}
	// S = pairs - 2 d, symmetric: double the tail with S ≥ |s|.
	p := 0.0
	for d := 0; 2*d <= pairs-max(s, -s); d++ {
		p += inversions[d]
	}
	if s == 0 {
		return 1
	}
	return min(1, 2*p)
}

// Warm says from which step on a shape may be timed. Times are cut into
// successive windows; the shape is warm after the first three windows in a row
// whose medians differ by no more than the tolerance (largest ÷ smallest ≤ 1 +
// tolerance). Three, because two equal windows happen by chance on the way down.
// Medians, because one late page fault in a window says nothing. Steps is the
// number of times used up, or 0 when the check fails.
func Warm(times []float64, window int, tolerance float64) (steps int, c Check) {
	c = Check{Name: "warm", Limit: 1 + tolerance}
	if window < 1 || !(tolerance > 0) {
		c.Reason = fmt.Sprintf("the warm-up rule needs a window of at least 1 step and a positive tolerance, not %d and %v", window, tolerance)
		return 0, c
	}
	if err := checkSamples("step time", times); err != nil {
		c.Reason = err.Error()
		return 0, c
	}
	var medians []float64
	for end := window; end <= len(times); end += window {
		medians = append(medians, Median(times[end-window:end]))
		if len(medians) < 3 {
			continue
		}
		last := medians[len(medians)-3:]
		c.Value = slices.Max(last) / slices.Min(last)
		if c.Value <= c.Limit {
			c.OK = true
			c.Reason = fmt.Sprintf("stable after %d steps: medians of three windows of %d differ by %.2g %%", end, window, (c.Value-1)*100)
			return end, c
		}
	}
	if len(medians) < 3 {
		c.Reason = fmt.Sprintf("%d steps are too few to judge the warm-up: three windows of %d are needed", len(times), window)
		return 0, c
	}
	c.Reason = fmt.Sprintf("not stable after %d steps: the medians of the last three windows of %d differ by %.3g %%, more than %.3g %%; warm up longer or quiet the machine",
		len(times), window, (c.Value-1)*100, tolerance*100)
	return 0, c
}

// A Reading is one disturbance indicator of one block: steal share, waiting
// tasks a core, loss of clock, throttle flags. Larger is worse. An indicator
// that cannot be read on this machine is left out.
type Reading struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
}

// Limits are the largest undisturbed value of each indicator, fixed before the
// first block. The rule sees readings and never a ratio or a time.
type Limits map[string]float64

// Disturbing are the readings for which a block must be discarded; none when it
// stands. A reading without a limit is only recorded; one that is not a number
// disturbs.
func (l Limits) Disturbing(readings []Reading) []Reading {
	var beyond []Reading
	for _, r := range readings {
		if limit, ok := l[r.Name]; ok && !(r.Value <= limit) {
			beyond = append(beyond, r)
		}
	}
	return beyond
}

// MaxDisturbedShare is the share of discarded blocks beyond which a session is
// invalid: a quarter, because a machine that is disturbed so often is hardly
// quiet in between.
const MaxDisturbedShare = 0.25

// Quiet applies the limits to the readings of all blocks measured, in run order.
// The check fails when more than maxShare of them had to be discarded. A limit
// that no block had a reading for is named: a rule that can never match is no
// protection. Words say why a block, of these readings, had to go.
func (l Limits) Quiet(blocks [][]Reading, maxShare float64, words func([]Reading) string) (keep []bool, c Check) {
	keep = make([]bool, len(blocks))
	c = Check{Name: "quiet", Limit: maxShare}
	discarded := 0
	example := ""
	unread := maps.Clone(l)
	for i, readings := range blocks {
		for _, r := range readings {
			delete(unread, r.Name)
		}
		keep[i] = len(l.Disturbing(readings)) == 0
		if !keep[i] {
			discarded++
			if example == "" {
				example = fmt.Sprintf("; first: block %d, %s", i+1, words(readings))
			}
		}
	}
	if len(blocks) > 0 {
		c.Value = float64(discarded) / float64(len(blocks))
	}
	c.OK = c.Value <= maxShare
	c.Reason = fmt.Sprintf("%d of %d blocks were disturbed (limit %.3g %%)%s", discarded, len(blocks), maxShare*100, example)
	if len(unread) > 0 {
		c.Reason += "; not readable here: " + strings.Join(slices.Sorted(maps.Keys(unread)), ", ")
	}
	return keep, c
}
