/*
 * The encoder: slots <-> coefficients by the canonical embedding, coefficients <-> residues exactly.
 *
 * A polynomial m of degree below N = 2n is read as n complex numbers w_k = m_k + i m_{k+n}; because
 * (zeta^(5^j))^n = i for zeta = exp(i pi / N), slot j is sum w_k zeta^(5^j k): a transform of size n over the
 * orbit of 5, done with butterflies like an ordinary FFT, with the roots of context_encoder_roots. For s <
 * N/2 slots the same transform of size s acts on every (N/2s)-th coefficient.
 *
 * Reproducible: binary64 with round to nearest only, every sum in the order written, no contraction (the
 * build passes -ffp-contract=off), and the vector versions (limb_loops_internal.h) do the same operations on
 * the same numbers, several at a time.
 *
 * Residues are exact: a coefficient is rounded to an integer (ties to even) and reduced as the integer it is,
 * however far beyond 2^63. Decoding reconstructs the centred integer in full and rounds once (decoder.c).
 */
#include "kernels/scheme/encoder.h"

#include "kernels/scheme/bigint.h"
#include "kernels/scheme/encoder_internal.h"
#include "kernels/scheme/secret_marks.h"

#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- argument checks ---- */

ckks_status encoder_check_shape(const ckks_params *p, uint32_t slot_count, uint32_t level, ckks_error *err) {
    if (slot_count == 0 || (slot_count & (slot_count - 1)) != 0 || slot_count > params_slot_count_max(p))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "slot_count",
                              "%u is not a power of two from 1 to %u", slot_count, params_slot_count_max(p));
    if (level > params_level_max(p))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "%u is over the highest level %u", level,
                              params_level_max(p));
    return CKKS_OK;
}

ckks_status encoder_check_scale(double scale, ckks_error *err) {
    if (scale > 0 && scale <= DBL_MAX) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "scale", "%g is not a positive finite number", scale);
}

static ckks_status check_finite(const char *part, const double *values, uint32_t count, ckks_error *err) {
    bool is_finite = true;
    for (uint32_t i = 0; i < count; i++) is_finite &= fabs(values[i]) <= DBL_MAX;
    secret_declassify(&is_finite, sizeof is_finite); /* whether slots are refused */
    if (is_finite) return CKKS_OK;
    for (uint32_t i = 0; i < count; i++) {
        if (fabs(values[i]) <= DBL_MAX) continue;
        char field[32];
        snprintf(field, sizeof field, "%s[%u]", part, i);
        return ckks_error_set(err, CKKS_OUT_OF_RANGE, field, "slot %u is not a finite number", i);
    }
    return CKKS_OK;
}

/* ---- rounding and exact reduction ---- */

/* the largest double not above (Q - 1) / 2, Q = prod q[0..level]: |c| <= it iff the integer |c| < Q/2 */
static double half_modulus(const ckks_params *p, uint32_t level) {
    uint64_t q[BIGINT_WORDS_MAX];
    bigint_product(q, BIGINT_WORDS_MAX, p->prime, level + 1);
    for (uint32_t i = 0; i < BIGINT_WORDS_MAX; i++)
        q[i] = q[i] >> 1 | (i + 1 < BIGINT_WORDS_MAX ? q[i + 1] << 63 : 0);
    const uint32_t bits = bigint_bits(q, BIGINT_WORDS_MAX);
    if (bits > DBL_MAX_EXP) return DBL_MAX;
    if (bits <= 53) return (double)q[0];
    const uint32_t drop = bits - 53, word = drop / 64, shift = drop % 64;
    uint64_t top = q[word] >> shift;
    if (shift) top |= q[word + 1] << (64 - shift);
    return ldexp((double)(top & (((uint64_t)1 << 53) - 1)), (int)drop);
}

/* x an integer below 2^63 in magnitude: no branch on it */
static uint64_t reduce_small(double x, const modulus *m) {
    const int64_t value = (int64_t)x;
    const uint64_t sign = (uint64_t)(value >> 63), magnitude = ((uint64_t)value ^ sign) - sign;
    const uint64_t r = mod_reduce128(magnitude, m);
    return r + (sign & (m->value - 2 * r) & -(uint64_t)(r != 0));
}

/* any integral x: a 53-bit mantissa times a power of two; up to 2^127 in one reduction */
static uint64_t reduce_large(double x, const modulus *m) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t exponent = bits >> 52 & 0x7FF;
    if (exponent < 1023 + 63) return reduce_small(x, m);
    const uint64_t mantissa = (bits & (((uint64_t)1 << 52) - 1)) | (uint64_t)1 << 52, shift = exponent - 1075;
    uint64_t r;
    if (shift <= 75)
        r = mod_reduce128((uint128)mantissa << shift, m);
    else
        r = mod_mul(mod_reduce128(mantissa, m), mod_pow(2, shift, m), m);
    return bits >> 63 ? mod_negate(r, m->value) : r;
}

/* ---- encode ---- */

/* coefficients[2 * slot_count]: real parts of w, then imaginary parts: rounded integers. z: scratch of the
 * same size. */
