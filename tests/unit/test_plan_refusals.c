/* Plans that a stranger could write, one operation at a time: what each must not be given. */
#include "kernels/evaluator/chebyshev.h"
#include "kernels/program/plan.h"
#include "tests/support/fixtures.h"
#include "tests/support/plan_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SCALE 0x1p30
#define LEVEL 2u

static uint32_t input(plan_fixture *f, uint32_t level, uint32_t batch) {
    return plan_fixture_input(f, level, batch, SCALE);
}
static plan_operation *latest(plan_fixture *f) {
    return &f->operations[f->plan.operation_count - 1];
}
static plan_value *latest_value(plan_fixture *f) {
    return &f->values[f->plan.value_count - 1];
}

/* ---- key switching needs a special prime ---- */

static void relinearises(plan_fixture *f) {
    const uint32_t product = plan_fixture_operation(f, PLAN_SQUARE, input(f, LEVEL, 1), 0);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_RELINEARISE, product, 0));
}
static void rotates(plan_fixture *f) {
    static const int32_t step[] = {3};
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_ROTATE, input(f, LEVEL, 1), step, 1));
}
static void conjugates(plan_fixture *f) {
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_CONJUGATE, input(f, LEVEL, 1), 0));
}
static void sums_over_rotations(plan_fixture *f) {
    static const int32_t steps[] = {1, 2};
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_INNER_SUM, input(f, LEVEL, 1), steps, 2));
}
static void squares_in_a_polynomial(plan_fixture *f) {
    static const double coefficients[] = {0, 1, 1};
    plan_fixture_output(f, plan_fixture_chebyshev(f, input(f, LEVEL, 1), coefficients, 2, SCALE));
}
static void rotates_by_nothing(plan_fixture *f) {
    static const int32_t step[] = {0};
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_ROTATE, input(f, LEVEL, 1), step, 1));
}
static void scales_in_a_polynomial(plan_fixture *f) {
    static const double coefficients[] = {0, 1};
    plan_fixture_output(f, plan_fixture_chebyshev(f, input(f, LEVEL, 1), coefficients, 1, SCALE));
}
static void rerandomises(plan_fixture *f) {
    plan_fixture_output(f, plan_fixture_rerandomise(f, input(f, LEVEL, 1), 0));
}
static void multiplies_over_p(plan_fixture *f) {
    static const double half[] = {0.5};
    plan_fixture_output(f, plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, input(f, LEVEL, 1), half, 1, SCALE));
    f->plains[0].with_p = true;
}

/* ---- transforms of several results ---- */

static void results(plan_fixture *f, uint32_t batch, const int32_t giants[2], uint32_t output_count,
                    bool is_complete) {
    static const int32_t babies[] = {0, 1};
    double *ones = calloc(params_slot_count_max(&f->params), sizeof *ones);
    const double *diagonals[4] = {ones, ones, ones, ones};
    const uint32_t a = input(f, LEVEL, batch);
    const uint32_t y = plan_fixture_transform(f, a, giants, 2, babies, 2, diagonals, SCALE);
    free(ones);
    if (!is_complete) f->transforms[0].term_count = 2; /* those of the first giant step */
    latest(f)->output_count = output_count;
    while (f->plan.value_count < y + output_count) f->values[f->plan.value_count++] = f->values[y];
    if (output_count == 1) latest_value(f)->batch_count = 2;
    plan_fixture_output(f, y);
}
static const int32_t both_zero[2] = {0, 0}, one_rotates[2] = {0, 4};
static void two_results(plan_fixture *f) {
    results(f, 1, both_zero, 2, true);
}
static void two_results_of_a_batch(plan_fixture *f) {
    results(f, 3, both_zero, 2, true);
}
static void a_batch_of_results(plan_fixture *f) {
    results(f, 1, both_zero, 1, true);
}
static void a_batch_of_results_of_a_batch(plan_fixture *f) {
    results(f, 2, both_zero, 1, true);
}
static void three_results_of_two(plan_fixture *f) {
    results(f, 1, both_zero, 3, true);
}
static void results_that_rotate(plan_fixture *f) {
    results(f, 1, one_rotates, 2, true);
}
static void a_result_without_a_term(plan_fixture *f) {
    results(f, 1, both_zero, 2, false);
}
static void a_batch_with_an_empty_result(plan_fixture *f) {
    results(f, 1, both_zero, 1, false);
}

/* ---- arithmetic ---- */

