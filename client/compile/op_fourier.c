/* DFT and STFT, which are matrices over pairs of real and imaginary parts, and the windows that go with them.
 */
#include "client/compile/operator.h"

#include <math.h>
#include <string.h>

#define TURN 6.28318530717958647692

/* Lines of `length` points along one axis, the last axis being the parts of a number; output line (o, i) is
 * made of input line (o, i), or, of a STFT, of frame i. */
typedef struct transform {
    uint32_t length, bins; /* points that go in (zeros beyond the line's own), frequencies */
    uint32_t points;       /* of a line that are there */
    uint32_t parts_in, parts_out;
    uint32_t outer, inner;                 /* lines */
    uint32_t in_outer, in_inner, in_point; /* strides, in numbers of parts_in */
    double sign, share;                    /* of the angle; what each point is multiplied by */
    const double *window;                  /* [length], or NULL */
    uint32_t rank;
    int64_t dims[TENSOR_RANK_MAX];
    bool is_framed; /* [outer][frame][bin]: a STFT; else [outer][bin][inner] */
} transform;

static ckks_status one_number(int64_t *out, const model_node *node, const tensor *t, const char *what,
                              ckks_error *err) {
    if (t->count != 1 || !t->data || !(fabs(t->data[0]) <= COMPUTED_MAX) || t->data[0] != floor(t->data[0]))
        return node_error(node, err, "its %s is not one whole number", what);
    *out = (int64_t)t->data[0];
    return CKKS_OK;
}

static ckks_status dft_read(transform *t, const onnx_model *m, const model_node *node,
                            const tensor *const *in, ckks_error *err) {
    const tensor *x = in[0];
    const bool is_inverse = node_int(node, "inverse", 0) != 0,
               is_onesided = node_int(node, "onesided", 0) != 0;
    int64_t axis = m->opset && m->opset < 20 ? node_int(node, "axis", 1) : -2, length;
    uint32_t at;
    ckks_status rc = CKKS_OK;
    if (x->rank < 2 || !x->count || x->dims[x->rank - 1] > 2)
        return node_error(node, err, "its last axis is not one or two parts of a number");
    if (in[2]) rc = one_number(&axis, node, in[2], "axis", err);
    if (rc == CKKS_OK) rc = node_axis(&at, node, axis, x->rank, err);
    if (rc != CKKS_OK) return rc;
    if (at + 1 == x->rank) return node_error(node, err, "its axis is that of the parts");
    if (is_inverse && is_onesided)
        return ckks_error_set(err, CKKS_UNSUPPORTED, node->label,
                              "DFT from half a spectrum to a signal: export the whole spectrum");
    length = x->dims[at];
    if (in[1] && (rc = one_number(&length, node, in[1], "length", err)) != CKKS_OK) return rc;
    if (length < 1) return node_error(node, err, "a length of %lld", (long long)length);
    *t = (transform){.length = (uint32_t)length, .outer = 1, .inner = 1, .parts_out = 2, .rank = x->rank};
    t->points = x->dims[at] < t->length ? x->dims[at] : t->length;
    t->bins = is_onesided ? t->length / 2 + 1 : t->length;
    t->parts_in = x->dims[x->rank - 1];
    for (uint32_t i = 0; i < at; i++) t->outer *= x->dims[i];
    for (uint32_t i = at + 1; i + 1 < x->rank; i++) t->inner *= x->dims[i];
    t->in_point = t->inner, t->in_inner = 1, t->in_outer = t->inner * x->dims[at];
    t->sign = is_inverse ? 1 : -1, t->share = is_inverse ? 1.0 / t->length : 1;
    for (uint32_t i = 0; i < x->rank; i++) t->dims[i] = x->dims[i];
    t->dims[at] = t->bins, t->dims[x->rank - 1] = 2;
    return CKKS_OK;
}

static ckks_status stft_read(transform *t, const model_node *node, const tensor *const *in, ckks_error *err) {
    const tensor *x = in[0], *window = in[2];
    int64_t step = 0, length = window ? window->count : 0;
    ckks_status rc = one_number(&step, node, in[1], "frame_step", err);
    if (rc == CKKS_OK && in[3]) rc = one_number(&length, node, in[3], "frame_length", err);
    if (rc != CKKS_OK) return rc;
    if (x->rank != 3 || !x->count || x->dims[2] > 2 || step < 1 || length < 1 || length > x->dims[1] ||
        (window && window->count != length))
        return node_error(node, err, "its frames of %lld do not fit its signal", (long long)length);
    const uint32_t frames = (uint32_t)((x->dims[1] - length) / step + 1);
    *t = (transform){.length = (uint32_t)length,
                     .points = (uint32_t)length,
                     .parts_in = x->dims[2],
                     .parts_out = 2,
                     .outer = x->dims[0],
                     .inner = frames,
                     .in_outer = x->dims[1],
                     .in_inner = (uint32_t)step,
                     .in_point = 1,
                     .sign = -1,
                     .share = 1,
                     .window = window ? window->data : NULL,
                     .rank = 4,
                     .is_framed = true};
    t->bins = node_int(node, "onesided", 1) ? t->length / 2 + 1 : t->length;
    t->dims[0] = t->outer, t->dims[1] = frames, t->dims[2] = t->bins, t->dims[3] = 2;
    return CKKS_OK;
}

