package cpu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// guarded is a vector between two lines of NaN, at an odd address.
type guarded struct {
	all, x []float32
	at     int // of x in all
}

func newGuarded(n int) guarded { return guardedAt(make([]float32, n+35), 17, n) }

// newGuardedLine begins with a cache line.
func newGuardedLine(n int) guarded {
	const line = lineBytes / 4
	all := make([]float32, n+3*line)
	past := int(uintptr(unsafe.Pointer(&all[0]))/4) % line
	return guardedAt(all, 2*line-past, n)
}

func guardedAt(all []float32, at, n int) guarded {
	fill(all, nan)
	return guarded{all, all[at:][:n:n], at}
}

func (g guarded) copy() guarded {
	c := newGuarded(len(g.x))
	copy(c.x, g.x)
	return c
}

// first also works for an empty vector.
func (g guarded) first() *float32 { return unsafe.SliceData(g.x) }

func (g guarded) intact() bool {
	for i, v := range g.all {
		if (i < g.at || i >= g.at+len(g.x)) && v == v {
			return false
		}
	}
	return true
}

// requireSame demands the bits of want, any NaN for a NaN, and intact lines around them.
func requireSame(t *testing.T, want, got guarded, format string, args ...any) {
	t.Helper()
	for i, v := range got.x {
		if u := want.x[i]; math.Float32bits(u) != math.Float32bits(v) && (u == u || v == v) {
			t.Fatalf("%s: %d is %v, want %v", fmt.Sprintf(format, args...), i, v, u)
		}
	}
	require.True(t, got.intact(), fmt.Sprintf(format, args...))
}

func randomGuarded(rng *rand.Rand, n int, scale float32) guarded {
	g := newGuarded(n)
	for i := range g.x {
		g.x[i] = scale * (2*rng.Float32() - 1)
	}
	return g
}

// TestVectorKernels compares every kernel with the generic one, bit for bit,
// at every length, and finds that none writes past its end.
func TestVectorKernels(t *testing.T) {
	for _, isa := range Supported()[1:] {
		k := kernelsFor(isa)
		for n := 0; n <= 70; n++ {
			rng := rand.New(rand.NewPCG(uint64(n), 5))
			x, y := randomGuarded(rng, n, 100), randomGuarded(rng, n, 3)
			require.Equal(t, math.Float32bits(generic.dot(x.first(), y.first(), n)), math.Float32bits(k.dot(x.first(), y.first(), n)), "%v dot %d", isa, n)
			for name, op := range map[string]func(k *kernels, dst guarded){
				"axpy":   func(k *kernels, dst guarded) { k.axpy(dst.first(), 1.7, x.first(), n) },
				"add":    func(k *kernels, dst guarded) { k.add(dst.first(), x.first(), n) },
				"scale":  func(k *kernels, dst guarded) { k.scale(dst.first(), x.first(), y.first(), n, 0.3, 1) },
				"exp":    func(k *kernels, dst guarded) { k.exp(dst.first(), x.first(), n) },
				"silu":   func(k *kernels, dst guarded) { k.silu(dst.first(), x.first(), n) },
				"swiglu": func(k *kernels, dst guarded) { k.swiglu(dst.first(), x.first(), y.first(), n) },
			} {
				want, got := y.copy(), y.copy()
				op(generic, want)
				op(k, got)
				require.Equal(t, bits(want.x), bits(got.x), "%v %s %d", isa, name, n)
				require.True(t, got.intact(), "%v %s %d wrote past its end", isa, name, n)
			}
		}
	}
}

