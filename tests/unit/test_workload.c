/*
 * Workloads: whole plans through a graph program under real keys, decrypted, against the clear-text
 * interpreter; digests of weights; the keyless self test.
 */
#include "kernels/program/workload.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/device_graph.h"
#include "kernels/device_internal.h"
#include "kernels/program/graph_internal.h"
#include "kernels/scheme/encoder.h"
#include "proto/packing.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/plan_fixture.h"
#include "tests/support/program_fixture.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 512u

/* ---- a workload with its device, slot, program and keys ---- */

typedef struct rig {
    plan_fixture *f;
    const plan *p;
    device *dev;
    workload *w;
    graph_slot *slot;
    graph_program *program;
    secret_key *secret;
    resident_keys *keys;
} rig;

static void rig_capture(rig *r) {
    graph_program_config config;
    workload_memory memory;
    workload_memory_account(r->w, &memory);
    workload_program_config(r->w, &config);
    assert_ok(graph_slot_create(&r->slot, r->dev, memory.arena_bytes, NULL));
    assert_ok(graph_program_create(&r->program, r->slot, &config, NULL));
    ckks_error err = {0};
    if (workload_capture(r->w, r->program, 1, &err) != CKKS_OK)
        fail_msg("%s: %s: %s", err.stage, err.field, err.message);
}

static void rig_open(rig *r, plan_fixture *f) {
    ckks_error err = {0};
    *r = (rig){.f = f, .p = &f->plan, .dev = fixture_open_device(1)};
    if (workload_prepare(&r->w, r->dev, r->p, NULL, &err) != CKKS_OK)
        fail_msg("%s: %s", err.field, err.message);
    rig_capture(r);
}

/* also asserts that nothing of the device's memory is left */
static void rig_close(rig *r) {
    device_memory_account account;
    graph_program_destroy(r->program);
    graph_slot_destroy(r->slot);
    if (r->keys) resident_keys_release(r->keys);
    secret_key_destroy(r->secret);
    workload_destroy(r->w);
    device_memory(r->dev, &account);
    assert_int_equal(account.allocation_count, 0);
    device_close(r->dev);
    plan_fixture_destroy(r->f);
}

/* keys as a client makes them: generated, packed, uploaded; a plan may need none */
static void rig_make_keys(rig *r) {
    const plan *p = r->p;
    packed_key packed[PLAN_FIXTURE_MAX];
    uint8_t seed[SEED_BYTES] = {1, 2, 3};
    assert_ok(secret_key_generate(&r->secret, workload_context(r->w), NULL));
    for (uint32_t k = 0; k < p->key_count; k++) {
        const key_requirement *key = &p->keys[k];
        const bool is_public = key->kind == KEY_PUBLIC;
        const uint64_t bytes = packing_key_bytes(p->params, key);
        uint64_t *words = malloc(key_seeded_word_count(p->params, key) * sizeof *words);
        uint8_t *data = malloc(bytes);
        assert_ok(key_generate(words, r->secret, key, seed, k, NULL));
        packing_pack(data, words, p->params, key->level, !is_public,
                     is_public ? 1 : params_digit_count(p->params, key->level));
        packed[k] = (packed_key){*key, data, bytes};
        free(words);
    }
    if (p->key_count > 0)
        assert_ok(resident_keys_upload(&r->keys, r->dev, workload_context(r->w), packed, p->key_count, seed,
                                       secret_key_lineage(r->secret), NULL));
    for (uint32_t k = 0; k < p->key_count; k++) free((void *)(uintptr_t)packed[k].packed);
}

