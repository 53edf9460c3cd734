// Package fake is a device that computes nothing and fails on demand.
//
// It keeps account of everything handed out, so that a test can ask what was
// leaked, and counts calls, so that a test can make each of them fail in turn.
// Memory that is downloaded reads as zero; what was started is done, and
// downloaded, when it is waited for.
package fake

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/batchproof/batchproof/cuda/driver"
)

// Errors that a Device makes.
var (
	ErrInjected = errors.New("injected failure")
	ErrMisuse   = errors.New("misuse of the device")
)

// Device is the fake. Set the fields before use.
type Device struct {
	Information driver.Info
	Bytes       int64 // of memory
	// FailAt makes the call of that number fail, counted from 1 (what is freed or
	// closed is so, and the failure told); a launch
	// counts once for each command of its list, and what was started once more, at
	// the start. After a failed Run, Launch, Start or Wait all further work fails, as
	// on a GPU.
	FailAt int
	// Refuse names a kernel that the module lacks.
	Refuse string
	// Seconds is what a command takes, for those who ask; nil: no time.
	Seconds func(kernel string, c driver.Command) float64

	Runs    int     // lists run one by one
	Graphs  int     // graphs launched
	Busy    bool    // between Start and Wait
	Misuses []error // double frees, unknown memory, use after Close, use while busy

	calls   int
	used    int64
	fault   error
	next    driver.Ptr
	memory  map[driver.Ptr]int64
	order   []driver.Ptr // all ever handed out, ascending
	hosts   map[*byte]int
	kernels []string
	graphs  map[driver.Graph]*driver.List
	closed  bool
	begun   driver.List // while busy
	read    []byte      // what it reads of the host's memory
}

var _ driver.Device = (*Device)(nil)

// New is a device that the kernels accept, with a GiB of memory.
func New() *Device {
	return &Device{
		Information: driver.Info{Name: "fake", Driver: 12020, Major: 9, Processors: 132, SharedPerBlock: 227 << 10},
		Bytes:       1 << 30,
		next:        1 << 20,
		memory:      make(map[driver.Ptr]int64),
		hosts:       make(map[*byte]int),
		graphs:      make(map[driver.Graph]*driver.List),
	}
}

// Leaks says what is not freed.
func (d *Device) Leaks() (leaks []string) {
	for p, n := range d.memory {
		leaks = append(leaks, fmt.Sprintf("%d bytes at %#x", n, p))
	}
	for _, n := range d.hosts {
		leaks = append(leaks, fmt.Sprintf("%d bytes of host memory", n))
	}
	for g := range d.graphs {
		leaks = append(leaks, fmt.Sprintf("graph %d", g))
	}
	if !d.closed {
		leaks = append(leaks, "the device")
	}
	return leaks
}

// Count is the number of calls so far that could have failed.
func (d *Device) Count() int { return d.calls }

func (d *Device) call(format string, args ...any) error {
	if d.closed || d.Busy {
		return d.misuse("%s after Close or before Wait", fmt.Sprintf(format, args...))
	}
	d.calls++
	if d.calls == d.FailAt {
		return fmt.Errorf("%w: call %d: %s", ErrInjected, d.calls, fmt.Sprintf(format, args...))
	}
	return nil
}

func (d *Device) misuse(format string, args ...any) error {
	err := fmt.Errorf("%w: %s", ErrMisuse, fmt.Sprintf(format, args...))
	d.Misuses = append(d.Misuses, err)
	return err
}

// Info never fails.
func (d *Device) Info() driver.Info { return d.Information }

// Memory is what is left of Bytes.
func (d *Device) Memory() (free, total int64, err error) {
	return d.Bytes - d.used, d.Bytes, d.call("memory")
}

