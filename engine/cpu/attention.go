package cpu

import (
	"fmt"
	"math"

	"github.com/batchproof/batchproof/engine/backend"
)

const (
	splitGroups    = 16
	splitPositions = splitGroups * groupPositions
	readSplits     = 16       // at most; see attend
	runBytes       = 32 << 10 // of keys, on average, for a context to be fetched as runs
	leastAhead     = 3        // groups that are listed after those of the values, at least
	unitRows       = 8
	unitCost       = 4 // of norms, rotation and gate, in groups

	weightsWork = 2*unitRows*splitPositions + unitRows*groupPositions + unitRows

	dotRowWords = 128 // pairs in a row of rounded queries, or of rounded weights of a split
)

// attentionTask is one attention layer over a step.
//
// First all keys and values of the step are stored; where a unit has all queries of its
// row and head, as in decoding, who computes it does that. Then the work is cut into
// units: up to eight queries that share a KV head, of one row, neighbours in
// token and head. A unit goes through its context in splits of 16 groups. In
// a split the softmax is computed in two passes, and the splits are merged in
// order, each a rounding of its own. So what a query yields depends on its
// position alone, whoever computes which split, and whichever queries share
// its unit.
//
// Each worker takes an equal share of the groups to be read. A long unit may
// lie across two shares or more: then each worker computes the splits that
// begin in its share, and the worker that has the first split merges them all.
type attentionTask struct {
	b    *Backend
	k    *mixerKernels
	c    *kvCache
	dots bool // queries and weights are rounded to bf16, see Precision
	// Splits whose keys are all read before their values: readSplits, or one.
	together         int
	scattered, inRun reach
	workers          []attentionWorker

	// Of the layer and step.
	dst, in     *buffer
	a           *backend.Attention
	rope        *rope
	group       int // queries that share a KV head
	queryStride int
	keysAt      int
	valuesAt    int
	total       int // cost
	isCut       bool
	decode      bool // one unit for each row and KV head
}

// reach is how long before their use keys and values are fetched by instruction: so many
// groups and far bytes into L2, and near bytes into L1. Kernels of dots know groups only.
type reach struct{ groups, near, far int }

// attentionWorker is the scratch of one worker.
type attentionWorker struct {
	heads []float32 // queries, normed and rotated [rows][dims]
	zeros []float32 // [dims]
	q     []float32 // queries, scaled [dims][rows], or rounded [rows][dotRowWords]
	a, b  [unitRows]float32
	acc   partial

	// Of up to attentionTask.together splits.
	reads        [(2*readSplits + 1) * splitGroups]*byte // keys, values, and keys that follow
	keys, values []*byte
	p            []float32 // scores, then weights, of each split [rows][splitPositions]
	pairs        []float32 // weights, rounded, of each split [rows][dotRowWords]
	max, sum     [readSplits][unitRows]float32
	work         []float32 // see mixerKernels.weightsDots, or two of passDots
	passes       [2]passReads
	parts        []partial

	// Splits of a unit that begins in this worker's share and ends in another.
	cut  []partial
	unit unit
}

// partial is softmax attention over some positions, before the division. All of it lies
// in lines of its own, since another worker's may lie beside it.
type partial struct {
	acc      []float32 // [chunks][rows][16]; partFloats after that of the split before
	max, sum *[unitRows]float32
}

// partFloats is how many numbers a partial is.
func (t *attentionTask) partFloats() int { return t.c.chunks*chunkDims*unitRows + 2*unitRows }

// unit is some queries of a row, with a KV head.
type unit struct {
	row, head int
	first     int // query; query i is that of token i/group, head i%group
	queries   int
	groups    int // of the last query's context
	at, cost  int // place in the work of the step
}

func (u *unit) splits() int { return (u.groups + splitGroups - 1) / splitGroups }

