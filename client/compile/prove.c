#include "client/compile/prove_internal.h"

#include "kernels/base/hash.h"
#include "kernels/scheme/encoder.h"
#include "proto/packing.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to check the program")

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

/* keys are made one by one, in buffers that hold the largest */
typedef struct key_maker {
    const proving *p;
    uint8_t seed[SEED_BYTES];
    uint64_t *plain;
    uint8_t *packed;
} key_maker;

static ckks_status pack_key(void *source, uint32_t index, packed_key *out, ckks_error *err) {
    const key_maker *m = source;
    const ckks_params *params = m->p->params;
    const key_requirement *key = &m->p->program->plan.keys[index];
    const uint64_t bytes = packing_key_bytes(params, key), words = key_seeded_word_count(params, key);
    const uint32_t digits = params_digit_count(params, key->level);
    const ckks_status rc = key_generate(m->plain, m->p->secret, key, m->seed, index, err);
    for (uint32_t d = 0; d < digits && rc == CKKS_OK; d++)
        packing_pack(m->packed + bytes / digits * d, m->plain + words / digits * d, params, key->level, true,
                     1);
    *out = (packed_key){*key, m->packed, bytes};
    return rc;
}

/* in the memory of the self test's, which has done its work */
static ckks_status make_keys(proving *p, ckks_error *err) {
    const plan *pl = &p->program->plan;
    resident_keys *spent = NULL;
    ckks_status rc = secret_key_generate(&p->secret, p->context, err);
    if (rc != CKKS_OK || !pl->key_count) return rc;
    uint64_t words = 0, bytes = 0;
    for (uint32_t i = 0; i < pl->key_count; i++) {
        const uint64_t w = key_seeded_word_count(p->params, &pl->keys[i]),
                       b = packing_key_bytes(p->params, &pl->keys[i]);
        if (w > words) words = w;
        if (b > bytes) bytes = b;
    }
    key_maker maker = {
        .p = p, .plain = malloc((words + 1) * sizeof *maker.plain), .packed = malloc(bytes + 1)};
    if (!maker.plain || !maker.packed) {
        rc = NO_MEMORY(err);
        goto out;
    }
    randombytes_buf(maker.seed, sizeof maker.seed);
    if ((rc = workload_self_test_keys(p->work, &spent, err)) != CKKS_OK) goto out;
    workload_self_test_end(p->work);
    const resident_keys_config config = {.requirements = pl->keys,
                                         .count = pl->key_count,
                                         .lineage = secret_key_lineage(p->secret),
                                         .seed = maker.seed,
                                         .storage = spent,
                                         .pack = pack_key,
                                         .source = &maker};
    rc = resident_keys_pack(&p->keys, p->dev, p->context, &config, err);
out:
    free(maker.packed);
    free(maker.plain);
    return rc;
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
    ckks_status rc = workload_self_test(p->work, p->captured, pl->self_test_digest, err);
    if (rc == CKKS_OK) rc = graph_program_drop_payload(p->captured, err);
    if (rc != CKKS_OK) return rc;
    pl->has_self_test = true;
    workload_digests(p->work, digests);
    for (uint32_t i = 0; i < pl->plain_count; i++)
        memcpy(p->program->plains[i].digest, digests[i], SHA256_BYTES);
    for (uint32_t i = 0; i < pl->matrix_count; i++)
        memcpy(p->program->matrices[i].digest, digests[pl->plain_count + i], SHA256_BYTES);
    return CKKS_OK;
}

/* ---- rows ---- */

/* one block of a row, one period of slots */
static void fill_slots(double *slots, const proving *p, const double *row, uint32_t block) {
    const slot_map *map = &p->program->input_map;
    memset(slots, 0, map->period * sizeof *slots);
    for (uint32_t i = 0; i < map->count; i++)
        if (map->block[i] == block) slots[map->slot[i]] = row[i];
}

