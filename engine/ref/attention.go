package ref

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

// rope holds no table: angles are computed where they are needed.
type rope struct {
	invFreq   []float32
	positions int
}

func (r *rope) Dims() int { return 2 * len(r.invFreq) }

// NewRope keeps the frequencies.
func (b *Backend) NewRope(invFreq []float32, positions int) (backend.Rope, error) {
	if len(invFreq) == 0 || positions < 1 {
		return nil, fmt.Errorf("ref: rope of %d frequencies, %d positions", len(invFreq), positions)
	}
	return &rope{invFreq: append([]float32(nil), invFreq...), positions: positions}, nil
}

// rotate turns the pairs (d, d+n) of the leading 2n dims. The
// angle is a float32 product, as in the models' reference.
func (r *rope) rotate(x []float64, position int) {
	check(position < r.positions, "position %d, the rope has %d", position, r.positions)
	n := len(r.invFreq)
	for d, f := range r.invFreq {
		angle := float64(float32(position) * f)
		sin, cos := math.Sincos(angle)
		x[d], x[d+n] = x[d]*cos-x[d+n]*sin, x[d+n]*cos+x[d]*sin
	}
}

// kvCache holds [layer][block][position in block][kv head][dim].
type kvCache struct {
	spec   backend.KVSpec
	keys   []float32
	values []float32
}

func (c *kvCache) Spec() backend.KVSpec { return c.spec }

// NewKVCache makes a cache full of NaN.
func (b *Backend) NewKVCache(s backend.KVSpec) (backend.KVCache, error) {
	if s.Layers < 1 || s.Blocks < 1 || s.BlockSize < 1 || s.KVHeads < 1 || s.HeadDim < 1 {
		return nil, fmt.Errorf("ref: KV cache of %+v", s)
	}
	n := s.Layers * s.Blocks * s.BlockSize * s.KVHeads * s.HeadDim
	return &kvCache{spec: s, keys: nans(n), values: nans(n)}, nil
}

// at is the key and value of one position of one head.
func (c *kvCache) at(layer int, blocks []int32, position, head int) (key, value []float32) {
	s := c.spec
	block := layer*s.Blocks + int(blocks[position/s.BlockSize])
	i := ((block*s.BlockSize+position%s.BlockSize)*s.KVHeads + head) * s.HeadDim
	return c.keys[i:][:s.HeadDim], c.values[i:][:s.HeadDim]
}

// stored is x as the cache can hold it: bf16 rounds to nearest, ties to even.
func (c *kvCache) stored(x float32) float32 {
	if c.spec.DType != backend.BF16 || x != x {
		return x
	}
	bits := math.Float32bits(x)
	bits += 0x7fff + bits>>16&1
	return math.Float32frombits(bits &^ 0xffff)
}

// Attention is the gated attention of transformers' modeling_qwen3_5.py; that
// of modeling_llama.py is the same without norms and gate.
func (b *Backend) Attention(dst, qkv backend.Buffer, a *backend.Attention, cache backend.KVCache) {
	d, in, c, r := dst.(*buffer), qkv.(*buffer), cache.(*kvCache), a.Rope.(*rope)
	hd, group := a.HeadDim, a.Heads/a.KVHeads
	qStride := hd
	if a.Gated {
		qStride = 2 * hd // for each head: queries, then gate (1.5.1)
	}
	kStart := a.Heads * qStride
	vStart := kStart + a.KVHeads*hd
	check(a.Heads%a.KVHeads == 0 && r.Dims() <= hd, "attention of %+v", a)
	check(a.KVHeads == c.spec.KVHeads && hd == c.spec.HeadDim && a.Layer < c.spec.Layers, "attention of %+v over a cache of %+v", a, c.spec)
	check(d != in && in.width >= vStart+a.KVHeads*hd && d.width >= a.Heads*hd, "attention from width %d into %d", in.width, d.width)

	// Keys are normed (1.5.2), rotated (1.5.3) and cached, values are cached raw
	// (1.5.4): the whole step, before any of its queries.
	for t, p := range b.places {
		check(p.position/c.spec.BlockSize < len(p.row.Blocks), "position %d in %d KV blocks", p.position, len(p.row.Blocks))
		for h := range a.KVHeads {
			key, value := c.at(a.Layer, p.row.Blocks, p.position, h)
			k := norm(in.row(t)[kStart+h*hd:][:hd], a.KNorm)
			r.rotate(k, p.position)
			v := in.row(t)[vStart+h*hd:][:hd]
			for i := range hd {
				key[i], value[i] = c.stored(float32(k[i])), c.stored(v[i])
			}
		}
	}

	parallel(len(b.places)*a.Heads, func(i int) {
		t, h := i/a.Heads, i%a.Heads
		blocks, position := b.places[t].row.Blocks, b.places[t].position
		q := norm(in.row(t)[h*qStride:][:hd], a.QNorm)
		r.rotate(q, position)

		// Causal softmax of scale·q·k over all positions so far (1.5.4).
		p := make([]float64, position+1)
		largest := math.Inf(-1)
		for j := range p {
			key, _ := c.at(a.Layer, blocks, j, h/group)
			p[j] = float64(a.Scale) * dot(key, q)
			largest = math.Max(largest, p[j])
		}
		var sum float64
		for j := range p {
			p[j] = math.Exp(p[j] - largest)
			sum += p[j]
		}
		out := make([]float64, hd)
		for j := range p {
			_, value := c.at(a.Layer, blocks, j, h/group)
			for i := range out {
				out[i] += p[j] / sum * float64(value[i])
			}
		}

		for i := range out {
			if a.Gated { // (1.5.5); o_proj is the next op
				out[i] *= sigmoid(float64(in.row(t)[h*qStride+hd+i]))
			}
			d.row(t)[h*hd+i] = float32(out[i])
		}
	})
}
