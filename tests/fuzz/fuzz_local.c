/*
 * What a peer of a local socket may do, with and without lent memory, as a list of steps: bytes to the
 * socket, questions for memory, anything at all put into it and said about it, bells. A server that gives
 * every message back, in two parts and through memory where it may, must serve the next peer.
 */
#include "daemon/local.h"
#include "proto/local_memory.h"
#include "tests/support/temporary.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAP_BYTES (sizeof(local_memory_head) + LOCAL_MEMORY_BYTES)
#define STEPS_MAX 64u

static struct {
    char folder[64];
    config config;
    loop loop;
    transport transport;
    uint8_t blocks[1 << 16];
} s;

static void on_message(void *data, transport_context *context, const transport_body *body) {
    transport_body rest = *body;
    nng_msg *message = NULL;
    (void)data;
    local_trust(context);
    CKKS_ASSERT(nng_msg_alloc(&message, rest.bytes) == 0);
    memcpy(nng_msg_body(message), rest.data, rest.bytes);
    transport_body_free(&s.transport, &rest);
    local_ticket ticket;
    local_ticket_take(&ticket, context);
    if (ticket.out) {
        const size_t bytes = nng_msg_len(message);
        (void)local_send(&ticket, message, bytes / 2);
        (void)local_send(&ticket, message, bytes);
    }
    if (ticket.sent)
        local_replied(context, message, &ticket, nng_msg_len(message));
    else
        transport_reply(context, message, false);
    local_ticket_give(&ticket);
}
static void on_lost(void *data, transport_context *context) {
    (void)data;
    transport_release(context);
}

static void stop(void) {
    loop_close_queue(&s.loop);
    transport_stop(&s.transport);
    transport_close(&s.transport);
    loop_fini(&s.loop);
    (void)rmdir(s.folder);
}

static void start(void) {
    const transport_callbacks callbacks = {.message = on_message, .lost = on_lost};
    (void)signal(SIGPIPE, SIG_IGN);
    temporary_folder(s.folder, sizeof s.folder, "fuzz-local");
    s.config.bulk.count = 1;
    snprintf(s.config.bulk.item[0], sizeof s.config.bulk.item[0], "ipc://%s/bulk", s.folder);
    s.config.pipes_max = s.config.unauthenticated_max = 4, s.config.control_contexts = 1,
    s.config.local_memory_peers = 1;
    s.config.control_message_bytes = 1024, s.config.bulk_message_bytes = 1 << 21;
    s.config.idle_timeout_ms = s.config.send_timeout_ms = s.config.unauthenticated_timeout_ms = 600000;
    s.config.ipc_mode = 0600;
    CKKS_ASSERT(loop_init(&s.loop, NULL) == CKKS_OK);
    CKKS_ASSERT(transport_open(&s.transport, &s.loop, &s.config, 2, &callbacks, NULL) == CKKS_OK);
    transport_lend_blocks(&s.transport, s.blocks, sizeof s.blocks, 1);
    (void)atexit(stop);
}

static void turn(void) {
    for (int i = 0; i < 3; i++) (void)uv_run(&s.loop.uv, UV_RUN_NOWAIT);
}

typedef struct peer {
    int fd;
    local_memory_head *head; /* NULL: none; of what may be written, that is for requests */
    bool has_replies;
} peer;

/* What came back, of no interest but for memory. */
static void hear(peer *p) {
    uint8_t text[4096];
    for (int i = 0; i < 64; i++) {
        char beside[CMSG_SPACE(sizeof(int))];
        struct iovec part = {text, sizeof text};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = beside, .msg_controllen = sizeof beside};
        if (recvmsg(p->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0) return;
        const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        int memory;
        if (!c) continue;
        memcpy(&memory, CMSG_DATA(c), sizeof memory);
        void *at = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
        close(memory);
        if (at == MAP_FAILED) { /* for replies: to be read only */
            CKKS_ASSERT(!p->has_replies);
            p->has_replies = true;
            continue;
        }
        CKKS_ASSERT(!p->head);
        p->head = at;
    }
}

