package scheduler

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/testutil"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the traces in testdata with what the scheduler does now")

// The traces in testdata show what is decided in each step. A file is a list of
// cases, each a command, "----" and what came of it; lines with # are comments.
//
//	scheduler policy=… rows=… budget=… chunk=… watermark=… blocks=… block-size=… context=…
//	submit NAME prompt=N max=N [priority=N] [eos-at=N]   one request a line
//	cancel NAME
//	fail                                                 the next step fails
//	step [N]                                             N steps, or fewer if nothing is left
//
// A step prints its rows, in order: "a[0,8)" is the prompt chunk of a at these
// positions, "a@12" a decode row at position 12; "+" marks a row that draws a
// token, "~" one of a request that has finished but is held by its batch.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			got := trace(t, string(data))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(data), got, "%s differs; if the new decisions are right: go test ./scheduler -run Traces -rewrite", file)
		})
	}
}

// trace runs a file's commands and returns the file with the outputs of this run.
func trace(t *testing.T, file string) string {
	var out strings.Builder
	tr := &tracer{t: t}
	var command []string
	skipping := false // the old output
	for line := range strings.Lines(file) {
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "----":
			fmt.Fprintf(&out, "----\n%s\n", tr.run(command))
			command, skipping = nil, true
		case line == "":
			skipping = false
			out.WriteString("\n")
		case skipping:
		default:
			out.WriteString(line + "\n")
			if !strings.HasPrefix(line, "#") {
				command = append(command, line)
			}
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

type tracer struct {
	t     *testing.T
	v     *testutil.Virtual
	m     *machine
	jobs  map[string]*job
	names map[*job]string
}

func (tr *tracer) run(lines []string) string {
	var out []string
	for _, line := range lines {
		words := strings.Fields(line)
		args := map[string]int{"rows": 4, "budget": 32, "chunk": 8, "watermark": 1, "blocks": 64, "block-size": 4, "context": 64}
		text := map[string]string{}
		for _, w := range words[1:] {
			if k, v, ok := strings.Cut(w, "="); ok {
				text[k] = v
				args[k], _ = strconv.Atoi(v)
			}
		}
		switch words[0] {
		case "scheduler":
			out = append(out, tr.start(Policy(text["policy"]), args))
		case "submit":
			j := newJob(Request{
				Prompt: prompt(len(tr.jobs), args["prompt"]), MaxTokens: args["max"],
				Priority: args["priority"], IgnoreEOS: args["eos-at"] == 0,
			})
			if n := args["eos-at"]; n > 0 { // it ends by itself after n tokens
				alone := aloneAll(tr.t, Config{ChunkSize: tr.m.chunk}, tr.m.eng.Limits(), []Request{{Prompt: j.req.Prompt, MaxTokens: n}})[0]
				j.req.EOS = alone[n-1:]
			}
			if err := j.req.validate(tr.m.eng.Limits()); err != nil {
				out = append(out, err.Error())
				continue
			}
			j.id = int64(len(tr.jobs))
			tr.jobs[words[1]], tr.names[j] = j, words[1]
			tr.m.submit(j)
		case "cancel":
			tr.m.cancel(tr.jobs[words[1]], errors.New("by the trace"))
		case "fail":
			tr.v.Faults = map[int]testutil.Fault{tr.v.Steps + 1: {Err: errors.New("injected")}}
		case "step":
			n := 1
			if len(words) > 1 {
				n, _ = strconv.Atoi(words[1])
			}
			for range n {
				line := tr.step()
				out = append(out, line)
				if line == "idle" {
					break
				}
			}
		default:
			tr.t.Fatalf("unknown command %q", line)
		}
	}
	out = append(out, tr.ended()...)
	if len(out) == 0 {
		return "ok"
	}
	return strings.Join(out, "\n")
}

func (tr *tracer) start(policy Policy, args map[string]int) string {
	lim := engine.Limits{
		MaxSequences: args["rows"], MaxContext: args["context"], MaxStepTokens: args["budget"],
		KVBlocks: args["blocks"], KVBlockSize: args["block-size"],
	}
	v, eng := testutil.NewVirtual(testutil.Cost{}, lim)
	cfg := Config{Policy: policy, ChunkSize: args["chunk"], WatermarkBlocks: args["watermark"]}
	if cfg.WatermarkBlocks == 0 {
		cfg.WatermarkBlocks = -1
	}
	if err := cfg.validate(eng.Limits()); err != nil {
		return err.Error()
	}
	clock := testutil.NewClock()
	v.Sleep = clock.Sleep
	tr.v, tr.m = v, newMachine(eng, cfg, clock.Now)
	tr.jobs, tr.names = map[string]*job{}, map[*job]string{}
	return "ok"
}

func (tr *tracer) step() string {
	held := map[*job]bool{}
	for _, j := range tr.m.running {
		held[j] = j.held()
	}
	if !tr.m.step(tr.t.Context()) {
		return "idle"
	}
	require.NoError(tr.t, tr.m.check())
	var b strings.Builder
	fmt.Fprintf(&b, "step %d:", tr.m.m.Steps)
	for _, j := range tr.m.release {
		fmt.Fprintf(&b, " preempt %s;", tr.names[j])
	}
	for i := range tr.m.rows {
		r := &tr.m.rows[i]
		j := r.job
		end := tr.position(r)
		name := tr.names[j]
		if r.prompt {
			fmt.Fprintf(&b, " %s[%d,%d)", name, end-len(r.tokens), end)
		} else {
			fmt.Fprintf(&b, " %s@%d", name, end-1)
		}
		switch {
		case held[j]:
			b.WriteString("~")
		case r.sample:
			b.WriteString("+")
		}
	}
	tr.m.gauge()
	fmt.Fprintf(&b, " | KV %d/%d", tr.m.m.KVBlocksUsed, tr.m.m.KVBlocksTotal)
	if n := tr.m.waiting.len(); n > 0 {
		fmt.Fprintf(&b, " | %d waiting, next %s", n, tr.names[tr.m.waiting.first()])
	}
	return b.String()
}

// position is where a computed row ends; a failed row did not get there.
func (tr *tracer) position(r *row) int {
	if r.job.reason == FinishError {
		return r.job.pos + len(r.tokens)
	}
	return r.job.pos
}

// ended lists the requests that have ended since.
func (tr *tracer) ended() (out []string) {
	for _, j := range tr.m.over {
		line := fmt.Sprintf("%s ends: %s, %d tokens", tr.names[j], j.reason, len(j.out))
		if j.err != nil {
			line += ": " + j.err.Error()
		}
		out = append(out, line)
	}
	tr.m.over = tr.m.over[:0]
	return out
}
