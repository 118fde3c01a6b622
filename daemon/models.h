/*
 * Model versions: found in the repository as NAME/VERSION/model.ckm, loaded and prepared on one loader
 * thread, captured and self-tested on every slot, then ready. Its memory goes when it retires; its name, its
 * index and its metrics stay, so that it is known as retired, until another version needs the place. One that
 * a device error kept from getting ready is loaded again by itself, MODEL_RETRIES_MAX times, each pause twice
 * as long as the one before: 5 s to 160 s. Loop thread only, except for the loader.
 */
#ifndef CKKSD_MODELS_H
#define CKKSD_MODELS_H

#include "daemon/slots.h"
#include "kernels/program/workload.h"
#include "proto/package.h"

#define MODEL_NAME_MAX      64u
#define MODEL_FILE          "model.ckm"
#define MODEL_RETRIES_MAX   6u
#define MODEL_CAPTURE_LIMIT (3600ull * 1000000000ull) /* silence allowed while a model is captured */

struct server;

typedef enum model_state {
    MODEL_LOADING,
    MODEL_CAPTURING,
    MODEL_READY,
    MODEL_UNAVAILABLE,
    MODEL_RETIRING,
    MODEL_RETIRED,
} model_state;
const char *model_state_name(model_state state);

struct model;

/* One slot's part in bringing a model up or down. */
typedef struct model_slot_job {
    slot_job job;
    struct model *model;
} model_slot_job;

typedef struct model {
    list_node link;      /* in models.all */
    list_node load_link; /* in the loader's queue */
    struct server *server;
    uint32_t index;
    char name[MODEL_NAME_MAX + 1], version[MODEL_NAME_MAX + 1];
    model_state state;
    uint64_t retired_ns;
    bool is_unwanted;  /* its file went while it was on its way to READY: it retires there */
    bool comes_back;   /* its file came back while it was RETIRING: it is loaded again after that */
    ckks_error error;  /* why it is UNAVAILABLE */
    uint32_t retries;  /* made by itself since it was asked for or was READY */
    uint64_t retry_ns; /* when the next one comes; 0: none */
    package *package;
    workload *workload;
    graph_program_config program; /* input signatures included */
    workload_memory memory;
    uint64_t cost_ns;             /* of one replay, smoothed */
    _Atomic uint64_t reply_bytes; /* of the last reply; slots' threads */
    metrics_model *metrics;
    list_node inferences; /* those that use it */
    loop_event loaded;
    /* the loader's, until the loop hears of `loaded` and takes them over */
    package *load_package;
    workload *load_workload;
    ckks_status load_rc;
    ckks_error load_err;
    model_slot_job slot_jobs[METRICS_SLOTS_MAX];
    uint32_t slot_jobs_pending; /* posted to slots and not returned */
} model;

typedef struct model_registry {
    list_node all;  /* by name, then version */
    uint32_t count; /* indices given out */
    uint32_t load_pending;
    pthread_t loader;
    bool has_loader;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t wake;
    list_node load_queue;
    bool is_stopping;
} model_registry;

ckks_status models_init(model_registry *m, ckks_error *err);
/* models_stop waits at most `limit_ns` for the loader, which ends after the model in hand; false if it goes
 * on. models_fini frees all models, whose programs must be closed. Accept zeroed. */
bool models_stop(model_registry *m, uint64_t limit_ns);
void models_fini(model_registry *m);

/* models_scan looks through the repository and queues what is new; retires what is gone if `retire_missing`.
 * Bad names are skipped with a warning. CKKS_IO if the folder cannot be read. */
ckks_status models_scan(struct server *s, bool retire_missing, ckks_error *err);
/* models_load queues one version (or loads again one that is UNAVAILABLE or RETIRED). CKKS_NOT_FOUND,
 * CKKS_ALREADY_EXISTS, CKKS_RESOURCE_EXHAUSTED. */
ckks_status models_load(struct server *s, const char *name, const char *version, ckks_error *err);
/* models_retire: no new requests; memory goes when the last one is done. */
void models_retire(struct server *s, model *m);
/* What is left to do for a retiring model that no request uses. */
void models_retire_step(struct server *s, model *m);

/* models_find: version NULL or "" = the newest that is ready. CKKS_NOT_FOUND, CKKS_CONFIG_RETIRED, or, unless
 * `any_state`, CKKS_UNAVAILABLE with the reason. */
ckks_status models_find(struct server *s, model **out, const char *name, const char *version, bool any_state,
                        ckks_error *err);
/* models_tick loads again whatever had a device error and has paused long enough. */
void models_tick(struct server *s, uint64_t now_ns);
/* Once slots are there: captures every model that waits for it. */
void models_capture_all(struct server *s);
/* Is anything still on its way to ready? */
bool models_are_settled(const struct server *s);
/* model_is_expected to be served: it was not told to go. */
bool model_is_expected(const model *m);
/* model_slot_count: slots in service that have its program; 0 unless it is READY. */
uint32_t model_slot_count(const struct server *s, const model *m);
/* models_publish tells the metrics which models are served, and why the others are not. */
void models_publish(struct server *s);
uint64_t models_arena_bytes(const struct server *s);

#endif
