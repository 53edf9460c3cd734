package validation

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/batchproof/batchproof/cuda"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
	"github.com/batchproof/batchproof/scheduler"
)

// Stand is a model loaded and ready to be measured. Every arm runs on its one
// engine: same weights, same buffers, same threads.
type Stand struct {
	Checkpoint *model.Checkpoint
	Backend    backend.Backend
	Engine     *engine.Engine
	Meter      *Meter
}

// Shape is the room that a measurement needs.
type Shape struct {
	Rows       int // sequences alive at a time
	Context    int // positions of one sequence
	StepTokens int
	BlockSize  int // positions in a KV block
}

// Open loads a checkpoint onto the backend that the options ask for.
func Open(opt *Options, checkpoint string, shape Shape) (_ *Stand, err error) {
	s := new(Stand)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	ref := checkpoint
	if !isRandom(ref) {
		ref = FromRoot(ref)
	}
	if s.Checkpoint, err = model.Open(ref, model.WithSeed(opt.Seed)); err != nil {
		return s, err
	}
	if have := s.Checkpoint.Config.MaxPositions; shape.Context > have {
		return s, fmt.Errorf("%s: prompt and generated tokens take %d positions, the model was made for %d; lower -prompt-length or -max-tokens",
			s.Checkpoint.Name, shape.Context, have)
	}
	if s.Backend, err = openBackend(opt); err != nil {
		return s, err
	}
	blocks := shape.Rows * ((shape.Context + shape.BlockSize - 1) / shape.BlockSize)
	// One more KV block a row than is filled: the watermark at admission must
	// never decide what is measured.
	blocks += shape.Rows
	if opt.Backend == "cpu" {
		if err := checkMemory(s.Checkpoint, shape.Rows, blocks, shape.BlockSize, availableMemory()); err != nil {
			return s, err
		}
	}
	net, err := model.Load(s.Checkpoint, s.Backend, model.Size{
		Sequences: shape.Rows, Context: shape.Context, StepTokens: shape.StepTokens,
		KVBlocks: blocks, KVBlockSize: shape.BlockSize,
	})
	if err != nil {
		return s, err
	}
	s.Meter = NewMeter(net, time.Now)
	s.Engine = engine.NewWith(s.Meter, engine.Limits{
		MaxSequences: shape.Rows, MaxContext: shape.Context, MaxStepTokens: shape.StepTokens,
		Vocab: s.Checkpoint.Config.Vocab, KVBlockSize: shape.BlockSize, KVBlocks: blocks,
	})
	return s, nil
}

// openBackend asks for exactly the backend that was named: a missing device is
// an error, never another backend.
func openBackend(opt *Options) (backend.Backend, error) {
	switch opt.Backend {
	case "cpu":
		return cpu.New(cpu.Options{Threads: opt.Threads})
	case "cuda":
		b, err := cuda.Open(cuda.Options{})
		if err != nil {
			return nil, fmt.Errorf("-backend cuda: %w", err)
		}
		return b, nil
	case "ref": // for tests: the flags do not offer it
		return ref.New(), nil
	}
	return nil, fmt.Errorf("-backend %q: want cpu or cuda", opt.Backend)
}

// Close frees everything, the last opened first.
func (s *Stand) Close() error {
	var errs []error
	if s.Engine != nil {
		errs = append(errs, s.Engine.Close())
	}
	if s.Backend != nil {
		errs = append(errs, s.Backend.Close())
	}
	if s.Checkpoint != nil {
		errs = append(errs, s.Checkpoint.Close())
	}
	return errors.Join(errs...)
}

// Arm makes an arm that serves requests through the scheduler, after a garbage
// collection: no arm pays for the other's garbage.
func (s *Stand) Arm(name string, cfg scheduler.Config) Arm {
	arm := SchedulerArm(name, s.Engine, s.Meter, cfg)
	run := arm.Run
	arm.Run = func(ctx context.Context, requests []scheduler.Request) (ArmOutcome, error) {
		runtime.GC()
		return run(ctx, requests)
	}
	return arm
}

// SchedulerArm serves requests through a scheduler of its own for each run,
// made before the clock starts and closed after it has stopped, so that two
// arms can take turns on one engine.
func SchedulerArm(name string, eng *engine.Engine, meter *Meter, cfg scheduler.Config) Arm {
	return Arm{Name: name, Run: func(ctx context.Context, requests []scheduler.Request) (o ArmOutcome, err error) {
		cfg.QueueCapacity = len(requests)
		sched, err := scheduler.New(eng, cfg)
		if err != nil {
			return o, err
		}
		meter.Take()
		o.Requests = make([]RequestOutcome, len(requests))
		o.Begin = time.Now()
		tickets, err := sched.SubmitAll(ctx, requests)
		if err != nil {
			sched.Abort()
			return o, err
		}
		for i, t := range tickets {
			o.Requests[i].Result, o.Requests[i].Err = t.Wait()
		}
		o.End = time.Now()
		err = sched.Close(context.WithoutCancel(ctx))
		o.PlanTime, o.Steps = sched.Metrics().PlanTime, meter.Take()
		return o, err
	}}
}

// Arms are the arms of a criterion: serial and batch, and a control where a
// lone request makes it cheap; the other criteria of a session rest on it.
func Arms(c Criterion, opt *Options, arm func(name string, cfg scheduler.Config) Arm) []Arm {
	serial := scheduler.Config{Policy: scheduler.Serial, TokenBudget: opt.Budget()}
	batch := scheduler.Config{Policy: scheduler.Continuous, MaxBatchSize: opt.MaxBatchSize, TokenBudget: opt.Budget()}
	arms := []Arm{arm(ArmSerial, serial), arm(ArmBatch, batch)}
	if c.Lower() {
		arms = append(arms, arm(ArmControl, serial))
	}
	return arms
}

// Info is what results say about the model.
func (s *Stand) Info() ModelInfo {
	return ModelInfo{Name: s.Checkpoint.Name, DType: s.Checkpoint.DType().String(), Config: s.Checkpoint.Config}
}
