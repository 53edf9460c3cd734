package cuda

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

// layout is the step as the kernels see it: int32 arrays, on the host and in
// the same order on the device. The host writes at Begin; the copy is recorded,
// and reads the host when the list runs.
type layout struct {
	maxTokens, maxBlocks int
	host                 []byte
	device               driver.Ptr

	tokens  int // of the step begun last
	rows    int
	longest int // context of any row
	reach   int // that the ropes of the step's ops allow
	decode  int // tokens of rows that are no part of a prompt
	prompts int // prompt rows
	widest  int // tokens of a prompt row, at most
	chunked int // tokens that the gated delta rule takes by chunks
}

// The arrays that have an entry for each token; those of rows are as long.
const (
	aToken = iota
	aPosition
	aTokenRow
	aRowFirst
	aRowCount
	aRowChunked // of a row's tokens, those that the gated delta rule takes by chunks
	aRowSlot
	aRowBlocks // first of the row's KV blocks
	aKinds     // the tokens of decode rows, then the prompt rows
	aGather
	arrays
)

// array is one array on the device; the KV blocks follow the last.
func (l *layout) array(a int) driver.Ptr { return l.device.At(int64(a) * int64(l.maxTokens) * 4) }
func (l *layout) blocks() driver.Ptr     { return l.array(arrays) }

// promptRows are the numbers of the prompt rows, on the device.
func (l *layout) promptRows() driver.Ptr { return l.array(aKinds).At(int64(l.decode) * 4) }

func (l *layout) on(a int) []int32 {
	return ints(l.host)[a*l.maxTokens:][:l.maxTokens]
}

// growStep makes room for steps of so many tokens, over so many KV blocks.
func (b *Backend) growStep(tokens, blocks int) error {
	l := &b.step
	if tokens <= l.maxTokens && blocks <= l.maxBlocks {
		return nil
	}
	if err := b.flush(false); err != nil {
		return err
	}
	old := *l
	l.maxTokens, l.maxBlocks = max(tokens, l.maxTokens), max(blocks, l.maxBlocks)
	bytes := (arrays*l.maxTokens + roundUp(l.maxBlocks)) * 4
	var err error
	if l.host, err = b.memory.allocHost(b.dev, bytes); err != nil {
		l.host = old.host
		return b.fail(err)
	}
	// A step that was begun stays begun.
	for a := range arrays {
		copy(l.on(a), old.on(a))
	}
	copy(ints(l.host)[arrays*l.maxTokens:], ints(old.host)[arrays*old.maxTokens:])
	if err := b.memory.releaseHost(b.dev, old.host); err != nil {
		return b.fail(err)
	}
	if err := b.realloc(&l.device, "the layout of a step", int64(bytes)); err != nil {
		return err
	}
	b.list.Upload(l.device, l.host)
	b.inUse = true
	return nil
}

// roundUp is the next power of two: the number of KV blocks changes as
// sequences grow, but the copy of their numbers, and so the graph, seldom does.
func roundUp(n int) int {
	p := 64
	for p < n {
		p *= 2
	}
	return p
}

// Begin writes the layout and records its copy.
//
// Note: to prepare the next step while one is under way, as if no row would end, was
// rejected. What needs no token, from the scheduler's plan to this layout, is 0.3 µs
// of the way from a repeated step to the next at one row, 0.6 at 8 and 2.4 at 64 (two
// EPYC cores), where to read the weights alone takes a device hundreds; and every
// request that ends, joins, is cancelled or loses its KV blocks would undo it.
func (b *Backend) Begin(step *backend.Step) {
	b.meanwhile = step.Meanwhile
	if b.inUse {
		b.flush(false) // the host's layout is still to be read
	}
	if b.err != nil {
		return
	}
	l := &b.step
	n := len(step.Tokens)
	if n > l.maxTokens {
		broken("a step of %d tokens, buffers have %d", n, l.maxTokens)
	}
	l.tokens, l.rows, l.longest, l.reach = n, len(step.Rows), 0, math.MaxInt
	l.decode, l.prompts, l.widest, l.chunked = 0, 0, 0, 0
	copy(l.on(aToken), step.Tokens)
	positions, tokenRows := l.on(aPosition), l.on(aTokenRow)
	first, count, chunked, slot, rowBlocks := l.on(aRowFirst), l.on(aRowCount), l.on(aRowChunked), l.on(aRowSlot), l.on(aRowBlocks)
	blocks := ints(l.host)[arrays*l.maxTokens:]
	used := 0
	for i := range step.Rows {
		r := &step.Rows[i]
		first[i], count[i], slot[i], rowBlocks[i] = int32(r.First), int32(r.Count), int32(r.Slot), int32(used)
		for j := range r.Count {
			positions[r.First+j], tokenRows[r.First+j] = int32(r.Start+j), int32(i)
		}
		if !(used+len(r.Blocks) <= len(blocks)) {
			broken("a step over %d KV blocks, the cache has %d", used+len(r.Blocks), l.maxBlocks)
		}
		used += copy(blocks[used:], r.Blocks)
		l.longest = max(l.longest, r.Start+r.Count)
		chunked[i] = 0
		if r.Prompt {
			whole := r.Count / deltaChunk * deltaChunk
			chunked[i] = int32(whole)
			l.prompts, l.widest, l.chunked = l.prompts+1, max(l.widest, r.Count), l.chunked+whole
		} else {
			l.decode += r.Count
		}
	}
	kinds := l.on(aKinds)
	tokens, prompts := kinds[:0], kinds[l.decode:l.decode]
	for i := range step.Rows {
		r := &step.Rows[i]
		if r.Prompt {
			prompts = append(prompts, int32(i))
			continue
		}
		for j := range r.Count {
			tokens = append(tokens, int32(r.First+j))
		}
	}
	b.list.Upload(l.device, l.host[:(arrays*l.maxTokens+min(roundUp(used), len(blocks)))*4])
	b.inUse = true
}

