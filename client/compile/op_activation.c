/* Functions of one number that become polynomials over the range that the calibration rows show. */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

typedef struct activation {
    ir_function function;
    double parameters[IR_PARAMETERS];
} activation;

/* a parameter: attributes with their defaults; NULL: none */
static const struct {
    const char *type;
    ir_function function;
    const char *attributes[IR_PARAMETERS];
    double defaults[IR_PARAMETERS];
} table[] = {
    {"Relu", IR_RELU, {NULL}, {0}},
    {"Sigmoid", IR_SIGMOID, {NULL}, {0}},
    {"Tanh", IR_TANH, {NULL}, {0}},
    {"LeakyRelu", IR_LEAKY_RELU, {"alpha"}, {(double)0.01f}},
    {"Elu", IR_ELU, {"alpha"}, {1}},
    {"Selu",
     IR_SELU,
     {"alpha", "gamma"},
     {(double)1.67326319217681884765625f, (double)1.05070102214813232421875f}},
    {"Celu", IR_CELU, {"alpha"}, {1}},
    {"Softplus", IR_SOFTPLUS, {NULL}, {0}},
    {"Softsign", IR_SOFTSIGN, {NULL}, {0}},
    {"HardSigmoid", IR_HARD_SIGMOID, {"alpha", "beta"}, {(double)0.2f, 0.5}},
    {"HardSwish", IR_HARD_SWISH, {NULL}, {0}},
    {"Gelu", IR_GELU, {NULL}, {0}},
    {"Mish", IR_MISH, {NULL}, {0}},
    {"Erf", IR_ERF, {NULL}, {0}},
    {"Erfc",
     IR_ERFC,
     {NULL},
     {0}}, /* none of ONNX's, but in files of Keras with TensorFlow: half of its GELU */
    {"Abs", IR_ABS, {NULL}, {0}},
    {"Exp", IR_EXP, {NULL}, {0}},
    {"Log", IR_LOG, {NULL}, {0}},
    {"Sin", IR_SIN, {NULL}, {0}},
    {"Cos", IR_COS, {NULL}, {0}},
    {"Sinh", IR_SINH, {NULL}, {0}},
    {"Cosh", IR_COSH, {NULL}, {0}},
    {"Atan", IR_ATAN, {NULL}, {0}},
    {"Asinh", IR_ASINH, {NULL}, {0}},
    {"Sqrt", IR_POW, {NULL}, {0.5}},
    {"Reciprocal", IR_POW, {NULL}, {-1}},
};

static activation activation_of(const model_node *node) {
    size_t i = 0, size;
    while (strcmp(table[i].type, node->proto->op_type) != 0) i++;
    activation out = {table[i].function, {0}};
    for (uint32_t k = 0; k < IR_PARAMETERS; k++) {
        const char *name = table[i].attributes[k];
        out.parameters[k] = name ? node_float(node, name, table[i].defaults[k]) : table[i].defaults[k];
    }
    const uint8_t *approximate = node_text(node, "approximate", &size);
    if (out.function == IR_GELU && approximate && size == 4 && memcmp(approximate, "tanh", 4) == 0)
        out.function = IR_GELU_TANH;
    return out;
}

static ckks_status apply(evaluation *e, const activation *f, ckks_error *err) {
    const ckks_status rc = output_like(e, 0, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = ir_function_value(f->function, f->parameters, e->in[0]->data[i]);
    e->out[0]->is_integer = e->in[0]->is_integer;
    return rc;
}

static ckks_status append(lowering *l, const model_node *node, uint32_t from, const activation *f,
                          ckks_error *err) {
    ir_node made = {.kind = IR_ACTIVATION,
                    .count = l->model->values[node->outputs[0]].sample.count,
                    .a = from,
                    .function = f->function};
    memcpy(made.parameters, f->parameters, sizeof made.parameters);
    return lower_append(l, node, &made, err);
}

static ckks_status activation_evaluate(evaluation *e, ckks_error *err) {
    const activation f = activation_of(e->node);
    return apply(e, &f, err);
}

static ckks_status activation_lower(lowering *l, const model_node *node, ckks_error *err) {
    const activation f = activation_of(node);
    for (uint32_t k = 0; k < IR_PARAMETERS; k++)
        if (!isfinite(f.parameters[k])) return node_error(node, err, "a parameter is not finite");
    if (f.function == IR_CELU && f.parameters[0] == 0) return node_error(node, err, "alpha is 0");
    return append(l, node, lower_symbol(l, node, 0)->node, &f, err);
}

/* a function at the very end needs no polynomial: the client applies it to the decrypted score */
static ckks_status final_lower(lowering *l, const model_node *node, uint32_t link, ckks_error *err) {
    if (!l->is_final[node->outputs[0]]) return activation_lower(l, node, err);
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_CLIENT,
                                            .node = lower_symbol(l, node, 0)->node,
                                            .score_value = node->inputs[0],
                                            .steps = {.link = link}};
    return CKKS_OK;
}
static ckks_status sigmoid_lower(lowering *l, const model_node *node, ckks_error *err) {
    return final_lower(l, node, POST_SIGMOID, err);
}
static ckks_status exp_lower(lowering *l, const model_node *node, ckks_error *err) {
    return final_lower(l, node, POST_EXP, err);
}
static ckks_status sqrt_lower(lowering *l, const model_node *node, ckks_error *err) {
    return final_lower(l, node, POST_SQRT, err);
}

