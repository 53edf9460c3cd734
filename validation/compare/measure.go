package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/batchproof/batchproof/validation/stats"
)

// A runner measures every benchmark once on both sides (0 is base, 1 is head),
// which take turns on the machine, and returns their output in benchmark format.
type runner interface {
	run(ctx context.Context, first int) ([2][]byte, error)
}

// session measures two sides in blocks until the rules have an answer. A block
// is a run of both: whatever the machine does for longer than some steps meets
// both and cancels out of its ratio. Which of the two comes first is balanced in
// pairs, by seed.
type session struct {
	runner   runner
	labels   [2]string
	units    string
	margin   float64
	alpha    float64
	blocks   int           // at most
	limit    time.Duration // 0: none
	seed     uint64
	files    [2]io.Writer // what was measured, block by block
	now      func() time.Time
	progress func(format string, args ...any)
}

// result is what a comparison found.
type result struct {
	sides  *sides
	rows   []stats.Comparison
	blocks int    // 0 for files that were not measured in blocks
	ended  string // why measuring ended before the rows were decided
	table  string // benchstat's; "" for ratios of one file, which it does not know
}

func (s *session) measure(ctx context.Context) (*result, error) {
	if s.blocks < 6 {
		return nil, fmt.Errorf("-count %d: want at least 6 blocks, the least that a bound takes", s.blocks)
	}
	// A run that does not count: it fills the page cache, and shows what is wrong
	// with the selection before time is spent.
	var sets [2]*set
	var writers [2]*benchfmt.Writer
	warm, _, err := s.one(ctx, 0)
	if err != nil {
		if ctx.Err() != nil {
			return nil, errors.New("interrupted before the first block: nothing was measured")
		}
		return nil, err
	}
	for side := range sets {
		sets[side] = newSet(s.labels[side], s.labels[side])
		writers[side] = benchfmt.NewWriter(s.files[side])
	}
	id := s.now().UTC().Format(time.RFC3339Nano)
	for side := range warm {
		warm[side].config[sessionKey] = id
	}
	p, err := pair(warm[0], warm[1], s.units)
	if err != nil {
		return nil, err
	}
	if d := machineDifferences(warm); len(d) > 0 {
		return nil, fmt.Errorf("the two sides report different machines (%s); measure both on one", d)
	}
	rules, err := newRules(len(p.rows), s.blocks, s.margin, s.alpha)
	if err != nil {
		return nil, err
	}
	for side := range warm {
		if err := writeUnits(s.files[side], warm[side]); err != nil {
			return nil, err
		}
	}
	p.base, p.head = sets[0], sets[1]
	p.base.better, p.head.better = warm[0].better, warm[1].better

	r := &result{sides: p}
	began := s.now()
	for _, baseFirst := range stats.Order(s.seed, s.blocks) {
		first := 0
		if !baseFirst {
			first = 1
		}
		block, err := s.whole(ctx, p, id, first, r.blocks+1)
		if err != nil && ctx.Err() != nil {
			r.ended = fmt.Sprintf("interrupted during block %d of %d", r.blocks+1, s.blocks)
			break
		}
		if err != nil {
			return nil, err
		}
		for side := range sets {
			if err := s.keep(sets[side], warm[side], writers[side], block[side]); err != nil {
				return nil, err
			}
		}
		r.blocks++
		if slices.Contains(rules.within.Looks, r.blocks) {
			if err := s.judge(r, rules, r.blocks == s.blocks); err != nil {
				return nil, err
			}
		}
		spent := s.now().Sub(began)
		each := spent / time.Duration(r.blocks)
		g := gateUndecided
		if r.rows != nil {
			g = verdict(r.rows)
		}
		s.progress("block %d of at most %d: %s; at most %s left", r.blocks, s.blocks, g, (each * time.Duration(s.blocks-r.blocks)).Round(time.Second))
		if g != gateUndecided {
			break
		}
		if s.limit > 0 && spent+each > s.limit {
			r.ended = fmt.Sprintf("the time limit of %v ended measuring after block %d of %d", s.limit, r.blocks, s.blocks)
			break
		}
	}
	if r.blocks == 0 {
		return nil, errors.New(r.ended + ": nothing was measured")
	}
	return r, s.judge(r, rules, true)
}

