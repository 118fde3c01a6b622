/* C15: close at any moment, once or twice; afterwards every call is refused and every byte is back. */
#include "tests/support/program_fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const graph_handle none;

static void close_waits_for_a_pending_copy(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    (void)sample_input(a, GRAPH_SOURCE_WORDS_PINNED, false);
    const memory_mark before = memory_mark_take(&f);
    static const graph_source sources[] = {GRAPH_SOURCE_PACKED_HOST, GRAPH_SOURCE_WORDS_PINNED};
    for (size_t k = 0; k < 2; k++) {
        test_program t;
        graph_handle handle;
        graph_pending *pending = NULL;
        test_program_init_slow(&t, &f, NULL, 30);
        assert_ok(test_program_capture(&t, 0, NULL));
        const graph_input input = sample_input(a, sources[k], false);
        assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
        assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_ok(
            graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL)); /* waits its turn */
        graph_program_close(t.program);
        assert_memory_is(&f, &before);
        test_program_fini(&t);
    }
    sample_destroy(a);
    program_fixture_close(&f);
}

static void close_waits_for_pending_replays_of_both_kinds(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    const memory_mark before = memory_mark_take(&f);
    for (int borrowed = 0; borrowed < 2; borrowed++) {
        test_program t;
        graph_handle handle;
        graph_pending *pending = NULL;
        graph_result result = {0};
        test_program_init_slow(&t, &f, NULL, 30);
        assert_ok(test_program_capture(&t, 0, NULL));
        assert_ok(test_copy(&t, &handle, a, NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &pending, handle,
                                             borrowed ? GRAPH_OUTPUT_BORROWED : GRAPH_OUTPUT_OWNED, NULL));
        graph_program_close(t.program);
        assert_memory_is(&f, &before);
        assert_status(graph_program_replay_finish(t.program, pending, &result, NULL), CKKS_CLOSED);
        assert_null(result.internal);
        assert_true(graph_pending_is_complete(pending));
        test_program_fini(&t);
    }
    sample_destroy(a);
    program_fixture_close(&f);
}

static void every_call_after_close_is_refused(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_RANDOM);
    assert_works(&t, a, NULL);
    graph_program_close(t.program);
    graph_program_close(t.program); /* idempotent */
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_CLOSED);
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result = {0};
    const graph_input input = sample_packed(a);
    assert_status(test_copy(&t, &handle, a, NULL, NULL), CKKS_CLOSED);
    assert_status(test_replay(&t, &result, a, NULL, NULL), CKKS_CLOSED);
    assert_status(graph_program_replay(t.program, &result, &input, 1, f.keys, GRAPH_OUTPUT_BORROWED, NULL),
                  CKKS_CLOSED);
    assert_status(graph_program_replay_prepared(t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_CLOSED);
    assert_status(graph_program_replay_begin(t.program, &pending, none, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_CLOSED);
    assert_status(graph_program_reseed(t.program, NULL, NULL), CKKS_CLOSED);
    assert_status(test_program_capture(&t, 0, NULL), CKKS_CLOSED);
    graph_program_stats stats;
    graph_program_get_stats(t.program, &stats); /* still tells what was */
    assert_int_equal(stats.replays, 1);
    assert_int_equal(stats.input_bytes, 0);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void close_before_capture_and_with_a_lease_held(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    const memory_mark before = memory_mark_take(&f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_ADD);
    graph_program_close(t.program);
    test_program_fini(&t);
    graph_program_close(NULL);
    graph_program_destroy(NULL);

    graph_handle handle;
    graph_result view;
    uint64_t *words = malloc(a->signature.bytes);
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    assert_ok(test_copy(&t, &handle, a, b, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &view, handle, GRAPH_OUTPUT_BORROWED, NULL));
    graph_program_close(t.program);
    assert_memory_is(&f, &before);
    assert_status(graph_result_read(&view, 0, words, a->signature.bytes / 8, NULL), CKKS_CLOSED);
    test_program_fini(&t);
    graph_result_release(&view); /* after the program is gone altogether */
    free(words);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- closing from another thread ---- */

static void *close_it(void *program) {
    graph_program_close(program);
    return NULL;
}

static void close_from_another_thread_waits_for_the_call_in_progress(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    for (int round = 0; round < 5; round++) {
        test_program t;
        pthread_t closers[2];
        test_program_init_slow(&t, &f, NULL, 10);
        assert_ok(test_program_capture(&t, 0, NULL));
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&closers[i], NULL, close_it, t.program), 0);
        ckks_status rc;
        do {
            graph_result result;
            rc = test_replay(&t, &result, a, NULL, NULL);
            if (rc == CKKS_OK) {
                assert_result(&t, &result, a, NULL);
                graph_result_release(&result);
            }
        } while (rc == CKKS_OK);
        assert_status(rc, CKKS_CLOSED);
        for (int i = 0; i < 2; i++) pthread_join(closers[i], NULL);
        test_program_fini(&t);
    }
    sample_destroy(a);
    program_fixture_close(&f);
}

/* ---- and with the device failing ---- */

typedef struct fault_run {
    sample *a, *b;
    uint32_t failed;
} fault_run;

/* Everything between capture and close may fail, close included. */
static void close_gives_back(void *context, program_fixture *f) {
    fault_run *run = context;
    test_program t;
    graph_handle handle;
    graph_pending *pending[2] = {NULL, NULL};
    graph_result result = {0};
    const memory_mark before = memory_mark_take(f);
    test_program_start(&t, f, NULL, PROGRAM_MULTIPLY);
    fault_on(f);
    ckks_status rc = test_copy(&t, &handle, run->a, run->b, NULL);
    if (rc == CKKS_OK)
        rc = graph_program_replay_begin(t.program, &pending[0], handle, GRAPH_OUTPUT_OWNED, NULL);
    if (rc == CKKS_OK) rc = test_copy(&t, &handle, run->b, run->b, NULL);
    if (rc == CKKS_OK)
        rc = graph_program_replay_begin(t.program, &pending[1], handle, GRAPH_OUTPUT_OWNED, NULL);
    if (rc == CKKS_OK) rc = test_copy(&t, &handle, run->a, run->a, NULL);
    if (pending[0] != NULL) {
        const ckks_status finished = graph_program_replay_finish(t.program, pending[0], &result, NULL);
        if (rc == CKKS_OK) rc = finished;
        graph_result_release(&result);
    }
    graph_program_close(t.program); /* with a replay and a copy pending */
    fault_off(f);
    run->failed += rc != CKKS_OK;
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_CLOSED);
    test_program_fini(&t);
    assert_memory_is(f, &before);
    assert_ok(graph_slot_recover(f->slot, NULL));
}

