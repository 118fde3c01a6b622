/*
 * Where the evaluator's memory comes from. Two modes, one call sequence:
 *
 *   planning  hands out virtual, never overlapping addresses while a planning recording lists what each
 *             launch touches; workspace_plan_create then assigns offsets: two buffers may share memory only
 * if the recorded dependencies order every access of one before every access of the other; fixed     hands
 * out base + the planned offset of the i-th acquire, so that addresses are the same in warm-up, capture and
 * replay. An acquire that departs from the plan is CKKS_RECORDING_VIOLATION.
 *
 * A buffer that was never released when the plan is made holds a result: no later buffer takes its place.
 *
 * Threads: one workspace, one thread. A plan is immutable and may serve any number of workspaces.
 */
#ifndef CKKS_EVALUATOR_WORKSPACE_H
#define CKKS_EVALUATOR_WORKSPACE_H

#include "kernels/device.h"

#define WORKSPACE_BUFFERS_MAX 65536u
#define WORKSPACE_NODES_MAX   65536u

typedef struct workspace workspace;
typedef struct workspace_plan workspace_plan;

/* The caller owns *out and returns it with workspace_destroy (NULL is fine). */
ckks_status workspace_create_planning(workspace **out, ckks_error *err);
/* base: device memory of at least workspace_plan_bytes(plan), VALUE_ALIGNMENT-aligned (NULL if the plan needs
 * none). Keeps references to both. */
ckks_status workspace_create_fixed(workspace **out, const workspace_plan *plan, void *base, ckks_error *err);
void workspace_destroy(workspace *ws);

/* workspace_acquire: bytes (above 0) are rounded up to VALUE_ALIGNMENT. Allocates nothing in fixed mode.
 * CKKS_RECORDING_VIOLATION when a fixed workspace's plan has no such acquire here, CKKS_RESOURCE_EXHAUSTED
 * when a planning workspace is full. */
ckks_status workspace_acquire(workspace *ws, void **out, uint64_t bytes, ckks_error *err);
/* workspace_acquire_parts: one buffer of part_count parts of part_bytes (a multiple of VALUE_ALIGNMENT) one
 * after the other, each released by its own address. */
ckks_status workspace_acquire_parts(workspace *ws, void **out, uint64_t part_bytes, uint32_t part_count,
                                    ckks_error *err);
/* workspace_release says that no later launch reads the buffer (or part). Accepts NULL and addresses that are
 * no planned ones (memory of others); a planned one that this workspace did not hand out, or more releases of
 * a buffer than it has parts, are asserted in planning mode. */
void workspace_release(workspace *ws, void *address);
/* fixed mode: back to the first acquire, for the next run. */
void workspace_rewind(workspace *ws);

/* workspace_plan_create assigns offsets from a planning workspace and the planning graph recorded with it.
 * Source: interval packing by first fit, over an interference relation that is reachability in the recorded
 * graph. CKKS_TOO_LARGE above WORKSPACE_NODES_MAX nodes. The caller owns *out. */
ckks_status workspace_plan_create(workspace_plan **out, const workspace *planning, const device_graph *graph,
                                  ckks_error *err);
void workspace_plan_destroy(workspace_plan *plan);
uint64_t workspace_plan_bytes(const workspace_plan *plan);      /* arena bytes needed */
uint64_t workspace_plan_bytes_live(const workspace_plan *plan); /* sum without sharing, for the report */
uint32_t workspace_plan_buffer_count(const workspace_plan *plan);
/* the i-th acquire's place: offset and rounded bytes */
void workspace_plan_buffer(const workspace_plan *plan, uint32_t index, uint64_t *offset, uint64_t *bytes);

#endif
