#include "daemon/keys.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "daemon/inference.h"
#include "daemon/server.h"
#include "kernels/base/bytes.h"
#include "kernels/base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOADS_MAX 2u /* of the pool's threads, so that hashing and the writer keep theirs */

/* ---- the catalogue in memory ---- */

static list_node *bucket_of(key_registry *k, const uint8_t *id) {
    return &k->buckets[id[0]];
}

key_entry *keys_find(server *s, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES]) {
    LIST_EACH(link, bucket_of(&s->keys, id)) {
        key_entry *entry = LIST_ENTRY(link, key_entry, link);
        if (memcmp(entry->record.id, id, KEY_SET_ID_BYTES) == 0 && strcmp(entry->record.tenant, tenant) == 0)
            return entry;
    }
    return NULL;
}

ckks_status keys_reserve(server *s, key_entry **out, ckks_error *err) {
    key_entry *entry = calloc(1, sizeof *entry);
    if (!entry) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    entry->server = s;
    list_init(&entry->link);
    list_init(&entry->age);
    list_init(&entry->waiting);
    list_init(&entry->pinned);
    *out = entry;
    return CKKS_OK;
}

void keys_add(server *s, keystore_record *record, key_entry **room) {
    key_entry *entry = keys_find(s, record->tenant, record->id);
    if (entry) { /* evicted and uploaded again, or committed twice */
        keystore_record_fini(&entry->record);
    } else {
        entry = *room, *room = NULL;
        list_append(bucket_of(&s->keys, record->id), &entry->link);
    }
    entry->record = *record;
    *record = (keystore_record){0};
}

static void entry_evict(key_entry *entry) {
    list_remove(&entry->age);
    resident_keys_release(entry->resident);
    entry->resident = NULL;
    entry->residency = KEYS_ON_DISK;
}

static void entry_free_if_unused(key_entry *entry) {
    if (!entry->is_deleted || !list_is_empty(&entry->pinned) || !list_is_empty(&entry->waiting) ||
        entry->residency == KEYS_LOADING)
        return;
    if (entry->residency == KEYS_RESIDENT) entry_evict(entry);
    list_remove(&entry->age);
    keystore_record_fini(&entry->record);
    free(entry);
}

void keys_found(server *s, const char *tenant, const uint8_t id[KEY_SET_ID_BYTES]) {
    key_entry *entry = keys_find(s, tenant, id);
    if (entry && entry->record.state == KEYSTORE_EVICTED) entry->record.state = KEYSTORE_COMMITTED;
}

void keys_remove(server *s, key_entry *entry) {
    (void)s;
    list_remove(&entry->link);
    entry->is_deleted = true;
    entry_free_if_unused(entry);
}

ckks_status keys_satisfy(const key_entry *entry, const key_requirement *requirements, uint32_t count,
                         ckks_error *err) {
    for (uint32_t i = 0; i < count; i++) {
        bool is_met = false;
        for (uint32_t k = 0; k < entry->record.key_count && !is_met; k++) {
            const key_requirement *have = &entry->record.requirements[k];
            is_met = have->kind == requirements[i].kind &&
                     have->galois_element == requirements[i].galois_element &&
                     have->level >= requirements[i].level;
        }
        if (!is_met)
            return ckks_error_set(err, CKKS_KEY_MISSING, "key_set",
                                  "the key set lacks the %s key%s%.0u of level %u",
                                  requirements[i].kind == KEY_RELINEARISATION ? "relinearisation"
                                  : requirements[i].kind == KEY_GALOIS        ? "Galois"
                                                                              : "public",
                                  requirements[i].kind == KEY_GALOIS ? " of element " : "",
                                  requirements[i].galois_element, requirements[i].level);
    }
    return CKKS_OK;
}

/* ---- the writer: one job of the store at a time ---- */

static void job_run(loop_work *work) {
    key_job *job = LIST_ENTRY(work, key_job, work);
    fault_key_job();
    job->run(job);
}

static void next_job(server *s);

static void job_done(loop_work *work) {
    key_job *job = LIST_ENTRY(work, key_job, work);
    server *s = job->server;
    s->keys.is_writing = false;
    s->pool_jobs--;
    job->done(job);
    next_job(s);
}

static const char *tenant_of(const key_job *job) {
    return job->tenant ? job->tenant : "";
}

