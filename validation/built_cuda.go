//go:build cuda

package validation

// builtFor is the backend that is measured without being asked for. Who builds for a
// GPU asks for one: without a usable device the criteria fail, and are not skipped.
const builtFor = "cuda"
