/* How the daemon starts, survives a device error, drains and comes back. */
#include "kernels/base/bytes.h"
#include "tests/support/daemon_words.h"
#include "tests/support/fixtures.h"

#include <math.h>
#include <nng/protocol/reqrep0/req.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static void ready_is_said_after_the_self_test_and_stopping_at_the_end(void **state) {
    (void)state;
    daemon_start(&d, NULL, NULL, NULL);
    const char *capturing = strstr(d.heard, "capturing models"), *ready = strstr(d.heard, "READY=1");
    assert_non_null(capturing);
    assert_true(capturing < ready);
    assert_non_null(strstr(d.heard, "STATUS=ready: 1 of 1 models"));
    assert_int_equal(server_ready(), 1);
    daemon_signal(&d, SIGTERM);
    assert_true(daemon_hear(&d, "STOPPING=1", EVENT_MS));
    assert_int_equal(daemon_wait(&d), 0);
}

static void a_model_that_fails_its_self_test_is_not_served(void **state) {
    (void)state;
    size_t size;
    uint8_t *image = tiny_package_build_wrong(&size, "wrong");
    tiny_package_install_image(models, "wrong", "1", image, size);
    image[size / 2] ^= 1; /* and one that is damaged */
    tiny_package_install_image(models, "damaged", "1", image, size);
    free(image);
    start_with_keys(NULL, NULL, NULL);
    assert_non_null(strstr(d.heard, "STATUS=ready: 1 of 3 models"));
    assert_true(
        daemon_logged(&d, "event=model_unavailable model=wrong version=1 error=CKKS_DIGEST_MISMATCH"));
    assert_true(daemon_logged(&d, "event=model_unavailable model=damaged"));
    tiny_client_encrypt(&alice, x);
    alice.request.model = "wrong";
    daemon_reply r;
    daemon_call call = tiny_client_call(&alice);
    call.output = NULL;
    assert_int_equal(daemon_do(&d, &call, &r), RPC_UNAVAILABLE);
    daemon_reply_fini(&r);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

/* The weights fit, many slots do not; and then not even the weights. Nothing is captured, and the numbers are
 * said. */
static void a_model_larger_than_the_budget_is_refused_with_the_numbers(void **state) {
    (void)state;
    daemon_start(&d, "[slots]\ncount = 64\n[device]\nmemory_bytes = 3M\n", NULL, NULL);
    assert_non_null(strstr(d.heard, "STATUS=ready: 0 of 1 models"));
    assert_true(
        daemon_logged(&d, "event=model_unavailable model=tiny version=1 error=CKKS_RESOURCE_EXHAUSTED"));
    assert_true(daemon_logged(&d, "64 slots of "));
    assert_true(daemon_logged(&d, "fewer slots (count in [slots]) or more memory_bytes in [device]"));
    assert_false(daemon_logged(&d, "event=captured"));
    assert_int_equal(daemon_stop(&d), 0);
    daemon_start(&d, "[device]\nmemory_bytes = 8K\n", NULL, NULL);
    assert_true(daemon_logged(&d, "its weights do not fit on the device: "));
    assert_int_equal(daemon_stop(&d), 0);
}

static void the_watchdog_is_fed_by_progress_and_starves_when_a_slot_hangs(void **state) {
    (void)state;
    char page[4096];
    daemon_start(&d, "[slots]\nstall_timeout_ms = 300\n", "WATCHDOG_USEC=100000", NULL);
    assert_true(daemon_hear(&d, "WATCHDOG=1", EVENT_MS));
    assert_int_equal(daemon_stop(&d), 0);
    daemon_start(&d, "[slots]\nstall_timeout_ms = 300\n", "WATCHDOG_USEC=100000", "CKKSD_TEST_HANG_SLOT=0");
    log_wait("event=slot_stalled slot=0");
    /* A slot that got no processor for so long has stalled too, but comes back: this one never does. */
    int turns = 0;
    do { /* four turns of the timer that feeds it */
        assert_in_range(turns++, 0, 100);
        daemon_forget(&d);
    } while (daemon_hear(&d, "WATCHDOG=1", 200));
    assert_int_equal(daemon_http(&d, "/livez", page, sizeof page), 503);
    assert_non_null(strstr(page, "slot 0 makes no progress"));
    assert_true(daemon_logged(&d, "event=slot_stalled slot=0"));
}

/* Its socket takes a few datagrams (net.unix.max_dgram_qlen) and is not read; the watchdog is fed each ms. */
static void a_service_manager_that_does_not_listen_is_not_waited_for(void **state) {
    (void)state;
    start_with_keys(NULL, "WATCHDOG_USEC=2000", NULL);
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    for (int i = 0; i < 12; i++) { /* each says two things more */
        assert_int_equal(admin("Admin/Reload", &empty.base), 0);
        assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    }
    daemon_signal(&d, SIGTERM);
    assert_int_equal(daemon_wait(&d), 0);
}

static void what_was_not_heard_at_first_is_said_once_there_is_room(void **state) {
    (void)state;
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    start_with_keys(NULL, "WATCHDOG_USEC=2000", NULL);
    daemon_forget(&d);
    usleep(50000); /* full of WATCHDOG=1 */
    for (int i = 0; i < 3; i++) assert_int_equal(admin("Admin/Reload", &empty.base), 0);
    assert_true(daemon_hear(&d, "RELOADING=1", EVENT_MS));
    assert_true(daemon_hear(&d, "STATUS=ready", EVENT_MS));
    assert_int_equal(daemon_stop(&d), 0);
}

/* As when that many clients are there: what the daemon opens has higher numbers than select() takes. */
static void many_open_descriptors_keep_nobody_from_the_operators_page(void **state) {
    (void)state;
    static int held[1100];
    char page[4096];
    struct rlimit before, wide;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    wide = before;
    wide.rlim_cur = before.rlim_max < 2048 ? before.rlim_max : 2048;
    if (wide.rlim_cur < 1500) skip();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &wide), 0);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) held[i] = open("/dev/null", O_RDONLY);
    start_with_keys(NULL, NULL, NULL); /* which inherits them */
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) close(held[i]);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(daemon_http(&d, "/livez", page, sizeof page), 200);
    assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(daemon_stop(&d), 0);
}

