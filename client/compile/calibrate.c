#include "client/compile/calibrate.h"

#include "kernels/evaluator/chebyshev.h"

#include <math.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for calibration")

ckks_status graph_observe(ir_graph *g, const calibration *data, double *scores, ckks_error *err) {
    ir_run run;
    ckks_status rc;
    ir_count_uses(g);
    if ((rc = ir_run_init(&run, g, g->memory, err)) != CKKS_OK) return rc;
    for (uint32_t k = 0; k < g->count; k++) {
        ir_node *n = &g->nodes[k];
        n->minimum = INFINITY, n->maximum = -INFINITY;
        if (!(n->peak = arena_take(g->memory, n->use_count ? n->count : 0, sizeof *n->peak)))
            return NO_MEMORY(err);
    }
    for (uint64_t r = 0; r < data->row_count; r++) {
        if ((rc = ir_run_row(&run, g, data->rows + r * data->column_count, err)) != CKKS_OK) return rc;
        for (uint32_t k = 0; k < g->count; k++) {
            ir_node *n = &g->nodes[k];
            for (uint32_t i = 0; n->use_count && i < n->count; i++) {
                n->minimum = fmin(n->minimum, run.values[k][i]);
                n->maximum = fmax(n->maximum, run.values[k][i]);
                n->peak[i] = fmax(n->peak[i], fabs(run.values[k][i]));
            }
        }
        const uint32_t width = g->nodes[g->output].count;
        if (scores) memcpy(scores + r * width, run.values[g->output], width * sizeof *scores);
    }
    return CKKS_OK;
}

/* ---- polynomials ---- */

#define FIT_POINTS 2001
/* high degrees ask for more nodes, so that coefficients beyond the last do not fold back into it */
#define FIT_NODES     512u
#define FIT_DEGREE    127u
#define FIT_NODES_MAX 2048u
_Static_assert(FIT_NODES_MAX >= 4 * POLYNOMIAL_DEGREE_MAX, "nodes enough for the highest degree");

static double series_value(const double *c, uint32_t degree, double t) {
    double b1 = 0, b2 = 0;
    for (uint32_t k = degree; k >= 1; k--) {
        const double b0 = c[k] + 2 * t * b1 - b2;
        b2 = b1, b1 = b0;
    }
    return c[0] + t * b1 - b2;
}

/* the activation on [low, high] */
typedef struct fit {
    const ir_node *activation;
    double centre, half;
    double exact[FIT_POINTS];
} fit;

static double fit_value(const fit *f, double t) {
    return ir_function_value(f->activation->function, f->activation->parameters, f->centre + f->half * t);
}

static void fit_init(fit *f, const ir_node *activation, double low, double high) {
    *f = (fit){.activation = activation, .centre = 0.5 * (low + high), .half = 0.5 * (high - low)};
    for (int j = 0; j < FIT_POINTS; j++) f->exact[j] = fit_value(f, -1 + 2.0 * j / (FIT_POINTS - 1));
}

/* a lower degree's coefficients are the first of these */
static void fit_coefficients(double *coefficients, const fit *f, uint32_t degree) {
    const double pi = 3.14159265358979323846;
    const uint32_t nodes = degree <= FIT_DEGREE ? FIT_NODES : FIT_NODES_MAX;
    double sample[FIT_NODES_MAX], wave[4 * FIT_NODES_MAX]; /* cosines of a whole turn */
    for (uint32_t i = 0; i < 4 * nodes; i++) wave[i] = cos(pi * i / (2 * nodes));
    for (uint32_t j = 0; j < nodes; j++) sample[j] = fit_value(f, wave[2 * j + 1]);
    for (uint32_t k = 0; k <= degree; k++) {
        double sum = 0;
        for (uint32_t j = 0; j < nodes; j++) sum += sample[j] * wave[k * (2 * j + 1) % (4 * nodes)];
        coefficients[k] = (k ? 2.0 : 1.0) * sum / nodes;
    }
}

