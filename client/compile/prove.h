/*
 * Running what was compiled, before anybody relies on it: on the CPU device, as the daemon would (weights
 * encoded, program captured), with a secret key that is made here and forgotten here.
 */
#ifndef CKKS_COMPILE_PROVE_H
#define CKKS_COMPILE_PROVE_H

#include "client/compile/emit.h"
#include "kernels/program/workload.h"

typedef struct prove_rows {
    const double *rows;   /* preprocessed inputs [row_count][element_count] */
    const double *scores; /* what the polynomial model gives [row_count][score_count] */
    uint64_t row_count;
    uint32_t element_count, score_count;
    uint32_t check_count; /* rows to run, spread over all */
} prove_rows;

typedef struct proof {
    double measured_error; /* largest difference of a score */
    uint32_t checked_rows;
    workload_memory memory;
} proof;

/*
 * program_prove fills in the plan's keys, digests of plains and self test; compares the plan, interpreted in
 * the clear, with the graph's scores (CKKS_INTERNAL if they differ: the layout is wrong); then encrypts
 * check_count rows under a public key (the noisier way), runs them and compares again. Keys of the plan are
 * in `memory`. Blocks for seconds.
 */
ckks_status program_prove(proof *out, emitted_program *program, const prove_rows *rows, arena *memory,
                          const workload_progress *progress, ckks_error *err);

#endif
