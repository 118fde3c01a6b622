/*
 * Replies through memory, seen by the client: from a server whose slots write them while it reads, and from
 * one that lies about everything in it.
 */
#include "daemon/metrics.h"
#include "tests/support/memory_words.h"
#include "tests/support/system_fault.h"

#define SMALL      LOCAL_MEMORY_REPLY_MIN
#define CLIENTS    3
#define CALLS      60
#define SLOTS      2
#define PART       20000u
#define REPLY_OF   "memfd:ckksd-reply"
#define UNANSWERED UINT32_MAX

/* ---- a server whose slots answer with as many bytes as the request asks for ---- */

typedef struct job {
    struct job *next;
    transport_context *context; /* loop thread */
    nng_msg *reply;
    local_ticket ticket;
    loop_event done;
    uint32_t seed;
} job;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *first;
    bool is_over;
    pthread_t threads[SLOTS];
    _Atomic uint32_t in_memory, on_socket;
} slots;

static void fill(uint8_t *to, size_t bytes, uint32_t seed) {
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(i * 13 + (i >> 9) + seed * 29);
}

static void on_done(loop_event *event) {
    job *j = LIST_ENTRY(event, job, done);
    /* its peer may be gone, and its context another's */
    const bool is_there = local_ticket_is_of(&j->ticket, j->context) && j->context->owner == j;
    if (is_there && j->ticket.sent) {
        local_replied(j->context, j->reply, &j->ticket, nng_msg_len(j->reply));
    } else if (is_there) {
        j->context->owner = NULL;
        transport_reply(j->context, j->reply, false);
    } else {
        nng_msg_free(j->reply);
    }
    local_ticket_give(&j->ticket);
    free(j);
}

static void write_reply(job *j) {
    uint8_t *to = nng_msg_body(j->reply);
    const size_t bytes = nng_msg_len(j->reply);
    for (size_t at = 0; at < bytes; at += PART) {
        const size_t end = bytes - at < PART ? bytes : at + PART;
        for (size_t i = at; i < end; i++) to[i] = (uint8_t)(i * 13 + (i >> 9) + j->seed * 29);
        (void)local_send(&j->ticket, j->reply, end);
    }
    atomic_fetch_add(j->ticket.is_in_memory ? &slots.in_memory : &slots.on_socket, 1);
}

static void *work(void *context) {
    (void)context;
    pthread_mutex_lock(&slots.lock);
    while (!slots.is_over) {
        job *j = slots.first;
        if (!j) {
            pthread_cond_wait(&slots.changed, &slots.lock);
            continue;
        }
        slots.first = j->next;
        pthread_mutex_unlock(&slots.lock);
        write_reply(j);
        loop_post(&s.loop, &j->done);
        pthread_mutex_lock(&slots.lock);
    }
    pthread_mutex_unlock(&slots.lock);
    return NULL;
}

static void on_request(transport_context *context, nng_msg *message) {
    uint32_t wanted[2];
    job *j = calloc(1, sizeof *j);
    CKKS_ASSERT(j && nng_msg_len(message) >= sizeof wanted);
    memcpy(wanted, nng_msg_body(message), sizeof wanted);
    nng_msg_free(message);
    if (wanted[1] == UNANSWERED) { /* until its peer goes */
        free(j);
        return;
    }
    CKKS_ASSERT(nng_msg_alloc(&j->reply, wanted[0]) == 0);
    j->context = context, j->seed = wanted[1], j->done.run = on_done;
    context->owner = j;
    local_ticket_take(&j->ticket, context);
    pthread_mutex_lock(&slots.lock);
    job **end = &slots.first;
    while (*end) end = &(*end)->next;
    *end = j;
    pthread_cond_signal(&slots.changed);
    pthread_mutex_unlock(&slots.lock);
}

static int open_slots(void **state) {
    memset(&slots, 0, sizeof slots);
    pthread_mutex_init(&slots.lock, NULL);
    pthread_cond_init(&slots.changed, NULL);
    for (int i = 0; i < SLOTS; i++) assert_int_equal(pthread_create(&slots.threads[i], NULL, work, NULL), 0);
    handler = on_request;
    const int rc = set_up(state);
    atomic_store(&s.trusts, true);
    return rc;
}

