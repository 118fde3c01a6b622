/* One call: build the frame, send, wait, check the reply, try again where that cannot change the meaning. */
#include "client/lib/rpc_internal.h"

#include "kernels/base/bytes.h"

#include <nng/supplemental/util/platform.h>
#include <sodium.h>
#include <stdlib.h>

#define REQUEST_ID_BYTES 16u
#define RETRY_MS         200u
#define RETRY_MS_MAX     5000u
#define HEADER_ARENA     (1u << 20)
#define PAYLOAD_ARENA    (32u << 20)

void rpc_reply_fini(rpc_reply *reply) {
    if (!reply) return;
    if (reply->message) nng_msg_free(reply->message);
    message_free((ProtobufCMessage *)reply->header);
    message_free(reply->payload);
    free(reply->segments);
    *reply = (rpc_reply){0};
}

/* ---- out ---- */

/* Everything of a request but its message, which each attempt builds anew: nng takes messages away. */
typedef struct call {
    rpc_connection *connection;
    const rpc_request *request;
    rpc_socket *socket;
    uint8_t request_id[REQUEST_ID_BYTES];
    uint8_t *payload; /* owned */
    size_t payload_bytes;
    frame_segment *layout; /* owned */
    uint32_t timeout_ms;
    uint64_t deadline_ns;
} call;

static ckks_status call_init(call *c, rpc_connection *connection, const rpc_request *request,
                             ckks_error *err) {
    *c = (call){.connection = connection, .request = request};
    c->timeout_ms = request->timeout_ms ? request->timeout_ms : connection->timeout_ms;
    c->deadline_ns = rpc_now_ns() + (uint64_t)c->timeout_ms * 1000000u;
    c->payload_bytes = request->payload ? protobuf_c_message_get_packed_size(request->payload) : 0;
    c->payload = malloc(c->payload_bytes + 1);
    c->layout = calloc((size_t)request->segment_count + 1, sizeof *c->layout);
    if (!c->payload || !c->layout)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
    if (request->payload) protobuf_c_message_pack(request->payload, c->payload);
    return CKKS_OK;
}

static void call_fini(call *c) {
    free(c->payload);
    free(c->layout);
}

/* A server hangs up on what is larger than it takes, without a word: so it is said here. */
static ckks_status check_size(const call *c, uint64_t total, ckks_error *err) {
    const Ckksd__V1__ServerMetadataReply *s = c->connection->server;
    const Ckksd__V1__Limits *limits = s ? s->limits : NULL;
    if (!limits || !c->request->is_bulk || !limits->has_bulk_message_bytes ||
        total <= limits->bulk_message_bytes)
        return CKKS_OK;
    return ckks_error_set(err, CKKS_TOO_LARGE, "request",
                          "%llu bytes, the server takes messages of at most %llu: its operator raises "
                          "bulk_message_bytes",
                          (unsigned long long)total, (unsigned long long)limits->bulk_message_bytes);
}

static ckks_status build(nng_msg **out, call *c, ckks_error *err) {
    const rpc_request *r = c->request;
    ckks_status rc = CKKS_OK;
    union {
        const char *in;
        char *message;
    } method = {.in = r->method}; /* protobuf-c only reads it */
    Ckksd__V1__RequestHeader header = CKKSD__V1__REQUEST_HEADER__INIT;
    Ckksd__V1__Segment *items = calloc((size_t)r->segment_count + 1, sizeof *items);
    Ckksd__V1__Segment **list = calloc((size_t)r->segment_count + 1, sizeof(Ckksd__V1__Segment *));
    nng_msg *message = NULL;
    uint64_t total = 0;

    if (!items || !list) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
        goto out;
    }
    for (uint32_t i = 0; i < r->segment_count; i++)
        c->layout[i] = (frame_segment){r->segments[i].kind, 0, r->segments[i].bytes};
    frame_layout(0, c->layout, r->segment_count); /* offsets do not depend on the header */
    for (uint32_t i = 0; i < r->segment_count; i++) {
        ckksd__v1__segment__init(&items[i]);
        items[i].has_kind = items[i].has_offset = items[i].has_length = 1;
        items[i].kind = c->layout[i].kind, items[i].offset = c->layout[i].offset,
        items[i].length = c->layout[i].length;
        list[i] = &items[i];
    }
    header.method = method.message;
    if (c->connection->token[0]) header.token = c->connection->token;
    header.has_request_id = 1, header.request_id = (ProtobufCBinaryData){REQUEST_ID_BYTES, c->request_id};
    header.has_timeout_ms = 1, header.timeout_ms = c->timeout_ms;
    header.has_payload = 1, header.payload = (ProtobufCBinaryData){c->payload_bytes, c->payload};
    header.n_segments = r->segment_count, header.segments = list;
    const size_t header_bytes = ckksd__v1__request_header__get_packed_size(&header);
    if (header_bytes > FRAME_HEADER_BYTES_MAX ||
        !(total = frame_layout((uint32_t)header_bytes, c->layout, r->segment_count))) {
        rc = ckks_error_set(err, CKKS_TOO_LARGE, "header", "a request header of %zu bytes (at most %u)",
                            header_bytes, FRAME_HEADER_BYTES_MAX);
        goto out;
    }
    if ((rc = check_size(c, total, err)) != CKKS_OK) goto out;
    if (nng_msg_alloc(&message, (size_t)total) != 0) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a message of %llu bytes",
                            (unsigned long long)total);
        goto out;
    }
    uint8_t *body = nng_msg_body(message);
    ckksd__v1__request_header__pack(&header, body + FRAME_PREFIX_BYTES);
    uint8_t *area = frame_write_prefix(body, (uint32_t)header_bytes), *end = body + total, *at = area;
    for (uint32_t i = 0; i < r->segment_count; i++) {
        uint8_t *to = area + c->layout[i].offset;
        memset(at, 0, (size_t)(to - at));
        memcpy(to, r->segments[i].data, (size_t)r->segments[i].bytes);
        at = to + r->segments[i].bytes;
    }
    memset(at, 0, (size_t)(end - at));
    *out = message;
