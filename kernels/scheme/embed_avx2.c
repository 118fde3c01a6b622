/*
 * The embedding with AVX2, for AVX-512 machines too (it is a small part of encoding). Every butterfly does
 * the scalar one's operations on the scalar one's numbers, none of them fused, so that each bit is the same.
 *
 * Two stages per pass where both are at least four wide. The two narrow stages share a pass with the reversal
 * of bits: position (a, m, c) with two bits a on top and two bits c below goes to (c', m', a'), each
 * reversed, so that four rows of four are a tile to transpose, and the narrow stages run across its vectors.
 */
#include "kernels/scheme/limb_loops_internal.h"

#include <immintrin.h>

#define ALWAYS       static inline __attribute__((always_inline))
#define COUNT_MIN    16u
#define REVERSE_2(i) (((i)&1u) << 1 | (i) >> 1)

typedef struct complex4 {
    __m256d re, im;
} complex4;

ALWAYS complex4 load(const double *re, const double *im, size_t at) {
    return (complex4){_mm256_loadu_pd(re + at), _mm256_loadu_pd(im + at)};
}
ALWAYS void store(double *re, double *im, size_t at, complex4 x) {
    _mm256_storeu_pd(re + at, x.re);
    _mm256_storeu_pd(im + at, x.im);
}
ALWAYS complex4 root_all(const double *roots, uint32_t root_count, uint32_t half, uint32_t j) {
    return (complex4){_mm256_set1_pd(roots[half - 1 + j]), _mm256_set1_pd(roots[root_count + half - 1 + j])};
}
ALWAYS complex4 root_load(const double *roots, uint32_t root_count, uint32_t half, uint32_t j) {
    return load(roots + (half - 1), roots + root_count + (half - 1), j);
}

ALWAYS void forward_butterfly(complex4 *low, complex4 *high, complex4 w) {
    const complex4 h = *high, l = *low;
    const __m256d tr = _mm256_sub_pd(_mm256_mul_pd(h.re, w.re), _mm256_mul_pd(h.im, w.im));
    const __m256d ti = _mm256_add_pd(_mm256_mul_pd(h.re, w.im), _mm256_mul_pd(h.im, w.re));
    *low = (complex4){_mm256_add_pd(l.re, tr), _mm256_add_pd(l.im, ti)};
    *high = (complex4){_mm256_sub_pd(l.re, tr), _mm256_sub_pd(l.im, ti)};
}
ALWAYS void inverse_butterfly(complex4 *low, complex4 *high, complex4 w) {
    const complex4 h = *high, l = *low;
    const __m256d dr = _mm256_sub_pd(l.re, h.re), di = _mm256_sub_pd(l.im, h.im);
    *low = (complex4){_mm256_add_pd(l.re, h.re), _mm256_add_pd(l.im, h.im)};
    *high = (complex4){_mm256_add_pd(_mm256_mul_pd(dr, w.re), _mm256_mul_pd(di, w.im)),
                       _mm256_sub_pd(_mm256_mul_pd(di, w.re), _mm256_mul_pd(dr, w.im))};
}

ALWAYS void transpose(__m256d *x0, __m256d *x1, __m256d *x2, __m256d *x3) {
    const __m256d a = _mm256_unpacklo_pd(*x0, *x1), b = _mm256_unpackhi_pd(*x0, *x1);
    const __m256d c = _mm256_unpacklo_pd(*x2, *x3), d = _mm256_unpackhi_pd(*x2, *x3);
    *x0 = _mm256_permute2f128_pd(a, c, 0x20), *x1 = _mm256_permute2f128_pd(b, d, 0x20);
    *x2 = _mm256_permute2f128_pd(a, c, 0x31), *x3 = _mm256_permute2f128_pd(b, d, 0x31);
}
ALWAYS void transpose_complex(complex4 x[4]) {
    transpose(&x[0].re, &x[1].re, &x[2].re, &x[3].re);
    transpose(&x[0].im, &x[1].im, &x[2].im, &x[3].im);
}

static uint32_t reverse_middle(uint32_t m, uint32_t bits) {
    return bits ? bit_reverse(m, bits) : 0;
}

/* ---- slots from coefficients ---- */

static void reverse_and_widen(double *out_re, double *out_im, const double *in_re, const double *in_im,
                              uint32_t count, const double *roots, uint32_t root_count) {
    const complex4 w2 = root_all(roots, root_count, 1, 0);
    const complex4 w40 = root_all(roots, root_count, 2, 0), w41 = root_all(roots, root_count, 2, 1);
    const uint32_t row = count / 4, bits = (uint32_t)__builtin_ctz(count) - 4;
    for (uint32_t m = 0; m < count / 16; m++) {
        const size_t from = (size_t)4 * reverse_middle(m, bits), to = (size_t)4 * m;
        complex4 x[4];
        for (uint32_t c = 0; c < 4; c++) x[c] = load(in_re, in_im, REVERSE_2(c) * (size_t)row + from);
        forward_butterfly(&x[0], &x[1], w2), forward_butterfly(&x[2], &x[3], w2);
        forward_butterfly(&x[0], &x[2], w40), forward_butterfly(&x[1], &x[3], w41);
        transpose_complex(x);
        for (uint32_t a = 0; a < 4; a++) store(out_re, out_im, REVERSE_2(a) * (size_t)row + to, x[a]);
    }
}

