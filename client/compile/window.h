/*
 * A window that slides over the trailing axes of [batch, channel, axis...]: the geometry that convolutions
 * and pools share.
 */
#ifndef CKKS_COMPILE_WINDOW_H
#define CKKS_COMPILE_WINDOW_H

#include "client/compile/operator.h"

#define WINDOW_AXES_MAX (TENSOR_RANK_MAX - 2u)

typedef struct window {
    uint32_t axes;
    uint32_t in[WINDOW_AXES_MAX], out[WINDOW_AXES_MAX], kernel[WINDOW_AXES_MAX], stride[WINDOW_AXES_MAX],
        dilation[WINDOW_AXES_MAX], pad_begin[WINDOW_AXES_MAX], pad_end[WINDOW_AXES_MAX];
    uint32_t in_count, out_count, kernel_count; /* positions */
} window;

/* window_read fills *w from attributes (kernel_shape, strides, dilations, pads, auto_pad, ceil_mode) for the
 * input x; `kernel` are the trailing axes of a weight, or NULL: kernel_shape is needed. CKKS_MALFORMED. */
ckks_status window_read(window *w, const model_node *node, const tensor *x, const uint32_t *kernel,
                        ckks_error *err);

typedef enum tap_kind {
    TAP_INSIDE,
    TAP_PAD,    /* zeros that the file asks for */
    TAP_OUTSIDE /* beyond them: a last window that ceil_mode adds hangs over */
} tap_kind;
/* window_tap: what position `tap` of the kernel sees when the window stands at `out`; where it is inside, *in
 * is the position in the input. Ascends with `tap`. */
tap_kind window_tap(uint32_t *in, const window *w, uint32_t out, uint32_t tap);

#endif
