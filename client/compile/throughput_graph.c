/*
 * A graph as the throughput layout wants it. A linear layer multiplies by whole numbers, which need an
 * operand at the small scale, and leaves its result at the large one, where products and polynomials read: so
 * no layer reads a layer, and what layers and products both read is there twice. Layers take no level here,
 * so that a layer that reads a layer reads what that one reads instead, and products read a copy that a layer
 * of ones makes.
 */
#include "client/compile/throughput.h"

#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the graph")

typedef struct rewriting {
    ir_graph *out;
    const ir_graph *in;
    uint32_t *map;  /* [in node]: its number in out */
    uint32_t *copy; /* [in node]: of its copy at the large scale, 0: none yet */
    uint8_t *is_read_by_layer, *is_read_by_product; /* [in node] */
} rewriting;

static ckks_status rewriting_init(rewriting *r, ir_graph *out, const ir_graph *in, ckks_error *err) {
    *r = (rewriting){.out = out, .in = in};
    ir_init(out, in->memory);
    r->map = arena_take(in->memory, in->count, sizeof *r->map);
    r->copy = arena_take(in->memory, in->count, sizeof *r->copy);
    r->is_read_by_layer = arena_take(in->memory, in->count, 1);
    r->is_read_by_product = arena_take(in->memory, in->count, 1);
    return r->map && r->copy && r->is_read_by_layer && r->is_read_by_product ? CKKS_OK : NO_MEMORY(err);
}

static void find_readers(const rewriting *r) {
    for (uint32_t i = 0; i < r->in->count; i++) {
        const ir_node *n = &r->in->nodes[i];
        if (!n->use_count || n->kind == IR_INPUT) continue;
        for (uint32_t t = 0; t < n->term_count; t++) r->is_read_by_layer[n->terms[t].from] = 1;
        if (n->kind == IR_LINEAR) continue;
        r->is_read_by_product[n->a] = 1;
        if (n->kind == IR_PRODUCT) r->is_read_by_product[n->b] = 1;
    }
}

static bool is_needed(const rewriting *r) {
    for (uint32_t i = 0; i < r->in->count; i++) {
        const bool is_layer = r->in->nodes[i].kind == IR_LINEAR;
        if (r->is_read_by_layer[i] && (is_layer || r->is_read_by_product[i])) return true;
    }
    return false;
}

/* adds matrix * from to a layer with room for the term */
static ckks_status add_term(ir_node *n, uint32_t from, const sparse *matrix, arena *memory, ckks_error *err) {
    for (uint32_t t = 0; t < n->term_count; t++) {
        sparse *sum;
        if (n->terms[t].from != from) continue;
        const ckks_status rc = sparse_add(&sum, memory, n->terms[t].matrix, matrix, err);
        if (rc == CKKS_OK) n->terms[t].matrix = sum;
        return rc;
    }
    n->terms[n->term_count++] = (ir_term){from, matrix};
    return CKKS_OK;
}

/* a layer of what the layers that it reads read: those are in out already, and read no layer themselves */
static ckks_status rewrite_layer(ir_node *made, const rewriting *r, const ir_node *n, ckks_error *err) {
    arena *memory = r->in->memory;
    uint64_t room = 0;
    ckks_status rc = CKKS_OK;
    for (uint32_t t = 0; t < n->term_count; t++)
        room += 1 + r->out->nodes[r->map[n->terms[t].from]].term_count;
    made->term_count = 0;
    made->terms = arena_take(memory, room, sizeof *made->terms);
    made->bias = arena_take(memory, n->count, sizeof *made->bias);
    if (!made->terms || !made->bias) return NO_MEMORY(err);
    memcpy(made->bias, n->bias, n->count * sizeof *made->bias);
    for (uint32_t t = 0; t < n->term_count && rc == CKKS_OK; t++) {
        const uint32_t from = r->map[n->terms[t].from];
        const ir_node *inner = &r->out->nodes[from];
        if (inner->kind != IR_LINEAR) {
            rc = add_term(made, from, n->terms[t].matrix, memory, err);
            continue;
        }
        sparse_apply_add(made->bias, n->terms[t].matrix, inner->bias);
        for (uint32_t k = 0; k < inner->term_count && rc == CKKS_OK; k++) {
            sparse *product;
            rc = sparse_multiply(&product, memory, n->terms[t].matrix, inner->terms[k].matrix, err);
            if (rc == CKKS_OK) rc = add_term(made, inner->terms[k].from, product, memory, err);
        }
    }
    return rc;
}

/* what a product reads: a copy, where layers read the value as well */
static ckks_status large_operand(uint32_t *out, rewriting *r, uint32_t node, ckks_error *err) {
    const ir_node *n = &r->in->nodes[node];
    sparse *ones;
    *out = r->map[node];
    if (!r->is_read_by_layer[node] || n->kind == IR_LINEAR) return CKKS_OK;
    if (!r->copy[node]) {
        ckks_status rc = sparse_gather(&ones, r->in->memory, n->count, n->count, NULL, NULL, err);
        if (rc == CKKS_OK) rc = ir_linear(&r->copy[node], r->out, *out, ones, NULL, n->source, err);
        if (rc != CKKS_OK) return rc;
        ir_copy_shape(&r->out->nodes[r->copy[node]], n);
    }
    *out = r->copy[node];
    return CKKS_OK;
}

static ckks_status rewrite_node(rewriting *r, uint32_t number, ckks_error *err) {
    const ir_node *n = &r->in->nodes[number];
    ir_node made = *n;
    ckks_status rc = CKKS_OK;
    if (n->kind == IR_LINEAR) rc = rewrite_layer(&made, r, n, err);
    if (n->kind == IR_PRODUCT || n->kind == IR_POLYNOMIAL) rc = large_operand(&made.a, r, n->a, err);
    if (n->kind == IR_PRODUCT && rc == CKKS_OK) rc = large_operand(&made.b, r, n->b, err);
    return rc == CKKS_OK ? ir_append(&r->map[number], r->out, &made, err) : rc;
}

/* Twice: which values are read by layers as well is known only once layers read no layers. */
static ckks_status rewrite(ir_graph *out, bool *is_changed, const ir_graph *in, ckks_error *err) {
    rewriting r;
    ckks_status rc = rewriting_init(&r, out, in, err);
    if (rc != CKKS_OK) return rc;
    find_readers(&r);
    *is_changed = is_needed(&r);
    for (uint32_t i = 0; i < in->count && rc == CKKS_OK && *is_changed; i++)
        if (in->nodes[i].use_count) rc = rewrite_node(&r, i, err);
    if (rc != CKKS_OK || !*is_changed) return rc;
    out->output = r.map[in->output];
    out->ends_unscaled = in->ends_unscaled;
    ir_count_uses(out);
    return CKKS_OK;
}

ckks_status throughput_graph(ir_graph *out, bool *is_changed, const ir_graph *in, ckks_error *err) {
    ir_graph first, second;
    bool is_again = false;
    ckks_status rc = rewrite(&first, is_changed, in, err);
    if (rc != CKKS_OK || !*is_changed) return rc;
    rc = rewrite(&second, &is_again, &first, err);
    *out = is_again ? second : first;
    return rc;
}
