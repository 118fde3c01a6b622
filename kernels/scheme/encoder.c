/*
 * The encoder: slots <-> coefficients by the canonical embedding, coefficients <-> residues exactly.
 *
 * A polynomial m of degree below N = 2n is read as n complex numbers w_k = m_k + i m_{k+n}; because
 * (zeta^(5^j))^n = i for zeta = exp(i pi / N), slot j is sum w_k zeta^(5^j k): a transform of size n over the
 * orbit of 5, done with butterflies like an ordinary FFT, with the roots of context_encoder_roots. For s <
 * N/2 slots the same transform of size s acts on every (N/2s)-th coefficient.
 *
 * Reproducible: binary64 with round to nearest only, every sum in the order written, no contraction (the
 * build passes -ffp-contract=off). Complex numbers are pairs of doubles; C's own would add checks for
 * infinities.
 *
 * Residues are exact: a coefficient is rounded to an integer (ties to even) and reduced as the integer it is,
 * however far beyond 2^63. Decoding reconstructs the centred integer in full and rounds once.
 */
#include "kernels/scheme/encoder.h"

#include "kernels/scheme/bigint.h"
#include "kernels/scheme/internal.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- embedding: values are (re, im) pairs ---- */

static void reverse_order(double *z, uint32_t count) {
    if (count == 1) return;
    const uint32_t bits = (uint32_t)__builtin_ctz(count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t k = bit_reverse(i, bits);
        if (k <= i) continue;
        const double re = z[2 * (size_t)i], im = z[2 * (size_t)i + 1];
        z[2 * (size_t)i] = z[2 * (size_t)k], z[2 * (size_t)i + 1] = z[2 * (size_t)k + 1];
        z[2 * (size_t)k] = re, z[2 * (size_t)k + 1] = im;
    }
}

/* slots from coefficients; roots: stage `length` begins at pair length/2 - 1 */
static void embed(double *z, uint32_t count, const double *roots) {
    reverse_order(z, count);
    for (uint32_t length = 2; length <= count; length *= 2) {
        const uint32_t half = length / 2;
        const double *w = roots + (size_t)2 * (half - 1);
        for (uint32_t first = 0; first < count; first += length) {
            double *low = z + (size_t)2 * first, *high = low + (size_t)2 * half;
            for (uint32_t j = 0; j < half; j++) {
                const double wr = w[2 * j], wi = w[2 * j + 1], hr = high[2 * j], hi = high[2 * j + 1];
                const double tr = hr * wr - hi * wi, ti = hr * wi + hi * wr;
                const double lr = low[2 * j], li = low[2 * j + 1];
                low[2 * j] = lr + tr, low[2 * j + 1] = li + ti;
                high[2 * j] = lr - tr, high[2 * j + 1] = li - ti;
            }
        }
    }
}

/* coefficients from slots, times count: the stages of embed undone in reverse, with conjugate roots */
static void embed_inverse(double *z, uint32_t count, const double *roots) {
    for (uint32_t length = count; length >= 2; length /= 2) {
        const uint32_t half = length / 2;
        const double *w = roots + (size_t)2 * (half - 1);
        for (uint32_t first = 0; first < count; first += length) {
            double *low = z + (size_t)2 * first, *high = low + (size_t)2 * half;
            for (uint32_t j = 0; j < half; j++) {
                const double wr = w[2 * j], wi = w[2 * j + 1];
                const double lr = low[2 * j], li = low[2 * j + 1], hr = high[2 * j], hi = high[2 * j + 1];
                const double dr = lr - hr, di = li - hi;
                low[2 * j] = lr + hr, low[2 * j + 1] = li + hi;
                high[2 * j] = dr * wr + di * wi, high[2 * j + 1] = di * wr - dr * wi;
            }
        }
    }
    reverse_order(z, count);
}

/* ---- argument checks ---- */

static ckks_status check_shape(const ckks_params *p, uint32_t slot_count, uint32_t level, ckks_error *err) {
    if (slot_count == 0 || (slot_count & (slot_count - 1)) != 0 || slot_count > params_slot_count_max(p))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "slot_count",
                              "%u is not a power of two from 1 to %u", slot_count, params_slot_count_max(p));
    if (level > params_level_max(p))
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "level", "%u is over the highest level %u", level,
                              params_level_max(p));
    return CKKS_OK;
}

