/*
 * The small vocabulary of the tests of local sockets: a server that gives every message back, at once or when
 * told, on a loop of its own, and a peer that speaks byte by byte. Included by each test file that uses it;
 * every test has a server of its own.
 */
#ifndef CKKS_TESTS_LOCAL_WORDS_H
#define CKKS_TESTS_LOCAL_WORDS_H

#include "client/lib/rpc_internal.h"
#include "daemon/clock.h"
#include "daemon/local.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"
#include "tests/support/temporary.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
// cmocka wants others first
#include <cmocka.h>

#define CONTEXTS    4u
#define MESSAGE_MAX (8u << 20)
#define WAIT_MS     60000
#define BLOCKS      2u
#define BLOCK_BYTES (64u << 10)

/* ---- a server that gives every message back, at once or when told ---- */

typedef struct held {
    transport_context *context;
    nng_msg *message;
} held;

static struct {
    char folder[64], path[96], url[112];
    config config;
    loop loop;
    transport transport;
    loop_event tell;
    pthread_t thread;
    _Atomic int command; /* loop thread: what to do */
    _Atomic uint32_t seen, lost, in_blocks, held_ever;
    _Atomic bool trusts;                                           /* every message shows a good token */
    uint64_t spin_ns;                                              /* of the loop */
    void (*handler)(transport_context *context, nng_msg *message); /* NULL: messages go back, see below */
    _Alignas(64) uint8_t blocks[BLOCKS][BLOCK_BYTES];
    local_ticket ticket;
    nng_msg *reply; /* written by another thread, of which: */
    size_t sent;
    _Atomic bool is_holding;
    held held[CONTEXTS];
    uint32_t held_count;
} s;

enum { LET_GO = 1, STOP, REFUSE, TAKE_TICKET, REPLIED };

static void on_message(void *data, transport_context *context, const transport_body *body) {
    (void)data;
    nng_msg *message = body->message;
    if (body->block) { /* what replies are made of is nng's */
        assert_int_equal(nng_msg_alloc(&message, body->bytes), 0);
        memcpy(nng_msg_body(message), body->data, body->bytes);
        transport_body done = *body;
        transport_body_free(&s.transport, &done);
        atomic_fetch_add(&s.in_blocks, 1);
    }
    if (atomic_load(&s.trusts)) local_trust(context), transport_trust(context);
    const bool holds = !s.handler && atomic_load(&s.is_holding);
    if (holds) {
        CKKS_ASSERT(s.held_count < CONTEXTS);
        s.held[s.held_count++] = (held){context, message};
        atomic_fetch_add(&s.held_ever, 1);
    }
    atomic_fetch_add(&s.seen, 1); /* what is seen is held */
    if (s.handler)
        s.handler(context, message);
    else if (!holds)
        transport_reply(context, message, false);
}

static void on_lost(void *data, transport_context *context) {
    (void)data;
    for (uint32_t i = 0; i < s.held_count; i++) {
        if (s.held[i].context != context) continue;
        nng_msg_free(s.held[i].message);
        s.held[i] = s.held[--s.held_count];
        break;
    }
    transport_release(context);
    atomic_fetch_add(&s.lost, 1);
}

static void on_tell(loop_event *event) {
    (void)event;
    switch (atomic_load(&s.command)) {
    case LET_GO:
        atomic_store(&s.is_holding, false);
        while (s.held_count) {
            const held one = s.held[--s.held_count];
            transport_reply(one.context, one.message, false);
        }
        break;
    case REFUSE:
        transport_refuse_pipes(&s.transport);
        break;
    case TAKE_TICKET: /* for the first request held */
        local_ticket_take(&s.ticket, s.held[0].context);
        break;
    case REPLIED: {
        const held one = s.held[0];
        s.held[0] = s.held[--s.held_count];
        assert_true(local_ticket_is_of(&s.ticket, one.context));
        nng_msg_free(one.message);
        local_replied(one.context, s.reply, &s.ticket, nng_msg_len(s.reply));
        local_ticket_give(&s.ticket);
        break;
    }
    default:
        loop_stop(&s.loop);
    }
    atomic_store(&s.command, 0);
}

static void tell(int command) {
    atomic_store(&s.command, command);
    loop_post(&s.loop, &s.tell);
    for (int i = 0; i < WAIT_MS && atomic_load(&s.command); i++) usleep(1000);
}

static void *run(void *context) {
    (void)context;
    loop_run(&s.loop);
    return NULL;
}

