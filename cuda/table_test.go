package cuda

import (
	"context"
	goflag "flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/batchproof/batchproof/cuda/driver"
	"github.com/batchproof/batchproof/cuda/driver/fake"
	"github.com/batchproof/batchproof/engine"
	"github.com/batchproof/batchproof/engine/backend"
	"github.com/batchproof/batchproof/engine/model"
)

var tableCheckpoint = goflag.String("checkpoint", "random:qwen3.5-2b", "`DIR|random:NAME` of TestKernelTable")

// TestKernelTable times every kernel of decode steps and of a prompt chunk on the
// GPU, and sets the times beside the bytes and operations of kernels/SHEET.md.
// It asserts nothing of speed.
func TestKernelTable(t *testing.T) {
	openGPU(t).Close() // or skip
	dev, err := driver.Open(0)
	require.NoError(t, err)
	ck, err := model.Open(*tableCheckpoint)
	require.NoError(t, err)
	defer ck.Close()
	var out strings.Builder
	require.NoError(t, kernelTable(t.Context(), &out, dev, ck, 1024, []int{1, 8}))
	t.Logf("\n%s", out.String())
}

// kernelTable opens a backend on the device, which it closes, loads the model
// and writes a table of each kind of step: a prompt chunk, and decode steps of
// the widths, all at the context.
func kernelTable(ctx context.Context, out *strings.Builder, dev driver.Device, ck *model.Checkpoint, positions int, widths []int) (err error) {
	rec := &recorder{Device: dev}
	b, err := New(rec)
	if err != nil {
		return err
	}
	defer func() {
		if e := b.Close(); err == nil {
			err = e
		}
	}()
	timer, err := newTimer(dev)
	if err != nil {
		return err
	}
	const steps = 48
	chunk := min(256, positions)
	eng, err := engine.New(ck, b, engine.Options{
		MaxSequences: slices.Max(widths), MaxContext: positions + steps + 2, MaxStepTokens: max(chunk, slices.Max(widths)),
	})
	if err != nil {
		return err
	}
	defer eng.Close()
	bandwidth, err := timer.copyBandwidth()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s, %s; copies within the device move %.0f GB/s, reading and writing\n", ck.Name, b.Describe(), bandwidth/1e9)

	for i, width := range widths {
		batch := &engine.Batch{}
		for range width {
			seq, err := eng.NewSequence()
			if err != nil {
				return err
			}
			defer seq.Close()
			batch.Rows = append(batch.Rows, engine.Row{Seq: seq})
		}
		// Prompts, chunk by chunk and row by row; the last chunk is one to look at.
		last := 0
		for r := range batch.Rows {
			one := &engine.Batch{Rows: batch.Rows[r : r+1]}
			for at := 0; at < positions; at += chunk {
				last = min(chunk, positions-at)
				tokens := make([]int32, last)
				for j := range tokens {
					tokens[j] = int32((31*(at+j) + 7*r) % ck.Config.Vocab)
				}
				one.Rows[0].Tokens, one.Rows[0].Prompt, one.Rows[0].Sample = tokens, true, true
				if err := eng.Step(ctx, one); err != nil {
					return err
				}
			}
		}
		sheet := &sheet{c: ck.Config, element: float64(ck.DType().Size()), rows: 1, tokens: last, before: positions - last}
		if i == 0 {
			fmt.Fprintf(out, "\nprompt chunk of %d tokens after %d\n", last, sheet.before)
			if _, _, err := timer.table(out, rec, sheet, bandwidth); err != nil {
				return err
			}
		}
		next := make([][1]int32, width)
		step := func() error {
			for r := range batch.Rows {
				row := &batch.Rows[r]
				next[r][0] = row.Next
				row.Tokens, row.Prompt, row.Sample = next[r][:], false, true
			}
			return eng.Step(ctx, batch)
		}
		// The first step is run command by command, the second captured, the rest launched.
		if err := step(); err != nil {
			return err
		}
		sheet.rows, sheet.tokens, sheet.before = width, width, positions
		list := rec.last
		for range 2 {
			if err := step(); err != nil {
				return err
			}
		}
		rec.seconds = 0
		begin := time.Now()
		for range steps - 1 {
			if err := step(); err != nil {
				return err
			}
		}
		wall, device := time.Since(begin).Seconds()/(steps-1), rec.seconds/(steps-1)
		rec.last = list
		fmt.Fprintf(out, "\ndecode step of %d rows, %d positions each\n", width, positions)
		count, kernels, err := timer.table(out, rec, sheet, bandwidth)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "step: %d launches, %.1f µs on the device as one graph (kernels one by one, caches cold: %.1f), %.1f µs in all, so %.1f µs are the host's\n",
			count, 1e6*device, 1e6*kernels, 1e6*wall, 1e6*(wall-device))
		for r := range batch.Rows {
			batch.Rows[r].Seq.Close()
		}
	}
	return nil
}

