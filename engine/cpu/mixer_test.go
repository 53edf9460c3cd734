package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/backend/backendtest"
)

// TestConformance runs the suite in every instruction set, and with several
// workers, who share units of work in other ways.
func TestConformance(t *testing.T) {
	run := func(opt Options, threads, stride int) {
		opt.Threads = threads
		promise := backendtest.Options{Stride: stride, Taps: 40}
		if opt.Precision == BF16 {
			promise.LinearTolerance = 0x1p-7 // a place of an input
			promise.AttentionTolerance = 0x1p-7
		}
		t.Run(fmt.Sprintf("%v-%v/threads=%d", opt.ISA, opt.Precision, threads), func(t *testing.T) {
			backendtest.RunWith(t, func(t testing.TB) backend.Backend {
				b, err := New(opt)
				require.NoError(t, err)
				return b
			}, promise)
		})
	}
	all := settings()
	for _, opt := range all {
		stride := 5
		if opt.ISA == Generic {
			stride = 16
		}
		run(opt, 1, stride)
	}
	run(Options{Precision: F32}, 2, 24)
	run(all[len(all)-1], 2, 12)
	run(Options{Precision: F32}, 5, 60)
}

// TestMixerKernelsAreGeneric holds all instruction sets to the bits of the
// generic code, with guards behind what they write.
func TestMixerKernelsAreGeneric(t *testing.T) {
	const seed = 11
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	// Random float32 are pairs of random bf16, too.
	bytes := func(x []float32) *byte { return (*byte)(unsafe.Pointer(&x[0])) }
	same := func(name string, start []float32, run func(k *mixerKernels, x *float32)) {
		t.Helper()
		guarded := func(k *mixerKernels) []uint32 {
			x := append(append([]float32(nil), start...), 1, 2, 3)
			run(k, &x[0])
			return bits(x)
		}
		want := guarded(mixersGeneric)
		for _, isa := range Supported()[1:] {
			require.Equal(t, want, guarded(mixersFor(isa)), "%s, %v", name, isa)
		}
	}
	for trial := range 20 {
		for rows := 1; rows <= unitRows; rows++ {
			pairs, chunks := 1+rng.IntN(40), 1+rng.IntN(20)
			groups, ahead, near, far := 1+rng.IntN(3), rng.IntN(3), rng.IntN(1<<13), rng.IntN(1<<13)
			list := func(size int) **byte {
				list := make([]*byte, groups+ahead)
				for i := range list {
					list[i] = bytes(randomFloats(rng, size))
				}
				return &list[0]
			}
			k, v := list(2*pairs*groupPositions), list(chunks*chunkDims*groupPositions)
			q, p := randomFloats(rng, 2*pairs*rows), randomFloats(rng, rows*splitPositions)
			scores, acc := make([]float32, rows*splitPositions), randomFloats(rng, chunks*chunkDims*rows)
			name := fmt.Sprintf("trial %d, %d rows, %d pairs, %d chunks, %d groups", trial, rows, pairs, chunks, groups)
			same("scores bf16, "+name, scores, func(m *mixerKernels, x *float32) { m.scoresBF16[rows-1](x, k, groups, &q[0], pairs, ahead, near, far) })
			same("scores f32, "+name, scores, func(m *mixerKernels, x *float32) { m.scoresF32[rows-1](x, k, groups, &q[0], pairs, ahead, near, far) })
			same("mix bf16, "+name, acc, func(m *mixerKernels, x *float32) { m.mixBF16[rows-1](x, v, groups, &p[0], chunks, ahead, near, far) })
			same("mix f32, "+name, acc, func(m *mixerKernels, x *float32) { m.mixF32[rows-1](x, v, groups, &p[0], chunks, ahead, near, far) })
			part, a, b := randomFloats(rng, len(acc)), randomFloats(rng, rows), randomFloats(rng, rows)
			same("merge, "+name, acc, func(m *mixerKernels, x *float32) { m.merge(x, &part[0], &a[0], &b[0], rows, chunks) })
		}
		n := groupPositions * (1 + trial%splitGroups)
		p := randomFloats(rng, n+1) // the last takes the maximum
		for range rng.IntN(2 * n) {
			p[rng.IntN(n)] = pickFloat(rng, float32(math.Inf(-1)), 90, -100, 0)
		}
		same(fmt.Sprintf("softmax of %d", n), append(p, 0), func(m *mixerKernels, x *float32) {
			unsafe.Slice(x, n+2)[n+1] = m.softmax(x, n, &unsafe.Slice(x, n+1)[n])
		})
		dims := 1 + rng.IntN(130)
		kq, s := randomFloats(rng, dims*blockRows), randomFloats(rng, dims*deltaTile)
		name := fmt.Sprintf("%d dims", dims)
		same("product of "+name, make([]float32, blockRows*deltaTile), func(m *mixerKernels, x *float32) { m.product(x, &kq[0], &s[0], dims) })
		const square = deltaBlock * deltaBlock
		k, q := randomFloats(rng, dims), randomFloats(rng, dims)
		sixteens, n := 16*(1+rng.IntN(9)), 1+rng.IntN(deltaBlock)
		keys, match := randomFloats(rng, deltaBlock*sixteens), randomFloats(rng, sixteens)
		same(fmt.Sprintf("match of %d dims with %d keys", sixteens, n), randomFloats(rng, deltaBlock), func(m *mixerKernels, x *float32) {
			m.match(x, &keys[0], &match[0], sixteens, n)
		})
		pairs, decay, beta := randomFloats(rng, 2*square), randomFloats(rng, deltaBlock), randomFloats(rng, deltaBlock)
		first := rng.IntN(deltaBlock)
		tokens := 1 + rng.IntN(deltaBlock-first)
		same(fmt.Sprintf("weights of %d tokens after %d", tokens, first), randomFloats(rng, 2*square+deltaBlock), func(m *mixerKernels, x *float32) {
			a := unsafe.Slice(x, 2*square+deltaBlock)
			m.weigh(&a[0], &a[square], &a[2*square], &pairs[0], &decay[0], &beta[0], first, tokens)
		})
		tiles, heads := 1+rng.IntN(3), 1+rng.IntN(3)
		values := tiles * deltaTile
		states, begun := randomFloats(rng, heads*dims*values), randomFloats(rng, heads*values*(1+deltaBlock)) // values, then d
		same(fmt.Sprintf("token of %s, %d heads and %d tiles after %d", name, heads, tiles, first), begun, func(m *mixerKernels, x *float32) {
			list, at := make([]tokenHead, heads), unsafe.Slice(x, len(begun))
			for i := range list {
				list[i] = tokenHead{
					v: &at[i*values], d: &at[values*(heads+i*deltaBlock)], s: &states[i*dims*values], k: &k[0], q: &q[0], a: &pairs[16*i], p: &pairs[square+16*i],
					rise: 0.9 - float32(i)/8, beta: 0.7 + float32(i)/8,
				}
			}
			m.token((*byte)(unsafe.Pointer(&list[0])), heads, dims, tiles, first, 256)
		})
		stride := deltaTile * (1 + rng.IntN(3))
		d := randomFloats(rng, deltaBlock*deltaTile)
		found := append(randomFloats(rng, deltaBlock*stride), d...) // the values, then d
		products := randomFloats(rng, blockRows*deltaTile)
		same(fmt.Sprintf("solve with stride %d", stride), found, func(m *mixerKernels, x *float32) {
			at := &unsafe.Slice(x, deltaBlock*stride+1)[deltaBlock*stride]
			m.solve(x, stride, at, &products[0], &pairs[0], &pairs[square], &decay[0], &beta[0], &decay[0])
		})
		eights := (dims + 7) / 8 * 8
		kq, s = randomFloats(rng, eights*blockRows), randomFloats(rng, eights*deltaTile)
		same(fmt.Sprintf("update of %d dims", eights), s, func(m *mixerKernels, x *float32) { m.update(x, &kq[0], &d[0], eights, 0.9) })
	}
	for n := 1; n <= 70; n++ {
		x, y := randomFloats(rng, n), randomFloats(rng, n)
		taps := 1 + n%5
		rows, w := make([]*float32, taps), randomFloats(rng, taps*(n+9))
		for i := range rows {
			rows[i] = &randomFloats(rng, n)[0]
		}
		same(fmt.Sprintf("convolution of %d", n), x, func(m *mixerKernels, x *float32) { m.convolve(x, &rows[0], &w[0], n, taps, n+9, n) })
		turned := append(append([]float32(nil), x...), y...)
		same(fmt.Sprintf("rotation of %d", n), turned, func(m *mixerKernels, x *float32) {
			m.rotate(x, &unsafe.Slice(x, n+1)[n], &w[0], &w[taps], n)
		})
		acc := randomFloats(rng, n*5+chunkDims)
		same(fmt.Sprintf("collection of %d", n), x, func(m *mixerKernels, x *float32) { m.collect(x, &acc[0], 3*chunkDims, n, 0.3) })
		a, b := append([]float32(nil), x...), append([]float32(nil), y...)
		a[rng.IntN(n)] = pickFloat(rng, nan, math.Float32frombits(0x7f800001), math.Float32frombits(0xff80ffff), float32(math.Inf(-1)), math.MaxFloat32)
		b[rng.IntN(n)] = pickFloat(rng, 1+1./256, 1+3./256, math.Float32frombits(0xffffffff), -1-1./256, float32(math.Inf(1)))
		same(fmt.Sprintf("zip of %d", n), make([]float32, (n+chunkDims-1)/chunkDims*chunkDims*groupPositions/2), func(m *mixerKernels, x *float32) {
			m.zip((*byte)(unsafe.Pointer(x)), &a[0], &b[0], n)
		})
		same(fmt.Sprintf("second of %d", n), randomFloats(rng, (n+chunkDims-1)/chunkDims*chunkDims*groupPositions/2), func(m *mixerKernels, x *float32) {
			m.zipSecond((*byte)(unsafe.Pointer(x)), &b[0], n)
		})
		if whole := n &^ 7; whole > 0 {
			same(fmt.Sprintf("key of %d", whole), randomFloats(rng, whole/2*groupPositions), func(m *mixerKernels, x *float32) {
				m.storeKey((*byte)(unsafe.Pointer(x)), &a[0], whole)
			})
		}
		y[rng.IntN(n)] *= 200
		same(fmt.Sprintf("gate of %d", n), x, func(m *mixerKernels, x *float32) { m.gate(x, &y[0], n) })
	}
}