static void the_limit_of_descriptors_is_raised_for_the_connections_allowed(void **state) {
    (void)state;
    static int held[400];
    static const uint8_t hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    struct rlimit before, narrow;
    uint8_t theirs[8];
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    if (before.rlim_cur < 600 || before.rlim_max < 1000) skip();
    narrow = before;
    narrow.rlim_cur = 200;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &narrow), 0);
    daemon_start(&d, "[listen]\npipes_max = 500\nunauthenticated_max = 500\n", NULL, NULL);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/control.sock", d.folder);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        held[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(held[i], (const struct sockaddr *)&to, sizeof to), 0);
        assert_int_equal(send(held[i], hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
        if (recv(held[i], theirs, sizeof theirs, MSG_WAITALL) != sizeof theirs) fail_msg("number %zu", i);
    }
    metric_wait("ckksd_connections", 400);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) close(held[i]);
    assert_false(daemon_logged(&d, "event=descriptors"));
    assert_int_equal(daemon_stop(&d), 0);
}

static int check_configuration(const char *kind, uint32_t slots) {
    char command[512], path[128];
    const char *build = getenv("B");
    snprintf(path, sizeof path, "%s/checked.conf", d.folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "[server]\nmodels = %s\ndata = %s/data\ntokens = %s/tokens\n[device]\nkind = %s\n[slots]\ncount "
            "= %u\n",
            models, d.folder, d.folder, kind, slots);
    fclose(file);
    snprintf(command, sizeof command, "%s/tests/ckksd-fault --check-config --config %s >%s/said 2>&1",
             build ? build : "build/gcc", path, d.folder);
    const int rc = system(command); /* NOLINT(cert-env33-c) */
    return WIFEXITED(rc) ? WEXITSTATUS(rc) : -1;
}

