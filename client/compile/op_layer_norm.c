/*
 * LayerNormalization and InstanceNormalization: each group of elements minus its mean, divided by its
 * deviation, which is 1 / sqrt of a sum of squares: a polynomial where the calibration rows keep that sum
 * away from zero.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

typedef struct normal {
    uint32_t count, run;   /* elements, and how many in a row belong to one group */
    uint32_t groups, axis; /* axis: the first of a group */
    double epsilon;
    uint32_t *place; /* [count]: of scale and bias */
} normal;

static bool is_layer(const model_node *node) {
    return node->proto->op_type[0] == 'L';
}

static ckks_status normal_read(normal *n, const model_node *node, const tensor *const *in, arena *memory,
                               ckks_error *err) {
    const tensor *x = in[0], *scale = in[1], *bias = in[2];
    const uint32_t first = is_layer(node) ? 0 : 2;
    uint32_t axis = first;
    ckks_status rc = CKKS_OK;
    if (x->rank < first + 1 || !x->count) return node_error(node, err, "its input has %u axes", x->rank);
    if (first == 0) rc = node_axis(&axis, node, node_int(node, "axis", -1), x->rank, err);
    if (rc != CKKS_OK) return rc;
    *n = (normal){.count = x->count, .run = 1, .epsilon = node_float(node, "epsilon", (double)1e-5f)};
    n->axis = axis;
    for (uint32_t i = axis; i < x->rank; i++) n->run *= x->dims[i];
    n->groups = n->count / n->run;
    if (!(n->epsilon >= 0)) return node_error(node, err, "epsilon is %g", n->epsilon);
    n->place = arena_take(memory, n->count, sizeof *n->place);
    if (!n->place) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    const uint32_t wanted = first == 0 ? n->run : x->dims[1];
    if (scale->count != wanted || (bias && bias->count != wanted))
        return node_error(node, err, "a scale of %u numbers for %u", scale->count, wanted);
    for (uint32_t i = 0; i < n->count; i++) n->place[i] = first == 0 ? i % n->run : i / n->run % x->dims[1];
    return CKKS_OK;
}

static ckks_status normal_evaluate(evaluation *e, ckks_error *err) {
    normal n = {0};
    const double *x = e->in[0]->data, *bias = e->in[2] ? e->in[2]->data : NULL;
    ckks_status rc = normal_read(&n, e->node, e->in, e->memory, err);
    int64_t dims[TENSOR_RANK_MAX];
    CKKS_ASSERT(rc != CKKS_OK || n.place);
    if (rc == CKKS_OK) rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; i < e->in[0]->rank; i++) dims[i] = i < n.axis ? e->in[0]->dims[i] : 1;
    for (uint32_t k = 1; rc == CKKS_OK && k < e->node->output_count; k++)
        rc = output_shape(e, k, dims, e->in[0]->rank, err);
    for (uint32_t g = 0; rc == CKKS_OK && g < n.groups; g++) {
        double mean = 0, square = 0;
        for (uint32_t i = g * n.run; i < (g + 1) * n.run; i++) mean += x[i] / n.run;
        for (uint32_t i = g * n.run; i < (g + 1) * n.run; i++)
            square += (x[i] - mean) * (x[i] - mean) / n.run;
        for (uint32_t i = g * n.run; i < (g + 1) * n.run; i++)
            e->out[0]->data[i] = (x[i] - mean) / sqrt(square + n.epsilon) * e->in[1]->data[n.place[i]] +
                                 (bias ? bias[n.place[i]] : 0);
        if (e->node->output_count > 1) e->out[1]->data[g] = mean;
        if (e->node->output_count > 2) e->out[2]->data[g] = 1 / sqrt(square + n.epsilon);
    }
    return rc;
}

/* the same in two layers, for groups whose square is too large for one */
static ckks_status append_centred_twice(uint32_t *out, lowering *l, const model_node *node, const normal *n,
                                        uint32_t from, ckks_error *err) {
    ir_node made = {.kind = IR_LINEAR, .count = n->count, .term_count = 2, .source = node->label};
    double *ones = arena_take(l->memory, 2 * (uint64_t)n->count, sizeof *ones);
    uint32_t *group = arena_take(l->memory, n->count, sizeof *group), mean;
    sparse *sums, *same, *spread;
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, n->count, sizeof *made.bias);
    if (!ones || !group || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    ckks_status rc = sparse_create(&sums, l->memory, n->groups, n->count, n->count, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < n->count; i++) {
        sums->column[i] = i, sums->value[i] = 1.0 / n->run;
        ones[i] = 1, ones[n->count + i] = -1, group[i] = i / n->run;
    }
    for (uint32_t g = 0; g < n->groups; g++) sums->row_start[g + 1] = (g + 1) * n->run;
    rc = ir_linear(&mean, l->graph, from, sums, NULL, node->label, err);
    if (rc == CKKS_OK) rc = sparse_gather(&same, l->memory, n->count, n->count, NULL, ones, err);
    if (rc == CKKS_OK)
        rc = sparse_gather(&spread, l->memory, n->count, n->groups, group, ones + n->count, err);
    if (rc != CKKS_OK) return rc;
    made.terms[0] = (ir_term){from, same}, made.terms[1] = (ir_term){mean, spread};
    return ir_append(out, l->graph, &made, err);
}

