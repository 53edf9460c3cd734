//go:build cudasim && linux && cgo

package sim

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

//go:embed src
var runtimeSources embed.FS

// Flags of both compilations. Contraction is off, as it is for the GPU: the
// kernels say where they want a fused multiply-add.
var flags = []string{"-std=c++17", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off",
	"-fcf-protection=none", "-Wall", "-Wno-unknown-pragmas", "-Wno-unused"}

// Every load and store of a kernel calls the runtime; loops stay loops, so
// that none hides in a call of memcpy, and a barrier stays one place.
var kernelFlags = []string{"-fsanitize=thread", "-fno-tree-loop-distribute-patterns", "-fno-thread-jumps", "-fno-exceptions"}

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
	headers := sha256.New()
	fmt.Fprintf(headers, "%s\n%q %q\n", version, flags, kernelFlags)
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if !compiled(name) {
			fmt.Fprintf(headers, "%q %d\n%s", name, len(all[name]), all[name])
		}
	}
	whole := sha256.New()
	whole.Write(headers.Sum(nil))
	for _, name := range names {
		fmt.Fprintf(whole, "%q %d\n%s", name, len(all[name]), all[name])
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "batchproof", "sim")
	target := filepath.Join(cache, key(whole.Sum(nil))+".so")
	if _, err := os.Stat(target); err == nil {
		return target, nil
	}

	// Sources stay beside the library: errors point into them.
	dir := filepath.Join(cache, "headers-"+key(headers.Sum(nil)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("sim: %w", err)
	}
	for _, name := range names {
		if !compiled(name) {
			if err := replace(filepath.Join(dir, name), []byte(all[name])); err != nil {
				return "", fmt.Errorf("sim: %w", err)
			}
		}
	}
	objects, err := compile(compiler, dir, names, all)
	if err != nil {
		return "", err
	}
	temporary := fmt.Sprintf("%s.%d", target, os.Getpid())
	args := append([]string{"-shared", "-Wl,-Bsymbolic", "-o", temporary}, objects...)
	if out, err := exec.Command(compiler, append(args, "-lm", "-ldl")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("sim: link: %w\n%s", err, out)
	}
	return target, os.Rename(temporary, target)
}

// compiled says whether a source is a unit of its own, rather than a header.
func compiled(name string) bool { return slices.Contains([]string{".cu", ".cc"}, filepath.Ext(name)) }

func key(sum []byte) string { return hex.EncodeToString(sum[:12]) }

// compile makes one object of each unit, as many at a time as there are
// processors. dir holds the headers; objects stay there, by their source's content.
func compile(compiler, dir string, names []string, all map[string]string) ([]string, error) {
	var (
		objects []string
		errs    = make([]error, len(names))
		slots   = make(chan struct{}, runtime.GOMAXPROCS(0))
		wg      sync.WaitGroup
	)
	for i, name := range names {
		if !compiled(name) {
			continue
		}
		sum := sha256.Sum256([]byte(all[name]))
		folder := filepath.Join(dir, key(sum[:]))
		object := filepath.Join(folder, name+".o")
		objects = append(objects, object)
		if _, err := os.Stat(object); err == nil {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = compileOne(compiler, dir, folder, name, all[name], object)
		})
	}
	wg.Wait()
	return objects, errors.Join(errs...)
}

func compileOne(compiler, dir, folder, name, text, object string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	source := filepath.Join(folder, name)
	if err := replace(source, []byte(text)); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	args := append([]string(nil), flags...)
	if filepath.Ext(name) == ".cu" {
		args = append(append(args, kernelFlags...), "-x", "c++")
	}
	temporary := fmt.Sprintf("%s.%d", object, os.Getpid())
	out, err := exec.Command(compiler, append(args, "-I", dir, "-c", source, "-o", temporary)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("sim: compile %s: %w\n%s", name, err, out)
	}
	if len(out) > 0 {
		return fmt.Errorf("sim: compile %s: a warning is an error:\n%s", name, out)
	}
	return os.Rename(temporary, object)
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
