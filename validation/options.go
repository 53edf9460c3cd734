package validation

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batchproof/batchproof/engine/cpu"
)

// DefaultCheckpoint is measured unless another is asked for: large enough to
// leave every cache, small enough for two cores; on a GPU a published shape. The
// sweep has the shape that its published reference was run with.
const (
	DefaultCheckpoint      = "random:qwen3.5-mini"
	DefaultCUDACheckpoint  = "random:qwen3.5-0.8b"
	DefaultSweepCheckpoint = "random:llama-3.2-1b"
)

// Options are the flags of the suite.
type Options struct {
	Backend           string        `json:"backend"`
	Checkpoint        string        `json:"checkpoint"` // "" for the default of each test
	MaxTokens         int           `json:"max_tokens"`
	PromptLength      int           `json:"prompt_length"`
	NumConcurrent     []int         `json:"num_concurrent"`
	WarmupRuns        int           `json:"warmup_runs"` // 0: as specified, see Warmups
	TestRuns          int           `json:"test_runs"`   // 0: as many as the verdict takes, see planFor
	MaxBatchSize      int           `json:"max_batch_size"`
	TokenBudget       int           `json:"token_budget"`        // 0: enough for chunks of prompts beside full decode rows
	Threads           int           `json:"threads"`             // 0: all cores
	Precision         string        `json:"precision,omitempty"` // of the cpu backend's linears: auto, f32 or bf16; "" is auto
	TimeLimit         time.Duration `json:"time_limit_ns"`       // of all criteria; 0: none
	Seed              uint64        `json:"seed"`
	Results           string        `json:"results"`
	AllowInconclusive bool          `json:"allow_inconclusive"`
	Turns             string        `json:"turns"`   // TurnsStep or TurnsRun
	Against           string        `json:"against"` // AgainstTarget or AgainstCeiling; "" is the first
	Share             float64       `json:"share"`   // of the ceiling
	Replay            string        `json:"-"`

	// The sweep and the blocking run.
	Sizes       []int `json:"sizes"`
	NewTokens   int   `json:"new_tokens"`
	BlockSize   int   `json:"block_size"`
	LongTokens  int   `json:"long_tokens"`
	ShortTokens int   `json:"short_tokens"`

	ServingOptions

	given []string // the flags set on the command line
	extra []string // what stood there and is no flag
}

// Register declares the flags, with the specified defaults.
func (o *Options) Register(fs *flag.FlagSet) {
	o.NumConcurrent, o.Sizes = []int{2, 4, 8}, []int{1, 2, 4, 8}
	fs.StringVar(&o.Backend, "backend", "", "backend to measure, `cpu|cuda` (default cuda in a build with -tags cuda); without it the criteria are skipped")
	fs.StringVar(&o.Checkpoint, "checkpoint", "", "`DIR|random:NAME` to measure (default "+DefaultCheckpoint+", on a GPU "+DefaultCUDACheckpoint+", for the sweep "+DefaultSweepCheckpoint+")")
	fs.IntVar(&o.MaxTokens, "max-tokens", specifiedMaxTokens, "tokens that each request generates")
	fs.IntVar(&o.PromptLength, "prompt-length", specifiedPromptLength, "tokens of each prompt")
	fs.Var((*intList)(&o.NumConcurrent), "num-concurrent", "concurrency levels of the throughput criteria, a `list`")
	fs.Var(&count{value: &o.WarmupRuns}, "warmup-runs", "warm-up `blocks` (default 3 for latency, 1 for throughput)")
	fs.Var(&count{value: &o.TestRuns}, "test-runs", "measured `blocks`, exactly so many; a 95 % bound takes 5 (default: from 10 for latency and 6 for throughput until the verdict is decided, at most 24)")
	fs.IntVar(&o.MaxBatchSize, "max-batch-size", 8, "rows of the batch arm")
	fs.IntVar(&o.TokenBudget, "token-budget", 0, "tokens of one step, 0 for the default")
	fs.IntVar(&o.Threads, "threads", 0, "threads of the cpu backend, 0 for all cores")
	fs.StringVar(&o.Precision, "precision", cpu.AutoPrecision.String(), "what the cpu backend multiplies bf16 weights, keys and values by, `auto|f32|bf16`: float32, or that rounded to bf16; auto is bf16 where the CPU is faster at it, with AMX or AMD's AVX512_BF16")
	fs.StringVar(&o.Turns, "turns", TurnsStep, "how the arms of a block share the machine, `step|run`: they alternate from step to step, or run one after another")
	fs.DurationVar(&o.TimeLimit, "time-limit", 0, "time in which the criteria end, decided or not, once each has its least blocks; 0 for none")
	fs.Uint64Var(&o.Seed, "seed", 1, "seed of prompts, orders and random weights")
	fs.StringVar(&o.Results, "results", "results", "`DIR` for results/<UTC time>/, relative to the module's root")
	fs.BoolVar(&o.AllowInconclusive, "allow-inconclusive", false, "do not fail on the verdict INCONCLUSIVE")
	fs.StringVar(&o.Against, "against", AgainstTarget, "what throughput is held against, `target|ceiling`: the specified ratios, or a share of the best that this machine allows")
	fs.Float64Var(&o.Share, "share", defaultShare, "share of the ceiling that -against ceiling asks for")
	fs.StringVar(&o.Replay, "replay", "", "judge the samples of a results.json `FILE` again, instead of measuring, and make their report anew; -against judges them by another rule")
	fs.Var((*intList)(&o.Sizes), "sizes", "batch sizes of the sweep, a `list`")
	fs.IntVar(&o.NewTokens, "new-tokens", 8, "tokens that each row of the sweep generates")
	fs.IntVar(&o.BlockSize, "block-size", 16, "positions in a KV block")
	fs.IntVar(&o.LongTokens, "long-tokens", 32, "tokens of the long row of the blocking run")
	fs.IntVar(&o.ShortTokens, "short-tokens", 4, "tokens of the other rows of the blocking run")
	o.ServingOptions.register(fs)
}

