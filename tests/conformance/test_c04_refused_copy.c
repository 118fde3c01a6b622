/*
 * C4: a copy that the host refuses changes nothing; one that the device's verdict refuses voids its reply and
 * leaves the payload poisoned until a full good copy; one that the device breaks leaves one of the stated
 * states.
 */
#include "tests/support/program_fixture.h"

#include <stdlib.h>
#include <string.h>

/* ---- refused by the host ---- */

static void host_refusal_leaves_payload_and_handle_as_they_were(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL), *c = sample_create(&f, 3, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    graph_handle handle, none = {0};
    graph_result result;
    assert_works(&t, a, b); /* held */

    graph_input bad[8][2];
    for (int i = 0; i < 8; i++) bad[i][0] = sample_packed(b), bad[i][1] = sample_packed(c);
    bad[0][1].bytes -= 16;
    bad[1][1].bytes += 16;
    bad[2][1].data = NULL;
    bad[3][1].seed = NULL;
    bad[4][1].source = (graph_source)9;
    bad[5][1].is_seeded = false; /* the bytes are of one component */
    bad[6][1].signature.limb_count--;
    bad[7][1].lineage[LINEAGE_BYTES - 1] ^= 1;
    for (int i = 0; i < 8; i++) {
        ckks_error err = {0};
        assert_true(graph_program_copy_inputs_from(t.program, &handle, bad[i], 2, f.keys, &err) != CKKS_OK);
        assert_true(err.field[0] != 0);
        assert_true(graph_program_copy_inputs_from(t.program, &handle, bad[i], 1, f.keys, NULL) ==
                    CKKS_INVALID_ARGUMENT);
        assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_READY);
        assert_ok(graph_program_replay_prepared(t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL));
        assert_result(&t, &result, a, b);
        graph_result_release(&result);
        /* replay is both steps: it too must not get anywhere */
        assert_true(graph_program_replay(t.program, &result, bad[i], 2, f.keys, GRAPH_OUTPUT_OWNED, NULL) !=
                    CKKS_OK);
    }
    /* the same with a handle outstanding */
    assert_ok(test_copy(&t, &handle, b, c, NULL));
    for (int i = 0; i < 8; i++) {
        graph_handle other = {77, 77};
        assert_true(graph_program_copy_inputs_from(t.program, &other, bad[i], 2, f.keys, NULL) != CKKS_OK);
        assert_int_equal(other.sequence, 77);
        assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_PREPARED);
    }
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_result(&t, &result, b, c);
    graph_result_release(&result);
    graph_program_stats stats;
    graph_program_get_stats(t.program, &stats);
    assert_int_equal(stats.superseded_copies, 0);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b), sample_destroy(c);
    program_fixture_close(&f);
}

static void pageable_words_out_of_range_are_refused_by_the_host(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    assert_works(&t, a, b);
    graph_input inputs[2] = {sample_input(a, GRAPH_SOURCE_WORDS_HOST, false),
                             sample_input(b, GRAPH_SOURCE_WORDS_HOST, false)};
    const uint64_t at = 4 * (uint64_t)f.n + 17, kept = b->words[at];
    b->words[at] = f.params->prime[1]; /* component 1, limb 1 */
    ckks_error err = {0};
    graph_handle handle;
    assert_status(graph_program_copy_inputs_from(t.program, &handle, inputs, 2, f.keys, &err),
                  CKKS_RESIDUE_RANGE);
    assert_string_equal(err.field, "input 1");
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_READY);
    b->words[at] = kept;
    assert_ok(graph_program_copy_inputs_from(t.program, &handle, inputs, 2, f.keys, NULL));
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* Wherever they are: a word is read as one. */
static void words_that_are_not_aligned_are_refused(void **state) {
    (void)state;
    static const graph_source sources[] = {GRAPH_SOURCE_WORDS_HOST, GRAPH_SOURCE_WORDS_PINNED,
                                           GRAPH_SOURCE_WORDS_DEVICE};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++)
        for (uint32_t off = 1; off < 8; off++) {
            graph_input inputs[2] = {sample_input(a, sources[i], false), sample_input(b, sources[i], false)};
            graph_handle handle;
            ckks_error err = {0};
            inputs[1].data = (const uint8_t *)inputs[1].data + off;
            assert_status(graph_program_copy_inputs_from(t.program, &handle, inputs, 2, f.keys, &err),
                          CKKS_INVALID_ARGUMENT);
            assert_string_equal(err.field, "input 1");
            assert_string_equal(err.message, "the words are not aligned");
        }
    assert_works(&t, a, b);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- refused by the device ---- */

