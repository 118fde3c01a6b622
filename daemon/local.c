#include "daemon/local.h"

#include "daemon/clock.h"
#include "kernels/base/bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PIPE_BIT       0x80000000u /* of our pipes' ids; nng's do not have it */
#define GREETING_BYTES 8u
#define PREFIX_BYTES   9u /* type, length */
#define TYPE_MESSAGE   1u
#define LAST_ID        0x80u /* the first bit of the last id of a trail */
#define BACKLOG        128
#define SEND_BYTES     (1 << 20) /* of a reply in the kernel on their way: a peer that is slow holds no more */

/* zero, "SP", version, protocol (16 bits, big-endian), reserved */
static const uint8_t greeting[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
static const uint8_t greeting_of_req[GREETING_BYTES] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

typedef enum peer_phase {
    PEER_GREETING,
    PEER_PREFIX,
    PEER_BODY,
    PEER_WAITING, /* a message is complete, and no context was free */
} peer_phase;

typedef struct local_peer {
    list_node link; /* in transport.local_peers; of no list once it is closing */
    uv_pipe_t uv;
    transport *transport;
    transport_kind kind;
    uint32_t id;
    peer_phase phase;
    uint8_t head[PREFIX_BYTES];
    size_t have;       /* of the head or of the message */
    uint64_t began_ns; /* of the message */
    nng_msg *message;
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
    transport_context *context;
    nng_msg *message;
    uint8_t head[PREFIX_BYTES + 4 * LOCAL_HOPS_MAX];
};

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer);
static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *out);

/* ---- the end of a peer ---- */

static void on_peer_closed(uv_handle_t *handle) {
    free(LIST_ENTRY(handle, local_peer, uv));
}
static void on_listener_closed(uv_handle_t *handle) {
    free(LIST_ENTRY(handle, local_listener, uv));
}

