//go:build !noasm

package cpu

import (
	"encoding/binary"
	"unsafe"
)

const (
	amxRows  = 16 // of a tile
	amxPairs = 16
)

// tileConfig says how large the eight tiles are.
type tileConfig [64]byte

// set gives tiles their rows, and the bytes of a row.
func (c *tileConfig) set(rows, bytes int, tiles ...int) {
	c[0] = 1 // the palette
	for _, t := range tiles {
		binary.LittleEndian.PutUint16(c[16+2*t:], uint16(bytes))
		c[48+t] = byte(rows)
	}
}

// linearConfigs are by rows, at most 32, and pairs, less one each: two by two sums, two
// of inputs, and two of weights.
var linearConfigs = func() (list [amxGroup][amxPairs]tileConfig) {
	for i := range list {
		for j := range list[i] {
			c, rows, pairs := &list[i][j], min(i+1, amxRows), j+1
			c.set(rows, lineBytes, 0, 1)
			c.set(rows, 4*pairs, 4)
			c.set(pairs, lineBytes, 6, 7)
			if more := i + 1 - rows; more > 0 {
				c.set(more, lineBytes, 2, 3)
				c.set(more, 4*pairs, 5)
			}
		}
	}
	return list
}()

func linearConfig(rows, pairs int) *byte { return &linearConfigs[rows-1][pairs-1][0] }

const (
	amxGroup = 2 * amxRows // rows whose sums the tiles hold
	amxBlock = 256         // pairs: 32 KB of a panel, in L1 for all groups
)

// dotsAMX multiplies any number of rows. Of 16 pairs it sums the first products and the
// second ones by themselves, then adds the two, and the result to the sum. A block of
// inputs stays in L2 for all panels.
func dotsAMX(rows int, acc *float32, begun bool, w *byte, x *float32, stride, pairs, panels, near int, next uintptr, step int) {
	c := amxCall{rows: rows, panel: pairs * pairBytes, stride: stride, panels: panels}
	block := pairs / amxPairs * amxPairs
	c.near, c.far = near, int(next-uintptr(unsafe.Pointer(w)))
	if rows > amxGroup {
		block, c.near, c.far = amxBlock, 0, c.panel
	}
	// What is ahead is fetched by all groups between them.
	c.lines = step * amxPairs / lineBytes * amxGroup / max(rows, amxGroup)
	for pair := 0; pair < pairs; {
		// The last pairs are fewer than a tile's.
		n := min(max(min(block, pairs-pair)/amxPairs, 1)*amxPairs, pairs-pair)
		c.multiply(acc, begun || pair > 0, unsafe.Add(unsafe.Pointer(w), pair*pairBytes), unsafe.Add(unsafe.Pointer(x), 4*pair), n)
		pair += n
	}
}

// amxCall is what the calls for a product have in common.
type amxCall struct {
	rows, stride     int // of the inputs, see dots
	panels, panel    int // bytes of one
	near, far, lines int
}

// multiply does n pairs: blocks of 16, or less than one.
func (c *amxCall) multiply(acc *float32, begun bool, w, x unsafe.Pointer, n int) {
	const row = 4 * panelOutputs
	pairs, blocks, size := min(n, amxPairs), max(n/amxPairs, 1), c.rows*row
	groups, rest := c.rows/amxGroup, c.rows%amxGroup
	if groups > 0 {
		products32AMX(linearConfig(amxGroup, pairs), acc, size, begun, (*byte)(w), c.panel, (*float32)(x), c.stride, blocks, c.panels, groups, c.near, c.far, c.lines)
	}
	if rest == 0 {
		return
	}
	done := groups * amxGroup
	acc, x = (*float32)(unsafe.Add(unsafe.Pointer(acc), done*row)), unsafe.Add(x, done*c.stride)
	if rest > amxRows {
		products32AMX(linearConfig(rest, pairs), acc, size, begun, (*byte)(w), c.panel, (*float32)(x), c.stride, blocks, c.panels, 1, c.near, c.far, c.lines)
	} else {
		products16AMX(linearConfig(rest, pairs), acc, size, begun, (*byte)(w), c.panel, (*float32)(x), c.stride, blocks, c.panels, 1, c.near, c.far, c.lines)
	}
}

// multiplyTiles does as many multiply-adds a round as four tiles of sums take.
func multiplyTiles(rounds int) float32 { return multiplyAMX(linearConfig(amxGroup, amxPairs), rounds) }

// attentionConfigs are by rows less one, and pairs that are left of a key's tiles: scores
// and queries, or sums of values; keys; the last queries and keys; weights, and values.
var attentionConfigs = func() (list [unitRows][amxPairs]tileConfig) {
	for i := range list {
		for rest := range list[i] {
			c := &list[i][rest]
			c.set(i+1, lineBytes, 0, 1)
			c.set(amxPairs, lineBytes, 2)
			if rest > 0 {
				c.set(i+1, 4*rest, 3)
				c.set(rest, lineBytes, 4)
			}
			c.set(i+1, 2*groupPositions, 5)
			c.set(groupPositions/2, lineBytes, 6, 7)
		}
	}
	return list
}()

func attentionConfig(rows, pairs int) *byte { return &attentionConfigs[rows-1][pairs%amxPairs][0] }

type passAMX func(config *byte, acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32)

var mixersAMX = func() *mixerKernels {
	k := *mixersAVX512
	for i, pass := range [unitRows]passAMX{
		passAMXRows1, passAMXRows2, passAMXRows3, passAMXRows4, passAMXRows5, passAMXRows6, passAMXRows7, passAMXRows8,
	} {
		k.scoresDots[i], k.weightsDots[i], k.mixDots[i] = nil, nil, nil // they add in another order
		k.passDots[i] = func(acc *float32, k **byte, keys int, v **byte, values int, q *float32, pairs, chunks, ahead int, scores, before, p, sum *float32) {
			if values > 0 {
				clear(unsafe.Slice(acc, chunks*(i+1)*chunkDims))
			}
			pass(attentionConfig(i+1, pairs), acc, k, keys, v, values, q, pairs, chunks, ahead, scores, before, p, sum)
		}
	}
	return &k
}()
