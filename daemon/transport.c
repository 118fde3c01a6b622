#include "daemon/transport.h"

#include "daemon/clock.h"
#include "daemon/local.h"
#include "kernels/base/log.h"

#include <nng/protocol/reqrep0/rep.h>
#include <nng/supplemental/tls/tls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_MS       100u
#define CLOSE_LIMIT_MS 3000u

/* ---- pipes: nng's threads ---- */

static transport_pipe *find_pipe(transport *t, uint32_t id) {
    for (uint32_t i = 0; i < t->pipe_capacity; i++)
        if (t->pipes[i].id == id) return &t->pipes[i];
    return NULL;
}

static void close_pipe(transport *t, uint32_t id) {
    if (local_is_ours(id))
        local_hang_up(t, id);
    else
        nng_pipe_close((nng_pipe){.id = id});
}

/* The one that came first of those that may have to go; *leaving counts those that do already. Locked. */
static transport_pipe *oldest_unauthenticated(transport *t, uint32_t *staying, uint32_t *leaving) {
    transport_pipe *oldest = NULL;
    *staying = *leaving = 0;
    for (uint32_t i = 0; i < t->pipe_capacity; i++) {
        transport_pipe *pipe = &t->pipes[i];
        if (pipe->id == 0 || pipe->is_trusted) continue;
        ++*(pipe->is_leaving ? leaving : staying);
        if (!pipe->is_leaving && (!oldest || pipe->opened_ns < oldest->opened_ns)) oldest = pipe;
    }
    return oldest;
}

/* Makes room; 0 or the pipe that is to be closed. One that leaves holds its place until it is gone: there are
 * never more of them than may stay. Locked. */
static uint32_t displace(transport *t, transport_pipe **slot) {
    uint32_t staying, leaving;
    transport_pipe *oldest = oldest_unauthenticated(t, &staying, &leaving);
    const bool is_over = staying >= t->unauthenticated_max;
    if (is_over && leaving >= t->unauthenticated_max) *slot = NULL;
    if (!oldest || (*slot && !is_over) || leaving >= t->unauthenticated_max) return 0;
    oldest->is_leaving = true;
    oldest->close_at_ns = 1;
    t->displaced_pipes++;
    return oldest->id;
}

bool transport_pipe_add(transport *t, uint32_t id, transport_kind kind) {
    uint32_t displaced = 0;
    const uint64_t now = clock_now_ns();
    pthread_mutex_lock(&t->lock);
    transport_pipe *slot = t->refuses_pipes ? NULL : find_pipe(t, 0);
    if (!t->refuses_pipes) displaced = displace(t, &slot);
    if (slot)
        *slot = (transport_pipe){.id = id, .kind = kind, .last_message_ns = now, .opened_ns = now};
    else
        t->refused_pipes++;
    pthread_mutex_unlock(&t->lock);
    if (displaced && local_is_ours(displaced) && !local_is_ours(id))
        loop_post(t->loop, &t->displaced); /* that is for the loop to do */
    else if (displaced)
        close_pipe(t, displaced);
    return slot != NULL;
}

void transport_pipe_remove(transport *t, uint32_t id) {
    pthread_mutex_lock(&t->lock);
    transport_pipe *slot = find_pipe(t, id);
    if (slot) *slot = (transport_pipe){0};
    pthread_mutex_unlock(&t->lock);
}

static void on_pipe(transport *t, transport_kind kind, nng_pipe pipe, nng_pipe_ev event) {
    const uint32_t id = (uint32_t)nng_pipe_id(pipe);
    handover_acquire(t);
    if (event == NNG_PIPE_EV_ADD_PRE) {
        if (!transport_pipe_add(t, id, kind)) nng_pipe_close(pipe);
        return;
    }
    transport_pipe_remove(t, id);
    loop_post(t->loop, &t->pipes_changed);
}
static void on_control_pipe(nng_pipe pipe, nng_pipe_ev event, void *t) {
    on_pipe(t, TRANSPORT_CONTROL, pipe, event);
}
static void on_bulk_pipe(nng_pipe pipe, nng_pipe_ev event, void *t) {
    on_pipe(t, TRANSPORT_BULK, pipe, event);
}
static void on_admin_pipe(nng_pipe pipe, nng_pipe_ev event, void *t) {
    on_pipe(t, TRANSPORT_ADMIN, pipe, event);
}

static void on_aio(void *argument) {
    transport_context *context = argument;
    handover_acquire(context);
    loop_post(context->transport->loop, &context->completed);
}

