// Command mixer generates the kernels of attention and of the gated delta rule.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"

	"github.com/batchproof/batchproof/engine/cpu/gen/simd"
)

const (
	group = 16  // positions, see kvcache.go
	split = 256 // positions, see attention.go: the stride of rows of scores
	most  = 8   // rows of attention at once, see attention.go
	tile  = 32  // value dims, see deltastate.go
)

func main() {
	ConstraintExpr("!noasm")
	storeKey()
	for _, isa := range []simd.ISA{simd.AVX2, simd.AVX512} {
		for _, f32 := range []bool{false, true} {
			for rows := 1; rows <= most; rows++ {
				scores(isa, rows, f32)
				mix(isa, rows, f32)
			}
		}
		softmax(isa)
		merge(isa)
		product(isa)
		weigh(isa)
		solve(isa)
		match(isa)
		token(isa)
		update(isa)
		convolve(isa)
		rotate(isa)
		collect(isa)
		zip(isa, false)
		zip(isa, true)
		each(isa, "gate", []string{"dst", "x"}, func() func(v []reg.VecVirtual) {
			e := isa.Exp()
			return func(v []reg.VecVirtual) {
				isa.Xor(simd.Const("signs", 1<<31), v[1], v[1])
				e.Of(v[1])
				VADDPS(simd.Float("one", 1), v[1], v[1])
				VDIVPS(v[1], v[0], v[0])
			}
		})
	}
	Generate()
}

func text(name, signature string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
}

// pair loads what two of the inner index hold in some lanes: [lanes][2] bf16,
// or [2][16] float32.
type pair struct {
	isa  simd.ISA
	f32  bool
	bf16 simd.BF16
}

// newPair takes no more than the free registers, with AVX2.
func newPair(isa simd.ISA, f32 bool, free int) *pair {
	p := &pair{isa: isa, f32: f32}
	if !f32 {
		p.bf16 = isa.BF16(free)
	}
	return p
}

func (p *pair) bytes() int {
	if p.f32 {
		return 2 * group * 4
	}
	return 2 * group * 2
}

func (p *pair) load(at Mem, lane int) (w [2]reg.VecVirtual) {
	at.Disp += 4 * lane
	w = [2]reg.VecVirtual{p.isa.Vec(), p.isa.Vec()}
	if !p.f32 {
		p.bf16.Both(at, w)
		return w
	}
	VMOVUPS(at, w[0])
	at.Disp += 4 * group
	VMOVUPS(at, w[1])
	return w
}

// fma adds each vector of w times the number at m to its sum.
func fma(isa simd.ISA, m Mem, w, sums []reg.VecVirtual) {
	if isa.Wide() {
		for i := range w {
			VFMADD231PS_BCST(m, w[i], sums[i])
		}
		return
	}
	v := isa.Vec()
	VBROADCASTSS(m, v)
	for i := range w {
		VFMADD231PS(v, w[i], sums[i])
	}
}

// passes calls f for equal blocks of rows, whose accumulators fit the registers. The
// first pass over a group is the one to fetch ahead.
func passes(rows, most int, f func(row, rows int)) {
	n := (rows + most - 1) / most
	for i := range n {
		f(i*rows/n, (i+1)*rows/n-i*rows/n)
	}
}

// ahead is where to fetch from: into L1, and into L2.
type ahead struct{ near, far reg.Register }

// groups begins a loop over groups of positions: it loads where the next one is, and
// where to fetch ahead meanwhile. end closes the loop.
func groups(where string) (at reg.Register, next ahead, end func()) {
	list, left := Load(Param(where), GP64()), Load(Param("groups"), GP64())
	later, near := Load(Param("ahead"), GP64()), Load(Param("near"), GP64())
	at, next = GP64(), ahead{GP64(), GP64()}
	Label("group")
	MOVQ(Mem{Base: list}, at)
	Load(Param("far"), next.far)
	ADDQ(Mem{Base: list, Index: later, Scale: 8}, next.far)
	LEAQ(Mem{Base: at, Index: near, Scale: 1}, next.near)
	return at, next, func() {
		ADDQ(Imm(8), list)
		DECQ(left)
		JNZ(LabelRef("group"))
		VZEROUPPER()
		RET()
	}
}

// fetch fetches as many bytes as one pair has, or in each of several sweeps its share of
// them. Where groups are scattered, that is into L2 only: to go on to L1, a fetch would hold
// one of its few miss buffers until memory answers.
func (p *pair) fetch(next ahead, sweeps int) {
	share := p.bytes() / sweeps
	for line := 0; line < share; line += 64 {
		PREFETCHT0(Mem{Base: next.near, Disp: line})
		PREFETCHT1(Mem{Base: next.far, Disp: line})
	}
	ADDQ(U32(uint32(share)), next.near)
	ADDQ(U32(uint32(share)), next.far)
}

