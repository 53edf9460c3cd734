// Attention over paged keys and values: preparation, and the tokens that
// attention_tiles.cu does not take, which is those of decode rows, and all where
// the cache is f32 or heads are not whole tiles.
//
// A token's context is cut into splits of 128 positions at fixed places. A
// split is computed in one way only (split_softmax), and the splits are merged
// in order of position (merge), be it by one block that walks over them all
// (many tokens) or by a second kernel (few): the bits are the same.
//
// Cache: [KV block][KV head][position in block][dim], of one layer.
#include "device.cuh"

constexpr int split = 128;        // positions; also the threads of a block
constexpr int max_dim = 256;      // of a head
constexpr int dims_each = max_dim / split;


// rotated is element d of a head after its norm and rotation.
// x is in shared memory.
static __device__ __forceinline__ float rotated(const float *x, int d, int rotary, const float *angles) {
	int half = rotary / 2;
	if (d >= rotary) return x[d];
	float c = angles[2 * (d % half)], s = angles[2 * (d % half) + 1];
	return d < half ? x[d] * c - x[d + half] * s : x[d] * c + x[d - half] * s;
}

// One warp prepares one head of one token: queries are normed, rotated, scaled
// and put aside; keys are normed, rotated and cached; values are cached.
// A block has four warps. grid: (tokens, (heads + 2·KV heads)/4)
template <typename T>
static __device__ __forceinline__ void attention_prepare(float *q, T *keys, T *values, const float *qkv, int width,
                                                         int nq, int nkv, int dim, int gated, float scale,
                                                         const float *q_norm, float q_eps, float q_offset, const float *k_norm, float k_eps, float k_offset,
                                                         const float *angles, int rotary, const int32_t *positions,
                                                         const int32_t *token_rows, const int32_t *row_blocks,
                                                         const int32_t *blocks, int block_size) {
	SHARED(float, memory, 4 * max_dim);
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int t = blockIdx.x, h = blockIdx.y * 4 + warp;
	if (h >= nq + 2 * nkv) return;
	int stride = gated ? 2 * dim : dim;
	int start = h < nq ? h * stride : nq * stride + (h - nq) * dim;
	const float *in = qkv + (int64_t)t * width + start;
	const float *norm = h < nq ? q_norm : h < nq + nkv ? k_norm : nullptr;
	float eps = h < nq ? q_eps : k_eps, offset = h < nq ? q_offset : k_offset;
	int position = positions[t];
	float *x = memory + warp * max_dim;

	float sum = 0;
	for (int d = lane; d < dim; d += 32) sum = fmaf(in[d], in[d], sum);
	float inverse = rsqrtf(warp_sum(sum) / (float)dim + eps);
	for (int d = lane; d < dim; d += 32) x[d] = norm ? in[d] * inverse * (offset + norm[d]) : in[d];
	__syncwarp();
	int turning = h < nq + nkv ? rotary : 0;
	const float *angle = angles + (int64_t)position * rotary;
	if (h < nq) {
		for (int d = lane; d < dim; d += 32) q[((int64_t)t * nq + h) * dim + d] = rotated(x, d, turning, angle) * scale;
		return;
	}
	int block = blocks[row_blocks[token_rows[t]] + position / block_size];
	int kv = (h - nq) % nkv;
	T *to = (h < nq + nkv ? keys : values) + (((int64_t)block * nkv + kv) * block_size + position % block_size) * dim;
	for (int d = lane; d < dim; d += 32) put(to + d, rotated(x, d, turning, angle));
}

#define PREPARE(name, T)                                                                                              \
	KERNEL(128, name, float *q, T *keys, T *values, const float *qkv, int width, int nq, int nkv, int dim, int gated, \
	       float scale, const float *q_norm, float q_eps, float q_offset, const float *k_norm, float k_eps, float k_offset, const float *angles,       \
	       int rotary, const int32_t *positions, const int32_t *token_rows, const int32_t *row_blocks,                \
	       const int32_t *blocks, int block_size) {                                                                   \
		attention_prepare<T>(q, keys, values, qkv, width, nq, nkv, dim, gated, scale, q_norm, q_eps, q_offset, k_norm, k_eps, k_offset,    \
		                     angles, rotary, positions, token_rows, row_blocks, blocks, block_size);                  \
	}
PREPARE(attention_prepare_bf16, uint16_t)
PREPARE(attention_prepare_f32, float)

// softmax is what a query knows after some of its context: the largest score,
// the sum of exp(score − largest), and this thread's dims of the sum of values.
struct softmax {
	float largest, sum, value[dims_each];
};

static __device__ __forceinline__ softmax empty() {
	softmax s;
	s.largest = -INFINITE, s.sum = 0;
	for (int j = 0; j < dims_each; j++) s.value[j] = 0;
	return s;
}