func (t *attentionTask) init(b *Backend, c *kvCache) (err error) {
	t.b, t.k, t.c = b, mixersFor(b.isa), c
	t.dots = b.precision == BF16 && c.spec.DType == backend.BF16 && c.pairs <= dotRowWords
	if t.together = 1; t.dots && !t.inOnePass() {
		t.together = readSplits
	}
	groups := func(bytes int) int { return min(splitGroups, (bytes+c.keyBytes/2)/c.keyBytes) }
	t.scattered = reach{groups: groups(b.kernels.many.keys)}
	if t.inRun = (reach{near: b.kernels.runs.near, far: b.kernels.runs.far}); t.dots {
		t.inRun = reach{groups: groups(b.kernels.few.keys)}
	}
	floats := func(n int) []float32 {
		var x []float32
		if err == nil {
			x, err = b.mem.floats(n)
		}
		return x
	}
	t.workers = make([]attentionWorker, b.pool.workers)
	splits := (c.spec.Blocks*c.perBlock + splitGroups - 1) / splitGroups
	for i := range t.workers {
		w := &t.workers[i]
		dims := roundUp(c.spec.HeadDim, 4)
		w.heads, w.zeros, w.q = floats(unitRows*dims), floats(dims), floats(max(dims, dotRowWords)*unitRows)
		w.p = floats(t.together * unitRows * splitPositions)
		if t.dots {
			w.pairs, w.work = floats(t.together*unitRows*dotRowWords), floats(max(weightsWork, 2*passWork))
		}
		partials := func(n int) []partial {
			parts, all := make([]partial, n), floats(n*t.partFloats())
			for s := range parts {
				if err == nil {
					acc := t.partFloats() - 2*unitRows
					p := all[s*t.partFloats():]
					parts[s] = partial{p[:acc], (*[unitRows]float32)(p[acc:]), (*[unitRows]float32)(p[acc+unitRows:])}
				}
			}
			return parts
		}
		w.acc = partials(1)[0]
		w.parts = partials(t.together)
		if i < len(t.workers)-1 { // not touched, and so not resident, until a context is that long
			w.cut = partials(splits)
		}
	}
	return err
}

// Attention attends; see attentionTask.
func (b *Backend) Attention(dst, qkv backend.Buffer, a *backend.Attention, cache backend.KVCache) {
	c := cache.(*kvCache)
	t := &c.task
	t.dst, t.in, t.a, t.rope = dst.(*buffer), qkv.(*buffer), a, a.Rope.(*rope)
	if a.HeadDim != c.spec.HeadDim || a.KVHeads != c.spec.KVHeads || a.Heads%a.KVHeads != 0 || a.Layer < 0 ||
		a.Layer >= c.spec.Layers || t.rope.Dims() > a.HeadDim {
		panic(fmt.Sprintf("cpu: attention %+v over a cache of %+v", *a, c.spec))
	}
	for _, n := range [...]*backend.Norm{a.QNorm, a.KNorm} {
		if n != nil && n.Weight.Len() != a.HeadDim {
			panic(fmt.Sprintf("cpu: a norm of %d over heads of %d", n.Weight.Len(), a.HeadDim))
		}
	}
	t.group, t.queryStride = a.Heads/a.KVHeads, a.HeadDim
	if a.Gated {
		t.queryStride *= 2
	}
	t.keysAt = a.Heads * t.queryStride
	t.valuesAt = t.keysAt + a.KVHeads*a.HeadDim
	if t.dst == t.in || t.in.width < t.valuesAt+a.KVHeads*a.HeadDim || t.dst.width < a.Heads*a.HeadDim {
		panic(fmt.Sprintf("cpu: attention from width %d into %d, want %d and %d",
			t.in.width, t.dst.width, t.valuesAt+a.KVHeads*a.HeadDim, a.Heads*a.HeadDim))
	}
	for i := range b.step.Rows {
		r := &b.step.Rows[i]
		if end := r.Start + r.Count; end > t.rope.positions || end > len(r.Blocks)*c.spec.BlockSize {
			panic(fmt.Sprintf("cpu: row %d ends at position %d, with %d KV blocks and a rope of %d positions", i, end, len(r.Blocks), t.rope.positions))
		}
	}
	t.in.mustBeFloat()
	b.begin(t.dst, a.Heads*a.HeadDim, a.HeadDim, a.Next)
	if len(b.step.Rows) == 0 {
		return
	}
	t.total = 0
	for u, more := t.begin(), true; more; more = t.next(&u) {
		t.total = u.at + u.cost
	}
	t.isCut, t.decode = false, len(b.step.Tokens) == len(b.step.Rows) && t.group <= unitRows
	for u, more := t.begin(), true; more; more = t.next(&u) {
		if _, hi := t.share(t.owner(&u)); u.at+(u.splits()-1)*splitGroups >= hi && t.cuttable(&u) {
			t.isCut = true
		}
	}
	b.pool.run(t)
}

