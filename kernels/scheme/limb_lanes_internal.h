/*
 * The loops of limb_loops_internal.h on vector units; template, included once per instruction set. Arithmetic
 * and bounds are those of kernels/cpu/lanes.h.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/ntt_vector.h"
#include "kernels/scheme/limb_loops_internal.h"

#include <string.h>

/* ---- transforms ---- */

#if LANES == 8
ALWAYS f64 f64_magnitude(f64 x) {
    return _mm512_abs_pd(x);
}
/* lanes where x is not zero */
ALWAYS uint32_t f64_not_zero(f64 x) {
    return _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_NEQ_UQ);
}
ALWAYS uint32_t f64_not_within(f64 x, f64 limit) {
    return _mm512_cmp_pd_mask(x, limit, _CMP_NLE_UQ);
}
/* y where |x| < bound, else z */
ALWAYS f64 f64_below(f64 magnitude, f64 bound, f64 y, f64 z) {
    return _mm512_mask_mov_pd(z, _mm512_cmp_pd_mask(magnitude, bound, _CMP_LT_OQ), y);
}
ALWAYS f64 f64_rint(f64 x) {
    return _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS f64 f64_larger(f64 x, f64 otherwise) {
    return _mm512_max_pd(x, otherwise); /* of a NaN and a number the second */
}
ALWAYS f64 f64_divide(f64 a, f64 b) {
    return _mm512_div_pd(a, b);
}
ALWAYS w64 w64_and(w64 a, w64 b) {
    return _mm512_and_si512(a, b);
}
ALWAYS w64 w64_or(w64 a, w64 b) {
    return _mm512_or_si512(a, b);
}
#define w64_left(x, bits)  _mm512_slli_epi64(x, bits)
#define w64_right(x, bits) _mm512_srli_epi64(x, bits)
/* 128-bit words in memory order, two vectors, to their halves in lane order */
ALWAYS void w64_load_wide(w64 *low, w64 *high, const uint8_t *at) {
    const w64 a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + 64);
    *low = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), b);
    *high = _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b);
}
#else
ALWAYS f64 f64_from_small(const int8_t *at) {
    int32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(bytes)));
}
ALWAYS f64 f64_magnitude(f64 x) {
    return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x);
}
ALWAYS uint32_t f64_not_zero(f64 x) {
    return (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_NEQ_UQ));
}
ALWAYS uint32_t f64_not_within(f64 x, f64 limit) {
    return (uint32_t)_mm256_movemask_pd(_mm256_cmp_pd(x, limit, _CMP_NLE_UQ));
}
ALWAYS f64 f64_below(f64 magnitude, f64 bound, f64 y, f64 z) {
    return _mm256_blendv_pd(z, y, _mm256_cmp_pd(magnitude, bound, _CMP_LT_OQ));
}
ALWAYS f64 f64_rint(f64 x) {
    return _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS f64 f64_larger(f64 x, f64 otherwise) {
    return _mm256_max_pd(x, otherwise);
}
ALWAYS f64 f64_divide(f64 a, f64 b) {
    return _mm256_div_pd(a, b);
}
ALWAYS w64 w64_and(w64 a, w64 b) {
    return _mm256_and_si256(a, b);
}
ALWAYS w64 w64_or(w64 a, w64 b) {
    return _mm256_or_si256(a, b);
}
#define w64_left(x, bits)  _mm256_slli_epi64(x, bits)
#define w64_right(x, bits) _mm256_srli_epi64(x, bits)
ALWAYS void w64_load_wide(w64 *low, w64 *high, const uint8_t *at) {
    const w64 a = _mm256_loadu_si256((const __m256i *)(const void *)at);
    const w64 b = _mm256_loadu_si256((const __m256i *)(const void *)(at + 32));
    *low = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
    *high = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
}
#endif

static void forward(uint64_t *out, const uint64_t *in, const ntt_table *t) {
    ISA(vector_forward)(out, in, t, NULL);
}

/* AVX-512 transforms take canonical words, AVX2 ones whole numbers in doubles as they are. */
#if LANES == 8
static void forward_small(uint64_t *out, const int8_t *small, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const w64 q = w64_all(t->m.value);
    for (size_t i = 0; i < n; i += LANES) {
        const w64 x = _mm512_cvtepi8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(small + i)));
        w64_store(out + i, _mm512_mask_add_epi64(x, _mm512_movepi64_mask(x), x, q));
    }
    vector_forward_avx512(out, out, t, NULL);
}
static void inverse_centred(double *out, const uint64_t *in, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const w64 half = w64_all(t->m.value >> 1);
    uint64_t *x = (uint64_t *)(void *)out;
    vector_inverse_shifted_avx512(x, in, 1, t);
    for (size_t i = 0; i < n; i += LANES)
        f64_store(out + i, _mm512_cvtepi64_pd(w64_sub(w64_load(x + i), half)));
}
ALWAYS void leave_integer(double *at, f64 x, const lanes_prime *p) {
    w64_store((uint64_t *)(void *)at, f64_canonical(x, p));
}
static void forward_left(double *x, const ntt_table *t) {
    uint64_t *words = (uint64_t *)(void *)x;
    vector_forward_avx512(words, words, t, NULL);
}
#else
static void forward_small(uint64_t *out, const int8_t *small, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    double *x = (double *)(void *)out;
    for (size_t i = 0; i < n; i += LANES) f64_store(x + i, f64_from_small(small + i));
    vector_forward_f64_avx2(out, x, 1, t, NULL);
}
static void inverse_centred(double *out, const uint64_t *in, const ntt_table *t) {
    vector_inverse_f64_avx2(out, in, 1, t);
}
ALWAYS void leave_integer(double *at, f64 x, const lanes_prime *p) {
    (void)p;
    f64_store(at, f64_add(x, f64_all(0))); /* -0 becomes 0 */
}
static void forward_left(double *x, const ntt_table *t) {
    vector_forward_f64_avx2((uint64_t *)(void *)x, x, 1, t, NULL);
}
#endif

