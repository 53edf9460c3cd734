//go:build !race

package backendtest

const slowdown = 1
