/* What operators do to a running daemon: reload, load, unload, drain, delete. */
#include "proto/token.h"
#include "tests/support/daemon_words.h"
#include "tests/support/fixtures.h"

#include <dlfcn.h>
#include <sqlite3.h>
#include <sys/wait.h>

static void reload_takes_new_tokens_and_models_and_refuses_a_bad_configuration_whole(void **state) {
    (void)state;
    char path[128], token[TOKEN_TEXT_SIZE];
    token_entry entry;
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    start_with_keys(NULL, NULL, NULL);
    snprintf(path, sizeof path, "%s/tokens", d.folder);
    assert_int_equal(token_generate(token, &entry, "carol", "acme", TOKEN_SCOPE_KEY_WRITE, NULL), CKKS_OK);
    assert_int_equal(token_file_add(path, &entry, NULL), CKKS_OK);
    assert_int_equal(control_code("Keys/KeyList", token, NULL), RPC_UNAUTHENTICATED);
    tiny_package_install(models, "tiny", "2", 1);
    daemon_signal(&d, SIGHUP);
    assert_true(daemon_hear(&d, "RELOADING=1", EVENT_MS));
    log_wait("event=model_ready model=tiny version=2");
    assert_int_equal(control_code("Keys/KeyList", token, NULL), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 1), 0); /* the newest, with the same keys */
    snprintf(path, sizeof path, "%s/ckksd.conf", d.folder);
    FILE *file = fopen(path, "a");
    fputs("[queue]\nrequests_max = many\n", file);
    fclose(file);
    assert_int_equal(admin("Admin/Reload", &empty.base), 0);
    log_wait("requests_max: 'many' is not a number");
    assert_int_equal(control_code("Keys/KeyList", token, NULL), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 1), 0);
}

