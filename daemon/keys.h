/*
 * Key sets in service: what the catalogue holds, which of it is on the device, and the one writer task of the
 * key store. Loop thread only; disk and device work runs in the pool.
 *
 * Residency is a cache over the immutable files: a set is brought to the device when a request needs it,
 * stays within a byte budget (least recently used goes first) and is pinned by the requests that use it.
 */
#ifndef CKKSD_KEYS_H
#define CKKSD_KEYS_H

#include "daemon/keystore.h"
#include "daemon/loop.h"

#define KEYS_BUCKETS         256u
#define KEYS_JOBS_MAX        128u
#define KEYS_TENANT_JOBS_MAX 16u /* of them of one tenant */

struct server;
struct inference;
struct key_job;

typedef enum key_residency { KEYS_ON_DISK, KEYS_LOADING, KEYS_RESIDENT } key_residency;

typedef struct key_entry {
    list_node link; /* in its bucket; in none once deleted */
    list_node age;  /* in keys.resident, least recently used first; in keys.loading; in keys.wanted */
    struct server *server;
    keystore_record record;
    key_residency residency;
    resident_keys *resident;
    list_node waiting; /* inference.key_link: for the load */
    list_node pinned;  /* inference.key_link: use it now */
    bool is_deleted;
    bool is_used_dirty; /* used_unix is newer than the catalogue's */
    loop_work load;
    ckks_status load_rc;
    ckks_error load_err;
} key_entry;

/* One operation on the store. run: pool; done: loop; both may use everything in the job. */
typedef struct key_job {
    list_node link;
    loop_work work;
    struct server *server;
    void (*run)(struct key_job *job);
    void (*done)(struct key_job *job);
    const char *tenant; /* in the job; NULL: nobody's */
} key_job;

/* A ring's tables, shared by every key set of one parameter id; lives until the daemon ends. */
typedef struct key_context {
    list_node link;
    ckks_context *context;
} key_context;

typedef struct key_registry {
    keystore *store;
    list_node buckets[KEYS_BUCKETS];
    list_node resident, loading;
    list_node wanted; /* to be loaded, when others are: first come, first served, but tenants take turns */
    list_node jobs;   /* waiting for the writer */
    bool is_writing;
    char served[TOKEN_NAME_MAX + 1]; /* whose job the writer took last */
    uint64_t resident_bytes_max;
    pthread_mutex_t contexts_lock;
    list_node contexts;
    bool is_initialised;
} key_registry;

/* keys_open opens the store and reads the catalogue. Blocks (start-up). */
ckks_status keys_open(struct server *s, ckks_error *err);
/* keys_release_residents gives device memory back; keys_close frees the rest. After the loop. */
void keys_release_residents(struct server *s);
void keys_close(struct server *s);

/* keys_find: NULL for an unknown set and for another tenant's alike. */
key_entry *keys_find(struct server *s, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES]);
/* keys_reserve makes room for one more set, so that keys_add cannot fail once the set is committed; the
 * caller frees *out with free() if it stays. CKKS_RESOURCE_EXHAUSTED. Any thread. */
ckks_status keys_reserve(struct server *s, key_entry **out, ckks_error *err);
/* keys_add takes over a committed record (zeroing it), and *room (setting NULL) if the set is not known yet.
 */
void keys_add(struct server *s, keystore_record *record, key_entry **room);
/* keys_found: the catalogue and the folder have the set: it is of use again if it had gone from there. */
void keys_found(struct server *s, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES]);
/* keys_remove: the set is gone from the store; requests that use it finish. */
void keys_remove(struct server *s, key_entry *entry);
/* keys_satisfy: does the set hold what a model requires? CKKS_KEY_MISSING names the first lack. */
ckks_status keys_satisfy(const key_entry *entry, const key_requirement *requirements, uint32_t count,
                         ckks_error *err);

/* keys_hold keeps the entry from being freed until keys_let_go. */
void keys_hold(key_entry *entry, struct inference *inf);
/* keys_acquire (for a set that is held) pins the set for the inference: at once (*is_ready) or after a load,
 * when inference_keys_ready or inference_keys_failed is called. CKKS_RESOURCE_EXHAUSTED, CKKS_KEY_UNKNOWN if
 * it was deleted meanwhile. */
ckks_status keys_acquire(struct server *s, struct inference *inf, bool *is_ready, ckks_error *err);
/* keys_let_go: the inference needs its keys no more, or no longer waits for them. Safe to repeat. */
void keys_let_go(struct server *s, struct inference *inf);

/* keys_submit: the writer takes jobs as they come, but tenants in turn. */
void keys_submit(struct server *s, key_job *job);
/* keys_admit: may a call of this tenant wait for the writer too? A call outlives its connection, so that
 * contexts alone do not bound how many messages (up to 16 MiB each) peers that come and go can leave here;
 * and each holds a context that others need. CKKS_QUEUE_FULL. */
ckks_status keys_admit(const struct server *s, const char *tenant, ckks_error *err);
/* Is the pool at work for us? */
bool keys_are_idle(const struct server *s);
/* At start and every minute or so: notes uses in the catalogue, expires uploads, evicts key sets that nobody
 * used for their tenant's time. */
void keys_tick(struct server *s);
void keys_publish_metrics(struct server *s);

#endif
