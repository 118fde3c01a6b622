/*
 * Windows that slide over an image: Conv in any number of axes, AveragePool, GlobalAveragePool. Each output
 * element is a weighted sum of what its window sees, so all of them are sparse matrices, with as many entries
 * in a row as the window has weights that are not zero.
 */
#include "client/compile/window.h"

#include <math.h>
#include <string.h>

static void shape_with_axes(int64_t dims[TENSOR_RANK_MAX], uint32_t batch, uint32_t channels,
                            const window *w) {
    dims[0] = batch, dims[1] = channels;
    for (uint32_t i = 0; i < w->axes; i++) dims[i + 2] = w->out[i];
}

/* ---- Conv ---- */

typedef struct convolution {
    window window;
    uint32_t batch, channels_in, channels_out, groups;
    uint32_t group_in, group_out; /* channels of one group */
} convolution;

static ckks_status convolution_read(convolution *c, const model_node *node, const tensor *x,
                                    const tensor *weight, const tensor *bias, ckks_error *err) {
    char text_x[80], text_w[80];
    const int64_t groups = node_int(node, "group", 1);
    if (x->rank < 3 || weight->rank != x->rank || groups < 1 || x->dims[1] % groups ||
        weight->dims[0] % groups || weight->dims[1] != x->dims[1] / groups)
        return node_error(node, err, "weights %s in %lld groups do not fit %s",
                          tensor_text(weight, text_w, sizeof text_w), (long long)groups,
                          tensor_text(x, text_x, sizeof text_x));
    *c = (convolution){.batch = x->dims[0],
                       .channels_in = x->dims[1],
                       .channels_out = weight->dims[0],
                       .groups = (uint32_t)groups};
    c->group_in = c->channels_in / c->groups;
    c->group_out = c->channels_out / c->groups;
    if (bias && (bias->rank != 1 || bias->count != c->channels_out))
        return node_error(node, err, "a bias of %u numbers for %u channels", bias->count, c->channels_out);
    return window_read(&c->window, node, x, weight->dims + 2, err);
}

/* what one tap adds to all channels of one output position */
static void convolve_tap(double *y, const convolution *c, const double *x, const double *weight,
                         uint32_t tap) {
    const window *w = &c->window;
    for (uint32_t o = 0; o < c->channels_out; o++) {
        const double *row = weight + (size_t)o * c->group_in * w->kernel_count + tap;
        const double *from = x + (size_t)(o / c->group_out) * c->group_in * w->in_count;
        double sum = 0;
        for (uint32_t i = 0; i < c->group_in; i++)
            sum += row[(size_t)i * w->kernel_count] * from[(size_t)i * w->in_count];
        y[(size_t)o * w->out_count] += sum;
    }
}

static ckks_status conv_evaluate(evaluation *e, ckks_error *err) {
    convolution c = {0};
    int64_t dims[TENSOR_RANK_MAX];
    const tensor *x = e->in[0], *weight = e->in[1], *bias = e->in[2];
    ckks_status rc = convolution_read(&c, e->node, x, weight, bias, err);
    if (rc != CKKS_OK) return rc;
    const window *w = &c.window;
    rc = evaluation_work(e, (uint64_t)c.batch * weight->count, w->out_count, err);
    if (rc != CKKS_OK) return rc;
    shape_with_axes(dims, c.batch, c.channels_out, w);
    if ((rc = output_shape(e, 0, dims, x->rank, err)) != CKKS_OK) return rc;
    for (uint32_t n = 0; n < c.batch; n++) {
        const double *from = x->data + (size_t)n * c.channels_in * w->in_count;
        double *to = e->out[0]->data + (size_t)n * c.channels_out * w->out_count;
        for (size_t i = 0; bias && i < (size_t)c.channels_out * w->out_count; i++)
            to[i] = bias->data[i / w->out_count];
        for (uint32_t out = 0; out < w->out_count; out++)
            for (uint32_t tap = 0; tap < w->kernel_count; tap++) {
                uint32_t in;
                if (window_tap(&in, w, out, tap) == TAP_INSIDE)
                    convolve_tap(to + out, &c, from + in, weight->data, tap);
            }
    }
    return CKKS_OK;
}

/* row (n, o, out): the weights that channel o's window sees there */
static void convolution_row(sparse *m, uint32_t *entry, const convolution *c, const double *weight,
                            uint32_t channel, uint32_t base, uint32_t out) {
    const window *w = &c->window;
    for (uint32_t i = 0; i < c->group_in; i++)
        for (uint32_t tap = 0; tap < w->kernel_count; tap++) {
            const double value = weight[((size_t)channel * c->group_in + i) * w->kernel_count + tap];
            uint32_t in;
            if (value == 0 || window_tap(&in, w, out, tap) != TAP_INSIDE) continue;
            m->column[*entry] = base + i * w->in_count + in;
            m->value[(*entry)++] = value;
        }
}

