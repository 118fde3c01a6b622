/* Checking a program of the throughput layout: rows are slots, elements are ciphertexts. */
#include "client/compile/prove_internal.h"

#include "kernels/scheme/encoder.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define NO_MEMORY(err) ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory to check the program")

ckks_status program_batch_scores(double *scores, const plan *p, const double *rows, uint64_t row_count,
                                 uint32_t element_count, uint32_t score_count, ckks_error *err) {
    const uint32_t slot_count = params_slot_count_max(p->params);
    double *input = malloc((size_t)element_count * slot_count * sizeof *input);
    double *output = malloc((size_t)score_count * slot_count * sizeof *output);
    ckks_status rc = input && output ? CKKS_OK : NO_MEMORY(err);
    for (uint64_t first = 0; first < row_count && rc == CKKS_OK; first += slot_count) {
        const uint64_t left = row_count - first;
        const uint32_t count = left < slot_count ? (uint32_t)left : slot_count;
        for (uint32_t i = 0; i < element_count; i++)
            for (uint32_t s = 0; s < slot_count; s++)
                input[(size_t)i * slot_count + s] = s < count ? rows[(first + s) * element_count + i] : 0;
        rc = plan_interpret(&output, p, (const double *const[]){input}, err);
        for (uint32_t s = 0; s < count && rc == CKKS_OK; s++)
            for (uint32_t i = 0; i < score_count; i++)
                scores[(first + s) * score_count + i] = output[(size_t)i * slot_count + s];
    }
    free(output);
    free(input);
    return rc;
}

static uint64_t row_of(const proving *p, uint32_t index) {
    return index * p->rows->row_count / p->rows->check_count;
}

/* one element of all checked rows */
static ckks_status encrypt_element(uint64_t *words, const proving *p, uint32_t element, const uint8_t *seed,
                                   double *slots, uint64_t *plain, ckks_error *err) {
    const plan_value *input = &p->program->plan.values[0];
    const uint32_t n = params_n(p->params), slot_count = params_slot_count_max(p->params);
    const size_t component = ((size_t)input->level + 1) * n;
    memset(slots, 0, slot_count * sizeof *slots);
    for (uint32_t s = 0; s < p->rows->check_count; s++)
        slots[s] = p->rows->rows[row_of(p, s) * p->rows->element_count + element];
    ckks_status rc =
        encoder_encode(plain, p->context, slots, NULL, slot_count, input->level, false, input->scale, err);
    if (rc != CKKS_OK) return rc;
    if (!p->program->secret_key_only)
        return encrypt_public(words, words + component, p->context, p->public_key, p->public_key + component,
                              plain, input->level, err);
    for (uint32_t i = 0; i <= input->level; i++)
        seed_expand(words + component + (size_t)i * n, n, p->params->prime[i], seed, SEED_CIPHERTEXT, element,
                    i);
    return encrypt_symmetric_entry(words, seed, element, p->secret, plain, input->level, err);
}

static ckks_status compare_score(double *worst, const proving *p, const uint64_t *words, uint32_t score,
                                 double *slots, uint64_t *plain, ckks_error *err) {
    const plan_value *output = &p->program->plan.values[p->program->plan.outputs[0]];
    ckks_status rc = decrypt(plain, p->secret, words, output->component_count, output->level, err);
    if (rc == CKKS_OK)
        rc = encoder_decode(slots, NULL, p->context, plain, params_slot_count_max(p->params), output->level,
                            output->scale, err);
    for (uint32_t s = 0; s < p->rows->check_count && rc == CKKS_OK; s++)
        *worst = fmax(*worst, fabs(slots[s] - p->rows->scores[row_of(p, s) * p->rows->score_count + score]));
    return rc;
}

ckks_status prove_batch_run(proving *p, double *worst, ckks_error *err) {
    const plan *pl = &p->program->plan;
    const uint32_t n = params_n(p->params);
    const size_t component = ((size_t)pl->values[0].level + 1) * n;
    const plan_value *output = &pl->values[pl->outputs[0]];
    const size_t out_words = output->component_count * ((size_t)output->level + 1) * n;
    uint64_t *words = malloc(2 * component * p->rows->element_count * sizeof *words);
    uint64_t *plain = malloc(component * sizeof *plain);
    double *slots = malloc(n / 2 * sizeof *slots);
    uint8_t seed[SEED_BYTES];
    graph_program_config config;
    graph_result result = {0};
    graph_input input = {.source = GRAPH_SOURCE_WORDS_HOST,
                         .data = words,
                         .bytes = 2 * component * p->rows->element_count * sizeof *words};
    ckks_status rc = CKKS_OK;
    if (!words || !plain || !slots) {
        rc = NO_MEMORY(err);
        goto out;
    }
    randombytes_buf(seed, sizeof seed);
    for (uint32_t i = 0; i < p->rows->element_count && rc == CKKS_OK; i++)
        rc = encrypt_element(words + 2 * component * i, p, i, seed, slots, plain, err);
    if (rc != CKKS_OK) goto out;
    workload_program_config(p->work, &config);
    input.signature = config.inputs[0];
    memcpy(input.lineage, secret_key_lineage(p->secret), LINEAGE_BYTES);
    rc = graph_program_replay(p->captured, &result, &input, 1, p->keys, GRAPH_OUTPUT_OWNED, err);
    if (rc == CKKS_OK) proving_time(p, &result);
    for (uint32_t i = 0; i < p->rows->score_count && rc == CKKS_OK; i++)
        rc = compare_score(worst, p, result.outputs[0].words + i * out_words, i, slots, plain, err);
out:
    graph_result_release(&result);
    free(slots);
    free(plain);
    free(words);
    return rc;
}
