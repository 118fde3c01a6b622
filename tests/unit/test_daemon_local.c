/* Local sockets: what a REQ peer may send, in how many pieces, and what ends it; with the client's own pipes.
 */
#include "client/lib/rpc_internal.h"
#include "daemon/clock.h"
#include "daemon/local.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"

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
#define WAIT_MS     5000
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
    _Atomic uint32_t seen, lost, in_blocks;
    uint64_t spin_ns; /* of the loop */
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
    atomic_fetch_add(&s.seen, 1);
    if (!atomic_load(&s.is_holding)) {
        transport_reply(context, message, false);
        return;
    }
    CKKS_ASSERT(s.held_count < CONTEXTS);
    s.held[s.held_count++] = (held){context, message};
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
        local_replied(one.context, s.reply, s.sent, local_reply_bytes(&s.ticket, s.reply));
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

static uint64_t spin_ns; /* of the loops of this round */

static int set_up(void **state) {
    (void)state;
    memset(&s, 0, sizeof s);
    s.spin_ns = spin_ns;
    snprintf(s.folder, sizeof s.folder, "/tmp/test-local.XXXXXX");
    if (!mkdtemp(s.folder)) return -1;
    snprintf(s.path, sizeof s.path, "%s/bulk", s.folder);
    snprintf(s.url, sizeof s.url, "ipc://%s", s.path);
    s.config.bulk.count = 1;
    snprintf(s.config.bulk.item[0], sizeof s.config.bulk.item[0], "%s", s.url);
    s.config.pipes_max = 6;
    s.config.control_contexts = 1;
    s.config.control_message_bytes = 1024, s.config.bulk_message_bytes = MESSAGE_MAX;
    s.config.idle_timeout_ms = 600000;
    s.config.ipc_mode = 0640;
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

static bool is_hung_up(int fd) {
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

static void the_server_still_serves(void) {
    const int fd = greet();
    exchange_one(fd, 256);
    close(fd);
}

/* ---- what must hold ---- */

static void a_reply_goes_back_with_the_whole_trail_of_its_request(void **state) {
    (void)state;
    const int fd = greet();
    for (int i = 0; i < 50; i++) exchange_one(fd, 256);
    close(fd);
}

static void bytes_may_come_one_at_a_time(void **state) {
    (void)state;
    const int fd = dial();
    uint8_t theirs[8];
    for (size_t i = 0; i < sizeof hello; i++) put(fd, hello + i, 1);
    assert_true(get(fd, theirs, sizeof theirs));
    for (size_t piece = 1; piece < 12; piece++) exchange_one(fd, piece);
    close(fd);
}

static void messages_of_one_pipe_may_come_in_one_piece(void **state) {
    (void)state;
    uint8_t out[16 * 64], in[16 * 64];
    size_t size = 0;
    for (uint8_t i = 0; i < 16; i++) {
        const uint8_t id[4] = {0x80, 0, 0, i};
        size += frame(out + size, id, 4, "abcdefgh", 8);
    }
    const int fd = greet();
    put(fd, out, size);
    assert_true(get(fd, in, size));
    assert_memory_equal(in, out, size);
    close(fd);
}

static void whoever_does_not_speak_the_protocol_is_hung_up_on(void **state) {
    (void)state;
    static const struct {
        const char *what;
        bool greets;
        uint8_t bytes[64];
        size_t size;
    } cases[] = {
        {"http", false, "GET / HTTP/1.1\r\n", 16},
        {"a greeting of another protocol", false, {0, 'S', 'P', 0, 0, 0x31, 0, 0}, 8},
        {"a greeting of another version", false, {0, 'S', 'P', 1, 0, 0x30, 0, 0}, 8},
        {"another type of message", true, {2, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
        {"no room for an id", true, {1, 0, 0, 0, 0, 0, 0, 0, 3}, 9},
        {"a message of 2^63 bytes", true, {1, 0x80, 0, 0, 0, 0, 0, 0, 0}, 9},
        {"a message one byte too long", true, {1, 0, 0, 0, 0, 0, 0x80, 0, 1}, 9},
        {"no last id", true, {1, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 2}, 17},
        {"a trail of 9 ids", true, {1, 0, 0, 0, 0, 0, 0, 0, 36, [41] = 0x80}, 45},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int fd = cases[i].greets ? greet() : dial();
        uint8_t theirs[8];
        if (!cases[i].greets) assert_true(get(fd, theirs, 8));
        put(fd, cases[i].bytes, cases[i].size);
        if (!is_hung_up(fd)) fail_msg("%s: not hung up on", cases[i].what);
        close(fd);
        the_server_still_serves();
    }
    assert_int_equal(atomic_load(&s.seen), sizeof cases / sizeof *cases);
}

static void whoever_stops_in_the_middle_leaves_nothing(void **state) {
    (void)state;
    uint8_t out[256];
    const size_t size = frame(out, trail, sizeof trail, "a message", 9);
    for (size_t at = 0; at < size; at++) {
        const int fd = greet();
        put(fd, out, at);
        close(fd);
    }
    the_server_still_serves();
    assert_int_equal(atomic_load(&s.seen), 1);
}

static void requests_over_the_number_of_contexts_wait_and_are_all_answered(void **state) {
    (void)state;
    uint8_t out[16 * 64], in[64];
    size_t size = 0;
    bool has_come[16] = {false};
    for (uint8_t i = 0; i < 10; i++) {
        const uint8_t id[4] = {0x80, 0, 0, i};
        size += frame(out + size, id, 4, "abcdefgh", 8);
    }
    atomic_store(&s.is_holding, true);
    const int many = greet(), one = greet();
    put(many, out, size);
    for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < CONTEXTS; i++) usleep(1000);
    put(one, out, 9 + 12);
    usleep(50000);
    assert_int_equal(atomic_load(&s.seen), CONTEXTS);
    tell(LET_GO);
    assert_true(get(one, in, 9 + 12));
    for (int i = 0; i < 10; i++) {
        assert_true(get(many, in, 9 + 12));
        assert_true(in[12] < 10 && !has_come[in[12]]);
        has_come[in[12]] = true;
    }
    assert_int_equal(atomic_load(&s.seen), 11);
    close(many), close(one);
}

static void waiting_with_a_message_of_no_use_holds_up_nobody(void **state) {
    (void)state;
    static const uint8_t endless[4] = {0, 0, 0, 1};
    uint8_t out[64], in[64];
    int bad[CONTEXTS];
    atomic_store(&s.is_holding, true);
    const int busy = greet();
    for (uint32_t i = 0; i < CONTEXTS; i++) put(busy, out, frame(out, trail, sizeof trail, "x", 1));
    for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < CONTEXTS; i++) usleep(1000);
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        bad[i] = greet();
        put(bad[i], out, frame(out, endless, sizeof endless, "", 0));
    }
    usleep(50000);
    const int good = greet();
    const size_t size = frame(out, trail, sizeof trail, "y", 1);
    put(good, out, size);
    usleep(50000);
    assert_int_equal(atomic_load(&s.seen), CONTEXTS);
    tell(LET_GO);
    assert_true(get(good, in, size));
    assert_memory_equal(in, out, size);
    for (uint32_t i = 0; i < CONTEXTS; i++) {
        assert_true(is_hung_up(bad[i]));
        close(bad[i]);
    }
    close(busy), close(good);
}

static void the_owner_learns_that_a_peer_is_gone_and_the_context_serves_on(void **state) {
    (void)state;
    uint8_t out[64];
    for (uint32_t round = 1; round <= 3; round++) {
        atomic_store(&s.is_holding, true);
        const int fd = greet();
        for (uint32_t i = 0; i < CONTEXTS; i++) put(fd, out, frame(out, trail, sizeof trail, "x", 1));
        for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < round * (CONTEXTS + 1) - 1; i++) usleep(1000);
        close(fd);
        for (int i = 0; i < WAIT_MS && atomic_load(&s.lost) < round * CONTEXTS; i++) usleep(1000);
        assert_int_equal(atomic_load(&s.lost), round * CONTEXTS);
        tell(LET_GO);
        the_server_still_serves();
    }
}

