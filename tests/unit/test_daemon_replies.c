/*
 * Replies through memory lent to local peers: when they go that way, what a peer may do to it, that nothing
 * of it comes back, and who gets none. The slot is this thread.
 */
#include "daemon/metrics.h"
#include "tests/support/memory_words.h"
#include "tests/support/system_fault.h"

#define SMALL LOCAL_MEMORY_REPLY_MIN
#define ID    0x80000100u

static int open_trusting(void **state) {
    const int rc = set_up(state);
    atomic_store(&s.trusts, true);
    return rc;
}

/* ---- a peer that reads replies from memory ---- */

typedef struct reader {
    int fd, memory; /* memory < 0: it was refused */
    const local_memory_head *head;
    const uint8_t *area;
} reader;

static bool ask(reader *r) {
    return ask_for_memory(&r->memory, r->fd, LOCAL_MEMORY_TYPE_LEND_REPLIES);
}

static reader borrow(void) {
    reader r = {.fd = greet()};
    exchange_one(r.fd, 256); /* shows its token */
    assert_true(ask(&r));
    if (r.memory < 0) return r;
    r.head = mmap(NULL, MAP_BYTES, PROT_READ, MAP_SHARED, r.memory, 0);
    assert_true(r.head != MAP_FAILED);
    r.area = (const uint8_t *)r.head + sizeof *r.head;
    return r;
}

static void leave(reader *r) {
    if (r->memory >= 0) munmap((void *)(uintptr_t)r->head, MAP_BYTES), close(r->memory);
    close(r->fd);
}

static void put_id(uint8_t to[4], uint32_t id) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(id >> (24 - 8 * i));
}

/* A request of this id; `frees`: and what lay in memory was read. */
static void request(const reader *r, uint32_t id, bool frees) {
    uint8_t out[64], own[4];
    put_id(own, id);
    const size_t size = frame(out, own, 4, "please", 6);
    if (frees) out[0] |= LOCAL_MEMORY_FREE;
    put(r->fd, out, size);
}

static void wait_held(uint32_t count) {
    for (int i = 0; i < WAIT_MS && atomic_load(&s.held_ever) < count; i++) usleep(1000);
    assert_int_equal(atomic_load(&s.held_ever), count);
}

/* A request that is held, and a ticket for it: for one request at a time. */
static void hold(const reader *r, uint32_t id, bool frees) {
    atomic_store(&s.is_holding, true);
    const uint32_t before = atomic_load(&s.held_ever);
    request(r, id, frees);
    wait_held(before + 1);
    tell(TAKE_TICKET);
}

static uint8_t body[LOCAL_MEMORY_BYTES + 4096], in[LOCAL_MEMORY_BYTES + 8192],
    expected[LOCAL_MEMORY_BYTES + 8192];

static void make_reply(size_t bytes, uint32_t seed) {
    for (size_t i = 0; i < bytes; i++) body[i] = (uint8_t)(i * 7 + (i >> 9) + seed * 31);
    assert_int_equal(nng_msg_alloc(&s.reply, bytes), 0);
    memcpy(nng_msg_body(s.reply), body, bytes);
}

/* What stands on the socket for a reply in memory: the head, then the bell. Returns the size of both. */
static size_t announcement(uint8_t *to, uint32_t id, size_t bytes) {
    uint8_t own[4];
    put_id(own, id);
    const size_t size = local_head(to, LOCAL_MEMORY_TYPE_REPLY, own, 4, bytes);
    to[size] = LOCAL_MEMORY_BELL;
    return size + 1;
}

static void expect_bytes(const reader *r, const uint8_t *what, size_t size) {
    assert_true(get(r->fd, in, size));
    assert_memory_equal(in, what, size);
}

static void expect_in_memory(const reader *r, uint32_t id, size_t bytes) {
    const size_t size = announcement(expected, id, bytes);
    expect_bytes(r, expected, size);
    assert_int_equal(atomic_load(&r->head->have), bytes);
    assert_memory_equal(r->area, body, bytes);
}

