//go:build race

package engine_test

// raceDetector slows plain Go some tenfold, and sees the same accesses to
// memory with one instruction set as with another.
const raceDetector = true