// Alloc hands out addresses, without memory behind them.
func (d *Device) Alloc(bytes int64) (driver.Ptr, error) {
	if err := d.call("alloc %d", bytes); err != nil {
		return 0, fmt.Errorf("%w: %w", driver.ErrOutOfMemory, err)
	}
	if bytes > d.Bytes-d.used {
		return 0, fmt.Errorf("%w: %d bytes asked for, %d are free", driver.ErrOutOfMemory, bytes, d.Bytes-d.used)
	}
	p := d.next
	d.next += driver.Ptr(bytes+511) / 256 * 256
	d.memory[p] = bytes
	d.order = append(d.order, p)
	d.used += bytes
	return p, nil
}

// Free takes back what Alloc gave.
func (d *Device) Free(p driver.Ptr) error {
	n, ok := d.memory[p]
	if !ok || d.closed || d.Busy {
		return d.misuse("free of %#x", p)
	}
	delete(d.memory, p)
	d.used -= n
	return d.call("free")
}

// AllocHost makes ordinary memory.
func (d *Device) AllocHost(bytes int) ([]byte, error) {
	if err := d.call("alloc host %d", bytes); err != nil {
		return nil, err
	}
	b := make([]byte, (bytes+7)/8*8+8)[:bytes]
	d.hosts[unsafe.SliceData(b)] = bytes
	return b, nil
}

// FreeHost takes back what AllocHost gave.
func (d *Device) FreeHost(b []byte) error {
	if _, ok := d.hosts[unsafe.SliceData(b)]; !ok || d.closed || d.Busy {
		return d.misuse("free of host memory")
	}
	delete(d.hosts, unsafe.SliceData(b))
	return d.call("free host")
}

// Load accepts anything.
func (d *Device) Load(name string, _ []byte) error { return d.call("load %s", name) }

// Kernel knows every name but Refuse.
func (d *Device) Kernel(name string) (driver.Kernel, error) {
	if err := d.call("kernel %s", name); err != nil {
		return 0, err
	}
	if name == d.Refuse {
		return 0, fmt.Errorf("no kernel %q in the module", name)
	}
	d.kernels = append(d.kernels, name)
	return driver.Kernel(len(d.kernels)), nil
}

// Run checks addresses and counts.
func (d *Device) Run(l *driver.List, seconds *float64) error {
	d.Runs++
	d.clock(l, seconds)
	return d.run(l)
}

func (d *Device) clock(l *driver.List, seconds *float64) {
	if seconds == nil {
		return
	}
	*seconds = 0
	for _, c := range l.Commands {
		if d.Seconds == nil {
			return
		}
		name := ""
		if c.Op == driver.OpLaunch && c.Kernel > 0 && int(c.Kernel) <= len(d.kernels) {
			name = d.kernels[c.Kernel-1]
		}
		*seconds += d.Seconds(name, c)
	}
}

func (d *Device) run(l *driver.List) error {
	for i := range l.Commands {
		if d.fault != nil {
			return d.fault
		}
		if d.closed || d.Busy {
			return d.misuse("run after Close or before Wait")
		}
		if d.calls++; d.calls == d.FailAt {
			d.fault = fmt.Errorf("%w: %w: call %d, command %d of %d", driver.ErrKernel, ErrInjected, d.calls, i, len(l.Commands))
			return d.fault
		}
		c := &l.Commands[i]
		switch c.Op {
		case driver.OpLaunch:
			if c.Kernel == 0 || int(c.Kernel) > len(d.kernels) || c.Grid.X*c.Grid.Y*c.Grid.Z == 0 || c.Block.X == 0 {
				return d.misuse("launch of %+v", *c)
			}
		case driver.OpUpload, driver.OpFill:
			if !d.holds(driver.Ptr(c.Dst), c.Bytes) {
				return d.misuse("copy or fill of %d bytes at %#x", c.Bytes, c.Dst)
			}
		case driver.OpCopy:
			if !d.holds(driver.Ptr(c.Dst), c.Bytes) || !d.holds(driver.Ptr(c.Src), c.Bytes) {
				return d.misuse("copy of %d bytes from %#x to %#x", c.Bytes, c.Src, c.Dst)
			}
		case driver.OpDownload:
			if !d.holds(driver.Ptr(c.Src), c.Bytes) {
				return d.misuse("copy of %d bytes from %#x", c.Bytes, c.Src)
			}
			clear(d.host(c.Dst, c.Bytes))
		}
	}
	return nil
}