// recorder is a device that remembers the list it ran last, the names of its
// kernels, and the time that graphs took.
type recorder struct {
	driver.Device
	last    *driver.List
	names   map[driver.Kernel]string
	seconds float64
}

func (r *recorder) Kernel(name string) (driver.Kernel, error) {
	k, err := r.Device.Kernel(name)
	if r.names == nil {
		r.names = make(map[driver.Kernel]string)
	}
	r.names[k] = name
	return k, err
}

func (r *recorder) Run(l *driver.List, seconds *float64) error {
	r.last = l.Clone()
	return r.Device.Run(l, seconds)
}

func (r *recorder) Launch(g driver.Graph, _ *float64) error {
	var s float64
	err := r.Device.Launch(g, &s)
	r.seconds += s
	return err
}

// timer times launches with cold caches: before each, memory larger than any
// cache is filled, and the time of the fills alone is taken off.
//
// Note: repeating one launch was rejected: its weights would come from the L2
// cache, where a step does not find them.
type timer struct {
	dev     driver.Device
	scratch driver.Ptr
}

const (
	scratchBytes = 256 << 20
	timerRounds  = 5
	timerLeast   = 48 // launches in a round
)

func newTimer(dev driver.Device) (*timer, error) {
	p, err := dev.Alloc(2 * scratchBytes)
	return &timer{dev, p}, err
}

// median of the rounds' seconds of a graph of the list, after one that warms it.
func (t *timer) seconds(list *driver.List) (float64, error) {
	g, err := t.dev.Capture(list)
	if err != nil {
		return 0, err
	}
	var all [timerRounds + 1]float64
	for i := range all {
		if err := t.dev.Launch(g, &all[i]); err != nil {
			return 0, err
		}
	}
	rounds := all[1:]
	slices.Sort(rounds)
	return rounds[len(rounds)/2], t.dev.FreeGraph(g)
}

// copyBandwidth is bytes/s of a copy, read and written bytes both counted.
func (t *timer) copyBandwidth() (float64, error) {
	const copies = 16
	var list driver.List
	for range copies {
		list.Copy(t.scratch.At(scratchBytes), t.scratch, scratchBytes)
	}
	s, err := t.seconds(&list)
	return 2 * copies * scratchBytes / s, err
}

// launches are those of one kernel at one shape, in the order of the step.
type launches struct {
	kernel, shape string
	list          driver.List
	bytes, flops  float64 // of each
	seconds       float64 // of each
}

// group sorts the launches of a step by kernel and shape, in order of appearance.
func group(list *driver.List, names map[driver.Kernel]string, s *sheet) (groups []*launches, err error) {
	for _, c := range list.Commands {
		if c.Op != driver.OpLaunch {
			continue
		}
		args := list.Args[c.Args:][:c.Count]
		shape, bytes, flops, ok := s.of(names[c.Kernel], args)
		if !ok {
			return nil, fmt.Errorf("%s is not on the sheet", names[c.Kernel])
		}
		i := slices.IndexFunc(groups, func(g *launches) bool { return g.kernel == names[c.Kernel] && g.shape == shape })
		if i < 0 {
			i = len(groups)
			groups = append(groups, &launches{kernel: names[c.Kernel], shape: shape, bytes: bytes, flops: flops})
		}
		groups[i].list.Launch(c.Kernel, c.Grid, c.Block, int(c.Shared), args...)
	}
	return groups, nil
}