func pickFloat(rng *rand.Rand, of ...float32) float32 { return of[rng.IntN(len(of))] }

// attentionRun is one attention layer with contexts of some length.
type attentionRun struct {
	b    *Backend
	spec backend.Attention
	kv   *kvCache
	in   *buffer
	out  *buffer
	step backend.Step
}

// newAttentionRun lays out a step of count tokens in each row, after contexts
// whose keys and values are written straight into the cache.
func newAttentionRun(t testing.TB, b *Backend, layers, rows, heads, kvHeads, dim, context, count, blockSize int) *attentionRun {
	blocks := (context + count + blockSize - 1) / blockSize
	kv, err := b.NewKVCache(backend.KVSpec{
		Layers: layers, Blocks: rows * blocks, BlockSize: blockSize, KVHeads: kvHeads, HeadDim: dim, DType: backend.BF16,
	})
	require.NoError(t, err)
	c := kv.(*kvCache)
	rng := rand.New(rand.NewPCG(5, 5))
	cached := unsafe.Slice((*uint16)(c.data), layers*kvHeads*rows*blocks*c.perBlock*(c.keyBytes+c.valueBytes)/2)
	some := cached[:len(cached)/layers]
	for i := range some {
		some[i] = backend.EncodeBF16(2*rng.Float32() - 1)
	}
	for len(cached) > 0 {
		cached = cached[copy(cached, some):]
	}
	freqs := make([]float32, dim/4)
	for i := range freqs {
		freqs[i] = float32(math.Pow(10000, -float64(i)/float64(len(freqs))))
	}
	rope, err := b.NewRope(freqs, context+count)
	require.NoError(t, err)
	a := &attentionRun{b: b, kv: c, spec: backend.Attention{
		Heads: heads, KVHeads: kvHeads, HeadDim: dim, Scale: 0.3, Rope: rope, Gated: true,
	}}
	a.in, a.out = newBuffer(t, b, rows*count, (2*heads+2*kvHeads)*dim), newBuffer(t, b, rows*count, heads*dim)
	copy(a.in.x, randomFloats(rng, len(a.in.x)))
	perm := rng.Perm(rows * blocks)
	for r := range rows {
		row := backend.Row{First: r * count, Count: count, Start: context}
		for _, i := range perm[r*blocks:][:blocks] {
			row.Blocks = append(row.Blocks, int32(i))
		}
		a.step.Rows = append(a.step.Rows, row)
	}
	a.step.Tokens = make([]int32, rows*count)
	return a
}

