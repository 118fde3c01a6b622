/*
 * The order of checks: size, frame, header, method and socket, segments, token and scope, draining, payload.
 * What fails before the method is known is counted under "unknown". A frame that cannot be parsed is answered
 * and then its pipe is closed, since silence would leave the peer waiting.
 */
#include "daemon/request.h"

#include "daemon/clock.h"
#include "daemon/inference.h"
#include "daemon/local.h"
#include "daemon/logging.h"
#include "daemon/reply.h"
#include "daemon/server.h"
#include "kernels/base/bytes.h"
#include "proto/ingest.h"

#include <stdio.h>
#include <stdlib.h>

#define HEADER_ARENA_BYTES (512u << 10)
#define INPUT_ARENA_BYTES  (2u << 20)

/* Parsed messages are larger than packed ones, but by a bounded factor; a small message gets a small arena,
 * since the arena is zeroed each time. */
static size_t arena_bytes(size_t packed_bytes, size_t limit) {
    const size_t wanted = 4096 + 64 * packed_bytes;
    return wanted < limit ? wanted : limit;
}

/* ---- answering ---- */

static void count_answer(const request *r) {
    const rpc_code code = r->error.code == CKKS_OK ? RPC_OK : ckks_status_rpc(r->error.code);
    metrics_method *m = r->method ? r->method->metrics : dispatch_unknown();
    if (m) atomic_fetch_add_explicit(&m->code[code], 1, memory_order_relaxed);
    if (r->error.code != CKKS_OK)
        atomic_fetch_add_explicit(&daemon_metrics.rejected[r->error.code], 1, memory_order_relaxed);
}

static void send_to_waiters(request *r, nng_msg *message, bool close_pipe) {
    while (!list_is_empty(&r->waiters)) {
        transport_context *context = LIST_ENTRY(r->waiters.next, transport_context, link);
        nng_msg *copy = message;
        list_remove(&context->link);
        const bool is_last = list_is_empty(&r->waiters);
        if (!is_last && nng_msg_dup(&copy, message) != 0) copy = NULL;
        if (r->ticket && local_ticket_is_of(r->ticket, context))
            local_replied(context, copy, r->ticket, nng_msg_len(message));
        else if (copy)
            transport_reply(context, copy, close_pipe);
        else
            transport_release(context); /* no memory even for an error: the peer's own time-out speaks */
        if (is_last) return;
    }
    if (message) nng_msg_free(message);
}

void request_answer(request *r, nng_msg *message) {
    if (r->is_answered) {
        if (message) nng_msg_free(message);
        return;
    }
    if (!message) {
        ckks_error_set(&r->error, CKKS_RESOURCE_EXHAUSTED, "reply", "no memory for the reply");
        message = reply_create_error(&r->error, r->has_id ? r->id : NULL, 0);
    }
    r->is_answered = true;
    count_answer(r);
    send_to_waiters(r, message, false);
}

bool request_was_answered(request *r, const nng_msg *reply) {
    const list_node *first = r->waiters.next;
    if (r->is_answered || !r->ticket || first == &r->waiters || first->next != &r->waiters) return false;
    transport_context *context = LIST_ENTRY(first, transport_context, link);
    const size_t bytes = nng_msg_len(reply);
    if (r->ticket->sent != local_reply_bytes(r->ticket, bytes) || !local_ticket_is_of(r->ticket, context))
        return false;
    list_remove(&context->link);
    r->is_answered = true;
    count_answer(r);
    local_replied(context, NULL, r->ticket, bytes);
    return true;
}

static void answer_error(request *r, const ckks_error *cause, uint32_t retry_after_ms, bool close_pipe) {
    if (r->is_answered) return;
    r->error = *cause;
    if (r->error.code == CKKS_OK) r->error.code = CKKS_INTERNAL;
    if (retry_after_ms == 0 && ckks_status_is_retryable(r->error.code) && r->error.code != CKKS_DEADLINE)
        retry_after_ms = server_retry_hint_ms(r->server);
    r->is_answered = true;
    count_answer(r);
    send_to_waiters(r, reply_create_error(&r->error, r->has_id ? r->id : NULL, retry_after_ms), close_pipe);
}

void request_answer_error(request *r, const ckks_error *cause, uint32_t retry_after_ms) {
    answer_error(r, cause, retry_after_ms, false);
}

