/*
 * Softmax, LogSoftmax and ArgMax: what comes after the scores, taken by the client once they are decrypted.
 * Softmaxes elsewhere are made of polynomials.
 */
#include "client/compile/groups.h"

#include <math.h>
#include <string.h>

/* the axis, counted from the front; MODEL_NONE if out of range */
static uint32_t axis_of(const model_node *node, const tensor *x, int64_t otherwise) {
    int64_t axis = node_int(node, "axis", otherwise);
    if (axis < 0) axis += x->rank;
    return axis < 0 || axis >= x->rank ? MODEL_NONE : (uint32_t)axis;
}

static int64_t softmax_axis(const onnx_model *m) {
    return m->opset && m->opset < 13 ? 1 : -1;
}

/* Before version 13 everything from the axis on is one vector. */
static bool softmax_takes_row(const onnx_model *m, const model_node *node, const tensor *x) {
    const uint32_t axis = axis_of(node, x, softmax_axis(m));
    if (axis == MODEL_NONE) return false;
    uint32_t count = x->dims[axis];
    for (uint32_t i = axis + 1; m->opset && m->opset < 13 && i < x->rank; i++) count *= x->dims[i];
    return count == x->count;
}

/* one vector: `count` elements that are `stride` apart */
static void softmax_vector(double *y, const double *x, uint32_t count, uint32_t stride, bool is_log) {
    double top = -INFINITY, total = 0;
    for (uint32_t i = 0; i < count; i++) top = fmax(top, x[(size_t)i * stride]);
    for (uint32_t i = 0; i < count; i++) total += y[(size_t)i * stride] = exp(x[(size_t)i * stride] - top);
    for (uint32_t i = 0; i < count; i++)
        y[(size_t)i * stride] =
            is_log ? x[(size_t)i * stride] - top - log(total) : y[(size_t)i * stride] / total;
}

static bool is_log(const model_node *node) {
    return *node->proto->op_type == 'L';
}

static ckks_status softmax_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const uint32_t axis = axis_of(e->node, x, softmax_axis(e->model));
    const bool is_flat = e->model->opset && e->model->opset < 13;
    uint32_t stride = 1;
    if (axis == MODEL_NONE) return node_error(e->node, err, "axis is out of range");
    const ckks_status rc = output_like(e, 0, x, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = axis + 1; i < x->rank; i++) stride *= x->dims[i];
    const uint32_t count = x->dims[axis] * (is_flat ? stride : 1);
    if (is_flat) stride = 1;
    for (uint32_t i = 0; i < x->count; i++)
        if (i / stride % count == 0)
            softmax_vector(e->out[0]->data + i, x->data + i, count, stride, is_log(e->node));
    return CKKS_OK;
}

/* One of two shares is the sigmoid of what it is ahead of the other: one polynomial. */
static ckks_status shares_of_two(ir_node *last, lowering *l, const model_node *node, const groups *g,
                                 uint32_t from, ckks_error *err) {
    const uint32_t count = g->element_count;
    sparse *m;
    ckks_status rc = sparse_create(&m, l->memory, count, count, 2 * (uint64_t)count, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *pair = g->member + (size_t)g->group[i] * 2;
        for (uint32_t k = 0; k < 2; k++) {
            m->column[2 * i + k] = pair[k];
            m->value[2 * i + k] = pair[k] == i ? 1 : -1;
        }
        m->row_start[i + 1] = 2 * (i + 1);
    }
    *last = (ir_node){.kind = IR_ACTIVATION, .count = count, .function = IR_SIGMOID, .source = node->label};
    if ((rc = lower_count(l, node, m, err)) != CKKS_OK) return rc;
    return ir_linear(&last->a, l->graph, from, m, NULL, node->label, err);
}

/* Of x minus its group's mean, which changes nothing, so that the sum of n exponentials is at least n and its
 * reciprocal and logarithm are polynomials whatever the rows are. */
ckks_status groups_softmax(ir_node *last, lowering *l, const model_node *node, const groups *g, uint32_t from,
                           bool takes_log, ckks_error *err) {
    const uint32_t count = g->element_count;
    uint32_t centred, powers, sum;
    ir_node power = {.kind = IR_ACTIVATION, .count = count, .function = IR_EXP, .source = node->label};
    ir_node total = {.kind = IR_ACTIVATION,
                     .count = g->count,
                     .function = takes_log ? IR_LOG : IR_POW,
                     .parameters = {-1},
                     .source = node->label};
    *last = (ir_node){.kind = IR_PRODUCT, .count = count, .source = node->label};
    if (g->run == 2 && !takes_log) return shares_of_two(last, l, node, g, from, err);
    ckks_status rc = groups_append_centred(&centred, l, node, g, from, err);
    power.a = centred;
    if (rc == CKKS_OK) rc = ir_append(&powers, l->graph, &power, err);
    if (rc == CKKS_OK) rc = groups_append_sum(&total.a, l, node, g, powers, 1, NULL, err);
    if (rc == CKKS_OK) rc = ir_append(&sum, l->graph, &total, err);
    if (rc == CKKS_OK) rc = groups_append_spread(&last->b, l, node, g, sum, NULL, err);
    if (rc == CKKS_OK) last->a = takes_log ? centred : powers;
    return rc;
}

