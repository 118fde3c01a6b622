/*
 * Rotations, conjugation, hoisting and inner sums: each moves the slots that it says, and a hoisted rotation
 * writes the words of a plain one.
 */
#include "tests/support/evaluator_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOG_N 11u
#define LEVEL 3u
#define SCALE 0x1p35

static evaluator_fixture f;
static const int64_t steps[] = {1, 2, 3, -1, 7, 100, -100, 512, 1023};
#define STEP_COUNT (sizeof steps / sizeof steps[0])

static int open_fixture(void **state) {
    (void)state;
    key_requirement keys[STEP_COUNT + 3];
    uint32_t count = 0;
    for (size_t i = 0; i < STEP_COUNT; i++)
        if (steps[i] != 1023) /* the same element as -1 */
            keys[count++] = (key_requirement){KEY_GALOIS, galois_element_rotate(LOG_N, steps[i]), LEVEL};
    keys[count++] = (key_requirement){KEY_GALOIS, galois_element_rotate(LOG_N, 4), LEVEL};
    keys[count++] = (key_requirement){KEY_GALOIS, galois_element_conjugate(LOG_N), LEVEL};
    evaluator_fixture_open(&f, fixture_context(LOG_N, LEVEL + 1, 2, 2), keys, count);
    return 0;
}
static int close_fixture(void **state) {
    (void)state;
    evaluator_fixture_close(&f);
    return 0;
}

static void rotated(double *out, const double *in, int64_t by) {
    for (uint32_t i = 0; i < f.slot_count; i++) out[i] = in[((int64_t)i + by) & ((int64_t)f.slot_count - 1)];
}

static void elements_of_rotations_follow_the_powers_of_five(void **state) {
    (void)state;
    for (uint32_t log_n = CKKS_LOG_N_MIN; log_n <= CKKS_LOG_N_MAX; log_n++) {
        const uint32_t n = 1u << log_n;
        assert_int_equal(galois_element_rotate(log_n, 0), 1);
        assert_int_equal(galois_element_rotate(log_n, 1), 5);
        assert_int_equal(galois_element_rotate(log_n, 3), 125);
        assert_int_equal(galois_element_rotate(log_n, n / 2), 1);
        assert_int_equal(galois_element_rotate(log_n, -1), galois_element_rotate(log_n, n / 2 - 1));
        assert_int_equal((uint64_t)galois_element_rotate(log_n, -1) * 5 % (2 * n), 1);
        assert_int_equal(galois_element_conjugate(log_n), 2 * n - 1);
    }
}

/* The slots are a ring: to the left, to the right, once around and further. */
static void every_rotation_has_its_element(void **state) {
    (void)state;
    const uint32_t n = 1u << LOG_N;
    const int64_t slots = n / 2;
    uint32_t *power = calloc((size_t)slots, sizeof *power);
    assert_non_null(power);
    power[0] = 1;
    for (int64_t i = 1; i < slots; i++) power[i] = (uint32_t)((uint64_t)power[i - 1] * 5 % (2 * n));
    for (int64_t by = -3 * slots; by <= 3 * slots; by++)
        assert_int_equal(galois_element_rotate(LOG_N, by), power[(by % slots + slots) % slots]);
    assert_int_equal(galois_element_rotate(LOG_N, INT64_MIN), 1); /* a multiple of the slots */
    assert_int_equal(galois_element_rotate(LOG_N, INT64_MIN + 3), 125);
    assert_int_equal(galois_element_rotate(LOG_N, INT64_MAX), power[slots - 1]);
    free(power);
}

typedef struct rotation {
    ckks_value a;
    galois_step step;
    const hoisted_rotations *hoisted;
    galois_step list[16];
    uint32_t count;
} rotation;

