package validation

import (
	"time"

	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/scheduler/serving"
)

// ServingRecord holds the samples of the serving scenario.
type ServingRecord struct {
	Model       ModelInfo    `json:"model"`
	Calibration Calibration  `json:"calibration"`
	Rate        float64      `json:"rate_rps"`
	Constant    bool         `json:"constant_rate"`
	Prompts     Lengths      `json:"prompts"`
	Tokens      Lengths      `json:"tokens"`
	SLO         serving.SLO  `json:"slo"`
	Requests    int          `json:"requests"` // of a run
	Arms        []ServingArm `json:"arms"`
	Runs        []ServingRun `json:"runs"`
}

// ServingRun is one set of arrivals, served by every arm.
type ServingRun struct {
	Seed        uint64          `json:"seed"`
	Order       []int           `json:"order"` // in which the arms took turns
	Arms        []ServingArmRun `json:"arms"`
	OtherTokens map[string]int  `json:"other_tokens,omitempty"` // by arm with other prompt chunks: requests that drew other tokens
}

// ServingArmRun is one arm's share of a run; all instants count from its start.
type ServingArmRun struct {
	Arm       string          `json:"arm"`
	ElapsedNS int64           `json:"elapsed_ns"`
	Requests  []ServedRequest `json:"requests"`
	Steps     StepLog         `json:"steps"`
	PlanNS    int64           `json:"plan_ns"`
}

// ServedRequest is what one caller got.
type ServedRequest struct {
	RequestRun
	ArrivalNS    int64 `json:"arrival_ns"` // when it was to be submitted
	ReturnedNS   int64 `json:"returned_ns"`
	PromptTokens int   `json:"prompt_tokens"`
}

// served turns an outcome into what is kept of it.
func (o *ArmOutcome) served(arm string, arrivals []scheduler.Arrival, requests []scheduler.Request) ServingArmRun {
	run := o.record(arm, requests)
	kept := ServingArmRun{Arm: arm, ElapsedNS: run.ElapsedNS, Steps: run.Steps, PlanNS: run.PlanNS, Requests: make([]ServedRequest, len(arrivals))}
	for i := range arrivals {
		kept.Requests[i] = ServedRequest{
			RequestRun: run.Requests[i], ArrivalNS: int64(arrivals[i].At),
			ReturnedNS: int64(o.Requests[i].Timings.Returned.Sub(o.Begin)), PromptTokens: len(requests[i].Prompt),
		}
	}
	return kept
}

// Latencies are what the callers of an arm felt. The runs are laid end to end,
// so that rates are over the time of all of them.
func (r *ServingRecord) Latencies(arm int) *serving.Latencies {
	l := &serving.Latencies{SLO: r.SLO}
	base := time.Unix(0, 0)
	for i := range r.Runs {
		requests := r.Runs[i].Arms[arm].Requests
		at := func(ns int64) time.Time { return base.Add(time.Duration(ns - requests[0].SubmittedNS)) }
		end := base
		for k := range requests {
			q := &requests[k]
			res := scheduler.Result{Tokens: make([]int32, q.Count), Timings: scheduler.Timings{
				Submitted: at(q.SubmittedNS), Returned: at(q.ReturnedNS), Tokens: make([]time.Time, q.Count),
			}}
			for n, ns := range q.TokenNS {
				res.Timings.Tokens[n] = at(ns)
			}
			res.Timings.FirstToken = res.Timings.Tokens[0]
			l.Add(&res, nil)
			if at(q.ReturnedNS).After(end) {
				end = at(q.ReturnedNS)
			}
		}
		base = end
	}
	return l
}

// Offered is the rate at which an arm's requests really came, and the longest
// time that one was late: the load is open only if the loader keeps up.
func (r *ServingRecord) Offered(arm int) (rate float64, late time.Duration) {
	gaps, span := 0, int64(0)
	for i := range r.Runs {
		requests := r.Runs[i].Arms[arm].Requests
		first, last := requests[0].SubmittedNS, requests[len(requests)-1].SubmittedNS
		gaps += len(requests) - 1
		span += last - first
		for k := range requests {
			late = max(late, time.Duration(requests[k].SubmittedNS-first-requests[k].ArrivalNS))
		}
	}
	return float64(gaps) / time.Duration(span).Seconds(), late
}

// ServingPlan is what a simulation over fitted step costs says of sizes that
// were not run.
type ServingPlan struct {
	Model     ModelInfo     `json:"model"`
	Steps     int           `json:"steps"` // that the cost was fitted to
	StepNS    int64         `json:"step_ns"`
	RowNS     int64         `json:"row_ns"`     // for each token of a row
	ContextNS int64         `json:"context_ns"` // for each position that a row holds
	Residual  float64       `json:"residual"`   // root mean square, as a share of the mean step
	Requests  int           `json:"requests"`
	SLO       serving.SLO   `json:"slo"`
	Sizes     []PlannedSize `json:"sizes"`
}

// PlannedSize is one policy at one size; the figures are named as in the CSV.
type PlannedSize struct {
	MaxBatchSize int                `json:"max_batch_size"`
	Policy       scheduler.Policy   `json:"policy"`
	Figures      map[string]float64 `json:"figures"`
}
