/*
 * Decoding: the centred integer of each coefficient, exactly, rounded to a double once, over the scale; then
 * the embedding (encoder.c).
 *
 * What was decrypted with its own key is small beside Q: it is found from the first two limbs, checked
 * against all others (near_quotients). The rest, a block at a time, goes through the whole CRT; both give the
 * same doubles.
 */
#include "kernels/scheme/bigint.h"
#include "kernels/scheme/encoder.h"
#include "kernels/scheme/encoder_internal.h"
#include "kernels/scheme/secret_marks.h"

#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* ---- the exact way ---- */

/* Reconstruction from q[0..limb_count): x = sum y_i * (Q/q_i) - k * Q with y_i = x_i * (Q/q_i)^-1 mod q_i. */
typedef struct crt {
    uint32_t limb_count, word_count;
    modulus m[CKKS_PRIMES_MAX];
    uint64_t hat_inverse[CKKS_PRIMES_MAX], hat_inverse_shoup[CKKS_PRIMES_MAX];
    double reciprocal[CKKS_PRIMES_MAX];
    uint64_t q[BIGINT_WORDS_MAX], half[BIGINT_WORDS_MAX]; /* Q and (Q - 1) / 2 */
    uint64_t hat[CKKS_PRIMES_MAX][BIGINT_WORDS_MAX];      /* Q/q_i */
} crt;

static void crt_init(crt *c, const ckks_context *context, uint32_t level) {
    const ckks_params *p = context_params(context);
    uint64_t others[CKKS_PRIMES_MAX];
    c->limb_count = level + 1;
    bigint_product(c->q, BIGINT_WORDS_MAX, p->prime, c->limb_count);
    /* a word to spare for the sum before k * Q is taken away */
    c->word_count = bigint_bits(c->q, BIGINT_WORDS_MAX) / 64 + 2;
    CKKS_ASSERT(c->word_count <= BIGINT_WORDS_MAX);
    for (uint32_t i = 0; i < BIGINT_WORDS_MAX; i++)
        c->half[i] = c->q[i] >> 1 | (i + 1 < BIGINT_WORDS_MAX ? c->q[i + 1] << 63 : 0);
    for (uint32_t i = 0; i < c->limb_count; i++) {
        c->m[i] = context_ntt(context, i)->m;
        uint64_t product = 1;
        for (uint32_t k = 0, at = 0; k < c->limb_count; k++) {
            if (k == i) continue;
            others[at++] = p->prime[k];
            product = mod_mul(product, mod_reduce128(p->prime[k], &c->m[i]), &c->m[i]);
        }
        bigint_product(c->hat[i], BIGINT_WORDS_MAX, others, c->limb_count - 1);
        c->hat_inverse[i] = mod_inverse(product, &c->m[i]);
        c->hat_inverse_shoup[i] = mod_shoup(c->hat_inverse[i], c->m[i].value);
        c->reciprocal[i] = 1.0 / (double)c->m[i].value;
    }
}

/* x[word_count], two's complement: the centred integer with centred residues limb[i * stride]. */
static void crt_reconstruct(uint64_t *x, const crt *c, const double *limb, size_t stride) {
    double quotient = 0; /* sum y_i / q_i = x/Q + k: nearest k is right or one off at the ends of the range */
    memset(x, 0, c->word_count * sizeof *x);
    for (uint32_t i = 0; i < c->limb_count; i++) {
        const uint64_t q = c->m[i].value, x_i = (uint64_t)(int64_t)limb[i * stride];
        const uint64_t residue = x_i + (q & (uint64_t)((int64_t)x_i >> 63));
        const uint64_t y = mod_mul_shoup(residue, c->hat_inverse[i], c->hat_inverse_shoup[i], q);
        quotient += (double)y * c->reciprocal[i];
        bigint_add_product(x, c->hat[i], c->word_count, y);
    }
    bigint_subtract_product(x, c->q, c->word_count, (uint64_t)(quotient + 0.5));
    uint64_t magnitude[BIGINT_WORDS_MAX];
    const bool is_negative = bigint_magnitude(magnitude, x, c->word_count);
    if (!bigint_is_below(c->half, magnitude, c->word_count)) return;
    if (is_negative)
        bigint_add_product(x, c->q, c->word_count, 1);
    else
        bigint_subtract_product(x, c->q, c->word_count, 1);
}

/* The double nearest to the integer (ties to even) as mantissa * 2^*exponent, |mantissa| <= 2^64. magnitude:
 * scratch of `count` words. */
static double integer_to_double(uint64_t *magnitude, const uint64_t *x, uint32_t count, int *exponent) {
    const bool is_negative = bigint_magnitude(magnitude, x, count);
    const uint32_t bits = bigint_bits(magnitude, count);
    *exponent = 0;
    uint64_t top = magnitude[0];
    if (bits > 64) {
        const uint32_t drop = bits - 64, word = drop / 64, shift = drop % 64;
        bool is_inexact = false;
        for (uint32_t i = 0; i < word; i++) is_inexact |= magnitude[i] != 0;
        top = magnitude[word] >> shift;
        if (shift) {
            is_inexact |= (magnitude[word] << (64 - shift)) != 0;
            top |= magnitude[word + 1] << (64 - shift);
        }
        top |= is_inexact; /* 64 bits hold 53, a half bit and a sticky bit: one rounding */
        *exponent = (int)drop;
    }
    return is_negative ? -(double)top : (double)top;
}

