package model_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/testutil"
)

func open(t testing.TB, ref string, opts ...model.Option) *model.Checkpoint {
	t.Helper()
	ck, err := model.Open(ref, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ck.Close()) })
	return ck
}

// values reads a whole tensor.
func values(t testing.TB, ck *model.Checkpoint, name string) []float32 {
	t.Helper()
	src, ok := ck.Weights.Lookup(name)
	require.True(t, ok, name)
	n := 1
	for _, d := range src.Shape() {
		n *= d
	}
	dst := make([]float32, n)
	require.NoError(t, src.ReadF32(dst, 0))
	return dst
}

// same compares all that the model reads, up to the prefix of names.
func same(t testing.TB, want, got *model.Checkpoint) {
	t.Helper()
	for _, spec := range want.Config.Tensors() {
		name := strings.Replace(spec.Name, want.Config.Prefix, got.Config.Prefix, 1)
		require.True(t, slices.Equal(values(t, want, spec.Name), values(t, got, name)), name)
	}
}

func TestOpenRandomPresets(t *testing.T) {
	for _, name := range model.Presets() {
		t.Run(name, func(t *testing.T) {
			ck := open(t, "random:"+name)
			assert.Equal(t, "random:"+name, ck.Name)
			assert.Equal(t, backend.BF16, ck.DType())
			for _, spec := range ck.Config.Tensors() {
				src, ok := ck.Weights.Lookup(spec.Name)
				require.True(t, ok, spec.Name)
				require.Equal(t, spec.Shape, src.Shape(), spec.Name)
				require.Less(t, spec.Low, spec.High, spec.Name)
				dst := make([]float32, 1) // the last element, so that the whole range can be read
				n := 1
				for _, d := range spec.Shape {
					n *= d
				}
				require.NoError(t, src.ReadF32(dst, n-1), spec.Name)
			}
		})
	}
}

func TestOpenRandomSeed(t *testing.T) {
	const name = "model.layers.0.mlp.up_proj.weight"
	a, b := open(t, "random:llama-tiny"), open(t, "random:llama-tiny", model.WithSeed(model.DefaultSeed))
	c := open(t, "random:llama-tiny", model.WithSeed(2))
	assert.Equal(t, values(t, a, name), values(t, b, name))
	assert.NotEqual(t, values(t, a, name), values(t, c, name))
}

// The small presets for tests have what the large ones have.
func TestTinyPresets(t *testing.T) {
	q := open(t, "random:qwen3.5-tiny").Config
	assert.Greater(t, q.DeltaValueHeads, q.DeltaKeyHeads)
	assert.GreaterOrEqual(t, q.Count(model.FullAttention), 2)
	assert.Greater(t, q.Heads, q.KVHeads)
	assert.Less(t, q.RotaryDim, q.HeadDim)
	l := open(t, "random:llama-tiny").Config
	assert.NotNil(t, l.RopeScaling)
	assert.GreaterOrEqual(t, l.Count(model.FullAttention), 2)
	for _, c := range []*model.Config{q, l} {
		assert.Less(t, c.Params(), int64(1<<20))
	}
}

// A checkpoint in any layout, number of shards and dtype is what was written.
func TestOpenLayouts(t *testing.T) {
	for _, tc := range []struct {
		preset, dtype string
		flat          bool
		shards        int
	}{
		{"qwen3.5-tiny", "", false, 1},
		{"qwen3.5-tiny", "", true, 3},
		{"qwen3.5-tiny", "F32", false, 3},
		{"qwen3.5-tiny", "F32", true, 1},
		{"qwen3.5-tiny", "BF16", false, 3},
		{"qwen3.5-tiny", "F16", true, 3},
		{"llama-tiny", "", false, 1},
		{"llama-tiny", "BF16", false, 3},
		{"llama-tiny", "F16", false, 1},
		{"llama-tiny", "F32", false, 4},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			random := open(t, "random:"+tc.preset)
			c := testutil.NewCheckpoint(t, tc.preset, tc.dtype)
			want := *random.Config
			if tc.flat {
				c.Flatten()
				want.Prefix = "model."
			}
			c.Shards = tc.shards
			got := open(t, c.Write(t))
			assert.Equal(t, &want, got.Config)
			if tc.dtype == "F16" || tc.dtype == "F32" {
				assert.Equal(t, backend.F32, got.DType(), "F16 is widened")
			} else {
				assert.Equal(t, backend.BF16, got.DType())
			}
			for _, spec := range random.Config.Tensors() {
				name := strings.Replace(spec.Name, random.Config.Prefix, got.Config.Prefix, 1)
				a, b := values(t, random, spec.Name), values(t, got, name)
				for i := range a {
					size, tolerance := math.Abs(float64(a[i])), 0.0
					switch tc.dtype {
					case "BF16": // rounds A_log and norms
						tolerance = size / 256
					case "F16":
						tolerance = size/2048 + 0x1p-24
					}
					if diff := math.Abs(float64(a[i] - b[i])); !(diff <= tolerance) {
						require.Failf(t, "changed", "%s[%d]: %g became %g", name, i, a[i], b[i])
					}
				}
			}
		})
	}
}

