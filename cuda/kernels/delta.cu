// The gated delta rule, token by token: convolution, recurrence, gated norm.
#include "delta.cuh"

// Where a step has chunks: one thread walks one channel over the tokens of one
// row: silu of the causal convolution of `taps` inputs, of which the last
// taps−1 stay in the state. grid: (channels/256, rows)
constexpr int max_taps = 8;

KERNEL(256, delta_conv, float *dst, const float *proj, int width, const float *weight, float *state, int64_t slot_stride,
       int channels, int taps, const int32_t *row_first, const int32_t *row_count, const int32_t *row_slot) {
	int c = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
	if (c >= channels) return;
	float *past = state + row_slot[row] * slot_stride + c;
	float x[max_taps], w[max_taps];
#pragma unroll
	for (int j = 0; j < max_taps; j++) {  // the last tap, at max_taps−1, meets the current token
		int tap = j - (max_taps - taps);
		w[j] = tap >= 0 ? weight[c * taps + tap] : 0.0f;
		x[j] = tap >= 0 && tap < taps - 1 ? past[tap * channels] : 0.0f;
	}
	int end = row_first[row] + row_count[row];
	for (int t = row_first[row]; t < end; t++) {
		x[max_taps - 1] = proj[(int64_t)t * width + c];
		float y = 0;
#pragma unroll
		for (int j = 0; j < max_taps; j++) y = fmaf(w[j], x[j], y);
		dst[(int64_t)t * channels + c] = silu(y);
#pragma unroll
		for (int j = 0; j < max_taps - 1; j++) x[j] = x[j + 1];
	}
#pragma unroll
	for (int j = 0; j < max_taps; j++) {
		int tap = j - (max_taps - taps);
		if (tap >= 0 && tap < taps - 1) past[tap * channels] = x[j];
	}
}

// convolved is what delta_conv computes, of one token: it adds in the same order.
// Inputs before the row's first are in the state.
static __device__ __forceinline__ float convolved(const float *proj, int width, const float *weight, const float *past, int channels, int taps,
                                                  int c, int first, int t) {
	float y = 0;
#pragma unroll 4
	for (int tap = 0; tap < taps; tap++) {
		int at = t - (taps - 1) + tap;
		float x = at >= first ? proj[(int64_t)at * width + c] : past[(at - first + taps - 1) * channels + c];
		y = fmaf(weight[c * taps + tap], x, y);
	}
	return silu(y);
}

// One block walks 32 value dims of one value head over the tokens of one row
// that no chunk has. Lane l has value dim l; warp w has the key dims w, w+4,
// w+8, …, in registers. Where a step has no chunks it convolves for itself, which
// saves a launch: blocks of one head do some of it again. The convolution's state
// stays as it was, since other blocks may still read it; delta_norm moves it on.
// grid: (value dims/32, value heads, rows)
constexpr int key_warps = 4, keys_each = max_key_dim / key_warps;

template <bool Convolves>
static __device__ __forceinline__ void delta_walk(float *dst, int dst_width, const float *conv, const float *weight, const float *past,
                                                  int64_t past_stride, int taps, const float *proj, int proj_width, const float *a_log,
                                                  const float *dt_bias, float *state, int64_t slot_stride, int key_heads, int value_heads,
                                                  int dk, int dv, const int32_t *row_first, const int32_t *row_count,
                                                  const int32_t *row_chunked, const int32_t *row_slot) {
	SHARED(float, q, max_key_dim);
	SHARED(float, k, max_key_dim);
	SHARED(float, sums, 2 * 4);
	SHARED(float, partial, 2 * key_warps * 32);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
	int column = blockIdx.x * 32 + lane, j = blockIdx.y, row = blockIdx.z;
	if (row_chunked[row] == row_count[row]) return;
	int h = j / (value_heads / key_heads);
	int channels = 2 * key_heads * dk + value_heads * dv;
	float *own = state + row_slot[row] * slot_stride + (int64_t)j * dk * dv + column;
	float rate = expf(a_log[j]), bias = dt_bias[j], root = rsqrtf((float)dk);

	auto input = [&](int t, int c) {
		if (!Convolves) return conv[(int64_t)t * channels + c];
		return convolved(proj, proj_width, weight, past + row_slot[row] * past_stride, channels, taps, c, row_first[row], t);
	};

	float S[keys_each];
#pragma unroll
	for (int i = 0; i < keys_each; i++) {
		int r = i * key_warps + warp;
		S[i] = r < dk && column < dv ? own[r * dv] : 0.0f;
	}
	int end = row_first[row] + row_count[row];
	for (int t = row_first[row] + row_chunked[row]; t < end; t++) {
		const float *gates = proj + (int64_t)t * proj_width + channels + value_heads * dv;
		float qi = thread < dk ? input(t, h * dk + thread) : 0.0f;
		float ki = thread < dk ? input(t, (key_heads + h) * dk + thread) : 0.0f;
		float v = column < dv ? input(t, 2 * key_heads * dk + j * dv + column) : 0.0f;
		float qq = block_sum<4>(qi * qi, sums), kk = block_sum<4>(ki * ki, sums + 4);
		if (thread < dk) {
			q[thread] = qi * rsqrtf(qq + norm_eps) * root;
			k[thread] = ki * rsqrtf(kk + norm_eps);
		}
		__syncthreads();
		float beta = sigmoid(gates[j]);
		float decay = decay_of(gates[value_heads + j], rate, bias);

		float kS = 0;
#pragma unroll
		for (int i = 0; i < keys_each; i++) {
			int r = i * key_warps + warp;
			if (r >= dk) break;
			S[i] *= decay;
			kS = fmaf(k[r], S[i], kS);
		}
		partial[warp * 32 + lane] = kS;
		__syncthreads();
		kS = partial[lane] + partial[32 + lane] + partial[64 + lane] + partial[96 + lane];
		float d = beta * (v - kS), o = 0;
#pragma unroll
		for (int i = 0; i < keys_each; i++) {
			int r = i * key_warps + warp;
			if (r >= dk) break;
			S[i] = fmaf(k[r], d, S[i]);
			o = fmaf(q[r], S[i], o);
		}
		partial[128 + warp * 32 + lane] = o;
		__syncthreads();
		if (warp == 0 && column < dv)
			dst[(int64_t)t * dst_width + j * dv + column] =
			    partial[128 + lane] + partial[160 + lane] + partial[192 + lane] + partial[224 + lane];
	}
#pragma unroll
	for (int i = 0; i < keys_each; i++) {
		int r = i * key_warps + warp;
		if (r < dk && column < dv) own[r * dv] = S[i];
	}
}