static ckks_status open_server(ckks_error *err) {
    const transport_callbacks callbacks = {.message = on_message, .lost = on_lost};
    assert_int_equal(loop_init(&s.loop, NULL), CKKS_OK);
    s.tell = (loop_event){.run = on_tell};
    s.held_count = 0;
    s.loop.spin_ns = s.spin_ns;
    atomic_store(&s.seen, 0), atomic_store(&s.lost, 0), atomic_store(&s.is_holding, false);
    const ckks_status rc = transport_open(&s.transport, &s.loop, &s.config, CONTEXTS, &callbacks, err);
    if (rc == CKKS_OK) transport_lend_blocks(&s.transport, &s.blocks[0][0], BLOCK_BYTES, BLOCKS);
    if (rc != CKKS_OK)
        loop_fini(&s.loop);
    else
        assert_int_equal(pthread_create(&s.thread, NULL, run, NULL), 0);
    return rc;
}

static void close_server(void) {
    tell(STOP);
    pthread_join(s.thread, NULL);
    loop_close_queue(&s.loop);
    transport_stop(&s.transport);
    for (uint32_t i = 0; i < s.held_count; i++) nng_msg_free(s.held[i].message);
    transport_close(&s.transport);
    loop_fini(&s.loop);
}

/* of the servers of this round */
static uint64_t spin_ns;
static void (*handler)(transport_context *context, nng_msg *message);

static int set_up(void **state) {
    (void)state;
    memset(&s, 0, sizeof s);
    s.spin_ns = spin_ns, s.handler = handler;
    temporary_folder(s.folder, sizeof s.folder, "test-local");
    snprintf(s.path, sizeof s.path, "%s/bulk", s.folder);
    snprintf(s.url, sizeof s.url, "ipc://%s", s.path);
    s.config.bulk.count = 1;
    snprintf(s.config.bulk.item[0], sizeof s.config.bulk.item[0], "%s", s.url);
    s.config.pipes_max = s.config.unauthenticated_max = 6;
    s.config.unauthenticated_timeout_ms = 600000;
    s.config.control_contexts = 1;
    s.config.control_message_bytes = 1024, s.config.bulk_message_bytes = MESSAGE_MAX;
    s.config.idle_timeout_ms = s.config.send_timeout_ms = 600000;
    s.config.ipc_mode = 0640;
    s.config.local_memory_peers = 2;
    return open_server(NULL) == CKKS_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    close_server();
    (void)unlink(s.path);
    return rmdir(s.folder);
}

/* ---- a peer, byte by byte ---- */

static const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

static int dial(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", s.path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void put(int fd, const void *data, size_t size) {
    const uint8_t *at = data;
    while (size) {
        const ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n < 0) return; /* hung up: the reader sees it */
        at += n, size -= (size_t)n;
    }
}

/* false: hung up, or nothing came in time */
static bool get(int fd, void *data, size_t size) {
    uint8_t *at = data;
    while (size) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        if (poll(&one, 1, WAIT_MS) != 1) return false;
        const ssize_t n = recv(fd, at, size, 0);
        if (n <= 0) return false;
        at += n, size -= (size_t)n;
    }
    return true;
}

static inline bool is_hung_up(int fd) {
    struct pollfd one = {.fd = fd, .events = POLLIN};
    uint8_t byte;
    return poll(&one, 1, WAIT_MS) == 1 && recv(fd, &byte, 1, 0) <= 0;
}

static int greet(void) {
    static const uint8_t expected[8] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};
    uint8_t theirs[8];
    /* peers that hung up a moment ago may still count */
    for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport) >= s.config.pipes_max; i++)
        usleep(1000);
    const int fd = dial();
    put(fd, hello, sizeof hello);
    assert_true(get(fd, theirs, sizeof theirs));
    assert_memory_equal(theirs, expected, sizeof theirs);
    return fd;
}

/* type, length, trail, body */
static size_t frame(uint8_t *to, const uint8_t *trail, size_t trail_bytes, const void *body, size_t bytes) {
    const uint64_t length = trail_bytes + bytes;
    to[0] = 1;
    for (int i = 0; i < 8; i++) to[1 + i] = (uint8_t)(length >> (56 - 8 * i));
    memcpy(to + 9, trail, trail_bytes);
    memcpy(to + 9 + trail_bytes, body, bytes);
    return 9 + trail_bytes + bytes;
}

static const uint8_t trail[12] = {0, 0, 0, 9, 0x7f, 0xff, 0xff, 0xff, 0x80, 1, 2, 3};

static void exchange_one(int fd, size_t piece) {
    uint8_t out[256], in[256];
    const size_t size = frame(out, trail, sizeof trail, "a message", 9);
    for (size_t at = 0; at < size; at += piece) put(fd, out + at, size - at < piece ? size - at : piece);
    assert_true(get(fd, in, size));
    assert_memory_equal(in, out, size);
}

static inline void the_server_still_serves(void) {
    const int fd = greet();
    exchange_one(fd, 256);
    close(fd);
}

#endif