// begin is the first unit of a step.
func (t *attentionTask) begin() (u unit) {
	t.measure(&u)
	return u
}

// next moves on to the unit that follows, if there is one.
func (t *attentionTask) next(u *unit) bool {
	u.at += u.cost
	u.first += unitRows
	if u.first >= t.b.step.Rows[u.row].Count*t.group {
		u.first = 0
		if u.head++; u.head == t.a.KVHeads {
			u.head = 0
			u.row++
		}
	}
	if u.row == len(t.b.step.Rows) {
		return false
	}
	t.measure(u)
	return true
}

func (t *attentionTask) measure(u *unit) {
	r := &t.b.step.Rows[u.row]
	u.queries = min(unitRows, r.Count*t.group-u.first)
	group, _ := t.c.place(r.Start + (u.first+u.queries-1)/t.group)
	u.groups = group + 1
	u.cost = u.groups + unitCost
}

// share is a worker's part of the cost.
func (t *attentionTask) share(worker int) (lo, hi int) { return t.b.pool.part(worker, t.total) }

// owner is the worker in whose share a unit begins.
func (t *attentionTask) owner(u *unit) int {
	for worker := range t.workers {
		if _, hi := t.share(worker); u.at < hi {
			return worker
		}
	}
	panic("cpu: a unit beyond the work")
}

// cuttable says whether a unit is long enough that it may lie across shares.
func (t *attentionTask) cuttable(u *unit) bool { return 8*u.cost > t.total/len(t.workers) }

func (t *attentionTask) work(worker int) {
	w := &t.workers[worker]
	if !t.decode {
		t.storeAll(worker)
		t.b.pool.barrier(worker)
	}
	lo, hi := t.share(worker)
	merge := false
	for u, more := t.begin(), true; more && u.at < hi; more = t.next(&u) {
		first, last := 0, u.splits()
		if t.cuttable(&u) {
			first = min(last, (max(0, lo-u.at)+splitGroups-1)/splitGroups)
			last = min(last, (hi-u.at+splitGroups-1)/splitGroups)
		} else if u.at < lo {
			continue
		}
		if first == last {
			continue
		}
		if t.decode && last == u.splits() { // no other split has the new position
			r := &t.b.step.Rows[u.row]
			t.store(w, r, r.First, u.head)
		}
		t.queries(w, &u)
		if first == 0 && last == u.splits() {
			t.attend(w, &u, 0, last, nil)
			t.finish(w, &u)
		} else {
			t.attend(w, &u, first, last, t.workers[t.owner(&u)].cut)
			if first == 0 {
				w.unit, merge = u, true
			}
		}
	}
	if !t.isCut {
		return
	}
	t.b.pool.barrier(worker)
	if merge {
		for s := range w.unit.splits() {
			t.merge(w, &w.unit, &w.cut[s], s == 0)
		}
		t.finish(w, &w.unit)
	}
}