/* within the model */
static ckks_status softmax_polynomials(lowering *l, const model_node *node, ckks_error *err) {
    const tensor *x = &l->model->values[node->inputs[0]].sample;
    const uint32_t axis = axis_of(node, x, softmax_axis(l->model));
    bool is_within[TENSOR_RANK_MAX];
    groups g;
    ir_node last;
    if (axis == MODEL_NONE || !x->count) return node_error(node, err, "axis is out of range");
    for (uint32_t i = 0; i < x->rank; i++)
        is_within[i] = i == axis || (i > axis && l->model->opset && l->model->opset < 13);
    ckks_status rc = groups_by_axes(&g, node, x, is_within, l->memory, err);
    if (rc == CKKS_OK)
        rc = groups_softmax(&last, l, node, &g, lower_symbol(l, node, 0)->node, is_log(node), err);
    if (rc != CKKS_OK) return rc;
    if (is_log(node)) return lower_difference(l, node, last.a, last.b, x->count, err);
    rc = lower_append(l, node, &last, err);
    l->symbols[node->outputs[0]].adds_up = rc == CKKS_OK && g.count == 1;
    return rc;
}

static ckks_status softmax_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (!l->is_final[node->outputs[0]] ||
        !softmax_takes_row(l->model, node, &l->model->values[node->inputs[0]].sample))
        return softmax_polynomials(l, node, err);
    l->symbols[node->outputs[0]] =
        (symbol){.kind = SYMBOL_CLIENT,
                 .node = lower_symbol(l, node, 0)->node,
                 .score_value = node->inputs[0],
                 .steps = {.link = is_log(node) ? POST_LOG_SOFTMAX : POST_SOFTMAX}};
    return CKKS_OK;
}

static bool takes_least(const model_node *node) {
    return strcmp(node->proto->op_type, "ArgMin") == 0;
}

static ckks_status argmax_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const uint32_t axis = axis_of(e->node, x, 0);
    const bool takes_last = node_int(e->node, "select_last_index", 0) != 0;
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank = 0, stride = 1;
    if (axis == MODEL_NONE) return node_error(e->node, err, "axis is out of range");
    for (uint32_t i = 0; i < x->rank; i++)
        if (i != axis || node_int(e->node, "keepdims", 1)) dims[rank++] = i == axis ? 1 : x->dims[i];
    const ckks_status rc = output_shape(e, 0, dims, rank, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = axis + 1; i < x->rank; i++) stride *= x->dims[i];
    const uint32_t size = x->dims[axis];
    for (uint32_t i = 0; i < e->out[0]->count; i++) {
        const double *from = x->data + (size_t)(i / stride) * size * stride + i % stride;
        uint32_t best = 0;
        for (uint32_t k = 1; k < size; k++) {
            const double gain = from[(size_t)k * stride] - from[(size_t)best * stride];
            if ((takes_least(e->node) ? gain < 0 : gain > 0) || (gain == 0 && takes_last)) best = k;
        }
        e->out[0]->data[i] = best;
    }
    e->out[0]->is_integer = true;
    return CKKS_OK;
}

/* the least score is the largest of what is under the other sign; roots keep the order */
static ckks_status negate_scores(symbol *s, lowering *l, const model_node *node, ckks_error *err) {
    const uint32_t count = l->graph->nodes[s->node].count;
    double *minus = arena_take(l->memory, count, sizeof *minus);
    sparse *m;
    const bool is_shown = s->kind == SYMBOL_ENCRYPTED || s->steps.link == POST_SQRT;
    s->kind = SYMBOL_UNKNOWN;
    if (!is_shown || s->is_negated)
        return lower_refuse(l, node, "the least of what a softmax or another link gives",
                            "take it of the scores before", err);
    if (!minus) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for scores");
    for (uint32_t i = 0; i < count; i++) minus[i] = -1;
    s->is_negated = true, s->steps.link = POST_NONE, s->kind = SYMBOL_CLIENT;
    const ckks_status rc = sparse_gather(&m, l->memory, count, count, NULL, minus, err);
    return rc == CKKS_OK ? ir_linear(&s->node, l->graph, s->node, m, NULL, node->label, err) : rc;
}

static ckks_status argmax_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor *x = &l->model->values[node->inputs[0]].sample;
    const symbol *from = lower_symbol(l, node, 0);
    const uint32_t axis = axis_of(node, x, 0);
    if (axis == MODEL_NONE || x->dims[axis] != x->count || node_int(node, "select_last_index", 0))
        return lower_refuse(
            l, node, "it compares encrypted values within the row, or rows of the batch",
            "only an ArgMax over all scores, at the end (axis 1), is possible: the client computes it", err);
    if (from->is_label) return node_error(node, err, "takes the largest of a label");
    symbol made = *from;
    if (from->kind == SYMBOL_ENCRYPTED) made.score_value = node->inputs[0];
    if (takes_least(node)) {
        const ckks_status rc = negate_scores(&made, l, node, err);
        if (rc != CKKS_OK || made.kind == SYMBOL_UNKNOWN) return rc;
    }
    made.kind = SYMBOL_CLIENT;
    made.is_label = made.steps.has_label = true;
    /* a place among the scores, also where a classifier names them */
    made.steps.labels = NULL, made.steps.label_numbers = NULL, made.steps.label_count = 0;
    l->symbols[node->outputs[0]] = made;
    return CKKS_OK;
}

#define SOFTMAX "over all scores at the output; elsewhere encrypted: polynomials"

const operator_row operators_output[] = {
    {"", "Softmax", 1, 1, 1, OPERATOR_CLIENT_SIDE, softmax_evaluate, softmax_lower, SOFTMAX},
    {"", "LogSoftmax", 1, 1, 1, OPERATOR_CLIENT_SIDE, softmax_evaluate, softmax_lower, SOFTMAX},
    {"", "ArgMax", 1, 1, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE, argmax_evaluate, argmax_lower,
     NULL},
    {"", "ArgMin", 1, 1, 1, OPERATOR_AFTER_SCORES | OPERATOR_CLIENT_SIDE, argmax_evaluate, argmax_lower,
     "of scores, or of their roots"},
    {0},
};
