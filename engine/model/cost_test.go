package model

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func preset(t testing.TB, name string) *Config {
	c, err := Preset(name)
	require.NoError(t, err)
	return c
}

var bf16 = ElementBytes{Weight: 2, KV: 2, Recurrent: 4, Conv: 2}

// The totals that are published for the checkpoints, and what follows from
// their shapes for a decode step in bf16.
func TestPublishedSizes(t *testing.T) {
	for _, want := range []struct {
		name                                 string
		params, weights, kv, recurrent, conv int64
	}{
		{"qwen3.5-0.8b", 752_393_024, 1_504_786_048, 12_288, 18_874_368, 663_552},
		{"qwen3.5-2b", 1_881_825_088, 3_763_650_176, 12_288, 18_874_368, 663_552},
		{"qwen3.5-4b", 4_205_751_296, 8_411_502_592, 32_768, 50_331_648, 1_179_648},
		{"qwen3.5-9b", 8_953_803_264, 15_873_369_088, 32_768, 50_331_648, 1_179_648},
		{"qwen3.5-27b", 26_895_998_464, 51_249_200_128, 65_536, 150_994_944, 2_949_120},
		{"llama-3.2-1b", 1_235_814_400, 2_471_628_800, 32_768, 0, 0},
		{"smollm2-135m", 134_515_008, 269_030_016, 23_040, 0, 0},
	} {
		t.Run(want.name, func(t *testing.T) {
			c := preset(t, want.name)
			assert.Equal(t, want.params, c.Params())
			one := c.StepCost(DecodeRows(1, 1), bf16)
			assert.Equal(t, want.weights, one.WeightBytes)
			assert.Equal(t, want.kv, one.KVReadBytes)
			assert.Equal(t, want.kv, one.KVWriteBytes)
			assert.Equal(t, 2*want.recurrent, one.RecurrentBytes, "read and written")
			assert.Equal(t, 2*want.conv, one.ConvBytes, "read and written")

			// With the convolution state in f32, as the engine keeps it.
			wide := c.StepCost(DecodeRows(1, 1), ElementBytes{Weight: 2, KV: 2, Recurrent: 4, Conv: 4})
			assert.Equal(t, 4*want.conv, wide.ConvBytes)
			assert.Equal(t, wide.RecurrentBytes+wide.ConvBytes, int64(2*c.Delta(1).BytesPerSequence()))

			// Rows share the weights, and nothing else.
			eight := c.StepCost(DecodeRows(8, 100), bf16)
			assert.Equal(t, want.weights, eight.WeightBytes)
			assert.Equal(t, 800*want.kv, eight.KVReadBytes)
			assert.Equal(t, 8*want.kv, eight.KVWriteBytes)
			assert.Equal(t, 16*want.recurrent, eight.RecurrentBytes)
			assert.Equal(t, want.weights+808*want.kv+16*want.recurrent+16*want.conv, eight.Bytes())
		})
	}
}

func TestMiniSize(t *testing.T) {
	c := preset(t, "qwen3.5-mini")
	assert.InDelta(t, 296e6, float64(c.StepCost(DecodeRows(1, 1), bf16).WeightBytes), 2e6)
	assert.Equal(t, 9, c.Count(LinearAttention))
	assert.Equal(t, 3, c.Count(FullAttention))
}

// FLOPs of the 0.8B model, from its shape alone: 2PB + 4·n·nF·nH·hd + 7·nL·Hv·dk·dv.
func TestStepFLOPs(t *testing.T) {
	c := preset(t, "qwen3.5-0.8b")
	const products = 248320*1024 + // LM head
		24*3*1024*3584 + // MLPs
		6*(3*8*256+2*2*256)*1024 + // attention: queries and gates, out, keys, values
		18*((6144+2*2048+2*16)*1024+4*6144) // delta: inputs, out, taps
	row := func(n int64) int64 { return 2*products + 4*n*6*8*256 + 7*18*16*128*128 }
	assert.Equal(t, row(50), c.StepCost(DecodeRows(1, 50), bf16).FLOPs)
	assert.Equal(t, row(50)+row(7), c.StepCost(append(DecodeRows(1, 50), DecodeRows(1, 7)...), bf16).FLOPs)
}

// A prompt chunk computes what its tokens would one by one, short of the
// logits, but reads context and state once.
func TestChunkCost(t *testing.T) {
	for _, name := range []string{"qwen3.5-0.8b", "qwen3.5-9b", "llama-3.2-1b"} {
		c := preset(t, name)
		chunk := c.StepCost([]CostRow{{Tokens: 16, Context: 48}}, bf16)
		var single Cost
		for n := 33; n <= 48; n++ {
			s := c.StepCost([]CostRow{{Tokens: 1, Context: n}}, bf16)
			single.FLOPs += s.FLOPs
			single.KVWriteBytes += s.KVWriteBytes
		}
		last := c.StepCost([]CostRow{{Tokens: 1, Context: 48}}, bf16)
		assert.Equal(t, single.FLOPs, chunk.FLOPs, name)
		assert.Equal(t, single.KVWriteBytes, chunk.KVWriteBytes, name)
		assert.Equal(t, last.KVReadBytes, chunk.KVReadBytes, name)
		assert.Equal(t, last.RecurrentBytes, chunk.RecurrentBytes, name)

		head := int64(c.Vocab) * int64(c.Hidden)
		sampled := c.StepCost([]CostRow{{Tokens: 16, Context: 48, Sample: true}}, bf16)
		assert.Equal(t, 2*head, sampled.FLOPs-chunk.FLOPs, name)
		assert.Equal(t, 2*head, sampled.WeightBytes-chunk.WeightBytes, name)
	}
}

func TestCeiling(t *testing.T) {
	c := preset(t, "qwen3.5-0.8b")
	// Without a limit of arithmetic the bytes decide: the state traffic of some
	// 40 rows equals one pass over the weights.
	one, forty := c.StepCost(DecodeRows(1, 1), bf16), c.StepCost(DecodeRows(40, 1), bf16)
	assert.InEpsilon(t, 2, float64(forty.Bytes())/float64(one.WeightBytes), 0.05)
	assert.InEpsilon(t, 40*float64(one.Bytes())/float64(forty.Bytes()), c.Ceiling(40, 1, bf16, 1e9, 1e30), 1e-12)
	// Without a limit of bandwidth nothing is gained.
	assert.InEpsilon(t, 1, c.Ceiling(8, 1, bf16, 1e30, 1e9), 1e-12)
	assert.Equal(t, 1.0, c.Ceiling(1, 100, bf16, 3e10, 1e11))
	assert.Equal(t, 3.0, Cost{KVReadBytes: 30, FLOPs: 100}.Seconds(10, 1e3))
	assert.Equal(t, 5.0, Cost{KVReadBytes: 30, FLOPs: 5000}.Seconds(10, 1e3))
}
