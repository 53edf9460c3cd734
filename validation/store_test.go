package validation

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var storeTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestStoreNames(t *testing.T) {
	parent := t.TempDir()
	for _, want := range []string{"2026-01-02T03-04-05Z", "2026-01-02T03-04-05Z-2", "2026-01-02T03-04-05Z-3"} {
		s, err := NewStore(parent, storeTime)
		require.NoError(t, err)
		require.Equal(t, filepath.Join(parent, want), s.Dir)
	}
}

// TestStoreFailsLater: a directory that vanishes (a full disk fails alike) is
// reported once a file, and stops nobody.
func TestStoreFailsLater(t *testing.T) {
	s, err := NewStore(t.TempDir(), storeTime)
	require.NoError(t, err)
	log := s.Log("single_latency.txt")
	_, err = log.Write([]byte("one\n"))
	require.NoError(t, err)
	require.NoError(t, s.Err())
	require.NoError(t, os.RemoveAll(s.Dir))
	for range 3 {
		s.WriteJSON("results.json", 1, false)
		n, err := log.Write([]byte("two\n"))
		require.NoError(t, err)
		require.Equal(t, 4, n)
	}
	require.ErrorContains(t, s.Err(), "results.json is incomplete: ")
	require.ErrorContains(t, s.Err(), "single_latency.txt is incomplete: ")
	require.Equal(t, 1, strings.Count(s.Err().Error(), "results.json is incomplete"))
}

// TestStoreReplaces: a value that cannot be written leaves the file as it was.
func TestStoreReplaces(t *testing.T) {
	s, err := NewStore(t.TempDir(), storeTime)
	require.NoError(t, err)
	s.WriteJSON("results.json", map[string]int{"schema": 1}, false)
	s.WriteJSON("results.json", map[string]any{"schema": make(chan int)}, false)
	require.ErrorContains(t, s.Err(), "results.json is incomplete: json: unsupported type")
	require.Equal(t, "{\"schema\":1}\n", read(t, s.Dir, "results.json"))
}

// TestRecordRefuses: a record in which time runs backwards, or a rate is none, is
// no record of a session.
func TestRecordRefuses(t *testing.T) {
	for want, spoil := range map[string]func(*Record){
		"block 1, serial arm: it took -1 ns":                                     func(r *Record) { r.Blocks[0].Run(ArmSerial).ElapsedNS = -1 },
		"block 2, batch arm: step 3 begins before the one before it has ended":   func(r *Record) { r.Blocks[1].Run(ArmBatch).Steps.BeginNS[3] = 0 },
		"warm-up 1, batch arm: step 1 begins before the one before it has ended": func(r *Record) { r.WarmupBlocks[0].Run(ArmBatch).Steps.DurationNS[1] = -1 },
		"block 1, serial arm: request 1: its tokens are out of order":            func(r *Record) { r.Blocks[0].Run(ArmSerial).Requests[1].TokenNS[4] = 1 },
		"block 1, serial arm: the columns of its steps have different lengths":   func(r *Record) { l := &r.Blocks[0].Run(ArmSerial).Steps; l.Rows = l.Rows[1:] },
		"block 2: a bandwidth of 0":                                              func(r *Record) { r.Blocks[1].Probes = []float64{1, 0} },
	} {
		x := newFakeExperiment(t, ThroughputCriterion(2), 2)
		rec, err := x.Run(t.Context())
		require.NoError(t, err)
		require.NoError(t, rec.check())
		spoil(rec)
		require.EqualError(t, rec.check(), want)
	}
}

// TestLoadCompressed: a record may be kept compressed.
func TestLoadCompressed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json.gz")
	var file bytes.Buffer
	z := gzip.NewWriter(&file)
	fmt.Fprintf(z, `{"schema":%d}`, SchemaVersion)
	require.NoError(t, z.Close())
	require.NoError(t, os.WriteFile(path, file.Bytes(), 0o600))
	r, err := Load(path)
	require.NoError(t, err)
	require.Equal(t, SchemaVersion, r.Schema)
	require.NoError(t, os.WriteFile(path, file.Bytes()[:20], 0o600))
	_, err = Load(path)
	require.ErrorContains(t, err, "results.json.gz: unexpected EOF")
}

func TestLoadRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	for text, want := range map[string]string{
		"{":                         "unexpected end of JSON input",
		"{}":                        "has schema 0, this code reads 3",
		`{"schema":99}`:             "has schema 99, this code reads 3",
		`{"schema":3,"criteria":3}`: "cannot unmarshal",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := Load(path)
		require.ErrorContains(t, err, want)
	}
	_, err := Load(path + "x")
	require.ErrorIs(t, err, os.ErrNotExist)
}