func (a *attentionRun) run() {
	a.b.Begin(&a.step)
	a.b.Attention(a.out, a.in, &a.spec, a.kv)
}

// widenBorders makes the values large at both ends of each split, also after the last
// position, and the keys after that, so that a position too few or too many there tells.
func (a *attentionRun) widenBorders(rng *rand.Rand) {
	c := a.kv
	for r := range a.step.Rows {
		row := &a.step.Rows[r]
		for position := range len(row.Blocks) * c.spec.BlockSize {
			group, lane := c.place(position)
			if position >= row.Start+row.Count {
				for head := range a.spec.KVHeads {
					k := randomFloats(rng, a.spec.HeadDim)
					for i := range k {
						k[i] *= 100
					}
					c.storeKey(c.keys(c.index(0, head, row.Blocks, group)), lane, k)
				}
			}
			if group%splitGroups == 0 && lane == 0 || group%splitGroups == splitGroups-1 && lane == c.lanes(group)-1 {
				for head := range a.spec.KVHeads {
					v := randomFloats(rng, a.spec.HeadDim)
					for i := range v {
						v[i] *= 100
					}
					c.storeValue(c.values(c.index(0, head, row.Blocks, group)), lane, v, make([]float32, len(v)))
				}
			}
		}
	}
}

// requireNear holds all results to softmax attention in float64 over what is cached.
func (a *attentionRun) requireNear(t *testing.T, tolerance float64, what string) {
	t.Helper()
	c, spec := a.kv, &a.spec
	angles := spec.Rope.(*rope)
	bf16 := func(p *byte, i int) float64 {
		return float64(backend.DecodeBF16(unsafe.Slice((*uint16)(unsafe.Pointer(p)), i+1)[i]))
	}
	for r := range a.step.Rows {
		row := &a.step.Rows[r]
		for i := range row.Count * spec.Heads {
			token, position, head := row.First+i/spec.Heads, row.Start+i/spec.Heads, i%spec.Heads
			in := a.in.row(token)[2*head*spec.HeadDim:]
			q := make([]float64, spec.HeadDim)
			for d := range q {
				q[d] = float64(in[d])
			}
			for d := range angles.pairs {
				sin, cos := float64(angles.sin[position*angles.pairs+d]), float64(angles.cos[position*angles.pairs+d])
				x, y := q[d], q[d+angles.pairs]
				q[d], q[d+angles.pairs] = x*cos-y*sin, y*cos+x*sin
			}
			out, sizes, sum := make([]float64, spec.HeadDim), make([]float64, spec.HeadDim), 0.0
			for p := range position + 1 {
				group, lane := c.place(p)
				at := c.index(spec.Layer, head*spec.KVHeads/spec.Heads, row.Blocks, group)
				score := 0.0
				for d := range q {
					score += q[d] * bf16(c.keys(at), (d/2*groupPositions+lane)*2+d%2)
				}
				weight := math.Exp(score * float64(spec.Scale))
				sum += weight
				for d := range out {
					v := weight * bf16(c.values(at), ((d/chunkDims*groupPositions/2+lane/2)*chunkDims+d%chunkDims)*2+lane%2)
					out[d] += v
					sizes[d] += math.Abs(v)
				}
			}
			for d, v := range out {
				gate := sum * (1 + math.Exp(-float64(in[spec.HeadDim+d])))
				if got, want := float64(a.out.row(token)[head*spec.HeadDim+d]), v/gate; !(math.Abs(got-want) <= tolerance*sizes[d]/gate) {
					t.Fatalf("%s: position %d of row %d, head %d, dim %d is %v, want %v", what, position, r, head, d, got, want)
				}
			}
		}
	}
}

