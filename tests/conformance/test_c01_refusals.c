/*
 * C1: what cannot be captured is refused with its own status, names its stage, and gives every byte back;
 * then a good callable can still be captured.
 */
#include "tests/support/program_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- callables with one thing wrong ---- */

typedef struct bad_callable {
    test_program t;
    const ckks_value *wrong; /* what the callable names or writes instead */
} bad_callable;

static ckks_status allocates(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                             ckks_error *err) {
    bad_callable *b = context;
    void *memory = NULL;
    const ckks_status rc = device_allocate(b->t.f->dev, &memory, 4096, MEMORY_ARENA, err);
    device_free(b->t.f->dev, memory);
    if (rc != CKKS_OK) return rc;
    return b->t.config.callable(&b->t, region, in, count, err);
}

/* does not even look at what the device answers */
static ckks_status allocates_and_ignores(void *context, graph_region *region, const ckks_value *in,
                                         uint32_t count, ckks_error *err) {
    bad_callable *b = context;
    void *memory = NULL;
    (void)device_allocate(b->t.f->dev, &memory, 4096, MEMORY_ARENA, NULL);
    device_free(b->t.f->dev, memory);
    return b->t.config.callable(&b->t, region, in, count, err);
}

static ckks_status waits(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                         ckks_error *err) {
    bad_callable *b = context;
    const ckks_status rc = b->t.config.callable(&b->t, region, in, count, err);
    return rc == CKKS_OK ? device_stream_synchronize(region->evaluator->stream, err) : rc;
}

static ckks_status names_wrong(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                               ckks_error *err) {
    bad_callable *b = context;
    (void)in, (void)count;
    return graph_region_output(region, 0, b->wrong, err);
}

static ckks_status names_an_input(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                                  ckks_error *err) {
    (void)context, (void)count;
    return graph_region_output(region, 0, &in[0], err);
}

static ckks_status names_nothing(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                                 ckks_error *err) {
    (void)context, (void)region, (void)in, (void)count, (void)err;
    return CKKS_OK;
}

static ckks_status names_twice(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                               ckks_error *err) {
    bad_callable *b = context;
    const ckks_status rc = b->t.config.callable(&b->t, region, in, count, err);
    return rc == CKKS_OK ? graph_region_output(region, 0, &region->outputs[0], err) : rc;
}

/* negates a value in place, then goes on */
static ckks_status writes(bad_callable *b, const ckks_value *value, graph_region *region,
                          const ckks_value *in, uint32_t count, ckks_error *err) {
    const kernel_poly poly = {value->words, 2, FIXTURE_LEVEL + 1, {0, FIXTURE_LEVEL + 1, 0}};
    const kernel_unary_args args = {b->t.f->tables, poly, poly};
    const ckks_status rc = device_launch(region->evaluator->stream, KERNEL_NEGATE, &args, err);
    return rc == CKKS_OK ? b->t.config.callable(&b->t, region, in, count, err) : rc;
}

static ckks_status writes_its_input(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                                    ckks_error *err) {
    return writes(context, &in[1], region, in, count, err);
}

static ckks_status writes_elsewhere(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                                    ckks_error *err) {
    bad_callable *b = context;
    return writes(b, b->wrong, region, in, count, err);
}

/* Only where it is recorded: no warm-up run shows it. From `before` bytes before its output's end on. */
static ckks_status fills_at_the_end(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                                    uint64_t before, uint64_t bytes, ckks_error *err) {
    bad_callable *b = context;
    device_stream *stream = region->evaluator->stream;
    const ckks_status rc = b->t.config.callable(&b->t, region, in, count, err);
    if (rc != CKKS_OK || !device_is_recording(stream)) return rc;
    uint8_t *end = (uint8_t *)region->outputs[0].words + region->outputs[0].signature.bytes;
    return device_fill(stream, end - before, 0, bytes, err);
}
static ckks_status writes_past_its_output(void *context, graph_region *region, const ckks_value *in,
                                          uint32_t count, ckks_error *err) {
    return fills_at_the_end(context, region, in, count, 8, 16, err);
}
static ckks_status records_another_last_word(void *context, graph_region *region, const ckks_value *in,
                                             uint32_t count, ckks_error *err) {
    return fills_at_the_end(context, region, in, count, 8, 8, err);
}
/* where the random state of a program that draws would be */
static ckks_status writes_behind_its_output(void *context, graph_region *region, const ckks_value *in,
                                            uint32_t count, ckks_error *err) {
    return fills_at_the_end(context, region, in, count, 0, 8, err);
}

