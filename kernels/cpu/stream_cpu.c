/*
 * Streams and events of the CPU device (device_cpu.h says how they fit together).
 *
 * The queue has a bound: a caller that runs ahead by QUEUE_MAX entries waits for the stream. That cannot
 * deadlock, since an entry only ever waits for entries enqueued before it.
 */
#include "kernels/cpu/device_cpu.h"
#include "kernels/cpu/team.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_MAX 4096u

/* Outlives its stream while records refer to it. */
typedef struct cpu_health {
    _Atomic uint32_t reference_count;
    _Atomic uint64_t epoch; /* recoveries so far */
} cpu_health;

typedef struct cpu_record {
    _Atomic uint32_t reference_count;
    pthread_mutex_t lock;
    pthread_cond_t completed;
    bool is_complete;
    uint64_t at_ns;
    ckks_error error; /* of the stream when its turn came */
    uint64_t epoch;
    cpu_health *health;
} cpu_record;

typedef struct cpu_event {
    cpu_record *latest; /* NULL = never recorded */
} cpu_event;

typedef enum entry_kind { ENTRY_WORK, ENTRY_REPLAY, ENTRY_RECORD, ENTRY_WAIT, ENTRY_FAIL } entry_kind;

typedef struct queue_entry {
    struct queue_entry *next;
    entry_kind kind;
    device_operation operation; /* WORK; arguments follow the entry */
    cpu_kernel kernel;
    cpu_record *record; /* RECORD, WAIT: holds a reference */
    cpu_graph *graph;   /* REPLAY */
    uint32_t *order;
    ckks_error error; /* FAIL */
    _Alignas(16) uint8_t arguments[];
} queue_entry;

typedef struct cpu_stream {
    cpu_device *dev;
    pthread_t thread;
    team *members; /* of which the stream's thread is the owner */
    pthread_mutex_t lock;
    pthread_cond_t has_work, progressed;
    queue_entry *first, **last;
    uint64_t enqueued, finished;
    bool is_closing;
    ckks_error error; /* sticky */
    cpu_health *health;
} cpu_stream;

static bool is_kind_work(entry_kind kind) {
    return kind == ENTRY_WORK || kind == ENTRY_REPLAY;
}

/* ---- initialisers that can be made to fail ---- */

#ifdef CKKS_FAULT_INJECTION
static _Atomic uint32_t sync_fault;
void cpu_fault_sync_init(uint32_t nth) {
    atomic_store(&sync_fault, nth);
}
static bool sync_init_fails(void) {
    return atomic_load(&sync_fault) != 0 && atomic_fetch_sub(&sync_fault, 1) == 1;
}
#else
static bool sync_init_fails(void) {
    return false;
}
#endif

int cpu_mutex_init(pthread_mutex_t *mutex) {
    return sync_init_fails() ? -1 : pthread_mutex_init(mutex, NULL);
}
int cpu_cond_init(pthread_cond_t *cond) {
    return sync_init_fails() ? -1 : pthread_cond_init(cond, NULL);
}

/* ---- records ---- */

static void health_release(cpu_health *health) {
    if (health && atomic_fetch_sub(&health->reference_count, 1) == 1) free(health);
}

