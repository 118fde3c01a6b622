/*
 * Files under a system that fails: each call of the system fails in turn. What comes of it is a typed error,
 * nothing half written is left under the name or beside it, and the next try works.
 */
#include "client/lib/files.h"
#include "client/lib/files_keys.h"
#include "daemon/config.h"
#include "daemon/keystore.h"
#include "proto/token.h"
#include "tests/support/fixtures.h"
#include "tests/support/key_set_fixture.h"
#include "tests/support/model_fixture.h"
#include "tests/support/system_fault.h"
#include "tests/support/temporary.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64], path[96];
static client_secret_key *secret;
static client_key_set *key_set;

static int set_up(void **state) {
    (void)state;
    model_fixture fixture;
    ckks_error err = {0};
    model_fixture_init(&fixture);
    client_model *model = model_fixture_model(&fixture);
    const bool is_good =
        client_secret_key_generate(&secret, &model->params, &err) == CKKS_OK &&
        client_key_set_generate(&key_set, secret, model->keys, model->key_count, NULL, NULL, &err) == CKKS_OK;
    client_model_destroy(model);
    if (!is_good) return -1;
    temporary_folder(folder, sizeof folder, "test-system");
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}
static int tear_down(void **state) {
    (void)state;
    client_key_set_destroy(key_set);
    client_secret_key_destroy(secret);
    (void)unlink(path);
    return rmdir(folder);
}

static uint32_t files_in(const char *where) {
    uint32_t count = 0;
    DIR *all = opendir(where);
    assert_non_null(all);
    for (struct dirent *one; (one = readdir(all));) count += one->d_name[0] != '.';
    closedir(all);
    return count;
}
static bool holds(const char *name, const char *text) {
    char got[64] = "";
    FILE *file = fopen(name, "re");
    if (!file) return !text;
    const size_t size = fread(got, 1, sizeof got - 1, file);
    fclose(file);
    return text && strlen(text) == size && !memcmp(got, text, size);
}
static bool has_text(const char *text) {
    return holds(path, text);
}
/* what is beside the file holds `text` */
static void remove_beside(const char *text) {
    DIR *all = opendir(folder);
    assert_non_null(all);
    for (struct dirent *one; (one = readdir(all));) {
        char name[sizeof folder + sizeof one->d_name];
        snprintf(name, sizeof name, "%s/%s", folder, one->d_name);
        if (one->d_name[0] == '.' || !strcmp(name, path)) continue;
        assert_true(holds(name, text));
        assert_int_equal(unlink(name), 0);
    }
    closedir(all);
}
static void spill(const char *text) {
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_int_equal(chmod(path, 0600), 0); /* a token file that others may read is refused */
}

/* ---- one file under one name ---- */

typedef ckks_status step(ckks_error *err);

static ckks_status replace(ckks_error *err) {
    return file_write(path, "new text", 8, 0600, true, err);
}
static ckks_status create(ckks_error *err) {
    return file_write(path, "new text", 8, 0600, false, err);
}
static ckks_status add_token(ckks_error *err) {
    char text[TOKEN_TEXT_SIZE];
    token_entry entry;
    const ckks_status rc = token_generate(text, &entry, "id", "tenant", TOKEN_SCOPE_INFER, err);
    return rc == CKKS_OK ? token_file_add(path, &entry, err) : rc;
}
static ckks_status write_secret(ckks_error *err) {
    return secret_file_write(path, secret, NULL, err);
}
static ckks_status write_keys(ckks_error *err) {
    return key_set_file_write(path, key_set, false, err);
}
static ckks_status read_secret(ckks_error *err) {
    client_secret_key *key = NULL;
    const ckks_status rc = secret_file_read(&key, path, NULL, false, err);
    client_secret_key_destroy(key);
    return rc;
}
static ckks_status peek_keys(ckks_error *err) {
    client_key_set *head = NULL;
    const ckks_status rc = key_set_file_peek(&head, path, false, err);
    client_key_set_destroy(head);
    return rc;
}
static ckks_status load_configuration(ckks_error *err) {
    config *c = calloc(1, sizeof *c);
    assert_non_null(c);
    const ckks_status rc = config_load(c, path, err);
    free(c);
    return rc;
}

