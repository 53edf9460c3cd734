package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchproc"
	"golang.org/x/perf/benchunit"
)

// rowKey names one quantity: a benchmark and a unit, as benchfmt tidies it.
type rowKey struct{ name, unit string }

func (k rowKey) String() string { return k.name + " " + k.unit }

// sample is one measured value. Block is "" for one that belongs to no block.
type sample struct {
	value float64
	block string
}

// set is all samples of one side.
type set struct {
	label, path string
	samples     map[rowKey][]sample
	benchmarks  []string // in order of appearance
	better      map[string]int
	config      map[string]string
}

func newSet(label, path string) *set {
	return &set{label: label, path: path, samples: make(map[rowKey][]sample), better: make(map[string]int), config: make(map[string]string)}
}

// blockKey is the configuration line that says which block a sample is of,
// blocksKey the one that says how many the session would have measured at most,
// and sessionKey the one that says which session that was.
const (
	blockKey   = "block"
	blocksKey  = "blocks"
	sessionKey = "session"
)

// relTime is the unit of a side's time set beside the other's in one session. Of
// two sessions it says nothing.
const relTime = "rel-time"

// readFile reads a file in benchmark format, or the bench.txt of a results
// directory, whose environment.json then adds what the file does not say.
func readFile(label, path, filter string) (*set, error) {
	file := path
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		file = filepath.Join(path, "bench.txt")
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", label, err)
	}
	defer f.Close()
	s := newSet(label, file)
	if _, err := s.read(f, filter); err != nil {
		return nil, err
	}
	if len(s.samples) == 0 {
		if filter != "" {
			return nil, fmt.Errorf("%s: %s holds no result that -filter %q lets through", label, file, filter)
		}
		return nil, fmt.Errorf("%s: %s holds no benchmark results; write one with: make bench", label, file)
	}
	if err := s.addEnvironment(filepath.Join(filepath.Dir(file), "environment.json")); err != nil {
		return nil, err
	}
	return s, nil
}

// read adds the results of r and returns them.
func (s *set) read(r io.Reader, filter string) ([]*benchfmt.Result, error) {
	keep := func(*benchfmt.Result) (bool, error) { return true, nil }
	if filter != "" {
		f, err := benchproc.NewFilter(filter)
		if err != nil {
			return nil, fmt.Errorf("-filter %q: %w", filter, err)
		}
		keep = f.Apply
	}
	var results []*benchfmt.Result
	reader := benchfmt.NewReader(r, s.path)
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, fmt.Errorf("%s: %w; delete the broken line or record the file again", s.label, rec)
		case *benchfmt.Result:
			ok, err := keep(rec)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.label, err)
			}
			if !ok {
				continue
			}
			name := rec.Name.String()
			for _, v := range rec.Values {
				key := rowKey{name, tidyUnit(v.Unit)} // benchfmt leaves the unit of a zero as it is
				s.samples[key] = append(s.samples[key], sample{v.Value, rec.GetConfig(blockKey)})
			}
			if !slices.Contains(s.benchmarks, name) {
				s.benchmarks = append(s.benchmarks, name)
			}
			if err := s.addConfig(rec); err != nil {
				return nil, err
			}
			results = append(results, rec.Clone())
		}
	}
	if err := reader.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", s.label, err)
	}
	units := benchfmt.UnitMetadataMap(reader.Units())
	for key := range s.samples {
		s.better[key.unit] = units.GetBetter(key.unit)
	}
	return results, nil
}

// addConfig keeps the configuration. A file that mixes machines or models has
// no one speed.
func (s *set) addConfig(r *benchfmt.Result) error {
	for _, c := range r.Config {
		value := string(c.Value)
		old, seen := s.config[c.Key]
		if seen && old != value && slices.Contains(identity, c.Key) {
			return fmt.Errorf("%s: %s mixes results of %s %q and %q; split it, one file for each", s.label, s.path, c.Key, old, value)
		}
		s.config[c.Key] = value
	}
	return nil
}

// sides is what is compared, and where each row stands.
type sides struct {
	base, head *set
	rows       []rowKey
}