// TestAttentionSharesLongContexts: however many workers share a context, and in
// whatever instruction set, the bits are the same of each kind of products, and those of
// softmax attention: within 2⁻⁸ of the terms where weights are rounded to bf16, by as much
// at most (that of queries averages out over their dims).
func TestAttentionSharesLongContexts(t *testing.T) {
	for _, neighbours := range []bool{false, true} {
		t.Run(fmt.Sprintf("neighbours=%t", neighbours), func(t *testing.T) { testLongContexts(t, neighbours) })
	}
}

// testLongContexts does so with KV blocks in any order, or as they lie in memory: those of
// one row are all neighbours, those of several here and there.
func testLongContexts(t *testing.T, neighbours bool) {
	for _, c := range []struct{ rows, heads, kvHeads, dim, context, count, blockSize int }{
		{1, 4, 1, 32, 1300, 1, 16}, {1, 6, 3, 32, 700, 1, 16}, {2, 2, 1, 32, 1025, 1, 16}, {3, 9, 1, 32, 530, 1, 16},
		{1, 2, 1, 32, 1019, 9, 16}, {1, 1, 1, 32, 250, 9, 16}, {1, 8, 2, 32, 254, 1, 16}, {1, 6, 2, 33, 600, 1, 32}, {1, 2, 1, 260, 600, 1, 16},
		// More than are read in one go: whole splits, and one position more.
		{1, 2, 1, 32, 4094, 1, 16}, {1, 2, 1, 32, 4095, 1, 16}, {1, 2, 1, 32, 4096, 1, 16}, {1, 1, 1, 32, 8448, 1, 64},
		{1, 4, 1, 32, 4091, 7, 48}, {1, 1, 1, 32, 2100, 1, 8}, {2, 1, 1, 32, 3120, 3, 24},
	} {
		want := map[products][]uint32{}
		for _, opt := range settings() {
			for _, threads := range []int{1, 2, 5} {
				if opt.ISA != detect() && threads > 1 {
					continue
				}
				opt.Threads = threads
				b := newBackend(t, opt)
				a := newAttentionRun(t, b, 1, c.rows, c.heads, c.kvHeads, c.dim, c.context, c.count, c.blockSize)
				if neighbours {
					for r := range a.step.Rows {
						slices.Sort(a.step.Rows[r].Blocks)
					}
				}
				a.widenBorders(rand.New(rand.NewPCG(7, 7)))
				fill(a.out.x, nan)
				a.run()
				if threads > c.rows*c.kvHeads && c.count == 1 && c.context >= splitPositions {
					require.True(t, a.kv.task.isCut, "%+v: no context is shared", c)
				}
				got, kind := bits(a.out.x), b.products()
				if want[kind] == nil {
					want[kind] = got
					a.requireNear(t, map[Precision]float64{F32: 1e-5, BF16: 0x1p-8}[opt.Precision], fmt.Sprintf("%+v, %+v", c, opt))
				}
				require.Equal(t, want[kind], got, "%+v, %+v", c, opt)
				require.Zero(t, testing.AllocsPerRun(5, a.run))
			}
		}
	}
}

