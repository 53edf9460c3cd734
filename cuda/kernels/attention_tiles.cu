// Attention of prompts, on the tensor cores, over a bf16 cache.
//
// The queries of a row that share a KV head are rows of tiles, in order of
// (token, head): a block has 64 of them, a warp 16. It goes over the context
// in tiles of keys at fixed positions, with the largest score, the sum of the
// weights exp(score − largest) and their sum of values kept for each query; what
// a query does not see weighs zero and changes no bit. So a query's result
// depends on its own position and context alone, not on what is beside it.
//
// Keys and values are exact as they are; queries and weights go in as two bf16
// numbers each, as a linear's activations do, and each tile's sum of values is
// added in f32, so that prompts and decode steps agree to f32's precision.
//
// Cache: [KV block][KV head][position in block][dim], of one layer; dim is a
// multiple of 16. Queries: normed, rotated and scaled by attention_prepare.
#include "device.cuh"

constexpr int queries = 64;  // of a block

// Bytes of shared memory: the queries in two parts, in mma's layout, a tile of
// keys and one of values, whose rows are 16 bytes apart beyond their length, so
// that ldmatrix meets each bank once. Keep in step with tileKernel in ops.go.
//
// grid: (tiles of the row with most, KV heads, prompt rows)
template <int Dim, int Keys>
static __device__ __forceinline__ void attention_tiles(float *dst, int width, const float *qkv, int qkv_width, const float *q,
                                                       const uint16_t *keys, const uint16_t *values, int nq, int nkv, int dim, int gated,
                                                       const int32_t *rows, const int32_t *row_first, const int32_t *row_count,
                                                       const int32_t *positions, const int32_t *row_blocks, const int32_t *blocks,
                                                       int block_size) {
	constexpr int dtiles = Dim / 16, ntiles = Keys / 8, stride = Dim + 8;
	DYNAMIC_SHARED(memory);
	uint4 *Q = (uint4 *)memory;  // [warp][16 dims][high, low][lane]
	uint16_t *K = (uint16_t *)(Q + 4 * dtiles * 2 * 32), *V = K + Keys * stride;
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
	int row = rows[blockIdx.z], kv = blockIdx.y, ratio = nq / nkv, first = row_first[row];
	int count = row_count[row] * ratio, begin = (gridDim.x - 1 - blockIdx.x) * queries;  // the longest contexts first
	if (begin >= count) return;
	const int32_t *own = blocks + row_blocks[row];
	int start = positions[first], context = start + min(begin + queries - 1, count - 1) / ratio + 1;
	bool busy = begin + warp * 16 < count;

	// A lane has the queries `group` and `group + 8` of its warp's; beyond the
	// last one, the last again.
	int token[2], head[2], position[2];
#pragma unroll
	for (int i = 0; i < 2; i++) {
		int f = min(begin + warp * 16 + group + i * 8, count - 1);
		token[i] = first + f / ratio, head[i] = kv * ratio + f % ratio, position[i] = start + f / ratio;
	}
	uint4 *own_queries = Q + warp * dtiles * 2 * 32 + lane;  // read by the lane that wrote them
	for (int k = 0; k * 16 < dim; k++) {
		float v[2][4];
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const float *from = q + ((int64_t)token[i] * nq + head[i]) * dim + k * 16 + quad * 2;
			float2 a = *(const float2 *)from, b = *(const float2 *)(from + 8);
			v[i][0] = a.x, v[i][1] = a.y, v[i][2] = b.x, v[i][3] = b.y;
		}
		float side[2][4] = {{v[0][0], v[0][1], v[1][0], v[1][1]}, {v[0][2], v[0][3], v[1][2], v[1][3]}};
		left a = left_of(side[0], side[1]);
		own_queries[k * 64] = uint4{a.high[0], a.high[1], a.high[2], a.high[3]};
		own_queries[k * 64 + 32] = uint4{a.low[0], a.low[1], a.low[2], a.low[3]};
	}

	// A tile of keys or values; zeros where the context or the head ends.
	auto fetch = [&](uint16_t *to, const uint16_t *cache, int first_key) {
		for (int i = threadIdx.x; i < Keys * Dim / 8; i += 128) {
			int key = i / (Dim / 8), d = i % (Dim / 8) * 8, p = first_key + key;
			bool wanted = p < context && d < dim;
			const uint16_t *from = cache;
			if (wanted) from += ((int64_t)(own[p / block_size] * nkv + kv) * block_size + p % block_size) * dim + d;
			cp_async16(to + key * stride + d, from, wanted ? 16 : 0);
		}
		cp_async_commit();
	};

	float largest[2] = {-INFINITE, -INFINITE}, sum[2] = {}, O[dtiles * 2][4] = {};
	fetch(K, keys, 0);
	for (int k0 = 0; k0 < context; k0 += Keys) {
		cp_async_wait<0>();
		__syncthreads();  // the keys are there, and the values before are used up
		fetch(V, values, k0);
		float S[ntiles][4] = {};
		if (busy)
			for (int k = 0; k * 16 < dim; k++) {
				uint4 high = own_queries[k * 64], low = own_queries[k * 64 + 32];
				uint32_t a[4] = {high.x, high.y, high.z, high.w}, rest[4] = {low.x, low.y, low.z, low.w};
				uint32_t b[ntiles / 2][4];
#pragma unroll
				for (int n = 0; n < ntiles / 2; n++)
					ldmatrix(b[n], K + (n * 16 + lane / 16 * 8 + lane % 8) * stride + k * 16 + lane / 8 % 2 * 8);
#pragma unroll
				for (int n = 0; n < ntiles; n++) {
					uint32_t pair[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
					mma_bf16(S[n], a, pair);
				}
#pragma unroll
				for (int n = 0; n < ntiles; n++) {
					uint32_t pair[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
					mma_bf16(S[n], rest, pair);
				}
			}

		// Accumulator r of tile n is query r/2, key 8n + 2·quad + r%2.
		left P[ntiles / 2];
		float scale[2];
		if (busy) {
#pragma unroll
			for (int i = 0; i < 2; i++) {
				float most = largest[i];
#pragma unroll
				for (int n = 0; n < ntiles; n++)
#pragma unroll
					for (int r = i * 2; r < i * 2 + 2; r++) {
						if (k0 + n * 8 + quad * 2 + r % 2 > position[i]) S[n][r] = -INFINITE;
						most = fmaxf(most, S[n][r]);
					}
				most = fmaxf(most, __shfl_xor_sync(full_warp, most, 1));
				most = fmaxf(most, __shfl_xor_sync(full_warp, most, 2));
				scale[i] = expf(largest[i] - most);
				largest[i] = most;
				float part = 0;
#pragma unroll
				for (int n = 0; n < ntiles; n++)
#pragma unroll
					for (int r = i * 2; r < i * 2 + 2; r++) {
						S[n][r] = expf(S[n][r] - most);
						part += S[n][r];
					}
				sum[i] = fmaf(sum[i], scale[i], part);
			}
#pragma unroll
			for (int n = 0; n < ntiles / 2; n++) P[n] = left_of(S[n * 2], S[n * 2 + 1]);
		}

		cp_async_wait<0>();
		__syncthreads();  // the values are there, and the keys are used up
		if (k0 + Keys < context) fetch(K, keys, k0 + Keys);
		if (busy)
#pragma unroll
			for (int n = 0; n < dtiles; n += 2) {  // 32 dims
				if (n * 16 >= dim) break;
				float share[4][4] = {};
#pragma unroll
				for (int k = 0; k < ntiles / 2; k++) {
					uint32_t b[2][4];
#pragma unroll
					for (int i = 0; i < 2; i++)
						ldmatrix_transposed(b[i], V + (k * 16 + lane % 16) * stride + (n + i) * 16 + lane / 16 * 8);
#pragma unroll
					for (int i = 0; i < 4; i++) {
						uint32_t pair[2] = {b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]};
						mma_bf16(share[i], P[k].high, pair);
					}
#pragma unroll
					for (int i = 0; i < 4; i++) {
						uint32_t pair[2] = {b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]};
						mma_bf16(share[i], P[k].low, pair);
					}
				}
#pragma unroll
				for (int i = 0; i < 4; i++)
#pragma unroll
					for (int r = 0; r < 4; r++) O[n * 2 + i][r] = fmaf(O[n * 2 + i][r], scale[r / 2], share[i][r]);
			}
	}

	float all[2] = {quad_sum(sum[0]), quad_sum(sum[1])};
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (begin + warp * 16 + group + i * 8 >= count) continue;
		const float *gate = qkv + (int64_t)token[i] * qkv_width + head[i] * 2 * dim + dim;
		float *out = dst + (int64_t)token[i] * width + head[i] * dim;
#pragma unroll
		for (int n = 0; n < dtiles * 2; n++)
#pragma unroll
			for (int e = 0; e < 2; e++) {
				int d = n * 8 + quad * 2 + e;
				if (d >= dim) break;
				float y = O[n][i * 2 + e] / all[i] + 0.0f;  // no −0
				out[d] = gated ? y * sigmoid(gate[d]) : y;
			}
	}
}

#define TILES(Dim, Keys)                                                                                                    \
	KERNEL(128, attention_tiles_##Dim, float *dst, int width, const float *qkv, int qkv_width, const float *q,              \
	       const uint16_t *keys, const uint16_t *values, int nq, int nkv, int dim, int gated, const int32_t *rows,          \
	       const int32_t *row_first, const int32_t *row_count, const int32_t *positions, const int32_t *row_blocks,         \
	       const int32_t *blocks, int block_size) {                                                                         \
		attention_tiles<Dim, Keys>(dst, width, qkv, qkv_width, q, keys, values, nq, nkv, dim, gated, rows, row_first,       \
		                           row_count, positions, row_blocks, blocks, block_size);                                   \
	}
TILES(64, 64)
TILES(128, 64)
TILES(256, 32)