// read4 reads four elements of a row, whole if rows are aligned to four.
static __device__ __forceinline__ void read4(float (&x)[4], const float *p, bool whole) {
	if (whole) {
		float4 v = *(const float4 *)p;
		x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
		return;
	}
#pragma unroll
	for (int e = 0; e < 4; e++) x[e] = p[e];
}

static __device__ __forceinline__ void read4(float (&x)[4], const uint16_t *p, bool whole) {
	if (whole) {
		uint2 v = *(const uint2 *)p;
		x[0] = widen((uint16_t)v.x), x[1] = widen((uint16_t)(v.x >> 16));
		x[2] = widen((uint16_t)v.y), x[3] = widen((uint16_t)(v.y >> 16));
		return;
	}
#pragma unroll
	for (int e = 0; e < 4; e++) x[e] = widen(p[e]);
}

// workshop is the shared memory of a block: the query, and for each position
// of a split its weight and its row in the cache.
struct workshop {
	float *query, *weights, *scratch;  // of max_dim, split, 8
	int *rows;                         // of split
};

// split_softmax attends to the positions [first, first+count), count ≤ 128, with
// all threads of a block of 128. First a thread has one position, and the dims
// in four interleaved sums; then a thread has one or two dims, and the
// positions in order. The workshop may be used again after the next barrier.
template <typename T>
static __device__ __forceinline__ softmax split_softmax(const workshop &shop, const T *keys, const T *values, const int32_t *blocks,
                                                        int first, int count, int nkv, int kv, int dim, int block_size) {
	int thread = threadIdx.x;
	float score = -INFINITE;
	if (thread < count) {
		int p = first + thread;
		int row = (blocks[p / block_size] * nkv + kv) * block_size + p % block_size;
		shop.rows[thread] = row;
		const T *k = keys + (int64_t)row * dim;
		float part[4] = {};
		int d = 0;
#pragma unroll 4
		for (; d + 4 <= dim; d += 4) {
			float x[4];
			read4(x, k + d, dim % 4 == 0);
			float4 q = *(const float4 *)(shop.query + d);
			part[0] = fmaf(q.x, x[0], part[0]);
			part[1] = fmaf(q.y, x[1], part[1]);
			part[2] = fmaf(q.z, x[2], part[2]);
			part[3] = fmaf(q.w, x[3], part[3]);
		}
		for (; d < dim; d++) part[0] = fmaf(shop.query[d], value(k[d]), part[0]);
		score = (part[0] + part[1]) + (part[2] + part[3]);
	}
	softmax s = empty();
	s.largest = block_max<4>(score, shop.scratch);
	float e = thread < count ? expf(score - s.largest) : 0.0f;
	shop.weights[thread] = e;
	s.sum = block_sum<4>(e, shop.scratch + 4);  // and a barrier: all weights are there
	if (thread >= dim) return s;
#pragma unroll 4
	for (int i = 0; i < count; i++) {
		const T *v = values + (int64_t)shop.rows[i] * dim;
#pragma unroll
		for (int j = 0; j < dims_each; j++) {
			int d = thread + j * split;
			if (d < dim) s.value[j] = fmaf(shop.weights[i], value(v[d]), s.value[j]);
		}
	}
	return s;
}

static __device__ __forceinline__ void merge(softmax &s, const softmax &next) {
	float largest = fmaxf(s.largest, next.largest);
	float a = expf(s.largest - largest), b = expf(next.largest - largest);
	s.sum = fmaf(next.sum, b, s.sum * a);
#pragma unroll
	for (int j = 0; j < dims_each; j++) s.value[j] = fmaf(next.value[j], b, s.value[j] * a);
	s.largest = largest;
}

static __device__ __forceinline__ void write_attended(float *dst, int width, const float *qkv, int qkv_width, const softmax &s,
                                                      int t, int h, int dim, int gated) {
#pragma unroll
	for (int j = 0; j < dims_each; j++) {
		int d = threadIdx.x + j * split;
		if (d >= dim) continue;
		float y = s.value[j] / s.sum;
		if (gated) y *= sigmoid(qkv[(int64_t)t * qkv_width + h * 2 * dim + dim + d]);
		dst[(int64_t)t * width + h * dim + d] = y;
	}
}

// token_of is the token of a block: number i, or of a list if there is one.
static __device__ __forceinline__ int token_of(const int32_t *tokens, int i) { return tokens ? tokens[i] : i; }

