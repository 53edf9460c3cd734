package validation

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"
)

var session *Session // of this run of the suite; set by TestMain before any test

func TestMain(m *testing.M) {
	var opt Options
	opt.Register(flag.CommandLine)
	flag.Usage = func() { Usage(flag.CommandLine.Output()) }
	flag.Parse()
	opt.Given(flag.CommandLine)
	opt.useDefaultBackend()
	if err := opt.Validate(); err != nil {
		fmt.Fprintf(os.Stderr, "these flags make no sense:\n%v\nall flags: go test ./validation -args -help\n", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	ctx, cancel := beforeTimeout(ctx)
	defer cancel()
	session = NewSession(ctx, opt, os.Stdout)
	if benchmarksRun() {
		turn, err := peerFromEnvironment()
		if err == nil {
			benchmark, err = openBench(opt)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		benchmark.turn = turn
		benchmark.printConfig(os.Stdout)
	}
	code := m.Run()
	if benchmark != nil {
		benchmark.Close()
	}
	if err := session.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// beforeTimeout ends measurements shortly before go test would end the process,
// so that what was measured is judged and the table is printed.
func beforeTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration)
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	spare := min(15*time.Second, timeout/4)
	return context.WithDeadlineCause(ctx, time.Now().Add(timeout-spare),
		fmt.Errorf("the timeout of go test, %v, is near: pass a longer one, such as -timeout 60m", timeout))
}

// TestSingleRequestLatency: batch mode costs a lone request at most 5 %.
func TestSingleRequestLatency(t *testing.T) {
	needBackend(t)
	assertCriterion(t, LatencyCriterion())
}

// TestConcurrentThroughput: batching serves 2, 4 and 8 concurrent requests
// 1.7, 3.0 and 4.5 times as fast as serving them one by one.
func TestConcurrentThroughput(t *testing.T) {
	needBackend(t)
	for _, n := range session.Options.NumConcurrent {
		t.Run(strconv.Itoa(n), func(t *testing.T) { assertCriterion(t, ThroughputCriterion(n)) })
	}
}

// needBackend skips what measures a machine unless a backend was asked for.
func needBackend(t testing.TB) {
	t.Helper()
	if session.Options.Backend == "" {
		t.Skip("NOT MEASURED: no backend was asked for. Run `make validate`, or: go test ./validation -count=1 -v -backend cpu (on a GPU: go test -tags cuda)")
	}
}

func assertCriterion(t *testing.T, c Criterion) {
	t.Helper()
	j, err := session.Measure(c, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if c.Family == FamilyThroughput {
		t.Parallel() // goes on when the other levels have been measured, too
		if j, err = session.Final(j, t.Output()); err != nil {
			t.Fatal(err)
		}
	}
	assertVerdict(t, j)
}

// TestReplay judges the samples of an earlier run again.
func TestReplay(t *testing.T) {
	if session.Options.Replay == "" {
		t.Skip("nothing to judge again: pass -replay results/<UTC time>/results.json")
	}
	judgements, err := session.Replay(session.Options.Replay, t.Output())
	if err == nil {
		err = session.KeepReplay()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range judgements {
		assertVerdict(t, j)
	}
}

// assertVerdict fails a test whose judgement was printed, with the reason, before.
func assertVerdict(t *testing.T, j *Judgement) {
	t.Helper()
	c := j.Record.Criterion
	switch j.Verdict {
	case Pass, Measured:
	case Inconclusive:
		if !session.Options.AllowInconclusive {
			t.Errorf("%s: %s, see above (-allow-inconclusive lets this pass)", c, j.Verdict)
		}
	default:
		t.Errorf("%s: %s, see above", c, j.Verdict)
	}
}