func (t *timer) time(g *launches) error {
	var with, without driver.List
	n := 0
	for n < timerLeast {
		for _, c := range g.list.Commands {
			with.Fill(t.scratch, 0, scratchBytes)
			without.Fill(t.scratch, 0, scratchBytes)
			with.Launch(c.Kernel, c.Grid, c.Block, int(c.Shared), g.list.Args[c.Args:][:c.Count]...)
			n++
		}
	}
	both, err := t.seconds(&with)
	if err != nil {
		return fmt.Errorf("%s: %w", g.kernel, err)
	}
	fills, err := t.seconds(&without)
	g.seconds = max(0, both-fills) / float64(n)
	return err
}

// table times the launches of the list that was run last, and returns their
// number and the sum of their times.
func (t *timer) table(out *strings.Builder, rec *recorder, s *sheet, bandwidth float64) (count int, sum float64, err error) {
	groups, err := group(rec.last, rec.names, s)
	if err != nil {
		return 0, 0, err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "kernel\tshape\tlaunches\tµs each\tµs all\tMB each\tGB/s\t% of copy\tMFLOP each\tTFLOP/s\t")
	for _, g := range groups {
		if err := t.time(g); err != nil {
			return 0, 0, err
		}
		n := len(g.list.Commands)
		count += n
		sum += float64(n) * g.seconds
		fmt.Fprintf(w, "%s\t%s\t%d\t%.2f\t%.1f\t", g.kernel, g.shape, n, 1e6*g.seconds, 1e6*float64(n)*g.seconds)
		if g.seconds == 0 { // less than the noise of the fills
			fmt.Fprintln(w, "–\t–\t–\t–\t–\t")
			continue
		}
		rate := g.bytes / g.seconds
		fmt.Fprintf(w, "%.3f\t%.0f\t%.1f\t%.2f\t%.2f\t\n", g.bytes/1e6, rate/1e9, 100*rate/bandwidth, g.flops/1e6, g.flops/g.seconds/1e12)
	}
	return count, sum, w.Flush()
}

// sheet is kernels/SHEET.md for one step: rows that bring tokens/rows tokens
// each, after so many positions.
type sheet struct {
	c            *model.Config
	element      float64 // bytes of a weight, and of a cached key or value
	rows, tokens int
	before       int
}

