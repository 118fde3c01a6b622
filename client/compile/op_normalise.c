/*
 * Normalisations by statistics of the row itself: each group of elements, minus its mean or not, divided by
 * its deviation or norm. 1 / sqrt of a sum of squares (or 1 / a sum of sizes) is a polynomial where the
 * calibration rows keep that sum away from zero; the rest are layers and two products. LRN divides by a power
 * of a sum over neighbouring channels in the same way.
 */
#include "client/compile/normal.h"

#include <math.h>
#include <string.h>

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
}

/* ---- what the groups are ---- */

static ckks_status plain_scale(normal *n, const model_node *node, arena *memory, ckks_error *err) {
    const uint32_t count = n->groups.element_count;
    n->scale = arena_take(memory, count, sizeof *n->scale);
    n->bias = arena_take(memory, count, sizeof *n->bias);
    if (!n->scale || !n->bias) return no_memory(node, err);
    for (uint32_t i = 0; i < count; i++) n->scale[i] = 1;
    return CKKS_OK;
}

static ckks_status by_axes(normal *n, const model_node *node, const tensor *x, const bool *is_within,
                           arena *memory, ckks_error *err) {
    const ckks_status rc = groups_by_axes(&n->groups, node, x, is_within, memory, err);
    return rc == CKKS_OK ? plain_scale(n, node, memory, err) : rc;
}

/* scale and bias: number i / each % count for element i */
static ckks_status set_scale(normal *n, const model_node *node, const tensor *const *in, uint32_t wanted,
                             uint32_t each, ckks_error *err) {
    const tensor *scale = in[1], *bias = in[2];
    if (scale->count != wanted || (bias && bias->count != wanted))
        return node_error(node, err, "a scale of %u numbers for %u", scale->count, wanted);
    for (uint32_t i = 0; i < n->groups.element_count; i++) {
        n->scale[i] = scale->data[i / each % wanted];
        if (bias) n->bias[i] = bias->data[i / each % wanted];
    }
    return CKKS_OK;
}

static uint32_t plane_of(const tensor *x) {
    uint32_t plane = 1;
    for (uint32_t i = 2; i < x->rank; i++) plane *= x->dims[i];
    return plane;
}

static ckks_status set_epsilon(normal *n, const model_node *node, ckks_error *err) {
    n->epsilon = node_float(node, "epsilon", (double)1e-5f);
    n->share = 1.0 / n->groups.run;
    return n->epsilon >= 0 ? CKKS_OK : node_error(node, err, "epsilon is %g", n->epsilon);
}

/* LayerNormalization, RMSNormalization: all axes from `axis` on */
static ckks_status read_layer(normal *n, const model_node *node, const tensor *const *in, arena *memory,
                              ckks_error *err) {
    const tensor *x = in[0];
    bool is_within[TENSOR_RANK_MAX];
    uint32_t axis;
    ckks_status rc = node_axis(&axis, node, node_int(node, "axis", -1), x->rank, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->rank; i++) is_within[i] = i >= axis;
    if ((rc = by_axes(n, node, x, is_within, memory, err)) != CKKS_OK) return rc;
    n->is_centred = node->proto->op_type[0] == 'L';
    rc = set_epsilon(n, node, err);
    return rc == CKKS_OK ? set_scale(n, node, in, n->groups.run, 1, err) : rc;
}

/* InstanceNormalization, GroupNormalization: channels of one sample */
static ckks_status read_channels(normal *n, const onnx_model *m, const model_node *node,
                                 const tensor *const *in, arena *memory, ckks_error *err) {
    const tensor *x = in[0];
    const bool is_instance = node->proto->op_type[0] == 'I';
    if (x->rank < (is_instance ? 3 : 2)) return node_error(node, err, "its input has %u axes", x->rank);
    const int64_t channels = x->dims[1], parts = is_instance ? channels : node_int(node, "num_groups", 0);
    if (parts < 1 || channels % parts)
        return node_error(node, err, "%lld groups of %lld channels", (long long)parts, (long long)channels);
    const uint32_t each = (uint32_t)(channels / parts), plane = plane_of(x);
    ckks_status rc = groups_by_runs(&n->groups, node, x, each * plane, memory, err);
    if (rc == CKKS_OK) rc = plain_scale(n, node, memory, err);
    if (rc == CKKS_OK) rc = set_epsilon(n, node, err);
    if (rc != CKKS_OK) return rc;
    n->is_centred = true;
    /* a scale for each group before version 21, for each channel since */
    const bool by_channel = is_instance || m->opset >= 21;
    return by_channel ? set_scale(n, node, in, (uint32_t)channels, plane, err)
                      : set_scale(n, node, in, (uint32_t)parts, each * plane, err);
}

