/*
 * ai.onnx.ml's LinearRegressor, and SVMRegressor with the linear kernel, whose support vectors add up to one
 * row of weights: dense layers; the link function is the client's.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

typedef struct regressor {
    uint32_t columns, rows;
    double *weights; /* [rows][columns] */
    double *bias;    /* [rows] */
    uint32_t link;
} regressor;

static bool text_is(const uint8_t *text, size_t size, const char *expected) {
    return text && size == strlen(expected) && memcmp(text, expected, size) == 0;
}

static ckks_status regressor_link(regressor *r, const model_node *node, ckks_error *err) {
    static const struct {
        const char *name;
        uint32_t link;
    } links[] = {{"NONE", POST_NONE},
                 {"LOGISTIC", POST_SIGMOID},
                 {"SOFTMAX", POST_SOFTMAX},
                 {"SOFTMAX_ZERO", POST_SOFTMAX_ZERO},
                 {"PROBIT", POST_PROBIT}};
    size_t size;
    const uint8_t *link = node_text(node, "post_transform", &size);
    r->link = link ? MODEL_NONE : POST_NONE;
    for (size_t i = 0; link && i < sizeof links / sizeof *links; i++)
        if (text_is(link, size, links[i].name)) r->link = links[i].link;
    return r->link == MODEL_NONE ? node_error(node, err, "an unknown post_transform") : CKKS_OK;
}

static ckks_status regressor_room(regressor *r, const model_node *node, arena *memory, ckks_error *err) {
    r->weights = arena_take(memory, (uint64_t)r->rows * r->columns, sizeof *r->weights);
    r->bias = arena_take(memory, r->rows, sizeof *r->bias);
    if (r->weights && r->bias) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a layer");
}

/* float attributes, all finite */
static ckks_status list_read(const float **out, size_t *count, const model_node *node, const char *name,
                             ckks_error *err) {
    const Onnx__Attribute *a = node_attribute(node, name);
    *out = a ? a->floats : NULL;
    *count = a ? a->n_floats : 0;
    for (size_t i = 0; i < *count; i++)
        if (!isfinite((*out)[i])) return node_error(node, err, "%s has a number that is not finite", name);
    return CKKS_OK;
}

static ckks_status linear_read(regressor *r, const model_node *node, arena *memory, ckks_error *err) {
    const int64_t targets = node_int(node, "targets", 1);
    const float *weights, *bias;
    size_t weight_count, bias_count;
    ckks_status rc = list_read(&weights, &weight_count, node, "coefficients", err);
    if (rc == CKKS_OK) rc = list_read(&bias, &bias_count, node, "intercepts", err);
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

/* sum over supports of coefficient * (support . x), plus rho; without supports coefficients are weights */
static ckks_status support_read(regressor *r, const model_node *node, arena *memory, ckks_error *err) {
    const float *coefficients, *vectors, *rho;
    size_t count, vector_count, rho_count;
    ckks_status rc = list_read(&coefficients, &count, node, "coefficients", err);
    if (rc == CKKS_OK) rc = list_read(&vectors, &vector_count, node, "support_vectors", err);
    if (rc == CKKS_OK) rc = list_read(&rho, &rho_count, node, "rho", err);
    if (rc != CKKS_OK) return rc;
    const bool has_supports = node_int(node, "n_supports", 0) > 0;
    const uint64_t wanted = has_supports ? (uint64_t)count * r->columns : 0;
    if (!count || vector_count != wanted || (has_supports && !vectors) ||
        (!has_supports && count != r->columns) || rho_count > 1)
        return node_error(node, err, "%zu coefficients and %zu numbers of support vectors for %u columns",
                          count, vector_count, r->columns);
    r->rows = 1;
    if ((rc = regressor_room(r, node, memory, err)) != CKKS_OK) return rc;
    for (size_t i = 0; i < count && !has_supports; i++) r->weights[i] = (double)coefficients[i];
    for (size_t i = 0; i < count && has_supports; i++)
        for (uint32_t k = 0; k < r->columns; k++)
            r->weights[k] += (double)coefficients[i] * (double)vectors[i * r->columns + k];
    r->bias[0] = rho_count ? (double)rho[0] : 0;
    return CKKS_OK;
}

static bool is_support(const model_node *node) {
    return strcmp(node->proto->op_type, "SVMRegressor") == 0;
}

static bool is_linear_kernel(const model_node *node) {
    size_t size;
    const uint8_t *kernel = node_text(node, "kernel_type", &size);
    return !kernel || text_is(kernel, size, "LINEAR");
}

static ckks_status regressor_read(regressor *r, const model_node *node, const tensor *x, arena *memory,
                                  ckks_error *err) {
    *r = (regressor){.columns = x->count};
    const ckks_status rc =
        is_support(node) ? support_read(r, node, memory, err) : linear_read(r, node, memory, err);
    return rc == CKKS_OK ? regressor_link(r, node, err) : rc;
}

static ckks_status regressor_evaluate(evaluation *e, ckks_error *err) {
    regressor r;
    const tensor *x = e->in[0];
    if (is_support(e->node) && (!is_linear_kernel(e->node) || node_int(e->node, "one_class", 0)))
        return output_like(e, 0, &(tensor){.rank = 2, .dims = {1, 1}, .count = 1},
                           err); /* refused when lowered */
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
    if (is_support(node) && !is_linear_kernel(node))
        return lower_refuse(
            l, node, "its kernel compares the row with every support vector",
            "use a linear kernel (scikit-learn: SVR(kernel=\"linear\"), LinearSVR), or a small "
            "network on the same table",
            err);
    if (is_support(node) && node_int(node, "one_class", 0))
        return lower_refuse(l, node, "a decision by the sign of an encrypted number",
                            "export the score, and let the client compare it", err);
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
    {"ai.onnx.ml", "SVMRegressor", 1, 1, 1, 0, regressor_evaluate, regressor_lower, "linear kernel only"},
    {0},
};
