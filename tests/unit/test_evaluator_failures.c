/*
 * Every launch and every allocation of every operation failing once: the first cause comes back, outputs are
 * zeroed, and the workspace holds nothing afterwards. After success it holds the outputs alone.
 */
#include "kernels/evaluator/workspace_internal.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/evaluator_fixture.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LOG_N 10u
#define LEVEL 4u
#define SCALE 0x1p35
#define BATCH 2u

static evaluator_fixture f;
static galois_step steps[4];
static hoisted_rotations *hoisted;
static linear_transform *transform;
static chebyshev_plan *polynomial;
static ckks_value a, plain;
static uint64_t *weight;

static int open_fixture(void **state) {
    (void)state;
    const key_requirement keys[] = {{KEY_RELINEARISATION, 0, LEVEL},
                                    {KEY_GALOIS, galois_element_rotate(LOG_N, 1), LEVEL},
                                    {KEY_GALOIS, galois_element_rotate(LOG_N, 2), LEVEL},
                                    {KEY_GALOIS, galois_element_rotate(LOG_N, 8), LEVEL},
                                    {KEY_PUBLIC, 0, LEVEL}};
    evaluator_fixture_open(&f, fixture_context(LOG_N, LEVEL + 1, 2, 2), keys, 5);
    const int64_t by[] = {1, 0, 2, 8};
    for (uint32_t i = 0; i < 4; i++) steps[i] = evaluator_fixture_rotation(&f, by[i]);
    double *x = evaluator_fixture_slots(&f, BATCH, 1);
    a = evaluator_fixture_encrypt(&f, x, NULL, BATCH, LEVEL, SCALE);
    plain = evaluator_fixture_plain(&f, x, LEVEL, SCALE);
    uint64_t *diagonal = evaluator_fixture_diagonal(&f, x, f.slot_count, LEVEL, SCALE);
    const linear_transform_term terms[] = {
        {0, 0, diagonal}, {0, 1, diagonal}, {1, 0, diagonal}, {1, 1, diagonal}};
    const double c[] = {0.5, 1, 0.25, 0.125, 0.5, 0.25};
    weight = evaluator_fixture_upload(&f, NULL, (LEVEL + 1) * 3ull * BATCH * sizeof *weight);
    free(x);
    return hoisted_rotations_create(&hoisted, f.on.dev, f.on.context, steps, 4, NULL) != CKKS_OK ||
           linear_transform_create(&transform, f.on.dev, f.on.context, LEVEL, steps, 2, steps + 1, 2, terms,
                                   4, true, SCALE, NULL) != CKKS_OK ||
           chebyshev_plan_create(&polynomial, f.on.params, c, 5, LEVEL, SCALE, SCALE, NULL) != CKKS_OK;
}
static int close_fixture(void **state) {
    (void)state;
    hoisted_rotations_destroy(hoisted);
    linear_transform_destroy(transform);
    chebyshev_plan_destroy(polynomial);
    evaluator_fixture_close(&f);
    return 0;
}

typedef struct operation {
    const char *name;
    uint32_t out_count;
    ckks_status (*run)(evaluator *ev, ckks_value *out, ckks_error *err);
} operation;

static ckks_status run_add(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_add(ev, out, &a, &a, err);
}
static ckks_status run_negate(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_negate(ev, out, &a, err);
}
static ckks_status run_add_plain(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_add_plain(ev, out, &a, &plain, err);
}
static ckks_status run_multiply_plain(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_multiply_plain(ev, out, &a, &plain, err);
}
static ckks_status run_add_constant(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_add_constant(ev, out, &a, 0.5, err);
}
static ckks_status run_multiply_constant(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_multiply_constant(ev, out, &a, 0.5, SCALE, err);
}
static ckks_status run_drop_level(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_drop_level(ev, out, &a, 1, err);
}
static ckks_status run_rescale(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_rescale(ev, out, &a, err);
}
static ckks_status run_multiply(evaluator *ev, ckks_value *out, ckks_error *err) {
    ckks_status rc;
    ckks_value product = {0};
    memset(out, 0, sizeof *out);
    if ((rc = evaluator_multiply(ev, &product, &a, &a, err)) != CKKS_OK) return rc;
    rc = evaluator_relinearise(ev, out, &product, 0, true, err);
    evaluator_release(ev, &product);
    return rc;
}
static ckks_status run_square(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_square(ev, out, &a, err);
}
static ckks_status run_rotate(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_apply_galois(ev, out, &a, steps[0], err);
}
static ckks_status run_hoisted(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_rotate_hoisted(ev, out, hoisted, &a, err);
}
static ckks_status run_transform(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_linear_transform(ev, out, transform, &a, err);
}
static ckks_status run_chebyshev(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_chebyshev(ev, out, polynomial, &a, 0, err);
}
static ckks_status run_inner_sum(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_inner_sum(ev, out, &a, steps + 2, 2, err);
}
static ckks_status run_matrix_product(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_matrix_product(ev, out, &a, weight, NULL, 3, SCALE, err);
}
static ckks_status run_rerandomise(evaluator *ev, ckks_value *out, ckks_error *err) {
    return evaluator_rerandomise(ev, out, &a, 4, 10, err);
}

