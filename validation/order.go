package validation

import "math/rand/v2"

// orders lays out in which order the arms of each block run. Blocks come in
// groups of as many as there are arms; within a group every arm stands once in
// every place (the rotations of one random order, shuffled). So a drift of the
// machine meets every arm alike, also when the run is cut short.
func orders(seed uint64, arms, blocks int) [][]int {
	rng := rand.New(rand.NewPCG(seed, 0x6f72646572)) // a stream of its own
	out := make([][]int, 0, blocks+arms)
	for len(out) < blocks {
		base := rng.Perm(arms)
		for _, shift := range rng.Perm(arms) {
			order := make([]int, arms)
			for i := range order {
				order[i] = base[(i+shift)%arms]
			}
			out = append(out, order)
		}
	}
	return out[:blocks]
}
