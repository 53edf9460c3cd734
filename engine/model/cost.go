package model

// ElementBytes are the sizes of what a step moves, in bytes of an element.
type ElementBytes struct {
	Weight    int
	KV        int
	Recurrent int
	Conv      int
}

// CostRow is one row of a step, as far as its cost goes.
type CostRow struct {
	Tokens  int  // 1 for a decode row
	Context int  // positions that the last of them attends to, itself included
	Sample  bool // the LM head is applied to the last of them
}

// Cost is the least work that a step can be done with: each byte moved once.
type Cost struct {
	WeightBytes    int64 // read once, whatever the number of rows
	KVReadBytes    int64
	KVWriteBytes   int64
	RecurrentBytes int64 // read and written
	ConvBytes      int64 // read and written
	FLOPs          int64 // a multiply-add is two
}

// Bytes is all the memory traffic.
func (c Cost) Bytes() int64 {
	return c.WeightBytes + c.KVReadBytes + c.KVWriteBytes + c.RecurrentBytes + c.ConvBytes
}

// Seconds is the floor of the step's time on a machine with the given
// bandwidth in bytes/s and peak in FLOP/s.
func (c Cost) Seconds(bandwidth, peak float64) float64 {
	return max(float64(c.Bytes())/bandwidth, float64(c.FLOPs)/peak)
}

// DecodeRows are the rows of a decode step of batch sequences, each of the context.
func DecodeRows(batch, context int) []CostRow {
	rows := make([]CostRow, batch)
	for i := range rows {
		rows[i] = CostRow{Tokens: 1, Context: context, Sample: true}
	}
	return rows
}

// Ceiling is the best ratio that batching can reach in decode steps on a
// machine: batch times the floor of one row's step, over the floor of all.
func (c *Config) Ceiling(batch, context int, size ElementBytes, bandwidth, peak float64) float64 {
	one := c.StepCost(DecodeRows(1, context), size).Seconds(bandwidth, peak)
	all := c.StepCost(DecodeRows(batch, context), size).Seconds(bandwidth, peak)
	return float64(batch) * one / all
}

// StepCost is the cost of a step. A prompt chunk reads its context, and moves
// its state, once; its tokens attend causally. The gated delta rule counts as
// in its recurrent form, with the state read and written by every step, however
// a backend computes it and however seldom it writes. Left out is what does not
// weigh: the row of the embedding table, activations, norms.
func (c *Config) StepCost(rows []CostRow, size ElementBytes) Cost {
	var (
		full    = int64(c.Count(FullAttention))
		delta   = c.Delta(1)
		kv      = full * 2 * int64(c.KVHeads) * int64(c.HeadDim) * int64(size.KV)
		state   = int64(delta.Layers) * int64(delta.ValueHeads) * int64(delta.KeyDim) * int64(delta.ValueDim)
		conv    = int64(delta.Layers) * int64(delta.ConvDim()) * int64(delta.ConvWidth-1)
		attend  = 4 * full * int64(c.Heads) * int64(c.HeadDim)
		head    = int64(c.Vocab) * int64(c.Hidden)
		body    = c.products() - head
		cost    Cost
		sampled bool
	)
	for _, r := range rows {
		tokens, context := int64(r.Tokens), int64(r.Context)
		cost.KVReadBytes += context * kv
		cost.KVWriteBytes += tokens * kv
		cost.RecurrentBytes += 2 * state * int64(size.Recurrent)
		cost.ConvBytes += 2 * conv * int64(size.Conv)
		cost.FLOPs += 2*body*tokens + 7*state*tokens
		// Token t of the chunk attends to context−tokens+1+t positions.
		cost.FLOPs += attend * (tokens*(context-tokens) + tokens*(tokens+1)/2)
		if r.Sample {
			cost.FLOPs += 2 * head
			sampled = true
		}
	}
	read := c.Params()
	if !c.Tied || !sampled {
		read -= head // the embedding table, or a head that no row asks for
	}
	if !c.Tied && !sampled {
		read -= head
	}
	cost.WeightBytes = read * int64(size.Weight)
	return cost
}

// Params is the number of parameters.
func (c *Config) Params() int64 {
	n := int64(0)
	for _, spec := range c.Tensors() {
		size := int64(1)
		for _, d := range spec.Shape {
			size *= int64(d)
		}
		n += size
	}
	return n
}

// products is the number of weights that each token is multiplied with, LM
// head and convolution taps included.
func (c *Config) products() int64 {
	hidden, d := int64(c.Hidden), c.Delta(1)
	mlp := 3 * hidden * int64(c.Intermediate)
	full := (int64(c.qkvWidth()) + int64(c.Heads)*int64(c.HeadDim)) * hidden
	delta := (int64(d.ProjDim())+int64(d.ValueHeads)*int64(d.ValueDim))*hidden + int64(d.ConvDim())*int64(d.ConvWidth)
	return int64(len(c.Layers))*mlp + int64(c.Count(FullAttention))*full +
		int64(d.Layers)*delta + int64(c.Vocab)*hidden
}
