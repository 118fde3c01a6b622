/*
 * Memory lent to local peers: who gets it, what a peer may do to it and to its protocol, and what the client
 * takes from a server.
 */
#include "client/lib/rpc_memory.h"
#include "daemon/local_memory.h"
#include "tests/support/memory_words.h"
#include "tests/support/system_fault.h"

static int open_trusting(void **state) {
    const int rc = set_up(state);
    atomic_store(&s.trusts, true);
    return rc;
}

/* ---- a peer with memory ---- */

typedef struct borrower {
    int fd, memory; /* memory < 0: it was refused */
    local_memory_head *head;
    uint8_t *area;
} borrower;

/* false: hung up on */
static bool ask(borrower *b) {
    return ask_for_memory(&b->memory, b->fd, LOCAL_MEMORY_TYPE_LEND);
}

static borrower borrow(void) {
    borrower b = {.fd = greet()};
    exchange_one(b.fd, 256); /* shows its token */
    assert_true(ask(&b));
    if (b.memory < 0) return b;
    b.head = mmap(NULL, MAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, b.memory, 0);
    assert_true(b.head != MAP_FAILED);
    b.area = (uint8_t *)b.head + sizeof *b.head;
    return b;
}

static void leave(borrower *b) {
    if (b->memory >= 0) munmap(b->head, MAP_BYTES), close(b->memory);
    close(b->fd);
}

static void ring(const borrower *b) {
    const uint8_t bell = LOCAL_MEMORY_BELL;
    put(b->fd, &bell, 1);
}

/* A message of the id and `bytes` more; the reply must be the same. */
static void exchange_through(borrower *b, size_t bytes, size_t step) {
    const uint8_t id[4] = {0x80, 1, 2, 3};
    uint8_t *in = malloc(bytes + 64), *expected = malloc(bytes + 64);
    assert_true(in && expected);
    atomic_store(&b->head->have, 0);
    put_prefix(b->fd, LOCAL_MEMORY_TYPE, bytes + 4);
    memcpy(b->area, id, 4);
    for (size_t at = 0; at < bytes; at += step)
        for (size_t i = at; i < bytes && i < at + step; i++) {
            b->area[4 + i] = (uint8_t)(i * 7 + (i >> 9) + step);
            if (i + 1 == bytes || i + 1 == at + step) atomic_store(&b->head->have, 4 + i + 1);
        }
    ring(b);
    const size_t size = frame(expected, id, 4, b->area + 4, bytes);
    assert_true(get(b->fd, in, size));
    assert_memory_equal(in, expected, size);
    free(in), free(expected);
}

static void a_message_through_lent_memory_is_like_any_other(void **state) {
    (void)state;
    borrower b = borrow();
    assert_true(b.memory >= 0);
    static const size_t sizes[] = {0, 1, 100, 4091, 4092, 4093, 65532, 200000, LOCAL_MEMORY_BYTES - 4};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        exchange_through(&b, sizes[i], 40000);
        exchange_one(b.fd, 5); /* the socket serves on beside it */
    }
    leave(&b);
    the_server_still_serves();
}

