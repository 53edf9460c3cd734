package validation

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/batchproof/batchproof/validation/report"
	"github.com/batchproof/batchproof/validation/stats"
	"github.com/batchproof/batchproof/validation/sweep"
)

// writeReport shows the run to people, beside its raw samples.
func (s *Store) writeReport(r *Results) {
	v := View(r)
	page, err := report.HTML(v)
	if err == nil {
		s.WriteFile("report.html", page)
	}
	s.note("report.html", err)
	s.WriteFile("summary.md", report.Markdown(v))
	picture, err := report.Picture(v)
	if picture != nil && err == nil {
		s.WriteFile("ratios.svg", picture)
	}
	s.note("ratios.svg", err)
}

// View is what a report shows of results. It is a function of what is recorded
// alone, so that a report can be made again from results.json.
func View(r *Results) *report.View {
	v := &report.View{
		Started: r.Started, Interrupted: r.Interrupted,
		Machine: r.Environment.machine(), Facts: r.facts(),
	}
	if r.Finished != nil {
		v.Finished = *r.Finished
	}
	if len(r.Criteria) > 0 {
		if d := r.Options.deviations(); d != "" {
			v.Deviations = append(v.Deviations, d)
		}
		if o := &r.Options; o.Against == AgainstCeiling {
			v.Deviations = append(v.Deviations, fmt.Sprintf("throughput is held against %.0f %% of the ceiling instead of the specified ratios", 100*o.Share))
		}
	}
	var model *ModelInfo
	switch {
	case r.Model != nil:
		model = r.Model
	case r.Sweep != nil:
		model = &r.Sweep.Model
	case r.Serving != nil:
		model = &r.Serving.Model
	case r.Plan != nil:
		model = &r.Plan.Model
	}
	if model != nil {
		v.Model = model.text()
	}
	viewCriteria(v, r.Criteria)
	if r.Sweep != nil {
		viewSweep(v, r.Sweep)
	}
	if r.Serving != nil && len(r.Serving.Runs) > 0 {
		v.Serving = viewServing(r.Serving)
	}
	if r.Plan != nil {
		v.Plan = viewPlan(r.Plan, r.Options.MaxBatchSize)
	}
	return v
}

// machine is what was measured on, in a few words.
func (e *Environment) machine() string {
	parts := []string{e.CPU, fmt.Sprintf("%d cores", e.Cores)}
	if e.MemoryBytes > 0 {
		parts = append(parts, fmt.Sprintf("%.0f GiB", float64(e.MemoryBytes)/(1<<30)))
	}
	parts = append(parts, e.Backend)
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}

// text is a model's name, type and shape.
func (m *ModelInfo) text() string {
	var c struct {
		Arch                  string
		Layers                []byte // so a list of small integers is written
		Hidden, Intermediate  int
		Heads, KVHeads, Vocab int
	}
	text := m.Name + ", " + m.DType
	// By way of JSON, since a config that was read back is a map.
	data, err := json.Marshal(m.Config)
	if err != nil || json.Unmarshal(data, &c) != nil || c.Hidden == 0 {
		return text
	}
	return fmt.Sprintf("%s; %s, %d layers of %d, vocabulary of %d", text, c.Arch, len(c.Layers), c.Hidden, c.Vocab)
}

// facts are the conditions of a run that are not on the first screen.
func (r *Results) facts() []report.Fact {
	e, o := &r.Environment, &r.Options
	var facts []report.Fact
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, report.Fact{Name: name, Value: value})
		}
	}
	add("engine", e.Backend)
	var caches []string
	for _, name := range slices.Sorted(maps.Keys(e.Caches)) {
		caches = append(caches, name+" "+e.Caches[name])
	}
	add("caches", strings.Join(caches, ", "))
	add("system", strings.TrimSpace(e.OS+" "+e.Arch+" "+e.Kernel))
	add("CPU governor", e.Governor)
	add("Go", fmt.Sprintf("%s, GOMAXPROCS %d", e.Go, e.GOMAXPROCS))
	add("commit", e.Commit)
	var bandwidths []float64
	peak := 0.0
	for _, rec := range r.Criteria {
		for _, b := range rec.Kept() {
			bandwidths = append(bandwidths, b.Probes...)
		}
		if rec.Roofline != nil {
			peak = max(peak, rec.Roofline.PeakFLOPs)
		}
	}
	if len(bandwidths) > 0 {
		b := spread(bandwidths)
		add("read bandwidth", fmt.Sprintf("%.1f GB/s, median of %d probes between turns (min %.1f, max %.1f)", b.Median/1e9, len(bandwidths), b.Min/1e9, b.Max/1e9))
	}
	if peak > 0 {
		add("arithmetic peak", fmt.Sprintf("%.0f GFLOP/s", peak/1e9))
	}
	add("blocks", r.blocksText())
	for _, rec := range slices.Concat(r.Criteria, []*Record{r.Control}) {
		if rec == nil || len(rec.Ratios(ArmControl)) == 0 {
			continue
		}
		j := Judge(rec)
		add("A/A control", fmt.Sprintf("serial against serial: %.3f (min %.3f, max %.3f): %s", j.Control.Median, j.Control.Min, j.Control.Max, j.controlText()))
	}
	if len(r.Criteria) > 0 {
		add("requests", fmt.Sprintf("prompts of %d tokens, %d generated; up to %d rows; seed %d", o.PromptLength, o.MaxTokens, o.MaxBatchSize, o.Seed))
	}
	add("command", goTest(e.CommandLine, o.Backend))
	return facts
}

