#include "tests/support/fake_server.h"

#include "proto/frame.h"
#include "proto/packing.h"

#include <nng/protocol/reqrep0/rep.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

fake_server server;
rpc_connection *connection;
client_model *model;
client_secret_key *secret;

/* ---- replies ---- */

typedef struct fake_reply {
    Ckksd__V1__Status status;
    ProtobufCMessage *payload;
    const uint8_t *segment[2];
    uint64_t segment_bytes[2];
    uint32_t segment_kind;
    uint32_t segment_count;
    uint8_t id[16];
    bool has_status;
} fake_reply;

static nng_msg *encode(const fake_reply *r, lie mode) {
    Ckksd__V1__ReplyHeader h = CKKSD__V1__REPLY_HEADER__INIT;
    Ckksd__V1__Segment items[2], *list[2];
    frame_segment layout[2];
    Ckksd__V1__Status status = r->status;
    uint8_t payload[65536], id[16];
    memcpy(id, r->id, 16);
    h.status = r->has_status ? &status : NULL;
    h.has_request_id = 1, h.request_id = (ProtobufCBinaryData){16, id};
    if (r->payload) {
        h.has_payload = 1;
        h.payload = (ProtobufCBinaryData){protobuf_c_message_pack(r->payload, payload), payload};
    }
    fake_reply apart = *r;
    if (mode == PAYLOAD_APART && r->segment_count == 0) {
        h.has_payload = 0;
        apart.segment_count = 1, apart.segment_kind = CKKSD__V1__SEGMENT_KIND__SEGMENT_LIST;
        apart.segment[0] = payload, apart.segment_bytes[0] = h.payload.len;
        r = &apart;
    }
    for (uint32_t i = 0; i < r->segment_count; i++)
        layout[i] = (frame_segment){r->segment_kind, 0, r->segment_bytes[i]};
    frame_layout(0, layout, r->segment_count);
    for (uint32_t i = 0; i < r->segment_count; i++) {
        ckksd__v1__segment__init(&items[i]);
        items[i].has_kind = items[i].has_offset = items[i].has_length = 1;
        items[i].kind = layout[i].kind, items[i].offset = layout[i].offset,
        items[i].length = layout[i].length;
        if (mode == OVERLAPPING_SEGMENT) items[i].offset += 16;
        list[i] = &items[i];
    }
    h.n_segments = r->segment_count, h.segments = list;
    const uint32_t header_bytes = (uint32_t)ckksd__v1__reply_header__get_packed_size(&h);
    const uint64_t total = frame_layout(header_bytes, layout, r->segment_count);
    nng_msg *m = NULL;
    while (nng_msg_alloc(&m, (size_t)total) != 0) { /* an injected failure is the client's to meet */
    }
    uint8_t *body = nng_msg_body(m);
    memset(body, 0, (size_t)total);
    ckksd__v1__reply_header__pack(&h, body + FRAME_PREFIX_BYTES);
    uint8_t *area = frame_write_prefix(body, header_bytes);
    for (uint32_t i = 0; i < r->segment_count; i++)
        memcpy(area + layout[i].offset, r->segment[i], (size_t)r->segment_bytes[i]);
    if (mode == DIRTY_PADDING) body[FRAME_PREFIX_BYTES + header_bytes] = header_bytes % 16 ? 1 : 0;
    if (mode == CUT_FRAME) nng_msg_chop(m, 24);
    if (mode == GARBAGE) memset(body, 0xa5, (size_t)total);
    return m;
}

char *fake_server_text(const char *t) {
    union {
        const char *in;
        char *out;
    } u = {.in = t};
    return u.out;
}

static void refuse(fake_reply *r, uint32_t code, const char *reason, const char *message, uint32_t retry_ms) {
    r->status.code = code;
    r->status.reason = fake_server_text(reason);
    r->status.message = fake_server_text(message);
    if (retry_ms) r->status.has_retry_after_ms = 1, r->status.retry_after_ms = retry_ms;
}

/* ---- methods ---- */

static Ckksd__V1__InferReply infer_reply;
static Ckksd__V1__Signature infer_signature, *infer_outputs[1];
static uint8_t infer_digest[32], infer_params[32];
static uint8_t *infer_words;

