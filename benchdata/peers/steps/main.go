// Command steps times decode steps and prefill of this engine for the comparison with peers:
//
//	steps -checkpoint DIR -threads N
//
// It answers one JSON line to each JSON line that it reads, so that a driver can
// take turns between engines:
//
//	{"prompts": [[ids], ...], "steps": K}  → {"seconds": [K numbers]}
//	{"prefill": [ids], "times": K}         → {"seconds": [K numbers], "ids": [of the 5 largest logits], "values": [theirs]}
//
// The first request for a number of prompts feeds them; later ones go on with
// the same sequences. A prefill is one step of a new sequence, up to the logits
// of its last token. It does not compare anything: the driver does.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
)

const (
	decoding  = 15 // sequences that go on: 1 + 2 + 4 + 8
	sequences = decoding + 1
	blockSize = 16
)

func main() {
	checkpoint := flag.String("checkpoint", "", "model, `DIR|random:NAME`")
	threads := flag.Int("threads", runtime.GOMAXPROCS(0), "workers")
	maxContext := flag.Int("context", 512, "positions of a sequence that goes on")
	stepTokens := flag.Int("step-tokens", 512, "tokens of one step, and of a prefill")
	flag.Parse()
	if err := run(*checkpoint, *threads, *maxContext, *stepTokens, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(1)
	}
}

// request and response are the lines.
type request struct {
	Prompts [][]int32 `json:"prompts"`
	Steps   int       `json:"steps"`
	Prefill []int32   `json:"prefill"`
	Times   int       `json:"times"`
}

type response struct {
	Info    string    `json:"info,omitempty"`
	Seconds []float64 `json:"seconds,omitempty"`
	IDs     []int     `json:"ids,omitempty"`
	Values  []float32 `json:"values,omitempty"`
}

type server struct {
	net    *model.Network
	engine *engine.Engine
	groups map[int]*engine.Batch // by number of rows
	next   map[int][][1]int32
}

func run(checkpoint string, threads, maxContext, stepTokens int, in io.Reader, out io.Writer) (err error) {
	ck, err := model.Open(checkpoint)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ck.Close()) }()
	b, err := cpu.New(cpu.Options{Threads: threads})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	blocksFor := func(positions int) int { return (positions + blockSize - 1) / blockSize }
	blocks := decoding*blocksFor(maxContext) + blocksFor(stepTokens)
	longest := max(maxContext, stepTokens)
	net, err := model.Load(ck, b, model.Size{
		Sequences: sequences, Context: longest, StepTokens: stepTokens, KVBlocks: blocks, KVBlockSize: blockSize,
	})
	if err != nil {
		return err
	}
	s := &server{net: net, groups: make(map[int]*engine.Batch), next: make(map[int][][1]int32)}
	s.engine = engine.NewWith(net, engine.Limits{
		MaxSequences: sequences, MaxContext: longest, MaxStepTokens: stepTokens,
		Vocab: ck.Config.Vocab, KVBlockSize: blockSize, KVBlocks: blocks,
	})
	defer func() { err = errors.Join(err, s.engine.Close()) }()

	encoder := json.NewEncoder(out)
	if err := encoder.Encode(response{Info: b.Describe()}); err != nil {
		return err
	}
	for lines := json.NewDecoder(bufio.NewReader(in)); ; {
		var req request
		if err := lines.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		answer, err := s.serve(&req)
		if err != nil {
			return err
		}
		if err := encoder.Encode(answer); err != nil {
			return err
		}
	}
}

func (s *server) serve(req *request) (response, error) {
	switch {
	case len(req.Prefill) > 0 && req.Times > 0:
		return s.prefill(req.Prefill, req.Times)
	case len(req.Prompts) == 0 || req.Steps < 1:
		return response{}, errors.New("request: give prompts and steps, or prefill and times")
	}
	rows := len(req.Prompts)
	if s.groups[rows] == nil {
		if err := s.begin(req.Prompts); err != nil {
			return response{}, err
		}
	}
	seconds := make([]float64, req.Steps)
	for i := range seconds {
		start := time.Now()
		if err := s.step(s.groups[rows]); err != nil {
			return response{}, err
		}
		seconds[i] = time.Since(start).Seconds()
	}
	return response{Seconds: seconds}, nil
}

// begin makes sequences and feeds the prompts, and takes one decode step.
func (s *server) begin(prompts [][]int32) error {
	batch := &engine.Batch{}
	for _, p := range prompts {
		seq, err := s.engine.NewSequence()
		if err != nil {
			return err
		}
		batch.Rows = append(batch.Rows, engine.Row{Seq: seq, Tokens: p, Prompt: true, Sample: true})
	}
	s.groups[len(prompts)], s.next[len(prompts)] = batch, make([][1]int32, len(prompts))
	return errors.Join(s.step(batch), s.step(batch))
}

func (s *server) step(batch *engine.Batch) error {
	if err := s.engine.Step(context.Background(), batch); err != nil {
		return err
	}
	next := s.next[len(batch.Rows)]
	for i := range batch.Rows {
		r := &batch.Rows[i]
		next[i][0] = r.Next
		r.Tokens, r.Prompt = next[i][:], false
	}
	return nil
}

// prefill runs a prompt from an empty sequence, a number of times, and names the
// tokens that may follow it.
func (s *server) prefill(prompt []int32, times int) (response, error) {
	var r response
	for range times {
		seq, err := s.engine.NewSequence()
		if err != nil {
			return response{}, err
		}
		batch := &engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: prompt, Prompt: true, Sample: true}}}
		start := time.Now()
		err = s.engine.Step(context.Background(), batch)
		r.Seconds = append(r.Seconds, time.Since(start).Seconds())
		seq.Close()
		if err != nil {
			return response{}, err
		}
	}
	values := make([]float32, s.engine.Limits().Vocab)
	if err := s.net.Logits(values, 0); err != nil {
		return response{}, err
	}
	ids := make([]int, len(values))
	for i := range ids {
		ids[i] = i
	}
	slices.SortFunc(ids, func(a, b int) int {
		if values[a] != values[b] {
			if values[a] > values[b] {
				return -1
			}
			return 1
		}
		return a - b
	})
	r.IDs = ids[:5]
	for _, id := range r.IDs {
		r.Values = append(r.Values, values[id])
	}
	return r, nil
}
