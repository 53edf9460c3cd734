package validation

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/validation/stats"
)

// memory has a speed for each block, in GB/s, of which the last goes on. Of some
// blocks it also reads steal time.
type memory struct {
	speeds []float64
	stolen map[int]bool
	block  int
}

func (m *memory) Limits() stats.Limits { return stats.Limits{ReadingSteal: 0.05} }
func (m *memory) Begin()               { m.block++ }
func (m *memory) End() []stats.Reading {
	r := stats.Reading{Name: ReadingSteal}
	if m.stolen[m.block-1] {
		r.Value = 0.3
	}
	return []stats.Reading{r}
}
func (m *memory) speed() float64 { return m.speeds[min(max(m.block-1, 0), len(m.speeds)-1)] }

// fakeExtension is a criterion of four concurrent requests whose arms follow the
// memory. Its ratio is here at 10 GB/s, and there in a block of another speed; the
// roofline lets it be far lower.
type fakeExtension struct {
	*fakeExperiment
	memory *memory
	here   float64
	there  func(block int) float64
}

func always(ratio float64) func(int) float64 { return func(int) float64 { return ratio } }

func newFakeExtension(t *testing.T, there func(block int) float64, speeds ...float64) *fakeExtension {
	f := &fakeExtension{fakeExperiment: passing(t), memory: &memory{speeds: speeds}, here: 4, there: there}
	f.Watchers = []Watcher{f.memory}
	f.Rules.QuietLimits = limits(f.Watchers)
	f.Bandwidth = func() (float64, error) { return f.memory.speed() * 1e9, nil }
	f.Roofline = NewRoofline(costOf(func(rows, tokens, context int) (float64, float64) {
		return 80e6, float64(rows) * 2e6
	}), 4, 4, 11, 8, 1e9)
	f.serial.decode = func(int) time.Duration { return time.Duration(float64(10*ms) * 10 / f.memory.speed()) }
	f.batch.decode = func(rows int) time.Duration {
		r := f.here
		if f.memory.speed() != 10 {
			r = f.there(f.memory.block - 1)
		}
		serial := 4 * (30*ms + 10*f.serial.decode(1))
		return (time.Duration(float64(serial)/r) - 30*ms) / 10
	}
	return f
}

// begin measures the plan, in a session that twice ran at another speed.
func (f *fakeExtension) begin(t *testing.T, others ...float64) *extension {
	rec, err := f.Run(t.Context())
	require.NoError(t, err)
	rec.speeds = rec.bandwidths()
	for _, speed := range others {
		rec.speeds = append(rec.speeds, speed*1e9, speed*1e9)
	}
	e := &extension{x: &f.Experiment, rec: rec, speeds: Judge(rec).unmeasured()}
	require.NotEmpty(t, e.speeds)
	return e
}

func noLimit() time.Duration { return 0 }

func times(n int, speeds ...float64) []float64 { return slices.Repeat(speeds, n) }