static ckks_status read_mean_variance(normal *n, const model_node *node, const tensor *const *in,
                                      arena *memory, ckks_error *err) {
    static int64_t usual[] = {0, 2, 3};
    number_list axes;
    bool is_within[TENSOR_RANK_MAX];
    ckks_status rc = node_list(&axes, node, in, MODEL_NONE, "axes", memory, err);
    if (rc == CKKS_OK && !axes.is_present) axes = (number_list){true, 3, usual};
    if (rc == CKKS_OK) rc = node_axes(is_within, node, &axes, in[0]->rank, err);
    if (rc == CKKS_OK) rc = by_axes(n, node, in[0], is_within, memory, err);
    if (rc != CKKS_OK) return rc;
    n->is_centred = true, n->share = 1.0 / n->groups.run, n->outside = 1e-9;
    return CKKS_OK;
}

static ckks_status read_norm(normal *n, const model_node *node, const tensor *const *in, arena *memory,
                             ckks_error *err) {
    bool is_within[TENSOR_RANK_MAX] = {false};
    uint32_t axis;
    const int64_t p = node_int(node, "p", 2);
    ckks_status rc = node_axis(&axis, node, node_int(node, "axis", -1), in[0]->rank, err);
    if (rc != CKKS_OK) return rc;
    if (p != 1 && p != 2) return node_error(node, err, "a norm of order %lld", (long long)p);
    is_within[axis] = true;
    rc = by_axes(n, node, in[0], is_within, memory, err);
    n->share = 1, n->takes_sizes = p == 1;
    return rc;
}

static ckks_status normal_read(normal *n, const onnx_model *m, const model_node *node,
                               const tensor *const *in, arena *memory, ckks_error *err) {
    if (!in[0]->rank || !in[0]->count) return node_error(node, err, "its input has no elements");
    switch (node->proto->op_type[0]) {
    case 'M':
        return read_mean_variance(n, node, in, memory, err);
    case 'I':
    case 'G':
        return read_channels(n, m, node, in, memory, err);
    default:
        return node->proto->op_type[1] == 'p' ? read_norm(n, node, in, memory, err)
                                              : read_layer(n, node, in, memory, err);
    }
}

/* ---- in the clear ---- */

/* 1 / deviation of group k, around *mean */
static double group_inverse(double *mean, const normal *n, const double *x, uint32_t k) {
    double sum = 0;
    const uint32_t run = n->groups.run, *member = n->groups.member + (size_t)k * run;
    *mean = 0;
    for (uint32_t i = 0; n->is_centred && i < run; i++) *mean += x[member[i]] / run;
    for (uint32_t i = 0; i < run; i++) {
        const double off = x[member[i]] - *mean;
        sum += n->share * (n->takes_sizes ? fabs(off) : off * off);
    }
    sum += n->epsilon;
    return 1 / ((n->takes_sizes ? sum : sqrt(sum)) + n->outside);
}

static ckks_status normal_evaluate(evaluation *e, ckks_error *err) {
    normal n = {0};
    const groups *g = &n.groups;
    ckks_status rc = normal_read(&n, e->model, e->node, e->in, e->memory, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, e->in[0], err);
    for (uint32_t k = 1; rc == CKKS_OK && k < e->node->output_count; k++)
        rc = output_shape(e, k, g->dims, e->in[0]->rank, err);
    for (uint32_t k = 0; rc == CKKS_OK && k < g->count; k++) {
        double mean;
        const double inverse = group_inverse(&mean, &n, e->in[0]->data, k);
        for (uint32_t i = k * g->run; i < (k + 1) * g->run; i++) {
            const uint32_t at = g->member[i];
            e->out[0]->data[at] = (e->in[0]->data[at] - mean) * inverse * n.scale[at] + n.bias[at];
        }
        if (e->node->output_count > 1) e->out[1]->data[k] = mean;
        if (e->node->output_count > 2) e->out[2]->data[k] = inverse;
    }
    return rc;
}

