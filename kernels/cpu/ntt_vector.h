/*
 * Transforms of one limb on vector units: what other vector kernels use of ntt_lanes.h, for both instruction
 * sets.
 */
#ifndef CKKS_CPU_NTT_VECTOR_H
#define CKKS_CPU_NTT_VECTOR_H

#include "kernels/cpu/kernels_cpu.h"

/* What a forward transform leaves: canonical words of its result x, or, where `minuend` is not NULL, of
 * (minuend - x) * factor. minuend: N canonical words; may not be the output. */
typedef struct forward_store {
    const uint64_t *minuend;
    uint64_t factor;
} forward_store;

/* The words of ntt_forward_scalar. out may be in; store NULL = plain words. */
void vector_forward_avx2(uint64_t *out, const uint64_t *in, const ntt_table *table,
                         const forward_store *store);
/* The same of whole numbers x in doubles, |x| <= reach * q: reach * q < 2^49, or reach <= 2. out may be in.
 */
void vector_forward_f64_avx2(uint64_t *out, const double *in, double reach, const ntt_table *table,
                             const forward_store *store);
/* The words of ntt_inverse_scalar. out may be in. */
void vector_inverse_avx2(uint64_t *out, const uint64_t *in, const ntt_table *table);
/* inverse transform times `factor` (canonical) as centred residues in doubles. out may be in. */
void vector_inverse_f64_avx2(double *out, const uint64_t *in, uint64_t factor, const ntt_table *table);

void vector_forward_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table,
                           const forward_store *store);
void vector_forward_f64_avx512(uint64_t *out, const double *in, double reach, const ntt_table *table,
                               const forward_store *store);
void vector_inverse_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table);
void vector_inverse_f64_avx512(double *out, const uint64_t *in, uint64_t factor, const ntt_table *table);

#endif