static void next_job(server *s) {
    key_registry *k = &s->keys;
    if (k->is_writing || list_is_empty(&k->jobs)) return;
    key_job *job = LIST_ENTRY(k->jobs.next, key_job, link);
    LIST_EACH(link, &k->jobs) { /* the first of another tenant, if there is one */
        key_job *one = LIST_ENTRY(link, key_job, link);
        if (strcmp(tenant_of(one), k->served) == 0) continue;
        job = one;
        break;
    }
    snprintf(k->served, sizeof k->served, "%s", tenant_of(job));
    list_remove(&job->link);
    k->is_writing = true;
    s->pool_jobs++;
    job->work.work = job_run;
    job->work.done = job_done;
    loop_submit(&s->loop, &job->work);
}

void keys_submit(server *s, key_job *job) {
    job->server = s;
    list_append(&s->keys.jobs, &job->link);
    next_job(s);
}

ckks_status keys_admit(const server *s, const char *tenant, ckks_error *err) {
    uint32_t own = 0;
    LIST_EACH(link, &s->keys.jobs) own += strcmp(tenant_of(LIST_ENTRY(link, key_job, link)), tenant) == 0;
    if (list_count(&s->keys.jobs) >= KEYS_JOBS_MAX)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "keys", "%u calls wait for the key store", KEYS_JOBS_MAX);
    if (own >= KEYS_TENANT_JOBS_MAX)
        return ckks_error_set(err, CKKS_QUEUE_FULL, "keys", "%u calls of the tenant wait for the key store",
                              own);
    return CKKS_OK;
}

bool keys_are_idle(const server *s) {
    return !s->keys.is_writing && list_is_empty(&s->keys.jobs) && list_is_empty(&s->keys.loading);
}

/* ---- residency ---- */

static uint64_t resident_total(const key_registry *k) {
    uint64_t bytes = 0;
    LIST_EACH(link, &k->resident) bytes += LIST_ENTRY(link, key_entry, age)->record.resident_bytes;
    LIST_EACH(link, &k->loading) bytes += LIST_ENTRY(link, key_entry, age)->record.resident_bytes;
    return bytes;
}

/* Takes the least recently used unpinned set off the device; false if every one is in use. */
static bool evict_one(key_registry *k) {
    LIST_EACH(link, &k->resident) {
        key_entry *entry = LIST_ENTRY(link, key_entry, age);
        if (!list_is_empty(&entry->pinned)) continue;
        log_write(LOG_LEVEL_INFO, "event=keys_off_device tenant=%s bytes=%llu", entry->record.tenant,
                  (unsigned long long)entry->record.resident_bytes);
        entry_evict(entry);
        atomic_fetch_add_explicit(&daemon_metrics.key_evictions, 1, memory_order_relaxed);
        return true;
    }
    return false;
}

static ckks_status make_room(key_registry *k, uint64_t bytes, ckks_error *err) {
    if (bytes > k->resident_bytes_max)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "resident_bytes",
                              "the key set takes %llu bytes on the device, over the budget of %llu",
                              (unsigned long long)bytes, (unsigned long long)k->resident_bytes_max);
    while (resident_total(k) + bytes > k->resident_bytes_max)
        if (!evict_one(k))
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "resident_bytes",
                                  "every key set on the device is in use");
    return CKKS_OK;
}

/* Pool: the tables of a parameter set, made once. */
static const ckks_context *context_of(key_registry *k, const ckks_params *params, ckks_error *err) {
    const ckks_context *found = NULL;
    pthread_mutex_lock(&k->contexts_lock);
    LIST_EACH(link, &k->contexts) {
        const key_context *one = LIST_ENTRY(link, key_context, link);
        if (memcmp(context_params(one->context)->id, params->id, CKKS_PARAMETER_ID_BYTES) == 0)
            found = one->context;
    }
    if (!found) {
        key_context *one = calloc(1, sizeof *one);
        if (one && context_create(&one->context, params, err) == CKKS_OK) {
            list_append(&k->contexts, &one->link);
            found = one->context;
        } else {
            ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "no memory for the tables of a parameter set");
            free(one);
        }
    }
    pthread_mutex_unlock(&k->contexts_lock);
    return found;
}

static void load_run(loop_work *work) {
    key_entry *entry = LIST_ENTRY(work, key_entry, load);
    key_registry *k = &entry->server->keys;
    keystore_payload payload = {0};
    ckks_error *err = &entry->load_err;
    memset(err, 0, sizeof *err);
    entry->load_rc = keystore_map_payload(k->store, entry->record.id, entry->record.manifest,
                                          entry->record.manifest_bytes, &payload, err);
    if (entry->load_rc == CKKS_OK) {
        const ckks_context *context = context_of(k, &payload.view.params, err);
        entry->load_rc = context ? resident_keys_upload(&entry->resident, entry->server->device, context,
                                                        payload.view.keys, payload.view.count,
                                                        payload.view.seed, payload.view.lineage, err)
                                 : CKKS_RESOURCE_EXHAUSTED;
    }
    keystore_payload_fini(&payload);
}

