package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/perf/benchfmt"

	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

// fixed is a machine of round numbers: nothing has to be measured.
func fixed(*cpu.Backend) (machine, error) {
	return machine{bandwidth: 1e9, peak: 1e10, products: 2e10}, nil
}

func measureTiny(t *testing.T, checkpoint string, workloads []workload) (*stand, [][]round) {
	t.Helper()
	opt := options{checkpoint: checkpoint, threads: 1, rounds: 2, steps: 3, probe: fixed}
	s, err := open(opt, workloads)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.close()) })
	results, err := s.measure(context.Background(), opt, workloads, func(string) {})
	require.NoError(t, err)
	return s, results
}

// stepCost is the least work of a step after which rows hold context positions.
func (s *stand) stepCost(w workload, context int) (bytes, flops float64) {
	rows := make([]model.CostRow, w.rows)
	for i := range rows {
		rows[i] = model.CostRow{Tokens: w.tokens, Context: context, Sample: true}
	}
	element := s.ck.DType().Size()
	c := s.ck.Config.StepCost(rows, model.ElementBytes{Weight: element, KV: element, Recurrent: 4, Conv: 4})
	return float64(c.Bytes()), float64(c.FLOPs)
}

// TestOpsAddUp: what the ops have to do is together what the step has to do by
// the model's shape, byte for byte and operation for operation, and their times
// fit into it.
func TestOpsAddUp(t *testing.T) {
	for _, checkpoint := range []string{"random:qwen3.5-tiny", "random:llama-tiny"} {
		workloads := []workload{{rows: 1, tokens: 1, context: 5}, {rows: 3, tokens: 1, context: 40}, {rows: 1, tokens: 100}, {rows: 2, tokens: 1, context: 1}}
		s, results := measureTiny(t, checkpoint, workloads)
		for i, w := range workloads {
			require.Len(t, results[i], 2)
			for _, r := range results[i] {
				var sum work
				seconds := 0.0
				for k, o := range r.ops {
					seconds += o.seconds
					// Left out of a step's cost: rows of the table, logits.
					if k != s.meter.embed && k != s.meter.sample {
						sum.add(o.work)
					}
				}
				bytes, flops := s.stepCost(w, r.context)
				require.InEpsilon(t, bytes, sum.bytes, 1e-9, "%s, %v", checkpoint, w)
				require.InEpsilon(t, flops, sum.flops+sum.products, 1e-9, "%s, %v", checkpoint, w)
				require.Positive(t, seconds)
			}
		}
	}
}

// TestOpsAreToldApart: every projection has its own line, named after what is fused.
func TestOpsAreToldApart(t *testing.T) {
	s, _ := measureTiny(t, "random:qwen3.5-tiny", []workload{{rows: 1, tokens: 1, context: 1}})
	var names []string
	for _, o := range s.meter.ops {
		names = append(names, o.name)
	}
	require.ElementsMatch(t, []string{
		"embed", "attention", "gated_delta", "gather", "sample",
		"norm+in_proj_qkv+in_proj_z+in_proj_b+in_proj_a", "out_proj+residual", "norm+q_proj+k_proj+v_proj", "o_proj+residual",
		"norm+gate_proj+up_proj+swiglu", "down_proj+residual", "norm+lm_head",
	}, names)
}

// TestFloor: the slower of memory and arithmetic, op after op.
func TestFloor(t *testing.T) {
	m := machine{bandwidth: 100, peak: 1000, products: 2000}
	require.Equal(t, 2.0, work{bytes: 200, flops: 1000}.floor(m))
	require.Equal(t, 3.0, work{bytes: 200, flops: 3000}.floor(m))
	require.Equal(t, 4.0, work{bytes: 200, flops: 3000, products: 2000}.floor(m))
	r := round{machine: m, ops: []opRound{{work: work{bytes: 200, flops: 1000}}, {work: work{bytes: 200, flops: 3000}}}}
	require.Equal(t, 5.0, r.floor(), "one op after another")
}

