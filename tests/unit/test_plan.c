/* Plans: what the check refuses, which keys are listed, and the interpreter on programs small enough for
 * hand. */
#include "kernels/program/plan.h"

#include "kernels/evaluator/evaluator.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"
#include "tests/support/plan_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void good_plans_pass(void **state) {
    (void)state;
    plan_fixture *plans[4] = {plan_fixture_small(), plan_fixture_batch(), plan_fixture_tiny(true),
                              plan_fixture_tiny(false)};
    for (size_t i = 0; i < 4; i++) {
        ckks_error err = {0};
        assert_int_equal(plan_check(&plans[i]->plan, &err), CKKS_OK);
        assert_int_equal(err.code, CKKS_OK);
        plan_fixture_destroy(plans[i]);
    }
}

/* ---- refusals: each entry breaks one thing of the small plan ---- */

enum {
    TRANSFORM,
    SQUARE,
    RELIN,
    CHEBYSHEV,
    ADD_PLAIN,
    ROTATE,
    ADD,
    HOISTED,
    SUBTRACT,
    CONJUGATE,
    MULTIPLY_PLAIN
};

static void level_too_high(plan_fixture *f) {
    f->values[4].level = 7;
}
static void value_components(plan_fixture *f) {
    f->values[4].component_count = 4;
}
static void value_batch(plan_fixture *f) {
    f->values[4].batch_count = 0;
}
static void value_scale_nan(plan_fixture *f) {
    f->values[4].scale = NAN;
}
static void value_scale_negative(plan_fixture *f) {
    f->values[4].scale = -1;
}
static void input_of_three_components(plan_fixture *f) {
    f->values[0].component_count = 3;
}
static void scale_off_by_one_ulp(plan_fixture *f) {
    f->values[2].scale = nextafter(f->values[2].scale, 0);
}
static void rescaled_scale_off_by_one_ulp(plan_fixture *f) {
    f->values[3].scale = nextafter(f->values[3].scale, INFINITY);
}
static void level_one_too_high(plan_fixture *f) {
    f->values[1].level = 6;
}
static void output_components(plan_fixture *f) {
    f->values[2].component_count = 2;
}
static void output_batch(plan_fixture *f) {
    f->values[2].batch_count = 2;
}
static void unknown_kind(plan_fixture *f) {
    f->operations[ADD].kind = 99;
}
static void kind_zero(plan_fixture *f) {
    f->operations[ADD].kind = 0;
}
static void operand_from_the_future(plan_fixture *f) {
    f->operations[ADD].b = f->operations[ADD].first_output;
}
static void operand_is_its_own_output(plan_fixture *f) {
    f->operations[ADD].a = f->operations[ADD].first_output;
}
static void operand_out_of_range(plan_fixture *f) {
    f->operations[SQUARE].a = UINT32_MAX;
}
static void gap_in_numbering(plan_fixture *f) {
    f->operations[ADD].first_output++;
}
static void too_few_outputs(plan_fixture *f) {
    f->operations[HOISTED].output_count = 1;
}
static void no_source(plan_fixture *f) {
    f->operations[ADD].source = NULL;
}
static void plain_out_of_range(plan_fixture *f) {
    f->operations[ADD_PLAIN].plain = f->plan.plain_count;
}
static void plain_of_another_level(plan_fixture *f) {
    f->plains[f->operations[ADD_PLAIN].plain].level = 1;
}
static void plain_of_another_scale(plan_fixture *f) {
    double *scale = &f->plains[f->operations[ADD_PLAIN].plain].scale;
    *scale = nextafter(*scale, 0);
}
static void plain_over_p(plan_fixture *f) {
    f->plains[f->operations[ADD_PLAIN].plain].with_p = true;
}
static void plain_slots_not_a_power_of_two(plan_fixture *f) {
    f->plains[f->operations[ADD_PLAIN].plain].slot_count = 3;
}
static void plain_slots_too_many(plan_fixture *f) {
    f->plains[f->operations[ADD_PLAIN].plain].slot_count = 1024;
}
static void plain_slot_nan(plan_fixture *f) {
    ((double *)(uintptr_t)f->plains[0].slots)[5] = NAN;
}
static void transform_out_of_range(plan_fixture *f) {
    f->operations[TRANSFORM].transform = 1;
}
static void term_giant_out_of_range(plan_fixture *f) {
    ((plan_transform_term *)(uintptr_t)f->transforms[0].terms)[1].giant = 2;
}
static void term_baby_out_of_range(plan_fixture *f) {
    ((plan_transform_term *)(uintptr_t)f->transforms[0].terms)[1].baby = 3;
}
static void term_plain_out_of_range(plan_fixture *f) {
    ((plan_transform_term *)(uintptr_t)f->transforms[0].terms)[1].plain = f->plan.plain_count;
}
static void baby_step_twice(plan_fixture *f) {
    int32_t *steps = (int32_t *)(uintptr_t)f->transforms[0].baby_steps;
    steps[2] = steps[1];
}
/* another number, the same rotation */
static void giant_step_of_the_same_element(plan_fixture *f) {
    int32_t *steps = (int32_t *)(uintptr_t)f->transforms[0].giant_steps;
    steps[0] = steps[1] - (int32_t)(1u << (f->plan.params->log_n - 1));
}
static void diagonal_of_another_scale(plan_fixture *f) {
    f->plains[2].scale *= 2;
}
static void diagonal_without_p(plan_fixture *f) {
    f->plains[2].with_p = false;
}
static void step_beyond_the_slots(plan_fixture *f) {
    ((int32_t *)(uintptr_t)f->operations[ROTATE].steps)[0] = 512;
}
static void step_minus_beyond_the_slots(plan_fixture *f) {
    ((int32_t *)(uintptr_t)f->operations[ROTATE].steps)[0] = INT32_MIN;
}
static void rotate_by_two_steps(plan_fixture *f) {
    f->operations[ROTATE].step_count = 2;
}
static void rotate_by_no_step(plan_fixture *f) {
    f->operations[ROTATE].step_count = 0;
}
static void polynomial_out_of_range(plan_fixture *f) {
    f->operations[CHEBYSHEV].polynomial = 1;
}
static void polynomial_nan(plan_fixture *f) {
    ((double *)(uintptr_t)f->polynomials[0].coefficients)[1] = NAN;
}
static void polynomial_of_degree_0(plan_fixture *f) {
    f->polynomials[0].degree = 0;
}
static void polynomial_too_deep(plan_fixture *f) {
    static const double many[64] = {[63] = 1};
    f->polynomials[0].coefficients = many;
    f->polynomials[0].degree = 63;
}
static void square_not_relinearised(plan_fixture *f) {
    f->operations[RELIN].kind = PLAN_NEGATE;
}
static void relinearise_of_two_components(plan_fixture *f) {
    f->operations[SQUARE].kind = PLAN_RELINEARISE;
}
static void constant_nan(plan_fixture *f) {
    for (uint32_t i = 0; i < f->plan.operation_count; i++)
        if (f->operations[i].kind == PLAN_ADD_CONSTANT) f->operations[i].constant = NAN;
}
static void constant_scale_zero(plan_fixture *f) {
    for (uint32_t i = 0; i < f->plan.operation_count; i++)
        if (f->operations[i].kind == PLAN_MULTIPLY_CONSTANT) f->operations[i].constant_scale = 0;
}
static void output_is_an_input(plan_fixture *f) {
    f->outputs[0] = 0;
}
static void output_out_of_range(plan_fixture *f) {
    f->outputs[0] = f->plan.value_count;
}
static void no_outputs(plan_fixture *f) {
    f->plan.output_count = 0;
}
static void no_inputs(plan_fixture *f) {
    f->plan.input_count = 0;
}
static void no_operations(plan_fixture *f) {
    f->plan.operation_count = 0;
}
static void value_too_many(plan_fixture *f) {
    f->values[f->plan.value_count] = f->values[0];
    f->plan.value_count++;
}
static void key_missing(plan_fixture *f) {
    f->plan.key_count--;
}
static void key_of_lower_level(plan_fixture *f) {
    f->keys[1].level--;
}
static void key_out_of_order(plan_fixture *f) {
    const key_requirement swap = f->keys[1];
    f->keys[1] = f->keys[2], f->keys[2] = swap;
}
static void too_many_values(plan_fixture *f) {
    f->plan.value_count = PLAN_VALUES_MAX + 1;
}

