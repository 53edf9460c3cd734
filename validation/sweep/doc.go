// Package sweep measures static batching: what one more row in a step buys
// (the sweep), and what a batch costs whose rows must wait for the slowest
// (the blocking run).
//
// It times steps that it knows nothing about, with a clock that it is given,
// so that its arithmetic is tested to the decimal without a model.
//
// # Definitions
//
// The first step of a batch is its prefill, and draws the first token of every
// row; a row that generates N tokens takes N−1 decode steps more. Unless said
// otherwise, only decode steps count.
//
//	step_ms          median time of a decode step
//	issued           batch × decode steps: the tokens that were computed
//	useful           the sum of each row's own decode steps
//	waste_fraction   (issued − useful) ÷ issued
//	goodput_tps      useful ÷ decode seconds
//	issued_tps       issued ÷ decode seconds
//	speedup(b)       goodput(b) ÷ goodput(1)
//	efficiency(b)    speedup(b) ÷ b
//	knee(x)          the largest size whose efficiency is at least x
//	row_finish(r)    prefill + the row's own decode steps
//	hol_delay(r)     total − row_finish(r): how long the head of the line holds it up
//	hol_inflation(r) total ÷ row_finish(r)
//
// # Intervals
//
// A round measures every size once, in random order, and yields one efficiency
// a size: what a block is to a criterion. The interval beside an efficiency is
// the distribution-free 95 % interval of the median over the rounds (package
// stats); the number of rounds is fixed beforehand. The knee is read from the
// efficiencies, and again from the lower and from the upper ends.
//
// # What it does not do
//
// It does not schedule: every row is computed in every step until the slowest
// is done, and stops by a budget of steps, whatever is drawn.
package sweep
