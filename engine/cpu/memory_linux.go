package cpu

import "golang.org/x/sys/unix"

func mapMemory(bytes int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a kernel without huge pages works too
	return b, nil
}

func unmapMemory(b []byte) error { return unix.Munmap(b) }
