/*
 * Sums of products of residues, reduced once per several terms; template, included once per instruction set.
 *
 * AVX2: the running sum `high` stays within one binade, [2^k, 2^(k+1)), so that each FMA rounds it to a
 * multiple of 2^(k-52), and the rounding error of a term, exact in one more FMA, is at most 2^(k-53) and is
 * added to `low`. Products of canonical words below 2^b are below 2^(2b): 2^t of them fit where k = 2b + t.
 * low must stay within 2^52: t + k - 53 <= 52, that is 2t + 2b <= 105. So four terms for primes of 50 bits, 8
 * below 2^49.5, 16 below 2^48.5, 32 below 2^47.5. The sum is high's part above 2^k, a number of units of
 * 2^(k-52) below 2^52, and low: one product with 2^(k-52) mod q.
 * Products of centred residues (|x|, |w| < 2^49) start from the middle of the binade of 2^102 and eight fit.
 *
 * AVX-512 IFMA: `low` and `high` add up the low and the high 52 bits of each product; the high part of one is
 * below 2^48, so 15 terms keep high, with low's carry, below 2^52.
 */
#include "kernels/cpu/lanes.h"

typedef struct sum_shape {
    lanes_constant carry; /* what one unit of the high part is worth */
    f64 start, unit;      /* AVX2: 2^k, 2^(52-k) */
    uint32_t terms_max;   /* between two folds */
} sum_shape;

#define SUM_TERMS_MAX 32u

#define CENTRE        0x1.8p102
#define CENTRED_TERMS 8u

/* |high part| <= 2^52, |low| <= 2^52, |acc| <= q: reduced */
ALWAYS f64 sum_close(f64 high, f64 low, f64 acc, const lanes_constant *carry, const lanes_prime *p) {
    return f64_reduce(f64_add(f64_multiply_constant(high, *carry, p), f64_add(low, acc)), p);
}

/* ---- centred residues in doubles, on both instruction sets ---- */

typedef struct centred_sum {
    f64 high, low;
} centred_sum;

ALWAYS void float_add(f64 *high, f64 *low, f64 x, f64 w) {
    const f64 sum = f64_fma(x, w, *high);
    *low = f64_add(*low, f64_fms(x, w, f64_sub(sum, *high)));
    *high = sum;
}
ALWAYS centred_sum centred_zero(void) {
    return (centred_sum){f64_all(CENTRE), f64_all(0)};
}
ALWAYS void centred_add(centred_sum *sum, f64 x, f64 w) {
    float_add(&sum->high, &sum->low, x, w);
}
/* carry: 2^50 mod q */
ALWAYS f64 centred_fold(const centred_sum *sum, f64 acc, const lanes_constant *carry, const lanes_prime *p) {
    const f64 high = f64_times(f64_sub(sum->high, f64_all(CENTRE)), f64_all(0x1p-50));
    return sum_close(high, sum->low, acc, carry, p);
}

/* ---- canonical words ---- */

#if LANES == 8

typedef w64 term_value;
typedef struct word_sum {
    w64 high, low;
} word_sum;

ALWAYS term_value term_of(w64 word) {
    return word;
}
ALWAYS word_sum sum_zero(const sum_shape *s) {
    (void)s;
    return (word_sum){_mm512_setzero_si512(), _mm512_setzero_si512()};
}
ALWAYS void sum_add(word_sum *sum, term_value x, term_value w) {
    sum->low = _mm512_madd52lo_epu64(sum->low, x, w);
    sum->high = _mm512_madd52hi_epu64(sum->high, x, w);
}
ALWAYS f64 sum_fold(const word_sum *sum, f64 acc, const sum_shape *s, const lanes_prime *p) {
    const w64 high = w64_add(sum->high, _mm512_srli_epi64(sum->low, 52));
    const w64 low = _mm512_and_si512(sum->low, w64_all(((uint64_t)1 << 52) - 1));
    return sum_close(f64_from_word(high), f64_from_word(low), acc, &s->carry, p);
}
ALWAYS sum_shape sum_shape_of(const modulus *m, const lanes_prime *p) {
    return (sum_shape){.carry = lanes_constant_residue(mod_reduce128((uint128)1 << 52, m), m, p),
                       .terms_max = 15};
}

#else

typedef f64 term_value;
typedef struct word_sum {
    f64 high, low;
} word_sum;

ALWAYS term_value term_of(w64 word) {
    return f64_from_word(word);
}
ALWAYS word_sum sum_zero(const sum_shape *s) {
    return (word_sum){s->start, f64_all(0)};
}
ALWAYS void sum_add(word_sum *sum, term_value x, term_value w) {
    float_add(&sum->high, &sum->low, x, w);
}
ALWAYS f64 sum_fold(const word_sum *sum, f64 acc, const sum_shape *s, const lanes_prime *p) {
    const f64 high = f64_times(f64_sub(sum->high, s->start), s->unit);
    return sum_close(high, sum->low, acc, &s->carry, p);
}
/* 2^x for a small whole number x */
static inline double power_of_two(int32_t x) {
    const uint64_t bits = (uint64_t)(1023 + x) << 52;
    double out;
    memcpy(&out, &bits, sizeof out);
    return out;
}
static inline sum_shape sum_shape_of(const modulus *m, const lanes_prime *p) {
    const uint128 product_max = (uint128)(m->value - 1) * (m->value - 1);
    const uint64_t high = (uint64_t)(product_max >> 64), low = (uint64_t)product_max;
    const uint32_t bits = high ? 128 - (uint32_t)__builtin_clzll(high) : 64 - (uint32_t)__builtin_clzll(low);
    uint32_t t = 2;
    while ((1u << (t + 1)) <= SUM_TERMS_MAX && 2 * (t + 1) + bits <= 105) t++;
    /* the smallest primes need less than one as a unit: then nothing is rounded */
    const uint32_t k = bits + t, unit_bits = k > 52 ? k - 52 : 0;
    return (sum_shape){.carry = lanes_constant_residue(mod_reduce128((uint128)1 << unit_bits, m), m, p),
                       .start = f64_all(power_of_two((int32_t)unit_bits + 52)),
                       .unit = f64_all(power_of_two(-(int32_t)unit_bits)),
                       .terms_max = 1u << t};
}

#endif

ALWAYS term_value term_load(const uint64_t *at) {
    return term_of(w64_load(at));
}
ALWAYS term_value term_all(uint64_t word) {
    return term_of(w64_all(word));
}