// TestEmptyLanesStayZero in groups that KV blocks do not fill, after a prompt and decoding.
func TestEmptyLanesStayZero(t *testing.T) {
	for _, blockSize := range []int{1, 3, 7, 17} {
		a := newAttentionRun(t, newBackend(t, Options{}), 1, 1, 2, 1, 32, 0, 14, blockSize)
		a.step.Rows[0].Count, a.step.Tokens = 9, a.step.Tokens[:9]
		c, row := a.kv, &a.step.Rows[0]
		clear(unsafe.Slice((*byte)(c.valueData), len(row.Blocks)*c.perBlock*c.valueBytes))
		for n := 9; n <= 14; n++ {
			a.run()
			for position := range n {
				group, _ := c.place(position)
				values := unsafe.Slice((*uint16)(unsafe.Pointer(c.values(c.index(0, 0, row.Blocks, group)))), c.valueBytes/2)
				for lane := c.lanes(group); lane < groupPositions; lane++ {
					for chunk := range c.chunks {
						for d := range chunkDims {
							require.Zero(t, values[((chunk*groupPositions/2+lane/2)*chunkDims+d)*2+lane%2], "KV blocks of %d, %d positions, lane %d", blockSize, n, lane)
						}
					}
				}
			}
			row.Start, row.Count = n, 1
			a.step.Tokens = a.step.Tokens[:1]
			if n+1 > len(row.Blocks)*blockSize {
				break
			}
		}
	}
}

// TestAttentionKeepsRowsApart: a row of NaN leaves none to the row before it, whose
// value may be stored together with the next token's.
func TestAttentionKeepsRowsApart(t *testing.T) {
	for _, opt := range settings() {
		b := newBackend(t, opt)
		for context := 16; context < 20; context++ {
			for count := 1; count <= 2; count++ {
				a := newAttentionRun(t, b, 1, 2, 2, 1, 32, context, count, 16)
				a.run()
				own := a.out.x[:count*a.out.width]
				want := append([]uint32(nil), bits(own)...)
				fill(a.in.x[count*a.in.width:], nan)
				a.run()
				require.Equal(t, want, bits(own), "%+v, %d tokens after %d", opt, count, context)
			}
		}
	}
}