static void expect_on_socket(const reader *r, uint32_t id, size_t bytes) {
    uint8_t own[4];
    put_id(own, id);
    const size_t size = frame(expected, own, 4, body, bytes);
    expect_bytes(r, expected, size);
}

static bool has_something(const reader *r) {
    struct pollfd one = {.fd = r->fd, .events = POLLIN};
    return poll(&one, 1, 0) == 1;
}

/* The whole reply at once, as long as the socket takes it; then the loop is told. */
static void reply_whole(size_t bytes, uint32_t seed) {
    make_reply(bytes, seed);
    s.sent = local_send(&s.ticket, s.reply, bytes);
    assert_int_equal(s.sent, local_reply_bytes(&s.ticket, nng_msg_len(s.reply)));
    tell(REPLIED);
    atomic_store(&s.is_holding, false);
}

/* ---- which way ---- */

static void a_large_reply_goes_through_memory_that_its_request_said_is_free(void **state) {
    (void)state;
    static const size_t sizes[] = {SMALL, SMALL + 1, 200000, LOCAL_MEMORY_BYTES, 70001};
    reader r = borrow();
    assert_true(r.memory >= 0);
    const uint64_t before = atomic_load(&daemon_metrics.local_replies);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        hold(&r, ID + i, true);
        reply_whole(sizes[i], i);
        expect_in_memory(&r, ID + i, sizes[i]);
        exchange_one(r.fd, 5); /* the socket serves on beside it */
    }
    assert_int_equal(atomic_load(&daemon_metrics.local_replies) - before, sizeof sizes / sizeof *sizes);
    leave(&r);
    the_server_still_serves();
}

static void others_go_through_the_socket(void **state) {
    (void)state;
    reader r = borrow();
    static const struct {
        size_t bytes;
        bool frees;
    } cases[] = {{0, true}, {SMALL - 1, true}, {LOCAL_MEMORY_BYTES + 1, true}, {200000, false}};
    const uint64_t before = atomic_load(&daemon_metrics.local_replies);
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hold(&r, ID + i, cases[i].frees);
        make_reply(cases[i].bytes, i);
        s.sent = local_send(&s.ticket, s.reply, cases[i].bytes);
        assert_false(s.ticket.is_in_memory);
        tell(REPLIED); /* it writes what the socket did not take */
        atomic_store(&s.is_holding, false);
        expect_on_socket(&r, ID + i, cases[i].bytes);
    }
    /* nothing of that used it: it is as free as it was */
    hold(&r, ID + 9, true);
    reply_whole(SMALL, 9);
    expect_in_memory(&r, ID + 9, SMALL);
    assert_int_equal(atomic_load(&daemon_metrics.local_replies) - before, 1);
    leave(&r);
}

static void one_who_has_no_memory_is_answered_as_ever(void **state) {
    (void)state;
    reader r = {.fd = greet(), .memory = -1};
    hold(&r, ID, false);
    reply_whole(200000, 1);
    expect_on_socket(&r, ID, 200000);
    leave(&r);
}

/* Takes the ticket of the request held as number `i`, and leaves that alone held. */
static local_ticket ticket_of(const held *all, uint32_t i) {
    s.held[0] = all[i], s.held_count = 1;
    tell(TAKE_TICKET);
    const local_ticket ticket = s.ticket;
    s.held_count = 0;
    return ticket;
}

static void replied(const held *one, const local_ticket *ticket, nng_msg *reply) {
    s.held[0] = *one, s.held_count = 1;
    s.ticket = *ticket, s.reply = reply;
    tell(REPLIED);
}

