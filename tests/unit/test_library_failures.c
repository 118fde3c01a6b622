/*
 * Libraries that fail: each call of SQLite, nng and libuv fails in turn, and each aligned allocation. What
 * comes of it is a typed error with words, nothing is lost of what was committed, nothing stays open, and the
 * next try works.
 */
#include "tests/support/library_fault.h"

#include "daemon/keystore.h"
#include "daemon/server.h"
#include "tests/support/key_set_fixture.h"
#include "tests/support/local_words.h"
#include "tests/support/temporary.h"
#include "tests/support/tiny_package.h"

#include <dirent.h>
#include <sys/wait.h>

#define NOW       1000000u
#define CALLS_MAX 2000u

static bool is_typed(ckks_status rc, const ckks_error *err) {
    return rc != CKKS_OK && rc == err->code && err->message[0];
}

static int count_open(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* ---- SQLite ---- */

static key_set_fixture keys;
static char data[64];
static keystore *ks;
static const keystore_limits limits = {
    .tenant_bytes_max = 1u << 30, .tenant_sets_max = 8, .upload_expire_s = 100, .allow_insecure = true};

static int open_store(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement wanted[] = {{KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}};
    key_set_fixture_init(&keys, &params, wanted, 2, 20000);
    temporary_folder_in_memory(data, sizeof data, "test-library");
    return keystore_open(&ks, data, &limits, NOW, NULL) == CKKS_OK ? 0 : -1;
}
static int close_store(void **state) {
    (void)state;
    char command[128];
    keystore_close(ks);
    ks = NULL;
    key_set_fixture_fini(&keys);
    snprintf(command, sizeof command, "rm -rf %s", data);
    return system(command); /* NOLINT(cert-env33-c) */
}

static ckks_status begin(const char *tenant, keystore_missing *missing, keystore_state *is, ckks_error *err) {
    uint8_t id[32];
    return keystore_begin(ks, tenant, NULL, &keys.begin, NOW, id, is, missing, err);
}
static ckks_status part(const char *tenant, uint32_t index, ckks_error *err) {
    uint64_t bytes;
    uint32_t left;
    const uint8_t *from = key_set_fixture_part(&keys, index, &bytes);
    return keystore_part(ks, tenant, keys.id, index, from, bytes, &left, err);
}
/* From wherever it stands. */
static ckks_status upload(const char *tenant, ckks_error *err) {
    keystore_missing missing;
    keystore_state is;
    keystore_record record = {0};
    ckks_status rc = begin(tenant, &missing, &is, err);
    for (uint32_t i = 0; i < missing.listed && rc == CKKS_OK; i++) rc = part(tenant, missing.parts[i], err);
    if (rc != CKKS_OK || is == KEYSTORE_COMMITTED) return rc;
    rc = keystore_commit(ks, tenant, keys.id, NOW, &record, err);
    keystore_record_fini(&record);
    return rc;
}
static keystore_state look(const char *tenant, uint32_t *missing_count) {
    keystore_missing missing;
    keystore_state is;
    uint64_t bytes, expires;
    assert_int_equal(keystore_status(ks, tenant, keys.id, NOW, &is, &missing, &bytes, &expires, NULL),
                     CKKS_OK);
    if (missing_count) *missing_count = missing.count;
    return is;
}
static ckks_status count_one(void *context, keystore_record *record, ckks_error *err) {
    (void)record, (void)err;
    (*(uint32_t *)context)++;
    return CKKS_OK;
}

/* begin, parts, commit, use, walk, delete, and everything of a tenant */
static ckks_status live(ckks_error *err) {
    uint32_t count = 0, dropped;
    bool is_evicted = false;
    ckks_status rc = upload("acme", err);
    if (rc == CKKS_OK) rc = upload("acme", err); /* it is there */
    if (rc == CKKS_OK) rc = keystore_used(ks, "acme", keys.id, NOW + 1, err);
    if (rc == CKKS_OK) rc = keystore_each(ks, count_one, &count, err);
    if (rc == CKKS_OK) assert_int_equal(count, 2);
    if (rc == CKKS_OK) rc = keystore_expire(ks, NOW, &dropped, err);
    if (rc == CKKS_OK) rc = keystore_evict(ks, "acme", keys.id, NOW + 1, &is_evicted, err);
    if (rc == CKKS_OK) assert_true(is_evicted);
    if (rc == CKKS_OK) rc = keystore_delete(ks, "acme", keys.id, err);
    if (rc == CKKS_OK) rc = keystore_delete_tenant(ks, "nobody", err);
    return rc;
}

static void an_upload_survives_a_catalogue_that_fails_at_any_call(void **state) {
    (void)state;
    uint32_t failures = 0, again = 0;
    assert_int_equal(upload("bolt", NULL), CKKS_OK);
    for (int late = 0; late < 2; late++)
        for (uint64_t n = 1;; n++) {
            ckks_error err = {0};
            assert_true(n < CALLS_MAX);
            library_fault_set(n, late);
            const ckks_status rc = live(&err);
            const char *failed = library_fault_name();
            library_fault_set(0, false);
            if (!failed) {
                if (rc != CKKS_OK) fail_msg("%s", err.message);
                break;
            }
            failures++;
            if (rc == CKKS_OK) /* a removal was tried again, and all is as if nothing had failed */
                again++, assert_int_equal(look("acme", NULL), KEYSTORE_UNKNOWN);
            else if (!is_typed(rc, &err))
                fail_msg("call %lu, %s: %s '%s'", n, failed, ckks_status_name(rc), err.message);
            if (rc != CKKS_OK && rc != CKKS_IO && rc != CKKS_RESOURCE_EXHAUSTED)
                fail_msg("call %lu, %s: %s: %s", n, failed, ckks_status_name(rc), err.message);
            /* the other tenant's, of the same file, is there; the upload goes on from where it stands */
            assert_int_equal(look("bolt", NULL), KEYSTORE_COMMITTED);
            err = (ckks_error){0};
            if (upload("acme", &err) != CKKS_OK) fail_msg("after call %lu, %s: %s", n, failed, err.message);
            assert_int_equal(look("acme", NULL), KEYSTORE_COMMITTED);
            assert_int_equal(keystore_delete(ks, "acme", keys.id, NULL), CKKS_OK);
            assert_int_equal(look("acme", NULL), KEYSTORE_UNKNOWN);
        }
    printf("  %u calls failed, %u of them were tried again\n", failures, again);
    assert_in_range(again, 1, failures / 4);
    keystore_close(ks);
    assert_int_equal(keystore_open(&ks, data, &limits, NOW, NULL), CKKS_OK);
    assert_int_equal(look("bolt", NULL), KEYSTORE_COMMITTED);
}

static void a_start_that_fails_at_any_call_loses_nothing(void **state) {
    (void)state;
    keystore_missing missing;
    keystore_state is;
    uint32_t left, failures = 0;
    assert_int_equal(upload("bolt", NULL), CKKS_OK);
    assert_int_equal(begin("acme", &missing, &is, NULL), CKKS_OK);
    assert_int_equal(part("acme", 1, NULL), CKKS_OK);
    const uint32_t before = missing.count;
    for (int late = 0; late < 2; late++)
        for (uint64_t n = 1;; n++) {
            ckks_error err = {0};
            assert_true(n < CALLS_MAX);
            keystore_close(ks);
            ks = NULL;
            const int descriptors = count_open();
            library_fault_set(n, late);
            const ckks_status rc = keystore_open(&ks, data, &limits, NOW, &err);
            const char *failed = library_fault_name();
            library_fault_set(0, false);
            if (failed && (rc == CKKS_OK || ks || !is_typed(rc, &err)))
                fail_msg("call %lu, %s: %s '%s'", n, failed, ckks_status_name(rc), err.message);
            if (failed) {
                failures++;
                assert_int_equal(count_open(), descriptors);
                err = (ckks_error){0};
                if (keystore_open(&ks, data, &limits, NOW, &err) != CKKS_OK)
                    fail_msg("after call %lu, %s: %s", n, failed, err.message);
            }
            if (look("bolt", NULL) != KEYSTORE_COMMITTED || look("acme", &left) != KEYSTORE_UPLOADING ||
                left != before - 1)
                fail_msg("call %lu, %s: something was lost", n, failed ? failed : "-");
            if (!failed) break;
        }
    printf("  %u calls failed\n", failures);
    assert_int_equal(upload("acme", NULL), CKKS_OK);
}

/* ---- nng and libuv: opening ---- */

static void a_transport_opens_whole_or_not_at_all(void **state) {
    (void)state;
    const transport_callbacks callbacks = {.message = on_message, .lost = on_lost};
    uint32_t failures = 0;
    set_up(state);
    close_server();
    s.config.control.count = 1, s.config.bulk.count = 2;
    snprintf(s.config.control.item[0], sizeof s.config.control.item[0], "tcp://127.0.0.1:0");
    snprintf(s.config.bulk.item[1], sizeof s.config.bulk.item[1], "tcp://127.0.0.1:0");
    snprintf(s.config.admin_socket, sizeof s.config.admin_socket, "ipc://%s/admin", s.folder);
    for (uint64_t n = 1;; n++) {
        ckks_error err = {0};
        assert_true(n < CALLS_MAX);
        library_fault_set(n, false);
        ckks_status rc = loop_init(&s.loop, &err);
        const bool has_loop = rc == CKKS_OK;
        if (has_loop) rc = transport_open(&s.transport, &s.loop, &s.config, 2, &callbacks, &err);
        const char *failed = library_fault_name();
        library_fault_set(0, false);
        if (failed) {
            failures++;
            if (!is_typed(rc, &err))
                fail_msg("call %lu, %s: %s '%s'", n, failed, ckks_status_name(rc), err.message);
        } else {
            assert_int_equal(rc, CKKS_OK);
            loop_close_queue(&s.loop);
            transport_stop(&s.transport);
            transport_close(&s.transport);
        }
        if (has_loop) loop_fini(&s.loop);
        if (access(s.path, F_OK) == 0) fail_msg("call %lu, %s: the socket stays", n, failed ? failed : "-");
        if (!failed) break;
    }
    printf("  %u calls failed\n", failures);
    memset(&s.config.control, 0, sizeof s.config.control);
    s.config.bulk.count = 1, s.config.admin_socket[0] = 0;
    assert_int_equal(open_server(NULL), CKKS_OK);
    the_server_still_serves();
    tear_down(state);
}

/* ---- serving a local peer ---- */

/* An exchange in two pieces: true if the whole reply came, false if the peer was hung up on. */
static bool exchange_or_not(const uint8_t *body, size_t bytes, uint8_t *in) {
    uint8_t theirs[8];
    uint8_t *out = malloc(bytes + 64);
    assert_non_null(out);
    const size_t size = frame(out, trail, sizeof trail, body, bytes);
    const int fd = dial();
    put(fd, hello, sizeof hello);
    bool is_there = get(fd, theirs, sizeof theirs);
    if (is_there) {
        put(fd, out, 11);
        put(fd, out + 11, size - 11);
        is_there = get(fd, in, size);
        if (is_there) assert_memory_equal(in, out, size);
    }
    if (!is_there) assert_true(is_hung_up(fd)); /* it need not wait for what does not come */
    close(fd);
    free(out);
    return is_there;
}

static void a_call_that_fails_costs_one_peer_its_connection_and_no_more(void **state) {
    static uint8_t body[300000], in[sizeof body + 64];
    uint32_t failures = 0, lost = 0;
    for (size_t i = 0; i < sizeof body; i++) body[i] = (uint8_t)(i * 7);
    set_up(state);
    for (uint64_t n = 1;; n++) {
        assert_true(n < CALLS_MAX);
        for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport); i++) usleep(1000);
        library_fault_set(n, false);
        const bool is_there = exchange_or_not(body, sizeof body, in);
        for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport); i++) usleep(1000);
        const char *failed = library_fault_name();
        library_fault_set(0, false);
        the_server_still_serves();
        if (!failed) {
            assert_true(is_there);
            break;
        }
        failures++, lost += !is_there;
    }
    printf("  %u calls failed, %u exchanges were lost\n", failures, lost);
    assert_true(lost > 0);
    tear_down(state);
}

