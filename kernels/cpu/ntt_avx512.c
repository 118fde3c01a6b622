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
 * Passes: three levels at a time, or two, depth first until a block fits the first-level cache. The lowest
 * four levels work on two vectors. Between two of them the vectors (X, Y) become (low, high half of their
 * lanes interleaved), which makes the lanes of the next level's pairs meet, and its roots stand in natural
 * order, repeated: a broadcast from memory. Four such steps are the identity. A pair of vectors is one chain
 * of some 70 cycles, so that pass takes four pairs through each level side by side: the processor's scheduler
 * holds too few instructions to find another pair behind the first.
 *
 * Half of all roots belong to the lowest level, and with their quotients they are twice as many bytes as the
 * data. There a root comes from its quotient: v q = w 2^52 - r with 0 < r < q, so w = floor(v q / 2^52) + 1.
 */
#include "kernels/cpu/ntt_integers.h"

/* ---- forward ---- */

ALWAYS void forward_one(w64 *u, w64 *v, factor f, const transform *t, bool is_reduced) {
    if (is_reduced) *u = reduce(*u, t);
    check_forward(*u, t);
    const w64 twice = add_low52(t->q_twice, *u, t->two);
    *u = add_product(*u, *v, f, t);
    *v = w64_sub(twice, *u);
}

/* two levels on x[0], x[step], x[2 step], x[3 step] */
ALWAYS void forward4(w64 *x, size_t step, const roots4 *w, const transform *t, uint32_t mode) {
    forward_one(&x[0], &x[2 * step], w->top, t, mode != REDUCE_NONE);
    forward_one(&x[step], &x[3 * step], w->top, t, mode != REDUCE_NONE);
    forward_one(&x[0], &x[step], w->left, t, mode == REDUCE_ALL);
    forward_one(&x[2 * step], &x[3 * step], w->right, t, mode == REDUCE_ALL);
}
ALWAYS void forward8(w64 x[8], const roots8 *w, const transform *t, uint32_t mode) {
    forward4(x, 2, &w->upper, t, mode);
    forward4(x + 1, 2, &w->upper, t, mode);
    UNROLLED
    for (size_t k = 0; k < 4; k++) forward_one(&x[2 * k], &x[2 * k + 1], w->low[k], t, mode == REDUCE_ALL);
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

ALWAYS void forward_nodes4(uint64_t *x, size_t part, const transform *shared, size_t node, size_t count,
                           uint32_t mode) {
    const transform t = *shared;
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(&t, node + k);
        uint64_t *at = x + 4 * part * k;
        for (const uint64_t *end = at + part; at < end; at += LANES) {
            w64 v[4];
            UNROLLED
            for (size_t i = 0; i < 4; i++) v[i] = w64_load(at + i * part);
            forward4(v, 1, &w, &t, mode);
            UNROLLED
            for (size_t i = 0; i < 4; i++) w64_store(at + i * part, v[i]);
        }
    }
}
ALWAYS void forward_nodes8(uint64_t *x, size_t part, const transform *shared, size_t node, size_t count,
                           uint32_t mode) {
    const transform t = *shared;
    for (size_t k = 0; k < count; k++) {
        const roots8 w = roots8_of(&t, node + k);
        uint64_t *at = x + 8 * part * k;
        for (const uint64_t *end = at + part; at < end; at += LANES) {
            w64 v[8];
            UNROLLED
            for (size_t i = 0; i < 8; i++) v[i] = w64_load(at + i * part);
            forward8(v, &w, &t, mode);
            UNROLLED
            for (size_t i = 0; i < 8; i++) w64_store(at + i * part, v[i]);
        }
    }
}

