package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/batchproof/batchproof/engine/backend"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// countTask counts its calls, and checks that a barrier holds everyone.
type countTask struct {
	pool    *pool
	calls   []int
	arrived atomic.Int32
	early   atomic.Bool
}

func (t *countTask) work(worker int) {
	t.calls[worker]++
	t.arrived.Add(1)
	t.pool.barrier(worker)
	if t.arrived.Load() < int32(t.pool.workers) {
		t.early.Store(true)
	}
	t.pool.barrier(worker)
}

// TestPoolRunsEveryWorkerOnce has more workers than processors too, and
// processors fewer than the machine has.
func TestPoolRunsEveryWorkerOnce(t *testing.T) {
	for _, procs := range []int{1, 2} {
		for _, workers := range []int{1, 2, 3, 7} {
			t.Run(fmt.Sprintf("procs=%d/workers=%d", procs, workers), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
				p := newPool(workers)
				defer p.close()
				task := &countTask{pool: p, calls: make([]int, workers)}
				for i := 1; i <= 300; i++ {
					task.arrived.Store(0)
					p.run(task)
					for w, n := range task.calls {
						require.Equal(t, i, n, "worker %d", w)
					}
				}
				require.False(t, task.early.Load(), "a barrier let a worker through early")
			})
		}
	}
}

// TestPoolWakesParkedWorkers waits until all workers sleep, and then wants work done.
func TestPoolWakesParkedWorkers(t *testing.T) {
	p := newPool(4)
	defer p.close()
	task := &countTask{pool: p, calls: make([]int, 4)}
	for i := 1; i <= 5; i++ {
		for p.sleepers.Load() < 3 {
			runtime.Gosched()
		}
		task.arrived.Store(0)
		p.run(task)
		require.Equal(t, []int{i, i, i, i}, task.calls)
	}
}

// TestPoolNeverOversleeps parks all workers at every wait: none may be overlooked.
func TestPoolNeverOversleeps(t *testing.T) {
	for _, workers := range []int{3, 5} {
		p := startPool(workers, 0)
		task := &countTask{pool: p, calls: make([]int, workers)}
		done := make(chan bool)
		go func() {
			for start := time.Now(); time.Since(start) < 2*time.Second; {
				p.run(task)
			}
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%d workers hang, %d counted as sleepers", workers, p.sleepers.Load())
		}
		p.close()
	}
}

// TestPoolPartsCoverAllItems once each.
func TestPoolPartsCoverAllItems(t *testing.T) {
	for workers := 1; workers <= 9; workers++ {
		p := &pool{workers: workers}
		for items := range 40 {
			next := 0
			for w := range workers {
				lo, hi := p.part(w, items)
				require.Equal(t, next, lo)
				next = hi
			}
			require.Equal(t, items, next)
		}
	}
}

// TestCloseTwice is harmless, and ends the workers (goleak).
func TestCloseTwice(t *testing.T) {
	b, err := New(Options{Threads: 3})
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	goleak.VerifyNone(t)
}

// TestISAChoice covers what can be asked for, and limitISA with its undo.
func TestISAChoice(t *testing.T) {
	best := detect()
	b := newBackend(t, Options{Threads: 2, Precision: F32})
	require.Equal(t, fmt.Sprintf("cpu: %v, 2 threads", min(best, AVX512)), b.Describe())
	require.Equal(t, "cpu", b.Name())
	rounding := newBackend(t, Options{ISA: Generic, Threads: 1, Precision: BF16})
	require.Equal(t, "cpu: generic with bf16 products, 1 threads", rounding.Describe())

	for isa := Auto; isa <= AMX; isa++ {
		got, err := ParseISA(isa.String())
		require.NoError(t, err)
		require.Equal(t, isa, got)
	}
	_, err := ParseISA("sse")
	require.ErrorContains(t, err, `instruction set "sse": want auto, generic, avx2, avx512 or amx`)

	undo := limitISA(Generic)
	require.Equal(t, []ISA{Generic}, Supported())
	_, err = New(Options{ISA: AVX2})
	require.ErrorContains(t, err, "avx2 asked for, but this CPU, system and build have at most generic")
	require.Equal(t, "cpu: generic, 1 threads", newBackend(t, Options{Threads: 1}).Describe())
	undo()
	require.Equal(t, best, detect())

	_, err = New(Options{ISA: 9})
	require.ErrorContains(t, err, "instruction set 9")
	_, err = New(Options{Threads: -1})
	require.ErrorContains(t, err, "-1 threads")
}

