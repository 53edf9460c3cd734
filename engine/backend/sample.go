package backend

import (
	"fmt"
	"math"
)

// Sampler draws tokens on the host. The zero value is ready; its scratch
// grows to the vocabulary at first use, and nothing is allocated after that.
// Not safe for concurrent use.
type Sampler struct {
	prob []float64 // by token, not normalised
	heap []int32   // tokens, the most probable first
	kept []int32   // in order of probability
}

// Sample draws one token from logits. Greedy takes the first of the largest.
// Otherwise the temperature is applied first, then TopK, then TopP to what is
// left: the fewest tokens, in order of probability, whose share is at least
// TopP. Of equal logits the lower token comes first.
//
// It fails, naming the row, on a NaN and on an infinite largest logit.
func (s *Sampler) Sample(row int, logits []float32, p Sampling) (int32, error) {
	best := 0
	for i, v := range logits {
		if v != v {
			return 0, fmt.Errorf("logit %d of row %d is NaN", i, row)
		}
		if v > logits[best] {
			best = i
		}
	}
	if math.IsInf(float64(logits[best]), 0) {
		return 0, fmt.Errorf("the largest logit of row %d, %d, is %v", row, best, logits[best])
	}
	if p.Temperature == 0 || p.TopK == 1 {
		return int32(best), nil
	}

	if cap(s.prob) < len(logits) {
		s.prob = make([]float64, len(logits))
		s.heap = make([]int32, len(logits))
		s.kept = make([]int32, len(logits))
	}
	prob, all := s.prob[:len(logits)], 0.0
	for i, v := range logits {
		prob[i] = math.Exp((float64(v) - float64(logits[best])) / float64(p.Temperature))
		all += prob[i]
	}
	byTopK := p.TopK > 0 && p.TopK < len(logits)
	byTopP := p.TopP > 0 && p.TopP < 1
	if !byTopK && !byTopP {
		limit := p.Uniform * all
		last := best
		for i, v := range prob {
			if v > 0 {
				if last = i; limit < v {
					break
				}
				limit -= v
			}
		}
		return int32(last), nil
	}

	// A heap costs one pass, and then only what is kept.
	s.heap = s.heap[:len(logits)]
	for i := range s.heap {
		s.heap[i] = int32(i)
	}
	for i := len(s.heap)/2 - 1; i >= 0; i-- {
		s.sift(i)
	}
	kept := s.kept[:0]
	if byTopK {
		all = 0
		for range p.TopK {
			t := s.pop()
			kept = append(kept, t)
			all += prob[t]
		}
	}
	if byTopP {
		enough := float64(p.TopP) * all
		all = 0
		for n := 0; n < len(logits); n++ {
			if n == len(kept) {
				if byTopK {
					break
				}
				kept = append(kept, s.pop())
			}
			if all += prob[kept[n]]; all >= enough {
				kept = kept[:n+1]
				break
			}
		}
	}
	limit := p.Uniform * all
	for _, t := range kept {
		if limit < prob[t] {
			return t, nil
		}
		limit -= prob[t]
	}
	return kept[len(kept)-1], nil // the sums were rounded differently
}

// before says whether token a stands before b in order of probability.
func (s *Sampler) before(a, b int32) bool {
	return s.prob[a] > s.prob[b] || s.prob[a] == s.prob[b] && a < b
}

func (s *Sampler) sift(i int) {
	for {
		top := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(s.heap); c++ {
			if s.before(s.heap[c], s.heap[top]) {
				top = c
			}
		}
		if top == i {
			return
		}
		s.heap[i], s.heap[top] = s.heap[top], s.heap[i]
		i = top
	}
}

func (s *Sampler) pop() int32 {
	t, last := s.heap[0], len(s.heap)-1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	s.sift(0)
	return t
}
