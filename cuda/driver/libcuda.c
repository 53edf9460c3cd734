//go:build cuda && linux && cgo

#include "libcuda.h"

#include <dlfcn.h>
#include <stdio.h>

const char *cuda_open(cuda_library *l, const char *path) {
	static char missing[128];
	l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!l->handle) return dlerror();
#define CUDA_FIND(name, parameters)                                          \
	*(void **)&l->name = dlsym(l->handle, #name);                            \
	if (!l->name) {                                                          \
		snprintf(missing, sizeof missing, "no symbol " #name " in %s", path); \
		dlclose(l->handle);                                                  \
		l->handle = NULL;                                                    \
		return missing;                                                      \
	}
	CUDA_FUNCTIONS(CUDA_FIND)
	return NULL;
}

void cuda_close(cuda_library *l) {
	if (l->handle) dlclose(l->handle);
	l->handle = NULL;
}

enum { max_args = 64 };

CUresult cuda_enqueue(const cuda_library *l, CUstream s, const cuda_command *commands, int n, const uint64_t *args, int *failed) {
	for (int i = 0; i < n; i++) {
		const cuda_command *c = &commands[i];
		CUresult rc = CUDA_SUCCESS;
		*failed = i;
		switch (c->op) {
		case 0: {
			void *slots[max_args];
			if (c->count > max_args) return 1;
			for (uint32_t a = 0; a < c->count; a++) slots[a] = (void *)&args[c->args + a];
			rc = l->cuLaunchKernel((CUfunction)(uintptr_t)c->kernel, c->grid[0], c->grid[1], c->grid[2],
			                       c->block[0], c->block[1], c->block[2], c->shared, s, slots, NULL);
			break;
		}
		case 1: rc = l->cuMemcpyHtoDAsync_v2(c->dst, (const void *)(uintptr_t)c->src, c->bytes, s); break;
		case 2: rc = l->cuMemcpyDtoHAsync_v2((void *)(uintptr_t)c->dst, c->src, c->bytes, s); break;
		case 3: rc = l->cuMemsetD8Async(c->dst, (unsigned char)c->src, c->bytes, s); break;
		case 4: rc = l->cuMemcpyDtoDAsync_v2(c->dst, c->src, c->bytes, s); break;
		default: return 1;
		}
		if (rc != CUDA_SUCCESS) return rc;
	}
	return CUDA_SUCCESS;
}

#define TRY(name, result)                                       \
	do {                                                        \
		out->call = name;                                       \
		CUresult rc_ = (result);                                \
		if (rc_ != CUDA_SUCCESS) return rc_;                    \
	} while (0)

static CUresult put(const cuda_library *l, CUstream s, const cuda_command *commands, int n, const uint64_t *args,
                    uint64_t graph, cuda_outcome *out) {
	if (graph) TRY("cuGraphLaunch", l->cuGraphLaunch((CUgraphExec)(uintptr_t)graph, s));
	else TRY("command", cuda_enqueue(l, s, commands, n, args, &out->failed));
	return CUDA_SUCCESS;
}

CUresult cuda_start(const cuda_library *l, CUcontext c, CUstream s,
                    const cuda_command *commands, int n, const uint64_t *args, uint64_t graph, cuda_outcome *out) {
	TRY("cuCtxSetCurrent", l->cuCtxSetCurrent(c));
	return put(l, s, commands, n, args, graph, out);
}

CUresult cuda_wait(const cuda_library *l, CUcontext c, CUstream s, cuda_outcome *out) {
	TRY("cuCtxSetCurrent", l->cuCtxSetCurrent(c));
	TRY("cuStreamSynchronize", l->cuStreamSynchronize(s));
	return CUDA_SUCCESS;
}

CUresult cuda_run(const cuda_library *l, CUcontext c, CUstream s, CUevent start, CUevent end, int timed,
                  const cuda_command *commands, int n, const uint64_t *args, uint64_t graph, cuda_outcome *out) {
	TRY("cuCtxSetCurrent", l->cuCtxSetCurrent(c));
	if (timed) TRY("cuEventRecord", l->cuEventRecord(start, s));
	CUresult rc = put(l, s, commands, n, args, graph, out);
	if (rc != CUDA_SUCCESS) return rc;
	if (timed) TRY("cuEventRecord", l->cuEventRecord(end, s));
	TRY("cuStreamSynchronize", l->cuStreamSynchronize(s));
	if (timed) TRY("cuEventElapsedTime", l->cuEventElapsedTime(&out->ms, start, end));
	return CUDA_SUCCESS;
}

CUresult cuda_load(const cuda_library *l, CUmodule *m, const void *image, char *log, unsigned log_bytes) {
	int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
	void *values[] = {log, (void *)(uintptr_t)log_bytes};
	log[0] = 0;
	return l->cuModuleLoadDataEx(m, image, 2, options, values);
}
