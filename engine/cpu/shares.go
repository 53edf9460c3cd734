package cpu

import "sync/atomic"

// shares deal out the items of a task: each worker begins with a part of its
// own, and then takes what others have left, since workers that wait for memory
// do not advance alike.
type shares []struct {
	next atomic.Int32
	end  int32
	_    [lineBytes - 8]byte // each worker mostly writes its own
}

// dealAll gives every worker its part; no worker may be taking.
func (s shares) dealAll(items int) {
	for w := range s {
		s.deal(w, items)
	}
}

// deal gives one worker its part.
func (s shares) deal(worker, items int) {
	s[worker].end = int32((worker + 1) * items / len(s))
	s[worker].next.Store(int32(worker * items / len(s)))
}

// take yields up to most items, none if all are taken. What it takes dwindles, so
// that all workers end at about the same time.
func (s shares) take(worker, most int) (lo, hi int) {
	for i := range s {
		part := &s[(worker+i)%len(s)]
		for {
			next := part.next.Load()
			left := part.end - next
			if left <= 0 {
				break
			}
			if n := min(int32(most), max(1, 3*left/4)); part.next.CompareAndSwap(next, next+n) {
				return int(next), int(next + n)
			}
		}
	}
	return 0, 0
}
