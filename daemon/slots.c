#include "daemon/slots.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "kernels/base/log.h"
#include "kernels/base/relax.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IDLE_STAMP_MS 100u

void slot_progress(slot *s) {
    atomic_store_explicit(&s->progress->progress_ns, clock_now_ns(), memory_order_relaxed);
}

void slot_set_state(slot *s, slot_state state) {
    if (state == SLOT_IDLE && s->pending) state = SLOT_BUSY;
    s->state = state;
    atomic_store(&s->progress->state, (uint32_t)state);
}

bool slot_in_service(const slot *s) {
    return s->state == SLOT_IDLE || s->state == SLOT_BUSY;
}

uint32_t slots_in_service(const slot_group *s) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++) count += slot_in_service(&s->slots[i]);
    return count;
}

bool slot_is_free(const slot *s) {
    return s->state == SLOT_IDLE && s->pending == 0;
}

void slot_job_finished(slot_job *job) {
    slot *s = job->slot;
    s->pending--;
    if (s->state == SLOT_BUSY) slot_set_state(s, SLOT_IDLE);
}

/* Jobs mostly follow one another: going to sleep and being woken takes longer than their ways. */
static void wait_awake(const slot *s) {
    if (!s->spin_ns) return;
    const uint64_t until_ns = clock_now_ns() + s->spin_ns;
    while (!atomic_load_explicit(&s->job_count, memory_order_relaxed) && clock_now_ns() < until_ns)
        cpu_relax();
}

/* Waits for a job, stamping progress while idle. NULL: stop. */
static slot_job *next_job(slot *s) {
    slot_job *job = NULL;
    wait_awake(s);
    pthread_mutex_lock(&s->lock);
    while (list_is_empty(&s->jobs) && !s->is_stopping) {
        struct timespec until;
        if (s->is_roused) {
            s->is_roused = false;
            pthread_mutex_unlock(&s->lock);
            wait_awake(s);
            pthread_mutex_lock(&s->lock);
            continue;
        }
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(IDLE_STAMP_MS * NS_PER_MS);
        if (until.tv_nsec >= (long)NS_PER_S) until.tv_nsec -= (long)NS_PER_S, until.tv_sec++;
        pthread_cond_timedwait(&s->wake, &s->lock, &until);
        pthread_mutex_unlock(&s->lock);
        fault_hang(s->index);
        slot_progress(s);
        pthread_mutex_lock(&s->lock);
    }
    if (!list_is_empty(&s->jobs)) {
        job = LIST_ENTRY(s->jobs.next, slot_job, link);
        list_remove(&job->link);
        atomic_fetch_sub_explicit(&s->job_count, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&s->lock);
    return job;
}

static void *slot_main(void *argument) {
    slot *s = argument;
    slot_job *job;
    while ((job = next_job(s)) != NULL) {
        const uint64_t limit = job->limit_ns ? job->limit_ns : s->stall_ns;
        atomic_store(&s->progress->limit_ns, limit);
        slot_progress(s);
        job->run(job);
        slot_progress(s);
        atomic_store(&s->progress->limit_ns, s->stall_ns);
        loop_post(s->loop, &job->done);
    }
    return NULL;
}

static ckks_status slot_start(slot *s, device *dev, uint64_t arena_bytes, ckks_error *err) {
    ckks_status rc;
    char name[16];
    pthread_condattr_t attributes;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    list_init(&s->jobs);
    if ((rc = graph_slot_create(&s->graph, dev, arena_bytes, err)) != CKKS_OK) return rc;
    slot_progress(s);
    metrics_slot_back(s->progress);
    atomic_store(&s->progress->limit_ns, s->stall_ns);
    slot_set_state(s, SLOT_STARTING);
    if (pthread_create(&s->thread, NULL, slot_main, s) != 0)
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "slots", "cannot start a thread");
    s->is_running = true;
    snprintf(name, sizeof name, "slot-%u", s->index);
    pthread_setname_np(s->thread, name);
    return CKKS_OK;
}

ckks_status slots_start(slot_group *s, loop *l, device *dev, uint32_t count, uint64_t arena_bytes,
                        uint64_t stall_ns, ckks_error *err) {
    ckks_status rc = CKKS_OK;
    if (!(s->slots = calloc(count, sizeof *s->slots)))
        return ckks_error_set(err, CKKS_RESOURCE_EXHAUSTED, "slots", "out of memory");
    for (uint32_t i = 0; i < count && rc == CKKS_OK; i++) {
        slot *one = &s->slots[i];
        one->index = i, one->loop = l, one->stall_ns = stall_ns, one->spin_ns = s->spin_ns;
        one->progress = &daemon_metrics.slots[i];
        s->count = i + 1;
        rc = slot_start(one, dev, arena_bytes, err);
    }
    if (rc != CKKS_OK)
        slots_stop(s, 10 * NS_PER_S);
    else
        atomic_store(&daemon_metrics.slot_count, count);
    return rc;
}

void slot_submit(slot *s, slot_job *job) {
    job->slot = s;
    job->rc = CKKS_OK;
    memset(&job->err, 0, sizeof job->err);
    s->pending++;
    if (s->state == SLOT_IDLE) slot_set_state(s, SLOT_BUSY);
    pthread_mutex_lock(&s->lock);
    list_append(&s->jobs, &job->link);
    atomic_fetch_add_explicit(&s->job_count, 1, memory_order_relaxed);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

void slot_rouse(slot *s) {
    if (!s->spin_ns) return;
    pthread_mutex_lock(&s->lock);
    s->is_roused = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}

bool slots_stop(slot_group *s, uint64_t limit_ns) {
    bool all_ended = true;
    struct timespec until;
    if (!s->slots) return true;
    atomic_store(&daemon_metrics.slot_count, 0);
    for (uint32_t i = 0; i < s->count; i++) {
        pthread_mutex_lock(&s->slots[i].lock);
        s->slots[i].is_stopping = true;
        pthread_cond_signal(&s->slots[i].wake);
        pthread_mutex_unlock(&s->slots[i].lock);
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(limit_ns / NS_PER_S);
    until.tv_nsec += (long)(limit_ns % NS_PER_S);
    if (until.tv_nsec >= (long)NS_PER_S) until.tv_nsec -= (long)NS_PER_S, until.tv_sec++;
    for (uint32_t i = 0; i < s->count; i++) {
        if (!s->slots[i].is_running) continue;
        if (pthread_timedjoin_np(s->slots[i].thread, NULL, &until) == 0)
            s->slots[i].is_running = false;
        else
            all_ended = false;
    }
    if (!all_ended) return false;
    for (uint32_t i = 0; i < s->count; i++) {
        graph_slot_destroy(s->slots[i].graph);
        pthread_mutex_destroy(&s->slots[i].lock);
        pthread_cond_destroy(&s->slots[i].wake);
    }
    free(s->slots);
    *s = (slot_group){0};
    return true;
}