out:
    free(items);
    free(list);
    return rc;
}

/* ---- back ---- */

static ckks_status read_segments(rpc_reply *reply, const frame_view *view, ckks_error *err) {
    const Ckksd__V1__ReplyHeader *h = reply->header;
    ckks_status rc;
    if (h->n_segments > FRAME_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "segments", "%zu segments", h->n_segments);
    frame_segment *layout = calloc(h->n_segments + 1, sizeof *layout);
    reply->segments = calloc(h->n_segments + 1, sizeof *reply->segments);
    if (!layout || !reply->segments) {
        free(layout);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a reply");
    }
    for (size_t i = 0; i < h->n_segments; i++)
        layout[i] = (frame_segment){h->segments[i]->kind, h->segments[i]->offset, h->segments[i]->length};
    rc = frame_check_segments(view, layout, (uint32_t)h->n_segments, err);
    for (size_t i = 0; i < h->n_segments && rc == CKKS_OK; i++)
        reply->segments[i] =
            (rpc_segment){layout[i].kind, view->segments + layout[i].offset, layout[i].length};
    reply->segment_count = (uint32_t)h->n_segments;
    free(layout);
    return rc;
}

/* What cannot be read is the server's fault, whatever the reader called it. */
static ckks_status distrust(ckks_status rc, ckks_error *err) {
    if (rc == CKKS_OK || rc == CKKS_RESOURCE_EXHAUSTED) return rc;
    if (err && err->code != CKKS_OK) err->code = CKKS_UNTRUSTED_SERVER;
    return CKKS_UNTRUSTED_SERVER;
}

static ckks_status read_reply(rpc_reply *reply, const call *c, ckks_error *err) {
    ckks_status rc;
    frame_view view;
    ProtobufCMessage *header = NULL;
    const size_t size = nng_msg_len(reply->message);
    reply->reply_bytes = size;
    if (size > c->socket->receive_max) /* inproc has no limit of its own */
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "reply", "%zu bytes", size);
    if ((rc = frame_parse(&view, nng_msg_body(reply->message), size, err)) != CKKS_OK)
        return distrust(rc, err);
    rc = message_unpack(&header, &ckksd__v1__reply_header__descriptor, view.header, view.header_bytes,
                        HEADER_ARENA, "reply header", err);
    if (rc != CKKS_OK) return distrust(rc, err);
    Ckksd__V1__ReplyHeader *h = reply->header = (Ckksd__V1__ReplyHeader *)header;
    if ((rc = rpc_status_from(h->status, err)) != CKKS_OK) return rc;
    if (!h->has_request_id || h->request_id.len != REQUEST_ID_BYTES ||
        memcmp(h->request_id.data, c->request_id, REQUEST_ID_BYTES) != 0)
        return ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "request_id",
                              "the reply belongs to another request");
    if ((rc = read_segments(reply, &view, err)) != CKKS_OK) return distrust(rc, err);
    const uint8_t *payload = h->payload.data;
    size_t payload_bytes = h->has_payload ? h->payload.len : 0;
    if (!h->has_payload && reply->segment_count == 1 &&
        reply->segments[0].kind == CKKSD__V1__SEGMENT_KIND__SEGMENT_LIST) {
        /* a message too long for the header travels apart, alone */
        payload = reply->segments[0].data, payload_bytes = reply->segments[0].bytes;
        reply->segment_count = 0;
    }
    rc = message_unpack(&reply->payload, c->request->reply, payload, payload_bytes, PAYLOAD_ARENA, "reply",
                        err);
    return distrust(rc, err);
}

/* ---- attempts ---- */