// deltaRun is one gated delta layer.
type deltaRun struct {
	b     *Backend
	d     backend.GatedDelta
	state *deltaState
	in    *buffer
	out   *buffer
	step  backend.Step
}

func newDeltaRun(t testing.TB, b *Backend, rows, keyHeads, valueHeads, count int) *deltaRun {
	sp := backend.DeltaSpec{Layers: 1, Slots: rows, KeyHeads: keyHeads, ValueHeads: valueHeads, KeyDim: 128, ValueDim: 128, ConvWidth: 4}
	state, err := b.NewDeltaState(sp)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(6, 6))
	vec := func(n int) backend.Vector {
		v, err := b.NewVector(&tensor{name: "v", shape: []int{n}, x: randomFloats(rng, n)})
		require.NoError(t, err)
		return v
	}
	d := &deltaRun{b: b, state: state.(*deltaState), d: backend.GatedDelta{
		Conv: vec(sp.ConvDim() * 4), ALog: vec(valueHeads), DTBias: vec(valueHeads),
		Norm: backend.Norm{Weight: vec(128), Eps: 1e-6},
	}}
	d.in, d.out = newBuffer(t, b, rows*count, sp.ProjDim()), newBuffer(t, b, rows*count, valueHeads*128)
	copy(d.in.x, randomFloats(rng, len(d.in.x)))
	for r := range rows {
		d.step.Rows = append(d.step.Rows, backend.Row{First: r * count, Count: count, Slot: r})
		b.ResetSlot(state, r)
	}
	d.step.Tokens = make([]int32, rows*count)
	return d
}

func (d *deltaRun) run() {
	d.b.Begin(&d.step)
	d.b.GatedDelta(d.out, d.in, &d.d, d.state)
}

// TestGatedDeltaIsTheSameEverywhere: instruction sets and workers change no bit.
func TestGatedDeltaIsTheSameEverywhere(t *testing.T) {
	var want []uint32
	for _, isa := range Supported() {
		for _, threads := range []int{1, 3} {
			d := newDeltaRun(t, newBackend(t, Options{ISA: isa, Threads: threads}), 2, 3, 6, 27) // whole blocks and parts
			d.run()
			d.run()
			if want == nil {
				want = bits(d.out.x)
				require.NotEqual(t, uint32(0x7f800000), want[0]&0x7f800000, "not finite")
			}
			require.Equal(t, want, bits(d.out.x), "%v, %d threads", isa, threads)
			require.Zero(t, testing.AllocsPerRun(10, d.run))
		}
	}
}

// TestDeltaBytes: it is what is kept, and nothing without layers.
func TestDeltaBytes(t *testing.T) {
	sp := backend.DeltaSpec{Layers: 3, Slots: 5, KeyHeads: 2, ValueHeads: 6, KeyDim: 12, ValueDim: 40, ConvWidth: 4}
	state, err := newBackend(t, Options{Threads: 1}).NewDeltaState(sp)
	require.NoError(t, err)
	s := state.(*deltaState)
	require.Equal(t, 4*(len(s.units)+len(s.heads)), DeltaBytes(sp)*sp.Slots)
	require.Zero(t, DeltaBytes(backend.DeltaSpec{}))
}

// TestGatedDeltaTakesAnotherConvolution: what was laid out for a layer's convolution is
// not used for another one.
func TestGatedDeltaTakesAnotherConvolution(t *testing.T) {
	b := newBackend(t, Options{Threads: 1})
	fresh, used := newDeltaRun(t, b, 1, 1, 1, 5), newDeltaRun(t, b, 1, 1, 1, 5)
	used.run()
	other := randomFloats(rand.New(rand.NewPCG(8, 8)), fresh.d.Conv.Len())
	fresh.d.Conv, used.d.Conv = vector(other), vector(other)
	b.ResetSlot(used.state, 0)
	fresh.run()
	used.run()
	require.Equal(t, bits(fresh.out.x), bits(used.out.x))
}

