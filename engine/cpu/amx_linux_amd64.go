//go:build !noasm

package cpu

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Linux gives the tile registers to a process that asks for them (its
// Documentation/arch/x86/xstate.rst).
const (
	archReqXCompPerm = 0x1023
	xfeatureXTile    = 18
)

var tilesAllowed = sync.OnceValue(func() bool {
	_, _, errno := unix.Syscall(unix.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureXTile, 0)
	return errno == 0
})