// storeAll stores keys and values of the step. The workers share tokens and heads.
func (t *attentionTask) storeAll(worker int) {
	w, a := &t.workers[worker], t.a
	lo, hi := t.b.pool.part(worker, len(t.b.step.Tokens)*a.KVHeads)
	for i := range t.b.step.Rows {
		r := &t.b.step.Rows[i]
		begin := r.First * a.KVHeads
		for item := max(lo, begin); item < min(hi, begin+r.Count*a.KVHeads); item++ {
			t.store(w, r, item/a.KVHeads, item%a.KVHeads)
		}
	}
}

// store norms, rotates and stores a key, and stores a value.
func (t *attentionTask) store(w *attentionWorker, r *backend.Row, token, head int) {
	c, a := t.c, t.a
	position := r.Start + token - r.First
	group, lane := c.place(position)
	x := t.in.row(token)
	key := w.heads[:a.HeadDim]
	t.rotated(key, x[t.keysAt+head*a.HeadDim:][:a.HeadDim], a.KNorm, position)
	at := c.index(a.Layer, head, r.Blocks, group)
	c.storeKey(c.keys(at), lane, key)
	values, next := c.values(at), w.zeros
	if token+1 < r.First+r.Count && lane+1 < c.lanes(group) {
		next = t.in.row(token + 1)[t.valuesAt+head*a.HeadDim:]
	}
	if c.spec.DType == backend.F32 || lane%2 == 0 || token == r.First { // else it was stored with the one before
		c.storeValue(values, lane, x[t.valuesAt+head*a.HeadDim:][:a.HeadDim], next)
	}
	// The last token of the row empties what follows it, if the row began the group.
	if token == r.First+r.Count-1 && lane < groupPositions-1 && position-lane >= r.Start {
		c.clearValues(values, lane+1)
	}
}

// rotated norms and rotates one head.
func (t *attentionTask) rotated(dst, x []float32, n *backend.Norm, position int) {
	if n == nil {
		copy(dst, x)
	} else {
		k := t.b.kernels
		sum := k.dot(&x[0], &x[0], len(x))
		inv := float32(1 / math.Sqrt(float64(sum)/float64(len(x))+float64(n.Eps)))
		k.scale(&dst[0], &x[0], &n.Weight.(vector)[0], len(x), inv, n.Offset)
	}
	pairs := t.rope.pairs
	at := position * pairs
	t.k.rotate(&dst[0], &dst[pairs], &t.rope.cos[at], &t.rope.sin[at], pairs)
}

// position is that of a query.
func (t *attentionTask) position(u *unit, query int) int {
	return t.b.step.Rows[u.row].Start + (u.first+query)/t.group
}

// place is a query's token in the buffers, and its head.
func (t *attentionTask) place(u *unit, query int) (token, head int) {
	i := u.first + query
	return t.b.step.Rows[u.row].First + i/t.group, u.head*t.group + i%t.group
}

// queries packs the queries of a unit, normed, rotated and scaled.
func (t *attentionTask) queries(w *attentionWorker, u *unit) {
	dim := t.a.HeadDim
	padded := roundUp(dim, 4)
	for r := range u.queries {
		token, head := t.place(u, r)
		t.rotated(w.heads[r*padded:][:dim], t.in.row(token)[head*t.queryStride:][:dim], t.a.QNorm, t.position(u, r))
	}
	if t.dots {
		for r := range u.queries {
			t.b.kernels.scaleRound(&w.q[r*dotRowWords], &w.heads[r*padded], &w.zeros[0], dim, t.a.Scale, 1)
		}
		return
	}
	if scale := t.a.Scale; u.queries%4 == 0 {
		for r := 0; r < u.queries; r += 4 {
			t.b.kernels.packNorm4(&w.q[r], u.queries, &w.heads[r*padded], padded, padded, &w.zeros[0], 1, scale, scale, scale, scale)
		}
		return
	}
	for r := range u.queries {
		for d, v := range w.heads[r*padded:][:padded] {
			w.q[d*u.queries+r] = v * t.a.Scale
		}
	}
}

