/*
 * The schedule of a polynomial in the Chebyshev basis: which products and sums, at which level and scale.
 * Pure: the evaluator executes it on ciphertexts, the clear-text interpreter and the compiler read the same
 * steps.
 *
 * Paterson-Stockmeyer with the depth of the coefficients counted in: ceil(log2(degree + 1)) levels. A split
 * p = q * T_m + r costs one level for q alone, since r joins before the product is rescaled; where q has no
 * level to spare it is split further, down to degree one.
 *
 * Scales: each sum has one stated scale, and each step's result the stated scale RN(sum / q_level). Factors
 * are encoded at the double nearest to stated / scale of the value; among its neighbours one is searched
 * whose product rounds to the stated scale bit for bit. Where no double does (the product of two doubles
 * skips values), the stated scale still holds: it is then off by at most one part in 2^52, far below the
 * rounding of the encoded factor itself.
 */
#ifndef CKKS_EVALUATOR_CHEBYSHEV_H
#define CKKS_EVALUATOR_CHEBYSHEV_H

#include "kernels/scheme/params.h"

#define CHEBYSHEV_DEGREE_MAX 1023u
#define CHEBYSHEV_STEPS_MAX  256u

/* Value 0 is the input, value i + 1 the result of step i. */
typedef struct chebyshev_term {
    uint32_t value;
    double coefficient;
    double constant_scale; /* at which the coefficient is encoded */
} chebyshev_term;

typedef struct chebyshev_product {
    uint32_t left, right; /* values */
} chebyshev_product;

/* result = rescale(product_factor * sum of left * right + sum of coefficient * value + constant) */
typedef struct chebyshev_step {
    uint32_t first_term, term_count;
    uint32_t first_product, product_count;
    uint32_t product_factor; /* 1 or 2 */
    uint32_t level;          /* of the sum; the result is one level below */
    uint32_t last_use;       /* the last step that reads the result; its own number if none does */
    double constant;
    double sum_scale, scale; /* before and after the rescale */
} chebyshev_step;

typedef struct chebyshev_plan {
    uint32_t degree, level_in, level_out;
    uint32_t relin_level; /* highest level at which a product is relinearised; 0 if there is none */
    double scale_in, scale_out;
    uint8_t parameter_id[CKKS_PARAMETER_ID_BYTES];
    uint32_t input_last_use;
    uint32_t step_count, term_count, product_count;
    chebyshev_step *steps; /* the last one is the polynomial */
    chebyshev_term *terms;
    chebyshev_product *products;
} chebyshev_plan;

/* chebyshev_depth: ceil(log2(degree + 1)) levels. */
uint32_t chebyshev_depth(uint32_t degree);

/* chebyshev_plan_create schedules sum of coefficient[i] * T_i(x), i = 0..degree, for x in [-1, 1] at level_in
 * and scale_in, landing at level_in - depth and exactly scale_out. coefficient[degree] must not be zero. The
 * caller owns *out. CKKS_INVALID_ARGUMENT naming degree, coefficient, level_in or a scale; CKKS_PRECISION
 * when a scale between does not fit its level. Deterministic. Source: Paterson and Stockmeyer, "On the number
 * of nonscalar multiplications necessary to evaluate polynomials", 1973; in the Chebyshev basis, Chen,
 * Chillotti and Song, "Improved bootstrapping for approximate homomorphic encryption", 2019. */
ckks_status chebyshev_plan_create(chebyshev_plan **out, const ckks_params *params, const double *coefficient,
                                  uint32_t degree, uint32_t level_in, double scale_in, double scale_out,
                                  ckks_error *err);
void chebyshev_plan_destroy(chebyshev_plan *plan);
uint32_t chebyshev_plan_level_out(const chebyshev_plan *plan);
/* chebyshev_plan_relin_level: does the plan need the relinearisation key, and up to which level? */
bool chebyshev_plan_relin_level(const chebyshev_plan *plan, uint32_t *level);

/* chebyshev_interpret runs the same steps on one clear number. */
double chebyshev_interpret(const chebyshev_plan *plan, double x);

#endif