/* out[n] from centred residues limbs[i * stride + k]; false if a value is beyond bound in magnitude */
static bool exact_quotients(double *out, const crt *c, const double *limbs, size_t stride, size_t n,
                            double scale, double bound) {
    uint64_t x[BIGINT_WORDS_MAX] = {0}, magnitude[BIGINT_WORDS_MAX] = {0};
    bool is_finite = true;
    for (size_t i = 0; i < n; i++) {
        int exponent;
        crt_reconstruct(x, c, limbs + i, stride);
        const double mantissa = integer_to_double(magnitude, x, c->word_count, &exponent);
        const double quotient = mantissa / scale;
        out[i] = exponent ? ldexp(quotient, exponent) : quotient;
        is_finite &= fabs(out[i]) <= bound;
    }
    return is_finite;
}

/* ---- both ways ---- */

typedef struct decoder {
    crt exact;
    near_integer near;
    bool has_near;
} decoder;

/* Scales so far from 1 that a quotient could leave the normal range take the exact way, which knows. */
static void decoder_init(decoder *d, const ckks_context *context, uint32_t level, double scale) {
    crt_init(&d->exact, context, level);
    d->has_near = limb_loops_best()->near_quotients && scale >= 0x1p-400 && scale <= 0x1p400;
    near_integer *near = &d->near;
    const uint64_t q0 = d->exact.m[0].value;
    near->limb_count = level + 1;
    near->q0 = (double)q0, near->scale = scale;
    for (uint32_t i = 0; i <= level; i++) {
        near->m[i] = &d->exact.m[i];
        near->q0_residue[i] = mod_reduce128(q0, near->m[i]);
    }
    near->q0_inverse = level ? mod_inverse(near->q0_residue[1], near->m[1]) : 0;
}

/* out[count] from centred residues limbs [limb][stride] */
static bool quotients(double *out, const decoder *d, const double *limbs, size_t stride, uint32_t count,
                      double bound) {
    const limb_loops *loops = limb_loops_best();
    const int blocks = (int)((count + NEAR_BLOCK - 1) / NEAR_BLOCK);
    bool is_finite = true;
#pragma omp parallel for schedule(dynamic) reduction(& : is_finite) if (count >= ENCODER_TEAM_WORDS)
    for (int b = 0; b < blocks; b++) {
        const size_t at = (size_t)b * NEAR_BLOCK, left = count - at,
                     n = left < NEAR_BLOCK ? left : NEAR_BLOCK;
        bool is_near = false;
        if (d->has_near && n % 8 == 0)
            is_near = loops->near_quotients(out + at, limbs + at, stride, n, &d->near);
        secret_declassify(&is_near, sizeof is_near); /* as the header says */
        if (is_near) continue;
        is_finite &= exact_quotients(out + at, &d->exact, limbs + at, stride, n, d->near.scale, bound);
    }
    return is_finite;
}

/* limbs [limb][N] of centred residues; of each limb only every gap-th coefficient, moved to the front */
static void residues(double *limbs, const ckks_context *context, const uint64_t *words, uint32_t level,
                     uint32_t count) {
    const limb_loops *loops = limb_loops_best();
    const size_t n = params_n(context_params(context)), gap = n / count;
    const int limb_count = (int)level + 1;
#pragma omp parallel for schedule(dynamic) if ((size_t)limb_count * n >= ENCODER_TEAM_WORDS)
    for (int i = 0; i < limb_count; i++) {
        double *limb = limbs + (size_t)i * n;
        loops->inverse_centred(limb, words + (size_t)i * n, context_ntt(context, (uint32_t)i));
        for (size_t k = 1; k < count && gap > 1; k++) limb[k] = limb[k * gap];
    }
}

ckks_status encoder_decode(double *real, double *imag, const ckks_context *context, const uint64_t *words,
                           uint32_t slot_count, uint32_t level, double scale, ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p), limbs_bytes = (level + (size_t)1) * n * sizeof(double);
    const size_t values_bytes = (size_t)3 * slot_count * sizeof(double);
    ckks_status rc;
    if ((rc = encoder_check_shape(p, slot_count, level, err)) != CKKS_OK) return rc;
    if ((rc = encoder_check_scale(scale, err)) != CKKS_OK) return rc;
    decoder *d = malloc(sizeof *d);
    double *limbs = malloc(limbs_bytes), *values = malloc(values_bytes);
    if (!d || !limbs || !values) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "encoder", "no memory for %u slots", slot_count);
        goto out;
    }
    decoder_init(d, context, level, scale);
    residues(limbs, context, words, level, 2 * slot_count);
    if (quotients(values, d, limbs, n, 2 * slot_count, DBL_MAX / (4.0 * slot_count)))
        limb_loops_best()->embed(real, imag ? imag : values + 2 * (size_t)slot_count, values,
                                 values + slot_count, slot_count, context_encoder_roots(context),
                                 params_slot_count_max(p));
    else
        rc =
            ckks_error_set(err, CKKS_OUT_OF_RANGE, "words",
                           "a coefficient is beyond binary64: decrypted with another key, or another scale?");
    sodium_memzero(limbs, limbs_bytes);
    sodium_memzero(values, values_bytes);
out:
    free(values);
    free(limbs);
    free(d);
    return rc;
}