static void a_peer_that_does_not_read_keeps_nobody_else_from_it(void **state) {
    (void)state;
    const size_t bytes = 2u << 20;
    uint8_t *out = malloc(bytes + 64), *in = malloc(bytes + 64), *body = calloc(1, bytes);
    assert_true(out && in && body);
    for (size_t i = 0; i < bytes; i++) body[i] = (uint8_t)(i * 31 >> 3);
    const size_t size = frame(out, trail, sizeof trail, body, bytes);
    const int slow = greet();
    put(slow, out, size);
    for (int i = 0; i < 20; i++) the_server_still_serves();
    assert_true(get(slow, in, size));
    assert_memory_equal(in, out, size);
    close(slow);
    const int rude = greet(); /* and one that never reads */
    put(rude, out, size);
    the_server_still_serves();
    close(rude);
    the_server_still_serves();
    free(out), free(in), free(body);
}

static void wait_seen(uint32_t count) {
    for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < count; i++) usleep(1000);
    assert_int_equal(atomic_load(&s.seen), count);
}

static void messages_that_fit_come_in_blocks_and_others_need_none(void **state) {
    (void)state;
    static const size_t sizes[] = {100, 5000, BLOCK_BYTES - sizeof trail, BLOCK_BYTES - sizeof trail + 1,
                                   300000};
    static const uint32_t in_blocks[] = {0, 1, 2, 2, 2};
    uint8_t *out = malloc(400000), *in = malloc(400000), *body = malloc(300000);
    assert_true(out && in && body);
    for (size_t i = 0; i < 300000; i++) body[i] = (uint8_t)(i * 7 + i / 251);
    const int fd = greet();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t size = frame(out, trail, sizeof trail, body, sizes[i]);
        put(fd, out, size);
        assert_true(get(fd, in, size));
        assert_memory_equal(in, out, size);
        assert_int_equal(atomic_load(&s.in_blocks), in_blocks[i]);
    }
    /* whoever holds the blocks with messages that never end holds up nobody, and leaves them when he goes */
    int half[BLOCKS];
    const size_t size = frame(out, trail, sizeof trail, body, 20000);
    for (uint32_t i = 0; i < BLOCKS; i++) half[i] = greet(), put(half[i], out, 10000);
    usleep(20000);
    put(fd, out, size);
    assert_true(get(fd, in, size));
    assert_memory_equal(in, out, size);
    assert_int_equal(atomic_load(&s.in_blocks), 2);
    for (uint32_t i = 0; i < BLOCKS; i++) close(half[i]);
    for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport) > 1; i++) usleep(1000);
    put(fd, out, size);
    assert_true(get(fd, in, size));
    assert_int_equal(atomic_load(&s.in_blocks), 3);
    close(fd);
    free(out), free(in), free(body);
}

