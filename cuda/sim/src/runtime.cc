// The simulator's runtime: a device of one processor that runs the threads of
// a block as fibers and looks at every load and store.
//
// Each two bytes of device and shared memory have a shadow, which holds the
// last write and the last read: when, by which thread, at which instruction.
// "When" is a counter that every barrier advances, so that two accesses by two
// threads are ordered if, and only if, a barrier of both lies between.
// What is found wrong ends the launch; the first error wins.
//
// It does not model caches, the order of warps or time.

#include "runtime.h"

#include <dlfcn.h>
#include <initializer_list>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

namespace {

constexpr int max_threads = 1024, max_kernels = 256, max_regions = 65536;
constexpr size_t stack_bytes = 128 << 10, shared_bytes = 256 << 10, redzone = 256;
constexpr uint32_t unallocated = 0xffffffff, never = 0, by_host = 1;

struct shadow {
	uint32_t written, read;  // counter; written is also never, by_host or unallocated
	uint64_t writer : 10, write_at : 20, atomic : 1;
	// Of the reads that are not ordered before the last one: by other lanes of
	// its warp, by other warps of its block, by other blocks of the launch.
	uint64_t reader : 10, read_at : 20, lanes : 1, warps : 1, blocks : 1;
};
static_assert(sizeof(shadow) == 16, "shadow");

struct arena {
	char *base;
	size_t bytes;
	shadow *shadows;
	bool holds(const void *p) const { return size_t((const char *)p - base) < bytes; }
	shadow *of(const void *p) const { return shadows + size_t((const char *)p - base) / 2; }
};

struct copy {
	char *dst;
	const char *src;
	int bytes;
	uintptr_t at;
};

enum waiting { nothing, for_warp, for_block, finished };

struct fiber {
	void *sp;
	char *stack;
	unsigned x, y, z;
	waiting state;
	uint64_t generation;  // of the barrier waited for
	uintptr_t at;         // where it waits
	uint64_t slot[8];     // what it gives to its warp
	copy pending[64];
	int copies, groups, group_end[16];
};

struct warp {
	uint64_t generation;
	int arrived;
	uint32_t synced;  // counter of its last barrier
	uintptr_t at;
	int parity;
};

struct kernel {
	const char *name;
	void (*call)(const uint64_t *);
	int args, max_threads;
};

struct region {
	size_t offset, bytes;
	bool used;
};

arena device, shared;
kernel kernels[max_kernels];
int kernel_count;
region regions[max_regions];
int region_count;

fiber fibers[max_threads];
warp warps[max_threads / 32];
fiber *self;
int self_id, threads, alive;
void *main_sp;
char *stacks;

uint32_t counter, launch_began, block_began, block_synced;
uint64_t block_generation;
int block_arrived;
uintptr_t block_at;
unsigned grid[3], block[3], block_index[3];
size_t shared_used, dynamic_used;
struct { const void *site; size_t offset, bytes; } shared_sites[64];
int shared_site_count;

const kernel *running;
uint64_t running_args[64];  // here, where kernels may read
sim_error *error;
uintptr_t text_base;

char *reserve(size_t bytes) {
	void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? nullptr : (char *)p;
}

void fill(arena &a, const void *p, size_t bytes, uint32_t written) {
	shadow *s = a.of(p), *end = s + (bytes + 1) / 2;
	for (; s < end; s++) *s = shadow{written, never, 0, 0, 0, 0, 0, 0, 0, 0};
}

// ---- fibers

#if defined(__x86_64__)
// Six registers and the stack pointer are all that a call must preserve.
extern "C" void sim_switch(void **from, void *to);
asm(R"(
	.text
	.hidden sim_switch
	.globl sim_switch
sim_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
)");

void run_fiber();

void *fresh(char *stack) {
	uintptr_t top = ((uintptr_t)stack + stack_bytes - 64) & ~(uintptr_t)15;
	uint64_t *sp = (uint64_t *)top;
	*--sp = 0;  // as if called: the stack is 16-byte aligned before the return address
	*--sp = (uint64_t)&run_fiber;
	for (int i = 0; i < 6; i++) *--sp = 0;
	return sp;
}
#else
}
#include <ucontext.h>
namespace {
// Elsewhere: slow (a system call each time), but everywhere.
ucontext_t contexts[max_threads + 1];
int context_count;
void run_fiber();
void *fresh(char *stack) {
	ucontext_t *c = &contexts[(stack - stacks) / stack_bytes];
	getcontext(c);
	c->uc_stack.ss_sp = stack;
	c->uc_stack.ss_size = stack_bytes;
	c->uc_link = nullptr;
	makecontext(c, run_fiber, 0);
	return c;
}
void sim_switch(void **from, void *to) {
	if (from == &main_sp) *from = &contexts[max_threads];
	swapcontext((ucontext_t *)*from, (ucontext_t *)to);
}
#endif

void resume(int id) {
	void **from = &self->sp;
	self_id = id;
	self = &fibers[id];
	sim_switch(from, self->sp);
}

[[noreturn]] void leave() {
	void *dead;
	void **from = &dead;
#if !defined(__x86_64__)
	from = &self->sp;
#endif
	self = nullptr;
	sim_switch(from, main_sp);
	abort();
}

uint32_t offset_of(uintptr_t pc) { return pc == 0 ? 0 : (uint32_t)(pc - text_base - 1); }

[[noreturn]] void fail(uintptr_t at, uint32_t other, const char *format, ...) {
	va_list args;
	va_start(args, format);
	vsnprintf(error->message, sizeof error->message, format, args);
	va_end(args);
	error->kernel = running->name;
	error->at = offset_of(at);
	error->other = other;
	memcpy(error->block, block_index, sizeof block_index);
	error->thread[0] = self->x, error->thread[1] = self->y, error->thread[2] = self->z;
	leave();
}

bool runnable(int id) {
	const fiber &f = fibers[id];
	switch (f.state) {
	case nothing: return true;
	case for_warp: return warps[id / 32].generation != f.generation;
	case for_block: return block_generation != f.generation;
	default: return false;
	}
}

// next runs another fiber, if this one cannot go on.
void next() {
	for (int i = 1, id = self_id; i <= threads; i++) {
		if (++id == threads) id = 0;
		if (runnable(id)) {
			if (id != self_id) resume(id);
			return;
		}
	}
	for (int id = 0; id < threads; id++) {
		const fiber &f = fibers[id];
		if (f.state == for_warp || f.state == for_block)
			fail(f.at, 0, "barrier divergence: thread %d waits at a %s barrier that %s", id,
			     f.state == for_warp ? "warp" : "block", alive < threads ? "a thread which has finished never reaches" : "another thread never reaches");
	}
	leave();
}

void run_fiber() {
	running->call(running_args);
	self->state = finished;
	if (--alive == 0) leave();
	for (;;) next();
}

void wait_block(uintptr_t at) {
	if (block_arrived == 0) block_at = at;
	else if (block_at != at)
		fail(at, offset_of(block_at), "barrier divergence: threads of one block wait at two barriers");
	if (++block_arrived == threads) {
		block_arrived = 0;
		block_generation++;
		block_synced = ++counter;
		for (int w = 0; w < threads / 32; w++) warps[w].synced = counter;
		return;
	}
	self->state = for_block, self->generation = block_generation, self->at = at;
	while (block_generation == self->generation) next();
	self->state = nothing;
}

void wait_warp(uintptr_t at, bool orders) {
	warp &w = warps[self_id / 32];
	if (w.arrived == 0) w.at = at;
	else if (w.at != at)
		fail(at, offset_of(w.at), "warp divergence: lanes of one warp wait at two places");
	if (++w.arrived == 32) {
		w.arrived = 0;
		w.generation++;
		w.parity ^= 1;
		if (orders) w.synced = ++counter;
		return;
	}
	self->state = for_warp, self->generation = w.generation, self->at = at;
	while (w.generation == self->generation) next();
	self->state = nothing;
}

// ---- accesses

const char *space(const arena &a) { return &a == &shared ? "shared" : "device"; }

[[noreturn]] void race(const arena &a, const void *p, uintptr_t at, uint32_t other_at, unsigned other, const char *what) {
	fail(at, other_at, "race on %s memory at +%zu: %s thread %u without a barrier between", space(a),
	     (size_t)((const char *)p - a.base), what, other);
}

// concurrent says whether an access at the given time by another thread is not
// ordered before this one.
bool concurrent(const arena &a, uint32_t when, unsigned who) {
	if (when < launch_began) return false;
	if (when < block_began) return &a == &device;  // another block of this launch
	if ((int)who == self_id) return false;
	return when >= ((int)who / 32 == self_id / 32 ? warps[self_id / 32].synced : block_synced);
}

void load(const arena &a, const char *p, size_t bytes, uintptr_t at) {
	uint32_t pc = offset_of(at);
	shadow *to = a.of(p), *end = a.of(p + bytes - 1) + 1;
	for (; to < end; to++) {
		shadow s = *to;  // as a whole: the processor forwards no part of what it has just stored
		if (s.written == unallocated) fail(at, 0, "load of %zu bytes outside %s memory that is allocated", bytes, space(a));
		if (s.written == never) fail(at, 0, "load of %s memory that nothing has written", space(a));
		if (concurrent(a, s.written, s.writer)) race(a, p, at, s.write_at, s.writer, s.written < block_began ? "written by another block, by" : "written by");
		bool same_warp = s.reader / 32 == (unsigned)self_id / 32;
		s.blocks = &a == &device && s.read >= launch_began && (s.blocks || s.read < block_began);
		s.warps = s.read >= block_synced && (s.warps || !same_warp);
		s.lanes = s.read >= warps[self_id / 32].synced && same_warp && (s.lanes || s.reader != (unsigned)self_id);
		s.read = counter, s.reader = self_id, s.read_at = pc;
		*to = s;
	}
}

void store(const arena &a, const char *p, size_t bytes, uintptr_t at, bool atomic) {
	uint32_t pc = offset_of(at);
	shadow *s = a.of(p), *end = a.of(p + bytes - 1) + 1;
	for (; s < end; s++) {
		if (s->written == unallocated) fail(at, 0, "store of %zu bytes outside %s memory that is allocated", bytes, space(a));
		if (!(atomic && s->atomic) && concurrent(a, s->written, s->writer))
			race(a, p, at, s->write_at, s->writer, s->written < block_began ? "written by another block, by" : "written by");
		bool warp_read = s->read >= warps[self_id / 32].synced && s->lanes;
		if ((s->read >= launch_began && s->blocks) || (s->read >= block_synced && s->warps) || warp_read || concurrent(a, s->read, s->reader))
			race(a, p, at, s->read_at, s->reader, "read by");
		s->written = counter, s->writer = self_id, s->write_at = pc, s->atomic = atomic;
		s->read = never, s->lanes = s->warps = s->blocks = 0;
	}
}

void access(const void *address, size_t bytes, bool write, uintptr_t at, bool aligned = true) {
	if (!self) return;  // set-up
	const char *p = (const char *)address;
	if (size_t(p - self->stack) < stack_bytes) return;
	if (aligned && (uintptr_t)p % bytes != 0)
		fail(at, 0, "%s of %zu bytes at a misaligned address", write ? "store" : "load", bytes);
	for (const arena *a : {&device, &shared})
		if (a->holds(p)) {
			if (write) store(*a, p, bytes, at, false);
			else load(*a, p, bytes, at);
			return;
		}
	if (!write && p >= (const char *)text_base && p < (const char *)text_base + (16 << 20)) return;  // constants
	fail(at, 0, "%s of %zu bytes at %p, which is neither device nor shared memory", write ? "store" : "load", bytes, address);
}

}  // namespace

