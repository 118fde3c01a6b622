/*
 * The front end: checks, call counting for failure injection, the memory account and the ownership map.
 * Recording is in device_record.c; the work itself is a back end's.
 *
 * One lock per device guards its books. It is never held while a back end blocks on a stream.
 */
#include "kernels/device_internal.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- device ---- */

/* What `auto` says when it takes the CPU: what a card is missing, without the advice after the colon. */
static ckks_status open_cpu_instead(backend_device *out, const device_config *config, const char *why,
                                    ckks_error *err) {
    const char *advice = strstr(why, ": ");
    const size_t length = advice ? (size_t)(advice - why) : strlen(why);
    const ckks_status rc = device_cpu_open(out, config, err);
    snprintf(out->reason, sizeof out->reason, "auto: %.*s, so the CPU", (int)(length < 130 ? length : 130),
             why);
    return rc;
}

#ifdef CKKSD_CUDA
static ckks_status open_cuda(backend_device *out, const device_config *config, const char *who,
                             ckks_error *err) {
    char why[sizeof out->reason];
    const ckks_status rc = device_cuda_open(out, config, err);
    memcpy(why, out->reason, sizeof why);
    snprintf(out->reason, sizeof out->reason, "%s: %.140s", who, why);
    return rc;
}
#endif

static ckks_status open_auto(backend_device *out, const device_config *config, ckks_error *err) {
#ifdef CKKSD_CUDA
    ckks_error cause = {0};
    const ckks_status rc = open_cuda(out, config, "auto", &cause);
    if (rc == CKKS_NOT_FOUND) return open_cpu_instead(out, config, cause.message, err);
    return rc == CKKS_OK ? rc : ckks_error_set(err, rc, cause.field, "%s", cause.message);
#else
    return open_cpu_instead(out, config, "this build has no CUDA back end", err);
#endif
}

static ckks_status open_backend(backend_device *out, const device_config *config, ckks_error *err) {
    switch (config->kind) {
    case DEVICE_CPU: {
        const ckks_status rc = device_cpu_open(out, config, err);
        snprintf(out->reason, sizeof out->reason, "configured");
        return rc;
    }
    case DEVICE_AUTO:
        return open_auto(out, config, err);
    case DEVICE_CUDA:
#ifdef CKKSD_CUDA
        return open_cuda(out, config, "configured", err);
#else
        return ckks_error_set(
            err, CKKS_UNSUPPORTED, "device",
            "this build has no CUDA back end: build it where nvcc is, or take the CPU (kind = "
            "cpu in [device], --device cpu)");
#endif
    }
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "kind", "device kind %d is unknown", (int)config->kind);
}

ckks_status device_open(device **out, const device_config *config, ckks_error *err) {
    static _Atomic uint32_t last_id;
    if (!out || !config) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "config", "is NULL");
    *out = NULL;
    device *dev = calloc(1, sizeof *dev);
    if (!dev) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "out of memory");
    const ckks_status rc = open_backend(&dev->back, config, err);
    if (rc != CKKS_OK) {
        free(dev);
        return rc;
    }
    if (pthread_mutex_init(&dev->lock, NULL) != 0) {
        dev->back.backend->close(dev->back.self);
        free(dev);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "no mutex");
    }
    dev->bytes_max = config->bytes_max ? config->bytes_max : dev->back.bytes_total;
    dev->has_own_budget = config->bytes_max || dev->back.backend->kind == DEVICE_CPU;
    dev->id = atomic_fetch_add(&last_id, 1) + 1;
    *out = dev;
    return CKKS_OK;
}

void device_close(device *dev) {
    if (!dev) return;
    CKKS_ASSERT(dev->stream_count == 0 && dev->event_count == 0 && dev->graph_count == 0);
    CKKS_ASSERT(dev->allocation_count == 0 && !dev->tables && !dev->recordings);
    dev->back.backend->close(dev->back.self);
    pthread_mutex_destroy(&dev->lock);
    free(dev->allocations);
    free(dev);
}

