//go:build !cuda

package validation

const builtFor = "" // none
