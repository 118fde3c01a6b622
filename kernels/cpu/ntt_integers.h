/*
 * What forward and inverse transforms on 52-bit integers share: products, reductions, plans of passes, roots.
 * Included by ntt_avx512.c alone, which has the arithmetic and its bounds.
 */
#ifndef CKKS_CPU_NTT_INTEGERS_H
#define CKKS_CPU_NTT_INTEGERS_H

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/ntt_vector.h"

#define LEAF_LOG   11u /* 16 KiB */
#define LAST_LOG   4u  /* levels of the pass inside vectors */
#define LAST_PAIRS 4u  /* side by side */
#define PASSES_MAX 8u
_Static_assert((CKKS_LOG_N_MAX - LAST_LOG + 1) / 2 + 1 <= PASSES_MAX, "passes of the largest ring");

typedef struct transform {
    const uint64_t *root, *quotient;
    w64 q, q_negated, q_twice, two, reducer; /* q_negated: 2^52 - q */
    uint64_t prime;
    uint32_t log_n;
    /* per pass from the top: REDUCE_*, and on the way back what its inputs stay below, in units of q */
    uint32_t reduce[PASSES_MAX];
    uint64_t reach[PASSES_MAX];
} transform;

/* loops over vectors in registers: at -O2 the compiler would keep them in memory */
#define UNROLLED _Pragma("GCC unroll 8")

enum { REDUCE_NONE, REDUCE_SOME, REDUCE_ALL };

#define MASK52 (((uint64_t)1 << 52) - 1)

ALWAYS w64 high52(w64 a, w64 b) {
    return _mm512_madd52hi_epu64(_mm512_setzero_si512(), a, b);
}
ALWAYS w64 add_low52(w64 sum, w64 a, w64 b) {
    return _mm512_madd52lo_epu64(sum, a, b);
}

typedef struct factor {
    w64 w, quotient;
} factor;

ALWAYS factor factor_all(uint64_t w, uint64_t quotient64) {
    return (factor){w64_all(w), w64_all(quotient64 >> 12)};
}
ALWAYS factor factor_of(uint64_t w, uint64_t q) {
    return factor_all(w, mod_shoup(w, q));
}
ALWAYS factor root_all(const transform *t, size_t node) {
    return (factor){w64_all(t->root[node]), w64_all(t->quotient[node])};
}

/* sum + x * f.w - e q: sum plus less than 2q */
ALWAYS w64 add_product(w64 sum, w64 x, factor f, const transform *t) {
    const w64 e = high52(x, f.quotient);
    return add_low52(add_low52(sum, x, f.w), e, t->q_negated);
}
/* below 2q */
ALWAYS w64 reduce(w64 x, const transform *t) {
    return add_low52(x, high52(x, t->reducer), t->q_negated);
}
ALWAYS w64 masked(w64 x) {
    return _mm512_and_si512(x, w64_all(MASK52));
}

static transform transform_of(const ntt_table *table, const uint64_t *root, const uint64_t *quotient) {
    const uint64_t q = table->m.value;
    return (transform){.root = root,
                       .quotient = quotient,
                       .q = w64_all(q),
                       .q_negated = w64_all((MASK52 + 1) - q),
                       .q_twice = w64_all(2 * q),
                       .two = w64_all(2),
                       .reducer = w64_all((MASK52 + 1) / q),
                       .prime = q,
                       .log_n = table->log_n};
}

/* ---- passes ---- */

/* levels of the pass that starts on blocks of 2^log_size: all sums of two and three, the threes first */
static uint32_t levels_of(uint32_t log_size) {
    const uint32_t above_last = log_size - LAST_LOG;
    return above_last == 0 ? LAST_LOG : above_last == 2 || above_last == 4 ? 2 : 3;
}
#define TOP_LEVELS 3u /* what that is for a whole ring */
_Static_assert(CKKS_LOG_N_MIN - LAST_LOG > 4, "three levels at the top");