static void log_request(const request *r) {
    char message[256], field[96];
    const bool is_error = r->error.code != CKKS_OK;
    const bool is_quiet = !is_error && r->method && r->method->scope == 0;
    const log_level level = is_quiet ? LOG_LEVEL_DEBUG : is_error ? LOG_LEVEL_NOTICE : LOG_LEVEL_INFO;
    if (level > log_get_level()) return;
    if (r->is_joined) { /* the other says how it ended */
        log_write(level, "event=request_joined request=%s tenant=%s", r->id_text, r->tenant->name);
        return;
    }
    if (!is_error) {
        log_write(level, "event=request request=%s method=%s tenant=%s code=OK total_us=%llu", r->id_text,
                  r->method ? r->method->name : "unknown", r->tenant ? r->tenant->name : "-",
                  (unsigned long long)((clock_now_ns() - r->received_ns) / 1000));
        return;
    }
    log_write(
        level,
        "event=request request=%s method=%s tenant=%s code=%s error=%s field=%s message=%s total_us=%llu",
        r->id_text, r->method ? r->method->name : "unknown", r->tenant ? r->tenant->name : "-",
        rpc_code_name(ckks_status_rpc(r->error.code)), ckks_status_name(r->error.code),
        log_quote(field, sizeof field, r->error.field), log_quote(message, sizeof message, r->error.message),
        (unsigned long long)((clock_now_ns() - r->received_ns) / 1000));
}

/* The token is in the header, and this memory goes to somebody else. */
static void forget_header(request *r) {
    const size_t most = FRAME_PREFIX_BYTES + FRAME_HEADER_BYTES_MAX;
    const size_t bytes = r->frame.header        ? FRAME_PREFIX_BYTES + r->frame.header_bytes
                         : r->body.bytes < most ? r->body.bytes
                                                : most; /* what is no frame may hold one all the same */
    if (r->body.data) explicit_bzero(r->body.data, bytes);
}

void request_finish(request *r) {
    CKKS_ASSERT(list_is_empty(&r->waiters));
    log_request(r);
    list_remove(&r->link);
    message_free(r->input);
    message_free((ProtobufCMessage *)r->header);
    free(r->segments);
    forget_header(r);
    transport_body_free(&r->server->transport, &r->body);
    server_request_finished(r->server);
    free(r);
}

void request_reply(request *r, const ProtobufCMessage *payload) {
    nng_msg *message = NULL;
    uint8_t *area;
    ckks_error err = {0};
    const reply_parts parts = {.request_id = r->has_id ? r->id : NULL, .payload = payload};
    if (reply_create(&message, &area, &parts, &err) == CKKS_OK)
        request_answer(r, message);
    else
        answer_error(r, &err, 0, false);
    request_finish(r);
}

void request_fail(request *r, const ckks_error *cause) {
    answer_error(r, cause, 0, false);
    request_finish(r);
}

void request_join(request *to, request *from) {
    while (!list_is_empty(&from->waiters)) {
        transport_context *context = LIST_ENTRY(from->waiters.next, transport_context, link);
        list_remove(&context->link);
        context->owner = to;
        list_append(&to->waiters, &context->link);
    }
    from->is_answered = from->is_joined = true;
}

void request_lost(transport_context *context) {
    request *r = context->owner;
    list_remove(&context->link);
    transport_release(context);
    if (r && list_is_empty(&r->waiters) && r->inference) inference_orphaned(r->inference);
}

/* ---- the front ---- */

static ckks_status read_header(request *r, ckks_error *err) {
    ckks_status rc = message_unpack((ProtobufCMessage **)&r->header, &ckksd__v1__request_header__descriptor,
                                    r->frame.header, r->frame.header_bytes,
                                    arena_bytes(r->frame.header_bytes, HEADER_ARENA_BYTES), "header", err);
    if (rc != CKKS_OK) return rc;
    if (r->header->has_request_id) {
        if (r->header->request_id.len != sizeof r->id)
            return ckks_error_set(err, CKKS_MALFORMED, "request_id", "a request id has 16 bytes, not %zu",
                                  r->header->request_id.len);
        memcpy(r->id, r->header->request_id.data, sizeof r->id);
        r->has_id = true;
        hex_encode(r->id_text, r->id, sizeof r->id);
    }
    if (!r->header->method || !r->header->method[0])
        return ckks_error_set(err, CKKS_MALFORMED, "method", "the header names no method");
    return CKKS_OK;
}

