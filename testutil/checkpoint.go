package testutil

import (
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/model"
)

// Checkpoint is a tiny checkpoint on its way to disk: change what the test is
// about, then Write it.
type Checkpoint struct {
	Config     map[string]any // config.json
	Generation map[string]any // generation_config.json; nil for none
	Tensors    []Tensor
	Shards     int // 1: no index
}

// NewCheckpoint is the random weights of a preset, in the layout of a
// published checkpoint: Qwen3.5 nested under text_config, with tensors of a
// vision tower and of multi-token prediction beside it, see [Checkpoint.Flatten].
// With dtype "" tensors have the dtypes of a published one, else the given one.
func NewCheckpoint(t testing.TB, preset, dtype string) *Checkpoint {
	t.Helper()
	ck, err := model.Open("random:" + preset)
	require.NoError(t, err)
	defer ck.Close()
	c := &Checkpoint{Config: ConfigJSON(ck.Config), Shards: 1}
	for _, name := range ck.Weights.Names() {
		src, _ := ck.Weights.Lookup(name)
		n := 1
		for _, d := range src.Shape() {
			n *= d
		}
		values := make([]float32, n)
		require.NoError(t, src.ReadF32(values, 0))
		as := dtype
		if as == "" {
			as = strings.ToUpper(src.DType().String())
		}
		c.Tensors = append(c.Tensors, NewTensor(name, as, src.Shape(), values))
	}
	if ck.Config.Arch == model.Qwen35 {
		// Whatever a reader skips must not be read either: these are not finite.
		nan := []byte{0xff, 0xff, 0xff, 0xff}
		c.Tensors = append(c.Tensors,
			Tensor{"model.visual.patch_embed.proj.weight", "BF16", []int{2, 1}, nan},
			Tensor{"mtp.fc.weight", "BF16", []int{1, 2}, nan},
			Tensor{"mtp.layers.0.count", "I32", []int{}, nan})
	}
	return c
}

// Flatten turns the nested layout into that of a causal language model alone.
func (c *Checkpoint) Flatten() *Checkpoint {
	text, ok := c.Config["text_config"].(map[string]any)
	if !ok {
		return c
	}
	flat := maps.Clone(text)
	flat["architectures"] = []string{"Qwen3_5ForCausalLM"}
	flat["tie_word_embeddings"] = c.Config["tie_word_embeddings"]
	c.Config = flat
	var kept []Tensor
	for _, t := range c.Tensors {
		if strings.HasPrefix(t.Name, "model.visual.") || strings.HasPrefix(t.Name, "mtp.") {
			continue
		}
		t.Name = strings.Replace(t.Name, "model.language_model.", "model.", 1)
		kept = append(kept, t)
	}
	c.Tensors = kept
	return c
}

// Text is the part of config.json that describes the decoder.
func (c *Checkpoint) Text() map[string]any {
	if text, ok := c.Config["text_config"].(map[string]any); ok {
		return text
	}
	return c.Config
}

// Tensor is the tensor of a name, to be changed.
func (c *Checkpoint) Tensor(t testing.TB, name string) *Tensor {
	t.Helper()
	for i := range c.Tensors {
		if c.Tensors[i].Name == name {
			return &c.Tensors[i]
		}
	}
	require.Fail(t, "no tensor "+name)
	return nil
}

// Remove drops a tensor.
func (c *Checkpoint) Remove(t testing.TB, name string) {
	t.Helper()
	c.Tensor(t, name) // it is there
	var kept []Tensor
	for _, tensor := range c.Tensors {
		if tensor.Name != name {
			kept = append(kept, tensor)
		}
	}
	c.Tensors = kept
}

// Write writes the checkpoint into a directory of the test's own.
func (c *Checkpoint) Write(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	WriteJSON(t, filepath.Join(dir, "config.json"), c.Config)
	if c.Generation != nil {
		WriteJSON(t, filepath.Join(dir, "generation_config.json"), c.Generation)
	}
	WriteShards(t, dir, c.Tensors, c.Shards)
	return dir
}

// ConfigJSON is the config.json of a configuration, as its architecture is published.
func ConfigJSON(c *model.Config) map[string]any {
	decoder := map[string]any{
		"hidden_size":             c.Hidden,
		"intermediate_size":       c.Intermediate,
		"vocab_size":              c.Vocab,
		"num_hidden_layers":       len(c.Layers),
		"num_attention_heads":     c.Heads,
		"num_key_value_heads":     c.KVHeads,
		"head_dim":                c.HeadDim,
		"rms_norm_eps":            c.NormEps,
		"hidden_act":              "silu",
		"attention_bias":          false,
		"max_position_embeddings": c.MaxPositions,
		"eos_token_id":            c.EOS,
		"torch_dtype":             "bfloat16",
	}
	if c.Arch == model.Llama {
		decoder["architectures"], decoder["model_type"] = []string{"LlamaForCausalLM"}, "llama"
		decoder["mlp_bias"], decoder["tie_word_embeddings"] = false, c.Tied
		decoder["rope_theta"], decoder["rope_scaling"] = c.RopeTheta, nil
		if s := c.RopeScaling; s != nil {
			decoder["rope_scaling"] = map[string]any{
				"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.LowFreqFactor,
				"high_freq_factor": s.HighFreqFactor, "original_max_position_embeddings": s.OriginalPosition,
			}
		}
		return decoder
	}
	kinds := make([]string, len(c.Layers))
	for i, k := range c.Layers {
		kinds[i] = map[model.LayerKind]string{model.FullAttention: "full_attention", model.LinearAttention: "linear_attention"}[k]
	}
	maps.Copy(decoder, map[string]any{
		"model_type":             "qwen3_5_text",
		"layer_types":            kinds,
		"attn_output_gate":       true,
		"linear_num_key_heads":   c.DeltaKeyHeads,
		"linear_num_value_heads": c.DeltaValueHeads,
		"linear_key_head_dim":    c.DeltaKeyDim,
		"linear_value_head_dim":  c.DeltaValueDim,
		"linear_conv_kernel_dim": c.ConvWidth,
		"mamba_ssm_dtype":        "float32",
		"rope_parameters": map[string]any{
			"rope_type": "default", "rope_theta": c.RopeTheta,
			"partial_rotary_factor": float64(c.RotaryDim) / float64(c.HeadDim),
			"mrope_section":         []int{11, 11, 10}, "mrope_interleaved": true,
		},
	})
	return map[string]any{
		"architectures":       []string{"Qwen3_5ForConditionalGeneration"},
		"model_type":          "qwen3_5",
		"tie_word_embeddings": c.Tied,
		"text_config":         decoder,
		"vision_config":       map[string]any{"model_type": "qwen3_5", "depth": 1},
	}
}
