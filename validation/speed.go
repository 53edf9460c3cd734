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
		e := Elsewhere{Speed: speed}
		e.Ratio, e.Measured = j.at(speed)
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
		how := "is estimated at"
		if e.Measured {
			how = "has its bound at"
		}
		return fmt.Sprintf("%s at %.1f GB/s of reads (%s), but the machine also ran at %.1f GB/s in this session, where the ratio %s %.2f: it has no one speed to judge at",
			j.Decision.Verdict, j.Bandwidth/1e9, j.Decision.Reason, e.Speed/1e9, how, e.Ratio)
	}
	return ""
}

// at is the ratio at another speed of the memory, and whether it was measured. Of
// those blocks alone that ran there, it is the one-sided 95 % bound of the median on
// the side of the target. Where they are too few to have one, all blocks are moved
// there from the speed that each ran at, as far towards the target as
// [Roofline.moved] has it, and it is their median: for a PASS the serial arm's least
// time over the batch arm's most, for a FAIL the serial arm's most over the batch
// arm's least.
//
// In the ten recorded sessions of two EPYC cores (benchdata/runs), whose reads went at
// some 33 or 56 GB/s, the ratios at either speed were estimated from those at the
// other, within each session and, where five blocks ran at each, from one session to
// another: 80 times. What was measured was never beyond the estimate, which was too
// far by 1.5 % at least, 4.7 % at the median and 11.8 % at most. With the least change
// in both arms it would have been beyond 16 times, by up to 1.4 %; with ceilings in
// place of times, always, by up to 21.5 %.
func (j *Judgement) at(speed float64) (ratio float64, measured bool) {
	rec := j.Record
	there := rec.Criterion.ratios(rec.ranAt(speed), ArmBatch)
	if rank := stats.Rank(len(there), confidence); rank >= 1 {
		slices.Sort(there)
		if j.Decision.Verdict == Pass {
			return there[rank-1], true
		}
		return there[len(there)-rank], true
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
	return stats.Median(moved), false
}

// ranAt are the blocks that ran at about a speed, or further away from that of all.
func (r *Record) ranAt(speed float64) []*Block {
	all := r.bandwidth()
	var there []*Block
	for _, b := range r.Kept() {
		rate := cmp.Or(meanRate(b.Probes), all)
		if speed > all && rate > speed/sameSpeed || speed < all && rate < speed*sameSpeed {
			there = append(there, b)
		}
	}
	return there
}
