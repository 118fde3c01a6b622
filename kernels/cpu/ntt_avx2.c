/*
 * The negacyclic transform on AVX2's floating-point units (AVX-512 has integers for it: ntt_avx512.c).
 *
 * Node m of the butterfly tree is the block whose root is root[m]; its children are 2m and 2m + 1. A pass
 * does two levels of the tree at once (three at the top when log N is odd): half the loads and stores. The
 * tree is walked depth first until a block fits the first-level cache, then level by level, so that every
 * block is brought in once. The two lowest levels work inside vectors, on transposed groups of four.
 *
 * Reductions: a pass first decides, from the bounds of lanes.h and this prime's limit = 2^52 / q, whether its
 * inputs need one. Forward, a value grows by one product per level; a pass that reduces does so to the half
 * of its inputs that are not multiplied at once (the others are reduced by their product). Inverse, sums
 * double per level: a pass that reduces does so to the half of its outputs that are sums. For q just below
 * 2^50 (limit 4) every second forward pass reduces and every inverse one; for q < 2^40 none does.
 */
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/ntt_vector.h"

#define LEAF_LOG 10u /* 8 KiB: stays in the first-level cache with its roots */

typedef struct transform {
    const double *root;
    lanes_prime p;
    uint32_t log_n;
    uint32_t reduce; /* bit k: pass k (forward: from the top; inverse: from the bottom) reduces */
} transform;

/* ---- bounds, in units of q ---- */

#define REDUCED 0.5001
#define TOO_FAR 1e300

static double product_reach(double reach, double limit) {
    return 0.5 + 0.375 * reach / limit;
}

static double forward_reach(double reach, uint32_t levels, double limit, bool reduce) {
    double u = reduce ? REDUCED : reach, v = reach;
    for (uint32_t i = 0; i < levels; i++) {
        if (v > limit) return TOO_FAR;
        u = v = u + product_reach(v, limit);
    }
    return u;
}

/* Levels of pass k and how many passes there are. */
static uint32_t pass_levels(uint32_t log_n, uint32_t from_top) {
    return from_top == 0 ? 2 + log_n % 2 : 2;
}

static uint32_t forward_plan(uint32_t log_n, double reach, double limit) {
    const uint32_t passes = log_n / 2;
    uint32_t reduce = 0;
    for (uint32_t k = 0; k < passes; k++) {
        /* the next pass multiplies what this one leaves; the last one's are only reduced: exact below 2^53 */
        const double bound = k + 1 < passes ? limit : 1.9 * limit;
        const double lazy = forward_reach(reach, pass_levels(log_n, k), limit, false);
        if (lazy <= bound) {
            reach = lazy;
            continue;
        }
        CKKS_ASSERT(k > 0); /* what is loaded is not reduced */
        reach = forward_reach(reach, pass_levels(log_n, k), limit, true);
        CKKS_ASSERT(reach <= bound);
        reduce |= 1u << k;
    }
    return reduce;
}

static double max_of(double a, double b) {
    return a > b ? a : b;
}

static uint32_t inverse_plan(uint32_t log_n, double limit) {
    const uint32_t passes = log_n / 2;
    double reach = 1;
    uint32_t reduce = 0;
    for (uint32_t k = 0; k < passes; k++) {
        /* differences of sums are multiplied in the second level */
        CKKS_ASSERT(4 * reach <= limit);
        if (k + 1 == passes && log_n % 2 == 0) break; /* everything is multiplied at the end */
        const double lazy = max_of(4 * reach, 2 * product_reach(2 * reach, limit));
        const double growth =
            k + 1 == passes ? 2 : 4; /* of the single level at the top, or of the next pass */
        if (growth * lazy <= limit) {
            reach = lazy;
            continue;
        }
        reach = max_of(REDUCED, product_reach(4 * reach, limit));
        CKKS_ASSERT(growth * reach <= limit);
        reduce |= 1u << k;
    }
    return reduce;
}

static double limit_of(const modulus *m) {
    return 0x1p52 / (double)m->value;
}

/* ---- forward ---- */

