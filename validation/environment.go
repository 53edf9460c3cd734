package validation

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/batchproof/batchproof/engine/backend"
)

// Environment is what a measurement may depend on besides the code under test.
// What cannot be read is empty.
type Environment struct {
	Commit      string            `json:"commit"` // with "+changes" if the tree was not clean
	Go          string            `json:"go"`
	OS          string            `json:"os"`
	Arch        string            `json:"arch"`
	Kernel      string            `json:"kernel"`
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cores"` // that this process may use
	GOMAXPROCS  int               `json:"gomaxprocs"`
	Caches      map[string]string `json:"caches,omitempty"`
	MemoryBytes int64             `json:"memory_bytes"`
	Governor    string            `json:"cpu_governor,omitempty"`
	Backend     string            `json:"backend"`                // as it describes itself, on a GPU with device and driver
	Device      map[string]string `json:"device,omitempty"`       // of a GPU: see ReadDevice
	Load        string            `json:"load_average,omitempty"` // when the run began
	CommandLine []string          `json:"command_line"`
}

// ModelInfo is the shape that was measured.
type ModelInfo struct {
	Name   string `json:"name"`
	Config any    `json:"config,omitempty"`
	DType  string `json:"dtype"`
}

// ReadEnvironment asks the machine. Root is where the module lies.
func ReadEnvironment(root string) Environment {
	e := Environment{
		Commit: commit(root), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		Kernel: firstLine("/proc/sys/kernel/osrelease"), CPU: cpuName(),
		Cores: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		Caches: caches(), MemoryBytes: memoryBytes(),
		Governor:    firstLine("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Load:        firstLine("/proc/loadavg"),
		CommandLine: os.Args,
	}
	return e
}

// ReadDevice asks a backend for itself and, if it has one, for its device: model,
// driver, memory, clocks, power, what throttles it, other processes.
func (e *Environment) ReadDevice(b backend.Backend) {
	e.Backend, e.Device = b.Describe(), nil
	if d, ok := b.(interface{ DeviceFacts() map[string]string }); ok {
		e.Device = d.DeviceFacts()
	}
}

// commit asks git; a bundle, which is no repository, has it in a file.
func commit(root string) string {
	if packed := firstLine(filepath.Join(root, "COMMIT")); packed != "" {
		return packed
	}
	git := func(args ...string) string {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(out))
	}
	hash := git("rev-parse", "HEAD")
	if hash != "" && git("status", "--porcelain", "--untracked-files=no") != "" {
		hash += "+changes"
	}
	return hash
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}

// field finds "key : value" in a file such as /proc/cpuinfo.
func field(path, key string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func cpuName() string {
	if name := field("/proc/cpuinfo", "model name"); name != "" {
		return name
	}
	if out, err := exec.Command("sysctl", "-n", "machdep.cpu.brand_string").Output(); err == nil {
		return strings.TrimSpace(string(out))
	}
	return ""
}

func caches() map[string]string {
	found := make(map[string]string)
	dirs, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*")
	for _, dir := range dirs {
		name := "L" + firstLine(filepath.Join(dir, "level"))
		switch firstLine(filepath.Join(dir, "type")) {
		case "Data":
			name += "d"
		case "Instruction":
			name += "i"
		}
		found[name] = firstLine(filepath.Join(dir, "size"))
	}
	return found
}

func memoryBytes() int64 {
	kb, err := strconv.ParseInt(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	if err != nil {
		return 0
	}
	return kb << 10
}

// MemorySize names a memory by the nearest size that is sold, 2ⁿ or 1.5·2ⁿ GiB:
// firmware and kernel keep a part that differs from start to start.
func MemorySize(bytes int64) string {
	if bytes <= 0 {
		return ""
	}
	gib := float64(bytes) / (1 << 30)
	best := 0.5
	for size := 0.5; size < 1<<20; size *= 2 {
		for _, s := range []float64{size, 1.5 * size} {
			if math.Abs(math.Log(gib/s)) < math.Abs(math.Log(gib/best)) {
				best = s
			}
		}
	}
	return fmt.Sprintf("%g GiB", best)
}

// ModuleRoot walks up to the folder of go.mod: tests run in their package's
// folder, people think from the root.
func ModuleRoot() string {
	dir, err := os.Getwd()
	if err != nil {
		return "."
	}
	for at := dir; ; {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		up := filepath.Dir(at)
		if up == at {
			return dir
		}
		at = up
	}
}

// FromRoot resolves a path of the command line against the module's root.
func FromRoot(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(ModuleRoot(), path)
}