/* one pass over `count` neighbouring blocks of 2^log_size */
static void forward_level(uint64_t *x, uint32_t log_size, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    const uint32_t levels = levels_of(log_size);
    const size_t part = (size_t)1 << (log_size - levels);
#define LEVELS(mode)                                                                                         \
    if (levels == 2)                                                                                         \
        forward_nodes4(x, part, t, node, count, mode);                                                       \
    else                                                                                                     \
        forward_nodes8(x, part, t, node, count, mode)
    if (t->reduce[pass] == REDUCE_NONE) {
        LEVELS(REDUCE_NONE);
    } else if (t->reduce[pass] == REDUCE_SOME) {
        LEVELS(REDUCE_SOME);
    } else {
        LEVELS(REDUCE_ALL);
    }
#undef LEVELS
}

/* how results leave: see forward_store */
typedef struct leaving {
    const uint64_t *minuend, *times;
    forward_leaving kind;
    factor factor, carry; /* carry: factor * 2^52 */
} leaving;

static leaving leaving_of(const forward_store *store, const modulus *m) {
    if (!store || !store->minuend) return (leaving){.kind = LEAVE_WORDS};
    const uint64_t carry = mod_mul(store->factor, mod_reduce128((uint128)1 << 52, m), m);
    return (leaving){.minuend = store->minuend,
                     .times = store->times,
                     .kind = store->times ? LEAVE_PRODUCT : LEAVE_DIFFERENCE,
                     .factor = factor_of(store->factor, m->value),
                     .carry = factor_of(carry, m->value)};
}
static leaving leaving_at(const leaving *to, size_t at) {
    leaving below = *to;
    if (to->minuend) below.minuend = to->minuend + at;
    if (to->times) below.times = to->times + at;
    return below;
}

ALWAYS void leave(uint64_t *out, size_t i, w64 x, const leaving *to, forward_leaving kind,
                  const transform *t) {
    const w64 zero = _mm512_setzero_si512();
    x = reduce(x, t);
    if (kind == LEAVE_DIFFERENCE) { /* minuend + 2q - x, below 3q */
        const w64 difference = w64_sub(w64_add(w64_load(to->minuend + i), t->q_twice), x);
        x = add_product(zero, difference, to->factor, t);
    } else if (kind == LEAVE_PRODUCT) { /* low half reduced + 2q - x, below 4q; both products below 2q */
        const w64 a = w64_load(to->minuend + i), b = w64_load(to->times + i);
        const w64 low = reduce(add_low52(zero, a, b), t);
        const w64 difference = w64_sub(w64_add(low, t->q_twice), x);
        x = add_product(add_product(zero, difference, to->factor, t), high52(a, b), to->carry, t);
    }
    x = masked(x);
    if (kind == LEAVE_PRODUCT) x = w64_correct(x, t->q_twice);
    w64_store(out + i, w64_correct(x, t->q));
}

ALWAYS void forward_last(uint64_t *x, size_t size, const transform *shared, size_t node, uint32_t mode,
                         const leaving *to, forward_leaving kind) {
    const transform t = *shared;
    const leaving local = *to;
    for (size_t i = 0; i < size; i += 2 * LANES * LAST_PAIRS, node += LAST_PAIRS) {
        w64 v[2 * LAST_PAIRS];
        UNROLLED
        for (size_t k = 0; k < 2 * LAST_PAIRS; k++) v[k] = w64_load(x + i + k * LANES);
        UNROLLED
        for (uint32_t level = 0; level < LAST_LOG; level++) {
            const bool is_reduced = level == 0 ? mode != REDUCE_NONE : mode == REDUCE_ALL;
            UNROLLED
            for (size_t k = 0; k < LAST_PAIRS; k++) {
                forward_one(&v[2 * k], &v[2 * k + 1], last_root(&t, node + k, level), &t, is_reduced);
                interleave(&v[2 * k], &v[2 * k + 1]);
            }
        }
        UNROLLED
        for (size_t k = 0; k < 2 * LAST_PAIRS; k++) leave(x, i + k * LANES, v[k], &local, kind, &t);
    }
}