static ckks_status run_plain(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const rotation *t = context;
    return evaluator_apply_galois(ev, out, &t->a, t->step, err);
}
static ckks_status run_hoisted(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const rotation *t = context;
    return evaluator_rotate_hoisted(ev, out, t->hoisted, &t->a, err);
}
static ckks_status run_hoisted_sum(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const rotation *t = context;
    return evaluator_sum_hoisted(ev, out, t->hoisted, &t->a, err);
}
static ckks_status run_inner_sum(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    const rotation *t = context;
    return evaluator_inner_sum(ev, out, &t->a, t->list, t->count, err);
}

static void a_rotation_moves_slots_to_the_left(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1), *expected = evaluator_fixture_slots(&f, 1, 0);
    double worst = 0;
    for (uint32_t level = 0; level <= LEVEL; level++) /* keys of the top level serve every lower one */
        for (size_t i = 0; i < STEP_COUNT; i++) {
            host_value v;
            rotation t = {.a = evaluator_fixture_encrypt(&f, a, NULL, 1, level, SCALE),
                          .step = evaluator_fixture_rotation(&f, steps[i])};
            assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_plain, &t, NULL), CKKS_OK);
            rotated(expected, a, steps[i]);
            worst = fmax(worst, evaluator_fixture_error(&f, &v, expected, NULL));
            host_value_free(&v);
        }
    const double bound = evaluator_fixture_bound(&f, SCALE, 2);
    print_message("error 2^%.1f, bound 2^%.1f\n", log2(worst), log2(bound));
    assert_true(worst < bound);
    free(a);
    free(expected);
}

static void conjugation_negates_imaginary_parts(void **state) {
    (void)state;
    double *re = evaluator_fixture_slots(&f, 2, 1), *im = evaluator_fixture_slots(&f, 2, 1);
    host_value v;
    const uint32_t g = galois_element_conjugate(LOG_N);
    rotation t = {.a = evaluator_fixture_encrypt(&f, re, im, 2, LEVEL, SCALE),
                  .step = {g, evaluator_fixture_key(&f, KEY_GALOIS, g)}};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_plain, &t, NULL), CKKS_OK);
    for (uint32_t i = 0; i < 2 * f.slot_count; i++) im[i] = -im[i];
    assert_true(evaluator_fixture_error(&f, &v, re, im) < evaluator_fixture_bound(&f, SCALE, 2));
    host_value_free(&v);
    free(re);
    free(im);
}

/* identity steps and repeated ones are part of the list */
static void hoisted_rotations_write_the_words_of_plain_ones(void **state) {
    (void)state;
    const int64_t by[] = {0, 1, 2, 3, -1, 7, 0, 100, -100, 512, 1};
    const uint32_t count = sizeof by / sizeof by[0];
    rotation t = {0};
    hoisted_rotations *h = NULL;
    double *a = evaluator_fixture_slots(&f, 2, 1);
    for (uint32_t i = 0; i < count; i++) t.list[i] = evaluator_fixture_rotation(&f, by[i]);
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, t.list, count, NULL), CKKS_OK);
    t.hoisted = h;
    for (uint32_t level = 0; level <= LEVEL; level++)
        for (uint32_t batch = 1; batch <= 2; batch++) {
            host_value all[16], one;
            t.a = evaluator_fixture_encrypt(&f, a, NULL, batch, level, SCALE);
            assert_int_equal(evaluator_fixture_run(&f, all, count, run_hoisted, &t, NULL), CKKS_OK);
            for (uint32_t i = 0; i < count; i++) {
                t.step = t.list[i];
                assert_int_equal(evaluator_fixture_run(&f, &one, 1, run_plain, &t, NULL), CKKS_OK);
                assert_memory_equal(&one.signature, &all[i].signature, sizeof one.signature);
                assert_memory_equal(one.words, all[i].words, one.signature.bytes);
                host_value_free(&one);
                host_value_free(&all[i]);
            }
        }
    hoisted_rotations_destroy(h);
    free(a);
}

/* Where one kernel does it all, and where a device has only those that it is made of: the same words, each
 * result and their sum. */
