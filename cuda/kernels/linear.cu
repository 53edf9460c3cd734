// Linear layers, y = W·norm(x), over bf16 weights.
//
// An activation goes into the tensor cores as two bf16 numbers, its high part
// and the rest, which together have 16 bits of its fraction. The norm's weight
// is applied before, its scale (which needs the whole row) after the product.
//
// All variants add in one order, so that a token gets the same bits from each:
// the inputs are cut into eight slices at fixed places; within a slice, tiles
// of 16 inputs follow in order, the high parts of a tile's activations before
// the low ones; then the slices are added in order. So do the squares of the
// norm: four lanes for a slice, each with 4 of 16 inputs.
//
// epilogue: 0 stores, 1 adds to dst, 2 is silu(gate)·up, where a tile has 8
// outputs: 8 rows of gate and 8 of up.
#include "device.cuh"

constexpr int slices = 8;

static __device__ __forceinline__ int slice_begin(int s, int ktiles) { return (int)((int64_t)ktiles * s / slices); }

static __device__ __forceinline__ float scale_of(const float *squares, int stride, int inputs, float eps) {
	float sum = squares[0];
#pragma unroll
	for (int s = 1; s < slices; s++) sum += squares[s * stride];
	return rsqrtf(sum / (float)inputs + eps);
}

// split makes the operand of the tensor cores: high parts in x and y, the rest
// in z and w.
static __device__ __forceinline__ uint4 split(activations a, const float *weight, float offset, int k, int inputs, bool pairs) {
	if (weight) {
		activations w = read_activations(weight, k, inputs, pairs);
#pragma unroll
		for (int e = 0; e < 4; e++) a.v[e] *= offset + w.v[e];
	}
	return split_tile(a.v[0], a.v[1], a.v[2], a.v[3]);
}

static __device__ __forceinline__ void load_weights(uint32_t (&a)[4], const uint4 *p) {
	uint4 v = stream(p);
	a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
}

static __device__ __forceinline__ void read_weights(uint32_t (&a)[4], const uint4 *p) {
	uint4 v = *p;
	a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
}

static __device__ __forceinline__ void mma_split(float (&d)[4], const uint32_t (&a)[4], const uint4 &x) {
	uint32_t high[2] = {x.x, x.y}, low[2] = {x.z, x.w};
	mma_bf16(d, a, high);
	mma_bf16(d, a, low);
}

static __device__ __forceinline__ int mtile_count(int outputs, int epilogue) {
	return epilogue == 2 ? (outputs + 7) / 8 : (outputs + 15) / 16;
}

// output is the output that a row of a tile belongs to.
static __device__ __forceinline__ int output_of(int mtile, int row, int epilogue) {
	return epilogue == 2 ? mtile * 8 + row % 8 : mtile * 16 + row;
}

// finish writes one output of one token. up is used by SwiGLU alone.
static __device__ __forceinline__ void finish(float *dst, float y, float up, int epilogue) {
	if (epilogue == 0) *dst = y;
	else if (epilogue == 1) *dst = *dst + y;
	else *dst = silu(y) * up;
}

