/*
 * What only kernels/program may use: replaying a recorded graph and looking into one.
 */
#ifndef CKKS_DEVICE_GRAPH_H
#define CKKS_DEVICE_GRAPH_H

#include "kernels/device.h"

/* device_graph_replay enqueues all recorded work on `stream`, after the work enqueued before. Asynchronous.
 */
ckks_status device_graph_replay(device_graph *graph, device_stream *stream, ckks_error *err);

typedef enum graph_node_kind { GRAPH_NODE_KERNEL, GRAPH_NODE_COPY, GRAPH_NODE_FILL } graph_node_kind;

/* One recorded launch: what it touches and which earlier nodes it waits for (indices below its own). */
typedef struct graph_node {
    graph_node_kind kind;
    kernel_id kernel;
    uint32_t access_count;
    const kernel_access *accesses;
    uint32_t dependency_count;
    const uint32_t *dependencies;
} graph_node;

uint32_t device_graph_node_count(const device_graph *graph);
const graph_node *device_graph_node(const device_graph *graph, uint32_t index);

/* device_record_begin_planning: like device_record_begin, but addresses are virtual, nothing reaches the back
 * end, and the graph that device_record_end returns cannot be replayed: it exists to be looked into. */
ckks_status device_record_begin_planning(device_stream *stream, ckks_error *err);

/* Replays of every graph of this device run in a different random topological order each time (CPU back end
 * only; CKKS_UNSUPPORTED elsewhere). seed 0 = recorded order. */
ckks_status device_set_adversarial_order(device *dev, uint64_t seed, ckks_error *err);

/* Builds with CKKS_FAULT_INJECTION only: recordings of this device end without the check for unordered nodes
 * that touch the same memory, so that a test can show what adversarial order does to such a graph. */
void device_skip_race_check(device *dev, bool skip);

#endif
