package scheduler

import (
	"slices"

	"github.com/batchproof/batchproof/engine"
)

// phase is where a request stands.
type phase uint8

const (
	inLine  phase = iota // waits
	inBatch              // has a row and a sequence
	gone                 // has ended
)

// job is one request on its way. The planner reads and moves it; only the
// machine touches its sequence and its times.
type job struct {
	// What a decode row touches comes first, to lie together.
	pos    int          // positions computed, which the KV blocks hold
	out    []int32      // tokens drawn
	claim  int          // KV blocks set aside for it while it runs
	reason FinishReason // set when it has finished; a static batch holds it on
	phase  phase
	req    Request

	id          int64 // order of submission
	rank        int64 // place in line: id less priority
	index       int   // in the queue
	done        int   // positions computed before a preemption: up to there all is repetition
	preemptions int
	seq         *engine.Sequence
	times       Timings
	err         error
	ticket      *Ticket
}

// before orders requests by their place in line.
func (j *job) before(o *job) bool {
	return j.rank < o.rank || j.rank == o.rank && j.id < o.id
}

// decoding says that the prompt is computed.
func (j *job) decoding() bool { return j.pos >= len(j.req.Prompt) }

// held says that the request has finished, but its batch has not.
func (j *job) held() bool { return j.reason != "" }

// row is one row of a planned step.
type row struct {
	job    *job
	tokens []int32
	prompt bool // a prompt chunk
	sample bool // a token is wanted
}

// planner chooses the rows of each step. It knows no clock and no engine: what
// it does is a function of the requests it was given and the tokens they drew.
//
// KV blocks. A running request claims the KV blocks of all tokens it has,
// prompt and drawn, whether they are computed yet or not. Claims never exceed
// the pool, so a planned step always finds its KV blocks. A request is admitted
// if its claim leaves the watermark free, or if it is alone. When the running
// ones outgrow the pool, the youngest in line gives up its KV blocks and waits
// again, in its old place. The oldest is never disturbed and fits the pool by
// itself, so it always ends: there is no deadlock.
//
// A preempted request is computed anew in the same kinds of rows as before: its
// prompt in the same chunks, then each token it had drawn in a decode row of
// its own, and only then does it draw the next. So its state is the same bit for
// bit, on any backend. Note: swapping KV blocks and state out to host memory
// would be faster for long requests, but needs two more ops in every backend
// and memory to swap to; feeding the drawn tokens in prompt chunks would be
// faster too, but a chunk may round differently from a decode row.
type planner struct {
	policy     Policy
	maxRows    int
	budget     int // tokens of a step
	chunk      int // prompt chunks end at its multiples
	blockSize  int
	blocks     int // KV blocks in all
	watermark  int // KV blocks to leave free at admission, for each row
	maxContext int

	waiting   queue
	preempted int    // of those waiting
	running   []*job // in the order of admission
	claimed   int    // KV blocks claimed by running

	// The plan of one step, reused.
	rows    []row
	admit   []*job // to be given a sequence
	release []*job // to lose their sequence, preempted
	left    int    // of the token budget
}

func newPlanner(c Config, lim engine.Limits) planner {
	return planner{
		policy: c.Policy, maxRows: c.MaxBatchSize, budget: c.TokenBudget, chunk: c.ChunkSize,
		blockSize: lim.KVBlockSize, blocks: lim.KVBlocks, watermark: c.WatermarkBlocks, maxContext: lim.MaxContext,
		running: make([]*job, 0, c.MaxBatchSize),
		rows:    make([]row, 0, c.MaxBatchSize),
		admit:   make([]*job, 0, c.MaxBatchSize),
		release: make([]*job, 0, c.MaxBatchSize),
	}
}

// add queues a request.
func (p *planner) add(j *job) {
	j.phase = inLine
	j.rank = j.id - int64(j.req.Priority)
	p.waiting.push(j)
}

// remove takes a request out, wherever it stands.
func (p *planner) remove(j *job) {
	switch j.phase {
	case inLine:
		p.waiting.remove(j)
		if j.preemptions > 0 {
			p.preempted--
		}
	case inBatch:
		p.drop(j)
	}
	j.phase = gone
}

// drop ends a request's claim to a row.
func (p *planner) drop(j *job) {
	i := slices.Index(p.running, j)
	p.running = slices.Delete(p.running, i, i+1)
	p.claimed -= j.claim
	j.claim = 0
}

// plan chooses the rows of the next step. No rows means that nothing is to be
// done before another request is added.
func (p *planner) plan() {
	p.rows, p.admit, p.release, p.left = p.rows[:0], p.admit[:0], p.release[:0], p.budget
	if p.policy == Static {
		p.planStatic()
		return
	}
	for p.claimed > p.blocks {
		p.preempt()
	}
	for _, j := range p.running {
		if j.decoding() {
			p.decode(j)
		}
	}
	if len(p.rows) < len(p.running) {
		for _, j := range p.running {
			if !j.decoding() {
				p.prefill(j) // fits: all had a row in the step before, and no row grows
			}
		}
	}
	for p.waiting.len() > 0 && len(p.running) < p.maxRows {
		j := p.waiting.first()
		claim := blocksFor(len(j.req.Prompt)+len(j.out), p.blockSize)
		if !p.fits(claim) || p.chunkEnd(j) > p.left {
			return // first come, first served: nobody overtakes
		}
		p.start(p.waiting.pop(), claim)
		p.prefill(j)
	}
}