#define CALLER ((uintptr_t)__builtin_return_address(0))

extern "C" {

// ---- the compiler's calls

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
#define ACCESS(n)                                                     \
	void __tsan_read##n(void *p) { access(p, n, false, CALLER); }     \
	void __tsan_write##n(void *p) { access(p, n, true, CALLER); }     \
	void __tsan_unaligned_read##n(void *p) { access(p, n, false, CALLER, false); } \
	void __tsan_unaligned_write##n(void *p) { access(p, n, true, CALLER, false); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
void __tsan_read_range(void *p, size_t n) { access(p, n, false, CALLER, false); }
void __tsan_write_range(void *p, size_t n) { access(p, n, true, CALLER, false); }

// ---- the kernels' calls

void sim_register(const char *name, void (*call)(const uint64_t *), int args, int threads) {
	if (kernel_count == max_kernels) abort();
	kernels[kernel_count++] = kernel{name, call, args, threads};
}

unsigned sim_index(int which) {
	switch (which) {
	case 0: return self->x;
	case 1: return self->y;
	case 2: return self->z;
	case 3: case 4: case 5: return block_index[which - 3];
	case 6: case 7: case 8: return block[which - 6];
	default: return grid[which - 9];
	}
}

void *sim_shared(const void *site, size_t bytes) {
	for (int i = 0; i < shared_site_count; i++)
		if (shared_sites[i].site == site) return shared.base + shared_sites[i].offset;
	size_t offset = shared_used, end = offset + (bytes + 15) / 16 * 16 + redzone;
	if (shared_site_count == 64 || end > shared.bytes) fail(CALLER, 0, "static shared memory beyond %zu bytes", shared.bytes);
	shared_sites[shared_site_count++] = {site, offset, bytes};
	fill(shared, shared.base + offset, bytes, never);
	fill(shared, shared.base + offset + (bytes + 1) / 2 * 2, end - offset - (bytes + 1) / 2 * 2, unallocated);
	memset(shared.base + offset, 0xff, bytes);
	shared_used = end;
	return shared.base + offset;
}

void *sim_dynamic_shared(void) { return shared.base; }

void sim_syncthreads(void) { wait_block(CALLER); }

void sim_syncwarp(void) { wait_warp(CALLER, true); }

// A shuffle exchanges registers; it does not order memory.
uint64_t sim_exchange(uint64_t value, unsigned lane) {
	int parity = warps[self_id / 32].parity;
	self->slot[parity] = value;
	wait_warp(CALLER, false);
	return fibers[self_id / 32 * 32 + lane].slot[parity];
}

unsigned sim_ballot(int predicate) {
	int parity = warps[self_id / 32].parity;
	self->slot[parity] = predicate != 0;
	wait_warp(CALLER, false);
	unsigned bits = 0;
	for (int l = 0; l < 32; l++) bits |= (unsigned)fibers[self_id / 32 * 32 + l].slot[parity] << l;
	return bits;
}

static float bf16(uint32_t pair, int high) {
	uint32_t bits = high ? pair & 0xffff0000 : pair << 16;
	float f;
	memcpy(&f, &bits, 4);
	return f;
}

// add_product is d += a·b, in order of k.
#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target_clones("default", "arch=x86-64-v3")))  // with and without an instruction for fmaf
#endif
static void add_product(float (&d)[16][8], const float (&a)[16][16], const float (&b)[16][8]) {
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 16; k++)
			for (int j = 0; j < 8; j++) d[i][j] = __builtin_fmaf(a[i][k], b[k][j], d[i][j]);
}

