/*
 * The keyless self test: does this device, with these weights and this recording, give the words that the
 * compiler saw? Inputs and words in place of keys are uniform polynomials from a public seed: the arithmetic
 * does not mind that they encrypt nothing.
 */
#include "kernels/base/hash.h"
#include "kernels/program/workload_internal.h"

#include <stdlib.h>
#include <string.h>

/* Uniform polynomials of the limbs q[0..level], then all p if with_p: one polynomial number, many primes. */
static void expand_limbs(uint64_t *words, const plan *p, uint32_t polynomial, uint32_t level, bool with_p) {
    const ckks_params *params = p->params;
    const uint32_t n = params_n(params), limbs = level + 1 + (with_p ? params->p_count : 0);
    for (uint32_t i = 0; i < limbs; i++) {
        const uint32_t prime = i <= level ? i : params->q_count + (i - level - 1);
        seed_expand(words + (size_t)i * n, n, params->prime[prime], p->self_test_seed, SEED_SELF_TEST,
                    polynomial, prime);
    }
}

/* Ciphertexts over all inputs, batch entries counted one by one: keys are numbered after them. */
static uint32_t ciphertext_total(const plan *p) {
    uint32_t total = 0;
    for (uint32_t i = 0; i < p->input_count; i++) total += p->values[i].batch_count;
    return total;
}

/* ---- keys ---- */

/* Resident layout: [digit][2][limb][N], limbs q then p; the public key [2][limb][N], limbs q. */
static void expand_key(uint64_t *words, const plan *p, uint32_t index) {
    const ckks_params *params = p->params;
    const key_requirement *key = &p->keys[index];
    const bool is_public = key->kind == KEY_PUBLIC;
    const uint32_t digits = is_public ? 1 : params_digit_count(params, key->level);
    const size_t limbs = key->level + 1 + (is_public ? 0 : params->p_count);
    const uint32_t first = ciphertext_total(p) + index * params_digit_count_full(params);
#pragma omp parallel for collapse(2)
    for (uint32_t d = 0; d < digits; d++)
        for (uint32_t c = 0; c < 2; c++)
            expand_limbs(words + (2 * (size_t)d + c) * limbs * params_n(params), p, 2 * (first + d) + c,
                         key->level, !is_public);
}

static ckks_status fill_key(void *source, uint32_t index, uint64_t *words, ckks_error *err) {
    (void)err;
    expand_key(words, source, index);
    return CKKS_OK;
}

static ckks_status make_keys(resident_keys **out, workload *w, ckks_error *err) {
    static const uint8_t lineage[LINEAGE_BYTES];
    plan p = *w->p;
    const resident_keys_config config = {
        .requirements = p.keys, .count = p.key_count, .lineage = lineage, .fill = fill_key, .source = &p};
    return resident_keys_fill(out, w->dev, w->context, &config, err);
}

ckks_status workload_self_test_keys(workload *w, resident_keys **out, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *out = NULL;
    if (w->p->key_count == 0) return CKKS_OK;
    pthread_mutex_lock(&w->self_test_lock);
    if (!w->self_test_keys) rc = make_keys(&w->self_test_keys, w, err);
    if (rc == CKKS_OK) {
        resident_keys_retain(w->self_test_keys);
        *out = w->self_test_keys;
    }
    pthread_mutex_unlock(&w->self_test_lock);
    return rc;
}

void workload_self_test_end(workload *w) {
    pthread_mutex_lock(&w->self_test_lock);
    if (w->self_test_keys) resident_keys_release(w->self_test_keys);
    w->self_test_keys = NULL;
    pthread_mutex_unlock(&w->self_test_lock);
}

/* ---- inputs ---- */

/* words of all inputs, one after another */
static ckks_status make_inputs(uint64_t **out, const workload *w, ckks_error *err) {
    const plan *p = w->p;
    uint64_t *words = malloc(w->memory.inputs_bytes), *at = words;
    uint32_t ciphertext = 0;
    if (!words)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "inputs", "no memory for self-test inputs");
    for (uint32_t i = 0; i < p->input_count; i++)
        for (uint32_t b = 0; b < p->values[i].batch_count; b++, ciphertext++)
            for (uint32_t c = 0; c < 2; c++) {
                expand_limbs(at, p, 2 * ciphertext + c, p->values[i].level, false);
                at += (size_t)(p->values[i].level + 1) * params_n(p->params);
            }
    *out = words;
    return CKKS_OK;
}

