package cpu

import (
	"math"
	"slices"
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

// passTiled is mixerKernels.passDots of so many rows.
func passTiled(rows int) func(acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32) {
	largest := func(scores *float32) []float32 { return unsafe.Slice(scores, passWork)[unitRows*splitPositions:] }
	return func(acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, _ int, scores, before, p, sum *float32) {
		if values > 0 {
			for r := range rows {
				weights := slices.Clone(unsafe.Slice(before, passWork)[r*splitPositions:][:values*groupPositions])
				var sums lanes16
				for i, x := range weights {
					weights[i] = weightGeneric(x, largest(before)[unitRows+r])
					sums[i%groupPositions] += weights[i]
				}
				unsafe.Slice(sum, rows)[r] = sumLanes(&sums)
				roundGeneric(&unsafe.Slice(p, rows*dotRowWords)[r*dotRowWords], &weights[0], len(weights))
			}
			mixTiled(rows, acc, v, values, p, chunks)
		}
		if keys > 0 {
			scoresTiled(rows, scores, k, keys, q, pairs)
			for r := range rows {
				found := float32(math.Inf(-1))
				for _, x := range unsafe.Slice(scores, passWork)[r*splitPositions:][:keys*groupPositions] {
					if x > found {
						found = x
					}
				}
				largest(scores)[r], largest(scores)[unitRows+r] = found, max(found, -math.MaxFloat32)
			}
		}
	}
}

// scoresTiled multiplies queries by the keys of groups.
func scoresTiled(rows int, s *float32, k **byte, groups int, q *float32, pairs int) {
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

// mixTiled adds up the weighted values of groups.
func mixTiled(rows int, acc *float32, v **byte, groups int, p *float32, chunks int) {
	const positions = groupPositions / 2 // pairs
	sums := unsafe.Slice((*lanes16)(unsafe.Pointer(acc)), chunks*rows)
	clear(sums)
	for g, values := range unsafe.Slice(v, groups) {
		vs := words(unsafe.Pointer(values), chunks*positions*chunkDims)
		for i := range sums {
			chunk, r := i/rows, i%rows
			ps := words(unsafe.Add(unsafe.Pointer(p), 4*(r*dotRowWords+g*positions)), positions)
			for lane := range sums[i] {
				addTiled(&sums[i][lane], positions, func(j int) (uint32, uint32) { return ps[j], vs[(chunk*positions+j)*chunkDims+lane] })
			}
		}
	}
}
