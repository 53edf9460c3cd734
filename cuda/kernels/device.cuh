// What all kernels share: the few instructions that C++ has no word for, bf16,
// and reductions in a fixed order. The same sources are compiled for a GPU (by
// NVRTC) and for the simulator (by g++, see package sim).
//
// Everywhere: multiply and add are fused only where fmaf says so (the build
// forbids it elsewhere), and no sum depends on how many tokens there are. So
// one token's result is the same, bit for bit, in any batch. It is the same in
// any kernel that computes it, except that attention and the gated delta rule
// have kernels of their own for prompts, which a row gets for what it is.
#pragma once

#ifndef __CUDACC_RTC__
#include "sim.h"
#else

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

// KERNEL defines a function that can be launched by name, with at most so many
// threads; SHARED declares a static array in shared memory, DYNAMIC_SHARED
// names the memory asked for at the launch.
#define KERNEL(threads, name, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

// d += a·b of a 16×16 and a 16×8 tile of bf16. With g = lane/4 and q = lane%4:
// a[0] holds row g, columns 2q and 2q+1; a[1] row g+8; a[2] and a[3] the same
// rows, columns +8. b[0] holds column g, rows 2q and 2q+1; b[1] rows +8.
// d[0], d[1] are row g, columns 2q and 2q+1; d[2], d[3] row g+8.
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ldmatrix reads four 8×8 matrices of bf16 from shared memory: lane l gives the
// address of row l%8 of matrix l/8, and gets of each matrix row g, columns 2q
// and 2q+1; of its transpose with ldmatrix_transposed.
static __device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}
static __device__ __forceinline__ void ldmatrix_transposed(uint32_t (&r)[4], const void *row) {
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

// stream loads what is read once, without keeping it in the first cache.
static __device__ __forceinline__ uint4 stream(const uint4 *p) {
	uint4 v;
	asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

// cp_async16 copies 16 bytes to shared memory, of which the first so many come
// from global memory and the rest are zero; it is done when cp_async_wait says so.
static __device__ __forceinline__ void cp_async16(void *shared, const void *global, int bytes) {
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
	             :: "r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(global), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

#endif

constexpr uint32_t full_warp = 0xffffffffu;
#define INFINITE __uint_as_float(0x7f800000u)

// ---- bf16

static __device__ __forceinline__ float widen(uint16_t h) { return __uint_as_float((uint32_t)h << 16); }

// narrow rounds to nearest, ties to even; a NaN stays one.
static __device__ __forceinline__ uint16_t narrow(float f) {
	uint32_t u = __float_as_uint(f);
	if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static __device__ __forceinline__ float value(float x) { return x; }
static __device__ __forceinline__ float value(uint16_t x) { return widen(x); }
static __device__ __forceinline__ void put(float *p, float x) { *p = x; }
static __device__ __forceinline__ void put(uint16_t *p, float x) { *p = narrow(x); }

// split_pair writes two numbers as bf16 high parts and bf16 rests, packed for mma:
// together they carry 16 bits of each number's fraction.
static __device__ __forceinline__ void split_pair(float x, float y, uint32_t &high, uint32_t &low) {
	uint16_t hx = narrow(x), hy = narrow(y);
	high = hx | (uint32_t)hy << 16;
	low = narrow(x - widen(hx)) | (uint32_t)narrow(y - widen(hy)) << 16;
}

// split_tile makes an operand of the tensor cores of a lane's share of a tile:
// high parts in x and y, the rest in z and w.
static __device__ __forceinline__ uint4 split_tile(float a, float b, float c, float d) {
	uint4 v;
	split_pair(a, b, v.x, v.z);
	split_pair(c, d, v.y, v.w);
	return v;
}

// left is mma's first operand, 16 rows × 16 columns in two parts.
struct left { uint32_t high[4], low[4]; };

// left_of takes two accumulators side by side, which hold 16 rows × 8 columns
// each: where a lane has them is where it needs them.
static __device__ __forceinline__ left left_of(const float (&a)[4], const float (&b)[4]) {
	left l;
	split_pair(a[0], a[1], l.high[0], l.low[0]);
	split_pair(a[2], a[3], l.high[1], l.low[1]);
	split_pair(b[0], b[1], l.high[2], l.low[2]);
	split_pair(b[2], b[3], l.high[3], l.low[3]);
	return l;
}

// ---- functions

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
static __device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// ---- reductions; every lane and thread gets the result

static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
	for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(full_warp, v, m);
	return v;
}

static __device__ __forceinline__ float warp_max(float v) {
#pragma unroll
	for (int m = 16; m > 0; m >>= 1) v = fmaxf(v, __shfl_xor_sync(full_warp, v, m));
	return v;
}

// block_sum adds over a block of Warps warps; scratch holds Warps floats, and
// may be used again after the next barrier.
template <int Warps> static __device__ __forceinline__ float block_sum(float v, float *scratch) {
	v = warp_sum(v);
	if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
	__syncthreads();
	float sum = scratch[0];
#pragma unroll
	for (int w = 1; w < Warps; w++) sum += scratch[w];
	return sum;
}

template <int Warps> static __device__ __forceinline__ float block_max(float v, float *scratch) {
	v = warp_max(v);
	if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
	__syncthreads();
	float most = scratch[0];
#pragma unroll
	for (int w = 1; w < Warps; w++) most = fmaxf(most, scratch[w]);
	return most;
}

// ---- activations on their way into mma

// activations is a lane's share of a tile of inputs: elements 2q, 2q+1, 2q+8
// and 2q+9 of 16, for q = lane%4.
struct activations { float v[4]; };

static __device__ __forceinline__ activations read_activations(const float *x, int k, int inputs, bool pairs) {
	activations a;
	if (pairs) {
		float2 low = *(const float2 *)(x + k), high = *(const float2 *)(x + k + 8);
		a.v[0] = low.x, a.v[1] = low.y, a.v[2] = high.x, a.v[3] = high.y;
		return a;
	}
#pragma unroll
	for (int e = 0; e < 4; e++) {
		int i = k + (e & 1) + (e & 2) * 4;
		a.v[e] = i < inputs ? x[i] : 0.0f;
	}
	return a;
}

// add_squares goes on with the sum of squares that the norm needs.
static __device__ __forceinline__ float add_squares(float sum, const activations &a) {
#pragma unroll
	for (int e = 0; e < 4; e++) sum = fmaf(a.v[e], a.v[e], sum);
	return sum;
}

// quad_sum adds over the four lanes that share a row of a tile.
static __device__ __forceinline__ float quad_sum(float v) {
	v += __shfl_xor_sync(full_warp, v, 1);
	return v + __shfl_xor_sync(full_warp, v, 2);
}

// ---- weights in the layout that mma wants
//
// A bf16 matrix is cut into tiles of 16 outputs × 16 inputs, 512 bytes each:
// the 8 values of each lane lie together, so that a warp reads a tile in one
// coalesced load of 16 bytes a lane. Tiles of the same outputs follow one
// another along the inputs.

// packed_word is the index of the 32-bit word that holds inputs k and k+1 (k even).
static __device__ __forceinline__ int64_t packed_word(int row, int k, int ktiles) {
	int64_t tile = (int64_t)(row / 16) * ktiles + k / 16;
	int lane = row % 8 * 4 + k % 8 / 2;
	int reg = row % 16 / 8 + k % 16 / 8 * 2;
	return (tile * 32 + lane) * 4 + reg;
}

// A matrix of gate and up has them in alternating groups of 8 rows, so that
// one thread's accumulators hold both of one output.
static __device__ __forceinline__ int packed_row(int row, int form) {
	if (form == 0) return row;
	return row / 8 * 16 + row % 8 + (form - 1) * 8;
}