static ckks_status slots_to_integers(double *coefficients, double *largest, double *z,
                                     const ckks_context *context, const double *real, const double *imag,
                                     uint32_t slot_count, uint32_t level, double scale, ckks_error *err) {
    const limb_loops *loops = limb_loops_best();
    const uint32_t root_count = params_slot_count_max(context_params(context));
    memcpy(z, real, slot_count * sizeof *z);
    if (imag)
        memcpy(z + slot_count, imag, slot_count * sizeof *z);
    else
        memset(z + slot_count, 0, slot_count * sizeof *z);
    loops->embed_inverse(coefficients, coefficients + slot_count, z, z + slot_count, slot_count,
                         context_encoder_roots(context), root_count);
    const double factor =
        ldexp(scale, -__builtin_ctz(slot_count)); /* over slot_count: exact unless subnormal */
    const double limit = half_modulus(context_params(context), level);
    bool fits = loops->round_scaled(coefficients, (size_t)2 * slot_count, factor, limit, largest);
    secret_declassify(&fits, sizeof fits); /* whether slots are refused */
    if (fits) return CKKS_OK;
    return ckks_error_set(err, CKKS_PRECISION, "scale",
                          "a coefficient of about %.3g does not fit half of Q at level %u, about %.3g",
                          *largest, level, limit);
}

static void integers_to_limb(uint64_t *limb, const double *coefficients, uint32_t count, bool is_large,
                             const ntt_table *t) {
    const limb_loops *loops = limb_loops_best();
    const uint32_t n = 1u << t->log_n, gap = n >> __builtin_ctz(count);
    const modulus m = t->m;
    if (is_large) {
        if (gap > 1) memset(limb, 0, n * sizeof *limb);
        for (uint32_t i = 0; i < count; i++) limb[(size_t)i * gap] = reduce_large(coefficients[i], &m);
        loops->forward(limb, limb, t);
    } else if (gap > 1) {
        double *spread = (double *)(void *)limb; /* zero bits are the number 0 */
        memset(limb, 0, n * sizeof *limb);
        for (uint32_t i = 0; i < count; i++) spread[(size_t)i * gap] = coefficients[i];
        loops->forward_integers(limb, spread, t);
    } else {
        loops->forward_integers(limb, coefficients, t);
    }
}

ckks_status encoder_encode(uint64_t *words, const ckks_context *context, const double *real,
                           const double *imag, uint32_t slot_count, uint32_t level, bool with_p, double scale,
                           ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    double largest;
    ckks_status rc;
    if ((rc = encoder_check_shape(p, slot_count, level, err)) != CKKS_OK) return rc;
    if ((rc = encoder_check_scale(scale, err)) != CKKS_OK) return rc;
    if ((rc = check_finite("real", real, slot_count, err)) != CKKS_OK) return rc;
    if (imag && (rc = check_finite("imag", imag, slot_count, err)) != CKKS_OK) return rc;
    const size_t scratch_bytes = (size_t)4 * slot_count * sizeof(double);
    double *coefficients = malloc(scratch_bytes), *z = coefficients + (size_t)2 * slot_count;
    if (!coefficients)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "encoder", "no memory for %u slots", slot_count);
    rc = slots_to_integers(coefficients, &largest, z, context, real, imag, slot_count, level, scale, err);
    bool is_large = largest >= 0x1p63;
    secret_declassify(&is_large, sizeof is_large); /* as the header says */
    const int limbs = (int)(level + 1 + (with_p ? p->p_count : 0));
    if (rc == CKKS_OK) {
#pragma omp parallel for schedule(dynamic) if ((size_t)limbs * n >= ENCODER_TEAM_WORDS)
        for (int i = 0; i < limbs; i++) {
            const uint32_t prime =
                (uint32_t)i <= level ? (uint32_t)i : p->q_count + ((uint32_t)i - level - 1);
            integers_to_limb(words + (size_t)i * n, coefficients, 2 * slot_count, is_large,
                             context_ntt(context, prime));
        }
    }
    sodium_memzero(coefficients, scratch_bytes);
    free(coefficients);
    return rc;
}

ckks_status encoder_constant(uint64_t *residue, const ckks_params *params, double value, double scale,
                             uint32_t level, bool with_p, ckks_error *err) {
    ckks_status rc;
    if ((rc = encoder_check_shape(params, 1, level, err)) != CKKS_OK) return rc;
    if ((rc = encoder_check_scale(scale, err)) != CKKS_OK) return rc;
    if ((rc = check_finite("value", &value, 1, err)) != CKKS_OK) return rc;
    const double integer = rint(value * scale), limit = half_modulus(params, level);
    if (!(fabs(integer) <= limit))
        return ckks_error_set(
            err, CKKS_PRECISION, "scale",
            "the constant %.17g at scale %.6g does not fit half of Q at level %u, about %.3g", value, scale,
            level, limit);
    const uint32_t limbs = level + 1 + (with_p ? params->p_count : 0);
    for (uint32_t i = 0; i < limbs; i++) {
        const modulus m = modulus_create(params->prime[i <= level ? i : params->q_count + (i - level - 1)]);
        residue[i] = reduce_large(integer, &m);
    }
    return CKKS_OK;
}