static void close_with_faults(fault_mode mode) {
    program_fixture f;
    program_fixture_open(&f);
    fault_run run = {.a = sample_create(&f, 1, NULL), .b = sample_create(&f, 2, NULL)};
    const uint32_t runs = fault_each(&f, mode, close_gives_back, &run);
    assert_true(run.failed > fault_count(10) || runs == 0);
    sample_destroy(run.a), sample_destroy(run.b);
    program_fixture_close(&f);
}

static void close_gives_everything_back_whichever_device_call_fails(void **state) {
    (void)state;
    close_with_faults(FAULT_CALL);
}
static void close_gives_everything_back_whichever_work_fails_on_its_stream(void **state) {
    (void)state;
    close_with_faults(FAULT_ASYNCHRONOUS);
}
static void close_gives_everything_back_whichever_allocation_fails(void **state) {
    (void)state;
    close_with_faults(FAULT_ALLOCATION);
}

/* A wait that fails may not have waited; memory goes behind it all the same. */
static void close_has_waited_whichever_call_fails(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    void *ballast = NULL;
    device_event *after = NULL;
    const uint64_t ballast_bytes = device_get_kind(f.dev) == DEVICE_CUDA ? 1u << 28 : 1u << 22;
    assert_ok(device_allocate(f.dev, &ballast, ballast_bytes, MEMORY_RETAINED, NULL));
    assert_ok(device_event_create(f.dev, &after, NULL));
    for (uint64_t nth = 1; nth <= 4; nth++) {
        test_program t;
        graph_handle handle;
        graph_pending *pending = NULL;
        test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
        assert_ok(test_copy(&t, &handle, a, NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
        for (uint8_t i = 0; i < 20; i++)
            assert_ok(device_fill(graph_slot_stream(f.slot), ballast, i, ballast_bytes, NULL));
        assert_ok(device_event_record(after, graph_slot_stream(f.slot), NULL));
        device_fault_set(f.dev, nth, false);
        graph_program_close(t.program);
        device_fault_set(f.dev, 0, false);
        assert_true(device_event_is_complete(after));
        test_program_fini(&t);
    }
    device_event_destroy(after);
    device_free(f.dev, ballast);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void what_is_told_after_close_needs_no_binding_set(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    binding_set *set = fixture_weights_create(&f, 0.5, 0.25);
    test_program t;
    graph_program_stats stats;
    test_program_init_weighted(&t, &f, NULL, set);
    assert_ok(test_program_capture(&t, 0, NULL));
    assert_ok(fixture_weights_refresh(&f, set, 0.25, 0.5, NULL));
    graph_program_get_stats(t.program, &stats);
    assert_int_equal(stats.refreshes, 1);
    graph_program_close(t.program);
    assert_ok(binding_set_destroy(set, NULL));
    graph_program_get_stats(t.program, &stats);
    assert_int_equal(stats.refreshes, 0);
    test_program_fini(&t);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(close_waits_for_a_pending_copy),
        cmocka_unit_test(close_waits_for_pending_replays_of_both_kinds),
        cmocka_unit_test(every_call_after_close_is_refused),
        cmocka_unit_test(close_before_capture_and_with_a_lease_held),
        cmocka_unit_test(close_from_another_thread_waits_for_the_call_in_progress),
        cmocka_unit_test(close_gives_everything_back_whichever_device_call_fails),
        cmocka_unit_test(close_gives_everything_back_whichever_work_fails_on_its_stream),
        cmocka_unit_test(close_gives_everything_back_whichever_allocation_fails),
        cmocka_unit_test(close_has_waited_whichever_call_fails),
        cmocka_unit_test(what_is_told_after_close_needs_no_binding_set),
    };
    return program_suite("C15 close", tests);
}
