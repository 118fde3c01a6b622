#include "daemon/local.h"

#include "daemon/clock.h"
#include "daemon/local_bind.h"
#include "daemon/local_memory.h"
#include "kernels/base/bytes.h"
#include "kernels/base/relax.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PIPE_BIT        0x80000000u /* of our pipes' ids; nng's do not have it */
#define GREETING_BYTES  8u
#define LAST_ID         0x80u /* the first bit of the last id of a trail */
#define BACKLOG         128
#define SEND_BYTES      (1 << 20) /* of a reply in the kernel on their way: a peer that is slow holds no more */
#define BODY_PAUSE_NS   20000u    /* a body's next piece is waited for this long, awake, */
#define BODY_TURN_NS    300000u   /* but nobody is read from longer than this at a time */
#define BLOCK_BYTES_MIN 4096u     /* smaller ones are not worth a block */
#define TOUCH_BYTES     4096      /* fewer are no reason to stay awake */

/* zero, "SP", version, protocol (16 bits, big-endian), reserved */
static const uint8_t greeting[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const uint8_t greeting_of_req[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

typedef enum peer_phase {
    PEER_GREETING,
    PEER_PREFIX,
    PEER_BODY,
    PEER_MEMORY,  /* a message is put into lent memory; its bell ends that */
    PEER_WAITING, /* a message is complete, and no context was free */
} peer_phase;

typedef struct local_peer {
    list_node link; /* in transport.local_peers; of no list once it is closing */
    uv_pipe_t uv;
    transport *transport;
    transport_kind kind;
    uint32_t id;
    peer_phase phase;
    uint8_t head[LOCAL_PREFIX_BYTES];
    size_t have;       /* of the head or of the message */
    uint64_t began_ns; /* of the message */
    local_out *out;
    list_node held; /* writes that wait for a rest */
    transport_body body;
    local_memory memory;
    size_t copied;      /* of a message in `memory` */
    size_t unsent;      /* bytes of replies at the last sweep, */
    uint64_t unsent_ns; /* as many since */
    bool is_trusted;    /* showed a good token */
    bool takes_memory;  /* the reply to this message may go through memory */
} local_peer;

typedef struct local_listener {
    list_node link;
    uv_pipe_t uv;
    transport *transport;
    transport_kind kind;
    bool is_waiting; /* a peer, that is: there was no memory for it */
} local_listener;

/* A reply on its way. It may outlive its context, which then is NULL. */
struct local_write {
    uv_write_t uv;
    list_node link; /* in peer.held */
    transport_context *context;
    local_out *out;   /* NULL: the loop does not count it */
    nng_msg *message; /* NULL: only the head */
    size_t head_bytes;
    uint8_t head[LOCAL_HEAD_MAX + 1];
};

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer);
static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *out);

/* ---- the end of a peer ---- */

static void on_written(uv_write_t *request, int status);

static void on_peer_closed(uv_handle_t *handle) {
    local_peer *p = LIST_ENTRY(handle, local_peer, uv);
    LIST_EACH_SAFE(link, &p->held) {
        list_remove(link);
        on_written(&LIST_ENTRY(link, struct local_write, link)->uv, UV_ECANCELED);
    }
    local_out_leave(p->out);
    free(p);
}
static void on_listener_closed(uv_handle_t *handle) {
    free(LIST_ENTRY(handle, local_listener, uv));
}

static void peer_close(local_peer *p) {
    transport *t = p->transport;
    if (uv_is_closing((uv_handle_t *)&p->uv)) return;
    list_remove(&p->link);
    transport_pipe_remove(t, p->id);
    transport_body_free(t, &p->body);
    local_memory_end(&p->memory);
    if (p->out) local_out_close(p->out);
    uv_close((uv_handle_t *)&p->uv, on_peer_closed);
    transport_socket *s = &t->sockets[p->kind];
    for (uint32_t i = 0; i < s->local_count; i++) {
        transport_context *context = &s->local[i];
        if (context->pipe != p->id || context->state != CONTEXT_HANDLING) continue;
        context->peer = NULL;
        t->callbacks.lost(t->callbacks.data, context);
    }
}

