/*
 * Transforms of one limb on vector units: what other vector kernels use of ntt_avx2.c (whole numbers in
 * doubles) and ntt_avx512.c (integers).
 */
#ifndef CKKS_CPU_NTT_VECTOR_H
#define CKKS_CPU_NTT_VECTOR_H

#include "kernels/cpu/kernels_cpu.h"

/* What a forward transform leaves: canonical words of its result x, or, where `minuend` is not NULL, of
 * (minuend - x) * factor, and with `times` of (minuend * times - x) * factor. Both: N canonical words; may
 * not be the output. */
typedef struct forward_store {
    const uint64_t *minuend, *times;
    uint64_t factor;
} forward_store;
typedef enum forward_leaving { LEAVE_WORDS, LEAVE_DIFFERENCE, LEAVE_PRODUCT } forward_leaving;

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

/*
 * AVX-512 transforms on integers. Between an inverse transform and a base conversion stand *shifted*
 * residues: x of a source prime s as (x + (s-1)/2) mod s, which is the centred residue plus (s-1)/2: what a
 * conversion is defined on, without its sign.
 */
#define FORWARD_SOURCES_MAX (CKKS_DIGIT_SIZE_MAX + 2u)

/* What a forward transform starts from, modulo its prime q: start + sum of words[k][N] * factor[k]. */
typedef struct forward_source {
    const uint64_t *words;
    size_t stride;        /* words from one source to the next */
    uint32_t count;       /* 0: canonical words themselves; 1: words + start, no factor */
    uint64_t words_below; /* count 1: bound of the words, at most 2^50 */
    uint64_t start;       /* canonical */
    uint64_t factor[FORWARD_SOURCES_MAX], quotient[FORWARD_SOURCES_MAX]; /* canonical; mod_shoup of it */
} forward_source;

void vector_forward_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table,
                           const forward_store *store);
/* out may not be a source */
void vector_forward_source_avx512(uint64_t *out, const forward_source *from, const ntt_table *table,
                                  const forward_store *store);
void vector_inverse_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table);
/* inverse transform times `factor` (canonical), shifted. out may be in. */
void vector_inverse_shifted_avx512(uint64_t *out, const uint64_t *in, uint64_t factor,
                                   const ntt_table *table);

#endif
