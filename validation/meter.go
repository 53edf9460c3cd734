package validation

import (
	"context"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
)

// Meter stands between the engine and the model and writes down every step. It
// is a witness of its own: what it says about rows and times does not come
// from the scheduler whose work is judged.
type Meter struct {
	engine.Runner
	now   func() time.Time
	turn  *Turn // of the arm whose steps these are
	drawn int   // tokens of that arm
	steps []Step
}

// Step is one pass over the model. It lasts until its tokens are there, whatever the
// host does while a device computes; between two steps a device idles.
type Step struct {
	Begin      time.Time
	Duration   time.Duration
	Rows       int
	PromptRows int // rows that were prompt chunks
	Tokens     int
	Drawn      int // tokens sampled
}

// NewMeter wraps a runner, which stays the caller's to close.
func NewMeter(r engine.Runner, now func() time.Time) *Meter {
	return &Meter{Runner: r, now: now, steps: make([]Step, 0, 1<<14)}
}

// Close leaves the runner open.
func (m *Meter) Close() error { return nil }

// begin makes the meter an arm's.
func (m *Meter) begin(t *Turn) {
	m.Take()
	m.turn, m.drawn = t, 0
	if m.now = time.Now; t != nil {
		m.now = t.Now
	}
}

// Run computes the step when it is the arm's turn, and notes it. The turn stays the
// arm's until Run returns, so none changes while a step is under way.
func (m *Meter) Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	if err := m.turn.Step(m.drawn); err != nil {
		return err
	}
	m.drawn += len(want)
	begin := m.now()
	err := m.Runner.Run(ctx, step, want, out, params)
	s := Step{Begin: begin, Duration: m.now().Sub(begin), Rows: len(step.Rows), Tokens: len(step.Tokens), Drawn: len(want)}
	for i := range step.Rows {
		if step.Rows[i].Prompt {
			s.PromptRows++
		}
	}
	m.steps = append(m.steps, s)
	return err
}

// Take returns the steps since the last Take. Call it while no step runs.
func (m *Meter) Take() []Step {
	steps := append([]Step(nil), m.steps...)
	m.steps = m.steps[:0]
	return steps
}
