package backendtest

import (
	"fmt"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

func (h *harness) sample(rows [][]float32, params []backend.Sampling) []int32 {
	h.Helper()
	out := make([]int32, len(params))
	for i := range out {
		out[i] = -7
	}
	require.NoError(h, h.b.Sample(out, h.put(rows), params))
	return out
}

// testSampleGreedy: the first of the largest, for every vocabulary and place.
func testSampleGreedy(h *harness) {
	inf := float32(math.Inf(1))
	for _, rows := range [][][]float32{
		{{0}}, {{-inf, -3}}, {{5, 5, 5}}, {{float32(math.Copysign(0, -1)), 0}}, {{-4, -3, -inf, -3}},
		{{1, 2}, {2, 1}, {2, 2}},
	} {
		got := h.sample(rows, make([]backend.Sampling, len(rows)))
		for i, row := range rows {
			require.Equal(h, firstLargest(row), got[i], "logits %v", row)
		}
	}
	check := func(vocab int) {
		rows := h.matrixOf(1+h.rng.IntN(9), vocab, 1)
		for _, row := range rows {
			first := h.rng.IntN(vocab)
			for i := first; i < vocab; i += 1 + h.rng.IntN(vocab) {
				row[i] = 100
			}
		}
		for i, got := range h.sample(rows, make([]backend.Sampling, len(rows))) {
			require.Equal(h, firstLargest(rows[i]), got, "row %d of %d, vocabulary %d", i, len(rows), vocab)
		}
	}
	h.sweep(1, 80, check)
	for _, vocab := range []int{1000, 4099, 20011} {
		check(vocab)
	}
	require.NoError(h, h.b.Sample(nil, h.buffer(2, 5), nil), "nothing to draw")
}

func firstLargest(x []float32) int32 {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return int32(best)
}

// distribution is the probability of each token, by sorting.
func distribution(logits []float32, p backend.Sampling) []float64 {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case logits[a] > logits[b]:
			return -1
		case logits[a] < logits[b]:
			return 1
		}
		return 0
	})
	if p.TopK > 0 {
		order = order[:min(p.TopK, len(order))]
	}
	out := make([]float64, len(logits))
	total := 0.0
	for _, i := range order {
		out[i] = math.Exp((float64(logits[i]) - float64(logits[order[0]])) / float64(p.Temperature))
		total += out[i]
	}
	if p.TopP > 0 && p.TopP < 1 {
		sum := 0.0
		for _, i := range order {
			if sum >= float64(p.TopP)*total {
				out[i] = 0
			}
			sum += out[i]
		}
	}
	total = 0
	for _, v := range out {
		total += v
	}
	for i := range out {
		out[i] /= total
	}
	return out
}

// testSampleDistribution draws with evenly spaced numbers, so that every token
// comes exactly as often as its probability says. The same number draws the
// same token in any row.
func testSampleDistribution(h *harness) {
	logits := []float32{0.3, 2, -1, 2, 0.3, -6, 1.1, float32(math.Inf(-1)), 0.9}
	const rows = 16
	draws := max(4, 4000/rows/(h.opt.Stride*h.opt.Stride)) * rows
	all := make([][]float32, rows)
	for i := range all {
		all[i] = logits
	}
	buf := h.put(all)
	out := make([]int32, rows)
	for _, p := range []backend.Sampling{
		{Temperature: 1}, {Temperature: 0.5}, {Temperature: 3}, {Temperature: 1, TopP: 1}, {Temperature: 1, TopK: 100},
		{Temperature: 1, TopK: 1}, {Temperature: 1, TopK: 2}, {Temperature: 1, TopK: 5}, {Temperature: 0.01},
		{Temperature: 1, TopP: 0.1}, {Temperature: 1, TopP: 0.5}, {Temperature: 2, TopP: 0.95}, {Temperature: 1.5, TopK: 4, TopP: 0.7},
		{Temperature: 1, TopK: 3, TopP: 0.999},
	} {
		count := make([]float64, len(logits))
		var first []int32
		for _, shift := range []int{0, 5} { // another row for each number
			var drawn []int32
			for i := 0; i < draws; i += rows {
				params := make([]backend.Sampling, rows)
				for r := range params {
					params[(r+shift)%rows] = p
					params[(r+shift)%rows].Uniform = (float64(i+r) + 0.5) / float64(draws)
				}
				require.NoError(h, h.b.Sample(out, buf, params))
				for r := range params {
					drawn = append(drawn, out[(r+shift)%rows])
				}
			}
			if first == nil {
				first = drawn
			}
			require.Equal(h, first, drawn, "%+v: the token depends on its row", p)
		}
		for _, t := range first {
			count[t]++
		}
		for i, want := range distribution(logits, p) {
			if !(math.Abs(count[i]-want*float64(draws)) <= 2) || (want == 0) != (count[i] == 0) && want*float64(draws) > 2 {
				h.Fatalf("%+v: token %d drawn %v times of %d, want %.1f", p, i, count[i], draws, want*float64(draws))
			}
		}
		for _, u := range []float64{0, math.Nextafter(1, 0)} {
			p.Uniform = u
			require.NoError(h, h.b.Sample(out[:1], buf, []backend.Sampling{p}))
			require.Greater(h, distribution(logits, p)[out[0]], 0.0, "%+v drew an impossible token", p)
		}
	}
}

// testSampleNaN: a NaN is an error that names the row, whatever is drawn, and
// the next draw is unharmed.
func testSampleNaN(h *harness) {
	for _, p := range []backend.Sampling{{}, {Temperature: 1, Uniform: 0.5}, {Temperature: 1, TopK: 3}, {Temperature: 1, TopP: 0.5}} {
		h.sweep(1, 40, func(vocab int) {
			rows := h.matrixOf(5, vocab, 1)
			params := []backend.Sampling{{}, p, {}, p, p}
			bad := h.rng.IntN(len(rows))
			rows[bad][h.rng.IntN(vocab)] = nan
			err := h.b.Sample(make([]int32, len(rows)), h.put(rows), params)
			require.ErrorContains(h, err, fmt.Sprintf("row %d", bad), "vocabulary %d, %+v", vocab, p)
			require.ErrorContains(h, err, "NaN")
			h.sample(h.matrixOf(2, vocab, 1), params[:2])
		})
	}
}