/* Calls that fail in turn; `old` is what the file holds before (NULL: there is none). Returns how many there
 * were. */
static uint64_t each_call_fails(const char *what, step *run, const char *old) {
    uint64_t n = 1, refused = 0;
    for (;; n++) {
        ckks_error err = {0};
        if (old)
            spill(old);
        else
            (void)unlink(path);
        system_fault_set(n, n % 2 ? ENOSPC : EIO);
        const ckks_status rc = run(&err);
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        if (!has_failed) {
            assert_int_equal(rc, CKKS_OK);
            break;
        }
        assert_true(n < 1000);
        if (files_in(folder) != (has_text(NULL) ? 0 : 1))
            fail_msg("%s: call %lu leaves something beside", what, n);
        if (rc == CKKS_OK) fail_msg("%s: call %lu failed unheard", what, n);
        refused++;
        if (rc != CKKS_IO && rc != CKKS_NOT_FOUND)
            fail_msg("%s: call %lu: %s: %s", what, n, ckks_status_name(rc), err.message);
        if (!strstr(err.message, "/tmp"))
            fail_msg("%s: call %lu does not say where: %s", what, n, err.message);
        /* what is there now is whole: as before, or (only its folder was not synced) as it was to be */
        if (!has_text(old) && files_in(folder)) {
            ckks_error again = {0};
            const ckks_status second = run(&again);
            if (second != CKKS_OK && second != CKKS_ALREADY_EXISTS && !strstr(again.message, "File exists"))
                fail_msg("%s: after call %lu: %s", what, n, again.message);
        }
    }
    assert_true(refused > 0);
    printf("  %s: %lu calls\n", what, n - 1);
    return n - 1;
}

static void a_file_is_replaced_or_made_whole_or_not_at_all(void **state) {
    (void)state;
    assert_true(each_call_fails("replacing a file", replace, "old text") >= 5);
    assert_true(each_call_fails("making a file", create, NULL) >= 5);
    assert_true(each_call_fails("adding a token", add_token, "# tokens\n") >= 8);
    assert_true(each_call_fails("the first token", add_token, NULL) >= 6);
    assert_true(each_call_fails("a secret key", write_secret, NULL) >= 5);
    assert_true(each_call_fails("a key set", write_keys, NULL) >= 5);
}

/* Its last call is the sync of its folder. */
static void a_folder_that_cannot_be_synced_is_as_good_as_it_gets(void **state) {
    (void)state;
    static const struct {
        step *run;
        const char *old;
    } writers[] = {{replace, "old text"}, {create, NULL}, {add_token, "# tokens\n"}, {add_token, NULL}};
    static const int refusals[] = {EINVAL, EROFS, EOPNOTSUPP, ENOSYS, EBADF};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        (void)unlink(path);
        if (writers[i].old) spill(writers[i].old);
        system_fault_set(0, 0);
        assert_int_equal(writers[i].run(NULL), CKKS_OK);
        const uint64_t last = system_fault_calls();
        for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
            ckks_error err = {0};
            (void)unlink(path);
            if (writers[i].old) spill(writers[i].old);
            system_fault_set(last, refusals[k]);
            const ckks_status rc = writers[i].run(&err);
            assert_int_equal(system_fault_calls(), last);
            if (rc != CKKS_OK) fail_msg("writer %zu, %s: %s", i, strerror(refusals[k]), err.message);
            assert_false(has_text(writers[i].old));
        }
        /* a disk that fails is another matter: what is there is whole, a token is gone again */
        ckks_error err = {0};
        (void)unlink(path);
        if (writers[i].old) spill(writers[i].old);
        system_fault_set(last, EIO);
        assert_int_equal(writers[i].run(&err), CKKS_IO);
        system_fault_set(0, 0);
        if (writers[i].run == add_token) {
            assert_true(has_text(writers[i].old) && !strstr(err.message, "still in it"));
        } else {
            assert_true(has_text("new text") && strstr(err.message, "may not survive"));
            assert_string_equal(err.field, "folder");
        }
    }
    (void)unlink(path);
}

