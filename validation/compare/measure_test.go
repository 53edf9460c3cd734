package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/validation/stats"
)

// fakeRunner answers at once, with times that a noise model draws: the log of
// what the machine costs in run number n.
type fakeRunner struct {
	slow  float64 // of head's decode rows, 1.05 is 5 % slower
	noise func(n int) float64
	own   func() float64 // noise of each row
	n     int
	first []int
	edit  func(side, n int, out string) (string, error)
}

// fakeRows are rows like those of the default selection: most decode, one does not.
var fakeRows = []struct {
	name   string
	tokens float64
	decode bool
}{
	{"DecodeStep/model=m/backend=cpu/batch=1-2", 60, true},
	{"DecodeStep/model=m/backend=cpu/batch=8-2", 250, true},
	{"Generate/model=m/backend=cpu/mode=serial/concurrent=4-2", 50, true},
	{"Generate/model=m/backend=cpu/mode=batch/concurrent=4-2", 120, true},
	{"Prefill/model=m/backend=cpu/tokens=64-2", 300, false},
}

func (f *fakeRunner) run(_ context.Context, first int) (out [2][]byte, err error) {
	f.first = append(f.first, first)
	machine := 0.0 // what meets both
	if f.noise != nil {
		machine = f.noise(f.n)
	}
	for side := range out {
		if out[side], err = f.side(side, machine); err != nil {
			return out, err
		}
	}
	f.n++
	return out, nil
}

func (f *fakeRunner) side(side int, machine float64) ([]byte, error) {
	out := "Unit tok/s better=higher\nmodel: m\nengine: cpu: avx512, 2 threads\ncores: 2\nmemory: 24 GiB\ngoos: linux\ngoarch: amd64\ncpu: Test CPU\n"
	for _, row := range fakeRows {
		cost := machine
		if f.own != nil {
			cost += f.own()
		}
		if side == 1 && row.decode && f.slow > 0 {
			cost += math.Log(f.slow)
		}
		rate := row.tokens * math.Exp(-cost)
		out += fmt.Sprintf("Benchmark%s 10 %.9g ns/op %.9g tok/s\n", row.name, 1e9/rate, rate)
	}
	if f.edit != nil {
		edited, err := f.edit(side, f.n, out)
		return []byte(edited), err
	}
	return []byte(out), nil
}

func fakeSession(r runner) *session {
	t := time.Unix(0, 0)
	return &session{
		runner: r, labels: [2]string{"base", "head"}, units: "auto", margin: 0.03, alpha: 0.01, blocks: 32, seed: 1,
		files: [2]io.Writer{io.Discard, io.Discard},
		now:   func() time.Time { t = t.Add(time.Second); return t }, progress: func(string, ...any) {},
	}
}

// machines are noise models of one run, by number of the run.
var machines = []struct {
	name  string
	noise func(r *rand.Rand) func(n int) float64
	own   float64 // spread of each row beside what all share
	tries int
}{
	{"quiet", func(r *rand.Rand) func(int) float64 { return white(r, 0.005) }, 0.005, 60},
	{"usable", func(r *rand.Rand) func(int) float64 { return white(r, 0.01) }, 0.015, 60},
	{"drift 20 %", func(r *rand.Rand) func(int) float64 {
		w := white(r, 0.005)
		return func(n int) float64 { return math.Log(1.2)*float64(n)/130 + w(n) }
	}, 0.01, 60},
	{"swings of 10 % over 40 runs", func(r *rand.Rand) func(int) float64 {
		w, phase := white(r, 0.005), 2*math.Pi*r.Float64()
		return func(n int) float64 { return 0.1*math.Sin(phase+2*math.Pi*float64(n)/40) + w(n) }
	}, 0.01, 60},
	{"bursts of 30 %", func(r *rand.Rand) func(int) float64 {
		w, busy := white(r, 0.005), false
		return func(n int) float64 {
			if busy {
				busy = r.Float64() > 0.3
			} else {
				busy = r.Float64() < 0.03
			}
			if busy {
				return math.Log(1.3) + w(n)
			}
			return w(n)
		}
	}, 0.01, 60},
}

func white(r *rand.Rand, spread float64) func(int) float64 {
	return func(int) float64 { return spread * r.NormFloat64() }
}

