/*
 * The negacyclic transform on 52-bit integer multipliers (IFMA).
 *
 * An element is a number x in [0, 2^52) in the low 52 bits of a lane; what stands above them is of no
 * consequence: additions carry it along, multiplications do not read it, and results are masked when they
 * leave. So the product with a root w, by Shoup's quotient v = floor(w 2^52 / q), is three instructions:
 *     e = high 52 bits of x v     t = low 52 bits of x w - e q     0 <= t < (1 + x / 2^52) q < 2q
 * (Shoup's; Harvey, "Faster arithmetic for number-theoretic transforms", 2014.) A forward butterfly is five:
 *     e,   u' = u + x w - e q  (two),   2u + 2q  (one),   and that minus u'.
 * A reduction is two: e = high 52 bits of x floor(2^52 / q), and x - e q, which is below 2q for any x.
 *
 * Bounds, in units of q, limit = 2^52 / q. Forward, both results of a butterfly lie 2 above its first input,
 * which is the one to reduce. Inverse, sums double; differences are made positive by a multiple of q. Each
 * transform walks the bound through its passes first and reduces where this prime needs it: primes of 50 bits
 * (limit 4) at every level, primes of 46 bits or fewer never on the way forward.
 *
 * Passes: as in ntt_avx2.c two levels at a time, depth first until a block fits the first-level cache. The
 * lowest four levels work on two vectors. Between two of them the vectors (X, Y) become (low, high half of
 * their lanes interleaved), which makes the lanes of the next level's pairs meet, and its roots stand in
 * natural order, repeated: a broadcast from memory. Four such steps are the identity.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/ntt_vector.h"

#define LEAF_LOG   11u /* 16 KiB */
#define LAST_LOG   4u  /* levels of the pass inside vectors */
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

/* ---- passes: from the top one level where what is above the last pass is an odd number, then two each ----
 */

static uint32_t pass_count(uint32_t log_n) {
    return (log_n - LAST_LOG + 1) / 2 + 1;
}
static bool has_single(uint32_t log_n) {
    return (log_n - LAST_LOG) % 2;
}