static int close_slots(void **state) {
    pthread_mutex_lock(&slots.lock);
    slots.is_over = true;
    pthread_cond_broadcast(&slots.changed);
    pthread_mutex_unlock(&slots.lock);
    for (int i = 0; i < SLOTS; i++) pthread_join(slots.threads[i], NULL);
    pthread_mutex_destroy(&slots.lock);
    pthread_cond_destroy(&slots.changed);
    return tear_down(state);
}

/* ---- the client ---- */

static rpc_pipe *dial_pipe(bool for_requests, bool for_replies) {
    rpc_pipe *p = NULL;
    assert_int_equal(rpc_pipe_dial(&p, s.url, WAIT_MS), 0);
    rpc_pipe_may_borrow(p, for_requests, for_replies);
    return p;
}

/* A request of `bytes` for a reply of `wanted`, which must come. */
static int exchange(rpc_pipe *p, size_t bytes, uint32_t wanted, uint32_t seed) {
    nng_msg *reply = NULL;
    rpc_trip trip;
    uint8_t *request = calloc(1, bytes), *right = malloc(wanted + 1);
    CKKS_ASSERT(request && right && bytes >= 8);
    memcpy(request, &(uint32_t[2]){wanted, seed}, 8);
    struct iovec parts[2] = {{0}, {request, bytes}};
    fill(right, wanted, seed);
    const int rc = rpc_pipe_exchange(&reply, &trip, p, parts, 2, MESSAGE_MAX, 0, WAIT_MS);
    if (rc == 0) {
        CKKS_ASSERT(nng_msg_len(reply) == wanted && memcmp(nng_msg_body(reply), right, wanted) == 0);
        CKKS_ASSERT(!wanted || (uintptr_t)nng_msg_body(reply) % 16 == 4);
        nng_msg_free(reply);
    }
    free(request), free(right);
    return rc;
}

static void a_pipe_asks_for_memory_behind_its_first_large_reply(void **state) {
    (void)state;
    for (int is_told = 0; is_told < 2; is_told++) { /* of a server that does not lend, it asks for none */
        atomic_store(&slots.in_memory, 0);
        rpc_pipe *p = dial_pipe(false, is_told);
        assert_int_equal(exchange(p, 100, SMALL - 1, 0), 0);
        assert_int_equal(exchange(p, 100, SMALL, 1), 0);
        assert_int_equal(count_mappings_of(REPLY_OF), 0); /* nothing was known before it */
        static const uint32_t sizes[] = {
            1000,   SMALL, SMALL - 1, LOCAL_MEMORY_BYTES, LOCAL_MEMORY_BYTES + 1, 2 * MESSAGE_MAX / 3,
            200001, 0};
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            assert_int_equal(exchange(p, 100, sizes[i], i), 0);
            assert_int_equal(count_mappings_of(REPLY_OF), is_told ? 2 : 0);
        }
        for (int i = 0; i < WAIT_MS && atomic_load(&slots.in_memory) < (is_told ? 3 : 0); i++) usleep(1000);
        assert_int_equal(atomic_load(&slots.in_memory), is_told ? 3 : 0);
        rpc_pipe_close(p);
        for (int i = 0; i < WAIT_MS && count_mappings_of(REPLY_OF); i++) usleep(1000);
        assert_int_equal(count_mappings_of(REPLY_OF), 0);
    }
}

static void both_ways_go_through_memory_at_once(void **state) {
    (void)state;
    rpc_pipe *p = dial_pipe(true, true);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(exchange(p, 100000 + i * 1000, 300000 - i * 4096, i), 0);
        if (i > 1) assert_int_equal(count_mappings_of("memfd:ckksd-re"), 4);
    }
    assert_true(atomic_load(&slots.in_memory) >= 38);
    rpc_pipe_close(p);
}

static void a_client_that_is_refused_reads_as_ever(void **state) {
    (void)state;
    atomic_store(&s.trusts, false);
    rpc_pipe *p = dial_pipe(false, true);
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(exchange(p, 100, 100000, i), 0);
    assert_int_equal(atomic_load(&slots.in_memory), 0);
    assert_int_equal(count_mappings_of(REPLY_OF), 0);
    rpc_pipe_close(p);
}

