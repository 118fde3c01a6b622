#include "daemon/keystore_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SCHEMA_VERSION 1

static const char schema[] = "CREATE TABLE key_sets ("
                             " tenant TEXT NOT NULL, id BLOB NOT NULL, state INTEGER NOT NULL,"
                             " parameter_id BLOB NOT NULL, lineage BLOB NOT NULL, manifest BLOB NOT NULL,"
                             " payload_bytes INTEGER NOT NULL, part_bytes INTEGER NOT NULL,"
                             " part_digests BLOB NOT NULL, created INTEGER NOT NULL, used INTEGER NOT NULL,"
                             " PRIMARY KEY (tenant, id)) WITHOUT ROWID;"
                             "CREATE TABLE parts ("
                             " tenant TEXT NOT NULL, id BLOB NOT NULL, part INTEGER NOT NULL,"
                             " PRIMARY KEY (tenant, id, part),"
                             " FOREIGN KEY (tenant, id) REFERENCES key_sets (tenant, id) ON DELETE CASCADE)"
                             " WITHOUT ROWID;"
                             "CREATE INDEX key_sets_by_id ON key_sets (id);"
                             "PRAGMA user_version = 1;";

ckks_status sql_fail(keystore *ks, const char *what, ckks_error *err) {
    if (sqlite3_errcode(ks->db) == SQLITE_BUSY)
        return ckks_error_set(err, CKKS_IO, "data", "%s is in use by another ckksd: one daemon a data folder",
                              ks->folder);
    const bool is_memory = sqlite3_errcode(ks->db) == SQLITE_NOMEM;
    return ckks_error_set(err, is_memory ? CKKS_RESOURCE_EXHAUSTED : CKKS_IO, "catalogue", "%s: %s", what,
                          sqlite3_errmsg(ks->db));
}

ckks_status sql_run(keystore *ks, const char *text, ckks_error *err) {
    return sqlite3_exec(ks->db, text, NULL, NULL, NULL) == SQLITE_OK ? CKKS_OK : sql_fail(ks, text, err);
}

ckks_status sql_prepare(keystore *ks, sqlite3_stmt **out, const char *text, const char *tenant,
                        const uint8_t *id, ckks_error *err) {
    *out = NULL;
    if (sqlite3_prepare_v2(ks->db, text, -1, out, NULL) != SQLITE_OK) return sql_fail(ks, "prepare", err);
    int n = tenant ? sqlite3_bind_text(*out, 1, tenant, -1, SQLITE_TRANSIENT) : SQLITE_OK;
    if (n == SQLITE_OK && id)
        n = sqlite3_bind_blob(*out, tenant ? 2 : 1, id, KEY_SET_ID_BYTES, SQLITE_TRANSIENT);
    return sql_bound(ks, out, n, err);
}

ckks_status sql_bound(keystore *ks, sqlite3_stmt **statement, int n, ckks_error *err) {
    if (n == SQLITE_OK) return CKKS_OK;
    const ckks_status rc = sql_fail(ks, "bind", err);
    sqlite3_finalize(*statement);
    *statement = NULL;
    return rc;
}

ckks_status sql_step_done(keystore *ks, sqlite3_stmt *statement, ckks_error *err) {
    const int n = sqlite3_step(statement);
    const ckks_status rc = n == SQLITE_DONE ? CKKS_OK : sql_fail(ks, "write", err);
    sqlite3_finalize(statement);
    return rc;
}

static ckks_status schema_version(keystore *ks, int *version, ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(ks, &statement, "PRAGMA user_version", NULL, NULL, err);
    if (rc != CKKS_OK) return rc;
    if (sqlite3_step(statement) == SQLITE_ROW)
        *version = sqlite3_column_int(statement, 0);
    else
        rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

ckks_status catalogue_open(keystore *ks, ckks_error *err) {
    ckks_status rc;
    char path[KEYSTORE_PATH_SIZE];
    int version = 0;
    snprintf(path, sizeof path, "%s/catalogue.sqlite", ks->folder);
    if (sqlite3_open_v2(path, &ks->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                        NULL) != SQLITE_OK) {
        if (!ks->db) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "catalogue", "out of memory");
        return sql_fail(ks, path, err);
    }
    sqlite3_busy_timeout(ks->db, 2000);
    if ((rc = sql_run(ks, "PRAGMA journal_mode = WAL", err)) != CKKS_OK) return rc;
    if ((rc = sql_run(ks, "PRAGMA synchronous = FULL", err)) != CKKS_OK) return rc;
    if ((rc = sql_run(ks, "PRAGMA foreign_keys = ON", err)) != CKKS_OK) return rc;
    /* two daemons on one folder would tear each other's files away */
    if ((rc = sql_run(ks, "PRAGMA locking_mode = EXCLUSIVE", err)) != CKKS_OK) return rc;
    if ((rc = sql_run(ks, "BEGIN EXCLUSIVE; COMMIT", err)) != CKKS_OK) return rc;
    if ((rc = schema_version(ks, &version, err)) != CKKS_OK) return rc;
    if (version == 0) {
        if ((rc = sql_run(ks, "BEGIN IMMEDIATE", err)) != CKKS_OK) return rc;
        if ((rc = sql_run(ks, schema, err)) != CKKS_OK) return rc;
        return sql_run(ks, "COMMIT", err);
    }
    if (version != SCHEMA_VERSION)
        return ckks_error_set(err, CKKS_UNSUPPORTED_VERSION, "catalogue",
                              "%s is of schema version %d; this daemon knows %d", path, version,
                              SCHEMA_VERSION);
    return CKKS_OK;
}

