package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPTXIsOfTheseSources: who edits a kernel must make its PTX anew. That it
// is what the pinned compiler makes is for `make kernels-check`.
func TestPTXIsOfTheseSources(t *testing.T) {
	var names []string
	sources := Sources()
	for name := range sources {
		names = append(names, name)
	}
	slices.Sort(names)
	h := sha256.New()
	for _, name := range names {
		fmt.Fprintf(h, "%s %d\n%s", name, len(sources[name]), sources[name])
	}
	committed, err := made.ReadFile("ptx/sources.sha256")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(committed)), hex.EncodeToString(h.Sum(nil)),
		"the PTX was made from other sources: run `make kernels` and commit the result")
}

// TestImages: every kernel of the sources is in the images of every
// architecture, for PTX ISA 8.0.
func TestImages(t *testing.T) {
	macro := regexp.MustCompile(`(?m)^\s*KERNEL\(\d+, (\w+),`)
	var want []string
	for _, text := range Sources() {
		for _, m := range macro.FindAllStringSubmatch(text, -1) {
			want = append(want, m[1])
		}
	}
	require.Greater(t, len(want), 12)
	for _, capability := range [][2]int{{8, 0}, {8, 9}, {9, 0}, {10, 0}} {
		var all strings.Builder
		target := ".target sm_80"
		if capability[0] >= 9 {
			target = ".target sm_90"
		}
		for _, image := range Images(capability[0], capability[1]) {
			assert.Contains(t, string(image.PTX), ".version 8.0", image.Name)
			assert.Contains(t, string(image.PTX), target, image.Name)
			all.Write(image.PTX)
		}
		for _, name := range want {
			if strings.Contains(name, "##") || name == "name" {
				continue // a macro's own text
			}
			if strings.HasSuffix(name, "_") {
				name += "bf16"
			}
			assert.Contains(t, all.String(), ".entry "+name, "%v", capability)
		}
	}
}
