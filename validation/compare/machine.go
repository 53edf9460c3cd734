package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/batchproof/batchproof/validation"
)

// identity are the configuration lines that decide how fast the same code runs
// the same benchmark. Commit and kernel version are not among them: they are
// what may be compared.
var identity = []string{"goos", "goarch", "cpu", "cores", "memory", "engine", "model"}

// addEnvironment fills in what the benchmark file lacks from an
// environment.json beside it, if there is one.
func (s *set) addEnvironment(file string) error {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var env validation.Environment
	if err == nil {
		err = json.Unmarshal(data, &env)
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w", s.label, file, err)
	}
	for key, value := range map[string]string{
		"goos": env.OS, "goarch": env.Arch, "cpu": env.CPU, "cores": count(env.Cores),
		"memory": validation.MemorySize(env.MemoryBytes), "engine": env.Backend, "commit": env.Commit,
	} {
		if s.config[key] == "" && value != "" {
			s.config[key] = value
		}
	}
	return nil
}

func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// differences names what makes absolute times of two sides incomparable. What
// one side does not say is no difference, unless strict.
func differences(base, head *set, strict bool) []string {
	var out []string
	for _, key := range identity {
		b, h := base.config[key], head.config[key]
		if b != h && (strict || b != "" && h != "") {
			out = append(out, fmt.Sprintf("%s %q against %q", key, b, h))
		}
	}
	return out
}

// A machine is what the key of a baseline names.
type machine struct {
	accelerator string // GPU model, or CPU model
	cores       string
	memory      string // of the host
	driver      string // of a GPU
}

// machineOf reads it from the configuration lines.
func machineOf(config map[string]string) (machine, error) {
	m := machine{accelerator: config["cpu"], cores: config["cores"], memory: config["memory"]}
	if gpu, ok := strings.CutPrefix(config["engine"], "cuda: "); ok {
		m.accelerator, _, _ = strings.Cut(gpu, ",")
		if _, driver, ok := strings.Cut(gpu, "driver for "); ok {
			m.driver = driver
		}
	}
	var missing []string
	for _, f := range [][2]string{{"cpu", m.accelerator}, {"cores", m.cores}, {"memory", m.memory}} {
		if f[1] == "" {
			missing = append(missing, f[0])
		}
	}
	if len(missing) > 0 {
		return m, fmt.Errorf("it does not say which machine it is of: no line %q; record it again with make bench, or put its environment.json beside it",
			strings.Join(missing, ", ")+":")
	}
	return m, nil
}

// key is the machine's folder under benchdata/baselines.
func (m machine) key() string {
	parts := []string{slug(m.accelerator), slug(m.cores) + "-cores", slug(m.memory)}
	if m.driver != "" {
		parts = append(parts, slug(m.driver))
	}
	return strings.Join(parts, "_")
}

// baselineDir is where the baselines of a machine and a preset lie, relative to
// the root of all.
func baselineDir(config map[string]string) (string, error) {
	m, err := machineOf(config)
	if err != nil {
		return "", err
	}
	if config["model"] == "" {
		return "", errors.New("it does not say which model it is of: no line \"model:\"; record it again with make bench")
	}
	model := config["model"]
	if i := strings.LastIndexAny(model, "/\\"); i >= 0 { // a checkpoint's directory
		model = model[i+1:]
	}
	return path.Join(m.key(), slug(strings.TrimPrefix(model, "random:"))), nil
}

// slug keeps letters, digits and dots, in lower case, and what else there is
// becomes one dash.
func slug(s string) string {
	s = strings.NewReplacer("(R)", "", "(TM)", "", "(r)", "", "(tm)", "").Replace(s)
	var out strings.Builder
	dash := false
	for _, r := range strings.ToLower(s) {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			if dash && out.Len() > 0 {
				out.WriteByte('-')
			}
			dash = false
			out.WriteRune(r)
		} else {
			dash = true
		}
	}
	return out.String()
}

// finite makes a number fit for JSON: null where there is none.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
