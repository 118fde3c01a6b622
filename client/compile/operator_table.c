#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

static const operator_row *const families[] = {operators_gemm,          operators_window,
                                               operators_normalization, operators_elementwise,
                                               operators_activation,    operators_reduce,
                                               operators_move,          operators_shape,
                                               operators_constant,      operators_output,
                                               operators_classifier,    operators_encode,
                                               operators_linear,        operators_svm,
                                               operators_resize,        operators_transposed,
                                               operators_normalise,     operators_einsum,
                                               operators_place,         operators_fourier,
                                               operators_choice,        NULL};

const operator_row *operator_row_at(uint32_t index) {
    for (const operator_row *const *family = families; *family; family++)
        for (const operator_row *row = *family; row->type; row++)
            if (index-- == 0) return row;
    return NULL;
}

const operator_row *operator_find(const char *domain, const char *type) {
    for (const operator_row *const *family = families; *family; family++)
        for (const operator_row *row = *family; row->type; row++)
            if (strcmp(row->type, type) == 0 && strcmp(row->domain, domain) == 0) return row;
    return NULL;
}

/* ---- help for evaluate ---- */

/* what making and filling an element costs, in products */
#define ELEMENT_WORK 16

ckks_status output_shape(evaluation *e, uint32_t index, const int64_t *dims, size_t rank, ckks_error *err) {
    tensor *t = e->out[index];
    ckks_status rc = tensor_shape(t, dims, rank, e->count_max, e->node->label, err);
    if (rc != CKKS_OK) return rc;
    if (!t->count && !e->is_constant) return node_error(e->node, err, "its output has no elements");
    t->is_integer = false;
    if ((rc = evaluation_work(e, t->count, ELEMENT_WORK, err)) != CKKS_OK) return rc;
    t->data = arena_take(e->memory, t->count, sizeof *t->data);
    if (t->data) return CKKS_OK;
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for %u elements",
                          t->count);
}

ckks_status output_like(evaluation *e, uint32_t index, const tensor *like, ckks_error *err) {
    int64_t dims[TENSOR_RANK_MAX];
    for (uint32_t i = 0; i < like->rank; i++) dims[i] = like->dims[i];
    return output_shape(e, index, dims, like->rank, err);
}

ckks_status evaluation_work(evaluation *e, uint64_t rows, uint64_t per_row, ckks_error *err) {
    uint64_t work;
    if (__builtin_mul_overflow(rows, per_row, &work) || work > *e->work_left)
        return ckks_error_set(err, CKKS_TOO_LARGE, e->node->label,
                              "%llu elements of %llu products each, over %llu for all nodes",
                              (unsigned long long)rows, (unsigned long long)per_row,
                              (unsigned long long)model_work_max(e->model));
    *e->work_left -= work;
    return CKKS_OK;
}

bool node_text_is(const uint8_t *text, size_t size, const char *expected) {
    return text && size == strlen(expected) && memcmp(text, expected, size) == 0;
}

ckks_status node_link(uint32_t *link, const model_node *node, ckks_error *err) {
    static const struct {
        const char *name;
        uint32_t link;
    } links[] = {{"NONE", POST_NONE},
                 {"LOGISTIC", POST_SIGMOID},
                 {"SOFTMAX", POST_SOFTMAX},
                 {"SOFTMAX_ZERO", POST_SOFTMAX_ZERO},
                 {"PROBIT", POST_PROBIT}};
    size_t size;
    const uint8_t *text = node_text(node, "post_transform", &size);
    *link = POST_NONE;
    if (!text) return CKKS_OK;
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        if (node_text_is(text, size, links[i].name)) {
            *link = links[i].link;
            return CKKS_OK;
        }
    return node_error(node, err, "an unknown post_transform");
}

ckks_status node_floats(const float **out, size_t *count, const model_node *node, const char *name,
                        ckks_error *err) {
    const Onnx__Attribute *a = node_attribute(node, name);
    *out = a && a->n_floats ? a->floats : NULL;
    *count = a ? a->n_floats : 0;
    for (size_t i = 0; i < *count; i++)
        if (!isfinite((*out)[i])) return node_error(node, err, "%s has a number that is not finite", name);
    return CKKS_OK;
}

