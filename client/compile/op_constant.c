/*
 * What exporters write around shapes: Shape, Size, ConstantOfShape, Range, comparisons, logic and rounding.
 * They are computed while the model is read, where they depend on shapes and constants alone; on encrypted
 * values they are refused.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

/* ---- shapes ---- */

static ckks_status shape_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const int64_t rank = x->rank;
    int64_t start = node_int(e->node, "start", 0), end = node_int(e->node, "end", rank);
    if (start < 0) start += rank;
    if (end < 0) end += rank;
    start = start < 0 ? 0 : start > rank ? rank : start;
    end = end < start ? start : end > rank ? rank : end;
    const int64_t dims[1] = {end - start};
    const ckks_status rc = output_shape(e, 0, dims, 1, err);
    for (int64_t i = start; rc == CKKS_OK && i < end; i++) e->out[0]->data[i - start] = x->dims[i];
    e->out[0]->is_integer = true;
    return rc;
}

static ckks_status size_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = output_shape(e, 0, NULL, 0, err);
    if (rc == CKKS_OK) e->out[0]->data[0] = e->in[0]->count;
    e->out[0]->is_integer = true;
    return rc;
}

/* Of an encrypted value only the shape is read: its symbol is a constant before the walk comes here. */
static ckks_status never_lowered(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse(l, node, "its input's shape is not known", "export with constant shapes", err);
}

