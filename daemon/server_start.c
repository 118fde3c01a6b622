/* Coming up and going down, each in one order. */
#include "daemon/clock.h"
#include "daemon/inference.h"
#include "daemon/logging.h"
#include "daemon/notify.h"
#include "daemon/ops.h"
#include "daemon/program.h"
#include "daemon/request.h"
#include "daemon/server_internal.h"
#include "proto/local_memory.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TICK_MS           100u
#define KEY_TICK_NS       (60 * NS_PER_S)
#define SPARE_CONTEXTS    16u /* so that "queue full" is answered at once */
#define STOP_LIMIT_NS     (5 * NS_PER_S)
#define START_EXTENSION_S 120u
#define STOP_EXTENSION_S  30u /* more than server_stop takes after the last tick */
#define ROUSE_BYTES_MIN   4096u
#define BLOCK_BYTES       (1ull << 20)
#define SPIN_CORES_MIN    8u
#define SPIN_US           200u

#define DESCRIPTORS_SPARE                                                                                    \
    256u /* files, listeners, operators' connections, and those that are turned away                         \
          */

/* ---- budget ---- */

static void line(const char *what, uint64_t bytes) {
    log_write(LOG_LEVEL_NOTICE, "event=memory_budget what=\"%s\" mib=%.1f", what, (double)bytes / 1048576.0);
}

void server_print_memory(const server *s) {
    const config *c = &s->config;
    device_memory_account account;
    uint64_t weights = 0, programs = 0, staging = 0;
    const uint64_t pipes = c->pipes_max, contexts = c->requests_max + SPARE_CONTEXTS;
    device_memory(s->device, &account);
    LIST_EACH(link, &s->models.all) {
        const model *m = LIST_ENTRY(link, model, link);
        if (m->state != MODEL_CAPTURING && m->state != MODEL_READY) continue;
        weights += m->memory.weights_bytes;
        programs += m->memory.program_bytes;
        staging += m->memory.staging_bytes;
    }
    const uint64_t arenas = s->slots.count * c->arena_bytes;
    const uint64_t kept = s->slots.count * programs;
    line("device: weights", weights);
    line("device: slot arenas", arenas);
    line("device: programs of all slots", kept);
    line("device: key sets (resident_bytes)", c->resident_bytes);
    line("device: total", weights + arenas + kept + c->resident_bytes);
    line("device: has", account.bytes_max);
    line("host: staging", s->slots.count * staging);
    line("host: blocks that requests arrive in", s->transport.block_count * s->transport.block_bytes);
    line("host: lent to local clients", 2 * (uint64_t)c->local_memory_peers * LOCAL_MEMORY_BYTES);
    line("host: requests (bytes_max)", c->bytes_max);
    line("host: messages at most", (pipes + contexts) * c->bulk_message_bytes);
    line("host: replies kept (dedupe_bytes)", c->dedupe_bytes);
    if (account.bytes_max && weights + arenas + kept > account.bytes_max)
        log_write(LOG_LEVEL_WARNING,
                  "event=memory_budget message=\"slots and weights alone are over what the device has\"");
}

/* ---- timers and signals ---- */

static void publish(server *s) {
    device_memory_account account;
    transport_pipe_counts pipes;
    device_memory(s->device, &account);
    for (uint32_t i = 0; i < MEMORY_PURPOSE_COUNT; i++)
        atomic_store(&daemon_metrics.memory[i], account.bytes_by_purpose[i]);
    atomic_store(&daemon_metrics.memory_max, account.bytes_max);
    atomic_store(&daemon_metrics.queued, scheduler_count(&s->scheduler, SCHEDULER_QUEUED) +
                                             scheduler_count(&s->scheduler, SCHEDULER_HELD));
    atomic_store(&daemon_metrics.running, scheduler_count(&s->scheduler, SCHEDULER_RUNNING));
    atomic_store(&daemon_metrics.queued_bytes, scheduler_bytes(&s->scheduler));
    atomic_store(&daemon_metrics.dedupe_bytes, s->dedupe.bytes);
    transport_count_pipes(&s->transport, &pipes);
    atomic_store(&daemon_metrics.pipes, pipes.open);
    atomic_store(&daemon_metrics.pipes_unauthenticated, pipes.unauthenticated);
    atomic_store(&daemon_metrics.pipes_refused, pipes.refused);
    atomic_store(&daemon_metrics.pipes_displaced, pipes.displaced);
    atomic_store(&daemon_metrics.pipes_expired, pipes.expired);
    keys_publish_metrics(s);
    models_publish(s);
}

