/* Operators that move no data: one row's elements stay in their order, so that encrypted values pass through.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

static ckks_status copy_with_shape(evaluation *e, const int64_t *dims, size_t rank, ckks_error *err) {
    const ckks_status rc = output_shape(e, 0, dims, rank, err);
    if (rc != CKKS_OK) return rc;
    if (e->out[0]->count != e->in[0]->count)
        return node_error(e->node, err, "%u elements cannot take the shape of %u", e->in[0]->count,
                          e->out[0]->count);
    memcpy(e->out[0]->data, e->in[0]->data, e->in[0]->count * sizeof *e->in[0]->data);
    e->out[0]->is_integer = e->in[0]->is_integer;
    return CKKS_OK;
}

static ckks_status pass_lower(lowering *l, const model_node *node, ckks_error *err) {
    (void)err;
    lower_pass(l, node);
    return CKKS_OK;
}

static ckks_status flatten_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    int64_t axis = node_int(e->node, "axis", 1), dims[2] = {1, 1};
    if (axis < 0) axis += x->rank;
    if (axis < 0 || axis > x->rank) return node_error(e->node, err, "axis is out of range");
    for (uint32_t i = 0; i < x->rank; i++) dims[i < axis ? 0 : 1] *= x->dims[i];
    return copy_with_shape(e, dims, 2, err);
}

/* 0 copies an axis, one -1 takes what is left */
static ckks_status reshape_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0], *shape = e->in[1];
    int64_t dims[TENSOR_RANK_MAX], known = 1;
    uint32_t free_axis = MODEL_NONE;
    if (shape->rank != 1 || shape->count > TENSOR_RANK_MAX)
        return node_error(e->node, err, "its shape has too many axes");
    for (uint32_t i = 0; i < shape->count; i++) {
        const double wanted = shape->data[i];
        if (!(wanted >= -1 && wanted <= TENSOR_ELEMENTS_MAX) || wanted != floor(wanted))
            return node_error(e->node, err, "axis %u has size %g", i, wanted);
        dims[i] = (int64_t)wanted;
        if (dims[i] == 0 && !node_int(e->node, "allowzero", 0)) {
            if (i >= x->rank) return node_error(e->node, err, "axis %u has no counterpart", i);
            dims[i] = x->dims[i];
        }
        if (dims[i] == -1) {
            if (free_axis != MODEL_NONE) return node_error(e->node, err, "two axes of size -1");
            free_axis = i;
        } else if (__builtin_mul_overflow(known, dims[i], &known)) {
            return node_error(e->node, err, "its shape is too large");
        }
    }
    if (free_axis != MODEL_NONE) {
        if (known == 0) return node_error(e->node, err, "a size of -1 beside a size of 0");
        dims[free_axis] = x->count / known;
    }
    return copy_with_shape(e, dims, shape->count, err);
}

static ckks_status reshape_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (lower_symbol(l, node, 1)->kind != SYMBOL_CONSTANT)
        return lower_refuse(l, node, "the shape depends on the input",
                            "export with a constant shape (onnxsim folds computed ones)", err);
    return pass_lower(l, node, err);
}

static ckks_status squeeze_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    number_list axes;
    bool is_listed[TENSOR_RANK_MAX];
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t rank = 0;
    ckks_status rc = node_list(&axes, e->node, e->in, 1, "axes", e->memory, err);
    if (rc == CKKS_OK) rc = node_axes(is_listed, e->node, &axes, x->rank, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->rank; i++) {
        if (axes.is_present && is_listed[i] && x->dims[i] != 1)
            return node_error(e->node, err, "axis %u has %u elements", i, x->dims[i]);
        if (axes.is_present ? !is_listed[i] : x->dims[i] != 1) dims[rank++] = x->dims[i];
    }
    return copy_with_shape(e, dims, rank, err);
}

/* the axes count in the output */
static ckks_status unsqueeze_evaluate(evaluation *e, ckks_error *err) {
    const tensor *x = e->in[0];
    number_list axes;
    bool is_listed[TENSOR_RANK_MAX];
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t next = 0;
    ckks_status rc = node_list(&axes, e->node, e->in, 1, "axes", e->memory, err);
    if (rc != CKKS_OK) return rc;
    if (axes.count > TENSOR_RANK_MAX || axes.count + x->rank > TENSOR_RANK_MAX)
        return node_error(e->node, err, "more than %u axes", TENSOR_RANK_MAX);
    const uint32_t rank = x->rank + axes.count;
    if ((rc = node_axes(is_listed, e->node, &axes, rank, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < rank; i++) dims[i] = is_listed[i] ? 1 : x->dims[next++];
    return copy_with_shape(e, dims, rank, err);
}

static ckks_status axes_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its axes depend on the input", "make them constants", err);
    return pass_lower(l, node, err);
}

static ckks_status identity_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    for (uint32_t i = 0; i < e->in[0]->rank; i++) dims[i] = e->in[0]->dims[i];
    return copy_with_shape(e, dims, e->in[0]->rank, err);
}

/* Dropout and its mask, as inference has them */
static ckks_status dropout_evaluate(evaluation *e, ckks_error *err) {
    if (e->in[2] && e->in[2]->count && e->in[2]->data[0] != 0)
        return ckks_error_set(err, CKKS_UNSUPPORTED, e->node->label,
                              "Dropout in training mode: export the model in evaluation mode "
                              "(torch: model.eval())");
    ckks_status rc = identity_evaluate(e, err);
    if (rc == CKKS_OK && e->node->output_count > 1) rc = output_like(e, 1, e->in[0], err);
    for (uint32_t i = 0; rc == CKKS_OK && e->node->output_count > 1 && i < e->out[1]->count; i++)
        e->out[1]->data[i] = 1;
    return rc;
}

