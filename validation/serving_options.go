package validation

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/batchproof/batchproof/scheduler/serving"
)

// ServingOptions are the flags of the serving scenario.
type ServingOptions struct {
	Rate         float64     `json:"rate_rps"` // 0: a share of the capacity, see rateShare
	ConstantRate bool        `json:"constant_rate"`
	Requests     int         `json:"requests"` // of one run; 0: as many as the time allows
	ServePrompts Lengths     `json:"serve_prompts"`
	ServeTokens  Lengths     `json:"serve_tokens"`
	SLO          serving.SLO `json:"slo"` // all zero: relative to an idle machine, see sloFactor
	PlanRequests int         `json:"plan_requests"`
}

// Beyond these a run would take days, or more memory than there is.
const (
	leastRate, mostRate = 1e-3, 1e6 // requests a second
	mostRequests        = 1_000_000
	mostPlanned         = 100_000_000
)

func (o *ServingOptions) register(fs *flag.FlagSet) {
	o.ServePrompts, o.ServeTokens = Lengths{8, 160}, Lengths{8, 64}
	fs.Float64Var(&o.Rate, "rate", 0, "arrivals of the serving scenario, in `requests/s` (default 70 % of what continuous batching was seen to serve)")
	fs.BoolVar(&o.ConstantRate, "constant-rate", false, "requests come at equal gaps, not at those of independent callers (Poisson)")
	fs.IntVar(&o.Requests, "requests", 0, "requests of one serving run (default: as many as end in about 90 s, at most 200)")
	fs.Var(&o.ServePrompts, "serve-prompts", "tokens of the prompts of the serving scenario, uniform in `MIN-MAX`")
	fs.Var(&o.ServeTokens, "serve-tokens", "tokens that requests of the serving scenario generate, uniform in `MIN-MAX`")
	fs.DurationVar(&o.SLO.TTFT, "slo-ttft", 0, "a request counts for goodput if its first token comes within this time (default, if no SLO is given: 5 times that of a lone request)")
	fs.DurationVar(&o.SLO.TPOT, "slo-tpot", 0, "it counts if, too, each further token takes this time on average (default, if no SLO is given: 5 times that of a lone request)")
	fs.DurationVar(&o.SLO.E2EL, "slo-e2el", 0, "it counts if, too, its end comes within this time (default: none)")
	fs.IntVar(&o.PlanRequests, "plan-requests", 1000, "requests that are simulated for each policy and size to plan with; try 1000000")
}

func (o *ServingOptions) validate(bad func(string, ...any)) {
	if o.Rate != 0 && !(o.Rate >= leastRate && o.Rate <= mostRate) {
		bad("-rate %v: want %g to %g requests a second, or 0 for a share of the capacity", o.Rate, leastRate, mostRate)
	}
	if o.Requests != 0 && (o.Requests < 2 || o.Requests > mostRequests) {
		bad("-requests %d: want 2, since a rate takes two, to %d, or 0 for as many as the time allows", o.Requests, mostRequests)
	}
	if o.PlanRequests < 1 || o.PlanRequests > mostPlanned {
		bad("-plan-requests %d: want 1 to %d", o.PlanRequests, mostPlanned)
	}
	for _, l := range []struct {
		name  string
		value Lengths
		least int
		why   string
	}{
		{"serve-prompts", o.ServePrompts, 1, ""},
		{"serve-tokens", o.ServeTokens, 2, ": a request of one token has no time between tokens"},
	} {
		if l.value.Min < l.least {
			bad("-%s %v: want at least %d%s", l.name, &l.value, l.least, l.why)
		}
		if l.value.Max < l.value.Min {
			bad("-%s %v: want the smaller length first", l.name, &l.value)
		}
	}
	for _, slo := range []struct {
		name  string
		value time.Duration
	}{{"ttft", o.SLO.TTFT}, {"tpot", o.SLO.TPOT}, {"e2el", o.SLO.E2EL}} {
		if slo.value < 0 {
			bad("-slo-%s %v: want a positive time, or 0 for none", slo.name, slo.value)
		}
	}
}

// Lengths is a flag of a range of lengths, such as 8-160, or of one length.
type Lengths struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

func (l *Lengths) String() string {
	if l.Min == l.Max {
		return strconv.Itoa(l.Min)
	}
	return fmt.Sprintf("%d-%d", l.Min, l.Max)
}

// Set implements [flag.Value].
func (l *Lengths) Set(s string) error {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	var err error
	if l.Min, err = strconv.Atoi(from); err == nil {
		l.Max, err = strconv.Atoi(to)
	}
	if err != nil {
		return fmt.Errorf("%q is no range of lengths; want MIN-MAX, such as 8-160, or one length", s)
	}
	return nil
}

func (l Lengths) serving() serving.Range { return serving.Range{Min: l.Min, Max: l.Max} }