ALWAYS f64 load_either(const double *at, bool is_words) {
    return is_words ? f64_load_words((const uint64_t *)(const void *)at) : f64_load(at);
}

ALWAYS void forward_two(f64 *u0, f64 *v0, lanes_constant w0, f64 *u1, f64 *v1, lanes_constant w1,
                        const lanes_prime *p) {
    f64 r0 = *v0, r1 = *v1;
    f64_multiply_two(&r0, w0, &r1, w1, p);
    *v0 = f64_sub(*u0, r0), *v1 = f64_sub(*u1, r1);
    *u0 = f64_add(*u0, r0), *u1 = f64_add(*u1, r1);
}

typedef struct roots4 {
    lanes_constant top, left, right;
} roots4;

ALWAYS roots4 roots4_of(const double *root, size_t node, const lanes_prime *p) {
    return (roots4){lanes_constant_of(root[node], p), lanes_constant_of(root[2 * node], p),
                    lanes_constant_of(root[2 * node + 1], p)};
}

ALWAYS void forward4(f64 *x0, f64 *x1, f64 *x2, f64 *x3, const roots4 *w, const lanes_prime *p) {
    forward_two(x0, x2, w->top, x1, x3, w->top, p);
    forward_two(x0, x1, w->left, x2, x3, w->right, p);
}

ALWAYS void forward_node(double *out, const double *in, size_t quarter, const roots4 *w, const lanes_prime *p,
                         bool reduce, bool is_words) {
    for (size_t j = 0; j < quarter; j += LANES) {
        f64 x0 = load_either(in + j, is_words), x1 = load_either(in + quarter + j, is_words);
        f64 x2 = load_either(in + 2 * quarter + j, is_words),
            x3 = load_either(in + 3 * quarter + j, is_words);
        if (reduce) x0 = f64_reduce(x0, p), x1 = f64_reduce(x1, p);
        forward4(&x0, &x1, &x2, &x3, w, p);
        f64_store(out + j, x0), f64_store(out + quarter + j, x1);
        f64_store(out + 2 * quarter + j, x2), f64_store(out + 3 * quarter + j, x3);
    }
}

/* `count` nodes from `node` on, side by side from x on, in place */
ALWAYS void forward_nodes(double *x, size_t quarter, const transform *t, size_t node, size_t count,
                          bool reduce) {
    const lanes_prime p = t->p;
    const double *root = t->root;
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(root, node + k, &p);
        forward_node(x + 4 * quarter * k, x + 4 * quarter * k, quarter, &w, &p, reduce, false);
    }
}

static void forward_level(double *x, size_t quarter, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    const bool reduce = t->reduce >> pass & 1;
    if (reduce)
        forward_nodes(x, quarter, t, node, count, true);
    else
        forward_nodes(x, quarter, t, node, count, false);
}

/* how results leave: see forward_store */
typedef struct leaving {
    const uint64_t *minuend, *times; /* of the block at hand */
    forward_leaving kind;
    lanes_constant factor;
} leaving;

static leaving leaving_at(const leaving *to, size_t at) {
    leaving below = *to;
    if (to->minuend) below.minuend = to->minuend + at;
    if (to->times) below.times = to->times + at;
    return below;
}

/* a product of canonical words is within 0.69 q (pointwise_lanes.h) */
ALWAYS void leave(double *at, size_t i, f64 x, const leaving *to, forward_leaving kind,
                  const lanes_prime *p) {
    x = f64_reduce(x, p);
    if (kind != LEAVE_WORDS) {
        f64 minuend = f64_load_words(to->minuend + i);
        if (kind == LEAVE_PRODUCT) {
            const f64 times = f64_load_words(to->times + i);
            minuend = f64_multiply(minuend, times, f64_times(times, p->q_inverse), p);
        }
        x = f64_multiply_constant(f64_sub(minuend, x), to->factor, p);
    }
    w64_store((uint64_t *)(void *)(at + i), f64_canonical(x, p));
}

