package validation

import (
	"context"

	"github.com/batchproof/batchproof/engine"
)

// Rows is a fixed batch of sequences that steps together, straight on the
// engine, without a scheduler: what a step costs, and nothing else.
type Rows struct {
	eng   *engine.Engine
	batch engine.Batch
	next  [][1]int32 // the token that each row feeds next
	Drawn [][]int32  // by row, what was drawn so far
	seqs  []*engine.Sequence
}

// NewRows makes one sequence for each prompt.
func NewRows(eng *engine.Engine, prompts [][]int32) (*Rows, error) {
	r := &Rows{eng: eng, next: make([][1]int32, len(prompts)), Drawn: make([][]int32, len(prompts))}
	for i, p := range prompts {
		seq, err := eng.NewSequence()
		if err != nil {
			r.Close()
			return nil, err
		}
		r.seqs = append(r.seqs, seq)
		r.batch.Rows = append(r.batch.Rows, engine.Row{Seq: seq, Tokens: p, Prompt: true, Sample: true})
		r.Drawn[i] = make([]int32, 0, eng.Limits().MaxContext)
	}
	return r, nil
}

// Step runs the model once over all rows: their prompts the first time, then
// the token that each drew last.
func (r *Rows) Step(ctx context.Context) error {
	if err := r.eng.Step(ctx, &r.batch); err != nil {
		return err
	}
	for i := range r.batch.Rows {
		row := &r.batch.Rows[i]
		r.next[i][0] = row.Next
		row.Tokens, row.Prompt = r.next[i][:], false
		r.Drawn[i] = append(r.Drawn[i], row.Next)
	}
	return nil
}

// Close frees the sequences.
func (r *Rows) Close() {
	for _, s := range r.seqs {
		s.Close()
	}
	r.seqs = nil
}
