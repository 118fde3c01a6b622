/* Duplicates, deadlines, cancelling and full queues, against a running daemon. */
#include "daemon/keys.h"
#include "kernels/base/bytes.h"
#include "tests/support/daemon_words.h"

static void a_retry_gets_the_same_reply_without_a_second_evaluation(void **state) {
    (void)state;
    daemon_reply a, b;
    static const uint8_t id[16] = {1, 2, 3};
    start_with_keys(NULL, NULL, NULL);
    tiny_client_encrypt(&alice, x);
    daemon_call call = tiny_client_call(&alice);
    call.request_id = id;
    assert_int_equal(daemon_do(&d, &call, &a), 0);
    call.timeout_ms = 12345; /* a retry may have another time-out left */
    assert_int_equal(daemon_do(&d, &call, &b), 0);
    assert_int_equal(nng_msg_len(a.message), nng_msg_len(b.message));
    assert_memory_equal(nng_msg_body(a.message), nng_msg_body(b.message), nng_msg_len(a.message));
    settle();
    assert_int_equal(evaluations(), 1);
    daemon_reply_fini(&a);
    daemon_reply_fini(&b);
    char reason[32];
    assert_int_equal(end(begin(&alice, id, 0), reason),
                     RPC_ALREADY_EXISTS); /* fresh encryption: another body */
    assert_string_equal(reason, "REQUEST_ID_REUSED");
}

static void a_retry_joins_the_request_that_runs(void **state) {
    (void)state;
    static const uint8_t id[16] = {4};
    start_with_keys(NULL, gate_shut(), NULL);
    tiny_client_encrypt(&alice, x);
    daemon_call call = tiny_client_call(&alice);
    call.request_id = id;
    nng_socket a = daemon_dial(&d, DAEMON_BULK), b = daemon_dial(&d, DAEMON_BULK);
    daemon_send(a, daemon_frame(&call));
    gate_wait();
    daemon_send(b, daemon_frame(&call));
    metric_wait("ckksd_dedupe_joined_total", 1);
    assert_true(daemon_logged(&d, "event=request_joined"));
    assert_false(daemon_logged(&d, "method=Inference/ModelInfer tenant=acme code=OK")); /* nothing is yet */
    gate_open(1);
    assert_int_equal(end(a, NULL), 0);
    assert_int_equal(end(b, NULL), 0);
    settle();
    assert_int_equal(evaluations(), 1);
}

/* Its digest is not made yet when the second comes. */
static void another_body_under_the_id_of_a_request_that_runs_is_refused(void **state) {
    (void)state;
    static const uint8_t id[16] = {11};
    char reason[32];
    start_with_keys("[slots]\nspin_us = 300\n", gate_shut(), NULL);
    nng_socket running = begin(&alice, id, 0);
    daemon_call same = tiny_client_call(&alice);
    same.request_id = id;
    gate_wait();
    nng_socket retry = daemon_dial(&d, DAEMON_BULK);
    daemon_send(retry, daemon_frame(&same));
    assert_int_equal(end(begin(&alice, id, 0), reason), RPC_ALREADY_EXISTS); /* encrypted afresh */
    assert_string_equal(reason, "REQUEST_ID_REUSED");
    metric_wait("ckksd_dedupe_joined_total", 1);
    gate_open(1);
    assert_int_equal(end(running, NULL), 0);
    assert_int_equal(end(retry, NULL), 0);
    settle();
    assert_int_equal(evaluations(), 1);
}

/* It is evaluated all the same: a retry gets what came out, and it counts as the failure that was answered.
 */
static void a_deadline_during_the_evaluation_is_answered_once_and_the_slot_serves_on(void **state) {
    (void)state;
    static uint8_t id[16] = {12};
    static const char ok[] = "ckksd_inferences_total{model=\"tiny\",version=\"1\",code=\"OK\"}",
                      late[] =
                          "ckksd_inferences_total{model=\"tiny\",version=\"1\",code=\"DEADLINE_EXCEEDED\"}";
    char reason[32];
    uint32_t tries = 0, timeout_ms = 60;
    start_with_keys("[slots]\nspin_us = 300\n", gate_shut(), NULL);
    do { /* on a busy machine the deadline may pass before it has its turn: then with a longer one */
        assert_in_range(++tries, 1, 5);
        id[1]++;
        assert_int_equal(end(begin(&alice, id, timeout_ms), reason), RPC_DEADLINE_EXCEEDED);
        assert_string_equal(reason, "DEADLINE");
        timeout_ms *= 4;
    } while (metric("ckksd_slots{state=\"busy\"}") == 0);
    gate_wait(); /* a slot has it, so it comes to the gate */
    daemon_call again = tiny_client_call(&alice);
    again.request_id = id;
    gate_open(1);
    settle();
    nng_socket retry = daemon_dial(&d, DAEMON_BULK);
    daemon_send(retry, daemon_frame(&again));
    assert_int_equal(end(retry, NULL), 0);
    assert_int_equal(metric("ckksd_dedupe_replayed_total"), 1);
    assert_int_equal(metric(late), tries);
    assert_true(metric(ok) <= 0);
    assert_int_equal(evaluations(), 0);
    gate_open(1);
    assert_int_equal(end(begin(&alice, NULL, 0), NULL), 0);
    metric_wait(ok, 1);
    assert_int_equal(metric(late), tries);
}

