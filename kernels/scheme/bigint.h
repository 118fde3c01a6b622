/*
 * Just enough of unsigned multi-word integers for products of moduli: their exact logarithm, comparisons and
 * the exact CRT of decoding. Little-endian words, fixed count, bounds stated by the caller.
 *
 * Deliberately absent: division, allocation, and everything that a library would do better for numbers that
 * are not products of at most CKKS_PRIMES_MAX primes below 2^50.
 */
#ifndef CKKS_SCHEME_BIGINT_H
#define CKKS_SCHEME_BIGINT_H

#include "kernels/scheme/mod.h"
#include "kernels/scheme/params.h"

/* 80 primes of 50 bits are 4,000 bits; one word more for sums of up to 2^64 of them. */
#define BIGINT_WORDS_MAX (CKKS_PRIMES_MAX * CKKS_PRIME_BITS_MAX / 64u + 2u)

/* bigint_multiply_word: x[count] *= factor; returns the carry out of the last word. */
static inline uint64_t bigint_multiply_word(uint64_t *x, uint32_t count, uint64_t factor) {
    uint64_t carry = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint128 t = (uint128)x[i] * factor + carry;
        x[i] = (uint64_t)t;
        carry = (uint64_t)(t >> 64);
    }
    return carry;
}
/* bigint_add_product: x[count] += y[count] * factor; returns the carry. */
static inline uint64_t bigint_add_product(uint64_t *x, const uint64_t *y, uint32_t count, uint64_t factor) {
    uint64_t carry = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint128 t = (uint128)y[i] * factor + x[i] + carry;
        x[i] = (uint64_t)t;
        carry = (uint64_t)(t >> 64);
    }
    return carry;
}
/* bigint_subtract_product: x[count] -= y[count] * factor; returns the borrow (a whole word). */
static inline uint64_t bigint_subtract_product(uint64_t *x, const uint64_t *y, uint32_t count,
                                               uint64_t factor) {
    uint64_t borrow = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint128 t = (uint128)y[i] * factor + borrow;
        const uint64_t low = (uint64_t)t;
        borrow = (uint64_t)(t >> 64) + (uint64_t)(x[i] < low);
        x[i] -= low;
    }
    return borrow;
}
/* bigint_is_below: x < y, in time that depends on count alone. */
static inline uint64_t bigint_is_below(const uint64_t *x, const uint64_t *y, uint32_t count) {
    uint64_t borrow = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint128 t = (uint128)x[i] - y[i] - borrow;
        borrow = (uint64_t)(t >> 64) & 1u;
    }
    return borrow;
}
/* bigint_magnitude: out = |x| for x in two's complement; returns whether x is negative. */
static inline bool bigint_magnitude(uint64_t *out, const uint64_t *x, uint32_t count) {
    const uint64_t sign = (uint64_t)((int64_t)x[count - 1] >> 63);
    uint64_t carry = sign & 1u;
    for (uint32_t i = 0; i < count; i++) {
        out[i] = (x[i] ^ sign) + carry;
        carry &= (uint64_t)(out[i] == 0);
    }
    return sign != 0;
}
/* bigint_bits: position of the highest set bit plus one; 0 for 0. */
static inline uint32_t bigint_bits(const uint64_t *x, uint32_t count) {
    for (uint32_t i = count; i-- > 0;)
        if (x[i]) return 64 * i + 64 - (uint32_t)__builtin_clzll(x[i]);
    return 0;
}
/* bigint_product: x = product of factor[0..factor_count). The caller has room: count * 64 bits. */
static inline void bigint_product(uint64_t *x, uint32_t count, const uint64_t *factor,
                                  uint32_t factor_count) {
    for (uint32_t i = 0; i < count; i++) x[i] = i == 0;
    for (uint32_t i = 0; i < factor_count; i++) {
        const uint64_t carry = bigint_multiply_word(x, count, factor[i]);
        CKKS_ASSERT(carry == 0);
    }
}

#endif