const char *device_describe(const device *dev) {
    return dev->back.description;
}
const char *device_reason(const device *dev) {
    return dev->back.reason;
}
const char *device_hardware_id(const device *dev) {
    return dev->back.hardware_id;
}
bool device_has_kernel(const device *dev, kernel_id kernel) {
    if (device_hides(dev, kernel)) return false;
    return dev->back.backend->can_launch(dev->back.self, kernel, NULL) == CKKS_OK;
}
key_layout device_key_layout(const device *dev) {
    return dev->back.keys;
}
device_kind device_get_kind(const device *dev) {
    return dev->back.backend->kind;
}
uint32_t device_id(const device *dev) {
    return dev->id;
}

/* the lock is not part of a device's observable state */
static pthread_mutex_t *books(const device *dev) {
    return &((device *)(uintptr_t)dev)->lock;
}

/* ---- failure injection ---- */

/* Only a device whose back end cannot be lost pretends. */
static bool pretends_to_be_lost(const device *dev) {
#ifdef CKKS_FAULT_INJECTION
    pthread_mutex_lock(books(dev));
    const bool is_lost = dev->fault_is_lost;
    pthread_mutex_unlock(books(dev));
    return is_lost;
#else
    (void)dev;
    return false;
#endif
}

static ckks_status refuse_lost(ckks_error *err) {
    return ckks_error_set(err, CKKS_DEVICE_ERROR, "sticky", "injected loss of the device");
}

bool device_is_lost(const device *dev) {
    const device_backend *backend = dev->back.backend;
    return pretends_to_be_lost(dev) || (backend->is_lost && backend->is_lost(dev->back.self));
}

#ifdef CKKS_FAULT_INJECTION
/* true: `rc` is what the call on the stream returns */
static bool lose(device_stream *stream, ckks_status *rc, ckks_error *err) {
    device *dev = stream->dev;
    pthread_mutex_lock(&dev->lock);
    const bool now = dev->fault_lose;
    dev->fault_lose = false;
    if (now && !dev->back.backend->stream_trap) dev->fault_is_lost = true;
    pthread_mutex_unlock(&dev->lock);
    if (!now) return false;
    ckks_error cause = {0};
    (void)refuse_lost(&cause);
    *rc = dev->back.backend->stream_trap ? dev->back.backend->stream_trap(stream->self, err)
                                         : dev->back.backend->stream_fail(stream->self, &cause, err);
    return true;
}
#else
static bool lose(device_stream *stream, ckks_status *rc, ckks_error *err) {
    (void)stream, (void)rc, (void)err;
    return false;
}
#endif

ckks_status device_call(device *dev, call_kind kind, bool *fail_later, ckks_error *err) {
    if (fail_later) *fail_later = false;
    if (pretends_to_be_lost(dev)) return refuse_lost(err);
#ifdef CKKS_FAULT_INJECTION
    pthread_mutex_lock(&dev->lock);
    const bool fails = ++dev->fault_calls == dev->fault_nth;
    const bool later = fails && dev->fault_asynchronous && fail_later;
    pthread_mutex_unlock(&dev->lock);
    if (later) {
        *fail_later = true;
        return CKKS_OK;
    }
    if (fails && kind == CALL_ALLOCATION)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "injected allocation failure");
    if (fails) return ckks_error_set(err, CKKS_DEVICE_ERROR, "device", "injected failure");
#else
    (void)dev, (void)kind, (void)err;
#endif
    return CKKS_OK;
}

ckks_status device_refuse_recording_thread(device *dev, const char *what, ckks_error *err) {
    ckks_error cause = {0};
    pthread_mutex_lock(&dev->lock);
    for (recording *r = dev->recordings; r; r = r->next) {
        if (!pthread_equal(r->thread, pthread_self())) continue;
        ckks_error_set(&cause, CKKS_RECORDING_VIOLATION, what, "called by a thread that is recording");
        recording_poison(r, &cause);
    }
    pthread_mutex_unlock(&dev->lock);
    if (cause.code == CKKS_OK) return CKKS_OK;
    return ckks_error_set(err, cause.code, cause.field, "%s", cause.message);
}

/* ---- memory ---- */