// of is the shape of a launch, for people, and its least work; ok if the sheet
// has the kernel.
func (s *sheet) of(kernel string, args []uint64) (shape string, bytes, flops float64, ok bool) {
	c, n, rows := s.c, float64(s.tokens), float64(s.rows)
	per := s.tokens / s.rows
	attended := n * (float64(s.before) + float64(per+1)/2) // positions, over all tokens
	context := rows * float64(s.before+per)                // positions, over all rows
	heads, kvHeads, dim := float64(c.Heads), float64(c.KVHeads), float64(c.HeadDim)
	d := c.Delta(1)
	channels, taps, values := float64(d.ConvDim()), float64(d.ConvWidth), float64(d.ValueHeads*d.ValueDim)
	state := values * float64(d.KeyDim)
	rest := rows * float64(per%deltaChunk) // of the tokens, those that no chunk has
	chunked := n - rest
	// A linear's own arguments tell which it is.
	linear := func(at int, weight float64) (string, float64, float64, float64, float64) {
		outputs, inputs, tokens := float64(int32(args[at])), float64(int32(args[at+1])), float64(int32(args[at+2]))
		if backend.Epilogue(args[at+3]) == backend.SwiGLU {
			outputs *= 2
		}
		return fmt.Sprintf("%.0f × %.0f", outputs, inputs), outputs, inputs, tokens, weight * outputs * inputs
	}
	switch {
	case strings.HasPrefix(kernel, "linear_decode"):
		shape, out, in, n, w := linear(8, 2)
		return shape, w + 4*n*(out+in), 2 * n * w, true
	case kernel == "linear_prefill":
		shape, out, in, n, w := linear(5, 2)
		return shape, w + 4*n*(out+in), 2 * n * w, true
	case kernel == "linear_f32":
		shape, out, in, n, w := linear(4, 4)
		return shape, w*float64(ceil(int(n), 8)) + 4*n*(out+in), n * w / 2, true
	case kernel == "split_rows":
		in := float64(int32(args[7]))
		return fmt.Sprintf("%.0f", in), 8 * n * in, 0, true
	case kernel == "norm_rows":
		in := float64(int32(args[3]))
		return fmt.Sprintf("%.0f", in), 8 * n * in, 0, true
	case kernel == "delta_conv":
		return "", 4 * channels * (2*n + 2*rows*(taps-1)), 8 * n * channels, true
	case kernel == "delta_rule":
		return "", 8*rows*state + 4*rest*channels, 7 * rest * state, true
	case kernel == "delta_conv_rule":
		return "", 8*rows*state + 4*channels*(n+rows*(taps-1)+taps), n * (7*state + 8*channels), true
	case kernel == "delta_prepare":
		keys := float64(d.KeyHeads * d.KeyDim)
		return "", chunked * (8*keys + 12*keys + 4*float64(2*deltaChunk+2)*float64(d.ValueHeads)),
			chunked * deltaChunk * (12*keys + deltaChunk/3*float64(d.ValueHeads)), true
	case kernel == "delta_chunks":
		keys := float64(d.KeyHeads * d.KeyDim)
		return "", 8*rows*state + chunked*(12*keys+4*float64(2*deltaChunk+2)*float64(d.ValueHeads)+8*values), chunked * (18*state + 12*deltaChunk*values), true
	case kernel == "delta_norm":
		moved := 0.0
		if chunked == 0 {
			moved = 8 * rows * channels * (taps - 1)
		}
		return "", 12*n*values + moved, 12 * n * values, true
	case strings.HasPrefix(kernel, "attention_prepare"):
		stride := dim
		if c.Arch == model.Qwen35 {
			stride *= 2 // the output gate
		}
		all := n * (heads*stride + 2*kvHeads*dim)
		return "", 8 * all, 8 * all, true
	case strings.HasPrefix(kernel, "attention_splits"):
		return "", 2*s.element*kvHeads*dim*context + s.partial()*4*dim, 4 * heads * dim * attended, true
	case kernel == "attention_merge":
		return "", s.partial() * (4*dim + 8), s.partial() * 4 * dim, true
	case strings.HasPrefix(kernel, "attention_tiles"):
		return "", 2*s.element*kvHeads*dim*context + 8*n*heads*dim, 8 * heads * dim * attended, true
	case strings.HasPrefix(kernel, "attention_walk"):
		return "", 2 * s.element * kvHeads * dim * context, 4 * heads * dim * attended, true
	case kernel == "argmax_shares":
		return "", 4 * rows * float64(c.Vocab), rows * float64(c.Vocab), true
	case kernel == "argmax_merge":
		return "", rows * float64(8*int32(args[3])+8), 0, true
	case kernel == "draw_last":
		return "", rows * (drawBins*12 + stateBytes + drawRowBytes + 8), 0, true
	case kernel == "draw_first" || kernel == "draw_next":
		return "", 4 * rows * float64(c.Vocab), 0, true
	case strings.HasPrefix(kernel, "embed"):
		return "", n * float64(c.Hidden) * (s.element + 4), 0, true
	case kernel == "gather":
		return "", 8 * rows * float64(c.Hidden), 0, true
	}
	return "", 0, 0, false
}

