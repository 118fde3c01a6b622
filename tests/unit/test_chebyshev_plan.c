/*
 * Schedules of Chebyshev polynomials: minimal depth, every level available when it is read, scales that
 * follow the binary64 rules, and the same numbers as Clenshaw's recurrence, for every degree from 1 to 63 and
 * a few large ones.
 */
#include "kernels/evaluator/chebyshev.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEVELS 11u
#define SCALE  0x1p35

static ckks_params params;
static prng r;

static int make_params(void **state) {
    (void)state;
    params = fixture_params(10, LEVELS + 1, 1, 1);
    prng_init(&r, 5);
    return 0;
}

static double clenshaw(const double *c, uint32_t degree, double x) {
    double b1 = 0, b2 = 0;
    for (uint32_t i = degree; i >= 1; i--) {
        const double b = 2 * x * b1 - b2 + c[i];
        b2 = b1, b1 = b;
    }
    return x * b1 - b2 + c[0];
}

/* parity 0: all coefficients, 1: odd ones, 2: even ones */
static void random_coefficients(double *c, uint32_t degree, uint32_t parity) {
    for (uint32_t i = 0; i <= degree; i++)
        c[i] = parity == 0 || i % 2 == parity % 2 ? prng_symmetric(&r) / (1 + i) : 0;
    if (c[degree] == 0) c[degree] = 0.5;
}

static double relative(double a, double b) {
    return fabs(a / b - 1);
}

/* Every rule that a schedule must keep. Returns the worst relative error of a stated scale. */
static double audit(const chebyshev_plan *p) {
    double worst = 0;
    uint32_t level[CHEBYSHEV_STEPS_MAX + 1];
    double scale[CHEBYSHEV_STEPS_MAX + 1];
    level[0] = p->level_in, scale[0] = p->scale_in;
    for (uint32_t i = 0; i < p->step_count; i++) {
        const chebyshev_step *s = &p->steps[i];
        assert_true(s->level >= 1 && s->last_use >= i && s->product_count + s->term_count > 0);
        for (uint32_t k = 0; k < s->product_count; k++) {
            const chebyshev_product product = p->products[s->first_product + k];
            assert_true(product.left <= i && product.right <= i);
            assert_true(level[product.left] >= s->level && level[product.right] >= s->level);
            assert_true(!product.left || p->steps[product.left - 1].last_use >= i);
            assert_true(!product.right || p->steps[product.right - 1].last_use >= i);
            worst = fmax(worst, relative(scale[product.left] * scale[product.right], s->sum_scale));
        }
        for (uint32_t k = 0; k < s->term_count; k++) {
            const chebyshev_term term = p->terms[s->first_term + k];
            assert_true(term.value <= i && level[term.value] >= s->level);
            assert_true(!term.value || p->steps[term.value - 1].last_use >= i);
            worst = fmax(worst, relative(scale[term.value] * term.constant_scale, s->sum_scale));
        }
        worst = fmax(worst, relative(s->sum_scale / (double)params.prime[s->level], s->scale));
        level[i + 1] = s->level - 1, scale[i + 1] = s->scale;
    }
    assert_int_equal(level[p->step_count], p->level_out);
    assert_true(scale[p->step_count] == p->scale_out);
    return worst;
}

static uint32_t key_switches(const chebyshev_plan *p) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < p->step_count; i++) count += p->steps[i].product_count > 0;
    return count;
}

