package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/perf/benchfmt"

	"github.com/batchproof/batchproof/validation/stats"
)

// compareFiles judges two recorded sides: by blocks if they were measured in
// common blocks, else by their samples.
func compareFiles(base, head *set, units string, margin, alpha float64) (*result, error) {
	p, err := pair(base, head, units)
	if err != nil {
		return nil, err
	}
	r := &result{sides: p}
	ratios, err := p.blockRatios()
	switch {
	case err == nil:
		r.blocks = len(ratios[0])
		planned, err := countOf(base, head)
		if err != nil {
			return nil, err
		}
		rules, err := newRules(len(p.rows), max(planned, r.blocks), margin, alpha)
		if err != nil {
			return nil, err
		}
		return r, new(session).judge(r, rules, true)
	case !errors.Is(err, errUnpaired):
		return nil, err
	}
	var rows []stats.Row
	for _, k := range p.rows {
		rows = append(rows, stats.Row{Name: k.String(), Base: base.values(k), Head: head.values(k), HigherIsBetter: p.higher(k)})
	}
	if r.rows, err = stats.Compare(rows, margin, alpha); err != nil {
		return nil, err
	}
	return r, nil
}

func countOf(base, head *set) (int, error) {
	n, m := base.config[blocksKey], head.config[blocksKey]
	var planned int
	if n != m {
		return 0, fmt.Errorf("the sides say %q and %q blocks were planned, so they are of two sessions; compare the two files of one", n, m)
	}
	if _, err := fmt.Sscanf(n, "%d", &planned); n != "" && (err != nil || planned > 1000) {
		return 0, fmt.Errorf("%s: the line \"%s: %s\" holds no number of blocks", base.path, blocksKey, n)
	}
	return planned, nil
}

// benchstat makes its own table of the two sides, for the units that are
// judged, and where that is the time beside the other side for tok/s: a number
// that means something by itself. Lines that differ without keeping results from comparison are ignored.
func benchstat(ctx context.Context, root string, r *result, baseFile, headFile, filter string) (string, error) {
	ignore := "commit,kernel," + blockKey + "," + blocksKey + "," + sessionKey
	args := []string{"tool", "benchstat", "-ignore", ignore}
	var units []string
	for _, k := range r.sides.rows {
		unit := k.unit
		if unit == relTime {
			unit = "tok/s"
		}
		if !slices.Contains(units, unit) {
			units = append(units, unit)
		}
	}
	expr := ".unit:(" + strings.Join(quoted(units), " OR ") + ")"
	if filter != "" {
		expr = "(" + filter + ") " + expr
	}
	args = append(args, "-filter", expr, "base="+baseFile, "head="+headFile)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil { // outside of this module
		return "", fmt.Errorf("go tool benchstat: %w: %s", err, tail(out))
	}
	return string(out), nil
}

func quoted(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = fmt.Sprintf("%q", s)
	}
	return out
}

// print writes the gate's own table and the answer in words.
func (r *result) print(w io.Writer, margin float64) {
	short := shorten(r.sides.rows)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "row\thead against base\tinterval\toutcome")
	for i := range r.rows {
		c := &r.rows[i]
		fmt.Fprintf(t, "%s\t%s\t%s … %s\t%s\n", short[i], change(c.Ratio), change(c.Lower), change(c.Upper), c.Outcome)
	}
	t.Flush()
	for i := range r.rows {
		for _, warning := range r.rows[i].Warnings {
			fmt.Fprintf(w, "note: %s: %s\n", r.rows[i].Name, warning)
		}
	}
	fmt.Fprintln(w, r.kind())
	fmt.Fprintln(w, r.answer(margin))
}

// kind says what the comparison can be relied on for.
func (r *result) kind() string {
	if r.blocks > 0 {
		return fmt.Sprintf("%d interleaved blocks: a block's ratio does not see what both sides share.", r.blocks)
	}
	return "The sides were recorded one after the other: a change of the machine between them looks like one of the code. Give two git refs to have them measured interleaved."
}

// shorten leaves out of the rows' names the model, the backend and the number of
// threads where all rows agree. The table of benchstat has them in full.
func shorten(rows []rowKey) []string {
	in := make(map[string]int)
	for _, k := range rows {
		_, parts := benchfmt.Name(k.name).Parts()
		for _, p := range parts {
			in[string(p)]++
		}
	}
	out := make([]string, len(rows))
	for i, k := range rows {
		base, parts := benchfmt.Name(k.name).Parts()
		out[i] = string(base)
		for _, p := range parts {
			part := string(p)
			known := strings.HasPrefix(part, "/model=") || strings.HasPrefix(part, "/backend=") || part[0] == '-'
			if !known || in[part] < len(rows) {
				out[i] += part
			}
		}
		out[i] += " " + k.unit
	}
	return out
}