// attend computes some splits of a unit: into cut, or if that is nil, all merged into
// w.acc. If not in one pass, it reads the keys of several splits and then their values,
// without a pause in either: whenever a core does not wait for memory, or jumps to
// another place, it takes some 0.4 µs until its own fetches are at their full rate again
// (measured on Zen 4).
func (t *attentionTask) attend(w *attentionWorker, u *unit, first, last int, cut []partial) {
	if t.inOnePass() {
		t.pass(w, u, first, last, cut)
		return
	}
	for lo := first; lo < last; lo += t.together {
		hi := min(last, lo+t.together)
		ahead := t.list(w, u, lo, hi)
		t.weights(w, u, lo, hi, ahead)
		parts := w.parts
		if cut != nil {
			parts = cut[lo:]
		}
		t.mix(w, u, lo, hi, ahead, parts)
		if cut == nil {
			for s := lo; s < hi; s++ {
				t.merge(w, u, &parts[s-lo], s == 0)
			}
		}
	}
}

// list lists what some splits read, and returns how to fetch it ahead.
func (t *attentionTask) list(w *attentionWorker, u *unit, lo, hi int) (ahead reach) {
	lo, hi = lo*splitGroups, min(hi*splitGroups, u.groups)
	groups := hi - lo
	w.keys, w.values = w.reads[:groups], w.reads[groups:]
	runs := t.locate(w.keys, w.values, u, lo)
	if ahead = t.scattered; runs*runBytes <= groups*t.c.keyBytes {
		ahead = t.inRun
	}
	for i := range max(ahead.groups, leastAhead) {
		w.values[groups+i] = w.values[groups-1]
		if after := hi + i; after < u.groups {
			w.values[groups+i] = t.c.keys(t.c.index(t.a.Layer, u.head, t.b.step.Rows[u.row].Blocks, after))
		}
	}
	return ahead
}

// locate finds where groups from lo on are, and of how many runs they are.
func (t *attentionTask) locate(keys, values []*byte, u *unit, lo int) (runs int) {
	c, layer, blocks := t.c, t.a.Layer, t.b.step.Rows[u.row].Blocks
	// No division by what a KV block holds: meanwhile memory stands still.
	at, block, in := c.index(layer, u.head, blocks, lo), lo/c.perBlock, lo%c.perBlock
	runs = 1
	for i := range keys {
		if in == c.perBlock {
			block, in = block+1, 0
			if next := c.begin(layer, u.head, blocks[block]); next != at {
				at = next
				runs++
			}
		}
		keys[i], values[i] = c.keys(at), c.values(at)
		at, in = at+1, in+1
	}
	return runs
}

// splitGroups is the number of groups in a split.
func (u *unit) splitGroups(s int) int { return min(splitGroups, u.groups-s*splitGroups) }

// weights finds those of the positions of some splits.
func (t *attentionTask) weights(w *attentionWorker, u *unit, lo, hi int, ahead reach) {
	c, i := t.c, 0
	if t.dots && c.spec.BlockSize%groupPositions == 0 {
		// Whole splits, all of whose positions come before those of the queries.
		if n := min(hi, (t.position(u, 0)+1)/splitPositions) - lo; n > 0 {
			t.k.weightsDots[u.queries-1](&w.pairs[0], &w.max[0][0], &w.sum[0][0], &w.keys[0], n, &w.q[0], c.pairs, ahead.groups, &w.work[0])
			i = n
		}
	}
	scores := t.k.scoresF32[u.queries-1]
	if c.spec.DType == backend.BF16 {
		scores = t.k.scoresBF16[u.queries-1]
	}
	for ; i < hi-lo; i++ {
		groups, p := u.splitGroups(lo+i), w.p[i*unitRows*splitPositions:]
		if keys := &w.keys[i*splitGroups]; t.dots {
			t.k.scoresDots[u.queries-1](&p[0], keys, groups, &w.q[0], c.pairs, ahead.groups)
		} else {
			scores(&p[0], keys, groups, &w.q[0], c.pairs, ahead.groups, ahead.near, ahead.far)
		}
		for r := range u.queries {
			p := p[r*splitPositions:][:groups*groupPositions]
			last, lane := c.place(t.position(u, r))
			t.mask(p, (lo+i)*splitGroups, last, lane)
			if !t.dots {
				w.sum[i][r] = t.k.softmax(&p[0], len(p), &w.max[i][r])
			} else {
				w.sum[i][r] = t.k.softmaxDots(&p[0], len(p), &w.max[i][r])
				t.b.kernels.round(&w.pairs[(i*unitRows+r)*dotRowWords], &p[0], len(p))
			}
		}
	}
}

