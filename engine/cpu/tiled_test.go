package cpu

import (
	"math"
	"unsafe"
)

// AMX in Go, the oracle of its kernels.

const tilePairs = 16

// addTiled adds n products of pairs as AMX does: of 16 pairs it sums the first products
// and the second ones by themselves, then adds the two, and the result to the sum.
func addTiled(sum *float32, n int, pair func(i int) (x, y uint32)) {
	for begin := 0; begin < n; begin += tilePairs {
		var first, second float32
		for i := begin; i < min(begin+tilePairs, n); i++ {
			x, y := pair(i)
			first = addProduct(first, x<<16, y<<16)
			second = addProduct(second, x&0xffff0000, y&0xffff0000)
		}
		*sum = flush(flush(*sum) + flush(first+second))
	}
}

func addProduct(sum float32, x, y uint32) float32 {
	return flush(fma(flush(math.Float32frombits(x)), flush(math.Float32frombits(y)), sum))
}

func words(p unsafe.Pointer, n int) []uint32 { return unsafe.Slice((*uint32)(p), n) }

func dotsTiled(rows int, acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, _ int, _ uintptr, _ int) {
	sums, ws := unsafe.Slice(acc, panels*rows*panelOutputs), words(unsafe.Pointer(w), panels*pairs*panelOutputs)
	if !begun {
		clear(sums)
	}
	for at := range sums {
		o, r, p := at%panelOutputs, at/panelOutputs%rows, at/panelOutputs/rows
		xs := words(unsafe.Add(unsafe.Pointer(x), r*stride), pairs)
		addTiled(&sums[at], pairs, func(i int) (uint32, uint32) { return xs[i], ws[(p*pairs+i)*panelOutputs+o] })
	}
}

func mixersTiled() *mixerKernels {
	k := *mixersGeneric
	for i := range unitRows {
		k.scoresDots[i] = scoresTiled(i + 1)
		k.weightsDots[i] = weightsDotsGeneric(i+1, k.scoresDots[i])
		k.mixDots[i] = mixTiled(i + 1)
	}
	return &k
}

func scoresTiled(rows int) func(s *float32, k **byte, groups int, q *float32, pairs, ahead int) {
	return func(s *float32, k **byte, groups int, q *float32, pairs, _ int) {
		qs, out := words(unsafe.Pointer(q), (rows-1)*dotRowWords+pairs), unsafe.Slice(s, (rows-1)*splitPositions+groups*groupPositions)
		for g, keys := range unsafe.Slice(k, groups) {
			ks := words(unsafe.Pointer(keys), pairs*groupPositions)
			for r := range rows {
				for lane := range groupPositions {
					sum := float32(0)
					addTiled(&sum, pairs, func(i int) (uint32, uint32) { return qs[r*dotRowWords+i], ks[i*groupPositions+lane] })
					out[r*splitPositions+g*groupPositions+lane] = sum
				}
			}
		}
	}
}

func mixTiled(rows int) func(acc *float32, v **byte, groups int, p *float32, chunks, ahead, stride int) {
	const positions = groupPositions / 2 // pairs
	return func(acc *float32, v **byte, groups int, p *float32, chunks, _, stride int) {
		for g, values := range unsafe.Slice(v, groups) {
			split, in := g/splitGroups, g%splitGroups
			sums := unsafe.Slice((*lanes16)(unsafe.Add(unsafe.Pointer(acc), split*stride)), chunks*rows)
			if in == 0 {
				clear(sums)
			}
			vs := words(unsafe.Pointer(values), chunks*positions*chunkDims)
			for i := range sums {
				chunk, r := i/rows, i%rows
				ps := words(unsafe.Add(unsafe.Pointer(p), 4*((split*unitRows+r)*dotRowWords+in*positions)), positions)
				for lane := range sums[i] {
					addTiled(&sums[i][lane], positions, func(j int) (uint32, uint32) { return ps[j], vs[(chunk*positions+j)*chunkDims+lane] })
				}
			}
		}
	}
}
