/* C2: warm-up never touches the retained buffers; none is needed; the first replay equals the eager run. */
#include "tests/support/program_fixture.h"

#include <stdlib.h>
#include <string.h>

static void capture_without_warmup_works(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    assert_ok(test_program_capture(&t, 0, NULL));
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_READY);
    assert_works(&t, a, b);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static bool is_apart(const uint64_t *a, const uint64_t *b, uint64_t bytes) {
    return (uintptr_t)a + bytes <= (uintptr_t)b || (uintptr_t)b + bytes <= (uintptr_t)a;
}

static void warmup_works_on_buffers_of_its_own(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    const uint32_t planning = t.calls;
    assert_int_equal(planning, 1);
    assert_ok(test_program_capture(&t, 3, NULL));
    /* the reference, three warm-up runs, the recording; a replay does not call */
    assert_int_equal(t.calls, planning + 5);
    const uint32_t recorded = t.calls - 1;
    for (uint32_t run = planning; run < recorded; run++) {
        assert_ptr_equal(t.seen_input[run], t.seen_input[planning]);
        assert_ptr_equal(t.seen_output[run], t.seen_output[planning]);
        assert_true(is_apart(t.seen_input[run], t.seen_input[recorded], t.inputs[0].bytes));
        assert_true(is_apart(t.seen_output[run], t.seen_output[recorded], t.outputs[0].bytes));
        assert_true(is_apart(t.seen_output[run], t.seen_input[recorded], t.outputs[0].bytes));
    }
    test_program_fini(&t);
    program_fixture_close(&f);
}

static void capture_leaves_its_examples_as_they_were(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    assert_ok(graph_program_capture(t.program, 2, examples, f.keys, NULL));
    uint64_t *words = malloc(a->signature.bytes);
    assert_ok(device_copy_out(f.stream, words, examples[0].words, a->signature.bytes, NULL));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_memory_equal(words, a->words, a->signature.bytes);
    free(words);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void first_replay_equals_the_eager_run_bit_for_bit(void **state) {
    (void)state;
    static const program_kind kinds[] = {PROGRAM_ADD, PROGRAM_MULTIPLY, PROGRAM_ROTATE, PROGRAM_SLOW};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        test_program graph, eager;
        test_program_start(&graph, &f, NULL, kinds[k]);
        test_program_init_eager(&eager, &f, NULL, kinds[k]);
        assert_ok(test_program_capture(&eager, 1, NULL));
        const uint32_t graph_calls = graph.calls, eager_calls = eager.calls;
        graph_result from_graph, from_eager;
        assert_ok(test_replay(&graph, &from_graph, a, b, NULL));
        assert_ok(test_replay(&eager, &from_eager, a, b, NULL));
        assert_int_equal(graph.calls, graph_calls); /* host work is not repeated by a replay */
        assert_int_equal(eager.calls, eager_calls + 1);
        for (uint32_t i = 0; i < from_graph.output_count; i++)
            assert_memory_equal(from_graph.outputs[i].words, from_eager.outputs[i].words,
                                from_graph.outputs[i].signature.bytes);
        assert_result(&graph, &from_graph, a, b);
        graph_result_release(&from_graph), graph_result_release(&from_eager);
        test_program_fini(&graph), test_program_fini(&eager);
    }
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void stats_say_what_was_captured(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    graph_program_stats stats;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    graph_program_get_stats(t.program, &stats);
    assert_int_equal(stats.input_bytes, 0);
    assert_ok(test_program_capture(&t, 1, NULL));
    for (int i = 0; i < 3; i++) assert_works(&t, a, b);
    graph_program_get_stats(t.program, &stats);
    assert_true(stats.kernel_nodes >= 3);  /* a product and two key switches at least */
    assert_int_equal(stats.copy_nodes, 2); /* both results are copied to their buffers */
    assert_int_equal(stats.input_bytes, 2 * t.inputs[0].bytes);
    assert_int_equal(stats.output_bytes, t.outputs[0].bytes + t.outputs[1].bytes);
    assert_int_equal(stats.arena_bytes, workspace_plan_bytes(t.plan));
    assert_int_equal(stats.key_table_bytes, 2 * sizeof(key_table_entry));
    assert_true(stats.staging_bytes >= 2 * t.inputs[0].bytes);
    assert_true(stats.warmup_ns > 0 && stats.capture_ns > 0 && stats.first_replay_ns > 0);
    assert_int_equal(stats.replays, 3);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture_without_warmup_works),
        cmocka_unit_test(warmup_works_on_buffers_of_its_own),
        cmocka_unit_test(capture_leaves_its_examples_as_they_were),
        cmocka_unit_test(first_replay_equals_the_eager_run_bit_for_bit),
        cmocka_unit_test(stats_say_what_was_captured),
    };
    return program_suite("C2 warm-up", tests);
}
