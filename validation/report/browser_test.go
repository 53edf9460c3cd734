package report

import (
	"context"
	_ "embed"
	"encoding/json"
	stdhtml "html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/testutil"
)

//go:embed testdata/inspect.js
var inspect string

// faulty is a page with every fault that the inspection looks for.
const faulty = `<style>body{background:#fff;color:#eee}</style><figure id="a"><svg width="300" height="99"></svg></figure>
<figure id="b"><svg width="300" height="99"><text x="280" y="20">outside</text><text x="10" y="50">one</text><text x="12" y="50">two</text></svg></figure>
<div style="width:2000px">wide</div><script>console.error("a fault on the console")</script>`

// TestBrowser opens the page in Chromium at the width of a phone and of a desk,
// in both themes: no word on the console, no sideways scrolling, every figure
// drawn, every label inside its picture and clear of the others, and all text in
// contrast to its ground. A faulty page beside it proves that faults are found.
func TestBrowser(t *testing.T) {
	browser := chromium(t)
	page := string(html(t, sample()))
	frames := ""
	for _, f := range []struct{ width, page string }{{"390", page}, {"1280", page}, {"390", faulty}} {
		frames += `<iframe width="` + f.width + `" height="900" style="border:0" srcdoc="` + stdhtml.EscapeString(f.page) + `"></iframe>`
	}
	around := filepath.Join(t.TempDir(), "around.html")
	require.NoError(t, os.WriteFile(around, []byte(`<!DOCTYPE html><meta charset="utf-8">`+frames+
		`<pre id="result"></pre><script>`+inspect+`</script>`), 0o600))
	for _, theme := range []struct {
		name, setting string
	}{{"light", "preferredColorScheme=1"}, {"dark", "preferredColorScheme=0"}} {
		t.Run(theme.name, func(t *testing.T) {
			t.Parallel()
			dom, console := dump(t, browser, around, theme.setting)
			require.Len(t, console, 1, "the faulty page's, and no other")
			require.Contains(t, console[0], "a fault on the console")
			var got []struct {
				Width      int      `json:"width"`
				Dark       bool     `json:"dark"`
				Figures    []string `json:"figures"`
				Complaints []string `json:"complaints"`
			}
			result := regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`).FindStringSubmatch(dom)
			require.NotNil(t, result, dom)
			require.NoError(t, json.Unmarshal([]byte(stdhtml.UnescapeString(result[1])), &got), result[1])
			require.Len(t, got, 3)
			for i, width := range []int{390, 1280} {
				require.Equal(t, width, got[i].Width)
				require.Equal(t, theme.name == "dark", got[i].Dark)
				require.Equal(t, allFigures, got[i].Figures)
				require.Empty(t, got[i].Complaints, "%d wide", width)
			}
			found := strings.Join(got[2].Complaints, "\n")
			for _, want := range []string{"scrolls sideways", "a: nothing is drawn", "b: outside: sticks out", "b: one and two overlap", "wide: contrast"} {
				require.Contains(t, found, want)
			}
		})
	}
}

// chromium finds a browser, or skips the test loudly.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	testutil.Missing(t, "chromium", "install it, for example: apt-get install chromium")
	return ""
}

// dump loads a file, and returns its DOM after that and what was said on the console.
func dump(t *testing.T, browser, file, setting string) (dom string, console []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--blink-settings="+setting, "--window-size=1800,2000", "--enable-logging=stderr", "--dump-dom", "file://"+file)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	require.NoError(t, cmd.Run(), "%s", &log)
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, ":CONSOLE") {
			console = append(console, line)
		}
	}
	return out.String(), console
}
