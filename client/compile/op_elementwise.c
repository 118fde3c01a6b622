/* Add, Sub, Mul, Div, Pow with numpy's broadcasting. */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

static double apply(const char *type, double a, double b) {
    switch (*type) {
    case 'A':
        return a + b;
    case 'S':
        return a - b;
    case 'M':
        return a * b;
    case 'D':
        return a / b;
    default:
        return pow(a, b);
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
    if (type == 'D' && side == 1)
        return lower_refuse(l, node, "it divides by a value that depends on the input",
                            "multiply by a constant instead, or divide before encryption", err);
    for (uint32_t i = 0; i < count; i++) {
        const double value = c[read[i]];
        if (type == 'D' && value == 0) return node_error(node, err, "divides by zero");
        factor[i] = type == 'M' ? value : type == 'D' ? 1 / value : type == 'S' && side == 1 ? -1 : 1;
        bias[i] = type == 'A' ? value : type == 'S' ? (side == 1 ? value : -value) : 0;
    }
    return lower_affine(l, node, side, index, factor, bias, err);
}

/* the side's value with as many elements as the output: itself, or a copy by broadcasting */
static ckks_status broadcast_node(uint32_t *out, lowering *l, const model_node *node, uint32_t side,
                                  const uint32_t *index, ckks_error *err) {
    const model_value *v = l->model->values;
    const uint32_t count = v[node->outputs[0]].sample.count, from = lower_symbol(l, node, side)->node;
    sparse *matrix;
    *out = from;
    if (v[node->inputs[side]].sample.count == count) return CKKS_OK;
    const ckks_status rc =
        sparse_gather(&matrix, l->memory, count, v[node->inputs[side]].sample.count, index, NULL, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, matrix, NULL, node->label, err) : rc;
}

/* x * Sigmoid(x), in either order, where nothing else uses the sigmoid */
static bool is_silu(const lowering *l, const model_node *node, uint32_t gate_side) {
    const ir_node *gate = &l->graph->nodes[lower_symbol(l, node, gate_side)->node];
    return gate->kind == IR_ACTIVATION && gate->function == IR_SIGMOID &&
           gate->a == lower_symbol(l, node, 1 - gate_side)->node &&
           l->model->values[node->inputs[gate_side]].consumer_count == 1 &&
           !l->model->values[node->inputs[gate_side]].is_graph_output;
}

static ckks_status lower_encrypted_product(lowering *l, const model_node *node, const pairing *p,
                                           ckks_error *err) {
    ir_node made = {.kind = IR_PRODUCT, .count = l->model->values[node->outputs[0]].sample.count};
    for (uint32_t side = 0; side < 2; side++)
        if (is_silu(l, node, side)) {
            made.kind = IR_ACTIVATION;
            made.function = IR_SILU;
            made.a = lower_symbol(l, node, 1 - side)->node;
            return lower_append(l, node, &made, err);
        }
    ckks_status rc = broadcast_node(&made.a, l, node, 0, p->a, err);
    if (rc == CKKS_OK) rc = broadcast_node(&made.b, l, node, 1, p->b, err);
    return rc == CKKS_OK ? lower_append(l, node, &made, err) : rc;
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
        return lower_encrypted_product(l, node, &p, err);
    case 'D':
        return lower_refuse(l, node, "it divides by a value that depends on the input",
                            "multiply by a constant instead, or divide before encryption", err);
    default:
        return lower_encrypted_sum(l, node, &p, err);
    }
}

static ckks_status pow_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor *exponent = &l->model->values[node->inputs[1]].constant;
    const char *way_out =
        "only squares are compiled: write higher powers as products, for example Mul(Mul(x, x), x)";
    if (!exponent->data) return lower_refuse(l, node, "the exponent depends on the input", way_out, err);
    for (uint32_t i = 0; i < exponent->count; i++)
        if (exponent->data[i] != 2.0) return lower_refuse(l, node, "the exponent is not 2", way_out, err);
    const uint32_t from = lower_symbol(l, node, 0)->node;
    ir_node made = {
        .kind = IR_PRODUCT, .count = l->model->values[node->inputs[0]].sample.count, .a = from, .b = from};
    if (made.count != l->model->values[node->outputs[0]].sample.count)
        return lower_refuse(l, node, "the exponent broadcasts the base", way_out, err);
    return lower_append(l, node, &made, err);
}

const operator_row operators_elementwise[] = {
    {"", "Add", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Sub", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Mul", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Div", 2, 2, 1, 0, elementwise_evaluate, elementwise_lower, NULL},
    {"", "Pow", 2, 2, 1, 0, elementwise_evaluate, pow_lower, NULL},
    {0},
};
