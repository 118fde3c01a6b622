#include "daemon/local_out.h"

#include "daemon/metrics.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* ---- the way out ---- */

local_out *local_out_create(int fd) {
    local_out *out = calloc(1, sizeof *out);
    if (!out) return NULL;
    pthread_mutex_init(&out->lock, NULL);
    out->fd = fd, out->is_open = true, out->users = 1;
    return out;
}

void local_out_join(local_out *out) {
    pthread_mutex_lock(&out->lock);
    out->users++;
    pthread_mutex_unlock(&out->lock);
}

void local_out_leave(local_out *out) {
    if (!out) return;
    pthread_mutex_lock(&out->lock);
    const bool is_last = --out->users == 0;
    pthread_mutex_unlock(&out->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&out->lock);
    local_memory_end(&out->replies);
    free(out);
}

void local_out_close(local_out *out) {
    pthread_mutex_lock(&out->lock);
    out->is_open = false;
    pthread_mutex_unlock(&out->lock);
}

bool local_out_begin(local_out *out) {
    pthread_mutex_lock(&out->lock);
    const bool may_write = !out->has_rest;
    if (may_write) out->loop_writes++;
    pthread_mutex_unlock(&out->lock);
    return may_write;
}

void local_out_end(local_out *out) {
    pthread_mutex_lock(&out->lock);
    out->loop_writes--;
    pthread_mutex_unlock(&out->lock);
}

void local_out_take_rest(local_out *out) {
    pthread_mutex_lock(&out->lock);
    CKKS_ASSERT(out->has_rest);
    out->has_rest = false;
    out->loop_writes++;
    pthread_mutex_unlock(&out->lock);
}

void local_out_lend(local_out *out, local_memory *m) {
    pthread_mutex_lock(&out->lock);
    CKKS_ASSERT(!out->replies.head);
    out->replies = *m;
    out->area = LOCAL_AREA_FREE;
    pthread_mutex_unlock(&out->lock);
    *m = (local_memory){0};
}

/* One who says so while it is being written has not read it: the next reply goes through the socket. */
void local_out_free_area(local_out *out) {
    pthread_mutex_lock(&out->lock);
    if (out->area != LOCAL_AREA_WRITING) out->area = LOCAL_AREA_FREE;
    pthread_mutex_unlock(&out->lock);
}

/* ---- tickets ---- */

size_t local_head(uint8_t head[LOCAL_HEAD_MAX], uint8_t type, const uint8_t *trail, uint32_t trail_bytes,
                  size_t bytes) {
    const uint64_t all = trail_bytes + (uint64_t)bytes;
    head[0] = type;
    for (uint32_t i = 1; i < LOCAL_PREFIX_BYTES; i++)
        head[i] = (uint8_t)(all >> 8 * (LOCAL_PREFIX_BYTES - 1 - i));
    memcpy(head + LOCAL_PREFIX_BYTES, trail, trail_bytes);
    return LOCAL_PREFIX_BYTES + trail_bytes;
}

void local_ticket_give(local_ticket *ticket) {
    local_out_leave(ticket->out);
    *ticket = (local_ticket){0};
}

size_t local_reply_bytes(const local_ticket *ticket, size_t bytes) {
    return LOCAL_PREFIX_BYTES + ticket->trail_bytes + (ticket->is_in_memory ? 1 : bytes);
}

/* from[size] but for its first *skip bytes, of which it takes what it has. */
static struct iovec part_of(void *from, size_t size, size_t *skip) {
    const size_t done = *skip < size ? *skip : size;
    *skip -= done;
    return (struct iovec){(uint8_t *)from + done, size - done};
}

/* `head` and the first `bytes` of `body`, but for what was sent, of `total` that are to go. Under the lock.
 */
