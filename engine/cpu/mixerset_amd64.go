//go:build !noasm

package cpu

func mixersFor(isa ISA) *mixerKernels {
	switch isa {
	case AMX:
		return mixersAMX
	case AVX512:
		return mixersAVX512
	case AVX2:
		return mixersAVX2
	}
	return mixersGeneric
}

var mixersAVX2 = &mixerKernels{
	scoresBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresBF16AVX2Rows1, scoresBF16AVX2Rows2, scoresBF16AVX2Rows3, scoresBF16AVX2Rows4,
		scoresBF16AVX2Rows5, scoresBF16AVX2Rows6, scoresBF16AVX2Rows7, scoresBF16AVX2Rows8,
	},
	scoresF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresF32AVX2Rows1, scoresF32AVX2Rows2, scoresF32AVX2Rows3, scoresF32AVX2Rows4,
		scoresF32AVX2Rows5, scoresF32AVX2Rows6, scoresF32AVX2Rows7, scoresF32AVX2Rows8,
	},
	mixBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixBF16AVX2Rows1, mixBF16AVX2Rows2, mixBF16AVX2Rows3, mixBF16AVX2Rows4,
		mixBF16AVX2Rows5, mixBF16AVX2Rows6, mixBF16AVX2Rows7, mixBF16AVX2Rows8,
	},
	mixF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixF32AVX2Rows1, mixF32AVX2Rows2, mixF32AVX2Rows3, mixF32AVX2Rows4,
		mixF32AVX2Rows5, mixF32AVX2Rows6, mixF32AVX2Rows7, mixF32AVX2Rows8,
	},
	softmax:   softmaxAVX2,
	merge:     mergeAVX2,
	product:   productAVX2,
	match:     matchAVX2,
	weigh:     weighAVX2,
	solve:     solveAVX2,
	token:     tokenAVX2,
	update:    updateAVX2,
	convolve:  convolveAVX2,
	gate:      gateAVX2,
	rotate:    rotateAVX2,
	collect:   collectAVX2,
	zip:       zipAVX2,
	zipSecond: zipSecondAVX2,
	storeKey:  storeKeyAVX2,
}

var mixersAVX512 = &mixerKernels{
	scoresBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresBF16AVX512Rows1, scoresBF16AVX512Rows2, scoresBF16AVX512Rows3, scoresBF16AVX512Rows4,
		scoresBF16AVX512Rows5, scoresBF16AVX512Rows6, scoresBF16AVX512Rows7, scoresBF16AVX512Rows8,
	},
	scoresF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		scoresF32AVX512Rows1, scoresF32AVX512Rows2, scoresF32AVX512Rows3, scoresF32AVX512Rows4,
		scoresF32AVX512Rows5, scoresF32AVX512Rows6, scoresF32AVX512Rows7, scoresF32AVX512Rows8,
	},
	mixBF16: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixBF16AVX512Rows1, mixBF16AVX512Rows2, mixBF16AVX512Rows3, mixBF16AVX512Rows4,
		mixBF16AVX512Rows5, mixBF16AVX512Rows6, mixBF16AVX512Rows7, mixBF16AVX512Rows8,
	},
	mixF32: [...]func(*float32, **byte, int, *float32, int, int, int, int){
		mixF32AVX512Rows1, mixF32AVX512Rows2, mixF32AVX512Rows3, mixF32AVX512Rows4,
		mixF32AVX512Rows5, mixF32AVX512Rows6, mixF32AVX512Rows7, mixF32AVX512Rows8,
	},
	scoresDots: [...]func(*float32, **byte, int, *float32, int, int){
		scoresDotsRows1, scoresDotsRows2, scoresDotsRows3, scoresDotsRows4,
		scoresDotsRows5, scoresDotsRows6, scoresDotsRows7, scoresDotsRows8,
	},
	mixDots: [...]func(*float32, **byte, int, *float32, int, int, int){
		mixDotsRows1, mixDotsRows2, mixDotsRows3, mixDotsRows4,
		mixDotsRows5, mixDotsRows6, mixDotsRows7, mixDotsRows8,
	},
	weightsDots: [...]func(w, max, sum *float32, k **byte, splits int, q *float32, pairs, ahead int, work *float32){
		weightsDotsRows1, weightsDotsRows2, weightsDotsRows3, weightsDotsRows4,
		weightsDotsRows5, weightsDotsRows6, weightsDotsRows7, weightsDotsRows8,
	},
	softmax:     softmaxAVX512,
	softmaxDots: softmaxDots,
	merge:       mergeAVX512,
	product:     productAVX512,
	match:       matchAVX512,
	weigh:       weighAVX512,
	solve:       solveAVX512,
	token:       tokenAVX512,
	update:      updateAVX512,
	convolve:    convolveAVX512,
	gate:        gateAVX512,
	rotate:      rotateAVX512,
	collect:     collectAVX512,
	zip:         zipAVX512,
	zipSecond:   zipSecondAVX512,
	storeKey:    storeKeyAVX2,
}
