/*
 * The transform of one limb on whatever this processor does best: for host code (encoding, encryption, key
 * generation) that has one polynomial at hand and no device.
 *
 * Constant time: the words decide no branch and no address. The vector versions compute with whole numbers in
 * doubles, never denormal ones, so that each instruction takes the same time for all of them.
 */
#ifndef CKKS_CPU_TRANSFORM_H
#define CKKS_CPU_TRANSFORM_H

#include "kernels/cpu/kernels_cpu.h"

/* transform_forward, transform_inverse: N canonical words to N canonical words, the words of
 * ntt_forward_scalar and ntt_inverse_scalar. out may be in. The instruction set is the machine's best at or
 * below the environment variable CKKSD_ISA, read at the first call (a name that is none of ours bounds
 * nothing: opening a device refuses it). Neither allocates, blocks, nor opens a parallel region; any thread.
 */
void transform_forward(uint64_t *out, const uint64_t *in, const ntt_table *table);
void transform_inverse(uint64_t *out, const uint64_t *in, const ntt_table *table);
/* transform_isa: the instruction set that these take. */
cpu_isa transform_isa(void);

#endif