static cpu_record *record_create(cpu_stream *stream) {
    cpu_record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    if (cpu_mutex_init(&r->lock) != 0) {
        free(r);
        return NULL;
    }
    if (cpu_cond_init(&r->completed) != 0) {
        pthread_mutex_destroy(&r->lock);
        free(r);
        return NULL;
    }
    atomic_init(&r->reference_count, 1);
    r->health = stream->health;
    atomic_fetch_add(&r->health->reference_count, 1);
    return r;
}
static cpu_record *record_share(cpu_record *r) {
    atomic_fetch_add(&r->reference_count, 1);
    return r;
}
static void record_release(cpu_record *r) {
    if (!r || atomic_fetch_sub(&r->reference_count, 1) != 1) return;
    health_release(r->health);
    pthread_cond_destroy(&r->completed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* waits, and copies the error unless the stream has been recovered since */
static ckks_error record_await(cpu_record *r) {
    ckks_error error = {0};
    pthread_mutex_lock(&r->lock);
    while (!r->is_complete) pthread_cond_wait(&r->completed, &r->lock);
    if (r->error.code != CKKS_OK && atomic_load(&r->health->epoch) == r->epoch) error = r->error;
    pthread_mutex_unlock(&r->lock);
    return error;
}

static void record_complete(cpu_record *r, const ckks_error *error) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    pthread_mutex_lock(&r->lock);
    r->is_complete = true;
    r->at_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    r->error = *error;
    r->epoch = atomic_load(&r->health->epoch);
    pthread_cond_broadcast(&r->completed);
    pthread_mutex_unlock(&r->lock);
}

/* ---- the stream's thread ---- */

/* threads for one of so many streams; alone it has what it was given */
static uint32_t threads_for(const cpu_device *dev, uint32_t streams) {
    const uint32_t share = dev->cores / (streams > 0 ? streams : 1);
    return streams < 2 || share > dev->threads ? dev->threads : share > 0 ? share : 1;
}

void cpu_operation_run(const cpu_device *dev, const device_operation *operation, cpu_kernel kernel) {
    team_fit(threads_for(dev, atomic_load_explicit(&dev->busy_streams, memory_order_relaxed)));
    switch (operation->kind) {
    case GRAPH_NODE_KERNEL:
        kernel(operation->arguments);
        break;
    case GRAPH_NODE_COPY:
        memcpy(operation->to, operation->from, operation->bytes);
        break;
    case GRAPH_NODE_FILL:
        memset(operation->to, operation->byte, operation->bytes);
        break;
    }
}

/* error: the stream's, as it stands before the entry; may be filled */
static void entry_run(cpu_device *dev, queue_entry *entry, ckks_error *error) {
    const bool is_healthy = error->code == CKKS_OK, is_work = is_kind_work(entry->kind);
    if (is_work) atomic_fetch_add_explicit(&dev->busy_streams, 1, memory_order_relaxed);
    switch (entry->kind) {
    case ENTRY_WORK:
        if (is_healthy) cpu_operation_run(dev, &entry->operation, entry->kernel);
        break;
    case ENTRY_REPLAY:
        if (is_healthy) cpu_graph_run(entry->graph, entry->order);
        cpu_graph_finished(entry->graph);
        break;
    case ENTRY_RECORD:
        record_complete(entry->record, error);
        break;
    case ENTRY_WAIT: {
        const ckks_error theirs = record_await(entry->record);
        if (is_healthy) *error = theirs;
        break;
    }
    case ENTRY_FAIL:
        if (is_healthy) *error = entry->error;
        break;
    }
    if (is_work) atomic_fetch_sub_explicit(&dev->busy_streams, 1, memory_order_relaxed);
}

static void entry_destroy(queue_entry *entry) {
    record_release(entry->record);
    free(entry->order);
    free(entry);
}

static void *stream_main(void *argument) {
    cpu_stream *s = argument;
    (void)team_enter(s->members);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->is_closing) pthread_cond_wait(&s->has_work, &s->lock);
        queue_entry *entry = s->first;
        if (!entry) break;
        s->first = entry->next;
        if (!s->first) s->last = &s->first;
        ckks_error error = s->error;
        pthread_mutex_unlock(&s->lock);
        entry_run(s->dev, entry, &error);
        entry_destroy(entry);
        pthread_mutex_lock(&s->lock);
        s->error = error;
        s->finished++;
        pthread_cond_broadcast(&s->progressed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

ckks_status cpu_stream_create(void *self, void **stream, ckks_error *err) {
    int made = 0;
    cpu_stream *s = calloc(1, sizeof *s);
    if (!s) goto fail;
    s->dev = self;
    s->last = &s->first;
    s->health = calloc(1, sizeof *s->health);
    if (!s->health) goto fail;
    atomic_init(&s->health->reference_count, 1);
    if (cpu_mutex_init(&s->lock) != 0) goto fail;
    made++;
    if (cpu_cond_init(&s->has_work) != 0) goto fail;
    made++;
    if (cpu_cond_init(&s->progressed) != 0) goto fail;
    made++;
    if (team_create(&s->members, s->dev->threads, err) != CKKS_OK) goto fail;
    if (team_thread_start(&s->thread, "ckks-stream", stream_main, s) != 0) goto fail;
    *stream = s;
    return CKKS_OK;
fail:
    if (s) team_destroy(s->members);
    if (made > 2) pthread_cond_destroy(&s->progressed);
    if (made > 1) pthread_cond_destroy(&s->has_work);
    if (made > 0) pthread_mutex_destroy(&s->lock);
    if (s) health_release(s->health);
    free(s);
    return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "stream", "no memory or no thread for a stream");
}

void cpu_stream_destroy(void *stream) {
    cpu_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    s->is_closing = true;
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    team_destroy(s->members);
    pthread_cond_destroy(&s->progressed);
    pthread_cond_destroy(&s->has_work);
    pthread_mutex_destroy(&s->lock);
    health_release(s->health);
    free(s);
}

/* ---- enqueueing ---- */

static queue_entry *entry_create(entry_kind kind, size_t argument_bytes, ckks_error *err) {
    queue_entry *entry = calloc(1, sizeof *entry + argument_bytes);
    if (!entry)
        ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "stream", "out of memory");
    else
        entry->kind = kind;
    return entry;
}