static void load_start(key_entry *entry);
static void start_wanted(server *s);

static void load_answer(key_entry *entry) {
    while (!list_is_empty(&entry->waiting)) {
        inference *inf = LIST_ENTRY(entry->waiting.next, inference, key_link);
        list_remove(&inf->key_link);
        if (entry->load_rc == CKKS_OK) {
            list_append(&entry->pinned, &inf->key_link);
            inference_keys_ready(inf);
        } else {
            inference_keys_failed(inf, &entry->load_err);
        }
    }
}

static void load_done(loop_work *work) {
    key_entry *entry = LIST_ENTRY(work, key_entry, load);
    server *s = entry->server;
    key_registry *k = &s->keys;
    s->pool_jobs--;
    entry->residency = KEYS_ON_DISK;
    list_remove(&entry->age);
    if (entry->load_rc == CKKS_RESOURCE_EXHAUSTED && !list_is_empty(&entry->waiting) && evict_one(k)) {
        load_start(entry); /* the device had less room than the budget says */
        return;
    }
    if (entry->load_rc == CKKS_OK) {
        entry->residency = KEYS_RESIDENT;
        list_append(&k->resident, &entry->age);
        atomic_fetch_add_explicit(&daemon_metrics.key_uploads, 1, memory_order_relaxed);
        log_write(LOG_LEVEL_INFO, "event=keys_on_device tenant=%s bytes=%llu", entry->record.tenant,
                  (unsigned long long)resident_keys_bytes(entry->resident));
    } else {
        if (entry->load_rc == CKKS_KEY_EVICTED) entry->record.state = KEYSTORE_EVICTED;
        if (entry->load_err.code == CKKS_OK) entry->load_err.code = entry->load_rc;
        log_write(LOG_LEVEL_WARNING, "event=keys_load_failed tenant=%s error=%s message=\"%.200s\"",
                  entry->record.tenant, ckks_status_name(entry->load_rc), entry->load_err.message);
    }
    load_answer(entry);
    entry_free_if_unused(entry);
    start_wanted(s);
}

static void load_start(key_entry *entry) {
    server *s = entry->server;
    entry->residency = KEYS_LOADING;
    entry->load.work = load_run;
    entry->load.done = load_done;
    list_append(&s->keys.loading, &entry->age);
    s->pool_jobs++;
    loop_submit(&s->loop, &entry->load);
}

/* The next set that somebody waits for: of a tenant that loads none now, if there is one. */
static key_entry *next_wanted(key_registry *k) {
    key_entry *first = NULL;
    LIST_EACH_SAFE(link, &k->wanted) {
        key_entry *entry = LIST_ENTRY(link, key_entry, age);
        bool is_loading = false;
        if (list_is_empty(&entry->waiting)) { /* they gave up */
            list_remove(link);
            continue;
        }
        LIST_EACH(other, &k->loading)
        is_loading |= strcmp(LIST_ENTRY(other, key_entry, age)->record.tenant, entry->record.tenant) == 0;
        if (!is_loading) return entry;
        if (!first) first = entry;
    }
    return first;
}

static void start_wanted(server *s) {
    key_registry *k = &s->keys;
    for (key_entry *entry; list_count(&k->loading) < LOADS_MAX && (entry = next_wanted(k));) {
        list_remove(&entry->age);
        entry->load_err = (ckks_error){0};
        entry->load_rc = make_room(k, entry->record.resident_bytes, &entry->load_err);
        if (entry->load_rc == CKKS_OK) {
            load_start(entry);
        } else {
            load_answer(entry);
            entry_free_if_unused(entry);
        }
    }
}

void keys_hold(key_entry *entry, inference *inf) {
    inf->keys = entry;
    list_append(&entry->pinned, &inf->key_link);
}

