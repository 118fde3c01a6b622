#include "client/compile/prove.h"

#include "kernels/base/hash.h"
#include "kernels/scheme/encoder.h"
#include "proto/packing.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to check the program")

typedef struct proving {
    emitted_program *program;
    const ckks_params *params;
    const prove_rows *rows;
    arena scratch;
    device *dev;
    workload *work;
    const ckks_context *context;
    graph_slot *slot;
    graph_program *captured;
    secret_key *secret;
    resident_keys *keys;
    uint64_t *public_key; /* [2][limb][N] at the input's level */
} proving;

static void proving_fini(proving *p) {
    graph_program_destroy(p->captured);
    graph_slot_destroy(p->slot);
    if (p->keys) resident_keys_release(p->keys);
    if (p->work) workload_self_test_end(p->work);
    workload_destroy(p->work);
    secret_key_destroy(p->secret);
    device_close(p->dev);
    arena_fini(&p->scratch);
}

/* ---- keys ---- */

static ckks_status pack_key(packed_key *out, proving *p, const key_requirement *key,
                            const uint8_t seed[SEED_BYTES], uint32_t index, ckks_error *err) {
    const uint64_t bytes = packing_key_bytes(p->params, key), words = key_seeded_word_count(p->params, key);
    uint64_t *plain = malloc(words * sizeof *plain);
    uint8_t *packed = arena_take(&p->scratch, bytes, 1);
    ckks_status rc = plain && packed ? CKKS_OK : NO_MEMORY(err);
    if (rc == CKKS_OK) rc = key_generate(plain, p->secret, key, seed, index, err);
    const uint32_t digits = params_digit_count(p->params, key->level);
    for (uint32_t d = 0; d < digits && rc == CKKS_OK; d++)
        packing_pack(packed + bytes / digits * d, plain + words / digits * d, p->params, key->level, true, 1);
    free(plain);
    *out = (packed_key){*key, packed, bytes};
    return rc;
}

static ckks_status make_keys(proving *p, ckks_error *err) {
    const plan *pl = &p->program->plan;
    uint8_t seed[SEED_BYTES];
    ckks_status rc = secret_key_generate(&p->secret, p->context, err);
    if (rc != CKKS_OK || !pl->key_count) return rc;
    packed_key *packed = arena_take(&p->scratch, pl->key_count, sizeof *packed);
    if (!packed) return NO_MEMORY(err);
    randombytes_buf(seed, sizeof seed);
    for (uint32_t i = 0; i < pl->key_count && rc == CKKS_OK; i++)
        rc = pack_key(&packed[i], p, &pl->keys[i], seed, i, err);
    if (rc != CKKS_OK) return rc;
    return resident_keys_upload(&p->keys, p->dev, p->context, packed, pl->key_count, seed,
                                secret_key_lineage(p->secret), err);
}

static ckks_status make_public_key(proving *p, ckks_error *err) {
    const uint32_t level = p->program->plan.values[0].level, n = params_n(p->params);
    const key_requirement key = {KEY_PUBLIC, 0, level};
    uint8_t seed[SEED_BYTES];
    p->public_key = arena_take(&p->scratch, 2 * ((uint64_t)level + 1) * n, sizeof *p->public_key);
    if (!p->public_key) return NO_MEMORY(err);
    randombytes_buf(seed, sizeof seed);
    for (uint32_t i = 0; i <= level; i++)
        seed_expand(p->public_key + ((size_t)level + 1 + i) * n, n, p->params->prime[i], seed,
                    SEED_PUBLIC_KEY, 0, i);
    return key_generate(p->public_key, p->secret, &key, seed, 0, err);
}

/* ---- the program ---- */