/* The identity: both components whole. */
static void answer_infer(fake_server *s, fake_reply *r, const Ckksd__V1__RequestHeader *h,
                         const frame_view *view) {
    ProtobufCMessage *message = NULL;
    if (message_unpack(&message, &ckksd__v1__infer_request__descriptor, h->payload.data, h->payload.len,
                       1u << 20, "infer", NULL) != CKKS_OK)
        abort();
    const Ckksd__V1__InferRequest *q = (const Ckksd__V1__InferRequest *)message;
    const ckks_params *p = &s->fixture.params;
    const uint64_t half = packing_poly_bytes(p, 1, false, 1);
    const uint32_t n = params_n(p);
    memcpy(infer_words, view->segments + h->segments[0]->offset, (size_t)half);
    uint64_t *c1 = malloc(2 * (size_t)n * sizeof *c1);
    for (uint32_t i = 0; i < 2; i++)
        seed_expand(c1 + (size_t)i * n, n, p->prime[i], q->seeds[0].data, SEED_CIPHERTEXT, 0, i);
    packing_pack(infer_words + half, c1, p, 1, false, 1);
    free(c1);
    message_free(message);
    infer_signature = s->fixture.signature;
    memcpy(infer_params, p->id, 32);
    infer_signature.parameter_id = (ProtobufCBinaryData){32, infer_params};
    infer_outputs[0] = &infer_signature;
    ckksd__v1__infer_reply__init(&infer_reply);
    memset(infer_digest, 0x5a, 32);
    infer_reply.model = fake_server_text(s->mode == OTHER_MODEL ? "other" : "identity");
    infer_reply.version = fake_server_text(s->mode == OTHER_VERSION ? "2" : "1");
    infer_reply.has_model_digest = s->mode != NO_DIGEST;
    infer_reply.model_digest = (ProtobufCBinaryData){32, infer_digest};
    if (s->mode == OTHER_DIGEST) infer_digest[31] ^= 1;
    infer_reply.n_outputs = s->mode == NO_OUTPUTS ? 0 : 1, infer_reply.outputs = infer_outputs;
    if (s->mode == SCALE_ONE_ULP_OFF) infer_signature.scale_bits++;
    if (s->mode == OTHER_PARAMETERS) infer_params[0] ^= 1;
    if (s->mode == BAD_RESIDUES) memset(infer_words, 0xff, 64);
    r->payload = s->mode == NO_PAYLOAD ? NULL : &infer_reply.base;
    r->segment_count = s->mode == EXTRA_SEGMENT ? 2 : 1;
    r->segment_kind = s->mode == WRONG_SEGMENT_KIND ? 2 : 1;
    r->segment[0] = r->segment[1] = infer_words;
    r->segment_bytes[0] = r->segment_bytes[1] =
        2 * half - (s->mode == SHORT_SEGMENT ? 16 : 0) + (s->mode == LONG_SEGMENT ? 16 : 0);
    if (s->mode == REFUSE_UNKNOWN_KEY) refuse(r, RPC_NOT_FOUND, "KEY_UNKNOWN", "no such key set", 0);
    /* colour, line ends, U+202E (right to left), a broken byte */
    static const char escapes[] = {'l', 'o', 'o',        'k',        ':',        0x1b,       '[',
                                   '3', '1', 'm',        '\r',       '\n',       'r',        'e',
                                   'd', ' ', (char)0xe2, (char)0x80, (char)0xae, (char)0xff, 0};
    if (s->mode == REFUSE_WITH_ESCAPES) refuse(r, RPC_INVALID_ARGUMENT, "", escapes, 0);
    if (s->mode == FULL_TWICE && s->calls <= 2)
        refuse(r, RPC_RESOURCE_EXHAUSTED, "QUEUE_FULL", "queue is full", 20);
    if (s->mode == DRAIN_ONCE && s->calls == 1) refuse(r, RPC_UNAVAILABLE, "DRAINING", "going down", 20);
    if (r->status.code) r->payload = NULL, r->segment_count = 0;
}

static uint32_t missing_list[64];
static size_t list_missing(const fake_server *s) {
    size_t count = 0;
    if (s->asked) {
        memcpy(missing_list, s->asked, s->asked_count * sizeof *s->asked);
        return s->asked_count;
    }
    for (uint32_t i = 0; i < s->part_count; i++)
        if (!s->has_part[i]) missing_list[count++] = i;
    return count;
}

