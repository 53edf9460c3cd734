package validation

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
)

// units tell benchstat which way is better.
var units = []struct{ name, better string }{
	{"tok/s", "higher"}, {"req/s", "higher"}, {"TTFT-ms", "lower"}, {"step-ms", "lower"}, {"slots", "lower"},
	{"rel-time", "lower"}, {"goodput-req/s", "higher"}, {"TPOT-ms", "lower"}, {"ITL-p99-ms", "lower"}, {"E2EL-ms", "lower"},
}

// WriteUnits writes the units' directions in benchmark format.
func WriteUnits(w io.Writer) {
	for _, u := range units {
		fmt.Fprintf(w, "Unit %s better=%s\n", u.name, u.better)
	}
}

// WriteConfig writes the configuration lines that identify a measurement.
func WriteConfig(w io.Writer, e *Environment, model string) {
	for _, line := range [][2]string{
		{"model", model}, {"engine", e.Backend}, {"commit", e.Commit}, {"kernel", e.Kernel},
		{"cores", fmt.Sprint(e.Cores)}, {"memory", MemorySize(e.MemoryBytes)},
	} {
		if line[1] != "" {
			fmt.Fprintf(w, "%s: %s\n", line[0], line[1])
		}
	}
}

// BenchName makes the name of a sub-benchmark: one key per slash, in fixed order.
func BenchName(model, backend string, rest ...string) string {
	return strings.Join(append([]string{"model=" + benchValue(model), "backend=" + backend}, rest...), "/")
}

// benchValue keeps a value from reading as another key, or as several words.
func benchValue(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '=' || r <= ' ' {
			return '_'
		}
		return r
	}, s)
}

// BenchLines writes the samples of the criteria in Go benchmark format, one
// line for each arm of each block: benchstat -col /mode compares the arms on
// interleaved samples. Disturbed blocks are left out.
func BenchLines(r *Results) []byte {
	var out bytes.Buffer
	if r.Model == nil {
		return nil
	}
	WriteUnits(&out)
	fmt.Fprintf(&out, "goos: %s\ngoarch: %s\ncpu: %s\n", r.Environment.OS, r.Environment.Arch, r.Environment.CPU)
	WriteConfig(&out, &r.Environment, r.Model.Name)
	for _, rec := range r.Criteria {
		for _, b := range rec.Kept() {
			for k := range b.Arms {
				run := &b.Arms[k]
				if run.Arm == ArmControl {
					continue
				}
				benchLine(&out, r, rec, run)
			}
		}
	}
	return out.Bytes()
}

func benchLine(w io.Writer, r *Results, rec *Record, run *ArmRun) {
	one := &Record{Criterion: rec.Criterion, Blocks: []Block{{Arms: []ArmRun{*run}}}}
	s := Summarise(one, run.Arm)
	name := BenchName(r.Model.Name, r.Options.Backend, "mode="+run.Arm, fmt.Sprintf("concurrent=%d", rec.Criterion.Concurrent))
	fmt.Fprintf(w, "BenchmarkGenerate/%s-%d 1 %d ns/op %.6g tok/s %.6g req/s %.6g TTFT-ms %.6g step-ms\n",
		name, runtime.GOMAXPROCS(0), run.ElapsedNS, s.TokensPerS, s.RequestsPerS, 1e3*s.TTFT.Avg, 1e3*s.DecodeStep)
}