static bool was_said(const char *what) {
    static char text[1 << 16], path[128];
    snprintf(path, sizeof path, "%s/said", d.folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    return strstr(text, what) != NULL;
}

/* Of another daemon that shares nothing but the operators' port with this one. */
static void an_operators_port_that_is_taken_is_refused_by_name(void **state) {
    (void)state;
    char page[4096], command[512], path[128], expected[160];
    const char *build = getenv("B");
    daemon_start(&d, NULL, NULL, NULL);
    const uint32_t port = daemon_ops_port(&d);
    snprintf(path, sizeof path, "%s/other.conf", d.folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file,
            "[server]\nmodels = %s\ndata = %s/other\ntokens = %s/tokens\n[listen]\ncontrol = "
            "ipc://%s/control2\nbulk = ipc://%s/bulk2\n[ops]\nlisten = 127.0.0.1:%u\n",
            models, d.folder, d.folder, d.folder, d.folder, port);
    fclose(file);
    snprintf(command, sizeof command,
             "mkdir %s/other && timeout 60 %s/tests/ckksd-fault --config %s >%s/said 2>&1", d.folder,
             build ? build : "build/gcc", path, d.folder);
    const int rc = system(command); /* NOLINT(cert-env33-c) */
    assert_true(WIFEXITED(rc));
    assert_int_equal(WEXITSTATUS(rc), EXIT_FAILURE);
    snprintf(expected, sizeof expected, "[ops] listen: cannot listen on 127.0.0.1:%u: Address already in use",
             port);
    assert_true(was_said("field=listen"));
    assert_true(was_said(expected));
    for (int i = 0; i < 8; i++) assert_int_equal(daemon_http(&d, "/readyz", page, sizeof page), 200);
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_device_that_this_build_lacks_is_refused_before_the_start(void **state) {
    (void)state;
    assert_int_equal(check_configuration("cpu", 1), 0);
    assert_int_equal(check_configuration("auto", 1), 0);
    const int code = check_configuration("cuda", 1);
#ifdef CKKSD_CUDA
    assert_int_equal(code, 0);
#else
    assert_int_equal(code, 2);
    assert_true(was_said("this build has no CUDA back end"));
#endif
}

static void more_slots_than_cores_are_said_by_the_cores_that_there_are_for_it(void **state) {
    (void)state;
    cpu_set_t before, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof before, &before) != 0) skip();
    const int here = sched_getcpu();
    CPU_SET((size_t)here, &one);
    if (here < 0 || sched_setaffinity(0, sizeof one, &one) != 0) skip();
    assert_int_equal(check_configuration("cpu", 1), 0);
    assert_false(was_said("slots on"));
    assert_int_equal(check_configuration("auto", 2), 0);
    assert_true(was_said("on a CPU, 2 slots on 1 core: "));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    if (fixture_device_kind() != DEVICE_CPU || sysconf(_SC_NPROCESSORS_CONF) >= 4) return;
    daemon_start(&d, "[slots]\ncount = 4\n", NULL, NULL); /* all cores: a runtime may widen the mask again */
    assert_true(daemon_logged(&d, "event=slots_over_cores message=\"4 slots on "));
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_device_error_costs_one_request_and_the_slot_comes_back(void **state) {
    (void)state;
    start_with_keys("[slots]\ncount = 1\n", "CKKSD_TEST_FAIL_REPLAY=2", NULL);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), RPC_UNAVAILABLE);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_true(daemon_logged(&d, "event=slot_quarantined slot=0"));
    assert_true(daemon_logged(&d, "event=slot_recovered slot=0"));
    assert_int_equal(daemon_stop(&d), 0);
}

static void with_two_slots_a_device_error_is_retried_on_the_other(void **state) {
    (void)state;
    start_with_keys("[slots]\ncount = 2\n", "CKKSD_TEST_FAIL_REPLAY=2", NULL);
    for (int i = 0; i < 6; i++) assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_true(daemon_logged(&d, "event=slot_quarantined"));
    assert_true(daemon_logged(&d, "event=retry"));
}

/* Both slots share the device: nothing is retried for long, nothing wrong is answered, the manager is told.
 */
static void a_lost_device_ends_the_daemon_for_its_manager_to_restart(void **state) {
    (void)state;
    start_with_keys("[slots]\ncount = 2\n", "CKKSD_TEST_LOSE_REPLAY=2", NULL);
    assert_true(daemon_logged(&d, "event=device device="));
    assert_true(daemon_logged(&d, "why=\"configured"));
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), RPC_UNAVAILABLE);
    assert_true(daemon_hear(&d, "STOPPING=1", EVENT_MS));
    assert_int_equal(daemon_wait(&d), EXIT_FAILURE);
    assert_true(daemon_logged(&d, "event=fatal message=\"the device is lost"));
    assert_false(daemon_logged(&d, "event=slot_recovered"));
    daemon_start(&d, "[slots]\ncount = 2\n", NULL, NULL); /* as its manager would */
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

/* A connection that comes back by itself, and a call on it that does not wait for ever: -1 without an answer.
 */