static ckks_status check_scale(double scale, ckks_error *err) {
    if (scale > 0 && scale <= DBL_MAX) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "scale", "%g is not a positive finite number", scale);
}

static ckks_status check_finite(const char *part, const double *values, uint32_t count, ckks_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        if (values[i] >= -DBL_MAX && values[i] <= DBL_MAX) continue;
        char field[32];
        snprintf(field, sizeof field, "%s[%u]", part, i);
        return ckks_error_set(err, CKKS_OUT_OF_RANGE, field, "slot %u is not a finite number", i);
    }
    return CKKS_OK;
}

/* ---- rounding and exact reduction ---- */

/* to an integer, ties to even: adding 1.5 * 2^52 leaves no fraction bit below 2^51; above, there are none but
 * the last, which the select keeps away from */
static double round_half_even(double x) {
    const double magic = 0x1.8p52;
    const double rounded = (x + magic) - magic;
    return fabs(x) < 0x1p51 ? rounded : rint(x);
}

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

/* coefficients[2 * slot_count]: real parts of w, then imaginary parts: rounded integers. */
static ckks_status slots_to_integers(double *coefficients, double *z, const ckks_context *context,
                                     const double *real, const double *imag, uint32_t slot_count,
                                     uint32_t level, double scale, ckks_error *err) {
    for (uint32_t i = 0; i < slot_count; i++) z[2 * i] = real[i], z[2 * i + 1] = imag ? imag[i] : 0.0;
    embed_inverse(z, slot_count, context_encoder_roots(context));
    const double factor =
        ldexp(scale, -__builtin_ctz(slot_count)); /* over slot_count: exact unless subnormal */
    const double limit = half_modulus(context_params(context), level);
    double largest = 0;
    bool fits = true; /* a NaN, from an overflow in the transform, does not */
    for (uint32_t i = 0; i < slot_count; i++) {
        const double re = round_half_even(z[2 * i] * factor), im = round_half_even(z[2 * i + 1] * factor);
        coefficients[i] = re, coefficients[slot_count + i] = im;
        fits &= fabs(re) <= limit && fabs(im) <= limit;
        if (fabs(re) > largest) largest = fabs(re);
        if (fabs(im) > largest) largest = fabs(im);
    }
    if (fits) return CKKS_OK;
    return ckks_error_set(err, CKKS_PRECISION, "scale",
                          "a coefficient of about %.3g does not fit half of Q at level %u, about %.3g",
                          largest, level, limit);
}

static void integers_to_limb(uint64_t *limb, const double *coefficients, uint32_t count, bool is_large,
                             const ntt_table *t) {
    const uint32_t n = 1u << t->log_n, gap = n >> __builtin_ctz(count);
    const modulus m = t->m;
    if (gap > 1) memset(limb, 0, n * sizeof *limb);
    if (is_large)
        for (uint32_t i = 0; i < count; i++) limb[(size_t)i * gap] = reduce_large(coefficients[i], &m);
    else
        for (uint32_t i = 0; i < count; i++) limb[(size_t)i * gap] = reduce_small(coefficients[i], &m);
    ntt_forward_scalar(limb, limb, t);
}

ckks_status encoder_encode(uint64_t *words, const ckks_context *context, const double *real,
                           const double *imag, uint32_t slot_count, uint32_t level, bool with_p, double scale,
                           ckks_error *err) {
    const ckks_params *p = context_params(context);
    const size_t n = params_n(p);
    ckks_status rc;
    double *z = NULL;
    if ((rc = check_shape(p, slot_count, level, err)) != CKKS_OK) return rc;
    if ((rc = check_scale(scale, err)) != CKKS_OK) return rc;
    if ((rc = check_finite("real", real, slot_count, err)) != CKKS_OK) return rc;
    if (imag && (rc = check_finite("imag", imag, slot_count, err)) != CKKS_OK) return rc;
    z = calloc((size_t)4 * slot_count, sizeof *z);
    if (!z)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "encoder", "no memory for %u slots", slot_count);
    double *coefficients = z + (size_t)2 * slot_count;
    rc = slots_to_integers(coefficients, z, context, real, imag, slot_count, level, scale, err);
    if (rc != CKKS_OK) goto out;
    bool is_large = false;
    for (uint32_t i = 0; i < 2 * slot_count; i++) is_large |= fabs(coefficients[i]) >= 0x1p63;
    const uint32_t limbs = level + 1 + (with_p ? p->p_count : 0);
    for (uint32_t i = 0; i < limbs; i++) {
        const uint32_t prime = i <= level ? i : p->q_count + (i - level - 1);
        integers_to_limb(words + i * n, coefficients, 2 * slot_count, is_large, context_ntt(context, prime));
    }
