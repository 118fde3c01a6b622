/*
 * Counters and gauges, all atomics, and the few texts that say what is out of service: written by whoever
 * knows, read by the ops endpoint, which reads nothing else. One process, one set. Prometheus text format
 * 0.0.4.
 */
#ifndef CKKSD_METRICS_H
#define CKKSD_METRICS_H

#include "kernels/device.h"

#include <stdatomic.h>

#define METRICS_MODELS_MAX  64u
#define METRICS_METHODS_MAX 32u
#define METRICS_SLOTS_MAX   64u
#define METRICS_BUCKETS     18u
#define METRICS_CODES       17u
#define METRICS_NAME_SIZE   160u
#define METRICS_CAUSE_SIZE  200u

typedef struct histogram {
    _Atomic uint64_t bucket[METRICS_BUCKETS + 1]; /* the last is +Inf; not cumulative */
    _Atomic uint64_t sum_ns;
} histogram;
void histogram_add(histogram *h, uint64_t ns);
uint64_t histogram_count(const histogram *h);

typedef struct metrics_model {
    char name[METRICS_NAME_SIZE], version[METRICS_NAME_SIZE]; /* written before it is counted */
    _Atomic uint64_t code[METRICS_CODES];
    histogram queue, stage, replay, copy_out;
    histogram receive, check, pack, reply; /* check is part of queue, pack of copy_out */
    _Atomic uint64_t success_count, success_ns, fail_count, fail_ns;
    _Atomic(const char *) state;      /* its name; NULL: nobody expects the model to be served */
    _Atomic uint64_t retries;         /* loads by itself, after device errors */
    _Atomic uint64_t retry_ns;        /* when the next such load comes; 0: none does */
    _Atomic uint32_t retry, retry_of; /* its number, of how many */
    _Atomic uint32_t slots;           /* in service, with its program */
    char cause[METRICS_CAUSE_SIZE];   /* why it is not served; under a lock */
} metrics_model;

typedef struct metrics_method {
    const char *name;
    _Atomic uint64_t code[METRICS_CODES];
} metrics_method;

typedef enum slot_state {
    SLOT_STARTING,
    SLOT_IDLE,
    SLOT_BUSY,
    SLOT_QUARANTINED,
    SLOT_LOST,
    SLOT_STATES
} slot_state;
const char *slot_state_name(slot_state state);

/* A slot's sign of life. The slot's thread stamps it whenever it gets on; `limit_ns` says how long it may
 * stay silent in what it does now. */
typedef struct metrics_slot {
    _Atomic uint64_t progress_ns; /* CLOCK_MONOTONIC */
    _Atomic uint64_t limit_ns;
    _Atomic uint32_t state;         /* slot_state */
    _Atomic uint64_t left_ns;       /* when it left service; 0: it is in service */
    char cause[METRICS_CAUSE_SIZE]; /* the first that made it leave; under a lock */
} metrics_slot;

/* The card, as its driver sees it. `known`: HEALTH_ bits; 0: there is none, or nobody to ask. */
typedef struct metrics_gpu {
    char name[96], id[48], driver[48]; /* written before `known` */
    _Atomic uint32_t known;
    _Atomic uint64_t temperature_c, power_mw, power_limit_mw, utilisation_percent, memory_utilisation_percent,
        clock_mhz, memory_used, memory_total, ecc_corrected, ecc_uncorrected, throttle;
} metrics_gpu;

typedef struct metrics {
    _Atomic uint32_t model_count;
    metrics_model models[METRICS_MODELS_MAX];
    _Atomic uint32_t method_count;
    metrics_method methods[METRICS_METHODS_MAX];
    _Atomic uint64_t rejected[CKKS_STATUS_COUNT];
    _Atomic uint32_t slot_count;
    metrics_slot slots[METRICS_SLOTS_MAX];
    _Atomic uint64_t slot_recoveries;
    _Atomic uint64_t queued, running, queued_bytes;
    _Atomic uint64_t dedupe_joined, dedupe_replayed, dedupe_bytes;
    _Atomic uint64_t key_sets, key_bytes, key_sets_resident, key_bytes_resident, key_uploads, key_evictions;
    _Atomic uint64_t pipes, pipes_unauthenticated, pipes_refused, pipes_displaced, pipes_expired, tenants;
    _Atomic uint64_t local_request_bytes, local_reply_bytes, local_replies; /* lent; sent through it */
    _Atomic uint64_t memory[MEMORY_PURPOSE_COUNT], memory_max;
    metrics_gpu gpu;
    _Atomic uint64_t start_unix_s;
    _Atomic bool is_ready, is_draining;
    _Atomic bool is_interrupted; /* it was ready, and now no slot is in service */
} metrics;

extern metrics daemon_metrics;

/* metrics_model_add registers a model version (loop thread); NULL when the table is full. A name that is
 * known already is returned. */
metrics_model *metrics_model_add(const char *name, const char *version);
/* metrics_model_replace: the place of a model that nobody asks for any more is another's, from zero. May wait
 * for a page that is being printed. Loop thread. */
void metrics_model_replace(metrics_model *m, const char *name, const char *version);
/* metrics_method_add: `name` must live for ever. */
metrics_method *metrics_method_add(const char *name);

/* metrics_set_cause puts a text where an endpoint may be reading one: `cause` of a slot or a model,
 * printable; NULL empties it. Waits for no page. */
void metrics_set_cause(char cause[METRICS_CAUSE_SIZE], const char *text);
/* metrics_slot_left: the slot is out of service, with the first cause; further causes change nothing until
 * metrics_slot_back. Loop thread. */
void metrics_slot_left(metrics_slot *s, const char *cause);
void metrics_slot_back(metrics_slot *s);

/* metrics_print_readiness writes what /readyz says into a new string (free with free()); NULL when out of
 * memory. *is_ready: what its status says. */
char *metrics_print_readiness(bool *is_ready, size_t *size);

/* metrics_is_live: does every slot make progress? `stalled` (may be NULL) gets the first that does not. */
bool metrics_is_live(uint64_t now_ns, uint32_t *stalled);

/* metrics_print writes the whole page into a new string (free with free()); NULL when out of memory. */
char *metrics_print(size_t *size);

#endif
