package stats

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func testRand(t testing.TB, seed uint64) *rand.Rand {
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func TestOrder(t *testing.T) {
	for seed := range uint64(200) {
		long := Order(seed, 31)
		require.Len(t, long, 31)
		for n := range 31 {
			require.Equal(t, long[:n], Order(seed, n), "a longer order must begin with the shorter")
		}
		for i := 0; i+1 < len(long); i += 2 {
			require.NotEqual(t, long[i], long[i+1], "both orders in each pair")
		}
	}
	// Which order comes first is a fair and independent toss in each pair.
	const seeds = 4000
	first, agree := 0, 0
	for seed := range uint64(seeds) {
		o := Order(seed, 4)
		if o[0] {
			first++
		}
		if o[0] == o[2] {
			agree++
		}
	}
	assert.InDelta(t, 0.5, float64(first)/seeds, 0.03) // 4 standard errors
	assert.InDelta(t, 0.5, float64(agree)/seeds, 0.03)
	// Recorded sessions depend on it: the orders of a seed never change.
	assert.Equal(t, []bool{false, true, false, true, false, true}, Order(1, 6))
}
