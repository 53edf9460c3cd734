// Package cuda runs the model ops on a CUDA device.
//
// The backend is plain Go over [driver.Device], so that the same code runs on
// a GPU (tag cuda), on the simulator (package sim, tag cudasim) and on a fake.
// It does not fall back to the CPU: asked for a GPU means a GPU.
package cuda

import (
	"github.com/batchproof/batchproof/cuda/driver"
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
	if err != nil {
		return nil, err
	}
	return newBackend(dev)
}
