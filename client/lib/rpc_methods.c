/* Models, keys and inference, in terms of rpc_call. */
#include "client/lib/rpc_internal.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "proto/ciphertext_file.h"
#include "proto/key_file.h"

#include <stdlib.h>

#define KEY_PARTS_MAX  512u
#define KEY_PARTS_SANE 1900u /* 34 bytes each of a header of 65,536 */
#define KEY_ROUNDS_MAX 64u

/* protobuf-c's structures have no const; it only reads what it packs */
static char *unconst(const char *text) {
    union {
        const char *in;
        char *out;
    } u = {.in = text};
    return u.out;
}
static ProtobufCBinaryData binary(const uint8_t *data, size_t size) {
    union {
        const uint8_t *in;
        uint8_t *out;
    } u = {.in = data};
    return (ProtobufCBinaryData){size, u.out};
}

/* ---- models ---- */

ckks_status rpc_model(client_model **out, rpc_connection *connection, const char *name, const char *version,
                      const client_model_options *options, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    uint8_t *description = NULL;
    Ckksd__V1__ModelRequest payload = CKKSD__V1__MODEL_REQUEST__INIT;

    *out = NULL;
    payload.name = unconst(name);
    payload.version = version ? unconst(version) : NULL;
    const rpc_request request = {.method = "Inference/ModelMetadata",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__model_metadata_reply__descriptor};
    if ((rc = rpc_call(connection, &request, &reply, err)) != CKKS_OK) goto out;
    const Ckksd__V1__ModelDescription *d = ((Ckksd__V1__ModelMetadataReply *)reply.payload)->description;
    if (!d || !d->name || strcmp(d->name, name) != 0) {
        rc = ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "name",
                            "the server describes another model than \"%s\"", name);
        goto out;
    }
    if (version && (!d->version || strcmp(d->version, version) != 0)) {
        rc = ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "version",
                            "the server describes another version of \"%s\" than %s", name, version);
        goto out;
    }
    const size_t size = ckksd__v1__model_description__get_packed_size(d);
    if (!(description = malloc(size + 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a model");
        goto out;
    }
    ckksd__v1__model_description__pack(d, description);
    rc = client_model_create(out, description, size, NULL, options, err);
    if (rc == CKKS_MALFORMED || rc == CKKS_PARAMS_MISMATCH || rc == CKKS_SIGNATURE_MISMATCH ||
        rc == CKKS_INVALID_ARGUMENT) {
        rc = CKKS_UNTRUSTED_SERVER;
        if (err && err->code != CKKS_OK) err->code = rc;
    }
out:
    free(description);
    rpc_reply_fini(&reply);
    return rc;
}

/* ---- keys ---- */

typedef struct upload {
    rpc_connection *connection;
    const client_key_set *set;
    uint32_t part_bytes, part_count;
    uint64_t sent_bytes; /* or already there */
    client_progress progress;
    void *progress_context;
} upload;

/* Small parts show progress and lose little on a broken line; many parts fill the header with digests. */
static ckks_status choose_part_size(upload *u, ckks_error *err) {
    const Ckksd__V1__Limits *l = u->connection->server->limits;
    uint64_t limit = RPC_KEY_PART_BYTES_MAX;
    if (l && l->has_key_part_bytes && l->key_part_bytes && l->key_part_bytes < limit)
        limit = l->key_part_bytes;
    uint64_t part = (u->set->payload_bytes + KEY_PARTS_MAX - 1) / KEY_PARTS_MAX;
    if (part < RPC_KEY_PART_BYTES) part = RPC_KEY_PART_BYTES;
    part = align_up(part, 4096);
    u->part_bytes = (uint32_t)(part < limit ? part : limit);
    const uint64_t count = (u->set->payload_bytes + u->part_bytes - 1) / u->part_bytes;
    if (count > KEY_PARTS_SANE)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "key_part_bytes",
                              "the server takes %u bytes at a time: %llu parts, whose digests fit no request",
                              u->part_bytes, (unsigned long long)count);
    u->part_count = (uint32_t)count;
    return CKKS_OK;
}

static uint64_t part_size(const upload *u, uint32_t index) {
    const uint64_t at = (uint64_t)index * u->part_bytes, rest = u->set->payload_bytes - at;
    return rest < u->part_bytes ? rest : u->part_bytes;
}

static void report(const upload *u) {
    if (u->progress) u->progress(u->progress_context, u->sent_bytes, u->set->payload_bytes);
}

