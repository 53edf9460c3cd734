package model

import (
	"fmt"
	"strings"
)

// presets are the shapes that random weights can be had in, without a checkpoint.
var presets = []struct {
	name   string
	config func() *Config
}{
	{"llama-3.2-1b", func() *Config {
		return llamaPreset(Config{
			Hidden: 2048, Intermediate: 8192, Vocab: 128256, Heads: 32, KVHeads: 8, HeadDim: 64,
			RopeTheta: 5e5, RopeScaling: &Llama3Scaling{Factor: 32, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPosition: 8192},
			MaxPositions: 131072, EOS: []int32{128001},
		}, 16)
	}},
	{"smollm2-135m", func() *Config {
		return llamaPreset(Config{
			Hidden: 576, Intermediate: 1536, Vocab: 49152, Heads: 9, KVHeads: 3, HeadDim: 64,
			RopeTheta: 1e5, MaxPositions: 8192, EOS: []int32{0},
		}, 30)
	}},
	{"qwen3.5-0.8b", func() *Config { return qwen35Preset(1024, 3584, 24, 8, 2, 16, 16, true) }},
	{"qwen3.5-2b", func() *Config { return qwen35Preset(2048, 6144, 24, 8, 2, 16, 16, true) }},
	{"qwen3.5-4b", func() *Config { return qwen35Preset(2560, 9216, 32, 16, 4, 16, 32, true) }},
	{"qwen3.5-9b", func() *Config { return qwen35Preset(4096, 12288, 32, 16, 4, 16, 32, false) }},
	{"qwen3.5-27b", func() *Config { return qwen35Preset(5120, 17408, 64, 24, 4, 16, 48, false) }},

	// The Qwen3.5 shape at some 300 MB of weights: far beyond any cache, and
	// still a few seconds a request on two cores.
	{"qwen3.5-mini", func() *Config {
		c := qwen35Preset(768, 2688, 12, 6, 2, 8, 8, true)
		c.Vocab, c.EOS = 32768, []int32{0}
		return c
	}},

	// For tests: small, with every feature of the large ones.
	{"qwen3.5-tiny", func() *Config {
		c := qwen35Preset(64, 160, 8, 4, 2, 2, 4, false)
		c.HeadDim, c.RotaryDim, c.DeltaKeyDim, c.DeltaValueDim = 32, 8, 32, 32
		c.Vocab, c.MaxPositions, c.EOS = 512, 4096, []int32{0}
		return c
	}},
	{"llama-tiny", func() *Config {
		return llamaPreset(Config{
			Hidden: 64, Intermediate: 160, Vocab: 512, Heads: 4, KVHeads: 2, HeadDim: 16,
			RopeTheta: 1e4, RopeScaling: &Llama3Scaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPosition: 64},
			MaxPositions: 4096, EOS: []int32{0},
		}, 4)
	}},
}

func llamaPreset(c Config, layers int) *Config {
	c.Arch, c.Prefix, c.NormEps, c.Tied = Llama, "model.", 1e-5, true
	c.RotaryDim = c.HeadDim
	c.Layers = make([]LayerKind, layers)
	return &c
}

func qwen35Preset(hidden, intermediate, layers, heads, kvHeads, keyHeads, valueHeads int, tied bool) *Config {
	return &Config{
		Arch: Qwen35, Prefix: "model.language_model.",
		Hidden: hidden, Intermediate: intermediate, Vocab: 248320, Layers: interleave(layers, 4),
		Heads: heads, KVHeads: kvHeads, HeadDim: 256, RotaryDim: 64, RopeTheta: 1e7,
		NormEps: 1e-6, Tied: tied, MaxPositions: 262144, EOS: []int32{248044},
		DeltaKeyHeads: keyHeads, DeltaValueHeads: valueHeads, DeltaKeyDim: 128, DeltaValueDim: 128, ConvWidth: 4,
	}
}

// interleave makes every interval-th layer full attention, the others linear.
func interleave(layers, interval int) []LayerKind {
	kinds := make([]LayerKind, layers)
	for i := range kinds {
		if (i+1)%interval != 0 {
			kinds[i] = LinearAttention
		}
	}
	return kinds
}

// Presets lists the names that random weights can be asked for by.
func Presets() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.name
	}
	return names
}

// Preset is the configuration of a preset, which the caller may change.
func Preset(name string) (*Config, error) {
	for _, p := range presets {
		if p.name == name {
			return p.config(), nil
		}
	}
	return nil, fmt.Errorf("unknown preset %q: there are %s", name, strings.Join(Presets(), ", "))
}
