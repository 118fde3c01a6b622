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
    uint64_t inputs_bytes, outputs_bytes; /* words of all inputs, of all outputs */
    uint64_t program_bytes;               /* per captured program, device: retained values, landing, tables */
    uint64_t capture_bytes;               /* more, while capturing */
    uint64_t staging_bytes;               /* per captured program, host */
    uint64_t keys_bytes;                  /* per resident key set that has exactly the required keys */
} workload_memory;
void workload_memory_account(const workload *w, workload_memory *out);

const ckks_context *workload_context(const workload *w);
const plan *workload_plan(const workload *w);
binding_set *workload_bindings(workload *w);

/* workload_program_config fills what graph_program_create needs: signatures, callable, bindings (NULL if the
 * plan has no weights), keys, workspace plan. Points into the workload. */
void workload_program_config(workload *w, graph_program_config *out);

/* The digest of every encoded plain and matrix, in table order, for the compiler. digests[plain_count +
 * matrix_count][32]. */
void workload_digests(const workload *w, uint8_t (*digests)[32]);

/*
 * The self test works with uniform words expanded from plan->self_test_seed (purpose SEED_SELF_TEST).
 * Polynomial numbers: component c of the j-th input ciphertext is 2j + c, where the entries of a batch count
 * one by one (so j = i for batches of one) and J is their total; component c of digit d of key k is
 * 2 * (J + k * dnum_full + d) + c. Random operations take the seed as their stream key meanwhile.
 *
 * workload_self_test_keys: the words in place of keys, made once and shared (NULL if the plan needs none);
 * the caller releases *out. The workload keeps them until workload_self_test_end, for the next slot.
 * Thread-safe.
 */
ckks_status workload_self_test_keys(workload *w, resident_keys **out, ckks_error *err);
void workload_self_test_end(workload *w);

/* workload_capture captures `program` (made from workload_program_config) with self-test inputs and keys.
 * Blocks; errors and stages as graph_program_capture. */
ckks_status workload_capture(workload *w, graph_program *program, int32_t warmup, ckks_error *err);

/* workload_self_test replays a captured `program` on self-test inputs and keys and hashes the output words in
 * order. digest is output. CKKS_DIGEST_MISMATCH if the plan has a self test and it differs. Needs no tenant,
 * no secret; the held payload is then the self test's. Blocks. */
ckks_status workload_self_test(workload *w, graph_program *program, uint8_t digest[32], ckks_error *err);

#endif
