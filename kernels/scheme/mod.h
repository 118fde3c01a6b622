/*
 * Arithmetic modulo a prime q < 2^50. Every function here is branch-free in its data and takes and returns
 * canonical residues in [0, q) unless it says otherwise.
 */
#ifndef CKKS_SCHEME_MOD_H
#define CKKS_SCHEME_MOD_H

#include <stdbool.h>
#include <stdint.h>

typedef unsigned __int128 uint128;

typedef struct modulus {
    uint64_t value;
    uint32_t bits;         /* bit width of value */
    uint64_t barrett_high; /* floor(2^128 / value), high and low words */
    uint64_t barrett_low;
} modulus;

/* mod_correct: x for x < bound, else x - bound, where x < 2^63 and the result is below 2^63. The sign of the
 * difference makes the mask: nothing here that a compiler would turn into a branch. */
static inline uint64_t mod_correct(uint64_t x, uint64_t bound) {
    const uint64_t r = x - bound;
    return r + (bound & (uint64_t)((int64_t)r >> 63));
}
static inline uint64_t mod_add(uint64_t a, uint64_t b, uint64_t q) {
    return mod_correct(a + b, q);
}
static inline uint64_t mod_sub(uint64_t a, uint64_t b, uint64_t q) {
    const uint64_t r = a - b;
    return r + (q & (uint64_t)((int64_t)r >> 63));
}
static inline uint64_t mod_negate(uint64_t a, uint64_t q) {
    return (q - a) & (uint64_t)((int64_t)(0 - a) >> 63); /* 0 stays 0 */
}

/* mod_shoup: floor(w * 2^64 / q), for a constant w < q. Division: tables only, never on secrets. */
static inline uint64_t mod_shoup(uint64_t w, uint64_t q) {
    return (uint64_t)(((uint128)w << 64) / q);
}
/* mod_mul_shoup_lazy: any a (64 bits) times constant w: result in [0, 2q). */
static inline uint64_t mod_mul_shoup_lazy(uint64_t a, uint64_t w, uint64_t w_shoup, uint64_t q) {
    return a * w - (uint64_t)(((uint128)a * w_shoup) >> 64) * q;
}
static inline uint64_t mod_mul_shoup(uint64_t a, uint64_t w, uint64_t w_shoup, uint64_t q) {
    return mod_correct(mod_mul_shoup_lazy(a, w, w_shoup, q), q);
}

/* modulus_create: 2 < value < 2^62, odd. Divides: never of a secret. */
modulus modulus_create(uint64_t value);

/* mod_quotient128: floor(x / q) or one less, modulo 2^64, for any 128-bit x. It is exactly
 * floor(x * floor(2^128/q) / 2^128) modulo 2^64 (no partial sum overflows: (2^64-1)^2 + 2^64-1 < 2^128), and
 * floor(2^128/q) is short of 2^128/q by less than one, so the estimate is short of x/q by less than
 * x/2^128 + 1 < 2 before, and by at most one after the floor. */
static inline uint64_t mod_quotient128(uint128 x, const modulus *m) {
    const uint64_t x0 = (uint64_t)x, x1 = (uint64_t)(x >> 64);
    const uint128 middle = (uint128)x0 * m->barrett_high + (((uint128)x0 * m->barrett_low) >> 64);
    const uint128 middle2 = (uint128)x1 * m->barrett_low + (uint64_t)middle;
    return x1 * m->barrett_high + (uint64_t)(middle >> 64) + (uint64_t)(middle2 >> 64);
}
/* mod_reduce128: any 128-bit x. The remainder of the estimate is below 2q, so one correction is enough. */
static inline uint64_t mod_reduce128(uint128 x, const modulus *m) {
    return mod_correct((uint64_t)x - mod_quotient128(x, m) * m->value, m->value);
}
/* mod_shoup_fast: the words of mod_shoup without a division, for w < q. */
static inline uint64_t mod_shoup_fast(uint64_t w, const modulus *m) {
    const uint64_t quotient = mod_quotient128((uint128)w << 64, m);
    const uint64_t r = 0 - quotient * m->value;
    return quotient + (uint64_t)(r >= m->value);
}
static inline uint64_t mod_mul(uint64_t a, uint64_t b, const modulus *m) {
    return mod_reduce128((uint128)a * b, m);
}

/* mod_pow: time depends on the exponent, never on the base. */
uint64_t mod_pow(uint64_t base, uint64_t exponent, const modulus *m);
/* inverse of a nonzero residue modulo the prime */
uint64_t mod_inverse(uint64_t a, const modulus *m);
/* deterministic Miller-Rabin for 64-bit numbers */
bool is_prime_u64(uint64_t candidate);

/* bit_reverse mirrors the low `bits` bits of value, bits from 1 to 32; higher bits of value are 0. */
static inline uint32_t bit_reverse(uint32_t value, uint32_t bits) {
    value = (value >> 1 & 0x55555555u) | (value & 0x55555555u) << 1;
    value = (value >> 2 & 0x33333333u) | (value & 0x33333333u) << 2;
    value = (value >> 4 & 0x0F0F0F0Fu) | (value & 0x0F0F0F0Fu) << 4;
    return __builtin_bswap32(value) >> (32 - bits);
}

#endif
