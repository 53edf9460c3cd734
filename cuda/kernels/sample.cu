// Greedy sampling: the first of the largest logits. A NaN wins over all, so
// that the host can name it: its index comes back as −1−index.
#include "device.cuh"

static __device__ __forceinline__ bool before(float a, int i, float b, int j) {
	bool an = a != a, bn = b != b;
	if (an || bn) return an && (!bn || i < j);
	return a > b || (a == b && i < j);
}

static __device__ __forceinline__ void best_of_warp(float &v, int &i) {
#pragma unroll
	for (int m = 16; m > 0; m >>= 1) {
		float w = __shfl_xor_sync(full_warp, v, m);
		int j = __shfl_xor_sync(full_warp, i, m);
		if (before(w, j, v, i)) v = w, i = j;
	}
}

static __device__ __forceinline__ void best_of_block(float &v, int &i, float *values, int *indices) {
	best_of_warp(v, i);
	if (threadIdx.x % 32 == 0) values[threadIdx.x / 32] = v, indices[threadIdx.x / 32] = i;
	__syncthreads();
	for (int w = 0; w < 8; w++)
		if (before(values[w], indices[w], v, i)) v = values[w], i = indices[w];
}

// Each block finds the best of its share of a row. grid: (shares, rows)
KERNEL(256, argmax_shares, float *values, int32_t *indices, const float *logits, int width, int n) {
	SHARED(float, warp_values, 8);
	SHARED(int, warp_indices, 8);
	const float *x = logits + (int64_t)blockIdx.y * width;
	float v = -INFINITE;
	int best = 0x7fffffff;
	for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256)
		if (before(x[i], i, v, best)) v = x[i], best = i;
	best_of_block(v, best, warp_values, warp_indices);
	if (threadIdx.x == 0) {
		values[blockIdx.y * gridDim.x + blockIdx.x] = v;
		indices[blockIdx.y * gridDim.x + blockIdx.x] = best;
	}
}

// grid: rows; out is [row][token, bits of its logit]
KERNEL(256, argmax_merge, int32_t *out, const float *values, const int32_t *indices, int shares) {
	SHARED(float, warp_values, 8);
	SHARED(int, warp_indices, 8);
	float v = -INFINITE;
	int best = 0x7fffffff;
	for (int i = threadIdx.x; i < shares; i += 256) {
		float w = values[blockIdx.x * shares + i];
		int j = indices[blockIdx.x * shares + i];
		if (before(w, j, v, best)) v = w, best = j;
	}
	best_of_block(v, best, warp_values, warp_indices);
	if (threadIdx.x == 0) {
		out[2 * blockIdx.x] = v != v ? -1 - best : best;
		out[2 * blockIdx.x + 1] = (int32_t)__float_as_uint(v);
	}
}