// Ten of ten tries must give the right answer: identical sides "no change", a
// head whose decode is 5 % slower a regression. So none of many tries may be
// wrong, whatever the machine does to both sides alike.
func TestTenOfTen(t *testing.T) {
	for i, m := range machines {
		for _, c := range []struct {
			slow float64
			want gate
		}{{1, gatePass}, {1.05, gateFail}} {
			t.Run(fmt.Sprintf("%s/%g", m.name, c.slow), func(t *testing.T) {
				t.Parallel()
				wrong, blocks := 0, 0
				for try := range m.tries {
					seed := uint64(1000*i + try)
					r := rand.New(rand.NewPCG(seed, 7))
					f := &fakeRunner{slow: c.slow, noise: m.noise(r), own: func() float64 { return m.own * r.NormFloat64() }}
					s := fakeSession(f)
					s.seed = seed
					res, err := s.measure(t.Context())
					require.NoError(t, err)
					blocks += res.blocks
					if g := verdict(res.rows); g != c.want {
						wrong++
						t.Logf("seed %d: %s after %d blocks", seed, res.answer(s.margin), res.blocks)
					}
				}
				t.Logf("%d wrong of %d, mean blocks %.1f", wrong, m.tries, float64(blocks)/float64(m.tries))
				assert.Zero(t, wrong)
			})
		}
	}
}

// On a machine so noisy that nothing can be shown, the gate says so, and raises
// no alarm on identical code: neither when runs are independent, nor when a
// neighbour's load lasts for some runs.
func TestNoiseIsNotARegression(t *testing.T) {
	for name, phi := range map[string]float64{"independent": 0, "lasting": 0.7} {
		alarms, undecided := 0, 0
		const tries = 60
		for try := range tries {
			r := rand.New(rand.NewPCG(uint64(try), 11))
			last := 0.0
			f := &fakeRunner{slow: 1, own: func() float64 { return 0.1 * r.NormFloat64() }, noise: func(int) float64 {
				last = phi*last + 0.4*math.Sqrt(1-phi*phi)*r.NormFloat64()
				return last
			}}
			res, err := fakeSession(f).measure(t.Context())
			require.NoError(t, err)
			switch verdict(res.rows) {
			case gateFail:
				alarms++
			case gateUndecided:
				undecided++
			}
		}
		t.Logf("%s: alarms %d, undecided %d of %d", name, alarms, undecided, tries)
		assert.LessOrEqual(t, alarms, 2) // 0.6 expected at most, two standard errors
		assert.Greater(t, undecided, 50)
	}
}

// Measured one after the other, drift alone is taken for a regression: the
// interleaving is what the gate stands on.
func TestDriftFoolsRecordedFiles(t *testing.T) {
	drift := func(n int) float64 { return math.Log(1.2) * float64(n) / 48 }
	f := &fakeRunner{slow: 1, noise: drift}
	var sets [2]*set
	for side := range sets {
		sets[side] = newSet(sideNames[side], sideNames[side])
		for range 24 {
			out, err := f.side(side, drift(f.n))
			require.NoError(t, err)
			f.n++
			_, err = sets[side].read(bytes.NewReader(out), "")
			require.NoError(t, err)
		}
	}
	r, err := compareFiles(sets[0], sets[1], "auto", 0.03, 0.01)
	require.NoError(t, err)
	require.Equal(t, gateFail, verdict(r.rows))
	require.Zero(t, r.blocks)

	res, err := fakeSession(&fakeRunner{slow: 1, noise: drift}).measure(t.Context())
	require.NoError(t, err)
	require.Equal(t, gatePass, verdict(res.rows), "the same drift, interleaved")
}

func TestBlocksAreBalanced(t *testing.T) {
	f := &fakeRunner{slow: 1, noise: func(int) float64 { return 0 }, edit: nil}
	r := rand.New(rand.NewPCG(1, 2))
	f.own = func() float64 { return 0.2 * r.NormFloat64() } // never decided
	res, err := fakeSession(f).measure(t.Context())
	require.NoError(t, err)
	require.Equal(t, 32, res.blocks)
	first := [2]int{}
	for _, side := range f.first[1:] { // after the warm-up
		first[side]++
	}
	require.Equal(t, [2]int{16, 16}, first)
}

