/* The comparison of eager and recorded execution: fair, checked, and honest about what does not help. */
#include "tests/support/program_fixture.h"

#include "kernels/program/graph_bench.h"

#include <string.h>

static ckks_status run(program_fixture *f, program_kind kind, uint32_t rounds, graph_bench_result *out,
                       ckks_error *err) {
    sample *a = sample_create(f, 1, NULL), *b = sample_create(f, 2, NULL);
    test_program t;
    test_program_init(&t, f, NULL, kind);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    const graph_input inputs[2] = {sample_packed(a), sample_packed(b)};
    const graph_bench_config config = {.slot = f->slot,
                                       .program = &t.config,
                                       .examples = examples,
                                       .inputs = inputs,
                                       .keys = f->keys,
                                       .rounds = rounds,
                                       .warmup = 2};
    const memory_mark before = memory_mark_take(f);
    const ckks_status rc = graph_bench_run(out, &config, err);
    assert_memory_is(f, &before);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    return rc;
}

static void both_ways_are_measured_alike_and_checked_each_round(void **state) {
    (void)state;
    program_fixture f;
    graph_bench_result r;
    char text[160];
    program_fixture_open(&f);
    assert_ok(run(&f, PROGRAM_MULTIPLY, 15, &r, NULL));
    assert_int_equal(r.rounds, 15);
    assert_int_equal(r.rounds_checked, 2 * (15 + 2) + 1);
    const graph_bench_mode *modes[2] = {&r.eager, &r.graph};
    for (int i = 0; i < 2; i++) {
        const graph_bench_figure *total = &modes[i]->total;
        assert_true(total->low_ns > 0 && total->low_ns <= total->median_ns &&
                    total->median_ns <= total->high_ns);
        assert_true(modes[i]->replay.median_ns > 0 && modes[i]->stage.median_ns > 0);
        assert_true(modes[i]->total.median_ns >= modes[i]->replay.low_ns);
    }
    assert_int_equal(r.eager.device_bytes, r.graph.device_bytes);
    assert_int_equal(r.eager.host_bytes, r.graph.host_bytes);
    assert_int_equal(r.eager.arena_bytes, r.graph.arena_bytes);
    assert_true(r.kernel_nodes > 1);
    assert_true(strlen(graph_bench_summary(&r, text, sizeof text)) > 20);
    print_message("eager %llu us, graph %llu us; %s\n", (unsigned long long)r.eager.total.median_ns / 1000,
                  (unsigned long long)r.graph.total.median_ns / 1000, text);
    program_fixture_close(&f);
}

static void random_program_is_compared_on_one_fixed_stream(void **state) {
    (void)state;
    program_fixture f;
    graph_bench_result r;
    program_fixture_open(&f);
    assert_ok(run(&f, PROGRAM_RANDOM, 3, &r, NULL));
    assert_int_equal(r.rounds_checked, 1);
    program_fixture_close(&f);
}

static void rounds_are_bounded(void **state) {
    (void)state;
    program_fixture f;
    graph_bench_result r;
    program_fixture_open(&f);
    assert_status(run(&f, PROGRAM_ADD, 0, &r, NULL), CKKS_INVALID_ARGUMENT);
    assert_status(run(&f, PROGRAM_ADD, GRAPH_BENCH_ROUNDS_MAX + 1, &r, NULL), CKKS_INVALID_ARGUMENT);
    program_fixture_close(&f);
}

static void summary_says_where_a_recording_does_not_help(void **state) {
    (void)state;
    char text[160];
    const graph_bench_figure fast = {100, 90, 110}, slow = {200, 190, 210};
    const graph_bench_result cases[] = {
        {.eager.total = slow, .graph.total = fast, .kernel_nodes = 9},
        {.eager.total = fast, .graph.total = fast, .kernel_nodes = 1},
        {.eager.total = fast,
         .graph.total = fast,
         .graph.stage = slow,
         .graph.replay = fast,
         .kernel_nodes = 9},
        {.eager.total = fast,
         .graph.total = slow,
         .graph.stage = fast,
         .graph.replay = slow,
         .kernel_nodes = 9},
    };
    const char *expected[] = {"helps: 50.0 %", "one kernel", "staging and copies", "kernels themselves"};
    for (int i = 0; i < 4; i++)
        assert_non_null(strstr(graph_bench_summary(&cases[i], text, sizeof text), expected[i]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_ways_are_measured_alike_and_checked_each_round),
        cmocka_unit_test(random_program_is_compared_on_one_fixed_stream),
        cmocka_unit_test(rounds_are_bounded),
        cmocka_unit_test(summary_says_where_a_recording_does_not_help),
    };
    return cmocka_run_group_tests_name("graph_bench", tests, NULL, NULL);
}
