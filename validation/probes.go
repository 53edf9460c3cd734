package validation

import (
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
)

// Probes measure what the machine can do, in the session whose ratios they
// explain. A nil probe is one that the backend does not offer.
type Probes struct {
	ReadBandwidth   func() (float64, error)  // streaming reads, bytes/s, the best of several
	SampleBandwidth func() (float64, error)  // the same, one of them: quick
	PeakFLOPs       func() (float64, error)  // multiply-adds count as two
	Watchers        []Watcher                // of the machine's quiet
	Busy            func(wait func()) string // see Machine.Busy
}

// ProbesOf finds the probes of a backend.
func ProbesOf(b backend.Backend) Probes {
	p := Probes{Watchers: []Watcher{NewMachine()}, Busy: NewMachine().Busy}
	if m, ok := b.(interface {
		MeasureReadBandwidth() (bytesPerSecond float64, err error)
	}); ok {
		p.ReadBandwidth, p.SampleBandwidth = m.MeasureReadBandwidth, m.MeasureReadBandwidth
	}
	if m, ok := b.(interface {
		SampleReadBandwidth() (bytesPerSecond float64, err error)
	}); ok {
		p.SampleBandwidth = m.SampleReadBandwidth
	}
	if m, ok := b.(interface {
		MeasurePeakFLOPs() (perSecond float64, err error)
	}); ok {
		p.PeakFLOPs = m.MeasurePeakFLOPs
	}
	if d, ok := b.(DeviceWatcher); ok {
		p.Watchers = append(p.Watchers, device{d})
	}
	return p
}

// ModelCost is the least bytes and arithmetic of a checkpoint's steps.
func ModelCost(ck *model.Checkpoint) StepCost {
	element := ck.DType().Size()
	size := model.ElementBytes{Weight: element, KV: element, Recurrent: 4, Conv: 4} // as the backends keep them
	return func(rows, tokens, context int) model.Cost {
		step := make([]model.CostRow, rows)
		for i := range step {
			step[i] = model.CostRow{Tokens: tokens, Context: context, Sample: true}
		}
		return ck.Config.StepCost(step, size)
	}
}