static ckks_status send_part(upload *u, uint32_t index, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    Ckksd__V1__KeyPartRequest payload = CKKSD__V1__KEY_PART_REQUEST__INIT;
    payload.has_key_set = 1, payload.key_set = binary(u->set->id, sizeof u->set->id);
    payload.has_index = 1, payload.index = index;
    const rpc_segment segment = {CKKSD__V1__SEGMENT_KIND__SEGMENT_KEY_PART,
                                 u->set->payload + (uint64_t)index * u->part_bytes, part_size(u, index)};
    const rpc_request request = {.method = "Keys/KeyPart",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__key_part_reply__descriptor,
                                 .is_bulk = true,
                                 .is_patient = true,
                                 .segments = &segment,
                                 .segment_count = 1};
    if ((rc = rpc_call(u->connection, &request, &reply, err)) == CKKS_OK) {
        u->sent_bytes += segment.bytes;
        report(u);
    }
    rpc_reply_fini(&reply);
    return rc;
}

/* missing parts, each once: an array that the caller frees */
static ckks_status copy_missing(uint32_t **out, size_t *count, const upload *u, const uint32_t *list,
                                size_t n, ckks_error *err) {
    for (size_t i = 0; i < n; i++)
        if (list[i] >= u->part_count || (i && list[i] <= list[i - 1]))
            return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "missing_parts",
                                  "asks for part %u of %u, or not in order", list[i], u->part_count);
    *count = n;
    if (!(*out = malloc((n + 1) * sizeof **out)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
    if (n) memcpy(*out, list, n * sizeof **out);
    return CKKS_OK;
}

static ckks_status key_begin(upload *u, bool *is_committed, uint32_t **missing, size_t *missing_count,
                             ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    uint8_t payload_digest[SHA256_BYTES], *manifest = NULL, *digests = NULL;
    ProtobufCBinaryData *list = NULL;
    size_t manifest_bytes = 0;
    ProtobufCMessage *message = NULL;
    const client_key_set *s = u->set;
    const key_set_content content = {&s->params, s->lineage, s->seed, s->keys, s->key_count, s->is_insecure};
    Ckksd__V1__KeyBeginRequest payload = CKKSD__V1__KEY_BEGIN_REQUEST__INIT;

    sha256(payload_digest, s->payload, (size_t)s->payload_bytes);
    if ((rc = key_set_manifest_build(&manifest, &manifest_bytes, &content, payload_digest, err)) != CKKS_OK)
        goto out;
    rc = message_unpack(&message, &ckksd__v1__key_set_manifest__descriptor, manifest, manifest_bytes,
                        KEY_SET_ARENA_BYTES, "key set manifest", err);
    if (rc != CKKS_OK) goto out;
    digests = malloc((size_t)u->part_count * SHA256_BYTES);
    list = calloc(u->part_count, sizeof *list);
    if (!digests || !list) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory");
        goto out;
    }
    for (uint32_t i = 0; i < u->part_count; i++) {
        sha256(digests + (size_t)i * SHA256_BYTES, s->payload + (uint64_t)i * u->part_bytes,
               (size_t)part_size(u, i));
        list[i] = binary(digests + (size_t)i * SHA256_BYTES, SHA256_BYTES);
    }
    payload.manifest = (Ckksd__V1__KeySetManifest *)message;
    payload.has_payload_bytes = 1, payload.payload_bytes = s->payload_bytes;
    payload.has_part_bytes = 1, payload.part_bytes = u->part_bytes;
    payload.n_part_digests = u->part_count, payload.part_digests = list;
    const rpc_request request = {.method = "Keys/KeyBegin",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__key_begin_reply__descriptor,
                                 .is_patient = true};
    if ((rc = rpc_call(u->connection, &request, &reply, err)) != CKKS_OK) goto out;
    const Ckksd__V1__KeyBeginReply *r = (const Ckksd__V1__KeyBeginReply *)reply.payload;
    if (!r->has_key_set || r->key_set.len != sizeof s->id ||
        memcmp(r->key_set.data, s->id, sizeof s->id) != 0) {
        rc = ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "key_set", "the server names another key set");
        goto out;
    }
    *is_committed = r->has_committed && r->committed;
    rc = copy_missing(missing, missing_count, u, r->missing_parts, r->n_missing_parts, err);
out:
    free(manifest);
    free(digests);
    free(list);
    message_free(message);
    rpc_reply_fini(&reply);
    return rc;
}

