package validation

import (
	"fmt"
	"math"
	"slices"
)

// SweepLimits is what the machine allows a static batch: the least work of its
// decode steps, and the rates that were measured beside the sweep.
type SweepLimits struct {
	ReadBandwidth float64 `json:"read_bandwidth_bytes_per_s"`
	PeakFLOPs     float64 `json:"peak_flops_per_s"` // 0: unknown, then arithmetic is taken to be free
	Steps         []Work  `json:"steps"`            // one for each size
}

// sweepLimits measures them; nil without a bandwidth.
func (s *Session) sweepLimits() (*SweepLimits, error) {
	if s.probes.ReadBandwidth == nil {
		return nil, nil
	}
	bandwidth, err := s.probes.ReadBandwidth()
	if err != nil {
		return nil, fmt.Errorf("read bandwidth: %w", err)
	}
	if s.probes.PeakFLOPs != nil {
		peak, err := s.probes.PeakFLOPs()
		if err != nil {
			return nil, fmt.Errorf("arithmetic peak: %w", err)
		}
		s.peak = max(s.peak, peak)
	}
	l := &SweepLimits{ReadBandwidth: bandwidth, PeakFLOPs: s.peak}
	cost := ModelCost(s.stand.Checkpoint)
	for _, rows := range s.Options.Sizes {
		l.Steps = append(l.Steps, work("decode", 1, rows, cost(rows, 1, s.Options.PromptLength+s.Options.NewTokens/2)))
	}
	return l, nil
}

// Ceiling is the best speed-up that the machine allows so many rows; NaN if it
// is not known.
func (l *SweepLimits) Ceiling(rows int) float64 {
	floor := func(rows int) float64 {
		i := slices.IndexFunc(l.Steps, func(w Work) bool { return w.Rows == rows })
		if i < 0 {
			return math.NaN()
		}
		return (&Roofline{PeakFLOPs: l.PeakFLOPs}).floor(l.Steps[i:i+1], "", l.ReadBandwidth)
	}
	if l == nil {
		return math.NaN()
	}
	return float64(rows) * floor(1) / floor(rows)
}
