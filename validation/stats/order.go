package stats

import "math/rand/v2"

// Order is the order of the arms of each block: true runs the serial arm first.
// Blocks 1 and 2, 3 and 4, … are pairs of both orders, and a fair toss by seed
// says which comes first. A longer order begins with the shorter one, so a
// session may go on without knowing its length.
//
// Note: tossing for each block by itself would make the signs independent
// whatever the machine does, but one seed in thirty-two would run six blocks in
// one order, and a session has one seed. Pairs bound the imbalance by one block.
func Order(seed uint64, blocks int) []bool {
	r := rand.New(rand.NewPCG(seed, 0x6f72646572)) // second word: "order"
	order := make([]bool, 0, blocks+1)
	for len(order) < blocks {
		first := r.Uint64()>>63 == 1
		order = append(order, first, !first)
	}
	return order[:blocks]
}
