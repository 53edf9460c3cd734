package validation

import (
	"slices"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
	"github.com/batchproof/batchproof/validation/sweep"
)

// SchemaVersion counts the incompatible changes of results.json.
const SchemaVersion = 3

// Results is the content of results.json: everything a verdict rests on. All
// instants of a run are nanoseconds since its arm began; all else has its unit
// in its name.
type Results struct {
	Schema      int            `json:"schema"`
	Started     time.Time      `json:"started"`
	Finished    *time.Time     `json:"finished,omitempty"` // absent while running, and if the run died
	Interrupted bool           `json:"interrupted,omitempty"`
	Environment Environment    `json:"environment"`
	Model       *ModelInfo     `json:"model,omitempty"` // of the criteria
	Options     Options        `json:"options"`
	Criteria    []*Record      `json:"criteria"`
	Control     *Record        `json:"control,omitempty"` // lone requests, where no latency criterion had controlled the session
	Sweep       *SweepRecord   `json:"sweep,omitempty"`
	Serving     *ServingRecord `json:"serving,omitempty"`
	Plan        *ServingPlan   `json:"serving_plan,omitempty"`
}

// SweepRecord holds the samples of static batching.
type SweepRecord struct {
	Model      ModelInfo       `json:"model"`
	Sweep      *sweep.Sweep    `json:"sizes,omitempty"`
	Limits     *SweepLimits    `json:"limits,omitempty"` // of the sizes
	Blocking   *sweep.Blocking `json:"blocking,omitempty"`
	Comparison *Comparison     `json:"continuous_against_static,omitempty"`
}

// Record holds the samples of one criterion.
type Record struct {
	Criterion    Criterion  `json:"criterion"`
	PromptLength int        `json:"prompt_length"`
	MaxTokens    int        `json:"max_tokens"`
	MaxBatchSize int        `json:"max_batch_size"`
	Seed         uint64     `json:"seed"`
	Rules        Rules      `json:"rules"`
	Turns        string     `json:"turns"`          // how the arms of a block shared the machine
	Warmups      int        `json:"warmups"`        // at least
	Planned      int        `json:"planned_blocks"` // at most, disturbed ones not counted
	Plan         stats.Plan `json:"plan"`           // without looks where no bound is possible
	ControlPlan  stats.Plan `json:"control_plan"`
	Roofline     *Roofline  `json:"roofline,omitempty"`
	Control      *Control   `json:"session_control,omitempty"` // of the session, for a criterion without a control arm
	WarmupBlocks []Block    `json:"warmup_blocks"`
	Blocks       []Block    `json:"blocks"`                       // as measured, disturbed ones included
	OtherSpeed   []Block    `json:"other_speed_blocks,omitempty"` // added for the ratio at another speed alone, see ranAt; disturbed ones included
	TimeUp       bool       `json:"time_up,omitempty"`            // ended by -time-limit
	Problems     []Problem  `json:"problems,omitempty"`

	speeds []float64 // bandwidths of all blocks of the session, see shareSpeeds
}

// Control is what lone requests showed: the ratios to the serial arm of the
// serial arm again, and of the batch arm.
type Control struct {
	Serial      []float64  `json:"serial"`
	Batch       []float64  `json:"batch"`
	Plan        stats.Plan `json:"plan"`              // of Batch
	ControlPlan stats.Plan `json:"control_plan"`      // of Serial
	Invalid     string     `json:"invalid,omitempty"` // why it cannot be used
}

// control is what the A/A check of a record rests on; nil if there is nothing.
func (r *Record) control() *Control {
	if ratios := r.Ratios(ArmControl); len(ratios) > 0 {
		return &Control{Serial: ratios, Batch: r.Ratios(ArmBatch), Plan: r.Plan, ControlPlan: r.ControlPlan}
	}
	return r.Control
}

// Kept are the blocks of the plan that stand: those not disturbed, in run order.
func (r *Record) Kept() []*Block { return r.undisturbed(r.Blocks) }

func (r *Record) undisturbed(blocks []Block) []*Block {
	kept := make([]*Block, 0, len(blocks))
	for i := range blocks {
		if len(r.Rules.QuietLimits.Disturbing(blocks[i].Readings)) == 0 {
			kept = append(kept, &blocks[i])
		}
	}
	return kept
}

// bandwidth is the rate at which the machine read memory between the turns of
// the blocks that stand. 0 if nothing was probed.
func (r *Record) bandwidth() float64 {
	var probes []float64
	for _, b := range r.Kept() {
		probes = append(probes, b.Probes...)
	}
	return meanRate(probes)
}

