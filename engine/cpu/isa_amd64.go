//go:build !noasm

package cpu

import "github.com/klauspost/cpuid/v2"

func detectISA() ISA {
	switch {
	case cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL, cpuid.FMA3, cpuid.AVX2):
		if cpuid.CPU.Supports(cpuid.AVX512BF16, cpuid.AMXTILE, cpuid.AMXBF16) && tilesAllowed() {
			return AMX
		}
		return AVX512
	case cpuid.CPU.Supports(cpuid.FMA3, cpuid.AVX2):
		return AVX2
	}
	return Generic
}

// These keep L1 and L2 of a Xeon filled by instruction. On a Granite Rapids, whose hardware
// alone reads 35 GB/s on two cores, both together make it 40. What takes longer over each
// line wants it fetched earlier: kernels of AVX2 for one to three rows and attention in
// vectors, and then kernels whose parts take turns. With one for another, a decode step
// takes 5 to 20 % longer.
var (
	xeonFetch      = fetch{near: 2048, far: 3584, keys: 8192, state: 4096}
	xeonFetchFar   = fetch{near: 3072, far: 6144, keys: 8192, state: 4096}
	xeonFetchTurns = fetch{near: 5120, far: 8192, keys: 8192}
)

// fewFetch is that of kernels that wait for memory, on a Xeon as given. A fetch into L1 by
// instruction holds a miss buffer of L1 until memory answers. Zen has 24 of them: from
// scattered memory a core of Zen 4 gets 10 GB/s so, and 17 by fetches into L2. Its hardware
// fetches into L2 by itself, up to 33 GB/s, but only following misses in order: so where
// kernels wait for runs of memory, the instructions stay out of its way.
func fewFetch(xeon fetch) fetch {
	if cpuid.CPU.IsVendor(cpuid.AMD) {
		return fetch{near: 256, far: 256, keys: 256, state: 128}
	}
	return xeon
}

// manyFetch is that of kernels for more rows, whose misses come too slowly for the
// hardware of Zen: far fetches hide the latency better.
func manyFetch(xeon fetch) fetch {
	if cpuid.CPU.IsVendor(cpuid.AMD) {
		return fetch{near: 4096, far: 16384, keys: 16384}
	}
	return xeon
}

// probeFetch is that of the probe, which computes nothing. It is fastest on Zen without
// any.
func probeFetch() fetch {
	if cpuid.CPU.IsVendor(cpuid.AMD) {
		return fetch{}
	}
	return xeonFetch
}

func kernelsFor(isa ISA) *kernels {
	switch isa {
	case AMX:
		return amx
	case AVX512:
		if cpuid.CPU.Supports(cpuid.AVX512BF16) {
			return avx512Dots
		}
		return avx512
	case AVX2:
		return avx2
	}
	return generic
}

var avx2 = &kernels{
	blocking: vectorBlocking(maxTileRows),
	lanes:    8,
	tileBF16: [maxTileRows]tileKernel{
		tileBF16AVX2Rows1, tileBF16AVX2Rows2, tileBF16AVX2Rows3,
		tileBF16AVX2Rows4, tileBF16AVX2Rows5, tileBF16AVX2Rows6,
		tileBF16AVX2Rows7, tileBF16AVX2Rows8, tileBF16AVX2Rows9,
		tileBF16AVX2Rows10, tileBF16AVX2Rows11, tileBF16AVX2Rows12,
	},
	tileF32: [maxTileRows]tileKernel{
		tileF32AVX2Rows1, tileF32AVX2Rows2, tileF32AVX2Rows3,
		tileF32AVX2Rows4, tileF32AVX2Rows5, tileF32AVX2Rows6,
		tileF32AVX2Rows7, tileF32AVX2Rows8, tileF32AVX2Rows9,
		tileF32AVX2Rows10, tileF32AVX2Rows11, tileF32AVX2Rows12,
	},
	few:       fewFetch(xeonFetchFar),
	many:      manyFetch(xeonFetchTurns),
	runs:      fewFetch(xeonFetchFar),
	probe:     probeFetch(),
	pack4:     pack4,
	packNorm4: packNorm4,
	dot:       dotAVX2,
	axpy:      axpyAVX2,
	near:      epilogues{storePanelsAVX2, addPanelsAVX2, swigluPanelsAVX2},
	away:      epilogues{storePanelsAwayAVX2, addPanelsAwayAVX2, swigluPanelsAwayAVX2},
	add:       addAVX2,
	scale:     scaleAVX2,
	exp:       expAVX2,
	silu:      siluAVX2,
	swiglu:    swigluAVX2,
	scan:      scanAVX2,
	index:     indexAVX2,
	stream:    streamAVX2,
	multiply:  multiplyAVX2,
}

