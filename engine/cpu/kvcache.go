package cpu

import (
	"fmt"

	"github.com/batchproof/batchproof/engine/backend"
)

type kvCache struct{ spec backend.KVSpec }

func (s *kvCache) Spec() backend.KVSpec { return s.spec }

// NewKVCache is not there yet.
func (b *Backend) NewKVCache(spec backend.KVSpec) (backend.KVCache, error) {
	return nil, fmt.Errorf("cpu: no memory layout for %+v yet", spec)
}