static nng_socket dial_in_the_background(nng_duration wait_ms) {
    nng_socket s;
    char url[128];
    snprintf(url, sizeof url, "ipc://%s/bulk.sock", d.folder);
    assert_int_equal(nng_req0_open(&s), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, wait_ms), 0);
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_SENDTIMEO, wait_ms), 0);
    assert_int_equal(nng_dial(s, url, NULL, NNG_FLAG_NONBLOCK), 0);
    return s;
}
static int ask(nng_socket s) {
    double y[TINY_SLOTS], expected[TINY_SLOTS];
    daemon_reply r = {0};
    tiny_client_encrypt(&alice, x);
    const daemon_call call = tiny_client_call(&alice);
    daemon_send(s, daemon_frame(&call));
    const int code = daemon_receive(s, &r, call.output) ? (int)r.header->status->code : -1;
    if (code == 0) {
        tiny_client_decrypt(&alice, y, &r);
        tiny_package_expect(expected, x, 0);
        for (uint32_t i = 0; i < TINY_SLOTS; i++) assert_true(fabs(y[i] - expected[i]) < 1e-4);
    }
    daemon_reply_fini(&r);
    return code;
}

/* Every N-th allocation of ours fails while it serves: that costs requests, never the daemon, and no answer
 * is wrong. */
static void allocations_that_fail_cost_requests_and_no_more(void **state) {
    (void)state;
    static const char *const period[] = {"CKKSD_TEST_FAIL_ALLOCATIONS=97", "CKKSD_TEST_FAIL_ALLOCATIONS=47",
                                         "CKKSD_TEST_FAIL_ALLOCATIONS=31"};
    for (size_t k = 0; k < 3; k++) {
        uint32_t answered = 0, refused = 0, silent = 0;
        if (k == 0)
            start_with_keys("[slots]\ncount = 1\n", period[k], NULL);
        else
            daemon_start(&d, "[slots]\ncount = 1\n", period[k], NULL);
        assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
        nng_socket s = dial_in_the_background(500);
        daemon_signal(&d, SIGUSR2);
        for (int i = 0; i < 120 && silent < 6; i++) {
            const int code = ask(s);
            answered += code == 0;
            silent += code == -1; /* no memory for a reply either: its connection is closed */
            refused += code == RPC_RESOURCE_EXHAUSTED || code == RPC_UNAVAILABLE;
            if (code != 0 && code != -1 && code != RPC_RESOURCE_EXHAUSTED && code != RPC_UNAVAILABLE)
                fail_msg("%s: code %d", period[k], code);
        }
        daemon_signal(&d, SIGUSR2);
        nng_close(s);
        printf("  %s: %u answered, %u refused, %u without an answer\n", period[k], answered, refused, silent);
        assert_true(refused + silent > 0);
        s = dial_in_the_background(EVENT_MS);
        for (int i = 0; i < 600 && ask(s) != 0; i++) usleep(100000); /* a slot may have to recover */
        for (int i = 0; i < 3; i++) assert_int_equal(ask(s), 0);
        nng_close(s);
        assert_int_equal(daemon_stop(&d), 0);
    }
}

/* Of a socket that was dialled before memory ran out. -1: there was none for an answer either. */
static int keys_call(nng_socket s, const char *method, const ProtobufCMessage *input, nng_duration wait_ms,
                     bool *is_there) {
    daemon_reply r = {0};
    const bool is_begin = strcmp(method, "Keys/KeyBegin") == 0;
    const daemon_call c = {.socket = DAEMON_CONTROL, .method = method, .token = d.alice, .input = input};
    assert_int_equal(nng_socket_set_ms(s, NNG_OPT_RECVTIMEO, wait_ms), 0);
    daemon_send(s, daemon_frame(&c));
    const int code = daemon_receive(s, &r, is_begin ? &ckksd__v1__key_begin_reply__descriptor : NULL)
                         ? (int)r.header->status->code
                         : -1;
    if (is_begin && code == 0) *is_there = ((const Ckksd__V1__KeyBeginReply *)r.payload)->committed;
    daemon_reply_fini(&r);
    nng_close(s);
    return code;
}