void keystore_record_fini(keystore_record *record) {
    free(record->requirements);
    free(record->manifest);
    *record = (keystore_record){0};
}

static ckks_status fill_from_manifest(keystore *ks, keystore_record *out, ckks_error *err) {
    key_set_view view = {0};
    ckks_status rc =
        key_set_from_bytes(&view, out->manifest, out->manifest_bytes, false, ks->limits.allow_insecure, err);
    if (rc != CKKS_OK) return rc;
    out->key_count = view.count;
    out->requirements = view.requirements, view.requirements = NULL;
    for (uint32_t i = 0; i < out->key_count; i++)
        out->resident_bytes += 8u * key_resident_word_count(&view.params, &out->requirements[i]);
    key_set_view_fini(&view);
    return CKKS_OK;
}

static bool read_blob(void *out, size_t bytes, sqlite3_stmt *statement, int column) {
    const void *blob = sqlite3_column_blob(statement, column);
    if (!blob || (size_t)sqlite3_column_bytes(statement, column) != bytes) return false;
    memcpy(out, blob, bytes);
    return true;
}

ckks_status catalogue_read_row(keystore *ks, keystore_record *out, sqlite3_stmt *statement, ckks_error *err) {
    memset(out, 0, sizeof *out);
    const char *tenant = (const char *)sqlite3_column_text(statement, 0);
    if (!tenant || strlen(tenant) > TOKEN_NAME_MAX || !read_blob(out->id, sizeof out->id, statement, 1) ||
        !read_blob(out->parameter_id, sizeof out->parameter_id, statement, 3) ||
        !read_blob(out->lineage, sizeof out->lineage, statement, 4))
        return ckks_error_set(err, CKKS_IO, "catalogue", "a row of the catalogue is damaged");
    memcpy(out->tenant, tenant, strlen(tenant) + 1);
    out->state = (keystore_state)sqlite3_column_int(statement, 2);
    out->payload_bytes = (uint64_t)sqlite3_column_int64(statement, 5);
    out->created_unix = (uint64_t)sqlite3_column_int64(statement, 7);
    out->used_unix = (uint64_t)sqlite3_column_int64(statement, 8);
    out->manifest_bytes = (size_t)sqlite3_column_bytes(statement, 6);
    if (!(out->manifest = malloc(out->manifest_bytes + 1)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "catalogue", "out of memory");
    if (out->manifest_bytes) memcpy(out->manifest, sqlite3_column_blob(statement, 6), out->manifest_bytes);
    const ckks_status rc = fill_from_manifest(ks, out, err);
    if (rc != CKKS_OK) keystore_record_fini(out);
    return rc;
}

ckks_status catalogue_record(keystore *ks, keystore_record *out, const char *tenant, const uint8_t *id,
                             ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    memset(out, 0, sizeof *out);
    ckks_status rc = sql_prepare(ks, &statement,
                                 "SELECT " CATALOGUE_COLUMNS " FROM key_sets WHERE tenant = ?1 AND id = ?2",
                                 tenant, id, err);
    if (rc != CKKS_OK) return rc;
    const int n = sqlite3_step(statement);
    if (n == SQLITE_ROW)
        rc = catalogue_read_row(ks, out, statement, err);
    else if (n == SQLITE_DONE)
        rc = ckks_error_set(err, CKKS_KEY_UNKNOWN, "key_set", "there is no such key set");
    else
        rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}

ckks_status catalogue_usage(keystore *ks, const char *tenant, uint64_t *bytes, uint32_t *sets,
                            ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(ks, &statement,
                                 "SELECT coalesce(sum(payload_bytes), 0), count(*) FROM key_sets"
                                 " WHERE tenant = ?1 AND state IN (1, 2)",
                                 tenant, NULL, err);
    if (rc != CKKS_OK) return rc;
    if (sqlite3_step(statement) == SQLITE_ROW) {
        *bytes = (uint64_t)sqlite3_column_int64(statement, 0);
        *sets = (uint32_t)sqlite3_column_int64(statement, 1);
    } else {
        rc = sql_fail(ks, "read", err);
    }
    sqlite3_finalize(statement);
    return rc;
}

ckks_status catalogue_names_payload(keystore *ks, const uint8_t *id, const char *but_of, bool *is_named,
                                    ckks_error *err) {
    sqlite3_stmt *statement = NULL;
    ckks_status rc = sql_prepare(
        ks, &statement, "SELECT 1 FROM key_sets WHERE id = ?2 AND state = 2 AND tenant <> ?1 LIMIT 1",
        but_of ? but_of : "", id, err);
    if (rc != CKKS_OK) return rc;
    const int n = sqlite3_step(statement);
    *is_named = n == SQLITE_ROW;
    if (n != SQLITE_ROW && n != SQLITE_DONE) rc = sql_fail(ks, "read", err);
    sqlite3_finalize(statement);
    return rc;
}
