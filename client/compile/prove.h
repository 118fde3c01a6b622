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
    uint32_t check_count;   /* rows to run, spread over all */
    uint64_t time_limit_ns; /* after two rows, no further one is begun later than this; 0: no limit */
} prove_rows;

typedef struct proof {
    double measured_error; /* largest difference of a score */
    uint32_t checked_rows;
    uint64_t replay_ns; /* shortest, of one request on the CPU device */
    workload_memory memory;
} proof;

/*
 * program_prove fills in the plan's keys, digests of plains and matrices, and self test; compares the plan,
 * interpreted in the clear, with the graph's scores (CKKS_INTERNAL if they differ: the layout is wrong; not
 * in the throughput layout, whose scores are the plan's own); then encrypts check_count rows under a public
 * key (the noisier way, unless the program is for the secret key only), runs them and compares again. Keys of
 * the plan are in `memory`. Blocks for seconds.
 */
ckks_status program_prove(proof *out, emitted_program *program, const prove_rows *rows, arena *memory,
                          const workload_progress *progress, ckks_error *err);

/* program_batch_scores runs a plan of the throughput layout in the clear on rows[row_count][element_count]:
 * scores[row_count][score_count]. What rounding of the weights costs is in them. */
ckks_status program_batch_scores(double *scores, const plan *p, const double *rows, uint64_t row_count,
                                 uint32_t element_count, uint32_t score_count, ckks_error *err);

#endif
