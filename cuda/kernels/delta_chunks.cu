// The gated delta rule by chunks of 32 tokens, for prompts.
//
// The tokens of a chunk, counted from 1, have queries q_i, keys k_i (rows of Q
// and K), values V and gates β_i; S is the state before them, D_ij the product
// of the decays of the tokens j+1 … i for i ≥ j, else 0, and E_i that of 1 … i.
// What the recurrence adds for token i is k_i ⊗ x_i, where all x solve a
// triangular system (the UT transform of Yang, Wang, Zhang, Shen and Kim,
// "Parallelizing linear transformers with the delta rule over sequence length",
// 2024; with decay: Yang, Kautz and Hatamizadeh, "Gated delta networks", 2024):
//
//	T = (I + strictly lower part of β_i (k_i·k_j) D_ij)⁻¹ diag(β)
//	X = T (V − diag(E) K S)
//	O = diag(E) Q S + ((Q Kᵀ) ⊙ D) X
//	S ← E_C S + Kᵀ diag(D_C1 … D_CC) X
//
// That is exact. T and (Q Kᵀ) ⊙ D do not depend on S: delta_prepare makes them for all
// chunks at once. Only the rest (delta_chunks) goes chunk after chunk.
//
// Products go through the tensor cores: both factors as two bf16 numbers each,
// in three products (the rests' product is below the error of the parts, 2^-18).
// The system is solved in f32, D is a product of decays rather than the exponential of a
// difference of large sums, and S stays f32: each chunk's share is summed by itself
// and then added, so that no rounding of the tensor cores piles up in S.
//
// Everything that delta_chunks multiplies by lies in tiles of 8 columns × 16
// rows in the layout of mma's second operand, 16 bytes a lane: high parts, then
// the rests. They are in pieces of 16 tiles, in the order of their use, with
// the key dims padded to 64:
//
//	keys    [chunk][key head] two pieces of K and Q for each 64 key dims
//	                          ([16 dims][K: 8 tokens × 4, Q: 8 tokens × 4]), then one of Kᵀ
//	                          ([8 dims][16 tokens × 2])
//	solved  [chunk][value head] a piece of T and (Q Kᵀ) ⊙ D ([8 tokens i × 4][16 tokens j × 2] each)
//	decays  [chunk][value head] E_1 … E_C, D_C1 … D_CC
//
// of which a chunk's begins at its first token's share.
#include "delta.cuh"

constexpr int chunk = 32, piece = 16 * 32;  // tokens; vectors of 16 bytes
constexpr int max_ktiles = max_key_dim / 16;

static __device__ __forceinline__ int key_pieces(int dk) { return (dk + 63) / 64 * 3; }

static __device__ __forceinline__ const uint4 *keys_of(const uint4 *keys, int t, int h, int key_heads, int dk) {
	return keys + ((int64_t)t * key_heads + h * chunk) * (key_pieces(dk) * piece / chunk);
}
static __device__ __forceinline__ const uint4 *solved_of(const uint4 *solved, int t, int j, int value_heads) {
	return solved + ((int64_t)t * value_heads + j * chunk) * (piece / chunk);
}
static __device__ __forceinline__ const float *decays_of(const float *decays, int t, int j, int value_heads) {
	return decays + ((int64_t)t * value_heads + j * chunk) * 2;
}

// multiply adds the products of one left operand and N tiles, a pass over all
// tiles for each kind of product, so that no mma waits for the one before it.
template <int N> static __device__ __forceinline__ void multiply(float (&d)[N][4], const left &a, const uint4 (&b)[N]) {
#pragma unroll
	for (int n = 0; n < N; n++) {
		uint32_t high[2] = {b[n].x, b[n].y};
		mma_bf16(d[n], a.high, high);
	}
#pragma unroll
	for (int n = 0; n < N; n++) {
		uint32_t low[2] = {b[n].z, b[n].w};
		mma_bf16(d[n], a.high, low);
	}
#pragma unroll
	for (int n = 0; n < N; n++) {
		uint32_t high[2] = {b[n].x, b[n].y};
		mma_bf16(d[n], a.low, high);
	}
}

