/*
 * Requests with known answers: encrypted once before anything is measured, so that the load generator costs
 * next to nothing, and evaluated once by the CPU device, with which every later answer is compared.
 */
#include "client/ctl/bench.h"

#include "kernels/scheme/encoder.h"
#include "proto/packing.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

static ckks_status no_memory(ckks_error *err) {
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for requests");
}

static void request_fini(bench_request *r, const bench_requests *all) {
    for (uint32_t i = 0; i < all->plan->input_count; i++) {
        if (r->packed) free(r->packed[i]);
        if (r->seeds) free(r->seeds[i]);
    }
    for (uint32_t i = 0; r->expected && i < all->plan->output_count; i++) free(r->expected[i]);
    free(r->inputs);
    free(r->packed);
    free(r->seeds);
    free(r->expected);
}

void bench_requests_fini(bench_requests *all) {
    for (uint32_t i = 0; all->requests && i < all->tenant_count * all->per_tenant; i++)
        request_fini(&all->requests[i], all);
    for (uint32_t i = 0; all->tenants && i < all->tenant_count; i++) {
        if (all->tenants[i].keys) resident_keys_release(all->tenants[i].keys);
        client_key_set_destroy(all->tenants[i].set);
        client_secret_key_destroy(all->tenants[i].secret);
    }
    free(all->requests);
    free(all->tenants);
    *all = (bench_requests){0};
}

/* ---- encrypting ---- */

/* One batch entry: random slots, encrypted, component 0 packed. */
static ckks_status encrypt_entry(uint8_t *packed, const uint8_t seed[SEED_BYTES], uint32_t entry,
                                 const client_secret_key *secret, const value_signature *s, double *slots,
                                 uint64_t *words, ckks_error *err) {
    const ckks_params *params = context_params(secret->context);
    const uint32_t count = params_slot_count_max(params), level = s->limb_count - 1;
    uint64_t *plain = words, *c0 = words + (size_t)s->limb_count * params_n(params);
    for (uint32_t i = 0; i < count; i++) slots[i] = (double)(int32_t)randombytes_random() * 0x1p-31;
    ckks_status rc = encoder_encode(plain, secret->context, slots, NULL, count, level, false, s->scale, err);
    if (rc == CKKS_OK) rc = encrypt_symmetric_entry(c0, seed, entry, secret->key, plain, level, err);
    if (rc == CKKS_OK) packing_pack(packed, c0, params, level, false, 1);
    return rc;
}

static ckks_status encrypt_input(bench_request *r, uint32_t index, const client_secret_key *secret,
                                 const value_signature *s, ckks_error *err) {
    const ckks_params *params = context_params(secret->context);
    const uint64_t entry_bytes = packing_poly_bytes(params, s->limb_count - 1, false, 1);
    ckks_status rc = CKKS_OK;
    r->packed[index] = malloc(entry_bytes * s->batch_count);
    r->seeds[index] = malloc(SEED_BYTES);
    double *slots = malloc(params_slot_count_max(params) * sizeof *slots);
    uint64_t *words = malloc(2 * (size_t)s->limb_count * params_n(params) * sizeof *words);
    if (!r->packed[index] || !r->seeds[index] || !slots || !words) rc = no_memory(err);
    if (rc == CKKS_OK) randombytes_buf(r->seeds[index], SEED_BYTES);
    for (uint32_t b = 0; b < s->batch_count && rc == CKKS_OK; b++)
        rc = encrypt_entry(r->packed[index] + b * entry_bytes, r->seeds[index], b, secret, s, slots, words,
                           err);
    r->inputs[index] = (graph_input){.source = GRAPH_SOURCE_PACKED_HOST,
                                     .signature = *s,
                                     .data = r->packed[index],
                                     .bytes = entry_bytes * s->batch_count,
                                     .is_seeded = true,
                                     .seed = r->seeds[index]};
    memcpy(r->inputs[index].lineage, secret_key_lineage(secret->key), LINEAGE_BYTES);
    free(slots);
    free(words);
    return rc;
}

static ckks_status make_request(bench_request *r, const bench_requests *all, ckks_error *err) {
    const plan *p = all->plan;
    ckks_status rc = CKKS_OK;
    r->inputs = calloc(p->input_count, sizeof *r->inputs);
    r->packed = calloc(p->input_count, sizeof *r->packed);
    r->seeds = calloc(p->input_count, sizeof *r->seeds);
    r->expected = calloc(p->output_count, sizeof *r->expected);
    if (!r->inputs || !r->packed || !r->seeds || !r->expected) return no_memory(err);
    for (uint32_t i = 0; i < p->input_count && rc == CKKS_OK; i++)
        rc = encrypt_input(r, i, all->tenants[r->tenant].secret, &all->program.inputs[i], err);
    return rc;
}

/* ---- keys ---- */

static ckks_status upload(resident_keys **out, device *dev, const bench_tenant *t, ckks_error *err) {
    const ckks_params *params = context_params(t->secret->context);
    const client_key_set *set = t->set;
    packed_key *packed = calloc(set->key_count, sizeof *packed);
    if (!packed) return no_memory(err);
    const uint8_t *at = set->payload;
    for (uint32_t i = 0; i < set->key_count; i++) {
        packed[i] = (packed_key){set->keys[i], at, packing_key_bytes(params, &set->keys[i])};
        at += packed[i].packed_bytes;
    }
    const ckks_status rc = resident_keys_upload(out, dev, t->secret->context, packed, set->key_count,
                                                set->seed, set->lineage, err);
    free(packed);
    return rc;
}

