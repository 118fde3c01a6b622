/*
 * The small vocabulary of the tests that talk to a running daemon: one daemon, two tenants of the tiny model.
 * Included by one test file each; every test starts its own daemon.
 */
#ifndef CKKS_TESTS_DAEMON_WORDS_H
#define CKKS_TESTS_DAEMON_WORDS_H

#include "tests/support/tiny_client.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static daemon_fixture d;
static tiny_client alice, bob;
static const double x[TINY_SLOTS] = {1.0, 2.0, -1.0, 0.5};
static char models[96];

/* A gate in front of every evaluation. */
static struct {
    int arrived, go;
    char environment[128];
} gate;

static inline int setup(void **state) {
    (void)state;
    daemon_prepare(&d);
    snprintf(models, sizeof models, "%s/models", d.folder);
    tiny_package_install(models, "tiny", "1", 0);
    tiny_client_init(&alice, &d, d.alice);
    tiny_client_init(&bob, &d, d.bob);
    gate.arrived = gate.go = -1;
    return 0;
}
static inline int teardown(void **state) {
    (void)state;
    tiny_client_fini(&alice);
    tiny_client_fini(&bob);
    if (gate.go >= 0) close(gate.arrived), close(gate.go);
    daemon_clean(&d);
    return 0;
}

static inline int control(const char *method, const char *token, const ProtobufCMessage *input,
                          daemon_reply *r) {
    const daemon_call c = {.socket = DAEMON_CONTROL, .method = method, .token = token, .input = input};
    return daemon_do(&d, &c, r);
}
static inline int control_code(const char *method, const char *token, const ProtobufCMessage *input) {
    daemon_reply r;
    const int code = control(method, token, input, &r);
    daemon_reply_fini(&r);
    return code;
}
static inline int admin(const char *method, const ProtobufCMessage *input) {
    daemon_reply r;
    const daemon_call c = {.socket = DAEMON_ADMIN, .method = method, .input = input};
    const int code = daemon_do(&d, &c, &r);
    daemon_reply_fini(&r);
    return code;
}
static inline int server_ready(void) {
    daemon_reply r;
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Inference/ServerReady",
                           .output = &ckksd__v1__server_ready_reply__descriptor};
    const int code = daemon_do(&d, &c, &r);
    const int ready = code == 0 ? ((Ckksd__V1__ServerReadyReply *)r.payload)->ready : -1;
    daemon_reply_fini(&r);
    return ready;
}
static inline uint64_t evaluations(void) {
    daemon_reply r;
    Ckksd__V1__ModelRequest input = CKKSD__V1__MODEL_REQUEST__INIT;
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Inference/ModelStatistics",
                           .token = d.alice,
                           .input = &input.base,
                           .output = &ckksd__v1__model_statistics_reply__descriptor};
    uint64_t count = 0;
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__ModelStatisticsReply *reply = (const Ckksd__V1__ModelStatisticsReply *)r.payload;
    for (size_t i = 0; i < reply->n_models; i++) count += reply->models[i]->replay->count;
    daemon_reply_fini(&r);
    return count;
}
static inline void start_with_keys(const char *extra, const char *environment, const char *environment2) {
    daemon_start(&d, extra, environment, environment2);
    tiny_client_register(&alice);
}

/* ---- what happens, instead of how long it may take ---- */

#define EVENT_MS 60000

static inline int gate_part(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", d.folder, name);
    assert_int_equal(mkfifo(path, 0600), 0);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}
/* The daemon's environment: evaluations stop at the gate. */
static inline const char *gate_shut(void) {
    gate.arrived = gate_part("arrived"), gate.go = gate_part("go");
    snprintf(gate.environment, sizeof gate.environment, "CKKSD_TEST_GATE=%s", d.folder);
    return gate.environment;
}
/* Waits until one more stands at the gate: it runs on a slot. */
static inline bool gate_has_one(int timeout_ms) {
    struct pollfd wait = {.fd = gate.arrived, .events = POLLIN};
    char byte;
    return poll(&wait, 1, timeout_ms) == 1 && read(gate.arrived, &byte, 1) == 1;
}
static inline void gate_wait(void) {
    if (!gate_has_one(EVENT_MS)) fail_msg("nobody came to the gate");
}
static inline void gate_open(size_t count) {
    assert_int_equal(write(gate.go, "gggggggggggggggg", count), (ssize_t)count);
}

/* A number of the metrics page, by the text in front of it; -1: it is not there. */
static inline double metric(const char *name) {
    static char page[1 << 17];
    char line[160];
    assert_int_equal(daemon_http(&d, "/metrics", page, sizeof page), 200);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(page, line);
    return at ? strtod(at + strlen(line), NULL) : -1;
}
static inline void metric_wait(const char *name, double value) {
    double last = -1;
    for (int i = 0; i < EVENT_MS / 5 && (last = metric(name)) != value; i++) usleep(5000);
    if (last != value) fail_msg("%s is %g, not %g", name, last, value);
}
/* Until nothing runs: a slot answers before its request is put away and counted. */
static inline void settle(void) {
    metric_wait("ckksd_slots{state=\"busy\"}", 0);
}
static inline void log_wait(const char *line) {
    for (int i = 0; i < EVENT_MS / 5 && !daemon_logged(&d, line); i++) usleep(5000);
    if (!daemon_logged(&d, line)) fail_msg("the log lacks %s", line);
}

/* begins a request and does not wait */
static inline nng_socket begin(tiny_client *c, const uint8_t *id, uint32_t timeout_ms) {
    tiny_client_encrypt(c, x);
    daemon_call call = tiny_client_call(c);
    call.request_id = id, call.timeout_ms = timeout_ms;
    nng_socket s = daemon_dial(&d, DAEMON_BULK);
    daemon_send(s, daemon_frame(&call));
    return s;
}
static inline int end(nng_socket s, char reason[32]) {
    daemon_reply r;
    const bool is_there = daemon_receive(s, &r, NULL);
    const int code = is_there ? (int)r.header->status->code : -1;
    if (reason)
        snprintf(reason, 32, "%s", is_there && r.header->status->reason ? r.header->status->reason : "");
    daemon_reply_fini(&r);
    nng_close(s);
    return code;
}

#endif