// partial is the number of vectors that attention leaves for its merge.
func (s *sheet) partial() float64 {
	return float64(s.tokens * s.c.Heads * ceil(s.before+s.tokens/s.rows, splitLen))
}

// TestKernelTableArithmetic: on a device whose times are known, the table says
// what follows from them, and the bytes and operations are those of the sheet.
func TestKernelTableArithmetic(t *testing.T) {
	ck := checkpoint(t, "qwen3.5-2b")
	dev := fake.New()
	dev.Bytes = 80 << 30
	dev.Seconds = func(kernel string, c driver.Command) float64 {
		switch {
		case c.Op == driver.OpLaunch && strings.HasPrefix(kernel, "linear"):
			return 20e-6
		case c.Op == driver.OpLaunch:
			return 3e-6
		case c.Op == driver.OpCopy:
			return 2 * float64(c.Bytes) / 4e12
		}
		return float64(c.Bytes) / 2e12
	}
	var out strings.Builder
	require.NoError(t, kernelTable(t.Context(), &out, dev, ck, 1023, []int{1, 8}))
	require.Empty(t, dev.Misuses)
	text := out.String()
	t.Logf("\n%s", text)
	require.NotContains(t, text, "–")
	require.Contains(t, text, "copies within the device move 4000 GB/s")
	_, decode, _ := strings.Cut(text, "decode step of 1 rows")
	decode, eight, _ := strings.Cut(decode, "decode step of 8 rows")
	line := func(text string, words ...string) []string {
		for l := range strings.Lines(text) {
			if strings.Contains(strings.Join(strings.Fields(l), " "), strings.Join(words, " ")) {
				return strings.Fields(l)
			}
		}
		require.Fail(t, "no line of "+strings.Join(words, " "), text)
		return nil
	}
	// kernel, shape, launches, µs each, µs all, MB, GB/s, %, MFLOP, TFLOP/s
	require.Equal(t, strings.Fields("linear_decode_1_1 5120 × 2048 6 20.00 120.0 21.000 1050 26.3 41.94 2.10"), line(decode, "5120 × 2048"))
	require.Equal(t, strings.Fields("linear_decode_2_1 12288 × 2048 24 20.00 480.0 50.389 2519 63.0 100.66 5.03"), line(decode, "12288 × 2048"))
	require.Equal(t, strings.Fields("20.00 20.0 1025.130 51257 1281.4 16273.90 813.69"), line(eight, "248320 × 2048")[5:])
	require.Equal(t, strings.Fields("attention_splits_bf16 6 3.00 18.0 2.163 721 18.0 8.39 2.80"), line(decode, "attention_splits"))
	require.Equal(t, strings.Fields("delta_conv_rule 18 3.00 54.0 2.294 765 19.1 1.88 0.63"), line(decode, "delta_conv_rule"))
	require.Equal(t, strings.Fields("3.00 54.0 1.376 459 11.5 0.20 0.07"), line(eight, "delta_norm")[2:])
	require.Equal(t, strings.Fields("3.00 18.0 0.528 176 4.4 0.52 0.17"), line(eight, "attention_merge")[2:])
	require.Equal(t, strings.Fields("step: 155 launches,"), line(decode, "step:")[:3])
	require.Equal(t, strings.Fields("step: 155 launches,"), line(eight, "step:")[:3])
}

// TestKernelsAreOnTheSheet: all but those that load weights, which no step
// launches, and those that measure the device itself.
func TestKernelsAreOnTheSheet(t *testing.T) {
	s := &sheet{c: checkpoint(t, "qwen3.5-2b").Config, element: 2, rows: 1, tokens: 1}
	for k, name := range kernelNames {
		_, _, _, ok := s.of(name, make([]uint64, 16))
		require.Equal(t, k > kRandomF32 && k < kPeakRead, ok, name)
	}
	_, err := group(&driver.List{Commands: []driver.Command{{Op: driver.OpLaunch}}}, map[driver.Kernel]string{0: "other"}, s)
	require.ErrorContains(t, err, "other is not on the sheet")
}
