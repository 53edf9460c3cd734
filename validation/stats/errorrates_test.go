package stats

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	sessions = flag.Int("sessions", 200, "simulated sessions a point of the error-rate table; four times as many beside the target")
	gridName = flag.String("grid", "reduced", "points of the error-rate table: reduced or full")
	seedFlag = flag.Uint64("seed", 1, "seed of the simulated sessions")
	outDir   = flag.String("out", "", "folder for the error-rate table and the power curve; none if empty")
)

var allTargets = []Target{{1.05, AtMost}, {1.7, AtLeast}, {3.0, AtLeast}, {4.5, AtLeast}}

// TestErrorRates simulates whole sessions around each target and holds the
// verdicts to their promises. The committed table is made by
//
//	go test ./validation/stats -run TestErrorRates -timeout 0 -sessions 10000 -grid full -out ../../benchdata/error-rates
func TestErrorRates(t *testing.T) {
	t.Logf("seed %d", *seedFlag)
	models := noises()
	recorded, err := recordings("../../benchdata/noise")
	require.NoError(t, err)
	models = append(models, recorded...)

	targets := allTargets
	offsets := []float64{-0.10, -0.05, -0.04, -0.03, -0.02, -0.01, -edge, edge, 0.01, 0.02, 0.03, 0.04, 0.05, 0.10}
	switch *gridName {
	case "full":
	case "reduced":
		targets = []Target{allTargets[0], allTargets[2]}
		offsets = []float64{-0.05, -0.03, -edge, edge, 0.03, 0.05}
	default:
		t.Fatalf("-grid %q is unknown: use reduced or full", *gridName)
	}
	points := grid(targets, models, offsets, *sessions)
	simulate(points, models, *seedFlag, byPlan(criterionPlan(t)))
	controls := simulateControls(models, *sessions, 0.05, *seedFlag, controlPlan(t))
	needs := requirements(points, controls)

	for _, q := range needs {
		assert.True(t, q.met(), "%s: %.4f at %s, required %.2f", q.Text, q.Worst, q.Where, q.Limit)
		t.Logf("%s: worst %.4f at %s (required %.2f)", q.Text, q.Worst, q.Where, q.Limit)
	}
	for _, p := range points {
		assert.LessOrEqual(t, p.Blocks, DefaultBlocks*p.Sessions)
		if p.Inside && !strings.HasPrefix(p.Noise, "recorded") {
			assert.LessOrEqual(t, p.rate(p.Trend), 1.4*TrendAlpha+3*math.Sqrt(TrendAlpha/float64(p.Sessions)),
				"false alarms of the trend check: %+v", p)
		}
	}
	if *outDir != "" {
		require.NoError(t, os.MkdirAll(*outDir, 0o755))
		for name, text := range map[string]string{
			"error-rates.txt": table(points, controls, needs),
			"error-rates.csv": csv(points),
			"power.svg":       powerCurve(points),
		} {
			require.NoError(t, os.WriteFile(filepath.Join(*outDir, name), []byte(text), 0o644))
		}
	}
}

// The simulation itself must be able to say no: the plain bound read at each
// look, a bound that is one rank too near, and a rule of averages all fail it.
func TestErrorRatesCatchBadRules(t *testing.T) {
	models := noises()[:3]
	plan := criterionPlan(t)
	near := plan
	near.Ranks = make([]int, len(plan.Ranks))
	for i, k := range plan.Ranks {
		near.Ranks[i] = k + 1
	}
	peek := plan
	peek.Ranks = ranksAt(plan.Looks, 0.05)
	average := func(ratios []float64, target Target) (Verdict, int) {
		sum := 0.0
		for _, r := range ratios[:10] {
			sum += r
		}
		if (sum/10 <= target.Value) == (target.Direction == AtMost) {
			return Pass, 10
		}
		return Fail, 10
	}
	for name, bad := range map[string]rule{"peeking": byPlan(peek), "one rank too near": byPlan(near), "averages": average} {
		points := grid(allTargets[:1], models, []float64{-edge, edge}, 250)
		simulate(points, models, 1, bad)
		q := requirements(points, nil)[0]
		t.Logf("%s: wrong %.3f", name, q.Worst)
		assert.False(t, q.met(), name)
	}
	// And a rule that never decides has no power.
	points := grid(allTargets[:1], models, []float64{-0.05, 0.05}, 100)
	simulate(points, models, 1, func([]float64, Target) (Verdict, int) { return Inconclusive, 24 })
	assert.False(t, requirements(points, nil)[2].met())
}

// The A/A control must see arms that differ, and say no when it cannot see.
func TestControlCatchesBias(t *testing.T) {
	for name, c := range map[string]struct {
		bias, spread float64
		invalid      float64 // least share of sessions
	}{
		"2 % bias, 1 % noise":  {0.02, 0.01, 0.75},
		"no bias, 15 % noise":  {0, 0.15, 0.99},
		"10 % bias, 5 % noise": {0.10, 0.05, 0.99},
	} {
		biased := noise{name, true, func(r *rand.Rand, order []bool) []float64 {
			y := byRun(white(c.spread))(r, order)
			for i := range y {
				y[i] += c.bias
			}
			return y
		}}
		got := simulateControls([]noise{biased}, 500, 0.05, 1, controlPlan(t))[0]
		assert.GreaterOrEqual(t, float64(got.Alarm+got.Wide), c.invalid*500, "%s: %+v", name, got)
	}
}