// TestPanelKernels compares what becomes of panels with the generic code, bit for bit.
func TestPanelKernels(t *testing.T) {
	for _, isa := range Supported()[1:] {
		k := kernelsFor(isa)
		for n := 1; n <= 9; n++ {
			rng := rand.New(rand.NewPCG(uint64(n), 7))
			stride := panelOutputs * (1 + n%3)
			tiles := randomGuarded(rng, (n-1)*stride+panelOutputs, 50)
			for name, c := range map[string]struct {
				results int
				op      func(e *epilogues) func(dst, tile *float32, stride, n int)
			}{
				"store":  {panelOutputs, func(e *epilogues) func(dst, tile *float32, stride, n int) { return e.store }},
				"add":    {panelOutputs, func(e *epilogues) func(dst, tile *float32, stride, n int) { return e.add }},
				"swiglu": {panelOutputs / 2, func(e *epilogues) func(dst, tile *float32, stride, n int) { return e.swiglu }},
			} {
				dst := randomGuarded(rng, n*c.results, 3)
				want, away := dst.copy(), newGuardedLine(len(dst.x))
				copy(away.x, dst.x)
				c.op(&generic.near)(want.first(), tiles.first(), stride, n)
				for set, got := range map[*epilogues]guarded{&k.near: dst, &k.away: away} {
					c.op(set)(got.first(), tiles.first(), stride, n)
					require.Equal(t, bits(want.x), bits(got.x), "%v %s of %d, away %t", isa, name, n, set == &k.away)
					require.True(t, got.intact(), "%v %s of %d wrote past its end, away %t", isa, name, n, set == &k.away)
				}
			}
		}
	}
}

// TestScanAndIndex finds the first of equal maxima in any place, and a NaN in any place.
func TestScanAndIndex(t *testing.T) {
	for _, isa := range Supported() {
		k := kernelsFor(isa)
		for n := 1; n <= 40; n++ {
			rng := rand.New(rand.NewPCG(uint64(n), 6))
			for place := range n {
				x := randomGuarded(rng, n, 1)
				for i := range x.x {
					x.x[i] -= 2 // all negative, unlike the lanes past the end
				}
				x.x[place] = -0.5
				for i := place; i < n; i += 1 + rng.IntN(9) {
					x.x[i] = -0.5
				}
				require.Equal(t, float32(-0.5), k.scan(x.first(), n), "%v %d of %d", isa, place, n)
				require.Equal(t, place, k.index(x.first(), n, -0.5), "%v %d of %d", isa, place, n)
				require.Equal(t, -1, k.index(x.first(), n, 0), "%v %d", isa, n)
				x.x[place] = nan
				got := k.scan(x.first(), n)
				require.True(t, got != got, "%v NaN at %d of %d", isa, place, n)
			}
		}
	}
}

