/*
 * Weights at fixed addresses, shared by every slot that attaches.
 *
 * A replay enters the set while it enqueues and records its completion before it leaves; a refresh closes the
 * door, waits until nobody is inside, then for the completion of each attached program's last replay, writes,
 * and opens the door. So a replay sees the set before a refresh or after it, never in between, and the
 * generation it read on entering is the one it computes with.
 *
 * Deliberately absent: a second copy of the weights to fall back on. A device failure in the middle of a
 * refresh leaves the touched bindings without known words, and replays are refused until they are given
 * again.
 */
#include "kernels/base/bytes.h"
#include "kernels/base/hash.h"
#include "kernels/program/graph_internal.h"

#include <stdlib.h>
#include <string.h>

/* pinned memory of a refresh: weights pass through in pieces */
#define REFRESH_PIECE_BYTES (4u << 20)

typedef struct binding {
    binding_descriptor descriptor;
    uint64_t *words;
    uint64_t generation;
    uint8_t digest[32];
    bool has_words;
} binding;

struct binding_set {
    device *dev;
    device_stream *stream;
    uint32_t count;
    binding *bindings;
    uint8_t *block;       /* all words, one binding after another: large pages serve one block best */
    pthread_mutex_t lock; /* all below, and the bindings' generation, digest and has_words */
    pthread_cond_t changed;
    bool is_refreshing;
    uint32_t inside, waiting;
    uint32_t without_words;
    uint64_t generation;
    binding_attachment *attached;
};

/* under the lock */
static void wait_for_change(binding_set *set) {
    set->waiting++;
    pthread_cond_wait(&set->changed, &set->lock);
    set->waiting--;
}

static void set_free(binding_set *set) {
    if (set == NULL) return;
    device_stream_destroy(set->stream);
    device_free(set->dev, set->block);
    free(set->bindings);
    pthread_cond_destroy(&set->changed);
    pthread_mutex_destroy(&set->lock);
    free(set);
}

static int compare_ids(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static ckks_status check_distinct(const binding_descriptor *bindings, uint32_t count, ckks_error *err) {
    uint64_t *ids = malloc((size_t)count * sizeof *ids);
    if (ids == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    for (uint32_t i = 0; i < count; i++) ids[i] = bindings[i].id;
    qsort(ids, count, sizeof *ids, compare_ids);
    ckks_status rc = CKKS_OK;
    for (uint32_t i = 1; i < count && rc == CKKS_OK; i++)
        if (ids[i] == ids[i - 1])
            rc = ckks_error_set(err, CKKS_INVALID_ARGUMENT, "id", "binding %llu is there twice",
                                (unsigned long long)ids[i]);
    free(ids);
    return rc;
}

/* fills in descriptors and addresses */
static ckks_status allocate_words(binding_set *set, const binding_descriptor *bindings, ckks_error *err) {
    uint64_t total = 0;
    void *block;
    for (uint32_t i = 0; i < set->count; i++) {
        uint64_t bytes;
        if (bindings[i].word_count == 0 || __builtin_mul_overflow(bindings[i].word_count, 8u, &bytes) ||
            __builtin_add_overflow(bytes, VALUE_ALIGNMENT - 1, &bytes) ||
            __builtin_add_overflow(total, bytes / VALUE_ALIGNMENT * VALUE_ALIGNMENT, &total))
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "word_count", "binding %llu has %llu words",
                                  (unsigned long long)bindings[i].id,
                                  (unsigned long long)bindings[i].word_count);
    }
    const ckks_status rc = device_allocate(set->dev, &block, total, MEMORY_STATIC, err);
    if (rc != CKKS_OK) return rc;
    set->block = block;
    total = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        set->bindings[i].descriptor = bindings[i];
        set->bindings[i].words = (uint64_t *)(void *)(set->block + total);
        total += align_up(bindings[i].word_count * 8, VALUE_ALIGNMENT);
    }
    return CKKS_OK;
}

