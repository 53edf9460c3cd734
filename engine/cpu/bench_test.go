package cpu

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// benchBytes is the size of a set of matrices: far beyond the caches.
const benchBytes = 300 << 20

// emptyTensor has cheap values, for timing.
type emptyTensor struct{ outputs, inputs int }

func (t emptyTensor) Name() string         { return "w" }
func (t emptyTensor) Shape() []int         { return []int{t.outputs, t.inputs} }
func (t emptyTensor) DType() backend.DType { return backend.BF16 }
func (t emptyTensor) ReadF32(dst []float32, offset int) error {
	fill(dst, 0.01)
	return nil
}
func (t emptyTensor) ReadBF16(dst []uint16, offset int) error {
	for i := range dst {
		dst[i] = uint16(0x3c00 + (offset+i)%97)
	}
	return nil
}

// stopwatch takes the shortest time of each of several ops over many passes,
// so that what else runs on the machine matters little.
type stopwatch []time.Duration

func (s stopwatch) time(i int, f func()) {
	start := time.Now()
	f()
	if d := time.Since(start); s[i] == 0 || d < s[i] {
		s[i] = d
	}
}

func (s stopwatch) seconds() (sum float64) {
	for _, d := range s {
		sum += d.Seconds()
	}
	return sum
}

// BenchmarkLinear streams a set of matrices, and reports its shares of the
// read bandwidth and of the multiply-add peak that were measured in turns with it.
func BenchmarkLinear(b *testing.B) {
	for _, opt := range settings() {
		if opt.ISA == Generic {
			continue
		}
		for _, threads := range []int{1, runtime.GOMAXPROCS(0)} {
			for _, shape := range [][2]int{{4096, 768}, {1024, 3072}, {4096, 4096}} {
				for _, tokens := range []int{1, 2, 4, 8, 16, 512} {
					b.Run(fmt.Sprintf("isa=%v/precision=%v/threads=%d/k=%d/outputs=%d/tokens=%d", opt.ISA, opt.Precision, threads, shape[1], shape[0], tokens), func(b *testing.B) {
						opt.Threads = threads
						benchmarkLinear(b, opt, shape[0], shape[1], tokens)
					})
				}
			}
		}
	}
}

func benchmarkLinear(b *testing.B, opt Options, outputs, inputs, tokens int) {
	cpu := newBackend(b, opt)
	var set []*matrix
	total := benchBytes
	if tokens > 16 {
		total /= 8 // bound by arithmetic
	}
	for bytes := 0; bytes < total; bytes += outputs * inputs * 2 {
		set = append(set, newMatrix(b, cpu, backend.Stacked, emptyTensor{outputs, inputs}))
	}
	src, dst := newBuffer(b, cpu, tokens, inputs), newBuffer(b, cpu, tokens, outputs)
	rng := rand.New(rand.NewPCG(1, 1))
	copy(src.x, randomFloats(rng, len(src.x)))
	weight, err := cpu.NewVector(randomTensor(rng, backend.F32, inputs))
	require.NoError(b, err)
	option := backend.LinearOptions{Norm: &backend.Norm{Weight: weight, Eps: 1e-6}}

	linear, read := make(stopwatch, len(set)), make(stopwatch, len(set))
	peak := make(stopwatch, 1)
	stream, multiply := cpu.newProbe(), cpu.newProbe()
	multiply.rounds, multiply.dots = 1<<12, cpu.precision == BF16
	for b.Loop() {
		for i, m := range set {
			linear.time(i, func() { cpu.Linear(dst, src, tokens, m, option) })
		}
		for i, m := range set {
			stream.memory = unsafe.Slice((*byte)(m.data), m.panels*m.stride)
			read.time(i, func() { cpu.pool.run(stream) })
		}
		for range 8 {
			peak.time(0, func() { cpu.pool.run(multiply) })
		}
	}
	bytes := float64(len(set) * outputs * inputs * 2)
	flops := bytes * float64(tokens)
	bandwidth := bytes / read.seconds()
	top := float64(cpu.flopsPerRound(cpu.precision)*multiply.rounds*cpu.pool.workers) / peak.seconds()
	b.ReportMetric(bytes/linear.seconds()/1e9, "GB/s")
	b.ReportMetric(bytes/linear.seconds()/bandwidth, "of-bandwidth")
	b.ReportMetric(flops/linear.seconds()/1e9, "GFLOP/s")
	b.ReportMetric(flops/linear.seconds()/top, "of-peak")
	b.ReportMetric(max(bytes/bandwidth, flops/top)/linear.seconds(), "of-roofline")
}

// BenchmarkProbes prints the machine's limits.
func BenchmarkProbes(b *testing.B) {
	cpu := newBackend(b, Options{})
	for b.Loop() {
		bandwidth, err := cpu.MeasureReadBandwidth()
		require.NoError(b, err)
		peak, err := cpu.MeasurePeakFLOPs()
		require.NoError(b, err)
		b.ReportMetric(bandwidth/1e9, "GB/s")
		b.ReportMetric(peak/1e9, "GFLOP/s")
	}
}
