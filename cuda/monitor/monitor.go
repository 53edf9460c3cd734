// Package monitor reads the state of a GPU: what a measurement may depend on
// besides the code under test, and what disturbs one.
//
// The states come from NVML, the management library of the driver, which is
// opened at run time (tag cuda); tests have a source of their own. The package
// changes no setting, and runs nothing on the GPU.
package monitor

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrNoLibrary says that there is no NVML to ask.
var ErrNoLibrary = errors.New("no NVML")

// Unknown stands for a number that the device or its driver does not offer.
const Unknown = -1

// State is a GPU at one instant. Words that are not offered are empty, numbers
// are [Unknown].
type State struct {
	At            time.Time
	Model, Driver string
	ECC           string // "on" or "off"
	ECCErrors     int64  // uncorrected, since the driver was loaded
	MIG           string // "on" or "off"

	MemoryTotal, MemoryUsed     int64   // bytes, of all processes
	Clock, MaxClock             int     // MHz, of the processors
	MemoryClock, MaxMemoryClock int     // MHz
	Power, PowerLimit           float64 // W
	Temperature                 int     // °C

	Throttled  []string      // what holds the clocks down now
	PowerTime  time.Duration // that power held them down, since the driver was loaded
	Thermal    time.Duration // and heat
	Others     int           // other processes that compute here
	OtherBytes int64         // of memory that they hold
	OtherBusy  float64       // share of time that their kernels ran, of late
}

// Source yields states.
type Source interface {
	Read() State
	Close() error
}

// Facts are the state for people, by name; what is unknown is left out.
func (s *State) Facts() map[string]string {
	facts := make(map[string]string)
	word := func(name, value string) {
		if value != "" {
			facts[name] = value
		}
	}
	number := func(name, format string, value float64) {
		if value != Unknown {
			facts[name] = fmt.Sprintf(format, value)
		}
	}
	word("model", s.Model)
	word("driver", s.Driver)
	word("ecc", s.ECC)
	word("mig", s.MIG)
	word("throttled_by", strings.Join(s.Throttled, ", "))
	number("ecc_errors", "%.0f uncorrected", float64(s.ECCErrors))
	if s.MemoryTotal != Unknown {
		facts["memory"] = fmt.Sprintf("%.2f GiB, %.2f in use", float64(s.MemoryTotal)/(1<<30), float64(s.MemoryUsed)/(1<<30))
	}
	number("clock", "%.0f MHz", float64(s.Clock))
	number("clock_max", "%.0f MHz", float64(s.MaxClock))
	number("memory_clock", "%.0f MHz", float64(s.MemoryClock))
	number("memory_clock_max", "%.0f MHz", float64(s.MaxMemoryClock))
	number("power", "%.0f W", s.Power)
	number("power_limit", "%.0f W", s.PowerLimit)
	number("temperature", "%.0f °C", float64(s.Temperature))
	if s.Others != Unknown {
		facts["other_processes"] = fmt.Sprintf("%d, with %.2f GiB", s.Others, float64(s.OtherBytes)/(1<<30))
	}
	return facts
}

// The readings of a [Watch]: shares, 0 on a quiet GPU.
const (
	ReadingThermal = "gpu thermal limit" // time that heat held the clocks down
	ReadingClock   = "gpu clock loss"    // clock frequency below the highest seen in this session
	ReadingOthers  = "gpu others"        // time that kernels of other processes ran
	ReadingPower   = "gpu power limit"   // time that power held the clocks down; no limit, since it belongs to the GPU
	ReadingMemory  = "gpu other memory"  // memory that other processes hold; no limit, since it need not hurt
)

// Watch tells how disturbed a GPU was between Begin and End. A reading that is
// not offered is left out.
type Watch struct {
	Source Source

	begin   State
	fastest int // MHz, in this session
}

// Limits are the largest values of an undisturbed measurement, as those of the
// CPUs: a disturbance of that size moves a ratio by about as much.
func (w *Watch) Limits() map[string]float64 {
	return map[string]float64{ReadingThermal: 0.05, ReadingClock: 0.10, ReadingOthers: 0.05}
}

// Begin looks at the GPU.
func (w *Watch) Begin() { w.begin = w.Source.Read() }

// End looks again, and tells what was between.
func (w *Watch) End() map[string]float64 {
	b, e := &w.begin, w.Source.Read()
	readings := make(map[string]float64)
	share := func(name string, from, to time.Duration) {
		if elapsed := e.At.Sub(b.At); from >= 0 && to >= 0 && elapsed > 0 {
			readings[name] = min(1, max(0, float64(to-from)/float64(elapsed)))
		}
	}
	share(ReadingThermal, b.Thermal, e.Thermal)
	share(ReadingPower, b.PowerTime, e.PowerTime)
	if e.Clock > 0 {
		w.fastest = max(w.fastest, e.Clock)
		readings[ReadingClock] = 1 - float64(e.Clock)/float64(w.fastest)
	}
	if e.OtherBusy != Unknown {
		readings[ReadingOthers] = e.OtherBusy
	}
	if e.Others != Unknown && e.MemoryTotal > 0 {
		readings[ReadingMemory] = float64(e.OtherBytes) / float64(e.MemoryTotal)
	}
	return readings
}
