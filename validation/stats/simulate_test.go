package stats

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// A noise draws the noise of one session: the log of (block ratio ÷ true ratio)
// of each block, given which arm ran first. Its median is 0, so that the true
// ratio is the median ratio.
type noise struct {
	name string
	// inside is false for noise that breaks assumption A1 of the package
	// documentation. It is simulated and reported, and nothing is required of it.
	inside bool
	draw   func(r *rand.Rand, serialFirst []bool) []float64
}

// byRun makes block noise from the noise of single arm runs, two a block, in the
// order in which the machine ran them: what the machine did at that moment,
// whichever arm it was.
func byRun(run func(r *rand.Rand, runs int) []float64) func(*rand.Rand, []bool) []float64 {
	return func(r *rand.Rand, serialFirst []bool) []float64 {
		x := run(r, 2*len(serialFirst))
		y := make([]float64, len(serialFirst))
		for i, first := range serialFirst {
			serial, batch := x[2*i], x[2*i+1]
			if !first {
				serial, batch = batch, serial
			}
			y[i] = batch - serial
		}
		return y
	}
}

// white is independent normal noise of the log, of the given spread per block.
func white(spread float64) func(*rand.Rand, int) []float64 {
	return func(r *rand.Rand, runs int) []float64 {
		x := make([]float64, runs)
		for i := range x {
			x[i] = spread / math.Sqrt2 * r.NormFloat64()
		}
		return x
	}
}

// autoregressive is stationary first-order noise of the given spread.
func autoregressive(r *rand.Rand, n int, phi, spread float64) []float64 {
	x := make([]float64, n)
	x[0] = spread * r.NormFloat64()
	for i := 1; i < n; i++ {
		x[i] = phi*x[i-1] + spread*math.Sqrt(1-phi*phi)*r.NormFloat64()
	}
	return x
}

func add(x, y []float64) []float64 {
	for i := range x {
		x[i] += y[i]
	}
	return x
}

// noises are the models of the error-rate table. Spreads are those of the block
// ratio, where two runs make one.
func noises() []noise {
	models := []noise{}
	for _, percent := range []float64{1, 2, 3, 5} {
		models = append(models, noise{fmt.Sprintf("lognormal-%g%%", percent), true, byRun(white(percent / 100))})
	}
	return append(models,
		// The machine gets 20 % slower from the first to the last allowed block.
		noise{"drift-20%", true, byRun(func(r *rand.Rand, n int) []float64 {
			x := white(0.03)(r, n)
			for i := range x {
				x[i] += math.Log(1.2) * float64(i) / float64(2*DefaultBlocks-1)
			}
			return x
		})},
		// As before with hardly any other noise: drift decides each sign.
		noise{"drift-20%-quiet", true, byRun(func(r *rand.Rand, n int) []float64 {
			x := white(0.002)(r, n)
			for i := range x {
				x[i] += math.Log(1.2) * float64(i) / float64(2*DefaultBlocks-1)
			}
			return x
		})},
		// A neighbour comes for five runs or so, a sixth of the time, and costs 10 to 50 %.
		noise{"bursts", true, byRun(func(r *rand.Rand, n int) []float64 {
			x := white(0.02)(r, n)
			busy := r.Float64() < 1./6
			for i := range x {
				if busy {
					x[i] += math.Log(1.1 + 0.4*r.Float64())
					busy = r.Float64() >= 0.2
				} else {
					busy = r.Float64() < 0.04
				}
			}
			return x
		})},
		// The coefficient at which the two blocks of a pair agree most.
		noise{"ar1-0.5", true, byRun(func(r *rand.Rand, n int) []float64 {
			return autoregressive(r, n, 0.5, 0.03) // block spread 3 %: √(2(1-φ)) = 1
		})},
		// Slow swings of 10 % that both arms share.
		noise{"ar1-0.95", true, byRun(func(r *rand.Rand, n int) []float64 {
			return add(autoregressive(r, n, 0.95, 0.1), white(0.02)(r, n))
		})},
		// Two clock states 6 % apart, kept for three runs or so.
		noise{"bimodal", true, byRun(func(r *rand.Rand, n int) []float64 {
			x := white(0.01)(r, n)
			slow := r.IntN(2) == 0
			for i := range x {
				if slow {
					x[i] += 0.06
				}
				if r.IntN(3) == 0 {
					slow = !slow
				}
			}
			return x
		})},
		// Only the serial arm has a long tail: no symmetry, median still 0.
		noise{"skewed", true, func(r *rand.Rand, serialFirst []bool) []float64 {
			y := make([]float64, len(serialFirst))
			for i := range y {
				y[i] = -0.03 * (r.ExpFloat64() - math.Ln2)
			}
			return y
		}},
		// One arm alone wanders: there is no one ratio to find.
		noise{"ar1-ratio-0.3", false, func(r *rand.Rand, serialFirst []bool) []float64 {
			return autoregressive(r, len(serialFirst), 0.3, 0.03)
		}},
	)
}