// d += a·b of one 16×16 and one 16×8 tile, in the layout of mma.m16n8k16. The
// lane that comes last computes for all.
void sim_mma_bf16(float *d, const uint32_t *a, const uint32_t *b) {
	uint64_t *slot = self->slot + 2;  // shuffles have the first two
	slot[0] = (uint64_t)d;
	memcpy(slot + 1, a, 16);
	memcpy(slot + 3, b, 8);
	const warp &w = warps[self_id / 32];
	if (w.arrived == 31 && w.at == CALLER) {
		const fiber *lanes = fibers + self_id / 32 * 32;
		float left[16][16], right[16][8], sum[16][8];
		for (int l = 0; l < 32; l++) {
			int group = l / 4, quad = l % 4;
			uint32_t words[6];
			memcpy(words, lanes[l].slot + 3, 24);
			const float *acc = (const float *)lanes[l].slot[2];
			for (int e = 0; e < 2; e++) {
				for (int r = 0; r < 4; r++) left[group + r % 2 * 8][quad * 2 + r / 2 * 8 + e] = bf16(words[r], e);
				for (int r = 0; r < 2; r++) right[quad * 2 + r * 8 + e][group] = bf16(words[4 + r], e);
				for (int r = 0; r < 2; r++) sum[group + r * 8][quad * 2 + e] = acc[r * 2 + e];
			}
		}
		add_product(sum, left, right);
		for (int l = 0; l < 32; l++)
			for (int r = 0; r < 4; r++) ((float *)lanes[l].slot[2])[r] = sum[l / 4 + r / 2 * 8][l % 4 * 2 + r % 2];
	}
	wait_warp(CALLER, false);
}

