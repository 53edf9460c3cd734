// Package validation answers, with evidence, whether batching pays: on this
// model, on this engine, on this machine.
//
//	go test ./validation -backend cpu -count=1 -v [-checkpoint DIR|random:NAME]
//
// Without -backend the criteria are skipped; the suite's own tests always run.
//
// # The question
//
//	criterion                 ratio                                     rule
//	single-request latency    batch ÷ serial, time of the request       ≤ 1.05
//	throughput, 2 concurrent  batch ÷ serial, requests a second         ≥ 1.7
//	throughput, 4 concurrent  "                                         ≥ 3.0
//	throughput, 8 concurrent  "                                         ≥ 4.5
//
// Other levels of -num-concurrent are measured without a rule.
//
// With -against ceiling, throughput is held against a share of the ceiling
// instead (-share, 0.85), at every level; a lone request's ceiling is 1 on any
// machine, so its target stays.
//
// # The arms
//
// The serial arm runs one request at a time. The batch arm runs up to
// -max-batch-size rows, and requests join and leave at any step. Both run on
// one model: same weights, buffers, threads and kernels, each with rows and KV
// blocks of its own. An arm gets a scheduler of its own for each run, made before
// its clock starts and closed after its clock has stopped; garbage is collected
// before the block. Its requests are submitted at once; its time is from then
// until the last result.
//
// On a CPU with AMX or AMD's AVX512_BF16, linears multiply inputs that are rounded to
// bf16, in both arms (-precision f32 keeps them float32): on Zen 4 that makes arithmetic
// half as dear, in AMX a sixteenth, and larger batches pay more. The engine's own
// description says which it was.
//
// # The unit of evidence
//
// Requests of one batch are correlated, so they are never counted singly. The
// unit is the block: every arm runs once over the same requests, and the block
// yields one ratio.
//
// Within a block the arms take turns. At any moment one arm has the machine, with
// all that happens between two of its steps, and the clocks of the others stand
// still; before a step it hands over if another arm is behind it, by the share of
// its tokens drawn. So eight steps of the serial arm alternate with one step of
// eight rows, and whatever the machine does for longer than that, which on a
// shared host is a factor of two for a second or two, meets the arms alike and
// leaves the ratio. The turns follow from the tokens alone, never from a time.
// What it costs an arm to come back after a handover (caches that the other arm
// has used, a worker to wake) is on its own clock: on two EPYC cores a step of the
// serial arm just after a handover took about 1 % longer than the others. Every
// step of the batch arm is such a step, so a ratio may be that much too low.
// -turns run has the arms run one after another instead: a check of the method on
// a machine that is quiet for minutes.
//
// Blocks come in groups in which every arm has every place once, in an order drawn
// from the seed: the place in which it takes its first turn, and its turn where two
// arms are equally far.
//
// Every request has its own prompt of random tokens. Both arms of a block get the
// same prompts, because their tokens are compared; no prompt comes twice in a
// criterion. Generation is greedy, ignores the end-of-text token and runs to
// -max-tokens, so lengths cannot differ.
//
// Warm-up blocks have the shape of the measured ones, on every arm, with prompts
// of their own, and are held to the same rules of evidence.
//
// # What makes evidence unusable
//
// A meter between engine and model writes down every step: its rows, its prompt
// chunks, the tokens fed and drawn, its time. It does not depend on the scheduler
// whose work is judged. The verdict is INVALID, and says where and why, when one
// of these rules is broken. All thresholds are fixed before the first block and
// kept in the record ([Rules], [DefaultRules]).
//
// Of single requests, at once and for the whole criterion:
//
//   - a request fails, is dropped, or ends for another reason than its length;
//   - a request has other than -max-tokens tokens, generated or timed;
//   - a token differs between the arms (request, position and both tokens are
//     named): rows must not depend on their neighbours, bit for bit;
//   - the tokens drawn by the engine do not add up to those asked for, or fewer
//     were fed than prompts and answers have (a cache of prefixes);
//   - a step of the serial arm has more than one row, or no step of the batch arm
//     has;
//   - a prompt was seen before, in a block or in the warm-up.
//
// Of the arms:
//
//   - Control. The serial arm against itself, in blocks of a lone request: the
//     interval of the ratio must contain 1 and lie within a margin, 5 % for the
//     latency criterion (which has the control as its third arm) and 10 % for
//     throughput. A throughput criterion rests on the control of its session;
//     where latency was not measured, or not decided, lone requests of up to
//     [controlTokens] tokens are, once. While the control is not decided, neither
//     is the criterion.
//   - Serial arm alone. At width 1 both arms do the same work. If the upper bound
//     of batch ÷ serial for a lone request is below 1/1.05, the serial arm has a
//     handicap, in every criterion of the session.
//   - Serial arm's steps. A step of one row may not take more than 1.05 times a
//     step of the batch arm, which does more.
//   - Serial arm's roofline. The bytes that a decode step must move, over the mean
//     gap between two tokens, over the bandwidth, must be at least 0.6. The
//     bandwidth is probed between the turns of the same blocks, up to a twentieth of
//     the time, so a memory that others slow down slows both sides. Of both, the
//     slowest tenth is left out: the processor was taken away. A checkpoint that
//     fits the caches is above 1 and passes; one so small that overhead decides
//     fails, and should.
//   - Prompts forgotten. The arm that sees a block's first prompt first may not pay
//     1.5 times what it pays when another arm had it before: below the meter, too,
//     nothing may remember a prompt.
//
// Of the session:
//
//   - Warm. In the warm-up blocks, the decode steps of every arm must show three
//     windows in a row (of 16 steps, or a sixth of a block's) whose medians differ by
//     at most 10 %. Up to [extraWarmups] blocks are added until they do.
//   - Trend. The ratios may not rise or fall over the run order (Mann–Kendall, 1 %:
//     so one sound criterion in a hundred is called invalid by chance).
//   - Quiet. While the arms of a block run, the machine is watched ([Machine]): CPU
//     time stolen by a hypervisor (at most 5 %), time that threads of this process
//     were ready and did not run (5 % of the cores' time), clock frequency below the
//     highest seen (10 %). CPU time used by others is recorded, without a limit.
//     A backend may add readings of its device ([DeviceWatcher]). A block over a
//     limit is discarded whatever its ratio, kept in the record, counted, and
//     measured again in the same order of arms with other prompts. More than a
//     quarter of discarded blocks, and the machine is called too noisy. That is
//     given up early once a quarter is out of reach, or when more than three blocks
//     and more than half are disturbed. What cannot be read on this machine is named.
//
// # The verdict
//
// PASS means that a one-sided 95 % bound of the median ratio clears the target,
// FAIL that it lies on the other side, INCONCLUSIVE neither. The bounds are order
// statistics, valid for any distribution; package stats has the method, its
// assumptions, its sources and its error rates. The test fails on FAIL, on INVALID,
// and on INCONCLUSIVE unless -allow-inconclusive.
//
// The specified numbers of blocks, 10 for latency and 3 for throughput, are the
// least. Three blocks can carry no 95 % bound, and ten are few on a noisy
// machine, so by default throughput begins with 6 and looks after every second
// block whether the verdict is decided, up to 24; the plan of looks is fixed
// beforehand, and the bound holds at all of them together. -test-runs N measures
// exactly N blocks and looks once; below 5 the verdict is INCONCLUSIVE and the
// bound is said to be missing.
//
// -time-limit D is for all criteria together, loading included. Each gets a share
// of what is left, in proportion to the least work of those to come; it gives up
// at a look when the next would come too late for its share, and between any two
// blocks when the next would end after D. Both rules see the clock and no ratio,
// so the bounds keep their error. What is not decided by then is INCONCLUSIVE and
// says that the time was up; it is never a guess.
//
// A ratio can depend on how fast the memory is: where arithmetic bounds the batch
// arm and reads bound the serial arm, slower reads make batching pay more. So a
// verdict must hold at every speed that the session met. If the ratio might lie on
// the other side of the target at the bandwidth of the second fastest or second
// slowest block of the session, whichever criterion it is of, the verdict is
// INCONCLUSIVE and names both speeds: so all levels are measured before one is
// judged for good. Where enough blocks of the criterion ran at such a
// speed, their own bound counts; otherwise the ratio there is estimated, as far
// towards the target, or beyond it, as reads and arithmetic of the arms let it move
// (see Judgement.at). Speeds within a tenth count as one. This can only withhold a
// verdict, and it knows no speed that the session did not meet.
//
// Where such an estimate alone withholds verdicts, blocks are added once all levels
// have been measured, to each of these criteria in turn, until enough ran at that
// speed to have a bound there (five). It is given up when none of the last five
// counts, or what is left of -time-limit cannot suffice. Added blocks show the ratio
// at that speed and nothing else, neither to the plan's decision nor to any other
// number; when to stop follows from speeds, disturbance and time, never from a ratio.
// -test-runs adds none.
//
// # The ceiling
//
// The model's shape tells the bytes and the arithmetic of every step; with the
// bandwidth and the arithmetic peak measured in the session, each step has a
// floor: the longer of bytes ÷ bandwidth and operations ÷ peak, the peak being that
// of linears and attention; what little else there is may be slower, and the ceiling
// too high. The ceiling of a ratio is the floor of the serial arm's work (prefill included) over that of the
// batch arm's, its prompts all in one step. A target above the ceiling is
// called unreachable on this machine, and is not passed for that.
//
// The bandwidth is that of the blocks which the ratio comes from (see the serial
// arm's roofline), the arithmetic peak the best probe of the session, taken at the
// start of each criterion. A higher bandwidth lowers the ceiling where arithmetic
// limits the batch arm, and leaves it where reads do. A ratio above the ceiling
// tells that the serial arm is further from its floor than the batch arm is. The
// bound of a verdict does not cover the error of the ceiling that -against ceiling
// multiplies.
//
// # The missing ratio
//
// Beside the ceiling stands an [Account] of what is missing: from the ideal (n
// requests, n times) to the ceiling what no code can win here, from the ceiling to
// the measured ratio what is lost: weights, keys and values, recurrent state,
// arithmetic, prefill, scheduler, waiting rows, and the rest, which makes the sum
// exact. The largest part is named in words that say what to do; on FAIL it is the
// cause. Without a ceiling the candidates are charged with the seconds that each
// cost the batch arm beyond what would have met the target.
//
// What the split of a step rests on: the meter times steps, not kernels, so the
// part of a step that is beyond its floor is charged to arithmetic as far as
// unhidden arithmetic could explain it, and to the weights beyond.
//
// # How it is known to say no
//
// TestGate runs engines that cheat or suffer, on the real scheduler and meter over
// a virtual engine in virtual time, with several seeds: a batch arm slowed by 3, 6 and
// 10 %, fake batching within and beside the step, a dropped request, one wrong
// token, an early stop, a cached prompt, a serial arm slowed by 30 %, drift of 20 %,
// a memory that changes its speed, bursts of noise, seen and unseen. rules_test.go
// breaks each rule by itself. Error rates by simulation are in package stats and in
// benchdata/error-rates.
//
// # What is kept
//
// results/<UTC time>/ holds environment.json, single_latency.txt and
// concurrent_throughput.txt (what was printed), results.json (every raw sample,
// see [Results] and SCHEMA.md) and bench.txt (the same samples in Go benchmark format:
// `go tool benchstat -col /mode bench.txt` compares the arms), for the serving
// scenario serving.txt, serving.csv and serving_plan.txt, and at the end
// report.html, summary.md and ratios.svg. It is proven
// writable before anything is loaded, and written after every block, so that an
// interrupted run keeps what it measured. A judgement is a function of the
// record alone: -replay FILE judges recorded samples again, by the recorded rules
// and to the same bits, and with -against by the other rule.
//
// # What this package does not do
//
// It does not compare machines in absolute time, or average verdicts. The
// criteria measure a closed set of requests of equal length: of mixed lengths
// the blocking run speaks (package sweep), of arrivals the serving scenario, and
// neither has a verdict.
package validation