/* limb i of component 0 starts there */
static uint8_t *packed_limb(const program_fixture *f, sample *s, uint32_t limb) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < limb; i++)
        at += f->n * (64u - (uint64_t)__builtin_clzll(f->params->prime[i])) / 8;
    return s->packed + at;
}

static void bad_residue(const program_fixture *f, sample *s) {
    memset(packed_limb(f, s, 1), 0xff, 16); /* above every modulus */
}
static void last_residue_is_the_modulus(const program_fixture *f, sample *s) {
    const uint64_t q = f->params->prime[FIXTURE_LEVEL];
    const uint32_t bits = 64u - (uint32_t)__builtin_clzll(q);
    uint8_t *limb = packed_limb(f, s, FIXTURE_LEVEL);
    for (uint32_t bit = 0; bit < bits; bit++) {
        const uint64_t at = (uint64_t)(f->n - 1) * bits + bit;
        limb[at / 8] = (uint8_t)((limb[at / 8] & ~(1u << at % 8)) | (unsigned)(q >> bit & 1) << at % 8);
    }
}
static void zero_second_component(const program_fixture *f, sample *s) {
    (void)f;
    memset(s->packed + s->packed_bytes / 2, 0, s->packed_bytes / 2);
}

static void verdict_voids_the_reply_and_poisons_until_a_good_copy(void **state) {
    (void)state;
    static const struct {
        void (*spoil)(const program_fixture *f, sample *s);
        bool is_seeded;
    } cases[] = {{bad_residue, true},
                 {bad_residue, false},
                 {last_residue_is_the_modulus, true},
                 {zero_second_component, false}};
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    assert_works(&t, a, b);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sample *bad = sample_create(&f, 3, NULL);
        cases[i].spoil(&f, bad);
        const graph_input inputs[2] = {sample_packed(a),
                                       sample_input(bad, GRAPH_SOURCE_PACKED_HOST, cases[i].is_seeded)};
        graph_handle handle, none = {0};
        graph_result result = {0};
        ckks_error err = {0};
        assert_ok(graph_program_copy_inputs_from(t.program, &handle, inputs, 2, f.keys, NULL));
        assert_status(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, &err),
                      CKKS_RESIDUE_RANGE);
        assert_string_equal(err.field, "input 1");
        assert_null(result.internal); /* no words of a void reply get out */
        assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_POISONED);
        assert_status(graph_program_replay_prepared(t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL),
                      CKKS_PAYLOAD_POISONED);
        assert_status(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL),
                      CKKS_PAYLOAD_POISONED);
        assert_works(&t, a, b);
        sample_destroy(bad);
    }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

/* ---- entries of a batch ---- */

#define BATCH 3u

static ckks_status pass(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                        ckks_error *err) {
    const program_fixture *f = context;
    const uint32_t components = in[0].signature.batch_count * in[0].signature.component_count;
    const kernel_basis basis = {0, FIXTURE_LEVEL + 1, 0};
    const kernel_unary_args args = {
        .tables = f->tables,
        .out = {region->outputs[0].words, components, FIXTURE_LEVEL + 1, basis},
        .a = {in[0].words, components, FIXTURE_LEVEL + 1, basis},
    };
    (void)count;
    const ckks_status rc = device_launch(region->evaluator->stream, KERNEL_COPY, &args, err);
    return rc == CKKS_OK ? graph_region_output(region, 0, &region->outputs[0], err) : rc;
}