/* ---- what a name may stand for ---- */

static void a_system_without_nameless_files_gets_the_same_files(void **state) {
    (void)state;
    ckks_error err = {0};
    spill("old text");
    system_fault_set(1, EOPNOTSUPP); /* the first call is the nameless file's */
    assert_int_equal(replace(&err), CKKS_OK);
    assert_true(system_fault_calls() > 1 && has_text("new text"));
    system_fault_set(1, EOPNOTSUPP);
    assert_int_equal(create(&err), CKKS_ALREADY_EXISTS);
    (void)unlink(path);
    err = (ckks_error){0};
    system_fault_set(1, EOPNOTSUPP);
    assert_int_equal(create(&err), CKKS_OK);
    system_fault_set(0, 0);
    assert_true(has_text("new text"));
    assert_int_equal(files_in(folder), 1);
}

static void a_pipe_or_device_is_written_to_and_never_replaced(void **state) {
    (void)state;
    ckks_error err = {0};
    struct stat st;
    char got[16] = "";
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    const int reader = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_int_equal(replace(&err), CKKS_OK);
    assert_int_equal(read(reader, got, sizeof got), 8);
    assert_string_equal(got, "new text");
    close(reader);
    assert_true(stat(path, &st) == 0 && S_ISFIFO(st.st_mode));
    assert_int_equal(create(&err), CKKS_ALREADY_EXISTS);
    (void)unlink(path);
}

static void the_file_behind_a_link_is_replaced_and_no_secret_follows_one(void **state) {
    (void)state;
    ckks_error err = {0};
    struct stat st;
    char other[128];
    snprintf(other, sizeof other, "%s/other", folder);
    (void)unlink(path);
    assert_int_equal(symlink("other", path), 0);
    /* a link that somebody left where a secret key is to be: it leads nowhere, or to a file */
    assert_int_equal(write_secret(&err), CKKS_ALREADY_EXISTS);
    assert_int_equal(access(other, F_OK), -1);
    FILE *file = fopen(other, "we");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(write_secret(NULL), CKKS_ALREADY_EXISTS);
    assert_true(stat(other, &st) == 0 && st.st_size == 0);
    assert_int_equal(replace(NULL), CKKS_OK);
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && has_text("new text"));
    (void)unlink(other);
    (void)unlink(path);
}

static void a_file_has_no_more_rights_than_the_umask_leaves(void **state) {
    (void)state;
    struct stat st;
    for (uint32_t i = 0; i < 4; i++) {
        const mode_t mask = i & 1 ? 077 : 022, before = umask(mask);
        (void)unlink(path);
        if (i & 2) system_fault_set(1, EOPNOTSUPP);
        assert_int_equal(file_write(path, "text", 4, 0644, true, NULL), CKKS_OK);
        system_fault_set(0, 0);
        umask(before);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0644 & ~mask);
    }
    /* nor more than its owner left to the one before */
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(file_write(path, "text", 4, 0644, true, NULL), CKKS_OK);
    assert_true(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    (void)unlink(path);
}

/* Killed before each call in turn: the old file or the new one, whole. Returns how many calls there were. */
static uint64_t a_kill_before_each_call(const char *what, step *run, const char *old) {
    for (uint64_t n = 1;; n++) {
        if (old)
            spill(old);
        else
            (void)unlink(path);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            system_fault_set(n, SYSTEM_FAULT_KILL);
            _exit(run(NULL) == CKKS_OK ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!has_text(old) && !has_text("new text"))
            fail_msg("%s: killed before call %lu: in parts", what, n);
        const uint32_t beside = files_in(folder) - !has_text(NULL);
        if (beside) { /* only where one file takes another's name, and then all of it */
            if (!old || beside > 1 || !has_text(old))
                fail_msg("%s: killed before call %lu: %u files beside", what, n, beside);
            remove_beside("new text");
        }
        if (WIFSIGNALED(status)) continue;
        assert_int_equal(status, 0);
        assert_true(has_text("new text"));
        (void)unlink(path);
        return n - 1;
    }
}