static local_peer *find_peer(transport *t, uint32_t id) {
    LIST_EACH(link, &t->local_peers) {
        local_peer *p = LIST_ENTRY(link, local_peer, link);
        if (p->id == id) return p;
    }
    return NULL;
}

bool local_is_ours(uint32_t pipe) {
    return (pipe & PIPE_BIT) != 0;
}

void local_hang_up(transport *t, uint32_t pipe) {
    local_peer *p = find_peer(t, pipe);
    if (p) peer_close(p);
}

/* ---- in ---- */

/* The trail of ids in front of a message becomes the context's; false: there is none that ends. */
static bool take_trail(transport_context *context, transport_body *body) {
    for (size_t at = 0; at + 4 <= body->bytes && at < 4 * LOCAL_HOPS_MAX; at += 4) {
        if (!(body->data[at] & LAST_ID)) continue;
        context->trail_bytes = (uint32_t)at + 4;
        memcpy(context->trail, body->data, context->trail_bytes);
        body->data += context->trail_bytes, body->bytes -= context->trail_bytes;
        return !body->message || nng_msg_trim(body->message, context->trail_bytes) == 0;
    }
    return false;
}

/* Does it leave replies where they are? */
static bool is_behind(const local_peer *p) {
    return uv_stream_get_write_queue_size((const uv_stream_t *)&p->uv) > 0 || !list_is_empty(&p->held);
}

/* Hands the complete message over, if a context is free. */
static void deliver(local_peer *p) {
    transport *t = p->transport;
    transport_socket *s = &t->sockets[p->kind];
    if (list_is_empty(&s->local_free) || is_behind(p)) {
        p->phase = PEER_WAITING;
        uv_read_stop((uv_stream_t *)&p->uv);
        return;
    }
    transport_context *context = LIST_ENTRY(s->local_free.next, transport_context, link);
    if (!take_trail(context, &p->body)) {
        peer_close(p);
        return;
    }
    list_remove(&context->link);
    const transport_body body = p->body;
    const bool was_waiting = p->phase == PEER_WAITING;
    p->body = (transport_body){0};
    p->phase = PEER_PREFIX, p->have = 0;
    context->state = CONTEXT_HANDLING;
    context->pipe = p->id;
    context->peer = p;
    context->began_ns = p->began_ns;
    context->takes_memory = p->takes_memory;
    transport_pipe_touch(t, p->id);
    if (was_waiting) uv_read_start((uv_stream_t *)&p->uv, on_room, on_read);
    t->callbacks.message(t->callbacks.data, context, &body);
}

/* Room for a message of `bytes`: a lent block, or memory of its own. */
static bool body_create(transport_body *out, transport *t, size_t bytes) {
    for (uint32_t i = 0; i < t->block_count && bytes >= BLOCK_BYTES_MIN && bytes <= t->block_bytes; i++) {
        transport_block *block = &t->blocks[i];
        if (block->is_used) continue;
        block->is_used = true;
        *out = (transport_body){.data = block->memory, .bytes = bytes, .block = block};
        return true;
    }
    nng_msg *message = NULL;
    if (nng_msg_alloc(&message, bytes) != 0) return false;
    *out = (transport_body){.data = nng_msg_body(message), .bytes = bytes, .message = message};
    return true;
}

static bool has_memory(const local_peer *p, bool is_for_replies) {
    return is_for_replies ? p->out && p->out->replies.head : p->memory.head != NULL;
}

static uint32_t lent_count(const transport *t, bool is_for_replies) {
    uint32_t count = 0;
    LIST_EACH(link, &t->local_peers) count += has_memory(LIST_ENTRY(link, local_peer, link), is_for_replies);
    return count;
}

/* A peer asked for memory, which those get that showed a good token, one each of both kinds. false: it is out
 * of step. */
