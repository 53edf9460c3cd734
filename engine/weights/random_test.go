package weights

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// element is the formula at Random, once more and one element at a time.
func element(seed uint64, spec Spec, i int) float32 {
	mix := func(x uint64) uint64 {
		x ^= x >> 30
		x *= 0xbf58476d1ce4e5b9
		x ^= x >> 27
		x *= 0x94d049bb133111eb
		x ^= x >> 31
		return x
	}
	hash := uint64(14695981039346656037)
	for _, b := range []byte(spec.Name) {
		hash ^= uint64(b)
		hash *= 1099511628211
	}
	word := mix(mix(seed+mix(hash)) + uint64(i/4+1)*0x9e3779b97f4a7c15)
	u := word >> (16 * (i % 4)) & 0xffff
	step := (spec.High - spec.Low) / 131072
	product := float32(2*u+1) * step
	value := spec.Low + float32(product)
	if spec.DType == backend.BF16 {
		value = backend.DecodeBF16(backend.EncodeBF16(value))
	}
	return value
}

var randomSpecs = []Spec{
	{Name: "a.weight", Shape: []int{7, 13}, DType: backend.BF16, Low: -0.3, High: 0.3},
	{Name: "b.weight", Shape: []int{7, 13}, DType: backend.BF16, Low: -0.3, High: 0.3},
	{Name: "decay", Shape: []int{33}, DType: backend.F32, Low: 0, High: 2.77},
	{Name: "scalar", Shape: nil, DType: backend.F32, Low: -1, High: 1},
	{Name: "none", Shape: []int{3, 0}, DType: backend.BF16, Low: -1, High: 1},
}

func lookup(t testing.TB, set Set, name string) backend.Source {
	src, ok := set.Lookup(name)
	require.True(t, ok, name)
	return src
}

// Every element is the formula's, whatever range it is read in.
func TestRandomFormula(t *testing.T) {
	const seed = 42
	set, err := Random(seed, randomSpecs)
	require.NoError(t, err)
	for _, spec := range randomSpecs {
		src := lookup(t, set, spec.Name)
		n, err := elements(spec.Shape)
		require.NoError(t, err)
		want := make([]float32, n)
		for i := range want {
			want[i] = element(seed, spec, i)
			assert.True(t, want[i] >= spec.Low-0.01 && want[i] <= spec.High+0.01, "%s[%d] = %g", spec.Name, i, want[i])
		}
		for offset := 0; offset <= n; offset++ {
			for length := 0; length <= n-offset; length++ {
				f := make([]float32, length)
				require.NoError(t, src.ReadF32(f, offset))
				require.Equal(t, want[offset:offset+length], f, "%s at %d", spec.Name, offset)
				if spec.DType != backend.BF16 {
					continue
				}
				h, g := make([]uint16, length), make([]float32, length)
				require.NoError(t, src.ReadBF16(h, offset))
				backend.WidenBF16(g, h)
				require.Equal(t, want[offset:offset+length], g, "%s at %d", spec.Name, offset)
			}
		}
	}
}

// These numbers were recorded once: a machine or a release that gives others
// makes measurements and goldens incomparable.
func TestRandomRecorded(t *testing.T) {
	set, err := Random(1, randomSpecs)
	require.NoError(t, err)
	got := make([]uint16, 6)
	require.NoError(t, lookup(t, set, "a.weight").ReadBF16(got, 0))
	assert.Equal(t, []uint16{0xbe51, 0x3bd5, 0xbe15, 0xbcff, 0xbe2c, 0x3dc1}, got)
	decay := make([]float32, 3)
	require.NoError(t, lookup(t, set, "decay").ReadF32(decay, 0))
	assert.Equal(t, []float32{1.7483469, 2.1654363, 1.9034662}, decay)
}

func TestRandomDependsOnSeedAndName(t *testing.T) {
	read := func(seed uint64, name string) []float32 {
		set, err := Random(seed, randomSpecs)
		require.NoError(t, err)
		dst := make([]float32, 91)
		require.NoError(t, lookup(t, set, name).ReadF32(dst, 0))
		return dst
	}
	assert.Equal(t, read(1, "a.weight"), read(1, "a.weight"))
	assert.NotEqual(t, read(1, "a.weight"), read(2, "a.weight"))
	assert.NotEqual(t, read(1, "a.weight"), read(1, "b.weight"))
}

