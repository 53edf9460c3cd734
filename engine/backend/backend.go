// Package backend defines the operations that a model is written in.
//
// A backend owns weights, activations and per-sequence state behind opaque
// handles, and offers a handful of coarse operations over them. One op is as
// much work as a fast implementation wants to fuse: a projection with the
// norm before it and the residual or activation after it, a whole attention
// mixer, a whole gated delta rule. A model file calls these ops and knows
// nothing of layouts, threads or devices.
//
// Package backendtest holds the conformance suite that every backend passes;
// package ref holds the oracle.
//
// Contract, for every backend:
//
//   - Batch invariance. What an op computes for one token depends on that
//     token's row alone (its input, its position, its state), bit for bit,
//     whatever else is in the step. Accumulation orders are therefore fixed
//     functions of shape and position, never of the number of tokens or workers.
//   - Ops run in call order, from one goroutine at a time. They may be
//     asynchronous; [Backend.Sample] and [Backend.Read] wait for what they need.
//   - A failure while running (a device fault) is sticky and is returned by the
//     next Sample or Read. A broken argument (a shape that cannot be) panics: it
//     is a defect of the model file, never of user input.
//   - After construction no op allocates.
//
// Note: a tensor interface with one method per mathematical function was
// rejected: it prevents fusion, and every backend would grow with every model.
package backend

// DType is the storage type of weights and of the KV cache. Activations, but for inputs
// of products, accumulators and the recurrent state are float32 everywhere.
type DType uint8

const (
	F32 DType = iota
	BF16
)

func (t DType) String() string {
	switch t {
	case F32:
		return "f32"
	case BF16:
		return "bf16"
	}
	return "invalid"
}

// Size is the number of bytes of one element.
func (t DType) Size() int {
	if t == BF16 {
		return 2
	}
	return 4
}

// Source yields the values of one weight tensor. It is safe for concurrent
// use, and stays valid until the checkpoint it came from is closed.
type Source interface {
	// Name is the tensor's name in the checkpoint, for errors.
	Name() string
	// Shape is in C order; a linear weight is [outputs, inputs].
	Shape() []int
	// DType is the narrowest storage type that holds every value exactly.
	DType() DType
	// ReadF32 fills dst with the elements [offset, offset+len(dst)) in C order.
	// It fails, naming the tensor and the element, on NaN and infinities.
	ReadF32(dst []float32, offset int) error
	// ReadBF16 is ReadF32 for a tensor whose DType is BF16.
	ReadBF16(dst []uint16, offset int) error
}

// Form says how the parts of a matrix are combined.
type Form uint8

const (
	// Stacked puts the outputs of the parts one after another.
	Stacked Form = iota
	// GateUp takes two parts of one shape [I, H], gate and up, for the SwiGLU
	// epilogue of [Backend.Linear], which then has I outputs.
	GateUp
)

// Matrix is a linear weight in the backend's own layout. It is stored in BF16
// when every part is BF16, else in F32.
type Matrix interface {
	// Outputs is the width of what Linear writes, Inputs of what it reads.
	Outputs() int
	Inputs() int
	// Bytes is the memory that one pass over the weights must read.
	Bytes() int
}

// Vector is a small parameter (norm weight, bias, convolution taps), held in float32.
type Vector interface{ Len() int }

// Buffer is a float32 activation matrix [Tokens, Width], or what [Backend].Linear makes
// of it for Next.
type Buffer interface {
	Tokens() int
	Width() int
}

// Rope is a table of rotary angles.
type Rope interface{ Dims() int }

// KVCache holds keys and values of all attention layers in KV blocks.
type KVCache interface{ Spec() KVSpec }

// DeltaState holds recurrent and convolution state of all gated delta layers,
// one slot for each sequence.
type DeltaState interface{ Spec() DeltaSpec }

// KVSpec sizes a KV cache.
type KVSpec struct {
	Layers    int // attention layers only
	Blocks    int // KV blocks, shared by all sequences; every layer has its own
	BlockSize int // positions in a KV block
	KVHeads   int
	HeadDim   int
	DType     DType
}