/* the largest error on a fine grid; not looked for further once it is over `enough` */
static double fit_error(const fit *f, const double *coefficients, uint32_t degree, double enough) {
    double largest = 0;
    /* from the middle out: where functions are steep */
    for (int j = 0; j < FIT_POINTS && !(largest > enough); j++) {
        const int at = j % 2 ? FIT_POINTS / 2 - (j + 1) / 2 : FIT_POINTS / 2 + j / 2;
        const double miss =
            series_value(coefficients, degree, -1 + 2.0 * at / (FIT_POINTS - 1)) - f->exact[at];
        largest = fmax(largest, fabs(miss));
    }
    return largest;
}

void chebyshev_fit(double *coefficients, double *error, const ir_node *activation, double low, double high,
                   uint32_t degree) {
    fit f;
    fit_init(&f, activation, low, high);
    fit_coefficients(coefficients, &f, degree);
    *error = fit_error(&f, coefficients, degree, INFINITY);
}

/* The lowest depth whose highest degree meets the tolerance, then the lowest degree of that depth that does.
 */
static bool choose_degree(ir_node *node, double tolerance) {
    fit f;
    double *c = node->coefficients;
    uint32_t highest = 1;
    fit_init(&f, node, node->interval_low, node->interval_high);
    fit_coefficients(c, &f, FIT_DEGREE);
    while (highest <= POLYNOMIAL_DEGREE_MAX && !(fit_error(&f, c, highest, tolerance) <= tolerance)) {
        highest = 2 * highest + 1;
        if (highest > FIT_DEGREE && highest <= POLYNOMIAL_DEGREE_MAX) fit_coefficients(c, &f, highest);
    }
    if (highest > POLYNOMIAL_DEGREE_MAX) return false;
    uint32_t degree = highest / 2 + 1;
    while (degree < highest && !(fit_error(&f, c, degree, tolerance) <= tolerance)) degree++;
    const double error = fit_error(&f, c, degree, INFINITY);
    /* an odd or even function leaves coefficients that are rounding errors */
    double largest = 0;
    for (uint32_t k = 0; k <= degree; k++) largest = fmax(largest, fabs(node->coefficients[k]));
    for (uint32_t k = 0; k <= degree; k++)
        if (fabs(node->coefficients[k]) < 1e-13 * largest) node->coefficients[k] = 0;
    while (degree > 1 && node->coefficients[degree] == 0) degree--;
    node->degree = degree;
    node->polynomial_error = error;
    return node->coefficients[degree] != 0;
}

/* of the function on the node's interval */
static double half_range(const ir_node *n) {
    double low = INFINITY, high = -INFINITY;
    for (int j = 0; j < FIT_POINTS; j++) {
        const double x = n->interval_low + (n->interval_high - n->interval_low) * j / (FIT_POINTS - 1);
        const double y = ir_function_value(n->function, n->parameters, x);
        low = fmin(low, y), high = fmax(high, y);
    }
    return (high - low) / 2;
}

/* Where the polynomial holds: the observed range and a margin on both sides, which stays on this side of zero
 * for functions that end there. */
static ckks_status set_interval(ir_node *made, const ir_node *input, double margin, ckks_error *err) {
    const double span = fmax(input->maximum - input->minimum, 1e-3), widen = 0.5 * margin * span;
    const ir_domain domain = ir_function_domain(made->function, made->parameters);
    made->interval_low = input->minimum - widen;
    made->interval_high = made->interval_low + span + 2 * widen;
    if (domain == IR_DOMAIN_ALL) return CKKS_OK;
    if (input->minimum > 0) {
        made->interval_low = fmax(made->interval_low, input->minimum / (1 + 2 * margin));
        return CKKS_OK;
    }
    if (input->maximum < 0 && domain == IR_DOMAIN_NOT_ZERO) {
        made->interval_high = fmin(made->interval_high, input->maximum / (1 + 2 * margin));
        return CKKS_OK;
    }
    return ckks_error_set(
        err, CKKS_PRECISION, made->source,
        "its input is between %.3g and %.3g on the calibration rows: roots, logarithms and quotients run "
        "encrypted only where it stays %s, since no polynomial follows them to zero. Add a constant before "
        "it, or end the model before it and let the client do the rest",
        input->minimum, input->maximum, domain == IR_DOMAIN_POSITIVE ? "above zero" : "on one side of zero");
}