// One block prepares one chunk of one key head and its value heads.
// grid: (chunks of the longest row, key heads, prompt rows)
KERNEL(128, delta_prepare, uint4 *keys, uint4 *solved, float *decays, const float *conv, const float *proj, int proj_width,
       const float *a_log, const float *dt_bias, int key_heads, int value_heads, int dk, int dv, const int32_t *rows,
       const int32_t *row_first, const int32_t *row_chunked) {
	SHARED(uint4, tiles, max_ktiles * 8 * 32);  // K and Q, as in keys; then two matrices for each warp
	SHARED(float, products, 2 * chunk * 33);    // K Kᵀ and Q Kᵀ
	int row = rows[blockIdx.z], h = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
	if ((int)blockIdx.x * chunk >= row_chunked[row]) return;
	int t0 = row_first[row] + blockIdx.x * chunk;
	int channels = 2 * key_heads * dk + value_heads * dv, ktiles = (dk + 15) / 16, padded = (dk + 63) / 64 * 4;
	uint4 *out = (uint4 *)keys_of(keys, t0, h, key_heads, dk);

	// Norms: a warp has eight tokens, four lanes a token.
	for (int which = 0; which < 2; which++) {  // K, Q
		const float *x = conv + (int64_t)(t0 + warp * 8 + group) * channels + ((which == 0 ? key_heads : 0) + h) * dk;
		activations v[max_ktiles];
		float sum = 0;
#pragma unroll
		for (int k = 0; k < max_ktiles; k++) {
			if (k >= ktiles) v[k] = activations{};
			else v[k] = read_activations(x, k * 16 + quad * 2, dk, dk % 16 == 0 && channels % 2 == 0);
			sum = add_squares(sum, v[k]);
		}
		float scale = rsqrtf(quad_sum(sum) + norm_eps);
		if (which == 1) scale *= rsqrtf((float)dk);
#pragma unroll
		for (int k = 0; k < max_ktiles; k++) {
			if (k >= padded) break;
			int at = (k * 8 + which * 4 + warp) * 32 + lane;
			tiles[at] = split_tile(v[k].v[0] * scale, v[k].v[1] * scale, v[k].v[2] * scale, v[k].v[3] * scale);
			out[at] = tiles[at];
		}
	}
	__syncthreads();

	// Kᵀ, number by number.
	const uint16_t *halves = (const uint16_t *)tiles;
	for (int i = warp; i < padded * 4; i += 4) {
		int d = i / 2 * 8 + group;
		uint32_t word[2][2];
#pragma unroll
		for (int part = 0; part < 2; part++)
#pragma unroll
			for (int b = 0; b < 2; b++) {
				int t = i % 2 * 16 + b * 8 + quad * 2;
				int at = (((d / 16 * 8 + t / 8) * 32 + t % 8 * 4 + d % 8 / 2) * 4 + part * 2 + d % 16 / 8) * 2 + d % 2;
				word[part][b] = halves[at] | (uint32_t)halves[at + 4 * 8] << 16;  // the next token is four lanes on
			}
		out[(padded * 8 + i) * 32 + lane] = uint4{word[0][0], word[0][1], word[1][0], word[1][1]};
	}

	// Products of tokens: a warp has 16 rows of K Kᵀ or Q Kᵀ.
	float acc[4][4] = {};
	int half = warp % 2, which = warp / 2;
	for (int k = 0; k < ktiles; k++) {
		uint4 low = tiles[(k * 8 + which * 4 + half * 2) * 32 + lane], high = tiles[(k * 8 + which * 4 + half * 2 + 1) * 32 + lane];
		left a = {{low.x, high.x, low.y, high.y}, {low.z, high.z, low.w, high.w}};
		uint4 b[4];
#pragma unroll
		for (int n = 0; n < 4; n++) b[n] = tiles[(k * 8 + n) * 32 + lane];
		multiply(acc, a, b);
	}
#pragma unroll
	for (int n = 0; n < 4; n++)
#pragma unroll
		for (int r = 0; r < 4; r++)
			products[(which * chunk + half * 16 + group + r / 2 * 8) * 33 + n * 8 + quad * 2 + r % 2] = acc[n][r];
	__syncthreads();

	// A warp has a value head at a time, a lane a column j.
	float *m = (float *)tiles + warp * 2 * chunk * chunk, *p = m + chunk * chunk;
	int ratio = value_heads / key_heads;
	for (int value = warp; value < ratio; value += 4) {
		int j = h * ratio + value;
		const float *gates = proj + (int64_t)(t0 + lane) * proj_width + channels + value_heads * dv;
		float beta = sigmoid(gates[j]), decay = decay_of(gates[value_heads + j], expf(a_log[j]), dt_bias[j]);
		float before = 1, after = 1;  // E of this token, D from it to token i
		for (int i = 0; i < chunk; i++) {
			float d = __shfl_sync(full_warp, decay, i), b = __shfl_sync(full_warp, beta, i);
			if (i <= lane) before *= d;
			else after *= d;
			m[i * chunk + lane] = i > lane ? b * products[i * 33 + lane] * after : 0.0f;
			p[i * chunk + lane] = i >= lane ? products[(chunk + i) * 33 + lane] * after : 0.0f;
		}
		float *own = (float *)decays_of(decays, t0, j, value_heads);
		own[lane] = before, own[chunk + lane] = after;
		__syncwarp();

		// The lane's column of the inverse, by substitution from the top.
		float x[chunk] = {};
#pragma unroll
		for (int i = 0; i < chunk; i++) {
			float y = i == lane ? 1.0f : 0.0f;
#pragma unroll
			for (int l = 0; l < i; l += 4) {
				float4 a = *(const float4 *)(m + i * chunk + l);
				y = fmaf(-a.w, x[l + 3], fmaf(-a.z, x[l + 2], fmaf(-a.y, x[l + 1], fmaf(-a.x, x[l], y))));
			}
			x[i] = y;
		}
		__syncwarp();
#pragma unroll
		for (int i = 0; i < chunk; i++) m[i * chunk + lane] = x[i] * beta;
		__syncwarp();
		uint4 *to = (uint4 *)solved_of(solved, t0, j, value_heads);
		for (int i = 0; i < 16; i++) {
			const float *from = m + (i / 8 * chunk + i % 8 / 2 * 8 + group) * chunk + i % 2 * 16 + quad * 2;
			to[i * 32 + lane] = split_tile(from[0], from[1], from[8], from[9]);
		}
		__syncwarp();
	}
}