/* ---- contexts: the loop thread ---- */

static bool pipe_is_there(transport *t, uint32_t id) {
    pthread_mutex_lock(&t->lock);
    const bool is_there = find_pipe(t, id) != NULL;
    pthread_mutex_unlock(&t->lock);
    return is_there;
}

void transport_pipe_touch(transport *t, uint32_t id) {
    pthread_mutex_lock(&t->lock);
    transport_pipe *pipe = find_pipe(t, id);
    if (pipe) pipe->last_message_ns = clock_now_ns();
    pthread_mutex_unlock(&t->lock);
}

static void receive(transport_context *context) {
    context->owner = NULL;
    context->pipe = 0;
    context->close_after = false;
    list_init(&context->link);
    context->state = CONTEXT_RECEIVING;
    nng_aio_set_timeout(context->aio, NNG_DURATION_INFINITE);
    handover_release(context);
    nng_ctx_recv(context->nng, context->aio);
}

void transport_pipe_mark(transport *t, uint32_t id) {
    pthread_mutex_lock(&t->lock);
    transport_pipe *pipe = find_pipe(t, id);
    if (pipe) pipe->close_at_ns = clock_now_ns() + TRANSPORT_CLOSE_DELAY_MS * NS_PER_MS;
    pthread_mutex_unlock(&t->lock);
}

static void received(transport_context *context) {
    transport *t = context->transport;
    nng_msg *message = nng_aio_get_msg(context->aio);
    nng_aio_set_msg(context->aio, NULL);
    context->pipe = (uint32_t)nng_pipe_id(nng_msg_get_pipe(message));
    context->state = CONTEXT_HANDLING;
    transport_pipe_touch(t, context->pipe);
    const transport_body body = {
        .data = nng_msg_body(message), .bytes = nng_msg_len(message), .message = message};
    t->callbacks.message(t->callbacks.data, context, &body);
}

static void on_completed(loop_event *event) {
    transport_context *context = LIST_ENTRY(event, transport_context, completed);
    const int rc = nng_aio_result(context->aio);
    if (context->state == CONTEXT_RECEIVING) {
        if (rc == 0)
            received(context);
        else if (rc == NNG_ECLOSED || rc == NNG_ECANCELED)
            context->state = CONTEXT_CLOSED;
        else
            receive(context);
    } else if (context->state == CONTEXT_SENDING) {
        if (rc != 0) { /* the message is still ours */
            nng_msg_free(nng_aio_get_msg(context->aio));
            nng_aio_set_msg(context->aio, NULL);
        }
        if (rc == NNG_ETIMEDOUT) nng_pipe_close((nng_pipe){.id = context->pipe});
        if (context->close_after) transport_pipe_mark(context->transport, context->pipe);
        transport_pipe_touch(context->transport, context->pipe);
        if (rc == NNG_ECLOSED || rc == NNG_ECANCELED)
            context->state = CONTEXT_CLOSED;
        else
            receive(context);
    }
}

void transport_reply(transport_context *context, nng_msg *message, bool close_pipe) {
    CKKS_ASSERT(context->state == CONTEXT_HANDLING);
    context->state = CONTEXT_SENDING;
    context->close_after = close_pipe;
    context->owner = NULL;
    if (context->is_local) {
        local_reply(context, message);
        return;
    }
    nng_aio_set_msg(context->aio, message);
    /* waits for the replies before it, if its peer takes none: the context is others' too */
    nng_aio_set_timeout(context->aio, (nng_duration)(context->transport->send_timeout_ns / NS_PER_MS));
    handover_release(context);
    nng_ctx_send(context->nng, context->aio);
}

void transport_body_free(transport *t, transport_body *body) {
    (void)t;
    if (body->block) body->block->is_used = false;
    if (body->message) nng_msg_free(body->message);
    *body = (transport_body){0};
}

void transport_lend_blocks(transport *t, uint8_t *memory, uint64_t block_bytes, uint32_t count) {
    CKKS_ASSERT(count <= TRANSPORT_BLOCKS_MAX && t->block_count == 0);
    for (uint32_t i = 0; i < count; i++) t->blocks[i] = (transport_block){.memory = memory + i * block_bytes};
    t->block_count = count, t->block_bytes = block_bytes;
}

void transport_release(transport_context *context) {
    CKKS_ASSERT(context->state == CONTEXT_HANDLING);
    if (context->is_local)
        local_release(context);
    else
        receive(context);
}

