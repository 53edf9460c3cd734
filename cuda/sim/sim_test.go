//go:build cudasim && linux && cgo

package sim

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/kernels"
)

// Each kernel below is right but for the one thing that its name says, or
// entirely right; the lines marked below are where the error must point.
const testKernels = `#include "sim.h"

KERNEL(64, right, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = in[threadIdx.x];
	__syncthreads();
	out[threadIdx.x] = s[63 - threadIdx.x];
}
KERNEL(64, missing_barrier, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = 0;
	__syncthreads();
	s[threadIdx.x] = in[threadIdx.x];
	out[threadIdx.x] = s[threadIdx.x ^ 32]; // HERE
}
KERNEL(64, missing_warp_barrier, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = 0;
	__syncthreads();
	s[threadIdx.x] = in[threadIdx.x];
	out[threadIdx.x] = s[threadIdx.x ^ 1]; // HERE
}
KERNEL(64, warp_barrier, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = in[threadIdx.x];
	__syncwarp();
	float v = s[threadIdx.x ^ 1];
	__syncwarp();
	s[threadIdx.x] = v;
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x];
}
KERNEL(64, write_after_read, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = in[threadIdx.x];
	__syncthreads();
	float v = s[(threadIdx.x + 1) % 64];
	s[threadIdx.x] = v; // HERE
	out[threadIdx.x] = v;
}
KERNEL(64, two_writers, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x % 63] = in[threadIdx.x]; // HERE
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x % 63];
}
KERNEL(64, shuffle_is_no_barrier, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x] = in[threadIdx.x];
	float v = __shfl_xor_sync(0xffffffffu, s[threadIdx.x], 1);
	out[threadIdx.x] = v + s[threadIdx.x ^ 1]; // HERE
}
KERNEL(64, shared_bounds, float *out, const float *in) {
	SHARED(float, s, 64);
	s[threadIdx.x + 1] = in[threadIdx.x]; // HERE
	out[threadIdx.x] = 0;
}
KERNEL(64, shared_unwritten, float *out, const float *in) {
	SHARED(float, s, 65);
	s[threadIdx.x] = in[threadIdx.x];
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x + 1]; // HERE
}
KERNEL(64, device_bounds, float *out, const float *in) {
	out[threadIdx.x] = in[threadIdx.x + 1]; // HERE
}
KERNEL(64, device_bounds_store, float *out, const float *in) {
	out[threadIdx.x * 2] = in[threadIdx.x]; // HERE
}
KERNEL(64, null_pointer, float *out, const float *in) {
	const float *p = nullptr;
	out[threadIdx.x] = in[threadIdx.x] + p[threadIdx.x]; // HERE
}
KERNEL(64, device_unwritten, float *out, const float *in) {
	out[threadIdx.x] = out[threadIdx.x] + in[threadIdx.x]; // HERE
}
KERNEL(64, misaligned, float *out, const float *in) {
	*(float4 *)out = *(const float4 *)(in + 1); // HERE
}
KERNEL(64, blocks_race, float *out, const float *in) {
	out[threadIdx.x] = in[threadIdx.x] + blockIdx.x; // HERE
}
KERNEL(64, block_reads_other, float *out, const float *in) {
	if (blockIdx.x == 0) out[threadIdx.x] = in[threadIdx.x];
	else if (out[threadIdx.x] > 0) out[0] = 1; // HERE
}
KERNEL(64, divergent_barrier, float *out, const float *in) {
	if (threadIdx.x < 32) __syncthreads(); // HERE
	out[threadIdx.x] = in[threadIdx.x];
}
KERNEL(64, two_barriers, float *out, const float *in) {
	if (threadIdx.x < 32) {
		__syncthreads();
		out[threadIdx.x] = in[threadIdx.x];
	} else {
		out[threadIdx.x] = 0;
		__syncthreads(); // HERE
	}
}
KERNEL(64, copy_not_waited_for, float *out, const float *in) {
	SHARED(float, s, 64);
	if (threadIdx.x < 16) cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
	cp_async_commit();
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x]; // HERE
}
KERNEL(64, copy_without_barrier, float *out, const float *in) {
	SHARED(float, s, 64);
	if (threadIdx.x < 16) cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, 16);
	cp_async_commit();
	cp_async_wait<0>();
	out[threadIdx.x] = s[threadIdx.x]; // HERE
}
KERNEL(64, copy, float *out, const float *in) {
	SHARED(float, s, 64);
	if (threadIdx.x < 16) cp_async16(s + 4 * threadIdx.x, in + 4 * threadIdx.x, threadIdx.x == 15 ? 4 : 16);
	cp_async_commit();
	cp_async_wait<0>();
	__syncthreads();
	out[threadIdx.x] = s[threadIdx.x];
}
KERNEL(64, ballots, float *out, const float *in) {
	unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x & 1);
	out[threadIdx.x] = odd == 0xaaaaaaaau && __shfl_sync(0xffffffffu, in[threadIdx.x], 5) == in[threadIdx.x / 32 * 32 + 5];
}
KERNEL(64, counted, float *out, const float *in) {
	SHARED(unsigned, n, 1);
	if (threadIdx.x == 0) n[0] = 0;
	__syncthreads();
	atomicAdd(n, 1u);
	__syncthreads();
	out[threadIdx.x] = n[0] + 0 * in[threadIdx.x];
}
KERNEL(64, atomic_and_load, float *out, const float *in) {
	SHARED(unsigned, n, 1);
	if (threadIdx.x == 0) n[0] = 0;
	__syncthreads();
	atomicAdd(n, 1u);
	out[threadIdx.x] = n[0] + in[threadIdx.x]; // HERE
}
KERNEL(64, matrices, float *out, const float *in) {
	// Numbers 0 … 255 of 16 bits, read in both ways, and only by the first warp.
	SHARED(uint16_t, s, 256);
	for (int i = threadIdx.x; i < 256; i += 64) s[i] = i;
	__syncthreads();
	uint32_t r[4], t[4];
	ldmatrix(r, s + threadIdx.x % 32 * 8);
	ldmatrix_transposed(t, s + threadIdx.x % 32 * 8);
	if (threadIdx.x >= 32) return;
	for (int m = 0; m < 4; m++) out[threadIdx.x * 4 + m] = (r[m] & 0xffff) + (t[m] >> 16) * 1000 + 0 * in[0];
}
KERNEL(64, matrix_without_barrier, float *out, const float *in) {
	SHARED(uint16_t, s, 256);
	for (int i = threadIdx.x; i < 256; i += 64) s[i] = i;
	uint32_t r[4];
	ldmatrix(r, s + threadIdx.x % 32 * 8); // HERE
	out[threadIdx.x] = r[0] + in[threadIdx.x];
}
KERNEL(64, mma, float *out, const float *in) {
	// a is the identity, b counts up: the product is b.
	unsigned g = threadIdx.x % 32 / 4, q = threadIdx.x % 4, one = 0x3f80;
	uint32_t a[4] = {g / 2 == q ? one << (g % 2 * 16) : 0, 0, 0, g / 2 == q ? one << (g % 2 * 16) : 0};
	auto bf16 = [](float f) { return __float_as_uint(f) >> 16; };
	auto pair = [&](unsigned k) { return bf16(k * 8 + g) | bf16((k + 1) * 8 + g) << 16; };
	uint32_t b[2] = {pair(2 * q), pair(2 * q + 8)};
	float d[4] = {};
	mma_bf16(d, a, b);
	if (threadIdx.x >= 32) return;
	for (int r = 0; r < 4; r++) out[threadIdx.x * 4 + r] = d[r];
}
`

