#include "daemon/program.h"

#include "daemon/clock.h"
#include "kernels/base/bytes.h"
#include "kernels/base/log.h"

#include <stdlib.h>
#include <string.h>

/* What a capture works on: inputs on the device and words in place of keys, expanded from a fixed seed. They
 * are no ciphertexts of anything; the self test after the capture judges the answer. */
typedef struct example {
    device *dev;
    ckks_value *inputs;
    uint32_t input_count;
    resident_keys *keys;
} example;

static void example_fini(example *e) {
    for (uint32_t i = 0; i < e->input_count; i++) device_free(e->dev, e->inputs[i].words);
    free(e->inputs);
    resident_keys_release(e->keys);
    *e = (example){0};
}

/* Canonical words for limbs q[0..q_count) and, if with_p, all p; `rows` times. */
static void expand_rows(uint64_t *words, const ckks_params *params, uint32_t rows, uint32_t q_count,
                        bool with_p, uint32_t polynomial) {
    static const uint8_t seed[SEED_BYTES] = "capture examples: public";
    const uint32_t n = params_n(params);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t j = 0; j < params_prime_count(params); j++) {
            if (j >= q_count && (j < params->q_count || !with_p)) continue;
            seed_expand(words, n, params->prime[j], seed, SEED_SELF_TEST, polynomial + r, j);
            words += n;
        }
}

static ckks_status example_inputs(example *e, slot *s, const graph_program_config *c, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const ckks_params *params = context_params(c->context);
    device_stream *stream = graph_slot_stream(s->graph);
    for (uint32_t i = 0; i < c->input_count && rc == CKKS_OK; i++) {
        void *words = NULL;
        const value_signature *sig = &c->inputs[i];
        uint64_t *host = malloc((size_t)sig->bytes);
        if (!host) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        expand_rows(host, params, sig->batch_count * sig->component_count, sig->limb_count,
                    sig->basis == VALUE_BASIS_QP, 1024 * i);
        if ((rc = device_allocate(e->dev, &words, sig->bytes, MEMORY_RETAINED, err)) == CKKS_OK) {
            e->inputs[i].signature = *sig;
            e->inputs[i].words = words;
            e->input_count = i + 1;
            if ((rc = device_copy_in(stream, words, host, sig->bytes, err)) == CKKS_OK)
                rc = device_stream_synchronize(stream, err);
        }
        free(host);
    }
    return rc;
}

static ckks_status example_keys(example *e, const graph_program_config *c, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    static const uint8_t lineage[LINEAGE_BYTES] = {0};
    const ckks_params *params = context_params(c->context);
    uint64_t **words = calloc(c->key_count + 1u, sizeof *words);
    if (!words) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    for (uint32_t k = 0; k < c->key_count; k++) {
        const key_requirement *key = &c->keys[k];
        const uint64_t count = key_resident_word_count(params, key);
        if (!(words[k] = malloc((size_t)count * sizeof **words))) {
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for example keys");
            goto out;
        }
        const bool with_p = key->kind != KEY_PUBLIC;
        const uint64_t limbs = key->level + 1u + (with_p ? params->p_count : 0u);
        expand_rows(words[k], params, (uint32_t)(count / (limbs * params_n(params))), key->level + 1, with_p,
                    0x100000u + 1024 * k);
    }
    rc = resident_keys_from_words(&e->keys, e->dev, c->context, c->keys, (const uint64_t *const *)words,
                                  c->key_count, lineage, err);
out:
    for (uint32_t k = 0; k < c->key_count; k++) free(words[k]);
    free(words);
    return rc;
}

static ckks_status example_create(example *e, slot *s, const graph_program_config *c, ckks_error *err) {
    ckks_status rc;
    memset(e, 0, sizeof *e);
    e->dev = graph_slot_device(s->graph);
    if (!(e->inputs = calloc(c->input_count + 1u, sizeof *e->inputs)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    if ((rc = example_inputs(e, s, c, err)) == CKKS_OK && c->key_count) rc = example_keys(e, c, err);
    if (rc != CKKS_OK) example_fini(e);
    return rc;
}

ckks_status program_bring_up(slot *s, model *m, int32_t warmup, ckks_error *err) {
    ckks_status rc;
    example e = {0};
    graph_program *program = NULL;
    graph_program_stats stats;
    uint8_t digest[32];
    if ((rc = graph_program_create(&program, s->graph, &m->program, err)) != CKKS_OK) goto out;
    if ((rc = example_create(&e, s, &m->program, err)) != CKKS_OK) goto out;
    if ((rc = graph_program_capture(program, warmup, e.inputs, e.keys, err)) != CKKS_OK) goto out;
    slot_progress(s);
    example_fini(&e);
    if ((rc = workload_self_test(m->workload, program, digest, err)) != CKKS_OK) {
        ckks_error_stage(err, "self test");
        goto out;
    }
    /* the self test used a fixed stream key */
    if ((rc = graph_program_reseed(program, NULL, err)) != CKKS_OK) goto out;
    graph_program_get_stats(program, &stats);
    log_write(
        LOG_LEVEL_INFO,
        "event=captured model=%s version=%s slot=%u kernels=%u copies=%u warmup_ms=%.1f capture_ms=%.1f "
        "replay_ms=%.1f arena_bytes=%llu",
        m->name, m->version, s->index, stats.kernel_nodes, stats.copy_nodes, (double)stats.warmup_ns / 1e6,
        (double)stats.capture_ns / 1e6, (double)stats.first_replay_ns / 1e6,
        (unsigned long long)stats.arena_bytes);
    s->programs[m->index] = program, program = NULL;
out:
    graph_program_destroy(program);
    example_fini(&e);
    return rc;
}

void program_take_down(slot *s, const model *m) {
    graph_program_destroy(s->programs[m->index]);
    s->programs[m->index] = NULL;
}