static void a_peer_with_several_requests_gets_one_reply_through_memory_until_it_read_it(void **state) {
    (void)state;
    reader r = borrow();
    const uint32_t before = atomic_load(&s.held_ever);
    atomic_store(&s.is_holding, true);
    for (uint32_t i = 0; i < 3; i++) request(&r, ID + i, true), wait_held(before + i + 1);
    const held all[] = {s.held[0], s.held[1], s.held[2]};
    local_ticket tickets[3];
    nng_msg *replies[3];
    for (uint32_t i = 0; i < 3; i++) tickets[i] = ticket_of(all, i);
    for (uint32_t i = 0; i < 3; i++) {
        make_reply(100000 + i, i);
        replies[i] = s.reply;
        (void)local_send(&tickets[i], s.reply, 100000 + i);
        assert_int_equal(tickets[i].is_in_memory, i == 0);
        assert_int_equal(tickets[i].sent, local_reply_bytes(&tickets[i], nng_msg_len(s.reply)));
    }
    for (uint32_t i = 0; i < 3; i++) replied(&all[i], &tickets[i], replies[i]);
    atomic_store(&s.is_holding, false);
    make_reply(100000, 0);
    nng_msg_free(s.reply);
    expect_in_memory(&r, ID, 100000);
    for (uint32_t i = 1; i < 3; i++) {
        make_reply(100000 + i, i);
        nng_msg_free(s.reply);
        expect_on_socket(&r, ID + i, 100000 + i);
    }
    /* a request that does not say so frees nothing; one that does, does */
    hold(&r, ID + 5, false);
    reply_whole(100000, 5);
    expect_on_socket(&r, ID + 5, 100000);
    hold(&r, ID + 6, true);
    reply_whole(100000, 6);
    expect_in_memory(&r, ID + 6, 100000);
    leave(&r);
}

static void what_is_being_written_is_not_free_whatever_the_peer_says(void **state) {
    (void)state;
    reader r = borrow();
    const uint32_t before = atomic_load(&s.held_ever);
    hold(&r, ID, true);
    const held first = s.held[0];
    local_ticket of_first = s.ticket;
    make_reply(100000, 1);
    nng_msg *const reply_of_first = s.reply;
    (void)local_send(&of_first, reply_of_first, 50000);
    assert_true(of_first.is_in_memory);
    request(&r, ID + 1, true); /* a lie: nobody can have read it */
    wait_held(before + 2);
    const held second = s.held[1];
    s.held[0] = second, s.held_count = 1;
    tell(TAKE_TICKET);
    local_ticket of_second = s.ticket;
    assert_int_equal(nng_msg_alloc(&s.reply, 90000), 0);
    nng_msg *const reply_of_second = s.reply;
    memset(nng_msg_body(reply_of_second), 0xee, 90000);
    (void)local_send(&of_second, reply_of_second, 90000);
    assert_false(of_second.is_in_memory);
    (void)local_send(&of_first, reply_of_first, 100000);
    assert_int_equal(of_second.sent, 0); /* it waits for the first's bell */
    local_ticket_give(&of_second);
    nng_msg_free(second.message);
    s.held[0] = (held){second.context, reply_of_second}, s.held_count = 1;
    tell(LET_GO);
    replied(&first, &of_first, reply_of_first);
    atomic_store(&s.is_holding, false);
    uint8_t *out = malloc(2 * sizeof in), own[4];
    assert_non_null(out);
    const size_t size = announcement(expected, ID, 100000);
    put_id(own, ID + 1);
    uint8_t *other = calloc(1, 90000);
    assert_non_null(other);
    memset(other, 0xee, 90000);
    memcpy(out, expected, size);
    const size_t all = size + frame(out + size, own, 4, other, 90000);
    assert_true(get(r.fd, in, all));
    assert_memory_equal(in, out, all);
    assert_memory_equal(r.area, body, 100000);
    free(out), free(other);
    leave(&r);
}