static void answer_keys(fake_server *s, fake_reply *r, const Ckksd__V1__RequestHeader *h) {
    static Ckksd__V1__KeyBeginReply begin;
    static Ckksd__V1__KeyStatusReply status;
    static Ckksd__V1__KeyPartReply part;
    static Ckksd__V1__KeyCommitReply commit;
    static uint8_t id[32];
    ProtobufCMessage *message = NULL;
    if (!strcmp(h->method, "Keys/KeyBegin")) {
        if (message_unpack(&message, &ckksd__v1__key_begin_request__descriptor, h->payload.data,
                           h->payload.len, 4u << 20, "begin", NULL) != CKKS_OK)
            abort();
        const Ckksd__V1__KeyBeginRequest *q = (const Ckksd__V1__KeyBeginRequest *)message;
        memcpy(id, q->manifest->id.data, 32);
        s->part_count = (uint32_t)q->n_part_digests;
        s->part_bytes = q->part_bytes, s->payload_bytes = q->payload_bytes;
        s->begin_count++;
        ckksd__v1__key_begin_reply__init(&begin);
        begin.has_key_set = 1, begin.key_set = (ProtobufCBinaryData){32, id};
        begin.n_missing_parts = list_missing(s), begin.missing_parts = missing_list;
        r->payload = &begin.base;
    } else if (!strcmp(h->method, "Keys/KeyPart")) {
        if (message_unpack(&message, &ckksd__v1__key_part_request__descriptor, h->payload.data,
                           h->payload.len, 4096, "part", NULL) != CKKS_OK)
            abort();
        const uint32_t index = ((const Ckksd__V1__KeyPartRequest *)message)->index;
        s->parts_seen++;
        const uint64_t rest = s->payload_bytes - index * s->part_bytes;
        s->wrong_parts += h->segments[0]->length != (rest < s->part_bytes ? rest : s->part_bytes);
        if (!(s->drop_first_parts && s->parts_seen == 1)) s->has_part[index] = true;
        ckksd__v1__key_part_reply__init(&part);
        r->payload = &part.base;
    } else if (!strcmp(h->method, "Keys/KeyStatus")) {
        ckksd__v1__key_status_reply__init(&status);
        status.n_missing_parts = list_missing(s), status.missing_parts = missing_list;
        r->payload = &status.base;
    } else {
        s->commit_count++;
        ckksd__v1__key_commit_reply__init(&commit);
        r->payload = &commit.base;
    }
    message_free(message);
}

static void answer(fake_server *s, fake_reply *r, const Ckksd__V1__RequestHeader *h, const frame_view *view) {
    static Ckksd__V1__ServerMetadataReply metadata;
    static Ckksd__V1__ModelMetadataReply description;
    if (!strcmp(h->method, "Inference/ServerMetadata")) {
        ckksd__v1__server_metadata_reply__init(&metadata);
        static char moves_the_cursor[16];
        strcpy(moves_the_cursor, "fake\033[2J\xff");
        metadata.name = moves_the_cursor, metadata.version = fake_server_text("0");
        metadata.has_wire_version_min = metadata.has_wire_version_max = 1;
        metadata.wire_version_min = metadata.wire_version_max = 1;
        static Ckksd__V1__Endpoint bulk, *endpoints[1] = {&bulk};
        ckksd__v1__endpoint__init(&bulk);
        bulk.address = s->bulk_address;
        bulk.has_bulk = 1, bulk.bulk = 1;
        metadata.n_endpoints = 1, metadata.endpoints = endpoints;
        static Ckksd__V1__Limits limits;
        ckksd__v1__limits__init(&limits);
        limits.has_key_part_bytes = 1, limits.key_part_bytes = s->part_limit;
        metadata.limits = &limits;
        r->payload = &metadata.base;
    } else if (!strcmp(h->method, "Inference/ModelMetadata")) {
        ckksd__v1__model_metadata_reply__init(&description);
        description.description = &s->fixture.description;
        r->payload = &description.base;
    } else if (!strcmp(h->method, "Inference/ModelInfer")) {
        if (s->calls < 8) memcpy(s->ids[s->calls], h->request_id.data, 16);
        s->calls++;
        answer_infer(s, r, h, view);
    } else {
        answer_keys(s, r, h);
    }
}

