/*
 * Residues in vector registers: the same source for AVX2 (4 lanes) and AVX-512 (8 lanes). Included by files
 * whose names end in _avx2.c or _avx512.c alone, through the templates *_lanes.h.
 *
 * A residue is a whole number in a double. A product with a constant w, |w| <= q/2, by FMA:
 *     h = x*w   l = x*w - h   b = round(x * (w/q))   r = (h - b*q) + l
 * h + l is the product; b is a whole number, so r is congruent to it; all steps but the rounding are exact
 * while |x*w/q| < 2^51 (h - b*q is a whole number below 2^53).
 *
 * How far r reaches, in units of q. w/q is computed as w * fl(1/q): fl(1/q) is off by a factor 1 +- 2^-53 and
 * the product, at most 1/2, by 2^-55, so together by at most 3 * 2^-55; x * that is off by 0.375 |x| / 2^52,
 * and one rounding to a whole number adds 1/2. With |x| = M q and limit = 2^52 / q:
 *     |r| <= (1/2 + 0.375 M / limit) q     for M <= limit.
 * q < 2^50 makes the limit at least 4 and |r| <= 0.875 q. A reduction x - round(x/q) q leaves |x| <= q/2 and
 * a hair (exactly the centred residue where |x| < q: x/q is then at least 1/(2q) > 2^-51 away from 1/2 and
 * computed to 2^-53). Builds with CKKS_DEBUG_BOUNDS check each product.
 */
#ifndef CKKS_CPU_LANES_H
#define CKKS_CPU_LANES_H

#include "kernels/cpu/kernels_cpu.h"

#include <immintrin.h>

#define ALWAYS static inline __attribute__((always_inline))

#if defined(__AVX512IFMA__)

#define LANES     8u
#define ISA(name) name##_avx512
typedef __m512d f64;
typedef __m512i w64;

ALWAYS f64 f64_all(double x) {
    return _mm512_set1_pd(x);
}
ALWAYS f64 f64_load(const double *at) {
    return _mm512_loadu_pd(at);
}
ALWAYS void f64_store(double *at, f64 x) {
    _mm512_storeu_pd(at, x);
}
ALWAYS f64 f64_add(f64 a, f64 b) {
    return _mm512_add_pd(a, b);
}
ALWAYS f64 f64_sub(f64 a, f64 b) {
    return _mm512_sub_pd(a, b);
}
ALWAYS f64 f64_times(f64 a, f64 b) {
    return _mm512_mul_pd(a, b);
}
/* a*b + c, a*b - c, c - a*b */
ALWAYS f64 f64_fma(f64 a, f64 b, f64 c) {
    return _mm512_fmadd_pd(a, b, c);
}
ALWAYS f64 f64_fms(f64 a, f64 b, f64 c) {
    return _mm512_fmsub_pd(a, b, c);
}
ALWAYS f64 f64_fnma(f64 a, f64 b, f64 c) {
    return _mm512_fnmadd_pd(a, b, c);
}
ALWAYS w64 w64_load(const uint64_t *at) {
    return _mm512_loadu_si512(at);
}
ALWAYS void w64_store(uint64_t *at, w64 x) {
    _mm512_storeu_si512(at, x);
}
ALWAYS w64 w64_all(uint64_t x) {
    return _mm512_set1_epi64((long long)x);
}
ALWAYS w64 w64_add(w64 a, w64 b) {
    return _mm512_add_epi64(a, b);
}
ALWAYS w64 w64_sub(w64 a, w64 b) {
    return _mm512_sub_epi64(a, b);
}
/* x < bound ? x : x - bound, for x < 2 bound < 2^63 */
ALWAYS w64 w64_correct(w64 x, w64 bound) {
    return _mm512_min_epu64(x, _mm512_sub_epi64(x, bound));
}
/* exact for x < 2^53 */
ALWAYS f64 f64_from_word(w64 x) {
    return _mm512_cvtepu64_pd(x);
}
/* |x| < q -> canonical word; lift = 2^52 + q */
ALWAYS w64 f64_to_word(f64 x, f64 q, f64 lift) {
    (void)lift;
    return _mm512_cvtpd_epi64(
        _mm512_mask_add_pd(x, _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_LT_OQ), x, q));
}

