//go:build cuda && linux && cgo

package monitor

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/require"
)

// library is NVML with a device that answers, or refuses everything.
func library(init nvml.Return, missing string, device *mock.Device) (*mock.Interface, *int) {
	closed := 0
	return &mock.Interface{
		InitFunc:     func() nvml.Return { return init },
		ShutdownFunc: func() nvml.Return { closed++; return nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
				if name == missing {
					return errors.New("undefined")
				}
				return nil
			}}
		},
		DeviceGetHandleByPciBusIdFunc: func(bus string) (nvml.Device, nvml.Return) {
			if bus != "00000000:41:00.0" {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return device, nvml.SUCCESS
		},
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "570.1", nvml.SUCCESS },
	}, &closed
}

func deviceThat(ret nvml.Return, processes []nvml.ProcessInfo, samples []nvml.ProcessUtilizationSample, sampled nvml.Return) *mock.Device {
	return &mock.Device{
		GetNameFunc:           func() (string, nvml.Return) { return "NVIDIA H200", ret },
		GetEccModeFunc:        func() (nvml.EnableState, nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, 0, ret },
		GetTotalEccErrorsFunc: func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 1, ret },
		GetMigModeFunc:        func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_DISABLE, 0, ret },
		GetMemoryInfoFunc:     func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 100, Used: 30}, ret },
		GetClockInfoFunc: func(c nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 345, nvml.CLOCK_MEM: 3201}[c], ret
		},
		GetMaxClockInfoFunc: func(c nvml.ClockType) (uint32, nvml.Return) {
			return map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1980, nvml.CLOCK_MEM: 3202}[c], ret
		},
		GetPowerUsageFunc:         func() (uint32, nvml.Return) { return 76400, ret },
		GetEnforcedPowerLimitFunc: func() (uint32, nvml.Return) { return 700000, ret },
		GetTemperatureFunc:        func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 31, ret },
		GetCurrentClocksThrottleReasonsFunc: func() (uint64, nvml.Return) {
			return nvml.ClocksThrottleReasonGpuIdle | nvml.ClocksThrottleReasonSwPowerCap | nvml.ClocksThrottleReasonHwThermalSlowdown, ret
		},
		GetViolationStatusFunc: func(p nvml.PerfPolicyType) (nvml.ViolationTime, nvml.Return) {
			return nvml.ViolationTime{ViolationTime: 1000 * (1 + uint64(p))}, ret
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return processes, ret },
		GetProcessUtilizationFunc:      func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return samples, sampled },
	}
}

// TestRead: what NVML says arrives under its name; what it refuses is unknown.
func TestRead(t *testing.T) {
	read := func(d *mock.Device) State {
		lib, closed := library(nvml.SUCCESS, "", d)
		src, err := open(lib, "00000000:41:00.0")
		require.NoError(t, err)
		src.(*source).pid = 7
		s := src.Read()
		s.At = time.Time{}
		require.NoError(t, src.Close())
		require.Equal(t, 1, *closed)
		return s
	}
	mine := nvml.ProcessInfo{Pid: 7, UsedGpuMemory: 20}
	other := nvml.ProcessInfo{Pid: 8, UsedGpuMemory: 10}
	hidden := nvml.ProcessInfo{Pid: 9, UsedGpuMemory: ^uint64(0)}
	want := State{
		Model: "NVIDIA H200", Driver: "570.1", ECC: "on", ECCErrors: 1, MIG: "off", MemoryTotal: 100, MemoryUsed: 30, Clock: 345, MaxClock: 1980,
		MemoryClock: 3201, MaxMemoryClock: 3202, Power: 76.4, PowerLimit: 700, Temperature: 31, Throttled: []string{"power cap", "heat (hardware)"},
		PowerTime: 1000, Thermal: 2000, Others: 2, OtherBytes: 10, OtherBusy: 0.5,
	}
	samples := []nvml.ProcessUtilizationSample{{Pid: 7, SmUtil: 90}, {Pid: 8, SmUtil: 30}, {Pid: 9, SmUtil: 20}}
	require.Equal(t, want, read(deviceThat(nvml.SUCCESS, []nvml.ProcessInfo{other, mine, hidden}, samples, nvml.SUCCESS)))

	alone := want
	alone.Others, alone.OtherBytes, alone.OtherBusy = 0, 0, 0
	require.Equal(t, alone, read(deviceThat(nvml.SUCCESS, []nvml.ProcessInfo{mine}, nil, nvml.ERROR_NOT_FOUND)))

	// In a container this process has another number outside.
	unknown := want
	unknown.Others, unknown.OtherBytes, unknown.OtherBusy = Unknown, Unknown, Unknown
	require.Equal(t, unknown, read(deviceThat(nvml.SUCCESS, []nvml.ProcessInfo{other}, samples, nvml.SUCCESS)))

	s := read(deviceThat(nvml.ERROR_NOT_SUPPORTED, nil, nil, nvml.ERROR_NOT_SUPPORTED))
	require.Equal(t, map[string]string{"driver": "570.1"}, s.Facts())
}

// TestNoLibrary: whatever is missing is one error that says so, and the library
// is let go.
func TestNoLibrary(t *testing.T) {
	for _, c := range []struct {
		init    nvml.Return
		missing string
		bus     string
		says    string
		closed  int
	}{
		{nvml.ERROR_LIBRARY_NOT_FOUND, "", "00000000:41:00.0", "are not watched", 0},
		{nvml.SUCCESS, "nvmlDeviceGetViolationStatus", "00000000:41:00.0", "lacks nvmlDeviceGetViolationStatus", 1},
		{nvml.SUCCESS, "", "00000000:42:00.0", "the device at 00000000:42:00.0", 1},
	} {
		lib, closed := library(c.init, c.missing, nil)
		_, err := open(lib, c.bus)
		require.ErrorIs(t, err, ErrNoLibrary)
		require.ErrorContains(t, err, c.says)
		require.Equal(t, c.closed, *closed)
	}
	if _, err := Open("00000000:ff:1f.0"); err != nil { // the real library, if there is one
		require.ErrorIs(t, err, ErrNoLibrary)
	}
}
