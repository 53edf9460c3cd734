package cuda

import (
	"errors"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

func newBackend(dev driver.Device) (backend.Backend, error) {
	return nil, errors.Join(errors.New("cuda: the ops are not there yet"), dev.Close())
}
