/* C12: another key set is an ordered write of the key table; and what a key set must be. */
#include "kernels/program/graph_internal.h"
#include "tests/support/program_fixture.h"

#include "proto/packing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const graph_handle none;

static ckks_status copy_with(test_program *t, graph_handle *handle, sample *a, resident_keys *keys,
                             ckks_error *err) {
    const graph_input input = sample_packed(a);
    return graph_program_copy_inputs_from(t->program, handle, &input, 1, keys, err);
}

static void assert_decrypts(test_program *t, const graph_result *result, sample *a,
                            const secret_key *secret) {
    double actual[FIXTURE_SLOTS], expected[FIXTURE_SLOTS];
    fixture_decrypt(t->f, actual, result->outputs[0].words, &t->outputs[0], secret);
    test_expected(t, expected, 0, a, NULL);
    assert_close(actual, expected);
}

static void replay_in_flight_uses_the_old_keys_and_the_next_one_the_new(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    secret_key *other = fixture_secret_create(&f);
    sample *a = sample_create(&f, 1, NULL), *b = sample_create(&f, 2, other);
    test_program t;
    test_program_init_slow(&t, &f, NULL, 40);
    assert_ok(test_program_capture(&t, 0, NULL));
    bool was_in_flight = false;
    for (int round = 0; test_another_round(round, 5, was_in_flight); round++) {
        resident_keys *mine = fixture_keys_create(&f, f.secret), *theirs = fixture_keys_create(&f, other);
        graph_handle first_handle, second_handle;
        graph_pending *first = NULL, *second = NULL;
        graph_result one, two;
        assert_ok(copy_with(&t, &first_handle, a, mine, NULL));
        assert_ok(graph_program_replay_begin(t.program, &first, first_handle, GRAPH_OUTPUT_OWNED, NULL));
        assert_ok(copy_with(&t, &second_handle, b, theirs, NULL));
        was_in_flight |= !graph_pending_is_complete(first);
        assert_ok(graph_program_replay_begin(t.program, &second, second_handle, GRAPH_OUTPUT_OWNED, NULL));
        /* pinned: our references may go, and the variables may name other sets */
        resident_keys *const gone[2] = {mine, theirs};
        mine = theirs = f.keys;
        resident_keys_release(gone[0]), resident_keys_release(gone[1]);
        assert_ptr_equal(mine, theirs);
        assert_ok(graph_program_replay_finish(t.program, first, &one, NULL));
        assert_ok(graph_program_replay_finish(t.program, second, &two, NULL));
        assert_decrypts(&t, &one, a, f.secret);
        assert_decrypts(&t, &two, b, other);
        graph_result_release(&one), graph_result_release(&two);
    }
    test_program_fini(&t);
    sample_destroy(a), sample_destroy(b);
    secret_key_destroy(other);
    program_fixture_close(&f);
}

