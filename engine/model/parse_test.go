package model_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/testutil"
)

// published are config.json files as published, short of what does not matter.
var published = map[string]string{
	"llama-3.2-1b": `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,
		"bos_token_id":128000,"eos_token_id":128001,"head_dim":64,"hidden_act":"silu","hidden_size":2048,
		"initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,
		"model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,
		"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
		"low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
		"rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":128256}`,
	"smollm2-135m": `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":0,"eos_token_id":0,
		"hidden_act":"silu","hidden_size":576,"intermediate_size":1536,"is_llama_config":true,
		"max_position_embeddings":8192,"mlp_bias":false,"model_type":"llama","num_attention_heads":9,
		"num_hidden_layers":30,"num_key_value_heads":3,"pretraining_tp":1,"rms_norm_eps":1e-05,
		"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,"tie_word_embeddings":true,"vocab_size":49152}`,
	"qwen3.5-0.8b": qwen("1024", "3584", "24", "8", "2", "16", "true"),
	"qwen3.5-4b":   qwen("2560", "9216", "32", "16", "4", "32", "true"),
	"qwen3.5-27b":  qwen("5120", "17408", "64", "24", "4", "48", "false"),
}

func qwen(hidden, intermediate, layers, heads, kvHeads, valueHeads, tied string) string {
	return fmt.Sprintf(`{"architectures":["Qwen3_5ForConditionalGeneration"],"model_type":"qwen3_5","image_token_id":248056,
		"tie_word_embeddings":%s,"text_config":{"attention_bias":false,"attention_dropout":0.0,"attn_output_gate":true,
		"dtype":"bfloat16","eos_token_id":248044,"full_attention_interval":4,"head_dim":256,"hidden_act":"silu",
		"hidden_size":%s,"intermediate_size":%s,"linear_conv_kernel_dim":4,"linear_key_head_dim":128,
		"linear_num_key_heads":16,"linear_num_value_heads":%s,"linear_value_head_dim":128,
		"max_position_embeddings":262144,"mtp_num_hidden_layers":1,"model_type":"qwen3_5_text","num_attention_heads":%s,
		"num_hidden_layers":%s,"num_key_value_heads":%s,"output_gate_type":"swish","rms_norm_eps":1e-06,"vocab_size":248320,
		"mamba_ssm_dtype":"float32","rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],
		"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25}},
		"vision_config":{"model_type":"qwen3_5","hidden_size":768}}`,
		tied, hidden, intermediate, valueHeads, heads, layers, kvHeads)
}

// The presets are what the published files say.
func TestParsePublished(t *testing.T) {
	for name, config := range published {
		want, err := model.Preset(name)
		require.NoError(t, err)
		got, err := model.ParseConfig([]byte(config), nil)
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
}

// config is a valid one with changes: nil deletes a field.
func config(t testing.TB, preset string, changes map[string]any) []byte {
	t.Helper()
	c, err := model.Preset(preset)
	require.NoError(t, err)
	m := testutil.ConfigJSON(c)
	text := m
	if inner, ok := m["text_config"].(map[string]any); ok {
		text = inner
	}
	for key, v := range changes {
		at := text
		if root, isRoot := cutRoot(key); isRoot {
			at, key = m, root
		}
		if v == nil {
			delete(at, key)
		} else {
			at[key] = v
		}
	}
	data, err := json.Marshal(m)
	require.NoError(t, err)
	return data
}

func cutRoot(key string) (string, bool) {
	if len(key) > 5 && key[:5] == "root." {
		return key[5:], true
	}
	return key, false
}

type fields = map[string]any

// What may be written in more than one way means the same.
func TestParseVariants(t *testing.T) {
	llama3 := fields{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}
	legacy := maps.Clone(llama3)
	delete(legacy, "rope_type")
	legacy["type"] = "llama3"
	nested := maps.Clone(llama3)
	nested["rope_theta"] = 1e4
	for _, tc := range []struct {
		name    string
		preset  string
		changes fields
	}{
		{"rope in rope_parameters", "llama-tiny", fields{"rope_theta": nil, "rope_scaling": nil, "rope_parameters": nested}},
		{"rope in both, agreeing", "llama-tiny", fields{"rope_parameters": nested}},
		{"type for rope_type", "llama-tiny", fields{"rope_scaling": legacy}},
		{"default theta", "llama-tiny", fields{"rope_theta": nil}},
		{"derived head_dim", "llama-tiny", fields{"head_dim": nil}},
		{"null head_dim", "llama-tiny", fields{"head_dim": json.RawMessage("null")}},
		{"eos list", "llama-tiny", fields{"eos_token_id": []int{0}}},
		{"no dtype", "llama-tiny", fields{"torch_dtype": nil}},
		{"no architectures", "llama-tiny", fields{"architectures": nil}},
		{"no model_type", "llama-tiny", fields{"model_type": nil}},
		{"layer_types in a llama", "llama-tiny", fields{"layer_types": []string{"full_attention", "full_attention", "full_attention", "full_attention"}}},
		{"window that is off", "llama-tiny", fields{"sliding_window": 4096, "use_sliding_window": false}},
		{"layers by interval", "qwen3.5-tiny", fields{"layer_types": nil, "full_attention_interval": 4}},
		{"layers by the default interval", "qwen3.5-tiny", fields{"layer_types": nil}},
		{"explicit layers win", "qwen3.5-tiny", fields{"full_attention_interval": 2}},
		{"partial factor beside", "qwen3.5-tiny", fields{"rope_parameters": fields{"rope_theta": 1e7}, "partial_rotary_factor": 0.25}},
		{"default partial factor", "qwen3.5-tiny", fields{"rope_parameters": fields{"rope_theta": 1e7}}},
		{"the gate's keys are ignored", "qwen3.5-tiny", fields{"attn_output_gate": nil, "output_gate_type": "swish"}},
		{"tied in text_config alone", "qwen3.5-tiny", fields{"root.tie_word_embeddings": nil, "tie_word_embeddings": false}},
		{"untied by default", "qwen3.5-tiny", fields{"root.tie_word_embeddings": nil}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want, err := model.Preset(tc.preset)
			require.NoError(t, err)
			got, err := model.ParseConfig(config(t, tc.preset, tc.changes), nil)
			require.NoError(t, err)
			assert.Equal(t, want, got)
		})
	}
}