bool transport_token_failed(transport_context *context) {
    transport *t = context->transport;
    bool is_last = false;
    pthread_mutex_lock(&t->lock);
    transport_pipe *pipe = find_pipe(t, context->pipe);
    if (pipe) is_last = ++pipe->failed_tokens >= TRANSPORT_FAILED_TOKENS;
    pthread_mutex_unlock(&t->lock);
    return is_last;
}

bool transport_admin_peer(const transport_context *context, const transport_body *body, uint64_t *uid) {
    if (context->is_local) return local_user(context, uid);
    return nng_pipe_get_uint64(nng_msg_get_pipe(body->message), NNG_OPT_IPC_PEER_UID, uid) == 0;
}

void transport_trust(const transport_context *context) {
    transport *t = context->transport;
    pthread_mutex_lock(&t->lock);
    transport_pipe *pipe = find_pipe(t, context->pipe);
    if (pipe) pipe->is_trusted = true;
    pthread_mutex_unlock(&t->lock);
}

/* A local pipe went for another that is not local. */
static void on_displaced(loop_event *event) {
    transport *t = LIST_ENTRY(event, transport, displaced);
    for (uint32_t i = 0; i < t->pipe_capacity; i++) {
        pthread_mutex_lock(&t->lock);
        const transport_pipe pipe = t->pipes[i];
        pthread_mutex_unlock(&t->lock);
        if (pipe.id && pipe.is_leaving && local_is_ours(pipe.id)) local_hang_up(t, pipe.id);
    }
}

/* A pipe went: whoever handles a request of it must know. */
static void on_pipes_changed(loop_event *event) {
    transport *t = LIST_ENTRY(event, transport, pipes_changed);
    for (int k = 0; k < TRANSPORT_KINDS; k++)
        for (uint32_t i = 0; i < t->sockets[k].context_count; i++) {
            transport_context *context = &t->sockets[k].contexts[i];
            if (context->state == CONTEXT_HANDLING && !pipe_is_there(t, context->pipe))
                t->callbacks.lost(t->callbacks.data, context);
        }
}

static bool has_request(const transport_context *contexts, uint32_t count, uint32_t pipe) {
    for (uint32_t i = 0; contexts && i < count; i++)
        if (contexts[i].pipe == pipe && contexts[i].state == CONTEXT_HANDLING) return true;
    return false;
}

static bool pipe_has_request(const transport *t, uint32_t id) {
    for (int k = 0; k < TRANSPORT_KINDS; k++) {
        const transport_socket *s = &t->sockets[k];
        if (has_request(s->contexts, s->context_count, id) || has_request(s->local, s->local_count, id))
            return true;
    }
    return false;
}

/* Late is who shows no token. What is large comes to bulk addresses, and is seen when all of it is there. */
static bool is_late(const transport *t, const transport_pipe *pipe, uint64_t now) {
    const bool may_be_large =
        pipe->kind == TRANSPORT_BULK && t->idle_timeout_ns > t->unauthenticated_timeout_ns;
    const uint64_t limit_ns = may_be_large ? t->idle_timeout_ns : t->unauthenticated_timeout_ns;
    return !pipe->is_trusted && !pipe->is_leaving && now > pipe->opened_ns + limit_ns;
}

static void mark_expired(transport *t, uint32_t id) {
    pthread_mutex_lock(&t->lock);
    transport_pipe *pipe = find_pipe(t, id);
    if (pipe && !pipe->is_leaving) pipe->is_leaving = true, t->expired_pipes++;
    pthread_mutex_unlock(&t->lock);
}

/* Closes pipes that are marked, and those that were silent or without a token too long without a request of
 * theirs in hand. */
static void on_sweep(uv_timer_t *timer) {
    transport *t = timer->data;
    const uint64_t now = clock_now_ns();
    local_sweep(t);
    for (uint32_t i = 0; i < t->pipe_capacity; i++) {
        pthread_mutex_lock(&t->lock);
        const transport_pipe pipe = t->pipes[i];
        pthread_mutex_unlock(&t->lock);
        if (pipe.id == 0) continue;
        const bool is_marked = pipe.close_at_ns && now >= pipe.close_at_ns;
        const bool is_idle = now > pipe.last_message_ns + t->idle_timeout_ns;
        const bool is_over = is_idle || is_late(t, &pipe, now);
        if (!is_marked && !(is_over && !pipe_has_request(t, pipe.id))) continue;
        if (!is_marked && !is_idle) mark_expired(t, pipe.id);
        close_pipe(t, pipe.id);
    }
}

