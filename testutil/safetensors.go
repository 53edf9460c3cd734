package testutil

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
)

// Tensor is one tensor of a safetensors file to be written.
type Tensor struct {
	Name  string
	DType string // as the format spells it: "BF16", "F16", "F32", "I64", …
	Shape []int
	Data  []byte // little-endian
}

// NewTensor encodes values as BF16, F16 (both rounded to nearest even) or F32.
func NewTensor(name, dtype string, shape []int, values []float32) Tensor {
	t := Tensor{Name: name, DType: dtype, Shape: shape}
	for _, v := range values {
		switch dtype {
		case "BF16":
			t.Data = binary.LittleEndian.AppendUint16(t.Data, backend.EncodeBF16(v))
		case "F16":
			t.Data = binary.LittleEndian.AppendUint16(t.Data, EncodeF16(v))
		case "F32":
			t.Data = binary.LittleEndian.AppendUint32(t.Data, math.Float32bits(v))
		default:
			panic("testutil: no encoding for dtype " + dtype)
		}
	}
	return t
}

// EncodeSafetensors is a safetensors file of the tensors, in their order.
func EncodeSafetensors(tensors []Tensor) []byte {
	var header, data bytes.Buffer
	header.WriteString(`{"__metadata__":{"format":"pt"}`)
	for _, t := range tensors {
		name, err := json.Marshal(t.Name)
		if err != nil {
			panic(err)
		}
		shape, err := json.Marshal(append([]int{}, t.Shape...))
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&header, `,%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`,
			name, t.DType, shape, data.Len(), data.Len()+len(t.Data))
		data.Write(t.Data)
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	return RawSafetensors(header.String(), data.Bytes())
}

// RawSafetensors puts any header before any data, right or wrong.
func RawSafetensors(header string, data []byte) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), data...)
}

// WriteShards writes the tensors into shards of roughly equal count, with an
// index; one shard makes a file without. The names of the shards do not tell
// their number or order.
func WriteShards(t testing.TB, dir string, tensors []Tensor, shards int) {
	t.Helper()
	if shards <= 1 {
		WriteFile(t, filepath.Join(dir, "model.safetensors"), EncodeSafetensors(tensors))
		return
	}
	weightMap, total := map[string]string{}, 0
	for s := range shards {
		part := tensors[len(tensors)*s/shards : len(tensors)*(s+1)/shards]
		name := fmt.Sprintf("part-%c.safetensors", 'a'+(s*7)%26)
		WriteFile(t, filepath.Join(dir, name), EncodeSafetensors(part))
		for _, tensor := range part {
			weightMap[tensor.Name] = name
			total += len(tensor.Data)
		}
	}
	WriteJSON(t, filepath.Join(dir, "model.safetensors.index.json"),
		map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": weightMap})
}

// WriteFile writes a file, or fails the test.
func WriteFile(t testing.TB, path string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, data, 0o644))
}

// WriteJSON writes a value as JSON, or fails the test.
func WriteJSON(t testing.TB, path string, v any) {
	t.Helper()
	data, err := json.MarshalIndent(v, "", "  ")
	require.NoError(t, err)
	WriteFile(t, path, data)
}

// EncodeF16 rounds to the nearest IEEE half, ties to even.
func EncodeF16(f float32) uint16 {
	sign := uint16(math.Float32bits(f) >> 16 & 0x8000)
	a := math.Abs(float64(f))
	switch {
	case a != a:
		return sign | 0x7e00
	case a >= 65520: // halfway beyond the largest
		return sign | 0x7c00
	case a < 0x1p-14: // subnormal: a multiple of 2⁻²⁴
		return sign | uint16(math.RoundToEven(a*0x1p24))
	}
	exp := math.Ilogb(a)
	return sign + uint16(exp+14)<<10 + uint16(math.RoundToEven(math.Ldexp(a, 10-exp)))
}
