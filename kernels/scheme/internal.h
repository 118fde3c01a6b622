/*
 * What kernels/cpu and kernels/scheme share about a context: transform tables and conversion constants.
 * Included by kernels/ only.
 */
#ifndef CKKS_SCHEME_INTERNAL_H
#define CKKS_SCHEME_INTERNAL_H

#include "kernels/scheme/mod.h"
#include "kernels/scheme/params.h"

/* One prime's tables. psi_forward[i] = psi^bitrev(i), psi_inverse likewise of psi^-1, each with its Shoup
 * quotient. */
typedef struct ntt_table {
    modulus m;
    uint32_t log_n;
    uint64_t n_inverse, n_inverse_shoup;
    const uint64_t *forward, *forward_shoup;           /* [N] */
    const uint64_t *inverse, *inverse_shoup;           /* [N] */
    const double *forward_f64, *inverse_f64;           /* [N], the same roots as centred residues, for AVX2 */
    const uint64_t *forward_shoup52, *inverse_shoup52; /* [N], their quotients of 52 bits, for AVX-512 */
} ntt_table;

/* context_ntt: prime index in the full list (all q, then all p). */
const ntt_table *context_ntt(const ckks_context *context, uint32_t prime_index);

/*
 * Constants of one base conversion from source primes S to any prime j of the full list, D = prod S.
 * hat_inverse[i] = (D/s_i)^-1 mod s_i; hat[i * prime_count + j] = D/s_i mod j; product[j] = D mod j;
 * product_inverse[j] = D^-1 mod j (0 where j is in S). Shoup quotients beside them.
 */
typedef struct base_conversion {
    uint32_t source_count;
    uint32_t source[CKKS_DIGIT_SIZE_MAX + 2]; /* indices in the full list */
    uint64_t hat_inverse[CKKS_DIGIT_SIZE_MAX + 2], hat_inverse_shoup[CKKS_DIGIT_SIZE_MAX + 2];
    const uint64_t *hat;
    const uint64_t *product;
    const uint64_t *product_inverse, *product_inverse_shoup;
} base_conversion;

/* digit `digit` as it stands at `level` (the last one may be short) */
const base_conversion *context_mod_up(const ckks_context *context, uint32_t level, uint32_t digit);
/* all p; with_rescale: all p and q_level */
const base_conversion *context_mod_down(const ckks_context *context, uint32_t level, bool with_rescale);
/* q_level alone */
const base_conversion *context_rescale(const ckks_context *context, uint32_t level);
/* P mod prime j and its Shoup quotient */
void context_p_product(const ckks_context *context, uint32_t prime_index, uint64_t *value, uint64_t *shoup);
/*
 * Roots of the encoder: N/2 cosines (the last one unused), then N/2 sines; for each stage length 2, 4, ...
 * N/2 one after the other (stage `length` from length/2 - 1 on), cos and sin of 2 pi (5^j mod 4 length) / (4
 * length) for j < length/2, each correctly rounded. They do not depend on the slot count.
 */
const double *context_encoder_roots(const ckks_context *context);

/* permutation of evaluation positions for a Galois element: out[i] = in[index[i]]. Computed: out position i
 * holds the value at psi^(2*bitrev(i)+1), so index = bitrev(((2*bitrev(i)+1)*g mod 2N - 1)/2). */
uint32_t automorphism_index(uint32_t log_n, uint32_t galois_element, uint32_t i);

/* ---- scalar transforms, the definition's fast form; words equal to the O(N^2) definition. Canonical in and
 * out; out may be in. No branch or address depends on the words. ---- */
void ntt_forward_scalar(uint64_t *out, const uint64_t *in, const ntt_table *table);
void ntt_inverse_scalar(uint64_t *out, const uint64_t *in, const ntt_table *table);
/* ntt_forward_ref: value at psi^(2*bitrev(i)+1), by the definition, O(N^2). The oracle of every other
 * forward. */
void ntt_forward_ref(uint64_t *out, const uint64_t *in, const ntt_table *table);

#endif