ckks_status binding_set_create(binding_set **out, device *dev, const binding_descriptor *bindings,
                               uint32_t count, ckks_error *err) {
    if (out == NULL || dev == NULL || bindings == NULL || count == 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "bindings", "a binding set needs bindings");
    ckks_status rc;
    if ((rc = check_distinct(bindings, count, err)) != CKKS_OK) return rc;
    binding_set *set = calloc(1, sizeof *set);
    if (set == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    set->dev = dev;
    pthread_mutex_init(&set->lock, NULL);
    pthread_cond_init(&set->changed, NULL);
    set->bindings = calloc(count, sizeof *set->bindings);
    if (set->bindings == NULL) {
        rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
        goto out;
    }
    set->count = set->without_words = count;
    if ((rc = device_stream_create(dev, &set->stream, err)) != CKKS_OK) goto out;
    if ((rc = allocate_words(set, bindings, err)) != CKKS_OK) goto out;
    *out = set, set = NULL;
    rc = CKKS_OK;
out:
    set_free(set);
    return rc;
}

ckks_status binding_set_destroy(binding_set *set, ckks_error *err) {
    if (set == NULL) return CKKS_OK;
    pthread_mutex_lock(&set->lock);
    const bool is_attached = set->attached != NULL;
    pthread_mutex_unlock(&set->lock);
    if (is_attached)
        return ckks_error_set(err, CKKS_FAILED_PRECONDITION, "bindings", "a program is attached");
    set_free(set);
    return CKKS_OK;
}

/* One update of a refresh, checked. */
typedef struct target {
    binding *b;
    uint8_t digest[32];
} target;

/* Updates mostly come in the set's own order: look from `hint` on, once around. */
static binding *find(binding_set *set, uint64_t id, uint32_t *hint) {
    for (uint32_t i = 0; i < set->count; i++) {
        const uint32_t at = (uint32_t)(((uint64_t)*hint + i) % set->count);
        if (set->bindings[at].descriptor.id == id) {
            *hint = at + 1;
            return &set->bindings[at];
        }
    }
    return NULL;
}

static ckks_status check_updates(binding_set *set, target *targets, const binding_update *updates,
                                 uint32_t count, ckks_error *err) {
    uint32_t hint = 0;
    for (uint32_t i = 0; i < count; i++) {
        const binding_update *u = &updates[i];
        binding *b = targets[i].b = find(set, u->id, &hint);
        if (b == NULL)
            return ckks_error_set(err, CKKS_NOT_FOUND, "id", "the set has no binding %llu",
                                  (unsigned long long)u->id);
        if (u->words == NULL)
            return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "words", "no words for binding %llu",
                                  (unsigned long long)u->id);
        if (u->word_count != b->descriptor.word_count)
            return ckks_error_set(err, CKKS_SIGNATURE_MISMATCH, "word_count",
                                  "binding %llu has %llu words, the update %llu", (unsigned long long)u->id,
                                  (unsigned long long)b->descriptor.word_count,
                                  (unsigned long long)u->word_count);
        const ckks_status rc = value_signature_compare(&b->descriptor.signature, &u->signature, err);
        if (rc != CKKS_OK) return rc;
    }
    binding_descriptor *seen = malloc((size_t)count * sizeof *seen);
    if (seen == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    for (uint32_t i = 0; i < count; i++) seen[i] = targets[i].b->descriptor;
    const ckks_status rc = check_distinct(seen, count, err);
    free(seen);
    return rc;
}

static void close_door(binding_set *set) {
    pthread_mutex_lock(&set->lock);
    while (set->is_refreshing) wait_for_change(set);
    set->is_refreshing = true;
    while (set->inside > 0) wait_for_change(set);
    pthread_mutex_unlock(&set->lock);
    /* nobody attaches, detaches or records an event now. A replay that failed reads nothing any more, so its
     * error is its program's affair. */
    for (binding_attachment *at = set->attached; at != NULL; at = at->next)
        (void)event_drain(at->last_replay, NULL);
}

static void open_door(binding_set *set) {
    pthread_mutex_lock(&set->lock);
    set->is_refreshing = false;
    pthread_cond_broadcast(&set->changed);
    pthread_mutex_unlock(&set->lock);
}

static ckks_status upload(binding_set *set, binding *b, const uint64_t *words, void *piece, ckks_error *err) {
    const uint64_t total = b->descriptor.word_count * 8;
    for (uint64_t at = 0; at < total; at += REFRESH_PIECE_BYTES) {
        const uint64_t bytes = total - at < REFRESH_PIECE_BYTES ? total - at : REFRESH_PIECE_BYTES;
        memcpy(piece, (const uint8_t *)words + at, bytes);
        ckks_status rc = device_copy_in(set->stream, (uint8_t *)b->words + at, piece, bytes, err);
        if (rc == CKKS_OK) rc = stream_drain(set->stream, err);
        if (rc != CKKS_OK) {
            (void)stream_drain(set->stream, NULL);
            return rc;
        }
    }
    return CKKS_OK;
}

static ckks_status write_all(binding_set *set, const target *targets, const binding_update *updates,
                             uint32_t count, void *piece, ckks_error *err) {
    pthread_mutex_lock(&set->lock);
    for (uint32_t i = 0; i < count; i++) {
        set->without_words += targets[i].b->has_words;
        targets[i].b->has_words = false;
    }
    pthread_mutex_unlock(&set->lock);
    for (uint32_t i = 0; i < count; i++) {
        const ckks_status rc = upload(set, targets[i].b, updates[i].words, piece, err);
        if (rc == CKKS_OK) continue;
        (void)device_stream_recover(set->stream, NULL); /* so that the refresh that repairs can run */
        return rc;
    }
    pthread_mutex_lock(&set->lock);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(targets[i].b->digest, targets[i].digest, sizeof targets[i].digest);
        targets[i].b->generation++;
        targets[i].b->has_words = true;
        set->without_words--;
    }
    set->generation++;
    pthread_mutex_unlock(&set->lock);
    return CKKS_OK;
}

