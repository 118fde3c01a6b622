#include "client/compile/gate.h"

#include <math.h>

/* nodes between x and the product, at most */
#define GATE_NODES 24
#define GATE_GRID  49

/* factor and offset of a layer that treats all elements alike */
static bool is_uniform(double *factor, const ir_node *n, uint32_t term) {
    const sparse *m = n->terms[term].matrix;
    if (m->row_count != m->column_count || !m->row_count) return false;
    for (uint32_t i = 0; i < m->row_count; i++)
        if (m->row_start[i + 1] != i + 1 || m->column[i] != i || m->value[i] != m->value[0]) return false;
    *factor = m->value[0];
    return true;
}

/* the value of `node` where `from` is x; false if it is no function of `from` alone. `budget` bounds the
 * nodes visited: shared sub-expressions are visited once for each use. */
static bool value_at(double *out, const ir_graph *g, uint32_t node, uint32_t from, double x,
                     uint32_t *budget) {
    const ir_node *n = &g->nodes[node];
    double a, b;
    if (node == from) {
        *out = x;
        return true;
    }
    if (node < from || *budget == 0 || n->count != g->nodes[from].count) return false;
    --*budget;
    switch (n->kind) {
    case IR_LINEAR: {
        double sum = n->bias[0];
        for (uint32_t i = 1; i < n->count; i++)
            if (n->bias[i] != n->bias[0]) return false;
        for (uint32_t t = 0; t < n->term_count; t++) {
            if (!is_uniform(&a, n, t) || !value_at(&b, g, n->terms[t].from, from, x, budget)) return false;
            sum += a * b;
        }
        *out = sum;
        return true;
    }
    case IR_PRODUCT:
        if (!value_at(&a, g, n->a, from, x, budget) || !value_at(&b, g, n->b, from, x, budget)) return false;
        *out = a * b;
        return true;
    case IR_ACTIVATION:
        if (!value_at(&a, g, n->a, from, x, budget)) return false;
        *out = ir_function_value(n->function, n->parameters, a);
        return true;
    default:
        return false;
    }
}

static bool product_at(double *out, const ir_graph *g, uint32_t a, uint32_t b, uint32_t from, double x) {
    uint32_t budget = GATE_NODES;
    double left, right;
    if (!value_at(&left, g, a, from, x, &budget) || !value_at(&right, g, b, from, x, &budget)) return false;
    *out = left * right;
    return true;
}

/* does outer * f(inner * x) agree with the product on the grid? */
static bool agrees(const gate *candidate, const ir_graph *g, uint32_t a, uint32_t b) {
    static const double none[IR_PARAMETERS];
    for (int i = 0; i < GATE_GRID; i++) {
        const double x = -8 + 16.0 * i / (GATE_GRID - 1) + 0.013;
        double value;
        if (!product_at(&value, g, a, b, candidate->from, x)) return false;
        const double mine =
            candidate->outer * ir_function_value(candidate->function, none, candidate->inner * x);
        /* exporters write their constants in binary32 */
        if (!(fabs(value - mine) <= 1e-6 * fabs(candidate->outer) * (1 + fabs(x)))) return false;
    }
    return true;
}

static bool find_from(gate *out, const ir_graph *g, uint32_t a, uint32_t b, uint32_t from) {
    static const ir_function functions[] = {IR_SILU, IR_GELU, IR_GELU_TANH, IR_HARD_SWISH, IR_MISH};
    double far, near;
    *out = (gate){.from = from, .inner = 1};
    /* each is close to x far to the right */
    if (!product_at(&far, g, a, b, from, 64) || !isfinite(far) || far == 0) return false;
    out->outer = far / 64;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        out->function = functions[i];
        if (agrees(out, g, a, b)) return true;
    }
    /* x * sigmoid(s x) = silu(s x) / s */
    if (!product_at(&near, g, a, b, from, 1)) return false;
    const double share = near / out->outer;
    if (!(share > 0.5 && share < 0.9999)) return false;
    out->function = IR_SILU;
    out->inner = log(share / (1 - share));
    out->outer /= out->inner;
    return agrees(out, g, a, b);
}

bool gate_find(gate *out, const ir_graph *g, uint32_t a, uint32_t b) {
    /* x is among what a and b are computed from; the nearest that both are functions of */
    uint32_t seen[GATE_NODES] = {a, b}, count = 2;
    if (a == b) return false;
    for (uint32_t i = 0; i < count; i++) {
        const ir_node *n = &g->nodes[seen[i]];
        uint32_t before[3] = {n->a, n->b},
                 before_count = n->kind == IR_PRODUCT ? 2 : n->kind == IR_ACTIVATION;
        for (uint32_t t = 0; n->kind == IR_LINEAR && t < n->term_count && t < 3; t++)
            before[before_count++] = n->terms[t].from;
        for (uint32_t k = 0; k < before_count; k++) {
            bool is_known = false;
            for (uint32_t j = 0; j < count; j++) is_known = is_known || seen[j] == before[k];
            if (!is_known && count < GATE_NODES) seen[count++] = before[k];
        }
    }
    for (uint32_t tried = 0; tried < count; tried++) {
        /* later nodes are nearer */
        uint32_t nearest = 0;
        for (uint32_t i = 1; i < count; i++)
            if (seen[i] > seen[nearest]) nearest = i;
        const uint32_t from = seen[nearest];
        double value;
        if (product_at(&value, g, a, b, from, 1)) return find_from(out, g, a, b, from);
        seen[nearest] = 0;
    }
    return false;
}