// fits says whether a claim leaves enough free for all rows to grow.
func (p *planner) fits(claim int) bool {
	return len(p.running) == 0 ||
		p.claimed+claim+p.watermark*(len(p.running)+1) <= p.blocks
}

// start gives a request a row.
func (p *planner) start(j *job, claim int) {
	if j.preemptions > 0 {
		p.preempted--
	}
	j.phase = inBatch
	j.claim = claim
	p.claimed += claim
	p.running = append(p.running, j)
	p.admit = append(p.admit, j)
}

// preempt sends the youngest running request back to its place in line.
func (p *planner) preempt() {
	youngest := p.running[0]
	for _, j := range p.running[1:] {
		if youngest.before(j) {
			youngest = j
		}
	}
	p.drop(youngest)
	youngest.phase = inLine
	youngest.preemptions++
	youngest.done = max(youngest.done, youngest.pos)
	youngest.pos = 0
	p.preempted++
	p.waiting.push(youngest)
	p.release = append(p.release, youngest)
}

// chunkEnd is where the prompt chunk that begins at the job's position ends.
func (p *planner) chunkEnd(j *job) int {
	return min((j.pos/p.chunk+1)*p.chunk, len(j.req.Prompt))
}

// prefill plans the next prompt chunk, if the budget holds it: a chunk is never
// cut short, or its bounds would depend on the load.
func (p *planner) prefill(j *job) bool {
	end := p.chunkEnd(j)
	if end-j.pos > p.left {
		return false
	}
	p.left -= end - j.pos
	p.rows = append(p.rows, row{
		job: j, tokens: j.req.Prompt[j.pos:end], prompt: true,
		sample: end == len(j.req.Prompt) && len(j.out) == 0,
	})
	return true
}

// decode plans a decode row. It draws the next token, unless the request is
// being computed anew and has drawn that token before. A held row feeds its last
// token again and draws for nothing.
func (p *planner) decode(j *job) {
	last := len(j.out) - 1
	i := min(j.pos-len(j.req.Prompt), last)
	p.left--
	p.rows = append(p.rows, row{job: j, tokens: j.out[i : i+1], sample: i == last})
}

// planStatic fixes a batch when none runs, computes all prompts, and then
// decodes in lockstep.
func (p *planner) planStatic() {
	if len(p.running) == 0 {
		p.startStatic()
	}
	for _, j := range p.running {
		if !j.decoding() && !p.prefill(j) {
			break
		}
	}
	if len(p.rows) > 0 {
		return
	}
	for _, j := range p.running {
		p.decode(j)
	}
}

// startStatic admits as many of the waiting as fit together. Every row is
// computed as often as the longest, and claims the KV blocks for that at once.
func (p *planner) startStatic() {
	longest, prompt, claimed := 0, 0, 0
	for p.waiting.len() > 0 && len(p.running) < p.maxRows {
		j := p.waiting.first()
		l, n := max(longest, j.req.MaxTokens), max(prompt, len(j.req.Prompt))
		if l > longest {
			claimed = 0
			for _, r := range p.running {
				claimed += blocksFor(len(r.req.Prompt)+l-1, p.blockSize)
			}
		}
		claimed += blocksFor(len(j.req.Prompt)+l-1, p.blockSize)
		if len(p.running) > 0 && (claimed > p.blocks || n+l > p.maxContext) {
			break
		}
		longest, prompt = l, n
		p.start(p.waiting.pop(), 0)
	}
	for _, j := range p.running {
		j.claim = blocksFor(len(j.req.Prompt)+longest-1, p.blockSize)
		p.claimed += j.claim
	}
}

// take hands a planned row its result, after the step has run: the token drawn,
// if one was wanted.
func (p *planner) take(r *row, token int32) {
	j := r.job
	j.pos += len(r.tokens)
	if !r.sample || j.held() {
		return
	}
	j.out = append(j.out, token)
	if j.reason = j.finish(token); j.held() || p.policy == Static {
		return
	}
	if len(j.req.Prompt)+len(j.out) > j.claim*p.blockSize {
		j.claim++
		p.claimed++
	}
}

// finish is the reason to end with the token just drawn, or "".
func (j *job) finish(token int32) FinishReason {
	if !j.req.IgnoreEOS && slices.Contains(j.req.EOS, token) {
		return FinishEOS
	}
	if len(j.out) == j.req.MaxTokens {
		return FinishLength
	}
	return ""
}

// batchDone says that every row of a static batch has finished.
func (p *planner) batchDone() bool {
	for _, j := range p.running {
		if !j.held() {
			return false
		}
	}
	return true
}
