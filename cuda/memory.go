package cuda

import (
	"errors"
	"fmt"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

// memory keeps account of what the backend allocated.
//
// Everything is allocated while the model is loaded. Of the memory that is
// free at the start, a margin stays free: 2 % of the device, for the driver's
// own needs and for other processes on it.
type memory struct {
	free, total, margin int64
	used                int64
	freed               int // times: a graph from before one may use what was freed
	blocks              map[driver.Ptr]int64
	hosts               [][]byte

	staging   []byte // host side of loads and reads
	device    driver.Ptr
	workspace driver.Ptr // of one op: packed inputs, partial results
	workBytes int64
	extra     int64 // of the workspace, beyond the largest buffer
	perToken  int64 // least bytes of the workspace for each token of a step
}

const stagingBytes = 1 << 20

func (m *memory) open(dev driver.Device) (err error) {
	m.blocks = make(map[driver.Ptr]int64)
	if m.free, m.total, err = dev.Memory(); err != nil {
		return fmt.Errorf("ask for free memory: %w", err)
	}
	m.margin = m.total / 50
	m.extra = min(64<<20, m.total/64)
	if m.staging, err = m.allocHost(dev, stagingBytes); err != nil {
		return err
	}
	if m.device, err = m.alloc(dev, "staging", stagingBytes); err != nil {
		return err
	}
	m.workspace, err = m.alloc(dev, "the workspace", m.extra)
	m.workBytes = m.extra
	return err
}

// left is how much can still be allocated.
func (m *memory) left() int64 { return m.free - m.margin - m.used }

// alloc allocates, or says what for, how much, and what to do.
func (m *memory) alloc(dev driver.Device, what string, bytes int64) (driver.Ptr, error) {
	if bytes > m.left() {
		return 0, fmt.Errorf("%w: %s needs %s; of %s on the device %s were free at the start, %s are in use by this model and %s stay free as a margin: "+
			"choose a smaller checkpoint, fewer sequences or a shorter context, or end other processes on the device",
			driver.ErrOutOfMemory, what, size(bytes), size(m.total), size(m.free), size(m.used), size(m.margin))
	}
	p, err := dev.Alloc(max(bytes, 1))
	if err != nil {
		return 0, fmt.Errorf("allocate %s for %s, beside %s in use: %w", size(bytes), what, size(m.used), err)
	}
	m.blocks[p] = bytes
	m.used += bytes
	return p, nil
}

func (m *memory) release(dev driver.Device, p driver.Ptr) error {
	if p == 0 {
		return nil
	}
	m.freed++
	m.used -= m.blocks[p]
	delete(m.blocks, p)
	return dev.Free(p)
}

func (m *memory) allocHost(dev driver.Device, bytes int) ([]byte, error) {
	h, err := dev.AllocHost(bytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %s of page-locked host memory: %w", size(int64(bytes)), err)
	}
	m.hosts = append(m.hosts, h)
	return h, nil
}

func (m *memory) releaseHost(dev driver.Device, h []byte) error {
	for i := range m.hosts {
		if len(h) > 0 && &m.hosts[i][0] == &h[0] {
			m.freed++
			m.hosts = append(m.hosts[:i], m.hosts[i+1:]...)
			return dev.FreeHost(h)
		}
	}
	return nil
}

func (m *memory) close(dev driver.Device) error {
	var errs []error
	for p := range m.blocks {
		errs = append(errs, dev.Free(p))
	}
	for _, h := range m.hosts {
		errs = append(errs, dev.FreeHost(h))
	}
	m.blocks, m.hosts, m.used = nil, nil, 0
	return errors.Join(errs...)
}

func size(bytes int64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%d bytes", bytes)
}

// alloc is memory.alloc, filled with the bytes 0xff (NaN) if asked for.
func (b *Backend) alloc(what string, bytes int64, poison bool) (driver.Ptr, error) {
	b.atRest()
	if b.err != nil {
		return 0, b.err
	}
	p, err := b.memory.alloc(b.dev, what, bytes)
	if err == nil && poison {
		b.list.Fill(p, 0xff, bytes)
	}
	if err != nil {
		err = fmt.Errorf("cuda: %w", err)
	}
	return p, err
}

// realloc is alloc of what ops work with, in place of what was freed. Without it
// nothing can run, so its failure is sticky.
func (b *Backend) realloc(p *driver.Ptr, what string, bytes int64) (err error) {
	if err := b.memory.release(b.dev, *p); err != nil {
		return b.fail(err)
	}
	if *p, err = b.memory.alloc(b.dev, what, bytes); err != nil {
		return b.fail(err)
	}
	return nil
}

type buffer struct {
	tokens, width int
	ptr           driver.Ptr
}

func (b *buffer) Tokens() int { return b.tokens }
func (b *buffer) Width() int  { return b.width }

// NewBuffer makes a buffer full of NaN, and room for what ops over so many
// tokens need beside it.
func (b *Backend) NewBuffer(tokens, width int) (backend.Buffer, error) {
	if tokens < 1 || width < 1 {
		return nil, fmt.Errorf("cuda: a buffer of %d × %d", tokens, width)
	}
	p, err := b.alloc("a buffer of activations", int64(tokens)*int64(width)*4, true)
	if err != nil {
		return nil, err
	}
	if err := b.growStep(tokens, 0); err != nil {
		return nil, err
	}
	up := func(n, of int) int64 { return int64((n + of - 1) / of * of) }
	if err := b.growWorkspace(up(tokens, 8)*up(width, 16)*4 + b.memory.extra); err != nil {
		return nil, err
	}
	if err := b.growSample(tokens, width); err != nil {
		return nil, err
	}
	return &buffer{tokens: tokens, width: width, ptr: p}, nil
}

// growWorkspace makes room for what an op needs, and for the steps' tokens.
func (b *Backend) growWorkspace(need int64) error {
	m := &b.memory
	if need = max(need, m.perToken*int64(b.step.maxTokens)); need <= m.workBytes {
		return nil
	}
	if err := b.flush(false); err != nil {
		return err
	}
	m.workBytes = need
	return b.realloc(&m.workspace, "the workspace", need)
}

type kvCache struct {
	spec         backend.KVSpec
	keys, values driver.Ptr
	layer        int64 // bytes of the keys of one layer
}

func (c *kvCache) Spec() backend.KVSpec { return c.spec }

// NewKVCache makes a cache; its contents are undefined until written.
func (b *Backend) NewKVCache(s backend.KVSpec) (backend.KVCache, error) {
	if s.Layers < 1 || s.Blocks < 1 || s.BlockSize < 1 || s.KVHeads < 1 || s.HeadDim < 1 {
		return nil, fmt.Errorf("cuda: KV cache of %+v", s)
	}
	if s.HeadDim > maxHeadDim {
		return nil, fmt.Errorf("cuda: heads of %d dims, the kernels are made for up to %d", s.HeadDim, maxHeadDim)
	}
	c := &kvCache{spec: s, layer: int64(s.Blocks) * int64(s.BlockSize) * int64(s.KVHeads) * int64(s.HeadDim) * int64(s.DType.Size())}
	var err error
	if c.keys, err = b.alloc("the keys", c.layer*int64(s.Layers), false); err != nil {
		return nil, err
	}
	if c.values, err = b.alloc("the values", c.layer*int64(s.Layers), false); err != nil {
		return nil, err
	}
	return c, b.growStep(0, s.Blocks)
}

// deltaState is [slot][layer][value head][key dim][value dim] and [slot][layer][tap][channel].
type deltaState struct {
	spec           backend.DeltaSpec
	s, conv        driver.Ptr
	sSlot, convLen int64 // floats of one slot
}

func (s *deltaState) Spec() backend.DeltaSpec { return s.spec }

// NewDeltaState makes a state full of NaN: a slot must be reset before its use.
func (b *Backend) NewDeltaState(s backend.DeltaSpec) (backend.DeltaState, error) {
	if s.Layers < 1 || s.Slots < 1 || s.KeyHeads < 1 || s.ValueHeads < 1 || s.ValueHeads%s.KeyHeads != 0 ||
		s.KeyDim < 1 || s.ValueDim < 1 || s.ConvWidth < 1 {
		return nil, fmt.Errorf("cuda: delta state of %+v", s)
	}
	if s.KeyDim > maxKeyDim || s.ConvWidth > maxTaps {
		return nil, fmt.Errorf("cuda: delta heads of %d key dims and %d taps, the kernels are made for up to %d and %d", s.KeyDim, s.ConvWidth, maxKeyDim, maxTaps)
	}
	st := &deltaState{
		spec:    s,
		sSlot:   int64(s.Layers) * int64(s.ValueHeads*s.KeyDim*s.ValueDim),
		convLen: int64(s.Layers) * int64(s.ConvDim()*(s.ConvWidth-1)),
	}
	var err error
	if st.s, err = b.alloc("the recurrent state", st.sSlot*int64(s.Slots)*4, true); err != nil {
		return nil, err
	}
	if st.conv, err = b.alloc("the convolution state", st.convLen*int64(s.Slots)*4, true); err != nil {
		return nil, err
	}
	b.memory.perToken = max(b.memory.perToken, int64(deltaSpaceOf(s).floats())*4)
	return st, b.growWorkspace(0)
}

// ResetSlot zeroes one slot in all layers.
func (b *Backend) ResetSlot(state backend.DeltaState, slot int) {
	st := state.(*deltaState)
	if !(slot >= 0 && slot < st.spec.Slots) {
		broken("slot %d of %d", slot, st.spec.Slots)
	}
	b.atRest()
	b.list.Fill(st.s.At(int64(slot)*st.sSlot*4), 0, st.sSlot*4)
	b.list.Fill(st.conv.At(int64(slot)*st.convLen*4), 0, st.convLen*4)
}