// BytesPerToken is the memory of one position over all layers.
func (s KVSpec) BytesPerToken() int {
	return s.Layers * 2 * s.KVHeads * s.HeadDim * s.DType.Size()
}

// DeltaSpec sizes the state of the gated delta layers.
type DeltaSpec struct {
	Layers     int // gated delta layers only
	Slots      int // sequences
	KeyHeads   int
	ValueHeads int // a multiple of KeyHeads; value head j uses key head j/(ValueHeads/KeyHeads)
	KeyDim     int // of one head
	ValueDim   int // of one head
	ConvWidth  int // taps; the state holds ConvWidth−1 past inputs
}

// ConvDim is the number of channels of the causal convolution: q, k and v of all heads.
func (s DeltaSpec) ConvDim() int {
	return 2*s.KeyHeads*s.KeyDim + s.ValueHeads*s.ValueDim
}

// ProjDim is the width of the fused input projection, see [Backend.GatedDelta].
func (s DeltaSpec) ProjDim() int {
	return s.ConvDim() + s.ValueHeads*s.ValueDim + 2*s.ValueHeads
}

// BytesPerSequence is the state of one sequence over all layers.
func (s DeltaSpec) BytesPerSequence() int {
	return s.Layers * 4 * (s.ValueHeads*s.KeyDim*s.ValueDim + s.ConvDim()*(s.ConvWidth-1))
}

// Norm is a root-mean-square norm: y = x · rsqrt(mean(x²)+Eps) · (Offset + Weight).
type Norm struct {
	Weight Vector
	Eps    float32
	Offset float32 // 1 for the zero-centred norms of Qwen3.5, else 0
}

// Epilogue is what Linear does with its products.
type Epilogue uint8

const (
	Store  Epilogue = iota // dst = W·x
	Add                    // dst += W·x, the residual
	SwiGLU                 // dst = silu(gate·x) ⊙ (up·x); W has the form GateUp
)

// LinearOptions fuses a projection with its neighbours.
type LinearOptions struct {
	Norm     *Norm // applied to the input first; nil for none
	Epilogue Epilogue
	Next     Matrix // see Backend.Linear
}

// Attention is one softmax attention layer.
type Attention struct {
	Layer   int // in the KV cache: attention layers only are counted
	Heads   int
	KVHeads int
	HeadDim int
	Scale   float32
	Rope    Rope
	QNorm   *Norm // per head, before the rotation; nil for none
	KNorm   *Norm
	Gated   bool   // queries carry an output gate, see Backend.Attention
	Next    Matrix // see Backend.Linear
}

// GatedDelta is one gated delta rule layer; its shape is the state's DeltaSpec.
type GatedDelta struct {
	Layer  int    // in the DeltaState: gated delta layers only are counted
	Conv   Vector // [ConvDim, ConvWidth]; the last tap meets the current token
	ALog   Vector // [ValueHeads]
	DTBias Vector // [ValueHeads]
	Norm   Norm   // over ValueDim, shared by the heads
	Next   Matrix // see Backend.Linear
}

// Row is one sequence's share of a step: Count tokens at the positions
// [Start, Start+Count), which lie at [First, First+Count) in the buffers.
type Row struct {
	First, Count int
	Start        int
	Slot         int     // in the DeltaState
	Blocks       []int32 // KV blocks in order of position, covering Start+Count positions
	Prompt       bool    // part of a prompt; a backend may compute prompt and decode rows in different precision
}

// Step is the ragged layout of one step. The rows cover the tokens in order,
// without gaps, and no sequence appears twice.
type Step struct {
	Tokens []int32
	Rows   []Row

	// Meanwhile is what the host has to do while a device computes; nil for
	// nothing. A backend whose Sample waits for a device calls it there, once,
	// when all the step's work is under way; one that computes in its ops never
	// does. It must not use the backend.
	Meanwhile func()
}