static ckks_status transform_read(transform *t, const onnx_model *m, const model_node *node,
                                  const tensor *const *in, ckks_error *err) {
    return node->proto->op_type[0] == 'S' ? stft_read(t, node, in, err) : dft_read(t, m, node, in, err);
}

typedef struct position {
    uint32_t outer, inner, bin, part;
} position;

static position position_of(const transform *t, uint32_t flat) {
    position at = {.part = flat % t->parts_out};
    const uint32_t rest = flat / t->parts_out;
    if (t->is_framed) {
        at.bin = rest % t->bins, at.inner = rest / t->bins % t->inner;
    } else {
        at.inner = rest % t->inner, at.bin = rest / t->inner % t->bins;
    }
    at.outer = rest / t->bins / t->inner;
    return at;
}

/* what output `at` takes of part `part` of point `point` */
static double coefficient(const transform *t, position at, uint32_t point, uint32_t part) {
    const uint32_t phase = (uint32_t)((uint64_t)point * at.bin % t->length);
    const double angle = t->sign * TURN * phase / t->length;
    const double size = t->share * (t->window ? t->window[point] : 1);
    /* (c + i s) (re + i im) */
    if (at.part == part) return size * cos(angle);
    return size * (part ? -sin(angle) : sin(angle));
}

static uint32_t element_of(const transform *t, position at, uint32_t point, uint32_t part) {
    return (at.outer * t->in_outer + at.inner * t->in_inner + point * t->in_point) * t->parts_in + part;
}

static ckks_status transform_evaluate(evaluation *e, ckks_error *err) {
    transform t = {.parts_out = 1, .bins = 1, .inner = 1};
    ckks_status rc = transform_read(&t, e->model, e->node, e->in, err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, t.dims, t.rank, err);
    /* a sine costs as much as many products */
    if (rc == CKKS_OK) rc = evaluation_work(e, e->out[0]->count, (uint64_t)t.points * t.parts_in * 16, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++) {
        const position at = position_of(&t, i);
        for (uint32_t point = 0; point < t.points; point++)
            for (uint32_t part = 0; part < t.parts_in; part++)
                e->out[0]->data[i] +=
                    coefficient(&t, at, point, part) * e->in[0]->data[element_of(&t, at, point, part)];
    }
    return rc;
}

static ckks_status transform_lower(lowering *l, const model_node *node, ckks_error *err) {
    const tensor **in, *y = &l->model->values[node->outputs[0]].sample;
    transform t = {.parts_out = 1, .bins = 1, .inner = 1};
    sparse *m;
    uint32_t entry = 0;
    ckks_status rc = lower_inputs(&in, l, node, err);
    if (rc != CKKS_OK) return rc;
    if (!lower_only_encrypted(l, node, 0))
        return lower_refuse(l, node, "its window or length depends on the input", "make them constants", err);
    if ((rc = transform_read(&t, l->model, node, in, err)) != CKKS_OK) return rc;
    rc =
        sparse_create(&m, l->memory, y->count, in[0]->count, (uint64_t)y->count * t.points * t.parts_in, err);
    if (rc != CKKS_OK) return rc;
    for (uint32_t i = 0; i < y->count; i++) {
        const position at = position_of(&t, i);
        for (uint32_t point = 0; point < t.points; point++)
            for (uint32_t part = 0; part < t.parts_in; part++) {
                const double value = coefficient(&t, at, point, part);
                if (fabs(value) < 1e-14 * t.share) continue; /* a zero of the sine, but for rounding */
                m->column[entry] = element_of(&t, at, point, part), m->value[entry++] = value;
            }
        m->row_start[i + 1] = entry;
    }
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, m, NULL, err);
}

/* ---- windows ---- */

static ckks_status window_evaluate(evaluation *e, ckks_error *err) {
    static const double shape[3][3] = {{0.5, 0.5, 0}, {25.0 / 46, 21.0 / 46, 0}, {0.42, 0.5, 0.08}};
    const char *type = e->node->proto->op_type;
    const double *c = shape[strcmp(type, "HannWindow") == 0 ? 0 : type[0] == 'H' ? 1 : 2];
    int64_t size = 0;
    ckks_status rc = one_number(&size, e->node, e->in[0], "size", err);
    if (rc == CKKS_OK) rc = output_shape(e, 0, &size, 1, err);
    const double period = node_int(e->node, "periodic", 1) ? (double)size : fmax((double)size - 1, 1);
    for (uint32_t i = 0; rc == CKKS_OK && i < e->out[0]->count; i++)
        e->out[0]->data[i] = c[0] - c[1] * cos(TURN * i / period) + c[2] * cos(2 * TURN * i / period);
    return rc;
}

static ckks_status window_lower(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse(l, node, "its size depends on the input", "make it a constant", err);
}

#define WINDOW(type)                                                                                         \
    { "", type, 1, 1, 1, OPERATOR_CONSTANT_ONLY, window_evaluate, window_lower, NULL }

const operator_row operators_fourier[] = {
    {"", "DFT", 1, 3, 1, 0, transform_evaluate, transform_lower, "constant length and axis"},
    {"", "STFT", 2, 4, 1, 0, transform_evaluate, transform_lower, "constant window and lengths"},
    WINDOW("HannWindow"),
    WINDOW("HammingWindow"),
    WINDOW("BlackmanWindow"),
    {0},
};
