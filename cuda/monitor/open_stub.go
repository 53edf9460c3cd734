//go:build !cuda || !linux || !cgo

package monitor

import "fmt"

// Open fails: this build cannot reach a GPU.
func Open(string) (Source, error) {
	return nil, fmt.Errorf("%w: built without -tags cuda", ErrNoLibrary)
}