// TestSample compares all ways of drawing with the sampler that backends
// share, with more workers than values too.
func TestSample(t *testing.T) {
	for _, vocab := range []int{1, 3, 100, 1001} {
		for _, threads := range []int{1, 2, 5} {
			b := newBackend(t, Options{Threads: threads})
			rng := rand.New(rand.NewPCG(uint64(vocab), uint64(threads)))
			const rows = 9
			logits := newBuffer(t, b, rows, vocab)
			for i := range logits.x {
				logits.x[i] = float32(rng.IntN(20)) // equal maxima
			}
			params := make([]backend.Sampling, rows)
			for i := range params {
				switch i % 3 {
				case 1:
					params[i] = backend.Sampling{Temperature: 0.7, TopK: 5, TopP: 0.9, Uniform: rng.Float64()}
				case 2:
					params[i] = backend.Sampling{Temperature: 1.3, Uniform: rng.Float64()}
				}
			}
			out := make([]int32, rows)
			require.NoError(t, b.Sample(out, logits, params))
			var s backend.Sampler
			for i := range out {
				want, err := s.Sample(i, logits.row(i), params[i])
				require.NoError(t, err)
				require.Equal(t, want, out[i], "row %d of vocabulary %d, %d workers", i, vocab, threads)
			}
			for _, bad := range []int{3, 4} { // greedy, and drawn
				place := rng.IntN(vocab)
				old := logits.row(bad)[place]
				logits.row(bad)[place] = nan
				require.ErrorContains(t, b.Sample(out, logits, params), fmt.Sprintf("logit %d of row %d is NaN", place, bad))
				logits.row(bad)[place] = float32(math.Inf(1))
				require.ErrorContains(t, b.Sample(out, logits, params), fmt.Sprintf("row %d", bad))
				logits.row(bad)[place] = old
			}
			require.NoError(t, b.Sample(nil, logits, nil))
		}
	}
}

// TestProbes measures something, on little memory.
func TestProbes(t *testing.T) {
	for _, isa := range Supported() {
		b := newBackend(t, Options{Threads: 2, ISA: isa})
		_, err := b.memoryProbe(8 << 20) // for all that follow
		require.NoError(t, err)
		bandwidth, err := b.MeasureReadBandwidth()
		require.NoError(t, err)
		require.Greater(t, bandwidth, 1e6)
		require.Less(t, bandwidth, 1e14)
		for p := F32; p <= b.precision; p++ {
			peak := b.measurePeak(64, p)
			require.Greater(t, peak, 1e6)
			require.Less(t, peak, 1e15)
		}
	}
}

// TestArena gives aligned zeros that do not overlap, of any size.
func TestArena(t *testing.T) {
	var a arena
	var all [][]float32
	for _, n := range []int{1, 16, 17, chunkBytes / 8, 3, chunkBytes/8 + 1, 0, 5, chunkBytes/4 + 1} {
		x, err := a.floats(n)
		require.NoError(t, err)
		for i := range x {
			if x[i] != 0 {
				t.Fatalf("value %d of %d is %v", i, n, x[i])
			}
		}
		fill(x, float32(n))
		all = append(all, x)
	}
	for _, x := range all {
		if n := len(x); n > 0 {
			require.Equal(t, float32(n), x[0])
			require.Equal(t, float32(n), x[n-1])
		}
	}
	require.NoError(t, a.close())
}

