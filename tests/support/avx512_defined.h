/*
 * The AVX-512 intrinsics that kernels/ uses, by their definitions in plain C: so that the AVX-512 code can be
 * checked, word for word and with its bounds, on a machine that lacks the instructions. Force-included
 * (-include) when kernels/..._avx512.c are compiled for test_*_avx512_defined; nothing else uses it.
 *
 * Names are macros over functions of our own: the compiler's header has declared the originals already, for a
 * target that is not switched on here.
 */
#ifndef CKKS_TESTS_AVX512_DEFINED_H
#define CKKS_TESTS_AVX512_DEFINED_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define __AVX512IFMA__ 1 /* what the kernels ask for */

typedef union defined512 {
    uint64_t w[8];
    double d[8];
} defined512;

#define DEFINED static __attribute__((noinline, unused)) /* inlined they would take minutes to compile */

DEFINED defined512 from_i(__m512i x) {
    defined512 r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DEFINED defined512 from_d(__m512d x) {
    defined512 r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DEFINED __m512i to_i(defined512 x) {
    __m512i r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DEFINED __m512d to_d(defined512 x) {
    __m512d r;
    memcpy(&r, &x, sizeof r);
    return r;
}

#define EACH for (int i = 0; i < 8; i++)
#define DEFINE_DD(name, expression)                                                                          \
    DEFINED __m512d defined_##name(__m512d a_, __m512d b_) {                                                 \
        const defined512 a = from_d(a_), b = from_d(b_);                                                     \
        defined512 r;                                                                                        \
        EACH r.d[i] = (expression);                                                                          \
        return to_d(r);                                                                                      \
    }
#define DEFINE_DDD(name, expression)                                                                         \
    DEFINED __m512d defined_##name(__m512d a_, __m512d b_, __m512d c_) {                                     \
        const defined512 a = from_d(a_), b = from_d(b_), c = from_d(c_);                                     \
        defined512 r;                                                                                        \
        EACH r.d[i] = (expression);                                                                          \
        return to_d(r);                                                                                      \
    }
#define DEFINE_II(name, expression)                                                                          \
    DEFINED __m512i defined_##name(__m512i a_, __m512i b_) {                                                 \
        const defined512 a = from_i(a_), b = from_i(b_);                                                     \
        defined512 r;                                                                                        \
        EACH r.w[i] = (expression);                                                                          \
        return to_i(r);                                                                                      \
    }
#define DEFINE_III(name, expression)                                                                         \
    DEFINED __m512i defined_##name(__m512i a_, __m512i b_, __m512i c_) {                                     \
        const defined512 a = from_i(a_), b = from_i(b_), c = from_i(c_);                                     \
        defined512 r;                                                                                        \
        EACH r.w[i] = (expression);                                                                          \
        return to_i(r);                                                                                      \
    }

#define LOW52(x) ((x) & (((uint64_t)1 << 52) - 1))

DEFINE_DD(_mm512_add_pd, a.d[i] + b.d[i])
DEFINE_DD(_mm512_sub_pd, a.d[i] - b.d[i])
DEFINE_DD(_mm512_mul_pd, a.d[i] * b.d[i])
DEFINE_DD(_mm512_div_pd, a.d[i] / b.d[i])
DEFINE_DD(_mm512_max_pd, a.d[i] > b.d[i] ? a.d[i] : b.d[i])
DEFINE_DDD(_mm512_fmadd_pd, fma(a.d[i], b.d[i], c.d[i]))
DEFINE_DDD(_mm512_fmsub_pd, fma(a.d[i], b.d[i], -c.d[i]))
DEFINE_DDD(_mm512_fnmadd_pd, fma(-a.d[i], b.d[i], c.d[i]))
DEFINE_II(_mm512_add_epi64, a.w[i] + b.w[i])
DEFINE_II(_mm512_sub_epi64, a.w[i] - b.w[i])
DEFINE_II(_mm512_and_si512, a.w[i] & b.w[i])
DEFINE_II(_mm512_or_si512, a.w[i] | b.w[i])
DEFINE_II(_mm512_min_epu64, a.w[i] < b.w[i] ? a.w[i] : b.w[i])
DEFINE_II(_mm512_permutexvar_epi64, b.w[a.w[i] & 7])
DEFINE_III(_mm512_madd52lo_epu64,
           a.w[i] + LOW52((uint64_t)((unsigned __int128)LOW52(b.w[i]) * LOW52(c.w[i]))))
