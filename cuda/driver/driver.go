// Package driver reaches a CUDA device through the driver API alone.
//
// [Device] is the small interface that the CUDA backend works on: memory,
// kernels by name, and recorded lists of launches and copies. It has three
// implementations: the real one (tag cuda, Linux, cgo) opens libcuda.so.1 at
// run time and needs neither toolkit nor headers to build; the simulator in
// package sim runs the same kernels on the CPU; package fake does nothing, and
// fails on demand. Without the tag, [Open] says what is missing.
//
// The package knows nothing of models. It does not hide that a device fault
// is final: after one, every call returns it until Close.
package driver

import (
	"errors"
	"fmt"
)

// Errors that a caller may want to tell apart; they are wrapped with numbers.
var (
	ErrNotBuilt    = errors.New("built without CUDA")
	ErrNoDriver    = errors.New("no usable CUDA driver")
	ErrNoDevice    = errors.New("no CUDA device")
	ErrOutOfMemory = errors.New("out of device memory")
	ErrKernel      = errors.New("kernel fault")
)

// Ptr is an address on the device. Zero is none.
type Ptr uint64

// At is the address n bytes further.
func (p Ptr) At(n int64) Ptr { return p + Ptr(n) }

// Kernel is a function on the device.
type Kernel uint64

// Graph is a list that the device holds ready to launch.
type Graph uint64

// Info describes a device.
type Info struct {
	Name           string
	Driver         int    // version that the driver supports, 12020 for CUDA 12.2
	Major, Minor   int    // compute capability
	Processors     int    // streaming multiprocessors
	SharedPerBlock int    // bytes that one block may ask for
	Bus            string // PCI address, such as 00000000:41:00.0; "" if there is none
}

func (i Info) String() string {
	return fmt.Sprintf("%s, compute capability %d.%d, %d SMs, driver for CUDA %d.%d",
		i.Name, i.Major, i.Minor, i.Processors, i.Driver/1000, i.Driver%1000/10)
}

// Device is one device with one stream. It is not safe for concurrent use.
type Device interface {
	Info() Info
	// Memory is the device memory in bytes, as the driver sees it now.
	Memory() (free, total int64, err error)

	// Alloc returns memory aligned to 256 bytes, its contents undefined.
	Alloc(bytes int64) (Ptr, error)
	Free(Ptr) error
	// AllocHost returns page-locked host memory for copies; it belongs to the
	// device and lives until FreeHost or Close.
	AllocHost(bytes int) ([]byte, error)
	FreeHost([]byte) error

	// Load hands over a module in PTX (or a binary); its kernels can be looked
	// up afterwards. A device that has its kernels built in ignores it.
	Load(name string, image []byte) error
	Kernel(name string) (Kernel, error)

	// Run works through a list in order and waits for the end. If seconds is not
	// nil, it receives the time between start and end as the device saw it.
	Run(list *List, seconds *float64) error
	// Capture makes a graph of a list; Launch runs it and waits, with seconds as
	// for Run. Host memory that the list copies from or to is read and written at
	// each launch.
	Capture(list *List) (Graph, error)
	Launch(g Graph, seconds *float64) error
	FreeGraph(Graph) error

	// Start is Launch of a graph, or Run of a list if the graph is zero, without the
	// wait. The list is the caller's again when it returns; host memory that is
	// copied from or to is so after Wait, and until then nothing else is asked of
	// the device. A failure of the work itself is returned by Wait.
	Start(list *List, g Graph) error
	Wait() error

	// Close frees all that is left, and the device.
	Close() error
}

// Dim is the size of a grid or a block.
type Dim struct{ X, Y, Z uint32 }

// Op is the kind of a command.
type Op uint32

const (
	OpLaunch   Op = iota
	OpUpload      // host to device
	OpDownload    // device to host
	OpFill        // set bytes
	OpCopy        // device to device
)

// Command is one entry of a list. It holds no Go pointer to be followed, so
// that C code can read a whole list in one call.
type Command struct {
	Op          Op
	Shared      uint32 // bytes of dynamic shared memory
	Kernel      Kernel
	Grid, Block Dim
	Args, Count uint32 // of a launch: range in List.Args
	Dst, Src    uint64 // of a copy; Src is the byte of a fill
	Bytes       uint64
}

// List is a recorded sequence of commands. Recording allocates only while the
// list grows beyond what it held before.
type List struct {
	Commands []Command
	Args     []uint64 // of all launches, one slot each, little-endian
}

// Reset empties the list.
func (l *List) Reset() { l.Commands, l.Args = l.Commands[:0], l.Args[:0] }

// Launch records a kernel launch. Narrow arguments stand in the low bytes of
// their slot.
func (l *List) Launch(k Kernel, grid, block Dim, shared int, args ...uint64) {
	first := len(l.Args)
	l.Args = append(l.Args, args...)
	l.Commands = append(l.Commands, Command{
		Op: OpLaunch, Kernel: k, Grid: grid, Block: block, Shared: uint32(shared),
		Args: uint32(first), Count: uint32(len(args)),
	})
}

// Upload records a copy to the device. Host is memory from AllocHost; its
// contents are read when the list runs.
func (l *List) Upload(dst Ptr, host []byte) {
	if len(host) > 0 {
		l.Commands = append(l.Commands, Command{Op: OpUpload, Dst: uint64(dst), Src: address(host), Bytes: uint64(len(host))})
	}
}

// Download records a copy from the device into memory from AllocHost.
func (l *List) Download(host []byte, src Ptr) {
	if len(host) > 0 {
		l.Commands = append(l.Commands, Command{Op: OpDownload, Dst: address(host), Src: uint64(src), Bytes: uint64(len(host))})
	}
}

// Fill records the setting of bytes.
func (l *List) Fill(dst Ptr, value byte, bytes int64) {
	if bytes > 0 {
		l.Commands = append(l.Commands, Command{Op: OpFill, Dst: uint64(dst), Src: uint64(value), Bytes: uint64(bytes)})
	}
}

// Copy records a copy within the device.
func (l *List) Copy(dst, src Ptr, bytes int64) {
	if bytes > 0 {
		l.Commands = append(l.Commands, Command{Op: OpCopy, Dst: uint64(dst), Src: uint64(src), Bytes: uint64(bytes)})
	}
}

// Clone is a copy that shares no memory.
func (l *List) Clone() *List {
	return &List{Commands: append([]Command(nil), l.Commands...), Args: append([]uint64(nil), l.Args...)}
}