/* ---- capture on self-test inputs ---- */

ckks_status workload_capture(workload *w, graph_program *program, int32_t warmup, ckks_error *err) {
    ckks_status rc;
    const uint32_t count = w->p->input_count;
    uint64_t *words = NULL;
    void *block = NULL;
    resident_keys *keys = NULL;
    device_stream *stream = NULL;
    ckks_value *examples = calloc(count, sizeof *examples);
    if (!examples) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "inputs", "no memory for self-test inputs");
        goto out;
    }
    if ((rc = make_inputs(&words, w, err)) != CKKS_OK) goto out;
    if ((rc = workload_self_test_keys(w, &keys, err)) != CKKS_OK) goto out;
    if ((rc = device_allocate(w->dev, &block, w->memory.inputs_bytes, MEMORY_RETAINED, err)) != CKKS_OK)
        goto out;
    if ((rc = device_stream_create(w->dev, &stream, err)) != CKKS_OK) goto out;
    if ((rc = device_copy_in(stream, block, words, w->memory.inputs_bytes, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_synchronize(stream, err)) != CKKS_OK) goto out;
    uint64_t *at = block;
    for (uint32_t i = 0; i < count; i++) {
        examples[i] = (ckks_value){w->inputs[i], at};
        at += w->inputs[i].bytes / sizeof *at;
    }
    rc = graph_program_capture(program, warmup, examples, keys, err);
out:
    device_stream_destroy(stream);
    device_free(w->dev, block);
    if (keys) resident_keys_release(keys);
    free(words);
    free(examples);
    return rc;
}

/* ---- the test ---- */

static ckks_status replay(workload *w, graph_program *program, graph_result *result, const uint64_t *words,
                          resident_keys *keys, ckks_error *err) {
    const uint32_t count = w->p->input_count;
    graph_input *inputs = calloc(count, sizeof *inputs);
    if (!inputs)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "inputs", "no memory for self-test inputs");
    for (uint32_t i = 0; i < count; i++) {
        inputs[i].source = GRAPH_SOURCE_WORDS_HOST;
        inputs[i].signature = w->inputs[i];
        inputs[i].data = words;
        inputs[i].bytes = w->inputs[i].bytes;
        words += w->inputs[i].bytes / sizeof *words;
    }
    const ckks_status rc =
        graph_program_replay(program, result, inputs, count, keys, GRAPH_OUTPUT_OWNED, err);
    free(inputs);
    return rc;
}

static ckks_status hash_outputs(uint8_t digest[32], const graph_result *result, ckks_error *err) {
    hash_state *hash = hash_create();
    if (!hash) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "self test", "no memory for a hash");
    for (uint32_t i = 0; i < result->output_count; i++)
        hash_update(hash, result->outputs[i].words, result->outputs[i].signature.bytes);
    hash_finish(hash, digest);
    hash_destroy(hash);
    return CKKS_OK;
}

ckks_status workload_self_test(workload *w, graph_program *program, uint8_t digest[32], ckks_error *err) {
    ckks_status rc;
    uint64_t *words = NULL;
    resident_keys *keys = NULL;
    graph_result result = {0};
    if ((rc = make_inputs(&words, w, err)) != CKKS_OK) goto out;
    if ((rc = workload_self_test_keys(w, &keys, err)) != CKKS_OK) goto out;
    if (w->uses_randomness && (rc = graph_program_reseed(program, w->p->self_test_seed, err)) != CKKS_OK)
        goto out;
    rc = replay(w, program, &result, words, keys, err);
    /* also after a failure: a public stream key must not stay */
    if (w->uses_randomness) {
        const ckks_status fresh = graph_program_reseed(program, NULL, err);
        if (rc == CKKS_OK) rc = fresh;
    }
    if (rc != CKKS_OK) goto out;
    if ((rc = hash_outputs(digest, &result, err)) != CKKS_OK) goto out;
    if (w->p->has_self_test && memcmp(digest, w->p->self_test_digest, 32) != 0)
        rc = ckks_error_set(err, CKKS_DIGEST_MISMATCH, "self test",
                            "this device computes other words than the compiler saw");
out:
    graph_result_release(&result);
    if (keys) resident_keys_release(keys);
    free(words);
    return rc;
}