static void enqueue(cpu_stream *s, queue_entry *entry) {
    const entry_kind kind = entry->kind; /* once it is in the queue, the entry may be gone */
    pthread_mutex_lock(&s->lock);
    while (s->enqueued - s->finished >= QUEUE_MAX) pthread_cond_wait(&s->progressed, &s->lock);
    *s->last = entry;
    s->last = &entry->next;
    s->enqueued++;
    pthread_cond_signal(&s->has_work);
    pthread_mutex_unlock(&s->lock);
    const uint32_t busy = atomic_load_explicit(&s->dev->busy_streams, memory_order_relaxed);
    if (is_kind_work(kind) && threads_for(s->dev, busy + 1) > 1)
        team_rouse(s->members); /* while the stream wakes up */
}

ckks_status cpu_stream_run(void *stream, const device_operation *operation, ckks_error *err) {
    cpu_stream *s = stream;
    const bool is_kernel = operation->kind == GRAPH_NODE_KERNEL;
    const size_t bytes = is_kernel ? kernel_arguments_size(operation->kernel) : 0;
    queue_entry *entry = entry_create(ENTRY_WORK, bytes, err);
    if (!entry) return CKKS_RESOURCE_EXHAUSTED;
    entry->operation = *operation;
    if (is_kernel) {
        memcpy(entry->arguments, operation->arguments, bytes);
        entry->operation.arguments = entry->arguments;
        entry->kernel = cpu_kernel_find(operation->kernel, s->dev->isa, NULL);
    }
    enqueue(s, entry);
    return CKKS_OK;
}

ckks_status cpu_stream_replay(void *stream, cpu_graph *graph, uint32_t *order, ckks_error *err) {
    queue_entry *entry = entry_create(ENTRY_REPLAY, 0, err);
    if (!entry) {
        free(order);
        return CKKS_RESOURCE_EXHAUSTED;
    }
    entry->graph = graph;
    entry->order = order;
    pthread_mutex_lock(&graph->lock);
    graph->pending++;
    pthread_mutex_unlock(&graph->lock);
    enqueue(stream, entry);
    return CKKS_OK;
}

