/* Sums, differences, products and quotients, with numpy's broadcasting. */
#include "client/compile/gate.h"
#include "client/compile/operator.h"

#include <math.h>

static double apply(const char *type, double a, double b) {
    switch (*type) {
    case 'A':
        return a + b;
    case 'S':
        return a - b;
    case 'M':
        return a * b;
    default:
        return a / b;
    }
}

/* For each output element, which element of either side it reads. */
typedef struct pairing {
    uint32_t *a, *b;
} pairing;

static ckks_status pairing_init(pairing *p, arena *memory, const tensor *y, const tensor *a, const tensor *b,
                                const model_node *node, ckks_error *err) {
    p->a = arena_take(memory, y->count, sizeof *p->a);
    p->b = arena_take(memory, y->count, sizeof *p->b);
    if (!p->a || !p->b)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    broadcast_index(p->a, y, a);
    broadcast_index(p->b, y, b);
    return CKKS_OK;
}

static ckks_status elementwise_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank;
    pairing p;
    const tensor *a = e->in[0], *b = e->in[1];
    ckks_status rc = broadcast_shape(dims, &rank, e->node, a, b, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = output_shape(e, 0, dims, rank, err)) != CKKS_OK) return rc;
    if ((rc = pairing_init(&p, e->memory, e->out[0], a, b, e->node, err)) != CKKS_OK) return rc;
    const char *type = e->node->proto->op_type;
    for (uint32_t i = 0; i < e->out[0]->count; i++)
        e->out[0]->data[i] = apply(type, a->data[p.a[i]], b->data[p.b[i]]);
    e->out[0]->is_integer = a->is_integer && b->is_integer;
    /* integer division truncates */
    for (uint32_t i = 0; *type == 'D' && e->out[0]->is_integer && i < e->out[0]->count; i++)
        e->out[0]->data[i] = trunc(e->out[0]->data[i]);
    return CKKS_OK;
}

/* a encrypted, c constant: y[i] = factor[i] * a[index[i]] + bias[i] */
static ckks_status lower_affine(lowering *l, const model_node *node, uint32_t side, const uint32_t *index,
                                const double *factor, const double *bias, ckks_error *err) {
    const model_value *v = l->model->values;
    sparse *matrix;
    const ckks_status rc = sparse_gather(&matrix, l->memory, v[node->outputs[0]].sample.count,
                                         v[node->inputs[side]].sample.count, index, factor, err);
    if (rc != CKKS_OK) return rc;
    return lower_linear(l, node, lower_symbol(l, node, side)->node, matrix, bias, err);
}

/* 1 / x, which is a polynomial where calibration rows stay on one side of zero */
static ckks_status append_reciprocal(uint32_t *out, lowering *l, const model_node *node, uint32_t side,
                                     ckks_error *err) {
    ir_node made = {.kind = IR_ACTIVATION,
                    .count = l->model->values[node->inputs[side]].sample.count,
                    .function = IR_POW,
                    .parameters = {-1},
                    .a = lower_symbol(l, node, side)->node,
                    .source = node->label};
    return ir_append(out, l->graph, &made, err);
}

/* a constant over an encrypted value: y[i] = c[read[i]] / b[index[i]] */
static ckks_status lower_reciprocal(lowering *l, const model_node *node, const double *c,
                                    const uint32_t *read, const uint32_t *index, ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count;
    double *factor = arena_take(l->memory, count, sizeof *factor);
    sparse *matrix;
    uint32_t from;
    if (!factor) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    for (uint32_t i = 0; i < count; i++) factor[i] = c[read[i]];
    ckks_status rc = append_reciprocal(&from, l, node, 1, err);
    if (rc == CKKS_OK)
        rc = sparse_gather(&matrix, l->memory, count, v[node->inputs[1]].sample.count, index, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, from, matrix, NULL, err) : rc;
}