// Decode: 1 … 8·NT tokens, bound by reading the weights once. A block of eight
// warps computes 16·MT outputs, one slice of the inputs a warp; every weight is
// loaded once, 16 bytes a lane. MT changes how often activations are read
// again (from L2), and how many blocks there are, but no result. Norm and split
// are done by every block for itself: that is cheaper than a launch before it.
template <int MT, int NT>
static __device__ __forceinline__ void linear_decode(float *dst, int width, const uint4 *w, const float *x, int x_width,
                                                     const float *weight, float eps, float offset,
                                                     int outputs, int inputs, int n, int epilogue) {
	SHARED(float, partial, slices * MT * NT * 128);
	SHARED(float, squares, slices * NT * 8);
	bool pairs = inputs % 16 == 0 && x_width % 2 == 0;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int ktiles = (inputs + 15) / 16, mtiles = mtile_count(outputs, epilogue), m0 = blockIdx.x * MT;
	float acc[MT][NT][4] = {}, sum[NT] = {};

	// Depth tiles are under way at once for each lane: enough bytes in flight
	// to hide the latency of memory. The last round loads its last tile again
	// rather than branch.
	constexpr int depth = MT * NT >= 4 ? 2 : 8 / (MT * NT);
	const uint4 *weights[MT];
#pragma unroll
	for (int m = 0; m < MT; m++) weights[m] = w + (int64_t)min(m0 + m, mtiles - 1) * ktiles * 32 + lane;
	int end = slice_begin(warp + 1, ktiles);
	for (int k0 = slice_begin(warp, ktiles); k0 < end; k0 += depth) {
		uint32_t a[depth][MT][4];
#pragma unroll
		for (int i = 0; i < depth; i++)
#pragma unroll
			for (int m = 0; m < MT; m++) load_weights(a[i][m], weights[m] + (int64_t)min(k0 + i, end - 1) * 32);
#pragma unroll
		for (int i = 0; i < depth; i++) {
			int k = k0 + i;
			if (k >= end) break;
#pragma unroll
			for (int t = 0; t < NT; t++) {
				uint4 b = {0, 0, 0, 0};
				int token = t * 8 + lane / 4, at = k * 16 + lane % 4 * 2;
				if (token < n) {
					activations v = read_activations(x + (int64_t)token * x_width, at, inputs, pairs);
					sum[t] = add_squares(sum[t], v);
					b = split(v, weight, offset, at, inputs, pairs);
				}
#pragma unroll
				for (int m = 0; m < MT; m++) mma_split(acc[m][t], a[i][m], b);
			}
		}
	}
#pragma unroll
	for (int m = 0; m < MT; m++)
#pragma unroll
		for (int t = 0; t < NT; t++)
#pragma unroll
			for (int r = 0; r < 4; r++)
				partial[((warp * MT + m) * NT + t) * 128 + r * 32 + lane] = acc[m][t][r];
#pragma unroll
	for (int t = 0; t < NT; t++) {
		float all = quad_sum(sum[t]);
		if (lane % 4 == 0) squares[(warp * NT + t) * 8 + lane / 4] = all;
	}
	__syncthreads();

	// Accumulator r of a lane is row lane/4 + 8·(r/2), token 2·(lane%4) + r%2.
	for (int i = threadIdx.x; i < MT * NT * 128; i += 256) {
		int r = i / 32 % 4, l = i % 32, t = i / 128 % NT, m = i / 128 / NT;
		int token = t * 8 + l % 4 * 2 + r % 2;
		int out = output_of(m0 + m, l / 4 + r / 2 * 8, epilogue);
		if (token >= n || out >= outputs || (epilogue == 2 && r >= 2)) continue;
		float y = partial[i], up = 0;
#pragma unroll
		for (int s = 1; s < slices; s++) y += partial[s * MT * NT * 128 + i];
		if (epilogue == 2) {
			up = partial[i + 64];
#pragma unroll
			for (int s = 1; s < slices; s++) up += partial[s * MT * NT * 128 + i + 64];
		}
		if (weight) {
			float scale = scale_of(squares + token, NT * 8, inputs, eps);
			y *= scale, up *= scale;
		}
		finish(dst + (int64_t)token * width + out, y, up, epilogue);
	}
}

#define DECODE(MT, NT)                                                                                        \
	KERNEL(256, linear_decode_##MT##_##NT, float *dst, int width, const uint4 *w, const float *x, int x_width, \
	       const float *weight, float eps, float offset, int outputs, int inputs, int n, int epilogue) {      \
		linear_decode<MT, NT>(dst, width, w, x, x_width, weight, eps, offset, outputs, inputs, n, epilogue);  \
	}
DECODE(1, 1)
DECODE(2, 1)
DECODE(4, 1)
DECODE(1, 2)
DECODE(2, 2)

