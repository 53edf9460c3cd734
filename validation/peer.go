package validation

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
)

// TurnsVariable is the environment variable that has two processes, which run the
// same benchmarks, alternate as the arms of a block do: each holds the machine for
// some steps, hands it to the other, and stops its clock until it has it back. It
// is set to 1; then the process has a pipe at file 3 on which it is given its
// turns, and one at file 4 on which it passes them on, a [handover] each. A
// process holds the machine when it begins: the second is to be started when the
// first has passed on its first turn, and is not given that one.
const TurnsVariable = "BATCHPROOF_TURNS"

// peerTurn is how long a process holds the machine at least, up to the end of a
// step: long against a handover, short against what a machine does to itself.
const peerTurn = 5 * time.Millisecond

// handover passes on a turn, with what its last step took: so each process can
// set its steps beside those of the other that ran just before and just after.
type handover struct {
	Benchmark uint64  // hash of the name; 0: none
	Seconds   float64 // of the last step; 0: nothing was timed
}

// HandoverBytes is the length of a handover on a pipe.
var HandoverBytes = binary.Size(handover{})

// peer is the other process.
type peer struct {
	given  io.Reader // a handover for each turn; its end when the other has ended
	pass   io.Writer
	since  time.Time // of this turn
	closed bool      // the other has ended

	mine, before handover  // the last step of this turn, and of the other's turn before it
	pairs        []float64 // logarithms of own step ÷ those of the other around it
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
	if time.Since(p.since) < peerTurn {
		return nil
	}
	return p.handOver()
}

func (p *peer) handOver() error {
	if p.closed {
		return nil
	}
	if err := binary.Write(p.pass, binary.LittleEndian, p.mine); err != nil {
		p.closed = true // no one is there to take it
		return nil
	}
	err := p.wait()
	p.since = time.Now()
	return err
}

// meet waits until the other process is at the same benchmark, or has ended.
func (p *peer) meet(benchmark string) error {
	here := handover{Benchmark: hash(benchmark)}
	for !p.closed {
		p.mine = here
		if err := p.handOver(); err != nil || p.before.Benchmark == here.Benchmark {
			return err
		}
	}
	return nil
}

// wait returns with the turn.
func (p *peer) wait() error {
	var after handover
	switch err := binary.Read(p.given, binary.LittleEndian, &after); {
	case errors.Is(err, io.EOF):
		p.closed = true
	case err != nil:
		return fmt.Errorf("waiting for a turn on the machine: %w", err)
	}
	same := p.before.Benchmark == p.mine.Benchmark && after.Benchmark == p.mine.Benchmark
	if same && p.mine.Seconds > 0 && p.before.Seconds > 0 && after.Seconds > 0 {
		p.pairs = append(p.pairs, math.Log(p.mine.Seconds)-(math.Log(p.before.Seconds)+math.Log(after.Seconds))/2)
	}
	p.mine, p.before = handover{Benchmark: p.mine.Benchmark}, after
	return nil
}

// time notes what a step of a benchmark took.
func (p *peer) time(benchmark string, seconds float64) {
	p.mine = handover{hash(benchmark), seconds}
}

func hash(benchmark string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(benchmark))
	return max(h.Sum64(), 1)
}

// relative is the median of what the steps since the last call took, over the
// steps of the other process around them; NaN if there were none. It is the
// square root of that ratio: set against the same of the other process, it gives
// the ratio itself. A machine that changes its speed for longer than three steps
// leaves no trace in it.
func (p *peer) relative() float64 {
	median := stats.Median(p.pairs)
	p.pairs = p.pairs[:0]
	return math.Exp(median / 2)
}