// ruleTokens is the gated delta rule in float64, for one column of the state,
// with the sizes of the terms that each output and state is made of.
func ruleTokens(k, q [][]float32, v, decay, beta []float32, s []float64) (o, size []float64, sizes []float64) {
	sizes = make([]float64, len(s))
	for r := range s {
		sizes[r] = math.Abs(s[r])
	}
	for t := range k {
		var kS, out, terms float64
		for r := range s {
			s[r] *= float64(decay[t])
			sizes[r] *= float64(decay[t])
			kS += float64(k[t][r]) * s[r]
		}
		d := float64(beta[t]) * (float64(v[t]) - kS)
		for r := range s {
			s[r] += float64(k[t][r]) * d
			sizes[r] += math.Abs(float64(k[t][r])) * (math.Abs(d) + math.Abs(kS))
			out += float64(q[t][r]) * s[r]
			terms += math.Abs(float64(q[t][r])) * sizes[r]
		}
		o, size = append(o, out), append(size, terms)
	}
	return o, size, sizes
}

// TestBlockIsTheRule holds a block's kernels to the rule token by token: random
// decays, from nearly none to complete, keys that are alike or the same, large
// and small values and states.
func TestBlockIsTheRule(t *testing.T) {
	const seed, tolerance = 12, 2e-6
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	random := func(n int, size float32) []float32 {
		x := randomFloats(rng, n)
		for i := range x {
			x[i] *= size
		}
		return x
	}
	decays := map[string]func() float32{
		"random":          func() float32 { return rng.Float32() },
		"none":            func() float32 { return 1 },
		"nearly none":     func() float32 { return 1 - 1e-5*rng.Float32() },
		"strong":          func() float32 { return float32(math.Exp(-80 * rng.Float64())) },
		"complete":        func() float32 { return 0 },
		"all or nothing":  func() float32 { return float32(rng.IntN(2)) },
		"barely a number": func() float32 { return float32(math.Exp(-100 * rng.Float64())) },
	}
	for name, decayOf := range decays {
		for _, size := range []float32{1e-12, 1, 1e12} {
			for _, alike := range []float32{1, 0.1, 0} { // how far keys differ
				for _, isa := range Supported() {
					dims := 16 * (1 + rng.IntN(8))
					m := mixersFor(isa)
					var b blockScratch
					b.init(dims, func(n int) []float32 {
						x := make([]float32, n)
						fill(x, nan)
						return x
					})
					var k, q [][]float32
					var keys []float32
					common := random(dims, 1)
					unit := func(x []float32) []float32 {
						sum := 0.0
						for _, v := range x {
							sum += float64(v) * float64(v)
						}
						for i := range x {
							x[i] = float32(float64(x[i]) / math.Sqrt(sum))
						}
						return x
					}
					for i := range deltaBlock {
						x := random(dims, alike)
						for r := range x {
							x[r] += common[r]
						}
						k, q = append(k, unit(x)), append(q, unit(random(dims, 1)))
						keys = append(keys, k[i]...)
						for r := range dims {
							b.kq[r*blockRows+i], b.kq[r*blockRows+deltaBlock+i] = k[i][r], q[i][r]
						}
					}
					s, v := random(dims*deltaTile, size), random(deltaBlock*deltaTile, size)
					var decay, beta, rise, ratio [deltaBlock]float32
					since := float32(1)
					for i := range decay {
						decay[i], beta[i] = decayOf(), min(1, 2*rng.Float32())
						since *= decay[i]
						rise[i] = since
					}
					S, V := append([]float32(nil), s...), append([]float32(nil), v...)
					for i := range deltaBlock {
						m.match(&b.pairs[i*deltaBlock], &keys[0], &keys[i*dims], dims, i+1)
						m.match(&b.pairs[(deltaBlock+i)*deltaBlock], &keys[0], &q[i][0], dims, i+1)
					}
					m.weigh(&b.a[0], &b.p[0], &ratio[0], &b.pairs[0], &decay[0], &beta[0], 0, deltaBlock)
					m.product(&b.x[0], &b.kq[0], &s[0], dims)
					m.solve(&v[0], deltaTile, &b.d[0], &b.x[0], &b.a[0], &b.p[0], &rise[0], &beta[0], &ratio[0])
					m.update(&s[0], &b.kq[0], &b.d[0], dims, since)
					what := fmt.Sprintf("%s decay, values of %g, keys %g apart, %d dims, %v", name, size, alike, dims, isa)
					for c := range deltaTile {
						column, values := make([]float64, dims), make([]float32, deltaBlock)
						for r := range column {
							column[r] = float64(S[r*deltaTile+c])
						}
						for i := range values {
							values[i] = V[i*deltaTile+c]
						}
						o, terms, sizes := ruleTokens(k, q, values, decay[:], beta[:], column)
						for i := range o {
							require.InDelta(t, o[i], v[i*deltaTile+c], tolerance*terms[i], "%s: output %d", what, i)
						}
						for r := range column {
							require.InDelta(t, column[r], s[r*deltaTile+c], tolerance*sizes[r], "%s: state %d", what, r)
						}
					}
				}
			}
		}
	}
}

