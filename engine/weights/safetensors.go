package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/edsrzf/mmap-go"

	"github.com/batchproof/batchproof/engine/backend"
)

// IndexName is the file that says which shard holds which tensor.
const IndexName = "model.safetensors.index.json"

// Open maps the weights of a checkpoint directory: the shards that its index
// lists, or else its only safetensors file. Names of shards are taken from the
// index and never made up.
//
// Tensors of dtype BF16, F16 (widened to F32, exactly) and F32 can be read.
// One of another dtype can be looked up, and fails at any read, even an empty one.
func Open(dir string) (Set, error) {
	index := filepath.Join(dir, IndexName)
	if _, err := os.Stat(index); err == nil {
		return openIndex(dir, index)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, err := listSafetensors(dir)
	if err != nil {
		return nil, err
	}
	switch len(files) {
	case 0:
		return nil, fmt.Errorf("%s: no safetensors file and no %s", dir, IndexName)
	case 1:
		return OpenFile(filepath.Join(dir, files[0]))
	}
	return nil, fmt.Errorf("%s: %d safetensors files (%s, …) but no %s to say which belong to the model",
		dir, len(files), files[0], IndexName)
}

func listSafetensors(dir string) ([]string, error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range all {
		if strings.HasSuffix(e.Name(), ".safetensors") {
			files = append(files, e.Name())
		}
	}
	return files, nil
}

// OpenFile maps one safetensors file.
func OpenFile(path string) (Set, error) {
	set := newFileSet()
	f, err := mapFile(path)
	if err != nil {
		return nil, err
	}
	if err := set.add(f); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return set.finish(), nil
}

// openIndex maps the shards of an index, and verifies that shards and index agree.
func openIndex(dir, index string) (Set, error) {
	shardOf, err := readIndex(index)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", index, err)
	}
	var shards []string
	for _, shard := range shardOf {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	shards = slices.Compact(shards)

	set := newFileSet()
	var errs problems
	for _, shard := range shards {
		f, err := mapFile(filepath.Join(dir, shard))
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: missing, %s lists it", filepath.Join(dir, shard), IndexName)
		}
		if err == nil {
			err = set.add(f)
		}
		errs.add(err)
	}
	if len(errs.list) == 0 {
		for name, t := range set.tensors {
			if want, ok := shardOf[name]; !ok {
				errs.add(fmt.Errorf("%s: tensor %q: not listed in %s", t.file.path, name, IndexName))
			} else if got := filepath.Base(t.file.path); got != want {
				errs.add(fmt.Errorf("%s: tensor %q: listed in shard %s, found in %s", index, name, want, got))
			}
		}
		for name, shard := range shardOf {
			if set.tensors[name] == nil {
				errs.add(fmt.Errorf("%s: tensor %q: listed in shard %s, which lacks it", index, name, shard))
			}
		}
	}
	if err := errs.err(); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return set.finish(), nil
}

