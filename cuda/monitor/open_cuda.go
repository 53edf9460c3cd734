//go:build cuda && linux && cgo

package monitor

import (
	"fmt"
	"os"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// symbols are the functions that are called. A call of one that the library
// lacks would end the process, so all are looked up beforehand.
var symbols = []string{
	"nvmlSystemGetDriverVersion", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetName", "nvmlDeviceGetEccMode",
	"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetMigMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
	"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature", "nvmlDeviceGetCurrentClocksThrottleReasons",
	"nvmlDeviceGetViolationStatus", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetProcessUtilization",
}

// Open asks for the GPU of a PCI address, such as "00000000:41:00.0".
func Open(bus string) (Source, error) { return open(nvml.New(), bus) }

func open(lib nvml.Interface, bus string) (Source, error) {
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%w: libnvidia-ml.so.1 of the NVIDIA driver cannot be used (%v): clocks, power, throttling and other processes of the GPU are not watched", ErrNoLibrary, ret)
	}
	for _, name := range symbols {
		if err := lib.Extensions().LookupSymbol(name); err != nil {
			lib.Shutdown()
			return nil, fmt.Errorf("%w: libnvidia-ml.so.1 lacks %s: install driver R525 or newer", ErrNoLibrary, name)
		}
	}
	dev, ret := lib.DeviceGetHandleByPciBusId(bus)
	if ret != nvml.SUCCESS {
		lib.Shutdown()
		return nil, fmt.Errorf("%w: the device at %s: %v", ErrNoLibrary, bus, ret)
	}
	return &source{lib: lib, dev: dev, pid: uint32(os.Getpid())}, nil
}

type source struct {
	lib  nvml.Interface
	dev  nvml.Device
	pid  uint32
	seen uint64 // time of the last sample of utilisation, µs
}

func (s *source) Close() error {
	if ret := s.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("NVML: %w", ret)
	}
	return nil
}

// offered is the value of a call that succeeded.
func offered[T ~int | ~int64 | ~uint32 | ~uint64](v T, ret nvml.Return) int64 {
	if ret != nvml.SUCCESS {
		return Unknown
	}
	return int64(v)
}

func onOff(on bool, ret nvml.Return) string {
	switch {
	case ret != nvml.SUCCESS:
		return ""
	case on:
		return "on"
	}
	return "off"
}

// reasons that hold the clocks down. Idleness is none.
var reasons = []struct {
	bit  uint64
	name string
}{
	{nvml.ClocksThrottleReasonApplicationsClocksSetting, "application clocks"},
	{nvml.ClocksThrottleReasonSwPowerCap, "power cap"},
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksThrottleReasonSyncBoost, "sync boost"},
	{nvml.ClocksThrottleReasonSwThermalSlowdown, "heat"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "heat (hardware)"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
	{nvml.ClocksThrottleReasonDisplayClockSetting, "display clocks"},
}

// Read asks for everything. A call that fails leaves its value unknown.
func (s *source) Read() State {
	st := State{At: time.Now(), MemoryTotal: Unknown, MemoryUsed: Unknown, Power: Unknown, PowerLimit: Unknown, PowerTime: Unknown, Thermal: Unknown}
	if name, ret := s.dev.GetName(); ret == nvml.SUCCESS {
		st.Model = name
	}
	if version, ret := s.lib.SystemGetDriverVersion(); ret == nvml.SUCCESS {
		st.Driver = version
	}
	ecc, _, ret := s.dev.GetEccMode()
	st.ECC = onOff(ecc == nvml.FEATURE_ENABLED, ret)
	st.ECCErrors = offered(s.dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))
	mig, _, ret := s.dev.GetMigMode()
	st.MIG = onOff(mig == nvml.DEVICE_MIG_ENABLE, ret)
	if m, ret := s.dev.GetMemoryInfo(); ret == nvml.SUCCESS {
		st.MemoryTotal, st.MemoryUsed = int64(m.Total), int64(m.Used)
	}
	st.Clock = int(offered(s.dev.GetClockInfo(nvml.CLOCK_SM)))
	st.MaxClock = int(offered(s.dev.GetMaxClockInfo(nvml.CLOCK_SM)))
	st.MemoryClock = int(offered(s.dev.GetClockInfo(nvml.CLOCK_MEM)))
	st.MaxMemoryClock = int(offered(s.dev.GetMaxClockInfo(nvml.CLOCK_MEM)))
	if mw := offered(s.dev.GetPowerUsage()); mw != Unknown {
		st.Power = float64(mw) / 1e3
	}
	if mw := offered(s.dev.GetEnforcedPowerLimit()); mw != Unknown {
		st.PowerLimit = float64(mw) / 1e3
	}
	st.Temperature = int(offered(s.dev.GetTemperature(nvml.TEMPERATURE_GPU)))
	if bits, ret := s.dev.GetCurrentClocksThrottleReasons(); ret == nvml.SUCCESS {
		for _, r := range reasons {
			if bits&r.bit != 0 {
				st.Throttled = append(st.Throttled, r.name)
			}
		}
	}
	if v, ret := s.dev.GetViolationStatus(nvml.PERF_POLICY_POWER); ret == nvml.SUCCESS {
		st.PowerTime = time.Duration(v.ViolationTime)
	}
	if v, ret := s.dev.GetViolationStatus(nvml.PERF_POLICY_THERMAL); ret == nvml.SUCCESS {
		st.Thermal = time.Duration(v.ViolationTime)
	}
	s.others(&st)
	return st
}

// others counts the processes beside this one. Where this one is not among
// them, as in a container that has process numbers of its own, nothing is known.
func (s *source) others(st *State) {
	st.Others, st.OtherBytes, st.OtherBusy = Unknown, Unknown, Unknown
	processes, ret := s.dev.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return
	}
	others, bytes, found := 0, int64(0), false
	for _, p := range processes {
		if p.Pid == s.pid {
			found = true
			continue
		}
		others++
		if p.UsedGpuMemory <= 1<<50 { // else not available
			bytes += int64(p.UsedGpuMemory)
		}
	}
	if !found {
		return
	}
	st.Others, st.OtherBytes = others, bytes
	samples, ret := s.dev.GetProcessUtilization(s.seen)
	if ret == nvml.ERROR_NOT_FOUND {
		st.OtherBusy = 0 // no sample since
		return
	}
	if ret != nvml.SUCCESS {
		return
	}
	// One sample a process, the mean since the time asked for.
	busy := 0.0
	for _, p := range samples {
		s.seen = max(s.seen, p.TimeStamp)
		if p.Pid != s.pid && p.SmUtil <= 100 {
			busy += float64(p.SmUtil) / 100
		}
	}
	st.OtherBusy = min(1, busy)
}
