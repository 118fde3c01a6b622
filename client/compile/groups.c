#include "client/compile/groups.h"

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
}

static ckks_status list_members(groups *g, const model_node *node, arena *memory, ckks_error *err) {
    uint32_t *next = arena_take(memory, g->count, sizeof *next);
    g->member = arena_take(memory, g->element_count, sizeof *g->member);
    if (!next || !g->member) return no_memory(node, err);
    for (uint32_t i = 0; i < g->element_count; i++) g->member[g->group[i] * g->run + next[g->group[i]]++] = i;
    return CKKS_OK;
}

ckks_status groups_by_axes(groups *g, const model_node *node, const tensor *x, const bool *is_within,
                           arena *memory, ckks_error *err) {
    uint32_t stride[TENSOR_RANK_MAX] = {0};
    *g = (groups){.element_count = x->count, .count = 1, .run = 1};
    for (uint32_t i = x->rank; i-- > 0;) {
        g->dims[i] = is_within[i] ? 1 : x->dims[i];
        if (is_within[i]) {
            g->run *= x->dims[i];
            continue;
        }
        stride[i] = g->count;
        g->count *= x->dims[i];
    }
    g->group = arena_take(memory, x->count, sizeof *g->group);
    if (!g->group) return no_memory(node, err);
    for (uint32_t flat = 0; flat < x->count; flat++) {
        uint32_t rest = flat;
        for (uint32_t i = x->rank; i-- > 0;) {
            g->group[flat] += rest % x->dims[i] * stride[i];
            rest /= x->dims[i];
        }
    }
    return list_members(g, node, memory, err);
}

ckks_status groups_by_runs(groups *g, const model_node *node, const tensor *x, uint32_t run, arena *memory,
                           ckks_error *err) {
    *g = (groups){.element_count = x->count, .count = x->count / run, .run = run};
    g->group = arena_take(memory, x->count, sizeof *g->group);
    if (!g->group) return no_memory(node, err);
    for (uint32_t i = 0; i < x->count; i++) g->group[i] = i / run;
    return list_members(g, node, memory, err);
}

ckks_status groups_append_sum(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                              uint32_t from, double share, const double *bias, ckks_error *err) {
    sparse *m;
    const uint32_t count = g->element_count;
    const ckks_status rc = sparse_create(&m, l->memory, g->count, count, count, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) m->column[i] = g->member[i], m->value[i] = share;
    for (uint32_t k = 0; k < g->count; k++) m->row_start[k + 1] = (k + 1) * g->run;
    return ir_linear(out, l->graph, from, m, bias, node->label, err);
}

/* in two layers, for groups whose square is too large for one */
static ckks_status append_centred_twice(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                                        uint32_t from, ckks_error *err) {
    const uint32_t count = g->element_count;
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2, .source = node->label};
    double *minus = arena_take(l->memory, count, sizeof *minus);
    uint32_t mean;
    sparse *same, *spread;
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!minus || !made.terms || !made.bias) return no_memory(node, err);
    for (uint32_t i = 0; i < count; i++) minus[i] = -1;
    ckks_status rc = groups_append_sum(&mean, l, node, g, from, 1.0 / g->run, NULL, err);
    if (rc == CKKS_OK) rc = sparse_gather(&same, l->memory, count, count, NULL, NULL, err);
    if (rc == CKKS_OK) rc = sparse_gather(&spread, l->memory, count, g->count, g->group, minus, err);
    if (rc != CKKS_OK) return rc;
    made.terms[0] = (ir_term){from, same}, made.terms[1] = (ir_term){mean, spread};
    return ir_append(out, l->graph, &made, err);
}

#define SQUARE_MAX (UINT64_C(1) << 18)

ckks_status groups_append_centred(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                                  uint32_t from, ckks_error *err) {
    sparse *m;
    const uint32_t count = g->element_count;
    const uint64_t entries = (uint64_t)count * g->run;
    if (entries > SQUARE_MAX) return append_centred_twice(out, l, node, g, from, err);
    ckks_status rc = sparse_create(&m, l->memory, count, count, entries, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0, entry = 0; i < count; i++) {
        const uint32_t *member = g->member + (size_t)g->group[i] * g->run;
        for (uint32_t k = 0; k < g->run; k++, entry++) {
            m->column[entry] = member[k];
            m->value[entry] = (member[k] == i ? 1.0 : 0.0) - 1.0 / g->run;
        }
        m->row_start[i + 1] = entry;
    }
    rc = lower_count(l, node, m, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, m, NULL, node->label, err) : rc;
}

ckks_status groups_append_spread(uint32_t *out, lowering *l, const model_node *node, const groups *g,
                                 uint32_t from, const double *scale, ckks_error *err) {
    sparse *m;
    const ckks_status rc = sparse_gather(&m, l->memory, g->element_count, g->count, g->group, scale, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, m, NULL, node->label, err) : rc;
}
