package cuda

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

// draws is what kernels/draw.cu works with, for so many rows.
type draws struct {
	rows           int
	params         driver.Ptr
	masses, counts driver.Ptr
	states         [2]driver.Ptr // of one kernel, and of the next
	host           []byte        // copy of params
}

// As in kernels/draw.cu.
const (
	drawSlots    = 13 // histograms of a row
	drawBins     = 256
	drawRowBytes = 24
	stateBytes   = 40
	maxVocab     = 1 << 24 // bits of an index that are looked at
)

const (
	byTopK = 1 + iota
	byTopP
	byLogit
	byIndex
)

// growDraws makes room at the first use: the largest buffer has far more rows
// than are ever drawn.
func (b *Backend) growDraws(rows int) (err error) {
	d := &b.sample.draws
	if rows <= d.rows {
		return nil
	}
	rows = max(8, rows)
	old := *d
	*d = draws{}
	for _, p := range []driver.Ptr{old.params, old.masses, old.counts, old.states[0], old.states[1]} {
		if err := b.memory.release(b.dev, p); err != nil {
			return b.fail(err)
		}
	}
	if err := b.memory.releaseHost(b.dev, old.host); err != nil {
		return b.fail(err)
	}
	n := int64(rows)
	for _, a := range []struct {
		to    *driver.Ptr
		bytes int64
	}{
		{&d.params, n * drawRowBytes}, {&d.masses, n * drawSlots * drawBins * 8}, {&d.counts, n * drawSlots * drawBins * 4},
		{&d.states[0], n * stateBytes}, {&d.states[1], n * stateBytes},
	} {
		if *a.to, err = b.alloc("drawing tokens", a.bytes, false); err != nil {
			return err
		}
	}
	if d.host, err = b.memory.allocHost(b.dev, rows*drawRowBytes); err != nil {
		return b.fail(err)
	}
	d.rows = rows
	return nil
}

// phases are those that some row needs; none if all are greedy.
type phases [byIndex + 1]bool

func phasesOf(params []backend.Sampling) (wanted phases) {
	for i := range params {
		p := &params[i]
		if greedy(p) {
			continue
		}
		k, nucleus := p.TopK > 0, p.TopP > 0 && p.TopP < 1
		wanted[byTopK], wanted[byTopP] = wanted[byTopK] || k, wanted[byTopP] || nucleus
		wanted[byLogit], wanted[byIndex] = wanted[byLogit] || k || nucleus, true
	}
	return wanted
}

// write puts down what the rows draw with, of n tokens.
func (d *draws) write(params []backend.Sampling, n int) {
	for i, p := range params {
		at := d.host[i*drawRowBytes:]
		if greedy(&p) {
			p = backend.Sampling{}
		}
		if p.TopK >= n {
			p.TopK = 0
		}
		binary.NativeEndian.PutUint32(at, math.Float32bits(p.Temperature))
		binary.NativeEndian.PutUint32(at[4:], math.Float32bits(p.TopP))
		binary.NativeEndian.PutUint32(at[8:], uint32(p.TopK))
		binary.NativeEndian.PutUint32(at[12:], 0)
		binary.NativeEndian.PutUint64(at[16:], math.Float64bits(p.Uniform))
	}
}

// draw records the launches that replace the largest logits of rows that are
// not greedy by what they draw.
func (b *Backend) draw(logits *buffer, rows int, wanted phases) {
	d, n := &b.sample.draws, logits.width
	// A sum of n masses, each at most 1, takes 62 bits.
	scale := math.Float64bits(math.Ldexp(1, 62-bits.Len(uint(n))))
	grid, threads := dim(min(ceil(n, 2048), maxShares), rows, 1), uint32(256)
	if n <= 2048 {
		threads = 32 // which is no other result: the sums are exact
	}
	found, x := ptr(b.sample.found), ptr(logits.ptr)
	b.list.Upload(d.params, d.host[:rows*drawRowBytes])
	b.list.Fill(d.masses, 0, int64(rows)*drawSlots*drawBins*8)
	b.list.Fill(d.counts, 0, int64(rows)*drawSlots*drawBins*4)
	in, out := d.states[0], d.states[1]
	b.launch(kDrawFirst, grid, threads, 0, ptr(d.masses), ptr(d.counts), ptr(out), ptr(d.params), found, x, i32(n), i32(n), scale)
	for phase := byTopK; phase <= byIndex; phase++ {
		for level := 1; level <= 3 && wanted[phase]; level++ {
			in, out = out, in
			b.launch(kDrawNext, grid, threads, 0, ptr(d.masses), ptr(d.counts), ptr(out), ptr(in), ptr(d.params), found, x, i32(n), i32(n), scale,
				i32(phase), i32(level))
		}
	}
	b.launch(kDrawLast, dim(rows, 1, 1), 32, 0, found, ptr(d.masses), ptr(d.counts), ptr(out), ptr(d.params))
}

func greedy(p *backend.Sampling) bool { return p.Temperature == 0 || p.TopK == 1 }