ckks_status binding_set_refresh(binding_set *set, const binding_update *updates, uint32_t count,
                                ckks_error *err) {
    if (set == NULL || updates == NULL || count == 0)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "updates", "nothing to refresh");
    if (count > set->count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "updates", "%u updates for %u bindings", count,
                              set->count);
    ckks_status rc;
    void *piece = NULL;
    target *targets = calloc(count, sizeof *targets);
    if (targets == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    if ((rc = check_updates(set, targets, updates, count, err)) != CKKS_OK) goto out;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t bytes = updates[i].word_count * 8;
        sha256(targets[i].digest, updates[i].words, bytes);
        if (bytes > largest) largest = bytes;
    }
    if (largest > REFRESH_PIECE_BYTES) largest = REFRESH_PIECE_BYTES;
    if ((rc = device_allocate_host(set->dev, &piece, largest, err)) != CKKS_OK) goto out;
    close_door(set);
    rc = write_all(set, targets, updates, count, piece, err);
    open_door(set);
out:
    device_free_host(set->dev, piece);
    free(targets);
    return rc;
}

uint32_t binding_set_count(const binding_set *set) {
    return set->count;
}

void binding_set_info(binding_set *set, uint32_t index, binding_info *out) {
    CKKS_ASSERT(index < set->count);
    const binding *b = &set->bindings[index];
    pthread_mutex_lock(&set->lock);
    *out = (binding_info){.id = b->descriptor.id, .generation = b->generation, .words = b->words};
    memcpy(out->digest, b->digest, sizeof out->digest);
    pthread_mutex_unlock(&set->lock);
}

uint64_t binding_set_generation(binding_set *set) {
    pthread_mutex_lock(&set->lock);
    const uint64_t generation = set->generation;
    pthread_mutex_unlock(&set->lock);
    return generation;
}

uint32_t binding_set_waiting(binding_set *set) {
    pthread_mutex_lock(&set->lock);
    const uint32_t waiting = set->waiting;
    pthread_mutex_unlock(&set->lock);
    return waiting;
}

uint64_t binding_set_refreshes(binding_set *set) {
    return binding_set_generation(set);
}

device *binding_set_device(const binding_set *set) {
    return set->dev;
}

ckks_status binding_set_attach(binding_set *set, binding_attachment *at, ckks_error *err) {
    const ckks_status rc = device_event_create(set->dev, &at->last_replay, err);
    if (rc != CKKS_OK) return rc;
    pthread_mutex_lock(&set->lock);
    while (set->is_refreshing) wait_for_change(set);
    at->refreshes = set->generation;
    at->next = set->attached;
    set->attached = at;
    pthread_mutex_unlock(&set->lock);
    return CKKS_OK;
}

void binding_set_detach(binding_set *set, binding_attachment *at) {
    pthread_mutex_lock(&set->lock);
    while (set->is_refreshing) wait_for_change(set);
    binding_attachment **link = &set->attached;
    while (*link != at) link = &(*link)->next;
    *link = at->next;
    pthread_mutex_unlock(&set->lock);
    device_event_destroy(at->last_replay);
    at->last_replay = NULL;
}

ckks_status binding_set_enter(binding_set *set, uint64_t *generations, uint64_t *generation,
                              ckks_error *err) {
    pthread_mutex_lock(&set->lock);
    while (set->is_refreshing) wait_for_change(set);
    ckks_status rc = CKKS_OK;
    if (set->without_words > 0) {
        uint32_t i = 0;
        while (set->bindings[i].has_words) i++;
        rc = ckks_error_set(
            err, set->bindings[i].generation == 0 ? CKKS_FAILED_PRECONDITION : CKKS_DEVICE_ERROR, "bindings",
            "binding %llu has no words: refresh it", (unsigned long long)set->bindings[i].descriptor.id);
    } else {
        set->inside++;
        *generation = set->generation;
        for (uint32_t i = 0; generations != NULL && i < set->count; i++)
            generations[i] = set->bindings[i].generation;
    }
    pthread_mutex_unlock(&set->lock);
    return rc;
}

void binding_set_leave(binding_set *set) {
    pthread_mutex_lock(&set->lock);
    if (--set->inside == 0) pthread_cond_broadcast(&set->changed);
    pthread_mutex_unlock(&set->lock);
}