// answer is one line that stands by itself.
func (r *result) answer(margin float64) string {
	n := make(map[stats.Outcome]int)
	var worst []string
	short := shorten(r.sides.rows)
	for i := range r.rows {
		n[r.rows[i].Outcome]++
		if r.rows[i].Outcome == stats.Regression {
			worst = append(worst, fmt.Sprintf("%s %s", short[i], change(r.rows[i].Ratio)))
		}
	}
	m := fmt.Sprintf("margin %.3g %%", 100*margin)
	switch verdict(r.rows) {
	case gateFail:
		return fmt.Sprintf("regression (%s): %s", m, strings.Join(worst, "; "))
	case gateUndecided:
		why := "quiet the machine, or measure more with -count"
		if r.ended != "" {
			why = r.ended
		} else if r.blocks == 0 {
			why = "record more samples of each side, on a quiet machine"
		}
		return fmt.Sprintf("cannot decide (%s): %d of %d rows show neither a change nor its absence; %s", m, n[stats.CannotDecide], len(r.rows), why)
	case gateImproved:
		return fmt.Sprintf("no regression (%s): %d of %d rows improved, the others did not change", m, n[stats.Improvement], len(r.rows))
	}
	return fmt.Sprintf("no change (%s): all %d rows are shown to be within it", m, len(r.rows))
}

// summary is the JSON for machines. Numbers that do not exist are null.
type summary struct {
	Schema    int               `json:"schema"`
	Gate      string            `json:"gate"`
	Exit      int               `json:"exit"`
	Answer    string            `json:"answer"`
	Base      string            `json:"base"`
	Head      string            `json:"head"`
	Machine   map[string]string `json:"machine,omitempty"`
	Margin    float64           `json:"margin"`
	Alpha     float64           `json:"alpha"`
	Blocks    int               `json:"blocks"` // 0: not measured in blocks
	Identical bool              `json:"identical_programs,omitempty"`
	Rows      []summaryRow      `json:"rows"`
}

type summaryRow struct {
	Benchmark string    `json:"benchmark"`
	Unit      string    `json:"unit"`
	Better    string    `json:"better"`
	Outcome   string    `json:"outcome"`
	Reason    string    `json:"reason"`
	Ratio     *float64  `json:"ratio"` // head ÷ base
	Lower     *float64  `json:"lower"`
	Upper     *float64  `json:"upper"`
	P         *float64  `json:"p,omitempty"`
	Holm      *float64  `json:"p_holm,omitempty"`
	Ratios    []float64 `json:"block_ratios,omitempty"`
}

func (r *result) summary(margin, alpha float64) *summary {
	g := verdict(r.rows)
	s := &summary{Schema: 1, Gate: string(g), Exit: g.exit(), Answer: r.answer(margin), Base: r.sides.base.label, Head: r.sides.head.label,
		Machine: make(map[string]string), Margin: margin, Alpha: alpha, Blocks: r.blocks}
	for _, key := range identity {
		if v := r.sides.head.config[key]; v != "" {
			s.Machine[key] = v
		}
	}
	ratios, _ := r.sides.blockRatios()
	for i := range r.rows {
		c, k := &r.rows[i], r.sides.rows[i]
		row := summaryRow{Benchmark: k.name, Unit: k.unit, Better: "lower", Outcome: string(c.Outcome), Reason: c.Reason,
			Ratio: finite(c.Ratio), Lower: finite(c.Lower), Upper: finite(c.Upper)}
		if r.sides.higher(k) {
			row.Better = "higher"
		}
		if r.blocks == 0 {
			row.P, row.Holm = finite(c.P), finite(c.Holm)
		} else {
			row.Ratios = ratios[i]
		}
		s.Rows = append(s.Rows, row)
	}
	return s
}

func (s *summary) write(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("the result cannot be kept: %w", err)
	}
	return nil
}

// change is a ratio as people read it.
func change(ratio float64) string {
	if math.IsInf(ratio, 0) || math.IsNaN(ratio) || ratio <= 0 {
		return "?"
	}
	return fmt.Sprintf("%+.1f %%", 100*(ratio-1))
}