static ckks_status key_status(upload *u, uint32_t **missing, size_t *missing_count, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    Ckksd__V1__KeyStatusRequest payload = CKKSD__V1__KEY_STATUS_REQUEST__INIT;
    payload.has_key_set = 1, payload.key_set = binary(u->set->id, sizeof u->set->id);
    const rpc_request request = {.method = "Keys/KeyStatus",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__key_status_reply__descriptor,
                                 .is_patient = true};
    if ((rc = rpc_call(u->connection, &request, &reply, err)) != CKKS_OK) goto out;
    const Ckksd__V1__KeyStatusReply *r = (const Ckksd__V1__KeyStatusReply *)reply.payload;
    rc = copy_missing(missing, missing_count, u, r->missing_parts, r->n_missing_parts, err);
out:
    rpc_reply_fini(&reply);
    return rc;
}

static ckks_status key_commit(upload *u, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    Ckksd__V1__KeyCommitRequest payload = CKKSD__V1__KEY_COMMIT_REQUEST__INIT;
    payload.has_key_set = 1, payload.key_set = binary(u->set->id, sizeof u->set->id);
    const rpc_request request = {.method = "Keys/KeyCommit",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__key_commit_reply__descriptor,
                                 .is_patient = true};
    rc = rpc_call(u->connection, &request, &reply, err);
    rpc_reply_fini(&reply);
    return rc;
}

ckks_status rpc_register(rpc_connection *connection, const client_key_set *set, bool *was_there,
                         client_progress progress, void *progress_context, ckks_error *err) {
    ckks_status rc;
    upload u = {
        .connection = connection, .set = set, .progress = progress, .progress_context = progress_context};
    uint32_t *missing = NULL;
    size_t missing_count = 0;

    *was_there = false;
    if ((rc = choose_part_size(&u, err)) != CKKS_OK) goto out;
    if ((rc = key_begin(&u, was_there, &missing, &missing_count, err)) != CKKS_OK || *was_there) goto out;
    for (uint32_t round = 0; missing_count; round++) {
        if (round == KEY_ROUNDS_MAX) {
            rc = ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "missing_parts",
                                "the server keeps asking for parts it has");
            goto out;
        }
        /* a list cut at 1,024 says nothing of the rest; what is neither listed nor sent counts when it is
         * sent */
        uint64_t rest = 0;
        for (size_t i = 0; i < missing_count; i++) rest += part_size(&u, missing[i]);
        u.sent_bytes = set->payload_bytes > rest ? set->payload_bytes - rest : 0;
        report(&u);
        for (size_t i = 0; i < missing_count; i++)
            if ((rc = send_part(&u, missing[i], err)) != CKKS_OK) goto out;
        free(missing);
        missing = NULL;
        if ((rc = key_status(&u, &missing, &missing_count, err)) != CKKS_OK) goto out;
    }
    rc = key_commit(&u, err);
out:
    free(missing);
    return rc;
}

/* ---- inference ---- */

/* The messages of a request's ciphertexts. */
typedef struct infer_messages {
    signature_message *signatures;
    Ckksd__V1__Signature **list;
    ProtobufCBinaryData *seeds;
    rpc_segment *segments;
} infer_messages;

static void infer_messages_fini(infer_messages *m) {
    free(m->signatures);
    free(m->list);
    free(m->seeds);
    free(m->segments);
}

static ckks_status infer_messages_init(infer_messages *m, const client_ciphertexts *inputs, ckks_error *err) {
    *m = (infer_messages){
        .signatures = calloc(inputs->count, sizeof *m->signatures),
        .list = calloc(inputs->count, sizeof(Ckksd__V1__Signature *)),
        .seeds = calloc(inputs->count, sizeof *m->seeds),
        .segments = calloc(inputs->count, sizeof *m->segments),
    };
    if (!m->signatures || !m->list || !m->seeds || !m->segments)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
    for (uint32_t i = 0; i < inputs->count; i++) {
        const client_ciphertext *c = &inputs->items[i];
        signature_to_message(&m->signatures[i], &c->signature);
        m->list[i] = &m->signatures[i].message;
        m->seeds[i] = binary(c->seed, c->is_seeded ? SEED_BYTES : 0);
        m->segments[i] =
            (rpc_segment){CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT, c->packed, c->packed_bytes};
    }
    return CKKS_OK;
}

/* The reply is about this model, and its segments are what the model's outputs are: nothing is decrypted
 * before. */
