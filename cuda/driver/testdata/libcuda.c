// A libcuda for tests of the driver package: device memory is the host's, a
// launch of the kernel "store" writes its second argument where the first
// points. FAKE_CUDA_FAIL="name=code" or "name=code@n" makes the n-th call of
// that function (and later ones) fail; calls that need a context fail on a thread
// on which it is not current.
#include "../libcuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int live;
static __thread CUcontext current;
static struct { char name[64]; int calls; } calls[64];

static CUresult enter(const char *name) {
	int anywhere = !strcmp(name, "cuInit") || !strcmp(name, "cuDriverGetVersion") || !strncmp(name, "cuDevice", 8) || !strcmp(name, "cuCtxSetCurrent");
	if (!anywhere && !current) return 201;
	int i = 0;
	while (calls[i].name[0] && strcmp(calls[i].name, name)) i++;
	strcpy(calls[i].name, name);
	calls[i].calls++;
	const char *spec = getenv("FAKE_CUDA_FAIL");
	char which[64];
	int code, from = 1;
	if (spec && sscanf(spec, "%63[^=]=%d@%d", which, &code, &from) >= 2 && !strcmp(which, name) && calls[i].calls >= from) return code;
	return 0;
}
#define ENTER(name) do { CUresult rc_ = enter(#name); if (rc_) return rc_; } while (0)

typedef struct { int op; uint64_t a, b, c; } recorded;
typedef struct CUgr { recorded r[64]; int n; } graph;
static graph *capturing;

static void act(recorded r) {
	switch (r.op) {
	case 0: *(uint32_t *)r.a = (uint32_t)r.b; break;
	case 1: memcpy((void *)r.a, (void *)r.b, r.c); break;
	case 2: memset((void *)r.a, (int)r.b, r.c); break;
	}
}
static CUresult later(recorded r) {
	if (capturing) capturing->r[capturing->n++] = r;
	else act(r);
	return 0;
}

// live counts what is not freed; with anything left, the context does not go.

