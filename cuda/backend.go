// Package cuda runs the model ops on a CUDA device.
//
// The backend is plain Go over [driver.Device], so that the same code runs on
// a GPU (tag cuda), on the simulator (package sim, tag cudasim) and on a fake.
// Ops record launches; Sample and Read send them off and wait. A decode step
// of a form that was seen before is one graph launch, with nothing recorded
// ([Backend.Repeat]). While the device computes a step, Sample
// has the host do what backend.Step.Meanwhile says, and only then waits.
//
// It does not fall back to the CPU: asked for a GPU means a GPU. Tokens are
// drawn on the device, whatever the sampling.
package cuda

import (
	"errors"
	"fmt"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/kernels"
	"github.com/batchproof/batchproof/cuda/monitor"
	"github.com/batchproof/batchproof/engine/backend"
)

// Options choose a device. The zero value is the first one.
type Options struct {
	Device int // ordinal among the visible devices
}

// Open makes a backend on a real device. Without one, or in a build without
// the tag cuda, it returns one error that says what is missing.
func Open(opt Options) (backend.Backend, error) {
	dev, err := driver.Open(opt.Device)
	//lint:ignore SA4023 without the tag cuda it always fails
	if err != nil {
		return nil, err
	}
	b, err := New(dev)
	if err != nil {
		return nil, err // not a nil *Backend in an interface
	}
	b.watchDevice(monitor.Open(b.info.Bus))
	return b, nil
}

// What the PTX needs.
const (
	minDriver = 12000 // CUDA 12.0, that is driver R525
	minMajor  = 8     // compute capability 8.0: bf16 mma, cp.async
)

// Room for a step; larger buffers and caches make more.
const (
	initialTokens = 256
	initialBlocks = 1024
)

// Limits of the kernels.
const (
	maxHeadDim = 256
	maxKeyDim  = 128
	maxTaps    = 8
)

// Backend is the ops on one device. Not safe for concurrent use.
type Backend struct {
	dev     driver.Device
	info    driver.Info
	kernels [kernelCount]driver.Kernel

	memory    memory
	list      driver.List  // recorded, not yet run
	inUse     bool         // the list reads the host's layout of the step
	gathered  bool         // and the host's indices of a gather
	form      form         // of the step that was begun, if it can be a graph; else zero
	again     driver.Graph // that is to run for it; zero: the list
	meanwhile func()       // of the step that was begun
	away      bool         // the host does it: the device reads the host's memory
	err       error        // sticky
	step      layout
	graphs    [maxGraphWidth + 1]graph
	sample    sampling
	peaks     peaks
	watch     *monitor.Watch // nil without NVML
	note      string         // and why
}

var _ backend.Repeater = (*Backend)(nil)

// New makes a backend on a device, which it owns from now on: also when it
// fails, the device is closed.
func New(dev driver.Device) (*Backend, error) {
	b := &Backend{dev: dev, info: dev.Info()}
	if err := b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("cuda: %w", err), b.Close())
	}
	return b, nil
}

func (b *Backend) open() error {
	i := b.info
	if i.Driver < minDriver {
		return fmt.Errorf("the driver supports CUDA %d.%d, the kernels need 12.0: install driver R525 or newer", i.Driver/1000, i.Driver%1000/10)
	}
	if i.Major < minMajor {
		return fmt.Errorf("%s has compute capability %d.%d, the kernels need 8.0 (Ampere) or higher: choose another device", i.Name, i.Major, i.Minor)
	}
	for _, image := range kernels.Images(i.Major, i.Minor) {
		if err := b.dev.Load(image.Name, image.PTX); err != nil {
			return fmt.Errorf("load kernels: %w", err)
		}
	}
	for k := range b.kernels {
		var err error
		if b.kernels[k], err = b.dev.Kernel(kernelNames[k]); err != nil {
			return fmt.Errorf("load kernels: %w", err)
		}
	}
	if err := b.memory.open(b.dev); err != nil {
		return err
	}
	return b.growStep(initialTokens, initialBlocks)
}

// Name is "cuda".
func (b *Backend) Name() string { return "cuda" }

// Describe names the device and its driver.
func (b *Backend) Describe() string { return "cuda: " + b.info.String() }

// Close frees everything on the device, and the device.
func (b *Backend) Close() error {
	if b.dev == nil {
		return nil
	}
	b.atRest()
	var errs []error
	for i := range b.graphs {
		errs = append(errs, b.graphs[i].drop(b.dev))
	}
	if b.watch != nil {
		errs = append(errs, b.watch.Source.Close())
		b.watch = nil
	}
	errs = append(errs, b.memory.close(b.dev), b.dev.Close())
	b.dev = nil
	if b.err == nil {
		b.err = errors.New("cuda: the backend is closed")
	}
	return errors.Join(errs...)
}

// atRest panics if a step is under way, whose host memory and list must not change.
func (b *Backend) atRest() {
	if b.away {
		broken("used while the device computes a step")
	}
}

// broken panics on an argument that only a defect of the caller can produce.
func broken(format string, args ...any) { panic("cuda: " + fmt.Sprintf(format, args...)) }

// The kernels, in the order of kernelNames.
const (
	kPackBF16 = iota
	kRandomBF16
	kPackF32
	kRandomF32
	kEmbedBF16
	kEmbedF32
	kGather
	kSplitRows
	kNormRows
	kDecode11
	kDecode21
	kDecode41
	kDecode12
	kDecode22
	kPrefill
	kLinearF32
	kPrepareBF16
	kPrepareF32
	kWalkBF16
	kWalkF32
	kSplitsBF16
	kSplitsF32
	kMerge
	kTiles64
	kTiles128
	kTiles256
	kDeltaConv
	kDeltaRule
	kDeltaConvRule
	kDeltaPrepare
	kDeltaChunks
	kDeltaNorm
	kArgmaxShares
	kArgmaxMerge
	kDrawFirst
	kDrawNext
	kDrawLast
	kPeakRead
	kPeakMMA
	kernelCount
)

var kernelNames = [kernelCount]string{
	"pack_bf16", "random_bf16", "pack_f32", "random_f32",
	"embed_bf16", "embed_f32", "gather", "split_rows", "norm_rows",
	"linear_decode_1_1", "linear_decode_2_1", "linear_decode_4_1", "linear_decode_1_2", "linear_decode_2_2",
	"linear_prefill", "linear_f32",
	"attention_prepare_bf16", "attention_prepare_f32", "attention_walk_bf16", "attention_walk_f32",
	"attention_splits_bf16", "attention_splits_f32", "attention_merge",
	"attention_tiles_64", "attention_tiles_128", "attention_tiles_256",
	"delta_conv", "delta_rule", "delta_conv_rule", "delta_prepare", "delta_chunks", "delta_norm",
	"argmax_shares", "argmax_merge", "draw_first", "draw_next", "draw_last",
	"peak_read", "peak_mma",
}