// What was kept can be judged again, and gives the same answer.
func TestSamplesAreJudgedAgain(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	f := &fakeRunner{slow: 1.05, noise: white(r, 0.02)}
	s := fakeSession(f)
	var files [2]bytes.Buffer
	s.files = [2]io.Writer{&files[0], &files[1]}
	res, err := s.measure(t.Context())
	require.NoError(t, err)
	var sets [2]*set
	for side := range sets {
		sets[side] = newSet(sideNames[side], sideNames[side]+".txt")
		_, err := sets[side].read(&files[side], "")
		require.NoError(t, err)
	}
	again, err := compareFiles(sets[0], sets[1], "auto", 0.03, 0.01)
	require.NoError(t, err)
	require.Equal(t, res.blocks, again.blocks)
	require.Equal(t, res.rows, again.rows)
	require.Equal(t, gateFail, verdict(again.rows))
}

// An interrupt, or the end of the time, keeps the whole blocks before it.
func TestEndsEarly(t *testing.T) {
	noisy := func() *fakeRunner {
		r := rand.New(rand.NewPCG(5, 6))
		return &fakeRunner{slow: 1, noise: func(int) float64 { return 0 }, own: func() float64 { return 0.2 * r.NormFloat64() }}
	}
	ctx, cancel := context.WithCancel(t.Context())
	f := noisy()
	f.edit = func(_, n int, out string) (string, error) {
		if n == 9 { // in block 9
			cancel()
			return "", ctx.Err()
		}
		return out, nil
	}
	var files [2]bytes.Buffer
	s := fakeSession(f)
	s.files = [2]io.Writer{&files[0], &files[1]}
	res, err := s.measure(ctx)
	require.NoError(t, err)
	require.Equal(t, 8, res.blocks)
	require.Contains(t, res.answer(s.margin), "interrupted during block 9 of 32")
	require.Equal(t, gateUndecided, verdict(res.rows))
	for side := range files {
		require.Equal(t, 8*len(fakeRows), bytes.Count(files[side].Bytes(), []byte("\nBenchmark")), "the broken block is left out")
	}

	s = fakeSession(noisy())
	s.limit = 10 * time.Second // the clock moves a second each time it is read
	res, err = s.measure(t.Context())
	require.NoError(t, err)
	require.Less(t, res.blocks, 32)
	require.Contains(t, res.ended, "time limit")

	ctx, cancel = context.WithCancel(t.Context())
	f = noisy()
	f.edit = func(_, n int, out string) (string, error) {
		if n == 1 {
			cancel()
			return "", ctx.Err()
		}
		return out, nil
	}
	_, err = fakeSession(f).measure(ctx)
	require.ErrorContains(t, err, "nothing was measured")
}

