package weights

import (
	"fmt"
	"slices"
	"sync"

	"github.com/batchproof/batchproof/engine/backend"
)

// Random makes up the tensors of specs. Every element is a function of the
// seed, the tensor's name and the element's index alone: it is the same on
// every machine, in whatever order and on however many threads it is read.
//
// In 64-bit unsigned arithmetic, element i of a tensor is
//
//	key  = mix(seed + mix(FNV-1a(name)))
//	word = mix(key + (i/4+1)·0x9e3779b97f4a7c15)
//	u    = 16 bits of word, from bit 16·(i mod 4)
//
// where mix is the finalizer of SplitMix64 (see mix64), and then in float32,
// each operation rounded to nearest even and none fused,
//
//	value = low + float32(2u+1)·step,  step = (high−low)/2¹⁷
//
// rounded once more for a BF16 tensor. A backend that makes the values where
// it needs them finds key, low and step in the Source's method
//
//	Uniform() (key uint64, low, step float32)
//
// Note: four values to a word, because loading a large preset would otherwise
// be bound by the hash; a uniform distribution, because a normal one needs
// functions on which two machines differ.
func Random(seed uint64, specs []Spec) (Set, error) {
	set := &randomSet{tensors: make(map[string]*randomTensor, len(specs))}
	tables := map[[2]float32]func() *bf16Table{} // by low and step: many tensors share one
	for i := range specs {
		spec := &specs[i]
		n, err := elements(spec.Shape)
		if err != nil {
			return nil, fmt.Errorf("random weights: tensor %q: %w", spec.Name, err)
		}
		if set.tensors[spec.Name] != nil {
			return nil, fmt.Errorf("random weights: tensor %q: specified twice", spec.Name)
		}
		t := &randomTensor{
			spec: *spec, n: n,
			key:  mix64(seed + mix64(fnv1a(spec.Name))),
			low:  spec.Low,
			step: (spec.High - spec.Low) / (1 << 17),
		}
		if spec.DType == backend.BF16 {
			at := [2]float32{t.low, t.step}
			if tables[at] == nil {
				tables[at] = sync.OnceValue(func() *bf16Table { return newBF16Table(at[0], at[1]) })
			}
			t.table = tables[at]
		}
		set.names = append(set.names, spec.Name)
		set.tensors[spec.Name] = t
	}
	slices.Sort(set.names)
	return set, nil
}

type randomSet struct {
	names   []string
	tensors map[string]*randomTensor
}

func (s *randomSet) Names() []string { return s.names }

func (s *randomSet) Lookup(name string) (backend.Source, bool) {
	t, ok := s.tensors[name]
	if !ok {
		return nil, false // not a nil *randomTensor in an interface
	}
	return t, true
}

func (s *randomSet) Close() error { return nil }

type randomTensor struct {
	spec  Spec
	n     int
	key   uint64
	low   float32
	step  float32
	table func() *bf16Table // nil for F32
}

// bf16Table has the value of each u. Looking up is some three times as fast as
// computing and rounding.
type bf16Table [1 << 16]uint16

func newBF16Table(low, step float32) *bf16Table {
	table := new(bf16Table)
	for u := range table {
		table[u] = backend.EncodeBF16(uniform(uint16(u), low, step))
	}
	return table
}

func (t *randomTensor) Name() string         { return t.spec.Name }
func (t *randomTensor) Shape() []int         { return t.spec.Shape }
func (t *randomTensor) DType() backend.DType { return t.spec.DType }

// Uniform has the parameters of the formula at [Random].
func (t *randomTensor) Uniform() (key uint64, low, step float32) { return t.key, t.low, t.step }

func (t *randomTensor) ReadF32(dst []float32, offset int) error {
	if err := checkRange(t.spec.Name, t.n, len(dst), offset); err != nil {
		return err
	}
	if t.spec.DType == backend.BF16 {
		var buf [1024]uint16
		for len(dst) > 0 {
			h := buf[:min(len(buf), len(dst))]
			t.fill(h, offset)
			backend.WidenBF16(dst, h)
			dst, offset = dst[len(h):], offset+len(h)
		}
		return nil
	}
	for i := range dst {
		word, _ := t.word(offset+i, 1)
		dst[i] = uniform(uint16(word), t.low, t.step)
	}
	return nil
}

func (t *randomTensor) ReadBF16(dst []uint16, offset int) error {
	if err := checkBF16(t); err != nil {
		return err
	}
	if err := checkRange(t.spec.Name, t.n, len(dst), offset); err != nil {
		return err
	}
	t.fill(dst, offset)
	return nil
}

// fill is ReadBF16, checked.
func (t *randomTensor) fill(dst []uint16, offset int) {
	table := t.table()
	for len(dst) > 0 {
		word, n := t.word(offset, len(dst))
		if n == 4 {
			d := dst[:4]
			d[0] = table[uint16(word)]
			d[1] = table[uint16(word>>16)]
			d[2] = table[uint16(word>>32)]
			d[3] = table[uint16(word>>48)]
		} else { // a part of a word
			for j := range dst[:n] {
				dst[j] = table[uint16(word)]
				word >>= 16
			}
		}
		dst, offset = dst[n:], offset+n
	}
}

// word is the random bits of the elements from offset on, lowest first, and
// for how many of the want elements they last.
func (t *randomTensor) word(offset, want int) (word uint64, n int) {
	lane := offset % 4
	word = mix64(t.key + uint64(offset/4+1)*weyl)
	return word >> (16 * lane), min(4-lane, want)
}

// uniform is the value of u. The conversion of the product forbids the
// compiler to fuse it with the sum, which on some machines it would.
func uniform(u uint16, low, step float32) float32 {
	return low + float32(float32(2*int32(u)+1)*step)
}

// weyl is the step of SplitMix64's counter.
const weyl = 0x9e3779b97f4a7c15

// mix64 is the finalizer of SplitMix64.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func fnv1a(s string) uint64 {
	h := uint64(0xcbf29ce484222325)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return h
}
