#include "daemon/server.h"

#include "daemon/clock.h"
#include "daemon/fault.h"
#include "daemon/inference.h"
#include "daemon/logging.h"
#include "daemon/notify.h"
#include "daemon/program.h"
#include "daemon/request.h"
#include "daemon/server_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- small questions ---- */

bool server_is_ready(const server *s) {
    return s->phase == SERVER_READY && slots_in_service(&s->slots) > 0;
}

const char *server_why_not_ready(const server *s) {
    if (server_is_ready(s)) return "";
    if (s->phase == SERVER_STARTING) return "the server is still loading its models";
    if (s->phase == SERVER_READY) return "no slot is in service: device errors, the server's log says which";
    return "the server is shutting down";
}

uint32_t server_slot_count(const server *s) {
    if (s->slots.count) return s->slots.count;
    if (s->config.slot_count) return s->config.slot_count;
    return device_get_kind(s->device) == DEVICE_CPU ? 1 : 2;
}

bool server_is_admin(const server *s, uint64_t uid) {
    if (uid == 0 || uid == geteuid()) return true;
    for (uint32_t i = 0; i < s->config.admin_uids.count; i++)
        if (strtoull(s->config.admin_uids.item[i], NULL, 10) == uid) return true;
    return false;
}

uint32_t server_retry_hint_ms(const server *s) {
    uint64_t cost = 0, models = 0;
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (m->cost_ns) cost += m->cost_ns, models++;
    }
    const uint64_t waiting = scheduler_count(&s->scheduler, SCHEDULER_QUEUED) + 1u;
    const uint64_t each = models ? cost / models : 20 * NS_PER_MS;
    const uint64_t ms = waiting * each / (s->slots.count ? s->slots.count : 1) / NS_PER_MS;
    return (uint32_t)(ms < 10 ? 10 : ms > 30000 ? 30000 : ms);
}

ckks_status server_accepts(server *s, const dispatch_method *method, ckks_error *err) {
    const bool is_work = method->scope != 0;
    if (is_work && s->phase >= SERVER_DRAINING)
        return ckks_error_set(err, CKKS_DRAINING, "", "the server is shutting down");
    return CKKS_OK;
}

void server_request_finished(server *s) {
    s->last_finish_ns = clock_now_ns();
}

/* ---- readiness ---- */

static uint32_t count_slots(const server *s, slot_state state) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->slots.count; i++) count += s->slots.slots[i].state == state;
    return count;
}

static uint32_t count_models(const server *s, model_state state) {
    uint32_t count = 0;
    LIST_EACH(link, &s->models.all) count += LIST_ENTRY(link, model, link)->state == state;
    return count;
}

/* For the service manager: the state in a line. */
static void describe(const server *s, char *text, size_t size) {
    const uint32_t ready = count_models(s, MODEL_READY), all = list_count(&s->models.all);
    if (server_is_ready(s))
        snprintf(text, size, "ready: %u of %u models, %u slots", ready, all, s->slots.count);
    else
        snprintf(text, size, "not ready: no slot is in service (%u of %u quarantined)",
                 count_slots(s, SLOT_QUARANTINED), s->slots.count);
}

/* Between the start and the drain: slots leave service and come back. */
static void check_interruption(server *s) {
    char status[96];
    const bool is_ready = server_is_ready(s);
    if (s->phase != SERVER_READY || is_ready == atomic_load(&daemon_metrics.is_ready)) return;
    atomic_store(&daemon_metrics.is_interrupted, !is_ready);
    atomic_store(&daemon_metrics.is_ready, is_ready);
    describe(s, status, sizeof status);
    log_write(is_ready ? LOG_LEVEL_NOTICE : LOG_LEVEL_ERROR, "event=%s message=\"%s\"",
              is_ready ? "ready_again" : "not_ready", status);
    notify_status("%s", status);
}

void server_check_ready(server *s) {
    char status[96];
    models_publish(s);
    check_interruption(s);
    if (s->phase != SERVER_STARTING || s->slots.count == 0 || !models_are_settled(s)) return;
    const uint32_t ready = count_models(s, MODEL_READY), all = list_count(&s->models.all);
    s->phase = SERVER_READY;
    atomic_store(&daemon_metrics.is_ready, server_is_ready(s));
    atomic_store(&daemon_metrics.is_interrupted, !server_is_ready(s));
    describe(s, status, sizeof status);
    log_write(ready == all && server_is_ready(s) ? LOG_LEVEL_NOTICE : LOG_LEVEL_WARNING,
              "event=ready models=%u models_unavailable=%u slots=%u in_service=%u", ready, all - ready,
              s->slots.count, slots_in_service(&s->slots));
    notify_ready(status);
    inference_pump(s);
}

