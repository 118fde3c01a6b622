/* ai.onnx.ml's LinearRegressor: a dense layer; the link function is the client's. */
#include "client/compile/operator.h"

typedef struct regressor {
    uint32_t columns, rows;
    double *weights; /* [rows][columns] */
    double *bias;    /* [rows] */
    uint32_t link;
} regressor;

static ckks_status regressor_room(regressor *r, const model_node *node, arena *memory, ckks_error *err) {
    r->weights = arena_take(memory, (uint64_t)r->rows * r->columns, sizeof *r->weights);
    r->bias = arena_take(memory, r->rows, sizeof *r->bias);
    if (r->weights && r->bias) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a layer");
}

static ckks_status linear_read(regressor *r, const model_node *node, arena *memory, ckks_error *err) {
    const int64_t targets = node_int(node, "targets", 1);
    const float *weights, *bias;
    size_t weight_count, bias_count;
    ckks_status rc = node_floats(&weights, &weight_count, node, "coefficients", err);
    if (rc == CKKS_OK) rc = node_floats(&bias, &bias_count, node, "intercepts", err);
    if (rc != CKKS_OK) return rc;
    if (targets < 1 || targets > MODEL_ROW_MAX || weight_count != (uint64_t)targets * r->columns)
        return node_error(node, err, "%zu coefficients for %lld targets of %u columns", weight_count,
                          (long long)targets, r->columns);
    r->rows = (uint32_t)targets;
    if (bias_count && bias_count != r->rows)
        return node_error(node, err, "%zu intercepts for %u targets", bias_count, r->rows);
    if ((rc = regressor_room(r, node, memory, err)) != CKKS_OK) return rc;
    for (size_t i = 0; i < weight_count; i++) r->weights[i] = (double)weights[i];
    for (size_t i = 0; i < bias_count; i++) r->bias[i] = (double)bias[i];
    return CKKS_OK;
}

static ckks_status regressor_read(regressor *r, const model_node *node, const tensor *x, arena *memory,
                                  ckks_error *err) {
    *r = (regressor){.columns = x->count};
    const ckks_status rc = linear_read(r, node, memory, err);
    return rc == CKKS_OK ? node_link(&r->link, node, err) : rc;
}

static ckks_status regressor_evaluate(evaluation *e, ckks_error *err) {
    regressor r;
    const tensor *x = e->in[0];
    ckks_status rc = regressor_read(&r, e->node, x, e->memory, err);
    if (rc != CKKS_OK) return rc;
    CKKS_ASSERT(r.weights && r.bias);
    const int64_t dims[2] = {1, r.rows};
    if ((rc = output_shape(e, 0, dims, 2, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < r.rows; i++) {
        double sum = r.bias[i];
        for (uint32_t k = 0; k < r.columns; k++) sum += r.weights[(size_t)i * r.columns + k] * x->data[k];
        e->out[0]->data[i] = sum;
    }
    if (!e->scores_only) classifier_apply_link(e->out[0]->data, r.rows, r.link);
    return CKKS_OK;
}

static ckks_status regressor_lower(lowering *l, const model_node *node, ckks_error *err) {
    regressor r;
    sparse *matrix;
    ckks_status rc = regressor_read(&r, node, &l->model->values[node->inputs[0]].sample, l->memory, err);
    if (rc != CKKS_OK) return rc;
    CKKS_ASSERT(r.weights && r.bias);
    rc = sparse_create(&matrix, l->memory, r.rows, r.columns, (uint64_t)r.rows * r.columns, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0, entry = 0; i < r.rows; i++) {
        for (uint32_t k = 0; k < r.columns; k++, entry++) {
            matrix->column[entry] = k;
            matrix->value[entry] = r.weights[entry];
        }
        matrix->row_start[i + 1] = entry;
    }
    if ((rc = lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, r.bias, err)) != CKKS_OK)
        return rc;
    if (r.link == POST_NONE) return CKKS_OK;
    symbol *made = &l->symbols[node->outputs[0]];
    *made = (symbol){.kind = SYMBOL_CLIENT,
                     .node = made->node,
                     .score_value = node->outputs[0],
                     .steps = {.link = r.link}};
    return CKKS_OK;
}

const operator_row operators_linear[] = {
    {"ai.onnx.ml", "LinearRegressor", 1, 1, 1, 0, regressor_evaluate, regressor_lower, NULL},
    {0},
};
