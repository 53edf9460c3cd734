package validation

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/batchproof/batchproof/validation/stats"
)

// Judgement is a verdict with all that it rests on. It is a function of the
// record alone, so recorded samples can be judged again.
type Judgement struct {
	Record   *Record
	Verdict  Verdict
	Reason   string         // one sentence
	Decision stats.Decision // what the ratios alone say
	Problems []Problem

	Ratio         Spread // over the blocks
	Bandwidth     float64
	Ceiling       float64
	CeilingDecode float64
	SerialShare   float64 // of the memory roofline
	Serial        ArmSummary
	Batch         ArmSummary
	Control       Spread         // serial against serial, of this criterion or of the session
	ControlCheck  stats.Decision // on it
	Checks        []stats.Check  // the other rules of validity
	Account       *Account       // of the missing ratio; nil without a ceiling
	Hint          string         // on FAIL: the likely cause, and what to do
}

// Judge comes to a verdict.
func Judge(rec *Record) *Judgement {
	j := &Judgement{
		Record: rec, Problems: rec.Problems,
		Serial: Summarise(rec, ArmSerial), Batch: Summarise(rec, ArmBatch),
	}
	if len(j.Problems) == 0 {
		j.Problems = recheck(rec)
	}
	j.Control = spread(nil)
	if c := rec.control(); c != nil {
		j.Control = spread(c.Serial)
	}
	ratios := rec.Ratios(ArmBatch)
	j.Ratio = spread(ratios)
	j.Bandwidth = math.NaN()
	if b := rec.bandwidth(); b > 0 {
		j.Bandwidth = b
	}
	j.SerialShare = rec.Roofline.Share(j.Serial.Gap, j.Bandwidth)
	j.Ceiling, j.CeilingDecode = 1, 1
	if !rec.Criterion.Lower() {
		j.Ceiling, j.CeilingDecode = rec.Roofline.Ceiling(j.Bandwidth)
	}
	if len(ratios) == 0 { // nothing to set beside it
		j.Bandwidth, j.Ceiling, j.CeilingDecode = math.NaN(), math.NaN(), math.NaN()
	}

	j.Decision, j.ControlCheck = decide(rec, ratios), decideControl(rec)
	j.Checks = checks(rec, j)
	j.Account = account(j)
	j.Verdict, j.Reason = j.verdict(ratios)
	if j.Verdict == Fail {
		j.Hint = cause(j)
	}
	return j
}

// verdict lets what makes evidence unusable come before what it says.
func (j *Judgement) verdict(ratios []float64) (Verdict, string) {
	rec, d := j.Record, &j.Decision
	if len(j.Problems) > 0 {
		return Invalid, j.Problems[0].String()
	}
	failed := slices.IndexFunc(j.Checks, func(c stats.Check) bool { return !c.OK })
	quiet := slices.IndexFunc(j.Checks, func(c stats.Check) bool { return c.Name == checkQuiet && !c.OK })
	switch {
	case quiet >= 0: // explains whatever else failed
		return Invalid, j.Checks[quiet].Reason
	case len(ratios) == 0 && rec.TimeUp:
		return Inconclusive, "the time was up (-time-limit) before a block was completed"
	case len(ratios) == 0 && failed < 0:
		return Invalid, "no block was completed"
	case rec.Control != nil && rec.Control.Invalid != "":
		return Invalid, "control of the session: " + rec.Control.Invalid
	case j.ControlCheck.Verdict == Invalid:
		return Invalid, j.ControlCheck.Reason
	case failed >= 0:
		return Invalid, j.Checks[failed].Reason
	case rec.control() == nil:
		return Invalid, "no A/A control in this session: nothing shows what the machine alone does to a ratio"
	case j.ControlCheck.Verdict == Inconclusive && d.Verdict != Measured:
		return Inconclusive, j.ControlCheck.Reason + j.timeUp()
	case d.Verdict == Inconclusive:
		return d.Verdict, d.Reason + j.timeUp()
	}
	if why := j.otherSpeed(); why != "" {
		return Inconclusive, why
	}
	return d.Verdict, d.Reason
}

// sameSpeed is how far the speeds of two blocks may lie apart and count as one.
const sameSpeed = 1.1

