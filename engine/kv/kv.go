// Package kv keeps account of paged KV blocks: which sequence owns which, and
// how far each is filled. It holds numbers only; the memory is the backend's.
package kv

import (
	"errors"
	"fmt"
)

// ErrExhausted says that the pool has too few free KV blocks.
var ErrExhausted = errors.New("out of KV blocks")

// Pool hands out KV blocks of a fixed size. Not safe for concurrent use.
//
// Neighbours in memory are read faster, so a sequence gets the block after its
// last one if that is free, and a new sequence starts where most room is left,
// halfway between others that may grow.
type Pool struct {
	blockSize int
	first     int
	used      []bool // by block, less first
	free      int
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
	return &Pool{blockSize: blockSize, first: first, used: make([]bool, blocks), free: blocks}
}

// BlockSize is the number of positions in a KV block.
func (p *Pool) BlockSize() int { return p.blockSize }

// Total is the number of KV blocks, free or not.
func (p *Pool) Total() int { return len(p.used) }

// Free is the number of KV blocks that no sequence owns.
func (p *Pool) Free() int { return p.free }

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
	if need > p.free {
		return fmt.Errorf("%w: need %d, free %d of %d", ErrExhausted, need, p.free, len(p.used))
	}
	if need == 0 {
		return nil
	}
	at := 0
	if n := len(t.Blocks); n > 0 {
		at = int(t.Blocks[n-1]) - p.first + 1
	} else {
		at = p.start(need)
	}
	for range need {
		for at == len(p.used) || p.used[at] {
			at = (at + 1) % (len(p.used) + 1)
		}
		p.used[at] = true
		p.free--
		t.Blocks = append(t.Blocks, int32(p.first+at))
		at++
	}
	return nil
}

// start is where to look for the blocks of a new sequence: in the longest run of
// free ones, whose first half is left to the sequence before it.
func (p *Pool) start(need int) int {
	first, longest, run := 0, 0, 0
	for i, used := range p.used {
		if run++; used {
			run = 0
		}
		if run > longest {
			first, longest = i+1-run, run
		}
	}
	if first == 0 {
		return 0
	}
	return first + max(0, min(longest/2, longest-need))
}

// Advance fills n reserved positions.
func (p *Pool) Advance(t *Table, n int) {
	t.Len += n
	if t.Len > len(t.Blocks)*p.blockSize {
		panic("kv: advanced past the reserved KV blocks")
	}
}

// Release returns all KV blocks of t, which is then empty.
func (p *Pool) Release(t *Table) {
	for _, block := range t.Blocks {
		if !p.used[int(block)-p.first] {
			panic("kv: a KV block released twice")
		}
		p.used[int(block)-p.first] = false
	}
	p.free += len(t.Blocks)
	t.Blocks, t.Len = t.Blocks[:0], 0
}

// Check verifies the invariants over all live tables: no KV block is owned
// twice or owned and free, none is lost, and every table is long enough.
func (p *Pool) Check(tables ...*Table) error {
	owner := make([]int, len(p.used)) // 1+i of table i
	owned := 0
	for i, t := range tables {
		for _, b := range t.Blocks {
			at := int(b) - p.first
			switch {
			case owner[at] != 0:
				return fmt.Errorf("KV block %d of table %d has another owner", b, i)
			case !p.used[at]:
				return fmt.Errorf("KV block %d of table %d is free", b, i)
			}
			owner[at] = 1 + i
			owned++
		}
		if t.Len > len(t.Blocks)*p.blockSize {
			return fmt.Errorf("table %d holds %d positions in %d KV blocks of %d", i, t.Len, len(t.Blocks), p.blockSize)
		}
	}
	if owned+p.free != len(p.used) {
		return fmt.Errorf("%d KV blocks owned + %d free ≠ %d in all", owned, p.free, len(p.used))
	}
	return nil
}
