//go:build !cudasim || !linux || !cgo

package sim

import (
	"errors"

	"github.com/batchproof/batchproof/cuda/driver"
)

// Available says whether this build has the simulator.
const Available = false

// Open fails: this build has no simulator.
func Open(Options) (driver.Device, error) {
	return nil, errors.New("sim: built without the simulator: build on Linux with CGO_ENABLED=1, g++ and `-tags cudasim`")
}
