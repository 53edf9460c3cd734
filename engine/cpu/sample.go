package cpu

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// sampleTask draws tokens. The workers share the vocabulary of a greedy row,
// and take whole rows of the others.
type sampleTask struct {
	b       *Backend
	out     []int32
	logits  *buffer
	params  []backend.Sampling
	drawers []drawer // of each worker
	cells   []cell   // [worker][tokens of the largest buffer]
	stride  int
}

// cell is the largest logit in one worker's share of a row.
type cell struct {
	best  float32
	token int32
}

type drawer struct {
	sampler backend.Sampler
	err     error // the first
	row     int   // that it belongs to
}

func greedy(p *backend.Sampling) bool { return p.Temperature == 0 || p.TopK == 1 }

// reserve makes room for buffers of so many tokens.
func (t *sampleTask) reserve(tokens int) {
	if tokens > t.stride {
		t.stride = tokens
		t.cells = make([]cell, tokens*t.b.pool.workers)
	}
}

// Sample draws tokens. Nothing is left to wait for: the ops are done when they return.
func (b *Backend) Sample(out []int32, logits backend.Buffer, params []backend.Sampling) error {
	t := &b.sample
	t.out, t.logits, t.params = out, logits.(*buffer), params
	if len(out) != len(params) || len(out) > t.logits.tokens {
		panic(fmt.Sprintf("cpu: sample %d tokens with %d parameters from %d rows", len(out), len(params), t.logits.tokens))
	}
	t.logits.mustBeFloat()
	if len(out) == 0 {
		return nil
	}
	for w := range t.drawers {
		t.drawers[w].err = nil
	}
	b.pool.run(t)
	for row := range out {
		if !greedy(&params[row]) {
			if d := &t.drawers[row%b.pool.workers]; d.err != nil && d.row == row {
				return d.err
			}
			continue
		}
		best := cell{best: float32(math.Inf(-1))}
		for w := range b.pool.workers {
			c := t.cells[w*t.stride+row]
			if c.best != c.best {
				best = c
				break
			}
			if c.best > best.best {
				best = c
			}
		}
		if math.IsInf(float64(best.best), 0) || best.best != best.best {
			// The sampler looks again, and says what is wrong.
			if _, err := t.drawers[0].sampler.Sample(row, t.logits.row(row), params[row]); err != nil {
				return err
			}
			panic("cpu: the scan of the logits and the sampler disagree")
		}
		out[row] = best.token
	}
	return nil
}

func (t *sampleTask) work(worker int) {
	k := t.b.kernels
	lo, hi := t.b.pool.part(worker, t.logits.width)
	d := &t.drawers[worker]
	for row := range t.out {
		logits := t.logits.row(row)
		if greedy(&t.params[row]) {
			c := cell{best: float32(math.Inf(-1))}
			if lo < hi {
				c.best = k.scan(&logits[lo], hi-lo)
				c.token = int32(lo + k.index(&logits[lo], hi-lo, c.best)) // −1 for NaN, which is seen later
			}
			t.cells[worker*t.stride+row] = c
			continue
		}
		if row%t.b.pool.workers != worker {
			continue
		}
		token, err := d.sampler.Sample(row, logits, t.params[row])
		if err != nil && d.err == nil {
			d.err, d.row = err, row
		}
		t.out[row] = token
	}
}
