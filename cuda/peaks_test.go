package cuda

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
)

// readLengths leave every kind of tail to three blocks of 256 threads.
var readLengths = []int{1, 31, 768, 3071, 3072, 3073, 7144}

// wrongReads is the number of warps that do not add all that is theirs to read.
func wrongReads(b *Backend, vectors int) (wrong int, err error) {
	const blocks, threads = 3, 3 * 256
	rng := rand.New(rand.NewPCG(probeSeed, uint64(vectors)))
	words := make([]float32, 4*vectors)
	want := make([]uint32, threads/32)
	for i := range words {
		w := rng.Uint32() >> 9 // no NaN
		words[i] = math.Float32frombits(w)
		want[i/4%threads/32] += w
	}
	from, err := b.upload("words", words)
	if err != nil {
		return 0, err
	}
	b.launch(kPeakRead, dim(blocks, 1, 1), 256, 0, ptr(b.memory.workspace), ptr(from), i64(int64(vectors)))
	got, err := b.sums(len(want))
	if err != nil {
		return 0, err
	}
	for i, w := range want {
		if math.Float32bits(got[i]) != w {
			wrong++
		}
	}
	return wrong, b.memory.release(b.dev, from)
}

// wrongProducts is the number of threads whose accumulators do not hold the
// product of the two tiles, so many times.
func wrongProducts(b *Backend, rounds int) (wrong int, err error) {
	const blocks = 2
	odd := func(i int) float32 { return float32(2*(i%4) - 3) }
	var left [16][16]float32
	var right [16][8]float32
	for l := range 32 { // as kernels/device.cuh lays tiles out
		for r := range 4 {
			i := 5*l + 3*r
			left[l/4+r%2*8][l%4*2+r/2*8] = odd(i)
			left[l/4+r%2*8][l%4*2+r/2*8+1] = odd(i / 4)
		}
		for r := range 2 {
			i := 7*l + 2*r + 1
			right[l%4*2+r*8][l/4] = odd(i)
			right[l%4*2+r*8+1][l/4] = odd(i / 4)
		}
	}
	b.launch(kPeakMMA, dim(blocks, 1, 1), 256, 0, ptr(b.memory.workspace), i32(rounds))
	got, err := b.sums(blocks * 256)
	if err != nil {
		return 0, err
	}
	for i, sum := range got {
		want := float32(0)
		for r := range 4 {
			for k := range 16 {
				want += left[i%32/4+r/2*8][k] * right[k][i%4*2+r%2]
			}
		}
		if sum != mmaChains*float32(rounds)*want {
			wrong++
		}
	}
	return wrong, nil
}

// sums runs what was recorded, and reads what it left in the workspace.
func (b *Backend) sums(n int) ([]float32, error) {
	host := b.memory.staging[:n*4]
	b.list.Download(host, b.memory.workspace)
	return floats(host), b.flush(false)
}

// TestPeakKernels: no read and no product is left out.
func TestPeakKernels(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		b := p.open(t)
		for _, n := range readLengths {
			wrong, err := wrongReads(b, n)
			require.NoError(t, err)
			require.Zero(t, wrong, "%d vectors", n)
		}
		rounds := []int{0, 1, 3}
		if p.gpu {
			rounds = append(rounds, mmaRounds)
		}
		for _, n := range rounds {
			wrong, err := wrongProducts(b, n)
			require.NoError(t, err)
			require.Zero(t, wrong, "%d rounds", n)
		}
		require.NoError(t, b.Close())
	})
}

// TestPeaks: the figures on the GPU; on the simulator the launches are right,
// and that it tells no time is said.
func TestPeaks(t *testing.T) {
	onEach(t, func(t *testing.T, p place) {
		b := p.open(t)
		if p.gpu {
			got, err := measurePeaks(b)
			require.NoError(t, err)
			t.Logf("%s: reads %.0f GB/s, once %.0f GB/s, over %s; %.1f TFLOP/s", b.Describe(), got[0]/1e9, got[1]/1e9, size(b.peaks.bytes), got[2]/1e12)
		} else {
			_, err := b.readBandwidth(1<<20, 1)
			require.ErrorContains(t, err, "tells no time")
			_, err = b.peakFLOPs(2)
			require.ErrorContains(t, err, "tells no time")
		}
		require.NoError(t, b.Close())
	})
}

