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

/* A frame in pieces, which lie where they lay: a local pipe sends them from there. parts[0] is the pipe's. */
typedef struct frame_parts {
    uint8_t *head; /* owned; the token is in it */
    size_t head_bytes;
    struct iovec *parts; /* owned */
    size_t count;
    uint64_t bytes;
} frame_parts;

static void frame_parts_fini(frame_parts *f) {
    if (f->head) sodium_memzero(f->head, f->head_bytes);
    free(f->head);
    free(f->parts);
    *f = (frame_parts){0};
}

static void add_part(frame_parts *f, const void *data, uint64_t bytes) {
    union {
        const void *in;
        void *out;
    } at = {.in = data}; /* only read */
    if (bytes) f->parts[f->count++] = (struct iovec){at.out, (size_t)bytes};
}

/* Everything of a request but its frame, which each attempt builds anew: sending uses frames up. */
typedef struct call {
    rpc_connection *connection;
    const rpc_request *request;
    rpc_socket *socket;
    uint8_t request_id[REQUEST_ID_BYTES];
    uint8_t *payload; /* owned */
    size_t payload_bytes;
    frame_segment *layout; /* owned */
    uint64_t frame_bytes;  /* of the frame built last */
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

static ckks_status build(frame_parts *out, call *c, ckks_error *err) {
    static const uint8_t zeros[FRAME_ALIGNMENT];
    const rpc_request *r = c->request;
    ckks_status rc = CKKS_OK;
    union {
        const char *in;
        char *message;
    } method = {.in = r->method}; /* protobuf-c only reads it */
    Ckksd__V1__RequestHeader header = CKKSD__V1__REQUEST_HEADER__INIT;
    Ckksd__V1__Segment *items = calloc((size_t)r->segment_count + 1, sizeof *items);
    Ckksd__V1__Segment **list = calloc((size_t)r->segment_count + 1, sizeof(Ckksd__V1__Segment *));
    uint64_t total = 0, at = 0;

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
    out->head_bytes = FRAME_PREFIX_BYTES + header_bytes + FRAME_ALIGNMENT;
    out->head = malloc(out->head_bytes);
    out->parts = calloc(2 * (size_t)r->segment_count + 3, sizeof *out->parts);
    if (!out->head || !out->parts) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a request");
        goto out;
    }
    ckksd__v1__request_header__pack(&header, out->head + FRAME_PREFIX_BYTES);
    const uint64_t head_bytes = (uint64_t)(frame_write_prefix(out->head, (uint32_t)header_bytes) - out->head);
    out->count = 1;
    out->bytes = c->frame_bytes = total;
    add_part(out, out->head, head_bytes);
    for (uint32_t i = 0; i < r->segment_count; i++) {
        add_part(out, zeros, c->layout[i].offset - at);
        add_part(out, r->segments[i].data, r->segments[i].bytes);
        at = c->layout[i].offset + r->segments[i].bytes;
    }
    add_part(out, zeros, total - head_bytes - at);
out:
    free(items);
    free(list);
    return rc;
}

/* The frame as one message. */
static ckks_status gather(nng_msg **out, const frame_parts *f, ckks_error *err) {
    if (nng_msg_alloc(out, (size_t)f->bytes) != 0)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for a message of %llu bytes",
                              (unsigned long long)f->bytes);
    uint8_t *to = nng_msg_body(*out);
    for (size_t i = 1; i < f->count; i++) {
        memcpy(to, f->parts[i].iov_base, f->parts[i].iov_len);
        to += f->parts[i].iov_len;
    }
    return CKKS_OK;
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
                        message_arena_bytes(view.header_bytes, HEADER_ARENA), "reply header", err);
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
    rc = message_unpack(&reply->payload, c->request->reply, payload, payload_bytes,
                        message_arena_bytes(payload_bytes, PAYLOAD_ARENA), "reply", err);
    return distrust(rc, err);
}

/* ---- attempts ---- */