/* A program that passes its one input on. The caller destroys both. */
static graph_program *pass_program(workspace_plan **plan, program_fixture *f,
                                   const value_signature *signature) {
    graph_program_config config = {.context = f->context,
                                   .tables = f->tables,
                                   .callable = pass,
                                   .callable_context = f,
                                   .inputs = signature,
                                   .input_count = 1,
                                   .outputs = signature,
                                   .output_count = 1};
    graph_program *program = NULL;
    assert_ok(graph_plan_workspace(plan, f->dev, &config, NULL));
    config.workspace = *plan;
    assert_ok(graph_program_create(&program, f->slot, &config, NULL));
    return program;
}

/* Whole ciphertexts in one input: none of them may be a message in the clear. */
static void every_entry_of_a_batch_is_looked_at(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    value_signature signature = a->signature;
    signature.batch_count = BATCH;
    signature.bytes *= BATCH;
    workspace_plan *plan = NULL;
    graph_program *program = pass_program(&plan, &f, &signature);
    ckks_value example = {.signature = signature};
    uint64_t *words = NULL;
    assert_ok(device_allocate(f.dev, (void **)&words, signature.bytes, MEMORY_STATIC, NULL));
    example.words = words;
    for (uint32_t i = 0; i < BATCH; i++)
        assert_ok(
            device_copy_in(f.stream, words + i * a->signature.bytes / 8, a->words, a->signature.bytes, NULL));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_ok(graph_program_capture(program, 0, &example, NULL, NULL));
    uint8_t *packed = malloc((size_t)(BATCH * a->packed_bytes));
    assert_non_null(packed);
    graph_input input = sample_input(a, GRAPH_SOURCE_PACKED_HOST, false);
    input.signature = signature, input.data = packed, input.bytes = BATCH * a->packed_bytes;
    for (uint32_t clear = 0; clear <= BATCH; clear++) { /* BATCH: none is in the clear */
        graph_result result = {0};
        ckks_error err = {0};
        for (uint32_t i = 0; i < BATCH; i++) memcpy(packed + i * a->packed_bytes, a->packed, a->packed_bytes);
        if (clear < BATCH)
            memset(packed + clear * a->packed_bytes + a->packed_bytes / 2, 0, (size_t)a->packed_bytes / 2);
        assert_status(graph_program_replay(program, &result, &input, 1, NULL, GRAPH_OUTPUT_OWNED, &err),
                      clear < BATCH ? CKKS_RESIDUE_RANGE : CKKS_OK);
        if (clear < BATCH) assert_string_equal(err.message, "the second component is zero");
        graph_result_release(&result);
    }
    free(packed);
    graph_program_destroy(program);
    workspace_plan_destroy(plan);
    device_free(f.dev, words);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* Of three components nobody would write the third: what another request left would be in it. */
static void a_seed_stands_for_the_second_of_two_components_alone(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    for (uint32_t components = 1; components <= 3; components++) {
        value_signature signature = a->signature;
        signature.component_count = components;
        signature.bytes = a->signature.bytes / 2 * components;
        workspace_plan *plan = NULL;
        graph_program *program = pass_program(&plan, &f, &signature);
        graph_handle handle;
        ckks_error err = {0};
        void *words = NULL;
        assert_ok(device_allocate(f.dev, &words, signature.bytes, MEMORY_STATIC, NULL));
        assert_ok(device_fill(f.stream, words, 0, signature.bytes, NULL));
        assert_ok(device_stream_synchronize(f.stream, NULL));
        const ckks_value example = {signature, words};
        assert_ok(graph_program_capture(program, 0, &example, NULL, NULL));
        graph_input input = sample_input(a, GRAPH_SOURCE_PACKED_HOST, true);
        input.signature = signature;
        assert_status(graph_program_copy_inputs_from(program, &handle, &input, 1, NULL, &err),
                      components == 2 ? CKKS_OK : CKKS_INVALID_ARGUMENT);
        if (components != 2) assert_string_equal(err.field, "input 0");
        graph_program_destroy(program);
        workspace_plan_destroy(plan);
        device_free(f.dev, words);
    }
    sample_destroy(a);
    program_fixture_close(&f);
}

static void verdict_of_a_replaced_payload_does_not_poison_the_new_one(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL),
           *bad = sample_create(&f, 3, NULL);
    bad_residue(&f, bad);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_ADD);
    graph_handle first, second;
    graph_pending *pending = NULL;
    graph_result result = {0};
    assert_ok(test_copy(&t, &first, bad, b, NULL));
    assert_ok(graph_program_replay_begin(t.program, &pending, first, GRAPH_OUTPUT_OWNED, NULL));
    assert_ok(test_copy(&t, &second, a, b, NULL));
    assert_status(graph_program_replay_finish(t.program, pending, &result, NULL), CKKS_RESIDUE_RANGE);
    assert_ok(graph_program_replay_prepared(t.program, &result, second, GRAPH_OUTPUT_OWNED, NULL));
    assert_result(&t, &result, a, b);
    graph_result_release(&result);
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b), sample_destroy(bad);
    program_fixture_close(&f);
}