static void forward_plan(transform *t, double reach) {
    const double limit = 0x1p52 / (double)t->prime;
    const uint32_t passes = pass_count(t->log_n);
    for (uint32_t k = 0; k < passes; k++) {
        const bool is_last = k + 1 == passes;
        const uint32_t levels = is_last ? LAST_LOG : k == 0 && has_single(t->log_n) ? 1 : 2;
        CKKS_ASSERT(reach <= limit && limit >= 4);
        if (reach + 2 * levels <= limit) {
            t->reduce[k] = REDUCE_NONE, reach += 2 * levels;
        } else if (2 + 2 * levels <= limit) {
            t->reduce[k] = REDUCE_SOME, reach = 2 + 2 * levels; /* at the first level */
        } else {
            t->reduce[k] = REDUCE_ALL, reach = 4;
        }
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

/* ---- forward ---- */

ALWAYS void forward_one(w64 *u, w64 *v, factor f, const transform *t, bool is_reduced) {
    if (is_reduced) *u = reduce(*u, t);
    check_forward(*u, t);
    const w64 twice = add_low52(t->q_twice, *u, t->two);
    *u = add_product(*u, *v, f, t);
    *v = w64_sub(twice, *u);
}

typedef struct roots4 {
    factor top, left, right;
} roots4;

ALWAYS roots4 roots4_of(const transform *t, size_t node) {
    return (roots4){root_all(t, node), root_all(t, 2 * node), root_all(t, 2 * node + 1)};
}

ALWAYS void forward4(w64 x[4], const roots4 *w, const transform *t, uint32_t mode) {
    forward_one(&x[0], &x[2], w->top, t, mode != REDUCE_NONE);
    forward_one(&x[1], &x[3], w->top, t, mode != REDUCE_NONE);
    forward_one(&x[0], &x[1], w->left, t, mode == REDUCE_ALL);
    forward_one(&x[2], &x[3], w->right, t, mode == REDUCE_ALL);
}

/* What a transform starts from, a vector at a time: below (2 count + 1) q, or 4q where it is reduced. */
ALWAYS w64 load_source(const forward_source *from, size_t i, const transform *t, bool is_reduced) {
    const w64 x = w64_load(from->words + i);
    if (!from->count) return x;
    w64 sum = w64_all(from->start);
    if (from->count == 1) return w64_add(sum, x);
    sum = add_product(sum, x, factor_all(from->factor[0], from->quotient[0]), t);
    for (uint32_t k = 1; k < from->count; k++) {
        const factor f = factor_all(from->factor[k], from->quotient[k]);
        if (is_reduced) sum = reduce(sum, t);
        sum = add_product(sum, w64_load(from->words + k * from->stride + i), f, t);
    }
    return sum;
}

ALWAYS void forward_nodes(uint64_t *x, size_t quarter, const transform *shared, size_t node, size_t count,
                          uint32_t mode) {
    const transform t = *shared;
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(&t, node + k);
        uint64_t *at = x + 4 * quarter * k;
        for (const uint64_t *end = at + quarter; at < end; at += LANES) {
            w64 v[4] = {w64_load(at), w64_load(at + quarter), w64_load(at + 2 * quarter),
                        w64_load(at + 3 * quarter)};
            forward4(v, &w, &t, mode);
            w64_store(at, v[0]), w64_store(at + quarter, v[1]);
            w64_store(at + 2 * quarter, v[2]), w64_store(at + 3 * quarter, v[3]);
        }
    }
}

static void forward_level(uint64_t *x, size_t quarter, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    if (t->reduce[pass] == REDUCE_NONE)
        forward_nodes(x, quarter, t, node, count, REDUCE_NONE);
    else if (t->reduce[pass] == REDUCE_SOME)
        forward_nodes(x, quarter, t, node, count, REDUCE_SOME);
    else
        forward_nodes(x, quarter, t, node, count, REDUCE_ALL);
}

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
/* roots of the four levels below `node`, lanes as the interleaved vectors have them */
ALWAYS void load_last_roots(factor f[4], const transform *t, size_t node) {
    f[0] = root_all(t, node);
    f[1] = (factor){repeat2(t->root + 2 * node), repeat2(t->quotient + 2 * node)};
    f[2] = (factor){repeat4(t->root + 4 * node), repeat4(t->quotient + 4 * node)};
    f[3] = (factor){w64_load(t->root + 8 * node), w64_load(t->quotient + 8 * node)};
}

/* how results leave: see forward_store */
typedef struct leaving {
    const uint64_t *minuend;
    factor factor;
} leaving;

ALWAYS void leave(uint64_t *out, size_t i, w64 x, const leaving *to, bool is_difference, const transform *t) {
    x = reduce(x, t);
    if (is_difference) { /* minuend + 2q - x, below 3q */
        const w64 difference = w64_sub(w64_add(w64_load(to->minuend + i), t->q_twice), x);
        x = add_product(_mm512_setzero_si512(), difference, to->factor, t);
    }
    w64_store(out + i, w64_correct(masked(x), t->q));
}

ALWAYS void forward_last(uint64_t *x, size_t size, const transform *shared, size_t node, uint32_t mode,
                         const leaving *to, bool is_difference) {
    const transform t = *shared;
    const leaving local = *to;
    for (size_t i = 0; i < size; i += 2 * LANES, node++) {
        w64 a = w64_load(x + i), b = w64_load(x + i + LANES);
        factor f[4];
        load_last_roots(f, &t, node);
        forward_one(&a, &b, f[0], &t, mode != REDUCE_NONE);
        interleave(&a, &b);
        forward_one(&a, &b, f[1], &t, mode == REDUCE_ALL);
        interleave(&a, &b);
        forward_one(&a, &b, f[2], &t, mode == REDUCE_ALL);
        interleave(&a, &b);
        forward_one(&a, &b, f[3], &t, mode == REDUCE_ALL);
        interleave(&a, &b);
        leave(x, i, a, &local, is_difference, &t);
        leave(x, i + LANES, b, &local, is_difference, &t);
    }
}

static void forward_last_words(uint64_t *x, size_t size, const transform *t, size_t node, uint32_t mode,
                               const leaving *to) {
    if (mode == REDUCE_NONE)
        forward_last(x, size, t, node, REDUCE_NONE, to, false);
    else if (mode == REDUCE_SOME)
        forward_last(x, size, t, node, REDUCE_SOME, to, false);
    else
        forward_last(x, size, t, node, REDUCE_ALL, to, false);
}
static void forward_last_difference(uint64_t *x, size_t size, const transform *t, size_t node, uint32_t mode,
                                    const leaving *to) {
    if (mode == REDUCE_NONE)
        forward_last(x, size, t, node, REDUCE_NONE, to, true);
    else if (mode == REDUCE_SOME)
        forward_last(x, size, t, node, REDUCE_SOME, to, true);
    else
        forward_last(x, size, t, node, REDUCE_ALL, to, true);
}

/* log_size - LAST_LOG is even */
static void forward_block(uint64_t *x, uint32_t log_size, const transform *t, size_t node, uint32_t pass,
                          const leaving *to) {
    const size_t size = (size_t)1 << log_size;
    if (log_size > LEAF_LOG) {
        forward_level(x, size / 4, t, node, 1, pass);
        UNROLLED
        for (size_t k = 0; k < 4; k++) {
            leaving below = *to;
            if (to->minuend) below.minuend = to->minuend + k * (size / 4);
            forward_block(x + k * (size / 4), log_size - 2, t, 4 * node + k, pass + 1, &below);
        }
        return;
    }
    size_t count = 1;
    for (size_t quarter = size / 4; quarter >= 2 * LANES; quarter /= 4, count *= 4, pass++)
        forward_level(x, quarter, t, node * count, count, pass);
    if (to->minuend)
        forward_last_difference(x, size, t, node * count, t->reduce[pass], to);
    else
        forward_last_words(x, size, t, node * count, t->reduce[pass], to);
}

/* the first pass, from the source: `count` is that of the source, `mode` the reduction's, both constants */
ALWAYS void forward_top2(uint64_t *out, const forward_source *source, const transform *shared, uint32_t count,
                         uint32_t mode) {
    const transform t = *shared;
    forward_source from = *source;
    from.count = count;
    const size_t half = (size_t)1 << t.log_n >> 1;
    const factor w = root_all(&t, 1);
    for (size_t j = 0; j < half; j += LANES) {
        w64 u = load_source(&from, j, &t, mode != REDUCE_NONE);
        w64 v = load_source(&from, j + half, &t, mode != REDUCE_NONE);
        forward_one(&u, &v, w, &t, mode != REDUCE_NONE);
        w64_store(out + j, u), w64_store(out + j + half, v);
    }
}
ALWAYS void forward_top4(uint64_t *out, const forward_source *source, const transform *shared, uint32_t count,
                         uint32_t mode) {
    const transform t = *shared;
    forward_source from = *source;
    from.count = count;
    const size_t quarter = (size_t)1 << t.log_n >> 2;
    const roots4 w = roots4_of(&t, 1);
    for (size_t j = 0; j < quarter; j += LANES) {
        w64 v[4];
        UNROLLED
        for (size_t k = 0; k < 4; k++) v[k] = load_source(&from, j + k * quarter, &t, mode != REDUCE_NONE);
        forward4(v, &w, &t, mode);
        UNROLLED
        for (size_t k = 0; k < 4; k++) w64_store(out + j + k * quarter, v[k]);
    }
}

static void forward_top(uint64_t *out, const forward_source *from, const transform *t) {
    const bool is_single = has_single(t->log_n);
#define TOP(count, mode)                                                                                     \
    if (is_single)                                                                                           \
        forward_top2(out, from, t, count, mode);                                                             \
    else                                                                                                     \
        forward_top4(out, from, t, count, mode)
#define TOP_OF(count)                                                                                        \
    if (t->reduce[0] == REDUCE_NONE) {                                                                       \
        TOP(count, REDUCE_NONE);                                                                             \
    } else {                                                                                                 \
        TOP(count, REDUCE_ALL);                                                                              \
    }
    switch (from->count) {
    case 0:
        TOP_OF(0);
        break;
    case 1:
        TOP_OF(1);
        break;
    case 2:
        TOP_OF(2);
        break;
    case 3:
        TOP_OF(3);
        break;
    default:
        TOP_OF(from->count);
    }
#undef TOP_OF
#undef TOP
}

static void forward(uint64_t *out, const forward_source *from, double reach, const ntt_table *table,
                    const forward_store *store) {
    transform t = transform_of(table, table->forward, table->forward_shoup52);
    const uint32_t levels = has_single(t.log_n) ? 1 : 2;
    /* no room for a pass after several sources: load_source reduces where the first pass does */
    const bool is_reduced = from->count > 1 && reach + 2 * levels > 0x1p52 / (double)t.prime;
    forward_plan(&t, is_reduced ? 4 : reach);
    if (is_reduced) t.reduce[0] = REDUCE_ALL;
    const size_t children = (size_t)1 << levels, part = (size_t)1 << (t.log_n - levels);
    leaving to = {0};
    if (store && store->minuend) {
        to.minuend = store->minuend;
        to.factor = factor_of(store->factor, t.prime);
    }
    forward_top(out, from, &t);
    for (size_t k = 0; k < children; k++) {
        leaving below = to;
        if (to.minuend) below.minuend = to.minuend + k * part;
        forward_block(out + k * part, t.log_n - levels, &t, children + k, 1, &below);
    }
}

void vector_forward_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table,
                           const forward_store *store) {
    const forward_source from = {.words = in};
    forward(out, &from, 1, table, store);
}