/* ---- Clip: bounds are attributes before version 11, inputs since ---- */

static ckks_status clip_read(activation *f, const model_node *node, const tensor *const *in,
                             ckks_error *err) {
    *f = (activation){IR_CLIP, {node_float(node, "min", -INFINITY), node_float(node, "max", INFINITY)}};
    for (uint32_t k = 0; k < 2; k++) {
        const tensor *bound = in[k + 1];
        if (!bound) continue;
        if (bound->count != 1 || !bound->data) return node_error(node, err, "a bound is not one number");
        f->parameters[k] = bound->data[0];
    }
    if (isnan(f->parameters[0]) || isnan(f->parameters[1])) return node_error(node, err, "a bound is NaN");
    return CKKS_OK;
}

static ckks_status clip_evaluate(evaluation *e, ckks_error *err) {
    activation f;
    const ckks_status rc = clip_read(&f, e->node, e->in, err);
    return rc == CKKS_OK ? apply(e, &f, err) : rc;
}

static ckks_status clip_lower(lowering *l, const model_node *node, ckks_error *err) {
    activation f;
    const tensor **in;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its bounds depend on the input", "make them constants", err);
    if ((rc = clip_read(&f, node, in, err)) != CKKS_OK) return rc;
    if (f.parameters[0] > f.parameters[1]) return node_error(node, err, "min is over max");
    if (f.parameters[0] == 0 && f.parameters[1] == INFINITY) f.function = IR_RELU;
    if (f.parameters[0] != -INFINITY || f.parameters[1] != INFINITY)
        return append(l, node, lower_symbol(l, node, 0)->node, &f, err);
    lower_pass(l, node);
    return CKKS_OK;
}

/* ---- Max and Min of any number of values: with one number they are a clip ---- */

static ckks_status extreme_evaluate(evaluation *e, ckks_error *err) {
    const bool is_max = e->node->proto->op_type[1] == 'a';
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank = 0;
    tensor so_far = {.count = 1};
    ckks_status rc;
    for (uint32_t k = 0; k < e->node->input_count; k++) {
        if (!e->in[k]) return node_error(e->node, err, "input %u is left out", k);
        if ((rc = broadcast_shape(dims, &rank, e->node, &so_far, e->in[k], err)) != CKKS_OK) return rc;
        if ((rc = tensor_shape(&so_far, dims, rank, e->count_max, e->node->label, err)) != CKKS_OK) return rc;
    }
    if ((rc = output_shape(e, 0, dims, rank, err)) != CKKS_OK) return rc;
    tensor *y = e->out[0];
    uint32_t *index = arena_take(e->memory, y->count, sizeof *index);
    if (!index) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    for (uint32_t k = 0; k < e->node->input_count; k++) {
        broadcast_index(index, y, e->in[k]);
        for (uint32_t i = 0; i < y->count; i++) {
            const double x = e->in[k]->data[index[i]];
            y->data[i] = !k ? x : is_max ? fmax(y->data[i], x) : fmin(y->data[i], x);
        }
    }
    y->is_integer = e->in[0]->is_integer;
    return CKKS_OK;
}

/* what all constants together bound each element by; false: there are none */
static bool constant_bound(double *bound, uint32_t *index, const lowering *l, const model_node *node) {
    const model_value *v = l->model->values;
    const tensor *y = &v[node->outputs[0]].sample;
    const bool is_max = node->proto->op_type[1] == 'a';
    bool is_found = false;
    for (uint32_t k = 0; k < node->input_count; k++) {
        const tensor *c = &v[node->inputs[k]].constant;
        if (lower_is_encrypted(l, node, k)) continue;
        broadcast_index(index, y, c);
        for (uint32_t i = 0; i < y->count; i++) {
            const double x = c->data[index[i]];
            bound[i] = !is_found ? x : is_max ? fmax(bound[i], x) : fmin(bound[i], x);
        }
        is_found = true;
    }
    return is_found;
}