static void a_retry_on_a_new_connection_finds_the_queued_request(void **state) {
    (void)state;
    static const uint8_t first[16] = {5}, second[16] = {6};
    start_with_keys("[queue]\norphan_grace_ms = 600000\n", gate_shut(), NULL);
    nng_socket running = begin(&alice, first, 0);
    gate_wait();
    nng_socket lost = begin(&alice, second, 0);
    daemon_call call = tiny_client_call(&alice);
    call.request_id = second;
    metric_wait("ckksd_queue_depth", 1);
    nng_close(lost); /* the connection goes while the request is queued */
    metric_wait("ckksd_connections", 1);
    nng_socket again = daemon_dial(&d, DAEMON_BULK);
    daemon_send(again, daemon_frame(&call));
    metric_wait("ckksd_dedupe_joined_total", 1);
    gate_open(2);
    assert_int_equal(end(running, NULL), 0);
    assert_int_equal(end(again, NULL), 0);
    settle();
    assert_int_equal(evaluations(), 2);
}

static void orphaned_work_leaves_the_queue(void **state) {
    (void)state;
    static const uint8_t first[16] = {7}, second[16] = {8};
    start_with_keys("[queue]\norphan_grace_ms = 50\n", gate_shut(), NULL);
    nng_socket running = begin(&alice, first, 0);
    gate_wait();
    nng_socket lost = begin(&alice, second, 0);
    metric_wait("ckksd_queue_depth", 1);
    nng_close(lost);
    metric_wait("ckksd_queue_depth", 0); /* while the first still runs */
    gate_open(2);
    assert_int_equal(end(running, NULL), 0);
    settle();
    assert_false(gate_has_one(0));
    assert_int_equal(evaluations(), 1);
}

static void a_passed_deadline_is_answered_in_time(void **state) {
    (void)state;
    char reason[32];
    start_with_keys(NULL, gate_shut(), NULL);
    nng_socket running = begin(&alice, NULL, 0);
    gate_wait();
    nng_socket waiting = begin(&alice, NULL, 100);
    assert_int_equal(end(waiting, reason), RPC_DEADLINE_EXCEEDED);
    assert_string_equal(reason, "DEADLINE");
    assert_int_equal(evaluations(), 0); /* answered while the first still runs */
    gate_open(1);
    assert_int_equal(end(running, NULL), 0);
}

static void a_queued_request_can_be_cancelled_by_its_tenant_only(void **state) {
    (void)state;
    static uint8_t first[16] = {9}, second[16] = {10};
    daemon_reply r;
    Ckksd__V1__CancelRequest cancel = CKKSD__V1__CANCEL_REQUEST__INIT;
    start_with_keys(NULL, gate_shut(), NULL);
    nng_socket running = begin(&alice, first, 0);
    gate_wait();
    nng_socket waiting = begin(&alice, second, 0);
    metric_wait("ckksd_queue_depth", 1);
    cancel.has_request_id = true, cancel.request_id = (ProtobufCBinaryData){16, second};
    daemon_call c = {.socket = DAEMON_CONTROL,
                     .method = "Inference/Cancel",
                     .token = d.bob,
                     .input = &cancel.base,
                     .output = &ckksd__v1__cancel_reply__descriptor};
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    assert_false(((Ckksd__V1__CancelReply *)r.payload)->found);
    daemon_reply_fini(&r);
    c.token = d.alice;
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    assert_true(((Ckksd__V1__CancelReply *)r.payload)->found);
    assert_true(((Ckksd__V1__CancelReply *)r.payload)->removed);
    daemon_reply_fini(&r);
    assert_int_equal(end(waiting, NULL), RPC_CANCELLED);
    gate_open(2);
    assert_int_equal(end(running, NULL), 0);
    settle();
    assert_false(gate_has_one(0));
}

static void a_full_queue_is_refused_at_once_with_a_hint(void **state) {
    (void)state;
    daemon_reply r;
    start_with_keys("[queue]\nrequests_max = 2\n", gate_shut(), NULL);
    nng_socket a = begin(&alice, NULL, 0);
    gate_wait();
    nng_socket b = begin(&alice, NULL, 0);
    metric_wait("ckksd_queue_depth", 1);
    nng_socket c = begin(&alice, NULL, 0);
    assert_true(daemon_receive(c, &r, NULL));
    assert_int_equal(r.header->status->code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(r.header->status->reason, "QUEUE_FULL");
    assert_true(r.header->status->retry_after_ms > 0);
    daemon_reply_fini(&r);
    nng_close(c);
    gate_open(2);
    assert_int_equal(end(a, NULL), 0);
    assert_int_equal(end(b, NULL), 0);
}

static nng_socket ask_status(tiny_client *c) {
    Ckksd__V1__KeyStatusRequest input = CKKSD__V1__KEY_STATUS_REQUEST__INIT;
    const daemon_call call = {
        .socket = DAEMON_CONTROL, .method = "Keys/KeyStatus", .token = c->token, .input = &input.base};
    input.has_key_set = true, input.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, c->keys.id};
    nng_socket s = daemon_dial(&d, DAEMON_CONTROL);
    daemon_send(s, daemon_frame(&call));
    return s;
}

