/*
 * `ckksctl bench`: what the benchmarks share. A rig is a device with one parameter set, a throw-away
 * secret key and resident keys; nothing here is measured.
 */
#ifndef CKKS_CTL_BENCH_H
#define CKKS_CTL_BENCH_H

#include "client/ctl/ctl.h"
#include "client/lib/rpc.h"

#include "kernels/program/graph_program.h"
#include "kernels/program/workload.h"
#include "proto/package.h"

#define BENCH_SLOTS_MAX  64u
#define BENCH_COUNTS_MAX 8u

typedef struct bench_options {
    ctl_options *common;
    uint32_t device_kind; /* device_kind */
    const char *selector;
    uint32_t threads[BENCH_COUNTS_MAX]; /* 0: all cores; several: ops alone, in turn */
    uint32_t thread_counts;
    double seconds;        /* per operation */
    const char *set, *row; /* NULL = all */
    bool all_sets;
    const char *compare;
    const char *package;
    uint32_t rounds;
    uint32_t slots[BENCH_COUNTS_MAX]; /* serve, load: how many at a time, one run after the other */
    uint32_t slot_counts;
    uint32_t tenants, inputs; /* serve: key sets, and different requests of each */
    bool with_breakdown;      /* load: where a request's time goes */
} bench_options;

/* The program of `bench program` and `bench serve`. */
typedef struct bench_plan {
    const plan *plan;
    const char *name;
    package *package; /* NULL: a built-in program */
    void *built_in;
} bench_plan;
ckks_status bench_plan_open(bench_plan *out, const bench_options *options, ckks_error *err);
void bench_plan_close(bench_plan *p); /* accepts zeroed */

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
int bench_serve(const bench_options *options);
int bench_load(const bench_options *options);

/* ---- latencies under load (bench_latency.c) ---- */

typedef struct bench_latencies {
    uint32_t *values; /* 100 ns each */
    uint32_t count, capacity;
} bench_latencies;
/* what is over `capacity` is not kept; 0: half a million */
ckks_status bench_latencies_init(bench_latencies *l, uint32_t capacity, ckks_error *err);
void bench_latencies_fini(bench_latencies *l); /* accepts zeroed */
void bench_latencies_keep(bench_latencies *l, uint64_t ns);
/* merge sorts all parts into *out, which the caller ends; us: the value that `share` of them do not exceed.
 */
ckks_status bench_latencies_merge(bench_latencies *out, const bench_latencies *const *parts, uint32_t count,
                                  ckks_error *err);
double bench_latencies_us(const bench_latencies *sorted, double share);
void bench_wait(double seconds);
/* What several workers have come to; zero-initialise. */
typedef struct bench_count {
    _Atomic uint64_t answers; /* that were kept */
    _Atomic bool has_failed;  /* one of them, which has ended */
} bench_count;
/* bench_wait_for waits so long, and on until there are so many answers: without any there is nothing to tell,
 * however slow the machine. Ends at once when a worker has failed. */
void bench_wait_for(double seconds, const bench_count *count, uint64_t answers);

/* ---- where a request's time goes (bench_breakdown.c) ---- */

typedef enum bench_stage {
    BENCH_BUILD,
    BENCH_SEND,
    BENCH_RECEIVE,
    BENCH_CHECK,
    BENCH_QUEUE,
    BENCH_STAGE,
    BENCH_REPLAY,
    BENCH_COPY_OUT,
    BENCH_REPLY,
    BENCH_READ,
    BENCH_REST,
    BENCH_TOTAL,
    BENCH_STAGES
} bench_stage;

typedef struct bench_breakdown {
    bench_latencies stage[BENCH_STAGES];
} bench_breakdown;
ckks_status bench_breakdown_init(bench_breakdown *b, ckks_error *err); /* fini also after a failure */
void bench_breakdown_fini(bench_breakdown *b);                         /* accepts zeroed */
void bench_breakdown_keep(bench_breakdown *b, const rpc_timing *t);

typedef struct bench_breakdown_row {
    double median_us, p90_us;
} bench_breakdown_row;
ckks_status bench_breakdown_merge(bench_breakdown_row out[BENCH_STAGES], const bench_breakdown *const *parts,
                                  uint32_t count, ckks_error *err);

/* What the daemon only sums up, as it is written after the times in the reply. */
typedef struct bench_sum {
    uint64_t count, ns;
} bench_sum;
typedef struct bench_sums {
    bench_sum pack, reply;
} bench_sums;
ckks_status bench_sums_read(bench_sums *out, rpc_connection *connection, const client_model *model,
                            ckks_error *err);
void bench_sums_means(double *pack_us, double *reply_us, const bench_sums *before, const bench_sums *after);

void bench_breakdown_print(const bench_breakdown_row rows[BENCH_STAGES], double pack_us, double reply_us);
void bench_breakdown_json(json_writer *j, const bench_breakdown_row rows[BENCH_STAGES], double pack_us,
                          double reply_us);

/* ---- requests whose answers are known (bench_requests.c) ---- */

/* One encrypted request, packed and seeded as it would come over the wire, and the words that it must give.
 */
typedef struct bench_request {
    uint32_t tenant;
    graph_input *inputs; /* [input_count] */
    uint8_t **packed;    /* [input_count] */
    uint8_t **seeds;     /* [input_count] */
    uint64_t **expected; /* [output_count] */
} bench_request;

typedef struct bench_tenant {
    client_secret_key *secret;
    client_key_set *set;
    resident_keys *keys; /* on the device that is measured; NULL if the program needs none */
} bench_tenant;

typedef struct bench_requests {
    const plan *plan;
    device *dev;                  /* borrowed */
    graph_program_config program; /* of `dev` */
    uint32_t tenant_count, per_tenant;
    bench_tenant *tenants;
    bench_request *requests; /* [tenant_count][per_tenant] */
} bench_requests;

/* bench_requests_make encrypts tenants * inputs requests of random slots, each tenant under a key of its own,
 * and computes each answer on the CPU. `work` is prepared on `dev`. CKKS_UNSUPPORTED for a program that draws
 * random numbers: it has no words to compare. */
ckks_status bench_requests_make(bench_requests *out, device *dev, workload *work, uint32_t tenant_count,
                                uint32_t per_tenant, ckks_error *err);
void bench_requests_fini(bench_requests *all); /* accepts zeroed */
/* bench_requests_match: are these the words that the CPU computed? */
bool bench_requests_match(const bench_requests *all, const bench_request *request,
                          const graph_result *result);

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
