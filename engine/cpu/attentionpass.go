package cpu

import "math"

// Attention in one pass: where the kernels read keys and values side by side.

// passWork is the size of a split's scores, see mixerKernels.passDots.
const passWork = unitRows*splitPositions + 2*unitRows

// passReads is what is read of a split, and of what follows.
type passReads struct{ keys, values [2 * splitGroups]*byte }

// inOnePass says whether keys and values are read side by side.
func (t *attentionTask) inOnePass() bool { return t.dots && t.k.passDots[0] != nil }

// pass is attend where keys and values are read side by side: the values of a split with
// the keys of the next one.
func (t *attentionTask) pass(w *attentionWorker, u *unit, first, last int, cut []partial) {
	part, aheadBefore, before := &w.parts[0], 0, 0 // groups of the split before
	for s := first; s <= last; s++ {
		reads, readsBefore := &w.passes[s%2], &w.passes[(s+1)%2]
		scores, scoresBefore := w.work[s%2*passWork:], w.work[(s+1)%2*passWork:]
		groups, ahead := 0, 0
		if s < last {
			groups = u.splitGroups(s)
			ahead = t.passList(reads, u, s*splitGroups)
		}
		if cut != nil && before > 0 {
			part = &cut[s-1]
		}
		t.k.passDots[u.queries-1](&part.acc[0], &reads.keys[0], groups, &readsBefore.values[0], before, &w.q[0],
			t.c.pairs, t.c.chunks, max(ahead, aheadBefore), &scores[0], &scoresBefore[0], &w.pairs[0], &part.sum[0])
		if before > 0 {
			copy(part.max[:], scoresBefore[unitRows*splitPositions:])
			if cut == nil {
				t.merge(w, u, part, s == 1)
			}
		}
		if groups > 0 && !t.isWhole(u, s) {
			t.maskScores(scores, u, s)
		}
		before, aheadBefore = groups, ahead
	}
}

// isWhole says whether all queries attend to all positions of a split.
func (t *attentionTask) isWhole(u *unit, s int) bool {
	return t.c.spec.BlockSize%groupPositions == 0 && (s+1)*splitPositions <= t.position(u, 0)+1
}

// maskScores masks those of a split, and finds the largest again.
func (t *attentionTask) maskScores(scores []float32, u *unit, s int) {
	for r := range u.queries {
		p := scores[r*splitPositions:][:u.splitGroups(s)*groupPositions]
		last, lane := t.c.place(t.position(u, r))
		t.mask(p, s*splitGroups, last, lane)
		largest := t.b.kernels.scan(&p[0], len(p))
		found := scores[unitRows*splitPositions+r:]
		found[0] = largest
		if largest == float32(math.Inf(-1)) {
			largest = -math.MaxFloat32
		}
		found[unitRows] = largest
	}
}

// passList lists what is read of a split that begins with a group, and after it.
func (t *attentionTask) passList(r *passReads, u *unit, lo int) (ahead int) {
	listed := splitGroups + max(t.scattered.groups, 1)
	n := min(listed, u.groups-lo)
	runs := t.locate(r.keys[:n], r.values[:n], u, lo)
	for i := n; i < listed; i++ {
		r.keys[i], r.values[i] = r.keys[n-1], r.values[n-1]
	}
	if runs > 1 {
		return max(t.scattered.groups, 1)
	}
	return 0
}
