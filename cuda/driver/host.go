package driver

import "unsafe"

// address of host memory that is not the Go heap's.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&b[0]))) }