static void fatal(server *s, const char *what) {
    log_write(LOG_LEVEL_ERROR, "event=fatal message=\"%.200s\"", what);
    s->exit_code = EXIT_FAILURE;
    server_drain(s, s->config.drain_timeout_ms);
}

void server_models_loaded(server *s) {
    ckks_error err = {0};
    if (s->slots.count || s->phase != SERVER_STARTING) {
        models_capture_all(s);
        return;
    }
    const uint32_t count = server_slot_count(s);
    if (s->config.arena_bytes == 0) s->config.arena_bytes = models_arena_bytes(s);
    if (slots_start(&s->slots, &s->loop, s->device, count, s->config.arena_bytes,
                    s->config.stall_timeout_ms * NS_PER_MS, &err) != CKKS_OK) {
        log_error(LOG_LEVEL_ERROR, "slots_failed", &err);
        fatal(s, "no slots");
        return;
    }
    if (!(s->recoveries = calloc(count, sizeof *s->recoveries))) {
        fatal(s, "out of memory");
        return;
    }
    for (uint32_t i = 0; i < count; i++) slot_set_state(&s->slots.slots[i], SLOT_IDLE);
    server_print_memory(s);
    notify_status("capturing models on %u slots", count);
    models_capture_all(s);
}

/* ---- a slot's device error ---- */

static void take_all_down(slot *where) {
    for (uint32_t i = 0; i < SLOT_MODELS_MAX; i++)
        if (where->programs[i]) {
            graph_program_destroy(where->programs[i]);
            where->programs[i] = NULL;
        }
}

/* Slot's thread: clear the streams, then every model again, self test included. */
static void run_recovery(slot_job *job) {
    server_recovery *mine = LIST_ENTRY(job, server_recovery, job);
    slot *where = job->slot;
    take_all_down(where);
    fault_recovery();
    job->rc = graph_slot_recover(where->graph, &job->err);
    for (uint32_t i = 0; i < mine->model_count && job->rc == CKKS_OK; i++) {
        slot_progress(where);
        fault_bring_back(mine->server->device, i);
        job->rc = program_bring_up(where, mine->models[i], (int32_t)mine->server->config.warmup, &job->err);
    }
    if (job->rc != CKKS_OK) take_all_down(where);
}

static void on_recovered(loop_event *event) {
    server_recovery *mine = LIST_ENTRY(event, server_recovery, job.done);
    server *s = mine->server;
    slot *where = mine->job.slot;
    slot_job_finished(&mine->job);
    for (uint32_t i = 0; i < mine->model_count; i++)
        if (mine->models[i]->workload) workload_self_test_end(mine->models[i]->workload);
    if (mine->job.rc != CKKS_OK) {
        log_error(LOG_LEVEL_ERROR, "slot_lost", &mine->job.err);
        slot_set_state(where, SLOT_LOST);
        server_check_ready(s);
        if (device_is_lost(s->device))
            fatal(s, "the device is lost: only a new process can use it again; the kernel's log (NVRM, Xid) "
                     "says what broke");
        else if (count_slots(s, SLOT_LOST) == s->slots.count)
            fatal(s, "every slot is lost");
        return;
    }
    for (uint32_t i = 0; i < mine->model_count; i++) {
        const model_state state = mine->models[i]->state;
        if (state == MODEL_READY || state == MODEL_CAPTURING)
            where->has_program[mine->models[i]->index] = true;
    }
    atomic_fetch_add(&daemon_metrics.slot_recoveries, 1);
    log_write(LOG_LEVEL_NOTICE, "event=slot_recovered slot=%u models=%u", where->index, mine->model_count);
    slot_set_state(where, SLOT_IDLE);
    metrics_slot_back(where->progress);
    server_check_ready(s);
    inference_pump(s);
}