/* Groups of four consecutive elements, one group per lane: x0..x3 hold LANES groups in memory order, and
 * after f64_split the first, second, third and fourth elements of each group. f64_join undoes it. */
ALWAYS void f64_split(f64 *x0, f64 *x1, f64 *x2, f64 *x3) {
    const w64 low = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13),
              high = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
    const f64 a = _mm512_permutex2var_pd(*x0, low, *x1), b = _mm512_permutex2var_pd(*x2, low, *x3);
    const f64 c = _mm512_permutex2var_pd(*x0, high, *x1), d = _mm512_permutex2var_pd(*x2, high, *x3);
    *x0 = _mm512_shuffle_f64x2(a, b, 0x44), *x1 = _mm512_shuffle_f64x2(a, b, 0xee);
    *x2 = _mm512_shuffle_f64x2(c, d, 0x44), *x3 = _mm512_shuffle_f64x2(c, d, 0xee);
}
ALWAYS void f64_join(f64 *x0, f64 *x1, f64 *x2, f64 *x3) {
    const w64 low = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13),
              high = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
    const f64 a = _mm512_shuffle_f64x2(*x0, *x1, 0x44), b = _mm512_shuffle_f64x2(*x0, *x1, 0xee);
    const f64 c = _mm512_shuffle_f64x2(*x2, *x3, 0x44), d = _mm512_shuffle_f64x2(*x2, *x3, 0xee);
    *x0 = _mm512_permutex2var_pd(a, low, c), *x1 = _mm512_permutex2var_pd(a, high, c);
    *x2 = _mm512_permutex2var_pd(b, low, d), *x3 = _mm512_permutex2var_pd(b, high, d);
}
/* roots of LANES consecutive nodes (lanes as f64_split leaves them) and of their two children */
ALWAYS void f64_load_roots(f64 *own, f64 *left, f64 *right, const double *root, size_t node) {
    const f64 a = f64_load(root + 2 * node), b = f64_load(root + 2 * node + LANES);
    *own = f64_load(root + node);
    *left = _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    *right = _mm512_permutex2var_pd(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
}

/* the position of each lane of an aligned vector under an automorphism */
ALWAYS w64 w64_permute(w64 x, w64 index) {
    return _mm512_permutexvar_epi64(index, x);
}
ALWAYS w64 w64_permute_index(const uint8_t lane[LANES]) {
    uint64_t index[LANES];
    for (uint32_t j = 0; j < LANES; j++) index[j] = lane[j];
    return _mm512_loadu_si512(index);
}

#else

#define LANES     4u
#define ISA(name) name##_avx2
typedef __m256d f64;
typedef __m256i w64;

ALWAYS f64 f64_all(double x) {
    return _mm256_set1_pd(x);
}
ALWAYS f64 f64_load(const double *at) {
    return _mm256_loadu_pd(at);
}
ALWAYS void f64_store(double *at, f64 x) {
    _mm256_storeu_pd(at, x);
}
ALWAYS f64 f64_add(f64 a, f64 b) {
    return _mm256_add_pd(a, b);
}
ALWAYS f64 f64_sub(f64 a, f64 b) {
    return _mm256_sub_pd(a, b);
}
ALWAYS f64 f64_times(f64 a, f64 b) {
    return _mm256_mul_pd(a, b);
}
/* a*b + c, a*b - c, c - a*b */
ALWAYS f64 f64_fma(f64 a, f64 b, f64 c) {
    return _mm256_fmadd_pd(a, b, c);
}
ALWAYS f64 f64_fms(f64 a, f64 b, f64 c) {
    return _mm256_fmsub_pd(a, b, c);
}
ALWAYS f64 f64_fnma(f64 a, f64 b, f64 c) {
    return _mm256_fnmadd_pd(a, b, c);
}
ALWAYS w64 w64_load(const uint64_t *at) {
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}
ALWAYS void w64_store(uint64_t *at, w64 x) {
    _mm256_storeu_si256((__m256i *)(void *)at, x);
}
ALWAYS w64 w64_all(uint64_t x) {
    return _mm256_set1_epi64x((long long)x);
}
ALWAYS w64 w64_add(w64 a, w64 b) {
    return _mm256_add_epi64(a, b);
}
ALWAYS w64 w64_sub(w64 a, w64 b) {
    return _mm256_sub_epi64(a, b);
}
/* x < bound ? x : x - bound, for x < 2 bound < 2^63: the sign of the difference chooses */
ALWAYS w64 w64_correct(w64 x, w64 bound) {
    const w64 r = _mm256_sub_epi64(x, bound);
    return _mm256_castpd_si256(
        _mm256_blendv_pd(_mm256_castsi256_pd(r), _mm256_castsi256_pd(x), _mm256_castsi256_pd(r)));
}
/* exact for x < 2^52: the exponent of 2^52 or-ed in, then subtracted */
ALWAYS f64 f64_from_word(w64 x) {
    const w64 exponent = _mm256_set1_epi64x(0x4330000000000000);
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(x, exponent)), _mm256_set1_pd(0x1p52));
}
/* |x| < q -> canonical word; lift = 2^52 + q. The sign bit chooses what to add; there is no -0: a difference
 * of equal numbers is +0, and in a product the low part of a zero is +0. */