void vector_forward_source_avx512(uint64_t *out, const forward_source *from, const ntt_table *table,
                                  const forward_store *store) {
    const double q = (double)table->m.value;
    forward(out, from, from->count == 1 ? (double)from->words_below / q + 1 : 2.0 * from->count + 1, table,
            store);
}

/* ---- inverse ---- */

static void inverse_plan(transform *t) {
    const uint64_t limit = (MASK52 + 1) / t->prime, passes = pass_count(t->log_n);
    uint64_t reach = 1;
    for (uint64_t k = passes; k-- > 0;) { /* from the bottom */
        const uint32_t levels = k + 1 == passes ? LAST_LOG : k == 0 && has_single(t->log_n) ? 1 : 2;
        const uint64_t grown = reach << levels;
        CKKS_ASSERT(2 * reach <= limit);
        t->reach[k] = reach;
        if (grown > limit)
            t->reduce[k] = REDUCE_ALL, reach = 2;
        else if (k > 0 && 2 * grown > limit)
            t->reduce[k] = REDUCE_SOME, reach = 2;
        else
            t->reduce[k] = REDUCE_NONE, reach = grown;
    }
}

/* offset: a multiple of q, at least v */
ALWAYS void inverse_one(w64 *u, w64 *v, factor f, w64 offset, const transform *t, bool is_reduced) {
    check_difference(*u, *v, offset);
    const w64 difference = w64_add(w64_sub(*u, *v), offset);
    *u = w64_add(*u, *v);
    if (is_reduced) *u = reduce(*u, t);
    *v = add_product(_mm512_setzero_si512(), difference, f, t);
}