static void whoever_could_not_be_let_in_is_let_in_later(void **state) {
    static const char *const calls[] = {"uv_pipe_init", "uv_accept"};
    set_up(state);
    for (uint64_t n = 1; n <= 2; n++) {
        for (int i = 0; i < WAIT_MS && transport_pipe_count(&s.transport); i++) usleep(1000);
        library_fault_set(n, false);
        const int fd = greet();
        assert_string_equal(library_fault_name(), calls[n - 1]);
        library_fault_set(0, false);
        exchange_one(fd, 256);
        assert_int_equal(transport_pipe_count(&s.transport), 1);
        the_server_still_serves();
        close(fd);
    }
    tear_down(state);
}

/* ---- the daemon as a whole ---- */

static char last_error[1024];
static void keep_last_error(void *context, log_level level, const char *line) {
    (void)context;
    if (level == LOG_LEVEL_ERROR) snprintf(last_error, sizeof last_error, "%s", line);
}

static _Atomic bool has_ended;
static _Atomic uint32_t times_ready;
static void *stop_when_ready(void *context) {
    (void)context;
    while (!atomic_load(&has_ended) && !atomic_load(&daemon_metrics.is_ready)) usleep(500);
    if (atomic_load(&daemon_metrics.is_ready)) {
        atomic_fetch_add(&times_ready, 1);
        kill(getpid(), SIGTERM);
    }
    return NULL;
}

