package validation

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
)

// Watcher reads how disturbed a machine was between Begin and End. It knows
// nothing of ratios. A reading that this machine does not offer is left out.
type Watcher interface {
	// Limits are the largest values of an undisturbed block. A reading without
	// a limit is kept for people and discards nothing.
	Limits() stats.Limits
	Begin()
	End() []stats.Reading
}

// The readings of a Machine. All but the load are shares, 0 on a quiet machine.
const (
	ReadingSteal   = "steal"      // CPU time that the hypervisor gave to others
	ReadingWaiting = "waiting"    // time that this process's threads could run and did not, of the time of all cores
	ReadingClock   = "clock loss" // clock frequency below the highest seen in this session
	ReadingOthers  = "others"     // CPU time used by other processes; no limit, since it need not hurt
	ReadingLoad    = "load"       // load average of the last minute, this process included; no limit
)

// disturbance says what a reading beyond its limit means.
func disturbance(r stats.Reading, limit float64) string {
	share := fmt.Sprintf("%s %.3g %% (limit %.3g %%): ", r.Name, 100*r.Value, 100*limit)
	switch r.Name {
	case ReadingSteal:
		return share + "the hypervisor gave the cores to others"
	case ReadingWaiting:
		return share + "other processes kept this one off the cores"
	case ReadingClock:
		return share + "the cores run slower than they did in this session"
	}
	return fmt.Sprintf("%s %.3g (limit %.3g)", r.Name, r.Value, limit) // of a device: no unit is known
}

// machineLimits are set by what a criterion must tell: two arms that differ by
// 5 %. A disturbance of the size of a limit, all of it in one arm, moves a
// block's ratio by about as much.
func machineLimits() stats.Limits {
	return stats.Limits{ReadingSteal: 0.05, ReadingWaiting: 0.05, ReadingClock: 0.10}
}

// Machine watches the CPUs through the kernel's accounts, on Linux. Elsewhere it
// reads nothing, and the verdict says so.
type Machine struct {
	proc, sys string // where the accounts lie
	now       func() time.Time
	cores     int

	begin   cpuAccounts
	fastest float64 // MHz, in this session
}

// NewMachine watches this machine.
func NewMachine() *Machine {
	return &Machine{proc: "/proc", sys: "/sys", now: time.Now, cores: runtime.GOMAXPROCS(0)}
}

// cpuAccounts are the kernel's sums at one instant; -1 for what cannot be read.
type cpuAccounts struct {
	at                       time.Time
	total, steal, busy, self float64          // ticks
	delays                   map[string]int64 // ns by thread
}

// Limits implements [Watcher].
func (m *Machine) Limits() stats.Limits { return machineLimits() }

// Begin implements [Watcher].
func (m *Machine) Begin() { m.begin = m.read() }

// End implements [Watcher].
func (m *Machine) End() []stats.Reading {
	var readings []stats.Reading
	add := func(name string, value float64) {
		readings = append(readings, stats.Reading{Name: name, Value: max(0, value)})
	}
	b, e := &m.begin, m.read()
	if all := e.total - b.total; b.total >= 0 && e.total >= 0 && all > 0 {
		add(ReadingSteal, (e.steal-b.steal)/all)
		if b.self >= 0 && e.self >= 0 {
			add(ReadingOthers, ((e.busy-b.busy)-(e.self-b.self))/all)
		}
	}
	if elapsed := e.at.Sub(b.at); len(e.delays) > 0 && elapsed > 0 {
		waited := int64(0)
		for thread, ns := range e.delays {
			waited += ns - b.delays[thread] // a new thread began at 0
		}
		add(ReadingWaiting, float64(waited)/float64(elapsed)/float64(m.cores))
	}
	if clock := m.clock(); clock > 0 {
		m.fastest = max(m.fastest, clock)
		add(ReadingClock, 1-clock/m.fastest)
	}
	if load := m.load(); load >= 0 {
		add(ReadingLoad, load)
	}
	return readings
}

