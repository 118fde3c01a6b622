/* What the two ways to check a program share (one row at a time, a batch at once): prove.c and prove_batch.c
 * only. */
#ifndef CKKS_COMPILE_PROVE_INTERNAL_H
#define CKKS_COMPILE_PROVE_INTERNAL_H

#include "client/compile/prove.h"

typedef struct proving {
    emitted_program *program;
    const ckks_params *params;
    const prove_rows *rows;
    arena scratch;
    device *dev;
    workload *work;
    const ckks_context *context;
    graph_slot *slot;
    graph_program *captured;
    secret_key *secret;
    resident_keys *keys;
    uint64_t *public_key; /* [2][limb][N] at the input's level */
    uint64_t replay_ns;   /* shortest so far; 0 = none */
} proving;

static inline void proving_time(proving *p, const graph_result *result) {
    if (!p->replay_ns || result->replay_ns < p->replay_ns) p->replay_ns = result->replay_ns;
}

/* prove_batch_run encrypts check_count rows into one batch, runs it and leaves the largest difference of a
 * score in *worst. */
ckks_status prove_batch_run(proving *p, double *worst, ckks_error *err);

#endif
