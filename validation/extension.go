package validation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// extension goes on with an experiment beyond its plan, where an estimate alone
// withholds the verdict: the memory also ran at speeds at which too few of its blocks
// did. Blocks are added until enough have.
type extension struct {
	x      *Experiment
	rec    *Record
	begun  bool
	speeds []float64
	err    error // that ended it
}

// extend adds blocks in turns, one to each extension, until none can use another: it
// has its bounds, or its speed does not come back, or the time is up. What it does
// depends on speeds and on time, never on a ratio. Left is as [Session.left].
func extend(ctx context.Context, all []*extension, left func() time.Duration) {
	for open := slices.Clone(all); len(open) > 0; {
		open = slices.DeleteFunc(open, func(e *extension) bool { return e.done(left()) || e.add(ctx) })
	}
}

// missing is how many blocks at a speed a bound lacks, and how many were added since
// the last one there, disturbed ones included.
func (r *Record) missing(speed float64) (blocks, since int) {
	planned, added := r.ranAt(speed)
	for i := len(r.OtherSpeed) - 1; i >= 0 && !slices.Contains(added, &r.OtherSpeed[i]); i-- {
		since++
	}
	return max(0, boundBlocks()-len(planned)-len(added)), since
}

// mayAdd is the most blocks that are added: a speed is given up once as many blocks
// in a row ran at others as a bound takes.
func (x *Experiment) mayAdd() int {
	if x.Runs > 0 || x.Criterion.Lower() {
		return 0
	}
	return boundBlocks() * boundBlocks()
}

// done says that no block is to be added, and why if a bound is missing. None is
// begun that would end after the limit, nor where even the fastest blocks that the
// speed allows would be too few by then.
func (e *extension) done(left time.Duration) bool {
	x, rec := e.x, e.rec
	for _, speed := range e.speeds {
		if missing, since := rec.missing(speed); missing > 0 && since >= boundBlocks() {
			x.log("%s: given up, as none of the last %d blocks counts: %s", x.Criterion, since, e.text())
			return true
		}
	}
	least := e.least()
	if least > 0 && left != 0 && max(least, x.lasted) > left {
		rec.TimeUp = true
		x.log("%s: too little time is left (-time-limit): %s", x.Criterion, e.text())
		x.keep(rec)
		return true
	}
	return least == 0
}

// least is the time that the missing blocks take at least: as long as the last block
// did, or less by as much as reads are faster at the speed. 0 if none is missing.
func (e *extension) least() time.Duration {
	last := e.rec.Blocks
	if len(e.rec.OtherSpeed) > 0 {
		last = e.rec.OtherSpeed
	}
	rate := cmp.Or(meanRate(last[len(last)-1].Probes), e.rec.bandwidth())
	least := 0.0
	for _, speed := range e.speeds {
		missing, _ := e.rec.missing(speed)
		least = max(least, float64(missing)*min(1, rate/speed))
	}
	return time.Duration(least * float64(e.x.lasted))
}

// add measures a block more, and says whether that ends the measurement. A block that
// does not count is repeated at the same place of the plan of orders, which goes on
// behind the plan's blocks. Each has a probe at least, so that its speed is known.
func (e *extension) add(ctx context.Context) (done bool) {
	x, rec, n := e.x, e.rec, len(e.rec.OtherSpeed)
	slot := rec.Planned
	for i := range rec.OtherSpeed {
		if e.counts(&rec.OtherSpeed[i]) {
			slot++
		}
	}
	if done, e.err = x.stop(ctx, rec, nil, nil); !done {
		if n == 0 {
			x.log("%s: an estimate alone withholds the verdict, so blocks are added: %s", x.Criterion, e.text())
		}
		order := orders(x.Seed, len(x.Arms), slot+1)[slot]
		x.begun, x.probing = x.Now(), 0
		done, e.err = x.measure(ctx, rec, &rec.OtherSpeed, "added "+blockName(n), slot, order)
	}
	if interrupted := (*ErrInterrupted)(nil); errors.As(e.err, &interrupted) {
		interrupted.Done = fmt.Sprintf("%d blocks of the plan and %d added", len(rec.Kept()), n)
	}
	if done {
		return true
	}
	b := &rec.OtherSpeed[n]
	line := fmt.Sprintf("%s: added block %d, ", x.Criterion, n+1)
	if why := x.Rules.disturbed(b.Readings); why != "" {
		line += "disturbed (" + why + ")"
	} else {
		line += fmt.Sprintf("%.1f GB/s, ratio %.3f", meanRate(b.Probes)/1e9, x.Criterion.Ratio(b.Run(ArmSerial), b.Run(ArmBatch)))
	}
	line += ": " + e.text()
	if least := e.least(); least > 0 {
		line += fmt.Sprintf(", at least %s left", human(least))
	}
	x.log("%s", line)
	return false
}

// counts says whether an added block is among those of a bound.
func (e *extension) counts(b *Block) bool {
	return slices.ContainsFunc(e.speeds, func(speed float64) bool {
		_, added := e.rec.ranAt(speed)
		return slices.Contains(added, b)
	})
}

// text tells how far it is, such as "3 of 5 blocks at 60.2 GB/s of reads".
func (e *extension) text() string {
	var parts []string
	for _, speed := range e.speeds {
		missing, _ := e.rec.missing(speed)
		parts = append(parts, fmt.Sprintf("%d of %d blocks at %.1f GB/s of reads", boundBlocks()-missing, boundBlocks(), speed/1e9))
	}
	return strings.Join(parts, ", ")
}