/* functions that level off are steep where their input is wide */
static const char *closer_way_out(ir_function function) {
    switch (function) {
    case IR_SIGMOID:
    case IR_TANH:
    case IR_ERF:
    case IR_CLIP:
    case IR_EXP:
    case IR_LOG:
    case IR_POW:
        return "its input is too wide. Scale the columns (StandardScaler) or regularise more (scikit-learn: "
               "a "
               "smaller C) and train again; of several classifiers average the scores, not their "
               "probabilities; or allow a larger error (--target-error)";
    default:
        return "allow a larger error (--target-error), or train with x*Sigmoid(x) or squares";
    }
}

static ckks_status make_polynomial(ir_graph *out, ir_node *node, uint32_t from, const ir_node *input,
                                   double tolerance, double margin, uint32_t *number, ckks_error *err) {
    ir_node made = *node;
    made.kind = IR_POLYNOMIAL;
    ckks_status rc = set_interval(&made, input, margin, err);
    if (rc != CKKS_OK) return rc;
    made.coefficients = arena_take(out->memory, POLYNOMIAL_DEGREE_MAX + 1, sizeof *made.coefficients);
    double *factor = arena_take(out->memory, input->count, sizeof *factor);
    double *bias = arena_take(out->memory, input->count, sizeof *bias);
    sparse *matrix;
    if (!made.coefficients || !factor || !bias) return NO_MEMORY(err);
    if (!choose_degree(&made, tolerance * fmax(half_range(&made), 1e-3)))
        return ckks_error_set(err, CKKS_PRECISION, node->source,
                              "no polynomial of degree up to %u is close enough to %s on [%.3g, %.3g]: %s",
                              POLYNOMIAL_DEGREE_MAX, ir_function_name(node->function), made.interval_low,
                              made.interval_high, closer_way_out(node->function));
    const double half = 0.5 * (made.interval_high - made.interval_low);
    for (uint32_t i = 0; i < input->count; i++) {
        factor[i] = 1 / half;
        bias[i] = -(made.interval_low + half) / half;
    }
    rc = sparse_gather(&matrix, out->memory, input->count, input->count, NULL, factor, err);
    if (rc == CKKS_OK) rc = ir_linear(&made.a, out, from, matrix, bias, node->source, err);
    if (rc == CKKS_OK) ir_copy_shape(&out->nodes[made.a], input);
    return rc == CKKS_OK ? ir_append(number, out, &made, err) : rc;
}

/* a node of `in`, its operands renumbered; term and bias arrays are copied, since folding writes them */
static ckks_status copy_node(uint32_t *number, ir_graph *out, const ir_node *node, const uint32_t *map,
                             ckks_error *err) {
    ir_node made = *node;
    if (made.kind == IR_LINEAR) {
        made.terms = arena_take(out->memory, made.term_count, sizeof *made.terms);
        made.bias = arena_take(out->memory, made.count, sizeof *made.bias);
        if (!made.terms || !made.bias) return NO_MEMORY(err);
        memcpy(made.bias, node->bias, made.count * sizeof *made.bias);
        for (uint32_t t = 0; t < made.term_count; t++)
            made.terms[t] = (ir_term){map[node->terms[t].from], node->terms[t].matrix};
    } else if (made.kind != IR_INPUT) {
        made.a = map[node->a];
        made.b = made.kind == IR_PRODUCT ? map[node->b] : 0;
    }
    return ir_append(number, out, &made, err);
}

