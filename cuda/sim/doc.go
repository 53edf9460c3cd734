// Package sim runs the CUDA kernels on the CPU, and watches them.
//
// [Open] compiles kernel sources with g++ against one header (src/sim.h) and a
// runtime (src/runtime.cc), and loads the result as a [driver.Device], so that
// the CUDA backend runs on it unchanged. It finds what a GPU lets pass in
// silence: accesses out of bounds or misaligned, memory read before it is
// written, two threads at one word without a barrier between them (within a
// block, and between blocks of a launch), barriers that not all threads reach,
// asynchronous copies not waited for. An error names the kernel, the thread
// and the line.
//
// Kernels are compiled when a device is opened, and cached by their content,
// rather than by cgo when the package is built: so a test can hand in sources
// with a bug seeded (kernels/SEEDED.md lists those that are found). The package
// needs the tag cudasim, cgo and g++; without the tag, Open says so.
//
// It says nothing of speed, and models neither caches nor the order of warps.
package sim

// Options of a simulated device.
type Options struct {
	// Memory of the device in bytes; zero means 512 MiB.
	Memory int64
	// Sources replaces the kernels by others: contents by file name. The .cu
	// files are compiled, the others are there to be included.
	Sources map[string]string
}