// Many tokens: one block walks over the context of one head of one token.
// grid: (heads, tokens)
template <typename T>
static __device__ __forceinline__ void attention_walk(float *dst, int width, const float *qkv, int qkv_width, const float *q,
                                                      const T *keys, const T *values, int nq, int nkv, int dim, int gated,
                                                      const int32_t *positions, const int32_t *token_rows,
                                                      const int32_t *row_blocks, const int32_t *blocks, int block_size, const int32_t *tokens) {
	SHARED(float, query, max_dim);
	SHARED(float, weights, split);
	SHARED(int, rows, split);
	SHARED(float, scratch, 8);
	workshop shop = {query, weights, scratch, rows};
	int h = blockIdx.x, t = token_of(tokens, blockIdx.y);
	for (int d = threadIdx.x; d < dim; d += split) query[d] = q[((int64_t)t * nq + h) * dim + d];
	const int32_t *own = blocks + row_blocks[token_rows[t]];
	int context = positions[t] + 1;
	softmax s = empty();
	for (int first = 0; first < context; first += split) {
		__syncthreads();
		softmax part = split_softmax(shop, keys, values, own, first, min(split, context - first), nkv, h / (nq / nkv), dim,
		                             block_size);
		merge(s, part);
	}
	write_attended(dst, width, qkv, qkv_width, s, t, h, dim, gated);
}

// Few tokens: many blocks share the context of one head of one token, and leave
// their splits to attention_merge: values [token][head][split][dim], and the
// pairs of largest and sum. grid: (heads, tokens, blocks sharing)
template <typename T>
static __device__ __forceinline__ void attention_splits(float *values_out, float2 *sums_out, const float *q, const T *keys,
                                                        const T *values, int nq, int nkv, int dim, int max_splits,
                                                        const int32_t *positions, const int32_t *token_rows,
                                                        const int32_t *row_blocks, const int32_t *blocks, int block_size, const int32_t *tokens) {
	SHARED(float, query, max_dim);
	SHARED(float, weights, split);
	SHARED(int, rows, split);
	SHARED(float, scratch, 8);
	workshop shop = {query, weights, scratch, rows};
	int h = blockIdx.x, t = token_of(tokens, blockIdx.y);
	int context = positions[t] + 1;
	if ((int)blockIdx.z * split >= context) return;
	for (int d = threadIdx.x; d < dim; d += split) query[d] = q[((int64_t)t * nq + h) * dim + d];
	const int32_t *own = blocks + row_blocks[token_rows[t]];
	for (int i = blockIdx.z; i * split < context; i += gridDim.z) {
		__syncthreads();
		int first = i * split;
		softmax s = split_softmax(shop, keys, values, own, first, min(split, context - first), nkv, h / (nq / nkv), dim,
		                          block_size);
		int64_t at = ((int64_t)blockIdx.y * nq + h) * max_splits + i;
		if (threadIdx.x == 0) sums_out[at] = float2{s.largest, s.sum};
#pragma unroll
		for (int j = 0; j < dims_each; j++) {
			int d = threadIdx.x + j * split;
			if (d < dim) values_out[at * dim + d] = s.value[j];
		}
	}
}

// grid: (heads, tokens)
KERNEL(128, attention_merge, float *dst, int width, const float *qkv, int qkv_width, const float *values, const float2 *sums,
       int nq, int dim, int gated, int max_splits, const int32_t *positions, const int32_t *tokens) {
	int h = blockIdx.x, t = token_of(tokens, blockIdx.y);
	softmax s = empty();
	for (int i = 0; i * split <= positions[t]; i++) {
		int64_t at = ((int64_t)blockIdx.y * nq + h) * max_splits + i;
		float2 pair = sums[at];
		softmax part;
		part.largest = pair.x, part.sum = pair.y;
#pragma unroll
		for (int j = 0; j < dims_each; j++) {
			int d = threadIdx.x + j * split;
			part.value[j] = d < dim ? values[at * dim + d] : 0.0f;
		}
		merge(s, part);
	}
	write_attended(dst, width, qkv, qkv_width, s, t, h, dim, gated);
}

#define ATTENTION(suffix, T)                                                                                              \
	KERNEL(128, attention_walk_##suffix, float *dst, int width, const float *qkv, int qkv_width, const float *q,          \
	       const T *keys, const T *values, int nq, int nkv, int dim, int gated, const int32_t *positions,                 \
	       const int32_t *token_rows, const int32_t *row_blocks, const int32_t *blocks, int block_size, const int32_t *tokens) {         \
		attention_walk<T>(dst, width, qkv, qkv_width, q, keys, values, nq, nkv, dim, gated, positions, token_rows,        \
		                  row_blocks, blocks, block_size, tokens);                                                            \
	}                                                                                                                     \
	KERNEL(128, attention_splits_##suffix, float *values_out, float2 *sums_out, const float *q, const T *keys,            \
	       const T *values, int nq, int nkv, int dim, int max_splits, const int32_t *positions,                           \
	       const int32_t *token_rows, const int32_t *row_blocks, const int32_t *blocks, int block_size, const int32_t *tokens) {         \
		attention_splits<T>(values_out, sums_out, q, keys, values, nq, nkv, dim, max_splits, positions, token_rows,       \
		                    row_blocks, blocks, block_size, tokens);                                                          \
	}
ATTENTION(bf16, uint16_t)
ATTENTION(f32, float)
