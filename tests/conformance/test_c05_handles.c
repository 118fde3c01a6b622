/* C5, C6: handles are taken once, in order, by their own program; without one the held payload is recomputed.
 */
#include "tests/support/program_fixture.h"

#include <string.h>

static ckks_status replay_handle(test_program *t, graph_handle handle) {
    graph_result result = {0};
    const ckks_status rc =
        graph_program_replay_prepared(t->program, &result, handle, GRAPH_OUTPUT_OWNED, NULL);
    graph_result_release(&result);
    return rc;
}

typedef struct handles_case {
    program_fixture f;
    test_program t;
    sample *a, *b;
} handles_case;

static void setup(handles_case *c) {
    program_fixture_open(&c->f);
    c->a = sample_create(&c->f, 1, NULL), c->b = sample_create(&c->f, 2, NULL);
    test_program_start(&c->t, &c->f, NULL, PROGRAM_ADD);
}
static void teardown(handles_case *c) {
    test_program_fini(&c->t);
    sample_destroy(c->a), sample_destroy(c->b);
    program_fixture_close(&c->f);
}

static const graph_handle none;

static void replay_refuses_a_missing_handle_while_a_copy_is_outstanding(void **state) {
    (void)state;
    handles_case c;
    setup(&c);
    graph_handle handle;
    assert_works(&c.t, c.a, c.b);
    assert_ok(test_copy(&c.t, &handle, c.b, c.b, NULL));
    assert_status(replay_handle(&c.t, none), CKKS_HANDLE_MISSING);
    assert_status(replay_handle(&c.t, handle), CKKS_OK); /* and it is still good */
    teardown(&c);
}

static void replay_refuses_a_superseded_handle(void **state) {
    (void)state;
    handles_case c;
    setup(&c);
    graph_handle first, second;
    graph_result result;
    graph_program_stats stats;
    assert_ok(test_copy(&c.t, &first, c.a, c.a, NULL));
    assert_ok(test_copy(&c.t, &second, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, first), CKKS_HANDLE_SUPERSEDED);
    assert_ok(graph_program_replay_prepared(c.t.program, &result, second, GRAPH_OUTPUT_OWNED, NULL));
    assert_result(&c.t, &result, c.a, c.b);
    graph_result_release(&result);
    assert_status(replay_handle(&c.t, first), CKKS_HANDLE_SUPERSEDED);
    graph_program_get_stats(c.t.program, &stats);
    assert_int_equal(stats.superseded_copies, 1);
    /* replay with inputs supersedes too */
    assert_ok(test_copy(&c.t, &first, c.a, c.a, NULL));
    assert_works(&c.t, c.b, c.b);
    assert_status(replay_handle(&c.t, first), CKKS_HANDLE_SUPERSEDED);
    graph_program_get_stats(c.t.program, &stats);
    assert_int_equal(stats.superseded_copies, 2);
    teardown(&c);
}

static void replay_refuses_a_consumed_handle(void **state) {
    (void)state;
    handles_case c;
    setup(&c);
    graph_handle first, second;
    assert_ok(test_copy(&c.t, &first, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, first), CKKS_OK);
    assert_status(replay_handle(&c.t, first), CKKS_HANDLE_CONSUMED);
    assert_ok(test_copy(&c.t, &second, c.b, c.b, NULL));
    assert_status(replay_handle(&c.t, first), CKKS_HANDLE_CONSUMED); /* not superseded: it was replayed */
    assert_status(replay_handle(&c.t, second), CKKS_OK);
    assert_status(replay_handle(&c.t, second), CKKS_HANDLE_CONSUMED);
    teardown(&c);
}

/* Whether a handle was replayed is remembered for the latest 64 copies. */
static void an_old_handle_is_superseded_whatever_was_replayed_since(void **state) {
    (void)state;
    handles_case c;
    setup(&c);
    graph_handle old, last;
    assert_ok(test_copy(&c.t, &old, c.a, c.b, NULL));
    for (int i = 0; i < 64; i++) assert_ok(test_copy(&c.t, &last, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, last), CKKS_OK);
    assert_status(replay_handle(&c.t, old), CKKS_HANDLE_SUPERSEDED);
    assert_status(replay_handle(&c.t, last), CKKS_HANDLE_CONSUMED);
    /* and no longer than that: the last of the 64, then one copy more */
    for (int i = 0; i < 63; i++) assert_ok(test_copy(&c.t, &old, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, last), CKKS_HANDLE_CONSUMED);
    assert_ok(test_copy(&c.t, &old, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, last), CKKS_HANDLE_SUPERSEDED);
    teardown(&c);
}

