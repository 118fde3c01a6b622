/*
 * Sums over axes: ReduceSum, ReduceMean and ReduceSumSquare. The others of the family compare or multiply;
 * they are computed for constants (shape arithmetic) and refused for encrypted values.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

typedef struct reduction {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank, count; /* of the output */
    uint32_t run;         /* elements that one output element takes */
    uint32_t *place;      /* [input count]: the output element that each input element goes to */
} reduction;

/* which axes go away */
static ckks_status reduced_axes(bool *is_reduced, const model_node *node, const tensor *const *in,
                                arena *memory, ckks_error *err) {
    number_list axes;
    ckks_status rc = node_list(&axes, node, in, 1, "axes", memory, err);
    if (rc == CKKS_OK) rc = node_axes(is_reduced, node, &axes, in[0]->rank, err);
    if (rc != CKKS_OK || axes.count) return rc;
    const bool is_none = node_int(node, "noop_with_empty_axes", 0) != 0;
    for (uint32_t i = 0; i < in[0]->rank; i++) is_reduced[i] = !is_none;
    return CKKS_OK;
}

static ckks_status reduction_read(reduction *r, const model_node *node, const tensor *const *in,
                                  arena *memory, ckks_error *err) {
    const tensor *x = in[0];
    bool is_reduced[TENSOR_RANK_MAX];
    uint32_t stride[TENSOR_RANK_MAX] = {0};
    const bool keeps = node_int(node, "keepdims", 1) != 0;
    ckks_status rc = reduced_axes(is_reduced, node, in, memory, err);
    if (rc != CKKS_OK) return rc;
    *r = (reduction){.count = 1, .run = 1};
    for (uint32_t i = x->rank; i-- > 0;) {
        if (is_reduced[i]) {
            r->run *= x->dims[i];
            continue;
        }
        stride[i] = r->count;
        r->count *= x->dims[i];
    }
    for (uint32_t i = 0; i < x->rank; i++)
        if (!is_reduced[i] || keeps) r->dims[r->rank++] = is_reduced[i] ? 1 : x->dims[i];
    r->place = arena_take(memory, x->count, sizeof *r->place);
    if (!r->place) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t flat = 0; flat < x->count; flat++) {
        uint32_t rest = flat;
        for (uint32_t i = x->rank; i-- > 0;) {
            r->place[flat] += rest % x->dims[i] * stride[i];
            rest /= x->dims[i];
        }
    }
    return CKKS_OK;
}

typedef enum kind { SUM, MEAN, SUM_SQUARE, L1, L2, MAXIMUM, MINIMUM, PRODUCT } kind;

static kind kind_of(const model_node *node) {
    static const char *const names[] = {"ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL1",
                                        "ReduceL2",  "ReduceMax",  "ReduceMin",       "ReduceProd"};
    for (int i = 0; i < 8; i++)
        if (strcmp(names[i], node->proto->op_type) == 0) return (kind)i;
    return SUM;
}

static double combined(kind k, double so_far, double x) {
    switch (k) {
    case SUM_SQUARE:
    case L2:
        return so_far + x * x;
    case L1:
        return so_far + fabs(x);
    case MAXIMUM:
        return fmax(so_far, x);
    case MINIMUM:
        return fmin(so_far, x);
    case PRODUCT:
        return so_far * x;
    default:
        return so_far + x;
    }
}

static ckks_status reduce_evaluate(evaluation *e, ckks_error *err) {
    reduction r = {0};
    const tensor *x = e->in[0];
    const kind k = kind_of(e->node);
    ckks_status rc = reduction_read(&r, e->node, e->in, e->memory, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, r.dims, r.rank, err);
    if (rc != CKKS_OK) return rc;
    double *y = e->out[0]->data;
    const double start = k == MAXIMUM ? -INFINITY : k == MINIMUM ? INFINITY : k == PRODUCT ? 1 : 0;
    for (uint32_t i = 0; i < r.count; i++) y[i] = start;
    for (uint32_t i = 0; i < x->count; i++) y[r.place[i]] = combined(k, y[r.place[i]], x->data[i]);
    for (uint32_t i = 0; i < r.count; i++) {
        if (k == MEAN) y[i] /= r.run;
        if (k == L2) y[i] = sqrt(y[i]);
    }
    e->out[0]->is_integer = x->is_integer;
    return CKKS_OK;
}

/* counts, then fills: input elements of a row come in order */
static ckks_status reduction_matrix(sparse **out, const reduction *r, uint32_t input_count, double value,
                                    arena *memory, const model_node *node, ckks_error *err) {
    const ckks_status rc = sparse_create(out, memory, r->count, input_count, input_count, err);
    if (rc != CKKS_OK) return rc;
    sparse *m = *out;
    uint32_t *next = arena_take(memory, r->count, sizeof *next);
    if (!next) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a sum");
    for (uint32_t row = 0; row < r->count; row++) {
        next[row] = row * r->run;
        m->row_start[row + 1] = (row + 1) * r->run;
    }
    for (uint32_t i = 0; i < input_count; i++) {
        const uint32_t entry = next[r->place[i]]++;
        m->column[entry] = i, m->value[entry] = value;
    }
    return CKKS_OK;
}

static ckks_status reduce_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    reduction r = {0};
    sparse *matrix;
    const kind k = kind_of(node);
    if (k == MAXIMUM || k == MINIMUM)
        return lower_refuse(l, node, "a maximum needs comparisons, which encrypted numbers do not have",
                            "use ReduceMean and train again, or leave it to the client after decryption",
                            err);
    if (k == L1 || k == L2 || k == PRODUCT)
        return lower_refuse(l, node, "it is no sum of its input's elements or of their squares",
                            "use ReduceSum, ReduceMean or ReduceSumSquare, or leave it to the client", err);
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its axes depend on the input", "make them constants", err);
    if ((rc = reduction_read(&r, node, in, l->memory, err)) != CKKS_OK) return rc;
    const uint32_t count = in[0]->count;
    const double value = k == MEAN ? 1.0 / r.run : 1;
    if ((rc = reduction_matrix(&matrix, &r, count, value, l->memory, node, err)) != CKKS_OK) return rc;
    uint32_t from = lower_symbol(l, node, 0)->node;
    ir_node square = {.kind = IR_PRODUCT, .count = count, .a = from, .b = from, .source = node->label};
    if (k == SUM_SQUARE && (rc = ir_append(&from, l->graph, &square, err)) != CKKS_OK) return rc;
    return lower_linear(l, node, from, matrix, NULL, err);
}

#define REDUCE(type, flags, note)                                                                            \
    { "", type, 1, 2, 1, flags, reduce_evaluate, reduce_lower, note }

const operator_row operators_reduce[] = {
    REDUCE("ReduceSum", 0, "constant axes"),
    REDUCE("ReduceMean", 0, "constant axes"),
    REDUCE("ReduceSumSquare", 0, "constant axes"),
    REDUCE("ReduceL1", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "not a sum: use ReduceSum or ReduceSumSquare"),
    REDUCE("ReduceL2", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "not a sum: use ReduceSum or ReduceSumSquare"),
    REDUCE("ReduceMax", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "a maximum needs comparisons: use ReduceMean"),
    REDUCE("ReduceMin", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "a minimum needs comparisons: use ReduceMean"),
    REDUCE("ReduceProd", OPERATOR_CONSTANT_ONLY, NULL),
    {0},
};