ckks_status graph_substitute(ir_graph *out, const ir_graph *in, double tolerance, double margin,
                             ckks_error *err) {
    ckks_status rc = CKKS_OK;
    uint32_t *map = arena_take(in->memory, in->count, sizeof *map);
    ir_init(out, in->memory);
    if (!map) return NO_MEMORY(err);
    for (uint32_t i = 0; i < in->count && rc == CKKS_OK; i++) {
        ir_node *node = &in->nodes[i];
        if (!node->use_count) continue;
        if (node->kind == IR_ACTIVATION)
            rc = make_polynomial(out, node, map[node->a], &in->nodes[node->a], tolerance, margin, &map[i],
                                 err);
        else
            rc = copy_node(&map[i], out, node, map, err);
    }
    if (rc != CKKS_OK) return rc;
    bool is_changed = false;
    out->output = map[in->output];
    rc = ir_fold(out, err);
    if (rc == CKKS_OK) rc = ir_reroute(&is_changed, out, err);
    return rc == CKKS_OK && is_changed ? ir_fold(out, err) : rc;
}

/* ---- factors ---- */

ckks_status graph_scale_input(ir_graph *out, const ir_graph *in, const double *factor, ckks_error *err) {
    uint32_t *map = arena_take(in->memory, in->count, sizeof *map);
    ckks_status rc = CKKS_OK;
    ir_init(out, in->memory);
    if (!map) return NO_MEMORY(err);
    for (uint32_t i = 0; i < in->count && rc == CKKS_OK; i++) {
        if (!in->nodes[i].use_count) continue;
        rc = copy_node(&map[i], out, &in->nodes[i], map, err);
        if (i || rc != CKKS_OK) continue;
        sparse *matrix;
        const uint32_t count = in->nodes[0].count, input = map[0];
        rc = sparse_gather(&matrix, in->memory, count, count, NULL, factor, err);
        if (rc == CKKS_OK) rc = ir_linear(&map[0], out, input, matrix, NULL, ir_scaling, err);
        if (rc == CKKS_OK) ir_copy_shape(&out->nodes[map[0]], &in->nodes[0]);
    }
    if (rc != CKKS_OK) return rc;
    out->output = map[in->output];
    return ir_fold(out, err);
}

ckks_status graph_scale_output(ir_graph *g, double factor, ckks_error *err) {
    const uint32_t count = g->nodes[g->output].count, from = g->output;
    double *factors = arena_take(g->memory, count, sizeof *factors);
    sparse *matrix;
    if (!factors) return NO_MEMORY(err);
    for (uint32_t i = 0; i < count; i++) factors[i] = factor;
    ckks_status rc = sparse_gather(&matrix, g->memory, count, count, NULL, factors, err);
    if (rc == CKKS_OK) rc = ir_linear(&g->output, g, from, matrix, NULL, ir_scaling, err);
    if (rc == CKKS_OK) ir_copy_shape(&g->nodes[g->output], &g->nodes[from]);
    return rc == CKKS_OK ? ir_fold(g, err) : rc;
}

/* ---- levels ---- */

static void raise(uint32_t *levels, uint32_t node, uint32_t level) {
    if (levels[node] < level) levels[node] = level;
}

uint32_t graph_levels(uint32_t *levels, const ir_graph *g) {
    memset(levels, 0, g->count * sizeof *levels);
    for (uint32_t i = g->count; i-- > 0;) {
        const ir_node *n = &g->nodes[i];
        if (!n->use_count || n->kind == IR_INPUT) continue;
        const uint32_t before = levels[i] + ir_node_depth(g, i);
        for (uint32_t t = 0; t < n->term_count; t++) raise(levels, n->terms[t].from, before);
        if (n->kind != IR_LINEAR) raise(levels, n->a, before);
        if (n->kind == IR_PRODUCT) raise(levels, n->b, before);
    }
    return levels[0];
}