/* index of the first allocation whose address is above `address` (lock held) */
static uint32_t allocation_above(const device *dev, uintptr_t address) {
    uint32_t low = 0, high = dev->allocation_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (dev->allocations[middle].address > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static uint64_t bytes_used(const device *dev) {
    uint64_t sum = 0;
    for (int purpose = 0; purpose < MEMORY_PURPOSE_COUNT; purpose++)
        if (purpose != MEMORY_STAGING) sum += dev->bytes_by_purpose[purpose];
    return sum;
}

static double mib(uint64_t bytes) {
    return (double)bytes / 1048576.0;
}

/* lock held; the budget is taken before the memory is, so that two callers cannot both pass */
static ckks_status account_reserve(device *dev, uint64_t bytes, memory_purpose purpose, ckks_error *err) {
    if (purpose != MEMORY_STAGING) {
        const uint64_t used = bytes_used(dev);
        if (used > dev->bytes_max || bytes > dev->bytes_max - used)
            return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "bytes",
                                  "%.2f MiB more are over the device's budget: %.2f of %.2f MiB%s are in use",
                                  mib(bytes), mib(used), mib(dev->bytes_max),
                                  dev->has_own_budget ? "" : ", all that was free at start,");
    }
    if (dev->allocation_count == dev->allocation_capacity) {
        const uint32_t capacity = dev->allocation_capacity ? dev->allocation_capacity * 2 : 64;
        allocation *grown = realloc(dev->allocations, capacity * sizeof *grown);
        if (!grown) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "device", "out of memory");
        dev->allocations = grown;
        dev->allocation_capacity = capacity;
    }
    dev->bytes_by_purpose[purpose] += bytes;
    return CKKS_OK;
}

static void account_insert(device *dev, void *address, uint64_t bytes, memory_purpose purpose) {
    const uint32_t at = allocation_above(dev, (uintptr_t)address);
    memmove(&dev->allocations[at + 1], &dev->allocations[at],
            (dev->allocation_count - at) * sizeof *dev->allocations);
    dev->allocations[at] = (allocation){(uintptr_t)address, bytes, purpose};
    dev->allocation_count++;
}

static ckks_status allocate(device *dev, void **out, uint64_t bytes, memory_purpose purpose,
                            ckks_error *err) {
    const device_backend *backend = dev->back.backend;
    ckks_status rc;
    *out = NULL;
    if (bytes == 0) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "bytes", "is 0");
    if (bytes > UINT64_MAX / 4)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "bytes", "%llu", (unsigned long long)bytes);
    bytes = (bytes + VALUE_ALIGNMENT - 1) & ~(uint64_t)(VALUE_ALIGNMENT - 1);
    if ((rc = device_refuse_recording_thread(dev, "device_allocate", err)) != CKKS_OK) return rc;
    if ((rc = device_call(dev, CALL_ALLOCATION, NULL, err)) != CKKS_OK) return rc;
    pthread_mutex_lock(&dev->lock);
    rc = account_reserve(dev, bytes, purpose, err);
    if (rc == CKKS_OK) {
        rc = purpose == MEMORY_STAGING ? backend->allocate_host(dev->back.self, out, bytes, err)
                                       : backend->allocate(dev->back.self, out, bytes, err);
        if (rc == CKKS_OK)
            account_insert(dev, *out, bytes, purpose);
        else
            dev->bytes_by_purpose[purpose] -= bytes;
    }
    pthread_mutex_unlock(&dev->lock);
    return rc;
}

static void release(device *dev, void *address, bool is_host) {
    if (!address) return;
    /* memory that recorded work names must not go while it is recorded */
    (void)device_refuse_recording_thread(dev, "device_free", NULL);
    pthread_mutex_lock(&dev->lock);
    const uint32_t above = allocation_above(dev, (uintptr_t)address);
    CKKS_ASSERT(above > 0 && dev->allocations[above - 1].address == (uintptr_t)address);
    const allocation gone = dev->allocations[above - 1];
    CKKS_ASSERT((gone.purpose == MEMORY_STAGING) == is_host);
    memmove(&dev->allocations[above - 1], &dev->allocations[above],
            (dev->allocation_count - above) * sizeof *dev->allocations);
    dev->allocation_count--;
    dev->bytes_by_purpose[gone.purpose] -= gone.bytes;
    if (is_host)
        dev->back.backend->release_host(dev->back.self, address);
    else
        dev->back.backend->release(dev->back.self, address);
    pthread_mutex_unlock(&dev->lock);
}

