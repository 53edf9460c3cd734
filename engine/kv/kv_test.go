package kv

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestPoolHistories checks the invariants after every operation of random
// histories of growing and releasing sequences.
func TestPoolHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blockSize := rapid.IntRange(1, 5).Draw(t, "block size")
		pool := NewPool(3, rapid.IntRange(0, 12).Draw(t, "blocks"), blockSize)
		tables := make([]*Table, rapid.IntRange(1, 5).Draw(t, "sequences"))
		for i := range tables {
			tables[i] = new(Table)
		}
		for range rapid.IntRange(1, 40).Draw(t, "operations") {
			table := tables[rapid.IntRange(0, len(tables)-1).Draw(t, "sequence")]
			if rapid.Bool().Draw(t, "release") {
				pool.Release(table)
				require.Zero(t, table.Len)
			} else {
				n := rapid.IntRange(0, 3*blockSize).Draw(t, "positions")
				before, free := len(table.Blocks), pool.Free()
				need := pool.Need(table, n)
				if err := pool.Reserve(table, n); err != nil {
					require.ErrorIs(t, err, ErrExhausted)
					require.Greater(t, need, free)
					require.Len(t, table.Blocks, before, "a failed reservation must change nothing")
					require.Equal(t, free, pool.Free())
				} else {
					require.Equal(t, free-need, pool.Free())
					pool.Advance(table, n)
				}
			}
			require.NoError(t, pool.Check(tables...))
		}
	})
}

// TestCheckCatches proves that each broken invariant is found.
func TestCheckCatches(t *testing.T) {
	for name, breakIt := range map[string]func(p *Pool, a, b *Table){
		"owned twice":    func(p *Pool, a, b *Table) { b.Blocks = append(b.Blocks, a.Blocks[0]) },
		"owned and free": func(p *Pool, a, _ *Table) { p.free = append(p.free, a.Blocks[0]) },
		"lost":           func(_ *Pool, a, _ *Table) { a.Blocks = a.Blocks[:1]; a.Len = 0 },
		"overfull":       func(_ *Pool, a, _ *Table) { a.Len = 9 },
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(0, 6, 4)
			var a, b Table
			require.NoError(t, p.Reserve(&a, 8))
			p.Advance(&a, 8)
			require.NoError(t, p.Reserve(&b, 1))
			require.NoError(t, p.Check(&a, &b))
			breakIt(p, &a, &b)
			require.Error(t, p.Check(&a, &b))
		})
	}
}

func TestMisusePanics(t *testing.T) {
	p := NewPool(0, 2, 4)
	var a Table
	require.NoError(t, p.Reserve(&a, 4))
	require.Panics(t, func() { p.Advance(&a, 5) })
	again := Table{Blocks: append([]int32{0}, a.Blocks...)}
	p.Release(&a)
	require.Panics(t, func() { p.Release(&again) }, "KV blocks released twice")
}