/* |x| < 2^63 and q >= 12289, the smallest prime that any ring has, keep |x/q| below 2^50, so that the
 * quotient, off by at most 2^-3 before it is rounded, leaves |r| <= 0.625 q; b * q - x is a whole number
 * below 2^53 and the FMA exact. */
static void forward_integers(uint64_t *out, const double *in, const ntt_table *t) {
    const size_t n = (size_t)1 << t->log_n;
    const lanes_prime p = lanes_prime_of(&t->m);
    double *x = (double *)(void *)out;
    for (size_t i = 0; i < n; i += LANES) leave_integer(x + i, f64_reduce(f64_load(in + i), &p), &p);
    forward_left(x, t);
}

/* ---- position by position ---- */

/* a product of canonical words: within 0.69 q, as in pointwise_lanes.h */
ALWAYS f64 product(f64 a, f64 b, const lanes_prime *p) {
    return f64_multiply(a, b, f64_times(b, p->q_inverse), p);
}

typedef struct wide_shape {
    lanes_prime p;
    lanes_constant middle, top; /* 2^52, 2^104 mod q */
} wide_shape;

ALWAYS wide_shape wide_shape_of(const modulus *m) {
    wide_shape s = {.p = lanes_prime_of(m)};
    s.middle = lanes_constant_residue(mod_reduce128((uint128)1 << 52, m), m, &s.p);
    s.top = lanes_constant_residue(mod_reduce128((uint128)1 << 104, m), m, &s.p);
    return s;
}

/* 52 + 52 + 24 bits, the upper two times what they are worth; the sum is below 2^53. Centred. */
ALWAYS f64 load_wide(const uint8_t *at, const wide_shape *s) {
    const w64 ones = w64_all(((uint64_t)1 << 52) - 1);
    w64 low, high;
    w64_load_wide(&low, &high, at);
    const w64 middle = w64_and(w64_or(w64_right(low, 52), w64_left(high, 12)), ones);
    const f64 part0 = f64_from_word(w64_and(low, ones));
    const f64 part1 = f64_multiply_constant(f64_from_word(middle), s->middle, &s->p);
    const f64 part2 = f64_multiply_constant(f64_from_word(w64_right(high, 40)), s->top, &s->p);
    return f64_reduce(f64_add(f64_add(part1, part2), part0), &s->p);
}