static ckks_status lower_with_constant(lowering *l, const model_node *node, uint32_t side, const pairing *p,
                                       ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count;
    const double *c = v[node->inputs[1 - side]].constant.data;
    const uint32_t *read = side ? p->a : p->b, *index = side ? p->b : p->a;
    const char type = *node->proto->op_type;
    double *factor = arena_take(l->memory, count, sizeof *factor);
    double *bias = arena_take(l->memory, count, sizeof *bias);
    if (!factor || !bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    if (type == 'D' && side == 1) return lower_reciprocal(l, node, c, read, index, err);
    for (uint32_t i = 0; i < count; i++) {
        const double value = c[read[i]];
        if (type == 'D' && value == 0) return node_error(node, err, "divides by zero");
        factor[i] = type == 'M' ? value : type == 'D' ? 1 / value : type == 'S' && side == 1 ? -1 : 1;
        bias[i] = type == 'A' ? value : type == 'S' ? (side == 1 ? value : -value) : 0;
    }
    return lower_affine(l, node, side, index, factor, bias, err);
}

/* the side's value `from` with as many elements as the output: itself, or a copy by broadcasting */
static ckks_status broadcast_node(uint32_t *out, lowering *l, const model_node *node, uint32_t side,
                                  uint32_t from, const uint32_t *index, ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count;
    sparse *matrix;
    *out = from;
    if (v[node->inputs[side]].sample.count == count) return CKKS_OK;
    const ckks_status rc =
        sparse_gather(&matrix, l->memory, count, v[node->inputs[side]].sample.count, index, NULL, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, matrix, NULL, node->label, err) : rc;
}

/* outer * f(inner * x): the factors are layers, which the compiler folds into their neighbours */
static ckks_status lower_gate(lowering *l, const model_node *node, const gate *found, ckks_error *err) {
    const uint32_t count = l->model->values[node->outputs[0]].sample.count;
    ir_node made = {.kind = IR_ACTIVATION, .count = count, .function = found->function, .a = found->from};
    double *factor = arena_take(l->memory, 2 * (uint64_t)count, sizeof *factor);
    ckks_status rc;
    sparse *matrix;
    if (!factor) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    for (uint32_t i = 0; i < count; i++) factor[i] = found->inner, factor[count + i] = found->outer;
    if (found->inner != 1) {
        if ((rc = sparse_gather(&matrix, l->memory, count, count, NULL, factor, err)) != CKKS_OK) return rc;
        rc = ir_linear(&made.a, l->graph, found->from, matrix, NULL, node->label, err);
        if (rc != CKKS_OK) return rc;
    }
    if ((rc = lower_append(l, node, &made, err)) != CKKS_OK || found->outer == 1) return rc;
    rc = sparse_gather(&matrix, l->memory, count, count, NULL, factor + count, err);
    return rc == CKKS_OK ? lower_linear(l, node, l->symbols[node->outputs[0]].node, matrix, NULL, err) : rc;
}

static ckks_status lower_encrypted_product(lowering *l, const model_node *node, const pairing *p,
                                           ckks_error *err) {
    const uint32_t count = l->model->values[node->outputs[0]].sample.count;
    ir_node made = {.kind = IR_PRODUCT, .count = count};
    gate found;
    uint32_t second = lower_symbol(l, node, 1)->node;
    ckks_status rc = broadcast_node(&made.a, l, node, 0, lower_symbol(l, node, 0)->node, p->a, err);
    if (rc == CKKS_OK && *node->proto->op_type == 'D') rc = append_reciprocal(&second, l, node, 1, err);
    if (rc == CKKS_OK) rc = broadcast_node(&made.b, l, node, 1, second, p->b, err);
    if (rc != CKKS_OK) return rc;
    if (gate_find(&found, l->graph, &made)) return lower_gate(l, node, &found, err);
    return lower_append(l, node, &made, err);
}

static ckks_status lower_encrypted_sum(lowering *l, const model_node *node, const pairing *p,
                                       ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count;
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2};
    double *factor = arena_take(l->memory, count, sizeof *factor);
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!factor || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t i = 0; i < count; i++) factor[i] = *node->proto->op_type == 'S' ? -1 : 1;
    for (uint32_t side = 0; side < 2; side++) {
        sparse *matrix;
        const ckks_status rc = sparse_gather(&matrix, l->memory, count, v[node->inputs[side]].sample.count,
                                             side ? p->b : p->a, side ? factor : NULL, err);
        if (rc != CKKS_OK) return rc;
        made.terms[side] = (ir_term){lower_symbol(l, node, side)->node, matrix};
    }
    gate found;
    if (gate_find(&found, l->graph, &made)) return lower_gate(l, node, &found, err);
    return lower_append(l, node, &made, err);
}

