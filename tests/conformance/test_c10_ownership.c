/* C10, C11: owned results are the caller's; borrowed ones are leased views that go stale and never lie. */
#include "tests/support/program_fixture.h"

#include <stdlib.h>
#include <string.h>

static const graph_handle none;

typedef struct owner_case {
    program_fixture f;
    test_program t;
    sample *a, *b;
} owner_case;

static void setup(owner_case *c, program_kind kind) {
    program_fixture_open(&c->f);
    c->a = sample_create(&c->f, 1, NULL), c->b = sample_create(&c->f, 2, NULL);
    test_program_start(&c->t, &c->f, NULL, kind);
}
static void teardown(owner_case *c) {
    test_program_fini(&c->t);
    sample_destroy(c->a), sample_destroy(c->b);
    program_fixture_close(&c->f);
}

static void owned_result_survives_the_next_replays(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_MULTIPLY);
    graph_result first, other;
    assert_ok(test_replay(&c.t, &first, c.a, c.b, NULL));
    for (int i = 0; i < 6; i++) {
        assert_ok(test_replay(&c.t, &other, c.b, c.b, NULL));
        assert_result(&c.t, &other, c.b, c.b);
        assert_ptr_not_equal(other.outputs[0].words, first.outputs[0].words);
        graph_result_release(&other);
    }
    assert_result(&c.t, &first, c.a, c.b);
    assert_int_equal(first.outputs[0].signature.device, 0);
    graph_result_release(&first);
    graph_result_release(&first); /* accepts what it zeroed */
    teardown(&c);
}

static void owned_result_outlives_its_program(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_result result;
    assert_ok(test_replay(&c.t, &result, c.a, c.b, NULL));
    graph_program_close(c.t.program);
    assert_result(&c.t, &result, c.a, c.b);
    graph_result_release(&result);
    teardown(&c);
}

