// Drawing from a distribution: temperature, top-k, top-p, as backend.Sampler does.
//
// A token's mass, exp((logit − largest)/temperature), is kept as a fixed-point
// number: sums of such are exact, so they may be taken in any order, and a row's
// token depends on nothing else. Nothing is sorted. What stands at a place of the
// order of probability is found by descending: a histogram of the first eight
// bits of the keys, by mass and by number, tells in which bin the place is, a
// histogram of that bin's next eight bits tells on, and so forth.
#include "device.cuh"

// draw_row says how a row is drawn; temperature 0 is greedy, and not drawn here.
struct draw_row {
	float temperature, top_p;
	uint32_t top_k, unused;
	double uniform;
};

// The descents of a row, in order; each goes on where the last ended.
enum { nothing, by_top_k, by_top_p, by_logit, by_index };

struct draw_state {
	uint64_t all;     // mass of the tokens that are kept
	uint64_t target;  // the first place up to which there is so much: mass, or tokens for top-k
	uint64_t mass;    // of what stands before the prefix
	uint32_t count;   // and its tokens
	uint32_t prefix;  // bits of the key that are known
	uint32_t key;     // of the logit that is drawn
	uint32_t phase;
};

// histograms of one row: the first, and three more levels of each descent.
constexpr int bins = 256, slots = 13;

static __device__ __forceinline__ bool keeps_k(const draw_row &p, int n) { return p.top_k > 0 && p.top_k < (uint32_t)n; }
static __device__ __forceinline__ bool keeps_p(const draw_row &p) { return p.top_p > 0 && p.top_p < 1; }
static __device__ __forceinline__ bool ordered(const draw_row &p, int n) { return keeps_k(p, n) || keeps_p(p); }

// drawn says whether there is anything to draw: the largest logit is a number.
static __device__ __forceinline__ bool drawn(const draw_row &p, const int32_t *found, int row) {
	float best = __uint_as_float((uint32_t)found[2 * row + 1]);
	return p.temperature != 0 && found[2 * row] >= 0 && best - best == 0;
}

// key_of grows with the logit; both zeros have one.
static __device__ __forceinline__ uint32_t key_of(float x) {
	uint32_t u = __float_as_uint(x + 0.0f);
	return u >> 31 ? ~u : u | 0x80000000u;
}

// index_key grows as the index falls: the first of equals comes first.
static __device__ __forceinline__ uint32_t index_key(uint32_t i) { return 0xffffffu - i; }

struct histogram {
	uint64_t *mass;
	uint32_t *count;
};

static __device__ __forceinline__ histogram slot_of(uint64_t *masses, uint32_t *counts, int row, int slot) {
	int64_t at = ((int64_t)row * slots + slot) * bins;
	return {masses + at, counts + at};
}

// place is a bin: what stands before it, what is in it; and the mass of all bins.
struct place {
	uint64_t mass, in_mass, all;
	uint32_t count, in_count, digit, unused;
};

// find is the first bin, from the largest digit down, up to which there is the
// target. One warp looks, all threads are told.
static __device__ place find(histogram h, uint64_t target, bool tokens, place *told) {
	if (threadIdx.x < 32) {
		constexpr int each = bins / 32;
		int lane = threadIdx.x, first = bins - 1 - lane * each;
		uint64_t mass = 0;
		uint32_t count = 0;
		for (int j = 0; j < each; j++) mass += h.mass[first - j], count += h.count[first - j];
		uint64_t upto = mass;
		uint32_t number = count;
#pragma unroll
		for (int d = 1; d < 32; d *= 2) {
			uint64_t m = __shfl_sync(full_warp, upto, lane - d);
			uint32_t c = __shfl_sync(full_warp, number, lane - d);
			if (lane >= d) upto += m, number += c;
		}
		uint64_t all = __shfl_sync(full_warp, upto, 31);
		uint64_t end = tokens ? number : upto, begin = end - (tokens ? count : mass);
		if (begin < target && target <= end) {
			place p = {upto - mass, 0, all, number - count, 0, 0, 0};
			for (int j = 0; j < each; j++) {
				p.digit = first - j, p.in_mass = h.mass[first - j], p.in_count = h.count[first - j];
				if (target <= (tokens ? p.count + p.in_count : p.mass + p.in_mass)) break;
				p.mass += p.in_mass, p.count += p.in_count;
			}
			*told = p;
		}
	}
	__syncthreads();
	place p = *told;
	__syncthreads();
	return p;
}

// descend takes the state one histogram on.
static __device__ __forceinline__ place descend(draw_state &s, histogram h, place *told) {
	place p = find(h, s.target - (s.phase == by_top_k ? s.count : s.mass), s.phase == by_top_k, told);
	s.mass += p.mass, s.count += p.count;
	s.prefix = s.prefix << 8 | p.digit;
	return p;
}