// TestExpAccuracy walks through the range of the exponential.
func TestExpAccuracy(t *testing.T) {
	for x := float32(-87.3); x < 88.3; x += 0.00371 {
		want := math.Exp(float64(x))
		got := float64(exp(x))
		if !(math.Abs(got-want) <= 2*0x1p-24*2*want) {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	require.Equal(t, float32(1), exp(0))
	require.Less(t, exp(float32(math.Inf(-1))), float32(1.3e-38))
	require.Greater(t, exp(float32(math.Inf(1))), float32(2e38))
	require.True(t, math.IsNaN(float64(exp(nan))))
	for x := float32(-30); x < 30; x += 0.0173 {
		want := float64(x) / (1 + math.Exp(-float64(x)))
		if got := float64(silu(x)); !(math.Abs(got-want) <= 4*0x1p-24*math.Abs(want)+1e-30) {
			t.Fatalf("silu(%v) = %v, want %v", x, got, want)
		}
	}
	require.InDelta(t, 0, silu(-1e4), 1e-30)
	require.Equal(t, float32(1e4), silu(1e4))
}

// TestFMARoundsOnce covers sums that float64 rounds to the middle between two float32.
func TestFMARoundsOnce(t *testing.T) {
	tiny := float32(0x1p-60)
	for _, c := range []struct{ a, b, c, want float32 }{
		{1, 0x1p-24, 1, 1},                                      // a tie, to even
		{1 + 0x1p-23, 0x1p-24, 1, 1 + 0x1p-23},                  // above the tie
		{tiny, tiny, 1 + 0x1p-23, 1 + 0x1p-23},                  // far below
		{0x1p-24 + 0x1p-47, 1 + 0x1p-23, 1, 1 + 0x1p-23},        //
		{-0x1p-25 + 0x1p-48, 1, 1, 1},                           // just inside the tie below one
		{0x1p-75, 0x1p-75, 0, 0x1p-149 * 0},                     // half of the smallest subnormal, to even
		{0x1p-75, 0x1p-75 * 1.5, 0, 0x1p-149},                   //
		{float32(math.Inf(1)), 1, 5, float32(math.Inf(1))},      //
		{math.MaxFloat32, 2, -math.MaxFloat32, math.MaxFloat32}, // no overflow in between
	} {
		require.Equal(t, math.Float32bits(c.want), math.Float32bits(fma(c.a, c.b, c.c)), "fma(%g, %g, %g)", c.a, c.b, c.c)
	}
	got := fma(nan, 1, 1)
	require.True(t, got != got)
	require.True(t, math.IsNaN(float64(fma(float32(math.Inf(1)), 1, float32(math.Inf(-1))))))
}

// FuzzTiles compares the product of a panel, in assembly and in Go, bit for
// bit, on numbers of every size.
func FuzzTiles(f *testing.F) {
	f.Add(uint64(1), uint8(3), uint8(4), []byte{0, 0, 0x80, 0x3f})
	f.Add(uint64(2), uint8(12), uint8(1), []byte{1, 0, 0, 0, 0xff, 0xff, 0x7f, 0x7f})
	f.Add(uint64(3), uint8(6), uint8(9), []byte{0, 0, 0x80, 0x7f, 0, 0, 0xc0, 0x7f, 0, 0, 0, 0x80})
	f.Add(uint64(4), uint8(1), uint8(33), []byte{})
	f.Fuzz(func(t *testing.T, seed uint64, rowCount, pairCount uint8, special []byte) {
		rows, pairs := 1+int(rowCount)%maxTileRows, 1+int(pairCount)%40
		rng := rand.New(rand.NewPCG(seed, 0))
		number := func() float32 {
			if n := len(special) / 4; n > 0 && rng.IntN(4) == 0 {
				return math.Float32frombits(binary.LittleEndian.Uint32(special[4*rng.IntN(n):]))
			}
			return float32(math.Ldexp(rng.Float64()-0.5, rng.IntN(60)-30))
		}
		const most = 3 // panels
		x, acc := make([]float32, 2*pairs*rows), make([]float32, most*rows*panelOutputs)
		f32, bf16 := make([]float32, most*2*pairs*panelOutputs), make([]uint16, most*2*pairs*panelOutputs)
		for _, s := range [][]float32{x, acc, f32} {
			for i := range s {
				s[i] = number()
			}
		}
		for i := range bf16 {
			bf16[i] = uint16(math.Float32bits(number()) >> 16)
		}
		for _, isa := range Supported()[1:] {
			k := kernelsFor(isa)
			if rows > k.blocking.rows {
				continue
			}
			for name, w := range map[string]*byte{"f32": (*byte)(unsafe.Pointer(&f32[0])), "bf16": (*byte)(unsafe.Pointer(&bf16[0]))} {
				kernel, oracle := k.tileF32, generic.tileF32
				if name == "bf16" {
					kernel, oracle = k.tileBF16, generic.tileBF16
				}
				want, got := append([]float32{}, acc...), append([]float32{}, acc...)
				begun := rng.IntN(2) == 0
				if !begun {
					fill(want, nan)
					fill(got, nan)
				}
				panels := 1 + rng.IntN(most)
				oracle[rows-1](&want[0], begun, w, &x[0], pairs, panels, 0, 0, 0)
				kernel[rows-1](&got[0], begun, w, &x[0], pairs, panels, 0, 0, 0)
				for i := range want {
					if w, g := want[i], got[i]; math.Float32bits(w) != math.Float32bits(g) && !(w != w && g != g) {
						t.Fatalf("%v %s, %d rows, %d pairs, begun %t: sum %d is %g, in Go %g", isa, name, rows, pairs, begun, i, g, w)
					}
				}
			}
		}
	})
}
