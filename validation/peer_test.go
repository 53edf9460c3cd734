package validation

import (
	"os"
	"sync"
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
	a := &Turn{peer: &peer{given: toA, pass: fromA, since: time.Now()}}
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
			turn.peer.since = turn.peer.since.Add(-step) // as if a step had taken so long
		}
		out.Close() // the process ends
	}
	wg.Go(func() { run("a", a, steps, fromA) })
	wg.Go(func() {
		if err := b.peer.wait(); err != nil {
			t.Error(err)
			return
		}
		b.peer.since = time.Now()
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
