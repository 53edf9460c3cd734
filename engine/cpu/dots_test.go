package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/require"
)

// anyFloat draws every kind of float32, bit pattern by bit pattern.
func anyFloat(rng *rand.Rand) float32 {
	switch rng.IntN(8) {
	case 0:
		return math.Float32frombits(rng.Uint32())
	case 1:
		return math.Float32frombits(rng.Uint32() & 0x807fffff) // subnormal
	case 2:
		return float32(math.Inf(1 - 2*rng.IntN(2)))
	case 3: // next to the middle between two bf16
		return math.Float32frombits(rng.Uint32()&0xbfff0000 | 0x8000 + uint32(rng.IntN(3)) - 1)
	}
	return float32(rng.NormFloat64() * math.Exp2(float64(rng.IntN(80)-40)))
}

// dotSets are the sets with dot kernels of their own; a CPU without any skips.
func dotSets(t *testing.T) (list []*kernels) {
	for _, isa := range Supported()[1:] {
		if k := kernelsFor(isa); k.dots != nil {
			list = append(list, k)
		}
	}
	if len(list) == 0 {
		t.Skip("no AVX512_BF16 here: only the generic code is tested")
	}
	return list
}

// TestRoundIsGeneric compares bits, at every length, with guards.
func TestRoundIsGeneric(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, k := range dotSets(t) {
		for n := 1; n <= 70; n++ {
			for range 20 {
				x, w := newGuarded(n), randomGuarded(rng, n, 3)
				for i := range x.x {
					x.x[i] = anyFloat(rng)
				}
				for name, op := range map[string]func(k *kernels, dst guarded){
					"round":      func(k *kernels, dst guarded) { k.round(dst.first(), x.first(), n) },
					"roundAway":  func(k *kernels, dst guarded) { k.roundAway(dst.first(), x.first(), n) },
					"scaleRound": func(k *kernels, dst guarded) { k.scaleRound(dst.first(), x.first(), w.first(), n, 0.3, 1) },
				} {
					want, got := newGuarded((n+1)/2), newGuarded((n+1)/2)
					if name == "roundAway" {
						got = newGuardedLine((n + 1) / 2)
					}
					op(generic, want)
					op(k, got)
					for i, u := range bits(want.x) {
						v := bits(got.x)[i]
						for _, shift := range []int{0, 16} {
							a, b := u>>shift&0xffff, v>>shift&0xffff
							nan := a&0x7fff > 0x7f80 && b&0x7fff > 0x7f80
							require.True(t, a == b || nan, "%s of %d: pair %d is %x, want %x", name, n, i, v, u)
						}
					}
					require.True(t, got.intact(), "%s %d wrote past its end", name, n)
				}
			}
		}
	}
}

// TestDotsAreGeneric compares bits for every number of rows and pairs, for several
// blocks of pairs and groups of rows, and for as many panels as a call has, with values
// of every kind.
func TestDotsAreGeneric(t *testing.T) {
	const seed = 4
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type size struct{ rows, pairs, panels int }
	for _, k := range dotSets(t) {
		oracle, most := generic.dots, maxTileRows
		sizes := []size{{1, 300, callPanels}, {maxTileRows, 20, callPanels}}
		if k == kernelsFor(AMX) {
			oracle, most = dotsTiled, 70
			sizes = append(sizes, size{20, 20, callPanels}, size{40, 20, callPanels}, size{3*32 + 5, 2*256 + 35, 2}, size{4 * 32, 256 + 16, 1})
		}
		for rows := 1; rows <= most; rows++ {
			for pairs := 1; pairs <= 40; pairs++ {
				sizes = append(sizes, size{rows, pairs, 1 + rng.IntN(3)})
			}
		}
		for _, s := range sizes {
			stride := s.pairs + rng.IntN(5)
			x, w := make([]uint32, s.rows*stride), make([]uint32, s.panels*s.pairs*panelOutputs)
			rarity := 1 + rng.IntN(8*s.pairs) // of special values, so that most sums stay finite
			number := func() uint32 {
				if rng.IntN(rarity) == 0 {
					return math.Float32bits(anyFloat(rng))
				}
				return math.Float32bits(rng.Float32() - 0.5)
			}
			draw := func() uint32 { return number()&0xffff0000 | number()>>16 }
			for i := range x {
				x[i] = draw()
			}
			for i := range w {
				w[i] = draw()
			}
			want := randomGuarded(rng, s.panels*s.rows*panelOutputs, 1)
			want.x[0] = 1e-39
			begun, near := rng.IntN(2) == 0, lineBytes*rng.IntN(2)
			if !begun {
				fill(want.x, nan)
			}
			got := want.copy()
			run := func(dots dotKernel, acc guarded) {
				dots(s.rows, acc.first(), begun, (*byte)(unsafe.Pointer(&w[0])), (*float32)(unsafe.Pointer(&x[0])), 4*stride, s.pairs, s.panels, near, uintptr(unsafe.Pointer(&w[0])), pairBytes)
			}
			run(oracle, want)
			run(k.dots, got)
			requireSame(t, want, got, "%+v, begun %t", s, begun)
		}
	}
}

