/*
 * Results: owned blocks and leased views.
 *
 * A result may outlive the program that made it, and may be released on another thread. So what it refers to
 * is counted: owned blocks belong to a pool that goes with its last block, views share an object that says
 * whether the retained buffers still hold their generation.
 */
#include "kernels/base/bytes.h"
#include "kernels/program/graph_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- pool of pinned blocks: allocating pinned memory may stall a whole GPU ---- */

#define POOL_IDLE_MAX GRAPH_PENDING_MAX

struct result_pool {
    device *dev;
    uint64_t block_bytes;
    pthread_mutex_t lock;
    void *idle[POOL_IDLE_MAX];
    uint32_t idle_count, out_count;
    bool is_closed;
};

ckks_status result_pool_create(result_pool **out, device *dev, uint64_t block_bytes, ckks_error *err) {
    result_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    pool->dev = dev;
    pool->block_bytes = block_bytes;
    pthread_mutex_init(&pool->lock, NULL);
    *out = pool;
    return CKKS_OK;
}

static void pool_free(result_pool *pool) {
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

ckks_status result_pool_take(result_pool *pool, void **block, ckks_error *err) {
    *block = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->idle_count > 0) *block = pool->idle[--pool->idle_count];
    pool->out_count++;
    pthread_mutex_unlock(&pool->lock);
    if (*block != NULL) return CKKS_OK;
    const ckks_status rc = device_allocate_host(pool->dev, block, pool->block_bytes, err);
    if (rc == CKKS_OK) return CKKS_OK;
    pthread_mutex_lock(&pool->lock);
    pool->out_count--;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

void result_pool_give(result_pool *pool, void *block) {
    pthread_mutex_lock(&pool->lock);
    pool->out_count--;
    if (!pool->is_closed && pool->idle_count < POOL_IDLE_MAX) {
        pool->idle[pool->idle_count++] = block;
        block = NULL;
    }
    const bool is_last = pool->is_closed && pool->out_count == 0;
    pthread_mutex_unlock(&pool->lock);
    device_free_host(pool->dev, block);
    if (is_last) pool_free(pool);
}

void result_pool_close(result_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->lock);
    pool->is_closed = true;
    for (uint32_t i = 0; i < pool->idle_count; i++) device_free_host(pool->dev, pool->idle[i]);
    pool->idle_count = 0;
    const bool is_last = pool->out_count == 0;
    pthread_mutex_unlock(&pool->lock);
    if (is_last) pool_free(pool);
}

/* ---- views ---- */

struct output_views {
    atomic_uint references;
    graph_slot *slot;
    device_event *read; /* gone once closed */
    pthread_mutex_t lock;
    uint64_t generation, leased; /* leased: generation under lease, 0 = none */
    bool is_closed;
};