DEFINE_III(_mm512_madd52hi_epu64,
           a.w[i] + (uint64_t)(((unsigned __int128)LOW52(b.w[i]) * LOW52(c.w[i])) >> 52))
DEFINE_III(_mm512_permutex2var_epi64, b.w[i] & 8 ? c.w[b.w[i] & 7] : a.w[b.w[i] & 7])

DEFINED __m512d defined__mm512_set1_pd(double x) {
    defined512 r;
    EACH r.d[i] = x;
    return to_d(r);
}
DEFINED __m512i defined__mm512_set1_epi64(long long x) {
    defined512 r;
    EACH r.w[i] = (uint64_t)x;
    return to_i(r);
}
DEFINED __m512i defined__mm512_setr_epi64(long long a, long long b, long long c, long long d, long long e,
                                          long long f, long long g, long long h) {
    return to_i((defined512){.w = {(uint64_t)a, (uint64_t)b, (uint64_t)c, (uint64_t)d, (uint64_t)e,
                                   (uint64_t)f, (uint64_t)g, (uint64_t)h}});
}
DEFINED __m512d defined__mm512_loadu_pd(const void *at) {
    defined512 r;
    memcpy(&r, at, sizeof r);
    return to_d(r);
}
DEFINED __m512i defined__mm512_loadu_si512(const void *at) {
    defined512 r;
    memcpy(&r, at, sizeof r);
    return to_i(r);
}
DEFINED void defined__mm512_storeu_pd(void *at, __m512d x) {
    memcpy(at, &x, sizeof x);
}
DEFINED void defined__mm512_storeu_si512(void *at, __m512i x) {
    memcpy(at, &x, sizeof x);
}
DEFINED void defined__mm512_stream_si512(void *at, __m512i x) {
    memcpy(at, &x, sizeof x);
}
DEFINED __m512i defined__mm512_broadcast_i64x2(__m128i x) {
    uint64_t half[2];
    defined512 r;
    memcpy(half, &x, sizeof half);
    EACH r.w[i] = half[i & 1];
    return to_i(r);
}
DEFINED __m512i defined__mm512_broadcast_i64x4(__m256i x) {
    uint64_t half[4];
    defined512 r;
    memcpy(half, &x, sizeof half);
    EACH r.w[i] = half[i & 3];
    return to_i(r);
}
DEFINED __m512i defined__mm512_srli_epi64(__m512i x, unsigned count) {
    defined512 r = from_i(x);
    EACH r.w[i] >>= count;
    return to_i(r);
}
DEFINED __m512i defined__mm512_slli_epi64(__m512i x, unsigned count) {
    defined512 r = from_i(x);
    EACH r.w[i] <<= count;
    return to_i(r);
}
DEFINED __m512d defined__mm512_cvtepu64_pd(__m512i x) {
    const defined512 a = from_i(x);
    defined512 r;
    EACH r.d[i] = (double)a.w[i];
    return to_d(r);
}
DEFINED __m512i defined__mm512_cvtpd_epi64(__m512d x) {
    const defined512 a = from_d(x);
    defined512 r;
    EACH r.w[i] = (uint64_t)llrint(a.d[i]);
    return to_i(r);
}
DEFINED __m512d defined__mm512_cvtepi64_pd(__m512i x) {
    const defined512 a = from_i(x);
    defined512 r;
    EACH r.d[i] = (double)(int64_t)a.w[i];
    return to_d(r);
}
DEFINED __m512i defined__mm512_cvtepi8_epi64(__m128i x) {
    int8_t bytes[16];
    defined512 r;
    memcpy(bytes, &x, sizeof bytes);
    EACH r.w[i] = (uint64_t)(int64_t)bytes[i];
    return to_i(r);
}
DEFINED __m512d defined__mm512_abs_pd(__m512d x) {
    defined512 r = from_d(x);
    EACH r.d[i] = fabs(r.d[i]);
    return to_d(r);
}
DEFINED __m512d defined__mm512_roundscale_pd(__m512d x, int control) {
    defined512 r = from_d(x);
    if (control != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)) __builtin_trap();
    EACH r.d[i] = rint(r.d[i]);
    return to_d(r);
}
DEFINED __mmask8 defined__mm512_cmp_pd_mask(__m512d a_, __m512d b_, int predicate) {
    const defined512 a = from_d(a_), b = from_d(b_);
    unsigned mask = 0;
    if (predicate == _CMP_LT_OQ)
        EACH mask |= (unsigned)(a.d[i] < b.d[i]) << i;
    else if (predicate == _CMP_NEQ_UQ)
        EACH mask |= (unsigned)!(a.d[i] == b.d[i]) << i;
    else if (predicate == _CMP_NLE_UQ)
        EACH mask |= (unsigned)!(a.d[i] <= b.d[i]) << i;
    else
        __builtin_trap();
    return (__mmask8)mask;
}
DEFINED __mmask8 defined__mm512_movepi64_mask(__m512i x) {
    const defined512 a = from_i(x);
    unsigned mask = 0;
    EACH mask |= (unsigned)(a.w[i] >> 63) << i;
    return (__mmask8)mask;
}
DEFINED __m512d defined__mm512_mask_mov_pd(__m512d source, __mmask8 mask, __m512d a_) {
    const defined512 a = from_d(a_);
    defined512 r = from_d(source);
    EACH if (mask >> i & 1) r.d[i] = a.d[i];
    return to_d(r);
}
DEFINED __m512i defined__mm512_mask_add_epi64(__m512i source, __mmask8 mask, __m512i a_, __m512i b_) {
    const defined512 a = from_i(a_), b = from_i(b_);
    defined512 r = from_i(source);
    EACH if (mask >> i & 1) r.w[i] = a.w[i] + b.w[i];
    return to_i(r);
}
DEFINED __m512d defined__mm512_mask_add_pd(__m512d source, __mmask8 mask, __m512d a_, __m512d b_) {
    const defined512 a = from_d(a_), b = from_d(b_);
    defined512 r = from_d(source);
    EACH if (mask >> i & 1) r.d[i] = a.d[i] + b.d[i];
    return to_d(r);
}
DEFINED __m512i defined__mm512_maskz_permutexvar_epi8(__mmask64 mask, __m512i index_, __m512i a_) {
    uint8_t index[64], a[64], r[64];
    defined512 out;
    memcpy(index, &index_, sizeof index), memcpy(a, &a_, sizeof a);
    for (int i = 0; i < 64; i++) r[i] = mask >> i & 1 ? a[index[i] & 63] : 0;
    memcpy(&out, r, sizeof out);
    return to_i(out);
}
DEFINED __m512d defined__mm512_permutex2var_pd(__m512d a_, __m512i index_, __m512d b_) {
    const defined512 a = from_d(a_), b = from_d(b_), index = from_i(index_);
    defined512 r;
    EACH r.d[i] = index.w[i] & 8 ? b.d[index.w[i] & 7] : a.d[index.w[i] & 7];
    return to_d(r);
}
DEFINED __m512d defined__mm512_shuffle_f64x2(__m512d a_, __m512d b_, int choice) {
    const defined512 a = from_d(a_), b = from_d(b_);
    defined512 r;
    for (int k = 0; k < 4; k++) {
        const double *from = (k < 2 ? a.d : b.d) + 2 * (choice >> (2 * k) & 3);
        r.d[2 * k] = from[0], r.d[2 * k + 1] = from[1];
    }
    return to_d(r);
}
DEFINED __m512d defined__mm512_castpd256_pd512(__m256d x) {
    defined512 r = {{0}};
    memcpy(&r, &x, sizeof x);
    return to_d(r);
}
DEFINED __m256d defined__mm512_castpd512_pd256(__m512d x) {
    __m256d r;
    memcpy(&r, &x, sizeof r);
    return r;
}
DEFINED __m512d defined__mm512_insertf64x4(__m512d a, __m256d b, int half) {
    defined512 r = from_d(a);
    memcpy(r.d + 4 * half, &b, sizeof b);
    return to_d(r);
}
DEFINED __m256d defined__mm512_extractf64x4_pd(__m512d a, int half) {
    const defined512 x = from_d(a);
    __m256d r;
    memcpy(&r, x.d + 4 * half, sizeof r);
    return r;
}

