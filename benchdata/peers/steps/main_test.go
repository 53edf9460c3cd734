package main

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProtocol: one line for each line, sequences go on, and logits are ranked.
func TestProtocol(t *testing.T) {
	in := `{"logits": [1, 2, 3]}
		{"prompts": [[1, 2], [3]], "steps": 3}
		{"prompts": [[9]], "steps": 1}
		{"prompts": [[1, 2], [3]], "steps": 2}
		{"logits": [1, 2, 3]}`
	var out strings.Builder
	require.NoError(t, run("random:llama-tiny", 1, 16, strings.NewReader(in), &out))
	var answers []response
	for d := json.NewDecoder(strings.NewReader(out.String())); d.More(); {
		var r response
		require.NoError(t, d.Decode(&r))
		answers = append(answers, r)
	}
	require.Len(t, answers, 6)
	require.Contains(t, answers[0].Info, "1 threads")
	for i, steps := range map[int]int{2: 3, 3: 1, 4: 2} {
		require.Len(t, answers[i].Seconds, steps)
		for _, s := range answers[i].Seconds {
			require.Positive(t, s)
		}
	}
	top := answers[1]
	require.Len(t, top.IDs, 5)
	require.IsNonIncreasing(t, top.Values)
	require.Equal(t, top, answers[5], "what ran between changes nothing")
}

// TestErrors end the command, and say why.
func TestErrors(t *testing.T) {
	for _, c := range []struct{ checkpoint, in, says string }{
		{"random:none", "", `unknown preset "none"`},
		{"random:llama-tiny", "{", "request: "},
		{"random:llama-tiny", "{}", "give prompts and steps"},
		{"random:llama-tiny", `{"prompts": [[1]], "steps": 20}`, "the context is 16"},
		{"random:llama-tiny", `{"logits": [512]}`, "the vocabulary has 512"},
	} {
		require.ErrorContains(t, run(c.checkpoint, 1, 16, strings.NewReader(c.in), io.Discard), c.says)
	}
}