static void forward_plan(transform *t, double reach) {
    const double limit = 0x1p52 / (double)t->prime;
    uint32_t left = t->log_n;
    for (uint32_t k = 0; left > 0; k++) {
        const uint32_t levels = levels_of(left);
        CKKS_ASSERT(k < PASSES_MAX && reach <= limit && limit >= 4);
        if (reach + 2 * levels <= limit) {
            t->reduce[k] = REDUCE_NONE, reach += 2 * levels;
        } else if (2 + 2 * levels <= limit) {
            t->reduce[k] = REDUCE_SOME, reach = 2 + 2 * levels; /* at the first level */
        } else {
            t->reduce[k] = REDUCE_ALL, reach = 4;
        }
        left -= levels;
    }
}

#ifdef CKKS_DEBUG_BOUNDS
/* the sum and the doubled first input of a butterfly must not have passed 2^52 */
ALWAYS void check_forward(w64 u, const transform *t) {
    uint64_t at[LANES];
    w64_store(at, u);
    for (uint32_t i = 0; i < LANES; i++) CKKS_ASSERT((at[i] & MASK52) + 2 * t->prime <= MASK52 + 1);
}
ALWAYS void check_difference(w64 u, w64 v, w64 offset) {
    uint64_t at[3][LANES];
    w64_store(at[0], u), w64_store(at[1], v), w64_store(at[2], offset);
    for (uint32_t i = 0; i < LANES; i++) {
        const uint64_t x = at[0][i] & MASK52, y = at[1][i] & MASK52;
        CKKS_ASSERT(y <= at[2][i] && x + at[2][i] - y <= MASK52 && x + y <= MASK52);
    }
}
#else
ALWAYS void check_forward(w64 u, const transform *t) {
    (void)u, (void)t;
}
ALWAYS void check_difference(w64 u, w64 v, w64 offset) {
    (void)u, (void)v, (void)offset;
}
#endif

/* ---- roots ---- */

typedef struct roots4 {
    factor top, left, right;
} roots4;
typedef struct roots8 {
    roots4 upper;
    factor low[4];
} roots8;

ALWAYS roots4 roots4_of(const transform *t, size_t node) {
    return (roots4){root_all(t, node), root_all(t, 2 * node), root_all(t, 2 * node + 1)};
}
ALWAYS roots8 roots8_of(const transform *t, size_t node) {
    return (roots8){roots4_of(t, node),
                    {root_all(t, 4 * node), root_all(t, 4 * node + 1), root_all(t, 4 * node + 2),
                     root_all(t, 4 * node + 3)}};
}

/* ---- inside vectors ---- */

ALWAYS void interleave(w64 *x, w64 *y) {
    const w64 low = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11),
              high = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    const w64 a = *x, b = *y;
    *x = _mm512_permutex2var_epi64(a, low, b), *y = _mm512_permutex2var_epi64(a, high, b);
}
ALWAYS void deinterleave(w64 *x, w64 *y) {
    const w64 even = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14),
              odd = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    const w64 a = *x, b = *y;
    *x = _mm512_permutex2var_epi64(a, even, b), *y = _mm512_permutex2var_epi64(a, odd, b);
}
ALWAYS w64 repeat2(const uint64_t *at) {
    return _mm512_broadcast_i64x2(_mm_loadu_si128((const __m128i *)(const void *)at));
}
ALWAYS w64 repeat4(const uint64_t *at) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)at));
}
/* roots of one of the four levels below `node`, lanes as the interleaved vectors have them */
ALWAYS factor last_root(const transform *t, size_t node, uint32_t level) {
    switch (level) {
    case 0:
        return root_all(t, node);
    case 1:
        return (factor){repeat2(t->root + 2 * node), repeat2(t->quotient + 2 * node)};
    case 2:
        return (factor){repeat4(t->root + 4 * node), repeat4(t->quotient + 4 * node)};
    default: {
        const w64 quotient = w64_load(t->quotient + 8 * node);
        return (factor){_mm512_madd52hi_epu64(w64_all(1), quotient, t->q), quotient};
    }
    }
}

#endif
