package validation

import (
	"time"

	"github.com/batchproof/batchproof/validation/stats"
	"github.com/batchproof/batchproof/validation/sweep"
)

// SchemaVersion counts the incompatible changes of results.json.
const SchemaVersion = 1

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
	Sweep       *SweepRecord   `json:"sweep,omitempty"`
	Serving     *ServingRecord `json:"serving,omitempty"`
	Plan        *ServingPlan   `json:"serving_plan,omitempty"`
}

// SweepRecord holds the samples of static batching.
type SweepRecord struct {
	Model      ModelInfo       `json:"model"`
	Sweep      *sweep.Sweep    `json:"sizes,omitempty"`
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
	Warmups      int        `json:"warmups"`
	Planned      int        `json:"planned_blocks"` // at most
	Plan         stats.Plan `json:"plan"`           // without looks where no bound is possible
	ControlPlan  stats.Plan `json:"control_plan"`
	Roofline     *Roofline  `json:"roofline,omitempty"`
	Blocks       []Block    `json:"blocks"`
	Problems     []Problem  `json:"problems,omitempty"`
}

// Block is one interleaved measurement. It yields one ratio.
type Block struct {
	Index         int       `json:"index"` // from 0
	Started       time.Time `json:"started"`
	ReadBandwidth float64   `json:"read_bandwidth_bytes_per_s,omitempty"` // probed just before the arms; absent if it was not
	Arms          []ArmRun  `json:"arms"`                                 // in the order in which they ran
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

// Ratios are the ratios of an arm to the serial arm, one for each block that has both.
func (r *Record) Ratios(arm string) []float64 {
	var ratios []float64
	for i := range r.Blocks {
		reference, run := r.Blocks[i].Run(ArmSerial), r.Blocks[i].Run(arm)
		if reference != nil && run != nil {
			ratios = append(ratios, r.Criterion.Ratio(reference, run))
		}
	}
	return ratios
}
