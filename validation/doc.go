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
// # The arms
//
// The serial arm runs one request at a time. The batch arm runs up to
// -max-batch-size rows, and requests join and leave at any step. Both run on
// one engine: same weights, buffers, threads and kernels. An arm gets a
// scheduler of its own for each run, made before its clock starts, after a
// garbage collection, and closed after its clock has stopped. Its requests are
// submitted at once; its time is from then until the last result.
//
// The serial arm is not handicapped, and that is shown rather than promised:
// beside every ratio stands its share of the memory roofline, which is the
// bytes that a decode step must move, over the median time between two tokens
// (the scheduler included), over the bandwidth of streaming reads that was
// measured between the blocks of the same session.
//
// # The unit of evidence
//
// Requests of one batch are correlated, so they are never counted singly. The
// unit is the block: every arm runs once, one after another, over the same
// requests, and the block yields one ratio. Blocks come in groups in which every
// arm has every place once, in an order drawn from the seed, so drift of the
// machine meets the arms alike.
//
// Every request has its own prompt of random tokens. Both arms of a block get the
// same prompts, and the engine keeps nothing of a sequence that has ended; no
// prompt comes twice in a criterion, so no cache of prefixes can help later blocks. Generation is greedy, ignores the end-of-text token and runs to
// -max-tokens, so lengths cannot differ.
//
// Warm-up blocks have the shape of the measured ones, on both arms, with prompts
// of their own, and are held to the same rules of evidence.
//
// # What makes evidence unusable
//
// A meter between engine and model writes down every step: its rows, its prompt
// chunks, the tokens drawn, its time. The evidence is INVALID, the place is
// named and the measurement of that criterion ends when
//
//   - a request fails, is dropped, or ends for another reason than its length;
//   - a request has other than -max-tokens tokens, generated or timed;
//   - a token differs between the arms (request, position and both tokens are
//     named): rows must not depend on their neighbours, bit for bit;
//   - the tokens drawn by the engine do not add up to those asked for;
//   - a step of the serial arm has more than one row, or no step of the batch arm
//     has;
//   - a prompt was seen before.
//
// It is also INVALID when the ratio has a trend over the session, or when the
// control differs from 1: the latency criterion has a third arm, which is the
// serial arm again.
//
// # The verdict
//
// PASS means that a one-sided 95 % bound of the median ratio clears the target,
// FAIL that it lies on the other side, INCONCLUSIVE neither. The bounds are order
// statistics, valid for any distribution; package stats has the method, its
// assumptions and its error rates. The test fails on FAIL, on INVALID, and on
// INCONCLUSIVE unless -allow-inconclusive.
//
// The specified numbers of blocks, 10 for latency and 3 for throughput, are the
// least. Three blocks can carry no 95 % bound, and ten are few on a noisy
// machine, so by default throughput begins with 6 and looks after every second
// block whether the verdict is decided, up to 24; the plan of looks is fixed
// beforehand, and the bound holds at all of them together. -test-runs N measures
// exactly N blocks and looks once; below 5 the verdict is INCONCLUSIVE and the
// bound is said to be missing. -time-limit D gives up at a look when the next
// would come too late; the verdict is then INCONCLUSIVE, never a guess.
//
// # The ceiling
//
// The model's shape tells the bytes and the arithmetic of every step; with the
// bandwidth and the arithmetic peak measured in the session, each step has a
// floor: the longer of bytes ÷ bandwidth and operations ÷ peak. The ceiling of a
// ratio is the floor of the serial arm's work (prefill included) over that of the
// batch arm's, its prompts all in one step. A target above the ceiling is
// called unreachable, and is not passed for that. A ratio above the ceiling
// tells that the serial arm is further from its floor than the batch arm is.
//
// On FAIL the likely cause is named. The candidates (prefill, too narrow a
// batch, rows that join late, heavy steps, the scheduler) are charged with the
// seconds that each cost the batch arm beyond what would have met the target, as
// the meter saw them, and the dearest is named.
//
// # The serving scenario
//
// Requests of mixed lengths come in open loop, however slow the answers are, at
// the same instants and with the same prompts under each policy: serial, static,
// continuous, and continuous once more with prompts that are not cut into chunks.
// Rate, limits and number of requests are chosen by a calibration unless they are
// given, and printed. Nothing is reported unless every request succeeded, and the
// policies drew the same tokens.
//
// TTFT runs from the submission to the first token, E2EL to the return of the
// request (in a static batch, that of its slowest row); TPOT is (E2EL − TTFT) ÷
// (tokens − 1); ITL are the gaps between tokens. A percentile is the nearest-rank
// one over the requests (ITL: the gaps) of all runs, rounded up by less than
// 1/128. Goodput counts the requests that kept every limit, per second from the
// first submission to the last return. Requests of a run are correlated, so the
// figures have no bounds: they describe, and decide nothing.
//
// The plan by virtual clock fits the cost of a step to recorded ones, says how far
// the fit is off on runs that it has not seen, and simulates the same scheduler
// over that cost at sizes which the machine cannot run.
//
// # What is kept
//
// results/<UTC time>/ holds environment.json, single_latency.txt and
// concurrent_throughput.txt (what was printed), results.json (every raw sample,
// see [Results]) and bench.txt (the same samples in Go benchmark format:
// `go tool benchstat -col /mode bench.txt` compares the arms), for the serving
// scenario serving.txt, serving.csv and serving_plan.txt. It is proven
// writable before anything is loaded, and written after every block, so that an
// interrupted run keeps what it measured. A judgement is a function of the
// record alone: -replay FILE judges recorded samples again.
//
// # What this package does not do
//
// It does not compare machines in absolute time, or average verdicts. The
// criteria measure a closed set of requests of equal length: of mixed lengths
// the blocking run speaks (package sweep), of arrivals the serving scenario, and
// neither has a verdict.
package validation
