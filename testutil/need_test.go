package testutil

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequired(t *testing.T) {
	require.True(t, required("smollm2", "smollm2"))
	require.True(t, required("cuda, smollm2", "smollm2"))
	require.False(t, required("", "smollm2"))
	require.False(t, required("cuda,smollm2-large", "smollm2"))
}