// A recording holds the block ratios of real sessions, in run order:
//
//	{"schema": 1, "machine": "...", "command": "...", "sessions": [[1.93, 1.95, ...], ...]}
//
// Sessions of fewer than 10 ratios are refused.
type recording struct {
	Schema   int         `json:"schema"`
	Machine  string      `json:"machine"`
	Command  string      `json:"command"`
	Sessions [][]float64 `json:"sessions"`
}

// recordings turns each file of benchdata/noise into a noise: a circular block
// bootstrap. A simulated session is sewn from pieces of four successive ratios
// of one recorded session, each divided by that session's median, so that short
// dependence and the order in pairs survive.
func recordings(dir string) ([]noise, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}
	var models []noise
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		n, err := parseRecording("recorded-"+strings.TrimSuffix(filepath.Base(file), ".json"), text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		models = append(models, n)
	}
	return models, nil
}

func parseRecording(name string, text []byte) (noise, error) {
	var rec recording
	if err := json.Unmarshal(text, &rec); err != nil {
		return noise{}, err
	}
	if rec.Schema != 1 {
		return noise{}, fmt.Errorf("schema %d is unknown: this reads schema 1", rec.Schema)
	}
	if len(rec.Sessions) == 0 {
		return noise{}, fmt.Errorf("there are no sessions")
	}
	logs := make([][]float64, len(rec.Sessions))
	for i, ratios := range rec.Sessions {
		if len(ratios) < 10 {
			return noise{}, fmt.Errorf("session %d has %d ratios: at least 10 are needed", i+1, len(ratios))
		}
		if err := checkSamples("ratio", ratios); err != nil {
			return noise{}, fmt.Errorf("session %d: %w", i+1, err)
		}
		center := Median(ratios)
		for _, r := range ratios {
			logs[i] = append(logs[i], math.Log(r/center))
		}
	}
	const piece = 4
	return noise{name, true, func(r *rand.Rand, serialFirst []bool) []float64 {
		from := logs[r.IntN(len(logs))]
		var y []float64
		for len(y) < len(serialFirst) {
			start := 2 * r.IntN(len(from)/2) // at a pair
			for i := range piece {
				y = append(y, from[(start+i)%len(from)])
			}
		}
		return y[:len(serialFirst)]
	}}, nil
}

// A rule reads a session block by block: what it says, and after how many.
type rule func(ratios []float64, target Target) (v Verdict, blocks int)

// byPlan is the rule of this package: at each look decide, and stop when decided.
func byPlan(plan Plan) rule {
	return func(ratios []float64, target Target) (Verdict, int) {
		for n, ok := plan.Next(0); ok; n, ok = plan.Next(n) {
			if d := Decide(ratios[:n], target, plan); d.Verdict != Inconclusive {
				return d.Verdict, n
			}
		}
		return Inconclusive, plan.Max()
	}
}

// A point is one cell of the error-rate table, and what came of it.
type point struct {
	Target   Target
	Noise    string
	Inside   bool    // the noise keeps the assumptions
	Offset   float64 // true ratio ÷ target - 1, in the direction that meets the target; never 0
	Sessions int
	Spread   float64 // standard deviation of the log ratio, within a session
	Agree    float64 // share of neighbouring blocks on one side of the true ratio: 0.5 if independent
	Pass     int     // verdicts, before the trend check
	Fail     int
	Trend    int // sessions called invalid for a trend, whatever the verdict
	Decided  int // pass or fail, and no trend
	Blocks   int // over all sessions
}

func (p point) rate(count int) float64 { return float64(count) / float64(p.Sessions) }

// wrong counts verdicts on the wrong side.
func (p point) wrong() int {
	if p.Offset > 0 {
		return p.Fail
	}
	return p.Pass
}

// simulate fills in the points, in parallel; each has its own seed, so that the
// counts do not depend on the number of cores.
func simulate(points []point, models []noise, seed uint64, judge rule) {
	byName := map[string]noise{}
	for _, m := range models {
		byName[m.name] = m
	}
	parallel(len(points), func(i int) {
		p := &points[i]
		model := byName[p.Noise]
		r := rand.New(rand.NewPCG(seed, hash(fmt.Sprint(p.Target, p.Noise, p.Offset))))
		truth := p.Target.Value * (1 + p.Offset)
		if p.Target.Direction == AtMost {
			truth = p.Target.Value / (1 + p.Offset)
		}
		ratios := make([]float64, DefaultBlocks)
		squares, agree := 0.0, 0
		for range p.Sessions {
			y := model.draw(r, Order(r.Uint64(), DefaultBlocks))
			sum, sum2 := 0.0, 0.0
			for k := range ratios {
				ratios[k] = truth * math.Exp(y[k])
				sum += y[k]
				sum2 += y[k] * y[k]
				if k > 0 && (y[k] > 0) == (y[k-1] > 0) {
					agree++
				}
			}
			n := float64(len(y))
			squares += (sum2 - sum*sum/n) / (n - 1)
			verdict, blocks := judge(ratios, p.Target)
			trend := !Trend(ratios[:blocks], TrendAlpha).OK
			switch verdict {
			case Pass:
				p.Pass++
			case Fail:
				p.Fail++
			}
			if trend {
				p.Trend++
			} else if verdict == Pass || verdict == Fail {
				p.Decided++
			}
			p.Blocks += blocks
		}
		p.Spread = math.Sqrt(squares / float64(p.Sessions))
		p.Agree = float64(agree) / float64(p.Sessions*(DefaultBlocks-1))
	})
}