// pair matches the rows of two sides. Units is "auto" or a list: auto judges a
// benchmark by the time beside the other side where one session measured both, by
// tok/s, or by time where it has none of these; the other units of this suite
// follow from these, and every row more weakens all others.
func pair(base, head *set, units string) (*sides, error) {
	var missing []string
	for _, side := range [][2]*set{{base, head}, {head, base}} {
		for _, name := range side[0].benchmarks {
			if !slices.Contains(side[1].benchmarks, name) {
				missing = append(missing, fmt.Sprintf("%s is in %s and not in %s", name, side[0].label, side[1].label))
			}
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the sides hold different benchmarks: %s; select what both have (files: -filter, refs: -bench), or record both with the same flags",
			strings.Join(missing, "; "))
	}
	p := &sides{base: base, head: head}
	auto := []string{"tok/s", "sec/op"}
	if session := base.config[sessionKey]; base != head && session != "" && session == head.config[sessionKey] {
		auto = append([]string{relTime}, auto...)
	}
	for _, name := range base.benchmarks {
		list, first := strings.Split(units, ","), false
		if units == "auto" {
			list, first = auto, true
		}
		found := false
		for _, unit := range list {
			k := rowKey{name, tidyUnit(strings.TrimSpace(unit))}
			switch b, h := len(base.samples[k]) > 0, len(head.samples[k]) > 0; {
			case b && h && !(first && found):
				p.rows = append(p.rows, k)
				found = true
			case b != h && !first:
				return nil, fmt.Errorf("%s has the unit %s on one side only; name units that both have with -units", name, k.unit)
			}
		}
		if first && !found {
			return nil, fmt.Errorf("%s has neither tok/s nor sec/op on both sides; name a unit that both have with -units, or leave the benchmark out (files: -filter, refs: -bench)", name)
		}
	}
	if len(p.rows) == 0 {
		return nil, fmt.Errorf("no benchmark has the unit %s on both sides; name others with -units", units)
	}
	for _, k := range p.rows {
		b, h := base.better[k.unit], head.better[k.unit]
		switch {
		case b == 0 && h == 0:
			return nil, fmt.Errorf("nothing says whether more or less %s is better; add a line \"Unit %s better=higher\" (or lower) to the files", k.unit, k.unit)
		case b*h < 0:
			return nil, fmt.Errorf("the sides disagree on whether more %s is better; correct the Unit lines", k.unit)
		case b == 0:
			base.better[k.unit] = h
		}
	}
	return p, nil
}

// missing is the first row that a block does not have on both sides; "" if none.
func (p *sides) missing(block [2][]*benchfmt.Result) string {
	for _, k := range p.rows {
		for side := range block {
			if !slices.ContainsFunc(block[side], func(r *benchfmt.Result) bool {
				return r.Name.String() == k.name && slices.ContainsFunc(r.Values, func(v benchfmt.Value) bool { return tidyUnit(v.Unit) == k.unit })
			}) {
				return k.String()
			}
		}
	}
	return ""
}

func tidyUnit(unit string) string {
	_, unit = benchunit.Tidy(0, unit)
	return unit
}

// higher says whether more of the row's unit is better.
func (p *sides) higher(k rowKey) bool { return p.base.better[k.unit] > 0 }

// values are a side's samples of one row.
func (s *set) values(k rowKey) []float64 {
	out := make([]float64, len(s.samples[k]))
	for i, x := range s.samples[k] {
		out[i] = x.value
	}
	return out
}

var errUnpaired = errors.New("the samples are not of common blocks")

// blockRatios returns for each row the ratio head ÷ base of each block, in run
// order: the geometric mean of the block's runs of one side over that of the
// other. Of a block that an interruption cut, nothing is used.
func (p *sides) blockRatios() ([][]float64, error) {
	out := make([][]float64, len(p.rows))
	var first []string
	for i, k := range p.rows {
		base, blocks := byBlock(p.base.samples[k])
		head, other := byBlock(p.head.samples[k])
		if len(blocks) == 0 || blocks[0] == "" || !slices.Equal(blocks, other) || first != nil && !slices.Equal(blocks, first) {
			return nil, errUnpaired
		}
		first = blocks
		for _, b := range blocks {
			if len(base[b]) != len(head[b]) {
				return nil, errUnpaired
			}
			ratio := math.Exp(meanLog(head[b]) - meanLog(base[b]))
			if math.IsNaN(ratio) || math.IsInf(ratio, 0) || ratio <= 0 {
				return nil, fmt.Errorf("block %s of %s: the ratio is %v, so a measurement was not a positive number; record it again", b, k, ratio)
			}
			out[i] = append(out[i], ratio)
		}
	}
	return out, nil
}

func byBlock(samples []sample) (map[string][]float64, []string) {
	values := make(map[string][]float64)
	var order []string
	for _, s := range samples {
		if _, seen := values[s.block]; !seen {
			order = append(order, s.block)
		}
		values[s.block] = append(values[s.block], s.value)
	}
	return values, order
}

func meanLog(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += math.Log(v)
	}
	return sum / float64(len(values))
}

// relative replaces a side's absolute values by the ratios of its batch and
// serial modes, sample by sample: what two machines may be compared by.
func (s *set) relative() (*set, error) {
	r := newSet(s.label, s.path)
	r.config, r.better = s.config, s.better
	const batch, serial = "/mode=batch", "/mode=serial"
	for _, name := range s.benchmarks {
		if !strings.Contains(name, batch) {
			continue
		}
		other := strings.Replace(name, batch, serial, 1)
		to := strings.Replace(name, batch, "/mode=batch÷serial", 1)
		found := false
		for key, list := range s.samples {
			b := s.samples[rowKey{other, key.unit}]
			if key.name != name || len(b) == 0 {
				continue
			}
			if len(b) != len(list) {
				return nil, fmt.Errorf("%s: %s has %d samples and %s has %d; -relative divides them one by one, so record both as often", s.label, name, len(list), other, len(b))
			}
			ratios := make([]sample, len(list))
			for i := range list {
				ratios[i] = sample{list[i].value / b[i].value, list[i].block}
			}
			r.samples[rowKey{to, key.unit}] = ratios
			found = true
		}
		if found {
			r.benchmarks = append(r.benchmarks, to)
		}
	}
	if len(r.samples) == 0 {
		return nil, fmt.Errorf("%s: %s holds no benchmark in both modes, serial and batch, so there is no ratio to compare; record one with: make bench", s.label, s.path)
	}
	return r, nil
}