static ckks_status set_up(proving *p, const workload_progress *progress, ckks_error *err) {
    const device_config config = {.kind = DEVICE_CPU};
    graph_program_config program;
    workload_memory account;
    ckks_status rc;
    if ((rc = device_open(&p->dev, &config, err)) != CKKS_OK) return rc;
    if ((rc = workload_prepare(&p->work, p->dev, &p->program->plan, progress, err)) != CKKS_OK) return rc;
    p->context = workload_context(p->work);
    workload_memory_account(p->work, &account);
    if ((rc = graph_slot_create(&p->slot, p->dev, account.arena_bytes, err)) != CKKS_OK) return rc;
    workload_program_config(p->work, &program);
    if ((rc = graph_program_create(&p->captured, p->slot, &program, err)) != CKKS_OK) return rc;
    return workload_capture(p->work, p->captured, 0, err);
}

static ckks_status fill_digests(proving *p, ckks_error *err) {
    plan *pl = &p->program->plan;
    uint8_t(*digests)[SHA256_BYTES] =
        arena_take(&p->scratch, pl->plain_count + pl->matrix_count, SHA256_BYTES);
    if (!digests) return NO_MEMORY(err);
    const ckks_status rc = workload_self_test(p->work, p->captured, pl->self_test_digest, err);
    if (rc != CKKS_OK) return rc;
    workload_self_test_end(p->work);
    pl->has_self_test = true;
    workload_digests(p->work, digests);
    for (uint32_t i = 0; i < pl->plain_count; i++)
        memcpy(p->program->plains[i].digest, digests[i], SHA256_BYTES);
    return CKKS_OK;
}

/* ---- rows ---- */

static ckks_status encrypt_row(uint64_t *words, const proving *p, const double *row, double *slots,
                               uint64_t *plain, ckks_error *err) {
    const plan_value *input = &p->program->plan.values[0];
    const size_t component = ((size_t)input->level + 1) * params_n(p->params);
    memset(slots, 0, p->program->input_slots * sizeof *slots);
    memcpy(slots, row, p->rows->element_count * sizeof *slots);
    const ckks_status rc = encoder_encode(plain, p->context, slots, NULL, p->program->input_slots,
                                          input->level, false, input->scale, err);
    if (rc != CKKS_OK) return rc;
    return encrypt_public(words, words + component, p->context, p->public_key, p->public_key + component,
                          plain, input->level, err);
}

static ckks_status decrypt_scores(double *slots, const proving *p, const graph_result *result,
                                  uint64_t *plain, ckks_error *err) {
    const plan_value *output = &p->program->plan.values[p->program->plan.outputs[0]];
    const ckks_status rc = decrypt(plain, p->secret, result->outputs[0].words, 2, output->level, err);
    if (rc != CKKS_OK) return rc;
    return encoder_decode(slots, NULL, p->context, plain, params_slot_count_max(p->params), output->level,
                          output->scale, err);
}

static ckks_status run_row(proving *p, uint64_t row, double *worst, ckks_error *err) {
    const plan *pl = &p->program->plan;
    const uint32_t n = params_n(p->params), score_count = p->rows->score_count;
    const size_t component = ((size_t)pl->values[0].level + 1) * n;
    const size_t mark = 3 * component;
    uint64_t *words = malloc(mark * sizeof *words);
    double *slots = malloc(n / 2 * sizeof *slots);
    graph_result result = {0};
    graph_input input = {
        .source = GRAPH_SOURCE_WORDS_HOST, .data = words, .bytes = 2 * component * sizeof *words};
    ckks_status rc = CKKS_OK;
    const double *expected = p->rows->scores + row * score_count;
    if (!words || !slots) {
        rc = NO_MEMORY(err);
        goto out;
    }
    rc = encrypt_row(words, p, p->rows->rows + row * p->rows->element_count, slots, words + 2 * component,
                     err);
    value_signature_ciphertext(&input.signature, p->params, 2, pl->values[0].level, pl->values[0].scale,
                               device_id(p->dev));
    memcpy(input.lineage, secret_key_lineage(p->secret), LINEAGE_BYTES);
    if (rc == CKKS_OK)
        rc = graph_program_replay(p->captured, &result, &input, 1, p->keys, GRAPH_OUTPUT_OWNED, err);
    if (rc == CKKS_OK) rc = decrypt_scores(slots, p, &result, words, err);
    for (uint32_t i = 0; i < score_count && rc == CKKS_OK; i++)
        *worst = fmax(*worst, fabs(slots[i] - expected[i]));
out:
    graph_result_release(&result);
    free(slots);
    free(words);
    return rc;
}

