/*
 * Shared by device.c, device_record.c and device_fault.c only.
 *
 * Recording is the front end's work: a recorded call never reaches the back end. A recording is a list of
 * operations, each with the operations it waits for. Those come from the streams exactly as with CUDA's
 * stream capture: every stream of a recording has a *front*, the set of operations its next one waits for; an
 * event keeps a copy of the front it was recorded at; a wait merges the event's front into the stream's.
 */
#ifndef CKKS_DEVICE_INTERNAL_H
#define CKKS_DEVICE_INTERNAL_H

#include "kernels/device_backend.h"

#include <pthread.h>

/* A growing set of node indices, ascending. */
typedef struct front {
    uint32_t *node;
    uint32_t count, capacity;
} front;

typedef struct recording {
    struct device *dev;
    struct recording *next; /* in the device's list */
    uint64_t serial;        /* unique in the process, never 0 */
    pthread_t thread;       /* the recording thread */
    bool is_planning;
    ckks_error error; /* first cause; a poisoned recording accepts nothing more */
    struct device_stream *origin, *streams;
    uint32_t stream_count; /* streams that ever joined: numbers the timelines */
    struct recorded_node *nodes;
    uint32_t node_count, node_capacity;
} recording;

typedef struct recorded_node {
    device_operation operation; /* owns `arguments` */
    graph_node node;            /* owns accesses and dependencies */
    uint32_t timeline;          /* number of its stream within the recording */
} recorded_node;

struct device_graph {
    device *dev;
    void *self; /* back end's; NULL for a planning graph */
    bool is_planning;
    uint32_t count;
    device_operation *operations;
    graph_node *nodes;
};

struct device_stream {
    device *dev;
    void *self;
    recording *recording; /* NULL = not recording */
    struct device_stream *next_joined;
    uint32_t timeline;
    front front;
};

struct device_event {
    device *dev;
    void *self;
    uint64_t recording_serial; /* of its latest record; 0 = a real record (or none) */
    bool was_recorded;
    front front;
};

typedef struct allocation {
    uintptr_t address;
    uint64_t bytes;
    memory_purpose purpose;
} allocation;

struct device {
    backend_device back;
    uint32_t id;
    bool has_own_budget; /* not what a card had left when it was opened */
    uint64_t bytes_max;
    pthread_mutex_t lock; /* everything below */
    allocation *allocations;
    uint32_t allocation_count, allocation_capacity; /* sorted by address */
    uint64_t bytes_by_purpose[MEMORY_PURPOSE_COUNT];
    uint64_t stream_count, event_count, graph_count;
    device_tables *tables;
    recording *recordings;
    uint64_t recordings_begun;
#ifdef CKKS_FAULT_INJECTION
    uint64_t fault_calls, fault_nth;
    bool fault_asynchronous;
    bool fault_lose;    /* the next work loses the device */
    bool fault_is_lost; /* it did, on a back end that cannot be lost */
    bool skip_race_check;
    _Atomic uint64_t hidden_kernels; /* bit k: kernel k */
#endif
};

typedef enum call_kind { CALL_ALLOCATION, CALL_WORK, CALL_OTHER } call_kind;

/* device_call counts one entry. Fails if a failure is injected here; for asynchronous injection into work
 * sets *fail_later instead (never NULL for CALL_WORK). */
ckks_status device_call(device *dev, call_kind kind, bool *fail_later, ckks_error *err);

/* whether the kernel is one that device_fault_hide hides */
bool device_hides(const device *dev, kernel_id kernel);

/* refuses, and poisons the recording, when the calling thread records on this device */
ckks_status device_refuse_recording_thread(device *dev, const char *what, ckks_error *err);

/* ---- device_record.c ---- */

/* recording_append adds one operation to the stream's recording (validated, accesses listed by the caller).
 */
ckks_status recording_append(device_stream *stream, const device_operation *operation,
                             const kernel_access *accesses, uint32_t access_count, ckks_error *err);
ckks_status recording_event_record(device_event *event, device_stream *stream, ckks_error *err);
/* recording_wait: the stream or the event takes part in a recording */
ckks_status recording_wait(device_stream *stream, device_event *event, ckks_error *err);
/* first cause into the recording; returns the error's code */
ckks_status recording_poison(recording *r, const ckks_error *cause);
/* a stream that goes away takes its recording with it */
void recording_forget_stream(device_stream *stream);
void front_fini(front *f);

#endif
