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

static inline uint64_t mod_add(uint64_t a, uint64_t b, uint64_t q) {
    const uint64_t s = a + b;
    return s - (q & -(uint64_t)(s >= q));
}
static inline uint64_t mod_sub(uint64_t a, uint64_t b, uint64_t q) {
    return a - b + (q & -(uint64_t)(a < b));
}
static inline uint64_t mod_negate(uint64_t a, uint64_t q) {
    return (q - a) & -(uint64_t)(a != 0);
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
    const uint64_t r = mod_mul_shoup_lazy(a, w, w_shoup, q);
    return r - (q & -(uint64_t)(r >= q));
}

modulus modulus_create(uint64_t value);

/* mod_reduce128: any 128-bit x. Quotient estimate from the upper words of x * floor(2^128/q); at most one
 * correction remains after the estimate's error of one (q < 2^50 leaves room). */
static inline uint64_t mod_reduce128(uint128 x, const modulus *m) {
    const uint64_t x0 = (uint64_t)x, x1 = (uint64_t)(x >> 64);
    const uint128 middle = (uint128)x0 * m->barrett_high + (((uint128)x0 * m->barrett_low) >> 64);
    const uint128 middle2 = (uint128)x1 * m->barrett_low + (uint64_t)middle;
    const uint64_t quotient = x1 * m->barrett_high + (uint64_t)(middle >> 64) + (uint64_t)(middle2 >> 64);
    uint64_t r = x0 - quotient * m->value;
    r -= m->value & -(uint64_t)(r >= m->value);
    r -= m->value & -(uint64_t)(r >= m->value);
    return r;
}
static inline uint64_t mod_mul(uint64_t a, uint64_t b, const modulus *m) {
    return mod_reduce128((uint128)a * b, m);
}

uint64_t mod_pow(uint64_t base, uint64_t exponent, const modulus *m);
/* inverse of a nonzero residue modulo the prime */
uint64_t mod_inverse(uint64_t a, const modulus *m);
/* deterministic Miller-Rabin for 64-bit numbers */
bool is_prime_u64(uint64_t candidate);

static inline uint32_t bit_reverse(uint32_t value, uint32_t bits) {
    uint32_t r = 0;
    for (uint32_t i = 0; i < bits; i++) r = r << 1 | ((value >> i) & 1u);
    return r;
}

#endif