// A control is the outcome of simulated A/A sessions under one noise.
type control struct {
	Noise    string
	Inside   bool
	Sessions int
	Pass     int
	Alarm    int // identical arms said to differ
	Wide     int // too noisy for the margin
	Blocks   int
}

func simulateControls(models []noise, sessions int, margin float64, seed uint64, plan Plan) []control {
	out := make([]control, len(models))
	parallel(len(models), func(i int) {
		m := models[i]
		c := control{Noise: m.name, Inside: m.inside, Sessions: sessions}
		r := rand.New(rand.NewPCG(seed, hash("A/A "+m.name)))
		for range sessions {
			ratios := m.draw(r, Order(r.Uint64(), DefaultBlocks))
			for k := range ratios {
				ratios[k] = math.Exp(ratios[k])
			}
			for n, ok := plan.Next(0); ok; n, ok = plan.Next(n) {
				d := DecideControl(ratios[:n], margin, plan)
				if d.Verdict == Inconclusive {
					continue
				}
				switch {
				case d.Verdict == Pass:
					c.Pass++
				case d.Lower > 1 || d.Upper < 1:
					c.Alarm++
				default:
					c.Wide++
				}
				c.Blocks += n
				break
			}
		}
		out[i] = c
	})
	return out
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

func parallel(n int, do func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// grid is every target × noise × offset. An offset of ±edge stands for a truth
// that is on that side by nothing worth naming: the worst case of the error.
const edge = 1e-6

func grid(targets []Target, models []noise, offsets []float64, sessions int) []point {
	var points []point
	for _, target := range targets {
		for _, m := range models {
			for _, offset := range offsets {
				n := sessions
				if math.Abs(offset) == edge {
					n *= 4 // the tightest promise is told apart from its limit here
				}
				points = append(points, point{Target: target, Noise: m.name, Inside: m.inside, Offset: offset, Sessions: n})
			}
		}
	}
	return points
}

// A requirement is one line of what the error rates must be.
type requirement struct {
	Text  string
	Limit float64
	Worst float64 // the worst point's rate
	Where string
	Least bool // the rate must be at least the limit
	n     int  // sessions of the worst point
}

// met allows three standard errors of the simulation itself.
func (q requirement) met() bool {
	slack := 3 * math.Sqrt(q.Limit*(1-q.Limit)/float64(q.n))
	if q.Least {
		return q.n > 0 && q.Worst >= q.Limit-slack
	}
	return q.n > 0 && q.Worst <= q.Limit+slack
}

func requirements(points []point, controls []control) []requirement {
	anywhere := requirement{Text: "wrong PASS or FAIL, true ratio anywhere on the other side", Limit: 0.05}
	far := requirement{Text: "wrong PASS or FAIL, true ratio off by 3 % or more", Limit: 0.01}
	power := requirement{Text: "PASS or FAIL, true ratio off by 5 %, block spread ≤ 3 %", Limit: 0.90, Least: true, Worst: 2}
	alarm := requirement{Text: "false alarm of the A/A control", Limit: 0.05}
	worse := func(q *requirement, rate float64, n int, where string) {
		if q.n == 0 || q.Least == (rate < q.Worst) && rate != q.Worst {
			q.Worst, q.n, q.Where = rate, n, where
		}
	}
	for _, p := range points {
		if !p.Inside {
			continue
		}
		where := fmt.Sprintf("%s, target %v, truth %+.4g %%", p.Noise, p.Target, p.Offset*100)
		worse(&anywhere, p.rate(p.wrong()), p.Sessions, where)
		size := math.Round(math.Abs(p.Offset)*1e6) / 1e6
		if size >= 0.03 {
			worse(&far, p.rate(p.wrong()), p.Sessions, where)
		}
		// 3.05: the spread of a simulated 3 % is 3 % give or take.
		if size == 0.05 && p.Spread <= 0.0305 {
			worse(&power, p.rate(p.Decided), p.Sessions, where)
		}
	}
	for _, c := range controls {
		if c.Inside {
			worse(&alarm, float64(c.Alarm)/float64(c.Sessions), c.Sessions, c.Noise)
		}
	}
	return []requirement{anywhere, far, power, alarm}
}