// Where configuration and tensors have different layouts, the tensors' names decide.
func TestOpenPrefixOfTensors(t *testing.T) {
	random := open(t, "random:qwen3.5-tiny")
	nested, flat := testutil.NewCheckpoint(t, "qwen3.5-tiny", ""), testutil.NewCheckpoint(t, "qwen3.5-tiny", "").Flatten()
	nested.Tensors, flat.Tensors = flat.Tensors, nested.Tensors
	for c, prefix := range map[*testutil.Checkpoint]string{nested: "model.", flat: "model.language_model."} {
		ck := open(t, c.Write(t))
		assert.Equal(t, prefix, ck.Config.Prefix)
		same(t, random, ck)
	}
}

func TestOpenSkipsRotaryTables(t *testing.T) {
	c := testutil.NewCheckpoint(t, "llama-tiny", "")
	c.Tensors = append(c.Tensors, testutil.NewTensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", []int{2}, []float32{1, 2}))
	open(t, c.Write(t))
}

// An LM head beside tied embeddings is taken if it is a mere copy.
func TestOpenTiedHead(t *testing.T) {
	c := testutil.NewCheckpoint(t, "llama-tiny", "")
	head := *c.Tensor(t, "model.embed_tokens.weight")
	head.Name = "lm_head.weight"
	head.Data = append([]byte{}, head.Data...)
	c.Tensors = append(c.Tensors, head)
	open(t, c.Write(t))

	head.Data[2*70] ^= 1
	_, err := model.Open(c.Write(t))
	assert.ErrorContains(t, err, `tensor "lm_head.weight": beside tied embeddings (tie_word_embeddings is true) it must be the same: element 70 is`)

	c = testutil.NewCheckpoint(t, "llama-tiny", "")
	c.Tensors = append(c.Tensors, testutil.NewTensor("lm_head.weight", "F32", []int{1, 2}, []float32{1, 2}))
	_, err = model.Open(c.Write(t))
	assert.ErrorContains(t, err, `tensor "lm_head.weight": beside tied embeddings`)
	assert.ErrorContains(t, err, "shape is [1 2]")
}

func TestOpenGenerationConfig(t *testing.T) {
	c := testutil.NewCheckpoint(t, "llama-tiny", "")
	c.Config["eos_token_id"] = 7
	c.Generation = map[string]any{"eos_token_id": []int{9, 7, 3}, "temperature": 0.6}
	assert.Equal(t, []int32{7, 9, 3}, open(t, c.Write(t)).Config.EOS)
}

// Each kind of bad checkpoint gives one error that says what is wrong where.
func TestOpenBad(t *testing.T) {
	const up = "model.layers.1.mlp.up_proj.weight"
	for _, tc := range []struct {
		name   string
		preset string
		change func(t *testing.T, c *testutil.Checkpoint)
		want   []string
	}{
		{"missing tensor", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Remove(t, up) },
			[]string{`tensor "` + up + `": missing, want shape [160 64]`}},
		{"missing head", "qwen3.5-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Remove(t, "lm_head.weight") },
			[]string{`tensor "lm_head.weight": missing, want shape [512 64] (tie_word_embeddings is false)`}},
		{"extra tensor", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) {
			c.Tensors = append(c.Tensors, testutil.NewTensor("model.layers.0.self_attn.q_proj.bias", "F32", []int{2}, []float32{1, 2}))
		}, []string{`tensor "model.layers.0.self_attn.q_proj.bias": not part of the model, shape [2]`}},
		{"extra layer", "qwen3.5-tiny", func(t *testing.T, c *testutil.Checkpoint) {
			text := c.Text()
			text["num_hidden_layers"] = 7
			text["layer_types"] = text["layer_types"].([]string)[:7]
		}, []string{`tensor "model.language_model.layers.7.input_layernorm.weight": not part of the model`, "and 1 more"}},
		{"vision tensors in a llama", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) {
			c.Tensors = append(c.Tensors, testutil.NewTensor("model.visual.a", "F32", []int{1}, []float32{1}))
		}, []string{`tensor "model.visual.a": not part of the model`}},
		{"wrong shape", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Tensor(t, up).Shape = []int{64, 160} },
			[]string{`tensor "` + up + `": shape is [64 160], want [160 64]`}},
		{"squeezed convolution", "qwen3.5-tiny", func(t *testing.T, c *testutil.Checkpoint) {
			c.Tensor(t, "model.language_model.layers.0.linear_attn.conv1d.weight").Shape = []int{256, 4}
		}, []string{`conv1d.weight": shape is [256 4], want [256 1 4]`}},
		{"dtype that is no weight's", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Tensor(t, up).DType = "I16" },
			[]string{`tensor "` + up + `": dtype I16 cannot be used as weights: BF16, F16 and F32 can`, "model.safetensors"}},
		{"several problems", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) {
			c.Remove(t, up)
			c.Tensor(t, "model.norm.weight").Shape = []int{32, 2}
		}, []string{up, `"model.norm.weight": shape is [32 2], want [64]`}},
		{"another width", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Config["intermediate_size"] = 96 },
			[]string{`gate_proj.weight": shape is [160 64], want [96 64]`, "and 2 more"}},
		{"config", "llama-tiny", func(t *testing.T, c *testutil.Checkpoint) { c.Config["hidden_act"] = "gelu" },
			[]string{`config.json: hidden_act: "gelu" is not supported`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := testutil.NewCheckpoint(t, tc.preset, "")
			tc.change(t, c)
			dir := c.Write(t)
			_, err := model.Open(dir)
			require.Error(t, err)
			for _, want := range append(tc.want, "open checkpoint "+dir) {
				assert.ErrorContains(t, err, want)
			}
			assert.LessOrEqual(t, strings.Count(err.Error(), "\n"), 10, "bounded")
		})
	}
}