ckks_status keys_acquire(server *s, inference *inf, bool *is_ready, ckks_error *err) {
    ckks_status rc;
    key_entry *entry = inf->keys;
    key_registry *k = &s->keys;
    if (entry->is_deleted)
        return ckks_error_set(err, CKKS_KEY_UNKNOWN, "key_set", "there is no such key set");
    entry->record.used_unix = clock_unix_s();
    entry->is_used_dirty = true;
    *is_ready = entry->residency == KEYS_RESIDENT;
    if (*is_ready) {
        list_remove(&entry->age);
        list_append(&k->resident, &entry->age);
        return CKKS_OK;
    }
    if (entry->residency == KEYS_ON_DISK && list_is_empty(&entry->age)) {
        if (list_count(&k->loading) >= LOADS_MAX) {
            list_append(&k->wanted, &entry->age);
        } else {
            if ((rc = make_room(k, entry->record.resident_bytes, err)) != CKKS_OK) return rc;
            load_start(entry);
        }
    }
    list_remove(&inf->key_link);
    list_append(&entry->waiting, &inf->key_link);
    return CKKS_OK;
}

void keys_let_go(server *s, inference *inf) {
    (void)s;
    if (!inf->keys || list_is_empty(&inf->key_link)) return;
    list_remove(&inf->key_link);
    entry_free_if_unused(inf->keys);
    inf->keys = NULL;
}

/* ---- opening, closing ---- */

static ckks_status visit(void *context, keystore_record *record, ckks_error *err) {
    key_entry *room = NULL;
    const ckks_status rc = keys_reserve(context, &room, err);
    if (rc != CKKS_OK) return rc;
    keys_add(context, record, &room);
    free(room);
    return CKKS_OK;
}

ckks_status keys_open(server *s, ckks_error *err) {
    key_registry *k = &s->keys;
    const config *c = &s->config;
    const keystore_limits limits = {.tenant_bytes_max = c->tenant_key_bytes,
                                    .tenant_sets_max = c->tenant_key_sets,
                                    .upload_expire_s = c->upload_expire_s,
                                    .allow_insecure = c->allow_insecure};
    for (uint32_t i = 0; i < KEYS_BUCKETS; i++) list_init(&k->buckets[i]);
    list_init(&k->resident);
    list_init(&k->loading);
    list_init(&k->wanted);
    list_init(&k->jobs);
    list_init(&k->contexts);
    pthread_mutex_init(&k->contexts_lock, NULL);
    k->resident_bytes_max = c->resident_bytes;
    k->is_initialised = true;
    const ckks_status rc = keystore_open(&k->store, c->data, &limits, clock_unix_s(), err);
    return rc == CKKS_OK ? keystore_each(k->store, visit, s, err) : rc;
}

void keys_release_residents(server *s) {
    if (!s->keys.is_initialised) return;
    LIST_EACH_SAFE(link, &s->keys.resident) entry_evict(LIST_ENTRY(link, key_entry, age));
}

void keys_close(server *s) {
    key_registry *k = &s->keys;
    if (!k->is_initialised) return;
    for (uint32_t i = 0; i < KEYS_BUCKETS; i++) LIST_EACH_SAFE(link, &k->buckets[i]) {
            key_entry *entry = LIST_ENTRY(link, key_entry, link);
            list_remove(link);
            if (entry->is_used_dirty)
                (void)keystore_used(k->store, entry->record.tenant, entry->record.id, entry->record.used_unix,
                                    NULL);
            keystore_record_fini(&entry->record);
            free(entry);
        }
    LIST_EACH_SAFE(link, &k->contexts) {
        key_context *one = LIST_ENTRY(link, key_context, link);
        list_remove(link);
        context_destroy(one->context);
        free(one);
    }
    keystore_close(k->store);
    pthread_mutex_destroy(&k->contexts_lock);
    k->is_initialised = false;
}

/* ---- housekeeping ---- */

#define USES_MAX 64u
#define DAY_S    86400u

typedef struct tick_set {
    char tenant[TOKEN_NAME_MAX + 1];
    uint8_t id[KEY_SET_ID_BYTES];
    uint64_t used_unix;
} tick_set;

typedef struct tick_job {
    key_job job;
    uint32_t used_count, unused_count;
    tick_set used[USES_MAX];   /* to be noted */
    tick_set unused[USES_MAX]; /* to be evicted; nobody is let to them meanwhile */
    bool is_noted, is_evicted[USES_MAX];
} tick_job;

static void tick_run(key_job *job) {
    tick_job *tick = LIST_ENTRY(job, tick_job, job);
    keystore *store = job->server->keys.store;
    uint32_t dropped = 0;
    ckks_error err = {0};
    ckks_status rc = keystore_expire(store, clock_unix_s(), &dropped, &err);
    for (uint32_t i = 0; i < tick->used_count && rc == CKKS_OK; i++)
        rc = keystore_used(store, tick->used[i].tenant, tick->used[i].id, tick->used[i].used_unix, &err);
    tick->is_noted = rc == CKKS_OK;
    for (uint32_t i = 0; i < tick->unused_count && rc == CKKS_OK; i++) {
        const tick_set *set = &tick->unused[i];
        rc = keystore_evict(store, set->tenant, set->id, set->used_unix, &tick->is_evicted[i], &err);
    }
    if (rc != CKKS_OK) log_write(LOG_LEVEL_ERROR, "event=catalogue_failed message=\"%.200s\"", err.message);
    if (dropped) log_write(LOG_LEVEL_NOTICE, "event=uploads_expired count=%u", dropped);
}