// TestExtension: what an estimate alone withholds is measured, with blocks beyond
// the plan: as many as a bound lacks, unless the speed does not come back.
func TestExtension(t *testing.T) {
	ten, twenty := times(6, 10), times(5, 20)
	for _, c := range []struct {
		name    string
		speeds  []float64 // of the plan's blocks and of those to be added
		stolen  []int
		there   func(int) float64
		here    float64   // 0: 4
		others  []float64 // nil: 20
		asked   int       // speeds; 0: 1
		planned int
		added   int
		verdict Verdict
		says    string // the reason
		logs    string
	}{
		{name: "met there", speeds: append(ten, twenty...), there: always(3.2), added: 5, verdict: Pass,
			says: "its 95 % lower bound 4 is above 3; at 20.0 GB/s of reads it has its bound at 3.20, by 5 blocks there (5 added)"},
		{name: "missed there", speeds: append(ten, twenty...), there: always(2.9), added: 5, verdict: Inconclusive,
			says: "but the machine also ran at 20.0 GB/s in this session, where the ratio has its bound at 2.90, by 5 blocks there (5 added): it has no one speed"},
		{name: "missed by one of five", speeds: append(ten, twenty...), added: 5, verdict: Inconclusive, says: "has its bound at 2.90, by 5 blocks",
			there: func(block int) float64 { return map[bool]float64{true: 2.9, false: 3.2}[block == 8] }},
		{name: "speeds beyond count", speeds: append(ten, 19, 25, 21, 18.5, 30), there: always(3.2), added: 5, verdict: Pass, says: "(5 added)"},
		{name: "speeds between do not", speeds: append(ten, 18, 14, 20, 20, 20, 20, 20), there: always(3.2), added: 7, verdict: Pass, says: "(5 added)"},
		{name: "the plan's blocks count", speeds: append([]float64{10, 10, 20, 10, 10, 20}, twenty...), there: always(3.2), planned: 2, added: 3, verdict: Pass,
			says: "has its bound at 3.20, by 5 blocks there (3 added)"},
		{name: "the plan's least ratio counts", speeds: append([]float64{10, 10, 20, 10, 10, 20}, twenty...), planned: 2, added: 3, verdict: Pass, says: "has its bound at 3.05",
			there: func(block int) float64 { return map[bool]float64{true: 3.05, false: 3.2}[block == 2] }},
		{name: "never comes back", speeds: ten, there: always(3.2), added: 5, verdict: Inconclusive,
			says: "is estimated at 2.65 (0 blocks of the plan and 0 of 5 added ran there, a bound takes 5): it has no one speed to judge at",
			logs: "throughput, 4 concurrent: given up, as none of the last 5 blocks counts: 0 of 5 blocks at 20.0 GB/s of reads"},
		{name: "comes back for one block", speeds: append(ten, 10, 10, 20, 10), there: always(3.2), added: 8, verdict: Inconclusive, says: "1 of 8 added ran there", logs: "given up"},
		{name: "comes back as seldom as it may", speeds: append(ten, times(5, 10, 10, 10, 10, 20)...), there: always(3.2), added: 25, verdict: Pass, says: "(5 added)"},
		{name: "disturbed", speeds: append(ten, twenty...), stolen: []int{7, 9}, there: always(3.2), added: 7, verdict: Pass, says: "(5 added)",
			logs: "throughput, 4 concurrent: added block 2, disturbed (steal 30 % (limit 5 %): the hypervisor gave the cores to others): 1 of 5 blocks at 20.0 GB/s of reads, at least "},
		{name: "always disturbed", speeds: append(ten, twenty...), stolen: []int{6, 7, 8, 9, 10, 11}, there: always(3.2), added: 5, verdict: Inconclusive, says: "0 of 5 added ran there", logs: "given up"},
		{name: "two speeds", speeds: append(ten, times(5, 20, 5)...), here: 3.1, others: []float64{5, 20}, asked: 2, there: always(3.2), added: 10, verdict: Pass,
			says: "; at 5.0 GB/s of reads it has its bound at 3.20, by 5 blocks there (5 added); at 20.0 GB/s of reads it has its bound at 3.20"},
		{name: "one speed long before the other", speeds: append(ten, 20, 20, 20, 20, 5, 20, 5, 10, 10, 5, 5, 5), here: 3.1, others: []float64{5, 20}, asked: 2, there: always(3.2), added: 12, verdict: Pass,
			says: "; at 5.0 GB/s of reads it has its bound at 3.20, by 5 blocks there (5 added); at 20.0 GB/s"},
		{name: "one of two speeds", speeds: append(ten, twenty...), here: 3.1, others: []float64{5, 20}, asked: 2, there: always(3.2), added: 5, verdict: Inconclusive, says: "at 5.0 GB/s in this session, where the ratio is estimated"},
		{name: "the other holds by its estimate", speeds: append(ten, twenty...), others: []float64{5, 20}, there: always(3.2), added: 5, verdict: Pass, says: "; at 20.0 GB/s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFakeExtension(t, c.there, c.speeds...)
			if f.here = cmp.Or(c.here, 4); c.asked == 2 { // slower reads may hurt, too
				for i := range f.Roofline.Batch {
					f.Roofline.Batch[i].Bytes *= 1.5
				}
			}
			f.memory.stolen = make(map[int]bool)
			for _, b := range c.stolen {
				f.memory.stolen[b] = true
			}
			if c.others == nil {
				c.others = []float64{20}
			}
			e := f.begin(t, c.others...)
			first := Judge(e.rec)
			require.Equal(t, Inconclusive, first.Verdict)
			require.Len(t, e.speeds, cmp.Or(c.asked, 1))

			extend(t.Context(), []*extension{e}, noLimit)
			require.NoError(t, e.err)
			j := Judge(e.rec)
			require.Equal(t, c.verdict, j.Verdict, j.Reason)
			require.Contains(t, j.Reason, c.says)
			require.Len(t, e.rec.OtherSpeed, c.added)
			require.LessOrEqual(t, c.added, f.mayAdd())
			require.Contains(t, strings.Join(f.log, "\n"), c.logs)
			require.Equal(t, c.planned, j.Elsewhere[len(j.Elsewhere)-1].Planned)
			for i, e := range j.Elsewhere {
				require.True(t, e.Measured || e.Ratio == first.Elsewhere[i].Ratio, "an estimate is of the plan's blocks")
			}
			replay(t, j)

			// All else is as the plan's blocks alone have it.
			for _, j := range []*Judgement{first, j} {
				j.Record, j.Verdict, j.Reason, j.Elsewhere = nil, "", "", nil
			}
			require.Equal(t, first, j)
		})
	}
}

