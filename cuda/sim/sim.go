//go:build cudasim && linux && cgo

package sim

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
#include "src/runtime.h"

// The entry points of one loaded library; each library is a device of its own.
typedef struct {
	void *handle;
	int (*open)(size_t);
	void (*close)(void);
	uint64_t (*alloc)(size_t);
	int (*free)(uint64_t);
	size_t (*free_bytes)(void);
	int (*upload)(uint64_t, const void *, size_t);
	int (*download)(void *, uint64_t, size_t);
	int (*fill)(uint64_t, int, size_t);
	int (*find)(const char *);
	const char *(*kernel_name)(int);
	int (*launch)(int, const unsigned *, const unsigned *, size_t, const uint64_t *, int, sim_error *);
} library;

static const char *load(library *l, const char *path) {
	l->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!l->handle) return dlerror();
#define FIND(name) if (!(*(void **)&l->name = dlsym(l->handle, "sim_" #name))) return dlerror();
	FIND(open) FIND(close) FIND(alloc) FIND(free) FIND(free_bytes) FIND(upload) FIND(download)
	FIND(fill) FIND(find) FIND(kernel_name) FIND(launch)
	return 0;
}

static int lib_open(library *l, size_t n) { return l->open(n); }
static void lib_close(library *l) { l->close(); dlclose(l->handle); }
static uint64_t lib_alloc(library *l, size_t n) { return l->alloc(n); }
static int lib_free(library *l, uint64_t p) { return l->free(p); }
static size_t lib_free_bytes(library *l) { return l->free_bytes(); }
static int lib_upload(library *l, uint64_t dst, uint64_t src, size_t n) { return l->upload(dst, (void *)src, n); }
static int lib_download(library *l, uint64_t dst, uint64_t src, size_t n) { return l->download((void *)dst, src, n); }
static int lib_fill(library *l, uint64_t dst, int v, size_t n) { return l->fill(dst, v, n); }
static int lib_find(library *l, const char *name) { return l->find(name); }
static const char *lib_kernel_name(library *l, int id) { return l->kernel_name(id); }
static int lib_launch(library *l, int id, const unsigned *g, const unsigned *b, size_t s, const uint64_t *a, int n, sim_error *e) {
	return l->launch(id, g, b, s, a, n, e);
}
*/
import "C"

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/kernels"
)

// Available says whether this build has the simulator.
const Available = true

// Device is a simulated device.
type Device struct {
	path   string // of the library, for lines in errors
	lib    *C.library
	memory int64
	hosts  map[*byte]unsafe.Pointer
	graphs map[driver.Graph]*driver.List
	last   driver.Graph
	begun  *driver.List // and not yet waited for
	fault  error        // sticky, as on a GPU
	err    *C.sim_error
}

var _ driver.Device = (*Device)(nil)

// Open compiles the kernels, if they are not in the cache, and makes a device.
func Open(opt Options) (driver.Device, error) {
	if opt.Memory == 0 {
		opt.Memory = 512 << 20
	}
	if opt.Sources == nil {
		opt.Sources = kernels.Sources()
	}
	path, err := library(opt.Sources)
	if err != nil {
		return nil, err
	}
	// A library is loaded once for each file: a copy makes a device of its own.
	copied, err := clone(path)
	if err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	defer os.Remove(copied)
	d := &Device{
		path: path, memory: opt.Memory,
		lib:    (*C.library)(C.calloc(1, C.sizeof_library)),
		err:    (*C.sim_error)(C.calloc(1, C.sizeof_sim_error)),
		hosts:  make(map[*byte]unsafe.Pointer),
		graphs: make(map[driver.Graph]*driver.List),
	}
	name := C.CString(copied)
	defer C.free(unsafe.Pointer(name))
	if msg := C.load(d.lib, name); msg != nil {
		return nil, fmt.Errorf("sim: load: %s", C.GoString(msg))
	}
	if C.lib_open(d.lib, C.size_t(opt.Memory)) != 0 {
		return nil, fmt.Errorf("sim: cannot reserve %d bytes for a device", opt.Memory)
	}
	return d, nil
}

func clone(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "batchproof-sim-*.so")
	if err != nil {
		return "", err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Close()
	}
	return f.Name(), err
}

// Info describes the simulator as a device of compute capability 8.0.
func (d *Device) Info() driver.Info {
	return driver.Info{Name: "simulator", Driver: 12000, Major: 8, Processors: 1, SharedPerBlock: 163 << 10}
}

func (d *Device) Memory() (free, total int64, err error) {
	return int64(C.lib_free_bytes(d.lib)), d.memory, d.fault
}

func (d *Device) Alloc(bytes int64) (driver.Ptr, error) {
	if d.fault != nil {
		return 0, d.fault
	}
	if bytes > 0 {
		if p := C.lib_alloc(d.lib, C.size_t(bytes)); p != 0 {
			return driver.Ptr(p), nil
		}
	}
	return 0, fmt.Errorf("%w: %d bytes asked for, %d are free", driver.ErrOutOfMemory, bytes, int64(C.lib_free_bytes(d.lib)))
}

func (d *Device) Free(p driver.Ptr) error {
	if C.lib_free(d.lib, C.uint64_t(p)) != 0 {
		return fmt.Errorf("sim: free of %#x, which is not allocated", p)
	}
	return nil
}

func (d *Device) AllocHost(bytes int) ([]byte, error) {
	p := C.calloc(1, C.size_t(max(bytes, 1)))
	b := unsafe.Slice((*byte)(p), bytes)
	d.hosts[unsafe.SliceData(b)] = p
	return b, nil
}