/* The key store is at work for the daemon itself; then alice asks it for more than she may. */
static void a_tenants_calls_of_the_key_store_leave_room_for_others(void **state) {
    (void)state;
    enum { ASKED = KEYS_TENANT_JOBS_MAX + 1 };
    nng_socket asked[ASKED];
    int refused = -1;
    nng_msg *reply = NULL;
    daemon_start(&d, NULL, gate_shut(), "CKKSD_TEST_GATE_KEYS=1");
    gate_wait();
    for (int i = 0; i < ASKED; i++) asked[i] = ask_status(&alice);
    for (int ms = 0; ms < EVENT_MS && refused < 0; ms++) {
        for (int i = 0; i < ASKED && refused < 0; i++)
            if (nng_recvmsg(asked[i], &reply, NNG_FLAG_NONBLOCK) == 0) refused = i;
        usleep(1000);
    }
    assert_true(refused >= 0);
    nng_msg_free(reply);
    nng_close(asked[refused]);
    assert_true(daemon_logged(&d, "error=CKKS_QUEUE_FULL"));
    assert_int_equal(control_code("Health/Check", NULL, NULL), 0);
    nng_socket other = ask_status(&bob);
    for (int i = 0; i < 3; i++) { /* the daemon's, one of alice's, bob's */
        gate_open(1);
        if (i < 2) gate_wait();
    }
    assert_int_equal(end(other, NULL), 0);
    gate_open(KEYS_TENANT_JOBS_MAX - 1);
    for (int i = 0; i < ASKED; i++)
        if (i != refused) assert_int_equal(end(asked[i], NULL), 0);
}

/* A load stops at a payload that is a pipe, until somebody opens it to write: that fails the load. */
static void hold_load(const tiny_client *c, char path[160]) {
    char hex[2 * KEY_SET_ID_BYTES + 1];
    snprintf(path, 160, "%s/data/payload/%s", d.folder, hex_encode(hex, c->keys.id, KEY_SET_ID_BYTES));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
}
static void let_load_go(const char *path) {
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    close(fd);
}

static void key_sets_wait_for_their_load_and_tenants_take_turns(void **state) {
    (void)state;
    static const uint8_t id[16] = "taken back";
    Ckksd__V1__CancelRequest cancel = CKKSD__V1__CANCEL_REQUEST__INIT;
    tiny_client slow[3]; /* alice's: two that are loaded, and one behind them */
    char path[3][160];
    nng_socket waiting[3];
    cancel.has_request_id = true;
    cancel.request_id = (ProtobufCBinaryData){sizeof id, (uint8_t *)(uintptr_t)id};
    start_with_keys(NULL, NULL, NULL);
    tiny_client_register(&bob);
    for (int i = 0; i < 3; i++) {
        tiny_client_init(&slow[i], &d, d.alice);
        tiny_client_register(&slow[i]);
        hold_load(&slow[i], path[i]);
        waiting[i] = begin(&slow[i], NULL, 0);
        metric_wait("ckksd_queue_depth", i + 1);
    }
    nng_socket gone = begin(&alice, id, 0), other = begin(&bob, NULL, 0);
    metric_wait("ckksd_queue_depth", 5);
    assert_int_equal(control_code("Inference/Cancel", d.alice, &cancel.base), 0);
    assert_int_equal(end(gone, NULL), RPC_CANCELLED); /* nobody waits for its set any more */
    let_load_go(path[0]);
    assert_int_equal(end(other, NULL), 0); /* before the third of hers */
    let_load_go(path[1]);
    let_load_go(path[2]);
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(end(waiting[i], NULL), 0);
        tiny_client_fini(&slow[i]);
    }
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_retry_gets_the_same_reply_without_a_second_evaluation),
        T(a_retry_joins_the_request_that_runs),
        T(another_body_under_the_id_of_a_request_that_runs_is_refused),
        T(a_deadline_during_the_evaluation_is_answered_once_and_the_slot_serves_on),
        T(a_retry_on_a_new_connection_finds_the_queued_request),
        T(orphaned_work_leaves_the_queue),
        T(a_passed_deadline_is_answered_in_time),
        T(a_queued_request_can_be_cancelled_by_its_tenant_only),
        T(a_tenants_calls_of_the_key_store_leave_room_for_others),
        T(key_sets_wait_for_their_load_and_tenants_take_turns),
        T(a_full_queue_is_refused_at_once_with_a_hint),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
