//go:build cuda && linux && cgo

package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeLibrary compiles testdata/libcuda.c, so that the calls, their order, the
// layout of commands and the threads are tested without a GPU.
func fakeLibrary(t testing.TB) string {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	so := filepath.Join(t.TempDir(), "libcuda.so.1")
	out, err := exec.Command(cc, "-shared", "-fPIC", "-Wall", "-Wextra", "-Wno-cast-function-type", "-o", so, "testdata/libcuda.c").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out))
	return so
}

func use(d Device) error {
	if _, _, err := d.Memory(); err != nil {
		return err
	}
	if err := d.Load("good", []byte(".version 8.0")); err != nil {
		return err
	}
	k, err := d.Kernel("store")
	if err != nil {
		return err
	}
	p, err := d.Alloc(64)
	if err != nil {
		return err
	}
	host, err := d.AllocHost(16)
	if err != nil {
		return err
	}
	host[0], host[4], host[8] = 1, 2, 3
	var l List
	l.Fill(p, 0xff, 64)
	l.Upload(p, host[:12])
	l.Launch(k, Dim{1, 2, 3}, Dim{32, 1, 1}, 100<<10, uint64(p)+4, 77) // more shared memory than without asking
	l.Copy(p.At(32), p, 16)
	l.Download(host[:12], p.At(32))
	l.Download(host[12:], p.At(44))
	seconds := 0.0
	if err := d.Run(&l, &seconds); err != nil {
		return err
	}
	if want := []byte{1, 0, 0, 0, 77, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}; string(host) != string(want) || seconds != 1.5e-3 {
		panic("the list did not do what it says")
	}
	g, err := d.Capture(&l)
	if err != nil {
		return err
	}
	host[0], host[4] = 9, 8
	seconds = 0
	if err := d.Launch(g, &seconds); err != nil {
		return err
	}
	if seconds != 1.5e-3 {
		panic("the graph was not timed")
	}
	if host[0] != 9 || host[4] != 77 {
		panic("the graph did not do what it says, or did not read the host when launched")
	}
	for i, graph := range []Graph{0, g} {
		host[0], host[4] = byte(20+i), 8
		if err := d.Start(&l, graph); err != nil {
			return err
		}
		if err := d.Wait(); err != nil {
			return err
		}
		if host[0] != byte(20+i) || host[4] != 77 {
			panic("what was started did not do what it says")
		}
	}
	if err := d.FreeGraph(g); err != nil {
		return err
	}
	if err := d.FreeHost(host); err != nil {
		return err
	}
	return d.Free(p)
}

func TestDriverCalls(t *testing.T) {
	d, err := open(fakeLibrary(t), 0)
	require.NoError(t, err)
	require.Equal(t, Info{Name: "Fake 0", Driver: 12020, Major: 9, Processors: 132, SharedPerBlock: 232448, Bus: "00000001:41:00.0"}, d.Info())
	require.NoError(t, use(d))
	require.ErrorContains(t, d.Load("bad", []byte("nonsense")), "line 1: syntax error")
	_, err = d.Kernel("absent")
	require.ErrorContains(t, err, `no kernel "absent"`)
	require.NoError(t, d.Close())
	require.Error(t, use(d), "after Close")
}

// TestAnyThread: the device may be used from one thread after another.
func TestAnyThread(t *testing.T) {
	d, err := open(fakeLibrary(t), 0)
	require.NoError(t, err)
	for range 3 {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // a thread of its own, which ends with the goroutine
			done <- use(d)
		}()
		require.NoError(t, <-done)
	}
	require.NoError(t, d.Close())
}

// TestWaitOnAnotherThread: the host may move on to another thread between start and
// wait.
func TestWaitOnAnotherThread(t *testing.T) {
	d, err := open(fakeLibrary(t), 0)
	require.NoError(t, err)
	p, err := d.Alloc(64)
	require.NoError(t, err)
	var l List
	l.Fill(p, 0, 64)
	for _, call := range []func() error{func() error { return d.Start(&l, 0) }, d.Wait} {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // a thread of its own, which ends with the goroutine
			done <- call()
		}()
		require.NoError(t, <-done)
	}
	require.NoError(t, d.Free(p))
	require.NoError(t, d.Close())
}