/* ---- opening ---- */

static char *read_text(const char *path) {
    FILE *file = fopen(path, "re");
    char *text = NULL;
    const size_t limit = 1u << 20;
    if (!file) return NULL;
    if ((text = malloc(limit + 1))) {
        const size_t n = fread(text, 1, limit, file);
        text[n] = 0;
    }
    fclose(file);
    return text;
}

static ckks_status tls_create(nng_tls_config **out, const config *c, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    nng_tls_config *tls = NULL;
    int n = 0;
    char *certificate = read_text(c->tls_certificate), *key = read_text(c->tls_key), *authority = NULL;
    if (!certificate || !key) {
        rc = ckks_error_set(err, CKKS_IO, "tls_certificate", "cannot read %s",
                            certificate ? c->tls_key : c->tls_certificate);
        goto out;
    }
    if ((n = nng_tls_config_alloc(&tls, NNG_TLS_MODE_SERVER)) != 0 ||
        (n = nng_tls_config_own_cert(tls, certificate, key, NULL)) != 0) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tls_certificate", "%s with %s: %s",
                            c->tls_certificate, c->tls_key, nng_strerror(n));
        goto out;
    }
    if (c->tls_client_ca[0]) {
        if (!(authority = read_text(c->tls_client_ca)) ||
            (n = nng_tls_config_ca_chain(tls, authority, NULL)) != 0 ||
            (n = nng_tls_config_auth_mode(tls, NNG_TLS_AUTH_MODE_REQUIRED)) != 0) {
            rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "tls_client_ca", "%s: %s", c->tls_client_ca,
                                n ? nng_strerror(n) : "cannot be read");
            goto out;
        }
    }
    *out = tls, tls = NULL;
out:
    if (tls) nng_tls_config_free(tls);
    free(certificate);
    if (key) explicit_bzero(key, strlen(key));
    free(key);
    free(authority);
    return rc;
}

static bool has_prefix(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* The address as bound: a configured port of 0 is replaced by what the system chose. */
static void endpoint_add(transport *t, transport_kind kind, const nng_listener *listener, const char *url) {
    transport_endpoint *endpoint = &t->endpoints[t->endpoint_count++];
    const size_t length = strlen(url);
    int port = 0;
    endpoint->kind = kind;
    if (listener && length > 2 && strcmp(url + length - 2, ":0") == 0 &&
        nng_listener_get_int(*listener, NNG_OPT_TCP_BOUND_PORT, &port) == 0)
        snprintf(endpoint->url, sizeof endpoint->url, "%.*s:%d", (int)(length - 2), url, port);
    else
        snprintf(endpoint->url, sizeof endpoint->url, "%s", url);
    log_write(LOG_LEVEL_NOTICE, "event=listening socket=%s address=%s",
              kind == TRANSPORT_CONTROL ? "control"
              : kind == TRANSPORT_BULK  ? "bulk"
                                        : "admin",
              endpoint->url);
}

static ckks_status listen_on(transport *t, transport_kind kind, const char *url, uint32_t ipc_mode,
                             nng_tls_config *tls, ckks_error *err) {
    nng_listener listener;
    if (has_prefix(url, "ipc://")) {
        const ckks_status rc = local_listen(t, kind, url + strlen("ipc://"), ipc_mode, err);
        if (rc == CKKS_OK) endpoint_add(t, kind, NULL, url);
        return rc;
    }
    int n = nng_listener_create(&listener, t->sockets[kind].nng, url);
    if (n == 0 && (has_prefix(url, "tls+tcp://") || has_prefix(url, "wss://")))
        n = nng_listener_set_ptr(listener, NNG_OPT_TLS_CONFIG, tls);
    if (n == 0 && (has_prefix(url, "tcp://") || has_prefix(url, "tls+tcp://")))
        n = nng_listener_set_bool(listener, NNG_OPT_TCP_KEEPALIVE, true);
    if (n == 0) n = nng_listener_start(listener, 0);
    if (n != 0)
        return ckks_error_set(err, CKKS_IO, "listen", "cannot listen on %s: %s", url, nng_strerror(n));
    endpoint_add(t, kind, &listener, url);
    return CKKS_OK;
}

static ckks_status socket_open(transport *t, transport_kind kind, uint64_t message_bytes_max,
                               uint32_t context_count, ckks_error *err) {
    static const nng_pipe_cb callbacks[] = {on_control_pipe, on_bulk_pipe, on_admin_pipe};
    transport_socket *s = &t->sockets[kind];
    int n = nng_rep0_open(&s->nng);
    if (n != 0) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "socket: %s", nng_strerror(n));
    s->is_open = true;
    s->message_bytes_max = message_bytes_max;
    list_init(&s->local_free);
    handover_release(t);
    if ((n = nng_socket_set_size(s->nng, NNG_OPT_RECVMAXSZ, message_bytes_max)) != 0 ||
        (n = nng_pipe_notify(s->nng, NNG_PIPE_EV_ADD_PRE, callbacks[kind], t)) != 0 ||
        (n = nng_pipe_notify(s->nng, NNG_PIPE_EV_REM_POST, callbacks[kind], t)) != 0)
        return ckks_error_set(err, CKKS_INTERNAL, "", "socket options: %s", nng_strerror(n));
    if (!(s->contexts = calloc(context_count, sizeof *s->contexts)) ||
        !(s->local = calloc(context_count, sizeof *s->local)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    s->local_count = context_count;
    for (uint32_t i = 0; i < context_count; i++) {
        s->local[i] =
            (transport_context){.transport = t, .kind = kind, .state = CONTEXT_RECEIVING, .is_local = true};
        list_append(&s->local_free, &s->local[i].link);
    }
    for (uint32_t i = 0; i < context_count; i++) {
        transport_context *context = &s->contexts[i];
        context->transport = t;
        context->kind = kind;
        context->state = CONTEXT_CLOSED;
        context->completed.run = on_completed;
        list_init(&context->link);
        if ((n = nng_aio_alloc(&context->aio, on_aio, context)) != 0)
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "context: %s", nng_strerror(n));
        s->context_count = i + 1;
        if ((n = nng_ctx_open(&context->nng, s->nng)) != 0)
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "context: %s", nng_strerror(n));
    }
    return CKKS_OK;
}