static void on_tick(uv_timer_t *timer) {
    server *s = timer->data;
    const uint64_t now = clock_now_ns();
    publish(s);
    notify_flush();
    dedupe_expire(&s->dedupe, now);
    if (s->phase == SERVER_STARTING) notify_extend(START_EXTENSION_S);
    if (s->phase >= SERVER_LINGERING) notify_extend(STOP_EXTENSION_S);
    if (s->phase >= SERVER_DRAINING) {
        server_drain_step(s);
        return;
    }
    health_tick(s, now);
    models_tick(s, now);
    if (now >= s->next_key_tick_ns) {
        s->next_key_tick_ns = now + KEY_TICK_NS;
        keys_tick(s);
    }
}

/* Fed by the slots' progress and nothing else; this timer also shows that the loop itself turns. */
static void on_watchdog(uv_timer_t *timer) {
    uint32_t stalled = 0;
    (void)timer;
    if (metrics_is_live(clock_now_ns(), &stalled))
        notify_watchdog();
    else
        log_write(LOG_LEVEL_ERROR, "event=slot_stalled slot=%u", stalled);
}

static void on_signal(uv_signal_t *handle, int number) {
    server *s = handle->data;
    if (number == SIGHUP)
        server_reload(s);
    else if (s->phase >= SERVER_LINGERING) /* asked twice: do not wait any longer */
        server_hurry(s);
    else
        server_drain(s, s->config.drain_timeout_ms);
}

static ckks_status start_timers(server *s, ckks_error *err) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    const uint64_t watchdog_ms = notify_watchdog_interval_ms();
    for (int i = 0; i < 3; i++) {
        int n = uv_signal_init(&s->loop.uv, &s->signals[i]);
        s->signals[i].data = s;
        if (n == 0) n = uv_signal_start(&s->signals[i], on_signal, numbers[i]);
        if (n != 0) return ckks_error_set(err, CKKS_IO, "", "signals: %s", uv_strerror(n));
    }
    uv_timer_init(&s->loop.uv, &s->tick);
    uv_timer_init(&s->loop.uv, &s->watchdog);
    uv_timer_init(&s->loop.uv, &s->linger);
    s->tick.data = s->watchdog.data = s->linger.data = s;
    uv_timer_start(&s->tick, on_tick, TICK_MS, TICK_MS);
    if (watchdog_ms) uv_timer_start(&s->watchdog, on_watchdog, 0, watchdog_ms);
    return CKKS_OK;
}

/* ---- up ---- */

static void on_message(void *data, transport_context *context, const transport_body *body) {
    request_begin(data, context, body);
}
/* While an inference request arrives, a slot for it wakes up. */
static void on_coming(void *data, transport_kind kind, uint64_t bytes) {
    server *s = data;
    if (kind != TRANSPORT_BULK || bytes < ROUSE_BYTES_MIN) return;
    for (uint32_t i = 0; i < s->slots.count; i++)
        if (slot_is_free(&s->slots.slots[i])) {
            slot_rouse(&s->slots.slots[i]);
            return;
        }
}
static void on_lost(void *data, transport_context *context) {
    (void)data;
    request_lost(context);
}

/* Not the cores that there are: a container or a service may have fewer. */
uint32_t server_cores(void) {
    cpu_set_t set;
    const long count =
        sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return count > 1 ? (uint32_t)count : 1;
}

bool server_describe_slots(const config *c, char *text, size_t size) {
    const uint32_t cores = server_cores();
    if (c->slot_count <= cores) return false;
    snprintf(text, size,
             "%u slots on %u core%s: requests would take turns on a core, each with memory of its own, which "
             "costs an eighth of the throughput: count = %u in [slots]",
             c->slot_count, cores, cores == 1 ? "" : "s", cores);
    return true;
}