// ---- running what was recorded

// form is all that the commands of a decode step follow from. What they copy from
// the host, the layout, the tokens to gather and what rows draw with, may change.
type form struct {
	caller       any
	rows, wanted int
	upload       uint64 // bytes
	draws        phases
	freed        int // times that memory was freed before
}

// graph is a decode step that the device holds ready.
type graph struct {
	form  form
	ready driver.Graph // zero: the form was seen once
	reach int          // of the contexts
}

// maxGraphWidth bounds the widths of decode steps that become graphs.
const maxGraphWidth = 64

func (g *graph) drop(dev driver.Device) error {
	if g.ready == 0 {
		return nil
	}
	ready := g.ready
	g.ready = 0
	return dev.FreeGraph(ready)
}

// Repeat begins a step, which can be a graph if every row decodes one token: the
// first time that a form comes it is noted, the second time captured, and from the
// third on nothing is recorded.
//
// Note: a graph for each form, rather than for each width the last form's, was rejected:
// between changes of a form lie many steps, and graphs take memory that nobody counts.
func (b *Backend) Repeat(caller any, step *backend.Step, want []int32, params []backend.Sampling) bool {
	b.Begin(step)
	l := &b.step
	if b.err != nil || len(b.list.Commands) > 1 || l.prompts > 0 || l.tokens > l.rows || l.rows > maxGraphWidth {
		return false
	}
	b.form = form{
		caller: caller, rows: l.rows, wanted: len(want), upload: b.list.Commands[0].Bytes,
		draws: phasesOf(params), freed: b.memory.freed,
	}
	g := &b.graphs[l.rows]
	if g.ready == 0 || g.form != b.form || l.longest > g.reach {
		return false
	}
	copy(l.on(aGather), want)
	b.list.Reset()
	b.again = g.ready
	return true
}

// flush runs the recorded list, or the graph that is to run again, and waits. While a
// step runs, the host does what it has to do meanwhile.
func (b *Backend) flush(step bool) (err error) {
	b.atRest()
	defer b.forget()
	if b.err != nil {
		return b.err
	}
	graph := b.again
	switch {
	case graph != 0:
		if !step || len(b.list.Commands) > 0 {
			broken("called before Sample in a step that is repeated")
		}
	case len(b.list.Commands) == 0:
		return nil
	case step && b.form.rows > 0:
		if graph, err = b.graph(); err != nil {
			return b.fail(err)
		}
	}
	switch {
	case step && b.meanwhile != nil:
		return b.overlap(graph)
	case graph != 0:
		err = b.dev.Launch(graph, nil)
	default:
		err = b.dev.Run(&b.list, nil)
	}
	if err != nil {
		return b.fail(err)
	}
	return nil
}

// overlap runs a graph, or the list if there is none, while the host does what it
// has to do meanwhile. It waits also when that panics.
func (b *Backend) overlap(graph driver.Graph) (err error) {
	meanwhile := b.meanwhile
	b.meanwhile = nil
	if err := b.dev.Start(&b.list, graph); err != nil {
		return b.fail(err)
	}
	b.away = true
	defer func() {
		b.away = false
		if e := b.dev.Wait(); e != nil {
			err = b.fail(e)
		}
	}()
	meanwhile()
	return nil
}

// forget empties the list, whether it ran or not.
func (b *Backend) forget() {
	b.list.Reset()
	b.inUse, b.gathered = false, false
	b.form, b.again = form{}, 0
}

// graph is the list as a graph; zero if its form came for the first time.
func (b *Backend) graph() (ready driver.Graph, err error) {
	g := &b.graphs[b.form.rows]
	if g.form != b.form {
		g.form, g.reach = b.form, b.step.reach
		return 0, g.drop(b.dev)
	}
	if g.ready == 0 {
		g.ready, err = b.dev.Capture(&b.list)
	}
	return g.ready, err
}

// fail keeps the first error; nothing runs after it.
func (b *Backend) fail(err error) error {
	if b.err == nil {
		b.err = fmt.Errorf("cuda: %w", err)
	}
	return b.err
}