void server_quarantine(server *s, slot *where, const char *why) {
    server_recovery *mine = &s->recoveries[where->index];
    char why_quoted[METRICS_CAUSE_SIZE];
    if (where->state == SLOT_QUARANTINED || where->state == SLOT_LOST) return;
    log_write(LOG_LEVEL_ERROR, "event=slot_quarantined slot=%u message=%s", where->index,
              log_quote(why_quoted, sizeof why_quoted, why));
    metrics_slot_left(where->progress, why_quoted);
    if (device_is_lost(s->device)) { /* all slots have this device, and only a new process gets it back */
        slot_set_state(where, SLOT_LOST);
        for (uint32_t i = 0; i < SLOT_MODELS_MAX; i++) where->has_program[i] = false;
        fatal(s, "the device is lost: only a new process can use it again; the kernel's log (NVRM, Xid) says "
                 "what broke");
        return;
    }
    slot_set_state(where, SLOT_QUARANTINED);
    mine->server = s;
    mine->model_count = 0;
    LIST_EACH(link, &s->models.all) {
        model *m = LIST_ENTRY(link, model, link);
        /* others may still be capturing what this slot had captured: it must not lack it when they are done
         */
        const bool is_wanted =
            m->state == MODEL_READY || (m->state == MODEL_CAPTURING && where->has_program[m->index]);
        where->has_program[m->index] = false;
        if (is_wanted) mine->models[mine->model_count++] = m;
    }
    mine->job.limit_ns = MODEL_CAPTURE_LIMIT;
    mine->job.run = run_recovery;
    mine->job.done.run = on_recovered;
    server_check_ready(s);
    slot_submit(where, &mine->job);
}

bool server_has_other_slot(const server *s, const slot *than) {
    for (uint32_t i = 0; i < s->slots.count; i++) {
        const slot *one = &s->slots.slots[i];
        if (one != than && slot_in_service(one)) return true;
    }
    return false;
}

/* ---- reload ---- */

typedef struct reload {
    loop_work work;
    server *server;
    config config;
    token_table tokens;
    ckks_error err;
} reload;

static void reload_run(loop_work *work) {
    reload *r = LIST_ENTRY(work, reload, work);
    if (config_load(&r->config, r->server->config_path, &r->err) == CKKS_OK)
        (void)token_table_load(&r->tokens, r->config.tokens, &r->err);
}

/* What may change while running; sockets, device, slots and folders need a restart. */
static void apply(server *s, const config *c) {
    config *now = &s->config;
    now->log_level = c->log_level;
    now->default_timeout_ms = c->default_timeout_ms, now->timeout_max_ms = c->timeout_max_ms;
    now->orphan_grace_ms = c->orphan_grace_ms;
    now->linger_ms = c->linger_ms, now->drain_timeout_ms = c->drain_timeout_ms;
    now->admin_uids = c->admin_uids;
    now->unused_days = c->unused_days;
    s->next_key_tick_ns = clock_now_ns(); /* tenants' times may have changed too */
    log_set_level((log_level)c->log_level);
    s->scheduler.items_max = now->requests_max; /* contexts were made for it */
    s->scheduler.tenant_items_max = now->tenant_requests_max = c->tenant_requests_max;
    s->scheduler.model_items_max = now->model_requests_max = c->model_requests_max;
    s->scheduler.bytes_max = now->bytes_max = c->bytes_max;
    s->dedupe.keep_ns = c->dedupe_s * NS_PER_S, s->dedupe.bytes_max = c->dedupe_bytes;
}

static void reload_done(loop_work *work) {
    reload *r = LIST_ENTRY(work, reload, work);
    server *s = r->server;
    char status[160];
    s->pool_jobs--;
    s->is_reloading = false;
    if (r->err.code == CKKS_OK) (void)tenants_replace(&s->tenants, &r->tokens, &r->err);
    if (r->err.code == CKKS_OK) {
        apply(s, &r->config);
        (void)models_scan(s, true, &r->err);
    }
    if (r->err.code == CKKS_OK)
        log_write(LOG_LEVEL_NOTICE, "event=reloaded tenants=%u", tenants_count(&s->tenants));
    else
        log_error(LOG_LEVEL_ERROR, "reload_refused",
                  &r->err); /* nothing, or all but the models, has changed */
    atomic_store(&daemon_metrics.tenants, tenants_count(&s->tenants));
    if (s->phase == SERVER_READY) {
        describe(s, status, sizeof status);
        snprintf(status + strlen(status), sizeof status - strlen(status), "%s",
                 r->err.code == CKKS_OK ? "" : "; the last reload was refused");
        notify_ready(status);
    }
    token_table_fini(&r->tokens);
    free(r);
    if (s->reloads_again) server_reload(s);
}