static ckks_status open_device(server *s, ckks_error *err) {
    const config *c = &s->config;
    const bool is_default = c->device_selector[0] == 0;
    const uint32_t slots_wanted = c->slot_count ? c->slot_count : 1;
    const uint32_t share = server_cores() / slots_wanted;
    const uint32_t threads = c->device_threads ? c->device_threads : share ? share : 1;
    char text[256];
    const device_config wanted = {.kind = (device_kind)c->device_kind,
                                  .selector = is_default ? NULL : c->device_selector,
                                  .threads = threads,
                                  .bytes_max = c->device_memory_bytes};
    const ckks_status rc = device_open(&s->device, &wanted, err);
    if (rc == CKKS_OK)
        log_write(LOG_LEVEL_NOTICE, "event=device device=\"%s\" id=%s why=\"%s\"", device_describe(s->device),
                  device_hardware_id(s->device)[0] ? device_hardware_id(s->device) : "-",
                  device_reason(s->device));
    if (rc == CKKS_OK && device_get_kind(s->device) == DEVICE_CPU &&
        server_describe_slots(c, text, sizeof text))
        log_write(LOG_LEVEL_WARNING, "event=slots_over_cores message=\"%s\"", text);
    return rc;
}

/* Waiting awake pays where cores are left over: a GPU evaluates, and the threads that wait are few. */
static void set_spin(server *s) {
    uint64_t us = s->config.spin_us;
    if (us == CONFIG_AUTO)
        us = device_get_kind(s->device) != DEVICE_CPU && server_cores() >= SPIN_CORES_MIN ? SPIN_US : 0;
    s->loop.spin_ns = s->slots.spin_ns = us * 1000;
}

/* Local requests arrive where the device copies from: as many as run, and as many again that wait. */
static ckks_status lend_blocks(server *s, ckks_error *err) {
    uint32_t count = 2 * server_slot_count(s);
    if (count > TRANSPORT_BLOCKS_MAX) count = TRANSPORT_BLOCKS_MAX;
    const ckks_status rc = device_allocate_host(s->device, &s->blocks, (uint64_t)count * BLOCK_BYTES, err);
    if (rc == CKKS_OK) transport_lend_blocks(&s->transport, s->blocks, BLOCK_BYTES, count);
    return rc;
}

/* A connection that the daemon has no descriptor for can be neither served nor told so. */
static void raise_descriptor_limit(const config *c) {
    struct rlimit limit;
    const rlim_t wanted = (rlim_t)c->pipes_max + DESCRIPTORS_SPARE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        log_write(
            LOG_LEVEL_WARNING,
            "event=descriptors limit=%llu wanted=%llu message=\"pipes_max may not be reached: raise the "
            "limit (ulimit -n, LimitNOFILE=)\"",
            (unsigned long long)limit.rlim_cur, (unsigned long long)wanted);
}

static void init_parts(server *s) {
    const config *c = &s->config;
    list_init(&s->requests);
    tenants_init(&s->tenants);
    scheduler_init(&s->scheduler);
    s->scheduler.items_max = c->requests_max, s->scheduler.bytes_max = c->bytes_max;
    s->scheduler.tenant_items_max = c->tenant_requests_max;
    s->scheduler.model_items_max = c->model_requests_max;
    dispatch_init();
    s->last_finish_ns = clock_now_ns();
}

