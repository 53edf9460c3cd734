package cuda

import (
	"errors"
	"math"

	"github.com/batchproof/batchproof/cuda/driver"
)

// peaks is what the limits of the device are measured with, see kernels/peak.cu.
type peaks struct {
	memory driver.Ptr // to stream through; 0 until it is needed
	bytes  int64
}

const (
	peakRuns = 20 // clocks rise under load

	readBlocks = 8         // of a processor: as many as it holds
	leastRead  = 256 << 20 // twice the largest L2 cache
	readShare  = 32        // of the memory: a GPU reads all of it in 20 to 80 ms

	mmaBlocks = 2               // of a processor: four warps for each tensor core
	mmaChains = 8               // as in kernels/peak.cu
	mmaRounds = 1 << 13         // a millisecond or two, and exact sums
	mmaFLOPs  = 2 * 16 * 8 * 16 // of one mma of a warp
)

// MeasureReadBandwidth streams through memory far larger than the L2 cache, and
// returns the best of several passes in bytes a second, as the device's events
// time them. The memory is kept until Close: a 32nd of the device's, or half of
// what the model left if that is less, and at least 256 MiB; where these are
// not left, the error says what is. The backend must be idle.
func (b *Backend) MeasureReadBandwidth() (bytesPerSecond float64, err error) {
	return b.readBandwidth(b.readBytes(), peakRuns)
}

// SampleReadBandwidth is one pass of MeasureReadBandwidth, a millisecond or
// two, over the same memory.
func (b *Backend) SampleReadBandwidth() (bytesPerSecond float64, err error) {
	return b.readBandwidth(b.readBytes(), 1)
}

// readBytes leaves half of what is left to what is allocated at its first use.
func (b *Backend) readBytes() int64 {
	return max(min(b.memory.total/readShare, b.memory.left()/2), leastRead) / 16 * 16
}

func (b *Backend) readBandwidth(bytes int64, runs int) (float64, error) {
	p := &b.peaks
	if p.memory == 0 {
		memory, err := b.alloc("the memory to measure bandwidth with", bytes, false)
		if err != nil {
			return 0, err
		}
		p.memory, p.bytes = memory, bytes
		var first driver.List // not timed: it may load the kernel
		first.Fill(p.memory, 1, p.bytes)
		b.readOnce(&first)
		if err := b.dev.Run(&first, nil); err != nil {
			return 0, b.fail(err)
		}
	}
	var list driver.List
	b.readOnce(&list)
	seconds, err := b.fastest(&list, runs)
	if err != nil {
		return 0, err
	}
	return float64(p.bytes) / seconds, nil
}

func (b *Backend) readOnce(list *driver.List) {
	p := &b.peaks
	list.Launch(b.kernels[kPeakRead], dim(readBlocks*b.info.Processors, 1, 1), dim(256, 1, 1), 0,
		ptr(b.memory.workspace), ptr(p.memory), i64(p.bytes/16))
}

// MeasurePeakFLOPs keeps the tensor cores busy from registers, and returns the
// best of several runs in operations a second, as the device's events time
// them: a multiply-add counts as two, factors are bf16, sums f32. It is the
// peak of mma, the instruction that the kernels use; Hopper has others that do
// more. The backend must be idle.
func (b *Backend) MeasurePeakFLOPs() (perSecond float64, err error) {
	return b.peakFLOPs(mmaRounds)
}

func (b *Backend) peakFLOPs(rounds int) (float64, error) {
	const warps = 256 / 32
	blocks := mmaBlocks * b.info.Processors
	var list driver.List
	list.Launch(b.kernels[kPeakMMA], dim(blocks, 1, 1), dim(256, 1, 1), 0, ptr(b.memory.workspace), i32(rounds))
	seconds, err := b.fastest(&list, peakRuns)
	if err != nil {
		return 0, err
	}
	return mmaFLOPs * mmaChains * float64(rounds) * float64(warps*blocks) / seconds, nil
}

// fastest is the least time of so many runs of a list.
func (b *Backend) fastest(list *driver.List, runs int) (seconds float64, err error) {
	if b.err != nil {
		return 0, b.err
	}
	seconds = math.Inf(1)
	for range runs {
		var s float64
		if err := b.dev.Run(list, &s); err != nil {
			return 0, b.fail(err)
		}
		if !(s > 0) {
			return 0, errors.New("cuda: the device tells no time")
		}
		seconds = min(seconds, s)
	}
	return seconds, nil
}
