package validation

import (
	"math"

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
	Control       Spread         // ratio of the control arm, if there was one
	ControlCheck  stats.Decision // on it
	Hint          string         // on FAIL: the likely cause, and what to do
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
	j.Bandwidth = stats.Median(bandwidths)
	j.SerialShare = rec.Roofline.Share(j.Serial.Gap, j.Bandwidth)
	j.Ceiling, j.CeilingDecode = 1, 1
	if !rec.Criterion.Lower() {
		j.Ceiling, j.CeilingDecode = rec.Roofline.Ceiling(j.Bandwidth)
	}

	j.Decision, j.ControlCheck = decide(rec, ratios), decideControl(rec)
	trend := stats.Trend(ratios, stats.TrendAlpha)
	switch {
	case len(rec.Problems) > 0:
		j.Verdict, j.Reason = Invalid, rec.Problems[0].String()
	case len(ratios) == 0:
		j.Verdict, j.Reason = Invalid, "no block was completed"
	case j.ControlCheck.Verdict == Invalid:
		j.Verdict, j.Reason = Invalid, j.ControlCheck.Reason
	case !trend.OK:
		j.Verdict, j.Reason = Invalid, trend.Reason
	default:
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
