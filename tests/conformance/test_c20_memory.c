/* C20: what does not fit is refused before anything is allocated; what is closed is given back, whatever
 * failed. */
#include "kernels/program/graph_internal.h"
#include "tests/support/program_fixture.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

/* ---- budgets ---- */

static void assert_refused_untouched(test_program *t, const ckks_value *examples, const char *field) {
    program_fixture *f = t->f;
    ckks_error err = {0};
    const memory_mark before = memory_mark_take(f);
    device_fault_set(f->dev, 0, false); /* counts from here */
    assert_status(graph_program_capture(t->program, 1, examples, f->keys, &err), CKKS_RESOURCE_EXHAUSTED);
    assert_int_equal(device_fault_calls(f->dev), 0); /* not one call: nothing was even tried */
    assert_string_equal(err.stage, "admission");
    assert_string_equal(err.field, field);
    assert_non_null(strstr(err.message, "bytes"));
    assert_memory_is(f, &before);
}

static void arena_that_is_too_small_is_named(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    graph_slot *tight = NULL, *exact = NULL;
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    const uint64_t needed = workspace_plan_bytes(t.plan);
    test_program_fini(&t);
    assert_ok(graph_slot_create(&tight, f.dev, needed - 1, NULL));
    assert_ok(graph_slot_create(&exact, f.dev, needed, NULL));
    test_program_init(&t, &f, tight, PROGRAM_MULTIPLY);
    assert_refused_untouched(&t, examples, "arena_bytes");
    test_program_fini(&t);
    test_program_start(&t, &f, exact, PROGRAM_MULTIPLY);
    assert_works(&t, a, b);
    test_program_fini(&t);
    graph_slot_destroy(tight), graph_slot_destroy(exact);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void slot_limit_counts_every_program_of_the_slot(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    test_program first, second;
    test_program_init(&first, &f, NULL, PROGRAM_ADD);
    graph_slot_limit(f.slot, 1000);
    assert_refused_untouched(&first, examples, "program_bytes_max");
    /* to the byte: what stays, the reference buffers and two results on the host */
    const program_layout *l = &first.program->layout;
    const uint64_t needed = l->device_bytes + l->reference_bytes + l->host_bytes + 2 * l->result_bytes;
    graph_slot_limit(f.slot, needed - 1);
    assert_refused_untouched(&first, examples, "program_bytes_max");
    graph_slot_limit(f.slot, needed);
    assert_ok(graph_program_capture(first.program, 0, examples, f.keys, NULL));
    test_program_fini(&first);
    test_program_init(&first, &f, NULL, PROGRAM_ADD);
    /* room for one while it is captured, not for a second beside it */
    graph_slot_limit(f.slot, 0);
    assert_ok(graph_program_capture(first.program, 0, examples, f.keys, NULL));
    graph_program_stats stats;
    graph_program_get_stats(first.program, &stats);
    const uint64_t peak = 2 * (stats.input_bytes + stats.output_bytes) + 2 * stats.output_bytes +
                          stats.staging_bytes + stats.device_staging_bytes + 4096;
    graph_slot_limit(f.slot, peak);
    test_program_init(&second, &f, NULL, PROGRAM_ADD);
    assert_refused_untouched(&second, examples, "program_bytes_max");
    graph_program_close(first.program); /* gives its share back */
    assert_ok(graph_program_capture(second.program, 0, examples, f.keys, NULL));
    assert_works(&second, a, b);
    test_program_fini(&first), test_program_fini(&second);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void device_budget_refuses_before_allocation(void **state) {
    (void)state;
    program_fixture f, g;
    program_fixture_open(&f);
    /* a device of 3 MiB, filled up to some room that the program does not fit in */
    g = f;
    const device_config config = {.kind = device_get_kind(f.dev), .threads = 1, .bytes_max = 3u << 20};
    assert_ok(device_open(&g.dev, &config, NULL));
    assert_ok(device_tables_acquire(g.dev, &g.tables, f.context, NULL));
    assert_ok(device_stream_create(g.dev, &g.stream, NULL));
    assert_ok(graph_slot_create(&g.slot, g.dev, 1u << 20, NULL));
    g.keys = fixture_keys_create(&g, f.secret);
    sample *a = sample_create(&g, 1, NULL), *b = sample_create(&g, 2, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    device_memory_account account;
    void *ballast = NULL;
    test_program t;
    device_memory(g.dev, &account);
    const uint64_t room = account.bytes_max - account.bytes_used;
    test_program_init(&t, &g, NULL, PROGRAM_MULTIPLY);
    const uint64_t needed = t.program->layout.device_bytes + t.program->layout.reference_bytes;
    for (int is_tight = 1; is_tight >= 0; is_tight--) { /* short by one aligned piece, then exact */
        assert_ok(device_allocate(g.dev, &ballast, room - needed + (is_tight ? VALUE_ALIGNMENT : 0),
                                  MEMORY_STATIC, NULL));
        if (is_tight) {
            assert_refused_untouched(&t, examples, "device memory");
        } else {
            assert_ok(graph_program_capture(t.program, 0, examples, g.keys, NULL));
            test_program_fini(&t);
        }
        device_free(g.dev, ballast);
    }
    test_program_init(&t, &g, NULL, PROGRAM_MULTIPLY);
    assert_ok(graph_program_capture(t.program, 0, examples, g.keys, NULL));
    assert_works(&t, a, b);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    resident_keys_release(g.keys);
    graph_slot_destroy(g.slot);
    device_stream_destroy(g.stream);
    device_tables_release(g.dev, g.tables);
    device_close(g.dev);
    program_fixture_close(&f);
}

/* ---- rounds ---- */

static size_t heap_in_use(void) {
    return mallinfo2().uordblks; /* 0 where a sanitizer has replaced the allocator */
}

static void a_round(program_fixture *f, program_kind kind, sample *a, sample *b) {
    test_program t;
    graph_handle handle;
    graph_result view;
    test_program_start(&t, f, NULL, kind);
    assert_works(&t, a, b);
    assert_ok(test_copy(&t, &handle, b, a, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &view, handle, GRAPH_OUTPUT_BORROWED, NULL));
    graph_result_release(&view);
    assert_ok(test_copy(&t, &handle, a, b, NULL)); /* left outstanding */
    test_program_fini(&t);
}

static void hundred_rounds_leave_memory_where_it_was(void **state) {
    (void)state;
    static const program_kind kinds[] = {PROGRAM_MULTIPLY, PROGRAM_ADD, PROGRAM_RANDOM, PROGRAM_SLOW};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    for (uint32_t i = 0; i < 4; i++) a_round(&f, kinds[i], a, b); /* discarded */
    const memory_mark before = memory_mark_take(&f);
    const size_t heap = heap_in_use();
    for (uint32_t round = 0; round < 100; round++) {
        a_round(&f, kinds[round % 4], a, b);
        assert_memory_is(&f, &before);
    }
    const size_t grown = heap_in_use() > heap ? heap_in_use() - heap : 0;
    print_message("heap in use: %zu bytes more after 100 rounds\n", grown);
    /* What threads keep in their caches: 10 to 22 KiB, more the more they get in each other's way. A
     * forgotten buffer would be 800 KiB at least (small leaks: ASan); a tool that watches each launch keeps
     * notes of its own on this heap. */
    assert_true(grown < 1u << 19 || fixture_is_short());
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void slots_keys_and_weights_come_back_too(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    const memory_mark before = memory_mark_take(&f);
    for (uint32_t round = 0; round < 20; round++) {
        graph_slot *slot = NULL;
        test_program t;
        assert_ok(graph_slot_create(&slot, f.dev, 1u << 20, NULL));
        binding_set *weights = fixture_weights_create(&f, 0.5, 2);
        resident_keys *keys = fixture_keys_create(&f, f.secret);
        test_program_init_weighted(&t, &f, slot, weights);
        assert_ok(test_program_capture(&t, 0, NULL));
        if (round % 10 == 0) assert_works(&t, a, b);
        test_program_fini(&t);
        resident_keys_release(keys);
        assert_ok(binding_set_destroy(weights, NULL));
        graph_slot_destroy(slot);
        assert_memory_is(&f, &before);
    }
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- under failure ---- */

typedef struct fault_run {
    sample *a, *b;
    ckks_value examples[2];
    test_program t; /* configured */
    uint32_t failed;
} fault_run;

/* slot, program, capture, both kinds of replay, close: all of it under one fault */
static void round_with_a_fault(void *context, program_fixture *f) {
    fault_run *run = context;
    graph_slot *slot = NULL;
    graph_program *program = NULL;
    graph_result owned = {0}, view = {0};
    const graph_input inputs[2] = {sample_packed(run->a), sample_packed(run->b)};
    const graph_handle held = {0};
    const memory_mark before = memory_mark_take(f);
    fault_on(f);
    ckks_status rc = graph_slot_create(&slot, f->dev, 1u << 20, NULL);
    if (rc == CKKS_OK) rc = graph_program_create(&program, slot, &run->t.config, NULL);
    if (rc == CKKS_OK) rc = graph_program_capture(program, 1, run->examples, f->keys, NULL);
    if (rc == CKKS_OK)
        rc = graph_program_replay(program, &owned, inputs, 2, f->keys, GRAPH_OUTPUT_OWNED, NULL);
    if (rc == CKKS_OK) rc = graph_program_replay_prepared(program, &view, held, GRAPH_OUTPUT_BORROWED, NULL);
    graph_program_destroy(program);
    graph_slot_destroy(slot);
    fault_off(f);
    if (owned.internal != NULL)
        assert_result(&run->t, &owned, run->a, run->b); /* what was given out is right */
    run->failed += rc != CKKS_OK;
    graph_result_release(&owned), graph_result_release(&view);
    assert_memory_is(f, &before);
    assert_ok(device_stream_recover(run->t.side, NULL));
}

static void rounds_with_faults(fault_mode mode) {
    program_fixture f;
    program_fixture_open(&f);
    fault_run run = {.a = sample_create(&f, 1, NULL), .b = sample_create(&f, 2, NULL)};
    run.examples[0] = sample_value(run.a), run.examples[1] = sample_value(run.b);
    test_program_init(&run.t, &f, NULL, PROGRAM_MULTIPLY);
    const uint32_t runs = fault_each(&f, mode, round_with_a_fault, &run);
    assert_true(run.failed > fault_count(30) || runs == 0);
    test_program_fini(&run.t);
    sample_destroy(run.a), sample_destroy(run.b);
    program_fixture_close(&f);
}

static void round_leaves_nothing_behind_whichever_device_call_fails(void **state) {
    (void)state;
    rounds_with_faults(FAULT_CALL);
}
static void round_leaves_nothing_behind_whichever_work_fails_on_its_stream(void **state) {
    (void)state;
    rounds_with_faults(FAULT_ASYNCHRONOUS);
}
static void round_leaves_nothing_behind_whichever_allocation_fails(void **state) {
    (void)state;
    rounds_with_faults(FAULT_ALLOCATION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_that_is_too_small_is_named),
        cmocka_unit_test(slot_limit_counts_every_program_of_the_slot),
        cmocka_unit_test(device_budget_refuses_before_allocation),
        cmocka_unit_test(hundred_rounds_leave_memory_where_it_was),
        cmocka_unit_test(slots_keys_and_weights_come_back_too),
        cmocka_unit_test(round_leaves_nothing_behind_whichever_device_call_fails),
        cmocka_unit_test(round_leaves_nothing_behind_whichever_work_fails_on_its_stream),
        cmocka_unit_test(round_leaves_nothing_behind_whichever_allocation_fails),
    };
    return program_suite("C20 memory", tests);
}