static void forward_last_none(uint64_t *x, size_t size, const transform *t, size_t node, const leaving *to) {
    if (to->kind == LEAVE_WORDS)
        forward_last(x, size, t, node, REDUCE_NONE, to, LEAVE_WORDS);
    else if (to->kind == LEAVE_DIFFERENCE)
        forward_last(x, size, t, node, REDUCE_NONE, to, LEAVE_DIFFERENCE);
    else
        forward_last(x, size, t, node, REDUCE_NONE, to, LEAVE_PRODUCT);
}
static void forward_last_some(uint64_t *x, size_t size, const transform *t, size_t node, const leaving *to) {
    if (to->kind == LEAVE_WORDS)
        forward_last(x, size, t, node, REDUCE_SOME, to, LEAVE_WORDS);
    else if (to->kind == LEAVE_DIFFERENCE)
        forward_last(x, size, t, node, REDUCE_SOME, to, LEAVE_DIFFERENCE);
    else
        forward_last(x, size, t, node, REDUCE_SOME, to, LEAVE_PRODUCT);
}
static void forward_last_all(uint64_t *x, size_t size, const transform *t, size_t node, const leaving *to) {
    if (to->kind == LEAVE_WORDS)
        forward_last(x, size, t, node, REDUCE_ALL, to, LEAVE_WORDS);
    else if (to->kind == LEAVE_DIFFERENCE)
        forward_last(x, size, t, node, REDUCE_ALL, to, LEAVE_DIFFERENCE);
    else
        forward_last(x, size, t, node, REDUCE_ALL, to, LEAVE_PRODUCT);
}

static void forward_block(uint64_t *x, uint32_t log_size, const transform *t, size_t node, uint32_t pass,
                          const leaving *to) {
    const size_t size = (size_t)1 << log_size;
    if (log_size > LEAF_LOG) {
        const uint32_t levels = levels_of(log_size);
        forward_level(x, log_size, t, node, 1, pass);
        for (size_t k = 0; k < (size_t)1 << levels; k++) {
            const size_t at = k << (log_size - levels);
            const leaving below = leaving_at(to, at);
            forward_block(x + at, log_size - levels, t, (node << levels) + k, pass + 1, &below);
        }
        return;
    }
    size_t count = 1;
    for (uint32_t left = log_size, levels; left > LAST_LOG; left -= levels, count <<= levels, pass++) {
        levels = levels_of(left);
        forward_level(x, left, t, node * count, count, pass);
    }
    if (t->reduce[pass] == REDUCE_NONE)
        forward_last_none(x, size, t, node * count, to);
    else if (t->reduce[pass] == REDUCE_SOME)
        forward_last_some(x, size, t, node * count, to);
    else
        forward_last_all(x, size, t, node * count, to);
}

/* the first pass, from the source: `count` is that of the source, `mode` the reduction's, both constants */
ALWAYS void forward_top8(uint64_t *out, const forward_source *source, const transform *shared, uint32_t count,
                         uint32_t mode) {
    const transform t = *shared;
    forward_source from = *source;
    from.count = count;
    const size_t part = (size_t)1 << t.log_n >> TOP_LEVELS;
    const roots8 w = roots8_of(&t, 1);
    for (size_t j = 0; j < part; j += LANES) {
        w64 v[8];
        UNROLLED
        for (size_t k = 0; k < 8; k++) v[k] = load_source(&from, j + k * part, &t, mode != REDUCE_NONE);
        forward8(v, &w, &t, mode);
        UNROLLED
        for (size_t k = 0; k < 8; k++) w64_store(out + j + k * part, v[k]);
    }
}

static void forward_top(uint64_t *out, const forward_source *from, const transform *t) {
#define TOP_OF(count)                                                                                        \
    if (t->reduce[0] == REDUCE_NONE)                                                                         \
        forward_top8(out, from, t, count, REDUCE_NONE);                                                      \
    else                                                                                                     \
        forward_top8(out, from, t, count, REDUCE_ALL)
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
}