ckks_status device_allocate(device *dev, void **out, uint64_t bytes, memory_purpose purpose,
                            ckks_error *err) {
    if ((unsigned)purpose >= MEMORY_STAGING)
        return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "purpose", "%d is not of device memory",
                              (int)purpose);
    return allocate(dev, out, bytes, purpose, err);
}
ckks_status device_allocate_host(device *dev, void **out, uint64_t bytes, ckks_error *err) {
    return allocate(dev, out, bytes, MEMORY_STAGING, err);
}
void device_free(device *dev, void *address) {
    release(dev, address, false);
}
void device_free_host(device *dev, void *address) {
    release(dev, address, true);
}

void device_memory(const device *dev, device_memory_account *out) {
    pthread_mutex_lock(books(dev));
    *out = (device_memory_account){.bytes_max = dev->bytes_max,
                                   .bytes_used = bytes_used(dev),
                                   .allocation_count = dev->allocation_count};
    memcpy(out->bytes_by_purpose, dev->bytes_by_purpose, sizeof out->bytes_by_purpose);
    pthread_mutex_unlock(books(dev));
}

uint64_t device_bytes_free(const device *dev) {
    const device_backend *backend = dev->back.backend;
    return backend->bytes_free ? backend->bytes_free(dev->back.self) : 0;
}

bool device_owns(const device *dev, const void *address, uint64_t bytes) {
    const uintptr_t begin = (uintptr_t)address;
    pthread_mutex_lock(books(dev));
    const uint32_t above = allocation_above(dev, begin);
    bool owns = false;
    if (above > 0) {
        const allocation *a = &dev->allocations[above - 1];
        owns = a->purpose != MEMORY_STAGING && bytes <= a->bytes && begin - a->address <= a->bytes - bytes;
    }
    pthread_mutex_unlock(books(dev));
    return owns;
}

/* ---- streams ---- */

ckks_status device_stream_create(device *dev, device_stream **out, ckks_error *err) {
    ckks_status rc;
    *out = NULL;
    if ((rc = device_call(dev, CALL_OTHER, NULL, err)) != CKKS_OK) return rc;
    device_stream *stream = calloc(1, sizeof *stream);
    if (!stream) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "stream", "out of memory");
    stream->dev = dev;
    if ((rc = dev->back.backend->stream_create(dev->back.self, &stream->self, err)) != CKKS_OK) {
        free(stream);
        return rc;
    }
    pthread_mutex_lock(&dev->lock);
    dev->stream_count++;
    pthread_mutex_unlock(&dev->lock);
    *out = stream;
    return CKKS_OK;
}

void device_stream_destroy(device_stream *stream) {
    if (!stream) return;
    device *dev = stream->dev;
    recording_forget_stream(stream);
    dev->back.backend->stream_destroy(stream->self);
    front_fini(&stream->front);
    free(stream);
    pthread_mutex_lock(&dev->lock);
    dev->stream_count--;
    pthread_mutex_unlock(&dev->lock);
}

device *device_stream_device(const device_stream *stream) {
    return stream->dev;
}

/* host waits: refused to a recording thread, and on a stream that somebody records */
static ckks_status enter_host_wait(device *dev, const recording *r, const char *what, ckks_error *err) {
    ckks_status rc;
    if ((rc = device_refuse_recording_thread(dev, what, err)) != CKKS_OK) return rc;
    if (r) return ckks_error_set(err, CKKS_RECORDING_VIOLATION, what, "the stream is recording");
    return device_call(dev, CALL_OTHER, NULL, err);
}

ckks_status device_stream_synchronize(device_stream *stream, ckks_error *err) {
    /* what was enqueued before still runs: whoever frees memory behind this must not be early */
    if (pretends_to_be_lost(stream->dev)) {
        (void)stream->dev->back.backend->stream_synchronize(stream->self, NULL);
        return refuse_lost(err);
    }
    const ckks_status rc = enter_host_wait(stream->dev, stream->recording, "device_stream_synchronize", err);
    if (rc != CKKS_OK) return rc;
    return stream->dev->back.backend->stream_synchronize(stream->self, err);
}

ckks_status device_stream_recover(device_stream *stream, ckks_error *err) {
    const ckks_status rc = enter_host_wait(stream->dev, stream->recording, "device_stream_recover", err);
    if (rc != CKKS_OK) return rc;
    return stream->dev->back.backend->stream_recover(stream->self, err);
}