var avx512 = &kernels{
	blocking: vectorBlocking(maxTileRows),
	lanes:    16,
	tileBF16: [maxTileRows]tileKernel{
		tileBF16AVX512Rows1, tileBF16AVX512Rows2, tileBF16AVX512Rows3,
		tileBF16AVX512Rows4, tileBF16AVX512Rows5, tileBF16AVX512Rows6,
		tileBF16AVX512Rows7, tileBF16AVX512Rows8, tileBF16AVX512Rows9,
		tileBF16AVX512Rows10, tileBF16AVX512Rows11, tileBF16AVX512Rows12,
	},
	tileF32: [maxTileRows]tileKernel{
		tileF32AVX512Rows1, tileF32AVX512Rows2, tileF32AVX512Rows3,
		tileF32AVX512Rows4, tileF32AVX512Rows5, tileF32AVX512Rows6,
		tileF32AVX512Rows7, tileF32AVX512Rows8, tileF32AVX512Rows9,
		tileF32AVX512Rows10, tileF32AVX512Rows11, tileF32AVX512Rows12,
	},
	few:       fewFetch(xeonFetch),
	many:      manyFetch(xeonFetch),
	runs:      fewFetch(xeonFetchFar),
	probe:     probeFetch(),
	pack4:     pack4,
	packNorm4: packNorm4,
	dot:       dotAVX512,
	axpy:      axpyAVX512,
	near:      epilogues{storePanelsAVX512, addPanelsAVX512, swigluPanelsAVX512},
	away:      epilogues{storePanelsAwayAVX512, addPanelsAwayAVX512, swigluPanelsAwayAVX512},
	add:       addAVX512,
	scale:     scaleAVX512,
	exp:       expAVX512,
	silu:      siluAVX512,
	swiglu:    swigluAVX512,
	scan:      scanAVX512,
	index:     indexAVX512,
	stream:    streamAVX512,
	multiply:  multiplyAVX512,
}

var (
	avx512Dots = withDots(*avx512)
	amx        = withTiles(*avx512Dots)
)

// withTiles multiplies in AMX, however many rows; so many share a pass over the weights
// that their inputs, of a block, and their sums stay in L2.
func withTiles(k kernels) *kernels {
	k.slowDots = false
	k.dots, k.dotBlocking = dotsAMX, blocking{rows: 512, chunk: 512, panels: 8}
	k.multiplyDots, k.dotFLOPs = multiplyTiles, 4*2*amxRows*amxRows*2*amxPairs
	return &k
}

// withDots adds the kernels for AVX512_BF16.
func withDots(k kernels) *kernels {
	k.slowDots = !cpuid.CPU.IsVendor(cpuid.AMD) // on Granite Rapids VDPBF16PS does half of what fused multiply-adds do
	k.dots, k.dotBlocking, k.dotFLOPs = dotsAVX512, vectorBlocking(maxTileRows), 2*2*multiplyChains*k.lanes
	k.round, k.roundAway, k.scaleRound, k.multiplyDots = roundDots, roundDotsAway, scaleRoundDots, multiplyDots
	return &k
}

var tileDots = [maxTileRows]func(acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, near int, next uintptr, step int){
	tileDotsRows1, tileDotsRows2, tileDotsRows3, tileDotsRows4, tileDotsRows5, tileDotsRows6,
	tileDotsRows7, tileDotsRows8, tileDotsRows9, tileDotsRows10, tileDotsRows11, tileDotsRows12,
}

func dotsAVX512(rows int, acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, near int, next uintptr, step int) {
	tileDots[rows-1](acc, begun, w, x, stride, pairs, panels, near, next, step)
}