static void held_lease_refuses_the_next_replay_and_its_release_allows_it(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_handle handle;
    graph_result first, second;
    graph_pending *pending = NULL;
    assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
    assert_ok(graph_program_replay_prepared(c.t.program, &first, handle, GRAPH_OUTPUT_BORROWED, NULL));
    assert_result(&c.t, &first, c.a, c.b);
    assert_ok(test_copy(&c.t, &handle, c.b, c.b, NULL)); /* inputs may be prepared meanwhile */
    assert_status(graph_program_replay_prepared(c.t.program, &second, handle, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_LEASE_HELD);
    assert_status(graph_program_replay_begin(c.t.program, &pending, handle, GRAPH_OUTPUT_BORROWED, NULL),
                  CKKS_LEASE_HELD);
    const graph_input inputs[2] = {sample_packed(c.a), sample_packed(c.a)};
    assert_status(graph_program_replay(c.t.program, &second, inputs, 2, NULL, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_LEASE_HELD);
    assert_result(&c.t, &first, c.a, c.b); /* none of it touched the words */
    uint64_t *const address = first.outputs[0].words;
    const uint64_t generation = first.generation;
    graph_result_release(&first);
    assert_ok(graph_program_replay_prepared(c.t.program, &second, handle, GRAPH_OUTPUT_BORROWED, NULL));
    assert_ptr_equal(second.outputs[0].words, address); /* same place, new words */
    assert_int_equal(second.generation, generation + 1);
    assert_result(&c.t, &second, c.b, c.b);
    graph_result_release(&second);
    teardown(&c);
}

static void lease_begins_with_the_replay(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_handle handle;
    graph_pending *pending = NULL, *other = NULL;
    graph_result result;
    assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
    assert_ok(graph_program_replay_begin(c.t.program, &pending, handle, GRAPH_OUTPUT_BORROWED, NULL));
    assert_status(graph_program_replay_begin(c.t.program, &other, none, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_LEASE_HELD);
    assert_ok(graph_program_replay_finish(c.t.program, pending, &result, NULL));
    assert_result(&c.t, &result, c.a, c.b);
    graph_result_release(&result);
    assert_works(&c.t, c.b, c.a);
    teardown(&c);
}

static void view_of_an_older_generation_is_refused(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_handle handle;
    graph_result view;
    uint64_t *words = malloc(c.t.outputs[0].bytes);
    const uint64_t count = c.t.outputs[0].bytes / 8;
    assert_ok(test_copy(&c.t, &handle, c.a, c.b, NULL));
    assert_ok(graph_program_replay_prepared(c.t.program, &view, handle, GRAPH_OUTPUT_BORROWED, NULL));
    graph_result_end_lease(&view);
    assert_result(&c.t, &view, c.a, c.b); /* nothing has replaced it yet */
    assert_works(&c.t, c.b, c.b);
    memset(words, 0xab, c.t.outputs[0].bytes);
    ckks_error err = {0};
    assert_status(graph_result_read(&view, 0, words, count, &err), CKKS_STALE_GENERATION);
    for (uint64_t i = 0; i < count; i++) assert_true(words[i] == 0xababababababababu);
    /* nor does a copy of the struct help, nor closing */
    const graph_result copy = view;
    assert_status(graph_result_read(&copy, 0, words, count, NULL), CKKS_STALE_GENERATION);
    graph_program_close(c.t.program);
    assert_status(graph_result_read(&view, 0, words, count, NULL), CKKS_CLOSED);
    graph_result_release(&view);
    free(words);
    teardown(&c);
}

static void read_checks_its_arguments(void **state) {
    (void)state;
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_result result;
    uint64_t word;
    assert_ok(test_replay(&c.t, &result, c.a, c.b, NULL));
    ckks_error err = {0};
    uint64_t *words = malloc(c.t.outputs[0].bytes);
    assert_non_null(words);
    assert_status(graph_result_read(&result, 1, words, c.t.outputs[0].bytes / 8, &err),
                  CKKS_INVALID_ARGUMENT);
    assert_string_equal(err.field, "index");
    assert_status(graph_result_read(&result, 0, words, c.t.outputs[0].bytes / 8 + 1, NULL),
                  CKKS_INVALID_ARGUMENT);
    free(words);
    assert_status(graph_result_read(&result, 0, &word, 1, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(graph_result_read(&result, 0, NULL, 1, NULL), CKKS_INVALID_ARGUMENT);
    graph_result_release(&result);
    assert_status(graph_result_read(&result, 0, &word, 1, NULL), CKKS_INVALID_ARGUMENT);
    teardown(&c);
}

/* A caller may hold as many as it likes; those that come back are kept for the next, a few of them. */
static void many_owned_results_are_held_and_given_back(void **state) {
    (void)state;
    enum { MANY = 3 * GRAPH_PENDING_MAX };
    owner_case c;
    setup(&c, PROGRAM_ADD);
    graph_result results[MANY];
    const memory_mark before = memory_mark_take(&c.f);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++)
            assert_ok(test_replay(&c.t, &results[i], i % 2 ? c.b : c.a, c.a, NULL));
        for (int i = 0; i < MANY; i++) assert_result(&c.t, &results[i], i % 2 ? c.b : c.a, c.a);
        for (int i = 0; i < MANY; i++) graph_result_release(&results[i]);
        const memory_mark after = memory_mark_take(&c.f);
        assert_true(after.account.allocation_count <= before.account.allocation_count + GRAPH_PENDING_MAX);
    }
    teardown(&c);
}

/* C11: both replays are begun before the host waits for anything. */
static void owned_copy_comes_before_the_next_replay_without_a_host_wait(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_init_slow(&t, &f, NULL, 40);
    assert_ok(test_program_capture(&t, 0, NULL));
    bool was_ahead = false;
    for (int round = 0; test_another_round(round, 10, was_ahead); round++) {
        graph_handle handle;
        graph_pending *first = NULL, *second = NULL;
        graph_result one, two;
        assert_ok(test_copy(&t, &handle, a, NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &first, handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_ok(test_copy(&t, &handle, b, NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &second, handle, GRAPH_OUTPUT_OWNED, NULL));
        was_ahead |= !graph_pending_is_complete(first);
        /* the later one first: the earlier result must not depend on when it is asked for */
        assert_ok(graph_program_replay_finish(t.program, second, &two, NULL));
        assert_ok(graph_program_replay_finish(t.program, first, &one, NULL));
        assert_result(&t, &one, a, NULL);
        assert_result(&t, &two, b, NULL);
        graph_result_release(&one), graph_result_release(&two);
    }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owned_result_survives_the_next_replays),
        cmocka_unit_test(owned_result_outlives_its_program),
        cmocka_unit_test(held_lease_refuses_the_next_replay_and_its_release_allows_it),
        cmocka_unit_test(lease_begins_with_the_replay),
        cmocka_unit_test(view_of_an_older_generation_is_refused),
        cmocka_unit_test(read_checks_its_arguments),
        cmocka_unit_test(many_owned_results_are_held_and_given_back),
        cmocka_unit_test(owned_copy_comes_before_the_next_replay_without_a_host_wait),
    };
    return program_suite("C10 ownership, C11 owned copy", tests);
}
