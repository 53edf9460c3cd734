package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/engine/backend"
)

// matrix is a weight in the layout of kernels/device.cuh (bf16) or in padded
// rows (f32).
type matrix struct {
	form            backend.Form
	dtype           backend.DType
	outputs, inputs int
	ptr             driver.Ptr
	bytes           int64
}

func (m *matrix) Outputs() int { return m.outputs }
func (m *matrix) Inputs() int  { return m.inputs }
func (m *matrix) Bytes() int   { return int(m.bytes) }

// tiles is the number of groups of 16 packed rows.
func (m *matrix) tiles() int {
	if m.form == backend.GateUp {
		return (m.outputs + 7) / 8
	}
	return (m.outputs + 15) / 16
}

// uniform is a source whose values are made up: they are made where they are
// needed, instead of being copied.
type uniform interface {
	Uniform() (key uint64, low, step float32)
}

// NewMatrix packs the parts on the device.
func (b *Backend) NewMatrix(form backend.Form, parts ...backend.Source) (backend.Matrix, error) {
	m, err := newMatrix(form, parts)
	if err != nil {
		return nil, err
	}
	if m.ptr, err = b.alloc(parts[0].Name(), m.bytes, false); err != nil {
		return nil, err
	}
	b.list.Fill(m.ptr, 0, m.bytes) // what pads tiles is zero
	first := 0
	for i, p := range parts {
		kind := 0
		if form == backend.GateUp {
			kind = i + 1
		}
		if err := b.pack(m, p, first, kind); err != nil {
			return nil, errors.Join(err, b.memory.release(b.dev, m.ptr))
		}
		if form == backend.Stacked {
			first += p.Shape()[0]
		}
	}
	return m, nil
}

func newMatrix(form backend.Form, parts []backend.Source) (*matrix, error) {
	s, err := backend.ShapeOf(form, parts)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	m := &matrix{form: form, dtype: s.DType, outputs: s.Outputs, inputs: s.Inputs}
	if m.dtype == backend.BF16 {
		m.bytes = int64(m.tiles()) * int64((m.inputs+15)/16) * 512
	} else {
		m.bytes = int64(s.Rows) * int64((m.inputs+3)/4*4) * 4
	}
	return m, nil
}

// pack moves one part into a matrix, at its row first, chunk by chunk.
func (b *Backend) pack(m *matrix, p backend.Source, first, kind int) error {
	rows, per := p.Shape()[0], 256
	grid := func(rows int) driver.Dim {
		return driver.Dim{X: uint32((m.inputs + per - 1) / per), Y: uint32(rows), Z: 1}
	}
	if m.dtype == backend.BF16 {
		per = 512 // a thread packs two
	}
	if u, ok := p.(uniform); ok {
		key, low, step := u.Uniform()
		for row := 0; row < rows; row += 32768 {
			n := min(32768, rows-row)
			if m.dtype == backend.BF16 {
				b.launch(kRandomBF16, grid(n), 256, 0, ptr(m.ptr), key, f32(low), f32(step), i32(m.inputs), i32(first), i32(kind), i32(row))
			} else {
				b.launch(kRandomF32, grid(n), 256, 0, ptr(m.ptr), key, f32(low), f32(step), i32(m.inputs), i32(first), i32(kind), i32(row),
					flag(p.DType() == backend.BF16))
			}
		}
		return b.flush(false)
	}
	rowBytes := m.inputs * m.dtype.Size()
	chunk := min(stagingBytes/rowBytes, 32768)
	if chunk < 1 {
		return fmt.Errorf("cuda: %s: rows of %d bytes, at most %d", p.Name(), rowBytes, stagingBytes)
	}
	for row := 0; row < rows; row += chunk {
		n := min(chunk, rows-row)
		host := b.memory.staging[:n*rowBytes]
		var err error
		k := kPackF32
		if m.dtype == backend.BF16 {
			k = kPackBF16
			err = p.ReadBF16(unsafe.Slice((*uint16)(unsafe.Pointer(&host[0])), n*m.inputs), row*m.inputs)
		} else {
			err = p.ReadF32(unsafe.Slice((*float32)(unsafe.Pointer(&host[0])), n*m.inputs), row*m.inputs)
		}
		if err != nil {
			return err
		}
		b.list.Upload(b.memory.device, host)
		b.launch(k, grid(n), 256, 0, ptr(m.ptr), ptr(b.memory.device), i32(m.inputs), i32(first+row), i32(kind))
		if err := b.flush(false); err != nil {
			return err
		}
	}
	return nil
}

type vector struct {
	n   int
	ptr driver.Ptr
}

func (v *vector) Len() int { return v.n }

// NewVector copies a parameter, whatever its shape.
func (b *Backend) NewVector(src backend.Source) (backend.Vector, error) {
	n := 1
	for _, d := range src.Shape() {
		n *= d
	}
	x := make([]float32, n)
	if err := src.ReadF32(x, 0); err != nil {
		return nil, err
	}
	p, err := b.upload(src.Name(), x)
	return &vector{n: n, ptr: p}, err
}

// upload makes device memory with the given contents.
func (b *Backend) upload(what string, x []float32) (driver.Ptr, error) {
	p, err := b.alloc(what, int64(len(x))*4, false)
	if err != nil {
		return 0, err
	}
	for at := 0; at < len(x); {
		n := min(len(x)-at, stagingBytes/4)
		copy(floats(b.memory.staging), x[at:at+n])
		b.list.Upload(p.At(int64(at)*4), b.memory.staging[:n*4])
		if err := b.flush(false); err != nil {
			return 0, err
		}
		at += n
	}
	return p, nil
}

type rope struct {
	dims, positions int
	ptr             driver.Ptr // [position][cos, sin of each pair]
}

func (r *rope) Dims() int { return r.dims }

// NewRope tabulates angles on the host, in float64 from the float32 product.
func (b *Backend) NewRope(invFreq []float32, positions int) (backend.Rope, error) {
	if len(invFreq) == 0 || positions < 1 {
		return nil, fmt.Errorf("cuda: rope of %d frequencies, %d positions", len(invFreq), positions)
	}
	table := make([]float32, 0, positions*2*len(invFreq))
	for p := range positions {
		for _, f := range invFreq {
			sin, cos := math.Sincos(float64(float32(p) * f))
			table = append(table, float32(cos), float32(sin))
		}
	}
	p, err := b.upload("the rope table", table)
	return &rope{dims: 2 * len(invFreq), positions: positions, ptr: p}, err
}

func floats(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func ints(b []byte) []int32 {
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
