/*
 * Resize and Upsample with constant sizes: each output element is a weighted sum of input elements, axis by
 * axis: one for nearest, two for linear, four for cubic interpolation. A sparse matrix, like a convolution.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define TAPS_MAX 4u

typedef enum method { METHOD_NEAREST, METHOD_LINEAR, METHOD_CUBIC } method;
typedef enum position {
    POSITION_HALF_PIXEL,
    POSITION_PYTORCH,
    POSITION_ALIGN_CORNERS,
    POSITION_ASYMMETRIC,
    POSITION_TF_HALF_PIXEL
} position;
typedef enum rounding { ROUND_PREFER_FLOOR, ROUND_PREFER_CEIL, ROUND_FLOOR, ROUND_CEIL } rounding;

/* what one coordinate of an axis reads */
typedef struct tap_list {
    uint32_t count, at[TAPS_MAX];
    double weight[TAPS_MAX];
} tap_list;

typedef struct resize {
    method method;
    position position;
    rounding rounding;
    double cubic;
    bool excludes_outside;
    uint32_t rank, in[TENSOR_RANK_MAX], out[TENSOR_RANK_MAX];
    double scale[TENSOR_RANK_MAX];
    tap_list *taps[TENSOR_RANK_MAX]; /* [out] */
} resize;

/* the place of a text attribute in a list; `otherwise` where it is absent */
static ckks_status choice(uint32_t *out, const model_node *node, const char *attribute,
                          const char *const *names, uint32_t count, uint32_t otherwise, ckks_error *err) {
    size_t size;
    const uint8_t *text = node_text(node, attribute, &size);
    for (*out = 0; text && *out < count; ++*out)
        if (node_text_is(text, size, names[*out])) return CKKS_OK;
    if (text)
        return ckks_error_set(err, CKKS_UNSUPPORTED, node->label, "%s %.*s is not compiled", attribute,
                              size < 40 ? (int)size : 40, (const char *)text);
    *out = otherwise;
    return CKKS_OK;
}

static ckks_status read_choices(resize *r, const onnx_model *m, const model_node *node, ckks_error *err) {
    static const char *const methods[] = {"nearest", "linear", "cubic"};
    static const char *const positions[] = {"half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
                                            "tf_half_pixel_for_nn"};
    static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"};
    /* Upsample, and Resize before version 11, had no choice */
    const bool is_old = node->proto->op_type[0] == 'U' || (m->opset && m->opset < 11);
    uint32_t number;
    ckks_status rc = choice(&number, node, "mode", methods, 3, METHOD_NEAREST, err);
    r->method = (method)number;
    if (rc == CKKS_OK)
        rc = choice(&number, node, "coordinate_transformation_mode", positions, 5,
                    is_old ? POSITION_ASYMMETRIC : POSITION_HALF_PIXEL, err);
    r->position = (position)number;
    if (rc == CKKS_OK)
        rc = choice(&number, node, "nearest_mode", roundings, 4, is_old ? ROUND_FLOOR : ROUND_PREFER_FLOOR,
                    err);
    r->rounding = (rounding)number;
    r->cubic = node_float(node, "cubic_coeff_a", -0.75);
    r->excludes_outside = node_int(node, "exclude_outside", 0) != 0;
    if (rc == CKKS_OK && (node_int(node, "antialias", 0) || node_attribute(node, "axes") ||
                          node_attribute(node, "keep_aspect_ratio_policy")))
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, node->label,
            "antialias, axes and keep_aspect_ratio_policy are not compiled: export with sizes "
            "for all axes");
    return rc;
}

