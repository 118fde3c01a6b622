/* Key sets at rest: what was committed stays, what was not is invisible, and a start clears up. */
#include "daemon/keystore.h"
#include "kernels/base/log.h"

#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "tests/support/alloc_fault.h"
#include "tests/support/fixtures.h"
#include "tests/support/key_set_fixture.h"
#include "tests/support/library_fault.h"
#include "tests/support/temporary.h"

#include <dirent.h>
#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define NOW 1000000u

static key_set_fixture keys;
static char folder[64];
static keystore *ks;
static keystore_limits limits;

static int group_setup(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement wanted[] = {{KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}};
    key_set_fixture_init(&keys, &params, wanted, 2, 20000);
    assert_true(keys.part_count >= 3);
    return 0;
}
static int group_teardown(void **state) {
    (void)state;
    key_set_fixture_fini(&keys);
    return 0;
}

static void reopen(void) {
    ckks_error err = {0};
    keystore_close(ks);
    ks = NULL;
    if (keystore_open(&ks, folder, &limits, NOW, &err) != CKKS_OK) fail_msg("%s", err.message);
}
static int setup(void **state) {
    (void)state;
    temporary_folder_in_memory(folder, sizeof folder, "test-keystore");
    limits = (keystore_limits){
        .tenant_bytes_max = 1u << 30, .tenant_sets_max = 8, .upload_expire_s = 100, .allow_insecure = true};
    ks = NULL;
    reopen();
    return 0;
}
static int teardown(void **state) {
    (void)state;
    char command[128];
    keystore_close(ks);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* ---- vocabulary ---- */

static keystore_missing missing;
static keystore_state state_of;

static ckks_status begin(const char *tenant, ckks_error *err) {
    uint8_t id[32];
    return keystore_begin(ks, tenant, NULL, &keys.begin, NOW, id, &state_of, &missing, err);
}
static ckks_status part(const char *tenant, uint32_t index, ckks_error *err) {
    uint64_t bytes;
    uint32_t left;
    const uint8_t *data = key_set_fixture_part(&keys, index, &bytes);
    return keystore_part(ks, tenant, keys.id, index, data, bytes, &left, err);
}
static ckks_status commit(const char *tenant, ckks_error *err) {
    keystore_record record = {0};
    const ckks_status rc = keystore_commit(ks, tenant, keys.id, NOW, &record, err);
    if (rc == CKKS_OK) {
        assert_int_equal(record.key_count, 2);
        assert_int_equal(record.payload_bytes, keys.payload_bytes);
    }
    keystore_record_fini(&record);
    return rc;
}
static void upload(const char *tenant) {
    assert_int_equal(begin(tenant, NULL), CKKS_OK);
    for (uint32_t i = 0; i < keys.part_count; i++) assert_int_equal(part(tenant, i, NULL), CKKS_OK);
    assert_int_equal(commit(tenant, NULL), CKKS_OK);
}
static keystore_state look(const char *tenant) {
    uint64_t bytes, expires;
    assert_int_equal(keystore_status(ks, tenant, keys.id, NOW, &state_of, &missing, &bytes, &expires, NULL),
                     CKKS_OK);
    return state_of;
}
static uint32_t files_in(const char *name) {
    char path[128];
    uint32_t count = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    DIR *all = opendir(path);
    for (struct dirent *one; (one = readdir(all));) count += one->d_name[0] != '.';
    closedir(all);
    return count;
}
static ckks_status count_record(void *context, keystore_record *record, ckks_error *err) {
    (void)record, (void)err;
    (*(uint32_t *)context)++;
    return CKKS_OK;
}
static uint32_t committed(void) {
    uint32_t count = 0;
    assert_int_equal(keystore_each(ks, count_record, &count, NULL), CKKS_OK);
    return count;
}

/* ---- tests ---- */

static void an_upload_becomes_visible_at_commit_and_is_what_was_sent(void **state) {
    (void)state;
    keystore_record record = {0};
    keystore_payload payload;
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(missing.count, keys.part_count);
    for (uint32_t i = 0; i < keys.part_count; i++) assert_int_equal(part("acme", i, NULL), CKKS_OK);
    assert_int_equal(committed(), 0);
    assert_int_equal(keystore_commit(ks, "acme", keys.id, NOW, &record, NULL), CKKS_OK);
    assert_int_equal(committed(), 1);
    assert_int_equal(
        keystore_map_payload(ks, keys.id, record.manifest, record.manifest_bytes, &payload, NULL), CKKS_OK);
    assert_memory_equal(payload.address, keys.payload, keys.payload_bytes);
    assert_memory_equal(payload.view.seed, keys.seed, 32);
    keystore_payload_fini(&payload);
    keystore_record_fini(&record);
    assert_int_equal(files_in("staging"), 0);
    assert_int_equal(files_in("payload"), 1);
}

static void an_upload_resumes_after_a_restart_where_it_was(void **state) {
    (void)state;
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(part("acme", 1, NULL), CKKS_OK);
    reopen();
    assert_int_equal(look("acme"), KEYSTORE_UPLOADING);
    assert_int_equal(missing.count, keys.part_count - 1);
    assert_int_equal(missing.parts[0], 0);
    assert_int_equal(missing.parts[1], 2);
    assert_int_equal(begin("acme", NULL), CKKS_OK); /* the client begins again: the same */
    assert_int_equal(missing.count, keys.part_count - 1);
    upload("acme");
}

static void parts_are_idempotent_and_checked(void **state) {
    (void)state;
    uint32_t left;
    uint64_t bytes;
    ckks_error err = {0};
    const uint8_t *data = key_set_fixture_part(&keys, 0, &bytes);
    assert_int_equal(part("acme", 0, NULL), CKKS_KEY_UNKNOWN);
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(part("acme", 0, NULL), CKKS_OK);
    assert_int_equal(part("acme", 0, NULL), CKKS_OK);
    assert_int_equal(keystore_part(ks, "acme", keys.id, 1, data, bytes, &left, &err), CKKS_DIGEST_MISMATCH);
    assert_int_equal(keystore_part(ks, "acme", keys.id, 0, data, bytes - 1, &left, NULL), CKKS_MALFORMED);
    assert_int_equal(keystore_part(ks, "acme", keys.id, keys.part_count, data, bytes, &left, NULL),
                     CKKS_MALFORMED);
    assert_int_equal(keystore_part(ks, "acme", keys.id, UINT32_MAX, data, bytes, &left, NULL),
                     CKKS_MALFORMED);
    assert_int_equal(look("acme"), KEYSTORE_UPLOADING);
    assert_int_equal(missing.count, keys.part_count - 1);
}

static void a_commit_before_the_last_part_is_refused_and_changes_nothing(void **state) {
    (void)state;
    ckks_error err = {0};
    assert_int_equal(commit("acme", NULL), CKKS_KEY_UNKNOWN);
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(part("acme", 0, NULL), CKKS_OK);
    assert_int_equal(commit("acme", &err), CKKS_FAILED_PRECONDITION);
    assert_string_equal(err.field, "missing_parts");
    assert_int_equal(look("acme"), KEYSTORE_UPLOADING);
}

static void committing_and_beginning_again_say_that_it_is_there(void **state) {
    (void)state;
    upload("acme");
    assert_int_equal(commit("acme", NULL), CKKS_OK);
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(state_of, KEYSTORE_COMMITTED);
}

static void another_tenants_set_looks_like_none(void **state) {
    (void)state;
    upload("acme");
    assert_int_equal(look("bolt"), KEYSTORE_UNKNOWN);
    assert_int_equal(keystore_delete(ks, "bolt", keys.id, NULL), CKKS_KEY_UNKNOWN);
    assert_int_equal(look("acme"), KEYSTORE_COMMITTED);
}

static void two_tenants_with_one_set_share_the_file_until_both_are_gone(void **state) {
    (void)state;
    upload("acme");
    upload("bolt");
    assert_int_equal(files_in("payload"), 1);
    assert_int_equal(keystore_delete(ks, "acme", keys.id, NULL), CKKS_OK);
    assert_int_equal(files_in("payload"), 1);
    assert_int_equal(look("bolt"), KEYSTORE_COMMITTED);
    assert_int_equal(keystore_delete_tenant(ks, "bolt", NULL), CKKS_OK);
    assert_int_equal(files_in("payload"), 0);
}

static void quotas_are_checked_before_anything_is_made(void **state) {
    (void)state;
    uint8_t id[32];
    ckks_error err = {0};
    const token_quota small = {.key_bytes = keys.payload_bytes - 1}, none = {.key_sets = 1};
    assert_int_equal(keystore_begin(ks, "acme", &small, &keys.begin, NOW, id, &state_of, &missing, &err),
                     CKKS_QUOTA);
    assert_string_equal(err.field, "key_bytes");
    assert_int_equal(files_in("staging"), 0);
    upload("acme");
    key_set_fixture more;
    const key_requirement wanted[] = {{KEY_GALOIS, 5, 0}};
    key_set_fixture_init(&more, context_params(keys.context), wanted, 1, 20000);
    memset(&err, 0, sizeof err);
    assert_int_equal(keystore_begin(ks, "acme", &none, &more.begin, NOW, id, &state_of, &missing, &err),
                     CKKS_QUOTA);
    assert_string_equal(err.field, "key_sets");
    key_set_fixture_fini(&more);
}

static void begin_refuses_what_does_not_add_up(void **state) {
    (void)state;
    ckks_error err = {0};
    const Ckksd__V1__KeyBeginRequest good = keys.begin;
    keys.begin.payload_bytes++;
    assert_int_equal(begin("acme", &err), CKKS_MALFORMED);
    assert_string_equal(err.field, "payload_bytes");
    keys.begin = good, keys.begin.part_bytes = 0;
    assert_int_equal(begin("acme", NULL), CKKS_MALFORMED);
    keys.begin.part_bytes = KEYSTORE_PART_BYTES_MAX + 1;
    assert_int_equal(begin("acme", NULL), CKKS_MALFORMED);
    keys.begin.part_bytes = 1; /* more parts than are taken */
    assert_int_equal(begin("acme", NULL),
                     keys.payload_bytes > KEYSTORE_PARTS_MAX ? CKKS_TOO_LARGE : CKKS_MALFORMED);
    keys.begin = good, keys.begin.n_part_digests--;
    assert_int_equal(begin("acme", NULL), CKKS_MALFORMED);
    keys.begin = good, keys.begin.manifest = NULL;
    assert_int_equal(begin("acme", NULL), CKKS_MALFORMED);
    keys.begin = good;
    keys.digest_list[0].len = 31;
    assert_int_equal(begin("acme", NULL), CKKS_MALFORMED);
    keys.digest_list[0].len = 32;
    limits.allow_insecure = false;
    reopen();
    assert_int_equal(begin("acme", NULL), CKKS_INSECURE_PARAMETERS);
    assert_int_equal(files_in("staging"), 0);
}

static void an_upload_with_other_parts_is_refused_until_deleted(void **state) {
    (void)state;
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    keys.digests[0][0] ^= 1;
    assert_int_equal(begin("acme", NULL), CKKS_ALREADY_EXISTS);
    keys.digests[0][0] ^= 1;
    assert_int_equal(keystore_delete(ks, "acme", keys.id, NULL), CKKS_OK);
    assert_int_equal(files_in("staging"), 0);
    upload("acme");
}

static void a_payload_with_another_digest_or_a_residue_out_of_range_is_dropped(void **state) {
    (void)state;
    /* the client lies consistently: it declares digests of damaged parts, so only the whole shows it */
    const uint8_t keep = keys.payload[0];
    keys.payload[0] ^= 1;
    uint64_t bytes;
    const uint8_t *data = key_set_fixture_part(&keys, 0, &bytes);
    sha256(keys.digests[0], data, bytes);
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    for (uint32_t i = 0; i < keys.part_count; i++) assert_int_equal(part("acme", i, NULL), CKKS_OK);
    assert_int_equal(commit("acme", NULL), CKKS_DIGEST_MISMATCH);
    assert_int_equal(look("acme"), KEYSTORE_UNKNOWN);
    assert_int_equal(files_in("staging"), 0);
    keys.payload[0] = keep;
    sha256(keys.digests[0], data, bytes);
    upload("acme");
}

static void unfinished_uploads_expire(void **state) {
    (void)state;
    uint32_t dropped;
    assert_int_equal(begin("acme", NULL), CKKS_OK);
    assert_int_equal(keystore_expire(ks, NOW + 99, &dropped, NULL), CKKS_OK);
    assert_int_equal(dropped, 0);
    assert_int_equal(keystore_expire(ks, NOW + 101, &dropped, NULL), CKKS_OK);
    assert_int_equal(dropped, 1);
    assert_int_equal(files_in("staging"), 0);
    assert_int_equal(look("acme"), KEYSTORE_UNKNOWN);
}

static void a_start_removes_files_that_no_row_names_and_reports_lost_ones(void **state) {
    (void)state;
    char path[256], hex[65];
    upload("acme");
    snprintf(path, sizeof path, "%s/payload/%064d", folder, 0);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/staging/acme.%064d", folder, 0);
    fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/staging/noise", folder);
    fclose(fopen(path, "w"));
    reopen();
    assert_int_equal(files_in("payload"), 1);
    assert_int_equal(files_in("staging"), 0);
    snprintf(path, sizeof path, "%s/payload/%s", folder, hex_encode(hex, keys.id, 32));
    assert_int_equal(unlink(path), 0);
    reopen();
    assert_int_equal(look("acme"), KEYSTORE_EVICTED);
    upload("acme"); /* upload again */
    assert_int_equal(look("acme"), KEYSTORE_COMMITTED);
}

static char logged[2048];
static void keep_line(void *context, log_level level, const char *line) {
    (void)context, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

static void a_name_of_a_file_makes_no_line_of_the_log(void **state) {
    (void)state;
    char path[256];
    snprintf(path, sizeof path, "%s/staging/x\nevent=ready \"", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    log_set_sink(keep_line, NULL);
    reopen();
    log_set_sink(NULL, NULL);
    assert_int_equal(files_in("staging"), 0);
    assert_non_null(strstr(logged, "event=key_file_removed folder=staging file=\"x\\x0aevent=ready \\x22\""));
    assert_null(strchr(logged, '\n'));
}

static void a_set_whose_file_vanishes_while_running_can_be_uploaded_again(void **state) {
    (void)state;
    char path[256], hex[65];
    struct stat st;
    upload("acme");
    snprintf(path, sizeof path, "%s/payload/%s", folder, hex_encode(hex, keys.id, 32));
    assert_int_equal(truncate(path, 16), 0);
    assert_int_equal(look("acme"), KEYSTORE_EVICTED);
    upload("acme");
    assert_int_equal(look("acme"), KEYSTORE_COMMITTED);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size > 16);
}

static void a_second_daemon_on_the_same_folder_is_refused(void **state) {
    (void)state;
    keystore *second = NULL;
    assert_int_equal(keystore_open(&second, folder, &limits, NOW, NULL), CKKS_IO);
    assert_null(second);
}

static void a_catalogue_of_a_later_version_is_refused_by_name(void **state) {
    (void)state;
    char path[256];
    sqlite3 *catalogue = NULL;
    ckks_error err = {0};
    keystore_close(ks);
    ks = NULL;
    snprintf(path, sizeof path, "%s/catalogue.sqlite", folder);
    assert_int_equal(sqlite3_open(path, &catalogue), SQLITE_OK);
    assert_int_equal(sqlite3_exec(catalogue, "PRAGMA user_version = 9", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(catalogue), SQLITE_OK);
    assert_int_equal(keystore_open(&ks, folder, &limits, NOW, &err), CKKS_UNSUPPORTED_VERSION);
    assert_non_null(strstr(err.message, "schema version 9"));
}

/* A child does one step of an upload and dies without a word; the parent looks what is left. */
static void kill_minus_nine_at_any_step_leaves_an_upload_or_a_committed_set(void **state) {
    (void)state;
    for (uint32_t steps = 0; steps <= keys.part_count + 2; steps++) {
        keystore_close(ks);
        ks = NULL;
        const pid_t child = fork();
        if (child == 0) {
            if (keystore_open(&ks, folder, &limits, NOW, NULL) != CKKS_OK) _exit(1);
            if (steps > 0 && begin("acme", NULL) != CKKS_OK) _exit(1);
            for (uint32_t i = 0; i < keys.part_count && i + 1 < steps; i++)
                if (part("acme", i, NULL) != CKKS_OK) _exit(1);
            if (steps == keys.part_count + 2) (void)commit("acme", NULL);
            kill(getpid(), SIGKILL);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        reopen();
        const keystore_state now = look("acme");
        if (steps == 0) assert_int_equal(now, KEYSTORE_UNKNOWN);
        if (steps > 0 && steps < keys.part_count + 2) {
            assert_int_equal(now, KEYSTORE_UPLOADING);
            assert_int_equal(missing.count, keys.part_count - (steps - 1));
        }
        if (steps == keys.part_count + 2) assert_int_equal(now, KEYSTORE_COMMITTED);
        if (now != KEYSTORE_UNKNOWN) assert_int_equal(keystore_delete(ks, "acme", keys.id, NULL), CKKS_OK);
    }
}

static void every_failing_allocation_is_reported_and_a_retry_works(void **state) {
    (void)state;
    uint32_t failures = 0;
    for (uint64_t n = 1; n < 400; n += n < 60 ? 1 : 7) {
        alloc_fault_set(n);
        ckks_status rc = begin("acme", NULL);
        for (uint32_t i = 0; rc == CKKS_OK && i < keys.part_count; i++) rc = part("acme", i, NULL);
        if (rc == CKKS_OK) rc = commit("acme", NULL);
        const uint64_t calls = alloc_fault_calls();
        alloc_fault_set(0);
        if (rc != CKKS_OK) failures++;
        if (rc == CKKS_OK) assert_int_equal(keystore_delete(ks, "acme", keys.id, NULL), CKKS_OK);
        if (calls < n) break;
    }
    assert_true(failures > 5);
    upload("acme");
}

static void an_unused_set_is_evicted_and_can_be_uploaded_again(void **state) {
    (void)state;
    bool is_evicted = true;
    upload("acme");
    upload("bolt");
    assert_int_equal(keystore_used(ks, "acme", keys.id, NOW + 10, NULL), CKKS_OK);
    assert_int_equal(keystore_evict(ks, "acme", keys.id, NOW + 9, &is_evicted, NULL), CKKS_OK);
    assert_false(is_evicted); /* it was used since */
    assert_int_equal(look("acme"), KEYSTORE_COMMITTED);
    assert_int_equal(keystore_evict(ks, "acme", keys.id, NOW + 10, &is_evicted, NULL), CKKS_OK);
    assert_true(is_evicted);
    assert_int_equal(look("acme"), KEYSTORE_EVICTED);
    assert_int_equal(look("bolt"), KEYSTORE_COMMITTED); /* of the same file */
    assert_int_equal(files_in("payload"), 1);
    assert_int_equal(keystore_evict(ks, "acme", keys.id, NOW + 10, &is_evicted, NULL), CKKS_OK);
    assert_false(is_evicted); /* it is already */
    assert_int_equal(keystore_evict(ks, "bolt", keys.id, NOW, &is_evicted, NULL), CKKS_OK);
    assert_int_equal(files_in("payload"), 0);
    reopen();
    assert_int_equal(look("acme"), KEYSTORE_EVICTED);
    upload("acme");
    assert_int_equal(look("acme"), KEYSTORE_COMMITTED);
}

/* ---- deletions that fail ---- */

static ckks_status delete_one(keystore *store, const char *tenant, ckks_error *err) {
    return keystore_delete(store, tenant, keys.id, err);
}
static bool can_be_used(void) {
    keystore_payload payload = {0};
    static uint8_t manifest[1 << 16];
    const size_t bytes = ckksd__v1__key_set_manifest__get_packed_size(keys.begin.manifest);
    assert_true(bytes <= sizeof manifest);
    ckksd__v1__key_set_manifest__pack(keys.begin.manifest, manifest);
    const ckks_status rc = keystore_map_payload(ks, keys.id, manifest, bytes, &payload, NULL);
    keystore_payload_fini(&payload);
    return rc == CKKS_OK;
}

/* The answer is what is there, now and after a restart. */
static void assert_agrees(ckks_status rc, const char *failed) {
    const keystore_state expected = rc == CKKS_OK ? KEYSTORE_UNKNOWN : KEYSTORE_COMMITTED;
    for (int i = 0; i < 2; i++) {
        if (look("acme") != expected || can_be_used() != (rc != CKKS_OK))
            fail_msg("%s: answered %s, state %d%s", failed, ckks_status_name(rc), look("acme"),
                     i ? " after a restart" : "");
        if (i == 0) reopen();
    }
}

static void a_deletion_is_whole_or_was_none_whatever_fails_in_it(void **state) {
    (void)state;
    ckks_status (*const ways[])(keystore *, const char *, ckks_error *) = {delete_one,
                                                                           keystore_delete_tenant};
    uint32_t refused = 0, done = 0;
    for (size_t way = 0; way < 2; way++)
        for (int late = 0; late < 2; late++)
            for (uint64_t n = 1;; n++) {
                ckks_error err = {0};
                if (look("acme") == KEYSTORE_UNKNOWN) upload("acme");
                library_fault_set(n, late);
                const ckks_status rc = ways[way](ks, "acme", &err);
                const char *failed = library_fault_name();
                library_fault_set(0, false);
                if (rc != CKKS_OK) assert_true(err.code == rc && err.message[0]);
                assert_agrees(rc, failed ? failed : "nothing");
                if (!failed) break;
                refused += rc != CKKS_OK, done += rc == CKKS_OK;
            }
    printf("  %u refused, %u done all the same\n", refused, done);
    assert_true(refused > 5 && done > 5);
}

static void a_deletion_without_memory_deletes_nothing(void **state) {
    (void)state;
    ckks_status (*const ways[])(keystore *, const char *, ckks_error *) = {delete_one,
                                                                           keystore_delete_tenant};
    for (size_t way = 0; way < 2; way++)
        for (uint64_t n = 1;; n++) {
            if (look("acme") == KEYSTORE_UNKNOWN) upload("acme");
            alloc_fault_set(n);
            const ckks_status rc = ways[way](ks, "acme", NULL);
            const bool has_failed = alloc_fault_calls() >= n;
            alloc_fault_set(0);
            assert_agrees(rc, "malloc");
            if (!has_failed) break;
            assert_int_equal(rc, CKKS_RESOURCE_EXHAUSTED);
        }
}

/* A start without memory fails; it does not forget. */
static void a_walk_without_memory_skips_no_row(void **state) {
    (void)state;
    upload("acme");
    upload("bolt");
    for (uint64_t n = 1;; n++) {
        uint32_t count = 0;
        ckks_error err = {0};
        alloc_fault_set(n);
        const ckks_status rc = keystore_each(ks, count_record, &count, &err);
        const bool has_failed = alloc_fault_calls() >= n;
        alloc_fault_set(0);
        assert_int_equal(rc, has_failed ? CKKS_RESOURCE_EXHAUSTED : CKKS_OK);
        assert_int_equal(err.code, rc);
        if (!has_failed) {
            assert_int_equal(count, 2);
            break;
        }
    }
}

/* The catalogue lets go of all rows but one of its own. */
static void hold_rows_of(const char *tenant, const char *exception) {
    sqlite3 *catalogue = NULL;
    char path[128], text[256];
    keystore_close(ks);
    ks = NULL;
    snprintf(path, sizeof path, "%s/catalogue.sqlite", folder);
    snprintf(
        text, sizeof text,
        "CREATE TRIGGER hold BEFORE DELETE ON key_sets WHEN OLD.tenant = '%s' AND lower(hex(OLD.id)) <> '%s'"
        " BEGIN SELECT RAISE(ABORT, 'held'); END",
        tenant, exception);
    assert_int_equal(sqlite3_open(path, &catalogue), SQLITE_OK);
    assert_int_equal(sqlite3_exec(catalogue, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(catalogue), SQLITE_OK);
    reopen();
}

static void a_tenant_with_a_row_that_cannot_go_loses_none(void **state) {
    (void)state;
    char hex[2 * KEY_SET_ID_BYTES + 1];
    ckks_error err = {0};
    key_set_fixture other;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement wanted[] = {{KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}};
    upload("acme");
    const key_set_fixture first = keys;
    key_set_fixture_init(&other, &params, wanted, 2, 20000);
    assert_true(memcmp(other.id, first.id, sizeof first.id) != 0);
    keys = other;
    upload("acme");
    keys = first;
    upload("bolt"); /* the same file as acme's */
    hold_rows_of("acme", hex_encode(hex, memcmp(first.id, other.id, 32) < 0 ? first.id : other.id, 32));
    assert_int_equal(keystore_delete_tenant(ks, "acme", &err), CKKS_IO);
    assert_non_null(strstr(err.message, "held"));
    assert_int_equal(committed(), 3);
    assert_int_equal(files_in("payload"), 2);
    reopen();
    assert_int_equal(committed(), 3);
    assert_int_equal(files_in("payload"), 2);
    assert_int_equal(keystore_delete_tenant(ks, "bolt", NULL), CKKS_OK);
    assert_int_equal(committed(), 2);
    assert_int_equal(files_in("payload"), 2); /* both are acme's, too */
    key_set_fixture_fini(&other);
}

int main(void) {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(an_unused_set_is_evicted_and_can_be_uploaded_again),
        T(an_upload_becomes_visible_at_commit_and_is_what_was_sent),
        T(an_upload_resumes_after_a_restart_where_it_was),
        T(parts_are_idempotent_and_checked),
        T(a_commit_before_the_last_part_is_refused_and_changes_nothing),
        T(committing_and_beginning_again_say_that_it_is_there),
        T(another_tenants_set_looks_like_none),
        T(two_tenants_with_one_set_share_the_file_until_both_are_gone),
        T(quotas_are_checked_before_anything_is_made),
        T(begin_refuses_what_does_not_add_up),
        T(an_upload_with_other_parts_is_refused_until_deleted),
        T(a_payload_with_another_digest_or_a_residue_out_of_range_is_dropped),
        T(unfinished_uploads_expire),
        T(a_start_removes_files_that_no_row_names_and_reports_lost_ones),
        T(a_name_of_a_file_makes_no_line_of_the_log),
        T(a_set_whose_file_vanishes_while_running_can_be_uploaded_again),
        T(a_second_daemon_on_the_same_folder_is_refused),
        T(a_catalogue_of_a_later_version_is_refused_by_name),
        T(kill_minus_nine_at_any_step_leaves_an_upload_or_a_committed_set),
        T(every_failing_allocation_is_reported_and_a_retry_works),
        T(a_deletion_is_whole_or_was_none_whatever_fails_in_it),
        T(a_deletion_without_memory_deletes_nothing),
        T(a_walk_without_memory_skips_no_row),
        T(a_tenant_with_a_row_that_cannot_go_loses_none),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
