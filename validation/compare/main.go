// Command compare says whether HEAD is slower than BASE: two git refs, which it
// builds and measures interleaved on this machine, or two recorded files in
// benchmark format. It prints benchstat's table and judges each row against a
// margin.
//
//	compare [flags] BASE HEAD                  two refs, or two files
//	compare -baseline auto|FILE [flags] HEAD   a file against a recorded baseline
//	compare -record FILE                       keep a file as a baseline
//	compare -trend OUT.svg FILE|DIR ...        draw recorded runs
//
// A file may also be a results directory that holds a bench.txt.
//
// Exit status: 0 no regression, 1 a regression beyond the margin, 2 the data
// cannot decide (or there is no baseline), 3 nothing could be compared. Note
// that go run and make report any failure by a status of their own; scripts
// build the command first.
//
// Refs are measured in blocks of a run of each, two processes that alternate every
// few steps, and a block yields one ratio for each row: what the machine does to
// both sides cancels. Measuring ends as soon as the gate's
// answer is shown. Recorded files have no such blocks unless this command wrote
// them, and their absolute values are compared only when they are of one
// machine. Of two machines, -relative compares the ratios of batch to serial mode.
//
// It does not find the cause of a change, and it does not compare what the two
// sides print: that is what the tests are for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/batchproof/batchproof/validation"
)

func main() {
	// Only the first signal counts: it ends what is being measured at once, and the
	// worktrees are removed whatever comes after.
	ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	os.Exit(newCommand(os.Stdout, os.Stderr).run(ctx, os.Args[1:]))
}

// What is measured of refs unless the flags say otherwise: few rows, since each
// weakens all others. Of alternatives, each has levels of its own: a pattern
// deeper than a benchmark's name would leave that out.
const (
	defaultBench = "^BenchmarkDecodeStep$|^BenchmarkPrefill$/././tokens=64"
	defaultSuite = "-max-tokens 16 -sizes 1,8 -num-concurrent 4"
)

// command is the command line, and where it works.
type command struct {
	baseline, trend  string
	record           bool
	units, filter    string
	relative         bool
	margin, alpha    float64
	json, markdown   string
	results          string
	bench, benchtime string
	checkpoint       string
	backend, suite   string
	count            int
	limit            time.Duration
	seed             uint64
	aa               bool

	ofFiles, ofRefs []string // flags given that only files, or only refs, take
	root            string   // of the repository
	tools           string   // of the module whose go.mod names benchstat
	baselineRoot    string
	build           func(tags string) buildFunc
	stdout, stderr  io.Writer
	progress        func(format string, args ...any)
}

func newCommand(stdout, stderr io.Writer) *command {
	c := &command{stdout: stdout, stderr: stderr, root: validation.ModuleRoot(), build: goBuild}
	c.tools = c.root
	c.baselineRoot = filepath.Join(c.root, filepath.FromSlash(baselines))
	c.progress = func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	return c
}