func TestOpenNotACheckpoint(t *testing.T) {
	_, err := model.Open("random:gpt-5")
	assert.ErrorContains(t, err, `unknown preset "gpt-5": there are llama-3.2-1b, `)
	for _, name := range model.Presets() {
		assert.ErrorContains(t, err, name)
	}
	_, err = model.Open(filepath.Join(t.TempDir(), "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "random:NAME")

	_, err = model.Open(t.TempDir())
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "config.json")

	dir := testutil.NewCheckpoint(t, "llama-tiny", "").Write(t)
	_, err = model.Open(filepath.Join(dir, "config.json"))
	assert.ErrorContains(t, err, "not a directory")

	require.NoError(t, os.Remove(filepath.Join(dir, "model.safetensors")))
	_, err = model.Open(dir)
	assert.ErrorContains(t, err, "no safetensors file")

	testutil.WriteFile(t, filepath.Join(dir, "config.json"), make([]byte, 17<<20))
	_, err = model.Open(dir)
	assert.ErrorContains(t, err, "at most 16777216 bytes")
}

// A value that is not finite is found when it is read, and named.
func TestNaNIsNamed(t *testing.T) {
	c := testutil.NewCheckpoint(t, "llama-tiny", "")
	const name = "model.layers.2.mlp.down_proj.weight" // [64 160]
	data := c.Tensor(t, name).Data
	data[2*325], data[2*325+1] = 0xc0, 0x7f
	ck := open(t, c.Write(t))
	src, _ := ck.Weights.Lookup(name)
	want := `tensor "model.layers.2.mlp.down_proj.weight": element 325, at [2 5] of [64 160], is NaN or infinite`
	assert.ErrorContains(t, src.ReadBF16(make([]uint16, 26), 300), want)
	assert.ErrorContains(t, src.ReadF32(make([]float32, 1), 325), want)
	assert.NoError(t, src.ReadF32(make([]float32, 25), 300))
	assert.NoError(t, src.ReadF32(make([]float32, 25), 326))
}