func TestParseValuesThatDiffer(t *testing.T) {
	parse := func(preset string, changes fields, generation string) *model.Config {
		var gen []byte
		if generation != "" {
			gen = []byte(generation)
		}
		c, err := model.ParseConfig(config(t, preset, changes), gen)
		require.NoError(t, err)
		return c
	}
	assert.Equal(t, 1, parse("qwen3.5-tiny", fields{"layer_types": nil, "full_attention_interval": 5}, "").Count(model.FullAttention))
	assert.Equal(t, 16, parse("qwen3.5-tiny", fields{"partial_rotary_factor": 0.5, "rope_parameters": nil}, "").RotaryDim)
	assert.Equal(t, 4, parse("llama-tiny", fields{"num_key_value_heads": nil}, "").KVHeads)
	assert.Equal(t, 24, parse("llama-tiny", fields{"head_dim": 24}, "").RotaryDim)
	assert.Nil(t, parse("llama-tiny", fields{"rope_scaling": fields{"rope_type": "default"}}, "").RopeScaling)
	assert.True(t, parse("qwen3.5-tiny", fields{"root.tie_word_embeddings": true, "tie_word_embeddings": false}, "").Tied)
	assert.Empty(t, parse("llama-tiny", fields{"eos_token_id": nil}, "").EOS)
	assert.Equal(t, []int32{5}, parse("llama-tiny", fields{"eos_token_id": nil}, `{"eos_token_id":5}`).EOS)
	assert.Equal(t, []int32{5, 2, 9}, parse("llama-tiny", fields{"eos_token_id": []int{5, 2}}, `{"eos_token_id":[2,9,5]}`).EOS)
	assert.Equal(t, []int32{0, 4}, parse("qwen3.5-tiny", fields{"root.eos_token_id": 4}, `{}`).EOS)
}