static const operation operations[] = {
    {"add", 1, run_add},
    {"negate", 1, run_negate},
    {"add plain", 1, run_add_plain},
    {"multiply plain", 1, run_multiply_plain},
    {"add constant", 1, run_add_constant},
    {"multiply constant", 1, run_multiply_constant},
    {"drop level", 1, run_drop_level},
    {"rescale", 1, run_rescale},
    {"multiply, relinearise", 1, run_multiply},
    {"square", 1, run_square},
    {"rotate", 1, run_rotate},
    {"hoisted rotations", 4, run_hoisted},
    {"linear transform", 1, run_transform},
    {"chebyshev", 1, run_chebyshev},
    {"inner sum", 1, run_inner_sum},
    {"matrix product", 1, run_matrix_product},
    {"rerandomise", 1, run_rerandomise},
};
#define OPERATIONS (sizeof operations / sizeof operations[0])

static uint32_t parts_held(const workspace *memory) {
    uint32_t count, held = 0;
    const workspace_buffer *buffers = workspace_buffers(memory, &count);
    for (uint32_t i = 0; i < count; i++) held += buffers[i].parts_held;
    return held;
}

/* One planning run with the nth device call, or the nth allocation, failing; returns calls made. */
static uint64_t attempt(const operation *o, uint64_t nth, bool is_allocation, ckks_status *rc) {
    workspace *memory = NULL;
    ckks_value out[4];
    ckks_error err = {0};
    memset(out, 0xff, sizeof out);
    assert_int_equal(workspace_create_planning(&memory, NULL), CKKS_OK);
    evaluator ev = {.stream = f.on.stream,
                    .tables = f.on.tables,
                    .context = f.on.context,
                    .memory = memory,
                    .keys = f.table_device,
                    .key_count = f.key_count,
                    .random = f.random};
    assert_int_equal(device_record_begin_planning(f.on.stream, NULL), CKKS_OK);
    if (is_allocation)
        alloc_fault_set(nth);
    else
        device_fault_set(f.on.dev, nth, false);
    *rc = o->run(&ev, out, &err);
    const uint64_t calls = is_allocation ? alloc_fault_calls() : device_fault_calls(f.on.dev);
    alloc_fault_set(0);
    device_fault_set(f.on.dev, 0, false);
    device_record_abort(f.on.stream);
    if (*rc == CKKS_OK) {
        assert_int_equal(parts_held(memory), o->out_count);
    } else {
        assert_int_equal(err.code, *rc);
        assert_int_equal(parts_held(memory), 0);
        for (uint32_t i = 0; i < o->out_count; i++) assert_null(out[i].words);
    }
    workspace_destroy(memory);
    return calls;
}

static void every_failing_call_is_reported_and_leaves_nothing_held(void **state) {
    (void)state;
    for (size_t i = 0; i < OPERATIONS; i++)
        for (uint32_t is_allocation = 0; is_allocation < 2; is_allocation++) {
            ckks_status rc;
            uint64_t nth = 1;
            while (attempt(&operations[i], nth, is_allocation, &rc) >= nth) {
                assert_int_not_equal(rc, CKKS_OK);
                nth++;
            }
            assert_int_equal(rc, CKKS_OK);
            if (!is_allocation) {
                print_message("%-22s %3llu calls\n", operations[i].name, (unsigned long long)nth - 1);
                assert_true(nth > 1);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failing_call_is_reported_and_leaves_nothing_held),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