// TestNothingToMeasure: where a bound withholds the verdict, no block can mend that.
func TestNothingToMeasure(t *testing.T) {
	f := newFakeExtension(t, always(3.05), append(times(7, 10), times(5, 20)...)...)
	f.Runs, f.here = 12, 3.1
	for i := range f.Roofline.Batch {
		f.Roofline.Batch[i].Bytes *= 1.5
	}
	f.there = func(block int) float64 { return map[bool]float64{true: 2.9, false: 3.05}[block == 9] }
	rec, err := f.Run(t.Context())
	require.NoError(t, err)
	rec.speeds = append(rec.bandwidths(), 5e9, 5e9)
	j := Judge(rec)
	require.Equal(t, Inconclusive, j.Verdict)
	require.Contains(t, j.Reason, "is estimated at")
	require.Equal(t, []bool{false, true}, []bool{j.Elsewhere[0].Measured, j.Elsewhere[1].Measured})
	require.False(t, j.Elsewhere[0].Holds || j.Elsewhere[1].Holds)
	require.Empty(t, j.unmeasured())
}

// TestExtensionOfAFail: a FAIL stands if the highest of five ratios there misses, too.
func TestExtensionOfAFail(t *testing.T) {
	for there, verdict := range map[float64]Verdict{2.9: Fail, 3.1: Inconclusive} {
		f := newFakeExtension(t, always(there), append(times(6, 10), 5)...)
		f.here = 2.8
		e := f.begin(t, 5)
		require.Equal(t, Fail, Judge(e.rec).Decision.Verdict)
		extend(t.Context(), []*extension{e}, noLimit)
		j := Judge(e.rec)
		require.Equal(t, verdict, j.Verdict, j.Reason)
		require.Contains(t, j.Reason, "by 5 blocks there (5 added)")
		replay(t, j)
	}
}

