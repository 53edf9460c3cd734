package validation

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/validation/stats"
)

func writeFile(t *testing.T, text string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

// TestMachineReadings: accounts of the kernel that are known give readings that
// are known: 4 of 200 ticks stolen, 20 used by others, 0.3 s of 2 × 1 s waited.
func TestMachineReadings(t *testing.T) {
	clock, proc, sys := newFakeClock(), t.TempDir(), t.TempDir()
	m := &Machine{proc: proc, sys: sys, now: clock.now, cores: 2}
	account := func(user, idle, steal, self int) {
		writeFile(t, fmt.Sprintf("cpu  %d 0 0 %d 0 0 0 %d 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n", user, idle, steal), proc, "stat")
		writeFile(t, fmt.Sprintf("7 (a (b) c) R 1 1 1 0 -1 0 0 0 0 0 %d 5 0 0\n", self), proc, "self/stat")
	}
	freq := func(mhz int) {
		for _, cpu := range []string{"cpu0", "cpu1"} {
			writeFile(t, fmt.Sprintf("%d000\n", mhz), sys, "devices/system/cpu", cpu, "cpufreq/scaling_cur_freq")
		}
	}
	account(1000, 1000, 10, 500)
	freq(3000)
	writeFile(t, "5 100000000 7\n", proc, "self/task/7/schedstat")
	m.Begin()
	clock.pass(time.Second)
	account(1176, 1020, 14, 656)
	writeFile(t, "5 300000000 7\n", proc, "self/task/7/schedstat")
	writeFile(t, "5 100000000 7\n", proc, "self/task/8/schedstat") // began since
	require.Equal(t, []stats.Reading{{Name: ReadingSteal, Value: 0.02}, {Name: ReadingOthers, Value: 0.1},
		{Name: ReadingWaiting, Value: 0.15}, {Name: ReadingClock, Value: 0}}, m.End())
	rules := Rules{QuietLimits: m.Limits()}
	require.Equal(t, "waiting 15 % (limit 5 %): other processes kept this one off the cores", rules.disturbed(m.End()))
	writeFile(t, "4.38 2.00 1.00 3/120 77\n", proc, "loadavg")
	require.Equal(t, "waiting 15 % (limit 5 %): other processes kept this one off the cores, load average 4.4", rules.disturbed(m.End()))
	require.NoError(t, os.Remove(filepath.Join(proc, "loadavg")))

	freq(2400) // a fifth below what it was
	m.Begin()
	clock.pass(time.Second)
	account(1376, 1020, 14, 856)
	require.Equal(t, "clock loss 20 % (limit 10 %): the cores run slower than they did in this session", rules.disturbed(m.End()))
	account(1376, 1020, 14, 856)
	m.Begin()
	clock.pass(time.Second)
	account(1376, 1206, 28, 856)
	freq(3000)
	require.Equal(t, "steal 7 % (limit 5 %): the hypervisor gave the cores to others", rules.disturbed(m.End()))

	// What runs while this process idles is others'.
	account(2000, 2000, 28, 856)
	writeFile(t, "4.38 2.00 1.00 3/120 77\n", proc, "loadavg")
	require.Equal(t, "this machine is busy (load 4.4, others use 90 % of 2 cores): expect INVALID or long runs; close other programs",
		m.Busy(func() { account(2180, 2020, 28, 856) }))
	require.Empty(t, m.Busy(func() { account(2190, 2210, 24, 856) }), "5 % are no reason to warn")
}

// TestMachineUnread: without accounts there are no readings, and nothing is
// taken for quiet in silence.
func TestMachineUnread(t *testing.T) {
	clock := newFakeClock()
	m := &Machine{proc: t.TempDir(), sys: t.TempDir(), now: clock.now, cores: 2}
	m.Begin()
	clock.pass(time.Second)
	require.Empty(t, m.End())
	_, check := m.Limits().Quiet([][]stats.Reading{nil}, stats.MaxDisturbedShare, nil)
	require.Contains(t, check.Reason, "not readable here: clock loss, steal, waiting")

	writeFile(t, "processor : 0\ncpu MHz\t\t: 2000.0\n\nprocessor : 1\ncpu MHz : 2200.0\n", m.proc, "cpuinfo")
	require.Equal(t, 2100.0, m.clock(), "without a governor, what the processor says")
}

// TestMachineHere: on Linux the accounts are there.
func TestMachineHere(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel's accounts are read on Linux only")
	}
	m := NewMachine()
	m.Begin()
	require.Positive(t, m.begin.total)
	require.GreaterOrEqual(t, m.begin.self, 0.0)
}

type watchedBackend struct {
	backend.Backend
	on bool
}

func (*watchedBackend) QuietLimits() map[string]float64 { return map[string]float64{"throttled": 0} }
func (b *watchedBackend) BeginQuiet()                   { b.on = true }
func (b *watchedBackend) EndQuiet() map[string]float64 {
	return map[string]float64{"throttled": 1, "fan": 0.5}
}

// TestDeviceIsWatched: what a backend reads of its device counts as the
// machine's own readings do.
func TestDeviceIsWatched(t *testing.T) {
	b := new(watchedBackend)
	p := ProbesOf(b)
	require.Len(t, p.Watchers, 2)
	p.Watchers[1].Begin()
	require.True(t, b.on)
	require.Equal(t, []stats.Reading{{Name: "fan", Value: 0.5}, {Name: "throttled", Value: 1}}, p.Watchers[1].End())
	all := limits(p.Watchers)
	require.Equal(t, "throttled 1 (limit 0)", (&Rules{QuietLimits: all}).disturbed(p.Watchers[1].End()))
	require.Equal(t, 0.05, all[ReadingSteal])
}
