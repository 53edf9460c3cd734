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
	return nil, fmt.Errorf("%w: build with `-tags cuda`, CGO_ENABLED=1 and a C compiler, as make validate-cuda does; no CUDA toolkit is needed", ErrNotBuilt)
}