// Counts do not depend on the number of cores or on the run.
func TestSimulationIsDeterministic(t *testing.T) {
	run := func() []point {
		points := grid(allTargets[:2], noises(), []float64{-0.02, edge}, 20)
		simulate(points, noises(), 5, byPlan(criterionPlan(t)))
		return points
	}
	first := run()
	assert.Equal(t, first, run())
	other := grid(allTargets[:2], noises(), []float64{-0.02, edge}, 20)
	simulate(other, noises(), 6, byPlan(criterionPlan(t)))
	assert.NotEqual(t, first, other)
}

// Each model's noise has median 0 at every block, so "the true ratio" is true.
func TestNoiseIsCentred(t *testing.T) {
	for _, m := range noises() {
		r := testRand(t, 9)
		const n = 4000
		above := make([]int, 6)
		for range n {
			for i, y := range m.draw(r, Order(r.Uint64(), 6)) {
				if y > 0 {
					above[i]++
				}
			}
		}
		for i, c := range above {
			assert.InDelta(t, 0.5, float64(c)/n, 0.036, "%s, block %d", m.name, i) // 4.5 standard errors
		}
	}
}

// A stronger test bought with symmetry breaks without it: the signed-rank test
// at a nominal 5 % against noise whose median is the target.
func TestSymmetryIsNotFree(t *testing.T) {
	skewed := noises()[10]
	require.Equal(t, "skewed", skewed.name)
	const n, sessions = DefaultBlocks, 4000
	// Exact null distribution of the sum of ranks of one sign.
	total := n * (n + 1) / 2
	null := make([]float64, total+1)
	null[0] = 1
	for rank := 1; rank <= n; rank++ {
		for s := total; s >= 0; s-- {
			null[s] /= 2
			if s >= rank {
				null[s] += null[s-rank] / 2
			}
		}
	}
	critical, sum := 0, 0.0
	for sum+null[critical] <= 0.05 {
		sum += null[critical]
		critical++
	}
	r := testRand(t, 13)
	signs, ranks := 0, 0
	need := n - Rank(n, 0.95) + 1
	for range sessions {
		y := skewed.draw(r, Order(r.Uint64(), n))
		up, w := 0, 0
		for i := range y {
			if y[i] < 0 {
				up++
				continue
			}
			for j := range y { // rank of |y[i]|
				if math.Abs(y[j]) <= math.Abs(y[i]) {
					w++
				}
			}
		}
		if up >= need {
			signs++
		}
		if w < critical {
			ranks++
		}
	}
	t.Logf("error at a nominal 5 %%, %d blocks: signs %.3f, signed ranks %.3f", n, float64(signs)/sessions, float64(ranks)/sessions)
	assert.LessOrEqual(t, float64(signs)/sessions, 0.06)
	assert.Greater(t, float64(ranks)/sessions, 0.10)
}

func TestRecordingFormat(t *testing.T) {
	twelve := strings.TrimSuffix(strings.Repeat("2.0,2.1,", 6), ",")
	m, err := parseRecording("x", []byte(`{"schema":1,"machine":"m","command":"c","sessions":[[`+twelve+`]]}`))
	require.NoError(t, err)
	y := m.draw(testRand(t, 1), make([]bool, 10))
	require.Len(t, y, 10)
	for i := range y { // pieces start at pairs: the alternation survives
		assert.InDelta(t, math.Log([]float64{2.0, 2.1}[i%2]/2.05), y[i], 1e-12)
	}
	for text, want := range map[string]string{
		`{`: "unexpected end",
		`{"schema":2,"sessions":[[` + twelve + `]]}`:   "schema 2",
		`{"schema":1,"sessions":[]}`:                   "no sessions",
		`{"schema":1,"sessions":[[1,2]]}`:              "session 1 has 2 ratios",
		`{"schema":1,"sessions":[[` + twelve + `,0]]}`: "ratio 13 of 13 is 0",
	} {
		_, err := parseRecording("x", []byte(text))
		assert.ErrorContains(t, err, want)
	}
}