/* What the catalogue did not take is as it was. */
static void tick_done(key_job *job) {
    tick_job *tick = LIST_ENTRY(job, tick_job, job);
    server *s = job->server;
    for (uint32_t i = 0; i < tick->used_count && !tick->is_noted; i++) {
        key_entry *entry = keys_find(s, tick->used[i].tenant, tick->used[i].id);
        if (entry) entry->is_used_dirty = true;
    }
    for (uint32_t i = 0; i < tick->unused_count; i++) {
        const tick_set *set = &tick->unused[i];
        key_entry *entry = keys_find(s, set->tenant, set->id);
        if (tick->is_evicted[i]) {
            if (entry) entry->record.state = KEYSTORE_EVICTED; /* keys_found may have come in between */
            log_write(LOG_LEVEL_NOTICE, "event=keys_expired tenant=%s used_unix=%llu", set->tenant,
                      (unsigned long long)set->used_unix);
        } else if (entry && entry->record.used_unix == set->used_unix)
            entry->record.state = KEYSTORE_COMMITTED;
    }
    free(tick);
}

static uint64_t unused_limit_s(const server *s, const char *tenant) {
    const tenant_account *account = tenants_find(&s->tenants, tenant);
    const uint64_t days =
        account && account->quota.key_days ? account->quota.key_days : s->config.unused_days;
    return days * DAY_S;
}

static bool has_expired(const key_entry *entry, uint64_t now_unix) {
    const uint64_t limit_s = unused_limit_s(entry->server, entry->record.tenant);
    return limit_s && entry->record.state == KEYSTORE_COMMITTED && entry->residency != KEYS_LOADING &&
           list_is_empty(&entry->pinned) && list_is_empty(&entry->waiting) &&
           now_unix > entry->record.used_unix && now_unix - entry->record.used_unix > limit_s;
}

static void tick_add(tick_set *sets, uint32_t *count, const key_entry *entry) {
    tick_set *set = &sets[(*count)++];
    memcpy(set->tenant, entry->record.tenant, sizeof set->tenant);
    memcpy(set->id, entry->record.id, sizeof set->id);
    set->used_unix = entry->record.used_unix;
}

void keys_tick(server *s) {
    const uint64_t now_unix = clock_unix_s();
    tick_job *tick = calloc(1, sizeof *tick);
    if (!tick) return;
    for (uint32_t i = 0; i < KEYS_BUCKETS; i++) LIST_EACH(link, &s->keys.buckets[i]) {
            key_entry *entry = LIST_ENTRY(link, key_entry, link);
            if (tick->unused_count < USES_MAX && has_expired(entry, now_unix)) {
                tick_add(tick->unused, &tick->unused_count, entry);
                entry->record.state = KEYSTORE_EVICTED;
                entry->is_used_dirty = false;
                if (entry->residency == KEYS_RESIDENT) entry_evict(entry);
            } else if (entry->is_used_dirty && tick->used_count < USES_MAX) {
                tick_add(tick->used, &tick->used_count, entry);
                entry->is_used_dirty = false;
            }
        }
    tick->job.run = tick_run;
    tick->job.done = tick_done;
    keys_submit(s, &tick->job);
}

void keys_publish_metrics(server *s) {
    uint64_t sets = 0, bytes = 0, resident = 0, resident_bytes = 0;
    for (uint32_t i = 0; i < KEYS_BUCKETS; i++) LIST_EACH(link, &s->keys.buckets[i]) {
            const key_entry *entry = LIST_ENTRY(link, key_entry, link);
            if (entry->record.state == KEYSTORE_COMMITTED) sets++, bytes += entry->record.payload_bytes;
        }
    LIST_EACH(link, &s->keys.resident) {
        resident++;
        resident_bytes += LIST_ENTRY(link, key_entry, age)->record.resident_bytes;
    }
    atomic_store(&daemon_metrics.key_sets, sets);
    atomic_store(&daemon_metrics.key_bytes, bytes);
    atomic_store(&daemon_metrics.key_sets_resident, resident);
    atomic_store(&daemon_metrics.key_bytes_resident, resident_bytes);
}