static void each_broken_plan_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        void (*damage)(plan_fixture *);
        ckks_status code;
        const char *field;
    } table[] = {
        {level_too_high, CKKS_MALFORMED, "value 4"},
        {value_components, CKKS_MALFORMED, "value 4"},
        {value_batch, CKKS_MALFORMED, "value 4"},
        {value_scale_nan, CKKS_MALFORMED, "value 4"},
        {value_scale_negative, CKKS_MALFORMED, "value 4"},
        {input_of_three_components, CKKS_MALFORMED, "value 0"},
        {scale_off_by_one_ulp, CKKS_SIGNATURE_MISMATCH, "operation 1 (SQUARE, test)"},
        {rescaled_scale_off_by_one_ulp, CKKS_SIGNATURE_MISMATCH, "operation 2 (RELINEARISE, test)"},
        {level_one_too_high, CKKS_SIGNATURE_MISMATCH, "operation 0 (LINEAR_TRANSFORM, test)"},
        {output_components, CKKS_SIGNATURE_MISMATCH, "operation 1 (SQUARE, test)"},
        {output_batch, CKKS_SIGNATURE_MISMATCH, "operation 1 (SQUARE, test)"},
        {unknown_kind, CKKS_MALFORMED, "operation 6 (UNKNOWN, test)"},
        {kind_zero, CKKS_MALFORMED, "operation 6 (UNKNOWN, test)"},
        {operand_from_the_future, CKKS_MALFORMED, "operation 6 (ADD, test)"},
        {operand_is_its_own_output, CKKS_MALFORMED, "operation 6 (ADD, test)"},
        {operand_out_of_range, CKKS_MALFORMED, "operation 1 (SQUARE, test)"},
        {gap_in_numbering, CKKS_MALFORMED, "operation 6 (ADD, test)"},
        {too_few_outputs, CKKS_MALFORMED, "operation 7 (ROTATE_HOISTED, test)"},
        {no_source, CKKS_MALFORMED, "operation 6 (ADD, )"},
        {plain_out_of_range, CKKS_MALFORMED, "operation 4 (ADD_PLAIN, test)"},
        {plain_of_another_level, CKKS_SIGNATURE_MISMATCH, "operation 4 (ADD_PLAIN, test)"},
        {plain_of_another_scale, CKKS_SIGNATURE_MISMATCH, "operation 4 (ADD_PLAIN, test)"},
        {plain_over_p, CKKS_SIGNATURE_MISMATCH, "operation 4 (ADD_PLAIN, test)"},
        {plain_slots_not_a_power_of_two, CKKS_MALFORMED, "plain 6"},
        {plain_slots_too_many, CKKS_MALFORMED, "plain 6"},
        {plain_slot_nan, CKKS_MALFORMED, "plain 0"},
        {transform_out_of_range, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)"},
        {term_giant_out_of_range, CKKS_MALFORMED, "transform 0"},
        {term_baby_out_of_range, CKKS_MALFORMED, "transform 0"},
        {term_plain_out_of_range, CKKS_MALFORMED, "transform 0"},
        {baby_step_twice, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)"},
        {giant_step_of_the_same_element, CKKS_MALFORMED, "operation 0 (LINEAR_TRANSFORM, test)"},
        {diagonal_of_another_scale, CKKS_SIGNATURE_MISMATCH, "transform 0"},
        {diagonal_without_p, CKKS_SIGNATURE_MISMATCH, "transform 0"},
        {step_beyond_the_slots, CKKS_MALFORMED, "operation 5 (ROTATE, test)"},
        {step_minus_beyond_the_slots, CKKS_MALFORMED, "operation 5 (ROTATE, test)"},
        {rotate_by_two_steps, CKKS_MALFORMED, "operation 5 (ROTATE, test)"},
        {rotate_by_no_step, CKKS_MALFORMED, "operation 5 (ROTATE, test)"},
        {polynomial_out_of_range, CKKS_MALFORMED, "operation 3 (CHEBYSHEV, test)"},
        {polynomial_nan, CKKS_MALFORMED, "polynomial 0"},
        {polynomial_of_degree_0, CKKS_MALFORMED, "polynomial 0"},
        {polynomial_too_deep, CKKS_MALFORMED, "operation 3 (CHEBYSHEV, test)"},
        {square_not_relinearised, CKKS_SIGNATURE_MISMATCH, "operation 2 (NEGATE, test)"},
        {relinearise_of_two_components, CKKS_MALFORMED, "operation 1 (RELINEARISE, test)"},
        {constant_nan, CKKS_MALFORMED, "operation 12 (ADD_CONSTANT, test)"},
        {constant_scale_zero, CKKS_MALFORMED, "operation 15 (MULTIPLY_CONSTANT, test)"},
        {output_is_an_input, CKKS_MALFORMED, "outputs"},
        {output_out_of_range, CKKS_MALFORMED, "outputs"},
        {no_outputs, CKKS_MALFORMED, "outputs"},
        {no_inputs, CKKS_MALFORMED, "values"},
        {no_operations, CKKS_MALFORMED, "operations"},
        {value_too_many, CKKS_MALFORMED, "values"},
        {key_missing, CKKS_MALFORMED, "keys"},
        {key_of_lower_level, CKKS_MALFORMED, "keys"},
        {key_out_of_order, CKKS_MALFORMED, "keys"},
        {too_many_values, CKKS_MALFORMED, "values"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        plan_fixture *f = plan_fixture_small();
        ckks_error err = {0};
        table[i].damage(f);
        const ckks_status rc = plan_check(&f->plan, &err);
        if (rc != table[i].code || strcmp(err.field, table[i].field) != 0)
            print_message("entry %zu: %s: %s: %s\n", i, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, table[i].code);
        assert_string_equal(err.field, table[i].field);
        plan_fixture_destroy(f);
    }
}

