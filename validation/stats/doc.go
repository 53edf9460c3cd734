// Package stats turns the ratios of measured blocks into verdicts. It is pure
// arithmetic: no clock, no file, no state; the same numbers give the same
// verdict, bit for bit.
//
// # The question
//
// A block is one interleaved measurement of both arms and yields one ratio.
// The quantity judged is the median m of the block ratios, and the question is
// whether m ≤ target (or ≥ target). The unit of evidence is the block:
// requests of one batch are correlated and are never counted singly.
//
// # The bound
//
// Sort n ratios. The k-th smallest lies above m only if fewer than k of the
// ratios are at or below m, and each ratio is at or below m with probability at
// least one half. So
//
//	P(k-th smallest > m) ≤ P(Bin(n, 1/2) ≤ k-1)
//
// whatever the distribution: skewed, bimodal, with ties, with infinite mean.
// [Rank] is the largest k for which the right side is at most 1 - confidence;
// the k-th smallest is then a lower bound of m, and the k-th largest an upper
// bound. At 95 %: n = 5 the extreme (96.9 %), n = 8 the second (96.5 %), n = 11
// the third (96.7 %); no finite bound exists below n = 5.
//
// # When the verdict may be read
//
// Reading that bound after every block until it clears the target is wrong
// more often than 5 %: with looks after 6, 8, … 24 blocks, 8.9 % instead of
// 5 %. A [Plan] therefore fixes the looks before the first block, and its ranks
// are chosen so that the bound holds at all looks at once. The ranks are those
// of the plain bound at one stricter nominal level, the same at each look, and
// the probability that fair coin tosses ever cross is computed exactly, by
// recursion over (tosses, heads). Any stopping rule whatever over those looks
// keeps the error: stopping at the first verdict, going on after it, giving up
// for lack of time.
//
// The form (equal nominal level at each look) is S. J. Pocock, "Group
// sequential methods in the design and analysis of clinical trials", Biometrika
// 64 (1977) 191–199; the exact recursion is P. Armitage, C. K. McPherson and
// B. C. Rowe, "Repeated significance tests on accumulating data", J. R.
// Statist. Soc. A 132 (1969) 235–244; the inversion into bounds that hold at
// all looks is C. Jennison and B. W. Turnbull, "Repeated confidence intervals
// for group sequential clinical trials", Controlled Clinical Trials 5 (1984)
// 33–45. A Plan of one look is the fixed-n test.
//
// The default is [Sequential](0.95, 24): looks after 6, 8, …, 24 blocks. Mean
// blocks and chance of a verdict when the truth is 5 % from the target and the
// log ratios are normal with the given spread; fixed n is the plain bound,
// mixture is an e-process on the same looks (uniform mixture over p in (1/2, 1),
// threshold 20 by Ville's inequality, at most 30 blocks), as in S. R. Howard and
// A. Ramdas, "Sequential estimation of quantiles with applications to A/B testing
// and best-arm identification", Bernoulli 28 (2022) 1704–1728:
//
//	spread   Sequential(0.95, 24)   fixed n = 8   fixed n = 24   mixture, 30
//	1 %       6.0  1.00             8  1.00       24  1.00        8.0  1.00
//	2 %       6.2  1.00             8  1.00       24  1.00        8.2  1.00
//	3 %       7.5  1.00             8  0.94       24  1.00        9.8  1.00
//	4 %       9.8  0.99             8  0.78       24  1.00       12.5  0.99
//	5 %      12.4  0.94             8  0.61       24  0.97       15.8  0.93
//
// (TestPlanAgainstAlternatives recomputes this table.) Looks cost nothing on a
// quiet machine and save the day on a noisy one. The e-process needs no
// horizon, and pays a third more blocks for it; a machine's time is bounded, so
// the horizon is free.
//
// # Assumptions, and what breaks them
//
// (A1) Given the past, a block's ratio is above m with probability one half. It
// need not be identically distributed, and its spread may change.
//
//   - Drift that both arms share (heat, frequency, a neighbour) cancels inside a
//     block up to its change between the two arms, whose sign follows the arm
//     order; [Order] balances that in pairs. Large steady drift makes the signs
//     of a pair disagree, and the bound conservative.
//   - Noise correlated from one arm to the next makes the signs of a pair
//     agree a little, because the same arms of a pair may be neighbours. First
//     order autocorrelation raises the error by at most 1.24 (at coefficient
//     0.5). A plan is therefore designed at four fifths of the error it claims:
//     [Plan].Error ≤ 0.8 (1 - Confidence).
//   - A ratio that itself wanders (one arm alone gets slower, or its memory is
//     placed differently for a while) has no one median. [Trend] catches a
//     monotone change; slow wandering of one arm alone is not caught. With
//     coefficient 0.3 from block to block a wrong verdict at the very target
//     comes in 1 session of 10, not 1 of 20.
//   - Independence of sessions is not assumed: each session's claim stands
//     alone.
//
// (A2) No block is left out for its ratio. [Limits] sees disturbance readings
// only, and was fixed before.
//
// # Why signs only
//
// A signed-rank or t-style bet needs about a third fewer blocks for normal
// noise, but it needs symmetry: under exponential noise in one arm, whose median
// is the target, 24 blocks at a nominal 5 % err in 19 % of sessions
// (TestSymmetryIsNotFree), and arms of different length are not hit alike by
// bursts. Six to eight blocks are enough on a usable machine, so strength is
// not what is missing.
//
// # Error rates
//
// TestErrorRates simulates whole sessions around each target, under independent
// noise, drift, bursts, autocorrelation, two clock states, long tails and
// recorded noise, and fails when a promise is broken: a verdict on the wrong
// side in at most 5 % of sessions, at most 1 % where the truth is 3 % away; PASS
// or FAIL in at least 90 % where it is 5 % away and blocks spread by 3 % or less;
// a false alarm of the A/A control in at most 5 %. TestErrorRatesCatchBadRules
// shows that the simulation rejects rules that are known to be wrong. The full
// table and the power curve are in benchdata/error-rates.
//
// # What this package does not do
//
// It does not measure, discard outliers, average, model the noise, or combine
// sessions. It does not correct for the number of criteria: a gate that must
// pass all of them is only stricter ([Compare], where any row may fail, uses
// Holm's correction). It gives no p-value for a criterion: a bound beside a
// target says more. A bound is about this machine, this session and this
// build; it cannot see a bias that all blocks share, such as a slow serial arm
// or a cached prompt. Those are validity rules, and come before statistics.
package stats