// Usage is what a newcomer asks for: how the suite is called, and its own flags.
func Usage(w io.Writer) {
	fmt.Fprint(w, `go test ./validation -count=1 -v -backend cpu [flags]           the four criteria, the sweep and the serving scenario
go test ./validation -run TestSingleRequestLatency ...          one of them: TestSingleRequestLatency, TestConcurrentThroughput,
                                                                TestBatchSweep, TestHeadOfLineBlocking, TestServing, TestPlanByVirtualClock
go test ./validation -run TestReplay -v -replay FILE            judge a recorded run again
go test -tags cuda ./validation -count=1 -v ...                 on a GPU

Make has shorter names for these, see make help. go test ends a run after 10 minutes unless -timeout says otherwise,
and has flags of its own, see go help testflag. The flags of the suite:

`)
	fs := flag.NewFlagSet("", flag.ContinueOnError)
	fs.SetOutput(w)
	new(Options).Register(fs)
	fs.PrintDefaults()
}

// Given notes which of the suite's flags were set on the command line, and what
// was no flag.
func (o *Options) Given(fs *flag.FlagSet) {
	o.extra = fs.Args()
	fs.Visit(func(f *flag.Flag) {
		if !strings.HasPrefix(f.Name, "test.") {
			o.given = append(o.given, f.Name)
		}
	})
}

// useDefaultBackend takes what the suite was built for, unless the flags say what to do.
func (o *Options) useDefaultBackend() {
	if o.Replay == "" && !slices.Contains(o.given, "backend") {
		o.Backend = builtFor
	}
}

// defaultCheckpoint is what is measured unless another is asked for.
func (o *Options) defaultCheckpoint() string {
	if o.Backend == "cuda" {
		return DefaultCUDACheckpoint
	}
	return DefaultCheckpoint
}

// Warmups is the number of blocks before the measured ones, as specified
// unless the flag says otherwise.
func (o *Options) Warmups(family string) int {
	switch {
	case o.WarmupRuns > 0:
		return o.WarmupRuns
	case family == FamilyLatency:
		return 3
	}
	return 1
}

// specifiedRuns is the specified number of measured blocks. It is the least:
// three blocks, for one, can carry no 95 % bound, see planFor.
func specifiedRuns(family string) int {
	if family == FamilyLatency {
		return 10
	}
	return 3
}

// Budget is the tokens of one step.
func (o *Options) Budget() int {
	if o.TokenBudget > 0 {
		return o.TokenBudget
	}
	return max(256, o.MaxBatchSize-1+chunkSize)
}