/* A reply of `bytes` to the request held first, from this thread. Returns what all is. */
static size_t reply_from_here(const uint8_t *body, size_t bytes) {
    assert_int_equal(nng_msg_alloc(&s.reply, bytes), 0);
    memcpy(nng_msg_body(s.reply), body, bytes);
    s.sent = local_send(&s.ticket, s.reply, bytes);
    return local_reply_bytes(&s.ticket, s.reply);
}

static void a_reply_written_by_another_thread_is_whole_and_its_context_serves_on(void **state) {
    (void)state;
    uint8_t out[256], in[256];
    const size_t size = frame(out, trail, sizeof trail, "a message", 9);
    const int fd = greet();
    for (uint32_t i = 1; i <= 2 * CONTEXTS; i++) {
        atomic_store(&s.is_holding, true);
        put(fd, out, size);
        wait_seen(i);
        tell(TAKE_TICKET);
        assert_int_equal(reply_from_here((const uint8_t *)"a message", 9), size);
        assert_int_equal(s.sent, size);
        assert_true(get(fd, in, size));
        assert_memory_equal(in, out, size);
        tell(REPLIED);
    }
    atomic_store(&s.is_holding, false);
    exchange_one(fd, 256);
    close(fd);
}

static void what_the_socket_does_not_take_goes_by_the_loop_and_others_wait_for_it(void **state) {
    (void)state;
    static const uint8_t second_id[4] = {0x80, 9, 9, 9};
    const size_t bytes = 6u << 20;
    uint8_t *body = malloc(bytes), *in = malloc(bytes + 64), *expected = malloc(bytes + 64), out[256];
    assert_true(body && in && expected);
    for (size_t i = 0; i < bytes; i++) body[i] = (uint8_t)(i * 13 + i / 509);
    const int fd = greet();
    atomic_store(&s.is_holding, true);
    put(fd, out, frame(out, trail, sizeof trail, "first", 5));
    wait_seen(1);
    put(fd, out, frame(out, second_id, sizeof second_id, "second", 6));
    wait_seen(2);
    tell(TAKE_TICKET);
    const size_t all = reply_from_here(body, bytes);
    assert_in_range(s.sent, 1, all - 1);
    const held first = s.held[0]; /* the loop rests: `tell` waits for it */
    s.held[0] = s.held[1], s.held_count = 1;
    tell(LET_GO); /* the second's reply, which must wait */
    s.held[0] = first, s.held_count = 1;
    /* what was written is a part of one message: nothing else may have come in between */
    tell(REPLIED);
    assert_true(get(fd, in, all));
    assert_int_equal(frame(expected, trail, sizeof trail, body, bytes), all);
    assert_memory_equal(in, expected, all);
    const size_t size = frame(expected, second_id, sizeof second_id, "second", 6);
    assert_true(get(fd, in, size));
    assert_memory_equal(in, expected, size);
    exchange_one(fd, 256);
    close(fd);
    free(body), free(in), free(expected);
}