/* scales, or sizes */
static ckks_status read_sizes(resize *r, const model_node *node, const tensor *const *in, ckks_error *err) {
    const tensor *x = in[0];
    const bool is_new = node->input_count > 2;
    const tensor *scales = in[is_new ? 2 : 1], *sizes = is_new ? in[3] : NULL;
    const Onnx__Attribute *a = node_attribute(node, "scales");
    const bool has_scales = (scales && scales->count) || (a && a->n_floats);
    const uint64_t count = has_scales ? (a && a->n_floats ? a->n_floats : scales->count)
                           : sizes    ? sizes->count
                                      : 0;
    if (count != x->rank || !x->rank)
        return node_error(node, err, "%llu scales or sizes for %u axes", (unsigned long long)count, x->rank);
    r->rank = x->rank;
    for (uint32_t i = 0; i < x->rank; i++) {
        const double given = !has_scales        ? sizes->data[i]
                             : a && a->n_floats ? (double)a->floats[i]
                                                : scales->data[i];
        const double size = has_scales ? floor(given * x->dims[i]) : given;
        if (!(size >= 1 && size <= MODEL_ROW_MAX))
            return ckks_error_set(err, size > MODEL_ROW_MAX ? CKKS_TOO_LARGE : CKKS_MALFORMED, node->label,
                                  "axis %u of %u becomes %g", i, x->dims[i], size);
        r->in[i] = x->dims[i], r->out[i] = (uint32_t)size;
        r->scale[i] = has_scales ? given : size / x->dims[i];
    }
    return CKKS_OK;
}

/* where an output coordinate lies in the input */
static double source_of(const resize *r, uint32_t axis, uint32_t at) {
    const double x = at, scale = r->scale[axis];
    switch (r->position) {
    case POSITION_ALIGN_CORNERS:
        return r->out[axis] > 1 ? x * (r->in[axis] - 1) / (scale * r->in[axis] - 1) : 0;
    case POSITION_ASYMMETRIC:
        return x / scale;
    case POSITION_TF_HALF_PIXEL:
        return (x + 0.5) / scale;
    case POSITION_PYTORCH:
        return r->out[axis] > 1 ? (x + 0.5) / scale - 0.5 : 0;
    default:
        return (x + 0.5) / scale - 0.5;
    }
}

static double nearest_of(const resize *r, double x) {
    switch (r->rounding) {
    case ROUND_FLOOR:
        return floor(x);
    case ROUND_CEIL:
        return ceil(x);
    case ROUND_PREFER_CEIL:
        return floor(x + 0.5);
    default:
        return ceil(x - 0.5);
    }
}