static ckks_status dropout_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its mode depends on the input", "export the model in evaluation mode",
                            err);
    return pass_lower(l, node, err);
}

static bool is_float_type(int64_t type) {
    return type == ELEMENT_FLOAT || type == ELEMENT_DOUBLE || type == ELEMENT_FLOAT16 ||
           type == 16; /* bfloat16 */
}

static ckks_status cast_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = identity_evaluate(e, err);
    const int64_t type = node_int(e->node, "to", 0);
    if (rc != CKKS_OK) return rc;
    e->out[0]->is_integer = !is_float_type(type);
    for (uint32_t i = 0; i < e->out[0]->count && e->out[0]->is_integer; i++) {
        double *v = &e->out[0]->data[i];
        *v = type == ELEMENT_BOOL ? *v != 0 : trunc(*v);
    }
    return CKKS_OK;
}

static ckks_status cast_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (lower_is_encrypted(l, node, 0) && node_int(node, "to", 0) == ELEMENT_BOOL)
        return lower_refuse(
            l, node, "it asks whether encrypted numbers are zero",
            "leave the question out (scikit-learn's CalibratedClassifierCV asks it of a sum where there are "
            "more "
            "than two classes: put it into a OneVsRestClassifier, or export the classifier without it)",
            err);
    if (lower_is_encrypted(l, node, 0) && !is_float_type(node_int(node, "to", 0)) &&
        !l->is_final[node->outputs[0]])
        return lower_refuse(l, node, "encrypted numbers cannot be rounded to integers",
                            "cast to float, or leave the cast out: values stay real numbers", err);
    return pass_lower(l, node, err);
}

/* the type of its second input */
static ckks_status cast_like_evaluate(evaluation *e, ckks_error *err) {
    const ckks_status rc = identity_evaluate(e, err);
    if (rc != CKKS_OK) return rc;
    e->out[0]->is_integer = e->in[1]->is_integer;
    for (uint32_t i = 0; i < e->out[0]->count && e->out[0]->is_integer; i++)
        e->out[0]->data[i] = trunc(e->out[0]->data[i]);
    return CKKS_OK;
}

static ckks_status cast_like_lower(lowering *l, const model_node *node, ckks_error *err) {
    if (lower_is_encrypted(l, node, 0) && l->model->values[node->inputs[1]].sample.is_integer)
        return lower_refuse(l, node, "encrypted numbers cannot be rounded to integers",
                            "cast to float, or leave the cast out: values stay real numbers", err);
    return pass_lower(l, node, err);
}

static ckks_status constant_list(evaluation *e, const Onnx__Attribute *a, ckks_error *err) {
    const bool is_float = a->n_floats > 0;
    const int64_t dims[1] = {(int64_t)(is_float ? a->n_floats : a->n_ints)};
    const ckks_status rc = output_shape(e, 0, dims, 1, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = is_float ? (double)a->floats[i] : (double)a->ints[i];
    e->out[0]->is_integer = !is_float;
    return rc;
}

static ckks_status constant_evaluate(evaluation *e, ckks_error *err) {
    const Onnx__Attribute *a;
    if ((a = node_attribute(e->node, "value")) && a->t)
        return tensor_from_message(e->out[0], a->t, e->memory, e->node->label, err);
    if ((a = node_attribute(e->node, "value_floats")) || (a = node_attribute(e->node, "value_ints")))
        return constant_list(e, a, err);
    if ((a = node_attribute(e->node, "value_float")) || (a = node_attribute(e->node, "value_int"))) {
        const ckks_status rc = output_shape(e, 0, NULL, 0, err);
        if (rc != CKKS_OK) return rc;
        e->out[0]->data[0] = a->has_f ? (double)a->f : (double)a->i;
        e->out[0]->is_integer = !a->has_f;
        return CKKS_OK;
    }
    return node_error(e->node, err, "holds no number");
}

const operator_row operators_shape[] = {
    {"", "Flatten", 1, 1, 1, OPERATOR_AFTER_SCORES, flatten_evaluate, pass_lower, NULL},
    {"", "Reshape", 2, 2, 1, OPERATOR_AFTER_SCORES, reshape_evaluate, reshape_lower, "constant shape"},
    {"", "Squeeze", 1, 2, 1, OPERATOR_AFTER_SCORES, squeeze_evaluate, axes_lower, "constant axes"},
    {"", "Unsqueeze", 1, 2, 1, OPERATOR_AFTER_SCORES, unsqueeze_evaluate, axes_lower, "constant axes"},
    {"", "Dropout", 1, 3, 2, 0, dropout_evaluate, dropout_lower, "left out"},
    {"", "Identity", 1, 1, 1, OPERATOR_AFTER_SCORES, identity_evaluate, pass_lower, NULL},
    {"", "Cast", 1, 1, 1, OPERATOR_AFTER_SCORES, cast_evaluate, cast_lower, "to real numbers"},
    {"", "CastLike", 2, 2, 1, 0, cast_like_evaluate, cast_like_lower, "to real numbers"},
    {"", "Constant", 0, 0, 1, OPERATOR_CONSTANT_ONLY, constant_evaluate, pass_lower, NULL},
    {0},
};