static void *serve(void *context) {
    fake_server *s = context;
    nng_msg *m;
    while (nng_recvmsg(s->socket, &m, 0) == 0) {
        frame_view view;
        ProtobufCMessage *header = NULL;
        pthread_mutex_lock(&s->lock);
        fake_reply r = {.has_status = s->mode != NO_STATUS};
        ckksd__v1__status__init(&r.status);
        r.status.has_code = 1;
        if (frame_parse(&view, nng_msg_body(m), nng_msg_len(m), NULL) != CKKS_OK ||
            message_unpack(&header, &ckksd__v1__request_header__descriptor, view.header, view.header_bytes,
                           1u << 20, "header", NULL) != CKKS_OK)
            abort();
        const Ckksd__V1__RequestHeader *h = (const Ckksd__V1__RequestHeader *)header;
        const bool is_infer = !strcmp(h->method, "Inference/ModelInfer");
        memcpy(r.id, h->request_id.data, 16);
        answer(s, &r, h, &view);
        if (s->mode == WRONG_REQUEST_ID && is_infer) r.id[0] ^= 1;
        nng_msg *reply = encode(&r, is_infer || s->mode == PAYLOAD_APART ? s->mode : HONEST);
        message_free(header);
        nng_msg_free(m);
        const bool is_silent = is_infer && (s->mode == SILENT || (s->mode == SILENT_ONCE && s->calls == 1));
        pthread_mutex_unlock(&s->lock);
        if (is_silent) {
            nng_msg_free(reply);
            continue; /* a REP socket that receives again has given the first request up */
        }
        if (nng_sendmsg(s->socket, reply, 0) != 0) nng_msg_free(reply);
    }
    return NULL;
}

static void pipe_gone(nng_pipe pipe, nng_pipe_ev event, void *context) {
    fake_server *s = context;
    (void)pipe, (void)event;
    atomic_fetch_add(&s->pipes_gone, 1);
}

int fake_server_start(void **state) {
    (void)state;
    ckks_error err = {0};
    model_fixture_init(&server.fixture);
    server.part_limit = 20000;
    pthread_mutex_init(&server.lock, NULL);
    snprintf(server.address, sizeof server.address, "ipc:///tmp/ckks-rpc-%d.sock", (int)getpid());
    snprintf(server.bulk_address, sizeof server.bulk_address, "ipc:///tmp/ckks-rpc-%d-bulk.sock",
             (int)getpid());
    infer_words = calloc(1, 2 * packing_poly_bytes(&server.fixture.params, 1, false, 1) + 16);
    if (nng_rep0_open(&server.socket) != 0 ||
        nng_pipe_notify(server.socket, NNG_PIPE_EV_REM_POST, pipe_gone, &server) != 0 ||
        nng_listen(server.socket, server.address, NULL, 0) != 0 ||
        nng_listen(server.socket, server.bulk_address, NULL, 0) != 0)
        return -1;
    pthread_create(&server.thread, NULL, serve, &server);
    const rpc_config config = {.address = server.address,
                               .token = "id.secret",
                               .connect_ms = 60000,
                               .timeout_ms = 120000,
                               .attempt_ms = 60000};
    if (rpc_connect(&connection, &config, &err) != CKKS_OK) return -1;
    if (rpc_model(&model, connection, "identity", NULL, NULL, &err) != CKKS_OK) return -1;
    return client_secret_key_generate(&secret, &model->params, &err) == CKKS_OK ? 0 : -1;
}

int fake_server_stop(void **state) {
    (void)state;
    rpc_close(connection);
    nng_close(server.socket);
    pthread_join(server.thread, NULL);
    client_model_destroy(model);
    client_secret_key_destroy(secret);
    free(infer_words);
    return 0;
}

void fake_server_set_mode(lie mode) {
    pthread_mutex_lock(&server.lock);
    server.mode = mode, server.calls = 0;
    pthread_mutex_unlock(&server.lock);
}

ckks_status fake_server_infer(lie mode, uint32_t timeout_ms, double scores[2], rpc_timing *timing,
                              ckks_error *err) {
    const double elements[4] = {1.25, -3, 0, 0};
    const uint8_t key_set[32] = {1};
    client_ciphertexts in = {0}, out = {0};
    fake_server_set_mode(mode);
    ckks_status rc = client_encrypt(&in, model, secret, NULL, elements, 1, err);
    if (rc == CKKS_OK) rc = rpc_infer(&out, connection, model, key_set, &in, timeout_ms, timing, err);
    if (rc == CKKS_OK) rc = client_decrypt(scores, model, secret, &out, 1, err);
    client_ciphertexts_fini(&in);
    client_ciphertexts_fini(&out);
    pthread_mutex_lock(&server.lock); /* and see what the server thread has written */
    server.mode = HONEST;
    pthread_mutex_unlock(&server.lock);
    return rc;
}
