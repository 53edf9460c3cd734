package cpu

import (
	"math"
	"time"
	"unsafe"

	"github.com/klauspost/cpuid/v2"
)

// probeTask measures the machine with all workers at once.
type probeTask struct {
	b      *Backend
	memory []byte // to stream through; nil to multiply
	touch  bool   // write the memory instead, so that it is there
	dots   bool   // multiply pairs of bf16
	rounds int
	sink   []uint32
}

const (
	probeRuns   = 6
	probeBytes  = 1 << 20 // of one call
	probeRounds = 1 << 17
)

// probeMemory is memory far larger than the caches.
func probeMemory() int { return min(max(4*cpuid.CPU.Cache.L3, 256<<20), 1<<30) }

// MeasureReadBandwidth streams through memory far larger than the caches with
// all workers, and returns the best of several runs in bytes a second. It keeps the
// memory until the backend is closed: to give it back would take the system a while, at
// the cost of what is measured next. The backend must be idle.
func (b *Backend) MeasureReadBandwidth() (bytesPerSecond float64, err error) {
	t, err := b.memoryProbe(probeMemory())
	if err != nil {
		return 0, err
	}
	return t.rate(b.best(t)), nil
}

// SampleReadBandwidth streams through that memory once, and returns the rate in
// bytes a second. Only the first call takes more than the time of the reads. The backend
// must be idle.
func (b *Backend) SampleReadBandwidth() (bytesPerSecond float64, err error) {
	t, err := b.memoryProbe(probeMemory())
	if err != nil {
		return 0, err
	}
	start := time.Now()
	b.pool.run(t)
	return t.rate(max(time.Since(start), 1)), nil
}

// memoryProbe is the one probe of memory.
func (b *Backend) memoryProbe(bytes int) (*probeTask, error) {
	if b.memory == nil {
		p, err := b.mem.alloc(bytes)
		if err != nil {
			return nil, err
		}
		t := b.newProbe()
		t.memory = unsafe.Slice((*byte)(p), bytes)
		t.fill()
		b.memory = t
	}
	return b.memory, nil
}

// rate is that of a run, in bytes a second.
func (t *probeTask) rate(run time.Duration) float64 {
	return float64(len(t.memory)/probeBytes*probeBytes) / run.Seconds()
}

// MeasurePeakFLOPs keeps the multipliers of all workers busy from registers, in
// the precision that Linear and Attention multiply in, and returns the best of
// several runs in operations a second: a fused multiply-add counts as two. The
// backend must be idle.
func (b *Backend) MeasurePeakFLOPs() (perSecond float64, err error) {
	return b.measurePeak(b.peakRounds(), b.precision), nil
}

// MeasureF32PeakFLOPs is MeasurePeakFLOPs with float32 products, which all other
// ops do.
func (b *Backend) MeasureF32PeakFLOPs() (perSecond float64, err error) {
	return b.measurePeak(b.peakRounds(), F32), nil
}

func (b *Backend) peakRounds() int {
	if b.isa == Generic {
		return probeRounds / 16
	}
	return probeRounds
}

func (b *Backend) measurePeak(rounds int, p Precision) float64 {
	t := b.newProbe()
	t.rounds, t.dots = rounds, p == BF16
	return float64(b.flopsPerRound(p)*rounds*b.pool.workers) / b.best(t).Seconds()
}

// flopsPerRound is what one worker does in a round of the probe.
func (b *Backend) flopsPerRound(p Precision) int {
	if p == BF16 {
		return b.kernels.dotFLOPs
	}
	return 2 * multiplyChains * b.kernels.lanes
}

func (b *Backend) newProbe() *probeTask {
	return &probeTask{b: b, sink: make([]uint32, b.pool.workers*lineBytes/4)}
}

// fill makes the system give the memory.
func (t *probeTask) fill() {
	t.touch = true
	t.b.pool.run(t)
	t.touch = false
}

func (b *Backend) best(t *probeTask) time.Duration {
	best := time.Duration(math.MaxInt64)
	for range probeRuns {
		start := time.Now()
		b.pool.run(t)
		best = min(best, max(time.Since(start), 1))
	}
	return best
}

func (t *probeTask) work(worker int) {
	sink := &t.sink[worker*lineBytes/4]
	if t.memory == nil {
		multiply := t.b.kernels.multiply
		if t.dots {
			multiply = t.b.kernels.multiplyDots
		}
		*sink += uint32(multiply(t.rounds))
		return
	}
	lo, hi := t.b.pool.part(worker, len(t.memory)/probeBytes)
	for i := lo; i < hi; i++ { // one call for all would hold up the garbage collector
		p := t.memory[i*probeBytes:][:probeBytes]
		if t.touch {
			for j := 0; j < len(p); j += lineBytes {
				p[j] = 1
			}
			continue
		}
		*sink += t.b.kernels.stream(&p[0], len(p), t.b.kernels.probe.near, t.b.kernels.probe.far)
	}
}
