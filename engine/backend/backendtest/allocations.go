package backendtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// testAllocations: a step of all ops allocates nothing.
func testAllocations(h *harness) {
	if h.opt.Allocates {
		h.Skip("this backend allocates as it runs, by its own account")
	}
	a := h.attentionCase(4, 2, 32)
	a.lengths = []int{40, 40, 40}
	ar := h.openAttention(a, 1)
	d := h.deltaCase(2, 4, 16, 16, 4)
	d.lengths = a.lengths
	dr := h.openDelta(d, 1)
	in := linearCase{inputs: 24, outputs: []int{a.width()}, dtypes: []backend.DType{backend.BF16}, norm: h.norm(24, 1)}
	up := linearCase{inputs: 24, outputs: []int{40, 40}, dtypes: []backend.DType{backend.F32}, epilogue: backend.SwiGLU}
	wIn, wUp := h.linearWeight(in), h.linearWeight(up)
	table := h.table(h.matrixOf(30, 24, 1))
	x, proj, mixed := h.buffer(12, 24), h.buffer(12, a.width()), h.buffer(12, a.heads*a.dim)
	deltaIn, deltaOut, mlp := h.put(dr.seqs[0].x), h.buffer(12, d.valueHeads*d.valueDim), h.buffer(12, 40)
	few := h.buffer(3, 24)
	logits := h.put(h.matrixOf(3, 50, 1))

	step := &backend.Step{Tokens: []int32{3, 1, 4, 1, 5, 9, 2}, Rows: []backend.Row{
		{First: 0, Count: 1, Start: 5, Slot: dr.seqs[0].slot, Blocks: ar.seqs[0].blocks},
		{First: 1, Count: 5, Start: 3, Slot: dr.seqs[1].slot, Blocks: ar.seqs[1].blocks, Prompt: true},
		{First: 6, Count: 1, Start: 9, Slot: dr.seqs[2].slot, Blocks: ar.seqs[2].blocks},
	}}
	gathered := []int32{0, 5, 6}
	out := make([]int32, 3)
	params := []backend.Sampling{{}, {Temperature: 1, Uniform: 0.3}, {Temperature: 1, TopK: 10, TopP: 0.9, Uniform: 0.8}}
	row := make([]float32, 24)
	run := func() {
		h.b.Begin(step)
		h.b.Embed(x, table)
		h.b.Linear(proj, x, len(step.Tokens), wIn.matrix, wIn.opt)
		h.b.Attention(mixed, proj, &ar.spec, ar.cache)
		h.b.GatedDelta(deltaOut, deltaIn, &dr.spec, dr.state)
		h.b.Linear(mlp, x, len(step.Tokens), wUp.matrix, wUp.opt)
		h.b.Gather(few, x, gathered)
		if err := h.b.Sample(out, logits, params); err != nil {
			h.Fatal(err)
		}
		if err := h.b.Read(row, few, 2); err != nil {
			h.Fatal(err)
		}
	}
	require.Zero(h, testing.AllocsPerRun(20, run), "allocations in a step")
}
