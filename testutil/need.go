package testutil

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Missing ends a test that cannot run for want of something, by its name:
// the test is skipped, loudly, saying how to get it. Where the environment
// variable BATCHPROOF_REQUIRE lists the name (separated by commas), it fails.
func Missing(t testing.TB, name, how string) {
	t.Helper()
	if required(os.Getenv("BATCHPROOF_REQUIRE"), name) {
		t.Fatalf("MISSING: %s, which BATCHPROOF_REQUIRE asks for; %s", name, how)
	}
	t.Skipf("NOT TESTED for want of %s; %s (BATCHPROOF_REQUIRE=%s makes this a failure)", name, how, name)
}

func required(list, name string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(s string) bool { return strings.TrimSpace(s) == name })
}
