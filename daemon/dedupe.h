/*
 * One evaluation per (tenant, request id, body): a retry joins the running request or gets the
 * finished reply; the same id with another body is refused. Finished replies stay for a time and within a
 * byte budget, oldest out first. Knows nothing of requests: `owner` is whoever runs. Loop thread only, but
 * for dedupe_digest.
 *
 * Bodies are told apart by Poly1305 under a key of this process's own that nobody sees, nor any digest: 6
 * GB/s where SHA-256 takes 1.5, and a request waits for it. Finding two bodies that it takes for one would
 * need the key; who did would be answered his own earlier request.
 */
#ifndef CKKSD_DEDUPE_H
#define CKKSD_DEDUPE_H

#include "daemon/list.h"
#include "kernels/base/status.h"
#include "proto/token.h"

#include <nng/nng.h>

#define DEDUPE_ID_BYTES     16u
#define DEDUPE_DIGEST_BYTES 16u
#define DEDUPE_BUCKETS      1024u
#define DEDUPE_ENTRY_BYTES  512u /* what an entry costs beside its reply */

typedef struct dedupe_entry {
    list_node bucket; /* in its hash bucket */
    list_node age;    /* finished entries, oldest first */
    char tenant[TOKEN_NAME_MAX + 1];
    uint8_t id[DEDUPE_ID_BYTES];
    uint8_t digest[DEDUPE_DIGEST_BYTES];
    bool has_digest; /* else it runs: its owner has the body */
    void *owner;     /* while it runs */
    nng_msg *reply;  /* once finished */
    uint64_t expires_ns;
} dedupe_entry;

typedef struct dedupe {
    list_node buckets[DEDUPE_BUCKETS];
    list_node finished;
    uint64_t keep_ns, bytes_max;
    uint8_t digest_key[32];
    struct evp_mac_st *mac;
    uint64_t bytes; /* of finished entries; kept, since a walk per reply would be felt */
} dedupe;

/* dedupe_init draws the key. CKKS_INTERNAL: libcrypto has no Poly1305. */
ckks_status dedupe_init(dedupe *d, uint64_t keep_ns, uint64_t bytes_max, ckks_error *err);
void dedupe_fini(dedupe *d); /* accepts zeroed */
/* dedupe_digest: of a request's method message and its segments. Any thread. CKKS_RESOURCE_EXHAUSTED. */
ckks_status dedupe_digest(const dedupe *d, uint8_t digest[DEDUPE_DIGEST_BYTES], const void *message,
                          uint64_t message_bytes, const void *segments, uint64_t segments_bytes,
                          ckks_error *err);

/*
 * dedupe_enter: *out is the entry of this (tenant, id). *is_new: it was made now, for `owner`. Else it runs
 * (owner) or is finished (reply). CKKS_REQUEST_ID_REUSED if the digest differs, CKKS_RESOURCE_EXHAUSTED.
 * digest NULL: for a new entry alone, which gets its digest before it is finished.
 */
ckks_status dedupe_enter(dedupe *d, dedupe_entry **out, bool *is_new, const char *tenant,
                         const uint8_t id[DEDUPE_ID_BYTES], const uint8_t *digest, void *owner,
                         uint64_t now_ns, ckks_error *err);
/* dedupe_set_digest of an entry that has none yet. */
void dedupe_set_digest(dedupe_entry *entry, const uint8_t digest[DEDUPE_DIGEST_BYTES]);
/* dedupe_find: NULL if unknown. */
dedupe_entry *dedupe_find(dedupe *d, const char *tenant, const uint8_t id[DEDUPE_ID_BYTES], uint64_t now_ns);
/* dedupe_finish takes `reply` and keeps it for later retries, as budgets allow. NULL: there is none to keep.
 */
void dedupe_finish(dedupe *d, dedupe_entry *entry, nng_msg *reply, uint64_t now_ns);
/* dedupe_forget: the request ended without an evaluation; a retry may run. */
void dedupe_forget(dedupe *d, dedupe_entry *entry);
/* dedupe_expire drops what is too old. */
void dedupe_expire(dedupe *d, uint64_t now_ns);
#endif
