// What a kernel source needs to compile for the CPU: the CUDA names that the
// kernels use, and nothing more. The kernels are compiled with calls before
// each load and store (-fsanitize=thread without its library); runtime.cc
// answers these calls, and so sees every access.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __restrict__ __restrict

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };

extern "C" {
unsigned sim_index(int which);  // threadIdx, blockIdx, blockDim, gridDim; x, y, z each
void *sim_shared(const void *site, size_t bytes);
void *sim_dynamic_shared(void);
void sim_syncthreads(void);
void sim_syncwarp(void);
uint64_t sim_exchange(uint64_t value, unsigned source_lane);
unsigned sim_ballot(int predicate);
void sim_mma_bf16(float *d, const uint32_t *a, const uint32_t *b);
void sim_ldmatrix(uint32_t *r, const void *row, int transposed);
void sim_cp_async16(void *shared, const void *global, int bytes);
void sim_cp_async_commit(void);
void sim_cp_async_wait(int pending);
unsigned sim_atomic_add(unsigned *p, unsigned v);
uint64_t sim_atomic_add64(uint64_t *p, uint64_t v);
unsigned sim_atomic_max(unsigned *p, unsigned v);
void sim_register(const char *name, void (*call)(const uint64_t *args), int args, int max_threads);
}

template <int W> struct sim_axis {
	operator unsigned() const { return sim_index(W); }
};
template <int W> struct sim_axes {
	sim_axis<W> x;
	sim_axis<W + 1> y;
	sim_axis<W + 2> z;
};
static const sim_axes<0> threadIdx;
static const sim_axes<3> blockIdx;
static const sim_axes<6> blockDim;
static const sim_axes<9> gridDim;

// SHARED declares a static array in shared memory, DYNAMIC_SHARED names the
// memory asked for at the launch.
#define SHARED(type, name, count)  \
	static const char name##_site = 0; \
	type *const name = static_cast<type *>(sim_shared(&name##_site, sizeof(type) * (count)))
#define DYNAMIC_SHARED(name) unsigned char *const name = static_cast<unsigned char *>(sim_dynamic_shared())

// KERNEL defines a function that can be launched by name.
template <size_t... I> struct sim_indices {};
template <size_t N, size_t... I> struct sim_count : sim_count<N - 1, N - 1, I...> {};
template <size_t... I> struct sim_count<0, I...> { typedef sim_indices<I...> type; };

template <typename T> inline T sim_argument(const uint64_t *slot) {
	T v;
	__builtin_memcpy(&v, slot, sizeof(T));
	return v;
}
template <typename... A, size_t... I>
inline void sim_call(void (*f)(A...), const uint64_t *args, sim_indices<I...>) {
	f(sim_argument<A>(args + I)...);
}
template <typename... A> inline void sim_call(void (*f)(A...), const uint64_t *args) {
	sim_call(f, args, typename sim_count<sizeof...(A)>::type());
}
template <typename... A> constexpr int sim_arity(void (*)(A...)) { return sizeof...(A); }

#define KERNEL(threads, name, ...)                                                  \
	static void name(__VA_ARGS__);                                                  \
	static void name##_call(const uint64_t *args) { sim_call(&name, args); }        \
	__attribute__((constructor)) static void name##_register() {                    \
		sim_register(#name, &name##_call, sim_arity(&name), threads);               \
	}                                                                               \
	static void name(__VA_ARGS__)

static inline void __syncthreads() { sim_syncthreads(); }
static inline void __syncwarp() { sim_syncwarp(); }

template <typename T> static inline T sim_shuffle(T v, unsigned lane) {
	static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
	uint64_t slot = 0;
	__builtin_memcpy(&slot, &v, sizeof(T));
	slot = sim_exchange(slot, lane & 31);
	__builtin_memcpy(&v, &slot, sizeof(T));
	return v;
}
static inline unsigned sim_lane() {
	return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}
// The kernels use full warps only.
#define __shfl_sync(mask, v, lane) sim_shuffle(v, lane)
#define __shfl_xor_sync(mask, v, m) sim_shuffle(v, sim_lane() ^ (m))
#define __shfl_down_sync(mask, v, d) sim_shuffle(v, sim_lane() + (d) < 32 ? sim_lane() + (d) : sim_lane())
#define __ballot_sync(mask, p) sim_ballot(p)
#define __any_sync(mask, p) (sim_ballot(p) != 0)
#define __all_sync(mask, p) (sim_ballot(p) == 0xffffffffu)

static inline unsigned __float_as_uint(float f) { return __builtin_bit_cast(unsigned, f); }
static inline float __uint_as_float(unsigned u) { return __builtin_bit_cast(float, u); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <typename T> static inline T min(T a, T b) { return b < a ? b : a; }
template <typename T> static inline T max(T a, T b) { return a < b ? b : a; }

static inline unsigned atomicAdd(unsigned *p, unsigned v) { return sim_atomic_add(p, v); }
static inline uint64_t atomicAdd(uint64_t *p, uint64_t v) { return sim_atomic_add64(p, v); }
static inline unsigned atomicMax(unsigned *p, unsigned v) { return sim_atomic_max(p, v); }

static inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { sim_mma_bf16(d, a, b); }
static inline void ldmatrix(uint32_t (&r)[4], const void *row) { sim_ldmatrix(r, row, 0); }
static inline void ldmatrix_transposed(uint32_t (&r)[4], const void *row) { sim_ldmatrix(r, row, 1); }
static inline uint4 stream(const uint4 *p) { return *p; }
static inline void cp_async16(void *shared, const void *global, int bytes) { sim_cp_async16(shared, global, bytes); }
static inline void cp_async_commit() { sim_cp_async_commit(); }
template <int N> static inline void cp_async_wait() { sim_cp_async_wait(N); }
