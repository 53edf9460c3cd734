package validation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/batchproof/batchproof/cuda"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/cpu"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/engine/ref"
	"github.com/batchproof/batchproof/scheduler"
)

// Stand is a model loaded and ready to be measured: one set of weights, buffers
// and threads.
type Stand struct {
	Checkpoint *model.Checkpoint
	Backend    backend.Backend
	Engine     *engine.Engine
	Meter      *Meter

	net  engine.Runner
	lone []part // for the arms that run one row, so that they can alternate with the others
}

// part is an engine with room of its own in the one model.
type part struct {
	engine *engine.Engine
	meter  *Meter
}

// Shape is the room that a measurement needs.
type Shape struct {
	Rows       int // sequences alive at a time
	Lone       int // further arms of one sequence each
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
	// One more KV block a row than is filled: the watermark at admission must
	// never decide what is measured.
	blocks := (shape.Context+shape.BlockSize-1)/shape.BlockSize + 1
	rows := shape.Rows + shape.Lone
	if opt.Backend == "cpu" {
		if err := checkMemory(s.Checkpoint, rows, rows*blocks, shape.BlockSize, availableMemory()); err != nil {
			return s, err
		}
	}
	s.net, err = model.Load(s.Checkpoint, s.Backend, model.Size{
		Sequences: rows, Context: shape.Context, StepTokens: shape.StepTokens,
		KVBlocks: rows * blocks, KVBlockSize: shape.BlockSize,
	})
	if err != nil {
		return s, err
	}
	share := func(first, rows int) part {
		meter := NewMeter(s.net, time.Now)
		return part{meter: meter, engine: engine.NewPart(meter, engine.Limits{
			MaxSequences: rows, MaxContext: shape.Context, MaxStepTokens: shape.StepTokens,
			Vocab: s.Checkpoint.Config.Vocab, KVBlockSize: shape.BlockSize, KVBlocks: rows * blocks,
		}, first, first*blocks)}
	}
	main := share(0, shape.Rows)
	s.Engine, s.Meter = main.engine, main.meter
	for i := range shape.Lone {
		s.lone = append(s.lone, share(shape.Rows+i, 1))
	}
	return s, nil
}

// openBackend asks for exactly the backend that was named: a missing device is
// an error, never another backend.
func openBackend(opt *Options) (backend.Backend, error) {
	switch opt.Backend {
	case "cpu":
		precision, err := opt.precision()
		if err != nil {
			return nil, err
		}
		return cpu.New(cpu.Options{Threads: opt.Threads, Precision: precision})
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
	if s.net != nil {
		errs = append(errs, s.net.Close())
	}
	if s.Backend != nil {
		errs = append(errs, s.Backend.Close())
	}
	if s.Checkpoint != nil {
		errs = append(errs, s.Checkpoint.Close())
	}
	return errors.Join(errs...)
}

// Arm makes an arm that serves requests through the scheduler. The arms of lone
// rows have a part of the model to themselves, where the shape has one for them.
func (s *Stand) Arm(name string, cfg scheduler.Config) Arm {
	at := part{s.Engine, s.Meter}
	if i := slices.Index([]string{ArmSerial, ArmControl}, name); i >= 0 && i < len(s.lone) {
		at = s.lone[i]
	}
	return SchedulerArm(name, at.engine, at.meter, cfg)
}

// SchedulerArm serves requests through a scheduler of its own for each run,
// made before the clock starts and closed after it has stopped. Two arms can
// alternate if their engines and meters are not the same.
func SchedulerArm(name string, eng *engine.Engine, meter *Meter, cfg scheduler.Config) Arm {
	return Arm{Name: name, Run: func(ctx context.Context, requests []scheduler.Request, turn *Turn) (o ArmOutcome, err error) {
		want := 0
		for i := range requests {
			want += requests[i].MaxTokens
		}
		turn.Begin(want)
		meter.begin(turn)
		cfg.QueueCapacity, cfg.Now = len(requests), turn.Now
		sched, err := scheduler.New(eng, cfg)
		if err != nil {
			return o, err
		}
		o.Requests = make([]RequestOutcome, len(requests))
		o.Begin = turn.Now()
		tickets, err := sched.SubmitAll(ctx, requests)
		if err != nil {
			sched.Abort()
			return o, err
		}
		for i, t := range tickets {
			o.Requests[i].Result, o.Requests[i].Err = t.Wait()
		}
		o.End = turn.Now()
		err = sched.Close(context.WithoutCancel(ctx))
		o.PlanTime, o.Steps = sched.Metrics().PlanTime, meter.Take()
		return o, err
	}}
}

// loneArms is the number of arms of a criterion that run one row: serial and control.
const loneArms = 2

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