/* the two lowest levels of `size` elements, and out */
ALWAYS void forward_last(double *x, size_t size, const transform *t, size_t node, bool reduce,
                         const leaving *to, forward_leaving kind) {
    const lanes_prime p = t->p;
    const leaving local = *to;
    for (size_t i = 0; i < size; i += 4 * LANES, node += LANES) {
        f64 x0 = f64_load(x + i), x1 = f64_load(x + i + LANES);
        f64 x2 = f64_load(x + i + 2 * LANES), x3 = f64_load(x + i + 3 * LANES);
        roots4 w;
        f64_load_roots(&w.top.w, &w.left.w, &w.right.w, t->root, node);
        w.top.over_q = f64_times(w.top.w, p.q_inverse);
        w.left.over_q = f64_times(w.left.w, p.q_inverse);
        w.right.over_q = f64_times(w.right.w, p.q_inverse);
        f64_split(&x0, &x1, &x2, &x3);
        if (reduce) x0 = f64_reduce(x0, &p), x1 = f64_reduce(x1, &p);
        forward4(&x0, &x1, &x2, &x3, &w, &p);
        f64_join(&x0, &x1, &x2, &x3);
        leave(x, i, x0, &local, kind, &p);
        leave(x, i + LANES, x1, &local, kind, &p);
        leave(x, i + 2 * LANES, x2, &local, kind, &p);
        leave(x, i + 3 * LANES, x3, &local, kind, &p);
    }
}

static void forward_last_lazy(double *x, size_t size, const transform *t, size_t node, const leaving *to) {
    if (to->kind == LEAVE_WORDS)
        forward_last(x, size, t, node, false, to, LEAVE_WORDS);
    else if (to->kind == LEAVE_DIFFERENCE)
        forward_last(x, size, t, node, false, to, LEAVE_DIFFERENCE);
    else
        forward_last(x, size, t, node, false, to, LEAVE_PRODUCT);
}
static void forward_last_reduced(double *x, size_t size, const transform *t, size_t node, const leaving *to) {
    if (to->kind == LEAVE_WORDS)
        forward_last(x, size, t, node, true, to, LEAVE_WORDS);
    else if (to->kind == LEAVE_DIFFERENCE)
        forward_last(x, size, t, node, true, to, LEAVE_DIFFERENCE);
    else
        forward_last(x, size, t, node, true, to, LEAVE_PRODUCT);
}

static void forward_block(double *x, uint32_t log_size, const transform *t, size_t node, uint32_t pass,
                          const leaving *to) {
    const size_t size = (size_t)1 << log_size;
    if (log_size > LEAF_LOG) {
        forward_level(x, size / 4, t, node, 1, pass);
        for (size_t k = 0; k < 4; k++) {
            const leaving below = leaving_at(to, k * (size / 4));
            forward_block(x + k * (size / 4), log_size - 2, t, 4 * node + k, pass + 1, &below);
        }
        return;
    }
    size_t count = 1;
    for (size_t quarter = size / 4; quarter >= 4; quarter /= 4, count *= 4, pass++)
        forward_level(x, quarter, t, node * count, count, pass);
    if (t->reduce >> pass & 1)
        forward_last_reduced(x, size, t, node * count, to);
    else
        forward_last_lazy(x, size, t, node * count, to);
}

/* the top pass of an odd log N: three levels */
ALWAYS void forward_top8(double *out, const double *in, const transform *t, bool is_words) {
    const lanes_prime p = t->p;
    const size_t eighth = (size_t)1 << t->log_n >> 3;
    const lanes_constant top = lanes_constant_of(t->root[1], &p);
    const roots4 left = roots4_of(t->root, 2, &p), right = roots4_of(t->root, 3, &p);
    for (size_t j = 0; j < eighth; j += LANES) {
        const double *from = in + j;
        double *to = out + j;
        f64 x0 = load_either(from, is_words), x1 = load_either(from + eighth, is_words);
        f64 x2 = load_either(from + 2 * eighth, is_words), x3 = load_either(from + 3 * eighth, is_words);
        f64 x4 = load_either(from + 4 * eighth, is_words), x5 = load_either(from + 5 * eighth, is_words);
        f64 x6 = load_either(from + 6 * eighth, is_words), x7 = load_either(from + 7 * eighth, is_words);
        forward_two(&x0, &x4, top, &x1, &x5, top, &p);
        forward_two(&x2, &x6, top, &x3, &x7, top, &p);
        forward4(&x0, &x1, &x2, &x3, &left, &p);
        f64_store(to, x0), f64_store(to + eighth, x1);
        f64_store(to + 2 * eighth, x2), f64_store(to + 3 * eighth, x3);
        forward4(&x4, &x5, &x6, &x7, &right, &p);
        f64_store(to + 4 * eighth, x4), f64_store(to + 5 * eighth, x5);
        f64_store(to + 6 * eighth, x6), f64_store(to + 7 * eighth, x7);
    }
}