/* ---- events ---- */

ckks_status device_event_create(device *dev, device_event **out, ckks_error *err) {
    ckks_status rc;
    *out = NULL;
    if ((rc = device_call(dev, CALL_OTHER, NULL, err)) != CKKS_OK) return rc;
    device_event *event = calloc(1, sizeof *event);
    if (!event) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "event", "out of memory");
    event->dev = dev;
    if ((rc = dev->back.backend->event_create(dev->back.self, &event->self, err)) != CKKS_OK) {
        free(event);
        return rc;
    }
    pthread_mutex_lock(&dev->lock);
    dev->event_count++;
    pthread_mutex_unlock(&dev->lock);
    *out = event;
    return CKKS_OK;
}

void device_event_destroy(device_event *event) {
    if (!event) return;
    device *dev = event->dev;
    dev->back.backend->event_destroy(event->self);
    front_fini(&event->front);
    free(event);
    pthread_mutex_lock(&dev->lock);
    dev->event_count--;
    pthread_mutex_unlock(&dev->lock);
}

/* a refused call while recording spoils the recording: what was meant to be in it is not */
static ckks_status refuse_work(device_stream *stream, const ckks_error *cause, ckks_error *err) {
    if (stream->recording) recording_poison(stream->recording, cause);
    return ckks_error_set(err, cause->code, cause->field, "%s", cause->message);
}

static ckks_status check_same_device(device_stream *stream, const device *dev, const char *what,
                                     ckks_error *err) {
    ckks_error cause = {0};
    if (stream->dev == dev) return CKKS_OK;
    ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, what, "belongs to another device");
    return refuse_work(stream, &cause, err);
}

/* an injected failure of a recorded call ends its recording, as a real one would */
static ckks_status stream_call(device_stream *stream, call_kind kind, bool *fail_later, ckks_error *err) {
    ckks_error cause = {0};
    const ckks_status rc = device_call(stream->dev, kind, stream->recording ? NULL : fail_later, &cause);
    return rc == CKKS_OK ? CKKS_OK : refuse_work(stream, &cause, err);
}

ckks_status device_event_record(device_event *event, device_stream *stream, ckks_error *err) {
    ckks_status rc;
    if ((rc = check_same_device(stream, event->dev, "event", err)) != CKKS_OK) return rc;
    if ((rc = stream_call(stream, CALL_OTHER, NULL, err)) != CKKS_OK) return rc;
    if (stream->recording) return recording_event_record(event, stream, err);
    if ((rc = event->dev->back.backend->event_record(event->self, stream->self, err)) != CKKS_OK) return rc;
    event->recording_serial = 0;
    event->was_recorded = true;
    return CKKS_OK;
}

ckks_status device_stream_wait(device_stream *stream, device_event *event, ckks_error *err) {
    ckks_status rc;
    if ((rc = check_same_device(stream, event->dev, "event", err)) != CKKS_OK) return rc;
    if ((rc = stream_call(stream, CALL_OTHER, NULL, err)) != CKKS_OK) return rc;
    if (stream->recording || event->recording_serial) return recording_wait(stream, event, err);
    return event->dev->back.backend->stream_wait(stream->self, event->self, err);
}

ckks_status device_event_synchronize(device_event *event, ckks_error *err) {
    if (pretends_to_be_lost(event->dev) && !event->recording_serial) {
        (void)event->dev->back.backend->event_synchronize(event->self, NULL);
        return refuse_lost(err);
    }
    const ckks_status rc = enter_host_wait(event->dev, NULL, "device_event_synchronize", err);
    if (rc != CKKS_OK) return rc;
    if (event->recording_serial)
        return ckks_error_set(err, CKKS_RECORDING_VIOLATION, "event", "was recorded into a graph");
    return event->dev->back.backend->event_synchronize(event->self, err);
}

bool device_event_is_complete(device_event *event) {
    if (event->recording_serial) return false;
    return event->dev->back.backend->event_is_complete(event->self);
}

uint64_t device_event_elapsed_ns(const device_event *from, const device_event *to) {
    CKKS_ASSERT(from->dev == to->dev);
    return from->dev->back.backend->event_elapsed_ns(from->self, to->self);
}

/* ---- work ---- */