static void hoisted_rotations_without_a_kernel_of_their_own_write_the_same_words(void **state) {
    (void)state;
    const int64_t by[] = {1, 0, -1, 7, 1, 512};
    const uint32_t count = sizeof by / sizeof by[0];
    rotation t = {0};
    hoisted_rotations *h = NULL;
    double *a = evaluator_fixture_slots(&f, 2, 1);
    for (uint32_t i = 0; i < count; i++) t.list[i] = evaluator_fixture_rotation(&f, by[i]);
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, t.list, count, NULL), CKKS_OK);
    t.hoisted = h;
    for (uint32_t level = 0; level <= LEVEL; level++)
        for (uint32_t batch = 1; batch <= 2; batch++) {
            host_value all[2][8], sum[2];
            t.a = evaluator_fixture_encrypt(&f, a, NULL, batch, level, SCALE);
            for (int is_lacking = 0; is_lacking < 2; is_lacking++) {
                device_fault_hide(f.on.dev, KERNEL_HOISTED_SWITCH, is_lacking);
                assert_int_equal(evaluator_fixture_run(&f, all[is_lacking], count, run_hoisted, &t, NULL),
                                 CKKS_OK);
                assert_int_equal(evaluator_fixture_run(&f, &sum[is_lacking], 1, run_hoisted_sum, &t, NULL),
                                 CKKS_OK);
            }
            device_fault_hide(f.on.dev, KERNEL_HOISTED_SWITCH, false);
            for (uint32_t i = 0; i < count; i++) {
                assert_memory_equal(all[0][i].words, all[1][i].words, all[0][i].signature.bytes);
                host_value_free(&all[0][i]), host_value_free(&all[1][i]);
            }
            assert_memory_equal(sum[0].words, sum[1].words, sum[0].signature.bytes);
            host_value_free(&sum[0]), host_value_free(&sum[1]);
        }
    hoisted_rotations_destroy(h);
    free(a);
}

typedef struct placing {
    rotation of;
    ckks_value places[4];
    uint32_t place_count;
    bool is_taken; /* expected */
} placing;

/* a placed result is where its place is, may be released, and takes only its own place */
static ckks_status run_placed(void *context, evaluator *ev, ckks_value *out, ckks_error *err) {
    placing *p = context;
    evaluator_place(ev, p->places, p->place_count);
    const ckks_status rc = p->of.hoisted ? evaluator_rotate_hoisted(ev, out, p->of.hoisted, &p->of.a, err)
                                         : evaluator_apply_galois(ev, out, &p->of.a, p->of.step, err);
    evaluator_place(ev, NULL, 0);
    for (uint32_t i = 0; rc == CKKS_OK && i < p->of.count; i++)
        assert_int_equal(out[i].words == p->places[i].words, p->is_taken);
    if (rc == CKKS_OK && p->is_taken && p->of.count > 1) {
        ckks_value released = out[1];
        assert_int_equal(evaluator_release(ev, &released), CKKS_OK);
    }
    return rc;
}

static void compare_placed(placing *p, const int64_t *by, uint32_t count, bool is_taken) {
    host_value placed[4], plain[4];
    rotation *t = &p->of;
    hoisted_rotations *h = NULL;
    for (uint32_t i = 0; i < count; i++) t->list[i] = evaluator_fixture_rotation(&f, by[i]);
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, t->list, count, NULL), CKKS_OK);
    t->hoisted = h, t->count = count, t->step = t->list[0], p->is_taken = is_taken;
    for (uint32_t single = 0; single < 2; single++) {
        if (single) t->hoisted = NULL, t->count = 1;
        assert_int_equal(evaluator_fixture_run(&f, placed, t->count, run_placed, p, NULL), CKKS_OK);
        assert_int_equal(
            evaluator_fixture_run(&f, plain, t->count, single ? run_plain : run_hoisted, t, NULL), CKKS_OK);
        for (uint32_t i = 0; i < t->count; i++) {
            assert_memory_equal(placed[i].words, plain[i].words, plain[i].signature.bytes);
            host_value_free(&placed[i]), host_value_free(&plain[i]);
        }
        if (!is_taken) break;
    }
    hoisted_rotations_destroy(h);
}

