#include "client/compile/noise.h"

#include <math.h>

/* centred binomial with 21 + 21 bits */
#define ERROR_VARIANCE 10.5

/* coefficients of variance v: a slot's real part sums N of them, each times a cosine */
static double slot_variance(const ckks_params *params, double variance, double scale) {
    return variance * params_n(params) / 2.0 / (scale * scale);
}

/* c0 + c1 s, both rounded: 1/12 each, and two thirds of the ternary secret's coefficients are not zero */
static double rounding_variance(const ckks_params *params) {
    return (1.0 + 2.0 * params_n(params) / 3.0) / 12.0;
}

double noise_fresh(const ckks_params *params, double scale) {
    return slot_variance(params, ERROR_VARIANCE * (4.0 * params_n(params) / 3.0 + 1.0) + 1.0 / 12.0, scale);
}

double noise_fresh_secret(const ckks_params *params, double scale) {
    return slot_variance(params, ERROR_VARIANCE + 1.0 / 12.0, scale);
}

double noise_rounding(const ckks_params *params, double scale) {
    return slot_variance(params, rounding_variance(params), scale);
}

/* coefficients of s^2 have variance 4N/9 */
double noise_rounding_three(const ckks_params *params, double scale) {
    const double n = params_n(params);
    return noise_rounding(params, scale) + slot_variance(params, 4 * n * n / 9 / 12, scale);
}

double noise_key_switch(const ckks_params *params, uint32_t level, double scale) {
    double p = 1, variance = 0;
    for (uint32_t i = 0; i < params->p_count; i++) p *= (double)params->prime[params->q_count + i];
    for (uint32_t d = 0; d < params_digit_count(params, level); d++) {
        double ratio = 1 / p;
        for (uint32_t i = 0; i < params->digit_size && d * params->digit_size + i <= level; i++)
            ratio *= (double)params->prime[d * params->digit_size + i];
        variance += ERROR_VARIANCE * params_n(params) * ratio * ratio / 12.0;
    }
    return slot_variance(params, variance + rounding_variance(params), scale);
}

void noise_dense_add(double *out, const ckks_params *params, const noise_dense *d, const sparse *matrix,
                     const double *variance_in, const double *peak_in) {
    const double switching = d->is_rotated ? noise_key_switch(params, d->level, d->scale) : 0;
    double square_sum = 0;
    for (uint32_t i = 0; i < matrix->column_count; i++) square_sum += peak_in[i] * peak_in[i];
    /* rounded diagonals: 2 * slot_count coefficients that are not zero; each row meets every element once */
    const double encoding = square_sum * d->slot_count / 12.0 / (d->plain_scale * d->plain_scale);
    /* what the layer itself adds is summed by folding; the rows' own sums count all columns already */
    const double added =
        d->parts * d->fold * noise_rounding(params, d->result_scale) +
        (d->fold > 1 ? d->fold * noise_key_switch(params, d->level - 1, d->result_scale) : 0);
    for (uint32_t i = 0; i < matrix->row_count; i++) {
        out[i] += encoding + added;
        for (uint32_t e = matrix->row_start[i]; e < matrix->row_start[i + 1]; e++)
            out[i] += matrix->value[e] * matrix->value[e] * (variance_in[matrix->column[e]] + switching);
    }
}

void noise_product(double *out, const ckks_params *params, uint32_t level, double product_scale,
                   double result_scale, const ir_node *a, const double *variance_a, const ir_node *b,
                   const double *variance_b) {
    const double added =
        noise_rounding(params, result_scale) + noise_key_switch(params, level, product_scale);
    noise_product_ending(out, added, a, variance_a, b, variance_b);
}

void noise_product_ending(double *out, double added, const ir_node *a, const double *variance_a,
                          const ir_node *b, const double *variance_b) {
    for (uint32_t i = 0; i < a->count; i++)
        out[i] = added +
                 (a == b ? 4 * a->peak[i] * a->peak[i] * variance_a[i]
                         : a->peak[i] * a->peak[i] * variance_b[i] + b->peak[i] * b->peak[i] * variance_a[i]);
}

/* steepest slope on [-1, 1]: T_k' = k U_(k-1) */
static double steepest_slope(const ir_node *n) {
    double slope = 0;
    for (int j = 0; j <= 200; j++) {
        const double t = -1 + j / 100.0;
        double derivative = 0, u0 = 1, u1 = 2 * t;
        for (uint32_t k = 1; k <= n->degree; k++) {
            derivative += k * n->coefficients[k] * u0;
            const double u2 = 2 * t * u1 - u0;
            u0 = u1, u1 = u2;
        }
        slope = fmax(slope, fabs(derivative));
    }
    return slope;
}

void noise_polynomial(double *out, const ckks_params *params, double scale, const ir_node *node,
                      const double *variance_in) {
    const double slope = steepest_slope(node);
    /* rounding errors of the T_k: each doubling of k doubles the error of T_(k/2) and adds one */
    double grown = 1;
    for (uint32_t k = 1; k <= node->degree; k++) grown += fabs(node->coefficients[k]) * k;
    for (uint32_t i = 0; i < node->count; i++)
        out[i] = slope * slope * variance_in[i] + 4 * grown * grown * noise_rounding(params, scale);
}