func (c *command) run(ctx context.Context, args []string) int {
	stderr := c.stderr
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, "compare [flags] BASE HEAD                  two git refs, measured interleaved here, or two recorded files\n"+
			"compare -baseline auto|FILE [flags] HEAD   a recorded file against a baseline\n"+
			"compare -record FILE                       keep a recorded file as a baseline\n"+
			"compare -trend OUT.svg FILE|DIR ...        draw recorded runs\n"+
			"Exit status: 0 no regression, 1 regression, 2 cannot decide, 3 error. For example:\n\n"+
			"bin/compare main HEAD                      is what is checked out slower than main?\n"+
			"bin/compare -backend cuda -checkpoint random:qwen3.5-0.8b -markdown summary.md main HEAD\n"+
			"bin/compare old/bench.txt results/bench.txt\n\n"+
			"A flag that says refs: or files: is for those alone.\n\n")
		fs.PrintDefaults()
	}
	fs.Float64Var(&c.margin, "margin", 0.03, "smallest relative change that counts, as a `share`")
	fs.Float64Var(&c.alpha, "alpha", 0.01, "`chance` of calling any unchanged row a regression")
	fs.StringVar(&c.units, "units", "auto", "`units` to judge, such as tok/s,TTFT-ms; auto: of refs the time beside the other side's, else tok/s, or time where there is none")
	fs.StringVar(&c.json, "json", "", "also write the result to this `file`")
	fs.StringVar(&c.markdown, "markdown", "", "also add the result, as a section in Markdown, to this `file`, such as $GITHUB_STEP_SUMMARY")
	fs.BoolVar(&c.relative, "relative", false, "files: compare the ratios of batch to serial mode, also of two machines")
	fs.StringVar(&c.filter, "filter", "", "files: benchstat `filter` of what is compared")
	fs.StringVar(&c.baseline, "baseline", "none", "`auto|FILE|none`: what HEAD is compared with instead of a BASE")
	fs.BoolVar(&c.record, "record", false, "keep a file under "+baselines)
	fs.StringVar(&c.trend, "trend", "", "draw recorded runs into this SVG `file`")
	fs.StringVar(&c.bench, "bench", defaultBench, "refs: benchmarks to run, as a `regexp` of go test")
	fs.StringVar(&c.benchtime, "benchtime", "1500ms", "refs: `time` of each benchmark in one run, the turns of the other side included")
	fs.StringVar(&c.checkpoint, "checkpoint", validation.DefaultCheckpoint, "refs: `DIR|random:NAME` to measure")
	fs.StringVar(&c.backend, "backend", "cpu", "refs: backend to build and measure, `cpu|cuda`")
	fs.StringVar(&c.suite, "flags", defaultSuite, "refs: further `flags` of the suite")
	fs.IntVar(&c.count, "count", 32, "refs: `blocks` at most; measuring ends as soon as the answer is shown")
	fs.DurationVar(&c.limit, "time-limit", 0, "refs: time in which measuring ends, 0 for none")
	fs.Uint64Var(&c.seed, "seed", 1, "refs: seed of the order of the blocks")
	fs.StringVar(&c.results, "results", "results", "refs: `DIR` for the samples and compare.json, in <UTC time>-compare/, relative to the module's root")
	fs.BoolVar(&c.aa, "aa", false, "refs: measure even if both refs give the same program")
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		return exitError
	}
	fs.Visit(func(f *flag.Flag) {
		switch {
		case strings.HasPrefix(f.Usage, "refs: "):
			c.ofRefs = append(c.ofRefs, "-"+f.Name)
		case strings.HasPrefix(f.Usage, "files: "):
			c.ofFiles = append(c.ofFiles, "-"+f.Name)
		}
	})
	code, err := c.do(ctx, fs.Args())
	if err != nil {
		fmt.Fprintln(stderr, "compare:", err)
		code = exitError
		if errors.Is(err, errNoBaseline) {
			code = exitUndecided
		}
		if c.markdown != "" {
			if err := appendFile(c.markdown, markdownError(err)); err != nil {
				fmt.Fprintln(stderr, "compare:", err)
			}
		}
	}
	return code
}