static ckks_status convolution_matrix(sparse **out, lowering *l, const convolution *c, const double *weight,
                                      ckks_error *err) {
    const window *w = &c->window;
    const uint32_t rows = c->batch * c->channels_out * w->out_count;
    const ckks_status rc = sparse_create(out, l->memory, rows, c->batch * c->channels_in * w->in_count,
                                         (uint64_t)rows * c->group_in * w->kernel_count, err);
    if (rc != CKKS_OK) return rc;
    uint32_t entry = 0;
    for (uint32_t row = 0; row < rows; row++) {
        const uint32_t position = row % w->out_count, channel = row / w->out_count % c->channels_out;
        const uint32_t batch = row / w->out_count / c->channels_out;
        const uint32_t base = batch * c->channels_in + channel / c->group_out * c->group_in;
        convolution_row(*out, &entry, c, weight, channel, base * w->in_count, position);
        (*out)->row_start[row + 1] = entry;
    }
    return CKKS_OK;
}

static ckks_status conv_lower(lowering *l, const model_node *node, ckks_error *err) {
    convolution c = {0};
    sparse *matrix;
    const model_value *v = l->model->values;
    const bool has_bias = node->input_count > 2 && node->inputs[2] != MODEL_NONE;
    if (lower_symbol(l, node, 1)->kind != SYMBOL_CONSTANT ||
        (has_bias && lower_symbol(l, node, 2)->kind != SYMBOL_CONSTANT))
        return lower_refuse(l, node, "its weights depend on the input",
                            "only convolutions with constant weights are compiled: make them an initialiser",
                            err);
    const tensor *bias = has_bias ? &v[node->inputs[2]].constant : NULL;
    const tensor *weight = &v[node->inputs[1]].constant;
    ckks_status rc = convolution_read(&c, node, &v[node->inputs[0]].sample, weight, bias, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = convolution_matrix(&matrix, l, &c, weight->data, err)) != CKKS_OK) return rc;
    double *full = arena_take(l->memory, matrix->row_count, sizeof *full);
    if (!full) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a bias");
    for (uint32_t i = 0, plane = c.window.out_count; bias && plane && i < matrix->row_count; i++)
        full[i] = bias->data[i / plane % bias->count];
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, matrix, full, err);
}

/* ---- pools: each plane [batch, channel] by itself ---- */

typedef struct pool {
    window window;
    uint32_t planes;
    bool counts_pad, takes_maximum;
    int64_t power; /* of sizes whose root of sums a LpPool takes; 0: not one */
} pool;

static ckks_status pool_read(pool *p, const model_node *node, const tensor *x, ckks_error *err) {
    ckks_status rc;
    *p = (pool){.counts_pad = node_int(node, "count_include_pad", 0) != 0,
                .takes_maximum = strstr(node->proto->op_type, "Max") != NULL,
                .power = strstr(node->proto->op_type, "Lp") ? node_int(node, "p", 2) : 0};
    if (p->power < 0 || (!p->power && strstr(node->proto->op_type, "Lp")))
        return node_error(node, err, "a norm of order %lld", (long long)p->power);
    if (strncmp(node->proto->op_type, "Global", 6) == 0) {
        if (x->rank < 3) return node_error(node, err, "its input has %u axes", x->rank);
        p->window = (window){.axes = x->rank - 2, .in_count = 1, .out_count = 1};
        for (uint32_t i = 0; i < p->window.axes; i++) {
            p->window.in[i] = p->window.kernel[i] = x->dims[i + 2];
            p->window.out[i] = p->window.stride[i] = p->window.dilation[i] = 1;
            p->window.in_count *= x->dims[i + 2];
        }
        p->window.kernel_count = p->window.in_count;
    } else if ((rc = window_read(&p->window, node, x, NULL, err)) != CKKS_OK) {
        return rc;
    }
    p->planes = x->dims[0] * x->dims[1];
    return CKKS_OK;
}

/* lists where the window at `out` is inside, in in[kernel_count]; returns what the sum is divided by */
static uint32_t pool_window(uint32_t *in, uint32_t *count, const pool *p, uint32_t out) {
    uint32_t divisor = 0;
    *count = 0;
    for (uint32_t tap = 0; tap < p->window.kernel_count; tap++) {
        const tap_kind kind = window_tap(&in[*count], &p->window, out, tap);
        *count += kind == TAP_INSIDE;
        divisor += kind == TAP_INSIDE || (kind == TAP_PAD && p->counts_pad);
    }
    return divisor ? divisor : 1;
}