ALWAYS w64 f64_to_word(f64 x, f64 q, f64 lift) {
    (void)q;
    const f64 up = _mm256_blendv_pd(_mm256_set1_pd(0x1p52), lift, x);
    return _mm256_xor_si256(_mm256_castpd_si256(_mm256_add_pd(x, up)),
                            _mm256_set1_epi64x(0x4330000000000000));
}

/* Groups of four consecutive elements, one group per lane (groups 0, 2, 1, 3): x0..x3 hold LANES groups in
 * memory order, and after f64_split the first, second, third and fourth elements of each group. f64_join
 * undoes it. */
ALWAYS void f64_split(f64 *x0, f64 *x1, f64 *x2, f64 *x3) {
    const f64 a = _mm256_unpacklo_pd(*x0, *x2), b = _mm256_unpackhi_pd(*x0, *x2);
    const f64 c = _mm256_unpacklo_pd(*x1, *x3), d = _mm256_unpackhi_pd(*x1, *x3);
    *x0 = _mm256_permute2f128_pd(a, c, 0x20), *x1 = _mm256_permute2f128_pd(b, d, 0x20);
    *x2 = _mm256_permute2f128_pd(a, c, 0x31), *x3 = _mm256_permute2f128_pd(b, d, 0x31);
}
ALWAYS void f64_join(f64 *x0, f64 *x1, f64 *x2, f64 *x3) {
    const f64 a = _mm256_permute2f128_pd(*x0, *x2, 0x20), c = _mm256_permute2f128_pd(*x0, *x2, 0x31);
    const f64 b = _mm256_permute2f128_pd(*x1, *x3, 0x20), d = _mm256_permute2f128_pd(*x1, *x3, 0x31);
    *x0 = _mm256_unpacklo_pd(a, b), *x2 = _mm256_unpackhi_pd(a, b);
    *x1 = _mm256_unpacklo_pd(c, d), *x3 = _mm256_unpackhi_pd(c, d);
}
/* roots of LANES consecutive nodes (lanes as f64_split leaves them) and of their two children */
ALWAYS void f64_load_roots(f64 *own, f64 *left, f64 *right, const double *root, size_t node) {
    const f64 a = f64_load(root + 2 * node), b = f64_load(root + 2 * node + LANES);
    *own = _mm256_permute4x64_pd(f64_load(root + node), 0xd8);
    *left = _mm256_unpacklo_pd(a, b), *right = _mm256_unpackhi_pd(a, b);
}

/* the position of each lane of an aligned vector under an automorphism */
ALWAYS w64 w64_permute(w64 x, w64 index) {
    return _mm256_permutevar8x32_epi32(x, index);
}
ALWAYS w64 w64_permute_index(const uint8_t lane[LANES]) {
    uint32_t index[2 * LANES];
    for (uint32_t j = 0; j < LANES; j++) index[2 * j] = 2u * lane[j], index[2 * j + 1] = 2u * lane[j] + 1;
    return _mm256_loadu_si256((const __m256i *)(const void *)index);
}

#endif

/* ---- one prime ---- */

typedef struct lanes_prime {
    f64 q, q_inverse, lift;
    double value, inverse; /* the same, scalar */
} lanes_prime;

