package validation

import (
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
	Elsewhere     []Elsewhere    // the ratio at other speeds; nil where no verdict hangs on it
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
	j.Elsewhere = j.elsewhere()
	if why := j.otherSpeed(); why != "" {
		return Inconclusive, why
	}
	return d.Verdict, d.Reason + j.bySpeed()
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
