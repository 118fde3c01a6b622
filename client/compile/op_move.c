/*
 * Operators that move elements and compute nothing: each output element is one input element or a constant.
 * Transpose, Slice, Pad, Gather, Expand, Tile, Split, DepthToSpace, SpaceToDepth and Concat become matrices
 * with at most one entry in a row, which the compiler folds into the layer beside them.
 *
 * All but Concat work axis by axis: a table for each axis of the output says how far into the input a
 * coordinate leads; the element is at the sum over the axes.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define MOVE_AXES_MAX 10u

typedef struct move_axis {
    uint32_t size;
    uint32_t *offset; /* [size]; MODEL_NONE: the fill */
} move_axis;

typedef struct movement {
    const onnx_model *model;
    const model_node *node;
    const tensor *const *in; /* in[0] moves: its shape; of the others the data */
    arena *memory;
    uint32_t output; /* which one, for Split */
    uint32_t rank;   /* of the output */
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t axis_count;
    move_axis axes[MOVE_AXES_MAX];
    double fill;
} movement;

typedef ckks_status (*move_plan)(movement *m, ckks_error *err);

static ckks_status no_memory(const model_node *node, ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory to move elements");
}

/* ---- building blocks ---- */

/* elements from one entry of an axis to the next */
static uint32_t stride_of(const tensor *t, uint32_t axis) {
    uint32_t stride = 1;
    for (uint32_t i = axis + 1; i < t->rank; i++) stride *= t->dims[i];
    return stride;
}

/* adds an axis with room for its table, which is zero */
static ckks_status add_axis(uint32_t **offset, movement *m, int64_t size, ckks_error *err) {
    CKKS_ASSERT(m->axis_count < MOVE_AXES_MAX);
    if (size < 0 || size > COMPUTED_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, m->node->label, "an axis of %lld elements",
                              (long long)size);
    if (!(*offset = arena_take(m->memory, (uint64_t)size, sizeof **offset))) return no_memory(m->node, err);
    m->axes[m->axis_count++] = (move_axis){(uint32_t)size, *offset};
    return CKKS_OK;
}

/* coordinates lead `stride` further each */
static ckks_status add_plain_axis(movement *m, uint32_t size, uint32_t stride, ckks_error *err) {
    uint32_t *offset;
    const ckks_status rc = add_axis(&offset, m, size, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < size; i++) offset[i] = i * stride;
    return rc;
}

/* an axis as it is */
static ckks_status keep_axis(movement *m, uint32_t axis, ckks_error *err) {
    const tensor *x = m->in[0];
    m->dims[m->rank++] = x->dims[axis];
    return add_plain_axis(m, x->dims[axis], stride_of(x, axis), err);
}

static void fill_index(uint32_t *index, const movement *m, uint32_t count) {
    for (uint32_t flat = 0; flat < count; flat++) {
        uint32_t rest = flat, at = 0;
        bool is_inside = true;
        for (uint32_t i = m->axis_count; i-- > 0;) {
            const uint32_t step = m->axes[i].offset[rest % m->axes[i].size];
            rest /= m->axes[i].size;
            is_inside = is_inside && step != MODEL_NONE;
            at += step;
        }
        index[flat] = is_inside ? at : MODEL_NONE;
    }
}

/* ---- the operators ---- */