static ckks_status encrypt_block(uint64_t *words, const proving *p, const double *slots, uint64_t *plain,
                                 ckks_error *err) {
    const plan_value *input = &p->program->plan.values[0];
    const size_t component = ((size_t)input->level + 1) * params_n(p->params);
    const ckks_status rc = encoder_encode(plain, p->context, slots, NULL, p->program->input_map.period,
                                          input->level, false, input->scale, err);
    if (rc != CKKS_OK) return rc;
    return encrypt_public(words, words + component, p->context, p->public_key, p->public_key + component,
                          plain, input->level, err);
}

/* takes the largest difference of a score of this ciphertext into *worst; `block` counts through batches */
static ckks_status compare_output(double *worst, const proving *p, const plan_value *output,
                                  const uint64_t *words, uint32_t block, const double *expected,
                                  double *slots, uint64_t *plain, ckks_error *err) {
    const slot_map *map = &p->program->output_map;
    ckks_status rc = decrypt(plain, p->secret, words, 2, output->level, err);
    if (rc == CKKS_OK)
        rc = encoder_decode(slots, NULL, p->context, plain, params_slot_count_max(p->params), output->level,
                            output->scale, err);
    for (uint32_t i = 0; i < map->count && rc == CKKS_OK; i++)
        if (map->block[i] == block) *worst = fmax(*worst, fabs(slots[map->slot[i]] - expected[i]));
    return rc;
}

static ckks_status compare_outputs(double *worst, const proving *p, const graph_result *result,
                                   const double *expected, double *slots, uint64_t *plain, ckks_error *err) {
    const plan *pl = &p->program->plan;
    ckks_status rc = CKKS_OK;
    uint32_t block = 0;
    for (uint32_t k = 0; k < pl->output_count && rc == CKKS_OK; k++) {
        const plan_value *output = &pl->values[pl->outputs[k]];
        const size_t entry = 2 * ((size_t)output->level + 1) * params_n(p->params);
        for (uint32_t b = 0; b < output->batch_count && rc == CKKS_OK; b++)
            rc = compare_output(worst, p, output, result->outputs[k].words + b * entry, block++, expected,
                                slots, plain, err);
    }
    return rc;
}

static ckks_status replay_row(graph_result *result, proving *p, const double *row, double *slots,
                              uint64_t *words, graph_input *inputs, ckks_error *err) {
    const plan *pl = &p->program->plan;
    const size_t component = ((size_t)pl->values[0].level + 1) * params_n(p->params);
    for (uint32_t k = 0; k < pl->input_count; k++) {
        uint64_t *at = words + 2 * k * component;
        fill_slots(slots, p, row, k);
        const ckks_status rc = encrypt_block(at, p, slots, words + 2 * pl->input_count * component, err);
        if (rc != CKKS_OK) return rc;
        inputs[k] =
            (graph_input){.source = GRAPH_SOURCE_WORDS_HOST, .data = at, .bytes = 2 * component * sizeof *at};
        value_signature_ciphertext(&inputs[k].signature, p->params, 2, pl->values[0].level,
                                   pl->values[0].scale, device_id(p->dev));
        memcpy(inputs[k].lineage, secret_key_lineage(p->secret), LINEAGE_BYTES);
    }
    return graph_program_replay(p->captured, result, inputs, pl->input_count, p->keys, GRAPH_OUTPUT_OWNED,
                                err);
}

static ckks_status run_row(proving *p, uint64_t row, double *worst, ckks_error *err) {
    const plan *pl = &p->program->plan;
    const size_t component = ((size_t)pl->values[0].level + 1) * params_n(p->params);
    uint64_t *words = malloc((2 * pl->input_count + 1) * component * sizeof *words);
    double *slots = malloc(params_slot_count_max(p->params) * sizeof *slots);
    graph_input *inputs = malloc(pl->input_count * sizeof *inputs);
    graph_result result = {0};
    ckks_status rc = words && slots && inputs ? CKKS_OK : NO_MEMORY(err);
    if (rc != CKKS_OK) goto out;
    rc = replay_row(&result, p, p->rows->rows + row * p->rows->element_count, slots, words, inputs, err);
    if (rc == CKKS_OK) proving_time(p, &result);
    if (rc == CKKS_OK)
        rc = compare_outputs(worst, p, &result, p->rows->scores + row * p->rows->score_count, slots, words,
                             err);
out:
    graph_result_release(&result);
    free(inputs);
    free(slots);
    free(words);
    return rc;
}