func (s *session) judge(r *result, rules *rules, final bool) error {
	ratios, err := r.sides.blockRatios()
	if err != nil {
		return err
	}
	higher := make([]bool, len(r.sides.rows))
	for i, k := range r.sides.rows {
		higher[i] = r.sides.higher(k)
	}
	r.rows = rules.judge(ratios, higher, final)
	for i, k := range r.sides.rows {
		r.rows[i].Name = k.String()
	}
	return nil
}

// whole runs a block until all that is judged was measured in it. In a run that
// was held up a benchmark may have too few steps to be set beside the other side's.
func (s *session) whole(ctx context.Context, p *sides, id string, first, number int) ([2][]*benchfmt.Result, error) {
	for range 3 {
		block, err := s.block(ctx, id, first, number)
		if err != nil {
			return block, err
		}
		missing := p.missing(block)
		if missing == "" {
			return block, nil
		}
		s.progress("block %d of at most %d: %s was not measured on both sides; measured again", number, s.blocks, missing)
	}
	return [2][]*benchfmt.Result{}, fmt.Errorf("block %d has a row without a measurement, three times in a row; give each benchmark more time with -benchtime, or name other -units", number)
}

// block runs both sides. It is used whole or not at all.
func (s *session) block(ctx context.Context, id string, first, number int) (out [2][]*benchfmt.Result, err error) {
	if _, out, err = s.one(ctx, first); err != nil {
		return out, err
	}
	for side := range out {
		for _, r := range out[side] {
			set := func(key, value string) {
				r.Config = append(r.Config, benchfmt.Config{Key: key, Value: []byte(value), File: true})
			}
			set(blockKey, strconv.Itoa(number))
			set(blocksKey, strconv.Itoa(s.blocks))
			set(sessionKey, id)
		}
	}
	return out, nil
}

// keep adds a run to the samples and to the file.
func (s *session) keep(to, warm *set, w *benchfmt.Writer, results []*benchfmt.Result) error {
	for _, r := range results {
		name := r.Name.String()
		if !slices.Contains(warm.benchmarks, name) {
			return fmt.Errorf("%s measured %s, which it did not measure at first", to.label, name)
		}
		for _, v := range r.Values {
			k := rowKey{name, tidyUnit(v.Unit)}
			to.samples[k] = append(to.samples[k], sample{v.Value, r.GetConfig(blockKey)})
		}
		if !slices.Contains(to.benchmarks, name) {
			to.benchmarks = append(to.benchmarks, name)
		}
		if err := to.addConfig(r); err != nil {
			return err
		}
		if err := w.Write(r); err != nil {
			return fmt.Errorf("the samples cannot be kept: %w; choose another directory with -results", err)
		}
	}
	return nil
}

// one is one run of both sides.
func (s *session) one(ctx context.Context, first int) (sets [2]*set, results [2][]*benchfmt.Result, err error) {
	out, err := s.runner.run(ctx, first)
	if err != nil {
		return sets, results, err
	}
	for side := range sets {
		sets[side] = newSet(s.labels[side], s.labels[side])
		if results[side], err = sets[side].read(bytes.NewReader(out[side]), ""); err != nil {
			return sets, results, err
		}
		if len(results[side]) == 0 {
			return sets, results, fmt.Errorf("%s has no benchmark that -bench selects; see those it has with: go test ./validation -run '^$' -bench . -benchtime 1x", s.labels[side])
		}
	}
	return sets, results, nil
}

// machineDifferences leaves out the engine's description, which a commit may change.
func machineDifferences(sets [2]*set) string {
	var out []byte
	for _, key := range identity {
		a, b := sets[0].config[key], sets[1].config[key]
		if key != "engine" && a != "" && b != "" && a != b {
			out = fmt.Appendf(out, "%s %q against %q ", key, a, b)
		}
	}
	return string(bytes.TrimSpace(out))
}

// writeUnits begins a file, so that it can be read by itself.
func writeUnits(w io.Writer, s *set) error {
	units := make([]string, 0, len(s.better))
	for unit := range s.better {
		units = append(units, unit)
	}
	slices.Sort(units)
	for _, unit := range units {
		direction := map[int]string{1: "higher", -1: "lower"}[s.better[unit]]
		if direction == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "Unit %s better=%s\n", unit, direction); err != nil {
			return fmt.Errorf("the samples cannot be kept: %w; choose another directory with -results", err)
		}
	}
	return nil
}