static void replay_refuses_a_handle_of_another_program(void **state) {
    (void)state;
    handles_case c;
    test_program other;
    setup(&c);
    test_program_start(&other, &c.f, NULL, PROGRAM_ADD);
    graph_handle mine, theirs;
    assert_ok(test_copy(&c.t, &mine, c.a, c.b, NULL));
    assert_ok(test_copy(&other, &theirs, c.a, c.b, NULL));
    assert_status(replay_handle(&c.t, theirs), CKKS_HANDLE_FOREIGN);
    assert_status(replay_handle(&other, mine), CKKS_HANDLE_FOREIGN);
    graph_handle invented = mine;
    invented.sequence += 5;
    assert_status(replay_handle(&c.t, invented), CKKS_HANDLE_FOREIGN);
    assert_status(replay_handle(&c.t, mine), CKKS_OK);
    assert_status(replay_handle(&other, theirs), CKKS_OK);
    test_program_fini(&other);
    teardown(&c);
}

static void replay_without_a_handle_recomputes_the_held_payload(void **state) {
    (void)state;
    handles_case c;
    setup(&c);
    graph_handle handle;
    graph_result first, again;
    assert_status(replay_handle(&c.t, none), CKKS_FAILED_PRECONDITION); /* capture leaves nothing held */
    assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
    assert_ok(graph_program_replay_prepared(c.t.program, &first, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_true(first.stage_ns > 0 && first.replay_ns > 0);
    for (int i = 0; i < 3; i++) {
        assert_ok(graph_program_replay_prepared(c.t.program, &again, none, GRAPH_OUTPUT_OWNED, NULL));
        assert_memory_equal(again.outputs[0].words, first.outputs[0].words, first.outputs[0].signature.bytes);
        assert_result(&c.t, &again, c.a, c.b);
        assert_true(again.generation > first.generation);
        assert_int_equal(again.stage_ns, 0);
        graph_result_release(&again);
    }
    graph_result_release(&first);
    teardown(&c);
}

static void held_payload_keeps_its_keys(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_result result;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    resident_keys *keys = fixture_keys_create(&f, f.secret);
    const graph_input input = sample_packed(a);
    assert_ok(graph_program_replay(t.program, &result, &input, 1, keys, GRAPH_OUTPUT_OWNED, NULL));
    graph_result_release(&result);
    resident_keys_release(keys); /* the program's reference is now the only one */
    for (int i = 0; i < 3; i++) {
        assert_ok(graph_program_replay_prepared(t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL));
        assert_result(&t, &result, a, NULL);
        graph_result_release(&result);
    }
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void a_dropped_payload_lets_its_keys_go_and_the_next_copy_works(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    device_memory_account with_keys, now;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    const memory_mark before = memory_mark_take(&f);
    resident_keys *keys = fixture_keys_create(&f, f.secret);
    device_memory(f.dev, &with_keys);
    const graph_input input = sample_packed(a);
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, keys, NULL));
    resident_keys_release(keys);
    assert_status(graph_program_drop_payload(t.program, NULL), CKKS_FAILED_PRECONDITION);
    assert_status(replay_handle(&t, handle), CKKS_OK);
    device_memory(f.dev, &now);
    assert_int_equal(now.bytes_by_purpose[MEMORY_KEYS], with_keys.bytes_by_purpose[MEMORY_KEYS]);
    assert_ok(graph_program_drop_payload(t.program, NULL));
    assert_memory_is(&f, &before);
    assert_status(replay_handle(&t, none), CKKS_FAILED_PRECONDITION);
    assert_status(replay_handle(&t, handle), CKKS_HANDLE_CONSUMED);
    assert_ok(graph_program_drop_payload(t.program, NULL)); /* of nothing */
    assert_works(&t, a, NULL);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void a_payload_dropped_beside_its_replay_leaves_it_the_keys(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result;
    test_program_init_slow(&t, &f, NULL, 20);
    assert_ok(test_program_capture(&t, 0, NULL));
    assert_works(&t, a, NULL);
    assert_ok(graph_program_drop_payload(t.program, NULL));
    resident_keys *keys = fixture_keys_create(&f, f.secret);
    const graph_input input = sample_packed(a);
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, keys, NULL));
    assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
    resident_keys_release(keys);
    assert_ok(graph_program_drop_payload(t.program, NULL));
    assert_ok(graph_program_replay_finish(t.program, pending, &result, NULL));
    assert_result(&t, &result, a, NULL);
    graph_result_release(&result);
    assert_status(replay_handle(&t, none), CKKS_FAILED_PRECONDITION);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f); /* asserts that the keys are gone */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_refuses_a_missing_handle_while_a_copy_is_outstanding),
        cmocka_unit_test(replay_refuses_a_superseded_handle),
        cmocka_unit_test(replay_refuses_a_consumed_handle),
        cmocka_unit_test(an_old_handle_is_superseded_whatever_was_replayed_since),
        cmocka_unit_test(replay_refuses_a_handle_of_another_program),
        cmocka_unit_test(replay_without_a_handle_recomputes_the_held_payload),
        cmocka_unit_test(held_payload_keeps_its_keys),
        cmocka_unit_test(a_dropped_payload_lets_its_keys_go_and_the_next_copy_works),
        cmocka_unit_test(a_payload_dropped_beside_its_replay_leaves_it_the_keys),
    };
    return program_suite("C5 handles, C6 held payload", tests);
}