static void sum_of_batches_that_differ(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 2), b = input(f, LEVEL, 3);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_ADD, a, b));
}
static void sum_of_levels_that_differ(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 1), b = input(f, LEVEL - 1, 1);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_SUBTRACT, a, b));
}
static void sum_of_scales_that_differ(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 1), b = plan_fixture_input(f, LEVEL, 1, nextafter(SCALE, 0));
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_ADD, a, b));
}
static void sum_with_a_square(plan_fixture *f) {
    const uint32_t a = plan_fixture_input(f, LEVEL, 1, SCALE * SCALE), b = input(f, LEVEL, 1);
    plan_fixture_output(f,
                        plan_fixture_operation(f, PLAN_ADD, a, plan_fixture_operation(f, PLAN_SQUARE, b, 0)));
}
static void sum_that_forgets_a_component(plan_fixture *f) {
    sum_with_a_square(f);
    latest_value(f)->component_count = 2;
}
static void product_with_a_square(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 1), square = plan_fixture_operation(f, PLAN_SQUARE, a, 0);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_MULTIPLY, a, square));
}
static void product_of_a_square(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 1), square = plan_fixture_operation(f, PLAN_SQUARE, a, 0);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_MULTIPLY, square, a));
}
static void product_of_levels_that_differ(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 1), b = input(f, LEVEL - 1, 1);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_MULTIPLY, a, b));
}
static void product_of_batches_that_differ(plan_fixture *f) {
    const uint32_t a = input(f, LEVEL, 2), b = input(f, LEVEL, 1);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_MULTIPLY, a, b));
}
static void rescale_at_the_bottom(plan_fixture *f) {
    const uint32_t a = input(f, 0, 1);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_NEGATE, a, 0));
    latest(f)->kind = PLAN_RESCALE;
}
static void relinearise_and_rescale_at_the_bottom(plan_fixture *f) {
    const uint32_t square = plan_fixture_operation(f, PLAN_SQUARE, input(f, 0, 1), 0);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_RELINEARISE, square, 0));
    latest(f)->with_rescale = true;
}
static void drop_to_the_same_level(plan_fixture *f) {
    plan_fixture_output(f, plan_fixture_drop_level(f, input(f, LEVEL, 1), LEVEL));
}
static void drop_upwards(plan_fixture *f) {
    plan_fixture_output(f, plan_fixture_drop_level(f, input(f, 0, 1), 1));
}
static void scale_beyond_numbers(plan_fixture *f) {
    const uint32_t a = plan_fixture_input(f, LEVEL, 1, 0x1p600);
    plan_fixture_output(f, plan_fixture_operation(f, PLAN_NEGATE, a, 0));
    latest(f)->kind = PLAN_MULTIPLY_CONSTANT;
    latest(f)->constant_scale = 0x1p600;
}
static void rotation_of_a_square(plan_fixture *f) {
    static const int32_t step[] = {3};
    const uint32_t square = plan_fixture_operation(f, PLAN_SQUARE, input(f, LEVEL, 1), 0);
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_ROTATE, square, step, 1));
}
static void more_steps_than_there_may_be(plan_fixture *f) {
    static const int32_t steps[4097];
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_INNER_SUM, input(f, LEVEL, 1), steps, 4097));
}
static void as_many_steps_as_there_may_be(plan_fixture *f) {
    static const int32_t steps[4096];
    plan_fixture_output(f, plan_fixture_steps(f, PLAN_INNER_SUM, input(f, LEVEL, 1), steps, 4096));
}
static void weight_that_is_no_number(plan_fixture *f) {
    static const double weights[] = {1, NAN};
    plan_fixture_output(f, plan_fixture_matrix(f, input(f, LEVEL, 2), weights, NULL, 1, SCALE));
}
static void matrix_without_rows(plan_fixture *f) {
    static const double weights[] = {1, 1};
    plan_fixture_output(f, plan_fixture_matrix(f, input(f, LEVEL, 2), weights, NULL, 1, SCALE));
    f->matrices[0].row_count = 0;
}
static void matrix_at_no_scale(plan_fixture *f) {
    static const double weights[] = {1, 1};
    plan_fixture_output(f, plan_fixture_matrix(f, input(f, LEVEL, 2), weights, NULL, 1, SCALE));
    f->matrices[0].scale = INFINITY;
}

typedef struct hostile {
    void (*build)(plan_fixture *);
    uint32_t p_count;
    ckks_status expected;
    const char *field, *message; /* of the message, a part */
} hostile;