ALWAYS lanes_prime lanes_prime_of(const modulus *m) {
    const double q = (double)m->value, inverse = 1.0 / q;
    return (lanes_prime){f64_all(q), f64_all(inverse), f64_all(0x1p52 + q), q, inverse};
}

/* a constant to multiply with: the centred residue and its quotient by q, in all lanes */
typedef struct lanes_constant {
    f64 w, over_q;
} lanes_constant;

ALWAYS double centred(uint64_t residue, uint64_t q) {
    return residue > q >> 1 ? -(double)(q - residue) : (double)residue;
}
/* the quotient by a vector product: a broadcast from memory costs no shuffle */
ALWAYS lanes_constant lanes_constant_of(double w, const lanes_prime *p) {
    const f64 all = f64_all(w);
    return (lanes_constant){all, f64_times(all, p->q_inverse)};
}
ALWAYS lanes_constant lanes_constant_residue(uint64_t residue, const modulus *m, const lanes_prime *p) {
    return lanes_constant_of(centred(residue, m->value), p);
}

#ifdef CKKS_DEBUG_BOUNDS
ALWAYS void lanes_check_product(f64 x, f64 w, f64 r, const lanes_prime *p) {
    double at[3][LANES];
    f64_store(at[0], x), f64_store(at[1], w), f64_store(at[2], r);
    for (uint32_t i = 0; i < LANES; i++) {
        CKKS_ASSERT(__builtin_fabs(at[0][i]) * (__builtin_fabs(at[1][i]) / p->value) < 0x1p51);
        CKKS_ASSERT(__builtin_fabs(at[2][i]) <= 0.875 * p->value);
    }
}
#else
ALWAYS void lanes_check_product(f64 x, f64 w, f64 r, const lanes_prime *p) {
    (void)x, (void)w, (void)r, (void)p;
}
#endif

/* nearest whole number to x*y, |x*y| < 2^51 */
ALWAYS f64 f64_round_product(f64 x, f64 y) {
    const f64 magic = f64_all(0x1.8p52);
    return f64_sub(f64_fma(x, y, magic), magic);
}
/* |x| <= 2^52, |w| <= q/2: result within 0.875 q (see above) */
ALWAYS f64 f64_multiply(f64 x, f64 w, f64 w_over_q, const lanes_prime *p) {
    const f64 h = f64_times(x, w), l = f64_fms(x, w, h), b = f64_round_product(x, w_over_q);
    const f64 r = f64_add(f64_fnma(b, p->q, h), l);
    lanes_check_product(x, w, r, p);
    return r;
}
/* Two products step by step together: a compiler that keeps the order leaves two chains side by side. */
ALWAYS void f64_multiply_two(f64 *x0, lanes_constant c0, f64 *x1, lanes_constant c1, const lanes_prime *p) {
    const f64 magic = f64_all(0x1.8p52);
    f64 b0 = f64_fma(*x0, c0.over_q, magic), b1 = f64_fma(*x1, c1.over_q, magic);
    const f64 h0 = f64_times(*x0, c0.w), h1 = f64_times(*x1, c1.w);
    b0 = f64_sub(b0, magic), b1 = f64_sub(b1, magic);
    const f64 l0 = f64_fms(*x0, c0.w, h0), l1 = f64_fms(*x1, c1.w, h1);
    const f64 r0 = f64_fnma(b0, p->q, h0), r1 = f64_fnma(b1, p->q, h1);
    const f64 y0 = f64_add(r0, l0), y1 = f64_add(r1, l1);
    lanes_check_product(*x0, c0.w, y0, p);
    lanes_check_product(*x1, c1.w, y1, p);
    *x0 = y0, *x1 = y1;
}
ALWAYS f64 f64_multiply_constant(f64 x, lanes_constant c, const lanes_prime *p) {
    return f64_multiply(x, c.w, c.over_q, p);
}
/* |x| < 2^53 -> |result| <= q/2 and a hair */
ALWAYS f64 f64_reduce(f64 x, const lanes_prime *p) {
    return f64_fnma(f64_round_product(x, p->q_inverse), p->q, x);
}
ALWAYS w64 f64_canonical(f64 x, const lanes_prime *p) {
    return f64_to_word(x, p->q, p->lift);
}
ALWAYS f64 f64_load_words(const uint64_t *at) {
    return f64_from_word(w64_load(at));
}

#endif