static ckks_status fail_on_stream(device_stream *stream, ckks_error *err) {
    ckks_error cause = {0};
    ckks_error_set(&cause, CKKS_DEVICE_ERROR, "device", "injected asynchronous failure");
    return stream->dev->back.backend->stream_fail(stream->self, &cause, err);
}

/* Everything enqueued on a stream comes through here. */
static ckks_status enqueue(device_stream *stream, const device_operation *operation,
                           const kernel_access *accesses, uint32_t access_count, ckks_error *err) {
    ckks_status rc;
    bool fail_later = false;
    if ((rc = stream_call(stream, CALL_WORK, &fail_later, err)) != CKKS_OK) return rc;
    if (stream->recording) return recording_append(stream, operation, accesses, access_count, err);
    if (lose(stream, &rc, err)) return rc;
    if (fail_later) return fail_on_stream(stream, err);
    return stream->dev->back.backend->run(stream->self, operation, err);
}

static ckks_status check_owned(const device_stream *stream, const char *field, const void *address,
                               uint64_t bytes, ckks_error *err) {
    if (stream->recording && stream->recording->is_planning) return CKKS_OK; /* addresses are virtual */
    if (device_owns(stream->dev, address, bytes)) return CKKS_OK;
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "%llu bytes at %p are not memory of this device",
                          (unsigned long long)bytes, address);
}

static ckks_status move(device_stream *stream, const device_operation *operation, ckks_error *err) {
    const bool is_fill = operation->kind == GRAPH_NODE_FILL;
    const void *from = is_fill ? operation->to : operation->from;
    ckks_error cause = {0};
    if (operation->bytes == 0 || !operation->to || !from)
        ckks_error_set(&cause, CKKS_INVALID_ARGUMENT, "copy", "no bytes or a NULL address");
    else if (is_fill || operation->copy != COPY_OUT)
        (void)check_owned(stream, "to", operation->to, operation->bytes, &cause);
    if (cause.code == CKKS_OK && !is_fill && operation->copy != COPY_IN)
        (void)check_owned(stream, "from", from, operation->bytes, &cause);
    if (cause.code == CKKS_OK && !is_fill && (uintptr_t)operation->to < (uintptr_t)from + operation->bytes &&
        (uintptr_t)from < (uintptr_t)operation->to + operation->bytes)
        ckks_error_set(&cause, CKKS_ALIASING, "copy", "source and destination overlap");
    if (cause.code != CKKS_OK) return refuse_work(stream, &cause, err);
    const kernel_access access[2] = {{operation->to, operation->bytes, true},
                                     {from, operation->bytes, false}};
    return enqueue(stream, operation, access, is_fill ? 1 : 2, err);
}

ckks_status device_copy_in(device_stream *stream, void *device_to, const void *host_from, uint64_t bytes,
                           ckks_error *err) {
    const device_operation o = {
        .kind = GRAPH_NODE_COPY, .copy = COPY_IN, .to = device_to, .from = host_from, .bytes = bytes};
    return move(stream, &o, err);
}
ckks_status device_copy_out(device_stream *stream, void *host_to, const void *device_from, uint64_t bytes,
                            ckks_error *err) {
    const device_operation o = {
        .kind = GRAPH_NODE_COPY, .copy = COPY_OUT, .to = host_to, .from = device_from, .bytes = bytes};
    return move(stream, &o, err);
}
ckks_status device_copy(device_stream *stream, void *device_to, const void *device_from, uint64_t bytes,
                        ckks_error *err) {
    const device_operation o = {
        .kind = GRAPH_NODE_COPY, .copy = COPY_DEVICE, .to = device_to, .from = device_from, .bytes = bytes};
    return move(stream, &o, err);
}
ckks_status device_fill(device_stream *stream, void *device_to, uint8_t byte, uint64_t bytes,
                        ckks_error *err) {
    const device_operation o = {.kind = GRAPH_NODE_FILL, .to = device_to, .byte = byte, .bytes = bytes};
    return move(stream, &o, err);
}

