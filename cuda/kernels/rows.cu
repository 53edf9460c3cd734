// Rows of activations: lookup, copy, and the preparation of a linear's input.
#include "device.cuh"

// grid: tokens
KERNEL(256, embed_bf16, float *dst, int width, const uint32_t *table, int inputs, const int32_t *tokens) {
	int id = tokens[blockIdx.x];
	float *out = dst + (int64_t)blockIdx.x * width;
	for (int k = threadIdx.x * 2; k < inputs; k += 512) {
		uint32_t pair = table[packed_word(id, k, (inputs + 15) / 16)];
		out[k] = widen((uint16_t)pair);
		if (k + 1 < inputs) out[k + 1] = widen((uint16_t)(pair >> 16));
	}
}

KERNEL(256, embed_f32, float *dst, int width, const float *table, int inputs, const int32_t *tokens) {
	const float *in = table + (int64_t)tokens[blockIdx.x] * ((inputs + 3) / 4 * 4);
	for (int k = threadIdx.x; k < inputs; k += 256) dst[(int64_t)blockIdx.x * width + k] = in[k];
}

// grid: tokens
KERNEL(256, gather, float *dst, const float *src, int width, const int32_t *tokens) {
	const float *in = src + (int64_t)tokens[blockIdx.x] * width;
	for (int k = threadIdx.x; k < width; k += 256) dst[(int64_t)blockIdx.x * width + k] = in[k];
}

// norm_scale is rsqrt(mean(x²)+eps) of one row, the same in every thread.
static __device__ __forceinline__ float norm_scale(const float *x, int n, float eps, float *scratch) {
	float sum = 0;
	for (int k = threadIdx.x; k < n; k += 256) sum = fmaf(x[k], x[k], sum);
	return rsqrtf(block_sum<8>(sum, scratch) / (float)n + eps);
}

// Input of an f32 linear: norm only, rows padded with zeros to four inputs.
KERNEL(256, norm_rows, float *dst, const float *src, int width, int inputs,
       const float *weight, float eps, float offset) {
	SHARED(float, scratch, 8);
	int padded = (inputs + 3) / 4 * 4;
	const float *x = src + (int64_t)blockIdx.x * width;
	float scale = weight ? norm_scale(x, inputs, eps, scratch) : 1.0f;
	for (int k = threadIdx.x; k < padded; k += 256) {
		float v = k < inputs ? x[k] : 0.0f;
		if (weight && k < inputs) v = v * scale * (offset + weight[k]);
		dst[(int64_t)blockIdx.x * padded + k] = v;
	}
}
