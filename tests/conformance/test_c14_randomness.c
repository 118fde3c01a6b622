/*
 * C14: a random program never repeats itself. Its results are compared as digests of all words; the same
 * check is run on a program whose counter lives on the host, to show that it finds what it is there to find.
 */
#include "tests/support/program_fixture.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/program/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct digest {
    uint8_t bytes[SHA256_BYTES];
} digest;

static const graph_handle none;

static int compare_digests(const void *a, const void *b) {
    return memcmp(a, b, sizeof(digest));
}

/* how many of them occur for a second time; sorts */
static uint32_t count_repeats(digest *digests, uint32_t count) {
    uint32_t repeats = 0;
    qsort(digests, count, sizeof *digests, compare_digests);
    for (uint32_t i = 1; i < count; i++) repeats += compare_digests(&digests[i], &digests[i - 1]) == 0;
    return repeats;
}

static digest result_digest(const graph_result *result) {
    digest d;
    sha256(d.bytes, result->outputs[0].words, result->outputs[0].signature.bytes);
    return d;
}

/* ---- a callable that puts out the random stream itself ---- */

typedef struct stream_program {
    program_fixture *f;
    workspace_plan *plan;
    graph_program *program;
    graph_program_config config;
    value_signature input, output;
    const random_state *own; /* NULL: the program's; else drawn from at host_counter */
    uint64_t host_counter;
    bool counts_itself; /* the callable moves host_counter */
    uint64_t more;      /* blocks that it skips */
    bool draws_more_each_time;
    bool breaks_off; /* after the first of two draws */
} stream_program;

static ckks_status draw(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                        ckks_error *err) {
    stream_program *p = context;
    evaluator *ev = region->evaluator;
    (void)in, (void)count;
    uint64_t at = p->own != NULL ? p->host_counter : ev->random_blocks;
    kernel_poly out = {region->outputs[0].words, 1, FIXTURE_LEVEL + 1, {0, FIXTURE_LEVEL + 1, 0}};
    for (int c = 0; c < 2; c++) {
        const kernel_sample_args args = {.tables = p->f->tables,
                                         .out = out,
                                         .random = p->own != NULL ? p->own : ev->random,
                                         .block_offset = at,
                                         .kind = SAMPLE_TERNARY};
        const ckks_status rc = device_launch(ev->stream, KERNEL_SAMPLE, &args, err);
        if (rc != CKKS_OK) return rc;
        if (p->breaks_off) return ckks_error_set(err, CKKS_INTERNAL, "draw", "broken off");
        at += sample_block_count(SAMPLE_TERNARY, p->f->n);
        out.words += (uint64_t)(FIXTURE_LEVEL + 1) * p->f->n;
    }
    if (p->own == NULL)
        ev->random_blocks = at + (p->draws_more_each_time ? p->more++ : p->more);
    else if (p->counts_itself)
        p->host_counter = at;
    return graph_region_output(region, 0, &region->outputs[0], err);
}

static void stream_program_init(stream_program *p, program_fixture *f, const random_state *own,
                                bool is_eager) {
    *p = (stream_program){.f = f, .own = own};
    value_signature_ciphertext(&p->input, f->params, 2, FIXTURE_LEVEL, FIXTURE_SCALE, device_id(f->dev));
    p->output = p->input;
    p->config = (graph_program_config){.context = f->context,
                                       .tables = f->tables,
                                       .callable = draw,
                                       .callable_context = p,
                                       .inputs = &p->input,
                                       .input_count = 1,
                                       .outputs = &p->output,
                                       .output_count = 1,
                                       .uses_randomness = own == NULL,
                                       .execution_eager = is_eager};
    assert_ok(graph_plan_workspace(&p->plan, f->dev, &p->config, NULL));
    p->config.workspace = p->plan;
    assert_ok(graph_program_create(&p->program, f->slot, &p->config, NULL));
}
static void stream_program_fini(stream_program *p) {
    graph_program_destroy(p->program);
    workspace_plan_destroy(p->plan);
}

static ckks_status stream_program_capture(stream_program *p, sample *a) {
    const ckks_value example = sample_value(a);
    return graph_program_capture(p->program, 1, &example, NULL, NULL);
}

/* Replays `count` times; two digests each, of the two polynomials drawn. A caller with a counter of its own
 * moves it on before each replay. */
