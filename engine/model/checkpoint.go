package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/weights"
)

// Checkpoint is a configuration with the weights that fit it.
type Checkpoint struct {
	Name    string // the directory's base name, or "random:NAME"
	Config  *Config
	Weights weights.Set
}

// Option changes how a checkpoint is opened.
type Option func(*options)

type options struct{ seed uint64 }

// DefaultSeed is the seed of random weights where none is given.
const DefaultSeed = 1

// WithSeed sets the seed of random weights.
func WithSeed(seed uint64) Option { return func(o *options) { o.seed = seed } }

// Open opens the checkpoint that ref names: a directory with config.json and
// safetensors files, or "random:NAME" for random weights in the shape of a
// preset, see [Presets]. What it returns is complete: every tensor that the
// model reads is there, with the right shape, and nothing is there that the
// model should read and does not. Values are checked when they are read.
func Open(ref string, opts ...Option) (*Checkpoint, error) {
	o := options{seed: DefaultSeed}
	for _, f := range opts {
		f(&o)
	}
	if name, ok := strings.CutPrefix(ref, "random:"); ok {
		return openRandom(ref, name, o.seed)
	}
	ck, err := openDir(ref)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", ref, err)
	}
	return ck, nil
}

func openRandom(ref, name string, seed uint64) (*Checkpoint, error) {
	c, err := Preset(name)
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", ref, err)
	}
	set, err := weights.Random(seed, c.Tensors())
	if err != nil {
		return nil, fmt.Errorf("open checkpoint %s: %w", ref, err)
	}
	return &Checkpoint{Name: ref, Config: c, Weights: set}, nil
}

// maxConfigBytes bounds the JSON files, which have some kilobytes.
const maxConfigBytes = 16 << 20

func openDir(dir string) (*Checkpoint, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("%w (a checkpoint is a directory with config.json and safetensors files, or random:NAME with a NAME of %s; nothing is downloaded)",
			err, strings.Join(Presets(), ", "))
	} else if !info.IsDir() {
		return nil, errors.New("not a directory: give the one that holds config.json")
	}
	config, err := readSmall(filepath.Join(dir, "config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: a checkpoint is a directory with config.json and safetensors files", err)
	} else if err != nil {
		return nil, err
	}
	generation, err := readSmall(filepath.Join(dir, "generation_config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	c, err := ParseConfig(config, generation)
	if err != nil {
		return nil, err
	}
	set, err := weights.Open(dir)
	if err != nil {
		return nil, err
	}
	c.Prefix = prefix(c, set)
	if err := check(c, set); err != nil {
		return nil, errors.Join(err, set.Close())
	}
	name := filepath.Base(dir)
	if abs, err := filepath.Abs(dir); err == nil {
		name = filepath.Base(abs) // of "." too
	}
	return &Checkpoint{Name: name, Config: c, Weights: set}, nil
}

func readSmall(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigBytes {
		return nil, fmt.Errorf("%s: not a regular file of at most %d bytes", path, maxConfigBytes)
	}
	return os.ReadFile(path)
}

// prefix is the one of the two prefixes of Qwen3.5 that the tensors have:
// copies exist whose configuration has one layout and whose tensors the other.
func prefix(c *Config, set weights.Set) string {
	if c.Arch == Qwen35 {
		for _, p := range []string{c.Prefix, "model.language_model.", "model."} {
			if _, ok := set.Lookup(p + "embed_tokens.weight"); ok {
				return p
			}
		}
	}
	return c.Prefix
}

// check compares the tensors that are there with those that the model reads.
func check(c *Config, set weights.Set) error {
	var errs []error
	errorf := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	expected := map[string]bool{}
	for _, spec := range c.Tensors() {
		expected[spec.Name] = true
		src, ok := set.Lookup(spec.Name)
		switch {
		case !ok && spec.Name == headName:
			errorf("tensor %q: missing, want shape %v (tie_word_embeddings is false)", spec.Name, spec.Shape)
		case !ok:
			errorf("tensor %q: missing, want shape %v", spec.Name, spec.Shape)
		case !slices.Equal(src.Shape(), spec.Shape):
			errorf("tensor %q: shape is %v, want %v", spec.Name, src.Shape(), spec.Shape)
		default:
			if err := src.ReadF32(nil, 0); err != nil { // of a dtype that is no weight's
				errs = append(errs, err)
			}
		}
	}
	for _, name := range set.Names() {
		switch {
		case expected[name], skipped(c.Arch, name):
		case name == headName: // of tied embeddings
			if err := sameTensor(set, name, c.Prefix+"embed_tokens.weight"); err != nil {
				errorf("tensor %q: beside tied embeddings (tie_word_embeddings is true) it must be the same: %w", name, err)
			}
		default:
			src, _ := set.Lookup(name)
			errorf("tensor %q: not part of the model, shape %v", name, src.Shape())
		}
	}
	return weights.Problems(errs)
}

// skipped says whether a tensor may be there without the decoder reading it:
// the vision tower, the multi-token prediction layers, and tables of rotary
// frequencies that old files hold.
func skipped(arch Arch, name string) bool {
	if strings.HasSuffix(name, ".rotary_emb.inv_freq") {
		return true
	}
	return arch == Qwen35 && (strings.HasPrefix(name, "model.visual.") ||
		strings.HasPrefix(name, "visual.") || strings.HasPrefix(name, "mtp."))
}

// sameTensor verifies that two tensors hold the same values. An LM head beside
// tied embeddings is a redundant copy if so; if not, the file contradicts
// itself, and which of the two was meant cannot be known.
func sameTensor(set weights.Set, name, other string) error {
	a, _ := set.Lookup(name)
	b, ok := set.Lookup(other)
	if !ok {
		return nil // reported as missing
	}
	if !slices.Equal(a.Shape(), b.Shape()) {
		return fmt.Errorf("shape is %v, that of %q is %v", a.Shape(), other, b.Shape())
	}
	n := 1
	for _, d := range a.Shape() {
		n *= d
	}
	const chunk = 1 << 16
	x, y := make([]float32, chunk), make([]float32, chunk)
	for at := 0; at < n; at += chunk {
		x, y := x[:min(chunk, n-at)], y[:min(chunk, n-at)]
		if err := errors.Join(a.ReadF32(x, at), b.ReadF32(y, at)); err != nil {
			return err
		}
		for i := range x {
			if x[i] != y[i] {
				return fmt.Errorf("element %d is %g, that of %q is %g", at+i, x[i], other, y[i])
			}
		}
	}
	return nil
}

// DType is the storage type of the model's matrices, and of its KV cache.
func (ck *Checkpoint) DType() backend.DType {
	if src, ok := ck.Weights.Lookup(ck.Config.Prefix + "embed_tokens.weight"); ok {
		return src.DType()
	}
	return backend.F32
}

// Close unmaps the weights.
func (ck *Checkpoint) Close() error { return ck.Weights.Close() }