/* ---- encrypted ---- */

/* 1 / sqrt(share * sum of squares + epsilon), or 1 / sum of sizes: one number for each group */
static ckks_status append_inverse(uint32_t *out, lowering *l, const model_node *node, const normal *n,
                                  uint32_t from, ckks_error *err) {
    const groups *g = &n->groups;
    ir_node size = {
        .kind = IR_PRODUCT, .count = g->element_count, .a = from, .b = from, .source = node->label};
    ir_node root = {.kind = IR_ACTIVATION, .count = g->count, .function = IR_POW, .source = node->label};
    double *bias = arena_take(l->memory, g->count, sizeof *bias);
    uint32_t sizes;
    if (!bias) return no_memory(node, err);
    root.parameters[0] = n->takes_sizes ? -1 : -0.5;
    if (n->takes_sizes) size.kind = IR_ACTIVATION, size.function = IR_ABS;
    for (uint32_t k = 0; k < g->count; k++) bias[k] = n->epsilon;
    ckks_status rc = ir_append(&sizes, l->graph, &size, err);
    if (rc == CKKS_OK) rc = groups_append_sum(&root.a, l, node, g, sizes, n->share, bias, err);
    return rc == CKKS_OK ? ir_append(out, l->graph, &root, err) : rc;
}

ckks_status normal_append(lowering *l, const model_node *node, const normal *n, uint32_t from,
                          ckks_error *err) {
    const uint32_t count = n->groups.element_count;
    ir_node made = {.kind = IR_PRODUCT, .count = count, .a = from, .source = node->label};
    ckks_status rc = CKKS_OK;
    uint32_t number;
    sparse *m;
    if (n->is_centred) rc = groups_append_centred(&made.a, l, node, &n->groups, made.a, err);
    if (rc == CKKS_OK) rc = append_inverse(&number, l, node, n, made.a, err);
    if (rc == CKKS_OK) rc = groups_append_spread(&made.b, l, node, &n->groups, number, n->scale, err);
    if (rc == CKKS_OK) rc = ir_append(&number, l->graph, &made, err);
    if (rc == CKKS_OK) rc = sparse_gather(&m, l->memory, count, count, NULL, NULL, err);
    return rc == CKKS_OK ? lower_linear(l, node, number, m, n->bias, err) : rc;
}

static ckks_status normal_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    normal n = {0};
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its scale depends on the input", "make it an initialiser", err);
    if ((rc = normal_read(&n, l->model, node, in, l->memory, err)) != CKKS_OK) return rc;
    return normal_append(l, node, &n, lower_symbol(l, node, 0)->node, err);
}

/* ---- LRN: x * (bias + alpha / size * sum of squares of `size` neighbouring channels) ^ -beta ---- */

typedef struct response {
    uint32_t channels, plane, before, after; /* channels on either side that count */
    double share, beta, bias;
} response;

static ckks_status response_read(response *r, const model_node *node, const tensor *x, ckks_error *err) {
    const int64_t size = node_int(node, "size", 0);
    if (x->rank < 2 || !x->count || !x->dims[1])
        return node_error(node, err, "its input has %u axes", x->rank);
    if (size < 1 || size > COMPUTED_MAX) return node_error(node, err, "a size of %lld", (long long)size);
    *r = (response){.channels = x->dims[1], .plane = plane_of(x)};
    r->before = (uint32_t)(size - 1) / 2, r->after = (uint32_t)size - 1 - r->before;
    r->share = node_float(node, "alpha", (double)1e-4f) / (double)size;
    r->beta = node_float(node, "beta", 0.75);
    r->bias = node_float(node, "bias", 1);
    if (!isfinite(r->share) || !isfinite(r->beta) || !isfinite(r->bias))
        return node_error(node, err, "a parameter is not finite");
    return CKKS_OK;
}

