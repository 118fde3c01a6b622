/*
 * A program in parts: the operations of each layer as a program of their own, so that each can be timed by
 * itself. A part begins and ends where values of two components cross.
 */
#ifndef CKKS_CTL_PARTS_H
#define CKKS_CTL_PARTS_H

#include "client/ctl/bench.h"

typedef struct plan_part {
    const char *source; /* of its first operation; the plan's */
    uint32_t first, count;
    uint32_t rotations;    /* key switches by rotation */
    uint32_t key_switches; /* and for products */
    uint32_t level_in, level_out;
    double scale_out;
    uint64_t weight_bytes; /* encoded plains and matrices that it uses */
} plan_part;

/* plan_parts cuts where `source` changes. Free *out with free(). */
ckks_status plan_parts(plan_part **out, uint32_t *count, const plan *p, ckks_error *err);

/* An excerpt of a plan that runs by itself. */
typedef struct plan_excerpt {
    plan plan;
    void *memory; /* everything it points to but numbers of the original */
    key_requirement *keys;
} plan_excerpt;
ckks_status plan_excerpt_make(plan_excerpt *out, const plan *p, uint32_t first, uint32_t count,
                              ckks_error *err);
void plan_excerpt_fini(plan_excerpt *e); /* accepts zeroed */

/* A stopwatch for plans of one parameter set on one device: keys for everything that will be timed. */
typedef struct plan_clock {
    device *dev;
    bench_rig rig;
    bool is_unsteady; /* the shortest of some program was not reached again */
} plan_clock;
ckks_status plan_clock_open(plan_clock *out, uint32_t kind, const ckks_params *params,
                            const key_requirement *keys, uint32_t key_count, ckks_error *err);
void plan_clock_close(plan_clock *c); /* accepts zeroed */
/* plan_clock_time: shortest replay, by the device's clock, of at least `rounds`, until `seconds` have passed
 * and it was reached again (or 20 times as much has passed). Inputs are random numbers, encrypted. Blocks. */
ckks_status plan_clock_time(double *ns, plan_clock *c, const plan *p, uint32_t rounds, double seconds,
                            ckks_error *err);

#endif