static ckks_status elementwise_lower(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *v = l->model->values;
    pairing p;
    const ckks_status rc = pairing_init(&p, l->memory, &v[node->outputs[0]].sample,
                                        &v[node->inputs[0]].sample, &v[node->inputs[1]].sample, node, err);
    if (rc != CKKS_OK) return rc;
    const bool a = lower_is_encrypted(l, node, 0), b = lower_is_encrypted(l, node, 1);
    if (!a || !b) return lower_with_constant(l, node, a ? 0 : 1, &p, err);
    switch (*node->proto->op_type) {
    case 'M':
    case 'D':
        return lower_encrypted_product(l, node, &p, err);
    default:
        return lower_encrypted_sum(l, node, &p, err);
    }
}

/* Sum, Mean: any number of values */
static ckks_status many_shape(int64_t dims[TENSOR_RANK_MAX], uint32_t *rank, const model_node *node,
                              const tensor *const *in, uint32_t count_max, ckks_error *err) {
    tensor so_far = {.count = 1};
    *rank = 0;
    for (uint32_t k = 0; k < node->input_count; k++) {
        if (!in[k]) return node_error(node, err, "input %u is left out", k);
        ckks_status rc = broadcast_shape(dims, rank, node, &so_far, in[k], err);
        if (rc == CKKS_OK) rc = tensor_shape(&so_far, dims, *rank, count_max, node->label, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static double share_of(const model_node *node) {
    return *node->proto->op_type == 'M' ? 1.0 / node->input_count : 1.0;
}

static ckks_status many_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank;
    ckks_status rc = many_shape(dims, &rank, e->node, e->in, e->count_max, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    if (rc != CKKS_OK) return rc;
    tensor *y = e->out[0];
    uint32_t *index = arena_take(e->memory, y->count, sizeof *index);
    if (!index) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    for (uint32_t k = 0; k < e->node->input_count; k++) {
        broadcast_index(index, y, e->in[k]);
        for (uint32_t i = 0; i < y->count; i++) y->data[i] += share_of(e->node) * e->in[k]->data[index[i]];
    }
    return CKKS_OK;
}

static ckks_status many_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in, *y = &l->model->values[node->outputs[0]].sample;
    ir_node made = {.kind = IR_LINEAR, .count = y->count};
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    uint32_t *index = arena_take(l->memory, y->count, sizeof *index);
    double *share = arena_take(l->memory, y->count, sizeof *share);
    made.terms = arena_take(l->memory, node->input_count, sizeof *made.terms);
    made.bias = arena_take(l->memory, y->count, sizeof *made.bias);
    if (!index || !share || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t i = 0; i < y->count; i++) share[i] = share_of(node);
    for (uint32_t k = 0; k < node->input_count; k++) {
        sparse *matrix;
        broadcast_index(index, y, in[k]);
        for (uint32_t i = 0; !lower_is_encrypted(l, node, k) && i < y->count; i++)
            made.bias[i] += share[i] * in[k]->data[index[i]];
        if (!lower_is_encrypted(l, node, k)) continue;
        rc = sparse_gather(&matrix, l->memory, y->count, in[k]->count, index, share, err);
        if (rc != CKKS_OK) return rc;
        made.terms[made.term_count++] = (ir_term){lower_symbol(l, node, k)->node, matrix};
    }
    return lower_append(l, node, &made, err);
}

static ckks_status negative_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++) e->out[0]->data[i] = -e->in[0]->data[i];
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

static ckks_status negative_lower(lowering *l, const model_node *node, ckks_error *err) {
    const uint32_t count = l->model->values[node->inputs[0]].sample.count;
    double *factor = arena_take(l->memory, count, sizeof *factor);
    sparse *matrix;
    if (!factor) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    for (uint32_t i = 0; i < count; i++) factor[i] = -1;
    const ckks_status rc = sparse_gather(&matrix, l->memory, count, count, NULL, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, NULL, err) : rc;
}

const operator_row operators_elementwise[] = {
    {"", "Add", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Sub", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Mul", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Div", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower,
     "by constants, or a polynomial where calibration rows keep the divisor on one side of zero"},
    {"", "Neg", 1, 1, 1, 0, negative_evaluate, negative_lower, NULL},
    {"", "Sum", 1, OPERATOR_MANY, 1, 0, many_evaluate, many_lower, NULL},
    {"", "Mean", 1, OPERATOR_MANY, 1, 0, many_evaluate, many_lower, NULL},
    {0},
};
