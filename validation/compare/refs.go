package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/batchproof/batchproof/validation"
)

// builds are the validation suites of two refs, built and ready to run. Each
// ref is checked out into a worktree of its own. Both paths have one length and
// the binaries hold no paths, so that two equal trees give two equal programs
// that also run alike.
type builds struct {
	root   string // of the repository
	tmp    string
	labels [2]string
	added  [2]bool // worktrees to remove
	flags  []string
}

// buildRefs checks out and builds. Close must be called, error or not.
func buildRefs(ctx context.Context, root string, refs [2]string, build buildFunc) (b *builds, err error) {
	b = &builds{root: root}
	if b.tmp, err = os.MkdirTemp("", "batchproof-compare-"); err != nil {
		return b, fmt.Errorf("no room for worktrees: %w; set TMPDIR", err)
	}
	var hashes [2]string
	for side, ref := range refs { // both first: a typo should not cost a build
		if hashes[side], err = resolve(ctx, root, ref); err != nil {
			return b, err
		}
		b.labels[side] = fmt.Sprintf("%s (%s, %.12s)", sideNames[side], ref, hashes[side])
	}
	for side := range refs {
		dir := b.tree(side)
		b.added[side] = true
		if _, err := git(ctx, root, "worktree", "add", "--quiet", "--detach", dir, hashes[side]); err != nil {
			return b, fmt.Errorf("%s cannot be checked out: %w", b.labels[side], err)
		}
		out, err := build(ctx, dir, b.binary(side))
		if err == nil {
			_, err = os.Stat(b.binary(side)) // a package without tests builds nothing
		}
		if err != nil {
			if ctx.Err() != nil {
				return b, errors.New("interrupted while building: nothing was measured")
			}
			return b, fmt.Errorf("%s does not build: %w; choose a ref that does\n%s", b.labels[side], err, tail(out))
		}
	}
	return b, nil
}

// buildFunc makes the suite of the tree at dir into a program, and returns what
// it had to say.
type buildFunc func(ctx context.Context, dir, program string) (output []byte, err error)

// goBuild is by go test.
func goBuild(tags string) buildFunc {
	return func(ctx context.Context, dir, program string) ([]byte, error) {
		args := []string{"test", "-c", "-trimpath", "-buildvcs=false", "-o", program}
		if tags != "" {
			args = append(args, "-tags", tags)
		}
		cmd := exec.CommandContext(ctx, "go", append(args, "./validation")...)
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
}

var sideNames = [2]string{"base", "head"}

// isRef says whether an argument is a ref rather than a file.
func isRef(arg string) bool {
	_, err := os.Stat(arg)
	return err != nil && !strings.HasSuffix(arg, ".txt")
}

func resolve(ctx context.Context, root, ref string) (string, error) {
	hash, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		if _, lost := git(ctx, root, "rev-parse", "--git-dir"); lost != nil {
			return "", fmt.Errorf("%q is no file, and %s is no git repository to look for a ref in: %w", ref, root, lost)
		}
		return "", fmt.Errorf("%q is neither a file nor a ref of this repository; if it is of a remote, run git fetch first", ref)
	}
	return hash, nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", root}, args...)...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", args[0], err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

func (b *builds) tree(side int) string   { return filepath.Join(b.tmp, sideNames[side]) }
func (b *builds) binary(side int) string { return filepath.Join(b.tmp, sideNames[side]+".test") }

// same says whether both refs gave the same program, bit for bit.
func (b *builds) same() (bool, error) {
	var sums [2][sha256.Size]byte
	for side := range sums {
		f, err := os.Open(b.binary(side))
		if err != nil {
			return false, err
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return false, err
		}
		h.Sum(sums[side][:0])
	}
	return sums[0] == sums[1], nil
}

// run is one run of the selected benchmarks on both sides, each in a process of
// its own, so that every run draws anew where its memory lies. The processes hand
// the machine to each other over pipes, see validation.TurnsVariable: the second
// is started when the first hands over for the first time, and when one has ended
// the other goes on alone. So a suite that is too old to take turns is measured
// in one piece, and never beside the other.
func (b *builds) run(ctx context.Context, first int) (out [2][]byte, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var given, passed [2]*os.File // by side: where it reads its turns, and where those that it passes on are written
	for side := range given {
		if given[1-side], passed[side], err = os.Pipe(); err != nil {
			return out, fmt.Errorf("no pipe between base and head: %w", err)
		}
		defer given[1-side].Close()
		defer passed[side].Close()
	}
	var processes [2]*process
	start := func(side int) error {
		processes[side], err = b.start(ctx, side, given[side], passed[side])
		return err
	}
	if err := start(first); err != nil {
		return out, err
	}
	// What is left to the processes is closed here, so that each sees the other end.
	passed[first].Close()
	given[first].Close()
	second := 1 - first
	if _, err := io.ReadFull(given[second], make([]byte, validation.HandoverBytes)); err != nil && !errors.Is(err, io.EOF) {
		return out, fmt.Errorf("waiting for the first turn of %s: %w", b.labels[second], err)
	}
	if err := start(second); err != nil {
		return out, err
	}
	given[second].Close()
	passed[second].Close()
	for _, side := range [2]int{first, second} {
		if out[side], err = b.wait(ctx, processes[side]); err != nil {
			return out, err
		}
	}
	return out, nil
}

// process is a running suite.
type process struct {
	side           int
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
}

func (b *builds) start(ctx context.Context, side int, given, passed *os.File) (*process, error) {
	p := &process{side: side, cmd: exec.CommandContext(ctx, b.binary(side), b.flags...)}
	p.cmd.Dir = filepath.Join(b.tree(side), "validation")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	p.cmd.Env = append(os.Environ(), validation.TurnsVariable+"=1")
	p.cmd.ExtraFiles = []*os.File{given, passed}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", b.labels[side], err)
	}
	return p, nil
}

// wait returns what a process printed.
func (b *builds) wait(ctx context.Context, p *process) ([]byte, error) {
	if err := p.cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		hint := "run it by itself: git checkout, then go test ./validation " + strings.ReplaceAll(strings.Join(b.flags, " "), "-test.", "-")
		if bytes.Contains(p.stderr.Bytes(), []byte("flag provided but not defined")) {
			hint = "the ref is older than that flag: choose another ref, or set the flags with -flags"
		}
		return nil, fmt.Errorf("%s: the benchmarks fail: %w; %s\n%s", b.labels[p.side], err, hint, tail(append(p.stdout.Bytes(), p.stderr.Bytes()...)))
	}
	return p.stdout.Bytes(), nil
}

// Close removes everything, also after an interrupt, and also where a second one
// ends git.
func (b *builds) Close() error {
	prune := false
	for side, added := range b.added {
		if added {
			_, err := git(context.Background(), b.root, "worktree", "remove", "--force", b.tree(side))
			prune = prune || err != nil
		}
	}
	err := os.RemoveAll(b.tmp)
	if prune { // forgets worktrees whose directory is gone
		_, pruned := git(context.Background(), b.root, "worktree", "prune")
		err = errors.Join(err, pruned)
	}
	if err != nil {
		return fmt.Errorf("the temporary worktrees are not all removed: %w; see git worktree list", err)
	}
	return nil
}

// tail keeps the end of a program's output, where the cause stands.
func tail(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) > 20 {
		lines = append([]string{"  ..."}, lines[len(lines)-20:]...)
	}
	return strings.Join(lines, "\n")
}
