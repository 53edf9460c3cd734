package report

import (
	"math"
	"math/rand/v2"
	"time"
)

// sample is a view with all there is to show, made of a fixed seed.
func sample() *View {
	rng := rand.New(rand.NewPCG(1, 2))
	around := func(x, spread float64) float64 { return x * (1 + spread*(2*rng.Float64()-1)) }
	v := &View{
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Finished: time.Date(2026, 1, 2, 3, 8, 12, 0, time.UTC),
		Model: "random:qwen3.5-mini, bf16", Machine: "Example CPU; 2 cores; 24 GiB",
		Deviations: []string{"64 tokens a request instead of 128"},
		Facts:      []Fact{{"commit", "0123456789abcdef"}, {"command", "validation.test -backend cpu"}},
	}
	add := func(name string, n int, target, ratio, ceiling float64, verdict string) *Criterion {
		c := Criterion{
			Name: name, Verdict: verdict, Reason: "median ratio after 6 blocks", Target: target, AtMost: n == 1,
			Ratio: ratio, Lower: 0.98 * ratio, Upper: 1.02 * ratio, Confidence: 0.95, Ceiling: ceiling,
			SerialShare: 0.87, Unit: "req/s", Serial: 0.5, Batch: 0.5 * ratio,
		}
		if n == 1 {
			c.Unit, c.Serial, c.Batch = "s", 2, 2*ratio
		}
		serial, batch := Arm{Name: "serial"}, Arm{Name: "batch"}
		for b := range 6 {
			block := Block{Number: b + 1, First: serial.Name, Ratio: around(ratio, 0.03), Control: math.NaN()}
			if b%2 == 1 {
				block.First = batch.Name
			}
			if n == 1 {
				block.Control = around(1, 0.02)
			}
			c.Blocks = append(c.Blocks, block)
			at := 0.0
			for r := range n {
				serial.TTFT, batch.TTFT = append(serial.TTFT, around(0.2+2*float64(r), 0.1)), append(batch.TTFT, around(0.1+0.1*float64(n), 0.1))
				for range 20 {
					serial.ITL = append(serial.ITL, around(0.03, 0.1))
					batch.ITL = append(batch.ITL, around(0.03+0.003*float64(n), 0.2))
					serial.Steps = append(serial.Steps, Step{at, 0.03, 1})
					at += 0.031
				}
			}
			for s := range 21 {
				batch.Steps = append(batch.Steps, Step{0.04 * float64(s), 0.035, min(n, s+1)})
			}
		}
		c.Arms = []Arm{serial, batch}
		v.Criteria = append(v.Criteria, c)
		for _, arm := range []struct {
			name string
			rows int
		}{{"serial arm", 1}, {"batch arm", n}} {
			t := StepTime{Source: arm.name, Rows: arm.rows}
			for range 20 {
				t.Seconds = append(t.Seconds, around(0.03+0.002*float64(arm.rows), 0.05))
			}
			if n == 2 || arm.rows > 1 {
				v.StepTimes = append(v.StepTimes, t)
			}
		}
		v.Floors = append(v.Floors, Floor{n, 0.026 + 0.001*float64(n)})
		return &v.Criteria[len(v.Criteria)-1]
	}
	add("single-request latency", 1, 1.05, 1.004, 1, pass)
	add("throughput, 2 concurrent", 2, 1.7, 1.812, 1.94, pass)
	c := add("throughput, 4 concurrent", 4, 3, 2.71, 3.7, fail)
	c.Cause, c.Notes = "the accelerator is underused", []string{"one more reason"}
	c.Missing = &Missing{Ideal: 4, Ceiling: 3.7, Measured: 2.71, Parts: []Part{
		{"weights", 0, 0.6, "more threads help"}, {"prefill", 0.25, 0.5, "fewer prompt tokens"}, {"KV", 0.05, -0.2, ""}, {"the rest", 0, 0.09, ""},
	}}
	c = add("throughput, 8 concurrent", 8, 4.5, 4.52, 4.9, inconclusive)
	c.Lower, c.Upper = 0, math.Inf(1)
	c.Blocks[3].LeftOut, c.Added = "disturbed: steal time 12 %", "1 block beyond the plan"
	add("throughput, 3 concurrent", 3, math.NaN(), 2.5, 2.9, "MEASURED")

	v.Sweep = &Sweep{Model: "random:llama-3.2-1b", Knee: 4, KneeEfficiency: 0.8}
	for _, p := range [][3]float64{{1, 1, 1}, {2, 1.9, 1.98}, {4, 3.3, 3.9}, {8, 4.7, 5.6}} {
		ms := 80 * p[0] / p[1]
		v.Sweep.Points = append(v.Sweep.Points, SweepPoint{int(p[0]), ms, 0.97 * ms, 1.1 * ms, 1e3 * p[0] / ms, p[1], p[1] / p[0], p[2]})
	}
	v.Blocking = &Blocking{Model: v.Sweep.Model, Prefill: 0.4, Issued: 248, Useful: 52, Waste: 0.7903, Goodput: 12.5, Tokens: []int{32, 4, 4, 4, 4, 4, 4, 4}}
	for range 31 {
		v.Blocking.Steps = append(v.Blocking.Steps, around(0.13, 0.05))
	}
	v.Comparison = &Comparison{Requests: 8, Blocks: 3, Metrics: []Metric{
		{"token-slots computed", 256, 60, 0.234}, {"token-slots wasted", 196, 0, 0}, {"makespan s", 4.4, 3.1, 0.705}, {"goodput tok/s", 13.6, 19.4, 1.42},
	}}
	v.Serving = &Serving{Load: "2 runs of 24 requests, Poisson arrivals at 1.5 requests/s", Limits: "TTFT ≤ 1 s", Model: "random:qwen3.5-mini", TTFT: 1}
	for i, name := range []string{"serial", "static", "continuous", "whole prompts"} {
		a := ServingArm{Arm: Arm{Name: name}, Rates: Rates{Offered: 1.5, Throughput: 0.6 + 0.25*float64(i), Goodput: 0.1 + 0.3*float64(i), Share: 0.2 + 0.2*float64(i), TokensPerS: 20 + 9*float64(i)}}
		for k := range 24 {
			a.TTFT = append(a.TTFT, around(2/float64(i+1), 0.9))
			a.Steps = append(a.Steps, Step{0.5 * float64(k), 0.4, 1 + (k*i)%8})
			for range 4 {
				a.ITL = append(a.ITL, around(0.05+0.01*float64(i), 0.5))
			}
		}
		v.Serving.Arms = append(v.Serving.Arms, a)
	}
	v.Plan = &Plan{Model: v.Serving.Model, Cost: "8 ms and 1 ms for each token", Load: "1000 requests for each policy", Limits: "TTFT ≤ 1 s", Fitted: 8}
	for i, rows := range []int{8, 64, 256} {
		for k, name := range []string{"serial", "static", "continuous"} {
			rate := 1.5 + 0.4*float64(i)
			v.Plan.Sizes = append(v.Plan.Sizes, PlanSize{Rows: rows, Name: name,
				Rates:  Rates{Offered: rate, Throughput: min(rate, 0.6+float64(k)), Goodput: 0.3 * float64(k), Share: 0.4 * float64(k), TokensPerS: 30},
				TTFT50: 0.2, TTFT95: 90 / float64(1+20*k), TPOT95: 0.05})
		}
	}
	return v
}
