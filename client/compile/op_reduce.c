/*
 * Sums over axes, of numbers, squares or sizes, and products. The others of the family compare; they are
 * computed for constants (shape arithmetic) and refused for encrypted values.
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

typedef enum kind { SUM, MEAN, SUM_SQUARE, L1, L2, MAXIMUM, MINIMUM, PRODUCT, LOG_SUM, LOG_SUM_EXP } kind;

static kind kind_of(const model_node *node) {
    static const char *const names[] = {"ReduceSum",    "ReduceMean",     "ReduceSumSquare", "ReduceL1",
                                        "ReduceL2",     "ReduceMax",      "ReduceMin",       "ReduceProd",
                                        "ReduceLogSum", "ReduceLogSumExp"};
    for (int i = 0; i < 10; i++)
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
    case LOG_SUM_EXP:
        return so_far + exp(x);
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
        if (k == LOG_SUM || k == LOG_SUM_EXP) y[i] = log(y[i]);
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

#define FACTORS_MAX 32u

/* factor `number` of each product: the matrix that picks it */
static ckks_status append_factor(uint32_t *out, lowering *l, const model_node *node, const reduction *r,
                                 uint32_t input_count, uint32_t number, ckks_error *err) {
    uint32_t *index = arena_take(l->memory, r->count, sizeof *index);
    uint32_t *seen = arena_take(l->memory, r->count, sizeof *seen);
    sparse *m;
    if (!index || !seen)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a product");
    for (uint32_t i = 0; i < input_count; i++)
        if (seen[r->place[i]]++ == number) index[r->place[i]] = i;
    const ckks_status rc = sparse_gather(&m, l->memory, r->count, input_count, index, NULL, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, lower_symbol(l, node, 0)->node, m, NULL, node->label, err)
                         : rc;
}

/* factors in pairs, pairs of pairs: as few levels as there can be */
static ckks_status lower_product(lowering *l, const model_node *node, const reduction *r,
                                 uint32_t input_count, ckks_error *err) {
    uint32_t nodes[FACTORS_MAX], count = r->run;
    if (!count || count > FACTORS_MAX)
        return lower_refuse(l, node, "a product of no or very many numbers",
                            "products of up to 32 numbers are compiled: write it otherwise", err);
    for (uint32_t i = 0; i < count; i++) {
        const ckks_status rc = append_factor(&nodes[i], l, node, r, input_count, i, err);
        if (rc != CKKS_OK) return rc;
    }
    for (; count > 1; count = (count + 1) / 2)
        for (uint32_t i = 0; i < count / 2; i++) {
            ir_node made = {.kind = IR_PRODUCT,
                            .count = r->count,
                            .a = nodes[2 * i],
                            .b = nodes[2 * i + 1],
                            .source = node->label};
            const ckks_status rc = ir_append(&nodes[i], l->graph, &made, err);
            if (rc != CKKS_OK) return rc;
            if (i + 1 == count / 2 && count % 2) nodes[i + 1] = nodes[count - 1];
        }
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_ENCRYPTED, .node = nodes[0]};
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
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its axes depend on the input", "make them constants", err);
    if ((rc = reduction_read(&r, node, in, l->memory, err)) != CKKS_OK) return rc;
    if (k == PRODUCT) return lower_product(l, node, &r, in[0]->count, err);
    const uint32_t count = in[0]->count;
    const double value = k == MEAN ? 1.0 / r.run : 1;
    if ((rc = reduction_matrix(&matrix, &r, count, value, l->memory, node, err)) != CKKS_OK) return rc;
    uint32_t from = lower_symbol(l, node, 0)->node;
    ir_node square = {.kind = IR_PRODUCT, .count = count, .a = from, .b = from, .source = node->label};
    ir_node size = {.kind = IR_ACTIVATION, .count = count, .a = from, .source = node->label};
    ir_node root = {.kind = IR_ACTIVATION, .count = r.count, .function = IR_POW, .parameters = {0.5}};
    const bool is_log = k == LOG_SUM || k == LOG_SUM_EXP;
    size.function = k == L1 ? IR_ABS : IR_EXP;
    if (is_log) root.function = IR_LOG;
    if (k == SUM_SQUARE || k == L2) rc = ir_append(&from, l->graph, &square, err);
    if (k == L1 || k == LOG_SUM_EXP) rc = ir_append(&from, l->graph, &size, err);
    if (rc == CKKS_OK && k != L2 && !is_log) return lower_linear(l, node, from, matrix, NULL, err);
    if (rc == CKKS_OK) rc = ir_linear(&root.a, l->graph, from, matrix, NULL, node->label, err);
    return rc == CKKS_OK ? lower_append(l, node, &root, err) : rc;
}

#define REDUCE(type, flags, note)                                                                            \
    { "", type, 1, 2, 1, flags, reduce_evaluate, reduce_lower, note }

const operator_row operators_reduce[] = {
    REDUCE("ReduceSum", 0, "constant axes"),
    REDUCE("ReduceMean", 0, "constant axes"),
    REDUCE("ReduceSumSquare", 0, "constant axes"),
    REDUCE("ReduceL1", 0, "polynomial; constant axes"),
    REDUCE("ReduceL2", 0, "polynomial; where calibration rows stay above zero"),
    REDUCE("ReduceLogSum", 0, "polynomial; where calibration rows keep the sum above zero"),
    REDUCE("ReduceLogSumExp", 0, "polynomials"),
    REDUCE("ReduceMax", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "a maximum needs comparisons: use ReduceMean"),
    REDUCE("ReduceMin", OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED,
           "a minimum needs comparisons: use ReduceMean"),
    REDUCE("ReduceProd", 0, "of up to 32 numbers"),
    {0},
};
