//go:build cuda && linux && cgo

package driver

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "libcuda.h"

// Go cannot call a C function pointer: one wrapper for each call.
static CUresult init_(cuda_library *l) { return l->cuInit(0); }
static CUresult version(cuda_library *l, int *v) { return l->cuDriverGetVersion(v); }
static CUresult error_name(cuda_library *l, CUresult rc, const char **s) { return l->cuGetErrorName(rc, s); }
static CUresult error_text(cuda_library *l, CUresult rc, const char **s) { return l->cuGetErrorString(rc, s); }
static CUresult count(cuda_library *l, int *n) { return l->cuDeviceGetCount(n); }
static CUresult get(cuda_library *l, CUdevice *d, int i) { return l->cuDeviceGet(d, i); }
static CUresult name(cuda_library *l, char *s, int n, CUdevice d) { return l->cuDeviceGetName(s, n, d); }
static CUresult attribute(cuda_library *l, int *v, int a, CUdevice d) { return l->cuDeviceGetAttribute(v, a, d); }
static CUresult retain(cuda_library *l, CUcontext *c, CUdevice d) { return l->cuDevicePrimaryCtxRetain(c, d); }
static CUresult release(cuda_library *l, CUdevice d) { return l->cuDevicePrimaryCtxRelease_v2(d); }
static CUresult set_current(cuda_library *l, CUcontext c) { return l->cuCtxSetCurrent(c); }
static CUresult mem_info(cuda_library *l, size_t *f, size_t *t) { return l->cuMemGetInfo_v2(f, t); }
static CUresult mem_alloc(cuda_library *l, CUdeviceptr *p, size_t n) { return l->cuMemAlloc_v2(p, n); }
static CUresult mem_free(cuda_library *l, CUdeviceptr p) { return l->cuMemFree_v2(p); }
static CUresult host_alloc(cuda_library *l, void **p, size_t n) { return l->cuMemHostAlloc(p, n, 0); }
static CUresult host_free(cuda_library *l, void *p) { return l->cuMemFreeHost(p); }
static CUresult stream_create(cuda_library *l, CUstream *s) { return l->cuStreamCreate(s, CU_STREAM_NON_BLOCKING); }
static CUresult stream_destroy(cuda_library *l, CUstream s) { return l->cuStreamDestroy_v2(s); }
static CUresult begin_capture(cuda_library *l, CUstream s) { return l->cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }
static CUresult end_capture(cuda_library *l, CUstream s, CUgraph *g) { return l->cuStreamEndCapture(s, g); }
static CUresult instantiate(cuda_library *l, CUgraphExec *x, CUgraph g) { return l->cuGraphInstantiateWithFlags(x, g, 0); }
static CUresult graph_destroy(cuda_library *l, CUgraph g) { return l->cuGraphDestroy(g); }
static CUresult exec_destroy(cuda_library *l, uint64_t x) { return l->cuGraphExecDestroy((CUgraphExec)(uintptr_t)x); }
static CUresult event_create(cuda_library *l, CUevent *e) { return l->cuEventCreate(e, CU_EVENT_DEFAULT); }
static CUresult event_destroy(cuda_library *l, CUevent e) { return l->cuEventDestroy_v2(e); }
static CUresult module_unload(cuda_library *l, CUmodule m) { return l->cuModuleUnload(m); }
static CUresult module_function(cuda_library *l, CUfunction *f, CUmodule m, const char *s) { return l->cuModuleGetFunction(f, m, s); }
static CUresult function_get(cuda_library *l, int *v, int a, CUfunction f) { return l->cuFuncGetAttribute(v, a, f); }
static CUresult function_set(cuda_library *l, CUfunction f, int a, int v) { return l->cuFuncSetAttribute(f, a, v); }
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Command and cuda_command are one layout.
var _ [unsafe.Sizeof(Command{})]byte = [C.sizeof_cuda_command]byte{}

const libraryName = "libcuda.so.1"

