// Package kv keeps account of paged KV blocks: which sequence owns which, and
// how far each is filled. It holds numbers only; the memory is the backend's.
package kv

import (
	"errors"
	"fmt"
	"slices"
)

// ErrExhausted says that the pool has too few free KV blocks.
var ErrExhausted = errors.New("out of KV blocks")

// Pool hands out KV blocks of a fixed size. Not safe for concurrent use.
type Pool struct {
	blockSize int
	first     int
	total     int
	free      []int32
}

// Table lists the KV blocks of one sequence in order of position.
// The zero value is an empty sequence.
type Table struct {
	Blocks []int32
	Len    int // positions filled
}

// NewPool makes a pool of the given number of KV blocks from block first on,
// all free.
func NewPool(first, blocks, blockSize int) *Pool {
	p := &Pool{blockSize: blockSize, first: first, total: blocks, free: make([]int32, blocks)}
	for i := range p.free {
		p.free[i] = int32(first + blocks - 1 - i) // the first is handed out first
	}
	return p
}

// BlockSize is the number of positions in a KV block.
func (p *Pool) BlockSize() int { return p.blockSize }

// Total is the number of KV blocks, free or not.
func (p *Pool) Total() int { return p.total }

// Free is the number of KV blocks that no sequence owns.
func (p *Pool) Free() int { return len(p.free) }

// Need is the number of further KV blocks that t takes to grow by n positions.
func (p *Pool) Need(t *Table, n int) int {
	return max(0, p.BlocksFor(t.Len+n)-len(t.Blocks))
}

// BlocksFor is the number of KV blocks that n positions take.
func (p *Pool) BlocksFor(n int) int { return (n + p.blockSize - 1) / p.blockSize }

// Reserve gives t the KV blocks for n further positions, without filling them.
// It either succeeds or changes nothing.
func (p *Pool) Reserve(t *Table, n int) error {
	need := p.Need(t, n)
	if need > len(p.free) {
		return fmt.Errorf("%w: need %d, free %d of %d", ErrExhausted, need, len(p.free), p.total)
	}
	for range need {
		last := len(p.free) - 1
		t.Blocks = append(t.Blocks, p.free[last])
		p.free = p.free[:last]
	}
	return nil
}

// Advance fills n reserved positions.
func (p *Pool) Advance(t *Table, n int) {
	t.Len += n
	if t.Len > len(t.Blocks)*p.blockSize {
		panic("kv: advanced past the reserved KV blocks")
	}
}

// Release returns all KV blocks of t, which is then empty. They will be handed out
// in the order in which t had them: neighbours in memory are read faster.
func (p *Pool) Release(t *Table) {
	for _, block := range slices.Backward(t.Blocks) {
		p.free = append(p.free, block)
	}
	if len(p.free) > p.total {
		panic("kv: KV blocks released twice")
	}
	t.Blocks, t.Len = t.Blocks[:0], 0
}

// Check verifies the invariants over all live tables: no KV block is owned
// twice or owned and free, none is lost, and every table is long enough.
func (p *Pool) Check(tables ...*Table) error {
	owner := make([]int, p.total) // 0 unseen, 1 free, 2+i table i
	for _, b := range p.free {
		if owner[int(b)-p.first] != 0 {
			return fmt.Errorf("KV block %d is free twice", b)
		}
		owner[int(b)-p.first] = 1
	}
	used := 0
	for i, t := range tables {
		for _, b := range t.Blocks {
			if owner[int(b)-p.first] != 0 {
				return fmt.Errorf("KV block %d of table %d has another owner", b, i)
			}
			owner[int(b)-p.first] = 2 + i
			used++
		}
		if t.Len > len(t.Blocks)*p.blockSize {
			return fmt.Errorf("table %d holds %d positions in %d KV blocks of %d", i, t.Len, len(t.Blocks), p.blockSize)
		}
	}
	if used+len(p.free) != p.total {
		return fmt.Errorf("%d KV blocks used + %d free ≠ %d in all", used, len(p.free), p.total)
	}
	return nil
}