static void a_kill_leaves_whole_files(void **state) {
    (void)state;
    const int nameless = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (nameless < 0) {
        print_message("skipped: files without a name (this file system has none)\n");
        skip();
    }
    close(nameless);
    assert_true(a_kill_before_each_call("making a file", create, NULL) >= 4);
    assert_true(a_kill_before_each_call("writing where nothing is", replace, NULL) >= 4);
    assert_true(a_kill_before_each_call("replacing a file", replace, "old text") >= 5);
}

static void each_call_of_reading_fails(const char *what, step *run) {
    uint64_t n = 1;
    for (;; n++) {
        ckks_error err = {0};
        system_fault_set(n, EIO);
        const ckks_status rc = run(&err);
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        if (!has_failed) {
            if (rc != CKKS_OK) fail_msg("%s: %s", what, err.message);
            break;
        }
        assert_true(n < 1000);
        if (rc != CKKS_IO && rc != CKKS_NOT_FOUND)
            fail_msg("%s: call %lu: %s: %s", what, n, ckks_status_name(rc), err.message);
        if (!strstr(err.message, path))
            fail_msg("%s: call %lu does not name its file: %s", what, n, err.message);
    }
    assert_true(n > 2);
    printf("  %s: %lu calls\n", what, n - 1);
}

static void a_file_that_cannot_be_read_is_said_to_be_so(void **state) {
    (void)state;
    char text[512];
    (void)unlink(path);
    assert_int_equal(write_secret(NULL), CKKS_OK);
    each_call_of_reading_fails("reading a secret key", read_secret);
    (void)unlink(path);
    assert_int_equal(write_keys(NULL), CKKS_OK);
    each_call_of_reading_fails("looking at a key set", peek_keys);
    snprintf(text, sizeof text, "[server]\nmodels = %s\ndata = %s\ntokens = %s\n", folder, folder, path);
    spill(text);
    each_call_of_reading_fails("reading a configuration", load_configuration);
}

/* ---- key sets at rest ---- */

#define NOW 1000000u

static key_set_fixture keys;
static char store[64];
static keystore *ks;

static ckks_status store_open(ckks_error *err) {
    const keystore_limits limits = {
        .tenant_bytes_max = 1u << 30, .tenant_sets_max = 8, .upload_expire_s = 100, .allow_insecure = true};
    keystore_close(ks);
    ks = NULL;
    return keystore_open(&ks, store, &limits, NOW, err);
}
static ckks_status store_upload(ckks_error *err) {
    uint8_t id[32];
    keystore_state reached;
    keystore_missing missing;
    keystore_record record = {0};
    ckks_status rc = keystore_begin(ks, "alice", NULL, &keys.begin, NOW, id, &reached, &missing, err);
    for (uint32_t i = 0; rc == CKKS_OK && i < keys.part_count; i++) {
        uint64_t bytes;
        uint32_t left;
        const uint8_t *data = key_set_fixture_part(&keys, i, &bytes);
        rc = keystore_part(ks, "alice", keys.id, i, data, bytes, &left, err);
    }
    if (rc == CKKS_OK) rc = keystore_commit(ks, "alice", keys.id, NOW, &record, err);
    keystore_record_fini(&record);
    return rc;
}

