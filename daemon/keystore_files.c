#include "daemon/keystore_internal.h"

#include "daemon/logging.h"
#include "kernels/base/bytes.h"
#include "kernels/base/log.h"
#include "proto/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ckks_status fail(const char *path, ckks_error *err) {
    return ckks_error_set(err, CKKS_IO, "data", "%s: %s", path, strerror(errno));
}

char *payload_path(const keystore *ks, char path[KEYSTORE_PATH_SIZE], const uint8_t *id) {
    char hex[2 * KEY_SET_ID_BYTES + 1];
    snprintf(path, KEYSTORE_PATH_SIZE, "%s/payload/%s", ks->folder, hex_encode(hex, id, KEY_SET_ID_BYTES));
    return path;
}
char *staging_path(const keystore *ks, char path[KEYSTORE_PATH_SIZE], const char *tenant, const uint8_t *id) {
    char hex[2 * KEY_SET_ID_BYTES + 1];
    snprintf(path, KEYSTORE_PATH_SIZE, "%s/staging/%s.%s", ks->folder, tenant,
             hex_encode(hex, id, KEY_SET_ID_BYTES));
    return path;
}

ckks_status folder_sync(const keystore *ks, const char *name, ckks_error *err) {
    char path[KEYSTORE_PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", ks->folder, name);
    const int number = durable_folder(path);
    errno = number;
    return number == 0 ? CKKS_OK : fail(path, err);
}

ckks_status folders_create(const keystore *ks, ckks_error *err) {
    static const char *const names[] = {"payload", "staging"};
    char path[KEYSTORE_PATH_SIZE];
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", ks->folder, names[i]);
        if (mkdir(path, 0700) != 0 && errno != EEXIST) return fail(path, err);
    }
    return folder_sync(ks, ".", err);
}

ckks_status file_create(const char *path, uint64_t bytes, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return fail(path, err);
    /* sparse: space is taken as parts arrive, the quota was checked */
    if (ftruncate(fd, (off_t)bytes) != 0 || fsync(fd) != 0) rc = fail(path, err);
    close(fd);
    return rc;
}

ckks_status file_write_part(const char *path, uint64_t offset, const uint8_t *data, uint64_t bytes,
                            ckks_error *err) {
    ckks_status rc = CKKS_OK;
    const int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return fail(path, err);
    for (uint64_t at = 0; at < bytes;) {
        const ssize_t n = pwrite(fd, data + at, (size_t)(bytes - at), (off_t)(offset + at));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = fail(path, err);
            goto out;
        }
        at += (uint64_t)n;
    }
    if (fdatasync(fd) != 0) rc = fail(path, err);
out:
    close(fd);
    return rc;
}

ckks_status file_sync(const char *path, ckks_error *err) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail(path, err);
    const ckks_status rc = fsync(fd) == 0 ? CKKS_OK : fail(path, err);
    close(fd);
    return rc;
}

ckks_status file_map(const char *path, uint64_t bytes, void **address, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT)
            return ckks_error_set(err, CKKS_KEY_EVICTED, "key_set",
                                  "the key set's file is gone: upload it again");
        return fail(path, err);
    }
    if (fstat(fd, &st) != 0) {
        rc = fail(path, err);
        goto out;
    }
    if ((uint64_t)st.st_size != bytes) {
        rc = ckks_error_set(err, CKKS_DIGEST_MISMATCH, "key_set", "%s does not have %llu bytes", path,
                            (unsigned long long)bytes);
        goto out;
    }
    void *at = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
        rc = fail(path, err);
        goto out;
    }
    (void)madvise(at, (size_t)bytes, MADV_SEQUENTIAL);
    *address = at;
out:
    close(fd);
    return rc;
}

/* ---- reconciliation at start ---- */

static ckks_status is_row(keystore *ks, const char *tenant, const uint8_t *id, int state, bool *out,
                          ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(ks, &statement, "SELECT state FROM key_sets WHERE tenant = ?1 AND id = ?2",
                                 tenant, id, err);
    if (rc != CKKS_OK) return rc;
    const int n = sqlite3_step(statement);
    *out = n == SQLITE_ROW && sqlite3_column_int(statement, 0) == state;
    if (n != SQLITE_ROW && n != SQLITE_DONE) rc = sql_fail(ks, "read", err); /* a file may not go for that */
    sqlite3_finalize(statement);
    return rc;
}