static __device__ __forceinline__ float of_token(float v, int t) { return __shfl_sync(full_warp, v, t); }

// One block walks 64 value dims of one value head over the chunks of one row.
// A warp has 16 value dims, and Sᵀ of them in the accumulators of mma (16 value
// dims × 8 key dims each): all products are of transposes, value dims × tokens,
// so that what one product makes is the left operand of the next. Pieces come
// through a ring in shared memory.
// grid: (value dims/64, value heads, prompt rows)
constexpr int ring = 4;

KERNEL(128, delta_chunks, float *dst, int dst_width, const float *conv, const uint4 *keys, const uint4 *solved, const float *decays,
       float *state, int64_t slot_stride, int key_heads, int value_heads, int dk, int dv, const int32_t *rows,
       const int32_t *row_first, const int32_t *row_chunked, const int32_t *row_slot) {
	SHARED(uint4, memory, ring * piece);
	int row = rows[blockIdx.z], j = blockIdx.y, h = j / (value_heads / key_heads);
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
	int column = blockIdx.x * 64 + warp * 16 + group;  // and column + 8
	int channels = 2 * key_heads * dk + value_heads * dv;
	int chunks = row_chunked[row] / chunk, halves = (dk + 63) / 64, per_chunk = halves * 3 + 1;
	if (chunks == 0) return;

	auto fetch = [&](int n) {  // piece n of the row
		int t = row_first[row] + n / per_chunk * chunk, i = n % per_chunk;
		if (n < chunks * per_chunk) {
			const uint4 *from = i == halves * 2 ? solved_of(solved, t, j, value_heads)
			                                    : keys_of(keys, t, h, key_heads, dk) + (i < halves * 2 ? i : i - 1) * piece;
#pragma unroll
			for (int at = 0; at < piece; at += 128)
				cp_async16(memory + n % ring * piece + at + threadIdx.x, from + at + threadIdx.x, 16);
		}
		cp_async_commit();
	};
	for (int n = 0; n < ring - 1; n++) fetch(n);
	int used = 0;
	auto next = [&]() {
		cp_async_wait<ring - 2>();
		__syncthreads();  // piece `used` is there for all, and the one before is used up by all
		fetch(used + ring - 1);
		return memory + used++ % ring * piece + lane;
	};

	// Looked up anew for the store: 32 addresses that live through the loop would spill.
	auto state_of = [&]() { return state + row_slot[row] * slot_stride + (int64_t)j * dk * dv + column; };
	float S[max_ktiles * 2][4];
	float *own = state_of();
#pragma unroll
	for (int n = 0; n < max_ktiles * 2; n++)
#pragma unroll
		for (int r = 0; r < 4; r++) {
			int d = n * 8 + quad * 2 + r % 2, c = r / 2 * 8;
			S[n][r] = d < dk && column + c < dv ? own[d * dv + c] : 0.0f;
		}

	for (int t0 = row_first[row]; t0 < row_first[row] + row_chunked[row]; t0 += chunk) {
		// Accumulator r of tile n is token 8n + 2·quad + r%2; a lane has E and D_C of one token.
		const float *decay = decays_of(decays, t0, j, value_heads);
		float before = decay[lane], after = decay[chunk + lane], X[4][4];
		const float *V = conv + (int64_t)(t0 + quad * 2) * channels + 2 * key_heads * dk + j * dv + column;
#pragma unroll
		for (int n = 0; n < 4; n++) {
#pragma unroll
			for (int r = 0; r < 4; r++) X[n][r] = column + r / 2 * 8 < dv ? V[r % 2 * channels + r / 2 * 8] : 0.0f;
			V += 8 * channels;
		}

		float KS[4][4] = {}, O[4][4] = {};
#pragma unroll
		for (int k = 0; k < max_ktiles; k += 2) {
			if (k >= halves * 4) break;
			const uint4 *from = next();
#pragma unroll
			for (int i = 0; i < 2; i++) {
				left a = left_of(S[(k + i) * 2], S[(k + i) * 2 + 1]);
				uint4 b[4];
#pragma unroll
				for (int n = 0; n < 4; n++) b[n] = from[(i * 8 + n) * 32];
				multiply(KS, a, b);
#pragma unroll
				for (int n = 0; n < 4; n++) b[n] = from[(i * 8 + 4 + n) * 32];
				multiply(O, a, b);
			}
		}
#pragma unroll
		for (int n = 0; n < 4; n++) {
			float E[2] = {of_token(before, n * 8 + quad * 2), of_token(before, n * 8 + quad * 2 + 1)};
#pragma unroll
			for (int r = 0; r < 4; r++) {
				X[n][r] = fmaf(-E[r % 2], KS[n][r], X[n][r]);
				O[n][r] *= E[r % 2];
			}
		}

		const uint4 *from = next();
		left a[2] = {left_of(X[0], X[1]), left_of(X[2], X[3])};
#pragma unroll
		for (int n = 0; n < 4; n++)
#pragma unroll
			for (int r = 0; r < 4; r++) X[n][r] = 0;
#pragma unroll
		for (int k = 0; k < 2; k++) {
			uint4 b[4];
#pragma unroll
			for (int n = 0; n < 4; n++) b[n] = from[(n * 2 + k) * 32];
			multiply(X, a[k], b);
		}
		a[0] = left_of(X[0], X[1]), a[1] = left_of(X[2], X[3]);
#pragma unroll
		for (int k = 0; k < 2; k++) {
			uint4 b[4];
#pragma unroll
			for (int n = 0; n < 4; n++) b[n] = from[(8 + n * 2 + k) * 32];
			multiply(O, a[k], b);
		}
		float *out = dst + (int64_t)(t0 + quad * 2) * dst_width + j * dv + column;
#pragma unroll
		for (int n = 0; n < 4; n++) {
			float D[2] = {of_token(after, n * 8 + quad * 2), of_token(after, n * 8 + quad * 2 + 1)};
#pragma unroll
			for (int r = 0; r < 4; r++) {
				if (column + r / 2 * 8 < dv) out[r % 2 * dst_width + r / 2 * 8] = O[n][r];
				X[n][r] *= D[r % 2];
			}
			out += 8 * dst_width;
		}
		float whole = of_token(before, chunk - 1);

		a[0] = left_of(X[0], X[1]), a[1] = left_of(X[2], X[3]);
#pragma unroll
		for (int n = 0; n < max_ktiles * 2; n += 4) {
			if (n >= halves * 8) break;
			if (n % 8 == 0) from = next();
			float share[4][4] = {};
#pragma unroll
			for (int k = 0; k < 2; k++) {
				uint4 b[4];
#pragma unroll
				for (int i = 0; i < 4; i++) b[i] = from[((n % 8 + i) * 2 + k) * 32];
				multiply(share, a[k], b);
			}
#pragma unroll
			for (int i = 0; i < 4; i++)
#pragma unroll
				for (int r = 0; r < 4; r++) S[n + i][r] = fmaf(whole, S[n + i][r], share[i][r]);
		}
	}
	cp_async_wait<0>();
	own = state_of();
#pragma unroll
	for (int n = 0; n < max_ktiles * 2; n++)
#pragma unroll
		for (int r = 0; r < 4; r++) {
			int d = n * 8 + quad * 2 + r % 2, c = r / 2 * 8;
			if (d < dk && column + c < dv) own[d * dv + c] = S[n][r];
		}
}