static void a_reply_may_go_in_parts_as_it_is_made(void **state) {
    (void)state;
    static const uint8_t second_id[4] = {0x80, 9, 9, 9};
    uint8_t out[256], in[256], expected[256];
    const int fd = greet();
    atomic_store(&s.is_holding, true);
    put(fd, out, frame(out, trail, sizeof trail, "first", 5));
    wait_seen(1);
    put(fd, out, frame(out, second_id, sizeof second_id, "second", 6));
    wait_seen(2);
    tell(TAKE_TICKET);
    const size_t all = frame(expected, trail, sizeof trail, "a message", 9), before = all - 9;
    assert_int_equal(nng_msg_alloc(&s.reply, 9), 0);
    memcpy(nng_msg_body(s.reply), "a m", 3);
    assert_int_equal(local_send(&s.ticket, s.reply, 3), before + 3);
    assert_true(get(fd, in, before + 3));
    const held first = s.held[0];
    s.held[0] = s.held[1], s.held_count = 1;
    tell(LET_GO); /* the second's reply waits for the rest of the first's */
    s.held[0] = first, s.held_count = 1;
    memcpy(nng_msg_body(s.reply), "a message", 9);
    assert_int_equal(local_send(&s.ticket, s.reply, 4), before + 4);
    assert_int_equal(local_send(&s.ticket, s.reply, 4), before + 4);
    s.sent = local_send(&s.ticket, s.reply, 9);
    assert_int_equal(s.sent, all);
    assert_true(get(fd, in + before + 3, 6));
    assert_memory_equal(in, expected, all);
    tell(REPLIED);
    const size_t size = frame(expected, second_id, sizeof second_id, "second", 6);
    assert_true(get(fd, in, size));
    assert_memory_equal(in, expected, size);
    exchange_one(fd, 256);
    close(fd);
}

static void a_part_of_a_reply_to_a_peer_that_goes_leaves_nothing(void **state) {
    (void)state;
    const size_t bytes = 6u << 20;
    uint8_t *body = calloc(1, bytes), out[256];
    assert_true(body);
    for (uint32_t i = 0; i < 2; i++) { /* it goes before the loop hears of the part, or after */
        const int fd = greet();
        atomic_store(&s.is_holding, true);
        put(fd, out, frame(out, trail, sizeof trail, "first", 5));
        wait_seen(i * 2 + 1);
        tell(TAKE_TICKET);
        const size_t all = reply_from_here(body, bytes);
        assert_in_range(s.sent, 1, all - 1);
        if (i) tell(REPLIED);
        close(fd);
        for (int k = 0; k < WAIT_MS && transport_pipe_count(&s.transport); k++) usleep(1000);
        assert_int_equal(atomic_load(&s.lost), 1);
        if (!i) {
            assert_int_equal(local_send(&s.ticket, s.reply, bytes), s.sent); /* no more */
            nng_msg_free(s.reply);
            local_ticket_give(&s.ticket);
        }
        atomic_store(&s.is_holding, false);
        the_server_still_serves();
    }
    free(body);
}

