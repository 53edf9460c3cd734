package scheduler

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/batchproof/batchproof/engine"
)

// machine runs plans on an engine: one step at a time, on the caller's
// goroutine and the caller's clock.
type machine struct {
	planner
	eng   *engine.Engine
	vocab int32
	now   func() time.Time
	batch engine.Batch
	over  []*job // ended, and not yet collected
	drawn []*job // have drawn a token that is not yet streamed
	m     Metrics
	mark  time.Time // when the engine was last left, while there is work; else zero
}

func newMachine(eng *engine.Engine, c Config, now func() time.Time) *machine {
	lim := eng.Limits()
	return &machine{
		planner: newPlanner(c, lim),
		eng:     eng,
		vocab:   int32(lim.Vocab),
		now:     now,
		batch:   engine.Batch{Rows: make([]engine.Row, 0, c.MaxBatchSize)},
		over:    make([]*job, 0, c.MaxBatchSize),
		drawn:   make([]*job, 0, c.MaxBatchSize),
		m:       Metrics{KVBlocksTotal: lim.KVBlocks, StepsByRows: make([]uint64, c.MaxBatchSize+1)},
	}
}

// submit takes a request in.
func (m *machine) submit(j *job) {
	m.m.Submitted++
	m.add(j)
}

// cancel ends a request before its time. It frees everything at once.
func (m *machine) cancel(j *job, cause error) {
	if j.phase == gone {
		return
	}
	m.end(j, FinishCancelled, cause, m.now())
	if m.policy == Static {
		m.endBatch(m.now())
	}
}

// cancelAll ends all requests.
func (m *machine) cancelAll(cause error) {
	for m.waiting.len() > 0 {
		m.end(m.waiting.first(), FinishCancelled, cause, m.now())
	}
	for len(m.running) > 0 {
		m.end(m.running[0], FinishCancelled, cause, m.now())
	}
}

// step plans and runs one step. It returns false, having run nothing, when
// there is nothing to run.
func (m *machine) step(ctx context.Context) bool {
	if m.mark.IsZero() {
		m.mark = m.now()
	}
	m.plan()
	for _, j := range m.release {
		m.m.Preemptions++
		j.seq.Close()
		j.seq = nil
	}
	if len(m.rows) == 0 {
		if len(m.running)+m.waiting.len() > 0 {
			panic("scheduler: an idle step while requests wait")
		}
		m.mark = time.Time{}
		return false
	}
	begun, err := m.run(ctx)
	m.m.PlanTime += begun.Sub(m.mark)
	m.mark = m.now()
	m.m.EngineTime += m.mark.Sub(begun)
	m.m.Steps++
	m.m.StepsByRows[len(m.rows)]++
	if err != nil {
		m.fail(ctx, err)
	} else {
		m.apply(begun)
	}
	if m.policy == Static {
		m.endBatch(m.mark)
	}
	return true
}

// run computes the planned rows, and turns a panic into an error. It returns
// when the engine was entered.
func (m *machine) run(ctx context.Context) (begun time.Time, err error) {
	begun = m.mark
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	if err := m.fill(); err != nil {
		return begun, err
	}
	begun = m.now()
	return begun, m.eng.Step(ctx, &m.batch)
}

// fill makes the engine's batch of the planned rows.
func (m *machine) fill() (err error) {
	for _, j := range m.admit {
		if j.seq, err = m.eng.NewSequence(); err != nil {
			return err // somebody else uses the engine: New found it empty
		}
	}
	m.batch.Rows = m.batch.Rows[:len(m.rows)]
	for i := range m.rows {
		r := &m.rows[i]
		m.batch.Rows[i] = engine.Row{
			Seq: r.job.seq, Tokens: r.tokens, Prompt: r.prompt,
			Sample: r.sample, Sampling: r.job.req.Sampling,
		}
	}
	return nil
}

// apply takes in the tokens of a step.
func (m *machine) apply(begun time.Time) {
	for i := range m.rows {
		r := &m.rows[i]
		j := r.job
		token := m.batch.Rows[i].Next
		if r.sample && (token < 0 || token >= m.vocab) {
			m.lose(j, FinishError, fmt.Errorf("%w: the engine drew %d, the vocabulary has %d", engine.ErrToken, token, m.vocab))
			continue
		}
		if j.times.Started.IsZero() {
			j.times.Started = begun
		}
		m.count(r)
		held := j.held()
		m.take(r, token)
		if !r.sample || held {
			continue
		}
		m.m.Tokens++
		if len(j.out) == 1 {
			j.times.FirstToken = m.mark
		}
		j.times.Finished = m.mark
		j.times.Tokens = append(j.times.Tokens, m.mark)
		if j.ticket != nil && j.ticket.stream != nil {
			m.drawn = append(m.drawn, j)
		}
		if j.held() && m.policy != Static {
			m.end(j, j.reason, nil, m.mark)
		}
	}
}

// count enters a computed row into the metrics.
func (m *machine) count(r *row) {
	j := r.job
	if again := min(len(r.tokens), j.done-j.pos); again > 0 {
		m.m.RecomputedTokens += uint64(again)
	}
	if r.prompt {
		m.m.PromptRows++
		m.m.PromptTokens += uint64(len(r.tokens))
		return
	}
	m.m.DecodeRows++
	switch {
	case j.held():
		m.m.HeldDecodeRows++
	case r.sample:
		m.m.UsefulDecodeRows++
	}
}

// fail ends the requests of a step that failed.
func (m *machine) fail(ctx context.Context, err error) {
	m.m.FailedSteps++
	reason, cause := FinishError, fmt.Errorf("step %d: %w", m.m.Steps, err)
	if ctx.Err() != nil {
		reason, cause = FinishCancelled, context.Cause(ctx)
	}
	for i := range m.rows {
		m.lose(m.rows[i].job, reason, cause)
	}
}

// lose ends a request whose row failed. One that had all its tokens before, and
// was only held by its batch, keeps them.
func (m *machine) lose(j *job, reason FinishReason, cause error) {
	if j.held() {
		reason, cause = j.reason, nil
	}
	m.end(j, reason, cause, m.mark)
}

// endBatch returns all rows of a static batch if the slowest is done.
func (m *machine) endBatch(at time.Time) {
	if !m.batchDone() {
		return
	}
	for len(m.running) > 0 {
		j := m.running[0]
		m.end(j, j.reason, nil, at)
	}
}

// end takes a request out and frees its row, slot and KV blocks.
func (m *machine) end(j *job, reason FinishReason, cause error, at time.Time) {
	m.remove(j)
	if j.seq != nil {
		j.seq.Close()
		j.seq = nil
	}
	j.reason, j.err = reason, ended(reason, cause)
	j.times.Returned = at
	switch reason {
	case FinishCancelled:
		m.m.Cancelled++
		if cause == ErrAborted {
			m.m.Aborted++
		}
	case FinishError:
		m.m.Failed++
	default:
		m.m.Finished++
		m.m.QueueTime += j.times.Queue()
		m.m.PrefillTime += j.times.Prefill()
		m.m.DecodeTime += j.times.Decode()
	}
	m.over = append(m.over, j)
}

// gauge brings the metrics of the moment up to date.
func (m *machine) gauge() {
	m.m.Running, m.m.Waiting, m.m.Preempted = len(m.running), m.waiting.len(), m.preempted
	m.m.KVBlocksUsed = m.m.KVBlocksTotal - m.eng.FreeBlocks()
}
