package validation

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPeers: two processes never hold the machine at once, both go on when the
// other has ended, and a clock stands still while the other runs.
func TestPeers(t *testing.T) {
	const step, steps = 2 * peerTurn, 5
	toA, fromB, err := os.Pipe()
	require.NoError(t, err)
	toB, fromA, err := os.Pipe()
	require.NoError(t, err)
	a := &Turn{peer: &peer{given: toA, pass: fromA, since: time.Now().Add(time.Hour)}} // a long turn, however slow the test
	b := &Turn{peer: &peer{given: toB, pass: fromB}}

	var machine sync.Mutex
	var order []string
	var wg sync.WaitGroup
	run := func(name string, turn *Turn, n int, out *os.File) {
		for range n {
			if err := turn.Step(0); err != nil {
				t.Error(err)
				return
			}
			if !machine.TryLock() {
				t.Error("both run at once")
				return
			}
			order = append(order, name)
			machine.Unlock()
			turn.peer.since = time.Now().Add(-step) // as if a step had taken so long
		}
		out.Close() // the process ends
	}
	wg.Go(func() { run("a", a, steps, fromA) })
	wg.Go(func() {
		if err := b.peer.wait(); err != nil {
			t.Error(err)
			return
		}
		b.peer.since = time.Now().Add(time.Hour)
		run("b", b, 2*steps, fromB)
	})
	wg.Wait()
	require.Equal(t, []string{"a", "b", "a", "b", "a", "b", "a", "b", "a", "b", "b", "b", "b", "b", "b"}, order)
	require.True(t, b.peer.closed)
	require.WithinDuration(t, time.Now().Add(-time.Duration(a.waited.Load())), a.Now(), time.Second)
	require.Positive(t, b.waited.Load())

	// The pipe itself broken is an error, and no endless wait.
	require.NoError(t, toB.Close())
	require.ErrorContains(t, b.peer.wait(), "waiting for a turn on the machine")
}

// TestPeersCompareTheirSteps: a machine whose speed changes by a factor of two
// again and again leaves the ratio of two processes that alternate.
func TestPeersCompareTheirSteps(t *testing.T) {
	const slower = 1.05
	a, b := new(peer), new(peer)
	give := func(to *peer, from *peer) { // as over the pipe
		var pipe bytes.Buffer
		require.NoError(t, binary.Write(&pipe, binary.LittleEndian, from.mine))
		require.Equal(t, HandoverBytes, pipe.Len())
		to.given = &pipe
		require.NoError(t, to.wait())
	}
	rng := rand.New(rand.NewPCG(1, 2))
	speed := 1.0
	for step := range 200 {
		if rng.IntN(10) == 0 {
			speed = 3 - speed
		}
		noise := func() float64 { return speed * math.Exp(0.02*rng.NormFloat64()) }
		a.time("steps", 0.010*noise())
		give(b, a)
		b.time("steps", 0.010*slower*noise())
		if step%50 == 49 {
			b.time("other steps", 7) // it is ahead
		}
		give(a, b)
	}
	ratio := b.relative() / a.relative()
	require.InDelta(t, slower, ratio, 0.006)
	require.True(t, math.IsNaN(a.relative()), "told once")

	// A turn in which nothing was timed is set beside nothing.
	a.mine = handover{}
	give(a, b)
	give(a, b)
	require.Empty(t, a.pairs)
}

// TestPeersMeet: whoever comes to a benchmark first waits, passing its turns on,
// and nobody waits for one that has ended.
func TestPeersMeet(t *testing.T) {
	toA, fromB, err := os.Pipe()
	require.NoError(t, err)
	toB, fromA, err := os.Pipe()
	require.NoError(t, err)
	a := &peer{given: toA, pass: fromA}
	b := &peer{given: toB, pass: fromB}
	var at atomic.Int32 // where b is
	var wg sync.WaitGroup
	wg.Go(func() {
		defer fromB.Close()
		if b.wait() != nil {
			t.Error("no turn")
		}
		for i := range 5 { // still at another benchmark
			at.Store(int32(i))
			b.time("one", 1)
			if b.handOver() != nil {
				t.Error("no turn")
			}
		}
		at.Store(5)
		if b.meet("two") != nil {
			t.Error("no turn")
		}
	})
	require.NoError(t, a.meet("two"))
	require.EqualValues(t, 5, at.Load())
	require.NoError(t, a.handOver())
	require.NoError(t, a.meet("three"), "it has ended")
	wg.Wait()
	require.Empty(t, a.pairs)
	require.Empty(t, b.pairs)
}

func TestPeerFromEnvironment(t *testing.T) {
	for value, want := range map[string]string{"": "", "yes": "BATCHPROOF_TURNS=yes: want 1"} {
		t.Setenv(TurnsVariable, value)
		turn, err := peerFromEnvironment()
		require.Nil(t, turn)
		if want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, want)
		}
	}
}
