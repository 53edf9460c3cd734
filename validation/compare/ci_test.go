package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/testutil"
	"github.com/batchproof/batchproof/validation"
)

// script runs one of .github/scripts in a directory.
func script(t *testing.T, dir string, env []string, name string, args ...string) (out string, err error) {
	t.Helper()
	for _, tool := range []string{"bash", "git", "iconv"} {
		if _, err := exec.LookPath(tool); err != nil {
			testutil.Missing(t, tool, "install it: the scripts of the workflows need it")
		}
	}
	cmd := exec.Command(filepath.Join(validation.ModuleRoot(), ".github", "scripts", name), args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	all, err := cmd.CombinedOutput()
	return string(all), err
}

// fakeGH answers as GitHub would: it keeps one comment in a file, and refuses
// what DENY names.
const fakeGH = `#!/bin/sh
echo "$*" >> "$STATE/calls"
case "$*" in *"$DENY"*) echo "HTTP 403: Resource not accessible by integration" >&2; exit 1 ;; esac
for arg; do case "$arg" in body=@*) cp "${arg#body=@}" "$STATE/comment" ;; esac; done
case "$*" in *--paginate*) [ ! -e "$STATE/comment" ] || printf '17\n18\n' ;; esac
`

func TestComment(t *testing.T) {
	state := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(state, "gh"), []byte(fakeGH), 0o755))
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(state, "summary.md"), []byte(text), 0o644))
	}
	comment := func(deny string) (calls, body, out string) {
		t.Helper()
		os.Remove(filepath.Join(state, "calls"))
		out, err := script(t, state, []string{"PATH=" + state + ":" + os.Getenv("PATH"), "STATE=" + state, "DENY=" + deny}, "comment.sh", "o/r", "5", "summary.md")
		require.NoError(t, err, out)
		b, _ := os.ReadFile(filepath.Join(state, "calls"))
		c, _ := os.ReadFile(filepath.Join(state, "comment"))
		return string(b), string(c), out
	}

	calls, body, out := comment("nothing is denied")
	require.Empty(t, calls+body)
	require.Contains(t, out, "::notice::no comment on the pull request: nothing was measured")

	write("one")
	_, body, out = comment("--method POST")
	require.Empty(t, body)
	require.Contains(t, out, "::notice::no comment on the pull request: this token may not write one")

	calls, body, _ = comment("nothing is denied")
	require.Contains(t, calls, "--method POST repos/o/r/issues/5/comments")
	require.Equal(t, "<!-- batchproof gpu -->\none", body)

	write("two " + strings.Repeat("é", 40000))
	calls, body, _ = comment("nothing is denied")
	require.Contains(t, calls, "--method PATCH repos/o/r/issues/comments/17 ", "the comment is written anew")
	require.NotContains(t, calls, "POST")
	require.True(t, utf8.ValidString(body))
	require.Less(t, len(body), 65536)
	require.Contains(t, body, "Cut here")
}

func TestRefsOfARun(t *testing.T) {
	repo := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_COMMITTER_DATE="+map[bool]string{true: "2020-01-01T00:00:00Z", false: ""}[args[len(args)-1] == "old"])
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, string(out))
		return strings.TrimSpace(string(out))
	}
	if _, err := exec.LookPath("git"); err != nil {
		testutil.Missing(t, "git", "install it")
	}
	commit := func(message string) string {
		git("commit", "-q", "--allow-empty", "-m", message)
		return git("rev-parse", "HEAD")
	}
	git("init", "-q", "-b", "main")
	first := commit("old")
	fork := commit("young")
	ahead := commit("ahead")
	git("checkout", "-q", "-b", "work", fork)
	head := commit("work")

	for _, c := range []struct{ name, event, base, want string }{
		{"pull request", "pull_request", ahead, fork},
		{"by hand", "workflow_dispatch", "HEAD~1", fork},
		{"by hand, a branch", "workflow_dispatch", "main", fork},
		{"nightly", "schedule", "", first},
	} {
		out, err := script(t, repo, []string{"EVENT=" + c.event, "BASE=" + c.base}, "refs.sh")
		require.NoError(t, err, "%s: %s", c.name, out)
		require.Equal(t, "BASE="+c.want+"\nHEAD="+head+"\n", out, c.name)
	}
	for _, base := range []string{"", "nowhere", "--all"} {
		out, err := script(t, repo, []string{"EVENT=workflow_dispatch", "BASE=" + base}, "refs.sh")
		require.Error(t, err, out)
		require.NotContains(t, out, "HEAD=")
	}
}

func TestSummaryOfAJob(t *testing.T) {
	dir := t.TempDir()
	out, err := script(t, dir, nil, "summary.sh", "step")
	require.Error(t, err)
	require.Contains(t, out, "nothing was measured")
	require.NoError(t, appendFile(filepath.Join(dir, "summary.md"), markdownError(errors.New("text with ``` in it"))))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "results", "a"), 0o777))
	require.NoError(t, appendFile(filepath.Join(dir, "results", "a", "summary.md"), "criteria"))
	out, err = script(t, dir, nil, "summary.sh", "step")
	require.NoError(t, err, out)
	step, err := os.ReadFile(filepath.Join(dir, "step"))
	require.NoError(t, err)
	require.Equal(t, "### Is head slower than base? ! not compared\n\n````\ntext with ``` in it\n````\ncriteria\n", string(step))
}
