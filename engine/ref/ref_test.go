package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// TestRotateByHand: position 1, one frequency of π/2, turns (x0, x1) to (−x1, x0),
// and leaves the dims that do not rotate alone.
func TestRotateByHand(t *testing.T) {
	r := &rope{invFreq: []float32{math.Pi / 2}, positions: 2}
	x := []float64{3, 4, 5}
	r.rotate(x, 1)
	require.InDeltaSlice(t, []float64{-4, 3, 5}, x, 1e-6)
	require.Panics(t, func() { r.rotate(x, 2) })
}

// TestDeltaRuleIsTheChunkedForm holds the recurrence against the closed form
// of the gated delta rule for one chunk, which shares none of its steps:
// M U = βV, M W = β e^G K, O = (e^G Q)S₀ + (QKᵀ⊙D)(U − W S₀).
func TestDeltaRuleIsTheChunkedForm(t *testing.T) {
	const seed, dim, tokens = 7, 4, 9
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sp := backend.DeltaSpec{Layers: 1, Slots: 1, KeyHeads: 1, ValueHeads: 1, KeyDim: dim, ValueDim: dim, ConvWidth: 1}
	ones := func(n int) vector {
		v := make(vector, n)
		for i := range v {
			v[i] = 1
		}
		return v
	}
	g := &backend.GatedDelta{Conv: ones(sp.ConvDim()), ALog: vector{-0.5}, DTBias: vector{0.25},
		Norm: backend.Norm{Weight: ones(dim), Eps: 1e-6}}
	s := make([]float32, dim*dim)
	s0 := make([][]float64, dim)
	for i := range s0 {
		s0[i] = make([]float64, dim)
		for j := range s0[i] {
			s[i*dim+j] = float32(rng.NormFloat64())
			s0[i][j] = float64(s[i*dim+j])
		}
	}

	var q, k, v [tokens][]float64
	var beta, G [tokens]float64
	var got, want [tokens][]float32
	sum := 0.0
	x := make([]float32, sp.ProjDim())
	var gates [tokens][]float64
	for i := range tokens {
		for j := range x {
			x[j] = float32(rng.NormFloat64())
		}
		act := func(x []float32) (y []float64) {
			for _, v := range x {
				y = append(y, silu(float64(v)))
			}
			return y
		}
		q[i], k[i], v[i] = l2norm(act(x[:dim])), l2norm(act(x[dim:2*dim])), act(x[2*dim:3*dim])
		for j := range q[i] {
			q[i][j] /= 2 // √dim
		}
		gates[i] = act(x[3*dim : 4*dim])
		beta[i] = sigmoid(float64(x[4*dim]))
		sum -= math.Exp(-0.5) * math.Log(1+math.Exp(float64(x[4*dim+1])+0.25))
		G[i] = sum
		got[i] = make([]float32, dim)
		deltaToken(got[i], x, g, sp, s, nil)
	}
	inner := func(a, b []float64) (y float64) {
		for i := range a {
			y += a[i] * b[i]
		}
		return y
	}
	var fresh [tokens][]float64 // U − W·S₀, by forward substitution
	for i := range tokens {
		fresh[i] = make([]float64, dim)
		o := make([]float32, dim)
		for c := range dim {
			fresh[i][c] = beta[i] * v[i][c]
			for r := range dim {
				fresh[i][c] -= beta[i] * math.Exp(G[i]) * k[i][r] * s0[r][c]
			}
			for j := range i {
				fresh[i][c] -= beta[i] * inner(k[i], k[j]) * math.Exp(G[i]-G[j]) * fresh[j][c]
			}
			y := 0.0
			for r := range dim {
				y += math.Exp(G[i]) * q[i][r] * s0[r][c]
			}
			for j := range i + 1 {
				y += inner(q[i], k[j]) * math.Exp(G[i]-G[j]) * fresh[j][c]
			}
			o[c] = float32(y)
		}
		want[i] = make([]float32, dim)
		for c, y := range norm(o, &g.Norm) {
			want[i][c] = float32(y * gates[i][c])
		}
		require.InDeltaSlice(t, want[i], got[i], 1e-5, "token %d", i)
	}
}

// TestUnwrittenMemoryIsNaN: a sequence that was never reset must show.
func TestUnwrittenMemoryIsNaN(t *testing.T) {
	b := New()
	buf, err := b.NewBuffer(2, 3)
	require.NoError(t, err)
	row := make([]float32, 3)
	require.NoError(t, b.Read(row, buf, 1))
	for _, v := range row {
		require.True(t, v != v)
	}
}
