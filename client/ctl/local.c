#include "client/ctl/local.h"

#include "client/lib/rpc_internal.h"
#include "proto/packing.h"

#include <stdlib.h>
#include <string.h>

static double since_ms(uint64_t begin_ns) {
    return (double)(rpc_now_ns() - begin_ns) * 1e-6;
}

/* ---- keys ---- */

void local_keys_fini(local_keys *keys) {
    if (!keys) return;
    client_key_set_destroy(keys->set);
    client_secret_key_destroy(keys->secret);
    *keys = (local_keys){0};
}

ckks_status local_keys_make(local_keys *out, const client_model *model, client_progress progress,
                            void *progress_context, ckks_error *err) {
    const uint64_t begin_ns = rpc_now_ns();
    *out = (local_keys){0};
    ckks_status rc = client_secret_key_generate(&out->secret, &model->params, err);
    if (rc == CKKS_OK && model->key_count)
        rc = client_key_set_generate(&out->set, out->secret, model->keys, model->key_count, progress,
                                     progress_context, err);
    out->make_ms = since_ms(begin_ns);
    if (rc != CKKS_OK) local_keys_fini(out);
    return rc;
}

/* ---- the server's half ---- */

void local_server_close(local_server *server) {
    if (!server) return;
    if (server->program) graph_program_close(server->program); /* it holds the last request's keys */
    if (server->keys) resident_keys_release(server->keys);
    graph_program_destroy(server->program);
    graph_slot_destroy(server->slot);
    if (server->work) workload_self_test_end(server->work);
    workload_destroy(server->work);
    device_close(server->dev);
    *server = (local_server){0};
}

static ckks_status upload_keys(local_server *s, const local_keys *keys, ckks_error *err) {
    const client_key_set *set = keys->set;
    if (!set) return CKKS_OK;
    packed_key *packed = calloc(set->key_count, sizeof *packed);
    if (!packed) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for keys");
    const uint8_t *at = set->payload;
    for (uint32_t i = 0; i < set->key_count; i++) {
        packed[i] = (packed_key){set->keys[i], at, packing_key_bytes(&set->params, &set->keys[i])};
        at += packed[i].packed_bytes;
    }
    const ckks_status rc = resident_keys_upload(&s->keys, s->dev, workload_context(s->work), packed,
                                                set->key_count, set->seed, set->lineage, err);
    free(packed);
    return rc;
}

ckks_status local_server_open(local_server *out, const package *served, const local_keys *keys, uint32_t kind,
                              const workload_progress *progress, ckks_error *err) {
    const uint64_t begin_ns = rpc_now_ns();
    const device_config config = {.kind = (device_kind)kind};
    graph_program_config program;
    ckks_status rc;
    *out = (local_server){0};
    if ((rc = device_open(&out->dev, &config, err)) != CKKS_OK) goto out;
    snprintf(out->description, sizeof out->description, "%s", device_describe(out->dev));
    if ((rc = workload_prepare(&out->work, out->dev, &served->plan, progress, err)) != CKKS_OK) goto out;
    workload_memory_account(out->work, &out->memory);
    if ((rc = graph_slot_create(&out->slot, out->dev, out->memory.arena_bytes, err)) != CKKS_OK) goto out;
    workload_program_config(out->work, &program);
    if ((rc = graph_program_create(&out->program, out->slot, &program, err)) != CKKS_OK) goto out;
    if ((rc = workload_capture(out->work, out->program, 0, err)) != CKKS_OK) goto out;
    workload_self_test_end(out->work);
    rc = upload_keys(out, keys, err);
out:
    out->prepare_ms = since_ms(begin_ns);
    if (rc != CKKS_OK) local_server_close(out);
    return rc;
}

/* ---- a request ---- */

static ckks_status replay(graph_result *result, local_server *s, const client_ciphertexts *request,
                          ckks_error *err) {
    graph_program_config config;
    workload_program_config(s->work, &config);
    graph_input *inputs = calloc(request->count, sizeof *inputs);
    if (!inputs) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
    for (uint32_t i = 0; i < request->count; i++) {
        const client_ciphertext *c = &request->items[i];
        inputs[i] = (graph_input){.source = GRAPH_SOURCE_PACKED_HOST,
                                  .signature = config.inputs[i],
                                  .data = c->packed,
                                  .bytes = c->packed_bytes,
                                  .is_seeded = c->is_seeded,
                                  .seed = c->is_seeded ? c->seed : NULL};
        memcpy(inputs[i].lineage, request->lineage, LINEAGE_BYTES);
    }
    const ckks_status rc =
        graph_program_replay(s->program, result, inputs, request->count, s->keys, GRAPH_OUTPUT_OWNED, err);
    free(inputs);
    return rc;
}

/* outputs as they would travel */
static ckks_status pack_reply(client_ciphertexts *out, const graph_result *result, const client_model *model,
                              const uint8_t lineage[LINEAGE_BYTES], ckks_error *err) {
    *out = (client_ciphertexts){.count = 0};
    memcpy(out->lineage, lineage, LINEAGE_BYTES);
    if (!(out->items = calloc(result->output_count, sizeof *out->items)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a reply");
    for (uint32_t i = 0; i < result->output_count; i++) {
        client_ciphertext *c = &out->items[i];
        c->signature = model->outputs[i];
        const uint32_t level = c->signature.limb_count - 1;
        const uint32_t polynomials = c->signature.component_count * c->signature.batch_count;
        c->packed_bytes = packing_poly_bytes(&model->params, level, false, polynomials);
        out->count = i + 1;
        if (!(c->packed = malloc((size_t)c->packed_bytes)))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a reply");
        packing_pack(c->packed, result->outputs[i].words, &model->params, level, false, polynomials);
    }
    return CKKS_OK;
}

static uint64_t bytes_of(const client_ciphertexts *list) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < list->count; i++) bytes += list->items[i].packed_bytes;
    return bytes;
}

ckks_status local_infer(double *scores, local_timing *timing, local_server *server, const client_model *model,
                        const local_keys *keys, const double *elements, uint32_t row_count, ckks_error *err) {
    client_ciphertexts request = {0}, reply = {0};
    graph_result result = {0};
    ckks_status rc;
    uint64_t begin_ns = rpc_now_ns();
    *timing = (local_timing){0};
    if ((rc = client_encrypt(&request, model, keys->secret, NULL, elements, row_count, err)) != CKKS_OK)
        goto out;
    timing->encrypt_ms = since_ms(begin_ns);
    timing->request_bytes = bytes_of(&request);
    if ((rc = replay(&result, server, &request, err)) != CKKS_OK) goto out;
    timing->replay_ms = (double)result.replay_ns * 1e-6;
    timing->stage_ms = (double)result.stage_ns * 1e-6;
    if ((rc = pack_reply(&reply, &result, model, request.lineage, err)) != CKKS_OK) goto out;
    timing->reply_bytes = bytes_of(&reply);
    begin_ns = rpc_now_ns();
    rc = client_decrypt(scores, model, keys->secret, &reply, row_count, err);
    timing->decrypt_ms = since_ms(begin_ns);
out:
    graph_result_release(&result);
    client_ciphertexts_fini(&request);
    client_ciphertexts_fini(&reply);
    return rc;
}
