/*
 * Small secret polynomials: the ternary secret and the centred binomial error. Constant time: no branch and
 * no address depends on a drawn value, except that the number of rejected ternary draws shows in the time
 * taken; rejected draws are independent of those kept.
 *
 * A sampler is a ChaCha20 stream under a key from the operating system, drawn anew for each operation. It is
 * secret: keep it in secret memory (secret_memory.h).
 */
#ifndef CKKS_SCHEME_SAMPLE_H
#define CKKS_SCHEME_SAMPLE_H

#include "kernels/scheme/mod.h"

#include <stddef.h>

#define SAMPLER_KEY_BYTES   32u
#define SAMPLER_CHUNK_BYTES 4096u
#define SAMPLE_ERROR_MAX    21 /* |error| */

typedef struct sampler {
    uint8_t key[SAMPLER_KEY_BYTES];
    uint32_t block;  /* next block of the stream */
    uint32_t stream; /* nonce */
    uint8_t chunk[SAMPLER_CHUNK_BYTES];
} sampler;

/* sampler_init keys from the operating system. sampler_init_key: for tests, reproducible. Each `stream` of
 * one key is independent. */
void sampler_init(sampler *s);
void sampler_init_key(sampler *s, const uint8_t key[SAMPLER_KEY_BYTES], uint32_t stream);

/* uniform in {-1, 0, 1}: two bits a draw, 3 rejected */
void sample_ternary(int8_t *out, size_t n, sampler *s);
/* centred binomial, 21 + 21 bits: deviation sqrt(10.5) = 3.24. Eight bytes a coefficient: the number of ones
 * in bits 0..20 minus that in bits 21..41. */
void sample_error(int8_t *out, size_t n, sampler *s);

/* small_to_residues: coefficients of magnitude below q to canonical residues, without a branch. */
void small_to_residues(uint64_t *out, const int8_t *in, size_t n, uint64_t q);

#endif
