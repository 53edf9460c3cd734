package testutil

import (
	"context"
	"errors"
	"time"

	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
)

// StepCost is what one real step cost, to fit a [Cost] to.
type StepCost struct {
	Tokens    int // of all rows
	Positions int // that the rows hold after the step
	Took      time.Duration
}

// Recorder is a runner that keeps the cost of its steps.
type Recorder struct {
	engine.Runner
	Steps []StepCost
}

// Run implements [engine.Runner].
func (r *Recorder) Run(ctx context.Context, step *backend.Step, want, out []int32, params []backend.Sampling) error {
	begun := time.Now()
	err := r.Runner.Run(ctx, step, want, out, params)
	if err == nil {
		c := StepCost{Tokens: len(step.Tokens), Took: time.Since(begun)}
		for i := range step.Rows {
			c.Positions += step.Rows[i].Start + step.Rows[i].Count
		}
		r.Steps = append(r.Steps, c)
	}
	return err
}

// FitCost finds the cost that explains steps with the least squared error, no
// part of it negative.
func FitCost(steps []StepCost) (Cost, error) {
	// The best of all subsets of the three terms whose coefficients are not
	// negative: with three terms, the obvious way is short.
	var best [3]float64
	bestError := -1.0
	for mask := 1; mask < 8; mask++ {
		x, ok := leastSquares(steps, mask)
		if !ok || x[0] < 0 || x[1] < 0 || x[2] < 0 {
			continue
		}
		sum := 0.0
		for _, s := range steps {
			d := float64(s.Took) - x[0] - x[1]*float64(s.Tokens) - x[2]*float64(s.Positions)
			sum += d * d
		}
		if bestError < 0 || sum < bestError {
			best, bestError = x, sum
		}
	}
	if bestError < 0 {
		return Cost{}, errors.New("fit a cost: no steps; want some of several numbers of rows and lengths of context")
	}
	return Cost{Step: time.Duration(best[0]), Row: time.Duration(best[1]), Context: time.Duration(best[2])}, nil
}

// leastSquares solves the normal equations for the terms in mask, by elimination;
// the other coefficients are 0.
func leastSquares(steps []StepCost, mask int) (x [3]float64, ok bool) {
	var a [3][4]float64
	for _, s := range steps {
		row := [4]float64{1, float64(s.Tokens), float64(s.Positions), float64(s.Took)}
		for i := range 3 {
			for k := range 4 {
				a[i][k] += row[i] * row[k]
			}
		}
	}
	for i := range 3 {
		if mask>>i&1 == 0 {
			for k := range 3 {
				a[i][k], a[k][i] = 0, 0
			}
			a[i][i], a[i][3] = 1, 0
		}
	}
	whole := [3]float64{a[0][0], a[1][1], a[2][2]}
	for i := range 3 {
		// Positive, or next to nothing if the terms before explain this one.
		pivot := a[i][i]
		if !(pivot > 1e-9*whole[i]) {
			return x, false
		}
		for r := range 3 {
			if f := a[r][i] / pivot; r != i {
				for k := range 4 {
					a[r][k] -= f * a[i][k]
				}
			}
		}
	}
	for i := range 3 {
		x[i] = a[i][3] / a[i][i]
	}
	return x, true
}
