package weights_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/weights"
	"github.com/batchproof/batchproof/testutil"
)

// write puts a file into a directory of the test's own.
func write(t testing.TB, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	testutil.WriteFile(t, path, data)
	return path
}

func openFile(t testing.TB, path string) weights.Set {
	t.Helper()
	set, err := weights.OpenFile(path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, set.Close()) })
	return set
}

func get(t testing.TB, set weights.Set, name string) backend.Source {
	t.Helper()
	src, ok := set.Lookup(name)
	require.True(t, ok, name)
	return src
}

func ramp(n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i-n/2) / 4
	}
	return v
}

// What is written is read, in every dtype, at every offset and length, and at
// every alignment of data in the file.
func TestRoundTrip(t *testing.T) {
	const n = 37
	for pad := range 9 {
		for _, dtype := range []string{"BF16", "F16", "F32"} {
			tensor := testutil.NewTensor("w", dtype, []int{n, 1}, ramp(n))
			set := openFile(t, write(t, testutil.EncodeSafetensors([]testutil.Tensor{
				{Name: "before", DType: "U8", Shape: []int{pad}, Data: make([]byte, pad)}, tensor,
			})))
			src := get(t, set, "w")
			assert.Equal(t, "w", src.Name())
			assert.Equal(t, []int{n, 1}, src.Shape())
			for offset := 0; offset <= n; offset++ {
				for length := 0; length <= n-offset; length++ {
					f := make([]float32, length)
					require.NoError(t, src.ReadF32(f, offset))
					require.Equal(t, ramp(n)[offset:offset+length], f)
					h := make([]uint16, length)
					if dtype != "BF16" {
						require.ErrorContains(t, src.ReadBF16(h, offset), `tensor "w": asked for as bf16, it is `+dtype)
						continue
					}
					require.NoError(t, src.ReadBF16(h, offset))
					backend.WidenBF16(f, h)
					require.Equal(t, ramp(n)[offset:offset+length], f)
				}
			}
			require.ErrorContains(t, src.ReadF32(make([]float32, 2), n-1), "elements [36, 38) asked for, it has 37")
		}
	}
}

func TestSetLists(t *testing.T) {
	set := openFile(t, write(t, testutil.EncodeSafetensors([]testutil.Tensor{
		testutil.NewTensor("b", "F32", nil, []float32{3}), // rank 0: one element
		testutil.NewTensor("a", "BF16", []int{0, 4}, nil), // no elements
		testutil.NewTensor("é \"x\"", "F16", []int{1}, []float32{5}),
	})))
	assert.Equal(t, []string{"a", "b", "é \"x\""}, set.Names())
	_, ok := set.Lookup("c")
	assert.False(t, ok)
	one := make([]float32, 1)
	require.NoError(t, get(t, set, "b").ReadF32(one, 0))
	assert.Equal(t, []float32{3}, one)
	assert.Equal(t, backend.F32, get(t, set, "b").DType())
	assert.Equal(t, backend.BF16, get(t, set, "a").DType())
	assert.Equal(t, backend.F32, get(t, set, "é \"x\"").DType(), "F16 is widened")
	require.NoError(t, get(t, set, "a").ReadF32(nil, 0))
	require.Error(t, get(t, set, "a").ReadF32(one, 0))
	empty := openFile(t, write(t, testutil.RawSafetensors("{}", nil)))
	assert.Empty(t, empty.Names())
}

// Every finite half is widened exactly, and those that are not are refused.
func TestF16(t *testing.T) {
	for h := range 1 << 16 {
		exp, frac := h>>10&31, float64(h&0x3ff)
		if exp == 31 {
			continue
		}
		want := math.Ldexp(1+frac/1024, exp-15)
		if exp == 0 {
			want = math.Ldexp(frac/1024, -14)
		}
		if h>>15 == 1 {
			want = -want
		}
		got := weights.DecodeF16(uint16(h))
		require.Equal(t, math.Float32bits(float32(want)), math.Float32bits(got), "%#04x", h)
		require.Equal(t, uint16(h), testutil.EncodeF16(got), "%#04x", h)
	}
}

