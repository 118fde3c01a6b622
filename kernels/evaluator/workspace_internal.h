/*
 * What the planner reads from a planning workspace. Included by kernels/evaluator and its tests only.
 */
#ifndef CKKS_EVALUATOR_WORKSPACE_INTERNAL_H
#define CKKS_EVALUATOR_WORKSPACE_INTERNAL_H

#include "kernels/device_graph.h"
#include "kernels/evaluator/workspace.h"

typedef struct workspace_buffer {
    uint64_t address; /* virtual */
    uint64_t bytes;
    uint64_t part_bytes;
    uint32_t parts_held; /* not yet released */
} workspace_buffer;

/* buffers in the order of acquisition, addresses ascending */
const workspace_buffer *workspace_buffers(const workspace *ws, uint32_t *count);

/* The planner over plain lists, so that a test can hand it any graph. nodes[node_count]: dependencies point
 * below. */
ckks_status workspace_plan_from_nodes(workspace_plan **out, const workspace_buffer *buffers,
                                      uint32_t buffer_count, const graph_node *const *nodes,
                                      uint32_t node_count, ckks_error *err);

#endif