static void reduce_wide(uint64_t *out, const uint8_t *bytes, size_t n, const modulus *m) {
    const wide_shape s = wide_shape_of(m);
    for (size_t i = 0; i < n; i += LANES)
        w64_store(out + i, f64_canonical(load_wide(bytes + 16 * i, &s), &s.p));
}

ALWAYS void store_reduced(uint64_t *at, f64 x, const lanes_prime *p) {
    w64_store(at, f64_canonical(f64_reduce(x, p), p));
}

static void subtract_wide_product(uint64_t *out, const uint8_t *bytes, const uint64_t *s,
                                  const uint64_t *plus, size_t n, const modulus *m) {
    const wide_shape shape = wide_shape_of(m);
    for (size_t i = 0; i < n; i += LANES) {
        const f64 wide = load_wide(bytes + 16 * i, &shape);
        f64 x = f64_sub(f64_load_words(out + i), product(wide, f64_load_words(s + i), &shape.p));
        if (plus) x = f64_add(x, f64_load_words(plus + i));
        store_reduced(out + i, x, &shape.p);
    }
}

static void add_product(uint64_t *out, const uint64_t *a, const uint64_t *b, const uint64_t *plus, size_t n,
                        const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (size_t i = 0; i < n; i += LANES) {
        f64 x = f64_add(f64_load_words(out + i), product(f64_load_words(a + i), f64_load_words(b + i), &p));
        if (plus) x = f64_add(x, f64_load_words(plus + i));
        store_reduced(out + i, x, &p);
    }
}

static void multiply(uint64_t *out, const uint64_t *a, const uint64_t *b, size_t n, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (size_t i = 0; i < n; i += LANES)
        w64_store(out + i, f64_canonical(product(f64_load_words(a + i), f64_load_words(b + i), &p), &p));
}

static void add_scaled(uint64_t *out, const uint64_t *a, uint64_t factor, size_t n, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    const lanes_constant c = lanes_constant_residue(factor, m, &p);
    for (size_t i = 0; i < n; i += LANES)
        store_reduced(out + i,
                      f64_add(f64_load_words(out + i), f64_multiply_constant(f64_load_words(a + i), c, &p)),
                      &p);
}

static void decrypt_words(uint64_t *out, const uint64_t *c0, const uint64_t *c1, const uint64_t *c2,
                          const uint64_t *s, size_t n, const modulus *m) {
    const lanes_prime p = lanes_prime_of(m);
    for (size_t i = 0; i < n; i += LANES) {
        const f64 key = f64_load_words(s + i);
        f64 high = f64_load_words(c1 + i);
        if (c2) high = f64_reduce(f64_add(product(f64_load_words(c2 + i), key, &p), high), &p);
        store_reduced(out + i, f64_add(product(high, key, &p), f64_load_words(c0 + i)), &p);
    }
}

/* ---- sampler ---- */

/* 32 draws: ones of bits 0..20 minus ones of bits 21..41 are the ones of all 42, the upper ones inverted,
 * minus 21. Bytes are counted by a table in a register, which has no address. */
ALWAYS __m256i draw_ones(const uint8_t *at) {
    const __m256i upper = _mm256_set1_epi64x(((1ll << 21) - 1) << 21),
                  all = _mm256_set1_epi64x((1ll << 42) - 1);
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i ones = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 0, 1, 1, 2, 1, 2, 2,
                                          3, 1, 2, 2, 3, 2, 3, 3, 4);
    const __m256i x =
        _mm256_and_si256(_mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(const void *)at), upper), all);
    const __m256i low = _mm256_shuffle_epi8(ones, _mm256_and_si256(x, nibble));
    const __m256i high = _mm256_shuffle_epi8(ones, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
    return _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256());
}