func run(t *testing.T, d driver.Device, name string, grid uint32) ([]float32, error) {
	k, err := d.Kernel(name)
	require.NoError(t, err)
	in, err := d.Alloc(64 * 4)
	require.NoError(t, err)
	length := 64
	if name == "mma" || name == "matrices" {
		length = 128
	}
	out, err := d.Alloc(int64(length) * 4)
	require.NoError(t, err)
	host, err := d.AllocHost(length * 4)
	require.NoError(t, err)
	for i := range 64 {
		binary.LittleEndian.PutUint32(host[4*i:], math.Float32bits(float32(i+1)))
	}
	var l driver.List
	l.Upload(in, host[:256])
	l.Launch(k, driver.Dim{X: grid, Y: 1, Z: 1}, driver.Dim{X: 64, Y: 1, Z: 1}, 0, uint64(out), uint64(in))
	l.Download(host, out)
	if err := d.Run(&l, nil); err != nil {
		return nil, err
	}
	got := make([]float32, length)
	for i := range got {
		got[i] = math.Float32frombits(binary.LittleEndian.Uint32(host[4*i:]))
	}
	return got, nil
}

// TestFinds: what each kernel does wrong is found, and the error has the line.
func TestFinds(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"missing_barrier", "race on shared memory"},
		{"missing_warp_barrier", "race on shared memory"},
		{"write_after_read", "race on shared memory"},
		{"two_writers", "race on shared memory"},
		{"shuffle_is_no_barrier", "race on shared memory"},
		{"shared_bounds", "outside shared memory"},
		{"shared_unwritten", "shared memory that nothing has written"},
		{"device_bounds", "outside device memory"},
		{"device_bounds_store", "outside device memory"},
		{"null_pointer", "neither device nor shared memory"},
		{"device_unwritten", "device memory that nothing has written"},
		{"misaligned", "misaligned"},
		{"blocks_race", "race on device memory"},
		{"block_reads_other", "race on device memory"},
		{"divergent_barrier", "barrier divergence"},
		{"two_barriers", "barrier divergence"},
		{"copy_not_waited_for", "shared memory that nothing has written"},
		{"copy_without_barrier", "race on shared memory"},
		{"matrix_without_barrier", "shared memory"},
		{"atomic_and_load", "race on shared memory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, err := Open(Options{Sources: map[string]string{"test.cu": testKernels}, Memory: 1 << 20})
			require.NoError(t, err)
			defer d.Close()
			grid := uint32(1)
			if c.want == "race on device memory" {
				grid = 2
			}
			_, err = run(t, d, c.name, grid)
			require.ErrorIs(t, err, driver.ErrKernel)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "test.cu:"+lineOf(t, c.name))
			_, again := d.Alloc(4)
			require.Equal(t, err, again, "a fault is final")
		})
	}
}