// The distribution has the mean and the variance of a uniform one, which the
// scaling of the layers relies on, and neighbours are independent.
func TestRandomDistribution(t *testing.T) {
	const n = 1 << 20
	set, err := Random(7, []Spec{{Name: "w", Shape: []int{n}, DType: backend.F32, Low: -1, High: 1}})
	require.NoError(t, err)
	v := make([]float32, n)
	require.NoError(t, lookup(t, set, "w").ReadF32(v, 0))
	var sum, square, lag1, lag4 float64
	for i, x := range v {
		sum += float64(x)
		square += float64(x) * float64(x)
		if i >= 4 {
			lag1 += float64(x) * float64(v[i-1])
			lag4 += float64(x) * float64(v[i-4])
		}
	}
	// Five standard errors each.
	assert.InDelta(t, 0, sum/n, 5*0.577/1024)
	assert.InDelta(t, 1.0/3, square/n, 5*0.298/1024)
	assert.InDelta(t, 0, lag1/n, 5*0.3334/1024)
	assert.InDelta(t, 0, lag4/n, 5*0.3334/1024)
}

func TestRandomConcurrent(t *testing.T) {
	const n = 1 << 16
	set, err := Random(3, []Spec{{Name: "w", Shape: []int{n}, DType: backend.BF16, Low: -1, High: 1}})
	require.NoError(t, err)
	src := lookup(t, set, "w")
	whole, parts := make([]uint16, n), make([]uint16, n)
	require.NoError(t, src.ReadBF16(whole, 0))
	rng := rand.New(rand.NewPCG(1, 2))
	var wg sync.WaitGroup
	for at := 0; at < n; {
		from, to := at, min(n, at+1+rng.IntN(5000))
		wg.Go(func() { assert.NoError(t, src.ReadBF16(parts[from:to], from)) })
		at = to
	}
	wg.Wait()
	assert.Equal(t, whole, parts)

	wide, want := make([]float32, n-5), make([]float32, n-5)
	require.NoError(t, src.ReadF32(wide, 5))
	backend.WidenBF16(want, whole[5:])
	assert.Equal(t, want, wide)
}

func TestRandomErrors(t *testing.T) {
	set, err := Random(1, randomSpecs)
	require.NoError(t, err)
	_, ok := set.Lookup("absent")
	assert.False(t, ok)
	assert.Equal(t, []string{"a.weight", "b.weight", "decay", "none", "scalar"}, set.Names())
	a := lookup(t, set, "a.weight")
	assert.ErrorContains(t, a.ReadF32(make([]float32, 2), 90), `tensor "a.weight": elements [90, 92) asked for, it has 91`)
	assert.ErrorContains(t, a.ReadBF16(make([]uint16, 1), -1), `"a.weight"`)
	assert.ErrorContains(t, lookup(t, set, "decay").ReadBF16(make([]uint16, 1), 0), `tensor "decay": asked for as bf16, it is f32`)

	_, err = Random(1, []Spec{{Name: "x", Shape: []int{1 << 30, 1 << 30}}})
	assert.ErrorContains(t, err, `tensor "x"`)
	_, err = Random(1, []Spec{{Name: "x"}, {Name: "x"}})
	assert.ErrorContains(t, err, "specified twice")
}

func BenchmarkRandom(b *testing.B) {
	const n = 1 << 16
	set, err := Random(1, []Spec{{Name: "w", Shape: []int{n}, DType: backend.BF16, Low: -0.1, High: 0.1}})
	require.NoError(b, err)
	src := lookup(b, set, "w")
	b.Run("as=bf16", func(b *testing.B) {
		dst := make([]uint16, n)
		for b.Loop() {
			_ = src.ReadBF16(dst, 0)
		}
		b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "values/s")
	})
	b.Run("as=f32", func(b *testing.B) {
		dst := make([]float32, n)
		for b.Loop() {
			_ = src.ReadF32(dst, 0)
		}
		b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "values/s")
	})
}