/* every argument struct starts with the tables, which were looked at already */
static ckks_status check_tables(const device_stream *stream, kernel_id kernel, const void *arguments,
                                ckks_error *err) {
    char field[64];
    if ((*(const device_tables *const *)arguments)->dev == stream->dev) return CKKS_OK;
    snprintf(field, sizeof field, "%s.tables", kernel_name(kernel));
    return ckks_error_set(err, CKKS_INVALID_ARGUMENT, field, "belong to another device");
}

ckks_status device_launch(device_stream *stream, kernel_id kernel, const void *arguments, ckks_error *err) {
    kernel_access access[KERNEL_ACCESS_MAX];
    uint32_t count = 0;
    ckks_error cause = {0};
    if (kernel_describe(kernel, arguments, access, &count, &cause) == CKKS_OK &&
        check_tables(stream, kernel, arguments, &cause) == CKKS_OK &&
        stream->dev->back.backend->can_launch(stream->dev->back.self, kernel, &cause) == CKKS_OK)
        for (uint32_t i = 0; i < count && cause.code == CKKS_OK; i++)
            (void)check_owned(stream, kernel_name(kernel), access[i].address, access[i].bytes, &cause);
    if (cause.code != CKKS_OK) return refuse_work(stream, &cause, err);
    const device_operation o = {.kind = GRAPH_NODE_KERNEL, .kernel = kernel, .arguments = arguments};
    return enqueue(stream, &o, access, count, err);
}

ckks_status device_graph_replay(device_graph *graph, device_stream *stream, ckks_error *err) {
    ckks_status rc;
    bool fail_later = false;
    ckks_error cause = {0};
    if ((rc = check_same_device(stream, graph->dev, "graph", err)) != CKKS_OK) return rc;
    if (graph->is_planning)
        ckks_error_set(&cause, CKKS_RECORDING_VIOLATION, "graph", "a planning recording cannot run");
    else if (stream->recording)
        ckks_error_set(&cause, CKKS_RECORDING_VIOLATION, "graph", "a replay cannot be recorded");
    if (cause.code != CKKS_OK) return refuse_work(stream, &cause, err);
    if ((rc = stream_call(stream, CALL_WORK, &fail_later, err)) != CKKS_OK) return rc;
    if (lose(stream, &rc, err)) return rc;
    if (fail_later) return fail_on_stream(stream, err);
    return stream->dev->back.backend->graph_replay(graph->self, stream->self, err);
}

ckks_status device_set_adversarial_order(device *dev, uint64_t seed, ckks_error *err) {
    return dev->back.backend->set_adversarial_order(dev->back.self, seed, err);
}

/* ---- tables ---- */

ckks_status device_tables_acquire(device *dev, const device_tables **out, const ckks_context *context,
                                  ckks_error *err) {
    ckks_status rc;
    *out = NULL;
    if (!context) return ckks_error_set(err, CKKS_INVALID_ARGUMENT, "context", "is NULL");
    if ((rc = device_refuse_recording_thread(dev, "device_tables_acquire", err)) != CKKS_OK) return rc;
    if ((rc = device_call(dev, CALL_ALLOCATION, NULL, err)) != CKKS_OK) return rc;
    pthread_mutex_lock(&dev->lock);
    device_tables *tables = dev->tables;
    while (tables && tables->context != context) tables = tables->next;
    if (!tables) {
        tables = calloc(1, sizeof *tables);
        if (!tables) {
            rc = ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "tables", "out of memory");
            goto out;
        }
        tables->context = context;
        tables->dev = dev;
        if ((rc = dev->back.backend->tables_create(dev->back.self, tables, err)) != CKKS_OK) {
            free(tables);
            goto out;
        }
        tables->next = dev->tables;
        dev->tables = tables;
    }
    tables->reference_count++;
    *out = tables;
out:
    pthread_mutex_unlock(&dev->lock);
    return rc;
}

void device_tables_release(device *dev, const device_tables *tables) {
    if (!tables) return;
    pthread_mutex_lock(&dev->lock);
    device_tables **at = &dev->tables;
    while (*at && *at != tables) at = &(*at)->next;
    CKKS_ASSERT(*at);
    device_tables *found = *at;
    if (--found->reference_count == 0) {
        *at = found->next;
        dev->back.backend->tables_destroy(dev->back.self, found);
        free(found);
    }
    pthread_mutex_unlock(&dev->lock);
}

const ckks_context *device_tables_context(const device_tables *tables) {
    return tables->context;
}
