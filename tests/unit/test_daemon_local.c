/* Local sockets: what a REQ peer may send, in how many pieces, and what ends it; with the client's own pipes.
 */
#include "tests/support/local_words.h"

#include <netinet/in.h>

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

static void put_many(int fd, uint32_t count, const uint8_t *body, size_t bytes, bool is_local) {
    uint8_t head[9 + sizeof trail];
    (void)frame(head, trail, sizeof trail, "", 0);
    for (int i = 0; i < 8; i++) head[1 + i] = (uint8_t)((uint64_t)(bytes + sizeof trail) >> (56 - 8 * i));
    for (uint32_t i = 0; i < count; i++) { /* other transports have no type byte in front */
        put(fd, head + !is_local, sizeof head - !is_local);
        put(fd, body, bytes);
    }
}

/* After what is still on its way. */
static bool is_gone(int fd) {
    static uint8_t any[1 << 16];
    struct pollfd one = {.fd = fd, .events = POLLIN};
    for (;;) {
        if (poll(&one, 1, WAIT_MS) != 1) return false;
        if (recv(fd, any, sizeof any, 0) <= 0) return true;
    }
}

/* Its replies are larger than what the system keeps for it. */
static void a_peer_that_never_reads_holds_one_context(void **state) {
    (void)state;
    const size_t bytes = 2u << 20;
    uint8_t *body = calloc(1, bytes), *in = malloc(bytes + 64);
    assert_true(body && in);
    const int rude = greet();
    for (uint32_t i = 1; i <= 2; i++) { /* what comes behind a reply that it leaves there is not read */
        put_many(rude, 1, body, bytes, true);
        for (int k = 0; k < WAIT_MS && atomic_load(&s.seen) < 1; k++) usleep(1000);
    }
    for (uint32_t i = 0; i < 2 * CONTEXTS; i++) the_server_still_serves();
    assert_int_equal(atomic_load(&s.seen), 1 + 2 * CONTEXTS);
    for (uint32_t i = 0; i < 2; i++) /* nothing is lost */
        assert_true(get(rude, in, 9 + sizeof trail + bytes));
    exchange_one(rude, 256);
    close(rude);
    free(body), free(in);
}

static void a_peer_that_takes_nothing_of_its_replies_is_hung_up_on(void **state) {
    (void)state;
    const size_t bytes = 2u << 20;
    uint8_t *body = calloc(1, bytes), theirs[8];
    assert_true(body);
    close_server();
    s.config.send_timeout_ms = 200;
    snprintf(s.config.bulk.item[1], sizeof s.config.bulk.item[1], "tcp://127.0.0.1:0");
    s.config.bulk.count = 2;
    assert_int_equal(open_server(NULL), CKKS_OK);
    int rude[CONTEXTS]; /* as many as there are contexts */
    for (uint32_t i = 0; i < CONTEXTS; i++) put_many(rude[i] = greet(), 1, body, bytes, true);
    the_server_still_serves();
    for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport); i++) usleep(1000);
    assert_int_equal(transport_pipe_count(&s.transport), 0);
    for (uint32_t i = 0; i < CONTEXTS; i++) close(rude[i]);
    the_server_still_serves();

    const int few = 1 << 16;
    const char *port = strrchr(s.transport.endpoints[1].url, ':') + 1;
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                   .sin_port = htons((uint16_t)strtoul(port, NULL, 10))};
    for (int i = 0; i < 2; i++) { /* the second is served as soon as the first is gone */
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &few, sizeof few), 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
        put(fd, hello, sizeof hello);
        assert_true(get(fd, theirs, sizeof theirs));
        if (i == 0) {
            put_many(fd, 64, body, bytes, false); /* however much the system keeps for it */
            assert_true(is_gone(fd));
        } else {
            uint8_t in[8 + sizeof trail + 9];
            put_many(fd, 1, (const uint8_t *)"a message", 9, false);
            assert_true(get(fd, in, sizeof in));
        }
        close(fd);
    }
    free(body);
    s.config.bulk.count = 1;
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
    return local_reply_bytes(&s.ticket, nng_msg_len(s.reply));
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

static void what_waits_for_one_reply_waits_for_the_next_thread_too(void **state) {
    (void)state;
    static const uint8_t ids[2][4] = {{0x80, 9, 9, 9}, {0x80, 7, 7, 7}};
    uint8_t out[256], in[256], expected[256];
    const int fd = greet();
    atomic_store(&s.is_holding, true);
    put(fd, out, frame(out, trail, sizeof trail, "first", 5));
    wait_seen(1);
    put(fd, out, frame(out, ids[0], sizeof ids[0], "second", 6));
    wait_seen(2);
    put(fd, out, frame(out, ids[1], sizeof ids[1], "third", 5));
    wait_seen(3);
    const held first = s.held[0], second = s.held[1], third = s.held[2];
    tell(TAKE_TICKET);
    assert_int_equal(nng_msg_alloc(&s.reply, 9), 0);
    memcpy(nng_msg_body(s.reply), "a message", 9);
    (void)local_send(&s.ticket, s.reply, 3);
    s.held[0] = second, s.held_count = 1;
    tell(LET_GO); /* it waits for the rest of the first's */
    const size_t all = local_send(&s.ticket, s.reply, 9);
    const local_ticket of_first = s.ticket;
    nng_msg *const reply_of_first = s.reply;
    s.held[0] = third, s.held_count = 1;
    tell(TAKE_TICKET);
    assert_int_equal(nng_msg_alloc(&s.reply, 5), 0);
    memcpy(nng_msg_body(s.reply), "third", 5);
    (void)local_send(&s.ticket, s.reply, 2); /* before the loop hears that the first is done */
    const local_ticket of_third = s.ticket;
    nng_msg *const reply_of_third = s.reply;
    s.ticket = of_first, s.reply = reply_of_first, s.sent = all;
    s.held[0] = first, s.held_count = 1;
    tell(REPLIED);
    s.ticket = of_third, s.reply = reply_of_third;
    s.sent = local_send(&s.ticket, s.reply, 5);
    s.held[0] = third, s.held_count = 1;
    tell(REPLIED);
    size_t size = frame(expected, trail, sizeof trail, "a message", 9);
    size += frame(expected + size, ids[1], sizeof ids[1], "third", 5);
    size += frame(expected + size, ids[0], sizeof ids[0], "second", 6);
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
        /* the owner hears of it last */
        for (int k = 0; k < WAIT_MS && !atomic_load(&s.lost); k++) usleep(1000);
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
    atomic_store(&s.trusts, true); /* strangers would make room */
    for (int i = 0; i < 6; i++) exchange_one(fd[i] = greet(), 256);
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
        TEST(a_peer_that_never_reads_holds_one_context),
        TEST(a_peer_that_takes_nothing_of_its_replies_is_hung_up_on),
        TEST(messages_that_fit_come_in_blocks_and_others_need_none),
        TEST(a_reply_written_by_another_thread_is_whole_and_its_context_serves_on),
        TEST(what_the_socket_does_not_take_goes_by_the_loop_and_others_wait_for_it),
        TEST(a_reply_may_go_in_parts_as_it_is_made),
        TEST(what_waits_for_one_reply_waits_for_the_next_thread_too),
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
