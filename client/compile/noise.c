#include "client/compile/noise.h"

#include <math.h>

/* centred binomial with 21 + 21 bits */
#define ERROR_VARIANCE 10.5

/* coefficients of variance v: a slot's real part sums N of them, each times a cosine */
static double slot_deviation(const ckks_params *params, double variance, double scale) {
    return sqrt(variance * params_n(params) / 2.0) / scale;
}

/* c0 + c1 s, both rounded: 1/12 each, and two thirds of the ternary secret's coefficients are not zero */
static double rounding_variance(const ckks_params *params) {
    return (1.0 + 2.0 * params_n(params) / 3.0) / 12.0;
}

double noise_fresh(const ckks_params *params, double scale) {
    return slot_deviation(params, ERROR_VARIANCE * (4.0 * params_n(params) / 3.0 + 1.0) + 1.0 / 12.0, scale);
}

double noise_rounding(const ckks_params *params, double scale) {
    return slot_deviation(params, rounding_variance(params), scale);
}

double noise_plain(const ckks_params *params, double scale) {
    return slot_deviation(params, 1.0 / 12.0, scale);
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
    return slot_deviation(params, variance + rounding_variance(params), scale);
}