// TestTargets: the figures follow from the rounds.
func TestTargets(t *testing.T) {
	workloads := targetWorkloads(8, 32, 48)
	s, results := measureTiny(t, "random:qwen3.5-tiny", workloads)
	for i, w := range workloads[:4] {
		for k := range results[i] {
			r := &results[i][k]
			r.machine = machine{bandwidth: 1, peak: 1e-6 * float64(w.rows), products: 1}
			for i := range r.ops {
				r.ops[i].work = work{}
			}
			r.ops[s.meter.delta].work = work{bytes: 90}                // a ceiling of the number of rows
			r.seconds = []float64{100, 100 / 0.95, 100 / 0.85, 200}[i] // at 100 the share is 0.9
			r.mallocs = float64(w.rows / 8)                            // one at 8 rows
		}
	}
	list := s.targets(workloads, results)
	find := func(what string) target {
		for _, g := range list {
			if strings.HasPrefix(g.what, what) {
				return g
			}
		}
		require.Fail(t, "no target "+what)
		return target{}
	}
	for _, c := range []struct {
		what  string
		value float64
		met   bool
	}{
		{"serial decode", 0.90, true},
		{"decode of 2 rows, of the ceiling", 0.95, true},
		{"decode of 4 rows, of the ceiling", 0.85, false},
		{"decode of 4 rows, speed-up", 3.4, false},
		{"decode of 8 rows, of the ceiling", 0.5, false},
		{"allocations", 1, false},
	} {
		g := find(c.what)
		require.InDelta(t, c.value, g.value, 1e-9, c.what)
		require.Equal(t, c.met, g.met(), c.what)
	}
	for _, what := range []string{"prefill of 32", "attention at context 48", "recurrent state update of 8", "random weights"} {
		require.Positive(t, find(what).value, what)
	}
	var out strings.Builder
	s.writeTargets(&out, workloads, results)
	require.Contains(t, out.String(), "missed")
	require.Contains(t, out.String(), "met")
}

// TestCommand runs the whole, and holds its file to the benchmark format.
func TestCommand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "roofline.txt")
	var out strings.Builder
	args := strings.Fields("-checkpoint random:llama-tiny -rows 1,2,1 -context 10 -prefill 20 -threads 1 -rounds 2 -steps 2 -isa generic -precision bf16 -bench " + file)
	require.NoError(t, run(context.Background(), args, &out, io.Discard, fixed))
	for _, want := range []string{"random:llama-tiny in bf16 on cpu: generic with bf16 products, 1 threads", "decode, 2 × 1 token from context 10", "prefill of 20 tokens", "norm+gate_proj+up_proj+swiglu", "between ops"} {
		require.Contains(t, out.String(), want)
	}
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	steps := 0
	for reader := benchfmt.NewReader(f, file); reader.Scan(); {
		switch r := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			require.NoError(t, r)
		case *benchfmt.Result:
			share, ok := r.Value("of-floor")
			require.True(t, ok || strings.Contains(r.Name.String(), "op=gather"), r.Name.String())
			require.True(t, !ok || share > 0, r.Name.String())
			if strings.HasPrefix(r.Name.String(), "Step/") {
				steps++
			}
		}
	}
	require.Equal(t, 3*2, steps, "workloads × rounds")
}

// TestCommandErrors: what is wrong is named, before anything is loaded.
func TestCommandErrors(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"-rows 0", `-rows "0": want whole numbers from 1 to 1048576`},
		{"-rows 1048577", `-rows "1048577": want whole numbers from 1 to 1048576`},
		{"-context 9223372036854775807", "-context 9223372036854775807: want at most 16777216"},
		{"-bench .", "-bench .: open .: is a directory"},
		{"-prefill 1", `-prefill "1": want whole numbers from 2 to`},
		{"-rows 1,x", `-rows "1,x"`},
		{"-rows ,", "nothing to measure"},
		{"-rounds 0", "-rounds 0"},
		{"-context 0", "-context 0"},
		{"-threads -1", "-threads -1: want 1 to"},
		{"-threads 100000000", "-threads 100000000: want 1 to"},
		{"-isa sse", `-isa: instruction set "sse": want auto`},
		{"-precision int8", `-precision: precision "int8": want auto`},
		{"stray", `unexpected argument "stray"`},
		{"-checkpoint random:none", `unknown preset "none"`},
		{"-checkpoint random:llama-tiny -context 4096", "the model was made for 4096"},
	} {
		require.ErrorContains(t, run(context.Background(), strings.Fields(c.args), io.Discard, io.Discard, fixed), c.says, c.args)
	}
}