static void tell(const peer *p, const void *bytes, size_t size) {
    (void)send(p->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void tell_prefix(const peer *p, uint8_t type, uint64_t length) {
    uint8_t prefix[9] = {type};
    for (int i = 0; i < 8; i++) prefix[1 + i] = (uint8_t)(length >> (56 - 8 * i));
    tell(p, prefix, sizeof prefix);
}

/* One step: what to do, an argument of three bytes, and `bytes` that follow. */
static void step(peer *p, uint8_t what, uint32_t argument, const uint8_t *bytes, size_t count) {
    static const uint8_t bell = LOCAL_MEMORY_BELL;
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    static const uint8_t small[17] = {1, 0, 0, 0, 0, 0, 0, 0, 8, 0x80, 0, 0, 1, 'a', 'b', 'c', 'd'};
    switch (what % 12) {
    case 0:
        tell(p, greeting, sizeof greeting);
        break;
    case 1: /* a good message: it shows the token */
        tell(p, small, sizeof small);
        break;
    case 2:
        tell_prefix(p, LOCAL_MEMORY_TYPE_LEND, 0);
        break;
    case 3:
        tell_prefix(p, LOCAL_MEMORY_TYPE, argument);
        break;
    case 4:
        tell(p, &bell, 1);
        break;
    case 5:
        if (p->head) atomic_store(&p->head->have, (uint64_t)argument << (what / 12 % 48));
        break;
    case 6:
        if (p->head && count) memcpy((uint8_t *)p->head + argument % (MAP_BYTES - count), bytes, count);
        break;
    case 7:
        tell_prefix(p, 1, argument);
        break;
    case 9:
        tell_prefix(p, LOCAL_MEMORY_TYPE_LEND_REPLIES, 0);
        break;
    case 10: /* a message, of which what follows is the beginning, that frees the memory for replies */
        tell_prefix(p, LOCAL_MEMORY_FREE | 1, argument);
        tell(p, small + 9, 4);
        break;
    case 11:
        tell_prefix(p, LOCAL_MEMORY_FREE | LOCAL_MEMORY_TYPE, argument);
        break;
    default:
        tell(p, bytes, count);
    }
    turn();
    hear(p);
}

static peer come(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/bulk", s.folder);
    peer p = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    CKKS_ASSERT(p.fd >= 0 && connect(p.fd, (struct sockaddr *)&address, sizeof address) == 0);
    turn();
    return p;
}

static void go(peer *p) {
    if (p->head) munmap(p->head, MAP_BYTES);
    close(p->fd);
    for (int i = 0; i < 1000 && transport_pipe_count(&s.transport); i++) turn();
    CKKS_ASSERT(transport_pipe_count(&s.transport) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!s.folder[0]) start();
    peer p = come();
    for (uint32_t i = 0; i < STEPS_MAX && size >= 5; i++) {
        const size_t follow = data[4] < size - 5 ? data[4] : size - 5;
        step(&p, data[0], (uint32_t)data[1] | (uint32_t)data[2] << 8 | (uint32_t)data[3] << 16, data + 5,
             follow);
        data += 5 + follow, size -= 5 + follow;
    }
    go(&p);
    p = come();
    uint8_t back[8 + 17];
    step(&p, 0, 0, NULL, 0);
    (void)send(p.fd, (const uint8_t[17]){1, 0, 0, 0, 0, 0, 0, 0, 8, 0x80, 0, 0, 1, 'a', 'b', 'c', 'd'}, 17,
               MSG_NOSIGNAL);
    turn();
    CKKS_ASSERT(recv(p.fd, back, sizeof back, MSG_DONTWAIT) == 17 && memcmp(back + 13, "abcd", 4) == 0);
    go(&p);
    return 0;
}
