package validation

// Decision is what the ratios alone say.
type Decision struct {
	Verdict Verdict
	Reason  string
	// Bound is the one-sided 95 % bound of the median ratio on the side of the
	// target; without HasBound there are too few blocks for one.
	Bound    float64
	HasBound bool
}

// decide is the one place where ratios become a verdict.
func decide(c Criterion, ratios []float64) Decision {
	d := Decision{Verdict: Measured, Reason: "no rule at this level"}
	if c.Target == 0 || len(ratios) == 0 {
		return d
	}
	d.Verdict, d.Reason = Fail, "the median ratio misses the target"
	if c.Meets(median(ratios)) {
		d.Verdict, d.Reason = Pass, "the median ratio meets the target"
	}
	return d
}