// deviations says where the requests are not the specified ones, and which levels were left out.
func (o *Options) deviations() string {
	var d []string
	if o.MaxTokens != specifiedMaxTokens {
		d = append(d, fmt.Sprintf("%d tokens a request instead of %d", o.MaxTokens, specifiedMaxTokens))
	}
	if o.PromptLength != specifiedPromptLength {
		d = append(d, fmt.Sprintf("prompts of %d tokens instead of %d", o.PromptLength, specifiedPromptLength))
	}
	for _, c := range Criteria() {
		if c.Family == FamilyThroughput && !slices.Contains(o.NumConcurrent, c.Concurrent) {
			d = append(d, fmt.Sprintf("concurrency levels %v instead of 2,4,8", (*intList)(&o.NumConcurrent)))
			break
		}
	}
	return strings.Join(d, ", ")
}

// Rules are those of a criterion under these flags.
func (o *Options) Rules(c Criterion) Rules {
	r := DefaultRules(c)
	if o.Against == AgainstCeiling && c.Family == FamilyThroughput {
		r.Against, r.Share = AgainstCeiling, o.Share
	}
	return r
}

// defaultShare of the ceiling: what a good engine reaches, less what a quiet
// machine varies from day to day.
const defaultShare = 0.85

const (
	specifiedMaxTokens    = 128
	specifiedPromptLength = 32
)

func (o *Options) precision() (cpu.Precision, error) {
	if o.Precision == "" {
		return cpu.AutoPrecision, nil
	}
	return cpu.ParsePrecision(o.Precision)
}

// maxLength of a prompt or an answer keeps their sums far from overflow.
const maxLength = 1 << 24

// maxConcurrent requests are far beyond where batching stops to gain; each has
// its prompt, tokens and times in memory.
const maxConcurrent = 1 << 14

// chunkSize is the scheduler's default; a step must hold one chunk beside the other rows.
const chunkSize = 64

// Validate finds every mistake in the flags, before anything is measured.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	least := func(name string, got, want int, why string) {
		if got < want {
			bad("-%s %d: want at least %d%s", name, got, want, why)
		}
	}
	if len(o.extra) > 0 {
		bad("unexpected argument %q: flags after it would not be read", o.extra[0])
	}
	if o.Replay != "" && o.Backend != "" {
		bad("-replay %s, -backend %s: either judge recorded samples or measure new ones", o.Replay, o.Backend)
	}
	switch o.Backend {
	case "cpu", "cuda":
	case "":
		for _, name := range o.given {
			replaying := name == "replay" || o.Replay != "" && slices.Contains([]string{"allow-inconclusive", "against", "share", "results"}, name)
			if name != "seed" && name != "plan-requests" && !replaying {
				bad("-%s has no effect without -backend cpu|cuda", name)
			}
		}
	default:
		bad("-backend %q: want cpu or cuda", o.Backend)
	}
	if o.Turns != TurnsStep && o.Turns != TurnsRun {
		bad("-turns %q: want %s or %s", o.Turns, TurnsStep, TurnsRun)
	}
	switch o.Against {
	case "", AgainstTarget:
		if slices.Contains(o.given, "share") {
			bad("-share %v is a share of the ceiling: it needs -against ceiling", o.Share)
		}
	case AgainstCeiling:
		if !(o.Share > 0 && o.Share <= 1) {
			bad("-share %v: want more than 0 and at most 1", o.Share)
		}
	default:
		bad("-against %q: want target or ceiling", o.Against)
	}
	if name, random := strings.CutPrefix(o.Checkpoint, "random:"); random && name == "" {
		bad("-checkpoint random: lacks a name, such as %s", DefaultCheckpoint)
	}
	least("max-tokens", o.MaxTokens, 2, ": the first token comes from the prompt, so that a request of one token has no decode step")
	least("prompt-length", o.PromptLength, 1, "")
	most := func(name string, got int) {
		if got > maxLength {
			bad("-%s %d: want at most %d, more than any model's context", name, got, maxLength)
		}
	}
	most("max-tokens", o.MaxTokens)
	most("prompt-length", o.PromptLength)
	most("new-tokens", o.NewTokens)
	most("long-tokens", o.LongTokens)
	most("block-size", o.BlockSize)
	least("max-batch-size", o.MaxBatchSize, 2, ": a batch arm of one row is the serial arm")
	if o.TokenBudget != 0 {
		least("token-budget", o.TokenBudget, o.MaxBatchSize-1+chunkSize,
			fmt.Sprintf(", a prompt chunk of %d beside %d decode rows", chunkSize, o.MaxBatchSize-1))
	}
	least("threads", o.Threads, 0, "")
	if most := cpu.MaxThreads(); o.Threads > most {
		bad("-threads %d: this machine has %d cores, and workers that share one wait for each other: want at most %d, or 0 for one on each",
			o.Threads, runtime.NumCPU(), most)
	}
	if o.Threads > 0 && o.Backend == "cuda" {
		bad("-threads %d: the cuda backend has no threads to set", o.Threads)
	}
	if p, err := o.precision(); err != nil {
		bad("-%w", err)
	} else if p != cpu.AutoPrecision && o.Backend == "cuda" {
		bad("-precision %v: the cuda backend multiplies both halves of each input in bf16, and has no other way", p)
	}
	switch {
	case o.TimeLimit < 0:
		bad("-time-limit %v: want a positive time, or 0 for none", o.TimeLimit)
	case o.TimeLimit > 0 && o.TestRuns > 0:
		bad("-time-limit %v, -test-runs %d: the number of blocks is either fixed or left to the verdict and the time", o.TimeLimit, o.TestRuns)
	}
	if o.Results == "" {
		bad("-results: want a directory")
	}
	if len(o.NumConcurrent) == 0 {
		bad("-num-concurrent: want at least one level, such as 2,4,8")
	}
	for i, n := range o.NumConcurrent {
		switch {
		case n > maxConcurrent:
			bad("-num-concurrent %d: want at most %d", n, maxConcurrent)
		case n == 1:
			bad("-num-concurrent 1: a lone request is measured by TestSingleRequestLatency")
		case n < 1:
			bad("-num-concurrent %d: want at least 2", n)
		case slices.Contains(o.NumConcurrent[:i], n):
			bad("-num-concurrent: %d stands in it twice", n)
		}
	}
	o.validateSweep(bad, least)
	o.ServingOptions.validate(bad)
	return errors.Join(errs...)
}

