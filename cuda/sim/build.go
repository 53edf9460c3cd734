//go:build cudasim && linux && cgo

package sim

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

//go:embed src
var runtimeSources embed.FS

// Flags of both compilations. Contraction is off, as it is for the GPU: the
// kernels say where they want a fused multiply-add.
var flags = []string{"-std=c++17", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off",
	"-fcf-protection=none", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused"}

// Every load and store of a kernel calls the runtime; loops stay loops, so
// that none hides in a call of memcpy.
var kernelFlags = []string{"-fsanitize=thread", "-fno-tree-loop-distribute-patterns", "-fno-exceptions"}

// library compiles the sources and returns the path of the shared object,
// from the cache if it is there.
func library(sources map[string]string) (string, error) {
	all := make(map[string]string)
	for name, text := range sources {
		all[name] = text
	}
	err := fs.WalkDir(runtimeSources, "src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := runtimeSources.ReadFile(path)
		all[filepath.Base(path)] = string(b)
		return err
	})
	if err != nil {
		return "", err
	}
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "g++"
	}
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("sim: %s: %w: the simulator needs g++, or another compiler with its flags named in CXX", compiler, err)
	}

	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q %q\n", version, flags, kernelFlags)
	for _, name := range names {
		fmt.Fprintf(h, "%q %d\n%s", name, len(all[name]), all[name])
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "batchproof", "sim-"+hex.EncodeToString(h.Sum(nil)[:12]))
	target := filepath.Join(dir, "kernels.so")
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}

	// Sources stay beside the library: errors point into them.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("sim: %w", err)
	}
	for _, name := range names {
		if err := replace(filepath.Join(dir, name), []byte(all[name])); err != nil {
			return "", fmt.Errorf("sim: %w", err)
		}
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", fmt.Errorf("sim: %w", err)
	}
	defer os.RemoveAll(work)
	objects, err := compile(compiler, dir, work, names)
	if err != nil {
		return "", err
	}
	so := filepath.Join(work, "kernels.so")
	args := append([]string{"-shared", "-Wl,-Bsymbolic", "-o", so}, objects...)
	if out, err := exec.Command(compiler, append(args, "-lm", "-ldl")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("sim: link: %w\n%s", err, out)
	}
	return target, os.Rename(so, target)
}

// compile makes one object of each source, two at a time.
func compile(compiler, dir, work string, names []string) ([]string, error) {
	var (
		objects []string
		errs    = make([]error, len(names))
		slots   = make(chan struct{}, 2)
		wg      sync.WaitGroup
	)
	for i, name := range names {
		args := append([]string(nil), flags...)
		switch filepath.Ext(name) {
		case ".cu":
			args = append(append(args, kernelFlags...), "-x", "c++")
		case ".cc":
		default:
			continue
		}
		object := filepath.Join(work, name+".o")
		objects = append(objects, object)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			args = append(args, "-I", dir, "-c", filepath.Join(dir, name), "-o", object)
			if out, err := exec.Command(compiler, args...).CombinedOutput(); err != nil {
				errs[i] = fmt.Errorf("sim: compile %s: %w\n%s", name, err, out)
			} else if len(out) > 0 {
				errs[i] = fmt.Errorf("sim: compile %s: a warning is an error:\n%s", name, out)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// replace writes a file in one go, since other processes may build the same.
func replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "tmp-")
	if err != nil {
		return err
	}
	if _, err = f.Write(content); err == nil {
		err = f.Chmod(0o644)
	}
	if err1 := f.Close(); err == nil {
		err = err1
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return os.Rename(f.Name(), path)
}

// line resolves an instruction of the library to file:line, outermost inlined
// call last.
func line(library string, offset uint32) string {
	out, err := exec.Command("addr2line", "-i", "-e", library, fmt.Sprintf("%#x", offset)).Output()
	if err != nil {
		return fmt.Sprintf("%s+%#x", filepath.Base(library), offset)
	}
	var where []string
	for l := range strings.Lines(string(out)) {
		l, _, _ = strings.Cut(strings.TrimSpace(l), " (")
		if name := filepath.Base(l); !strings.HasPrefix(name, "sim.h") {
			where = append(where, name)
		}
	}
	return strings.Join(where, " from ")
}