#undef EACH
#undef _mm512_maskz_permutexvar_epi8
#define _mm512_maskz_permutexvar_epi8 defined__mm512_maskz_permutexvar_epi8
#undef _mm512_abs_pd
#define _mm512_abs_pd defined__mm512_abs_pd
#undef _mm512_cvtepi64_pd
#define _mm512_cvtepi64_pd defined__mm512_cvtepi64_pd
#undef _mm512_cvtepi8_epi64
#define _mm512_cvtepi8_epi64 defined__mm512_cvtepi8_epi64
#undef _mm512_div_pd
#define _mm512_div_pd defined__mm512_div_pd
#undef _mm512_mask_add_epi64
#define _mm512_mask_add_epi64 defined__mm512_mask_add_epi64
#undef _mm512_mask_mov_pd
#define _mm512_mask_mov_pd defined__mm512_mask_mov_pd
#undef _mm512_max_pd
#define _mm512_max_pd defined__mm512_max_pd
#undef _mm512_movepi64_mask
#define _mm512_movepi64_mask defined__mm512_movepi64_mask
#undef _mm512_or_si512
#define _mm512_or_si512 defined__mm512_or_si512
#undef _mm512_roundscale_pd
#define _mm512_roundscale_pd defined__mm512_roundscale_pd
#undef _mm512_add_epi64
#define _mm512_add_epi64 defined__mm512_add_epi64
#undef _mm512_add_pd
#define _mm512_add_pd defined__mm512_add_pd
#undef _mm512_and_si512
#define _mm512_and_si512 defined__mm512_and_si512
#undef _mm512_broadcast_i64x2
#define _mm512_broadcast_i64x2 defined__mm512_broadcast_i64x2
#undef _mm512_broadcast_i64x4
#define _mm512_broadcast_i64x4 defined__mm512_broadcast_i64x4
#undef _mm512_castpd256_pd512
#define _mm512_castpd256_pd512 defined__mm512_castpd256_pd512
#undef _mm512_castpd512_pd256
#define _mm512_castpd512_pd256 defined__mm512_castpd512_pd256
#undef _mm512_cmp_pd_mask
#define _mm512_cmp_pd_mask defined__mm512_cmp_pd_mask
#undef _mm512_cvtepu64_pd
#define _mm512_cvtepu64_pd defined__mm512_cvtepu64_pd
#undef _mm512_cvtpd_epi64
#define _mm512_cvtpd_epi64 defined__mm512_cvtpd_epi64
#undef _mm512_extractf64x4_pd
#define _mm512_extractf64x4_pd defined__mm512_extractf64x4_pd
#undef _mm512_fmadd_pd
#define _mm512_fmadd_pd defined__mm512_fmadd_pd
#undef _mm512_fmsub_pd
#define _mm512_fmsub_pd defined__mm512_fmsub_pd
#undef _mm512_fnmadd_pd
#define _mm512_fnmadd_pd defined__mm512_fnmadd_pd
#undef _mm512_insertf64x4
#define _mm512_insertf64x4 defined__mm512_insertf64x4
#undef _mm512_loadu_pd
#define _mm512_loadu_pd defined__mm512_loadu_pd
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 defined__mm512_loadu_si512
#undef _mm512_madd52hi_epu64
#define _mm512_madd52hi_epu64 defined__mm512_madd52hi_epu64
#undef _mm512_madd52lo_epu64
#define _mm512_madd52lo_epu64 defined__mm512_madd52lo_epu64
#undef _mm512_mask_add_pd
#define _mm512_mask_add_pd defined__mm512_mask_add_pd
#undef _mm512_min_epu64
#define _mm512_min_epu64 defined__mm512_min_epu64
#undef _mm512_mul_pd
#define _mm512_mul_pd defined__mm512_mul_pd
#undef _mm512_permutex2var_epi64
#define _mm512_permutex2var_epi64 defined__mm512_permutex2var_epi64
#undef _mm512_permutex2var_pd
#define _mm512_permutex2var_pd defined__mm512_permutex2var_pd
#undef _mm512_permutexvar_epi64
#define _mm512_permutexvar_epi64 defined__mm512_permutexvar_epi64
#undef _mm512_set1_epi64
#define _mm512_set1_epi64 defined__mm512_set1_epi64
#undef _mm512_set1_pd
#define _mm512_set1_pd defined__mm512_set1_pd
#undef _mm512_setr_epi64
#define _mm512_setr_epi64 defined__mm512_setr_epi64
#undef _mm512_shuffle_f64x2
#define _mm512_shuffle_f64x2 defined__mm512_shuffle_f64x2
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 defined__mm512_slli_epi64
#undef _mm512_srli_epi64
#define _mm512_srli_epi64 defined__mm512_srli_epi64
#undef _mm512_storeu_pd
#define _mm512_storeu_pd defined__mm512_storeu_pd
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 defined__mm512_storeu_si512
#undef _mm512_stream_si512
#define _mm512_stream_si512 defined__mm512_stream_si512
#undef _mm512_sub_epi64
#define _mm512_sub_epi64 defined__mm512_sub_epi64
#undef _mm512_sub_pd
#define _mm512_sub_pd          defined__mm512_sub_pd
#define _mm512_setzero_pd()    defined__mm512_set1_pd(0)
#define _mm512_setzero_si512() defined__mm512_set1_epi64(0)

#endif
