/* Products and differences of two encrypted values, for operators that are made of them. */
#include "client/compile/lower.h"

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
}

ckks_status lower_difference(lowering *l, const model_node *node, uint32_t a, uint32_t b, uint32_t count,
                             ckks_error *err) {
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2};
    double *minus = arena_take(l->memory, count, sizeof *minus);
    sparse *plus_a, *minus_b;
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!minus || !made.terms || !made.bias) return no_memory(node, err);
    for (uint32_t i = 0; i < count; i++) minus[i] = -1;
    ckks_status rc = sparse_gather(&plus_a, l->memory, count, count, NULL, NULL, err);
    if (rc == CKKS_OK) rc = sparse_gather(&minus_b, l->memory, count, count, NULL, minus, err);
    if (rc != CKKS_OK) return rc;
    made.terms[0] = (ir_term){a, plus_a}, made.terms[1] = (ir_term){b, minus_b};
    return lower_append(l, node, &made, err);
}

/* a node whose element i is element at[i] of `from`: `from` itself where they are the same */
static ckks_status append_picked(uint32_t *out, lowering *l, const model_node *node, uint32_t from,
                                 const uint32_t *at, uint32_t count, ckks_error *err) {
    const uint32_t available = l->graph->nodes[from].count;
    bool is_same = available == count;
    sparse *m;
    for (uint32_t i = 0; i < count && is_same; i++) is_same = at[i] == i;
    *out = from;
    if (is_same) return CKKS_OK;
    ckks_status rc = sparse_gather(&m, l->memory, count, available, at, NULL, err);
    if (rc == CKKS_OK) rc = lower_count(l, node, m, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, m, NULL, node->label, err) : rc;
}

ckks_status lower_bilinear(lowering *l, const model_node *node, const bilinear *form, ckks_error *err) {
    const uint64_t products = (uint64_t)form->rows * form->run;
    const uint32_t count = (uint32_t)products;
    ir_node made = {.kind = IR_PRODUCT, .count = count, .source = node->label};
    sparse *sums;
    uint32_t number;
    CKKS_ASSERT(products <= PRODUCTS_MAX);
    ckks_status rc = append_picked(&made.a, l, node, form->a, form->at_a, count, err);
    if (rc == CKKS_OK) rc = append_picked(&made.b, l, node, form->b, form->at_b, count, err);
    if (rc != CKKS_OK) return rc;
    if (form->run == 1 && !form->weight && !form->bias) return lower_append(l, node, &made, err);
    if ((rc = ir_append(&number, l->graph, &made, err)) != CKKS_OK) return rc;
    if ((rc = sparse_create(&sums, l->memory, form->rows, count, count, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        sums->column[i] = i;
        sums->value[i] = form->weight ? form->weight[i] : 1;
    }
    for (uint32_t row = 0; row < form->rows; row++) sums->row_start[row + 1] = (row + 1) * form->run;
    return lower_linear(l, node, number, sums, form->bias, err);
}
