/*
 * The CPU back end's own structures. A stream is a FIFO drained by its own thread, so that work really is
 * asynchronous; kernels hand their tasks to the stream's team (team.h), whose width is fixed.
 *
 * Every event record is an object of its own (cpu_record), shared by the event, the queue entry that
 * completes it and the queue entries that wait for it: a later record of the same event cannot satisfy an
 * earlier wait.
 *
 * Streams share the cores: while several are at work, each launches on no more threads than the cores that
 * the process may use, divided among those streams, at least one. More threads than cores would take turns,
 * and wait for each other.
 *
 * Errors are sticky per stream; work after one is skipped, records complete and carry the error to the
 * streams and hosts that wait for them, until the stream that failed has been recovered (cpu_health counts
 * recoveries).
 */
#ifndef CKKS_CPU_DEVICE_CPU_H
#define CKKS_CPU_DEVICE_CPU_H

#include "kernels/cpu/kernels_cpu.h"
#include "kernels/device_backend.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct cpu_device {
    cpu_isa isa;
    uint32_t threads, cores;           /* of each stream's team; that the process may use */
    _Atomic uint32_t busy_streams;     /* at work at the moment */
    _Atomic uint64_t adversarial_seed; /* 0 = recorded order */
    _Atomic uint64_t adversarial_replays;
} cpu_device;

/* A recorded graph with its successors, for adversarial orders. Operations and nodes belong to the front end.
 */
typedef struct cpu_graph {
    cpu_device *dev;
    const device_operation *operations;
    const graph_node *nodes;
    uint32_t count;
    cpu_kernel *kernels;       /* per node */
    uint32_t *successor_begin; /* [count + 1] */
    uint32_t *successors;
    pthread_mutex_t lock;
    pthread_cond_t idle;
    uint32_t pending; /* replays enqueued and not finished */
} cpu_graph;

/* cpu_operation_run does one piece of work on the calling thread, and on its team as far as there are cores.
 */
void cpu_operation_run(const cpu_device *dev, const device_operation *operation, cpu_kernel kernel);

/* ---- stream_cpu.c ---- */

ckks_status cpu_stream_create(void *self, void **stream, ckks_error *err);
void cpu_stream_destroy(void *stream);
ckks_status cpu_stream_synchronize(void *stream, ckks_error *err);
ckks_status cpu_stream_recover(void *stream, ckks_error *err);
ckks_status cpu_stream_fail(void *stream, const ckks_error *cause, ckks_error *err);
ckks_status cpu_stream_run(void *stream, const device_operation *operation, ckks_error *err);
/* takes `order` (may be NULL = recorded order) in every case; it is freed with free */
ckks_status cpu_stream_replay(void *stream, cpu_graph *graph, uint32_t *order, ckks_error *err);

ckks_status cpu_event_create(void *self, void **event, ckks_error *err);
void cpu_event_destroy(void *event);
ckks_status cpu_event_record(void *event, void *stream, ckks_error *err);
ckks_status cpu_stream_wait(void *stream, void *event, ckks_error *err);
ckks_status cpu_event_synchronize(void *event, ckks_error *err);
bool cpu_event_is_complete(void *event);
uint64_t cpu_event_elapsed_ns(const void *from, const void *to);

/* Builds with CKKS_FAULT_INJECTION only: the nth initialisation of a mutex or condition variable from now
 * fails (0 = none). */
void cpu_fault_sync_init(uint32_t nth);
/* pthread initialisers that tests can make fail; 0 on success */
int cpu_mutex_init(pthread_mutex_t *mutex);
int cpu_cond_init(pthread_cond_t *cond);

/* ---- graph_cpu.c ---- */

ckks_status cpu_graph_create(void *self, void **graph, const device_operation *operations,
                             const graph_node *nodes, uint32_t count, ckks_error *err);
void cpu_graph_destroy(void *graph);
ckks_status cpu_graph_replay(void *graph, void *stream, ckks_error *err);
/* on the stream's thread; order NULL = recorded order */
void cpu_graph_run(const cpu_graph *graph, const uint32_t *order);
void cpu_graph_finished(cpu_graph *graph);

#endif