#define SQUARE_MAX (UINT64_C(1) << 18)

/* x minus the mean of its group */
static ckks_status append_centred(uint32_t *out, lowering *l, const model_node *node, const normal *n,
                                  uint32_t from, ckks_error *err) {
    sparse *m;
    if ((uint64_t)n->count * n->run > SQUARE_MAX) return append_centred_twice(out, l, node, n, from, err);
    ckks_status rc = sparse_create(&m, l->memory, n->count, n->count, (uint64_t)n->count * n->run, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0, entry = 0; i < n->count; i++) {
        const uint32_t start = i / n->run * n->run;
        for (uint32_t k = start; k < start + n->run; k++, entry++) {
            m->column[entry] = k;
            m->value[entry] = (k == i ? 1.0 : 0.0) - 1.0 / n->run;
        }
        m->row_start[i + 1] = entry;
    }
    rc = lower_count(l, node, m, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, from, m, NULL, node->label, err) : rc;
}

/* 1 / sqrt(mean of squares + epsilon), one number for each group */
static ckks_status append_inverse(uint32_t *out, lowering *l, const model_node *node, const normal *n,
                                  uint32_t centred, ckks_error *err) {
    ir_node square = {.kind = IR_PRODUCT, .count = n->count, .a = centred, .b = centred};
    ir_node root = {.kind = IR_ACTIVATION, .count = n->groups, .function = IR_POW, .parameters = {-0.5}};
    double *bias = arena_take(l->memory, n->groups, sizeof *bias);
    sparse *m;
    uint32_t squares;
    if (!bias) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    square.source = root.source = node->label;
    ckks_status rc = ir_append(&squares, l->graph, &square, err);
    if (rc == CKKS_OK) rc = sparse_create(&m, l->memory, n->groups, n->count, n->count, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < n->count; i++) m->column[i] = i, m->value[i] = 1.0 / n->run;
    for (uint32_t g = 0; g < n->groups; g++) m->row_start[g + 1] = (g + 1) * n->run, bias[g] = n->epsilon;
    rc = ir_linear(&root.a, l->graph, squares, m, bias, node->label, err);
    return rc == CKKS_OK ? ir_append(out, l->graph, &root, err) : rc;
}

static ckks_status normal_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    normal n = {0};
    uint32_t inverse;
    sparse *m;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its scale depends on the input", "make it an initialiser", err);
    if ((rc = normal_read(&n, node, in, l->memory, err)) != CKKS_OK) return rc;
    CKKS_ASSERT(n.place);
    ir_node made = {.kind = IR_PRODUCT, .count = n.count, .source = node->label};
    double *factor = arena_take(l->memory, 2 * (uint64_t)n.count, sizeof *factor);
    uint32_t *group = arena_take(l->memory, n.count, sizeof *group);
    if (!factor || !group)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a row");
    for (uint32_t i = 0; i < n.count; i++) {
        group[i] = i / n.run;
        factor[i] = in[1]->data[n.place[i]];
        factor[n.count + i] = in[2] ? in[2]->data[n.place[i]] : 0;
    }
    rc = append_centred(&made.a, l, node, &n, lower_symbol(l, node, 0)->node, err);
    if (rc == CKKS_OK) rc = append_inverse(&inverse, l, node, &n, made.a, err);
    if (rc == CKKS_OK) rc = sparse_gather(&m, l->memory, n.count, n.groups, group, factor, err);
    if (rc == CKKS_OK) rc = ir_linear(&made.b, l->graph, inverse, m, NULL, node->label, err);
    if (rc == CKKS_OK) rc = ir_append(&inverse, l->graph, &made, err);
    for (uint32_t i = 0; i < n.count; i++) factor[i] = 1;
    if (rc == CKKS_OK) rc = sparse_gather(&m, l->memory, n.count, n.count, NULL, factor, err);
    return rc == CKKS_OK ? lower_linear(l, node, inverse, m, factor + n.count, err) : rc;
}

#define NOTE "its first output; polynomial where calibration rows keep the variance away from zero"

const operator_row operators_layer_norm[] = {
    {"", "LayerNormalization", 2, 3, 3, 0, normal_evaluate, normal_lower, NOTE},
    {"", "InstanceNormalization", 3, 3, 1, 0, normal_evaluate, normal_lower, NOTE},
    {0},
};
