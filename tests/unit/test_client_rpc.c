/* The RPC half against a server that lies, stalls and refuses: an nng REP socket in this process, behind ipc
 * sockets so that messages are copied as between processes. */
#include "client/lib/rpc.h"
#include "tests/support/library_fault.h"
#include "tests/support/model_fixture.h"

#include "kernels/base/hash.h"
#include "proto/frame.h"
#include "proto/packing.h"

#include <nng/protocol/reqrep0/rep.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

typedef enum lie {
    HONEST,
    OTHER_MODEL,
    OTHER_VERSION,
    OTHER_DIGEST,
    NO_DIGEST,
    NO_OUTPUTS,
    EXTRA_SEGMENT,
    SCALE_ONE_ULP_OFF,
    OTHER_PARAMETERS,
    SHORT_SEGMENT,
    LONG_SEGMENT,
    WRONG_SEGMENT_KIND,
    WRONG_REQUEST_ID,
    NO_STATUS,
    NO_PAYLOAD,
    CUT_FRAME,
    GARBAGE,
    DIRTY_PADDING,
    OVERLAPPING_SEGMENT,
    BAD_RESIDUES,
    REFUSE_UNKNOWN_KEY,
    REFUSE_WITH_ESCAPES,
    FULL_TWICE,
    DRAIN_ONCE,
    SILENT_ONCE,
    SILENT,
    PAYLOAD_APART
} lie;

typedef struct fake_server {
    nng_socket socket;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows, which the test and the server thread share */
    char address[64], bulk_address[64];
    lie mode;
    uint32_t calls; /* of the method under test */
    uint8_t ids[8][16];
    atomic_uint pipes_gone;
    model_fixture fixture;
    /* keys */
    uint32_t part_count, parts_seen, begin_count, commit_count;
    bool has_part[64];
    uint64_t part_bytes, payload_bytes;
    uint32_t wrong_parts;  /* of another size than declared */
    bool drop_first_parts; /* forgets the first round, as a restart would */
    /* lies about uploads */
    uint64_t part_limit; /* of the metadata */
    const uint32_t *asked;
    size_t asked_count;
} fake_server;

static fake_server server;
static rpc_connection *connection;
static client_model *model;
static client_secret_key *secret;

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

static char *text(const char *t) {
    union {
        const char *in;
        char *out;
    } u = {.in = t};
    return u.out;
}

