package monitor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// states is a source that tells them one after another.
type states []State

func (s *states) Read() State {
	first := (*s)[0]
	*s = (*s)[1:]
	return first
}
func (*states) Close() error { return nil }

// nothing is a state of which all is unknown.
func nothing(at time.Duration) State {
	return State{
		At: time.Unix(100, 0).Add(at), ECCErrors: Unknown, MemoryTotal: Unknown, MemoryUsed: Unknown, Clock: Unknown, MaxClock: Unknown,
		MemoryClock: Unknown, MaxMemoryClock: Unknown, Power: Unknown, PowerLimit: Unknown, Temperature: Unknown,
		PowerTime: Unknown, Thermal: Unknown, Others: Unknown, OtherBytes: Unknown, OtherBusy: Unknown,
	}
}

// TestReadings: known states give known readings, and what is not offered is
// left out.
func TestReadings(t *testing.T) {
	quiet := func(at time.Duration) State {
		s := nothing(at)
		s.Clock, s.Thermal, s.PowerTime = 1980, time.Second, time.Minute
		s.MemoryTotal, s.Others, s.OtherBytes, s.OtherBusy = 80<<30, 0, 0, 0
		return s
	}
	disturbed := quiet(4 * time.Second)
	disturbed.Thermal += time.Second
	disturbed.PowerTime += 2 * time.Second
	disturbed.Clock, disturbed.Others, disturbed.OtherBytes, disturbed.OtherBusy = 1485, 1, 20<<30, 0.4
	src := &states{quiet(0), quiet(2 * time.Second), quiet(2 * time.Second), disturbed, nothing(5), nothing(6)}
	w := &Watch{Source: src}
	w.Begin()
	require.Equal(t, map[string]float64{ReadingThermal: 0, ReadingPower: 0, ReadingClock: 0, ReadingOthers: 0, ReadingMemory: 0}, w.End())
	w.Begin()
	require.Equal(t, map[string]float64{ReadingThermal: 0.5, ReadingPower: 1, ReadingClock: 0.25, ReadingOthers: 0.4, ReadingMemory: 0.25}, w.End())
	w.Begin()
	require.Empty(t, w.End())
	for name := range w.Limits() {
		require.Contains(t, []string{ReadingThermal, ReadingClock, ReadingOthers}, name)
	}
}

// TestFacts: what is known is told with its unit, the rest is left out.
func TestFacts(t *testing.T) {
	s := nothing(0)
	require.Empty(t, s.Facts())
	s = State{Model: "NVIDIA H200", Driver: "570.1", ECC: "on", MIG: "off", MemoryTotal: 140 << 30, MemoryUsed: 7 << 29, Clock: 345, MaxClock: 1980,
		MemoryClock: 3201, MaxMemoryClock: 3201, Power: 76.4, PowerLimit: 700, Temperature: 31, Throttled: []string{"power cap", "heat"}, Others: 2, OtherBytes: 3 << 29}
	require.Equal(t, map[string]string{
		"model": "NVIDIA H200", "driver": "570.1", "ecc": "on", "ecc_errors": "0 uncorrected", "mig": "off", "memory": "140.00 GiB, 3.50 in use",
		"clock": "345 MHz", "clock_max": "1980 MHz", "memory_clock": "3201 MHz", "memory_clock_max": "3201 MHz", "power": "76 W", "power_limit": "700 W",
		"temperature": "31 °C", "throttled_by": "power cap, heat", "other_processes": "2, with 1.50 GiB",
	}, s.Facts())
}