func (o *Options) validateSweep(bad func(string, ...any), least func(string, int, int, string)) {
	if !slices.Contains(o.Sizes, 1) {
		bad("-sizes %v: size 1 is missing, to which all others are compared", (*intList)(&o.Sizes))
	}
	for i, n := range o.Sizes {
		switch {
		case n > maxConcurrent:
			bad("-sizes %d: want at most %d", n, maxConcurrent)
		case n < 1:
			bad("-sizes %d: want at least 1", n)
		case slices.Contains(o.Sizes[:i], n):
			bad("-sizes: %d stands in it twice", n)
		case i > 0 && n < o.Sizes[i-1]:
			bad("-sizes %v: want rising sizes", (*intList)(&o.Sizes))
		}
	}
	least("new-tokens", o.NewTokens, 2, ": the first token comes from the prompt, so that one token has no decode step")
	least("block-size", o.BlockSize, 1, "")
	least("short-tokens", o.ShortTokens, 1, "")
	if o.LongTokens <= o.ShortTokens {
		bad("-long-tokens %d, -short-tokens %d: nothing blocks unless the long row is longer", o.LongTokens, o.ShortTokens)
	}
}

// intList is a flag of integers separated by commas.
type intList []int

func (l *intList) String() string {
	parts := make([]string, len(*l))
	for i, n := range *l {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ",")
}

func (l *intList) Set(s string) error {
	*l = (*l)[:0:0]
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return fmt.Errorf("%q is no integer; want a list such as 2,4,8", part)
		}
		*l = append(*l, n)
	}
	return nil
}

// count is a flag of at least one whose default depends on the criterion.
type count struct{ value *int }

func (c *count) String() string {
	if c.value == nil || *c.value == 0 {
		return ""
	}
	return strconv.Itoa(*c.value)
}

func (c *count) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is no integer", s)
	}
	if n < 1 {
		return errors.New("want at least 1: without warm-up the first block is charged page faults and allocation, and without blocks there is no evidence")
	}
	*c.value = n
	return nil
}

func isRandom(checkpoint string) bool { return strings.HasPrefix(checkpoint, "random:") }