// TestExtensionInTime: no block is begun that cannot lead to a bound before the
// limit. A block takes 0.65 s at 10 GB/s and 0.42 s at 20.
func TestExtensionInTime(t *testing.T) {
	ten, four := times(6, 10), []float64{20, 20, 20, 20, 10, 10, 10, 10}
	for _, c := range []struct {
		plan  []float64
		speed float64 // of the added blocks
		limit time.Duration
		added int
		says  string // "" for a PASS
	}{
		{four, 20, 660 * ms, 1, ""},
		{four, 20, 640 * ms, 0, "the time was up"}, // a block may yet be as slow as the last
		{ten, 20, 2110 * ms, 5, ""},
		{ten, 20, 2090 * ms, 1, "(0 blocks of the plan and 1 of 1 added ran there, a bound takes 5): it has no one speed to judge at; the time was up (-time-limit)"},
		{ten, 20, 1630 * ms, 1, "1 of 1 added ran there"},
		{ten, 20, 1620 * ms, 0, "is estimated at 2.65: it has no one speed to judge at; the time was up (-time-limit)"}, // 5 times 0.65 s, were all of it reads
		{ten, 20, 0, 0, "the time was up"},
		{ten, 10, 3 * time.Second, 3, "0 of 3 added ran there"},
	} {
		f := newFakeExtension(t, always(3.2), append(c.plan, c.speed)...)
		f.Runs = len(c.plan)
		e := f.begin(t, 20)
		end := f.clock.now().Add(c.limit)
		kept := false
		f.Keep = func(r *Record) { kept = r.TimeUp }
		extend(t.Context(), []*extension{e}, func() time.Duration {
			if left := end.Sub(f.clock.now()); left != 0 {
				return left
			}
			return -1
		})
		require.Len(t, e.rec.OtherSpeed, c.added, "in %v", c.limit)
		require.False(t, f.clock.now().After(end))
		require.Equal(t, c.says != "", e.rec.TimeUp)
		require.Equal(t, e.rec.TimeUp, kept)
		j := Judge(e.rec)
		require.Equal(t, c.says == "", j.Verdict == Pass, j.Reason)
		require.Contains(t, j.Reason, c.says)
		require.Equal(t, c.says != "", strings.HasPrefix(f.log[len(f.log)-1], "throughput, 4 concurrent: too little time is left (-time-limit): "))
		replay(t, j)
	}
}

// on puts a criterion on another's machine, and its log into the other's.
func (f *fakeExtension) on(other *fakeExtension, name string) {
	f.clock, f.serial.clock, f.batch.clock, f.Now = other.clock, other.clock, other.clock, other.clock.now
	f.Log = func(format string, args ...any) { other.Log(name+" "+format, args...) }
}

// TestExtensionsTakeTurns: the time is shared block by block, and who is done leaves
// it to the others.
func TestExtensionsTakeTurns(t *testing.T) {
	a := newFakeExtension(t, always(3.2), append([]float64{10, 20, 10, 10, 20, 10}, 20)...)
	b := newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	b.on(a, "b")
	both := []*extension{a.begin(t, 20), b.begin(t, 20)}
	a.log = nil
	extend(t.Context(), both, noLimit)
	var turns []string
	for _, line := range a.log {
		if strings.Contains(line, ": added block") {
			turns = append(turns, line[:1])
		}
	}
	require.Equal(t, "t b t b t b b b", strings.Join(turns, " "))
	require.Equal(t, "throughput, 4 concurrent: an estimate alone withholds the verdict, so blocks are added: 2 of 5 blocks at 20.0 GB/s of reads", a.log[0])
	require.Equal(t, "throughput, 4 concurrent: added block 1, 20.0 GB/s, ratio 3.200: 3 of 5 blocks at 20.0 GB/s of reads, at least 840 ms left", a.log[1])
	for _, e := range both {
		require.Equal(t, Pass, Judge(e.rec).Verdict)
	}
}

