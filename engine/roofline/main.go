// Command roofline shows how near the CPU engine comes to the limit of the
// machine: for each op and each whole step the bytes that must move, the
// arithmetic, the floor that follows from the measured bandwidth and multiply-add
// peak, the time, and the share of the floor. An op's floor is the longer of the two
// times; a step's is the sum over its ops, which run one after another, so that
// memory rests while one of them computes.
//
//	roofline [-checkpoint DIR|random:NAME] [-rows 1,8] [-context N] [-prefill N] [-threads N] [-isa NAME] [-precision auto|f32|bf16]
//	roofline -targets
//
// Ops are timed inside the real step, so that their sum and the step are of one
// run. Rounds take turns between the workloads and the probes of the machine;
// a figure is the median over the rounds.
//
// It judges nothing but the engine's own targets, and it does not serve
// requests: that is the validation suite's.
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
	"strconv"
	"strings"

	"github.com/batchproof/batchproof/engine/cpu"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr, probeMachine); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "roofline:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, status io.Writer, probe func(*cpu.Backend) (machine, error)) error {
	opt := options{probe: probe}
	fs := flag.NewFlagSet("roofline", flag.ContinueOnError)
	fs.SetOutput(status)
	fs.StringVar(&opt.checkpoint, "checkpoint", "random:qwen3.5-mini", "model, `DIR|random:NAME`")
	rows := fs.String("rows", "1,8", "decode rows of each table, `N,...`; empty for none")
	context := fs.Int("context", 64, "positions before the measured decode steps")
	prefill := fs.String("prefill", "", "prompt tokens of each further table, `N,...`")
	fs.IntVar(&opt.threads, "threads", 0, "workers; 0 is one for each core")
	isa := fs.String("isa", "auto", "instruction set of the kernels, `auto|generic|avx2|avx512|amx`")
	precision := fs.String("precision", "auto", "what is multiplied in where weights or KV cache are bf16, `auto|f32|bf16`")
	fs.IntVar(&opt.rounds, "rounds", 5, "interleaved rounds")
	fs.IntVar(&opt.steps, "steps", 8, "decode steps of each workload in a round")
	targets := fs.Bool("targets", false, "measure the engine's targets in one run, instead of -rows and -prefill")
	bench := fs.String("bench", "", "also write Go benchmark format to this `FILE`")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if *context > 1<<24 {
		return fmt.Errorf("-context %d: want at most %d, more than any model's", *context, 1<<24)
	}
	if opt.rounds < 1 || opt.steps < 1 || *context < 1 {
		return fmt.Errorf("-rounds %d, -steps %d, -context %d: want at least 1 each", opt.rounds, opt.steps, *context)
	}
	if most := cpu.MaxThreads(); opt.threads < 0 || opt.threads > most {
		return fmt.Errorf("-threads %d: want 1 to %d, or 0 for one on each core", opt.threads, most)
	}
	var err error
	if opt.precision, err = cpu.ParsePrecision(*precision); err != nil {
		return fmt.Errorf("-precision: %w", err)
	}
	if opt.isa, err = cpu.ParseISA(*isa); err != nil {
		return fmt.Errorf("-isa: %w", err)
	}
	workloads, err := parseWorkloads(*rows, *prefill, *context)
	if *targets {
		workloads, err = targetWorkloads(*context, 512, 4096), nil
	}
	if err != nil {
		return err
	}

	if *bench != "" { // before measuring, lest it be for nothing
		if err := writable(*bench); err != nil {
			return fmt.Errorf("-bench %s: %w", *bench, err)
		}
	}

	s, err := open(opt, workloads)
	if err != nil {
		return err
	}
	err = func() error {
		results, err := s.measure(ctx, opt, workloads, func(what string) { fmt.Fprintln(status, what) })
		if err != nil {
			return err
		}
		s.writePage(out, workloads, results)
		if *targets {
			s.writeTargets(out, workloads, results)
		}
		if *bench == "" {
			return nil
		}
		var lines strings.Builder
		s.writeBench(&lines, workloads, results)
		return os.WriteFile(*bench, []byte(lines.String()), 0o644)
	}()
	return errors.Join(err, s.close())
}

// writable proves that a file can be written, and leaves its content.
func writable(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	_, err := os.Stat(path)
	isNew := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if err = f.Close(); isNew {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

func parseWorkloads(rows, prefill string, context int) (list []workload, err error) {
	seen := make(map[workload]bool)
	add := func(flag, numbers string, least int, make func(n int) workload) error {
		for _, field := range strings.Split(numbers, ",") {
			if field = strings.TrimSpace(field); field == "" {
				continue
			}
			n, err := strconv.Atoi(field)
			if err != nil || n < least || n > 1<<20 {
				return fmt.Errorf("-%s %q: want whole numbers from %d to %d, separated by commas", flag, numbers, least, 1<<20)
			}
			if w := make(n); !seen[w] {
				seen[w] = true
				list = append(list, w)
			}
		}
		return nil
	}
	err = errors.Join(
		add("rows", rows, 1, func(n int) workload { return workload{rows: n, tokens: 1, context: context} }),
		add("prefill", prefill, 2, func(n int) workload { return workload{rows: 1, tokens: n} }))
	if err == nil && len(list) == 0 {
		err = errors.New("nothing to measure: give -rows, -prefill or -targets")
	}
	return list, err
}
