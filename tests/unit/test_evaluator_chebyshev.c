/*
 * Polynomials on ciphertexts against direct clear evaluation (Clenshaw), on complex-free slots in [-1, 1].
 */
#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEVEL 7u
#define SCALE 0x1p40

static evaluator_fixture f;

static int open_fixture(void **state) {
    (void)state;
    const key_requirement keys[] = {{KEY_RELINEARISATION, 0, LEVEL}};
    const ckks_params p = fixture_params_bits(10, LEVEL + 1, 2, 2, 50, 40, 46);
    evaluator_fixture_open(&f, fixture_context_of(&p), keys, 1);
    return 0;
}
static int close_fixture(void **state) {
    (void)state;
    evaluator_fixture_close(&f);
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

typedef struct polynomial {
    chebyshev_plan *plan;
    ckks_value a;
    uint32_t relin_key;
} polynomial;

static ckks_status run(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const polynomial *t = context;
    return evaluator_chebyshev(ev, out, t->plan, &t->a, t->relin_key, err);
}

/* worst error of one polynomial; parity 0: all coefficients, 1: odd, 2: even */
static double check(uint32_t degree, uint32_t parity, uint32_t batch, double scale_in, double scale_out) {
    double c[64], *x = evaluator_fixture_slots(&f, batch, 1), *y = evaluator_fixture_slots(&f, batch, 0);
    polynomial t = {0};
    host_value v;
    ckks_error err = {0};
    for (uint32_t i = 0; i <= degree; i++)
        c[i] = parity == 0 || i % 2 == parity % 2 ? prng_symmetric(&f.r) / (1 + 0.25 * i) : 0;
    if (c[degree] == 0) c[degree] = 0.25;
    for (size_t i = 0; i < (size_t)batch * f.slot_count; i++) y[i] = clenshaw(c, degree, x[i]);
    if (chebyshev_plan_create(&t.plan, f.on.params, c, degree, LEVEL, scale_in, scale_out, &err) != CKKS_OK)
        fail_msg("degree %u: %s: %s", degree, err.field, err.message);
    t.a = evaluator_fixture_encrypt(&f, x, NULL, batch, LEVEL, scale_in);
    if (evaluator_fixture_run(&f, &v, 1, run, &t, &err) != CKKS_OK)
        fail_msg("degree %u: %s: %s", degree, err.field, err.message);
    assert_true(v.signature.scale == scale_out);
    assert_int_equal(v.signature.limb_count, LEVEL - chebyshev_depth(degree) + 1);
    assert_int_equal(v.signature.component_count, 2);
    const double error = evaluator_fixture_error(&f, &v, y, NULL);
    host_value_free(&v);
    chebyshev_plan_destroy(t.plan);
    free(x);
    free(y);
    return error;
}

/* Errors of T_m grow like m, those of coefficients add up: a bound of one noise term per coefficient and
 * power. */
static double bound_of(uint32_t degree, double scale) {
    return evaluator_fixture_bound(&f, scale, 4.0 * (degree + 1));
}

static void every_degree_up_to_63_matches_the_clear_polynomial(void **state) {
    (void)state;
    double worst_ratio = 0;
    for (uint32_t degree = 1; degree <= 63; degree += degree < 9 ? 1 : 6)
        for (uint32_t round = 0; round < 2; round++) {
            const uint32_t parity = round ? 2 - degree % 2 : 0;
            const double error = check(degree, parity, 1, SCALE, SCALE), bound = bound_of(degree, SCALE);
            print_message("degree %2u, %-4s: error 2^%.1f, bound 2^%.1f, %u launches\n", degree,
                          parity == 0   ? "all"
                          : parity == 1 ? "odd"
                                        : "even",
                          log2(error), log2(bound), f.node_count);
            worst_ratio = fmax(worst_ratio, error / bound);
        }
    assert_true(worst_ratio < 1);
}

static void any_scale_is_landed_on_exactly_and_batches_work(void **state) {
    (void)state;
    for (uint32_t k = 0; k < 6; k++) {
        const double scale_in = SCALE * (1 + 0.01 * prng_symmetric(&f.r));
        const double scale_out = SCALE * (1 + 0.01 * prng_symmetric(&f.r));
        const uint32_t degree = 3 + 2 * k;
        assert_true(check(degree, 0, 1 + k % 2, scale_in, scale_out) < bound_of(degree, SCALE));
    }
}

static void a_value_off_the_schedule_is_refused(void **state) {
    (void)state;
    const double c[] = {0.5, 1, 0.25, 0.125};
    double *x = evaluator_fixture_slots(&f, 1, 1);
    polynomial t = {0};
    host_value v;
    const struct {
        const char *field;
        ckks_status code;
        uint32_t level, key;
        double scale;
    } cases[] = {
        {"limb_count", CKKS_SIGNATURE_MISMATCH, LEVEL - 1, 0, SCALE},
        {"scale", CKKS_SIGNATURE_MISMATCH, LEVEL, 0, SCALE * (1 + 0x1p-52)},
        {"relin_key", CKKS_KEY_MISSING, LEVEL, 1, SCALE},
    };
    assert_int_equal(chebyshev_plan_create(&t.plan, f.on.params, c, 3, LEVEL, SCALE, SCALE, NULL), CKKS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ckks_error err = {0};
        t.a = evaluator_fixture_encrypt(&f, x, NULL, 1, cases[i].level, cases[i].scale);
        t.relin_key = cases[i].key;
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &err), cases[i].code);
        assert_string_equal(err.field, cases[i].field);
    }
    t.a = evaluator_fixture_encrypt(&f, x, NULL, 1, LEVEL, SCALE);
    t.relin_key = 0;
    t.plan->parameter_id[0] ^= 1;
    ckks_error err = {0}, above = {0};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &err), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(err.field, "parameter_id");
    chebyshev_plan_destroy(t.plan);
    /* a schedule for one level less */
    assert_int_equal(chebyshev_plan_create(&t.plan, f.on.params, c, 3, LEVEL - 1, SCALE, SCALE, NULL),
                     CKKS_OK);
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &above), CKKS_SIGNATURE_MISMATCH);
    assert_string_equal(above.field, "limb_count");
    chebyshev_plan_destroy(t.plan);
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_degree_up_to_63_matches_the_clear_polynomial),
        cmocka_unit_test(any_scale_is_landed_on_exactly_and_batches_work),
        cmocka_unit_test(a_value_off_the_schedule_is_refused),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
