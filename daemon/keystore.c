/*
 * An upload's life: BEGIN inserts a row (state UPLOADING) and makes a sparse file under staging/. PART writes
 * and syncs its bytes, then inserts the part's row. COMMIT hashes and checks the whole, links the file under
 * payload/, syncs the folder, and turns the row to COMMITTED in one transaction; then the staging name goes.
 * A crash between any two of these steps leaves either an upload that can be resumed or a committed set.
 */
#include "daemon/keystore_internal.h"

#include "daemon/logging.h"
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_TRIES 3

ckks_status keystore_open(keystore **out, const char *folder, const keystore_limits *limits,
                          uint64_t now_unix, ckks_error *err) {
    ckks_status rc;
    uint32_t dropped;
    keystore *ks = calloc(1, sizeof *ks);
    if (!ks) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    ks->limits = *limits;
    if ((size_t)snprintf(ks->folder, sizeof ks->folder, "%s", folder) >= sizeof ks->folder) {
        rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "data", "the path is too long");
        goto out;
    }
    if ((rc = folders_create(ks, err)) != CKKS_OK) goto out;
    if ((rc = catalogue_open(ks, err)) != CKKS_OK) goto out;
    if ((rc = keystore_expire(ks, now_unix, &dropped, err)) != CKKS_OK) goto out;
    if ((rc = files_reconcile(ks, err)) != CKKS_OK) goto out;
    *out = ks, ks = NULL;
out:
    keystore_close(ks);
    return rc;
}

void keystore_close(keystore *ks) {
    if (!ks) return;
    sqlite3_close(ks->db);
    free(ks);
}