// TestAddedBlocks: they have prompts of their own and orders that stay balanced among
// those that count, are probed each, and are kept as they grow.
func TestAddedBlocks(t *testing.T) {
	f := newFakeExtension(t, always(3.2), append(times(6, 10), 20, 20, 10, 20, 20, 20)...)
	f.memory.stolen = map[int]bool{7: true}
	probe := f.Bandwidth
	f.Bandwidth = func() (float64, error) {
		f.clock.pass(40 * ms) // 5 % of 0.8 s
		return probe()
	}
	e := f.begin(t, 20)
	f.clock.pass(time.Hour) // others measured
	var grown []int
	f.Keep = func(r *Record) { grown = append(grown, len(r.OtherSpeed)) }
	extend(t.Context(), []*extension{e}, noLimit)
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, grown)
	var slots []int
	want := orders(f.Seed, 2, 29)
	for i := range e.rec.OtherSpeed {
		b := &e.rec.OtherSpeed[i]
		slots = append(slots, b.Index)
		require.Equal(t, f.Arms[want[b.Index][0]].Name, b.Arms[0].Arm)
		require.Len(t, b.Probes, 1, "at the beginning, and more when the block has earned it")
	}
	require.Equal(t, []int{24, 25, 25, 25, 26, 27, 28}, slots)
	require.Empty(t, recheck(e.rec))
	require.NoError(t, e.rec.check())

	b := e.rec.OtherSpeed[2]
	prompt := b.Arms[0].Requests[1].Prompt
	b.Run(ArmSerial).Requests[1].Prompt = e.rec.Blocks[3].Arms[0].Requests[0].Prompt
	require.Contains(t, Judge(e.rec).Reason, "prompt seen twice: added block 3: request 1 repeats request 0 of block 4")
	b.Run(ArmSerial).Requests[1].Prompt = prompt
	b.Arms[0].Steps.Rows = nil
	require.ErrorContains(t, e.rec.check(), "added block 3, ")

	x := newFakeExperiment(t, ThroughputCriterion(2), 0)
	x.Prompts = NewPrompts(1, "", 1, 10, nil)
	_, err := x.Run(t.Context())
	require.ErrorContains(t, err, "122 prompts of 1 tokens", "1 + 2 warm-ups, 24 blocks, 9 disturbed and 25 added ones")
}

// TestExtensionEnds: evidence of an added block that may not be used makes the verdict
// INVALID; where an arm fails, or a signal comes, what was measured stays.
func TestExtensionEnds(t *testing.T) {
	const second = 8 // run of an arm: after a warm-up, six blocks and one added
	f := newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	f.batch.tamper = func(run int, o *ArmOutcome) {
		if run == second {
			o.Requests[2].Tokens[7]++
		}
	}
	e := f.begin(t, 20)
	extend(t.Context(), []*extension{e}, noLimit)
	require.NoError(t, e.err)
	j := Judge(e.rec)
	require.Equal(t, Invalid, j.Verdict)
	require.Contains(t, j.Reason, "tokens differ between the arms: added block 2, batch arm: request 2, token 7")
	require.Len(t, e.rec.OtherSpeed, 2)

	f = newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	e = f.begin(t, 20)
	f.Arms[1].Run = failingArm(errors.New("no queue"))
	extend(t.Context(), []*extension{e}, noLimit)
	require.EqualError(t, e.err, "added block 1, batch arm: no queue")
	require.Equal(t, Inconclusive, Judge(e.rec).Verdict)

	ctx, cancel := context.WithCancelCause(t.Context())
	f = newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	other := newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	f.serial.tamper = func(run int, _ *ArmOutcome) {
		if run == second {
			cancel(errors.New("signal"))
		}
	}
	both := []*extension{f.begin(t, 20), other.begin(t, 20)}
	extend(ctx, both, noLimit)
	require.EqualError(t, both[0].err, "interrupted after 6 blocks of the plan and 1 added (signal); what was measured is kept")
	require.EqualError(t, both[1].err, "interrupted after 6 blocks of the plan and 1 added (signal); what was measured is kept")
	j = Judge(both[0].rec)
	require.Equal(t, Inconclusive, j.Verdict)
	require.Contains(t, j.Reason, "1 of 1 added ran there")
	replay(t, j)

	f = newFakeExtension(t, always(3.2), 10)
	e = f.begin(t, 20)
	f.log = nil
	extend(ctx, []*extension{e}, noLimit)
	require.ErrorContains(t, e.err, "and 0 added (signal)")
	require.Empty(t, f.log)
}

