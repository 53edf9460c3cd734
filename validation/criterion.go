package validation

import (
	"fmt"
	"math"
	"slices"
)

// The arms of a block. The control is a second serial arm: its ratio to the
// first shows what the machine alone does to a ratio.
const (
	ArmSerial  = "serial"
	ArmBatch   = "batch"
	ArmControl = "control"
)

// Criterion is one question with its rule.
type Criterion struct {
	Family     string  `json:"family"` // FamilyLatency or FamilyThroughput
	Concurrent int     `json:"concurrent"`
	Target     float64 `json:"target,omitempty"` // 0: measured without a rule
}

const (
	FamilyLatency    = "latency"
	FamilyThroughput = "throughput"
	FamilyControl    = "control" // lone requests without a rule, see Session.control
)

// throughputTargets are the ratios that batching must reach, by concurrency.
var throughputTargets = map[int]float64{2: 1.7, 4: 3.0, 8: 4.5}

// LatencyCriterion asks whether batch mode costs a lone request anything.
func LatencyCriterion() Criterion {
	return Criterion{Family: FamilyLatency, Concurrent: 1, Target: 1.05}
}

// ThroughputCriterion asks what batching gains for n concurrent requests.
// Only the specified levels have a rule.
func ThroughputCriterion(n int) Criterion {
	return Criterion{Family: FamilyThroughput, Concurrent: n, Target: throughputTargets[n]}
}

// Criteria are the four with a rule, in the order of the final table.
func Criteria() []Criterion {
	all := []Criterion{LatencyCriterion()}
	levels := make([]int, 0, len(throughputTargets))
	for n := range throughputTargets {
		levels = append(levels, n)
	}
	slices.Sort(levels)
	for _, n := range levels {
		all = append(all, ThroughputCriterion(n))
	}
	return all
}

// Lower says that the ratio is one of times, which a target bounds from above.
func (c Criterion) Lower() bool { return c.Family != FamilyThroughput }

func (c Criterion) String() string {
	switch c.Family {
	case FamilyLatency:
		return "single-request latency"
	case FamilyControl:
		return "control of the session"
	}
	return fmt.Sprintf("throughput, %d concurrent", c.Concurrent)
}

// Rule is the target in words, such as "≥ 1.70".
func (c Criterion) Rule() string {
	switch {
	case c.Target == 0:
		return "none"
	case c.Lower():
		return fmt.Sprintf("≤ %.2f", c.Target)
	}
	return fmt.Sprintf("≥ %.2f", c.Target)
}

// Ratio is what one block yields for an arm against the reference arm: batch ÷
// serial of the latency, or of the requests per second. Both arms ran the same
// requests, so the second is the inverse ratio of their times.
func (c Criterion) Ratio(reference, arm *ArmRun) float64 {
	if len(reference.Requests) == 0 || len(arm.Requests) == 0 {
		return math.NaN() // dropped; the rules of evidence have more to say
	}
	if c.Lower() {
		return float64(arm.Requests[0].FinishedNS) / float64(reference.Requests[0].FinishedNS)
	}
	return float64(reference.ElapsedNS) / float64(arm.ElapsedNS)
}