/* the channels that count for channel c: [*first, *end) */
static void response_window(uint32_t *first, uint32_t *end, const response *r, uint32_t c) {
    *first = c > r->before ? c - r->before : 0;
    *end = r->after < r->channels - c ? c + r->after + 1 : r->channels;
}

static ckks_status response_evaluate(evaluation *e, ckks_error *err) {
    response r = {.channels = 1, .plane = 1};
    const tensor *x = e->in[0];
    ckks_status rc = response_read(&r, e->node, x, err);
    if (rc == CKKS_OK) rc = output_like(e, 0, x, err);
    if (rc == CKKS_OK) rc = evaluation_work(e, x->count, (uint64_t)r.before + r.after + 1, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < x->count; i++) {
        const uint32_t c = i / r.plane % r.channels;
        uint32_t first, end;
        double sum = 0;
        response_window(&first, &end, &r, c);
        for (uint32_t k = first; k < end; k++) {
            const double value = x->data[i - c * r.plane + k * r.plane];
            sum += value * value;
        }
        e->out[0]->data[i] = x->data[i] * pow(r.bias + r.share * sum, -r.beta);
    }
    return rc;
}

static ckks_status response_lower(lowering *l, const model_node *node, ckks_error *err) {
    response r = {.channels = 1, .plane = 1};
    const tensor *x = &l->model->values[node->inputs[0]].sample;
    const uint32_t from = lower_symbol(l, node, 0)->node, count = x->count;
    ir_node square = {.kind = IR_PRODUCT, .count = count, .a = from, .b = from, .source = node->label};
    ir_node power = {.kind = IR_ACTIVATION, .count = count, .function = IR_POW, .source = node->label};
    ir_node made = {.kind = IR_PRODUCT, .count = count, .a = from};
    sparse *m;
    uint32_t squares, first, end;
    ckks_status rc = response_read(&r, node, x, err);
    if (rc != CKKS_OK) return rc;
    uint64_t entries = 0, entry = 0;
    for (uint32_t c = 0; c < r.channels; c++) {
        response_window(&first, &end, &r, c);
        entries += (uint64_t)(end - first) * (count / r.channels);
    }
    double *bias = arena_take(l->memory, count, sizeof *bias);
    if (!bias) return no_memory(node, err);
    if ((rc = sparse_create(&m, l->memory, count, count, entries, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t c = i / r.plane % r.channels;
        response_window(&first, &end, &r, c);
        for (uint32_t k = first; k < end; k++, entry++)
            m->column[entry] = i - c * r.plane + k * r.plane, m->value[entry] = r.share;
        m->row_start[i + 1] = (uint32_t)entry;
        bias[i] = r.bias;
    }
    power.parameters[0] = -r.beta;
    if ((rc = lower_count(l, node, m, err)) == CKKS_OK) rc = ir_append(&squares, l->graph, &square, err);
    if (rc == CKKS_OK) rc = ir_linear(&power.a, l->graph, squares, m, bias, node->label, err);
    if (rc == CKKS_OK) rc = ir_append(&made.b, l->graph, &power, err);
    return rc == CKKS_OK ? lower_append(l, node, &made, err) : rc;
}

#define VARIANCE "polynomial where calibration rows keep the variance away from zero"
#define NORM     "polynomial where calibration rows keep the norm away from zero"

const operator_row operators_normalise[] = {
    {"", "LayerNormalization", 2, 3, 3, 0, normal_evaluate, normal_lower, "its first output; " VARIANCE},
    {"", "InstanceNormalization", 3, 3, 1, 0, normal_evaluate, normal_lower, VARIANCE},
    {"", "GroupNormalization", 3, 3, 1, 0, normal_evaluate, normal_lower, VARIANCE},
    {"", "MeanVarianceNormalization", 1, 1, 1, 0, normal_evaluate, normal_lower,
     VARIANCE "; the batch axis is one row"},
    {"", "RMSNormalization", 2, 2, 1, 0, normal_evaluate, normal_lower, NORM},
    {"", "LpNormalization", 1, 1, 1, 0, normal_evaluate, normal_lower, NORM},
    {"", "LRN", 1, 1, 1, 0, response_evaluate, response_lower, "polynomial"},
    {0},
};