ckks_status keystore_each(keystore *ks,
                          ckks_status (*visit)(void *context, keystore_record *record, ckks_error *err),
                          void *context, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    int n = SQLITE_DONE;
    ckks_status rc = sql_prepare(
        ks, &statement, "SELECT " CATALOGUE_COLUMNS " FROM key_sets WHERE state IN (2, 3)", NULL, NULL, err);
    if (rc != CKKS_OK) return rc;
    while (rc == CKKS_OK && (n = sqlite3_step(statement)) == SQLITE_ROW) {
        keystore_record record;
        ckks_error cause = {0};
        rc = catalogue_read_row(ks, &record, statement, &cause);
        if (rc == CKKS_RESOURCE_EXHAUSTED) { /* nothing is wrong with the row */
            ckks_error_set(err, rc, cause.field, "%s", cause.message);
            break;
        }
        if (rc != CKKS_OK) {
            rc = CKKS_OK;
            log_write(LOG_LEVEL_ERROR, "event=key_row_skipped message=\"%.200s\"", cause.message);
            continue;
        }
        rc = visit(context, &record, err);
        keystore_record_fini(&record);
    }
    if (rc == CKKS_OK && n != SQLITE_DONE) rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

/* ---- begin ---- */

static uint32_t part_count(uint64_t payload_bytes, uint32_t part_bytes) {
    return (uint32_t)((payload_bytes + part_bytes - 1) / part_bytes);
}

static ckks_status check_parts(const Ckksd__V1__KeyBeginRequest *request, const key_set_view *view,
                               ckks_error *err) {
    if (!request->has_payload_bytes || request->payload_bytes != view->payload_bytes)
        return ckks_error_set(err, CKKS_MALFORMED, "payload_bytes", "these keys take %llu bytes, not %llu",
                              (unsigned long long)view->payload_bytes,
                              (unsigned long long)request->payload_bytes);
    if (!request->has_part_bytes || request->part_bytes == 0 || request->part_bytes > KEYSTORE_PART_BYTES_MAX)
        return ckks_error_set(err, CKKS_MALFORMED, "part_bytes", "a part has 1 to %u bytes, not %u",
                              KEYSTORE_PART_BYTES_MAX, request->part_bytes);
    const uint64_t parts = (view->payload_bytes + request->part_bytes - 1) / request->part_bytes;
    if (parts > KEYSTORE_PARTS_MAX)
        return ckks_error_set(err, CKKS_TOO_LARGE, "part_bytes", "%llu parts, at most %u",
                              (unsigned long long)parts, KEYSTORE_PARTS_MAX);
    if (request->n_part_digests != parts)
        return ckks_error_set(err, CKKS_MALFORMED, "part_digests", "%zu digests for %llu parts",
                              request->n_part_digests, (unsigned long long)parts);
    for (size_t i = 0; i < request->n_part_digests; i++)
        if (request->part_digests[i].len != SHA256_BYTES)
            return ckks_error_set(err, CKKS_MALFORMED, "part_digests", "digest %zu has %zu bytes, not 32", i,
                                  request->part_digests[i].len);
    return CKKS_OK;
}

static ckks_status check_quota(keystore *ks, const char *tenant, const token_quota *quota, uint64_t bytes,
                               ckks_error *err) {
    uint64_t used = 0, total;
    uint32_t sets = 0;
    const uint64_t bytes_max = quota && quota->key_bytes ? quota->key_bytes : ks->limits.tenant_bytes_max;
    const uint32_t sets_max = quota && quota->key_sets ? quota->key_sets : ks->limits.tenant_sets_max;
    const ckks_status rc = catalogue_usage(ks, tenant, &used, &sets, err);
    if (rc != CKKS_OK) return rc;
    if (sets >= sets_max)
        return ckks_error_set(err, CKKS_QUOTA, "key_sets", "the tenant has its %u key sets", sets_max);
    if (!size_add(&total, used, bytes) || total > bytes_max)
        return ckks_error_set(err, CKKS_QUOTA, "key_bytes",
                              "%llu of %llu bytes are used, %llu more do not fit", (unsigned long long)used,
                              (unsigned long long)bytes_max, (unsigned long long)bytes);
    return CKKS_OK;
}

/* Is the same upload there already? CKKS_ALREADY_EXISTS if it was declared otherwise. */
static ckks_status check_same(keystore *ks, const char *tenant, const uint8_t *id,
                              const Ckksd__V1__KeyBeginRequest *request, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(
        ks, &statement, "SELECT part_bytes, part_digests FROM key_sets WHERE tenant = ?1 AND id = ?2", tenant,
        id, err);
    if (rc != CKKS_OK) return rc;
    const int n = sqlite3_step(statement);
    if (n != SQLITE_ROW) {
        rc = sql_fail(ks, "read", err);
        sqlite3_finalize(statement);
        return rc;
    }
    bool is_same = (uint32_t)sqlite3_column_int64(statement, 0) == request->part_bytes &&
                   (size_t)sqlite3_column_bytes(statement, 1) == request->n_part_digests * SHA256_BYTES;
    const uint8_t *digests = is_same ? sqlite3_column_blob(statement, 1) : NULL;
    for (size_t i = 0; is_same && i < request->n_part_digests; i++)
        is_same = memcmp(digests + i * SHA256_BYTES, request->part_digests[i].data, SHA256_BYTES) == 0;
    sqlite3_finalize(statement);
    return is_same ? CKKS_OK
                   : ckks_error_set(err, CKKS_ALREADY_EXISTS, "part_digests",
                                    "an upload of this key set was begun with other parts: delete it first");
}

static ckks_status insert_upload(keystore *ks, const char *tenant, const uint8_t *id,
                                 const key_set_view *view, const Ckksd__V1__KeyBeginRequest *request,
                                 uint64_t now_unix, ckks_error *err) {
    ckks_status rc;
    sqlite3_stmt *statement = NULL;
    uint8_t *manifest = NULL, *digests = NULL;
    const size_t manifest_bytes = ckksd__v1__key_set_manifest__get_packed_size(request->manifest);
    const size_t digest_bytes = request->n_part_digests * SHA256_BYTES;
    if (!(manifest = malloc(manifest_bytes + 1)) || !(digests = malloc(digest_bytes + 1))) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        goto out;
    }
    ckksd__v1__key_set_manifest__pack(request->manifest, manifest);
    for (size_t i = 0; i < request->n_part_digests; i++)
        memcpy(digests + i * SHA256_BYTES, request->part_digests[i].data, SHA256_BYTES);
    if ((rc = sql_prepare(
             ks, &statement,
             "INSERT INTO key_sets (tenant, id, state, parameter_id, lineage, manifest, payload_bytes,"
             " part_bytes, part_digests, created, used) VALUES (?1, ?2, 1, ?3, ?4, ?5, ?6, ?7, ?8, ?9,"
             " ?9)",
             tenant, id, err)) != CKKS_OK)
        goto out;
    int n = sqlite3_bind_blob(statement, 3, view->params.id, CKKS_PARAMETER_ID_BYTES, SQLITE_TRANSIENT);
    if (!n) n = sqlite3_bind_blob(statement, 4, view->lineage, LINEAGE_BYTES, SQLITE_TRANSIENT);
    if (!n) n = sqlite3_bind_blob(statement, 5, manifest, (int)manifest_bytes, SQLITE_TRANSIENT);
    if (!n) n = sqlite3_bind_int64(statement, 6, (sqlite3_int64)view->payload_bytes);
    if (!n) n = sqlite3_bind_int64(statement, 7, (sqlite3_int64)request->part_bytes);
    if (!n) n = sqlite3_bind_blob(statement, 8, digests, (int)digest_bytes, SQLITE_TRANSIENT);
    if (!n) n = sqlite3_bind_int64(statement, 9, (sqlite3_int64)now_unix);
    if ((rc = sql_bound(ks, &statement, n, err)) != CKKS_OK) goto out;
    rc = sql_step_done(ks, statement, err);
out:
    free(manifest);
    free(digests);
    return rc;
}

