//go:build race

package backendtest

// slowdown thins the sweeps: the race detector makes them many times slower,
// and what it looks for depends on no lengths.
const slowdown = 12
