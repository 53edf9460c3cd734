package validation

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

// checkMemory refuses a model that cannot fit beside what runs already, before
// the machine starts to swap or to kill. Activations, which are small, are not
// counted. It knows nothing where the free memory cannot be read.
func checkMemory(ck *model.Checkpoint, sequences, kvBlocks, kvBlockSize int, available int64) error {
	c := ck.Config
	kv := backend.KVSpec{
		Layers: c.Count(model.FullAttention), Blocks: kvBlocks, BlockSize: kvBlockSize,
		KVHeads: c.KVHeads, HeadDim: c.HeadDim, DType: ck.DType(),
	}
	weights := c.Params() * int64(ck.DType().Size())
	state := int64(kv.BytesPerToken())*int64(kvBlocks)*int64(kvBlockSize) +
		int64(cpu.DeltaBytes(c.Delta(sequences)))*int64(sequences)
	if need := weights + state; available > 0 && need > available {
		return fmt.Errorf("%s needs %.1f GB (weights %.1f, KV cache and state %.1f), but only %.1f GB of memory are available; take a smaller checkpoint, fewer rows or a shorter context",
			ck.Name, gigabytes(need), gigabytes(weights), gigabytes(state), gigabytes(available))
	}
	return nil
}

func gigabytes(bytes int64) float64 { return float64(bytes) / 1e9 }

// availableMemory is what this process may still take, 0 if that cannot be
// read: what the kernel calls available, or what the control group leaves.
func availableMemory() int64 {
	available := int64(0)
	if kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemAvailable"), " kB"), 10, 64); err == nil {
		available = kb << 10
	}
	limit, err := strconv.ParseInt(firstLine("/sys/fs/cgroup/memory.max"), 10, 64)
	used, err2 := strconv.ParseInt(firstLine("/sys/fs/cgroup/memory.current"), 10, 64)
	if err == nil && err2 == nil && available > 0 {
		available = min(available, max(1, limit-used))
	}
	return available
}
