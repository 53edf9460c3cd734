// Loading: raw rows of a checkpoint, or numbers made up here, into the layout
// of the kernels. These run once; they are bound by the copy from the host.
// form is 0 for rows that follow one another, 1 for gate, 2 for up.
#include "device.cuh"

static __device__ __forceinline__ uint64_t mix64(uint64_t x) {
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

// uniform is element i of a random tensor, see weights.Random.
static __device__ __forceinline__ float uniform(uint64_t key, int64_t i, float low, float step) {
	uint64_t word = mix64(key + (uint64_t)(i / 4 + 1) * 0x9e3779b97f4a7c15ull);
	uint32_t u = (uint32_t)(word >> (16 * (i % 4))) & 0xffff;
	return low + (float)(2 * u + 1) * step;
}

// One thread packs inputs k and k+1 of one row. grid: (pairs/256, rows)
KERNEL(256, pack_bf16, uint32_t *dst, const uint16_t *src, int inputs, int first, int form) {
	int k = (blockIdx.x * 256 + threadIdx.x) * 2, row = blockIdx.y;
	if (k >= inputs) return;
	const uint16_t *p = src + (int64_t)row * inputs + k;
	uint32_t pair = p[0] | (k + 1 < inputs ? (uint32_t)p[1] << 16 : 0);
	dst[packed_word(packed_row(first + row, form), k, (inputs + 15) / 16)] = pair;
}

KERNEL(256, random_bf16, uint32_t *dst, uint64_t key, float low, float step, int inputs, int first, int form, int row0) {
	int k = (blockIdx.x * 256 + threadIdx.x) * 2, row = row0 + blockIdx.y;
	if (k >= inputs) return;
	int64_t i = (int64_t)row * inputs + k;
	uint32_t pair = narrow(uniform(key, i, low, step));
	if (k + 1 < inputs) pair |= (uint32_t)narrow(uniform(key, i + 1, low, step)) << 16;
	dst[packed_word(packed_row(first + row, form), k, (inputs + 15) / 16)] = pair;
}

// f32 rows are padded to a multiple of four inputs; gate and up rows alternate.
static __device__ __forceinline__ int64_t f32_index(int row, int k, int inputs, int form) {
	int r = form == 0 ? row : 2 * row + form - 1;
	return (int64_t)r * ((inputs + 3) / 4 * 4) + k;
}

KERNEL(256, pack_f32, float *dst, const float *src, int inputs, int first, int form) {
	int k = blockIdx.x * 256 + threadIdx.x, row = blockIdx.y;
	if (k >= inputs) return;
	dst[f32_index(first + row, k, inputs, form)] = src[(int64_t)row * inputs + k];
}

// A bf16 tensor that stands in an f32 matrix keeps its rounded values.
KERNEL(256, random_f32, float *dst, uint64_t key, float low, float step, int inputs, int first, int form, int row0, int round) {
	int k = blockIdx.x * 256 + threadIdx.x, row = row0 + blockIdx.y;
	if (k >= inputs) return;
	float v = uniform(key, (int64_t)row * inputs + k, low, step);
	dst[f32_index(first + row, k, inputs, form)] = round ? widen(narrow(v)) : v;
}