/* nng error number; *message is the reply */
static int exchange(nng_msg **message, nng_ctx ctx, nng_aio *aio, uint32_t wait_ms) {
    const uint64_t begin_ns = rpc_now_ns();
    int nrc;
    nng_aio_set_timeout(aio, (nng_duration)wait_ms);
    nng_aio_set_msg(aio, *message);
    nng_ctx_send(ctx, aio);
    nng_aio_wait(aio);
    if ((nrc = nng_aio_result(aio)) != 0) {
        nng_msg_free(*message);
        *message = NULL;
        return nrc;
    }
    *message = NULL;
    const uint64_t spent_ms = (rpc_now_ns() - begin_ns) / 1000000u;
    nng_aio_set_timeout(aio, spent_ms < wait_ms ? (nng_duration)(wait_ms - spent_ms) : 1);
    nng_ctx_recv(ctx, aio);
    nng_aio_wait(aio);
    if ((nrc = nng_aio_result(aio)) == 0) *message = nng_aio_get_msg(aio);
    return nrc;
}

static uint32_t remaining_ms(const call *c) {
    const uint64_t now = rpc_now_ns();
    return now >= c->deadline_ns ? 0 : (uint32_t)((c->deadline_ns - now + 999999u) / 1000000u);
}

static ckks_status no_answer(const call *c, int nrc, ckks_error *err) {
    return ckks_error_set(err, CKKS_UNAVAILABLE, "server", "%.200s: no answer within %u ms (%s)",
                          c->socket->address, c->timeout_ms, nng_strerror(nrc));
}

/* Same id, same bytes, until an answer or the end of time. */
static ckks_status attempt_until_answered(rpc_reply *reply, call *c, ckks_error *err) {
    ckks_status rc;
    nng_ctx ctx = NNG_CTX_INITIALIZER;
    nng_aio *aio = NULL;
    int nrc;
    uint32_t attempt_ms = c->connection->attempt_ms;
    if ((nrc = nng_ctx_open(&ctx, c->socket->socket)) != 0) return no_answer(c, nrc, err);
    if ((nrc = nng_aio_alloc(&aio, NULL, NULL)) != 0) {
        rc = no_answer(c, nrc, err);
        goto out;
    }
    for (nrc = NNG_ETIMEDOUT;;) {
        const uint32_t left_ms = remaining_ms(c);
        if (!left_ms) {
            rc = no_answer(c, nrc, err);
            goto out;
        }
        nng_msg *message = NULL;
        if ((rc = build(&message, c, err)) != CKKS_OK) goto out;
        reply->request_bytes = nng_msg_len(message);
        reply->attempts++;
        nrc = exchange(&message, ctx, aio, left_ms < attempt_ms ? left_ms : attempt_ms);
        if (nrc == 0) {
            reply->message = message;
            rc = read_reply(reply, c, err);
            goto out;
        }
        if (nrc == NNG_ECLOSED || nrc == NNG_ENOMEM || nrc == NNG_ECANCELED) {
            rc = no_answer(c, nrc, err);
            goto out;
        }
        if (nrc != NNG_ETIMEDOUT)
            nng_msleep((nng_duration)(left_ms < 100 ? left_ms : 100)); /* the dialer is at it */
        if (attempt_ms < UINT32_MAX / 2) attempt_ms *= 2;
    }
out:
    nng_aio_free(aio);
    nng_ctx_close(ctx);
    return rc;
}

static uint32_t retry_delay_ms(const rpc_reply *reply, uint32_t round) {
    const Ckksd__V1__Status *s = reply->header ? reply->header->status : NULL;
    uint32_t delay = s && s->has_retry_after_ms && s->retry_after_ms ? s->retry_after_ms
                                                                     : RETRY_MS << (round < 5 ? round : 5);
    if (delay > RETRY_MS_MAX) delay = RETRY_MS_MAX;
    return delay + randombytes_uniform(delay / 4 + 1); /* so that refused clients do not come back together */
}

ckks_status rpc_call(rpc_connection *connection, const rpc_request *request, rpc_reply *reply,
                     ckks_error *err) {
    ckks_status rc;
    call c;
    *reply = (rpc_reply){0};
    if ((rc = call_init(&c, connection, request, err)) != CKKS_OK) goto out;
    if ((rc = rpc_socket_for(&c.socket, connection, request->is_bulk, err)) != CKKS_OK) goto out;
    for (uint32_t round = 0;; round++) {
        ckks_error error = {0};
        rpc_reply answer = {0};
        randombytes_buf(c.request_id, sizeof c.request_id);
        atomic_fetch_add(&c.socket->in_flight, 1);
        rc = attempt_until_answered(&answer, &c, &error);
        rpc_socket_leave(connection, c.socket, rc == CKKS_DRAINING && rpc_error_is_from_server(&error));
        if (rc == CKKS_OK) {
            *reply = answer;
            break;
        }
        const uint32_t delay_ms = retry_delay_ms(&answer, round);
        rpc_reply_fini(&answer);
        if (!request->is_patient || !rpc_error_is_from_server(&error) || !ckks_status_is_retryable(rc) ||
            delay_ms >= remaining_ms(&c)) {
            if (err && err->code == CKKS_OK) *err = error;
            break;
        }
        nng_msleep((nng_duration)delay_ms);
    }
out:
    call_fini(&c);
    return rc;
}