func (d *Device) FreeHost(b []byte) error {
	p, ok := d.hosts[unsafe.SliceData(b)]
	if !ok {
		return fmt.Errorf("sim: free of host memory that is not allocated")
	}
	delete(d.hosts, unsafe.SliceData(b))
	C.free(p)
	return nil
}

// Load does nothing: the kernels are built in.
func (d *Device) Load(string, []byte) error { return d.fault }

func (d *Device) Kernel(name string) (driver.Kernel, error) {
	s := C.CString(name)
	defer C.free(unsafe.Pointer(s))
	id := C.lib_find(d.lib, s)
	if id < 0 {
		return 0, fmt.Errorf("sim: no kernel %q", name)
	}
	return driver.Kernel(id), nil
}

func (d *Device) Run(l *driver.List, seconds *float64) error {
	for i := range l.Commands {
		if d.fault != nil {
			return d.fault
		}
		d.fault = d.run(l, &l.Commands[i])
	}
	if seconds != nil {
		*seconds = 0
	}
	return d.fault
}

func (d *Device) run(l *driver.List, c *driver.Command) error {
	var rc C.int
	switch c.Op {
	case driver.OpUpload:
		rc = C.lib_upload(d.lib, C.uint64_t(c.Dst), C.uint64_t(c.Src), C.size_t(c.Bytes))
	case driver.OpDownload:
		rc = C.lib_download(d.lib, C.uint64_t(c.Dst), C.uint64_t(c.Src), C.size_t(c.Bytes))
	case driver.OpCopy: // by way of the host
		between := C.malloc(C.size_t(c.Bytes))
		defer C.free(between)
		if rc = C.lib_download(d.lib, C.uint64_t(uintptr(between)), C.uint64_t(c.Src), C.size_t(c.Bytes)); rc == 0 {
			rc = C.lib_upload(d.lib, C.uint64_t(c.Dst), C.uint64_t(uintptr(between)), C.size_t(c.Bytes))
		}
	case driver.OpFill:
		rc = C.lib_fill(d.lib, C.uint64_t(c.Dst), C.int(c.Src), C.size_t(c.Bytes))
	case driver.OpLaunch:
		var args *C.uint64_t
		if c.Count > 0 {
			args = (*C.uint64_t)(&l.Args[c.Args])
		}
		if C.lib_launch(d.lib, C.int(c.Kernel), (*C.uint)(&c.Grid.X), (*C.uint)(&c.Block.X), C.size_t(c.Shared),
			args, C.int(c.Count), d.err) != 0 {
			return d.kernelError()
		}
		return nil
	default:
		return fmt.Errorf("sim: command %d", c.Op)
	}
	switch rc {
	case -1:
		return fmt.Errorf("sim: %s of %d bytes outside device memory that is allocated", opName(c.Op), c.Bytes)
	case -2:
		return fmt.Errorf("sim: %s of %d bytes of device memory that nothing has written", opName(c.Op), c.Bytes)
	}
	return nil
}

func opName(op driver.Op) string {
	return [...]string{"launch", "upload", "download", "fill", "copy"}[op]
}

func (d *Device) kernelError() error {
	e := d.err
	msg := fmt.Sprintf("%s: block (%d,%d,%d) thread (%d,%d,%d): %s", C.GoString(e.kernel),
		e.block[0], e.block[1], e.block[2], e.thread[0], e.thread[1], e.thread[2], C.GoString(&e.message[0]))
	if e.at != 0 {
		msg += "\n\tat " + line(d.path, uint32(e.at))
	}
	if e.other != 0 {
		msg += "\n\tand " + line(d.path, uint32(e.other))
	}
	return fmt.Errorf("%w: %s", driver.ErrKernel, msg)
}

func (d *Device) Capture(l *driver.List) (driver.Graph, error) {
	if d.fault != nil {
		return 0, d.fault
	}
	d.last++
	d.graphs[d.last] = l.Clone()
	return d.last, nil
}

func (d *Device) Launch(g driver.Graph, seconds *float64) error {
	l, ok := d.graphs[g]
	if !ok {
		return fmt.Errorf("sim: launch of graph %d, which does not exist", g)
	}
	return d.Run(l, seconds)
}

// Start does nothing but take the list down: all of it runs in Wait, which is as
// late as a device may read and write host memory.
func (d *Device) Start(l *driver.List, g driver.Graph) error {
	if d.begun != nil {
		return fmt.Errorf("sim: a second start before the wait")
	}
	if g != 0 {
		var ok bool
		if l, ok = d.graphs[g]; !ok {
			return fmt.Errorf("sim: launch of graph %d, which does not exist", g)
		}
	}
	d.begun = l.Clone()
	return d.fault
}

func (d *Device) Wait() error {
	l := d.begun
	if l == nil {
		return d.fault
	}
	d.begun = nil
	return d.Run(l, nil)
}

func (d *Device) FreeGraph(g driver.Graph) error {
	if _, ok := d.graphs[g]; !ok {
		return fmt.Errorf("sim: free of graph %d, which does not exist", g)
	}
	delete(d.graphs, g)
	return nil
}

func (d *Device) Close() error {
	if d.lib == nil {
		return nil
	}
	for _, p := range d.hosts {
		C.free(p)
	}
	C.lib_close(d.lib)
	C.free(unsafe.Pointer(d.lib))
	C.free(unsafe.Pointer(d.err))
	d.lib, d.err = nil, nil
	return nil
}
