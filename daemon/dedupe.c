#include "daemon/dedupe.h"

#include "kernels/base/bytes.h"

#include <openssl/evp.h>
#include <sodium.h>
#include <stdlib.h>

ckks_status dedupe_init(dedupe *d, uint64_t keep_ns, uint64_t bytes_max, ckks_error *err) {
    for (uint32_t i = 0; i < DEDUPE_BUCKETS; i++) list_init(&d->buckets[i]);
    list_init(&d->finished);
    d->keep_ns = keep_ns, d->bytes_max = bytes_max, d->bytes = 0;
    randombytes_buf(d->digest_key, sizeof d->digest_key);
    if (!(d->mac = EVP_MAC_fetch(NULL, "POLY1305", NULL)))
        return ckks_error_set(err, CKKS_INTERNAL, "", "libcrypto has no Poly1305");
    return CKKS_OK;
}

ckks_status dedupe_digest(const dedupe *d, uint8_t digest[DEDUPE_DIGEST_BYTES], const void *message,
                          uint64_t message_bytes, const void *segments, uint64_t segments_bytes,
                          ckks_error *err) {
    EVP_MAC_CTX *context = EVP_MAC_CTX_new(d->mac);
    size_t size = 0;
    uint8_t length[8]; /* so that no byte can change sides */
    bytes_write_u64(length, message_bytes);
    const bool is_good = context && EVP_MAC_init(context, d->digest_key, sizeof d->digest_key, NULL) == 1 &&
                         EVP_MAC_update(context, length, sizeof length) == 1 &&
                         EVP_MAC_update(context, message, (size_t)message_bytes) == 1 &&
                         EVP_MAC_update(context, segments, (size_t)segments_bytes) == 1 &&
                         EVP_MAC_final(context, digest, &size, DEDUPE_DIGEST_BYTES) == 1 &&
                         size == DEDUPE_DIGEST_BYTES;
    EVP_MAC_CTX_free(context);
    return is_good ? CKKS_OK : ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
}

static uint64_t bytes_of(const dedupe_entry *entry) {
    return DEDUPE_ENTRY_BYTES + nng_msg_len(entry->reply);
}

static void entry_free(dedupe *d, dedupe_entry *entry) {
    list_remove(&entry->bucket);
    list_remove(&entry->age);
    if (entry->reply) {
        d->bytes -= bytes_of(entry);
        nng_msg_free(entry->reply);
    }
    free(entry);
}

void dedupe_fini(dedupe *d) {
    if (!d->buckets[0].next) return;
    for (uint32_t i = 0; i < DEDUPE_BUCKETS; i++)
        LIST_EACH_SAFE(link, &d->buckets[i]) entry_free(d, LIST_ENTRY(link, dedupe_entry, bucket));
    EVP_MAC_free(d->mac);
    d->mac = NULL;
    sodium_memzero(d->digest_key, sizeof d->digest_key);
}

/* Ids are random; mixed all the same, since a peer chooses them. */
static list_node *bucket_of(dedupe *d, const char *tenant, const uint8_t id[DEDUPE_ID_BYTES]) {
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (const char *c = tenant; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001b3u;
    h ^= bytes_read_u64(id) * 0xff51afd7ed558ccdu;
    h ^= bytes_read_u64(id + 8) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 33;
    return &d->buckets[h % DEDUPE_BUCKETS];
}

void dedupe_expire(dedupe *d, uint64_t now_ns) {
    LIST_EACH_SAFE(link, &d->finished) {
        dedupe_entry *entry = LIST_ENTRY(link, dedupe_entry, age);
        if (entry->expires_ns > now_ns) return;
        entry_free(d, entry);
    }
}

dedupe_entry *dedupe_find(dedupe *d, const char *tenant, const uint8_t id[DEDUPE_ID_BYTES], uint64_t now_ns) {
    dedupe_expire(d, now_ns);
    LIST_EACH(link, bucket_of(d, tenant, id)) {
        dedupe_entry *entry = LIST_ENTRY(link, dedupe_entry, bucket);
        if (memcmp(entry->id, id, DEDUPE_ID_BYTES) == 0 && strcmp(entry->tenant, tenant) == 0) return entry;
    }
    return NULL;
}

ckks_status dedupe_enter(dedupe *d, dedupe_entry **out, bool *is_new, const char *tenant,
                         const uint8_t id[DEDUPE_ID_BYTES], const uint8_t *digest, void *owner,
                         uint64_t now_ns, ckks_error *err) {
    dedupe_entry *entry = dedupe_find(d, tenant, id, now_ns);
    *is_new = !entry;
    if (entry) {
        CKKS_ASSERT(digest && entry->has_digest);
        if (memcmp(entry->digest, digest, DEDUPE_DIGEST_BYTES) != 0)
            return ckks_error_set(err, CKKS_REQUEST_ID_REUSED, "request_id",
                                  "this request id came with another body before");
        *out = entry;
        return CKKS_OK;
    }
    if (!(entry = calloc(1, sizeof *entry)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    list_init(&entry->age);
    strncpy(entry->tenant, tenant, TOKEN_NAME_MAX);
    memcpy(entry->id, id, DEDUPE_ID_BYTES);
    if (digest) dedupe_set_digest(entry, digest);
    entry->owner = owner;
    list_append(bucket_of(d, tenant, id), &entry->bucket);
    *out = entry;
    return CKKS_OK;
}

void dedupe_set_digest(dedupe_entry *entry, const uint8_t digest[DEDUPE_DIGEST_BYTES]) {
    memcpy(entry->digest, digest, DEDUPE_DIGEST_BYTES);
    entry->has_digest = true;
}

void dedupe_finish(dedupe *d, dedupe_entry *entry, nng_msg *reply, uint64_t now_ns) {
    CKKS_ASSERT(entry->has_digest);
    entry->owner = NULL;
    if (d->keep_ns == 0 || !reply) {
        if (reply) nng_msg_free(reply);
        entry_free(d, entry);
        return;
    }
    entry->reply = reply;
    entry->expires_ns = now_ns + d->keep_ns;
    list_append(&d->finished, &entry->age);
    d->bytes += bytes_of(entry);
    while (d->bytes > d->bytes_max && !list_is_empty(&d->finished))
        entry_free(d, LIST_ENTRY(d->finished.next, dedupe_entry, age));
}

void dedupe_forget(dedupe *d, dedupe_entry *entry) {
    if (entry) entry_free(d, entry);
}