static void in_parts(reader *r, uint32_t id) {
    static const size_t parts[] = {0, 16, 40000, 40000, 140001};
    hold(r, id, true);
    make_reply(200000, id);
    const size_t all = announcement(expected, id, 200000);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(local_send(&s.ticket, s.reply, parts[i]), all - 1);
        assert_int_equal(atomic_load(&r->head->have), parts[i]);
        assert_memory_equal(r->area, body, parts[i]);
        assert_int_equal(has_something(r), i == 0);
        if (i == 0) expect_bytes(r, expected, all - 1);
    }
    s.sent = local_send(&s.ticket, s.reply, 200000);
    assert_int_equal(s.sent, all);
    expect_bytes(r, expected + all - 1, 1);
    assert_memory_equal(r->area, body, 200000);
    tell(REPLIED);
    atomic_store(&s.is_holding, false);
}

static void a_reply_in_parts_is_announced_first_and_ends_with_the_bell(void **state) {
    (void)state;
    reader r = borrow();
    for (uint32_t i = 0; i < 3; i++) in_parts(&r, ID + i);
    leave(&r);
}

static void other_replies_wait_for_the_bell(void **state) {
    (void)state;
    reader r = borrow();
    const uint32_t before = atomic_load(&s.held_ever);
    hold(&r, ID, true);
    request(&r, ID + 1, false);
    wait_held(before + 2);
    const held first = s.held[0];
    make_reply(100000, 1);
    (void)local_send(&s.ticket, s.reply, 10);
    s.held[0] = s.held[1], s.held_count = 1;
    tell(LET_GO);
    s.held[0] = first, s.held_count = 1;
    const size_t size = announcement(expected, ID, 100000);
    expect_bytes(&r, expected, size - 1);
    assert_false(has_something(&r));
    (void)local_send(&s.ticket, s.reply, 100000);
    tell(REPLIED);
    uint8_t own[4];
    put_id(own, ID + 1);
    expected[0] = LOCAL_MEMORY_BELL;
    const size_t rest = 1 + frame(expected + 1, own, 4, "please", 6);
    expect_bytes(&r, expected, rest);
    leave(&r);
}

/* ---- a socket that takes nothing ---- */

