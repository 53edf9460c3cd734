// Command steps times decode steps of this engine for the comparison with peers:
//
//	steps -checkpoint DIR -threads N
//
// It answers one JSON line to each JSON line that it reads, so that a driver can
// take turns between engines:
//
//	{"prompts": [[ids], ...], "steps": K}  → {"seconds": [K numbers]}
//	{"logits": [ids]}                      → {"ids": [the 5 largest], "values": [theirs]}
//
// The first request for a number of prompts feeds them; later ones go on with
// the same sequences. It does not compare anything: the driver does.
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
	sequences  = 16 // 1 + 2 + 4 + 8, and one for the logits
	blockSize  = 16
	stepTokens = 256
)

func main() {
	checkpoint := flag.String("checkpoint", "", "model, `DIR|random:NAME`")
	threads := flag.Int("threads", runtime.GOMAXPROCS(0), "workers")
	maxContext := flag.Int("context", 512, "positions of one sequence")
	flag.Parse()
	if err := run(*checkpoint, *threads, *maxContext, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(1)
	}
}

// request and response are the lines.
type request struct {
	Prompts [][]int32 `json:"prompts"`
	Steps   int       `json:"steps"`
	Logits  []int32   `json:"logits"`
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

func run(checkpoint string, threads, maxContext int, in io.Reader, out io.Writer) (err error) {
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
	blocks := sequences * ((maxContext + blockSize - 1) / blockSize)
	net, err := model.Load(ck, b, model.Size{
		Sequences: sequences, Context: maxContext, StepTokens: stepTokens, KVBlocks: blocks, KVBlockSize: blockSize,
	})
	if err != nil {
		return err
	}
	s := &server{net: net, groups: make(map[int]*engine.Batch), next: make(map[int][][1]int32)}
	s.engine = engine.NewWith(net, engine.Limits{
		MaxSequences: sequences, MaxContext: maxContext, MaxStepTokens: stepTokens,
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
	if len(req.Logits) > 0 {
		return s.logits(req.Logits)
	}
	if len(req.Prompts) == 0 || req.Steps < 1 {
		return response{}, errors.New("request: give prompts and steps, or logits")
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

// logits runs a prompt, and names the tokens that may follow it.
func (s *server) logits(prompt []int32) (response, error) {
	seq, err := s.engine.NewSequence()
	if err != nil {
		return response{}, err
	}
	defer seq.Close()
	err = s.engine.Step(context.Background(), &engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: prompt, Prompt: true, Sample: true}}})
	if err != nil {
		return response{}, err
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
	r := response{IDs: ids[:5]}
	for _, id := range r.IDs {
		r.Values = append(r.Values, values[id])
	}
	return r, nil
}