// NaN and infinities are found by every read that meets them, and by no other.
func TestNotFinite(t *testing.T) {
	for dtype, bits := range map[string][]uint32{
		"BF16": {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff},
		"F16":  {0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff},
		"F32":  {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff},
	} {
		for _, b := range bits {
			const n, at = 24, 17
			tensor := testutil.NewTensor("layer.weight", dtype, []int{2, 3, 4}, ramp(n))
			if size := len(tensor.Data) / n; size == 2 {
				binary.LittleEndian.PutUint16(tensor.Data[at*size:], uint16(b))
			} else {
				binary.LittleEndian.PutUint32(tensor.Data[at*size:], b)
			}
			path := write(t, testutil.EncodeSafetensors([]testutil.Tensor{tensor}))
			src := get(t, openFile(t, path), "layer.weight")
			want := path + `: tensor "layer.weight": element 17, at [1 1 1] of [2 3 4], is NaN or infinite (` + dtype
			for offset := range n {
				for length := 1; length <= n-offset; length++ {
					meets := offset <= at && at < offset+length
					errs := []error{src.ReadF32(make([]float32, length), offset)}
					if dtype == "BF16" {
						errs = append(errs, src.ReadBF16(make([]uint16, length), offset))
					}
					for _, err := range errs {
						if meets {
							require.ErrorContains(t, err, want)
						} else {
							require.NoError(t, err)
						}
					}
				}
			}
		}
	}
	// The largest finite values are no infinities.
	for dtype, big := range map[string]float32{"BF16": 0x1.fep127, "F16": 65504, "F32": math.MaxFloat32} {
		src := get(t, openFile(t, write(t, testutil.EncodeSafetensors([]testutil.Tensor{testutil.NewTensor("w", dtype, []int{1}, []float32{-big})}))), "w")
		one := make([]float32, 1)
		require.NoError(t, src.ReadF32(one, 0))
		assert.Equal(t, -big, one[0])
	}
}

func TestDTypeThatIsNoWeights(t *testing.T) {
	for dtype, size := range map[string]int{"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "I32": 4, "U32": 4, "I64": 8, "U64": 8, "F64": 8} {
		set := openFile(t, write(t, testutil.EncodeSafetensors([]testutil.Tensor{{Name: "w", DType: dtype, Shape: []int{2}, Data: make([]byte, 2*size)}})))
		want := `tensor "w": dtype ` + dtype + ` cannot be used as weights`
		assert.ErrorContains(t, get(t, set, "w").ReadF32(nil, 0), want, "an empty read tells")
		assert.ErrorContains(t, get(t, set, "w").ReadF32(make([]float32, 2), 0), want)
		assert.ErrorContains(t, get(t, set, "w").ReadBF16(make([]uint16, 2), 0), `"w"`)
	}
}

const oneF32 = `{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`

