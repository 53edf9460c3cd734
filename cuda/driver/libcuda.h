// The parts of the CUDA driver API that package driver uses, declared from the
// API's public reference. Names carry the version of the symbol in the library.
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx *CUcontext;
typedef struct CUmod *CUmodule;
typedef struct CUfunc *CUfunction;
typedef struct CUstr *CUstream;
typedef struct CUev *CUevent;
typedef struct CUgr *CUgraph;
typedef struct CUgrx *CUgraphExec;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,

	CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
	CU_DEVICE_ATTRIBUTE_PCI_BUS_ID = 33,
	CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
	CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID = 50,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
	CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
	CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,

	CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = 1,
	CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,

	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,

	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
	CU_EVENT_DEFAULT = 0,
};

// X(name, parameters) for each function.
#define CUDA_FUNCTIONS(X)                                                                                          \
	X(cuInit, (unsigned))                                                                                          \
	X(cuDriverGetVersion, (int *))                                                                                 \
	X(cuGetErrorName, (CUresult, const char **))                                                                   \
	X(cuGetErrorString, (CUresult, const char **))                                                                 \
	X(cuDeviceGetCount, (int *))                                                                                   \
	X(cuDeviceGet, (CUdevice *, int))                                                                              \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                                    \
	X(cuDeviceGetAttribute, (int *, int, CUdevice))                                                                \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                           \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                    \
	X(cuCtxSetCurrent, (CUcontext))                                                                                \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                       \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                      \
	X(cuMemFree_v2, (CUdeviceptr))                                                                                 \
	X(cuMemHostAlloc, (void **, size_t, unsigned))                                                                 \
	X(cuMemFreeHost, (void *))                                                                                     \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                         \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                               \
	X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                          \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                             \
	X(cuStreamCreate, (CUstream *, unsigned))                                                                      \
	X(cuStreamDestroy_v2, (CUstream))                                                                              \
	X(cuStreamSynchronize, (CUstream))                                                                             \
	X(cuStreamBeginCapture_v2, (CUstream, int))                                                                    \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                                                   \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                   \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                      \
	X(cuGraphDestroy, (CUgraph))                                                                                   \
	X(cuGraphExecDestroy, (CUgraphExec))                                                                           \
	X(cuEventCreate, (CUevent *, unsigned))                                                                        \
	X(cuEventDestroy_v2, (CUevent))                                                                                \
	X(cuEventRecord, (CUevent, CUstream))                                                                          \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                             \
	X(cuModuleLoadDataEx, (CUmodule *, const void *, unsigned, int *, void **))                                    \
	X(cuModuleUnload, (CUmodule))                                                                                  \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                 \
	X(cuFuncGetAttribute, (int *, int, CUfunction))                                                                \
	X(cuFuncSetAttribute, (CUfunction, int, int))                                                                  \
	X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, \
	                   void **, void **))

#define CUDA_DECLARE(name, parameters) CUresult(*name) parameters;
typedef struct {
	void *handle;
	CUDA_FUNCTIONS(CUDA_DECLARE)
} cuda_library;

// cuda_command mirrors Command in driver.go.
typedef struct {
	uint32_t op, shared;
	uint64_t kernel;
	uint32_t grid[3], block[3];
	uint32_t args, count;
	uint64_t dst, src, bytes;
} cuda_command;

// cuda_open loads the library; it returns null, or what is wrong.
const char *cuda_open(cuda_library *l, const char *path);
void cuda_close(cuda_library *l);

// cuda_enqueue puts commands on a stream, up to the first that fails, whose
// index is then in *failed.
CUresult cuda_enqueue(const cuda_library *l, CUstream s, const cuda_command *commands, int n, const uint64_t *args, int *failed);

// cuda_outcome tells of a run: the call that failed, for "command" which one,
// and the time between the events.
typedef struct {
	const char *call;
	int failed;
	float ms;
} cuda_outcome;

// cuda_start makes the context current on this thread and enqueues commands, or a
// graph if there is one. cuda_wait waits for them, on any thread.
CUresult cuda_start(const cuda_library *l, CUcontext c, CUstream s,
                    const cuda_command *commands, int n, const uint64_t *args, uint64_t graph, cuda_outcome *out);
CUresult cuda_wait(const cuda_library *l, CUcontext c, CUstream s, cuda_outcome *out);

// cuda_run is both, between two events if the time is wanted.
CUresult cuda_run(const cuda_library *l, CUcontext c, CUstream s, CUevent start, CUevent end, int timed,
                  const cuda_command *commands, int n, const uint64_t *args, uint64_t graph, cuda_outcome *out);

// cuda_load compiles a module; the compiler's complaints come in log.
CUresult cuda_load(const cuda_library *l, CUmodule *m, const void *image, char *log, unsigned log_bytes);
