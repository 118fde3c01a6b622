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

typedef struct walk {
    const ir_graph *graph;
    uint32_t from, count; /* x, and its elements */
    double x;
    uint32_t budget; /* nodes left to visit: shared sub-expressions are visited once for each use */
} walk;

static bool node_value(double *out, walk *w, const ir_node *n);

/* the value of a node where `from` is x; false if it is no function of `from` alone */
static bool value_at(double *out, walk *w, uint32_t node) {
    *out = w->x;
    if (node == w->from) return true;
    if (node < w->from || w->budget == 0) return false;
    w->budget--;
    return node_value(out, w, &w->graph->nodes[node]);
}

static bool linear_value(double *out, walk *w, const ir_node *n) {
    double sum = n->bias[0], factor, value;
    for (uint32_t i = 1; i < n->count; i++)
        if (n->bias[i] != n->bias[0]) return false;
    for (uint32_t t = 0; t < n->term_count; t++) {
        if (!is_uniform(&factor, n, t) || !value_at(&value, w, n->terms[t].from)) return false;
        sum += factor * value;
    }
    *out = sum;
    return true;
}

/* recursion is bounded by the budget */
static bool node_value(double *out, walk *w, const ir_node *n) {
    double a, b;
    if (n->count != w->count) return false;
    switch (n->kind) {
    case IR_LINEAR:
        return linear_value(out, w, n);
    case IR_PRODUCT:
        if (!value_at(&a, w, n->a) || !value_at(&b, w, n->b)) return false;
        *out = a * b;
        return true;
    case IR_ACTIVATION:
        if (!value_at(&a, w, n->a)) return false;
        *out = ir_function_value(n->function, n->parameters, a);
        return true;
    default:
        return false;
    }
}

static bool made_at(double *out, const ir_graph *g, const ir_node *made, uint32_t from, double x) {
    walk w = {g, from, g->nodes[from].count, x, GATE_NODES};
    return node_value(out, &w, made);
}

/* does outer * f(inner * x) agree with the product on the grid? */
static bool agrees(const gate *candidate, const ir_graph *g, const ir_node *made) {
    static const double none[IR_PARAMETERS];
    for (int i = 0; i < GATE_GRID; i++) {
        const double x = -8 + 16.0 * i / (GATE_GRID - 1) + 0.013;
        double value;
        if (!made_at(&value, g, made, candidate->from, x)) return false;
        const double mine =
            candidate->outer * ir_function_value(candidate->function, none, candidate->inner * x);
        /* exporters write their constants in binary32 */
        if (!(fabs(value - mine) <= 1e-6 * fabs(candidate->outer) * (1 + fabs(x)))) return false;
    }
    return true;
}

static bool find_from(gate *out, const ir_graph *g, const ir_node *made, uint32_t from) {
    static const ir_function functions[] = {IR_SILU, IR_GELU, IR_GELU_TANH, IR_HARD_SWISH, IR_MISH};
    double far, near;
    *out = (gate){.from = from, .inner = 1};
    /* each is close to x far to the right */
    if (!made_at(&far, g, made, from, 64) || !isfinite(far) || far == 0) return false;
    out->outer = far / 64;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        out->function = functions[i];
        if (agrees(out, g, made)) return true;
    }
    /* x * sigmoid(s x) = silu(s x) / s */
    if (!made_at(&near, g, made, from, 1)) return false;
    const double share = near / out->outer;
    if (!(share > 0.5 && share < 0.9999)) return false;
    out->function = IR_SILU;
    out->inner = log(share / (1 - share));
    out->outer /= out->inner;
    return agrees(out, g, made);
}

/* lists what a node is computed from, at most `room` of it; returns how many */
static uint32_t operands(uint32_t *out, const ir_node *n, uint32_t room) {
    uint32_t count = 0;
    if (n->kind == IR_PRODUCT || n->kind == IR_ACTIVATION) out[count++] = n->a;
    if (n->kind == IR_PRODUCT) out[count++] = n->b;
    for (uint32_t t = 0; n->kind == IR_LINEAR && t < n->term_count && count < room; t++)
        out[count++] = n->terms[t].from;
    return count;
}

bool gate_find(gate *out, const ir_graph *g, const ir_node *made) {
    /* x is among what it is computed from: the nearest that it is a function of */
    uint32_t seen[GATE_NODES], count = operands(seen, made, GATE_NODES);
    double value;
    if (made->kind == IR_PRODUCT && made->a == made->b) return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t before[4];
        const uint32_t before_count = operands(before, &g->nodes[seen[i]], 4);
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
        if (made_at(&value, g, made, from, 1)) return find_from(out, g, made, from);
        seen[nearest] = 0;
    }
    return false;
}
