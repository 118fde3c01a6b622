/*
 * What the calibration rows say: ranges of every value, polynomials that hold on them, and factors that keep
 * inputs and scores at a size that the parameters can carry.
 */
#ifndef CKKS_COMPILE_CALIBRATE_H
#define CKKS_COMPILE_CALIBRATE_H

#include "client/compile/lower.h"

#define POLYNOMIAL_DEGREE_MAX 511u

/* Preprocessed calibration rows, [row_count][column_count]. */
typedef struct calibration {
    const double *rows;
    uint64_t row_count;
    uint32_t column_count;
} calibration;

/* chebyshev_fit fills coefficients[degree + 1] of the series of the activation on [low, high] (normalised to
 * [-1, 1]) and the largest error on a fine grid. */
void chebyshev_fit(double *coefficients, double *error, const ir_node *activation, double low, double high,
                   uint32_t degree);

/* graph_observe runs all rows through the graph, fills minimum and maximum of each node, and scores
 * [row_count][output count] (may be NULL). */
ckks_status graph_observe(ir_graph *g, const calibration *data, double *scores, ckks_error *err);

/* graph_substitute: `out` is `in` with each activation replaced by a polynomial whose error is at most
 * `tolerance` times half the range of the activation; each holds on the observed range, widened by `margin`
 * times it. Linear layers are folded. CKKS_PRECISION naming the activation if no degree up to
 * POLYNOMIAL_DEGREE_MAX does. */
ckks_status graph_substitute(ir_graph *out, const ir_graph *in, double tolerance, double margin,
                             ckks_error *err);

/* graph_scale_input inserts a layer that multiplies element i by factor[i]; graph_scale_output one that
 * multiplies all scores. */
ckks_status graph_scale_input(ir_graph *out, const ir_graph *in, const double *factor, ckks_error *err);
ckks_status graph_scale_output(ir_graph *g, double factor, ckks_error *err);

/* graph_scale_inner divides values that polynomials do not read and that reach beyond SCALE_SIZE_MAX on the
 * observed rows (graph_observe must have been called, and is out of date after) by powers of two, to
 * SCALE_SIZE_TARGET, and takes the factors back where they are read (scale.c). The output is what it was,
 * divided by *output_factor. Nodes keep their numbers; their terms and coefficients are new. */
#define SCALE_SIZE_MAX    128.0
#define SCALE_SIZE_TARGET 64.0
ckks_status graph_scale_inner(bool *is_changed, double *output_factor, ir_graph *g, ckks_error *err);

/* graph_levels: levels that each node's value needs after it (output: 0) in levels[count]; returns the
 * input's, the depth. */
uint32_t graph_levels(uint32_t *levels, const ir_graph *g);

#endif
