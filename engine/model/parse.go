package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Bounds of what a configuration may say. They are far above any published
// model, and low enough that no product of two of them overflows.
const (
	maxLayers    = 1 << 10
	maxWidth     = 1 << 20 // hidden and intermediate sizes
	maxHeads     = 1 << 12
	maxHeadDim   = 1 << 12
	maxVocab     = 1 << 24
	maxConv      = 16
	maxPositions = 1 << 24
	maxEOS       = 1 << 10
)

// supported says what ParseConfig takes, for the errors about what it does not.
const supported = "supported are llama (LlamaForCausalLM) and the dense qwen3_5 (Qwen3_5ForConditionalGeneration, Qwen3_5ForCausalLM)"

// ParseConfig reads a config.json, and the end-of-sequence ids of a
// generation_config.json where that is not nil. Every field that the model
// depends on is validated; what is known to exist but not supported is refused
// by name. All problems are reported in one error.
//
// The prefix of tensor names is the published one of the layout;
// [Open] looks at the names as well.
func ParseConfig(config, generation []byte) (*Config, error) {
	p := &parser{}
	root := p.document("config.json", config)
	if p.err() != nil {
		return nil, p.err()
	}
	c := p.config(root)
	if generation != nil {
		if gen := p.document("generation_config.json", generation); gen.fields != nil {
			p.eos(gen, c)
		}
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// parser collects what is wrong.
type parser struct{ errs []error }

func (p *parser) errorf(format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf(format, args...))
}

func (p *parser) err() error { return errors.Join(p.errs...) }

// object is a JSON object. Fields that are null count as absent.
type object struct {
	p      *parser
	path   string // in front of a field's name
	fields map[string]json.RawMessage
}

func (p *parser) document(file string, data []byte) object {
	o := object{p: p, path: file + ": "}
	if err := json.Unmarshal(data, &o.fields); err != nil {
		p.errorf("%s: not a JSON object: %v", file, err)
	} else if o.fields == nil {
		p.errorf("%s: not a JSON object: null", file)
	}
	return o
}

func (o object) raw(name string) (json.RawMessage, bool) {
	v, ok := o.fields[name]
	return v, ok && !bytes.Equal(v, []byte("null"))
}

func (o object) has(name string) bool { _, ok := o.raw(name); return ok }

func (o object) errorf(name, format string, args ...any) {
	o.p.errorf("%s%s: %s", o.path, name, fmt.Sprintf(format, args...))
}

// get decodes a field, if it is there and of the type.
func get[T any](o object, name, want string) (v T, ok bool) {
	raw, ok := o.raw(name)
	if !ok {
		return v, false
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		o.errorf(name, "want %s, got %.60s", want, raw)
		return v, false
	}
	return v, true
}

func (o object) object(name string) (object, bool) {
	fields, ok := get[map[string]json.RawMessage](o, name, "an object")
	return object{o.p, o.path + name + ".", fields}, ok
}

func (o object) text(name string) string {
	s, _ := get[string](o, name, "a string")
	return s
}

func (o object) flag(name string) bool {
	b, _ := get[bool](o, name, "true or false")
	return b
}

// int reads an integer in [1, most]. Without a default it must be there.
func (o object) int(name string, most int64, def ...int64) int {
	return int(number(o, name, "an integer", 1, most, def))
}

// float reads a number in [least, most]. Without a default it must be there.
func (o object) float(name string, least, most float64, def ...float64) float64 {
	return number(o, name, "a number", least, most, def)
}

func number[T int64 | float64](o object, name, kind string, least, most T, def []T) T {
	want := fmt.Sprintf("%s in [%v, %v]", kind, least, most)
	v, ok := get[T](o, name, want)
	switch {
	case ok && v >= least && v <= most:
		return v
	case ok:
		o.errorf(name, "want %s, got %v", want, v)
	case o.has(name): // reported by get
	case len(def) > 0:
		return def[0]
	default:
		o.errorf(name, "missing, want %s", want)
	}
	return least // some value that later checks can go on with
}

func (p *parser) config(root object) *Config {
	arch, text, prefix := p.architecture(root)
	if arch == "" {
		return nil
	}
	c := &Config{Arch: arch, Prefix: prefix}
	p.refuse(root)
	if text.path != root.path {
		p.refuse(text)
	}
	if p.err() != nil {
		return c // other complaints would only follow from these
	}

	c.Hidden = text.int("hidden_size", maxWidth)
	c.Intermediate = text.int("intermediate_size", maxWidth)
	c.Vocab = text.int("vocab_size", maxVocab)
	c.Heads = text.int("num_attention_heads", maxHeads)
	c.KVHeads = text.int("num_key_value_heads", maxHeads, int64(c.Heads))
	if c.Heads%c.KVHeads != 0 {
		text.errorf("num_attention_heads", "%d is not a multiple of num_key_value_heads %d", c.Heads, c.KVHeads)
	}
	if arch == Llama && !text.has("head_dim") {
		c.HeadDim = max(1, c.Hidden/c.Heads)
		if c.HeadDim*c.Heads != c.Hidden || c.HeadDim > maxHeadDim {
			text.errorf("head_dim", "missing, and hidden_size %d over num_attention_heads %d does not give one in [1, %d]", c.Hidden, c.Heads, maxHeadDim)
		}
	} else {
		c.HeadDim = text.int("head_dim", maxHeadDim)
	}
	c.NormEps = float32(text.float("rms_norm_eps", 1e-12, 0.1))
	c.MaxPositions = text.int("max_position_embeddings", maxPositions)
	p.layers(text, c)
	p.rope(text, c)
	if arch == Qwen35 {
		c.DeltaKeyHeads = text.int("linear_num_key_heads", maxHeads)
		c.DeltaValueHeads = text.int("linear_num_value_heads", maxHeads)
		if c.DeltaValueHeads%c.DeltaKeyHeads != 0 {
			text.errorf("linear_num_value_heads", "%d is not a multiple of linear_num_key_heads %d", c.DeltaValueHeads, c.DeltaKeyHeads)
		}
		c.DeltaKeyDim = text.int("linear_key_head_dim", maxHeadDim)
		c.DeltaValueDim = text.int("linear_value_head_dim", maxHeadDim)
		c.ConvWidth = text.int("linear_conv_kernel_dim", maxConv)
	}
	p.tied(root, text, c)
	p.eos(text, c)
	if text.path != root.path {
		p.eos(root, c)
	}
	return c
}

// architecture finds the decoder's part of the file, and the prefix of its tensors.
func (p *parser) architecture(root object) (arch Arch, text object, prefix string) {
	names, _ := get[[]string](root, "architectures", "a list of strings")
	name, modelType := strings.Join(names, ", "), root.text("model_type")
	if p.err() != nil {
		return "", root, ""
	}
	fits := func(classes ...string) bool { return name == "" || slices.Contains(classes, name) }
	switch {
	case modelType == "" && name == "":
		p.errorf("config.json: neither model_type nor architectures says what the model is: %s", supported)
		return "", root, ""
	case modelType == "llama" && fits("LlamaForCausalLM"),
		modelType == "" && name == "LlamaForCausalLM":
		return Llama, root, "model."
	case modelType == "qwen3_5_text" && fits("Qwen3_5ForCausalLM"),
		(modelType == "qwen3_5" || modelType == "") && name == "Qwen3_5ForCausalLM" && !root.has("text_config"):
		return Qwen35, root, "model."
	case modelType == "qwen3_5" && fits("Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"),
		modelType == "" && name == "Qwen3_5ForConditionalGeneration":
		text, ok := root.object("text_config")
		if !ok {
			if p.err() == nil {
				root.errorf("text_config", "missing: the decoder of a %s is described there", "qwen3_5")
			}
			return "", root, ""
		}
		if kind := text.text("model_type"); kind != "" && kind != "qwen3_5_text" {
			text.errorf("model_type", "%.60q is not supported: %s", kind, supported)
		}
		return Qwen35, text, "model.language_model."
	}
	what := ""
	switch all := strings.ToLower(name + modelType); {
	case strings.Contains(all, "moe"):
		what = " (mixtures of experts are not supported yet)"
	case strings.HasPrefix(modelType, "qwen3") && !strings.HasPrefix(modelType, "qwen3_5"), strings.HasPrefix(name, "Qwen3For"):
		what = " (Qwen3 is not Qwen3.5, and not supported yet)"
	}
	p.errorf("config.json: architecture %.80q, model_type %.80q is not supported%s: %s", name, modelType, what, supported)
	return "", root, ""
}

// refuse names what would change the computation and is not implemented.
func (p *parser) refuse(o object) {
	for _, name := range []string{"num_experts", "num_local_experts", "n_routed_experts"} {
		if raw, ok := o.raw(name); ok && string(raw) != "0" {
			o.errorf(name, "%.60s: mixtures of experts are not supported yet", raw)
		}
	}
	for _, name := range []string{"quantization_config", "compression_config"} {
		if q, ok := o.object(name); ok {
			o.errorf(name, "quantised weights (quant_method %.60q) are not supported: use a bf16, f16 or f32 checkpoint", q.text("quant_method"))
		}
	}
	for _, name := range []string{"dtype", "torch_dtype"} {
		switch dtype := o.text(name); dtype {
		case "", "bfloat16", "float16", "float32", "auto":
		default:
			o.errorf(name, "%.60q is not supported: bfloat16, float16 and float32 are", dtype)
		}
	}
	if act := o.text("hidden_act"); act != "" && act != "silu" {
		o.errorf("hidden_act", "%.60q is not supported: silu is", act)
	}
	for _, name := range []string{"attention_bias", "mlp_bias"} {
		if o.flag(name) {
			o.errorf(name, "true is not supported: linear layers have no bias here")
		}
	}
	use, said := get[bool](o, "use_sliding_window", "true or false")
	if use || !said && o.has("sliding_window") {
		o.errorf("sliding_window", "attention in a sliding window is not supported")
	}
}

// layers reads how many layers there are, and of which kind each is.
func (p *parser) layers(text object, c *Config) {
	n := text.int("num_hidden_layers", maxLayers)
	if c.Arch == Llama {
		c.Layers = make([]LayerKind, n)
	} else {
		c.Layers = interleave(n, text.int("full_attention_interval", maxLayers, 4))
	}
	kinds, ok := get[[]string](text, "layer_types", "a list of strings")
	if !ok {
		return
	}
	if len(kinds) != n {
		text.errorf("layer_types", "%d entries, num_hidden_layers is %d", len(kinds), n)
		return
	}
	for i, kind := range kinds {
		switch {
		case kind == "full_attention":
			c.Layers[i] = FullAttention
		case kind == "linear_attention" && c.Arch == Qwen35:
			c.Layers[i] = LinearAttention
		default:
			text.errorf("layer_types", "entry %d, %.60q, is not supported in %s", i, kind, c.Arch)
			return
		}
	}
}

// ropeFields is what a configuration says about rotary embeddings, in one place.
type ropeFields struct {
	theta   float64
	partial float64
	scaling *Llama3Scaling
}

// rope reads rope_parameters, or else rope_scaling with rope_theta beside it.
func (p *parser) rope(text object, c *Config) {
	// Defaults of the reference. A Llama rotates the whole head.
	beside := ropeFields{theta: 1e4, partial: 1}
	if c.Arch == Qwen35 {
		beside = ropeFields{theta: 1e7, partial: 0.25}
	}
	beside.theta = text.float("rope_theta", 1, 1e15, beside.theta)
	beside.partial = text.float("partial_rotary_factor", 0, 1, beside.partial)
	rope, found := beside, ""
	for _, name := range []string{"rope_parameters", "rope_scaling"} {
		o, ok := text.object(name)
		if !ok {
			continue
		}
		r := p.ropeObject(o, beside)
		if found != "" && (r.theta != rope.theta || r.partial != rope.partial || !sameScaling(r.scaling, rope.scaling)) {
			text.errorf(name, "contradicts %s", found)
		}
		rope, found = r, name
	}
	if c.Arch == Llama && rope.partial != 1 {
		text.errorf("partial_rotary_factor", "%g is not supported in llama: the whole head is rotated", rope.partial)
		return
	}
	c.RopeTheta, c.RopeScaling = rope.theta, rope.scaling
	c.RotaryDim = int(float64(c.HeadDim) * rope.partial)
	if c.RotaryDim < 2 || c.RotaryDim%2 != 0 {
		text.errorf("head_dim", "%d with partial_rotary_factor %g rotates %d dims, want an even number from 2", c.HeadDim, rope.partial, c.RotaryDim)
	}
}

func (p *parser) ropeObject(o object, beside ropeFields) ropeFields {
	r := ropeFields{
		theta:   o.float("rope_theta", 1, 1e15, beside.theta),
		partial: o.float("partial_rotary_factor", 0, 1, beside.partial),
	}
	kind := o.text("rope_type")
	if kind == "" {
		kind = o.text("type") // the older spelling
	}
	switch kind {
	case "", "default":
		for _, name := range []string{"full_attention", "linear_attention", "sliding_attention"} {
			if o.has(name) {
				o.errorf(name, "rotary parameters by kind of layer are not supported")
			}
		}
	case "llama3":
		s := &Llama3Scaling{
			Factor:           o.float("factor", 1, 1e6),
			LowFreqFactor:    o.float("low_freq_factor", 1e-6, 1e6),
			HighFreqFactor:   o.float("high_freq_factor", 1e-6, 1e6),
			OriginalPosition: o.int("original_max_position_embeddings", maxPositions),
		}
		if s.HighFreqFactor <= s.LowFreqFactor && o.p.err() == nil {
			o.errorf("high_freq_factor", "%g is not above low_freq_factor %g", s.HighFreqFactor, s.LowFreqFactor)
		}
		r.scaling = s
	default:
		o.errorf("rope_type", "%.60q is not supported: default and llama3 are", kind)
	}
	return r
}

func sameScaling(a, b *Llama3Scaling) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// tied reads whether the LM head is the embedding table. Nested files may say
// it in either place, and the reference takes the root's word.
func (p *parser) tied(root, text object, c *Config) {
	for _, o := range []object{root, text} {
		if o.has("tie_word_embeddings") {
			c.Tied = o.flag("tie_word_embeddings")
			return
		}
	}
}

// eos adds end-of-sequence ids, one or a list, to those already there.
func (p *parser) eos(o object, c *Config) {
	raw, ok := o.raw("eos_token_id")
	if !ok {
		return
	}
	var ids []int64
	if json.Unmarshal(raw, &ids) != nil {
		var id int64
		if json.Unmarshal(raw, &id) != nil {
			o.errorf("eos_token_id", "want a token id or a list of them, got %.60s", raw)
			return
		}
		ids = []int64{id}
	}
	if len(ids) > maxEOS {
		o.errorf("eos_token_id", "%d ids, at most %d are allowed", len(ids), maxEOS)
		return
	}
	if p.err() != nil {
		return // the size of the vocabulary may be what is wrong
	}
	for _, id := range ids {
		if id < 0 || id >= int64(min(c.Vocab, math.MaxInt32)) {
			o.errorf("eos_token_id", "%d is not a token id in [0, %d)", id, c.Vocab)
			return
		}
		if !slices.Contains(c.EOS, int32(id)) {
			c.EOS = append(c.EOS, int32(id))
		}
	}
}
