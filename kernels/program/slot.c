/*
 * A slot: an arena that never moves, because recordings hold its addresses, and the two streams that all its
 * programs share, so that they never overlap in it.
 */
#include "kernels/program/graph_internal.h"

#include <stdlib.h>
#include <time.h>

ckks_status graph_slot_create(graph_slot **out, device *dev, uint64_t arena_bytes, ckks_error *err) {
    if (out == NULL || dev == NULL) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "device", "no device");
    ckks_status rc;
    graph_slot *slot = calloc(1, sizeof *slot);
    if (slot == NULL) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "", "out of memory");
    slot->dev = dev;
    slot->arena_bytes = arena_bytes;
    pthread_mutex_init(&slot->lock, NULL);
    if (arena_bytes > 0 &&
        (rc = device_allocate(dev, &slot->arena, arena_bytes, MEMORY_ARENA, err)) != CKKS_OK)
        goto out;
    if ((rc = device_stream_create(dev, &slot->compute, err)) != CKKS_OK) goto out;
    if ((rc = device_stream_create(dev, &slot->copy, err)) != CKKS_OK) goto out;
    *out = slot, slot = NULL;
out:
    graph_slot_destroy(slot);
    return rc;
}

void graph_slot_destroy(graph_slot *slot) {
    if (slot == NULL) return;
    CKKS_ASSERT(slot->program_count == 0);
    device_stream_destroy(slot->copy);
    device_stream_destroy(slot->compute);
    device_free(slot->dev, slot->arena);
    pthread_mutex_destroy(&slot->lock);
    free(slot);
}

device_stream *graph_slot_stream(graph_slot *slot) {
    return slot->compute;
}

device *graph_slot_device(graph_slot *slot) {
    return slot->dev;
}

void graph_slot_limit(graph_slot *slot, uint64_t program_bytes_max) {
    pthread_mutex_lock(&slot->lock);
    slot->program_bytes_max = program_bytes_max;
    pthread_mutex_unlock(&slot->lock);
}

ckks_status graph_slot_recover(graph_slot *slot, ckks_error *err) {
    pthread_mutex_lock(&slot->lock);
    /* whatever happens now, results of work enqueued before are not to be believed */
    slot->epoch++;
    (void)stream_drain(slot->copy, NULL);
    (void)stream_drain(slot->compute, NULL);
    ckks_status rc = device_stream_recover(slot->copy, err);
    if (rc == CKKS_OK) rc = device_stream_recover(slot->compute, err);
    pthread_mutex_unlock(&slot->lock);
    return rc;
}

ckks_status stream_drain(device_stream *stream, ckks_error *err) {
    const ckks_status first = device_stream_synchronize(stream, err);
    if (first == CKKS_OK) return CKKS_OK;
    /* a call that failed may not have waited; memory is freed behind this, so ask once more */
    (void)device_stream_synchronize(stream, NULL);
    return first;
}

ckks_status event_drain(device_event *event, ckks_error *err) {
    const ckks_status first = device_event_synchronize(event, err);
    if (first == CKKS_OK) return CKKS_OK;
    (void)device_event_synchronize(event, NULL);
    return first;
}

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
