package cpu

import (
	"fmt"
	"unsafe"
)

const (
	lineBytes  = 64
	chunkBytes = 64 << 20
	hugeBytes  = 2 << 20
)

// arena hands out memory outside the Go heap, in chunks that the system may
// back with huge pages. Memory is zero, is not resident until touched, and is
// freed all at once.
type arena struct {
	chunks [][]byte // as mapped
	free   []byte   // rest of the last chunk
}

// alloc returns zeroed memory, aligned to a cache line.
func (a *arena) alloc(bytes int) (unsafe.Pointer, error) {
	bytes = roundUp(max(bytes, 1), lineBytes)
	if bytes > len(a.free) {
		size := max(chunkBytes, roundUp(bytes, hugeBytes))
		chunk, err := mapMemory(size + hugeBytes)
		if err != nil {
			return nil, fmt.Errorf("cpu: no memory for %d MB: %w", size>>20, err)
		}
		a.chunks = append(a.chunks, chunk)
		start := uintptr(unsafe.Pointer(&chunk[0]))
		a.free = chunk[roundUp(int(start), hugeBytes)-int(start):][:size]
	}
	p := unsafe.Pointer(&a.free[0])
	a.free = a.free[bytes:]
	return p, nil
}

func (a *arena) floats(n int) ([]float32, error) {
	p, err := a.alloc(4 * n)
	if err != nil {
		return nil, err
	}
	return unsafe.Slice((*float32)(p), n), nil
}

func (a *arena) close() error {
	var first error
	for _, c := range a.chunks {
		if err := unmapMemory(c); err != nil && first == nil {
			first = err
		}
	}
	a.chunks, a.free = nil, nil
	return first
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

// apart makes a slice whose lines another worker's, which may lie behind it on the Go
// heap, does not share.
func apart[T any](n int) []T {
	var x T
	return make([]T, n, n+(lineBytes-1)/int(unsafe.Sizeof(x))+1)
}
