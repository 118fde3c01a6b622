/*
 * ai.onnx.ml's LinearRegressor: a dense layer; its link function is the client's.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

typedef struct regressor {
    uint32_t columns, rows;
    const float *coefficients, *intercepts; /* intercepts may be NULL */
    uint32_t link;
} regressor;

static ckks_status regressor_read(regressor *r, const model_node *node, const tensor *x, ckks_error *err) {
    static const struct {
        const char *name;
        uint32_t link;
    } links[] = {{"NONE", POST_NONE},
                 {"LOGISTIC", POST_SIGMOID},
                 {"SOFTMAX", POST_SOFTMAX},
                 {"SOFTMAX_ZERO", POST_SOFTMAX_ZERO},
                 {"PROBIT", POST_PROBIT}};
    const Onnx__Attribute *weights = node_attribute(node, "coefficients"),
                          *bias = node_attribute(node, "intercepts");
    const int64_t targets = node_int(node, "targets", 1);
    size_t size;
    const uint8_t *link = node_text(node, "post_transform", &size);
    *r = (regressor){.columns = x->count, .link = link ? MODEL_NONE : POST_NONE};
    if (targets < 1 || targets > MODEL_ROW_MAX || !weights ||
        weights->n_floats != (uint64_t)targets * x->count)
        return node_error(node, err, "%zu coefficients for %lld targets of %u columns",
                          weights ? weights->n_floats : (size_t)0, (long long)targets, x->count);
    r->rows = (uint32_t)targets;
    r->coefficients = weights->floats;
    if (bias && bias->n_floats && bias->n_floats != r->rows)
        return node_error(node, err, "%zu intercepts for %u targets", bias->n_floats, r->rows);
    r->intercepts = bias && bias->n_floats ? bias->floats : NULL;
    for (size_t i = 0; i < weights->n_floats; i++)
        if (!isfinite(weights->floats[i])) return node_error(node, err, "a coefficient is not finite");
    for (uint32_t i = 0; r->intercepts && i < r->rows; i++)
        if (!isfinite(r->intercepts[i])) return node_error(node, err, "an intercept is not finite");
    for (size_t i = 0; link && i < sizeof links / sizeof *links; i++)
        if (size == strlen(links[i].name) && memcmp(link, links[i].name, size) == 0) r->link = links[i].link;
    return r->link == MODEL_NONE ? node_error(node, err, "an unknown post_transform") : CKKS_OK;
}

static ckks_status regressor_evaluate(evaluation *e, ckks_error *err) {
    regressor r;
    const tensor *x = e->in[0];
    ckks_status rc = regressor_read(&r, e->node, x, err);
    if (rc != CKKS_OK) return rc;
    const int64_t dims[2] = {1, r.rows};
    if ((rc = output_shape(e, 0, dims, 2, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < r.rows; i++) {
        double sum = r.intercepts ? (double)r.intercepts[i] : 0;
        for (uint32_t k = 0; k < r.columns; k++)
            sum += (double)r.coefficients[(size_t)i * r.columns + k] * x->data[k];
        e->out[0]->data[i] = sum;
    }
    if (!e->scores_only) classifier_apply_link(e->out[0]->data, r.rows, r.link);
    return CKKS_OK;
}

static ckks_status regressor_lower(lowering *l, const model_node *node, ckks_error *err) {
    regressor r;
    sparse *matrix;
    ckks_status rc = regressor_read(&r, node, &l->model->values[node->inputs[0]].sample, err);
    if (rc != CKKS_OK) return rc;
    rc = sparse_create(&matrix, l->memory, r.rows, r.columns, (uint64_t)r.rows * r.columns, err);
    if (rc != CKKS_OK) return rc;
    double *bias = arena_take(l->memory, r.rows, sizeof *bias);
    if (!bias) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a layer");
    for (uint32_t i = 0, entry = 0; i < r.rows; i++) {
        bias[i] = r.intercepts ? (double)r.intercepts[i] : 0;
        for (uint32_t k = 0; k < r.columns; k++, entry++) {
            matrix->column[entry] = k;
            matrix->value[entry] = (double)r.coefficients[entry];
        }
        matrix->row_start[i + 1] = entry;
    }
    if ((rc = lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, bias, err)) != CKKS_OK) return rc;
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
