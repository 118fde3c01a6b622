/*
 * Servers that are none, below the level of messages: what they send in place of a greeting, of a length, of
 * a reply. Whatever it is, a client ends with a typed error, in time, and without the memory that a length
 * asked for.
 */
#include "client/lib/rpc.h"

#include "client/lib/rpc_internal.h"

#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#define CONNECT_MS 100u
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

/* ---- a server of raw bytes ---- */

typedef struct bytes {
    const char *data;
    size_t size;
} bytes;
#define BYTES(text)                                                                                          \
    { text, sizeof(text) - 1 }

typedef enum then {
    HANG_UP,
    STAY_SILENT,
    REPEAT, /* what was sent after the request, as fast as it is taken */
    DRIP,   /* the same, a byte each 5 ms */
} then;

typedef struct lie {
    const char *what;
    bytes greeting; /* sent at once */
    bytes reply;    /* sent after something came; on ipc a type byte comes first */
    bool has_own_type;
    then then;
} lie;

#define GREETING BYTES("\0SP\0\0\x31\0\0")

static const lie lies[] = {
    {"nothing at all", BYTES(""), BYTES(""), false, STAY_SILENT},
    {"a closed door", BYTES(""), BYTES(""), false, HANG_UP},
    {"half a greeting", BYTES("\0SP\0"), BYTES(""), false, HANG_UP},
    {"half a greeting and silence", BYTES("\0SP\0"), BYTES(""), false, STAY_SILENT},
    {"a greeting of another protocol", BYTES("\0SP\0\0\x30\0\0"), BYTES(""), false, STAY_SILENT},
    {"HTTP", BYTES("HTTP/1.1 400 Bad Request\r\n\r\n"), BYTES(""), false, HANG_UP},
    {"silence after the greeting", GREETING, BYTES(""), false, STAY_SILENT},
    {"hanging up on each request", GREETING, BYTES(""), false, HANG_UP},
    {"a length of 2^63", GREETING, BYTES("\x80\0\0\0\0\0\0\0\x80\0\0\1"), false, STAY_SILENT},
    {"a length of everything", GREETING, BYTES("\xff\xff\xff\xff\xff\xff\xff\xff\x80\0\0\1"), false,
     STAY_SILENT},
    {"a length of 4 GiB and no bytes", GREETING, BYTES("\0\0\0\1\0\0\0\0\x80\0\0\1"), false, STAY_SILENT},
    {"a length shorter than an id", GREETING, BYTES("\0\0\0\0\0\0\0\3abcd"), false, STAY_SILENT},
    {"a length of nothing", GREETING, BYTES("\0\0\0\0\0\0\0\0"), false, REPEAT},
    {"a message cut short", GREETING, BYTES("\0\0\0\0\0\0\1\0\x80\0\0\1CKD1"), false, HANG_UP},
    {"a message that never ends", GREETING, BYTES("\0\0\0\0\0\0\1\0\x80\0\0\1CKD1"), false, STAY_SILENT},
    {"a message in drops", GREETING, BYTES("\0\0\0\0\0\0\1\0\x80\0\0\1CKD1"), false, DRIP},
    {"another type of message", GREETING, BYTES("\2\0\0\0\0\0\0\0\4\x80\0\0\1"), true, STAY_SILENT},
    {"replies to requests of others, without end", GREETING, BYTES("\0\0\0\0\0\0\0\4\x81\2\3\4"), false,
     REPEAT},
    {"ids without their bit, without end", GREETING, BYTES("\0\0\0\0\0\0\0\4\1\2\3\4"), false, REPEAT},
};

typedef struct raw_server {
    int listener;
    const lie *lie;
    bool is_ipc;
    pthread_t thread;
} raw_server;

typedef struct visit {
    int pipe;
    const lie *lie;
    bool is_ipc;
} visit;

static bool put(int pipe, const void *data, size_t size) {
    return send(pipe, data, size, MSG_NOSIGNAL) == (ssize_t)size;
}