/* an encrypted input with as many elements as the output */
static ckks_status broadcast_input(uint32_t *out, uint32_t *index, lowering *l, const model_node *node,
                                   uint32_t side, ckks_error *err) {
    const tensor *x = &l->model->values[node->inputs[side]].sample;
    const tensor *y = &l->model->values[node->outputs[0]].sample;
    sparse *m;
    *out = lower_symbol(l, node, side)->node;
    if (x->count == y->count) return CKKS_OK;
    broadcast_index(index, y, x);
    const ckks_status rc = sparse_gather(&m, l->memory, y->count, x->count, index, NULL, err);
    return rc == CKKS_OK ? ir_linear(out, l->graph, *out, m, NULL, node->label, err) : rc;
}

/* The larger of a and b is a + relu(b - a), the smaller a - relu(a - b). Without b (MODEL_NONE) the other
 * side is `bound`. */
static ckks_status append_extreme(uint32_t *out, lowering *l, const model_node *node, uint32_t a, uint32_t b,
                                  const double *bound, ckks_error *err) {
    const uint32_t count = l->model->values[node->outputs[0]].sample.count;
    const double sign = node->proto->op_type[1] == 'a' ? 1 : -1;
    ir_node relu = {.kind = IR_ACTIVATION, .function = IR_RELU, .count = count, .source = node->label};
    ir_node difference = {.kind = IR_LINEAR, .count = count, .source = node->label}, sum = difference;
    double *plus = arena_take(l->memory, count, sizeof *plus),
           *minus = arena_take(l->memory, count, sizeof *plus);
    sparse *add, *take;
    uint32_t number;
    difference.terms = arena_take(l->memory, 4, sizeof *difference.terms), sum.terms = difference.terms + 2;
    difference.bias = arena_take(l->memory, count, sizeof *difference.bias);
    sum.bias = arena_take(l->memory, count, sizeof *sum.bias);
    if (!plus || !minus || !difference.terms || !difference.bias || !sum.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a maximum");
    for (uint32_t i = 0; i < count; i++) {
        plus[i] = sign, minus[i] = -sign;
        if (b == MODEL_NONE) difference.bias[i] = sign * bound[i];
    }
    ckks_status rc = sparse_gather(&add, l->memory, count, count, NULL, plus, err);
    if (rc == CKKS_OK) rc = sparse_gather(&take, l->memory, count, count, NULL, minus, err);
    if (rc != CKKS_OK) return rc;
    difference.terms[difference.term_count++] = (ir_term){a, take};
    if (b != MODEL_NONE) difference.terms[difference.term_count++] = (ir_term){b, add};
    if ((rc = ir_append(&relu.a, l->graph, &difference, err)) != CKKS_OK) return rc;
    if ((rc = ir_append(&number, l->graph, &relu, err)) != CKKS_OK) return rc;
    if ((rc = sparse_gather(&take, l->memory, count, count, NULL, NULL, err)) != CKKS_OK) return rc;
    sum.terms[sum.term_count++] = (ir_term){a, take}, sum.terms[sum.term_count++] = (ir_term){number, add};
    return ir_append(out, l->graph, &sum, err);
}

#define EXTREMES_MAX 16u

/* in pairs, pairs of pairs: as few levels as there can be */
static ckks_status lower_extremes(lowering *l, const model_node *node, uint32_t *nodes, uint32_t count,
                                  const double *bound, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (; count > 1 && rc == CKKS_OK; count = (count + 1) / 2) {
        for (uint32_t i = 0; i < count / 2 && rc == CKKS_OK; i++)
            rc = append_extreme(&nodes[i], l, node, nodes[2 * i], nodes[2 * i + 1], NULL, err);
        if (count % 2) nodes[count / 2] = nodes[count - 1];
    }
    if (rc == CKKS_OK && bound) rc = append_extreme(&nodes[0], l, node, nodes[0], MODEL_NONE, bound, err);
    l->symbols[node->outputs[0]] = (symbol){.kind = SYMBOL_ENCRYPTED, .node = nodes[0]};
    return rc;
}

static ckks_status extreme_lower(lowering *l, const model_node *node, ckks_error *err) {
    const bool is_max = node->proto->op_type[1] == 'a';
    const uint32_t count = l->model->values[node->outputs[0]].sample.count;
    uint32_t *index = arena_take(l->memory, count, sizeof *index), nodes[EXTREMES_MAX] = {0}, encrypted = 0;
    double *bound = arena_take(l->memory, count, sizeof *bound);
    ckks_status rc = CKKS_OK;
    if (!index || !bound)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a maximum");
    for (uint32_t k = 0; k < node->input_count && rc == CKKS_OK; k++) {
        if (!lower_is_encrypted(l, node, k)) continue;
        if (encrypted == EXTREMES_MAX)
            return lower_refuse(l, node, "a maximum of more than 16 encrypted values",
                                "use averages and train again", err);
        rc = broadcast_input(&nodes[encrypted++], index, l, node, k, err);
    }
    if (rc != CKKS_OK) return rc;
    const bool is_bounded = constant_bound(bound, index, l, node);
    bool is_one_number = is_bounded;
    for (uint32_t i = 1; i < count && is_one_number; i++) is_one_number = bound[i] == bound[0];
    if (encrypted > 1 || !is_one_number)
        return lower_extremes(l, node, nodes, encrypted, is_bounded ? bound : NULL, err);
    activation f = {IR_CLIP, {is_max ? bound[0] : -INFINITY, is_max ? INFINITY : bound[0]}};
    if (is_max && bound[0] == 0) f.function = IR_RELU;
    return append(l, node, nodes[0], &f, err);
}

/* ---- PRelu: slope * x + (1 - slope) * relu(x), a slope for each element ---- */

static ckks_status prelu_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0], *slope = e->in[1];
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank;
    ckks_status rc = broadcast_shape(dims, &rank, e->node, x, slope, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    if (rc != CKKS_OK) return rc;
    if (e->out[0]->count != x->count) return node_error(e->node, err, "its slope has too many elements");
    uint32_t *index = arena_take(e->memory, x->count, sizeof *index);
    if (!index) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    broadcast_index(index, e->out[0], slope);
    for (uint32_t i = 0; i < x->count; i++)
        e->out[0]->data[i] = x->data[i] > 0 ? x->data[i] : slope->data[index[i]] * x->data[i];
    return CKKS_OK;
}

