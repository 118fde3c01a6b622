/*
 * The inner loops of encoding, encryption, decryption and key generation on the host: over one limb, or over
 * a run of coefficients. One table of functions per instruction set; all write the same words, the scalar
 * ones are the definition. Included by kernels/scheme and its tests.
 *
 * Constant time in the words, coefficients and draws they are given: no branch, no address, and in the vector
 * versions whole numbers in doubles, which take the same time whatever they are. The exception says so.
 *
 * n is N or, where a function takes part of a limb, a multiple of 8.
 */
#ifndef CKKS_SCHEME_LIMB_LOOPS_H
#define CKKS_SCHEME_LIMB_LOOPS_H

#include "kernels/cpu/kernels_cpu.h"

/*
 * How decoding finds most integers: from the first two limbs, x = y0 + q0 * y1 with centred y0 and y1, where
 * all other limbs agree. What that misses is beyond q0 * q1 / 2 and takes the exact way.
 */
typedef struct near_integer {
    uint32_t limb_count;
    const modulus *m[CKKS_PRIMES_MAX];
    uint64_t q0_inverse;                  /* modulo q1 */
    uint64_t q0_residue[CKKS_PRIMES_MAX]; /* modulo q_i, from i = 2 on */
    double q0, scale;                     /* scale between 2^-400 and 2^400 */
} near_integer;
#define NEAR_BLOCK 512u /* coefficients at a time, at most */

typedef struct limb_loops {
    /* ---- transforms: canonical words in evaluation order, see internal.h ---- */
    void (*forward)(uint64_t *out, const uint64_t *in, const ntt_table *t); /* out may be in */
    void (*forward_small)(uint64_t *out, const int8_t *small, const ntt_table *t);
    /* whole numbers below 2^63 in magnitude; out may be in */
    void (*forward_integers)(uint64_t *out, const double *in, const ntt_table *t);
    /* centred residues as doubles */
    void (*inverse_centred)(double *out, const uint64_t *in, const ntt_table *t);

    /* ---- position by position, modulo one prime ---- */
    void (*reduce_wide)(uint64_t *out, const uint8_t *bytes, size_t n, const modulus *m); /* u128 each */
    /* out += (plus, unless NULL) - wide * s */
    void (*subtract_wide_product)(uint64_t *out, const uint8_t *bytes, const uint64_t *s,
                                  const uint64_t *plus, size_t n, const modulus *m);
    /* out += (plus, unless NULL) + a * b */
    void (*add_product)(uint64_t *out, const uint64_t *a, const uint64_t *b, const uint64_t *plus, size_t n,
                        const modulus *m);
    void (*multiply)(uint64_t *out, const uint64_t *a, const uint64_t *b, size_t n, const modulus *m);
    void (*add_scaled)(uint64_t *out, const uint64_t *a, uint64_t factor, size_t n, const modulus *m);
    /* (c2 * s + c1) * s + c0; c2 may be NULL */
    void (*decrypt)(uint64_t *out, const uint64_t *c0, const uint64_t *c1, const uint64_t *c2,
                    const uint64_t *s, size_t n, const modulus *m);

    /* ---- the sampler: centred binomial from 8 bytes each (sample.h) ---- */
    void (*count_errors)(int8_t *out, const uint8_t *draws, size_t n);

    /* ---- the encoder: binary64 in a fixed order ---- */
    /* x = round half to even of x * factor. Returns whether each is at most limit in magnitude (a NaN is
     * not); *largest: the largest magnitude, NaNs left out. */
    bool (*round_scaled)(double *x, size_t n, double factor, double limit, double *largest);
    /* embed: slots from coefficients; embed_inverse: coefficients from slots, times count. count complex
     * numbers, a power of two; roots of context_encoder_roots. in is scratch. */
    void (*embed)(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                  const double *roots, uint32_t root_count);
    void (*embed_inverse)(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                          const double *roots, uint32_t root_count);
    /* out = x / scale for n <= NEAR_BLOCK coefficients with centred residues limbs[i * stride + k]. False if
     * one of them is not near: out is then unspecified. NULL in the scalar table. */
    bool (*near_quotients)(double *out, const double *limbs, size_t stride, size_t n, const near_integer *c);
} limb_loops;

/* limb_loops_best: of this machine at or below CKKSD_ISA, as transform.h chooses. limb_loops_of: of one
 * instruction set, which the machine must have. */
const limb_loops *limb_loops_best(void);
const limb_loops *limb_loops_of(cpu_isa isa);
/* limb_loops_force: what limb_loops_best returns from now on, for tests; CPU_ISA_COUNT ends it. Not while
 * others run. */
void limb_loops_force(cpu_isa isa);

extern const limb_loops limb_loops_scalar, limb_loops_avx2, limb_loops_avx512;

void embed_scalar(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                  const double *roots, uint32_t root_count);
void embed_inverse_scalar(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                          const double *roots, uint32_t root_count);
void embed_avx2(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                const double *roots, uint32_t root_count);
void embed_inverse_avx2(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                        const double *roots, uint32_t root_count);

#endif