// Input of the prefill kernel: split as decode does it, in the layout of mma's
// second operand (tiles of 8 tokens × 16 inputs, 16 bytes a lane), and the
// scales of the norm. grid: tokens rounded up to 8; the last ones are zero
KERNEL(256, split_rows, uint4 *dst, float *scales, const float *x, int x_width, const float *weight, float eps, float offset,
       int inputs, int n) {
	SHARED(float, squares, slices);
	int t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32, ktiles = (inputs + 15) / 16;
	bool pairs = inputs % 16 == 0 && x_width % 2 == 0;
	const float *row = x + (int64_t)t * x_width;
	for (int i = threadIdx.x; i < ktiles * 4; i += 256) {
		int k = i / 4 * 16 + i % 4 * 2;
		uint4 b = {0, 0, 0, 0};
		if (t < n) b = split(read_activations(row, k, inputs, pairs), weight, offset, k, inputs, pairs);
		dst[((int64_t)(t / 8) * ktiles + i / 4) * 32 + t % 8 * 4 + i % 4] = b;
	}
	if (!weight || t >= n) return;
	float sum = 0;
	int end = slice_begin(warp + 1, ktiles);
	if (lane < 4)
		for (int k = slice_begin(warp, ktiles); k < end; k++)
			sum = add_squares(sum, read_activations(row, k * 16 + lane * 2, inputs, pairs));
	sum = quad_sum(sum);
	if (lane == 0) squares[warp] = sum;
	__syncthreads();
	if (threadIdx.x == 0) scales[t] = scale_of(squares, 1, inputs, eps);
}

// Prefill: many tokens, bound by the tensor cores. A block computes 128 outputs
// of 64 tokens; weights and activations come through shared memory, in stages
// of two tiles of inputs that are copied while earlier ones are used.
constexpr int stages = 3, stage_tiles = 2, block_mtiles = 8, block_ntiles = 8;
constexpr int stage_vectors = stage_tiles * (block_mtiles + block_ntiles) * 32;  // of 16 bytes