static ckks_status read_outputs(client_ciphertexts *out, const rpc_reply *reply, const client_model *model,
                                const client_ciphertexts *inputs, ckks_error *err) {
    const Ckksd__V1__InferReply *r = (const Ckksd__V1__InferReply *)reply->payload;
    ckks_status rc;
    if (!r->model || strcmp(r->model, model->description->name) != 0 ||
        (model->description->version &&
         (!r->version || strcmp(r->version, model->description->version) != 0)))
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "model",
                              "the reply is of another model or version");
    if (model->has_digest && (!r->has_model_digest || r->model_digest.len != sizeof model->digest ||
                              memcmp(r->model_digest.data, model->digest, sizeof model->digest) != 0))
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "model_digest",
                              "the reply was computed by another package");
    if (r->n_outputs != model->output_count || reply->segment_count != model->output_count)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "outputs",
                              "%zu signatures and %u ciphertexts, expected %u", r->n_outputs,
                              reply->segment_count, model->output_count);
    if (!(out->items = calloc(model->output_count, sizeof *out->items)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a reply");
    out->count = model->output_count;
    out->row_count = inputs->row_count;
    out->is_received = true;
    memcpy(out->lineage, inputs->lineage, sizeof out->lineage);
    for (uint32_t i = 0; i < out->count; i++) {
        client_ciphertext *c = &out->items[i];
        const rpc_segment *s = &reply->segments[i];
        if (s->kind != CKKSD__V1__SEGMENT_KIND__SEGMENT_CIPHERTEXT)
            return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "segments", "segment %u is no ciphertext", i);
        if ((rc = signature_from_message(&c->signature, &model->params, r->outputs[i], err)) != CKKS_OK)
            return rc;
        if (!(c->packed = malloc((size_t)s->bytes + 1)))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a reply");
        memcpy(c->packed, s->data, (size_t)s->bytes);
        c->packed_bytes = s->bytes;
    }
    return client_ciphertexts_check(out, &model->params, model->outputs, model->output_count, err);
}

static void read_timing(rpc_timing *timing, const rpc_reply *reply, uint64_t begin_ns) {
    const Ckksd__V1__Timing *t = ((const Ckksd__V1__InferReply *)reply->payload)->timing;
    *timing = (rpc_timing){.total_ns = rpc_now_ns() - begin_ns,
                           .request_bytes = reply->request_bytes,
                           .reply_bytes = reply->reply_bytes,
                           .attempts = reply->attempts,
                           .begin_ns = begin_ns,
                           .trip = reply->trip};
    if (!t) return;
    timing->queue_ns = t->queue_ns, timing->stage_ns = t->stage_ns;
    timing->replay_ns = t->replay_ns, timing->copy_out_ns = t->copy_out_ns;
    timing->receive_ns = t->receive_ns, timing->check_ns = t->check_ns;
}

ckks_status rpc_infer(client_ciphertexts *out, rpc_connection *connection, const client_model *model,
                      const uint8_t key_set[32], const client_ciphertexts *inputs, uint32_t timeout_ms,
                      rpc_timing *timing, ckks_error *err) {
    ckks_status rc;
    rpc_reply reply = {0};
    infer_messages messages = {0};
    Ckksd__V1__InferRequest payload = CKKSD__V1__INFER_REQUEST__INIT;
    const uint64_t begin_ns = rpc_now_ns();

    *out = (client_ciphertexts){0};
    rc = client_ciphertexts_check(inputs, &model->params, model->inputs, model->input_count, err);
    if (rc != CKKS_OK) return rc;
    if ((rc = infer_messages_init(&messages, inputs, err)) != CKKS_OK) goto out;
    payload.model = model->description->name;
    payload.version = model->description->version;
    if (model->has_digest) payload.has_model_digest = 1, payload.model_digest = binary(model->digest, 32);
    if (model->key_count) payload.has_key_set = 1, payload.key_set = binary(key_set, 32);
    payload.has_lineage = 1, payload.lineage = binary(inputs->lineage, LINEAGE_BYTES);
    payload.n_inputs = inputs->count, payload.inputs = messages.list;
    /* with the public key no ciphertext has a seed, and none is listed */
    payload.n_seeds = inputs->items[0].is_seeded ? inputs->count : 0, payload.seeds = messages.seeds;
    const rpc_request request = {.method = "Inference/ModelInfer",
                                 .payload = &payload.base,
                                 .reply = &ckksd__v1__infer_reply__descriptor,
                                 .is_bulk = true,
                                 .is_patient = true,
                                 .segments = messages.segments,
                                 .segment_count = inputs->count,
                                 .timeout_ms = timeout_ms};
    if ((rc = rpc_call(connection, &request, &reply, err)) != CKKS_OK) goto out;
    if (timing) read_timing(timing, &reply, begin_ns);
    rc = read_outputs(out, &reply, model, inputs, err);
    if (rc != CKKS_OK) {
        client_ciphertexts_fini(out);
        if (rc != CKKS_RESOURCE_EXHAUSTED) {
            rc = CKKS_UNTRUSTED_SERVER;
            if (err && err->code != CKKS_OK) err->code = rc;
        }
    }
out:
    infer_messages_fini(&messages);
    rpc_reply_fini(&reply);
    return rc;
}