static void nobody_can_change_the_size_of_lent_memory(void **state) {
    (void)state;
    borrower b = borrow();
    assert_int_equal(fcntl(b.memory, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    assert_int_equal(ftruncate(b.memory, 0), -1);
    assert_int_equal(ftruncate(b.memory, 1 << 22), -1);
    assert_int_equal(fcntl(b.memory, F_ADD_SEALS, F_SEAL_WRITE), -1);
    /* what can be done is to take its pages away: they read as zeros then */
    memset(b.area, 0xff, LOCAL_MEMORY_BYTES);
    assert_int_equal(fallocate(b.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)MAP_BYTES), 0);
    put_prefix(b.fd, LOCAL_MEMORY_TYPE, LOCAL_MEMORY_BYTES);
    ring(&b); /* no id ends: hung up on */
    assert_true(is_hung_up(b.fd));
    leave(&b);
    the_server_still_serves();
}

static void who_showed_no_token_is_lent_nothing_and_may_send_as_ever(void **state) {
    (void)state;
    atomic_store(&s.trusts, false);
    borrower b = borrow();
    assert_int_equal(b.memory, -1);
    exchange_one(b.fd, 256);
    atomic_store(&s.trusts, true); /* now it does */
    exchange_one(b.fd, 256);
    assert_true(ask(&b));
    assert_true(b.memory >= 0);
    close(b.memory), close(b.fd);
}

static void so_many_peers_are_lent_memory_and_no_more(void **state) {
    (void)state;
    borrower first = borrow(), second = borrow(), third = borrow();
    assert_true(first.memory >= 0 && second.memory >= 0);
    assert_int_equal(third.memory, -1);
    leave(&first); /* also with its memory in hand: the server counts its own */
    for (int i = 0; i < WAIT_MS && third.memory < 0; i++) {
        usleep(1000);
        assert_true(ask(&third));
    }
    assert_true(third.memory >= 0);
    exchange_through(&second, 100000, 4096);
    close(third.memory), close(third.fd);
    leave(&second);
}

static void whoever_breaks_the_rules_of_lent_memory_is_hung_up_on(void **state) {
    (void)state;
    static const struct {
        const char *what;
        bool borrows;
        uint8_t bytes[64];
        size_t size;
    } cases[] = {
        {"a message in memory that was not lent", false, {3, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
        {"a question with a length", false, {2, 0, 0, 0, 0, 0, 0, 0, 1}, 9},
        {"a question by one who has memory", true, {2}, 9},
        {"a message one byte longer than the memory", true, {3, 0, 0, 0, 0, 0, 0x10, 0, 1}, 9},
        {"a message of 2^63 bytes", true, {3, 0x80}, 9},
        {"no room for an id", true, {3, 0, 0, 0, 0, 0, 0, 0, 3}, 9},
        {"another byte than the bell", true, {3, 0, 0, 0, 0, 0, 0, 0, 8, 1}, 10},
        {"no last id", true, {3, 0, 0, 0, 0, 0, 0, 0, 8, LOCAL_MEMORY_BELL}, 10},
        {"an unknown type", true, {4, 0, 0, 0, 0, 0, 0, 0, 8}, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        borrower b = {.fd = -1, .memory = -1};
        if (cases[i].borrows)
            b = borrow();
        else
            b.fd = greet();
        assert_int_equal(b.memory >= 0, cases[i].borrows);
        put(b.fd, cases[i].bytes, cases[i].size);
        if (!is_hung_up(b.fd)) fail_msg("%s: not hung up on", cases[i].what);
        leave(&b);
        the_server_still_serves();
    }
}

static void a_peer_that_goes_in_the_middle_of_a_message_leaves_nothing(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) { /* more often than there is memory for */
        borrower b = borrow();
        for (int k = 0; k < WAIT_MS && b.memory < 0; k++) {
            leave(&b);
            usleep(1000);
            b = borrow();
        }
        assert_true(b.memory >= 0);
        put_prefix(b.fd, LOCAL_MEMORY_TYPE, 50000);
        atomic_store(&b.head->have, i % 2 ? 20000 : 0);
        if (i % 3 == 2) ring(&b); /* and nobody reads the answer */
        leave(&b);
    }
    the_server_still_serves();
}

static struct {
    borrower *b;
    _Atomic bool is_over;
} vandal;

static void *scribble(void *context) {
    (void)context;
    for (uint64_t i = 0; !atomic_load(&vandal.is_over); i++) {
        atomic_store(&vandal.b->head->have, i * 0x9e3779b97f4a7c15u >> (i % 64));
        vandal.b->area[4 + i * 977 % 300000] = (uint8_t)i;
    }
    return NULL;
}

static void contents_that_change_under_the_reader_are_the_peers_own_trouble(void **state) {
    (void)state;
    borrower b = borrow();
    uint8_t *in = malloc(300000 + 64);
    CKKS_ASSERT(in && b.area);
    const uint8_t id[4] = {0x80, 1, 2, 3};
    memcpy(b.area, id, 4);
    vandal.b = &b;
    atomic_store(&vandal.is_over, false);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, scribble, NULL), 0);
    for (int i = 0; i < 40; i++) {
        put_prefix(b.fd, LOCAL_MEMORY_TYPE, 300004);
        ring(&b);
        assert_true(get(b.fd, in, 9 + 300004)); /* of the right size, whatever is in it */
        assert_memory_equal(in + 9, id, 4);
    }
    atomic_store(&vandal.is_over, true);
    pthread_join(thread, NULL);
    free(in);
    leave(&b);
    the_server_still_serves();
}

static void what_was_copied_is_not_read_again_and_no_more_than_the_message_is(void **state) {
    (void)state;
    local_memory_head *head = calloc(1, MAP_BYTES);
    assert_non_null(head);
    uint8_t *area = (uint8_t *)head + sizeof *head, to[301] = {0};
    size_t have = 0;
    memset(area, 'a', 400);
    to[300] = 'z';
    atomic_store(&head->have, 100);
    local_memory_take(head, to, &have, 300, false);
    assert_int_equal(have, 100);
    memset(area, 'b', 400);
    atomic_store(&head->have, 50); /* backwards */
    local_memory_take(head, to, &have, 300, false);
    assert_int_equal(have, 100);
    atomic_store(&head->have, 1000); /* beyond the message */
    local_memory_take(head, to, &have, 300, false);
    assert_int_equal(have, 300);
    memset(area, 'c', 400);
    local_memory_take(head, to, &have, 300, true);
    for (int i = 0; i < 300; i++) assert_int_equal(to[i], i < 100 ? 'a' : 'b');
    assert_int_equal(to[300], 'z');
    free(head);
}

static void where_the_system_has_no_memory_the_peer_is_told(void **state) {
    (void)state;
    uint32_t failures = 0;
    for (uint64_t n = 1;; n++) { /* itself, its size, then its mapping */
        int pair[2];
        local_memory m;
        uint8_t text[9] = {0};
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        system_fault_set(n, ENOMEM);
        const ckks_status rc = local_memory_lend(&m, pair[0], false);
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        assert_int_equal(rc, has_failed ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        assert_int_equal(m.head == NULL, has_failed);
        assert_true(get(pair[1], text, sizeof text));
        for (int i = 1; has_failed && i < 9; i++) assert_int_equal(text[i], 0);
        local_memory_end(&m);
        close(pair[0]), close(pair[1]);
        if (!has_failed) break;
        failures++;
    }
    assert_int_equal(failures, 3);
    local_memory m;
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    assert_int_equal(local_memory_lend(&m, pair[0], false), CKKS_IO);
    assert_null(m.head);
    assert_int_equal(local_memory_refuse(pair[0], false), CKKS_IO);
    close(pair[0]);
}

/* ---- the client ---- */

static void a_client_takes_nothing_from_a_server_that_could_take_it_back(void **state) {
    (void)state;
    enum { FILE_OF_ITS_OWN = 1, A_PIPE };
    const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    static const uint8_t of_4096[9] = {2, 0, 0, 0, 0, 0, 0, 0x10, 0}, zero[9] = {2},
                         huge[9] = {2, 0x80, 0, 0, 0, 0, 0, 0x10, 0},
                         other[9] = {1, 0, 0, 0, 0, 0, 0, 0x10, 0};
    const struct {
        const char *what;
        const uint8_t *text;
        size_t size, bytes;
        int seals, special, count, rc;
        bool takes;
    } cases[] = {
        {"as it should be", of_4096, 9, 8192, sealed, 0, 1, 0, true},
        {"two, of which one is taken", of_4096, 9, 8192, sealed, 0, 2, 0, true},
        {"larger than said", of_4096, 9, 1 << 16, sealed, 0, 1, 0, true},
        {"one byte too small", of_4096, 9, 8191, sealed, 0, 1, 0, false},
        {"no seals", of_4096, 9, 8192, 0, 0, 1, 0, false},
        {"may shrink", of_4096, 9, 8192, F_SEAL_GROW, 0, 1, 0, false},
        {"may not be written", of_4096, 9, 8192, sealed | F_SEAL_WRITE, 0, 1, 0, false},
        {"a file", of_4096, 9, 8192, 0, FILE_OF_ITS_OWN, 1, 0, false},
        {"a pipe", of_4096, 9, 0, 0, A_PIPE, 1, 0, false},
        {"nothing beside it", of_4096, 9, 0, 0, 0, 0, 0, false},
        {"nothing lent, and a descriptor", zero, 9, 8192, sealed, 0, 1, 0, false},
        {"nothing lent", zero, 9, 0, 0, 0, 0, 0, false},
        {"2^63 bytes", huge, 9, 8192, sealed, 0, 1, 0, false},
        {"another message", other, 9, 8192, sealed, 0, 1, EPROTO, false},
        {"a part of an answer", of_4096, 5, 8192, sealed, 0, 1, EPROTO, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int pair[2], fds[2] = {-1, -1};
        rpc_memory m;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        assert_int_equal(rpc_memory_receive(&m, pair[0], LOCAL_MEMORY_TYPE_LEND), EAGAIN);
        for (int k = 0; k < cases[i].count; k++) {
            int ends[2] = {-1, -1};
            if (cases[i].special == FILE_OF_ITS_OWN)
                fds[k] = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
            else if (cases[i].special == A_PIPE) {
                assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
                fds[k] = ends[0];
                close(ends[1]);
            } else
                fds[k] = memory_of(cases[i].bytes, cases[i].seals);
        }
        answer(pair[1], cases[i].text, cases[i].size, fds, (size_t)cases[i].count);
        for (int k = 0; k < cases[i].count; k++) close(fds[k]);
        const int before = count_open();
        const int rc = rpc_memory_receive(&m, pair[0], LOCAL_MEMORY_TYPE_LEND);
        if (rc != cases[i].rc || (m.head != NULL) != cases[i].takes || count_open() != before)
            fail_msg("%s: %d, %s, %d more open", cases[i].what, rc, m.head ? "taken" : "not taken",
                     count_open() - before);
        if (m.head) {
            struct iovec parts[] = {{(char[]){"1234"}, 4}, {(char[]){""}, 0}, {(char[]){"56789"}, 5}};
            rpc_memory_put(&m, parts, 3);
            assert_memory_equal(m.area, "123456789", 9);
            assert_int_equal(atomic_load(&m.head->have), 9);
        }
        rpc_memory_end(&m);
        close(pair[1]);
        assert_int_equal(rpc_memory_receive(&m, pair[0], LOCAL_MEMORY_TYPE_LEND), ECONNRESET);
        close(pair[0]);
    }
}

static int count_mappings(void) {
    return count_mappings_of("memfd:ckksd-request");
}

static uint8_t large[LOCAL_MEMORY_BYTES + 4096];

static int exchange_large(rpc_pipe *p, size_t bytes, uint32_t wait_ms) {
    nng_msg *reply = NULL;
    rpc_trip trip;
    struct iovec parts[4] = {
        {0}, {large, 3}, {large + 3, bytes / 2}, {large + 3 + bytes / 2, bytes - 3 - bytes / 2}};
    const int rc = rpc_pipe_exchange(&reply, &trip, p, parts, 4, sizeof large, 0, wait_ms);
    if (rc == 0) {
        assert_int_equal(nng_msg_len(reply), bytes);
        assert_memory_equal(nng_msg_body(reply), large, bytes);
        nng_msg_free(reply);
    }
    return rc;
}

static void fill_large(void) {
    for (size_t i = 0; i < sizeof large; i++) large[i] = (uint8_t)(i * 11 + (i >> 8));
}

static void a_pipe_borrows_for_large_requests_once_it_had_an_answer(void **state) {
    (void)state;
    rpc_pipe *p;
    fill_large();
    for (int lends = 0; lends < 2; lends++) {
        assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
        rpc_pipe_may_borrow(p, lends, false);
        assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0);
        assert_int_equal(count_mappings(), 0); /* nothing was answered before it */
        assert_int_equal(exchange_large(p, 1000, WAIT_MS), 0);
        assert_int_equal(count_mappings(), 0); /* too small to be worth it */
        static const size_t sizes[] = {100000,
                                       LOCAL_MEMORY_MESSAGE_MIN - 4,
                                       LOCAL_MEMORY_MESSAGE_MIN - 5,
                                       LOCAL_MEMORY_BYTES - 4,
                                       LOCAL_MEMORY_BYTES - 3,
                                       sizeof large,
                                       70000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            assert_int_equal(exchange_large(p, sizes[i], WAIT_MS), 0);
            assert_int_equal(count_mappings(), lends ? 2 : 0);
        }
        rpc_pipe_close(p);
        for (int i = 0; i < WAIT_MS && count_mappings(); i++) usleep(1000);
        assert_int_equal(count_mappings(), 0);
    }
}

static void a_client_that_is_refused_sends_as_ever(void **state) {
    (void)state;
    rpc_pipe *p;
    fill_large();
    atomic_store(&s.trusts, false);
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    rpc_pipe_may_borrow(p, true, false);
    for (int i = 0; i < 4; i++) assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0);
    assert_int_equal(count_mappings(), 0);
    rpc_pipe_close(p);
}

/* The server may not have read it yet: the next request must not be put in its place. */
static void a_pipe_whose_request_in_memory_heard_nothing_is_not_used_again(void **state) {
    (void)state;
    rpc_socket socket = {.is_local = true, .lends = true};
    rpc_pipe *p;
    fill_large();
    snprintf(socket.address, sizeof socket.address, "%s", s.url);
    pthread_mutex_init(&socket.idle_lock, NULL);
    for (int is_large = 0; is_large < 2; is_large++) {
        assert_int_equal(rpc_pipe_take(&p, &socket, WAIT_MS), 0);
        assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0);
        assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0); /* in memory */
        atomic_store(&s.is_holding, true);
        assert_int_equal(exchange_large(p, is_large ? 100000 : 1000, 20), NNG_ETIMEDOUT);
        rpc_pipe_give(&socket, p);
        assert_int_equal(socket.idle_count, !is_large);
        tell(LET_GO);
    }
    rpc_pipe_close_idle(&socket);
    pthread_mutex_destroy(&socket.idle_lock);
}