/* what differences of level 0, 1, ... of a pass need */
ALWAYS w64 offset_of(const transform *t, uint32_t pass, uint32_t level, uint32_t mode) {
    const uint64_t reach = level == 0 ? t->reach[pass] : mode == REDUCE_ALL ? 2 : t->reach[pass] << level;
    return w64_all(reach * t->prime);
}

ALWAYS void inverse_nodes(uint64_t *x, size_t quarter, const transform *shared, size_t node, size_t count,
                          uint32_t pass, uint32_t mode) {
    const transform t = *shared;
    const w64 first = offset_of(shared, pass, 0, mode), second = offset_of(shared, pass, 1, mode);
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(&t, node + k);
        uint64_t *at = x + 4 * quarter * k;
        for (const uint64_t *end = at + quarter; at < end; at += LANES) {
            w64 x0 = w64_load(at), x1 = w64_load(at + quarter);
            w64 x2 = w64_load(at + 2 * quarter), x3 = w64_load(at + 3 * quarter);
            inverse_one(&x0, &x1, w.left, first, &t, mode == REDUCE_ALL);
            inverse_one(&x2, &x3, w.right, first, &t, mode == REDUCE_ALL);
            inverse_one(&x0, &x2, w.top, second, &t, mode != REDUCE_NONE);
            inverse_one(&x1, &x3, w.top, second, &t, mode != REDUCE_NONE);
            w64_store(at, x0), w64_store(at + quarter, x1);
            w64_store(at + 2 * quarter, x2), w64_store(at + 3 * quarter, x3);
        }
    }
}

