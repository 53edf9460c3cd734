//go:build !cuda || !linux || !cgo

package driver

import (
	"fmt"
	"runtime"
)

// Open fails: this build cannot reach a CUDA device.
func Open(int) (Device, error) {
	if runtime.GOOS != "linux" {
		return nil, fmt.Errorf("%w: the CUDA backend runs on Linux only, this is %s", ErrNotBuilt, runtime.GOOS)
	}
	return nil, fmt.Errorf("%w: built without -tags cuda, or without cgo: build with CGO_ENABLED=1, a C compiler and `-tags cuda`; no CUDA toolkit is needed", ErrNotBuilt)
}