func (c *command) do(ctx context.Context, args []string) (int, error) {
	want := func(n int, what string) error {
		if len(args) != n {
			return fmt.Errorf("want %s, not %d arguments; see -help", what, len(args))
		}
		return nil
	}
	if !(c.margin > 0 && c.margin < 1) || !(c.alpha > 0 && c.alpha < 0.5) {
		return 0, fmt.Errorf("-margin %v -alpha %v: want a margin between 0 and 1, such as 0.03 for 3 %%, and an alpha between 0 and 0.5, such as 0.01", c.margin, c.alpha)
	}
	switch {
	case c.record:
		if err := want(1, "-record FILE"); err != nil {
			return 0, err
		}
		return 0, c.doRecord(args[0])
	case c.trend != "":
		if len(args) == 0 {
			args = []string{c.baselineRoot}
		}
		line, err := writeTrend(c.trend, args)
		if err == nil {
			fmt.Fprintln(c.stdout, line)
		}
		return 0, err
	case c.baseline != "none" && c.baseline != "":
		if err := want(1, "-baseline auto|FILE and one HEAD"); err != nil {
			return 0, err
		}
		return c.againstBaseline(ctx, args[0])
	}
	if err := want(2, "BASE and HEAD"); err != nil {
		return 0, err
	}
	switch base, head := isRef(args[0]), isRef(args[1]); {
	case base != head:
		return 0, fmt.Errorf("%s and %s: one is a file and the other is not; give two files or two refs, since a file recorded earlier and a measurement of now differ by the machine's state too", args[0], args[1])
	case base:
		return c.refs(ctx, [2]string{args[0], args[1]})
	}
	return c.files(ctx, args[0], args[1])
}

// files compares two recorded sides.
func (c *command) files(ctx context.Context, baseFile, headFile string) (int, error) {
	if len(c.ofRefs) > 0 {
		return 0, fmt.Errorf("%s: has no effect on recorded files", strings.Join(c.ofRefs, ", "))
	}
	base, err := readFile("base", baseFile, c.filter)
	if err != nil {
		return 0, err
	}
	head, err := readFile("head", headFile, c.filter)
	if err != nil {
		return 0, err
	}
	baseFile, headFile = base.path, head.path
	if c.relative {
		if b, h := base.config["model"], head.config["model"]; b != h {
			return 0, fmt.Errorf("base is of model %q and head of %q: not even ratios can be compared; record both with one checkpoint", b, h)
		}
		if base, err = base.relative(); err != nil {
			return 0, err
		}
		if head, err = head.relative(); err != nil {
			return 0, err
		}
	} else if d := differences(base, head, false); len(d) > 0 {
		return 0, fmt.Errorf("the sides are not of one machine and model (%s): absolute times cannot be compared; record both on one, or compare the ratios of batch to serial mode with -relative", strings.Join(d, ", "))
	}
	r, err := compareFiles(base, head, c.units, c.margin, c.alpha)
	if err != nil {
		return 0, err
	}
	base.label, head.label = baseFile, headFile
	if !c.relative { // benchstat knows no ratios of two benchmarks of one file
		if err := c.table(ctx, r, baseFile, headFile); err != nil {
			return 0, err
		}
	}
	return c.finish(r)
}

func (c *command) table(ctx context.Context, r *result, baseFile, headFile string) error {
	var abs [2]string
	for i, file := range []string{baseFile, headFile} {
		var err error
		if abs[i], err = filepath.Abs(file); err != nil {
			return err
		}
	}
	var err error
	if r.table, err = benchstat(context.WithoutCancel(ctx), c.tools, r, abs[0], abs[1], c.filter); err != nil {
		c.progress("benchstat's own table is left out (%v); the gate does not rest on it", err)
		return nil
	}
	_, err = io.WriteString(c.stdout, r.table)
	return err
}

func (c *command) finish(r *result) (int, error) {
	fmt.Fprintln(c.stdout)
	r.print(c.stdout, c.margin)
	if c.json != "" {
		if err := r.summary(c.margin, c.alpha).write(c.json); err != nil {
			return 0, err
		}
	}
	if c.markdown != "" {
		if err := appendFile(c.markdown, r.markdown(c.margin)); err != nil {
			return 0, err
		}
	}
	return verdict(r.rows).exit(), nil
}

// againstBaseline compares a recorded file with a baseline of its machine.
func (c *command) againstBaseline(ctx context.Context, headFile string) (int, error) {
	if isRef(headFile) {
		return 0, fmt.Errorf("-baseline %s %s: a baseline is compared with a recorded file; record one with make bench, or give two refs without -baseline", c.baseline, headFile)
	}
	file := c.baseline
	if file == "auto" {
		head, err := readFile("head", headFile, "")
		if err != nil {
			return 0, err
		}
		if file, err = findBaseline(c.baselineRoot, head); err != nil {
			return 0, err
		}
	}
	fmt.Fprintf(c.stdout, "baseline: %s\n", file)
	return c.files(ctx, file, headFile)
}

