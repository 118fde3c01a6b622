#include "client/compile/window.h"

#include <string.h>

/* keeps every coordinate far from the ends of int64_t */
#define WINDOW_NUMBER_MAX 65536

/* entry i of a list attribute; `otherwise` where it is absent */
static ckks_status list_number(uint32_t *out, const model_node *node, const char *name, size_t length,
                               size_t i, int64_t low, int64_t otherwise, ckks_error *err) {
    const Onnx__Attribute *a = node_attribute(node, name);
    const int64_t value = a && a->n_ints == length ? a->ints[i] : otherwise;
    if (a && a->n_ints && a->n_ints != length)
        return node_error(node, err, "%s has %zu numbers for %zu", name, a->n_ints, length);
    if (value < low || value > WINDOW_NUMBER_MAX)
        return node_error(node, err, "%s has %lld: it must be within %lld and %d", name, (long long)value,
                          (long long)low, WINDOW_NUMBER_MAX);
    *out = (uint32_t)value;
    return CKKS_OK;
}

typedef enum padding { PAD_EXPLICIT, PAD_UPPER, PAD_LOWER, PAD_VALID } padding;

static ckks_status read_padding(padding *out, const model_node *node, ckks_error *err) {
    static const char *const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
    size_t size;
    const uint8_t *text = node_text(node, "auto_pad", &size);
    *out = PAD_EXPLICIT;
    if (!text || !size) return CKKS_OK;
    for (int i = 0; i < 4; i++)
        if (size == strlen(names[i]) && memcmp(text, names[i], size) == 0) {
            *out = (padding)i;
            return CKKS_OK;
        }
    return node_error(node, err, "an unknown auto_pad");
}

static ckks_status read_axis(window *w, uint32_t i, const model_node *node, padding padding_kind,
                             ckks_error *err) {
    const int64_t kernel = w->kernel[i], dilation = w->dilation[i];
    const int64_t reach = (kernel - 1) * dilation + 1;
    const int64_t in = w->in[i], stride = w->stride[i];
    if (padding_kind == PAD_UPPER || padding_kind == PAD_LOWER) {
        w->out[i] = (uint32_t)((in + stride - 1) / stride);
        int64_t total = (w->out[i] - INT64_C(1)) * stride + reach - in;
        if (total < 0) total = 0;
        const uint32_t small = (uint32_t)(total / 2), large = (uint32_t)(total - total / 2);
        w->pad_begin[i] = padding_kind == PAD_UPPER ? small : large;
        w->pad_end[i] = padding_kind == PAD_UPPER ? large : small;
        return CKKS_OK;
    }
    if (padding_kind == PAD_VALID) w->pad_begin[i] = w->pad_end[i] = 0;
    const int64_t padded = in + w->pad_begin[i] + w->pad_end[i], room = padded - reach;
    if (room < 0)
        return node_error(node, err, "a kernel that reaches over %lld does not fit the %lld of axis %u",
                          (long long)reach, (long long)padded, i + 2);
    int64_t out = room / stride + 1;
    /* a window that hangs over the end counts if it starts before the padding there */
    if (node_int(node, "ceil_mode", 0) && room % stride && out * stride < in + w->pad_begin[i]) out++;
    w->out[i] = (uint32_t)out;
    return CKKS_OK;
}

ckks_status window_read(window *w, const model_node *node, const tensor *x, const uint32_t *kernel,
                        ckks_error *err) {
    ckks_status rc;
    padding padding_kind;
    if (x->rank < 3) return node_error(node, err, "its input has %u axes: batch, channel and space", x->rank);
    *w = (window){.axes = x->rank - 2, .in_count = 1, .out_count = 1, .kernel_count = 1};
    if ((rc = read_padding(&padding_kind, node, err)) != CKKS_OK) return rc;
    uint64_t out_count = 1, kernel_count = 1;
    for (uint32_t i = 0; i < w->axes; i++) {
        w->in[i] = x->dims[i + 2];
        const int64_t size = kernel ? kernel[i] : 0;
        if ((rc = list_number(&w->kernel[i], node, "kernel_shape", w->axes, i, 1, size, err)) != CKKS_OK)
            return rc;
        if (kernel && w->kernel[i] != kernel[i])
            return node_error(node, err, "kernel_shape says %u, the weight has %u", w->kernel[i], kernel[i]);
        if ((rc = list_number(&w->stride[i], node, "strides", w->axes, i, 1, 1, err)) != CKKS_OK) return rc;
        if ((rc = list_number(&w->dilation[i], node, "dilations", w->axes, i, 1, 1, err)) != CKKS_OK)
            return rc;
        const size_t ends = 2 * (size_t)w->axes;
        if ((rc = list_number(&w->pad_begin[i], node, "pads", ends, i, 0, 0, err)) != CKKS_OK) return rc;
        if ((rc = list_number(&w->pad_end[i], node, "pads", ends, w->axes + i, 0, 0, err)) != CKKS_OK)
            return rc;
        if ((rc = read_axis(w, i, node, padding_kind, err)) != CKKS_OK) return rc;
        w->in_count *= w->in[i]; /* part of x, which fits */
        out_count *= w->out[i];
        kernel_count *= w->kernel[i];
        if (out_count > TENSOR_ELEMENTS_MAX || kernel_count > TENSOR_ELEMENTS_MAX)
            return ckks_error_set(err, CKKS_TOO_LARGE, node->label, "more than %u positions",
                                  TENSOR_ELEMENTS_MAX);
    }
    w->out_count = (uint32_t)out_count;
    w->kernel_count = (uint32_t)kernel_count;
    return CKKS_OK;
}

tap_kind window_tap(uint32_t *in, const window *w, uint32_t out, uint32_t tap) {
    tap_kind kind = TAP_INSIDE;
    uint32_t at = 0, scale = 1;
    for (uint32_t i = w->axes; i-- > 0;) {
        const int64_t place = (int64_t)(out % w->out[i]) * w->stride[i] - w->pad_begin[i] +
                              (int64_t)(tap % w->kernel[i]) * w->dilation[i];
        out /= w->out[i], tap /= w->kernel[i];
        if (place >= (int64_t)w->in[i] + w->pad_end[i]) return TAP_OUTSIDE;
        if (place < 0 || place >= w->in[i])
            kind = TAP_PAD;
        else
            at += (uint32_t)place * scale;
        scale *= w->in[i];
    }
    *in = at;
    return kind;
}