// goTest is the command that runs a test binary's command line anew. What go
// test adds by itself is left out.
func goTest(args []string, backend string) string {
	if len(args) == 0 {
		return ""
	}
	command := "go test ./validation"
	if backend == "cuda" {
		command = "go test -tags cuda ./validation"
	}
	for _, arg := range args[1:] {
		if flag, ok := strings.CutPrefix(strings.Replace(arg, "--", "-", 1), "-test."); ok {
			name, value, _ := strings.Cut(flag, "=")
			switch {
			case slices.Contains([]string{"paniconexit0", "testlogfile", "fullpath", "gocoverdir"}, name), name == "timeout" && value == "10m0s":
				continue
			case name == "v" && value != "" && value != "false":
				arg = "-v"
			default:
				arg = "-" + flag
			}
		}
		command += " " + shell(arg)
	}
	return command
}

// shell quotes a word of a command if a shell would read more than a word.
func shell(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_=./:,+%@", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// blocksText says how many blocks were measured, and how many of them stand.
func (r *Results) blocksText() string {
	all, kept := 0, 0
	for _, rec := range r.Criteria {
		all, kept = all+len(rec.Blocks), kept+len(rec.Kept())
	}
	switch {
	case all == 0:
		return ""
	case all == kept:
		return fmt.Sprintf("%d, none of them disturbed", all)
	}
	return fmt.Sprintf("%d, of which %d were disturbed and do not count, by limits fixed beforehand", all, all-kept)
}

// viewCriteria shows the four criteria, and every other level that was measured.
func viewCriteria(v *report.View, records []*Record) {
	if len(records) == 0 {
		return
	}
	judgements := make([]*Judgement, len(records))
	for i, rec := range records {
		judgements[i] = Judge(rec)
	}
	for _, c := range Criteria() {
		at := slices.IndexFunc(judgements, func(j *Judgement) bool { return j.Record.Criterion == c })
		if at < 0 {
			nan := math.NaN()
			v.Criteria = append(v.Criteria, report.Criterion{Name: c.String(), AtMost: c.Lower(), Target: c.Target,
				Ratio: nan, Lower: nan, Upper: nan, Ceiling: nan, SerialShare: nan, Serial: nan, Batch: nan})
			continue
		}
		v.Criteria = append(v.Criteria, judgements[at].view())
	}
	for _, j := range judgements {
		if j.Record.Criterion.Target == 0 {
			v.Criteria = append(v.Criteria, j.view())
		}
	}
	viewSteps(v, judgements)
}

func (j *Judgement) view() report.Criterion {
	rec := j.Record
	c := report.Criterion{
		Name: rec.Criterion.String(), Verdict: string(j.Verdict), Reason: j.Reason, Cause: j.Hint,
		AtMost: rec.Criterion.Lower(),
		Ratio:  j.Ratio.Median, Lower: j.Decision.Lower, Upper: j.Decision.Upper, Confidence: confidence,
		Ceiling: j.Ceiling, SerialShare: j.SerialShare, Unit: "req/s", Serial: j.Serial.RequestsPerS, Batch: j.Batch.RequestsPerS,
	}
	if c.AtMost {
		c.Unit, c.Serial, c.Batch = "s", j.Serial.Latency.Avg, j.Batch.Latency.Avg
	}
	c.Target = math.NaN()
	if goal, ok := rec.goal(); ok {
		c.Target = goal.Value
	}
	for i, p := range j.Problems {
		if i > 0 || j.Reason != p.String() {
			c.Notes = append(c.Notes, p.String())
		}
	}
	for i := range rec.Blocks {
		b := &rec.Blocks[i]
		why := rec.Rules.disturbed(b.Readings)
		if why != "" {
			why = "disturbed: " + why
		}
		addBlock(&c, rec, b, why)
	}
	for i := range rec.OtherSpeed {
		b := &rec.OtherSpeed[i]
		why := fmt.Sprintf("added, at %.1f GB/s of reads", meanRate(b.Probes)/1e9)
		if disturbed := rec.Rules.disturbed(b.Readings); disturbed != "" {
			why += ", disturbed: " + disturbed
		}
		addBlock(&c, rec, b, why)
	}
	if c.Added = j.addedText(); c.Added != "" {
		c.Added += j.bySpeed()
	}
	for _, name := range []string{ArmSerial, ArmBatch} {
		arm := report.Arm{Name: name}
		for _, b := range rec.Kept() {
			if run := b.Run(name); run != nil {
				for k := range run.Requests {
					addRequest(&arm, &run.Requests[k])
				}
				addSteps(&arm, &run.Steps)
			}
		}
		c.Arms = append(c.Arms, arm)
	}
	c.Missing = j.missing()
	return c
}

func addBlock(c *report.Criterion, rec *Record, b *Block, leftOut string) {
	serial, batch, control := b.Run(ArmSerial), b.Run(ArmBatch), b.Run(ArmControl)
	if serial == nil || batch == nil {
		return
	}
	block := report.Block{Number: len(c.Blocks) + 1, First: b.Arms[0].Arm, Ratio: rec.Criterion.Ratio(serial, batch), Control: math.NaN(), LeftOut: leftOut}
	if control != nil {
		block.Control = rec.Criterion.Ratio(serial, control)
	}
	c.Blocks = append(c.Blocks, block)
}

func addRequest(arm *report.Arm, r *RequestRun) {
	for i, at := range r.TokenNS {
		if i == 0 {
			arm.TTFT = append(arm.TTFT, seconds(at-r.SubmittedNS))
		} else {
			arm.ITL = append(arm.ITL, seconds(at-r.TokenNS[i-1]))
		}
	}
}

func addSteps(arm *report.Arm, log *StepLog) {
	for i := range log.Len() {
		arm.Steps = append(arm.Steps, report.Step{At: seconds(log.BeginNS[i]), Seconds: seconds(log.DurationNS[i]), Rows: log.Rows[i]})
	}
}

// missing is the account of a ratio. Nil without one.
func (j *Judgement) missing() *report.Missing {
	a := j.Account
	if a == nil {
		return nil
	}
	m := &report.Missing{Ideal: a.Ideal, Ceiling: a.Ceiling, Measured: a.Measured}
	for _, p := range a.Parts {
		m.Parts = append(m.Parts, report.Part{Name: p.Name, Floor: p.Floor, Excess: p.Excess, Words: p.Words})
	}
	return m
}

// viewSteps pools the decode steps of all criteria by arm and rows, and sets their
// floors beside them.
func viewSteps(v *report.View, judgements []*Judgement) {
	floors := make(map[int]Work)
	bandwidth, peak := 0.0, 0.0 // the best of the session, as the ceilings have it
	for _, name := range []string{ArmSerial, ArmBatch} {
		times := make(map[int][]float64)
		for _, j := range judgements {
			for _, b := range j.Record.Kept() {
				run := b.Run(name)
				if run == nil {
					continue
				}
				for k := range run.Steps.Len() {
					if run.Steps.PromptRows[k] == 0 {
						rows := run.Steps.Rows[k]
						times[rows] = append(times[rows], seconds(run.Steps.DurationNS[k]))
					}
				}
			}
		}
		for _, rows := range slices.Sorted(maps.Keys(times)) {
			v.StepTimes = append(v.StepTimes, report.StepTime{Source: name + " arm", Rows: rows, Seconds: times[rows]})
		}
	}
	for _, j := range judgements {
		if known(j.Bandwidth) && j.Record.Roofline != nil {
			bandwidth, peak = max(bandwidth, j.Bandwidth), max(peak, j.Record.Roofline.PeakFLOPs)
			for _, work := range slices.Concat(j.Record.Roofline.Serial, j.Record.Roofline.Batch) {
				if work.Kind == "decode" {
					floors[work.Rows] = work
				}
			}
		}
	}
	for _, rows := range slices.Sorted(maps.Keys(floors)) {
		work := floors[rows]
		work.Steps = 1
		at := (&Roofline{PeakFLOPs: peak}).floor([]Work{work}, "", bandwidth)
		v.Floors = append(v.Floors, report.Floor{Rows: rows, Seconds: at})
	}
}

func viewSweep(v *report.View, r *SweepRecord) {
	if r.Sweep != nil && len(r.Sweep.Points) > 0 {
		results := r.Sweep.Results()
		s := &report.Sweep{Model: r.Model.Name, Knee: sweep.Knee(results, sweep.KneeEfficiency), KneeEfficiency: sweep.KneeEfficiency}
		for i, p := range results {
			s.Points = append(s.Points, report.SweepPoint{Rows: p.BatchSize, StepMS: p.StepMS, MinMS: p.MinMS, P95MS: p.P95MS,
				Goodput: p.Goodput, Speedup: p.Speedup, Efficiency: p.Efficiency, Ceiling: r.Limits.Ceiling(p.BatchSize)})
			if len(v.Criteria) == 0 { // of another model, it would mislead beside theirs
				t := report.StepTime{Source: "static batch", Rows: p.BatchSize}
				for _, ns := range r.Sweep.Points[i].StepNS {
					t.Seconds = append(t.Seconds, seconds(ns))
				}
				v.StepTimes = append(v.StepTimes, t)
			}
		}
		v.Sweep = s
	}
	if b := r.Blocking; b != nil {
		cost := b.Cost()
		v.Blocking = &report.Blocking{Model: r.Model.Name, Prefill: seconds(b.PrefillNS), Issued: cost.Issued, Useful: cost.Useful, Waste: cost.Waste, Goodput: cost.Goodput}
		for _, ns := range b.StepNS {
			v.Blocking.Steps = append(v.Blocking.Steps, seconds(ns))
		}
		for i := range b.BatchSize {
			tokens := b.ShortTokens
			if i == 0 {
				tokens = b.LongTokens
			}
			v.Blocking.Tokens = append(v.Blocking.Tokens, tokens)
		}
	}
	if c := r.Comparison; c != nil {
		v.Comparison = &report.Comparison{Requests: c.Requests, Blocks: c.Blocks}
		for _, m := range c.Metrics {
			v.Comparison.Metrics = append(v.Comparison.Metrics, report.Metric{Name: m.Name,
				Static: stats.Median(m.Static), Continuous: stats.Median(m.Continuous), Ratio: m.Ratio()})
		}
	}
}

func viewServing(r *ServingRecord) *report.Serving {
	kind := "Poisson arrivals"
	if r.Constant {
		kind = "arrivals at equal gaps"
	}
	s := &report.Serving{
		Model: r.Model.Name, Limits: sloText(r.SLO), TTFT: math.NaN(),
		Load: fmt.Sprintf("%d × %d requests, %s at %.3g requests/s, prompts of %v and outputs of %v tokens", len(r.Runs), r.Requests, kind, r.Rate, &r.Prompts, &r.Tokens),
	}
	if r.SLO.TTFT > 0 {
		s.TTFT = r.SLO.TTFT.Seconds()
	}
	for a, column := range r.Columns() {
		l := column.Latencies
		arm := report.ServingArm{
			Arm: report.Arm{Name: column.Name},
			Rates: report.Rates{Offered: column.Offered, Throughput: l.Throughput(), Goodput: l.Goodput(),
				Share: float64(l.Met) / float64(l.Requests), TokensPerS: l.TokensPerSecond()},
		}
		for i := range r.Runs {
			run := &r.Runs[i].Arms[a]
			for k := range run.Requests {
				addRequest(&arm.Arm, &run.Requests[k].RequestRun)
			}
			addSteps(&arm.Arm, &run.Steps)
		}
		s.Arms = append(s.Arms, arm)
	}
	return s
}

// viewPlan shows a plan whose cost was fitted to steps of up to so many rows.
func viewPlan(p *ServingPlan, fitted int) *report.Plan {
	out := &report.Plan{
		Model: p.Model.Name, Limits: sloText(p.SLO), Fitted: fitted,
		Cost: fmt.Sprintf("%s and %s for each token, fitted to %d steps of up to %d rows", human(time.Duration(p.StepNS)), human(time.Duration(p.RowNS)), p.Steps, fitted),
		Load: fmt.Sprintf("%d requests for each policy", p.Requests),
	}
	for i := range p.Sizes {
		s := &p.Sizes[i]
		figure := func(column string) float64 {
			if v, ok := s.Figures[column]; ok {
				return v
			}
			return math.NaN()
		}
		out.Sizes = append(out.Sizes, report.PlanSize{
			Rows: s.MaxBatchSize, Name: string(s.Policy),
			Rates: report.Rates{Offered: figure("offered_rps"), Throughput: figure("throughput_rps"), Goodput: figure("goodput_rps"),
				Share: figure("slo_share"), TokensPerS: figure("tokens_per_s")},
			TTFT50: figure("ttft_p50_ms") / 1e3, TTFT95: figure("ttft_p95_ms") / 1e3, TPOT95: figure("tpot_p95_ms") / 1e3,
		})
	}
	return out
}