/* Whole messages that the peer leaves in the socket, behind the loop's back. Returns how many bytes. */
static size_t stuff_socket(int fd) {
    uint8_t filler[64];
    const uint8_t own[4] = {0x80, 0, 0, 7};
    const size_t size = frame(filler, own, 4, "left where it is", 16);
    size_t all = 0;
    while (send(fd, filler, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size) all += size;
    assert_true(all > 0);
    return all;
}

static void drop(const reader *r, size_t bytes) {
    while (bytes) {
        const size_t n = bytes < sizeof in ? bytes : sizeof in;
        assert_true(get(r->fd, in, n));
        bytes -= n;
    }
}

static void where_the_socket_takes_no_announcement_the_loop_answers_through_it(void **state) {
    (void)state;
    reader r = borrow();
    hold(&r, ID, true);
    const size_t stuffed = stuff_socket(s.ticket.out->fd);
    make_reply(100000, 1);
    assert_int_equal(local_send(&s.ticket, s.reply, 50000), 0);
    assert_int_equal(local_send(&s.ticket, s.reply, 100000), 0);
    assert_false(s.ticket.is_in_memory);
    local_ticket_give(&s.ticket);
    nng_msg_free(s.held[0].message);
    s.held[0].message = s.reply;
    tell(LET_GO);
    drop(&r, stuffed);
    expect_on_socket(&r, ID, 100000);
    hold(&r, ID + 1, true); /* the memory was given back */
    reply_whole(100000, 2);
    expect_in_memory(&r, ID + 1, 100000);
    leave(&r);
}

/* One who asks again, though the contract wants none: from the first byte on. */
static void memory_that_was_given_back_is_written_anew(void **state) {
    (void)state;
    reader r = borrow();
    hold(&r, ID, true);
    const size_t stuffed = stuff_socket(s.ticket.out->fd);
    make_reply(100000, 1);
    assert_int_equal(local_send(&s.ticket, s.reply, 100000), 0);
    memset(s.ticket.out->replies.area, 0xee, 100000);
    drop(&r, stuffed);
    s.sent = local_send(&s.ticket, s.reply, 100000);
    assert_true(s.ticket.is_in_memory);
    tell(REPLIED);
    expect_in_memory(&r, ID, 100000);
    leave(&r);
}

static void what_the_socket_does_not_take_of_an_announcement_goes_by_the_loop(void **state) {
    (void)state;
    reader r = borrow();
    hold(&r, ID, true);
    make_reply(100000, 1);
    const size_t size = announcement(expected, ID, 100000);
    assert_int_equal(local_send(&s.ticket, s.reply, 50000), size - 1);
    const size_t stuffed = stuff_socket(s.ticket.out->fd);
    assert_int_equal(local_send(&s.ticket, s.reply, 100000), size - 1);
    tell(REPLIED);
    atomic_store(&s.is_holding, false);
    expect_bytes(&r, expected, size - 1);
    drop(&r, stuffed); /* a peer would be out of step by now: it is the test that came in between */
    const uint8_t bell = LOCAL_MEMORY_BELL;
    expect_bytes(&r, &bell, 1);
    assert_memory_equal(r.area, body, 100000);
    exchange_one(r.fd, 256);
    leave(&r);
}

/* ---- what a peer can do ---- */

static void what_is_kept_for_retries_is_not_what_the_peer_has(void **state) {
    (void)state;
    reader r = borrow();
    hold(&r, ID, true);
    make_reply(100000, 1);
    (void)local_send(&s.ticket, s.reply, 60000);
    memset(s.ticket.out->replies.area, 0xee, LOCAL_MEMORY_BYTES); /* as if it could */
    atomic_store(&s.ticket.out->replies.head->have, UINT64_MAX);
    s.sent = local_send(&s.ticket, s.reply, 100000);
    assert_int_equal(s.sent, local_reply_bytes(&s.ticket, nng_msg_len(s.reply)));
    assert_memory_equal(nng_msg_body(s.reply), body, 100000);
    assert_int_equal(nng_msg_len(s.reply), 100000);
    /* nor is any of it written beyond the reply, or before what there is of it */
    for (size_t i = 0; i < LOCAL_MEMORY_BYTES; i++)
        assert_int_equal(r.area[i], i < 60000 || i >= 100000 ? 0xee : body[i]);
    assert_int_equal(atomic_load(&r.head->have), 100000);
    tell(REPLIED);
    leave(&r);
}

static void a_peer_can_read_its_memory_and_nothing_else(void **state) {
    (void)state;
    reader r = borrow();
    const int seals = fcntl(r.memory, F_GET_SEALS), least = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    assert_int_equal(seals & least, least);
    assert_int_equal(ftruncate(r.memory, 0), -1);
    assert_int_equal(ftruncate(r.memory, 1 << 22), -1);
    const int probe = memory_of(4096, 0);
    const bool can_be_kept = fcntl(probe, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) == 0; /* from Linux 5.1 */
    close(probe);
    assert_int_equal((seals & F_SEAL_FUTURE_WRITE) != 0, can_be_kept);
    if (can_be_kept) {
        assert_true(mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, r.memory, 0) == MAP_FAILED);
        assert_int_equal(mprotect((void *)(uintptr_t)r.head, MAP_BYTES, PROT_READ | PROT_WRITE), -1);
        assert_int_equal(pwrite(r.memory, "x", 1, 0), -1);
        assert_int_equal(fallocate(r.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)MAP_BYTES),
                         -1);
    }
    leave(&r);
}