static ckks_status prelu_lower(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *v = l->model->values;
    const tensor *y = &v[node->outputs[0]].sample, *slope = &v[node->inputs[1]].constant;
    const uint32_t from = lower_symbol(l, node, 0)->node, count = y->count;
    ir_node relu = {
        .kind = IR_ACTIVATION, .function = IR_RELU, .count = count, .a = from, .source = node->label};
    ir_node made = {.kind = IR_LINEAR, .count = count, .term_count = 2};
    if (!slope->data)
        return lower_refuse(l, node, "its slope depends on the input", "make it an initialiser", err);
    uint32_t *index = arena_take(l->memory, count, sizeof *index), number;
    double *factor = arena_take(l->memory, 2 * (uint64_t)count, sizeof *factor);
    bool is_one = true;
    made.terms = arena_take(l->memory, 2, sizeof *made.terms);
    made.bias = arena_take(l->memory, count, sizeof *made.bias);
    if (!index || !factor || !made.terms || !made.bias)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for slopes");
    broadcast_index(index, y, slope);
    for (uint32_t i = 0; i < count; i++) {
        factor[i] = slope->data[index[i]];
        factor[count + i] = 1 - factor[i];
        is_one = is_one && factor[i] == factor[0];
    }
    if (is_one) {
        const activation f = {IR_LEAKY_RELU, {factor[0]}};
        return append(l, node, from, &f, err);
    }
    ckks_status rc = ir_append(&number, l->graph, &relu, err);
    for (uint32_t t = 0; t < 2 && rc == CKKS_OK; t++) {
        sparse *matrix;
        rc = sparse_gather(&matrix, l->memory, count, count, NULL, factor + (size_t)t * count, err);
        if (rc == CKKS_OK) made.terms[t] = (ir_term){t ? number : from, matrix};
    }
    return rc == CKKS_OK ? lower_append(l, node, &made, err) : rc;
}

/* ---- Pow ---- */