/* one input: its batch encrypted under one seed, packed; data and seed are the caller's to free */
static graph_input encrypt_input(rig *r, uint32_t index, const double *slots) {
    const plan_value *v = &r->p->values[index];
    const uint64_t entry = packing_poly_bytes(r->p->params, v->level, false, 1);
    const size_t words = (size_t)(v->level + 1) * params_n(r->p->params);
    uint64_t *plain = malloc(words * 8), *c0 = malloc(words * 8);
    uint8_t *data = malloc(entry * v->batch_count), *seed = malloc(SEED_BYTES);
    graph_program_config config;
    workload_program_config(r->w, &config);
    randombytes_buf(seed, SEED_BYTES);
    for (uint32_t b = 0; b < v->batch_count; b++) {
        assert_ok(encoder_encode(plain, workload_context(r->w), slots + (size_t)b * SLOTS, NULL, SLOTS,
                                 v->level, false, v->scale, NULL));
        assert_ok(encrypt_symmetric_entry(c0, seed, b, r->secret, plain, v->level, NULL));
        packing_pack(data + b * entry, c0, r->p->params, v->level, false, 1);
    }
    free(plain), free(c0);
    graph_input in = {.source = GRAPH_SOURCE_PACKED_HOST,
                      .signature = config.inputs[index],
                      .data = data,
                      .bytes = entry * v->batch_count,
                      .is_seeded = true,
                      .seed = seed};
    memcpy(in.lineage, secret_key_lineage(r->secret), LINEAGE_BYTES);
    return in;
}

/* largest difference over all slots of output `index` */
static double compare_output(rig *r, const graph_result *result, uint32_t index, const double *expected) {
    const ckks_value *value = &result->outputs[index];
    const uint32_t level = value->signature.limb_count - 1;
    const size_t component = (size_t)(level + 1) * params_n(r->p->params);
    uint64_t *plain = malloc(component * 8);
    double slots[SLOTS], worst = 0;
    for (uint32_t b = 0; b < value->signature.batch_count; b++) {
        assert_ok(decrypt(plain, r->secret, value->words + 2 * component * b, 2, level, NULL));
        assert_ok(encoder_decode(slots, NULL, workload_context(r->w), plain, SLOTS, level,
                                 value->signature.scale, NULL));
        for (uint32_t i = 0; i < SLOTS; i++)
            worst = fmax(worst, fabs(slots[i] - expected[(size_t)b * SLOTS + i]));
    }
    free(plain);
    return worst;
}

/* Encrypted against clear, `rounds` times over; returns the largest difference. */
static double rig_compare(rig *r, uint32_t rounds) {
    const plan *p = r->p;
    double worst = 0, *clear[PLAN_FIXTURE_MAX], *expected[PLAN_FIXTURE_MAX];
    prng random;
    prng_init(&random, 11);
    for (uint32_t i = 0; i < p->input_count; i++)
        clear[i] = malloc((size_t)p->values[i].batch_count * SLOTS * 8);
    for (uint32_t i = 0; i < p->output_count; i++)
        expected[i] = malloc((size_t)p->values[p->outputs[i]].batch_count * SLOTS * 8);
    for (uint32_t round = 0; round < rounds; round++) {
        graph_input inputs[PLAN_FIXTURE_MAX];
        graph_result result;
        ckks_error err = {0};
        for (uint32_t i = 0; i < p->input_count; i++) {
            for (uint32_t k = 0; k < p->values[i].batch_count * SLOTS; k++)
                clear[i][k] = prng_symmetric(&random);
            inputs[i] = encrypt_input(r, i, clear[i]);
        }
        assert_ok(plan_interpret(expected, p, (const double *const *)clear, NULL));
        if (graph_program_replay(r->program, &result, inputs, p->input_count, r->keys, GRAPH_OUTPUT_OWNED,
                                 &err))
            fail_msg("%s: %s", err.field, err.message);
        for (uint32_t i = 0; i < p->output_count; i++)
            worst = fmax(worst, compare_output(r, &result, i, expected[i]));
        graph_result_release(&result);
        for (uint32_t i = 0; i < p->input_count; i++)
            free((void *)(uintptr_t)inputs[i].data), free((void *)(uintptr_t)inputs[i].seed);
    }
    for (uint32_t i = 0; i < p->input_count; i++) free(clear[i]);
    for (uint32_t i = 0; i < p->output_count; i++) free(expected[i]);
    return worst;
}

static void an_encrypted_run_agrees_with_the_interpreter(void **state) {
    (void)state;
    rig r;
    rig_open(&r, plan_fixture_small());
    rig_make_keys(&r);
    const double worst = rig_compare(&r, 3);
    print_message("small plan: largest difference %.3g\n", worst);
    assert_true(worst < 1e-4);
    rig_close(&r);
}

