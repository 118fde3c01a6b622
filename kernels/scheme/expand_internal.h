/* Seed expansion straight into a product with the secret. Included by kernels/scheme only. */
#ifndef CKKS_SCHEME_EXPAND_INTERNAL_H
#define CKKS_SCHEME_EXPAND_INTERNAL_H

#include "kernels/scheme/expand.h"
#include "kernels/scheme/limb_loops_internal.h"

/* out = out (+ plus, unless NULL) - a * s for the uniform limb a that seed_expand gives. Constant time in all
 * but the seed. */
void seed_subtract_product(uint64_t *out, const uint64_t *s, const uint64_t *plus, const ntt_table *t,
                           const uint8_t seed[SEED_BYTES], uint32_t purpose, uint32_t polynomial,
                           uint32_t prime_index);

#endif