static const hostile table[] = {
    {relinearises, 0, CKKS_MALFORMED, "operation 1 (RELINEARISE, test)", "no special prime"},
    {rotates, 0, CKKS_MALFORMED, "operation 0 (ROTATE, test)", "no special prime"},
    {conjugates, 0, CKKS_MALFORMED, "operation 0 (CONJUGATE, test)", "no special prime"},
    {sums_over_rotations, 0, CKKS_MALFORMED, "operation 0 (INNER_SUM, test)", "no special prime"},
    {squares_in_a_polynomial, 0, CKKS_MALFORMED, "operation 0 (CHEBYSHEV, test)", "no special prime"},
    {multiplies_over_p, 0, CKKS_MALFORMED, "plain 0", "encoded over P"},
    {two_results, 0, CKKS_MALFORMED, "plain 0", "encoded over P"},
    {rotates_by_nothing, 0, CKKS_OK, "", ""},
    {scales_in_a_polynomial, 0, CKKS_OK, "", ""},
    {rerandomises, 0, CKKS_OK, "", ""},
    {relinearises, 1, CKKS_OK, "", ""},
    {squares_in_a_polynomial, 1, CKKS_OK, "", ""},
    {two_results, 1, CKKS_OK, "", ""},
    {two_results_of_a_batch, 1, CKKS_OK, "", ""},
    {a_batch_of_results, 1, CKKS_OK, "", ""},
    {a_batch_of_results_of_a_batch, 1, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)",
     "from a batch of 2"},
    {three_results_of_two, 1, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)", "3 outputs of 2"},
    {results_that_rotate, 1, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)", "giant step 1"},
    {a_result_without_a_term, 1, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)",
     "output 1 has no term"},
    {a_batch_with_an_empty_result, 1, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)",
     "output 1 has no term"},
    {sum_of_batches_that_differ, 1, CKKS_SIGNATURE_MISMATCH, "operation 0 (ADD, test)", "batches of 2 and 3"},
    {sum_of_levels_that_differ, 1, CKKS_SIGNATURE_MISMATCH, "operation 0 (SUBTRACT, test)", "levels 2 and 1"},
    {sum_of_scales_that_differ, 1, CKKS_SIGNATURE_MISMATCH, "operation 0 (ADD, test)", "scales"},
    {sum_with_a_square, 1, CKKS_OK, "", ""},
    {sum_that_forgets_a_component, 1, CKKS_SIGNATURE_MISMATCH, "operation 1 (ADD, test)", "component count"},
    {product_with_a_square, 1, CKKS_MALFORMED, "operation 1 (MULTIPLY, test)", "value 1 is not relinearised"},
    {product_of_a_square, 1, CKKS_MALFORMED, "operation 1 (MULTIPLY, test)", "value 1 is not relinearised"},
    {product_of_levels_that_differ, 1, CKKS_SIGNATURE_MISMATCH, "operation 0 (MULTIPLY, test)",
     "levels 2 and 1"},
    {product_of_batches_that_differ, 1, CKKS_SIGNATURE_MISMATCH, "operation 0 (MULTIPLY, test)",
     "batches of 2 and 1"},
    {rescale_at_the_bottom, 1, CKKS_MALFORMED, "operation 0 (RESCALE, test)", "no prime left"},
    {relinearise_and_rescale_at_the_bottom, 1, CKKS_MALFORMED, "operation 1 (RELINEARISE, test)",
     "no prime left"},
    {drop_to_the_same_level, 1, CKKS_MALFORMED, "operation 0 (DROP_LEVEL, test)", "is not down"},
    {drop_upwards, 1, CKKS_MALFORMED, "operation 0 (DROP_LEVEL, test)", "is not down"},
    {scale_beyond_numbers, 1, CKKS_MALFORMED, "operation 0 (MULTIPLY_CONSTANT, test)", "leaves the range"},
    {rotation_of_a_square, 1, CKKS_MALFORMED, "operation 1 (ROTATE, test)", "value 1 is not relinearised"},
    {more_steps_than_there_may_be, 1, CKKS_MALFORMED, "operation 0 (INNER_SUM, test)", "4097 steps"},
    {as_many_steps_as_there_may_be, 1, CKKS_OK, "", ""},
    {weight_that_is_no_number, 1, CKKS_MALFORMED, "matrix 0", "weight 1"},
    {matrix_without_rows, 1, CKKS_MALFORMED, "matrix 0", "0 rows"},
    {matrix_at_no_scale, 1, CKKS_MALFORMED, "matrix 0", "scale"},
};

static void each_operation_refuses_what_it_cannot_work_on(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const ckks_params params = fixture_params(10, LEVEL + 1, table[i].p_count, 1);
        plan_fixture *f = plan_fixture_create(&params);
        key_requirement *keys = NULL;
        uint32_t count;
        ckks_error err = {0};
        table[i].build(f);
        const ckks_status rc = plan_key_requirements(&f->plan, &keys, &count, &err);
        if (rc != table[i].expected || strcmp(err.field, table[i].field) != 0 ||
            !strstr(err.message, table[i].message))
            fail_msg("entry %zu: %s: %s: %s", i, ckks_status_name(rc), err.field, err.message);
        free(keys);
        plan_fixture_destroy(f);
    }
}

/* The first product of a polynomial is one of its input with itself: a key of the input's level, no lower. */
static void a_polynomial_needs_its_key_at_the_level_of_its_input(void **state) {
    (void)state;
    static const double coefficients[] = {0.5, 0.25, 0.125, 0.5, 0.25, -0.125, 0.5, 1};
    for (uint32_t degree = 2; degree < 8; degree++)
        for (uint32_t level = chebyshev_depth(degree); level < 5; level++) {
            const ckks_params params = fixture_params(10, 5, 1, 1);
            plan_fixture *f = plan_fixture_create(&params);
            const uint32_t a = plan_fixture_input(f, level, 1, SCALE);
            plan_fixture_output(f, plan_fixture_chebyshev(f, a, coefficients, degree, SCALE));
            const plan *p = plan_fixture_finish(f);
            assert_int_equal(p->key_count, 1);
            assert_int_equal(p->keys[0].kind, KEY_RELINEARISATION);
            assert_int_equal(p->keys[0].level, level);
            plan_fixture_destroy(f);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_operation_refuses_what_it_cannot_work_on),
        cmocka_unit_test(a_polynomial_needs_its_key_at_the_level_of_its_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