static ckks_status gives_up(void *context, graph_region *region, const ckks_value *in, uint32_t count,
                            ckks_error *err) {
    (void)context, (void)region, (void)in, (void)count;
    return ckks_error_set(err, CKKS_PRECISION, "layer 3", "the first cause");
}

/* ---- the table ---- */

static void assert_capture_refused(program_fixture *f, graph_callable callable, const ckks_value *wrong,
                                   ckks_status expected, const char *stage) {
    bad_callable bad = {.wrong = wrong};
    ckks_error err = {0};
    sample *a = sample_create(f, 1, NULL), *b = sample_create(f, 2, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    test_program_init(&bad.t, f, NULL, PROGRAM_ADD);
    graph_program_config config = bad.t.config;
    config.callable = callable, config.callable_context = &bad;
    graph_program *program = NULL;
    assert_ok(graph_program_create(&program, f->slot, &config, NULL));
    const memory_mark before = memory_mark_take(f);
    assert_status(graph_program_capture(program, 2, examples, f->keys, &err), expected);
    assert_string_equal(ckks_status_name(err.code), ckks_status_name(expected));
    assert_string_equal(err.stage, stage);
    assert_memory_is(f, &before);
    assert_int_equal(graph_program_get_state(program), GRAPH_PROGRAM_CREATED);
    graph_program_destroy(program);
    /* nothing stays behind in the slot */
    assert_ok(test_program_capture(&bad.t, 0, NULL));
    assert_works(&bad.t, a, b);
    test_program_fini(&bad.t);
    sample_destroy(a), sample_destroy(b);
}

static void capture_refuses_what_a_recording_may_not_do(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *other = sample_create(&f, 3, NULL);
    const ckks_value on_device = sample_value(other), on_host = {other->signature, other->words};
    const struct {
        graph_callable callable;
        const ckks_value *wrong;
        ckks_status expected;
        const char *stage;
    } cases[] = {
        {allocates, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {allocates_and_ignores, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {waits, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {names_wrong, &on_host, CKKS_INVALID_ARGUMENT, "warmup"},
        {names_an_input, NULL, CKKS_ALIASING, "warmup"},
        {names_nothing, NULL, CKKS_INVALID_ARGUMENT, "warmup"},
        {names_twice, NULL, CKKS_INVALID_ARGUMENT, "warmup"},
        {writes_its_input, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {writes_elsewhere, &on_device, CKKS_RECORDING_VIOLATION, "capture"},
        {writes_past_its_output, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {writes_behind_its_output, NULL, CKKS_RECORDING_VIOLATION, "capture"},
        {records_another_last_word, NULL, CKKS_INTERNAL, "first replay"},
        {gives_up, NULL, CKKS_PRECISION, "warmup"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_capture_refused(&f, cases[i].callable, cases[i].wrong, cases[i].expected, cases[i].stage);
    sample_destroy(other);
    program_fixture_close(&f);
}

static void capture_keeps_the_first_cause(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_ADD);
    graph_program_config config = t.config;
    config.callable = gives_up;
    graph_program *program = NULL;
    assert_ok(graph_program_create(&program, f.slot, &config, NULL));
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    const ckks_value examples[2] = {sample_value(a), sample_value(b)};
    ckks_error err = {0};
    assert_status(graph_program_capture(program, 0, examples, f.keys, &err), CKKS_PRECISION);
    assert_string_equal(err.field, "layer 3");
    assert_string_equal(err.message, "the first cause");
    graph_program_destroy(program);
    sample_destroy(a), sample_destroy(b);
    test_program_fini(&t);
    program_fixture_close(&f);
}

/* ---- arguments ---- */

static void create_refuses_a_configuration_that_cannot_be_recorded(void **state) {
    (void)state;
    program_fixture f, second;
    program_fixture_open(&f);
    program_fixture_open_second(&second, &f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_ADD);
    value_signature elsewhere[2] = {t.inputs[0], t.inputs[1]};
    elsewhere[1].device = device_id(second.dev);
    value_signature on_host = t.outputs[0];
    on_host.device = 0;
    const memory_mark before = memory_mark_take(&f);
    graph_program_config bad[5];
    const char *fields[5] = {"callable", "inputs", "outputs", "input 1, device", "output 0, device"};
    for (int i = 0; i < 5; i++) bad[i] = t.config;
    bad[0].callable = NULL;
    bad[1].input_count = 0;
    bad[2].output_count = 0;
    bad[3].inputs = elsewhere;
    bad[4].outputs = &on_host;
    for (int i = 0; i < 5; i++) {
        ckks_error err = {0};
        graph_program *program = NULL;
        assert_status(graph_program_create(&program, f.slot, &bad[i], &err), CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.stage, "admission");
        assert_string_equal(err.field, fields[i]);
        assert_null(program);
    }
    assert_memory_is(&f, &before);
    test_program_fini(&t);
    program_fixture_close(&second);
    program_fixture_close(&f);
}

typedef void (*spoil)(value_signature *s);
#define SPOIL(name, statement)                                                                               \
    static void name(value_signature *s) {                                                                   \
        statement;                                                                                           \
    }
SPOIL(no_kind, s->kind = 0)
SPOIL(other_schema, s->schema_version++)
SPOIL(other_parameters, s->parameter_id[0] ^= 1)
SPOIL(no_component, s->component_count = 0)
SPOIL(four_components, s->component_count = 4)
SPOIL(no_batch, s->batch_count = 0)
SPOIL(huge_batch, s->batch_count = 65537)
SPOIL(no_limb, s->limb_count = 0)
SPOIL(limbs_beyond_q, s->limb_count = FIXTURE_LEVEL + 2)
SPOIL(no_domain, s->domain = 0)
SPOIL(no_basis, s->basis = 3)
SPOIL(scale_of_zero, s->scale = 0)
SPOIL(scale_not_a_number, s->scale = NAN)
SPOIL(scale_infinite, s->scale = INFINITY)
SPOIL(fewer_bytes, s->bytes -= 8)
SPOIL(more_bytes, s->bytes += 8)
SPOIL(bytes_of_one_component, s->component_count = 1)
SPOIL(bytes_without_p, s->basis = VALUE_BASIS_QP)
SPOIL(other_alignment, s->alignment = 8)

/* Recording freezes all of it: what is impossible is refused before there is a program. */
static void create_refuses_each_field_that_is_impossible(void **state) {
    (void)state;
    static const struct {
        spoil spoil;
        const char *field;
        ckks_status expected;
    } cases[] = {
        {no_kind, "kind", CKKS_INVALID_ARGUMENT},
        {other_schema, "schema_version", CKKS_UNSUPPORTED_VERSION},
        {other_parameters, "parameter_id", CKKS_PARAMS_MISMATCH},
        {no_component, "component_count", CKKS_INVALID_ARGUMENT},
        {four_components, "component_count", CKKS_INVALID_ARGUMENT},
        {no_batch, "batch_count", CKKS_INVALID_ARGUMENT},
        {huge_batch, "batch_count", CKKS_INVALID_ARGUMENT},
        {no_limb, "limb_count", CKKS_INVALID_ARGUMENT},
        {limbs_beyond_q, "limb_count", CKKS_INVALID_ARGUMENT},
        {no_domain, "domain", CKKS_INVALID_ARGUMENT},
        {no_basis, "basis", CKKS_INVALID_ARGUMENT},
        {scale_of_zero, "scale", CKKS_INVALID_ARGUMENT},
        {scale_not_a_number, "scale", CKKS_INVALID_ARGUMENT},
        {scale_infinite, "scale", CKKS_INVALID_ARGUMENT},
        {fewer_bytes, "bytes", CKKS_INVALID_ARGUMENT},
        {more_bytes, "bytes", CKKS_INVALID_ARGUMENT},
        {bytes_of_one_component, "bytes", CKKS_INVALID_ARGUMENT},
        {bytes_without_p, "bytes", CKKS_INVALID_ARGUMENT},
        {other_alignment, "alignment", CKKS_INVALID_ARGUMENT},
    };
    program_fixture f;
    program_fixture_open(&f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_ADD);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int is_output = 0; is_output < 2; is_output++) {
            value_signature inputs[2] = {t.inputs[0], t.inputs[1]}, output = t.outputs[0];
            graph_program_config config = t.config;
            graph_program *program = NULL;
            char field[64];
            ckks_error err = {0};
            cases[i].spoil(is_output ? &output : &inputs[1]);
            config.inputs = inputs, config.outputs = &output;
            snprintf(field, sizeof field, "%s, %s", is_output ? "output 0" : "input 1", cases[i].field);
            assert_status(graph_program_create(&program, f.slot, &config, &err), cases[i].expected);
            assert_string_equal(err.field, field);
            assert_null(program);
        }
    test_program_fini(&t);
    program_fixture_close(&f);
}

static void create_refuses_what_belongs_to_others(void **state) {
    (void)state;
    program_fixture f, second;
    program_fixture_open(&f);
    program_fixture_open_second(&second, &f);
    ckks_context *foreign = fixture_context(10, FIXTURE_LEVEL + 2, 1, 1);
    const device_tables *foreign_tables = NULL;
    assert_ok(device_tables_acquire(f.dev, &foreign_tables, foreign, NULL));
    binding_set *bindings = fixture_weights_create(&second, 1, 2);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_ADD);
    for (int which = 0; which < 3; which++) {
        static const char *const fields[3] = {"tables", "bindings", "keys"};
        graph_program_config config = t.config;
        graph_program *program = NULL;
        ckks_error err = {0};
        if (which == 0) config.tables = foreign_tables;
        if (which == 1) config.bindings = bindings;
        if (which == 2) config.keys = NULL, config.key_count = 1;
        assert_status(graph_program_create(&program, f.slot, &config, &err),
                      which == 0 ? CKKS_PARAMS_MISMATCH : CKKS_INVALID_ARGUMENT);
        assert_string_equal(err.field, fields[which]);
    }
    test_program_fini(&t);
    assert_ok(binding_set_destroy(bindings, NULL));
    device_tables_release(f.dev, foreign_tables);
    context_destroy(foreign);
    program_fixture_close(&second);
    program_fixture_close(&f);
}

static void capture_refuses_bad_examples(void **state) {
    (void)state;
    program_fixture f, second;
    program_fixture_open(&f);
    program_fixture_open_second(&second, &f);
    test_program t;
    test_program_init(&t, &f, NULL, PROGRAM_MULTIPLY);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL),
           *far = sample_create(&second, 3, NULL);
    const ckks_value here[2] = {sample_value(a), sample_value(b)};
    void *block = NULL;
    assert_ok(device_allocate(f.dev, &block, 2 * here[0].signature.bytes, MEMORY_RETAINED, NULL));
    ckks_value shared[2] = {here[0], here[0]},
               overlapping[2] = {{here[0].signature, block}, {here[1].signature, block}},
               away[2] = {here[0], sample_value(far)};
    overlapping[1].words += 8;                 /* by some words */
    ckks_value hidden[2] = {here[0], away[1]}; /* says it is here and is not */
    hidden[1].signature.device = here[0].signature.device;
    ckks_value on_host[2] = {here[0], {here[1].signature, b->words}};
    const memory_mark before = memory_mark_take(&f);
    const struct {
        int32_t warmup;
        const ckks_value *examples;
        resident_keys *keys;
        ckks_status expected;
        const char *field;
    } cases[] = {
        {-1, here, f.keys, CKKS_INVALID_ARGUMENT, "warmup"},
        {0, NULL, f.keys, CKKS_INVALID_ARGUMENT, "inputs"},
        {0, shared, f.keys, CKKS_ALIASING, "input 1"},
        {0, overlapping, f.keys, CKKS_ALIASING, "input 1"},
        {0, away, f.keys, CKKS_SIGNATURE_MISMATCH, "device"},
        {0, hidden, f.keys, CKKS_INVALID_ARGUMENT, "input 1"},
        {0, on_host, f.keys, CKKS_INVALID_ARGUMENT, "input 1"},
        {0, here, NULL, CKKS_KEY_MISSING, "keys"},
        {0, here, second.keys, CKKS_INVALID_ARGUMENT, "keys"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ckks_error err = {0};
        assert_status(
            graph_program_capture(t.program, cases[i].warmup, cases[i].examples, cases[i].keys, &err),
            cases[i].expected);
        assert_string_equal(err.stage, "admission");
        assert_string_equal(err.field, cases[i].field);
        assert_memory_is(&f, &before);
    }
    assert_ok(graph_program_capture(t.program, 1, here, f.keys, NULL));
    assert_works(&t, a, b);
    /* once is enough */
    assert_status(graph_program_capture(t.program, 1, here, f.keys, NULL), CKKS_FAILED_PRECONDITION);
    assert_works(&t, a, b);
    test_program_fini(&t);
    device_free(f.dev, block);
    sample_destroy(a), sample_destroy(b), sample_destroy(far);
    program_fixture_close(&second);
    program_fixture_close(&f);
}

/* ---- and with the device failing under it ---- */

typedef struct fault_run {
    test_program t; /* configured: each run creates its own program */
    ckks_value examples[2];
    uint32_t refused;
} fault_run;

static void capture_or_nothing(void *context, program_fixture *f) {
    fault_run *run = context;
    ckks_error err = {0};
    graph_program *program = NULL;
    const memory_mark before = memory_mark_take(f);
    fault_on(f);
    ckks_status rc = graph_program_create(&program, f->slot, &run->t.config, &err);
    if (rc == CKKS_OK) rc = graph_program_capture(program, 1, run->examples, f->keys, &err);
    const bool is_refused = rc != CKKS_OK;
    const graph_program_state state = is_refused && program != NULL ? graph_program_get_state(program) : 0;
    fault_off(f);
    if (is_refused) {
        run->refused++;
        assert_true(rc == CKKS_DEVICE_ERROR || rc == CKKS_RESOURCE_EXHAUSTED);
        assert_int_equal(err.code, rc);
        assert_true(err.stage[0] != 0);
        assert_memory_is(f, &before);
        if (program != NULL) assert_int_equal(state, GRAPH_PROGRAM_CREATED);
        /* the same program, once the slot is well again */
        assert_ok(graph_slot_recover(f->slot, NULL));
        assert_ok(device_stream_recover(run->t.side, NULL));
        if (program != NULL) assert_ok(graph_program_capture(program, 0, run->examples, f->keys, NULL));
    }
    graph_program_destroy(program);
    assert_memory_is(f, &before);
}

static void capture_with_faults(fault_mode mode) {
    program_fixture f;
    program_fixture_open(&f);
    fault_run run = {0};
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, NULL);
    run.examples[0] = sample_value(a), run.examples[1] = sample_value(b);
    test_program_init(&run.t, &f, NULL, PROGRAM_MULTIPLY);
    const uint32_t runs = fault_each(&f, mode, capture_or_nothing, &run);
    assert_true(run.refused > fault_count(20) || runs == 0);
    test_program_fini(&run.t);
    sample_destroy(a), sample_destroy(b);
    program_fixture_close(&f);
}

static void capture_gives_everything_back_whichever_device_call_fails(void **state) {
    (void)state;
    capture_with_faults(FAULT_CALL);
}

static void capture_gives_everything_back_whichever_work_fails_on_its_stream(void **state) {
    (void)state;
    capture_with_faults(FAULT_ASYNCHRONOUS);
}

static void capture_gives_everything_back_whichever_allocation_fails(void **state) {
    (void)state;
    capture_with_faults(FAULT_ALLOCATION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture_refuses_what_a_recording_may_not_do),
        cmocka_unit_test(capture_keeps_the_first_cause),
        cmocka_unit_test(create_refuses_a_configuration_that_cannot_be_recorded),
        cmocka_unit_test(create_refuses_each_field_that_is_impossible),
        cmocka_unit_test(create_refuses_what_belongs_to_others),
        cmocka_unit_test(capture_refuses_bad_examples),
        cmocka_unit_test(capture_gives_everything_back_whichever_device_call_fails),
        cmocka_unit_test(capture_gives_everything_back_whichever_work_fails_on_its_stream),
        cmocka_unit_test(capture_gives_everything_back_whichever_allocation_fails),
    };
    return program_suite("C1 refusals at capture", tests);
}