// Four 8×8 matrices of 16-bit numbers, lane l giving row l%8 of matrix l/8. The
// lane that comes last hands them out.
void sim_ldmatrix(uint32_t *r, const void *row, int transposed) {
	if (!shared.holds(row)) fail(CALLER, 0, "ldmatrix from memory that is not shared");
	if ((uintptr_t)row % 16) fail(CALLER, 0, "ldmatrix at a misaligned address");
	load(shared, (const char *)row, 16, CALLER);
	uint64_t *slot = self->slot + 2;
	slot[0] = (uint64_t)r, slot[1] = (uint64_t)row;
	const warp &w = warps[self_id / 32];
	if (w.arrived == 31 && w.at == CALLER) {
		const fiber *lanes = fibers + self_id / 32 * 32;
		for (int l = 0; l < 32; l++)
			for (int m = 0; m < 4; m++) {
				uint32_t word = 0;
				for (int e = 0; e < 2; e++) {
					int i = l / 4, j = l % 4 * 2 + e;
					const uint16_t *from = (const uint16_t *)lanes[m * 8 + (transposed ? j : i)].slot[3];
					word |= (uint32_t)from[transposed ? i : j] << (16 * e);
				}
				((uint32_t *)lanes[l].slot[2])[m] = word;
			}
	}
	wait_warp(CALLER, false);
}