// TestDriverErrors: each failure is one error that names the call; the
// library is left with nothing alive.
func TestDriverErrors(t *testing.T) {
	so := fakeLibrary(t)
	for _, c := range []struct {
		fail string
		is   error
		says string
	}{
		{"cuInit=100", ErrNoDevice, "CUDA_VISIBLE_DEVICES"},
		{"cuInit=803", ErrNoDriver, "cuInit"},
		{"cuDeviceGetCount=3", nil, "cuDeviceGetCount"},
		{"cuDevicePrimaryCtxRetain=2", ErrOutOfMemory, "cuDevicePrimaryCtxRetain"},
		{"cuStreamCreate=3", nil, "cuStreamCreate"},
		{"cuEventCreate=3@2", nil, "cuEventCreate"},
		{"cuMemGetInfo_v2=3", nil, "cuMemGetInfo"},
		{"cuModuleLoadDataEx=222", nil, "cuModuleLoadDataEx of good"},
		{"cuMemAlloc_v2=2", ErrOutOfMemory, "64 bytes"},
		{"cuMemAlloc_v2=2", ErrOutOfMemory, "3 MiB of 5 MiB are free"},
		{"cuMemHostAlloc=2", nil, "cuMemHostAlloc"},
		{"cuFuncGetAttribute=1", nil, "cuFuncGetAttribute"},
		{"cuFuncSetAttribute=1", nil, "cuFuncSetAttribute"},
		{"cuLaunchKernel=1", ErrKernel, "command 2 of 6"},
		{"cuMemcpyDtoDAsync_v2=1", ErrKernel, "command 3 of 6"},
		{"cuStreamSynchronize=700", ErrKernel, "illegal memory access"},
		{"cuStreamBeginCapture_v2=1", ErrKernel, "cuStreamBeginCapture"},
		{"cuLaunchKernel=1@2", ErrKernel, "command 2 of 6"},
		{"cuGraphInstantiateWithFlags=2", ErrOutOfMemory, "cuGraphInstantiate"},
		{"cuGraphLaunch=700", ErrKernel, "cuGraphLaunch"},
		{"cuLaunchKernel=1@3", ErrKernel, "command 2 of 6"},
		{"cuStreamSynchronize=700@3", ErrKernel, "illegal memory access"},
		{"cuGraphLaunch=700@2", ErrKernel, "cuGraphLaunch"},
		{"cuStreamSynchronize=700@4", ErrKernel, "illegal memory access"},
	} {
		t.Run(c.fail, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_FAIL", c.fail)
			d, err := open(so, 0)
			if err == nil {
				err = use(d)
				require.NoError(t, d.Close())
			}
			require.Error(t, err)
			if c.is != nil {
				assert.ErrorIs(t, err, c.is)
			}
			assert.ErrorContains(t, err, c.says)
		})
	}
	_, err := open(so, 1)
	require.ErrorIs(t, err, ErrNoDevice)
	require.ErrorContains(t, err, "device 1 asked for, 1 are visible")
}

// TestNoDriver: without the library, or with one that is too old, the error says so.
func TestNoDriver(t *testing.T) {
	_, err := open("libcuda-absent.so.1", 0)
	require.ErrorIs(t, err, ErrNoDriver)
	require.ErrorContains(t, err, "R525")
	so := filepath.Join(t.TempDir(), "libcuda.so.1")
	src := filepath.Join(t.TempDir(), "empty.c")
	require.NoError(t, os.WriteFile(src, []byte("int cuda_nothing;\n"), 0o644))
	require.NoError(t, exec.Command("cc", "-shared", "-o", so, src).Run())
	_, err = open(so, 0)
	require.ErrorIs(t, err, ErrNoDriver)
	require.ErrorContains(t, err, "no symbol cuInit")
}

// BenchmarkLaunch times what a call costs beside the device: the library does nothing.
func BenchmarkLaunch(b *testing.B) {
	d, err := open(fakeLibrary(b), 0)
	require.NoError(b, err)
	defer d.Close()
	require.NoError(b, d.Load("good", []byte(".version 8.0")))
	p, err := d.Alloc(64)
	require.NoError(b, err)
	var l List
	l.Fill(p, 0, 64)
	g, err := d.Capture(&l)
	require.NoError(b, err)
	for b.Loop() {
		if err := d.Launch(g, nil); err != nil {
			b.Fatal(err)
		}
	}
}
