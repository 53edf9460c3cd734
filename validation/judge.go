package validation

import (
	"fmt"
	"math"
)

// Verdict is the answer to a criterion.
type Verdict string

const (
	Pass         Verdict = "PASS"
	Fail         Verdict = "FAIL"
	Inconclusive Verdict = "INCONCLUSIVE" // the evidence is sound and does not decide
	Invalid      Verdict = "INVALID"      // the evidence may not be used
	Measured     Verdict = "MEASURED"     // sound, and there is no rule
)

// Judgement is a verdict with all that it rests on. It is a function of the
// record alone, so recorded samples can be judged again.
type Judgement struct {
	Record  *Record
	Verdict Verdict
	Reason  string // one sentence
	Decision
	Problems []Problem

	Ratio         Spread // over the blocks
	Bandwidth     float64
	Ceiling       float64
	CeilingDecode float64
	SerialShare   float64 // of the memory roofline
	Serial        ArmSummary
	Batch         ArmSummary
	Control       Spread // ratio of the control arm, if there was one
	Hint          string // on FAIL: the likely cause, and what to do
}

// Judge comes to a verdict.
func Judge(rec *Record) *Judgement {
	j := &Judgement{
		Record: rec, Problems: rec.Problems,
		Serial: Summarise(rec, ArmSerial), Batch: Summarise(rec, ArmBatch),
		Control: spread(rec.Ratios(ArmControl)),
	}
	ratios := rec.Ratios(ArmBatch)
	j.Ratio = spread(ratios)
	var bandwidths []float64
	for i := range rec.Blocks {
		if b := rec.Blocks[i].ReadBandwidth; b > 0 {
			bandwidths = append(bandwidths, b)
		}
	}
	j.Bandwidth = median(bandwidths)
	j.SerialShare = rec.Roofline.Share(j.Serial.Gap, j.Bandwidth)
	j.Ceiling, j.CeilingDecode = 1, 1
	if !rec.Criterion.Lower() {
		j.Ceiling, j.CeilingDecode = rec.Roofline.Ceiling(j.Bandwidth)
	}

	switch {
	case len(rec.Problems) > 0:
		j.Verdict, j.Reason = Invalid, rec.Problems[0].String()
	case len(ratios) == 0:
		j.Verdict, j.Reason = Invalid, "no block was completed"
	case len(ratios) < rec.Planned:
		// Fewer blocks than were fixed beforehand: whoever stops when it looks good errs more often.
		j.Verdict, j.Reason = Invalid, fmt.Sprintf("only %d of %d blocks were measured", len(ratios), rec.Planned)
	}
	j.Decision = decide(rec.Criterion, ratios)
	if j.Verdict == "" {
		j.Verdict, j.Reason = j.Decision.Verdict, j.Decision.Reason
	}
	if j.Verdict == Fail {
		j.Hint = cause(j)
	}
	return j
}

// Gap is how far the median ratio is on the right side of the target; negative if it is not.
func (j *Judgement) Gap() float64 {
	gap := j.Ratio.Median - j.Record.Criterion.Target
	if j.Record.Criterion.Lower() {
		return -gap
	}
	return gap
}

// Reached is the share of the ceiling that the median ratio reaches.
func (j *Judgement) Reached() float64 { return j.Ratio.Median / j.Ceiling }

// known says that a number could be computed.
func known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