static bool lend(local_peer *p, bool is_for_replies) {
    const transport *t = p->transport;
    local_memory made = {0};
    uv_os_fd_t fd;
    if (has_memory(p, is_for_replies) || uv_fileno((const uv_handle_t *)&p->uv, &fd) != 0 ||
        !local_out_begin(p->out))
        return false;
    const bool may_write = uv_stream_get_write_queue_size((const uv_stream_t *)&p->uv) == 0;
    const bool has_some = p->is_trusted && lent_count(t, is_for_replies) < t->lent_max;
    ckks_status rc = CKKS_IO;
    if (may_write)
        rc =
            has_some ? local_memory_lend(&made, fd, is_for_replies) : local_memory_refuse(fd, is_for_replies);
    local_out_end(p->out);
    if (made.head && is_for_replies)
        local_out_lend(p->out, &made);
    else if (made.head)
        p->memory = made;
    return rc != CKKS_IO;
}

/* false: the peer is not one of ours */
static bool read_prefix(local_peer *p) {
    transport *t = p->transport;
    const bool frees = (p->head[0] & LOCAL_MEMORY_FREE) != 0;
    const uint8_t type = (uint8_t)(p->head[0] & ~LOCAL_MEMORY_FREE);
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < LOCAL_PREFIX_BYTES; i++) bytes = bytes << 8 | p->head[i];
    p->have = 0;
    if (type == LOCAL_MEMORY_TYPE_LEND || type == LOCAL_MEMORY_TYPE_LEND_REPLIES)
        return bytes == 0 && !frees && lend(p, type == LOCAL_MEMORY_TYPE_LEND_REPLIES);
    if (type != LOCAL_TYPE_MESSAGE && type != LOCAL_MEMORY_TYPE) return false;
    if (type == LOCAL_MEMORY_TYPE && (!p->memory.head || bytes > LOCAL_MEMORY_BYTES)) return false;
    if (bytes < 4 || (frees && !has_memory(p, true))) return false;
    if (bytes > t->sockets[p->kind].message_bytes_max) return false;
    p->began_ns = clock_now_ns();
    if (!body_create(&p->body, t, (size_t)bytes)) return false;
    if (t->callbacks.coming) t->callbacks.coming(t->callbacks.data, p->kind, bytes);
    p->phase = type == LOCAL_TYPE_MESSAGE ? PEER_BODY : PEER_MEMORY;
    p->copied = 0;
    p->takes_memory = frees;
    if (frees) local_out_free_area(p->out);
    return true;
}

static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *out) {
    local_peer *p = LIST_ENTRY(handle, local_peer, uv);
    (void)wanted;
    uint8_t *to = p->phase == PEER_BODY ? p->body.data : p->head;
    const size_t size = p->phase == PEER_BODY       ? p->body.bytes
                        : p->phase == PEER_GREETING ? GREETING_BYTES
                        : p->phase == PEER_MEMORY   ? 1
                                                    : LOCAL_PREFIX_BYTES;
    const size_t left = size - p->have;
    out->base = (char *)to + p->have;
    out->len = left < INT32_MAX ? left : INT32_MAX;
}

/*
 * A large body comes in pieces while its sender copies it into the socket: an awake loop takes them as they
 * come, without going through its other handles in between, for a bounded time. false: the peer is gone.
 */