static void forward(uint64_t *out, const forward_source *from, double reach, const ntt_table *table,
                    const forward_store *store) {
    transform t = transform_of(table, table->forward, table->forward_shoup52);
    /* no room for a pass after several sources: load_source reduces where the first pass does */
    const bool is_reduced = from->count > 1 && reach + 2 * TOP_LEVELS > 0x1p52 / (double)t.prime;
    forward_plan(&t, is_reduced ? 4 : reach);
    if (is_reduced) t.reduce[0] = REDUCE_ALL;
    CKKS_ASSERT(t.log_n > TOP_LEVELS);
    const size_t children = (size_t)1 << TOP_LEVELS, part = (size_t)1 << (t.log_n - TOP_LEVELS);
    const leaving to = leaving_of(store, &table->m);
    forward_top(out, from, &t);
    for (size_t k = 0; k < children; k++) {
        const leaving below = leaving_at(&to, k * part);
        forward_block(out + k * part, t.log_n - TOP_LEVELS, &t, children + k, 1, &below);
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

/* From the bottom. A pass reduces what it leaves where the next one would have no room. */
static void inverse_plan(transform *t) {
    const uint64_t limit = (MASK52 + 1) / t->prime;
    uint32_t levels[PASSES_MAX], passes = 0;
    for (uint32_t left = t->log_n; left > 0; left -= levels[passes - 1]) {
        CKKS_ASSERT(passes < PASSES_MAX);
        levels[passes++] = levels_of(left);
    }
    uint64_t reach = 1;
    for (uint32_t k = passes; k-- > 0;) {
        const uint64_t grown = reach << levels[k];
        CKKS_ASSERT(2 * reach <= limit);
        t->reach[k] = reach;
        if (grown > limit)
            t->reduce[k] = REDUCE_ALL, reach = 2;
        else if (k > 0 && grown << levels[k - 1] > limit)
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

/* the offsets of a pass's levels */
typedef struct offsets {
    w64 level[LAST_LOG];
} offsets;

ALWAYS offsets offsets_of(const transform *t, uint32_t pass, uint32_t mode) {
    return (offsets){{offset_of(t, pass, 0, mode), offset_of(t, pass, 1, mode), offset_of(t, pass, 2, mode),
                      offset_of(t, pass, 3, mode)}};
}

/* the two last levels of a pass, the lower one first */
ALWAYS void inverse4(w64 *x, size_t step, const roots4 *w, const w64 offset[2], const transform *t,
                     uint32_t mode) {
    inverse_one(&x[0], &x[step], w->left, offset[0], t, mode == REDUCE_ALL);
    inverse_one(&x[2 * step], &x[3 * step], w->right, offset[0], t, mode == REDUCE_ALL);
    inverse_one(&x[0], &x[2 * step], w->top, offset[1], t, mode != REDUCE_NONE);
    inverse_one(&x[step], &x[3 * step], w->top, offset[1], t, mode != REDUCE_NONE);
}

ALWAYS void inverse_nodes4(uint64_t *x, size_t part, const transform *shared, size_t node, size_t count,
                           uint32_t pass, uint32_t mode) {
    const transform t = *shared;
    const offsets offset = offsets_of(shared, pass, mode);
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(&t, node + k);
        uint64_t *at = x + 4 * part * k;
        for (const uint64_t *end = at + part; at < end; at += LANES) {
            w64 v[4];
            UNROLLED
            for (size_t i = 0; i < 4; i++) v[i] = w64_load(at + i * part);
            inverse4(v, 1, &w, offset.level, &t, mode);
            UNROLLED
            for (size_t i = 0; i < 4; i++) w64_store(at + i * part, v[i]);
        }
    }
}
ALWAYS void inverse_nodes8(uint64_t *x, size_t part, const transform *shared, size_t node, size_t count,
                           uint32_t pass, uint32_t mode) {
    const transform t = *shared;
    const offsets offset = offsets_of(shared, pass, mode);
    for (size_t k = 0; k < count; k++) {
        const roots8 w = roots8_of(&t, node + k);
        uint64_t *at = x + 8 * part * k;
        for (const uint64_t *end = at + part; at < end; at += LANES) {
            w64 v[8];
            UNROLLED
            for (size_t i = 0; i < 8; i++) v[i] = w64_load(at + i * part);
            UNROLLED
            for (size_t i = 0; i < 4; i++)
                inverse_one(&v[2 * i], &v[2 * i + 1], w.low[i], offset.level[0], &t, mode == REDUCE_ALL);
            inverse4(v, 2, &w.upper, offset.level + 1, &t, mode);
            inverse4(v + 1, 2, &w.upper, offset.level + 1, &t, mode);
            UNROLLED
            for (size_t i = 0; i < 8; i++) w64_store(at + i * part, v[i]);
        }
    }
}

static void inverse_level(uint64_t *x, uint32_t log_size, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    const uint32_t levels = levels_of(log_size);
    const size_t part = (size_t)1 << (log_size - levels);
#define LEVELS(mode)                                                                                         \
    if (levels == 2)                                                                                         \
        inverse_nodes4(x, part, t, node, count, pass, mode);                                                 \
    else                                                                                                     \
        inverse_nodes8(x, part, t, node, count, pass, mode)
    if (t->reduce[pass] == REDUCE_NONE) {
        LEVELS(REDUCE_NONE);
    } else if (t->reduce[pass] == REDUCE_SOME) {
        LEVELS(REDUCE_SOME);
    } else {
        LEVELS(REDUCE_ALL);
    }
#undef LEVELS
}

ALWAYS void inverse_first(uint64_t *out, const uint64_t *in, size_t size, const transform *shared,
                          size_t node, uint32_t pass, uint32_t mode) {
    const transform t = *shared;
    const offsets offset = offsets_of(shared, pass, mode);
    for (size_t i = 0; i < size; i += 2 * LANES * LAST_PAIRS, node += LAST_PAIRS) {
        w64 v[2 * LAST_PAIRS];
        UNROLLED
        for (size_t k = 0; k < 2 * LAST_PAIRS; k++) v[k] = w64_load(in + i + k * LANES);
        UNROLLED
        for (uint32_t level = 0; level < LAST_LOG; level++) {
            const bool is_reduced = level + 1 < LAST_LOG ? mode == REDUCE_ALL : mode != REDUCE_NONE;
            UNROLLED
            for (size_t k = 0; k < LAST_PAIRS; k++) {
                deinterleave(&v[2 * k], &v[2 * k + 1]);
                inverse_one(&v[2 * k], &v[2 * k + 1], last_root(&t, node + k, LAST_LOG - 1 - level),
                            offset.level[level], &t, is_reduced);
            }
        }
        UNROLLED
        for (size_t k = 0; k < 2 * LAST_PAIRS; k++) w64_store(out + i + k * LANES, v[k]);
    }
}

static void inverse_block(uint64_t *out, const uint64_t *in, uint32_t log_size, const transform *t,
                          size_t node, uint32_t pass) {
    if (log_size > LEAF_LOG) {
        const uint32_t levels = levels_of(log_size);
        for (size_t k = 0; k < (size_t)1 << levels; k++) {
            const size_t at = k << (log_size - levels);
            inverse_block(out + at, in + at, log_size - levels, t, (node << levels) + k, pass + 1);
        }
        inverse_level(out, log_size, t, node, 1, pass);
        return;
    }
    CKKS_ASSERT(log_size >= LAST_LOG);
    uint32_t left[PASSES_MAX], depth = 0;
    for (left[0] = log_size; left[depth] > LAST_LOG; depth++)
        left[depth + 1] = left[depth] - levels_of(left[depth]);
    const size_t size = (size_t)1 << log_size, first = node << (log_size - LAST_LOG);
    if (t->reduce[pass + depth] == REDUCE_NONE)
        inverse_first(out, in, size, t, first, pass + depth, REDUCE_NONE);
    else if (t->reduce[pass + depth] == REDUCE_SOME)
        inverse_first(out, in, size, t, first, pass + depth, REDUCE_SOME);
    else
        inverse_first(out, in, size, t, first, pass + depth, REDUCE_ALL);
    while (depth-- > 0) {
        const uint32_t above = log_size - left[depth];
        inverse_level(out, left[depth], t, node << above, (size_t)1 << above, pass + depth);
    }
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

ALWAYS void inverse_top8(uint64_t *x, const transform *shared, const last_level *last, bool is_shifted,
                         uint32_t mode) {
    const transform t = *shared;
    const last_level c = *last;
    const size_t part = (size_t)1 << t.log_n >> TOP_LEVELS;
    const factor left = root_all(&t, 2), right = root_all(&t, 3);
    const offsets offset = offsets_of(shared, 0, mode);
    factor low[4];
    UNROLLED
    for (size_t k = 0; k < 4; k++) low[k] = root_all(&t, 4 + k);
    for (size_t j = 0; j < part; j += LANES) {
        w64 v[8];
        UNROLLED
        for (size_t k = 0; k < 8; k++) v[k] = w64_load(x + j + k * part);
        UNROLLED
        for (size_t k = 0; k < 4; k++)
            inverse_one(&v[2 * k], &v[2 * k + 1], low[k], offset.level[0], &t, mode == REDUCE_ALL);
        UNROLLED
        for (size_t k = 0; k < 2; k++) {
            inverse_one(&v[k], &v[k + 2], left, offset.level[1], &t, mode == REDUCE_ALL);
            inverse_one(&v[k + 4], &v[k + 6], right, offset.level[1], &t, mode == REDUCE_ALL);
        }
        UNROLLED
        for (size_t k = 0; k < 4; k++) last_butterfly(&v[k], &v[k + 4], &c, &t);
        UNROLLED
        for (size_t k = 0; k < 8; k++) leave_inverse(x + j + k * part, v[k], &t, is_shifted);
    }
}

ALWAYS void inverse(uint64_t *out, const uint64_t *in, uint64_t factor_in, const ntt_table *table,
                    bool is_shifted) {
    const modulus *m = &table->m;
    transform t = transform_of(table, table->inverse, table->inverse_shoup52);
    inverse_plan(&t);
    CKKS_ASSERT(t.log_n > TOP_LEVELS);
    const size_t children = (size_t)1 << TOP_LEVELS, part = (size_t)1 << (t.log_n - TOP_LEVELS);
    const uint64_t scale = factor_in == 1 ? table->n_inverse : mod_mul(table->n_inverse, factor_in, m);
    const bool is_all = t.reduce[0] == REDUCE_ALL;
    const last_level last = {.sum = factor_of(scale, m->value),
                             .difference = factor_of(mod_mul(scale, table->inverse[1], m), m->value),
                             .offset = offset_of(&t, 0, TOP_LEVELS - 1, is_all ? REDUCE_ALL : REDUCE_NONE),
                             .shift = w64_all(is_shifted ? m->value >> 1 : 0)};
    for (size_t k = 0; k < children; k++)
        inverse_block(out + k * part, in + k * part, t.log_n - TOP_LEVELS, &t, children + k, 1);
    if (is_all)
        inverse_top8(out, &t, &last, is_shifted, REDUCE_ALL);
    else
        inverse_top8(out, &t, &last, is_shifted, REDUCE_NONE);
}

void vector_inverse_avx512(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    inverse(out, in, 1, table, false);
}

void vector_inverse_shifted_avx512(uint64_t *out, const uint64_t *in, uint64_t factor_in,
                                   const ntt_table *table) {
    inverse(out, in, factor_in, table, true);
}

#include "kernels/cpu/ntt_kernels_lanes.h"
