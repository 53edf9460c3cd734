package cpu

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShares: every item is taken once, whoever takes it.
func TestShares(t *testing.T) {
	for _, workers := range []int{1, 2, 3, 7} {
		s := make(shares, workers)
		for _, items := range []int{0, 1, 2, 5, 16, 100} {
			for most := 1; most <= 17; most += 4 {
				s.dealAll(items)
				taken := make([]atomic.Int32, items)
				var done sync.WaitGroup
				for w := range workers {
					done.Go(func() {
						for lo, hi := s.take(w, most); lo < hi; lo, hi = s.take(w, most) {
							if hi-lo > most {
								t.Errorf("took %d items, at most %d were asked for", hi-lo, most)
							}
							for i := lo; i < hi; i++ {
								taken[i].Add(1)
							}
						}
					})
				}
				done.Wait()
				for i := range taken {
					require.EqualValues(t, 1, taken[i].Load(), "item %d of %d, %d workers", i, items, workers)
				}
			}
		}
	}
}

// TestSharesOfOthers: a worker alone takes everything, its own part first.
func TestSharesOfOthers(t *testing.T) {
	s := make(shares, 3)
	s.dealAll(9)
	var got []int
	for lo, hi := s.take(1, 4); lo < hi; lo, hi = s.take(1, 4) {
		for i := lo; i < hi; i++ {
			got = append(got, i)
		}
	}
	require.Equal(t, []int{3, 4, 5, 6, 7, 8, 0, 1, 2}, got)
}
