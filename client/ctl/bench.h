/*
 * `ckksctl bench`: what the two benchmarks share. A rig is a device with one parameter set, a throw-away
 * secret key and resident keys; nothing here is measured.
 */
#ifndef CKKS_CTL_BENCH_H
#define CKKS_CTL_BENCH_H

#include "client/ctl/ctl.h"

#include "kernels/program/graph_program.h"

typedef struct bench_options {
    ctl_options *common;
    uint32_t device_kind; /* device_kind */
    const char *selector;
    uint32_t threads;
    double seconds;        /* per operation */
    const char *set, *row; /* NULL = all */
    bool all_sets;
    const char *compare;
    const char *package;
    uint32_t rounds;
} bench_options;

typedef struct bench_rig {
    device *dev; /* borrowed */
    device_stream *stream;
    client_secret_key *secret;
    const ckks_params *params;
    const ckks_context *context;
    const device_tables *tables;
    resident_keys *keys; /* NULL without requirements */
    key_requirement *requirements;
    uint32_t key_count;
} bench_rig;
ckks_status bench_rig_open(bench_rig *rig, device *dev, const ckks_params *params,
                           const key_requirement *keys, uint32_t key_count, ckks_error *err);
void bench_rig_close(bench_rig *rig); /* accepts zeroed */

/* An encrypted slot vector: words on the host and on the device. */
typedef struct bench_sample {
    double *slots;   /* [N/2], in [-1, 1] */
    uint64_t *words; /* host, [2][limb][N] */
    void *on_device;
    value_signature signature;
} bench_sample;
ckks_status bench_sample_make(bench_sample *out, bench_rig *rig, uint32_t level, double scale, uint64_t seed,
                              ckks_error *err);
/* A batch: slots [batch][N/2], words [batch][2][limb][N]. Each vector repeats its first `period` slots. */
ckks_status bench_sample_make_batch(bench_sample *out, bench_rig *rig, uint32_t level, double scale,
                                    uint64_t seed, uint32_t batch_count, uint32_t period, ckks_error *err);
void bench_sample_fini(bench_sample *sample, bench_rig *rig);
graph_input bench_sample_input(const bench_sample *sample, const bench_rig *rig);
ckks_value bench_sample_value(const bench_sample *sample);

/* machine: the processor's name as the system gives it. Returns text. */
char *bench_machine(char text[128]);

int bench_ops(const bench_options *options);
int bench_program(const bench_options *options);

/* ---- earlier results ---- */

typedef struct bench_earlier {
    uint8_t *text;
    size_t size;
} bench_earlier;
ckks_status bench_earlier_load(bench_earlier *out, const char *path, ckks_error *err);
void bench_earlier_fini(bench_earlier *earlier);
/* bench_earlier_find: `member` of (set, operation), in microseconds; 0 if the file has none. */
double bench_earlier_find(const bench_earlier *earlier, const char *set, const char *operation,
                          const char *member);

#endif
