package main

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// residentBytes is the process's own memory that is in RAM, mapped files apart;
// 0 where the system does not say.
func residentBytes() float64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, _ := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return 1024 * kb
		}
	}
	return 0
}

// pauses is how often a thread of the process gave up its core to wait: a
// worker that parks, and is woken later, is one.
func pauses() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return float64(u.Nvcsw)
}