/* A whole life. The exit code. */
static int run_server(const config *c) {
    pthread_t stopper;
    atomic_store(&has_ended, false);
    assert_int_equal(pthread_create(&stopper, NULL, stop_when_ready, NULL), 0);
    const int code = server_run(c, "no such file");
    atomic_store(&has_ended, true);
    pthread_join(stopper, NULL);
    return code;
}

static void configure(config *c, const char *folder) {
    config_default(c);
    snprintf(c->models, sizeof c->models, "%s/models", folder);
    snprintf(c->data, sizeof c->data, "%s", folder);
    snprintf(c->tokens, sizeof c->tokens, "%s/tokens", folder);
    snprintf(c->control.item[0], sizeof c->control.item[0], "ipc://%s/control", folder);
    snprintf(c->bulk.item[0], sizeof c->bulk.item[0], "ipc://%s/bulk", folder);
    c->ops_listen[0] = 0;
    c->allow_insecure = true;
    c->device_kind = DEVICE_CPU, c->device_threads = 2;
    c->requests_max = c->control_contexts = 1;
}

/* Its device, its sockets, its signals, its slots: it says what failed and leaves nothing, or is ready
 * without the model that found no memory. */
static void a_daemon_starts_or_says_what_failed_at_any_call(void **state) {
    (void)state;
    char folder[64], path[96], command[128];
    uint32_t failures = 0, by_signal = 0, by_memory = 0;
    config *c = calloc(1, sizeof *c);
    assert_non_null(c);
    temporary_folder_in_memory(folder, sizeof folder, "test-start");
    snprintf(path, sizeof path, "%s/models", folder);
    assert_int_equal(mkdir(path, 0700), 0);
    tiny_package_install(path, "tiny", "1", 0);
    snprintf(path, sizeof path, "%s/tokens", folder);
    const int file = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    close(file);
    configure(c, folder);
    log_set_sink(keep_last_error, NULL);
    assert_int_equal(run_server(c), 0); /* and what libraries keep open is open */
    const int descriptors = count_open();
    for (uint64_t n = 1;; n++) {
        assert_true(n < CALLS_MAX);
        last_error[0] = 0;
        atomic_store(&times_ready, 0);
        library_fault_set(n, false);
        const int code = run_server(c);
        const char *failed = library_fault_name();
        library_fault_set(0, false);
        const bool was_ready = atomic_load(&times_ready) > 0;
        if (code != (was_ready ? 0 : EXIT_FAILURE))
            fail_msg("call %lu, %s: exit code %d", n, failed ? failed : "-", code);
        if (!was_ready && !strstr(last_error, "event="))
            fail_msg("call %lu, %s: no word", n, failed ? failed : "-");
        if (count_open() != descriptors) fail_msg("call %lu, %s: left open", n, failed ? failed : "-");
        snprintf(path, sizeof path, "%s/bulk", folder);
        if (access(path, F_OK) == 0) fail_msg("call %lu, %s: the socket stays", n, failed ? failed : "-");
        if (!failed) break;
        failures++;
        by_memory += strcmp(failed, "posix_memalign") == 0;
        if (strncmp(failed, "uv_signal_", 10) != 0) continue;
        by_signal++;
        if (was_ready || !strstr(last_error, "signals")) fail_msg("%s: %s", failed, last_error);
    }
    log_set_sink(NULL, NULL);
    printf("  %u calls failed, %u of them for signals, %u for memory\n", failures, by_signal, by_memory);
    assert_true(by_signal == 6 && by_memory > 5);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_upload_survives_a_catalogue_that_fails_at_any_call, open_store,
                                        close_store),
        cmocka_unit_test_setup_teardown(a_start_that_fails_at_any_call_loses_nothing, open_store,
                                        close_store),
        cmocka_unit_test(a_transport_opens_whole_or_not_at_all),
        cmocka_unit_test(a_call_that_fails_costs_one_peer_its_connection_and_no_more),
        cmocka_unit_test(whoever_could_not_be_let_in_is_let_in_later),
        cmocka_unit_test(a_daemon_starts_or_says_what_failed_at_any_call),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* as the daemon does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