ALWAYS void forward_top4(double *out, const double *in, const transform *t, bool is_words) {
    const lanes_prime p = t->p;
    const roots4 w = roots4_of(t->root, 1, &p);
    forward_node(out, in, (size_t)1 << t->log_n >> 2, &w, &p, false, is_words);
}

ALWAYS void forward(double *out, const double *in, const ntt_table *table, const forward_store *store,
                    double reach, bool is_words) {
    const transform t = {table->forward_f64, lanes_prime_of(&table->m), table->log_n,
                         forward_plan(table->log_n, reach, limit_of(&table->m))};
    const uint32_t levels = pass_levels(t.log_n, 0);
    const size_t children = (size_t)1 << levels, part = (size_t)1 << (t.log_n - levels);
    leaving to = {.kind = LEAVE_WORDS, .factor = lanes_constant_of(0, &t.p)};
    if (store && store->minuend) {
        to.factor = lanes_constant_residue(store->factor, &table->m, &t.p);
        to.minuend = store->minuend, to.times = store->times;
        to.kind = store->times ? LEAVE_PRODUCT : LEAVE_DIFFERENCE;
    }
    if (levels == 3)
        forward_top8(out, in, &t, is_words);
    else
        forward_top4(out, in, &t, is_words);
    for (size_t k = 0; k < children; k++) {
        const leaving below = leaving_at(&to, k * part);
        forward_block(out + k * part, t.log_n - levels, &t, children + k, 1, &below);
    }
}

void vector_forward_avx2(uint64_t *out, const uint64_t *in, const ntt_table *table,
                         const forward_store *store) {
    forward((double *)(void *)out, (const double *)(const void *)in, table, store, 1, true);
}

void vector_forward_f64_avx2(uint64_t *out, const double *in, double reach, const ntt_table *table,
                             const forward_store *store) {
    forward((double *)(void *)out, in, table, store, reach, false);
}

/* ---- inverse ---- */

ALWAYS void inverse_two(f64 *u0, f64 *v0, lanes_constant w0, f64 *u1, f64 *v1, lanes_constant w1,
                        const lanes_prime *p) {
    f64 d0 = f64_sub(*u0, *v0), d1 = f64_sub(*u1, *v1);
    *u0 = f64_add(*u0, *v0), *u1 = f64_add(*u1, *v1);
    f64_multiply_two(&d0, w0, &d1, w1, p);
    *v0 = d0, *v1 = d1;
}

ALWAYS void inverse4(f64 *x0, f64 *x1, f64 *x2, f64 *x3, const roots4 *w, const lanes_prime *p, bool reduce) {
    inverse_two(x0, x1, w->left, x2, x3, w->right, p);
    inverse_two(x0, x2, w->top, x1, x3, w->top, p);
    if (reduce) *x0 = f64_reduce(*x0, p), *x1 = f64_reduce(*x1, p);
}