out:
    free(z);
    return rc;
}

ckks_status encoder_constant(uint64_t *residue, const ckks_params *params, double value, double scale,
                             uint32_t level, bool with_p, ckks_error *err) {
    ckks_status rc;
    if ((rc = check_shape(params, 1, level, err)) != CKKS_OK) return rc;
    if ((rc = check_scale(scale, err)) != CKKS_OK) return rc;
    if ((rc = check_finite("value", &value, 1, err)) != CKKS_OK) return rc;
    const double integer = round_half_even(value * scale), limit = half_modulus(params, level);
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

/* ---- decode ---- */

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

/* x[word_count], two's complement: the centred integer with residues limb[i * stride]. */
static void crt_reconstruct(uint64_t *x, const crt *c, const uint64_t *limb, size_t stride) {
    double quotient = 0; /* sum y_i / q_i = x/Q + k: nearest k is right or one off at the ends of the range */
    memset(x, 0, c->word_count * sizeof *x);
    for (uint32_t i = 0; i < c->limb_count; i++) {
        const uint64_t y =
            mod_mul_shoup(limb[i * stride], c->hat_inverse[i], c->hat_inverse_shoup[i], c->m[i].value);
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

/* z[2 * slot_count] from the coefficients of `limbs` [limb][N] in the coefficient domain. */
static ckks_status integers_to_slots(double *z, const crt *c, const uint64_t *limbs, uint32_t n,
                                     uint32_t slot_count, double scale, ckks_error *err) {
    const uint32_t gap = n / (2 * slot_count);
    uint64_t x[BIGINT_WORDS_MAX] = {0}, magnitude[BIGINT_WORDS_MAX] = {0};
    bool is_finite = true;
    for (uint32_t i = 0; i < 2 * slot_count; i++) {
        int exponent;
        crt_reconstruct(x, c, limbs + (size_t)i * gap, n);
        const double mantissa = integer_to_double(magnitude, x, c->word_count, &exponent);
        const double quotient = mantissa / scale, value = exponent ? ldexp(quotient, exponent) : quotient;
        is_finite &= fabs(value) <= DBL_MAX / (4.0 * slot_count);
        z[i < slot_count ? 2 * i : 2 * (i - slot_count) + 1] = value;
    }
    if (is_finite) return CKKS_OK;
    return ckks_error_set(err, CKKS_OUT_OF_RANGE, "words",
                          "a coefficient is beyond binary64: decrypted with another key, or another scale?");
}

ckks_status encoder_decode(double *real, double *imag, const ckks_context *context, const uint64_t *words,
                           uint32_t slot_count, uint32_t level, double scale, ckks_error *err) {
    const ckks_params *p = context_params(context);
    const uint32_t n = params_n(p);
    ckks_status rc;
    if ((rc = check_shape(p, slot_count, level, err)) != CKKS_OK) return rc;
    if ((rc = check_scale(scale, err)) != CKKS_OK) return rc;
    crt *c = malloc(sizeof *c);
    uint64_t *limbs = malloc((level + (size_t)1) * n * sizeof *limbs);
    double *z = calloc((size_t)2 * slot_count, sizeof *z);
    if (!c || !limbs || !z) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "encoder", "no memory for %u slots", slot_count);
        goto out;
    }
    crt_init(c, context, level);
    for (uint32_t i = 0; i <= level; i++)
        ntt_inverse_scalar(limbs + (size_t)i * n, words + (size_t)i * n, context_ntt(context, i));
    if ((rc = integers_to_slots(z, c, limbs, n, slot_count, scale, err)) != CKKS_OK) goto out;
    embed(z, slot_count, context_encoder_roots(context));
    for (uint32_t i = 0; i < slot_count; i++) {
        real[i] = z[2 * i];
        if (imag) imag[i] = z[2 * i + 1];
    }
out:
    free(z);
    free(limbs);
    free(c);
    return rc;
}