// otherSpeed says why a verdict may not hold at every speed of the memory that the
// session met; "" if it does. The slowest and the fastest block of the session do
// not count.
func (j *Judgement) otherSpeed() string {
	rec, d := j.Record, &j.Decision
	speeds := slices.Sorted(slices.Values(rec.speeds))
	if rec.Criterion.Lower() || rec.Rules.Against == AgainstCeiling || d.Verdict == Measured || len(speeds) < 4 || !known(j.Ceiling) {
		return ""
	}
	goal, _ := rec.goal()
	for _, speed := range []float64{speeds[1], speeds[len(speeds)-2]} {
		if math.Abs(math.Log(speed/j.Bandwidth)) < math.Log(sameSpeed) {
			continue
		}
		there, how := j.at(speed)
		if (there >= goal.Value) != (d.Verdict == Pass) {
			return fmt.Sprintf("%s at %.1f GB/s of reads (%s), but the machine also ran at %.1f GB/s in this session, where the ratio %s %.2f: it has no one speed to judge at",
				d.Verdict, j.Bandwidth/1e9, d.Reason, speed/1e9, how, there)
		}
	}
	return ""
}

// at is the ratio at another speed of the memory, and how it is known. Of those
// blocks alone that ran at about that speed or further away from the middle, it is
// the one-sided 95 % bound of the median on the side of the target. Where they are
// too few to have one, all blocks are moved there from the speed that each ran at,
// as far towards the target as [Roofline.moved] has it, and it is their median: for
// a PASS the serial arm's least time over the batch arm's most, for a FAIL the
// serial arm's most over the batch arm's least.
//
// In the ten recorded sessions of two EPYC cores (benchdata/runs), whose reads went at
// some 33 or 56 GB/s, the ratios at either speed were estimated from those at the
// other, within each session and, where five blocks ran at each, from one session to
// another: 80 times. What was measured was never beyond the estimate, which was too
// far by 1.5 % at least, 4.7 % at the median and 11.8 % at most. With the least change
// in both arms it would have been beyond 16 times, by up to 1.4 %; with ceilings in
// place of times, always, by up to 21.5 %.
func (j *Judgement) at(speed float64) (ratio float64, how string) {
	rec, r := j.Record, j.Record.Roofline
	var there, moved []float64
	for _, b := range rec.Kept() {
		reference, run, rate := b.Run(ArmSerial), b.Run(ArmBatch), cmp.Or(meanRate(b.Probes), j.Bandwidth)
		if reference == nil || run == nil {
			continue
		}
		if speed > j.Bandwidth && rate > speed/sameSpeed || speed < j.Bandwidth && rate < speed*sameSpeed {
			there = append(there, rec.Criterion.Ratio(reference, run))
		}
		serialLeast, serialMost := r.moved(r.Serial, float64(reference.ElapsedNS)/1e9, rate, speed)
		batchLeast, batchMost := r.moved(r.Batch, float64(run.ElapsedNS)/1e9, rate, speed)
		if j.Decision.Verdict == Pass {
			moved = append(moved, serialLeast/batchMost)
		} else {
			moved = append(moved, serialMost/batchLeast)
		}
	}
	rank := stats.Rank(len(there), confidence)
	if rank < 1 {
		return stats.Median(moved), "is estimated at"
	}
	slices.Sort(there)
	if j.Decision.Verdict == Pass {
		return there[rank-1], "has its bound at"
	}
	return there[len(there)-rank], "has its bound at"
}

func (j *Judgement) timeUp() string {
	if j.Record.TimeUp {
		return "; the time was up (-time-limit)"
	}
	return ""
}

// Gap is how far the median ratio is on the right side of the target; negative if it is not.
func (j *Judgement) Gap() float64 {
	goal, _ := j.Record.goal()
	gap := j.Ratio.Median - goal.Value
	if j.Record.Criterion.Lower() {
		return -gap
	}
	return gap
}

// Reached is the share of the ceiling that the median ratio reaches.
func (j *Judgement) Reached() float64 { return j.Ratio.Median / j.Ceiling }

// known says that a number could be computed.
func known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