func (m *Machine) read() cpuAccounts {
	a := cpuAccounts{at: m.now(), total: -1, self: -1, delays: make(map[string]int64)}
	// cpu user nice system idle iowait irq softirq steal …
	if f := strings.Fields(firstLine(filepath.Join(m.proc, "stat"))); len(f) >= 9 && f[0] == "cpu" {
		a.total = 0
		for i, field := range f[1:9] {
			ticks, _ := strconv.ParseFloat(field, 64)
			a.total += ticks
			switch i {
			case 3, 4: // idle
			case 7:
				a.steal = ticks
			default:
				a.busy += ticks
			}
		}
	}
	// pid (name) state … utime and stime are the 12th and 13th after the name.
	if line := firstLine(filepath.Join(m.proc, "self/stat")); line != "" {
		if f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:]); len(f) > 12 {
			user, err1 := strconv.ParseFloat(f[11], 64)
			system, err2 := strconv.ParseFloat(f[12], 64)
			if err1 == nil && err2 == nil {
				a.self = user + system
			}
		}
	}
	threads, _ := filepath.Glob(filepath.Join(m.proc, "self/task/*/schedstat"))
	for _, thread := range threads {
		if f := strings.Fields(firstLine(thread)); len(f) >= 2 {
			if ns, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				a.delays[thread] = ns
			}
		}
	}
	return a
}

// clock is the mean frequency of the CPUs now, in MHz; 0 if unknown. The
// governor's account is preferred: what /proc/cpuinfo says may be nominal.
func (m *Machine) clock() float64 {
	var sum, n float64
	files, _ := filepath.Glob(filepath.Join(m.sys, "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"))
	for _, f := range files {
		if kHz, err := strconv.ParseFloat(firstLine(f), 64); err == nil {
			sum, n = sum+kHz/1e3, n+1
		}
	}
	if n == 0 {
		data, _ := os.ReadFile(filepath.Join(m.proc, "cpuinfo"))
		for line := range strings.Lines(string(data)) {
			key, value, _ := strings.Cut(line, ":")
			if strings.TrimSpace(key) != "cpu MHz" {
				continue
			}
			if mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil {
				sum, n = sum+mhz, n+1
			}
		}
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// load is the load average of the last minute; -1 if unknown.
func (m *Machine) load() float64 {
	text, _, _ := strings.Cut(firstLine(filepath.Join(m.proc, "loadavg")), " ")
	load, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return -1
	}
	return load
}

// busyShare is the share of the cores in others' use from which on a run is
// likely to be disturbed: twice what a block may wait.
const busyShare = 0.10

// Busy looks at the machine while this process idles, until wait returns, and
// says so if others use it; "" if not. It is a warning, and decides nothing.
func (m *Machine) Busy(wait func()) string {
	m.Begin()
	wait()
	for _, r := range m.End() {
		if r.Name != ReadingOthers || r.Value < busyShare {
			continue
		}
		load := ""
		if l := m.load(); l >= 0 {
			load = fmt.Sprintf("load %.1f, ", l)
		}
		return fmt.Sprintf("this machine is busy (%sothers use %.0f %% of %d cores): expect INVALID or long runs; close other programs", load, 100*r.Value, m.cores)
	}
	return ""
}

// DeviceWatcher is what a backend offers to be watched by: a GPU's clocks,
// throttle reasons, other processes and memory. The values are readings by
// name, larger is worse.
type DeviceWatcher interface {
	QuietLimits() map[string]float64
	BeginQuiet()
	EndQuiet() map[string]float64
}

// device makes a Watcher of it.
type device struct{ DeviceWatcher }

func (d device) Limits() stats.Limits { return d.QuietLimits() }
func (d device) Begin()               { d.BeginQuiet() }
func (d device) End() []stats.Reading {
	values := d.EndQuiet()
	var readings []stats.Reading
	for _, name := range slices.Sorted(maps.Keys(values)) {
		readings = append(readings, stats.Reading{Name: name, Value: values[name]})
	}
	return readings
}

// limits joins those of all watchers.
func limits(watchers []Watcher) stats.Limits {
	all := make(stats.Limits)
	for _, w := range watchers {
		maps.Copy(all, w.Limits())
	}
	return all
}