func (d *Device) holds(p driver.Ptr, bytes uint64) bool {
	i, found := slices.BinarySearch(d.order, p)
	if !found {
		if i--; i < 0 {
			return false
		}
	}
	return uint64(p)+bytes <= uint64(d.order[i])+uint64(d.memory[d.order[i]])
}

// host is host memory that was handed out.
func (d *Device) host(address, bytes uint64) []byte {
	for p, n := range d.hosts {
		if base := uint64(uintptr(unsafe.Pointer(p))); address >= base && address+bytes <= base+uint64(n) {
			return unsafe.Slice(p, n)[address-base:][:bytes]
		}
	}
	d.misuse("copy to or from host memory that was not handed out")
	return nil
}

// Capture keeps a copy.
func (d *Device) Capture(l *driver.List) (driver.Graph, error) {
	if err := d.call("capture"); err != nil {
		return 0, err
	}
	g := driver.Graph(d.calls)
	d.graphs[g] = l.Clone()
	return g, nil
}

// Launch runs the copy.
func (d *Device) Launch(g driver.Graph, seconds *float64) error {
	l, ok := d.graphs[g]
	if !ok {
		return d.misuse("launch of graph %d", g)
	}
	d.Graphs++
	d.clock(l, seconds)
	return d.run(l)
}

// Start notes what the work will read of the host's memory, and spoils what it
// will write.
func (d *Device) Start(l *driver.List, g driver.Graph) error {
	switch held, ok := d.graphs[g]; {
	case ok:
		d.Graphs++
		l = held
	case g == 0:
		d.Runs++
	default:
		return d.misuse("start of graph %d", g)
	}
	if d.fault != nil {
		return d.fault
	}
	if err := d.call("start"); err != nil {
		d.fault = fmt.Errorf("%w: %w", driver.ErrKernel, err)
		return d.fault
	}
	d.begun.Reset()
	d.begun.Commands = append(d.begun.Commands, l.Commands...)
	d.begun.Args = append(d.begun.Args, l.Args...)
	d.read = d.read[:0]
	for _, c := range d.begun.Commands {
		switch c.Op {
		case driver.OpUpload:
			d.read = append(d.read, d.host(c.Src, c.Bytes)...)
		case driver.OpDownload:
			for i, b := 0, d.host(c.Dst, c.Bytes); i < len(b); i++ {
				b[i] = 0xff
			}
		}
	}
	d.Busy = true
	return nil
}

// Wait does the work, which may fail, and finds out who wrote to host memory before
// it was read.
func (d *Device) Wait() error {
	if !d.Busy {
		return d.misuse("wait for nothing")
	}
	d.Busy = false
	at := 0
	for _, c := range d.begun.Commands {
		if c.Op == driver.OpUpload {
			now := d.host(c.Src, c.Bytes)
			if !bytes.Equal(now, d.read[at:][:len(now)]) {
				d.misuse("host memory was written before it was read")
			}
			at += len(now)
		}
	}
	return d.run(&d.begun)
}

// FreeGraph takes back what Capture gave.
func (d *Device) FreeGraph(g driver.Graph) error {
	if _, ok := d.graphs[g]; !ok || d.closed || d.Busy {
		return d.misuse("free of graph %d", g)
	}
	delete(d.graphs, g)
	return d.call("free graph")
}

// Close leaves leaks as they are, to be asked for.
func (d *Device) Close() error {
	if d.closed || d.Busy {
		return d.misuse("closed twice or before Wait")
	}
	err := d.call("close")
	d.closed = true
	return err
}