static void inverse_level(uint64_t *x, size_t quarter, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    if (t->reduce[pass] == REDUCE_NONE)
        inverse_nodes(x, quarter, t, node, count, pass, REDUCE_NONE);
    else if (t->reduce[pass] == REDUCE_SOME)
        inverse_nodes(x, quarter, t, node, count, pass, REDUCE_SOME);
    else
        inverse_nodes(x, quarter, t, node, count, pass, REDUCE_ALL);
}

ALWAYS void inverse_first(uint64_t *out, const uint64_t *in, size_t size, const transform *shared,
                          size_t node, uint32_t pass, uint32_t mode) {
    const transform t = *shared;
    const w64 offset[4] = {offset_of(shared, pass, 0, mode), offset_of(shared, pass, 1, mode),
                           offset_of(shared, pass, 2, mode), offset_of(shared, pass, 3, mode)};
    for (size_t i = 0; i < size; i += 2 * LANES, node++) {
        w64 a = w64_load(in + i), b = w64_load(in + i + LANES);
        factor f[4];
        load_last_roots(f, &t, node);
        deinterleave(&a, &b);
        inverse_one(&a, &b, f[3], offset[0], &t, mode == REDUCE_ALL);
        deinterleave(&a, &b);
        inverse_one(&a, &b, f[2], offset[1], &t, mode == REDUCE_ALL);
        deinterleave(&a, &b);
        inverse_one(&a, &b, f[1], offset[2], &t, mode == REDUCE_ALL);
        deinterleave(&a, &b);
        inverse_one(&a, &b, f[0], offset[3], &t, mode != REDUCE_NONE);
        w64_store(out + i, a), w64_store(out + i + LANES, b);
    }
}

/* log_size - LAST_LOG is even */
static void inverse_block(uint64_t *out, const uint64_t *in, uint32_t log_size, const transform *t,
                          size_t node, uint32_t pass) {
    const size_t size = (size_t)1 << log_size;
    if (log_size > LEAF_LOG) {
        UNROLLED
        for (size_t k = 0; k < 4; k++)
            inverse_block(out + k * (size / 4), in + k * (size / 4), log_size - 2, t, 4 * node + k, pass + 1);
        inverse_level(out, size / 4, t, node, 1, pass);
        return;
    }
    size_t count = size / (2 * LANES);
    uint32_t bottom = pass + (log_size - LAST_LOG) / 2;
    if (t->reduce[bottom] == REDUCE_NONE)
        inverse_first(out, in, size, t, node * count, bottom, REDUCE_NONE);
    else if (t->reduce[bottom] == REDUCE_SOME)
        inverse_first(out, in, size, t, node * count, bottom, REDUCE_SOME);
    else
        inverse_first(out, in, size, t, node * count, bottom, REDUCE_ALL);
    for (size_t quarter = 2 * LANES; count /= 4, bottom-- > pass; quarter *= 4)
        inverse_level(out, quarter, t, node * count, count, bottom);
}

/* The last level has one root: 1/N and the caller's factor go into both of its products. `shift` is added to
 * both results, below 2q + shift. */
typedef struct last_level {
    factor sum, difference;
    w64 offset, shift;
} last_level;