static void switching_keys_records_nothing_anew(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    resident_keys *fresh = fixture_keys_create(&f, f.secret);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_result result, other;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    const uint32_t calls = t.calls;
    assert_ok(copy_with(&t, &handle, a, f.keys, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_ok(copy_with(&t, &handle, a, fresh, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &other, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_int_equal(t.calls, calls);
    assert_decrypts(&t, &result, a, NULL);
    assert_decrypts(&t, &other, a, NULL);
    /* the same message through other keys: the table was really switched */
    assert_memory_not_equal(result.outputs[0].words, other.outputs[0].words, t.outputs[0].bytes);
    graph_result_release(&result), graph_result_release(&other);
    test_program_fini(&t);
    resident_keys_release(fresh);
    sample_destroy(a);
    program_fixture_close(&f);
}

static void last_release_frees_a_key_set_once_no_replay_uses_it(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_pending *pending = NULL;
    graph_result result;
    test_program_init_slow(&t, &f, NULL, 30);
    assert_ok(test_program_capture(&t, 0, NULL));
    const memory_mark before = memory_mark_take(&f);
    resident_keys *keys = fixture_keys_create(&f, f.secret);
    device_memory_account with_keys, now;
    device_memory(f.dev, &with_keys);
    assert_ok(copy_with(&t, &handle, a, keys, NULL));
    assert_ok(graph_program_replay_begin(t.program, &pending, handle, GRAPH_OUTPUT_OWNED, NULL));
    resident_keys_release(keys);
    assert_ok(copy_with(&t, &handle, a, f.keys, NULL)); /* the payload lets go; the replay does not yet */
    device_memory(f.dev, &now);
    assert_int_equal(now.bytes_by_purpose[MEMORY_KEYS], with_keys.bytes_by_purpose[MEMORY_KEYS]);
    assert_ok(graph_program_replay_finish(t.program, pending, &result, NULL));
    assert_decrypts(&t, &result, a, NULL);
    graph_result_release(&result);
    device_memory(f.dev, &now);
    assert_int_equal(now.bytes_by_purpose[MEMORY_KEYS], before.account.bytes_by_purpose[MEMORY_KEYS]);
    test_program_fini(&t);
    sample_destroy(a);
    program_fixture_close(&f);
}

/* ---- key sets ---- */

typedef struct raw_keys {
    packed_key keys[FIXTURE_KEYS];
    uint8_t seed[SEED_BYTES];
} raw_keys;

static void raw_keys_make(raw_keys *raw, program_fixture *f, const key_requirement *needs, uint32_t count) {
    memset(raw->seed, 3, sizeof raw->seed);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *words = malloc(key_seeded_word_count(f->params, &needs[i]) * 8);
        assert_ok(key_generate(words, f->secret, &needs[i], raw->seed, i, NULL));
        const uint64_t bytes = packing_key_bytes(f->params, &needs[i]);
        uint8_t *data = malloc(bytes);
        packing_pack(data, words, f->params, needs[i].level, needs[i].kind != KEY_PUBLIC,
                     needs[i].kind == KEY_PUBLIC ? 1 : params_digit_count(f->params, needs[i].level));
        free(words);
        raw->keys[i] = (packed_key){needs[i], data, bytes};
    }
}
static void raw_keys_free(raw_keys *raw, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) free((void *)(uintptr_t)raw->keys[i].packed);
}

static void upload_names_the_key_whose_residue_is_out_of_range(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    raw_keys raw;
    raw_keys_make(&raw, &f, fixture_requirements, FIXTURE_KEYS);
    const uint8_t *lineage = secret_key_lineage(f.secret);
    const memory_mark before = memory_mark_take(&f);
    for (uint32_t bad = 0; bad < FIXTURE_KEYS; bad++) {
        uint8_t *last = (uint8_t *)(uintptr_t)raw.keys[bad].packed + raw.keys[bad].packed_bytes - 16,
                kept[16];
        ckks_error err = {0};
        resident_keys *keys = NULL;
        char field[16];
        memcpy(kept, last, 16);
        memset(last, 0xff, 16);
        assert_status(
            resident_keys_upload(&keys, f.dev, f.context, raw.keys, FIXTURE_KEYS, raw.seed, lineage, &err),
            CKKS_RESIDUE_RANGE);
        snprintf(field, sizeof field, "key %u", bad);
        assert_string_equal(err.field, field);
        assert_memory_is(&f, &before);
        memcpy(last, kept, 16);
    }
    resident_keys *keys = NULL;
    assert_ok(resident_keys_upload(&keys, f.dev, f.context, raw.keys, FIXTURE_KEYS, raw.seed, lineage, NULL));
    resident_keys_release(keys);
    raw_keys_free(&raw, FIXTURE_KEYS);
    program_fixture_close(&f);
}

static void upload_refuses_what_no_key_can_be(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    raw_keys raw;
    raw_keys_make(&raw, &f, fixture_requirements, FIXTURE_KEYS);
    packed_key bad[9][FIXTURE_KEYS];
    for (int i = 0; i < 9; i++) memcpy(bad[i], raw.keys, sizeof raw.keys);
    bad[0][1].requirement.galois_element = 4;
    bad[1][1].requirement.galois_element = 1;
    bad[2][1].requirement.galois_element = 2 * f.n + 1;
    bad[3][1].requirement.level = FIXTURE_LEVEL + 1;
    bad[4][1].requirement.kind = 9;
    bad[5][1].packed_bytes -= 16;
    bad[6][1] = bad[6][0]; /* twice */
    bad[7][1].packed = NULL;
    bad[8][1].packed_bytes += 16;
    const memory_mark before = memory_mark_take(&f);
    for (int i = 0; i < 9; i++) {
        ckks_error err = {0};
        resident_keys *keys = NULL;
        assert_status(resident_keys_upload(&keys, f.dev, f.context, bad[i], FIXTURE_KEYS, raw.seed,
                                           secret_key_lineage(f.secret), &err),
                      CKKS_INVALID_ARGUMENT);
        assert_true(err.field[0] != 0);
        assert_memory_is(&f, &before);
    }
    raw_keys_free(&raw, FIXTURE_KEYS);
    program_fixture_close(&f);
}

/* The program asks for less than full level; the set has the key at full level. And the other way round. */
static void key_of_a_higher_level_serves_a_lower_requirement_and_not_the_reverse(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    key_requirement low[1] = {fixture_requirements[1]};
    low[0].level = FIXTURE_LEVEL - 1;
    raw_keys raw;
    raw_keys_make(&raw, &f, low, 1);
    resident_keys *small = NULL;
    assert_ok(resident_keys_upload(&small, f.dev, f.context, raw.keys, 1, raw.seed,
                                   secret_key_lineage(f.secret), NULL));
    ckks_error err = {0};
    assert_ok(resident_keys_satisfy(f.keys, low, 1, NULL));
    assert_status(resident_keys_satisfy(small, fixture_requirements + 1, 1, &err), CKKS_KEY_MISSING);
    assert_string_equal(err.field, "galois element 5");
    /* the program needs level 2: the copy is refused and changes nothing */
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    assert_works(&t, a, NULL);
    assert_status(copy_with(&t, &handle, a, small, NULL), CKKS_KEY_MISSING);
    assert_status(copy_with(&t, &handle, a, NULL, NULL), CKKS_KEY_MISSING);
    graph_result result;
    assert_ok(graph_program_replay_prepared(t.program, &result, none, GRAPH_OUTPUT_OWNED, NULL));
    assert_decrypts(&t, &result, a, NULL);
    graph_result_release(&result);
    test_program_fini(&t);
    sample_destroy(a);
    resident_keys_release(small);
    raw_keys_free(&raw, 1);
    program_fixture_close(&f);
}

typedef struct upload_run {
    raw_keys raw;
    uint32_t refused;
} upload_run;

static void upload_or_nothing(void *context, program_fixture *f) {
    upload_run *run = context;
    resident_keys *keys = NULL;
    const memory_mark before = memory_mark_take(f);
    fault_on(f);
    const ckks_status rc = resident_keys_upload(&keys, f->dev, f->context, run->raw.keys, FIXTURE_KEYS,
                                                run->raw.seed, secret_key_lineage(f->secret), NULL);
    fault_off(f);
    if (rc != CKKS_OK) {
        run->refused++;
        assert_true(rc == CKKS_DEVICE_ERROR || rc == CKKS_RESOURCE_EXHAUSTED);
        assert_null(keys);
    }
    resident_keys_release(keys);
    assert_memory_is(f, &before);
}

static void upload_gives_everything_back_whatever_fails(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    upload_run run = {0};
    raw_keys_make(&run.raw, &f, fixture_requirements, FIXTURE_KEYS);
    fault_each(&f, FAULT_CALL, upload_or_nothing, &run);
    fault_each(&f, FAULT_ASYNCHRONOUS, upload_or_nothing, &run);
    fault_each(&f, FAULT_ALLOCATION, upload_or_nothing, &run);
    assert_true(run.refused > fault_count(40));
    raw_keys_free(&run.raw, FIXTURE_KEYS);
    program_fixture_close(&f);
}

/* ---- one after another, in memory that was another set's ---- */

typedef struct key_feed {
    const raw_keys *raw;
    uint32_t asked, ends_at;
    uint8_t buffer[1 << 16];
} key_feed;

/* every key in the same buffer */
static ckks_status feed(void *source, uint32_t index, packed_key *out, ckks_error *err) {
    key_feed *k = source;
    assert_int_equal(index, k->asked);
    k->asked++;
    if (index == k->ends_at) return ckks_error_set(err, CKKS_IO, "feed", "no more");
    *out = k->raw->keys[index];
    assert_true(out->packed_bytes <= sizeof k->buffer);
    memcpy(k->buffer, out->packed, out->packed_bytes);
    out->packed = k->buffer;
    return CKKS_OK;
}

static void keys_that_come_one_by_one_take_over_the_memory_of_others(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    raw_keys raw;
    raw_keys_make(&raw, &f, fixture_requirements, FIXTURE_KEYS);
    const uint8_t *lineage = secret_key_lineage(f.secret);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_result result;
    device_memory_account first, second;
    key_feed source = {.raw = &raw, .ends_at = FIXTURE_KEYS};
    resident_keys_config config = {.requirements = fixture_requirements,
                                   .count = FIXTURE_KEYS,
                                   .lineage = lineage,
                                   .seed = raw.seed,
                                   .pack = feed,
                                   .source = &source};
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    const memory_mark before = memory_mark_take(&f);
    resident_keys *keys = fixture_keys_create(&f, f.secret);
    device_memory(f.dev, &first);
    config.storage = keys;
    assert_ok(resident_keys_pack(&keys, f.dev, f.context, &config, NULL));
    assert_int_equal(source.asked, FIXTURE_KEYS);
    device_memory(f.dev, &second);
    assert_int_equal(second.allocation_count, first.allocation_count);
    assert_int_equal(second.bytes_by_purpose[MEMORY_KEYS], first.bytes_by_purpose[MEMORY_KEYS]);
    assert_ok(copy_with(&t, &handle, a, keys, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_decrypts(&t, &result, a, NULL);
    graph_result_release(&result);
    assert_ok(graph_program_drop_payload(t.program, NULL));
    /* fewer keys, and a feed that ends early: nothing of either set stays */
    source.asked = 0;
    config.storage = keys, config.count = 1;
    assert_ok(resident_keys_pack(&keys, f.dev, f.context, &config, NULL));
    device_memory(f.dev, &second);
    assert_true(second.allocation_count < first.allocation_count);
    source.asked = 0, source.ends_at = 1;
    config.storage = keys, config.count = FIXTURE_KEYS;
    assert_status(resident_keys_pack(&keys, f.dev, f.context, &config, NULL), CKKS_IO);
    assert_memory_is(&f, &before);
    test_program_fini(&t);
    sample_destroy(a);
    raw_keys_free(&raw, FIXTURE_KEYS);
    program_fixture_close(&f);
}

/* What is taken over must be as large; what is refused is consumed too. */
static void memory_taken_over_is_of_the_right_size(void **state) {
    (void)state;
    program_fixture f;
    program_fixture_open(&f);
    key_requirement reversed[FIXTURE_KEYS];
    for (uint32_t i = 0; i < FIXTURE_KEYS; i++) reversed[i] = fixture_requirements[FIXTURE_KEYS - 1 - i];
    raw_keys raw;
    raw_keys_make(&raw, &f, reversed, FIXTURE_KEYS);
    sample *a = sample_create(&f, 1, NULL);
    test_program t;
    graph_handle handle;
    graph_result result;
    key_feed source = {.raw = &raw, .ends_at = FIXTURE_KEYS};
    resident_keys_config config = {.requirements = reversed,
                                   .count = FIXTURE_KEYS,
                                   .lineage = secret_key_lineage(f.secret),
                                   .seed = raw.seed,
                                   .pack = feed,
                                   .source = &source};
    resident_keys *keys = NULL;
    test_program_start(&t, &f, NULL, PROGRAM_ROTATE);
    const memory_mark before = memory_mark_take(&f);
    config.storage = fixture_keys_create(&f, f.secret); /* its first is the set's last, and larger */
    assert_ok(resident_keys_pack(&keys, f.dev, f.context, &config, NULL));
    for (uint32_t i = 0; i < FIXTURE_KEYS; i++)
        assert_ok(resident_keys_satisfy(keys, &fixture_requirements[i], 1, NULL));
    assert_ok(copy_with(&t, &handle, a, keys, NULL));
    assert_ok(graph_program_replay_prepared(t.program, &result, handle, GRAPH_OUTPUT_OWNED, NULL));
    assert_decrypts(&t, &result, a, NULL);
    graph_result_release(&result);
    assert_ok(graph_program_drop_payload(t.program, NULL));
    for (int which = 0; which < 4; which++) {
        resident_keys_config bad = config;
        resident_keys *refused = NULL;
        bad.storage = which == 0 ? keys : fixture_keys_create(&f, f.secret);
        if (which == 0) bad.seed = NULL;
        if (which == 1) bad.pack = NULL;
        if (which == 2) bad.count = 0;
        if (which == 3) bad.lineage = NULL;
        assert_status(resident_keys_pack(&refused, f.dev, f.context, &bad, NULL), CKKS_INVALID_ARGUMENT);
        assert_null(refused);
        assert_memory_is(&f, &before);
        bad.storage = fixture_keys_create(&f, f.secret);
        bad.fill = NULL;
        assert_status(resident_keys_fill(&refused, f.dev, f.context, &bad, NULL), CKKS_INVALID_ARGUMENT);
        assert_memory_is(&f, &before);
    }
    test_program_fini(&t);
    sample_destroy(a);
    raw_keys_free(&raw, FIXTURE_KEYS);
    program_fixture_close(&f);
}

/* A key that a program was captured with is nobody's by then: the table must not lead to it. */
static void capture_leaves_no_key_in_the_table(void **state) {
    (void)state;
    static const key_table_entry absent[FIXTURE_KEYS];
    key_table_entry entries[FIXTURE_KEYS];
    program_fixture f;
    program_fixture_open(&f);
    test_program t;
    test_program_start(&t, &f, NULL, PROGRAM_MULTIPLY);
    const uint64_t bytes = t.config.key_count * sizeof entries[0];
    memset(entries, 1, sizeof entries);
    assert_ok(device_copy_out(f.stream, entries, t.program->memory.key_table, bytes, NULL));
    assert_ok(device_stream_synchronize(f.stream, NULL));
    assert_memory_equal(entries, absent, bytes);
    test_program_fini(&t);
    program_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay_in_flight_uses_the_old_keys_and_the_next_one_the_new),
        cmocka_unit_test(switching_keys_records_nothing_anew),
        cmocka_unit_test(last_release_frees_a_key_set_once_no_replay_uses_it),
        cmocka_unit_test(upload_names_the_key_whose_residue_is_out_of_range),
        cmocka_unit_test(upload_refuses_what_no_key_can_be),
        cmocka_unit_test(key_of_a_higher_level_serves_a_lower_requirement_and_not_the_reverse),
        cmocka_unit_test(upload_gives_everything_back_whatever_fails),
        cmocka_unit_test(keys_that_come_one_by_one_take_over_the_memory_of_others),
        cmocka_unit_test(memory_taken_over_is_of_the_right_size),
        cmocka_unit_test(capture_leaves_no_key_in_the_table),
    };
    return program_suite("C12 key switch", tests);
}
