package backendtest

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

// sequence is the input of one sequence to a mixer, with its place in memory.
type sequence struct {
	x      [][]float32 // projections, by position
	blocks []int32
	slot   int

	// Set by replay.
	table int // of its first position in the table of inputs
	done  int // positions
}

// share is one row of a planned step.
type share struct {
	seq    int
	count  int
	prompt bool
}

// plan is the steps in which sequences are computed.
type plan [][]share

// randomPlan computes all sequences, in steps that mix prompt chunks and
// decode rows of some of them, in any order.
func (h *harness) randomPlan(seqs []*sequence) (p plan) {
	left, done := 0, make([]int, len(seqs))
	for _, s := range seqs {
		left += len(s.x)
	}
	for left > 0 {
		var step []share
		for _, i := range h.rng.Perm(len(seqs)) {
			rest := len(seqs[i].x) - done[i]
			if rest == 0 || h.rng.IntN(4) == 0 {
				continue
			}
			s := share{seq: i, count: 1}
			if s.prompt = h.rng.IntN(3) == 0; s.prompt {
				s.count += h.rng.IntN(min(rest, 19+h.opt.DeltaBlock))
			}
			step = append(step, s)
			done[i] += s.count
			left -= s.count
		}
		if len(step) > 0 {
			p = append(p, step)
		}
	}
	return p
}

// widest is the number of tokens of the largest step.
func (p plan) widest() (widest int) {
	for _, step := range p {
		n := 0
		for _, s := range step {
			n += s.count
		}
		widest = max(widest, n)
	}
	return widest
}

// chunked computes each sequence in prompt chunks of a size, all side by side.
func chunked(seqs []*sequence, size int) (p plan) {
	for start := 0; ; start += size {
		var step []share
		for i, s := range seqs {
			if rest := len(s.x) - start; rest > 0 {
				step = append(step, share{i, min(rest, size), true})
			}
		}
		if step == nil {
			return p
		}
		p = append(p, step)
	}
}

// only is the part of a plan that concerns one sequence.
func (p plan) only(seq int) (out plan) {
	for _, step := range p {
		for _, s := range step {
			if s.seq == seq {
				out = append(out, []share{s})
			}
		}
	}
	return out
}

// merged runs each step of a plan together with as many as come next, as far
// as no sequence would stand in a step twice: a batch of other company.
func (p plan) merged() (out plan) {
	for len(p) > 0 {
		var step []share
		seen := map[int]bool{}
		for len(p) > 0 {
			clash := false
			for _, s := range p[0] {
				clash = clash || seen[s.seq]
			}
			if clash {
				break
			}
			for _, s := range p[0] {
				seen[s.seq] = true
			}
			step = append(step, p[0]...)
			p = p[1:]
		}
		for i, j := 0, len(step)-1; i < j; i, j = i+1, j-1 {
			step[i], step[j] = step[j], step[i]
		}
		out = append(out, step)
	}
	return out
}

// poison makes a buffer of NaN.
func (h *harness) poison(tokens, width int) backend.Buffer {
	h.Helper()
	rows := make([][]float32, tokens)
	for i := range rows {
		rows[i] = filled(width, nan)
	}
	return h.put(rows)
}

// output is what a mixer made of one sequence, by position.
type output struct {
	y      [][]float32
	prompt []bool // how the position was computed
}

// replay computes sequences as planned through op, a mixer of the given widths,
// with NaN beside the input, and poison in and guards around the output.
// Sequences start at position 0.
func (h *harness) replay(seqs []*sequence, p plan, outputs int, op func(dst, src backend.Buffer)) []output {
	h.Helper()
	var inputs [][]float32
	for _, s := range seqs {
		s.table, s.done = len(inputs), 0
		inputs = append(inputs, s.x...)
	}
	table := h.table(framed(inputs, nan))
	widest := p.widest()
	poison := make([][]float32, widest)
	for i := range poison {
		poison[i] = filled(outputs, nan)
	}
	poison = framed(poison, guard)
	src, dst := h.buffer(widest+1, len(inputs[0])+3), h.put(poison)
	poisons := h.table(poison)

	out := make([]output, len(seqs))
	for _, shares := range p {
		step := &backend.Step{}
		for _, sh := range shares {
			s := seqs[sh.seq]
			step.Rows = append(step.Rows, backend.Row{
				First: len(step.Tokens), Count: sh.count, Start: s.done,
				Slot: s.slot, Blocks: s.blocks, Prompt: sh.prompt,
			})
			for i := range sh.count {
				step.Tokens = append(step.Tokens, int32(s.table+s.done+i))
			}
		}
		h.begin(len(poison))
		h.b.Embed(dst, poisons)
		h.b.Begin(step)
		h.b.Embed(src, table)
		op(dst, src)
		got := h.read(dst, widest)
		for i, sh := range shares {
			for j := range sh.count {
				row := got[step.Rows[i].First+j]
				for c, v := range row[outputs:] {
					if v != guard {
						h.Fatalf("token %d, column %d lies outside of the result, but was written: %v", step.Rows[i].First+j, outputs+c, v)
					}
				}
				out[sh.seq].y = append(out[sh.seq].y, row[:outputs])
				out[sh.seq].prompt = append(out[sh.seq].prompt, sh.prompt)
			}
			seqs[sh.seq].done += sh.count
		}
		for t := len(step.Tokens); t < widest; t++ {
			if v := got[t][0]; v == v {
				h.Fatalf("token %d is beyond the step, but was written: %v", t, v)
			}
		}
	}
	return out
}

// nearAll holds the output of each sequence to the ideal. What one position
// stored all later ones read, so one prompt token loosens those after it.
func (h *harness) nearAll(what string, got []output, want [][]ideal, tolerance func(prompt bool) float64) {
	h.Helper()
	for i := range want {
		prompt := false
		for t := range want[i] {
			prompt = prompt || got[i].prompt[t]
			h.near(fmt.Sprintf("%s: sequence %d of %d tokens, position %d", what, i, len(want[i]), t), got[i].y[t], want[i][t], tolerance(prompt))
		}
	}
}

// sameAll demands equal bits of one sequence.
func (h *harness) sameAll(what string, got, want output) {
	h.Helper()
	for t := range want.y {
		h.same(fmt.Sprintf("%s: position %d of %d", what, t, len(want.y)), got.y[t], want.y[t])
	}
}
