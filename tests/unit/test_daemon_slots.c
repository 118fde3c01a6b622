/* Slots that leave service and models that no slot serves: who is told, and how they come back. And peers
 * that come without a token. */
#include "tests/support/daemon_words.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>

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

static void start_with_wrong_model(void) {
    size_t size;
    uint8_t *image = tiny_package_build_wrong(&size, "wrong");
    tiny_package_install_image(models, "wrong", "1", image, size);
    free(image);
    daemon_start(&d, NULL, NULL, NULL);
}

static void a_model_that_no_slot_serves_is_named_with_its_cause(void **state) {
    (void)state;
    start_with_wrong_model();
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

static void infer_from(const char *version, uint32_t variant) {
    double y[TINY_SLOTS], expected[TINY_SLOTS];
    daemon_reply r;
    tiny_client_encrypt(&alice, x);
    alice.request.version = (char *)(uintptr_t)version;
    const daemon_call call = tiny_client_call(&alice);
    assert_int_equal(daemon_do(&d, &call, &r), 0);
    tiny_client_decrypt(&alice, y, &r);
    tiny_package_expect(expected, x, variant);
    for (uint32_t i = 0; i < TINY_SLOTS; i++) assert_float_equal(y[i], expected[i], 1e-4);
    daemon_reply_fini(&r);
}

/* The first fails, and its slot is brought back after it has captured the second, too. */
static void models_that_a_device_error_kept_from_starting_start_by_themselves(void **state) {
    (void)state;
    tiny_package_install(models, "tiny", "2", 1);
    daemon_start(&d, NULL, "CKKSD_TEST_FAIL_CAPTURES=1", NULL);
    assert_true(daemon_logged(&d, "event=ready models=1 models_unavailable=1"));
    log_wait("event=model_ready model=tiny version=1");
    assert_true(daemon_logged(&d, "event=model_unavailable model=tiny version=1 error=CKKS_DEVICE_ERROR"));
    assert_true(daemon_logged(&d, "event=model_retry model=tiny version=1 retry=1 of=6 in_ms=10\n"));
    tiny_client_register(&alice);
    infer_from("1", 0);
    infer_from("2", 1);
    metric_wait("ckksd_model_retries_total{model=\"tiny\",version=\"1\"}", 1);
    assert_true(metric("ckksd_model_retries_total{model=\"tiny\",version=\"2\"}") == 0);
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_model_is_given_up_after_some_tries_and_an_operator_can_load_it(void **state) {
    (void)state;
    daemon_reply r;
    Ckksd__V1__ModelRequest m = CKKSD__V1__MODEL_REQUEST__INIT;
    const daemon_call c = {.socket = DAEMON_CONTROL,
                           .method = "Inference/ServerReady",
                           .output = &ckksd__v1__server_ready_reply__descriptor};
    daemon_start(&d, NULL, "CKKSD_TEST_FAIL_CAPTURES=7", NULL);
    log_wait("event=model_given_up model=tiny version=1 retries=6");
    assert_true(daemon_logged(&d, "retry=2 of=6 in_ms=20\n"));
    assert_true(daemon_logged(&d, "retry=6 of=6 in_ms=320\n"));
    assert_false(daemon_logged(&d, "retry=7"));
    metric_wait("ckksd_model_retries_total{model=\"tiny\",version=\"1\"}", 6);
    metric_wait("ckksd_ready", 1); /* once the slot is back */
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "model tiny/1: UNAVAILABLE, on no slot: "));
    assert_null(strstr(page, "; retry"));
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__ServerReadyReply *reply = (const Ckksd__V1__ServerReadyReply *)r.payload;
    assert_true(reply->ready);
    assert_int_equal(reply->service->slots_in_service, 1);
    assert_int_equal(reply->service->n_troubles, 1);
    assert_string_equal(reply->service->troubles[0]->model, "tiny/1");
    assert_string_equal(reply->service->troubles[0]->state, "UNAVAILABLE");
    assert_string_equal(reply->service->troubles[0]->cause, "CKKS_DEVICE_ERROR");
    assert_false(reply->service->troubles[0]->has_retry);
    daemon_reply_fini(&r);
    m.name = "tiny", m.version = "1";
    int code = RPC_UNAVAILABLE;
    for (int i = 0; i < EVENT_MS / 5 && (code = admin("Admin/ModelLoad", &m.base)) == RPC_UNAVAILABLE; i++)
        usleep(5000); /* its last load is being undone */
    assert_int_equal(code, 0);
    log_wait("event=model_ready model=tiny version=1");
    tiny_client_register(&alice);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(daemon_stop(&d), 0);
}