// TestRuns: kernels that are right run, and compute what a GPU would.
func TestRuns(t *testing.T) {
	d, err := Open(Options{Sources: map[string]string{"test.cu": testKernels}, Memory: 1 << 20})
	require.NoError(t, err)
	defer d.Close()
	for name, want := range map[string]func(i int) float32{
		"right":        func(i int) float32 { return float32(64 - i) },
		"warp_barrier": func(i int) float32 { return float32((i ^ 1) + 1) },
		"ballots":      func(int) float32 { return 1 },
		"counted":      func(int) float32 { return 64 },
		"copy": func(i int) float32 {
			if i > 60 {
				return 0
			}
			return float32(i + 1)
		},
		"matrices": func(i int) float32 { // lane i/4, matrix i%4
			lane, m := i/4, i%4
			row, column := lane/4, lane%4*2
			return float32(m*64 + row*8 + column + (m*64+(column+1)*8+row)*1000)
		},
		"mma": func(i int) float32 { // lane i/4, register i%4
			lane, r := i/4, i%4
			return float32((lane/4+r/2*8)*8 + lane%4*2 + r%2)
		},
	} {
		got, err := run(t, d, name, 1)
		require.NoError(t, err, name)
		for i := range got {
			assert.Equal(t, want(i), got[i], "%s: %d", name, i)
		}
	}
}

func lineOf(t *testing.T, kernel string) string {
	lines := strings.Split(testKernels, "\n")
	inside := false
	for i, l := range lines {
		if strings.HasPrefix(l, "KERNEL") {
			inside = strings.HasPrefix(l, "KERNEL(64, "+kernel+",")
		}
		if inside && strings.Contains(l, "// HERE") {
			return strconv.Itoa(i + 1)
		}
	}
	t.Fatalf("no marked line in %s", kernel)
	return ""
}

// TestMemory: the host's side of the device: exhaustion, bad frees, copies out of bounds.
func TestMemory(t *testing.T) {
	d, err := Open(Options{Sources: map[string]string{"test.cu": testKernels}, Memory: 1 << 20})
	require.NoError(t, err)
	defer d.Close()
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, total, free)
	var all []driver.Ptr
	for {
		p, err := d.Alloc(100 << 10)
		if err != nil {
			require.ErrorIs(t, err, driver.ErrOutOfMemory)
			break
		}
		all = append(all, p)
	}
	require.Len(t, all, 10)
	for i := range all { // in an order that leaves holes
		require.NoError(t, d.Free(all[i*3%10]))
	}
	free, _, err = d.Memory()
	require.NoError(t, err)
	require.Equal(t, total, free, "freed memory is whole again")
	require.Error(t, d.Free(all[0]))

	p, err := d.Alloc(10)
	require.NoError(t, err)
	host, err := d.AllocHost(16)
	require.NoError(t, err)
	var l driver.List
	l.Download(host[:10], p)
	require.ErrorContains(t, d.Run(&l, nil), "nothing has written")
}

// TestCopy moves bytes within the device, and no more than are there.
func TestCopy(t *testing.T) {
	d, err := Open(Options{Memory: 1 << 20})
	require.NoError(t, err)
	defer d.Close()
	p, err := d.Alloc(16)
	require.NoError(t, err)
	host, err := d.AllocHost(16)
	require.NoError(t, err)
	copy(host, "0123456789abcdef")
	var l driver.List
	l.Upload(p, host)
	l.Copy(p.At(8), p, 8)
	l.Download(host, p)
	require.NoError(t, d.Run(&l, nil))
	require.Equal(t, "0123456701234567", string(host))
	l.Reset()
	l.Copy(p.At(8), p, 9)
	require.ErrorContains(t, d.Run(&l, nil), "copy of 9 bytes outside")
}

// TestKernelsCompile: the project's kernels compile without a warning.
func TestKernelsCompile(t *testing.T) {
	d, err := Open(Options{})
	require.NoError(t, err)
	require.NotEmpty(t, kernels.Modules())
	_, err = d.Kernel("linear_prefill")
	require.NoError(t, err)
	_, err = d.Kernel("absent")
	require.ErrorContains(t, err, `"absent"`)
	require.NoError(t, d.Close())
}
