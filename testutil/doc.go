// Package testutil holds what tests share: tiny checkpoints, an engine with
// virtual costs, golden files, and the rules of who may import whom. Only
// tests import it.
package testutil