static ckks_status pow_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank;
    const tensor *a = e->in[0], *b = e->in[1];
    ckks_status rc = broadcast_shape(dims, &rank, e->node, a, b, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, rank, err);
    if (rc != CKKS_OK) return rc;
    tensor *y = e->out[0];
    uint32_t *at_a = arena_take(e->memory, y->count, sizeof *at_a);
    uint32_t *at_b = arena_take(e->memory, y->count, sizeof *at_b);
    if (!at_a || !at_b)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a row");
    broadcast_index(at_a, y, a);
    broadcast_index(at_b, y, b);
    y->is_integer = a->is_integer;
    for (uint32_t i = 0; i < y->count; i++) {
        y->data[i] = pow(a->data[at_a[i]], b->data[at_b[i]]);
        if (y->is_integer) y->data[i] = trunc(y->data[i]);
    }
    return CKKS_OK;
}

static ckks_status pow_lower(lowering *l, const model_node *node, ckks_error *err) {
    const model_value *v = l->model->values;
    const tensor *exponent = &v[node->inputs[1]].constant;
    const uint32_t from = lower_symbol(l, node, 0)->node, count = v[node->inputs[0]].sample.count;
    const char *way_out =
        "one constant number is compiled; write others as products, or use another activation";
    if (!exponent->data) return lower_refuse(l, node, "the exponent depends on the input", way_out, err);
    const double power = exponent->data[0];
    for (uint32_t i = 0; i < exponent->count; i++)
        if (exponent->data[i] != power || !isfinite(power) || power == 0 || fabs(power) > IR_POWER_MAX)
            return lower_refuse(l, node, "the exponent is not one number within -16 and 16 other than 0",
                                way_out, err);
    if (count != v[node->outputs[0]].sample.count)
        return lower_refuse(l, node, "the exponent broadcasts the base", way_out, err);
    if (power == 1) {
        lower_pass(l, node);
        return CKKS_OK;
    }
    ir_node square = {.kind = IR_PRODUCT, .count = count, .a = from, .b = from};
    if (power == 2) return lower_append(l, node, &square, err);
    const activation f = {IR_POW, {power}};
    return append(l, node, from, &f, err);
}

#define ABOVE_ZERO "polynomial; where calibration rows stay above zero"
#define ACTIVATION(type)                                                                                     \
    { "", type, 1, 1, 1, 0, activation_evaluate, activation_lower, "polynomial" }

const operator_row operators_activation[] = {
    ACTIVATION("Relu"),
    {"", "Sigmoid", 1, 1, 1, 0, activation_evaluate, sigmoid_lower, "polynomial; at the output: client"},
    ACTIVATION("Tanh"),
    ACTIVATION("LeakyRelu"),
    ACTIVATION("Elu"),
    ACTIVATION("Selu"),
    ACTIVATION("Celu"),
    ACTIVATION("Softplus"),
    ACTIVATION("Softsign"),
    ACTIVATION("HardSigmoid"),
    ACTIVATION("HardSwish"),
    ACTIVATION("Gelu"),
    ACTIVATION("Mish"),
    ACTIVATION("Erf"),
    {"", "Erfc", 1, 1, 1, 0, activation_evaluate, activation_lower,
     "polynomial; not of ONNX, but what Keras with TensorFlow leaves of Gelu"},
    ACTIVATION("Abs"),
    ACTIVATION("Sin"),
    ACTIVATION("Cos"),
    ACTIVATION("Sinh"),
    ACTIVATION("Cosh"),
    ACTIVATION("Atan"),
    ACTIVATION("Asinh"),
    {"", "Exp", 1, 1, 1, 0, activation_evaluate, exp_lower, "polynomial; at the output: client"},
    {"", "Log", 1, 1, 1, 0, activation_evaluate, activation_lower, ABOVE_ZERO},
    {"", "Sqrt", 1, 1, 1, 0, activation_evaluate, sqrt_lower, ABOVE_ZERO "; at the output: client"},
    {"", "Reciprocal", 1, 1, 1, 0, activation_evaluate, activation_lower,
     "polynomial; where calibration rows stay on one side of zero"},
    {"", "PRelu", 2, 2, 1, 0, prelu_evaluate, prelu_lower, "polynomial; constant slopes"},
    {"", "Clip", 1, 3, 1, 0, clip_evaluate, clip_lower, "polynomial; constant bounds"},
    {"", "Max", 1, OPERATOR_MANY, 1, 0, extreme_evaluate, extreme_lower,
     "polynomials; each two encrypted values take one"},
    {"", "Min", 1, OPERATOR_MANY, 1, 0, extreme_evaluate, extreme_lower,
     "polynomials; each two encrypted values take one"},
    {"", "Pow", 2, 2, 1, 0, pow_evaluate, pow_lower,
     "one constant exponent within -16 and 16; broken or negative ones where calibration rows stay above "
     "zero"},
    {0},
};