static void send_some(local_ticket *ticket, uint8_t *head, size_t head_bytes, void *body, size_t bytes,
                      size_t total) {
    local_out *out = ticket->out;
    size_t skip = ticket->sent;
    struct iovec parts[2];
    parts[0] = part_of(head, head_bytes, &skip);
    parts[1] = part_of(body, bytes, &skip);
    const struct msghdr all = {.msg_iov = parts, .msg_iovlen = 2};
    ssize_t sent = 0;
    if (!out->is_open || out->loop_writes || out->has_rest != (ticket->sent > 0)) return;
    do sent = sendmsg(out->fd, &all, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent > 0) ticket->sent += (size_t)sent;
    out->has_rest = ticket->sent > 0 && ticket->sent < total;
}

/* ---- through memory ---- */

/* May this reply go through memory? Then it is taken. */
static bool take_area(local_ticket *ticket, size_t bytes) {
    local_out *out = ticket->out;
    if (!ticket->may_use_memory || bytes < LOCAL_MEMORY_REPLY_MIN || bytes > LOCAL_MEMORY_BYTES) return false;
    pthread_mutex_lock(&out->lock);
    const bool is_ours = out->replies.head && out->is_open && out->area == LOCAL_AREA_FREE;
    if (is_ours) out->area = LOCAL_AREA_WRITING;
    pthread_mutex_unlock(&out->lock);
    if (!is_ours) return false;
    local_memory_clear(&out->replies);
    ticket->copied = 0;
    return true;
}

size_t local_ticket_rest(uint8_t *to, const local_ticket *ticket, size_t bytes) {
    uint8_t text[LOCAL_HEAD_MAX + 1];
    size_t size = local_head(text, LOCAL_MEMORY_TYPE_REPLY, ticket->trail, ticket->trail_bytes, bytes);
    text[size++] = LOCAL_MEMORY_BELL;
    CKKS_ASSERT(ticket->sent <= size);
    memcpy(to, text + ticket->sent, size - ticket->sent);
    return size - ticket->sent;
}

/* Into memory, and what announces it to the socket: at once, and with the last byte the bell. */
static size_t send_in_memory(local_ticket *ticket, nng_msg *message, size_t bytes) {
    local_out *out = ticket->out;
    uint8_t head[LOCAL_HEAD_MAX], bell = LOCAL_MEMORY_BELL;
    const bool is_all = bytes == nng_msg_len(message);
    local_memory_put(&out->replies, &ticket->copied, nng_msg_body(message), bytes);
    if (!is_all && ticket->sent) return ticket->sent;
    const size_t head_bytes =
        local_head(head, LOCAL_MEMORY_TYPE_REPLY, ticket->trail, ticket->trail_bytes, nng_msg_len(message));
    pthread_mutex_lock(&out->lock);
    send_some(ticket, head, head_bytes, &bell, is_all, head_bytes + 1);
    if (is_all) {
        ticket->is_in_memory = ticket->sent > 0;
        out->area = ticket->is_in_memory ? LOCAL_AREA_WRITTEN : LOCAL_AREA_FREE;
    }
    pthread_mutex_unlock(&out->lock);
    if (is_all && ticket->sent)
        atomic_fetch_add_explicit(&daemon_metrics.local_replies, 1, memory_order_relaxed);
    return ticket->sent;
}

size_t local_send(local_ticket *ticket, nng_msg *message, size_t bytes) {
    local_out *out = ticket->out;
    uint8_t head[LOCAL_HEAD_MAX];
    const size_t size = nng_msg_len(message);
    CKKS_ASSERT(bytes <= size);
    if (!ticket->sent && !ticket->is_in_memory) ticket->is_in_memory = take_area(ticket, size);
    if (ticket->is_in_memory) return send_in_memory(ticket, message, bytes);
    const size_t head_bytes = local_head(head, LOCAL_TYPE_MESSAGE, ticket->trail, ticket->trail_bytes, size);
    CKKS_ASSERT(head_bytes + bytes >= ticket->sent);
    pthread_mutex_lock(&out->lock);
    send_some(ticket, head, head_bytes, nng_msg_body(message), bytes, head_bytes + size);
    pthread_mutex_unlock(&out->lock);
    return ticket->sent;
}