static void any_packed_bytes_are_safe(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL),
           *noise = sample_create(&f, 3, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    prng r;
    prng_init(&r, 4);
    for (int round = 0; round < 20; round++) {
        for (uint64_t i = 0; i < noise->packed_bytes; i++) noise->packed[i] = (uint8_t)prng_u64(&r);
        graph_result result = {0};
        assert_status(test_replay(&t, &result, noise, b, NULL), CKKS_RESIDUE_RANGE);
        assert_works(&t, a, b);
    }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b), sample_destroy(noise);
    program_fixture_close(&f);
}

/* ---- broken by the device ---- */

typedef struct fault_run {
    test_program t;
    sample *a, *b, *c;
    uint32_t kept, poisoned, failed;
} fault_run;

/* Copies c over the held a, b with a fault somewhere, then looks where the program stands. */
static void copy_leaves_a_stated_state(void *context, program_fixture *f) {
    fault_run *run = context;
    test_program *t = &run->t;
    graph_handle handle = {0}, none = {0};
    graph_result result = {0};
    ckks_error err = {0};
    assert_works(t, run->a, run->b);
    fault_on(f);
    ckks_status rc = test_copy(t, &handle, run->c, run->b, &err);
    if (rc == CKKS_OK)
        rc = graph_program_replay_prepared(t->program, &result, handle, GRAPH_OUTPUT_OWNED, &err);
    fault_off(f);
    const graph_program_state state = graph_program_get_state(t->program);
    if (rc == CKKS_OK) {
        assert_result(t, &result, run->c, run->b);
        graph_result_release(&result);
        return;
    }
    assert_true(rc == CKKS_DEVICE_ERROR || rc == CKKS_RESOURCE_EXHAUSTED);
    assert_int_equal(err.code, rc);
    if (state == GRAPH_PROGRAM_FAILED) {
        run->failed++;
        assert_status(graph_program_replay_prepared(t->program, &result, none, GRAPH_OUTPUT_OWNED, NULL),
                      CKKS_DEVICE_ERROR);
        assert_status(test_copy(t, &handle, run->a, run->b, NULL), CKKS_DEVICE_ERROR);
        graph_program_stats stats;
        graph_program_get_stats(t->program, &stats);
        assert_int_equal(stats.input_bytes + stats.staging_bytes, 0);
        assert_ok(graph_slot_recover(f->slot, NULL));
        assert_ok(device_stream_recover(t->side, NULL));
        assert_ok(test_program_capture(t, 0, NULL));
    } else if (state == GRAPH_PROGRAM_POISONED) {
        run->poisoned++;
        assert_status(graph_program_replay_prepared(t->program, &result, none, GRAPH_OUTPUT_OWNED, NULL),
                      CKKS_PAYLOAD_POISONED);
    } else {
        /* untouched: the old payload, or the new one with its handle still good */
        run->kept++;
        assert_true(state == GRAPH_PROGRAM_READY || state == GRAPH_PROGRAM_PREPARED);
        assert_ok(graph_program_replay_prepared(t->program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_result(t, &result, handle.sequence != 0 ? run->c : run->a, run->b);
        graph_result_release(&result);
    }
    assert_works(t, run->a, run->b);
}

static void copy_with_faults(fault_mode mode) {
    program_fixture f;
    program_fixture_open(&f);
    fault_run run = {
        .a = sample_create(&f, 1, NULL), .b = sample_create(&f, 2, NULL), .c = sample_create(&f, 3, NULL)};
    test_program_start(&run.t, &f, NULL, PROGRAM_MULTIPLY);
    const uint32_t runs = fault_each(&f, mode, copy_leaves_a_stated_state, &run);
    print_message("payload kept %u, poisoned %u, program failed %u times\n", run.kept, run.poisoned,
                  run.failed);
    assert_true(run.kept + run.poisoned + run.failed > fault_count(5) || runs == 0);
    if (mode == FAULT_ASYNCHRONOUS) assert_true(run.failed > fault_count(5) || runs == 0);
    test_program_fini(&run.t);
    sample_destroy(run.a), sample_destroy(run.b), sample_destroy(run.c);
    program_fixture_close(&f);
}

static void copy_leaves_a_stated_state_whichever_device_call_fails(void **state) {
    (void)state;
    copy_with_faults(FAULT_CALL);
}
static void copy_leaves_a_stated_state_whichever_work_fails_on_its_stream(void **state) {
    (void)state;
    copy_with_faults(FAULT_ASYNCHRONOUS);
}
static void copy_leaves_a_stated_state_whichever_allocation_fails(void **state) {
    (void)state;
    copy_with_faults(FAULT_ALLOCATION);
}

/* What a slot did before it was recovered may have been dropped: nothing of it is believed. */
static void a_replay_begun_before_a_recovery_is_void(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result = {0};
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    assert_ok(test_copy(&t, &handle, a, NULL, NULL));
    assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_ok(graph_slot_recover(f.slot, NULL));
    assert_status(graph_program_replay_finish(t.program, pending, &result, NULL), CKKS_DEVICE_ERROR);
    assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_FAILED);
    assert_ok(test_program_capture(&t, 0, NULL));
    assert_works(&t, a, NULL);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void every_call_after_a_recovery_asks_for_a_capture(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_RANDOM);
    for (int which = 0; which < 6; which++) {
        graph_handle handle;
        graph_pending *pending = NULL;
        graph_result result = {0};
        if (which == 0 || which == 1) assert_ok(test_copy(&t, &handle, a, NULL, NULL));
        assert_ok(graph_slot_recover(f.slot, NULL));
        const ckks_status rc =
            which == 0   ? graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL)
            : which == 1 ? graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL)
            : which == 2 ? test_copy(&t, &handle, a, NULL, NULL)
            : which == 3 ? test_replay(&t, &result, a, NULL, NULL)
            : which == 4 ? graph_program_drop_payload(t.program, NULL)
                         : graph_program_reseed(t.program, NULL, NULL);
        assert_status(rc, CKKS_DEVICE_ERROR);
        assert_int_equal(graph_program_get_state(t.program), GRAPH_PROGRAM_FAILED);
        assert_ok(test_program_capture(&t, 0, NULL));
        assert_works(&t, a, NULL);
    }
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_refusal_leaves_payload_and_handle_as_they_were),
        cmocka_unit_test(pageable_words_out_of_range_are_refused_by_the_host),
        cmocka_unit_test(words_that_are_not_aligned_are_refused),
        cmocka_unit_test(verdict_voids_the_reply_and_poisons_until_a_good_copy),
        cmocka_unit_test(every_entry_of_a_batch_is_looked_at),
        cmocka_unit_test(a_seed_stands_for_the_second_of_two_components_alone),
        cmocka_unit_test(verdict_of_a_replaced_payload_does_not_poison_the_new_one),
        cmocka_unit_test(any_packed_bytes_are_safe),
        cmocka_unit_test(copy_leaves_a_stated_state_whichever_device_call_fails),
        cmocka_unit_test(copy_leaves_a_stated_state_whichever_work_fails_on_its_stream),
        cmocka_unit_test(copy_leaves_a_stated_state_whichever_allocation_fails),
        cmocka_unit_test(a_replay_begun_before_a_recovery_is_void),
        cmocka_unit_test(every_call_after_a_recovery_asks_for_a_capture),
    };
    return program_suite("C4 refused copies", tests);
}