static void a_batch_and_a_rerandomised_value_agree_with_the_interpreter(void **state) {
    (void)state;
    rig r;
    rig_open(&r, plan_fixture_batch());
    rig_make_keys(&r);
    const double worst = rig_compare(&r, 2);
    print_message("batch plan: largest difference %.3g\n", worst);
    assert_true(worst < 1e-4);
    rig_close(&r);
}

/* A product with a plaintext and the rescale behind it are one launch where nothing else reads the product.
 */
static plan_fixture *product_read_more_than_once(bool is_output) {
    static const double ramp[] = {0.5, -0.25, 0.125, 1};
    const ckks_params params = fixture_params(10, 3, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    const uint32_t a = plan_fixture_input(f, 2, 1, 0x1p30);
    const uint32_t product = plan_fixture_plain(f, PLAN_MULTIPLY_PLAIN, a, ramp, 4, (double)params.prime[2]);
    const uint32_t scaled = plan_fixture_operation(f, PLAN_RESCALE, product, 0);
    const uint32_t twice = plan_fixture_operation(f, PLAN_ADD, scaled, scaled);
    plan_fixture_output(f, twice);
    plan_fixture_output(f, is_output ? product : plan_fixture_operation(f, PLAN_ADD, product, product));
    plan_fixture_finish(f);
    return f;
}
/* the two operations that acquire more than their results, and nothing behind them */
static plan_fixture *polynomial_and_rerandomised_alone(void) {
    static const double coefficients[] = {0.1, 0.5, -0.2, 0.3, 0.05, -0.1};
    const ckks_params params = fixture_params(10, 4, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    const uint32_t a = plan_fixture_input(f, 3, 1, 0x1p35), b = plan_fixture_input(f, 1, 2, 0x1p35);
    plan_fixture_output(f, plan_fixture_chebyshev(f, a, coefficients, 5, 0x1p35));
    plan_fixture_output(f, plan_fixture_rerandomise(f, b, 0));
    plan_fixture_finish(f);
    return f;
}

/* A step of zero is a copy, and lies behind the others where they are made. */
static plan_fixture *rotations_with_a_step_of_zero(void) {
    static const int32_t steps[] = {0, 3, -1};
    const ckks_params params = fixture_params(10, 2, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    const uint32_t a = plan_fixture_input(f, 1, 1, 0x1p35);
    const uint32_t first = plan_fixture_steps(f, PLAN_ROTATE_HOISTED, a, steps, 3);
    for (uint32_t i = 0; i < 3; i++) plan_fixture_output(f, first + i);
    plan_fixture_finish(f);
    return f;
}

static void results_that_are_read_again_or_go_out_at_once_are_right(void **state) {
    (void)state;
    for (int which = 0; which < 4; which++) {
        rig r;
        rig_open(&r, which < 2    ? product_read_more_than_once(which)
                     : which == 2 ? polynomial_and_rerandomised_alone()
                                  : rotations_with_a_step_of_zero());
        rig_make_keys(&r);
        assert_ok(fixture_adversarial_order(r.dev, (uint64_t)which + 1, NULL));
        const double worst = rig_compare(&r, 2);
        if (worst >= 1e-4) fail_msg("plan %d: largest difference %.3g", which, worst);
        rig_close(&r);
    }
}

static void adversarial_orders_give_the_same_answers(void **state) {
    (void)state;
    rig r;
    rig_open(&r, plan_fixture_small());
    rig_make_keys(&r);
    assert_ok(fixture_adversarial_order(r.dev, 5, NULL));
    assert_true(rig_compare(&r, 4) < 1e-4);
    rig_close(&r);
}

/* ---- weights ---- */

static void digests_are_of_the_words_at_level_and_scale(void **state) {
    (void)state;
    rig r;
    rig_open(&r, plan_fixture_small());
    uint8_t digests[PLAN_FIXTURE_MAX][32];
    workload_digests(r.w, digests);
    for (uint32_t i = 0; i < r.p->plain_count; i++) {
        const plan_plain *plain = &r.p->plains[i];
        const size_t limbs = plain->level + 1 + (plain->with_p ? r.p->params->p_count : 0);
        uint64_t *words = malloc(limbs * params_n(r.p->params) * 8);
        uint8_t digest[32];
        assert_ok(encoder_encode(words, workload_context(r.w), plain->slots, NULL, plain->slot_count,
                                 plain->level, plain->with_p, plain->scale, NULL));
        sha256(digest, words, limbs * params_n(r.p->params) * 8);
        assert_memory_equal(digests[i], digest, 32);
        free(words);
    }
    rig_close(&r);
}

static void a_wrong_digest_refuses_the_workload(void **state) {
    (void)state;
    rig r;
    uint8_t digests[PLAN_FIXTURE_MAX][32];
    rig_open(&r, plan_fixture_small());
    workload_digests(r.w, digests);
    for (uint32_t i = 0; i < r.p->plain_count; i++) memcpy(r.f->plains[i].digest, digests[i], 32);
    workload *again;
    assert_ok(workload_prepare(&again, r.dev, r.p, NULL, NULL));
    workload_destroy(again);
    for (uint32_t i = 0; i < r.p->plain_count; i += 3) {
        ckks_error err = {0};
        char field[32];
        r.f->plains[i].digest[31] ^= 1;
        assert_status(workload_prepare(&again, r.dev, r.p, NULL, &err), CKKS_DIGEST_MISMATCH);
        snprintf(field, sizeof field, "plain %u", i);
        assert_string_equal(err.field, field);
        r.f->plains[i].digest[31] ^= 1;
    }
    rig_close(&r);
}

static void a_wrong_matrix_digest_refuses_the_workload(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_batch();
    device *dev = fixture_open_device(1);
    workload *w;
    ckks_error err = {0};
    f->matrices[0].digest[0] = 1;
    assert_status(workload_prepare(&w, dev, &f->plan, NULL, &err), CKKS_DIGEST_MISMATCH);
    assert_string_equal(err.field, "matrix 0");
    device_close(dev);
    plan_fixture_destroy(f);
}

/* One matrix, first with an operand of level 2, then with the same operand one level down. */
static plan_fixture *matrix_at_two_levels(double largest_weight) {
    const double weights[] = {0.5, -0.25, largest_weight, 0.125, 2, -1}, bias[] = {0.375, -1.5};
    const ckks_params params = fixture_params(10, 3, 1, 1);
    plan_fixture *f = plan_fixture_create(&params);
    const uint32_t a = plan_fixture_input(f, 2, 3, 0x1p30);
    const uint32_t high = plan_fixture_matrix(f, a, weights, bias, 2, 0x1p30);
    const uint32_t lower = plan_fixture_drop_level(f, a, 1);
    const uint32_t low = plan_fixture_matrix(f, lower, weights, bias, 2, 0x1p30);
    f->operations[f->plan.operation_count - 1].matrix = 0;
    f->plan.matrix_count = 1;
    plan_fixture_output(f, high), plan_fixture_output(f, low);
    plan_fixture_finish(f);
    return f;
}

static void one_matrix_serves_operands_of_several_levels(void **state) {
    (void)state;
    rig r;
    rig_open(&r, matrix_at_two_levels(1));
    rig_make_keys(&r);
    assert_true(rig_compare(&r, 2) < 1e-4);
    rig_close(&r);
}

/* It fits half of q0 q1 q2, where it is first used, and not half of q0 q1: 80 bits. */
static void a_weight_that_fits_only_the_higher_of_two_levels_is_refused(void **state) {
    (void)state;
    device *dev = fixture_open_device(1);
    for (int is_bias = 0; is_bias < 2; is_bias++) {
        plan_fixture *f = matrix_at_two_levels(is_bias ? 1 : -0x1p60);
        workload *w = NULL;
        ckks_error err = {0};
        if (is_bias) ((double *)(uintptr_t)f->matrices[0].bias)[1] = 0x1p34;
        assert_status(workload_prepare(&w, dev, &f->plan, NULL, &err), CKKS_PRECISION);
        assert_string_equal(err.field, "matrix 0");
        workload_destroy(w);
        plan_fixture_destroy(f);
    }
    device_close(dev);
}

static void weights_that_do_not_fit_their_level_are_refused(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_tiny(false);
    device *dev = fixture_open_device(1);
    workload *w;
    ckks_error err = {0};
    ((double *)(uintptr_t)f->plains[0].slots)[0] = 0x1p60;
    assert_status(workload_prepare(&w, dev, &f->plan, NULL, &err), CKKS_PRECISION);
    assert_string_equal(err.field, "plain 0");
    device_close(dev);
    plan_fixture_destroy(f);
}

static void a_bad_plan_is_refused_before_anything_is_allocated(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    device *dev = fixture_open_device(1);
    workload *w;
    device_memory_account account;
    f->values[2].scale *= 2;
    assert_status(workload_prepare(&w, dev, &f->plan, NULL, NULL), CKKS_SIGNATURE_MISMATCH);
    device_memory(dev, &account);
    assert_int_equal(account.allocation_count, 0);
    device_close(dev);
    plan_fixture_destroy(f);
}

/* ---- memory ---- */

static void the_account_is_what_the_device_counts(void **state) {
    (void)state;
    rig r;
    workload_memory memory;
    device_memory_account account;
    graph_program_stats stats;
    rig_open(&r, plan_fixture_small());
    workload_memory_account(r.w, &memory);
    device_memory(r.dev, &account);
    graph_program_get_stats(r.program, &stats);
    uint64_t weights = 0;
    for (uint32_t i = 0; i < r.p->plain_count; i++)
        weights += (uint64_t)(r.p->plains[i].level + 1 + (r.p->plains[i].with_p ? 2 : 0)) * 1024 * 8;
    assert_int_equal(memory.weights_bytes, weights);
    assert_int_equal(memory.inputs_bytes, 2 * 7 * 1024 * 8);
    assert_int_equal(memory.outputs_bytes, 2 * (3 + 1) * 1024 * 8);
    assert_int_equal(memory.arena_bytes, stats.arena_bytes);
    assert_int_equal(memory.staging_bytes, stats.staging_bytes);
    assert_true(memory.arena_bytes < memory.arena_unshared_bytes);
    assert_int_equal(account.bytes_by_purpose[MEMORY_ARENA], memory.arena_bytes);
    assert_int_equal(account.bytes_by_purpose[MEMORY_RETAINED], memory.program_bytes);
    assert_int_equal(account.bytes_by_purpose[MEMORY_KEYS], memory.keys_bytes); /* the self test's */
    rig_close(&r);
}

static void preparing_survives_every_failed_device_call(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_batch();
    device *dev = fixture_open_device(1);
    for (uint64_t n = 1;; n++) {
        workload *w;
        device_memory_account account;
        device_fault_set(dev, n, false);
        const ckks_status rc = workload_prepare(&w, dev, &f->plan, NULL, NULL);
        const bool was_hit = device_fault_calls(dev) >= n;
        device_fault_set(dev, 0, false);
        if (rc == CKKS_OK) workload_destroy(w);
        device_memory(dev, &account);
        assert_int_equal(account.allocation_count, 0);
        assert_true(was_hit || rc == CKKS_OK);
        if (!was_hit) break;
    }
    device_close(dev);
    plan_fixture_destroy(f);
}

static void preparing_survives_every_failed_allocation(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_batch();
    device *dev = fixture_open_device(1);
    for (uint64_t n = 1;; n++) {
        workload *w = NULL;
        device_memory_account account;
        alloc_fault_set(n);
        const ckks_status rc = workload_prepare(&w, dev, &f->plan, NULL, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        if (rc == CKKS_OK) workload_destroy(w);
        device_memory(dev, &account);
        assert_int_equal(account.allocation_count, 0);
        assert_true(was_hit || rc == CKKS_OK);
        if (!was_hit) break;
    }
    device_close(dev);
    plan_fixture_destroy(f);
}

/* ---- self test ---- */

/* Known answers: the words of the CPU device on the plans of the fixture, with seed 00 01 02 ... 1f. They
 * change only if the definition of a kernel, of the encoder or of the fixture plan does. */
static const char known_small[] = "2a8b09eb29cbeb7d9db27736230905d05a4b8837ef1e96652da69310b5ad777d";
static const char known_batch[] = "c73994f503718b61cdb80fa79ba88a8a2ee4f5bf5d024393385f80963a8f0422";

/* The held payload once more, hashed as the self test does. */
static void recompute(rig *r, uint8_t digest[32]) {
    graph_result result;
    hash_state *hash = hash_create();
    assert_ok(
        graph_program_replay_prepared(r->program, &result, (graph_handle){0}, GRAPH_OUTPUT_OWNED, NULL));
    for (uint32_t i = 0; i < result.output_count; i++)
        hash_update(hash, result.outputs[i].words, result.outputs[i].signature.bytes);
    hash_finish(hash, digest);
    hash_destroy(hash);
    graph_result_release(&result);
}

static void self_test(plan_fixture *f, const char *known, bool is_random) {
    rig r;
    uint8_t first[32], other[32];
    char text[65];
    for (int i = 0; i < 32; i++) f->plan.self_test_seed[i] = (uint8_t)i;
    rig_open(&r, f);
    assert_ok(workload_self_test(r.w, r.program, first, NULL));
    hex_encode(text, first, 32);
    if (strcmp(text, known) != 0) print_message("self-test digest: %s\n", text);
    assert_string_equal(text, known);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        assert_ok(fixture_adversarial_order(r.dev, seed, NULL));
        assert_ok(workload_self_test(r.w, r.program, other, NULL));
        assert_memory_equal(first, other, 32);
    }
    workload_self_test_end(r.w);
    assert_ok(workload_self_test(r.w, r.program, other, NULL));
    assert_memory_equal(first, other, 32);
    recompute(&r, other);
    assert_int_equal(memcmp(first, other, 32) != 0, is_random);
    rig_close(&r);
}

static void the_self_test_gives_the_known_answer_in_every_order(void **state) {
    (void)state;
    self_test(plan_fixture_small(), known_small, false);
}

/* on a device that keeps keys narrow; the scalar kernels read both */
static void the_answer_does_not_depend_on_how_keys_lie(void **state) {
    (void)state;
    rig r;
    uint8_t digest[32];
    char text[65];
    if (fixture_device_kind() != DEVICE_CPU) skip();
    plan_fixture *f = plan_fixture_small();
    for (int i = 0; i < 32; i++) f->plan.self_test_seed[i] = (uint8_t)i;
    setenv("CKKSD_ISA", "scalar", 1);
    r = (rig){.f = f, .p = &f->plan, .dev = fixture_open_device(1)};
    unsetenv("CKKSD_ISA");
    assert_int_equal(device_key_layout(r.dev), KEY_WORDS);
    r.dev->back.keys = KEY_NARROW; /* before the first key is there */
    assert_ok(workload_prepare(&r.w, r.dev, r.p, NULL, NULL));
    rig_capture(&r);
    assert_ok(workload_self_test(r.w, r.program, digest, NULL));
    hex_encode(text, digest, 32);
    assert_string_equal(text, known_small);
    rig_close(&r);
}

static void random_operations_give_a_known_answer_too_and_then_a_fresh_stream(void **state) {
    (void)state;
    self_test(plan_fixture_batch(), known_batch, true);
}

static void read_stream_key(rig *r, uint8_t key[32]) {
    device_stream *stream = NULL;
    assert_ok(device_stream_create(r->dev, &stream, NULL));
    assert_ok(device_copy_out(stream, key, r->program->memory.random->key, 32, NULL));
    assert_ok(device_stream_synchronize(stream, NULL));
    device_stream_destroy(stream);
}

/* The self test's stream key is public: whoever has it takes off what rerandomising added. */
static void the_public_stream_key_does_not_outlive_the_self_test(void **state) {
    (void)state;
    rig r;
    uint8_t digest[32], key[32], before[32];
    plan_fixture *f = plan_fixture_batch();
    for (int i = 0; i < 32; i++) f->plan.self_test_seed[i] = (uint8_t)i;
    rig_open(&r, f);
    assert_ok(workload_self_test(r.w, r.program, digest, NULL));
    read_stream_key(&r, before);
    assert_memory_not_equal(before, f->plan.self_test_seed, 32);
    uint32_t refused = 0;
    for (uint64_t n = 1;; n++) { /* whatever the test lacks memory for */
        alloc_fault_set(n);
        const ckks_status rc = workload_self_test(r.w, r.program, digest, NULL);
        const bool was_hit = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        refused += rc != CKKS_OK;
        if (graph_program_get_state(r.program) == GRAPH_PROGRAM_FAILED) {
            assert_ok(graph_slot_recover(r.slot, NULL));
            assert_ok(workload_capture(r.w, r.program, 0, NULL));
        }
        read_stream_key(&r, key);
        assert_memory_not_equal(key, f->plan.self_test_seed, 32);
        if (!was_hit) break;
    }
    assert_memory_not_equal(key, before, 32);
    print_message("%u self tests broken off\n", refused);
    assert_true(refused > 2); /* a card's side allocates less than the CPU's */
    rig_close(&r);
}

static void a_wrong_answer_is_a_digest_mismatch(void **state) {
    (void)state;
    rig r;
    uint8_t digest[32], again[32];
    ckks_error err = {0};
    rig_open(&r, plan_fixture_tiny(false));
    assert_ok(workload_self_test(r.w, r.program, digest, NULL));
    memcpy(r.f->plan.self_test_digest, digest, 32);
    r.f->plan.has_self_test = true;
    assert_ok(workload_self_test(r.w, r.program, again, NULL));
    /* one weight changed on the device: what damaged memory would do */
    binding_info info;
    binding_set_info(workload_bindings(r.w), 0, &info);
    info.words[77] ^= 1;
    assert_status(workload_self_test(r.w, r.program, again, &err), CKKS_DIGEST_MISMATCH);
    info.words[77] ^= 1;
    assert_ok(workload_self_test(r.w, r.program, again, NULL));
    rig_close(&r);
}

static void progress_is_reported_in_order(void *context, const char *stage, uint64_t done, uint64_t total) {
    char *seen = context;
    assert_true(done <= total);
    if (!strstr(seen, stage)) strcat(strcat(seen, stage), " ");
}
static void preparing_reports_its_stages(void **state) {
    (void)state;
    plan_fixture *f = plan_fixture_small();
    device *dev = fixture_open_device(1);
    workload *w;
    char seen[64] = "";
    const workload_progress progress = {progress_is_reported_in_order, seen};
    assert_ok(workload_prepare(&w, dev, &f->plan, &progress, NULL));
    assert_string_equal(seen, "encode prepare plan ");
    workload_destroy(w);
    device_close(dev);
    plan_fixture_destroy(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_encrypted_run_agrees_with_the_interpreter),
        cmocka_unit_test(a_batch_and_a_rerandomised_value_agree_with_the_interpreter),
        cmocka_unit_test(results_that_are_read_again_or_go_out_at_once_are_right),
        cmocka_unit_test(adversarial_orders_give_the_same_answers),
        cmocka_unit_test(digests_are_of_the_words_at_level_and_scale),
        cmocka_unit_test(a_wrong_digest_refuses_the_workload),
        cmocka_unit_test(a_wrong_matrix_digest_refuses_the_workload),
        cmocka_unit_test(one_matrix_serves_operands_of_several_levels),
        cmocka_unit_test(a_weight_that_fits_only_the_higher_of_two_levels_is_refused),
        cmocka_unit_test(weights_that_do_not_fit_their_level_are_refused),
        cmocka_unit_test(a_bad_plan_is_refused_before_anything_is_allocated),
        cmocka_unit_test(the_account_is_what_the_device_counts),
        cmocka_unit_test(preparing_survives_every_failed_device_call),
        cmocka_unit_test(preparing_survives_every_failed_allocation),
        cmocka_unit_test(the_self_test_gives_the_known_answer_in_every_order),
        cmocka_unit_test(the_answer_does_not_depend_on_how_keys_lie),
        cmocka_unit_test(random_operations_give_a_known_answer_too_and_then_a_fresh_stream),
        cmocka_unit_test(the_public_stream_key_does_not_outlive_the_self_test),
        cmocka_unit_test(a_wrong_answer_is_a_digest_mismatch),
        cmocka_unit_test(preparing_reports_its_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
