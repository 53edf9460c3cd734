package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProtocol: one line for each line, sequences go on, and prefill starts anew
// and ranks the logits.
func TestProtocol(t *testing.T) {
	in := `{"prefill": [1, 2, 3], "times": 2}
		{"prompts": [[1, 2], [3]], "steps": 3}
		{"prompts": [[9]], "steps": 1}
		{"prompts": [[1, 2], [3]], "steps": 2}
		{"prefill": [1, 2, 3], "times": 20}`
	var out strings.Builder
	require.NoError(t, run("random:llama-tiny", 1, 16, 16, strings.NewReader(in), &out))
	var answers []response
	for d := json.NewDecoder(strings.NewReader(out.String())); d.More(); {
		var r response
		require.NoError(t, d.Decode(&r))
		answers = append(answers, r)
	}
	require.Len(t, answers, 6)
	require.Contains(t, answers[0].Info, "1 threads")
	for i, steps := range map[int]int{1: 2, 2: 3, 3: 1, 4: 2, 5: 20} {
		require.Len(t, answers[i].Seconds, steps)
		for _, s := range answers[i].Seconds {
			require.Positive(t, s)
		}
	}
	first, last := answers[1], answers[5]
	require.Len(t, first.IDs, 5)
	require.IsNonIncreasing(t, first.Values)
	require.Equal(t, first.IDs, last.IDs, "what ran between changes nothing")
	require.Equal(t, first.Values, last.Values)
}

// TestRoom: beside all sequences there is room for a prefill longer than they get.
func TestRoom(t *testing.T) {
	ids := strings.Repeat("1, ", 31) + "1"
	in := `{"prompts": [` + strings.Repeat("[1], ", 14) + `[1]], "steps": 1}
		{"prefill": [` + ids + `], "times": 1}`
	require.NoError(t, run("random:llama-tiny", 1, 16, 32, strings.NewReader(in), io.Discard))
}

// TestErrors end the command, and say why.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ checkpoint, in, says string }{
		{"random:none", "", `unknown preset "none"`},
		{"random:llama-tiny", "{", "request: "},
		{"random:llama-tiny", "{}", "give prompts and steps"},
		{"random:llama-tiny", `{"prefill": [1]}`, "give prompts and steps"},
		{"random:llama-tiny", `{"prompts": [[1]], "steps": 20}`, "the context is 16"},
		{"random:llama-tiny", `{"prefill": [512], "times": 1}`, "the vocabulary has 512"},
	} {
		require.ErrorContains(t, run(c.checkpoint, 1, 16, 16, strings.NewReader(c.in), io.Discard), c.says)
	}
}
