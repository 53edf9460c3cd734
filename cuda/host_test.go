package cuda

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
	"github.com/batchproof/batchproof/scheduler"
)

// BenchmarkHostStep times what the host does for a decode step: on a device that
// computes nothing, all of it.
func BenchmarkHostStep(b *testing.B) {
	for _, width := range []int{1, 8} {
		b.Run(fmt.Sprintf("model=qwen3.5-2b/batch=%d", width), func(b *testing.B) {
			ck, err := model.Open("random:qwen3.5-2b")
			require.NoError(b, err)
			defer ck.Close()
			dev := fake.New()
			dev.Bytes = 80 << 30
			back, err := New(dev)
			require.NoError(b, err)
			defer back.Close()
			const positions = 1024
			eng, err := engine.New(ck, back, engine.Options{MaxSequences: width, MaxContext: 2 * positions, MaxStepTokens: 256})
			require.NoError(b, err)
			defer eng.Close()
			batch := &engine.Batch{}
			next := make([][1]int32, width)
			begin := func() {
				for i := range batch.Rows {
					batch.Rows[i].Seq.Close()
				}
				batch.Rows = batch.Rows[:0]
				for range width {
					seq, err := eng.NewSequence()
					require.NoError(b, err)
					one := &engine.Batch{Rows: []engine.Row{{Seq: seq, Tokens: make([]int32, 256), Prompt: true}}}
					for range positions / 256 {
						require.NoError(b, eng.Step(b.Context(), one))
					}
					batch.Rows = append(batch.Rows, engine.Row{Seq: seq, Sample: true})
				}
			}
			begin()
			for b.Loop() {
				if batch.Rows[0].Seq.Len() == 2*positions {
					b.StopTimer()
					begin()
					b.StartTimer()
				}
				for i := range batch.Rows {
					batch.Rows[i].Tokens = next[i][:]
				}
				if err := eng.Step(b.Context(), batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// gapDevice adds up the time from the end of a step to the start of the next.
type gapDevice struct {
	driver.Device
	ended time.Time // zero: what comes next is the first
	total time.Duration
	gaps  int
}

func (d *gapDevice) begin() {
	if !d.ended.IsZero() {
		d.total += time.Since(d.ended)
		d.gaps++
	}
}

func (d *gapDevice) end(err error) error {
	d.ended = time.Now()
	return err
}

func (d *gapDevice) Run(l *driver.List, seconds *float64) error {
	d.begin()
	return d.end(d.Device.Run(l, seconds))
}

func (d *gapDevice) Launch(g driver.Graph, seconds *float64) error {
	d.begin()
	return d.end(d.Device.Launch(g, seconds))
}

func (d *gapDevice) Start(l *driver.List, g driver.Graph) error {
	d.begin()
	return d.Device.Start(l, g)
}

func (d *gapDevice) Wait() error { return d.end(d.Device.Wait()) }

// waiting is a backend that never calls what the host has to do meanwhile.
type waiting struct {
	backend.Repeater
	step backend.Step
}

func (w *waiting) Repeat(caller any, step *backend.Step, want []int32, params []backend.Sampling) bool {
	w.step = *step
	w.step.Meanwhile = nil
	return w.Repeater.Repeat(caller, &w.step, want, params)
}

// BenchmarkHostGap times how long the device has nothing to do between two steps, as
// the scheduler serves requests that stream their tokens: with callers told while
// the device computes, and before the next step.
func BenchmarkHostGap(b *testing.B) {
	for _, meanwhile := range []bool{false, true} {
		for _, width := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("model=qwen3.5-2b/meanwhile=%t/batch=%d", meanwhile, width), func(b *testing.B) {
				ck, err := model.Open("random:qwen3.5-2b")
				require.NoError(b, err)
				defer ck.Close()
				fakeDevice := fake.New()
				fakeDevice.Bytes = 80 << 30
				dev := &gapDevice{Device: fakeDevice}
				back, err := New(dev)
				require.NoError(b, err)
				defer back.Close()
				var on backend.Backend = back
				if !meanwhile {
					on = &waiting{Repeater: back}
				}
				eng, err := engine.New(ck, on, engine.Options{MaxSequences: width, MaxContext: 512, MaxStepTokens: 256})
				require.NoError(b, err)
				defer eng.Close()
				s, err := scheduler.New(eng, scheduler.Config{})
				require.NoError(b, err)
				defer s.Abort()
				requests := make([]scheduler.Request, 2*width)
				for i := range requests {
					requests[i] = scheduler.Request{Prompt: make([]int32, 32), MaxTokens: 64 + 8*(i%16), IgnoreEOS: true, Stream: true}
				}
				for b.Loop() {
					dev.ended = time.Time{}
					tickets, err := s.SubmitAll(b.Context(), requests)
					require.NoError(b, err)
					for _, ticket := range tickets {
						go func() {
							for range ticket.Tokens() {
							}
						}()
					}
					for _, ticket := range tickets {
						_, err := ticket.Wait()
						require.NoError(b, err)
					}
				}
				b.ReportMetric(float64(dev.total.Nanoseconds())/float64(dev.gaps), "ns/gap")
			})
		}
	}
}