static void peer_close(local_peer *p) {
    transport *t = p->transport;
    if (uv_is_closing((uv_handle_t *)&p->uv)) return;
    list_remove(&p->link);
    transport_pipe_remove(t, p->id);
    if (p->message) nng_msg_free(p->message);
    p->message = NULL;
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
static bool take_trail(transport_context *context, nng_msg *message) {
    const uint8_t *body = nng_msg_body(message);
    const size_t bytes = nng_msg_len(message);
    for (size_t at = 0; at + 4 <= bytes && at < 4 * LOCAL_HOPS_MAX; at += 4) {
        if (!(body[at] & LAST_ID)) continue;
        context->trail_bytes = (uint32_t)at + 4;
        memcpy(context->trail, body, context->trail_bytes);
        return nng_msg_trim(message, context->trail_bytes) == 0;
    }
    return false;
}

/* Hands the complete message over, if a context is free. */
static void deliver(local_peer *p) {
    transport *t = p->transport;
    transport_socket *s = &t->sockets[p->kind];
    if (list_is_empty(&s->local_free)) {
        p->phase = PEER_WAITING;
        uv_read_stop((uv_stream_t *)&p->uv);
        return;
    }
    transport_context *context = LIST_ENTRY(s->local_free.next, transport_context, link);
    if (!take_trail(context, p->message)) {
        peer_close(p);
        return;
    }
    list_remove(&context->link);
    nng_msg *message = p->message;
    const bool was_waiting = p->phase == PEER_WAITING;
    p->message = NULL;
    p->phase = PEER_PREFIX, p->have = 0;
    context->state = CONTEXT_HANDLING;
    context->pipe = p->id;
    context->peer = p;
    context->began_ns = p->began_ns;
    transport_pipe_touch(t, p->id);
    if (was_waiting) uv_read_start((uv_stream_t *)&p->uv, on_room, on_read);
    t->callbacks.message(t->callbacks.data, context, message);
}

/* false: the peer is not one of ours */
static bool read_prefix(local_peer *p) {
    uint64_t bytes = 0;
    for (uint32_t i = 1; i < PREFIX_BYTES; i++) bytes = bytes << 8 | p->head[i];
    if (p->head[0] != TYPE_MESSAGE || bytes < 4) return false;
    if (bytes > p->transport->sockets[p->kind].message_bytes_max) return false;
    if (nng_msg_alloc(&p->message, (size_t)bytes) != 0) return false;
    p->phase = PEER_BODY, p->have = 0;
    p->began_ns = clock_now_ns();
    return true;
}

static void on_room(uv_handle_t *handle, size_t wanted, uv_buf_t *out) {
    local_peer *p = LIST_ENTRY(handle, local_peer, uv);
    (void)wanted;
    uint8_t *to = p->phase == PEER_BODY ? nng_msg_body(p->message) : p->head;
    const size_t size = p->phase == PEER_BODY       ? nng_msg_len(p->message)
                        : p->phase == PEER_GREETING ? GREETING_BYTES
                                                    : PREFIX_BYTES;
    const size_t left = size - p->have;
    out->base = (char *)to + p->have;
    out->len = left < INT32_MAX ? left : INT32_MAX;
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    local_peer *p = LIST_ENTRY(stream, local_peer, uv);
    (void)buffer;
    if (count < 0) {
        peer_close(p);
        return;
    }
    p->have += (size_t)count;
    if (p->phase == PEER_GREETING && p->have == GREETING_BYTES) {
        if (memcmp(p->head, greeting_of_req, GREETING_BYTES) != 0)
            peer_close(p);
        else
            p->phase = PEER_PREFIX, p->have = 0;
    } else if (p->phase == PEER_PREFIX && p->have == PREFIX_BYTES) {
        if (!read_prefix(p)) peer_close(p);
    } else if (p->phase == PEER_BODY && p->have == nng_msg_len(p->message)) {
        deliver(p);
    }
}

/* ---- out ---- */

static local_peer *first_waiting(transport *t, transport_kind kind) {
    LIST_EACH(link, &t->local_peers) {
        local_peer *p = LIST_ENTRY(link, local_peer, link);
        if (p->kind == kind && p->phase == PEER_WAITING) return p;
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

static void on_written(uv_write_t *request, int status) {
    struct local_write *w = LIST_ENTRY(request, struct local_write, uv);
    transport_context *context = w->context;
    (void)status; /* a peer that is gone has been seen by the reader */
    nng_msg_free(w->message);
    free(w);
    if (!context) return;
    if (context->close_after) transport_pipe_mark(context->transport, context->pipe);
    transport_pipe_touch(context->transport, context->pipe);
    local_release(context);
}

void local_reply(transport_context *context, nng_msg *message) {
    local_peer *p = context->peer;
    struct local_write *w = p ? calloc(1, sizeof *w) : NULL;
    if (!w) { /* nobody to read it, or no memory even for this: the peer's own time-out speaks */
        nng_msg_free(message);
        local_release(context);
        return;
    }
    w->context = context;
    w->message = message;
    const uint64_t bytes = context->trail_bytes + nng_msg_len(message);
    w->head[0] = TYPE_MESSAGE;
    for (uint32_t i = 1; i < PREFIX_BYTES; i++) w->head[i] = (uint8_t)(bytes >> 8 * (PREFIX_BYTES - 1 - i));
    memcpy(w->head + PREFIX_BYTES, context->trail, context->trail_bytes);
    const uv_buf_t parts[] = {
        {.base = (char *)w->head, .len = PREFIX_BYTES + context->trail_bytes},
        {.base = nng_msg_body(message), .len = nng_msg_len(message)},
    };
    context->state = CONTEXT_SENDING;
    context->write = w;
    if (uv_write(&w->uv, (uv_stream_t *)&p->uv, parts, 2, on_written) != 0) on_written(&w->uv, UV_ECANCELED);
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
    list_append(&t->local_peers, &p->link);
    do p->id = PIPE_BIT | ++t->local_serial;
    while (find_peer(t, p->id) != p);
    const bool is_accepted = uv_accept(stream, (uv_stream_t *)&p->uv) == 0;
    int send_bytes = SEND_BYTES;
    if (is_accepted) (void)uv_send_buffer_size((uv_handle_t *)&p->uv, &send_bytes);
    if (!transport_pipe_add(t, p->id, p->kind) || !is_accepted ||
        uv_try_write((uv_stream_t *)&p->uv, &hello, 1) != (int)GREETING_BYTES ||
        uv_read_start((uv_stream_t *)&p->uv, on_room, on_read) != 0)
        peer_close(p);
}

void local_sweep(transport *t) {
    LIST_EACH(link, &t->local_listeners) {
        local_listener *l = LIST_ENTRY(link, local_listener, link);
        if (l->is_waiting) on_connection((uv_stream_t *)&l->uv, 0);
    }
}

/* ---- listening ---- */

/* A socket file that nobody listens on any more: a daemon was killed. */
static bool is_dead_socket(const struct sockaddr_un *address) {
    struct stat st;
    bool is_dead = false;
    if (lstat(address->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return false;
    is_dead = connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 && errno == ECONNREFUSED;
    close(fd);
    return is_dead;
}

static bool folder_is_there(const char *path) {
    char folder[sizeof((struct sockaddr_un *)0)->sun_path] = ".";
    const char *slash = strrchr(path, '/');
    if (slash) memcpy(folder, path, (size_t)(slash - path)), folder[slash - path] = 0;
    return folder[0] == 0 || access(folder, F_OK) == 0;
}

ckks_status local_listen(transport *t, transport_kind kind, const char *path, uint32_t mode,
                         ckks_error *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t length = strlen(path);
    if (length >= sizeof address.sun_path)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "listen",
                              "ipc://%.200s: the path is longer than %zu bytes", path,
                              sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, length + 1);
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
    n = uv_pipe_bind(&l->uv, path);
    if (n == UV_EADDRINUSE && is_dead_socket(&address) && unlink(path) == 0) n = uv_pipe_bind(&l->uv, path);
    if (n == UV_EACCES && !folder_is_there(path)) n = UV_ENOENT; /* libuv says the former for both */
    if (n == 0 && chmod(path, (mode_t)mode) != 0) n = uv_translate_sys_error(errno);
    if (n == 0) n = uv_listen((uv_stream_t *)&l->uv, BACKLOG, on_connection);
    if (n != 0)
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