/* Keys' kernel at a distance */
static double cubic_weight(double a, double d) {
    d = fabs(d);
    if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

static void add_tap(tap_list *t, const resize *r, uint32_t size, double at, double weight) {
    const bool is_outside = at < 0 || at > size - 1.0;
    if (weight == 0 || (is_outside && r->excludes_outside && r->method == METHOD_CUBIC)) return;
    const uint32_t place = at < 0 ? 0 : at > size - 1.0 ? size - 1 : (uint32_t)at;
    for (uint32_t i = 0; i < t->count; i++)
        if (t->at[i] == place) {
            t->weight[i] += weight;
            return;
        }
    t->at[t->count] = place;
    t->weight[t->count++] = weight;
}

static void set_taps(tap_list *t, const resize *r, uint32_t axis, uint32_t at) {
    const uint32_t size = r->in[axis];
    const bool is_same = r->out[axis] == size && r->scale[axis] == 1;
    const double x = is_same ? at : source_of(r, axis, at), below = floor(x), part = x - below;
    double total = 0;
    *t = (tap_list){0};
    if (is_same || r->method == METHOD_NEAREST) {
        add_tap(t, r, size, is_same ? at : nearest_of(r, x), 1);
    } else if (r->method == METHOD_LINEAR) {
        add_tap(t, r, size, below, 1 - part);
        add_tap(t, r, size, below + 1, part);
    } else {
        for (int k = -1; k < 3; k++) add_tap(t, r, size, below + k, cubic_weight(r->cubic, part - k));
        for (uint32_t i = 0; i < t->count; i++) total += t->weight[i];
        for (uint32_t i = 0; i < t->count && total != 0 && r->excludes_outside; i++) t->weight[i] /= total;
    }
    /* columns of a row ascend */
    for (uint32_t i = 1; i < t->count; i++)
        for (uint32_t k = i; k > 0 && t->at[k - 1] > t->at[k]; k--) {
            const uint32_t place = t->at[k];
            const double weight = t->weight[k];
            t->at[k] = t->at[k - 1], t->weight[k] = t->weight[k - 1];
            t->at[k - 1] = place, t->weight[k - 1] = weight;
        }
}

static ckks_status resize_read(resize *r, const onnx_model *m, const model_node *node,
                               const tensor *const *in, arena *memory, ckks_error *err) {
    *r = (resize){0};
    ckks_status rc = read_choices(r, m, node, err);
    if (rc == CKKS_OK) rc = read_sizes(r, node, in, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < r->rank; i++) {
        if (!(r->taps[i] = arena_take(memory, r->out[i], sizeof **r->taps)))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a grid");
        for (uint32_t at = 0; at < r->out[i]; at++) set_taps(&r->taps[i][at], r, i, at);
    }
    return rc;
}

/* the entries of output element `flat`, in order; column and value may be NULL: only counted */
static uint32_t element_taps(uint32_t *column, double *value, const resize *r, uint32_t flat) {
    const tap_list *lists[TENSOR_RANK_MAX];
    uint32_t total = 1, strides[TENSOR_RANK_MAX], stride = 1;
    for (uint32_t i = r->rank; i-- > 0;) {
        lists[i] = &r->taps[i][flat % r->out[i]];
        flat /= r->out[i];
        total *= lists[i]->count;
        strides[i] = stride, stride *= r->in[i];
    }
    for (uint32_t n = 0; column && n < total; n++) {
        uint32_t rest = n, at = 0;
        double weight = 1;
        for (uint32_t i = r->rank; i-- > 0;) {
            const uint32_t k = rest % lists[i]->count;
            rest /= lists[i]->count;
            at += lists[i]->at[k] * strides[i];
            weight *= lists[i]->weight[k];
        }
        column[n] = at, value[n] = weight;
    }
    return total;
}

static ckks_status resize_matrix(sparse **out, const resize *r, uint32_t rows, uint32_t columns,
                                 arena *memory, ckks_error *err) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < rows; i++) total += element_taps(NULL, NULL, r, i);
    const ckks_status rc = sparse_create(out, memory, rows, columns, total, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < rows; i++) {
        const uint32_t start = (*out)->row_start[i];
        (*out)->row_start[i + 1] = start + element_taps((*out)->column + start, (*out)->value + start, r, i);
    }
    return rc;
}

static ckks_status resize_evaluate(evaluation *e, ckks_error *err) {
    resize r;
    sparse *matrix;
    int64_t dims[TENSOR_RANK_MAX];
    ckks_status rc = resize_read(&r, e->model, e->node, e->in, e->memory, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < r.rank; i++) dims[i] = r.out[i];
    if ((rc = output_shape(e, 0, dims, r.rank, err)) != CKKS_OK) return rc;
    uint64_t taps = 1;
    for (uint32_t i = 0; i < r.rank; i++) taps *= r.out[i] == r.in[i] ? 1 : TAPS_MAX;
    if ((rc = evaluation_work(e, e->out[0]->count, taps, err)) != CKKS_OK) return rc;
    rc = resize_matrix(&matrix, &r, e->out[0]->count, e->in[0]->count, e->memory, err);
    if (rc == CKKS_OK) sparse_apply_add(e->out[0]->data, matrix, e->in[0]->data);
    return rc;
}

static ckks_status resize_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    resize r;
    sparse *matrix;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its sizes depend on the input", "make them constants", err);
    if ((rc = resize_read(&r, l->model, node, in, l->memory, err)) != CKKS_OK) return rc;
    rc = resize_matrix(&matrix, &r, l->model->values[node->outputs[0]].sample.count, in[0]->count, l->memory,
                       err);
    return rc == CKKS_OK ? lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, NULL, err) : rc;
}

const operator_row operators_resize[] = {
    {"", "Resize", 1, 4, 1, 0, resize_evaluate, resize_lower, "constant sizes; nearest, linear or cubic"},
    {"", "Upsample", 1, 2, 1, 0, resize_evaluate, resize_lower, "constant sizes; nearest or linear"},
    {0},
};