/* the two lowest levels of `size` elements, from words */
ALWAYS void inverse_first(double *out, const uint64_t *in, size_t size, const transform *t, size_t node,
                          bool reduce) {
    const lanes_prime p = t->p;
    for (size_t i = 0; i < size; i += 4 * LANES, node += LANES) {
        f64 x0 = f64_load_words(in + i), x1 = f64_load_words(in + i + LANES);
        f64 x2 = f64_load_words(in + i + 2 * LANES), x3 = f64_load_words(in + i + 3 * LANES);
        roots4 w;
        f64_load_roots(&w.top.w, &w.left.w, &w.right.w, t->root, node);
        w.top.over_q = f64_times(w.top.w, p.q_inverse);
        w.left.over_q = f64_times(w.left.w, p.q_inverse);
        w.right.over_q = f64_times(w.right.w, p.q_inverse);
        f64_split(&x0, &x1, &x2, &x3);
        inverse4(&x0, &x1, &x2, &x3, &w, &p, reduce);
        f64_join(&x0, &x1, &x2, &x3);
        f64_store(out + i, x0), f64_store(out + i + LANES, x1);
        f64_store(out + i + 2 * LANES, x2), f64_store(out + i + 3 * LANES, x3);
    }
}

ALWAYS void inverse_nodes(double *x, size_t quarter, const transform *t, size_t node, size_t count,
                          bool reduce) {
    const lanes_prime p = t->p;
    const double *root = t->root;
    for (size_t k = 0; k < count; k++) {
        const roots4 w = roots4_of(root, node + k, &p);
        double *at = x + 4 * quarter * k;
        for (size_t j = 0; j < quarter; j += LANES, at += LANES) {
            f64 x0 = f64_load(at), x1 = f64_load(at + quarter);
            f64 x2 = f64_load(at + 2 * quarter), x3 = f64_load(at + 3 * quarter);
            inverse4(&x0, &x1, &x2, &x3, &w, &p, reduce);
            f64_store(at, x0), f64_store(at + quarter, x1);
            f64_store(at + 2 * quarter, x2), f64_store(at + 3 * quarter, x3);
        }
    }
}

static void inverse_level(double *x, size_t quarter, const transform *t, size_t node, size_t count,
                          uint32_t pass) {
    const bool reduce = t->reduce >> pass & 1;
    if (reduce)
        inverse_nodes(x, quarter, t, node, count, true);
    else
        inverse_nodes(x, quarter, t, node, count, false);
}

static void inverse_block(double *out, const uint64_t *in, uint32_t log_size, const transform *t,
                          size_t node) {
    const size_t size = (size_t)1 << log_size;
    if (log_size > LEAF_LOG) {
        for (size_t k = 0; k < 4; k++)
            inverse_block(out + k * (size / 4), in + k * (size / 4), log_size - 2, t, 4 * node + k);
        inverse_level(out, size / 4, t, node, 1, log_size / 2 - 1);
        return;
    }
    size_t count = size / 4;
    uint32_t pass = 0;
    if (t->reduce & 1)
        inverse_first(out, in, size, t, node * count, true);
    else
        inverse_first(out, in, size, t, node * count, false);
    for (size_t quarter = 4; count /= 4, ++pass, count > 0; quarter *= 4)
        inverse_level(out, quarter, t, node * count, count, pass);
}

/* The last level has one root: 1/N and the caller's factor go into both of its products. */
typedef struct last_level {
    lanes_constant sum, difference;
} last_level;

ALWAYS void last_butterfly(f64 *u, f64 *v, const last_level *c, const lanes_prime *p) {
    const f64 sum = f64_add(*u, *v), difference = f64_sub(*u, *v);
    *u = f64_multiply_constant(sum, c->sum, p);
    *v = f64_multiply_constant(difference, c->difference, p);
}

ALWAYS void leave_inverse(double *at, f64 x, bool is_words, const lanes_prime *p) {
    if (is_words)
        w64_store((uint64_t *)(void *)at, f64_canonical(x, p));
    else
        f64_store(at, f64_reduce(x, p));
}