ALWAYS void last_butterfly(w64 *u, w64 *v, const last_level *c, const transform *t) {
    check_difference(*u, *v, c->offset);
    const w64 sum = w64_add(*u, *v), difference = w64_add(w64_sub(*u, *v), c->offset);
    *u = add_product(c->shift, sum, c->sum, t);
    *v = add_product(c->shift, difference, c->difference, t);
}
ALWAYS void leave_inverse(uint64_t *at, w64 x, const transform *t, bool is_shifted) {
    x = masked(x);
    if (is_shifted) x = w64_correct(x, t->q_twice);
    w64_store(at, w64_correct(x, t->q));
}

ALWAYS void inverse_top2(uint64_t *x, const transform *shared, const last_level *last, bool is_shifted) {
    const transform t = *shared;
    const last_level c = *last;
    const size_t half = (size_t)1 << t.log_n >> 1;
    for (size_t j = 0; j < half; j += LANES) {
        w64 u = w64_load(x + j), v = w64_load(x + j + half);
        last_butterfly(&u, &v, &c, &t);
        leave_inverse(x + j, u, &t, is_shifted), leave_inverse(x + j + half, v, &t, is_shifted);
    }
}
ALWAYS void inverse_top4(uint64_t *x, const transform *shared, const last_level *last, bool is_shifted,
                         uint32_t mode) {
    const transform t = *shared;
    const last_level c = *last;
    const size_t quarter = (size_t)1 << t.log_n >> 2;
    const factor left = root_all(&t, 2), right = root_all(&t, 3);
    const w64 offset = offset_of(shared, 0, 0, mode);
    for (size_t j = 0; j < quarter; j += LANES) {
        uint64_t *at = x + j;
        w64 x0 = w64_load(at), x1 = w64_load(at + quarter);
        w64 x2 = w64_load(at + 2 * quarter), x3 = w64_load(at + 3 * quarter);
        inverse_one(&x0, &x1, left, offset, &t, mode == REDUCE_ALL);
        inverse_one(&x2, &x3, right, offset, &t, mode == REDUCE_ALL);
        last_butterfly(&x0, &x2, &c, &t);
        last_butterfly(&x1, &x3, &c, &t);
        leave_inverse(at, x0, &t, is_shifted), leave_inverse(at + quarter, x1, &t, is_shifted);
        leave_inverse(at + 2 * quarter, x2, &t, is_shifted),
            leave_inverse(at + 3 * quarter, x3, &t, is_shifted);
    }
}

ALWAYS void inverse(uint64_t *out, const uint64_t *in, uint64_t factor_in, const ntt_table *table,
                    bool is_shifted) {
    const modulus *m = &table->m;
    transform t = transform_of(table, table->inverse, table->inverse_shoup52);
    inverse_plan(&t);
    const uint32_t levels = has_single(t.log_n) ? 1 : 2;
    const size_t children = (size_t)1 << levels, part = (size_t)1 << (t.log_n - levels);
    const uint64_t scale = factor_in == 1 ? table->n_inverse : mod_mul(table->n_inverse, factor_in, m);
    const bool is_all = t.reduce[0] == REDUCE_ALL;
    const last_level last = {.sum = factor_of(scale, m->value),
                             .difference = factor_of(mod_mul(scale, table->inverse[1], m), m->value),
                             .offset = offset_of(&t, 0, levels - 1, is_all ? REDUCE_ALL : REDUCE_NONE),
                             .shift = w64_all(is_shifted ? m->value >> 1 : 0)};
    for (size_t k = 0; k < children; k++)
        inverse_block(out + k * part, in + k * part, t.log_n - levels, &t, children + k, 1);
    if (levels == 1)
        inverse_top2(out, &t, &last, is_shifted);
    else if (is_all)
        inverse_top4(out, &t, &last, is_shifted, REDUCE_ALL);
    else
        inverse_top4(out, &t, &last, is_shifted, REDUCE_NONE);
}

void vector_inverse_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    inverse(out, in, 1, table, false);
}

void vector_inverse_shifted_avx512(uint64_t *out, const uint64_t *in, uint64_t factor_in,
                                   const ntt_table *table) {
    inverse(out, in, factor_in, table, true);
}

#include "kernels/cpu/ntt_kernels_lanes.h"