/* itself, its size, the server's mapping; then the client's look at the size, and its own mapping */
static void where_either_side_has_no_memory_replies_come_through_the_socket(void **state) {
    (void)state;
    uint32_t failures = 0;
    for (uint64_t n = 1;; n++) {
        rpc_pipe *p = dial_pipe(false, true);
        assert_int_equal(exchange(p, 100, SMALL, 0), 0);
        atomic_store(&slots.in_memory, 0);
        system_fault_set(n, ENOMEM);
        assert_int_equal(exchange(p, 100, 64, 1), 0); /* asks */
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(exchange(p, 100, 200000, i), 0);
        if (has_failed) assert_int_equal(atomic_load(&slots.in_memory), 0);
        rpc_pipe_close(p);
        for (int i = 0; i < WAIT_MS && atomic_load(&daemon_metrics.local_reply_bytes); i++) usleep(1000);
        assert_int_equal(atomic_load(&daemon_metrics.local_reply_bytes), 0);
        if (!has_failed) break;
        failures++;
    }
    assert_int_equal(failures, 5);
}

static void *call_often(void *context) {
    const uint32_t seed = (uint32_t)(uintptr_t)context;
    rpc_pipe *p = NULL;
    CKKS_ASSERT(rpc_pipe_dial(&p, s.url, WAIT_MS) == 0);
    rpc_pipe_may_borrow(p, seed % 2 == 0, true);
    for (uint32_t i = 0; i < CALLS; i++) {
        const uint32_t r = (seed * 7919 + i) * 2654435761u;
        CKKS_ASSERT(exchange(p, 8 + r % 90000, (r >> 7) % 150000, i + seed * 1000) == 0);
    }
    rpc_pipe_close(p);
    return NULL;
}

static void many_at_once_each_get_their_own(void **state) {
    (void)state;
    pthread_t threads[CLIENTS];
    for (uintptr_t i = 0; i < CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, (void *)i), 0);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    assert_true(atomic_load(&slots.in_memory) > 0); /* of three, two are lent memory */
    assert_true(atomic_load(&slots.on_socket) > 0);
}

/* ---- a server that lies ---- */

#define LIE_BYTES 65536u

/* What it does about the request behind the question for memory. */
typedef struct lie {
    const char *what;
    uint8_t type;      /* of the answer */
    uint64_t length;   /* less the id's 4 */
    uint32_t other_id; /* added to the id */
    uint64_t have;
    uint8_t bell;
    bool lends, is_silent;
    int rc;
} lie;

static const lie lies[] = {
    {"the truth", 5, 50000, 0, 50000, 0xb3, true, false, 0},
    {"nothing is said to be there", 5, 50000, 0, 0, 0xb3, true, false, 0},
    {"more is said to be there than the area has", 5, 50000, 0, UINT64_MAX, 0xb3, true, false, 0},
    {"the whole area", 5, LIE_BYTES, 0, 1, 0xb3, true, false, 0},
    {"nothing", 5, 0, 0, 0, 0xb3, true, false, 0},
    {"one byte more than the area", 5, LIE_BYTES + 1, 0, 0, 0xb3, true, false, NNG_EPROTO},
    {"2^63 bytes", 5, 1ull << 63, 0, 0, 0xb3, true, false, NNG_EMSGSIZE},
    {"less than an id", 5, UINT64_MAX, 0, 0, 0xb3, true, false, NNG_EPROTO},
    {"the reply to another request", 5, 50000, 1, 50000, 0xb3, true, false, NNG_EPROTO},
    {"a reply in memory that was not lent", 5, 50000, 0, 0, 0xb3, false, false, NNG_EPROTO},
    {"an empty reply in memory that was not lent", 5, 0, 0, 0, 0xb3, false, false, NNG_EPROTO},
    {"another byte than the bell", 5, 50000, 0, 50000, 0xb4, true, false, NNG_EPROTO},
    {"a request", 3, 50000, 0, 50000, 0xb3, true, false, NNG_EPROTO},
    {"an answer to no question", 4, 50000, 0, 50000, 0xb3, true, false, NNG_EPROTO},
    {"a reply that says it is free", 0x45, 50000, 0, 50000, 0xb3, true, false, NNG_EPROTO},
    {"everything and no bell", 5, 50000, 0, 50000, 0, true, true, NNG_ETIMEDOUT},
    {"half of it and no bell", 5, 50000, 0, 25000, 0, true, true, NNG_ETIMEDOUT},
};