// scores multiplies queries [dims][rows] by the keys of groups.
func scores(isa simd.ISA, rows int, f32 bool) {
	text(fmt.Sprintf("scores%s%sRows%d", dtype(f32), isa.Name, rows), "func(s *float32, k **byte, groups int, q *float32, pairs, ahead, near, far int)")
	s := Load(Param("s"), GP64())
	fits, lanes := 8, [][]int{{0}}
	switch {
	case isa.Wide():
	case rows <= 3: // all in one pass: another would leave memory idle
		lanes = [][]int{{0, 8}}
	default:
		fits, lanes = 6, [][]int{{0}, {8}}
	}
	keys := newPair(isa, f32, 16-2*min(rows, fits)*len(lanes[0])-3)
	k, next, end := groups("k")
	pass, sweeps := 0, (rows+fits-1)/fits*len(lanes)
	passes(rows, fits, func(row, n int) {
		for _, lanes := range lanes {
			q, pairs := Load(Param("q"), GP64()), Load(Param("pairs"), GP64())
			at := GP64()
			MOVQ(k, at)
			sums := make([][2][]reg.VecVirtual, len(lanes)) // of even and odd dims
			for i := range sums {
				for k := range sums[i] {
					for range n {
						sums[i][k] = append(sums[i][k], isa.Zero())
					}
				}
			}
			loop := fmt.Sprintf("pair%d", pass)
			Label(loop)
			keys.fetch(next, sweeps)
			for i, lane := range lanes {
				for k, w := range keys.load(Mem{Base: at}, lane) {
					for r, sum := range sums[i][k] {
						fma(isa, Mem{Base: q, Disp: 4 * (k*rows + row + r)}, []reg.VecVirtual{w}, []reg.VecVirtual{sum})
					}
				}
			}
			ADDQ(U32(uint32(keys.bytes())), at)
			ADDQ(U32(uint32(8*rows)), q)
			DECQ(pairs)
			JNZ(LabelRef(loop))
			for i, lane := range lanes {
				for r, sum := range sums[i][0] {
					VADDPS(sums[i][1][r], sum, sum)
					VMOVUPS(sum, Mem{Base: s, Disp: 4 * ((row+r)*split + lane)})
				}
			}
			pass++
		}
	})
	ADDQ(Imm(4*group), s)
	end()
}

// mix adds the values of groups, weighted, to acc [dims/16][rows][16].
func mix(isa simd.ISA, rows int, f32 bool) {
	text(fmt.Sprintf("mix%s%sRows%d", dtype(f32), isa.Name, rows), "func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, near, far int)")
	weights := Load(Param("p"), GP64())
	fits := 8
	if !isa.Wide() {
		fits = 5
	}
	values := newPair(isa, f32, 16-2*min(rows, fits)-5)
	v, next, end := groups("v")
	acc, chunks := Load(Param("acc"), GP64()), Load(Param("chunks"), GP64())
	Label("chunk")
	passes(rows, fits, func(row, n int) {
		sums := make([][]reg.VecVirtual, n)
		place := func(r, lane int) Mem { return Mem{Base: acc, Disp: 4 * ((row+r)*group + lane)} }
		for r := range sums {
			for lane := 0; lane < group; lane += isa.Lanes {
				sum := isa.Vec()
				VMOVUPS(place(r, lane), sum)
				sums[r] = append(sums[r], sum)
			}
		}
		p, at, left := GP64(), GP64(), GP64()
		MOVQ(weights, p)
		MOVQ(v, at)
		MOVQ(U32(group/2), left)
		loop := fmt.Sprintf("pair%d", row)
		Label(loop)
		if row == 0 {
			values.fetch(next, 1)
		}
		var w [2][]reg.VecVirtual // even and odd positions
		for lane := 0; lane < group; lane += isa.Lanes {
			for k, vec := range values.load(Mem{Base: at}, lane) {
				w[k] = append(w[k], vec)
			}
		}
		for k := range w {
			for r := range sums {
				fma(isa, Mem{Base: p, Disp: 4 * ((row+r)*split + k)}, w[k], sums[r])
			}
		}
		ADDQ(U32(uint32(values.bytes())), at)
		ADDQ(Imm(8), p)
		DECQ(left)
		JNZ(LabelRef(loop))
		for r := range sums {
			for i, sum := range sums[r] {
				VMOVUPS(sum, place(r, i*isa.Lanes))
			}
		}
	})
	ADDQ(U32(uint32(group/2*values.bytes())), v)
	ADDQ(U32(uint32(4*group*rows)), acc)
	DECQ(chunks)
	JNZ(LabelRef("chunk"))
	ADDQ(Imm(4*group), weights)
	end()
}