static void the_gate_holds_unless_the_plan_says_insecure(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_OK);
    f->plan.is_insecure = false;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_INSECURE_PARAMETERS);
    plan_fixture_destroy(f);
}

static void batch_operations_are_checked(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_batch();
    ckks_error err = {0};
    f->operations[0].matrix = 1;
    assert_int_equal(plan_check(&f->plan, &err), CKKS_MALFORMED);
    f->operations[0].matrix = 0;
    f->matrices[0].column_count = 2;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_SIGNATURE_MISMATCH);
    f->matrices[0].row_count = 1, f->matrices[0].column_count = 6; /* as many weights */
    err = (ckks_error){0};
    assert_int_equal(plan_check(&f->plan, &err), CKKS_SIGNATURE_MISMATCH);
    assert_non_null(strstr(err.message, "6 columns"));
    f->matrices[0].row_count = 2;
    f->matrices[0].column_count = 3;
    const double scale = f->matrices[0].bias_scale, bad[] = {0, NAN};
    f->matrices[0].bias_scale = nextafter(scale, 0);
    assert_int_equal(plan_check(&f->plan, &err), CKKS_SIGNATURE_MISMATCH);
    f->matrices[0].bias_scale = -1;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_MALFORMED);
    f->matrices[0].bias_scale = scale;
    const double *bias = f->matrices[0].bias;
    f->matrices[0].bias = bad;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_MALFORMED);
    f->matrices[0].bias = bias;
    f->operations[2].flood_bits = 49;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_MALFORMED);
    f->operations[2].flood_bits = 48;
    assert_int_equal(plan_check(&f->plan, NULL), CKKS_OK);
    plan_fixture_destroy(f);
}