func (b *Backend) launch(k int, grid driver.Dim, threads uint32, shared int, args ...uint64) {
	b.atRest()
	b.list.Launch(b.kernels[k], grid, driver.Dim{X: threads, Y: 1, Z: 1}, shared, args...)
}

func ptr(p driver.Ptr) uint64 { return uint64(p) }
func i32(v int) uint64        { return uint64(uint32(int32(v))) }
func i64(v int64) uint64      { return uint64(v) }
func f32(v float32) uint64    { return uint64(math.Float32bits(v)) }

func flag(v bool) uint64 {
	if v {
		return 1
	}
	return 0
}

func dim(x, y, z int) driver.Dim { return driver.Dim{X: uint32(x), Y: uint32(y), Z: uint32(z)} }

func ceil(a, b int) int { return (a + b - 1) / b }

// ---- sampling and reading

// maxShares is the most blocks that look for the largest logit of one row.
const maxShares = 64

type sampling struct {
	rows, width    int
	values, places driver.Ptr // of each share
	found          driver.Ptr // of each row: token, bits of its logit
	host           []byte     // copy of found
	row            []byte     // copy of one row of a buffer
	draws          draws
}

// growSample makes room for drawing from a buffer of that size, and for reading it.
func (b *Backend) growSample(rows, width int) (err error) {
	s := &b.sample
	if rows <= s.rows && width <= s.width {
		return nil
	}
	if err := b.flush(false); err != nil {
		return err
	}
	s.rows, s.width = max(rows, s.rows), max(width, s.width)
	shares := int64(s.rows) * maxShares * 4
	for _, a := range []struct {
		p     *driver.Ptr
		bytes int64
	}{{&s.values, shares}, {&s.places, shares}, {&s.found, int64(s.rows) * 8}} {
		if err := b.realloc(a.p, "sampling", a.bytes); err != nil {
			return err
		}
	}
	for _, h := range []*[]byte{&s.host, &s.row} {
		if err := b.memory.releaseHost(b.dev, *h); err != nil {
			return b.fail(err)
		}
		*h = nil
	}
	if s.host, err = b.memory.allocHost(b.dev, s.rows*8); err != nil {
		return b.fail(err)
	}
	if s.row, err = b.memory.allocHost(b.dev, s.width*4); err != nil {
		return b.fail(err)
	}
	return nil
}

// Sample finds the largest logits, and draws for the rows that are not greedy.
func (b *Backend) Sample(out []int32, logits backend.Buffer, params []backend.Sampling) error {
	if !(len(out) == len(params)) {
		broken("%d tokens to sample, %d parameters", len(out), len(params))
	}
	if len(out) == 0 {
		return b.flush(true)
	}
	l, s := logits.(*buffer), &b.sample
	if !(len(out) <= l.tokens) {
		broken("%d tokens to sample from %d rows", len(out), l.tokens)
	}
	b.atRest()
	wanted := phasesOf(params)
	if wanted[byIndex] {
		if !(l.width <= maxVocab) {
			broken("a vocabulary of %d, at most %d can be drawn from", l.width, maxVocab)
		}
		if err := b.growDraws(len(params)); err != nil {
			return err
		}
		s.draws.write(params, l.width)
	}
	if b.again == 0 {
		n := min(ceil(l.width, 2048), maxShares)
		b.launch(kArgmaxShares, dim(n, len(out), 1), 256, 0, ptr(s.values), ptr(s.places), ptr(l.ptr), i32(l.width), i32(l.width))
		b.launch(kArgmaxMerge, dim(len(out), 1, 1), 256, 0, ptr(s.found), ptr(s.values), ptr(s.places), i32(n))
		if wanted[byIndex] {
			b.draw(l, len(out), wanted)
		}
		b.list.Download(s.host[:len(out)*8], s.found)
	}
	if err := b.flush(true); err != nil {
		return err
	}
	found := ints(s.host)
	for i := range out {
		token, largest := found[2*i], math.Float32frombits(uint32(found[2*i+1]))
		switch {
		case token < 0:
			return fmt.Errorf("logit %d of row %d is NaN", -1-token, i)
		case math.IsInf(float64(largest), 0):
			return fmt.Errorf("the largest logit of row %d, %d, is %v", i, token, largest)
		}
		out[i] = token
	}
	return nil
}

// Read copies the first len(dst) values of a token's row.
func (b *Backend) Read(dst []float32, src backend.Buffer, token int) error {
	if !(len(dst) <= src.Width() && token >= 0 && token < src.Tokens()) {
		broken("read %d of %d columns of token %d", len(dst), src.Width(), token)
	}
	row, err := b.readRow(src.(*buffer), token, len(dst))
	if err != nil {
		return err
	}
	copy(dst, row)
	return nil
}

// readRow is valid until the next.
func (b *Backend) readRow(src *buffer, token, n int) ([]float32, error) {
	host := b.sample.row[:n*4]
	b.list.Download(host, src.ptr.At(int64(token)*int64(src.width)*4))
	if err := b.flush(false); err != nil {
		return nil, err
	}
	return floats(host), nil
}
