/* C7, C8, C9: what overlaps a replay does not disturb it; every kind of source; replays of a slot take turns.
 */
#include "tests/support/program_fixture.h"

#include "kernels/program/graph_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- C7 ---- */

static void copy_beside_a_running_replay_does_not_disturb_it(void **state) {
    (void)state;
    static const graph_source sources[] = {GRAPH_SOURCE_PACKED_HOST, GRAPH_SOURCE_WORDS_HOST,
                                           GRAPH_SOURCE_WORDS_PINNED, GRAPH_SOURCE_WORDS_DEVICE,
                                           GRAPH_SOURCE_PACKED_PINNED};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    /* long enough that the second copy comes while it runs */
    test_program_init_slow(&t, &f, NULL, device_get_kind(f.dev) == DEVICE_CUDA ? 600 : 60);
    assert_ok(test_program_capture(&t, 0, NULL));
    for (size_t k = 0; k < sizeof sources / sizeof sources[0]; k++) {
        bool was_beside = false;
        const graph_input other = sample_input(b, sources[k], false);
        for (int attempt = 0; test_another_round(attempt, 1, was_beside); attempt++) {
            graph_handle first, second;
            graph_pending *pending = NULL;
            graph_result result;
            assert_ok(test_copy(&t, &first, a, NULL, NULL));
            assert_ok(graph_program_replay_begin(t.program, &pending, first, GRAPH_OUTPUT_OWNED, NULL));
            assert_ok(graph_program_copy_inputs_from(t.program, &second, &other, 1, f.keys, NULL));
            was_beside = !graph_pending_is_complete(pending);
            assert_ok(graph_program_replay_finish(t.program, pending, &result, NULL));
            assert_result(&t, &result, a, NULL);
            graph_result_release(&result);
            assert_ok(graph_program_replay_prepared(t.program, &result, second, GRAPH_OUTPUT_OWNED, NULL));
            assert_result(&t, &result, b, NULL);
            graph_result_release(&result);
        }
    }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- C8 ---- */

static void every_source_gives_the_same_words(void **state) {
    (void)state;
    static const struct {
        graph_source source;
        bool is_seeded;
    } cases[] = {{GRAPH_SOURCE_PACKED_HOST, false},   {GRAPH_SOURCE_WORDS_HOST, false},
                 {GRAPH_SOURCE_WORDS_PINNED, false},  {GRAPH_SOURCE_WORDS_DEVICE, false},
                 {GRAPH_SOURCE_PACKED_PINNED, false}, {GRAPH_SOURCE_PACKED_PINNED, true}};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    graph_result reference, result;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    assert_ok(test_replay(&t, &reference, a, b, NULL)); /* seeded */
    assert_result(&t, &reference, a, b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            const graph_input inputs[2] = {sample_input(a, cases[i].source, cases[i].is_seeded),
                                           sample_input(b, cases[k].source, cases[k].is_seeded)};
            assert_ok(graph_program_replay(t.program, &result, inputs, 2, f.keys, GRAPH_OUTPUT_OWNED, NULL));
            for (int o = 0; o < 2; o++)
                assert_memory_equal(result.outputs[o].words, reference.outputs[o].words,
                                    reference.outputs[o].signature.bytes);
            graph_result_release(&result);
        }
    graph_result_release(&reference);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* A source in the making: `bytes` at `words`, memory of the device or, for pinned sources, of the host. */
typedef struct source_in_making {
    program_fixture *f;
    void *words, *good; /* good: what it will be, on the device */
    uint64_t bytes;
    bool is_pinned;
    void *ballast; /* work that takes the device longer than it takes the host to ask for it */
    uint64_t ballast_bytes;
    device_event *ready;
} source_in_making;

static void source_open(source_in_making *s, program_fixture *f, const graph_input *input) {
    const bool is_large = device_get_kind(f->dev) == DEVICE_CUDA && !fixture_is_short();
    *s = (source_in_making){.f = f,
                            .bytes = input->bytes,
                            .is_pinned = input->source != GRAPH_SOURCE_WORDS_DEVICE,
                            .ballast_bytes = is_large ? 1u << 28 : 1u << 22};
    assert_ok(device_event_create(f->dev, &s->ready, NULL));
    assert_ok(device_allocate(f->dev, &s->ballast, s->ballast_bytes, MEMORY_RETAINED, NULL));
    assert_ok(device_allocate(f->dev, &s->good, s->bytes, MEMORY_RETAINED, NULL));
    if (s->is_pinned)
        assert_ok(device_allocate_host(f->dev, &s->words, s->bytes, NULL));
    else
        assert_ok(device_allocate(f->dev, &s->words, s->bytes, MEMORY_RETAINED, NULL));
    if (s->is_pinned)
        assert_ok(device_copy_in(f->stream, s->good, input->data, s->bytes, NULL));
    else
        assert_ok(device_copy(f->stream, s->good, input->data, s->bytes, NULL));
    if (!s->is_pinned)
        assert_ok(device_fill(f->stream, s->words, 0, s->bytes, NULL)); /* a copy may be counted before */
    assert_ok(device_stream_synchronize(f->stream, NULL));
}
static void source_close(source_in_making *s) {
    if (s->is_pinned)
        device_free_host(s->f->dev, s->words);
    else
        device_free(s->f->dev, s->words);
    device_free(s->f->dev, s->good), device_free(s->f->dev, s->ballast);
    device_event_destroy(s->ready);
}
/* begins to make it; until then it is all zero, which is no ciphertext of anybody */
static void source_make(source_in_making *s) {
    device_stream *stream = s->f->stream;
    if (s->is_pinned)
        memset(s->words, 0, s->bytes);
    else
        assert_ok(device_fill(stream, s->words, 0, s->bytes, NULL));
    for (uint8_t i = 0; i < 50; i++) assert_ok(device_fill(stream, s->ballast, i, s->ballast_bytes, NULL));
    if (s->is_pinned)
        assert_ok(device_copy_out(stream, s->words, s->good, s->bytes, NULL));
    else
        assert_ok(device_copy(stream, s->words, s->good, s->bytes, NULL));
    assert_ok(device_event_record(s->ready, stream, NULL));
}

/* The source is still being made on a stream of the caller when the copy is asked for. */
static void copy_waits_for_a_source_that_another_stream_makes(void **state) {
    (void)state;
    static const graph_source sources[] = {GRAPH_SOURCE_WORDS_DEVICE, GRAPH_SOURCE_WORDS_PINNED,
                                           GRAPH_SOURCE_PACKED_PINNED};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    for (size_t k = 0; k < sizeof sources / sizeof sources[0]; k++) {
        graph_input input = sample_input(a, sources[k], false);
        source_in_making s;
        source_open(&s, &f, &input);
        input.data = s.words;
        input.ready = s.ready;
        bool was_beside = false;
        for (int attempt = 0; test_another_round(attempt, 1, was_beside); attempt++) {
            graph_handle handle;
            graph_result result;
            source_make(&s);
            assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
            was_beside = !device_event_is_complete(s.ready);
            assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
            assert_result(&t, &result, a, NULL);
            graph_result_release(&result);
        }
        source_close(&s);
    }
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* Words leave the staging area only behind the replay before them: the next ones must not be there already.
 */
static void words_wait_for_the_staging_area(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *samples[3];
    for (uint32_t i = 0; i < 3; i++) samples[i] = sample_create(&f, i + 1, NULL);
    test_program t;
    test_program_init_slow(&t, &f, NULL, device_get_kind(f.dev) == DEVICE_CUDA ? 600 : 60);
    assert_ok(test_program_capture(&t, 0, NULL));
    bool was_beside = false;
    for (int attempt = 0; test_another_round(attempt, 1, was_beside); attempt++) {
        graph_pending *pending[3];
        for (uint32_t i = 0; i < 3; i++) {
            const graph_input words = sample_input(samples[i], GRAPH_SOURCE_WORDS_HOST, false);
            graph_handle handle;
            if (i == 2) was_beside = !graph_pending_is_complete(pending[0]);
            assert_ok(graph_program_copy_inputs_from(t.program, &handle, &words, 1, f.keys, NULL));
            assert_ok(graph_program_replay_begin(t.program, &pending[i], handle, GRAPH_OUTPUT_OWNED, NULL));
        }
        for (uint32_t i = 0; i < 3; i++) {
            graph_result result;
            assert_ok(graph_program_replay_finish(t.program, pending[i], &result, NULL));
            assert_result(&t, &result, samples[i], NULL);
            graph_result_release(&result);
        }
    }
    test_program_fini(&t);
    for (uint32_t i = 0; i < 3; i++) sample_destroy(samples[i]);
    program_fixture_close(&f);
}

/* ... and not for a copy that was asked for since, whose source may take its time. */
static void a_replay_is_finished_when_it_is_over(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    graph_input input = sample_input(a, GRAPH_SOURCE_WORDS_DEVICE, false);
    source_in_making s;
    source_open(&s, &f, &input);
    input.data = s.words;
    input.ready = s.ready;
    bool was_early = false;
    for (int attempt = 0; test_another_round(attempt, 1, was_early); attempt++) {
        graph_handle handle;
        graph_pending *pending = NULL;
        graph_result result;
        assert_ok(test_copy(&t, &handle, a, NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
        source_make(&s);
        assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
        assert_ok(graph_program_replay_finish(t.program, pending, &result, NULL));
        was_early = !device_event_is_complete(s.ready);
        graph_result_release(&result);
        assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_result(&t, &result, a, NULL);
        graph_result_release(&result);
    }
    source_close(&s);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* The caller of a copy that broke may free its source at once. */
static void a_copy_that_breaks_has_let_go_of_its_source(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    graph_input input = sample_input(a, GRAPH_SOURCE_WORDS_DEVICE, false);
    source_in_making s;
    graph_handle handle;
    source_open(&s, &f, &input);
    input.data = s.words;
    input.ready = s.ready;
    assert_works(&t, a, NULL);
    device_fault_set(f.dev, 0, false);
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
    const uint64_t calls = device_fault_calls(f.dev);
    source_make(&s);
    device_fault_set(f.dev, calls, false); /* the last of them: all work is enqueued */
    assert_status(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL),
                  CKKS_DEVICE_ERROR);
    device_fault_set(f.dev, 0, false);
    assert_true(device_event_is_complete(s.ready));
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_POISONED);
    source_close(&s);
    assert_works(&t, a, NULL);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* Memory is freed behind these: one that reports a failure of its own has waited all the same. */
static void a_drain_that_fails_has_waited(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    const graph_input input = sample_input(a, GRAPH_SOURCE_WORDS_DEVICE, false);
    source_in_making s;
    source_open(&s, &f, &input);
    for (int of_event = 0; of_event < 2; of_event++) {
        source_make(&s);
        device_fault_set(f.dev, 1, false);
        assert_status(of_event ? event_drain(s.ready, NULL) : stream_drain(f.stream, NULL),
                      CKKS_DEVICE_ERROR);
        device_fault_set(f.dev, 0, false);
        assert_true(device_event_is_complete(s.ready));
        assert_ok(device_stream_synchronize(f.stream, NULL));
    }
    source_close(&s);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* The result's memory goes with a replay that broke: nothing on the stream may still write there. */
static void a_replay_that_breaks_has_let_go_of_its_result(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    graph_input input = sample_input(a, GRAPH_SOURCE_WORDS_DEVICE, false);
    source_in_making s;
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result;
    source_open(&s, &f, &input);
    input.data = s.words;
    input.ready = s.ready;
    assert_ok(test_copy(&t, &handle, a, NULL, NULL));
    device_fault_set(f.dev, 0, false);
    assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
    const uint64_t calls = device_fault_calls(f.dev);
    assert_ok(graph_program_replay_finish(t.program, pending, &result, NULL));
    graph_result_release(&result);
    source_make(&s);
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
    device_fault_set(f.dev, calls, false); /* the last of them: all work is enqueued, behind the source */
    assert_status(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_DEVICE_ERROR);
    device_fault_set(f.dev, 0, false);
    assert_true(device_event_is_complete(s.ready));
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_result(&t, &result, a, NULL); /* the payload is as it was */
    graph_result_release(&result);
    source_close(&s);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void device_words_of_the_programs_own_inputs_are_refused(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    graph_input input = sample_input(a, GRAPH_SOURCE_WORDS_DEVICE, false);
    graph_handle handle;
    const uint64_t *const recorded = t.seen_input[t.calls - 1], words = input.bytes / 8;
    const uint64_t *const own[] = {recorded, recorded + 8, recorded + words - 8};
    assert_works(&t, a, NULL);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        ckks_error err = {0};
        input.data = own[i];
        assert_status(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, &err),
                      CKKS_ALIASING);
        assert_string_equal(err.field, "input 0"); /* before anything was touched */
        assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_READY);
    }
    input.data = a->words; /* host memory */
    assert_status(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL),
                  CKKS_INVALID_ARGUMENT);
    /* what the last replay left in the output is a source like any other */
    graph_result result;
    double actual[FIXTURE_SLOTS];
    input.data = t.seen_output[t.calls - 1];
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, &input, 1, f.keys, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    fixture_decrypt(&f, actual, result.outputs[0].words, &t.outputs[0], NULL);
    for (uint32_t i = 0; i < FIXTURE_SLOTS; i++)
        assert_true(fabs(actual[i] - a->slots[(i + 2) % FIXTURE_SLOTS]) < 0x1p-10);
    graph_result_release(&result);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* ---- C9 ---- */

typedef struct turn {
    test_program *t;
    sample *a;
    uint32_t rounds, right;
} turn;

static void *take_turns(void *context) {
    turn *mine = context;
    for (uint32_t i = 0; i < mine->rounds; i++) {
        graph_result result;
        double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
        if (test_replay(mine->t, &result, mine->a, NULL, NULL) != CKKS_OK) continue;
        fixture_decrypt(mine->t->f, actual, result.outputs[0].words, &mine->t->outputs[0], NULL);
        test_expected(mine->t, expected, 0, mine->a, NULL);
        mine->right += is_close(actual, expected);
        graph_result_release(&result);
    }
    return NULL;
}

static void replays_of_one_slot_asked_for_by_two_threads_run_one_after_the_other(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program first, second; /* in one arena: overlapping runs would spoil each other */
    const uint32_t rounds = fixture_is_short() ? 2 : 15;
    test_program_init_slow(&first, &f, NULL, 10);
    test_program_init_slow(&second, &f, NULL, 14);
    assert_ok(test_program_capture(&first, 0, NULL));
    assert_ok(test_program_capture(&second, 0, NULL));
    turn turns[2] = {{&first, a, rounds, 0}, {&second, b, rounds, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_turns, &turns[i]), 0);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    assert_int_equal(turns[0].right, rounds);
    assert_int_equal(turns[1].right, rounds);
    test_program_fini(&first), test_program_fini(&second);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void replays_begun_in_a_row_run_in_that_order(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *samples[GRAPH_PENDING_MAX + 1];
    for (uint32_t i = 0; i <= GRAPH_PENDING_MAX; i++) samples[i] = sample_create(&f, i + 1, NULL);
    test_program t;
    test_program_init_slow(&t, &f, NULL, 20);
    assert_ok(test_program_capture(&t, 0, NULL));
    graph_pending *pending[GRAPH_PENDING_MAX + 1];
    graph_handle handle;
    graph_result result;
    device_event *after[GRAPH_PENDING_MAX];
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        assert_ok(device_event_create(f.dev, &after[i], NULL));
        assert_ok(test_copy(&t, &handle, samples[i], NULL, NULL));
        assert_ok(graph_program_replay_begin(t.program, &pending[i], handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_ok(device_event_record(after[i], graph_slot_stream(f.slot), NULL));
        /* each looks at its own copy's events */
        for (uint32_t k = 0; k < i; k++) assert_true(pending[k]->event_index != pending[i]->event_index);
    }
    assert_ok(test_copy(&t, &handle, samples[GRAPH_PENDING_MAX], NULL, NULL));
    assert_status(
        graph_program_replay_begin(t.program, &pending[GRAPH_PENDING_MAX], handle, GRAPH_OUTPUT_OWNED, NULL),
        CKKS_FAILED_PRECONDITION); /* a bound on everything */
    uint64_t sum_ns = 0;
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) {
        assert_ok(graph_program_replay_finish(t.program, pending[i], &result, NULL));
        assert_result(&t, &result, samples[i], NULL);
        if (i > 0) sum_ns += result.replay_ns;
        graph_result_release(&result);
    }
    /* one after the other: from the end of the first to the end of the last there is room for all but the
     * first */
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) assert_ok(device_event_synchronize(after[i], NULL));
    assert_true(device_event_elapsed_ns(after[0], after[GRAPH_PENDING_MAX - 1]) >= sum_ns);
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_result(&t, &result, samples[GRAPH_PENDING_MAX], NULL);
    graph_result_release(&result);
    for (uint32_t i = 0; i < GRAPH_PENDING_MAX; i++) device_event_destroy(after[i]);
    test_program_fini(&t);
    for (uint32_t i = 0; i <= GRAPH_PENDING_MAX; i++) sample_destroy(samples[i]);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_beside_a_running_replay_does_not_disturb_it),
        cmocka_unit_test(every_source_gives_the_same_words),
        cmocka_unit_test(copy_waits_for_a_source_that_another_stream_makes),
        cmocka_unit_test(words_wait_for_the_staging_area),
        cmocka_unit_test(a_replay_is_finished_when_it_is_over),
        cmocka_unit_test(a_copy_that_breaks_has_let_go_of_its_source),
        cmocka_unit_test(a_drain_that_fails_has_waited),
        cmocka_unit_test(a_replay_that_breaks_has_let_go_of_its_result),
        cmocka_unit_test(device_words_of_the_programs_own_inputs_are_refused),
        cmocka_unit_test(replays_of_one_slot_asked_for_by_two_threads_run_one_after_the_other),
        cmocka_unit_test(replays_begun_in_a_row_run_in_that_order),
    };
    return program_suite("C7 overwrite protection, C8 sources, C9 serialisation", tests);
}