// grid: (outputs/128, tokens/64), dynamic shared memory: stages·stage_vectors·16 bytes
KERNEL(256, linear_prefill, float *dst, int width, const uint4 *w, const uint4 *x, const float *scales,
       int outputs, int inputs, int n, int epilogue) {
	DYNAMIC_SHARED(memory);
	uint4 *buffer = (uint4 *)memory;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int ktiles = (inputs + 15) / 16, mtiles = mtile_count(outputs, epilogue), ntiles = (n + 7) / 8;
	int m0 = blockIdx.x * block_mtiles, n0 = blockIdx.y * block_ntiles;
	int wm = warp % 4 * 2, wn = warp / 4 * 4;  // a warp has 2 × 4 tiles of the block's 8 × 8

	// Each warp copies one row of tiles of the weights and one of the activations.
	auto fetch = [&](int k0, int stage) {
		uint4 *to = buffer + stage * stage_vectors;
#pragma unroll
		for (int k = 0; k < stage_tiles; k++) {
			int kt = min(k0 + k, ktiles - 1);
			int mt = min(m0 + warp, mtiles - 1), nt = min(n0 + warp, ntiles - 1);
			int wanted = k0 + k < ktiles ? 16 : 0;
			cp_async16(to + (k * block_mtiles + warp) * 32 + lane, w + ((int64_t)mt * ktiles + kt) * 32 + lane,
			           m0 + warp < mtiles ? wanted : 0);
			cp_async16(to + ((stage_tiles * block_mtiles) + k * block_ntiles + warp) * 32 + lane,
			           x + ((int64_t)nt * ktiles + kt) * 32 + lane, n0 + warp < ntiles ? wanted : 0);
		}
	};

	float sum[2][4][4] = {}, acc[2][4][4] = {};
	int slice = 0, boundary = slice_begin(1, ktiles);
	int steps = (ktiles + stage_tiles - 1) / stage_tiles;
#pragma unroll
	for (int s = 0; s < stages - 1; s++) {
		if (s < steps) fetch(s * stage_tiles, s);
		cp_async_commit();
	}
	for (int step = 0; step < steps; step++) {
		cp_async_wait<stages - 2>();
		__syncthreads();  // stage `step` is there for all, and stage step−1 is used up by all
		if (step + stages - 1 < steps) fetch((step + stages - 1) * stage_tiles, (step + stages - 1) % stages);
		cp_async_commit();
		const uint4 *from = buffer + step % stages * stage_vectors;
#pragma unroll
		for (int k = 0; k < stage_tiles; k++) {
			int kt = step * stage_tiles + k;
			if (kt >= ktiles) break;
			while (kt == boundary) {  // a slice ends; slices may be empty
				for (int m = 0; m < 2; m++)
					for (int t = 0; t < 4; t++)
						for (int r = 0; r < 4; r++) {
							sum[m][t][r] = slice == 0 ? acc[m][t][r] : sum[m][t][r] + acc[m][t][r];
							acc[m][t][r] = 0;
						}
				slice++;
				boundary = slice_begin(slice + 1, ktiles);
			}
			uint32_t a[2][4];
#pragma unroll
			for (int m = 0; m < 2; m++) read_weights(a[m], from + (k * block_mtiles + wm + m) * 32 + lane);
#pragma unroll
			for (int t = 0; t < 4; t++) {
				uint4 b = from[(stage_tiles * block_mtiles + k * block_ntiles + wn + t) * 32 + lane];
#pragma unroll
				for (int m = 0; m < 2; m++) mma_split(acc[m][t], a[m], b);
			}
		}
	}
	cp_async_wait<0>();

#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int t = 0; t < 4; t++)
#pragma unroll
			for (int r = 0; r < 4; r++) {
				float y = slice == 0 ? acc[m][t][r] : sum[m][t][r] + acc[m][t][r];
				sum[m][t][r] = y;
			}
#pragma unroll
	for (int m = 0; m < 2; m++)
#pragma unroll
		for (int t = 0; t < 4; t++)
#pragma unroll
			for (int r = 0; r < 4; r++) {
				int token = (n0 + wn + t) * 8 + lane % 4 * 2 + r % 2;
				int out = output_of(m0 + wm + m, lane / 4 + r / 2 * 8, epilogue);
				if (token >= n || out >= outputs || (epilogue == 2 && r >= 2)) continue;
				float scale = scales ? scales[token] : 1.0f;
				finish(dst + (int64_t)token * width + out, sum[m][t][r] * scale, sum[m][t][(r + 2) % 4] * scale, epilogue);
			}
}

// f32 weights, for checkpoints that are stored so: eight tokens at a time, one
// output (or one pair of gate and up) a warp. x is padded like w.
// grid: (outputs/8, tokens/8)
KERNEL(256, linear_f32, float *dst, int width, const float4 *w, const float4 *x,
       int outputs, int inputs, int n, int epilogue) {
	int lane = threadIdx.x % 32, quads = (inputs + 3) / 4;
	int out = blockIdx.x * 8 + threadIdx.x / 32, first = blockIdx.y * 8;
	if (out >= outputs) return;
	int rows = epilogue == 2 ? 2 : 1, count = min(8, n - first);
	float y[2][8] = {};
	for (int r = 0; r < rows; r++) {
		const float4 *row = w + ((int64_t)out * rows + r) * quads;
		for (int k = lane; k < quads; k += 32) {
			float4 a = row[k];
#pragma unroll
			for (int t = 0; t < 8; t++) {
				if (t >= count) break;
				float4 b = x[(int64_t)(first + t) * quads + k];
				y[r][t] = fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, y[r][t]))));
			}
		}
	}
#pragma unroll
	for (int t = 0; t < 8; t++) {
		float a = warp_sum(y[0][t]), b = warp_sum(y[1][t]);
		if (lane == t && t < count) finish(dst + (int64_t)(first + t) * width + out, a, b, epilogue);
	}
}