func table(points []point, controls []control, needs []requirement) string {
	var b strings.Builder
	fmt.Fprintf(&b, `Error rates of the verdicts, by simulation.
Made by: go test ./validation/stats -run TestErrorRates -timeout 0 -sessions %d -grid %s -seed %d -out ../../benchdata/error-rates
Rule: looks after 6, 8, ..., %d blocks, one-sided 95 %%; control at 97.5 %% a side, margin 5 %%.
truth: true ratio against the target, + where it meets it; +-0 is just beside the target (1e-6), with four times
the sessions.
spread: standard deviation of the log ratio within a session. agree: share of neighbouring blocks on one side of
the true ratio (0.5 if independent). blocks: mean. trend: sessions invalid for a trend.
decided: PASS or FAIL and no trend. Models marked * break the assumptions; nothing is required of them.

`, *sessions, *gridName, *seedFlag, DefaultBlocks)
	for _, q := range needs {
		sign, met := "≤", "met"
		if q.Least {
			sign = "≥"
		}
		if !q.met() {
			met = "NOT MET"
		}
		fmt.Fprintf(&b, "%-7s  %-58s required %s %.2f, worst %.4f (%s)\n", met, q.Text, sign, q.Limit, q.Worst, q.Where)
	}
	fmt.Fprintf(&b, "\nA/A control\n%-18s %8s %8s %8s %8s\n", "noise", "pass", "alarm", "too wide", "blocks")
	for _, c := range controls {
		n := float64(c.Sessions)
		fmt.Fprintf(&b, "%-18s %8.4f %8.4f %8.4f %8.1f\n", starred(c.Noise, c.Inside), float64(c.Pass)/n, float64(c.Alarm)/n, float64(c.Wide)/n, float64(c.Blocks)/n)
	}
	last := Target{}
	for _, p := range points {
		if p.Target != last {
			last = p.Target
			fmt.Fprintf(&b, "\nTarget %v\n%-18s %7s %6s %7s %8s %8s %8s %8s %8s %7s\n", p.Target, "noise", "spread", "agree", "truth", "PASS", "FAIL", "wrong", "decided", "trend", "blocks")
		}
		fmt.Fprintf(&b, "%-18s %5.1f %% %6.3f %+5.0f %% %8.4f %8.4f %8.4f %8.4f %8.4f %7.1f\n", starred(p.Noise, p.Inside), p.Spread*100, p.Agree, p.Offset*100,
			p.rate(p.Pass), p.rate(p.Fail), p.rate(p.wrong()), p.rate(p.Decided), p.rate(p.Trend), p.rate(p.Blocks))
	}
	return b.String()
}

func starred(name string, inside bool) string {
	if inside {
		return name
	}
	return name + "*"
}

func csv(points []point) string {
	var b strings.Builder
	b.WriteString("target,direction,noise,within_assumptions,offset,sessions,spread,agree,pass,fail,wrong,decided,trend,mean_blocks\n")
	for _, p := range points {
		fmt.Fprintf(&b, "%g,%s,%s,%t,%g,%d,%.5f,%.4f,%d,%d,%d,%d,%d,%.3f\n", p.Target.Value, p.Target.Direction, p.Noise, p.Inside, p.Offset,
			p.Sessions, p.Spread, p.Agree, p.Pass, p.Fail, p.wrong(), p.Decided, p.Trend, p.rate(p.Blocks))
	}
	return b.String()
}

// powerCurve draws the chance of PASS (full line) and FAIL (dashed) against the
// true ratio, one colour for each lognormal spread, for the last target.
func powerCurve(points []point) string {
	const width, height, left, top, plotW, plotH = 720, 440, 60, 40, 620, 330
	target := points[len(points)-1].Target
	low, high := -0.10, 0.10
	x := func(offset float64) float64 { return left + plotW*(offset-low)/(high-low) }
	y := func(rate float64) float64 { return top + plotH*(1-rate) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="22" font-size="14">Chance of PASS (line) and FAIL (dashes), target %v, at most %d blocks</text>`+"\n", left, target, DefaultBlocks)
	for i := 0; i <= 10; i += 2 {
		rate := float64(i) / 10
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%d %%</text>`+"\n", left, y(rate), left+plotW, left-6, y(rate)+4, i*10)
	}
	for i := -10; i <= 10; i += 2 {
		offset := float64(i) / 100
		fmt.Fprintf(&b, `<path d="M%.1f %dV%d" stroke="#eee"/><text x="%.1f" y="%d" text-anchor="middle">%+d %%</text>`+"\n", x(offset), top, top+plotH, x(offset), top+plotH+18, i)
	}
	fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#c00" stroke-dasharray="2 3"/><text x="%d" y="%.1f" fill="#c00" text-anchor="end">5 %%</text>`+"\n", left, y(0.05), left+plotW, left+plotW, y(0.05)-4)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">true ratio against the target</text>`+"\n", left+plotW/2, top+plotH+40)
	colours := []string{"#0072b2", "#009e73", "#e69f00", "#cc79a7"}
	for i, percent := range []float64{1, 2, 3, 5} {
		name := fmt.Sprintf("lognormal-%g%%", percent)
		pass, fail := "M", "M"
		for _, p := range points {
			if p.Target == target && p.Noise == name {
				pass += fmt.Sprintf(" %.1f,%.1f", x(p.Offset), y(p.rate(p.Pass)))
				fail += fmt.Sprintf(" %.1f,%.1f", x(p.Offset), y(p.rate(p.Fail)))
			}
		}
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/><path d="%s" fill="none" stroke="%[2]s" stroke-width="2" stroke-dasharray="6 4"/>`+"\n", pass, colours[i], fail)
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s">spread %g %%</text>`+"\n", left+plotW-90, top+60+16*i, colours[i], percent)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