// An asynchronous copy happens when it is waited for, and not before; what
// reads its target earlier finds memory that nothing has written.
void sim_cp_async16(void *dst, const void *src, int bytes) {
	if (!shared.holds(dst)) fail(CALLER, 0, "cp.async into memory that is not shared");
	if ((uintptr_t)dst % 16 || (uintptr_t)src % 16) fail(CALLER, 0, "cp.async at a misaligned address");
	if (self->copies == 64) fail(CALLER, 0, "more than 64 asynchronous copies pending in one thread");
	if (bytes != 0 && !device.holds(src)) fail(CALLER, 0, "cp.async from memory that is not the device's");
	self->pending[self->copies++] = copy{(char *)dst, (const char *)src, bytes, CALLER};
	// Until then the target is undefined.
	store(shared, (const char *)dst, 16, CALLER, false);
	for (shadow *s = shared.of(dst), *end = s + 8; s < end; s++) s->written = never;
}

void sim_cp_async_commit(void) {
	if (self->groups == 16) fail(CALLER, 0, "more than 16 groups of asynchronous copies pending in one thread");
	self->group_end[self->groups++] = self->copies;
}

void sim_cp_async_wait(int pending) {
	int done = self->groups - pending;
	if (done <= 0) return;
	int n = self->group_end[done - 1];
	for (int i = 0; i < n; i++) {
		const copy &c = self->pending[i];
		if (c.bytes) load(device, c.src, c.bytes, c.at);
		store(shared, c.dst, 16, c.at, false);
		memset(c.dst, 0, 16);
		memcpy(c.dst, c.src, c.bytes);
	}
	memmove(self->pending, self->pending + n, (self->copies - n) * sizeof(copy));
	self->copies -= n;
	for (int g = done; g < self->groups; g++) self->group_end[g - done] = self->group_end[g] - n;
	self->groups -= done;
}