ckks_status output_views_create(output_views **out, graph_slot *slot, ckks_error *err) {
    output_views *views = calloc(1, sizeof *views);
    if (views == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    views->slot = slot;
    atomic_init(&views->references, 1);
    const ckks_status rc = device_event_create(slot->dev, &views->read, err);
    if (rc != CKKS_OK) {
        free(views);
        return rc;
    }
    pthread_mutex_init(&views->lock, NULL);
    *out = views;
    return CKKS_OK;
}

static void views_release(output_views *views) {
    if (views == NULL) return;
    if (atomic_fetch_sub_explicit(&views->references, 1, memory_order_acq_rel) != 1) return;
    pthread_mutex_destroy(&views->lock);
    free(views);
}

void output_views_close(output_views *views) {
    if (views == NULL) return;
    pthread_mutex_lock(&views->lock);
    views->is_closed = true;
    device_event_destroy(views->read);
    views->read = NULL;
    pthread_mutex_unlock(&views->lock);
    views_release(views);
}

static ckks_status check_lease(const output_views *views, ckks_error *err) {
    if (views->leased == 0) return CKKS_OK;
    return ckks_error_set(err, CKKS_LEASE_HELD, "outputs",
                          "the lease on generation %llu must be released before the next replay",
                          (unsigned long long)views->leased);
}

ckks_status output_views_check(output_views *views, ckks_error *err) {
    pthread_mutex_lock(&views->lock);
    const ckks_status rc = check_lease(views, err);
    pthread_mutex_unlock(&views->lock);
    return rc;
}

ckks_status output_views_advance(output_views *views, bool with_lease, uint64_t *generation,
                                 ckks_error *err) {
    pthread_mutex_lock(&views->lock);
    const ckks_status rc = check_lease(views, err);
    if (rc == CKKS_OK) {
        *generation = ++views->generation;
        if (with_lease) views->leased = *generation;
    }
    pthread_mutex_unlock(&views->lock);
    return rc;
}

void output_views_end_lease(output_views *views, uint64_t generation) {
    pthread_mutex_lock(&views->lock);
    if (views->leased == generation) views->leased = 0;
    pthread_mutex_unlock(&views->lock);
}

/* The lock keeps the next replay away while the words are read. */
static ckks_status views_read(output_views *views, uint64_t generation, uint64_t *words,
                              const ckks_value *value, uint64_t bytes, ckks_error *err) {
    ckks_status rc;
    pthread_mutex_lock(&views->lock);
    if (views->is_closed) {
        rc = ckks_error_set(err, CKKS_CLOSED, "outputs", "the program of this view is closed");
        goto out;
    }
    if (views->generation != generation) {
        rc = ckks_error_set(err, CKKS_STALE_GENERATION, "outputs",
                            "the view is of generation %llu, the buffers are of %llu",
                            (unsigned long long)generation, (unsigned long long)views->generation);
        goto out;
    }
    pthread_mutex_lock(&views->slot->lock);
    rc = device_copy_out(views->slot->copy, words, value->words, bytes, err);
    if (rc == CKKS_OK && (rc = device_event_record(views->read, views->slot->copy, err)) != CKKS_OK)
        (void)stream_drain(views->slot->copy, NULL);
    pthread_mutex_unlock(&views->slot->lock);
    if (rc == CKKS_OK) rc = event_drain(views->read, err);
out:
    pthread_mutex_unlock(&views->lock);
    return rc;
}

/* ---- results ---- */

struct result_body {
    graph_ownership ownership;
    device *dev;       /* of a block of its own (pool NULL) */
    result_pool *pool; /* owned */
    void *block;
    output_views *views; /* borrowed: a reference */
    uint64_t generation;
    bool is_leased;
    uint32_t output_count, binding_count;
    uint64_t *binding_generations;
    ckks_value *outputs;
};

ckks_status result_body_create(result_body **out, graph_ownership ownership, result_pool *pool,
                               output_views *views, const ckks_value *outputs, const uint64_t *offsets,
                               uint32_t output_count, uint32_t binding_count, ckks_error *err) {
    result_body *body = calloc(1, sizeof *body + (size_t)output_count * sizeof(ckks_value) +
                                      (size_t)binding_count * sizeof(uint64_t));
    if (body == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    body->ownership = ownership;
    body->output_count = output_count;
    body->binding_count = binding_count;
    body->outputs = (ckks_value *)(void *)(body + 1);
    body->binding_generations = (uint64_t *)(void *)(body->outputs + output_count);
    memcpy(body->outputs, outputs, (size_t)output_count * sizeof(ckks_value));
    if (ownership == GRAPH_OUTPUT_BORROWED) {
        atomic_fetch_add_explicit(&views->references, 1, memory_order_relaxed);
        body->views = views;
        *out = body;
        return CKKS_OK;
    }
    ckks_status rc = CKKS_OK;
    if (pool != NULL) {
        if ((rc = result_pool_take(pool, &body->block, err)) == CKKS_OK) body->pool = pool;
    } else {
        const ckks_value *last = &outputs[output_count - 1];
        body->block = malloc(offsets[output_count - 1] + last->signature.bytes);
        if (body->block == NULL) rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    }
    if (rc != CKKS_OK) {
        free(body);
        return rc;
    }
    for (uint32_t i = 0; i < output_count; i++) {
        body->outputs[i].words = (uint64_t *)(void *)((uint8_t *)body->block + offsets[i]);
        body->outputs[i].signature.device = 0;
    }
    *out = body;
    return CKKS_OK;
}

void result_body_destroy(result_body *body) {
    if (body == NULL) return;
    if (body->is_leased) output_views_end_lease(body->views, body->generation);
    views_release(body->views);
    if (body->pool != NULL)
        result_pool_give(body->pool, body->block);
    else
        free(body->block);
    free(body);
}

uint64_t *result_body_words(result_body *body, uint32_t index) {
    return body->outputs[index].words;
}

uint64_t *result_body_generations(result_body *body) {
    return body->binding_count > 0 ? body->binding_generations : NULL;
}

void result_body_set_generation(result_body *body, uint64_t generation, bool is_leased) {
    body->generation = generation;
    body->is_leased = is_leased;
}

void result_body_finish(result_body *body, graph_result *out) {
    *out = (graph_result){.ownership = body->ownership,
                          .output_count = body->output_count,
                          .outputs = body->outputs,
                          .generation = body->generation,
                          .binding_count = body->binding_count,
                          .binding_generations = body->binding_generations,
                          .internal = body};
}

void graph_result_release(graph_result *result) {
    if (result == NULL) return;
    result_body_destroy(result->internal);
    memset(result, 0, sizeof *result);
}

void graph_result_end_lease(graph_result *result) {
    result_body *body = result->internal;
    if (body == NULL || !body->is_leased) return;
    body->is_leased = false;
    output_views_end_lease(body->views, body->generation);
}

ckks_status graph_result_read(const graph_result *result, uint32_t index, uint64_t *words,
                              uint64_t word_count, ckks_error *err) {
    if (result == NULL || result->internal == NULL || words == NULL)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "result", "no result to read");
    result_body *body = result->internal;
    if (index >= body->output_count)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "index", "output %u of %u", index,
                              body->output_count);
    const ckks_value *value = &body->outputs[index];
    if (word_count != value->signature.bytes / 8)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "word_count", "%llu words asked of %llu",
                              (unsigned long long)word_count,
                              (unsigned long long)(value->signature.bytes / 8));
    if (body->ownership == GRAPH_OUTPUT_BORROWED)
        return views_read(body->views, body->generation, words, value, value->signature.bytes, err);
    memcpy(words, value->words, value->signature.bytes);
    return CKKS_OK;
}