/* nng error number; *message is the reply */
static int exchange(nng_msg **message, rpc_trip *trip, nng_ctx ctx, nng_aio *aio, uint32_t wait_ms) {
    *trip = (rpc_trip){.begin_ns = rpc_now_ns()};
    int nrc;
    nng_aio_set_timeout(aio, (nng_duration)wait_ms);
    nng_aio_set_msg(aio, *message);
    nng_ctx_send(ctx, aio);
    nng_aio_wait(aio);
    if ((nrc = nng_aio_result(aio)) != 0) {
        sodium_memzero(nng_msg_body(*message), nng_msg_len(*message)); /* the token is in it */
        nng_msg_free(*message);
        *message = NULL;
        return nrc;
    }
    *message = NULL;
    trip->sent_ns = rpc_now_ns();
    const uint64_t spent_ms = (trip->sent_ns - trip->begin_ns) / 1000000u;
    nng_aio_set_timeout(aio, spent_ms < wait_ms ? (nng_duration)(wait_ms - spent_ms) : 1);
    nng_ctx_recv(ctx, aio);
    nng_aio_wait(aio);
    if ((nrc = nng_aio_result(aio)) == 0) *message = nng_aio_get_msg(aio);
    trip->came_ns = trip->done_ns = rpc_now_ns();
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

/* How one attempt travels: by nng, or on a pipe of our own to a local address. */
typedef struct carrier {
    nng_ctx ctx;
    nng_aio *aio;
    rpc_pipe *pipe; /* NULL: none yet, or the last one broke */
    bool has_ctx;
} carrier;

static int carrier_init(carrier *k, rpc_socket *socket) {
    int nrc = 0;
    *k = (carrier){.ctx = NNG_CTX_INITIALIZER};
    if (socket->is_local) return 0;
    if ((nrc = nng_ctx_open(&k->ctx, socket->socket)) != 0) return nrc;
    k->has_ctx = true;
    return nng_aio_alloc(&k->aio, NULL, NULL);
}

static void carrier_fini(carrier *k, rpc_socket *socket) {
    rpc_pipe_give(socket, k->pipe);
    nng_aio_free(k->aio);
    if (k->has_ctx) nng_ctx_close(k->ctx);
}

/* A pipe that was idle may be of a server that is gone: then at once by a new one. */
static int exchange_local(nng_msg **reply, rpc_trip *trip, carrier *k, call *c, uint32_t wait_ms,
                          ckks_error *err) {
    for (;;) {
        int nrc;
        frame_parts frame = {0};
        if (!k->pipe && (nrc = rpc_pipe_take(&k->pipe, c->socket, wait_ms)) != 0) return nrc;
        if (build(&frame, c, err) != CKKS_OK) {
            frame_parts_fini(&frame);
            return NNG_EINVAL;
        }
        const bool may_be_stale = rpc_pipe_is_seasoned(k->pipe);
        nrc = rpc_pipe_exchange(reply, trip, k->pipe, frame.parts, frame.count, c->socket->receive_max,
                                c->socket->spin_ns, wait_ms);
        frame_parts_fini(&frame);
        if (nrc == 0) return 0;
        if (nrc == NNG_ETIMEDOUT) {
            rpc_pipe_give(c->socket, k->pipe); /* it is kept if it can be used again */
            k->pipe = NULL;
            return nrc;
        }
        rpc_pipe_close(k->pipe);
        k->pipe = NULL;
        if (nrc != NNG_ECONNRESET || !may_be_stale) return nrc;
        rpc_pipe_close_idle(c->socket);
    }
}

static int exchange_nng(nng_msg **reply, rpc_trip *trip, carrier *k, call *c, uint32_t wait_ms,
                        ckks_error *err) {
    frame_parts frame = {0};
    ckks_status rc = build(&frame, c, err);
    if (rc == CKKS_OK) rc = gather(reply, &frame, err);
    frame_parts_fini(&frame);
    return rc != CKKS_OK ? NNG_EINVAL : exchange(reply, trip, k->ctx, k->aio, wait_ms);
}

/* Same id, same bytes, until an answer or the end of time. */
static ckks_status attempt_until_answered(rpc_reply *reply, call *c, ckks_error *err) {
    ckks_status rc;
    carrier k;
    uint32_t attempt_ms = c->connection->attempt_ms;
    int nrc = carrier_init(&k, c->socket);
    if (nrc != 0) {
        rc = no_answer(c, nrc, err);
        goto out;
    }
    for (nrc = NNG_ETIMEDOUT;;) {
        ckks_error local = {0};
        const uint32_t left_ms = remaining_ms(c);
        if (!left_ms) {
            rc = no_answer(c, nrc, err);
            goto out;
        }
        nng_msg *message = NULL;
        const uint32_t wait_ms = left_ms < attempt_ms ? left_ms : attempt_ms;
        reply->attempts++;
        nrc = c->socket->is_local ? exchange_local(&message, &reply->trip, &k, c, wait_ms, &local)
                                  : exchange_nng(&message, &reply->trip, &k, c, wait_ms, &local);
        if (local.code != CKKS_OK) { /* the request cannot be built */
            if (err && err->code == CKKS_OK) *err = local;
            rc = local.code;
            goto out;
        }
        if (nrc == 0) {
            reply->request_bytes = c->frame_bytes;
            reply->message = message;
            rc = read_reply(reply, c, err);
            goto out;
        }
        if (nrc == NNG_EMSGSIZE) {
            rc = ckks_error_set(err, CKKS_UNTRUSTED_SERVER, "reply", "larger than %llu bytes",
                                (unsigned long long)c->socket->receive_max);
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
    carrier_fini(&k, c->socket);
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