// mix adds up the values of some splits.
func (t *attentionTask) mix(w *attentionWorker, u *unit, lo, hi int, ahead reach, parts []partial) {
	c := t.c
	for i := range hi - lo {
		*parts[i].max, *parts[i].sum = w.max[i], w.sum[i]
	}
	if t.dots {
		groups := min(hi*splitGroups, u.groups) - lo*splitGroups
		t.k.mixDots[u.queries-1](&parts[0].acc[0], &w.values[0], groups, &w.pairs[0], c.chunks, ahead.groups, 4*t.partFloats())
		return
	}
	mix := t.k.mixF32[u.queries-1]
	if c.spec.DType == backend.BF16 {
		mix = t.k.mixBF16[u.queries-1]
	}
	for i := range hi - lo {
		acc := parts[i].acc
		clear(acc[:c.chunks*u.queries*chunkDims])
		mix(&acc[0], &w.values[i*splitGroups], u.splitGroups(lo+i), &w.p[i*unitRows*splitPositions], c.chunks, ahead.groups, ahead.near, ahead.far)
	}
}

// mask sets to −Inf the lanes that hold no position, and those of positions
// after the query's. The groups of p begin with first; the query is in group last.
func (t *attentionTask) mask(p []float32, first, last, lane int) {
	inf := float32(math.Inf(-1))
	if t.c.spec.BlockSize%groupPositions != 0 {
		for i := 0; i < len(p); i += groupPositions {
			for j := t.c.lanes(first + i/groupPositions); j < groupPositions; j++ {
				p[i+j] = inf
			}
		}
	}
	for i := max(0, (last-first)*groupPositions+lane+1); i < len(p); i++ {
		p[i] = inf
	}
}

// merge adds a split to w.acc, or begins that with it.
func (t *attentionTask) merge(w *attentionWorker, u *unit, part *partial, first bool) {
	if first {
		*w.acc.max, *w.acc.sum = *part.max, *part.sum
		copy(w.acc.acc, part.acc[:t.c.chunks*u.queries*chunkDims])
		return
	}
	for r := range u.queries {
		largest := max(w.acc.max[r], part.max[r])
		w.a[r], w.b[r] = w.acc.max[r]-largest, part.max[r]-largest
		w.acc.max[r] = largest
	}
	t.b.kernels.exp(&w.a[0], &w.a[0], u.queries)
	t.b.kernels.exp(&w.b[0], &w.b[0], u.queries)
	for r := range u.queries {
		w.acc.sum[r] = float32(w.acc.sum[r]*w.a[r]) + float32(part.sum[r]*w.b[r])
	}
	t.k.merge(&w.acc.acc[0], &part.acc[0], &w.a[0], &w.b[0], u.queries, t.c.chunks)
}

// finish divides by the sums of weights, and gates.
func (t *attentionTask) finish(w *attentionWorker, u *unit) {
	dim := t.a.HeadDim
	for r := range u.queries {
		token, head := t.place(u, r)
		out := w.heads[:dim]
		t.k.collect(&out[0], &w.acc.acc[r*chunkDims], u.queries*chunkDims, dim, 1/w.acc.sum[r])
		if t.a.Gated {
			g := t.in.row(token)[head*t.queryStride+dim:][:dim]
			t.k.gate(&out[0], &g[0], dim)
		}
		t.b.store(t.dst, token, head*dim, out)
	}
}