static void results_go_where_they_are_placed(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1);
    placing p = {.of.a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE), .place_count = 3};
    const uint64_t bytes = p.of.a.signature.bytes;
    uint8_t *zeros = calloc(3, bytes);
    assert_non_null(zeros);
    uint8_t *memory = evaluator_fixture_upload(&f, zeros, 3 * bytes);
    for (uint32_t i = 0; i < 3; i++)
        p.places[i] = (ckks_value){p.of.a.signature, (uint64_t *)(void *)(memory + i * bytes)};
    compare_placed(&p, (const int64_t[]){1, 2, -1}, 3, true);
    compare_placed(&p, (const int64_t[]){1, -1, 0}, 3, true);
    compare_placed(&p, (const int64_t[]){0, 1, 2}, 3, false); /* the identity's comes last in memory */
    p.places[1].words = p.places[2].words;                    /* not one behind the other */
    compare_placed(&p, (const int64_t[]){1, 2}, 2, false);
    p.place_count = 1; /* too few */
    compare_placed(&p, (const int64_t[]){1, 2}, 2, false);
    p.places[0].signature.limb_count--; /* of another shape */
    compare_placed(&p, (const int64_t[]){1}, 1, false);
    free(zeros);
    free(a);
}

static void hoisting_launches_do_not_grow_with_the_steps(void **state) {
    (void)state;
    uint32_t nodes[2];
    double *a = evaluator_fixture_slots(&f, 1, 1);
    for (uint32_t round = 0; round < 2; round++) {
        rotation t = {.a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE)};
        const uint32_t count = round ? 9 : 1;
        hoisted_rotations *h = NULL;
        host_value all[9];
        for (uint32_t i = 0; i < count; i++) t.list[i] = evaluator_fixture_rotation(&f, steps[i]);
        assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, t.list, count, NULL), CKKS_OK);
        t.hoisted = h;
        assert_int_equal(evaluator_fixture_run(&f, all, count, run_hoisted, &t, NULL), CKKS_OK);
        nodes[round] = f.node_count;
        for (uint32_t i = 0; i < count; i++) host_value_free(&all[i]);
        hoisted_rotations_destroy(h);
    }
    print_message("%u launches\n", nodes[0]);
    assert_int_equal(nodes[0], nodes[1]);
    free(a);
}

/* identity steps and repeated ones count as often as they are listed; no step at all that needs a key */
static void a_hoisted_sum_adds_all_rotations(void **state) {
    (void)state;
    const int64_t by[] = {0, 1, 2, -1, 7, 0, 100, 1};
    double *a = evaluator_fixture_slots(&f, 2, 1);
    for (uint32_t round = 0; round < 3; round++) {
        const uint32_t count = round == 2 ? 8 : round + 1; /* the identity; one key; all */
        rotation t = {0};
        hoisted_rotations *h = NULL;
        host_value v;
        double *expected = evaluator_fixture_slots(&f, 2, 0), *one = evaluator_fixture_slots(&f, 1, 0);
        for (uint32_t i = 0; i < count; i++) t.list[i] = evaluator_fixture_rotation(&f, by[i]);
        assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, t.list, count, NULL), CKKS_OK);
        t.hoisted = h;
        t.a = evaluator_fixture_encrypt(&f, a, NULL, 2, LEVEL, SCALE);
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_hoisted_sum, &t, NULL), CKKS_OK);
        for (uint32_t b = 0; b < 2; b++)
            for (uint32_t i = 0; i < count; i++) {
                rotated(one, a + b * f.slot_count, by[i]);
                for (uint32_t k = 0; k < f.slot_count; k++) expected[b * f.slot_count + k] += one[k];
            }
        const double error = evaluator_fixture_error(&f, &v, expected, NULL);
        const double bound = evaluator_fixture_bound(&f, SCALE, 2 * count);
        print_message("hoisted sum of %u: %u launches, error 2^%.1f, bound 2^%.1f\n", count, f.node_count,
                      log2(error), log2(bound));
        assert_true(error < bound);
        host_value_free(&v);
        hoisted_rotations_destroy(h);
        free(expected);
        free(one);
    }
    free(a);
}