// What is not supported, or cannot be, is refused by name.
func TestParseRefused(t *testing.T) {
	for _, tc := range []struct {
		name    string
		preset  string
		changes fields
		want    string
	}{
		{"mixture of experts", "qwen3.5-tiny", fields{"root.model_type": "qwen3_5_moe", "root.architectures": []string{"Qwen3_5MoeForConditionalGeneration"}}, `"qwen3_5_moe" is not supported (mixtures of experts are not supported yet): supported are llama`},
		{"experts in the decoder", "qwen3.5-tiny", fields{"num_experts": 256}, "config.json: text_config.num_experts: 256: mixtures of experts"},
		{"local experts", "llama-tiny", fields{"num_local_experts": 8}, "num_local_experts"},
		{"decoder of another kind", "qwen3.5-tiny", fields{"model_type": "qwen3_5_moe_text"}, `text_config.model_type: "qwen3_5_moe_text" is not supported`},
		{"qwen3", "llama-tiny", fields{"model_type": "qwen3", "architectures": []string{"Qwen3ForCausalLM"}}, "Qwen3 is not Qwen3.5, and not supported yet"},
		{"qwen3 next", "llama-tiny", fields{"model_type": "qwen3_next", "architectures": []string{"Qwen3NextForCausalLM"}}, `"qwen3_next" is not supported`},
		{"mistral", "llama-tiny", fields{"model_type": "mistral", "architectures": []string{"MistralForCausalLM"}}, `architecture "MistralForCausalLM", model_type "mistral" is not supported`},
		{"a classifier", "llama-tiny", fields{"architectures": []string{"LlamaForSequenceClassification"}}, `"LlamaForSequenceClassification"`},
		{"nothing named", "llama-tiny", fields{"architectures": nil, "model_type": nil}, "neither model_type nor architectures"},
		{"no decoder", "qwen3.5-tiny", fields{"root.text_config": nil}, "text_config: missing"},
		{"decoder that is no object", "qwen3.5-tiny", fields{"root.text_config": 3}, "text_config: want an object, got 3"},
		{"quantised", "llama-tiny", fields{"quantization_config": fields{"quant_method": "awq"}}, `quantised weights (quant_method "awq")`},
		{"quantised at the root", "qwen3.5-tiny", fields{"root.quantization_config": fields{"quant_method": "fp8"}}, `config.json: quantization_config: quantised weights (quant_method "fp8")`},
		{"dtype", "llama-tiny", fields{"torch_dtype": "float8_e4m3fn"}, `torch_dtype: "float8_e4m3fn"`},
		{"dtype, newer key", "llama-tiny", fields{"dtype": "int8"}, `dtype: "int8"`},
		{"activation", "llama-tiny", fields{"hidden_act": "gelu_new"}, `hidden_act: "gelu_new"`},
		{"attention bias", "llama-tiny", fields{"attention_bias": true}, "attention_bias: true"},
		{"mlp bias", "llama-tiny", fields{"mlp_bias": true}, "mlp_bias: true"},
		{"window", "llama-tiny", fields{"sliding_window": 4096}, "sliding_window"},
		{"window that is on", "llama-tiny", fields{"sliding_window": 4096, "use_sliding_window": true}, "sliding_window"},
		{"window in a layer", "llama-tiny", fields{"layer_types": []string{"full_attention", "sliding_attention", "full_attention", "full_attention"}}, `layer_types: entry 1, "sliding_attention"`},
		{"linear attention in a llama", "llama-tiny", fields{"layer_types": []string{"linear_attention", "full_attention", "full_attention", "full_attention"}}, `layer_types: entry 0, "linear_attention"`},
		{"too few layer types", "qwen3.5-tiny", fields{"layer_types": []string{"full_attention"}}, "layer_types: 1 entries, num_hidden_layers is 8"},
		{"yarn", "llama-tiny", fields{"rope_scaling": fields{"rope_type": "yarn", "factor": 4}}, `rope_scaling.rope_type: "yarn" is not supported: default and llama3 are`},
		{"linear rope", "llama-tiny", fields{"rope_scaling": fields{"type": "linear", "factor": 4}}, `"linear"`},
		{"dynamic rope", "llama-tiny", fields{"rope_parameters": fields{"rope_type": "dynamic"}, "rope_scaling": nil}, `rope_parameters.rope_type: "dynamic"`},
		{"rope by layer kind", "llama-tiny", fields{"rope_parameters": fields{"full_attention": fields{"rope_theta": 1e6}}, "rope_scaling": nil}, "rope_parameters.full_attention"},
		{"contradicting rope", "llama-tiny", fields{"rope_parameters": fields{"rope_theta": 5e5}}, "rope_scaling: contradicts rope_parameters"},
		{"incomplete llama3", "llama-tiny", fields{"rope_scaling": fields{"rope_type": "llama3", "factor": 8}}, "rope_scaling.low_freq_factor: missing"},
		{"llama3 factors in the wrong order", "llama-tiny", fields{"rope_scaling": fields{"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, "original_max_position_embeddings": 64}}, "high_freq_factor: 4 is not above low_freq_factor 4"},
		{"partial llama", "llama-tiny", fields{"partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5 is not supported in llama"},
		{"nothing rotated", "qwen3.5-tiny", fields{"partial_rotary_factor": 0.01, "rope_parameters": nil}, "rotates 0 dims"},
		{"odd number of dims rotated", "qwen3.5-tiny", fields{"head_dim": 12}, "rotates 3 dims"},

		{"missing size", "llama-tiny", fields{"hidden_size": nil}, "config.json: hidden_size: missing, want an integer in [1, 1048576]"},
		{"zero", "llama-tiny", fields{"vocab_size": 0}, "vocab_size: want an integer in [1, 16777216], got 0"},
		{"negative", "llama-tiny", fields{"num_hidden_layers": -4}, "num_hidden_layers: want an integer in [1, 1024], got -4"},
		{"absurd", "llama-tiny", fields{"intermediate_size": 1 << 40}, "intermediate_size: want"},
		{"beyond int64", "llama-tiny", fields{"intermediate_size": json.RawMessage("99999999999999999999")}, "intermediate_size: want"},
		{"fraction", "llama-tiny", fields{"num_attention_heads": 2.5}, "num_attention_heads: want an integer in [1, 4096], got 2.5"},
		{"string", "llama-tiny", fields{"hidden_size": "64"}, `hidden_size: want an integer in [1, 1048576], got "64"`},
		{"heads", "llama-tiny", fields{"num_key_value_heads": 3}, "num_attention_heads: 4 is not a multiple of num_key_value_heads 3"},
		{"underivable head_dim", "llama-tiny", fields{"head_dim": nil, "hidden_size": 66}, "head_dim: missing, and hidden_size 66"},
		{"qwen3.5 without head_dim", "qwen3.5-tiny", fields{"head_dim": nil}, "text_config.head_dim: missing"},
		{"delta heads", "qwen3.5-tiny", fields{"linear_num_value_heads": 3}, "linear_num_value_heads: 3 is not a multiple of linear_num_key_heads 2"},
		{"delta dims", "qwen3.5-tiny", fields{"linear_key_head_dim": nil}, "text_config.linear_key_head_dim: missing"},
		{"convolution", "qwen3.5-tiny", fields{"linear_conv_kernel_dim": 99}, "linear_conv_kernel_dim: want an integer in [1, 16], got 99"},
		{"eps", "llama-tiny", fields{"rms_norm_eps": 0}, "rms_norm_eps: want a number in"},
		{"theta", "llama-tiny", fields{"rope_theta": -1}, "rope_theta: want a number in"},
		{"tied", "llama-tiny", fields{"tie_word_embeddings": "yes"}, `tie_word_embeddings: want true or false, got "yes"`},
		{"eos beyond the vocabulary", "llama-tiny", fields{"eos_token_id": []int{1, 512}}, "eos_token_id: 512 is not a token id in [0, 512)"},
		{"eos of no kind", "llama-tiny", fields{"eos_token_id": "end"}, `eos_token_id: want a token id or a list of them, got "end"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := model.ParseConfig(config(t, tc.preset, tc.changes), nil)
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

func TestParseNotJSON(t *testing.T) {
	good := config(t, "llama-tiny", nil)
	for _, bad := range []string{"", "null", "[]", "{", string(good[:len(good)-1]), string(good) + "x", "{\"hidden_size\":NaN}"} {
		_, err := model.ParseConfig([]byte(bad), nil)
		assert.ErrorContains(t, err, "config.json: not a JSON object", bad)
		_, err = model.ParseConfig(good, []byte(bad))
		assert.ErrorContains(t, err, "generation_config.json: not a JSON object", bad)
	}
	_, err := model.ParseConfig(good, []byte(`{"eos_token_id":-1}`))
	assert.ErrorContains(t, err, "generation_config.json: eos_token_id: -1")
}

// All that is wrong is said at once.
func TestParseReportsAll(t *testing.T) {
	_, err := model.ParseConfig(config(t, "qwen3.5-tiny", fields{"hidden_size": nil, "linear_conv_kernel_dim": 0, "rms_norm_eps": "x"}), nil)
	for _, field := range []string{"hidden_size", "linear_conv_kernel_dim", "rms_norm_eps"} {
		assert.ErrorContains(t, err, field)
	}
}

// Whatever the files say, the parser returns an error or a shape that can be
// computed with.
func FuzzParseConfig(f *testing.F) {
	for _, c := range published {
		f.Add([]byte(c), []byte(`{"eos_token_id":[1,2]}`))
	}
	for _, preset := range []string{"llama-tiny", "qwen3.5-tiny"} {
		f.Add(config(f, preset, nil), []byte("{}"))
	}
	f.Add([]byte(`{"model_type":"llama","hidden_size":1e400}`), []byte("null"))
	f.Fuzz(func(t *testing.T, data, generation []byte) {
		c, err := model.ParseConfig(data, generation)
		if err != nil {
			require.Nil(t, c)
			require.NotEmpty(t, err.Error())
			return
		}
		require.NotEmpty(t, c.Layers)
		require.Zero(t, c.Heads%c.KVHeads)
		require.Zero(t, c.RotaryDim%2)
		require.LessOrEqual(t, c.RotaryDim, c.HeadDim)
		require.Positive(t, c.NormEps)
		require.Positive(t, c.Params())
		for _, id := range c.EOS {
			require.True(t, id >= 0 && int(id) < c.Vocab)
		}
		cost := c.StepCost(model.DecodeRows(2, c.MaxPositions), model.ElementBytes{Weight: 2, KV: 2, Recurrent: 4, Conv: 4})
		require.Positive(t, cost.Bytes())
		require.Positive(t, cost.FLOPs)
	})
}
