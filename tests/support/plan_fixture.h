/*
 * Plans for tests: a builder that appends operations and computes levels and scales as the evaluator's rules
 * say (so that a test may then break one thing), and two small plans. A fixture that cannot be made aborts
 * the test.
 */
#ifndef CKKS_TESTS_PLAN_FIXTURE_H
#define CKKS_TESTS_PLAN_FIXTURE_H

#include "kernels/program/plan.h"

#define PLAN_FIXTURE_MAX 64u /* entries of each table */

/* Everything is writable, so that a test may damage it. */
typedef struct plan_fixture {
    ckks_params params;
    plan plan;
    plan_value values[PLAN_FIXTURE_MAX];
    plan_operation operations[PLAN_FIXTURE_MAX];
    uint32_t outputs[PLAN_FIXTURE_MAX];
    plan_plain plains[PLAN_FIXTURE_MAX];
    plan_transform transforms[PLAN_FIXTURE_MAX];
    plan_polynomial polynomials[PLAN_FIXTURE_MAX];
    plan_matrix matrices[PLAN_FIXTURE_MAX];
    void *owned[4 * PLAN_FIXTURE_MAX];
    uint32_t owned_count;
    key_requirement *keys;
} plan_fixture;

plan_fixture *plan_fixture_create(const ckks_params *params);
void plan_fixture_destroy(plan_fixture *f);

/* Each returns the number of the (first) value. */
uint32_t plan_fixture_input(plan_fixture *f, uint32_t level, uint32_t batch_count, double scale);
/* add, subtract, multiply; b ignored for the unary kinds (negate, square, relinearise without rescale,
 * rescale, conjugate) */
uint32_t plan_fixture_operation(plan_fixture *f, uint32_t kind, uint32_t a, uint32_t b);
uint32_t plan_fixture_relinearise_rescale(plan_fixture *f, uint32_t a);
uint32_t plan_fixture_drop_level(plan_fixture *f, uint32_t a, uint32_t level);
uint32_t plan_fixture_constant(plan_fixture *f, uint32_t kind, uint32_t a, double constant, double scale);
uint32_t plan_fixture_steps(plan_fixture *f, uint32_t kind, uint32_t a, const int32_t *steps, uint32_t count);
/* slots [slot_count] are copied; scale of a product's plain */
uint32_t plan_fixture_plain(plan_fixture *f, uint32_t kind, uint32_t a, const double *slots,
                            uint32_t slot_count, double scale);
/* diagonals[k][N/2] is y[i] += d[i] * x[i + giant * ... ]: one term per (giant, baby), given unrotated */
uint32_t plan_fixture_transform(plan_fixture *f, uint32_t a, const int32_t *giants, uint32_t giant_count,
                                const int32_t *babies, uint32_t baby_count, const double *const *diagonals,
                                double scale);
uint32_t plan_fixture_chebyshev(plan_fixture *f, uint32_t a, const double *coefficients, uint32_t degree,
                                double scale_out);
/* bias: NULL, or [row_count] */
uint32_t plan_fixture_matrix(plan_fixture *f, uint32_t a, const double *weights, const double *bias,
                             uint32_t row_count, double scale);
uint32_t plan_fixture_rerandomise(plan_fixture *f, uint32_t a, uint32_t flood_bits);
void plan_fixture_output(plan_fixture *f, uint32_t value);
/* counts, keys; the plan is then complete. Marks it insecure: test parameters are. */
const plan *plan_fixture_finish(plan_fixture *f);

/* N = 2^10, levels 0..6: transform of 6 diagonals, square, Chebyshev of degree 3, and one of nearly every
 * other operation on the way to two outputs. */
plan_fixture *plan_fixture_small(void);
/* N = 2^10: a 2 x 3 matrix with a bias on a batch of three; rerandomise of a second input */
plan_fixture *plan_fixture_batch(void);
/* y = x * 0.5 + 0.25 at one level: the smallest package that is of any use; secure = over N = 2^12 */
plan_fixture *plan_fixture_tiny(bool is_secure);

#endif
