/*
 * Resize and Upsample with constant sizes: each output element is a weighted sum of input elements, axis by
 * axis: one for nearest, two for linear, four for cubic interpolation, more where antialiasing makes an image
 * smaller. A sparse matrix, like a convolution.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

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
    uint32_t count, *at;
    double *weight;
} tap_list;

typedef enum policy { POLICY_STRETCH, POLICY_NOT_LARGER, POLICY_NOT_SMALLER } policy;

typedef struct resize {
    method method;
    position position;
    rounding rounding;
    double cubic;
    bool excludes_outside, is_antialiased;
    policy policy;
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
    static const char *const policies[] = {"stretch", "not_larger", "not_smaller"};
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
    r->is_antialiased = node_int(node, "antialias", 0) != 0 && r->method != METHOD_NEAREST;
    if (rc == CKKS_OK)
        rc = choice(&number, node, "keep_aspect_ratio_policy", policies, 3, POLICY_STRETCH, err);
    r->policy = (policy)number;
    return rc;
}

/* what the node gives, in the order of its axes: scales, or sizes */
typedef struct given {
    uint64_t count;
    bool has_scales;
    const float *floats;   /* attribute of old versions, or NULL */
    const double *numbers; /* else */
} given;

static double given_at(const given *g, uint32_t i) {
    CKKS_ASSERT(g->floats || g->numbers);
    return g->floats ? (double)g->floats[i] : g->numbers[i];
}

static given read_given(const model_node *node, const tensor *const *in) {
    const bool is_new = node->input_count > 2;
    const tensor *scales = in[is_new ? 2 : 1], *sizes = is_new ? in[3] : NULL;
    const Onnx__Attribute *a = node_attribute(node, "scales");
    if (a && a->n_floats) return (given){a->n_floats, true, a->floats, NULL};
    if (scales && scales->count) return (given){scales->count, true, NULL, scales->data};
    return (given){sizes ? sizes->count : 0, false, NULL, sizes ? sizes->data : NULL};
}

/* one scale for all axes that are sized, so that the image keeps its shape; 0: each has its own */
static double common_scale(const resize *r, const given *g, const uint32_t *axes, const tensor *x) {
    double scale = 0;
    if (g->has_scales || r->policy == POLICY_STRETCH) return 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const double own = given_at(g, i) / x->dims[axes[i]];
        if (i == 0 || (r->policy == POLICY_NOT_LARGER ? own < scale : own > scale)) scale = own;
    }
    return scale;
}

