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
	tile  = 32  // value dims, see deltastate.go
)

func main() {
	ConstraintExpr("!noasm")
	for _, isa := range []simd.ISA{simd.AVX2, simd.AVX512} {
		for _, f32 := range []bool{false, true} {
			for _, rows := range []int{1, 2, 4, 8} {
				scores(isa, rows, f32)
				mix(isa, rows, f32)
			}
		}
		softmax(isa)
		merge(isa)
		product(isa, "pairs", block)
		product(isa, "product", tile)
		weigh(isa)
		solve(isa)
		match(isa)
		token(isa)
		update(isa)
		convolve(isa)
		rotate(isa)
		collect(isa)
		zip(isa)
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
	isa simd.ISA
	f32 bool
	odd reg.VecVirtual // mask
}

func newPair(isa simd.ISA, f32 bool) *pair {
	p := &pair{isa: isa, f32: f32}
	if !f32 {
		p.odd = isa.Vec()
		mask := GP32()
		MOVL(U32(0xffff0000), mask)
		if isa.Wide() {
			VPBROADCASTD(mask, p.odd)
		} else {
			VMOVD(mask, p.odd.AsX())
			VPBROADCASTD(p.odd.AsX(), p.odd)
		}
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
	for k := range w {
		w[k] = p.isa.Vec()
		switch {
		case p.f32:
			m := at
			m.Disp += k * 4 * group
			VMOVUPS(m, w[k])
		case k == 1:
			p.isa.And(at, p.odd, w[k])
		case p.isa.Wide():
			VPSLLD(Imm(16), at, w[k])
		default:
			VMOVDQU(at, w[k])
			VPSLLD(Imm(16), w[k], w[k])
		}
	}
	return w
}

// fma adds w times the number at m to sum.
func fma(isa simd.ISA, m Mem, w, sum reg.VecVirtual) {
	if isa.Wide() {
		VFMADD231PS_BCST(m, w, sum)
		return
	}
	v := isa.Vec()
	VBROADCASTSS(m, v)
	VFMADD231PS(v, w, sum)
}

// passes calls f for each block of rows whose accumulators fit the registers,
// and each block of lanes. The first pass is the one to fetch ahead.
func passes(isa simd.ISA, rows int, f func(pass, row, rows, lane int)) {
	most := 8
	if !isa.Wide() {
		most = 4
	}
	pass := 0
	for row := 0; row < rows; row += most {
		for lane := 0; lane < group; lane += isa.Lanes {
			f(pass, row, min(most, rows-row), lane)
			pass++
		}
	}
}

// scores multiplies queries [dims][rows] by the keys of a group.
func scores(isa simd.ISA, rows int, f32 bool) {
	text(fmt.Sprintf("scores%s%sRows%d", dtype(f32), isa.Name, rows), "func(s *float32, k *byte, q *float32, pairs int, next *byte)")
	s, k := Load(Param("s"), GP64()), Load(Param("k"), GP64())
	keys := newPair(isa, f32)
	passes(isa, rows, func(pass, row, n, lane int) {
		q, pairs := Load(Param("q"), GP64()), Load(Param("pairs"), GP64())
		at := GP64()
		MOVQ(k, at)
		var next reg.Register
		if pass == 0 {
			next = Load(Param("next"), GP64())
		}
		var sums [2][]reg.VecVirtual // even and odd dims
		for i := range sums {
			for range n {
				sums[i] = append(sums[i], isa.Zero())
			}
		}
		loop := fmt.Sprintf("pair%d", pass)
		Label(loop)
		if pass == 0 {
			for line := 0; line < keys.bytes(); line += 64 {
				PREFETCHT0(Mem{Base: next, Disp: line})
			}
			ADDQ(U32(uint32(keys.bytes())), next)
		}
		w := keys.load(Mem{Base: at}, lane)
		for i := range w {
			for r := range n {
				fma(isa, Mem{Base: q, Disp: 4 * (i*rows + row + r)}, w[i], sums[i][r])
			}
		}
		ADDQ(U32(uint32(keys.bytes())), at)
		ADDQ(U32(uint32(8*rows)), q)
		DECQ(pairs)
		JNZ(LabelRef(loop))
		for r := range n {
			VADDPS(sums[1][r], sums[0][r], sums[0][r])
			VMOVUPS(sums[0][r], Mem{Base: s, Disp: 4 * ((row+r)*split + lane)})
		}
	})
	VZEROUPPER()
	RET()
}

// mix adds the values of a group, weighted, to acc [dims/16][rows][16].
func mix(isa simd.ISA, rows int, f32 bool) {
	text(fmt.Sprintf("mix%s%sRows%d", dtype(f32), isa.Name, rows), "func(acc *float32, v *byte, p *float32, chunks int, next *byte)")
	acc, v := Load(Param("acc"), GP64()), Load(Param("v"), GP64())
	p, chunks := Load(Param("p"), GP64()), Load(Param("chunks"), GP64())
	next := Load(Param("next"), GP64())
	values := newPair(isa, f32)
	bytes := group / 2 * values.bytes() // of a chunk
	Label("chunk")
	for line := 0; line < bytes; line += 64 {
		PREFETCHT0(Mem{Base: next, Disp: line})
	}
	passes(isa, rows, func(_, row, n, lane int) {
		var sums []reg.VecVirtual
		at := func(r int) Mem { return Mem{Base: acc, Disp: 4 * ((row+r)*group + lane)} }
		for r := range n {
			sums = append(sums, isa.Vec())
			VMOVUPS(at(r), sums[r])
		}
		for i := range group / 2 {
			w := values.load(Mem{Base: v, Disp: i * values.bytes()}, lane)
			for k := range w {
				for r := range n {
					fma(isa, Mem{Base: p, Disp: 4 * ((row+r)*split + 2*i + k)}, w[k], sums[r])
				}
			}
		}
		for r := range n {
			VMOVUPS(sums[r], at(r))
		}
	})
	ADDQ(U32(uint32(bytes)), v)
	ADDQ(U32(uint32(bytes)), next)
	ADDQ(U32(uint32(4*group*rows)), acc)
	DECQ(chunks)
	JNZ(LabelRef("chunk"))
	VZEROUPPER()
	RET()
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
