// What the device can do at best: reading memory, and the tensor cores. The
// suite sets the engine's speed beside it.
#include "device.cuh"

// Threads read 16 bytes each, side by side, several such loads at a time, as
// the linear layers read weights. The sum of a warp's words is there so that no
// load can be left out. grid: any; sums are one of each warp
constexpr int read_depth = 4;

static __device__ __forceinline__ uint32_t sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

KERNEL(256, peak_read, uint32_t *sums, const uint4 *from, int64_t vectors) {
	int64_t thread = (int64_t)blockIdx.x * 256 + threadIdx.x, stride = (int64_t)gridDim.x * 256, i = thread;
	uint32_t sum = 0;
	for (; i + (read_depth - 1) * stride < vectors; i += read_depth * stride) {
		uint4 v[read_depth];
#pragma unroll
		for (int j = 0; j < read_depth; j++) v[j] = stream(from + i + j * stride);
#pragma unroll
		for (int j = 0; j < read_depth; j++) sum += sum_of(v[j]);
	}
	for (; i < vectors; i += stride) sum += sum_of(stream(from + i));
#pragma unroll
	for (int m = 16; m > 0; m >>= 1) sum += __shfl_xor_sync(full_warp, sum, m);
	if (threadIdx.x % 32 == 0) sums[thread / 32] = sum;
}

// A warp multiplies the same two tiles over and over, from registers, into
// accumulators that do not wait for one another. The numbers are -3, -1, 1 and 3,
// so that the sums stay exact for 2¹³ rounds.
// grid: any; sums are one of each thread, over its accumulators
constexpr int mma_chains = 8;

static __device__ __forceinline__ uint32_t small_pair(int i) {
	return narrow((float)(2 * (i % 4) - 3)) | (uint32_t)narrow((float)(2 * (i / 4 % 4) - 3)) << 16;
}

KERNEL(256, peak_mma, float *sums, int rounds) {
	int lane = threadIdx.x % 32;
	uint32_t a[4], b[2];
#pragma unroll
	for (int r = 0; r < 4; r++) a[r] = small_pair(5 * lane + 3 * r);
#pragma unroll
	for (int r = 0; r < 2; r++) b[r] = small_pair(7 * lane + 2 * r + 1);
	float d[mma_chains][4] = {};
	for (int i = 0; i < rounds; i++) {
#pragma unroll
		for (int c = 0; c < mma_chains; c++) mma_bf16(d[c], a, b);
	}
	float sum = 0;
#pragma unroll
	for (int c = 0; c < mma_chains; c++) sum += d[c][0] + d[c][1] + d[c][2] + d[c][3];
	sums[blockIdx.x * 256 + threadIdx.x] = sum;
}