/* What comes next is not the answer to a question. */
static void a_pipe_that_is_owed_a_reply_asks_for_nothing(void **state) {
    (void)state;
    rpc_pipe *p;
    fill_large();
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    rpc_pipe_may_borrow(p, true, true);
    assert_int_equal(exchange_large(p, 1000, WAIT_MS), 0);
    atomic_store(&s.is_holding, true);
    assert_int_equal(exchange_large(p, 2000, 20), NNG_ETIMEDOUT);
    for (int i = 0; i < WAIT_MS && !atomic_load(&s.held_ever); i++) usleep(1000);
    tell(LET_GO);
    assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0);
    assert_int_equal(count_mappings(), 0);
    assert_int_equal(exchange_large(p, 100000, WAIT_MS), 0); /* it is owed none now */
    assert_int_equal(count_mappings(), 2);
    rpc_pipe_close(p);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_trusting, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(a_message_through_lent_memory_is_like_any_other),
        TEST(nobody_can_change_the_size_of_lent_memory),
        TEST(who_showed_no_token_is_lent_nothing_and_may_send_as_ever),
        TEST(so_many_peers_are_lent_memory_and_no_more),
        TEST(whoever_breaks_the_rules_of_lent_memory_is_hung_up_on),
        TEST(a_peer_that_goes_in_the_middle_of_a_message_leaves_nothing),
        TEST(contents_that_change_under_the_reader_are_the_peers_own_trouble),
        TEST(a_pipe_borrows_for_large_requests_once_it_had_an_answer),
        TEST(a_client_that_is_refused_sends_as_ever),
        TEST(a_pipe_whose_request_in_memory_heard_nothing_is_not_used_again),
        TEST(a_pipe_that_is_owed_a_reply_asks_for_nothing),
    };
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(what_was_copied_is_not_read_again_and_no_more_than_the_message_is),
        cmocka_unit_test(where_the_system_has_no_memory_the_peer_is_told),
        cmocka_unit_test(a_client_takes_nothing_from_a_server_that_could_take_it_back),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    int failed = cmocka_run_group_tests_name("memory by itself", alone, NULL, NULL);
    failed += cmocka_run_group_tests_name("a loop that sleeps at once", tests, NULL, NULL);
    spin_ns = 2 * NS_PER_MS;
    return failed + cmocka_run_group_tests_name("a loop that stays awake", tests, NULL, NULL);
}
