/*
 * A workload: a plan prepared on one device, as a callable that a graph program records. Owns encoded weights
 * and descriptors (a binding set), shared by every slot of that device.
 *
 * workload_prepare: plan_check, encode every plain at its level and scale (digest verified), upload, build
 * prepared operations, plan the workspace by a planning recording, account memory. Slow; runs on a loader
 * thread; blocks.
 */
#ifndef CKKS_PROGRAM_WORKLOAD_H
#define CKKS_PROGRAM_WORKLOAD_H

#include "kernels/program/graph_program.h"
#include "kernels/program/plan.h"

typedef struct workload workload;

/* progress may be NULL: called on the same thread with done and total units. */
typedef struct workload_progress {
    void (*report)(void *context, const char *stage, uint64_t done, uint64_t total);
    void *context;
} workload_progress;

/* `p` and everything it points to must outlive the workload. Digests of plains are verified unless `p` leaves
 * them all zero (the compiler, before it fills them in). The caller owns *out. */
ckks_status workload_prepare(workload **out, device *dev, const plan *p, const workload_progress *progress,
                             ckks_error *err);
void workload_destroy(workload *w); /* no program may be attached */

typedef struct workload_memory {
    uint64_t weights_bytes; /* encoded, on the device */
    uint64_t arena_bytes;   /* per slot: workspace */
    uint64_t arena_unshared_bytes;
    uint64_t inputs_bytes, outputs_bytes; /* per slot, retained */
    uint64_t staging_bytes;               /* per slot, host */
    uint64_t keys_bytes;                  /* per resident key set that has exactly the required keys */
} workload_memory;
void workload_memory_account(const workload *w, workload_memory *out);

const ckks_context *workload_context(const workload *w);
const plan *workload_plan(const workload *w);
binding_set *workload_bindings(workload *w);

/* workload_program_config fills what graph_program_create needs: signatures, callable, bindings, keys,
 * workspace plan. */
void workload_program_config(workload *w, graph_program_config *out);

/* The digest of every encoded plain and matrix, in table order, for the compiler. digests[plain_count +
 * matrix_count][32]. */
void workload_digests(const workload *w, uint8_t (*digests)[32]);

/*
 * workload_self_test: inputs and words in place of keys expanded from plan->self_test_seed (purpose
 * SEED_SELF_TEST; polynomial numbers: input i component c = 2i + c, then key k digit d component c = 2 *
 * (input_count + k * dnum_full + d) + c), a fixed random stream key; replays `program` and hashes the output
 * words. digest is output. CKKS_DIGEST_MISMATCH if the plan has a self test and it differs. Needs no tenant,
 * no secret. Blocks.
 */
ckks_status workload_self_test(workload *w, graph_program *program, uint8_t digest[32], ckks_error *err);

#endif