static struct {
    int listener;
    const lie *lie;
    char path[96];
} liar;

static void take(int fd, size_t bytes) {
    uint8_t taken[256];
    while (bytes) {
        const size_t n = bytes < sizeof taken ? bytes : sizeof taken;
        CKKS_ASSERT(get(fd, taken, n));
        bytes -= n;
    }
}

static void put_head(int fd, uint8_t type, uint64_t bytes, const uint8_t id[4]) {
    put_prefix(fd, type, bytes + 4);
    put(fd, id, 4);
}

static void *tell_lies(void *context) {
    const lie *l = liar.lie;
    uint8_t head[13];
    static uint8_t zeros[SMALL];
    (void)context;
    const int fd = accept4(liar.listener, NULL, NULL, SOCK_CLOEXEC);
    CKKS_ASSERT(fd >= 0);
    put(fd, "\0SP\0\0\x31\0\0", 8);
    take(fd, 8);
    CKKS_ASSERT(get(fd, head, 13) && head[0] == 1); /* a large reply, so that it asks */
    take(fd, 4);
    put_head(fd, 1, SMALL, head + 9);
    put(fd, zeros, SMALL);
    CKKS_ASSERT(get(fd, head, 9) && head[0] == 4);
    const int memory = memory_of(4096 + LIE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW);
    local_memory_head *m = mmap(NULL, 4096 + LIE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CKKS_ASSERT(m != MAP_FAILED);
    const uint8_t yes[9] = {4, 0, 0, 0, 0, 0, 1}, no[9] = {4};
    answer(fd, l->lends ? yes : no, 9, &memory, l->lends);
    close(memory);
    CKKS_ASSERT(get(fd, head, 13) && head[0] == (l->lends ? 0x41 : 1));
    take(fd, 4);
    for (uint32_t i = 0; i < LIE_BYTES; i++) ((uint8_t *)m + 4096)[i] = (uint8_t)(i * 3);
    atomic_store(&m->have, l->have);
    head[12] = (uint8_t)(head[12] + l->other_id);
    put_head(fd, l->type, l->length, head + 9);
    if (l->bell) put(fd, &l->bell, 1);
    (void)is_hung_up(fd); /* by the client, when it has had enough */
    munmap(m, 4096 + LIE_BYTES);
    close(fd);
    return NULL;
}

static void whatever_a_server_says_of_its_memory_is_checked(void **state) {
    (void)state;
    char folder[64], url[112];
    temporary_folder(folder, sizeof folder, "test-liar");
    snprintf(liar.path, sizeof liar.path, "%s/bulk", folder);
    snprintf(url, sizeof url, "ipc://%s", liar.path);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", liar.path);
    liar.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(liar.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(liar.listener, 1), 0);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        const lie *l = liar.lie = &lies[i];
        rpc_socket socket = {.is_local = true};
        pthread_t thread;
        rpc_pipe *p = NULL;
        nng_msg *reply = NULL;
        rpc_trip trip;
        assert_int_equal(pthread_create(&thread, NULL, tell_lies, NULL), 0);
        assert_int_equal(rpc_pipe_dial(&p, url, WAIT_MS), 0);
        rpc_pipe_may_borrow(p, false, true);
        struct iovec first[2] = {{0}, {(char[]){"ask"}, 4}}, second[2] = {{0}, {(char[]){"ask"}, 4}};
        assert_int_equal(rpc_pipe_exchange(&reply, &trip, p, first, 2, MESSAGE_MAX, 0, WAIT_MS), 0);
        nng_msg_free(reply);
        reply = NULL;
        const int rc =
            rpc_pipe_exchange(&reply, &trip, p, second, 2, MESSAGE_MAX, 0, l->is_silent ? 300 : WAIT_MS);
        if (rc != l->rc) fail_msg("%s: %d instead of %d", l->what, rc, l->rc);
        if (rc == 0) {
            assert_int_equal(nng_msg_len(reply), l->length);
            const uint8_t *body = nng_msg_body(reply);
            for (uint32_t k = 0; k < l->length; k++) assert_int_equal(body[k], (uint8_t)(k * 3));
            nng_msg_free(reply);
        } else {
            assert_null(reply);
        }
        pthread_mutex_init(&socket.idle_lock, NULL);
        rpc_pipe_give(&socket, p);
        assert_int_equal(socket.idle_count, rc == 0); /* of no more use otherwise */
        rpc_pipe_close_idle(&socket);
        pthread_mutex_destroy(&socket.idle_lock);
        pthread_join(thread, NULL);
    }
    close(liar.listener);
    assert_int_equal(unlink(liar.path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* The reply may come yet, and be put in the place of the next. */
static void a_pipe_whose_reply_may_come_through_memory_is_not_used_after_silence(void **state) {
    (void)state;
    for (int has_memory = 0; has_memory < 2; has_memory++) {
        rpc_socket socket = {.is_local = true};
        rpc_pipe *p = dial_pipe(false, has_memory);
        nng_msg *reply = NULL;
        rpc_trip trip;
        struct iovec parts[2] = {{0}, {(uint32_t[2]){100, UNANSWERED}, 8}};
        assert_int_equal(exchange(p, 100, SMALL, 0), 0);
        assert_int_equal(exchange(p, 100, SMALL, 0), 0);
        assert_int_equal(rpc_pipe_exchange(&reply, &trip, p, parts, 2, MESSAGE_MAX, 0, 50), NNG_ETIMEDOUT);
        pthread_mutex_init(&socket.idle_lock, NULL);
        rpc_pipe_give(&socket, p);
        assert_int_equal(socket.idle_count, !has_memory);
        rpc_pipe_close_idle(&socket);
        pthread_mutex_destroy(&socket.idle_lock);
    }
}

static void memory_for_replies_is_mapped_to_be_read(void **state) {
    (void)state;
    const uint8_t yes[9] = {4, 0, 0, 0, 0, 0, 1}, other[9] = {2, 0, 0, 0, 0, 0, 1};
    for (int is_right = 0; is_right < 2; is_right++) {
        int pair[2];
        rpc_memory m;
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        const int memory = memory_of(4096 + LIE_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
        answer(pair[1], is_right ? yes : other, 9, &memory, 1);
        close(memory);
        const int before = count_open(), rc = rpc_memory_receive(&m, pair[0], LOCAL_MEMORY_TYPE_LEND_REPLIES);
        assert_int_equal(rc, is_right ? 0 : EPROTO);
        assert_int_equal(m.head != NULL, is_right);
        assert_int_equal(count_open(), before);
        rpc_memory_end(&m);
        close(pair[0]), close(pair[1]);
    }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, open_slots, close_slots)
    const struct CMUnitTest tests[] = {
        TEST(a_pipe_asks_for_memory_behind_its_first_large_reply),
        TEST(both_ways_go_through_memory_at_once),
        TEST(a_client_that_is_refused_reads_as_ever),
        TEST(where_either_side_has_no_memory_replies_come_through_the_socket),
        TEST(many_at_once_each_get_their_own),
        TEST(a_pipe_whose_reply_may_come_through_memory_is_not_used_after_silence),
    };
    const struct CMUnitTest alone[] = {
        cmocka_unit_test(memory_for_replies_is_mapped_to_be_read),
        cmocka_unit_test(whatever_a_server_says_of_its_memory_is_checked),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    int failed = cmocka_run_group_tests_name("memory by itself", alone, NULL, NULL);
    failed += cmocka_run_group_tests_name("a loop that sleeps at once", tests, NULL, NULL);
    spin_ns = 2 * NS_PER_MS;
    return failed + cmocka_run_group_tests_name("a loop that stays awake", tests, NULL, NULL);
}