ALWAYS void inverse_top4(double *x, const transform *t, const last_level *last, bool is_words) {
    const lanes_prime p = t->p;
    const last_level c = *last;
    const size_t quarter = (size_t)1 << t->log_n >> 2;
    const lanes_constant left = lanes_constant_of(t->root[2], &p), right = lanes_constant_of(t->root[3], &p);
    for (size_t j = 0; j < quarter; j += LANES) {
        double *at = x + j;
        f64 x0 = f64_load(at), x1 = f64_load(at + quarter);
        f64 x2 = f64_load(at + 2 * quarter), x3 = f64_load(at + 3 * quarter);
        inverse_two(&x0, &x1, left, &x2, &x3, right, &p);
        last_butterfly(&x0, &x2, &c, &p);
        last_butterfly(&x1, &x3, &c, &p);
        leave_inverse(at, x0, is_words, &p), leave_inverse(at + quarter, x1, is_words, &p);
        leave_inverse(at + 2 * quarter, x2, is_words, &p), leave_inverse(at + 3 * quarter, x3, is_words, &p);
    }
}

ALWAYS void inverse_top8(double *x, const transform *t, const last_level *last, bool reduce, bool is_words) {
    const lanes_prime p = t->p;
    const last_level c = *last;
    const size_t eighth = (size_t)1 << t->log_n >> 3;
    const roots4 left = roots4_of(t->root, 2, &p), right = roots4_of(t->root, 3, &p);
    for (size_t j = 0; j < eighth; j += LANES) {
        double *at = x + j;
        f64 x0 = f64_load(at), x1 = f64_load(at + eighth);
        f64 x2 = f64_load(at + 2 * eighth), x3 = f64_load(at + 3 * eighth);
        inverse4(&x0, &x1, &x2, &x3, &left, &p, reduce);
        f64 x4 = f64_load(at + 4 * eighth), x5 = f64_load(at + 5 * eighth);
        f64 x6 = f64_load(at + 6 * eighth), x7 = f64_load(at + 7 * eighth);
        inverse4(&x4, &x5, &x6, &x7, &right, &p, reduce);
        last_butterfly(&x0, &x4, &c, &p), last_butterfly(&x1, &x5, &c, &p);
        last_butterfly(&x2, &x6, &c, &p), last_butterfly(&x3, &x7, &c, &p);
        leave_inverse(at, x0, is_words, &p), leave_inverse(at + eighth, x1, is_words, &p);
        leave_inverse(at + 2 * eighth, x2, is_words, &p), leave_inverse(at + 3 * eighth, x3, is_words, &p);
        leave_inverse(at + 4 * eighth, x4, is_words, &p), leave_inverse(at + 5 * eighth, x5, is_words, &p);
        leave_inverse(at + 6 * eighth, x6, is_words, &p), leave_inverse(at + 7 * eighth, x7, is_words, &p);
    }
}

ALWAYS void inverse(double *out, const uint64_t *in, uint64_t factor, const ntt_table *table, bool is_words) {
    const modulus *m = &table->m;
    const transform t = {table->inverse_f64, lanes_prime_of(m), table->log_n,
                         inverse_plan(table->log_n, limit_of(m))};
    const uint32_t levels = pass_levels(t.log_n, 0);
    const size_t children = (size_t)1 << levels, part = (size_t)1 << (t.log_n - levels);
    const uint64_t scale = factor == 1 ? table->n_inverse : mod_mul(table->n_inverse, factor, m);
    const last_level last = {lanes_constant_residue(scale, m, &t.p),
                             lanes_constant_residue(mod_mul(scale, table->inverse[1], m), m, &t.p)};
    for (size_t k = 0; k < children; k++)
        inverse_block(out + k * part, in + k * part, t.log_n - levels, &t, children + k);
    if (levels == 2)
        inverse_top4(out, &t, &last, is_words);
    else if (t.reduce & 1u << ((t.log_n / 2 - 1) & 31))
        inverse_top8(out, &t, &last, true, is_words);
    else
        inverse_top8(out, &t, &last, false, is_words);
}

void vector_inverse_avx2(uint64_t *out, const uint64_t *in, const ntt_table *table) {
    inverse((double *)(void *)out, in, 1, table, true);
}

void vector_inverse_f64_avx2(double *out, const uint64_t *in, uint64_t factor, const ntt_table *table) {
    inverse(out, in, factor, table, false);
}

#include "kernels/cpu/ntt_kernels_lanes.h"