static ckks_status compare_scores(const proving *p, double *const *outputs, const double *expected,
                                  ckks_error *err) {
    const slot_map *map = &p->program->output_map;
    for (uint32_t i = 0; i < map->count; i++) {
        const double score = outputs[map->block[i]][map->slot[i]];
        if (!(fabs(score - expected[i]) <= 1e-7 * (1 + fabs(expected[i]))))
            return ckks_error_set(err, CKKS_INTERNAL, "layout",
                                  "the program gives score %u as %.9g, the model as %.9g", i, score,
                                  expected[i]);
    }
    return CKKS_OK;
}

/* the plan in the clear against the graph that it came from */
static ckks_status compare_in_clear(proving *p, uint64_t row, ckks_error *err) {
    const plan *pl = &p->program->plan;
    const uint32_t slot_count = params_slot_count_max(p->params), period = p->program->input_map.period;
    const size_t vectors = (size_t)pl->input_count + p->program->output_map.block_count;
    double *memory = malloc(vectors * slot_count * sizeof *memory);
    double **at = malloc(vectors * sizeof(void *));
    ckks_status rc = memory && at ? CKKS_OK : NO_MEMORY(err);
    if (rc != CKKS_OK) goto out;
    for (size_t k = 0; k < vectors; k++) at[k] = memory + k * slot_count;
    for (uint32_t k = 0; k < pl->input_count; k++) {
        double *slots = memory + (size_t)k * slot_count;
        fill_slots(slots, p, p->rows->rows + row * p->rows->element_count, k);
        for (uint32_t i = period; i < slot_count; i++) slots[i] = slots[i - period];
    }
    /* the outputs are neighbours, and so are the entries of one that is a batch */
    rc = plan_interpret(at + pl->input_count, pl, (const double *const *)at, err);
    if (rc == CKKS_OK)
        rc = compare_scores(p, at + pl->input_count, p->rows->scores + row * p->rows->score_count, err);
out:
    free(at);
    free(memory);
    return rc;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static ckks_status run_rows(proving *p, proof *out, const workload_progress *progress, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (p->program->is_batch) {
        out->checked_rows = p->rows->check_count;
        rc = prove_batch_run(p, &out->measured_error, err);
        if (progress && progress->report) progress->report(progress->context, "encrypted check", 1, 1);
        return rc;
    }
    const uint64_t start_ns = now_ns();
    for (uint32_t i = 0; i < p->rows->check_count && rc == CKKS_OK; i++) {
        const uint64_t row = i * p->rows->row_count / p->rows->check_count;
        if (i >= 2 && p->rows->time_limit_ns && now_ns() - start_ns > p->rows->time_limit_ns) break;
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
    const uint64_t start_ns = now_ns();
    for (uint32_t i = 0; !program->is_batch && i < rows->check_count && rc == CKKS_OK; i++) {
        if (i >= 2 && rows->time_limit_ns && now_ns() - start_ns > rows->time_limit_ns) break;
        rc = compare_in_clear(&p, i * rows->row_count / rows->check_count, err);
    }
    if (rc != CKKS_OK) goto out;
    if ((rc = set_up(&p, progress, err)) != CKKS_OK) goto out;
    if ((rc = fill_digests(&p, err)) != CKKS_OK) goto out;
    workload_memory_account(p.work, &out->memory);
    if ((rc = make_keys(&p, err)) != CKKS_OK) goto out;
    if ((rc = make_public_key(&p, err)) != CKKS_OK) goto out;
    rc = run_rows(&p, out, progress, err);
    out->replay_ns = p.replay_ns;
out:
    proving_fini(&p);
    return rc;
}