// add counts a row's tokens into a slot: all in the first, else those that have
// the state's prefix, by their next eight bits. The sums of a block come first.
static __device__ void add(histogram h, const draw_state &s, const draw_row &p, float best, const float *x, int n, double scale, int level,
                           uint64_t *mass, uint32_t *count) {
	for (int d = threadIdx.x; d < bins; d += blockDim.x) mass[d] = 0, count[d] = 0;
	__syncthreads();
	int shift = 24 - 8 * level;
	bool some = ordered(p, n);
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		uint32_t key = key_of(x[i]);
		if (s.phase == by_index) {
			if (some && key != s.key) continue;
			key = index_key(i);
		}
		if (level > 0 && key >> (shift + 8) != s.prefix) continue;
		double share = exp(((double)x[i] - (double)best) / (double)p.temperature);
		atomicAdd(&mass[key >> shift & 255], (uint64_t)(share * scale + 0.5));
		atomicAdd(&count[key >> shift & 255], 1u);
	}
	__syncthreads();
	for (int d = threadIdx.x; d < bins; d += blockDim.x) {
		if (count[d] == 0) continue;
		atomicAdd(&h.mass[d], mass[d]);
		atomicAdd(&h.count[d], count[d]);
	}
}

// The first histogram of each row. All slots are zero before. grid: (shares, rows)
KERNEL(256, draw_first, uint64_t *masses, uint32_t *counts, draw_state *out, const draw_row *rows, const int32_t *found,
       const float *logits, int width, int n, double scale) {
	SHARED(uint64_t, mass, bins);
	SHARED(uint32_t, count, bins);
	int row = blockIdx.y;
	draw_row p = rows[row];
	if (!drawn(p, found, row)) return;
	draw_state s = {0, 0, 0, 0, 0, 0, nothing};
	float best = __uint_as_float((uint32_t)found[2 * row + 1]);
	add(slot_of(masses, counts, row, 0), s, p, best, logits + (int64_t)row * width, n, scale, 0, mass, count);
	if (blockIdx.x == 0 && threadIdx.x == 0) out[row] = s;
}

// One level, 1 to 3, of a descent. Every block of a row goes on from the state
// that was, and the first one writes the new. grid: (shares, rows)
KERNEL(256, draw_next, uint64_t *masses, uint32_t *counts, draw_state *out, const draw_state *in, const draw_row *rows, const int32_t *found,
       const float *logits, int width, int n, double scale, int phase, int level) {
	SHARED(uint64_t, mass, bins);
	SHARED(uint32_t, count, bins);
	SHARED(place, told, 1);
	int row = blockIdx.y;
	draw_row p = rows[row];
	if (!drawn(p, found, row)) return;
	draw_state s = in[row];
	bool some = ordered(p, n);
	bool wanted = phase == by_top_k ? keeps_k(p, n) : phase == by_top_p ? keeps_p(p) : phase == by_logit ? some : true;
	if (!wanted) {
		if (blockIdx.x == 0 && threadIdx.x == 0) out[row] = s;
		return;
	}
	histogram first = slot_of(masses, counts, row, 0);
	if (level > 1) {
		descend(s, slot_of(masses, counts, row, 3 * (phase - 1) + level - 1), told);
	} else {
		// End the last descent: of equal logits, only so many are kept.
		if (s.phase == nothing) {
			s.all = find(first, 1, false, told).all;
		} else {
			place e = descend(s, slot_of(masses, counts, row, 3 * s.phase), told);
			uint64_t one = e.in_mass / e.in_count;
			if (s.phase == by_top_k) s.all = s.mass + (s.target - s.count) * one;
			if (s.phase == by_top_p) s.all = s.mass + (s.target - s.mass + one - 1) / one * one;
			s.key = s.prefix;
		}
		// Begin the next, unless it is what the drawn token's index is of.
		if (s.phase != by_logit) {
			s.mass = 0, s.count = 0;
			if (phase == by_top_k) {
				s.target = p.top_k;
			} else if (phase == by_top_p) {
				s.target = max((uint64_t)1, min(s.all, (uint64_t)ceil((double)p.top_p * (double)s.all)));
			} else {
				s.target = min(s.all - 1, (uint64_t)(p.uniform * (double)s.all)) + 1;
			}
		}
		s.prefix = 0, s.phase = phase;
		if (phase != by_index) descend(s, first, told);
	}
	float best = __uint_as_float((uint32_t)found[2 * row + 1]);
	add(slot_of(masses, counts, row, 3 * (phase - 1) + level), s, p, best, logits + (int64_t)row * width, n, scale, level, mass, count);
	if (blockIdx.x == 0 && threadIdx.x == 0) out[row] = s;
}

// The token that the last descent ends at replaces the largest. grid: rows
KERNEL(32, draw_last, int32_t *found, uint64_t *masses, uint32_t *counts, const draw_state *in, const draw_row *rows) {
	SHARED(place, told, 1);
	int row = blockIdx.x;
	if (!drawn(rows[row], found, row)) return;
	draw_state s = in[row];
	descend(s, slot_of(masses, counts, row, 3 * by_index), told);
	if (threadIdx.x == 0) found[2 * row] = (int32_t)index_key(s.prefix);
}
