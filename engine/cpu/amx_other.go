//go:build amd64 && !linux && !noasm

package cpu

// tilesAllowed: elsewhere nobody has tried how to ask for the tile registers.
func tilesAllowed() bool { return false }