// TestBoundRestsOnTheFirst: whatever follows the blocks that a bound takes, it stays.
func TestBoundRestsOnTheFirst(t *testing.T) {
	f := newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	e := f.begin(t, 20)
	extend(t.Context(), []*extension{e}, noLimit)
	want := Judge(e.rec)
	f.there = always(2)
	for range 3 {
		require.False(t, e.add(t.Context()))
	}
	got := Judge(e.rec)
	require.Len(t, got.Record.OtherSpeed, 8)
	require.Equal(t, want.Verdict, got.Verdict)
	require.Equal(t, want.Reason, got.Reason)
	require.Equal(t, want.Elsewhere, got.Elsewhere)

	r := &Results{Criteria: []*Record{e.rec}}
	r.shareSpeeds()
	require.Equal(t, e.rec.bandwidths(), e.rec.speeds, "nor does an added block raise a question")
	require.Len(t, e.rec.speeds, 6)
}

// finalSession has measured a lone request at 20 GB/s, and then the plan of f.
func finalSession(ctx context.Context, t *testing.T, opt Options, f *fakeExtension, out io.Writer) *Session {
	latency := newFakeExperiment(t, LatencyCriterion(), 10)
	latency.batch.decode = latency.serial.decode
	latency.Bandwidth = func() (float64, error) { return 20e9, nil }
	first, err := latency.Run(t.Context())
	require.NoError(t, err)
	rec, err := f.Run(t.Context())
	require.NoError(t, err)

	opt.Results = t.TempDir()
	s := NewSession(ctx, opt, out)
	require.NoError(t, s.begin())
	s.results.Criteria = []*Record{first, rec}
	s.judgements = []*Judgement{Judge(first), Judge(rec)}
	s.extensions = []*extension{{x: &latency.Experiment, rec: first}, {x: &f.Experiment, rec: rec}}
	f.Keep = func(*Record) { s.keep() }
	return s
}

// TestFinal goes on with what is withheld; files, replay and reports have it.
func TestFinal(t *testing.T) {
	f := newFakeExtension(t, always(3.2), append(times(6, 10), 20)...)
	f.memory.stolen = map[int]bool{7: true}
	var out bytes.Buffer
	s := finalSession(t.Context(), t, Options{}, f, &out)
	var onDisk []int
	f.Keep = func(*Record) {
		s.keep()
		r, err := Load(s.store.Dir)
		require.NoError(t, err)
		onDisk = append(onDisk, len(r.Criteria[1].OtherSpeed))
	}
	first := s.judgements[1]
	for range 2 {
		j, err := s.Final(first, &out)
		require.NoError(t, err)
		require.Equal(t, Pass, j.Verdict, j.Reason)
		require.Same(t, j, s.judgements[1])
		require.Equal(t, []int{1, 2, 3, 4, 5, 6}, onDisk)
	}
	now := "throughput, 4 concurrent: now PASS (median ratio 4 after 6 blocks; its 95 % lower bound 4 is above 3; at 20.0 GB/s of reads it has its bound at 3.20, by 5 blocks there (5 added))\n"
	require.Contains(t, out.String(), now)
	require.Contains(t, read(t, s.store.Dir, "concurrent_throughput.txt"), now)
	j, err := s.Final(s.judgements[0], &out)
	require.NoError(t, err)
	require.Empty(t, j.Record.OtherSpeed)
	require.NoError(t, s.Close())

	r, err := Load(s.store.Dir)
	require.NoError(t, err)
	requireSame(t, s.judgements[1], Judge(r.Criteria[1]))
	added := "blocks beyond the plan, which leave the ratio as it is: 6, at 20.0 to 20.0 GB/s of reads"
	require.Contains(t, text(s.judgements[1]), "  added      "+added+"\n")
	added = "throughput, 4 concurrent: " + added + "; at 20.0 GB/s of reads it has its bound at 3.20, by 5 blocks there (5 added)"
	require.Contains(t, read(t, s.store.Dir, "report.html"), added)
	require.Contains(t, read(t, s.store.Dir, "summary.md"), added)
	blocks := View(r).Criteria[2].Blocks
	require.Len(t, blocks, 12)
	require.Equal(t, 7, blocks[6].Number)
	require.Equal(t, "added, at 20.0 GB/s of reads", blocks[6].LeftOut)
	require.Equal(t, "added, at 20.0 GB/s of reads, disturbed: steal 30 % (limit 5 %): the hypervisor gave the cores to others", blocks[7].LeftOut)

	// An error of an added block is the criterion's.
	s.extensions = []*extension{{rec: j.Record, begun: true}, {rec: first.Record, begun: true, err: errors.New("no queue")}}
	_, err = s.Final(s.judgements[1], &out)
	require.EqualError(t, err, "no queue")
}