static ckks_status open_all(transport *t, const config *c, uint32_t bulk_contexts, nng_tls_config *tls,
                            ckks_error *err) {
    ckks_status rc;
    if ((rc = socket_open(t, TRANSPORT_CONTROL, c->control_message_bytes, c->control_contexts, err)) !=
        CKKS_OK)
        return rc;
    if ((rc = socket_open(t, TRANSPORT_BULK, c->bulk_message_bytes, bulk_contexts, err)) != CKKS_OK)
        return rc;
    for (uint32_t i = 0; i < c->control.count; i++)
        if ((rc = listen_on(t, TRANSPORT_CONTROL, c->control.item[i], c->ipc_mode, tls, err)) != CKKS_OK)
            return rc;
    for (uint32_t i = 0; i < c->bulk.count; i++)
        if ((rc = listen_on(t, TRANSPORT_BULK, c->bulk.item[i], c->ipc_mode, tls, err)) != CKKS_OK) return rc;
    if (c->admin_socket[0]) {
        if ((rc = socket_open(t, TRANSPORT_ADMIN, c->control_message_bytes, 4, err)) != CKKS_OK) return rc;
        rc = listen_on(t, TRANSPORT_ADMIN, c->admin_socket, c->admin_uids.count ? 0666 : 0600, tls, err);
    }
    return rc;
}

