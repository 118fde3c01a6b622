/*
 * Worker slots: one thread, one arena and one compute stream each. A slot runs jobs one after another; what a
 * job does is its own affair (program.h). The loop thread owns the slot's state; the slot's thread stamps its
 * progress, which is what liveness and the watchdog look at.
 */
#ifndef CKKSD_SLOTS_H
#define CKKSD_SLOTS_H

#include "daemon/config.h"
#include "daemon/loop.h"
#include "daemon/metrics.h"
#include "kernels/program/graph_program.h"

#define SLOT_MODELS_MAX METRICS_MODELS_MAX

struct slot;

/* Embedded in what it is about. `run` is called on the slot's thread, then `done` is posted to the loop,
 * whose handler calls slot_job_finished first. */
typedef struct slot_job {
    list_node link;
    loop_event done;
    struct slot *slot;
    void (*run)(struct slot_job *job);
    uint64_t limit_ns; /* how long it may stay silent; 0 = the slot's stall time-out */
    ckks_status rc;
    ckks_error err;
} slot_job;

typedef struct slot {
    uint32_t index;
    slot_state state; /* loop thread; IDLE and BUSY follow from `pending` */
    uint32_t pending; /* loop thread: jobs handed over and not finished */
    graph_slot *graph;
    graph_program *programs[SLOT_MODELS_MAX]; /* by model index; the slot's thread */
    bool has_program[SLOT_MODELS_MAX];        /* loop thread: captured, tested, usable */
    metrics_slot *progress;
    loop *loop;
    uint64_t stall_ns, spin_ns;
    pthread_t thread;
    _Atomic uint32_t job_count; /* in `jobs`: what the thread looks at while it stays awake */
    pthread_mutex_t lock;       /* guards the rest */
    pthread_cond_t wake;
    list_node jobs;
    bool is_roused;
    bool is_stopping;
    bool is_running;
} slot;

typedef struct slot_group {
    slot *slots;
    uint32_t count;
    uint64_t spin_ns; /* set before slots_start: a slot waits awake so long for its next job */
} slot_group;

/* slots_start creates arenas of `arena_bytes` and threads. On failure nothing is left. */
ckks_status slots_start(slot_group *s, loop *l, device *dev, uint32_t count, uint64_t arena_bytes,
                        uint64_t stall_ns, ckks_error *err);
/* slots_stop asks every thread to end after its current job and waits at most `limit_ns`; false if one hangs
 * (its memory is then left alone). Programs must have been closed by jobs before. Accepts zeroed. */
bool slots_stop(slot_group *s, uint64_t limit_ns);

/* slot_submit hands a job over; it runs after those handed over before. Loop thread. */
void slot_submit(slot *s, slot_job *job);
void slot_job_finished(slot_job *job);
/* slot_rouse: a job is likely to come within `spin_ns`; the thread wakes up and waits for it awake. Nothing
 * if spin_ns is 0. Loop thread. */
void slot_rouse(slot *s);
/* slot_in_service: it runs jobs, or could. Loop thread. */
bool slot_in_service(const slot *s);
/* slots_in_service counts them. Loop thread. */
uint32_t slots_in_service(const slot_group *s);
/* slot_is_free: in service, with nothing to do. Loop thread. */
bool slot_is_free(const slot *s);
/* slot_set_state also publishes it. Loop thread. */
void slot_set_state(slot *s, slot_state state);
/* slot_progress: the slot's thread says that it got on. */
void slot_progress(slot *s);

#endif
