/* Slots that leave service and models that no slot serves: who is told, and how they come back. */
#include "tests/support/daemon_words.h"

/* As gate_shut, for slots that are brought back too. */
static const char *gate_shut_for_recovery(const char *failing_replay) {
    setenv("CKKSD_TEST_GATE_RECOVERY", "1", 1);
    setenv("CKKSD_TEST_FAIL_REPLAY", failing_replay, 1);
    return gate_shut();
}
static void started(void) {
    unsetenv("CKKSD_TEST_GATE_RECOVERY");
    unsetenv("CKKSD_TEST_FAIL_REPLAY");
}

static int health_of(const char *service) {
    daemon_reply r;
    Ckksd__V1__HealthCheckRequest input = CKKSD__V1__HEALTH_CHECK_REQUEST__INIT;
    input.service = (char *)(uintptr_t)service;
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Health/Check",
                           .input = &input.base,
                           .output = &ckksd__v1__health_check_reply__descriptor};
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const int status = (int)((const Ckksd__V1__HealthCheckReply *)r.payload)->status;
    daemon_reply_fini(&r);
    return status;
}

static char page[1 << 14];

static void without_a_slot_in_service_nobody_is_told_ready_until_one_comes_back(void **state) {
    (void)state;
    start_with_keys(NULL, gate_shut_for_recovery("1"), NULL);
    started();
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "\r\n\r\nok\n"));
    assert_true(metric("ckksd_slot_out_of_service_seconds{slot=\"0\"}") == 0);
    nng_socket a = begin(&alice, NULL, 0);
    gate_wait();
    gate_open(1);
    assert_int_equal(end(a, NULL), RPC_UNAVAILABLE);
    gate_wait(); /* there it stays for now */
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 503);
    assert_non_null(strstr(page, "no slot is in service\nslot 0: quarantined for "));
    assert_non_null(strstr(page, "injected"));
    assert_non_null(strstr(page, "model tiny/1: READY, on no slot\n"));
    assert_int_equal(daemon_http(&d, "/livez", page, sizeof page), 200);
    assert_int_equal(server_ready(), 0);
    assert_int_equal(health_of(""), CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__NOT_SERVING);
    assert_int_equal(health_of("tiny/1"), CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__NOT_SERVING);
    assert_true(metric("ckksd_ready") == 0);
    assert_true(metric("ckksd_slot_out_of_service_seconds{slot=\"0\"}") >= 0);
    assert_true(metric("ckksd_model_ready{model=\"tiny\",version=\"1\"}") == 0);
    assert_true(daemon_hear(&d, "STATUS=not ready: no slot is in service (1 of 1 quarantined)", EVENT_MS));
    assert_true(daemon_logged(&d, "event=not_ready"));
    daemon_forget(&d);
    a = begin(&alice, NULL, 0); /* who asks meanwhile waits for the slot */
    metric_wait("ckksd_queue_depth", 1);
    gate_open(1);
    gate_wait();
    gate_open(1);
    assert_int_equal(end(a, NULL), 0);
    assert_true(daemon_hear(&d, "STATUS=ready: 1 of 1 models, 1 slots", EVENT_MS));
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "\r\n\r\nok\n"));
    assert_null(strstr(page, "slot 0"));
    assert_int_equal(server_ready(), 1);
    assert_int_equal(health_of("tiny/1"), CKKSD__V1__HEALTH_CHECK_REPLY__SERVING_STATUS__SERVING);
    metric_wait("ckksd_ready", 1);
    metric_wait("ckksd_model_ready{model=\"tiny\",version=\"1\"}", 1);
    assert_true(daemon_logged(&d, "event=ready_again"));
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_slot_that_is_out_of_service_is_named_while_others_serve(void **state) {
    (void)state;
    start_with_keys("[slots]\ncount = 2\n", gate_shut_for_recovery("1"), NULL);
    started();
    metric_wait("ckksd_model_slots{model=\"tiny\",version=\"1\"}", 2);
    nng_socket a = begin(&alice, NULL, 0);
    gate_wait();
    gate_open(1);
    gate_wait(); /* the retry and the recovery, in some order */
    gate_wait();
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "\r\n\r\nok\nslot 0: quarantined for "));
    assert_null(strstr(page, "model tiny"));
    assert_int_equal(server_ready(), 1);
    metric_wait("ckksd_model_slots{model=\"tiny\",version=\"1\"}", 1);
    gate_open(2);
    assert_int_equal(end(a, NULL), 0);
    metric_wait("ckksd_model_slots{model=\"tiny\",version=\"1\"}", 2);
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_model_that_no_slot_serves_is_named_with_its_cause(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = tiny_package_build_wrong(&size, "wrong");
    tiny_package_install_image(models, "wrong", "1", image, size);
    free(image);
    daemon_start(&d, NULL, NULL, NULL);
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "\r\n\r\nok\nmodel wrong/1: UNAVAILABLE, on no slot: "));
    assert_null(strstr(page, "model tiny"));
    assert_true(metric("ckksd_model_ready{model=\"wrong\",version=\"1\"}") == 0);
    assert_true(metric("ckksd_model_ready{model=\"tiny\",version=\"1\"}") == 1);
    /* what was taken out of service on purpose is not missed */
    Ckksd__V1__ModelRequest m = CKKSD__V1__MODEL_REQUEST__INIT;
    m.name = "tiny", m.version = "1";
    assert_int_equal(admin("Admin/ModelUnload", &m.base), 0);
    log_wait("event=model_retired model=tiny");
    metric_wait("ckksd_model_ready{model=\"tiny\",version=\"1\"}", -1);
    assert_int_equal(daemon_stop(&d), 0);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(without_a_slot_in_service_nobody_is_told_ready_until_one_comes_back),
        T(a_slot_that_is_out_of_service_is_named_while_others_serve),
        T(a_model_that_no_slot_serves_is_named_with_its_cause),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