static void an_upload_survives_a_disk_that_fails_at_any_call(void **state) {
    (void)state;
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement wanted[] = {{KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}};
    uint64_t n = 1, refused = 0;
    key_set_fixture_init(&keys, &params, wanted, 2, 20000);
    for (;; n++) {
        char command[96];
        ckks_error err = {0};
        temporary_folder(store, sizeof store, "test-system-store");
        system_fault_set(n, n % 2 ? ENOSPC : EIO);
        ckks_status rc = store_open(&err);
        if (rc == CKKS_OK) rc = store_upload(&err);
        const bool has_failed = system_fault_calls() >= n;
        system_fault_set(0, 0);
        if (has_failed) {
            if (rc != CKKS_IO) fail_msg("call %lu: %s: %s", n, ckks_status_name(rc), err.message);
            if (!strstr(err.message, store)) fail_msg("call %lu does not name its file: %s", n, err.message);
            refused++;
            /* a start clears up, and the same upload goes on */
            ckks_error again = {0};
            if ((rc = store_open(&again)) == CKKS_OK) rc = store_upload(&again);
            if (rc != CKKS_OK && rc != CKKS_ALREADY_EXISTS) fail_msg("after call %lu: %s", n, again.message);
        }
        snprintf(command, sizeof command, "%s/payload", store);
        assert_int_equal(files_in(command), 1);
        snprintf(command, sizeof command, "%s/staging", store);
        assert_int_equal(files_in(command), 0);
        keystore_close(ks);
        ks = NULL;
        snprintf(command, sizeof command, "rm -rf %s", store);
        assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): a folder of our own
        if (!has_failed) {
            assert_int_equal(rc, CKKS_OK);
            break;
        }
        assert_true(n < 1000);
    }
    assert_true(refused >= 10);
    printf("  an upload: %lu calls\n", n - 1);
    key_set_fixture_fini(&keys);
}

/* Syncs of folders are five of the calls: three of a start, for an upload's name and for the set's. */
static void a_data_folder_that_cannot_be_synced_is_as_good_as_it_gets(void **state) {
    (void)state;
    static const int refusals[] = {EINVAL, EOPNOTSUPP};
    const ckks_params params = fixture_params(10, 3, 1, 1);
    const key_requirement wanted[] = {{KEY_RELINEARISATION, 0, 2}, {KEY_GALOIS, 5, 1}};
    key_set_fixture_init(&keys, &params, wanted, 2, 20000);
    for (size_t k = 0; k < sizeof refusals / sizeof *refusals; k++) {
        uint32_t survived = 0;
        bool has_failed = true;
        for (uint64_t n = 1; has_failed; n++) {
            char command[96];
            temporary_folder_in_memory(store, sizeof store, "test-system-store");
            system_fault_set(n, refusals[k]);
            ckks_status rc = store_open(NULL);
            if (rc == CKKS_OK) rc = store_upload(NULL);
            has_failed = system_fault_calls() >= n;
            system_fault_set(0, 0);
            survived += has_failed && rc == CKKS_OK;
            if (rc == CKKS_OK) { /* it is there */
                assert_int_equal(store_open(NULL), CKKS_OK);
                snprintf(command, sizeof command, "%s/payload", store);
                assert_int_equal(files_in(command), 1);
            }
            keystore_close(ks);
            ks = NULL;
            snprintf(command, sizeof command, "rm -rf %s", store);
            assert_int_equal(system(command), 0); // NOLINT(cert-env33-c): a folder of our own
        }
        assert_int_equal(survived, 5);
    }
    key_set_fixture_fini(&keys);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_replaced_or_made_whole_or_not_at_all),
        cmocka_unit_test(a_folder_that_cannot_be_synced_is_as_good_as_it_gets),
        cmocka_unit_test(a_system_without_nameless_files_gets_the_same_files),
        cmocka_unit_test(a_pipe_or_device_is_written_to_and_never_replaced),
        cmocka_unit_test(the_file_behind_a_link_is_replaced_and_no_secret_follows_one),
        cmocka_unit_test(a_file_has_no_more_rights_than_the_umask_leaves),
        cmocka_unit_test(a_kill_leaves_whole_files),
        cmocka_unit_test(a_file_that_cannot_be_read_is_said_to_be_so),
        cmocka_unit_test(an_upload_survives_a_disk_that_fails_at_any_call),
        cmocka_unit_test(a_data_folder_that_cannot_be_synced_is_as_good_as_it_gets),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
