package validation

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// TurnsVariable is the environment variable that has two processes, which run the
// same benchmarks, alternate as the arms of a block do: each holds the machine for
// some steps, hands it to the other, and stops its clock until it has it back. It
// is set to 1; then the process has a pipe at file 3 on which it is given its
// turns, and one at file 4 on which it passes them on, a byte each. A process
// holds the machine when it begins: the second is to be started when the first
// has passed on its first turn.
const TurnsVariable = "BATCHPROOF_TURNS"

// peerTurn is how long a process holds the machine at least, up to the end of a
// step: long against a handover, short against what a machine does to itself.
const peerTurn = 5 * time.Millisecond

// peer is the other process.
type peer struct {
	given  io.Reader // a byte for each turn; its end when the other has ended
	pass   io.Writer
	since  time.Time // of this turn
	closed bool      // the other has ended
}

// peerFromEnvironment is the turn of this process; nil if it has no peer.
func peerFromEnvironment() (*Turn, error) {
	switch v := os.Getenv(TurnsVariable); v {
	case "":
		return nil, nil
	case "1":
		return &Turn{peer: &peer{given: os.NewFile(3, "turns given"), pass: os.NewFile(4, "turns passed on"), since: time.Now()}}, nil
	default:
		return nil, fmt.Errorf("%s=%s: want 1", TurnsVariable, v)
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