static void atomic_access(void *p, size_t bytes, uintptr_t at) {
	const arena &a = shared.holds(p) ? shared : device;
	if (!a.holds(p)) fail(at, 0, "atomic on memory that is neither device nor shared memory");
	if ((uintptr_t)p % bytes != 0) fail(at, 0, "atomic of %zu bytes at a misaligned address", bytes);
	shadow *s = a.of((const char *)p);
	if (s->written == never) fail(at, 0, "atomic on %s memory that nothing has written", space(a));
	store(a, (const char *)p, bytes, at, true);
}

unsigned sim_atomic_add(unsigned *p, unsigned v) {
	atomic_access(p, 4, CALLER);
	unsigned old = *p;
	*p = old + v;
	return old;
}

uint64_t sim_atomic_add64(uint64_t *p, uint64_t v) {
	atomic_access(p, 8, CALLER);
	uint64_t old = *p;
	*p = old + v;
	return old;
}

unsigned sim_atomic_max(unsigned *p, unsigned v) {
	atomic_access(p, 4, CALLER);
	unsigned old = *p;
	if (v > old) *p = v;
	return old;
}

// ---- the host's calls

int sim_open(size_t memory) {
	Dl_info info;
	if (!dladdr((void *)&sim_open, &info)) return -1;
	text_base = (uintptr_t)info.dli_fbase;
	memory = (memory + redzone - 1) / redzone * redzone;
	device = arena{reserve(memory), memory, (shadow *)reserve(memory / 2 * sizeof(shadow))};
	shared = arena{reserve(shared_bytes), shared_bytes, (shadow *)reserve(shared_bytes / 2 * sizeof(shadow))};
	stacks = reserve(max_threads * stack_bytes);
	if (!device.base || !device.shadows || !shared.base || !shared.shadows || !stacks) return -1;
	for (int i = 0; i < max_threads; i++) fibers[i].stack = stacks + i * stack_bytes;
	counter = by_host + 1;
	region_count = 1;
	regions[0] = region{0, memory, false};
	return 0;
}

void sim_close(void) {
	munmap(device.shadows, device.bytes / 2 * sizeof(shadow));
	munmap(device.base, device.bytes);
	munmap(shared.shadows, shared.bytes / 2 * sizeof(shadow));
	munmap(shared.base, shared.bytes);
	munmap(stacks, max_threads * stack_bytes);
}

// Regions are kept in order of address; each used one ends with a red zone.
uint64_t sim_alloc(size_t bytes) {
	size_t need = (bytes + redzone - 1) / redzone * redzone + redzone;
	for (int i = 0; i < region_count; i++) {
		region &r = regions[i];
		if (r.used || r.bytes < need) continue;
		if (r.bytes > need) {
			if (region_count == max_regions) return 0;
			memmove(regions + i + 2, regions + i + 1, (region_count - i - 1) * sizeof(region));
			regions[i + 1] = region{r.offset + need, r.bytes - need, false};
			region_count++;
			r.bytes = need;
		}
		r.used = true;
		char *p = device.base + r.offset;
		memset(p, 0xff, need);
		fill(device, p, need, unallocated);
		fill(device, p, bytes, never);
		return (uint64_t)p;
	}
	return 0;
}

int sim_free(uint64_t address) {
	size_t offset = (char *)address - device.base;
	for (int i = 0; i < region_count; i++) {
		region &r = regions[i];
		if (r.offset != offset || !r.used) continue;
		r.used = false;
		fill(device, device.base + offset, r.bytes, unallocated);
		if (i + 1 < region_count && !regions[i + 1].used) {
			r.bytes += regions[i + 1].bytes;
			memmove(regions + i + 1, regions + i + 2, (region_count - i - 2) * sizeof(region));
			region_count--;
		}
		if (i > 0 && !regions[i - 1].used) {
			regions[i - 1].bytes += r.bytes;
			memmove(regions + i, regions + i + 1, (region_count - i - 1) * sizeof(region));
			region_count--;
		}
		return 0;
	}
	return -1;
}

size_t sim_free_bytes(void) {
	size_t n = 0;
	for (int i = 0; i < region_count; i++)
		if (!regions[i].used) n += regions[i].bytes;
	return n;
}

