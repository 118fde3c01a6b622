/* What the two halves of the key store share: the catalogue (SQL) and the files. */
#ifndef CKKSD_KEYSTORE_INTERNAL_H
#define CKKSD_KEYSTORE_INTERNAL_H

#include "daemon/keystore.h"

#include <limits.h>
#include <sqlite3.h>

struct keystore {
    sqlite3 *db;
    keystore_limits limits;
    char folder[PATH_MAX / 2];
};

#define KEYSTORE_PATH_SIZE PATH_MAX

/* ---- SQL: each prepares, steps and finalises; failures are CKKS_IO, or
 * CKKS_RESOURCE_EXHAUSTED, with SQLite's words ---- */

ckks_status sql_fail(keystore *ks, const char *what, ckks_error *err);
ckks_status sql_run(keystore *ks, const char *text, ckks_error *err);
/* sql_prepare binds tenant and id as ?1 and ?2 if not NULL. */
ckks_status sql_prepare(keystore *ks, sqlite3_stmt **out, const char *text, const char *tenant,
                        const uint8_t *id, ckks_error *err);
/* sql_bound: n is what binding more gave; a failure finalises the statement. */
ckks_status sql_bound(keystore *ks, sqlite3_stmt **statement, int n, ckks_error *err);
/* sql_step_done runs a statement that gives no rows and finalises it. */
ckks_status sql_step_done(keystore *ks, sqlite3_stmt *statement, ckks_error *err);
ckks_status catalogue_open(keystore *ks, ckks_error *err);
/* catalogue_record reads one row; CKKS_KEY_UNKNOWN if there is none. */
ckks_status catalogue_record(keystore *ks, keystore_record *out, const char *tenant, const uint8_t *id,
                             ckks_error *err);
ckks_status catalogue_read_row(keystore *ks, keystore_record *out, sqlite3_stmt *statement, ckks_error *err);
#define CATALOGUE_COLUMNS                                                                                    \
    "tenant, id, state, parameter_id, lineage, payload_bytes, manifest, created, used, part_bytes"
/* quota in use by a tenant, uploads included */
ckks_status catalogue_usage(keystore *ks, const char *tenant, uint64_t *bytes, uint32_t *sets,
                            ckks_error *err);
/* is the payload named by any committed row, but for those of the tenant `but_of` (NULL: of all)? */
ckks_status catalogue_names_payload(keystore *ks, const uint8_t *id, const char *but_of, bool *is_named,
                                    ckks_error *err);

/* ---- files ---- */

char *payload_path(const keystore *ks, char path[KEYSTORE_PATH_SIZE], const uint8_t *id);
char *staging_path(const keystore *ks, char path[KEYSTORE_PATH_SIZE], const char *tenant, const uint8_t *id);
ckks_status folders_create(const keystore *ks, ckks_error *err);
/* folder_sync: of DATA/name, as durable.h says: a file system that syncs no folders is no failure */
ckks_status folder_sync(const keystore *ks, const char *name, ckks_error *err);
/* clears away files that no row names; marks rows without file */
ckks_status files_reconcile(keystore *ks, ckks_error *err);
ckks_status file_create(const char *path, uint64_t bytes, ckks_error *err);
ckks_status file_write_part(const char *path, uint64_t offset, const uint8_t *data, uint64_t bytes,
                            ckks_error *err);
ckks_status file_map(const char *path, uint64_t bytes, void **address, ckks_error *err);
ckks_status file_sync(const char *path, ckks_error *err);

#endif