/* What the catalogue says is committed serves; else committing it again does. */
static void keys_whose_commit_lacked_memory_serve_once_they_are_said_to_be_there(void **state) {
    (void)state;
    enum { ROUNDS = 24, CALLS_AFTER = 5 }; /* a commit allocates less often, so many calls more often */
    uint32_t failures = 0;
    bool is_there = false;
    Ckksd__V1__KeyCommitRequest commit = CKKSD__V1__KEY_COMMIT_REQUEST__INIT;
    Ckksd__V1__KeyDeleteRequest gone = CKKSD__V1__KEY_DELETE_REQUEST__INIT;
    commit.has_key_set = gone.has_key_set = true;
    commit.key_set = gone.key_set = (ProtobufCBinaryData){KEY_SET_ID_BYTES, alice.keys.id};
    start_with_keys(NULL, "CKKSD_TEST_FAIL_ALLOCATIONS=rising", NULL);
    for (int round = 0; round < ROUNDS; round++) {
        nng_socket after[CALLS_AFTER];
        assert_int_equal(
            keys_call(daemon_dial(&d, DAEMON_CONTROL), "Keys/KeyDelete", &gone.base, EVENT_MS, NULL), 0);
        tiny_client_upload(&alice);
        nng_socket first = daemon_dial(&d, DAEMON_CONTROL);
        for (int i = 0; i < CALLS_AFTER; i++) after[i] = daemon_dial(&d, DAEMON_CONTROL);
        daemon_signal(&d, SIGUSR2);
        failures += keys_call(first, "Keys/KeyCommit", &commit.base, 200, NULL) != 0;
        for (int i = 0; i < CALLS_AFTER; i++) /* if it was not the commit's, it is one of these that fails */
            (void)keys_call(after[i], "Keys/KeyBegin", &alice.keys.begin.base, 200, &is_there);
        assert_int_equal(keys_call(daemon_dial(&d, DAEMON_CONTROL), "Keys/KeyBegin", &alice.keys.begin.base,
                                   EVENT_MS, &is_there),
                         0);
        if (!is_there) tiny_client_register(&alice);
        assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    }
    printf("  %u of %u commits failed\n", failures, ROUNDS);
    assert_true(failures > 5);
    assert_int_equal(daemon_stop(&d), 0);
}

static void draining_finishes_what_was_admitted_and_refuses_the_rest(void **state) {
    (void)state;
    start_with_keys(NULL, gate_shut(), NULL);
    nng_socket late = daemon_dial(&d, DAEMON_BULK), a = begin(&alice, NULL, 0);
    gate_wait();
    nng_socket b = begin(&alice, NULL, 0);
    metric_wait("ckksd_queue_depth", 1);
    daemon_signal(&d, SIGTERM);
    assert_true(daemon_hear(&d, "STOPPING=1", EVENT_MS));
    metric_wait("ckksd_draining", 1);
    const daemon_call call = tiny_client_call(&alice);
    daemon_send(late, daemon_frame(&call));
    char reason[32];
    assert_int_equal(end(late, reason), RPC_UNAVAILABLE);
    assert_string_equal(reason, "DRAINING");
    assert_true(daemon_hear(&d, "EXTEND_TIMEOUT_USEC=30000000", 10000)); /* as long as it takes */
    gate_open(2);
    assert_int_equal(end(a, NULL), 0);
    assert_int_equal(end(b, NULL), 0);
    assert_int_equal(daemon_wait(&d), 0);
}

/* One that runs, and one that waits for the slot. */
static void a_drain_that_takes_too_long_answers_whoever_waits(void **state) {
    (void)state;
    char reason[32];
    start_with_keys("[drain]\ndrain_timeout_ms = 100\n", gate_shut(), NULL);
    nng_socket a = begin(&alice, NULL, 0);
    gate_wait();
    nng_socket b = begin(&alice, NULL, 0);
    metric_wait("ckksd_queue_depth", 1);
    daemon_signal(&d, SIGTERM);
    assert_int_equal(end(a, reason), RPC_UNAVAILABLE);
    assert_string_equal(reason, "DRAINING");
    assert_int_equal(end(b, reason), RPC_UNAVAILABLE);
    assert_string_equal(reason, "DRAINING");
    gate_open(1);
    assert_int_equal(daemon_wait(&d), EXIT_FAILURE);
    assert_true(daemon_logged(&d, "event=drain_timeout requests=2"));
}

static void committed_keys_survive_kill_minus_nine(void **state) {
    (void)state;
    start_with_keys(NULL, NULL, NULL);
    daemon_signal(&d, SIGKILL);
    assert_int_equal(daemon_wait(&d), 128 + SIGKILL);
    daemon_start(&d, NULL, NULL, NULL);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
}