// BenchmarkAttention reads contexts of 4096 positions, layer after layer, so that they
// come from memory, and reports its share of the read bandwidth, measured in turns with
// it. KV blocks follow each other, as after a prompt, or are scattered, as after decoding
// among others.
func BenchmarkAttention(b *testing.B) {
	for _, isa := range Supported()[1:] {
		for _, c := range []struct{ heads, kvHeads, dim int }{{9, 3, 64}, {32, 8, 64}, {24, 8, 128}, {32, 8, 128}, {6, 2, 256}, {8, 2, 256}} {
			for _, rows := range []int{1, 8} {
				for _, blocks := range []string{"run", "scattered"} {
					b.Run(fmt.Sprintf("isa=%v/heads=%d_%d/dim=%d/rows=%d/blocks=%s", isa, c.heads, c.kvHeads, c.dim, rows, blocks), func(b *testing.B) {
						benchmarkAttention(b, newBackend(b, Options{ISA: isa}), rows, c.heads, c.kvHeads, c.dim, blocks == "run")
					})
				}
			}
		}
	}
}

func benchmarkAttention(b *testing.B, cpu *Backend, rows, heads, kvHeads, dim int, run bool) {
	const context = 4096
	layers := benchBytes/(rows*context*kvHeads*dim*4) + 1
	a := newAttentionRun(b, cpu, layers, rows, heads, kvHeads, dim, context, 1, 16)
	s := a.kv.spec
	for r := range a.step.Rows {
		blocks := a.step.Rows[r].Blocks
		for i := range blocks {
			if run {
				blocks[i] = int32(r*len(blocks) + i)
			}
		}
	}
	stream := cpu.newProbe()
	stream.memory = unsafe.Slice((*byte)(a.kv.data), s.BytesPerToken()*s.Blocks*s.BlockSize)
	attend, read := make(stopwatch, 1), make(stopwatch, 1)
	for b.Loop() {
		attend.time(0, func() {
			for a.spec.Layer = range layers {
				a.run()
			}
		})
		read.time(0, func() { cpu.pool.run(stream) })
	}
	bandwidth := float64(len(stream.memory)/probeBytes*probeBytes) / read.seconds()
	rate := float64(rows*context*s.BytesPerToken()) / attend.seconds()
	b.ReportMetric(rate/1e9, "GB/s")
	b.ReportMetric(bandwidth/1e9, "GB/s-stream")
	b.ReportMetric(rate/bandwidth, "of-bandwidth")
}

// BenchmarkAttentionPrompt attends to the tokens of a prompt chunk, after a context.
func BenchmarkAttentionPrompt(b *testing.B) {
	for _, c := range []struct{ heads, kvHeads, dim, context, count int }{
		{6, 2, 256, 0, 64}, {6, 2, 256, 0, 512}, {8, 2, 256, 1024, 256}, {32, 8, 64, 0, 512}, {32, 8, 128, 0, 512},
	} {
		b.Run(fmt.Sprintf("heads=%d_%d/dim=%d/context=%d/tokens=%d", c.heads, c.kvHeads, c.dim, c.context, c.count), func(b *testing.B) {
			a := newAttentionRun(b, newBackend(b, Options{}), 1, 1, c.heads, c.kvHeads, c.dim, c.context, c.count, 16)
			for b.Loop() {
				a.run()
			}
			flops := 4 * c.heads * c.dim * (c.count*c.context + c.count*(c.count+1)/2)
			b.ReportMetric(float64(flops)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// BenchmarkGatedDelta advances states; MB/s counts one read and one write.
func BenchmarkGatedDelta(b *testing.B) {
	for _, c := range []struct{ rows, count int }{{1, 1}, {8, 1}, {64, 1}, {1, 64}, {1, 512}} {
		b.Run(fmt.Sprintf("rows=%d/tokens=%d", c.rows, c.count), func(b *testing.B) {
			d := newDeltaRun(b, newBackend(b, Options{}), c.rows, 16, 16, c.count)
			b.SetBytes(int64(2 * 4 * c.rows * 16 * d.state.headSize))
			for b.Loop() {
				d.run()
			}
		})
	}
}
