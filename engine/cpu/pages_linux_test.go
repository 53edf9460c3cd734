package cpu

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pages hands out words that end where memory that may not be touched begins, or begin
// where it ends.
type pages struct {
	t     *testing.T
	rng   *rand.Rand
	first bool // that memory comes first
}

func (p pages) words(n int) *float32 {
	page := os.Getpagesize()
	size := roundUp(4*n, page)
	all, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, unix.Munmap(all)) })
	guard, rest := all[size:], all[size-4*n:size]
	if p.first {
		guard, rest = all[:page], all[page:][:4*n]
	}
	require.NoError(p.t, unix.Mprotect(guard, unix.PROT_NONE))
	x := unsafe.Slice((*float32)(unsafe.Pointer(&rest[0])), n)
	for i := range x {
		x[i] = p.rng.Float32()
	}
	return &x[0]
}

// list is of pointers to words.
func (p pages) list(n, words int) **byte {
	list := unsafe.Slice((**byte)(unsafe.Pointer(p.words(2*n))), n)
	for i := range list {
		list[i] = (*byte)(unsafe.Pointer(p.words(words)))
	}
	return &list[0]
}

// TestDotsStayInTheirPages: what kernels for bf16 products read and write begins and
// ends where it should, even where only a fault would tell.
func TestDotsStayInTheirPages(t *testing.T) {
	const seed = 8
	t.Logf("seed %d", seed)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for _, first := range []bool{false, true} {
		p := pages{t, rand.New(rand.NewPCG(seed, 0)), first}
		run := func(f func(), format string, args ...any) {
			t.Helper()
			require.NotPanics(t, f, fmt.Sprintf(format, args...))
		}
		for _, k := range dotSets(t) {
			most := maxTileRows
			if k == kernelsFor(AMX) {
				most = 70
			}
			for rows := 1; rows <= most; rows++ {
				for range 4 {
					pairs, panels := 1+p.rng.IntN(40), 1+p.rng.IntN(3)
					stride := pairs + p.rng.IntN(5)
					acc, w, x := p.words(panels*rows*panelOutputs), p.words(panels*pairs*panelOutputs), p.words((rows-1)*stride+pairs)
					for _, begun := range []bool{false, true} {
						run(func() {
							k.dots(rows, acc, begun, (*byte)(unsafe.Pointer(w)), x, 4*stride, pairs, panels, pairBytes, 0, pairBytes)
						}, "%d rows, %d pairs, %d panels", rows, pairs, panels)
					}
				}
			}
		}
		k := mixersFor(AVX512)
		for rows := 1; rows <= unitRows; rows++ {
			for range 6 {
				pairs, chunks, ahead := 1+p.rng.IntN(40), 1+p.rng.IntN(9), p.rng.IntN(3)
				what := fmt.Sprintf("%d rows, %d pairs, %d chunks", rows, pairs, chunks)
				q := p.words((rows-1)*dotRowWords + pairs)
				groups := 1 + p.rng.IntN(3)
				run(func() {
					s := p.words((rows-1)*splitPositions + groups*groupPositions)
					k.scoresDots[rows-1](s, p.list(groups+ahead, pairs*groupPositions), groups, q, pairs, ahead)
				}, "scores, %s, %d groups", what, groups)
				groups += splitGroups * p.rng.IntN(2)
				run(func() {
					splits := (groups + splitGroups - 1) / splitGroups
					last := groups - (splits-1)*splitGroups
					stride := rows * chunks * chunkDims
					w := p.words(((splits-1)*unitRows+rows-1)*dotRowWords + last*groupPositions/2)
					k.mixDots[rows-1](p.words(splits*stride), p.list(groups+max(ahead, leastAhead), chunks*chunkDims*groupPositions/2), groups, w, chunks, ahead, 4*stride)
				}, "mix, %s, %d groups", what, groups)
			}
			pairs, splits, ahead := 1+p.rng.IntN(40), 1+p.rng.IntN(2), p.rng.IntN(2)
			run(func() {
				w, most, sum := p.words(((splits-1)*unitRows+rows)*dotRowWords), p.words((splits-1)*unitRows+rows), p.words((splits-1)*unitRows+rows)
				list := p.list(splits*splitGroups+max(ahead, 1), pairs*groupPositions)
				k.weightsDots[rows-1](w, most, sum, list, splits, p.words((rows-1)*dotRowWords+pairs), pairs, ahead, p.words(weightsWork))
			}, "weights, %d rows, %d pairs, %d splits", rows, pairs, splits)
			if detect() < AMX {
				continue
			}
			for range 6 {
				dims, ahead := 1+p.rng.IntN(80), p.rng.IntN(2)
				pairs, chunks := (dims+1)/2, (dims+chunkDims-1)/chunkDims
				keys, values := p.rng.IntN(splitGroups+1), p.rng.IntN(splitGroups+1)
				list := func(n, words int) **byte {
					if ahead > 0 || n == 0 {
						return p.list(max(n+ahead, 1), words)
					}
					list, run := unsafe.Slice((**byte)(unsafe.Pointer(p.words(2*(n+1)))), n+1), p.words(n*words)
					for i := range list {
						list[i] = (*byte)(unsafe.Add(unsafe.Pointer(run), 4*i*words))
					}
					return &list[0]
				}
				weights := max((rows-1)*dotRowWords+values*groupPositions/2, 1)
				run(func() {
					mixersFor(AMX).passDots[rows-1](p.words(chunks*chunkDims*rows), list(keys, pairs*groupPositions), keys, list(values, chunks*chunkDims*groupPositions/2), values,
						p.words((rows-1)*dotRowWords+pairs), pairs, chunks, ahead, p.words(passWork), p.words(passWork), p.words(weights), p.words(rows))
				}, "pass, %d rows, %d pairs, %d chunks, %d keys, %d values", rows, pairs, chunks, keys, values)
			}
		}
	}
}

