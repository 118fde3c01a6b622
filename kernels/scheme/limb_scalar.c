/* The loops of limb_loops_internal.h in plain C. */
#include "kernels/base/bytes.h"
#include "kernels/scheme/limb_loops_internal.h"
#include "kernels/scheme/sample.h"

#include <math.h>

/* ---- transforms ---- */

static void forward_small(uint64_t *out, const int8_t *small, const ntt_table *t) {
    small_to_residues(out, small, (size_t)1 << t->log_n, t->m.value);
    ntt_forward_scalar(out, out, t);
}

/* x an integer below 2^63 in magnitude: no branch on it */
static uint64_t reduce_integer(double x, const modulus *m) {
    const int64_t value = (int64_t)x;
    const uint64_t sign = (uint64_t)(value >> 63), magnitude = ((uint64_t)value ^ sign) - sign;
    const uint64_t r = mod_reduce128(magnitude, m);
    return r + (sign & (m->value - 2 * r) & -(uint64_t)(r != 0));
}

static void forward_integers(uint64_t *out, const double *in, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const modulus m = t->m;
    for (size_t i = 0; i < n; i++) { /* a word is as wide as the double it may replace */
        double x;
        memcpy(&x, &in[i], sizeof x);
        out[i] = reduce_integer(x, &m);
    }
    ntt_forward_scalar(out, out, t);
}

static void inverse_centred(double *out, const uint64_t *in, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const uint64_t q = t->m.value, half = q >> 1;
    uint64_t *words = (uint64_t *)(void *)out;
    ntt_inverse_scalar(words, in, t);
    for (size_t i = 0; i < n; i++) {
        const uint64_t over = (uint64_t)((int64_t)(half - words[i]) >> 63); /* all ones above q/2 */
        const double centred = (double)(int64_t)(words[i] - (q & over));
        memcpy(&out[i], &centred, sizeof centred);
    }
}

/* ---- position by position ---- */

static uint128 read_wide(const uint8_t *at) {
    return (uint128)bytes_read_u64(at + 8) << 64 | bytes_read_u64(at);
}

static void reduce_wide(uint64_t *out, const uint8_t *bytes, size_t n, const modulus *m) {
    const modulus local = *m;
    for (size_t i = 0; i < n; i++) out[i] = mod_reduce128(read_wide(bytes + 16 * i), &local);
}

static void subtract_wide_product(uint64_t *out, const uint8_t *bytes, const uint64_t *s,
                                  const uint64_t *plus, size_t n, const modulus *m) {
    const modulus local = *m;
    const uint64_t q = local.value;
    for (size_t i = 0; i < n; i++) {
        const uint64_t wide = mod_reduce128(read_wide(bytes + 16 * i), &local);
        const uint64_t x = plus ? mod_add(out[i], plus[i], q) : out[i];
        out[i] = mod_sub(x, mod_mul(wide, s[i], &local), q);
    }
}

static void add_product(uint64_t *out, const uint64_t *a, const uint64_t *b, const uint64_t *plus, size_t n,
                        const modulus *m) {
    const modulus local = *m;
    const uint64_t q = local.value;
    for (size_t i = 0; i < n; i++) {
        const uint64_t x = plus ? mod_add(out[i], plus[i], q) : out[i];
        out[i] = mod_add(x, mod_mul(a[i], b[i], &local), q);
    }
}

static void multiply(uint64_t *out, const uint64_t *a, const uint64_t *b, size_t n, const modulus *m) {
    const modulus local = *m;
    for (size_t i = 0; i < n; i++) out[i] = mod_mul(a[i], b[i], &local);
}

static void add_scaled(uint64_t *out, const uint64_t *a, uint64_t factor, size_t n, const modulus *m) {
    const uint64_t q = m->value, shoup = mod_shoup_fast(factor, m);
    for (size_t i = 0; i < n; i++) out[i] = mod_add(out[i], mod_mul_shoup(a[i], factor, shoup, q), q);
}

static void decrypt_words(uint64_t *out, const uint64_t *c0, const uint64_t *c1, const uint64_t *c2,
                          const uint64_t *s, size_t n, const modulus *m) {
    const modulus local = *m;
    const uint64_t q = local.value;
    for (size_t i = 0; i < n; i++) {
        const uint64_t high = c2 ? mod_add(mod_mul(c2[i], s[i], &local), c1[i], q) : c1[i];
        out[i] = mod_add(mod_mul(high, s[i], &local), c0[i], q);
    }
}

/* ---- sampler ---- */

/* ones in a 21-bit number; a library's may read a table at secret indices */
static uint32_t count_ones(uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    x = (x + (x >> 4)) & 0x0F0F0F0Fu;
    return (x * 0x01010101u) >> 24;
}

static void count_errors(int8_t *out, const uint8_t *draws, size_t n) {
    const uint32_t mask = (1u << 21) - 1;
    for (size_t i = 0; i < n; i++) {
        const uint64_t draw = bytes_read_u64(draws + 8 * i);
        out[i] =
            (int8_t)((int)count_ones((uint32_t)draw & mask) - (int)count_ones((uint32_t)(draw >> 21) & mask));
    }
}

/* ---- encoder ---- */

/* To an integer, ties to even: 2^52 of the number's own sign leaves no fraction bit below 2^52; above, there
 * is none, and zero is added. No branch on the number. */
static double round_half_even(double x) {
    uint64_t bits;
    double magic;
    memcpy(&bits, &x, sizeof bits);
    const uint64_t exponent = bits >> 52 & 0x7FF, sign = bits >> 63 << 63;
    const uint64_t is_below = (uint64_t)((int64_t)(exponent - 1075) >> 63);
    bits = is_below & (sign | (uint64_t)1075 << 52);
    memcpy(&magic, &bits, sizeof magic);
    return (x + magic) - magic;
}

static bool round_scaled(double *x, size_t n, double factor, double limit, double *largest) {
    bool fits = true;
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = round_half_even(x[i] * factor);
        fits &= fabs(x[i]) <= limit;
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    }
    *largest = most;
    return fits;
}

const limb_loops limb_loops_scalar = {
    .forward = ntt_forward_scalar,
    .forward_small = forward_small,
    .forward_integers = forward_integers,
    .inverse_centred = inverse_centred,
    .reduce_wide = reduce_wide,
    .subtract_wide_product = subtract_wide_product,
    .add_product = add_product,
    .multiply = multiply,
    .add_scaled = add_scaled,
    .decrypt = decrypt_words,
    .count_errors = count_errors,
    .round_scaled = round_scaled,
    .embed = embed_scalar,
    .embed_inverse = embed_inverse_scalar,
};