/* Is this file of `folder` named by a row? */
static ckks_status is_wanted(keystore *ks, bool is_payload, const char *name, bool *out, ckks_error *err) {
    uint8_t id[KEY_SET_ID_BYTES];
    char tenant[TOKEN_NAME_MAX + 1];
    *out = false;
    if (is_payload)
        return hex_decode(id, sizeof id, name) ? catalogue_names_payload(ks, id, NULL, out, err) : CKKS_OK;
    const char *dot = strchr(name, '.');
    if (!dot || (size_t)(dot - name) > TOKEN_NAME_MAX || !hex_decode(id, sizeof id, dot + 1)) return CKKS_OK;
    memcpy(tenant, name, (size_t)(dot - name));
    tenant[dot - name] = 0;
    return is_row(ks, tenant, id, KEYSTORE_UPLOADING, out, err);
}

static ckks_status clear_folder(keystore *ks, const char *folder, bool is_payload, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    char path[KEYSTORE_PATH_SIZE], file[KEYSTORE_PATH_SIZE], quoted[320];
    snprintf(path, sizeof path, "%s/%s", ks->folder, folder);
    DIR *all = opendir(path);
    if (!all) return fail(path, err);
    for (struct dirent *one;
         (one = readdir(all)) != NULL && rc == CKKS_OK;) { /* NOLINT(concurrency-mt-unsafe) */
        bool wanted = false;
        if (one->d_name[0] == '.') continue;
        rc = is_wanted(ks, is_payload, one->d_name, &wanted, err);
        if (rc != CKKS_OK || wanted) continue;
        if ((size_t)snprintf(file, sizeof file, "%.3000s/%s", path, one->d_name) >= sizeof file) continue;
        log_write(LOG_LEVEL_NOTICE, "event=key_file_removed folder=%s file=%s message=\"no row names it\"",
                  folder, log_quote(quoted, sizeof quoted, one->d_name));
        if (unlink(file) != 0) rc = fail(file, err);
    }
    closedir(all);
    return rc == CKKS_OK ? folder_sync(ks, folder, err) : rc;
}

/* Committed rows whose file is gone become EVICTED; uploads whose file is gone are dropped. */
static ckks_status mark_rows(keystore *ks, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    char path[KEYSTORE_PATH_SIZE], quoted[512];
    int n = SQLITE_DONE;
    ckks_status rc =
        sql_prepare(ks, &statement, "SELECT tenant, id, state, payload_bytes FROM key_sets", NULL, NULL, err);
    if (rc != CKKS_OK) return rc;
    while (rc == CKKS_OK && (n = sqlite3_step(statement)) == SQLITE_ROW) {
        struct stat st;
        uint8_t id[KEY_SET_ID_BYTES];
        const char *tenant = (const char *)sqlite3_column_text(statement, 0);
        const int state = sqlite3_column_int(statement, 2);
        if (!tenant || sqlite3_column_bytes(statement, 1) != (int)sizeof id || state == KEYSTORE_EVICTED)
            continue;
        memcpy(id, sqlite3_column_blob(statement, 1), sizeof id);
        if (state == KEYSTORE_COMMITTED)
            payload_path(ks, path, id);
        else
            staging_path(ks, path, tenant, id);
        if (stat(path, &st) == 0) {
            if (st.st_size == (off_t)sqlite3_column_int64(statement, 3)) continue;
        } else if (errno != ENOENT) { /* who knows: it may be there */
            rc = fail(path, err);
            break;
        }
        log_write(LOG_LEVEL_ERROR, "event=key_file_missing tenant=%s file=%s", tenant,
                  log_quote(quoted, sizeof quoted, path));
        sqlite3_stmt *change = NULL;
        rc = sql_prepare(ks, &change,
                         state == KEYSTORE_COMMITTED
                             ? "UPDATE key_sets SET state = 3 WHERE tenant = ?1 AND id = ?2"
                             : "DELETE FROM key_sets WHERE tenant = ?1 AND id = ?2",
                         tenant, id, err);
        if (rc == CKKS_OK) rc = sql_step_done(ks, change, err);
    }
    if (rc == CKKS_OK && n != SQLITE_DONE) rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

ckks_status files_reconcile(keystore *ks, ckks_error *err) {
    ckks_status rc = mark_rows(ks, err);
    if (rc == CKKS_OK) rc = clear_folder(ks, "payload", true, err);
    if (rc == CKKS_OK) rc = clear_folder(ks, "staging", false, err);
    return rc;
}
