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

// TestRuns: sequences that start one after another and grow by turns have
// neighbouring blocks until all are used up.
func TestRuns(t *testing.T) {
	const sequences, blocks = 8, 16 // of each
	pool := NewPool(5, sequences*blocks, 1)
	tables := make([]Table, sequences)
	for n := range blocks {
		for i := range tables {
			table := &tables[i]
			require.NoError(t, pool.Reserve(table, 1))
			pool.Advance(table, 1)
			require.Equal(t, table.Blocks[0]+int32(n), table.Blocks[n], "sequence %d", i)
		}
	}
	require.Zero(t, pool.Free())
	pool.Release(&tables[3])
	var long Table
	require.NoError(t, pool.Reserve(&long, blocks), "also where a run has no room before it")
	require.NoError(t, pool.Check(&tables[0], &tables[1], &tables[2], &tables[4], &tables[5], &tables[6], &tables[7], &long))
}

// TestStart: where a new sequence begins among blocks in use.
func TestStart(t *testing.T) {
	for name, c := range map[string]struct {
		used string // a block each
		need int
		want []int32
	}{
		"nothing in use":            {"......", 2, []int32{0, 1}},
		"halfway":                   {"x......", 2, []int32{4, 5}},
		"earlier, to be in one run": {"x......", 5, []int32{2, 3, 4, 5, 6}},
		"the longest run":           {"x..x...x", 3, []int32{4, 5, 6}},
		"the first of equal ones":   {"x...x...", 2, []int32{2, 3}},
		"the longest run is first":  {"...x..", 2, []int32{0, 1}},
		"no run is long enough":     {"x.x..x", 3, []int32{3, 4, 1}},
		"far more than any run":     {"x.x.x.x.", 4, []int32{1, 3, 5, 7}},
	} {
		t.Run(name, func(t *testing.T) {
			const first = 3
			p := NewPool(first, len(c.used), 1)
			var all, others, free, table Table
			require.NoError(t, p.Reserve(&all, len(c.used)))
			for i, block := range all.Blocks {
				to := &others
				if c.used[i] == '.' {
					to = &free
				}
				to.Blocks = append(to.Blocks, block)
			}
			p.Release(&free)
			require.NoError(t, p.Reserve(&table, c.need))
			var got []int32
			for _, block := range table.Blocks {
				got = append(got, block-first)
			}
			require.Equal(t, c.want, got)
			require.NoError(t, p.Check(&others, &table))
		})
	}
}

// TestCheckCatches proves that each broken invariant is found.
func TestCheckCatches(t *testing.T) {
	for name, breakIt := range map[string]func(p *Pool, a, b *Table){
		"owned twice":    func(p *Pool, a, b *Table) { b.Blocks = append(b.Blocks, a.Blocks[0]) },
		"owned and free": func(p *Pool, a, _ *Table) { p.used[a.Blocks[0]] = false; p.free++ },
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