// A host access to device memory: 0, or the number of bytes from its start that are sound.
static int host_access(uint64_t p, size_t bytes, bool write) {
	if (!device.holds((char *)p) || !device.holds((char *)p + bytes - 1)) return -1;
	for (shadow *s = device.of((char *)p), *end = device.of((char *)p + bytes - 1) + 1; s < end; s++) {
		if (s->written == unallocated) return -1;
		if (!write && s->written == never) return -2;
		if (write) *s = shadow{by_host, never, 0, 0, 0, 0, 0, 0, 0, 0};
	}
	return 0;
}

int sim_upload(uint64_t dst, const void *src, size_t bytes) {
	int rc = host_access(dst, bytes, true);
	if (rc == 0) memcpy((void *)dst, src, bytes);
	return rc;
}

int sim_download(void *dst, uint64_t src, size_t bytes) {
	int rc = host_access(src, bytes, false);
	if (rc == 0) memcpy(dst, (void *)src, bytes);
	return rc;
}

int sim_fill(uint64_t dst, int value, size_t bytes) {
	int rc = host_access(dst, bytes, true);
	if (rc == 0) memset((void *)dst, value, bytes);
	return rc;
}

int sim_find(const char *name) {
	for (int i = 0; i < kernel_count; i++)
		if (!strcmp(kernels[i].name, name)) return i;
	return -1;
}

const char *sim_kernel_name(int id) { return kernels[id].name; }

static void run_block(void) {
	threads = alive = block[0] * block[1] * block[2];
	block_began = block_synced = ++counter;
	block_generation = 0, block_arrived = 0;
	shared_site_count = 0;
	shared_used = (dynamic_used + 15) / 16 * 16 + redzone;
	fill(shared, shared.base, shared_used, unallocated);
	fill(shared, shared.base, dynamic_used, never);
	memset(shared.base, 0xff, dynamic_used);
	int id = 0;
	for (unsigned z = 0; z < block[2]; z++)
		for (unsigned y = 0; y < block[1]; y++)
			for (unsigned x = 0; x < block[0]; x++, id++) {
				fiber &f = fibers[id];
				f.x = x, f.y = y, f.z = z;
				f.state = nothing;
				f.copies = f.groups = 0;
				f.sp = fresh(f.stack);
			}
	for (int w = 0; w < threads / 32; w++) warps[w] = warp{0, 0, counter, 0, 0};
	self_id = 0, self = &fibers[0];
	sim_switch(&main_sp, self->sp);
	self = nullptr;
}

int sim_launch(int id, const unsigned *g, const unsigned *b, size_t dynamic, const uint64_t *args, int count, sim_error *e) {
	error = e;
	error->message[0] = 0;
	running = &kernels[id];
	memset(block_index, 0, sizeof block_index);
	const char *wrong = nullptr;
	uint64_t n = (uint64_t)b[0] * b[1] * b[2];
	if (count != running->args || count > 64) wrong = "launched with a wrong number of arguments";
	else if (n == 0 || n > (uint64_t)running->max_threads || n % 32) wrong = "launched with a block size that it was not made for";
	else if (!g[0] || !g[1] || !g[2] || g[1] > 65535 || g[2] > 65535) wrong = "launched with a grid that cannot be";
	else if (dynamic + redzone > shared.bytes) wrong = "launched with too much dynamic shared memory";
	if (wrong) {
		snprintf(e->message, sizeof e->message, "%s", wrong);
		e->kernel = running->name;
		return -1;
	}
	memcpy(running_args, args, count * sizeof *args);
	memcpy(grid, g, sizeof grid);
	memcpy(block, b, sizeof block);
	dynamic_used = dynamic;
	launch_began = ++counter;
	for (unsigned z = 0; z < g[2]; z++)
		for (unsigned y = 0; y < g[1]; y++)
			for (unsigned x = 0; x < g[0]; x++) {
				block_index[0] = x, block_index[1] = y, block_index[2] = z;
				if (counter > 0xf0000000) {
					snprintf(e->message, sizeof e->message, "the simulator's clock ran out: open a new one");
					return -1;
				}
				run_block();
				if (e->message[0]) return -1;
			}
	return 0;
}

}  // extern "C"