KERNEL(128, delta_rule, float *dst, int dst_width, const float *conv, const float *proj, int proj_width, const float *a_log,
       const float *dt_bias, float *state, int64_t slot_stride, int key_heads, int value_heads, int dk, int dv,
       const int32_t *row_first, const int32_t *row_count, const int32_t *row_chunked, const int32_t *row_slot) {
	delta_walk<false>(dst, dst_width, conv, nullptr, nullptr, 0, 0, proj, proj_width, a_log, dt_bias, state, slot_stride, key_heads,
	                  value_heads, dk, dv, row_first, row_count, row_chunked, row_slot);
}

KERNEL(128, delta_conv_rule, float *dst, int dst_width, const float *weight, const float *past, int64_t past_stride, int taps,
       const float *proj, int proj_width, const float *a_log, const float *dt_bias, float *state, int64_t slot_stride, int key_heads,
       int value_heads, int dk, int dv, const int32_t *row_first, const int32_t *row_count, const int32_t *row_chunked,
       const int32_t *row_slot) {
	delta_walk<true>(dst, dst_width, nullptr, weight, past, past_stride, taps, proj, proj_width, a_log, dt_bias, state, slot_stride,
	                 key_heads, value_heads, dk, dv, row_first, row_count, row_chunked, row_slot);
}

// move_on leaves a row's last taps−1 inputs of a channel in the convolution's
// state: of its own tokens, and before them of those that were there.
static __device__ __forceinline__ void move_on(float *past, const float *inputs, int width, int count, int channels, int taps) {
	for (int tap = 0; tap < taps - 1; tap++) {
		int from = tap + count;  // as if the row's inputs followed the state
		past[tap * channels] = from < taps - 1 ? past[from * channels] : inputs[(int64_t)(from - (taps - 1)) * width];
	}
}

// o ← weight·norm(o)·silu(z), one warp a head of a token, in place. Further
// blocks, of a row's last token, move the state of the convolution on.
// grid: (tokens, value heads/8, and if the state is to be moved channels/256 more)
KERNEL(256, delta_norm, float *dst, int dst_width, const float *proj, int proj_width, const float *weight, float eps, float offset,
       int heads, int dv, float *past, int64_t past_stride, int channels, int taps, const int32_t *token_rows,
       const int32_t *row_first, const int32_t *row_count, const int32_t *row_slot) {
	int lane = threadIdx.x % 32, h = blockIdx.y * 8 + threadIdx.x / 32, t = blockIdx.x;
	int further = blockIdx.y - (heads + 7) / 8;
	if (further >= 0) {
		int c = further * 256 + threadIdx.x, row = token_rows[t], first = row_first[row], count = row_count[row];
		if (c < channels && t == first + count - 1)
			move_on(past + row_slot[row] * past_stride + c, proj + (int64_t)first * proj_width + c, proj_width, count, channels, taps);
		return;
	}
	if (h >= heads) return;
	float *o = dst + (int64_t)t * dst_width + h * dv;
	const float *z = proj + (int64_t)t * proj_width + channels + h * dv;
	float sum = 0;
	for (int c = lane; c < dv; c += 32) sum = fmaf(o[c], o[c], sum);
	float scale = rsqrtf(warp_sum(sum) / (float)dv + eps);
	for (int c = lane; c < dv; c += 32) o[c] = o[c] * scale * (offset + weight[c]) * silu(z[c]);
}
