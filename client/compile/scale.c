/*
 * Values between layers that are too large for the parameters are carried divided by powers of two, as inputs
 * and scores are: what makes a value divides it, what reads it takes the factor back, so no level is spent
 * and no digit is lost. A product has the factors of both of its operands.
 */
#include "client/compile/calibrate.h"

#include <math.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for scaling")

#define ROUNDS_MAX 64

typedef struct scaling {
    const ir_graph *g;
    int32_t *exponent; /* [node]: the value is carried divided by 2^exponent */
    uint8_t *is_fixed; /* [node]: as it is: the input, what a polynomial reads, scores */
} scaling;

static double peak_of(const ir_node *n) {
    return fmax(fabs(n->minimum), fabs(n->maximum));
}

static void find_fixed(scaling *s) {
    const ir_graph *g = s->g;
    for (uint32_t i = 0; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count) continue;
        if (n->kind == IR_INPUT) s->is_fixed[i] = 1;
        if (n->kind == IR_POLYNOMIAL || n->kind == IR_ACTIVATION) s->is_fixed[n->a] = 1;
    }
    s->is_fixed[g->output] = 1;
}

static void follow_products(scaling *s) {
    for (uint32_t i = 0; i < s->g->count; i++) {
        const ir_node *n = &s->g->nodes[i];
        if (n->use_count && n->kind == IR_PRODUCT) s->exponent[i] = s->exponent[n->a] + s->exponent[n->b];
    }
}

/* divides by another 2^more, or by more for a square of an odd one; a product's operands are earlier nodes,
 * so the walk down ends. False: it cannot be. */
static bool lift(scaling *s, uint32_t node, int32_t more) {
    const ir_node *n = &s->g->nodes[node];
    if (more <= 0) return true;
    if (n->kind != IR_PRODUCT) {
        if (!s->is_fixed[node]) s->exponent[node] += more;
        return !s->is_fixed[node];
    }
    const ir_node *a = &s->g->nodes[n->a], *b = &s->g->nodes[n->b];
    const bool is_deep = a->kind == IR_PRODUCT || b->kind == IR_PRODUCT;
    if (n->a == n->b) return lift(s, n->a, (more + 1) / 2);
    if (is_deep) return lift(s, a->kind == IR_PRODUCT && b->kind != IR_PRODUCT ? n->b : n->a, more);
    if (s->is_fixed[n->a]) return lift(s, n->b, more);
    if (s->is_fixed[n->b]) return lift(s, n->a, more);
    return lift(s, n->a, more - more / 2) && lift(s, n->b, more / 2);
}

static void find_exponents(scaling *s) {
    bool is_changed = true;
    find_fixed(s);
    for (int round = 0; round < ROUNDS_MAX && is_changed; round++) {
        is_changed = false;
        for (uint32_t i = 0; i < s->g->count; i++) {
            const ir_node *n = &s->g->nodes[i];
            if (!n->use_count || n->kind == IR_INPUT) continue;
            follow_products(s);
            const double peak = ldexp(peak_of(n), -s->exponent[i]);
            if (!(peak > SCALE_SIZE_MAX) || !isfinite(peak)) continue;
            const int32_t more = (int32_t)ceil(log2(peak / SCALE_SIZE_TARGET));
            if (lift(s, i, more)) is_changed = true;
        }
    }
    follow_products(s);
}

/* ---- the graph with them ---- */

static ckks_status scale_term(ir_term *term, double factor, arena *memory, ckks_error *err) {
    if (factor == 1) return CKKS_OK;
    const uint32_t count = sparse_entry_count(term->matrix);
    sparse *m = arena_take(memory, 1, sizeof *m);
    double *value = arena_take(memory, count, sizeof *value);
    if (!m || !value) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) value[i] = term->matrix->value[i] * factor;
    *m = *term->matrix;
    m->value = value;
    term->matrix = m;
    return CKKS_OK;
}

static ckks_status scale_linear(ir_node *n, const scaling *s, int32_t own, arena *memory, ckks_error *err) {
    ir_term *terms = arena_take(memory, n->term_count, sizeof *terms);
    double *bias = arena_take(memory, n->count, sizeof *bias);
    if (!terms || !bias) return NO_MEMORY(err);
    for (uint32_t i = 0; i < n->count; i++) bias[i] = ldexp(n->bias[i], -own);
    for (uint32_t t = 0; t < n->term_count; t++) {
        terms[t] = n->terms[t];
        const ckks_status rc = scale_term(&terms[t], ldexp(1, s->exponent[terms[t].from] - own), memory, err);
        if (rc != CKKS_OK) return rc;
    }
    n->terms = terms, n->bias = bias;
    return CKKS_OK;
}

static ckks_status scale_series(ir_node *n, int32_t own, arena *memory, ckks_error *err) {
    double *coefficients = arena_take(memory, (uint64_t)n->degree + 1, sizeof *coefficients);
    if (!coefficients) return NO_MEMORY(err);
    for (uint32_t k = 0; k <= n->degree; k++) coefficients[k] = ldexp(n->coefficients[k], -own);
    n->coefficients = coefficients;
    n->polynomial_error = ldexp(n->polynomial_error, -own);
    return CKKS_OK;
}

ckks_status graph_scale_inner(bool *is_changed, double *output_factor, ir_graph *g, ckks_error *err) {
    scaling s = {.g = g};
    ckks_status rc = CKKS_OK;
    *is_changed = false, *output_factor = 1;
    s.exponent = arena_take(g->memory, g->count, sizeof *s.exponent);
    s.is_fixed = arena_take(g->memory, g->count, sizeof *s.is_fixed);
    if (!s.exponent || !s.is_fixed) return NO_MEMORY(err);
    find_exponents(&s);
    for (uint32_t i = 0; i < g->count; i++) *is_changed = *is_changed || s.exponent[i] != 0;
    if (!*is_changed) return CKKS_OK;
    for (uint32_t i = 0; i < g->count && rc == CKKS_OK; i++) {
        ir_node *n = &g->nodes[i];
        if (!n->use_count) continue;
        if (n->kind == IR_LINEAR) rc = scale_linear(n, &s, s.exponent[i], g->memory, err);
        if (n->kind == IR_POLYNOMIAL && s.exponent[i]) rc = scale_series(n, s.exponent[i], g->memory, err);
    }
    *output_factor = ldexp(1, s.exponent[g->output]);
    return rc;
}
