/*
 * An honest comparison of one program run eagerly and from its recording: the same callable, the same
 * staging, the same owned results, the same correctness check and the same memory account; rounds of both in
 * turn, so that a machine that warms up or slows down does so for both.
 */
#ifndef CKKS_GRAPH_BENCH_H
#define CKKS_GRAPH_BENCH_H

#include "kernels/program/graph_program.h"

#define GRAPH_BENCH_ROUNDS_MAX 1000000u

typedef struct graph_bench_config {
    graph_slot *slot;
    const graph_program_config *program; /* execution_eager is ignored: both are run */
    const ckks_value *examples;          /* for the captures */
    const graph_input *inputs;           /* one request, [program->input_count] */
    resident_keys *keys;
    uint32_t rounds; /* of each, 1 to GRAPH_BENCH_ROUNDS_MAX */
    uint32_t warmup; /* rounds of each that are not counted */
} graph_bench_config;

/* nanoseconds: median, and the spread as the 10th and 90th percentile */
typedef struct graph_bench_figure {
    uint64_t median_ns, low_ns, high_ns;
} graph_bench_figure;

typedef struct graph_bench_mode {
    graph_bench_figure total;    /* host: from the request's bytes to the owned result */
    graph_bench_figure launch;   /* host: what enqueueing the evaluation costs the calling thread */
    graph_bench_figure stage;    /* device: transfer, unpacking, seed expansion, checks */
    graph_bench_figure replay;   /* device: the evaluation */
    graph_bench_figure copy_out; /* device: the owned copy */
    uint64_t device_bytes;       /* retained buffers, landing place and key table */
    uint64_t host_bytes;         /* pinned */
    uint64_t arena_bytes;
    uint64_t capture_ns; /* reference, warm-up, recording and validation, once */
} graph_bench_mode;

typedef struct graph_bench_result {
    graph_bench_mode eager, graph;
    uint32_t rounds;
    uint32_t kernel_nodes, copy_nodes, fill_nodes; /* of the recording */
    uint32_t rounds_checked; /* results compared word for word with the eager reference, all of them equal */
} graph_bench_result;

/* graph_bench_run: CKKS_INTERNAL if any result differs from the eager reference in any word (a program that
 * draws is compared with its random stream reset to a fixed key, in one round that is not counted). Blocks.
 */
ckks_status graph_bench_run(graph_bench_result *out, const graph_bench_config *config, ckks_error *err);

/* graph_bench_summary: one sentence that says whether the recording helps here, and if not why. Returns text.
 */
char *graph_bench_summary(const graph_bench_result *result, char *text, uint32_t capacity);

#endif
