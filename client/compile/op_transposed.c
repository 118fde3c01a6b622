/*
 * ConvTranspose: a convolution's matrix turned over. An output element sees an input element wherever a
 * stride and a place of the kernel lead from one to the other.
 */
#include "client/compile/operator.h"

#include <string.h>

#define AXES_MAX   (TENSOR_RANK_MAX - 2u)
#define NUMBER_MAX 65536

typedef struct transposed {
    uint32_t axes, batch, channels_in, channels_out, groups;
    int64_t in[AXES_MAX], out[AXES_MAX], kernel[AXES_MAX], stride[AXES_MAX], dilation[AXES_MAX],
        pad[AXES_MAX]; /* pad: at the beginning */
    uint32_t in_count, out_count, kernel_count;
} transposed;

/* entry i of a list attribute of `length` numbers */
static ckks_status list_number(int64_t *out, const model_node *node, const char *name, size_t length,
                               size_t i, int64_t low, int64_t otherwise, ckks_error *err) {
    const Onnx__Attribute *a = node_attribute(node, name);
    if (a && a->n_ints && a->n_ints != length)
        return node_error(node, err, "%s has %zu numbers for %zu", name, a->n_ints, length);
    *out = a && a->n_ints ? a->ints[i] : otherwise;
    if (*out >= low && *out <= NUMBER_MAX) return CKKS_OK;
    return node_error(node, err, "%s has %lld: it must be within %lld and %d", name, (long long)*out,
                      (long long)low, NUMBER_MAX);
}

typedef enum padding { PAD_EXPLICIT, PAD_UPPER, PAD_LOWER, PAD_VALID } padding;

static ckks_status read_padding(padding *out, const model_node *node, ckks_error *err) {
    static const char *const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    size_t size;
    const uint8_t *text = node_text(node, "auto_pad", &size);
    *out = PAD_EXPLICIT;
    for (int i = 0; text && i < 4; i++)
        if (node_text_is(text, size, names[i])) {
            *out = (padding)i;
            return CKKS_OK;
        }
    return text && size ? node_error(node, err, "an unknown auto_pad") : CKKS_OK;
}

static ckks_status read_axis(transposed *t, uint32_t i, const model_node *node, padding kind,
                             const uint32_t *kernel, ckks_error *err) {
    int64_t begin = 0, end = 0, extra = 0, wanted = 0;
    const size_t axes = t->axes;
    ckks_status rc = list_number(&t->kernel[i], node, "kernel_shape", axes, i, 1, kernel[i], err);
    if (rc == CKKS_OK) rc = list_number(&t->stride[i], node, "strides", axes, i, 1, 1, err);
    if (rc == CKKS_OK) rc = list_number(&t->dilation[i], node, "dilations", axes, i, 1, 1, err);
    if (rc == CKKS_OK) rc = list_number(&begin, node, "pads", 2 * axes, i, 0, 0, err);
    if (rc == CKKS_OK) rc = list_number(&end, node, "pads", 2 * axes, axes + i, 0, 0, err);
    if (rc == CKKS_OK) rc = list_number(&extra, node, "output_padding", axes, i, 0, 0, err);
    if (rc == CKKS_OK) rc = list_number(&wanted, node, "output_shape", axes, i, 0, 0, err);
    if (rc != CKKS_OK) return rc;
    if (t->kernel[i] != kernel[i])
        return node_error(node, err, "kernel_shape says %lld, the weight has %u", (long long)t->kernel[i],
                          kernel[i]);
    /* all numbers are at most 2^16 */
    const int64_t whole = t->stride[i] * (t->in[i] - 1) + extra + (t->kernel[i] - 1) * t->dilation[i] + 1;
    if (!wanted && (kind == PAD_UPPER || kind == PAD_LOWER)) wanted = t->in[i] * t->stride[i];
    if (wanted) {
        const int64_t total = whole > wanted ? whole - wanted : 0;
        begin = kind == PAD_UPPER ? total / 2 : total - total / 2;
        end = whole - wanted - begin;
    } else if (kind == PAD_VALID) {
        begin = end = 0;
    }
    t->pad[i] = begin;
    t->out[i] = whole - begin - end;
    if (t->out[i] < 1) return node_error(node, err, "axis %u is padded away", i + 2);
    if (t->out[i] > MODEL_ROW_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, node->label, "axis %u has %lld positions", i + 2,
                              (long long)t->out[i]);
    return CKKS_OK;
}

static ckks_status transposed_read(transposed *t, const model_node *node, const tensor *x,
                                   const tensor *weight, const tensor *bias, ckks_error *err) {
    char text_x[80], text_w[80];
    padding kind;
    const int64_t groups = node_int(node, "group", 1);
    if (x->rank < 3 || weight->rank != x->rank || groups < 1 || groups > NUMBER_MAX || x->dims[1] % groups ||
        weight->dims[0] != x->dims[1] || !x->count || !weight->count)
        return node_error(node, err, "weights %s in %lld groups do not fit %s",
                          tensor_text(weight, text_w, sizeof text_w), (long long)groups,
                          tensor_text(x, text_x, sizeof text_x));
    *t = (transposed){.axes = x->rank - 2,
                      .batch = x->dims[0],
                      .channels_in = x->dims[1],
                      .groups = (uint32_t)groups,
                      .in_count = 1,
                      .kernel_count = 1};
    uint64_t channels = (uint64_t)weight->dims[1] * t->groups, positions = 1;
    ckks_status rc = read_padding(&kind, node, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < t->axes; i++) {
        t->in[i] = x->dims[i + 2];
        rc = read_axis(t, i, node, kind, weight->dims + 2, err);
        if (rc != CKKS_OK) break;
        t->in_count *= x->dims[i + 2], t->kernel_count *= weight->dims[i + 2]; /* of tensors, which fit */
        positions *= (uint64_t)t->out[i];
        if (positions > MODEL_ROW_MAX || channels > MODEL_ROW_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, node->label, "more than %u positions or channels",
                                  MODEL_ROW_MAX);
    }
    if (rc != CKKS_OK) return rc;
    t->out_count = (uint32_t)positions, t->channels_out = (uint32_t)channels;
    if (bias && (bias->rank != 1 || bias->count != t->channels_out))
        return node_error(node, err, "a bias of %u numbers for %u channels", bias->count, t->channels_out);
    return CKKS_OK;
}

