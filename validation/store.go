package validation

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/batchproof/batchproof/validation/stats"
)

// Store is one run's results directory. It is written as the run goes: every
// file is replaced as a whole or appended to by lines, so that whatever ends
// the run leaves what was measured. A write that fails is remembered and never
// ends a run; see Err.
type Store struct {
	Dir  string
	errs []error
}

// NewStore makes the directory for a run that begins now, and proves that it
// can be written before anything is measured.
func NewStore(parent string, now time.Time) (*Store, error) {
	fail := func(err error) (*Store, error) {
		return nil, fmt.Errorf("results directory cannot be written: %w; choose another with -results", err)
	}
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return fail(err)
	}
	name := now.UTC().Format("2006-01-02T15-04-05Z")
	dir := filepath.Join(parent, name)
	for i := 2; ; i++ {
		err := os.Mkdir(dir, 0o777)
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrExist) {
			return fail(err)
		}
		dir = filepath.Join(parent, fmt.Sprintf("%s-%d", name, i)) // two runs in one second
	}
	s := &Store{Dir: dir}
	if err := s.replace("results.json", []byte("{}\n")); err != nil {
		return fail(errors.Join(err, os.Remove(dir)))
	}
	return s, nil
}

// Discard removes the directory of a run that measured nothing.
func (s *Store) Discard() error { return os.RemoveAll(s.Dir) }

// WriteJSON replaces a file by the value, indented if it is for reading.
func (s *Store) WriteJSON(name string, v any, indent bool) {
	var data []byte
	var err error
	if indent {
		data, err = json.MarshalIndent(v, "", "  ")
	} else {
		data, err = json.Marshal(v)
	}
	if err == nil {
		err = s.replace(name, append(data, '\n'))
	}
	s.note(name, err)
}

// WriteFile replaces a file.
func (s *Store) WriteFile(name string, data []byte) { s.note(name, s.replace(name, data)) }

// Log returns a writer that appends to a file. It reports no error to whoever
// writes; see Err.
func (s *Store) Log(name string) *Log { return &Log{store: s, name: name} }

// Log appends to one file of a store.
type Log struct {
	store *Store
	name  string
}

func (l *Log) Write(p []byte) (int, error) {
	l.store.note(l.name, appendTo(filepath.Join(l.store.Dir, l.name), p))
	return len(p), nil
}

// Err joins what could not be written, each file once.
func (s *Store) Err() error { return errors.Join(s.errs...) }

func (s *Store) note(name string, err error) {
	if err == nil {
		return
	}
	for _, e := range s.errs {
		var w *writeError
		if errors.As(e, &w) && w.name == name {
			return
		}
	}
	s.errs = append(s.errs, &writeError{name, err})
}

type writeError struct {
	name string
	err  error
}

func (e *writeError) Error() string { return fmt.Sprintf("%s is incomplete: %v", e.name, e.err) }
func (e *writeError) Unwrap() error { return e.err }

// replace writes beside the file and renames, so that a reader, or a crash,
// finds the old or the new content and nothing between.
func (s *Store) replace(name string, data []byte) error {
	tmp, err := os.CreateTemp(s.Dir, "."+name+"-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(s.Dir, name))
	}
	if err != nil {
		os.Remove(tmp.Name())
	}
	return err
}

func appendTo(path string, p []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(p)
	return errors.Join(err, f.Close())
}

// Load reads a results.json, or that of a folder.
func Load(path string) (*Results, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "results.json")
	}
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var head struct {
		Schema int `json:"schema"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%s is no results.json of this suite: %w", path, err)
	}
	if head.Schema != SchemaVersion {
		return nil, fmt.Errorf("%s has schema %d, this code reads %d", path, head.Schema, SchemaVersion)
	}
	r := new(Results)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, rec := range append(slices.Clone(r.Criteria), r.Control) {
		if rec == nil && i == len(r.Criteria) {
			continue
		}
		if err := rec.check(); err != nil {
			return nil, fmt.Errorf("%s: criterion %d: %w", path, i+1, err)
		}
	}
	r.shareSpeeds()
	return r, nil
}

// readFile reads a file, also one that gzip has compressed.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !strings.HasSuffix(path, ".gz") {
		return io.ReadAll(f)
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, z.Close()
}

// check finds what no session writes, so that no judgement meets it.
func (r *Record) check() error {
	if r == nil {
		return errors.New("the record is empty")
	}
	plans := []stats.Plan{r.Plan, r.ControlPlan}
	if r.Control != nil {
		plans = append(plans, r.Control.Plan, r.Control.ControlPlan)
	}
	for _, p := range plans {
		if p.Max() == 0 {
			continue
		}
		if err := p.Check(); err != nil {
			return err
		}
	}
	if r.Criterion.Concurrent < 1 || r.MaxTokens < 2 {
		return fmt.Errorf("%d concurrent requests of %d tokens are no criterion", r.Criterion.Concurrent, r.MaxTokens)
	}
	var err error
	arms := []string{ArmSerial, ArmBatch}
	r.each(func(where string, b *Block) {
		for i := range b.Arms {
			if !slices.Contains(arms, b.Arms[i].Arm) {
				arms = append(arms, b.Arms[i].Arm)
			}
		}
	})
	r.each(func(where string, b *Block) {
		for _, arm := range arms {
			if b.Run(arm) == nil {
				err = fmt.Errorf("%s lacks the %s arm", where, arm)
			}
		}
		for i := range b.Arms {
			a := &b.Arms[i]
			n := a.Steps.Len()
			if len(a.Steps.BeginNS) != n || len(a.Steps.Rows) != n || len(a.Steps.PromptRows) != n || len(a.Steps.Tokens) != n || len(a.Steps.Drawn) != n {
				err = fmt.Errorf("%s, %s arm: the columns of its steps have different lengths", where, a.Arm)
				return
			}
			if what := a.backwards(); what != "" {
				err = fmt.Errorf("%s, %s arm: %s", where, a.Arm, what)
			}
		}
		for _, rate := range b.Probes {
			if !(rate > 0) || math.IsInf(rate, 0) {
				err = fmt.Errorf("%s: a bandwidth of %v", where, rate)
			}
		}
	})
	return err
}

// backwards says where time runs backwards in a run; "" if nowhere.
func (a *ArmRun) backwards() string {
	if a.ElapsedNS <= 0 {
		return fmt.Sprintf("it took %d ns", a.ElapsedNS)
	}
	end := int64(0)
	for i, begin := range a.Steps.BeginNS {
		if begin < end || a.Steps.DurationNS[i] < 0 {
			return fmt.Sprintf("step %d begins before the one before it has ended", i)
		}
		end = begin + a.Steps.DurationNS[i]
	}
	for i := range a.Requests {
		last := int64(0)
		for _, at := range a.Requests[i].TokenNS {
			if at < last {
				return fmt.Sprintf("request %d: its tokens are out of order", i)
			}
			last = at
		}
	}
	return ""
}
