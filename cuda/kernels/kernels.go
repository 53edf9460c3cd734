// Package kernels holds the CUDA sources and the PTX made from them.
//
// The PTX is committed, so that a build needs no CUDA toolkit; `make kernels`
// makes it anew, with one pinned compiler of CUDA 12.0. It is PTX ISA 8.0, which
// drivers from R525 on load, for compute capability 8.0 (and higher) and 9.0.
// The sources are embedded too: the simulator compiles them for the CPU.
package kernels

import (
	"embed"
	"fmt"
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

//go:embed ptx/*.ptx ptx/sources.sha256
var made embed.FS

// Image is one module, ready to load.
type Image struct {
	Name string
	PTX  []byte
}

// Images are the modules for a device of the given compute capability, 8.0 or
// higher: the driver compiles PTX for the device at hand.
func Images(major, minor int) []Image {
	architecture := "sm80"
	if major >= 9 {
		architecture = "sm90"
	}
	var images []Image
	for _, name := range Modules() {
		file := fmt.Sprintf("%s.%s.ptx", name, architecture)
		b, err := made.ReadFile("ptx/" + file)
		if err != nil {
			panic("kernels: " + err.Error() + ": run `make kernels`")
		}
		images = append(images, Image{Name: file, PTX: b})
	}
	return images
}