// measurePeaks is what the suite finds: the best reads, one pass, arithmetic.
func measurePeaks(b interface {
	MeasureReadBandwidth() (bytesPerSecond float64, err error)
	SampleReadBandwidth() (bytesPerSecond float64, err error)
	MeasurePeakFLOPs() (perSecond float64, err error)
}) (all [3]float64, err error) {
	for i, f := range []func() (float64, error){b.MeasureReadBandwidth, b.SampleReadBandwidth, b.MeasurePeakFLOPs} {
		if all[i], err = f(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// TestPeaksArithmetic: on a device whose times are known, the figures are what
// follows from them; memory is allocated once, and a sample is one pass.
func TestPeaksArithmetic(t *testing.T) {
	for _, c := range []struct{ device, read int64 }{
		{1 << 30, 256 << 20}, {24 << 30, 768 << 20}, {128 << 30, 4 << 30},
	} {
		dev := fake.New()
		dev.Bytes = c.device
		launches := 0
		dev.Seconds = func(kernel string, _ driver.Command) float64 {
			require.True(t, strings.HasPrefix(kernel, "peak_"))
			launches++
			return []float64{3e-3, 1e-3, 2e-3}[launches%3]
		}
		b, err := New(dev)
		require.NoError(t, err)
		got, err := measurePeaks(b)
		require.NoError(t, err)
		require.Equal(t, float64(c.read)/1e-3, got[0])
		require.Equal(t, peakRuns+1+peakRuns, launches)
		require.Equal(t, 4096.0*8*8192*(2*132*8)/1e-3, got[2])

		runs, used := dev.Runs, b.memory.used
		launches = 1
		once, err := b.SampleReadBandwidth()
		require.NoError(t, err)
		require.Equal(t, float64(c.read)/2e-3, once)
		require.Equal(t, runs+1, dev.Runs)
		require.Equal(t, used, b.memory.used)
		require.NoError(t, b.Close())
		require.Empty(t, dev.Leaks())
		require.Empty(t, dev.Misuses)
	}
}

// TestPeaksBesideAModel: half of what a model leaves stays free, if that is
// enough; if nothing is left, the error says so, and the model goes on.
func TestPeaksBesideAModel(t *testing.T) {
	dev := fake.New()
	dev.Bytes = 64 << 30
	dev.Seconds = func(string, driver.Command) float64 { return 1e-3 }
	b, err := New(dev)
	require.NoError(t, err)
	leave := func(bytes int64) {
		_, err := b.alloc("weights", b.memory.left()-bytes, false)
		require.NoError(t, err)
	}
	leave(3 << 30)
	require.Equal(t, int64(3<<29), b.readBytes())
	leave(300 << 20)
	require.Equal(t, int64(leastRead), b.readBytes())
	leave(200 << 20)
	_, err = b.SampleReadBandwidth()
	require.ErrorIs(t, err, driver.ErrOutOfMemory)
	for _, want := range []string{"measure bandwidth", "needs 256.0 MiB", "64.00 GiB", "smaller"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = b.NewBuffer(1, 4)
	require.NoError(t, err)
	_, err = b.MeasurePeakFLOPs()
	require.NoError(t, err, "which needs no memory")
	require.NoError(t, b.Close())
	_, err = b.SampleReadBandwidth()
	require.ErrorContains(t, err, "closed")
	require.Empty(t, dev.Leaks())
	require.Empty(t, dev.Misuses)
}

// TestPeaksEveryFailure makes each call to the device fail in turn.
func TestPeaksEveryFailure(t *testing.T) {
	total := 0
	for at := 0; at <= total; at++ {
		dev := fake.New()
		dev.Seconds = func(string, driver.Command) float64 { return 1e-3 }
		dev.FailAt = at
		b, err := New(dev)
		if err == nil {
			opened := dev.Count()
			_, err = measurePeaks(b)
			if at == 0 {
				total = dev.Count()
				require.GreaterOrEqual(t, total-opened, 2*peakRuns+4, "allocation, fill and every launch")
			}
			err = errors.Join(err, b.Close())
		}
		if at == 0 {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, fake.ErrInjected, "call %d of %d failed", at, total)
		}
		require.Empty(t, dev.Leaks(), "after call %d failed", at)
		require.Empty(t, dev.Misuses, "after call %d failed", at)
	}
}