static void an_inner_sum_adds_runs_of_slots(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 2, 1), *expected = evaluator_fixture_slots(&f, 2, 0);
    host_value v;
    rotation t = {.a = evaluator_fixture_encrypt(&f, a, NULL, 2, LEVEL, SCALE), .count = 3};
    for (uint32_t i = 0; i < 3; i++) t.list[i] = evaluator_fixture_rotation(&f, 1 << i);
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_inner_sum, &t, NULL), CKKS_OK);
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t i = 0; i < f.slot_count; i++)
            for (uint32_t k = 0; k < 8; k++)
                expected[b * f.slot_count + i] += a[b * f.slot_count + (i + k) % f.slot_count];
    const double error = evaluator_fixture_error(&f, &v, expected, NULL);
    const double bound = evaluator_fixture_bound(&f, SCALE, 8 + 7);
    print_message("sum of 8: error 2^%.1f, bound 2^%.1f\n", log2(error), log2(bound));
    assert_true(error < bound);
    host_value_free(&v);
    free(a);
    free(expected);
}

static void impossible_steps_are_refused(void **state) {
    (void)state;
    double *a = evaluator_fixture_slots(&f, 1, 1);
    rotation t = {.a = evaluator_fixture_encrypt(&f, a, NULL, 1, LEVEL, SCALE)};
    host_value v;
    ckks_error err = {0};
    hoisted_rotations *h = NULL;
    const galois_step bad[] = {{4, 0}, {(2u << LOG_N) + 1, 0}, {0, 0}};
    for (size_t i = 0; i < 3; i++) {
        t.step = bad[i];
        assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_plain, &t, NULL), CKKS_INVALID_ARGUMENT);
        assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, &bad[i], 1, NULL),
                         CKKS_INVALID_ARGUMENT);
        assert_null(h);
    }
    t.step = (galois_step){5, f.key_count};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_plain, &t, &err), CKKS_KEY_MISSING);
    assert_string_equal(err.field, "step");
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, &t.step, 1, NULL), CKKS_OK);
    t.hoisted = h;
    err = (ckks_error){0};
    assert_int_equal(evaluator_fixture_run(&f, &v, 1, run_hoisted, &t, &err), CKKS_KEY_MISSING);
    hoisted_rotations_destroy(h);
    /* whichever step it is */
    const galois_step some[] = {evaluator_fixture_rotation(&f, 1), {5, f.key_count}, {25, 1}};
    host_value three[3];
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, some, 3, NULL), CKKS_OK);
    t.hoisted = h;
    err = (ckks_error){0};
    assert_int_equal(evaluator_fixture_run(&f, three, 3, run_hoisted, &t, &err), CKKS_KEY_MISSING);
    assert_string_equal(err.field, "steps");
    assert_int_equal(evaluator_fixture_run(&f, three, 1, run_hoisted_sum, &t, NULL), CKKS_KEY_MISSING);
    hoisted_rotations_destroy(h);
    assert_int_equal(hoisted_rotations_create(&h, f.on.dev, f.on.context, NULL, 0, NULL),
                     CKKS_INVALID_ARGUMENT);
    free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_of_rotations_follow_the_powers_of_five),
        cmocka_unit_test(every_rotation_has_its_element),
        cmocka_unit_test(a_rotation_moves_slots_to_the_left),
        cmocka_unit_test(conjugation_negates_imaginary_parts),
        cmocka_unit_test(hoisted_rotations_write_the_words_of_plain_ones),
        cmocka_unit_test(hoisted_rotations_without_a_kernel_of_their_own_write_the_same_words),
        cmocka_unit_test(results_go_where_they_are_placed),
        cmocka_unit_test(hoisting_launches_do_not_grow_with_the_steps),
        cmocka_unit_test(a_hoisted_sum_adds_all_rotations),
        cmocka_unit_test(an_inner_sum_adds_runs_of_slots),
        cmocka_unit_test(impossible_steps_are_refused),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