CUresult cuInit(unsigned f) { ENTER(cuInit); return f; }
CUresult cuDriverGetVersion(int *v) { ENTER(cuDriverGetVersion); *v = 12020; return 0; }
CUresult cuGetErrorName(CUresult rc, const char **s) { *s = rc == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : rc == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_X"; return 0; }
CUresult cuGetErrorString(CUresult rc, const char **s) { *s = rc == 700 ? "an illegal memory access was encountered" : "text"; return 0; }
CUresult cuDeviceGetCount(int *n) { ENTER(cuDeviceGetCount); *n = 1; return 0; }
CUresult cuDeviceGet(CUdevice *d, int i) { ENTER(cuDeviceGet); *d = i; return 0; }
CUresult cuDeviceGetName(char *s, int n, CUdevice d) { ENTER(cuDeviceGetName); snprintf(s, n, "Fake %d", d); return 0; }
CUresult cuDeviceGetAttribute(int *v, int a, CUdevice d) { ENTER(cuDeviceGetAttribute); *v = a == 75 ? 9 : a == 76 || a == 34 ? 0 : a == 16 ? 132 : a == 33 ? 0x41 : a == 50 ? 1 : 232448; return d; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { ENTER(cuDevicePrimaryCtxRetain); live++; *c = (CUcontext)&live; return d; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { ENTER(cuDevicePrimaryCtxRelease_v2); live--; return live ? 999 : d; }
CUresult cuCtxSetCurrent(CUcontext c) { ENTER(cuCtxSetCurrent); current = c; return 0; }
CUresult cuMemGetInfo_v2(size_t *f, size_t *t) { ENTER(cuMemGetInfo_v2); *f = 3 << 20, *t = 5 << 20; return 0; }
CUresult cuMemAlloc_v2(CUdeviceptr *p, size_t n) { ENTER(cuMemAlloc_v2); live++; *p = (CUdeviceptr)calloc(1, n); return 0; }
CUresult cuMemFree_v2(CUdeviceptr p) { ENTER(cuMemFree_v2); live--; free((void *)p); return 0; }
CUresult cuMemHostAlloc(void **p, size_t n, unsigned f) { ENTER(cuMemHostAlloc); live++; *p = calloc(1, n); return f; }
CUresult cuMemFreeHost(void *p) { ENTER(cuMemFreeHost); live--; free(p); return 0; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr d, const void *s, size_t n, CUstream q) { ENTER(cuMemcpyHtoDAsync_v2); (void)q; return later((recorded){1, d, (uint64_t)s, n}); }
CUresult cuMemcpyDtoHAsync_v2(void *d, CUdeviceptr s, size_t n, CUstream q) { ENTER(cuMemcpyDtoHAsync_v2); (void)q; return later((recorded){1, (uint64_t)d, s, n}); }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream q) { ENTER(cuMemcpyDtoDAsync_v2); (void)q; return later((recorded){1, d, s, n}); }
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, CUstream q) { ENTER(cuMemsetD8Async); (void)q; return later((recorded){2, d, v, n}); }
CUresult cuStreamCreate(CUstream *s, unsigned f) { ENTER(cuStreamCreate); live++; *s = (CUstream)&live; return f != 1; }
CUresult cuStreamDestroy_v2(CUstream s) { ENTER(cuStreamDestroy_v2); (void)s; live--; return 0; }
CUresult cuStreamSynchronize(CUstream s) { ENTER(cuStreamSynchronize); (void)s; return capturing ? 900 : 0; }
CUresult cuStreamBeginCapture_v2(CUstream s, int m) { ENTER(cuStreamBeginCapture_v2); (void)s; live++; capturing = calloc(1, sizeof *capturing); return m != 1; }
CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { (void)s; *g = capturing; capturing = NULL; ENTER(cuStreamEndCapture); return 0; }
CUresult cuGraphInstantiateWithFlags(CUgraphExec *x, CUgraph g, unsigned long long f) { ENTER(cuGraphInstantiateWithFlags); live++; graph *copy = malloc(sizeof *copy); *copy = *g; *x = (CUgraphExec)copy; return f != 0; }
CUresult cuGraphLaunch(CUgraphExec x, CUstream s) { ENTER(cuGraphLaunch); (void)s; for (int i = 0; i < ((graph *)x)->n; i++) act(((graph *)x)->r[i]); return 0; }
CUresult cuGraphDestroy(CUgraph g) { ENTER(cuGraphDestroy); live--; free(g); return 0; }
CUresult cuGraphExecDestroy(CUgraphExec x) { ENTER(cuGraphExecDestroy); live--; free(x); return 0; }
CUresult cuEventCreate(CUevent *e, unsigned f) { ENTER(cuEventCreate); live++; *e = (CUevent)&calls; return f; }
CUresult cuEventDestroy_v2(CUevent e) { ENTER(cuEventDestroy_v2); (void)e; live--; return 0; }
CUresult cuEventRecord(CUevent e, CUstream s) { ENTER(cuEventRecord); (void)e, (void)s; return 0; }
CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { ENTER(cuEventElapsedTime); (void)a, (void)b; *ms = 1.5f; return 0; }
CUresult cuModuleLoadDataEx(CUmodule *m, const void *image, unsigned n, int *o, void **v) {
	ENTER(cuModuleLoadDataEx);
	if (strncmp(image, ".version", 8)) {
		if (n == 2 && o[0] == CU_JIT_ERROR_LOG_BUFFER && o[1] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) snprintf(v[0], (size_t)v[1], "line 1: syntax error");
		return 218;
	}
	live++;
	*m = (CUmodule)&calls;
	return 0;
}
CUresult cuModuleUnload(CUmodule m) { ENTER(cuModuleUnload); (void)m; live--; return 0; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *s) { ENTER(cuModuleGetFunction); *f = (CUfunction)m; return strcmp(s, "store") ? 500 : 0; }
static int most_shared = 49152;
CUresult cuFuncGetAttribute(int *v, int a, CUfunction f) { ENTER(cuFuncGetAttribute); (void)f; *v = 1000; return a != CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES; }
CUresult cuFuncSetAttribute(CUfunction f, int a, int v) { ENTER(cuFuncSetAttribute); (void)f; most_shared = v; return a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || v + 1000 > 232448; }
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream s, void **args, void **extra) {
	ENTER(cuLaunchKernel);
	(void)f, (void)s, (void)extra;
	if (gx * gy * gz * bx * by * bz == 0 || shared > (unsigned)most_shared) return 1;
	return later((recorded){0, *(uint64_t *)args[0], *(uint32_t *)args[1], 0});
}
