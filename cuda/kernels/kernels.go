// Package kernels holds the CUDA sources and the PTX made from them.
//
// The PTX is committed, so that a build needs no CUDA toolkit; `make kernels`
// makes it anew, with one pinned compiler. The sources are embedded too: the
// simulator compiles them for the CPU.
package kernels

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.cu *.cuh
var sources embed.FS

// Sources are the contents of the CUDA files by name.
func Sources() map[string]string {
	all := make(map[string]string)
	entries, err := fs.ReadDir(sources, ".")
	if err != nil {
		panic("kernels: embedded sources: " + err.Error())
	}
	for _, e := range entries {
		b, err := sources.ReadFile(e.Name())
		if err != nil {
			panic("kernels: embedded sources: " + err.Error())
		}
		all[e.Name()] = string(b)
	}
	return all
}

// Modules are the names of the sources that are compiled, without ".cu".
func Modules() []string {
	entries, _ := fs.ReadDir(sources, ".")
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".cu"); ok {
			names = append(names, name)
		}
	}
	return names
}

// Image is one module, ready to load.
type Image struct {
	Name string
	PTX  []byte
}

// Images are the modules for a device of the given compute capability.
func Images(major, minor int) []Image { return nil }