static ckks_status fill_evaluate(evaluation *e, ckks_error *err) {
    number_list shape;
    tensor value = {0};
    const Onnx__Attribute *a = node_attribute(e->node, "value");
    ckks_status rc = node_list(&shape, e->node, e->in, 0, "shape", e->memory, err);
    if (rc == CKKS_OK && a && a->t) rc = tensor_from_message(&value, a->t, e->memory, e->node->label, err);
    if (rc == CKKS_OK && value.data && value.count != 1)
        return node_error(e->node, err, "its value has %u numbers", value.count);
    if (rc == CKKS_OK) rc = output_shape(e, 0, shape.values, shape.count, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = value.data ? value.data[0] : 0;
    e->out[0]->is_integer = value.is_integer;
    return rc;
}

static ckks_status range_evaluate(evaluation *e, ckks_error *err) {
    double v[3];
    for (int i = 0; i < 3; i++) {
        if (e->in[i]->count != 1) return node_error(e->node, err, "input %d is not one number", i);
        v[i] = e->in[i]->data[0];
    }
    const double steps = ceil((v[1] - v[0]) / v[2]);
    if (!(steps <= COMPUTED_MAX)) return node_error(e->node, err, "from %g to %g by %g", v[0], v[1], v[2]);
    const int64_t dims[1] = {steps > 0 ? (int64_t)steps : 0};
    const ckks_status rc = output_shape(e, 0, dims, 1, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++) e->out[0]->data[i] = v[0] + i * v[2];
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

/* ---- functions of one or two numbers ---- */

typedef struct constant_function {
    const char *type;
    double (*one)(double x);
    double (*two)(double a, double b);
} constant_function;

static double is_not(double x) {
    return x == 0;
}
static double sign(double x) {
    return (x > 0) - (x < 0);
}
static double is_equal(double a, double b) {
    return a == b;
}
static double is_greater(double a, double b) {
    return a > b;
}
static double is_greater_or_equal(double a, double b) {
    return a >= b;
}
static double is_less(double a, double b) {
    return a < b;
}
static double is_less_or_equal(double a, double b) {
    return a <= b;
}
static double both(double a, double b) {
    return a != 0 && b != 0;
}
static double either(double a, double b) {
    return a != 0 || b != 0;
}
static double one_of(double a, double b) {
    return (a != 0) != (b != 0);
}

static double is_nan(double x) {
    return isnan(x);
}
/* as Python means it */
static double modulo(double a, double b) {
    const double rest = fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* round is half to even: rint in the default mode */
static const constant_function functions[] = {
    {"Not", is_not, NULL},         {"Sign", sign, NULL},
    {"Floor", floor, NULL},        {"Ceil", ceil, NULL},
    {"Round", rint, NULL},         {"Equal", NULL, is_equal},
    {"Greater", NULL, is_greater}, {"GreaterOrEqual", NULL, is_greater_or_equal},
    {"Less", NULL, is_less},       {"LessOrEqual", NULL, is_less_or_equal},
    {"And", NULL, both},           {"Or", NULL, either},
    {"Xor", NULL, one_of},         {"IsNaN", is_nan, NULL}};

static const constant_function *function_of(const model_node *node) {
    const constant_function *f = functions;
    while (strcmp(f->type, node->proto->op_type) != 0) f++;
    return f;
}

static ckks_status one_evaluate(evaluation *e, ckks_error *err) {
    const constant_function *f = function_of(e->node);
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = f->one(e->in[0]->data[i]);
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

static ckks_status indices(uint32_t **out, evaluation *e, uint32_t input, ckks_error *err) {
    *out = arena_take(e->memory, e->out[0]->count, sizeof **out);
    if (!*out) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    broadcast_index(*out, e->out[0], e->in[input]);
    return CKKS_OK;
}

static ckks_status two_evaluate(evaluation *e, ckks_error *err) {
    const constant_function *f = function_of(e->node);
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank, *a, *b;
    ckks_status rc = broadcast_shape(dims, &rank, e->node, e->in[0], e->in[1], err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    if (rc == CKKS_OK) rc = indices(&a, e, 0, err);
    if (rc == CKKS_OK) rc = indices(&b, e, 1, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < e->out[0]->count; i++)
        e->out[0]->data[i] = f->two(e->in[0]->data[a[i]], e->in[1]->data[b[i]]);
    e->out[0]->is_integer = true;
    return CKKS_OK;
}

/* the attribute says whose sign the rest has */
static ckks_status mod_evaluate(evaluation *e, ckks_error *err) {
    const bool is_fmod = node_int(e->node, "fmod", 0) != 0;
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank, *a, *b;
    ckks_status rc = broadcast_shape(dims, &rank, e->node, e->in[0], e->in[1], err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    if (rc == CKKS_OK) rc = indices(&a, e, 0, err);
    if (rc == CKKS_OK) rc = indices(&b, e, 1, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = (is_fmod ? fmod : modulo)(e->in[0]->data[a[i]], e->in[1]->data[b[i]]);
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

static ckks_status infinite_evaluate(evaluation *e, ckks_error *err) {
    const bool finds[] = {node_int(e->node, "detect_negative", 1) != 0,
                          node_int(e->node, "detect_positive", 1) != 0};
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++) {
        const double x = e->in[0]->data[i];
        e->out[0]->data[i] = isinf(x) && finds[x > 0];
    }
    e->out[0]->is_integer = true;
    return rc;
}

/* [axes, how many]: the places of what is not zero, in order */
static ckks_status places_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    uint32_t found = 0;
    for (uint32_t i = 0; i < x->count; i++) found += x->data[i] != 0;
    /* how many there are depends on the row: not known, and refused when it comes to lowering */
    if (!e->is_constant) return CKKS_OK;
    const int64_t dims[2] = {x->rank, found};
    const ckks_status rc = output_shape(e, 0, dims, 2, err);
    for (uint32_t i = 0, at = 0; rc == CKKS_OK && i < x->count; i++) {
        if (x->data[i] == 0) continue;
        for (uint32_t axis = x->rank, rest = i; axis-- > 0; rest /= x->dims[axis])
            e->out[0]->data[(size_t)axis * found + at] = rest % x->dims[axis];
        at++;
    }
    e->out[0]->is_integer = true;
    return rc;
}

static ckks_status one_hot_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0], *depth = e->in[1], *values = e->in[2];
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t axis, inner = 1;
    if (depth->count != 1 || values->count != 2 || x->rank >= TENSOR_RANK_MAX ||
        !(depth->data[0] >= 1 && depth->data[0] <= COMPUTED_MAX))
        return node_error(e->node, err, "its depth or values do not fit");
    const uint32_t size = (uint32_t)depth->data[0];
    ckks_status rc = node_axis(&axis, e->node, node_int(e->node, "axis", -1), x->rank + 1, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i <= x->rank; i++) dims[i] = i == axis ? size : x->dims[i > axis ? i - 1 : i];
    for (uint32_t i = axis; i < x->rank; i++) inner *= x->dims[i];
    rc = output_shape(e, 0, dims, x->rank + 1, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++) {
        const double wanted = x->data[(size_t)(i / inner / size) * inner + i % inner];
        const double at = trunc(wanted < 0 ? wanted + size : wanted);
        e->out[0]->data[i] = values->data[at == i / inner % size];
    }
    e->out[0]->is_integer = values->is_integer;
    return rc;
}

/* ones on a diagonal, in the shape of its input */
static ckks_status eye_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    const int64_t shift = node_int(e->node, "k", 0);
    if (x->rank != 2) return node_error(e->node, err, "needs two axes");
    const ckks_status rc = output_like(e, 0, x, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < x->dims[0]; i++)
        if (shift > -(int64_t)i - 1 && shift < (int64_t)x->dims[1] - i)
            e->out[0]->data[(int64_t)i * x->dims[1] + i + shift] = 1;
    return rc;
}

static ckks_status compare_lower(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse_comparison(l, node, err);
}

/* of one score, at the end: the client's label, -1 or 1 */
static ckks_status sign_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (!l->is_final[node->outputs[0]] || l->model->values[node->inputs[0]].sample.count != 1)
        return compare_lower(l, node, err);
    symbol made = {.kind = SYMBOL_CLIENT,
                   .node = lower_symbol(l, node, 0)->node,
                   .score_value = node->inputs[0],
                   .is_label = true,
                   .steps = {.label_count = 2}};
    made.steps.label_numbers = arena_take(l->memory, 2, sizeof *made.steps.label_numbers);
    if (!made.steps.label_numbers)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for labels");
    made.steps.label_numbers[0] = -1, made.steps.label_numbers[1] = 1;
    l->symbols[node->outputs[0]] = made;
    return CKKS_OK;
}

#define CONSTANT(type, inputs, evaluate)                                                                     \
    { "", type, inputs, inputs, 1, OPERATOR_CONSTANT_ONLY, evaluate, compare_lower, NULL }

/* what a Where with two sides that meet there makes of it is encrypted */
#define COMPARISON(type)                                                                                     \
    {                                                                                                        \
        "", type, 2, 2, 1, OPERATOR_CONSTANT_ONLY, two_evaluate, comparison_lower,                           \
            "as the condition of a Where that does not jump: encrypted"                                      \
    }

const operator_row operators_constant[] = {
    {"", "Shape", 1, 1, 1, OPERATOR_SHAPE_ONLY | OPERATOR_AFTER_SCORES, shape_evaluate, never_lowered, NULL},
    {"", "Size", 1, 1, 1, OPERATOR_SHAPE_ONLY | OPERATOR_AFTER_SCORES, size_evaluate, never_lowered, NULL},
    CONSTANT("ConstantOfShape", 1, fill_evaluate),
    CONSTANT("Range", 3, range_evaluate),
    CONSTANT("Not", 1, one_evaluate),
    {"", "Sign", 1, 1, 1, OPERATOR_CONSTANT_ONLY, one_evaluate, sign_lower,
     "of one score at the output: a label, by the client"},
    CONSTANT("Floor", 1, one_evaluate),
    CONSTANT("Ceil", 1, one_evaluate),
    CONSTANT("Round", 1, one_evaluate),
    CONSTANT("Equal", 2, two_evaluate),
    COMPARISON("Greater"),
    COMPARISON("GreaterOrEqual"),
    COMPARISON("Less"),
    COMPARISON("LessOrEqual"),
    CONSTANT("And", 2, two_evaluate),
    CONSTANT("Or", 2, two_evaluate),
    CONSTANT("Xor", 2, two_evaluate),
    CONSTANT("Mod", 2, mod_evaluate),
    CONSTANT("IsNaN", 1, one_evaluate),
    CONSTANT("IsInf", 1, infinite_evaluate),
    CONSTANT("NonZero", 1, places_evaluate),
    CONSTANT("OneHot", 3, one_hot_evaluate),
    {"", "EyeLike", 1, 1, 1, OPERATOR_SHAPE_ONLY, eye_evaluate, never_lowered, NULL},
    {0},
};