/* `text` changes rows of the tenant, and may be run again. A failure may have come after the change, or have
 * left a change in the log that a restart would find: trying again settles both. */
static ckks_status run_surely(keystore *ks, const char *text, const char *tenant, const uint8_t *id,
                              ckks_error *err) {
    ckks_error first = {0};
    for (int i = 0; i < WRITE_TRIES; i++) {
        sqlite3_stmt *statement = NULL;
        ckks_status rc = sql_prepare(ks, &statement, text, tenant, id, &first);
        if (rc == CKKS_OK) rc = sql_step_done(ks, statement, &first);
        if (rc == CKKS_OK) return CKKS_OK;
    }
    if (err && err->code == CKKS_OK) *err = first;
    return first.code;
}

static ckks_status drop_row(keystore *ks, const char *tenant, const uint8_t *id, ckks_error *err) {
    return run_surely(ks, "DELETE FROM key_sets WHERE tenant = ?1 AND id = ?2", tenant, id, err);
}

/* Once its row has gone a file is of no use to anybody: one that stays is removed by the next start. */
static void remove_file(const char *path) {
    char quoted[320];
    if (unlink(path) == 0 || errno == ENOENT) return;
    log_write(LOG_LEVEL_WARNING, "event=key_file_left file=%s message=\"%s\"",
              log_quote(quoted, sizeof quoted, path), strerror(errno));
}

/* A payload goes when no row names it any more. */
static ckks_status drop_payload(keystore *ks, const uint8_t *id, ckks_error *err) {
    bool is_named = true;
    char path[KEYSTORE_PATH_SIZE];
    const ckks_status rc = catalogue_names_payload(ks, id, NULL, &is_named, err);
    if (rc == CKKS_OK && !is_named) (void)unlink(payload_path(ks, path, id));
    return rc;
}

/* Whatever can fail comes before the row goes, which is the deletion; files follow. */
static ckks_status drop_set(keystore *ks, const char *tenant, const uint8_t *id, bool has_payload,
                            ckks_error *err) {
    ckks_status rc;
    bool is_shared = true;
    char path[KEYSTORE_PATH_SIZE];
    if ((rc = catalogue_names_payload(ks, id, tenant, &is_shared, err)) != CKKS_OK) return rc;
    if ((rc = drop_row(ks, tenant, id, err)) != CKKS_OK) return rc;
    if (!has_payload) remove_file(staging_path(ks, path, tenant, id));
    if (!is_shared) remove_file(payload_path(ks, path, id));
    return CKKS_OK;
}

/* A committed row whose file went (or shrank) under us is as good as evicted: it can be uploaded again. */
static void look_for_payload(const keystore *ks, keystore_record *record) {
    struct stat st;
    char path[KEYSTORE_PATH_SIZE];
    if (record->state != KEYSTORE_COMMITTED) return;
    if (stat(payload_path(ks, path, record->id), &st) != 0) {
        if (errno != ENOENT) return; /* who knows: it may be there */
    } else if ((uint64_t)st.st_size == record->payload_bytes) {
        return;
    }
    (void)unlink(path); /* it would be taken for the one that is uploaded next */
    record->state = KEYSTORE_EVICTED;
}

