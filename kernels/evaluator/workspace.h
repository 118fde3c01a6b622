/*
 * Where the evaluator's memory comes from. Two modes, one call sequence:
 *
 *   planning  hands out virtual, never overlapping addresses while a planning recording lists what each
 * launch touches; workspace_plan then assigns offsets: two buffers may share memory only if the recorded
 * dependencies order every access of one before every access of the other; fixed     hands out base + the
 * planned offset of the i-th acquire, so that addresses are the same in warm-up, capture and replay. An
 * acquire that departs from the plan is CKKS_RECORDING_VIOLATION.
 *
 * Threads: one workspace, one thread.
 */
#ifndef CKKS_EVALUATOR_WORKSPACE_H
#define CKKS_EVALUATOR_WORKSPACE_H

#include "kernels/device.h"

typedef struct workspace workspace;
typedef struct workspace_plan workspace_plan;

ckks_status workspace_create_planning(workspace **out, ckks_error *err);
/* base: device memory of at least workspace_plan_bytes(plan). Keeps references to both. */
ckks_status workspace_create_fixed(workspace **out, const workspace_plan *plan, void *base, ckks_error *err);
void workspace_destroy(workspace *ws);

/* bytes are rounded up to VALUE_ALIGNMENT. release says that no later launch reads the buffer. */
ckks_status workspace_acquire(workspace *ws, void **out, uint64_t bytes, ckks_error *err);
void workspace_release(workspace *ws, void *address);
/* fixed mode: back to the first acquire, for the next run. */
void workspace_rewind(workspace *ws);

/* workspace_plan_create assigns offsets from a planning workspace and the planning graph recorded with it. */
ckks_status workspace_plan_create(workspace_plan **out, const workspace *planning, const device_graph *graph,
                                  ckks_error *err);
void workspace_plan_destroy(workspace_plan *plan);
uint64_t workspace_plan_bytes(const workspace_plan *plan);      /* arena bytes needed */
uint64_t workspace_plan_bytes_live(const workspace_plan *plan); /* sum without sharing, for the report */

#endif