// softmax turns scores into weights, see softmaxGeneric.
func softmax(isa simd.ISA) {
	text("softmax"+isa.Name, "func(p *float32, n int, max *float32) float32")
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())
	low := isa.Vec()
	VMOVUPS(simd.Const("minusInf", 0xff800000), low)
	// loop runs f over all vectors, with that of the 16 lanes they are in.
	loop := func(name string, f func(m Mem, i int)) {
		at, left := GP64(), GP64()
		MOVQ(p, at)
		MOVQ(n, left)
		Label(name)
		for i := range group / isa.Lanes {
			f(Mem{Base: at, Disp: 4 * i * isa.Lanes}, i)
		}
		ADDQ(Imm(4*group), at)
		SUBQ(Imm(group), left)
		JNE(LabelRef(name))
	}
	var best, sums []reg.VecVirtual
	for i := range group / isa.Lanes {
		best, sums = append(best, isa.Vec()), append(sums, isa.Zero())
		VMOVUPS(low, best[i])
	}
	loop("largest", func(m Mem, i int) { VMAXPS(m, best[i], best[i]) })
	largest := isa.MaxLanes(best...)
	to := Load(Param("max"), GP64())
	VMOVSS(largest, Mem{Base: to})
	all := isa.Vec()
	VBROADCASTSS(Mem{Base: to}, all)
	e := isa.Exp()
	loop("weights", func(m Mem, i int) {
		x := isa.Vec()
		VMOVUPS(m, x)
		if isa.Wide() {
			k := K()
			VCMPPS(Imm(4), low, x, k) // not equal
			VSUBPS(all, x, x)
			e.Of(x)
			VMOVAPS_Z(x, k, x)
		} else {
			masked := isa.Vec()
			VCMPPS(Imm(0), low, x, masked)
			VSUBPS(all, x, x)
			e.Of(x)
			VANDNPS(x, masked, x)
		}
		VMOVUPS(x, m)
		VADDPS(x, sums[i], sums[i])
	})
	Store(isa.SumLanes(sums...), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// merge is acc = acc·a + part·b, with a and b for each row.
func merge(isa simd.ISA) {
	text("merge"+isa.Name, "func(acc, part, a, b *float32, rows, chunks int)")
	acc, part := Load(Param("acc"), GP64()), Load(Param("part"), GP64())
	chunks := Load(Param("chunks"), GP64())
	Label("chunk")
	a, b, rows := Load(Param("a"), GP64()), Load(Param("b"), GP64()), Load(Param("rows"), GP64())
	Label("row")
	va, vb := isa.Vec(), isa.Vec()
	VBROADCASTSS(Mem{Base: a}, va)
	VBROADCASTSS(Mem{Base: b}, vb)
	for lane := 0; lane < group; lane += isa.Lanes {
		v := isa.Vec()
		VMULPS(Mem{Base: acc, Disp: 4 * lane}, va, v)
		VFMADD231PS(Mem{Base: part, Disp: 4 * lane}, vb, v)
		VMOVUPS(v, Mem{Base: acc, Disp: 4 * lane})
	}
	ADDQ(Imm(4), a)
	ADDQ(Imm(4), b)
	ADDQ(Imm(4*group), acc)
	ADDQ(Imm(4*group), part)
	DECQ(rows)
	JNZ(LabelRef("row"))
	DECQ(chunks)
	JNZ(LabelRef("chunk"))
	VZEROUPPER()
	RET()
}

func broadcast(param string, v reg.VecVirtual) {
	m, err := Param(param).Resolve()
	if err != nil {
		panic(err)
	}
	VBROADCASTSS(m.Addr, v)
}

// each computes dst from the vectors named in from, dst itself first, lane by
// lane; prepare loads what all blocks share.
func each(isa simd.ISA, name string, from []string, prepare func() func(v []reg.VecVirtual)) {
	signature := "func("
	for _, f := range from {
		signature += f + ", "
	}
	text(name+isa.Name, signature[:len(signature)-2]+" *float32, n int)")
	var pointers []reg.Register
	for _, f := range from {
		pointers = append(pointers, Load(Param(f), GP64()))
	}
	n := Load(Param("n"), GP64())
	op := prepare()
	body := func(load, store func(reg.VecVirtual, Mem)) {
		var v []reg.VecVirtual
		for _, p := range pointers {
			v = append(v, isa.Vec())
			load(v[len(v)-1], Mem{Base: p})
		}
		op(v)
		store(v[0], Mem{Base: pointers[0]})
	}
	SUBQ(U32(uint32(isa.Lanes)), n)
	JLT(LabelRef("rest"))
	Label("whole")
	body(func(v reg.VecVirtual, m Mem) { VMOVUPS(m, v) }, func(v reg.VecVirtual, m Mem) { VMOVUPS(v, m) })
	for _, p := range pointers {
		ADDQ(U32(uint32(4*isa.Lanes)), p)
	}
	SUBQ(U32(uint32(isa.Lanes)), n)
	JGE(LabelRef("whole"))
	Label("rest")
	ADDQ(U32(uint32(isa.Lanes)), n)
	JZ(LabelRef("done"))
	mask := isa.Mask(n, 0)
	body(func(v reg.VecVirtual, m Mem) { mask.Load(m, v) }, mask.Store)
	Label("done")
	VZEROUPPER()
	RET()
}

func dtype(f32 bool) string {
	if f32 {
		return "F32"
	}
	return "BF16"
}