ckks_status transport_open(transport *t, loop *l, const config *c, uint32_t bulk_contexts,
                           const transport_callbacks *callbacks, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    nng_tls_config *tls = NULL;
    memset(t, 0, sizeof *t);
    t->loop = l;
    t->callbacks = *callbacks;
    t->idle_timeout_ns = c->idle_timeout_ms * NS_PER_MS;
    t->send_timeout_ns = c->send_timeout_ms * NS_PER_MS;
    t->unauthenticated_timeout_ns = c->unauthenticated_timeout_ms * NS_PER_MS;
    t->pipes_changed.run = on_pipes_changed;
    t->displaced.run = on_displaced;
    t->pipe_capacity = c->pipes_max;
    t->unauthenticated_max = c->unauthenticated_max ? c->unauthenticated_max : c->pipes_max / 4;
    if (!t->unauthenticated_max) t->unauthenticated_max = 1;
    t->lent_max = c->local_memory_peers;
    list_init(&t->local_peers);
    list_init(&t->local_listeners);
    if (!(t->pipes = calloc(t->pipe_capacity, sizeof *t->pipes)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "pipes_max", "out of memory");
    pthread_mutex_init(&t->lock, NULL);
    t->is_initialised = true;
    if (c->tls_certificate[0] && (rc = tls_create(&tls, c, err)) != CKKS_OK) goto out;
    if ((rc = open_all(t, c, bulk_contexts, tls, err)) != CKKS_OK) goto out;
    uv_timer_init(&l->uv, &t->sweep);
    t->sweep.data = t;
    uv_timer_start(&t->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    for (int k = 0; k < TRANSPORT_KINDS; k++)
        for (uint32_t i = 0; i < t->sockets[k].context_count; i++) receive(&t->sockets[k].contexts[i]);
out:
    if (tls) nng_tls_config_free(tls);
    if (rc != CKKS_OK) transport_close(t);
    return rc;
}

/* ---- draining and closing ---- */

void transport_refuse_pipes(transport *t) {
    pthread_mutex_lock(&t->lock);
    t->refuses_pipes = true;
    pthread_mutex_unlock(&t->lock);
}

uint32_t transport_pipe_count(transport *t) {
    uint32_t count = 0;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->pipe_capacity; i++) count += t->pipes[i].id != 0;
    pthread_mutex_unlock(&t->lock);
    return count;
}

void transport_count_pipes(transport *t, transport_pipe_counts *out) {
    *out = (transport_pipe_counts){0};
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < t->pipe_capacity; i++) {
        out->open += t->pipes[i].id != 0;
        out->unauthenticated += t->pipes[i].id != 0 && !t->pipes[i].is_trusted;
    }
    out->refused = t->refused_pipes, out->displaced = t->displaced_pipes, out->expired = t->expired_pipes;
    pthread_mutex_unlock(&t->lock);
}

uint32_t transport_count_state(const transport *t, transport_context_state state) {
    uint32_t count = 0;
    for (int k = 0; k < TRANSPORT_KINDS; k++) {
        const transport_socket *s = &t->sockets[k];
        for (uint32_t i = 0; i < s->context_count; i++) count += s->contexts[i].state == state;
        for (uint32_t i = 0; i < s->local_count; i++) count += s->local[i].state == state;
    }
    return count;
}

void transport_stop(transport *t) {
    local_stop(t);
    for (int k = 0; k < TRANSPORT_KINDS; k++)
        for (uint32_t i = 0; i < t->sockets[k].context_count; i++) {
            transport_context *context = &t->sockets[k].contexts[i];
            nng_aio_stop(context->aio);
            /* a request that arrived and was never looked at, or a reply that was not taken */
            nng_msg *message = context->state == CONTEXT_CLOSED ? NULL : nng_aio_get_msg(context->aio);
            const bool is_ours = (context->state == CONTEXT_RECEIVING && nng_aio_result(context->aio) == 0) ||
                                 (context->state == CONTEXT_SENDING && nng_aio_result(context->aio) != 0);
            if (message && is_ours) nng_msg_free(message);
            nng_aio_set_msg(context->aio, NULL);
            context->state = CONTEXT_CLOSED;
        }
}

static void *close_sockets(void *argument) {
    transport *t = argument;
    for (int k = 0; k < TRANSPORT_KINDS; k++)
        if (t->sockets[k].is_open) nng_close(t->sockets[k].nng);
    return NULL;
}

void transport_close(transport *t) {
    pthread_t closer;
    struct timespec limit;
    if (!t->is_initialised) return;
    transport_stop(t);
    /* nng_close can wait for a peer that does not read: give it a bounded time */
    if (pthread_create(&closer, NULL, close_sockets, t) == 0) {
        clock_gettime(CLOCK_REALTIME, &limit);
        limit.tv_sec += CLOSE_LIMIT_MS / 1000;
        if (pthread_timedjoin_np(closer, NULL, &limit) != 0) {
            log_write(LOG_LEVEL_WARNING, "event=close_timeout message=\"sockets did not close in time\"");
            pthread_detach(closer);
            return; /* the process is about to end; freeing under the transport's feet would be worse */
        }
    }
    for (int k = 0; k < TRANSPORT_KINDS; k++) {
        transport_socket *s = &t->sockets[k];
        for (uint32_t i = 0; i < s->context_count; i++)
            if (s->contexts[i].aio) nng_aio_free(s->contexts[i].aio);
        free(s->contexts);
        free(s->local);
    }
    free(t->pipes);
    pthread_mutex_destroy(&t->lock);
    for (int k = 0; k < TRANSPORT_KINDS; k++) t->sockets[k] = (transport_socket){0};
    t->pipes = NULL, t->pipe_capacity = 0;
    t->is_initialised = false; /* the sweep timer stays with the loop until that is closed */
}
