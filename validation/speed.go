package validation

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/batchproof/batchproof/validation/stats"
)

// sameSpeed is how far the speeds of two blocks may lie apart and count as one.
const sameSpeed = 1.1

// Elsewhere is the ratio at another speed of the memory than that of the blocks.
type Elsewhere struct {
	Speed    float64 // of reads, bytes/s
	Ratio    float64
	Measured bool // Ratio is the bound of the blocks that ran there; else an estimate
	Planned  int  // blocks of the plan that ran there
	Added    int  // blocks added for it that did, as far as they count
	Holds    bool // the verdict does, there
}

// elsewhere is what the ratio is at the other speeds of the memory that the session
// met. The slowest and the fastest block of the session do not count.
func (j *Judgement) elsewhere() []Elsewhere {
	rec, d := j.Record, &j.Decision
	speeds := slices.Sorted(slices.Values(rec.speeds))
	if rec.Criterion.Lower() || rec.Rules.Against == AgainstCeiling || d.Verdict == Measured || len(speeds) < 4 || !known(j.Ceiling) {
		return nil
	}
	goal, _ := rec.goal()
	var all []Elsewhere
	for _, speed := range []float64{speeds[1], speeds[len(speeds)-2]} {
		if math.Abs(math.Log(speed/j.Bandwidth)) < math.Log(sameSpeed) {
			continue
		}
		e := j.at(speed)
		e.Holds = (e.Ratio >= goal.Value) == (d.Verdict == Pass)
		all = append(all, e)
	}
	return all
}

// otherSpeed says why a verdict may not hold at every speed of the memory that the
// session met; "" if it does.
func (j *Judgement) otherSpeed() string {
	for _, e := range j.Elsewhere {
		if e.Holds {
			continue
		}
		return fmt.Sprintf("%s at %.1f GB/s of reads (%s), but the machine also ran at %.1f GB/s in this session, where the ratio %s: it has no one speed to judge at",
			j.Decision.Verdict, j.Bandwidth/1e9, j.Decision.Reason, e.Speed/1e9, j.elsewhereText(&e)) + j.timeUp()
	}
	return ""
}

// bySpeed says of a verdict that holds where added blocks have shown it.
func (j *Judgement) bySpeed() string {
	text := ""
	for _, e := range j.Elsewhere {
		if e.Measured && e.Added > 0 {
			text += fmt.Sprintf("; at %.1f GB/s of reads it %s", e.Speed/1e9, j.elsewhereText(&e))
		}
	}
	return text
}

func (j *Judgement) elsewhereText(e *Elsewhere) string {
	added := len(j.Record.OtherSpeed)
	switch {
	case e.Measured && e.Added > 0:
		return fmt.Sprintf("has its bound at %.2f, by %d blocks there (%d added)", e.Ratio, e.Planned+e.Added, e.Added)
	case e.Measured:
		return fmt.Sprintf("has its bound at %.2f", e.Ratio)
	case added > 0:
		return fmt.Sprintf("is estimated at %.2f (%d blocks of the plan and %d of %d added ran there, a bound takes %d)", e.Ratio, e.Planned, e.Added, added, boundBlocks())
	}
	return fmt.Sprintf("is estimated at %.2f", e.Ratio)
}

// addedText tells of the blocks beyond the plan; "" without any.
func (j *Judgement) addedText() string {
	var rates []float64
	for i := range j.Record.OtherSpeed {
		rates = append(rates, meanRate(j.Record.OtherSpeed[i].Probes)/1e9)
	}
	if len(rates) == 0 {
		return ""
	}
	return fmt.Sprintf("blocks beyond the plan, which leave the ratio as it is: %d, at %.1f to %.1f GB/s of reads", len(rates), slices.Min(rates), slices.Max(rates))
}

// unmeasured are the speeds at which an estimate withholds the verdict, and nothing
// else does: there, blocks may yet decide.
func (j *Judgement) unmeasured() []float64 {
	var speeds []float64
	for _, e := range j.Elsewhere {
		switch {
		case e.Holds:
		case e.Measured:
			return nil
		default:
			speeds = append(speeds, e.Speed)
		}
	}
	return speeds
}

// at is the ratio at another speed of the memory. Of those blocks alone that ran
// there, it is the one-sided 95 % bound of the median on the side of the target. Where
// they are too few to have one, all blocks of the plan are moved there from the speed
// that each ran at, as far towards the target as [Roofline.moved] has it, and it is
// their median: for a PASS the serial arm's least time over the batch arm's most, for
// a FAIL the serial arm's most over the batch arm's least.
//
// In the ten recorded sessions of two EPYC cores (benchdata/runs), whose reads went at
// some 33 or 56 GB/s, the ratios at either speed were estimated from those at the
// other, within each session and, where five blocks ran at each, from one session to
// another: 80 times. What was measured was never beyond the estimate, which was too
// far by 1.5 % at least, 4.7 % at the median and 11.8 % at most. With the least change
// in both arms it would have been beyond 16 times, by up to 1.4 %; with ceilings in
// place of times, always, by up to 21.5 %.
func (j *Judgement) at(speed float64) Elsewhere {
	rec := j.Record
	planned, added := rec.ranAt(speed)
	e := Elsewhere{Speed: speed, Planned: len(planned), Added: len(added)}
	there := rec.Criterion.ratios(slices.Concat(planned, added), ArmBatch)
	if rank := stats.Rank(len(there), confidence); rank >= 1 {
		slices.Sort(there)
		e.Measured, e.Ratio = true, there[len(there)-rank]
		if j.Decision.Verdict == Pass {
			e.Ratio = there[rank-1]
		}
		return e
	}
	var moved []float64
	for _, b := range rec.Kept() {
		reference, run, rate := b.Run(ArmSerial), b.Run(ArmBatch), cmp.Or(meanRate(b.Probes), j.Bandwidth)
		if reference == nil || run == nil {
			continue
		}
		r := rec.Roofline
		serialLeast, serialMost := r.moved(r.Serial, float64(reference.ElapsedNS)/1e9, rate, speed)
		batchLeast, batchMost := r.moved(r.Batch, float64(run.ElapsedNS)/1e9, rate, speed)
		if j.Decision.Verdict == Pass {
			moved = append(moved, serialLeast/batchMost)
		} else {
			moved = append(moved, serialMost/batchLeast)
		}
	}
	e.Ratio = stats.Median(moved)
	return e
}

// boundBlocks is the least number of blocks that has a bound.
func boundBlocks() int { return stats.MinSamples(confidence) }

// ranAt are the blocks that ran at about a speed, or further away from that of the
// plan's blocks: those of the plan and, until a bound has enough, of the added ones.
//
// A bound with added blocks keeps its error, although ratios decided when the plan
// ended and whether blocks were added: it is that of the first [boundBlocks] blocks at
// that speed, a number fixed beforehand, and which blocks these are follows from
// speeds alone. If fewer came, there is no bound.
func (r *Record) ranAt(speed float64) (planned, added []*Block) {
	all := r.bandwidth()
	there := func(b *Block) bool {
		rate := cmp.Or(meanRate(b.Probes), all)
		return speed > all && rate > speed/sameSpeed || speed < all && rate < speed*sameSpeed
	}
	for _, b := range r.Kept() {
		if there(b) {
			planned = append(planned, b)
		}
	}
	for _, b := range r.undisturbed(r.OtherSpeed) {
		if there(b) && len(planned)+len(added) < boundBlocks() {
			added = append(added, b)
		}
	}
	return planned, added
}