// bandwidths are those of the single blocks that stand.
func (r *Record) bandwidths() []float64 {
	var rates []float64
	for _, b := range r.Kept() {
		if rate := meanRate(b.Probes); rate > 0 {
			rates = append(rates, rate)
		}
	}
	return rates
}

// shareSpeeds tells each record of a session how fast the memory was in all of
// them. Added blocks do not count: a question may not change while it is answered.
func (r *Results) shareSpeeds() {
	var all []float64
	for _, rec := range append(slices.Clone(r.Criteria), r.Control) {
		if rec != nil {
			all = append(all, rec.bandwidths()...)
		}
	}
	for _, rec := range r.Criteria {
		rec.speeds = all
	}
}

// meanRate is the rate of probes of equal size taken together: all bytes over all
// time, the slowest tenth of the time spans left out. 0 of none.
func meanRate(rates []float64) float64 {
	if len(rates) == 0 {
		return 0
	}
	spans := make([]float64, len(rates))
	for i, r := range rates {
		spans[i] = 1 / r
	}
	return 1 / quietMean(spans)
}

// quietMean is the mean without the largest tenth: the time spans in which the
// processor was taken away say nothing of the memory. NaN of none.
func quietMean(spans []float64) float64 {
	spans = slices.Sorted(slices.Values(spans))
	return spread(spans[:len(spans)-len(spans)/10]).Avg
}

// Block is one interleaved measurement. It yields one ratio.
type Block struct {
	Index    int             `json:"index"` // from 0, its place in the plan of orders; a disturbed block is repeated at the same place
	Started  time.Time       `json:"started"`
	Probes   []float64       `json:"probes_bytes_per_s,omitempty"` // read bandwidth between turns; absent if it was not probed
	Readings []stats.Reading `json:"readings,omitempty"`           // of disturbance, while the arms ran
	Arms     []ArmRun        `json:"arms"`                         // in the order of their first turns
}

// ArmRun is one arm's share of a block.
type ArmRun struct {
	Arm       string       `json:"arm"`
	ElapsedNS int64        `json:"elapsed_ns"` // first submission to last result
	Requests  []RequestRun `json:"requests"`
	Steps     StepLog      `json:"steps"`
	PlanNS    int64        `json:"plan_ns"` // the scheduler's own account of its time between steps
}

// RequestRun is one timed request. Prompt and tokens are kept as digests: they
// prove equality, and the seed brings the prompts back.
type RequestRun struct {
	Prompt      string  `json:"prompt"`
	Tokens      string  `json:"tokens"`
	Count       int     `json:"count"`
	Reason      string  `json:"reason"`
	Error       string  `json:"error,omitempty"`
	SubmittedNS int64   `json:"submitted_ns"`
	StartedNS   int64   `json:"started_ns"`
	FinishedNS  int64   `json:"finished_ns"`
	TokenNS     []int64 `json:"token_ns"` // when each token was drawn
}

// StepLog is what the meter saw of the engine's steps, in columns.
type StepLog struct {
	BeginNS    []int64 `json:"begin_ns"`
	DurationNS []int64 `json:"duration_ns"`
	Rows       []int   `json:"rows"`
	PromptRows []int   `json:"prompt_rows"`
	Tokens     []int   `json:"tokens"`
	Drawn      []int   `json:"drawn"`
}

// Len is the number of steps.
func (l *StepLog) Len() int { return len(l.DurationNS) }

// Problem is a reason why the evidence may not be used.
type Problem struct {
	Rule   string `json:"rule"`
	Where  string `json:"where"`
	Detail string `json:"detail"`
}

func (p Problem) String() string { return p.Rule + ": " + p.Where + ": " + p.Detail }

// Run finds an arm's run in a block, or nil.
func (b *Block) Run(arm string) *ArmRun {
	for i := range b.Arms {
		if b.Arms[i].Arm == arm {
			return &b.Arms[i]
		}
	}
	return nil
}

// Ratios are the ratios of an arm to the serial arm, one for each undisturbed
// block that has both.
func (r *Record) Ratios(arm string) []float64 { return r.Criterion.ratios(r.Kept(), arm) }

func (c Criterion) ratios(blocks []*Block, arm string) []float64 {
	var ratios []float64
	for _, b := range blocks {
		reference, run := b.Run(ArmSerial), b.Run(arm)
		if reference != nil && run != nil {
			ratios = append(ratios, c.Ratio(reference, run))
		}
	}
	return ratios
}