// Open makes a device of the given ordinal among the visible ones.
func Open(ordinal int) (Device, error) { return open(libraryName, ordinal) }

// device is the real one. A context is current on a thread, so every call makes
// it current on the thread that it happens to be on.
//
// Note: a goroutine locked to one thread was rejected: the way there and back, two
// switches of threads, takes longer than recording a whole step (BenchmarkLaunch).
type device struct {
	info   Info
	closed bool

	lib        *C.cuda_library
	outcome    *C.cuda_outcome // of a run; the library's, so that no run allocates
	ordinal    C.CUdevice
	context    C.CUcontext
	stream     C.CUstream
	start, end C.CUevent
	modules    []C.CUmodule
	fault      error // what the API says once is said for ever

	blocks map[Ptr]struct{}
	hosts  map[*byte]struct{}
	graphs map[Graph]struct{}
}

func open(path string, ordinal int) (Device, error) {
	d := &device{
		lib:     (*C.cuda_library)(C.calloc(1, C.sizeof_cuda_library)),
		outcome: (*C.cuda_outcome)(C.calloc(1, C.sizeof_cuda_outcome)),
		blocks:  make(map[Ptr]struct{}), hosts: make(map[*byte]struct{}), graphs: make(map[Graph]struct{}),
	}
	if err := d.call(func() error { return d.connect(path, ordinal) }); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// call makes calls of the API on one thread, the context current there.
func (d *device) call(f func() error) error {
	if d.closed {
		return errClosed
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if d.context != nil {
		if err := d.check(C.set_current(d.lib, d.context), "cuCtxSetCurrent"); err != nil {
			return err
		}
	}
	return f()
}

var errClosed = errors.New("the CUDA device is closed")

// check turns a result into an error that names the call.
func (d *device) check(rc C.CUresult, call string) error {
	if rc == C.CUDA_SUCCESS {
		return nil
	}
	var name, text *C.char
	C.error_name(d.lib, rc, &name)
	C.error_text(d.lib, rc, &text)
	if name == nil {
		return fmt.Errorf("%s: CUDA error %d", call, rc)
	}
	return fmt.Errorf("%s: %s (%d): %s", call, C.GoString(name), rc, C.GoString(text))
}

// freed is check for a call that frees. After a fault the driver refuses to
// free most things one by one; they go with the context.
func (d *device) freed(rc C.CUresult, call string) error {
	if d.fault != nil {
		return nil
	}
	return d.check(rc, call)
}

func (d *device) connect(path string, ordinal int) error {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	if msg := C.cuda_open(d.lib, p); msg != nil {
		return fmt.Errorf("%w: %s: install the NVIDIA driver, R525 (CUDA 12.0) or newer; in a container, pass the GPU through",
			ErrNoDriver, C.GoString(msg))
	}
	if rc := C.init_(d.lib); rc == C.CUDA_ERROR_NO_DEVICE {
		return fmt.Errorf("%w: the driver finds none: is CUDA_VISIBLE_DEVICES empty, or the GPU not passed through?", ErrNoDevice)
	} else if err := d.check(rc, "cuInit"); err != nil {
		return fmt.Errorf("%w: %w: do the kernel module and the library have one version (nvidia-smi tells)?", ErrNoDriver, err)
	}
	var version, n C.int
	if err := d.check(C.version(d.lib, &version), "cuDriverGetVersion"); err != nil {
		return err
	}
	if err := d.check(C.count(d.lib, &n), "cuDeviceGetCount"); err != nil {
		return err
	}
	if ordinal < 0 || ordinal >= int(n) {
		return fmt.Errorf("%w: device %d asked for, %d are visible (CUDA_VISIBLE_DEVICES chooses them)", ErrNoDevice, ordinal, int(n))
	}
	if err := d.check(C.get(d.lib, &d.ordinal, C.int(ordinal)), "cuDeviceGet"); err != nil {
		return err
	}
	var name [128]C.char
	if err := d.check(C.name(d.lib, &name[0], 128, d.ordinal), "cuDeviceGetName"); err != nil {
		return err
	}
	d.info = Info{Name: C.GoString(&name[0]), Driver: int(version)}
	var domain, bus, slot int
	for _, a := range []struct {
		attribute C.int
		to        *int
	}{
		{C.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &d.info.Processors},
		{C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &d.info.Major},
		{C.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &d.info.Minor},
		{C.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &d.info.SharedPerBlock},
		{C.CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, &domain},
		{C.CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, &bus},
		{C.CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, &slot},
	} {
		var v C.int
		if err := d.check(C.attribute(d.lib, &v, a.attribute, d.ordinal), "cuDeviceGetAttribute"); err != nil {
			return err
		}
		*a.to = int(v)
	}
	d.info.Bus = fmt.Sprintf("%08x:%02x:%02x.0", domain, bus, slot)
	var context C.CUcontext
	if err := d.memoryError(C.retain(d.lib, &context, d.ordinal), "cuDevicePrimaryCtxRetain"); err != nil {
		return err
	}
	d.context = context
	if err := d.check(C.set_current(d.lib, d.context), "cuCtxSetCurrent"); err != nil {
		return err
	}
	if err := d.check(C.stream_create(d.lib, &d.stream), "cuStreamCreate"); err != nil {
		return err
	}
	if err := d.check(C.event_create(d.lib, &d.start), "cuEventCreate"); err != nil {
		return err
	}
	return d.check(C.event_create(d.lib, &d.end), "cuEventCreate")
}

func (d *device) Info() Info { return d.info }

func (d *device) Memory() (free, total int64, err error) {
	err = d.call(func() error {
		var f, t C.size_t
		err := d.check(C.mem_info(d.lib, &f, &t), "cuMemGetInfo")
		free, total = int64(f), int64(t)
		return err
	})
	return free, total, err
}

// memoryError is check, where running out of memory is told apart, with numbers.
func (d *device) memoryError(rc C.CUresult, call string) error {
	err := d.check(rc, call)
	if rc == C.CUDA_ERROR_OUT_OF_MEMORY {
		var f, t C.size_t
		if C.mem_info(d.lib, &f, &t) == C.CUDA_SUCCESS {
			return fmt.Errorf("%w: %w: %d MiB of %d MiB are free", ErrOutOfMemory, err, f>>20, t>>20)
		}
		return fmt.Errorf("%w: %w", ErrOutOfMemory, err)
	}
	return err
}

func (d *device) Alloc(bytes int64) (p Ptr, err error) {
	err = d.call(func() error {
		var q C.CUdeviceptr
		if err := d.memoryError(C.mem_alloc(d.lib, &q, C.size_t(bytes)), fmt.Sprintf("cuMemAlloc of %d bytes", bytes)); err != nil {
			return err
		}
		p = Ptr(q)
		d.blocks[p] = struct{}{}
		return nil
	})
	return p, err
}

func (d *device) Free(p Ptr) error {
	return d.call(func() error {
		if _, ok := d.blocks[p]; !ok {
			return fmt.Errorf("free of %#x, which is not allocated", p)
		}
		delete(d.blocks, p)
		return d.freed(C.mem_free(d.lib, C.CUdeviceptr(p)), "cuMemFree")
	})
}

func (d *device) AllocHost(bytes int) (b []byte, err error) {
	err = d.call(func() error {
		var p unsafe.Pointer
		if err := d.check(C.host_alloc(d.lib, &p, C.size_t(max(bytes, 1))), "cuMemHostAlloc"); err != nil {
			return err
		}
		b = unsafe.Slice((*byte)(p), bytes)
		d.hosts[unsafe.SliceData(b)] = struct{}{}
		return nil
	})
	return b, err
}

func (d *device) FreeHost(b []byte) error {
	return d.call(func() error {
		p := unsafe.SliceData(b)
		if _, ok := d.hosts[p]; !ok {
			return errors.New("free of host memory that is not allocated")
		}
		delete(d.hosts, p)
		return d.freed(C.host_free(d.lib, unsafe.Pointer(p)), "cuMemFreeHost")
	})
}

func (d *device) Load(name string, image []byte) error {
	return d.call(func() error {
		const logBytes = 8192
		text, log := C.CBytes(append(image[:len(image):len(image)], 0)), (*C.char)(C.calloc(1, logBytes))
		defer C.free(text)
		defer C.free(unsafe.Pointer(log))
		var m C.CUmodule
		if err := d.memoryError(C.cuda_load(d.lib, &m, text, log, logBytes), "cuModuleLoadDataEx of "+name); err != nil {
			return fmt.Errorf("%w\n%s", err, C.GoString(log))
		}
		d.modules = append(d.modules, m)
		return nil
	})
}

func (d *device) Kernel(name string) (k Kernel, err error) {
	err = d.call(func() error {
		s := C.CString(name)
		defer C.free(unsafe.Pointer(s))
		for _, m := range d.modules {
			var f C.CUfunction
			if C.module_function(d.lib, &f, m, s) == C.CUDA_SUCCESS {
				k = Kernel(uintptr(unsafe.Pointer(f)))
				return d.allowShared(f)
			}
		}
		return fmt.Errorf("no kernel %q in %d modules", name, len(d.modules))
	})
	return k, err
}

// allowShared lets launches ask for all the shared memory that a block may
// have, which is more than what they may ask for unless told.
func (d *device) allowShared(f C.CUfunction) error {
	var static C.int
	if err := d.check(C.function_get(d.lib, &static, C.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f), "cuFuncGetAttribute"); err != nil {
		return err
	}
	most := C.int(d.info.SharedPerBlock) - static
	return d.check(C.function_set(d.lib, f, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, most), "cuFuncSetAttribute")
}

func (d *device) Run(l *List, seconds *float64) error { return d.run(l, 0, seconds) }

// usable says why no more work is taken.
func (d *device) usable() error {
	if d.closed {
		return errClosed
	}
	return d.fault
}

// run is one call of C, and so on one thread.
func (d *device) run(l *List, g Graph, seconds *float64) error {
	if err := d.usable(); err != nil {
		return err
	}
	commands, n, args := l.c()
	timed := C.int(0)
	if seconds != nil {
		timed = 1
	}
	if rc := C.cuda_run(d.lib, d.context, d.stream, d.start, d.end, timed, commands, n, args, C.uint64_t(g), d.outcome); rc != C.CUDA_SUCCESS {
		return d.failed(rc, l)
	}
	if seconds != nil {
		*seconds = float64(d.outcome.ms) / 1e3
	}
	return nil
}

func (d *device) Start(l *List, g Graph) error {
	if err := d.usable(); err != nil {
		return err
	}
	if g != 0 {
		l = nil
	}
	commands, n, args := l.c()
	if rc := C.cuda_start(d.lib, d.context, d.stream, commands, n, args, C.uint64_t(g), d.outcome); rc != C.CUDA_SUCCESS {
		return d.failed(rc, l)
	}
	return nil
}

func (d *device) Wait() error {
	if err := d.usable(); err != nil {
		return err
	}
	if rc := C.cuda_wait(d.lib, d.context, d.stream, d.outcome); rc != C.CUDA_SUCCESS {
		return d.failed(rc, nil)
	}
	return nil
}

// failed makes an error of the outcome of a run, which may have been of a list.
func (d *device) failed(rc C.CUresult, l *List) error {
	what := C.GoString(d.outcome.call)
	switch what {
	case "command":
		what = l.name(int(d.outcome.failed))
	case "cuStreamSynchronize":
		return d.keep(fmt.Errorf("%w; the context is lost, run under compute-sanitizer to find the place", d.check(rc, what)))
	}
	return d.keep(d.check(rc, what))
}

// c is the list as C reads it.
func (l *List) c() (commands *C.cuda_command, n C.int, args *C.uint64_t) {
	if l == nil || len(l.Commands) == 0 {
		return nil, 0, nil
	}
	if len(l.Args) > 0 {
		args = (*C.uint64_t)(&l.Args[0])
	}
	return (*C.cuda_command)(unsafe.Pointer(&l.Commands[0])), C.int(len(l.Commands)), args
}

// name is a command's, for errors.
func (l *List) name(i int) string {
	c := l.Commands[i]
	return fmt.Sprintf("command %d of %d (op %d, grid %v, block %v)", i, len(l.Commands), c.Op, c.Grid, c.Block)
}

func (d *device) enqueue(l *List) error {
	commands, n, args := l.c()
	if rc := C.cuda_enqueue(d.lib, d.stream, commands, n, args, &d.outcome.failed); rc != C.CUDA_SUCCESS {
		return d.keep(d.check(rc, l.name(int(d.outcome.failed))))
	}
	return nil
}

// keep makes an error of the stream final.
func (d *device) keep(err error) error {
	d.fault = fmt.Errorf("%w: %w", ErrKernel, err)
	return d.fault
}

func (d *device) Capture(l *List) (g Graph, err error) {
	err = d.call(func() error {
		if d.fault != nil {
			return d.fault
		}
		if err := d.check(C.begin_capture(d.lib, d.stream), "cuStreamBeginCapture"); err != nil {
			return d.keep(err)
		}
		enqueued := d.enqueue(l)
		var graph C.CUgraph
		err := d.check(C.end_capture(d.lib, d.stream, &graph), "cuStreamEndCapture")
		if enqueued != nil || err != nil {
			if graph != nil {
				C.graph_destroy(d.lib, graph)
			}
			return d.keep(errors.Join(enqueued, err))
		}
		var exec C.CUgraphExec
		err = d.memoryError(C.instantiate(d.lib, &exec, graph), "cuGraphInstantiate")
		err = errors.Join(err, d.check(C.graph_destroy(d.lib, graph), "cuGraphDestroy"))
		if exec != nil {
			g = Graph(uintptr(unsafe.Pointer(exec)))
			d.graphs[g] = struct{}{}
		}
		return err
	})
	return g, err
}

func (d *device) Launch(g Graph, seconds *float64) error { return d.run(nil, g, seconds) }

func (d *device) FreeGraph(g Graph) error {
	return d.call(func() error {
		if _, ok := d.graphs[g]; !ok {
			return fmt.Errorf("free of graph %#x, which does not exist", uint64(g))
		}
		delete(d.graphs, g)
		return d.freed(C.exec_destroy(d.lib, C.uint64_t(g)), "cuGraphExecDestroy")
	})
}

// Close frees what is left; only the release of the context can fail.
func (d *device) Close() error {
	if d.closed {
		return nil
	}
	d.closed = true
	defer func() {
		C.cuda_close(d.lib)
		C.free(unsafe.Pointer(d.lib))
		C.free(unsafe.Pointer(d.outcome))
		d.lib, d.outcome = nil, nil
	}()
	if d.context == nil {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	C.set_current(d.lib, d.context)
	for g := range d.graphs {
		C.exec_destroy(d.lib, C.uint64_t(g))
	}
	for p := range d.blocks {
		C.mem_free(d.lib, C.CUdeviceptr(p))
	}
	for p := range d.hosts {
		C.host_free(d.lib, unsafe.Pointer(p))
	}
	for _, m := range d.modules {
		C.module_unload(d.lib, m)
	}
	for _, e := range []C.CUevent{d.start, d.end} {
		if e != nil {
			C.event_destroy(d.lib, e)
		}
	}
	if d.stream != nil {
		C.stream_destroy(d.lib, d.stream)
	}
	C.set_current(d.lib, nil)
	return d.check(C.release(d.lib, d.ordinal), "cuDevicePrimaryCtxRelease")
}