// TestVectorsStayInTheirPages is the same of kernels for float32 products.
func TestVectorsStayInTheirPages(t *testing.T) {
	const seed = 9
	t.Logf("seed %d", seed)
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	for _, first := range []bool{false, true} {
		p := pages{t, rand.New(rand.NewPCG(seed, 0)), first}
		for _, isa := range Supported()[1:] {
			if isa > AVX512 {
				continue // has the same
			}
			k, m := kernelsFor(isa), mixersFor(isa)
			for dtype, size := range []int{1, 2} { // words of a pair
				tiles, scores, mix := k.tileBF16, m.scoresBF16, m.mixBF16
				if dtype > 0 {
					tiles, scores, mix = k.tileF32, m.scoresF32, m.mixF32
				}
				for rows := 1; rows <= maxTileRows; rows++ {
					pairs, panels := 1+p.rng.IntN(40), 1+p.rng.IntN(2)
					acc, w, x := p.words(panels*rows*panelOutputs), p.words(panels*pairs*panelOutputs*size), p.words(2*pairs*rows)
					for _, begun := range []bool{false, true} {
						require.NotPanics(t, func() {
							tiles[rows-1](acc, begun, (*byte)(unsafe.Pointer(w)), x, pairs, panels, pairBytes, 0, pairBytes)
						}, "%v, %d words a pair, %d rows, %d pairs, %d panels", isa, size, rows, pairs, panels)
					}
				}
				for rows := 1; rows <= unitRows; rows++ {
					pairs, chunks, groups, ahead := 1+p.rng.IntN(40), 1+p.rng.IntN(5), 1+p.rng.IntN(3), p.rng.IntN(3)
					what := fmt.Sprintf("%v, %d words a pair, %d rows, %d pairs, %d chunks, %d groups", isa, size, rows, pairs, chunks, groups)
					weights := (rows-1)*splitPositions + groups*groupPositions
					require.NotPanics(t, func() {
						scores[rows-1](p.words(weights), p.list(groups+ahead, size*pairs*groupPositions), groups, p.words(2*pairs*rows), pairs, ahead, 0, 0)
					}, "scores, %s", what)
					require.NotPanics(t, func() {
						values := p.list(groups+ahead, size*chunks*chunkDims*groupPositions/2)
						mix[rows-1](p.words(chunks*chunkDims*rows), values, groups, p.words(weights), chunks, ahead, 0, 0)
					}, "mix, %s", what)
				}
			}
		}
	}
}
