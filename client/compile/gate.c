#include "client/compile/gate.h"

#include <math.h>

/* nodes to look at before `made`, and terms of a sum, at most */
#define GATE_NODES 24u
#define GATE_TERMS 4u
#define GATE_GRID  49

/* A node as a function of one number. */
typedef struct piece {
    const ir_node *node;
    uint32_t number;
    bool is_uniform; /* treats all elements alike */
    double factor[GATE_TERMS], offset;
} piece;

typedef struct pieces {
    const ir_graph *graph;
    piece made, before[GATE_NODES];
    uint32_t count;
} pieces;

/* the factor of a term that treats all elements alike */
static bool term_factor(double *factor, const ir_node *n, uint32_t term) {
    const sparse *m = n->terms[term].matrix;
    if (m->row_count != m->column_count || !m->row_count) return false;
    for (uint32_t i = 0; i < m->row_count; i++)
        if (m->row_start[i + 1] != i + 1 || m->column[i] != i || m->value[i] != m->value[0]) return false;
    *factor = m->value[0];
    return true;
}

/* looked at once: layers are long */
static void piece_read(piece *p, const ir_node *n, uint32_t number) {
    *p =
        (piece){.node = n, .number = number, .is_uniform = n->kind == IR_PRODUCT || n->kind == IR_ACTIVATION};
    if (n->kind != IR_LINEAR || n->term_count > GATE_TERMS) return;
    for (uint32_t t = 0; t < n->term_count; t++)
        if (!term_factor(&p->factor[t], n, t)) return;
    for (uint32_t i = 1; i < n->count; i++)
        if (n->bias[i] != n->bias[0]) return;
    p->offset = n->bias[0];
    p->is_uniform = true;
}

static void add_piece(pieces *all, uint32_t number) {
    const ir_node *n = &all->graph->nodes[number];
    if (n->count != all->made.node->count || all->count == GATE_NODES) return;
    for (uint32_t i = 0; i < all->count; i++)
        if (all->before[i].number == number) return;
    piece_read(&all->before[all->count++], n, number);
}

/* what a uniform node is computed from */
static void add_operands(pieces *all, const piece *p) {
    const ir_node *n = p->node;
    if (!p->is_uniform) return;
    if (n->kind == IR_PRODUCT || n->kind == IR_ACTIVATION) add_piece(all, n->a);
    if (n->kind == IR_PRODUCT) add_piece(all, n->b);
    for (uint32_t t = 0; n->kind == IR_LINEAR && t < n->term_count; t++) add_piece(all, n->terms[t].from);
}

typedef struct walk {
    const pieces *all;
    uint32_t from; /* x */
    double x;
    uint32_t budget; /* nodes left to visit: shared ones are visited once for each use */
} walk;

static bool piece_value(double *out, walk *w, const piece *p);

/* the value of a node where `from` is x; false if it is no function of `from` alone */
static bool value_at(double *out, walk *w, uint32_t number) {
    *out = w->x;
    if (number == w->from) return true;
    if (number < w->from || w->budget == 0) return false;
    w->budget--;
    for (uint32_t i = 0; i < w->all->count; i++)
        if (w->all->before[i].number == number) return piece_value(out, w, &w->all->before[i]);
    return false;
}

/* recursion is bounded by the budget */
static bool piece_value(double *out, walk *w, const piece *p) {
    const ir_node *n = p->node;
    double a, b;
    if (!p->is_uniform) return false;
    if (n->kind == IR_ACTIVATION) {
        if (!value_at(&a, w, n->a)) return false;
        *out = ir_function_value(n->function, n->parameters, a);
        return true;
    }
    if (n->kind == IR_PRODUCT) {
        if (!value_at(&a, w, n->a) || !value_at(&b, w, n->b)) return false;
        *out = a * b;
        return true;
    }
    double sum = p->offset;
    for (uint32_t t = 0; t < n->term_count; t++) {
        if (!value_at(&a, w, n->terms[t].from)) return false;
        sum += p->factor[t] * a;
    }
    *out = sum;
    return true;
}

static bool made_at(double *out, const pieces *all, uint32_t from, double x) {
    walk w = {all, from, x, GATE_NODES};
    return piece_value(out, &w, &all->made);
}

/* does outer * f(inner * x) agree with the product on the grid? */
static bool agrees(const gate *candidate, const pieces *all) {
    static const double none[IR_PARAMETERS];
    for (int i = 0; i < GATE_GRID; i++) {
        const double x = -8 + 16.0 * i / (GATE_GRID - 1) + 0.013;
        double value;
        if (!made_at(&value, all, candidate->from, x)) return false;
        const double mine =
            candidate->outer * ir_function_value(candidate->function, none, candidate->inner * x);
        /* exporters write their constants in binary32 */
        if (!(fabs(value - mine) <= 1e-6 * fabs(candidate->outer) * (1 + fabs(x)))) return false;
    }
    return true;
}

static bool find_from(gate *out, const pieces *all, uint32_t from) {
    static const ir_function functions[] = {IR_SILU, IR_GELU, IR_GELU_TANH, IR_HARD_SWISH, IR_MISH};
    double far, near;
    *out = (gate){.from = from, .inner = 1};
    /* each is close to x far to the right */
    if (!made_at(&far, all, from, 64) || !isfinite(far) || far == 0) return false;
    out->outer = far / 64;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        out->function = functions[i];
        if (agrees(out, all)) return true;
    }
    /* x * sigmoid(s x) = silu(s x) / s */
    if (!made_at(&near, all, from, 1)) return false;
    const double share = near / out->outer;
    if (!(share > 0.5 && share < 0.9999)) return false;
    out->function = IR_SILU;
    out->inner = log(share / (1 - share));
    out->outer /= out->inner;
    return agrees(out, all);
}

bool gate_find(gate *out, const ir_graph *g, const ir_node *made) {
    pieces all = {.graph = g};
    double value;
    if (made->kind == IR_PRODUCT && made->a == made->b) return false;
    piece_read(&all.made, made, g->count);
    add_operands(&all, &all.made);
    for (uint32_t i = 0; i < all.count; i++) add_operands(&all, &all.before[i]);
    /* x: the nearest node that `made` is a function of; later ones are nearer */
    for (uint32_t bound = g->count; bound;) {
        uint32_t nearest = 0;
        bool is_found = false;
        for (uint32_t i = 0; i < all.count; i++)
            if (all.before[i].number < bound && (!is_found || all.before[i].number > nearest))
                nearest = all.before[i].number, is_found = true;
        if (!is_found) return false;
        if (made_at(&value, &all, nearest, 1)) return find_from(out, &all, nearest);
        bound = nearest;
    }
    return false;
}

bool gate_sample(double *y, const ir_graph *g, const ir_node *made, uint32_t from, const double *x,
                 uint32_t count) {
    pieces all = {.graph = g};
    piece_read(&all.made, made, g->count);
    add_operands(&all, &all.made);
    for (uint32_t i = 0; i < all.count; i++)
        if (all.before[i].number != from) add_operands(&all, &all.before[i]);
    for (uint32_t i = 0; i < count; i++)
        if (!made_at(&y[i], &all, from, x[i]) || !isfinite(y[i])) return false;
    return true;
}

bool gate_step(uint32_t *from, double *factor, double *offset, const ir_graph *g) {
    piece p;
    const ir_node *n = &g->nodes[*from];
    if (n->kind != IR_LINEAR || n->term_count != 1) return false;
    piece_read(&p, n, *from);
    if (!p.is_uniform || p.factor[0] == 0) return false;
    *factor = p.factor[0], *offset = p.offset, *from = n->terms[0].from;
    return true;
}