/* 2^62: sums with it do not overflow */
#define NUMBER_MAX (INT64_C(1) << 62)

static int64_t clamped(double value) {
    const double limit = (double)NUMBER_MAX;
    return value >= limit ? NUMBER_MAX : value <= -limit ? -NUMBER_MAX : (int64_t)value;
}
static int64_t clamped_whole(int64_t value) {
    return value > NUMBER_MAX ? NUMBER_MAX : value < -NUMBER_MAX ? -NUMBER_MAX : value;
}

ckks_status node_list(number_list *out, const model_node *node, const tensor *const *in, uint32_t index,
                      const char *attribute, arena *memory, ckks_error *err) {
    const tensor *t = index == MODEL_NONE ? NULL : in[index];
    const Onnx__Attribute *a = t ? NULL : node_attribute(node, attribute);
    *out = (number_list){.is_present = t || a};
    if (t && (t->rank > 1 || !t->data))
        return node_error(node, err, "its %s are no list of numbers", attribute);
    const size_t count = t ? t->count : a ? a->n_ints : 0;
    if (count > COMPUTED_MAX) return node_error(node, err, "%zu numbers in %s", count, attribute);
    out->count = (uint32_t)count;
    out->values = arena_take(memory, count, sizeof *out->values);
    if (!out->values)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a list");
    for (uint32_t i = 0; i < out->count; i++) {
        const double value = t ? t->data[i] : 0;
        if (value != floor(value)) return node_error(node, err, "%s has %g", attribute, value);
        out->values[i] = t ? clamped(value) : clamped_whole(a->ints[i]);
    }
    return CKKS_OK;
}

ckks_status node_axis(uint32_t *out, const model_node *node, int64_t axis, uint32_t rank, ckks_error *err) {
    const int64_t counted = axis < 0 ? axis + rank : axis;
    if (counted < 0 || counted >= rank)
        return node_error(node, err, "axis %lld of %u", (long long)axis, rank);
    *out = (uint32_t)counted;
    return CKKS_OK;
}

ckks_status node_axes(bool *is_listed, const model_node *node, const number_list *axes, uint32_t rank,
                      ckks_error *err) {
    memset(is_listed, 0, TENSOR_RANK_MAX * sizeof *is_listed);
    for (uint32_t i = 0; i < axes->count; i++) {
        uint32_t axis = 0;
        const ckks_status rc = node_axis(&axis, node, axes->values[i], rank, err);
        if (rc != CKKS_OK) return rc;
        if (is_listed[axis]) return node_error(node, err, "axis %u is listed twice", axis);
        is_listed[axis] = true;
    }
    return CKKS_OK;
}

ckks_status broadcast_shape(int64_t dims[TENSOR_RANK_MAX], uint32_t *rank, const model_node *node,
                            const tensor *a, const tensor *b, ckks_error *err) {
    *rank = a->rank > b->rank ? a->rank : b->rank;
    for (uint32_t i = 0; i < *rank; i++) {
        const uint32_t da = i + a->rank < *rank ? 1 : a->dims[i + a->rank - *rank];
        const uint32_t db = i + b->rank < *rank ? 1 : b->dims[i + b->rank - *rank];
        if (da != db && da != 1 && db != 1) {
            char ta[80], tb[80];
            return node_error(node, err, "shapes %s and %s do not go together", tensor_text(a, ta, sizeof ta),
                              tensor_text(b, tb, sizeof tb));
        }
        dims[i] = da > db ? da : db;
        if (da == 0 || db == 0) dims[i] = 0;
    }
    return CKKS_OK;
}

void broadcast_index(uint32_t *index, const tensor *out, const tensor *in) {
    for (uint32_t flat = 0; flat < out->count; flat++) {
        uint32_t rest = flat, at = 0, stride = 1;
        for (uint32_t k = 0; k < out->rank; k++) {
            const uint32_t axis = out->rank - 1 - k;
            const uint32_t coordinate = rest % out->dims[axis];
            rest /= out->dims[axis];
            if (k >= in->rank) continue;
            const uint32_t size = in->dims[in->rank - 1 - k];
            if (size != 1) at += coordinate * stride;
            stride *= size;
        }
        index[flat] = at;
    }
}