static void forward_one(double *re, double *im, uint32_t count, uint32_t half, const double *roots,
                        uint32_t root_count) {
    for (size_t first = 0; first < count; first += (size_t)2 * half)
        for (uint32_t j = 0; j < half; j += 4) {
            complex4 low = load(re, im, first + j), high = load(re, im, first + half + j);
            forward_butterfly(&low, &high, root_load(roots, root_count, half, j));
            store(re, im, first + j, low), store(re, im, first + half + j, high);
        }
}

/* the stages of q and 2 q */
static void forward_two(double *re, double *im, uint32_t count, uint32_t q, const double *roots,
                        uint32_t root_count) {
    for (size_t first = 0; first < count; first += (size_t)4 * q)
        for (uint32_t j = 0; j < q; j += 4) {
            const size_t at = first + j;
            const complex4 w = root_load(roots, root_count, q, j);
            complex4 x0 = load(re, im, at), x1 = load(re, im, at + q);
            complex4 x2 = load(re, im, at + 2 * (size_t)q), x3 = load(re, im, at + 3 * (size_t)q);
            forward_butterfly(&x0, &x1, w), forward_butterfly(&x2, &x3, w);
            forward_butterfly(&x0, &x2, root_load(roots, root_count, 2 * q, j));
            forward_butterfly(&x1, &x3, root_load(roots, root_count, 2 * q, q + j));
            store(re, im, at, x0), store(re, im, at + q, x1);
            store(re, im, at + 2 * (size_t)q, x2), store(re, im, at + 3 * (size_t)q, x3);
        }
}

void embed_avx2(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                const double *roots, uint32_t root_count) {
    if (count < COUNT_MIN) {
        embed_scalar(out_re, out_im, in_re, in_im, count, roots, root_count);
        return;
    }
    reverse_and_widen(out_re, out_im, in_re, in_im, count, roots, root_count);
    uint32_t q = 4;
    for (; 2 * q < count; q *= 4) forward_two(out_re, out_im, count, q, roots, root_count);
    if (q < count) forward_one(out_re, out_im, count, q, roots, root_count);
}

/* ---- coefficients from slots ---- */

static void narrow_and_reverse(double *out_re, double *out_im, const double *in_re, const double *in_im,
                               uint32_t count, const double *roots, uint32_t root_count) {
    const complex4 w2 = root_all(roots, root_count, 1, 0);
    const complex4 w40 = root_all(roots, root_count, 2, 0), w41 = root_all(roots, root_count, 2, 1);
    const uint32_t row = count / 4, bits = (uint32_t)__builtin_ctz(count) - 4;
    for (uint32_t m = 0; m < count / 16; m++) {
        const size_t from = (size_t)4 * m, to = (size_t)4 * reverse_middle(m, bits);
        complex4 x[4];
        for (uint32_t a = 0; a < 4; a++) x[a] = load(in_re, in_im, REVERSE_2(a) * (size_t)row + from);
        transpose_complex(x);
        inverse_butterfly(&x[0], &x[2], w40), inverse_butterfly(&x[1], &x[3], w41);
        inverse_butterfly(&x[0], &x[1], w2), inverse_butterfly(&x[2], &x[3], w2);
        for (uint32_t c = 0; c < 4; c++) store(out_re, out_im, REVERSE_2(c) * (size_t)row + to, x[c]);
    }
}

static void inverse_one(double *re, double *im, uint32_t count, uint32_t half, const double *roots,
                        uint32_t root_count) {
    for (size_t first = 0; first < count; first += (size_t)2 * half)
        for (uint32_t j = 0; j < half; j += 4) {
            complex4 low = load(re, im, first + j), high = load(re, im, first + half + j);
            inverse_butterfly(&low, &high, root_load(roots, root_count, half, j));
            store(re, im, first + j, low), store(re, im, first + half + j, high);
        }
}

/* the stages of 2 q and q */
static void inverse_two(double *re, double *im, uint32_t count, uint32_t q, const double *roots,
                        uint32_t root_count) {
    for (size_t first = 0; first < count; first += (size_t)4 * q)
        for (uint32_t j = 0; j < q; j += 4) {
            const size_t at = first + j;
            const complex4 w = root_load(roots, root_count, q, j);
            complex4 x0 = load(re, im, at), x1 = load(re, im, at + q);
            complex4 x2 = load(re, im, at + 2 * (size_t)q), x3 = load(re, im, at + 3 * (size_t)q);
            inverse_butterfly(&x0, &x2, root_load(roots, root_count, 2 * q, j));
            inverse_butterfly(&x1, &x3, root_load(roots, root_count, 2 * q, q + j));
            inverse_butterfly(&x0, &x1, w), inverse_butterfly(&x2, &x3, w);
            store(re, im, at, x0), store(re, im, at + q, x1);
            store(re, im, at + 2 * (size_t)q, x2), store(re, im, at + 3 * (size_t)q, x3);
        }
}

void embed_inverse_avx2(double *out_re, double *out_im, double *in_re, double *in_im, uint32_t count,
                        const double *roots, uint32_t root_count) {
    if (count < COUNT_MIN) {
        embed_inverse_scalar(out_re, out_im, in_re, in_im, count, roots, root_count);
        return;
    }
    uint32_t half = count / 2;
    if (__builtin_ctz(count) % 2) {
        inverse_one(in_re, in_im, count, half, roots, root_count);
        half /= 2;
    }
    for (; half >= 8; half /= 4) inverse_two(in_re, in_im, count, half / 2, roots, root_count);
    narrow_and_reverse(out_re, out_im, in_re, in_im, count, roots, root_count);
}