static ckks_status plan_transpose(movement *m, ckks_error *err) {
    number_list order;
    bool is_listed[TENSOR_RANK_MAX];
    const tensor *x = m->in[0];
    ckks_status rc = node_list(&order, m->node, m->in, MODEL_NONE, "perm", m->memory, err);
    if (rc != CKKS_OK) return rc;
    if (order.is_present && order.count != x->rank)
        return node_error(m->node, err, "perm has %u axes of %u", order.count, x->rank);
    if ((rc = node_axes(is_listed, m->node, &order, x->rank, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < x->rank; i++) {
        uint32_t axis = x->rank - 1 - i;
        if (order.is_present) rc = node_axis(&axis, m->node, order.values[i], x->rank, err);
        if (rc == CKKS_OK) rc = keep_axis(m, axis, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

typedef struct slice_axis {
    int64_t start, end, step;
} slice_axis;

/* start and end as Python means them */
static ckks_status slice_one(movement *m, uint32_t axis, slice_axis s, ckks_error *err) {
    const int64_t size = m->in[0]->dims[axis];
    uint32_t *offset;
    if (s.step == 0) return node_error(m->node, err, "a step of 0");
    if (s.start < 0) s.start += size;
    if (s.end < 0) s.end += size;
    s.start = clamp(s.start, 0, s.step > 0 ? size : size - 1);
    s.end = clamp(s.end, s.step > 0 ? 0 : -1, size);
    s.step = clamp(s.step, -size - 1, size + 1);
    const int64_t span = s.step > 0 ? s.end - s.start : s.start - s.end, step = s.step > 0 ? s.step : -s.step;
    const int64_t count = span > 0 ? (span + step - 1) / step : 0;
    m->dims[m->rank++] = count;
    const ckks_status rc = add_axis(&offset, m, count, err);
    const uint32_t stride = stride_of(m->in[0], axis);
    for (int64_t i = 0; rc == CKKS_OK && i < count; i++)
        offset[i] = (uint32_t)(s.start + i * s.step) * stride;
    return rc;
}

static ckks_status plan_slice(movement *m, ckks_error *err) {
    number_list starts, ends, axes, steps;
    const tensor *x = m->in[0];
    ckks_status rc = node_list(&starts, m->node, m->in, 1, "starts", m->memory, err);
    if (rc == CKKS_OK) rc = node_list(&ends, m->node, m->in, 2, "ends", m->memory, err);
    if (rc == CKKS_OK) rc = node_list(&axes, m->node, m->in, 3, "axes", m->memory, err);
    if (rc == CKKS_OK) rc = node_list(&steps, m->node, m->in, 4, "steps", m->memory, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t count = starts.count;
    if (ends.count != count || count > x->rank || (axes.is_present && axes.count != count) ||
        (steps.is_present && steps.count != count))
        return node_error(m->node, err, "%u starts, %u ends, %u axes and %u steps", count, ends.count,
                          axes.count, steps.count);
    slice_axis slices[TENSOR_RANK_MAX];
    bool is_listed[TENSOR_RANK_MAX];
    for (uint32_t i = 0; i < x->rank; i++) slices[i] = (slice_axis){0, x->dims[i], 1};
    if (axes.is_present && (rc = node_axes(is_listed, m->node, &axes, x->rank, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis = i;
        if (axes.is_present && (rc = node_axis(&axis, m->node, axes.values[i], x->rank, err)) != CKKS_OK)
            return rc;
        slices[axis] = (slice_axis){starts.values[i], ends.values[i], steps.is_present ? steps.values[i] : 1};
    }
    for (uint32_t i = 0; i < x->rank; i++)
        if ((rc = slice_one(m, i, slices[i], err)) != CKKS_OK) return rc;
    return CKKS_OK;
}

typedef enum pad_mode { PAD_CONSTANT, PAD_REFLECT, PAD_EDGE, PAD_WRAP } pad_mode;

static ckks_status read_pad_mode(pad_mode *out, const model_node *node, ckks_error *err) {
    static const char *const names[] = {"constant", "reflect", "edge", "wrap"};
    size_t size;
    const uint8_t *text = node_text(node, "mode", &size);
    *out = PAD_CONSTANT;
    if (!text) return CKKS_OK;
    for (int i = 0; i < 4; i++)
        if (size == strlen(names[i]) && memcmp(text, names[i], size) == 0) {
            *out = (pad_mode)i;
            return CKKS_OK;
        }
    return node_error(node, err, "an unknown mode");
}

/* where position `at` of an axis of `size` reads; -1: the fill */
static int64_t pad_source(pad_mode mode, int64_t at, int64_t size) {
    if (at >= 0 && at < size) return at;
    switch (mode) {
    case PAD_REFLECT: {
        const int64_t period = size > 1 ? 2 * (size - 1) : 1;
        const int64_t phase = (at % period + period) % period;
        return phase < size ? phase : period - phase;
    }
    case PAD_EDGE:
        return clamp(at, 0, size - 1);
    case PAD_WRAP:
        return (at % size + size) % size;
    default:
        return -1;
    }
}

static ckks_status pad_one(movement *m, uint32_t axis, int64_t before, int64_t after, pad_mode mode,
                           ckks_error *err) {
    const int64_t size = m->in[0]->dims[axis];
    uint32_t *offset;
    before = clamp(before, -size, COMPUTED_MAX), after = clamp(after, -size, COMPUTED_MAX);
    const int64_t count = size + before + after;
    if (count < 0 || (count > 0 && size == 0 && mode != PAD_CONSTANT))
        return node_error(m->node, err, "axis %u of %lld is padded by %lld and %lld", axis, (long long)size,
                          (long long)before, (long long)after);
    m->dims[m->rank++] = count;
    const ckks_status rc = add_axis(&offset, m, count, err);
    const uint32_t stride = stride_of(m->in[0], axis);
    for (int64_t i = 0; rc == CKKS_OK && i < count; i++) {
        const int64_t from = pad_source(mode, i - before, size);
        offset[i] = from < 0 ? MODEL_NONE : (uint32_t)from * stride;
    }
    return rc;
}

static ckks_status plan_pad(movement *m, ckks_error *err) {
    number_list pads, axes;
    pad_mode mode;
    const tensor *x = m->in[0], *value = m->in[2];
    int64_t before[TENSOR_RANK_MAX] = {0}, after[TENSOR_RANK_MAX] = {0};
    bool is_listed[TENSOR_RANK_MAX];
    ckks_status rc = read_pad_mode(&mode, m->node, err);
    if (rc == CKKS_OK) rc = node_list(&pads, m->node, m->in, 1, "pads", m->memory, err);
    if (rc == CKKS_OK) rc = node_list(&axes, m->node, m->in, 3, "axes", m->memory, err);
    if (rc == CKKS_OK) rc = node_axes(is_listed, m->node, &axes, x->rank, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t count = axes.is_present ? axes.count : x->rank;
    if (pads.count != 2 * count) return node_error(m->node, err, "%u pads for %u axes", pads.count, count);
    if (value && value->count > 1) return node_error(m->node, err, "its value has %u numbers", value->count);
    m->fill = value && value->count ? value->data[0] : node_float(m->node, "value", 0);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t axis = i;
        if (axes.is_present && (rc = node_axis(&axis, m->node, axes.values[i], x->rank, err)) != CKKS_OK)
            return rc;
        before[axis] = pads.values[i], after[axis] = pads.values[count + i];
    }
    for (uint32_t i = 0; i < x->rank; i++)
        if ((rc = pad_one(m, i, before[i], after[i], mode, err)) != CKKS_OK) return rc;
    return CKKS_OK;
}

static ckks_status plan_gather(movement *m, ckks_error *err) {
    const tensor *x = m->in[0], *indices = m->in[1];
    uint32_t axis, *offset;
    ckks_status rc = node_axis(&axis, m->node, node_int(m->node, "axis", 0), x->rank, err);
    if (rc != CKKS_OK) return rc;
    if (x->rank - 1 + indices->rank > TENSOR_RANK_MAX)
        return node_error(m->node, err, "indices of %u axes for an input of %u", indices->rank, x->rank);
    for (uint32_t i = 0; i < axis; i++)
        if ((rc = keep_axis(m, i, err)) != CKKS_OK) return rc;
    for (uint32_t i = 0; i < indices->rank; i++) m->dims[m->rank++] = indices->dims[i];
    if ((rc = add_axis(&offset, m, indices->count, err)) != CKKS_OK) return rc;
    const double size = x->dims[axis];
    for (uint32_t i = 0; i < indices->count; i++) {
        const double at = indices->data[i] < 0 ? indices->data[i] + size : indices->data[i];
        if (!(at >= 0 && at < size) || at != floor(at))
            return node_error(m->node, err, "index %g of axis %u with %g", indices->data[i], axis, size);
        offset[i] = (uint32_t)at * stride_of(x, axis);
    }
    for (uint32_t i = axis + 1; i < x->rank; i++)
        if ((rc = keep_axis(m, i, err)) != CKKS_OK) return rc;
    return CKKS_OK;
}

/* Expand broadcasts to at least the wanted shape; sizes of 1 do. */
static ckks_status plan_expand(movement *m, ckks_error *err) {
    number_list wanted;
    const tensor *x = m->in[0];
    ckks_status rc = node_list(&wanted, m->node, m->in, 1, "shape", m->memory, err);
    if (rc != CKKS_OK) return rc;
    const uint32_t rank = wanted.count > x->rank ? wanted.count : x->rank;
    if (rank > TENSOR_RANK_MAX) return node_error(m->node, err, "a shape of %u axes", rank);
    for (uint32_t i = 0; i < rank; i++) {
        const bool has_axis = i + x->rank >= rank, is_wanted = i + wanted.count >= rank;
        const uint32_t axis = has_axis ? i + x->rank - rank : 0;
        const int64_t size = has_axis ? x->dims[axis] : 1;
        const int64_t want = is_wanted ? wanted.values[i + wanted.count - rank] : 1;
        if (want != size && want != 1 && size != 1)
            return node_error(m->node, err, "axis %u of %lld cannot become %lld", i, (long long)size,
                              (long long)want);
        m->dims[m->rank++] = size == 1 ? want : size;
        if (size != 1) {
            rc = add_plain_axis(m, (uint32_t)size, stride_of(x, axis), err);
        } else {
            uint32_t *offset;
            rc = add_axis(&offset, m, want, err);
        }
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

static ckks_status plan_tile(movement *m, ckks_error *err) {
    number_list repeats;
    const tensor *x = m->in[0];
    ckks_status rc = node_list(&repeats, m->node, m->in, 1, "repeats", m->memory, err);
    if (rc != CKKS_OK) return rc;
    if (repeats.count != x->rank)
        return node_error(m->node, err, "%u repeats for %u axes", repeats.count, x->rank);
    for (uint32_t i = 0; i < x->rank; i++) {
        uint32_t *offset;
        const int64_t size = x->dims[i];
        const int64_t count = size * clamp(repeats.values[i], -1, (int64_t)COMPUTED_MAX + 1);
        m->dims[m->rank++] = count;
        if ((rc = add_axis(&offset, m, count, err)) != CKKS_OK) return rc;
        for (int64_t k = 0; k < count; k++) offset[k] = (uint32_t)(k % size) * stride_of(x, i);
    }
    return CKKS_OK;
}

/* ---- Split ---- */

/* the size of part `number`; sizes come from the attribute, from an input, or are equal */
static ckks_status split_size(int64_t *start, int64_t *size, movement *m, uint32_t axis, ckks_error *err) {
    number_list sizes;
    const int64_t total = m->in[0]->dims[axis], parts = m->node->output_count;
    ckks_status rc = node_list(&sizes, m->node, m->in, 1, "split", m->memory, err);
    if (rc != CKKS_OK) return rc;
    if (!sizes.is_present) {
        /* equal parts, the last smaller if need be */
        const int64_t one = (total + parts - 1) / parts;
        *start = one * m->output;
        *size = clamp(total - *start, 0, one);
        return CKKS_OK;
    }
    if (sizes.count != parts)
        return node_error(m->node, err, "%u parts for %lld outputs", sizes.count, (long long)parts);
    int64_t sum = 0;
    for (uint32_t i = 0; i < sizes.count; i++) {
        if (sizes.values[i] < 0 || sizes.values[i] > total)
            return node_error(m->node, err, "a part of %lld of %lld", (long long)sizes.values[i],
                              (long long)total);
        if (i == m->output) *start = sum, *size = sizes.values[i];
        sum += sizes.values[i];
    }
    if (sum != total)
        return node_error(m->node, err, "parts of %lld together, the axis has %lld", (long long)sum,
                          (long long)total);
    return CKKS_OK;
}

static ckks_status plan_split(movement *m, ckks_error *err) {
    const tensor *x = m->in[0];
    uint32_t axis;
    int64_t start = 0, size = 0;
    ckks_status rc = node_axis(&axis, m->node, node_int(m->node, "axis", 0), x->rank, err);
    if (rc == CKKS_OK) rc = split_size(&start, &size, m, axis, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < x->rank; i++)
        rc = i == axis ? slice_one(m, i, (slice_axis){start, start + size, 1}, err) : keep_axis(m, i, err);
    return rc;
}

/* ---- DepthToSpace, SpaceToDepth: a reshape, a transpose and a reshape ---- */

static ckks_status plan_depth(movement *m, ckks_error *err) {
    const tensor *x = m->in[0];
    const int64_t block = node_int(m->node, "blocksize", 0);
    const bool to_space = m->node->proto->op_type[0] == 'D';
    size_t size;
    const uint8_t *mode = node_text(m->node, "mode", &size);
    if (x->rank != 4 || block < 1 || block > 65535)
        return node_error(m->node, err, "needs four axes and a block size");
    const uint32_t b = (uint32_t)block, n = x->dims[0], c = x->dims[1], h = x->dims[2], w = x->dims[3];
    if (to_space ? c % (b * b) != 0 : h % b != 0 || w % b != 0)
        return node_error(m->node, err, "blocks of %u do not fit", b);
    const bool is_crd = mode && size == 3 && memcmp(mode, "CRD", 3) == 0;
    const uint32_t plane = h * w, deep = to_space ? c / (b * b) : 1;
    /* sizes and strides of the output's virtual axes */
    const uint32_t spread[6][2] = {{n, c * plane}, {deep, is_crd ? b * b * plane : plane},
                                   {h, w},         {b, is_crd ? b * plane : b * deep * plane},
                                   {w, 1},         {b, is_crd ? plane : deep * plane}};
    const uint32_t gather[2][6][2] = {
        {{n, c * plane}, {b, w}, {b, 1}, {c, plane}, {h / b, b * w}, {w / b, b}},
        {{n, c * plane}, {c, plane}, {b, w}, {b, 1}, {h / b, b * w}, {w / b, b}}};
    for (int i = 0; i < 6; i++) {
        const uint32_t *axis = to_space ? spread[i] : gather[is_crd][i];
        const ckks_status rc = add_plain_axis(m, axis[0], axis[1], err);
        if (rc != CKKS_OK) return rc;
    }
    m->rank = 4, m->dims[0] = n;
    m->dims[1] = to_space ? deep : (int64_t)c * b * b;
    m->dims[2] = to_space ? (int64_t)h * b : h / b;
    m->dims[3] = to_space ? (int64_t)w * b : w / b;
    return CKKS_OK;
}

static move_plan plan_of(const model_node *node) {
    static const struct {
        const char *type;
        move_plan plan;
    } plans[] = {{"Transpose", plan_transpose}, {"Slice", plan_slice},       {"Pad", plan_pad},
                 {"Gather", plan_gather},       {"Expand", plan_expand},     {"Tile", plan_tile},
                 {"Split", plan_split},         {"DepthToSpace", plan_depth}};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        if (strcmp(plans[i].type, node->proto->op_type) == 0) return plans[i].plan;
    return plan_depth;
}

/* ---- evaluate and lower ---- */

static ckks_status move_evaluate(evaluation *e, ckks_error *err) {
    const move_plan plan = plan_of(e->node);
    for (uint32_t k = 0; k < e->node->output_count; k++) {
        movement m = {.model = e->model, .node = e->node, .in = e->in, .memory = e->memory, .output = k};
        ckks_status rc = plan(&m, err);
        if (rc == CKKS_OK) rc = output_shape(e, k, m.dims, m.rank, err);
        if (rc != CKKS_OK) return rc;
        tensor *y = e->out[k];
        uint32_t *index = arena_take(e->memory, y->count, sizeof *index);
        if (!index) return no_memory(e->node, err);
        fill_index(index, &m, y->count);
        for (uint32_t i = 0; i < y->count; i++)
            y->data[i] = index[i] == MODEL_NONE ? m.fill : e->in[0]->data[index[i]];
        y->is_integer = e->in[0]->is_integer;
    }
    return CKKS_OK;
}

/* row i reads element index[i], or nothing: then the bias is the fill */
static ckks_status selection(sparse **out, double **bias, const movement *m, uint32_t rows, uint32_t columns,
                             ckks_error *err) {
    uint32_t *index = arena_take(m->memory, rows, sizeof *index), entry = 0;
    *bias = arena_take(m->memory, rows, sizeof **bias);
    if (!index || !*bias) return no_memory(m->node, err);
    const ckks_status rc = sparse_create(out, m->memory, rows, columns, rows, err);
    if (rc != CKKS_OK) return rc;
    fill_index(index, m, rows);
    for (uint32_t i = 0; i < rows; i++) {
        if (index[i] == MODEL_NONE) {
            (*bias)[i] = m->fill;
        } else {
            (*out)->column[entry] = index[i];
            (*out)->value[entry++] = 1.0;
        }
        (*out)->row_start[i + 1] = entry;
    }
    return CKKS_OK;
}

static ckks_status move_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "where it reads depends on encrypted data, which cannot be followed",
                            "select columns before encryption, or write the selection as a MatMul with "
                            "constants",
                            err);
    for (uint32_t k = 0; k < node->output_count; k++) {
        movement m = {.model = l->model, .node = node, .in = in, .memory = l->memory, .output = k};
        sparse *matrix;
        double *bias;
        if ((rc = plan_of(node)(&m, err)) != CKKS_OK) return rc;
        const uint32_t rows = l->model->values[node->outputs[k]].sample.count;
        if ((rc = selection(&matrix, &bias, &m, rows, in[0]->count, err)) != CKKS_OK) return rc;
        rc = lower_linear_output(l, node, k, lower_symbol(l, node, 0)->node, matrix, bias, err);
        if (rc != CKKS_OK) return rc;
    }
    return CKKS_OK;
}

/* ---- Concat ---- */

static ckks_status concat_shape(int64_t dims[TENSOR_RANK_MAX], uint32_t *axis, const model_node *node,
                                const tensor *const *in, ckks_error *err) {
    const tensor *first = in[0];
    ckks_status rc = node_axis(axis, node, node_int(node, "axis", 1), first->rank, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < first->rank; i++) dims[i] = first->dims[i];
    for (uint32_t k = 1; k < node->input_count; k++) {
        if (!in[k] || in[k]->rank != first->rank)
            return node_error(node, err, "input %u has other axes than the first", k);
        for (uint32_t i = 0; i < first->rank; i++)
            if (i != *axis && in[k]->dims[i] != first->dims[i])
                return node_error(node, err, "input %u has %u elements in axis %u, the first %u", k,
                                  in[k]->dims[i], i, first->dims[i]);
        dims[*axis] += in[k]->dims[*axis];
    }
    return CKKS_OK;
}

/* element i of a part whose axis begins at `begin` of the whole's `size`; `inner` elements per entry */
static uint32_t concat_place(const tensor *part, uint32_t axis, uint32_t begin, uint32_t size, uint32_t inner,
                             uint32_t i) {
    const uint32_t run = part->dims[axis] * inner;
    return i / run * (size * inner) + begin * inner + i % run;
}

static ckks_status concat_evaluate(evaluation *e, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t axis, begin = 0;
    ckks_status rc = concat_shape(dims, &axis, e->node, e->in, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, dims, e->in[0]->rank, err);
    if (rc != CKKS_OK) return rc;
    tensor *y = e->out[0];
    y->is_integer = true;
    for (uint32_t k = 0; k < e->node->input_count; k++) {
        const tensor *part = e->in[k];
        for (uint32_t i = 0; i < part->count; i++)
            y->data[concat_place(part, axis, begin, y->dims[axis], stride_of(part, axis), i)] = part->data[i];
        begin += part->dims[axis];
        y->is_integer = y->is_integer && part->is_integer;
    }
    return CKKS_OK;
}

/* rows of the part's places read its elements */
static ckks_status concat_term(sparse **out, lowering *l, const tensor *part, const tensor *y, uint32_t axis,
                               uint32_t begin, ckks_error *err) {
    const ckks_status rc = sparse_create(out, l->memory, y->count, part->count, part->count, err);
    if (rc != CKKS_OK) return rc;
    sparse *m = *out;
    const uint32_t inner = stride_of(part, axis);
    /* places ascend with i */
    for (uint32_t i = 0; i < part->count; i++) {
        m->row_start[concat_place(part, axis, begin, y->dims[axis], inner, i) + 1] = 1;
        m->column[i] = i, m->value[i] = 1.0;
    }
    for (uint32_t row = 0; row < y->count; row++) m->row_start[row + 1] += m->row_start[row];
    return CKKS_OK;
}

static ckks_status concat_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in, *y = &l->model->values[node->outputs[0]].sample;
    int64_t dims[TENSOR_RANK_MAX];
    uint32_t axis, begin = 0;
    ir_node made = {.kind = IR_LINEAR, .count = y->count};
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc == CKKS_OK) rc = concat_shape(dims, &axis, node, in, err);
    if (rc != CKKS_OK) return rc;
    made.terms = arena_take(l->memory, node->input_count, sizeof *made.terms);
    made.bias = arena_take(l->memory, y->count, sizeof *made.bias);
    if (!made.terms || !made.bias) return no_memory(node, err);
    for (uint32_t k = 0; k < node->input_count; k++) {
        sparse *matrix;
        if (lower_is_encrypted(l, node, k)) {
            if ((rc = concat_term(&matrix, l, in[k], y, axis, begin, err)) != CKKS_OK) return rc;
            made.terms[made.term_count++] = (ir_term){lower_symbol(l, node, k)->node, matrix};
        } else {
            for (uint32_t i = 0; i < in[k]->count; i++)
                made.bias[concat_place(in[k], axis, begin, y->dims[axis], stride_of(in[k], axis), i)] =
                    in[k]->data[i];
        }
        begin += in[k]->dims[axis];
    }
    return lower_append(l, node, &made, err);
}

#define MOVE(type, inputs_min, inputs_max, outputs_max, note)                                                \
    { "", type, inputs_min, inputs_max, outputs_max, 0, move_evaluate, move_lower, note }

const operator_row operators_move[] = {
    MOVE("Transpose", 1, 1, 1, NULL),
    MOVE("Slice", 1, 5, 1, "constant bounds"),
    MOVE("Pad", 1, 4, 1, "constant pads"),
    MOVE("Gather", 2, 2, 1, "constant indices"),
    MOVE("Expand", 2, 2, 1, "constant shape"),
    MOVE("Tile", 2, 2, 1, "constant repeats"),
    MOVE("Split", 1, 2, OPERATOR_MANY, "constant sizes"),
    MOVE("DepthToSpace", 1, 1, 1, NULL),
    MOVE("SpaceToDepth", 1, 1, 1, NULL),
    {"", "Concat", 1, OPERATOR_MANY, 1, 0, concat_evaluate, concat_lower, NULL},
    {0},
};