/* It had brought back the first of two when the second failed it. */
static void a_lost_slot_keeps_no_model_from_going(void **state) {
    (void)state;
    Ckksd__V1__ModelRequest m = CKKSD__V1__MODEL_REQUEST__INIT;
    tiny_package_install(models, "tiny", "2", 1);
    start_with_keys("[slots]\ncount = 2\n", "CKKSD_TEST_FAIL_REPLAY=1", "CKKSD_TEST_FAIL_BRING_BACK=1");
    assert_int_equal(tiny_client_infer(&alice, x, 1), 0); /* on the other slot, after the first failed */
    log_wait("event=slot_lost");
    metric_wait("ckksd_slots{state=\"lost\"}", 1);
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_non_null(strstr(page, "ok\nslot 0: lost for "));
    m.name = "tiny", m.version = "1";
    assert_int_equal(admin("Admin/ModelUnload", &m.base), 0);
    log_wait("event=model_retired model=tiny version=1");
    assert_int_equal(tiny_client_infer(&alice, x, 1), 0);
    assert_int_equal(daemon_stop(&d), 0);
}

/* What is wrong with the package is wrong the next time, too. */
static void a_model_whose_package_is_wrong_is_not_tried_again(void **state) {
    (void)state;
    start_with_wrong_model();
    assert_true(daemon_logged(&d, "event=model_unavailable model=wrong"));
    assert_false(daemon_logged(&d, "event=model_retry"));
    assert_int_equal(daemon_stop(&d), 0);
}

/* ---- connections ---- */

/* Of the last start, of this daemon. */
static uint16_t tcp_port(const char *which) {
    static char log[1 << 20];
    char path[128], line[96];
    snprintf(path, sizeof path, "%s/log", d.folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    log[fread(log, 1, sizeof log - 1, file)] = 0;
    fclose(file);
    snprintf(line, sizeof line, "socket=%s address=tcp://127.0.0.1:", which);
    const char *at = strstr(log, line);
    assert_non_null(at);
    return (uint16_t)strtoul(at + strlen(line), NULL, 10);
}
/* Says hello as a REQ socket does, and nothing more; it may be turned away. */
static int stranger(uint16_t port) {
    static const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_in there = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_un here = {.sun_family = AF_UNIX};
    uint8_t theirs[8];
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(here.sun_path, sizeof here.sun_path, "%s/control.sock", d.folder);
    const int fd = socket(port ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    const int rc = port ? connect(fd, (const struct sockaddr *)&there, sizeof there)
                        : connect(fd, (const struct sockaddr *)&here, sizeof here);
    assert_int_equal(rc, 0);
    (void)send(fd, hello, sizeof hello, MSG_NOSIGNAL);
    (void)recv(fd, theirs, sizeof theirs, MSG_WAITALL);
    return fd;
}

static void peers_without_a_token_keep_no_tenant_out(void **state) {
    (void)state;
    enum { STRANGERS = 24 };
    int held[3 * STRANGERS];
    start_with_keys("[listen]\npipes_max = 12\n", NULL, NULL);
    const uint16_t ports[] = {0, tcp_port("control"), tcp_port("bulk")};
    for (int i = 0; i < 3 * STRANGERS;
         i++) { /* some of each, local ones for others and others for local ones */
        held[i] = stranger(ports[i % 3]);
        if (i % STRANGERS == STRANGERS - 1) assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    }
    assert_int_equal(control_code("Keys/KeyList", d.alice, NULL), 0);
    double left = -1, gone = -1; /* a quarter at most is left, once the others are gone */
    for (int i = 0; i < EVENT_MS / 5 && (i == 0 || left > 3 || gone < 3 * STRANGERS - 3); i++) {
        usleep(5000);
        left = metric("ckksd_connections_unauthenticated");
        gone = metric("ckksd_connections_displaced_total") + metric("ckksd_connections_refused_total");
    }
    assert_true(left >= 0 && left <= 3);
    assert_true(gone >= 3 * STRANGERS - 3);
    assert_true(metric("ckksd_connections_expired_total") == 0);
    for (int i = 0; i < 3 * STRANGERS; i++) close(held[i]);
    metric_wait("ckksd_connections_unauthenticated", 0);
    assert_int_equal(daemon_stop(&d), 0);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(without_a_slot_in_service_nobody_is_told_ready_until_one_comes_back),
        T(a_slot_that_is_out_of_service_is_named_while_others_serve),
        T(a_model_that_no_slot_serves_is_named_with_its_cause),
        T(models_that_a_device_error_kept_from_starting_start_by_themselves),
        T(a_model_is_given_up_after_some_tries_and_an_operator_can_load_it),
        T(a_lost_slot_keeps_no_model_from_going),
        T(a_model_whose_package_is_wrong_is_not_tried_again),
        T(peers_without_a_token_keep_no_tenant_out),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