static void keys_leave_the_device_for_others_and_come_back(void **state) {
    (void)state;
    start_with_keys("[keys]\nresident_bytes = 1M\n", NULL, NULL);
    tiny_client others[6];
    for (int i = 0; i < 6; i++) { /* 192 KiB each: five fit */
        tiny_client_init(&others[i], &d, d.alice);
        tiny_client_register(&others[i]);
        assert_int_equal(tiny_client_infer(&others[i], x, 0), 0);
    }
    assert_int_equal(tiny_client_infer(&others[0], x, 0), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_true(daemon_logged(&d, "event=keys_off_device"));
    for (int i = 0; i < 6; i++) tiny_client_fini(&others[i]);
}

/* By a hand that puts them back. */
static void keys_whose_file_went_and_came_back_serve_again(void **state) {
    (void)state;
    char hex[2 * KEY_SET_ID_BYTES + 1], path[160], aside[128], reason[32];
    daemon_reply r;
    start_with_keys(NULL, NULL, NULL);
    snprintf(path, sizeof path, "%s/data/payload/%s", d.folder,
             hex_encode(hex, alice.keys.id, KEY_SET_ID_BYTES));
    snprintf(aside, sizeof aside, "%s/aside", d.folder);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(end(begin(&alice, NULL, 0), reason), ckks_status_rpc(CKKS_KEY_EVICTED));
    assert_string_equal(reason, "KEY_EVICTED");
    assert_int_equal(rename(aside, path), 0);
    const daemon_call call = {.socket = DAEMON_CONTROL,
                              .method = "Keys/KeyBegin",
                              .token = d.alice,
                              .input = &alice.keys.begin.base,
                              .output = &ckksd__v1__key_begin_reply__descriptor};
    assert_int_equal(daemon_do(&d, &call, &r), 0);
    assert_true(((const Ckksd__V1__KeyBeginReply *)(const void *)r.payload)->committed);
    daemon_reply_fini(&r);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0); /* as the client was told */
}

static void keys_in_use_do_not_leave_the_device(void **state) {
    (void)state;
    start_with_keys("[keys]\nresident_bytes = 1M\n", gate_shut(), NULL);
    tiny_client others[5];
    nng_socket waiting[5];
    for (int i = 0; i < 5; i++) {
        tiny_client_init(&others[i], &d, d.alice);
        tiny_client_register(&others[i]);
    }
    for (int i = 0; i < 5; i++) { /* 192 KiB each: five fit, and each is waited for */
        waiting[i] = begin(&others[i], NULL, 0);
        if (i == 0) gate_wait();
        metric_wait("ckksd_queue_depth", i);
    }
    metric_wait("ckksd_key_sets_resident", 5);
    assert_int_equal(tiny_client_infer(&alice, x, 0), RPC_RESOURCE_EXHAUSTED);
    gate_open(6);
    for (int i = 0; i < 5; i++) assert_int_equal(end(waiting[i], NULL), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    for (int i = 0; i < 5; i++) tiny_client_fini(&others[i]);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(ready_is_said_after_the_self_test_and_stopping_at_the_end),
        T(a_model_that_fails_its_self_test_is_not_served),
        T(a_model_larger_than_the_budget_is_refused_with_the_numbers),
        T(the_watchdog_is_fed_by_progress_and_starves_when_a_slot_hangs),
        T(a_service_manager_that_does_not_listen_is_not_waited_for),
        T(what_was_not_heard_at_first_is_said_once_there_is_room),
        T(many_open_descriptors_keep_nobody_from_the_operators_page),
        T(the_limit_of_descriptors_is_raised_for_the_connections_allowed),
        T(an_operators_port_that_is_taken_is_refused_by_name),
        T(a_device_that_this_build_lacks_is_refused_before_the_start),
        T(more_slots_than_cores_are_said_by_the_cores_that_there_are_for_it),
        T(a_device_error_costs_one_request_and_the_slot_comes_back),
        T(with_two_slots_a_device_error_is_retried_on_the_other),
        T(a_lost_device_ends_the_daemon_for_its_manager_to_restart),
        T(allocations_that_fail_cost_requests_and_no_more),
        T(keys_whose_commit_lacked_memory_serve_once_they_are_said_to_be_there),
        T(draining_finishes_what_was_admitted_and_refuses_the_rest),
        T(a_drain_that_takes_too_long_answers_whoever_waits),
        T(committed_keys_survive_kill_minus_nine),
        T(keys_leave_the_device_for_others_and_come_back),
        T(keys_whose_file_went_and_came_back_serve_again),
        T(keys_in_use_do_not_leave_the_device),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