func TestMeasureRefuses(t *testing.T) {
	replace := func(from, to string) func(side, n int, out string) (string, error) {
		return func(side, _ int, out string) (string, error) {
			if side == 1 {
				out = string(bytes.ReplaceAll([]byte(out), []byte(from), []byte(to)))
			}
			return out, nil
		}
	}
	for _, c := range []struct {
		name, want string
		edit       func(side, n int, out string) (string, error)
		change     func(s *session)
	}{
		{"a benchmark missing in head", "DecodeStep/model=m/backend=cpu/batch=8-2 is in base and not in head", replace("batch=8", "batch=9"), nil},
		{"no benchmark at all", "has no benchmark that -bench selects", replace("Benchmark", "X"), nil},
		{"two machines", `cpu "Test CPU" against "Other"`, replace("Test CPU", "Other"), nil},
		{"a time of zero", "is NaN", nil, nil},
		{"a failing side", "the benchmarks fail", func(side, _ int, out string) (string, error) {
			return out, errors.New("head: the benchmarks fail")
		}, nil},
		{"no such unit", "no benchmark has the unit furlongs", nil, func(s *session) { s.units = "furlongs" }},
		{"too few blocks", "want at least 6 blocks", nil, func(s *session) { s.blocks = 5 }},
		{"too few blocks for the rows", "too few blocks to show anything of 5 rows", nil, func(s *session) { s.blocks = 8 }},
		{"a benchmark that appears late", "which it did not measure at first", func(side, n int, out string) (string, error) {
			if n > 0 {
				out += "BenchmarkNew 1 1 ns/op\n"
			}
			return out, nil
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &fakeRunner{slow: 1, edit: c.edit}
			if c.name == "a time of zero" {
				f.edit = func(_, n int, out string) (string, error) {
					return out + "BenchmarkZero 1 0 ns/op\n", nil
				}
			}
			s := fakeSession(f)
			if c.change != nil {
				c.change(s)
			}
			_, err := s.measure(t.Context())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// A block that lacks a row is measured again, and does not end the comparison; a
// row that is always lacking does.
func TestBlockLacksARow(t *testing.T) {
	lack := func(runs ...int) *fakeRunner {
		f := &fakeRunner{slow: 1, noise: func(int) float64 { return 0 }}
		f.edit = func(side, n int, out string) (string, error) {
			if side == 1 && slices.Contains(runs, n) {
				out = strings.Replace(out, " tok/s\n", " req/s\n", 1)
			}
			return out, nil
		}
		return f
	}
	var said []string
	s := fakeSession(lack(3, 4))
	s.progress = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	res, err := s.measure(t.Context())
	require.NoError(t, err)
	require.Equal(t, gatePass, verdict(res.rows))
	require.Contains(t, said, "block 3 of at most 32: DecodeStep/model=m/backend=cpu/batch=1-2 tok/s was not measured on both sides; measured again")

	_, err = fakeSession(lack(3, 4, 5)).measure(t.Context())
	require.ErrorContains(t, err, "block 3 has a row without a measurement, three times in a row; give each benchmark more time with -benchtime")
}

// The rules by themselves.
func TestJudge(t *testing.T) {
	rules, err := newRules(3, 24, 0.03, 0.05)
	require.NoError(t, err)
	spread := func(center, width float64, n int) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = center * (1 + width*math.Sin(float64(5*i+1)))
		}
		return out
	}
	same := spread(1, 0.005, 24)
	for _, c := range []struct {
		name   string
		ratios []float64
		higher bool
		final  bool
		want   stats.Outcome
	}{
		{"same", same, true, false, stats.NoChange},
		{"less throughput", spread(0.93, 0.005, 24), true, false, stats.Regression},
		{"more throughput", spread(1.07, 0.005, 24), true, false, stats.Improvement},
		{"more time", spread(1.07, 0.005, 24), false, false, stats.Regression},
		{"less time", spread(0.93, 0.005, 24), false, false, stats.Improvement},
		{"real and small", spread(1.02, 0.005, 24), false, true, stats.NoChange},
		{"large, its bound across the margin, more to come", spread(1.05, 0.045, 24), false, false, stats.CannotDecide},
		{"large, its bound across the margin, at the end", spread(1.05, 0.045, 24), false, true, stats.Regression},
		{"wide", spread(1, 0.2, 24), false, true, stats.CannotDecide},
		{"too few", spread(1.2, 0.001, 4), false, true, stats.CannotDecide},
	} {
		n := len(c.ratios)
		out := rules.judge([][]float64{c.ratios, same[:n], same[:n]}, []bool{c.higher, false, false}, c.final)
		assert.Equal(t, c.want, out[0].Outcome, "%s: %s", c.name, out[0].Reason)
		if n == 24 {
			assert.Equal(t, stats.NoChange, out[1].Outcome)
			assert.LessOrEqual(t, out[0].Lower, out[0].Ratio)
			assert.LessOrEqual(t, out[0].Ratio, out[0].Upper)
		}
	}
}

// Holm's levels: one row of many needs a stricter bound than one alone, and
// once it is shown the others need less.
func TestHolm(t *testing.T) {
	row := func(above int) []float64 {
		out := make([]float64, 24)
		for i := range out {
			out[i] = 0.9
			if i < above {
				out[i] = 1.1
			}
		}
		return out
	}
	one, err := newRules(1, 24, 0.03, 0.05)
	require.NoError(t, err)
	two, err := newRules(2, 24, 0.03, 0.05)
	require.NoError(t, err)
	require.Equal(t, []int{7, 6}, []int{two.plans[0].Ranks[9], two.plans[1].Ranks[9]})
	weak := row(18) // the seventh smallest is beyond, the sixth is not
	lower := []bool{false, false}
	require.Equal(t, stats.Regression, one.judge([][]float64{weak}, lower[:1], false)[0].Outcome)
	require.Equal(t, stats.CannotDecide, two.judge([][]float64{weak, row(12)}, lower, false)[0].Outcome)
	both := two.judge([][]float64{weak, row(24)}, lower, false)
	require.Equal(t, stats.Regression, both[0].Outcome, "the other row, shown at the first level, leaves it the second")
	require.Equal(t, stats.Regression, both[1].Outcome)
}