// TestAttentionDotsAreGeneric compares bits for every number of rows, and odd and
// even numbers of pairs and chunks, with values of every kind.
func TestAttentionDotsAreGeneric(t *testing.T) {
	const seed = 5
	t.Logf("seed %d", seed)
	dotSets(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for rows := 1; rows <= unitRows; rows++ {
		for trial := range 40 {
			draw := func() float32 {
				x, y := rng.Float32()-0.5, rng.Float32()-0.5
				if trial%2 == 0 {
					x, y = anyFloat(rng), anyFloat(rng)
				}
				return math.Float32frombits(math.Float32bits(x)&0xffff0000 | math.Float32bits(y)>>16)
			}
			words := func(n int) []float32 {
				x := make([]float32, n)
				for i := range x {
					x[i] = draw()
				}
				return x
			}
			pairs, chunks, groups, ahead := 1+rng.IntN(40), 1+rng.IntN(16), 1+rng.IntN(3), rng.IntN(3)
			stride := chunks*chunkDims*rows + rng.IntN(3)*chunkDims // between splits
			if trial%4 == 3 {
				groups += splitGroups - 1
			}
			list := func(size int) **byte {
				list := make([]*byte, groups+max(ahead, leastAhead))
				for i := range list {
					list[i] = (*byte)(unsafe.Pointer(&words(size)[0]))
				}
				return &list[0]
			}
			k, v := list(pairs*groupPositions), list(chunks*chunkDims*groupPositions/2)
			q, p := words(rows*dotRowWords), words((unitRows+rows)*dotRowWords)
			for name, op := range map[string]struct {
				start guarded
				run   func(k *mixerKernels, x *float32)
			}{
				"scores": {newGuarded(rows * splitPositions), func(m *mixerKernels, x *float32) {
					m.scoresDots[rows-1](x, k, min(groups, splitGroups), &q[0], pairs, ahead)
				}},
				"mix": {newGuarded(chunks*chunkDims*rows + stride), func(m *mixerKernels, x *float32) { m.mixDots[rows-1](x, v, groups, &p[0], chunks, ahead, 4*stride) }},
			} {
				want, got := op.start.copy(), op.start.copy()
				op.run(mixersGeneric, want.first())
				op.run(mixersFor(AVX512), got.first())
				requireSame(t, want, got, "%s of %d rows, %d pairs, %d chunks, %d groups", name, rows, pairs, chunks, groups)
			}
		}
	}
}

// TestWeightsDotsAreGeneric compares bits for every number of rows; see scoreKinds.
func TestWeightsDotsAreGeneric(t *testing.T) {
	const seed = 6
	t.Logf("seed %d", seed)
	dotSets(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for rows := 1; rows <= unitRows; rows++ {
		for trial := range 12 {
			pairs, splits, ahead := 1+rng.IntN(40), 1+rng.IntN(4), rng.IntN(3)
			query, key := scoreKinds(rng, trial)
			list := make([]*byte, splits*splitGroups+ahead+1)
			for i := range list {
				list[i] = (*byte)(unsafe.Pointer(&pairsOf(pairs*groupPositions, key)[0]))
			}
			q, work := pairsOf(rows*dotRowWords, query), newGuarded(weightsWork)
			start := []guarded{newGuarded(splits * unitRows * dotRowWords), newGuarded(splits * unitRows), newGuarded(splits * unitRows)}
			var results [2][]guarded
			for i, k := range []*mixerKernels{mixersGeneric, mixersFor(AVX512)} {
				for _, g := range start {
					results[i] = append(results[i], g.copy())
				}
				r := results[i]
				k.weightsDots[rows-1](r[0].first(), r[1].first(), r[2].first(), &list[0], splits, &q[0], pairs, ahead, work.first())
			}
			require.True(t, work.intact())
			for j, what := range []string{"weight", "largest", "sum"} {
				requireSame(t, results[0][j], results[1][j], "%s of %d rows, %d pairs, %d splits", what, rows, pairs, splits)
			}
		}
	}
}

// TestPassIsTiled compares bits of the keys of a split, of those of another with the
// values of the first, and of the values of that, for every number of rows: in a list and
// in a run, with queries and keys as above, and values of every kind.
func TestPassIsTiled(t *testing.T) {
	if detect() < AMX {
		t.Skip("no AMX here")
	}
	const seed = 9
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for rows := 1; rows <= unitRows; rows++ {
		for trial := range 16 {
			dims, ahead := 1+rng.IntN(80), rng.IntN(3)
			pairs, chunks := (dims+1)/2, (dims+chunkDims-1)/chunkDims
			if trial == 15 {
				pairs, chunks = 128, 16
			}
			query, key := scoreKinds(rng, trial)
			value := func(int) float32 { return rng.Float32() - 0.5 }
			if trial%3 == 0 {
				value = func(int) float32 { return anyFloat(rng) }
			}
			groups := [3]int{1 + rng.IntN(splitGroups), 1 + rng.IntN(splitGroups), 0}
			if trial%5 == 0 {
				groups[0] = splitGroups
			}
			q := pairsOf(rows*dotRowWords, query)
			var k, v [3]**byte
			for s, n := range groups {
				k[s], v[s] = groupsOf(pairs*groupPositions, n, ahead, key), groupsOf(chunks*chunkDims*groupPositions/2, n, ahead, value)
			}
			type results struct {
				acc, p, sum guarded
				scores      [2]guarded
			}
			start := results{newGuarded(chunks * chunkDims * rows), newGuarded(rows * dotRowWords), newGuarded(rows), [2]guarded{newGuarded(passWork), newGuarded(passWork)}}
			want, got := start, results{start.acc.copy(), start.p.copy(), start.sum.copy(), [2]guarded{start.scores[0].copy(), start.scores[1].copy()}}
			before := 0
			for s, n := range groups {
				for i, r := range []results{want, got} {
					pass := []func(acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32){passTiled(rows), mixersFor(AMX).passDots[rows-1]}[i]
					pass(r.acc.first(), k[s], n, v[max(s-1, 0)], before, &q[0], pairs, chunks, ahead, r.scores[s%2].first(), r.scores[(s+1)%2].first(), r.p.first(), r.sum.first())
				}
				what := fmt.Sprintf("split %d of %v groups, %d rows, %d pairs, %d chunks, %d ahead, trial %d", s, groups, rows, pairs, chunks, ahead, trial)
				requireSame(t, want.scores[0], got.scores[0], "scores, %s", what)
				requireSame(t, want.scores[1], got.scores[1], "scores, %s", what)
				requireSame(t, want.p, got.p, "weights, %s", what)
				requireSame(t, want.sum, got.sum, "sums, %s", what)
				requireSame(t, want.acc, got.acc, "values, %s", what)
				before = n
			}
		}
	}
}

// pairsOf are pairs of bf16.
func pairsOf(n int, number func(i int) float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = math.Float32frombits(math.Float32bits(number(i))&0xffff0000 | math.Float32bits(number(i))>>16)
	}
	return x
}

// groupsOf lists groups of so many pairs, and what is ahead: one that follows a run, if
// none is.
func groupsOf(size, n, ahead int, number func(i int) float32) **byte {
	list := make([]*byte, n+max(ahead, 1))
	run := pairsOf(size*len(list), number)
	for i := range list {
		x := run[i*size:]
		if ahead > 0 {
			x = pairsOf(size, number)
		}
		list[i] = (*byte)(unsafe.Pointer(&x[0]))
	}
	return &list[0]
}

// scoreKinds are queries and keys that make scores of every size, all negative, some
// −Inf, and all.
func scoreKinds(rng *rand.Rand, trial int) (query, key func(i int) float32) {
	size := []float32{1, 30}[trial/4%2]
	query = func(int) float32 { return size * (rng.Float32() - 0.5) }
	key = query
	switch lane := rng.IntN(groupPositions); trial % 4 {
	case 1:
		query = func(int) float32 { return size * (1 + rng.Float32()) }
		key = func(int) float32 { return -rng.Float32() }
	case 2, 3:
		query = func(int) float32 { return 1e19 * (1 + rng.Float32()) }
		key = func(i int) float32 {
			if trial%4 == 3 || i%groupPositions == lane {
				return -1e20
			}
			return rng.Float32() - 0.5
		}
	}
	return query, key
}

// TestSoftmaxDotsIsGeneric compares bits at every length, with scores of every kind.
func TestSoftmaxDotsIsGeneric(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	dotSets(t)
	rng := rand.New(rand.NewPCG(seed, 0))
	for n := 16; n <= splitPositions; n += 16 {
		for trial := range 20 {
			want := randomGuarded(rng, n, []float32{1e-6, 1, 100, 1e30}[trial%4])
			for range trial {
				want.x[rng.IntN(n)] = pickFloat(rng, float32(math.Inf(-1)), 0, 1e-40, 3e38)
			}
			switch trial {
			case 17:
				fill(want.x, float32(math.Inf(-1)))
			case 18:
				want.x[rng.IntN(n)] = nan
			case 19:
				want.x[rng.IntN(n)] = float32(math.Inf(1))
			}
			got, results := want.copy(), [2]guarded{newGuarded(2), newGuarded(2)}
			results[0].x[1] = mixersGeneric.softmaxDots(want.first(), n, results[0].first())
			results[1].x[1] = mixersFor(AVX512).softmaxDots(got.first(), n, results[1].first())
			if trial == 18 { // whatever the others are, the sum is none
				require.True(t, results[1].x[1] != results[1].x[1], "NaN of %d", n)
				continue
			}
			requireSame(t, want, got, "trial %d of %d", trial, n)
			requireSame(t, results[0], results[1], "largest and sum, trial %d of %d", trial, n)
		}
	}
}

// TestWeightAccuracy walks through what may be left of a score beside the largest.
func TestWeightAccuracy(t *testing.T) {
	for _, largest := range []float32{0, 1, -3.7, 4e5} {
		for d := float32(0); d < 80; d += 0.00037 {
			x := largest - d
			want := math.Exp(float64(x - largest))
			tolerance := 4e-6 + 0x1p-24*float64(d) // of the polynomial, and of the rounded exponent
			require.InEpsilon(t, want, weightGeneric(x, largest), tolerance, "%g beside %g", x, largest)
		}
	}
}

// TestPrecision: auto is the fastest that is there, and what is not there is refused.
func TestPrecision(t *testing.T) {
	for _, isa := range Supported() {
		got, err := AutoPrecision.resolve(isa)
		require.NoError(t, err)
		want := F32
		if isa == AMX || isa == AVX512 && kernelsFor(isa).dots != nil && cpuid.CPU.IsVendor(cpuid.AMD) {
			want = BF16
		}
		require.Equal(t, want, got, isa)
		if kernelsFor(isa).dots == nil {
			_, err := New(Options{ISA: isa, Precision: BF16})
			require.ErrorContains(t, err, "need a CPU with AVX512_BF16")
		}
	}
	_, err := New(Options{Precision: BF16 + 1})
	require.ErrorContains(t, err, "does not exist")
	_, err = F32.resolve(AMX)
	require.ErrorContains(t, err, "avx512 does them")
	_, err = ParsePrecision("int8")
	require.ErrorContains(t, err, "auto, f32 or bf16")
	for p := AutoPrecision; p <= BF16; p++ {
		got, err := ParsePrecision(p.String())
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
}