/* until the client hangs up */
static void *visit_main(void *context) {
    visit *v = context;
    char reply[64];
    size_t size = 0;
    if (v->is_ipc && !v->lie->has_own_type && v->lie->reply.size) reply[size++] = 1;
    memcpy(reply + size, v->lie->reply.data, v->lie->reply.size);
    size += v->lie->reply.size;
    uint8_t taken[4096];
    bool is_open = put(v->pipe, v->lie->greeting.data, v->lie->greeting.size);
    if (is_open && v->lie->greeting.size == 8) { /* its greeting, then the request */
        is_open = recv(v->pipe, taken, 8, MSG_WAITALL) == 8 && recv(v->pipe, taken, sizeof taken, 0) > 0;
    }
    if (is_open) is_open = put(v->pipe, reply, size);
    char many[64 * 64]; /* so that there is always more to read */
    for (size_t i = 0; i < 64; i++) memcpy(many + i * size, reply, size);
    while (is_open && v->lie->then == REPEAT) is_open = put(v->pipe, many, 64 * size);
    while (is_open && v->lie->then == DRIP) {
        usleep(5000);
        is_open = put(v->pipe, "", 1);
    }
    while (is_open && v->lie->then == STAY_SILENT) is_open = recv(v->pipe, taken, sizeof taken, 0) > 0;
    close(v->pipe);
    free(v);
    return NULL;
}

static void *listen_main(void *context) {
    raw_server *s = context;
    for (int pipe; (pipe = accept(s->listener, NULL, NULL)) >= 0;) {
        pthread_t thread;
        visit *v = malloc(sizeof *v);
        if (!v) abort();
        *v = (visit){pipe, s->lie, s->is_ipc};
        if (pthread_create(&thread, NULL, visit_main, v) != 0) abort();
        pthread_detach(thread);
    }
    return NULL;
}

static void raw_server_start(raw_server *s, const lie *of, bool is_ipc, char address[128]) {
    *s = (raw_server){.lie = of, .is_ipc = is_ipc};
    s->listener = socket(is_ipc ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->listener >= 0);
    if (is_ipc) {
        struct sockaddr_un where = {.sun_family = AF_UNIX};
        snprintf(where.sun_path, sizeof where.sun_path, "/tmp/ckks-hostile-%d.sock", (int)getpid());
        (void)unlink(where.sun_path);
        assert_int_equal(bind(s->listener, (struct sockaddr *)&where, sizeof where), 0);
        snprintf(address, 128, "ipc://%s", where.sun_path);
    } else {
        struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof where;
        assert_int_equal(bind(s->listener, (struct sockaddr *)&where, sizeof where), 0);
        assert_int_equal(getsockname(s->listener, (struct sockaddr *)&where, &size), 0);
        snprintf(address, 128, "tcp://127.0.0.1:%u", ntohs(where.sin_port));
    }
    assert_int_equal(listen(s->listener, 64), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, listen_main, s), 0);
}

static void raw_server_stop(raw_server *s, const char *address) {
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
    if (s->is_ipc) (void)unlink(address + strlen("ipc://"));
}

/* ---- what must hold ---- */

static long resident_kib(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss;
}

static void each_lie_ends_in_an_error(bool is_ipc) {
    const long before = resident_kib();
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (lies[i].has_own_type && !is_ipc) continue;
        raw_server server;
        char address[128];
        rpc_connection *c = NULL;
        ckks_error err = {0};
        raw_server_start(&server, &lies[i], is_ipc, address);
        const rpc_config config = {.address = address, .token = "id.secret", .connect_ms = CONNECT_MS};
        const uint64_t begin_ns = rpc_now_ns();
        const ckks_status rc = rpc_connect(&c, &config, &err);
        const double seconds = (double)(rpc_now_ns() - begin_ns) * 1e-9; /* closing included */
        raw_server_stop(&server, address);
        printf("  %-44s %.2f s: %s: %s\n", lies[i].what, seconds, ckks_status_name(rc), err.message);
        assert_null(c);
        assert_true(rc == CKKS_UNAVAILABLE || rc == CKKS_UNTRUSTED_SERVER);
        assert_false(rpc_error_is_from_server(&err));
        assert_true(err.message[0]);
    }
    const long grown = resident_kib() - before;
    print_message("  %ld KiB more in use at the most\n", grown);
    assert_true(grown < 64 << 10 || IS_SANITIZED); /* a sanitizer keeps what is freed, as much as came */
}

static void whatever_comes_from_a_local_address_ends_in_an_error(void **state) {
    (void)state;
    each_lie_ends_in_an_error(true);
}
static void whatever_comes_from_the_network_ends_in_an_error(void **state) {
    (void)state;
    each_lie_ends_in_an_error(false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_comes_from_a_local_address_ends_in_an_error),
        cmocka_unit_test(whatever_comes_from_the_network_ends_in_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