static void without_memory_for_the_rest_of_a_reply_its_peer_is_hung_up_on(void **state) {
    (void)state;
    const size_t bytes = 6u << 20;
    uint8_t *body = calloc(1, bytes), *in = malloc(bytes), out[256];
    assert_true(body && in);
    const int fd = greet();
    atomic_store(&s.is_holding, true);
    put(fd, out, frame(out, trail, sizeof trail, "first", 5));
    wait_seen(1);
    tell(TAKE_TICKET);
    const size_t all = reply_from_here(body, bytes);
    assert_in_range(s.sent, 1, all - 1);
    alloc_fault_set(1);
    tell(REPLIED);
    assert_int_equal(alloc_fault_calls(), 1);
    alloc_fault_set(0);
    assert_true(get(fd, in, s.sent)); /* the part, and no other byte */
    assert_true(is_hung_up(fd));
    close(fd);
    assert_int_equal(atomic_load(&s.lost), 0);
    atomic_store(&s.is_holding, false);
    for (uint32_t i = 0; i < 2 * CONTEXTS; i++) the_server_still_serves();
    free(body), free(in);
}

static void pipes_over_the_limit_and_pipes_while_draining_are_turned_away(void **state) {
    (void)state;
    int fd[6];
    for (int i = 0; i < 6; i++) fd[i] = greet();
    const int over = dial();
    assert_true(is_hung_up(over));
    close(over);
    close(fd[5]);
    for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport) > 5; i++) usleep(1000);
    the_server_still_serves();
    tell(REFUSE);
    const int late = dial();
    assert_true(is_hung_up(late));
    close(late);
    exchange_one(fd[0], 256); /* who is there stays */
    for (int i = 0; i < 5; i++) close(fd[i]);
}

static void stopping_with_requests_in_hand_and_replies_unread_leaves_nothing(void **state) {
    (void)state;
    const size_t bytes = 4u << 20;
    uint8_t *out = calloc(1, bytes + 64), *body = calloc(1, bytes);
    assert_true(out && body);
    const int rude = greet();
    put(rude, out, frame(out, trail, sizeof trail, body, bytes));
    for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < 1; i++) usleep(1000);
    atomic_store(&s.is_holding, true);
    const int held_one = greet(), half = greet();
    put(held_one, out, frame(out, trail, sizeof trail, "x", 1));
    put(half, out, 11);
    for (int i = 0; i < WAIT_MS && atomic_load(&s.seen) < 2; i++) usleep(1000);
    close_server();
    assert_true(access(s.path, F_OK) != 0);
    close(rude), close(held_one), close(half);
    free(out), free(body);
    assert_int_equal(open_server(NULL), CKKS_OK);
    the_server_still_serves();
}

