#include "daemon/loop.h"

#include "daemon/clock.h"
#include "kernels/base/relax.h"

/* Under a steady stream the queue is never empty: deadlines and the watchdog must get their turn all the
 * same. */
#define EVENTS_PER_WAKE 256u

static void on_wake(uv_async_t *handle) {
    loop_drain(handle->data);
}

ckks_status loop_init(loop *l, ckks_error *err) {
    int rc;
    list_init(&l->queue);
    l->is_closed = l->is_stopped = false;
    l->spin_ns = l->awake_until_ns = 0;
    if ((rc = uv_loop_init(&l->uv)) != 0)
        return ckks_error_set(err, CKKS_IO, "", "event loop: %s", uv_strerror(rc));
    l->uv.data = l;
    if ((rc = uv_async_init(&l->uv, &l->wake, on_wake)) != 0) {
        uv_loop_close(&l->uv);
        return ckks_error_set(err, CKKS_IO, "", "event loop: %s", uv_strerror(rc));
    }
    l->wake.data = l;
    pthread_mutex_init(&l->lock, NULL);
    l->is_initialised = true;
    return CKKS_OK;
}

void loop_post(loop *l, loop_event *event) {
    pthread_mutex_lock(&l->lock);
    if (!l->is_closed && !event->is_queued) {
        event->is_queued = true;
        list_append(&l->queue, &event->link);
        uv_async_send(&l->wake);
    }
    pthread_mutex_unlock(&l->lock);
}

void loop_drain(loop *l) {
    for (uint32_t i = 0; i < EVENTS_PER_WAKE; i++) {
        loop_event *event = NULL;
        pthread_mutex_lock(&l->lock);
        if (!list_is_empty(&l->queue)) {
            event = LIST_ENTRY(l->queue.next, loop_event, link);
            list_remove(&event->link);
            event->is_queued = false;
        }
        pthread_mutex_unlock(&l->lock);
        if (!event) return;
        event->run(event);
        loop_touch(l);
    }
    uv_async_send(&l->wake); /* there may be more: after the timers had their turn */
}

void loop_touch(loop *l) {
    if (l->spin_ns) l->awake_until_ns = clock_now_ns() + l->spin_ns;
}

void loop_run(loop *l) {
    while (!l->is_stopped) {
        if (!uv_run(&l->uv, l->spin_ns ? UV_RUN_ONCE : UV_RUN_DEFAULT)) return;
        while (!l->is_stopped && clock_now_ns() < l->awake_until_ns) {
            (void)uv_run(&l->uv, UV_RUN_NOWAIT);
            cpu_relax();
        }
    }
}
void loop_stop(loop *l) {
    l->is_stopped = true;
    uv_stop(&l->uv);
}
void loop_close_queue(loop *l) {
    pthread_mutex_lock(&l->lock);
    l->is_closed = true;
    while (!list_is_empty(&l->queue)) {
        loop_event *event = LIST_ENTRY(l->queue.next, loop_event, link);
        list_remove(&event->link);
        event->is_queued = false;
    }
    pthread_mutex_unlock(&l->lock);
}

static void close_handle(uv_handle_t *handle, void *context) {
    (void)context;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

void loop_fini(loop *l) {
    if (!l->is_initialised) return;
    loop_close_queue(l);
    uv_walk(&l->uv, close_handle, NULL);
    (void)uv_run(&l->uv, UV_RUN_DEFAULT);
    const int rc = uv_loop_close(&l->uv);
    CKKS_ASSERT(rc == 0);
    pthread_mutex_destroy(&l->lock);
    l->is_initialised = false;
}

static void pool_work(uv_work_t *uv) {
    loop_work *job = LIST_ENTRY(uv, loop_work, uv);
    handover_acquire(job);
    job->work(job);
    handover_release(job);
}
static void pool_done(uv_work_t *uv, int status) {
    (void)status;
    loop_work *job = LIST_ENTRY(uv, loop_work, uv);
    handover_acquire(job);
    job->done(job);
}
void loop_submit(loop *l, loop_work *job) {
    handover_release(job);
    const int rc = uv_queue_work(&l->uv, &job->uv, pool_work, pool_done);
    CKKS_ASSERT(rc == 0); /* fails only without a work function */
}