static void required_keys_are_sorted_and_at_their_highest_level(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    const plan *p = &f->plan;
    /* steps 1, 2, 4 at level 6 (transform), 3, 1, -2 at level 2, 1 and 2 again at level 1; conjugation at 2
     */
    const struct {
        uint32_t element, level;
    } expected[] = {{galois_element_rotate(10, 1), 6},  {galois_element_rotate(10, 2), 6},
                    {galois_element_rotate(10, 4), 6},  {galois_element_rotate(10, 3), 2},
                    {galois_element_rotate(10, -2), 2}, {2047, 2}};
    assert_int_equal(p->key_count, 7);
    assert_int_equal(p->keys[0].kind, KEY_RELINEARISATION);
    assert_int_equal(p->keys[0].level, 5);
    for (uint32_t i = 1; i < 7; i++) {
        bool is_found = false;
        assert_int_equal(p->keys[i].kind, KEY_GALOIS);
        assert_true(i == 1 || p->keys[i].galois_element > p->keys[i - 1].galois_element);
        for (size_t k = 0; k < 6; k++)
            is_found |=
                expected[k].element == p->keys[i].galois_element && expected[k].level == p->keys[i].level;
        assert_true(is_found);
    }
    plan_fixture_destroy(f);
    f = plan_fixture_batch();
    assert_int_equal(f->plan.key_count, 1);
    assert_int_equal(f->plan.keys[0].kind, KEY_PUBLIC);
    assert_int_equal(f->plan.keys[0].level, 1);
    plan_fixture_destroy(f);
}