// badFiles has, for each rule of the format, files that break it.
var badFiles = []struct {
	rule, name string
	file       []byte
	want       string
}{
	{"1 length", "empty", nil, "0 bytes, a safetensors file has at least 8"},
	{"1 length", "seven bytes", make([]byte, 7), "7 bytes"},
	{"1 length", "header beyond the limit", binary.LittleEndian.AppendUint64(nil, 100_000_001), "header of 100000001 bytes, at most 100000000"},
	{"1 length", "header length overflows", binary.LittleEndian.AppendUint64(nil, math.MaxUint64), "header of 18446744073709551615 bytes"},
	{"1 length", "header cut off", testutil.RawSafetensors(oneF32, nil)[:30], "header of 54 bytes in a file of 30: the file is truncated"},
	{"2 text", "no header", testutil.RawSafetensors("", nil), "header begins with"},
	{"2 text", "not UTF-8", testutil.RawSafetensors("{\"\xff\":{}}", nil), "not valid UTF-8"},
	{"2 text", "space in front", testutil.RawSafetensors(" "+oneF32, make([]byte, 4)), `header begins with " {`},
	{"2 text", "byte order mark", testutil.RawSafetensors("\ufeff"+oneF32, make([]byte, 4)), "header begins with"},
	{"2 text", "a list", testutil.RawSafetensors("[]", nil), `header begins with "[]"`},
	{"2 text", "padded with zeros", testutil.RawSafetensors(oneF32+"\x00\x00", make([]byte, 4)), "only spaces are allowed"},
	{"2 text", "padded with newlines", testutil.RawSafetensors(oneF32+"  \n", make([]byte, 4)), `header is followed by "\n"`},
	{"2 text", "two objects", testutil.RawSafetensors(oneF32+"{}", make([]byte, 4)), `header is followed by "{}"`},
	{"2 text", "unfinished", testutil.RawSafetensors(oneF32[:len(oneF32)-1], make([]byte, 4)), "not valid JSON"},
	{"2 text", "no comma", testutil.RawSafetensors(`{"__metadata__":{}"b":{}}`, nil), "not valid JSON"},
	{"2 text", "comma at the end", testutil.RawSafetensors(`{"__metadata__":{},}`, nil), "not valid JSON"},
	{"3 duplicates", "tensor twice", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, make([]byte, 8)), `header: duplicate key "a"`},
	{"3 duplicates", "tensor twice, escaped", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"\u0061":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, make([]byte, 8)), `duplicate key "a"`},
	{"3 duplicates", "field twice", testutil.RawSafetensors(`{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), `tensor "a": duplicate key "dtype"`},
	{"3 duplicates", "metadata twice", testutil.RawSafetensors(`{"__metadata__":{},"__metadata__":{}}`, nil), `duplicate key "__metadata__"`},
	{"3 duplicates", "in metadata", testutil.RawSafetensors(`{"__metadata__":{"k":"1","k":"2"}}`, nil), `__metadata__: duplicate key "k"`},
	{"4 metadata", "number", testutil.RawSafetensors(`{"__metadata__":{"k":1}}`, nil), `__metadata__ "k": got 1, want a string`},
	{"4 metadata", "object", testutil.RawSafetensors(`{"__metadata__":{"k":{}}}`, nil), `__metadata__ "k": got '{', want a string`},
	{"4 metadata", "no object", testutil.RawSafetensors(`{"__metadata__":"x"}`, nil), `__metadata__: got "x", want '{'`},
	{"5 offsets", "first not at 0", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, make([]byte, 8)), `tensor "a": data_offsets [4, 8] leave a hole: the data begins at 0`},
	{"5 offsets", "hole", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}}`, make([]byte, 12)), `tensor "b": data_offsets [8, 12] leave a hole: tensor "a" ends at 4`},
	{"5 offsets", "overlap", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, make([]byte, 8)), `tensor "b": data_offsets [4, 8] overlap: tensor "a" ends at 8`},
	{"5 offsets", "same bytes twice", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), "overlap"},
	{"5 offsets", "end before begin", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}`, make([]byte, 4)), `tensor "a": data_offsets [4, 0] end before they begin`},
	{"5 offsets", "one number", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}`, make([]byte, 4)), "data_offsets has 1 numbers, want 2"},
	{"5 offsets", "three numbers", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}`, make([]byte, 4)), "data_offsets: more than 2 numbers"},
	{"5 offsets", "missing", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1]}}`, make([]byte, 4)), "data_offsets has 0 numbers"},
	{"6 sizes", "span too small", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, make([]byte, 4)), `tensor "a": data_offsets [0, 4] span 4 bytes, shape [2] of F32 takes 8`},
	{"6 sizes", "span too large", testutil.RawSafetensors(`{"a":{"dtype":"BF16","shape":[],"data_offsets":[0,4]}}`, make([]byte, 4)), "shape [] of BF16 takes 2"},
	{"6 sizes", "product overflows to the span", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, nil), "more than 2^48 elements"},
	{"6 sizes", "product with zero overflows", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}`, nil), "more than 2^48 elements"},
	{"7 end", "truncated", testutil.RawSafetensors(oneF32, make([]byte, 3)), `tensor "a": data_offsets [0, 4] reach beyond the 3 bytes of data: the file is truncated`},
	{"7 end", "too long", testutil.RawSafetensors(oneF32, make([]byte, 5)), "5 bytes of data, the tensors take 4"},
	{"7 end", "data without tensors", testutil.RawSafetensors("{}", make([]byte, 1)), "1 bytes of data, the tensors take 0"},
	{"8 dtype", "unknown", testutil.RawSafetensors(`{"a":{"dtype":"F128","shape":[1],"data_offsets":[0,16]}}`, make([]byte, 16)), `tensor "a": unknown dtype "F128"`},
	{"8 dtype", "less than a byte", testutil.RawSafetensors(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, make([]byte, 1)), `unknown dtype "F4"`},
	{"8 dtype", "lower case", testutil.RawSafetensors(`{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), `unknown dtype "f32"`},
	{"8 dtype", "missing", testutil.RawSafetensors(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), "dtype is missing"},
	{"8 dtype", "number", testutil.RawSafetensors(`{"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), "dtype: got 4, want a string"},
	{"limits", "rank", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}}`, make([]byte, 4)), `tensor "a": shape: more than 8 numbers`},
	{"limits", "name", testutil.RawSafetensors(`{"`+strings.Repeat("n", 1025)+`":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, make([]byte, 4)), "tensor name of 1025 bytes, at most 1024"},
	{"limits", "negative dim", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, make([]byte, 4)), "shape: -1 is not an integer in [0, 2^63)"},
	{"limits", "minus zero", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}`, make([]byte, 4)), "data_offsets: -0 is not"},
	{"limits", "fraction", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}`, make([]byte, 4)), "shape: 1.0 is not"},
	{"limits", "exponent", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1e0],"data_offsets":[0,4]}}`, make([]byte, 4)), "shape: 1e0 is not"},
	{"limits", "beyond int64", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551620]}}`, make([]byte, 4)), "data_offsets: 18446744073709551620 is not"},
	{"limits", "string for a number", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}`, make([]byte, 4)), `shape: got "1", want an integer`},
	{"limits", "no list", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":1,"data_offsets":[0,4]}}`, make([]byte, 4)), "shape: got 1, want '['"},
	{"limits", "shape missing", testutil.RawSafetensors(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, make([]byte, 4)), "shape is missing"},
	{"limits", "unknown field", testutil.RawSafetensors(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":2}}`, make([]byte, 4)), `tensor "a": unknown field "scale"`},
	{"limits", "tensor that is no object", testutil.RawSafetensors(`{"a":null}`, nil), `tensor "a": got null, want '{'`},
}

func TestRejected(t *testing.T) {
	for _, bad := range badFiles {
		t.Run(bad.rule+"/"+bad.name, func(t *testing.T) {
			path := write(t, bad.file)
			set, err := weights.OpenFile(path)
			require.Nil(t, set)
			require.ErrorContains(t, err, path+": ")
			require.ErrorContains(t, err, bad.want)
			require.NotContains(t, err.Error(), "\n", "one error")
		})
	}
	t.Run("limits/number of tensors", func(t *testing.T) {
		var header strings.Builder
		header.WriteByte('{')
		for i := range weights.MaxTensors + 1 {
			fmt.Fprintf(&header, `"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`, i)
		}
		_, err := weights.ParseHeader([]byte(header.String()[:header.Len()-1]+"}"), 0)
		require.ErrorContains(t, err, "more than 65536 tensors")
	})
}

func TestOpenFileThatIsNone(t *testing.T) {
	_, err := weights.OpenFile(t.TempDir())
	assert.ErrorContains(t, err, "not a regular file")
	_, err = weights.OpenFile(filepath.Join(t.TempDir(), "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// A file that shrinks while it is mapped gives an error, not a crash.
func TestTruncatedWhileOpen(t *testing.T) {
	const n = 1 << 16
	path := write(t, testutil.EncodeSafetensors([]testutil.Tensor{testutil.NewTensor("w", "F32", []int{n}, ramp(n))}))
	src := get(t, openFile(t, path), "w")
	dst := make([]float32, n)
	require.NoError(t, src.ReadF32(dst, 0))
	if err := os.Truncate(path, 8192); err != nil {
		t.Skipf("this system does not truncate a mapped file: %v", err)
	}
	assert.ErrorContains(t, src.ReadF32(dst, 0), path+`: tensor "w": cannot be read any more: the file was truncated`)
	assert.NoError(t, src.ReadF32(dst[:100], 0), "what is left")
}

func TestReadAfterClose(t *testing.T) {
	set, err := weights.OpenFile(write(t, testutil.EncodeSafetensors([]testutil.Tensor{testutil.NewTensor("w", "F32", []int{2}, ramp(2))})))
	require.NoError(t, err)
	src := get(t, set, "w")
	require.NoError(t, set.Close())
	require.NoError(t, set.Close(), "twice")
	assert.ErrorContains(t, src.ReadF32(make([]float32, 2), 0), `tensor "w": read after the checkpoint was closed`)
}

// shards is a checkpoint of three tensors in two files.
func shards(t testing.TB) (dir string, index map[string]any) {
	dir = t.TempDir()
	testutil.WriteShards(t, dir, []testutil.Tensor{
		testutil.NewTensor("a", "F32", []int{2}, []float32{1, 2}),
		testutil.NewTensor("b", "BF16", []int{2}, []float32{3, 4}),
		testutil.NewTensor("c", "F16", []int{2}, []float32{5, 6}),
	}, 2)
	data, err := os.ReadFile(filepath.Join(dir, weights.IndexName))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &index))
	return dir, index
}

func TestShards(t *testing.T) {
	dir, index := shards(t)
	set, err := weights.Open(dir)
	require.NoError(t, err)
	defer set.Close()
	assert.Equal(t, []string{"a", "b", "c"}, set.Names())
	for i, name := range set.Names() {
		v := make([]float32, 2)
		require.NoError(t, get(t, set, name).ReadF32(v, 0))
		assert.Equal(t, []float32{float32(2*i + 1), float32(2*i + 2)}, v)
	}

	// The index decides, not the names of the files: here is a single shard
	// with a name that no rule would give, and a file that is not in the index.
	all := map[string]any{}
	for name := range index["weight_map"].(map[string]any) {
		all[name] = "model.safetensors-00001-of-00001.safetensors"
	}
	other := t.TempDir()
	testutil.WriteFile(t, filepath.Join(other, "model.safetensors-00001-of-00001.safetensors"), testutil.EncodeSafetensors([]testutil.Tensor{
		testutil.NewTensor("a", "F32", nil, []float32{1}), testutil.NewTensor("b", "F32", nil, []float32{2}), testutil.NewTensor("c", "F32", nil, []float32{3}),
	}))
	testutil.WriteFile(t, filepath.Join(other, "consolidated.safetensors"), []byte("no such file"))
	testutil.WriteJSON(t, filepath.Join(other, weights.IndexName), map[string]any{"weight_map": all}) // without metadata
	single, err := weights.Open(other)
	require.NoError(t, err)
	defer single.Close()
	assert.Equal(t, []string{"a", "b", "c"}, single.Names())
}

func TestShardsThatDisagree(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, dir string, weightMap map[string]any)
		want   []string
	}{
		{"missing shard", func(t *testing.T, dir string, m map[string]any) {
			require.NoError(t, os.Remove(filepath.Join(dir, m["b"].(string))))
		}, []string{"part-h.safetensors: missing, model.safetensors.index.json lists it"}},
		{"all shards missing", func(t *testing.T, dir string, m map[string]any) {
			require.NoError(t, os.Remove(filepath.Join(dir, m["a"].(string))))
			require.NoError(t, os.Remove(filepath.Join(dir, m["b"].(string))))
		}, []string{"part-a.safetensors: missing", "part-h.safetensors: missing"}},
		{"corrupt shard", func(t *testing.T, dir string, m map[string]any) {
			testutil.WriteFile(t, filepath.Join(dir, m["b"].(string)), []byte("short"))
		}, []string{"part-h.safetensors: 5 bytes"}},
		{"tensor that no shard has", func(t *testing.T, _ string, m map[string]any) { m["d"] = m["a"] },
			[]string{`tensor "d": listed in shard part-a.safetensors, which lacks it`}},
		{"tensor that is not listed", func(t *testing.T, _ string, m map[string]any) { delete(m, "c") },
			[]string{`part-h.safetensors: tensor "c": not listed in model.safetensors.index.json`}},
		{"tensor in the other shard", func(t *testing.T, _ string, m map[string]any) { m["c"] = m["a"] },
			[]string{`tensor "c": listed in shard part-a.safetensors, found in part-h.safetensors`}},
		{"tensor in two shards", func(t *testing.T, dir string, m map[string]any) {
			testutil.WriteFile(t, filepath.Join(dir, m["b"].(string)), testutil.EncodeSafetensors([]testutil.Tensor{
				testutil.NewTensor("a", "F32", nil, []float32{1}), testutil.NewTensor("b", "F32", nil, []float32{1}), testutil.NewTensor("c", "F32", nil, []float32{1})}))
		}, []string{`part-h.safetensors: tensor "a": also in shard part-a.safetensors`}},
		{"path", func(t *testing.T, _ string, m map[string]any) { m["a"] = "../" + m["a"].(string) },
			[]string{`weight_map: tensor "a": shard "../part-a.safetensors" is not a plain file name`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, index := shards(t)
			tc.change(t, dir, index["weight_map"].(map[string]any))
			testutil.WriteJSON(t, filepath.Join(dir, weights.IndexName), index)
			_, err := weights.Open(dir)
			require.Error(t, err)
			for _, want := range append(tc.want, dir) {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

func TestIndexRejected(t *testing.T) {
	for name, tc := range map[string]struct{ index, want string }{
		"not JSON":       {"x", "not valid JSON"},
		"a list":         {"[]", "got '[', want '{'"},
		"unfinished":     {`{"weight_map":{"a":"f"}`, "not valid JSON"},
		"no map":         {`{"metadata":{"total_size":4}}`, "weight_map is missing or empty"},
		"empty map":      {`{"weight_map":{}}`, "weight_map is missing or empty"},
		"map twice":      {`{"weight_map":{"a":"f"},"weight_map":{"b":"f"}}`, `duplicate key "weight_map"`},
		"tensor twice":   {`{"weight_map":{"a":"f","a":"g"}}`, `weight_map: duplicate key "a"`},
		"number":         {`{"weight_map":{"a":1}}`, "got 1, want a string"},
		"more after it":  {`{"weight_map":{"a":"f"}}{}`, `followed by "{}"`},
		"bad metadata":   {`{"metadata":{,"weight_map":{"a":"f"}}`, "not valid JSON"},
		"no name":        {`{"weight_map":{"a":""}}`, `shard "" is not a plain file name`},
		"current folder": {`{"weight_map":{"a":"."}}`, `shard "." is not`},
		"folder above":   {`{"weight_map":{"a":".."}}`, `shard ".." is not`},
		"absolute":       {`{"weight_map":{"a":"/etc/passwd"}}`, `shard "/etc/passwd" is not`},
		"backslash":      {`{"weight_map":{"a":"..\\f"}}`, "is not a plain file name"},
		"drive":          {`{"weight_map":{"a":"c:f"}}`, "is not a plain file name"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			testutil.WriteFile(t, filepath.Join(dir, weights.IndexName), []byte(tc.index))
			_, err := weights.Open(dir)
			assert.ErrorContains(t, err, filepath.Join(dir, weights.IndexName)+": ")
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestOpenDirectory(t *testing.T) {
	dir := t.TempDir()
	_, err := weights.Open(dir)
	assert.ErrorContains(t, err, "no safetensors file and no model.safetensors.index.json")
	one := testutil.EncodeSafetensors([]testutil.Tensor{testutil.NewTensor("w", "F32", nil, []float32{1})})
	testutil.WriteFile(t, filepath.Join(dir, "some name.safetensors"), one)
	set, err := weights.Open(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"w"}, set.Names())
	require.NoError(t, set.Close())
	testutil.WriteFile(t, filepath.Join(dir, "another.safetensors"), one)
	_, err = weights.Open(dir)
	assert.ErrorContains(t, err, "2 safetensors files (another.safetensors, …) but no model.safetensors.index.json")
}

func TestProblemsAreBounded(t *testing.T) {
	var list []error
	assert.NoError(t, weights.Problems(list))
	for i := range 15 {
		list = append(list, fmt.Errorf("problem %c", 'z'-i))
	}
	err := weights.Problems(list)
	assert.Equal(t, 11, len(strings.Split(err.Error(), "\n")))
	assert.True(t, strings.HasPrefix(err.Error(), "problem l\nproblem m"), "%v", err)
	assert.ErrorContains(t, err, "and 5 more")
	assert.EqualError(t, list[0], "problem z", "the list is as it was")
}

// Whatever a header says, it is refused, or it is JSON whose tensors cover the data.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(oneF32), 4)
	f.Add([]byte("{}"), 0)
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,0],"data_offsets":[0,0]},"b":{"dtype":"I64","shape":[],"data_offsets":[0,8]}}   `), 8)
	for _, bad := range badFiles {
		if len(bad.file) > 8 {
			n := min(len(bad.file), 8+int(binary.LittleEndian.Uint64(bad.file)))
			f.Add(bad.file[8:n], len(bad.file)-n)
		}
	}
	f.Fuzz(func(t *testing.T, header []byte, dataBytes int) {
		names, err := weights.ParseHeader(header, dataBytes)
		if err != nil {
			return
		}
		require.True(t, json.Valid(header))
		require.True(t, utf8.Valid(header))
		var entries map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(header, &entries))
		sum := 0
		for _, name := range names {
			var entry struct {
				Offsets []int `json:"data_offsets"`
			}
			require.NoError(t, json.Unmarshal(entries[name], &entry))
			sum += entry.Offsets[1] - entry.Offsets[0]
		}
		require.Equal(t, dataBytes, sum)
	})
}

// Whatever a file holds, opening and reading all of it returns.
func FuzzOpen(f *testing.F) {
	f.Add(testutil.EncodeSafetensors([]testutil.Tensor{
		testutil.NewTensor("a", "F32", []int{2, 3}, ramp(6)), testutil.NewTensor("b", "BF16", []int{5}, ramp(5)),
		testutil.NewTensor("c", "F16", []int{1, 0}, nil), {Name: "d", DType: "I64", Shape: nil, Data: make([]byte, 8)},
	}))
	for _, bad := range badFiles {
		f.Add(bad.file)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "f.safetensors")
		testutil.WriteFile(t, path, data)
		set, err := weights.OpenFile(path)
		if err != nil {
			require.Nil(t, set)
			require.ErrorContains(t, err, path)
			return
		}
		for _, name := range set.Names() {
			src := get(t, set, name)
			n := 1
			for _, d := range src.Shape() {
				n *= d
			}
			require.LessOrEqual(t, n, len(data))
			f := make([]float32, n)
			err := src.ReadF32(f, 0)
			if err == nil {
				require.False(t, slices.ContainsFunc(f, func(v float32) bool { return v-v != 0 }), "not finite, and no error")
			}
			if src.DType() == backend.BF16 {
				h := make([]uint16, n)
				require.Equal(t, err == nil, src.ReadBF16(h, 0) == nil)
			}
		}
		require.NoError(t, set.Close())
	})
}

// Any index is refused, or names plain files.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"x"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		shardOf, err := weights.ParseIndex(data)
		if err != nil {
			return
		}
		require.True(t, json.Valid(data))
		require.NotEmpty(t, shardOf)
		for _, shard := range shardOf {
			require.Equal(t, shard, filepath.Base(shard))
			require.True(t, filepath.IsLocal(shard) && shard != ".", shard)
		}
	})
}

// Round trips of random sets of tensors.
func TestRoundTripRandom(t *testing.T) {
	const seed = 20240607
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 100 {
		var tensors []testutil.Tensor
		want := map[string][]float32{}
		for i := range rng.IntN(8) {
			shape, n := []int{}, 1
			for range rng.IntN(4) {
				shape = append(shape, rng.IntN(5))
				n *= shape[len(shape)-1]
			}
			dtype := []string{"BF16", "F16", "F32"}[rng.IntN(3)]
			v := make([]float32, n)
			for j := range v {
				v[j] = float32(rng.IntN(255)-127) / 16 // exact in all three
			}
			name := fmt.Sprintf("t%d", i)
			tensors, want[name] = append(tensors, testutil.NewTensor(name, dtype, shape, v)), v
		}
		set := openFile(t, write(t, testutil.EncodeSafetensors(tensors)))
		require.Len(t, set.Names(), len(tensors))
		for name, v := range want {
			got := make([]float32, len(v))
			require.NoError(t, get(t, set, name).ReadF32(got, 0))
			require.Equal(t, v, got)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	const n = 1 << 16
	for _, dtype := range []string{"BF16", "F16", "F32"} {
		set := openFile(b, write(b, testutil.EncodeSafetensors([]testutil.Tensor{testutil.NewTensor("w", dtype, []int{n}, ramp(n))})))
		src := get(b, set, "w")
		b.Run("dtype="+dtype+"/as=f32", func(b *testing.B) {
			dst := make([]float32, n)
			for b.Loop() {
				_ = src.ReadF32(dst, 0)
			}
			b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "values/s")
		})
		if dtype == "BF16" {
			b.Run("dtype=BF16/as=bf16", func(b *testing.B) {
				dst := make([]uint16, n)
				for b.Loop() {
					_ = src.ReadBF16(dst, 0)
				}
				b.ReportMetric(float64(b.N)*n/b.Elapsed().Seconds(), "values/s")
			})
		}
	}
}
