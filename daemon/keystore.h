/*
 * Key sets at rest: a SQLite catalogue (WAL, synchronous=FULL) and immutable payload files beside it.
 *
 *   DATA/catalogue.sqlite   tenants' key sets, their manifests, the parts of unfinished uploads
 *   DATA/payload/ID         a committed key set's packed keys; ID is the set's digest, in hexadecimal
 *   DATA/staging/TENANT.ID  an unfinished upload
 *
 * A key set is visible when its row is committed, which comes after its payload and the folder were synced;
 * so what was committed survives kill -9 and power loss. A failed sync fails the commit for good: the upload
 * is dropped. Starting removes files that no row names and reports rows whose file is gone as EVICTED.
 *
 * Every call blocks on disk. One thread at a time (a pool task on behalf of the loop); keystore_map_payload
 * alone may run beside them.
 */
#ifndef CKKSD_KEYSTORE_H
#define CKKSD_KEYSTORE_H

#include "proto/key_file.h"
#include "proto/token.h"

#include "rpc.pb-c.h"

#define KEYSTORE_PART_BYTES_MAX (16u << 20)
#define KEYSTORE_PARTS_MAX      65536u
#define KEYSTORE_MISSING_MAX    1024u
#define KEYSTORE_PAGE           256u

typedef struct keystore keystore;

typedef struct keystore_limits {
    uint64_t tenant_bytes_max;
    uint32_t tenant_sets_max;
    uint64_t upload_expire_s;
    bool allow_insecure;
} keystore_limits;

typedef enum keystore_state {
    KEYSTORE_UNKNOWN = 0,
    KEYSTORE_UPLOADING = 1,
    KEYSTORE_COMMITTED = 2,
    KEYSTORE_EVICTED = 3,
} keystore_state;

/* One key set as the catalogue knows it. Owns its arrays
 * (keystore_record_fini). */
typedef struct keystore_record {
    char tenant[TOKEN_NAME_MAX + 1];
    uint8_t id[KEY_SET_ID_BYTES];
    keystore_state state;
    uint8_t parameter_id[CKKS_PARAMETER_ID_BYTES];
    uint8_t lineage[LINEAGE_BYTES];
    uint64_t payload_bytes;
    uint64_t resident_bytes; /* on a device */
    uint32_t key_count;
    key_requirement *requirements;
    uint8_t *manifest; /* serialised KeySetManifest, owned */
    size_t manifest_bytes;
    uint64_t created_unix, used_unix;
} keystore_record;
void keystore_record_fini(keystore_record *record);

typedef struct keystore_missing {
    uint32_t count; /* in all */
    uint32_t listed;
    uint32_t parts[KEYSTORE_MISSING_MAX];
} keystore_missing;

/* keystore_open makes the folders if need be, opens the catalogue, expires uploads and clears files away. */
ckks_status keystore_open(keystore **out, const char *folder, const keystore_limits *limits,
                          uint64_t now_unix, ckks_error *err);
void keystore_close(keystore *ks);

/* keystore_each calls `visit` for every committed or evicted set; the callee may move the record's contents
 * out (zeroing it). A failure of visit ends the walk. */
ckks_status keystore_each(keystore *ks,
                          ckks_status (*visit)(void *context, keystore_record *record, ckks_error *err),
                          void *context, ckks_error *err);

/* keystore_begin: manifest, sizes and quota are checked before anything is made. Repeating it with the same
 * content resumes; CKKS_ALREADY_EXISTS if the sizes or digests differ. *state is COMMITTED if it is there
 * already. CKKS_QUOTA, and what key_set_from_message says. quota: 0 = the store's limits. */
ckks_status keystore_begin(keystore *ks, const char *tenant, const token_quota *quota,
                           const Ckksd__V1__KeyBeginRequest *request, uint64_t now_unix,
                           uint8_t id[KEY_SET_ID_BYTES], keystore_state *state, keystore_missing *missing,
                           ckks_error *err);
/* keystore_part is idempotent. CKKS_DIGEST_MISMATCH, CKKS_KEY_UNKNOWN (no upload), CKKS_MALFORMED. */
ckks_status keystore_part(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                          uint32_t index, const uint8_t *data, uint64_t bytes, uint32_t *missing_count,
                          ckks_error *err);
/* keystore_commit: *record describes the set; the caller owns it. CKKS_FAILED_PRECONDITION while parts are
 * missing; CKKS_DIGEST_MISMATCH, CKKS_RESIDUE_RANGE, CKKS_IO drop the upload. */
ckks_status keystore_commit(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            uint64_t now_unix, keystore_record *record, ckks_error *err);
/* keystore_status: UNKNOWN for another tenant's set. *bytes: of the payload; *expires_s: of an upload. */
ckks_status keystore_status(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            uint64_t now_unix, keystore_state *state, keystore_missing *missing,
                            uint64_t *bytes, uint64_t *expires_s, ckks_error *err);
/* keystore_delete removes a committed set or an upload: after a failure it is there as before, also after a
 * restart. A file that cannot be removed is no failure: it is logged, and the next start removes it.
 * CKKS_KEY_UNKNOWN. */
ckks_status keystore_delete(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                            ckks_error *err);
/* keystore_delete_tenant removes everything of a tenant; after a failure, nothing. */
ckks_status keystore_delete_tenant(keystore *ks, const char *tenant, ckks_error *err);
/* keystore_used notes when a set was last used. */
ckks_status keystore_used(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                          uint64_t used_unix, ckks_error *err);
/* keystore_evict: the set's payload goes, and it is EVICTED, if it is COMMITTED and was not used after
 * `used_unix`; *is_evicted says so. */
ckks_status keystore_evict(keystore *ks, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES],
                           uint64_t used_unix, bool *is_evicted, ckks_error *err);
/* keystore_expire drops uploads that rested too long; *dropped counts. */
ckks_status keystore_expire(keystore *ks, uint64_t now_unix, uint32_t *dropped, ckks_error *err);

/* A committed payload, mapped, with its manifest. Thread-safe beside everything else. CKKS_KEY_EVICTED if the
 * file is gone. */
typedef struct keystore_payload {
    key_set_view view;
    void *address;
    size_t bytes;
} keystore_payload;
ckks_status keystore_map_payload(const keystore *ks, const uint8_t id[KEY_SET_ID_BYTES],
                                 const uint8_t *manifest, size_t manifest_bytes, keystore_payload *out,
                                 ckks_error *err);
void keystore_payload_fini(keystore_payload *payload);

#endif