static bool read_on(local_peer *p) {
    uv_os_fd_t fd;
    if (!p->transport->loop->spin_ns || uv_fileno((const uv_handle_t *)&p->uv, &fd) != 0) return true;
    uint8_t *body = p->body.data;
    const size_t size = p->body.bytes;
    const uint64_t begin_ns = clock_now_ns();
    uint64_t now_ns = begin_ns, last_ns = begin_ns;
    while (p->have < size && now_ns - last_ns < BODY_PAUSE_NS && now_ns - begin_ns < BODY_TURN_NS) {
        const ssize_t n = recv(fd, body + p->have, size - p->have, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        now_ns = clock_now_ns();
        if (n >= TOUCH_BYTES || (n > 0 && p->have + (size_t)n == size)) last_ns = now_ns;
        if (n > 0)
            p->have += (size_t)n;
        else
            cpu_relax();
    }
    return true;
}

/* The same for a message in lent memory. Its bell stays on the socket. */
static void copy_on(local_peer *p) {
    if (!p->transport->loop->spin_ns) return;
    const uint64_t begin_ns = clock_now_ns();
    uint64_t now_ns = begin_ns, last_ns = begin_ns;
    while (p->copied < p->body.bytes && now_ns - last_ns < BODY_PAUSE_NS &&
           now_ns - begin_ns < BODY_TURN_NS) {
        const size_t before = p->copied;
        local_memory_take(p->memory.head, p->body.data, &p->copied, p->body.bytes, false);
        now_ns = clock_now_ns();
        if (p->copied > before)
            last_ns = now_ns;
        else
            cpu_relax();
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    local_peer *p = LIST_ENTRY(stream, local_peer, uv);
    (void)buffer;
    if (count < 0) {
        peer_close(p);
        return;
    }
    p->have += (size_t)count;
    if (p->phase == PEER_BODY && p->have < p->body.bytes && !read_on(p)) {
        peer_close(p);
        return;
    }
    if (p->phase == PEER_GREETING && p->have == GREETING_BYTES) {
        if (memcmp(p->head, greeting_of_req, GREETING_BYTES) != 0)
            peer_close(p);
        else
            p->phase = PEER_PREFIX, p->have = 0;
    } else if (p->phase == PEER_PREFIX && p->have == LOCAL_PREFIX_BYTES) {
        if (!read_prefix(p))
            peer_close(p);
        else if (p->phase == PEER_MEMORY)
            copy_on(p);
        loop_touch(p->transport->loop);
    } else if (p->phase == PEER_MEMORY && p->have == 1) {
        if (p->head[0] != LOCAL_MEMORY_BELL) {
            peer_close(p);
            return;
        }
        local_memory_take(p->memory.head, p->body.data, &p->copied, p->body.bytes, true);
        deliver(p);
    } else if (p->phase == PEER_BODY && p->have == p->body.bytes) {
        deliver(p);
    }
}

/* ---- out ---- */

static local_peer *first_waiting(transport *t, transport_kind kind) {
    LIST_EACH(link, &t->local_peers) {
        local_peer *p = LIST_ENTRY(link, local_peer, link);
        if (p->kind == kind && p->phase == PEER_WAITING && !is_behind(p)) return p;
    }
    return NULL;
}

void local_release(transport_context *context) {
    transport *t = context->transport;
    transport_socket *s = &t->sockets[context->kind];
    context->owner = NULL, context->peer = NULL, context->write = NULL;
    context->pipe = 0;
    context->state = CONTEXT_RECEIVING;
    context->close_after = false;
    list_init(&context->link);
    list_append(&s->local_free, &context->link);
    /* a peer that waited with a message of no use is hung up on, and leaves the context to the next */
    for (local_peer *p; !list_is_empty(&s->local_free) && (p = first_waiting(t, context->kind));) {
        list_remove(&p->link); /* to the end: peers take turns */
        list_append(&t->local_peers, &p->link);
        deliver(p);
    }
}

static void replied(transport_context *context) {
    if (context->close_after) transport_pipe_mark(context->transport, context->pipe);
    transport_pipe_touch(context->transport, context->pipe);
    local_release(context);
}

static void on_written(uv_write_t *request, int status) {
    struct local_write *w = LIST_ENTRY(request, struct local_write, uv);
    transport_context *context = w->context;
    (void)status; /* a peer that is gone has been seen by the reader */
    if (w->out) local_out_end(w->out), local_out_leave(w->out);
    if (w->message) nng_msg_free(w->message);
    free(w);
    if (context) replied(context);
}

/* Takes the message, if it can. NULL: no memory. */
static struct local_write *write_create(transport_context *context, nng_msg *message) {
    struct local_write *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    list_init(&w->link);
    w->context = context;
    w->message = message;
    if (message)
        w->head_bytes = local_head(w->head, LOCAL_TYPE_MESSAGE, context->trail, context->trail_bytes,
                                   nng_msg_len(message));
    context->state = CONTEXT_SENDING;
    context->write = w;
    return w;
}

/* Behind what is being written, but for its first `sent` bytes. The loop counts it already. */
static void write_from(local_peer *p, struct local_write *w, size_t sent) {
    const size_t of_head = sent < w->head_bytes ? sent : w->head_bytes, of_body = sent - of_head;
    uv_buf_t parts[2] = {{.base = (char *)w->head + of_head, .len = w->head_bytes - of_head}};
    if (w->message)
        parts[1] = (uv_buf_t){.base = (char *)nng_msg_body(w->message) + of_body,
                              .len = nng_msg_len(w->message) - of_body};
    local_out_join(p->out);
    w->out = p->out;
    if (uv_write(&w->uv, (uv_stream_t *)&p->uv, parts, w->message ? 2 : 1, on_written) != 0) {
        on_written(&w->uv, UV_ECANCELED);
        peer_close(p); /* it would never be in step again */
    }
}

void local_reply(transport_context *context, nng_msg *message) {
    local_peer *p = context->peer;
    struct local_write *w = p ? write_create(context, message) : NULL;
    if (!w) { /* nobody to read it, or no memory even for this: the peer's own time-out speaks */
        nng_msg_free(message);
        local_release(context);
        return;
    }
    if (local_out_begin(p->out))
        write_from(p, w, 0);
    else
        list_append(&p->held, &w->link);
}

/* ---- out, from another thread ---- */

void local_ticket_take(local_ticket *out, const transport_context *context) {
    *out = (local_ticket){0};
    if (!context->is_local || !context->peer) return;
    out->out = context->peer->out;
    local_out_join(out->out);
    out->pipe = context->pipe;
    out->may_use_memory = context->takes_memory;
    out->trail_bytes = context->trail_bytes;
    memcpy(out->trail, context->trail, context->trail_bytes);
}

bool local_ticket_is_of(const local_ticket *ticket, const transport_context *context) {
    return ticket->out && context->is_local && context->peer && context->pipe == ticket->pipe &&
           context->trail_bytes == ticket->trail_bytes &&
           memcmp(context->trail, ticket->trail, ticket->trail_bytes) == 0;
}

/* What waited for a reply that another thread was writing. By now one may be writing another: then it waits
 * for that one's rest. */
static void let_held_go(local_peer *p) {
    LIST_EACH_SAFE(link, &p->held) {
        if (!local_out_begin(p->out)) return;
        list_remove(link);
        write_from(p, LIST_ENTRY(link, struct local_write, link), 0);
    }
}

void local_replied(transport_context *context, nng_msg *message, const local_ticket *ticket, size_t bytes) {
    local_peer *p = context->peer;
    uint8_t rest[LOCAL_HEAD_MAX + 1];
    const size_t all = local_reply_bytes(ticket, bytes);
    const bool has_rest = ticket->sent < all;
    size_t rest_bytes = 0;
    CKKS_ASSERT(p && ticket->sent > 0 && ticket->sent <= all);
    context->owner = NULL;
    context->state = CONTEXT_SENDING;
    if (message && (!has_rest || ticket->is_in_memory)) nng_msg_free(message), message = NULL;
    if (!has_rest) {
        let_held_go(p);
        replied(context);
        return;
    }
    if (ticket->is_in_memory) rest_bytes = local_ticket_rest(rest, ticket, bytes);
    struct local_write *w = message || rest_bytes ? write_create(context, message) : NULL;
    if (!w) { /* it would never be in step again */
        if (message) nng_msg_free(message);
        context->state = CONTEXT_RECEIVING; /* nobody's request any more */
        peer_close(p);
        local_release(context);
        return;
    }
    if (rest_bytes) memcpy(w->head, rest, rest_bytes), w->head_bytes = rest_bytes;
    local_out_take_rest(p->out);
    write_from(p, w, rest_bytes ? 0 : ticket->sent);
    let_held_go(p);
}

/* ---- peers come ---- */

static uint64_t user_of(const uv_pipe_t *pipe, bool *is_known) {
    struct ucred credentials = {0};
    socklen_t size = sizeof credentials;
    uv_os_fd_t fd;
    *is_known = uv_fileno((const uv_handle_t *)pipe, &fd) == 0 &&
                getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0;
    return credentials.uid;
}

void local_trust(const transport_context *context) {
    if (context->is_local && context->peer) context->peer->is_trusted = true;
}

bool local_user(const transport_context *context, uint64_t *uid) {
    const local_peer *p = context->peer;
    bool is_known = false;
    if (p) *uid = user_of(&p->uv, &is_known);
    return is_known;
}

static void on_connection(uv_stream_t *stream, int status) {
    local_listener *l = LIST_ENTRY(stream, local_listener, uv);
    transport *t = l->transport;
    const uv_buf_t hello = {.base = (char *)(uintptr_t)greeting, .len = GREETING_BYTES};
    if (status != 0) return;
    local_peer *p = calloc(1, sizeof *p);
    l->is_waiting = !p || uv_pipe_init(&t->loop->uv, &p->uv, 0) != 0;
    if (l->is_waiting) {
        free(p);
        return;
    }
    p->transport = t, p->kind = l->kind;
    list_init(&p->link);
    list_init(&p->held);
    list_append(&t->local_peers, &p->link);
    do p->id = PIPE_BIT | ++t->local_serial;
    while (find_peer(t, p->id) != p);
    const int n = uv_accept(stream, (uv_stream_t *)&p->uv);
    const bool is_accepted = n == 0;
    l->is_waiting = n != 0 && n != UV_EAGAIN; /* who is still there is let in later */
    int send_bytes = SEND_BYTES;
    uv_os_fd_t fd;
    if (is_accepted) (void)uv_send_buffer_size((uv_handle_t *)&p->uv, &send_bytes);
    if (is_accepted && uv_fileno((const uv_handle_t *)&p->uv, &fd) == 0) p->out = local_out_create(fd);
    if (!transport_pipe_add(t, p->id, p->kind) || !p->out ||
        uv_try_write((uv_stream_t *)&p->uv, &hello, 1) != (int)GREETING_BYTES ||
        uv_read_start((uv_stream_t *)&p->uv, on_room, on_read) != 0)
        peer_close(p);
}

void local_sweep(transport *t) {
    LIST_EACH(link, &t->local_listeners) {
        local_listener *l = LIST_ENTRY(link, local_listener, link);
        if (l->is_waiting) on_connection((uv_stream_t *)&l->uv, 0);
    }
    const uint64_t now = clock_now_ns();
    LIST_EACH_SAFE(link, &t->local_peers) {
        local_peer *p = LIST_ENTRY(link, local_peer, link);
        const size_t unsent = uv_stream_get_write_queue_size((const uv_stream_t *)&p->uv);
        if (unsent == 0 || unsent != p->unsent)
            p->unsent = unsent, p->unsent_ns = now;
        else if (now - p->unsent_ns >= t->send_timeout_ns)
            peer_close(p);
    }
}

/* ---- listening ---- */

ckks_status local_listen(transport *t, transport_kind kind, const char *path, uint32_t mode,
                         ckks_error *err) {
    local_listener *l = calloc(1, sizeof *l);
    if (!l) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    l->transport = t, l->kind = kind;
    int n = uv_pipe_init(&t->loop->uv, &l->uv, 0);
    if (n != 0) {
        free(l);
        return ckks_error_set(err, CKKS_IO, "listen", "ipc://%s: %s", path, uv_strerror(n));
    }
    list_init(&l->link);
    list_append(&t->local_listeners, &l->link);
    const ckks_status rc = local_bind(&l->uv, path, mode, err);
    if (rc != CKKS_OK) return rc;
    if ((n = uv_listen((uv_stream_t *)&l->uv, BACKLOG, on_connection)) != 0)
        return ckks_error_set(err, CKKS_IO, "listen", "cannot listen on ipc://%s: %s", path, uv_strerror(n));
    return CKKS_OK;
}

void local_stop(transport *t) {
    if (!t->local_peers.next) return;
    for (int k = 0; k < TRANSPORT_KINDS; k++)
        for (uint32_t i = 0; i < t->sockets[k].local_count; i++) {
            transport_context *context = &t->sockets[k].local[i];
            if (context->write) context->write->context = NULL;
            context->peer = NULL, context->write = NULL;
            context->state = CONTEXT_CLOSED;
        }
    LIST_EACH_SAFE(link, &t->local_peers) peer_close(LIST_ENTRY(link, local_peer, link));
    LIST_EACH_SAFE(link, &t->local_listeners) {
        local_listener *l = LIST_ENTRY(link, local_listener, link);
        list_remove(&l->link);
        uv_close((uv_handle_t *)&l->uv, on_listener_closed);
    }
}