static void stream_program_draw(stream_program *p, sample *a, digest *digests, uint32_t count) {
    const uint64_t half = p->output.bytes / 2;
    for (uint32_t i = 0; i < count; i++) {
        const graph_input input = sample_packed(a);
        graph_result result;
        p->host_counter += 2 * sample_block_count(SAMPLE_TERNARY, p->f->n);
        assert_ok(graph_program_replay(p->program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, NULL));
        const uint8_t *words = (const uint8_t *)result.outputs[0].words;
        sha256(digests[2 * i].bytes, words, half);
        sha256(digests[2 * i + 1].bytes, words + half, half);
        graph_result_release(&result);
    }
}

/* ---- the tests ---- */

#define REPLAYS 1000u

static void thousand_replays_of_one_payload_all_differ_and_decrypt_to_the_same(void **state) {
    (void)state;
    static digest digests[REPLAYS];
    const uint32_t replays = fixture_is_short() ? 20 : REPLAYS;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    test_program_start(&t, &f, NULL, PROGRAM_RANDOM);
    assert_ok(test_copy(&t, &handle, a, NULL, NULL));
    for (uint32_t i = 0; i < replays; i++) {
        graph_result result;
        assert_ok(graph_program_replay_prepared(t.program, &result, i == 0 ? handle : none,
                                                GRAPH_OUTPUT_OWNED, NULL));
        digests[i] = result_digest(&result);
        assert_result(&t, &result, a, NULL);
        graph_result_release(&result);
    }
    assert_int_equal(count_repeats(digests, replays), 0);
    graph_program_stats stats;
    graph_program_get_stats(t.program, &stats);
    assert_int_equal(stats.replays, replays);
    assert_true(stats.random_blocks >= sample_block_count(SAMPLE_TERNARY, f.n));
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* A state on the device that nobody advances. */
static random_state *own_state_create(program_fixture *f) {
    void *own = NULL;
    random_state host = {.counter = 0};
    memset(host.key, 5, sizeof host.key);
    assert_ok(device_allocate(f->dev, &own, sizeof host, MEMORY_STATIC, NULL));
    assert_ok(device_copy_in(f->stream, own, &host, sizeof host, NULL));
    assert_ok(device_stream_synchronize(f->stream, NULL));
    return own;
}

/* The classic mistake: the caller counts on the host, the recording keeps the first value for ever. The check
 * that the good program passes must find it; run eagerly, the same callable is right. */
static void counter_on_the_host_repeats_under_replay_and_the_check_finds_it(void **state) {
    (void)state;
    digest digests[2 * 16];
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    random_state *own = own_state_create(&f);
    stream_program graph, eager, good;
    stream_program_init(&graph, &f, own, false);
    stream_program_init(&eager, &f, own, true);
    stream_program_init(&good, &f, NULL, false);
    assert_ok(stream_program_capture(&graph, a));
    assert_ok(stream_program_capture(&eager, a));
    assert_ok(stream_program_capture(&good, a));
    stream_program_draw(&graph, a, digests, 16);
    assert_int_equal(count_repeats(digests, 32), 30); /* two polynomials, again and again */
    stream_program_draw(&eager, a, digests, 16);
    assert_int_equal(count_repeats(digests, 32), 0);
    stream_program_draw(&good, a, digests, 16);
    assert_int_equal(count_repeats(digests, 32), 0);
    stream_program_fini(&graph), stream_program_fini(&eager), stream_program_fini(&good);
    device_free(f.dev, own);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* A callable that counts by itself does not get through capture: its recording is not what its eager run was.
 */
static void callable_that_counts_on_the_host_is_refused_at_the_first_replay(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    random_state *own = own_state_create(&f);
    const ckks_value example = sample_value(a);
    stream_program p;
    ckks_error err = {0};
    stream_program_init(&p, &f, own, false);
    p.counts_itself = true;
    assert_status(graph_program_capture(p.program, 0, &example, NULL, &err), CKKS_INTERNAL);
    assert_string_equal(err.stage, "first replay");
    assert_string_equal(err.field, "output 0");
    stream_program_fini(&p);
    device_free(f.dev, own);
    sample_destroy(a);
    program_fixture_close(&f);
}

#define DRAWS 16u

/* What the program prints when it is started with `draw`: digests of a fresh instance's stream. */
static int print_draws(void) {
    digest digests[2 * DRAWS];
    char text[2 * SHA256_BYTES + 1];
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    stream_program p;
    stream_program_init(&p, &f, NULL, false);
    if (stream_program_capture(&p, a) != CKKS_OK) return 1;
    stream_program_draw(&p, a, digests, DRAWS);
    for (uint32_t i = 0; i < 2 * DRAWS; i++) printf("%s\n", hex_encode(text, digests[i].bytes, SHA256_BYTES));
    stream_program_fini(&p);
    sample_destroy(a);
    program_fixture_close(&f);
    return 0;
}

static void draw_in_another_process(digest *digests) {
    char path[512] = {0}, command[600], line[128];
    assert_true(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    snprintf(command, sizeof command, "'%s' draw", path);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    for (uint32_t i = 0; i < 2 * DRAWS; i++) {
        assert_non_null(fgets(line, sizeof line, output));
        line[strcspn(line, "\n")] = 0;
        assert_true(hex_decode(digests[i].bytes, SHA256_BYTES, line));
    }
    assert_int_equal(pclose(output), 0);
}

static void instances_and_process_starts_share_no_stream_output(void **state) {
    (void)state;
    digest digests[4 * 2 * DRAWS];
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    for (uint32_t instance = 0; instance < 2; instance++) {
        stream_program p;
        stream_program_init(&p, &f, NULL, false);
        assert_ok(stream_program_capture(&p, a));
        stream_program_draw(&p, a, digests + instance * 2 * DRAWS, DRAWS);
        stream_program_fini(&p);
    }
    sample_destroy(a);
    program_fixture_close(&f);
    for (uint32_t process = 0; process < 2; process++)
        draw_in_another_process(digests + (2 + process) * 2 * DRAWS);
    assert_int_equal(count_repeats(digests, 4 * 2 * DRAWS), 0);
}

/* For the self test: a fixed key gives the same stream each time; a fresh one then never meets it again. */
static void fixed_key_repeats_and_a_fresh_one_does_not(void **state) {
    (void)state;
    digest digests[3 * 2 * DRAWS], copy[2 * DRAWS];
    const uint8_t fixed[32] = {1, 2, 3};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    stream_program p;
    stream_program_init(&p, &f, NULL, false);
    assert_ok(stream_program_capture(&p, a));
    assert_ok(graph_program_reseed(p.program, fixed, NULL));
    stream_program_draw(&p, a, digests, DRAWS);
    assert_ok(graph_program_reseed(p.program, fixed, NULL));
    stream_program_draw(&p, a, copy, DRAWS);
    assert_memory_equal(copy, digests, sizeof copy);
    for (uint32_t i = 1; i < 3; i++) {
        assert_ok(graph_program_reseed(p.program, NULL, NULL));
        stream_program_draw(&p, a, digests + i * 2 * DRAWS, DRAWS);
    }
    assert_int_equal(count_repeats(digests, 3 * 2 * DRAWS), 0);
    stream_program_fini(&p);
    /* a program that draws nothing has nothing to seed */
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    assert_status(graph_program_reseed(t.program, NULL, NULL), CKKS_FAILED_PRECONDITION);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void eager_execution_draws_as_the_recording_does(void **state) {
    (void)state;
    digest graph[2 * DRAWS], eager[2 * DRAWS];
    const uint8_t fixed[32] = {9};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    for (int is_eager = 0; is_eager < 2; is_eager++) {
        stream_program p;
        stream_program_init(&p, &f, NULL, is_eager);
        assert_ok(stream_program_capture(&p, a));
        assert_ok(graph_program_reseed(p.program, fixed, NULL));
        stream_program_draw(&p, a, is_eager ? eager : graph, DRAWS);
        stream_program_fini(&p);
    }
    assert_memory_equal(graph, eager, sizeof graph);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* The counter as the device left it is part of every reply: a run that moved it otherwise was another run. */
static void a_run_that_draws_otherwise_is_void(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    const graph_input input = sample_packed(a);
    stream_program p;
    graph_result result = {0};
    ckks_error err = {0};
    stream_program_init(&p, &f, NULL, true);
    assert_ok(stream_program_capture(&p, a));
    assert_ok(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, NULL));
    graph_result_release(&result);
    p.more = 1; /* from now on */
    assert_status(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, &err),
                  CKKS_INTERNAL);
    assert_string_equal(err.field, "random state");
    assert_int_equal(graph_program_get_state(p.program), GRAPH_PROGRAM_FAILED);
    assert_ok(stream_program_capture(&p, a));
    assert_ok(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, NULL));
    graph_result_release(&result);
    stream_program_fini(&p);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* What was drawn of the stream before is not known, and must not be drawn again: with the same key the
 * program would go on where it was. */
static void a_run_that_breaks_off_after_a_draw_ends_the_program(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    const graph_input input = sample_packed(a);
    stream_program p;
    graph_result result = {0};
    ckks_error err = {0};
    stream_program_init(&p, &f, NULL, true);
    assert_ok(stream_program_capture(&p, a));
    p.breaks_off = true;
    assert_status(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, &err),
                  CKKS_INTERNAL);
    assert_null(result.internal);
    assert_int_equal(graph_program_get_state(p.program), GRAPH_PROGRAM_FAILED);
    p.breaks_off = false;
    assert_status(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, NULL),
                  CKKS_DEVICE_ERROR);
    assert_ok(stream_program_capture(&p, a)); /* a fresh key */
    assert_ok(graph_program_replay(p.program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, NULL));
    graph_result_release(&result);
    stream_program_fini(&p);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* Capture counts too: each run of the callable must draw as much as the first, and so must its recording. */
static void a_callable_whose_runs_draw_otherwise_is_not_captured(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    const ckks_value example = sample_value(a);
    for (int32_t warmup = 0; warmup < 3; warmup++) {
        stream_program p;
        ckks_error err = {0};
        stream_program_init(&p, &f, NULL, false);
        p.draws_more_each_time = true;
        assert_status(graph_program_capture(p.program, warmup, &example, NULL, &err),
                      warmup ? CKKS_RECORDING_VIOLATION : CKKS_INTERNAL);
        assert_string_equal(err.stage, warmup ? "warmup" : "first replay");
        assert_string_equal(err.field, warmup ? "callable" : "random state");
        p.draws_more_each_time = false;
        assert_ok(graph_program_capture(p.program, warmup, &example, NULL, NULL));
        /* the counter is behind all that was drawn meanwhile */
        assert_int_equal(p.program->counter_next, p.program->blocks_per_run * ((uint64_t)warmup + 1));
        stream_program_fini(&p);
    }
    sample_destroy(a);
    program_fixture_close(&f);
}

/* ---- the key ---- */

static void stream_keys_do_not_stay_in_pinned_memory(void **state) {
    (void)state;
    static const uint8_t zero[sizeof(random_state)];
    const uint8_t fixed[32] = {7, 7, 7};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    stream_program p;
    stream_program_init(&p, &f, NULL, false);
    assert_ok(stream_program_capture(&p, a));
    assert_memory_equal(p.program->memory.host_block, zero, sizeof zero);
    assert_ok(graph_program_reseed(p.program, fixed, NULL));
    assert_memory_equal(p.program->memory.host_block, zero, sizeof zero);
    stream_program_fini(&p);
    sample_destroy(a);
    program_fixture_close(&f);
}

static uint64_t calls_to_close(stream_program *p) {
    device_fault_set(p->f->dev, 0, false); /* counts from here */
    graph_program_close(p->program);
    return device_fault_calls(p->f->dev);
}

/* Memory that was given back is not to be read; what can be seen is the one call that wipes the key. */
static void close_wipes_the_stream_key(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    random_state *own = own_state_create(&f);
    stream_program drawing, not_drawing;
    stream_program_init(&drawing, &f, NULL, false);
    stream_program_init(&not_drawing, &f, own, false);
    assert_ok(stream_program_capture(&drawing, a));
    assert_ok(stream_program_capture(&not_drawing, a));
    const uint64_t plain = calls_to_close(&not_drawing);
    assert_int_equal(calls_to_close(&drawing), plain + 1);
    stream_program_fini(&drawing), stream_program_fini(&not_drawing);
    device_free(f.dev, own);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* ---- broken by the device ---- */

typedef struct fault_run {
    test_program t;
    sample *a, *b;
    uint32_t kept, poisoned, failed;
} fault_run;

/* Puts a failed program right again, or says what else has become of it. */
static bool has_failed(fault_run *run, program_fixture *f) {
    if (graph_program_get_state(run->t.program) != GRAPH_PROGRAM_FAILED) return false;
    run->failed++;
    assert_ok(graph_slot_recover(f->slot, NULL));
    assert_ok(test_program_capture(&run->t, 0, NULL));
    return true;
}

/* After a replay that broke the stream goes on where the device is, and nobody has a handle of it. */
static void replay_leaves_a_stated_state(void *context, program_fixture *f) {
    fault_run *run = context;
    graph_result result = {0};
    assert_works(&run->t, run->a, NULL);
    fault_on(f);
    const ckks_status rc = test_replay(&run->t, &result, run->b, NULL, NULL);
    fault_off(f);
    if (rc == CKKS_OK) {
        assert_result(&run->t, &result, run->b, NULL);
        graph_result_release(&result);
    } else if (!has_failed(run, f)) {
        const bool is_poisoned = graph_program_get_state(run->t.program) == GRAPH_PROGRAM_POISONED;
        run->poisoned += is_poisoned, run->kept += !is_poisoned;
        if (!is_poisoned) assert_int_equal(graph_program_get_state(run->t.program), GRAPH_PROGRAM_READY);
        assert_status(graph_program_replay_prepared(run->t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL),
                      is_poisoned ? CKKS_PAYLOAD_POISONED : CKKS_OK);
        graph_result_release(&result);
    }
    assert_works(&run->t, run->a, NULL);
}

/* A key that may or may not have arrived could be a public one: the program is not used any more. */
static void reseed_leaves_a_stated_state(void *context, program_fixture *f) {
    fault_run *run = context;
    assert_works(&run->t, run->a, NULL);
    fault_on(f);
    const ckks_status rc = graph_program_reseed(run->t.program, NULL, NULL);
    fault_off(f);
    assert_int_equal(has_failed(run, f), rc != CKKS_OK);
    assert_works(&run->t, run->a, NULL);
}

static void break_everywhere(fault_scenario scenario) {
    program_fixture f;
    program_fixture_open(&f);
    fault_run run = {.a = sample_create(&f, 1, NULL), .b = sample_create(&f, 2, NULL)};
    test_program_start(&run.t, &f, NULL, PROGRAM_RANDOM);
    const uint32_t runs =
        fault_each(&f, FAULT_CALL, scenario, &run) + fault_each(&f, FAULT_ASYNCHRONOUS, scenario, &run);
    print_message("%u runs, payload kept %u, poisoned %u, program failed %u times\n", runs, run.kept,
                  run.poisoned, run.failed);
    assert_true(run.failed > fault_count(2) || runs == 0);
    test_program_fini(&run.t);
    sample_destroy(run.a), sample_destroy(run.b);
    program_fixture_close(&f);
}

static void a_random_replay_leaves_a_stated_state_whatever_fails(void **state) {
    (void)state;
    break_everywhere(replay_leaves_a_stated_state);
}
static void a_program_whose_key_is_not_known_is_not_used(void **state) {
    (void)state;
    break_everywhere(reseed_leaves_a_stated_state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thousand_replays_of_one_payload_all_differ_and_decrypt_to_the_same),
        cmocka_unit_test(counter_on_the_host_repeats_under_replay_and_the_check_finds_it),
        cmocka_unit_test(callable_that_counts_on_the_host_is_refused_at_the_first_replay),
        cmocka_unit_test(instances_and_process_starts_share_no_stream_output),
        cmocka_unit_test(fixed_key_repeats_and_a_fresh_one_does_not),
        cmocka_unit_test(eager_execution_draws_as_the_recording_does),
        cmocka_unit_test(a_run_that_draws_otherwise_is_void),
        cmocka_unit_test(a_run_that_breaks_off_after_a_draw_ends_the_program),
        cmocka_unit_test(a_callable_whose_runs_draw_otherwise_is_not_captured),
        cmocka_unit_test(stream_keys_do_not_stay_in_pinned_memory),
        cmocka_unit_test(close_wipes_the_stream_key),
        cmocka_unit_test(a_random_replay_leaves_a_stated_state_whatever_fails),
        cmocka_unit_test(a_program_whose_key_is_not_known_is_not_used),
    };
    if (argc > 1 && strcmp(argv[1], "draw") == 0) return print_draws();
    return program_suite("C14 randomness", tests);
}