// Sampling says how one token is drawn from one row of logits.
type Sampling struct {
	Temperature float32 // 0: greedy, and the first of equal logits wins
	TopK        int     // 0: all
	TopP        float32 // 0 or 1: all
	Uniform     float64 // in [0,1): the random number to draw with
}

// Backend is a set of ops and the memory they work on.
//
// Vectors, matrices and caches belong to the backend and live until Close.
type Backend interface {
	// Name is "ref", "cpu" or "cuda"; Describe adds what matters for a
	// measurement, such as the instruction set and the number of workers.
	Name() string
	Describe() string

	// NewMatrix packs a linear weight; the parts have one number of inputs.
	NewMatrix(form Form, parts ...Source) (Matrix, error)
	NewVector(src Source) (Vector, error)
	// NewRope tabulates angle = position·invFreq[d] (float32 product, as the
	// reference computes it) for positions [0, positions). Rotated are the first
	// 2·len(invFreq) dims of a head, in pairs (d, d+len(invFreq)).
	NewRope(invFreq []float32, positions int) (Rope, error)
	NewBuffer(tokens, width int) (Buffer, error)
	NewKVCache(KVSpec) (KVCache, error)
	NewDeltaState(DeltaSpec) (DeltaState, error)

	// ResetSlot zeroes the state of one slot, for a new sequence.
	ResetSlot(state DeltaState, slot int)

	// Begin lays out the step that the following ops work on. The step and what
	// it points to stay unchanged until the next Sample or Read.
	Begin(step *Step)
	// Embed writes row tokens[t] of the table to dst[t], for each token of the step.
	Embed(dst Buffer, table Matrix)
	// Linear applies w to src[0:n]. dst and src are distinct, except that the
	// epilogue Add reads and writes dst.
	// Next is the matrix that will be applied to dst, without a norm, if no other op
	// reads dst: what Linear rounds its inputs to may then be all that dst holds.
	// It changes no result.
	Linear(dst, src Buffer, n int, w Matrix, opt LinearOptions)
	// Attention normalises, rotates and caches the keys of the step, caches its
	// values, and attends causally within each sequence.
	// qkv is [tokens, q | k | v]; with Gated, q holds for each head HeadDim
	// queries and then HeadDim gate values, and the output is multiplied by
	// sigmoid(gate). dst is [tokens, Heads·HeadDim].
	Attention(dst, qkv Buffer, a *Attention, cache KVCache)
	// GatedDelta runs convolution, silu, l2 norm, the gated delta rule and the
	// gated norm of the tokens of each row in order, and advances the state.
	// proj is [tokens, q | k | v | z | b | a], heads in order within each;
	// dst is [tokens, ValueHeads·ValueDim]. Formulas: Qwen3.5 reference,
	// see the ref backend.
	GatedDelta(dst, proj Buffer, d *GatedDelta, state DeltaState)
	// Gather copies src[tokens[i]] to dst[i].
	Gather(dst, src Buffer, tokens []int32)
	// Sample draws out[i] from logits[i] for each i < len(out), and waits.
	Sample(out []int32, logits Buffer, params []Sampling) error
	// Read copies one token's row, and waits.
	Read(dst []float32, src Buffer, token int) error

	// Close frees everything. The backend must not be used afterwards.
	Close() error
}

// Repeater is a Backend that keeps the ops of a step, and can run them for the next
// step of that form without being called for each.
type Repeater interface {
	Backend
	// Repeat is Begin for a caller whose ops, up to Sample, follow from the number of
	// the step's tokens, of its rows and of want alone: the same ops, with the same
	// arguments, but that a Gather has the tokens want. Sample then has these params.
	//
	// If it returns true, the backend has the ops: Sample comes next, and nothing
	// before. If it returns false, the caller goes through them. Either way the
	// results are the same, bit for bit.
	//
	// The caller is told from others by ==. The backend may keep it until Close.
	Repeat(caller any, step *Step, want []int32, params []Sampling) bool
}