static void append(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", d.folder, name);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}
/* With one tenant more each time, by which the log tells the reloads apart. */
static void reload_as(const char *line) {
    static int serial;
    char path[128], name[24], token[TOKEN_TEXT_SIZE];
    token_entry entry;
    snprintf(path, sizeof path, "%s/tokens", d.folder);
    snprintf(name, sizeof name, "more-%d", ++serial);
    assert_int_equal(token_generate(token, &entry, name, name, TOKEN_SCOPE_INFER, NULL), CKKS_OK);
    assert_int_equal(token_file_add(path, &entry, NULL), CKKS_OK);
    daemon_signal(&d, SIGHUP);
    log_wait(line);
}

/* The first has the files open when they are replaced: what it takes is what they were. */
static void a_reload_asked_for_while_one_is_on_its_way_follows_it(void **state) {
    (void)state;
    static char text[4096];
    char path[128], kept[128];
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    start_with_keys(NULL, NULL, NULL);
    snprintf(path, sizeof path, "%s/ckksd.conf", d.folder);
    snprintf(kept, sizeof kept, "%s/kept.conf", d.folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    const size_t size = fread(text, 1, sizeof text - 1, file);
    assert_true(size > 0 && size < sizeof text - 1);
    fclose(file);
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    daemon_signal(&d, SIGHUP);
    int pipe = -1; /* can be opened once it is being read */
    for (int i = 0; i < EVENT_MS / 5 && pipe < 0; i++) {
        pipe = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (pipe < 0) usleep(5000);
    }
    assert_true(pipe >= 0);
    append("kept.conf", "[queue]\ntenant_requests_max = many\n");
    assert_int_equal(rename(kept, path), 0);
    assert_int_equal(admin("Admin/Reload", &empty.base), 0);
    assert_int_equal(write(pipe, text, size), (ssize_t)size);
    close(pipe);
    log_wait("event=reloaded tenants=2");
    log_wait("tenant_requests_max: 'many' is not a number");
}

static void a_model_whose_file_goes_while_it_is_loaded_retires_when_it_is(void **state) {
    (void)state;
    char path[160], command[400];
    start_with_keys(NULL, gate_shut(), NULL);
    nng_socket busy = begin(&alice, NULL, 0);
    gate_wait(); /* the slot captures nothing until it is through */
    tiny_package_install(models, "tiny", "2", 1);
    reload_as("event=reloaded tenants=3");
    log_wait("event=model_prepared model=tiny version=2");
    snprintf(path, sizeof path, "%s/tiny/2/model.ckm", models);
    assert_int_equal(unlink(path), 0);
    reload_as("event=reloaded tenants=4");
    gate_open(1);
    assert_int_equal(end(busy, NULL), 0);
    log_wait("event=model_retired model=tiny version=2");
    /* and the other way: it comes back while it retires */
    busy = begin(&alice, NULL, 0);
    gate_wait();
    snprintf(path, sizeof path, "%s/tiny/1/model.ckm", models);
    snprintf(command, sizeof command, "mv %s %s/aside", path, d.folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    reload_as("event=reloaded tenants=5");
    log_wait("event=model_retiring model=tiny version=1");
    snprintf(command, sizeof command, "mv %s/aside %s", d.folder, path);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    reload_as("event=reloaded tenants=6");
    gate_open(2);
    assert_int_equal(end(busy, NULL), 0);
    log_wait("event=model_retired model=tiny version=1");
    int code = -1;
    for (int i = 0; i < EVENT_MS / 20 && code != 0; i++) {
        tiny_client_encrypt(&alice, x);
        code = end(begin(&alice, NULL, 0), NULL);
        if (code) usleep(20000);
    }
    assert_int_equal(code, 0);
}

/* The first slot has captured a new model, the second is busy: then the first fails and recovers. */
static void a_slot_that_recovers_while_a_model_is_captured_has_it_afterwards(void **state) {
    (void)state;
    static char environment[2][160];
    const int first = gate_part("go-first");
    snprintf(environment[0], sizeof environment[0], "%s", gate_shut());
    snprintf(environment[1], sizeof environment[1], "CKKSD_TEST_GATE_FIRST=1");
    setenv("CKKSD_TEST_FAIL_REPLAY", "2", 1);
    start_with_keys("[slots]\ncount = 2\n", environment[0], environment[1]);
    unsetenv("CKKSD_TEST_FAIL_REPLAY");
    nng_socket a = begin(&alice, NULL, 0);
    gate_wait();
    nng_socket b = begin(&alice, NULL, 0);
    gate_wait(); /* on the second slot, which stays there */
    assert_int_equal(write(first, "g", 1), 1);
    assert_int_equal(end(a, NULL), 0);
    tiny_package_install(models, "tiny", "2", 1);
    daemon_signal(&d, SIGHUP);
    log_wait("event=captured model=tiny version=2 slot=0");
    a = begin(&alice, NULL, 0);
    gate_wait();
    assert_int_equal(write(first, "g", 1), 1); /* the second evaluation, which fails */
    log_wait("event=slot_recovered slot=0 models=2");
    gate_wait(); /* it is tried again, on the same slot */
    assert_int_equal(write(first, "g", 1), 1);
    assert_int_equal(end(a, NULL), 0);
    gate_open(1);
    assert_int_equal(end(b, NULL), 0);
    log_wait("event=model_ready model=tiny version=2 slots=2");
    close(first);
}

static void tenants_are_those_of_the_token_file(void **state) {
    (void)state;
    char command[300];
    daemon_start(&d, NULL, NULL, NULL);
    metric_wait("ckksd_tenants", 2);
    snprintf(command, sizeof command, "sed -i /bolt/d %s/tokens", d.folder);
    assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
    daemon_signal(&d, SIGHUP);
    log_wait("event=reloaded tenants=1");
    metric_wait("ckksd_tenants", 1);
    assert_int_equal(control_code("Keys/KeyList", d.bob, NULL), RPC_UNAUTHENTICATED);
}

static void an_unloaded_version_is_retired_by_name_and_can_come_back(void **state) {
    (void)state;
    Ckksd__V1__ModelRequest m = CKKSD__V1__MODEL_REQUEST__INIT;
    tiny_package_install(models, "tiny", "2", 1);
    start_with_keys(NULL, NULL, NULL);
    m.name = "tiny";
    assert_int_equal(admin("Admin/ModelUnload", &m.base), RPC_INVALID_ARGUMENT);
    m.version = "2";
    assert_int_equal(admin("Admin/ModelUnload", &m.base), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0); /* the newest is 1 now */
    tiny_client_encrypt(&alice, x);
    alice.request.version = "2";
    daemon_reply r;
    daemon_call call = tiny_client_call(&alice);
    call.output = NULL;
    assert_int_equal(daemon_do(&d, &call, &r), RPC_FAILED_PRECONDITION);
    assert_string_equal(r.header->status->reason, "CONFIG_RETIRED");
    daemon_reply_fini(&r);
    log_wait("event=model_retired");
    assert_int_equal(admin("Admin/ModelLoad", &m.base), 0);
    for (int i = 0; i < 100 && tiny_client_infer(&alice, (double[]){0, 0, 0, 0}, 1) == 0; i++) {
        if (daemon_logged(&d, "event=model_retired") && evaluations() > 3) break;
        usleep(20000);
    }
    m.version = "9";
    assert_int_equal(admin("Admin/ModelLoad", &m.base), RPC_NOT_FOUND);
}

static uint32_t count_of(const char *state_name, bool *is_sorted) {
    daemon_reply r;
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    const daemon_call c = {.socket = DAEMON_ADMIN,
                           .method = "Admin/RepositoryIndex",
                           .input = &empty.base,
                           .output = &ckksd__v1__repository_index_reply__descriptor};
    uint32_t count = 0;
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__RepositoryIndexReply *index = (const Ckksd__V1__RepositoryIndexReply *)r.payload;
    *is_sorted = true;
    for (size_t i = 0; i < index->n_models; i++) {
        count += strcmp(index->models[i]->state, state_name) == 0;
        *is_sorted &= i == 0 || strverscmp(index->models[i - 1]->version, index->models[i]->version) < 0;
    }
    daemon_reply_fini(&r);
    return count;
}

/* There is room for 64 at a time; those that retired first are forgotten for those that come. */
static void versions_can_come_and_go_without_end(void **state) {
    (void)state;
    enum { AT_ONCE = 35, WAVES = 3 };
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    static char page[1 << 20];
    char version[16], command[160];
    bool is_sorted = false;
    start_with_keys(NULL, NULL, NULL);
    for (uint32_t wave = 0; wave < WAVES; wave++) {
        for (uint32_t i = 0; i < AT_ONCE; i++) { /* in no order */
            snprintf(version, sizeof version, "%u", 100 * wave + 2 + i * 8 % AT_ONCE);
            tiny_package_install(models, "tiny", version, 0);
        }
        assert_int_equal(admin("Admin/Reload", &empty.base), 0);
        for (int i = 0; i < EVENT_MS / 5 && count_of("READY", &is_sorted) < AT_ONCE + 1; i++) usleep(5000);
        assert_int_equal(count_of("READY", &is_sorted), AT_ONCE + 1);
        assert_true(is_sorted);
        assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
        snprintf(command, sizeof command, "find %s/tiny -mindepth 1 -maxdepth 1 ! -name 1 -exec rm -r {} +",
                 models);
        assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c) */
        assert_int_equal(admin("Admin/Reload", &empty.base), 0);
        for (int i = 0; i < EVENT_MS / 5 && count_of("READY", &is_sorted) > 1; i++) usleep(5000);
        for (int i = 0; i < EVENT_MS / 5 && count_of("RETIRING", &is_sorted) > 0; i++) usleep(5000);
    }
    assert_int_equal(count_of("RETIRED", &is_sorted), 63);
    assert_true(daemon_logged(&d, "event=model_forgotten"));
    assert_int_equal(daemon_http(&d, "/metrics", page, sizeof page), 200);
    assert_null(strstr(page, "version=\"2\"")); /* the first is forgotten, the last is not */
    assert_non_null(strstr(page, "version=\"236\""));
    assert_non_null(strstr(page, "ckksd_inferences_total{model=\"tiny\",version=\"1\",code=\"OK\"}"));
}

static void administration_answers_on_its_own_socket(void **state) {
    (void)state;
    daemon_reply r;
    Ckksd__V1__Empty empty = CKKSD__V1__EMPTY__INIT;
    Ckksd__V1__LogLevelRequest level = CKKSD__V1__LOG_LEVEL_REQUEST__INIT;
    Ckksd__V1__ModelRequest m = CKKSD__V1__MODEL_REQUEST__INIT;
    Ckksd__V1__TenantDeleteRequest gone = CKKSD__V1__TENANT_DELETE_REQUEST__INIT;
    Ckksd__V1__DrainRequest drain = CKKSD__V1__DRAIN_REQUEST__INIT;
    start_with_keys(NULL, NULL, NULL);
    const daemon_call c = {.socket = DAEMON_ADMIN,
                           .method = "Admin/RepositoryIndex",
                           .input = &empty.base,
                           .output = &ckksd__v1__repository_index_reply__descriptor};
    assert_int_equal(daemon_do(&d, &c, &r), 0);
    const Ckksd__V1__RepositoryIndexReply *index = (const Ckksd__V1__RepositoryIndexReply *)r.payload;
    assert_int_equal(index->n_models, 1);
    assert_string_equal(index->models[0]->state, "READY");
    daemon_reply_fini(&r);
    level.has_level = true, level.level = 9;
    assert_int_equal(admin("Admin/LogLevel", &level.base), RPC_INVALID_ARGUMENT);
    level.level = 6;
    assert_int_equal(admin("Admin/LogLevel", &level.base), 0);
    assert_int_equal(admin("Admin/WeightsRefresh", &m.base), RPC_UNIMPLEMENTED);
    assert_int_equal(admin("Keys/KeyList", &empty.base), RPC_PERMISSION_DENIED);
    gone.tenant = "acme";
    assert_int_equal(admin("Admin/TenantDelete", &gone.base), 0);
    assert_int_equal(tiny_client_infer(&alice, x, 0), RPC_NOT_FOUND);
    assert_int_equal(admin("Admin/Drain", &drain.base), 0);
    assert_int_equal(daemon_wait(&d), 0);
}

/* As if nobody had used any key set for so long. */
static void let_days_pass(uint32_t days) {
    char path[128], text[96];
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/data/catalogue.sqlite", d.folder);
    snprintf(text, sizeof text, "UPDATE key_sets SET used = used - %u", days * 86400);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void key_sets_that_nobody_uses_are_evicted_by_their_tenants_time(void **state) {
    (void)state;
    char path[128], token[TOKEN_TEXT_SIZE];
    token_entry entry;
    snprintf(path, sizeof path, "%s/tokens", d.folder);
    assert_int_equal(token_generate(token, &entry, "bobs", "bolt", TOKEN_SCOPE_INFER, NULL), CKKS_OK);
    entry.quota.key_days = 5;
    assert_int_equal(token_file_add(path, &entry, NULL), CKKS_OK);
    start_with_keys(NULL, NULL, NULL);
    tiny_client_register(&bob);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(daemon_stop(&d), 0);
    let_days_pass(3);
    daemon_start(&d, NULL, NULL, NULL); /* without a limit they stay */
    assert_int_equal(tiny_client_infer(&bob, x, 0), 0);
    assert_int_equal(daemon_stop(&d), 0);
    let_days_pass(3);
    daemon_start(&d, "[keys]\nunused_days = 2\n", NULL, NULL);
    log_wait("event=keys_expired tenant=acme");
    char reason[32];
    assert_int_equal(end(begin(&alice, NULL, 0), reason), ckks_status_rpc(CKKS_KEY_EVICTED));
    assert_string_equal(reason, "KEY_EVICTED");
    assert_int_equal(tiny_client_infer(&bob, x, 0), 0); /* his time is longer */
    tiny_client_register(&alice);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_false(daemon_logged(&d, "event=keys_expired tenant=bolt"));
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_reload_changes_how_long_unused_key_sets_stay(void **state) {
    (void)state;
    start_with_keys(NULL, NULL, NULL);
    assert_int_equal(daemon_stop(&d), 0);
    let_days_pass(3);
    daemon_start(&d, NULL, NULL, NULL);
    metric_wait("ckksd_key_sets", 1);
    append("ckksd.conf", "[keys]\nunused_days = 2\n");
    daemon_signal(&d, SIGHUP);
    log_wait("event=keys_expired tenant=acme");
    metric_wait("ckksd_key_sets", 0);
    assert_int_equal(daemon_stop(&d), 0);
}

static void a_cards_health_is_published_and_its_trouble_is_logged_once(void **state) {
    (void)state;
    static char page[1 << 17];
    daemon_start(&d, NULL, "CKKSD_TEST_GPU_HEALTH=1", NULL);
    assert_true(daemon_logged(&d, "event=gpu_health name=\"Made-up ?Card?\" driver=1.2.3 temperature_c=40"));
    log_wait("event=gpu_throttled reasons=hardware_thermal temperature_c=91 power_w=123");
    log_wait("event=gpu_memory_errors uncorrected=2 corrected=7");
    log_wait("event=gpu_not_throttled temperature_c=40");
    assert_int_equal(daemon_http(&d, "/metrics", page, sizeof page), 200);
    static const char *const wanted[] = {
        "ckksd_gpu_info{name=\"Made-up ?Card?\",id=\"", /* a real card's, if there is one */
        ",driver=\"1.2.3\"} 1",
        "ckksd_gpu_temperature_celsius 40\n",
        "ckksd_gpu_power_watts 123.456\n",
        "ckksd_gpu_power_limit_watts 123.456\n",
        "ckksd_gpu_utilization_ratio 0.75\n",
        "ckksd_gpu_memory_used_bytes 3072\n",
        "ckksd_gpu_memory_errors_total{kind=\"uncorrected\"} 2\n",
        "ckksd_gpu_throttled{reason=\"hardware_thermal\"} 0\n",
        "ckksd_gpu_throttled{reason=\"power_cap\"} 1\n",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(page, wanted[i])) fail_msg("the page lacks %s", wanted[i]);
    assert_null(strstr(page, "ckksd_gpu_clock_megahertz")); /* what the card does not say is not made up */
    assert_int_equal(daemon_stop(&d), 0);
}

static void the_metrics_page_is_what_prometheus_reads(void **state) {
    (void)state;
    static char page[1 << 17];
    char command[256], path[128];
    start_with_keys(NULL, NULL, NULL);
    assert_int_equal(tiny_client_infer(&alice, x, 0), 0);
    assert_int_equal(control_code("Keys/KeyList", "x.y", NULL), RPC_UNAUTHENTICATED);
    metric_wait("ckksd_queue_seconds_count{model=\"tiny\",version=\"1\"}", 1); /* being put away */
    assert_int_equal(server_ready(), 1);                                       /* by the same thread: it is */
    assert_int_equal(daemon_http(&d, "/metrics", page, sizeof page), 200);
    static const char *const wanted[] = {
        "ckksd_requests_total{method=\"Inference/ModelInfer\",code=\"OK\"} 1",
        "ckksd_queue_seconds_bucket{model=\"tiny\",version=\"1\",le=\"+Inf\"} 1",
        "ckksd_stage_seconds_sum{",
        "ckksd_copy_out_seconds_count{",
        "ckksd_slots{state=\"idle\"} 1",
        "ckksd_rejections_total{cause=\"CKKS_AUTH\",reason=\"AUTH\"} 1",
        "ckksd_device_memory_bytes{purpose=\"arena\"} ",
        "ckksd_key_sets_resident ",
        "ckksd_ready 1",
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        if (!strstr(page, wanted[i])) fail_msg("the page lacks %s", wanted[i]);
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY); /* the driver's; an emulated card has none */
    if (nvml && fixture_device_kind() == DEVICE_CUDA)
        assert_non_null(strstr(page, "ckksd_gpu_temperature_celsius "));
    else
        assert_null(strstr(page, "ckksd_gpu_")); /* a CPU has none */
    if (nvml) dlclose(nvml);
    const char *body = strstr(page, "\r\n\r\n");
    assert_non_null(body);
    snprintf(path, sizeof path, "%s/metrics", d.folder);
    FILE *file = fopen(path, "w");
    fputs(body + 4, file);
    fclose(file);
    snprintf(command, sizeof command, "command -v promtool >/dev/null || exit 9; promtool check metrics < %s",
             path);
    const int rc = system(command);
    if (WIFEXITED(rc) && WEXITSTATUS(rc) == 9) skip();
    assert_int_equal(rc, 0);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(reload_takes_new_tokens_and_models_and_refuses_a_bad_configuration_whole),
        T(a_reload_asked_for_while_one_is_on_its_way_follows_it),
        T(a_model_whose_file_goes_while_it_is_loaded_retires_when_it_is),
        T(a_slot_that_recovers_while_a_model_is_captured_has_it_afterwards),
        T(tenants_are_those_of_the_token_file),
        T(a_reload_changes_how_long_unused_key_sets_stay),
        T(an_unloaded_version_is_retired_by_name_and_can_come_back),
        T(a_cards_health_is_published_and_its_trouble_is_logged_once),
        T(key_sets_that_nobody_uses_are_evicted_by_their_tenants_time),
        T(the_metrics_page_is_what_prometheus_reads),
        T(versions_can_come_and_go_without_end),
        T(administration_answers_on_its_own_socket),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