static void checking_survives_every_failed_allocation(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    for (uint64_t n = 1;; n++) {
        alloc_fault_set(n);
        const ckks_status rc = plan_check(&f->plan, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        assert_int_equal(rc, was_hit ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        if (!was_hit) break;
    }
    plan_fixture_destroy(f);
}

static void every_kind_has_a_name(void **state) {
    (void)state;
    for (uint32_t k = PLAN_ADD; k <= PLAN_RERANDOMISE; k++)
        assert_string_not_equal(plan_operation_name(k), "UNKNOWN");
    assert_string_equal(plan_operation_name(0), "UNKNOWN");
    assert_string_equal(plan_operation_name(PLAN_RERANDOMISE + 1), "UNKNOWN");
    assert_string_equal(plan_operation_name(UINT32_MAX), "UNKNOWN");
}

/* ---- the interpreter ---- */

#define SLOTS 512u

/* one operation on x (and y), from a plan of two inputs */
static void interpret(double *out, plan_fixture *f, uint32_t value, const double *x, const double *y) {
    ckks_error err = {0};
    char text[400];
    plan_fixture_output(f, value);
    const plan *p = plan_fixture_finish(f);
    const double *inputs[] = {x, y};
    if (plan_check(p, &err) != CKKS_OK) fail_msg("%s", ckks_error_print(&err, text, sizeof text));
    assert_int_equal(plan_interpret(&out, p, inputs, NULL), CKKS_OK);
    plan_fixture_destroy(f);
}

static plan_fixture *two_inputs(void) {
    static ckks_params params;
    params = fixture_params(10, 4, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    plan_fixture_input(f, 3, 1, 0x1p30);
    plan_fixture_input(f, 3, 1, 0x1p30);
    return f;
}

static double x[SLOTS], y[SLOTS], out[SLOTS];

static int fill_vectors(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SLOTS; i++) x[i] = (i % 37) / 37.0 - 0.5, y[i] = (i % 11) / 8.0;
    return 0;
}

#define ASSERT_SLOTS(expression)                                                                             \
    for (uint32_t i = 0; i < SLOTS; i++) assert_true(fabs(out[i] - (expression)) <= 1e-14)

static void arithmetic_is_slot_by_slot(void **state) {
    (void)state;
    plan_fixture *f = two_inputs();
    interpret(out, f, plan_fixture_operation(f, PLAN_ADD, 0, 1), x, y);
    ASSERT_SLOTS(x[i] + y[i]);
    f = two_inputs();
    interpret(out, f, plan_fixture_operation(f, PLAN_SUBTRACT, 1, 0), x, y);
    ASSERT_SLOTS(y[i] - x[i]);
    f = two_inputs();
    interpret(out, f, plan_fixture_operation(f, PLAN_NEGATE, 1, 0), x, y);
    ASSERT_SLOTS(-y[i]);
    f = two_inputs();
    interpret(out, f, plan_fixture_relinearise_rescale(f, plan_fixture_operation(f, PLAN_MULTIPLY, 0, 1)), x,
              y);
    ASSERT_SLOTS(x[i] * y[i]);
    f = two_inputs();
    interpret(out, f, plan_fixture_relinearise_rescale(f, plan_fixture_operation(f, PLAN_SQUARE, 0, 0)), x,
              y);
    ASSERT_SLOTS(x[i] * x[i]);
    f = two_inputs();
    interpret(out, f, plan_fixture_constant(f, PLAN_ADD_CONSTANT, 0, 1.5, 0), x, y);
    ASSERT_SLOTS(x[i] + 1.5);
    f = two_inputs();
    interpret(out, f, plan_fixture_constant(f, PLAN_MULTIPLY_CONSTANT, 0, -3, 2), x, y);
    ASSERT_SLOTS(x[i] * -3);
}

static void plains_repeat_over_the_slots(void **state) {
    (void)state;
    static const double four[] = {1, -2, 3, 0.5};
    plan_fixture *f = two_inputs();
    interpret(out, f, plan_fixture_plain(f, PLAN_ADD_PLAIN, 0, four, 4, 0), x, y);
    ASSERT_SLOTS(x[i] + four[i % 4]);
    f = two_inputs();
    interpret(out, f, plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, 0, four, 4, 3), x, y);
    ASSERT_SLOTS(x[i] * four[i % 4]);
}

static void rotations_are_to_the_left_and_wrap(void **state) {
    (void)state;
    static const int32_t five[] = {5}, minus[] = {-7}, sum[] = {1, 2, 4};
    plan_fixture *f = two_inputs();
    interpret(out, f, plan_fixture_steps(f, PLAN_ROTATE, 0, five, 1), x, y);
    ASSERT_SLOTS(x[(i + 5) % SLOTS]);
    f = two_inputs();
    interpret(out, f, plan_fixture_steps(f, PLAN_ROTATE, 0, minus, 1), x, y);
    ASSERT_SLOTS(x[(i + SLOTS - 7) % SLOTS]);
    f = two_inputs();
    interpret(out, f, plan_fixture_steps(f, PLAN_INNER_SUM, 0, sum, 3), x, y);
    double expected[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++) {
        expected[i] = 0;
        for (uint32_t k = 0; k < 8; k++) expected[i] += x[(i + k) % SLOTS];
    }
    ASSERT_SLOTS(expected[i]);
}

/* The oracle of the sign of pre-rotation: a dense matrix, multiplied out by the definition. */
static void a_transform_is_the_matrix_of_its_diagonals(void **state) {
    (void)state;
    static const int32_t giants[] = {0, 3, 9}, babies[] = {0, 1, 2};
    static double numbers[9][SLOTS];
    const double *diagonals[9];
    double expected[SLOTS] = {0};
    prng r;
    prng_init(&r, 7);
    for (uint32_t k = 0; k < 9; k++) {
        const uint32_t by = (uint32_t)(giants[k / 3] + babies[k % 3]);
        diagonals[k] = numbers[k];
        for (uint32_t i = 0; i < SLOTS; i++) {
            numbers[k][i] = prng_symmetric(&r);
            expected[i] += numbers[k][i] * x[(i + by) % SLOTS]; /* row i, column i + by */
        }
    }
    plan_fixture *f = two_inputs();
    interpret(out, f, plan_fixture_transform(f, 0, giants, 3, babies, 3, diagonals, 0x1p30), x, y);
    ASSERT_SLOTS(expected[i]);
}

static void chebyshev_is_the_cosine_of_multiples(void **state) {
    (void)state;
    static const double c[] = {0.25, -1, 0.5, 2, 0, 0, 0, -0.125};
    plan_fixture *f = two_inputs();
    interpret(out, f, plan_fixture_chebyshev(f, 0, c, 7, 0x1p30), x, y);
    for (uint32_t i = 0; i < SLOTS; i++) {
        double expected = 0;
        for (uint32_t k = 0; k < 8; k++) expected += c[k] * cos(k * acos(x[i]));
        assert_true(fabs(out[i] - expected) < 1e-13);
    }
}

static void a_matrix_product_mixes_the_batch(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_batch();
    static double batch[3 * SLOTS], product[2 * SLOTS], second[SLOTS];
    const double *inputs[] = {batch, x};
    double *outputs[] = {product, second};
    for (uint32_t i = 0; i < 3 * SLOTS; i++) batch[i] = i * 0.001;
    assert_int_equal(plan_interpret(outputs, &f->plan, inputs, NULL), CKKS_OK);
    for (uint32_t i = 0; i < SLOTS; i++) {
        const double a = batch[i], b = batch[SLOTS + i], c = batch[2 * SLOTS + i];
        assert_true(fabs(product[i] - (0.5 * a - 0.25 * b + c + 0.375)) < 1e-12);
        assert_true(fabs(product[SLOTS + i] - (0.125 * a + 2 * b - c - 1.5)) < 1e-12);
        assert_true(second[i] == x[i]);
    }
    plan_fixture_destroy(f);
}

static void interpreting_survives_every_failed_allocation(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    static double second[SLOTS];
    const double *inputs[] = {x};
    double *outputs[] = {out, second};
    for (uint64_t n = 1;; n++) {
        alloc_fault_set(n);
        const ckks_status rc = plan_interpret(outputs, &f->plan, inputs, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        assert_int_equal(rc, was_hit ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        if (!was_hit) break;
    }
    plan_fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_plans_pass),
        cmocka_unit_test(each_broken_plan_is_refused_by_name),
        cmocka_unit_test(the_gate_holds_unless_the_plan_says_insecure),
        cmocka_unit_test(batch_operations_are_checked),
        cmocka_unit_test(required_keys_are_sorted_and_at_their_highest_level),
        cmocka_unit_test(checking_survives_every_failed_allocation),
        cmocka_unit_test(every_kind_has_a_name),
        cmocka_unit_test(arithmetic_is_slot_by_slot),
        cmocka_unit_test(plains_repeat_over_the_slots),
        cmocka_unit_test(rotations_are_to_the_left_and_wrap),
        cmocka_unit_test(a_transform_is_the_matrix_of_its_diagonals),
        cmocka_unit_test(chebyshev_is_the_cosine_of_multiples),
        cmocka_unit_test(a_matrix_product_mixes_the_batch),
        cmocka_unit_test(interpreting_survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, fill_vectors, NULL);
}
