package validation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Two processes that measure the same benchmarks can alternate, as the arms of a
// block do: each holds the machine for some steps, hands it to the other, and
// stops its clock until it has it back. The environment variable
// [TurnsVariable] asks for it; then the process has a pipe at file 3 on which
// it is given its turns, and one at file 4 on which it passes them on. Whoever
// starts the processes makes the pipes, and says who is first.
const (
	TurnsVariable = "BATCHPROOF_TURNS"
	TurnsFirst    = "first"  // the process has the first turn
	TurnsSecond   = "second" // the process waits for the other
)

// peerTurn is how long a process holds the machine, up to the end of a step: long
// against a handover, short against what a machine does to itself.
const peerTurn = 20 * time.Millisecond

// peer is the other process.
type peer struct {
	given  io.Reader // a byte for each turn; its end when the other has ended
	pass   io.Writer
	since  time.Time // of this turn
	closed bool      // the other has ended
}

// peerFromEnvironment waits for this process's first turn, if it has a peer.
func peerFromEnvironment() (*Turn, error) {
	switch role := os.Getenv(TurnsVariable); role {
	case "":
		return nil, nil
	case TurnsFirst, TurnsSecond:
		p := &peer{given: os.NewFile(3, "turns given"), pass: os.NewFile(4, "turns passed on")}
		if role == TurnsSecond {
			if err := p.wait(); err != nil {
				return nil, err
			}
		}
		p.since = time.Now()
		return &Turn{peer: p}, nil
	default:
		return nil, fmt.Errorf("%s=%s: want %s or %s", TurnsVariable, role, TurnsFirst, TurnsSecond)
	}
}

// alternate hands the machine over if it is time, and waits until it is back.
func (p *peer) alternate() error {
	if p.closed || time.Since(p.since) < peerTurn {
		return nil
	}
	if _, err := p.pass.Write([]byte{1}); err != nil {
		p.closed = true // no one is there to take it
		return nil
	}
	err := p.wait()
	p.since = time.Now()
	return err
}

func (p *peer) wait() error {
	switch _, err := io.ReadFull(p.given, make([]byte, 1)); {
	case errors.Is(err, io.EOF):
		p.closed = true
	case err != nil:
		return fmt.Errorf("waiting for a turn on the machine: %w", err)
	}
	return nil
}
