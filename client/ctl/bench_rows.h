/*
 * `ckksctl bench ops`: one row is one operation on one parameter set. A row makes what it needs beside the
 * set's two samples, is run and checked once, and then timed: device rows both eagerly and from a recording,
 * in turn; with several thread counts from recordings alone, in turn by count. Names of sets and rows are
 * what results and figures of other libraries are matched by (tests/bench): do not rename.
 *
 * A new row: its functions in bench_host.c, bench_device.c or bench_linear.c and a line in the table there.
 */
#ifndef CKKS_CTL_BENCH_ROWS_H
#define CKKS_CTL_BENCH_ROWS_H

#include "client/ctl/bench.h"

#define BENCH_STEPS_MAX   96u
#define BENCH_OUTPUTS_MAX 8u

typedef struct bench_set {
    const char *name;
    uint32_t log_n, q0_bits, q_bits, q_count, p_bits, p_count, digit_size, scale_bits;
    bool is_large;       /* gigabytes of keys: on request */
    bool has_matrix;     /* the 256 x 256 product */
    bool has_matrix_mod; /* the 784 x 64 modular product */
} bench_set;

/* bench_set_find: the first set with `part` in its name, or NULL. */
const bench_set *bench_set_find(const char *part);
ckks_status bench_set_params(ckks_params *out, const bench_set *set, ckks_error *err);

typedef struct bench_row bench_row;

/* What one row has made; zeroed and freed after it. */
typedef struct bench_state {
    bench_sample own; /* an input that only this row needs */
    const bench_sample *inputs[2];
    uint32_t input_count;
    value_signature outputs[BENCH_OUTPUTS_MAX];
    uint32_t output_count;
    hoisted_rotations *hoisted;
    linear_transform *transform;
    void *on_device;    /* plaintexts, diagonals, weights */
    ckks_value plain;   /* a view of them */
    double *matrix;     /* clear */
    uint64_t *words[4]; /* host */
    double *slots;      /* host */
    uint8_t seed[SEED_BYTES];
} bench_state;

/* With several thread counts each has a run, with a device, keys and inputs of its own. */
typedef struct bench_run {
    const bench_options *options;
    uint32_t threads; /* 0: not chosen */
    const bench_set *set;
    bench_rig rig;
    bench_sample a, b;
    double scale;
    uint32_t level;
    const bench_row *row;
    bench_state now;
    double error; /* worst of the row's check; negative = nothing to check */
    json_writer *json;
    bench_earlier earlier;
    uint32_t worse; /* rows at least a tenth slower than before */
} bench_run;

struct bench_row {
    const char *name;
    bool (*is_for)(const bench_set *set); /* NULL = every set */
    bool needs_relinearisation;
    /* rotations that need a key; returns their count, at most BENCH_STEPS_MAX. NULL = none */
    uint32_t (*steps)(int64_t *steps);
    ckks_status (*open)(bench_run *r, ckks_error *err);
    /* host rows: the timed call, and the check of what it left (NULL = nothing to check) */
    ckks_status (*once)(bench_run *r, ckks_error *err);
    ckks_status (*check_host)(bench_run *r, ckks_error *err);
    /* device rows: what is recorded, and how its outputs are checked: slots of output or batch entry `index`,
     * or, where there is no ciphertext to decrypt, words */
    ckks_status (*record)(bench_run *r, graph_region *region, const ckks_value *inputs, ckks_error *err);
    double (*expected)(const bench_run *r, uint32_t index, uint32_t slot);
    ckks_status (*check_words)(bench_run *r, const uint64_t *words, ckks_error *err);
};

extern const bench_row bench_host_rows[], bench_device_rows[], bench_linear_rows[]; /* end in name NULL */

/* bench_step: the Galois element of a rotation and its key's index in the rig. */
galois_step bench_step(const bench_run *r, int64_t steps);
/* bench_output: signature of a ciphertext result. */
value_signature bench_output(const bench_run *r, uint32_t level, double scale);
/* bench_words, bench_device_words: room in the row's state, freed with it. */
ckks_status bench_words(uint64_t **out, size_t count, ckks_error *err);
ckks_status bench_device_words(bench_run *r, uint64_t count, ckks_error *err);
/* bench_compare_slots raises r->error; CKKS_INTERNAL if it is beyond what noise explains. */
ckks_status bench_compare_slots(bench_run *r, const double *slots, const double *expected, ckks_error *err);
/* bench_decrypt: slots [N/2] of a two-component ciphertext. */
ckks_status bench_decrypt(const bench_run *r, double *slots, const uint64_t *words, uint32_t level,
                          double scale, ckks_error *err);

/* nanoseconds of one run of a program or host call */
typedef struct bench_figure {
    double median_us, low_us, high_us, min_us;
    uint32_t rounds;
} bench_figure;
typedef ckks_status (*bench_timed)(uint64_t *ns, void *context, ckks_error *err);

/* A device row as programs on the run's device. */
typedef struct bench_programs {
    workspace_plan *memory;
    graph_slot *slot;
    graph_program *recorded, *eager; /* eager: NULL unless asked for */
} bench_programs;
/* bench_programs_open runs the row in each way and checks the results; close also after a failure. */
ckks_status bench_programs_open(bench_programs *out, bench_run *r, bool with_eager, ckks_error *err);
void bench_programs_close(bench_programs *p); /* accepts zeroed */
ckks_status bench_replay_timed(uint64_t *ns, void *program, ckks_error *err);

/* bench_measure times `count` contenders in turn until the row's time is over: `burst` runs a turn, after one
 * that is not counted where there are several (what the contender before has left in the caches is not its
 * own). */
#define BENCH_WAYS_MAX BENCH_COUNTS_MAX
ckks_status bench_measure(bench_figure *out, const bench_run *r, bench_timed one, void *const *contexts,
                          uint32_t count, uint32_t burst, ckks_error *err);

#endif