// readIndex reads which shard holds which tensor.
func readIndex(path string) (map[string]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxHeaderBytes {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxHeaderBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseIndex(data)
}

func parseIndex(data []byte) (map[string]string, error) {
	w := newWalker(data)
	var shardOf map[string]string
	err := w.object("index", func(key string) error {
		if key != "weight_map" {
			return w.skip(fmt.Sprintf("index: %.64q", key)) // "metadata" is advisory
		}
		shardOf = map[string]string{}
		return w.object("weight_map", func(name string) error {
			what := fmt.Sprintf("weight_map: tensor %.64q", name)
			shard, err := w.string(what)
			if err != nil {
				return err
			}
			if shard == "" || shard == "." || shard == ".." || strings.ContainsAny(shard, "/\\:\x00") {
				return fmt.Errorf("%s: shard %.64q is not a plain file name", what, shard)
			}
			shardOf[name] = shard
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	if rest := strings.TrimSpace(string(data[w.dec.InputOffset():])); rest != "" {
		return nil, fmt.Errorf("index: followed by %.16q", rest)
	}
	if len(shardOf) == 0 {
		return nil, errors.New("index: weight_map is missing or empty")
	}
	return shardOf, nil
}

// mapped is one safetensors file in memory.
type mapped struct {
	path    string
	bytes   mmap.MMap
	entries []entry
	data    int // where the data begins
	closed  atomic.Bool
}

func mapFile(path string) (_ *mapped, err error) {
	defer func() {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", path, err)
		}
	}()
	info, err := os.Stat(path) // before opening, which would hang on a pipe
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if info.Size() < 8 {
		return nil, fmt.Errorf("%d bytes, a safetensors file has at least 8", info.Size())
	}
	if info.Size() > math.MaxInt {
		return nil, fmt.Errorf("%d bytes are more than this machine can map", info.Size())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping stays
	bytes, err := mmap.MapRegion(file, int(info.Size()), mmap.RDONLY, 0, 0)
	if err != nil {
		return nil, fmt.Errorf("map into memory: %w", err)
	}
	m := &mapped{path: path, bytes: bytes}
	if err := m.guard(m.parse); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

func (m *mapped) parse() error {
	n := binary.LittleEndian.Uint64(m.bytes)
	if n > maxHeaderBytes {
		return fmt.Errorf("header of %d bytes, at most %d are allowed: not a safetensors file?", n, maxHeaderBytes)
	}
	if int(n) > len(m.bytes)-8 {
		return fmt.Errorf("header of %d bytes in a file of %d: the file is truncated", n, len(m.bytes))
	}
	m.data = 8 + int(n)
	var err error
	m.entries, err = parseHeader(m.bytes[8:m.data], len(m.bytes)-m.data)
	return err
}

// guard runs f, which reads mapped memory. Where the file has shrunk since it
// was mapped, or its disk fails, the machine faults: that becomes an error.
func (m *mapped) guard(f func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = errors.New("cannot be read any more: the file was truncated, or its disk failed")
		default:
			panic(r)
		}
	}()
	return f()
}

func (m *mapped) close() error {
	if m.closed.Swap(true) {
		return nil
	}
	if err := m.bytes.Unmap(); err != nil {
		return fmt.Errorf("%s: unmap: %w", m.path, err)
	}
	return nil
}

// fileSet is the tensors of one or more mapped files.
type fileSet struct {
	files   []*mapped
	names   []string
	tensors map[string]*fileTensor
}

func newFileSet() *fileSet { return &fileSet{tensors: map[string]*fileTensor{}} }

// add takes over f, even if it fails.
func (s *fileSet) add(f *mapped) error {
	s.files = append(s.files, f)
	for _, e := range f.entries {
		if other := s.tensors[e.name]; other != nil {
			return fmt.Errorf("%s: tensor %q: also in shard %s", f.path, e.name, filepath.Base(other.file.path))
		}
		s.tensors[e.name] = &fileTensor{entry: e, file: f, bytes: f.bytes[f.data+e.begin : f.data+e.end]}
	}
	f.entries = nil
	return nil
}

func (s *fileSet) finish() *fileSet {
	for name := range s.tensors {
		s.names = append(s.names, name)
	}
	slices.Sort(s.names)
	return s
}

func (s *fileSet) Names() []string { return s.names }

func (s *fileSet) Lookup(name string) (backend.Source, bool) {
	t, ok := s.tensors[name]
	if !ok {
		return nil, false // not a nil *fileTensor in an interface
	}
	return t, true
}

func (s *fileSet) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}

// fileTensor is a tensor in mapped memory, at any alignment.
type fileTensor struct {
	entry
	file  *mapped
	bytes []byte
}

func (t *fileTensor) Name() string { return t.name }
func (t *fileTensor) Shape() []int { return t.shape }

func (t *fileTensor) DType() backend.DType {
	if t.dtype == "BF16" {
		return backend.BF16
	}
	return backend.F32
}

func (t *fileTensor) ReadF32(dst []float32, offset int) error {
	bad := -1
	err := t.read(len(dst), offset, func(src []byte) {
		switch t.dtype {
		case "BF16":
			bad = widenBF16(dst, src)
		case "F16":
			bad = widenF16(dst, src)
		case "F32":
			bad = copyF32(dst, src)
		}
	})
	return t.verify(err, bad, offset)
}

func (t *fileTensor) ReadBF16(dst []uint16, offset int) error {
	if t.dtype != "BF16" {
		return t.errorf("asked for as bf16, it is %s", t.dtype)
	}
	bad := -1
	err := t.read(len(dst), offset, func(src []byte) { bad = copyBF16(dst, src) })
	return t.verify(err, bad, offset)
}

// read calls f with the bytes of the elements [offset, offset+length).
func (t *fileTensor) read(length, offset int, f func(src []byte)) error {
	switch t.dtype {
	case "BF16", "F16", "F32":
	default:
		return t.errorf("dtype %s cannot be used as weights: BF16, F16 and F32 can", t.dtype)
	}
	if err := checkRange(t.name, t.elements, length, offset); err != nil {
		return fmt.Errorf("%s: %w", t.file.path, err)
	}
	if t.file.closed.Load() {
		return t.errorf("read after the checkpoint was closed")
	}
	size := dtypeBytes[t.dtype]
	err := t.file.guard(func() error { f(t.bytes[offset*size : (offset+length)*size]); return nil })
	if err != nil {
		return t.errorf("%w", err)
	}
	return nil
}

// verify adds the complaint about a value that is not finite, the bad-th read.
func (t *fileTensor) verify(err error, bad, offset int) error {
	if err != nil || bad < 0 {
		return err
	}
	at := offset + bad
	index := make([]int, len(t.shape))
	for d, rest := len(index)-1, at; d >= 0; d-- {
		index[d], rest = rest%t.shape[d], rest/t.shape[d]
	}
	size := dtypeBytes[t.dtype]
	return t.errorf("element %d, at %v of %v, is NaN or infinite (%s, bytes % x): the weights are damaged",
		at, index, t.shape, t.dtype, t.bytes[at*size:(at+1)*size])
}

func (t *fileTensor) errorf(format string, args ...any) error {
	return fmt.Errorf("%s: tensor %q: %w", t.file.path, t.name, fmt.Errorf(format, args...))
}

// The loops below read little-endian bytes at any alignment into dst, and
// return the index of the first value that is not finite, or −1.

func copyBF16(dst []uint16, src []byte) int {
	src = src[:2*len(dst)]
	for i := range dst {
		h := binary.LittleEndian.Uint16(src[2*i:])
		if h&0x7f80 == 0x7f80 {
			return i
		}
		dst[i] = h
	}
	return -1
}

func widenBF16(dst []float32, src []byte) int {
	src = src[:2*len(dst)]
	for i := range dst {
		h := binary.LittleEndian.Uint16(src[2*i:])
		if h&0x7f80 == 0x7f80 {
			return i
		}
		dst[i] = backend.DecodeBF16(h)
	}
	return -1
}

func widenF16(dst []float32, src []byte) int {
	src = src[:2*len(dst)]
	for i := range dst {
		h := binary.LittleEndian.Uint16(src[2*i:])
		if h&0x7c00 == 0x7c00 {
			return i
		}
		dst[i] = decodeF16(h)
	}
	return -1
}

func copyF32(dst []float32, src []byte) int {
	src = src[:4*len(dst)]
	for i := range dst {
		b := binary.LittleEndian.Uint32(src[4*i:])
		if b&0x7f800000 == 0x7f800000 {
			return i
		}
		dst[i] = math.Float32frombits(b)
	}
	return -1
}

// decodeF16 widens a finite IEEE half, exactly: its bits are put in place
// with a wrong exponent, which a product with a power of two then corrects,
// for subnormals too.
func decodeF16(h uint16) float32 {
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * 0x1p112
	return math.Float32frombits(math.Float32bits(f) | uint32(h&0x8000)<<16)
}