void server_reload(server *s) {
    reload *r;
    s->reloads_again = s->is_reloading;
    if (s->is_reloading || s->phase >= SERVER_LINGERING) return;
    if (!(r = calloc(1, sizeof *r))) {
        log_write(LOG_LEVEL_ERROR, "event=reload_refused message=\"out of memory\"");
        return;
    }
    s->is_reloading = true;
    s->pool_jobs++;
    r->server = s;
    r->work.work = reload_run;
    r->work.done = reload_done;
    if (s->phase == SERVER_READY) notify_reloading();
    loop_submit(&s->loop, &r->work);
}

/* ---- drain ---- */

/* Models on their way up are no reason to wait: nobody asked for them yet. */
static bool is_drained(const server *s) {
    return list_is_empty(&s->requests) && s->pool_jobs == 0 &&
           transport_count_state(&s->transport, CONTEXT_SENDING) == 0;
}

#define QUIET_NS (250 * NS_PER_MS) /* a reply that was handed over gets this long to leave */

/* Who waits is told, so that he asks another server and not this one again. What a slot or the pool has in
 * hand stays there. */
static void give_up(server *s) {
    ckks_error cause = {0};
    log_write(LOG_LEVEL_WARNING, "event=drain_timeout requests=%u", list_count(&s->requests));
    s->exit_code = EXIT_FAILURE;
    s->gave_up_ns = clock_now_ns();
    ckks_error_set(&cause, CKKS_DRAINING, "", "the server shuts down and cannot wait any longer");
    LIST_EACH_SAFE(link, &s->requests) {
        request *r = LIST_ENTRY(link, request, link);
        if (r->inference)
            inference_abandon(r->inference);
        else
            request_answer_error(r, &cause, 0);
    }
}

void server_drain_step(server *s) {
    const uint64_t now = clock_now_ns();
    const bool is_late = now - s->drain_started_ns >= s->drain_timeout_ns;
    const bool is_quiet = now - s->last_finish_ns >= QUIET_NS;
    if (is_late && !s->gave_up_ns && !is_drained(s)) {
        give_up(s);
        return;
    }
    const bool is_over = s->gave_up_ns ? now - s->gave_up_ns >= QUIET_NS : is_late;
    if (!is_over &&
        !(is_drained(s) && (is_quiet || transport_pipe_count((transport *)(uintptr_t)&s->transport) == 0)))
        return;
    s->phase = SERVER_STOPPING;
    loop_stop(&s->loop);
}

static void begin_refusing(server *s) {
    s->phase = SERVER_DRAINING;
    s->drain_started_ns = s->last_finish_ns = clock_now_ns();
    transport_refuse_pipes(&s->transport);
    log_write(LOG_LEVEL_NOTICE, "event=draining requests=%u", list_count(&s->requests));
    server_drain_step(s);
}

static void on_linger(uv_timer_t *timer) {
    begin_refusing(timer->data);
}

void server_hurry(server *s) {
    s->drain_timeout_ns = 0;
    if (s->phase != SERVER_LINGERING) return; /* the tick sees it */
    uv_timer_stop(&s->linger);
    begin_refusing(s);
}

void server_drain(server *s, uint64_t timeout_ms) {
    if (s->phase >= SERVER_LINGERING) return;
    const bool was_ready = s->phase == SERVER_READY;
    s->phase = SERVER_LINGERING;
    s->drain_timeout_ns = timeout_ms * NS_PER_MS;
    atomic_store(&daemon_metrics.is_draining, true);
    atomic_store(&daemon_metrics.is_ready, false);
    notify_stopping("finishing the last requests");
    log_write(LOG_LEVEL_NOTICE, "event=stopping linger_ms=%llu", (unsigned long long)s->config.linger_ms);
    if (was_ready && s->config.linger_ms)
        uv_timer_start(&s->linger, on_linger, s->config.linger_ms, 0);
    else
        begin_refusing(s);
}