static ckks_status read_segments(request *r, ckks_error *err) {
    ckks_status rc;
    const size_t count = r->header->n_segments;
    if (count > FRAME_SEGMENTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "segments", "%zu segments, at most %u", count,
                              FRAME_SEGMENTS_MAX);
    if (!(r->segments = calloc(count + 1, sizeof *r->segments)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "segments", "out of memory");
    if ((rc = segments_from_messages(r->segments, (uint32_t)count, &r->segment_count, r->header->segments,
                                     count, err)) != CKKS_OK)
        return rc;
    return frame_check_segments(&r->frame, r->segments, r->segment_count, err);
}

static ckks_status check_method(request *r, const transport_context *context, ckks_error *err) {
    char quoted[64];
    if (!(r->method = dispatch_find(r->header->method)))
        return ckks_error_set(err, CKKS_UNIMPLEMENTED, "method", "there is no method %s",
                              log_quote(quoted, sizeof quoted, r->header->method));
    if (!(r->method->sockets & 1u << context->kind))
        return ckks_error_set(err, CKKS_PERMISSION_DENIED, "method",
                              "%s is not served on this socket: use the %s one", r->method->name,
                              r->method->sockets & 1u << TRANSPORT_BULK      ? "bulk"
                              : r->method->sockets & 1u << TRANSPORT_CONTROL ? "control"
                                                                             : "admin");
    return CKKS_OK;
}

static ckks_status check_peer(request *r, const transport_context *context, ckks_error *err) {
    uint64_t uid = 0;
    if (context->kind == TRANSPORT_ADMIN) {
        if (!transport_admin_peer(context, &r->body, &uid) || !server_is_admin(r->server, uid))
            return ckks_error_set(err, CKKS_PERMISSION_DENIED, "uid",
                                  "this user may not administer the daemon");
        transport_trust(context);
        return CKKS_OK;
    }
    const char *token = r->header->token ? r->header->token : "";
    tenant_account *of_token = NULL;
    if (r->method->scope == 0) { /* needs none; a good one tells who is there */
        if (token[0] && tenants_verify(&r->server->tenants, &of_token, token, 0, NULL) == CKKS_OK)
            transport_trust(context);
        return CKKS_OK;
    }
    const ckks_status rc = tenants_verify(&r->server->tenants, &r->tenant, token, r->method->scope, err);
    if (rc == CKKS_OK || rc == CKKS_PERMISSION_DENIED) transport_trust(context);
    if (rc == CKKS_OK) local_trust(context);
    return rc;
}

static void set_deadline(request *r) {
    const config *c = &r->server->config;
    uint64_t ms = r->header->has_timeout_ms ? r->header->timeout_ms : c->default_timeout_ms;
    if (ms > c->timeout_max_ms) ms = c->timeout_max_ms;
    r->deadline_ns = r->received_ns + ms * NS_PER_MS;
}

/* Everything up to the handler. *must_close: the pipe cannot be trusted to be in step. */
static ckks_status check(request *r, transport_context *context, bool *must_close, ckks_error *err) {
    ckks_status rc;
    const size_t size = r->body.bytes;
    const uint64_t limit = context->transport->sockets[context->kind].message_bytes_max;
    *must_close = true;
    if (size > limit)
        return ckks_error_set(err, CKKS_TOO_LARGE, "message", "%zu bytes, at most %llu on this socket", size,
                              (unsigned long long)limit);
    if ((rc = frame_parse(&r->frame, r->body.data, size, err)) != CKKS_OK) {
        *must_close = rc != CKKS_UNSUPPORTED_VERSION;
        return rc;
    }
    if ((rc = read_header(r, err)) != CKKS_OK) return rc;
    *must_close = false;
    if ((rc = check_method(r, context, err)) != CKKS_OK) return rc;
    if ((rc = read_segments(r, err)) != CKKS_OK) {
        *must_close = true;
        return rc;
    }
    if ((rc = check_peer(r, context, err)) != CKKS_OK) {
        if (rc == CKKS_AUTH) *must_close = transport_token_failed(context);
        return rc;
    }
    set_deadline(r);
    if ((rc = server_accepts(r->server, r->method, err)) != CKKS_OK) return rc;
    return message_unpack(&r->input, r->method->descriptor->input, r->header->payload.data,
                          r->header->payload.len, arena_bytes(r->header->payload.len, INPUT_ARENA_BYTES),
                          "payload", err);
}

static void closure(const ProtobufCMessage *payload, void *r) {
    request_reply(r, payload);
}

void request_begin(server *s, transport_context *context, const transport_body *body) {
    ckks_error err = {0};
    bool must_close = false;
    request *r = calloc(1, sizeof *r);
    if (!r) {
        transport_body lost = *body;
        transport_body_free(&s->transport, &lost);
        transport_release(context);
        return;
    }
    r->server = s;
    r->body = *body;
    r->received_ns = clock_now_ns();
    if (context->began_ns) r->receive_ns = r->received_ns - context->began_ns;
    list_init(&r->waiters);
    list_append(&r->waiters, &context->link);
    context->owner = r;
    list_append(&s->requests, &r->link);
    snprintf(r->id_text, sizeof r->id_text, "-%llu", (unsigned long long)++s->request_serial);
    if (check(r, context, &must_close, &err) != CKKS_OK) {
        answer_error(r, &err, 0, must_close);
        request_finish(r);
        return;
    }
    r->method->service->invoke(r->method->service, r->method->index, r->input, closure, r);
}