ckks_status cpu_stream_fail(void *stream, const ckks_error *cause, ckks_error *err) {
    queue_entry *entry = entry_create(ENTRY_FAIL, 0, err);
    if (!entry) return CKKS_RESOURCE_EXHAUSTED;
    entry->error = *cause;
    enqueue(stream, entry);
    return CKKS_OK;
}

static ckks_status report(const ckks_error *error, ckks_error *err) {
    if (error->code == CKKS_OK) return CKKS_OK;
    return ckks_error_set(err, error->code, error->field, "%s", error->message);
}

ckks_status cpu_stream_synchronize(void *stream, ckks_error *err) {
    cpu_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    const uint64_t target = s->enqueued;
    while (s->finished < target) pthread_cond_wait(&s->progressed, &s->lock);
    const ckks_error error = s->error;
    pthread_mutex_unlock(&s->lock);
    return report(&error, err);
}

ckks_status cpu_stream_recover(void *stream, ckks_error *err) {
    (void)err; /* a processor is not lost */
    cpu_stream *s = stream;
    pthread_mutex_lock(&s->lock);
    while (s->finished < s->enqueued) pthread_cond_wait(&s->progressed, &s->lock);
    s->error = (ckks_error){0};
    atomic_fetch_add(&s->health->epoch, 1);
    pthread_mutex_unlock(&s->lock);
    return CKKS_OK;
}

/* ---- events ---- */

ckks_status cpu_event_create(void *self, void **event, ckks_error *err) {
    (void)self;
    cpu_event *e = calloc(1, sizeof *e);
    if (!e) return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "event", "out of memory");
    *event = e;
    return CKKS_OK;
}

void cpu_event_destroy(void *event) {
    cpu_event *e = event;
    record_release(e->latest);
    free(e);
}

ckks_status cpu_event_record(void *event, void *stream, ckks_error *err) {
    cpu_event *e = event;
    queue_entry *entry = entry_create(ENTRY_RECORD, 0, err);
    if (!entry) return CKKS_RESOURCE_EXHAUSTED;
    cpu_record *r = record_create(stream);
    if (!r) {
        entry_destroy(entry);
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "event", "out of memory");
    }
    entry->record = record_share(r);
    record_release(e->latest);
    e->latest = r;
    enqueue(stream, entry);
    return CKKS_OK;
}

ckks_status cpu_stream_wait(void *stream, void *event, ckks_error *err) {
    const cpu_event *e = event;
    if (!e->latest) return CKKS_OK;
    queue_entry *entry = entry_create(ENTRY_WAIT, 0, err);
    if (!entry) return CKKS_RESOURCE_EXHAUSTED;
    entry->record = record_share(e->latest);
    enqueue(stream, entry);
    return CKKS_OK;
}

ckks_status cpu_event_synchronize(void *event, ckks_error *err) {
    const cpu_event *e = event;
    if (!e->latest) return CKKS_OK;
    const ckks_error error = record_await(e->latest);
    return report(&error, err);
}

bool cpu_event_is_complete(void *event) {
    const cpu_event *e = event;
    if (!e->latest) return true;
    pthread_mutex_lock(&e->latest->lock);
    const bool is_complete = e->latest->is_complete;
    pthread_mutex_unlock(&e->latest->lock);
    return is_complete;
}

static uint64_t completed_at_ns(const cpu_event *e) {
    CKKS_ASSERT(e->latest);
    pthread_mutex_lock(&e->latest->lock);
    CKKS_ASSERT(e->latest->is_complete);
    const uint64_t at_ns = e->latest->at_ns;
    pthread_mutex_unlock(&e->latest->lock);
    return at_ns;
}
uint64_t cpu_event_elapsed_ns(const void *from, const void *to) {
    const uint64_t begin = completed_at_ns(from), end = completed_at_ns(to);
    return end > begin ? end - begin : 0;
}