/* the plan in the clear against the graph that it came from */
static ckks_status compare_in_clear(proving *p, uint64_t row, ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(p->params);
    double *input = malloc(slot_count * sizeof *input), *output = malloc(slot_count * sizeof *output);
    ckks_status rc = CKKS_OK;
    if (!input || !output) {
        rc = NO_MEMORY(err);
        goto out;
    }
    for (uint32_t i = 0; i < slot_count; i++) {
        const uint32_t at = i % p->program->input_slots;
        input[i] = at < p->rows->element_count ? p->rows->rows[row * p->rows->element_count + at] : 0;
    }
    rc = plan_interpret(&output, &p->program->plan, (const double *const[]){input}, err);
    for (uint32_t i = 0; i < p->rows->score_count && rc == CKKS_OK; i++) {
        const double expected = p->rows->scores[row * p->rows->score_count + i];
        if (!(fabs(output[i] - expected) <= 1e-7 * (1 + fabs(expected))))
            rc = ckks_error_set(err, CKKS_INTERNAL, "layout",
                                "the program gives score %u as %.9g, the model as %.9g", i, output[i],
                                expected);
    }
out:
    free(output);
    free(input);
    return rc;
}

static ckks_status run_rows(proving *p, proof *out, const workload_progress *progress, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 0; i < p->rows->check_count && rc == CKKS_OK; i++) {
        const uint64_t row = i * p->rows->row_count / p->rows->check_count;
        rc = run_row(p, row, &out->measured_error, err);
        out->checked_rows++;
        if (progress && progress->report)
            progress->report(progress->context, "encrypted check", i + 1, p->rows->check_count);
    }
    return rc;
}

static ckks_status find_keys(proving *p, arena *memory, ckks_error *err) {
    plan *pl = &p->program->plan;
    key_requirement *listed = NULL;
    uint32_t count;
    const ckks_status rc = plan_key_requirements(pl, &listed, &count, err);
    if (rc != CKKS_OK) return rc;
    key_requirement *keys = arena_take(memory, count, sizeof *keys);
    if (keys && count) memcpy(keys, listed, count * sizeof *keys);
    free(listed);
    if (!keys) return NO_MEMORY(err);
    pl->keys = keys, pl->key_count = count;
    return plan_check(pl, err);
}

ckks_status program_prove(proof *out, emitted_program *program, const prove_rows *rows, arena *memory,
                          const workload_progress *progress, ckks_error *err) {
    proving p = {.program = program, .params = program->plan.params, .rows = rows};
    ckks_status rc;
    *out = (proof){0};
    program->plan.has_self_test = false;
    if (sodium_init() < 0) return ckks_error_set(err, CKKS_INTERNAL, "", "libsodium does not start");
    if ((rc = find_keys(&p, memory, err)) != CKKS_OK) goto out;
    for (uint32_t i = 0; i < rows->check_count && rc == CKKS_OK; i++)
        rc = compare_in_clear(&p, i * rows->row_count / rows->check_count, err);
    if (rc != CKKS_OK) goto out;
    if ((rc = set_up(&p, progress, err)) != CKKS_OK) goto out;
    if ((rc = fill_digests(&p, err)) != CKKS_OK) goto out;
    workload_memory_account(p.work, &out->memory);
    if ((rc = make_keys(&p, err)) != CKKS_OK) goto out;
    if ((rc = make_public_key(&p, err)) != CKKS_OK) goto out;
    rc = run_rows(&p, out, progress, err);
out:
    proving_fini(&p);
    return rc;
}
