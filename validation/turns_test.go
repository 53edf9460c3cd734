package validation

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/scheduler"
	"github.com/batchproof/batchproof/testutil"
)

// turnsTaken runs arms that draw some tokens a step, each a letter, and says
// who ran when.
func turnsTaken(whole bool, want int, perStep ...int) string {
	var ran strings.Builder
	turns, claims := takeTurns(len(perStep), whole, time.Now, func() { ran.WriteString("|") })
	done := make(chan struct{})
	for i, n := range perStep {
		go func() {
			defer func() { done <- struct{}{} }()
			defer claims[i].End()
			claims[i].Begin(want)
			for drawn := 0; drawn < want; drawn += n {
				_ = claims[i].Step(drawn)
				ran.WriteByte(byte('A' + i))
			}
		}()
	}
	turns.start()
	for range perStep {
		<-done
	}
	return ran.String()
}

func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name    string
		whole   bool
		want    int
		perStep []int
		ran     string
	}{
		{"one arm", false, 3, []int{1}, "|AAA|"},
		{"like arms alternate", false, 3, []int{1, 1, 1}, "|A|B|C|A|B|C|A|B|C|"},
		{"a step of four tokens waits for four of one", false, 8, []int{1, 4}, "|A|B|AAAA|B|AAA|"},
		{"whoever is first in the block begins", false, 8, []int{4, 1}, "|A|BBBB|A|BBBB|"},
		{"one after another", true, 4, []int{1, 2}, "|AAAA|BB|"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 20 {
				require.Equal(t, c.ran, turnsTaken(c.whole, c.want, c.perStep...))
			}
		})
	}
}

// TestTurnClock: an arm's clock stands still while others, or the machine's
// probes, have their turn.
func TestTurnClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const probe = 7 * time.Second
		turns, claims := takeTurns(2, false, time.Now, func() { time.Sleep(probe) })
		begin := time.Now()
		took := make([]time.Duration, 2)
		done := make(chan struct{})
		for i, step := range []time.Duration{10 * time.Second, time.Minute} {
			go func() {
				claims[i].Begin(5)
				start := claims[i].Now()
				for drawn := range 5 {
					_ = claims[i].Step(drawn)
					time.Sleep(step)
				}
				took[i] = claims[i].Now().Sub(start)
				claims[i].End()
				done <- struct{}{}
			}()
		}
		turns.start()
		<-done
		<-done
		require.Equal(t, []time.Duration{50 * time.Second, 5 * time.Minute}, took)
		require.Equal(t, 350*time.Second+11*probe, time.Since(begin))
	})
}

// TestTurnIsPassedOn: an arm that ends early, or never begins, holds nobody up.
func TestTurnIsPassedOn(t *testing.T) {
	turns, claims := takeTurns(3, false, time.Now, nil)
	claims[1].End() // before the first turn
	turns.start()
	claims[0].End() // holds it, and never began
	claims[0].End()
	claims[2].Begin(1)
	require.NoError(t, claims[2].Step(0))
	claims[2].End()
	var none *Turn
	none.Begin(3)
	require.NoError(t, none.Step(1))
	none.End()
	require.WithinDuration(t, time.Now(), none.Now(), time.Minute)
}

// TestTurnsCancelTheMachine: a machine that is ten times as slow for
// every other 500 seconds spoils ratios of arms that run one after another, and
// hardly touches those of arms that alternate.
func TestTurnsCancelTheMachine(t *testing.T) {
	measure := func(turns string, device bool) *Record {
		c := ThroughputCriterion(4)
		lim := engine.Limits{MaxSequences: 8, MaxContext: 64, MaxStepTokens: 256, Vocab: 1000, KVBlockSize: 8, KVBlocks: 64}
		virtual, _ := testutil.NewVirtual(testutil.Cost{Step: time.Second}, lim)
		virtual.Device = device
		underWay := 0
		virtual.Before = func(*backend.Step) { underWay++ }
		virtual.Sleep = func(d time.Duration) {
			require.Equal(t, 1, underWay, "steps of different arms at one time")
			if time.Now().Unix()/500%2 == 0 {
				d *= 10
			}
			time.Sleep(d)
			underWay--
		}
		share := engine.Limits{MaxSequences: 4, MaxContext: 64, MaxStepTokens: 256, Vocab: 1000, KVBlockSize: 8, KVBlocks: 32}
		at := 0
		arms := Arms(c, &Options{MaxBatchSize: 4}, func(name string, cfg scheduler.Config) Arm {
			meter := NewMeter(virtual, time.Now)
			part := engine.NewPart(meter, share, 4*at, 32*at)
			at++
			return SchedulerArm(name, part, meter, cfg)
		})
		x := &Experiment{
			Criterion: c, Arms: arms, Prompts: NewPrompts(1, "", 8, 1000, nil), PromptLength: 8, MaxTokens: 32, MaxBatchSize: 4,
			Warmups: 1, Runs: 8, Seed: 1, Rules: DefaultRules(c), Turns: turns, Now: time.Now,
		}
		x.Rules.WarmTolerance = 100
		rec, err := x.Run(context.Background())
		require.NoError(t, err)
		require.Empty(t, rec.Problems)
		return rec
	}
	synctest.Test(t, func(t *testing.T) {
		apart, together := spread(measure(TurnsRun, false).Ratios(ArmBatch)), spread(measure(TurnsStep, false).Ratios(ArmBatch))
		t.Logf("one after another %.2f to %.2f, alternating %.2f to %.2f", apart.Min, apart.Max, together.Min, together.Max)
		require.InDelta(t, 4, together.Min, 0.5)
		require.InDelta(t, 4, together.Max, 0.5)
		require.Greater(t, apart.Max/apart.Min, 2.0)
		// Callers who are told while a step is under way wait no longer, and an arm
		// keeps its turn until the step has ended.
		device := spread(measure(TurnsStep, true).Ratios(ArmBatch))
		require.InDelta(t, 4, device.Min, 0.5)
		require.InDelta(t, 4, device.Max, 0.5)
	})
}