/* the input position that reaches `out` through place `tap` of the kernel; false: none */
static bool reached_from(uint32_t *in, const transposed *t, uint32_t out, uint32_t tap) {
    uint32_t at = 0, scale = 1;
    for (uint32_t i = t->axes; i-- > 0;) {
        const int64_t place =
            out % (uint32_t)t->out[i] + t->pad[i] - tap % (uint32_t)t->kernel[i] * t->dilation[i];
        out /= (uint32_t)t->out[i], tap /= (uint32_t)t->kernel[i];
        if (place < 0 || place % t->stride[i] || place / t->stride[i] >= t->in[i]) return false;
        at += (uint32_t)(place / t->stride[i]) * scale;
        scale *= (uint32_t)t->in[i];
    }
    *in = at;
    return true;
}

/* row (n, o, out); taps backwards, so that columns ascend. column NULL: only counted */
static uint32_t row_entries(uint32_t *column, double *value, const transposed *t, const double *weight,
                            uint32_t row) {
    CKKS_ASSERT(t->out_count && t->groups && t->channels_out >= t->groups);
    const uint32_t out = row % t->out_count, channel = row / t->out_count % t->channels_out;
    const uint32_t batch = row / t->out_count / t->channels_out;
    const uint32_t group_in = t->channels_in / t->groups, group_out = t->channels_out / t->groups;
    const uint32_t group = channel / group_out;
    uint32_t count = 0;
    for (uint32_t i = group * group_in; i < (group + 1) * group_in; i++)
        for (uint32_t tap = t->kernel_count; tap-- > 0;) {
            uint32_t in;
            const size_t at = ((size_t)i * group_out + channel % group_out) * t->kernel_count + tap;
            if (weight[at] == 0 || !reached_from(&in, t, out, tap)) continue;
            if (column) {
                column[count] = (batch * t->channels_in + i) * t->in_count + in;
                value[count] = weight[at];
            }
            count++;
        }
    return count;
}

static ckks_status transposed_matrix(sparse **out, const transposed *t, const double *weight, uint32_t rows,
                                     arena *memory, ckks_error *err) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < rows; i++) total += row_entries(NULL, NULL, t, weight, i);
    const ckks_status rc =
        sparse_create(out, memory, rows, t->batch * t->channels_in * t->in_count, total, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < rows; i++) {
        const uint32_t start = (*out)->row_start[i];
        (*out)->row_start[i + 1] =
            start + row_entries((*out)->column + start, (*out)->value + start, t, weight, i);
    }
    return rc;
}

static ckks_status transposed_evaluate(evaluation *e, ckks_error *err) {
    transposed t = {0};
    sparse *matrix;
    int64_t dims[TENSOR_RANK_MAX];
    const tensor *x = e->in[0], *weight = e->in[1], *bias = e->in[2];
    ckks_status rc = transposed_read(&t, e->node, x, weight, bias, err);
    if (rc != CKKS_OK) return rc;
    CKKS_ASSERT(t.groups);
    dims[0] = t.batch, dims[1] = t.channels_out;
    for (uint32_t i = 0; i < t.axes; i++) dims[i + 2] = t.out[i];
    if ((rc = output_shape(e, 0, dims, x->rank, err)) != CKKS_OK) return rc;
    tensor *y = e->out[0];
    rc = evaluation_work(e, y->count, 2 * (uint64_t)(t.channels_in / t.groups) * t.kernel_count, err);
    if (rc == CKKS_OK) rc = transposed_matrix(&matrix, &t, weight->data, y->count, e->memory, err);
    if (rc != CKKS_OK) return rc;
    CKKS_ASSERT(t.out_count && (!bias || bias->count));
    for (uint32_t i = 0; bias && i < y->count; i++) y->data[i] = bias->data[i / t.out_count % bias->count];
    sparse_apply_add(y->data, matrix, x->data);
    return CKKS_OK;
}

static ckks_status transposed_lower(lowering *l, const model_node *node, ckks_error *err) {
    transposed t = {0};
    const tensor **in;
    sparse *matrix;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its weights depend on the input", "make them initialisers", err);
    if ((rc = transposed_read(&t, node, in[0], in[1], in[2], err)) != CKKS_OK) return rc;
    const uint32_t rows = l->model->values[node->outputs[0]].sample.count;
    if ((rc = transposed_matrix(&matrix, &t, in[1]->data, rows, l->memory, err)) != CKKS_OK) return rc;
    double *full = arena_take(l->memory, rows, sizeof *full);
    if (!full) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a bias");
    CKKS_ASSERT(t.out_count && (!in[2] || in[2]->count));
    for (uint32_t i = 0; in[2] && i < rows; i++) full[i] = in[2]->data[i / t.out_count % in[2]->count];
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, full, err);
}

const operator_row operators_transposed[] = {
    {"", "ConvTranspose", 2, 3, 1, 0, transposed_evaluate, transposed_lower, "constant weights"},
    {0},
};
