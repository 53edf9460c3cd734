package report

import (
	"math"
	"time"
)

// View is all that a report shows, in plain numbers. What is not known is NaN,
// and what was not measured is empty: it is then left out of the report.
type View struct {
	Started     time.Time
	Finished    time.Time // zero: the run did not end
	Interrupted bool

	Model      string   // what was measured, in a few words
	Machine    string   // and on what
	Deviations []string // from the specified parameters
	Facts      []Fact   // all else that a reader may ask for

	Criteria   []Criterion
	StepTimes  []StepTime
	Floors     []Floor
	Sweep      *Sweep
	Blocking   *Blocking
	Comparison *Comparison
	Serving    *Serving
	Plan       *Plan
}

// Fact is a name and what it stands for.
type Fact struct{ Name, Value string }

// Criterion is one question with its verdict and what that rests on.
type Criterion struct {
	Name    string
	Verdict string // PASS, FAIL, INCONCLUSIVE, INVALID, MEASURED; "" if it was not measured
	Reason  string
	Cause   string   // of a FAIL, and what to do
	Notes   []string // further reasons
	Added   string   // what blocks beyond the plan show; "" without any

	AtMost       bool    // the target is an upper limit
	Target       float64 // NaN: there is no rule
	Ratio        float64
	Lower, Upper float64 // one-sided bounds; NaN or infinite: there is none
	Confidence   float64 // of each bound
	Ceiling      float64
	SerialShare  float64 // of the memory roofline
	Unit         string  // of the next two
	Serial       float64
	Batch        float64

	Blocks  []Block // in run order
	Missing *Missing
	Arms    []Arm
}

// Measured says that there is a ratio to show.
func (c *Criterion) Measured() bool { return known(c.Ratio) }

// Ruled says that there is a target.
func (c *Criterion) Ruled() bool { return known(c.Target) }

// Block is one interleaved measurement.
type Block struct {
	Number  int    // from 1
	First   string // the arm that ran first
	Ratio   float64
	Control float64 // the ratio of an arm to itself; NaN: there was none
	LeftOut string  // why the block is left out of the criterion's ratio; "" if it is not
}

// Missing leads from the ideal ratio, one for each request, by the ceiling down
// to the measured one.
type Missing struct {
	Ideal, Ceiling, Measured float64
	Parts                    []Part
}

// Part is the ratio that one cause takes; negative if it gives some.
type Part struct {
	Name   string
	Floor  float64 // between the ideal and the ceiling
	Excess float64 // between the ceiling and what was measured
	Words  string  // what to do about the excess
}

// Arm is one way to serve, by its samples.
type Arm struct {
	Name  string
	TTFT  []float64 // seconds, of each request
	ITL   []float64 // seconds, of each token but the first
	Steps []Step
}

// Step is one pass over the model.
type Step struct {
	At, Seconds float64 // when it began, since its run began; how long it took
	Rows        int
}

// StepTime is the times of decode steps of one width.
type StepTime struct {
	Source  string
	Rows    int
	Seconds []float64
}

// Floor is the least time of a decode step on this machine, by bytes and arithmetic.
type Floor struct {
	Rows    int
	Seconds float64
}

// Sweep is what one more row in a step buys.
type Sweep struct {
	Model          string
	Points         []SweepPoint
	Knee           int // 0: there is none
	KneeEfficiency float64
}

// SweepPoint is one batch size.
type SweepPoint struct {
	Rows       int
	StepMS     float64 // median
	MinMS      float64
	P95MS      float64
	Goodput    float64 // tokens/s
	Speedup    float64
	Efficiency float64
	Ceiling    float64 // of the speed-up
}

// Blocking is a fixed batch whose rows wait for the longest.
type Blocking struct {
	Model   string
	Prefill float64   // seconds
	Steps   []float64 // seconds, of decode steps
	Tokens  []int     // of each row; a row takes one decode step less
	Issued  int
	Useful  int
	Waste   float64
	Goodput float64 // tokens/s
}

// Comparison sets continuous batching against static batching.
type Comparison struct {
	Requests, Blocks int
	Metrics          []Metric
}

// Metric is a figure of both.
type Metric struct {
	Name                      string
	Static, Continuous, Ratio float64
}

// Serving is the same arrivals served in several ways.
type Serving struct {
	Load   string // in words
	Limits string // "
	Model  string
	TTFT   float64 // the limit, in seconds; NaN for none
	Arms   []ServingArm
}

// ServingArm is one way to serve arrivals.
type ServingArm struct {
	Arm
	Rates
}

// Rates are what arrivals asked for and what became of them.
type Rates struct {
	Offered, Throughput, Goodput float64 // requests/s
	Share                        float64 // of requests within all limits
	TokensPerS                   float64
}

// Plan is what a simulation over fitted step costs says of sizes.
type Plan struct {
	Model, Cost  string // in words
	Load, Limits string // "
	Fitted       int    // rows up to which the cost was seen; 0: not known
	Sizes        []PlanSize
}

// PlanSize is one policy at one size.
type PlanSize struct {
	Rows int
	Name string // of the policy
	Rates
	TTFT50, TTFT95, TPOT95 float64 // seconds
}

func known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