static void a_dead_socket_is_replaced_and_nothing_else_is(void **state) {
    (void)state;
    ckks_error err = {0};
    struct stat st;
    assert_int_equal(stat(s.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    transport second = {0};
    loop other;
    const transport_callbacks callbacks = {.message = on_message, .lost = on_lost};
    assert_int_equal(loop_init(&other, NULL), CKKS_OK);
    assert_int_equal(transport_open(&second, &other, &s.config, CONTEXTS, &callbacks, &err), CKKS_IO);
    assert_non_null(strstr(err.message, s.path));
    loop_fini(&other);
    the_server_still_serves(); /* its socket is there */
    close_server();

    const int file = open(s.path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(file >= 0 && write(file, "mine", 4) == 4);
    close(file);
    assert_int_equal(open_server(NULL), CKKS_IO);
    assert_int_equal(stat(s.path, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(unlink(s.path), 0);

    const int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", s.path);
    assert_int_equal(bind(dead, (struct sockaddr *)&address, sizeof address), 0);
    close(dead); /* as a daemon that was killed leaves it */
    assert_int_equal(open_server(NULL), CKKS_OK);
    the_server_still_serves();
}

static void a_folder_that_is_not_there_is_said(void **state) {
    (void)state;
    ckks_error err = {0};
    config wrong = s.config;
    transport second = {0};
    loop other;
    const transport_callbacks callbacks = {.message = on_message, .lost = on_lost};
    assert_int_equal(loop_init(&other, NULL), CKKS_OK);
    snprintf(wrong.bulk.item[0], sizeof wrong.bulk.item[0], "ipc:///nowhere/to/be/found");
    assert_int_equal(transport_open(&second, &other, &wrong, CONTEXTS, &callbacks, &err), CKKS_IO);
    assert_non_null(strstr(err.message, "no such file or directory"));
    loop_fini(&other);
}

/* ---- the client's pipes ---- */

static int exchange_pipe(rpc_pipe *p, nng_msg **reply, const char *text, uint64_t bytes_max,
                         uint32_t wait_ms) {
    char copy[64];
    snprintf(copy, sizeof copy, "%s", text);
    struct iovec parts[3] = {{0}, {copy, 3}, {copy + 3, strlen(text) - 3}};
    rpc_trip trip;
    return rpc_pipe_exchange(reply, &trip, p, parts, 3, bytes_max, 0, wait_ms);
}

static void a_pipe_carries_one_call_after_another(void **state) {
    (void)state;
    rpc_pipe *p;
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    for (int i = 0; i < 100; i++) {
        nng_msg *reply = NULL;
        assert_int_equal(exchange_pipe(p, &reply, "hello there", 100, WAIT_MS), 0);
        assert_int_equal(nng_msg_len(reply), 11);
        assert_memory_equal(nng_msg_body(reply), "hello there", 11);
        assert_int_equal((uintptr_t)nng_msg_body(reply) % 16, 4); /* so that segments lie at 16 */
        nng_msg_free(reply);
    }
    rpc_pipe_close(p);
}

static void after_silence_the_late_reply_is_dropped_and_the_right_one_taken(void **state) {
    (void)state;
    rpc_pipe *p;
    nng_msg *reply = NULL;
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    atomic_store(&s.is_holding, true);
    assert_int_equal(exchange_pipe(p, &reply, "first", 100, 20), NNG_ETIMEDOUT);
    assert_null(reply);
    tell(LET_GO);
    assert_int_equal(exchange_pipe(p, &reply, "second", 100, WAIT_MS), 0);
    assert_memory_equal(nng_msg_body(reply), "second", 6);
    nng_msg_free(reply);
    rpc_pipe_close(p);
}

static void replies_over_the_limit_and_servers_that_went_are_told_apart(void **state) {
    (void)state;
    rpc_pipe *p;
    nng_msg *reply = NULL;
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    assert_int_equal(exchange_pipe(p, &reply, "more than ten", 10, WAIT_MS), NNG_EMSGSIZE);
    rpc_pipe_close(p);
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    close_server();
    assert_int_equal(exchange_pipe(p, &reply, "anyone?", 100, WAIT_MS), NNG_ECONNRESET);
    rpc_pipe_close(p);
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), NNG_ECONNREFUSED);
    assert_null(p);
    assert_int_equal(open_server(NULL), CKKS_OK);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_reply_goes_back_with_the_whole_trail_of_its_request),
        TEST(bytes_may_come_one_at_a_time),
        TEST(messages_of_one_pipe_may_come_in_one_piece),
        TEST(whoever_does_not_speak_the_protocol_is_hung_up_on),
        TEST(whoever_stops_in_the_middle_leaves_nothing),
        TEST(requests_over_the_number_of_contexts_wait_and_are_all_answered),
        TEST(waiting_with_a_message_of_no_use_holds_up_nobody),
        TEST(the_owner_learns_that_a_peer_is_gone_and_the_context_serves_on),
        TEST(a_peer_that_does_not_read_keeps_nobody_else_from_it),
        TEST(messages_that_fit_come_in_blocks_and_others_need_none),
        TEST(a_reply_written_by_another_thread_is_whole_and_its_context_serves_on),
        TEST(what_the_socket_does_not_take_goes_by_the_loop_and_others_wait_for_it),
        TEST(a_reply_may_go_in_parts_as_it_is_made),
        TEST(a_part_of_a_reply_to_a_peer_that_goes_leaves_nothing),
        TEST(without_memory_for_the_rest_of_a_reply_its_peer_is_hung_up_on),
        TEST(pipes_over_the_limit_and_pipes_while_draining_are_turned_away),
        TEST(stopping_with_requests_in_hand_and_replies_unread_leaves_nothing),
        TEST(a_dead_socket_is_replaced_and_nothing_else_is),
        TEST(a_folder_that_is_not_there_is_said),
        TEST(a_pipe_carries_one_call_after_another),
        TEST(after_silence_the_late_reply_is_dropped_and_the_right_one_taken),
        TEST(replies_over_the_limit_and_servers_that_went_are_told_apart),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    const int failed = cmocka_run_group_tests_name("a loop that sleeps at once", tests, NULL, NULL);
    spin_ns = 2 * NS_PER_MS;
    return failed + cmocka_run_group_tests_name("a loop that stays awake", tests, NULL, NULL);
}
