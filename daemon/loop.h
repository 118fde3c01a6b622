/*
 * The loop thread: every decision is made here, nothing here blocks. Other threads hand over events; wake-ups
 * coalesce, so each wake drains the queue; after a bounded number of events timers get their turn.
 */
#ifndef CKKSD_LOOP_H
#define CKKSD_LOOP_H

#include "daemon/list.h"
#include "kernels/base/status.h"

#include <pthread.h>
#include <uv.h>

/* Embedded in what it is about; owned by the queue until `run` is called on
 * the loop thread. Zero-initialise, set run. Posting an event that waits already does nothing. */
typedef struct loop_event {
    list_node link;
    bool is_queued;
    void (*run)(struct loop_event *event);
} loop_event;

/*
 * Hand-overs inside nng and libuv are ordered by locks that ThreadSanitizer cannot see, since those libraries
 * are not built with it. These two tell it: what came before handover_release(p) on one thread comes before
 * what follows handover_acquire(p) on another. In other builds they are nothing.
 */
#if defined(__SANITIZE_THREAD__)
#define HANDOVER_IS_ANNOTATED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HANDOVER_IS_ANNOTATED 1
#endif
#endif
#ifdef HANDOVER_IS_ANNOTATED
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define handover_acquire(address) __tsan_acquire(address)
#define handover_release(address) __tsan_release(address)
#else
#define handover_acquire(address) ((void)(address))
#define handover_release(address) ((void)(address))
#endif

typedef struct loop {
    uv_loop_t uv;
    uv_async_t wake;
    uint64_t spin_ns;        /* how long it stays awake after something happened; 0: it sleeps at once */
    uint64_t awake_until_ns; /* loop thread */
    bool is_stopped;
    pthread_mutex_t lock; /* guards the rest */
    list_node queue;
    bool is_closed;
    bool is_initialised;
} loop;

ckks_status loop_init(loop *l, ckks_error *err);
/* loop_post: any thread; does not block. After loop_close_queue events are dropped. */
void loop_post(loop *l, loop_event *event);
/* loop_touch: something happened that more is likely to follow soon: stay awake for `spin_ns` (loop_init sets
 * 0). An awake loop looks at its sockets and its queue without sleeping in between, which takes the core and
 * spares a wake-up, 10 to 50 us. Loop thread. */
void loop_touch(loop *l);
/* loop_run returns after loop_stop (loop thread). Events queued at the time of the stop stay queued. */
void loop_run(loop *l);
void loop_stop(loop *l);
/* loop_drain runs events, a bounded number a wake so that timers get their turn; loop_close_queue: no later
 * event runs. Loop thread. */
void loop_drain(loop *l);
void loop_close_queue(loop *l);
/* loop_fini closes all handles that are left and frees the loop. Accepts zeroed. */
void loop_fini(loop *l);

/* loop_work runs `work` on the bounded pool and then `done` on the loop thread. Loop thread only. */
typedef struct loop_work {
    uv_work_t uv;
    void (*work)(struct loop_work *job);
    void (*done)(struct loop_work *job);
} loop_work;
void loop_submit(loop *l, loop_work *job);

#endif
