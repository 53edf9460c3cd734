package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// baselines is the folder of recorded baselines, relative to the module's root.
const baselines = "benchdata/baselines"

// errNoBaseline is not a mistake: there is nothing to compare with yet.
var errNoBaseline = errors.New("no baseline")

// findBaseline returns the newest baseline of the head's machine and model.
func findBaseline(root string, head *set) (string, error) {
	dir, err := baselineDir(head.config)
	if err != nil {
		return "", fmt.Errorf("-baseline auto: %s: %w", head.path, err)
	}
	found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.txt"))
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		others, _ := filepath.Glob(filepath.Join(root, "*", "*"))
		have := "there are none yet"
		if len(others) > 0 {
			for i := range others {
				others[i], _ = filepath.Rel(root, others[i])
			}
			have = "there are some of " + strings.Join(others, ", ") + ", whose absolute times say nothing here"
		}
		return "", fmt.Errorf("%w of this machine and model (%s); %s; record one with: make baseline FILE=%s", errNoBaseline, dir, have, head.path)
	}
	slices.Sort(found) // names begin with the time
	return found[len(found)-1], nil
}

// record keeps a benchmark file as a baseline. Its name says when and of which
// commit; what the file did not say and environment.json did is put in front.
func record(root string, s *set, modified time.Time) (string, error) {
	dir, err := baselineDir(s.config)
	if err != nil {
		return "", fmt.Errorf("%s: %w", s.path, err)
	}
	commit := s.config["commit"]
	switch {
	case commit == "":
		return "", fmt.Errorf("%s does not say which commit it is of: no line \"commit:\"; record it again with make bench, in a git checkout", s.path)
	case strings.HasSuffix(commit, "+changes"):
		return "", fmt.Errorf("%s was measured on changes that no commit holds (%s); commit them and record it again", s.path, commit)
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		return "", err
	}
	var head strings.Builder
	for _, key := range append([]string{"commit"}, identity...) {
		if line := key + ": "; s.config[key] != "" && !strings.HasPrefix(string(data), line) && !strings.Contains(string(data), "\n"+line) {
			fmt.Fprintf(&head, "%s%s\n", line, s.config[key])
		}
	}
	to := filepath.Join(root, filepath.FromSlash(dir), fmt.Sprintf("%s-%.12s.txt", modified.UTC().Format("2006-01-02T15-04-05Z"), commit))
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return "", err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("%s is recorded already, as %s", s.path, to)
	}
	if err != nil {
		return "", err
	}
	_, err = f.Write(append([]byte(head.String()), data...))
	return to, errors.Join(err, f.Close())
}