/* After a commit that failed: the payload's name too, since nobody knows whether its folder was synced. */
static void drop_upload(keystore *ks, const char *tenant, const uint8_t *id) {
    char path[KEYSTORE_PATH_SIZE];
    if (drop_row(ks, tenant, id, NULL) != CKKS_OK) return;
    (void)unlink(staging_path(ks, path, tenant, id));
    (void)drop_payload(ks, id, NULL);
}

static ckks_status list_missing(keystore *ks, const char *tenant, const uint8_t *id, uint32_t parts,
                                keystore_missing *missing, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    uint32_t next = 0;
    int n;
    memset(missing, 0, sizeof *missing);
    ckks_status rc =
        sql_prepare(ks, &statement, "SELECT part FROM parts WHERE tenant = ?1 AND id = ?2 ORDER BY part",
                    tenant, id, err);
    if (rc != CKKS_OK) return rc;
    do {
        n = sqlite3_step(statement);
        const uint32_t present = n == SQLITE_ROW ? (uint32_t)sqlite3_column_int64(statement, 0) : parts;
        for (; next < present; next++) {
            if (missing->listed < KEYSTORE_MISSING_MAX) missing->parts[missing->listed++] = next;
            missing->count++;
        }
        next = present + 1;
    } while (n == SQLITE_ROW);
    if (n != SQLITE_DONE) rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

ckks_status keystore_begin(keystore *ks, const char *tenant, const token_quota *quota,
                           const Ckksd__V1__KeyBeginRequest *request, uint64_t now_unix,
                           uint8_t id[KEY_SET_ID_BYTES], keystore_state *state, keystore_missing *missing,
                           ckks_error *err) {
    ckks_status rc;
    char path[KEYSTORE_PATH_SIZE];
    key_set_view view = {0};
    keystore_record record = {0};
    ckks_error unknown = {0};
    memset(missing, 0, sizeof *missing);
    if (!request->manifest) return ckks_error_set(err, CKKS_MALFORMED, "manifest", "the manifest is missing");
    if ((rc = key_set_from_message(&view, request->manifest, false, ks->limits.allow_insecure, err)) !=
        CKKS_OK)
        goto out;
    if ((rc = check_parts(request, &view, err)) != CKKS_OK) goto out;
    memcpy(id, view.id, KEY_SET_ID_BYTES);
    rc = catalogue_record(ks, &record, tenant, id, &unknown);
    if (rc == CKKS_OK) look_for_payload(ks, &record);
    if (rc == CKKS_OK && record.state == KEYSTORE_COMMITTED) {
        *state = KEYSTORE_COMMITTED;
        goto out;
    }
    if (rc == CKKS_OK && record.state == KEYSTORE_EVICTED) { /* uploaded again */
        if ((rc = drop_row(ks, tenant, id, err)) != CKKS_OK) goto out;
        rc = CKKS_KEY_UNKNOWN;
    }
    if (rc == CKKS_OK) {
        rc = check_same(ks, tenant, id, request, err);
    } else if (rc == CKKS_KEY_UNKNOWN) {
        if ((rc = check_quota(ks, tenant, quota, view.payload_bytes, err)) != CKKS_OK) goto out;
        if ((rc = file_create(staging_path(ks, path, tenant, id), view.payload_bytes, err)) != CKKS_OK)
            goto out;
        if ((rc = folder_sync(ks, "staging", err)) != CKKS_OK) goto out;
        rc = insert_upload(ks, tenant, id, &view, request, now_unix, err);
    } else {
        ckks_error_set(err, rc, unknown.field, "%s", unknown.message);
    }
    if (rc != CKKS_OK) goto out;
    *state = KEYSTORE_UPLOADING;
    rc = list_missing(ks, tenant, id, part_count(view.payload_bytes, request->part_bytes), missing, err);
out:
    keystore_record_fini(&record);
    key_set_view_fini(&view);
    return rc;
}

/* ---- parts ---- */

typedef struct upload {
    uint64_t payload_bytes;
    uint32_t part_bytes, parts;
    uint8_t digest[SHA256_BYTES]; /* of part `index` */
} upload;

static ckks_status find_upload(keystore *ks, upload *out, const char *tenant, const uint8_t *id,
                               uint32_t index, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(ks, &statement,
                                 "SELECT payload_bytes, part_bytes, part_digests FROM key_sets"
                                 " WHERE tenant = ?1 AND id = ?2 AND state = 1",
                                 tenant, id, err);
    if (rc != CKKS_OK) return rc;
    const int n = sqlite3_step(statement);
    if (n != SQLITE_ROW) {
        rc = n == SQLITE_DONE
                 ? ckks_error_set(err, CKKS_KEY_UNKNOWN, "key_set", "no upload of this key set was begun")
                 : sql_fail(ks, "read", err);
        goto out;
    }
    out->payload_bytes = (uint64_t)sqlite3_column_int64(statement, 0);
    out->part_bytes = (uint32_t)sqlite3_column_int64(statement, 1);
    out->parts = part_count(out->payload_bytes, out->part_bytes);
    if (index >= out->parts ||
        (size_t)sqlite3_column_bytes(statement, 2) < ((size_t)index + 1) * SHA256_BYTES) {
        rc = ckks_error_set(err, CKKS_MALFORMED, "index", "part %u of %u", index, out->parts);
        goto out;
    }
    memcpy(out->digest, (const uint8_t *)sqlite3_column_blob(statement, 2) + (size_t)index * SHA256_BYTES,
           SHA256_BYTES);
out:
    sqlite3_finalize(statement);
    return rc;
}

ckks_status keystore_part(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                          uint32_t index, const uint8_t *data, uint64_t bytes, uint32_t *missing_count,
                          ckks_error *err) {
    ckks_status rc;
    upload u = {0};
    char path[KEYSTORE_PATH_SIZE];
    uint8_t digest[SHA256_BYTES];
    keystore_missing missing;
    sqlite3_stmt *statement = NULL;
    if ((rc = find_upload(ks, &u, tenant, id, index, err)) != CKKS_OK) return rc;
    const uint64_t offset = (uint64_t)index * u.part_bytes;
    const uint64_t expected =
        u.payload_bytes - offset < u.part_bytes ? u.payload_bytes - offset : u.part_bytes;
    if (bytes != expected)
        return ckks_error_set(err, CKKS_MALFORMED, "segments", "part %u has %llu bytes, not %llu", index,
                              (unsigned long long)expected, (unsigned long long)bytes);
    sha256(digest, data, (size_t)bytes);
    if (memcmp(digest, u.digest, sizeof digest) != 0)
        return ckks_error_set(err, CKKS_DIGEST_MISMATCH, "segments", "part %u is not what was declared",
                              index);
    if ((rc = file_write_part(staging_path(ks, path, tenant, id), offset, data, bytes, err)) != CKKS_OK)
        return rc;
    if ((rc =
             sql_prepare(ks, &statement, "INSERT OR IGNORE INTO parts (tenant, id, part) VALUES (?1, ?2, ?3)",
                         tenant, id, err)) != CKKS_OK)
        return rc;
    if ((rc = sql_bound(ks, &statement, sqlite3_bind_int64(statement, 3, index), err)) != CKKS_OK) return rc;
    if ((rc = sql_step_done(ks, statement, err)) != CKKS_OK) return rc;
    if ((rc = list_missing(ks, tenant, id, u.parts, &missing, err)) != CKKS_OK) return rc;
    *missing_count = missing.count;
    return CKKS_OK;
}

/* ---- commit ---- */

/* The whole payload against the manifest: digest, then every residue. */
static ckks_status check_payload(keystore *ks, const char *path, const keystore_record *record,
                                 ckks_error *err) {
    ckks_status rc;
    void *address = NULL;
    key_set_view view = {0};
    if ((rc = file_map(path, record->payload_bytes, &address, err)) != CKKS_OK) return rc;
    if ((rc = key_set_from_bytes(&view, record->manifest, record->manifest_bytes, false,
                                 ks->limits.allow_insecure, err)) == CKKS_OK &&
        (rc = key_set_attach(&view, address, record->payload_bytes, err)) == CKKS_OK)
        rc = key_set_check_residues(&view, err);
    key_set_view_fini(&view);
    munmap(address, (size_t)record->payload_bytes);
    return rc;
}

static ckks_status publish(keystore *ks, const char *tenant, const uint8_t *id, const char *staging,
                           uint64_t now_unix, ckks_error *err) {
    ckks_status rc;
    char payload[KEYSTORE_PATH_SIZE];
    sqlite3_stmt *statement = NULL;
    if ((rc = file_sync(staging, err)) != CKKS_OK) return rc;
    payload_path(ks, payload, id);
    if (link(staging, payload) != 0 && errno != EEXIST) /* another tenant's equal set is the same file */
        return ckks_error_set(err, CKKS_IO, "data", "%s: %s", payload, strerror(errno));
    if ((rc = folder_sync(ks, "payload", err)) != CKKS_OK) return rc;
    if ((rc = sql_run(ks, "BEGIN IMMEDIATE", err)) != CKKS_OK) goto rollback;
    if ((rc = sql_prepare(
             ks, &statement,
             "UPDATE key_sets SET state = 2, created = ?3, used = ?3 WHERE tenant = ?1 AND id = ?2", tenant,
             id, err)) != CKKS_OK)
        goto rollback;
    if ((rc = sql_bound(ks, &statement, sqlite3_bind_int64(statement, 3, (sqlite3_int64)now_unix), err)) !=
        CKKS_OK)
        goto rollback;
    if ((rc = sql_step_done(ks, statement, err)) != CKKS_OK) goto rollback;
    if ((rc = sql_prepare(ks, &statement, "DELETE FROM parts WHERE tenant = ?1 AND id = ?2", tenant, id,
                          err)) != CKKS_OK)
        goto rollback;
    if ((rc = sql_step_done(ks, statement, err)) != CKKS_OK) goto rollback;
    if ((rc = sql_run(ks, "COMMIT", err)) == CKKS_OK) return CKKS_OK;
rollback: /* in what stays open, later writes would not last */
    for (int i = 0; i < 3 && !sqlite3_get_autocommit(ks->db); i++) (void)sql_run(ks, "ROLLBACK", NULL);
    return rc;
}

ckks_status keystore_commit(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            uint64_t now_unix, keystore_record *record, ckks_error *err) {
    ckks_status rc;
    upload u = {0};
    keystore_missing missing;
    char path[KEYSTORE_PATH_SIZE];
    if ((rc = catalogue_record(ks, record, tenant, id, err)) != CKKS_OK) return rc;
    look_for_payload(ks, record);
    if (record->state == KEYSTORE_COMMITTED) return CKKS_OK; /* idempotent */
    if ((rc = find_upload(ks, &u, tenant, id, 0, err)) != CKKS_OK) goto out;
    if ((rc = list_missing(ks, tenant, id, u.parts, &missing, err)) != CKKS_OK) goto out;
    if (missing.count) {
        rc = ckks_error_set(err, CKKS_FAILED_PRECONDITION, "missing_parts", "%u of %u parts are missing",
                            missing.count, u.parts);
        goto out;
    }
    staging_path(ks, path, tenant, id);
    if ((rc = check_payload(ks, path, record, err)) == CKKS_OK)
        rc = publish(ks, tenant, id, path, now_unix, err);
    if (rc != CKKS_OK) {
        drop_upload(ks, tenant, id);
        goto out;
    }
    (void)unlink(path);
    record->state = KEYSTORE_COMMITTED;
    record->created_unix = record->used_unix = now_unix;
out:
    if (rc != CKKS_OK) keystore_record_fini(record);
    return rc;
}

/* ---- looking, deleting, expiring ---- */

ckks_status keystore_status(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            uint64_t now_unix, keystore_state *state, keystore_missing *missing,
                            uint64_t *bytes, uint64_t *expires_s, ckks_error *err) {
    keystore_record record = {0};
    ckks_error unknown = {0};
    upload u = {0};
    *state = KEYSTORE_UNKNOWN, *bytes = 0, *expires_s = 0;
    memset(missing, 0, sizeof *missing);
    ckks_status rc = catalogue_record(ks, &record, tenant, id, &unknown);
    if (rc == CKKS_KEY_UNKNOWN) return CKKS_OK;
    if (rc != CKKS_OK) return ckks_error_set(err, rc, unknown.field, "%s", unknown.message);
    look_for_payload(ks, &record);
    *state = record.state;
    *bytes = record.payload_bytes;
    if (record.state == KEYSTORE_UPLOADING) {
        const uint64_t end = record.created_unix + ks->limits.upload_expire_s;
        *expires_s = end > now_unix ? end - now_unix : 0;
        if ((rc = find_upload(ks, &u, tenant, id, 0, err)) == CKKS_OK)
            rc = list_missing(ks, tenant, id, u.parts, missing, err);
    }
    keystore_record_fini(&record);
    return rc;
}

ckks_status keystore_delete(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            ckks_error *err) {
    keystore_record record = {0};
    ckks_status rc = catalogue_record(ks, &record, tenant, id, err);
    if (rc != CKKS_OK) return rc;
    rc = drop_set(ks, tenant, id, record.state != KEYSTORE_UPLOADING, err);
    keystore_record_fini(&record);
    return rc;
}

/* What a tenant has: ids, and whether another tenant's row names the same payload. */
typedef struct tenant_set {
    uint8_t id[KEY_SET_ID_BYTES];
    bool is_shared;
} tenant_set;

static ckks_status list_sets(keystore *ks, const char *tenant, tenant_set **out, size_t *count,
                             ckks_error *err) {
    int n;
    size_t room = 0;
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(ks, &statement,
                                 "SELECT id, EXISTS (SELECT 1 FROM key_sets AS other WHERE other.id = own.id"
                                 " AND other.state = 2 AND other.tenant <> own.tenant)"
                                 " FROM key_sets AS own WHERE tenant = ?1",
                                 tenant, NULL, err);
    if (rc != CKKS_OK) return rc;
    while ((n = sqlite3_step(statement)) == SQLITE_ROW) {
        if (sqlite3_column_bytes(statement, 0) != KEY_SET_ID_BYTES) continue; /* it has no files */
        if (*count == room) {
            room = room ? 2 * room : 16;
            tenant_set *more = realloc(*out, room * sizeof **out);
            if (!more) {
                rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
                break;
            }
            *out = more;
        }
        tenant_set *set = &(*out)[(*count)++];
        memcpy(set->id, sqlite3_column_blob(statement, 0), sizeof set->id);
        set->is_shared = sqlite3_column_int(statement, 1) != 0;
    }
    if (rc == CKKS_OK && n != SQLITE_DONE) rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

ckks_status keystore_delete_tenant(keystore *ks, const char *tenant, ckks_error *err) {
    ckks_status rc;
    char path[KEYSTORE_PATH_SIZE];
    tenant_set *sets = NULL;
    size_t count = 0;
    if ((rc = list_sets(ks, tenant, &sets, &count, err)) != CKKS_OK) goto out;
    if ((rc = run_surely(ks, "DELETE FROM key_sets WHERE tenant = ?1", tenant, NULL, err)) != CKKS_OK)
        goto out;
    for (size_t i = 0; i < count; i++) {
        remove_file(staging_path(ks, path, tenant, sets[i].id));
        if (!sets[i].is_shared) remove_file(payload_path(ks, path, sets[i].id));
    }
out:
    free(sets);
    return rc;
}

/* One at a time, since deleting under a running query is not well defined. */
ckks_status keystore_expire(keystore *ks, uint64_t now_unix, uint32_t *dropped, ckks_error *err) {
    *dropped = 0;
    if (now_unix < ks->limits.upload_expire_s) return CKKS_OK;
    const sqlite3_int64 limit = (sqlite3_int64)(now_unix - ks->limits.upload_expire_s);
    for (;;) {
        ckks_status rc;
        sqlite3_stmt *statement = NULL;
        char tenant[TOKEN_NAME_MAX + 1];
        uint8_t id[KEY_SET_ID_BYTES];
        if ((rc = sql_prepare(ks, &statement,
                              "SELECT tenant, id FROM key_sets WHERE state = 1 AND created < ?1 LIMIT 1",
                              NULL, NULL, err)) != CKKS_OK)
            return rc;
        if ((rc = sql_bound(ks, &statement, sqlite3_bind_int64(statement, 1, limit), err)) != CKKS_OK)
            return rc;
        const int n = sqlite3_step(statement);
        const bool is_good = n == SQLITE_ROW && sqlite3_column_bytes(statement, 0) <= (int)TOKEN_NAME_MAX &&
                             sqlite3_column_bytes(statement, 1) == (int)sizeof id;
        if (is_good) {
            snprintf(tenant, sizeof tenant, "%s", (const char *)sqlite3_column_text(statement, 0));
            memcpy(id, sqlite3_column_blob(statement, 1), sizeof id);
        }
        sqlite3_finalize(statement);
        if (n == SQLITE_DONE) return CKKS_OK;
        if (!is_good) return sql_fail(ks, "read", err);
        if ((rc = drop_set(ks, tenant, id, false, err)) != CKKS_OK) return rc;
        (*dropped)++;
    }
}

ckks_status keystore_used(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                          uint64_t used_unix, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    const ckks_status rc = sql_prepare(
        ks, &statement, "UPDATE key_sets SET used = ?3 WHERE tenant = ?1 AND id = ?2", tenant, id, err);
    if (rc != CKKS_OK) return rc;
    const ckks_status bound =
        sql_bound(ks, &statement, sqlite3_bind_int64(statement, 3, (sqlite3_int64)used_unix), err);
    return bound == CKKS_OK ? sql_step_done(ks, statement, err) : bound;
}

static ckks_status mark_evicted(keystore *ks, const char *states, const char *tenant, const uint8_t *id,
                                uint64_t used_unix, bool *is_evicted, ckks_error *err) {
    char text[128];
    sqlite3_stmt *statement = NULL;
    snprintf(text, sizeof text,
             "UPDATE key_sets SET state = 3 WHERE tenant = ?1 AND id = ?2 AND used <= ?3 AND %s", states);
    ckks_status rc = sql_prepare(ks, &statement, text, tenant, id, err);
    if (rc == CKKS_OK)
        rc = sql_bound(ks, &statement, sqlite3_bind_int64(statement, 3, (sqlite3_int64)used_unix), err);
    if (rc == CKKS_OK) rc = sql_step_done(ks, statement, err);
    if (rc == CKKS_OK) *is_evicted = sqlite3_changes(ks->db) == 1;
    return rc;
}

ckks_status keystore_evict(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                           uint64_t used_unix, bool *is_evicted, ckks_error *err) {
    ckks_status rc;
    bool is_shared = true;
    char path[KEYSTORE_PATH_SIZE];
    ckks_error first = {0};
    *is_evicted = false;
    if ((rc = catalogue_names_payload(ks, id, tenant, &is_shared, err)) != CKKS_OK) return rc;
    /* what failed may have changed the row all the same: then it is found changed */
    rc = mark_evicted(ks, "state = 2", tenant, id, used_unix, is_evicted, &first);
    for (int i = 1; i < WRITE_TRIES && rc != CKKS_OK; i++)
        rc = mark_evicted(ks, "state IN (2, 3)", tenant, id, used_unix, is_evicted, &first);
    if (rc != CKKS_OK && err && err->code == CKKS_OK) *err = first;
    if (rc == CKKS_OK && *is_evicted && !is_shared) remove_file(payload_path(ks, path, id));
    return rc;
}

ckks_status keystore_map_payload(const keystore *ks, const uint8_t id[KEY_SET_ID_BYTES],
                                 const uint8_t *manifest, size_t manifest_bytes, keystore_payload *out,
                                 ckks_error *err) {
    ckks_status rc;
    char path[KEYSTORE_PATH_SIZE];
    memset(out, 0, sizeof *out);
    if ((rc = key_set_from_bytes(&out->view, manifest, manifest_bytes, false, ks->limits.allow_insecure,
                                 err)) != CKKS_OK)
        return rc;
    out->bytes = (size_t)out->view.payload_bytes;
    rc = file_map(payload_path(ks, path, id), out->view.payload_bytes, &out->address, err);
    if (rc == CKKS_OK) rc = key_set_attach(&out->view, out->address, out->view.payload_bytes, err);
    if (rc != CKKS_OK) keystore_payload_fini(out);
    return rc;
}

void keystore_payload_fini(keystore_payload *payload) {
    key_set_view_fini(&payload->view);
    if (payload->address) munmap(payload->address, payload->bytes);
    *payload = (keystore_payload){0};
}
