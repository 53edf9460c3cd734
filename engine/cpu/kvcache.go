package cpu

import (
	"fmt"
	"unsafe"

	"github.com/batchproof/batchproof/engine/backend"
)

const (
	groupPositions = 16
	chunkDims      = 16
)

// kvCache holds groups of 16 positions: first the keys of all, then the values of
// all, each [layers][heads][KV blocks][groups of a KV block]. So what a head reads
// of a sequence is two long runs of memory, as far as its KV blocks are neighbours;
// a CPU that fetches by itself gets up to twice the bandwidth from them.
//
// Keys are transposed, [pairs of dims][16 positions][2], so that the scores of
// 16 positions grow side by side without sums across lanes. Values are
// [chunks of 16 dims][pairs of positions][16 dims][2]. In an f32 cache a pair
// is [2][16] instead. Either way a group is read strictly in order.
//
// A KV block of fewer than 16 positions has a group of its own, part of which
// stays empty, and so has the rest of a larger one. Empty lanes of values are
// zero, so that they count nothing with weight zero; those of keys are never
// looked at.
type kvCache struct {
	spec       backend.KVSpec
	pairs      int // of dims
	chunks     int
	perBlock   int // groups
	keyBytes   int // of a group
	valueBytes int
	data       unsafe.Pointer // keys
	valueData  unsafe.Pointer
	task       attentionTask
}

func (c *kvCache) Spec() backend.KVSpec { return c.spec }

// NewKVCache makes an empty cache, with what attention needs to work on it.
func (b *Backend) NewKVCache(s backend.KVSpec) (backend.KVCache, error) {
	if s.Layers < 1 || s.Blocks < 1 || s.BlockSize < 1 || s.KVHeads < 1 || s.HeadDim < 1 || s.DType > backend.BF16 {
		return nil, fmt.Errorf("cpu: a KV cache of %+v", s)
	}
	c := &kvCache{
		spec: s, pairs: (s.HeadDim + 1) / 2, chunks: (s.HeadDim + chunkDims - 1) / chunkDims,
		perBlock: (s.BlockSize + groupPositions - 1) / groupPositions,
	}
	c.keyBytes = c.pairs * 2 * groupPositions * s.DType.Size()
	c.valueBytes = c.chunks * chunkDims * groupPositions * s.DType.Size()
	groups := s.Layers * s.KVHeads * s.Blocks * c.perBlock
	var err error
	if c.data, err = b.mem.alloc(groups * (c.keyBytes + c.valueBytes)); err != nil {
		return nil, err
	}
	c.valueData = unsafe.Add(c.data, groups*c.keyBytes)
	return c, c.task.init(b, c)
}

// place is the group and the lane of a position of a sequence. Groups are
// counted over all KV blocks of the sequence.
func (c *kvCache) place(position int) (group, lane int) {
	block, in := position/c.spec.BlockSize, position%c.spec.BlockSize
	return block*c.perBlock + in/groupPositions, in % groupPositions
}

// lanes is the number of positions in a group.
func (c *kvCache) lanes(group int) int {
	return min(groupPositions, c.spec.BlockSize-group%c.perBlock*groupPositions)
}

// index is the place of a group of a sequence among all groups.
func (c *kvCache) index(layer, head int, blocks []int32, group int) int {
	return c.begin(layer, head, blocks[group/c.perBlock]) + group%c.perBlock
}

// begin is where a KV block begins among all groups.
func (c *kvCache) begin(layer, head int, block int32) int {
	return ((layer*c.spec.KVHeads+head)*c.spec.Blocks + int(block)) * c.perBlock
}

func (c *kvCache) keys(index int) *byte { return (*byte)(unsafe.Add(c.data, index*c.keyBytes)) }

func (c *kvCache) values(index int) *byte {
	return (*byte)(unsafe.Add(c.valueData, index*c.valueBytes))
}

func (c *kvCache) storeKey(keys *byte, lane int, x []float32) {
	if c.spec.DType == backend.F32 {
		dst := unsafe.Slice((*float32)(unsafe.Pointer(keys)), c.pairs*2*groupPositions)
		for d, v := range x {
			dst[d*groupPositions+lane] = v
		}
		return
	}
	whole := len(x) &^ 7
	if whole > 0 {
		c.task.k.storeKey((*byte)(unsafe.Add(unsafe.Pointer(keys), 4*lane)), &x[0], whole)
	}
	dst := unsafe.Slice((*uint32)(unsafe.Pointer(keys)), c.pairs*groupPositions)[whole/2*groupPositions:]
	x = x[whole:]
	for len(x) > 1 {
		dst[lane] = uint32(backend.EncodeBF16(x[0])) | uint32(backend.EncodeBF16(x[1]))<<16
		dst, x = dst[groupPositions:], x[2:]
	}
	if len(x) > 0 {
		dst[lane] = uint32(backend.EncodeBF16(x[0]))
	}
}

// storeValue stores that of a lane; in a bf16 cache that of an even lane with the one
// of the lane that follows, which is zero if it is yet to come.
func (c *kvCache) storeValue(values *byte, lane int, x, next []float32) {
	if c.spec.DType == backend.F32 {
		dst := unsafe.Slice((*float32)(unsafe.Pointer(values)), c.chunks*chunkDims*groupPositions)
		for d := 0; d < len(x); d += chunkDims {
			copy(dst[(d/chunkDims*groupPositions+lane)*chunkDims:], x[d:min(d+chunkDims, len(x))])
		}
		return
	}
	dst := (*byte)(unsafe.Add(unsafe.Pointer(values), lane/2*lineBytes))
	if lane%2 == 0 {
		c.task.k.zip(dst, &x[0], &next[0], len(x))
	} else {
		c.task.k.zipSecond(dst, &x[0], len(x))
	}
}

// clearValues empties the lanes of a group from one on.
func (c *kvCache) clearValues(values *byte, lane int) {
	if c.spec.DType == backend.F32 {
		dst := unsafe.Slice((*float32)(unsafe.Pointer(values)), c.chunks*chunkDims*groupPositions)
		for ; len(dst) > 0; dst = dst[groupPositions*chunkDims:] {
			clear(dst[lane*chunkDims : groupPositions*chunkDims])
		}
		return
	}
	dst := unsafe.Slice((*uint16)(unsafe.Pointer(values)), c.chunks*chunkDims*groupPositions)
	for ; len(dst) > 0; dst = dst[groupPositions*chunkDims:] {
		if lane%2 == 1 {
			for d := range chunkDims {
				dst[(lane/2*chunkDims+d)*2+1] = 0
			}
		}
		clear(dst[(lane+1)/2*chunkDims*2 : groupPositions*chunkDims])
	}
}
