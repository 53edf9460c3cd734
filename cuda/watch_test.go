package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/cuda/monitor"
)

// warming is a device that heat holds down more and more.
type warming struct {
	at     time.Time
	reads  int
	closed int
}

func (w *warming) Read() monitor.State {
	w.reads++
	return monitor.State{
		At: w.at.Add(time.Duration(w.reads) * time.Second), Model: "fake", Thermal: time.Duration(w.reads*w.reads) * 100 * time.Millisecond,
		Clock: 1000, Others: monitor.Unknown, OtherBusy: monitor.Unknown,
	}
}

func (w *warming) Close() error {
	w.closed++
	return nil
}

// TestDeviceIsWatched: readings and facts come from the source, which is closed
// with the backend; without one there is a note, and no reading.
func TestDeviceIsWatched(t *testing.T) {
	b, err := New(fake.New())
	require.NoError(t, err)
	b.watchDevice(monitor.Open("nowhere"))
	require.Contains(t, b.DeviceFacts()["note"], monitor.ErrNoLibrary.Error())
	b.BeginQuiet()
	require.Empty(t, b.EndQuiet())

	w := &warming{}
	b.watchDevice(w, nil)
	b.BeginQuiet()
	require.InDelta(t, 0.3, b.EndQuiet()[monitor.ReadingThermal], 1e-9)
	require.Equal(t, "fake", b.DeviceFacts()["model"])
	require.Contains(t, b.QuietLimits(), monitor.ReadingThermal)
	require.NoError(t, b.Close())
	require.Equal(t, 1, w.closed)
}
