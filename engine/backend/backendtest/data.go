package backendtest

import (
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// testLoad: what cannot be loaded is an error that names the tensor.
func testLoad(h *harness) {
	good := h.weight(backend.F32, 1, 3, 4)
	broken := h.weight(backend.F32, 1, 3, 4)
	broken.name, broken.err = "broken.weight", errors.New("broken.weight: element 5 is NaN")
	for _, c := range []struct {
		name  string
		form  backend.Form
		parts []backend.Source
		want  string
	}{
		{"no parts", backend.Stacked, nil, ""},
		{"a vector", backend.Stacked, []backend.Source{&tensor{name: "flat", shape: []int{12}, x: good.x}}, "flat"},
		{"inputs differ", backend.Stacked, []backend.Source{good, &tensor{name: "wide", shape: []int{2, 6}, x: good.x}}, "wide"},
		{"gate without up", backend.GateUp, []backend.Source{good}, "weight"},
		{"gate and up differ", backend.GateUp, []backend.Source{good, &tensor{name: "up", shape: []int{2, 4}, x: good.x}}, ""},
		{"unreadable", backend.Stacked, []backend.Source{good, broken}, "broken.weight"},
	} {
		_, err := h.b.NewMatrix(c.form, c.parts...)
		require.Error(h, err, c.name)
		require.ErrorContains(h, err, c.want, c.name)
	}
	_, err := h.b.NewVector(broken)
	require.ErrorContains(h, err, "broken.weight")

	v, err := h.b.NewVector(&tensor{name: "conv", shape: []int{3, 1, 4}, x: good.x})
	require.NoError(h, err)
	require.Equal(h, 12, v.Len(), "a vector of any shape")
}

// testEmbed: exact rows in the order of the tokens, and nothing beside them.
func testEmbed(h *harness) {
	h.sweep(1, 70, func(width int) {
		for _, dtype := range []backend.DType{backend.F32, backend.BF16} {
			w := h.weight(dtype, 3, 1+h.rng.IntN(40), width)
			table := h.matrix(backend.Stacked, w)
			n := 1 + h.rng.IntN(20)
			rows := make([][]float32, n)
			for i := range rows {
				rows[i] = filled(width, nan)
			}
			dst := h.put(framed(rows, guard))
			step := h.begin(n)
			for i := range step.Tokens {
				step.Tokens[i] = int32(h.rng.IntN(w.shape[0]))
			}
			h.b.Begin(step)
			h.b.Embed(dst, table)
			for i, got := range h.unframed(dst, n, width) {
				h.same("embedding", got, w.x[int(step.Tokens[i])*width:][:width])
			}
		}
	})
}

// testGather: any tokens in any order, also twice.
func testGather(h *harness) {
	h.sweep(1, 40, func(width int) {
		rows := h.matrixOf(1+h.rng.IntN(20), width, 1)
		src := h.put(rows)
		tokens := make([]int32, 1+h.rng.IntN(len(rows)+3))
		for i := range tokens {
			tokens[i] = int32(h.rng.IntN(len(rows)))
		}
		below := h.normal(width, 1)
		start := make([][]float32, len(tokens)+1)
		for i := range start {
			start[i] = below
		}
		dst := h.put(start)
		h.b.Gather(dst, src, tokens)
		got := h.read(dst, len(start))
		for i, t := range tokens {
			h.same("gathered", got[i], rows[t])
		}
		h.same("the token after the last", got[len(tokens)], below)
	})
}

// testRead: a token's row, or the head of it.
func testRead(h *harness) {
	rows := h.matrixOf(5, 37, 1)
	b := h.put(rows)
	for i, row := range rows {
		for _, n := range []int{0, 1, 8, 36, 37} {
			got := make([]float32, n)
			require.NoError(h, h.b.Read(got, b, i))
			h.same("read", got, row[:n])
		}
	}
}