ckks_status server_start(server *s, ckks_error *err) {
    ckks_status rc;
    token_table tokens = {0};
    const transport_callbacks callbacks = {
        .message = on_message, .lost = on_lost, .coming = on_coming, .data = s};
    init_parts(s);
    raise_descriptor_limit(&s->config);
    if ((rc = dedupe_init(&s->dedupe, s->config.dedupe_s * NS_PER_S, s->config.dedupe_bytes, err)) != CKKS_OK)
        goto out;
    if ((rc = token_table_load(&tokens, s->config.tokens, err)) != CKKS_OK) goto out;
    if ((rc = tenants_replace(&s->tenants, &tokens, err)) != CKKS_OK) goto out;
    atomic_store(&daemon_metrics.tenants, tenants_count(&s->tenants));
    atomic_store(&daemon_metrics.start_unix_s, clock_unix_s());
    if ((rc = loop_init(&s->loop, err)) != CKKS_OK) goto out;
    if ((rc = open_device(s, err)) != CKKS_OK) goto out;
    set_spin(s);
    health_start(s);
    if ((rc = keys_open(s, err)) != CKKS_OK) goto out;
    if (s->config.ops_listen[0] && (rc = ops_start(&s->ops, s->config.ops_listen, err)) != CKKS_OK) goto out;
    if ((rc = transport_open(&s->transport, &s->loop, &s->config, s->config.requests_max + SPARE_CONTEXTS,
                             &callbacks, err)) != CKKS_OK)
        goto out;
    if ((rc = lend_blocks(s, err)) != CKKS_OK) goto out;
    if ((rc = models_init(&s->models, err)) != CKKS_OK) goto out;
    if ((rc = start_timers(s, err)) != CKKS_OK) goto out;
    s->next_key_tick_ns = clock_now_ns();
    if ((rc = models_scan(s, false, err)) != CKKS_OK) goto out;
    notify_status("loading %u models", s->models.load_pending);
    if (s->models.load_pending == 0) {
        log_write(LOG_LEVEL_WARNING, "event=no_models message=\"the repository is empty\"");
        server_models_loaded(s);
        server_check_ready(s);
    }
out:
    token_table_fini(&tokens);
    return rc;
}

/* ---- down ---- */

/* Programs are closed by their slots' threads, which own them. */
typedef struct farewell {
    slot_job job;
    server *server;
} farewell;

static void run_farewell(slot_job *job) {
    for (uint32_t i = 0; i < SLOT_MODELS_MAX; i++)
        if (job->slot->programs[i]) {
            graph_program_destroy(job->slot->programs[i]);
            job->slot->programs[i] = NULL;
        }
}
static void on_farewell(loop_event *event) {
    (void)event; /* the queue is closed: nobody listens any more */
}

static bool stop_slots(server *s) {
    farewell *all = calloc(s->slots.count + 1u, sizeof *all);
    if (!all) return false;
    for (uint32_t i = 0; i < s->slots.count; i++) {
        all[i].job.run = run_farewell;
        all[i].job.done.run = on_farewell;
        slot_submit(&s->slots.slots[i], &all[i].job);
    }
    const bool all_ended = slots_stop(&s->slots, STOP_LIMIT_NS);
    if (all_ended) free(all);
    return all_ended;
}

void server_stop(server *s) {
    s->phase = SERVER_STOPPING;
    if (s->loop.is_initialised) loop_close_queue(&s->loop);
    transport_stop(&s->transport);
    const bool all_ended = models_stop(&s->models, STOP_LIMIT_NS) && stop_slots(s);
    if (!all_ended || !list_is_empty(&s->requests) || s->pool_jobs) {
        /* a thread hangs in a device or in the pool: freeing what it uses would turn a hang into damage */
        log_write(LOG_LEVEL_ERROR, "event=abandoned message=\"work did not end in time\"");
        _exit(list_is_empty(&s->requests) && s->pool_jobs == 0 ? s->exit_code : EXIT_FAILURE);
    }
    transport_close(&s->transport);
    ops_stop(s->ops);
    keys_release_residents(s);
    models_fini(&s->models);
    keys_close(s);
    health_stop(&s->health);
    device_free_host(s->device, s->blocks);
    device_close(s->device);
    dedupe_fini(&s->dedupe);
    tenants_fini(&s->tenants);
    free(s->recoveries);
    loop_fini(&s->loop);
}

int server_run(const config *c, const char *config_path) {
    ckks_error err = {0};
    server *s = calloc(1, sizeof *s);
    if (!s) return EXIT_FAILURE;
    s->config = *c;
    snprintf(s->config_path, sizeof s->config_path, "%s", config_path);
    int code = EXIT_FAILURE;
    if (server_start(s, &err) == CKKS_OK) {
        loop_run(&s->loop);
        code = s->exit_code;
    } else {
        log_error(LOG_LEVEL_ERROR, "start_failed", &err);
        notify_status("start failed: %.150s", err.message);
    }
    server_stop(s);
    log_write(LOG_LEVEL_NOTICE, "event=stopped exit=%d", code);
    free(s);
    return code;
}