// TestFinalFail: a FAIL that stands at last comes with its cause.
func TestFinalFail(t *testing.T) {
	f := newFakeExtension(t, always(2.9), append(times(6, 10), 5)...)
	f.here = 2.8
	var out bytes.Buffer
	s := finalSession(t.Context(), t, Options{}, f, &out)
	for i := range s.results.Criteria[0].Blocks {
		s.results.Criteria[0].Blocks[i].Probes = []float64{5e9}
	}
	s.results.shareSpeeds()
	first := Judge(s.judgements[1].Record)
	require.Equal(t, Inconclusive, first.Verdict)
	j, err := s.Final(first, &out)
	require.NoError(t, err)
	require.Equal(t, Fail, j.Verdict)
	require.Contains(t, out.String(), "now FAIL (")
	require.Contains(t, out.String(), "\n  cause      "+j.Hint+"\n")
}

// TestFinalStaysWithheld: what could not be measured says why, once.
func TestFinalStaysWithheld(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  time.Duration
		speed  float64 // of the added blocks
		signal bool
		says   string // the verdict
		logs   string
		err    string
	}{
		{name: "given up", speed: 10, says: "0 of 5 added ran there, a bound takes 5): it has no one speed to judge at", logs: "given up"},
		{name: "time up", speed: 20, limit: 1, says: "it has no one speed to judge at; the time was up (-time-limit)", logs: "too little time is left"},
		{name: "signal", speed: 20, signal: true, says: "0 blocks of the plan and 2 of 2 added ran there", logs: "added block 2",
			err: "interrupted after 6 blocks of the plan and 2 added (signal); what was measured is kept"},
	} {
		f := newFakeExtension(t, always(3.2), append(times(6, 10), c.speed)...)
		ctx, cancel := context.WithCancelCause(t.Context())
		var out bytes.Buffer
		s := finalSession(ctx, t, Options{TimeLimit: c.limit}, f, &out)
		f.batch.tamper = func(run int, _ *ArmOutcome) {
			if c.signal && run == 9 { // of added block 3
				cancel(errors.New("signal"))
			}
		}
		for range 2 {
			j, err := s.Final(s.judgements[1], &out)
			require.Equal(t, c.err == "", err == nil)
			require.True(t, err == nil || err.Error() == c.err, err)
			require.Equal(t, Inconclusive, j.Verdict)
			require.Contains(t, j.Reason, c.says, c.name)
		}
		require.Equal(t, 1, strings.Count(out.String(), "now INCONCLUSIVE"), out.String())
		require.Equal(t, 1, strings.Count(strings.Join(f.log, "\n"), c.logs))
		r, err := Load(s.store.Dir)
		require.NoError(t, err)
		require.Equal(t, c.signal, r.Interrupted)
		requireSame(t, s.judgements[1], Judge(r.Criteria[1]))
		cancel(nil)
	}
}

// TestWhatMayGoOn: a criterion may be extended as long as its model is loaded, unless
// the number of blocks was fixed; its results then grow in their place.
func TestWhatMayGoOn(t *testing.T) {
	for runs, want := range map[int]int{0: 2, 2: 0} {
		opt := tinyOptions(t)
		opt.TestRuns = runs
		s := tinySession(t.Context(), opt, new(bytes.Buffer))
		for _, n := range []int{3, 5} {
			_, err := s.Measure(ThroughputCriterion(n), new(bytes.Buffer))
			require.NoError(t, err)
		}
		require.Len(t, s.extensions, want)
		for _, e := range slices.Backward(s.extensions) {
			e.x.keep(e.rec)
		}
		require.Len(t, s.results.Criteria, 2)
		require.NoError(t, s.Close())
		require.Empty(t, s.extensions)
	}
}
