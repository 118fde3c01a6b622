/*
 * Automorphisms a block at a time. Position i of the evaluation domain is the value at psi^(2*bitrev(i)+1),
 * so the high bits of a source position depend on the high bits of i alone: an aligned block of positions
 * reads from one aligned block, permuted inside. That keeps gathers within one cache page and makes the index
 * of a position one byte, found with one multiplication for the block and one table lookup per position.
 */
#ifndef CKKS_CPU_PERMUTE_BLOCK_H
#define CKKS_CPU_PERMUTE_BLOCK_H

#include "kernels/cpu/kernels_cpu.h"

#include <string.h>

#define PERMUTE_BLOCK_BITS 8u
#define PERMUTE_BLOCK      (1u << PERMUTE_BLOCK_BITS)
_Static_assert(CKKS_LOG_N_MIN > PERMUTE_BLOCK_BITS, "a block is at most half a limb");

extern const uint8_t reverse_byte[256];

/* permute_block_fill: out[block * PERMUTE_BLOCK + j] = in[result + index[j]] for out = in(X^g). Returns the
 * first position of the source block. g odd, below 2N. */
static inline uint32_t permute_block_fill(uint8_t index[PERMUTE_BLOCK], uint32_t log_n,
                                          uint32_t galois_element, uint32_t block) {
    const uint32_t high_bits = log_n - PERMUTE_BLOCK_BITS;
    const uint32_t exponent =
        ((2 * reverse_bits(block, high_bits) + 1) * galois_element & ((2u << log_n) - 1)) >> 1;
    const uint32_t base = exponent >> high_bits;
    for (uint32_t j = 0; j < PERMUTE_BLOCK; j++)
        index[j] = reverse_byte[(uint8_t)(base + reverse_byte[j] * galois_element)];
    return reverse_bits(exponent & ((1u << high_bits) - 1), high_bits) * PERMUTE_BLOCK;
}

#endif
