package cpu

import "github.com/batchproof/batchproof/engine/backend"

// Attention is not there yet.
func (b *Backend) Attention(dst, qkv backend.Buffer, a *backend.Attention, cache backend.KVCache) {
	panic("cpu: no attention yet")
}