static void nobody_gets_what_was_anothers(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        reader r = borrow();
        for (int k = 0; k < WAIT_MS && r.memory < 0; k++) {
            usleep(1000);
            assert_true(ask(&r));
            if (r.memory < 0) continue;
            r.head = mmap(NULL, MAP_BYTES, PROT_READ, MAP_SHARED, r.memory, 0);
            assert_true(r.head != MAP_FAILED);
            r.area = (const uint8_t *)r.head + sizeof *r.head;
        }
        for (size_t k = 0; k < LOCAL_MEMORY_BYTES; k++) assert_int_equal(r.area[k], 0);
        hold(&r, ID, true);
        reply_whole(LOCAL_MEMORY_BYTES, 5);
        expect_in_memory(&r, ID, LOCAL_MEMORY_BYTES);
        leave(&r);
    }
}

static void whoever_breaks_the_rules_is_hung_up_on(void **state) {
    (void)state;
    static const struct {
        const char *what;
        bool borrows;
        uint8_t bytes[32];
        size_t size;
    } cases[] = {
        {"memory said to be free that was not lent", false, {0x41, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
        {"a question with a length", false, {4, 0, 0, 0, 0, 0, 0, 0, 1}, 9},
        {"a question by one who has memory", true, {4}, 9},
        {"a question that says it is free", true, {0x44}, 9},
        {"the other question that says so", true, {0x42}, 9},
        {"a reply", true, {5, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
        {"a request in the memory for replies", true, {0x43, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
        {"a message too short for an id", true, {0x41, 0, 0, 0, 0, 0, 0, 0, 3}, 9},
        {"an unknown type", true, {0x81, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        reader r = {.fd = -1, .memory = -1};
        if (cases[i].borrows)
            r = borrow();
        else
            r.fd = greet();
        assert_int_equal(r.memory >= 0, cases[i].borrows);
        put(r.fd, cases[i].bytes, cases[i].size);
        if (!is_hung_up(r.fd)) fail_msg("%s: not hung up on", cases[i].what);
        leave(&r);
        the_server_still_serves();
    }
}

static uint64_t lent_bytes(void) {
    return atomic_load(&daemon_metrics.local_reply_bytes);
}

static void wait_lent(uint64_t bytes) {
    for (int i = 0; i < WAIT_MS && lent_bytes() != bytes; i++) usleep(1000);
    assert_int_equal(lent_bytes(), bytes);
}

static void so_many_peers_get_memory_and_it_is_counted(void **state) {
    (void)state;
    atomic_store(&s.trusts, false);
    reader stranger = borrow();
    assert_int_equal(stranger.memory, -1);
    assert_int_equal(lent_bytes(), 0);
    leave(&stranger);
    atomic_store(&s.trusts, true);
    reader first = borrow(), second = borrow(), third = borrow();
    assert_true(first.memory >= 0 && second.memory >= 0);
    assert_int_equal(third.memory, -1);
    assert_int_equal(lent_bytes(), 2 * MAP_BYTES);
    exchange_one(third.fd, 256);
    leave(&first);
    for (int i = 0; i < WAIT_MS && third.memory < 0; i++) {
        usleep(1000);
        assert_true(ask(&third));
    }
    assert_true(third.memory >= 0);
    close(third.memory), close(third.fd);
    leave(&second);
    wait_lent(0);
}

static void a_refusal_of_one_kind_leaves_the_other(void **state) {
    (void)state;
    reader first = borrow(), second = borrow(), third = {.fd = greet(), .memory = -1};
    uint8_t bell = LOCAL_MEMORY_BELL;
    int requests;
    exchange_one(third.fd, 256);
    assert_true(ask_for_memory(&requests, third.fd, LOCAL_MEMORY_TYPE_LEND));
    assert_true(requests >= 0);
    assert_true(ask(&third));
    assert_int_equal(third.memory, -1);
    uint8_t *area = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, requests, 0);
    assert_true(area != MAP_FAILED);
    memcpy(area + sizeof(local_memory_head), trail, sizeof trail);
    put_prefix(third.fd, LOCAL_MEMORY_TYPE, sizeof trail);
    put(third.fd, &bell, 1);
    expect_bytes(&third, expected, frame(expected, trail, sizeof trail, "", 0));
    munmap(area, MAP_BYTES);
    close(requests);
    leave(&first), leave(&second), leave(&third);
}

static void a_peer_that_goes_while_its_reply_is_written_leaves_nothing(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3; i++) { /* before the first part, between the parts, before the loop hears */
        reader r = borrow();
        hold(&r, ID, true);
        const local_ticket ticket = s.ticket;
        make_reply(200000, 1);
        s.ticket = ticket;
        if (i > 0) (void)local_send(&s.ticket, s.reply, 100000);
        if (i > 1) (void)local_send(&s.ticket, s.reply, 200000);
        leave(&r);
        for (int k = 0; k < WAIT_MS && atomic_load(&s.lost) < i + 1; k++) usleep(1000);
        assert_int_equal(atomic_load(&s.lost), i + 1);
        for (int k = 0; k < WAIT_MS && transport_pipe_count(&s.transport); k++) usleep(1000);
        if (i < 2) { /* the mapping is there for as long as somebody may write to it */
            assert_int_equal(lent_bytes(), MAP_BYTES);
            (void)local_send(&s.ticket, s.reply, 150000);
            (void)local_send(&s.ticket, s.reply, 200000);
        }
        nng_msg_free(s.reply);
        local_ticket_give(&s.ticket);
        wait_lent(0);
        assert_int_equal(count_mappings_of("memfd:ckksd-reply"), 0);
        atomic_store(&s.is_holding, false);
        the_server_still_serves();
    }
}

static void where_the_system_has_no_memory_replies_go_through_the_socket(void **state) {
    (void)state;
    uint32_t failures = 0;
    for (uint64_t n = 1;; n++) { /* itself, its size, then its mapping */
        reader r = {.fd = greet(), .memory = -1};
        exchange_one(r.fd, 256);
        system_fault_set(n, ENOMEM);
        assert_true(ask(&r));
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        assert_int_equal(r.memory < 0, has_failed);
        exchange_one(r.fd, 256);
        hold(&r, ID, !has_failed);
        reply_whole(100000, 1);
        if (has_failed)
            expect_on_socket(&r, ID, 100000);
        else
            close(r.memory);
        close(r.fd);
        wait_lent(0);
        if (!has_failed) break;
        failures++;
    }
    assert_int_equal(failures, 3);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_trusting, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_large_reply_goes_through_memory_that_its_request_said_is_free),
        TEST(others_go_through_the_socket),
        TEST(one_who_has_no_memory_is_answered_as_ever),
        TEST(a_peer_with_several_requests_gets_one_reply_through_memory_until_it_read_it),
        TEST(what_is_being_written_is_not_free_whatever_the_peer_says),
        TEST(a_reply_in_parts_is_announced_first_and_ends_with_the_bell),
        TEST(other_replies_wait_for_the_bell),
        TEST(where_the_socket_takes_no_announcement_the_loop_answers_through_it),
        TEST(memory_that_was_given_back_is_written_anew),
        TEST(what_the_socket_does_not_take_of_an_announcement_goes_by_the_loop),
        TEST(what_is_kept_for_retries_is_not_what_the_peer_has),
        TEST(a_peer_can_read_its_memory_and_nothing_else),
        TEST(nobody_gets_what_was_anothers),
        TEST(whoever_breaks_the_rules_is_hung_up_on),
        TEST(so_many_peers_get_memory_and_it_is_counted),
        TEST(a_refusal_of_one_kind_leaves_the_other),
        TEST(a_peer_that_goes_while_its_reply_is_written_leaves_nothing),
        TEST(where_the_system_has_no_memory_replies_go_through_the_socket),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    return cmocka_run_group_tests_name("replies through memory", tests, NULL, NULL);
}
