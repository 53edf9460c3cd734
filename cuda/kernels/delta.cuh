// What the kernels of the gated delta rule share.
//
// proj is [token][q | k | v | z | b | a], heads in order within each; conv is
// its q | k | v after the convolution. State: [slot][value head][key dim][value
// dim], and [slot][tap][channel].
//
// The tokens of a prompt row go by chunks as far as whole ones reach, counted
// from the row's first token (delta_chunks.cu), and then one by one, as the
// tokens of decode rows do (delta.cu): that depends on the row alone.
#pragma once
#include "device.cuh"

constexpr int max_key_dim = 128;
constexpr float norm_eps = 1e-6f;  // of queries and keys

// decay_of is e^g of one token and head: 0 forgets the state, 1 keeps it.
static __device__ __forceinline__ float decay_of(float a, float rate, float bias) { return expf(-rate * softplus(a + bias)); }
