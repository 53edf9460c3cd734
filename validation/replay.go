package validation

import (
	"fmt"
	"path/filepath"
	"time"
)

// KeepReplay keeps what Replay judged as a run of its own, in a directory beside
// those of other runs, and says where: report, summary, and the samples under the
// rules by which they were judged. What was recorded is left as it is.
func (s *Session) KeepReplay() error {
	store, err := NewStore(FromRoot(s.Options.Results), time.Now())
	if err != nil {
		return err
	}
	store.WriteJSON("results.json", s.replayed, false)
	store.writeReport(s.replayed)
	fmt.Fprintf(s.Out, "report: %s\n", filepath.Join(store.Dir, "report.html"))
	return store.Err()
}
