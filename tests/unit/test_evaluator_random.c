/*
 * Rerandomising: same message, other words, fresh in each run; flooding adds what it says and no more.
 */
#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LEVEL 3u
#define SCALE 0x1p35

static evaluator_fixture f;

static int open_fixture(void **state) {
    (void)state;
    const key_requirement keys[] = {{KEY_PUBLIC, 0, LEVEL}};
    evaluator_fixture_open(&f, fixture_context(11, LEVEL + 1, 2, 2), keys, 1);
    return 0;
}
static int close_fixture(void **state) {
    (void)state;
    evaluator_fixture_close(&f);
    return 0;
}

typedef struct draw {
    ckks_value a;
    uint32_t public_key, flood_bits, rounds;
    bool is_finished, without_stream;
} draw;

static ckks_status run(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const draw *t = context;
    ckks_status rc = CKKS_OK;
    if (t->without_stream) ev->random = NULL;
    for (uint32_t i = 0; i < t->rounds && rc == CKKS_OK; i++)
        rc = evaluator_rerandomise(ev, &out[i], &t->a, t->public_key, t->flood_bits, err);
    /* the second time there is nothing to add */
    for (uint32_t i = 0; i < 2 && rc == CKKS_OK && t->is_finished; i++) rc = evaluator_random_finish(ev, err);
    return rc;
}

static uint64_t equal_words(const uint64_t *a, const uint64_t *b, uint64_t bytes) {
    uint64_t equal = 0;
    for (uint64_t i = 0; i < bytes / sizeof *a; i++) equal += a[i] == b[i];
    return equal;
}

/* words equal by chance: about one in 2^35 */
static void rerandomising_keeps_the_message_and_changes_all_words(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 2, 1);
    for (uint32_t level = 0; level <= LEVEL; level++) { /* the key is cut to the value's level */
        host_value v[2];
        draw t = {.a = evaluator_fixture_encrypt(&f, x, NULL, 2, level, SCALE), .rounds = 2};
        assert_int_equal(evaluator_fixture_run(&f, v, 2, run, &t, NULL), CKKS_OK);
        uint64_t *before = malloc(t.a.signature.bytes);
        assert_non_null(before);
        device_fixture_download(&f.on, before, t.a.words, t.a.signature.bytes);
        assert_true(equal_words(before, v[0].words, t.a.signature.bytes) < 4);
        assert_true(equal_words(before, v[1].words, t.a.signature.bytes) < 4);
        assert_true(equal_words(v[0].words, v[1].words, t.a.signature.bytes) < 4);
        /* v * e + e0 + e1 * s: as a rescale's rounding, sqrt(12) sigma times */
        const double bound = evaluator_fixture_bound(&f, SCALE, 2 * sqrt(12) * 3.24);
        const double error = evaluator_fixture_error(&f, &v[0], x, NULL);
        print_message("level %u: error 2^%.1f, bound 2^%.1f\n", level, log2(error), log2(bound));
        assert_true(error < bound);
        assert_true(evaluator_fixture_error(&f, &v[1], x, NULL) < bound);
        free(before);
        host_value_free(&v[0]);
        host_value_free(&v[1]);
    }
    free(x);
}

static void flooding_has_the_stated_size(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 1, 1);
    host_value v;
    draw t = {.a = evaluator_fixture_encrypt(&f, x, NULL, 1, LEVEL, SCALE), .rounds = 1, .flood_bits = 25};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, NULL), CKKS_OK);
    /* N coefficients uniform in +-2^25: a slot's deviation is 2^25 sqrt(N / 3) */
    const double deviation = 0x1p25 * sqrt(f.on.n / 3.0) / SCALE;
    const double error = evaluator_fixture_error(&f, &v, x, NULL);
    print_message("error 2^%.1f, one deviation 2^%.1f\n", log2(error), log2(deviation));
    assert_true(error > deviation && error < 8 * deviation);
    host_value_free(&v);
    free(x);
}

static uint64_t counter(void) {
    random_state state;
    device_fixture_download(&f.on, &state, f.random, sizeof state);
    return state.counter;
}

static void finishing_advances_the_counter_by_what_was_drawn(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 2, 1);
    host_value v[2];
    draw t = {.a = evaluator_fixture_encrypt(&f, x, NULL, 2, LEVEL, SCALE), .rounds = 2, .flood_bits = 5};
    assert_int_equal(evaluator_fixture_run(&f, v, 2, run, &t, NULL), CKKS_OK);
    const uint64_t untouched = counter();
    for (uint32_t i = 0; i < 2; i++) host_value_free(&v[i]);
    t.is_finished = true;
    assert_int_equal(evaluator_fixture_run(&f, v, 2, run, &t, NULL), CKKS_OK);
    const uint64_t per_entry = sample_block_count(SAMPLE_TERNARY, f.on.n) +
                               2 * sample_block_count(SAMPLE_ERROR, f.on.n) +
                               sample_block_count(SAMPLE_FLOOD, f.on.n);
    assert_int_equal(counter() - untouched, 2 * 2 * per_entry);
    for (uint32_t i = 0; i < 2; i++) host_value_free(&v[i]);
    free(x);
}

static void what_cannot_be_drawn_is_refused(void **state) {
    (void)state;
    double *x = evaluator_fixture_slots(&f, 1, 1);
    const draw good = {.a = evaluator_fixture_encrypt(&f, x, NULL, 1, LEVEL, SCALE), .rounds = 1};
    host_value v;
    ckks_error err = {0};
    draw t = good;
    t.flood_bits = 49;
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &err), CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "flood_bits");
    t = good, t.public_key = 1, err = (ckks_error){0};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &err), CKKS_KEY_MISSING);
    assert_string_equal(err.field, "public_key");
    t = good, t.without_stream = true, err = (ckks_error){0};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run, &t, &err), CKKS_FAILED_PRECONDITION);
    assert_string_equal(err.field, "random");
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rerandomising_keeps_the_message_and_changes_all_words),
        cmocka_unit_test(flooding_has_the_stated_size),
        cmocka_unit_test(finishing_advances_the_counter_by_what_was_drawn),
        cmocka_unit_test(what_cannot_be_drawn_is_refused),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