static void depth_is_the_least_that_holds_the_coefficients(void **state) {
    (void)state;
    static const uint32_t expected[][2] = {{1, 1}, {2, 2},  {3, 2},  {4, 3}, {7, 3},
                                           {8, 4}, {15, 4}, {31, 5}, {63, 6}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
        assert_int_equal(chebyshev_depth(expected[i][0]), expected[i][1]);
}

static void every_degree_is_scheduled_and_right(void **state) {
    (void)state;
    double worst_scale = 0, worst_value = 0;
    uint32_t exact = 0, plans = 0;
    for (uint32_t degree = 1; degree <= 63; degree++)
        for (uint32_t parity = 0; parity < 3; parity++) {
            double c[64];
            chebyshev_plan *p = NULL;
            ckks_error err = {0};
            random_coefficients(c, degree, parity);
            const double scale_in = SCALE * (1 + 0.01 * prng_symmetric(&r));
            const double scale_out = SCALE * (1 + 0.01 * prng_symmetric(&r));
            const ckks_status rc =
                chebyshev_plan_create(&p, &params, c, degree, LEVELS, scale_in, scale_out, &err);
            if (rc != CKKS_OK) fail_msg("degree %u: %s: %s", degree, err.field, err.message);
            assert_int_equal(p->level_out, LEVELS - chebyshev_depth(degree));
            const double scale_error = audit(p);
            worst_scale = fmax(worst_scale, scale_error);
            exact += scale_error == 0, plans++;
            for (uint32_t k = 0; k <= 20; k++) {
                const double x = -1 + 0.1 * k;
                worst_value = fmax(worst_value, fabs(chebyshev_interpret(p, x) - clenshaw(c, degree, x)));
            }
            chebyshev_plan_destroy(p);
        }
    print_message(
        "%u schedules, %u with every scale exact; worst stated scale 2^%.1f off, value 2^%.1f off\n", plans,
        exact, log2(worst_scale), log2(worst_value));
    assert_true(worst_scale <= 0x1p-51);
    assert_true(worst_value < 0x1p-44);
}

static void key_switches_grow_like_the_square_root(void **state) {
    (void)state;
    static const uint32_t degrees[] = {3, 7, 15, 31, 63, 127, 255, 511, 1023};
    for (size_t i = 0; i < sizeof degrees / sizeof degrees[0]; i++) {
        static double c[1024];
        const uint32_t degree = degrees[i];
        chebyshev_plan *p = NULL;
        ckks_error err = {0};
        random_coefficients(c, degree, 0);
        assert_int_equal(chebyshev_plan_create(&p, &params, c, degree, LEVELS, SCALE, SCALE, &err), CKKS_OK);
        audit(p);
        const uint32_t count = key_switches(p);
        uint32_t relin_level = 0;
        assert_true(chebyshev_plan_relin_level(p, &relin_level));
        assert_int_equal(relin_level, LEVELS);
        print_message("degree %4u: %2u levels, %3u key switches, %3u products, %4u terms\n", degree,
                      p->level_in - p->level_out, count, p->product_count, p->term_count);
        assert_true(count <= 2 * sqrt(degree + 1.0) + log2(degree + 1.0) + 1);
        for (uint32_t k = 0; k <= 10; k++) {
            const double x = -1 + 0.2 * k;
            assert_true(fabs(chebyshev_interpret(p, x) - clenshaw(c, degree, x)) < 0x1p-40);
        }
        chebyshev_plan_destroy(p);
    }
}

static void odd_polynomials_need_fewer_terms_and_degree_one_no_key(void **state) {
    (void)state;
    double c[32];
    chebyshev_plan *all = NULL, *odd = NULL, *line = NULL;
    uint32_t level = 99;
    random_coefficients(c, 31, 0);
    assert_int_equal(chebyshev_plan_create(&all, &params, c, 31, LEVELS, SCALE, SCALE, NULL), CKKS_OK);
    random_coefficients(c, 31, 1);
    assert_int_equal(chebyshev_plan_create(&odd, &params, c, 31, LEVELS, SCALE, SCALE, NULL), CKKS_OK);
    assert_true(odd->term_count < all->term_count);
    assert_true(key_switches(odd) <= key_switches(all));
    assert_int_equal(chebyshev_plan_create(&line, &params, c, 1, 1, SCALE, SCALE, NULL), CKKS_OK);
    assert_false(chebyshev_plan_relin_level(line, &level));
    assert_int_equal(level, 0);
    assert_int_equal(chebyshev_plan_level_out(line), 0);
    chebyshev_plan_destroy(all);
    chebyshev_plan_destroy(odd);
    chebyshev_plan_destroy(line);
}

static void bad_input_is_refused_by_field(void **state) {
    (void)state;
    double good[] = {0.5, 1, 0.25, 0.125}, zero[] = {1, 1, 1, 0}, nan[] = {1, NAN, 1, 1};
    const struct {
        const char *field;
        ckks_status code;
        const double *c;
        uint32_t degree, level;
        double scale_in, scale_out;
    } cases[] = {
        {"degree", CKKS_INVALID_ARGUMENT, good, 0, LEVELS, SCALE, SCALE},
        {"degree", CKKS_INVALID_ARGUMENT, good, CHEBYSHEV_DEGREE_MAX + 1, LEVELS, SCALE, SCALE},
        {"coefficient", CKKS_INVALID_ARGUMENT, zero, 3, LEVELS, SCALE, SCALE},
        {"coefficient", CKKS_INVALID_ARGUMENT, nan, 3, LEVELS, SCALE, SCALE},
        {"level_in", CKKS_INVALID_ARGUMENT, good, 3, LEVELS + 1, SCALE, SCALE},
        {"level_in", CKKS_INVALID_ARGUMENT, good, 3, 1, SCALE, SCALE},
        {"scale_in", CKKS_INVALID_ARGUMENT, good, 3, LEVELS, NAN, SCALE},
        {"scale_in", CKKS_INVALID_ARGUMENT, good, 3, LEVELS, 0, SCALE},
        {"scale_out", CKKS_INVALID_ARGUMENT, good, 3, LEVELS, SCALE, -SCALE},
        {"scale_out", CKKS_INVALID_ARGUMENT, good, 3, LEVELS, SCALE, INFINITY},
        {"scale", CKKS_PRECISION, good, 3, 2, SCALE, 0x1p60},
        {"scale", CKKS_PRECISION, good, 3, LEVELS, 2, SCALE},
        {"coefficient", CKKS_PRECISION, good, 1, 1, 0x1p75, SCALE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        chebyshev_plan *p = NULL;
        ckks_error err = {0};
        const ckks_status rc = chebyshev_plan_create(&p, &params, cases[i].c, cases[i].degree, cases[i].level,
                                                     cases[i].scale_in, cases[i].scale_out, &err);
        if (rc != cases[i].code || strcmp(err.field, cases[i].field) != 0)
            print_message("case %zu: %s, %s: %s\n", i, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, cases[i].code);
        assert_string_equal(err.field, cases[i].field);
        assert_null(p);
    }
}

/* Values up to 4 must fit half of the modulus behind every sum: here the last, over q0 q1, whose scale is
 * that of the result times q1. */
static void a_sum_leaves_room_for_values_up_to_four(void **state) {
    (void)state;
    static const struct {
        double share; /* of q0, that the result's scale takes */
        ckks_status expected;
    } cases[] = {{8.1, CKKS_OK}, {7.9, CKKS_PRECISION}, {2.1, CKKS_PRECISION}, {40, CKKS_OK}};
    double c[] = {0.5, 1};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        chebyshev_plan *p = NULL;
        ckks_error err = {0};
        const double scale = (double)params.prime[0] / cases[i].share;
        assert_int_equal(chebyshev_plan_create(&p, &params, c, 1, 1, SCALE, scale, &err), cases[i].expected);
        if (!p) assert_string_equal(err.field, "scale");
        chebyshev_plan_destroy(p);
    }
}

static void every_allocation_failure_is_reported(void **state) {
    (void)state;
    double c[40];
    random_coefficients(c, 39, 0);
    for (uint64_t nth = 1;; nth++) {
        chebyshev_plan *p = NULL;
        alloc_fault_set(nth);
        const ckks_status rc = chebyshev_plan_create(&p, &params, c, 39, LEVELS, SCALE, SCALE, NULL);
        const uint64_t calls = alloc_fault_calls();
        alloc_fault_set(0);
        if (calls < nth) {
            assert_int_equal(rc, CKKS_OK);
            chebyshev_plan_destroy(p);
            break;
        }
        assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
        assert_null(p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(depth_is_the_least_that_holds_the_coefficients),
        cmocka_unit_test(every_degree_is_scheduled_and_right),
        cmocka_unit_test(key_switches_grow_like_the_square_root),
        cmocka_unit_test(odd_polynomials_need_fewer_terms_and_degree_one_no_key),
        cmocka_unit_test(bad_input_is_refused_by_field),
        cmocka_unit_test(a_sum_leaves_room_for_values_up_to_four),
        cmocka_unit_test(every_allocation_failure_is_reported),
    };
    return cmocka_run_group_tests(tests, make_params, NULL);
}