// TestBadArguments panic with what they were: they are defects of a model.
func TestBadArguments(t *testing.T) {
	b := newBackend(t, Options{Threads: 1})
	small, wide := newBuffer(t, b, 2, 4), newBuffer(t, b, 3, 8)
	m := newMatrix(t, b, backend.Stacked, &tensor{name: "w", shape: []int{8, 4}, x: make([]float32, 32)})
	b.Begin(&backend.Step{Tokens: []int32{8}})
	for name, f := range map[string]func(){
		"in place":       func() { b.Linear(small, small, 1, m, backend.LinearOptions{}) },
		"too narrow":     func() { b.Linear(small, wide, 1, m, backend.LinearOptions{}) },
		"too many":       func() { b.Linear(wide, small, 3, m, backend.LinearOptions{}) },
		"swiglu":         func() { b.Linear(wide, small, 1, m, backend.LinearOptions{Epilogue: backend.SwiGLU}) },
		"norm":           func() { b.Linear(wide, small, 1, m, backend.LinearOptions{Norm: &backend.Norm{Weight: vector{1}}}) },
		"gather":         func() { b.Gather(wide, small, []int32{0}) },
		"embed":          func() { b.Embed(wide, m) },
		"sample":         func() { _ = b.Sample(make([]int32, 1), small, nil) },
		"read":           func() { _ = b.Read(make([]float32, 1), small, 2) },
		"read too wide":  func() { _ = b.Read(make([]float32, 5), small, 0) },
		"embed too many": func() { b.Begin(&backend.Step{Tokens: make([]int32, 9)}); b.Embed(wide, m) },
	} {
		require.Panics(t, f, name)
	}

	// What was rounded for one product is for no other op.
	rounding := newBackend(t, Options{Threads: 1, ISA: Generic, Precision: BF16})
	bf16 := func(outputs, inputs int) *matrix {
		return newMatrix(t, rounding, backend.Stacked, &tensor{name: "w", shape: []int{outputs, inputs}, dtype: backend.BF16, x: make([]float32, outputs*inputs)})
	}
	in, mid, out := newBuffer(t, rounding, 1, 8), newBuffer(t, rounding, 1, 100), newBuffer(t, rounding, 1, 100)
	rounding.Begin(&backend.Step{Tokens: []int32{0}})
	next := bf16(8, 40)
	round := func() { rounding.Linear(mid, in, 1, bf16(40, 8), backend.LinearOptions{Next: next}) }
	round()
	require.NotPanics(t, func() { rounding.Linear(out, mid, 1, next, backend.LinearOptions{}) })
	for name, f := range map[string]func(){
		"another": func() { rounding.Linear(out, mid, 1, bf16(8, 48), backend.LinearOptions{}) },
		"norm": func() {
			rounding.Linear(out, mid, 1, next, backend.LinearOptions{Norm: &backend.Norm{Weight: make(vector, 40)}})
		},
		"f32": func() {
			f32 := newMatrix(t, rounding, backend.Stacked, &tensor{name: "w", shape: []int{8, 40}, x: make([]float32, 320)})
			rounding.Linear(out, mid, 1, f32, backend.LinearOptions{})
		},
		"add":    func() { rounding.Linear(mid, in, 1, bf16(40, 8), backend.LinearOptions{Epilogue: backend.Add}) },
		"gather": func() { rounding.Gather(out, mid, []int32{0}) },
		"sample": func() { _ = rounding.Sample(make([]int32, 1), mid, make([]backend.Sampling, 1)) },
		"next":   func() { rounding.Linear(mid, in, 1, bf16(40, 8), backend.LinearOptions{Next: bf16(8, 48)}) },
	} {
		round()
		require.Panics(t, f, "rounded: "+name)
	}
	_, err := b.NewBuffer(0, 4)
	require.ErrorContains(t, err, "0 × 4")
	_, err = b.NewRope(nil, 4)
	require.ErrorContains(t, err, "0 pairs")
}

// TestRopeAngles are float32 products, as the reference computes them.
func TestRopeAngles(t *testing.T) {
	b := newBackend(t, Options{Threads: 3})
	freqs := []float32{1, 0.1234567, 1e-5}
	got, err := b.NewRope(freqs, 5000)
	require.NoError(t, err)
	r := got.(*rope)
	require.Equal(t, 6, r.Dims())
	for _, pos := range []int{0, 1, 777, 4999} {
		for d, f := range freqs {
			angle := float64(float32(pos) * f)
			require.Equal(t, float32(math.Cos(angle)), r.cos[pos*3+d])
			require.Equal(t, float32(math.Sin(angle)), r.sin[pos*3+d])
		}
	}
}

// TestGatherAndRead copy the rows that were asked for.
func TestGatherAndRead(t *testing.T) {
	b := newBackend(t, Options{Threads: 2})
	src, dst := newBuffer(t, b, 4, 3), newBuffer(t, b, 2, 3)
	for i := range src.x {
		src.x[i] = float32(i)
	}
	b.Gather(dst, src, []int32{3, 1})
	row := make([]float32, 2)
	require.NoError(t, b.Read(row, dst, 1))
	require.Equal(t, []float32{3, 4}, row)
	require.Equal(t, []float32{9, 10, 11}, dst.row(0))
}

// BenchmarkDispatch is what one op costs beyond its work.
func BenchmarkDispatch(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			p := newPool(workers)
			defer p.close()
			task := &idleTask{}
			best := time.Hour
			for b.Loop() {
				start := time.Now()
				for range 16 {
					p.run(task)
				}
				best = min(best, time.Since(start)/16)
			}
			b.ReportMetric(float64(best.Nanoseconds()), "best-ns")
		})
	}
}

type idleTask struct{}

func (*idleTask) work(int) {}
