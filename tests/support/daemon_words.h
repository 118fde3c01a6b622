/*
 * The small vocabulary of the tests that talk to a running daemon: one daemon, two tenants of the tiny model.
 * Included by one test file each; every test starts its own daemon.
 */
#ifndef CKKS_TESTS_DAEMON_WORDS_H
#define CKKS_TESTS_DAEMON_WORDS_H

#include "tests/support/tiny_client.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static daemon_fixture d;
static tiny_client alice, bob;
static const double x[TINY_SLOTS] = {1.0, 2.0, -1.0, 0.5};
static char models[96];

static inline int setup(void **state) {
    (void)state;
    daemon_prepare(&d);
    snprintf(models, sizeof models, "%s/models", d.folder);
    tiny_package_install(models, "tiny", "1", 0);
    tiny_client_init(&alice, &d, d.alice);
    tiny_client_init(&bob, &d, d.bob);
    return 0;
}
static inline int teardown(void **state) {
    (void)state;
    tiny_client_fini(&alice);
    tiny_client_fini(&bob);
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
