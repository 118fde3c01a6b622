/*
 * BatchNormalization as it is used for inference: its statistics are constants, so it is a factor and an
 * offset for each channel. The compiler folds them into the layer before or after it.
 */
#include "client/compile/operator.h"

#include <math.h>

/* y = x * factor + offset for channel c */
static void channel_affine(double *factor, double *offset, const model_node *node, const tensor *const in[5],
                           uint32_t c) {
    *factor = in[1]->data[c] / sqrt(in[4]->data[c] + node_float(node, "epsilon", (double)1e-5f));
    *offset = in[2]->data[c] - in[3]->data[c] * *factor;
}

static ckks_status check_channels(const model_node *node, const tensor *x, const tensor *const in[5],
                                  ckks_error *err) {
    static const char *const names[] = {"scale", "bias", "mean", "variance"};
    const uint32_t channels = x->rank > 1 ? x->dims[1] : 1;
    if (!x->rank) return node_error(node, err, "its input has no axes");
    for (uint32_t k = 1; k < 5; k++)
        if (in[k]->rank != 1 || in[k]->count != channels)
            return node_error(node, err, "its %s has %u numbers for %u channels", names[k - 1], in[k]->count,
                              channels);
    if (node_int(node, "training_mode", 0))
        return ckks_error_set(err, CKKS_UNSUPPORTED, node->label,
                              "BatchNormalization in training mode takes the statistics of the batch: export "
                              "the model in evaluation mode (torch: model.eval())");
    /* version 7 and 8 may normalise each element by itself */
    if (!node_int(node, "spatial", 1))
        return ckks_error_set(err, CKKS_UNSUPPORTED, node->label,
                              "BatchNormalization with spatial = 0: convert the model to operator set 9");
    return CKKS_OK;
}

static uint32_t plane_count(const tensor *x) {
    uint32_t count = 1;
    for (uint32_t i = 2; i < x->rank; i++) count *= x->dims[i];
    return count;
}

static ckks_status batch_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    ckks_status rc = check_channels(e->node, x, e->in, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, x, err);
    const uint32_t plane = rc == CKKS_OK ? plane_count(x) : 1;
    for (uint32_t i = 0; rc == CKKS_OK && i < x->count; i++) {
        double factor, offset;
        channel_affine(&factor, &offset, e->node, e->in, x->rank > 1 ? i / plane % x->dims[1] : 0);
        e->out[0]->data[i] = x->data[i] * factor + offset;
    }
    return rc;
}

static ckks_status batch_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor *x = &l->model->values[node->inputs[0]].sample, *in[5] = {x};
    sparse *matrix;
    for (uint32_t k = 1; k < 5; k++) {
        in[k] = &l->model->values[node->inputs[k]].constant;
        if (!in[k]->data)
            return lower_refuse(l, node, "its statistics depend on the input",
                                "export the model in evaluation mode", err);
    }
    double *factor = arena_take(l->memory, x->count, sizeof *factor);
    double *offset = arena_take(l->memory, x->count, sizeof *offset);
    if (!factor || !offset)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for constants");
    const uint32_t plane = plane_count(x);
    for (uint32_t i = 0; i < x->count; i++) {
        channel_affine(&factor[i], &offset[i], node, in, x->rank > 1 ? i / plane % x->dims[1] : 0);
        if (!isfinite(factor[i]) || !isfinite(offset[i]))
            return ckks_error_set(err, CKKS_OUT_OF_RANGE, node->label, "channel %u has a negative variance",
                                  x->rank > 1 ? i / plane % x->dims[1] : 0);
    }
    const ckks_status rc = sparse_gather(&matrix, l->memory, x->count, x->count, NULL, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, offset, err) : rc;
}

const operator_row operators_normalization[] = {
    {"", "BatchNormalization", 5, 5, 5, 0, batch_evaluate, batch_lower, "constant statistics"},
    {0},
};