static ckks_status pool_evaluate(evaluation *e, ckks_error *err) {
    pool p = {0};
    int64_t dims[TENSOR_RANK_MAX];
    const tensor *x = e->in[0];
    uint32_t count;
    ckks_status rc = pool_read(&p, e->node, x, err);
    if (rc != CKKS_OK) return rc;
    const window *w = &p.window;
    rc = evaluation_work(e, (uint64_t)(p.planes + 1) * w->out_count, w->kernel_count, err);
    if (rc != CKKS_OK) return rc;
    shape_with_axes(dims, x->dims[0], x->dims[1], w);
    if ((rc = output_shape(e, 0, dims, x->rank, err)) != CKKS_OK) return rc;
    uint32_t *in = arena_take(e->memory, w->kernel_count, sizeof *in);
    if (!in) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, e->node->label, "no memory for a window");
    for (uint32_t out = 0; out < w->out_count; out++) {
        const uint32_t divisor = pool_window(in, &count, &p, out);
        for (uint32_t plane = 0; plane < p.planes; plane++) {
            const double *seen = x->data + (size_t)plane * w->in_count;
            double sum = 0, top = -INFINITY;
            for (uint32_t i = 0; i < count; i++) {
                sum += p.power ? pow(fabs(seen[in[i]]), (double)p.power) : seen[in[i]];
                top = fmax(top, seen[in[i]]);
            }
            e->out[0]->data[(size_t)plane * w->out_count + out] = p.takes_maximum ? top
                                                                  : p.power ? pow(sum, 1.0 / (double)p.power)
                                                                            : sum / divisor;
        }
    }
    return CKKS_OK;
}

/* roots of sums of powers of sizes */
static ckks_status lower_norms(lowering *l, const model_node *node, const pool *p, const sparse *sums,
                               ckks_error *err) {
    const uint32_t from = lower_symbol(l, node, 0)->node, count = sums->column_count;
    ir_node size = {
        .kind = IR_ACTIVATION, .function = IR_ABS, .count = count, .a = from, .source = node->label};
    ir_node root = {.kind = IR_ACTIVATION, .function = IR_POW, .count = sums->row_count, .parameters = {0.5}};
    uint32_t sizes;
    if (p->power > 2)
        return lower_refuse(l, node, "it takes roots of sums of powers above 2",
                            "use p = 2, or AveragePool, and train again", err);
    if (p->power == 2) size.kind = IR_PRODUCT, size.b = from;
    ckks_status rc = ir_append(&sizes, l->graph, &size, err);
    if (rc == CKKS_OK && p->power == 1) return lower_linear(l, node, sizes, sums, NULL, err);
    if (rc == CKKS_OK) rc = ir_linear(&root.a, l->graph, sizes, sums, NULL, node->label, err);
    return rc == CKKS_OK ? lower_append(l, node, &root, err) : rc;
}

static ckks_status pool_lower(lowering *l, const model_node *node, ckks_error *err) {
    pool p = {0};
    sparse *m;
    uint32_t entry = 0, count;
    const tensor *x = &l->model->values[node->inputs[0]].sample;
    ckks_status rc = pool_read(&p, node, x, err);
    if (rc != CKKS_OK) return rc;
    const window *w = &p.window;
    const uint32_t rows = p.planes * w->out_count;
    if ((rc = sparse_create(&m, l->memory, rows, x->count, (uint64_t)rows * w->kernel_count, err)) != CKKS_OK)
        return rc;
    uint32_t *in = arena_take(l->memory, w->kernel_count, sizeof *in);
    if (!in) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, node->label, "no memory for a window");
    for (uint32_t row = 0; row < rows; row++) {
        const uint32_t divisor = pool_window(in, &count, &p, row % w->out_count);
        for (uint32_t i = 0; i < count; i++) {
            m->column[entry] = row / w->out_count * w->in_count + in[i];
            m->value[entry++] = p.power ? 1 : 1.0 / divisor;
        }
        m->row_start[row + 1] = entry;
    }
    if (p.power) return lower_norms(l, node, &p, m, err);
    return lower_linear(l, node, lower_symbol(l, node, 0)->node, m, NULL, err);
}

static ckks_status maximum_lower(lowering *l, const model_node *node, ckks_error *err) {
    return lower_refuse(
        l, node, "a maximum needs comparisons, which encrypted numbers do not have",
        "put AveragePool with the same kernel, stride and pads in its place (torch: AvgPool2d) "
        "and train again: a few epochs from the old weights are enough",
        err);
}

#define LP_POOL "p of 1 or 2; polynomial; p = 2 where calibration rows keep the norm away from zero"

const operator_row operators_window[] = {
    {"", "Conv", 2, 3, 1, 0, conv_evaluate, conv_lower, "constant weights"},
    {"", "AveragePool", 1, 1, 1, 0, pool_evaluate, pool_lower, NULL},
    {"", "GlobalAveragePool", 1, 1, 1, 0, pool_evaluate, pool_lower, NULL},
    {"", "LpPool", 1, 1, 1, 0, pool_evaluate, pool_lower, LP_POOL},
    {"", "GlobalLpPool", 1, 1, 1, 0, pool_evaluate, pool_lower, LP_POOL},
    {"", "MaxPool", 1, 1, 2, OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED, pool_evaluate, maximum_lower,
     "a maximum needs comparisons: use AveragePool with the same kernel and train again"},
    {"", "GlobalMaxPool", 1, 1, 1, OPERATOR_CONSTANT_ONLY | OPERATOR_REFUSED, pool_evaluate, maximum_lower,
     "a maximum needs comparisons: use AveragePool with the same kernel and train again"},
    {0},
};