static void count_errors(int8_t *out, const uint8_t *draws, size_t n) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i four[8]; /* counts in 64-bit lanes, packed to bytes: 128-bit halves stay apart */
        for (int k = 0; k < 8; k++) four[k] = draw_ones(draws + 8 * i + 32 * k);
        for (int k = 0; k < 4; k++) four[k] = _mm256_packus_epi32(four[2 * k], four[2 * k + 1]);
        for (int k = 0; k < 2; k++) four[k] = _mm256_packus_epi32(four[2 * k], four[2 * k + 1]);
        /* draws 0 1 | 4 5 | ... | 28 29 in the low half, 2 3 | 6 7 | ... | 30 31 in the high one */
        const __m256i bytes = _mm256_sub_epi8(_mm256_packus_epi16(four[0], four[1]), _mm256_set1_epi8(21));
        const __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm_unpacklo_epi16(even, odd));
        _mm_storeu_si128((__m128i *)(void *)(out + i + 16), _mm_unpackhi_epi16(even, odd));
    }
    if (i < n) limb_loops_scalar.count_errors(out + i, draws + 8 * i, n - i);
}

/* ---- encoder ---- */

static bool round_scaled(double *x, size_t n, double factor, double limit, double *largest) {
    const f64 factors = f64_all(factor), limits = f64_all(limit), magic = f64_all(0x1.8p52);
    f64 most = f64_all(0);
    uint32_t outside = 0;
    double lanes[LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const f64 y = f64_times(f64_load(x + i), factors);
        /* the scalar's steps: a sum never leaves -0 */
        const f64 rounded =
            f64_below(f64_magnitude(y), f64_all(0x1p51), f64_sub(f64_add(y, magic), magic), f64_rint(y));
        const f64 magnitude = f64_magnitude(rounded);
        outside |= f64_not_within(magnitude, limits);
        most = f64_larger(magnitude, most);
        f64_store(x + i, rounded);
    }
    bool fits = limb_loops_scalar.round_scaled(x + i, n - i, factor, limit, largest) && !outside;
    f64_store(lanes, most);
    for (uint32_t k = 0; k < LANES; k++) *largest = lanes[k] > *largest ? lanes[k] : *largest;
    return fits;
}

/*
 * y1 = (c1 - y0) / q0 modulo q1, both centred; |c1 - y0| < 2^50. Where there are only two limbs that is all:
 * the centred integer. Else y0 + q0 y1 - c_i is zero modulo each q_i exactly where x is near: a multiple of
 * q_i below 2^51 reduces to zero itself. q0 * y1 + y0 rounded once: h + l is the product, l + y0 a whole
 * number below 2^50.
 */
static bool near_quotients(double *out, const double *limbs, size_t stride, size_t n, const near_integer *c) {
    double high[NEAR_BLOCK];
    const double *low = limbs;
    const f64 scale = f64_all(c->scale), q0 = f64_all(c->q0), zero = f64_all(0);
    uint32_t far = 0;
    if (c->limb_count > 1) {
        const lanes_prime p = lanes_prime_of(c->m[1]);
        const lanes_constant inverse = lanes_constant_residue(c->q0_inverse, c->m[1], &p);
        for (size_t k = 0; k < n; k += LANES) {
            const f64 difference = f64_sub(f64_load(limbs + stride + k), f64_load(low + k));
            f64_store(high + k, f64_reduce(f64_multiply_constant(difference, inverse, &p), &p));
        }
    }
    for (uint32_t i = 2; i < c->limb_count; i++) {
        const lanes_prime p = lanes_prime_of(c->m[i]);
        const lanes_constant residue = lanes_constant_residue(c->q0_residue[i], c->m[i], &p);
        const double *limb = limbs + i * stride;
        for (size_t k = 0; k < n; k += LANES) {
            const f64 upper = f64_multiply_constant(f64_load(high + k), residue, &p);
            const f64 sum = f64_add(upper, f64_sub(f64_load(low + k), f64_load(limb + k)));
            far |= f64_not_zero(f64_reduce(sum, &p));
        }
    }
    for (size_t k = 0; k < n; k += LANES) {
        f64 x = f64_load(low + k);
        if (c->limb_count > 1) {
            const f64 y = f64_load(high + k), h = f64_times(y, q0), l = f64_fms(y, q0, h);
            x = f64_add(h, f64_add(l, x));
        }
        f64_store(out + k, f64_divide(f64_add(x, zero), scale)); /* no -0, as there is none among integers */
    }
    return !far;
}

const limb_loops ISA(limb_loops) = {
    .forward = forward,
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
    .embed = embed_avx2,
    .embed_inverse = embed_inverse_avx2,
    .near_quotients = near_quotients,
};
