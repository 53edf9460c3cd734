package cpu

import "math"

// ropeTask fills a table; each worker has its share of the positions.
type ropeTask struct {
	pool    *pool
	r       *rope
	invFreq []float32
}

func (t *ropeTask) work(worker int) {
	lo, hi := t.pool.part(worker, t.r.positions)
	for pos := lo; pos < hi; pos++ {
		for d, f := range t.invFreq {
			sin, cos := math.Sincos(float64(float32(pos) * f))
			t.r.cos[pos*t.r.pairs+d] = float32(cos)
			t.r.sin[pos*t.r.pairs+d] = float32(sin)
		}
	}
}
