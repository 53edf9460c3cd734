package cuda

import (
	"fmt"

	"github.com/batchproof/batchproof/cuda/monitor"
)

// watchDevice takes the source of the device's states, or the reason why there
// is none.
func (b *Backend) watchDevice(source monitor.Source, err error) {
	if err != nil {
		b.note = fmt.Sprint(err)
		return
	}
	b.watch = &monitor.Watch{Source: source}
}

// DeviceFacts are the device's state for people: model, driver, memory, clocks,
// power, ECC, what throttles it, other processes. Where the management library is
// missing, they are one note that says so.
func (b *Backend) DeviceFacts() map[string]string {
	if b.watch == nil {
		return map[string]string{"model": b.info.Name, "note": b.note}
	}
	state := b.watch.Source.Read()
	return state.Facts()
}

// QuietLimits are the largest readings of an undisturbed device.
func (b *Backend) QuietLimits() map[string]float64 { return new(monitor.Watch).Limits() }

// BeginQuiet begins to watch how disturbed the device is.
func (b *Backend) BeginQuiet() {
	if b.watch != nil {
		b.watch.Begin()
	}
}

// EndQuiet tells it; without the management library nothing.
func (b *Backend) EndQuiet() map[string]float64 {
	if b.watch == nil {
		return nil
	}
	return b.watch.End()
}