static ckks_status read_sizes(resize *r, const model_node *node, const tensor *const *in, arena *memory,
                              ckks_error *err) {
    const tensor *x = in[0];
    const given g = read_given(node, in);
    number_list listed;
    bool is_listed[TENSOR_RANK_MAX];
    uint32_t axes[TENSOR_RANK_MAX];
    ckks_status rc = node_list(&listed, node, in, MODEL_NONE, "axes", memory, err);
    if (rc == CKKS_OK) rc = node_axes(is_listed, node, &listed, x->rank, err);
    if (rc != CKKS_OK) return rc;
    if (g.count != (listed.is_present ? listed.count : x->rank) || !x->rank || !x->count || g.count > x->rank)
        return node_error(node, err, "%llu scales or sizes for %u axes", (unsigned long long)g.count,
                          x->rank);
    r->rank = x->rank;
    for (uint32_t i = 0; i < x->rank; i++) r->in[i] = r->out[i] = x->dims[i], r->scale[i] = 1;
    for (uint32_t i = 0; i < g.count; i++) {
        axes[i] = i;
        if (listed.is_present && (rc = node_axis(&axes[i], node, listed.values[i], x->rank, err)) != CKKS_OK)
            return rc;
    }
    const double common = common_scale(r, &g, axes, x);
    for (uint32_t i = 0; i < g.count; i++) {
        const uint32_t axis = axes[i], old = x->dims[axis];
        const double scale = common != 0 ? common : given_at(&g, i);
        const double size = common != 0    ? floor(scale * old + 0.5)
                            : g.has_scales ? floor(scale * old)
                                           : scale;
        if (!(size >= 1 && size <= MODEL_ROW_MAX))
            return ckks_error_set(err, size > MODEL_ROW_MAX ? CKKS_TOO_LARGE : CKKS_MALFORMED, node->label,
                                  "axis %u of %u becomes %g", axis, old, size);
        r->out[axis] = (uint32_t)size;
        r->scale[axis] = common != 0 || g.has_scales ? scale : size / old;
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

/* how far the kernel reaches, in input elements on either side: wider where an image is made smaller */
static double stretch_of(const resize *r, uint32_t axis) {
    return r->is_antialiased && r->scale[axis] < 1 ? 1 / r->scale[axis] : 1;
}

/* taps that a coordinate may have */
static uint32_t tap_room(const resize *r, uint32_t axis) {
    const double room = 2 * ceil((r->method == METHOD_CUBIC ? 2 : 1) * stretch_of(r, axis)) + 2;
    return r->method == METHOD_NEAREST ? 1 : (uint32_t)fmin(room, r->in[axis]);
}

/* columns of a row ascend */
static void sort_taps(tap_list *t) {
    for (uint32_t i = 1; i < t->count; i++)
        for (uint32_t k = i; k > 0 && t->at[k - 1] > t->at[k]; k--) {
            const uint32_t place = t->at[k];
            const double weight = t->weight[k];
            t->at[k] = t->at[k - 1], t->weight[k] = t->weight[k - 1];
            t->at[k - 1] = place, t->weight[k - 1] = weight;
        }
}

static void set_taps(tap_list *t, const resize *r, uint32_t axis, uint32_t at) {
    const uint32_t size = r->in[axis];
    const bool is_same = r->out[axis] == size && r->scale[axis] == 1;
    const double x = is_same ? at : source_of(r, axis, at), below = floor(x), part = x - below;
    const double stretch = stretch_of(r, axis);
    const int32_t reach = (int32_t)ceil((r->method == METHOD_CUBIC ? 2 : 1) * stretch);
    double total = 0;
    t->count = 0;
    if (is_same || r->method == METHOD_NEAREST) {
        add_tap(t, r, size, is_same ? at : nearest_of(r, x), 1);
        return;
    }
    for (int32_t k = 1 - reach; k <= reach; k++) {
        const double d = (part - k) / stretch;
        total += r->method == METHOD_CUBIC ? cubic_weight(r->cubic, d) : fmax(1 - fabs(d), 0);
    }
    for (int32_t k = 1 - reach; k <= reach; k++) {
        const double d = (part - k) / stretch;
        const double weight = r->method == METHOD_CUBIC ? cubic_weight(r->cubic, d) : fmax(1 - fabs(d), 0);
        add_tap(t, r, size, below + k, stretch > 1 ? weight / total : weight);
    }
    total = 0;
    for (uint32_t i = 0; i < t->count; i++) total += t->weight[i];
    for (uint32_t i = 0; i < t->count && total != 0 && r->excludes_outside && r->method == METHOD_CUBIC; i++)
        t->weight[i] /= total;
    sort_taps(t);
}

static ckks_status make_taps(resize *r, uint32_t axis, const model_node *node, arena *memory,
                             ckks_error *err) {
    const uint32_t count = r->out[axis], room = tap_room(r, axis);
    r->taps[axis] = arena_take(memory, count, sizeof **r->taps);
    uint32_t *at = arena_take(memory, (uint64_t)count * room, sizeof *at);
    double *weight = arena_take(memory, (uint64_t)count * room, sizeof *weight);
    if (!r->taps[axis] || !at || !weight)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a grid");
    for (uint32_t i = 0; i < count; i++) {
        tap_list *t = &r->taps[axis][i];
        *t = (tap_list){0, at + (size_t)i * room, weight + (size_t)i * room};
        set_taps(t, r, axis, i);
    }
    return CKKS_OK;
}

static ckks_status resize_read(resize *r, const onnx_model *m, const model_node *node,
                               const tensor *const *in, arena *memory, ckks_error *err) {
    *r = (resize){0};
    ckks_status rc = read_choices(r, m, node, err);
    if (rc == CKKS_OK) rc = read_sizes(r, node, in, memory, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < r->rank; i++) rc = make_taps(r, i, node, memory, err);
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
    for (uint32_t i = 0; i < r.rank; i++) taps *= r.out[i] == r.in[i] ? 1 : tap_room(&r, i);
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
