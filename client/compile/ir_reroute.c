/*
 * A layer that an activation reads and something else too (a PRelu's linear part, the sum around a block)
 * keeps its own values, and bringing them to the activation's interval takes a level. The others can as well
 * read them from there: they are layers, and undo the interval in their weights. Then the first layer has one
 * reader, and the interval is folded into it.
 */
#include "client/compile/ir.h"

#include <math.h>
#include <string.h>

/* values are carried divided by no more than this: what is divided loses as much precision */
#define DIVIDED_MAX 64.0

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the compiler's graph")

/* do only layers behind `scaled` read `from`, beside `scaled` itself? */
static bool others_can_follow(const ir_graph *g, uint32_t from, uint32_t scaled) {
    if (from == g->output) return false;
    for (uint32_t i = from + 1; i < g->count; i++) {
        const ir_node *n = &g->nodes[i];
        bool reads = false;
        if (!n->use_count || n->kind == IR_INPUT || i == scaled) continue;
        if (n->kind != IR_LINEAR && (n->a == from || (n->kind == IR_PRODUCT && n->b == from))) return false;
        for (uint32_t t = 0; t < n->term_count; t++) reads = reads || n->terms[t].from == from;
        if (reads && i < scaled) return false;
    }
    return true;
}

static bool is_reversible(const ir_node *n, double *diagonal) {
    if (!sparse_diagonal(diagonal, n->terms[0].matrix)) return false;
    for (uint32_t i = 0; i < n->count; i++)
        if (!(fabs(diagonal[i]) * DIVIDED_MAX >= 1)) return false;
    return true;
}

/* matrix * from is matrix / diagonal * (scaled - offset) */
static ckks_status follow(ir_node *n, ir_term *term, const ir_node *scaled, uint32_t number,
                          const double *diagonal, arena *memory, ckks_error *err) {
    const sparse *old = term->matrix;
    const uint32_t entries = sparse_entry_count(old);
    sparse *made = arena_take(memory, 1, sizeof *made);
    double *value = arena_take(memory, entries, sizeof *value);
    if (!made || !value) return NO_MEMORY(err);
    for (uint32_t r = 0; r < old->row_count; r++)
        for (uint32_t e = old->row_start[r]; e < old->row_start[r + 1]; e++) {
            value[e] = old->value[e] / diagonal[old->column[e]];
            n->bias[r] -= value[e] * scaled->bias[old->column[e]];
        }
    *made = *old;
    made->value = value;
    *term = (ir_term){number, made};
    return CKKS_OK;
}

ckks_status ir_reroute(bool *is_changed, ir_graph *g, ckks_error *err) {
    *is_changed = false;
    ir_count_uses(g);
    for (uint32_t p = 0; p < g->count; p++) {
        const uint32_t number = g->nodes[p].a;
        const ir_node *scaled = &g->nodes[number];
        if (!g->nodes[p].use_count || g->nodes[p].kind != IR_POLYNOMIAL) continue;
        if (scaled->kind != IR_LINEAR || scaled->term_count != 1) continue;
        const uint32_t from = scaled->terms[0].from;
        if (g->nodes[from].kind != IR_LINEAR || g->nodes[from].use_count < 2) continue;
        double *diagonal = arena_take(g->memory, scaled->count, sizeof *diagonal);
        if (!diagonal) return NO_MEMORY(err);
        if (!is_reversible(scaled, diagonal) || !others_can_follow(g, from, number)) continue;
        for (uint32_t i = number + 1; i < g->count; i++) {
            ir_node *n = &g->nodes[i];
            for (uint32_t t = 0; t < n->term_count && n->use_count; t++) {
                if (n->terms[t].from != from) continue;
                const ckks_status rc = follow(n, &n->terms[t], scaled, number, diagonal, g->memory, err);
                if (rc != CKKS_OK) return rc;
            }
        }
        *is_changed = true;
        ir_count_uses(g);
    }
    return CKKS_OK;
}
