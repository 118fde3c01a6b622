#include "kernels/scheme/mod.h"

#include "kernels/base/status.h"

modulus modulus_create(uint64_t value) {
    CKKS_ASSERT(value > 2 && value < (uint64_t)1 << 62 && value % 2 == 1);
    modulus m = {.value = value, .bits = 64 - (uint32_t)__builtin_clzll(value)};
    /* an odd value does not divide 2^128, so this is floor(2^128 / value) */
    const uint128 quotient = ~(uint128)0 / value;
    m.barrett_high = (uint64_t)(quotient >> 64);
    m.barrett_low = (uint64_t)quotient;
    return m;
}

uint64_t mod_pow(uint64_t base, uint64_t exponent, const modulus *m) {
    uint64_t power = mod_reduce128(base, m), result = 1;
    for (; exponent; exponent >>= 1) {
        if (exponent & 1) result = mod_mul(result, power, m);
        power = mod_mul(power, power, m);
    }
    return result;
}

uint64_t mod_inverse(uint64_t a, const modulus *m) {
    return mod_pow(a, m->value - 2, m); /* Fermat */
}

static uint64_t wide_pow(uint64_t base, uint64_t exponent, uint64_t n) {
    uint64_t result = 1;
    for (base %= n; exponent; exponent >>= 1) {
        if (exponent & 1) result = (uint64_t)((uint128)result * base % n);
        base = (uint64_t)((uint128)base * base % n);
    }
    return result;
}

static bool is_witness(uint64_t a, uint64_t odd, uint32_t twos, uint64_t n) {
    uint64_t x = wide_pow(a, odd, n);
    if (x == 1 || x == n - 1) return false;
    for (uint32_t i = 1; i < twos; i++) {
        x = (uint64_t)((uint128)x * x % n);
        if (x == n - 1) return false;
    }
    return true;
}

/* The first twelve primes as bases decide every number below 3.3 * 10^24 (Sorenson and Webster, 2015). */
bool is_prime_u64(uint64_t candidate) {
    static const uint64_t base[] = {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    if (candidate < 2) return false;
    for (unsigned i = 0; i < sizeof base / sizeof *base; i++)
        if (candidate % base[i] == 0) return candidate == base[i];
    const uint32_t twos = (uint32_t)__builtin_ctzll(candidate - 1);
    for (unsigned i = 0; i < sizeof base / sizeof *base; i++)
        if (is_witness(base[i], (candidate - 1) >> twos, twos, candidate)) return false;
    return true;
}