static ckks_status make_tenant(bench_tenant *t, const bench_requests *all, ckks_error *err) {
    const plan *p = all->plan;
    ckks_status rc = client_secret_key_generate(&t->secret, p->params, err);
    if (rc != CKKS_OK || p->key_count == 0) return rc;
    rc = client_key_set_generate(&t->set, t->secret, p->keys, p->key_count, NULL, NULL, err);
    if (rc == CKKS_OK) rc = upload(&t->keys, all->dev, t, err);
    return rc;
}

/* ---- the CPU's answers ---- */

typedef struct reference {
    device *dev;
    workload *work;
    graph_slot *slot;
    graph_program *program;
    graph_program_config config;
} reference;

static void reference_close(reference *f) {
    graph_program_destroy(f->program);
    graph_slot_destroy(f->slot);
    workload_destroy(f->work);
    device_close(f->dev);
}

static ckks_status reference_open(reference *f, const plan *p, ckks_error *err) {
    const device_config cpu = {.kind = DEVICE_CPU};
    workload_memory memory;
    ckks_status rc;
    if ((rc = device_open(&f->dev, &cpu, err)) != CKKS_OK) return rc;
    if ((rc = workload_prepare(&f->work, f->dev, p, NULL, err)) != CKKS_OK) return rc;
    workload_memory_account(f->work, &memory);
    workload_program_config(f->work, &f->config);
    if ((rc = graph_slot_create(&f->slot, f->dev, memory.arena_bytes, err)) != CKKS_OK) return rc;
    if ((rc = graph_program_create(&f->program, f->slot, &f->config, err)) != CKKS_OK) return rc;
    rc = workload_capture(f->work, f->program, 0, err);
    workload_self_test_end(f->work);
    return rc;
}

static ckks_status answer(bench_request *r, reference *f, resident_keys *keys, ckks_error *err) {
    const uint32_t count = f->config.input_count;
    graph_result result = {0};
    graph_input *inputs = calloc(count, sizeof *inputs);
    if (!inputs) return no_memory(err);
    for (uint32_t i = 0; i < count; i++) {
        inputs[i] = r->inputs[i];
        inputs[i].signature = f->config.inputs[i]; /* it names the other device */
    }
    ckks_status rc = graph_program_replay(f->program, &result, inputs, count, keys, GRAPH_OUTPUT_OWNED, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < result.output_count; i++) {
        const uint64_t bytes = result.outputs[i].signature.bytes;
        if (!(r->expected[i] = malloc(bytes)))
            rc = no_memory(err);
        else
            memcpy(r->expected[i], result.outputs[i].words, bytes);
    }
    graph_result_release(&result);
    free(inputs);
    return rc;
}

static ckks_status answer_all(bench_requests *all, ckks_error *err) {
    reference f = {0};
    ckks_status rc = reference_open(&f, all->plan, err);
    for (uint32_t t = 0; t < all->tenant_count && rc == CKKS_OK; t++) {
        resident_keys *keys = NULL;
        if (all->plan->key_count) rc = upload(&keys, f.dev, &all->tenants[t], err);
        for (uint32_t i = 0; i < all->per_tenant && rc == CKKS_OK; i++)
            rc = answer(&all->requests[t * all->per_tenant + i], &f, keys, err);
        if (keys) resident_keys_release(keys);
    }
    if (f.program) graph_program_close(f.program); /* it holds the last payload's keys */
    reference_close(&f);
    return rc;
}

ckks_status bench_requests_make(bench_requests *out, device *dev, workload *work, uint32_t tenant_count,
                                uint32_t per_tenant, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    *out = (bench_requests){
        .plan = workload_plan(work), .dev = dev, .tenant_count = tenant_count, .per_tenant = per_tenant};
    workload_program_config(work, &out->program);
    if (out->program.uses_randomness)
        return ckks_error_set(err, CKKS_UNSUPPORTED, "program",
                              "it draws random numbers: there are no words to compare its answers with");
    out->tenants = calloc(tenant_count, sizeof *out->tenants);
    out->requests = calloc((size_t)tenant_count * per_tenant, sizeof *out->requests);
    if (!out->tenants || !out->requests) rc = no_memory(err);
    for (uint32_t t = 0; t < tenant_count && rc == CKKS_OK; t++) {
        rc = make_tenant(&out->tenants[t], out, err);
        for (uint32_t i = 0; i < per_tenant && rc == CKKS_OK; i++) {
            bench_request *r = &out->requests[t * per_tenant + i];
            r->tenant = t;
            rc = make_request(r, out, err);
        }
    }
    if (rc == CKKS_OK) rc = answer_all(out, err);
    if (rc != CKKS_OK) bench_requests_fini(out);
    return rc;
}

bool bench_requests_match(const bench_requests *all, const bench_request *request,
                          const graph_result *result) {
    if (result->output_count != all->plan->output_count) return false;
    for (uint32_t i = 0; i < result->output_count; i++)
        if (memcmp(result->outputs[i].words, request->expected[i], result->outputs[i].signature.bytes) != 0)
            return false;
    return true;
}
