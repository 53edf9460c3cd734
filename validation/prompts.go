package validation

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
)

// Prompts draws random prompts, never the same twice. A prompt that an engine
// has seen may be answered from a cache, and then the cache is measured.
type Prompts struct {
	rng    *rand.Rand
	length int
	vocab  int32
	avoid  []int32 // ids with a meaning, such as the end of the text
	seen   map[string]bool
}

// NewPrompts makes a source whose prompts depend on the seed and the label alone.
func NewPrompts(seed uint64, label string, length, vocab int, avoid []int32) *Prompts {
	h := fnv.New64a()
	h.Write([]byte(label))
	return &Prompts{
		rng:    rand.New(rand.NewPCG(seed, h.Sum64())),
		length: length, vocab: int32(vocab), avoid: avoid,
		seen: make(map[string]bool),
	}
}

// Enough fails if there are too few distinct prompts to draw n of them easily.
func (p *Prompts) Enough(n int) error {
	ids := float64(int(p.vocab) - len(p.avoid))
	if have := math.Pow(ids, float64(p.length)); have < 4*float64(n) {
		return fmt.Errorf("%d prompts of %d tokens, none twice, cannot be drawn from a vocabulary of %d; take a larger -prompt-length",
			n, p.length, p.vocab)
	}
	return nil
}

// Next draws a prompt.
func (p *Prompts) Next() []int32 {
	for {
		prompt := make([]int32, p.length)
		for i := range prompt {
			prompt[i] = p.token()
		}
		if d := digest(prompt); !p.seen[d] {
			p.seen[d] = true
			return prompt
		}
	}
}

func (p *Prompts) token() int32 {
	for {
		if id := p.rng.Int32N(p.vocab); !slices.Contains(p.avoid, id) {
			return id
		}
	}
}

// digest names a list of tokens: the first 16 bytes of its SHA-256, in hex.
func digest(tokens []int32) string {
	h := sha256.New()
	buf := make([]byte, 4)
	for _, t := range tokens {
		binary.LittleEndian.PutUint32(buf, uint32(t))
		h.Write(buf)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