func (c *command) doRecord(file string) error {
	s, err := readFile("record", file, "")
	if err != nil {
		return err
	}
	info, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	to, err := record(c.baselineRoot, s, info.ModTime())
	if err == nil {
		fmt.Fprintf(c.stdout, "recorded %s\n", to)
	}
	return err
}

// refs builds two refs and measures them interleaved.
func (c *command) refs(ctx context.Context, refs [2]string) (code int, err error) {
	if len(c.ofFiles) > 0 {
		return 0, fmt.Errorf("%s: is for recorded files; refs are measured here", strings.Join(c.ofFiles, ", "))
	}
	tags := ""
	switch c.backend {
	case "cpu":
	case "cuda":
		tags = "cuda"
	default:
		return 0, fmt.Errorf("-backend %q: want cpu or cuda", c.backend)
	}
	if c.count < 6 {
		return 0, fmt.Errorf("-count %d: want at least 6 blocks, the least that a bound takes", c.count)
	}
	c.progress("building %s and %s", refs[0], refs[1])
	b, err := buildRefs(ctx, c.root, refs, c.build(tags))
	defer func() { err = errors.Join(err, b.Close()) }()
	if err != nil {
		return 0, err
	}
	same, err := b.same()
	if err != nil {
		return 0, err
	}
	if same && !c.aa {
		answer := "no change: both refs give the same program, bit for bit, so there is nothing to measure (-aa measures nevertheless)"
		fmt.Fprintln(c.stdout, answer)
		if c.markdown != "" {
			if err := appendFile(c.markdown, markdownAnswer(gatePass, answer, b.labels[0], b.labels[1])); err != nil {
				return 0, err
			}
		}
		if c.json != "" {
			s := &summary{Schema: 1, Gate: string(gatePass), Exit: exitOK, Answer: answer, Base: b.labels[0], Head: b.labels[1],
				Margin: c.margin, Alpha: c.alpha, Identical: true, Rows: []summaryRow{}}
			return exitOK, s.write(c.json)
		}
		return exitOK, nil
	}
	checkpoint := c.checkpoint
	if !strings.HasPrefix(checkpoint, "random:") { // relative to this tree, not to those of the refs
		checkpoint = validation.FromRoot(checkpoint)
	}
	b.flags = append([]string{"-test.run", "^$", "-test.bench", c.bench, "-test.benchtime", c.benchtime, "-test.count", "1", "-test.timeout", "30m",
		"-backend", c.backend, "-checkpoint", checkpoint}, strings.Fields(c.suite)...)

	dir := filepath.Join(validation.FromRoot(c.results), time.Now().UTC().Format("2006-01-02T15-04-05Z")+"-compare")
	var names [2]string
	s := &session{runner: b, labels: b.labels, units: c.units, margin: c.margin, alpha: c.alpha, blocks: c.count,
		limit: c.limit, seed: c.seed, now: time.Now, progress: c.progress}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return 0, fmt.Errorf("the samples cannot be kept: %w; choose another directory with -results", err)
	}
	for side, name := range sideNames {
		names[side] = filepath.Join(dir, name+".txt")
		f, err := os.Create(names[side])
		if err != nil {
			return 0, fmt.Errorf("the samples cannot be kept: %w; choose another directory with -results", err)
		}
		defer f.Close()
		s.files[side] = f
	}
	r, err := s.measure(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.summary(c.margin, c.alpha).write(filepath.Join(dir, "compare.json")); err != nil {
		return 0, err
	}
	c.progress("samples: %s", dir)
	if err := c.table(ctx, r, names[0], names[1]); err != nil {
		return 0, err
	}
	return c.finish(r)
}