static void refuse(fake_reply *r, uint32_t code, const char *reason, const char *message, uint32_t retry_ms) {
    r->status.code = code;
    r->status.reason = text(reason);
    r->status.message = text(message);
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
    infer_reply.model = text(s->mode == OTHER_MODEL ? "other" : "identity");
    infer_reply.version = text(s->mode == OTHER_VERSION ? "2" : "1");
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
        metadata.name = moves_the_cursor, metadata.version = text("0");
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

static int set_up(void **state) {
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
    const rpc_config config = {
        .address = server.address, .token = "id.secret", .timeout_ms = 4000, .attempt_ms = 300};
    if (rpc_connect(&connection, &config, &err) != CKKS_OK) return -1;
    if (rpc_model(&model, connection, "identity", NULL, NULL, &err) != CKKS_OK) return -1;
    return client_secret_key_generate(&secret, &model->params, &err) == CKKS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    rpc_close(connection);
    nng_close(server.socket);
    pthread_join(server.thread, NULL);
    client_model_destroy(model);
    client_secret_key_destroy(secret);
    free(infer_words);
    return 0;
}

static void set_mode(lie mode) {
    pthread_mutex_lock(&server.lock);
    server.mode = mode, server.calls = 0;
    pthread_mutex_unlock(&server.lock);
}

/* One inference with the server in `mode`; scores of the reply if it came that far. */
static ckks_status infer(lie mode, uint32_t timeout_ms, double scores[2], rpc_timing *timing,
                         ckks_error *err) {
    const double elements[4] = {1.25, -3, 0, 0};
    const uint8_t key_set[32] = {1};
    client_ciphertexts in = {0}, out = {0};
    set_mode(mode);
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

static void an_honest_reply_decrypts(void **state) {
    (void)state;
    double scores[2] = {0};
    ckks_error err = {0};
    rpc_timing timing = {0};
    assert_int_equal(infer(HONEST, 0, scores, &timing, &err), CKKS_OK);
    assert_true(fabs(scores[0] - 1.25) < 1e-3 && fabs(scores[1] + 3) < 1e-3);
    assert_int_equal(timing.attempts, 1);
    assert_true(timing.request_bytes > 0 && timing.reply_bytes > timing.request_bytes);
}

static void a_reply_that_is_not_what_was_asked_for_is_never_decrypted(void **state) {
    (void)state;
    static const struct {
        const char *what;
        lie mode;
        ckks_status expected;
    } table[] = {
        {"another model", OTHER_MODEL, CKKS_UNTRUSTED_SERVER},
        {"another version", OTHER_VERSION, CKKS_UNTRUSTED_SERVER},
        {"another package", OTHER_DIGEST, CKKS_UNTRUSTED_SERVER},
        {"no package digest", NO_DIGEST, CKKS_UNTRUSTED_SERVER},
        {"no outputs", NO_OUTPUTS, CKKS_UNTRUSTED_SERVER},
        {"a ciphertext too many", EXTRA_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a scale off by one bit", SCALE_ONE_ULP_OFF, CKKS_UNTRUSTED_SERVER},
        {"other parameters", OTHER_PARAMETERS, CKKS_UNTRUSTED_SERVER},
        {"a short ciphertext", SHORT_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a long ciphertext", LONG_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"a segment of another kind", WRONG_SEGMENT_KIND, CKKS_UNTRUSTED_SERVER},
        {"another request's id", WRONG_REQUEST_ID, CKKS_UNTRUSTED_SERVER},
        {"no status", NO_STATUS, CKKS_UNTRUSTED_SERVER},
        {"no message", NO_PAYLOAD, CKKS_UNTRUSTED_SERVER},
        {"a frame cut short", CUT_FRAME, CKKS_UNTRUSTED_SERVER},
        {"garbage", GARBAGE, CKKS_UNTRUSTED_SERVER},
        {"dirty padding", DIRTY_PADDING, CKKS_UNTRUSTED_SERVER},
        {"segments outside of the frame", OVERLAPPING_SEGMENT, CKKS_UNTRUSTED_SERVER},
        {"residues over their modulus", BAD_RESIDUES, CKKS_UNTRUSTED_SERVER},
        {"an unknown key", REFUSE_UNKNOWN_KEY, CKKS_KEY_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double scores[2] = {0};
        ckks_error err = {0};
        const ckks_status rc = infer(table[i].mode, 0, scores, NULL, &err);
        printf("  %-32s %s: %s: %s\n", table[i].what, ckks_status_name(rc), err.field, err.message);
        assert_int_equal(rc, table[i].expected);
        assert_true(scores[0] == 0 && scores[1] == 0);
        assert_int_equal(server.calls, 1); /* and nothing was sent again because of it */
    }
}

static void what_the_server_says_cannot_drive_a_terminal(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    assert_int_equal(infer(REFUSE_WITH_ESCAPES, 0, scores, NULL, &err), CKKS_INVALID_ARGUMENT);
    assert_true(rpc_error_is_from_server(&err));
    assert_string_equal(err.message, "look:?[31m??red ???? (said the server)");
}

static void a_full_queue_is_tried_again_under_new_ids(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    assert_int_equal(infer(FULL_TWICE, 0, scores, NULL, &err), CKKS_OK);
    assert_int_equal(server.calls, 3);
    assert_memory_not_equal(server.ids[0], server.ids[1], 16);
    assert_memory_not_equal(server.ids[1], server.ids[2], 16);
}

static void a_draining_server_is_left_and_found_again(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    const unsigned before = atomic_load(&server.pipes_gone);
    assert_int_equal(infer(DRAIN_ONCE, 0, scores, NULL, &err), CKKS_OK);
    assert_int_equal(server.calls, 2);
    assert_true(atomic_load(&server.pipes_gone) > before); /* a server that drains waits for this */
}

static void silence_is_answered_with_the_same_request(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    rpc_timing timing = {0};
    assert_int_equal(infer(SILENT_ONCE, 0, scores, &timing, &err), CKKS_OK);
    assert_int_equal(server.calls, 2);
    assert_int_equal(timing.attempts, 2);
    assert_memory_equal(server.ids[0], server.ids[1], 16);
}

static void a_server_that_never_answers_is_unreachable_in_time(void **state) {
    (void)state;
    double scores[2];
    ckks_error err = {0};
    assert_int_equal(infer(SILENT, 700, scores, NULL, &err), CKKS_UNAVAILABLE);
    assert_false(rpc_error_is_from_server(&err));
}

static void nobody_at_the_address_is_unreachable_at_once(void **state) {
    (void)state;
    static const char *const addresses[] = {"inproc://nobody", "ipc:///tmp/ckksd-no-such-socket",
                                            "tcp://127.0.0.1:1"};
    for (size_t i = 0; i < 3; i++) {
        rpc_connection *c = NULL;
        ckks_error err = {0};
        const rpc_config config = {.address = addresses[i], .connect_ms = 2000};
        assert_int_equal(rpc_connect(&c, &config, &err), CKKS_UNAVAILABLE);
        assert_null(c);
    }
    rpc_connection *c = NULL;
    ckks_error err = {0};
    const rpc_config config = {.address = "gopher://x"};
    assert_int_equal(rpc_connect(&c, &config, &err), CKKS_INVALID_ARGUMENT);
}

static void a_model_that_lies_is_refused_over_the_wire_too(void **state) {
    (void)state;
    client_model *m = NULL;
    ckks_error err = {0};
    pthread_mutex_lock(&server.lock);
    server.fixture.description.key_bytes++;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_model(&m, connection, "identity", NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
    pthread_mutex_lock(&server.lock);
    server.fixture.description.key_bytes--;
    pthread_mutex_unlock(&server.lock);
    err = (ckks_error){0};
    assert_int_equal(rpc_model(&m, connection, "another", NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
    assert_null(m);
    err = (ckks_error){0};
    assert_int_equal(rpc_model(&m, connection, "identity", "9", NULL, &err), CKKS_UNTRUSTED_SERVER);
    assert_string_equal(err.field, "version");
    assert_null(m);
    assert_int_equal(rpc_model(&m, connection, "identity", server.fixture.description.version, NULL, &err),
                     CKKS_OK);
    client_model_destroy(m);
}

static void what_a_server_calls_itself_is_printable(void **state) {
    (void)state;
    assert_string_equal(rpc_server(connection)->name, "fake?[2J?");
}

/* parts without end, out of order, or in crumbs */
static void an_upload_does_not_follow_a_server_that_asks_for_nonsense(void **state) {
    (void)state;
    static const uint32_t again[] = {0, 0}, back[] = {1, 0}, beyond[] = {0, 63}, far[] = {UINT32_MAX};
    static const struct {
        const uint32_t *asked;
        size_t count;
        const char *field;
    } table[] = {
        {again, 2, "missing_parts"},
        {back, 2, "missing_parts"},
        {beyond, 2, "missing_parts"},
        {far, 1, "missing_parts"},
    };
    client_key_set *set = NULL;
    bool was_there;
    ckks_error err = {0};
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        pthread_mutex_lock(&server.lock);
        server.asked = table[i].asked, server.asked_count = table[i].count;
        server.parts_seen = 0;
        pthread_mutex_unlock(&server.lock);
        err = (ckks_error){0};
        assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
        assert_string_equal(err.field, table[i].field);
        pthread_mutex_lock(&server.lock);
        assert_int_equal(server.parts_seen, 0);
        server.asked = NULL;
        pthread_mutex_unlock(&server.lock);
    }
    for (uint64_t limit = 1; limit <= 16; limit += 15) {
        pthread_mutex_lock(&server.lock);
        server.part_limit = limit;
        pthread_mutex_unlock(&server.lock);
        rpc_connection *c = NULL;
        const rpc_config config = {.address = server.address, .timeout_ms = 4000};
        err = (ckks_error){0};
        assert_int_equal(rpc_connect(&c, &config, &err), CKKS_OK);
        assert_int_equal(rpc_register(c, set, &was_there, NULL, NULL, &err), CKKS_UNTRUSTED_SERVER);
        assert_string_equal(err.field, "key_part_bytes");
        rpc_close(c);
    }
    pthread_mutex_lock(&server.lock);
    server.part_limit = 20000;
    pthread_mutex_unlock(&server.lock);
    client_key_set_destroy(set);
}

static void a_message_too_long_for_the_header_is_read_from_its_segment(void **state) {
    (void)state;
    client_model *m = NULL;
    ckks_error err = {0};
    pthread_mutex_lock(&server.lock);
    server.mode = PAYLOAD_APART;
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_model(&m, connection, "identity", NULL, NULL, &err), CKKS_OK);
    pthread_mutex_lock(&server.lock);
    server.mode = HONEST;
    pthread_mutex_unlock(&server.lock);
    client_model_destroy(m);
}

static void an_upload_sends_what_is_missing_and_no_more(void **state) {
    (void)state;
    client_key_set *set = NULL;
    bool was_there = true;
    ckks_error err = {0};
    assert_int_equal(client_key_set_generate(&set, secret, model->keys, model->key_count, NULL, NULL, &err),
                     CKKS_OK);
    pthread_mutex_lock(&server.lock);
    server.drop_first_parts = true; /* the first part is lost: it must be asked for and sent again */
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_OK);
    assert_false(was_there);
    pthread_mutex_lock(&server.lock);
    const uint32_t parts_seen = server.parts_seen, part_count = server.part_count,
                   commits = server.commit_count;
    const uint32_t wrong_parts = server.wrong_parts;
    server.parts_seen = 0; /* all parts are there now: a resumed upload goes straight to the commit */
    pthread_mutex_unlock(&server.lock);
    assert_int_equal(parts_seen, part_count + 1);
    assert_int_equal(commits, 1);
    assert_true(part_count > 2);
    assert_int_equal(wrong_parts, 0);
    assert_int_equal(rpc_register(connection, set, &was_there, NULL, NULL, &err), CKKS_OK);
    pthread_mutex_lock(&server.lock);
    assert_int_equal(server.parts_seen, 0);
    assert_int_equal(server.commit_count, 2);
    pthread_mutex_unlock(&server.lock);
    client_key_set_destroy(set);
}

static void the_other_socket_is_looked_for_on_the_same_host_alone(void **state) {
    (void)state;
    static const struct {
        const char *given, *endpoint, *expected;
    } table[] = {
        {"tcp://10.0.0.1:7000", "tcp://0.0.0.0:7001", "tcp://10.0.0.1:7001"},
        {"tcp://host:7000", "tcp://evil.example:7001", "tcp://host:7001"},
        {"tls+tcp://host:7000", "tcp://host:7001", ""},
        {"tls+tcp://host:7000", "tls+tcp://[::]:7443", "tls+tcp://host:7443"},
        {"tcp://[fe80::1]:7000", "tcp://*:7001", "tcp://[fe80::1]:7001"},
        {"ws://host:80/c", "ws://0.0.0.0:80/bulk", "ws://host:80/bulk"},
        {"ipc:///run/a", "ipc:///run/b", "ipc:///run/b"},
        {"ipc:///run/a", "tcp://host:1", ""},
        {"tcp://host:7000", "nonsense", ""},
        {"nonsense", "tcp://host:1", ""},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Ckksd__V1__ServerMetadataReply r = CKKSD__V1__SERVER_METADATA_REPLY__INIT;
        Ckksd__V1__Endpoint e = CKKSD__V1__ENDPOINT__INIT, *list[1] = {&e};
        char out[RPC_ADDRESS_MAX];
        e.address = text(table[i].endpoint);
        e.has_bulk = 1, e.bulk = 1;
        r.n_endpoints = 1, r.endpoints = list;
        rpc_choose_endpoint(out, table[i].given, &r, true);
        assert_string_equal(out, table[i].expected);
        rpc_choose_endpoint(out, table[i].given, &r, false);
        assert_string_equal(out, "");
    }
}

static void every_status_survives_the_wire(void **state) {
    (void)state;
    for (int i = 1; i < CKKS_STATUS_COUNT; i++) {
        Ckksd__V1__Status s = CKKSD__V1__STATUS__INIT;
        ckks_error err = {0};
        s.has_code = 1, s.code = ckks_status_rpc((ckks_status)i);
        s.reason = text(ckks_status_reason((ckks_status)i));
        const ckks_status back = rpc_status_from(&s, &err);
        assert_int_equal(ckks_status_rpc(back), s.code);
        if (s.reason[0]) assert_string_equal(ckks_status_reason(back), s.reason);
        assert_true(rpc_error_is_from_server(&err));
    }
}

/* A connection of its own and one inference, as far as they come. */
static ckks_status connect_and_infer(const char *address, double scores[2], ckks_error *err) {
    const double elements[4] = {1.25, -3, 0, 0};
    const uint8_t key_set[32] = {1};
    const rpc_config config = {
        .address = address, .token = "id.secret", .timeout_ms = 1500, .attempt_ms = 300};
    rpc_connection *c = NULL;
    client_ciphertexts in = {0}, out = {0};
    ckks_status rc = client_encrypt(&in, model, secret, NULL, elements, 1, err);
    if (rc == CKKS_OK) rc = rpc_connect(&c, &config, err);
    if (rc == CKKS_OK) rc = rpc_infer(&out, c, model, key_set, &in, 0, NULL, err);
    if (rc == CKKS_OK) rc = client_decrypt(scores, model, secret, &out, 1, err);
    client_ciphertexts_fini(&in);
    client_ciphertexts_fini(&out);
    rpc_close(c);
    return rc;
}

static void each_call_of_nng_that_fails_is_a_typed_error_or_tried_again(void **state) {
    (void)state;
    uint32_t failures = 0, typed = 0;
    char tcp[64];
    nng_listener listener;
    int port = 0;
    assert_int_equal(nng_listen(server.socket, "tcp://127.0.0.1:0", &listener, 0), 0);
    assert_int_equal(nng_listener_get_int(listener, NNG_OPT_TCP_BOUND_PORT, &port), 0);
    snprintf(tcp, sizeof tcp, "tcp://127.0.0.1:%d", port);
    char local_bulk[sizeof server.bulk_address];
    memcpy(local_bulk, server.bulk_address, sizeof local_bulk);
    for (int is_tcp = 0; is_tcp < 2; is_tcp++) {
        if (is_tcp) snprintf(server.bulk_address, sizeof server.bulk_address, "%s", tcp);
        for (uint64_t n = 1;; n++) {
            double scores[2] = {0};
            ckks_error err = {0};
            assert_true(n < 500);
            set_mode(HONEST);
            library_fault_set(n, false);
            const ckks_status rc = connect_and_infer(is_tcp ? tcp : server.address, scores, &err);
            const char *failed = library_fault_name();
            library_fault_set(0, false);
            if (rc != CKKS_OK && rc != CKKS_UNAVAILABLE && rc != CKKS_RESOURCE_EXHAUSTED &&
                rc != CKKS_UNTRUSTED_SERVER)
                fail_msg("call %lu, %s: %s: %s", n, failed, ckks_status_name(rc), err.message);
            if (rc != CKKS_OK) assert_true(rc == err.code && err.message[0]);
            if (rc == CKKS_OK) assert_true(fabs(scores[0] - 1.25) < 1e-3 && fabs(scores[1] + 3) < 1e-3);
            if (!failed) {
                if (rc != CKKS_OK) fail_msg("%s", err.message);
                break;
            }
            failures++, typed += rc != CKKS_OK;
            err = (ckks_error){0};
            if (connect_and_infer(is_tcp ? tcp : server.address, scores, &err) != CKKS_OK)
                fail_msg("after call %lu, %s: %s", n, failed, err.message);
        }
    }
    memcpy(server.bulk_address, local_bulk, sizeof local_bulk);
    printf("  %u calls failed, %u as an error\n", failures, typed);
    assert_true(typed > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_reply_decrypts),
        cmocka_unit_test(a_reply_that_is_not_what_was_asked_for_is_never_decrypted),
        cmocka_unit_test(what_the_server_says_cannot_drive_a_terminal),
        cmocka_unit_test(a_full_queue_is_tried_again_under_new_ids),
        cmocka_unit_test(a_draining_server_is_left_and_found_again),
        cmocka_unit_test(silence_is_answered_with_the_same_request),
        cmocka_unit_test(a_server_that_never_answers_is_unreachable_in_time),
        cmocka_unit_test(nobody_at_the_address_is_unreachable_at_once),
        cmocka_unit_test(a_model_that_lies_is_refused_over_the_wire_too),
        cmocka_unit_test(what_a_server_calls_itself_is_printable),
        cmocka_unit_test(an_upload_does_not_follow_a_server_that_asks_for_nonsense),
        cmocka_unit_test(a_message_too_long_for_the_header_is_read_from_its_segment),
        cmocka_unit_test(an_upload_sends_what_is_missing_and_no_more),
        cmocka_unit_test(the_other_socket_is_looked_for_on_the_same_host_alone),
        cmocka_unit_test(every_status_survives_the_wire),
        cmocka_unit_test(each_call_of_nng_that_fails_is_a_typed_error_or_tried_again),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
